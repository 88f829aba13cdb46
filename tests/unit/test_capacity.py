"""G7: what fits alone and what fits together, by hand, by enumeration, and beside runs on random deployments."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any, Literal

import msgspec
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_kernel import simulate
from playproof_spec.capacity import heaviest_antichain
from playproof_spec.certificate import prove
from playproof_spec.graph import Graph
from playproof_spec.machines import NodeState
from playproof_spec.sketch import sketch
from pressure import random_rows

import playproof as pp
from playproof.capacity import capacity
from playproof.deployment import BackendName

# A play of 16-token blocks: `plan` wakes `child` at its dispatch, `answer` joins both. Blocks at the end, with all of
# the output but its last token: plan 2 (20 + 9 tokens), child 4 (50 + 10), answer 3 (40 + 1).
FORK: list[dict[str, Any]] = [
    {"request_id": "plan", "input_length": 20, "hash_ids": [1, 2], "output_length": 10},
    {
        "request_id": "child",
        "input_length": 50,
        "hash_ids": [3, 4, 5, 6],
        "output_length": 11,
        "dependencies": [{"request_id": "plan", "trigger": "dispatch", "relation": "spawn"}],
    },
    {
        "request_id": "answer",
        "input_length": 40,
        "hash_ids": [1, 2, 7],
        "output_length": 2,
        "dependencies": ["plan", {"request_id": "child", "relation": "join"}],
    },
]


def verdicts(graph: Graph, deployment: Any, load: pp.Load | None = None) -> tuple[str, str, Any]:
    (alone, together), findings = capacity(graph, deployment, load or pp.Load())
    return alone.verdict, together.verdict, findings


@pytest.mark.parametrize(
    ("blocks", "alone", "together"), [(6, "proven", "proven"), (5, "proven", "unproven"), (3, "failed", "unproven")]
)
def test_a_fork_by_hand(blocks: int, alone: str, together: str) -> None:
    graph = prove(sketch(FORK, block_size=16)).graph
    first, second, findings = verdicts(graph, pp.Deployment(blocks=blocks, block_size=16))
    assert (first, second) == (alone, together)
    if together == "unproven":
        (item,) = findings.items
        assert (item.code, item.where.ids) == ("pool-below-demand", ("child", "plan"))
        assert "hold 6 blocks" in item.message
        assert item.wanted.startswith("6 blocks")


def test_lanes_add_up_and_profiles_repeat_the_heaviest_play() -> None:
    rows = [
        {"request_id": f"r{k}", "play_id": f"p{k}", "input_length": 16 * (k + 1), "hash_ids": list(range(k + 1))}
        for k in range(4)
    ]
    graph = prove(sketch(rows, block_size=16)).graph

    def least(load: pp.Load) -> int:
        return next(
            blocks
            for blocks in range(1, 100)
            if verdicts(graph, pp.Deployment(blocks=blocks, block_size=16), load)[1] == "proven"
        )

    assert least(pp.Load()) == 1 + 2 + 3 + 4
    assert least(pp.Load(lanes=2)) == 3 + 4
    assert least(pp.Load(lanes=9)) == 1 + 2 + 3 + 4
    assert least(pp.Load(lanes=2, snapshot_seed=1)) == 3 + 4
    # As many lanes as plays run each once; one more lane, and one of them runs in two.
    assert least(pp.Load(lanes=4, snapshot_seed=1)) == 1 + 2 + 3 + 4
    assert least(pp.Load(lanes=5, snapshot_seed=1)) == 5 * 4
    assert least(pp.Load(lanes=9, snapshot_seed=1)) == 9 * 4
    assert least(pp.Load(lanes=2, snapshot_seed=1, profile=pp.Profile())) == 2 * 4
    # One seat: no more than the heaviest request holds blocks.
    one = pp.Deployment(blocks=4, block_size=16, max_sequences=1)
    assert verdicts(graph, one)[1] == "proven"


def test_sglang_wants_room_for_the_output_that_it_keeps_free() -> None:
    row = {"request_id": "r", "input_length": 90, "hash_ids": list(range(90)), "output_length": 10}
    graph = prove(sketch([row], block_size=1)).graph
    sglang = pp.Deployment(backend="sglang", blocks=101, block_size=1, rules="aisimulate")
    assert verdicts(graph, sglang)[0] == "proven"
    first, _, findings = verdicts(graph, msgspec.structs.replace(sglang, blocks=100))
    assert first == "unproven"
    (item,) = findings.items
    assert (item.code, item.wanted) == ("request-may-not-fit", "101 blocks in the pool of a aggregated worker")
    # It is so: with 100 pages it is turned down, with 101 it completes.
    for blocks, state in ((100, NodeState.FAILED), (101, NodeState.COMPLETED)):
        ledger = simulate(prove(graph), msgspec.structs.replace(sglang, blocks=blocks).to_spec(), pp.Load().to_spec())
        assert ledger.node_state.tolist() == [state]


@pytest.mark.parametrize(("output", "blocks"), [(0, 1), (1, 1), (2, 2), (17, 2), (18, 3)])
def test_a_request_weighs_all_of_its_tokens_but_the_last(output: int, blocks: int) -> None:
    # The prompt fills its block; the last token is told and not kept.
    row = {"request_id": "r", "input_length": 16, "hash_ids": [1], "output_length": output}
    proven = prove(sketch([row], block_size=16))
    for pool in range(1, 4):
        deployment = pp.Deployment(blocks=pool, block_size=16)
        assert verdicts(proven.graph, deployment)[0] == ("proven" if pool >= blocks else "failed")
        ledger = simulate(proven, deployment.to_spec(), pp.Load().to_spec())
        assert ledger.node_state.tolist() == [NodeState.COMPLETED if pool >= blocks else NodeState.FAILED]


@pytest.mark.parametrize(("prefill", "decode", "fits"), [(1, 3, True), (1, 2, False), (3, 2, False)])
def test_a_prefill_worker_holds_the_prompt_alone(prefill: int, decode: int, fits: bool) -> None:
    row = {"request_id": "r", "input_length": 16, "hash_ids": [1], "output_length": 20}
    proven = prove(sketch([row], block_size=16))
    roles = pp.PrefillRole(blocks=prefill, block_size=16), pp.DecodeRole(blocks=decode, block_size=16)
    deployment = pp.Disaggregated(prefill=roles[0], decode=roles[1])
    assert verdicts(proven.graph, deployment)[0] == ("proven" if fits else "failed")
    ledger = simulate(proven, deployment.to_spec(), pp.Load().to_spec())
    assert ledger.node_state.tolist() == [NodeState.COMPLETED if fits else NodeState.FAILED]


def test_nothing_is_claimed_beside_a_shared_host_pool() -> None:
    host = pp.HostOffload(num_host_blocks=8, bytes_per_token=1, scope="cluster_shared")
    deployment = pp.Deployment(blocks=64, block_size=16, host_offload=host)
    assert verdicts(prove(sketch(FORK, block_size=16)).graph, deployment)[1] == "not_applicable"


# ------------------------------------------------------------------------------------------------- beside enumeration


@st.composite
def weighted_plays(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, bool]]]:
    size = draw(st.integers(1, 9))
    weights = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    pairs = [(a, b) for b in range(size) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=14, unique=True)) if pairs else []
    return weights, [(a, b, draw(st.booleans())) for a, b in chosen]


@given(weighted_plays())
def test_the_heaviest_antichain_equals_enumeration(play: tuple[list[int], list[tuple[int, int, bool]]]) -> None:
    weights, edges = play
    size = len(weights)
    whole: nx.DiGraph[int] = nx.DiGraph()
    whole.add_nodes_from(range(size))
    whole.add_edges_from((a, b) for a, b, _ in edges)
    ahead = {n: nx.descendants(whole, n) | {n} for n in range(size)}
    before = {(a, v) for a, b, completion in edges if completion for v in ahead[b]}
    best = max(
        sum(weights[n] for n in some)
        for count in range(size + 1)
        for some in itertools.combinations(range(size), count)
        if not any((a, b) in before for a in some for b in some)
    )
    weight, nodes, exact = heaviest_antichain(weights, edges)
    assert (weight, exact) == (best, True)
    assert sum(weights[n] for n in nodes) == best
    assert not any((a, b) in before for a in nodes for b in nodes)
    # With too little work it says that it is a bound, and is one.
    bound, _, exact = heaviest_antichain(weights, edges, augmentations=0)
    assert bound == best if exact else bound >= best


# -------------------------------------------------------------------------------------------------------- beside runs


def random_deployment(chance: Random, graph: Graph) -> Any:
    """A deployment whose pools are about as large as what is asked of them."""
    tokens = int((graph.input_length + graph.output_length).max())
    backend: BackendName = chance.choice(["vllm", "sglang"])
    size = chance.choice([1, 2, 4])
    # Of SGLang's own rules nothing is claimed but what a request needs alone.
    rules = chance.choice(["aisimulate", "aisimulate", "sglang"]) if backend == "sglang" else "sglang"

    def role() -> dict[str, Any]:
        return {
            "workers": chance.randint(1, 2),
            "blocks": max(1, int(tokens / size * chance.choice([0.5, 1.0, 1.2, 2.0, 4.0]))),
            "block_size": size,
            "max_batched_tokens": chance.choice([8, 64, 8192]),
            "max_sequences": chance.choice([1, 3, 64]),
            "chunked_prefill_size": chance.choice([8, 8192]),
            "schedule_conservativeness": chance.choice([1.0, 0.01]),
            "rules": rules,
            "timing": pp.FixedTiming(prefill_ms=chance.choice([0.0, 3.0]), decode_ms=chance.choice([0.0, 1.0])),
        }

    context: int | Literal["max"] = chance.choice(["max", "max", tokens - 1])
    if chance.random() < 0.4:
        return pp.Disaggregated(
            backend=backend, context_length=context, prefill=pp.PrefillRole(**role()), decode=pp.DecodeRole(**role())
        )
    speculation = None
    if backend == "vllm" and chance.random() < 0.3:
        speculation = pp.Speculation(num_speculative_tokens=3, acceptance_rates=(0.7, 0.5))
    return pp.Deployment(backend=backend, context_length=context, speculation=speculation, **role())


@given(st.integers(0, 2**32 - 1))
def test_proven_pools_neither_preempt_nor_fail(seed: int) -> None:
    chance = Random(seed)
    proven = prove(sketch(random_rows(chance, plays=5, nodes=6, blocks=6), block_size=4))
    deployment = random_deployment(chance, proven.graph)
    load = pp.Load(lanes=chance.choice([None, 1, 2, 3]))
    alone, together, _ = verdicts(proven.graph, deployment, load)
    ledger = simulate(proven, deployment.to_spec(), load.to_spec())
    if together == "proven":
        assert int(ledger.preemptions.sum()) == 0
    if alone == "proven":
        assert set(ledger.node_state.tolist()) == {NodeState.COMPLETED}
    if alone == "failed":
        assert NodeState.FAILED in ledger.node_state.tolist()


def test_random_deployments_meet_every_verdict() -> None:
    seen = set()
    preempted = 0
    for seed in range(120):
        chance = Random(seed)
        graph = prove(sketch(random_rows(chance, plays=5, nodes=6, blocks=6), block_size=4))
        deployment = random_deployment(chance, graph.graph)
        load = pp.Load(lanes=chance.choice([None, 1, 2, 3]))
        alone, together, _ = verdicts(graph.graph, deployment, load)
        seen.add((alone, together))
        if together == "unproven":
            preempted += int(simulate(graph, deployment.to_spec(), load.to_spec()).preemptions.sum())
    # Or the property above would show nothing.
    assert {alone for alone, _ in seen} == {"proven", "unproven", "failed"}
    assert {together for _, together in seen} == {"proven", "unproven", "not_applicable"}
    assert preempted > 10


@pytest.mark.corpus
def test_the_corpus_on_32_lanes(data_dir: Any, tmp_path: Any) -> None:
    import tarfile

    archive = data_dir / "weka" / "kv-cache-tester-710traces.tar.xz"
    if not archive.is_file():
        pytest.skip("the corpus is not beside the project")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    graph = pp.load(tmp_path / "traces").graph
    deployment = pp.Deployment(blocks=348_519, block_size=64, context_length=1_000_000)
    assert verdicts(graph, deployment, pp.Load(lanes=32))[:2] == ("proven", "proven")
    smaller = msgspec.structs.replace(deployment, blocks=348_518)
    assert verdicts(graph, smaller, pp.Load(lanes=32))[:2] == ("proven", "unproven")
