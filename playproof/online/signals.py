"""Signals while a run closes: they are noted, and nothing is interrupted until the report is whole."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Holding:
    """SIGINT and SIGTERM, held from `begin` until the context that gave it is left.

    Attributes
    ----------
    noted : list of int
        Signals that came meanwhile.
    """

    def __init__(self) -> None:
        self.noted: list[int] = []
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._held: list[signal.Signals] = []

    def begin(self) -> None:
        """Hold them from now on. Elsewhere than in the main thread this does nothing: signals are not ours there."""
        for number in self._before:
            with contextlib.suppress(ValueError):
                signal.signal(number, self._note)
                self._held.append(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted.append(number)

    def end(self) -> None:
        """Let them be what they were."""
        for number in self._held:
            signal.signal(number, self._before[number])
        self._held.clear()


@contextlib.contextmanager
def holding() -> Iterator[Holding]:
    """Give a `Holding` that ends with the context."""
    held = Holding()
    try:
        yield held
    finally:
        held.end()
