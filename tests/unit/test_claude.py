"""Claude Code sessions: links, copies, clocks, what is counted, and the public sessions."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Severity
from playproof_spec.graph import Relation
from recorders import Recorder, write
from recorders import lowered_sessions as lowered

SPLIT = (
    "13da966e-44f7-4a36-8060-ca40451e4561",
    "ac8a4f1a-1917-46bf-b8c1-0c3bab0fbc16",
    "b82405ba-a054-4152-bc86-e9b0d4832b68",
)


def counts_of(result: Lowered) -> dict[str, int]:
    counts = result.facts["claude_counts"]
    assert isinstance(counts, dict)
    return counts


def test_identity_is_of_the_session_and_not_of_the_path(tmp_path: Path) -> None:
    main = Recorder()
    records = [main.user(1), main.call(2, "c1", 40)]
    graph = graph_of(lowered(tmp_path / "a", {"deep/down/renamed.jsonl": records}))
    assert graph.request_ids == ("s:main:0",)
    assert graph.source_request_ids == ("c1",)
    assert graph.plays[0].play_id == "s"
    other = graph_of(lowered(tmp_path / "b", {"s.jsonl": records}))
    assert graph_digest(other) == graph_digest(graph)


def test_all_kinds_of_input_tokens_count_and_the_cache_is_no_input_of_its_own(tmp_path: Path) -> None:
    main = Recorder()
    call = main.call(2, "c1", 3, cache_creation_input_tokens=20, cache_read_input_tokens=17)
    graph = graph_of(lowered(tmp_path, {"s.jsonl": [main.user(1), call]}))
    assert graph.input_length.tolist() == [40]


def test_a_call_that_nothing_precedes_starts_with_its_first_record(tmp_path: Path) -> None:
    main = Recorder()
    result = lowered(tmp_path, {"s.jsonl": [main.call(2, "c1", 40), main.call(5, "c1", 40)]})
    graph = graph_of(result)
    assert graph.recorded_api_time_ms.tolist() == [3000.0]
    assert graph.observed[0].estimated == ("start",)


@pytest.mark.parametrize("names", [("a.jsonl", "b.jsonl"), ("z.jsonl", "b.jsonl")])
def test_a_resumed_session_counts_once_whatever_the_files_are_called(tmp_path: Path, names: tuple[str, str]) -> None:
    first = Recorder("first")
    old = [first.user(1), first.call(2, "c1", 40), first.user(5), first.call(6, "c2", 60)]
    second = Recorder("second")
    second.count = 90
    # One recorder keeps the session's name in copies, another writes its own.
    new = [old[0], old[1], *({**row, "sessionId": "second"} for row in old[2:]), second.user(60)]
    result = lowered(tmp_path, {names[0]: old, names[1]: [*new, second.call(61, "c3", 80)]})
    graph = graph_of(result)
    assert [play.play_id for play in graph.plays] == ["first", "second"]
    assert graph.request_ids == ("first:main:0", "first:main:1", "second:main:0")
    assert counts_of(result)["calls_copied"] == 2
    assert told(result, "calls-copied").where.ids == ("second",)


def test_a_session_that_goes_on_behind_its_copy_keeps_its_calls(tmp_path: Path) -> None:
    """The copy keeps its name, and ended first: the order in which prompts are made is not that of the ends."""
    first, second = Recorder("first"), Recorder("second")
    second.count = 50
    old = [first.user(1), first.call(2, "c1", 40)]
    files = {"b.jsonl": [*old, first.user(500), first.call(501, "c3", 80)]}
    files["a.jsonl"] = [*old, second.user(60), second.call(61, "c2", 80)]
    graph = graph_of(lowered(tmp_path, files))
    assert graph.request_ids == ("first:main:0", "first:main:1", "second:main:0")
    assert graph.hash_ids(0)[:2].tolist() == graph.hash_ids(1)[:2].tolist() == graph.hash_ids(2)[:2].tolist()


@pytest.mark.parametrize("names", ["abc", "cba", "bca"])
def test_a_renamed_copy_of_a_copy_owns_nothing_of_either(tmp_path: Path, names: str) -> None:
    """`second` keeps the name of `first` in its copy, which tells who is whose; `third` renames all that it copies."""
    first, second, third = Recorder("first"), Recorder("second"), Recorder("third")
    second.count, third.count = 50, 90
    old = [first.user(1), first.call(2, "c1", 40)]
    new = [*old, second.user(60), second.call(61, "c2", 80)]
    files = [old, new]
    files.append([*({**row, "sessionId": "third"} for row in new), third.user(90), third.call(91, "c3", 100)])
    result = lowered(tmp_path, {f"{name}.jsonl": rows for name, rows in zip(names, files, strict=True)})
    graph = graph_of(result)
    owners = {graph.source_request_ids[node]: graph.plays[graph.node_play[node]].play_id for node in range(3)}
    assert owners == {"c1": "first", "c2": "second", "c3": "third"}
    # Each goes on from what it copied.
    blocks = {name: graph.hash_ids(node).tolist() for node, name in enumerate(graph.source_request_ids)}
    assert blocks["c2"][:2] == blocks["c1"][:2]
    assert blocks["c3"][:5] == blocks["c2"][:5]


def test_sessions_that_copied_each_other_end_in_one_order(tmp_path: Path) -> None:
    one, two = Recorder("one"), Recorder("two")
    two.count = 50
    mine, yours = [one.user(1), one.call(2, "c1", 40)], [two.user(5), two.call(6, "c2", 80)]
    result = lowered(tmp_path, {"one.jsonl": [*mine, *yours], "two.jsonl": [*mine, *yours]})
    graph = graph_of(result)
    assert graph.request_ids == ("one:main:0", "two:main:0")
    assert counts_of(result)["calls_copied"] == 2


def test_a_compaction_copy_within_one_file_counts_once(tmp_path: Path) -> None:
    main = Recorder()
    old = [main.user(1), main.call(2, "c1", 40), main.user(3), main.call(4, "c2", 60)]
    again = [{**row, "uuid": f"copy-{row['uuid']}"} for row in old[:2]]
    result = lowered(tmp_path, {"s.jsonl": [*old, old[3], *again, main.user(9), main.call(10, "c3", 70)]})
    graph = graph_of(result)
    assert graph.node_count == 3
    assert counts_of(result)["records_repeated"] == 2
    assert edges(graph, "s:main:2") == ["s:main:1 —sequence/completion +5000 ms"]


def test_an_agent_called_again_has_a_spawn_and_a_join_for_each_run(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    done = {"status": "completed", "agentId": "x"}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(10, "t1", done), main.call(11, "c2", 60, "t2")]
    rows += [main.result(30, "t2", done), main.call(31, "c3", 80)]
    own = [agent.user(3), agent.call(9, "a1", 20), agent.user(12), agent.call(29, "a2", 40)]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own}))
    assert "s:agent:x:0 —join/completion +1000 ms" in edges(graph, "s:main:1")
    assert "s:main:1 —spawn/completion +1000 ms" in edges(graph, "s:agent:x:1")
    assert "s:agent:x:1 —join/completion +1000 ms" in edges(graph, "s:main:2")


def test_a_background_agent_without_notification_is_joined_by_nobody(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    launched = {"isAsync": True, "status": "async_launched", "agentId": "x"}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(3, "t1", launched), main.call(5, "c2", 60)]
    own = [agent.user(3), agent.call(9, "a1", 20)]
    result = lowered(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own})
    graph = graph_of(result)
    assert not (graph.edge_relation == Relation.JOIN).any()
    assert counts_of(result)["async_launched"] == 1


@pytest.mark.parametrize("how", ["attachment", "task output"])
def test_other_ways_to_see_that_a_background_agent_is_done(tmp_path: Path, how: str) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    launched = {"isAsync": True, "status": "async_launched", "agentId": "x"}
    seen = (
        main.record("attachment", 20, attachment={"type": "queued_command", "prompt": "<task-id>x</task-id>"})
        if how == "attachment"
        else main.result(20, "t9", {"task": {"task_id": "x", "status": "completed"}})
    )
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(3, "t1", launched), main.call(5, "c2", 60)]
    rows += [seen, main.user(21), main.call(22, "c3", 80)]
    own = [agent.user(3), agent.call(9, "a1", 20)]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own}))
    assert "s:agent:x:0 —join/completion +12000 ms" in edges(graph, "s:main:2")


def test_the_answer_is_not_added_to_an_agent_whose_last_call_is_recorded(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    done = {"status": "completed", "agentId": "x", "usage": {"input_tokens": 40, "output_tokens": 9}}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(10, "t1", done), main.call(11, "c2", 60)]
    own = [agent.user(3), agent.call(9, "a1", 20)]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own}))
    assert graph.node_count == 3


def test_a_meta_file_of_another_session_gives_way_to_the_result(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    done = {"status": "completed", "agentId": "x"}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(10, "t1", done), main.call(11, "c2", 60)]
    meta = {"agentType": "Explore", "toolUseId": "gone"}
    own = [agent.user(3), agent.call(9, "a1", 20)]
    files = {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own, "s/subagents/agent-x.meta.json": meta}
    result = lowered(tmp_path, files)
    item = told(result, "agent-link-conflict")
    assert (item.where.field, item.found, item.severity) == ("toolUseId", "gone", Severity.WARNING)
    assert edges(graph_of(result), "s:agent:x:0") == ["s:main:0 —spawn/completion +1000 ms"]


def test_a_file_whose_name_and_records_disagree_is_told(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="y")
    own = [agent.user(3), agent.call(9, "a1", 20)]
    files = {"s.jsonl": [main.user(1), main.call(2, "c1", 40, "t1")], "s/subagents/agent-x.jsonl": own}
    files["s/subagents/agent-x.meta.json"] = {"agentType": "Explore", "toolUseId": "t1"}  # type: ignore[assignment]
    result = lowered(tmp_path, files)
    item = told(result, "agent-link-conflict")
    assert (item.found, item.wanted) == ("agent:y", "agent:x")
    assert told(result, "agent-unlinked").found == "agent:y"
    assert edges(graph_of(result), "s:agent:y:0") == []


def test_agents_that_would_spawn_each_other_are_not_tied_in_a_circle(tmp_path: Path) -> None:
    main, one, two = Recorder(), Recorder(agent="one"), Recorder(agent="two")
    files: dict[str, Any] = {
        "s.jsonl": [main.user(1), main.call(2, "c1", 40)],
        "s/subagents/agent-one.jsonl": [one.user(3), one.call(4, "a1", 20, "t1")],
        "s/subagents/agent-two.jsonl": [two.user(3), two.call(4, "b1", 20, "t2")],
        "s/subagents/agent-one.meta.json": {"agentType": "x", "toolUseId": "t2"},
        "s/subagents/agent-two.meta.json": {"agentType": "x", "toolUseId": "t1"},
    }
    result = lowered(tmp_path, files)
    graph_of(result)
    assert counts_of(result)["agents_unlinked"] == 1


def test_offsets_mean_the_same_instant(tmp_path: Path) -> None:
    main = Recorder()
    rows = [main.user("2026-05-01T10:00:01Z"), main.call("2026-05-01T12:00:03.5+02:00", "c1", 40)]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows}))
    assert graph.recorded_api_time_ms.tolist() == [2500.0]


def test_a_clock_that_goes_back_is_clamped_and_told_once_a_file(tmp_path: Path) -> None:
    main = Recorder()
    rows = [main.user(10), main.call(12, "c1", 40), main.user(5), main.call(6, "c2", 60)]
    result = lowered(tmp_path, {"s.jsonl": rows})
    item = told(result, "clock-went-back")
    assert (item.where.line, item.found) == (4, "1")
    graph = graph_of(result)
    assert graph.not_before_ms.tolist() == [0.0, 0.0]
    assert edges(graph, "s:main:1") == ["s:main:0 —sequence/completion +0 ms"]


def test_a_prompt_of_another_conversation_shares_nothing(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    own = [agent.user(3), agent.call(9, "a1", 64)]
    rows = [main.user(1), main.call(2, "c1", 64, "t1")]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own}))
    assert not set(graph.hash_ids(0).tolist()) & set(graph.hash_ids(1).tolist())


def test_what_a_copy_tells_again_happened_once(tmp_path: Path) -> None:
    """A resumed session repeats launches into the background and compactions, too."""
    main = Recorder("first")
    launched = {"isAsync": True, "status": "async_launched", "agentId": "x"}
    old = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(3, "t1", launched)]
    old += [main.record("system", 4, subtype="compact_boundary"), main.user(5), main.call(6, "c2", 60)]
    new = Recorder("second")
    new.count = 90
    copied = [{**row, "sessionId": "second"} for row in old]
    files = {"a.jsonl": old, "b.jsonl": [*copied, new.user(60), new.call(61, "c3", 80)]}
    counts = counts_of(lowered(tmp_path, files))
    assert (counts["async_launched"], counts["compactions"], counts["calls_copied"]) == (1, 1, 2)


def test_a_call_that_asked_for_a_tool_was_not_the_last_whatever_it_said_behind(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    done = {"status": "completed", "agentId": "x", "usage": {"input_tokens": 48, "output_tokens": 9}}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(10, "t1", done), main.call(11, "c2", 60)]
    own = [agent.user(3), agent.call(4, "a1", 20, "t2"), agent.call(5, "a1", 20), agent.result(6, "t2")]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows, "s/subagents/agent-x.jsonl": own}))
    assert "s:agent:x:1 —join/completion +0 ms" in edges(graph, "s:main:1")
    assert graph.observed[graph.request_ids.index("s:agent:x:1")].estimated == ("request",)


def test_a_restored_answer_stands_where_its_result_does(tmp_path: Path) -> None:
    main, one, deep = Recorder(), Recorder(agent="one"), Recorder(agent="deep")
    done = {"status": "completed", "agentId": "deep", "usage": {"input_tokens": 48, "output_tokens": 9}}
    files = {
        "s.jsonl": [main.user(1), main.call(2, "c1", 40, "t1")],
        "s/subagents/agent-one.jsonl": [one.user(3), one.call(4, "a1", 20, "t2"), one.result(9, "t2", done)],
        "s/subagents/agent-deep.jsonl": [deep.user(5), deep.call(6, "b1", 20, "t3"), deep.result(7, "t3")],
    }
    graph = graph_of(lowered(tmp_path, files))
    node = graph.request_ids.index("s:agent:deep:1")
    assert graph.files[graph.node_file[node]].endswith("agent-one.jsonl")
    assert (graph.node_line[node], graph.recorded_api_time_ms[node]) == (3, 2000.0)


def test_the_folder_of_a_session_may_be_renamed(tmp_path: Path) -> None:
    """Its agents' records say whose they are, and a meta file goes with the file beside it."""
    main, agent = Recorder(), Recorder(agent="x")
    files: dict[str, Any] = {
        "old/s.jsonl": [main.user(1), main.call(2, "c1", 40, "t1"), main.result(10, "t1"), main.call(11, "c2", 60)],
        "old/renamed/subagents/agent-x.jsonl": [agent.user(3), agent.call(9, "a1", 20)],
        "old/renamed/subagents/agent-x.meta.json": {"agentType": "Explore", "toolUseId": "t1"},
    }
    graph = graph_of(lowered(tmp_path, files))
    assert edges(graph, "s:agent:x:0") == ["s:main:0 —spawn/completion +1000 ms"]


def test_an_agents_result_with_a_wrong_type_is_told(tmp_path: Path) -> None:
    main = Recorder()
    wrong = {"agentId": "x", "usage": {"input_tokens": "many"}}
    rows = [main.user(1), main.call(2, "c1", 40, "t1"), main.result(3, "t1", wrong)]
    item = told(lowered(tmp_path, {"s.jsonl": rows}), "field-type")
    assert (item.where.line, item.where.field) == (3, "toolUseResult.usage.input_tokens")
    # Another tool's result may mean something else by these names.
    rows[-1]["toolUseResult"] = {"task": "a text", "agentId": 5}
    graph_of(lowered(tmp_path / "other", {"s.jsonl": rows}))


def test_a_progress_record_without_its_message_is_told(tmp_path: Path) -> None:
    main = Recorder()
    hollow = main.record("progress", 3, parentToolUseID="t1", data={"type": "agent_progress", "agentId": "x"})
    item = told(lowered(tmp_path, {"s.jsonl": [main.user(1), main.call(2, "c1", 40, "t1"), hollow]}), "field-missing")
    assert (item.where.line, item.where.field, item.wanted) == (3, "data.message", "an object")


# 17 characters as they stand, for no float holds the number.
HUGE = [{"type": "tool_use", "input": msgspec.Raw(b'{"a": 1e999999  }')}]


@pytest.mark.parametrize(
    ("content", "tokens"), [("é\n" * 10, 5), ([{"type": "tool_use", "input": {"a": "é"}}], 3), (HUGE, 5)]
)
def test_characters_are_counted_whatever_their_bytes_and_spaces(tmp_path: Path, content: Any, tokens: int) -> None:
    """A tool's input counts in its shortest form: {"a":"é"} has 9 characters, which are 3 tokens."""
    main = Recorder(version="2.0.1")
    call = main.call(2, "c1", 40, output_tokens=1)
    call["message"]["content"] = content
    assert graph_of(lowered(tmp_path, {"s.jsonl": [main.user(1), call]})).output_length.tolist() == [tokens]


ABSENT = object()


def usage_of(**usage: Any) -> dict[str, Any]:
    return {"message": {"id": "c", "model": "m", "content": [], "usage": {"input_tokens": 9, **usage}}}


# What is changed in the third record; then the code, the field, what is found and what is wanted.
BROKEN: list[tuple[str, dict[str, Any], tuple[str, str, str, str]]] = [
    ("no instant", {"timestamp": "yesterday"}, ("time-unreadable", "timestamp", "yesterday", "ISO 8601")),
    ("no timestamp", {"timestamp": None}, ("field-missing", "timestamp", "nothing", "ISO 8601")),
    ("a wrong type", {"uuid": 5}, ("field-type", "uuid", "5", "str | null")),
    ("message absent", {"message": ABSENT}, ("field-missing", "message", "nothing", "an object")),
    (
        "user message in words",
        {"type": "user", "message": {"content": [{"tool_use_id": 5}]}},
        ("field-type", "message.content[0].tool_use_id", "5", "str | null"),
    ),
    ("no message", {"message": None}, ("json-not-object", "message", "null", "an object")),
    ("no model", {"message": {"content": []}}, ("field-missing", "message.model", "nothing", "a string")),
    (
        "content of numbers",
        {"message": {"id": "c", "model": "m", "content": 7, "usage": {"input_tokens": 9}}},
        ("field-type", "message.content", "7", "str | null"),
    ),
    (
        "a negative count",
        usage_of(output_tokens=-1),
        ("length-out-of-bounds", "message.usage.output_tokens", "-1", "0 … 2147483647"),
    ),
    (
        "a count in words",
        usage_of(input_tokens="many"),
        ("field-type", "message.usage.input_tokens", '"many"', "int | null"),
    ),
    (
        "a prompt without bound",
        usage_of(input_tokens=2**31 - 1, cache_read_input_tokens=9),
        ("length-out-of-bounds", "message.usage", "2147483656", "at most 2147483647"),
    ),
    (
        "nobody's call",
        {"uuid": None, "message": {"model": "m", "content": [], "usage": {"input_tokens": 9}}},
        ("field-missing", "message.id", "nothing", "an id"),
    ),
]


@pytest.mark.parametrize(("changes", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_broken_records_are_told_with_file_line_field_found_and_wanted(
    tmp_path: Path, changes: dict[str, Any], wanted: tuple[str, str, str, str]
) -> None:
    main = Recorder()
    changed = {name: value for name, value in {**main.call(3, "c2", 40), **changes}.items() if value is not ABSENT}
    rows = [main.user(1), main.call(2, "c1", 40), changed]
    result = lowered(tmp_path, {"s.jsonl": rows})
    errors = [item for item in result.findings.items if item.severity is Severity.ERROR]
    assert [(item.code, item.where.field, item.found, item.wanted) for item in errors] == [wanted]
    assert (errors[0].where.file, errors[0].where.line) == (str(tmp_path / "s.jsonl"), 3)


def raw(folder: Path, *lines: str) -> Lowered:
    (folder / "s.jsonl").write_text("".join(line + "\n" for line in lines))
    return load_graph([folder], options=LoweringOptions(block_size=16))


def test_a_name_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    main = Recorder()
    twice = json.dumps(main.call(2, "c1", 40)).replace('"usage": {', '"usage": {"input_tokens": 7, ')
    item = told(raw(tmp_path, json.dumps(main.user(1)), twice), "field-repeated")
    assert (item.where.line, item.where.field) == (2, "message.usage.input_tokens")


def test_a_progress_record_is_read_with_what_its_outer_one_says(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    outer = {"parentToolUseID": "t1"}

    def progress(at: float, message: Any) -> dict[str, Any]:
        return main.record("progress", at, data={"type": "agent_progress", "agentId": "x", "message": message}, **outer)

    inner = {name: agent.call(5, "a1", 20)[name] for name in ("type", "message")}
    other = {"type": "queue-operation", "message": {"a": 1}}
    rows = [
        main.user(1),
        main.call(2, "c1", 40, "t1"),
        progress(3, agent.user(3)),
        progress(4, other),
        progress(5, inner),
    ]
    graph = graph_of(lowered(tmp_path, {"s.jsonl": rows}))
    node = graph.request_ids.index("s:agent:x:0")
    assert (graph.not_before_ms[node], graph.recorded_api_time_ms[node]) == (2000.0, 2000.0)


@pytest.mark.parametrize(
    ("data", "field"), [("text", "data"), ({"type": "agent_progress", "agentId": "x", "message": 5}, "data.message")]
)
def test_a_progress_record_that_cannot_be_read_is_told(tmp_path: Path, data: Any, field: str) -> None:
    main = Recorder()
    rows = [main.user(1), main.call(2, "c1", 40), main.record("progress", 3, data=data)]
    errors = [item for item in lowered(tmp_path, {"s.jsonl": rows}).findings.items if item.severity is Severity.ERROR]
    assert [(item.where.line, item.where.field) for item in errors] == [(3, field)]


def test_records_of_an_agents_file_are_that_agents_though_they_do_not_say_so(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    own = [agent.user(3), agent.call(9, "a1", 20)]
    for row in own:
        del row["agentId"]
    files: dict[str, Any] = {"s.jsonl": [main.user(1), main.call(2, "c1", 40, "t1")], "s/subagents/agent-x.jsonl": own}
    files["s/subagents/agent-x.meta.json"] = {"agentType": "Explore", "toolUseId": "t1"}
    assert edges(graph_of(lowered(tmp_path, files)), "s:agent:x:0") == ["s:main:0 —spawn/completion +1000 ms"]


def test_a_session_that_only_copies_is_told(tmp_path: Path) -> None:
    first = Recorder("first")
    old = [first.user(1), first.call(2, "c1", 40), first.user(5), first.call(6, "c2", 60)]
    second = Recorder("second")
    second.count = 90
    result = lowered(tmp_path, {"a.jsonl": old, "b.jsonl": [*old[:2], second.user(60)]})
    assert len(graph_of(result).plays) == 1
    assert told(result, "session-empty").where.ids == ("second",)


def test_a_stream_whose_clock_goes_back_keeps_its_end(tmp_path: Path) -> None:
    main = Recorder()
    rows = [main.user(1), main.call(9, "c1", 40), main.call(5, "c1", 40, output_tokens=8)]
    result = lowered(tmp_path, {"s.jsonl": rows})
    assert told(result, "clock-went-back").where.line == 3
    graph = graph_of(result)
    assert (graph.recorded_api_time_ms.tolist(), graph.output_length.tolist()) == ([8000.0], [8])


def test_a_conversation_that_goes_back_all_the_time_begins_anew_and_says_so(tmp_path: Path) -> None:
    main = Recorder()
    rows: list[dict[str, Any]] = []
    for number in range(600):
        # By turns, a prompt grows, and shrinks to the blocks that the cache still found and one of its own.
        usage = {"cache_read_input_tokens": 16 * (number + 1)} if number % 2 else {"cache_read_input_tokens": 0}
        tokens = 16 if number % 2 else 16 * (number + 4)
        rows += [main.user(number), main.call(number + 0.5, f"c{number}", tokens, **usage)]
    result = lowered(tmp_path, {"s.jsonl": rows})
    graph_of(result)
    item = told(result, "prefix-cut")
    assert (item.severity, item.found, item.wanted) == (Severity.NOTE, "1", "at most 256 times")


def test_a_torn_last_line_is_an_error_with_its_line(tmp_path: Path) -> None:
    main = Recorder()
    text = "".join(json.dumps(row) + "\n" for row in [main.user(1), main.call(2, "c1", 40)])
    (tmp_path / "s.jsonl").write_text(text + '{"type": "user", "message": {"con')
    result = load_graph([tmp_path])
    assert told(result, "json-malformed").where.line == 3


def test_calls_without_token_counts_are_left_out_with_a_warning(tmp_path: Path) -> None:
    main = Recorder()
    without = main.call(3, "c2", 40)
    del without["message"]["usage"]
    result = lowered(tmp_path, {"s.jsonl": [main.user(1), main.call(2, "c1", 40), without, main.call(4, "c3", 0)]})
    assert graph_of(result).node_count == 1
    assert told(result, "call-without-usage").found == "2"


def test_a_corpus_without_a_call_is_no_trace(tmp_path: Path) -> None:
    result = lowered(tmp_path, {"s.jsonl": [{"type": "summary", "summary": "x", "leafUuid": "u"}]})
    assert result.graph is None
    assert told(result, "corpus-without-calls").severity is Severity.ERROR


def test_more_blocks_than_a_corpus_may_have_are_refused(tmp_path: Path) -> None:
    main = Recorder()
    rows: list[dict[str, Any]] = []
    for number in range(3):
        rows += [main.user(3 * number), main.call(3 * number + 1, f"c{number}", 2**31 - 1)]
        rows += [main.record("system", 3 * number + 2, subtype="compact_boundary")]
    result = lowered(tmp_path, {"s.jsonl": rows})
    assert told(result, "length-out-of-bounds").severity is Severity.ERROR
    assert result.graph is None


def test_records_of_other_kinds_are_passed_over_whatever_their_fields(tmp_path: Path) -> None:
    main = Recorder()
    other = {"type": "mode", "timestamp": 5, "version": {"a": 1}, "uuid": [1]}
    result = lowered(tmp_path, {"s.jsonl": [other, main.user(1), main.call(2, "c1", 40)]})
    assert graph_of(result).node_count == 1


def test_text_is_not_kept(tmp_path: Path) -> None:
    main = Recorder()
    secret = "the secret of the prompt"
    call = main.call(2, "c1", 40)
    call["message"]["content"] = [{"type": "text", "text": secret}]
    result = lowered(tmp_path, {"s.jsonl": [main.user(1, secret), call]})
    graph = graph_of(result)
    kept = [graph.request_ids, graph.source_request_ids, graph.sessions, graph.models, graph.facts]
    assert secret not in repr(kept)
    assert secret not in "".join(str(item) for item in result.findings.items)


# The public sessions -------------------------------------------------------------------------------------------------


def expected(data_dir: Path) -> dict[str, dict[str, str]]:
    with (data_dir / "claude_code" / "expected_counts.csv").open() as file:
        return {row["file"].removesuffix(".jsonl"): row for row in csv.DictReader(file)}


def session_paths(data_dir: Path, session: str) -> list[Path]:
    if session in SPLIT:
        return sorted((data_dir / "claude_code" / "split").glob(f"{session}*"))
    return [data_dir / "claude_code" / "inline" / f"{session}.jsonl"]


def check_counts(result: Lowered, row: dict[str, str]) -> None:
    graph = graph_of(result)
    counts = counts_of(result)
    main = [node for node in range(graph.node_count) if ":main:" in graph.request_ids[node]]
    assert len(main) == counts["llm_calls"] == int(row["llm_calls"])
    assert sum(int(graph.input_length[node]) for node in main) == int(row["input_total"])
    assert max(int(graph.input_length[node]) for node in main) == int(row["max_input"])
    ends_ms = graph.not_before_ms[main] + graph.recorded_api_time_ms[main]
    assert f"{(ends_ms.max() - graph.not_before_ms[main].min()) / 1000:.1f}" == row["wall_s"]
    for name, column in (
        ("main_output_tokens_recorded", "output_total"),
        ("main_cache_read_tokens_recorded", "cache_read"),
        ("main_cache_creation_tokens_recorded", "cache_creation"),
        ("agent_calls", "subagent_llm_calls"),
        ("agents_linked", "agents_with_inline_calls"),
        ("spawn_calls", "spawn_calls"),
        ("async_launched", "async_launched"),
        ("compactions", "compactions"),
        ("clock_went_back", "start_after_end"),
    ):
        assert counts.get(name, 0) == int(row[column]), name
    # All but an agent whose tool use was never answered are waited for.
    assert counts.get("joins", 0) >= counts["agents_linked"] - 1


@pytest.mark.corpus
def test_the_public_sessions_have_the_counts_of_an_independent_reading(data_dir: Path) -> None:
    rows = expected(data_dir)
    recorded = [
        *(data_dir / "claude_code" / "inline").iterdir(),
        *(data_dir / "claude_code" / "split").glob("*.jsonl*"),
    ]
    assert rows.keys() == {path.name.partition(".")[0] for path in recorded}
    for session, row in rows.items():
        check_counts(load_graph(session_paths(data_dir, session)), row)


@pytest.mark.corpus
def test_a_session_gives_one_graph_in_either_layout(data_dir: Path) -> None:
    session = SPLIT[0]
    inline = graph_of(load_graph([data_dir / "claude_code" / "inline" / f"{session}.jsonl"]))
    assert graph_digest(graph_of(load_graph(session_paths(data_dir, session)))) == graph_digest(inline)


def gzipped(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@pytest.mark.corpus
@pytest.mark.parametrize("session", SPLIT[1:])
def test_public_agents_told_inline_give_the_graph_of_their_files(data_dir: Path, tmp_path: Path, session: str) -> None:
    """The two sessions that we have in files only, put back into the layout that they were made from."""
    split = data_dir / "claude_code" / "split"
    rows = gzipped(split / f"{session}.jsonl.gz")
    for meta in (split / session / "subagents").glob("*.meta.json"):
        agent, use = meta.name[len("agent-") : -len(".meta.json")], json.loads(meta.read_text())["toolUseId"]
        for record in gzipped(meta.with_name(f"agent-{agent}.jsonl.gz")):
            data = {"type": "agent_progress", "agentId": agent, "message": record}
            outer = {name: record[name] for name in ("timestamp", "sessionId", "version")}
            rows.append(
                {"type": "progress", "uuid": f"p-{record['uuid']}", "parentToolUseID": use, "data": data, **outer}
            )
    rows.sort(key=lambda row: str(row.get("timestamp", "")))
    result = load_graph([write(tmp_path, {f"{session}.jsonl": rows})])
    check_counts(result, expected(data_dir)[session])
    assert graph_digest(graph_of(result)) == graph_digest(graph_of(load_graph(session_paths(data_dir, session))))


@pytest.mark.parametrize("names", [("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl")])
def test_both_layouts_at_once_are_one_graph(tmp_path: Path, goldens_dir: Path, names: tuple[str, str]) -> None:
    """Some versions write an agent's records into the session and into a file of its own."""
    inline = (goldens_dir / "lower-claude-inline" / "trace" / "alpha.jsonl").read_bytes()
    split = goldens_dir / "lower-claude-split" / "trace" / "alpha" / "subagents"
    (tmp_path / names[0]).write_bytes(inline)
    (tmp_path / names[1]).write_bytes((split / "agent-one.jsonl").read_bytes())
    both = graph_of(load_graph([tmp_path], options=LoweringOptions(block_size=16)))
    alone = load_graph([goldens_dir / "lower-claude-inline" / "trace"], options=LoweringOptions(block_size=16))
    assert graph_digest(both) == graph_digest(graph_of(alone))


@pytest.mark.corpus
def test_sidechains_of_version_1_are_never_guessed_into_place(data_dir: Path) -> None:
    result = load_graph([data_dir / "claude_code" / "v1"])
    graph = graph_of(result)
    counts = counts_of(result)
    assert (len(graph.plays), counts["llm_calls"], counts["agent_calls"]) == (3, 20, 174)
    assert counts["agents_unlinked"] == result.findings.counts["agent-unlinked"] == 9
    assert counts["agents_linked"] == 0
