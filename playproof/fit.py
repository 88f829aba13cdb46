"""What a deployment makes of a graph before anything runs: requests it cannot complete, times past the clock's end."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph
from playproof_spec.places import place
from playproof_spec.units import HORIZON_MS

from playproof.deployment import AGENTIC_CONTROLS, AnyDeployment, Disaggregated, FixedTiming, Load, RoleWorkers

# Bounds on the polynomial timing model (docs/configuration.md): its constant parts, and its slope at a given batch.
POLYNOMIAL_PASS_MS = 16.51 + 34.1
POLYNOMIAL_MS_PER_TOKEN = 0.0152
POLYNOMIAL_MS_PER_TOKEN_SQUARED = 4.21e-7
MS_PER_S = 1000.0
# By backend: its name, and the settings that belong to the other one.
FOREIGN_SETTINGS = {
    "vllm": (
        "vLLM",
        ("chunked_prefill_size", "max_prefill_tokens", "schedule_conservativeness", "rules", "ignore_eos"),
    ),
    "sglang": ("SGLang", ("max_batched_tokens",)),
}


def fit(graph: Graph, deployment: AnyDeployment, load: Load) -> Findings:
    """Say which requests can never complete on `deployment`, and whether the replay could outlast the clock.

    Parameters
    ----------
    graph : Graph
    deployment : Deployment or Disaggregated
    load : Load

    Returns
    -------
    Findings
        A warning for each request that cannot complete and each setting without effect, an error when the clock
        could end first.

    Notes
    -----
    Linear in nodes and edges.
    """
    findings = Findings()
    _no_effect(deployment, findings)
    _never_fits(graph, deployment, findings)
    if load.max_virtual_time_seconds is None:  # else it stops long before
        _clock(graph, deployment, load, findings)
    return findings


def misoffered(graph: Graph, deployment: AnyDeployment, load: Load, places: Mapping[str, Where]) -> Findings:
    """Say which controls of a load do not belong to the kind of trace that `graph` was read from.

    Parameters
    ----------
    graph : Graph
    deployment : Deployment or Disaggregated
    load : Load
    places : mapping of str to Where
        Where the user set each control of the load, and the "mode" of the deployment.

    Returns
    -------
    Findings
        An error for each.
    """
    findings = Findings()
    ordinary = graph.facts.get("input_kind") == "ordinary"
    name = graph.facts.get("input_format", graph.source.format)
    kind, other = ("an ordinary", "agentic") if ordinary else ("an agentic", "ordinary")
    foreign = AGENTIC_CONTROLS if ordinary else ("concurrency", "max_virtual_time_seconds")
    for control in foreign:
        value = getattr(load, control)
        if value is not None and value is not False:
            where = places[control]
            setting = where.field.rpartition(".")[2]
            found = "concurrency" if setting == "type" else str(value)
            message = f"{setting} belongs to {other} traces, and this is {kind} one ({name})"
            way = "type: concurrency" if ordinary else "agentic_lanes"
            hint = f"Remove {where.field}; {kind} trace is limited with {way}."
            if setting == "type":
                message = f"a concurrency belongs to {other} traces, and this is {kind} one ({name})"
                hint = "Set type: trace_timestamps, and limit an agentic trace with agentic_lanes."
            findings.add(
                finding("config-combination", message, where=where, found=found, wanted=f"no {control}", hint=hint)
            )
    loads = graph.facts.get("ordinary_loads", ["trace_timestamps"])
    if ordinary and load.concurrency is None and isinstance(loads, list) and "trace_timestamps" not in loads:
        message = f"a trace in {name} has no timestamps at which its sessions could start"
        hint = "Offer it with a concurrency: traffic.load.type: concurrency, or Load(concurrency=…)."
        where = places["concurrency"]
        findings.add(
            finding(
                "config-combination", message, where=where, found="trace_timestamps", wanted="concurrency", hint=hint
            )
        )
    if name == "mooncake-delta" and isinstance(deployment, Disaggregated):
        message = "mooncake-delta is replayed on aggregated deployments only"
        hint = "Choose mode: aggregated, or give the whole prompts as mooncake."
        findings.add(
            finding(
                "config-combination",
                message,
                where=places["mode"],
                found="disaggregated",
                wanted="aggregated",
                because="Later prompts contain earlier answers, which only the worker that generated them would have.",
                hint=hint,
            )
        )
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


def _no_effect(deployment: AnyDeployment, findings: Findings) -> None:
    """Name the scheduler settings that the chosen backend passes over: its own rules know no such budget."""
    backend, foreign = FOREIGN_SETTINGS[deployment.backend]
    for role, workers in deployment.roles.items():
        for info in msgspec.structs.fields(workers):
            value = getattr(workers, info.name)
            if info.name in foreign and value != info.default:
                where = Where(field=f"engine.workers.{role}.scheduler.{info.name}")
                message = f"{info.name} means nothing to {backend}"
                findings.add(finding("config-no-effect", message, where=where, found=str(value)))


def _never_fits(graph: Graph, deployment: AnyDeployment, findings: Findings) -> None:
    """Name the requests that no schedule lets complete.

    A prompt needs room in the pool of each role. Where tokens are generated, the KV of all of them but the last lies in
    the pool at once before the last one comes, however much of it was found in cache. SGLang turns down more than this
    for the output that it keeps room for; how much depends on what is cached when the request's turn comes, so no claim
    is made of it.
    """
    context, inputs = deployment.context_tokens, graph.input_length
    outputs = np.clip(graph.output_length, 0, np.maximum(context - inputs, 0))
    # With speculative decoding the last token, too, is given its place before anyone knows that it is the last.
    grown = inputs + (outputs if deployment.speculation is not None else np.maximum(outputs - 1, 0))
    never: dict[int, tuple[str, str, str, str]] = {}

    def tell(which: npt.NDArray[np.bool_], message: str, wanted: str, *, output: bool = False) -> None:
        for index in np.flatnonzero(which).tolist():
            found, field = f"{inputs[index]} tokens", "input_length"
            if output:
                found, field = f"{found} and {outputs[index]} of output", "output_length"
            never.setdefault(index, (field, message, found, wanted))

    rejects = "this deployment rejects the request, and its play fails there"
    tell(inputs >= context, rejects, f"less than the context of {context} tokens")
    for role, workers in deployment.roles.items():
        pool = "" if role == "aggregated" else f" in the pool of a {role} worker"
        wanted = f"at most {workers.blocks} blocks of {workers.block_size} tokens{pool}"
        over = -(-inputs // workers.block_size) > workers.blocks
        tell(over, "the handoff of the request fails, and its play with it" if role == "decode" else rejects, wanted)
        if role != "prefill":
            outgrown = -(-grown // workers.block_size) > workers.blocks
            tell(outgrown, "the request outgrows its pool and fails, and its play with it", wanted, output=True)
    for index, (field, message, found, wanted) in sorted(never.items()):
        where = place(graph, index, field)
        findings.add(finding("request-never-fits", message, where=where, found=found, wanted=wanted))


def _clock(graph: Graph, deployment: AnyDeployment, load: Load, findings: Findings) -> None:
    """Compare an upper bound of the run's end with the horizon: all floors, delays and work one after another."""
    floors = math.fsum(float(np.ptp(graph.not_before_ms[play.nodes])) for play in graph.plays if len(play.nodes))
    latest = float(graph.not_before_ms.max(initial=0.0))
    authored = (latest + floors + math.fsum(graph.edge_delay_ms.tolist())) / load.speedup
    served = math.fsum(_passes_ms(graph, deployment.backend, role, each) for role, each in deployment.roles.items())
    if isinstance(deployment, Disaggregated):
        served += _transfers_ms(graph, deployment)
    if load.snapshot_seed is not None and load.lanes is not None:
        # Each play at most once a lane, and the preparation of a lane no longer than its play and ten prompts.
        served *= 12 * load.lanes
        if load.profile is not None:
            profile = load.profile
            authored += (profile.duration_seconds + profile.response_grace_seconds) * 1000.0
    if authored + served >= HORIZON_MS:
        found = f"up to {authored:.3g} ms of floors and delays and {served:.3g} ms of service"
        message = "the replay could run past the end of the clock"
        findings.add(finding("clock-horizon", message, found=found, wanted=f"less than {HORIZON_MS:.3g} ms in all"))


def _passes_ms(graph: Graph, backend: str, role: str, workers: RoleWorkers) -> float:
    """Return what all passes of a role can cost at most, as long as nothing is preempted.

    Every pass uses up its token budget, ends a prompt, or generates a token.
    """
    # A chunk is cut to whole pages.
    chunk = max(workers.chunked_prefill_size - workers.block_size, 1)
    budget = min(chunk, workers.max_prefill_tokens) if backend == "sglang" else workers.max_batched_tokens
    prompts = int(graph.input_length.sum()) if role != "decode" else 0
    outputs = int(graph.output_length.sum()) if role != "prefill" else 0
    passes = prompts / budget + graph.node_count + outputs
    timing = workers.timing
    if isinstance(timing, FixedTiming):
        return passes * (timing.prefill_ms + timing.decode_ms)
    batch = min(budget, prompts)
    per_token = POLYNOMIAL_MS_PER_TOKEN + POLYNOMIAL_MS_PER_TOKEN_SQUARED * batch
    return passes * POLYNOMIAL_PASS_MS + prompts * per_token


def _transfers_ms(graph: Graph, deployment: Disaggregated) -> float:
    """Return what all transfers can cost at most: whole prompts, in whole blocks."""
    transfer = deployment.transfer
    if transfer.bytes_per_second is None or transfer.bytes_per_token is None:
        return 0.0
    tokens = int(graph.input_length.sum()) + graph.node_count * deployment.decode.block_size
    return tokens * transfer.bytes_per_token / transfer.bytes_per_second * MS_PER_S
