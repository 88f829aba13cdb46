"""Codex rollouts: what a call is, where a copied history ends, spawns, joins, and the public rollouts."""

from __future__ import annotations

import csv
import itertools
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, load_graph
from playproof_spec.findings import Severity
from playproof_spec.graph import Graph, Relation
from recorders import CHILD, LATER, ROOT, Rollout
from recorders import lowered_rollouts as lowered


def counts_of(result: Lowered) -> dict[str, int]:
    counts = result.facts["codex_counts"]
    assert isinstance(counts, dict)
    return counts


def test_without_a_last_count_the_difference_of_the_totals_is_the_call(tmp_path: Path) -> None:
    rollout = Rollout().user(1).tokens(2, 40, last=False).user(3).tokens(4, 72, last=False)
    assert graph_of(lowered(tmp_path, root=rollout)).input_length.tolist() == [40, 72]


def test_the_model_is_the_turns(tmp_path: Path) -> None:
    rollout = Rollout().call(1, 40).add(3, "turn_context", model="mini").call(4, 50)
    assert graph_of(lowered(tmp_path, root=rollout)).models == ("gpt", "mini")


def test_a_parent_given_by_the_child_alone_is_a_play_with_an_unlinked_child(tmp_path: Path) -> None:
    child = Rollout(CHILD, source={"subagent": {"thread_spawn": {"parent_thread_id": ROOT}}}).call(5, 40)
    result = lowered(tmp_path, root=Rollout().call(1, 40), child=child)
    graph = graph_of(result)
    assert [play.play_id for play in graph.plays] == [ROOT]
    assert told(result, "agent-unlinked").where.ids == (ROOT, CHILD)
    assert edges(graph, f"{ROOT}:{CHILD}:0") == []


def test_a_child_without_its_parent_is_a_play_of_its_own(tmp_path: Path) -> None:
    child = Rollout(CHILD, parent_thread_id=ROOT).call(5, 40)
    result = lowered(tmp_path, child=child)
    assert graph_of(result).plays[0].play_id == CHILD
    assert told(result, "parent-missing").found == ROOT


def test_a_fork_of_an_unknown_parent_counts_its_own_calls_only(tmp_path: Path) -> None:
    child = Rollout(CHILD, forked_from_id=ROOT).call(1, 40).event(2, "task_started", turn_id=ROOT).call(3, 50)
    child.event(5, "task_started", turn_id=LATER).tokens(5.1, 0, output=0).call(6, 60)
    result = lowered(tmp_path, child=child)
    assert graph_of(result).input_length.tolist() == [60]
    assert counts_of(result)["replayed_lines"] == 9


def test_a_history_without_an_end_counts_nothing_and_says_so(tmp_path: Path) -> None:
    child = Rollout(CHILD, forked_from_id=ROOT).call(1, 40)
    result = lowered(tmp_path, root=Rollout().call(1, 40), child=child)
    assert told(result, "history-uncut").where.ids == (CHILD,)
    assert graph_of(result).node_count == 1


@pytest.mark.parametrize("first", ["own", "parent's"])
def test_of_two_heads_the_one_with_the_files_own_id_is_canonical(tmp_path: Path, first: str) -> None:
    rollout = Rollout(CHILD if first == "own" else ROOT)
    rollout.add(
        0, "session_meta", id=ROOT if first == "own" else CHILD, forked_from_id=ROOT if first != "own" else None
    )
    rollout.call(1, 40).event(3, "task_started", turn_id=LATER).call(4, 60)
    result = lowered(tmp_path, child=rollout)
    graph = graph_of(result)
    assert graph.request_ids == (f"{CHILD}:{CHILD}:0",)
    assert graph.input_length.tolist() == [60]


def test_a_failed_spawn_has_no_child(tmp_path: Path) -> None:
    rollout = Rollout().user(1).tool(2, "spawn_agent", "f1")
    rollout.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=None).output(2.2, "f1").tokens(3, 40)
    result = lowered(tmp_path, root=rollout)
    graph_of(result)
    assert counts_of(result)["spawns_failed"] == 1


def family(end: float) -> Rollout:
    """A parent that spawns the child at its first call and waits for it in its second, until `end`."""
    rollout = Rollout().user(1).tool(2, "spawn_agent", "f1")
    rollout.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD).output(2.2, "f1").tokens(3, 40)
    rollout.tool(4, "wait_agent", "f2").tokens(4.1, 60)
    rollout.event(end, "collab_waiting_end", call_id="f2", statuses={CHILD: {"completed": "x"}}).output(end, "f2")
    return rollout


def test_each_result_is_joined_where_the_parent_first_saw_it(tmp_path: Path) -> None:
    parent = family(10).tool(11, "send_input", "f3").tokens(12, 80).output(12.5, "f3")
    parent.tool(13, "wait_agent", "f4").tokens(13.1, 90)
    parent.event(30, "collab_waiting_end", call_id="f4", statuses={CHILD: {"completed": "y"}}).output(30, "f4")
    parent.tokens(31, 100)
    child = Rollout(CHILD, parent_thread_id=ROOT).call(2.5, 40).call(7, 50).call(20, 60)
    graph = graph_of(lowered(tmp_path, root=parent, child=child))
    joins = [str(graph.edge(int(edge))) for edge in (graph.edge_relation == Relation.JOIN).nonzero()[0]]
    assert joins == [
        f"{ROOT}:{CHILD}:1 —join/completion +2000 ms→ {ROOT}:{ROOT}:2",
        f"{ROOT}:{CHILD}:2 —join/completion +9000 ms→ {ROOT}:{ROOT}:4",
    ]


def test_a_wait_that_timed_out_joins_nothing(tmp_path: Path) -> None:
    parent = family(10)
    parent.lines[-2]["payload"]["statuses"] = {CHILD: "running"}
    parent.tokens(31, 100)
    child = Rollout(CHILD, parent_thread_id=ROOT).call(2.5, 40)
    graph = graph_of(lowered(tmp_path, root=parent, child=child))
    assert not (graph.edge_relation == Relation.JOIN).any()


def test_a_notification_is_a_way_to_see_a_result(tmp_path: Path) -> None:
    parent = Rollout().user(1).tool(2, "spawn_agent", "f1")
    parent.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD).output(2.2, "f1").tokens(3, 40)
    text = f'<subagent_notification>{{"agent_id": "{CHILD}", "status": {{"completed": "x"}}}}</subagent_notification>'
    parent.add(9, "response_item", type="message", role="user", content=[{"type": "input_text", "text": text}])
    parent.add(10, "response_item", type="reasoning").tokens(11, 60)
    child = Rollout(CHILD, parent_thread_id=ROOT).call(2.5, 40)
    graph = graph_of(lowered(tmp_path, root=parent, child=child))
    assert f"{ROOT}:{CHILD}:0 —join/completion +5500 ms" in edges(graph, f"{ROOT}:{ROOT}:1")


def interrupted(user_event: bool = False, text: str = "x", absent: bool = False) -> Rollout:
    """A parent whose wait is broken off at 5 s, and which is told something without a text at 9 s."""
    parent = Rollout().user(1).tool(2, "spawn_agent", "f1")
    parent.event(2.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD).output(2.2, "f1")
    if absent:
        parent.tool(2.3, "spawn_agent", "f3").event(2.4, "collab_agent_spawn_end", call_id="f3", new_thread_id=LATER)
    parent.tokens(3, 40).tool(4, "wait_agent", "f2").tokens(4.1, 60).output(5, "f2", "aborted")
    content = [{"type": "input_text", "text": text}]
    parent.add(9, "response_item", type="message", role="user", content=content)
    if user_event:
        parent.event(9, "user_message", message="x")
    return parent.event(9.1, "token_count", info={"total_token_usage": dict(parent.totals)})


def answering() -> Rollout:
    return Rollout(CHILD, parent_thread_id=ROOT).call(2.5, 40).event(8, "task_complete", turn_id=CHILD)


def test_a_notification_without_a_text_is_of_the_only_agent_whose_answer_was_due(tmp_path: Path) -> None:
    parent = interrupted().add(10, "response_item", type="reasoning").tokens(11, 80)
    result = lowered(tmp_path, root=parent, child=answering())
    assert f"{ROOT}:{CHILD}:0 —join/completion +5500 ms" in edges(graph_of(result), f"{ROOT}:{ROOT}:2")
    item = told(result, "answer-inferred")
    assert (item.severity, item.found, item.where.ids) == (Severity.NOTE, "1", (ROOT, CHILD))
    assert counts_of(result)["answers_inferred"] == 1


@pytest.mark.parametrize(
    ("changes", "child"),
    [
        ({"user_event": True}, answering()),
        ({"text": "<turn_aborted>x</turn_aborted>"}, answering()),
        # An agent that is not in the corpus may have answered, too.
        ({"absent": True}, answering()),
        # The child has not answered by then.
        ({}, Rollout(CHILD, parent_thread_id=ROOT).call(2.5, 40).event(9.05, "task_complete", turn_id=CHILD)),
        ({}, Rollout(CHILD, parent_thread_id=ROOT).call(2.5, 40)),
    ],
    ids=["the user's own", "marked up", "two due", "too early", "never answered"],
)
def test_other_messages_are_not_taken_for_notifications(
    tmp_path: Path, changes: dict[str, Any], child: Rollout
) -> None:
    parent = interrupted(**changes).add(10, "response_item", type="reasoning").tokens(11, 80)
    result = lowered(tmp_path, root=parent, child=child)
    assert not (graph_of(result).edge_relation == Relation.JOIN).any()
    assert "answer-inferred" not in result.findings.counts


def test_a_notification_that_no_call_saw_joins_nothing(tmp_path: Path) -> None:
    result = lowered(tmp_path, root=interrupted(), child=answering())
    assert not (graph_of(result).edge_relation == Relation.JOIN).any()


def test_an_answer_that_was_seen_is_not_due_again(tmp_path: Path) -> None:
    parent = family(10)
    parent.add(10.1, "response_item", type="message", role="user", content=[{"type": "input_text", "text": "x"}])
    parent.event(10.2, "token_count", info={"total_token_usage": dict(parent.totals)})
    parent.add(11, "response_item", type="reasoning").tokens(12, 80).user(13).tokens(14, 90)
    result = lowered(tmp_path, root=parent, child=answering())
    assert int((graph_of(result).edge_relation == Relation.JOIN).sum()) == 1
    assert "answer-inferred" not in result.findings.counts


@pytest.mark.parametrize("how", ["closed", "listed", "listed while it works"])
def test_other_ways_to_see_a_result(tmp_path: Path, how: str) -> None:
    parent = Rollout().user(1).tool(2, "spawn_agent", "f1")
    parent.event(2.1, "sub_agent_activity", event_id="f1", agent_thread_id=CHILD, agent_path="/a", kind="started")
    parent.output(2.2, "f1").tokens(3, 40)
    if how == "closed":
        parent.tool(8, "close_agent", "f2")
        parent.event(9, "collab_close_end", call_id="f2", receiver_thread_id=CHILD, status={"completed": "x"})
    else:
        status = "running" if how == "listed while it works" else {"completed": "x"}
        parent.tool(8, "list_agents", "f2").output(
            9, "f2", json.dumps({"agents": [{"agent_name": "/a", "agent_status": status}]})
        )
    parent.tokens(9.1, 60).output(9.2, "f2").add(10, "response_item", type="reasoning").tokens(11, 80)
    graph = graph_of(lowered(tmp_path, root=parent, child=answering()))
    joins = [edge for edge in edges(graph, f"{ROOT}:{ROOT}:2") if "join" in edge]
    assert joins == ([] if how == "listed while it works" else [f"{ROOT}:{CHILD}:0 —join/completion +5700 ms"])


def test_agents_without_a_rollout_are_told(tmp_path: Path) -> None:
    result = lowered(tmp_path, root=family(10).tokens(11, 80))
    item = told(result, "agent-unrecorded")
    assert (item.severity, item.found, item.where.ids) == (Severity.NOTE, "1", (ROOT,))


def test_a_child_of_a_call_that_was_broken_off_is_not_tied_to_another(tmp_path: Path) -> None:
    parent = Rollout().call(1, 40).user(3).tool(4, "spawn_agent", "f1")
    parent.event(4.1, "collab_agent_spawn_end", call_id="f1", new_thread_id=CHILD)
    result = lowered(tmp_path, root=parent, child=Rollout(CHILD, parent_thread_id=ROOT).call(5, 40))
    assert edges(graph_of(result), f"{ROOT}:{CHILD}:0") == []
    assert "broken off" in told(result, "agent-unlinked").message


def test_totals_that_grow_by_no_prompt_are_told(tmp_path: Path) -> None:
    rollout = Rollout().call(1, 40).user(3).tokens(4, 0, output=7)
    result = lowered(tmp_path, root=rollout)
    item = told(result, "call-without-usage")
    assert (item.where.line, item.found, graph_of(result).node_count) == (7, "1", 1)


def test_what_another_threads_head_counted_is_forgotten(tmp_path: Path) -> None:
    """Its spawns, waits and compactions are that thread's."""
    rollout = Rollout(ROOT).user(1).tool(2, "spawn_agent", "f1").tool(2, "wait_agent", "f2")
    rollout.add(2.5, "compacted").tokens(3, 40).add(4, "session_meta", id=CHILD).call(5, 60)
    result = lowered(tmp_path, child=rollout)
    assert graph_of(result).request_ids == (f"{CHILD}:{CHILD}:0",)
    assert [counts_of(result)[name] for name in ("spawn_calls", "wait_calls", "compactions")] == [0, 0, 0]


def test_a_fork_shares_its_parents_blocks_if_it_asks_the_same_model(tmp_path: Path) -> None:
    for model, shared in (("gpt", 2), ("mini", 0)):
        child = Rollout(CHILD, parent_thread_id=ROOT, forked_from_id=ROOT)
        child.event(2.2, "task_started", turn_id=LATER).add(2.2, "turn_context", model=model).call(2.5, 64, cached=32)
        graph = graph_of(lowered(tmp_path, root=family(10), child=child))
        ids = {name: set(graph.hash_ids(number).tolist()) for number, name in enumerate(graph.request_ids)}
        assert len(ids[f"{ROOT}:{ROOT}:0"] & ids[f"{ROOT}:{CHILD}:0"]) == shared


def test_the_same_thread_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    lowered(tmp_path / "backup", root=Rollout().call(1, 40))
    result = lowered(tmp_path, root=Rollout().call(1, 40))
    assert told(result, "thread-duplicate").severity is Severity.ERROR


def test_threads_that_name_each_other_as_parents_make_no_circle(tmp_path: Path) -> None:
    one = Rollout(ROOT, parent_thread_id=CHILD).call(1, 40)
    two = Rollout(CHILD, parent_thread_id=ROOT).call(5, 40)
    graph = graph_of(lowered(tmp_path, root=one, child=two))
    assert len(graph.plays) == 1


def counted(name: str = "total_token_usage", **usage: Any) -> dict[str, Any]:
    info: dict[str, Any] = {"total_token_usage": {"input_tokens": 500}, name: usage}
    return {"payload": {"type": "token_count", "info": info}}


# What is changed in the last line; then the code, the field, what is found and what is wanted.
BROKEN: list[tuple[str, dict[str, Any], tuple[str, str, str, str]]] = [
    ("no instant", {"timestamp": "now"}, ("time-unreadable", "timestamp", "now", "ISO 8601")),
    ("no timestamp", {"timestamp": None}, ("field-missing", "timestamp", "nothing", "ISO 8601")),
    ("no type", {"type": None}, ("field-type", "type", "null", "str")),
    (
        "no totals",
        {"payload": {"type": "token_count", "info": {}}},
        ("field-missing", "payload.info.total_token_usage", "nothing", "an object"),
    ),
    (
        "a negative count",
        counted(input_tokens=-4),
        ("length-out-of-bounds", "payload.info.total_token_usage.input_tokens", "-4", f"0 … {2**53}"),
    ),
    (
        "a prompt without bound",
        counted("last_token_usage", input_tokens=2**31),
        ("length-out-of-bounds", "payload.info.last_token_usage.input_tokens", str(2**31), f"0 … {2**31 - 1}"),
    ),
    (
        "a count in words",
        counted(input_tokens="x"),
        ("field-type", "payload.info.total_token_usage.input_tokens", '"x"', "int"),
    ),
    (
        "a head without an id",
        {"type": "session_meta", "payload": {"source": "cli"}},
        ("field-missing", "payload.id", "nothing", "a string"),
    ),
    (
        "statuses in a list",
        {"payload": {"type": "collab_waiting_end", "statuses": []}},
        ("field-type", "payload.statuses", "[]", "object | null"),
    ),
    (
        "a call of no text",
        {"type": "response_item", "payload": {"type": "function_call", "call_id": 7}},
        ("field-type", "payload.call_id", "7", "str | null"),
    ),
]


@pytest.mark.parametrize(("changes", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_broken_lines_are_told_with_file_line_field_found_and_wanted(
    tmp_path: Path, changes: dict[str, Any], wanted: tuple[str, str, str, str]
) -> None:
    rollout = Rollout().call(1, 40).call(3, 50)
    rollout.lines[-1].update(changes)
    result = lowered(tmp_path, root=rollout)
    errors = [item for item in result.findings.items if item.severity is Severity.ERROR]
    assert [(item.code, item.where.field, item.found, item.wanted) for item in errors] == [wanted]
    assert (Path(errors[0].where.file).name, errors[0].where.line) == (f"rollout-2026-05-01T10-00-00-{ROOT}.jsonl", 8)


def test_a_total_without_bound_is_told_where_the_call_is_told_by_totals_alone(tmp_path: Path) -> None:
    rollout = Rollout().call(1, 40).user(3).tokens(4, 2**31, last=False)
    item = told(lowered(tmp_path, root=rollout), "length-out-of-bounds")
    assert (item.where.line, item.where.field) == (7, "payload.info.total_token_usage.input_tokens")


def test_a_name_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    rollout = Rollout().call(1, 40)
    lowered(tmp_path, root=rollout)
    path = next(tmp_path.iterdir())
    path.write_text(path.read_text().replace('"type": "token_count"', '"type": "x", "type": "token_count"'))
    item = told(load_graph([tmp_path]), "field-repeated")
    assert (item.where.line, item.where.field) == (5, "payload.type")


@pytest.mark.parametrize("source", ["exec", {"subagent": "review"}, {"subagent": {"thread_spawn": 5}}, {"other": 1}])
def test_sources_that_name_no_parent_are_roots(tmp_path: Path, source: Any) -> None:
    graph = graph_of(lowered(tmp_path, root=Rollout(source=source).call(1, 40)))
    assert graph.plays[0].play_id == ROOT


def test_a_head_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    rollout = Rollout().call(1, 40).add(3, "session_meta", id=ROOT, parent_thread_id=CHILD).call(4, 50)
    assert graph_of(lowered(tmp_path, root=rollout)).input_length.tolist() == [40, 50]


def test_heads_of_strangers_before_the_files_own_are_passed_over(tmp_path: Path) -> None:
    rollout = Rollout(ROOT).add(0, "session_meta", id=LATER).call(1, 40).add(2, "session_meta", id=CHILD).call(3, 50)
    assert graph_of(lowered(tmp_path, child=rollout)).request_ids == (f"{CHILD}:{CHILD}:0",)


def test_a_child_without_a_call_leaves_its_parents_play_alone(tmp_path: Path) -> None:
    result = lowered(tmp_path, root=family(10).tokens(11, 80), child=Rollout(CHILD, parent_thread_id=ROOT).user(3))
    assert not (graph_of(result).edge_relation == Relation.JOIN).any()
    assert told(result, "session-empty").where.ids == (CHILD,)


def test_more_blocks_than_a_corpus_may_have_are_refused(tmp_path: Path) -> None:
    rollout = Rollout()
    for number in range(3):
        rollout.call(3 * number, 2**31 - 1).add(3 * number + 2, "compacted")
    result = lowered(tmp_path, root=rollout)
    assert (result.graph, told(result, "length-out-of-bounds").severity) == (None, Severity.ERROR)


def test_lines_and_items_of_other_kinds_are_passed_over_whatever_their_fields(tmp_path: Path) -> None:
    rollout = Rollout().call(1, 40).event(3, "plan_update", kind={"a": 1}, info="x", statuses=[])
    rollout.add(4, "response_item", type="ghost_snapshot", name={"a": 1}).add(4, "world_state", full=True)
    rollout.user(5).add(8, "response_item", type="compaction_note").tokens(9, 60)
    graph = graph_of(lowered(tmp_path, root=rollout))
    assert edges(graph, f"{ROOT}:{ROOT}:1") == [f"{ROOT}:{ROOT}:0 —sequence/completion +3000 ms"]


def test_a_clock_that_goes_back_is_clamped_and_told(tmp_path: Path) -> None:
    rollout = Rollout().call(10, 40).call(5, 50)
    result = lowered(tmp_path, root=rollout)
    assert told(result, "clock-went-back").where.line == 8
    assert graph_of(result).not_before_ms.tolist() == [0.0, 0.0]


def test_a_rollout_without_a_call_is_no_trace(tmp_path: Path) -> None:
    result = lowered(tmp_path, root=Rollout().user(1))
    assert result.graph is None
    assert {item.code for item in result.findings.items} >= {"session-empty", "corpus-without-calls"}


# The public rollouts -------------------------------------------------------------------------------------------------


# In these two the output of the first call's own tool stands before the count of the call.
LONGER_THAN_EXPECTED = {
    "019ed48b-4c03-7482-a261-fa313e05f801": "102.5",
    "019f80ed-65ac-7eb3-9c28-9885c0fbca91": "9157.0",
}


def wall_s(graph: Graph) -> float:
    return float((graph.not_before_ms + graph.recorded_api_time_ms).max()) / 1000


def expected_rows(data_dir: Path) -> dict[str, dict[str, str]]:
    with (data_dir / "codex" / "expected_counts.csv").open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def rollout_paths(data_dir: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted((data_dir / "codex").glob("*/*.jsonl"))}


@pytest.mark.corpus
def test_the_public_rollouts_have_the_counts_of_an_independent_reading(data_dir: Path) -> None:
    expected, paths = expected_rows(data_dir), rollout_paths(data_dir)
    assert expected.keys() == paths.keys()
    for path in paths.values():
        row = expected[path.name]
        result = load_graph([path])
        graph = graph_of(result)
        counts = counts_of(result)
        assert graph.node_count == counts["llm_calls"] == int(row["llm_calls"]), path.name
        assert graph.plays[0].play_id == row["session_id"]
        assert int(graph.input_length.sum()) == int(row["input_total"])
        assert int(graph.output_length.sum()) == int(row["output"])
        assert int(graph.input_length.max()) == int(row["max_input"])
        assert f"{wall_s(graph):.1f}" == LONGER_THAN_EXPECTED.get(row["session_id"], row["wall_s"])
        for name, column in (
            ("cached_tokens_recorded", "cached"),
            ("reasoning_tokens_recorded", "reasoning"),
            ("duplicates", "dup_token_counts"),
            ("replayed_lines", "replay_cut_line"),
            ("spawn_calls", "spawn"),
            ("wait_calls", "wait"),
        ):
            assert counts[name] == int(row[column]), (path.name, name)


@pytest.mark.corpus
@pytest.mark.parametrize("session", sorted(LONGER_THAN_EXPECTED))
def test_two_expected_spans_begin_with_the_output_of_the_first_calls_own_tool(data_dir: Path, session: str) -> None:
    """So they cannot hold: that output answers what the call had said by then."""
    row = next(row for row in expected_rows(data_dir).values() if row["session_id"] == session)
    lines = [json.loads(line) for line in rollout_paths(data_dir)[row["file"]].read_text().splitlines()]
    items = [(line["timestamp"], line["payload"]) for line in lines if line["type"] in ("response_item", "event_msg")]
    counts = [place for place, (_, item) in enumerate(items) if item["type"] == "token_count" and item["info"]]
    before = items[: counts[0]]
    inputs = ("message", "function_call_output", "custom_tool_call_output")
    latest, item = next((at, i) for at, i in reversed(before) if i["type"] in inputs)
    asked = next(at for at, i in before if i["type"].endswith("_call") and i["call_id"] == item["call_id"])
    seconds = [datetime.fromisoformat(at).timestamp() for at in (latest, asked, items[counts[-1]][0])]
    assert f"{seconds[2] - seconds[0]:.1f}" == row["wall_s"]
    assert seconds[1] < seconds[0]


@pytest.mark.corpus
def test_the_skills_family_is_one_play_with_eight_children(data_dir: Path) -> None:
    result = load_graph([data_dir / "codex" / "skills"])
    graph = graph_of(result)
    assert len(graph.plays) == 2
    assert len({int(graph.node_session[node]) for node in graph.plays[0].nodes}) == 9
    assert int((graph.edge_relation == Relation.SPAWN).sum()) == 8
    joins = [graph.edge(int(edge)) for edge in (graph.edge_relation == Relation.JOIN).nonzero()[0]]
    # One child answered three times. The wait for the last one was interrupted: its answer came in a notification.
    assert len(joins) == 10
    assert len({edge.source.split(":")[1] for edge in joins}) == 8
    assert told(result, "answer-inferred").where.ids[1] == "019ddb96-d98b-7b31-9736-7094e307e0fd"
    for edge in joins:
        source, target = graph.request_ids.index(edge.source), graph.request_ids.index(edge.target)
        # Never before the answer was there, and the answer is the last that the child had said by then.
        gap_ms = graph.not_before_ms[target] - graph.not_before_ms[source] - graph.recorded_api_time_ms[source]
        assert gap_ms == pytest.approx(edge.delay_ms)
        later = f"{edge.source.rpartition(':')[0]}:{int(edge.source.rpartition(':')[2]) + 1}"
        if later in graph.request_ids:
            assert graph.not_before_ms[graph.request_ids.index(later)] > graph.not_before_ms[target]


@pytest.mark.corpus
def test_each_child_of_the_skills_family_is_seen_when_its_notification_arrives(data_dir: Path) -> None:
    """What the last join rests on: eight children, eight such messages, each just behind a child's first answer."""
    first_answers, arrived = [], []
    for path in sorted((data_dir / "codex" / "skills").iterdir()):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if "019ddb75" in path.name:
            for line, after in itertools.pairwise(lines):
                counted = after["payload"].get("type") == "token_count"
                if counted and line["payload"].get("role") == "user":
                    arrived.append(datetime.fromisoformat(line["timestamp"]))
        elif "019ddbbb" not in path.name:
            done = next(line for line in lines if line["payload"].get("type") == "task_complete")
            first_answers.append(datetime.fromisoformat(done["timestamp"]))
    waits = [at - answer for at, answer in zip(arrived, first_answers, strict=True)]
    assert all(timedelta(0) <= wait < timedelta(seconds=0.1) for wait in waits[:-1])
    # The last one had to wait for the call in flight.
    assert timedelta(seconds=8) < waits[-1] < timedelta(seconds=10)


@pytest.mark.corpus
def test_forked_children_do_not_count_their_parents_history(data_dir: Path) -> None:
    result = load_graph([data_dir / "codex" / "git-sync"])
    graph = graph_of(result)
    assert counts_of(result)["llm_calls"] == graph.node_count == 421 + 14 + 2 + 29 + 5
    assert len(graph.plays) == 3
    assert counts_of(result)["agents_linked"] == counts_of(result)["joins"] == 2
    assert told(result, "parent-missing").found == "019ed48b-4b97-77f0-89c4-4398b4e93e73"
