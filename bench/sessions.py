"""How fast session recordings are lowered, and in how much memory.

    python bench/sessions.py [--megabytes 300] [--keep FOLDER]

Makes Claude Code sessions (text in its real share: most bytes are tool results; every third session has agents in
files of their own) and Codex rollouts with agents, half of the bytes each, and lowers them, each format in a process
of its own, with compiled code cached. The same seed gives the same bytes. Half of the files are lowered first: memory
must grow with the calls that there are, not with the bytes. Ends with 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SEED = 20261130
SECONDS_MAX = 15.0
# Beside what the interpreter and the compiled code take: one file, and what stays of each call until the graph is made.
KB_PER_REQUEST_MAX = 4.0
SLACK_MB = 4.0
MB = 2**20
# Letters of no language, so that no file compresses to nothing or looks like a notification.
WORDS = ("lorem ", "ipsum ", "dolor\\n", "sit ", "amet ", 'con"sec ', "adipiscing ", "élit ")


class Clock:
    """Instants that go on by themselves."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now = datetime(2026, 3, 1, tzinfo=UTC)

    def after(self, least_s: float, most_s: float) -> str:
        """Return the instant so many seconds later."""
        self._now += timedelta(seconds=self._rng.uniform(least_s, most_s))
        return self._now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text(rng: random.Random, characters: int) -> str:
    """Return text of about that length."""
    word = rng.choice(WORDS)
    return word * (characters // len(word) + 1)


def identity(rng: random.Random) -> str:
    """Return an id in the form of a UUID."""
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def claude_records(
    rng: random.Random, clock: Clock, session: str, agent: str, calls: int, spawned: list[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield the records of one conversation; tool uses that spawn agents are put into `spawned`."""
    common = {"sessionId": session, "version": "2.1.108", "isSidechain": bool(agent), "cwd": "/work"}
    if agent:
        common["agentId"] = agent
    prompt = 18_000
    yield {"type": "user", "message": {"role": "user", "content": text(rng, 400)}, "uuid": identity(rng),
           "timestamp": clock.after(1, 60), **common}  # fmt: skip
    for _ in range(calls):
        message_id, fresh = f"msg_{rng.getrandbits(96):024x}", rng.randrange(200, 4_000)
        usage = {"input_tokens": 3, "cache_creation_input_tokens": fresh, "cache_read_input_tokens": prompt}
        tool = f"toolu_{rng.getrandbits(96):024x}"
        spawning = not agent and rng.random() < 0.03
        name = "Task" if spawning else "Bash"
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": text(rng, 300)},
            {"type": "tool_use", "id": tool, "name": name, "input": {"command": text(rng, 200)}},
        ]
        for tokens, block in zip((1, rng.randrange(50, 900)), blocks, strict=True):
            body: dict[str, Any] = {
                "id": message_id,
                "model": "claude-opus-4-6",
                "role": "assistant",
                "content": [block],
            }
            record = {"type": "assistant", "message": {**body, "usage": {**usage, "output_tokens": tokens}}}
            yield {**record, "uuid": identity(rng), "timestamp": clock.after(1, 8), **common}
        result: dict[str, Any] = {"stdout": text(rng, 6_000), "stderr": ""}
        if spawning:
            child = f"{rng.getrandbits(40):010x}"
            spawned.append((tool, child))
            result = {"agentId": child, "status": "completed"}
        content = [{"type": "tool_result", "tool_use_id": tool, "content": text(rng, 6_000)}]
        yield {"type": "user", "message": {"role": "user", "content": content}, "toolUseResult": result,
               "uuid": identity(rng), "timestamp": clock.after(0.1, 20), **common}  # fmt: skip
        prompt = 18_000 if prompt > 170_000 else prompt + fresh


def write_claude(folder: Path, rng: random.Random, size: int) -> None:
    """Write sessions of about `size` bytes in all."""
    written, number = 0, 0
    while written < size:
        session, clock = identity(rng), Clock(rng)
        spawned: list[tuple[str, str]] = []
        path = folder / f"{session}.jsonl"
        written += write_lines(path, claude_records(rng, clock, session, "", rng.randrange(50, 400), spawned))
        for tool, agent in spawned if number % 3 == 0 else ():
            own = folder / session / "subagents" / f"agent-{agent}.jsonl"
            own.parent.mkdir(parents=True, exist_ok=True)
            written += write_lines(own, claude_records(rng, clock, session, agent, rng.randrange(5, 40), []))
            meta = {"agentType": "Explore", "description": "x", "toolUseId": tool}
            own.with_name(f"agent-{agent}.meta.json").write_text(json.dumps(meta))
        number += 1


def codex_records(
    rng: random.Random, clock: Clock, thread: str, parent: str, calls: int, spawned: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the lines of one rollout; threads that it spawns are put into `spawned`."""

    def line(kind: str, payload: dict[str, Any], least_s: float = 0.0, most_s: float = 0.2) -> dict[str, Any]:
        return {"timestamp": clock.after(least_s, most_s), "type": kind, "payload": payload}

    source: Any = {"subagent": {"thread_spawn": {"parent_thread_id": parent}}} if parent else "cli"
    yield line("session_meta", {"id": thread, "source": source})
    yield line("turn_context", {"model": "gpt-5.4"})
    yield line("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]})
    prompt, total_in, total_out = 16_000, 0, 0
    for _ in range(calls):
        call = f"call_{rng.getrandbits(96):024x}"
        spawning = not parent and rng.random() < 0.02
        name = "spawn_agent" if spawning else "exec_command"
        arguments = json.dumps({"cmd": text(rng, 100)})
        yield line("response_item", {"type": "reasoning", "encrypted_content": text(rng, 1_500)}, 1, 9)
        yield line("response_item", {"type": "function_call", "name": name, "arguments": arguments, "call_id": call})
        if spawning:
            child = identity(rng)
            spawned.append(child)
            yield line("event_msg", {"type": "collab_agent_spawn_end", "call_id": call, "new_thread_id": child})
        output = rng.randrange(20, 900)
        total_in, total_out = total_in + prompt, total_out + output
        usage = {"input_tokens": prompt, "cached_input_tokens": prompt - 800, "output_tokens": output}
        totals = {"input_tokens": total_in, "cached_input_tokens": total_in // 2, "output_tokens": total_out}
        for _ in range(rng.choice((1, 1, 2))):
            info = {"total_token_usage": totals, "last_token_usage": usage}
            yield line("event_msg", {"type": "token_count", "info": info})
        shown = {"type": "exec_command_end", "call_id": call, "stdout": text(rng, 3_500)}
        yield line("event_msg", shown, 0.1, 10)
        yield line("response_item", {"type": "function_call_output", "call_id": call, "output": text(rng, 3_500)})
        prompt = 16_000 if prompt > 220_000 else prompt + rng.randrange(200, 3_000)


def write_codex(folder: Path, rng: random.Random, size: int) -> None:
    """Write rollouts of about `size` bytes in all."""
    written = 0
    while written < size:
        thread, clock = identity(rng), Clock(rng)
        spawned: list[str] = []
        records = codex_records(rng, clock, thread, "", rng.randrange(50, 400), spawned)
        written += write_lines(folder / f"rollout-2026-03-01T00-00-00-{thread}.jsonl", records)
        for child in spawned:
            records = codex_records(rng, clock, child, thread, rng.randrange(2, 30), [])
            written += write_lines(folder / f"rollout-2026-03-01T01-00-00-{child}.jsonl", records)


def write_lines(path: Path, records: Iterator[dict[str, Any]]) -> int:
    """Write records, one a line; return the bytes."""
    with path.open("wb") as file:
        return sum(file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n") for record in records)


def measure(paths: list[str]) -> dict[str, Any]:
    """Lower files and folders in this process and return the figures."""
    import resource

    from playproof_lowering import load_graph

    with tempfile.TemporaryDirectory() as scratch:
        for write in (write_claude, write_codex):
            own = Path(scratch) / write.__name__
            own.mkdir()
            write(own, random.Random(SEED), 1)
            load_graph([own])
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    lowered = load_graph(paths)
    seconds = time.perf_counter() - started
    assert lowered.graph is not None
    assert not lowered.findings.errors, [str(item) for item in lowered.findings.items][:3]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    graph = lowered.graph
    return {
        "plays": len(graph.plays),
        "requests": graph.node_count,
        "edges": graph.edge_count,
        "seconds": seconds,
        "above_mb": peak_mb - before_mb,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300, help="bytes of sessions to make, in MiB")
    parser.add_argument("--keep", type=Path, help="write the sessions here, and leave them")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        return run(arguments.keep or Path(scratch), arguments.megabytes)


def lowered_apart(paths: list[Path]) -> dict[str, Any]:
    """Lower in a process of its own and return the figures."""
    call = [sys.executable, __file__, "--measure", *map(str, paths)]
    result = subprocess.run(call, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"a benchmark process failed:\n{result.stderr}")
    figures: dict[str, Any] = json.loads(result.stdout)
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    figures["mb"] = sum(file.stat().st_size for file in files) / MB
    figures["largest_mb"] = max(file.stat().st_size for file in files) / MB
    return figures


def run(folder: Path, megabytes: int) -> int:
    """Make the sessions, lower them, print a table; return the exit code."""
    seconds, broken = 0.0, []
    columns = ("MiB", "largest", "plays", "requests", "edges", "seconds", "MiB/s", "MB above", "KB/request")
    print(f"{'format':<8}" + "".join(f"{name:>11}" for name in columns))
    for name, write in (("claude", write_claude), ("codex", write_codex)):
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        write(own, random.Random(SEED), megabytes * MB // 2)
        for paths in (sorted(own.iterdir())[::2], [own]):
            figures = lowered_apart(paths)
            kept_mb = max(figures["above_mb"] - figures["largest_mb"] - SLACK_MB, 0.0)
            kb_per_request = kept_mb * 1024 / figures["requests"]
            print(
                f"{name:<8}{figures['mb']:>11.0f}{figures['largest_mb']:>11.1f}{figures['plays']:>11,}"
                f"{figures['requests']:>11,}{figures['edges']:>11,}{figures['seconds']:>11.2f}"
                f"{figures['mb'] / figures['seconds']:>11.0f}{figures['above_mb']:>11.0f}{kb_per_request:>11.1f}"
            )
            if kb_per_request > KB_PER_REQUEST_MAX:
                broken.append(f"{name}: {kb_per_request:.1f} KB stay of a request, at most {KB_PER_REQUEST_MAX:.1f} KB")
        seconds += figures["seconds"]
    limit = SECONDS_MAX * megabytes / 300
    print(f"together {seconds:.2f} s (at most {limit:.1f} s)")
    if seconds > limit:
        broken.append(f"lowering took {seconds:.2f} s, at most {limit:.1f} s")
    for message in broken:
        print(f"LIMIT BROKEN: {message}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
