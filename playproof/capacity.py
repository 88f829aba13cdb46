"""What a deployment's memory holds of a load: obligation G7, asked of what a user says of a deployment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from playproof_spec.capacity import NO_POOL, RoleMemory, prove_capacity
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph
from playproof_spec.obligation import Obligation
from playproof_spec.places import place

from playproof.deployment import AnyDeployment, Load, RoleWorkers

Int64 = npt.NDArray[np.int64]

# Output tokens for which SGLang keeps room at the most when it admits a request.
KEPT_OUTPUT_MAX = 4096


def capacity(graph: Graph, deployment: AnyDeployment, load: Load) -> tuple[tuple[Obligation, Obligation], Findings]:
    """Show, or refute, that nothing fails for want of memory (G7a) and that nothing is preempted (G7b).

    Parameters
    ----------
    graph : Graph
        Proven.
    deployment : Deployment or Disaggregated
    load : Load

    Returns
    -------
    obligations : tuple of Obligation
    findings : Findings
        A warning for each request that only a cache may help to be admitted, and a note for each pool that is smaller
        than what can be in flight, with the size that would do.

    Notes
    -----
    Linear in nodes and edges, but for a least flow through each play, which sees plays without chains and short cuts.
    """
    findings = Findings()
    roles = [_memory(graph, deployment, role, workers) for role, workers in deployment.roles.items()]
    shared = any(w.host_offload is not None and w.host_offload.is_shared for w in deployment.roles.values())
    lanes = load.lanes if load.concurrency is None else load.concurrency
    wraps = load.snapshot_seed is not None and lanes is not None and lanes > len(graph.plays)
    obligations = prove_capacity(
        graph,
        roles,
        findings,
        lanes=lanes,
        repeats=load.profile is not None or wraps,
        unclaimed="stores to a shared host pool keep blocks of requests that have ended" if shared else "",
    )
    if deployment.backend == "sglang":
        for memory in roles:
            _may_not_fit(graph, deployment, memory, findings)
    return obligations, findings


def _memory(graph: Graph, deployment: AnyDeployment, role: str, workers: RoleWorkers) -> RoleMemory:
    """Return what each request weighs on a worker of `role`, and what it needs there alone."""
    size, context = workers.block_size, deployment.context_tokens
    inputs = graph.input_length
    outputs = np.clip(graph.output_length, 0, np.maximum(context - inputs, 0))
    if role == "prefill":
        outputs = np.minimum(outputs, 1)  # a hidden one
    if deployment.backend == "sglang":
        # A place for each token, but for a first one that is the last.
        tokens = inputs + np.where(outputs > 1, outputs, 0)
    elif deployment.speculation is not None and role != "prefill":
        tokens = inputs + outputs
    else:
        tokens = inputs + np.maximum(outputs - 1, 0)
    weight = -(-tokens // size)
    alone = _alone_in_sglang(inputs, outputs, weight, workers) if deployment.backend == "sglang" else weight.copy()
    alone[inputs >= context] = NO_POOL
    weight[inputs >= context] = 0
    holders: int | None = None
    if role == "aggregated" and workers.host_offload is None:
        # In SGLang a prompt that was cut holds pages without a seat.
        holders = workers.max_sequences + (deployment.backend == "sglang")
    return RoleMemory(role, workers.blocks, weight, alone, holders)


def _alone_in_sglang(inputs: Int64, outputs: Int64, weight: Int64, workers: RoleWorkers) -> Int64:
    """Return the pages of a pool in which SGLang admits each request when nothing else runs, retracted or not.

    It wants strictly more than the pages of the tokens that the request knows and the output that it keeps free for it.
    Retracted after g tokens it knows g more and wants g less, but pages are whole: up to a page less one token more.
    """
    size = workers.block_size
    kept = np.minimum(outputs, KEPT_OUTPUT_MAX)
    # Up to here a token known is one more in pages; from here to the last but one it is also one less to keep free.
    first = inputs + outputs - kept
    rest = first % size
    opens_page = (rest == 1) | ((rest == 0) & (kept > 1)) | (rest + kept - 1 > size)
    excess = np.where(opens_page, size - 1, np.where(rest == 0, 0, size - rest))
    wanted = inputs + outputs + excess
    alone: Int64 = np.maximum(wanted // size + 1, weight)
    chunk, most = workers.chunked_prefill_size, min(workers.chunked_prefill_size, workers.max_prefill_tokens)
    charge = np.minimum(-(-(inputs + outputs) // size), -(-chunk // size)) * size
    alone[charge > most] = NO_POOL
    return alone


def _may_not_fit(graph: Graph, deployment: AnyDeployment, memory: RoleMemory, findings: Findings) -> None:
    """Name the requests that could complete in the pool but that SGLang may turn down."""
    may = (memory.alone > memory.blocks) & (memory.weight <= memory.blocks)
    may &= graph.input_length < deployment.context_tokens
    for index in np.flatnonzero(may).tolist():
        wanted = f"{memory.alone[index]} blocks in the pool of a {memory.role} worker"
        if memory.alone[index] >= NO_POOL:
            wanted = "a chunk and a prefill budget, in whole pages, that hold its prompt or a chunk of it"
        where: Where = place(graph, index, "input_length")
        found = f"{memory.blocks} blocks for {graph.input_length[index]} tokens of prompt"
        found += f" and {graph.output_length[index]} of output"
        message = "without a cached prefix, this deployment turns the request down even when nothing else runs"
        findings.add(finding("request-may-not-fit", message, where=where, found=found, wanted=wanted))
