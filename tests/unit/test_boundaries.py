"""Rules at their edges: one step before, at, and one step behind the instant at which a rule changes its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lowered import edges, graph_of
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_lowering.chains import MAX_RUNS, BlockIds, PrefixChain
from playproof_lowering.streams import Call, Prompts, split_streams
from playproof_lowering.weka import _milliseconds
from playproof_spec.graph import Graph, Relation
from playproof_spec.units import ms_to_ns
from recorders import CHILD, ROOT, Recorder, Rollout, lowered_rollouts, lowered_sessions

# Joins of Weka recordings --------------------------------------------------------------------------------------------


def call(t: float, *ids: int, api: float = 1.0) -> dict[str, Any]:
    fields = {"t": t, "type": "n", "model": "m", "in": 16 * len(ids) + 5, "out": 5, "hash_ids": list(ids)}
    return fields | {"api_time": api}


def agent(t: float, *requests: dict[str, Any], duration_ms: int | None = None) -> dict[str, Any]:
    fields = {"t": t, "type": "subagent", "agent_id": "a", "subagent_type": "Explore", "status": "completed"}
    return fields | {"requests": list(requests)} | ({} if duration_ms is None else {"duration_ms": duration_ms})


def weka(folder: Path, marker: str, *requests: dict[str, Any]) -> Graph:
    record = {"id": "x", "block_size": 16, "hash_id_scope": "local", "requests": list(requests)}
    (folder / "play.json").write_text(json.dumps(record))
    options = LoweringOptions(subagent_marker=marker, nested_timestamp_basis="relative")  # type: ignore[arg-type]
    return graph_of(load_graph([folder], options=options))


def joined(graph: Graph) -> list[str]:
    """Return the requests that a join leads to."""
    return [graph.edge(int(edge)).target for edge in (graph.edge_relation == Relation.JOIN).nonzero()[0]]


@pytest.mark.parametrize(
    ("starts_at", "target"),
    [
        # The child runs from 2 s for 6,000 ms.
        (7.999, "play:outer:3"),
        (8.0, "play:outer:2"),
        (8.001, "play:outer:2"),
        # Instants are told apart down to a microsecond, and not below.
        (8.0 - 3e-6, "play:outer:3"),
        (8.0 - 0.5e-6, "play:outer:2"),
    ],
)
def test_a_request_joins_a_child_from_the_step_at_which_its_duration_is_over(
    tmp_path: Path, starts_at: float, target: str
) -> None:
    child = agent(2.0, call(0.0, 50, api=3.0), duration_ms=6000)
    requests = [call(0, 1), child, call(starts_at, 1, 2), call(20, 1, 2, 3)]
    assert joined(weka(tmp_path, "spawn", *requests)) == [target]


@pytest.mark.parametrize(
    ("last_ends_at", "starts_at", "target"),
    [
        # The last request of the child ends one step behind its duration, at 8.001 s, or one before it.
        (6.001, 8.0, "play:outer:3"),
        (6.001, 8.001, "play:outer:2"),
        (5.999, 8.0, "play:outer:2"),
        (5.999, 7.999, "play:outer:3"),
    ],
)
def test_a_join_waits_for_the_childs_last_request_and_for_its_duration(
    tmp_path: Path, last_ends_at: float, starts_at: float, target: str
) -> None:
    child = agent(2.0, call(0.0, 50), call(4.0, 50, 51, api=last_ends_at - 4.0), duration_ms=6000)
    requests = [call(0, 1), child, call(starts_at, 1, 2), call(20, 1, 2, 3)]
    graph = weka(tmp_path, "spawn", *requests)
    assert joined(graph) == [target]
    (edge,) = [edge for edge in edges(graph, target) if "join" in edge]
    target_s = starts_at if target.endswith("2") else 20.0
    assert edge == f"play:outer:1:inner:1 —join/completion +{round(1000 * (target_s - 2 - last_ends_at), 6) + 0.0:g} ms"


@pytest.mark.parametrize(("last_ends_at", "refused"), [(6.0, False), (6.001, False), (6.0011, True), (6.002, True)])
def test_a_childs_last_request_may_end_one_step_behind_its_duration(
    tmp_path: Path, last_ends_at: float, refused: bool
) -> None:
    """Durations are written in whole milliseconds, times are not."""
    child = agent(2.0, call(0.0, 50, api=last_ends_at), duration_ms=6000)
    record = {"id": "x", "block_size": 16, "hash_id_scope": "local", "requests": [call(0, 1), child, call(20, 1, 2)]}
    (tmp_path / "play.json").write_text(json.dumps(record))
    options = LoweringOptions(subagent_marker="spawn", nested_timestamp_basis="relative")
    result = load_graph([tmp_path], options=options)
    assert ("subagent-ends-early" in result.findings.counts) == refused
    if not refused:
        assert joined(graph_of(result)) == ["play:outer:2"]


def test_a_join_never_goes_back_past_its_marker(tmp_path: Path) -> None:
    """Entries need not stand in the order of their times: the request at 20 s stands before the second marker."""
    first = agent(1.0, call(0.0, 50), duration_ms=1000)
    second = agent(4.0, call(0.0, 60), duration_ms=4000) | {"agent_id": "b"}
    requests = [call(0, 1), first, call(20, 1, 3, 2), call(3, 1, 3), second, call(30, 1, 3, 2, 4)]
    graph = weka(tmp_path, "spawn", *requests)
    assert [edge for edge in edges(graph, "play:outer:2") if "join" in edge] == [
        "play:outer:1:inner:0 —join/completion +18000 ms"
    ]
    assert [edge for edge in edges(graph, "play:outer:5") if "join" in edge] == [
        "play:outer:4:inner:0 —join/completion +25000 ms"
    ]


# Joins of sessions ---------------------------------------------------------------------------------------------------


def claude_background(folder: Path, second: float, service: float) -> Graph:
    """A background agent has a call until 9 s, and one from `second` on; a notification arrives at 20 s."""
    main, own = Recorder(), Recorder(agent="x")
    launched = {"isAsync": True, "status": "async_launched", "agentId": "x"}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(3, "t1", launched), main.call(4, "c2", 60)]
    rows += [main.user(20, "<task-notification><task-id>x</task-id></task-notification>"), main.call(22, "c3", 80)]
    calls = [own.user(5), own.call(9, "a1", 24), own.user(second), own.call(second + service, "a2", 40)]
    return graph_of(lowered_sessions(folder, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": calls}))


def codex_child(folder: Path, second: float, service: float) -> Graph:
    """The same of a Codex thread, whose result a wait returns at 20 s."""
    parent = Rollout().user(1).tool(2, "spawn_agent", "f1")
    parent.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD).output(2.2, "f1").tokens(3, 40)
    parent.tool(4, "wait_agent", "f2").tokens(4.1, 60)
    parent.event(20, "collab_waiting_end", call_id="f2", statuses={CHILD: {"completed": "x"}}).output(20, "f2")
    parent.add(21, "response_item", type="reasoning").tokens(22, 80)
    child = Rollout(CHILD, parent_thread_id=ROOT).user(5).tokens(9, 24).user(second).tokens(second + service, 40)
    return graph_of(lowered_rollouts(folder, root=parent, child=child))


@pytest.mark.parametrize("reader", [claude_background, codex_child])
@pytest.mark.parametrize(
    ("second", "service", "answered_by"),
    [
        # A call that begins a millisecond before its parent's next one belongs to the answer; it still runs.
        (19.999, 4.0, 1),
        (19.0, 1.0, 1),
        # One that begins with it does not, unless it was over at that instant.
        (20.0, 4.0, 0),
        (20.0, 0.001, 0),
        (20.0, 0.0, 1),
        (20.001, 0.0, 0),
    ],
)
def test_a_call_that_begins_with_the_parents_next_one_is_not_what_that_answers(
    tmp_path: Path, reader: Any, second: float, service: float, answered_by: int
) -> None:
    graph = reader(tmp_path, second, service)
    sources = [str(graph.edge(int(e)).source) for e in (graph.edge_relation == Relation.JOIN).nonzero()[0]]
    assert [int(source.rpartition(":")[2]) for source in sources] == [answered_by]


@pytest.mark.parametrize("reader", [claude_background, codex_child])
def test_a_child_that_begins_at_its_parents_end_was_spawned_by_the_completion(tmp_path: Path, reader: Any) -> None:
    del reader
    for number, (at, trigger) in enumerate(((2.999, "dispatch"), (3.0, "completion"), (3.001, "completion"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        parent = Rollout().user(1).tool(2, "spawn_agent", "f1")
        parent.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD).output(2.2, "f1").tokens(3, 40)
        child = Rollout(CHILD, parent_thread_id=ROOT).user(at).tokens(9, 24)
        (edge,) = edges(graph_of(lowered_rollouts(folder, root=parent, child=child)), f"{ROOT}:{CHILD}:0")
        assert f"spawn/{trigger}" in edge
        main, own = Recorder(), Recorder(agent="x")
        rows = [main.user(1), main.call(3, "c1", 40, "t1")]
        files = {"s.jsonl": rows, "s/subagents/agent-x.jsonl": [own.user(at), own.call(9, "a1", 24)]}
        files["s/subagents/agent-x.meta.json"] = {"agentType": "x", "toolUseId": "t1"}  # type: ignore[assignment]
        (edge,) = edges(graph_of(lowered_sessions(folder / "claude", files)), "s:agent:x:0")
        assert f"spawn/{trigger}" in edge


def test_a_codex_call_never_waits_for_a_thread_that_it_spawns_itself(tmp_path: Path) -> None:
    """The result stands before the spawn, and the thread's clock is behind its parent's."""
    parent = Rollout().event(0.8, "collab_waiting_end", call_id="f0", statuses={CHILD: {"completed": "x"}})
    parent.user(1).tool(2, "spawn_agent", "f1")
    parent.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD).output(2.2, "f1").tokens(3, 40)
    parent.user(4).tokens(5, 60)
    child = Rollout(CHILD, parent_thread_id=ROOT).user(0.2).tokens(0.5, 24)
    graph = graph_of(lowered_rollouts(tmp_path, root=parent, child=child))
    (spawned,) = edges(graph, f"{ROOT}:{CHILD}:0")
    assert spawned.startswith(f"{ROOT}:{ROOT}:0 —spawn/")
    assert [edges(graph, f"{ROOT}:{ROOT}:{number}") for number in range(2)] == [
        [],
        [f"{ROOT}:{ROOT}:0 —sequence/completion +1000 ms"],
    ]


DONE = {"status": "completed", "agentId": "x"}


def test_a_blocking_agent_answers_once(tmp_path: Path) -> None:
    """Its result stands in the file twice, and the agent went on in between: nothing waits for that."""
    main, own = Recorder(), Recorder(agent="x")
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(6, "t1", DONE), main.call(8, "c2", 60)]
    rows += [main.result(10, "t1", DONE), main.call(12, "c3", 80)]
    calls = [own.user(3), own.call(5, "a1", 24), own.user(9), own.call(9.5, "a2", 40)]
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": calls}))
    assert [edge for name in graph.request_ids for edge in edges(graph, name) if "join" in edge] == [
        "s:agent:x:0 —join/completion +1000 ms"
    ]


def test_a_result_before_the_call_that_asked_for_it_answers_nothing(tmp_path: Path) -> None:
    """Else that call would wait for the agent that it spawns itself."""
    main, own = Recorder(), Recorder(agent="x")
    rows = [main.user(1), main.call(2, "c0", 40, "t0"), main.result(3, "t1", DONE), main.call(4, "c1", 60, "t1")]
    rows += [main.user(8), main.call(9, "c2", 60)]
    files = {"s.jsonl": rows, "s/subagents/agent-x.jsonl": [own.user(5), own.call(6, "a1", 24)]}
    graph = graph_of(lowered_sessions(tmp_path, files))
    assert edges(graph, "s:agent:x:0") == ["s:main:1 —spawn/completion +1000 ms"]
    assert edges(graph, "s:main:1") == ["s:main:0 —sequence/completion +1000 ms"]


@pytest.mark.parametrize(("begins_at", "second_run"), [(9.999, False), (10.0, True), (10.001, True)])
def test_an_agent_that_is_called_again_runs_again_from_its_last_result_on(
    tmp_path: Path, begins_at: float, second_run: bool
) -> None:
    main, own = Recorder(), Recorder(agent="x")
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(10, "t1", DONE), main.call(10, "c2", 60, "t2")]
    rows += [main.result(14, "t2", DONE), main.call(16, "c3", 80)]
    calls = [own.user(3), own.call(5, "a1", 24), own.user(begins_at), own.call(12, "a2", 40)]
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": calls}))
    spawned = [edge for edge in edges(graph, "s:agent:x:1") if "spawn" in edge]
    assert spawned == ([f"s:main:1 —spawn/completion +{1000 * begins_at - 10_000:g} ms"] if second_run else [])
    joined_by = [name for name in graph.request_ids if any("x:1 —join" in edge for edge in edges(graph, name))]
    assert joined_by == ["s:main:2" if second_run else "s:main:1"]


# Ties between streams ------------------------------------------------------------------------------------------------


def streams(*calls: tuple[float, float, list[int]], models: str = "") -> list[list[int]]:
    """Split calls of (start, end, ids); return the orders of each stream's calls."""
    made = [
        Call(number, start, end, models[number] if models else "m", 100) for number, (start, end, _) in enumerate(calls)
    ]
    runs = [[(value, 1) for value in ids] for _, _, ids in calls]
    flat = [run for own in runs for run in own]
    prompts = Prompts(
        np.cumsum([0, *map(len, runs)]).astype(np.int64),
        np.array([first for first, _ in flat], dtype=np.uint64),
        np.array([count for _, count in flat], dtype=np.int64),
        1000,
    )
    return [[one.order for one in stream.calls] for stream in split_streams(made, prompts)]


def test_of_two_streams_whose_prompts_are_equal_prefixes_the_older_one_goes_on() -> None:
    # 1 and 2 run side by side behind 0, with one prompt; 3 could go on from either, and from neither before it ended.
    begin = [(0.0, 1.0, [1]), (2.0, 4.0, [1, 2]), (2.0, 4.0, [1, 2])]
    assert streams(*begin, (4.0, 5.0, [1, 2, 3])) == [[0, 1, 3], [2]]
    assert streams(*begin, (4.0, 5.0, [1, 2, 3]), (4.0, 5.0, [1, 2, 4])) == [[0, 1, 3], [2, 4]]
    # Of another length, or another model, there is no tie.
    assert streams(begin[0], begin[1], (2.0, 4.0, [1, 2, 3]), (4.0, 5.0, [1, 2, 3, 4])) == [[0, 1], [2, 3]]
    assert streams(*begin, (4.0, 5.0, [1, 2, 3]), models="nnmm") == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("end", "extends"), [(4.0, True), (4.0 + 0.5e-6, True), (4.0 + 3e-6, False)])
def test_a_stream_goes_on_from_the_instant_at_which_it_ended(end: float, extends: bool) -> None:
    split = streams((0.0, 1.0, [1]), (2.0, end, [1, 2]), (4.0, 5.0, [1, 2, 3]), (6.0, 7.0, [1, 2, 9]))
    assert (split[0][:3] == [0, 1, 2]) == extends


def test_of_two_waits_that_started_at_once_the_first_in_the_file_is_earlier() -> None:
    assert streams((2.0, 3.0, [1, 2]), (0.0, 1.0, [1]), (2.0, 3.0, [1, 3])) == [[1, 0], [2]]


def test_of_two_continuations_that_share_as_much_the_earlier_one_goes_on() -> None:
    # The context of 0 is rewritten behind its first two ids; 1 and 2 both begin with these, side by side.
    begin = (0.0, 1.0, [1, 2, 3])
    assert streams(begin, (2.0, 6.0, [1, 2, 4]), (3.0, 4.0, [1, 2, 5])) == [[0, 1], [2]]
    assert streams(begin, (3.0, 6.0, [1, 2, 4]), (2.0, 7.0, [1, 2, 5])) == [[0, 2], [1]]
    # One that shares more goes first, though it comes later; when both have ended, one follows the other.
    assert streams(begin, (2.0, 6.0, [1, 4]), (3.0, 4.0, [1, 2, 5])) == [[0, 2], [1]]
    assert streams(begin, (2.0, 2.5, [1, 2, 4]), (3.0, 4.0, [1, 2, 5])) == [[0, 1, 2]]


# Rounding ------------------------------------------------------------------------------------------------------------


def exact(ns: float) -> float | None:
    """Return the seconds that, times 10⁹, are exactly so many nanoseconds; None where no float is."""
    near = ns / 1e9
    return next((s for s in (near, np.nextafter(near, 1e9), np.nextafter(near, -1.0)) if s * 1e9 == ns), None)


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 0.75])
def test_seconds_are_rounded_to_the_nanosecond_and_halves_go_up(part: float) -> None:
    cases = [(whole, seconds) for whole in range(300) if (seconds := exact(whole + part)) is not None]
    assert len(cases) > 100
    # Odd and even ones alike: a half that went to the even one would show.
    assert {whole % 2 for whole, _ in cases} == {0, 1}
    for whole, seconds in cases:
        assert _milliseconds(seconds) == (whole + (part >= 0.5)) / 1e6


@pytest.mark.parametrize(("ns", "wanted"), [(0.5, 0), (1.5, 2), (2.5, 2), (3.5, 4), (0.5000001, 1), (2.4999999, 2)])
def test_milliseconds_of_half_a_nanosecond_go_to_the_even_one(ns: float, wanted: int) -> None:
    ms = ns / 1e6
    assert ms * 1_000_000 == ns
    assert ms_to_ns(ms) == wanted
    assert ms_to_ns(np.array([ms])).tolist() == [wanted]


def test_a_message_is_divided_without_losing_a_nanosecond(tmp_path: Path) -> None:
    """A millisecond among calls that wrote 1, 1 and 1 tokens: thirds of it, of which two are a nanosecond apart."""
    main = Recorder()
    row = main.call(1.001, "c1", 90)
    told = {"type": "message", "input_tokens": 30, "output_tokens": 1}
    row["message"]["usage"]["iterations"] = [told, told, told]
    result: Lowered = lowered_sessions(tmp_path, {"s.jsonl": [main.user(1), row]})
    graph = graph_of(result)
    assert graph.recorded_api_time_ms.tolist() == [0.333333, 0.333333, 0.333334]
    assert graph.not_before_ms.tolist() == [0.0, 0.333333, 0.666666]


# Prompts without hash ids --------------------------------------------------------------------------------------------


def test_a_conversation_has_256_pieces_before_it_begins_anew() -> None:
    ids = BlockIds()
    chain = PrefixChain(ids, 16)
    pieces = []
    kept = 1
    while not ids.cut:
        # It grows by two blocks, and goes back by one of them, so that each time one piece is left.
        for blocks in (kept + 2, kept + 1):
            ids.take(1)
            pieces.append(len(chain.extend(16 * blocks, 16 * blocks)))
        kept += 1
    assert (max(pieces), MAX_RUNS) == (256, 256)
    before = pieces[: pieces.index(256) + 1]
    assert before == sorted(before)
    assert pieces[len(before)] == 1


@pytest.mark.parametrize(("tokens", "kept"), [(39, 1), (40, 2), (41, 2)])
def test_a_prompt_as_long_as_the_one_before_it_begins_with_all_of_it(tokens: int, kept: int) -> None:
    """One that is shorter shares what the cache found: here 16 tokens."""
    chain = PrefixChain(BlockIds(), 16)
    assert chain.extend(40, 0) == [(0, 2)]
    assert chain.extend(tokens, 16)[0] == (0, kept)
