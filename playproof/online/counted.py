"""How far servers count prompts otherwise than the trace does."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Offsets:
    """The differences between the tokens that a server counts and those of the trace, one a prompt.

    Sums, least and most are exact; the median is of differences rounded to three figures, so that their table stays
    small.
    """

    def __init__(self) -> None:
        self.prompts = self.trace_tokens = self.server_tokens = self.apart = self.differ = 0
        self._counts: Counter[int] = Counter()
        self._least = self._most = 0

    def add(self, trace: int, server: int) -> None:
        """Count one prompt."""
        off = server - trace
        self._least = off if not self.prompts else min(self._least, off)
        self._most = off if not self.prompts else max(self._most, off)
        self.prompts += 1
        self.trace_tokens += trace
        self.server_tokens += server
        self.apart += abs(off)
        self.differ += off != 0
        self._counts[int(float(f"{off:.2e}"))] += 1

    @property
    def share(self) -> float | None:
        """By what share of the trace's tokens prompts are off, each by itself; None where none was counted."""
        return self.apart / self.trace_tokens if self.trace_tokens else None

    def figures(self) -> dict[str, Any]:
        """Return them for a report; null where no prompt was counted."""
        known = self.prompts > 0
        return {
            "counted": self.prompts,
            "counted_tokens": self.server_tokens if known else None,
            "trace_tokens": self.trace_tokens if known else None,
            "share_off": self.share,
            "least_off": self._least if known else None,
            "median_off": self._median() if known else None,
            "most_off": self._most if known else None,
        }

    def _median(self) -> int:
        reached = 0
        for off in sorted(self._counts):
            reached += self._counts[off]
            if 2 * reached >= self.prompts:
                return off
        raise AssertionError("half of all prompts are among them")
