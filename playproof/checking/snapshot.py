"""Plays under the run controls: where a snapshot cuts them, what remains, and what prepares the caches.

The cut is drawn again here from seed, digest, play and lane, with BLAKE3 of its own; floors, history and primers are
read out of the trace again (docs/run-controls.md). The report's evidence is then compared with that.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from playproof_spec.findings import Where, finding
from playproof_spec.graph import Graph, Trigger

from playproof.checking.lines import Columns
from playproof.checking.matching import instance_name
from playproof.checking.plays import Cast, Plays, delays_ns, put_together
from playproof.checking.run import Run
from playproof.checking.settings import Count, Float64, Int64, Load, at_speed, to_ns
from playproof.checking.verdict import Bool, Tally

SCHEMA = "aisimulate.agentic.snapshot.v1"
WARMUPS = 10
# Two floating-point figures of one formula are alike if they differ by no more than this share.
ALIKE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The first play of a lane.

    Attributes
    ----------
    play, lane : int
    at_ms, first_ms, last_ms : float
        Where it is cut, and its least and greatest recorded start.
    nodes : Int64
        All of its nodes, in the order in which those go that are due at one instant.
    history : Bool
        By place in `nodes`: started before the cut.
    remaining_ms : Float64
        By place in `nodes`: what still holds it back, 0 for history.
    primers : tuple of int
        Nodes that prepare the caches, by session.
    """

    play: int
    lane: int
    at_ms: float
    first_ms: float
    last_ms: float
    nodes: Int64
    history: Bool
    remaining_ms: Float64
    primers: tuple[int, ...]


class _Place(msgspec.Struct):
    lane: Count
    play_ordinal: Count


def digest_of(lines: Columns, report: Mapping[str, Any] | None) -> str:
    """Return the graph's digest by which plays are named: the report's, or that of the first line that has one."""
    graph = report.get("agentic_graph") if report is not None else None
    digest = graph.get("graph_digest") if isinstance(graph, Mapping) else None
    if isinstance(digest, str):
        return digest
    for name in lines.text["play_id"]:
        parts = name.split(":")
        if len(parts) == 5:
            return parts[1]
    return ""


def cut_plays(
    graph: Graph, load: Load, digest: str, lines: Columns, report: Mapping[str, Any] | None, tally: Tally
) -> tuple[Plays, tuple[Cut, ...]]:
    """Return the plays of a run under the run controls, and the cuts of the first ones.

    Those that come after the first of each lane are known from the report, or else from the lines.
    """
    cuts = tuple(_cut(graph, lane, load, digest) for lane in range(load.lanes))
    casts = [_cast_of_cut(graph, cut, load) for cut in cuts]
    for lane, ordinal, play in _later(graph, load, lines, report, tally):
        casts.append(_whole(graph, lane, ordinal, play, load))
    return put_together(graph, casts, delays_ns(graph, load.speedup)), cuts


def _later(
    graph: Graph, load: Load, lines: Columns, report: Mapping[str, Any] | None, tally: Tally
) -> list[tuple[int, int, int]]:
    """Return (lane, ordinal, play) of every instance behind the first of each lane."""
    listed = report.get("agentic_play_outcomes") if report is not None else None
    if listed is not None:
        try:
            places = msgspec.convert(listed, list[_Place])
        except (msgspec.ValidationError, RecursionError) as error:
            places = None
            where = Where(file=tally.report_file, field="agentic_play_outcomes")
            tally.tell("run-outcome", finding("run-outcome", f"the outcomes cannot be read: {error}", where=where))
        # Every play that starts whole starts with a request.
        if places is not None and len(places) <= load.lanes + len(lines):
            later = enumerate(places[load.lanes :], start=load.lanes)
            return [(place.lane, place.play_ordinal, number % len(graph.plays)) for number, place in later]
    nodes = {name: number for number, name in enumerate(graph.request_ids)}
    seen: dict[tuple[int, int], int] = {}
    named = zip(lines["lane"].tolist(), lines["play_ordinal"].tolist(), lines.text["request_id"], strict=True)
    for lane, ordinal, name in named:
        if ordinal > 0 and name in nodes and lane >= 0:
            seen.setdefault((lane, ordinal), int(graph.node_play[nodes[name]]))
    return [(lane, ordinal, play) for (lane, ordinal), play in seen.items()]


def drawn(seed: int, digest: str, play_id: str, lane: int) -> float:
    """Return the uniform draw of the first play of a lane: the upper 53 bits of a BLAKE3."""
    key = json.dumps([SCHEMA, seed, digest, play_id, lane, 0], separators=(",", ":"), ensure_ascii=False)
    bits = int.from_bytes(blake3(key.encode("utf-8", "surrogatepass")).digest()[:8], "little")
    return float((bits >> 11) / 2**53)


def _ordered(graph: Graph, play: int) -> Int64:
    nodes = graph.plays[play].nodes.astype(np.int64)
    return nodes[np.argsort(graph.tie_ranks[nodes], kind="stable")]


def _edges_into(graph: Graph, node: int) -> range:
    return range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1]))


def _span(graph: Graph, play: int) -> tuple[float, float]:
    """Return the least and the greatest recorded start of a play."""
    starts = graph.not_before_ms[graph.plays[play].nodes]
    return float(starts.min()), float(starts.max())


def _cut(graph: Graph, lane: int, load: Load, digest: str) -> Cut:
    play = lane % len(graph.plays)
    first, last = _span(graph, play)
    share = 0.25 + 0.5 * drawn(load.seed or 0, digest, graph.plays[play].play_id, lane)
    at_ms = first + share * (last - first)
    nodes = _ordered(graph, play)
    begun = set(nodes[graph.not_before_ms[nodes] < at_ms].tolist())
    return _cut_at(graph, play, lane, at_ms, _primers(graph, nodes, begun))


def _cut_at(graph: Graph, play: int, lane: int, at_ms: float, primers: tuple[int, ...]) -> Cut:
    """Return a play as it stands at an instant of its recording."""
    nodes = _ordered(graph, play)
    history = graph.not_before_ms[nodes] < at_ms
    begun = set(nodes[history].tolist())
    remaining = []
    for node in nodes.tolist():
        due = at_ms
        for number in _edges_into(graph, node):
            source = int(graph.edge_source[number])
            if source in begun:
                due = max(due, _recorded_event_ms(graph, source, number) + float(graph.edge_delay_ms[number]))
        remaining.append(0.0 if node in begun else max(due, float(graph.not_before_ms[node])) - at_ms)
    return Cut(play, lane, at_ms, *_span(graph, play), nodes, history, np.array(remaining), primers)


def _recorded_event_ms(graph: Graph, source: int, number: int) -> float:
    """Return when the recording fired an edge: at the start of its source, or at its end if that is known."""
    start, took = float(graph.not_before_ms[source]), float(graph.recorded_api_time_ms[source])
    at_dispatch = graph.edge_trigger[number] == Trigger.DISPATCH
    return start if at_dispatch or np.isnan(took) else start + took


def _primers(graph: Graph, nodes: Int64, begun: set[int]) -> tuple[int, ...]:
    """Return the latest request of history of each session that goes on, by session."""
    ranks = _ranks(graph, nodes)
    latest: dict[int, int] = {}
    live = set()
    for node in nodes.tolist():
        session = int(graph.node_session[node])
        if node not in begun:
            live.add(session)
        elif session not in latest or _key(graph, ranks, latest[session]) < _key(graph, ranks, node):
            latest[session] = node
    return tuple(latest[session] for session in sorted(live & latest.keys()))


def _key(graph: Graph, ranks: dict[int, int], node: int) -> tuple[float, int]:
    return float(graph.not_before_ms[node]), ranks[node]


def _ranks(graph: Graph, nodes: Int64) -> dict[int, int]:
    """Return each node's place in the order that takes the least node next whose sources have all been taken."""
    waits = {node: len({int(graph.edge_source[e]) for e in _edges_into(graph, node)}) for node in nodes.tolist()}
    follow: dict[int, set[int]] = {}
    for node in nodes.tolist():
        for number in _edges_into(graph, node):
            follow.setdefault(int(graph.edge_source[number]), set()).add(node)
    free = [node for node, count in waits.items() if count == 0]
    heapq.heapify(free)
    ranks: dict[int, int] = {}
    while free:
        node = heapq.heappop(free)
        ranks[node] = len(ranks)
        for target in follow.get(node, ()):
            waits[target] -= 1
            if waits[target] == 0:
                heapq.heappush(free, target)
    return ranks


def _cast_of_cut(graph: Graph, cut: Cut, load: Load) -> Cast:
    """Return what runs of a cut play. In a profile floors hold back only what waits for no other kept request."""
    kept = cut.nodes[~cut.history]
    edges = _own_edges(graph, kept, set(cut.nodes[cut.history].tolist()))
    remaining = cut.remaining_ms[~cut.history]
    if load.profile is not None:
        waiting = np.isin(kept, graph.edge_target()[edges])
        remaining = np.where(waiting, 0.0, remaining)
    return Cast(cut.play, cut.lane, 0, kept, to_ns(at_speed(remaining, load.speedup)), edges)


def _own_edges(graph: Graph, nodes: Int64, history: set[int]) -> Int64:
    numbers = [
        number
        for node in nodes.tolist()
        for number in _edges_into(graph, node)
        if int(graph.edge_source[number]) not in history
    ]
    return np.array(numbers, np.int64)


def _whole(graph: Graph, lane: int, ordinal: int, play: int, load: Load) -> Cast:
    """Return a play that starts whole: only roots have floors then, from the play's earliest start."""
    nodes = _ordered(graph, play)
    edges = _own_edges(graph, nodes, set())
    floors = graph.not_before_ms[nodes] - graph.not_before_ms[nodes].min()
    roots = np.diff(graph.edge_offsets)[nodes] == 0
    return Cast(play, lane, ordinal, nodes, to_ns(at_speed(np.where(roots, floors, 0.0), load.speedup)), edges)


# The report's evidence ----------------------------------------------------------------------------------------------


class _Kept(msgspec.Struct):
    source_request_id: str
    recorded_start_ms: float
    recorded_end_ms: float | None
    historical: bool
    remaining_delay_ms: float
    pending_dependencies: list[str]


class _Primer(msgspec.Struct):
    source_request_id: str
    request_id: str
    conversation_id: str
    input_length: int


class _Snapshot(msgspec.Struct):
    schema: str
    seed: int
    lane_id: int
    play_ordinal: int
    source_play_id: str
    play_id: str
    cache_id: str
    t_star_ms: float
    recorded_start_ms: float
    recorded_last_start_ms: float
    primers: list[_Primer]
    requests: list[_Kept] | None


def check_snapshots(run: Run, cuts: tuple[Cut, ...], digest: str) -> None:
    """Compare the report's snapshots with the cuts, and its later plays with the trace's."""
    if run.report is None:
        run.tally.skip("without a report nothing tells of the cuts but the lines", ["run-snapshot"])
        return
    try:
        told = msgspec.convert(run.report.get("agentic_snapshots"), list[_Snapshot])
    except (msgspec.ValidationError, RecursionError) as error:
        where = run.report_at("agentic_snapshots")
        run.tally.tell("run-snapshot", finding("run-snapshot", f"the snapshots cannot be read: {error}", where=where))
        return
    run.tally.fact(
        "run-snapshot",
        len(told) == len(run.plays.play),
        lambda: finding(
            "run-snapshot",
            "there is not one snapshot a play",
            where=run.report_at("agentic_snapshots"),
            found=len(told),
            wanted=str(len(run.plays.play)),
        ),
    )
    whole: dict[int, Cut] = {}
    for number, snapshot in enumerate(told[: len(run.plays.play)]):
        play = int(run.plays.play[number])
        if number >= len(cuts) and play not in whole:
            whole[play] = _cut_at(run.graph, play, 0, _span(run.graph, play)[0], ())
        _check_snapshot(run, number, snapshot, cuts[number] if number < len(cuts) else whole[play], digest)


def _check_snapshot(run: Run, number: int, told: _Snapshot, cut: Cut, digest: str) -> None:
    graph, plays = run.graph, run.plays
    name = instance_name(run, digest, number)
    wanted: dict[str, Any] = {
        "schema": SCHEMA,
        "seed": run.load.seed,
        "lane_id": int(plays.lane[number]),
        "play_ordinal": int(plays.ordinal[number]),
        "source_play_id": graph.plays[cut.play].play_id,
        "play_id": name,
        "cache_id": f"{name}:cache",
        "t_star_ms": cut.at_ms,
        "recorded_start_ms": cut.first_ms,
        "recorded_last_start_ms": cut.last_ms,
    }
    for field, value in wanted.items():
        _compare(run, f"agentic_snapshots[{number}].{field}", getattr(told, field), value, name)
    primers = [_primer(graph, node, name) for node in cut.primers]
    _compare(run, f"agentic_snapshots[{number}].primers", told.primers, primers, name)
    if told.requests is None:
        return
    expected = [_kept(graph, cut, place, name) for place in range(len(cut.nodes))]
    given = {request.source_request_id: request for request in told.requests}
    _compare(
        run, f"agentic_snapshots[{number}].requests", [request.source_request_id for request in told.requests],
        [request.source_request_id for request in expected], name,
    )  # fmt: skip
    for request in expected:
        mine = given.get(request.source_request_id, request)
        for field in (
            "recorded_start_ms",
            "recorded_end_ms",
            "historical",
            "remaining_delay_ms",
            "pending_dependencies",
        ):
            place = f"agentic_snapshots[{number}].requests[{request.source_request_id}].{field}"
            _compare(run, place, getattr(mine, field), getattr(request, field), name)


def _primer(graph: Graph, node: int, name: str) -> _Primer:
    request, session = graph.request_ids[node], graph.sessions[graph.node_session[node]]
    length = int(graph.input_length[node])
    return _Primer(request, f"{name}:request:{request}", f"{name}:conversation:{session}", length)


def _kept(graph: Graph, cut: Cut, place: int, name: str) -> _Kept:
    """Return what a snapshot tells of one request of its play."""
    node = int(cut.nodes[place])
    start, took = float(graph.not_before_ms[node]), float(graph.recorded_api_time_ms[node])
    begun = set(cut.nodes[cut.history].tolist())
    sources = [int(graph.edge_source[number]) for number in _edges_into(graph, node)]
    waits = [] if node in begun else [source for source in sources if source not in begun]
    return _Kept(
        source_request_id=graph.request_ids[node],
        recorded_start_ms=start,
        recorded_end_ms=None if np.isnan(took) else start + took,
        historical=bool(cut.history[place]),
        remaining_delay_ms=float(cut.remaining_ms[place]),
        pending_dependencies=[f"{name}:request:{graph.request_ids[source]}" for source in waits],
    )


def _compare(run: Run, field: str, found: Any, wanted: Any, name: str) -> None:
    same = found == wanted
    if isinstance(wanted, float) and isinstance(found, float) and not same:
        same = abs(found - wanted) <= ALIKE * max(abs(found), abs(wanted))
    run.tally.fact(
        "run-snapshot",
        bool(same),
        lambda: finding(
            "run-snapshot",
            "the snapshot is not the one that seed and trace give",
            where=run.report_at(field, (name,)),
            found=found,
            wanted=str(wanted)[:200],
        ),
    )


def warmed(graph: Graph, cut: Cut) -> list[tuple[int, bool]]:
    """Return the nodes whose prompts prepare a lane, in order, each with whether it is a primer."""
    sources = cut.primers
    if not sources:
        kept = cut.nodes[~cut.history].tolist()
        sources = (min(kept, key=lambda node: float(graph.not_before_ms[node])),)
    primers = [(node, True) for node in cut.primers]
    return primers + [(sources[turn % len(sources)], False) for turn in range(WARMUPS)]
