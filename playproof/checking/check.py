"""The checker as a whole: read, match, and try every rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from playproof_spec.graph import Graph

from playproof.checking import lines as reading
from playproof.checking import matching, outcomes, profile, snapshot
from playproof.checking.admissions import check_admissions
from playproof.checking.driver import check_driver, check_lanes, course_of
from playproof.checking.engines import check_engines
from playproof.checking.figures import check_figures
from playproof.checking.plays import finite_plays
from playproof.checking.provenance import Settings, check_provenance
from playproof.checking.requests import check_requests
from playproof.checking.run import Run, online_of
from playproof.checking.settings import Int64, read_deployment, read_load
from playproof.checking.verdict import RULES, Tally, Verdict

# What a run without run controls has nothing of.
CONTROLS = ("run-snapshot", "run-phase", "run-profile")


def check_lines(
    graph: Graph,
    lines: reading.Lines,
    report: Mapping[str, Any] | None = None,
    deployment: Settings = None,
    load: Settings = None,
    *,
    may_cancel: bool = False,
) -> Verdict:
    """Check the lines of a run, and its report, against the trace and the rules.

    Parameters
    ----------
    graph : Graph
        Of the trace, proven: its edges lead to requests of their own plays, without circles.
    lines : bytes, iterable of bytes, or iterable of mappings
        `requests.jsonl` whole, in pieces, or what `Report.request_dicts` yields. Nothing in them is trusted.
    report : mapping, optional
        `report.json`. Without it figures, outcomes, and the evidence of run controls are not checked.
    deployment : Deployment, Disaggregated or mapping, optional
        What the run was on; None where that is not known: then nothing is checked of workers, memory and reuse.
    load : Load or mapping, optional
        What was offered; every play at its recorded time by default.
    may_cancel : bool
        Whether the caller gave a finite run a list of cancellations.

    Returns
    -------
    Verdict

    Notes
    -----
    O(lines + edges + runs of hash ids), but for sorting. Nothing of the kernel is called or imported.

    Examples
    --------
    >>> from playproof_spec.sketch import sketch
    >>> verdict = check_lines(sketch([{"request_id": "a"}]), [])
    >>> verdict.ok, verdict.rule("run-missing").broken
    (False, 1)
    """
    tally = Tally()
    number, kind = examine(graph, lines, report, deployment, load, tally, may_cancel=may_cancel)
    tally.skip("files and digests are compared where files are given", ("run-file", "run-digest"))
    return tally.verdict(number, kind)


def examine(
    graph: Graph,
    lines: reading.Lines,
    report: Mapping[str, Any] | None,
    deployment: Settings,
    load: Settings,
    tally: Tally,
    *,
    may_cancel: bool = False,
) -> tuple[int, str]:
    """Try every rule on a run, count into `tally`, and return how many lines there are and which kind of run it is.

    The parameters are those of :func:`check_lines`.
    """
    offered = read_load(load, tally, "load")
    given = read_deployment(deployment, tally, "deployment")
    columns, number = reading.read_lines(lines, tally)
    if offered is None:
        tally.skip("the load cannot be read", RULES)
        return number, "unknown"
    digest = ""
    cuts: tuple[snapshot.Cut, ...] = ()
    if offered.seed is not None:
        digest = snapshot.digest_of(columns, report)
        plays, cuts = snapshot.cut_plays(graph, offered, digest, columns, report, tally)
    else:
        plays = finite_plays(graph, offered)
    rows, occurrence = matching.match(graph, plays, columns, offered.seed is not None, tally)
    known = columns.of(rows)
    row = _rows_of(plays.count, occurrence)
    online = online_of(columns, report, tally)
    run = Run(graph, plays, known, occurrence, row, offered, given, report, online, may_cancel, tally)
    if report is not None and report.get("valid") is False and offered.warmup:
        # Preparation failed: there is nothing but its evidence.
        outcomes.check_phases(run, cuts, digest)
        tally.skip("the run is invalid: nothing was measured", RULES)
        return number, _kind(run)
    _check(run, cuts, digest, deployment, load)
    return number, _kind(run)


def _rows_of(count: int, occurrence: Int64) -> Int64:
    row: Int64 = np.full(count, -1, np.int64)
    row[occurrence] = np.arange(len(occurrence))
    return row


def _check(run: Run, cuts: tuple[snapshot.Cut, ...], digest: str, deployment: Settings, load: Settings) -> None:
    matching.check_order(run)
    matching.check_identity(run, digest)
    course = course_of(run)
    check_driver(run, course)
    check_lanes(run, course)
    check_requests(run)
    check_admissions(run)
    check_engines(run)
    if run.controlled:
        snapshot.check_snapshots(run, cuts, digest)
        outcomes.check_phases(run, cuts, digest)
        profile.check_profile(run, course)
    else:
        run.tally.skip("the load has no run controls", CONTROLS)
    check_provenance(run, deployment, load)
    outcomes.check_outcomes(run, course, digest)
    check_figures(run, course)


def _kind(run: Run) -> str:
    """Return in words which kind of run it is."""
    if run.controlled:
        kind = "profile from a snapshot" if run.load.profile is not None else "snapshot"
        kind += ", warmed" if run.load.warmup else ""
    else:
        kind = "finite" if run.load.stop_ns < 0 else "stopped"
        kind += " replay of sessions" if run.ordinary else " replay"
    if run.online is None:
        return f"{kind}, offline"
    servers = {True: "mock workers", False: "servers", None: "unknown servers"}[run.online.mock]
    return f"{kind}, online on {servers}" + (", maybe ended early" if run.online.partial else "")
