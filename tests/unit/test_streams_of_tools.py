"""The streams of `claude -p --output-format stream-json` and of `codex exec --json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, load_graph
from playproof_spec.findings import Severity


def lowered(folder: Path, *rows: dict[str, Any], name: str = "t.jsonl") -> Lowered:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_graph([path])


def errors(result: Lowered) -> list[tuple[str, int, str]]:
    return [(i.code, i.where.line, i.where.field) for i in result.findings.items if i.severity is Severity.ERROR]


# claude -p ----------------------------------------------------------------------------------------------------------


def asst(key: str, prompt: int, output: int | None = 5, use: str = "", agent: str = "", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": prompt} | ({} if output is None else {"output_tokens": output})
    content = [{"type": "tool_use", "id": use, "name": "Task", "input": {}}] if use else []
    message = {"id": key, "model": "m", "usage": usage, "content": content}
    row = {"type": "assistant", "session_id": "s", "message": message, "parent_tool_use_id": agent or None}
    return row | more


def user(tool: str = "", agent: str = "", **more: Any) -> dict[str, Any]:
    content: Any = [{"type": "tool_result", "tool_use_id": tool, "content": "x"}] if tool else "x"
    row = {"type": "user", "session_id": "s", "message": {"content": content}, "parent_tool_use_id": agent or None}
    return row | more


INIT = {"type": "system", "subtype": "init", "session_id": "s"}


@pytest.mark.parametrize(
    "first", [INIT, INIT | {"subtype": "hook_started"}, {"type": "rate_limit_event", "session_id": "s"}]
)
def test_a_stream_is_told_by_its_first_record(tmp_path: Path, first: dict[str, Any]) -> None:
    result = lowered(tmp_path, first, asst("m", 20))
    assert result.facts["input_format"] == "claude-stream"
    assert graph_of(result).node_count == 1


@pytest.mark.parametrize("key", ["msg_1", "gateway", ""])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_one_id_for_many_calls_is_told_apart_by_prompts(tmp_path: Path, key: str, count: int) -> None:
    rows = [row for n in range(count) for row in (asst(key, 20 + n), user("t"))]
    assert graph_of(lowered(tmp_path, INIT, *rows)).node_count == count


@pytest.mark.parametrize("between", [[], [user("t")]])
def test_records_of_one_message_are_one_call(tmp_path: Path, between: list[dict[str, Any]]) -> None:
    # A result may come between two blocks of a message whose tools run as they arrive.
    rows = [asst("m", 20, 1, "t"), *between, asst("m", 20, 9, "u")]
    graph = graph_of(lowered(tmp_path, INIT, *rows))
    assert graph.output_length.tolist() == [9]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("background", [False, True])
def test_an_agent_hangs_at_its_tool_use(tmp_path: Path, deep: bool, background: bool) -> None:
    launched: dict[str, Any] = {"tool_use_result": {"status": "async_launched"}} if background else {}
    rows = [asst("a", 20, use="T"), asst("k", 16, use="U" if deep else "", agent="T")]
    rows += [asst("d", 18, agent="U"), user("U", "T"), asst("k2", 30, agent="T")] if deep else []
    rows += [user("T", **launched), asst("b", 40)]
    graph = graph_of(lowered(tmp_path, INIT, *rows))
    assert edges(graph, "s:T:0") == ["s:0 —spawn/completion +0 ms"]
    joins = [edge for edge in edges(graph, "s:1") if "join" in edge]
    assert joins == ([] if background else [f"s:T:{int(deep)} —join/completion +0 ms"])
    if deep:
        assert edges(graph, "s:U:0") == ["s:T:0 —spawn/completion +0 ms"]
        assert "s:U:0 —join/completion +0 ms" in edges(graph, "s:T:1")


def test_an_agent_whose_tool_use_is_not_there_is_told(tmp_path: Path) -> None:
    result = lowered(tmp_path, INIT, asst("a", 20), asst("k", 16, agent="T"))
    assert told(result, "agent-unlinked").found == "1"
    assert edges(graph_of(result), "s:T:0") == []


def test_times_count_when_every_record_has_one(tmp_path: Path) -> None:
    def at(seconds: float) -> dict[str, Any]:
        return {"timestamp": f"2026-03-01T10:00:{seconds:06.3f}Z"}

    rows = [user(**at(1)), asst("a", 20, **at(3)), user("t", **at(4.5)), asst("b", 30, **at(6))]
    result = lowered(tmp_path, *rows)
    graph = graph_of(result)
    assert edges(graph, "s:1") == ["s:0 —sequence/completion +1500 ms"]
    assert graph.recorded_api_time_ms.tolist() == [2000.0, 1500.0]
    assert "times-missing" not in result.findings.counts
    del rows[2]["timestamp"]
    assert told(lowered(tmp_path, *rows), "times-missing").where.line == 3


def test_results_that_add_up_say_that_outputs_are_final(tmp_path: Path) -> None:
    text = {
        "message": {"id": "a", "model": "m", "usage": {"input_tokens": 20, "output_tokens": 2}, "content": "x" * 80}
    }
    rows = [INIT, asst("a", 20) | text]
    assert graph_of(lowered(tmp_path, *rows)).output_length.tolist() == [20]
    total = {"type": "result", "session_id": "s", "usage": {"output_tokens": 2}}
    assert graph_of(lowered(tmp_path, *rows, total)).output_length.tolist() == [2]


@pytest.mark.parametrize(("prompt", "output", "name"), [(0, 5, "input_tokens"), (9, None, "output_tokens")])
def test_a_call_without_a_length_says_which(tmp_path: Path, prompt: int, output: int | None, name: str) -> None:
    result = lowered(tmp_path, INIT, asst("a", prompt, output), user(), asst("b", 20))
    assert told(result, "call-without-usage").where.field == f"message.usage.{name}"
    assert graph_of(result).node_count == 1


def test_a_session_that_was_resumed_goes_on(tmp_path: Path) -> None:
    lowered(tmp_path, INIT, asst("a", 20), name="1.jsonl")
    lowered(tmp_path, INIT, asst("b", 30), name="2.jsonl")
    assert edges(graph_of(load_graph([tmp_path])), "s:1") == ["s:0 —sequence/completion +0 ms"]


def test_broken_records_of_a_stream_are_named(tmp_path: Path) -> None:
    broken = asst("b", 30) | {"message": {"id": 7}}
    assert errors(lowered(tmp_path, INIT, asst("a", 20), broken)) == [("field-type", 3, "message.id")]
    assert errors(lowered(tmp_path, INIT)) == [("corpus-without-calls", 0, "")]


# codex exec ---------------------------------------------------------------------------------------------------------


def item(what: str, key: str, kind: str = "command_execution") -> dict[str, Any]:
    return {"type": f"item.{what}", "item": {"id": key, "type": kind}}


def turn(*items: dict[str, Any], tokens: tuple[int, int] = (100, 10)) -> list[dict[str, Any]]:
    usage = {"input_tokens": tokens[0], "cached_input_tokens": 0, "output_tokens": tokens[1]}
    return [{"type": "turn.started"}, *items, {"type": "turn.completed", "usage": usage}]


THREAD = {"type": "thread.started", "thread_id": "th"}
ROUNDS: list[tuple[str, list[dict[str, Any]], int]] = [
    ("no tool", [item("completed", "m", "agent_message"), item("completed", "r", "reasoning")], 1),
    ("one", [item("started", "a"), item("completed", "a")], 2),
    ("one after the other", [item(w, k) for k in "abc" for w in ("started", "completed")], 4),
    ("side by side", [item("started", k) for k in "abc"] + [item("completed", k) for k in "bca"], 2),
    ("never started", [item("completed", "p", "file_change"), item("completed", "q", "file_change")], 3),
    ("updated", [item("started", "a"), item("updated", "a"), item("completed", "a"), item("updated", "a")], 2),
    ("search", [item("started", "w", "web_search"), item("completed", "w", "web_search")], 1),
]


@pytest.mark.parametrize(("items", "calls"), [case[1:] for case in ROUNDS], ids=[case[0] for case in ROUNDS])
def test_a_turn_asks_once_more_behind_each_round_of_tools(
    tmp_path: Path, items: list[dict[str, Any]], calls: int
) -> None:
    result = lowered(tmp_path, THREAD, *turn(*items))
    graph = graph_of(result)
    assert (graph.node_count, int(graph.input_length.sum()), int(graph.output_length.sum())) == (calls, 100, 10)
    assert ("calls-divided" in result.findings.counts) is (calls > 1)
    assert told(result, "times-missing").where.field == "timestamp"


@pytest.mark.parametrize("files", [1, 2])
def test_usage_is_the_threads_so_far(tmp_path: Path, files: int) -> None:
    first, second = turn(tokens=(100, 10)), turn(tokens=(250, 14))
    if files == 1:
        lowered(tmp_path, THREAD, *first, *second)
    else:
        lowered(tmp_path, THREAD, *first, name="1.jsonl")
        lowered(tmp_path, THREAD, *second, name="2.jsonl")
    graph = graph_of(load_graph([tmp_path]))
    assert (graph.input_length.tolist(), graph.output_length.tolist()) == ([100, 150], [10, 4])


def test_usage_that_falls_was_begun_anew(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, THREAD, *turn(tokens=(100, 10)), *turn(tokens=(90, 14))))
    assert graph.input_length.tolist() == [100, 90]


def test_turns_without_usage_are_told(tmp_path: Path) -> None:
    failed = {"type": "turn.failed", "error": {"message": "x"}}
    result = lowered(tmp_path, THREAD, {"type": "turn.started"}, failed, *turn())
    assert told(result, "call-without-usage").where.line == 3
    only = lowered(tmp_path, THREAD, {"type": "turn.started"}, failed)
    assert [code for code, _, _ in errors(only)] == ["corpus-without-calls"]


def test_more_calls_than_tokens_are_refused(tmp_path: Path) -> None:
    tools = [item(what, str(n)) for n in range(30) for what in ("started", "completed")]
    assert errors(lowered(tmp_path, THREAD, *turn(*tools, tokens=(20, 1)))) == [
        ("length-out-of-bounds", 63, "usage.input_tokens")
    ]
