"""Every figure of several reports side by side, with absolute and relative change, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "figures", "higher_is_better"]

Number = int | float

# No figure of what was simulated, and parts that hold no figures.
_LEFT_OUT = re.compile(
    r"wall_time_ms|(deployment|load|digests|certificate|reading|weka_.*|agentic_.*|online|.*\.each|sla\..*\.bound_ms)(\..*)?"
)
_HIGHER = re.compile(
    r"(.*\.)?(completed_.*|goodput_.*|.*_throughput_.*|.*_reused_ratio|total_(in|out)put_tokens|processed_tokens"
    r"|num_.*_samples|hits|share|held)"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of every run.

    Attributes
    ----------
    name : str
        Dotted, as in the report.
    values : tuple of number or None
        In each run.
    """

    name: str
    values: tuple[Number | None, ...]

    @property
    def moved(self) -> bool:
        """Whether it is not the same in all runs."""
        return any(value != self.values[0] for value in self.values)

    def absolute(self, run: int) -> Number | None:
        """Return the change from the first run to another, None where either has no such figure."""
        first, other = self.values[0], self.values[run]
        return None if first is None or other is None else other - first

    def relative(self, run: int) -> float | None:
        """Return the change ÷ the figure of the first run, None where there is nothing to divide by."""
        first, change = self.values[0], self.absolute(run)
        return None if change is None or not first else change / first


def higher_is_better(name: str) -> bool:
    """Return whether more of a figure is better; of most there should be less.

    Examples
    --------
    >>> higher_is_better("output_throughput_tok_s"), higher_is_better("p95_ttft_ms")
    (True, False)
    """
    return _HIGHER.fullmatch(name) is not None


def figures(reports: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return every figure that any of the reports has, in the order of the first."""
    flats = [dict(_numbers("", report)) for report in reports]
    if all(len(report.get("roles") or ()) == 1 for report in reports):  # one role has the figures of the whole
        flats = [{name: value for name, value in flat.items() if not name.startswith("roles.")} for flat in flats]
    names = dict.fromkeys(name for flat in flats for name in flat)
    found = [Figure(name, tuple(flat.get(name) for flat in flats)) for name in names]
    return [figure for figure in found if any(value is not None for value in figure.values)]


def _numbers(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Number | None]]:
    for name, inner in value.items():
        path = f"{prefix}{name}"
        if _LEFT_OUT.fullmatch(path):
            continue
        if isinstance(inner, Mapping):
            yield from _numbers(f"{path}.", inner)
        elif inner is None or (isinstance(inner, int | float) and not isinstance(inner, bool)):
            yield path, inner
