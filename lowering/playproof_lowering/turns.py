"""Recorded calls of conversations, and the edges between them: what the session formats have in common.

A :class:`Turn` is one LLM call with its recorded instants. Its edges are made from those: the delay of an edge is the
recorded gap between the event and the start, floored at zero where the two overlapped, which is counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from playproof_spec.findings import Finding, Findings, Where, finding
from playproof_spec.graph import Graph, Observed, Relation, Source, Trigger
from playproof_spec.units import NS_PER_MS

from playproof_lowering.builder import GraphBuilder
from playproof_lowering.chains import PromptBlocks, Runs
from playproof_lowering.wire import Problem, report

__all__ = [
    "Corpus",
    "Turn",
    "after",
    "begun_by",
    "circular",
    "clock_went_back",
    "instant_ns",
    "recorded_ns",
    "sequence",
    "spawn",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def instant_ns(text: str) -> int | None:
    """Return an ISO 8601 instant in nanoseconds since 1970, None for what is none or lies before.

    Any offset is converted; an instant without one is UTC.

    Examples
    --------
    >>> instant_ns("1970-01-01T02:00:01.5+02:00")
    1500000000
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    at_ns = (moment - _EPOCH) // _MICROSECOND * 1000
    return at_ns if at_ns >= 0 else None


def recorded_ns(text: str | None, path: str, where: Where, findings: Findings) -> int | None:
    """Return the instant at `path` of a record, None after a finding when there is none that can be read."""
    at_ns = None if text is None else instant_ns(text)
    if at_ns is None:
        code = "field-missing" if text is None else "time-unreadable"
        report(findings, [Problem(code, path, "no instant can be read", text or "nothing", "ISO 8601")], where)
    return at_ns


def clock_went_back(file: str, line: int, count: int) -> Finding:
    """Return the finding that `count` instants of a file, one at `line` first, lie before what they follow."""
    message = f"{count} instants lie before what they follow"
    return finding("clock-went-back", message, where=Where(file=file, line=line), found=count)


@dataclass(slots=True, eq=False)
class Turn:
    """One call.

    Attributes
    ----------
    request_id, label, session, model : str
        `label` is the id that the recording's author knows.
    input_length, output_length : int
        Tokens.
    start_ns, end_ns : int
        Recorded instants since 1970.
    file : str
        As shown to people.
    line : int
    runs, private
        Hash ids, as in :class:`~playproof_lowering.chains.PromptBlocks`.
    timed : bool
        Its service time is a recorded one.
    estimated : tuple[str, ...]
    tool_wait_ms : float
    edges : dict
        Delay in ms by (source id, trigger, relation).
    """

    request_id: str
    label: str
    session: str
    model: str
    input_length: int
    output_length: int
    start_ns: int
    end_ns: int
    file: str
    line: int
    runs: Runs = field(default_factory=list)
    private: int = 0
    timed: bool = True
    estimated: tuple[str, ...] = ()
    tool_wait_ms: float = 0.0
    edges: dict[tuple[str, Trigger, Relation], float] = field(default_factory=dict)


def after(source: Turn, target: Turn, relation: Relation) -> bool:
    """Let `target` follow the completion of `source`; tell whether the two overlapped."""
    gap_ns = target.start_ns - source.end_ns
    key = (source.request_id, Trigger.COMPLETION, relation)
    target.edges.setdefault(key, max(gap_ns, 0) / NS_PER_MS)
    return gap_ns < 0


def begun_by(turn: Turn, target: Turn) -> bool:
    """Tell whether what `target` answers may hold what `turn` said: it had begun, or was over at once.

    A turn that begins with the instant at which `target` starts says nothing that `target` answers, but for one that
    took no time.
    """
    return turn.start_ns < target.start_ns or turn.end_ns <= target.start_ns


def spawn(parent: Turn, child: Turn) -> bool:
    """Let `parent` spawn `child`: at its dispatch when the child started before its end.

    Returns whether the child was recorded as starting before its parent.
    """
    if child.start_ns >= parent.end_ns:
        return after(parent, child, Relation.SPAWN)
    gap_ns = child.start_ns - parent.start_ns
    child.edges.setdefault((parent.request_id, Trigger.DISPATCH, Relation.SPAWN), max(gap_ns, 0) / NS_PER_MS)
    return gap_ns < 0


def sequence(turns: Sequence[Turn]) -> int:
    """Let each turn follow the one before it; return how many pairs overlapped."""
    pairs = itertools.pairwise(turns)
    return sum(after(source, target, Relation.SEQUENCE) for source, target in pairs)


def circular(parents: Mapping[str, str]) -> set[str]:
    """Return the names whose link to their parent has to go, so that no circle is left.

    Examples
    --------
    >>> circular({"child": "parent", "a": "b", "b": "c", "c": "a"})
    {'c'}

    Notes
    -----
    Linear: each name is walked over once. Names are taken in the order given.
    """
    cut: set[str] = set()
    seen: dict[str, str] = {}
    for start in parents:
        name = start
        while name in parents and name not in seen:
            seen[name] = start
            if seen.get(parents[name]) == start:
                cut.add(name)
                break
            name = parents[name]
    return cut


class Corpus:
    """Plays of turns on their way into one graph.

    Parameters
    ----------
    block_size : int
        Tokens a hash id stands for.
    """

    __slots__ = ("_blocks", "_builder", "_files")

    def __init__(self, block_size: int) -> None:
        self._builder = GraphBuilder(block_size)
        self._blocks = PromptBlocks()
        self._files: dict[str, int] = {}

    def play(self, play_id: str, turns: Sequence[Turn], origin_ns: int | None = None) -> None:
        """Add a play by its turns, in document order; its clock starts at `origin_ns`, or with its earliest turn."""
        builder, files = self._builder, self._files
        play = builder.play(play_id, builder.play_count)
        if origin_ns is None:
            origin_ns = min(turn.start_ns for turn in turns)
        for turn in turns:
            if turn.file not in files:
                files[turn.file] = builder.file(turn.file)
            number = builder.node(
                request_id=turn.request_id,
                source_request_id=turn.label,
                play=play,
                session_id=turn.session,
                model=turn.model,
                input_length=turn.input_length,
                output_length=turn.output_length,
                not_before_ms=(turn.start_ns - origin_ns) / NS_PER_MS,
                recorded_api_time_ms=(turn.end_ns - turn.start_ns) / NS_PER_MS if turn.timed else None,
                file=files[turn.file],
                line=turn.line,
                observed=Observed(turn.estimated, turn.tool_wait_ms) if turn.estimated or turn.tool_wait_ms else None,
            )
            # In the digest's order, so that the graph is the same as the one read back from its canonical form.
            for (source_id, trigger, relation), delay_ms in sorted(turn.edges.items()):
                builder.edge(number, source_id, relation, trigger, delay_ms)
            self._blocks.add(turn.runs, turn.private)

    def tell(self, facts: dict[str, object], name: str, counts: Counter[str]) -> None:
        """Put the counts of what was read into `facts`, with those of the plays."""
        counts["plays"] = self._builder.play_count
        counts["requests"] = self._builder.node_count
        facts[name] = dict(sorted(counts.items()))

    def holds_calls(self, message: str, where: Where, findings: Findings) -> bool:
        """Tell whether there is a call; that there is none is a finding, unless errors have said why."""
        if self._builder.node_count == 0 and not findings.errors:
            findings.add(finding("corpus-without-calls", message, where=where, found="none"))
        return self._builder.node_count > 0

    def finish(self, source: Source, facts: dict[str, object], shared: int) -> Graph:
        """Return the graph; the hash ids that turns share are below `shared`."""
        self._blocks.assign(self._builder, shared)
        return self._builder.finish(source, facts)
