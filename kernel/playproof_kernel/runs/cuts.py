"""Where a snapshot cuts each play, what is history then, what remains to be waited for, and what prepares the cache.

Planning only: nothing runs here, and all of it is a function of the graph, the number of lanes and the seed. Times stay
on the recording's clock; the speedup divides what remains when it is compiled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import numpy.typing as npt
from blake3 import blake3
from playproof_spec.findings import Findings, InvalidInput, finding
from playproof_spec.graph import Graph, Trigger
from playproof_spec.places import place

Int64 = npt.NDArray[np.int64]

# Name of the recipe by which a cut is drawn; it stands in the drawn key, so another recipe would draw other cuts.
CUT_SCHEMA = "aisimulate.agentic.snapshot.v1"
# Cuts lie in the middle half of the span of recorded starts.
CUT_FROM, CUT_WIDTH = 0.25, 0.5
WARMUPS_PER_LANE = 10


class InvalidSnapshot(InvalidInput):
    """A trace whose recorded times contradict its edges at a cut; `.findings` name every such request."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One play instance at its start.

    Attributes
    ----------
    lane, ordinal : int
        Which play of which lane, both from 0.
    play : int
        The source play, by position in the graph.
    time_ms, first_start_ms, last_start_ms : float
        Where the play is cut; its least and greatest recorded start.
    nodes : tuple of int
        All nodes of the play, by node index.
    historical : tuple of bool
        Node by node: started before the cut.
    remaining_ms : tuple of float
        Node by node: how long after the start of the instance the floor and the edges from history still hold it back;
        0 for history.
    primers : tuple of int
        Nodes whose prompts bring the live conversations into the cache, by session.
    """

    lane: int
    ordinal: int
    play: int
    time_ms: float
    first_start_ms: float
    last_start_ms: float
    nodes: tuple[int, ...]
    historical: tuple[bool, ...] = field(repr=False)
    remaining_ms: tuple[float, ...] = field(repr=False)
    primers: tuple[int, ...] = ()

    def warmups(self, graph: Graph) -> tuple[int, ...]:
        """Return the nodes whose prompts are asked for after the primers: ten, in the primers' order over and over."""
        sources = self.primers
        if not sources:
            kept = [node for node, history in zip(self.nodes, self.historical, strict=True) if not history]
            sources = (min(kept, key=lambda node: float(graph.not_before_ms[node])),)
        return tuple(sources[i % len(sources)] for i in range(WARMUPS_PER_LANE))


def source_play(lane: int, ordinal: int, lanes: int, plays: int) -> int:
    """Return which play of the corpus play `ordinal` of a lane is: one cursor over all lanes, which wraps."""
    return (ordinal * lanes + lane) % plays


def drawn(seed: int, graph_digest: str, play_id: str, lane: int, ordinal: int) -> float:
    """Return the uniform draw in [0, 1) of one play instance.

    The upper 53 bits of a BLAKE3, so that it is the same on every machine, and in aisimulate.
    """
    key = json.dumps(
        [CUT_SCHEMA, seed, graph_digest, play_id, lane, ordinal], separators=(",", ":"), ensure_ascii=False
    )
    bits = int.from_bytes(blake3(key.encode()).digest()[:8], "little")
    return float((bits >> 11) / 2**53)


def plan_snapshots(graph: Graph, graph_digest: str, lanes: int, seed: int) -> tuple[Cut, ...]:
    """Cut the first play of each lane.

    Parameters
    ----------
    graph : Graph
        Proven.
    graph_digest : str
        Of `graph`, its floors unshifted.
    lanes : int
        ≥ 1; lanes beyond the corpus wrap.
    seed : int
        From 0 to 2^64 − 1.

    Raises
    ------
    InvalidSnapshot
        When a request of the history depends on one that starts after the cut.

    Notes
    -----
    Linear in the requests and edges of the plays cut.
    """
    findings = Findings()
    cuts = []
    for lane in range(lanes):
        play = source_play(lane, 0, lanes, len(graph.plays))
        first, last = _span(graph, play)
        share = CUT_FROM + CUT_WIDTH * drawn(seed, graph_digest, graph.plays[play].play_id, lane, 0)
        cuts.append(_cut(graph, lane, 0, play, first + share * (last - first), findings))
    if findings.errors:
        raise InvalidSnapshot(findings)
    return tuple(cuts)


def whole_play(graph: Graph, lane: int, ordinal: int, play: int) -> Cut:
    """Return the instance of a play that starts whole, at its earliest request."""
    return _cut(graph, lane, ordinal, play, _span(graph, play)[0], Findings())


def _span(graph: Graph, play: int) -> tuple[float, float]:
    starts = graph.not_before_ms[graph.plays[play].nodes]
    return float(starts.min()), float(starts.max())


def _cut(graph: Graph, lane: int, ordinal: int, play: int, time_ms: float, findings: Findings) -> Cut:
    nodes = sorted(graph.plays[play].nodes.tolist(), key=graph.tie_ranks.__getitem__)
    historical = {node: float(graph.not_before_ms[node]) < time_ms for node in nodes}
    remaining = []
    for node in nodes:
        due = time_ms
        for number in range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])):
            source = int(graph.edge_source[number])
            if historical[source]:
                due = max(due, _event_ms(graph, source, int(graph.edge_trigger[number])) + _delay_ms(graph, number))
            elif historical[node]:
                _contradiction(graph, node, source, lane, time_ms, findings)
        floor = float(graph.not_before_ms[node])
        remaining.append(0.0 if historical[node] else max(due, floor) - time_ms)
    first, last = _span(graph, play)
    return Cut(
        lane=lane,
        ordinal=ordinal,
        play=play,
        time_ms=time_ms,
        first_start_ms=first,
        last_start_ms=last,
        nodes=tuple(nodes),
        historical=tuple(historical.values()),
        remaining_ms=tuple(remaining),
        primers=_primers(graph, nodes, historical),
    )


def _delay_ms(graph: Graph, edge: int) -> float:
    return float(graph.edge_delay_ms[edge])


def _event_ms(graph: Graph, node: int, trigger: int) -> float:
    """Return when the recording fired an edge of a node of history; one without a recorded end ended as it began."""
    start = float(graph.not_before_ms[node])
    took = float(graph.recorded_api_time_ms[node])
    return start if trigger == Trigger.DISPATCH or np.isnan(took) else start + took


def _contradiction(graph: Graph, node: int, source: int, lane: int, time_ms: float, findings: Findings) -> None:
    message = f"lane {lane}: at the cut the request has started, and one that it depends on has not"
    found = (
        f"{graph.request_ids[source]} starts at {float(graph.not_before_ms[source]):g} ms, the cut is {time_ms:g} ms"
    )
    wanted = f"at most {float(graph.not_before_ms[node]):g} ms"
    findings.add(
        finding(
            "snapshot-contradiction", message, where=place(graph, node, "not_before_ms"), found=found, wanted=wanted
        )
    )


def _primers(graph: Graph, nodes: list[int], historical: dict[int, bool]) -> tuple[int, ...]:
    """Return the last request of history of each session that goes on, by session."""
    ranks = _topological_ranks(graph, nodes)
    latest: dict[int, int] = {}
    for node in nodes:
        session = int(graph.node_session[node])
        best = latest.get(session)
        order = (float(graph.not_before_ms[node]), ranks[node])
        if historical[node] and (best is None or order > (float(graph.not_before_ms[best]), ranks[best])):
            latest[session] = node
    live = {int(graph.node_session[node]) for node in nodes if not historical[node]}
    return tuple(latest[session] for session in sorted(live & latest.keys()))


def _topological_ranks(graph: Graph, nodes: list[int]) -> dict[int, int]:
    """Return each node's place in the order that always takes the least node all of whose sources have been taken."""
    edges: nx.DiGraph[int] = nx.DiGraph()
    edges.add_nodes_from(nodes)
    for node in nodes:
        sources = graph.edge_source[int(graph.edge_offsets[node]) : int(graph.edge_offsets[node + 1])].tolist()
        edges.add_edges_from((source, node) for source in sources)
    return {node: rank for rank, node in enumerate(nx.lexicographical_topological_sort(edges))}
