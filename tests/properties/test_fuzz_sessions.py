"""Sessions and rollouts in the shapes that recorders write, at random: reading ends in findings, always alike.

Set FUZZ_SECONDS to go on for that long with a fresh seed, which is printed; FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_spec.certificate import prove
from playproof_spec.digest import graph_digest
from playproof_spec.findings import InvalidInput

CASES = 60
# A case takes milliseconds; this only has to tell a hang from a busy machine.
CASE_SECONDS_MAX = 300.0

Record = dict[str, Any]
Files = dict[str, list[Record]]


def stamp(at: float) -> str:
    whole = int(at)
    return f"2026-05-01T{10 + whole // 3600:02d}:{whole // 60 % 60:02d}:{at % 60:06.3f}Z"


def maybe(rng: random.Random, chance: float, **fields: Any) -> Record:
    return fields if rng.random() < chance else {}


# Claude Code ---------------------------------------------------------------------------------------------------------


def counts(rng: random.Random) -> Record:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return {name: rng.choice([0, 0, 1, 16, 40, 999, 160_000]) for name in names if rng.random() < 0.9}


def usage(rng: random.Random) -> Record | None:
    if rng.random() < 0.15:
        return None
    told = counts(rng)
    if rng.random() < 0.25:
        kinds = ["message", "message", "advisor_message", "compaction", "fallback_message", "later_kind", None]
        told["iterations"] = [
            counts(rng) | {"type": rng.choice(kinds)} | maybe(rng, 0.3, model="bigger") for _ in range(rng.randrange(4))
        ]
    return told


def claude_record(rng: random.Random, at: float, agent: str, known: list[str], uses: list[str]) -> Record:
    uuid = f"r{rng.randrange(10**6)}" if rng.random() < 0.95 else rng.choice(known or ["r0"])
    base: Record = {"sessionId": rng.choice(["s", "s", "s", "t"]), "version": rng.choice(["2.1.100", "2.0.1"])}
    base |= {"uuid": uuid, "timestamp": stamp(at), "isSidechain": bool(agent)} | ({"agentId": agent} if agent else {})
    if rng.random() < 0.8:
        base["parentUuid"] = rng.choice([*known[-6:], None, "gone"])
    base |= maybe(rng, 0.05, forkedFrom={"sessionId": "t", "messageUuid": rng.choice(known or ["r0"])})
    known.append(uuid)
    kind = rng.random()
    if kind < 0.5:
        message: Record = {"model": rng.choice(["m", "m", "n", "<synthetic>"]), "usage": usage(rng), "content": []}
        message |= maybe(rng, 0.95, id=rng.choice(["gw", "gw", f"c{rng.randrange(20)}"]))
        for _ in range(rng.randrange(3)):
            uses.append(f"t{len(uses)}")
            name = rng.choice(["Bash", "Task", "Workflow"])
            message["content"].append({"type": "tool_use", "id": uses[-1], "name": name, "input": {}})
        return base | {"type": "assistant", "message": message} | maybe(rng, 0.4, requestId=f"q{rng.randrange(9)}")
    if kind < 0.85:
        block = {"type": "tool_result", "tool_use_id": rng.choice(uses or ["t0"]), "content": "ok \ud83d"}
        run = {"taskId": rng.choice("kl"), "runId": rng.choice(["wf_1", "wf_2"])}
        results: list[Record] = [
            {},
            {"agentId": rng.choice("xy"), "status": "completed", "usage": usage(rng)},
            {"agentId": rng.choice("xy"), "isAsync": True},
            {"status": "async_launched", **run},
            {"task": {"task_id": rng.choice("xyk"), "status": "completed"}},
        ]
        note = f"<task-notification><task-id>{rng.choice('xykl')}</task-id></task-notification>"
        content: Any = rng.choice([[block], [block], "hello", note])
        result = rng.choice(results) if content == [block] else {}
        return base | {"type": "user", "message": {"content": content}} | ({"toolUseResult": result} if result else {})
    if kind < 0.9:
        return base | {"type": "system", "subtype": "compact_boundary", "logicalParentUuid": rng.choice(known)}
    return base | {"type": rng.choice(["progress", "attachment", "system", "mode"]), "attachment": {"a": 1}}


def claude_files(rng: random.Random) -> Files:
    files: Files = {}
    uses: list[str] = []
    for name in ("s.jsonl", "t.jsonl", "s/subagents/agent-x.jsonl", "s/subagents/workflows/wf_1/agent-y.jsonl"):
        if name != "s.jsonl" and rng.random() < 0.4:
            continue
        agent = name[-7] if "agent-" in name else ""
        known: list[str] = []
        at = rng.uniform(0, 50)
        rows = []
        for _ in range(rng.randrange(30)):
            at += rng.choice([0.0, 0.0, 0.001, 1.0, 30.0, -2.0 if at > 2 else 0.0])
            rows.append(claude_record(rng, at, agent, known, uses))
        # A later file may begin with a copy of an earlier one.
        copied = rng.choice(list(files.values()) or [[]]) if rng.random() < 0.3 else []
        files[name] = [*copied[: rng.randrange(10)], *rows]
    if rng.random() < 0.5:
        files["s/subagents/workflows/wf_1/journal.jsonl"] = [{"type": "started", "key": "k", "agentId": "y"}]
        files["s/workflows/wf_1.json"] = [{"runId": "wf_1", "taskId": "k"}]
    return files


# Codex ---------------------------------------------------------------------------------------------------------------

ROOT, KID, OTHER = (f"019d0000-0000-7000-8000-0000000000{number}" for number in ("01", "50", "51"))
TURNS = [ROOT, "019d0000-0000-7000-8000-000000000040", "019d0000-0001-7000-8000-000000000000", "auto-compact-1",
         "019cffff-0000-7000-8000-000000000000", "e3b0c442-98fc-4c14-9afb-f4c8996fb924", "", None]  # fmt: skip
PATHS = ["/root/a", "/root/b"]


def figures(rng: random.Random) -> Record:
    return {"input_tokens": rng.choice([0, 16, 40, 99, 300]), "cached_input_tokens": rng.choice([0, 16]),
            "output_tokens": rng.choice([0, 5])}  # fmt: skip


def codex_line(rng: random.Random, at: float, total: Record, calls: list[str]) -> Record:
    def line(kind: str, /, **payload: Any) -> Record:
        return {"timestamp": stamp(at), "type": kind, "payload": payload}

    def event(kind: str, /, **payload: Any) -> Record:
        return line("event_msg", type=kind, **payload)

    def item(kind: str, /, **payload: Any) -> Record:
        return line("response_item", type=kind, **payload)

    thread, path = rng.choice([KID, OTHER, ROOT]), rng.choice(PATHS)
    call = rng.choice(calls or ["f0"])
    envelope = {"author": path, "recipient": "/root", "content": "x"}
    kind = rng.randrange(18)
    if kind in (0, 1):
        own = figures(rng)
        for name, value in own.items():
            total[name] += value
        info = {"total_token_usage": dict(total)} | maybe(rng, 0.8, last_token_usage=own)
        return event("token_count", info=rng.choice([info, info, info, None]))
    if kind == 2:
        told = {"usage": figures(rng), "turn_token_usage": dict(total), "thread_token_usage": dict(total)}
        told = {name: value for name, value in told.items() if rng.random() < 0.6}
        told |= maybe(rng, 0.5, response_id=rng.choice("abc")) | maybe(rng, 0.3, turn_id=rng.choice("uv"))
        return line("token_usage_record", **told)
    if kind == 3:
        return event("task_started", turn_id=rng.choice(TURNS))
    if kind == 4:
        return event(rng.choice(["turn_aborted", "error", "task_complete"]), turn_id="x", reason="interrupted")
    if kind in (5, 6):
        return item("reasoning")
    if kind in (7, 8):
        return item("message", role=rng.choice(["user", "developer"]), content=[])
    if kind == 9:
        text = rng.choice([json.dumps(envelope), f"Message Type: X\nSender: {path}\n", "words", "{"])
        return item("message", role="assistant", content=[{"type": "output_text", "text": text}])
    if kind == 10:
        calls.append(f"f{len(calls)}")
        name = rng.choice(["spawn_agent", "spawn_agent", "wait_agent", "wait", "shell"])
        return item("function_call", name=name, call_id=calls[-1], arguments=json.dumps({"task_name": path[-1]}))
    if kind == 11:
        calls.append(f"f{len(calls)}")
        return item("custom_tool_call", name=rng.choice(["exec", "apply_patch"]), call_id=calls[-1], input="x")
    if kind == 12:
        answer = rng.choice([{"task_name": path}, {"agent_id": thread}, {"status": {thread: {"completed": "x"}}}, {}])
        form = rng.choice(["function_call_output", "custom_tool_call_output"])
        return item(
            form, call_id=call, output=rng.choice([json.dumps(answer), "words", [{"text": json.dumps(answer)}]])
        )
    if kind == 13:
        named = {"agent_thread_id": thread, "agent_path": path, "kind": rng.choice(["started", "interacted"])}
        return event("sub_agent_activity", event_id=rng.choice([call, "exec-1"]), **named)
    if kind == 14:
        return event("collab_agent_spawn_end", call_id=rng.choice([call, "exec-1"]), new_thread_id=thread)
    if kind == 15:
        return event("collab_waiting_end", statuses={thread: rng.choice([{"completed": "x"}, "running"])})
    if kind == 16:
        return rng.choice([item("agent_message", **envelope), line("inter_agent_communication", **envelope)])
    return rng.choice([line("compacted", message="x"), line("turn_context", model="n", turn_id=rng.choice(TURNS))])


def codex_files(rng: random.Random) -> Files:
    files: Files = {}
    for thread in (ROOT, KID, OTHER):
        if thread != ROOT and rng.random() < 0.3:
            continue
        at = rng.uniform(0, 20)
        head: Record = {"id": thread}
        if thread != ROOT:
            spawn = {"parent_thread_id": ROOT} | maybe(rng, 0.6, agent_path=rng.choice(PATHS))
            head |= maybe(rng, 0.8, source={"subagent": {"thread_spawn": spawn}})
            head |= maybe(rng, 0.4, forked_from_id=ROOT)
            head |= maybe(rng, 0.2, subagent_history_start_ordinal=rng.choice([0, 5, "9", None, "x"]))
        rows: list[Record] = [{"timestamp": stamp(at), "type": "session_meta", "payload": head}]
        if thread != ROOT and rng.random() < 0.4:
            rows.append({"timestamp": stamp(at), "type": "session_meta", "payload": {"id": ROOT}})
        total = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens"), 0)
        calls: list[str] = []
        for _ in range(rng.randrange(60)):
            at += rng.choice([0.0, 0.0, 0.01, 1.0, 9.0])
            rows.append(codex_line(rng, at, total, calls))
        if rng.random() < 0.3:
            rows = [row | {"ordinal": number} for number, row in enumerate(rows)]
        files[f"rollout-2026-05-01T10-00-00-{thread}.jsonl"] = rows
    return files


def read(folder: Path, files: Files) -> Lowered:
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_graph([folder], options=LoweringOptions(block_size=16))


def outcome(lowered: Lowered) -> tuple[str, list[str]]:
    """Return what came of it, paths aside; reading and proving may end in findings only."""
    items = lowered.findings.items
    digest = ""
    if lowered.graph is None:
        assert lowered.findings.errors
    else:
        digest = graph_digest(lowered.graph)
        try:
            items = prove(lowered.graph, lowered.findings).findings
            assert not lowered.findings.errors
        except InvalidInput as error:
            items = error.findings.items
            # Whatever the records say, what a reader makes of them holds together.
            assert lowered.findings.errors, [str(item) for item in items][:5]
    assert all(str(item).isprintable() for item in items)
    return digest, [f"{item.code} {item.where.line} {item.found}" for item in items]


@pytest.mark.parametrize("make", [claude_files, codex_files])
def test_sessions_put_together_at_random_end_in_findings(
    tmp_path: Path, make: Callable[[random.Random], Files]
) -> None:
    seconds = float(os.environ.get("FUZZ_SECONDS", "0")) / 2
    seed = int(os.environ.get("FUZZ_SEED", str(time.time_ns() if seconds else 1)))
    deadline = time.monotonic() + seconds
    done = 0
    while done < CASES or time.monotonic() < deadline:
        files = make(random.Random(f"{seed}:{done}"))
        begin = time.monotonic()
        try:
            first = outcome(read(tmp_path / f"{done}a", files))
            assert time.monotonic() - begin < CASE_SECONDS_MAX
            # The same records give the same, whatever was read before.
            assert outcome(read(tmp_path / f"{done}b", files)) == first
        except BaseException:
            print(f"FUZZ_SEED={seed}, case {done} of {make.__name__}")
            raise
        done += 1
    print(f"{done} cases of {make.__name__}, FUZZ_SEED={seed}")
