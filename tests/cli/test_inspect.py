"""`playproof inspect`: the figures, their forms, and the picture of one play."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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


def test_what_was_set_right_is_counted(said: Any) -> None:
    """Of the golden: one clock that goes back. Of the other: two calls that a resumed session copied."""
    goldens = ROOT / "tests" / "goldens"
    back = figures(said, str(goldens / "lower-claude-compaction" / "trace"), "--block-size", "16")
    # Three of the five prompts read something from the cache: 80, 48, 32 and 48 tokens of 400.
    assert back["repaired"] == {"overlaps_floored": 1, "clock_went_back": 1}
    assert back["prefix_reuse"]["recorded_ratio"] == (80 + 48 + 32 + 48) / (80 + 120 + 64 + 48 + 88)
    copied = figures(said, str(goldens / "lower-claude-resume" / "trace"), "--block-size", "16")
    assert copied["repaired"] == {"calls_copied": 2}


# The golden's nine calls, worked out by hand: tokens in and out, and the gaps within its sessions in seconds.
IN = [48, 80, 96, 32, 32, 48, 68, 32, 32]
OUT = [9, 5, 4, 6, 6, 5, 8, 6, 6]
GAPS = [17, 18, 10, 1]
SERVICES = [2, 2, 1, 26.6, 1.6, 2, 2, 3.5, 1]


def spread(values: Sequence[float], unit: float = 1.0) -> dict[str, Any]:
    """Percentiles are values that occur: the nearest by rank, the later one of two."""
    ordered = sorted(value * unit for value in values)
    ranks = {
        name: math.floor((len(ordered) - 1) * q + 0.5)
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
    }
    percentiles = {name: ordered[rank] for name, rank in ranks.items()}
    return {"mean": pytest.approx(sum(ordered) / len(ordered)), "min": ordered[0], "max": ordered[-1], **percentiles}


def test_the_json_holds_every_figure(said: Any) -> None:
    found = figures(said, AGENTS, "--block-size", "16")
    assert list(found) == [
        "schema", "input_format", "input_kind", "block_size", "plays", "requests", "sessions", "edges",
        "requests_per_play", "depth_per_play", "fan_out", "joins", "background_agents", "input_tokens", "output_tokens",
        "gap_ms", "recorded_service_ms", "tool_wait_ms", "prefix_reuse", "models", "estimated", "repaired", "findings",
        "reading",
    ]  # fmt: skip
    for name, values in (
        ("input_tokens", spread(IN) | {"total": sum(IN)}),
        ("output_tokens", spread(OUT) | {"total": sum(OUT)}),
        ("gap_ms", spread(GAPS, 1000)),
        ("recorded_service_ms", spread(SERVICES, 1000) | {"recorded": 9}),
        ("requests_per_play", spread([9])),
        # main:0 spawns two agents, one:0 one; three calls wait for an agent each.
        ("fan_out", spread([2, 1]) | {"spawning_requests": 2, "spawned": 3}),
        ("joins", spread([1, 1, 1]) | {"joining_requests": 3, "joined": 3}),
        ("depth_per_play", {"max": 7}),
        ("tool_wait_ms", {"requests": 0, "total": 0.0, "mean": None}),
    ):
        assert {key: found[name][key] for key in values} == values, name
    assert found["models"] == {"opus": {"requests": 9, "input_tokens": sum(IN), "output_tokens": sum(OUT)}}
    assert (found["input_format"], found["input_kind"], found["block_size"]) == ("claude", "agentic", 16)
    assert found["repaired"] == {"agents_unlinked": 1, "agents_unrecorded": 1}
    assert found["reading"]["claude_counts"]["llm_calls"] == 3
    # 13 of the 29 full blocks stand in an earlier prompt, too; the recorded cache found 48, 80, 32 and 48 tokens.
    assert found["prefix_reuse"]["reused_tokens"] == 13 * 16
    assert found["prefix_reuse"]["ratio"] == found["prefix_reuse"]["ratio_within_plays"] == 13 * 16 / sum(IN)
    assert found["prefix_reuse"]["recorded_ratio"] == (48 + 80 + 32 + 48) / sum(IN)


@pytest.mark.parametrize(
    "line",
    [
        "1 play, 9 requests, 5 sessions read as claude (agentic)",
        "edges sequence 4, spawn 3, join 3",
        "agents spawned 3 by 2 requests",
        "answers joined 3 by 3 requests",
        "agents nobody waits for 0",
        "tokens 468 in, 55 out",
        "prefix reuse, at best 44.4% of the prompt tokens; 44.4% within plays (blocks of 16)",
        "prefix reuse, recorded 44.4% of the prompt tokens",
        "model opus: 9 requests, 468 in, 55 out",
        "estimated or restored 1 request as a whole",
        "repaired or left out agents unlinked 1, agents unrecorded 1",
        "mean p50 p90 p95 p99 max",
        "requests a play 9 9 9 9 9 9",
        "depth of a play 7 7 7 7 7 7",
        "agents a spawn 1.5 2 2 2 2 2",
        "input tokens 52 48 80 96 96 96",
        "output tokens 6.1 6 8 9 9 9",
        "gap in a session 11.50 s 17.00 s 18.00 s 18.00 s 18.00 s 18.00 s",
        "tool time in a gap – – – – – –",
        "recorded service 4.63 s 2.00 s 3.50 s 26.60 s 26.60 s 26.60 s",
        "warning agent-unlinked: agent that nothing ties to its parent",
        "note agent-unrecorded: no calls in the corpus are tied to 1 of the agents spawned",
        "note call-restored: agents' last calls restored from their results: 1",
    ],
)
def test_the_text_shows_every_figure(said: Any, line: str) -> None:
    code, out, _ = said("inspect", AGENTS, "--block-size", "16")
    assert code == 0
    assert line in [" ".join(printed.split()) for printed in out.splitlines()]


def test_ordinary_traces_are_shown_too(said: Any) -> None:
    code, out, _ = said(
        "inspect", str(ROOT / "tests" / "goldens" / "lower-mooncake" / "trace.jsonl"), "--block-size", "16"
    )
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert "2 plays, 4 requests, 2 sessions read as mooncake (ordinary)" in lines
    assert "model unspecified: 4 requests, 117 in, 15 out" in lines
    # Nothing is recorded of caches and service times.
    assert not any("recorded" in line and not line.endswith("– – – – –") for line in lines)


def test_the_readings_that_were_chosen_are_told(said: Any) -> None:
    code, out, _ = said("inspect", WEKA)
    assert code == 0
    assert "5 plays, 56 requests" in out
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


def test_dot_draws_every_request_and_every_edge_of_one_play(said: Any) -> None:
    code, out, _ = said("inspect", AGENTS, "--block-size", "16", "--output", "dot")
    lines = out.splitlines()
    assert code == 0
    assert sum("subgraph cluster_" in line for line in lines) == 5
    assert sum("→" in line for line in lines) == 9
    styles = [line.partition("style=")[2].partition(",")[0] for line in lines if "->" in line]
    assert {style: styles.count(style) for style in styles} == {"solid": 4, "bold": 3, "dashed": 3}
    assert sum('label="join +10.0 s"' in line for line in lines) == 1


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
