"""What comes from foreign files, names, ids and paths, reaches no terminal raw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playproof_spec.findings import printable
from rich.table import Table
from rich.text import Text

from playproof import terminal
from playproof.render import escaped, escaped_json

# Clears a screen, rings, turns the writing around, is an escape of one byte, ends a line, is half a character.
NASTY = ["\x1b[2J", "\x07", "\u202e", "\x9b31m", "a\nb", "\r", "\x00", "\x7f", "\u2028", "\ud800"]


def rows(nasty: str, broken: bool) -> str:
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}
    edge = {"request_id": f"gone{nasty}" if broken else f"a{nasty}", "trigger": "completion", "delay_ms": 1.0}
    row = {"play_id": f"p{nasty}", "session_id": f"s{nasty}", "model": f"m{nasty}", "input_length": 4}
    row |= {"output_length": 1, "hash_ids": [1], "not_before_ms": 0, f"odd{nasty}": 1}
    return "".join(
        json.dumps(each) + "\n"
        for each in (
            header | {"source": {"format": f"f{nasty}", "digest": f"d{nasty}"}},
            row | {"request_id": f"a{nasty}"},
            row | {"request_id": f"b{nasty}", "dependencies": [edge | {"relation": "sequence"}]},
        )
    )


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("output", ["text", "json", "sarif"])
def test_validate(said: Any, tmp_path: Path, nasty: str, broken: bool, output: str) -> None:
    name = nasty if nasty not in ("\x00", "\ud800") else ""
    path = tmp_path / f"t{name}.jsonl"
    path.write_text(rows(nasty, broken))
    code, out, err = said("validate", str(path), "--output", output)
    assert code in (0, 1)
    assert is_safe(out + err)
    if output != "text":
        json.loads(out)


@pytest.mark.parametrize("nasty", NASTY[:-1])
def test_a_model_makes_one_row(said: Any, tmp_path: Path, nasty: str) -> None:
    """A name with a line break in it would write a row of its own."""
    path = tmp_path / "t.jsonl"
    path.write_text(rows(nasty, broken=False))
    _, out, _ = said("inspect", str(path))
    (row,) = [line for line in out.splitlines() if line.startswith("model ")]
    assert row.endswith(": 2 requests, 8 in, 2 out")
    assert printable(f"m{nasty}") in row


@pytest.mark.parametrize("nasty", NASTY[:-1])
@pytest.mark.parametrize("output", ["text", "json", "mermaid", "dot"])
def test_inspect(said: Any, tmp_path: Path, nasty: str, output: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(rows(nasty, broken=False))
    code, out, err = said("inspect", str(path), "--output", output)
    assert code == 0
    assert is_safe(out + err)
    if output == "json":
        assert f"m{nasty}" in json.loads(out)["models"]


@pytest.mark.parametrize("nasty", NASTY[:-1])
def test_lower(said: Any, tmp_path: Path, nasty: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(rows(nasty, broken=False))
    name = nasty.replace("\x00", "")
    code, out, err = said("lower", str(path), "--out", str(tmp_path / f"out{name}.jsonl"))
    assert code == 0
    assert is_safe(out + err)


def test_whatever_a_console_prints_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    table.add_column("\x1b]0;x\x07")
    table.add_row(Text("\u202ex"))
    for thing in ("\x1b[2J", Text("a\x9bb\nc"), table):
        terminal.out.print(thing, markup=False)
    shown = capsys.readouterr().out
    assert is_safe(shown)
    assert "\\x1b[2J" in shown
    assert "a\\x9bb\nc" in shown


@pytest.mark.parametrize("nasty", NASTY[:-1])
def test_escaped_json_is_the_same_value(nasty: str) -> None:
    value = {f"k{nasty}": [f"v{nasty}é→", 1]}
    for indent in (None, 2):
        text = escaped_json(json.dumps(value, ensure_ascii=False, indent=indent))
        assert is_safe(text)
        assert json.loads(text) == value
    assert "é→" in escaped_json(json.dumps(value, ensure_ascii=False))
    assert is_safe(escaped(f"x{nasty}y\n"))
