"""A profile's rules: the cutoff, the grace, timers that idle caps moved, and what the report counts."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from playproof_spec.findings import Finding, finding

from playproof.checking.lines import COMPLETED
from playproof.checking.run import AFTER_ALL, Run, in_ms
from playproof.checking.settings import Int64, ms_as_ns
from playproof.checking.verdict import Bool

SCHEMA = "aisimulate.agentic.profile.v1"


class _Shift(msgspec.Struct):
    at_ms: float
    play_id: str | None
    shifted_by_ms: float
    timer_count: int


class _Block(msgspec.Struct):
    """What of `agentic_profile` says when things happened."""

    profile_start_ms: float | None
    admission_cutoff_ms: float | None
    response_grace_deadline_ms: float | None
    cancel_drain_deadline_ms: float | None
    finished_at_ms: float | None
    idle_shifts: list[_Shift]


@dataclass(frozen=True, slots=True)
class Shift:
    """A move of timers. Times in ns from the barrier; `instance` is -1 for all plays."""

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
    if time_ms is None or block.profile_start_ms is None or not abs(time_ms) < 1e13:
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
    for told in block.idle_shifts:
        at = _since(block, told.at_ms)
        if 0 <= told.shifted_by_ms < 1e13 and at >= 0:
            instance = -1 if told.play_id is None else names.get(told.play_id, -2)
            shifts.append(Shift(at, ms_as_ns(told.shifted_by_ms), instance, told.timer_count))
    return shifts


def _instance_names(run: Run) -> list[str]:
    from playproof.checking.matching import instance_name
    from playproof.checking.snapshot import digest_of

    digest = digest_of(run.lines, run.report)
    return [instance_name(run, digest, instance) for instance in range(len(run.plays.play))]


def advances(run: Run, released: Int64, ready: Int64, dispatched: Int64) -> Int64:
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
        begin = int(released[occurrence])
        candidates = sorted((*_from(every, begin), *_from(mine, begin)), key=lambda shift: shift.at)
        due = int(ready[occurrence])
        for shift in candidates:
            pending = shift.at <= dispatched[occurrence] if run.online is not None else shift.at < due
            if not pending:
                break
            due -= shift.by
        moved[occurrence] = ready[occurrence] - due
    return moved


def _from(shifts: list[Shift], begin: int) -> list[Shift]:
    return shifts[bisect.bisect_left(shifts, begin, key=lambda shift: shift.at) :]


def check_profile(run: Run, settled: Int64) -> None:
    """Check cutoff, grace, shifts and counts of a profile.

    Parameters
    ----------
    run : Run
    settled : Int64, shape (instances,)
        When each play's last request ended, `AFTER_ALL` where requests of it were left.
    """
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
    _check_block(run, settled)
    _check_shifts(run)


def _after_grace(run: Run, row: int, grace: int) -> Finding:
    found = in_ms(int(run.lines["terminal_time_ms"][row]))
    message = "the request runs on after the grace"
    return run.told("run-profile", row, "terminal_time_ms", message, found, f"at most {in_ms(grace)}")


def _check_block(run: Run, settled: Int64) -> None:
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


def _check_shifts(run: Run) -> None:
    """Timers move only when nothing is in flight, and has not been for as long as the cap says."""
    if run.online is not None:
        return
    assert run.load.profile is not None
    shifts = shifts_of(run)
    begun, over = run.lines["dispatched_at_ms"], run.lines["terminal_time_ms"]
    everything = np.ones(len(run.lines), np.bool_)
    for number, shift in enumerate(shifts):
        mine = everything if shift.instance == -1 else run.instance == shift.instance
        cap = run.load.profile.global_cap_ns if shift.instance == -1 else run.load.profile.tree_cap_ns
        good = (
            shift.instance >= -1 and shift.by > 0 and shift.timers > 0 and _idle(begun[mine], over[mine], shift.at, cap)
        )
        run.tally.fact("run-profile", good, lambda number=number, shift=shift: _bad_shift(run, number, shift))  # type: ignore[misc]


def _idle(begun: Int64, over: Int64, at: int, cap: int) -> bool:
    """Whether nothing was in flight at an instant, and had not been for as long as the cap."""
    before: Bool = begun < at
    if int((over[before] > at).sum()):
        return False
    last = int(over[before].max(initial=0))
    return at >= last + cap or not before.any()


def _bad_shift(run: Run, number: int, shift: Shift) -> Finding:
    return finding(
        "run-profile",
        "timers are moved although something is in flight, or before the cap is over",
        where=run.report_at(f"agentic_profile.idle_shifts[{number}]"),
        found=f"{shift.timers} timers by {in_ms(shift.by)} at {in_ms(shift.at)} from the barrier",
        wanted="an idle play, or an idle run, for as long as its cap",
    )
