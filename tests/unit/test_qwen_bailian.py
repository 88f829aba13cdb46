"""Qwen-Bailian rows: times in seconds, and turns that name the chat they go on from."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_spec.findings import Severity


def chat(number: int, parent: int, seconds: float, length: int = 16, **changes: Any) -> dict[str, Any]:
    blocks = -(-length // 16)
    return {
        "chat_id": number,
        "parent_chat_id": parent,
        "timestamp": seconds,
        "input_length": length,
        "output_length": 3,
        "type": "text",
        "turn": 1,
        "hash_ids": list(range(blocks)),
    } | changes


def lowered(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Lowered:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_graph([path], options=LoweringOptions(**options))


def errors(result: Lowered) -> list[tuple[str, int, str]]:
    found = [item for item in result.findings.items if item.severity is Severity.ERROR]
    return [(item.code, item.where.line, item.where.field) for item in found]


@pytest.mark.parametrize("ids", [(1, 2, 3), (30, 20, 10), (0, 5_000_000_000, 7)])
@pytest.mark.parametrize("begin", [0, 0.001, 61.114, 86_399.999])
def test_a_conversation_waits_turn_by_turn(tmp_path: Path, ids: tuple[int, int, int], begin: float) -> None:
    a, b, c = ids
    rows = [chat(a, -1, begin), chat(b, a, begin + 0.5, 32), chat(c, b, begin + 2, 48)]
    graph = graph_of(lowered(tmp_path, rows))
    assert len(graph.plays) == 1
    assert graph.sessions == (f"t:{a}",)
    assert edges(graph, f"t:{b}") == [f"t:{a} —sequence/completion +500 ms"]
    assert edges(graph, f"t:{c}") == [f"t:{b} —sequence/completion +1500 ms"]
    assert graph.block_size == 16
    assert graph.facts["input_kind"] == "ordinary"


def test_a_turn_may_come_at_the_instant_of_the_one_before_it(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, [chat(1, -1, 9), chat(2, 1, 9, 32)]))
    assert edges(graph, "t:2") == ["t:1 —sequence/completion +0 ms"]


def test_hash_ids_that_fall_into_one_place_stay_apart(tmp_path: Path) -> None:
    # 400 ids share a table of 1,024 places: some meet, wherever the random seed puts them. Numbered as they come, they
    # make one run, and again in the next turn.
    ids = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 401)]
    rows = [chat(turn, turn - 1 or -1, turn, 6400, hash_ids=ids) for turn in (1, 2)]
    graph = graph_of(lowered(tmp_path, rows))
    assert (graph.run_first.tolist(), graph.run_count.tolist()) == ([0, 0], [400, 400])


def test_rows_of_different_conversations_may_mix(tmp_path: Path) -> None:
    one = [chat(1, -1, 0), chat(2, 1, 4), chat(3, 2, 8)]
    other = [chat(11, -1, 1), chat(12, 11, 3)]
    for number, order in enumerate(itertools.islice(itertools.permutations([0, 0, 0, 1, 1]), 0, 120, 17)):
        queues = [iter(one), iter(other)]
        rows = [next(queues[which]) for which in order]
        folder = tmp_path / str(number)
        folder.mkdir()
        graph = graph_of(lowered(folder, rows))
        assert [play.play_id for play in graph.plays] == ["t:1", "t:11"]
        assert edges(graph, "t:12") == ["t:11 —sequence/completion +2000 ms"]


def test_the_option_says_what_a_hash_id_stands_for(tmp_path: Path) -> None:
    rows = [chat(1, -1, 0, 64, hash_ids=[1])]
    finding = told(lowered(tmp_path, rows), "hash-count")
    assert "--block-size 64" in finding.hint
    assert graph_of(lowered(tmp_path, rows, block_size=64)).block_size == 64


BROKEN: list[tuple[str, list[dict[str, Any]], list[tuple[str, int, str]]]] = [
    ("same id", [chat(1, -1, 0), chat(1, -1, 2)], [("id-duplicate", 2, "chat_id")]),
    ("own parent", [chat(1, -1, 0), chat(2, 2, 1)], [("parent-conflict", 2, "parent_chat_id")]),
    ("parent later", [chat(2, 1, 0), chat(1, -1, 1)], [("parent-conflict", 1, "parent_chat_id")]),
    ("before its parent", [chat(1, -1, 9), chat(2, 1, 8.9)], [("time-negative", 2, "timestamp")]),
    ("before 0", [chat(1, -1, -0.1)], [("time-negative", 1, "timestamp")]),
    ("beyond the clock", [chat(1, -1, 1e12)], [("time-beyond-horizon", 1, "timestamp")]),
    ("no prompt", [chat(1, -1, 0, hash_ids=[], input_length=0)], [("length-out-of-bounds", 1, "input_length")]),
    ("ids not numbers", [chat(1, -1, 0, hash_ids=["x"])], [("hash-id-invalid", 1, "hash_ids[0]")]),
    ("version 1", [chat(1, -1, 0), chat(2, 1, 1, wait_for=["1"])], [("header-missing", 2, "wait_for")]),
]


@pytest.mark.parametrize(("rows", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_contradicts_itself_is_an_error(
    tmp_path: Path, rows: list[dict[str, Any]], wanted: list[tuple[str, int, str]]
) -> None:
    assert errors(lowered(tmp_path, rows)) == wanted


@pytest.mark.parametrize(
    "name", ["chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"]
)
def test_a_field_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    row = chat(2, -1, 1)
    del row[name]
    result = load_graph([_written(tmp_path, [chat(1, -1, 0), row])], format="qwen-bailian")
    assert errors(result) == [("field-missing", 2, name)]


def _written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
