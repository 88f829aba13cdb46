"""Weka / AgentX recordings into the graph: streams, joins and barriers of each play.

A recording lists requests with their times; what waited for what is inferred from prefixes, markers and overlaps.
Every edge made here agrees with the recorded times: a delay is the recorded gap between the event and the start, and is
floored at zero only where two requests overlapped.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from playproof_spec.findings import Findings, finding
from playproof_spec.graph import Graph, Relation, Source, Trigger
from playproof_spec.units import NS_PER_MS, NS_PER_S

from playproof_lowering.builder import GraphBuilder
from playproof_lowering.identity import without_collisions
from playproof_lowering.provenance import corpus_digest
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.source import SourceFile, read_through
from playproof_lowering.streams import EPSILON_S, Call, Stream, barriers, split_streams
from playproof_lowering.weka_readings import AgentTimes, Readings, agent_times, choose_readings
from playproof_lowering.weka_records import Agent, Counts, PlayRecord, WekaRecords

__all__ = ["READER", "read_weka"]

# duration_ms is whole milliseconds, so a subagent may seem to end that much before its last request.
DURATION_STEP_S: Final = 1e-3


def read_weka(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    nested_timestamp_basis: Literal["auto", "relative", "absolute"],
    subagent_marker: Literal["auto", "spawn", "completion"],
    strict: bool,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read Weka recordings into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        In corpus order, which is the order of the plays.
    findings : Findings
        Receives what is wrong; a play with an error is left out.
    facts : dict
        Receives counts, digests, and the readings chosen with their evidence.
    block_size : int, optional
        What the files must say.
    nested_timestamp_basis, subagent_marker : str
        The readings, or ``auto``.
    strict : bool
        Unknown fields are errors.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no sound play.
    """
    records = WekaRecords(findings, block_size, strict)
    kept = without_collisions(files, findings)
    digests = [read_through(file, records.read, findings, on_bytes) for file in kept]
    readings = choose_readings(records.plays, nested_timestamp_basis, subagent_marker, findings)
    builder = GraphBuilder(records.block_size)
    handles: dict[str, int] = {}
    base = 0
    for play in records.plays:
        if play.where.file not in handles:
            handles[play.where.file] = builder.file(play.where.file)
        lowering = _PlayLowering(play, readings, findings, records.counts)
        if lowering.infer():
            lowering.emit(builder, handles[play.where.file], base)
            base += play.ids
    facts.update(readings.facts())
    facts["weka_counts"] = {name: getattr(records.counts, name) for name in Counts.__slots__}
    facts["input_digest"] = corpus_digest(digests)
    if builder.node_count == 0:
        return None
    chosen = (f"nested_timestamp_basis={readings.basis_name}", f"subagent_marker={readings.marker_name}")
    return builder.finish(Source("weka", corpus_digest(digests, chosen)), facts)


@dataclass(slots=True, eq=False)
class _Session:
    """A stream with its name, and the call that the play's structure says it was spawned by."""

    name: str
    calls: list[Call]
    parent: Call | None


class _PlayLowering:
    """Infers the edges of one play and hands the result to the builder.

    A call's `order` is its place among the play's entries, so that one number names it in all scopes.
    """

    def __init__(self, play: PlayRecord, readings: Readings, findings: Findings, counts: Counts) -> None:
        self._play = play
        self._readings = readings
        self._findings = findings
        self._counts = counts
        self._sessions: list[_Session] = []
        self._session_of: dict[int, _Session] = {}
        self._edges: list[dict[tuple[int, Trigger, Relation], float]] = [{} for _ in play.entries]
        self._calls: list[Call] = []
        self._sound = True

    def infer(self) -> bool:
        """Find sessions and edges; tell whether the play is sound."""
        play = self._play
        times = self._times()
        if not self._sound:
            return False
        self._make_calls(times)
        nested = {place for agent in play.agents for place in range(agent.begin, agent.end)}
        parents = [call for call in self._calls if call.order not in nested]
        self._add_scope("root", split_streams(parents, play.prompts), None)
        parent_sessions = list(self._sessions)
        ends: list[tuple[Agent, list[_Session], float]] = []
        for agent, agent_time in zip(play.agents, times, strict=True):
            children = self._calls[agent.begin : agent.end]
            name = f"subagent:{agent.outer}:{agent.agent_id}"
            owner = self._calls[agent.owner]
            sessions = self._add_scope(name, split_streams(children, play.prompts), owner)
            self._check_owner(agent, owner, sessions[0].calls[0])
            if agent.blocking:
                last_s = max(call.end_s for call in children)
                ends.append((agent, sessions, max(agent_time.end_s, last_s)))
        if not self._sound:
            return False
        self._sequences_and_spawns()
        self._joins(parent_sessions, ends)
        self._anchors()
        return True

    def _times(self) -> list[AgentTimes]:
        """Read the subagents' times, and refuse what contradicts itself."""
        play = self._play
        result = []
        for agent in play.agents:
            entries = play.entries[agent.begin : agent.end]
            times = agent_times(agent, entries, self._readings.basis, self._readings.marker)
            self._counts.nested_times_clamped += times.clamped
            for place in times.early:
                self._refuse(
                    "nested-before-marker",
                    f"{entries[place].path}.t",
                    f"the request starts before its subagent {agent.agent_id}, which starts at {times.start_s:g} s",
                    f"{entries[place].t:g} s",
                    f"at least {times.start_s:g} s",
                )
            last_s = times.last_end_s(entries)
            if agent.blocking and not times.early and times.end_s < last_s - DURATION_STEP_S - EPSILON_S:
                self._refuse(
                    "subagent-ends-early",
                    f"{agent.path}.duration_ms" if agent.duration_s is not None else f"{agent.path}.t",
                    f"subagent {agent.agent_id} ends at {times.end_s:g} s, its last request at {last_s:g} s",
                    f"{times.end_s:g} s",
                    f"at least {last_s:g} s",
                )
            result.append(times)
        return result

    def _refuse(self, code: str, path: str, message: str, found: str, wanted: str, *ids: str) -> None:
        self._sound = False
        self._findings.add(finding(code, message, where=self._play.at(path, *ids), found=found, wanted=wanted))

    def _make_calls(self, times: Sequence[AgentTimes]) -> None:
        play = self._play
        starts_s = [entry.t for entry in play.entries]
        for agent, agent_time in zip(play.agents, times, strict=True):
            starts_s[agent.begin : agent.end] = agent_time.starts_s
        for place, entry in enumerate(play.entries):
            start_s = starts_s[place]
            self._calls.append(Call(place, start_s, start_s + entry.service_s, entry.model, entry.output_length))

    def _add_scope(self, name: str, streams: list[Stream], owner: Call | None) -> list[_Session]:
        """Name the streams of one scope and put barriers between them; the first one hangs at `owner`."""
        sessions = []
        for number, stream in enumerate(streams):
            title = f"{self._play.name}:{name}" + (f":worker:{number - 1}" if number else "")
            session = _Session(title, stream.calls, stream.fork if number else owner)
            sessions.append(session)
            for call in stream.calls:
                self._session_of[call.order] = session
        self._sessions.extend(sessions)
        for source, target in barriers([stream.calls for stream in streams]):
            self._edge(source, target, Trigger.COMPLETION, Relation.REPLAY_BARRIER, 0.0)
        return sessions

    def _check_owner(self, agent: Agent, owner: Call, first: Call) -> None:
        if first.start_s < owner.start_s - EPSILON_S:
            entries = self._play.entries
            self._refuse(
                "subagent-before-owner",
                f"{entries[first.order].path}.t",
                f"subagent {agent.agent_id} starts at {first.start_s:g} s, before {entries[owner.order].path}, the "
                f"request that spawned it, at {owner.start_s:g} s",
                f"{first.start_s:g} s",
                f"at least {owner.start_s:g} s",
                self._request_id(owner.order),
                self._request_id(first.order),
            )

    def _sequences_and_spawns(self) -> None:
        for session in self._sessions:
            previous = session.calls[0]
            for call in session.calls[1:]:
                self._after_completion(previous, call, Relation.SEQUENCE)
                previous = call
            parent = session.parent
            if parent is None:
                continue
            first = session.calls[0]
            if first.start_s < parent.end_s:
                delay_ms = _milliseconds(first.start_s - parent.start_s)
                self._edge(parent, first, Trigger.DISPATCH, Relation.SPAWN, delay_ms)
            else:
                self._after_completion(parent, first, Relation.SPAWN)

    def _after_completion(self, source: Call, target: Call, relation: Relation) -> None:
        gap_s = target.start_s - source.end_s
        if gap_s < -EPSILON_S:
            # The two overlapped: the recorded wait was none.
            self._counts.overlaps_floored += 1
        self._edge(source, target, Trigger.COMPLETION, relation, _milliseconds(gap_s))

    def _joins(self, parents: Sequence[_Session], ends: list[tuple[Agent, list[_Session], float]]) -> None:
        """Let the parent's next request wait for its blocking subagents.

        Notes
        -----
        Wanted is the first request behind the marker that starts when the subagent has ended. Markers are visited from
        the last to the first, and for each parent stream a stack holds the requests that are later than all between the
        marker and them: the one wanted is found by bisection.
        """
        in_file = {id(session): sorted(session.calls, key=_order, reverse=True) for session in parents}
        passed = dict.fromkeys(in_file, 0)
        stacks: dict[int, list[tuple[float, int]]] = {number: [] for number in in_file}
        for agent, sessions, end_s in reversed(ends):
            owner_session = id(self._session_of[agent.owner])
            calls = in_file[owner_session]
            stack = stacks[owner_session]
            at = passed[owner_session]
            while at < len(calls) and calls[at].order >= agent.end:
                while stack and -stack[-1][0] <= calls[at].start_s:
                    stack.pop()
                stack.append((-calls[at].start_s, calls[at].order))
                at += 1
            passed[owner_session] = at
            # Starts fall along the stack, so their negatives rise; the last one that is late enough is the nearest.
            place = bisect_left(stack, (-(end_s - EPSILON_S), len(self._calls))) - 1
            if place < 0:
                continue
            target = self._calls[stack[place][1]]
            for session in sessions:
                source = session.calls[-1]
                delay_ms = _milliseconds(target.start_s - source.end_s)
                self._edge(source, target, Trigger.COMPLETION, Relation.JOIN, delay_ms)

    def _anchors(self) -> None:
        """Tie every stream that nothing leads to to the play's first request."""
        root = self._sessions[0].calls[0]
        for session in self._sessions[1:]:
            first = session.calls[0]
            if not self._edges[first.order]:
                delay_ms = _milliseconds(first.start_s - root.start_s)
                self._edge(root, first, Trigger.DISPATCH, Relation.SPAWN, delay_ms)

    def _edge(self, source: Call, target: Call, trigger: Trigger, relation: Relation, delay_ms: float) -> None:
        self._edges[target.order].setdefault((source.order, trigger, relation), delay_ms)

    def _request_id(self, place: int) -> str:
        entry = self._play.entries[place]
        name = f"{self._play.name}:outer:{entry.outer}"
        return f"{name}:inner:{entry.inner}" if entry.inner >= 0 else name

    def emit(self, builder: GraphBuilder, file: int, base: int) -> None:
        """Add the play's nodes and edges; its hash ids count from `base`."""
        play = self._play
        handle = builder.play(play.name, builder.play_count)
        ids = [self._request_id(place) for place in range(len(play.entries))]
        origin_s = min(call.start_s for call in self._calls)
        begin = builder.node_count
        for place, entry in enumerate(play.entries):
            call = self._calls[place]
            path = entry.path
            number = builder.node(
                request_id=ids[place],
                source_request_id=f"{play.label} {path}",
                play=handle,
                session_id=self._session_of[place].name,
                model=entry.model,
                input_length=entry.input_length,
                output_length=entry.output_length,
                not_before_ms=_milliseconds(call.start_s - origin_s),
                recorded_api_time_ms=None if entry.api_time is None else _milliseconds(entry.api_time),
                file=file,
                line=play.where.line,
                path=path,
            )
            # In the digest's order, so that the graph is the same as the one read back from its canonical form.
            edges = [
                (ids[source], trigger, relation, ms) for (source, trigger, relation), ms in self._edges[place].items()
            ]
            for source_id, trigger, relation, delay_ms in sorted(edges):
                builder.edge(number, source_id, relation, trigger, delay_ms)
        builder.assign_runs(begin, play.offsets, play.first + np.uint64(base), play.count)


def _order(call: Call) -> int:
    return call.order


def _milliseconds(seconds: float) -> float:
    """Return a recorded interval in milliseconds, to the nanosecond (halves up), and none for a negative one."""
    ns = max(seconds, 0.0) * NS_PER_S
    whole = math.floor(ns)
    return (whole + (ns - whole >= 0.5)) / NS_PER_MS


def _marks(head: Head) -> Confidence:
    if head.has("requests") or head.has("id", "hash_id_scope"):
        return Confidence.SHAPED
    return Confidence.NONE


READER: Final = Reader(
    name="weka",
    title="Weka / AgentX recordings",
    marks=_marks,
    read=read_weka,
    options=("block_size", "nested_timestamp_basis", "subagent_marker", "strict"),
)
