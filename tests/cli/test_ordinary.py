"""Ordinary traces on the command line: loads, stops, speculation, and guards that name what was set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TURNS = [
    {"session_id": "a", "timestamp": 0, "input_length": 40, "output_length": 6, "hash_ids": [1, 2, 3]},
    {"session_id": "a", "delay": 50, "input_length": 70, "output_length": 2, "hash_ids": [1, 2, 3, 5, 6]},
    {"session_id": "b", "timestamp": 20, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 4]},
]
APPLIED = {
    "num_turns": 1,
    "input_prompt_length": 40,
    "assistant_response_length": [3],
    "tool_call_output_length": [7],
    "tool_call_latency": [0.05],
    "final_assistant_response_length": 2,
}
SIZE = ("--set", "traffic.source.block_size=16")
OPEN = "traffic.load.type=concurrency"
SEEDED = ("traffic.load.agentic_lanes=1", "traffic.load.agentic_snapshot.seed=1")
V2 = str(Path(__file__).resolve().parents[2] / "examples" / "v2" / "corpus.jsonl")


def trace(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def settings(*wanted: str) -> list[str]:
    return [argument for setting in wanted for argument in ("--set", setting)]


def test_loads_and_stops(said: Any, tmp_path: Path) -> None:
    path = trace(tmp_path, *TURNS)
    code, out, _ = said("replay", path, *SIZE)
    assert code == 0
    assert "sessions completed         2 of 2" in out
    code, out, _ = said("replay", path, *SIZE, *settings(OPEN, "traffic.load.concurrency=1"), "--json")
    assert code == 0
    assert json.loads(out)["load"]["concurrency"] == 1
    code, out, _ = said("replay", path, *SIZE, *settings("traffic.stop.max_virtual_time_seconds=0.12"))
    assert code == 0
    assert "requests completed         1 of 3" in out
    assert "unfinished, never issued   1, 1" in out


def test_speculation(said: Any, tmp_path: Path) -> None:
    path = trace(tmp_path, *TURNS)
    drafts = "engine.speculation={kind: ngram, num_speculative_tokens: 4, acceptance_rates: [1.0, 1.0, 1.0, 1.0]}"
    passes = []
    for chosen in ((), (drafts,)):
        code, out, _ = said("replay", path, *SIZE, *settings(*chosen), "--json")
        assert code == 0
        passes.append(json.loads(out)["forward_passes"])
    assert passes[1] < passes[0]


GUARDS: list[tuple[list[dict[str, Any]], tuple[str, ...], list[str]]] = [
    (TURNS, ("traffic.load.agentic_lanes=2",), ["traffic.load.agentic_lanes"]),
    (TURNS, SEEDED, ["traffic.load.agentic_lanes", "traffic.load.agentic_snapshot"]),
    (TURNS, (*SEEDED, "traffic.load.agentic_warmup=true"), ["traffic.load.agentic_warmup"]),
    (TURNS, (*SEEDED, "traffic.load.agentic_profile={}"), ["traffic.load.agentic_profile"]),
    ([], (OPEN,), ["traffic.load.type"]),
    ([], ("traffic.stop.max_virtual_time_seconds=3",), ["traffic.stop.max_virtual_time_seconds"]),
    (
        [],
        (*SEEDED, "traffic.load.agentic_profile={}", "traffic.stop.max_virtual_time_seconds=3"),
        ["traffic.load.agentic_profile"],
    ),
    ([APPLIED], ("traffic.load.type=trace_timestamps",), ["traffic.load.type"]),
    (TURNS, ("traffic.load.concurrency=3",), ["traffic.load.concurrency"]),
    (
        TURNS,
        (
            "engine.backend=sglang",
            "engine.speculation={kind: ngram, num_speculative_tokens: 2, acceptance_rates: [0.5]}",
        ),
        ["engine.speculation"],
    ),
]


@pytest.mark.parametrize(("rows", "wanted", "fields"), GUARDS, ids=[" ".join(guard[1]) for guard in GUARDS])
def test_guards_name_what_was_set(
    said: Any, tmp_path: Path, rows: list[dict[str, Any]], wanted: tuple[str, ...], fields: list[str]
) -> None:
    path = trace(tmp_path, *rows) if rows else V2
    size = SIZE if rows else ()
    code, out, err = said("replay", path, *size, *settings(*wanted))
    assert (code, out) == (1, "")
    for field in fields:
        assert f"--set {field}: " in err
    assert "way out: " in err


def test_validate_names_them_too(said: Any, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "traffic:\n  source: {block_size: 16}\n  load: {agentic_lanes: 2}\n"
        "engine:\n  workers:\n    aggregated:\n      kv_cache: {capacity: {type: fixed, blocks: 64}}\n"
        "      timing: {type: polynomial}\n"
    )
    code, out, _ = said("validate", trace(tmp_path, *TURNS), "--config", str(config))
    assert code == 1
    assert f"{config}:3" in out
    assert "agentic_lanes belongs to agentic traces" in out
