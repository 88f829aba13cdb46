"""The kernel's own check that a run stays on the clock, for whoever comes through its door."""

from __future__ import annotations

from playproof_spec.clock import RoleWork, clock_finding
from playproof_spec.deployment import DeploymentSpec, LoadSpec, WorkerSpec
from playproof_spec.findings import Finding, Findings, InvalidInput, finding
from playproof_spec.graph import Graph
from playproof_spec.units import ns_to_ms

from playproof_kernel.engines.engine import engine_of
from playproof_kernel.engines.timing import model_of

MS_PER_S = 1000.0


class UnfitLoad(InvalidInput):
    """A load with which a run leaves the clock; `.findings` say why."""


def _unfit(problem: Finding) -> UnfitLoad:
    findings = Findings()
    findings.add(problem)
    return UnfitLoad(findings)


def passed_horizon() -> UnfitLoad:
    """Return the refusal of a run that came to the end of the clock on its way, which preemptions can do."""
    return _unfit(finding("clock-horizon", "the run came to the end of the clock before its requests were through"))


def refuse_past_horizon(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    """Refuse a load with which a time could lie past the end of the clock.

    Raises
    ------
    UnfitLoad
    """
    if not load.speedup > 0.0:
        raise ValueError("a speedup is above zero")
    roles, transfers_ms = work_of(graph, deployment)
    profile_ms = 0.0 if load.profile is None else ns_to_ms(load.profile.duration_ns + load.profile.grace_ns)
    problem = clock_finding(
        graph,
        roles,
        speedup=load.speedup,
        lanes=load.lanes,
        transfers_ms=transfers_ms,
        is_cut=load.snapshot_seed is not None,
        profile_ms=profile_ms,
        stops=load.stop_ns is not None,
    )
    if problem is not None:
        raise _unfit(problem)


def work_of(graph: Graph, deployment: DeploymentSpec) -> tuple[list[RoleWork], float]:
    """Return what the workers of each role do for `graph`, and what all transfers between them can take, ms."""
    roles = [_work(graph, deployment.worker, True, deployment.decode is None)]
    transfers_ms = 0.0
    if deployment.decode is not None:
        transfer = deployment.decode.transfer
        roles.append(_work(graph, deployment.decode.worker, False, True))
        if transfer.bytes_per_second is not None:
            # At most whole prompts, in whole blocks.
            tokens = int(graph.input_length.sum()) + graph.node_count * deployment.worker.block_size
            transfers_ms = tokens * transfer.bytes_per_token / transfer.bytes_per_second * MS_PER_S
    return roles, transfers_ms


def _work(graph: Graph, worker: WorkerSpec, prompts: bool, outputs: bool) -> RoleWork:
    budget = engine_of(worker).tokens_a_pass(worker)
    tokens = min(budget, int(graph.input_length.sum())) if prompts else 0
    return RoleWork(prompts, outputs, budget, model_of(worker.timing).upper_bound(worker.timing, tokens))
