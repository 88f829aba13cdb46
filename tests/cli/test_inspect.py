"""`playproof inspect`: the figures, their forms, and the picture of one play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEKA = str(ROOT / "examples" / "weka")
AGENTS = str(ROOT / "tests" / "goldens" / "lower-claude-agents" / "trace")
DYNAMO = str(ROOT / "tests" / "goldens" / "lower-dynamo-agentic" / "trace")
DEADLOCK = str(ROOT / "examples" / "broken" / "deadlock.jsonl")


def figures(said: Any, *arguments: str) -> dict[str, Any]:
    code, out, _ = said("inspect", *arguments, "--output", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_figures_of_a_play_that_can_be_counted_by_hand(said: Any) -> None:
    found = figures(said, AGENTS, "--block-size", "16")
    assert (found["plays"], found["requests"], found["sessions"]) == (1, 9, 5)
    assert found["edges"] == {"sequence": 4, "spawn": 3, "join": 3, "replay_barrier": 0, "at_dispatch": 0}
    # Down to main:2: main:0, one:0, deep, one:1, one:2, main:1, main:2.
    assert found["depth_per_play"]["max"] == 7
    assert found["fan_out"]["spawning_requests"] == 2
    assert found["fan_out"]["max"] == 2
    assert found["joins"]["joining_requests"] == 3
    assert found["background_agents"] == 0
    assert found["input_tokens"]["total"] == 48 + 80 + 96 + 32 + 32 + 48 + 68 + 32 + 32
    # Full blocks: 3 + 5 + 6 in the main session, 2 + 3 + 4 in `one`, 2 in each of the others; 16 of them differ.
    assert found["prefix_reuse"]["blocks"] == 29
    assert found["prefix_reuse"]["distinct_blocks"] == 6 + 4 + 2 + 2 + 2
    assert found["estimated"] == {"request": 1}
    assert found["findings"]["agent-unlinked"] == 1


def test_background_agents_and_tool_time(said: Any) -> None:
    found = figures(said, DYNAMO)
    assert found["background_agents"] == 1
    assert found["tool_wait_ms"]["total"] == 3900.0
    assert found["gap_ms"]["max"] == 10500.0
    assert found["recorded_service_ms"]["recorded"] == found["requests"] == 8


def test_sharing_across_plays_is_told_from_sharing_within_them(said: Any) -> None:
    ordinary = str(ROOT / "tests" / "goldens" / "lower-dynamo-ordinary" / "trace.jsonl")
    reuse = figures(said, ordinary)["prefix_reuse"]
    assert (reuse["ratio_within_plays"], reuse["ratio"]) == (0.0, pytest.approx(16 / 60))


def test_text_shows_what_the_json_holds(said: Any) -> None:
    code, out, _ = said("inspect", WEKA)
    assert code == 0
    for words in (
        "5 plays, 56 requests",
        "agents spawned",
        "prefix reuse, at best",
        "depth of a play",
        "gap in a session",
    ):
        assert words in out
    assert "reading-chosen" in out


def test_mermaid_draws_every_request_and_every_edge_of_one_play(said: Any) -> None:
    code, out, _ = said("inspect", AGENTS, "--block-size", "16", "--output", "mermaid")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "flowchart TD"
    assert sum("subgraph" in line for line in lines) == 5
    assert sum("→" in line for line in lines) == 9
    assert sum("-->" in line for line in lines) == 4
    assert sum("==>" in line for line in lines) == 3
    assert sum("-.->" in line for line in lines) == 3


def test_dot_names_the_play_asked_for(said: Any) -> None:
    code, out, _ = said("inspect", WEKA, "--output", "dot", "--play", "fix-a-bug")
    assert code == 0
    assert out.startswith("digraph play {")
    assert out.rstrip().endswith("}")
    assert "fix-a-bug:outer:0" in out
    assert "plan-then-build" not in out


def test_labels_cannot_break_out_of_the_picture(said: Any, tmp_path: Path) -> None:
    row = {"timestamp": 0, "output_length": 1, "input_length": 5, "request_id": 'a"];\n<script>', "hash_ids": []}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    for output in ("mermaid", "dot"):
        code, out, _ = said("inspect", str(tmp_path), "--output", output)
        assert code == 0
        assert "<script>" not in out or output == "dot"
        assert 'a"]' not in out.replace('a\\"]', "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((WEKA, "--play", "x"), "--output mermaid or dot"),
        ((WEKA, "--output", "dot", "--play", "nobody"), "no play 'nobody'"),
    ],
)
def test_usage(said: Any, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = said("inspect", *arguments)
    assert code == 2
    assert words in " ".join(err.replace("│", " ").split())


def test_a_play_too_large_to_draw_is_refused_with_its_size(said: Any, tmp_path: Path) -> None:
    rows = [{"session_id": "s", "output_length": 1, "input_length": 5, "delay": 0} for _ in range(401)]
    rows[0] = {"session_id": "s", "output_length": 1, "input_length": 5, "timestamp": 0}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = said("inspect", str(tmp_path), "--output", "dot")
    assert code == 2
    assert "401" in err


def test_a_refused_trace_is_not_inspected(said: Any) -> None:
    code, out, err = said("inspect", DEADLOCK)
    assert (code, out) == (1, "")
    assert "cycle" in err


@pytest.mark.parametrize("format", ["claude", "codex", "dynamo", "mooncake-delta", "applied_compute_agentic"])
def test_formats_can_be_named(said: Any, format: str) -> None:
    name = {"mooncake-delta": "mooncake-delta", "applied_compute_agentic": "applied-compute"}
    golden = name.get(
        format, {"claude": "claude-agents", "codex": "codex-fork", "dynamo": "dynamo-agentic"}.get(format)
    )
    path = next((ROOT / "tests" / "goldens" / f"lower-{golden}").glob("trace*"))
    code, _, err = said("validate", str(path), "--format", format, "--block-size", "16")
    assert code == 0, err
