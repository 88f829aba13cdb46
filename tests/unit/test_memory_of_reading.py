"""Reading keeps one file and the graph: how much text there is changes nothing."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playproof_lowering import load_graph

FILES, CALLS = 24, 8
STAMP = "2026-05-01T10:00:{:02d}Z"


def claude(number: int, text: str) -> list[dict[str, Any]]:
    base = {"sessionId": f"s{number}", "version": "2.0.1", "isSidechain": False}
    rows: list[dict[str, Any]] = []
    for call in range(CALLS):
        message: dict[str, Any] = {"id": f"c{number}.{call}", "model": "m", "content": [{"type": "text", "text": text}]}
        message["usage"] = {"input_tokens": 100 * (call + 1), "output_tokens": 5}
        user = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}
        rows.append({"type": "user", "uuid": f"u{call}", "timestamp": STAMP.format(2 * call), "message": user, **base})
        rows.append(
            {
                "type": "assistant",
                "uuid": f"a{call}",
                "timestamp": STAMP.format(2 * call + 1),
                "message": message,
                **base,
            }
        )
    return rows


def codex(number: int, text: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"type": "session_meta", "payload": {"id": f"thread-{number}"}}]
    for call in range(CALLS):
        content = [{"type": "input_text", "text": text}]
        info = {"total_token_usage": {"input_tokens": 100 * (call + 1), "output_tokens": 5}}
        for second, kind, payload in (
            (2 * call, "response_item", {"type": "message", "role": "user", "content": content}),
            (2 * call + 1, "response_item", {"type": "reasoning", "encrypted_content": text}),
            (2 * call + 1, "event_msg", {"type": "token_count", "info": info}),
        ):
            lines.append({"timestamp": STAMP.format(second), "type": kind, "payload": payload})
    return lines


def dynamo(number: int, text: str) -> list[dict[str, Any]]:
    rows = []
    for call in range(CALLS):
        replay = {"trace_block_size": 16, "input_length": 16, "input_sequence_hashes": [call]}
        body = {
            "request_id": f"r{number}.{call}",
            "model": "m",
            "output_tokens": 5,
            "total_time_ms": 5,
            "replay": replay,
        }
        row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 10 * call + 5}
        rows.append({**row, "request": {**body, "finish_reason_metadata": text}})
    return rows


def peak_bytes(folder: Path, make: Callable[[int, str], list[dict[str, Any]]], text: str) -> int:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make(number, text)))
    tracemalloc.start()
    lowered = load_graph([folder])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lowered.graph is not None
    assert lowered.graph.node_count == FILES * CALLS
    return peak


@pytest.mark.parametrize("make", [claude, codex, dynamo])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, make: Callable[[int, str], list[dict[str, Any]]]) -> None:
    few, many = "x" * 20, "x" * 20_000
    peak_bytes(tmp_path / "warm", make, few)
    little, much = peak_bytes(tmp_path / "few", make, few), peak_bytes(tmp_path / "many", make, many)
    # A file is read in pieces larger than these files are; so one of them is held at a time, and not all two dozen.
    sizes = [path.stat().st_size for path in (tmp_path / "many").iterdir()]
    assert much - little < 2 * max(sizes) < sum(sizes) / 10
