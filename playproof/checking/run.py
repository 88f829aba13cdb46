"""One run under the checker: its trace, its settings, its plays, its lines, and which line is of which request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from playproof_spec.findings import Finding, Where, finding, shown
from playproof_spec.graph import Graph

from playproof.checking.lines import CANCELED, COMPLETED, Bool, Columns
from playproof.checking.plays import Plays
from playproof.checking.settings import NS_PER_MS, Deployment, Int64, Load
from playproof.checking.verdict import Tally

# Later than any instant of a clock.
AFTER_ALL = 2**62
# So late that nothing can be said of what came then; sums of it and of two instants fit 64 bits.
HEARD_MOST_NS = 1e17


@dataclass(frozen=True, slots=True)
class Online:
    """What is known of an online run besides its lines.

    Attributes
    ----------
    mock : bool or None
        Whether mock workers served it; None where no report says so.
    scale : float or None
        Seconds of the replay in one of wall time.
    heard_ns : int
        By how much the driver heard at most later of a request's end than its last byte came, in the replay's time;
        `AFTER_ALL` where nobody says.
    partial : bool
        Whether it may have been ended early.
    """

    mock: bool | None
    scale: float | None
    heard_ns: int
    partial: bool


@dataclass(slots=True, eq=False)
class Run:
    """What the rules look at.

    Attributes
    ----------
    graph : Graph
    plays : Plays
    lines : Columns
        The lines that are of an occurrence, and of no earlier line's.
    occurrence : Int64, shape (rows,)
        Of each line.
    row : Int64, shape (occurrences,)
        The line of each, -1 for none.
    load : Load
    deployment : Deployment or None
        None where it is not known: the servers of an online run.
    report : mapping or None
    online : Online or None
        None offline.
    may_cancel : bool
        Whether clients may have given up on requests.
    present : Bool, shape (occurrences,)
        Whether each has a line.
    node, instance : Int64, shape (rows,)
        Of each line: its node of the trace, its play instance.
    completed, canceled : Bool, shape (rows,)
    input, asked : Int64, shape (rows,)
        Prompt tokens as the trace says; tokens that each may generate, which is what it asks for as far as the context
        reaches.
    """

    graph: Graph
    plays: Plays
    lines: Columns
    occurrence: Int64
    row: Int64
    load: Load
    deployment: Deployment | None
    report: Mapping[str, Any] | None
    online: Online | None
    may_cancel: bool
    tally: Tally

    # Most rules look at these.
    present: Bool = field(init=False)
    node: Int64 = field(init=False)
    instance: Int64 = field(init=False)
    completed: Bool = field(init=False)
    canceled: Bool = field(init=False)
    input: Int64 = field(init=False)
    asked: Int64 = field(init=False)

    def __post_init__(self) -> None:
        self.present = self.row >= 0
        self.node = self.plays.node[self.occurrence]
        self.instance = self.plays.instance[self.occurrence]
        self.completed = np.equal(self.lines.status, COMPLETED)
        self.canceled = np.equal(self.lines.status, CANCELED)
        self.input = self.graph.input_length[self.node]
        self.asked = self.graph.output_length[self.node]
        if self.deployment is not None:
            self.asked = np.minimum(self.asked, np.maximum(self.deployment.context - self.input, 0))

    def of_occurrences(self, column: Int64) -> Int64:
        """Return a column of the lines by occurrence, -1 where it has none."""
        if len(column) == 0:
            return np.full(len(self.row), -1, np.int64)
        return np.where(self.present, column[self.row], -1)

    # Kinds of runs ----------------------------------------------------------------------------------------------------

    @property
    def controlled(self) -> bool:
        """Whether it ran under the run controls."""
        return self.load.seed is not None

    @property
    def ordinary(self) -> bool:
        """Whether the trace is of sessions instead of agents' plays."""
        return self.graph.facts.get("input_kind") == "ordinary"

    @property
    def stopped(self) -> bool:
        """Whether it may have ended before its plays did, other than by a profile's cutoff."""
        return self.load.stop_ns >= 0 or (self.online is not None and self.online.partial)

    # Findings ---------------------------------------------------------------------------------------------------------

    def at(self, row: int, field: str = "") -> Where:
        """Return where a line stands."""
        lines = self.lines
        ids = (lines.text["request_id"][row],)
        return Where(file=self.tally.lines_file, line=int(lines.line[row]), field=field, ids=ids)

    def told(self, code: str, row: int, field: str, message: str, found: object, wanted: object) -> Finding:
        """Make a finding on a line."""
        return finding(code, message, where=self.at(row, field), found=found, wanted=shown(wanted))

    def name(self, occurrence: int) -> str:
        """Return the request id of an occurrence."""
        return self.graph.request_ids[int(self.plays.node[occurrence])]

    def report_at(self, field: str, ids: tuple[str, ...] = ()) -> Where:
        """Return where a field of the report stands."""
        return Where(file=self.tally.report_file, field=field, ids=ids)


def in_ms(time_ns: int) -> str:
    """Return an instant for a finding.

    Examples
    --------
    >>> in_ms(1_500_000), in_ms(-1)
    ('1.5 ms', 'never')
    """
    return "never" if time_ns < 0 else f"{time_ns / NS_PER_MS!r} ms"


class _OnlineBlock(msgspec.Struct):
    """What of a report's `online` is used."""

    mock_workers: bool
    time_scale: float
    partial: bool
    hearing_lateness: Mapping[str, Any]


def online_of(lines: Columns, report: Mapping[str, Any] | None, tally: Tally) -> Online | None:
    """Return what is known of an online run, None offline."""
    block = report.get("online") if report is not None else None
    if block is None:
        return Online(None, None, AFTER_ALL, True) if bool(lines.online.any()) else None
    try:
        known = msgspec.convert(block, _OnlineBlock)
        heard = known.hearing_lateness.get("max_ms")
        late_ms = msgspec.convert(heard, float | None)
        usable = 0.0 < known.time_scale < 1e9 and (late_ms is None or 0.0 <= late_ms < 1e12)
    except (msgspec.ValidationError, RecursionError):
        usable = False
    if not usable:
        where = Where(file=tally.report_file, field="online")
        tally.tell("run-figure", finding("run-figure", "the block cannot be read", where=where))
        return Online(None, None, AFTER_ALL, True)
    heard_ns = int(min((late_ms or 0.0) * NS_PER_MS * known.time_scale, HEARD_MOST_NS)) + 1000
    return Online(known.mock_workers, known.time_scale, heard_ns, known.partial)
