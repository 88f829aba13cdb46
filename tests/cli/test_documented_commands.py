"""The commands and programs of the pages on looking at runs work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from playproof.commands.starting import copy_examples

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/comparing.md", "docs/timeline.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_run(said: Any, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_examples(tmp_path / "examples")
    text = (ROOT / page).read_text()
    commands = [
        shlex.split(line)
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("playproof ")
    ]
    assert len(commands) >= 4
    for command in commands:
        if "--html" in command:
            pytest.importorskip("plotly")
        code, out, err = said(*command[1:])
        # A regression is what the page shows.
        assert code == (3 if "--max-regression" in command else 0), (command, err)
        assert out


def test_the_program_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "comparing.md").read_text(), re.DOTALL)
    exec(code, {})
    assert "fewer workers" in capsys.readouterr().out
