"""Obligations G2 and G3: no circles, and a root that leads to every node.

The order of a corpus is computed by compiled functions and then *checked*, edge by edge, so what a certificate claims
does not rest on them. networkx names what is wrong: it sees only the part of the graph that has no order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from playproof_native import allocating_entry

from playproof_spec.findings import Finding, Findings, finding
from playproof_spec.graph import Edge, Graph, Int32, Int64
from playproof_spec.places import in_reading_order, listed, place
from playproof_spec.units import HORIZON_NS, ms_to_ns

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Topology", "check_cycles", "check_reachability", "earliest_dispatch_ns", "topology"]

# Work bound for the search of the shortest cycle, in edges looked at. A circle of 100,000 requests is found by the
# first search; only proving that none is shorter would need one search a request.
SEARCH_EDGES_MAX = 1_000_000
# A finding names every edge of a cycle up to this length.
NAMED_EDGES_MAX = 24


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """The edges of a graph whose both ends exist, by source, and an order of its nodes.

    Attributes
    ----------
    number, source, target : Int64, Int32, Int32; shape (valid edges,)
        Edge numbers in the graph, and their ends, sorted by source. Dangling and self edges are left out: they are
        findings of G1.
    out_offsets : Int64, shape (nodes + 1,)
        The edges out of node i are ``out_offsets[i]:out_offsets[i + 1]``.
    order : Int32, shape (ordered nodes,)
        A topological order. Nodes on a circle, or behind one, have no place in it.
    position : Int64, shape (nodes,)
        Each node's place in the order; -1 for none.
    """

    number: Int64
    source: Int32
    target: Int32
    out_offsets: Int64
    order: Int32
    position: Int64

    @property
    def acyclic(self) -> bool:
        """Whether every node has a place, and every edge goes forward: the order checked, not trusted."""
        forward = self.position[self.source] < self.position[self.target]
        return bool((self.position >= 0).all() and forward.all())


def topology(graph: Graph) -> Topology:
    """Return the edges by source and a topological order of `graph`. O(nodes + edges · log edges)."""
    target = graph.edge_target()
    number = np.flatnonzero((graph.edge_source >= 0) & (graph.edge_source != target))
    number = number[np.argsort(graph.edge_source[number], kind="stable")].astype(np.int64)
    source, target = graph.edge_source[number], target[number]
    out_offsets = np.searchsorted(source, np.arange(graph.node_count + 1)).astype(np.int64)
    incoming = np.bincount(target, minlength=graph.node_count).astype(np.int64)
    order = np.empty(graph.node_count, dtype=np.int32)
    ordered = _order(out_offsets, target, incoming, order)
    order = order[:ordered]
    position = np.full(graph.node_count, -1, dtype=np.int64)
    position[order] = np.arange(ordered)
    return Topology(number, source, target, out_offsets, order, position)


@allocating_entry
def _order(out_offsets: Int64, target: Int32, incoming: Int64, order: Int32) -> int:
    """Fill `order` with the nodes whose every cause comes before them; return how many. Writes `incoming`, `order`."""
    end = 0
    for node in range(len(incoming)):
        if incoming[node] == 0:
            order[end] = node
            end += 1
    at = 0
    while at < end:
        for edge in range(out_offsets[order[at]], out_offsets[order[at] + 1]):
            incoming[target[edge]] -= 1
            if incoming[target[edge]] == 0:
                order[end] = target[edge]
                end += 1
        at += 1
    return end


@allocating_entry
def _reach(out_offsets: Int64, target: Int32, reached: npt.NDArray[np.bool_], stack: Int32, depth: int) -> None:
    """Mark all that the first `depth` nodes of `stack` lead to. Writes `reached` and `stack`."""
    while depth > 0:
        depth -= 1
        node = stack[depth]
        for edge in range(out_offsets[node], out_offsets[node + 1]):
            if not reached[target[edge]]:
                reached[target[edge]] = True
                stack[depth] = target[edge]
                depth += 1


def check_cycles(graph: Graph, shape: Topology, findings: Findings) -> None:
    """Obligation G2: add a finding for each knot of circles, with its shortest circle named edge by edge.

    Notes
    -----
    Linear for an acyclic graph. A knot (a strongly connected component) is searched from one request after the other
    until the work bound; beyond it the finding says that a shorter circle may exist.
    """
    if shape.acyclic:
        return
    import networkx as nx  # a fifth of a second that only a trace with a circle waits for

    unordered = shape.position < 0
    knots: nx.DiGraph[int] = nx.DiGraph()
    left = np.flatnonzero(unordered[shape.source] & unordered[shape.target])
    knots.add_edges_from(zip(shape.source[left].tolist(), shape.target[left].tolist(), strict=True))
    components = [sorted(c) for c in nx.strongly_connected_components(knots) if len(c) > 1]
    components.sort()
    budget = SEARCH_EDGES_MAX
    for nodes in components[: findings.limit_per_code]:
        cycle, shortest, spent = _shortest_cycle(knots.subgraph(nodes), nodes, max(budget, 2 * len(nodes)))
        budget -= spent
        findings.add(_cycle_finding(graph, cycle, shortest, len(nodes)))
    findings.add_count("cycle", len(components) - findings.limit_per_code)


def _shortest_cycle(knot: nx.DiGraph[int], nodes: list[int], budget: int) -> tuple[list[int], bool, int]:
    """Return a circle of `knot`, whether it is known to be the shortest, and how many edges were looked at.

    Breadth-first search from each node back to itself. A search stops at the length of the best circle so far, and all
    stop at the budget, but never before the first circle is found.
    """
    following = {node: sorted(knot.successors(node)) for node in nodes}
    best: list[int] = []
    spent = 0
    if knot.number_of_edges() == len(nodes):
        starts = nodes[:1]  # the knot is one circle
    else:
        starts = nodes
    for start in starts:
        if best and spent >= budget:
            return best, len(best) == 2, spent
        before: dict[int, int] = {}
        queue = deque([(start, 0)])
        while queue:
            node, depth = queue.popleft()
            # Closing the circle from here takes depth + 1 edges.
            if best and depth + 1 >= len(best):
                break
            spent += len(following[node])
            if start in following[node]:
                best = [node]
                while best[-1] != start:
                    best.append(before[best[-1]])
                best.reverse()
                break
            for successor in following[node]:
                if successor not in before:
                    before[successor] = node
                    queue.append((successor, depth + 1))
        if len(best) == 2:
            break  # self edges are left out, so no circle is shorter
    return best, True, spent


def _edge_between(graph: Graph, source: int, target: int) -> Edge:
    """Return the first stored edge from `source` to `target`."""
    begin, end = int(graph.edge_offsets[target]), int(graph.edge_offsets[target + 1])
    number = begin + int(np.flatnonzero(graph.edge_source[begin:end] == source)[0])
    return graph.edge(number, target)


def _cycle_finding(graph: Graph, cycle: list[int], shortest: bool, knot_size: int) -> Finding:
    # Begin where a reader meets the circle first.
    nodes = np.array(cycle)
    first = int(in_reading_order(graph, nodes)[0])
    cycle = cycle[first:] + cycle[:first]
    named = [
        str(_edge_between(graph, source, target))
        for source, target in list(zip(cycle, cycle[1:] + cycle[:1], strict=True))[:NAMED_EDGES_MAX]
    ]
    rest = len(cycle) - len(named)
    kind = "the shortest circle" if shortest else "a circle (a shorter one may exist)"
    return finding(
        "cycle",
        f"{kind} has {len(cycle)} edges: {'; '.join(named)}" + (f"; and {rest} more" if rest else ""),
        where=place(graph, cycle[0], "dependencies", tuple(graph.request_ids[node] for node in cycle)),
        found=f"{knot_size} requests that wait for each other",
        wanted="an order in which each request comes after all it depends on",
    )


def check_reachability(graph: Graph, shape: Topology, findings: Findings) -> int:
    """Obligation G3: add a finding for each play without a root, and for nodes that no root of their play leads to.

    A node with a dangling edge counts as a root here: that edge is a finding of its own, and what follows from it need
    not be said again. A path through another play counts for nothing. O(nodes + edges).
    """
    dangles = np.zeros(graph.node_count, dtype=np.bool_)
    dangles[graph.edge_target()[graph.edge_source < 0]] = True
    root = (np.diff(graph.edge_offsets) == 0) | dangles
    rooted = np.zeros(len(graph.plays), dtype=np.bool_)
    rooted[graph.node_play[root]] = True

    inside = graph.node_play[shape.source] == graph.node_play[shape.target]
    offsets = np.searchsorted(shape.source[inside], np.arange(graph.node_count + 1)).astype(np.int64)
    reached = root.copy()
    stack = np.empty(graph.node_count, dtype=np.int32)
    roots = np.flatnonzero(root)
    stack[: len(roots)] = roots
    _reach(offsets, shape.target[inside], reached, stack, len(roots))

    lost_of_play: dict[int, list[int]] = {}
    for node in np.flatnonzero(~reached).tolist():
        lost_of_play.setdefault(int(graph.node_play[node]), []).append(node)
    for number, play in enumerate(graph.plays):
        if not rooted[number]:
            where = place(graph, int(play.nodes[0]), "dependencies", (play.play_id,)) if len(play.nodes) else None
            message = f"every one of the play's {len(play.nodes)} requests depends on another"
            findings.add(finding("play-without-root", message, where=where, wanted="a request without dependencies"))
        elif number in lost_of_play:
            nodes = np.array(lost_of_play[number])
            nodes = nodes[in_reading_order(graph, nodes)]
            names = [graph.request_ids[node] for node in nodes.tolist()]
            findings.add(
                finding(
                    "node-unreachable",
                    f"no root of play {play.play_id} leads to {listed(names)}",
                    where=place(graph, int(nodes[0]), "dependencies", tuple(names)),
                    found=f"{len(names)} of {len(play.nodes)} requests",
                    wanted="a path from a root of the play to each request",
                )
            )
    return int(np.count_nonzero(~reached)) + int(np.count_nonzero(~rooted))


def earliest_dispatch_ns(graph: Graph, shape: Topology) -> tuple[Int64, Int64]:
    """Return when each node is dispatched at the earliest, with service that takes no time, and why then.

    Parameters
    ----------
    graph : Graph
        Acyclic, with well-formed times.
    shape : Topology

    Returns
    -------
    dispatch_ns : Int64, shape (nodes,)
        On the recording's clock; a value of 2**62 + 1 stands for anything beyond the horizon.
    cause : Int64, shape (nodes,)
        The edge (its place in `shape`) that decides it, -1 for the node's floor.

    Notes
    -----
    The longest path in a directed acyclic graph: O(nodes + edges). A delay counts up to what is left of the clock and
    one nanosecond more, for two of 2**62 ns are more than an integer holds.
    """
    floors = np.minimum(ms_to_ns(graph.not_before_ms), HORIZON_NS)
    delays = np.minimum(ms_to_ns(graph.edge_delay_ms[shape.number]), HORIZON_NS)
    cause = np.full(graph.node_count, -1, dtype=np.int64)
    dispatch = floors.copy()
    _longest(shape.order, shape.out_offsets, shape.target, delays, dispatch, cause)
    return dispatch, cause


@allocating_entry
def _longest(order: Int32, out_offsets: Int64, target: Int32, delay: Int64, dispatch: Int64, cause: Int64) -> None:
    """Raise `dispatch` to the longest path into each node, saturating above the horizon. Writes `dispatch`, `cause`."""
    for node in order:
        for edge in range(out_offsets[node], out_offsets[node + 1]):
            start = dispatch[node] + min(delay[edge], HORIZON_NS + 1 - dispatch[node])
            if start > dispatch[target[edge]]:
                dispatch[target[edge]] = start
                cause[target[edge]] = edge
