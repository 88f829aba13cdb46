"""Whole replays: the kernel beside a naive one, macro-steps beside single passes, and what holds of any ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from ledgers import columns, naively_observed, observed
from playproof_kernel import simulate
from playproof_reference.replay import replay as naive_replay
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph, Trigger
from playproof_spec.ledger import Ledger
from playproof_spec.machines import NodeState, PlayState, RequestState
from strategies import (
    canceled,
    deployments,
    graphs,
    hosted_deployments,
    hosted_pairs,
    loads,
    optioned_deployments,
    overlapping_deployments,
    pressed,
    sglang_deployments,
)

every_deployment = deployments | optioned_deployments() | sglang_deployments | hosted_deployments


def replayed(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> Ledger:
    return simulate(prove(graph), deployment, load)


@given(graph=graphs(), deployment=every_deployment, load=loads, macro=st.booleans())
def test_equals_the_naive_replay(graph: Graph, deployment: DeploymentSpec, load: LoadSpec, macro: bool) -> None:
    ledger = replayed(graph, deployment, replace(load, macro_steps=macro))
    expected = naively_observed(naive_replay(graph, deployment, load))
    for state in set(expected["state"]):
        event(state)
    event(f"preempted: {sum(expected['preemptions']) > 0}")
    assert observed(ledger) == expected


@given(
    data=st.data(),
    graph=graphs(max_plays=6, max_nodes=8),
    deployment=hosted_deployments | hosted_pairs(),
    load=loads,
)
def test_host_memory_equals_the_naive_one(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    load = data.draw(canceled(graph, load))
    expected = naively_observed(naive_replay(graph, deployment, load))
    event(f"split: {deployment.decode is not None}")
    for counter in ("loads", "evictions", "deferrals", "retries"):
        event(f"{counter}: {sum(use[counter] for use in expected['hosts']) > 0}")
    ledger = replayed(graph, deployment, load)
    assert observed(ledger) == expected
    assert (ledger.hosts["resident"] <= ledger.hosts["used"]).all()
    assert (ledger.hosts["used"] <= ledger.hosts["capacity"]).all()
    assert columns(ledger) == columns(replayed(graph, deployment, replace(load, macro_steps=False)))


@given(data=st.data(), graph=graphs(), deployment=every_deployment, load=loads, macro=st.booleans())
def test_equals_the_naive_replay_when_clients_give_up(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec, macro: bool
) -> None:
    load = data.draw(canceled(graph, load))
    expected = naively_observed(naive_replay(graph, deployment, load))
    for state in set(expected["state"]):
        event(f"{deployment.worker.backend.name}: {state}")
    assert observed(replayed(graph, deployment, replace(load, macro_steps=macro))) == expected


@given(data=st.data(), graph=graphs(max_plays=6, max_nodes=8), deployment=every_deployment, load=loads)
def test_a_macro_step_equals_its_single_passes(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    load = data.draw(canceled(graph, load))
    whole = replayed(graph, deployment, load)
    single = replayed(graph, deployment, replace(load, macro_steps=False))
    assert columns(whole) == columns(single)


@given(data=st.data(), graph=graphs(max_plays=6, max_nodes=8), deployment=optioned_deployments(ahead=True), load=loads)
def test_passes_scheduled_ahead_equal_the_naive_ones_when_clients_give_up(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    load = data.draw(canceled(graph, load))
    whole = replayed(graph, deployment, load)
    assert observed(whole) == naively_observed(naive_replay(graph, deployment, load))
    assert columns(whole) == columns(replayed(graph, deployment, replace(load, macro_steps=False)))


under_overlap = st.tuples(graphs(max_plays=6, max_nodes=8), overlapping_deployments) | pressed(overlap=True)


@given(data=st.data(), both=under_overlap, load=loads, stop_ms=st.none() | st.integers(0, 120))
def test_the_overlap_schedule_equals_the_naive_one_when_clients_give_up(
    data: st.DataObject, both: tuple[Graph, DeploymentSpec], load: LoadSpec, stop_ms: int | None
) -> None:
    graph, deployment = both
    load = data.draw(canceled(graph, load))
    if stop_ms is not None:
        load = replace(load, stop_ns=stop_ms * 1_000_000)
    whole = replayed(graph, deployment, load)
    event(f"retracted: {int(whole.preemptions.sum()) > 0}")
    assert observed(whole) == naively_observed(naive_replay(graph, deployment, load))
    assert columns(whole) == columns(replayed(graph, deployment, replace(load, macro_steps=False)))


@given(graph=graphs(max_plays=6), deployment=every_deployment, load=loads)
def test_invariants_of_every_ledger(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    ledger = replayed(graph, deployment, load)
    check_terminal_states(ledger)
    check_edges_and_floors(graph, ledger, load)
    check_failures(graph, ledger)
    if load.lanes is not None:
        check_lanes(ledger, load.lanes)


@given(graph=graphs(max_plays=6), deployment=every_deployment, load=loads, data=st.data())
def test_placeholder_floors_of_dependents_delay_nothing(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, data: st.DataObject
) -> None:
    """Any floor up to the earliest root's says no more than any other; the roots' own floors are moved by one shift."""
    is_root = np.diff(graph.edge_offsets) == 0
    floors = graph.not_before_ms + 100.0
    earliest = float(floors[is_root].min())
    early = ~is_root & (floors <= earliest)
    placeholders = floors.copy()
    placeholders[early] = data.draw(st.sampled_from([0.0, 0.5, earliest]))
    moved = [replace(graph, not_before_ms=column) for column in (floors, placeholders)]
    assert columns(replayed(moved[0], deployment, load)) == columns(replayed(moved[1], deployment, load))
    # A corpus of which all is later by 100 ms runs alike, for its origin is too.
    assert columns(replayed(graph, deployment, load)) == columns(replayed(moved[0], deployment, load))


def check_terminal_states(ledger: Ledger) -> None:
    """Invariants 1, 7 and 8: everything ends, once, and the counts add up."""
    ended = {NodeState.COMPLETED, NodeState.FAILED, NodeState.SKIPPED}
    assert {NodeState(int(state)) for state in ledger.node_state} <= ended
    dispatched = ledger.dispatched_ns >= 0
    assert np.array_equal(dispatched, ledger.node_state != NodeState.SKIPPED)
    assert np.array_equal(dispatched, ledger.terminal_ns >= 0)
    assert np.array_equal(ledger.node_state == NodeState.COMPLETED, ledger.request_state == RequestState.FINISHED)
    assert (ledger.terminal_ns[dispatched] >= ledger.dispatched_ns[dispatched]).all()
    # A completion is never earlier than the first token: nothing completes at prefill unless it asked for nothing.
    tokens = (ledger.node_state == NodeState.COMPLETED) & (ledger.output_length > 0)
    assert (ledger.terminal_ns[tokens] == ledger.last_token_ns[tokens]).all()
    assert (ledger.first_token_ns[tokens] >= ledger.first_admit_ns[tokens]).all()
    # Gaps are those of completed requests.
    lengths = ledger.output_length[ledger.node_state == NodeState.COMPLETED]
    assert int(ledger.gap_count.sum()) == int(np.maximum(lengths - 1, 0).sum())
    assert int(ledger.decode_tokens.sum()) == int(ledger.output_length.sum())


def check_edges_and_floors(graph: Graph, ledger: Ledger, load: LoadSpec) -> None:
    """Invariant 6: no dependent starts before its event plus delay, nor before its floor."""
    for target in range(graph.node_count):
        if ledger.dispatched_ns[target] < 0:
            continue
        for number in range(int(graph.edge_offsets[target]), int(graph.edge_offsets[target + 1])):
            source = int(graph.edge_source[number])
            at_dispatch = graph.edge_trigger[number] == Trigger.DISPATCH
            event_ns = (ledger.dispatched_ns if at_dispatch else ledger.terminal_ns)[source]
            assert event_ns >= 0
            if not at_dispatch:
                assert ledger.node_state[source] == NodeState.COMPLETED
            delay_ns = round(float(graph.edge_delay_ms[number]) / load.speedup * 1e6)
            assert ledger.dispatched_ns[target] >= event_ns + delay_ns
        start = ledger.play_start_ns[graph.node_play[target]]
        assert ledger.dispatched_ns[target] >= start


def check_failures(graph: Graph, ledger: Ledger) -> None:
    """Invariant 4: after its first failure a play dispatches nothing more, and its skipped nodes never ran."""
    for number, play in enumerate(graph.plays):
        failed = ledger.play_failed_node[number]
        states = ledger.node_state[play.nodes]
        if failed < 0:
            assert (states == NodeState.COMPLETED).all()
            assert ledger.play_state[number] == PlayState.COMPLETED
        else:
            assert ledger.play_state[number] == PlayState.FAILED
            assert (ledger.dispatched_ns[play.nodes] <= ledger.terminal_ns[failed]).all()
        assert ledger.play_settled_ns[number] == ledger.terminal_ns[play.nodes].max()


def check_lanes(ledger: Ledger, lanes: int) -> None:
    """Invariant 5: every play once, in order; a lane takes its next play at the instant its last one settles."""
    assert (np.diff(ledger.play_start_ns) >= 0).all()
    for lane in range(lanes):
        plays = np.flatnonzero(ledger.play_lane == lane)
        assert np.array_equal(ledger.play_start_ns[plays][1:], ledger.play_settled_ns[plays][:-1])
    assert (ledger.play_start_ns[: min(lanes, len(ledger.play_start_ns))] == 0).all()
    assert (ledger.play_lane >= 0).all()


@given(both=pressed(), load=loads)
def test_retraction_equals_the_naive_one(both: tuple[Graph, DeploymentSpec], load: LoadSpec) -> None:
    graph, deployment = both
    whole = replayed(graph, deployment, load)
    single = replayed(graph, deployment, replace(load, macro_steps=False))
    event(f"retracted: {int(whole.preemptions.sum()) > 0}")
    assert columns(whole) == columns(single)
    assert observed(whole) == naively_observed(naive_replay(graph, deployment, load))
