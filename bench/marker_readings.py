"""How a reading of the same recording changes the answer: docs/differences.md shows what this prints.

    python bench/marker_readings.py TRACE.json…

For each file: its subagent markers read as spawns and as completions, the graph with every trigger taken for a
completion (what a reader without typed triggers makes of it), and the flat form, in which every request of a play waits
for the request before it. *Recorded services* is the play's span when each request takes the time it took in the
recording: a right reading gives the recorded span itself. *Replayed* is the trajectory on one simulated worker.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from pathlib import Path

import numpy as np
from playproof_spec.certificate import prove
from playproof_spec.graph import Graph, Relation, Trigger

import playproof as pp

DEPLOYMENT = pp.Deployment(timing=pp.FixedTiming(prefill_ms=400, decode_ms=15))
MS_PER_S = 1000.0


def services_ms(graph: Graph) -> np.ndarray:
    """Return the recorded service time of each node, 0 where none was recorded."""
    return np.nan_to_num(graph.recorded_api_time_ms)


def completion_only(graph: Graph) -> Graph:
    """Return the graph with every trigger read as a completion; delays stay as they are."""
    triggers = np.full(graph.edge_count, Trigger.COMPLETION, dtype=np.int8)
    return dataclasses.replace(graph, edge_trigger=triggers)


def flat(graph: Graph) -> Graph:
    """Return the graph in which each request of a play waits for the one recorded before it, with the recorded gap."""
    sources: list[list[int]] = [[] for _ in range(graph.node_count)]
    delays: list[list[float]] = [[] for _ in range(graph.node_count)]
    floors = np.zeros(graph.node_count)
    ends = graph.not_before_ms + services_ms(graph)
    for play in graph.plays:
        order = play.nodes[np.argsort(graph.not_before_ms[play.nodes], kind="stable")].tolist()
        floors[order[0]] = graph.not_before_ms[order[0]]
        for before, after in itertools.pairwise(order):
            sources[after].append(before)
            delays[after].append(max(0.0, float(graph.not_before_ms[after] - ends[before])))
    count = sum(map(len, sources))
    return dataclasses.replace(
        graph,
        not_before_ms=floors,
        edge_offsets=np.concatenate([[0], np.cumsum([len(edges) for edges in sources])]).astype(np.int64),
        edge_source=np.array([source for edges in sources for source in edges], dtype=np.int32),
        edge_trigger=np.full(count, Trigger.COMPLETION, dtype=np.int8),
        edge_relation=np.full(count, Relation.SEQUENCE, dtype=np.int8),
        edge_delay_ms=np.array([delay for edges in delays for delay in edges]),
    )


def span_ms(graph: Graph) -> float:
    """Return the span of the corpus when every request takes its recorded time and servers never queue."""
    service = services_ms(graph)
    start = np.full(graph.node_count, np.nan)

    def begin(node: int) -> float:
        # Sources are begun first by the caller below, so that no recursion is needed.
        events = [float(graph.not_before_ms[node])]
        for edge in range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])):
            source = int(graph.edge_source[edge])
            fired = start[source] + (service[source] if graph.edge_trigger[edge] == Trigger.COMPLETION else 0.0)
            events.append(float(fired + graph.edge_delay_ms[edge]))
        return max(events)

    waiting = list(range(graph.node_count))
    while waiting:
        later = []
        for node in waiting:
            edges = slice(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1]))
            if np.isnan(start[graph.edge_source[edges]]).any():
                later.append(node)
            else:
                start[node] = begin(node)
        waiting = later
    return float((start + service).max() - start.min())


def replayed_ms(graph: Graph) -> float:
    """Return the latest trajectory on one worker, in one lane."""
    report = pp.replay(prove(graph), DEPLOYMENT, pp.Load(lanes=1))
    return float(np.nanmax(report.trajectories.e2e_latency_ms))


def readings(path: Path) -> list[tuple[str, Graph]]:
    """Return the readings of one file by name."""
    completion = pp.load(path, subagent_marker="completion").graph
    return [
        ("markers are spawns", pp.load(path, subagent_marker="spawn").graph),
        ("markers are completions", completion),
        ("the same, every trigger a completion", completion_only(completion)),
        ("flat: each after the one before it", flat(completion)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    for path in parser.parse_args().traces:
        graph = pp.load(path).graph
        recorded = graph.not_before_ms + services_ms(graph)
        agents = graph.facts.get("weka_counts", {})
        subagents = agents.get("subagents", 0) if isinstance(agents, dict) else 0
        print(f"\n{path.name}: {graph.node_count} requests, {subagents} subagents, ", end="")
        print(f"recorded span {(recorded.max() - graph.not_before_ms.min()) / MS_PER_S:,.1f} s\n")
        print("| reading | edges fired at dispatch | recorded services | replayed |")
        print("|---|---:|---:|---:|")
        for name, reading in readings(path):
            at_dispatch = int(np.count_nonzero(reading.edge_trigger == Trigger.DISPATCH))
            spans = f"{span_ms(reading) / MS_PER_S:,.1f} s | {replayed_ms(reading) / MS_PER_S:,.1f} s"
            print(f"| {name} | {at_dispatch} | {spans} |")


if __name__ == "__main__":
    main()
