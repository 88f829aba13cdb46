"""The driver's rules: edges, delays, floors, lanes, and what a failure stops.

Everything is computed from the instants of the lines themselves: when each condition of a request was met, and so when
the request had to start. Online, where clocks run, a start may be later by what the run itself says of its lateness.
"""

from __future__ import annotations

import numpy as np
from playproof_spec.findings import Finding, finding
from playproof_spec.graph import Trigger

from playproof.checking import profile
from playproof.checking.course import Course
from playproof.checking.run import AFTER_ALL, HEARD_MOST_NS, Run, in_ms
from playproof.checking.settings import NS_PER_MS, Int64


def course_of(run: Run) -> Course:
    """Return what the lines say of the course of plays."""
    plays = run.plays
    dispatched = run.of_occurrences(run.lines["dispatched_at_ms"])
    terminal = run.of_occurrences(run.lines["terminal_time_ms"])
    failed_at, settled = _ends(run, terminal)
    start = _starts(run, settled)
    completed = np.zeros(plays.count, np.bool_)
    completed[run.occurrence[run.completed]] = True
    at_end = run.graph.edge_trigger[plays.number] == Trigger.COMPLETION
    fired = np.where(at_end, completed[plays.source], dispatched[plays.source] >= 0)
    event = np.where(at_end, terminal[plays.source], (dispatched - _decided_before(run))[plays.source])
    due_after = event + plays.delay
    released = start[plays.instance].copy()
    np.maximum.at(released, plays.target, event)
    ready = start[plays.instance] + plays.floor
    np.maximum.at(ready, plays.target, due_after)
    held = np.zeros(plays.count, np.bool_)
    held[plays.target[~fired]] = True
    ready = np.where(held | (start[plays.instance] == AFTER_ALL), AFTER_ALL, ready)
    return Course(
        dispatched=dispatched,
        terminal=terminal,
        start=start,
        failed_at=failed_at,
        settled=settled,
        released=released,
        ready=ready,
        advance=profile.advances(run, released, ready, dispatched, failed_at),
        fired=fired,
        due_after=due_after,
    )


def _ends(run: Run, terminal: Int64) -> tuple[Int64, Int64]:
    """Return when each instance failed, and when it settled."""
    count = len(run.plays.play)
    failed_at = np.full(count, AFTER_ALL)
    bad = ~run.completed
    np.minimum.at(failed_at, run.instance[bad], run.lines["terminal_time_ms"][bad])
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, run.plays.instance, terminal)
    absent = np.bincount(run.plays.instance[~run.present], minlength=count)
    # Of a run that may have been cut short, a play with requests left need not be over; of any other it is.
    open_end = (absent > 0) & (failed_at == AFTER_ALL) & (run.stopped or run.load.profile is not None)
    return failed_at, np.where((last < 0) | open_end, AFTER_ALL, last)


def _starts(run: Run, settled: Int64) -> Int64:
    """Return when each instance started: at 0, or as the next one when a lane was free."""
    plays, lanes = run.plays, run.load.lanes
    start = np.zeros(len(plays.play), np.int64)
    if run.controlled:
        order = np.lexsort((plays.ordinal, plays.lane))
        follows = plays.lane[order][1:] == plays.lane[order][:-1]
        start[order[1:]] = np.where(follows, settled[order[:-1]], 0)
    elif lanes:
        # One queue of plays: the first whose lane is free takes the next, whichever lane it is.
        start[lanes:] = np.sort(settled)[: max(len(start) - lanes, 0)]
    return start


def _decided_before(run: Run) -> Int64:
    """Return by how much a dispatch was decided before it was made, at most, by occurrence; 0 offline."""
    if run.online is None:
        return np.zeros(run.plays.count, np.int64)
    return np.maximum(run.of_occurrences(late_ns(run)), 0)


def late_ns(run: Run) -> Int64:
    """Return by how much each line's request was sent late at most, ns; all that is possible where nobody says."""
    if run.online is None:
        return np.zeros(len(run.lines), np.int64)
    if run.online.scale is None:
        return run.lines["dispatched_at_ms"].copy()
    # What was given up has no lateness: its dispatch is the decision.
    late = np.nan_to_num(run.lines.lateness_ms) * run.online.scale
    slack = 2 + int(run.online.scale)
    return np.minimum(late * NS_PER_MS, HEARD_MOST_NS).astype(np.int64) + slack


def check_driver(run: Run, course: Course) -> None:
    """Check edges, floors, starts that come late, failures, and requests without a line."""
    _check_edges(run, course)
    start = course.start[run.instance] + run.plays.floor[run.occurrence] - course.advance[run.occurrence]
    dispatched = run.lines["dispatched_at_ms"]
    run.tally.check(
        "run-floor",
        dispatched >= start,
        lambda row: run.told(
            "run-floor", row, "dispatched_at_ms", "the request starts too early", in_ms(int(dispatched[row])),
            f"at least {in_ms(int(start[row]))}, its play's start and its own floor",
        ),
    )  # fmt: skip
    _check_late(run, course)
    failed_at = course.failed_at[run.instance]
    if run.online is not None:
        failed_at = failed_at + min(run.online.heard_ns, int(HEARD_MOST_NS)) + late_ns(run)
    concerned = np.flatnonzero(course.failed_at[run.instance] < AFTER_ALL)
    run.tally.check(
        "run-failure",
        (dispatched <= failed_at)[concerned],
        lambda entry: _after_failure(run, course, int(concerned[entry])),
    )
    _check_missing(run, course)


def _after_failure(run: Run, course: Course, row: int) -> Finding:
    failed_at = in_ms(int(course.failed_at[run.instance[row]]))
    found = in_ms(int(run.lines["dispatched_at_ms"][row]))
    message = "the request starts after its play has failed"
    return run.told("run-failure", row, "dispatched_at_ms", message, found, f"no start after {failed_at}")


def _check_edges(run: Run, course: Course) -> None:
    plays = run.plays
    checked = np.flatnonzero(run.present[plays.target])
    source, target = plays.source[checked], plays.target[checked]
    due = course.due_after[checked] - course.advance[target]
    good = course.fired[checked] & (course.dispatched[target] >= due)

    def told(entry: int) -> Finding:
        at = int(checked[entry])
        edge = run.graph.edge(int(plays.number[at]), int(plays.node[target[entry]]))
        row = int(run.row[target[entry]])
        found = in_ms(int(course.dispatched[target[entry]]))
        if course.fired[at]:
            wanted = f"at least {in_ms(int(due[entry]))}, by {edge}"
        elif run.row[source[entry]] < 0:
            wanted = f"no start at all: {edge.source} has none"
        else:
            wanted = f"no start at all: {edge.source} did not complete"
        return run.told("run-edge", row, "dispatched_at_ms", "the request does not wait for an edge", found, wanted)

    run.tally.check("run-edge", good, told)


def _check_late(run: Run, course: Course) -> None:
    """Compare with the instant at which the last condition was met; that it is not earlier, edges and floors say."""
    dispatched = run.lines["dispatched_at_ms"]
    latest = (course.ready - course.advance)[run.occurrence]
    if run.online is not None:
        if run.online.scale is None:
            run.tally.skip("how late an online run was, only its report says", ["run-late"])
            return
        # Whether a timer ran when others were moved is not known to the nanosecond; one that was moved is due earlier.
        latest = course.ready[run.occurrence]
        # The driver acts on an end when it hears of it, and sends when it is its turn.
        latest = latest + run.online.heard_ns + late_ns(run) + _sent_late(run)
        # How late the driver was with what it then gave up before it was sent, nothing says.
        latest[np.isnan(run.lines.lateness_ms)] = AFTER_ALL
    elif run.load.profile is not None and run.report is None:
        run.tally.skip("which timers were moved, only the report of a profile says", ["run-late"])
    known = np.flatnonzero(latest < AFTER_ALL)
    run.tally.check(
        "run-late",
        (dispatched <= latest)[known],
        lambda entry: run.told(
            "run-late", int(known[entry]), "dispatched_at_ms", "the request starts later than it could",
            in_ms(int(dispatched[known[entry]])), in_ms(int(latest[known[entry]])),
        ),
    )  # fmt: skip


def _sent_late(run: Run) -> Int64:
    """Return by how much the dispatches that a request waits for were sent after they were decided, at most."""
    plays = run.plays
    late = np.zeros(plays.count, np.int64)
    by_dispatch = run.graph.edge_trigger[plays.number] == Trigger.DISPATCH
    if by_dispatch.any():
        decided = _decided_before(run)
        np.maximum.at(late, plays.target[by_dispatch], decided[plays.source[by_dispatch]])
    return late[run.occurrence]


def _check_missing(run: Run, course: Course) -> None:
    """Every request whose conditions were met before its play failed and the run was cut off has a line."""
    plays = run.plays
    if run.load.stop_ns >= 0:
        run.tally.skip("requests that a stop leaves unfinished have no line", ["run-missing"])
        return
    due = course.ready - course.advance
    bound = course.failed_at[plays.instance]
    if run.online is not None:
        if run.online.heard_ns >= AFTER_ALL:
            run.tally.skip("whether an online run was ended early, only its report says", ["run-missing"])
            return
        due = np.where(course.ready < AFTER_ALL, due + run.online.heard_ns, AFTER_ALL)
        if run.online.partial:
            # It was not ended before its last request was sent.
            decided = run.lines["dispatched_at_ms"] - late_ns(run)
            bound = np.minimum(bound, int(decided.max(initial=0)))
    if run.load.profile is not None:
        bound = np.minimum(bound, profile.cutoff_ns(run))
        if run.report is None:
            # A timer that was moved lets a request start earlier, none lets it start later.
            run.tally.skip("plays of a profile without a line are known from its report", ["run-missing"])
    must = np.flatnonzero(due < bound)
    run.tally.check(
        "run-missing",
        run.present[must],
        lambda entry: finding(
            "run-missing",
            "the request has no line",
            where=run.report_at("", (run.name(int(must[entry])),)),
            wanted=f"a start at {in_ms(int(course.ready[must[entry]] - course.advance[must[entry]]))}",
        ),
    )
    absent = np.flatnonzero(~run.present & (due >= bound))
    run.tally.count("run-missing", len(absent))


def check_lanes(run: Run, course: Course) -> None:
    """Lanes are there exactly when the load has them; a play has one; a lane has one play after the other."""
    lane, lanes = run.lines["lane"], run.load.lanes
    good = (lane >= 0) & (lane < lanes) if lanes else lane < 0
    wanted = f"0 to {lanes - 1}" if lanes else "null: the load has no lanes"
    run.tally.check(
        "run-lane",
        good,
        lambda row: run.told(
            "run-lane", row, "lane", "the load has no such lane", None if lane[row] < 0 else int(lane[row]), wanted
        ),
    )
    if not lanes or not good.all():
        return
    of_play = np.full(len(run.plays.play), -1, np.int64)
    of_play[run.instance[::-1]] = lane[::-1]
    run.tally.check(
        "run-lane",
        lane == of_play[run.instance],
        lambda row: run.told(
            "run-lane", row, "lane", "the play is on another lane", int(lane[row]), int(of_play[run.instance[row]])
        ),
    )
    if not run.controlled:
        first = np.flatnonzero(of_play[:lanes] >= 0)
        run.tally.check(
            "run-lane",
            of_play[first] == first,
            lambda entry: _lane_finding(
                run, int(first[entry]), "the first plays take the lanes in order", int(of_play[first[entry]]),
                int(first[entry]),
            ),
        )  # fmt: skip
    _check_turns(run, course, of_play)


def _check_turns(run: Run, course: Course, lane: Int64) -> None:
    """Within a lane each play starts at the instant at which the one before it settled (online: not before)."""
    known = np.flatnonzero(lane >= 0)
    order = known[np.lexsort((run.plays.ordinal[known], lane[known]))]
    pairs = np.flatnonzero(lane[order][1:] == lane[order][:-1])
    before, after = order[pairs], order[pairs + 1]
    first = np.full(len(lane), AFTER_ALL)
    np.minimum.at(first, run.instance, run.lines["dispatched_at_ms"])
    good = first[after] >= course.settled[before]
    if run.online is None:
        good &= course.start[after] == course.settled[before]
    run.tally.check(
        "run-lane",
        good,
        lambda entry: _lane_finding(
            run, int(after[entry]), "the play does not follow the one before it in its lane",
            f"a first start at {in_ms(int(first[after[entry]]))}",
            f"{in_ms(int(course.settled[before[entry]]))}, when {_play_name(run, int(before[entry]))} settled",
        ),
    )  # fmt: skip
    if run.controlled:
        # Whichever plays a lane has had, it had all of them.
        run.tally.check(
            "run-lane",
            run.plays.ordinal[after] == run.plays.ordinal[before] + 1,
            lambda entry: _lane_finding(
                run, int(after[entry]), "a play of its lane is not there", int(run.plays.ordinal[after[entry]]),
                int(run.plays.ordinal[before[entry]]) + 1,
            ),
        )  # fmt: skip


def _play_name(run: Run, instance: int) -> str:
    return run.graph.plays[int(run.plays.play[instance])].play_id


def _lane_finding(run: Run, instance: int, message: str, found: object, wanted: object) -> Finding:
    rows = np.flatnonzero(run.instance == instance)
    where = run.at(int(rows[0]), "lane") if len(rows) else run.report_at("lane", (_play_name(run, instance),))
    return finding("run-lane", message, where=where, found=found, wanted=str(wanted))
