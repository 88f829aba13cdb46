"""What users call is documented, what it returns has a public name too, and notebooks show it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from playproof_spec.findings import finding

import playproof as pp

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def returned(function: object) -> set[str]:
    """Return the classes that a function's annotation names."""
    annotation = inspect.signature(function).return_annotation  # type: ignore[arg-type]
    names = {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}
    return {name for name in names if name[0].isupper()} - {"Iterator"}


FUNCTIONS = [name for name in pp.__all__ if inspect.isfunction(getattr(pp, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_public_function_returns_is_public(name: str) -> None:
    assert returned(getattr(pp, name)) <= set(pp.__all__)
    assert returned(getattr(pp, name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_public_function_raises_is_public(name: str) -> None:
    text = inspect.getdoc(getattr(pp, name)) or ""
    section = re.search(r"Raises\n------\n(.*?)(\n\n|\Z)", text, re.DOTALL)
    raised = re.findall(r"^(\w+)$", section[1], re.MULTILINE) if section else []
    builtin = {"OSError", "ValueError", "KeyError", "FileNotFoundError"}
    assert set(raised) - builtin - {"UnusableEndpoint"} <= set(pp.__all__)


@pytest.mark.parametrize("name", pp.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(pp, name))


def test_notebooks_show_tables_and_act_upon_nothing_foreign() -> None:
    trace = pp.load(EXAMPLES / "weka")
    report = pp.replay(trace, pp.Deployment(workers=2), pp.Load(lanes=3), sla=pp.Sla(ttft_ms=50))
    assert repr(trace).startswith("<ProvenGraph of 5 plays, 56 requests, 57 edges, digest ")
    assert repr(report).startswith("<Report: 5 of 5 plays completed; 2 vLLM workers of 16,384 × 64 tokens")
    for shown in (trace._repr_html_(), report._repr_html_()):
        assert shown.count("<table>") == shown.count("</table>") > 0
    assert "<td>completed_requests</td><td>56</td>" in report._repr_html_()
    assert "<td>G5</td>" in trace._repr_html_()
    findings = pp.Findings(limit_per_code=1)
    for _ in range(3):
        where = pp.Where(file="<script>alert(1)</script>\x1b[2J", line=3)
        findings.add(finding("edge-dangling", "no request has this id", where=where))
    assert repr(findings) == "<Findings: 3 errors, 0 warnings: edge-dangling ×3>"
    assert "<script>" not in findings._repr_html_()
    assert "\x1b" not in findings._repr_html_()
    assert "; 2 more" in findings._repr_html_()
