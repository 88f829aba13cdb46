"""How much worse a figure may become, and which did."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from playproof.comparing.figures import Figure, Number, higher_is_better

__all__ = ["Bound", "Miss", "misses"]


@dataclass(frozen=True, slots=True)
class Bound:
    """How much worse than in the first run a figure may be.

    Attributes
    ----------
    name : str
        A figure of the report; ``_ms`` may be left out.
    relative, absolute : float or None
        As a share of the first run's, or in the figure's unit; one of the two.
    """

    name: str
    relative: float | None = None
    absolute: float | None = None

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Read ``p95_ttft=5%``, or ``p95_ttft=20`` in the figure's own unit.

        Raises
        ------
        ValueError
            When it is neither.

        Examples
        --------
        >>> Bound.parse("p95_ttft=5%")
        Bound(name='p95_ttft', relative=0.05, absolute=None)
        """
        name, equals, amount = (part.strip() for part in text.partition("="))
        number, percent, rest = amount.partition("%")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not equals or rest or not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{text!r} is no bound: write FIGURE=5%, or FIGURE=20 in its own unit")
        return cls(name, relative=value / 100) if percent else cls(name, absolute=value)


@dataclass(frozen=True, slots=True)
class Miss:
    """A figure that became worse than its bound allows.

    Attributes
    ----------
    run : int
        The run, counted from 0, that is worse than the first.
    name : str
    first, found : number or None
        Its values there; None where a run has no such figure, which shows nothing.
    worst : number or None
        The worst that the bound allows.
    """

    run: int
    name: str
    first: Number | None
    found: Number | None
    worst: Number | None


def misses(figures: Sequence[Figure], bounds: Iterable[Bound], runs: int) -> list[Miss]:
    """Return which runs are worse than the first by more than is allowed.

    Raises
    ------
    KeyError
        When there is no such figure; the message has those of similar names.
    """
    by_name = {figure.name: figure for figure in figures}
    found = []
    for bound in bounds:
        figure = by_name.get(bound.name) or by_name.get(f"{bound.name}_ms")
        if figure is None:
            near = difflib.get_close_matches(bound.name, by_name, n=3)
            raise KeyError(
                f"the reports have no figure {bound.name!r}" + (f"; near: {', '.join(near)}" if near else "")
            )
        first = figure.values[0]
        for run in range(1, runs):
            value, worst = figure.values[run], None
            if first is not None:
                room = abs(first) * bound.relative if bound.relative is not None else bound.absolute or 0.0
                worst = first - room if higher_is_better(figure.name) else first + room
            # Neither run has the figure: nothing became worse.
            if first is None and value is None:
                continue
            if worst is None or value is None or _worse(figure.name, value, worst):
                found.append(Miss(run, figure.name, first, value, worst))
    return found


def _worse(name: str, value: Number, worst: Number) -> bool:
    return value < worst if higher_is_better(name) else value > worst
