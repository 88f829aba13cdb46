"""The plays of a run, as the checker itself reads them out of the trace and the load.

A run is a set of *instances* of the trace's plays, each with *occurrences* of their requests and of the edges between
them. A finite replay has one instance a play, in execution order. Under the run controls lanes begin inside a play
(what the recording had begun by then is no occurrence) and then take whole ones: see `snapshot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from playproof_spec.graph import Graph

from playproof.checking.settings import Float64, Int64, Load, at_speed, to_ns


@dataclass(frozen=True, slots=True, eq=False)
class Plays:
    """Instances, occurrences and edges.

    Attributes
    ----------
    play : Int64, shape (instances,)
        The source play of each instance, by position in the graph.
    lane, ordinal : Int64, shape (instances,)
        Lane and place within it, where the load says them beforehand: under the run controls. Else -1 and the place in
        execution order.
    node, instance, floor : Int64, shape (occurrences,)
        The node of the trace, its instance, and its floor in ns from the instance's start.
    rank : Int64, shape (occurrences,)
        Where a line of it stands among the lines, ascending.
    source, target, number, delay : Int64, shape (edges,)
        Edges between occurrences, by target; the edge of the trace; its delay in ns.
    """

    play: Int64
    lane: Int64
    ordinal: Int64
    node: Int64
    instance: Int64
    floor: Int64
    rank: Int64
    source: Int64
    target: Int64
    number: Int64
    delay: Int64

    @property
    def count(self) -> int:
        """Occurrences."""
        return len(self.node)


def delays_ns(graph: Graph, speedup: float) -> Int64:
    """Return the delay of each edge of the trace at a speed, ns."""
    return to_ns(at_speed(graph.edge_delay_ms, speedup))


def finite_plays(graph: Graph, load: Load) -> Plays:
    """Return the plays of a finite replay: each once, its nodes numbered as in the graph."""
    nodes, plays = graph.node_count, len(graph.plays)
    listed = np.concatenate([play.nodes for play in graph.plays]) if plays else np.zeros(0, np.int32)
    rank = np.empty(nodes, np.int64)
    rank[listed] = np.arange(nodes)
    play = graph.node_play.astype(np.int64)
    return Plays(
        play=np.arange(plays),
        lane=np.full(plays, -1, np.int64),
        ordinal=np.arange(plays),
        node=np.arange(nodes),
        instance=play,
        floor=_finite_floors(graph, load),
        rank=rank,
        source=graph.edge_source.astype(np.int64),
        target=graph.edge_target().astype(np.int64),
        number=np.arange(graph.edge_count),
        delay=delays_ns(graph, load.speedup),
    )


def _finite_floors(graph: Graph, load: Load) -> Int64:
    """Floors count from the earliest floor of a root: of the corpus, or with lanes of the node's own play."""
    floors = graph.not_before_ms
    roots = np.diff(graph.edge_offsets) == 0
    if load.lanes:
        first: Float64 = np.full(len(graph.plays), np.inf)
        np.minimum.at(first, graph.node_play[roots], floors[roots])
        origin = first[graph.node_play]
    else:
        origin = np.full(graph.node_count, floors[roots].min(initial=np.inf))
    return to_ns(at_speed(np.maximum(floors - origin, 0.0), load.speedup))


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """One instance under the run controls, to be put together with others by `put_together`.

    Attributes
    ----------
    play, lane, ordinal : int
    nodes, floor : Int64
        The nodes that run, in the order in which their lines stand, and their floors in ns.
    edges : Int64
        The edges of the trace that hold one of them back and come from another.
    """

    play: int
    lane: int
    ordinal: int
    nodes: Int64
    floor: Int64
    edges: Int64


def put_together(graph: Graph, casts: Sequence[Cast], delay: Int64) -> Plays:
    """Return the plays of `casts`, in their order."""
    sizes = np.array([len(cast.nodes) for cast in casts], np.int64)
    begin = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    target = graph.edge_target()
    where = np.full(graph.node_count, -1, np.int64)
    sources, targets = [], []
    for first, cast in zip(begin.tolist(), casts, strict=False):
        where[cast.nodes] = first + np.arange(len(cast.nodes))
        sources.append(where[graph.edge_source[cast.edges]])
        targets.append(where[target[cast.edges]])
    none = [np.zeros(0, np.int64)]
    number = np.concatenate([cast.edges for cast in casts] or none)
    return Plays(
        play=np.array([cast.play for cast in casts], np.int64),
        lane=np.array([cast.lane for cast in casts], np.int64),
        ordinal=np.array([cast.ordinal for cast in casts], np.int64),
        node=np.concatenate([cast.nodes for cast in casts] or none),
        instance=np.repeat(np.arange(len(casts)), sizes),
        floor=np.concatenate([cast.floor for cast in casts] or none),
        rank=np.arange(int(begin[-1])),
        source=np.concatenate(sources or none),
        target=np.concatenate(targets or none),
        number=number,
        delay=delay[number],
    )
