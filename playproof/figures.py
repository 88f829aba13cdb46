"""Statistics of a report: exact, deterministic, null on empty sets.

Every sum is correctly rounded (`math.fsum`), so that no figure depends on the order of summation or on the machine's
vector width.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

PERCENTILES = (50, 75, 90, 95, 99)
STATISTICS = ("mean", "min", "max", "std", "median", *(f"p{percent}" for percent in PERCENTILES))

Summary = dict[str, float | None]


def percentile_index(percent: int, count: int) -> int:
    """Return the index of a percentile among `count` sorted values: percent/100 · (count − 1), half away from zero.

    Parameters
    ----------
    percent : int
        0 to 100.
    count : int
        ≥ 1.

    Examples
    --------
    >>> percentile_index(50, 4), percentile_index(99, 1000)
    (2, 989)
    """
    return (2 * percent * (count - 1) + 100) // 200


def summarize(values_ms: Float64) -> Summary:
    """Return mean, least, greatest, population standard deviation, median and percentiles of some latencies.

    Parameters
    ----------
    values_ms : Float64, shape (n,)
        Milliseconds, in any order; with none of them every statistic is None.
    """
    return summarize_weighted(np.sort(values_ms), np.ones(len(values_ms), dtype=np.int64))


def summarize_weighted(values_ms: Float64, counts: Int64) -> Summary:
    """Return the same statistics of values that occur many times.

    Parameters
    ----------
    values_ms : Float64, shape (n,)
        Ascending.
    counts : Int64, shape (n,)
        How often each occurs.
    """
    total = int(counts.sum())
    if total == 0:
        return dict.fromkeys(STATISTICS)
    mean = math.fsum((values_ms * counts).tolist()) / total
    variance = math.fsum((np.square(values_ms - mean) * counts).tolist()) / total
    reached = np.cumsum(counts)
    ranked = {
        f"p{percent}": float(values_ms[np.searchsorted(reached, percentile_index(percent, total), side="right")])
        for percent in PERCENTILES
    }
    occurring = values_ms[counts > 0]
    return {
        "mean": mean,
        "min": float(occurring[0]),
        "max": float(occurring[-1]),
        "std": math.sqrt(variance),
        "median": ranked["p50"],
        **ranked,
    }


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, None when there is nothing to divide by."""
    return part / whole if whole else None
