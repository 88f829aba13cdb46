"""The verdict on one proof obligation."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["FAILED", "NOT_APPLICABLE", "PROVEN", "UNPROVEN", "Obligation", "Stopwatch"]

PROVEN = "proven"
FAILED = "failed"
UNPROVEN = "unproven"
NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Obligation:
    """One obligation's verdict.

    Attributes
    ----------
    code : str
        G1 … G7, M1 … M6.
    title : str
    verdict : str
        ``proven``, ``failed``, ``unproven`` (the prover gave up: never counts as proven) or ``not_applicable``.
    how : str
        The method, with its figures.
    wall_ms : float
        Cost.
    """

    code: str
    title: str
    verdict: str
    how: str
    wall_ms: float


class Stopwatch:
    """Makes obligations that know their cost."""

    __slots__ = ("_begin",)

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def stop(self, code: str, title: str, verdict: str, how: str) -> Obligation:
        """Return the obligation, with the time since the watch was made."""
        return Obligation(code, title, verdict, how, round((time.perf_counter() - self._begin) * 1e3, 3))
