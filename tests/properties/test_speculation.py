"""Speculative decoding: the kernel beside a naive one, the generator's published values, and the rates in the mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from ledgers import columns, naively_observed, observed
from playproof_kernel import simulate
from playproof_kernel.engines.speculation import threefry
from playproof_reference.replay import replay as naive_replay
from playproof_reference.speculation import threefry as naive_threefry
from playproof_spec.certificate import prove
from playproof_spec.deployment import Backend, DeploymentSpec, LoadSpec, SpeculationSpec, Timing, TimingKind, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.ledger import Ledger
from playproof_spec.sketch import sketch
from strategies import canceled, deployments, disaggregated, graphs, loads, optioned_deployments, routers, speculations

MS = 1_000_000
WORDS = st.integers(0, 2**32 - 1)


def replayed(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> Ledger:
    return simulate(prove(graph), deployment, load)


@given(
    data=st.data(),
    graph=graphs(max_plays=6),
    deployment=deployments | optioned_deployments(ahead=False) | disaggregated((Backend.VLLM,)),
    speculation=speculations,
    load=loads,
)
def test_equals_the_naive_replay(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, speculation: SpeculationSpec, load: LoadSpec
) -> None:
    load = data.draw(canceled(graph, load))
    deployment = replace(deployment, speculation=speculation, router=data.draw(st.none() | routers))
    expected = naively_observed(naive_replay(graph, deployment, load))
    for state in set(expected["state"]):
        event(f"{'split' if deployment.decode else 'aggregated'}: {state}")
    event(f"preempted: {sum(expected['preemptions']) > 0}")
    event(f"several tokens in a pass: {expected['gaps'].get(0, 0) > 0}")
    assert observed(replayed(graph, deployment, load)) == expected


@given(graph=graphs(), deployment=deployments, load=loads)
def test_without_acceptance_a_pass_gives_one_token(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    """On a pool without pressure, and a budget that drafts cannot use up, rejected drafts change nothing."""
    worker = replace(deployment.worker, blocks=4096, max_batched_tokens=10_000, prefix_caching=False)
    plain = replace(deployment, worker=worker)
    drafting = replace(plain, speculation=SpeculationSpec(4, (0.0, 1.0, 1.0, 1.0)))
    assert columns(replayed(graph, drafting, load)) == columns(replayed(graph, plain, load))


@given(key=st.tuples(WORDS, WORDS), counter=st.tuples(WORDS, WORDS))
def test_both_generators_are_one(key: tuple[int, int], counter: tuple[int, int]) -> None:
    assert list(threefry(*key, *counter)) == naive_threefry(list(key), list(counter))


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_generator_gives_its_published_values(
    key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]
) -> None:
    """Known answers of the Random123 distribution."""
    assert threefry(*key, *counter) == words


def one_request(output: int, workers: int = 1, requests: int = 1) -> tuple[Graph, DeploymentSpec]:
    rows = [
        {"request_id": f"r{i}", "play_id": f"p{i}", "input_length": 1, "hash_ids": [i + 1], "output_length": output}
        for i in range(requests)
    ]
    worker = WorkerSpec(blocks=100_000, block_size=16, timing=Timing(TimingKind.FIXED, 5 * MS, MS))
    return sketch(rows, block_size=16), DeploymentSpec(workers, worker, 1_000_000)


def tokens_a_pass(rates: tuple[float, ...], seed: int, output: int = 60_001) -> float:
    graph, deployment = one_request(output)
    spec = SpeculationSpec(len(rates), rates, seed)
    ledger = replayed(graph, replace(deployment, speculation=spec), LoadSpec())
    return (output - 1) / (int(ledger.passes[0]) - 1)  # the first token is the prefill's


@pytest.mark.unwatched
@pytest.mark.parametrize("rates", [(0.7, 0.5, 0.2), (0.8, 0.6, 0.4), (0.1,), (0.95, 0.95, 0.95, 0.95)])
def test_the_mean_is_the_sum_of_the_chances(rates: tuple[float, ...]) -> None:
    """A pass gives 1 + r1 + r1·r2 + … tokens in the mean; some 30,000 passes come within one per cent of that."""
    expected = 1 + float(np.sum(np.cumprod(rates)))
    assert tokens_a_pass(rates, seed=42) == pytest.approx(expected, rel=0.01)


def test_seed_and_worker_give_streams_of_their_own() -> None:
    graph, deployment = one_request(400, workers=2, requests=2)

    def ends(seed: int) -> list[int]:
        spec = SpeculationSpec(3, (0.8, 0.6, 0.4), seed)
        terminals: list[int] = replayed(graph, replace(deployment, speculation=spec), LoadSpec()).terminal_ns.tolist()
        return terminals

    assert ends(1) == ends(1)
    assert len({*ends(1), *ends(7), *ends(2**64 - 1)}) > 3
    # One request on each of two workers: worker 1 under seed 1 is worker 0 under seed 2, but for the request's number.
    assert ends(1) != ends(2)


def test_a_draft_is_accepted_when_its_draw_is_below_the_rate_to_the_last_bit() -> None:
    # Worker 0 under seed 0 draws for the last of request 0's three tokens, which is at place 2. Accepted, it comes in
    # the second pass, with the one before it; else in a third. A draw that equals the rate is not below it.
    graph, deployment = one_request(3)
    first, second = naive_threefry([0, 0], [0, 2])
    draw = (second * 2**21 + first // 2**11) / 2**53

    def passes(rate: float) -> int:
        ledger = replayed(graph, replace(deployment, speculation=SpeculationSpec(1, (rate,), 0)), LoadSpec())
        return int(ledger.passes[0])

    assert (passes(draw), passes(draw + 2**-53)) == (3, 2)


def test_rates_are_padded_and_cut() -> None:
    graph, deployment = one_request(50)

    def run(drafts: int, *rates: float) -> list[object]:
        spec = SpeculationSpec(drafts, rates)
        ledger = replayed(graph, replace(deployment, speculation=spec), LoadSpec())
        return [ledger.passes.tolist(), ledger.gap_ns.tolist(), ledger.gap_count.tolist()]

    assert run(3, 1.0) == run(3, 1.0, 0.0, 1.0) == run(1, 1.0, 1.0, 1.0)
    # One token by the prefill, then passes of two: 24 full ones and one with what is left.
    assert run(1, 1.0) == [[26], [0, MS], [24, 25]]
