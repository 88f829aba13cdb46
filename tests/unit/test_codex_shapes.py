"""Codex rollouts in the shapes that interruptions, forks and newer versions give them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, load_graph
from playproof_spec.findings import Severity
from playproof_spec.graph import Graph, Relation
from recorders import Rollout, lowered_rollouts

ROOT, KID, KID2 = (f"019d0000-0000-7000-8000-0000000000{number}" for number in ("01", "50", "51"))
OWN = "019d0000-0001-7000-8000-000000000000"
OLDER = "019cffff-ffff-7fff-bfff-ffffffffffff"
RANDOM = "e3b0c442-98fc-4c14-9afb-f4c8996fb924"


def lowered(folder: Path, *rollouts: Rollout) -> Lowered:
    folder.mkdir(exist_ok=True)
    return lowered_rollouts(folder, **{rollout.lines[0]["payload"]["id"]: rollout for rollout in rollouts})


def calls_of(graph: Graph, thread: str = ROOT) -> list[tuple[int, int, float, float]]:
    """Return (tokens in, tokens out, start, service) of a thread's calls, in ms."""
    return [
        (
            int(graph.input_length[n]),
            int(graph.output_length[n]),
            float(graph.not_before_ms[n]),
            float(graph.recorded_api_time_ms[n]),
        )
        for n in range(graph.node_count)
        if graph.sessions[graph.node_session[n]] == thread
    ]


def think(rollout: Rollout, at: float) -> Rollout:
    return rollout.add(at, "response_item", type="reasoning")


def joins(graph: Graph) -> list[str]:
    """Return the join edges, with short names of threads."""
    found = [str(graph.edge(int(edge))) for edge in (graph.edge_relation == Relation.JOIN).nonzero()[0]]
    for name, short in ((ROOT, "R"), (KID2, "L"), (KID, "K")):
        found = [edge.replace(name, short) for edge in found]
    return sorted(found)


# Answers that are broken off -----------------------------------------------------------------------------------------

ENDS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "interrupted": [("turn_aborted", {"turn_id": RANDOM, "reason": "interrupted"})],
    "replaced": [("turn_aborted", {"reason": "replaced"})],
    "an error": [("error", {"message": "x", "codex_error_info": "other"})],
    "an error and the end": [("error", {"message": "x"}), ("task_complete", {"turn_id": RANDOM})],
    "the end alone": [("task_complete", {"turn_id": RANDOM, "last_agent_message": None})],
    "nothing": [],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("message", [False, True], ids=["no message", "message"])
@pytest.mark.parametrize("times", [1, 3])
def test_the_call_behind_a_broken_answer_starts_at_its_own_turn(
    tmp_path: Path, end: str, message: bool, times: int
) -> None:
    rollout = Rollout(ROOT).event(0, "task_started", turn_id=ROOT).call(1, 96)
    for number in range(times):
        at = 10.0 * (number + 1)
        think(rollout.event(at, "task_started", turn_id=RANDOM).user(at), at + 1)
        if message:
            rollout.user(at + 2)
        for kind, payload in ENDS[end]:
            rollout.event(at + 2, kind, **payload)
    rollout.event(60, "task_started", turn_id=OWN).user(60).event(60, "user_message", message="x")
    think(rollout, 61).tokens(62.5, 144)
    graph = graph_of(lowered(tmp_path, rollout))
    assert calls_of(graph) == [(96, 5, 0.0, 1000.0), (144, 5, 59000.0, 2500.0)]
    assert edges(graph, f"{ROOT}:{ROOT}:1") == [f"{ROOT}:{ROOT}:0 —sequence/completion +58000 ms"]


@pytest.mark.parametrize("end", [end for end in ENDS if end != "nothing"])
def test_an_answer_is_broken_off_where_versions_do_not_tell_turns(tmp_path: Path, end: str) -> None:
    rollout = think(Rollout(ROOT).call(1, 96).user(10), 11).user(11.5)
    for kind, payload in ENDS[end]:
        rollout.event(12, kind, **payload)
    think(rollout.user(60), 61).tokens(62.5, 144)
    assert calls_of(graph_of(lowered(tmp_path, rollout))) == [(96, 5, 0.0, 1000.0), (144, 5, 59000.0, 2500.0)]


def test_a_turn_without_an_input_of_its_own_starts_what_it_asks(tmp_path: Path) -> None:
    """What came in before the turn is what it begins with, as the message of an agent that wakes its parent."""
    rollout = (
        Rollout(ROOT).call(1, 96).add(5, "response_item", type="agent_message", author="/root/a", recipient="/root")
    )
    think(rollout.event(20, "task_started", turn_id=OWN), 21).tokens(22, 144)
    assert calls_of(graph_of(lowered(tmp_path, rollout)))[1] == (144, 5, 19000.0, 2000.0)


@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "only another turn begins"])
def test_what_a_broken_answer_would_have_seen_the_next_call_sees(tmp_path: Path, aborted: bool) -> None:
    parent = Rollout(ROOT).user(1).tool(2, "spawn_agent", "f1")
    parent.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=KID).output(2.2, "f1").tokens(3, 40)
    think(parent.user(4), 5).event(6, "collab_waiting_end", statuses={KID: {"completed": "x"}})
    if aborted:
        parent.event(7, "turn_aborted", reason="interrupted")
    think(parent.event(20, "task_started", turn_id=OWN).user(20), 21).tokens(22, 60).user(30).tokens(31, 80)
    child = think(Rollout(KID, parent_thread_id=ROOT).user(2.5), 3).tokens(5.5, 32)
    assert joins(graph_of(lowered(tmp_path, parent, child))) == ["R:K:0 —join/completion +14500 ms→ R:R:1"]


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("by", ["tool", "program"])
def test_what_a_broken_answer_spawned_hangs_at_no_call(tmp_path: Path, when: str, by: str) -> None:
    """Whether it is told before the answer is broken off, or behind."""
    parent = Rollout(ROOT).call(1, 40).user(3)
    if by == "tool":
        parent.tool(4, "spawn_agent", "f1")
    else:
        parent.add(4, "response_item", type="custom_tool_call", name="exec", call_id="f1", input="x")
    spawn = {"call_id": "f1" if by == "tool" else "exec-1", "new_thread_id": KID}
    if when == "before":
        parent.event(4.1, "collab_agent_spawn_end", **spawn)
    parent.event(5, "turn_aborted", reason="interrupted")
    if when == "behind":
        parent.event(5.1, "collab_agent_spawn_end", **spawn)
    parent.event(9, "task_started", turn_id=OWN).call(10, 60)
    child = Rollout(KID, parent_thread_id=ROOT).call(6, 32)
    result = lowered(tmp_path, parent, child)
    assert edges(graph_of(result), f"{ROOT}:{KID}:0") == []
    (item,) = [item for item in result.findings.items if item.code == "agent-unlinked"]
    assert "broken off" in item.message


# Copied histories ----------------------------------------------------------------------------------------------------


def fork(
    turns: list[str | None],
    own: str | None,
    *,
    head: dict[str, Any] | None = None,
    embedded: bool = False,
    stamp: float = 6.2,
    thread: str = KID,
) -> Rollout:
    """A child that begins with copied turns (None for one whose start is not copied), and has one call from 7 s."""
    source = {"subagent": {"thread_spawn": {"parent_thread_id": ROOT, "depth": 1}}}
    child = Rollout(thread)
    child.lines.clear()
    child.add(6.2, "session_meta", id=thread, source=source, **(head or {}))
    if embedded:
        child.add(6.2, "session_meta", id=ROOT)
    for number, turn in enumerate(turns):
        if turn is not None:
            child.event(stamp, "task_started", **({} if turn == "" else {"turn_id": turn}))
        child.add(stamp, "turn_context", model="gpt").user(stamp)
        think(child, stamp).tokens(stamp, 100 + 16 * number, 96)
    if own is not None:
        child.event(7, "task_started", **({} if own == "" else {"turn_id": own}))
    child.add(7, "turn_context", model="gpt").user(7)
    return think(child, 8).tokens(10, 30)


def parent_of(*threads: str) -> Rollout:
    rollout = Rollout(ROOT).event(0.5, "task_started", turn_id=ROOT).call(1, 100).user(4)
    think(rollout, 5)
    for number, thread in enumerate(threads):
        rollout.tool(5.5, "spawn_agent", f"f{number}")
        rollout.event(5.6, "collab_agent_spawn_end", call_id=f"f{number}", new_thread_id=thread)
    return rollout.tokens(6, 116)


FORKED = {"forked_from_id": ROOT}
HISTORIES: dict[str, tuple[list[str | None], dict[str, Any], bool]] = {
    "older turn": ([OLDER], FORKED, True),
    "the thread's own name": ([ROOT], FORKED, True),
    "random turn": ([RANDOM], FORKED, True),
    "named turn": (["auto-compact-7"], FORKED, True),
    "turn of version 1": (["f3b0c442-98fc-11ef-9afb-f4c8996fb924"], FORKED, True),
    "turn without an id": ([""], FORKED, True),
    "many": ([OLDER, RANDOM, "auto-compact-1", "", OLDER], FORKED, True),
    "only the head says it": ([RANDOM, RANDOM], FORKED, False),
    "only the parent's head shows it": ([RANDOM], {}, True),
    "last turn, older": ([OLDER], {}, False),
    "last turn, random": ([RANDOM], {}, False),
    "last turn, from within": ([None], {}, False),
    "last turns, from within": ([None, OLDER, "auto-compact-2"], {}, False),
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("stamp", [6.2, 6.25, 2.0], ids=["at the head's time", "a moment later", "at its own times"])
@pytest.mark.parametrize(
    "own",
    [OWN, "019d0000-0000-7000-8000-000000000060", "019d0000-0000-7000-8000-000000000000", OWN.upper()],
    ids=["later", "in the millisecond", "in it, with a lower id", "upper case"],
)
def test_a_copied_history_ends_with_the_first_turn_of_the_childs_own_age(
    tmp_path: Path, history: str, stamp: float, own: str
) -> None:
    turns, head, embedded = HISTORIES[history]
    child = fork(turns, own, head=head, embedded=embedded, stamp=stamp)
    result = lowered(tmp_path, parent_of(KID), child)
    graph = graph_of(result)
    assert [call[0] for call in calls_of(graph)] == [100, 116]
    assert calls_of(graph, KID) == [(30, 5, 6000.0, 3000.0)]
    assert "history-uncut" not in result.findings.counts
    # The copied lines are those before the turn's start, and one more is numbered from 1.
    starts = [n for n, line in enumerate(child.lines) if line["payload"].get("turn_id") == own]
    assert result.facts["codex_counts"]["replayed_lines"] == starts[0]  # type: ignore[index]


@pytest.mark.parametrize("own", [RANDOM, "review", "", None, OLDER])
@pytest.mark.parametrize("head", [FORKED, {}], ids=["forked", "spawned"])
def test_where_nothing_shows_the_end_of_a_history_nothing_of_it_counts(
    tmp_path: Path, own: str | None, head: dict[str, Any]
) -> None:
    result = lowered(tmp_path, parent_of(KID), fork([RANDOM], own, head=head, embedded=bool(head)))
    item = told(result, "history-uncut")
    assert (item.severity, item.where.ids) == (Severity.WARNING, (KID,))
    own_calls = calls_of(graph_of(result), KID)
    # Of a child that does not say that it is a fork, calls that took time are its own, unless an older turn began.
    assert own_calls == ([] if head or own == OLDER else [(30, 5, 6000.0, 3000.0)])


def test_a_child_of_an_old_version_that_has_no_turns_keeps_its_calls(tmp_path: Path) -> None:
    child = Rollout(KID, parent_thread_id=ROOT).call(7, 30).call(9, 40)
    result = lowered(tmp_path, parent_of(KID), child)
    assert [call[0] for call in calls_of(graph_of(result), KID)] == [30, 40]
    assert "history-uncut" not in result.findings.counts


def test_a_child_that_a_newer_version_goes_on_with_keeps_what_it_had(tmp_path: Path) -> None:
    """Its first calls took their time, so they are no copies, though no turn is told before them."""
    child = Rollout(KID, parent_thread_id=ROOT).call(7, 30).event(20, "task_started", turn_id=OWN).call(20, 40)
    assert [call[0] for call in calls_of(graph_of(lowered(tmp_path, parent_of(KID), child)), KID)] == [30, 40]


@pytest.mark.parametrize("written", [12, "12"])
def test_a_head_may_tell_the_first_own_line_by_number(tmp_path: Path, written: Any) -> None:
    child = fork([RANDOM, RANDOM], RANDOM, head={"subagent_history_start_ordinal": written} | FORKED, embedded=True)
    assert child.lines[12]["payload"].get("type") == "task_started"
    for number, line in enumerate(child.lines):
        line["ordinal"] = number
    result = lowered(tmp_path, parent_of(KID), child)
    assert calls_of(graph_of(result), KID) == [(30, 5, 6000.0, 3000.0)]
    assert "history-uncut" not in result.findings.counts


def test_a_reverted_threads_file_is_the_threads(tmp_path: Path) -> None:
    rollout = Rollout(ROOT).call(1, 40)
    name = f"rollout-2026-05-01T10-00-00-{ROOT}_{OWN}.jsonl"
    (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in rollout.lines))
    assert graph_of(load_graph([tmp_path])).request_ids == (f"{ROOT}:{ROOT}:0",)


# Spawns and answers of newer versions --------------------------------------------------------------------------------


def agent(thread: str, path: str, at: float, end: float, nested: bool = True) -> Rollout:
    spawn: dict[str, Any] = {"parent_thread_id": ROOT, "depth": 1}
    top: dict[str, Any] = {}
    (spawn if nested else top)["agent_path"] = path
    child = Rollout(thread)
    child.lines.clear()
    child.add(at, "session_meta", id=thread, source={"subagent": {"thread_spawn": spawn}}, **top)
    child.add(at, "turn_context", model="mini").user(at + 0.1)
    return think(child, at + 0.5).tokens(end, 32)


def output_of(path: str, how: str) -> Any:
    text = json.dumps({"task_name": path, "nickname": "N"})
    return [{"type": "input_text", "text": text}] if how == "parts" else text


def answer(rollout: Rollout, at: float, author: str, how: str) -> Rollout:
    envelope = {"author": author, "recipient": "/root", "other_recipients": [], "content": "x", "trigger_turn": False}
    if how == "agent message":
        return rollout.add(at, "response_item", type="agent_message", author=author, recipient="/root", content=[])
    if how == "line of its own":
        return rollout.add(at, "inter_agent_communication", **envelope)
    if how == "named assistant message":
        return rollout.add(at, "response_item", type="message", role="assistant", author=author, content=[])
    text = json.dumps(envelope)
    if how == "envelope in words":
        text = f"Message Type: FINAL_ANSWER\nTask name: /root\nSender: {author}\nPayload:\nx"
    if how == "notification":
        inner = json.dumps({"agent_path": author, "status": {"completed": "x"}})
        text = f"<subagent_notification>{inner}</subagent_notification>"
        return rollout.add(
            at, "response_item", type="message", role="user", content=[{"type": "input_text", "text": text}]
        )
    content = [{"type": "output_text", "text": text}]
    return rollout.add(at, "response_item", type="message", role="assistant", content=content)


HOW = [
    "agent message",
    "line of its own",
    "named assistant message",
    "assistant message",
    "envelope in words",
    "notification",
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("told_by", ["string", "parts", "arguments"])
@pytest.mark.parametrize("nested", [True, False])
def test_agents_are_found_by_their_paths_and_their_answers_join(
    tmp_path: Path, how: str, told_by: str, nested: bool
) -> None:
    parent = Rollout(ROOT).user(1)
    for number, name in enumerate(("a", "b")):
        arguments = json.dumps({"task_name": name}) if told_by == "arguments" else "{}"
        fields = {"name": "spawn_agent", "call_id": f"f{number}", "arguments": arguments}
        parent.add(2 + number, "response_item", type="function_call", **fields)
    parent.tokens(3.5, 80)
    for number, name in enumerate(("a", "b")):
        parent.output(3.6, f"f{number}", "taken out" if told_by == "arguments" else output_of(f"/root/{name}", told_by))
    think(parent, 5).tool(6, "wait_agent", "w").tokens(6.1, 96).output(12, "w", '{"timed_out": false}')
    think(answer(parent, 12, "/root/b", how), 13).tokens(14, 112)
    think(answer(parent, 20, "/root/a", how), 21).tokens(22, 128)
    children = agent(KID, "/root/a", 2.2, 19, nested), agent(KID2, "/root/b", 3.2, 11, nested)
    result = lowered(tmp_path, parent, *children)
    graph = graph_of(result)
    assert joins(graph) == ["R:K:0 —join/completion +1000 ms→ R:R:3", "R:L:0 —join/completion +1000 ms→ R:R:2"]
    assert edges(graph, f"{ROOT}:{KID}:0") == [f"{ROOT}:{ROOT}:0 —spawn/dispatch +1300 ms"]
    assert [call[2:] for call in calls_of(graph)] == [(0, 2500), (2600, 2500), (11000, 2000), (19000, 2000)]
    assert not {"agent-unlinked", "agent-unrecorded"} & result.findings.counts.keys()


def test_a_path_that_was_left_goes_to_the_next_agent(tmp_path: Path) -> None:
    parent = Rollout(ROOT)
    for number, at in enumerate((1, 31)):
        parent.user(at).tool(at + 1, "spawn_agent", f"f{number}").tokens(at + 2, 80)
        parent.output(at + 2.1, f"f{number}", json.dumps({"task_name": "/root/a"}))
        answer(think(parent, at + 3).tokens(at + 4, 96), at + 15, "/root/a", "agent message")
        think(parent, at + 16).tokens(at + 17, 112)
    result = lowered(tmp_path, parent, agent(KID, "/root/a", 2.5, 14), agent(KID2, "/root/a", 32.5, 44))
    assert joins(graph_of(result)) == [
        "R:K:0 —join/completion +2000 ms→ R:R:2",
        "R:L:0 —join/completion +2000 ms→ R:R:5",
    ]


def test_the_models_own_words_are_an_output(tmp_path: Path) -> None:
    """Also where they look like an envelope, but name nobody, or the thread itself."""
    for number, text in enumerate(['{"author": 5, "recipient": "/root"}', "Sender: /root/a", '{"author": "x"}', "{"]):
        rollout = Rollout(ROOT).user(1)
        rollout.add(
            3, "response_item", type="message", role="assistant", content=[{"type": "output_text", "text": text}]
        )
        graph = graph_of(lowered(tmp_path / str(number), rollout.tokens(4, 40)))
        assert calls_of(graph) == [(40, 5, 0.0, 3000.0)]


@pytest.mark.parametrize("event", ["sub_agent_activity", "collab_agent_spawn_end"])
@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("when", ["while it runs", "while it is waited for", "behind its output"])
def test_a_program_that_runs_spawns_for_the_call_that_wrote_it(
    tmp_path: Path, event: str, agents: int, when: str
) -> None:
    parent = think(Rollout(ROOT).user(1), 2)
    parent.add(3, "response_item", type="custom_tool_call", name="exec", call_id="c1", input="x").tokens(3.05, 80)
    spawner = 0
    if when != "while it runs":
        parent.add(3.08, "response_item", type="custom_tool_call_output", call_id="c1", output="x")
    if when == "while it is waited for":
        think(parent, 3.2).add(3.3, "response_item", type="function_call", name="wait", call_id="c2").tokens(3.4, 90)
        spawner = 1
    threads = [(KID, "/root/a"), (KID2, "/root/b")][:agents]
    for number, (thread, path) in enumerate(threads):
        named = {"event_id": f"exec-{number}", "agent_thread_id": thread, "agent_path": path, "kind": "started"}
        spawned = {"call_id": f"exec-{number}", "new_thread_id": thread}
        parent.event(3.5, event, **(named if event == "sub_agent_activity" else spawned))
    if when != "behind its output":
        call, kind = ("c2", "function_call_output") if spawner else ("c1", "custom_tool_call_output")
        parent.add(4, "response_item", type=kind, call_id=call, output="x")
    for _, path in threads:
        answer(parent, 12, path, "agent message")
    think(parent, 13).tokens(14, 112)
    children = [agent(thread, path, 3.5, 11) for thread, path in threads]
    graph = graph_of(lowered(tmp_path, parent, *children))
    for thread, _ in threads:
        (edge,) = edges(graph, f"{ROOT}:{thread}:0")
        assert edge.startswith(f"{ROOT}:{ROOT}:{spawner} —spawn/completion")
    assert len(joins(graph)) == agents


def test_an_event_of_an_unknown_call_without_a_program_is_no_spawn(tmp_path: Path) -> None:
    parent = Rollout(ROOT).call(1, 80).event(3, "sub_agent_activity", event_id="e", agent_thread_id=KID, kind="started")
    parent.add(4, "response_item", type="custom_tool_call", name="apply_patch", call_id="p").tokens(5, 90)
    parent.event(6, "collab_agent_spawn_end", call_id="e2", new_thread_id=KID)
    result = lowered(tmp_path, parent, Rollout(KID, parent_thread_id=ROOT).call(7, 32))
    assert told(result, "agent-unlinked").where.ids == (ROOT, KID)


# Usage records -------------------------------------------------------------------------------------------------------


def usage(tokens: int, output: int = 5, cached: int = 0) -> dict[str, int]:
    counts = {"input_tokens": tokens, "cached_input_tokens": cached, "output_tokens": output}
    return counts | {"reasoning_output_tokens": 0, "total_tokens": tokens + output}


# The last turn begins with more than all of the one before it: its counter has begun anew, and has not fallen.
TURNS = [[96, 112, 128], [100], [240, 56]]


def recorded(forms: set[str], counts: bool, again: bool = False, order: str = "record first") -> Rollout:
    """Turns of calls, told by usage records of these forms, and by token counts too."""
    rollout = Rollout(ROOT)
    thread = 0
    at = 1.0
    for number, turn in enumerate(TURNS):
        rollout.event(at, "task_started", turn_id=f"turn-{number}")
        of_turn = 0
        for step, tokens in enumerate(turn):
            think(rollout.user(at + 1), at + 2)
            of_turn, thread = of_turn + tokens, thread + tokens
            told_of: dict[str, Any] = {"turn_id": f"turn-{number}", "response_id": f"r{number}-{step}"}
            if "usage" in forms:
                told_of["usage"] = usage(tokens)
            if "turn" in forms:
                told_of["turn_token_usage"] = usage(of_turn, 5 * (step + 1))
            if "thread" in forms:
                told_of["thread_token_usage"] = usage(thread, 5 * sum(map(len, TURNS[:number])) + 5 * (step + 1))
            for name in ("turn_id", "response_id"):
                if f"no {name}" in forms:
                    del told_of[name]
            if counts and order != "record first":
                rollout.tokens(at + 3, tokens)
            for _ in range(2 if again else 1):
                rollout.add(at + 3, "token_usage_record", **told_of)
            if counts and order == "record first":
                rollout.tokens(at + 3, tokens)
            at += 10
    return rollout


@pytest.mark.parametrize(
    "forms",
    [
        {"usage"},
        {"turn"},
        {"thread"},
        {"usage", "turn", "thread"},
        {"turn", "no turn_id"},
        {"turn", "thread", "no response_id"},
        {"usage", "turn", "no response_id", "no turn_id"},
    ],
    ids=lambda forms: "+".join(sorted(forms)),
)
@pytest.mark.parametrize("counts", [None, "record first", "count first"])
@pytest.mark.parametrize("again", [False, True])
def test_usage_records_tell_calls_with_and_without_token_counts(
    tmp_path: Path, forms: set[str], counts: str | None, again: bool
) -> None:
    # A response's own usage that comes again without an id or a counter beside it is another response's.
    again = again and not forms >= {"usage", "no response_id"}
    rollout = recorded(forms, counts is not None, again, counts or "record first")
    result = lowered(tmp_path, rollout)
    wanted = [(tokens, 5, 10_000.0 * number, 2000.0) for number, tokens in enumerate(itertools.chain(*TURNS))]
    assert calls_of(graph_of(result)) == wanted


def test_a_call_that_only_a_record_tells_counts_beside_those_that_both_tell(tmp_path: Path) -> None:
    """A compaction on the provider's side has a record, and no count and no item."""
    rollout = (
        think(Rollout(ROOT).user(1), 2).add(3, "token_usage_record", response_id="a", usage=usage(96)).tokens(3, 96)
    )
    rollout.add(9, "token_usage_record", response_id="b", usage=usage(300, 20)).add(9, "compacted", message="x")
    think(rollout.user(10), 11).add(12, "token_usage_record", response_id="c", usage=usage(96)).tokens(12, 96)
    assert [call[0] for call in calls_of(graph_of(lowered(tmp_path, rollout)))] == [96, 300, 96]


def test_a_record_of_another_thread_is_not_this_ones(tmp_path: Path) -> None:
    rollout = Rollout(ROOT).call(1, 40).add(3, "token_usage_record", thread_id=KID, usage=usage(96))
    assert [call[0] for call in calls_of(graph_of(lowered(tmp_path, rollout)))] == [40]


@pytest.mark.parametrize(
    ("payload", "field", "found"),
    [
        ({"usage": usage(-1)}, "payload.usage.input_tokens", "-1"),
        ({"usage": {"input_tokens": "x"}}, "payload.usage.input_tokens", '"x"'),
        ({"turn_token_usage": usage(2**31)}, "payload.turn_token_usage.input_tokens", str(2**31)),
        ({"thread_token_usage": usage(2**60)}, "payload.thread_token_usage.input_tokens", str(2**60)),
        ({"response_id": 5}, "payload.response_id", "5"),
    ],
)
def test_a_broken_usage_record_is_told(tmp_path: Path, payload: dict[str, Any], field: str, found: str) -> None:
    result = lowered(tmp_path, Rollout(ROOT).call(1, 40).user(3).add(5, "token_usage_record", **payload))
    errors = [item for item in result.findings.items if item.severity is Severity.ERROR]
    assert [(item.where.line, item.where.field, item.found) for item in errors] == [(7, field, found)]


def test_a_record_without_usage_is_a_call_without_a_prompt(tmp_path: Path) -> None:
    result = lowered(tmp_path, Rollout(ROOT).call(1, 40).user(3).add(5, "token_usage_record", turn_id="x"))
    assert told(result, "call-without-usage").where.line == 7


def test_halves_of_characters_are_counted(tmp_path: Path) -> None:
    rollout = Rollout(ROOT).call(1, 40)
    lowered(tmp_path, rollout)
    path = next(tmp_path.iterdir())
    path.write_text(path.read_text().replace('"content": []', '"content": "\\ud83d"'))
    assert told(load_graph([tmp_path]), "surrogate-lone").where.line == 3
