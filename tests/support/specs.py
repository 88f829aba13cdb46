"""Deployments and loads of the kernel as those of the Python interface, and a run of either as a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playproof_kernel import simulate, simulate_controlled
from playproof_spec.certificate import ProvenGraph
from playproof_spec.deployment import Backend, DeploymentSpec, LoadSpec, TimingKind, WorkerSpec

import playproof as pp
from playproof.controlled import ControlledReport
from playproof.deployment import AnyDeployment

NS_PER_MS, NS_PER_S = 1e6, 1e9


def _role(worker: WorkerSpec) -> dict[str, Any]:
    fixed = worker.timing.kind is TimingKind.FIXED
    times = {"prefill_ms": worker.timing.prefill_ns / NS_PER_MS, "decode_ms": worker.timing.decode_ns / NS_PER_MS}
    host = worker.host
    return {
        "blocks": worker.blocks,
        "block_size": worker.block_size,
        "prefix_caching": worker.prefix_caching,
        "max_batched_tokens": worker.max_batched_tokens,
        "max_sequences": worker.max_sequences,
        "chunked_prefill_size": worker.chunked_prefill_size,
        "max_prefill_tokens": worker.max_prefill_tokens,
        "schedule_conservativeness": worker.schedule_conservativeness,
        "async_scheduling": worker.ahead,
        "watermark": worker.watermark,
        "long_prefill_token_threshold": worker.long_prefill_tokens,
        "scheduler_reserve_full_isl": worker.reserve_full_prompt,
        "reuse_output": "auto" if worker.reuse_output else "never",
        "rules": worker.rules.name.lower(),
        "ignore_eos": worker.ignore_eos,
        "timing": pp.FixedTiming(**times) if fixed else pp.PolynomialTiming(),
        "host_offload": None
        if host is None
        else pp.HostOffload(
            num_host_blocks=host.blocks,
            bytes_per_token=max(host.block_bytes // worker.block_size, 1),
            scope="cluster_shared" if host.shared else "dp_rank_local",
            d2h_bandwidth_gbps=(host.d2h_bytes_per_second or 0) / 1e9,
            h2d_bandwidth_gbps=(host.h2d_bytes_per_second or 0) / 1e9,
            latency_to_first_byte_ms=host.latency_ns / NS_PER_MS,
        ),
    }


def deployment_of(spec: DeploymentSpec) -> AnyDeployment:
    """Return the deployment that `spec` is."""
    backend = "sglang" if spec.worker.backend is Backend.SGLANG else "vllm"
    drafts = spec.speculation
    shared: dict[str, Any] = {
        "backend": backend,
        "context_length": spec.context_length,
        "speculation": None
        if drafts is None
        else pp.Speculation(num_speculative_tokens=drafts.drafts, acceptance_rates=drafts.rates, seed=drafts.seed),
        "router": pp.RoundRobin() if spec.router is None else pp.KvRouter(),
    }
    if spec.decode is None:
        return pp.Deployment(workers=spec.workers, **shared, **_role(spec.worker))
    moved = spec.decode.transfer
    rate = moved.bytes_per_second if moved.bytes_per_token else None
    return pp.Disaggregated(
        prefill=pp.PrefillRole(workers=spec.workers, **_role(spec.worker)),
        decode=pp.DecodeRole(workers=spec.decode.workers, **_role(spec.decode.worker)),
        transfer=pp.Transfer(
            bandwidth_gb_per_second=None if rate is None else rate / 1e9,
            bytes_per_token=moved.bytes_per_token or None,
            timing_mode="full_prompt" if moved.full_prompt else "destination_missing",
        ),
        **shared,
    )


def load_of(spec: LoadSpec) -> pp.Load:
    """Return the load that `spec` is, but for its cancellations."""
    profile = spec.profile
    return pp.Load(
        lanes=None if spec.stop_ns is not None else spec.lanes,
        concurrency=spec.lanes if spec.stop_ns is not None else None,
        max_virtual_time_seconds=None if spec.stop_ns is None else max(spec.stop_ns, 1) / NS_PER_S,
        speedup=spec.speedup,
        snapshot_seed=spec.snapshot_seed,
        warmup=spec.warmup,
        profile=None
        if profile is None
        else pp.Profile(
            duration_seconds=profile.duration_ns / NS_PER_S,
            response_grace_seconds=profile.grace_ns / NS_PER_S,
            cancel_drain_seconds=profile.drain_ns / NS_PER_S,
            tree_idle_cap_seconds=profile.tree_cap_ns / NS_PER_S,
            global_idle_cap_seconds=profile.global_cap_ns / NS_PER_S,
        ),
        prefix_scope="play" if spec.play_scope else "corpus",
    )


def report_of(proven: ProvenGraph, deployment: DeploymentSpec, load: LoadSpec) -> pp.Report:
    """Replay `proven`, and report it as the Python interface does."""
    deployed, offered = deployment_of(deployment), load_of(load)
    if load.snapshot_seed is not None:
        controlled = simulate_controlled(proven, deployed.to_spec(), offered.to_spec(), capture=True)
        return ControlledReport(proven, controlled, deployed, offered, per_request=True)
    spec = replace(offered.to_spec(), cancellations=load.cancellations)
    return pp.Report(proven, simulate(proven, deployed.to_spec(), spec), deployed, offered)
