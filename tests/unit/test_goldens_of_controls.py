"""Goldens of the run controls: small traces whose barrier, plays, idle caps and cancellations are worked out by hand.

`expected.json` holds the part of the report and of the request lines that the README of its folder explains.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import playproof as pp
from playproof.cli import main

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
NAMES = sorted(path.name for path in FOLDER.glob("controls-*"))


def mismatches(ours: Any, wanted: Any, path: str = "") -> list[str]:
    """Return where `ours` differs from what `wanted` says; what it does not mention may be anything."""
    if isinstance(wanted, dict):
        return [
            line
            for name, value in wanted.items()
            for line in mismatches(ours.get(name, "(absent)"), value, f"{path}.{name}")
        ]
    if isinstance(wanted, list):
        if len(ours) != len(wanted):
            return [f"{path}: {len(ours)} entries, not {len(wanted)}"]
        return [line for i, value in enumerate(wanted) for line in mismatches(ours[i], value, f"{path}[{i}]")]
    # Nanoseconds are exact; a cut is drawn in floating point.
    alike = ours == pytest.approx(wanted, abs=1e-6) if isinstance(wanted, float) else ours == wanted
    return [] if alike and (ours is None) == (wanted is None) else [f"{path}: {ours}, not {wanted}"]


@pytest.mark.parametrize("name", NAMES)
def test_controls_give_their_results(name: str) -> None:
    expected = json.loads((FOLDER / name / "expected.json").read_text())
    report = pp.run(FOLDER / name / "config.yaml")
    assert mismatches(report.to_dict(), expected["report"]) == []
    assert mismatches(list(report.request_dicts()), expected["requests"]) == []


def test_every_golden_says_what_it_shows() -> None:
    assert len(NAMES) >= 5
    for name in NAMES:
        assert len((FOLDER / name / "README.md").read_text(encoding="utf-8").strip()) > 200


def test_the_pages_commands_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = FOLDER.parent.parent
    monkeypatch.chdir(root)
    commands = re.findall(r"^`playproof (replay .*)`$", (root / "docs" / "run-controls.md").read_text(), re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert main(command.split()) == 0
        assert json.loads(capsys.readouterr().out)["valid"]


def test_the_comparison_sees_differences() -> None:
    ours = {"a": [{"b": 1.0, "c": None}], "d": True}
    assert mismatches(ours, {"a": [{"b": 1.0}], "d": True}) == []
    wrong: list[Any] = [{"a": []}, {"a": [{"b": 1.1}]}, {"a": [{"c": 0.0}]}, {"e": None}, {"d": False}]
    for wanted in wrong:
        assert mismatches(ours, wanted), wanted
