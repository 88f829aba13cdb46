"""Run controls with one fault each, which a property must see."""

from __future__ import annotations

from playproof_reference.controls import Controls


class MeasuredWarmup(Controls):
    """The preparation counts as measured."""

    def measured(self) -> list[int]:
        return [request.index for request in self.requests if request.dispatched_ns >= 0]


class RecycledNamespace(Controls):
    """A play that is played again finds its own blocks."""

    def _scope(self, lane: int, ordinal: int, play: int) -> int:
        return play


class IssuedAfterDeadline(Controls):
    """Lanes are refilled when the profile is over."""

    def closed(self) -> bool:
        return self.load.profile is None


class LaneFreedEarly(Controls):
    """A lane is free while the last request of its play still runs."""

    def still_busy(self, states: list[str]) -> bool:
        return states.count("dispatched") > 1


class SpeedupTwice(Controls):
    """What remains at the cut is divided by the speedup, and again."""

    def remaining_ns(self, lane: int, play: int, node: int) -> int:
        return round(super().remaining_ns(lane, play, node) / self.load.speedup)


FAULTY = (MeasuredWarmup, RecycledNamespace, IssuedAfterDeadline, LaneFreedEarly, SpeedupTwice)
