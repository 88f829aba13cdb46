"""Prefill/decode: the kernel beside a naive one, macro-steps beside single passes, and what holds of any handoff."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from ledgers import columns, naively_observed, observed
from playproof_kernel import simulate
from playproof_reference.replay import replay as naive_replay
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph
from playproof_spec.ledger import Ledger
from playproof_spec.machines import NodeState
from strategies import canceled, disaggregated, graphs, loads


def replayed(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> Ledger:
    return simulate(prove(graph), deployment, load)


@given(data=st.data(), graph=graphs(), deployment=disaggregated(), load=loads, macro=st.booleans())
def test_equals_the_naive_replay(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec, macro: bool
) -> None:
    load = data.draw(canceled(graph, load))
    expected = naively_observed(naive_replay(graph, deployment, load))
    for state in set(expected["state"]):
        event(f"{deployment.worker.backend.name}: {state}")
    event(f"pushed out at decode: {sum(expected['preemptions'][deployment.workers :]) > 0}")
    assert observed(replayed(graph, deployment, replace(load, macro_steps=macro))) == expected


@given(data=st.data(), graph=graphs(max_plays=6, max_nodes=8), deployment=disaggregated(), load=loads)
def test_a_macro_step_equals_its_single_passes(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    load = data.draw(canceled(graph, load))
    whole = replayed(graph, deployment, load)
    single = replayed(graph, deployment, replace(load, macro_steps=False))
    assert columns(whole) == columns(single)


@given(data=st.data(), graph=graphs(max_plays=6), deployment=disaggregated(), load=loads)
def test_steps_of_every_handoff(data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    ledger = replayed(graph, deployment, data.draw(canceled(graph, load)))
    completed = ledger.node_state == NodeState.COMPLETED
    # Whoever completed went through every step, in order, and had a token no sooner than it was activated.
    steps = [ledger.source_held_ns, ledger.destination_activated_ns, ledger.terminal_ns]
    for before, after in pairwise(steps):
        assert (before[completed] >= 0).all()
        assert (before[completed] <= after[completed]).all()
    assert (ledger.destination_reserved_ns[completed] <= ledger.destination_activated_ns[completed]).all()
    assert (ledger.source_released_ns[completed] >= ledger.destination_activated_ns[completed]).all()
    tokens = ledger.output_length > 0
    assert (ledger.first_token_ns[tokens] >= ledger.destination_activated_ns[tokens]).all()
    assert (ledger.decode_worker[tokens] >= 0).all()
    # Nothing is generated but at decode, and no seat of the client is left over.
    assert int(ledger.decode_tokens[deployment.workers :].sum()) == int(ledger.output_length.sum())
    assert np.isin(ledger.node_state, list(ENDED)).all()


ENDED = frozenset({NodeState.COMPLETED, NodeState.FAILED, NodeState.CANCELED, NodeState.SKIPPED})
