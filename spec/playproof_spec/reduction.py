"""Smaller graphs with the same verdicts: short cuts go, chains become one node, plays of one shape are looked at once.

**The chain lemma.** Let the only edge out of *a* be the completion-triggered edge to *b*, the only edge into *b* be
that one, and every edge out of *b* be completion-triggered. Then the play in which *a* and *b* are one node, dispatched
with *a* and ended with *b* (or with *a*, when *b* is never dispatched), satisfies obligations G4 and G5 exactly when
the play itself does.

**The short-cut lemma.** Let edges lead from *a* to *b*, from *b* to *c*, and from *a* to *c*, and let the first wait
for the completion of *a* if the last does. Then the last adds nothing: whenever the edge from *b* fires, it has fired.
In an acyclic play all such edges may go at once, since the longest path between two nodes keeps its edges.

`proofs.chain_lemma` and `proofs.shortcut_lemma` are what z3 shows of them; a property test compares verdicts with and
without reduction on random graphs. On the public corpus the two leave less than a hundredth of the nodes.

The relation of an edge does not enter: only its trigger decides when it fires. Two edges with one source and one target
are one edge here, since a completion implies the dispatch before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from playproof_native import allocating_entry

from playproof_spec.graph import Graph, Int32, Int64, Trigger
from playproof_spec.topology import Topology

__all__ = ["Reduced", "Shape", "ShapeOfPlays", "distinct_shapes", "reduce_plays"]

Bools = npt.NDArray[np.bool_]

# A chain that closes may make a short cut, and the other way round; a few rounds settle real plays.
ROUNDS_MAX = 32
# Pairs of edges looked at for short cuts in a round. Beyond it some short cuts stay, which costs time and nothing else.
PAIRS_MAX = 20_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """A graph's structure after chains became single nodes.

    Attributes
    ----------
    head : Int32, shape (nodes,)
        The first node of the chain that each node is in; a node by itself is its own head.
    source, target : Int32; completion : bool; shape (edges,)
        One edge for each pair of heads, sorted by source and target; whether it waits for the completion.
    """

    head: Int32
    source: Int32
    target: Int32
    completion: Bools


@dataclass(frozen=True, slots=True)
class Shape:
    """The structure of a play, with its nodes numbered by level and document order.

    Attributes
    ----------
    size : int
        Nodes after reduction.
    edges : tuple[tuple[int, int, bool], ...]
        (source, target, whether it waits for the completion), sorted by target and source.
    """

    size: int
    edges: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class ShapeOfPlays:
    """A shape, the plays that have it, and the nodes of the first of them in the shape's numbering."""

    shape: Shape
    plays: tuple[int, ...]
    nodes: Int32


def reduce_plays(graph: Graph, topology: Topology, simplify: bool = True) -> Reduced:
    """Return the structure of `graph` without short cuts and with every chain as one node.

    Parameters
    ----------
    graph : Graph
    topology : Topology
        Its edges; nodes without an order (on circles, or behind one) are left as they are.
    simplify : bool
        False keeps every node, and only joins parallel edges: the reduction's naive twin.

    Notes
    -----
    A round is O(nodes + edges · log edges) and looks at no more than `PAIRS_MAX` pairs of edges.
    """
    nodes = graph.node_count
    pair = topology.source.astype(np.int64) * nodes + topology.target
    completes = graph.edge_trigger[topology.number] == Trigger.COMPLETION
    unique, place = np.unique(pair, return_inverse=True)
    completion = np.bincount(place, weights=completes, minlength=len(unique)) > 0
    source = (unique // max(nodes, 1)).astype(np.int32)
    target = (unique % max(nodes, 1)).astype(np.int32)
    reduced = Reduced(np.arange(nodes, dtype=np.int32), source, target, completion)
    if not simplify:
        return reduced
    ordered = topology.position >= 0
    for _ in range(ROUNDS_MAX):
        smaller = _merge_chains(_drop_short_cuts(reduced, ordered), ordered)
        if len(smaller.source) == len(reduced.source):
            break
        reduced = smaller
    return reduced


def _drop_short_cuts(reduced: Reduced, ordered: Bools) -> Reduced:
    """Return `reduced` without the edges that the short-cut lemma makes superfluous."""
    source, target, completion = reduced.source, reduced.target, reduced.completion
    offsets = np.searchsorted(source, np.arange(len(ordered) + 1)).astype(np.int64)
    kept = np.ones(len(source), dtype=np.bool_)
    _mark_short_cuts(offsets, target, completion, ordered, kept, PAIRS_MAX)
    return Reduced(reduced.head, source[kept], target[kept], completion[kept])


@allocating_entry
def _mark_short_cuts(
    out_offsets: Int64, target: Int32, completion: Bools, ordered: Bools, kept: Bools, pairs_max: int
) -> None:
    """Clear `kept` for every edge a → c beside a → b → c that waits for no more than they do. Writes `kept`."""
    edge_to = np.full(len(ordered), -1, dtype=np.int64)
    pairs = 0
    for a in range(len(ordered)):
        begin, end = out_offsets[a], out_offsets[a + 1]
        if end - begin < 2 or not ordered[a]:
            continue
        for edge in range(begin, end):
            edge_to[target[edge]] = edge
        for first in range(begin, end):
            b = target[first]
            pairs += out_offsets[b + 1] - out_offsets[b]
            if pairs > pairs_max:
                return
            for second in range(out_offsets[b], out_offsets[b + 1]):
                direct = edge_to[target[second]]
                # Every node before an ordered one is ordered, so the target alone tells.
                if direct >= 0 and ordered[target[second]] and (completion[first] or not completion[direct]):
                    kept[direct] = False
        for edge in range(begin, end):
            edge_to[target[edge]] = -1


def _merge_chains(reduced: Reduced, ordered: Bools) -> Reduced:
    """Return `reduced` with every chain of the chain lemma as its first node."""
    source, target, completion = reduced.source, reduced.target, reduced.completion
    nodes = len(ordered)
    ways_out = np.bincount(source, minlength=nodes)
    ways_in = np.bincount(target, minlength=nodes)
    wakes_at_dispatch = np.bincount(source[~completion], minlength=nodes) > 0
    inner = completion & (ways_out[source] == 1) & (ways_in[target] == 1) & ~wakes_at_dispatch[target]
    inner &= ordered[target]  # a circle of such edges has no first node
    head = np.arange(nodes, dtype=np.int32)
    head[target[inner]] = source[inner]
    for _ in range(nodes.bit_length()):
        head = head[head]
    source, target, completion = head[source[~inner]], target[~inner], completion[~inner]
    order = np.lexsort((target, source))
    return Reduced(head[reduced.head], source[order], target[order], completion[order])


def distinct_shapes(graph: Graph, topology: Topology, reduced: Reduced) -> list[ShapeOfPlays]:
    """Return the shapes of the plays, in the order of the first play of each.

    Plays get one shape when their reduced nodes, numbered by level (the longest path from a root) and within a level by
    document order, have equal edges. Renamed requests do not matter; two plays whose branches stand in another order in
    their files may count as two shapes, which costs time and nothing else.
    """
    nodes = graph.node_count
    heads = np.flatnonzero(reduced.head == np.arange(nodes)).astype(np.int32)
    document = np.empty(nodes, dtype=np.int64)
    if nodes:
        document[np.concatenate([play.nodes for play in graph.plays])] = np.arange(nodes)
    level = _levels(topology, reduced, nodes)
    play_of_head = graph.node_play[heads]
    heads = heads[np.lexsort((document[heads], level[heads], play_of_head))]
    begin = np.searchsorted(graph.node_play[heads], np.arange(len(graph.plays) + 1))
    number = np.zeros(nodes, dtype=np.int64)
    number[heads] = np.arange(len(heads)) - begin[graph.node_play[heads]]

    order = np.lexsort((number[reduced.source], number[reduced.target], graph.node_play[reduced.target]))
    edges = np.stack([number[reduced.source], number[reduced.target], reduced.completion.astype(np.int64)], axis=1)
    edges = edges[order]
    edge_begin = np.searchsorted(graph.node_play[reduced.target[order]], np.arange(len(graph.plays) + 1))
    members: dict[tuple[int, bytes], list[int]] = {}
    for play in range(len(graph.plays)):
        key = (int(begin[play + 1] - begin[play]), edges[edge_begin[play] : edge_begin[play + 1]].tobytes())
        members.setdefault(key, []).append(play)
    shapes = []
    for (size, _), plays in members.items():
        first = plays[0]
        rows = edges[edge_begin[first] : edge_begin[first + 1]].tolist()
        shape = Shape(size, tuple((source, target, bool(completion)) for source, target, completion in rows))
        shapes.append(ShapeOfPlays(shape, tuple(plays), heads[begin[first] : begin[first + 1]]))
    return shapes


def _levels(topology: Topology, reduced: Reduced, nodes: int) -> Int64:
    """Return the longest path from a root to each head, in reduced edges; 0 for nodes without an order."""
    offsets = np.searchsorted(reduced.source, np.arange(nodes + 1)).astype(np.int64)
    level = np.zeros(nodes, dtype=np.int64)
    # A head comes no later than its chain's end, so the order of the graph is one of the reduced graph too.
    _raise_levels(topology.order, offsets, reduced.target, level)
    return level


@allocating_entry
def _raise_levels(order: Int32, out_offsets: Int64, target: Int32, level: Int64) -> None:
    """Set each node's level to one above its causes'. Writes `level`."""
    for node in order:
        for edge in range(out_offsets[node], out_offsets[node + 1]):
            level[target[edge]] = max(level[target[edge]], level[node] + 1)
