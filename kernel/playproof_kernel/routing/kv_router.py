"""Where a request goes under `kv_router`: to the worker where it costs least, by cached prefix and by load.

**What the router knows of caches** is what their events have told (`cache_events`, and an engine's `published`).

**What the router knows of load** is its own (`worker_load`).

`choose` documents the cost. Nothing here runs under round robin.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import RouterSpec

from playproof_kernel.engines import engine
from playproof_kernel.ground import worker_load
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ZERO, compiled
from playproof_kernel.memory import cache_events
from playproof_kernel.routing.seam import Policy


@compiled
def _on_host(sim: Sim, worker: int, request: int, begin: int, blocks: int) -> int:
    """Return how many full prompt blocks from `begin` on, one after the other, the host memory of `worker` has."""
    if sim.config[sim.workers[worker].role].host == 0:
        return 0
    row = sim.workers.shape[0] + int(sim.hosts[worker].pool)
    return cache_events.published_run(sim, row, request, begin, blocks)


@compiled
def choose(sim: Sim, role: int, request: int) -> int:
    """Return the worker of `role` where `request` costs least, and count it there.

    In blocks, with `device` and `host` the leading blocks of its prompt published on the device and, behind those, in
    host memory, the cost of a worker is ::

        overlap_score_weight · (prompt − device − host_cache_hit_weight · host + the same of what has not begun there)
          + prompts and output of all requests that it has

    The least cost wins, then the least of the last term, then the first worker. Every pass of these workers that has
    ended counts.
    """
    config = sim.config[role]
    for worker in range(config.first_worker, config.first_worker + config.workers):
        engine.interrupt(sim, worker)
    prompt = sim.static[request].input
    size = config.block_size
    best, best_cost, best_load, best_device, best_host = NONE, 0.0, ZERO, ZERO, ZERO
    for worker in range(config.first_worker, config.first_worker + config.workers):
        record = sim.workers[worker]
        device = engine.published(sim, worker, request, prompt // size)
        host = _on_host(sim, worker, request, device, prompt // size)
        missing = float(prompt - device * size + record.missing)
        restorable = float(host * size + record.restorable)
        assigned = worker_load.assigned(sim, worker)
        cost = config.overlap_score_weight * (missing - config.host_cache_hit_weight * restorable) + float(assigned)
        if best == NONE or cost < best_cost or (cost == best_cost and assigned < best_load):
            best, best_cost, best_load, best_device, best_host = worker, cost, assigned, device, host
    worker_load.assign(sim, best, request, best_device, best_host)
    return int(best)


def _configure(config: Any, spec: RouterSpec | None) -> None:
    assert spec is not None, "the policy is asked whether it serves"
    config.overlap_score_weight = spec.overlap_score_weight
    config.host_cache_hit_weight = spec.host_cache_hit_weight


POLICY = Policy(
    name="kv_router",
    serves=lambda spec: type(spec) is RouterSpec,
    configure=_configure,
    hears=True,
    choose=choose,
)
