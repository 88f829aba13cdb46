"""Dynamo request traces into the graph: agentic where the rows have an agent context, ordinary where none has.

Rows come from the server, in the order of completion, and rotate over shards. What belongs together is told by ids:
a session's requests follow one another, a session with a parent was spawned by it, and all that hangs together is one
play. Sequence hashes are of content, so blocks are shared wherever they are equal, in all plays of the corpus.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Relation, Source
from playproof_spec.units import NS_PER_MS

from playproof_lowering.dynamo_rows import AgentTool, DynamoRows, Session
from playproof_lowering.provenance import corpus_digest
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.source import SourceFile, read_through
from playproof_lowering.turns import Corpus, Turn, after, circular, sequence, spawn

__all__ = ["READER", "read_dynamo"]

BACKGROUND: Final = "background"


def read_dynamo(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read Dynamo request traces into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        Shards, in any order.
    findings : Findings
        Receives what is wrong.
    facts : dict
        Receives counts, the kind of trace, and the digest.
    block_size : int, optional
        What the rows must say.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no sound request.
    """
    rows = DynamoRows(findings, block_size)
    digests = [read_through(file, rows.read, findings, on_bytes) for file in files]
    rows.check_contexts()
    facts["input_digest"] = corpus_digest(digests)
    facts["input_kind"] = "agentic" if rows.agentic else "ordinary"
    corpus = Corpus(rows.block_size)
    if rows.agentic:
        for play_id, turns in _Plays(rows, findings).lower():
            corpus.play(play_id, turns)
    else:
        _add_ordinary(corpus, rows.turns())
    corpus.tell(facts, "dynamo_counts", rows.counts)
    if not corpus.holds_calls("no row is a finished request", Where(file=files[0].shown), findings):
        return None
    return corpus.finish(Source("dynamo", corpus_digest(digests)), facts, rows.ids.used)


def _add_ordinary(corpus: Corpus, turns: list[Turn]) -> None:
    """Add independent requests, each a play of one, on one clock that starts with the first of them."""
    origin_ns = min((turn.start_ns for turn in turns), default=0)
    for turn in sorted(turns, key=_by_time):
        corpus.play(turn.request_id, [turn], origin_ns)


def _by_time(turn: Turn) -> tuple[int, int, str]:
    return turn.start_ns, turn.end_ns, turn.request_id


@dataclass(slots=True, eq=False)
class _Member:
    """One session within its play."""

    session: Session
    turns: list[Turn]
    parent: _Member | None = None
    children: list[_Member] = field(default_factory=list)
    starts_ns: list[int] = field(default_factory=list)


class _Plays:
    """Ties sessions into plays."""

    def __init__(self, rows: DynamoRows, findings: Findings) -> None:
        self._rows = rows
        self._findings = findings
        self._counts: Counter[str] = rows.counts
        self._members = {
            name: _Member(session, sorted(session.turns, key=_by_time))
            for name, session in sorted(rows.sessions.items())
            if name and session.turns
        }
        self._place = {
            turn.request_id: (member, number)
            for member in self._members.values()
            for number, turn in enumerate(member.turns)
        }

    def lower(self) -> list[tuple[str, list[Turn]]]:
        """Return each play's id and turns, in document order: each session before those that it spawned."""
        for member in self._members.values():
            member.starts_ns = [turn.start_ns for turn in member.turns]
            self._counts["overlaps_floored"] += sequence(member.turns)
            _tool_waits(member)
        self._find_parents()
        self._tell_unrecorded()
        for member in self._members.values():
            if member.parent is not None:
                self._tie(member, member.parent)
        roots = sorted((m for m in self._members.values() if m.parent is None), key=_member_order)
        plays = []
        for root in roots:
            turns: list[Turn] = []
            waiting = [root]
            while waiting:
                member = waiting.pop()
                turns += member.turns
                waiting += sorted(member.children, key=_member_order, reverse=True)
            plays.append((root.session.name, turns))
        return plays

    def _find_parents(self) -> None:
        """Hang every session at its parent: the one its rows name, else the one whose tool ran it."""
        parents: dict[str, str] = {}
        for name, member in self._members.items():
            tools = self._tools(name)
            wanted = member.session.parent or (tools[0].session if tools else "")
            others = [tool.session for tool in tools if tool.session != wanted]
            if wanted and wanted not in self._members:
                message = f"session {name} names a parent of which no request is in the corpus"
                self._refuse("parent-unknown", message, member.session, wanted, "the id of a session with requests")
            elif others:
                message = "a tool record of another session spawned this one"
                self._refuse("parent-conflict", message, member.session, others[0], wanted)
            elif wanted:
                parents[name] = wanted
        for name in sorted(circular(parents)):
            session = self._members[name].session
            self._refuse("parent-conflict", "the session is its own ancestor", session, parents[name], "another parent")
            del parents[name]
        for name, wanted in parents.items():
            self._members[name].parent = self._members[wanted]
            self._members[wanted].children.append(self._members[name])

    def _tools(self, name: str) -> list[AgentTool]:
        """Return the tool records that ran a session, in the order in which they did."""
        return sorted(self._rows.tools.get(name, {}).values(), key=self._begun_ns)

    def _begun_ns(self, tool: AgentTool) -> int:
        """Return when a tool may have begun: with the request that asked for it, else as its record says."""
        member, number = self._place.get(tool.source, (None, 0))
        return tool.begun_ns if member is None else member.starts_ns[number]

    def _refuse(self, code: str, message: str, session: Session, found: str, wanted: str) -> None:
        where = Where(file=session.where.file, line=session.where.line, field=session.path, ids=(session.name,))
        self._findings.add(finding(code, message, where=where, found=found, wanted=wanted))

    def _tie(self, child: _Member, parent: _Member) -> None:
        """Make the spawn edge and the join of each run of a session: one, but where several tool records ran it."""
        tools: list[AgentTool | None] = [*self._tools(child.session.name)]
        begin = 0
        for tool, following in itertools.zip_longest(tools or [None], tools[1:]):
            end = len(child.turns)
            if following is not None:
                end = bisect_left(child.starts_ns, self._begun_ns(following), lo=begin)
            if begin < end:
                self._run(child.turns[begin:end], child, parent, tool)
            else:
                self._counts["tool_runs_without_requests"] += 1
            begin = end

    def _run(self, turns: list[Turn], child: _Member, parent: _Member, tool: AgentTool | None) -> None:
        """Tie one run of a session to the request that asked for it and to the one that saw its answer."""
        spawner = self._spawner(turns[0], child, parent, tool)
        if spawner is None:
            return
        self._counts["spawns"] += 1
        self._counts["overlaps_floored"] += spawn(parent.turns[spawner], turns[0])
        last = max(turns, key=lambda turn: (turn.end_ns, turn.start_ns, turn.request_id))
        if tool is not None and tool.consumer:
            consumer = self._stated(tool, tool.consumer, parent, "consumer_request_id")
            if consumer is not None and consumer <= spawner:
                first = parent.turns[spawner].request_id
                message = f"it is to see the answer, but does not come after {first}, which spawned the agent"
                self._refuse_tool(tool, "consumer_request_id", message, f"a request of the session after {first}")
                return
        elif tool is not None and tool.mode == BACKGROUND:
            consumer = None
        else:
            at = bisect_left(parent.starts_ns, last.end_ns, lo=spawner + 1)
            consumer = at if at < len(parent.turns) else None
        if consumer is not None:
            self._counts["joins"] += 1
            self._counts["overlaps_floored"] += after(last, parent.turns[consumer], Relation.JOIN)

    def _spawner(self, first: Turn, child: _Member, parent: _Member, tool: AgentTool | None) -> int | None:
        """Return the number of the parent's request that spawned a run."""
        if tool is not None and tool.source:
            return self._stated(tool, tool.source, parent, "source_request_id")
        number = bisect_right(parent.starts_ns, first.start_ns) - 1
        if number < 0:
            message = f"the session starts before every request of its parent {parent.session.name}"
            wanted = f"a request of {parent.session.name} before it"
            self._refuse("child-before-parent", message, child.session, first.request_id, wanted)
            return None
        return number

    def _stated(self, tool: AgentTool, request_id: str, parent: _Member, name: str) -> int | None:
        known = self._place.get(request_id)
        if known is not None and known[0] is parent:
            return known[1]
        message = f"no request of session {parent.session.name} has this id"
        self._refuse_tool(tool, name, message, "a request of the session that ran the tool")
        return None

    def _refuse_tool(self, tool: AgentTool, name: str, message: str, wanted: str) -> None:
        where = Where(file=tool.where.file, line=tool.where.line, field=f"{tool.path}.{name}", ids=(tool.child,))
        found = tool.source if name == "source_request_id" else tool.consumer
        self._findings.add(finding("tool-link-unknown", message, where=where, found=found, wanted=wanted))

    def _tell_unrecorded(self) -> None:
        """Tell how many agents tool records name that have no request in the corpus."""
        absent = [next(iter(tools.values())) for name, tools in self._rows.tools.items() if name not in self._members]
        if absent:
            self._counts["agents_unrecorded"] = len(absent)
            message = f"no requests in the corpus are those of {len(absent)} of the agents spawned"
            where = Where(file=absent[0].where.file, line=absent[0].where.line, ids=(absent[0].child,))
            self._findings.add(finding("agent-unrecorded", message, where=where, found=len(absent)))


def _member_order(member: _Member) -> tuple[int, str]:
    return member.turns[0].start_ns, member.session.name


def _tool_waits(member: _Member) -> None:
    """Give each request the tool time within the gap before it; windows that overlap count once."""
    merged: list[list[int]] = []
    for begin_ns, end_ns in sorted(member.session.tool_windows):
        if merged and begin_ns <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end_ns)
        else:
            merged.append([begin_ns, end_ns])
    at = 0
    reached_ns = member.turns[0].end_ns
    for turn in member.turns[1:]:
        waited_ns = 0
        while at < len(merged) and merged[at][1] <= reached_ns:
            at += 1
        place = at
        while place < len(merged) and merged[place][0] < turn.start_ns:
            waited_ns += max(min(merged[place][1], turn.start_ns) - max(merged[place][0], reached_ns), 0)
            place += 1
        at = max(at, place - 1)
        turn.tool_wait_ms = waited_ns / NS_PER_MS
        reached_ns = max(reached_ns, turn.end_ns)


def _marks(head: Head) -> Confidence:
    if head.text("schema").startswith(("dynamo.request.trace", "dynamo.agent.trace")):
        return Confidence.SIGNED
    return Confidence.SHAPED if head.has("timestamp", "event") else Confidence.NONE


READER: Final = Reader(name="dynamo", title="Dynamo request traces", marks=_marks, read=read_dynamo)
