"""Mooncake, mooncake-delta and applied_compute_agentic: turns, delays, block sizes, what is refused."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from lowered import graph_of
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_spec.findings import Finding, Severity
from playproof_spec.graph import MAX_TOKENS
from playproof_spec.units import HORIZON_MS


def row(length: int | None = 20, *hashes: int, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"timestamp": 0, "output_length": 4, "hash_ids": list(hashes or (1, 2))}
    return {**fields, **({} if length is None else {"input_length": length}), **changes}


def lowered(folder: Path, *rows: dict[str, Any], format: str = "auto", name: str = "trace", **options: Any) -> Lowered:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return load_graph([folder], format=format, options=LoweringOptions(**{"block_size": 16, **options}))


def test_sessions_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, row(timestamp=500), row(timestamp=100), row(timestamp=500)))
    assert [play.play_id for play in graph.plays] == ["trace:1", "trace:2", "trace:3"]
    assert [play.ordinal for play in graph.plays] == [0, 1, 2]
    assert graph.not_before_ms.tolist() == [400.0, 0.0, 400.0]
    assert graph.facts["ordinary_loads"] == ["trace_timestamps", "concurrency"]


def test_hash_ids_belong_to_their_file(tmp_path: Path) -> None:
    lowered(tmp_path, row(20, 7, 8), name="a")
    graph = graph_of(lowered(tmp_path, row(20, 7, 8), name="b"))
    assert [graph.hash_ids(node).tolist() for node in range(2)] == [[0, 1], [2, 3]]


def test_rows_without_hashes_share_nothing(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, row(33, hash_ids=[]), row(16, hash_ids=[])))
    assert [graph.hash_ids(node).tolist() for node in range(2)] == [[0, 1, 2], [3]]


def test_a_delta_trace_without_hashes_still_grows_on_its_prefix(tmp_path: Path) -> None:
    rows = [row(40, hash_ids=[], session_id="s"), row(30, hash_ids=[], session_id="s", delay=1)]
    graph = graph_of(lowered(tmp_path, *rows, format="mooncake-delta"))
    assert graph.input_length.tolist() == [40, 74]
    first, second = (graph.hash_ids(node).tolist() for node in range(2))
    assert (first[:2], len(second)) == (second[:2], 5)
    assert first[2] not in second


def test_scheduling_hints_are_carried(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, row(priority=3, strict_priority=1, policy_class="batch")))
    assert (graph.carried[0].priority, graph.carried[0].strict_priority, graph.carried[0].policy_class) == (
        3,
        1,
        "batch",
    )


def test_a_wrong_block_size_is_told_with_the_one_that_fits(tmp_path: Path) -> None:
    rows = [row(900, *range(8)), row(1000, *range(8)), row(120, 1)]
    result = lowered(tmp_path, *rows)
    found = [item for item in result.findings.items if item.code == "hash-count"]
    assert [(item.where.line, item.found, item.wanted) for item in found] == [
        (1, "8 ids", "57 ids"),
        (2, "8 ids", "63 ids"),
        (3, "1 ids", "8 ids"),
    ]
    assert {item.hint for item in found} == {"Try --block-size 128: it fits every row."}
    graph_of(lowered(tmp_path, *rows, block_size=128))


def test_no_size_is_suggested_where_none_fits(tmp_path: Path) -> None:
    result = lowered(tmp_path, row(100, 1), row(100, *range(50)))
    hints = {item.hint for item in result.findings.items if item.code == "hash-count"}
    assert not any("Try" in hint for hint in hints)


LISTS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
APPLIED = {
    "num_turns": 1,
    "input_prompt_length": 20,
    "assistant_response_length": [4],
    "tool_call_output_length": [10],
    "tool_call_latency": [0.5],
    "final_assistant_response_length": 9,
}


def test_applied_compute_allows_one_load_only(tmp_path: Path) -> None:
    lists: dict[str, list[int]] = {name: [] for name in LISTS}
    graph = graph_of(lowered(tmp_path, APPLIED, {**APPLIED, "num_turns": 0, **lists}))
    assert graph.facts["ordinary_loads"] == ["concurrency"]
    assert graph.request_ids == ("trace:1:0", "trace:1:1", "trace:2:0")
    assert not set(graph.hash_ids(0).tolist()) & set(graph.hash_ids(2).tolist())


SECOND = {"session_id": "s", "output_length": 4, "hash_ids": [1, 2], "input_length": 20}
TOKENS = f"{MAX_TOKENS}"
Told = tuple[str, int, str, str, str]
# The rows and their format; then code, line, field, what is found and what is wanted.
BROKEN: list[tuple[str, list[dict[str, Any]], str, list[Told]]] = [
    ("no arrival", [row(timestamp=None)], "mooncake", [("field-missing", 1, "timestamp", "nothing", "milliseconds")]),
    ("delay first", [row(delay=5)], "mooncake", [("delay-without-turn", 1, "delay", "5", "no delay")]),
    ("two arrivals", [row(created_time=5)], "mooncake", [("field-conflict", 1, "created_time", "5", "one of them")]),
    (
        "two delays",
        [row(session_id="s"), {**SECOND, "delay": 1, "delay_ms": 2}],
        "mooncake",
        [("field-conflict", 2, "delay_ms", "2", "one of them")],
    ),
    (
        "time back",
        [row(session_id="s", timestamp=9), {**SECOND, "timestamp": 5}],
        "mooncake",
        [("time-negative", 2, "timestamp", "5", "at least 9")],
    ),
    (
        "negative delay",
        [row(session_id="s"), {**SECOND, "delay": -5}],
        "mooncake",
        [("time-negative", 2, "delay", "-5.0", "0 or more")],
    ),
    (
        "beyond the clock",
        [row(timestamp=1e15)],
        "mooncake",
        [("time-beyond-horizon", 1, "timestamp", "1000000000000000.0", f"at most {HORIZON_MS:.0f}")],
    ),
    ("no length", [row(None, hash_ids=[])], "mooncake", [("field-missing", 1, "input_length", "nothing", "a number")]),
    ("no tokens", [row(0)], "mooncake", [("length-out-of-bounds", 1, "input_length", "0", f"1 … {TOKENS}")]),
    (
        "no output",
        [{"timestamp": 0, "hash_ids": [1]}],
        "mooncake",
        [("field-missing", 1, "output_length", "nothing", "an integer")],
    ),
    ("bad hash", [row(20, 1, -2)], "mooncake", [("hash-id-invalid", 1, "hash_ids[1]", "-2", "0 … 2**64 - 1")]),
    (
        "large hash",
        [row(20, 1, 2**64)],
        "mooncake",
        [("number-out-of-range", 1, "hash_ids[1]", str(2**64), "below 2**64")],
    ),
    ("no hashes", [row(hash_ids="x")], "mooncake", [("field-type", 1, "hash_ids", '"x"', "a list")]),
    (
        "same id",
        [row(request_id="a"), row(request_id="a")],
        "mooncake",
        [("id-duplicate", 2, "request_id", "a", "another id")],
    ),
    (
        "a row's id as a session",
        [row(request_id="s"), {**SECOND, "delay": 1}],
        "mooncake",
        [("id-duplicate", 2, "session_id", "s", "another id")],
    ),
    (
        "a session's id as a row",
        [row(session_id="s"), row(request_id="s")],
        "mooncake",
        [("id-duplicate", 2, "request_id", "s", "another id")],
    ),
    ("empty id", [row(request_id="")], "mooncake", [("id-empty", 1, "request_id", '""', "a name, or no field")]),
    (
        "priority",
        [row(priority=2**40)],
        "mooncake",
        [("number-out-of-range", 1, "priority", str(2**40), f"{-(2**31)} … {2**31 - 1}")],
    ),
    (
        "too few ids of what is new",
        [row(20, session_id="s"), {**SECOND, "hash_ids": [1], "delay": 1}],
        "mooncake-delta",
        [("hash-count", 2, "hash_ids", "1 ids", "2 ids")],
    ),
    (
        "grown too long",
        [row(2**31 - 1, hash_ids=[], session_id="s"), {**SECOND, "hash_ids": []}],
        "mooncake-delta",
        [("length-out-of-bounds", 2, "input_length", str(2**31 - 1 + 4 + 20), f"at most {TOKENS}")],
    ),
    (
        "turns",
        [{**APPLIED, "num_turns": 2}],
        "applied_compute_agentic",
        [("turns-mismatch", 1, name, "1 values", "2 values") for name in LISTS],
    ),
    (
        "no prompt",
        [{**APPLIED, "input_prompt_length": 0}],
        "applied_compute_agentic",
        [("length-out-of-bounds", 1, "input_prompt_length", "0", f"1 … {TOKENS}")],
    ),
    (
        "negative tool output",
        [{**APPLIED, "tool_call_output_length": [-1]}],
        "applied_compute_agentic",
        [("length-out-of-bounds", 1, "tool_call_output_length[0]", "-1", f"0 … {TOKENS}")],
    ),
    (
        "negative answer",
        [{**APPLIED, "final_assistant_response_length": -1}],
        "applied_compute_agentic",
        [("length-out-of-bounds", 1, "final_assistant_response_length", "-1", f"0 … {TOKENS}")],
    ),
    (
        "negative latency",
        [{**APPLIED, "tool_call_latency": [-0.5]}],
        "applied_compute_agentic",
        [("time-negative", 1, "tool_call_latency[0]", "-0.5", "0 or more")],
    ),
    (
        "latency beyond the clock",
        [{**APPLIED, "tool_call_latency": [1e13]}],
        "applied_compute_agentic",
        [("time-beyond-horizon", 1, "tool_call_latency[0]", "10000000000000.0", f"at most {HORIZON_MS / 1000:.0f}")],
    ),
    (
        "grown too long in turns",
        [{**APPLIED, "tool_call_output_length": [2**31 - 1]}],
        "applied_compute_agentic",
        [("length-out-of-bounds", 1, "tool_call_output_length[0]", str(20 + 4 + 2**31 - 1), f"at most {TOKENS}")],
    ),
]


@pytest.mark.parametrize(("rows", "format", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_cannot_be_replayed_is_an_error(
    tmp_path: Path, rows: list[dict[str, Any]], format: str, wanted: list[Told]
) -> None:
    given = [{name: value for name, value in r.items() if value is not None} for r in rows]
    result = lowered(tmp_path, *given, format=format)
    found = [item for item in result.findings.items if item.severity is Severity.ERROR]
    assert [(item.code, item.where.line, item.where.field, item.found, item.wanted) for item in found] == wanted
    assert {item.where.file for item in found} == {str(tmp_path / "trace.jsonl")}


def test_a_name_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 4, "output_length": 9}\n')
    result = load_graph([tmp_path])
    item = next(item for item in result.findings.items if item.severity is Severity.ERROR)
    assert (item.code, item.where.line, item.where.field) == ("field-repeated", 1, "output_length")


def test_a_session_in_two_files_is_an_error(tmp_path: Path) -> None:
    lowered(tmp_path, row(session_id="s"), name="a")
    result = lowered(tmp_path, row(session_id="s"), name="b")
    item = next(item for item in result.findings.items if item.severity is Severity.ERROR)
    assert (item.code, item.where.file[-7:]) == ("play-across-files", "b.jsonl")


def test_unknown_fields_are_told_and_strict_makes_errors_of_them(tmp_path: Path) -> None:
    result = lowered(tmp_path, row(hash_idz=[1]))
    item = next(item for item in result.findings.items if item.code == "field-unknown")
    assert (item.severity, item.wanted) == (Severity.WARNING, "hash_ids")
    graph_of(result)
    assert lowered(tmp_path, row(hash_idz=[1]), strict=True).findings.errors == 1


def test_a_few_bytes_cannot_ask_for_terabytes(tmp_path: Path) -> None:
    result = lowered(tmp_path, *(row(2**31 - 1, hash_ids=[]) for _ in range(4)))
    assert result.graph is None
    assert [item.code for item in result.findings.items if item.severity is Severity.ERROR] == ["length-out-of-bounds"]


@pytest.mark.corpus
def test_the_public_conversation_trace(data_dir: Path, tmp_path: Path) -> None:
    with lzma.open(data_dir / "mooncake" / "conversation_3000.jsonl.xz") as packed:
        (tmp_path / "conversation.jsonl").write_bytes(packed.read())
    result = load_graph([tmp_path])
    graph = graph_of(result)
    assert (len(graph.plays), graph.node_count, graph.block_size) == (3000, 3000, 512)
    assert int(graph.input_length.sum()) == 40_550_180
    assert graph.facts["input_kind"] == "ordinary"


def errors_of(path: Path) -> list[Finding]:
    return [item for item in load_graph([path]).findings.items if item.severity is Severity.ERROR]


# Rows of version 1, whose root looks like a Mooncake row -------------------------------------------------------------


@pytest.mark.parametrize("format", ["auto", "mooncake", "mooncake-delta"])
@pytest.mark.parametrize("name", ["wait_for", "branches"])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_row_of_version_1_is_refused_wherever_it_stands(tmp_path: Path, format: str, name: str, place: int) -> None:
    rows = [{"request_id": f"r{n}", "input_length": 4, "output_length": 1, "timestamp": n} for n in range(5)]
    rows[place][name] = ["r0"]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = load_graph([path], format=format)
    found = [(item.code, item.where.line) for item in result.findings.items if item.severity is Severity.ERROR]
    # A first row with its marks is v2's to refuse, which can make nothing of the rows behind it.
    assert found == [("header-missing", place + 1)]


@pytest.mark.parametrize("name", ["wait_for", "branches"])
def test_a_row_of_version_1_behind_a_header_is_refused_too(tmp_path: Path, name: str) -> None:
    source = {"format": "hand", "digest": "x"}
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}
    row = {"play_id": "p", "session_id": "p", "model": "m", "input_length": 4, "output_length": 1, "hash_ids": [1]}
    rows = [header | {"source": source}, row | {"request_id": "a", "not_before_ms": 0}]
    rows.append(row | {"request_id": "b", "not_before_ms": 0, name: ["a"]})
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [
        (i.code, i.where.line, i.where.field) for i in load_graph([path]).findings.items if i.code != "format-chosen"
    ]
    assert found == [("header-missing", 3, name)]


@pytest.mark.parametrize("names", [("input_tokens", "output_tokens"), ("input_tokens", "output_length")])
def test_lengths_under_either_name(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({names[0]: 5, names[1]: 2, "timestamp": 0}) + "\n")
    graph = load_graph([path]).graph
    assert graph is not None
    assert (graph.input_length.tolist(), graph.output_length.tolist()) == ([5], [2])


@pytest.mark.parametrize("name", ["input", "output"])
def test_both_names_of_a_length_are_a_conflict(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.jsonl"
    row = {"input_length": 5, "output_length": 2, "timestamp": 0, f"{name}_tokens": 5}
    path.write_text(json.dumps(row) + "\n")
    found = [
        (item.code, item.where.field) for item in load_graph([path]).findings.items if item.severity is Severity.ERROR
    ]
    assert found == [("field-conflict", f"{name}_tokens")]
