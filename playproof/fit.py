"""What a deployment makes of a graph before anything runs: requests it must reject, and times past the clock's end."""

from __future__ import annotations

import math

import numpy as np
from playproof_spec.findings import Findings, finding
from playproof_spec.graph import Graph
from playproof_spec.places import place
from playproof_spec.units import HORIZON_MS

from playproof.deployment import Deployment, FixedTiming, Load

# The dearest pass of the polynomial model that a pool of any size can ask for per computed token, rounded up; only the
# clock's horizon is checked with it.
POLYNOMIAL_MS_PER_TOKEN = 1.0e3


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
        A warning for each request that will be rejected, an error when the clock could end first.

    Notes
    -----
    Linear in nodes and edges.
    """
    findings = Findings()
    _never_fits(graph, deployment, findings)
    _clock(graph, deployment, load, findings)
    return findings


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
    floors = math.fsum(
        float(graph.not_before_ms[play.nodes].max() - graph.not_before_ms[play.nodes].min())
        for play in graph.plays
        if len(play.nodes)
    )
    latest = float(graph.not_before_ms.max(initial=0.0))
    authored = (latest + floors + math.fsum(graph.edge_delay_ms.tolist())) / load.speedup
    timing = deployment.timing
    tokens = int(graph.output_length.sum()) + int(graph.input_length.sum())
    if isinstance(timing, FixedTiming):
        # A chunk has at least one token, and a pass serves at least one chunk or yields one token.
        chunks = int((-(-graph.input_length // deployment.max_batched_tokens)).sum()) + graph.node_count
        served = (chunks + int(graph.output_length.sum())) * (timing.prefill_ms + timing.decode_ms)
    else:
        served = tokens * POLYNOMIAL_MS_PER_TOKEN
    if authored + served >= HORIZON_MS:
        found = f"up to {authored:.3g} ms of floors and delays and {served:.3g} ms of passes"
        message = "the replay could run past the end of the clock"
        findings.add(finding("clock-horizon", message, found=found, wanted=f"less than {HORIZON_MS:.3g} ms in all"))
