"""What the rules of the formats say of their goldens, worked out by hand; `test_goldens_of_lowering` keeps them whole.

Each table row is the expectation of one golden, derived in its README from the recording and never from a run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "goldens"

Edge = tuple[str, str, str, float]


def row(name: str, request_id: str) -> dict[str, Any]:
    lines = (FOLDER / f"lower-{name}" / "expected.jsonl").read_text().splitlines()[1:]
    found: list[dict[str, Any]] = [parsed for line in lines if (parsed := json.loads(line))["request_id"] == request_id]
    assert len(found) == 1, f"{name} has no request {request_id}"
    return found[0]


EDGES: list[tuple[str, str, list[Edge]]] = [
    ("dynamo-compact", "a", []),
    ("dynamo-trajectories", "k1", [("r1", "spawn", "completion", 200.0)]),
    ("dynamo-trajectories", "k2", [("r1", "spawn", "completion", 300.0)]),
    (
        "dynamo-trajectories",
        "r2",
        [
            ("k1", "join", "completion", 800.0),
            ("k2", "join", "completion", 700.0),
            ("r1", "sequence", "completion", 6000.0),
        ],
    ),
    ("dynamo-trajectories", "t1", [("s1", "spawn", "dispatch", 1000.0)]),
    ("dynamo-trajectories", "s2", [("s1", "sequence", "completion", 600.0), ("t1", "join", "completion", 100.0)]),
    ("dynamo-trajectories", "u1", []),
    ("mooncake-aliases", "b", [("a", "sequence", "completion", 200.0)]),
    ("qwen-bailian", "trace:12", [("trace:11", "sequence", "completion", 9625.0)]),
    ("qwen-bailian", "trace:13", [("trace:11", "sequence", "completion", 20250.0)]),
    ("qwen-bailian", "trace:14", [("trace:13", "sequence", "completion", 1500.0)]),
    ("qwen-bailian", "trace:20", []),
    ("qwen-bailian", "trace:30", []),
    ("atif", "run/trajectory:0", []),
    ("atif", "run/trajectory:scout:0", [("run/trajectory:0", "spawn", "completion", 1000.0)]),
    ("atif", "run/trajectory:scout:1", [("run/trajectory:scout:0", "sequence", "completion", 0.0)]),
    (
        "atif",
        "run/trajectory:1",
        [
            ("run/trajectory:0", "sequence", "completion", 0.0),
            ("run/trajectory:scout:1", "join", "completion", 0.0),
        ],
    ),
    ("atif", "run/trajectory.review:0", [("run/trajectory:1", "spawn", "completion", 1000.0)]),
    (
        "atif",
        "run/trajectory:2",
        [
            ("run/trajectory.review:0", "join", "completion", 4000.0),
            ("run/trajectory:1", "sequence", "completion", 10000.0),
        ],
    ),
    ("atif", "run/trajectory.cont-1:0", [("run/trajectory:2", "sequence", "completion", 27000.0)]),
    ("atif", "solo:1", [("solo:0", "sequence", "completion", 0.0)]),
    ("otel", "t1:0", []),
    ("otel", "t1:b0:0", [("t1:0", "spawn", "completion", 500.0)]),
    ("otel", "t1:b0:1", [("t1:b0:0", "sequence", "completion", 500.0)]),
    ("otel", "t1:1", [("t1:0", "sequence", "completion", 7000.0), ("t1:b0:1", "join", "completion", 3000.0)]),
    ("otel", "t1:2", [("t1:0", "sequence", "completion", 7500.0), ("t1:b0:1", "join", "completion", 3500.0)]),
    ("otel", "t1:3", [("t1:1", "join", "completion", 2000.0), ("t1:2", "sequence", "completion", 1000.0)]),
    ("otel", "conv:1", [("conv:0", "sequence", "completion", 59000.0)]),
    ("claude-stream", "s1:T1:0", [("s1:0", "spawn", "completion", 0.0)]),
    ("claude-stream", "s1:T1:1", [("s1:T1:0", "sequence", "completion", 0.0)]),
    ("claude-stream", "s1:T2:0", [("s1:0", "spawn", "completion", 0.0)]),
    ("claude-stream", "s1:1", [("s1:0", "sequence", "completion", 0.0), ("s1:T1:1", "join", "completion", 0.0)]),
    ("claude-stream", "s1:2", [("s1:1", "sequence", "completion", 0.0), ("s1:T2:0", "join", "completion", 0.0)]),
    ("claude-stream", "s1:3", [("s1:2", "sequence", "completion", 0.0)]),
    ("codex-exec", "th1:0", []),
    ("codex-exec", "th1:4", [("th1:3", "sequence", "completion", 0.0)]),
    ("codex-exec", "th2:1", [("th2:0", "sequence", "completion", 0.0)]),
]


@pytest.mark.parametrize(("name", "request_id", "wanted"), EDGES, ids=[f"{case[0]}-{case[1]}" for case in EDGES])
def test_edges_are_those_worked_out_by_hand(name: str, request_id: str, wanted: list[Edge]) -> None:
    edges = row(name, request_id)["dependencies"]
    assert [(edge["request_id"], edge["relation"], edge["trigger"], edge["delay_ms"]) for edge in edges] == wanted


# Fields of single rows; a field that a row must not have is None.
FIELDS: list[tuple[str, str, dict[str, Any]]] = [
    ("dynamo-compact", "a", {"recorded_api_time_ms": 1250.0, "not_before_ms": 400.0, "model": "unspecified"}),
    ("dynamo-compact", "b", {"recorded_api_time_ms": 2000.5, "not_before_ms": 0.0, "hash_ids": [0, 1, 2]}),
    ("dynamo-compact", "c", {"recorded_api_time_ms": 100.0, "not_before_ms": 2900.0, "hash_ids": [0]}),
    ("dynamo-compact", "d", {"recorded_api_time_ms": 150.0, "not_before_ms": 3100.0, "model": "m"}),
    ("dynamo-trajectories", "k1", {"play_id": "run1:plan", "session_id": "run1:kid"}),
    ("dynamo-trajectories", "t1", {"play_id": "run2:plan", "session_id": "run2:kid", "recorded_api_time_ms": 1500.0}),
    ("dynamo-trajectories", "u1", {"play_id": "run2:solo", "session_id": "run2:solo"}),
    ("mooncake-aliases", "a", {"input_length": 16, "output_length": 3, "hash_ids": [0], "not_before_ms": 0.0}),
    ("mooncake-aliases", "b", {"input_length": 20, "output_length": 0, "hash_ids": [0, 1], "play_id": "s"}),
    ("mooncake-aliases", "c", {"input_length": 4, "output_length": 7, "hash_ids": [2], "not_before_ms": 50.0}),
    ("qwen-bailian", "trace:11", {"not_before_ms": 0.0, "hash_ids": [0], "session_id": "trace:11"}),
    ("qwen-bailian", "trace:12", {"not_before_ms": 0.0, "hash_ids": [0, 4], "session_id": "trace:11"}),
    ("qwen-bailian", "trace:13", {"hash_ids": [0, 4, 5], "session_id": "trace:13", "play_id": "trace:11"}),
    ("qwen-bailian", "trace:14", {"hash_ids": [0, 4, 6], "session_id": "trace:13", "play_id": "trace:11"}),
    ("qwen-bailian", "trace:20", {"not_before_ms": 614.0, "hash_ids": [1, 2, 3], "input_length": 40}),
    ("qwen-bailian", "trace:30", {"not_before_ms": 29500.0, "hash_ids": [0], "play_id": "trace:30"}),
    ("atif", "run/trajectory:0", {"recorded_api_time_ms": 4000.0, "hash_ids": [1, 2, 16], "model": "m"}),
    ("atif", "run/trajectory:1", {"recorded_api_time_ms": None, "hash_ids": [1, 2, 3, 4, 17], "model": "n"}),
    ("atif", "run/trajectory:2", {"recorded_api_time_ms": 3000.0, "not_before_ms": 30000.0, "output_length": 5}),
    ("atif", "run/trajectory.review:0", {"recorded_api_time_ms": 5000.0, "play_id": "run/trajectory"}),
    ("atif", "run/trajectory.cont-1:0", {"input_length": 30, "hash_ids": [0, 22], "not_before_ms": 60000.0}),
    ("atif", "solo:0", {"input_length": 50, "output_length": 5, "recorded_api_time_ms": None, "not_before_ms": 0.0}),
    ("atif", "solo:1", {"input_length": 51, "output_length": 6, "hash_ids": [11, 12, 13, 15]}),
    ("otel", "t1:0", {"recorded_api_time_ms": 1500.0, "hash_ids": [0, 1, 13], "play_id": "t1", "model": "m"}),
    ("otel", "t1:1", {"hash_ids": [0, 1, 2, 3, 14], "session_id": "t1", "not_before_ms": 8500.0}),
    ("otel", "t1:2", {"hash_ids": [4], "model": "n", "output_length": 1}),
    ("otel", "t1:3", {"hash_ids": [0, 1, 2, 3, 5, 15], "input_length": 90}),
    ("otel", "t1:b0:1", {"hash_ids": [6, 7, 17], "session_id": "t1:b0", "play_id": "t1"}),
    ("otel", "conv:0", {"input_length": 78, "output_length": 2, "hash_ids": [8, 9, 10, 11, 18]}),
    ("otel", "conv:1", {"input_length": 80, "hash_ids": [8, 9, 10, 11, 12], "recorded_api_time_ms": 2000.0}),
    ("claude-stream", "s1:0", {"input_length": 40, "output_length": 5, "hash_ids": [0, 1, 11]}),
    ("claude-stream", "s1:1", {"input_length": 72, "output_length": 7, "hash_ids": [0, 1, 2, 3, 12]}),
    ("claude-stream", "s1:2", {"input_length": 88, "output_length": 6, "hash_ids": [0, 1, 2, 3, 4, 13]}),
    ("claude-stream", "s1:3", {"input_length": 48, "output_length": 25, "hash_ids": [5, 6, 7]}),
    ("claude-stream", "s1:T1:0", {"input_length": 20, "output_length": 30, "session_id": "s1:T1"}),
    ("claude-stream", "s1:T2:0", {"hash_ids": [10], "play_id": "s1", "recorded_api_time_ms": None}),
    ("codex-exec", "th1:0", {"input_length": 100, "output_length": 10, "hash_ids": [0, 1, 2, 3, 4, 5, 9]}),
    ("codex-exec", "th1:3", {"input_length": 100, "output_length": 11, "hash_ids": [0, 1, 2, 3, 4, 5, 12]}),
    ("codex-exec", "th1:4", {"input_length": 120, "output_length": 9, "hash_ids": [0, 1, 2, 3, 4, 5, 6, 13]}),
    ("codex-exec", "th2:1", {"input_length": 32, "output_length": 1, "hash_ids": [7, 8], "play_id": "th2"}),
]


@pytest.mark.parametrize(("name", "request_id", "wanted"), FIELDS, ids=[f"{case[0]}-{case[1]}" for case in FIELDS])
def test_fields_are_those_worked_out_by_hand(name: str, request_id: str, wanted: dict[str, Any]) -> None:
    found = row(name, request_id)
    assert {field: found.get(field) for field in wanted} == wanted
