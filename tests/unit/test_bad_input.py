"""Bad input, one kind after the other: each ends as one clear finding at the right file, line and field.

Reading and proving are tried together, since some defects are the reader's to find and some the obligations'; whoever
finds one, nobody may find it twice.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from playproof_lowering import LoweringOptions, load_graph
from playproof_lowering import source as source_module
from playproof_lowering.names import repeated_name
from playproof_spec.certificate import prove
from playproof_spec.findings import Finding, InvalidInput, Severity

NAN, INFINITY = float("nan"), float("inf")

HEADER = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 16,
    "hash_id_scope": "local",
    "source": {"format": "hand", "digest": "none"},
}


def row(request_id: str = "a", **changes: Any) -> dict[str, Any]:
    fields = {
        "request_id": request_id,
        "play_id": "p",
        "session_id": "s",
        "model": "m",
        "input_length": 20,
        "output_length": 5,
        "hash_ids": [1, 2],
        "not_before_ms": 0.0,
        "dependencies": [],
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not ...}


def edge(source: str, **changes: Any) -> dict[str, Any]:
    return {"request_id": source, "trigger": "completion", "delay_ms": 0.0, "relation": "sequence", **changes}


def call(t: float = 0.0, **changes: Any) -> dict[str, Any]:
    fields = {"t": t, "type": "n", "model": "m", "in": 20, "out": 5, "hash_ids": [1], "api_time": 1.0, **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def subagent(t: float = 5.0, **changes: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": "agent_1",
        "subagent_type": "Explore",
        "duration_ms": 3000,
        "status": "completed",
        "requests": [call(0.0, hash_ids=[7])],
        **changes,
    }


def play(*requests: Any, **changes: Any) -> dict[str, Any]:
    return {"id": "x", "models": ["m"], "block_size": 16, "hash_id_scope": "local", "requests": requests, **changes}


def lines(*records: Any) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


def problems(path: Path, format: str = "auto", options: LoweringOptions | None = None) -> list[Finding]:
    """Return all findings but notes, of reading and of proving."""
    lowered = load_graph([path], format=format, options=options or LoweringOptions())
    found = lowered.findings
    if lowered.graph is not None:
        try:
            return [f for f in prove(lowered.graph, found).findings if f.severity is not Severity.NOTE]
        except InvalidInput as error:
            found = error.findings
    return [f for f in found.items if f.severity is not Severity.NOTE]


def the_one(findings: list[Finding], code: str, file: str, line: int, field: str) -> Finding:
    places = [(f.code, Path(f.where.file).name, f.where.line, f.where.field) for f in findings]
    assert places == [(code, file, line, field)]
    only = findings[0]
    assert only.message
    assert only.because
    assert only.hint
    return only


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


V2_ROWS: list[tuple[str, list[Any], tuple[str, int, str]]] = [
    ("NaN", [row(), row("b", not_before_ms=NAN)], ("time-not-finite", 3, "not_before_ms")),
    (
        "infinite delay",
        [row(), row("b", dependencies=[edge("a", delay_ms=INFINITY)])],
        ("time-not-finite", 3, "dependencies[0].delay_ms"),
    ),
    ("negative floor", [row(not_before_ms=-1.5)], ("time-negative", 2, "not_before_ms")),
    (
        "negative delay",
        [row(), row("b", dependencies=[edge("a", delay_ms=-1)])],
        ("time-negative", 3, "dependencies[0].delay_ms"),
    ),
    ("negative recorded time", [row(recorded_api_time_ms=-2.0)], ("time-negative", 2, "recorded_api_time_ms")),
    ("time beyond the clock", [row(not_before_ms=1e18)], ("time-beyond-horizon", 2, "not_before_ms")),
    (
        "time beyond floats",
        [json.dumps(row(not_before_ms=7)).replace(": 7", ": 1e999").encode()],
        ("number-out-of-range", 2, "not_before_ms"),
    ),
    ("duplicate id", [row(), row()], ("id-duplicate", 3, "request_id")),
    ("dangling edge", [row(dependencies=[edge("gone")])], ("edge-dangling", 2, "dependencies[0].request_id")),
    (
        "self edge",
        [row(), row("b", dependencies=[edge("a"), edge("b")])],
        ("edge-self", 3, "dependencies[1].request_id"),
    ),
    (
        "edge across plays",
        [row(), row("c", play_id="q"), row("b", play_id="q", dependencies=[edge("c"), edge("a")])],
        ("edge-cross-play", 4, "dependencies[1].request_id"),
    ),
    (
        "illegal pair",
        [row(), row("b", dependencies=[edge("a", trigger="dispatch")])],
        ("edge-pair", 3, "dependencies[0].relation"),
    ),
    (
        "unknown relation",
        [row(), row("b", dependencies=[edge("a", relation="after")])],
        ("value-unknown", 3, "dependencies[0].relation"),
    ),
    (
        "unknown trigger",
        [row(), row("b", dependencies=[edge("a", trigger="complete")])],
        ("value-unknown", 3, "dependencies[0].trigger"),
    ),
    (
        "duplicate edge",
        [row(), row("b", dependencies=[edge("a"), edge("a", delay_ms=5)])],
        ("edge-duplicate", 3, "dependencies[1]"),
    ),
    ("too few hash ids", [row(hash_ids=[1])], ("hash-count", 2, "hash_ids")),
    ("too many hash ids", [row(hash_ids=[1, 2, 3])], ("hash-count", 2, "hash_ids")),
    ("no hash ids", [row(hash_ids=...)], ("field-missing", 2, "hash_ids")),
    ("null hash ids", [row(hash_ids=None)], ("field-type", 2, "hash_ids")),
    ("negative hash id", [row(hash_ids=[1, -2])], ("hash-id-invalid", 2, "hash_ids[1]")),
    ("fractional hash id", [row(hash_ids=[1.0, 2])], ("hash-id-invalid", 2, "hash_ids[0]")),
    ("hash id as text", [row(hash_ids=["1", 2])], ("hash-id-invalid", 2, "hash_ids[0]")),
    ("hash id of 2**64", [row(hash_ids=[1, 2**64])], ("number-out-of-range", 2, "hash_ids[1]")),
    ("no input length", [row(input_length=...)], ("field-missing", 2, "input_length")),
    ("empty prompt", [row(input_length=0, hash_ids=[])], ("length-out-of-bounds", 2, "input_length")),
    ("negative output", [row(output_length=-1)], ("length-out-of-bounds", 2, "output_length")),
    ("length of 2**70", [row(input_length=2**70)], ("number-out-of-range", 2, "input_length")),
    ("length as text", [row(input_length="20")], ("field-type", 2, "input_length")),
    ("length as truth", [row(input_length=True)], ("field-type", 2, "input_length")),
    ("length twice", [row(input_tokens=20)], ("field-conflict", 2, "input_tokens")),
    ("a million tokens declared", [row(input_length=1_000_000)], ("hash-count", 2, "hash_ids")),
    ("empty model", [row(model="")], ("id-empty", 2, "model")),
    ("no model", [row(model=...)], ("field-missing", 2, "model")),
    (
        "two ordinals",
        [row(source_play_ordinal=0), row("b", source_play_ordinal=1)],
        ("ordinal-conflict", 3, "source_play_ordinal"),
    ),
    (
        "ordinals with a gap",
        [row(source_play_ordinal=0), row("b", play_id="q", source_play_ordinal=2)],
        ("ordinal-gap", 3, "source_play_ordinal"),
    ),
    ("wrong number of output ids", [row(output_token_ids=[1, 2])], ("hash-count", 2, "output_token_ids")),
    ("output id out of range", [row(output_token_ids=[1, 2, 3, 4, 2**32])], ("field-type", 2, "output_token_ids[4]")),
    ("row is null", [b"null"], ("json-not-object", 2, "")),
    ("row is a list", [b"[]"], ("json-not-object", 2, "")),
    ("two rows on a line", [json.dumps(row()).encode() + json.dumps(row("b")).encode()], ("json-trailing", 2, "")),
    ("half a row", [b'{"request_id": "a", "play_id'], ("json-malformed", 2, "")),
    ("deep nesting", [b'{"hash_ids": ' + b"[" * 100_000], ("json-too-deep", 2, "")),
    ("second header", [row(), HEADER], ("header-repeated", 3, "")),
]


@pytest.mark.parametrize(("rows", "wanted"), [case[1:] for case in V2_ROWS], ids=[case[0] for case in V2_ROWS])
def test_v2_row(tmp_path: Path, rows: list[Any], wanted: tuple[str, int, str]) -> None:
    path = written(tmp_path, "trace.jsonl", lines(HEADER, *rows))
    code, line, field = wanted
    the_one(problems(path), code, "trace.jsonl", line, field)


def test_a_bad_row_is_named_by_its_id(tmp_path: Path) -> None:
    rows = [row("first", model=1), row("second", hash_ids=[-1]), row("third", output_length=-1)]
    found = problems(written(tmp_path, "trace.jsonl", lines(HEADER, *rows)))
    assert [finding.where.ids for finding in found] == [("first",), ("second",), ("third",)]


def test_cycle_names_its_edges(tmp_path: Path) -> None:
    rows = [row(), row("b", dependencies=[edge("a"), edge("c")]), row("c", dependencies=[edge("b")])]
    found = problems(written(tmp_path, "trace.jsonl", lines(HEADER, *rows)))
    assert "cycle" in {finding.code for finding in found}
    cycle = next(finding for finding in found if finding.code == "cycle")
    assert set(cycle.where.ids) == {"b", "c"}
    assert cycle.where.line in (3, 4)


def test_ids_that_differ_above_32_bits_stay_apart(tmp_path: Path) -> None:
    low, high = 5, 5 + 2**32
    rows = [row(hash_ids=[low, 2**64 - 1]), row("b", hash_ids=[high, 2**64 - 1]), row("c", hash_ids=[2**64 - 1, 0])]
    graph = load_graph([written(tmp_path, "trace.jsonl", lines(HEADER, *rows))]).graph
    assert graph is not None
    assert [graph.hash_ids(node).tolist() for node in range(3)] == [[low, 2**64 - 1], [high, 2**64 - 1], [2**64 - 1, 0]]


HEADERS: list[tuple[str, bytes, tuple[str, str]]] = [
    ("absent", lines(row()), ("header-missing", "")),
    ("absent, rows of version 1", lines({"request_id": "a", "wait_for": [], "hash_ids": [1]}), ("header-missing", "")),
    ("version 1", lines({**HEADER, "version": 1}, row()), ("header-invalid", "version")),
    ("version 3", lines({**HEADER, "version": 3}, row()), ("header-invalid", "version")),
    ("another schema", lines({**HEADER, "schema": "dynamo.other"}, row()), ("header-invalid", "schema")),
    ("another scope", lines({**HEADER, "hash_id_scope": "global"}, row()), ("header-invalid", "hash_id_scope")),
    ("block size 0", lines({**HEADER, "block_size": 0}, row()), ("header-invalid", "block_size")),
    (
        "empty format",
        lines({**HEADER, "source": {"format": "", "digest": "x"}}, row()),
        ("header-invalid", "source.format"),
    ),
    ("no source", lines({k: v for k, v in HEADER.items() if k != "source"}, row()), ("field-missing", "source")),
    ("version as text", lines({**HEADER, "version": "2"}, row()), ("field-type", "version")),
    ("nothing behind it", lines(HEADER), ("rows-missing", "")),
]


@pytest.mark.parametrize(("content", "wanted"), [case[1:] for case in HEADERS], ids=[case[0] for case in HEADERS])
def test_v2_header(tmp_path: Path, content: bytes, wanted: tuple[str, str]) -> None:
    the_one(problems(written(tmp_path, "trace.jsonl", content)), wanted[0], "trace.jsonl", 1, wanted[1])


def test_rows_without_header_are_told_how_to_convert(tmp_path: Path) -> None:
    found = problems(written(tmp_path, "trace.jsonl", lines(row())))
    assert "dynamo.agentic_mooncake" in found[0].hint
    assert "version" in found[0].hint


WEKA: list[tuple[str, Any, tuple[str, str]]] = [
    ("NaN", play(call(), call(NAN)), ("time-not-finite", "requests[1].t")),
    ("NaN, nested", play(call(), subagent(requests=[call(NAN)])), ("time-not-finite", "requests[1].requests[0].t")),
    ("infinite", play(call(INFINITY)), ("time-not-finite", "requests[0].t")),
    (
        "minus infinite, nested",
        play(call(), subagent(requests=[call(-INFINITY)])),
        ("time-not-finite", "requests[1].requests[0].t"),
    ),
    ("negative", play(call(-1.0)), ("time-negative", "requests[0].t")),
    ("negative, nested", play(call(), subagent(requests=[call(-1.0)])), ("time-negative", "requests[1].requests[0].t")),
    ("negative service", play(call(api_time=-0.5)), ("time-negative", "requests[0].api_time")),
    ("negative duration", play(call(), subagent(duration_ms=-1)), ("time-negative", "requests[1].duration_ms")),
    ("beyond the clock", play(call(1e12)), ("time-beyond-horizon", "requests[0].t")),
    (
        "beyond the clock, nested",
        play(call(), subagent(requests=[call(1e12)])),
        ("time-beyond-horizon", "requests[1].requests[0].t"),
    ),
    ("marker beyond the clock", play(call(), subagent(1e300)), ("time-beyond-horizon", "requests[1].t")),
    ("empty prompt", play(call(**{"in": 0})), ("length-out-of-bounds", "requests[0].in")),
    ("negative output", play(call(out=-1)), ("length-out-of-bounds", "requests[0].out")),
    ("length of 2**70", play(call(out=2**70)), ("length-out-of-bounds", "requests[0].out")),
    ("fractional length", play(call(out=1.5)), ("field-type", "requests[0].out")),
    (
        "length as text, nested",
        play(call(), subagent(requests=[call(out="1")])),
        ("field-type", "requests[1].requests[0].out"),
    ),
    ("no model", play(call(model=...)), ("field-missing", "requests[0].model")),
    ("empty model", play(call(), call(1.0, model=""), models=[]), ("id-empty", "requests[1].model")),
    ("negative hash id", play(call(hash_ids=[-1])), ("hash-id-invalid", "requests[0].hash_ids[0]")),
    ("hash id of 2**64", play(call(hash_ids=[2**64])), ("number-out-of-range", "requests[0].hash_ids[0]")),
    ("hash ids as text", play(call(hash_ids="1")), ("field-type", "requests[0].hash_ids")),
    ("unknown type of entry", play(call(), call(type="x")), ("value-unknown", "requests[1].type")),
    ("no type of entry", play(call(type=...)), ("field-missing", "requests[0].type")),
    (
        "nested subagent",
        play(call(), subagent(requests=[subagent()])),
        ("value-unknown", "requests[1].requests[0].type"),
    ),
    ("unknown status", play(call(), subagent(status="failed")), ("value-unknown", "requests[1].status")),
    ("subagent without owner", play(subagent(), call(9.0)), ("subagent-without-owner", "requests[0]")),
    ("equal agent ids", play(call(), subagent(), subagent(9.0)), ("subagent-duplicate", "requests[2].agent_id")),
    ("empty agent id", play(call(), subagent(agent_id=" ")), ("id-empty", "requests[1].agent_id")),
    (
        "subagent ends early",
        play(call(), subagent(duration_ms=500)),
        ("subagent-ends-early", "requests[1].duration_ms"),
    ),
    ("no requests", play(), ("play-empty", "requests")),
    ("no requests of its own", play(subagent()), ("subagent-without-owner", "requests[0]")),
    ("empty id", play(call(), id=""), ("id-empty", "id")),
    ("block size 0", play(call(), block_size=0), ("block-size", "block_size")),
    ("another scope", play(call(), hash_id_scope="global"), ("value-unknown", "hash_id_scope")),
]


@pytest.mark.parametrize(("record", "wanted"), [case[1:] for case in WEKA], ids=[case[0] for case in WEKA])
def test_weka_field(tmp_path: Path, record: Any, wanted: tuple[str, str]) -> None:
    found = problems(written(tmp_path, "trace.json", json.dumps(record).encode()))
    # A play without a request of its own says so beside what else is wrong with it.
    found = [finding for finding in found if finding.code != "play-empty" or wanted[0] == "play-empty"]
    the_one(found, wanted[0], "trace.json", 0, wanted[1])


def test_weka_lines_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "all.jsonl", lines(play(call()), play(call(), call(-2.0))))
    the_one(problems(path), "time-negative", "all.jsonl", 2, "requests[1].t")


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (json.dumps(row("b"))[:-1] + ', "input_length": 20}', "input_length"),
        (json.dumps(row("b"))[:-1] + ',"play_id"\t: "p"}', "play_id"),
        (
            json.dumps(row("b", dependencies=[edge("a")])).replace('"delay_ms"', '"delay_ms": 1, "delay_ms"'),
            "dependencies[0].delay_ms",
        ),
        (json.dumps(row("b", extra={"x": [{"y": 1}, {"y": 1, "y,": 2}]})).replace('"y,"', '"y"'), "extra.x[1].y"),
    ],
)
def test_a_name_that_stands_twice_in_a_row(tmp_path: Path, record: str, field: str) -> None:
    path = written(tmp_path, "trace.jsonl", lines(HEADER, row(), record.encode()))
    found = [item for item in problems(path) if item.severity is Severity.ERROR]
    assert the_one(found, "field-repeated", "trace.jsonl", 3, field).where.ids == ("b",)


def test_a_name_that_stands_twice_in_a_header(tmp_path: Path) -> None:
    header = json.dumps(HEADER)[:-1] + ', "block_size": 64}'
    found = problems(written(tmp_path, "trace.jsonl", lines(header.encode(), row())))
    the_one(found, "field-repeated", "trace.jsonl", 1, "block_size")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"block_size": 16', '"block_size": 16, "block_size": 64', "block_size"),
        ('"t": 3.5', '"t": 3.5, "t": 4.5', "requests[1].requests[0].t"),
    ],
)
def test_a_name_that_stands_twice_in_a_play(tmp_path: Path, old: str, new: str, field: str) -> None:
    record = json.dumps(play(call(), subagent(requests=[call(3.5)], duration_ms=9000)))
    assert record.count(old) == 1
    found = problems(written(tmp_path, "trace.json", record.replace(old, new).encode()))
    the_one(found, "field-repeated", "trace.json", 0, field)


def naive_repetition(text: str) -> bool:
    repeated = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        repeated |= len(dict(pairs)) < len(pairs)
        return dict(pairs)

    json.loads(text, object_pairs_hook=look)
    return repeated


names = st.sampled_from(["a", "b", "a:", "ab", '"', "\\", "{", "é", ""])
values = st.recursive(
    st.sampled_from(["1", "-2.5e3", "null", '"a"', '"\\"a\\": {"', "[]"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]"),
        st.lists(st.tuples(names, inner), max_size=4).map(
            lambda pairs: "{" + ",\n".join(f"{json.dumps(name)} :{value}" for name, value in pairs) + "}"
        ),
    ),
)


@given(values)
def test_repeated_names_are_those_that_a_naive_reader_finds(text: str) -> None:
    assert (repeated_name(text.encode()) is not None) == naive_repetition(text)


def test_a_flood_of_names_takes_no_flood_of_time(tmp_path: Path) -> None:
    # No clock is read: with work quadratic in names or depth, this test would not end.
    flood = {f"x{n}": n for n in range(200_000)}
    assert repeated_name(json.dumps(flood).encode()) is None
    assert repeated_name(b'{"a":' * 5000 + b"1" + b"}" * 5000) is None


def test_a_duration_is_shown_as_it_was_recorded(tmp_path: Path) -> None:
    record = play(call(), subagent(duration_ms=1e300))
    found = problems(written(tmp_path, "trace.json", json.dumps(record).encode()))
    only = the_one(found, "time-beyond-horizon", "trace.json", 0, "requests[1].duration_ms")
    assert (only.found, only.wanted[-3:]) == ("1e+300", " ms")


def test_lengths_that_no_hash_covers_are_bounded_together(tmp_path: Path) -> None:
    # 134 million blocks each: two of them are read in a moment, the third would be a corpus of gigabytes.
    record = play(*(call(float(n), **{"in": 2**31 - 1, "hash_ids": []}) for n in range(5)))
    found = problems(written(tmp_path, "trace.json", json.dumps(record).encode()))
    the_one(found, "length-out-of-bounds", "trace.json", 0, "requests[2].in")


def test_every_problem_of_a_record_is_told(tmp_path: Path) -> None:
    record = play(call(-1.0), call(NAN, out="x"), subagent(requests=[call(0.0, hash_ids=[1.5])], status=3))
    found = problems(written(tmp_path, "trace.json", json.dumps(record).encode()))
    assert [(finding.code, finding.where.field) for finding in found] == [
        ("time-not-finite", "requests[1].t"),
        ("field-type", "requests[1].out"),
        ("field-type", "requests[2].status"),
    ]


def test_the_rows_beside_a_bad_one_are_judged_too(tmp_path: Path) -> None:
    rows = [row(), row("b", model=3), row("c", dependencies=[edge("b")], not_before_ms=-1)]
    found = problems(written(tmp_path, "trace.jsonl", lines(HEADER, *rows)))
    # The edge to the unreadable row is no finding of its own.
    assert [(finding.code, finding.where.line) for finding in found] == [("field-type", 3), ("time-negative", 4)]


FILES: list[tuple[str, str, bytes, tuple[str, int]]] = [
    ("empty", "trace.json", b"", ("file-empty", 0)),
    ("empty lines", "trace.jsonl", b"", ("file-empty", 0)),
    ("blank", "trace.json", b" \n\t", ("file-empty", 0)),
    ("null", "trace.json", b"null", ("json-not-object", 0)),
    ("list", "trace.json", b"[]", ("json-not-object", 0)),
    ("number", "trace.jsonl", b"3\n", ("json-not-object", 1)),
    ("trailing garbage", "trace.json", json.dumps(play(call())).encode() + b" x", ("json-trailing", 0)),
    ("two objects", "trace.json", json.dumps(play(call())).encode() * 2, ("json-trailing", 0)),
    ("two objects on two lines", "trace.json", lines(play(call()), play(call())), ("json-trailing", 0)),
    ("byte order mark", "trace.json", b"\xef\xbb\xbf" + json.dumps(play(call())).encode(), ("encoding-bom", 0)),
    ("UTF-16", "trace.json", json.dumps(play(call())).encode("utf-16"), ("encoding-not-utf8", 0)),
    ("UTF-16 without mark", "trace.json", json.dumps(play(call())).encode("utf-16-le"), ("encoding-not-utf8", 0)),
    (
        "Latin-1",
        "trace.json",
        json.dumps(play(call(model="é")), ensure_ascii=False).encode("latin-1"),
        ("encoding-not-utf8", 0),
    ),
    ("package.json", "package.json", b'{"name": "x", "scripts": {}}', ("format-unknown", 0)),
    ("deep nesting", "trace.json", b'{"requests": ' + b"[" * 100_000, ("json-too-deep", 0)),
    (
        "gzip cut short",
        "trace.jsonl.gz",
        gzip.compress(lines(HEADER, *[row(f"r{n}", hash_ids=[n, n * n + 7]) for n in range(300)]), mtime=0)[:-20],
        ("compression-broken", 0),
    ),
    ("gzip of nothing", "trace.json.gz", gzip.compress(b"", mtime=0), ("file-empty", 0)),
    ("not gzip at all", "trace.json.gz", b"{}", ("compression-broken", 0)),
    (
        "zstd cut short",
        "trace.json.zst",
        zstandard.compress(json.dumps(play(call())).encode())[:-6],
        ("compression-broken", 0),
    ),
]


@pytest.mark.parametrize(("name", "content", "wanted"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_file(tmp_path: Path, name: str, content: bytes, wanted: tuple[str, int]) -> None:
    found = problems(written(tmp_path, name, content))
    assert [(finding.code, finding.where.line) for finding in found] == [wanted]
    assert Path(found[0].where.file).name == name


@pytest.mark.parametrize("format", ["weka", "agentic_mooncake"])
@pytest.mark.parametrize(
    "content", [b"null", b"[]", b"{}", b"x", b'{"a": 1}', b"[" * 100_000, b"\xff\xfe", b"1e999", b'"']
)
def test_a_named_format_meets_what_it_is_not(tmp_path: Path, format: str, content: bytes) -> None:
    found = problems(written(tmp_path, "trace.jsonl", content), format)
    assert Severity.ERROR in {finding.severity for finding in found}


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    found = problems(tmp_path)
    assert [finding.code for finding in found] == ["corpus-empty"]
    assert "1 other" in found[0].message


def test_missing_path(tmp_path: Path) -> None:
    the_one(problems(tmp_path / "no.json"), "path-missing", "no.json", 0, "")


def test_symlink(tmp_path: Path) -> None:
    written(tmp_path, "a.json", json.dumps(play(call())).encode())
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    the_one(problems(tmp_path), "path-symlink", "b.json", 0, "")
    the_one(problems(tmp_path / "b.json"), "path-symlink", "b.json", 0, "")


def test_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    the_one(problems(tmp_path), "path-special", "pipe.json", 0, "")
    the_one(problems(Path("/dev/null")), "path-special", "null", 0, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", b"{}")
    path.chmod(0)
    the_one(problems(path), "file-unreadable", "a.json", 0, "")


def test_file_given_twice(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", json.dumps(play(call())).encode())
    found = load_graph([tmp_path, path]).findings
    assert [f.code for f in found.items if f.severity is Severity.ERROR] == ["path-twice"]


def test_ids_that_collide_across_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    first = written(tmp_path, "a.json", json.dumps(play(call())).encode())
    second = written(tmp_path / "b", "a.json", json.dumps(play(call())).encode())
    found = load_graph([first, second]).findings
    assert [f.code for f in found.items if f.severity is Severity.ERROR] == ["ids-collide"]
    assert not load_graph([tmp_path]).findings.errors


def test_duplicate_ids_across_v2_files(tmp_path: Path) -> None:
    written(tmp_path, "a.jsonl", lines(HEADER, row()))
    written(tmp_path, "b.jsonl", lines(HEADER, row(play_id="q")))
    found = the_one(problems(tmp_path), "id-duplicate", "b.jsonl", 2, "request_id")
    assert "a.jsonl:2" in found.message


def test_one_play_in_two_v2_files(tmp_path: Path) -> None:
    written(tmp_path, "a.jsonl", lines(HEADER, row()))
    written(tmp_path, "b.jsonl", lines(HEADER, row("b")))
    the_one(problems(tmp_path), "play-across-files", "b.jsonl", 2, "play_id")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [("b.jsonl", lines({**HEADER, "block_size": 32}, row("b", play_id="q")), 1)],
)
def test_mixed_block_sizes_v2(tmp_path: Path, name: str, content: bytes, line: int) -> None:
    written(tmp_path, "a.jsonl", lines(HEADER, row()))
    written(tmp_path, name, content)
    the_one(problems(tmp_path), "block-size-mixed", name, line, "block_size")


def test_mixed_block_sizes_weka(tmp_path: Path) -> None:
    written(tmp_path, "a.json", json.dumps(play(call())).encode())
    written(tmp_path, "b.json", json.dumps(play(call(), block_size=64)).encode())
    the_one(problems(tmp_path), "block-size-mixed", "b.json", 0, "block_size")


@pytest.mark.parametrize("content", [lines(HEADER, row()), lines(play(call()))], ids=["v2", "weka"])
def test_block_size_other_than_asked_for(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, "a.jsonl", content)
    the_one(problems(path, options=LoweringOptions(block_size=64)), "block-size-mismatch", "a.jsonl", 1, "block_size")


def test_mixed_formats(tmp_path: Path) -> None:
    written(tmp_path, "a.json", json.dumps(play(call())).encode())
    written(tmp_path, "b.jsonl", lines(HEADER, row()))
    the_one(problems(tmp_path), "format-mixed", "b.jsonl", 0, "")


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"type": "user", "uuid": "u", "parentUuid": None, "sessionId": "s"}, "claude"),
        ({"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {}}, "codex"),
        ({"schema": "dynamo.request.trace.v1", "event_type": "request_end"}, "dynamo"),
        ({"timestamp": 1, "event": {}}, "dynamo"),
        ({"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}, "mooncake"),
        ({"num_turns": 3}, "applied_compute_agentic"),
        ({"type": "summary", "summary": "x", "leafUuid": "u"}, "claude"),
        ({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}, "claude"),
        ({"agentType": "Explore", "description": "x", "toolUseId": "t"}, "claude"),
    ],
)
def test_the_first_record_tells_the_format(tmp_path: Path, record: dict[str, Any], name: str) -> None:
    found = load_graph([written(tmp_path, "a.jsonl", lines(record))])
    assert found.facts["input_format"] == name


def test_unknown_field_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    rows = [row(not_befor_ms=1), row("b", not_befor_ms=1, dependencies=[edge("a", delay=1)])]
    path = written(tmp_path, "a.jsonl", lines({**HEADER, "block_sise": 1}, *rows))
    found = problems(path)
    assert [(f.code, f.severity, f.where.line, f.where.field, f.wanted) for f in found] == [
        ("field-unknown", Severity.WARNING, 1, "block_sise", "block_size"),
        ("field-unknown", Severity.WARNING, 2, "not_befor_ms", "not_before_ms"),
        ("field-unknown", Severity.WARNING, 3, "dependencies[0].delay", "delay_ms"),
    ]
    assert "1 more" in found[1].message
    strict = problems(path, options=LoweringOptions(strict=True))
    assert [f.severity for f in strict] == [Severity.ERROR] * 3


def test_unknown_weka_fields_are_warnings(tmp_path: Path) -> None:
    record = play(call(apitime=1), subagent(agent="x"), extra=1)
    found = problems(written(tmp_path, "a.json", json.dumps(record).encode()))
    assert [(f.where.field, f.wanted) for f in found] == [
        ("requests[0].apitime", "api_time"),
        ("requests[1].agent", "agent_id"),
        ("extra", ""),
    ]
    assert {f.severity for f in found} == {Severity.WARNING}


def test_a_million_tokens_with_two_hashes_are_told_and_cost_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", json.dumps(play(call(**{"in": 1_000_000}, hash_ids=[1, 2]))).encode())
    the_one(problems(path), "hashes-short", "a.json", 0, "requests[0].hash_ids")
    graph = load_graph([path]).graph
    assert graph is not None
    assert len(graph.run_first) <= 2


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(b"{}"), lambda p: p.unlink()], ids=["rewritten", "removed"])
def test_file_that_changes_while_it_is_read(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """The progress callback fires in the middle of the reading: the file changes right there."""
    path = written(tmp_path, "a.jsonl", lines(HEADER, row()))
    fired: list[int] = []

    def meddle(done: int, total: int) -> None:
        if not fired:
            fired.append(done)
            change(path)

    found = load_graph([path], options=LoweringOptions(progress=meddle)).findings
    errors = [f.code for f in found.items if f.severity is Severity.ERROR]
    assert fired
    assert errors in (["file-changed"], ["path-missing"])


def test_records_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_RECORD_BYTES", 2**20)
    monkeypatch.setattr(source_module, "MAX_FILE_BYTES", 2**22)
    bomb = b" " * 2**23
    for name, content in (("a.json.gz", gzip.compress(bomb, mtime=0)), ("b.json.zst", zstandard.compress(bomb))):
        found = problems(written(tmp_path, name, content), "weka")
        assert [f.code for f in found] == ["file-too-large"]
    blank_lines = gzip.compress(lines(HEADER, row()) + b"\n" * 2**23)
    assert [f.code for f in problems(written(tmp_path, "c.jsonl.gz", blank_lines))] == ["file-too-large"]


def test_findings_are_bounded(tmp_path: Path) -> None:
    rows = [row(f"r{n}", model=n) for n in range(500)]
    lowered = load_graph([written(tmp_path, "a.jsonl", lines(HEADER, *rows))])
    assert lowered.findings.errors == 500
    assert sum(f.code == "field-type" for f in lowered.findings.items) == lowered.findings.limit_per_code
