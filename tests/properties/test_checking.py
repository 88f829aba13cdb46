"""The checker passes whatever the kernel does, on random corpora, deployments and loads of every kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from controlled import controlled_loads, steady, steady_pairs
from honest_runs import KINDS, honest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from loading import loading_case, loading_cases
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, RouterSpec, SpeculationSpec
from playproof_spec.findings import InvalidInput
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch
from seeded_faults import numbers, plus, put, why_untold
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


def test_a_retracted_prompt_between_two_chunks_has_no_seat() -> None:
    """On an SGLang decode worker with one seat, what was handed over sits down between two chunks of a prompt."""

    def row(name: str, tokens: int, output: int, base: int, **more: object) -> dict[str, object]:
        hash_ids = list(range(base, base + tokens))
        return {"request_id": name, "play_id": name, "hash_ids": hash_ids, "output_length": output, **more}

    rows = [
        row("retracted", 4, 2, 0),
        row("first", 3, 0, 100),
        row("second", 5, 0, 300, play_id="first", dependencies=["first"]),
        row("seated", 4, 1, 200, not_before_ms=40.0),
    ]
    role: dict[str, Any] = {"block_size": 1, "max_sequences": 1, "chunked_prefill_size": 1, "max_prefill_tokens": 4}
    role |= {"rules": "aisimulate", "timing": pp.FixedTiming(prefill_ms=10, decode_ms=1)}
    pair = pp.Disaggregated(
        backend="sglang", prefill=pp.PrefillRole(blocks=60, **role), decode=pp.DecodeRole(blocks=10, **role)
    )
    report = pp.replay(prove(sketch(rows, block_size=1)), pair)
    lines = {line["request_id"]: line for line in report.request_dicts()}
    assert [entry["at_ms"] for entry in lines["retracted"]["admission_history"]] == [30.0, 70.0, 120.0]
    assert lines["seated"]["admission_history"][1]["at_ms"] == 160.0
    assert lines["retracted"]["terminal_time_ms"] == lines["seated"]["terminal_time_ms"] == 161.0
    assert told(checked(report)) == []


@given(pressed(), loads)
def test_replays_under_pressure_pass(case: tuple[Graph, DeploymentSpec], load: LoadSpec) -> None:
    report = report_of(prove(case[0]), case[1], load)
    event(f"preempted: {report.to_dict()['preemptions'] > 0}")
    assert told(checked(report)) == []


def test_what_a_load_brought_for_a_request_that_is_admitted_later() -> None:
    """A worker finds on its device what it loaded from shared host memory, where another worker's block had gone."""
    graph, deployment, load = loading_case(261241, shared=True, split=False)
    report = report_of(prove(graph), deployment, replace(load, stop_ns=None))
    assert told(checked(report, may_cancel=True)) == []


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


@given(graphs(max_plays=3, max_nodes=5, max_blocks=5), steady() | steady_pairs(), controlled_loads)
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_runs_from_a_snapshot_on_pass(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    try:
        report = report_of(prove(graph), deployment, load)
    except InvalidInput:
        assume(False)  # the trace contradicts itself at a cut
    figures = report.to_dict()
    shifts = (figures["agentic_profile"] or {}).get("idle_shifts")
    event(f"a profile: {load.profile is not None}, timers moved: {bool(shifts)}, valid: {figures['valid']}")
    assert told(checked(report)) == []


def test_a_timer_that_a_moved_request_sets_is_not_moved_itself() -> None:
    """An idle cap brings a request forward; its dispatch sets a timer, which only the next move brings forward."""
    rows: list[dict[str, object]] = [
        {"request_id": "before", "not_before_ms": 0.0},
        {"request_id": "late", "not_before_ms": 100.0},
        {
            "request_id": "spawned",
            "not_before_ms": 100.0,
            "dependencies": [{"request_id": "late", "relation": "spawn", "trigger": "dispatch", "delay_ms": 5.0}],
        },
    ]
    profile = pp.Profile(duration_seconds=0.02, tree_idle_cap_seconds=0.001, global_idle_cap_seconds=1.0)
    load = pp.Load(lanes=1, snapshot_seed=1, profile=profile)
    timing = pp.FixedTiming(prefill_ms=0.5, decode_ms=1)
    report = pp.replay(prove(sketch(rows)), pp.Deployment(timing=timing), load)
    shifts = report.to_dict()["agentic_profile"]["idle_shifts"]
    assert [(shift["at_ms"], shift["timer_count"]) for shift in shifts[:2]] == [(1.0, 1), (2.5, 1)]
    starts = {
        line["request_id"]: line["dispatched_at_ms"] for line in report.request_dicts() if line["play_ordinal"] == 0
    }
    assert starts == {"late": 1.0, "spawned": 2.5}
    assert told(checked(report)) == []


def test_the_timers_of_a_play_that_has_failed_are_not_moved() -> None:
    """A refused root fails its play at once, and skips another root; then an idle cap moves all timers of the run."""
    long = {"input_length": 20, "hash_ids": [1, 2]}
    rows: list[dict[str, object]] = [
        {"request_id": "x", "play_id": "refused", **long},
        {"request_id": "a", "play_id": "cut", **long},
        {"request_id": "b", "play_id": "cut", "not_before_ms": 2.0},
        {"request_id": "c", "play_id": "cut", "not_before_ms": 20.0},
    ]
    profile = pp.Profile(duration_seconds=0.02, tree_idle_cap_seconds=0.004, global_idle_cap_seconds=0.001)
    load = pp.Load(lanes=2, snapshot_seed=0, profile=profile)
    deployment = pp.Deployment(timing=pp.FixedTiming(prefill_ms=7, decode_ms=2), context_length=18)
    report = pp.replay(prove(sketch(rows)), deployment, load)
    figures = report.to_dict()
    assert figures["agentic_profile"]["idle_shifts"][0]["at_ms"] == 1.0
    assert figures["skipped_requests"] > 0
    assert told(checked(report)) == []


def test_a_moved_request_may_fail_its_play_at_once() -> None:
    """An idle cap brings a request forward that is refused at once: the play fails at the instant of the shift."""
    rows: list[dict[str, object]] = [
        {"request_id": "a"},
        {"request_id": "b", "not_before_ms": 20.0, "input_length": 20, "hash_ids": [1, 2]},
    ]
    profile = pp.Profile(duration_seconds=0.02, tree_idle_cap_seconds=0.001, global_idle_cap_seconds=0.001)
    load = pp.Load(lanes=1, snapshot_seed=0, profile=profile)
    deployment = pp.Deployment(timing=pp.FixedTiming(prefill_ms=7, decode_ms=2), context_length=18)
    report = pp.replay(prove(sketch(rows)), deployment, load)
    first = next(iter(report.request_dicts()))
    assert (first["request_id"], first["dispatched_at_ms"], first["terminal_time_ms"]) == ("b", 1.0, 1.0)
    assert report.to_dict()["agentic_profile"]["idle_shifts"][0]["at_ms"] == 1.0
    assert told(checked(report)) == []


# Facts altered ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_an_altered_number_is_found(kind: str, data: st.DataObject) -> None:
    """Whichever number of an honest run becomes another is found, unless it is one of which nothing tells."""
    run = honest(kind).altered()
    told_of = [place for place in numbers({"lines": run.lines, "report": run.report}) if not why_untold(kind, place[0])]
    place, before = data.draw(st.sampled_from(told_of))
    amounts = [1, -1, 3, 1000] if isinstance(before, int) else [0.001, -0.001, 7.0, -7.0, 1e6]
    put({"lines": run.lines, "report": run.report}, place, plus(data.draw(st.sampled_from(amounts))))
    verdict = run.check()
    event(", ".join(rule.code for rule in verdict.rules if rule.broken))
    assert not verdict.ok
