"""What a deployment makes of a graph before anything runs: requests it must reject, and times past the clock's end."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph
from playproof_spec.places import place
from playproof_spec.units import HORIZON_MS

from playproof.deployment import Deployment, FixedTiming, Load

# Bounds on the polynomial timing model (docs/configuration.md): its constant parts, and its slope at a given batch.
POLYNOMIAL_PASS_MS = 16.51 + 34.1
POLYNOMIAL_MS_PER_TOKEN = 0.0152
POLYNOMIAL_MS_PER_TOKEN_SQUARED = 4.21e-7
# By backend: its name, and the settings that belong to the other one.
FOREIGN_SETTINGS = {
    "vllm": ("vLLM", ("chunked_prefill_size", "max_prefill_tokens", "schedule_conservativeness")),
    "sglang": ("SGLang", ("max_batched_tokens",)),
}


def fit(graph: Graph, deployment: Deployment, load: Load) -> Findings:
    """Say which requests can never run on `deployment`, and whether the replay could outlast the clock.

    Parameters
    ----------
    graph : Graph
    deployment : Deployment
    load : Load

    Returns
    -------
    Findings
        A warning for each request that will be rejected and each setting without effect, an error when the clock
        could end first.

    Notes
    -----
    Linear in nodes and edges.
    """
    findings = Findings()
    _no_effect(deployment, findings)
    _never_fits(graph, deployment, findings)
    _clock(graph, deployment, load, findings)
    return findings


def contradictions(graph: Graph, load: Load) -> Findings:
    """Say where the cuts of a snapshot meet a trace that contradicts itself; nothing without a snapshot.

    Parameters
    ----------
    graph : Graph
    load : Load

    Returns
    -------
    Findings
        An error for each request that the recording started before one that it depends on, with the cut between.
    """
    if load.snapshot_seed is None or load.lanes is None:
        return Findings()
    # They bring a compiler along, which a validation without a snapshot does not need.
    from playproof_kernel.snapshot import InvalidSnapshot, plan_snapshots
    from playproof_spec.digest import graph_digest

    try:
        plan_snapshots(graph, graph_digest(graph, shift_floors=False), load.lanes, load.snapshot_seed)
    except InvalidSnapshot as refused:
        return refused.findings
    return Findings()


def _no_effect(deployment: Deployment, findings: Findings) -> None:
    """Name the scheduler settings that the chosen backend passes over: its own rules know no such budget."""
    backend, foreign = FOREIGN_SETTINGS[deployment.backend]
    for info in msgspec.structs.fields(Deployment):
        value = getattr(deployment, info.name)
        if info.name in foreign and value != info.default:
            where = Where(field=f"scheduler.{info.name}")
            message = f"{info.name} means nothing to {backend}"
            findings.add(finding("config-no-effect", message, where=where, found=str(value)))


def _never_fits(graph: Graph, deployment: Deployment, findings: Findings) -> None:
    lengths = graph.input_length
    blocks = -(-lengths // deployment.block_size)
    for index in np.flatnonzero((lengths >= deployment.context_tokens) | (blocks > deployment.blocks)).tolist():
        length = int(lengths[index])
        if length >= deployment.context_tokens:
            wanted = f"less than the context of {deployment.context_tokens} tokens"
        else:
            wanted = f"at most {deployment.blocks} blocks of {deployment.block_size} tokens"
        where, found = place(graph, index, "input_length"), f"{length} tokens"
        message = "this deployment rejects the request, and its play fails there"
        findings.add(finding("request-never-fits", message, where=where, found=found, wanted=wanted))


def _clock(graph: Graph, deployment: Deployment, load: Load, findings: Findings) -> None:
    """Compare an upper bound of the run's end with the horizon: all floors, delays and passes one after another."""
    floors = math.fsum(float(np.ptp(graph.not_before_ms[play.nodes])) for play in graph.plays if len(play.nodes))
    latest = float(graph.not_before_ms.max(initial=0.0))
    authored = (latest + floors + math.fsum(graph.edge_delay_ms.tolist())) / load.speedup
    served = _passes_ms(graph, deployment)
    if load.snapshot_seed is not None and load.lanes is not None:
        # Each play at most once a lane, and the preparation of a lane no longer than its play and ten prompts.
        served *= 12 * load.lanes
        if load.profile is not None:
            profile = load.profile
            authored += (profile.duration_seconds + profile.response_grace_seconds) * 1000.0
    if authored + served >= HORIZON_MS:
        found = f"up to {authored:.3g} ms of floors and delays and {served:.3g} ms of passes"
        message = "the replay could run past the end of the clock"
        findings.add(finding("clock-horizon", message, found=found, wanted=f"less than {HORIZON_MS:.3g} ms in all"))


def _passes_ms(graph: Graph, deployment: Deployment) -> float:
    """Return what all passes can cost at most, as long as nothing is preempted.

    Every pass uses up its token budget, ends a prompt, or generates a token.
    """
    sglang = deployment.backend == "sglang"
    # A chunk is cut to whole pages.
    chunk = max(deployment.chunked_prefill_size - deployment.block_size, 1)
    budget = min(chunk, deployment.max_prefill_tokens) if sglang else deployment.max_batched_tokens
    prompts = int(graph.input_length.sum())
    passes = prompts / budget + graph.node_count + int(graph.output_length.sum())
    timing = deployment.timing
    if isinstance(timing, FixedTiming):
        return passes * (timing.prefill_ms + timing.decode_ms)
    batch = min(budget, prompts)
    per_token = POLYNOMIAL_MS_PER_TOKEN + POLYNOMIAL_MS_PER_TOKEN_SQUARED * batch
    return passes * POLYNOMIAL_PASS_MS + prompts * per_token
