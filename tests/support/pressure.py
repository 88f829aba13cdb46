"""Corpora under KV pressure on every topology, what must hold while they run, and what must be left when they end.

Hypothesis draws the sizes and a seed; the rows come from that seed, since drawing thousands of corpora row by row would
take longer than replaying them. Pools lie around what the longest request needs, a little too small as often as not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from playproof_kernel.checks.translation import settings_of
from playproof_kernel.corpus.compiled import compile_graph
from playproof_kernel.driver import play_driver
from playproof_kernel.ground.arrays import NONE, RETURNING, Sim
from playproof_kernel.runs.ledgers import ledger_of
from playproof_kernel.runs.setup import new_sim
from playproof_spec.deployment import Backend, DecodeSpec, DeploymentSpec, LoadSpec, Rules, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.ledger import Ledger
from playproof_spec.machines import (
    BlockState,
    HandoffState,
    HostBlockState,
    LaneState,
    NodeState,
    PlayState,
    RequestState,
)
from playproof_spec.sketch import sketch
from slices import run_for
from strategies import RELATIONS, timings, transfers

# Far more instants than any run here has: one that gets there goes round in circles.
INSTANTS_MOST = 1_000_000
ENDED = frozenset({NodeState.COMPLETED, NodeState.FAILED, NodeState.CANCELED, NodeState.SKIPPED})


@dataclass(frozen=True)
class Pressed:
    """A corpus, where and how it runs, and after how many instants each time the pools are counted."""

    graph: Graph
    deployment: DeploymentSpec
    load: LoadSpec
    instants: int


def random_rows(chance: Random, plays: int, nodes: int, blocks: int) -> list[dict[str, Any]]:
    """Return rows of at most `nodes` requests a play; prompts have at most `blocks` blocks of four tokens each."""
    rows = []
    for play in range(plays):
        chains: list[list[int]] = []
        for node in range(chance.randint(1, nodes)):
            # A turn goes on from an earlier prompt of its play, starts from what all plays share, or stands alone.
            common = chance.choice(chains) if chains and chance.random() < 0.7 else list(range(1, blocks))
            common = common[: chance.randint(0, blocks)]
            fresh = chance.randint(0 if common else 1, max(1, blocks - len(common)))
            chain = [*common, *(1000 * (20 * play + node + 1) + i for i in range(fresh))][:blocks]
            chains.append(chain)
            edges = []
            for source in chance.sample(range(node), min(node, chance.choice([0, 1, 1, 2]))):
                relation, trigger = chance.choice(RELATIONS)
                delay = chance.choice([0.0, 0.0, 2.5, 40.0])
                edge = {"request_id": f"p{play}n{source}", "relation": relation, "trigger": trigger, "delay_ms": delay}
                edges.append(edge)
            rows.append(
                {
                    "request_id": f"p{play}n{node}",
                    "play_id": f"play{play}",
                    "input_length": 4 * len(chain) - chance.choice([0, 0, 1, 3]),
                    "output_length": chance.choice([0, 1, 1, 2, 5, 9, 20, 40]),
                    "hash_ids": chain,
                    "not_before_ms": chance.choice([0.0, 0.0, 1.0, 7.5, 60.0]),
                    "dependencies": edges,
                }
            )
    return rows


@st.composite
def pressure_cases(draw: st.DrawFn, backend: Backend, split: bool) -> Pressed:
    """Draw a corpus and a deployment, aggregated or `split` into roles, whose pools are tight for it."""
    chance = Random(draw(st.integers(0, 2**32 - 1)))
    plays, nodes, blocks = draw(st.integers(1, 10)), draw(st.integers(1, 10)), draw(st.integers(1, 12))
    graph = sketch(random_rows(chance, plays, nodes, blocks), block_size=4)
    size = draw(st.sampled_from([1, 1, 2, 3, 4, 7]))
    caching = draw(st.sampled_from([True, True, True, False]))
    rules = draw(st.sampled_from(Rules))
    overlap = backend is Backend.SGLANG and rules is Rules.SGLANG and not split and draw(st.booleans())
    prompt, whole = int(graph.input_length.max()), int((graph.input_length + graph.output_length).max())

    def worker(anchors: list[int]) -> WorkerSpec:
        tokens = draw(st.sampled_from(anchors))
        return WorkerSpec(
            backend=backend,
            blocks=max(1, -(-tokens // size) + draw(st.sampled_from([-2, -1, 0, 0, 1, 1, 2, 3, 5, 9]))),
            block_size=size,
            max_batched_tokens=draw(st.sampled_from([1, 5, 16, 64, 8192])),
            max_sequences=draw(st.sampled_from([1, 2, 3, 5, 16])),
            prefix_caching=caching,
            timing=draw(timings),
            rules=rules,
            ahead=overlap,
            chunked_prefill_size=draw(st.sampled_from([1, 5, 16, 8192])),
            max_prefill_tokens=draw(st.sampled_from([4, 24, 16384])),
            # The small one admits too much, so that retraction is common.
            schedule_conservativeness=draw(st.sampled_from([1.0, 1.4, 0.01, 0.01])),
        )

    # SGLang wants more than a request's tokens before it admits it; vLLM admits on the prompt alone.
    sizes = [whole, whole, whole + prompt, 2 * whole]
    if backend is Backend.SGLANG:
        sizes = [whole + 1, whole + 1, whole + prompt, 2 * whole]
    decode = DecodeSpec(draw(st.integers(1, 3)), worker(sizes), draw(transfers)) if split else None
    context = draw(st.sampled_from([prompt, whole, 100_000, 100_000]))
    first = worker([prompt + 2, prompt + 2, 2 * prompt, whole] if split else sizes)
    deployment = DeploymentSpec(draw(st.integers(1, 3)), first, context, decode)
    load = LoadSpec(
        lanes=draw(st.sampled_from([None, None, 1, 3])),
        speedup=draw(st.sampled_from([1.0, 0.5, 4.0])),
        cancellations=random_cancellations(chance, graph, draw(st.sampled_from([0, 3, 12]))),
    )
    return Pressed(graph, deployment, load, draw(st.sampled_from([1, 13, 100_000])))


def random_cancellations(chance: Random, graph: Graph, count: int) -> tuple[tuple[int, int], ...]:
    """Return at most `count` cancellations, many of them early and at instants at which other things happen."""
    spans_ms = [10, 100, 1000]
    instants = [500_000 * chance.randint(0, 2 * chance.choice(spans_ms)) for _ in range(chance.randint(0, count))]
    return tuple((at, chance.randrange(graph.node_count)) for at in instants)


def replay(case: Pressed) -> tuple[Sim, Ledger]:
    """Replay `case` to its end, counting the pools on the way; a stall raises."""
    deployment, load = case.deployment, case.load
    compiled = compile_graph(case.graph, **settings_of(deployment, load)._asdict())
    sim = new_sim(compiled, deployment, load)
    play_driver.start(sim)
    over = False
    for _ in range(INSTANTS_MOST // case.instants):
        sim, over = run_for(sim, case.instants)
        check_pools(sim)
        if over:
            return sim, ledger_of(sim)
    raise AssertionError(f"no end after {INSTANTS_MOST} instants")


# What holds at any time -------------------------------------------------------------------------------------------


def check_pools(sim: Sim) -> None:
    """Free, idle and used blocks are all the blocks of each worker, and those used are those that requests hold."""
    for worker in range(len(sim.workers)):
        if sim.config[0].keeps_tree != 0:
            _check_pages(sim, worker)
        else:
            _check_copies(sim, worker)


def _check_copies(sim: Sim, worker: int) -> None:
    record = sim.workers[worker]
    total = int(sim.config[record.role].blocks)
    refs = sim.frames[worker].refs
    states = np.bincount(sim.block_state[worker], minlength=len(BlockState))
    assert record.free == total - len(refs) + states[BlockState.FREE]
    assert record.idle == states[BlockState.CACHED_IDLE] + states[BlockState.READING_IDLE]
    assert np.count_nonzero(refs > 0) == total - record.free - record.idle
    # An idle block's is below zero, and tells its stretch in the order.
    idle = np.isin(sim.block_state[worker], (BlockState.CACHED_IDLE, BlockState.READING_IDLE))
    assert (refs[idle] < 0).all()
    stretches = np.arange(record.oldest, record.newest) % len(sim.order[worker])
    counts = np.bincount(-1 - refs[idle], minlength=len(sim.order[worker]))
    assert (sim.order[worker].idle[stretches] == counts[stretches]).all()
    assert counts[stretches].sum() == record.idle
    assert refs[refs > 0].sum() == sim.live.table_len[sim.live.worker == worker].sum() + _kept(sim, worker)


def _kept(sim: Sim, worker: int) -> int:
    """How many copies stores of a shared pool keep: those that they read, or, until the pass has ended, have read."""
    if len(sim.hosts) == 0 or not sim.hosts[worker].shared:
        return 0
    read = np.isin(sim.block_state[worker], (BlockState.READING, BlockState.READING_IDLE))
    kept, row = int(np.count_nonzero(read)), int(sim.queues[worker, RETURNING].head)
    while row != NONE:
        kept += int(sim.host_transfers[row].blocks)
        row = int(sim.host_transfers[row].next)
    return kept


def _check_pages(sim: Sim, worker: int) -> None:
    record = sim.workers[worker]
    tree = sim.tree[worker][: int(record.tree_used)]
    cached = np.ones(len(tree), bool)
    cached[0] = False  # the root has no page
    spare = int(record.tree_spare)
    while spare != NONE:
        assert cached[spare]
        cached[spare] = False
        spare = int(tree[spare].next)
    assert np.count_nonzero(cached) == record.tree_live - 1
    pages = tree.end - tree.begin
    locked = cached & (tree.locks > 0)
    assert (pages[cached] > 0).all()
    assert record.idle == pages[cached & (tree.locks == 0)].sum()
    held = sim.live[sim.live.worker == worker]
    private = (held.table_len - held.filled).sum()
    assert (held.table_len >= held.filled).all()
    assert record.free >= 0
    assert record.free + record.idle + pages[locked].sum() + private == sim.config[record.role].blocks


# What holds at the end --------------------------------------------------------------------------------------------


def check_nothing_is_left(sim: Sim) -> None:
    """No request, worker, queue, timer, transfer or lane holds anything any more."""
    run = sim.run[0]
    assert {NodeState(int(state)) for state in sim.node_state} <= ENDED
    assert run.finished == len(sim.node_state)
    for name in ("heap", "feedback", "in_flight", "holders", "kv_transfers"):
        assert run[name] == 0, name
    assert (sim.queues["head"] == NONE).all()
    assert (sim.queues["tail"] == NONE).all()
    assert (sim.actions["head"] == NONE).all()
    assert (sim.workers.pass_end == NONE).all()
    for name in ("running", "canceled", "holding", "macro", "noticed"):
        assert (sim.workers[name] == 0).all(), name
    for name in ("action", "hold"):
        assert (sim.tickets[name] == 0).all(), name
    assert (sim.tickets.holder == NONE).all()
    assert (sim.live.table_len == 0).all()
    assert (sim.workers.free + sim.workers.idle == sim.config.blocks[sim.workers.role]).all()
    assert (sim.frames["refs"] <= 0).all()
    for name in ("host_transfers", "awake"):
        assert (sim.hosts[name] == 0).all(), name
    assert not np.isin(sim.host_state, (HostBlockState.PENDING_STORE, HostBlockState.PINNED)).any()
    for worker, record in enumerate(sim.workers):
        # Spare nodes of a tree were evicted, and so unlocked, too.
        assert (sim.tree[worker]["locks"][: int(record.tree_used)] == 0).all()
    unreached = (RequestState.QUEUED, RequestState.FINISHED, RequestState.REJECTED)
    assert np.isin(sim.request_state, (*unreached, RequestState.FAILED, RequestState.CANCELED)).all()
    ways = (HandoffState.QUEUED, HandoffState.COMPLETED, HandoffState.FAILED, HandoffState.CANCELED)
    assert np.isin(sim.handoff_state, ways).all()
    assert np.isin(sim.play_state, (PlayState.COMPLETED, PlayState.FAILED)).all()
    if sim.config[0].lanes > 0:
        assert (sim.lane_state == LaneState.RETIRED).all()


def check_ledger(case: Pressed, ledger: Ledger) -> None:
    """Whoever completed has all its tokens and none came after its end; nobody else counts as completed."""
    graph, state = case.graph, ledger.node_state
    completed, dispatched = state == NodeState.COMPLETED, ledger.dispatched_ns >= 0
    assert np.array_equal(dispatched, state != NodeState.SKIPPED)
    assert np.array_equal(dispatched, ledger.terminal_ns >= 0)
    assert (ledger.terminal_ns[dispatched] >= ledger.dispatched_ns[dispatched]).all()
    room = np.maximum(case.deployment.context_length - graph.input_length.astype(np.int64), 0)
    wanted = np.minimum(graph.output_length, room)
    assert np.array_equal(ledger.output_length[completed], wanted[completed])
    assert (ledger.output_length <= wanted).all()
    tokens = ledger.output_length > 0
    assert (ledger.last_token_ns[tokens] <= ledger.terminal_ns[tokens]).all()
    assert (ledger.first_token_ns[tokens] >= ledger.dispatched_ns[tokens]).all()
    # No token is lost or made twice, and a prefill worker makes none that counts.
    assert ledger.decode_tokens.sum() == ledger.output_length.sum()
    assert ledger.gap_count.sum() == np.maximum(ledger.output_length - 1, 0).sum()
    admitted = np.bincount(ledger.admission_node, minlength=graph.node_count)
    assert np.array_equal(admitted, ledger.admissions)
    if case.deployment.decode is not None:
        steps = (ledger.source_held_ns, ledger.destination_activated_ns, ledger.terminal_ns)
        for before, after in pairwise(steps):
            assert (before[completed] >= 0).all()
            assert (before[completed] <= after[completed]).all()
        assert np.array_equal(completed, ledger.handoff_state == HandoffState.COMPLETED)
        assert ledger.decode_tokens[: case.deployment.workers].sum() == 0


def without_macro_steps(case: Pressed) -> Pressed:
    """Return `case` pass by pass."""
    return replace(case, load=replace(case.load, macro_steps=False))
