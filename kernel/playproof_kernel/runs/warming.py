"""Compiling all that a deployment under a load calls, by running the smallest thing on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.sketch import sketch

from playproof_kernel.corpus.compiled import compile_graph
from playproof_kernel.runs import loop
from playproof_kernel.runs.controlled_run import simulate_controlled
from playproof_kernel.runs.finite import simulate
from playproof_kernel.runs.live_driver import LiveDriver
from playproof_kernel.runs.live_engine import LiveEngine
from playproof_kernel.runs.room import with_room
from playproof_kernel.runs.setup import new_sim


def warm(deployment: DeploymentSpec, load: LoadSpec) -> None:
    """Call every compiled function that a replay on `deployment` under `load` may call.

    Parameters
    ----------
    deployment : DeploymentSpec
    load : LoadSpec
    """
    one = _one_request()
    if load.snapshot_seed is None:
        simulate(one, deployment, load)
    else:
        simulate_controlled(one, deployment, load)
    # A large run outgrows its logs, and SGLang's trees, which are then entered anew.
    graph = compile_graph(
        one.graph,
        block_size=deployment.worker.block_size,
        blocks=deployment.worker.blocks,
        context=deployment.context_length,
        lanes=True,
        speedup=1.0,
    )
    sim = new_sim(graph, deployment, replace(load, lanes=load.lanes or 1))
    with_room(sim, loop.Stop.LOGS)
    if sim.config[0].keeps_tree != 0:
        with_room(sim, loop.Stop.TREE)


def warm_live(deployment: DeploymentSpec) -> None:
    """Call every compiled function that a live engine of `deployment` and the live driver may call.

    Parameters
    ----------
    deployment : DeploymentSpec
        Aggregated, without speculation.

    Raises
    ------
    ValueError
        When it is not.
    """
    engine = LiveEngine(deployment)
    engine.arrive(np.zeros(1, np.uint32), 1)
    engine.advance(0)
    LiveDriver(_one_request(), LoadSpec(), workers=1).warm_up()


def _one_request() -> ProvenGraph:
    return prove(sketch([{"request_id": "only", "input_length": 1, "output_length": 1}]))
