"""Lines and columns of findings in files that are one record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_lowering.placing import Document
from playproof_spec.findings import Severity, Where

from playproof import api

PLAY = {
    "id": "x",
    "models": ["m"],
    "block_size": 16,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "model": "m", "in": 16, "out": 1, "hash_ids": [1], "api_time": 1.0},
        {"t": 2.0, "type": "n", "model": "m", "in": 16, "out": "many", "hash_ids": [1], "api_time": 1.0},
    ],
}


def refused(path: Path) -> list[Where]:
    result = api.validate(path)
    return [item.where for item in result.findings.items if item.severity is Severity.ERROR]


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_value_has_its_line_and_column(tmp_path: Path, indent: Any, packed: bool) -> None:
    text = json.dumps(PLAY, indent=indent, ensure_ascii=False)
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    (where,) = refused(path)
    at = text.index('"many"')
    assert where.line == text.count("\n", 0, at) + 1
    assert where.column == at - text.rfind("\n", 0, at)
    assert where.field == "requests[1].out"
    assert str(where).startswith(f"{path}:{where.line}:{where.column} ")


def test_columns_count_characters(tmp_path: Path) -> None:
    text = '{"id": "übergrößе", "requests": 7}'
    path = tmp_path / "t.json"
    path.write_text(text)
    assert refused(path)[0].column == text.index("7") + 1


def test_a_missing_field_is_at_the_object_that_lacks_it(tmp_path: Path) -> None:
    play = json.loads(json.dumps(PLAY))
    del play["requests"][1]["out"]
    text = json.dumps(play, indent=2)
    path = tmp_path / "t.json"
    path.write_text(text)
    (where,) = refused(path)
    at = text.index("{", text.index('"api_time"'))
    assert (where.line, where.column) == (text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


@pytest.mark.parametrize("before", ['"hash_ids"', '"api_time"', "]", "}"])
@pytest.mark.parametrize("indent", [None, 2])
def test_broken_json_is_where_it_breaks(tmp_path: Path, before: str, indent: int | None) -> None:
    text = json.dumps(PLAY, indent=indent)
    path = tmp_path / "t.json"
    at = text.rindex(before)
    path.write_text(text[:at] + "?" + text[at:])
    (where,) = refused(path)
    assert where.line == text.count("\n", 0, at) + 1
    # The decoder may count the byte at which it stops from 0 or from 1.
    assert where.column - (at - text.rfind("\n", 0, at)) in (0, 1)
    path.write_text(text[:at])
    assert refused(path)[0].line == text[:at].count("\n") + 1


def test_what_the_proof_finds_has_its_place_too(tmp_path: Path) -> None:
    play = json.loads(json.dumps(PLAY))
    play["requests"][1]["out"] = -4
    text = json.dumps(play, indent=2)
    path = tmp_path / "t.json"
    path.write_text(text)
    where = refused(path)[0]
    at = text.index("-4")
    assert where.line == text.count("\n", 0, at) + 1


def test_rows_of_lines_keep_their_line_only(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(PLAY) + "\n")
    (where,) = refused(path)
    assert (where.line, where.column) == (1, 0)


# The lookup itself, beside one that walks the parsed value ----------------------------------------------------------

names = st.sampled_from(["a", "b", "a.b", "a[0]", "", "é", '"', "\\"])
values = st.recursive(
    st.integers(-99, 99) | st.sampled_from(["", "x", "{", "a,b", "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


def paths(value: Any, path: str = "") -> list[tuple[str, Any]]:
    found = [(path, value)]
    if isinstance(value, dict):
        for name, inner in value.items():
            found += paths(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            found += paths(inner, f"{path}[{number}]")
    return found


@given(value=values, indent=st.sampled_from([None, 0, 2]))
def test_every_value_is_found_by_its_path(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    document = Document(text.encode())
    assert document.broken == -1
    everything = paths(value)
    for path, wanted in everything:
        # A path that two values have, or a name that looks like a path, may mean either of them.
        meant = [other for name, other in everything if name == path]
        found, _ = json.JSONDecoder().raw_decode(text.encode()[document.offset(path) :].decode())
        if not any(mark in name for name in _names(value) for mark in (".", "[", '""')) and "" not in _names(value):
            assert found == wanted or found in meant


def _names(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for inner in value.values() for name in _names(inner))]
    return [name for inner in value for name in _names(inner)] if isinstance(value, list) else []


def test_names_that_look_like_paths_are_names() -> None:
    document = Document(b'{"a": {"b": 1}, "a.b": 22, "a.b[0]": 333}')
    assert [document.line_and_column(document.offset(path))[1] for path in ("a.b", "a.b[0]", "a", "a.x")] == [
        24,
        38,
        7,
        7,
    ]


@given(data=st.binary(max_size=60))
def test_any_bytes_have_a_place(data: bytes) -> None:
    document = Document(data)
    for path in ("", "a", "a[0].b", "[3]", "[" + "9" * 30 + "]"):
        assert 0 <= document.offset(path) <= len(data)
    line, column = document.line_and_column(max(document.broken, 0))
    assert line >= 1
    assert column >= 1
