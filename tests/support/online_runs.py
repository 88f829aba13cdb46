"""Small traces for online replay, and one call that replays one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import playproof as pp
from playproof.online.report import OnlineControlledReport, OnlineReport


def trace_of(folder: Path, plays: int = 2, requests: int = 2, *, output: int = 3, delay_ms: float = 1.0) -> Any:
    """Return a proven trace: each play is a chain of requests, each of which extends the prompt of the one before."""
    lines: list[dict[str, Any]] = [
        {
            "schema": "dynamo.agentic_mooncake",
            "version": 2,
            "block_size": 16,
            "hash_id_scope": "local",
            "source": {"format": "hand", "digest": "chains"},
        }
    ]
    for play in range(plays):
        for number in range(requests):
            before = {"trigger": "completion", "delay_ms": delay_ms, "relation": "sequence"}
            lines.append(
                {
                    "request_id": f"p{play}r{number}",
                    "play_id": f"p{play}",
                    "session_id": f"p{play}",
                    "model": "m",
                    "input_length": 32 * (number + 1),
                    "output_length": output,
                    "hash_ids": [play * 1000 + block for block in range(2 * (number + 1))],
                    "not_before_ms": 0,
                    "dependencies": [{"request_id": f"p{play}r{number - 1}", **before}] if number else [],
                }
            )
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return pp.load(path)


def agents_of(folder: Path, plays: int = 6, rounds: int = 3) -> Any:
    """Return a proven trace of agents: in each round a request spawns two others at its dispatch and one joins them.

    Pauses are long against what a network adds, and no two of a play are the same, so that what online and offline
    replay decide does not hang on milliseconds.
    """
    lines: list[dict[str, Any]] = [
        {
            "schema": "dynamo.agentic_mooncake",
            "version": 2,
            "block_size": 64,
            "hash_id_scope": "local",
            "source": {"format": "hand", "digest": "agents"},
        }
    ]

    def add(play: int, name: str, blocks: int, own: int, edges: list[tuple[str, str, str, float]]) -> None:
        shared = [play * 10_000 + block for block in range(blocks)]
        lines.append(
            {
                "request_id": f"p{play}{name}",
                "play_id": f"p{play}",
                "session_id": f"p{play}",
                "model": "m",
                "input_length": 64 * (blocks + 1) - 7 * play,
                "output_length": 30 + 3 * play,
                "hash_ids": [*shared, play * 10_000 + 5000 + own],
                "not_before_ms": 90.0 * play,
                "dependencies": [
                    {"request_id": f"p{play}{source}", "trigger": trigger, "relation": relation, "delay_ms": delay}
                    for source, trigger, relation, delay in edges
                ],
            }
        )

    for play in range(plays):
        for turn in range(rounds):
            before = [(f"j{turn - 1}", "completion", "sequence", 170.0 + 23 * play)] if turn else []
            add(play, f"r{turn}", 4 * turn + 2, 10 * turn, before)
            add(play, f"a{turn}", 4 * turn + 3, 10 * turn + 1, [(f"r{turn}", "dispatch", "spawn", 110.0 + 7 * play)])
            add(play, f"b{turn}", 4 * turn + 3, 10 * turn + 2, [(f"r{turn}", "dispatch", "spawn", 250.0 + 11 * play)])
            joined = [(f"{name}{turn}", "completion", "join", 60.0 + 5 * play) for name in "rab"]
            add(play, f"j{turn}", 4 * turn + 4, 10 * turn + 3, joined)
    path = folder / "agents.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return pp.load(path)


def replay(
    trace: Any, *endpoints: str, load: pp.Load | None = None, deployment: pp.Deployment | None = None, **options: Any
) -> OnlineReport | OnlineControlledReport:
    """Replay `trace` online, against `endpoints` or mock workers of `deployment`."""
    return pp.replay_online(trace, deployment, load, pp.OnlineOptions(endpoints=endpoints, **options))


def lines_of(report: pp.Report) -> dict[str, dict[str, Any]]:
    """Return the lines of requests.jsonl by request."""
    return {line["request_id"]: line for line in report.request_dicts()}
