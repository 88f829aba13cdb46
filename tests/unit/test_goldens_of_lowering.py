"""Goldens: small recordings with the exact rows they lower to. Each folder's README says which rule it shows.

`UPDATE_GOLDENS=1` writes the expected files anew; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from playproof_lowering import Lowered, LoweringOptions, load_graph, write_v2
from playproof_spec.certificate import prove
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Severity

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
NAMES = sorted(path.name for path in FOLDER.glob("lower-*"))


def lowered(name: str) -> Lowered:
    options: dict[str, Any] = {}
    if (FOLDER / name / "options.json").exists():
        options = json.loads((FOLDER / name / "options.json").read_bytes())
    format = options.pop("format", "auto")
    trace = next(
        FOLDER / name / form for form in ("trace.json", "trace.jsonl", "trace") if (FOLDER / name / form).exists()
    )
    return load_graph([trace], format=format, options=LoweringOptions(**options))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name / "expected.jsonl").read_text().splitlines()[1:]]


def edges(name: str, request: str) -> list[tuple[str, str, str, float]]:
    """Return (source, relation, trigger, delay) of the dependencies of one request."""
    row = next(row for row in rows(name) if row["request_id"].removeprefix("trace:") == request)
    return [
        (edge["request_id"].removeprefix("trace:"), edge["relation"], edge["trigger"], edge["delay_ms"])
        for edge in row["dependencies"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_recording_lowers_to_its_rows(name: str, tmp_path: Path) -> None:
    result = lowered(name)
    assert result.graph is not None
    found = "".join(
        f"{item.severity.value} {item.code} {item.where.field}: {item.message}\n" for item in result.findings.items
    )
    out = tmp_path / "out.jsonl"
    write_v2(result.graph, out)
    if os.environ.get("UPDATE_GOLDENS"):
        (FOLDER / name / "expected.jsonl").write_bytes(out.read_bytes())
        (FOLDER / name / "findings.txt").write_text(found, encoding="utf-8")
    assert out.read_bytes() == (FOLDER / name / "expected.jsonl").read_bytes()
    assert found == (FOLDER / name / "findings.txt").read_text(encoding="utf-8")
    assert not any(item.severity is Severity.ERROR for item in prove(result.graph, result.findings).findings)
    back = load_graph([out]).graph
    assert back is not None
    assert graph_digest(back) == graph_digest(result.graph)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lower-nested-relative", "lower-nested-absolute"),
        ("lower-hashes-floor", "lower-hashes-ceil"),
        ("lower-claude-inline", "lower-claude-split"),
    ],
)
def test_two_ways_to_record_one_play_give_the_same_rows(one: str, other: str) -> None:
    assert rows(one) == rows(other)


def test_every_golden_says_what_it_shows() -> None:
    assert NAMES
    for name in NAMES:
        assert len((FOLDER / name / "README.md").read_text().strip()) > 40


PARENT, CHILD, OTHER = (f"019d0000-0000-7000-8000-00000000000{number}" for number in (1, 5, 6))

# What the rules say of these recordings, worked out by hand; the files above could be written by a mistaken program.
EDGES: list[tuple[str, str, list[tuple[str, str, str, float]]]] = [
    ("nested-relative", "outer:1:inner:0", [("outer:0", "spawn", "completion", 1000.0)]),
    (
        "nested-relative",
        "outer:2",
        [("outer:0", "sequence", "completion", 8000.0), ("outer:1:inner:1", "join", "completion", 1000.0)],
    ),
    ("marker-spawn", "outer:1:inner:0", [("outer:0", "spawn", "completion", 20500.0)]),
    ("marker-spawn", "outer:2", [("outer:0", "sequence", "completion", 22000.0)]),
    ("marker-completion", "outer:1:inner:0", [("outer:0", "spawn", "completion", 500.0)]),
    (
        "marker-completion",
        "outer:2",
        [("outer:0", "sequence", "completion", 22000.0), ("outer:1:inner:1", "join", "completion", 1500.0)],
    ),
    ("parallel-subagents", "outer:1:inner:0", [("outer:0", "spawn", "completion", 200.0)]),
    ("parallel-subagents", "outer:2:inner:0", [("outer:0", "spawn", "completion", 300.0)]),
    (
        "parallel-subagents",
        "outer:3",
        [
            ("outer:0", "sequence", "completion", 10000.0),
            ("outer:1:inner:1", "join", "completion", 3800.0),
            ("outer:2:inner:1", "join", "completion", 3700.0),
        ],
    ),
    ("background-agent", "outer:1:inner:0", [("outer:0", "spawn", "completion", 200.0)]),
    ("background-agent", "outer:3", [("outer:2", "sequence", "completion", 2000.0)]),
    ("compaction", "outer:2", [("outer:1", "sequence", "completion", 2000.0)]),
    (
        "long-pause",
        "outer:2",
        [("outer:1", "spawn", "completion", 3997000.0), ("outer:1", "replay_barrier", "completion", 0.0)],
    ),
    ("preamble", "outer:1", [("outer:0", "sequence", "completion", 500.0)]),
    (
        "overlap",
        "outer:2",
        [("outer:0", "replay_barrier", "completion", 0.0), ("outer:1", "spawn", "dispatch", 1000.0)],
    ),
    (
        "overlap",
        "outer:3",
        [("outer:0", "replay_barrier", "completion", 0.0), ("outer:2", "sequence", "completion", 1000.0)],
    ),
    (
        "overlap",
        "outer:4",
        [("outer:1", "sequence", "completion", 1000.0), ("outer:3", "replay_barrier", "completion", 0.0)],
    ),
    (
        "overlap",
        "outer:5",
        [("outer:3", "sequence", "completion", 5000.0), ("outer:4", "replay_barrier", "completion", 0.0)],
    ),
    ("disjoint", "outer:1", [("outer:0", "spawn", "dispatch", 1000.0)]),
    ("hashes-missing", "outer:2", [("outer:1", "sequence", "completion", 1000.0)]),
    ("claude-streaming", "alpha:main:1", [("alpha:main:0", "sequence", "completion", 500.0)]),
    ("claude-streaming", "alpha:main:2", [("alpha:main:1", "sequence", "completion", 2000.0)]),
    ("claude-resume", "beta:main:0", []),
    ("claude-agents", "alpha:agent:one:0", [("alpha:main:0", "spawn", "completion", 400.0)]),
    ("claude-agents", "alpha:agent:deep:0", [("alpha:agent:one:0", "spawn", "completion", 500.0)]),
    (
        "claude-agents",
        "alpha:agent:one:1",
        [
            ("alpha:agent:deep:0", "join", "completion", 6000.0),
            ("alpha:agent:one:0", "sequence", "completion", 10000.0),
        ],
    ),
    (
        "claude-agents",
        "alpha:main:1",
        [("alpha:agent:one:2", "join", "completion", 0.0), ("alpha:main:0", "sequence", "completion", 17000.0)],
    ),
    (
        "claude-agents",
        "alpha:main:2",
        [("alpha:agent:bg:0", "join", "completion", 10000.0), ("alpha:main:1", "sequence", "completion", 18000.0)],
    ),
    ("claude-agents", "alpha:agent:lost:0", []),
    ("claude-compaction", "alpha:main:4", [("alpha:main:3", "sequence", "completion", 0.0)]),
    ("claude-conflict", "alpha:main:1", [("alpha:main:0", "sequence", "completion", 17000.0)]),
    ("claude-sidechain", "alpha:sidechain:m1:0", []),
    ("claude-background", "alpha:agent:quiet:0", [("alpha:main:0", "spawn", "completion", 1000.0)]),
    ("claude-background", "alpha:main:1", [("alpha:main:0", "sequence", "completion", 600.0)]),
    (
        "claude-background",
        "alpha:main:2",
        [("alpha:agent:twice:0", "join", "completion", 5000.0), ("alpha:main:1", "sequence", "completion", 15000.0)],
    ),
    (
        "claude-background",
        "alpha:main:3",
        [("alpha:agent:twice:2", "join", "completion", 5000.0), ("alpha:main:2", "sequence", "completion", 29000.0)],
    ),
    ("claude-fork", "alpha:agent:fork:0", []),
    ("claude-identity", "alpha:main:4", [("alpha:main:3", "sequence", "completion", 1000.0)]),
    (
        "claude-again",
        "alpha:main:1",
        [("alpha:agent:one:1", "join", "completion", 0.0), ("alpha:main:0", "sequence", "completion", 6000.0)],
    ),
    (
        "claude-again",
        "alpha:agent:one:2",
        [("alpha:agent:one:1", "sequence", "completion", 4000.0), ("alpha:main:1", "spawn", "completion", 3000.0)],
    ),
    (
        "claude-again",
        "alpha:main:4",
        [("alpha:agent:two:0", "join", "completion", 1000.0), ("alpha:main:3", "sequence", "completion", 4000.0)],
    ),
    ("codex-counts", f"{PARENT}:{PARENT}:1", [(f"{PARENT}:{PARENT}:0", "sequence", "completion", 0.0)]),
    ("codex-counts", f"{PARENT}:{PARENT}:3", [(f"{PARENT}:{PARENT}:2", "sequence", "completion", 9000.0)]),
    ("codex-fork", f"{PARENT}:{CHILD}:0", [(f"{PARENT}:{PARENT}:0", "spawn", "dispatch", 2200.0)]),
    (
        "codex-fork",
        f"{PARENT}:{PARENT}:2",
        [
            (f"{PARENT}:{PARENT}:1", "sequence", "completion", 13900.0),
            (f"{PARENT}:{CHILD}:1", "join", "completion", 1000.0),
        ],
    ),
    ("codex-agents", f"{PARENT}:{CHILD}:0", [(f"{PARENT}:{PARENT}:0", "spawn", "dispatch", 2100.0)]),
    (
        "codex-agents",
        f"{PARENT}:{PARENT}:2",
        [
            (f"{PARENT}:{PARENT}:1", "sequence", "completion", 5900.0),
            (f"{PARENT}:{OTHER}:0", "join", "completion", 1000.0),
        ],
    ),
    (
        "codex-agents",
        f"{PARENT}:{PARENT}:3",
        [
            (f"{PARENT}:{PARENT}:2", "sequence", "completion", 10900.0),
            (f"{PARENT}:{CHILD}:0", "join", "completion", 1000.0),
        ],
    ),
    (
        "codex-interrupted",
        f"{PARENT}:{PARENT}:2",
        [(f"{PARENT}:{PARENT}:1", "sequence", "completion", 2900.0)],
    ),
    (
        "codex-interrupted",
        f"{PARENT}:{PARENT}:3",
        [
            (f"{PARENT}:{PARENT}:2", "sequence", "completion", 500.0),
            (f"{PARENT}:{CHILD}:0", "join", "completion", 2500.0),
        ],
    ),
    (
        "codex-interrupted",
        f"{PARENT}:{PARENT}:4",
        [
            (f"{PARENT}:{PARENT}:3", "sequence", "completion", 100.0),
            (f"{PARENT}:{OTHER}:0", "join", "completion", 2200.0),
        ],
    ),
    ("codex-interrupted", f"{PARENT}:{OTHER}:0", [(f"{PARENT}:{PARENT}:2", "spawn", "dispatch", 2500.0)]),
    (
        "codex-activity",
        f"{PARENT}:{PARENT}:2",
        [
            (f"{PARENT}:{PARENT}:1", "sequence", "completion", 5910.0),
            (f"{PARENT}:{CHILD}:0", "join", "completion", 1010.0),
        ],
    ),
    (
        "dynamo-agentic",
        "r2",
        [
            ("e1", "join", "completion", 4800.0),
            ("k1", "join", "completion", 1800.0),
            ("r1", "sequence", "completion", 5000.0),
        ],
    ),
    ("dynamo-agentic", "r4", [("r3", "sequence", "completion", 10500.0), ("s1", "join", "completion", 2900.0)]),
    ("dynamo-agentic", "e1", [("r1", "spawn", "dispatch", 500.0)]),
    ("dynamo-agentic", "k1", [("r1", "spawn", "completion", 200.0)]),
    ("dynamo-agentic", "b1", [("r1", "spawn", "completion", 300.0)]),
    ("dynamo-agentic", "s1", [("r2", "spawn", "completion", 100.0)]),
    ("dynamo-runs", "c", []),
    ("dynamo-runs", "a", [("c", "sequence", "completion", 0.0)]),
    ("dynamo-runs", "b", [("a", "sequence", "completion", 0.0)]),
    ("dynamo-runs", "d", [("b", "sequence", "completion", 2000.0), ("k1", "join", "completion", 500.0)]),
    ("dynamo-runs", "k1", [("b", "spawn", "completion", 0.0)]),
    ("dynamo-runs", "k2", [("d", "spawn", "completion", 500.0), ("k1", "sequence", "completion", 2000.0)]),
    ("dynamo-runs", "e", [("d", "sequence", "completion", 2000.0), ("k2", "join", "completion", 1000.0)]),
    ("mooncake", "3", [("1", "sequence", "completion", 250.0)]),
    ("mooncake", "4", [("3", "sequence", "completion", 6000.0)]),
    ("mooncake-delta", "4", [("3", "sequence", "completion", 100.0)]),
    ("applied-compute", "1:2", [("1:1", "sequence", "completion", 1250.0)]),
]


@pytest.mark.parametrize(("name", "request_id", "wanted"), EDGES, ids=[f"{case[0]}-{case[1]}" for case in EDGES])
def test_edges_are_those_worked_out_by_hand(
    name: str, request_id: str, wanted: list[tuple[str, str, str, float]]
) -> None:
    assert edges(f"lower-{name}", request_id) == wanted


# Tokens in and out, and hash ids, of the session and ordinary formats, worked out by hand likewise.
PROMPTS: list[tuple[str, str, int, int, list[int]]] = [
    ("claude-streaming", "alpha:main:0", 40, 9, [0, 1, 6]),
    ("claude-streaming", "alpha:main:1", 72, 7, [0, 1, 2, 3, 7]),
    ("claude-resume", "beta:main:0", 104, 6, [0, 1, 2, 3, 4, 5, 8]),
    ("claude-agents", "alpha:agent:one:2", 68, 8, [8, 9, 10, 11, 16]),
    ("claude-compaction", "alpha:main:2", 64, 5, [7, 8, 9, 10]),
    ("claude-compaction", "alpha:main:3", 48, 5, [7, 8, 11]),
    ("claude-fork", "alpha:agent:fork:0", 104, 5, [0, 1, 2, 3, 6, 7, 11]),
    ("claude-identity", "alpha:main:0", 40, 9, [0, 1, 6]),
    ("claude-identity", "alpha:main:3", 88, 7, [0, 1, 2, 3, 4, 9]),
    ("claude-again", "alpha:agent:one:1", 48, 8, [7, 8, 9]),
    ("claude-again", "alpha:agent:one:3", 80, 8, [7, 8, 9, 10, 11]),
    ("claude-estimated", "alpha:main:0", 40, 26, [0, 1, 3]),
    ("claude-estimated", "alpha:main:1", 48, 30, [0, 1, 2]),
    ("codex-counts", f"{PARENT}:{PARENT}:2", 40, 7, [4, 5, 9]),
    ("codex-counts", f"{PARENT}:{PARENT}:3", 50, 8, [4, 5, 6, 10]),
    ("codex-fork", f"{PARENT}:{CHILD}:0", 100, 4, [0, 1, 2, 3, 4, 7, 10]),
    ("dynamo-agentic", "k1", 20, 5, [0, 5]),
    ("mooncake", "solo", 33, 0, [0, 1, 2]),
    ("mooncake", "3", 48, 5, [0, 1, 3]),
    ("mooncake-delta", "3", 34, 6, [0, 3, 8]),
    ("mooncake-delta", "4", 70, 1, [0, 3, 4, 5, 9]),
    ("applied-compute", "1:2", 70, 9, [0, 1, 2, 3, 6]),
]


@pytest.mark.parametrize(
    ("name", "request_id", "input_length", "output_length", "hash_ids"),
    PROMPTS,
    ids=[f"{case[0]}-{case[1]}" for case in PROMPTS],
)
def test_prompts_are_those_worked_out_by_hand(
    name: str, request_id: str, input_length: int, output_length: int, hash_ids: list[int]
) -> None:
    row = next(row for row in rows(f"lower-{name}") if row["request_id"].removeprefix("trace:") == request_id)
    assert (row["input_length"], row["output_length"], row["hash_ids"]) == (input_length, output_length, hash_ids)
