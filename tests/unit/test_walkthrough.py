"""The walk through the kernel names functions that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from writes import KERNEL

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "walkthrough.md", ROOT / "kernel" / "README.md"]


def names() -> dict[str, set[str]]:
    """Return what each module of the kernel defines at its top, or imports there."""
    found: dict[str, set[str]] = {}
    for path in KERNEL.rglob("*.py"):
        own = found.setdefault(path.stem, set())
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Assign):
                own |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_function_that_is_named_exists(page: Path) -> None:
    known = names()
    named = set(re.findall(r"`(\w+)\.(\w+)`", page.read_text("utf-8")))
    named = {(module, name) for module, name in named if module in known and name not in ("py", "md")}
    assert len(named) > (40 if page.parent.name == "docs" else 2)
    missing = {f"{module}.{name}" for module, name in named if name not in known[module]}
    assert not missing


def test_all_names_of_the_walk_are_of_the_kernel() -> None:
    known = names()
    told = set(re.findall(r"`(\w+)\.(\w+)`", PAGES[0].read_text("utf-8"))) - {("module", "function")}
    assert {module for module, _ in told} <= set(known)
