"""The requests and plays that two runs have in common: how long each took, in what, and why that changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from playproof.comparing.reading import Run
from playproof.stages import DECODE, PREFILL, STAGES, TRANSFERRED, WAITED, spent

__all__ = ["REASONS", "Common", "Moved", "common", "moved_plays", "moved_requests"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Why something takes another time, by what most of the change lies in.
REASONS = {
    "waited": "the wait for an admission, or for room",
    "recomputed": "prompt tokens that only one run found in cache",
    "computed": "passes that compute the prompt",
    "transferred": "moving its KV",
    "evicted": "preemptions, after which it was computed again",
    "decoded": "passes that generate, and the waits between them",
    "ended": "it did not end alike",
}


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """What two runs have in common, request by request; changes are the second run less the first.

    Attributes
    ----------
    keys, plays : tuple of str
    first, second : Int64
        The row of each request in either run.
    both : Bool
        Whether it completed in both.
    change_ms : Float64
        Of the time from its dispatch to its end; 0 where it did not complete in both.
    by_stage : dict of str to Float64
        The same by stage; they add up to it.
    reused, readmissions : Int64
        Changes of the tokens found in cache at the first admission, and of how often it was preempted.
    elsewhere : Bool
        Whether another worker served it.
    only_first, only_second : int
        Requests that the other run does not have.
    """

    keys: tuple[str, ...]
    plays: tuple[str, ...]
    first: Int64
    second: Int64
    both: Bool
    change_ms: Float64
    by_stage: dict[str, Float64]
    reused: Int64
    readmissions: Int64
    elsewhere: Bool
    only_first: int
    only_second: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A request or play that takes another time in the second run.

    Attributes
    ----------
    name : str
    first_ms, second_ms : float or None
        How long it took in either, None where it did not complete.
    by_stage : dict of str to float
        The change by stage; of a play over all of its requests, which may run side by side.
    reason : str
        One of `REASONS`.
    reused, readmissions : int
        Changes.
    elsewhere : int
        How many of its requests another worker served.
    """

    name: str
    first_ms: float | None
    second_ms: float | None
    by_stage: dict[str, float]
    reason: str
    reused: int
    readmissions: int
    elsewhere: int

    @property
    def change_ms(self) -> float | None:
        """The change, None where it did not complete in both."""
        return None if self.first_ms is None or self.second_ms is None else self.second_ms - self.first_ms


def common(one: Run, other: Run) -> Common:
    """Match the requests of two runs by what they are called."""
    place = {key: row for row, key in enumerate(other.keys)}
    rows = [(row, place[key]) for row, key in enumerate(one.keys) if key in place]
    first = np.array([row for row, _ in rows], dtype=np.int64)
    second = np.array([row for _, row in rows], dtype=np.int64)
    both: Bool = _completed(one)[first] & _completed(other)[second]
    before, after = spent(one.columns), spent(other.columns)
    by_stage = {stage: np.where(both, after[stage][second] - before[stage][first], 0.0) for stage in STAGES}

    def change(name: str) -> Int64:
        values: Int64 = other.columns[name][second] - one.columns[name][first]
        return values

    elsewhere: Bool = (change("prefill_worker_idx") != 0) | (change("decode_worker_idx") != 0)
    return Common(
        keys=tuple(one.keys[row] for row, _ in rows),
        plays=tuple(one.plays[row] for row, _ in rows),
        first=first,
        second=second,
        both=both,
        change_ms=sum(by_stage.values(), np.zeros(len(rows))),
        by_stage=by_stage,
        reused=change("first_admission_reused_input_tokens"),
        readmissions=change("readmission_count"),
        elsewhere=elsewhere,
        only_first=len(one.keys) - len(rows),
        only_second=len(other.keys) - len(rows),
    )


def _completed(run: Run) -> Bool:
    completed: Bool = (run.columns["terminal_status"] == "completed").astype(np.bool_)
    return completed


def reason(by_stage: dict[str, float], reused: int, readmissions: int) -> str:
    """Return why something takes another time: by the stage in which most of the change lies, in its direction.

    Parameters
    ----------
    by_stage : dict of str to float
        The change by stage, ms.
    reused, readmissions : int
        Changes of the tokens found in cache, and of preemptions.

    Examples
    --------
    >>> reason({"waited": 5.0, "prefill": 40.0, "transferred": 0.0, "decode": -1.0}, -640, 0)
    'recomputed'
    """
    sign = 1.0 if sum(by_stage.values()) >= 0 else -1.0
    stage = max(STAGES, key=lambda name: by_stage[name] * sign)
    if stage == PREFILL:
        return "recomputed" if reused * sign < 0 else "computed"
    if stage == DECODE:
        return "evicted" if readmissions * sign > 0 else "decoded"
    return {WAITED: "waited", TRANSFERRED: "transferred"}[stage]


def moved_requests(one: Run, other: Run, pair: Common, most: int) -> list[Moved]:
    """Return the requests that moved most: first those that ended otherwise, then by how much longer or shorter."""
    took = [run.columns["terminal_time_ms"] - run.columns["dispatched_at_ms"] for run in (one, other)]
    states = [run.columns["terminal_status"] for run in (one, other)]
    found: list[Moved] = []
    ended = [row for row in range(len(pair.keys)) if states[0][pair.first[row]] != states[1][pair.second[row]]]
    largest = np.argsort(-np.abs(pair.change_ms), kind="stable").tolist()
    for row in dict.fromkeys([*ended, *largest]):
        otherwise = states[0][pair.first[row]] != states[1][pair.second[row]]
        if len(found) == most or not (otherwise or pair.change_ms[row]):
            break
        by_stage = {stage: float(change[row]) for stage, change in pair.by_stage.items()}
        reused, readmissions = int(pair.reused[row]), int(pair.readmissions[row])
        completed = [states[0][pair.first[row]] == "completed", states[1][pair.second[row]] == "completed"]
        found.append(
            Moved(
                name=pair.keys[row],
                first_ms=float(took[0][pair.first[row]]) if completed[0] else None,
                second_ms=float(took[1][pair.second[row]]) if completed[1] else None,
                by_stage=by_stage,
                reason="ended" if otherwise else reason(by_stage, reused, readmissions),
                reused=reused,
                readmissions=readmissions,
                elsewhere=int(pair.elsewhere[row]),
            )
        )
    return found


def moved_plays(one: Run, other: Run, pair: Common, most: int) -> list[Moved]:
    """Return the plays whose time from the first dispatch to the last end changed most."""
    spans = [_spans(run) for run in (one, other)]
    rows: dict[str, list[int]] = {}
    for row, play in enumerate(pair.plays):
        rows.setdefault(play, []).append(row)
    changes = {}
    for play in rows:
        before, after = spans[0][play], spans[1].get(play)
        if before is not None and after is not None and before != after:
            changes[play] = after - before
    found = []
    for play in sorted(changes, key=lambda name: -abs(changes[name]))[:most]:
        chosen = rows[play]
        by_stage = {stage: float(change[chosen].sum()) for stage, change in pair.by_stage.items()}
        reused, readmissions = int(pair.reused[chosen].sum()), int(pair.readmissions[chosen].sum())
        found.append(
            Moved(
                name=play,
                first_ms=spans[0][play],
                second_ms=spans[1][play],
                by_stage=by_stage,
                reason=reason(by_stage, reused, readmissions),
                reused=reused,
                readmissions=readmissions,
                elsewhere=int(pair.elsewhere[chosen].sum()),
            )
        )
    return found


def _spans(run: Run) -> dict[str, float | None]:
    """Return how long each play took, None where a request of it did not complete."""
    spans: dict[str, tuple[float, float] | None] = {}
    columns = run.columns
    times = zip(
        *(columns[name].tolist() for name in ("dispatched_at_ms", "terminal_time_ms", "terminal_status")), strict=True
    )
    for play, (begin, end, status) in zip(run.plays, times, strict=True):
        known = spans.get(play, (begin, end))
        if status != "completed" or known is None:
            spans[play] = None
        else:
            spans[play] = (min(begin, known[0]), max(end, known[1]))
    return {play: None if span is None else span[1] - span[0] for play, span in spans.items()}
