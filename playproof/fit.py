"""What a deployment makes of a graph before anything runs: requests it cannot complete, times past the clock's end."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from playproof_spec.clock import clock_finding
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph
from playproof_spec.places import place

from playproof.deployment import AGENTIC_CONTROLS, AnyDeployment, Disaggregated, Load

MS_PER_S = 1000.0
# By backend: its name, and the settings that belong to the other one.
FOREIGN_SETTINGS = {
    "vllm": (
        "vLLM",
        ("chunked_prefill_size", "max_prefill_tokens", "schedule_conservativeness", "rules", "ignore_eos"),
    ),
    "sglang": (
        "SGLang",
        (
            *("max_batched_tokens", "watermark", "long_prefill_token_threshold"),
            *("scheduler_reserve_full_isl", "prefill_schedule_interval"),
        ),
    ),
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
    _context_in_pool(deployment, findings)
    _never_fits(graph, deployment, findings)
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
    from playproof_kernel.runs.cuts import InvalidSnapshot, plan_snapshots
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
        if deployment.backend == "vllm" and workers.prefill_schedule_interval != 1:
            where = Where(field=f"engine.workers.{role}.scheduler.prefill_schedule_interval")
            message = "prefill_schedule_interval changes nothing between workers that are replicas"
            because = (
                "vLLM throttles prefills only between the ranks of one data-parallel engine, which is not simulated."
            )
            found, hint = str(workers.prefill_schedule_interval), "Remove it."
            findings.add(
                finding("config-no-effect", message, where=where, found=found, wanted="1", because=because, hint=hint)
            )


def _context_in_pool(deployment: AnyDeployment, findings: Findings) -> None:
    """Tell of a context that no pool holds: an engine would not start with it."""
    for role, workers in deployment.roles.items():
        tokens = workers.blocks * workers.block_size
        if not isinstance(deployment.context_length, str) and deployment.context_length > tokens:
            message = f"the context is longer than what the KV pool of one {role} worker holds"
            where = Where(field="engine.context_length")
            found, wanted = str(deployment.context_length), f"at most {tokens} tokens ({workers.blocks} blocks)"
            findings.add(finding("context-exceeds-pool", message, where=where, found=found, wanted=wanted))


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
    """Compare an upper bound of the run's end with the horizon (`playproof_spec.clock`)."""
    # Brings a compiler and a solver along, which `playproof --help` should not wait for.
    from playproof_kernel.runs.clock_bound import work_of

    profile_ms = 0.0
    if load.profile is not None:
        profile_ms = (load.profile.duration_seconds + load.profile.response_grace_seconds) * MS_PER_S
    roles, transfers_ms = work_of(graph, deployment.to_spec())
    problem = clock_finding(
        graph,
        roles,
        speedup=load.speedup,
        lanes=load.lanes if load.concurrency is None else load.concurrency,
        transfers_ms=transfers_ms,
        is_cut=load.snapshot_seed is not None,
        profile_ms=profile_ms,
        stops=load.max_virtual_time_seconds is not None,
    )
    if problem is not None:
        findings.add(problem)
