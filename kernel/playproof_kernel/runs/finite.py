"""The public door of the kernel: a proven graph, a deployment and a load in, a ledger out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from playproof_spec.certificate import ProvenGraph
from playproof_spec.deployment import (
    DeploymentSpec,
    LoadSpec,
)
from playproof_spec.ledger import Ledger
from playproof_spec.machines import NodeState

from playproof_kernel.checks.translation import compile_checked, settings_of
from playproof_kernel.driver import play_driver
from playproof_kernel.ground.arrays import (
    Sim,
)
from playproof_kernel.ground.faults import ReplayFault as ReplayFault
from playproof_kernel.memory.block_pool import GENERATED
from playproof_kernel.runs.clock_bound import refuse_past_horizon
from playproof_kernel.runs.ledgers import leave_unfinished, ledger_of
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.setup import new_sim
from playproof_kernel.runs.simulation import Simulation


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
    UnfitLoad
        When a time could lie past the end of the clock, or the run comes to it.
    ValueError
        When the load has a snapshot, warmup or profile.
    """
    load = load or LoadSpec()
    if load.snapshot_seed is not None or load.warmup or load.profile is not None:
        raise ValueError("run controls are simulated by simulate_controlled")
    refuse_past_horizon(proven.graph, deployment, load)
    graph = compile_checked(proven.graph, proven.certificate.graph_digest, settings_of(deployment, load))
    if load.play_scope and len(graph.play_begin) * graph.key_span > GENERATED:
        raise ReplayFault("the plays' namespaces together need more block keys than there are")
    sim = new_sim(graph, deployment, load)
    play_driver.start(sim)
    ledger = finish(sim, progress)
    unfinished = (ledger.node_state != NodeState.COMPLETED) & (ledger.output_length > 1)
    if not unfinished.any():
        return ledger
    # Gaps are counted as they happen, and which requests complete is known now: the same run again, without the others.
    again = new_sim(graph, deployment, load)
    again.static.uncounted = np.resize(unfinished, len(again.static))
    again.run[0].uncounted = 1
    play_driver.start(again)
    counted = finish(again)
    return replace(ledger, gap_ns=counted.gap_ns, gap_count=counted.gap_count)


def finish(sim: Sim, progress: Callable[[int, int], None] | None = None) -> Ledger:
    """Run a started simulation to its end, or to where its load stops it, and return the ledger."""
    simulation = Simulation(sim)
    stop = Stop.SLICE
    while stop == Stop.SLICE:
        stop = simulation.advance()
        if progress is not None:
            progress(int(simulation.sim.run[0].finished), len(simulation.sim.node_state))
    simulation.refuse(stop)
    if stop == Stop.HORIZON:
        leave_unfinished(simulation.sim)
    return ledger_of(simulation.sim)
