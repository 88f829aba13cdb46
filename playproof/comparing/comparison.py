"""Runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from playproof.comparing.figures import Figure, figures
from playproof.comparing.movers import Common, Moved, common, moved_plays, moved_requests
from playproof.comparing.reading import Run, read_run, run_of
from playproof.comparing.regressions import Bound, Miss, misses
from playproof.comparing.settings import KINDS, Difference, Kind, differences, kind_of
from playproof.stages import DECODE, PREFILL, TRANSFERRED, WAITED

if TYPE_CHECKING:
    from playproof.report import Report

__all__ = ["COMPARISON_SCHEMA", "Cause", "Comparison", "compare"]

COMPARISON_SCHEMA = "playproof.comparison.v1"
# Requests and plays that are told, and figures that show a cause.
MOST_MOVED = 10


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of change between the first run and another, with what shows it.

    Attributes
    ----------
    code : str
        One of `KINDS`.
    title : str
        What it is called, such as "less memory".
    settings : tuple of (str, value, value)
        The settings of that kind that differ, with both values.
    figures : tuple of Figure
        Figures that such a change moves first, of those that moved.
    explains_ms : float
        The part of the change in how long requests took that lies where such a change shows.
    evidence : tuple of str
        What the requests say of it.
    """

    code: str
    title: str
    settings: tuple[tuple[str, Any, Any], ...]
    figures: tuple[Figure, ...]
    explains_ms: float
    evidence: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two or more runs side by side; changes are from the first.

    Attributes
    ----------
    runs : tuple of Run
    most : int
        How many moved requests and plays are told.
    """

    runs: tuple[Run, ...]
    most: int = MOST_MOVED

    @cached_property
    def settings(self) -> list[Difference]:
        """What was set differently."""
        return differences([run.report for run in self.runs])

    @cached_property
    def figures(self) -> list[Figure]:
        """Every figure of the reports, side by side."""
        return figures([run.report for run in self.runs])

    @cached_property
    def pairs(self) -> list[Common]:
        """The requests that each other run has in common with the first."""
        return [common(self.runs[0], other) for other in self.runs[1:]]

    def causes(self, run: int) -> list[Cause]:
        """Return what was changed between the first run and another, what explains most of the difference first."""
        grouped: dict[Kind, list[tuple[str, Any, Any]]] = {}
        for difference in self.settings:
            values = difference.values
            if values[0] != values[run]:
                grouped.setdefault(kind_of(difference.field), []).append((difference.field, values[0], values[run]))
        pair = self.pairs[run - 1]
        causes = [self._cause(kind, tuple(settings), pair, run) for kind, settings in grouped.items()]
        order = [kind.code for kind in KINDS]
        return sorted(causes, key=lambda cause: (-abs(cause.explains_ms), order.index(cause.code)))

    def _cause(self, kind: Kind, settings: tuple[tuple[str, Any, Any], ...], pair: Common, run: int) -> Cause:
        moved = [figure for figure in self.figures if figure.name in kind.figures and figure.absolute(run)]
        explained, evidence = _explained(kind.code, pair)
        return Cause(kind.code, _title(kind, settings), settings, tuple(moved), explained, evidence)

    def requests(self, run: int) -> list[Moved]:
        """Return the requests that moved most between the first run and another."""
        return moved_requests(self.runs[0], self.runs[run], self.pairs[run - 1], self.most)

    def plays(self, run: int) -> list[Moved]:
        """Return the plays that moved most between the first run and another."""
        return moved_plays(self.runs[0], self.runs[run], self.pairs[run - 1], self.most)

    def stages(self, run: int) -> dict[str, float]:
        """Return the change by stage over all common requests, ms; together it is their change from dispatch to end."""
        return {stage: float(change.sum()) for stage, change in self.pairs[run - 1].by_stage.items()}

    def misses(self, bounds: Iterable[Bound]) -> list[Miss]:
        """Return what became worse than `bounds` allow.

        Raises
        ------
        KeyError
            When a bound is of a figure that there is not.
        """
        return misses(self.figures, bounds, len(self.runs))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "schema": COMPARISON_SCHEMA,
            "runs": [
                {"name": run.name, "simulated": run.report.get("simulated"), "requests_known": run.has_requests}
                for run in self.runs
            ],
            "settings": [
                {"field": difference.field, "values": list(difference.values)} for difference in self.settings
            ],
            "figures": [
                {
                    "name": figure.name,
                    "values": list(figure.values),
                    "absolute": [figure.absolute(run) for run in range(1, len(self.runs))],
                    "relative": [figure.relative(run) for run in range(1, len(self.runs))],
                }
                for figure in self.figures
            ],
            "changes": [self._change(run) for run in range(1, len(self.runs))],
        }

    def _change(self, run: int) -> dict[str, Any]:
        pair = self.pairs[run - 1]
        return {
            "run": self.runs[run].name,
            "causes": [
                {
                    "code": cause.code,
                    "title": cause.title,
                    "settings": [{"field": field, "from": old, "to": new} for field, old, new in cause.settings],
                    "figures": [figure.name for figure in cause.figures],
                    "explains_ms": cause.explains_ms,
                    "evidence": list(cause.evidence),
                }
                for cause in self.causes(run)
            ],
            "common_requests": len(pair.keys),
            "completed_in_both": int(pair.both.sum()),
            "only_in_first": pair.only_first,
            "only_in_this": pair.only_second,
            "by_stage_ms": self.stages(run),
            "requests": [_moved(moved) for moved in self.requests(run)],
            "plays": [_moved(moved) for moved in self.plays(run)],
        }

    def to_markdown(self) -> str:
        """Return the comparison as Markdown."""
        from playproof.comparing.show import markdown

        return markdown(self)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(run.name for run in self.runs)}>"

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def compare(*runs: str | Path | Report, names: Sequence[str] | None = None, most: int = MOST_MOVED) -> Comparison:
    """Compare two or more runs; each is a folder, a report.json, or a report in memory.

    Parameters
    ----------
    *runs : path or Report
        The first is the one that the others are compared with. Without the file of requests, or requests in memory,
        nothing is said of single requests.
    names : sequence of str, optional
        What to call them.
    most : int
        How many moved requests and plays to tell.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        For fewer than two runs, or other than one name each.
    InvalidInput
        When a file is no report of ours.
    OSError
        When a file cannot be read.
    """
    if len(runs) < 2:
        raise ValueError("a comparison needs two runs")
    called = list(names) if names is not None else _names(runs)
    if len(called) != len(runs):
        raise ValueError("give one name a run")
    read = [
        read_run(run, name) if isinstance(run, str | Path) else run_of(run, name)
        for run, name in zip(runs, called, strict=True)
    ]
    return Comparison(tuple(read), most)


def _names(runs: Sequence[str | Path | Report]) -> list[str]:
    return [str(run) if isinstance(run, str | Path) else f"run {number}" for number, run in enumerate(runs, 1)]


def _moved(moved: Moved) -> dict[str, Any]:
    return {
        "name": moved.name,
        "first_ms": moved.first_ms,
        "second_ms": moved.second_ms,
        "change_ms": moved.change_ms,
        "by_stage_ms": moved.by_stage,
        "reason": moved.reason,
        "reused_tokens": moved.reused,
        "readmissions": moved.readmissions,
        "on_another_worker": moved.elsewhere,
    }


def _title(kind: Kind, settings: tuple[tuple[str, Any, Any], ...]) -> str:
    """Return what a change is called by its direction: of all that differ together."""
    if kind.less == kind.more:
        return kind.less
    olds, news = (sum(_number(pair[side]) for pair in settings) for side in (1, 2))
    if news == olds:  # such as workers that moved from one role to the other
        return f"other {kind.code}"
    return kind.less if news < olds else kind.more


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    # A link without a bandwidth moves all at once.
    return float("inf") if value is None else 0.0


def _explained(code: str, pair: Common) -> tuple[float, tuple[str, ...]]:
    """Return how much of the change lies where a kind of change shows, in ms, and what requests show it."""
    stages = pair.by_stage
    lost = pair.reused != 0
    preempted = pair.readmissions != 0
    everything = pair.change_ms
    if code == "memory":
        where = (lost | preempted) & pair.both
        found = (_counted(pair.reused < 0, "found fewer tokens in cache"), _counted(pair.reused > 0, "found more"))
        again = _counted(pair.readmissions > 0, "preempted more often")
        less = _counted(pair.readmissions < 0, "preempted less often")
        return float(everything[where].sum()), tuple(filter(None, (*found, again, less)))
    if code == "workers":
        # How many share a worker shows in the wait, and in passes that hold others' prompts.
        waited, computed = stages[WAITED], np.where(lost | preempted, 0.0, stages[PREFILL] + stages[DECODE])
        told: tuple[str, ...] = (_counted(waited > 0, "waited longer"), _counted(waited < 0, "waited less"))
        told += (_counted(computed > 0, "computed longer"), _counted(computed < 0, "computed less long"))
        return float((waited + computed).sum()), tuple(filter(None, told))
    if code == "link":
        changed = stages[TRANSFERRED]
        told = (_counted(changed > 0, "moved their KV longer"), _counted(changed < 0, "moved it in less time"))
        return float(changed.sum()), tuple(filter(None, told))
    if code == "routing":
        where = pair.elsewhere & pair.both
        return float(everything[where].sum()), tuple(filter(None, (_counted(pair.elsewhere, "on another worker"),)))
    if code in ("engine", "timing", "scheduler", "topology"):
        changed = stages[PREFILL] + stages[DECODE]
        if code == "scheduler":  # what the cache, or a preemption, explains is not its own
            changed = np.where(lost | preempted, 0.0, changed)
        told = (_counted(changed > 0, "computed longer"), _counted(changed < 0, "computed less long"))
        return float(changed.sum()), tuple(filter(None, told))
    return 0.0, ()


def _counted(which: Any, what: str) -> str:
    count = int(np.count_nonzero(which))
    return f"{count:,} {what}" if count else ""
