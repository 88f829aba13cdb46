"""A finite run, some instants at a time."""

from __future__ import annotations

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.runs.ledgers import leave_unfinished
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.simulation import Simulation


def run_for(sim: Sim, instants: int) -> tuple[Sim, bool]:
    """Run for at least so many instants; return the arrays as they are then, and whether everything has ended."""
    simulation = Simulation(sim)
    stop = simulation.advance(instants)
    simulation.refuse(stop)
    if stop == Stop.HORIZON:
        leave_unfinished(simulation.sim)
    return simulation.sim, stop != Stop.SLICE
