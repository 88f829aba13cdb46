"""Recorded calls of conversations, and the edges between them: what the session formats have in common.

A :class:`Turn` is one LLM call with its recorded instants. Its edges are made from those: the delay of an edge is the
recorded gap between the event and the start, floored at zero where the two overlapped, which is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from playproof_spec.graph import Observed, Relation, Trigger
from playproof_spec.units import NS_PER_MS

from playproof_lowering.builder import GraphBuilder
from playproof_lowering.chains import PromptBlocks, Runs

__all__ = ["Turn", "after", "circular", "emit", "instant_ns", "sequence", "spawn"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def instant_ns(text: str) -> int | None:
    """Return an ISO 8601 instant in nanoseconds since 1970, None for what is none.

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
    try:
        return (moment - _EPOCH) // _MICROSECOND * 1000
    except OverflowError:
        return None


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


def emit(
    builder: GraphBuilder,
    blocks: PromptBlocks,
    play_id: str,
    turns: Sequence[Turn],
    handles: dict[str, int],
    origin_ns: int | None = None,
) -> None:
    """Add the turns of one play, in document order.

    Parameters
    ----------
    handles : dict
        The builder's files by name; new ones are added.
    origin_ns : int, optional
        Where the play's clock starts; with its earliest turn by default.
    """
    play = builder.play(play_id, builder.play_count)
    if origin_ns is None:
        origin_ns = min(turn.start_ns for turn in turns)
    for turn in turns:
        if turn.file not in handles:
            handles[turn.file] = builder.file(turn.file)
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
            file=handles[turn.file],
            line=turn.line,
            observed=Observed(turn.estimated, turn.tool_wait_ms) if turn.estimated or turn.tool_wait_ms else None,
        )
        # In the digest's order, so that the graph is the same as the one read back from its canonical form.
        for (source_id, trigger, relation), delay_ms in sorted(turn.edges.items()):
            builder.edge(number, source_id, relation, trigger, delay_ms)
        blocks.add(turn.runs, turn.private)
