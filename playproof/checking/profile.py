"""A profile's rules: the cutoff, the grace, timers that idle caps moved, and what the report counts."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from playproof_spec.findings import Finding, finding

from playproof.checking.course import Course
from playproof.checking.lines import COMPLETED
from playproof.checking.run import AFTER_ALL, Run, in_ms
from playproof.checking.settings import Int64, ms_as_ns
from playproof.checking.verdict import Bool

SCHEMA = "aisimulate.agentic.profile.v1"


# Of the whole run's clock, which ends after 2**62 ns.
_Instant = Annotated[float, Meta(ge=0.0, le=4.6e12)]


class _Shift(msgspec.Struct):
    at_ms: _Instant
    play_id: str | None
    shifted_by_ms: _Instant
    timer_count: int


class _Block(msgspec.Struct):
    """What of `agentic_profile` says when things happened."""

    profile_start_ms: _Instant | None
    admission_cutoff_ms: _Instant | None
    response_grace_deadline_ms: _Instant | None
    cancel_drain_deadline_ms: _Instant | None
    finished_at_ms: _Instant | None
    idle_shifts: list[_Shift]


@dataclass(frozen=True, slots=True)
class Shift:
    """A move of timers. Times in ns from the barrier; `instance` is -1 for all plays; `number` is its place."""

    number: int
    at: int
    by: int
    instance: int
    timers: int


def _block(run: Run) -> _Block | None:
    if run.report is None or run.load.profile is None:
        return None
    try:
        return msgspec.convert(run.report.get("agentic_profile"), _Block)
    except (msgspec.ValidationError, RecursionError):
        return None


def _since(block: _Block, time_ms: float | None) -> int:
    """Return an instant of the whole run's clock from the barrier on, ns; -1 where there is none."""
    if time_ms is None or block.profile_start_ms is None:
        return -1
    return ms_as_ns(time_ms) - ms_as_ns(block.profile_start_ms)


def cutoff_ns(run: Run) -> int:
    """Return when a profile stops issuing, ns from the barrier. Online, when its report says that it did."""
    assert run.load.profile is not None
    block = _block(run)
    if run.online is not None and block is not None and block.admission_cutoff_ms is not None:
        return _since(block, block.admission_cutoff_ms)
    return run.load.profile.duration_ns


def _grace_ns(run: Run) -> int:
    """Return when what is still in flight is canceled, ns from the barrier."""
    assert run.load.profile is not None
    block = _block(run)
    if run.online is not None and block is not None and block.response_grace_deadline_ms is not None:
        return _since(block, block.response_grace_deadline_ms)
    return run.load.profile.duration_ns + run.load.profile.grace_ns


def shifts_of(run: Run) -> list[Shift]:
    """Return the moves of timers that the report tells of, in order."""
    block = _block(run)
    if block is None:
        return []
    names = {name: instance for instance, name in enumerate(_instance_names(run))}
    shifts = []
    for number, told in enumerate(block.idle_shifts):
        at = _since(block, told.at_ms)
        if at >= 0:
            instance = -1 if told.play_id is None else names.get(told.play_id, -2)
            shifts.append(Shift(number, at, ms_as_ns(told.shifted_by_ms), instance, told.timer_count))
    return shifts


def _instance_names(run: Run) -> list[str]:
    from playproof.checking.matching import instance_name
    from playproof.checking.snapshot import digest_of

    digest = digest_of(run.lines, run.report)
    return [instance_name(run, digest, instance) for instance in range(len(run.plays.play))]


def advances(run: Run, released: Int64, ready: Int64, dispatched: Int64, failed_at_of: Int64) -> Int64:
    """Return by how much each occurrence's timer was moved, ns.

    A shift moves the timers that are running then, of one play or of all. Online, where it is not known to the
    nanosecond whether one ran, it counts if it may have.
    """
    moved = np.zeros(len(ready), np.int64)
    if run.load.profile is None:
        return moved
    if run.report is None:
        # Nothing is known of shifts: a request may start as early as its last edge fires.
        return np.where(ready < AFTER_ALL, np.maximum(ready - np.maximum(released, 0), 0), 0)
    shifts = shifts_of(run)
    late = np.flatnonzero((ready < AFTER_ALL) & (dispatched != ready))
    if not shifts or not len(late):
        return moved
    every = [shift for shift in shifts if shift.instance == -1]
    own: dict[int, list[Shift]] = {}
    for shift in shifts:
        if shift.instance >= 0:
            own.setdefault(shift.instance, []).append(shift)
    for occurrence in late.tolist():
        mine = own.get(int(run.plays.instance[occurrence]), [])
        failed_at = int(failed_at_of[run.plays.instance[occurrence]])
        instants = (int(each[occurrence]) for each in (released, ready, dispatched))
        amounts = _amounts(run, every, mine, failed_at, *instants)
        moved[occurrence] = amounts[0]
    return moved


def _amounts(
    run: Run, every: list[Shift], mine: list[Shift], failed_at: int, begin: int, due: int, begun: int
) -> list[int]:
    """Return by how much a timer may have been moved that runs from `begin` and is due at `due`, the likeliest first.

    It runs no longer when its play has failed. A timer that a dispatch sets runs from behind the shift of that instant
    on, which let the dispatch come then. Only where a cap is 0 may one more shift follow at once: what came first
    there, the start of its request shows.
    """
    assert run.load.profile is not None
    if run.online is not None:
        return [_moved(_from(every, mine, begin), due, lambda shift, _: shift.at <= begun)]
    amounts = []
    at_once: list[Shift] = []
    if 0 in (run.load.profile.tree_cap_ns, run.load.profile.global_cap_ns):
        at_once = list(itertools.takewhile(lambda shift: shift.at == begin, _from(every, mine, begin)))
    for skipped in range(len(at_once), -1, -1):
        # A request that its dispatch refuses fails the play behind the shift of that instant.
        for until in (failed_at, min(failed_at + 1, AFTER_ALL)):
            behind = itertools.chain(at_once[skipped:], _from(every, mine, begin + 1))
            running = itertools.takewhile(_before(until), behind)
            amounts.append(_moved(running, due, lambda shift, left: shift.at < left))
    return sorted(amounts, key=lambda amount: due - amount != begun)


def _before(until: int) -> Callable[[Shift], bool]:
    return lambda shift: shift.at < until


def _moved(shifts: Iterable[Shift], due: int, runs: Callable[[Shift, int], bool]) -> int:
    """Return by how much shifts move a timer that is due at `due`; `runs` says of one whether the timer runs then."""
    left = due
    for shift in shifts:
        if not runs(shift, left):
            break
        left -= shift.by
    return due - left


def _from(every: list[Shift], mine: list[Shift], begin: int) -> Iterator[Shift]:
    """Yield the shifts of two lists from an instant on, in the order of events."""

    def behind(shifts: list[Shift]) -> Iterator[Shift]:
        first = bisect.bisect_left(shifts, begin, key=lambda shift: shift.at)
        return (shifts[place] for place in range(first, len(shifts)))

    return heapq.merge(behind(every), behind(mine), key=lambda shift: shift.number)


def check_profile(run: Run, course: Course) -> None:
    """Check cutoff, grace, shifts and counts of a profile."""
    if run.load.profile is None:
        return
    cutoff, grace = cutoff_ns(run), _grace_ns(run)
    dispatched, terminal = run.lines["dispatched_at_ms"], run.lines["terminal_time_ms"]
    if run.online is None:
        run.tally.check(
            "run-profile",
            dispatched < cutoff,
            lambda row: run.told(
                "run-profile", row, "dispatched_at_ms", "the request starts after the cutoff",
                in_ms(int(dispatched[row])), f"before {in_ms(cutoff)}",
            ),
        )  # fmt: skip
        run.tally.check("run-profile", terminal <= grace, lambda row: _after_grace(run, row, grace))
        given_up = np.flatnonzero(run.canceled)
        run.tally.check(
            "run-profile",
            terminal[given_up] == grace,
            lambda entry: run.told(
                "run-profile", int(given_up[entry]), "terminal_time_ms", "a cancellation is not at the grace's end",
                in_ms(int(terminal[given_up[entry]])), in_ms(grace),
            ),
        )  # fmt: skip
    else:
        run.tally.skip(
            "when an online profile's requests ended around its deadlines, its wall clock says", ["run-profile"]
        )
    _check_block(run)
    _check_shifts(run, course)


def _after_grace(run: Run, row: int, grace: int) -> Finding:
    found = in_ms(int(run.lines["terminal_time_ms"][row]))
    message = "the request runs on after the grace"
    return run.told("run-profile", row, "terminal_time_ms", message, found, f"at most {in_ms(grace)}")


def _check_block(run: Run) -> None:
    """Compare the counts and deadlines of `agentic_profile`."""
    if run.report is None:
        return
    told = run.report.get("agentic_profile")
    block, profile = _block(run), run.load.profile
    assert profile is not None
    if block is None or not isinstance(told, Mapping):
        where = run.report_at("agentic_profile")
        run.tally.tell("run-profile", finding("run-profile", "the profile cannot be read", where=where))
        return
    done = run.lines.status == COMPLETED
    dispatched, terminal = run.lines["dispatched_at_ms"][done], run.lines["terminal_time_ms"][done]
    start = block.profile_start_ms
    plays = len(run.plays.play)
    outcomes = run.report.get("agentic_play_outcomes")
    known = [one for one in outcomes if isinstance(one, Mapping)] if isinstance(outcomes, list) else []
    seconds = run.report.get("duration_ms")
    throughput = None
    if done.any() and isinstance(seconds, int | float) and seconds > 0:
        throughput = int(done.sum()) / (seconds / 1000.0)
    wanted: dict[str, Any] = {
        "schema": SCHEMA,
        "never_issued_requests": run.report.get("never_issued_requests"),
        "client_in_flight_requests": 0,
        "client_completed_plays": sum(one.get("never_issued_requests") == 0 for one in known),
        "server_quiescent_plays": sum(one.get("settled_at_ms") is not None for one in known),
        "server_unsettled_requests": told.get("unsettled_server_requests"),
        "successful_request_throughput": throughput,
        "cancel_drain_timed_out": False,
        "issued_requests": len(run.lines),
        "successful_responses": int(done.sum()),
        "canceled_requests": int(run.canceled.sum()),
        "plays_started": plays,
        "corpus_cursor": plays,
        "retired_plays": plays,
    }
    if start is not None:
        first = run.lines["dispatched_at_ms"].min(initial=AFTER_ALL)
        origin = ms_as_ns(start)
        if run.online is None:
            wanted["first_request_ms"] = (origin + int(first)) / 1e6 if first < AFTER_ALL else None
            for name, at in (
                ("admission_cutoff_ms", profile.duration_ns),
                ("response_grace_deadline_ms", profile.duration_ns + profile.grace_ns),
                ("cancel_drain_deadline_ms", profile.duration_ns + profile.grace_ns + profile.drain_ns),
            ):
                wanted[name] = (origin + at) / 1e6
        wanted["last_successful_response_ms"] = (origin + int(terminal.max())) / 1e6 if len(terminal) else None
        span = int(terminal.max() - dispatched.min()) if len(terminal) else 0
        wanted["observation_duration_ms"] = max(span, 0) / 1e6
    for name, value in wanted.items():
        _compare(run, f"agentic_profile.{name}", told.get(name), value)
    options, mine = run.load.profile_seconds, told.get("options")
    for name, value in options.items():
        given = mine.get(name) if isinstance(mine, Mapping) else None
        _compare(run, f"agentic_profile.options.{name}", given, value)
    _check_end(run, block, told.get("admission_closed"), told.get("unsettled_server_requests"))


def _check_end(run: Run, block: _Block, closed: object, unsettled: object) -> None:
    """A profile ends with its last request, and has closed admission if that was not before the cutoff."""
    finished, last = _since(block, block.finished_at_ms), int(run.lines["terminal_time_ms"].max(initial=0))
    if run.online is None:
        _told(run, "finished_at_ms", finished >= last, block.finished_at_ms, f"at least {in_ms(last)} from the barrier")
        _told(
            run,
            "finished_at_ms",
            finished <= max(last, _grace_ns(run)),
            block.finished_at_ms,
            "the grace's end at most",
        )
        _told(run, "admission_closed", closed is (finished >= cutoff_ns(run)), closed, finished >= cutoff_ns(run))
    most = int(run.canceled.sum()) + (len(run.lines) if run.deployment is None or run.deployment.split else 0)
    good = type(unsettled) is int and 0 <= unsettled <= most
    _told(run, "unsettled_server_requests", good, unsettled, f"0 to {most}")


def _told(run: Run, name: str, good: bool, found: object, wanted: object) -> None:
    run.tally.fact(
        "run-profile",
        good,
        lambda: finding(
            "run-profile", "a figure of the profile is not that of the lines",
            where=run.report_at(f"agentic_profile.{name}"), found=found, wanted=str(wanted),
        ),
    )  # fmt: skip


def _compare(run: Run, field: str, found: Any, wanted: Any) -> None:
    alike = type(found) is type(wanted) and found == wanted
    if isinstance(wanted, float) and isinstance(found, int | float) and not alike:
        # A difference of two instants of the whole run's clock, in milliseconds.
        alike = abs(found - wanted) <= 1e-9 * max(abs(wanted), 1.0)
    run.tally.fact(
        "run-profile",
        alike,
        lambda: finding(
            "run-profile", "a figure of the profile is not that of the lines", where=run.report_at(field), found=found,
            wanted=str(wanted),
        ),
    )  # fmt: skip


def _check_shifts(run: Run, course: Course) -> None:
    """Timers move when nothing has been in flight for as long as the cap says, and so far that one of them is due.

    Of a cap of 0 it is only looked at whether something is in flight: what else came at that instant, and in which
    order, lines do not say.
    """
    if run.online is not None:
        return
    assert run.load.profile is not None
    begun, over = run.lines["dispatched_at_ms"], run.lines["terminal_time_ms"]
    everything = np.ones(len(run.lines), np.bool_)
    for number, shift in enumerate(shifts_of(run)):
        mine = everything if shift.instance == -1 else run.instance == shift.instance
        cap = run.load.profile.global_cap_ns if shift.instance == -1 else run.load.profile.tree_cap_ns
        since = int(course.start[shift.instance]) if shift.instance >= 0 else 0
        good = shift.instance >= -1 and shift.by > 0 and shift.timers > 0
        good = good and _idle(begun[mine], over[mine], since, shift.at, cap)
        if cap > 0:
            good = good and bool((begun[mine] == shift.at).any()) and shift.timers == _timers(run, course, shift)
        run.tally.fact("run-profile", good, lambda number=number, shift=shift: _bad_shift(run, number, shift))  # type: ignore[misc]


def _idle(begun: Int64, over: Int64, since: int, at: int, cap: int) -> bool:
    """Whether nothing was in flight at an instant, and nothing had begun or ended for exactly as long as the cap."""
    before: Bool = begun < at
    if int((over[before] > at).sum()):
        return False
    return at == max(since, int(over[before].max(initial=0))) + cap


def _timers(run: Run, course: Course, shift: Shift) -> int:
    """Return how many timers ran before a shift: those of requests whose last edge had fired, and that wait yet."""
    plays = run.plays
    waiting = (course.released < shift.at) & (course.ready < AFTER_ALL)
    waiting &= (course.dispatched < 0) | (course.dispatched >= shift.at)
    waiting &= course.failed_at[plays.instance] >= shift.at
    if shift.instance >= 0:
        waiting &= plays.instance == shift.instance
    return int(waiting.sum())


def _bad_shift(run: Run, number: int, shift: Shift) -> Finding:
    return finding(
        "run-profile",
        "timers are moved other than a cap moves them",
        where=run.report_at(f"agentic_profile.idle_shifts[{number}]"),
        found=f"{shift.timers} timers by {in_ms(shift.by)} at {in_ms(shift.at)} from the barrier",
        wanted="all timers of a play, or of the run, that was idle for as long as its cap, till one is due",
    )
