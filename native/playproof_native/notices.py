"""What is said while a program waits for machine code: single lines on standard error, each once.

Nothing is said of what takes less than `AFTER_S`, or the seconds of ``PLAYPROOF_PATIENCE``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

VARIABLE = "PLAYPROOF_PATIENCE"
# Longer than this nobody should wait without a word.
AFTER_S = 5.0
# What a timer takes at the most; Python's own bound is of this order.
LONGEST_S = 1e6

_said: set[str] = set()
_quiet: list[None] = []


def _print(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # whoever closed standard error wants no word
        print(f"playproof: {line}", file=sys.stderr, flush=True)


# Whoever draws on standard error itself takes the lines, and gives the old function back.
show: list[Callable[[str], None]] = [_print]


def say(line: str) -> None:
    """Say `line`, unless this process has said it, or whoever is in charge wants none."""
    if _quiet or line in _said:
        return
    _said.add(line)
    show[-1](line)


@contextlib.contextmanager
def shown_by(function: Callable[[str], None]) -> Iterator[None]:
    """Have lines shown by `function` within the body."""
    show.append(function)
    try:
        yield
    finally:
        show.remove(function)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Say nothing within the body."""
    _quiet.append(None)
    try:
        yield
    finally:
        _quiet.pop()


@contextlib.contextmanager
def patience(line: str, after_s: float | None = None) -> Iterator[None]:
    """Say `line` if the body takes longer than that."""
    timer = threading.Timer(_after_s() if after_s is None else after_s, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _after_s() -> float:
    with contextlib.suppress(ValueError):
        seconds = float(os.environ.get(VARIABLE, ""))
        if 0 <= seconds <= LONGEST_S:
            return seconds
    return AFTER_S
