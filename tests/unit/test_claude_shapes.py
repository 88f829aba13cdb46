"""Claude Code sessions in the shapes that gateways, newer versions and several processes give them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Severity
from playproof_spec.graph import Graph
from recorders import Recorder, lowered_sessions, write

Record = dict[str, Any]


def requested(record: Record, request: str) -> Record:
    return {**record, "requestId": request}


def under(record: Record, uuid: str, parent: str | None) -> Record:
    return {**record, "uuid": uuid, "parentUuid": parent}


def calls_of(graph: Graph) -> list[tuple[int, int, float, float]]:
    """Return (tokens in, tokens out, start, service) of each call in time order, in ms."""
    order = sorted(range(graph.node_count), key=lambda n: (graph.not_before_ms[n], graph.input_length[n]))
    return [
        (
            int(graph.input_length[n]),
            int(graph.output_length[n]),
            float(graph.not_before_ms[n]),
            float(graph.recorded_api_time_ms[n]),
        )
        for n in order
    ]


def lengths(result: Lowered) -> list[int]:
    return sorted(graph_of(result).input_length.tolist())


# One message id for many calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "requests"),
    [
        ([40, 60, 90], ["", "", ""]),
        ([40, 40, 40], ["r1", "r2", "r3"]),
        ([90, 60, 40], ["", "r2", ""]),
        ([40, 40, 41], ["", "r2", "r2b"]),
        (list(range(16, 116, 2)), [""] * 50),
    ],
    ids=["prompts differ", "requests differ", "prompts shrink", "one has no request", "fifty"],
)
@pytest.mark.parametrize("message", ["gw", "chatcmpl-0", ""])
def test_calls_of_one_message_id_are_told_apart_behind_an_input(
    tmp_path: Path, message: str, prompts: list[int], requests: list[str]
) -> None:
    main = Recorder()
    rows = []
    for number, (tokens, request) in enumerate(zip(prompts, requests, strict=True)):
        call = main.call(3 * number + 2, message, tokens)
        rows += [main.user(3 * number + 1), requested(call, request) if request else call]
    result = lowered_sessions(tmp_path, {"s.jsonl": rows})
    assert calls_of(graph_of(result)) == [(tokens, 5, 3000.0 * number, 1000.0) for number, tokens in enumerate(prompts)]
    # Without a message id the request's or the row's is taken, and those differ.
    reused = len(prompts) - 1 if message else 0
    assert result.findings.counts.get("message-id-reused", 0) == (1 if reused else 0)
    if reused:
        assert told(result, "message-id-reused").found == str(reused)


def test_a_requests_rows_are_one_call_though_an_input_stands_between_them(tmp_path: Path) -> None:
    main = Recorder()
    rows = [main.user(1), requested(main.call(2, "gw", 40, "t1"), "r1"), main.result(3, "t1")]
    rows += [requested(main.call(4, "gw", 40), "r1"), main.user(6), requested(main.call(7, "gw", 56), "r2")]
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows}))
    assert calls_of(graph) == [(40, 5, 0.0, 3000.0), (56, 5, 5000.0, 1000.0)]


def test_where_nothing_tells_rows_of_one_id_are_one_call_with_a_warning(tmp_path: Path) -> None:
    main = Recorder()
    rows = [main.user(1), main.call(2, "gw", 40, "t1"), main.result(3, "t1"), main.call(4, "gw", 40)]
    rows += [main.user(5), main.call(6, "gw", 40)]
    result = lowered_sessions(tmp_path, {"s.jsonl": rows})
    assert graph_of(result).node_count == 1
    item = told(result, "call-merged")
    assert (item.severity, item.found, item.where.line) == (Severity.WARNING, "2", 4)


def test_a_row_that_hangs_on_a_row_of_its_message_is_surely_of_it(tmp_path: Path) -> None:
    main = Recorder()
    rows = [under(main.user(1), "u1", None), under(main.call(2, "gw", 40, "t1"), "a1", "u1")]
    rows += [under(main.result(3, "t1"), "u2", "a1"), under(main.call(4, "gw", 40), "a2", "a1")]
    result = lowered_sessions(tmp_path, {"s.jsonl": rows})
    assert calls_of(graph_of(result)) == [(40, 5, 0.0, 3000.0)]
    assert "call-merged" not in result.findings.counts


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("shift", [0, 100], ids=["at one time", "later"])
def test_sessions_of_one_gateway_copy_nothing_of_each_other(tmp_path: Path, names: str, shift: int) -> None:
    """Prompts and instants may be equal; what two records of one call share is more than that."""
    files = {}
    for number, name in enumerate(names):
        own = Recorder(f"session{number}", version="2.1.100")
        own.count = 50 * number
        at = shift * number
        rows = [own.user(at + 1), own.call(at + 2, "gw", 40), own.user(at + 3), own.call(at + 4, "gw", 60)]
        files[f"{name}.jsonl"] = rows
    result = lowered_sessions(tmp_path, files)
    assert lengths(result) == [40, 40, 60, 60]
    assert "calls-copied" not in result.findings.counts


def test_a_copy_that_lost_its_request_is_still_the_same_call(tmp_path: Path) -> None:
    first, second = Recorder("first"), Recorder("second")
    second.count = 50
    old = [first.user(1), requested(first.call(2, "c1", 40), "r1")]
    copied = [{name: value for name, value in row.items() if name != "requestId"} for row in old]
    result = lowered_sessions(
        tmp_path, {"a.jsonl": old, "b.jsonl": [*copied, second.user(60), second.call(61, "c2", 80)]}
    )
    assert lengths(result) == [40, 80]


# Iterations ----------------------------------------------------------------------------------------------------------


def iteration(kind: str, tokens: int, output: int, **more: Any) -> Record:
    return {"type": kind, "input_tokens": tokens, "output_tokens": output, **more}


def with_iterations(main: Recorder, at: float, tokens: int, output: int, *iterations: Record | None) -> Record:
    call = main.call(at, "c1", tokens, output_tokens=output)
    call["message"]["usage"]["iterations"] = list(iterations) if iterations != (None,) else None
    return call


ITERATIONS: list[tuple[str, tuple[int, int], list[Record | None], list[tuple[int, int, str]]]] = [
    ("none", (40, 5), [None], [(40, 5, "m")]),
    ("an empty list", (40, 5), [], [(40, 5, "m")]),
    ("one", (40, 5), [iteration("message", 40, 5)], [(40, 5, "m")]),
    # The sum counts for nothing where it is another one.
    ("one of two told", (90, 9), [iteration("message", 40, 5)], [(40, 5, "m")]),
    ("two", (90, 9), [iteration("message", 40, 5), iteration("message", 50, 4)], [(40, 5, "m"), (50, 4, "m")]),
    (
        "an advisor beside a message that is told by its own counts only",
        (40, 5),
        [iteration("advisor_message", 99, 5, model="big")],
        [(40, 5, "m"), (99, 5, "big")],
    ),
    (
        "an advisor in between",
        (90, 10),
        [iteration("message", 40, 5), iteration("advisor_message", 99, 5, model="big"), iteration("message", 50, 5)],
        [(40, 5, "m"), (99, 5, "big"), (50, 5, "m")],
    ),
    (
        "a compaction before",
        (40, 5),
        [iteration("compaction", 900, 5), iteration("message", 40, 5)],
        [(900, 5, "m"), (40, 5, "m")],
    ),
    (
        "a fallback to another model",
        (40, 5),
        [iteration("message", 40, 5), iteration("fallback_message", 44, 5, model="small")],
        [(40, 5, "m"), (44, 5, "small")],
    ),
    (
        "no type",
        (90, 10),
        [{"input_tokens": 40, "output_tokens": 5}, iteration("message", 50, 5)],
        [(40, 5, "m"), (50, 5, "m")],
    ),
    ("one without a prompt", (40, 5), [iteration("message", 0, 0), iteration("message", 40, 5)], [(40, 5, "m")]),
]


@pytest.mark.parametrize(
    ("usage", "iterations", "wanted"), [case[1:] for case in ITERATIONS], ids=[c[0] for c in ITERATIONS]
)
def test_each_iteration_is_a_call(
    tmp_path: Path, usage: tuple[int, int], iterations: list[Record | None], wanted: list[tuple[int, int, str]]
) -> None:
    main = Recorder()
    rows = [main.user(1), with_iterations(main, 11, *usage, *iterations), main.user(12), main.call(13, "c2", 200)]
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows}))
    found = [
        (int(graph.input_length[n]), int(graph.output_length[n]), graph.models[graph.node_model[n]])
        for n in sorted(range(graph.node_count), key=lambda n: graph.not_before_ms[n])
    ]
    assert found[:-1] == wanted
    # The time of the message is that of its calls together, and the next message waits for the last of them.
    assert float(graph.recorded_api_time_ms.sum()) == pytest.approx(10_000 + 1000)
    last = f"s:main:{len(wanted)}"
    assert edges(graph, last) == [f"s:main:{len(wanted) - 1} —sequence/completion +1000 ms"]


def test_the_last_rows_iterations_count_and_its_tools_are_the_last_calls(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    early = with_iterations(main, 3, 40, 1, iteration("message", 40, 1))
    early["message"]["content"] = [{"type": "tool_use", "id": "t1", "name": "Task", "input": {}}]
    late = with_iterations(main, 11, 90, 10, iteration("message", 40, 5), iteration("message", 50, 5))
    rows = [main.user(1), early, late, main.result(30, "t1", {"agentId": "x", "status": "completed"})]
    rows += [main.call(31, "c2", 99)]
    files = {"s.jsonl": rows, "s/subagents/agent-x.jsonl": [agent.user(12), agent.call(20, "a1", 24)]}
    graph = graph_of(lowered_sessions(tmp_path, files))
    assert edges(graph, "s:agent:x:0") == ["s:main:1 —spawn/completion +1000 ms"]
    assert "s:agent:x:0 —join/completion +10000 ms" in edges(graph, "s:main:2")


def test_calls_of_a_message_that_wrote_nothing_share_its_time_alike(tmp_path: Path) -> None:
    main = Recorder()
    row = with_iterations(main, 11, 90, 0, iteration("message", 40, 0), iteration("message", 50, 0))
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": [main.user(1), row]}))
    assert graph.recorded_api_time_ms.tolist() == [5000.0, 5000.0]


def test_an_iteration_out_of_bounds_is_told_by_its_place(tmp_path: Path) -> None:
    main = Recorder()
    row = with_iterations(main, 2, 40, 5, iteration("message", 40, 5), iteration("message", -1, 5))
    item = told(lowered_sessions(tmp_path, {"s.jsonl": [main.user(1), row]}), "length-out-of-bounds")
    assert (item.where.line, item.where.field) == (2, "message.usage.iterations[1].input_tokens")


# Usage that arrives late ---------------------------------------------------------------------------------------------

ZERO = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}


@pytest.mark.parametrize(
    ("usages", "wanted"),
    [
        ([ZERO, {"input_tokens": 40, "output_tokens": 9}], (40, 9)),
        ([None, ZERO, {"input_tokens": 40, "output_tokens": 9}], (40, 9)),
        ([{"input_tokens": 8, "output_tokens": 3}, {"input_tokens": 40, "output_tokens": 9}], (40, 9)),
        # Each figure grows in another row; all are the last row's.
        (
            [
                {"input_tokens": 40, "output_tokens": 50},
                {"input_tokens": 8, "cache_read_input_tokens": 32, "output_tokens": 9},
            ],
            (40, 9),
        ),
        ([{"input_tokens": 40, "output_tokens": 9}, ZERO], (40, 9)),
        ([{"input_tokens": 40, "output_tokens": 9}, None], (40, 9)),
    ],
    ids=["zero first", "none first", "growing", "from one row", "zero last", "none last"],
)
def test_the_figures_of_a_message_are_those_of_its_last_row_that_has_some(
    tmp_path: Path, usages: list[Record | None], wanted: tuple[int, int]
) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    rows = [main.user(1)]
    for number, usage in enumerate(usages):
        row = main.call(2 + number, "c1", 1, *(["t1"] if number == 0 else []))
        row["message"]["usage"] = usage
        rows.append(row)
    rows += [main.result(20, "t1", {"agentId": "x", "status": "completed"}), main.call(22, "c2", 60)]
    files = {"s.jsonl": rows, "s/subagents/agent-x.jsonl": [agent.user(6), agent.call(9, "a1", 24)]}
    result = lowered_sessions(tmp_path, files)
    graph = graph_of(result)
    assert calls_of(graph)[0] == (*wanted, 0.0, 1000.0 * len(usages))
    assert edges(graph, "s:agent:x:0")[0].startswith("s:main:0 —spawn/completion")
    assert "s:agent:x:0 —join/completion +11000 ms" in edges(graph, "s:main:1")
    assert "call-without-usage" not in result.findings.counts


def test_figures_that_arrive_behind_a_tools_result_are_still_the_messages(tmp_path: Path) -> None:
    main = Recorder()
    first = main.call(2, "c1", 0, "t1", output_tokens=0)
    rows = [main.user(1), first, main.result(3, "t1"), main.call(4, "c1", 40), main.user(5), main.call(6, "c2", 60)]
    assert calls_of(graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows}))) == [
        (40, 5, 0.0, 3000.0),
        (60, 5, 4000.0, 1000.0),
    ]


def test_a_gateway_with_one_id_whose_figures_arrive_last(tmp_path: Path) -> None:
    main = Recorder()
    rows = []
    for number, tokens in enumerate([40, 60, 90]):
        at = 5 * number
        rows += [main.user(at + 1), main.call(at + 2, "gw", 0, output_tokens=0), main.call(at + 3, "gw", tokens)]
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows}))
    assert calls_of(graph) == [(40, 5, 0.0, 2000.0), (60, 5, 5000.0, 2000.0), (90, 5, 10000.0, 2000.0)]


def test_what_a_call_without_figures_saw_the_next_call_saw(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    hollow = main.call(21, "c2", 0, output_tokens=0)
    rows = [main.user(1), main.call(2, "c1", 40, "t1")]
    rows += [main.result(20, "t1", {"agentId": "x", "status": "completed"}), hollow, main.call(25, "c3", 60)]
    files = {"s.jsonl": rows, "s/subagents/agent-x.jsonl": [agent.user(3), agent.call(9, "a1", 24)]}
    result = lowered_sessions(tmp_path, files)
    graph = graph_of(result)
    assert edges(graph, "s:main:1") == [
        "s:agent:x:0 —join/completion +11000 ms",
        "s:main:0 —sequence/completion +18000 ms",
    ]
    assert told(result, "call-without-usage").found == "1"


# Files beside sessions, and workflows --------------------------------------------------------------------------------


def session(name: str = "s") -> list[Record]:
    main = Recorder(name)
    return [main.user(1), main.call(2, "c1", 40)]


BESIDE: list[tuple[str, Any]] = [
    ("sessions-index.json", {"version": 1, "entries": [{"sessionId": "s"}], "originalPath": "/x"}),
    ("sessions-index.json", {"version": 2}),
    ("s/subagents/workflows/wf_1/journal.jsonl", [{"type": "started", "key": "v2:1", "agentId": "a"}]),
    ("s/subagents/workflows/wf_1/journal.jsonl", [{"type": "launched", "at": 5}, {"type": 5, "key": []}]),
    ("moved/j.jsonl", [{"type": "result", "key": "v2:1", "agentId": "a", "result": {"message": 5}}]),
    ("s/workflows/wf_1.json", {"runId": "wf_1", "taskId": "k", "script": 'a "quoted" {', "agentCount": 1}),
    ("moved/run.json", {"runId": "wf_1", "workflowName": "x", "timestamp": 5, "version": {"a": 1}}),
    ("s/tool-results/toolu_1.json", [{"a": 1}]),
]


@pytest.mark.parametrize(("name", "content"), BESIDE, ids=[f"{number}-{c[0]}" for number, c in enumerate(BESIDE)])
@pytest.mark.parametrize("pretty", [False, True])
def test_files_beside_sessions_are_noted_and_change_nothing(
    tmp_path: Path, name: str, content: Any, pretty: bool
) -> None:
    folder = write(tmp_path / "with", {"s.jsonl": session()})
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        path.write_text(json.dumps(content, indent=2 if pretty else None))
    result = load_graph([folder])
    item = told(result, "file-beside")
    assert (item.severity, item.found, item.where.file) == (Severity.NOTE, "1", str(path))
    without = load_graph([write(tmp_path / "without", {"s.jsonl": session()})])
    assert graph_of(result).request_ids == graph_of(without).request_ids


@pytest.mark.parametrize("content", ["", "\n", " \n\n"])
@pytest.mark.parametrize("name", ["a.jsonl", "z.jsonl", "s/subagents/agent-x.jsonl"])
def test_empty_session_files_are_noted(tmp_path: Path, name: str, content: str) -> None:
    folder = write(tmp_path, {"s.jsonl": session()})
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)
    result = load_graph([folder])
    assert graph_of(result).node_count == 1
    assert told(result, "file-beside").where.file == str(folder / name)


def test_an_empty_file_alone_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    result = load_graph([tmp_path])
    assert result.graph is None
    assert told(result, "file-empty").severity is Severity.ERROR


def test_an_empty_file_among_those_of_another_format_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "b.jsonl").write_text('{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1]}\n')
    assert told(load_graph([tmp_path]), "file-empty").severity is Severity.ERROR


def launched(main: Recorder, at: float, use: str, **result: Any) -> Record:
    return main.result(at, use, {"status": "async_launched", "taskType": "local_workflow", **result})


def workflow_use(main: Recorder, at: float, name: str, tokens: int, use: str) -> Record:
    call = main.call(at, name, tokens)
    call["message"]["content"] = [{"type": "tool_use", "id": use, "name": "Workflow", "input": {}}]
    return call


def notified(main: Recorder, at: float, how: str, task: str, use: str) -> list[Record]:
    text = f"<task-notification>\n<task-id>{task}</task-id>\n<status>completed</status>\n</task-notification>"
    if how == "by tool use":
        text = text.replace(f"<task-id>{task}</task-id>", f"<tool-use-id>{use}</tool-use-id>")
    if how == "queued":
        queued = main.record("attachment", at, attachment={"type": "queued_command", "prompt": text})
        return [queued, main.user(at)]
    if how == "asked for":
        return [main.result(at, "t9", {"task": {"task_id": task, "status": "completed"}})]
    return [main.user(at, text)]


@pytest.mark.parametrize("how", ["told", "by tool use", "queued", "asked for"])
@pytest.mark.parametrize("known_by", ["result", "run's file"])
@pytest.mark.parametrize(("run", "agents"), [("wf_1", 1), ("wf_dd551b62-a1d", 3)])
def test_agents_of_a_workflow_hang_at_its_use_and_its_notification_joins_them(
    tmp_path: Path, how: str, known_by: str, run: str, agents: int
) -> None:
    main = Recorder()
    ids: dict[str, Any] = {"taskId": "k7", "runId": run} if known_by == "result" else {"taskId": "k7"}
    rows = [main.user(1), workflow_use(main, 3, "c1", 40, "w1"), launched(main, 4, "w1", **ids)]
    rows += [main.call(5, "c2", 60), *notified(main, 30, how, "k7", "w1"), main.call(33, "c3", 90)]
    files: dict[str, Any] = {"s.jsonl": rows}
    if known_by != "result":
        files[f"s/workflows/{run}.json"] = {"runId": run, "taskId": "k7"}
    for number in range(agents):
        agent = Recorder(agent=f"x{number}")
        path = f"s/subagents/workflows/{run}/agent-x{number}.jsonl"
        files[path] = [agent.user(6 + number), agent.call(10 + number, f"a{number}", 24)]
        files[path.replace(".jsonl", ".meta.json")] = {"agentType": "workflow-subagent", "spawnDepth": 1}
    result = lowered_sessions(tmp_path, files)
    graph = graph_of(result)
    for number in range(agents):
        assert edges(graph, f"s:agent:x{number}:0") == [f"s:main:0 —spawn/completion +{3000 + 1000 * number} ms"]
        assert f"s:agent:x{number}:0 —join/completion +{20000 - 1000 * number} ms" in edges(graph, "s:main:2")
    assert not {"agent-unlinked", "agent-unrecorded"} & result.findings.counts.keys()


def test_a_workflow_that_is_resumed_has_the_agents_that_began_behind_it(tmp_path: Path) -> None:
    main, early, late = Recorder(), Recorder(agent="early"), Recorder(agent="late")
    rows = [main.user(1), workflow_use(main, 3, "c1", 40, "w1"), launched(main, 4, "w1", taskId="k1", runId="wf_1")]
    rows += [workflow_use(main, 20, "c2", 60, "w2"), launched(main, 21, "w2", taskId="k2", runId="wf_1")]
    rows += [main.user(40), main.call(41, "c3", 80)]
    folder = "s/subagents/workflows/wf_1"
    files = {"s.jsonl": rows, f"{folder}/agent-early.jsonl": [early.user(5), early.call(9, "a1", 24)]}
    files[f"{folder}/agent-late.jsonl"] = [late.user(22), late.call(29, "b1", 24)]
    graph = graph_of(lowered_sessions(tmp_path, files))
    assert edges(graph, "s:agent:early:0") == ["s:main:0 —spawn/completion +2000 ms"]
    assert edges(graph, "s:agent:late:0") == ["s:main:1 —spawn/completion +2000 ms"]


def test_an_agent_of_a_run_that_nothing_names_is_unlinked(tmp_path: Path) -> None:
    main, agent = Recorder(), Recorder(agent="x")
    rows = [main.user(1), workflow_use(main, 3, "c1", 40, "w1"), launched(main, 4, "w1", taskId="k1", runId="wf_1")]
    own = [agent.user(5), agent.call(9, "a1", 24)]
    result = lowered_sessions(tmp_path, {"s.jsonl": rows, "s/subagents/workflows/wf_2/agent-x.jsonl": own})
    assert told(result, "agent-unlinked").found == "agent:x"
    assert edges(graph_of(result), "s:agent:x:0") == []


# Halves of characters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "halves"),
    [
        (r"\ud83d", 1),
        (r"cut \uD83D", 1),
        (r"\ude00 low", 1),
        (r"\ude00\ud83d", 2),
        (r"\ud83d\ud83d\ude00", 1),
        (r"\ud83d\u0041", 1),
        (r"\ud83d\n", 1),
        (r"\ud83d\ude00", 0),
        (r"\\ud83d", 0),
        (r"\\\ud83d", 1),
        (r"\\\\ud83d \u00e9 é", 0),
    ],
)
@pytest.mark.parametrize("place", ["tool's result", "text", "tool's input", "name"])
def test_halves_of_characters_are_read_and_counted(tmp_path: Path, place: str, text: str, halves: int) -> None:
    main = Recorder()
    call = main.call(2, "c1", 40, "t1")
    blocks: list[Record] = [{"type": "text", "text": "MARK"}, {"type": "tool_use", "id": "t1", "input": {"a": "MARK"}}]
    call["message"]["content"] = {"text": blocks[:1], "tool's input": blocks[1:]}.get(place, [])
    result_of_tool = {"name": {"MARK": 1}, "tool's result": "MARK"}.get(place)
    rows = [main.user(1), call, main.result(3, "t1", result_of_tool), main.call(4, "c2", 60)]
    lines = [json.dumps(row).replace("MARK", text) for row in rows]
    (tmp_path / "s.jsonl").write_text("".join(line + "\n" for line in lines))
    result = load_graph([tmp_path], options=LoweringOptions(block_size=16))
    assert calls_of(graph_of(result)) == [(40, 5, 0.0, 1000.0), (60, 5, 2000.0, 1000.0)]
    if not halves:
        assert "surrogate-lone" not in result.findings.counts
    else:
        assert told(result, "surrogate-lone").found == str(halves)


# Two processes in one file, and branches -----------------------------------------------------------------------------


def two_processes(offset: float) -> list[Record]:
    """One process asks at 10 and 20 s, another `offset` later each time, both behind one call; services take 4 s."""
    main = Recorder()
    rows = [under(main.user(1), "u0", None), under(main.call(3, "c0", 64), "a0", "u0")]
    events = []
    for process, late in (("p", 0.0), ("q", offset)):
        above = "a0"
        for number, at in enumerate((10 + late, 20 + late)):
            tokens = 80 + 16 * number + (160 if process == "q" else 0)
            events.append((at, under(main.user(at), f"{process}u{number}", above)))
            above = f"{process}a{number}"
            call = main.call(at + 4, f"{process}{number}", tokens)
            events.append((at + 4, under(call, above, f"{process}u{number}")))
    return rows + [row for _, row in sorted(events, key=lambda event: event[0])]


@pytest.mark.parametrize("offset", [0.5, 1.0, 4.5, 9.0])
def test_parents_tell_the_chains_of_two_processes_apart(tmp_path: Path, offset: float) -> None:
    result = lowered_sessions(tmp_path, {"s.jsonl": two_processes(offset)})
    graph = graph_of(result)
    late = 1000 * offset
    assert calls_of(graph)[1:] == [
        (80, 5, 9000.0, 4000.0),
        (240, 5, 9000.0 + late, 4000.0),
        (96, 5, 19000.0, 4000.0),
        (256, 5, 19000.0 + late, 4000.0),
    ]
    by_label = {label: graph.request_ids[n] for n, label in enumerate(graph.source_request_ids)}
    for process, gap in (("p", 7000.0), ("q", 7000.0 + late)):
        first, second = by_label[f"{process}0"], by_label[f"{process}1"]
        assert edges(graph, second) == [f"{first} —sequence/completion +6000 ms"]
        (edge,) = edges(graph, first)
        assert edge.startswith(f"{by_label['c0']} —")
        assert edge.endswith(f"+{gap:g} ms")
        # Both go on from the prompt of 64 tokens, and share nothing else.
        ids = graph.hash_ids(graph.request_ids.index(first)).tolist()
        assert ids[:4] == graph.hash_ids(graph.request_ids.index(by_label["c0"])).tolist()[:4]
    assert told(result, "conversation-branched").found == "2"


def test_two_processes_that_begin_a_file_are_two_conversations(tmp_path: Path) -> None:
    main = Recorder()
    rows = [under(main.user(1), "u1", None), under(main.user(2), "v1", None)]
    rows += [under(main.call(3, "v", 48), "b1", "v1"), under(main.call(5, "u", 32), "a1", "u1")]
    rows += [under(main.user(6), "u2", "a1"), under(main.user(7), "v2", "b1")]
    rows += [under(main.call(8, "u'", 40), "a2", "u2"), under(main.call(9, "v'", 64), "b2", "v2")]
    graph = graph_of(lowered_sessions(tmp_path, {"s.jsonl": rows}))
    assert calls_of(graph) == [
        (32, 5, 0.0, 4000.0),
        (48, 5, 1000.0, 1000.0),
        (40, 5, 5000.0, 2000.0),
        (64, 5, 6000.0, 2000.0),
    ]


@pytest.mark.parametrize("twig", ["progress", "attachment", "system"])
def test_records_of_other_kinds_are_links_of_the_chain(tmp_path: Path, twig: str) -> None:
    rows = two_processes(1.0)
    main = Recorder()
    data = {"type": "hook_progress"}
    other: dict[str, dict[str, Any]] = {
        "progress": {"data": data},
        "attachment": {"attachment": data},
        "system": {"subtype": "informational"},
    }
    between = under(main.record(twig, 10, **other[twig]), "twig", "pu0")
    at = next(number for number, row in enumerate(rows) if row["uuid"] == "pu0")
    rows.insert(at + 1, between)
    rows = [{**row, "parentUuid": "twig"} if row["uuid"] == "pa0" else row for row in rows]
    plain = graph_of(lowered_sessions(tmp_path / "a", {"s.jsonl": two_processes(1.0)}))
    graph = graph_of(lowered_sessions(tmp_path / "b", {"s.jsonl": rows}))
    assert calls_of(graph) == calls_of(plain)


def test_a_chain_with_a_broken_link_is_read_in_file_order(tmp_path: Path) -> None:
    rows = [{**row, "parentUuid": "gone"} for row in two_processes(1.0)]
    result = lowered_sessions(tmp_path, {"s.jsonl": rows})
    assert graph_of(result).node_count == 5
    assert "conversation-branched" not in result.findings.counts


def test_going_back_is_no_branch(tmp_path: Path) -> None:
    main = Recorder()
    rows = [under(main.user(1), "u1", None), under(main.call(3, "c1", 64), "a1", "u1")]
    rows += [under(main.user(5), "u2", "a1"), under(main.call(7, "c2", 80), "a2", "u2")]
    rows += [under(main.user(9), "u3", "a1"), under(main.call(11, "c3", 96), "a3", "u3")]
    result = lowered_sessions(tmp_path, {"s.jsonl": rows})
    graph = graph_of(result)
    assert edges(graph, "s:main:2") == ["s:main:1 —sequence/completion +2000 ms"]
    assert "conversation-branched" not in result.findings.counts


def test_results_that_came_in_together_are_all_the_next_calls(tmp_path: Path) -> None:
    """A row hangs on the last of them; the others hang on the call that asked for them."""
    main = Recorder()
    agents = [Recorder(agent=name) for name in ("x", "y")]
    rows = [under(main.user(1), "u1", None), under(main.call(3, "c1", 64, "t1"), "a1", "u1")]
    rows += [under(main.call(4, "c1", 64, "t2"), "a2", "a1")]
    rows += [under(main.result(20, "t1", {"agentId": "x", "status": "completed"}), "r1", "a1")]
    rows += [under(main.result(21, "t2", {"agentId": "y", "status": "completed"}), "r2", "a2")]
    rows += [under(main.call(23, "c2", 96), "a3", "r2")]
    files: dict[str, Any] = {"s.jsonl": rows}
    for agent in agents:
        name = agent.base["agentId"]
        files[f"s/subagents/agent-{name}.jsonl"] = [agent.user(5), agent.call(9, f"{name}1", 24)]
    into = edges(graph_of(lowered_sessions(tmp_path, files)), "s:main:1")
    assert [edge for edge in into if "join" in edge] == [
        "s:agent:x:0 —join/completion +12000 ms",
        "s:agent:y:0 —join/completion +12000 ms",
    ]


@pytest.mark.parametrize("names", [*itertools.permutations("abc")])
@pytest.mark.parametrize("ends", [(500, 60), (60, 500)], ids=["parent ends last", "branch ends last"])
@pytest.mark.parametrize("ids", ["kept", "new"])
def test_a_branchs_copies_are_their_origins(tmp_path: Path, names: Any, ends: tuple[int, int], ids: str) -> None:
    """A branch of a branch, too, whatever the files are called, whichever ended last, and if it made ids anew."""
    first, second, third = Recorder("first"), Recorder("second"), Recorder("third")
    second.count, third.count = 50, 90

    def copied(rows: list[Record], session: str) -> list[Record]:
        made = []
        for row in rows:
            origin = {"sessionId": row["sessionId"], "messageUuid": row["uuid"]}
            uuid = row["uuid"] if ids == "kept" else f"{session}-{row['uuid']}"
            made.append({**row, "uuid": uuid, "sessionId": session, "forkedFrom": origin})
        return made

    old = [first.user(1), first.call(2, "c1", 40), first.user(3), first.call(4, "c2", 60)]
    branch = [*copied(old, "second"), second.user(50), second.call(52, "c3", 80)]
    twig = [*copied(branch, "third"), third.user(70), third.call(72, "c4", 100)]
    old += [first.user(ends[0]), first.call(ends[0] + 2, "c5", 80)]
    branch += [second.user(ends[1] + 100), second.call(ends[1] + 102, "c6", 96)]
    files = {f"{name}.jsonl": rows for name, rows in zip(names, (old, branch, twig), strict=True)}
    graph = graph_of(lowered_sessions(tmp_path, files))
    owners = {graph.source_request_ids[n]: graph.plays[graph.node_play[n]].play_id for n in range(graph.node_count)}
    assert owners == {"c1": "first", "c2": "first", "c5": "first", "c3": "second", "c6": "second", "c4": "third"}
    in_order = {f"{name}.jsonl": rows for name, rows in zip("abc", (old, branch, twig), strict=True)}
    assert graph_digest(graph_of(lowered_sessions(tmp_path / "x", in_order))) == graph_digest(graph)
