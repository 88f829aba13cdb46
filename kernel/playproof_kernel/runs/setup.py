"""The arrays of a run that has not started: from a compiled graph, a deployment and a load."""

from __future__ import annotations

from typing import Any

import numpy as np
from playproof_spec.deployment import (
    MAX_DRAFTS,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    Role,
    SpeculationSpec,
    WorkerSpec,
)
from playproof_spec.units import HORIZON_NS

from playproof_kernel.corpus.compiled import CompiledGraph
from playproof_kernel.engines import sglang_rules, timing, vllm
from playproof_kernel.engines.engine import ENGINES, engine_of
from playproof_kernel.engines.passes import MAX_VARYING_PASSES
from playproof_kernel.ground.arrays import (
    ACTION_QUEUES,
    ADMISSION_LOG,
    BLOCKS,
    BRANCHES,
    ENDED_LOG,
    ENTRIES,
    GAP_LOG,
    HANDED_OVER,
    IDLE_RUNS,
    KV_TRANSFERS,
    LANES,
    LANES_CONTROLLED,
    LONGEST_TABLE,
    NODES,
    NONE,
    NUMBERS,
    ONE,
    PLACES,
    PLAYS,
    PREPARATION,
    QUEUE_KINDS,
    QUEUES,
    REQUESTS,
    RESULT_LOG,
    SEATS,
    SEATS_AHEAD,
    SHIFT_LOG,
    THREE,
    TWO,
    UNCOUNTED,
    WORKERS,
    Branch,
    Config,
    Heap,
    Host,
    HostDetail,
    HostIdleRun,
    HostKeyGroup,
    HostTransfer,
    Indexed,
    Play,
    Sim,
    Worker,
)
from playproof_kernel.ground.faults import ReplayFault as ReplayFault
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.ground.records import allocate, records
from playproof_kernel.host.host_pool import ORDER_PER_BLOCK
from playproof_kernel.memory import radix_tree
from playproof_kernel.routing import placement

# Numbers of a pool in excess of its blocks are three times as many, but no more than this.
MAX_SPARE_NUMBERS = 1 << 22
# Room for admissions beyond one a request, so that a small run does not outgrow its log by its first preemption.
SPARE_ADMISSIONS = 64


def new_sim(graph: CompiledGraph, deployment: DeploymentSpec, load: LoadSpec) -> Sim:
    """Return the arrays of a run that has not started."""
    nodes, plays = len(graph.static), len(graph.play_begin) - 1
    config = _new_config(deployment, load, nodes, plays)
    config.key_stride = graph.key_stride
    static = _new_static(graph, config)
    workers, rows = int(config.workers.sum()), len(static)
    sequences, lanes = int(config.max_sequences.max()), int(config[0].lanes)
    keeps_tree = config[0].keeps_tree != 0
    # A tree counts pages; only a pool of blocks keeps copies apart, and tables of them.
    frames = 0 if keeps_tree else int(config.blocks.max())
    # More numbers than there are blocks, for the blocks of a prompt to have neighbouring ones (see `block_pool`).
    numbers = min(4 * frames, frames + MAX_SPARE_NUMBERS)
    longest = 0 if keeps_tree else int(static.table_size.max())
    capacity = radix_tree.room(sequences) if keeps_tree else 1
    # Room for a full batch of the longest requests, within what a processor keeps at hand; it grows when that is short.
    arena = min(2 * sequences * longest, max(2 * longest, 1 << 18))
    gaps = 1 << (4 * (MAX_VARYING_PASSES + sequences) * workers).bit_length()
    sizes = {
        ONE: 1,
        TWO: 2,
        THREE: 3,
        QUEUE_KINDS: QUEUES,
        REQUESTS: rows,
        NODES: nodes,
        HANDED_OVER: nodes if len(config) > 1 else 0,
        LANES: max(lanes, 1),
        SEATS: sequences,
        SEATS_AHEAD: sequences if config[0].ahead else 0,
        ACTION_QUEUES: workers + 1,
        NUMBERS: numbers,
        BLOCKS: frames,
        PLACES: frames * GROUP,
        IDLE_RUNS: 1 << (2 * frames).bit_length(),
        ENTRIES: arena,
        LONGEST_TABLE: longest + 1,
        BRANCHES: capacity,
        KV_TRANSFERS: len(graph.static) if len(config) > 1 else 0,
        GAP_LOG: gaps,
        ADMISSION_LOG: nodes + 2 * sequences + SPARE_ADMISSIONS,
        WORKERS: workers,
        PLAYS: plays,
        **dict.fromkeys((LANES_CONTROLLED, PREPARATION, RESULT_LOG, ENDED_LOG, SHIFT_LOG, UNCOUNTED), 0),
    }
    given = {
        "config": config,
        "static": static,
        "edges": graph.edges,
        "keys": graph.keys,
        "plays": _new_plays(graph),
        "play_nodes": graph.play_nodes,
        "workers": _new_workers(config),
        **_new_addresses(config, deployment, numbers, frames),
        "buckets": _new_buckets(workers, frames),
        "tree": _new_trees(workers * (1 + int(config[0].hears)), capacity),
        "branches": new_branches(workers, capacity),
        "cancellations": _new_cancellations(load),
        **_new_hosts(deployment, numbers),
        **_new_index(config, deployment),
    }
    return allocate(Sim, sizes, given)


def _new_config(deployment: DeploymentSpec, load: LoadSpec, nodes: int, plays: int) -> Any:
    decode = deployment.decode
    engine_of(deployment.worker).refuse(deployment)
    config = records(1 if decode is None else 2, Config)
    _fill_role(config[0:1], deployment.worker, deployment.workers, nodes)
    if decode is not None:
        prefill = deployment.worker
        if (engine_of(prefill), prefill.block_size) != (engine_of(decode.worker), decode.worker.block_size):
            raise ValueError("the roles of a deployment have one engine and one block size")
        if prefill.rules != decode.worker.rules:
            raise ValueError("the roles of a deployment follow one set of rules")
        _fill_role(config[1:2], decode.worker, decode.workers, nodes)
        config.role = (Role.PREFILL, Role.DECODE)
        config[1].first_worker = deployment.workers
        config.bytes_per_token = decode.transfer.bytes_per_token
        config.bytes_per_second = decode.transfer.bytes_per_second or 0.0
        config.full_prompt = decode.transfer.full_prompt
    if deployment.speculation is not None:
        _fill_speculation(config, deployment.speculation)
    placement.fill(config, deployment.router)
    config.context = deployment.context_length
    config.lanes = min(load.lanes or 0, plays)
    # With speculation no pass can be told from the one before it.
    config.macro = load.macro_steps and deployment.speculation is None
    config.end = HORIZON_NS if load.stop_ns is None else load.stop_ns
    return config


def _fill_speculation(config: Any, spec: SpeculationSpec) -> None:
    if not 1 <= spec.drafts <= MAX_DRAFTS:
        raise ValueError(f"between 1 and {MAX_DRAFTS} tokens can be drafted")
    config.drafts = np.where(config.role == Role.PREFILL, 0, spec.drafts)
    config.speculative = 1
    config.plain = 0
    config.seed_low = spec.seed & 0xFFFFFFFF
    config.seed_high = spec.seed >> 32
    rates = spec.rates[: spec.drafts]
    config.rates[:, : len(rates)] = rates


def _fill_role(config: Any, spec: WorkerSpec, workers: int, nodes: int) -> None:
    config.engine = ENGINES.number_of(spec)
    config.keeps_tree = engine_of(spec).keeps_tree
    config.destination_first = engine_of(spec).destination_first
    config.workers = workers
    config.blocks = spec.blocks
    config.block_size = spec.block_size
    config.max_batched_tokens = spec.max_batched_tokens
    # More seats than requests would only cost memory.
    config.max_sequences = min(spec.max_sequences, nodes)
    config.ahead = spec.ahead
    config.reserve = spec.reserve_full_prompt
    # As vLLM reckons it: it keeps one block of its own, and counts it.
    config.watermark = int(spec.watermark * (spec.blocks + 1))
    config.long_prefill = spec.long_prefill_tokens or spec.max_batched_tokens
    config.plain = vllm.is_plain(spec)
    config.chunked_prefill_size = spec.chunked_prefill_size
    config.max_prefill_tokens = spec.max_prefill_tokens
    sglang_rules.fill(config, spec.rules, spec.schedule_conservativeness)
    config.ignore_eos = spec.ignore_eos
    config.caching = spec.prefix_caching
    config.reuse_output = spec.reuse_output
    timing.fill(config, spec.timing)
    config.host = spec.host is not None


def _new_static(graph: CompiledGraph, config: Any) -> Any:
    """Return what is fixed of each engine request: a node's, or a prefill row and a decode row for each node."""
    static = graph.static
    if len(config) == 1:
        _forget_answers(static, config[0])
        return static
    both = np.concatenate([static, static]).view(type(static))
    prefill, decode = both[: len(static)], both[len(static) :]
    # A prefill worker computes the prompt and one token that the client does not see, if any token is wanted.
    prefill.limit = np.minimum(prefill.limit, 1)
    for rows, role in ((prefill, config[0]), (decode, config[1])):
        _forget_answers(rows, role)
        tokens = rows.input + rows.limit
        rows.table_size = np.minimum((tokens + role.block_size - 1) // role.block_size, role.blocks)
    return both


def _forget_answers(rows: Any, role: Any) -> None:
    """Leave no key to what is generated on the workers of `role`, unless it may be found there."""
    if role.reuse_output == 0:
        rows.answer_end = rows.key_end
        rows.keyed = rows.input // role.block_size


def _new_cancellations(load: LoadSpec) -> Any:
    cancellations = records(len(load.cancellations), Heap)
    for entry, (time, node) in zip(cancellations, sorted(load.cancellations), strict=True):
        entry.time = time
        entry.node = node
    return cancellations


def _new_hosts(deployment: DeploymentSpec, numbers: int) -> dict[str, Any]:
    """Return the fields of `Sim` that belong to host memory; they are empty where no worker has any."""
    roles = [(deployment.worker, deployment.workers)]
    if deployment.decode is not None:
        roles.append((deployment.decode.worker, deployment.decode.workers))
    specs = [spec.host for spec, workers in roles for _ in range(workers)]
    workers = len(specs) if any(spec is not None for spec in specs) else 0
    capacity = max((spec.blocks for spec in specs if spec is not None), default=0)
    hosts = records(workers, Host)
    sharers = [worker for worker, spec in enumerate(specs) if spec is not None and spec.shared]
    for worker, spec in enumerate(specs[:workers]):
        if spec is not None:
            _fill_host(hosts, worker, sharers[0] if spec.shared else worker, spec)
    pools = int(hosts.pool.max(initial=NONE)) + 1
    return {
        "hosts": hosts,
        "host_state": np.zeros((pools, capacity * GROUP), np.int8),
        "host_details": records((pools, capacity * GROUP), HostDetail),
        "host_order": records((pools, capacity * ORDER_PER_BLOCK), HostIdleRun),
        "host_key_groups": records((pools, capacity), HostKeyGroup),
        "host_buckets": _new_buckets(pools, capacity),
        "kept": np.zeros((workers, numbers), np.int32),
        "host_transfers": records(workers * capacity, HostTransfer),
        "host_transfer_state": np.zeros(workers * capacity, np.int8),
    }


def _fill_host(hosts: Any, worker: int, pool: int, spec: HostSpec) -> None:
    host, shared = hosts[worker], hosts[pool]
    host.pool = pool
    host.shared = spec.shared
    host.bytes_per_second[:] = spec.d2h_bytes_per_second or 0.0, spec.h2d_bytes_per_second or 0.0
    host.latency = spec.latency_ns
    host.block_bytes = spec.block_bytes
    rates = spec.shared_d2h_bytes_per_second or 0.0, spec.shared_h2d_bytes_per_second or 0.0
    layout = (spec.blocks, spec.block_bytes, *(rates if spec.shared else (0.0, 0.0)))
    if shared.users > 0 and layout != (shared.capacity, shared.block_bytes, *shared.pool_bytes_per_second):
        raise ValueError("roles that share host memory describe it alike")
    shared.capacity, shared.block_bytes, shared.pool_bytes_per_second[:] = layout[0], layout[1], layout[2:]
    shared.users += 1


def _new_index(config: Any, deployment: DeploymentSpec) -> dict[str, Any]:
    """Return the fields of `Sim` in which the KV router keeps what has been published; without it, without room."""
    roles = [deployment.worker] if deployment.decode is None else [deployment.worker, deployment.decode.worker]
    hosts = [spec.host.blocks for spec in roles if spec.host is not None]
    rows, capacity = int(config.workers.sum()) * (3 if hosts else 1), 0
    if config[0].hears != 0 and config[0].keeps_tree == 0:
        # Each block may hold one key now, and have held another when its pool last published.
        capacity = 2 * max([*config.blocks.tolist(), *hosts])
    index = records((rows, capacity + 1), Indexed)
    index["next"][:, capacity] = NONE
    index["marked"][:, capacity] = NONE
    return {
        "index": index,
        "index_buckets": np.full((rows, 1 << capacity.bit_length()), NONE, np.int32),
    }


def _new_plays(graph: CompiledGraph) -> Any:
    plays = records(len(graph.play_begin) - 1, Play)
    plays.node_begin = graph.play_begin[:-1]
    plays.node_end = graph.play_begin[1:]
    return plays


def _new_workers(config: Any) -> Any:
    table = records(int(config.workers.sum()), Worker)
    table.role = np.repeat(np.arange(len(config)), config.workers)
    table.free = config.blocks[table.role]
    table.most = config.max_batched_tokens[table.role]
    table.ratio = config.ratio_start[table.role]
    return table


def _new_buckets(pools: int, blocks: int) -> Any:
    """Return the hash tables of as many indices by pages, one for each pool of so many blocks.

    Most pages have many blocks, so there are few of them; a table for as many pages as blocks would be out of cache.
    """
    return np.full((pools, 1 << max(blocks.bit_length() - 3, 4)), NONE, np.int32)


def _new_addresses(config: Any, deployment: DeploymentSpec, numbers: int, frames: int) -> dict[str, Any]:
    """Return the fields of `Sim` that tell where in device memory blocks stand; they are empty where it does not show.

    Stores to host memory of a worker's own read blocks that may be given to others meanwhile. Slot 0 is taken first.
    """
    specs = [deployment.worker] if deployment.decode is None else [deployment.worker, deployment.decode.worker]
    shows = [spec.host is not None and not spec.host.shared for spec in specs]
    if not any(shows):
        numbers, frames = 0, 0
    blocks = np.repeat(config.blocks, config.workers)
    return {
        "addresses": np.zeros((len(blocks), numbers), np.int32),
        "free_addresses": (blocks[:, None] - 1 - np.arange(frames)).astype(np.int32),
        "read_addresses": np.zeros((len(blocks), frames), np.int8),
    }


def _new_trees(workers: int, capacity: int) -> Any:
    trees = records((workers, capacity), Branch)
    trees["place"][:, radix_tree.ROOT] = NONE  # the root is never evicted
    return trees


def new_branches(workers: int, capacity: int) -> Any:
    return np.full((workers, max(16, 1 << (2 * capacity).bit_length())), NONE, np.int64)
