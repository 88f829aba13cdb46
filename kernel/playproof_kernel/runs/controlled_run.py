"""The kernel's second door: a run under snapshot, warmup and profile.

Plays run as instances in a fixed number of seats, so that memory does not grow with the length of a profile: what ended
is drained from the compiled run between slices, and reduced there. Without capture the run keeps four figures of each
completed request (its latencies, for exact percentiles) and one record of each play; with it, all of each request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from playproof_spec.certificate import ProvenGraph
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.digest import graph_digest

from playproof_kernel.checks.translation import (
    refuse_wrong_namespaces,
)
from playproof_kernel.ground.arrays import (
    Sim,
)
from playproof_kernel.ground.faults import ReplayFault
from playproof_kernel.runs.clock_bound import refuse_past_horizon
from playproof_kernel.runs.controlled_ledger import ControlledLedger, Drain, ledger_of_controlled
from playproof_kernel.runs.controlled_setup import start_controlled
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.simulation import Simulation


def simulate_controlled(
    proven: ProvenGraph,
    deployment: DeploymentSpec,
    load: LoadSpec,
    *,
    capture: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ControlledLedger:
    """Replay a proven graph from a snapshot on, with or without warmup and profile.

    Parameters
    ----------
    proven : ProvenGraph
    deployment : DeploymentSpec
    load : LoadSpec
        With `lanes` and `snapshot_seed`.
    capture : bool
        Keep every request.
    progress : callable, optional
        Called now and then with simulated seconds since the barrier and their bound in a profile, and with requests
        ended and in all else.

    Raises
    ------
    InvalidSnapshot
        When the trace contradicts itself at a cut.
    UnfitLoad
        When a time could lie past the end of the clock, or the run comes to it.
    ReplayFault
        When the run cannot go on; no input that was proven may bring that about.
    """
    refuse_past_horizon(proven.graph, deployment, load)
    digest = graph_digest(proven.graph, shift_floors=False)
    sim, cuts = start_controlled(proven.graph, digest, deployment, load)
    drain = Drain(proven.graph, capture)
    sim = _run(sim, drain, progress)
    ledger = ledger_of_controlled(sim, digest, cuts, drain)
    uncounted = drain.uncounted(sim)
    if len(uncounted) == 0:
        return ledger
    # Gaps are counted as they happen, and which requests complete is known now: the same run again, without the others.
    again, _ = start_controlled(proven.graph, digest, deployment, load, uncounted)
    counted = ledger_of_controlled(_run(again, Drain(proven.graph, False), None), digest, cuts, drain)
    return dataclasses.replace(ledger, gap_ns=counted.gap_ns, gap_count=counted.gap_count)


def _run(sim: Sim, drain: Drain, progress: Callable[[int, int], None] | None) -> Sim:
    """Run to the end, taking out what ends on the way; returns the arrays as they are then."""

    def take(sim: Sim) -> None:
        drain.take(sim)
        refuse_wrong_namespaces(sim)
        if progress is not None:
            progress(*_progress(sim))
        if sim.run[0].no_identity:
            raise ReplayFault("the profile ran out of cache identities")

    simulation = Simulation(sim, take)
    stop = Stop.SLICE
    while stop == Stop.SLICE:
        stop = simulation.advance()
    simulation.refuse(stop)
    return simulation.sim


def _progress(sim: Sim) -> tuple[int, int]:
    run, config = sim.run[0], sim.config[0]
    if config.profile == 0:
        return int(run.finished), max(int(run.issued), 1)
    if run.profile_start < 0:
        return 0, int(config.duration // 10**9)
    return int((run.now - run.profile_start) // 10**9), int(config.duration // 10**9)
