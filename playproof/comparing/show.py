"""A comparison for people: text for a terminal, Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from playproof.comparing.figures import Figure, Number, higher_is_better
from playproof.comparing.movers import Moved
from playproof.comparing.regressions import Miss

if TYPE_CHECKING:
    from playproof.comparing.comparison import Cause, Comparison

__all__ = ["markdown", "miss_line", "print_comparison"]

NOTHING = "–"


def print_comparison(console: Console, comparison: Comparison, *, everything: bool = False) -> None:
    """Print a comparison.

    Parameters
    ----------
    console : Console
    comparison : Comparison
    everything : bool
        Also the figures that did not move.
    """
    for title, rows, told in _sections(comparison, everything):
        console.print(Text(title, style="bold"))
        if rows:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            for column, name in enumerate(rows[0]):
                side: Literal["left", "right"] = "left" if column == 0 or name == "why" else "right"
                table.add_column(Text(name), justify=side, overflow="fold")
            for row in rows[1:]:
                table.add_row(*map(Text, row))
            console.print(table)
        for line in told:
            console.print(Text(f"  {line}"))
        if told:
            console.print()


def markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown, with every figure."""
    lines = ["# " + " against ".join(_cell(run.name) for run in comparison.runs[::-1])]
    for title, rows, told in _sections(comparison, True):
        lines += ["", f"## {_cell(title)}", ""]
        if rows:
            lines.append("| " + " | ".join(map(_cell, rows[0])) + " |")
            lines.append("|---" + "|---:" * (len(rows[0]) - 1) + "|")
            lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows[1:]]
            lines += [""] if told else []
        lines += [f"{_indent(line)}- {_cell(line.strip())}" for line in told]
    return "\n".join(lines) + "\n"


def _indent(line: str) -> str:
    """Return what makes a list item one of the item above it, where a line is indented."""
    return "  " if line.startswith(" ") else ""


def _cell(text: str) -> str:
    """Escape what would end a cell or begin markup: names come from foreign files."""
    kept = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in kept)


Section = tuple[str, list[list[str]], list[str]]


def _sections(comparison: Comparison, everything: bool) -> Iterator[Section]:
    names = [run.name for run in comparison.runs]
    settings = [[difference.field, *map(_value, difference.values)] for difference in comparison.settings]
    told = [] if settings else ["nothing"]
    yield "What was set differently", [["setting", *names], *settings] if settings else [], told
    for run in range(1, len(names)):
        yield from _change(comparison, run)
    shown = [figure for figure in comparison.figures if everything or figure.moved]
    equal = sum(not figure.moved for figure in comparison.figures)
    head = ["figure", names[0]]
    for name in names[1:]:
        head += [name, "change", ""]
    told = [f"{equal:,} figures are equal"] if not everything else []
    yield "Figures", [head, *map(_figure_row, shown)] if shown else [], told


def _change(comparison: Comparison, run: int) -> Iterator[Section]:
    name, pair = comparison.runs[run].name, comparison.pairs[run - 1]
    causes = comparison.causes(run)
    lines = [line for cause in causes for line in _cause(cause, run)]
    yield f"What explains {name}", [], lines or ["nothing was changed that a report knows"]
    if not (comparison.runs[0].has_requests and comparison.runs[run].has_requests):
        told = ["requests are not known: replay with --per-request, and leave requests.jsonl beside the report"]
        yield f"What moved in {name}", [], told
        return
    changed = ", ".join(f"{stage} {_signed_ms(value)}" for stage, value in comparison.stages(run).items())
    told = [f"over the {int(pair.both.sum()):,} requests that completed in both: {changed}"]
    if pair.only_first or pair.only_second:
        told.append(
            f"{pair.only_first:,} requests only in {comparison.runs[0].name}, {pair.only_second:,} only in {name}"
        )
    yield f"Where the time went in {name}", [], told
    for what, moved in (("Requests", comparison.requests(run)), ("Plays", comparison.plays(run))):
        rows = [[what.lower().removesuffix("s"), "before", "after", "change", "why"], *map(_moved_row, moved)]
        yield f"{what} that moved most in {name}", rows if moved else [], [] if moved else ["none"]


def _cause(cause: Cause, run: int) -> Iterator[str]:
    settings = ", ".join(f"{field} {_value(old)} → {_value(new)}" for field, old, new in cause.settings)
    yield f"{cause.title}: {settings}"
    told = [f"{figure.name} {_value(figure.values[0])} → {_value(figure.values[run])}" for figure in cause.figures]
    if cause.evidence:
        told.append(f"requests: {', '.join(cause.evidence)}")
    if cause.explains_ms:
        told.append(f"explains {_signed_ms(cause.explains_ms)} over all requests")
    for line in told:
        yield f"    {line}"


def _moved_row(moved: Moved) -> list[str]:
    return [moved.name, _ms(moved.first_ms), _ms(moved.second_ms), _signed_ms(moved.change_ms), _why(moved)]


def _why(moved: Moved) -> str:
    """Return why something moved: what most of the change lies in, and what else is known of it."""
    parts = [moved.reason]
    changes = [f"{stage} {_signed_ms(change)}" for stage, change in moved.by_stage.items() if abs(change) >= 0.05]
    if moved.reason != "ended" and changes:
        parts[0] += f" ({', '.join(changes)})"
    if moved.reused:
        parts.append(f"{moved.reused:+,} tokens reused")
    if moved.readmissions:
        parts.append(f"{moved.readmissions:+,} preemptions")
    if moved.elsewhere:
        parts.append("on another worker" if moved.elsewhere == 1 else f"{moved.elsewhere:,} on another worker")
    return "; ".join(parts)


def _figure_row(figure: Figure) -> list[str]:
    row = [figure.name, _value(figure.values[0])]
    for run in range(1, len(figure.values)):
        change, relative = figure.absolute(run), figure.relative(run)
        row += [_value(figure.values[run]), _signed(change), _percent(relative)]
    return row


def _percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    text = f"{abs(share):.1%}"
    return text if text == "0.0%" else ("+" if share > 0 else "−") + text


def _value(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1 else f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _signed(value: Number | None) -> str:
    if value is None:
        return NOTHING
    if not value:
        return "0"
    return ("+" if value > 0 else "−") + _value(abs(value))


def _ms(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.1f} ms" if abs(value) < 1000 else f"{value / 1000:,.2f} s"


def _signed_ms(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "0" if abs(value) < 5e-4 else ("+" if value > 0 else "−") + _ms(abs(value))


def miss_line(miss: Miss, names: Sequence[str]) -> str:
    """Return what became worse than it may, in a line."""
    side = "at least" if higher_is_better(miss.name) else "at most"
    worst = f"{side} {_value(miss.worst)} was allowed" if miss.worst is not None else "there was nothing to hold it to"
    return f"{names[miss.run]}: {miss.name} is {_value(miss.found)}, was {_value(miss.first)}; {worst}"
