"""The registry: a format is one module and one line, and everything else follows from those two."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from playproof_lowering import LoweringOptions, load_graph
from playproof_lowering import formats as registry
from playproof_lowering.formats import FORMATS, detect, reader, readers
from playproof_lowering.reader import Confidence, Head, head_of
from playproof_spec.catalogue import CATALOGUE

from playproof.config import READERS


def test_every_reader_is_registered_under_its_name() -> None:
    assert [each.name for each in readers()] == list(FORMATS)
    assert ("auto", *FORMATS) == READERS


@pytest.mark.parametrize("name", FORMATS)
def test_a_reader_says_what_it_needs(name: str) -> None:
    each = reader(name)
    assert set(each.options) <= {field.name for field in fields(LoweringOptions)}
    assert each.title
    assert all(CATALOGUE[kind.code] is kind for kind in each.kinds)


def test_nothing_is_nobodys() -> None:
    assert all(each.marks(Head({})) is Confidence.NONE for each in readers())
    assert all(each.marks(head_of(b'{"a": 1, "b": "two"}')) is Confidence.NONE for each in readers())


def test_the_surest_format_reads_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    # A record that names its format is that format's, whatever other fields it has.
    head = b'{"schema": "dynamo.request.trace.v1", "requests": [], "sessionId": "s", "hash_ids": [1]}'
    assert detect(head) == "dynamo"
    assert detect(head.replace(b"dynamo.request.trace.v1", b"dynamo.agentic_mooncake")) == "agentic_mooncake"
    assert detect(head.replace(b"dynamo.request.trace.v1", b"somebody.else")) == "weka"


def test_the_order_of_registration_decides_a_tie_only(monkeypatch: pytest.MonkeyPatch) -> None:
    row = b'{"hash_ids": [1], "play_id": "p"}'
    assert detect(row) == "agentic_mooncake"
    monkeypatch.setattr(registry, "FORMATS", tuple(reversed(FORMATS)))
    assert detect(row) == "mooncake"
    assert detect(b'{"num_turns": 1, "hash_ids": []}') == "applied_compute_agentic"


GIVEN: dict[str, Any] = {
    "block_size": 16,
    "nested_timestamp_basis": "absolute",
    "subagent_marker": "spawn",
    "strict": True,
}


@pytest.mark.parametrize("name", FORMATS)
def test_options_that_a_format_does_not_have_are_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.jsonl").write_text("{}\n")
    result = load_graph([tmp_path], format=name, options=LoweringOptions(**GIVEN))
    told = {item.message.split(" has no")[0] for item in result.findings.items if item.code == "option-no-effect"}
    assert told == {option.replace("_", " ") for option in GIVEN.keys() - set(reader(name).options)}
    plain = load_graph([tmp_path], format=name)
    assert "option-no-effect" not in plain.findings.counts


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such format: 'wekka'"):
        load_graph([tmp_path], format="wekka")


def test_the_list_of_formats_costs_no_compiler() -> None:
    code = "import sys, playproof_lowering.formats as f; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numba", "playproof_lowering.weka"}.isdisjoint(shown.stdout.split())
