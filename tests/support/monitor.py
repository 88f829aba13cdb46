"""Looks at every event of interpreted runs: the guard of its entry must hold, and the event be a move of the models.

Needs ``NUMBA_DISABLE_JIT=1``. With ``PLAYPROOF_MONITOR=1`` as well the whole test run is watched (`conftest.py`).
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numba
import playproof_kernel
from playproof_kernel.checks.guards import PREDICATES, At
from playproof_kernel.ground import transitions
from playproof_spec.machines import MACHINES, Machine
from refinement import Refinement


class GuardBroken(AssertionError):
    """An event was raised whose guard is false, or has no predicate."""


_TABLES: dict[int, Machine] = {
    id(getattr(transitions, name)): machine
    for name, machine in zip(
        (
            *("NODE_TABLE", "PLAY_TABLE", "LANE_TABLE", "PHASE_TABLE", "REQUEST_TABLE"),
            *(
                "SOURCE_FIRST_TABLE",
                "DESTINATION_FIRST_TABLE",
                "BLOCK_TABLE",
                "HOST_BLOCK_TABLE",
                "HOST_TRANSFER_TABLE",
            ),
        ),
        MACHINES,
        strict=True,
    )
}


class Monitor:
    """What was seen: events by machine and name, and those of which no run was in sight.

    Attributes
    ----------
    seen : Counter of (machine, state, event)
    unseen : Counter of (machine, event)
        Raised by a test on a pool alone: there is no run whose arrays a guard could be about.
    """

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.unseen: Counter[tuple[str, str]] = Counter()
        self.turns = 0
        self._runs: dict[int, tuple[Any, Refinement]] = {}

    def refinement(self, sim: Any) -> Refinement:
        """Return the models of a run; a run is known by its first record, which it keeps when it grows."""
        key = self._key(sim)
        if key not in self._runs or self._runs[key][0]() is None:
            self._runs[key] = (weakref.ref(sim.run), Refinement())
        return self._runs[key][1]

    @staticmethod
    def _key(sim: Any) -> int:
        return int(sim.run.ctypes.data)

    def event(self, table: Any, states: Any, index: Any, event: Any) -> None:
        """Check an event that is about to be raised."""
        machine = _TABLES.get(id(table))
        if machine is None:
            return
        state, raised = machine.states(int(states[index])), machine.events(int(event))
        rule = machine.table[state].get(raised)
        sim = _run_in_sight()
        if rule is None or sim is None:
            self.unseen[machine.name, raised.name] += 1
            return
        self.seen[machine.name, state.name, raised.name] += 1
        at = At(sim, machine.name, states, int(index), int(event))
        guards = {}
        if rule.guard:
            excused = (self._key(sim), at.index) in EXCUSED and rule.guard == "due"
            if rule.guard not in PREDICATES or not (excused or PREDICATES[rule.guard](at)):
                raise GuardBroken(f"{machine.name} {index}: {state.name} —{raised.name}→ though not {rule.guard}")
            guards[rule.guard] = True
        self.refinement(sim).event(at, guards)

    def renewed(self, table: Any, index: Any) -> None:
        """Take note of another life."""
        machine, sim = _TABLES.get(id(table)), _run_in_sight()
        if machine is not None and sim is not None:
            self.refinement(sim).renewed(machine.name, int(index))

    def turn(self, sim: Any) -> None:
        """Compare the models with a run after one of its turns."""
        self.turns += 1
        self.refinement(sim).boundary(sim)


# Nodes, by run, that a test has brought forward with its own hands.
EXCUSED: set[tuple[int, int]] = set()


def bring_forward(sim: Any, node: int) -> None:
    """Take note that a test lets `node` be dispatched before its time."""
    EXCUSED.add((Monitor._key(sim), node))


def _run_in_sight() -> Any:
    """Return the run that the functions being called work on, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        if "sim" in frame.f_code.co_varnames:
            sim = frame.f_locals.get("sim")
            if hasattr(sim, "run") and hasattr(sim, "node_state"):
                return sim
        frame = frame.f_back  # type: ignore[assignment]
    return None


def install() -> Monitor:
    """Watch every run of this process from now on."""
    assert numba.config.DISABLE_JIT, "compiled events cannot be watched"
    for module in pkgutil.walk_packages(playproof_kernel.__path__, "playproof_kernel."):
        importlib.import_module(module.name)
    monitor = Monitor()
    advance, renew = transitions.advance, transitions.renew

    def watched_advance(table: Any, states: Any, index: Any, event: Any) -> None:
        monitor.event(table, states, index, event)
        advance(table, states, index, event)

    def watched_renew(table: Any, states: Any, index: Any) -> None:
        renew(table, states, index)
        monitor.renewed(table, index)

    _replace(advance, watched_advance)
    _replace(renew, watched_renew)
    loop: Any = importlib.import_module("playproof_kernel.runs.loop")
    turn = loop._turn

    def watched_turn(sim: Any) -> int:
        stop = turn(sim)
        if stop == 0:
            monitor.turn(sim)
        return int(stop)

    loop._turn = watched_turn
    return monitor


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("playproof_kernel") or "test" in name or name in ("handoff_machine", "host_machine"):
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
