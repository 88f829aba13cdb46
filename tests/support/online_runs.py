"""Small traces for online replay, and one call that replays one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import playproof as pp
from playproof import api
from playproof.config import Configuration
from playproof.online.options import OnlineOptions
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


def replay(
    trace: Any, *endpoints: str, load: pp.Load | None = None, deployment: pp.Deployment | None = None, **options: Any
) -> OnlineReport | OnlineControlledReport:
    """Replay `trace` online, against `endpoints` or mock workers of `deployment`."""
    configuration = Configuration(deployment=deployment or pp.Deployment(), load=load or pp.Load())
    return api.replay_online(trace, configuration, OnlineOptions(endpoints=endpoints, **options))


def lines_of(report: OnlineReport | OnlineControlledReport) -> dict[str, dict[str, Any]]:
    """Return the lines of requests.jsonl by request."""
    return {line["request_id"]: line for line in report.request_dicts()}
