"""What the report tells of each play, and of the preparation before the barrier."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from playproof_spec.findings import finding

from playproof.checking.course import Course
from playproof.checking.figures import ended_plays
from playproof.checking.lines import STATUSES
from playproof.checking.matching import instance_name
from playproof.checking.profile import cutoff_ns
from playproof.checking.run import AFTER_ALL, Run, in_ms
from playproof.checking.settings import NS_PER_MS, Int64, ms_as_ns
from playproof.checking.snapshot import Cut, warmed


class _Outcome(msgspec.Struct):
    play_id: str
    play_ordinal: int
    lane: int | None
    status: str
    causal_terminal_ms: float | None
    settled_at_ms: float | None
    failure_request_id: str | None = None
    failure_status: str | None = None
    started_at_ms: float | None = None
    source_play_id: str | None = None
    never_issued_requests: int = 0


def check_outcomes(run: Run, course: Course, digest: str) -> None:
    """Compare each play's outcome with the lines of its requests."""
    if run.report is None:
        run.tally.skip("no report is given", ["run-outcome"])
        return
    if run.ordinary:
        run.tally.skip("sessions of an ordinary trace have no outcomes in a report", ["run-outcome"])
        return
    try:
        told = msgspec.convert(run.report.get("agentic_play_outcomes"), list[_Outcome])
    except (msgspec.ValidationError, RecursionError) as error:
        _tell(run, "agentic_play_outcomes", (), False, "the outcomes cannot be read", str(error), "a list")
        return
    plays = run.plays
    same = len(told) == len(plays.play)
    _tell(run, "agentic_play_outcomes", (), same, "there is not one outcome a play", len(told), len(plays.play))
    if not same:
        return
    failing, lane, released = _failures(run, course), _lanes(run), _last_of(run, "source_released_ms")
    last, never = _last_of(run, "terminal_time_ms"), np.bincount(plays.instance[~run.present], minlength=len(told))
    ended = ended_plays(run, course)
    for instance, outcome in enumerate(told):
        name = instance_name(run, digest, instance) if run.controlled else run.graph.plays[instance].play_id
        place = f"agentic_play_outcomes[{instance}]"

        def tell(field: str, good: bool, found: object, wanted: object, place: str = place, name: str = name) -> None:
            _tell(run, f"{place}.{field}", (name,), good, "the outcome is not that of the lines", found, wanted)

        tell("play_id", outcome.play_id == name, outcome.play_id, name)
        ordinal = int(plays.ordinal[instance])
        tell("play_ordinal", outcome.play_ordinal == ordinal, outcome.play_ordinal, ordinal)
        source = run.graph.plays[int(plays.play[instance])].play_id if run.controlled else None
        tell("source_play_id", outcome.source_play_id == source, outcome.source_play_id, source)
        if int(lane[instance]) >= 0 or not run.load.lanes:
            wanted = None if lane[instance] < 0 else int(lane[instance])
            tell("lane", outcome.lane == wanted, outcome.lane, wanted)
        _check_status(run, instance, outcome, ended, tell)
        _check_failure(run, instance, outcome, failing[instance], tell)
        ends = (int(last[instance]), int(released[instance]))
        _check_times(run, course, instance, outcome, ends, int(never[instance]), tell)
    if run.controlled:
        total, field = sum(outcome.never_issued_requests for outcome in told), "never_issued_requests"
        given = run.report.get(field)
        _tell(run, field, (), given == total, "the figure is not the sum over plays", given, total)


def _tell(run: Run, field: str, ids: tuple[str, ...], good: bool, message: str, found: object, wanted: object) -> None:
    run.tally.fact(
        "run-outcome",
        good,
        lambda: finding("run-outcome", message, where=run.report_at(field, ids), found=found, wanted=str(wanted)),
    )


def _failures(run: Run, course: Course) -> list[list[int]]:
    """Return the rows of each instance whose failure may have been its first."""
    first: list[list[int]] = [[] for _ in run.plays.play]
    for row in np.flatnonzero(~run.completed).tolist():
        instance = int(run.instance[row])
        if run.lines["terminal_time_ms"][row] <= course.failed_at[instance] + _heard(run):
            first[instance].append(row)
    return first


def _heard(run: Run) -> int:
    """Return by how much the driver heard later of an end than it was, at most, ns."""
    return 0 if run.online is None else min(run.online.heard_ns, 10**18)


def _lanes(run: Run) -> Int64:
    lane = run.plays.lane.copy()
    lane[run.instance] = run.lines["lane"]
    return lane


def _last_of(run: Run, name: str) -> Int64:
    """Return the last instant of a name that each instance has, -1 for none."""
    last = np.full(len(run.plays.play), -1, np.int64)
    np.maximum.at(last, run.instance, run.lines[name])
    return last


def _check_status(run: Run, instance: int, outcome: _Outcome, ended: Any, tell: Any) -> None:
    _, completed, failed = (bool(each[instance]) for each in ended)
    wanted = ["completed"] if completed else ["failed"] if failed else ["incomplete"]
    if failed and (run.stopped or run.load.profile is not None):
        # An end that came before the failure was heard, or before the rest of the play was over.
        wanted.append("incomplete")
    tell("status", outcome.status in wanted, outcome.status, " or ".join(wanted))


def _check_failure(run: Run, instance: int, outcome: _Outcome, rows: list[int], tell: Any) -> None:
    names = {run.lines.text["request_id"][row]: STATUSES[int(run.lines.status[row])] for row in rows}
    if not names:
        tell("failure_request_id", outcome.failure_request_id is None, outcome.failure_request_id, None)
        return
    known = outcome.failure_request_id in names
    tell("failure_request_id", known, outcome.failure_request_id, " or ".join(sorted(names)))
    if known and outcome.failure_request_id is not None:
        wanted = names[outcome.failure_request_id]
        tell("failure_status", outcome.failure_status == wanted, outcome.failure_status, wanted)


def _check_times(
    run: Run, course: Course, instance: int, outcome: _Outcome, ends: tuple[int, int], absent: int, tell: Any
) -> None:
    """Check a play's instants: its causal end is that of its failure or its last one; it settles then, or later.

    `ends` are its last end and when its last source was back; `absent` requests of it have no line.
    """
    heard = _heard(run)

    def near(field: str, given_ms: float | None, low: int, high: int) -> None:
        given = -1 if given_ms is None or not abs(given_ms) < 1e13 else ms_as_ns(given_ms)
        good = low <= given <= high
        tell(field, good, given_ms, in_ms(low) if low == high else f"{in_ms(low)} to {in_ms(high)}")

    last = int(course.settled[instance])
    end, released = ends
    if outcome.status == "failed":
        failed_at = int(course.failed_at[instance])
        near("causal_terminal_ms", outcome.causal_terminal_ms, failed_at, failed_at + heard)
    elif end >= 0 and not run.stopped:
        near("causal_terminal_ms", outcome.causal_terminal_ms, end, end + heard)
    if run.controlled:
        start = int(course.start[instance])
        if start < AFTER_ALL:
            near("started_at_ms", outcome.started_at_ms, start, start + heard)
        few = 0 if course.failed_at[instance] < AFTER_ALL else absent
        good = few <= outcome.never_issued_requests <= absent
        tell("never_issued_requests", good, outcome.never_issued_requests, f"{few} to {absent}")
    _check_settled(run, course, outcome, max(end, released), last < AFTER_ALL, tell, near)


def _check_settled(run: Run, course: Course, outcome: _Outcome, end: int, is_over: bool, tell: Any, near: Any) -> None:
    """A play settles at its last end, or when its last source is back; one that was cut off not before the cutoff."""
    cut_off = run.stopped or run.load.profile is not None
    if outcome.settled_at_ms is None:
        # Of a run that was cut short, engines may still have held something.
        tell("settled_at_ms", cut_off, None, "an instant")
        return
    if not is_over and run.load.profile is not None:
        end = max(end, cutoff_ns(run))
    elif not is_over:
        return
    # Under the run controls, prefill/decode settles when the engines have let go of what a failure left there, too.
    exact = run.deployment is not None and not run.deployment.split and run.online is None
    late = 0 if exact else AFTER_ALL if run.controlled else _heard(run)
    near("settled_at_ms", outcome.settled_at_ms, end, end + late)


# Preparation --------------------------------------------------------------------------------------------------------


PHASES_SCHEMA = "aisimulate.agentic.phases.v1"
BARRIER = "all_preparation_succeeded_and_server_quiescent"


class _Prepared(msgspec.Struct):
    source_request_id: str
    play_id: str
    lane_id: int
    phase: str
    input_length: int
    max_output_tokens: int
    expected_full_block_tokens: int
    dispatched_at_ms: float | None
    first_admit_ms: float | None
    causal_terminal_at_ms: float | None
    quiescent_at_ms: float | None
    first_admission_reused_input_tokens: int | None
    observed_output_tokens: int
    terminal_status: str | None


class _Phases(msgspec.Struct):
    schema: str
    failure_request_id: str | None
    failure_reason: str | None
    profile_start_ms: float | None
    finished_at_ms: float | None
    phase: str
    barrier_condition: str
    requests: list[_Prepared]
    lanes: list[dict[str, Any]]


def check_phases(run: Run, cuts: tuple[Cut, ...], digest: str) -> None:
    """Check that preparation was what the cuts ask for, lane by lane, and over before the barrier opened."""
    if run.report is None:
        run.tally.skip("no report is given", ["run-phase"])
        return
    if not run.load.warmup:
        _phase(run, "agentic_phases", run.report.get("agentic_phases") is None, "there was no warmup", "phases", "null")
        return
    try:
        phases = msgspec.convert(run.report.get("agentic_phases"), _Phases)
    except (msgspec.ValidationError, RecursionError) as error:
        _phase(run, "agentic_phases", False, "the phases cannot be read", str(error), "an object")
        return
    valid = run.report.get("valid")
    succeeded = all(one.terminal_status == "completed" and one.observed_output_tokens == 1 for one in phases.requests)
    _phase(run, "valid", valid is succeeded, "a run is valid exactly when all preparation succeeded", valid, succeeded)
    _phase(
        run, "num_requests", succeeded or len(run.lines) == 0, "an invalid run has measured nothing", len(run.lines), 0
    )
    wanted = "profile" if succeeded else "aborted"
    _phase(
        run, "agentic_phases.phase", phases.phase == wanted, "the phase is not the one reached", phases.phase, wanted
    )
    _phase(run, "agentic_phases.schema", phases.schema == PHASES_SCHEMA, "other phases", phases.schema, PHASES_SCHEMA)
    for name in ("failure_request_id", "failure_reason"):
        given = getattr(phases, name)
        _phase(run, f"agentic_phases.{name}", (given is None) is succeeded, "failures are those of preparation", given,
               None if succeeded else "the first failure")  # fmt: skip
    barrier = phases.barrier_condition
    _phase(run, "agentic_phases.barrier_condition", barrier == BARRIER, "there is no such barrier", barrier, BARRIER)
    expected = [(cut.lane, *source) for cut in cuts for source in warmed(run.graph, cut)]
    same = len(expected) == len(phases.requests)
    _phase(
        run, "agentic_phases.requests", same, "preparation is not that of the cuts", len(phases.requests), len(expected)
    )
    if not same:
        return
    for number, (one, (lane, node, primer)) in enumerate(zip(phases.requests, expected, strict=True)):
        _check_prepared(run, number, one, lane, node, primer, digest)
    if succeeded:
        _check_barrier(run, phases, digest)


def _phase(run: Run, field: str, good: bool, message: str, found: object, wanted: object) -> None:
    run.tally.fact(
        "run-phase",
        good,
        lambda: finding("run-phase", message, where=run.report_at(field), found=found, wanted=str(wanted)),
    )


def _check_prepared(run: Run, number: int, one: _Prepared, lane: int, node: int, primer: bool, digest: str) -> None:
    graph = run.graph
    tokens = int(graph.input_length[node])
    wanted: dict[str, object] = {
        "source_request_id": graph.request_ids[node],
        "play_id": instance_name(run, digest, lane),
        "lane_id": lane,
        "phase": "primer" if primer else "warmup",
        "input_length": tokens,
        "max_output_tokens": 1,
    }
    if run.deployment is not None:
        size = run.deployment.roles[0].block_size
        wanted["expected_full_block_tokens"] = tokens // size * size
    for name, value in wanted.items():
        field = f"agentic_phases.requests[{number}].{name}"
        given = getattr(one, name)
        _phase(run, field, given == value, "preparation is not that of the cuts", given, value)
    field = f"agentic_phases.requests[{number}]"
    reused = one.first_admission_reused_input_tokens
    size = run.deployment.roles[0].block_size if run.deployment is not None else 1
    good = reused is None or (0 <= reused <= tokens and reused % size == 0)
    _phase(run, f"{field}.first_admission_reused_input_tokens", good, "that cannot be reused", reused,
           f"whole blocks of {size}, at most {tokens} tokens")  # fmt: skip
    stamps = (one.dispatched_at_ms, one.first_admit_ms, one.causal_terminal_at_ms, one.quiescent_at_ms)
    known = [value for value in stamps if value is not None]
    _phase(run, field, known == sorted(known), "its instants are not in order", known, "ascending")
    if run.deployment is not None and not run.deployment.split and run.online is None:
        # An aggregated worker holds nothing of a request that is over.
        quiet, end = one.quiescent_at_ms, one.causal_terminal_at_ms
        _phase(run, f"{field}.quiescent_at_ms", quiet == end, "it does not settle at its end", quiet, end)


def _check_barrier(run: Run, phases: _Phases, digest: str) -> None:
    """A lane's requests follow one another, without pause offline; the barrier opens when all have settled."""
    free: dict[int, float] = {}
    slack = _heard(run) / NS_PER_MS
    settled = 0.0
    for number, one in enumerate(phases.requests):
        begin, end, quiet = one.dispatched_at_ms, one.causal_terminal_at_ms, one.quiescent_at_ms
        if begin is None or end is None or quiet is None:
            _phase(
                run, f"agentic_phases.requests[{number}]", False, "a request that succeeded lacks instants", None, "all"
            )
            continue
        before = free.get(one.lane_id, 0.0)
        good = begin == before if run.online is None else begin >= before
        _phase(run, f"agentic_phases.requests[{number}].dispatched_at_ms", good,
               "it does not follow the one before it in its lane", begin, before)  # fmt: skip
        free[one.lane_id] = end
        settled = max(settled, quiet, end)
    opened = phases.profile_start_ms
    _phase(run, "agentic_phases.profile_start_ms", opened is not None and opened + slack >= settled,
           "the barrier opens before preparation has settled", opened, f"at least {settled}")  # fmt: skip
    hosted = run.deployment is None or any(role.host for role in run.deployment.roles)
    if run.online is None and not hosted:
        # Nothing but preparation holds it back; copies to host memory outlast their requests.
        _phase(run, "agentic_phases.profile_start_ms", opened == settled, "the barrier opens late", opened, settled)
    finished = phases.finished_at_ms
    _phase(
        run, "agentic_phases.finished_at_ms", finished == opened, "preparation ends at the barrier", finished, opened
    )
    _check_lanes(run, phases, digest)


def _check_lanes(run: Run, phases: _Phases, digest: str) -> None:
    """Compare the counts of each lane's preparation, all of which succeeded."""
    lanes = len(phases.lanes)
    _phase(run, "agentic_phases.lanes", lanes == run.load.lanes, "there is not one entry a lane", lanes, run.load.lanes)
    for lane, told in enumerate(phases.lanes[: run.load.lanes]):
        mine = [one for one in phases.requests if one.lane_id == lane]
        named = {"lane_id": lane, "play_id": instance_name(run, digest, lane), "requests_quiescent": len(mine)}
        for name, value in named.items():
            field = f"agentic_phases.lanes[{lane}].{name}"
            _phase(run, field, told.get(name) == value, "it is not the lane's preparation", told.get(name), value)
        for phase, name in (("primer", "primers"), ("warmup", "warmup")):
            count = sum(one.phase == phase for one in mine)
            for which in ("expected", "completed"):
                field = f"agentic_phases.lanes[{lane}].{name}_{which}"
                given = told.get(f"{name}_{which}")
                _phase(run, field, given == count, "it does not count the lane's preparation", given, count)
