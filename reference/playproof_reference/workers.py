"""Which worker a deployment's settings ask for, and what all workers of a run have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from playproof_spec.deployment import Backend, DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph

from playproof_reference.ahead import AheadWorker
from playproof_reference.host import HostVllmWorker
from playproof_reference.overlap import OverlapWorker
from playproof_reference.requests import Admission, Request
from playproof_reference.sglang import SglangWorker
from playproof_reference.speculation import Drafts
from playproof_reference.vllm import VllmWorker


def new_worker(graph: Graph, deployment: DeploymentSpec, requests: list[Request]) -> VllmWorker:
    """Return a worker of an aggregated deployment."""
    spec = deployment.worker
    kind: type[VllmWorker] = VllmWorker
    if spec.backend is Backend.SGLANG:
        kind = OverlapWorker if spec.ahead else SglangWorker
    elif spec.host is not None:
        kind = HostVllmWorker
    elif spec.ahead:
        kind = AheadWorker
    return kind(graph, spec, deployment.context_length, requests)


def of_one_run(workers: Sequence[VllmWorker], load: LoadSpec) -> list[Admission]:
    """Let `workers` know the same of the trace, and write into one log, in the order of events; return it."""
    log: list[Admission] = []
    # Under run controls every play instance has blocks of its own already.
    apart = load.play_scope and load.snapshot_seed is None
    for worker in workers:
        worker.log, worker.apart = log, apart
        # What a prompt of the trace holds depends on no role.
        worker.reads_on = any(other.spec.reuse_output for other in workers)
    return log


def speculate(workers: Sequence[VllmWorker], deployment: DeploymentSpec, *, drafting: bool = True) -> None:
    """Give workers the rules of speculative decoding, if the deployment has it; prefill workers draft nothing."""
    if deployment.speculation is not None:
        for number, worker in enumerate(workers):
            spec = deployment.speculation if drafting else replace(deployment.speculation, drafts=0)
            worker.drafts = Drafts(spec, number)
            worker.recomputes_last_block = True
