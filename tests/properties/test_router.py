"""The KV router beside a naive one, which asks every worker for every block anew: placements and all that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from ledgers import columns, naively_observed, observed
from loading import loading_cases
from playproof_kernel import ReplayFault, simulate
from playproof_reference.replay import replay as naive_replay
from playproof_spec.certificate import prove
from playproof_spec.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    RouterSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch
from strategies import (
    canceled,
    deployments,
    disaggregated,
    graphs,
    hosted_deployments,
    hosted_pairs,
    loads,
    optioned_deployments,
    routers,
    sglang_deployments,
)

every_vllm = deployments | optioned_deployments() | hosted_deployments | disaggregated([Backend.VLLM]) | hosted_pairs()
every_sglang = sglang_deployments | disaggregated([Backend.SGLANG])


def check(data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    load = data.draw(canceled(graph, load))
    expected = naively_observed(naive_replay(graph, deployment, load))
    ledger = simulate(prove(graph), deployment, load)
    assert observed(ledger) == expected
    assert columns(ledger) == columns(simulate(prove(graph), deployment, replace(load, macro_steps=False)))
    in_turn = simulate(prove(graph), replace(deployment, router=None), load)
    event(f"elsewhere than in turn: {ledger.worker.tolist() != in_turn.worker.tolist()}")
    event(f"knew of a prefix: {max(expected['overlap']) > 0}")


@st.composite
def several(draw: st.DrawFn, drawn: st.SearchStrategy[DeploymentSpec]) -> DeploymentSpec:
    """Draw a deployment with a KV router and something to choose from."""
    deployment = replace(draw(drawn), workers=draw(st.integers(2, 4)), router=draw(routers))
    if deployment.decode is None:
        return deployment
    return replace(deployment, decode=replace(deployment.decode, workers=draw(st.integers(2, 4))))


@given(data=st.data(), graph=graphs(max_plays=6, max_nodes=8), deployment=several(every_vllm), load=loads)
def test_equals_the_naive_router(data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    check(data, graph, deployment, load)


@given(data=st.data(), graph=graphs(max_plays=6, max_nodes=8), deployment=several(every_sglang), load=loads)
def test_equals_the_naive_router_with_trees(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    check(data, graph, deployment, load)


def agree_in_turn(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> bool:
    """Whether both replays agree without the router; if not, that is another test's to show."""
    try:
        return observed(simulate(prove(graph), deployment, load)) == naively_observed(
            naive_replay(graph, deployment, load)
        )
    except ReplayFault:
        return False


@given(case=loading_cases(), router=routers)
def test_equals_the_naive_router_over_host_memory(
    case: tuple[Graph, DeploymentSpec, LoadSpec], router: RouterSpec
) -> None:
    """Private pools, and shared ones, whose copies end while other passes are under way."""
    graph, deployment, load = case
    assume(agree_in_turn(graph, deployment, load))
    deployment = replace(deployment, router=router)
    expected = naively_observed(naive_replay(graph, deployment, load))
    event(f"knew of a prefix: {max(expected['overlap']) > 0}")
    event(f"loaded: {sum(use['loads'] for use in expected['hosts']) > 0}")
    assert observed(simulate(prove(graph), deployment, load)) == expected


@given(case=loading_cases(), router=routers)
def test_a_macro_step_tells_what_its_single_passes_do(
    case: tuple[Graph, DeploymentSpec, LoadSpec], router: RouterSpec
) -> None:
    graph, deployment, load = case
    deployment = replace(deployment, router=router)
    whole = simulate(prove(graph), deployment, load)
    event(f"knew of a prefix: {int(max(whole.route_overlap.max(), whole.decode_route_overlap.max())) > 0}")
    assert columns(whole) == columns(simulate(prove(graph), deployment, replace(load, macro_steps=False)))


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("decode", [False, True])
def test_what_a_prompt_holds_depends_on_no_role(prefill: bool, decode: bool) -> None:
    """`b1` holds the prompt and the answer of `a0`, so it says what `a0` is, as soon as one role reuses answers."""
    rows = [{"request_id": f"{name}{number}", "hash_ids": [number]} for name in ("a", "b") for number in range(3)]
    rows[4]["dependencies"] = ["a0", "a1"]
    shape = {"play_id": "one", "input_length": 1, "output_length": 0}
    graph = sketch([{**shape, **row} for row in rows], block_size=2)
    timing = Timing(TimingKind.FIXED, prefill_ns=0, decode_ns=0)
    worker = WorkerSpec(8, 1, max_batched_tokens=1, max_sequences=1, timing=timing, reuse_output=prefill)
    other = DecodeSpec(2, replace(worker, reuse_output=decode), TransferSpec(bytes_per_token=0))
    deployment = DeploymentSpec(2, worker, context_length=8, decode=other, router=RouterSpec())
    ledger = simulate(prove(graph), deployment, LoadSpec())
    assert observed(ledger) == naively_observed(naive_replay(graph, deployment, LoadSpec()))
    # With nothing told of `a0` the second worker has less to do.
    assert ledger.decode_worker.tolist() == [0, 1, 1, 0, int(not (prefill or decode)), 0]
