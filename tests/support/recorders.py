"""Recorders: what Claude Code and Codex write, record by record, on a clock in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from playproof_lowering import Lowered, LoweringOptions, load_graph

ROOT, CHILD, LATER = (f"019d0000-0000-7000-8000-00000000000{number}" for number in (1, 5, 9))


class Recorder:
    """Writes the records of one conversation, on a clock in seconds."""

    def __init__(self, session: str = "s", agent: str = "", version: str = "2.1.100") -> None:
        self.base: dict[str, Any] = {"sessionId": session, "version": version, "isSidechain": bool(agent)}
        if agent:
            self.base["agentId"] = agent
        self.count = 0

    def record(self, kind: str, at: float | str, **fields: Any) -> dict[str, Any]:
        self.count += 1
        stamp = at if isinstance(at, str) else f"2026-05-01T10:{int(at) // 60:02d}:{at % 60:06.3f}Z"
        uuid = f"{self.base.get('agentId', 'm')}{self.count}"
        return {"type": kind, "uuid": uuid, "timestamp": stamp, **self.base, **fields}

    def user(self, at: float | str, content: Any = "hello", **fields: Any) -> dict[str, Any]:
        return self.record("user", at, message={"role": "user", "content": content}, **fields)

    def result(self, at: float, use: str, result: Any = None) -> dict[str, Any]:
        record = self.user(at, [{"type": "tool_result", "tool_use_id": use, "content": "ok"}])
        return record if result is None else record | {"toolUseResult": result}

    def call(self, at: float | str, name: str, tokens: int, *uses: str, **usage: Any) -> dict[str, Any]:
        content = [{"type": "tool_use", "id": use, "name": "Task", "input": {}} for use in uses]
        counts = {"input_tokens": tokens, "output_tokens": 5, **usage}
        message = {"id": name, "model": "m", "content": content or "done", "usage": counts}
        return self.record("assistant", at, message=message)


def write(folder: Path, files: dict[str, list[dict[str, Any]] | dict[str, Any]]) -> Path:
    for name, records in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = records if isinstance(records, list) else [records]
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return folder


def lowered_sessions(folder: Path, files: dict[str, Any]) -> Lowered:
    return load_graph([write(folder, files)], options=LoweringOptions(block_size=16))


class Rollout:
    """Writes the lines of one thread, on a clock in seconds."""

    def __init__(self, thread: str = ROOT, **meta: Any) -> None:
        self.totals = {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0}
        self.lines: list[dict[str, Any]] = []
        self.add(0, "session_meta", id=thread, **meta)
        self.add(0, "turn_context", model="gpt")

    def add(self, at: float, kind: str, /, **payload: Any) -> Rollout:
        stamp = f"2026-05-01T10:{int(at) // 60:02d}:{at % 60:06.3f}Z"
        self.lines.append({"timestamp": stamp, "type": kind, "payload": payload})
        return self

    def user(self, at: float) -> Rollout:
        return self.add(at, "response_item", type="message", role="user", content=[])

    def tool(self, at: float, name: str, call_id: str) -> Rollout:
        return self.add(at, "response_item", type="function_call", name=name, call_id=call_id, arguments="{}")

    def output(self, at: float, call_id: str, output: Any = "ok") -> Rollout:
        return self.add(at, "response_item", type="function_call_output", call_id=call_id, output=output)

    def event(self, at: float, kind: str, /, **payload: Any) -> Rollout:
        return self.add(at, "event_msg", type=kind, **payload)

    def tokens(self, at: float, tokens: int, cached: int = 0, output: int = 5, last: bool = True) -> Rollout:
        usage = {"input_tokens": tokens, "cached_input_tokens": cached, "output_tokens": output}
        self.totals = {name: self.totals[name] + usage[name] for name in usage}
        info = {"total_token_usage": self.totals} | ({"last_token_usage": usage} if last else {})
        return self.event(at, "token_count", info=info)

    def call(self, at: float, tokens: int, cached: int = 0) -> Rollout:
        """A call that answers at once: input, thought, count a second later."""
        return self.user(at).add(at + 0.5, "response_item", type="reasoning").tokens(at + 1, tokens, cached)


def lowered_rollouts(folder: Path, **rollouts: Rollout) -> Lowered:
    for name, rollout in rollouts.items():
        thread = {"root": ROOT, "child": CHILD, "later": LATER}.get(name.rstrip("_"), name)
        path = folder / f"rollout-2026-05-01T10-00-00-{thread}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in rollout.lines))
    return load_graph([folder], options=LoweringOptions(block_size=16))
