"""Where a request goes under `kv_router`: to the worker where it costs least, by cached prefix and by load.

**What the router knows of caches** is what their events have told (`cache_events`). On the device the published blocks of a
prompt are its leading ones: whoever takes a block takes those before it with it, and lets go of it before them, so none
is evicted before what follows it. The overlap is found by bisection. (But copies to a shared host pool keep the blocks
that they read, so there one block is asked for after the other.)

**What the router knows of load** is its own (`worker_load`).

`choose` documents the cost. Nothing here runs under round robin.
"""

from __future__ import annotations

from playproof_spec.deployment import Backend

from playproof_kernel.ground import worker_load
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ZERO, compiled, constant
from playproof_kernel.memory import cache_events, prompt_keys, radix_tree

_SGLANG = constant(Backend.SGLANG)


@compiled
def _key_of(sim: Sim, request: int, block: int) -> int:
    """Return the key of a full block of the prompt of `request`."""
    static = sim.static[request]
    return prompt_keys.key_at(sim.keys, static, static.space, sim.config[0].key_stride, block)


@compiled
def _on_device(sim: Sim, worker: int, request: int, blocks: int) -> int:
    """Return how many leading ones of the `blocks` full prompt blocks of `request` the device of `worker` has."""
    if sim.config[0].backend == _SGLANG:
        return radix_tree.published_prefix(radix_tree.tree_of(sim, worker), request, blocks)
    if sim.config[sim.workers[worker].role].host != 0 and sim.hosts[worker].shared != 0:
        return _published_run(sim, worker, request, ZERO, blocks)
    low, high = ZERO, blocks
    while low < high:
        middle = (low + high + 1) // 2
        if cache_events.is_published(sim, worker, _key_of(sim, request, middle - 1)):
            low = middle
        else:
            high = middle - 1
    return int(low)


@compiled
def _published_run(sim: Sim, row: int, request: int, begin: int, blocks: int) -> int:
    """Return how many full prompt blocks from `begin` on, one after the other, the pool of `row` has."""
    block = begin
    while block < blocks and cache_events.is_published(sim, row, _key_of(sim, request, block)):
        block += 1
    return int(block - begin)


@compiled
def _on_host(sim: Sim, worker: int, request: int, begin: int, blocks: int) -> int:
    """Return how many full prompt blocks from `begin` on, one after the other, the host memory of `worker` has."""
    if sim.config[sim.workers[worker].role].host == 0:
        return 0
    row = sim.workers.shape[0] + int(sim.hosts[worker].pool)
    return _published_run(sim, row, request, begin, blocks)


@compiled
def choose(sim: Sim, role: int, request: int) -> int:
    """Return the worker of `role` where `request` costs least, and count it there.

    In blocks, with `device` and `host` the leading blocks of its prompt published on the device and, behind those, in
    host memory, the cost of a worker is ::

        overlap_score_weight · (prompt − device − host_cache_hit_weight · host + the same of what has not begun there)
          + prompts and output of all requests that it has

    The least cost wins, then the least of the last term, then the first worker. No pass may be cut short by it: the
    caller has let every pass of these workers that has ended count.
    """
    config = sim.config[role]
    prompt = sim.static[request].input
    size = config.block_size
    best, best_cost, best_load, best_device, best_host = NONE, 0.0, ZERO, ZERO, ZERO
    for worker in range(config.first_worker, config.first_worker + config.workers):
        record = sim.workers[worker]
        device = _on_device(sim, worker, request, prompt // size)
        host = _on_host(sim, worker, request, device, prompt // size)
        missing = float(prompt - device * size + record.missing)
        restorable = float(host * size + record.restorable)
        assigned = worker_load.assigned(sim, worker)
        cost = config.overlap_score_weight * (missing - config.host_cache_hit_weight * restorable) + float(assigned)
        if best == NONE or cost < best_cost or (cost == best_cost and assigned < best_load):
            best, best_cost, best_load, best_device, best_host = worker, cost, assigned, device, host
    worker_load.assign(sim, best, request, best_device, best_host)
    return int(best)
