"""OpenTelemetry GenAI spans into the graph: calls by their spans, agents by the spans around them.

A trace is a play, or all traces of one conversation are. Every agent's span is a scope; what runs in it are calls and
the scopes within it. Within a scope a call or an agent waits for those that had ended when it began and that nothing
else which had ended waited for in turn: the frontier. What overlaps runs side by side, as it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from playproof_spec.catalogue import Kind, Severity
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Relation, Source

from playproof_lowering.chains import BlockIds, tell_cut, too_many_blocks
from playproof_lowering.conversation import DEFAULT_BLOCK_SIZE, Conversation
from playproof_lowering.otel_spans import AGENT, CALL, INPUT_WITHOUT_CACHED, OtelSpans, Span
from playproof_lowering.provenance import read_corpus
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.source import SourceFile
from playproof_lowering.turns import Corpus, Turn, after

__all__ = ["READER", "read_otel"]

# What one start waits for; more calls than that side by side, before as many, would make edges by the square.
MAX_FRONTIER: Final = 256
# Agents within agents.
MAX_DEPTH: Final = 64


@dataclass(slots=True, eq=False)
class _Item:
    """A call of a scope, or a scope within it.

    Attributes
    ----------
    before : list of _Item
        What it waits for, in the order in which they ended.
    previous : _Item or None
        The call of the scope that had ended last when it began.
    """

    start_ns: int
    end_ns: int
    name: str
    call: Span | None = None
    scope: _Scope | None = None
    turn: Turn | None = None
    before: list[_Item] = field(default_factory=list)
    previous: _Item | None = None


@dataclass(slots=True, eq=False)
class _Scope:
    """An agent, or what of a play is in no agent's span.

    Attributes
    ----------
    items : list of _Item
        In the order in which they began.
    last : list of _Item
        Those that nothing in the scope waits for.
    """

    name: str
    items: list[_Item] = field(default_factory=list)
    last: list[_Item] = field(default_factory=list)

    def entries(self) -> list[Turn]:
        """Return the calls with which the scope begins."""
        return _turns_of(self, lambda scope: [item for item in scope.items if not item.before])

    def exits(self) -> list[Turn]:
        """Return the calls with which the scope ends."""
        return _turns_of(self, lambda scope: scope.last)


def _turns_of(scope: _Scope, which: Callable[[_Scope], list[_Item]]) -> list[Turn]:
    """Return the calls of some items of a scope, and of the same ones of those within it; at most 256."""
    turns: list[Turn] = []
    waiting = [scope]
    while waiting and len(turns) < MAX_FRONTIER:
        for item in which(waiting.pop()):
            if item.turn is not None:
                turns.append(item.turn)
            elif item.scope is not None:
                waiting.append(item.scope)
    return turns[:MAX_FRONTIER]


def read_otel(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read OpenTelemetry GenAI spans into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        OTLP JSON, in any order; the spans of a trace may lie in several.
    findings : Findings
        Receives what is wrong or missing.
    facts : dict
        Receives counts and the digest.
    block_size : int, optional
        Tokens a hash id stands for, 64 by default: spans have none.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no call.
    """
    size = block_size or DEFAULT_BLOCK_SIZE
    spans = OtelSpans(findings)
    source = read_corpus(READER.name, size, files, spans.read, findings, facts, on_bytes)
    return _Lowering(spans, findings, size, Where(file=files[0].shown)).finish(source, facts)


class _Lowering:
    """Turns spans into plays."""

    def __init__(self, spans: OtelSpans, findings: Findings, block_size: int, where: Where) -> None:
        self._spans = spans.spans
        self._counts = spans.counts
        self._findings = findings
        self._block_size = block_size
        self._where = where
        self._ids = BlockIds()
        # The nearest span around each that is a call or an agent.
        self._around: dict[tuple[str, str], Span | None] = {}

    def finish(self, source: Source, facts: dict[str, object]) -> Graph | None:
        """Make the graph."""
        calls = self._calls()
        plays = self._plays(sorted(calls, key=_order))
        corpus = Corpus(self._block_size)
        for name, scopes in sorted(plays.items(), key=lambda play: (_begins_ns(play[1][play[0]]), play[0])):
            turns: list[Turn] = []
            self._lower(scopes[name], turns)
            corpus.play(name, turns)
        corpus.tell(facts, "otel_counts", self._counts)
        facts["recorded_cached_tokens"] = self._counts["cached_tokens_recorded"]
        tell_cut(self._ids, self._where, self._findings)
        if not corpus.holds_calls("no span is a call of a model with token counts", self._where, self._findings):
            return None
        if too_many_blocks(self._ids.used + self._counts["requests"], self._where, self._findings):
            return None
        return corpus.finish(source, facts, self._ids.used)

    def _calls(self) -> list[Span]:
        """Return the calls that have lengths, each told once: of a call within a call, the inner one."""
        outer = set()
        missing: list[Span] = []
        calls = []
        for span in self._spans.values():
            if span.kind != CALL:
                continue
            if span.input_length <= 0 or span.output_length < 0:
                missing.append(span)
                continue
            calls.append(span)
            around = self._nearest(span)
            if around is not None and around.kind == CALL:
                outer.add(around.key)
        missing = [span for span in missing if span.key not in outer]
        if missing:
            self._counts["calls_without_usage"] += len(missing)
            first = min(missing, key=lambda span: (span.where.file, span.where.line, span.path))
            name = "gen_ai.usage.input_tokens" if first.input_length <= 0 else "gen_ai.usage.output_tokens"
            message = f"{len(missing)} calls are left out: their spans do not tell {name}"
            at = Where(
                file=first.where.file, line=first.where.line, field=f"{first.path}.attributes", ids=(first.key[1],)
            )
            self._findings.add(finding("call-without-usage", message, where=at, found="nothing", wanted=name))
        self._counts["calls_told_twice"] += sum(span.key in outer for span in calls)
        return [span for span in calls if span.key not in outer]

    def _nearest(self, span: Span) -> Span | None:
        """Return the nearest span around one that is a call or an agent."""
        walked = []
        at: Span | None = span
        found: Span | None = None
        while at is not None:
            if at.key in self._around:
                found = self._around[at.key]
                break
            walked.append(at.key)
            # Until it is known, so that a circle of parents ends.
            self._around[at.key] = None
            at = self._spans.get(at.parent) if at.parent is not None else None
            if at is not None and at.kind in (CALL, AGENT):
                found = at
                break
        for key in walked:
            self._around[key] = found
        return found

    def _plays(self, calls: list[Span]) -> dict[str, dict[str, _Scope]]:
        """Return the scopes of each play by name; the play's own is under the play's."""
        around = [(call, self._agents(call)) for call in calls]
        outermost: dict[str, set[str]] = {}
        for call, agents in around:
            outermost.setdefault(_play(call, agents), set()).add(agents[-1].agent if agents else "")
        plays: dict[str, dict[str, _Scope]] = {}
        for call, agents in around:
            play = _play(call, agents)
            scopes = plays.setdefault(play, {play: _Scope(play)})
            scope = scopes[play]
            # One outermost agent is the play's own conversation, which other traces may go on with; several are not.
            for agent in reversed(agents[:-1] if len(outermost[play]) == 1 else agents):
                name = f"{play}:{agent.key[1]}"
                if name not in scopes:
                    scopes[name] = _Scope(name)
                    scope.items.append(_Item(agent.start_ns, agent.end_ns, name, scope=scopes[name]))
                scope = scopes[name]
            scope.items.append(_Item(call.start_ns, call.end_ns, call.key[1], call=call))
        return plays

    def _agents(self, call: Span) -> list[Span]:
        """Return the agents around a call, the innermost first."""
        agents: list[Span] = []
        seen = {call.key}
        around = self._nearest(call)
        while around is not None and around.key not in seen and len(agents) < MAX_DEPTH:
            seen.add(around.key)
            if around.kind == AGENT:
                agents.append(around)
            around = self._nearest(around)
        return agents

    def _lower(self, scope: _Scope, turns: list[Turn]) -> None:
        """Make the calls of a scope and of those within it, and tie them."""
        waiting = [scope]
        made = []
        while waiting:
            each = waiting.pop()
            made.append(each)
            _narrow(each)
            each.items.sort(key=lambda item: (item.start_ns, item.end_ns, item.name))
            self._frontier(each)
            talk = Conversation(each.name, self._ids, self._block_size, self._where.file)
            for item in each.items:
                if item.call is not None:
                    item.turn = self._call(item, item.call, talk)
            turns += talk.turns
            waiting += [item.scope for item in reversed(each.items) if item.scope is not None]
        for each in made:
            for item in each.items:
                self._tie(item)

    def _call(self, item: _Item, span: Span, talk: Conversation) -> Turn:
        """Make a call; its prompt goes on from the longest of the calls it follows."""
        talk.file = span.where.file
        self._counts["cached_tokens_recorded"] += span.cached
        followed = [earlier.turn for earlier in (*item.before, item.previous) if earlier is not None and earlier.turn]
        longest = max(followed, key=lambda turn: turn.input_length, default=None)
        if longest is None:
            talk.chain.reset()
        else:
            talk.chain.resume(longest.runs, longest.input_length)
        return talk.call(
            label=span.key[1],
            model=span.model,
            input_length=span.input_length,
            cached=span.cached,
            output_length=span.output_length,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            line=span.where.line,
        )

    def _frontier(self, scope: _Scope) -> None:
        """Find what each item of a scope waits for.

        Notes
        -----
        A sweep over starts and ends: items × log(items), plus the edges, of which an item has 256 at most.
        """
        ends = sorted(scope.items, key=lambda item: (item.end_ns, item.start_ns, item.name))
        frontier: dict[int, _Item] = {}
        previous: _Item | None = None
        at = 0
        for item in scope.items:
            while at < len(ends) and ends[at].end_ns <= item.start_ns and ends[at].start_ns < item.start_ns:
                self._ended(ends[at], frontier)
                previous = ends[at] if ends[at].call is not None else previous
                at += 1
            item.previous = previous
            item.before = list(frontier.values())[-MAX_FRONTIER:]
            self._counts["waits_left_out"] += max(len(frontier) - MAX_FRONTIER, 0)
        for ended in ends[at:]:
            self._ended(ended, frontier)
        scope.last = list(frontier.values())

    @staticmethod
    def _ended(item: _Item, frontier: dict[int, _Item]) -> None:
        """Let an item that ended stand for those it had waited for."""
        for earlier in item.before:
            frontier.pop(id(earlier), None)
        frontier[id(item)] = item

    def _tie(self, item: _Item) -> None:
        """Make the edges into a call, or into those with which a scope begins."""
        targets = [item.turn] if item.turn is not None else item.scope.entries() if item.scope is not None else []
        earlier_calls = any(earlier.turn is not None for earlier in item.before)
        if item.turn is not None and item.previous is not None and not earlier_calls:
            # It waits for agents that wait for this one; the conversation still goes on from it.
            self._edges([item.previous], targets, Relation.SEQUENCE)
        for place, earlier in enumerate(item.before):
            relation = _relation(earlier, item, place == len(item.before) - 1)
            self._edges([earlier], targets, relation)

    def _edges(self, items: list[_Item], targets: list[Turn], relation: Relation) -> None:
        for item in items:
            sources = [item.turn] if item.turn is not None else item.scope.exits() if item.scope is not None else []
            for source in sources:
                for target in targets:
                    self._counts[_COUNTED[relation]] += 1
                    self._counts["overlaps_floored"] += after(source, target, relation)


_COUNTED: Final = {Relation.SEQUENCE: "sequences", Relation.SPAWN: "spawns", Relation.JOIN: "joins"}


def _relation(earlier: _Item, item: _Item, latest: bool) -> Relation:
    if earlier.turn is not None and item.scope is not None:
        return Relation.SPAWN
    if earlier.scope is not None and item.turn is not None:
        return Relation.JOIN
    return Relation.SEQUENCE if latest else Relation.JOIN


def _narrow(scope: _Scope) -> None:
    """Let the scopes within one run from their first call to their last: an agent's span has work before and behind."""
    for item in scope.items:
        calls = list(_calls_in(item.scope)) if item.scope is not None else []
        if calls:
            item.start_ns = min(call.start_ns for call in calls)
            item.end_ns = max(call.end_ns for call in calls)


def _calls_in(scope: _Scope) -> Iterator[Span]:
    waiting = [scope]
    while waiting:
        for item in waiting.pop().items:
            if item.call is not None:
                yield item.call
            elif item.scope is not None:
                waiting.append(item.scope)


def _play(call: Span, agents: list[Span]) -> str:
    """Return the play of a call: the conversation that it, or an agent around it, states, else its trace."""
    return next((span.conversation for span in (call, *agents) if span.conversation), call.key[0])


def _begins_ns(scope: _Scope) -> int:
    return min(call.start_ns for call in _calls_in(scope))


def _order(span: Span) -> tuple[int, int, tuple[str, str]]:
    return span.start_ns, span.end_ns, span.key


def _marks(head: Head) -> Confidence:
    if head.has_any("resourceSpans", "resourceLogs", "resourceMetrics"):
        return Confidence.SIGNED
    return Confidence.NONE


READER: Final = Reader(
    name="otel-genai",
    title="OpenTelemetry GenAI spans (OTLP JSON)",
    marks=_marks,
    read=read_otel,
    kinds=(
        Kind(
            INPUT_WITHOUT_CACHED,
            Severity.WARNING,
            "input tokens without the cached ones",
            "By the conventions the input has the cached tokens in it. Here it has fewer, so the recorder left them"
            " out, and they are added: what was read from the cache and what was written to it.",
            "Record with an instrumentation that follows the conventions; nothing needs to be done for this trace.",
            "`gen_ai.usage.input_tokens` 4 with `gen_ai.usage.cache_read.input_tokens` 120000",
        ),
    ),
)
