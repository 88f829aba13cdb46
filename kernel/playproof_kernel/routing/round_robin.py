"""Round robin: requests go to the workers of a role in turn."""

from __future__ import annotations

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled
from playproof_kernel.routing.seam import Policy


@compiled
def choose(sim: Sim, role: int, request: int) -> int:
    """Return the worker whose turn it is."""
    config = sim.config[role]
    placed = sim.run[0].placed
    number = int(placed[role])
    placed[role] += 1
    return int(config.first_worker + number % config.workers)


POLICY = Policy(
    name="round_robin",
    serves=lambda spec: spec is None,
    configure=lambda config, spec: None,
    hears=False,
    choose=choose,
)
