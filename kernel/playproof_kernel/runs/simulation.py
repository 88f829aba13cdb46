"""A simulation that goes on until something is reached that its owner wants to know of."""

from __future__ import annotations

from collections.abc import Callable

from playproof_spec.units import HORIZON_NS

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.faults import ReplayFault
from playproof_kernel.runs import loop
from playproof_kernel.runs.clock_bound import passed_horizon
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.room import logs_are_short, with_room

# Instants of the event loop between two looks at its logs, or two calls of a progress callback; some 0.2 s of work.
SLICE = 100_000
# What is no want of room.
REACHED = (Stop.DONE, Stop.OVER, Stop.SLICE, Stop.HORIZON, Stop.STALL)


class Simulation:
    """A simulation that has started.

    Parameters
    ----------
    sim : Sim
    take_logs : callable, optional
        Takes out of the arrays what its owner keeps of the logs, and leaves them empty; called at every stop. Without,
        logs grow.

    Attributes
    ----------
    sim : Sim
        Its arrays as they are now; with more room they are others.
    """

    def __init__(self, sim: Sim, take_logs: Callable[[Sim], None] | None = None) -> None:
        self.sim = sim
        self._take_logs = take_logs

    def advance(self, instants: int = SLICE) -> Stop:
        """Go on for at least so many instants, or to the end or the clock's; its arrays get the room that they want.

        Returns
        -------
        Stop
            One of `REACHED`.
        """
        while True:
            stop = Stop(loop.run(self.sim, instants))
            if self._take_logs is not None:
                self._take_logs(self.sim)
            if stop in REACHED:
                return stop
            if stop != Stop.LOGS or self._take_logs is None or logs_are_short(self.sim):
                self.sim = with_room(self.sim, stop)

    def refuse(self, stop: Stop) -> None:
        """Refuse a stop at which a simulation on its own clock has no business.

        Raises
        ------
        ReplayFault
            When it cannot go on; no input that was proven may bring that about.
        UnfitLoad
            When it came to the end of the clock.
        """
        if stop == Stop.STALL:
            remain = len(self.sim.node_state) - int(self.sim.run[0].finished)
            raise ReplayFault(f"no event is due but {remain} requests remain")
        if stop == Stop.HORIZON and self.sim.config[0].end == HORIZON_NS:
            raise passed_horizon()
