"""Runs that are stopped at an instant: beside a naive one, in macro-steps or not, and as the head of the whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from ledgers import columns, naively_observed, observed
from playproof_kernel import simulate
from playproof_reference.replay import replay as naive_replay
from playproof_spec.certificate import prove
from playproof_spec.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    SpeculationSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.graph import Graph
from playproof_spec.ledger import Ledger
from playproof_spec.machines import NodeState
from playproof_spec.sketch import sketch
from strategies import (
    deployments,
    disaggregated,
    graphs,
    hosted_deployments,
    hosted_pairs,
    loads,
    optioned_deployments,
    sglang_deployments,
    speculations,
)

# Half milliseconds, at which passes of these deployments end; and instants between.
stops = st.one_of(st.integers(0, 160).map(lambda half_ms: half_ms * 500_000), st.integers(0, 80_000_000))
everywhere = (
    deployments | optioned_deployments() | sglang_deployments | disaggregated() | hosted_deployments | hosted_pairs()
)


def replayed(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> Ledger:
    return simulate(prove(graph), deployment, load)


def hosted(deployment: DeploymentSpec) -> bool:
    """Whether any worker has host memory, beside which nothing is speculated."""
    decode = deployment.decode
    return deployment.worker.host is not None or (decode is not None and decode.worker.host is not None)


def without_handoffs(what: dict[str, Any]) -> dict[str, Any]:
    """The naive run does not say how far a handoff is."""
    return {name: value for name, value in what.items() if name != "handoff_state"}


@given(graph=graphs(), deployment=everywhere, load=loads, stop=stops, macro=st.booleans())
def test_equals_the_naive_run_stopped(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, stop: int, macro: bool
) -> None:
    load = replace(load, stop_ns=stop)
    expected = naively_observed(naive_replay(graph, deployment, load))
    event(f"in flight: {'dispatched' in expected['state']}")
    event(f"not issued: {bool({'ready', 'blocked'} & set(expected['state']))}")
    ledger = replayed(graph, deployment, replace(load, macro_steps=macro))
    assert without_handoffs(observed(ledger)) == without_handoffs(expected)


@given(graph=graphs(max_plays=6), deployment=everywhere, load=loads, stop=stops)
def test_a_macro_step_that_is_cut_equals_its_single_passes(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, stop: int
) -> None:
    load = replace(load, stop_ns=stop)
    whole = replayed(graph, deployment, load)
    assert columns(whole) == columns(replayed(graph, deployment, replace(load, macro_steps=False)))


@given(graph=graphs(max_plays=6), deployment=everywhere, load=loads, stop=stops, speculation=st.none() | speculations)
def test_what_ended_by_then_ended_the_same(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, stop: int, speculation: SpeculationSpec | None
) -> None:
    if deployment.worker.backend.name == "VLLM" and not hosted(deployment) and not deployment.worker.ahead:
        deployment = replace(deployment, speculation=speculation)
    whole = replayed(graph, deployment, load)
    head = replayed(graph, deployment, replace(load, stop_ns=stop))
    ended = whole.terminal_ns <= stop
    ended &= whole.terminal_ns >= 0
    assert np.array_equal(ended, head.terminal_ns >= 0)
    for name in ("node_state", "request_state", "terminal_ns", "first_token_ns", "last_token_ns", "output_length"):
        assert np.array_equal(getattr(whole, name)[ended], getattr(head, name)[ended])
    issued = (whole.dispatched_ns >= 0) & (whole.dispatched_ns <= stop)
    assert np.array_equal(issued, head.dispatched_ns >= 0)
    assert np.array_equal(head.node_state == NodeState.DISPATCHED, issued & ~ended)
    # Nothing is counted that had not ended: not a pass, nor what it computed, nor its time.
    for name in ("passes", "busy_ns", "prefill_tokens", "decode_tokens"):
        assert (getattr(head, name) <= getattr(whole, name)).all()
    assert (head.busy_ns <= stop).all()
    # After the last request host memory may still be written.
    assert head.end_ns == (min(whole.end_ns, stop) if ended.sum() == (whole.terminal_ns >= 0).sum() else stop)


def _instants(ledger: Ledger) -> list[int]:
    """Return when something happens in a run."""
    columns_of_time = (ledger.dispatched_ns, ledger.first_token_ns, ledger.terminal_ns, ledger.admission_at_ns)
    return sorted({int(time) for column in columns_of_time for time in column if time >= 0})


@pytest.mark.parametrize("split", [False, True], ids=["aggregated", "prefill-decode"])
@pytest.mark.parametrize("backend", list(Backend))
def test_a_stop_at_the_very_end_of_a_macro_step(backend: Backend, split: bool) -> None:
    """The last pass of a step ends as any other does: in prefill/decode, its requests are handed to the driver."""
    timing = Timing(TimingKind.FIXED, prefill_ns=2_000_000, decode_ns=1_000_000)
    worker = WorkerSpec(16, 4, timing=timing, backend=backend)
    decode = DecodeSpec(1, worker, TransferSpec(bytes_per_token=0)) if split else None
    deployment = DeploymentSpec(1, worker, context_length=64, decode=decode)
    rows = [{"request_id": name, "input_length": 4, "output_length": tokens} for name, tokens in (("a", 5), ("b", 9))]
    graph = sketch([*rows, {**rows[0], "request_id": "c", "dependencies": ["a"]}], block_size=4)
    instants = _instants(replayed(graph, deployment, LoadSpec()))
    assert len(instants) >= 5
    for stop in instants:
        load = LoadSpec(stop_ns=stop)
        stopped = replayed(graph, deployment, load)
        assert columns(stopped) == columns(replayed(graph, deployment, replace(load, macro_steps=False)))
        expected = naively_observed(naive_replay(graph, deployment, load))
        assert without_handoffs(observed(stopped)) == without_handoffs(expected)
