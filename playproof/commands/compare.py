"""`playproof compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from playproof.terminal import err, out, print_json, print_text

# A threshold of the caller's is missed.
EXIT_MISSED = 3


class View(StrEnum):
    text = "text"
    json = "json"
    markdown = "markdown"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or their report.json; the first is the baseline.")
    ],
    output: Annotated[View, typer.Option(help="What to print.")] = View.text,
    most: Annotated[int, typer.Option(min=0, help="How many moved requests and plays to tell.")] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Also figures that did not move.")] = False,
    max_regression: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=5%", help="Exit with 3 if a figure is worse than the baseline's by more; repeatable."
        ),
    ] = None,
) -> None:
    """Put runs side by side: what was set differently, what came of it, and which requests moved why."""
    from playproof.comparing import Bound
    from playproof.comparing import compare as compared
    from playproof.comparing.show import miss_line, print_comparison

    if len(runs) < 2:
        raise typer.BadParameter("name two runs or more", param_hint="RUNS")
    try:
        bounds = [Bound.parse(text) for text in max_regression or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-regression") from None
    comparison = compared(*runs, most=most)
    try:
        missed = comparison.misses(bounds)
    except KeyError as error:
        raise typer.BadParameter(error.args[0], param_hint="--max-regression") from None
    if output is View.json:
        names = [run.name for run in comparison.runs]
        regressions = [
            {"run": names[miss.run], "figure": miss.name, "first": miss.first, "found": miss.found, "worst": miss.worst}
            for miss in missed
        ]
        print_json({**comparison.to_dict(), "regressions": regressions})
    elif output is View.markdown:
        print_text(comparison.to_markdown())
    else:
        print_comparison(out, comparison, everything=everything)
    for miss in missed:
        err.print(f"regression: {miss_line(miss, [run.name for run in comparison.runs])}", markup=False)
    if missed:
        raise typer.Exit(EXIT_MISSED)
