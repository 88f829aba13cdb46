"""ATIF trajectories: steps that are calls, times that are ends, and trajectories that refer to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, load_graph
from playproof_spec.findings import Severity


def at(seconds: float) -> str:
    return f"2026-03-01T10:{int(seconds) // 60:02d}:{seconds % 60:06.3f}+00:00"


def user(seconds: float | None = None, **changes: Any) -> dict[str, Any]:
    return {"source": "user", "message": "x"} | ({} if seconds is None else {"timestamp": at(seconds)}) | changes


def agent(seconds: float | None, prompt: int | None = 20, output: int | None = 3, **changes: Any) -> dict[str, Any]:
    metrics = {"prompt_tokens": prompt, "completion_tokens": output}
    step: dict[str, Any] = {"source": "agent", "message": "x"}
    if seconds is not None:
        step["timestamp"] = at(seconds)
    return step | {"metrics": {name: value for name, value in metrics.items() if value is not None}} | changes


def ran(**reference: str) -> dict[str, Any]:
    return {"observation": {"results": [{"content": "x", "subagent_trajectory_ref": [reference]}]}}


def trajectory(*steps: dict[str, Any], version: str = "ATIF-v1.7", **changes: Any) -> dict[str, Any]:
    numbered = [{"step_id": number + 1} | step for number, step in enumerate(steps)]
    about = {"name": "hand", "version": "1", "model_name": "m"}
    return {"schema_version": version, "agent": about, "steps": numbered} | changes


def lowered(folder: Path, files: dict[str, dict[str, Any]], indent: int | None = None) -> Lowered:
    for name, document in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=indent) + "\n")
    return load_graph([folder])


def errors(result: Lowered) -> list[tuple[str, str]]:
    return [(i.code, i.where.field) for i in result.findings.items if i.severity is Severity.ERROR]


@pytest.mark.parametrize("version", [f"ATIF-v1.{minor}" for minor in range(9)])
@pytest.mark.parametrize("layout", ["pretty", "one line", "a line of many"])
def test_every_version_and_layout(tmp_path: Path, version: str, layout: str) -> None:
    document = trajectory(user(0), agent(2), user(3), agent(7, 40), version=version)
    name = "t.jsonl" if layout == "a line of many" else "t.json"
    graph = graph_of(lowered(tmp_path, {name: document}, 2 if layout == "pretty" else None))
    (first, second) = graph.request_ids
    assert edges(graph, second) == [f"{first} —sequence/completion +1000 ms"]
    assert graph.recorded_api_time_ms.tolist() == [2000.0, 4000.0]


@pytest.mark.parametrize("version", ["ATIF-v2.0", "ATIF-v0.9", "ATIF-1.4"])
def test_another_version_is_refused_by_name(tmp_path: Path, version: str) -> None:
    assert errors(lowered(tmp_path, {"t.json": trajectory(agent(2), version=version)})) == [
        ("value-unknown", "schema_version")
    ]


WAYS: list[tuple[str, str, str, dict[str, str]]] = [
    ("beside", "a.json", "b.json", {"trajectory_path": "b.json"}),
    ("below", "run/a.json", "run/sub/b.json", {"trajectory_path": "sub/b.json"}),
    ("above", "run/a.json", "b.json", {"trajectory_path": "../b.json"}),
    ("read first", "z.json", "b.json", {"trajectory_path": "./b.json"}),
    ("by session", "a.json", "other/b.json", {"session_id": "child"}),
    ("path gone, by session", "a.json", "b.json", {"trajectory_path": "moved.json", "session_id": "child"}),
]


@pytest.mark.parametrize(("mine", "other", "reference"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_a_subagent_is_found(tmp_path: Path, mine: str, other: str, reference: dict[str, str]) -> None:
    parent = trajectory(user(0), agent(2, **ran(**reference)), user(30), agent(33), session_id="root")
    child = trajectory(user(3), agent(5), user(6), agent(9), session_id="child")
    graph = graph_of(lowered(tmp_path, {mine: parent, other: child}))
    root, kid = mine.removesuffix(".json"), other.removesuffix(".json")
    assert [play.play_id for play in graph.plays] == [root]
    assert edges(graph, f"{kid}:0") == [f"{root}:0 —spawn/completion +1000 ms"]
    assert f"{kid}:1 —join/completion +21000 ms" in edges(graph, f"{root}:1")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("0", "a:b")])
def test_embedded_subagents_are_found_by_their_id(tmp_path: Path, names: tuple[str, str]) -> None:
    inner = [trajectory(user(3), agent(4 + n), trajectory_id=name) for n, name in enumerate(names)]
    steps = [user(0), agent(2, **ran(trajectory_id=names[1])), user(20), agent(21, **ran(trajectory_id=names[0]))]
    graph = graph_of(lowered(tmp_path, {"t.json": trajectory(*steps, subagent_trajectories=inner)}))
    assert edges(graph, f"t:{names[1]}:0") == ["t:0 —spawn/completion +1000 ms"]
    assert edges(graph, f"t:{names[0]}:0")[0].startswith("t:1 —spawn/completion")
    assert f"t:{names[1]}:0 —join/completion +15000 ms" in edges(graph, "t:1")


def test_what_is_referred_to_and_not_there_is_told(tmp_path: Path) -> None:
    document = trajectory(user(0), agent(2, **ran(trajectory_path="gone.json")), continued_trajectory_ref="too.json")
    finding = told(lowered(tmp_path, {"t.json": document}), "agent-unrecorded")
    assert finding.found == "2"
    assert finding.where.field == "steps[1].observation.results[0].subagent_trajectory_ref[0]"


def test_two_parents_and_circles_are_refused_or_told(tmp_path: Path) -> None:
    refer = {"a.json": "c.json", "b.json": "c.json"}
    files = {name: trajectory(user(0), agent(2, **ran(trajectory_path=other))) for name, other in refer.items()}
    result = lowered(tmp_path / "two", {**files, "c.json": trajectory(user(3), agent(4))})
    assert "a refers" in told(result, "agent-link-conflict").message
    loop = {"a.json": "b.json", "b.json": "a.json"}
    files = {name: trajectory(user(0), agent(2, **ran(trajectory_path=other))) for name, other in loop.items()}
    assert [code for code, _ in errors(lowered(tmp_path / "loop", files))] == ["parent-conflict"]


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({}, "prompt_tokens"),
        ({"completion_tokens": 4}, "prompt_tokens"),
        ({"prompt_tokens": 0, "completion_tokens": 4}, "prompt_tokens"),
        ({"prompt_tokens": 4}, "completion_tokens"),
    ],
)
def test_a_call_without_a_length_says_which(tmp_path: Path, metrics: dict[str, int], name: str) -> None:
    document = trajectory(user(0), agent(2, metrics=metrics), user(3), agent(4))
    result = lowered(tmp_path, {"t.json": document})
    assert told(result, "call-without-usage").where.field == f"steps[1].metrics.{name}"
    assert graph_of(result).node_count == 1


def test_trajectories_without_times_run_when_their_play_does(tmp_path: Path) -> None:
    inner = trajectory(user(), agent(None), agent(None), trajectory_id="kid")
    steps = [user(100), agent(102, **ran(trajectory_id="kid")), user(130), agent(131)]
    graph = graph_of(lowered(tmp_path, {"t.json": trajectory(*steps, subagent_trajectories=[inner])}))
    floors = dict(zip(graph.request_ids, graph.not_before_ms.tolist(), strict=True))
    assert floors == {"t:0": 0.0, "t:kid:0": 2000.0, "t:kid:1": 2000.0, "t:1": 30000.0}
    assert edges(graph, "t:kid:0") == ["t:0 —spawn/completion +0 ms"]


@pytest.mark.parametrize("calls", [1, 2, 3, 7])
def test_a_step_of_several_calls_is_divided_and_told(tmp_path: Path, calls: int) -> None:
    document = trajectory(user(0), agent(9, 100, 10, llm_call_count=calls))
    result = lowered(tmp_path, {"t.json": document})
    graph = graph_of(result)
    assert (graph.node_count, int(graph.input_length.sum()), int(graph.output_length.sum())) == (calls, 100, 10)
    assert ("calls-divided" in result.findings.counts) is (calls > 1)


@pytest.mark.parametrize("calls", [-1, 101, 10**9])
def test_calls_of_a_step_have_bounds(tmp_path: Path, calls: int) -> None:
    document = trajectory(user(0), agent(9, 100, 10, llm_call_count=calls))
    assert errors(lowered(tmp_path, {"t.json": document})) == [("number-out-of-range", "steps[1].llm_call_count")]


def test_copied_steps_and_steps_without_a_model_are_no_calls(tmp_path: Path) -> None:
    steps = [agent(1, is_copied_context=True), user(2), agent(3), agent(4, llm_call_count=0, metrics={})]
    graph = graph_of(lowered(tmp_path, {"t.json": trajectory(*steps)}))
    assert graph.node_count == 1
    assert graph.facts["atif_counts"]["steps_copied"] == 1  # type: ignore[index]


def test_a_clock_that_went_back_is_raised(tmp_path: Path) -> None:
    result = lowered(tmp_path, {"t.json": trajectory(user(10), agent(12), user(11), agent(15))})
    assert told(result, "clock-went-back").found == "1"
    assert edges(graph_of(result), "t:1") == ["t:0 —sequence/completion +0 ms"]


BROKEN: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    ("source", trajectory(agent(1), user(2, source="robot")), ("value-unknown", "steps[1].source")),
    ("time", trajectory(agent(1, timestamp="soon")), ("time-unreadable", "steps[0].timestamp")),
    ("no steps", {"schema_version": "ATIF-v1.4", "agent": {}}, ("field-missing", "steps")),
    ("type", trajectory(agent(1, metrics={"prompt_tokens": "1"})), ("field-type", "steps[0].metrics.prompt_tokens")),
    ("negative", trajectory(agent(1, -5)), ("length-out-of-bounds", "steps[0].metrics.prompt_tokens")),
    (
        "within",
        trajectory(agent(1), subagent_trajectories=[{"schema_version": "ATIF-v1.7"}]),
        ("field-missing", "subagent_trajectories[0].steps"),
    ),
    (
        "ids",
        trajectory(agent(1), subagent_trajectories=[trajectory(agent(2), trajectory_id="x")] * 2),
        ("id-duplicate", "subagent_trajectories[1].trajectory_id"),
    ),
]


@pytest.mark.parametrize(("document", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_is_wrong_is_named(tmp_path: Path, document: dict[str, Any], wanted: tuple[str, str]) -> None:
    assert errors(lowered(tmp_path, {"t.json": document})) == [wanted]


def test_subagents_within_subagents_have_an_end(tmp_path: Path) -> None:
    document = trajectory(agent(1))
    for _ in range(70):
        document = trajectory(agent(1), subagent_trajectories=[document])
    assert [code for code, _ in errors(lowered(tmp_path, {"t.json": document}))] == ["json-too-deep"]


def test_trajectories_without_a_call_are_no_corpus(tmp_path: Path) -> None:
    assert errors(lowered(tmp_path, {"t.json": trajectory(user(1))})) == [("corpus-without-calls", "")]


def test_when_a_call_behind_tools_began_is_not_made_up(tmp_path: Path) -> None:
    tools: dict[str, Any] = {"observation": {"results": [{"content": "x"}]}}
    result = lowered(tmp_path, {"t.json": trajectory(user(0), agent(2, **tools), agent(7), user(8), agent(11))})
    # The first and the last call begin with their message; no step tells when the tools of the first had returned.
    graph = graph_of(result)
    assert [graph.node(node).recorded_api_time_ms for node in range(3)] == [2000.0, None, 3000.0]
    untold = told(result, "times-missing")
    assert (untold.found, untold.where.field) == ("1", "steps[2].observation")
