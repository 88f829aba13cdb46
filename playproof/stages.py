"""What a request spent its time in: a partition of the time from its dispatch to its end, made from its milestones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

__all__ = ["MILESTONES", "STAGES", "intervals", "spent"]

# What a request can be in, in the order in which a request of a prefill/decode deployment goes through them. A request
# waits more than once: for the prefill worker, for room at the decode worker, and for its next pass.
STAGES = ("waited", "prefill", "transferred", "decode")
WAITED, PREFILL, TRANSFERRED, DECODE = STAGES

# Each milestone that a request may reach, in their order, and what it was in until then. A milestone that lies before
# an earlier one (SGLang reserves before it computes) ends nothing; one that was not reached neither.
MILESTONES = (
    ("first_admit_ms", WAITED),
    ("source_held_ms", PREFILL),
    ("destination_reserved_ms", WAITED),
    ("destination_activated_ms", TRANSFERRED),
    ("decode_admit_ms", WAITED),
    ("first_token_ms", PREFILL),
    ("terminal_time_ms", DECODE),
)
# In prefill/decode the first token may come with the decode worker's first pass: that is no prefill.
_FIRST_TOKEN = "first_token_ms"


def intervals(columns: Mapping[str, Any]) -> list[tuple[str, Float64, Float64]]:
    """Return the intervals that requests go through, one after the other.

    Parameters
    ----------
    columns : mapping of str to array
        ``dispatched_at_ms`` and those of `MILESTONES` that are known; NaN for what a request did not reach.

    Returns
    -------
    list of (str, Float64, Float64)
        What the requests were in, from when, until when; where both are equal there was none. Together they are the
        time from the dispatch to the end, exactly: each begins where the one before it ended.
    """
    now = np.array(columns["dispatched_at_ms"], dtype=np.float64)
    handed_over = np.zeros(len(now), dtype=np.bool_)
    steps = []
    for name, stage in MILESTONES:
        if name not in columns:
            continue
        reached = np.array(columns[name], dtype=np.float64)
        if name == _FIRST_TOKEN:
            # Of a request that was handed over, decoding began when it was admitted there.
            reached = np.where(handed_over, np.nan, reached)
        if name == "source_held_ms":
            handed_over = ~np.isnan(reached)
        until = np.fmax(now, reached)
        if name == "terminal_time_ms":
            # What was never admitted waited until it was refused.
            never = np.isnan(np.array(columns["first_admit_ms"], dtype=np.float64))
            refused = np.where(never, until, now)
            steps.append((WAITED, now, refused))
            now = refused
        steps.append((stage, now, until))
        now = until
    return steps


def spent(columns: Mapping[str, Any]) -> dict[str, Float64]:
    """Return how long each request was in each of `STAGES`, milliseconds.

    Parameters
    ----------
    columns : mapping of str to array
        As for :func:`intervals`.

    Examples
    --------
    >>> request = {"dispatched_at_ms": [0.0], "first_admit_ms": [5.0], "first_token_ms": [45.0]}
    >>> times = spent({**request, "terminal_time_ms": [105.0]})
    >>> {stage: float(time[0]) for stage, time in times.items()}
    {'waited': 5.0, 'prefill': 40.0, 'transferred': 0.0, 'decode': 60.0}
    """
    times = {stage: np.zeros(len(columns["dispatched_at_ms"])) for stage in STAGES}
    for stage, begin, end in intervals(columns):
        times[stage] += end - begin
    return times
