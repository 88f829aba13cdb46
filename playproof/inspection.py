"""What a corpus holds, before anyone replays it: its shape, its lengths and gaps, and what a cache could save.

Everything here is read off the graph; nothing is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_kernel.corpus.compiled import block_keys
from playproof_spec.findings import Findings
from playproof_spec.graph import Graph, Relation, Trigger

from playproof.figures import Int64, ratio, summarize

__all__ = ["Inspection", "inspect_graph"]

# What readers count when they set something right or leave it out, by the names of their counts.
REPAIRS = (
    "overlaps_floored",
    "clock_went_back",
    "nested_times_clamped",
    "surplus_hashes",
    "calls_copied",
    "records_repeated",
    "duplicates",
    "calls_without_usage",
    "answers_inferred",
    "agents_unlinked",
    "agents_unrecorded",
)
STATISTICS = ("mean", "min", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Inspection:
    """What :func:`inspect_graph` found.

    Attributes
    ----------
    figures : Mapping[str, object]
        JSON values only, in a fixed order; what `playproof inspect --output json` prints.
    """

    figures: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures."""
        return dict(self.figures)


def inspect_graph(graph: Graph, findings: Findings) -> Inspection:
    """Look a corpus over.

    Parameters
    ----------
    graph : Graph
        Proven, so that it has no circle.
    findings : Findings
        What was found while it was read: counts of what is estimated or repaired are told with the figures.

    Notes
    -----
    Linear in nodes and edges, plus sorting the runs of hash ids.
    """
    sizes = np.bincount(graph.node_play, minlength=len(graph.plays))
    depth = _depth_by_node(graph)
    play_depth = np.zeros(len(graph.plays), dtype=np.int64)
    np.maximum.at(play_depth, graph.node_play, depth)
    recorded = graph.recorded_api_time_ms[~np.isnan(graph.recorded_api_time_ms)]
    return Inspection(
        {
            "schema": "playproof.inspection.v1",
            "input_format": graph.facts.get("input_format", graph.source.format),
            "input_kind": graph.facts.get("input_kind", "agentic"),
            "block_size": graph.block_size,
            "plays": len(graph.plays),
            "requests": graph.node_count,
            "sessions": len(graph.sessions),
            "edges": _edges(graph),
            "requests_per_play": _statistics(sizes),
            "depth_per_play": _statistics(play_depth),
            "fan_out": _fan_out(graph),
            "joins": _joins(graph),
            "background_agents": _background_agents(graph),
            "input_tokens": {"total": int(graph.input_length.sum()), **_statistics(graph.input_length)},
            "output_tokens": {"total": int(graph.output_length.sum()), **_statistics(graph.output_length)},
            "gap_ms": _statistics(graph.edge_delay_ms[graph.edge_relation == Relation.SEQUENCE]),
            "recorded_service_ms": {"recorded": len(recorded), **_statistics(recorded)},
            "tool_wait_ms": _tool_waits(graph),
            "prefix_reuse": _prefix_reuse(graph),
            "models": _models(graph),
            "estimated": dict(sorted(_estimated(graph).items())),
            "repaired": _repaired(graph),
            "findings": dict(sorted(findings.counts.items())),
            "reading": dict(graph.facts),
        }
    )


def _statistics(values: npt.NDArray[Any]) -> dict[str, float | None]:
    summary = summarize(values.astype(np.float64))
    return {name: summary[name] for name in STATISTICS}


def _edges(graph: Graph) -> dict[str, int]:
    counts = {relation.name.lower(): int((graph.edge_relation == relation).sum()) for relation in Relation}
    return {**counts, "at_dispatch": int((graph.edge_trigger == Trigger.DISPATCH).sum())}


def _depth_by_node(graph: Graph) -> Int64:
    """Return how many requests the longest chain down to each node has, itself included."""
    depth = np.ones(graph.node_count, dtype=np.int64)
    waiting = np.diff(graph.edge_offsets)
    targets = graph.edge_target()
    order = np.argsort(graph.edge_source, kind="stable")
    begins = np.searchsorted(graph.edge_source[order], np.arange(graph.node_count + 1))
    ready = np.flatnonzero(waiting == 0).tolist()
    while ready:
        node = ready.pop()
        for target in targets[order[begins[node] : begins[node + 1]]].tolist():
            depth[target] = max(depth[target], depth[node] + 1)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return depth


def _fan_out(graph: Graph) -> dict[str, Any]:
    """Return how many requests spawn sessions, and how many sessions they spawn each."""
    sources = graph.edge_source[graph.edge_relation == Relation.SPAWN]
    spawned = np.bincount(sources)
    spawned = spawned[spawned > 0]
    return {"spawning_requests": len(spawned), "spawned": int(spawned.sum()), **_statistics(spawned)}


def _joins(graph: Graph) -> dict[str, Any]:
    """Return how many requests wait for agents, and for how many each."""
    awaited = np.bincount(graph.edge_target()[graph.edge_relation == Relation.JOIN])
    awaited = awaited[awaited > 0]
    return {"joining_requests": len(awaited), "joined": int(awaited.sum()), **_statistics(awaited)}


def _background_agents(graph: Graph) -> int:
    """Return how many spawned sessions nobody waits for."""
    relation = graph.edge_relation
    spawned = {
        (int(graph.node_play[node]), int(graph.node_session[node]))
        for node in graph.edge_target()[relation == Relation.SPAWN].tolist()
    }
    awaited = {
        (int(graph.node_play[node]), int(graph.node_session[node]))
        for node in graph.edge_source[relation == Relation.JOIN].tolist()
    }
    return len(spawned - awaited)


def _tool_waits(graph: Graph) -> dict[str, Any]:
    waits = np.array(sorted(seen.tool_wait_ms for seen in graph.observed.values() if seen.tool_wait_ms))
    return {"requests": len(waits), "total": float(waits.sum()), **_statistics(waits)}


def _prefix_reuse(graph: Graph) -> dict[str, Any]:
    """Return how much of the prompts' full blocks a cache without bound would have: all but the first of each.

    Blocks are equal when they and all before them are, as in the replayed caches.
    """
    offsets, keys = block_keys(graph, graph.block_size)
    first, count = np.array(keys.first, dtype=np.int64), np.array(keys.count, dtype=np.int64)
    blocks = int(count.sum())
    play = np.repeat(graph.node_play, np.diff(offsets)).astype(np.int64)
    distinct = _covered(np.zeros_like(first), first, count)
    distinct_by_play = _covered(play, first, count)
    tokens = int(graph.input_length.sum())
    cached = graph.facts.get("recorded_cached_tokens")
    return {
        "blocks": blocks,
        "distinct_blocks": distinct,
        "reused_tokens": (blocks - distinct) * graph.block_size,
        "ratio": ratio((blocks - distinct) * graph.block_size, tokens),
        "ratio_within_plays": ratio((blocks - distinct_by_play) * graph.block_size, tokens),
        "recorded_ratio": ratio(cached, tokens) if isinstance(cached, int) else None,
    }


def _covered(group: Int64, first: Int64, count: Int64) -> int:
    """Return how many distinct numbers the intervals of each group cover, over all groups."""
    if not len(first):
        return 0
    # Groups are laid out side by side, so that one sweep serves them all.
    width = int((first + count).max())
    begin = first + group * width
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], (begin + count)[order]
    reached = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
    return int(np.maximum(end - np.maximum(begin, reached), 0).sum())


def _models(graph: Graph) -> dict[str, dict[str, int]]:
    requests = np.bincount(graph.node_model, minlength=len(graph.models))
    return {
        name: {
            "requests": int(requests[number]),
            "input_tokens": int(graph.input_length[graph.node_model == number].sum()),
            "output_tokens": int(graph.output_length[graph.node_model == number].sum()),
        }
        for number, name in enumerate(graph.models)
    }


def _repaired(graph: Graph) -> dict[str, int]:
    """Return what was set right or left out while the corpus was read, and how often."""
    counts = {
        name: count
        for fact, held in graph.facts.items()
        if fact.endswith("_counts") and isinstance(held, Mapping)
        for name, count in held.items()
    }
    return {name: counts[name] for name in REPAIRS if counts.get(name)}


def _estimated(graph: Graph) -> Counter[str]:
    return Counter(name for seen in graph.observed.values() for name in seen.estimated)
