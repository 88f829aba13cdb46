"""The door to a finite run: a trace, a deployment and a load in, everything that happened out."""

from __future__ import annotations

from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph

from playproof_reference.aggregated import Aggregated
from playproof_reference.disaggregated import replay_disaggregated
from playproof_reference.runs import HandoffTimes, Run


def replay(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> Run:
    """Replay `graph` the slow way."""
    if deployment.decode is not None:
        return replay_disaggregated(graph, deployment, load)
    run = Aggregated(graph, deployment, load)
    run.run()
    handoffs = [HandoffTimes() for _ in run.driver.requests]
    return Run(run.driver, run.workers, handoffs, run.log, overlap=run.router.overlap)
