"""A third routing policy, in a file of its own: to the worker that has the fewest tokens of requests not through."""

from __future__ import annotations

from dataclasses import dataclass

from playproof_kernel.ground import worker_load
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import compiled
from playproof_kernel.routing.seam import POLICIES, Policy
from playproof_spec.deployment import RouterSpec


@dataclass(frozen=True, slots=True)
class LeastLoaded(RouterSpec):
    """Requests go where the load is least; of equals to the first."""


@compiled
def choose(sim: Sim, role: int, request: int) -> int:
    config = sim.config[role]
    best, least = int(NONE), 0
    for worker in range(config.first_worker, config.first_worker + config.workers):
        load = worker_load.assigned(sim, worker)
        if best == NONE or load < least:
            best, least = int(worker), load
    worker_load.assign(sim, best, request, 0, 0)
    return best


POLICY = POLICIES.register(
    Policy(
        name="least loaded",
        serves=lambda spec: isinstance(spec, LeastLoaded),
        configure=lambda config, spec: None,
        hears=False,
        choose=choose,
    )
)
