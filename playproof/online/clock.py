"""The clock of online replay: wall time since it was started, sped up by the time scale.

Driver and mock workers have one each, of the same scale. Engines, delays, floors and every latency of a report are in
its nanoseconds; only what is said of the client itself (how late it was) is in wall time.
"""

from __future__ import annotations

import time

from playproof_spec.units import NS_PER_S


class Clock:
    """A clock that starts at 0 when it is made.

    Parameters
    ----------
    scale : float
        How many of its seconds pass in a second of wall time; > 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        if not scale > 0:
            raise ValueError("the time scale is above 0")
        self.scale = scale
        self._origin = time.monotonic_ns()

    def now(self) -> int:
        """Return the time, ns."""
        return self.at(time.monotonic_ns())

    def at(self, monotonic_ns: int) -> int:
        """Return what this clock shows at an instant of `time.monotonic_ns`."""
        return int((monotonic_ns - self._origin) * self.scale)

    def due(self, when: int) -> float:
        """Return when this clock will show `when`, ns, as the event loop counts: seconds of `time.monotonic`."""
        return (self._origin + when / self.scale) / NS_PER_S

    def wall_ns(self, span: int) -> int:
        """Return how long `span` ns of this clock take, in ns of wall time."""
        return int(span / self.scale)
