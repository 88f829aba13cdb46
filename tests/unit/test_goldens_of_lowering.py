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
    return load_graph([FOLDER / name / "trace.json"], options=LoweringOptions(**options))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name / "expected.jsonl").read_text().splitlines()[1:]]


def edges(name: str, request: str) -> list[tuple[str, str, str, float]]:
    """Return (source, relation, trigger, delay) of the dependencies of one request."""
    row = next(row for row in rows(name) if row["request_id"] == f"trace:{request}")
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
    [("lower-nested-relative", "lower-nested-absolute"), ("lower-hashes-floor", "lower-hashes-ceil")],
)
def test_two_ways_to_record_one_play_give_the_same_rows(one: str, other: str) -> None:
    assert rows(one) == rows(other)


def test_every_golden_says_what_it_shows() -> None:
    assert NAMES
    for name in NAMES:
        assert len((FOLDER / name / "README.md").read_text().strip()) > 40


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
]


@pytest.mark.parametrize(("name", "request_id", "wanted"), EDGES, ids=[f"{case[0]}-{case[1]}" for case in EDGES])
def test_edges_are_those_worked_out_by_hand(
    name: str, request_id: str, wanted: list[tuple[str, str, str, float]]
) -> None:
    assert edges(f"lower-{name}", request_id) == wanted
