"""The one place where milliseconds become nanoseconds and back.

Files, configurations and reports speak float milliseconds; everything that computes speaks int64 nanoseconds.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
# The clock's horizon: about 146 years. Half of int64, so that the sum of two times on the clock cannot overflow.
HORIZON_NS = 2**62
HORIZON_MS = HORIZON_NS / NS_PER_MS


@overload
def ms_to_ns(ms: float) -> int: ...
@overload
def ms_to_ns(ms: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]: ...
def ms_to_ns(ms: float | npt.NDArray[np.float64]) -> int | npt.NDArray[np.int64]:
    """Convert finite milliseconds to whole nanoseconds, rounding half to even.

    Parameters
    ----------
    ms : float or array of float64
        Finite and within the horizon; the graph obligations and the configuration guards see to that.

    Raises
    ------
    OverflowError
        When a value of an array is none that an int64 holds: the cast would give another.
    """
    if isinstance(ms, np.ndarray):
        scaled = np.rint(ms * NS_PER_MS)
        if not (np.abs(scaled) < 2.0**63).all():
            raise OverflowError("a time does not fit the clock; whoever converts it must have refused it before")
        return scaled.astype(np.int64)
    return round(ms * NS_PER_MS)


def ns_to_ms(ns: int) -> float:
    """Convert whole nanoseconds to milliseconds for the wire."""
    return ns / NS_PER_MS
