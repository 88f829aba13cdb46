"""The public door of the kernel: a proven graph, a deployment and a load in, a ledger out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from playproof_spec.certificate import ProvenGraph

from playproof_kernel import driver, loop, radix, sglang
from playproof_kernel.arrays import (
    ADMISSION,
    BRANCH,
    CONFIG,
    COPY,
    ENDED,
    GAP,
    HEAP,
    KEPT,
    LIVE,
    NONE,
    PLAY,
    PREP,
    RESULT,
    RUN,
    SHIFT,
    STATIC,
    WORKER,
    Sim,
    records,
)
from playproof_kernel.blocks import GENERATED
from playproof_kernel.compiled import CompiledGraph, compile_graph
from playproof_kernel.deployment import Backend, DeploymentSpec, LoadSpec, WorkerSpec
from playproof_kernel.ledger import Ledger
from playproof_kernel.vllm import MAX_VARYING_PASSES

# Instants of the event loop between two calls of the progress callback; some 0.2 s of work.
SLICE = 100_000


class ReplayFault(Exception):
    """The replay broke a rule of its own (a stall, or a clock past its horizon). The message names it."""


def simulate(
    proven: ProvenGraph,
    deployment: DeploymentSpec,
    load: LoadSpec | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Ledger:
    """Replay a proven graph on a simulated deployment.

    Parameters
    ----------
    proven : ProvenGraph
    deployment : DeploymentSpec
    load : LoadSpec, optional
    progress : callable, optional
        Called now and then with the number of requests that are terminal, and the number of all.

    Raises
    ------
    ReplayFault
        When the run cannot go on; no input that was proven may bring that about.
    ValueError
        When the load has a snapshot, warmup or profile.
    """
    load = load or LoadSpec()
    if load.snapshot_seed is not None or load.warmup or load.profile is not None:
        raise ValueError("run controls are simulated by simulate_controlled")
    worker = deployment.worker
    graph = compile_graph(
        proven.graph,
        block_size=worker.block_size,
        blocks=worker.blocks,
        context=deployment.context_length,
        lanes=load.lanes is not None,
        speedup=load.speedup,
        play_scope=load.play_scope,
    )
    sim = new_sim(graph, deployment, load)
    driver.start(sim)
    return finish(sim, progress)


def finish(sim: Sim, progress: Callable[[int, int], None] | None = None) -> Ledger:
    """Run a started simulation to its end, growing its logs as they fill, and return the ledger."""
    while True:
        stop = loop.run(sim, SLICE)
        if progress is not None:
            progress(int(sim.run[0].finished), len(sim.static))
        if stop == loop.Stop.DONE:
            return _ledger(sim)
        sim = with_room(sim, stop)


def with_room(sim: Sim, stop: int) -> Sim:
    """Return the arrays with the room that a stopped run wants; one that cannot go on is our fault.

    Raises
    ------
    ReplayFault
    """
    if stop == loop.Stop.LOGS:
        return _with_larger_logs(sim)
    if stop == loop.Stop.ARENA:
        size = 2 * int(sim.run[0].arena_wanted)
        return sim._replace(arena=_grown(sim.arena, size), spare=np.zeros(size, np.int64))
    if stop == loop.Stop.TREE:
        return _with_larger_trees(sim)
    if stop == loop.Stop.STALL:
        raise ReplayFault(f"no event is due but {len(sim.static) - int(sim.run[0].finished)} requests remain")
    if stop == loop.Stop.HORIZON:
        raise ReplayFault("the simulated clock ran past its horizon of 2^62 ns")
    return sim


def new_sim(graph: CompiledGraph, deployment: DeploymentSpec, load: LoadSpec) -> Sim:
    """Return the arrays of a run that has not started."""
    nodes = len(graph.static)
    if load.play_scope and (len(graph.play_begin) - 1) * graph.key_span > GENERATED:
        raise ReplayFault("the plays' namespaces together need more block keys than there are")
    sim = engine_arrays(graph, deployment, load, nodes)
    plays = len(graph.play_begin) - 1
    sim.config.lanes = min(load.lanes or 0, plays)
    sim.config.prep_begin = nodes
    return sim._replace(
        static=graph.static,
        live=_new_live(nodes),
        plays=_new_plays(graph),
        play_state=np.zeros(plays, np.int8),
        play_nodes=graph.play_nodes,
        lane_state=np.zeros(max(int(sim.config[0].lanes), 1), np.int8),
        source=graph.static,
    )


def engine_arrays(graph: CompiledGraph, deployment: DeploymentSpec, load: LoadSpec, nodes: int) -> Sim:
    """Return the arrays of a run of `nodes` node slots; those of the driver are still empty where they vary by mode."""
    spec = deployment.worker
    workers = deployment.workers
    config = _new_config(spec, nodes)
    config.workers = workers
    config.context = deployment.context_length
    config.key_stride = graph.key_stride
    config.macro = load.macro_steps
    sequences = int(config[0].max_sequences)
    # SGLang counts pages; only vLLM keeps copies apart, and tables of them.
    copies = 0 if spec.backend == Backend.SGLANG else spec.blocks
    longest = 0 if spec.backend == Backend.SGLANG else int(graph.static.table_size.max())
    capacity = radix.room(sequences) if spec.backend == Backend.SGLANG else 1
    # Room for a full batch of the longest requests, within reason; it grows when that is short.
    arena = min(2 * sequences * longest, max(2 * longest, 1 << 21))
    gaps = 1 << (4 * (MAX_VARYING_PASSES + sequences) * workers).bit_length()
    return Sim(
        config=config,
        run=records(1, RUN),
        static=records(0, STATIC),
        live=records(0, LIVE),
        node_state=np.zeros(nodes, np.int8),
        request_state=np.zeros(nodes, np.int8),
        edges=graph.edges,
        keys=graph.keys,
        plays=records(0, PLAY),
        play_state=np.zeros(0, np.int8),
        play_nodes=np.zeros(0, np.int64),
        lane_state=np.zeros(0, np.int8),
        workers=_new_workers(workers, config),
        running=np.zeros((workers, sequences), np.int64),
        copies=_new_copies(workers, copies),
        block_state=np.zeros((workers, copies), np.int8),
        # Taken from the end: block 0 first.
        free=np.tile(np.arange(copies - 1, -1, -1, dtype=np.int32), (workers, 1)),
        buckets=np.full((workers, max(16, 1 << (2 * copies).bit_length())), NONE, np.int32),
        arena=np.zeros(arena, np.int64),
        spare=np.zeros(arena, np.int64),
        found=np.zeros(longest + 1, np.int64),
        tree=_new_trees(workers, capacity),
        leaves=np.zeros((workers, capacity), np.int64),
        branches=_new_branches(workers, capacity),
        part=np.zeros((workers, 3), np.int64),
        heap=records(nodes, HEAP),
        feedback=np.zeros(nodes, np.int64),
        admissions=records(nodes + sequences, ADMISSION),
        gaps=records(gaps, GAP),
        source=records(0, STATIC),
        source_begin=np.zeros(1, np.int64),
        members=np.zeros(0, np.int64),
        kept=records(0, KEPT),
        kept_begin=np.zeros(1, np.int64),
        prep=records(0, PREP),
        prep_begin=np.zeros(1, np.int64),
        prep_next=np.zeros(0, np.int64),
        lane_plays=np.zeros(0, np.int64),
        seats=np.zeros(0, np.int64),
        passes_before=np.zeros(workers, np.int64),
        prefill_before=np.zeros(workers, np.int64),
        phase_state=np.zeros(1, np.int8),
        results=records(0, RESULT),
        ended=records(0, ENDED),
        shifts=records(0, SHIFT),
    )


def _new_config(spec: WorkerSpec, nodes: int) -> Any:
    config = records(1, CONFIG)
    config.backend = spec.backend
    config.blocks = spec.blocks
    config.block_size = spec.block_size
    config.max_batched_tokens = spec.max_batched_tokens
    # More seats than requests would only cost memory.
    config.max_sequences = min(spec.max_sequences, nodes)
    config.chunked_prefill_size = spec.chunked_prefill_size
    config.max_prefill_tokens = spec.max_prefill_tokens
    config.ratio_start = sglang.RATIO_START * spec.schedule_conservativeness
    config.ratio_least = config.ratio_start * sglang.RATIO_LEAST_SHARE
    config.ratio_step = (config.ratio_start - config.ratio_least) / sglang.RATIO_STEPS
    config.caching = spec.prefix_caching
    config.timing = spec.timing.kind
    config.prefill_ns = spec.timing.prefill_ns
    config.decode_ns = spec.timing.decode_ns
    return config


def _new_live(nodes: int) -> Any:
    live = records(nodes, LIVE)
    for name in ("dispatched", "first_admit", "first_token", "second_token", "last_token", "terminal", "worker"):
        live[name] = NONE
    return live


def _new_plays(graph: CompiledGraph) -> Any:
    plays = records(len(graph.play_begin) - 1, PLAY)
    for name in ("start", "first_dispatch", "last_terminal", "settled", "lane", "failed_node", "failed_outcome"):
        plays[name] = NONE
    plays.node_begin = graph.play_begin[:-1]
    plays.node_end = graph.play_begin[1:]
    return plays


def _new_workers(workers: int, config: Any) -> Any:
    table = records(workers, WORKER)
    for name in ("pass_end", "tried", "wait_head", "wait_tail", "outcome_head", "tree_spare"):
        table[name] = NONE
    table.free = config.blocks
    table.ratio = config.ratio_start
    table.tree_used = 1  # the root
    table.tree_live = 1
    return table


def _new_trees(workers: int, capacity: int) -> Any:
    trees = records((workers, capacity), BRANCH)
    trees["place"][:, radix.ROOT] = NONE  # the root is never evicted
    return trees


def _new_branches(workers: int, capacity: int) -> Any:
    return np.full((workers, max(16, 1 << (2 * capacity).bit_length())), NONE, np.int64)


def _new_copies(workers: int, blocks: int) -> Any:
    copies = records((workers, blocks + 1), COPY)
    copies["next"] = NONE
    copies["key"] = NONE
    # The sentinel alone: an empty list of idle blocks.
    copies["older"][:, blocks] = blocks
    copies["newer"][:, blocks] = blocks
    return copies


def _grown(array: Any, size: int) -> Any:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown.view(type(array))


def _with_larger_logs(sim: Sim) -> Sim:
    """Double the log of admissions, and rehash the gaps into a table of twice the size."""
    gaps = records(2 * len(sim.gaps), GAP)
    larger = sim._replace(admissions=_grown(sim.admissions, 2 * len(sim.admissions)), gaps=gaps)
    loop.rehash_gaps(larger, sim.gaps)
    return larger


def _with_larger_trees(sim: Sim) -> Sim:
    """Double the trees' capacity, and enter their nodes into hash tables of twice the size."""
    workers, capacity = sim.tree.shape
    tree = records((workers, 2 * capacity), BRANCH)
    tree[:, :capacity] = sim.tree
    leaves = np.zeros((workers, 2 * capacity), np.int64)
    leaves[:, :capacity] = sim.leaves
    larger = sim._replace(tree=tree, leaves=leaves, branches=_new_branches(workers, 2 * capacity))
    radix.enter_all(larger, sim.branches)
    return larger


def _ledger(sim: Sim) -> Ledger:
    live, plays, workers = sim.live, sim.plays, sim.workers
    admissions = sim.admissions[: int(sim.run[0].admissions)]
    gaps = sim.gaps[sim.gaps["count"] > 0]
    gaps = gaps[np.argsort(gaps.value, kind="stable")]
    never = np.full(len(live), NONE, np.int64)
    return Ledger(
        node_state=sim.node_state,
        request_state=sim.request_state,
        handoff_state=np.zeros(len(live), np.int8),
        dispatched_ns=live.dispatched.copy(),
        first_admit_ns=live.first_admit.copy(),
        first_token_ns=live.first_token.copy(),
        second_token_ns=live.second_token.copy(),
        last_token_ns=live.last_token.copy(),
        terminal_ns=live.terminal.copy(),
        output_length=live.generated.copy(),
        source_held_ns=never.copy(),
        destination_reserved_ns=never.copy(),
        destination_activated_ns=never.copy(),
        source_released_ns=never.copy(),
        worker=live.worker.astype(np.int32),
        decode_worker=never.astype(np.int32),
        admissions=live.admissions.astype(np.int32),
        admission_node=admissions.node.astype(np.int32),
        admission_at_ns=admissions["at"].copy(),
        admission_reused=admissions.reused.copy(),
        admission_pool_ordinal=admissions.ordinal.copy(),
        admission_decode=np.zeros(len(admissions), np.bool_),
        play_state=sim.play_state,
        play_lane=plays.lane.astype(np.int32),
        play_start_ns=plays.start.copy(),
        play_first_dispatch_ns=plays.first_dispatch.copy(),
        play_last_terminal_ns=plays.last_terminal.copy(),
        play_settled_ns=plays.settled.copy(),
        play_failed_node=plays.failed_node.astype(np.int32),
        gap_ns=gaps.value.copy(),
        gap_count=gaps["count"].copy(),
        passes=workers.passes.copy(),
        busy_ns=workers.busy.copy(),
        prefill_tokens=workers.prefill_tokens.copy(),
        decode_tokens=workers.decode_tokens.copy(),
        preemptions=workers.preemptions.copy(),
        evictions=workers.evictions.copy(),
        end_ns=max(int(live.terminal.max()), 0),
    )
