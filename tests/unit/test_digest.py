"""The graph digest: equal to the peer's on its reference cases, and to a naive twin built on the json module."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from playproof_spec.digest import CHUNK_BYTES, format_float, format_hash_ids, format_string, graph_digest
from playproof_spec.graph import RELATION_NAMES, TRIGGER_NAMES, Carried, Graph
from playproof_spec.sketch import sketch

# Snapshot runs keep the recording's floors; the others shift the least to 0.
RECORDED_CLOCK = ("snapshot", "warm", "profile")


def test_equals_the_peers_on_every_reference_case(reference_dir: Path) -> None:
    compared = 0
    for case in sorted((reference_dir / "cases").iterdir()):
        expected = msgspec.json.decode((case / "expected.json").read_bytes())
        if expected["status"] != "ok":
            continue  # it refused or died, so it gave no digest
        header, *rows = [msgspec.json.decode(line) for line in (case / "trace.jsonl").read_bytes().splitlines()]
        load = msgspec.yaml.decode((case / "config.yaml").read_bytes())["traffic"]["load"]
        digest = graph_digest(
            sketch(rows, block_size=header["block_size"]),
            shift_floors=not any(word in case.name for word in RECORDED_CLOCK),
            speedup=load.get("speedup", 1.0),
        )
        assert digest == expected["agentic_graph"]["graph_digest"], case.name
        compared += 1
    assert compared >= 100


def naive_digest(graph: Graph, shift_floors: bool) -> str:
    """The same recipe with the json module; floats are put in as text, since json writes some otherwise."""
    least = min(graph.not_before_ms) if shift_floors else 0.0
    nodes = []
    for index, request_id in enumerate(graph.request_ids):
        node, hints = graph.node(index), graph.carried.get(index, Carried())
        ordinal = graph.plays[graph.node_play[index]].ordinal
        ids = None if hints.output_token_ids is None else list(hints.output_token_ids)
        edges = sorted(graph.edges_into(index), key=lambda e: (e.source.encode(), e.trigger, e.relation, e.delay_ms))
        row: dict[str, Any] = {"request_id": request_id, "play_id": node.play_id}
        if ordinal is not None:
            row["source_play_ordinal"] = ordinal
        row |= {"session_id": node.session_id, "model": node.model, "input_length": node.input_length}
        row |= {"max_output_tokens": node.output_length, "output_token_ids": ids}
        row |= {"replay_key": None if ids is None else request_id}
        row |= {"hash_ids": [int(i) for i in graph.hash_ids(index)]}
        row |= {"not_before_ms": f"<{format_float(float(node.not_before_ms - least))}>"}
        if node.recorded_api_time_ms is not None:
            row["recorded_api_time_ms"] = f"<{format_float(node.recorded_api_time_ms)}>"
        row |= {"priority": hints.priority, "strict_priority": hints.strict_priority}
        row |= {"policy_class": hints.policy_class}
        row["dependencies"] = [
            {
                "request_id": edge.source,
                "trigger": TRIGGER_NAMES[edge.trigger],
                "delay_ms": f"<{format_float(edge.delay_ms)}>",
                "relation": RELATION_NAMES[edge.relation],
            }
            for edge in edges
        ]
        nodes.append(row)
    text = json.dumps({"block_size": graph.block_size, "nodes": nodes}, separators=(",", ":"), ensure_ascii=False)
    return blake3(text.replace('"<', "").replace('>"', "").encode()).hexdigest()


def awkward_graph() -> Graph:
    """Names, numbers and optional fields that a formatter could get wrong."""
    spawn = {"relation": "spawn"}
    edges = [
        {"request_id": "é\n", "delay_ms": 1e-6},
        {"request_id": "a", **spawn, "trigger": "dispatch", "delay_ms": 2.5},
        {"request_id": "a", **spawn, "delay_ms": 1e17},
        {"request_id": "a", "delay_ms": 0.0},
    ]
    return sketch(
        [
            {"request_id": "é\n", "play_id": 'p"', "not_before_ms": 7.25, "hash_ids": [2**64 - 2, 2**64 - 1, 0, 9]},
            {"request_id": "a", "play_id": 'p"', "not_before_ms": 3.25, "recorded_api_time_ms": 0.0, "hash_ids": []},
            {"request_id": "\U0001f600", "play_id": 'p"', "model": "\\", "not_before_ms": 1e16, "dependencies": edges},
            {"request_id": "t", "play_id": 'p"', "not_before_ms": 3.0, "output_length": 0, "output_token_ids": []},
            {"request_id": "u", "play_id": 'p"', "not_before_ms": 4.0, "output_token_ids": [5], "priority": -3},
            {"request_id": "v", "play_id": 'p"', "not_before_ms": 4.0, "strict_priority": 2, "policy_class": "x\u0001"},
        ],
        block_size=64,
    )


@pytest.mark.parametrize("shift_floors", [True, False])
def test_equals_the_naive_twin(shift_floors: bool) -> None:
    graph = awkward_graph()
    assert graph_digest(graph, shift_floors) == naive_digest(graph, shift_floors)


def test_ordinals_enter_and_the_source_does_not() -> None:
    row = {"request_id": "a", "hash_ids": [1]}
    plain = sketch([row])
    numbered = sketch([{**row, "source_play_ordinal": 0}])
    assert graph_digest(numbered) == naive_digest(numbered, True)
    assert graph_digest(numbered) != graph_digest(plain)
    other_lines = sketch([{"request_id": "b"}, row])
    assert graph_digest(sketch([row, {"request_id": "b"}])) == graph_digest(other_lines), "order of rows"


@pytest.mark.parametrize(
    ("value", "text"),
    # As printed by serde_json 1.0 for an f64.
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (5.0, "5.0"),
        (0.1, "0.1"),
        (123456.789, "123456.789"),
        (1e15, "1000000000000000.0"),
        (9007199254740993.0, "9007199254740992.0"),
        (1e16, "1e16"),
        (1.5e16, "1.5e16"),
        (1e-4, "0.0001"),
        (1e-5, "0.00001"),
        (1.25e-5, "0.0000125"),
        (-1.25e-5, "-0.0000125"),
        (1e-6, "1e-6"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (5e-324, "5e-324"),
        (math.nan, "null"),
        (math.inf, "null"),
        (-math.inf, "null"),
    ],
)
def test_floats_as_rust_prints_them(value: float, text: str) -> None:
    assert format_float(value) == text
    if text != "null":
        assert float(text) == value


def test_strings_as_serde_json_escapes_them() -> None:
    assert format_string('"\\/\b\f\n\r\t\x00\x1f\x7fé\u2028') == '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7fé\u2028"'


def runs_and_ids() -> Iterator[tuple[list[int], list[int]]]:
    yield [], []
    yield [0], [1]
    yield [0, 95, 999_950], [300, 10, 900]
    yield [99, 100, 12_345], [1, 100, 30_000]
    yield [2**64 - 1500, 2**64 - 1], [1500, 1]
    yield [99_999_999_999_999_900, 10**19 - 150], [500, 300]


@pytest.mark.parametrize(("first", "count"), list(runs_and_ids()))
@pytest.mark.parametrize("buffer_bytes", [4200, 5001, CHUNK_BYTES])
def test_hash_ids_in_chunks_equal_join(first: list[int], count: list[int], buffer_bytes: int) -> None:
    runs = np.array(first, dtype=np.uint64), np.array(count, dtype=np.int64)
    chunks = format_hash_ids(*runs, np.empty(buffer_bytes, dtype=np.uint8))
    text = b"".join(bytes(chunk) for chunk in chunks)
    expected = ",".join(str(start + k) for start, ids in zip(first, count, strict=True) for k in range(ids))
    assert text.decode() == expected


def test_hash_ids_refuse_a_buffer_without_room() -> None:
    runs = np.array([1], dtype=np.uint64), np.array([1], dtype=np.int64)
    with pytest.raises(ValueError, match="4200 bytes"):
        list(format_hash_ids(*runs, np.empty(100, dtype=np.uint8)))
