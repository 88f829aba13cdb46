"""The checker passes whatever the kernel does, on random corpora, deployments and loads of every kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec
from hypothesis import assume, event, given
from hypothesis import strategies as st
from loading import loading_cases
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, RouterSpec, SpeculationSpec, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch
from specs import report_of
from strategies import (
    canceled,
    deployments,
    disaggregated,
    graphs,
    hosted_deployments,
    hosted_pairs,
    loads,
    optioned_deployments,
    pressed,
    routers,
    rows,
    sglang_deployments,
    speculations,
    times,
)

import playproof as pp
from playproof.checking import Verdict, check_lines

plain = deployments | optioned_deployments() | sglang_deployments | disaggregated()
everywhere = plain | hosted_deployments | hosted_pairs()
stops = st.integers(0, 160).map(lambda half_ms: half_ms * 500_000)


def checked(report: pp.Report, may_cancel: bool = False) -> Verdict:
    document = msgspec.json.decode(report.to_json())
    lines = report.request_dicts()
    graph = report.proven.graph
    return check_lines(graph, lines, document, document["deployment"], document["load"], may_cancel=may_cancel)


def told(verdict: Verdict) -> list[str]:
    return [str(item) for item in verdict.findings.items]


@given(graphs(), everywhere, loads, st.booleans(), st.none() | routers)
def test_replays_pass(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, by_play: bool, router: RouterSpec | None
) -> None:
    deployment = replace(deployment, router=router)
    report = report_of(prove(graph), deployment, replace(load, play_scope=by_play))
    event(f"failed: {report.to_dict()['failed_trajectories'] > 0}")
    assert told(checked(report)) == []


@given(pressed(), loads)
def test_replays_under_pressure_pass(case: tuple[Graph, DeploymentSpec], load: LoadSpec) -> None:
    report = report_of(prove(case[0]), case[1], load)
    event(f"preempted: {report.to_dict()['preemptions'] > 0}")
    assert told(checked(report)) == []


@given(loading_cases())
def test_replays_with_host_memory_pass(case: tuple[Graph, DeploymentSpec, LoadSpec]) -> None:
    graph, deployment, load = case
    report = report_of(prove(graph), deployment, replace(load, stop_ns=None))
    assert told(checked(report, may_cancel=bool(load.cancellations))) == []


@given(graphs(), deployments | disaggregated(plain=True), loads, speculations)
def test_speculating_replays_pass(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, speculation: SpeculationSpec
) -> None:
    assume(deployment.worker.backend.name == "VLLM")
    report = report_of(prove(graph), replace(deployment, speculation=speculation), load)
    assert told(checked(report)) == []


@given(st.data(), graphs(), plain, loads)
def test_replays_with_cancellations_pass(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    report = report_of(prove(graph), deployment, data.draw(canceled(graph, load)))
    event(f"canceled: {report.to_dict()['canceled_requests'] > 0}")
    assert told(checked(report, may_cancel=True)) == []


@st.composite
def sessions(draw: st.DrawFn) -> Graph:
    """Draw an ordinary trace: each play a session, whose turns follow one another. Only such traces are stopped."""
    block_size, drawn = draw(rows())
    for before, row in pairwise([{"session_id": ""}, *drawn]):
        follows = before["session_id"] == row["session_id"]
        edge = {"request_id": before.get("request_id"), "relation": "sequence", "delay_ms": draw(times)}
        row["dependencies"] = [edge] if follows else []
    return replace(sketch(drawn, block_size=block_size), facts={"input_kind": "ordinary"})


@given(sessions(), everywhere, loads, stops)
def test_stopped_replays_pass(graph: Graph, deployment: DeploymentSpec, load: LoadSpec, stop: int) -> None:
    report = report_of(prove(graph), deployment, replace(load, stop_ns=stop))
    event(f"unfinished: {report.to_dict()['unfinished_requests'] > 0}")
    assert told(checked(report)) == []


def test_runs_from_a_snapshot_on_are_said_not_to_be_checked() -> None:
    graph = sketch([{"request_id": "a", "output_length": 2}])
    load = LoadSpec(lanes=1, snapshot_seed=1)
    verdict = checked(report_of(prove(graph), DeploymentSpec(1, WorkerSpec(8, 4), 100), load))
    assert verdict.kind == "under run controls"
    late = verdict.rule("run-late")
    assert (late.facts, late.why_not) == (0, "runs from a snapshot on are not checked yet")
