"""What the lines of a run say of the course of its plays: when each condition was met, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from playproof.checking.settings import Int64
from playproof.checking.verdict import Bool


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What the lines say of the course of plays.

    Attributes
    ----------
    dispatched, terminal : Int64, shape (occurrences,)
        Instants in ns, -1 without a line.
    start, failed_at, settled : Int64, shape (instances,)
        When each started at the earliest, when its first request failed, and when its last one ended, with nothing left
        to come; `AFTER_ALL` where that did not happen.
    released, ready : Int64, shape (occurrences,)
        When the last edge fired, and when each was due, moves of timers left out; `AFTER_ALL` where an edge never
        fired.
    advance : Int64, shape (occurrences,)
        By how much idle caps moved its timer.
    fired, due_after : per edge
        Whether it fired, and when it let its target start at the earliest.
    """

    dispatched: Int64
    terminal: Int64
    start: Int64
    failed_at: Int64
    settled: Int64
    released: Int64
    ready: Int64
    advance: Int64
    fired: Bool
    due_after: Int64
