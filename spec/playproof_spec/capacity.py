"""Obligation G7: what a deployment's memory can hold of a load, shown before anything runs.

**(a)** Every request can be served alone: its prompt is within the context, its blocks and what its engine keeps free
beside them are within the pool. Then nothing fails for want of memory, however full the pool is: what does not fit now
waits, or is pushed out and comes again.

**(b)** What can be in flight at one time fits together. Two requests of a play cannot be in flight together when one
starts only after the completion of the other. That is an order (u before v when a completion edge leads from u to a
node that leads to v, or is v), and what can be in flight together is an antichain of it. The heaviest antichain, each
request weighed by the blocks that it holds at its end, is found exactly: by duality its weight is that of a least flow
through the play's events that passes every request as often as it weighs. With lanes, as many plays as there are lanes
add up. A pool that holds the sum never preempts and never retracts, wherever requests are sent: one that wants a block
can have it, since all others together hold no more than the rest.

What stands here knows no engine: whoever asks says what each request weighs, and what it needs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playproof_spec.findings import Finding, Findings, finding
from playproof_spec.graph import Graph, Int32, Int64
from playproof_spec.obligation import FAILED, NOT_APPLICABLE, PROVEN, UNPROVEN, Obligation, Stopwatch
from playproof_spec.places import listed, place
from playproof_spec.reduction import reduce_plays
from playproof_spec.topology import topology

__all__ = ["NO_POOL", "Demand", "RoleMemory", "demands", "heaviest_antichain", "prove_capacity"]

# Augmentations of one play's flow. A play that reduces to thousands of requests may need more; then what was found is
# an upper bound, and said to be one.
AUGMENTATIONS_MAX = 20_000
# More blocks than any pool has.
NO_POOL = 2**40


@dataclass(frozen=True, slots=True, eq=False)
class RoleMemory:
    """The pool of one worker of a role, and what each request wants of it.

    Attributes
    ----------
    role : str
    blocks : int
    weight : Int64, shape (nodes,)
        Blocks that the request holds at its end; 0 if it is refused for another reason.
    alone : Int64, shape (nodes,)
        Blocks with which it surely completes in an idle pool, cache or no cache; `NO_POOL` if none will do.
    holders : int or None
        How many requests can hold blocks of one worker at once, where the engine bounds that.
    """

    role: str
    blocks: int
    weight: Int64
    alone: Int64
    holders: int | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """What a load can ask of one pool at one time.

    Attributes
    ----------
    role : str
    blocks : int
        A pool of this size never preempts.
    exact : bool
        Whether the flow of every play was followed to its end; else `blocks` may be more than needed.
    plays : tuple of int
        The plays that make it up.
    requests : tuple of int
        Nodes of the heaviest of these plays that can be in flight together.
    """

    role: str
    blocks: int
    exact: bool
    plays: tuple[int, ...]
    requests: tuple[int, ...]


class _Flow:
    """Greatest flow by shortest augmenting paths (Dinic): networks here have a few dozen nodes."""

    def __init__(self, nodes: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.to: list[int] = []
        self.left: list[int] = []

    def arc(self, source: int, target: int, capacity: int) -> None:
        for end, other, room in ((source, target, capacity), (target, source, 0)):
            self.out[end].append(len(self.to))
            self.to.append(other)
            self.left.append(room)

    def reached(self, source: int) -> list[int]:
        """Return the distance of each node in the residual network, -1 where there is no way."""
        depth = [-1] * len(self.out)
        depth[source] = 0
        queue = [source]
        for node in queue:
            for arc in self.out[node]:
                if self.left[arc] > 0 and depth[self.to[arc]] < 0:
                    depth[self.to[arc]] = depth[node] + 1
                    queue.append(self.to[arc])
        return depth

    def greatest(self, source: int, sink: int, augmentations: int) -> tuple[int, bool]:
        """Return the flow found, and whether it is the greatest; writes what is left of each arc."""
        total = 0
        while True:
            depth = self.reached(source)
            if depth[sink] < 0:
                return total, True
            at = [0] * len(self.out)
            while True:
                path = self._path(source, sink, depth, at)
                if not path:
                    break
                room = min(self.left[arc] for arc in path)
                for arc in path:
                    self.left[arc] -= room
                    self.left[arc ^ 1] += room
                total += room
                augmentations -= 1
                if augmentations < 0:
                    return total, False

    def _path(self, source: int, sink: int, depth: Sequence[int], at: list[int]) -> list[int]:
        """Return arcs of a shortest path with room, or none; `at` keeps what led nowhere from being tried again."""
        path: list[int] = []
        node = source
        while node != sink:
            arcs = self.out[node]
            while at[node] < len(arcs):
                arc = arcs[at[node]]
                if self.left[arc] > 0 and depth[self.to[arc]] == depth[node] + 1:
                    break
                at[node] += 1
            if at[node] < len(arcs):
                path.append(arcs[at[node]])
                node = self.to[arcs[at[node]]]
            elif path:
                node = self.to[path.pop() ^ 1]
                at[node] += 1
            else:
                return []
        return path


def heaviest_antichain(
    weights: Sequence[int], edges: Sequence[tuple[int, int, bool]], augmentations: int = AUGMENTATIONS_MAX
) -> tuple[int, tuple[int, ...], bool]:
    """Return the greatest weight of nodes that can be in flight together.

    Parameters
    ----------
    weights : sequence of int
        Of each node, ≥ 0.
    edges : sequence of (source, target, whether it waits for the completion)
        Acyclic.
    augmentations : int
        Bound on the work.

    Returns
    -------
    weight : int
    nodes : tuple of int
        An antichain of that weight; empty if the work did not suffice to find it.
    exact : bool
        False when the bound on the work was reached: the weight is then an upper bound.

    Raises
    ------
    AssertionError
        When antichain and flow do not weigh the same: each proves the other, so one of them is wrong.

    Examples
    --------
    >>> heaviest_antichain([5, 3, 4], [(0, 1, True), (0, 2, True)])
    (7, (1, 2), True)
    >>> heaviest_antichain([5, 3, 4], [(0, 1, False), (1, 2, True)])
    (9, (0, 2), True)
    """
    size = len(weights)
    begins, ends, source, sink = 0, size, 2 * size, 2 * size + 1
    total = sum(weights)
    flow = _Flow(2 * size + 2)
    for node, weight in enumerate(weights):
        # What passes one request may pass a later one instead of another that begins there.
        flow.arc(source, ends + node, weight)
        flow.arc(begins + node, sink, weight)
        flow.arc(begins + node, ends + node, total)
    for u, v, completion in edges:
        flow.arc((ends if completion else begins) + u, begins + v, total)
    saved, exact = flow.greatest(source, sink, augmentations)
    if not exact:
        return total - saved, (), False
    side = flow.reached(source)
    nodes = tuple(n for n in range(size) if side[ends + n] >= 0 and side[begins + n] < 0)
    assert sum(weights[n] for n in nodes) == total - saved, "an antichain and a flow that should prove each other"
    return total - saved, nodes, True


def demands(graph: Graph, roles: Sequence[RoleMemory], lanes: int | None, repeats: bool) -> list[Demand]:
    """Return what a load can ask of a pool of each role at one time.

    Parameters
    ----------
    graph : Graph
        Proven.
    roles : sequence of RoleMemory
    lanes : int or None
        Plays at one time; None for all.
    repeats : bool
        Whether one play may be in several lanes at a time.

    Notes
    -----
    Linear but for the flow, which sees plays without short cuts and with every chain as one node: the requests of a
    chain are never in flight together, and are before and behind the same others, so its heaviest one stands for it.
    """
    order = topology(graph)
    reduced = reduce_plays(graph, order)
    heads = np.flatnonzero(reduced.head == np.arange(graph.node_count))
    local = np.zeros(graph.node_count, np.int64)
    plays = graph.node_play[heads]
    by_play = np.argsort(plays, kind="stable")
    heads, plays = heads[by_play], plays[by_play]
    begin = np.searchsorted(plays, np.arange(len(graph.plays) + 1))
    local[heads] = np.arange(len(heads)) - begin[plays]
    edge_play = graph.node_play[reduced.target]
    edge_order = np.argsort(edge_play, kind="stable")
    edge_begin = np.searchsorted(edge_play[edge_order], np.arange(len(graph.plays) + 1))
    found = []
    for role in roles:
        heaviest = np.zeros(graph.node_count, np.int64)
        np.maximum.at(heaviest, reduced.head, role.weight)
        each: list[tuple[int, tuple[int, ...], bool]] = []
        for play in range(len(graph.plays)):
            members = heads[begin[play] : begin[play + 1]]
            inside = edge_order[edge_begin[play] : edge_begin[play + 1]]
            edges = zip(
                local[reduced.source[inside]].tolist(),
                local[reduced.target[inside]].tolist(),
                reduced.completion[inside].tolist(),
                strict=True,
            )
            weight, nodes, exact = heaviest_antichain(heaviest[members].tolist(), list(edges))
            each.append((weight, tuple(int(members[n]) for n in nodes), exact))
        found.append(_together(graph, role, reduced.head, each, lanes, repeats))
    return found


def _together(
    graph: Graph,
    role: RoleMemory,
    head: Int32,
    each: Sequence[tuple[int, tuple[int, ...], bool]],
    lanes: int | None,
    repeats: bool,
) -> Demand:
    """Add up the plays that can run at one time, no more requests than can hold blocks."""
    order = sorted(range(len(each)), key=lambda play: (-each[play][0], play))
    if lanes is None:
        plays = order
    elif repeats:
        plays = order[:1] * lanes
    else:
        plays = order[:lanes]
    blocks = sum(each[play][0] for play in plays)
    if role.holders is not None:
        # No more than the heaviest requests that there are, as many as can hold blocks.
        most = np.sort(role.weight)[::-1]
        most = np.repeat(most[:1], role.holders) if repeats else most[: role.holders]
        blocks = min(blocks, int(most.sum()))
    chosen = each[plays[0]][1]
    requests = []
    for first in chosen:
        chain = np.flatnonzero(head == first)
        requests.append(int(chain[np.argmax(role.weight[chain])]))
    exact = all(each[play][2] for play in set(plays))
    return Demand(role.role, blocks, exact, tuple(dict.fromkeys(plays)), tuple(requests))


def prove_capacity(
    graph: Graph,
    roles: Sequence[RoleMemory],
    findings: Findings,
    *,
    lanes: int | None = None,
    repeats: bool = False,
    unclaimed: str = "",
) -> tuple[Obligation, Obligation]:
    """Obligation G7: nothing fails for want of memory (a), and nothing is preempted (b).

    Parameters
    ----------
    graph : Graph
        Proven.
    roles : sequence of RoleMemory
    findings : Findings
        Receives a note for each role whose pool is smaller than what can be in flight.
    lanes, repeats
        As for :func:`demands`.
    unclaimed : str
        Why nothing is claimed of preemption here, if so.
    """
    watch = Stopwatch()
    short = {int(n) for role in roles for n in np.flatnonzero(role.alone > role.blocks)}
    never = any(((role.weight > role.blocks) | ((role.weight == 0) & (role.alone >= NO_POOL))).any() for role in roles)
    largest = ", ".join(f"{_largest(role.alone)} of {role.blocks} blocks ({role.role})" for role in roles)
    title = "every request can be served alone"
    how = f"the largest of {graph.node_count} requests wants {largest}, its engine's reserve included"
    if short:
        how = f"{len(short)} of {graph.node_count} requests want more than an idle worker has; the largest {largest}"
    alone = watch.stop("G7a", title, FAILED if never else UNPROVEN if short else PROVEN, how)
    watch = Stopwatch()
    title = "nothing is preempted for want of memory"
    if unclaimed:
        return alone, watch.stop("G7b", title, NOT_APPLICABLE, unclaimed)
    asked = demands(graph, roles, lanes, repeats)
    parts = []
    fits = True
    for role, demand in zip(roles, asked, strict=True):
        parts.append(f"{'' if demand.exact else 'at most '}{demand.blocks} of {role.blocks} blocks ({role.role})")
        if demand.blocks > role.blocks:
            fits = False
            findings.add(_short(graph, role, demand))
    at_once = "all plays" if lanes is None else f"{lanes} lanes"
    how = f"least flow: requests in flight together, of {at_once}, hold {', '.join(parts)} of one worker at the most"
    return alone, watch.stop("G7b", title, PROVEN if fits else UNPROVEN, how)


def _largest(alone: Int64) -> int:
    return int(alone[alone < NO_POOL].max(initial=0))


def _short(graph: Graph, role: RoleMemory, demand: Demand) -> Finding:
    names = tuple(graph.request_ids[n] for n in demand.requests)
    play = graph.plays[demand.plays[0]].play_id
    others = len(demand.plays) - 1
    beside = f", beside {others} other play{'s' if others > 1 else ''}" if others else ""
    held = int(role.weight[list(demand.requests)].sum())
    what = f"of play {play}, {listed(names)} can be in flight together and hold {held} blocks{beside}"
    return finding(
        "pool-below-demand",
        f"{role.role} worker: {what or 'more can be in flight than the pool holds'}",
        where=place(graph, demand.requests[0], ids=names) if names else None,
        found=f"{role.blocks} blocks",
        wanted=f"{demand.blocks} blocks, with which nothing is preempted",
    )
