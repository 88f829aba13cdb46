"""A report in words: what was simulated, in a line, and its main figures for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from playproof_spec.html import table

__all__ = ["report_html", "simulated"]

# The main figures, and the latencies with their statistics, that a notebook shows.
_FIGURES = (
    *("completed_requests", "num_requests", "completed_trajectories", "total_trajectories", "duration_ms"),
    *("output_throughput_tok_s", "first_admission_prefix_cache_reused_ratio", "preemptions", "evicted_blocks"),
    *("goodput_request_share", "goodput_trajectory_share"),
)
_LATENCIES = ("trajectory_e2e_latency", "ttft", "ttst", "tpot", "itl", "e2e_latency")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


def simulated(deployment: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    """Return in a line what a run simulated.

    Parameters
    ----------
    deployment, load : mapping
        Those of a report.

    Examples
    --------
    >>> from playproof import Deployment, FixedTiming, Load
    >>> deployment = Deployment(workers=2, blocks=160, timing=FixedTiming(prefill_ms=40, decode_ms=12))
    >>> simulated(deployment.to_dict(), Load(lanes=3).to_dict())
    '2 vLLM workers of 160 × 64 tokens, passes of 40 + 12 ms, round robin; 3 lanes'
    """
    engine = _ENGINES.get(deployment["backend"], deployment["backend"])
    if "prefill" in deployment:
        roles = [f"{_workers(deployment[role], f'{engine} {role}')}" for role in ("prefill", "decode")]
        transfer = deployment["transfer"]["bandwidth_gb_per_second"]
        parts = [" and ".join(roles), "KV moves at once" if transfer is None else f"KV moves at {transfer:g} GB/s"]
    else:
        parts = [_workers(deployment, engine)]
    parts.append(str(deployment["router"]["policy"]).replace("_", " ").replace("kv", "KV"))
    drafts = deployment["speculation"]
    if drafts is not None:
        parts.append(f"{drafts['num_speculative_tokens']} draft tokens")
    return f"{', '.join(parts)}; {_load(load)}"


def report_html(report: Mapping[str, Any]) -> str:
    """Return the main figures of a report as HTML tables."""
    figures = [(name, _number(report[name])) for name in _FIGURES if report[name] is not None]
    latencies = [
        (f"{name}_ms", *(_number(report[f"{statistic}_{name}_ms"]) for statistic in _STATISTICS)) for name in _LATENCIES
    ]
    return table(str(report["simulated"] or "an online replay"), (), figures) + table(
        "latencies", ("", *_STATISTICS), latencies
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1 else f"{value:,.1f}"


def _workers(role: Mapping[str, Any], name: str) -> str:
    many = "" if role["workers"] == 1 else "s"
    text = f"{role['workers']:,} {name} worker{many} of {role['blocks']:,} × {role['block_size']:,} tokens"
    timing = role["timing"]
    cost = f"{timing['prefill_ms']:g} + {timing['decode_ms']:g} ms" if timing["type"] == "fixed" else "polynomial cost"
    text += f", passes of {cost}"
    if not role["prefix_caching"]:
        text += ", no prefix cache"
    host = role["host_offload"]
    if host is not None:
        shared = "shared " if host["scope"] == "cluster_shared" else ""
        text += f", {host['num_host_blocks']:,} {shared}host blocks"
    return text


def _load(load: Mapping[str, Any]) -> str:
    if load["concurrency"] is not None:
        text = f"{load['concurrency']:,} sessions at once"
    elif load["lanes"] is not None:
        text = f"{load['lanes']:,} lane{'' if load['lanes'] == 1 else 's'}"
    else:
        text = "plays at their recorded times"
    if load["speedup"] != 1.0:
        text += f", {load['speedup']:g} × as fast"
    if load["snapshot_seed"] is not None:
        text += f", from snapshot {load['snapshot_seed']}"
        text += ", warmed" if load["warmup"] else ""
    if load["profile"] is not None:
        text += f", for {load['profile']['duration_seconds']:g} s"
    if load["max_virtual_time_seconds"] is not None:
        text += f", stopped at {load['max_virtual_time_seconds']:g} s"
    return text
