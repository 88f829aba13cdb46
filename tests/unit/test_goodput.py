"""Bounds and goodput: what holds them, of what the shares are, and that both tools' files are read."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from playproof_spec.findings import Severity

import playproof as pp
from playproof.config import DEFAULT_CONFIGURATION, parse_configuration
from playproof.goodput import NO_BOUNDS, goodput, least_share
from playproof.report import Trajectories

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAN = math.nan
DEPLOYMENT = pp.Deployment(workers=2, blocks=160, timing=pp.FixedTiming(prefill_ms=40, decode_ms=12))

# Five requests that ended: one of each kind.
COLUMNS: Any = SimpleNamespace(
    #                 all well, late first token, slow gaps, one token, failed
    completed=np.array([True, True, True, True, False]),
    ttft_ms=np.array([100.0, 101.0, 50.0, 100.0, NAN]),
    tpot_ms=np.array([20.0, 10.0, 20.1, NAN, NAN]),
    e2e_ms=np.array([500.0, 400.0, 900.0, 100.0, NAN]),
    output=np.array([10, 20, 30, 1, 0]),
)
PLAYS = Trajectories(total=4, completed=2, failed=1, incomplete=2, e2e_latency_ms=np.array([1000.0, 2000.0, NAN, NAN]))
# One more was skipped after the failure.
COUNTS = {"num_requests": 5, "skipped_requests": 1}


def test_a_request_is_good_when_it_holds_every_bound() -> None:
    figures = goodput(pp.Sla(ttft_ms=100, itl_ms=20), COLUMNS, PLAYS, COUNTS, 2.0)
    assert figures["sla"] == {
        # Of six requests one failed and one was skipped: neither holds anything.
        "ttft_ms": {"bound_ms": 100.0, "asked": 6, "held": 3, "share": 0.5},
        # A single token has no gap to bound.
        "itl_ms": {"bound_ms": 20.0, "asked": 5, "held": 2, "share": 0.4},
    }
    assert figures["goodput_completed_requests"] == 2  # the first and the one with a single token
    assert figures["goodput_request_share"] == pytest.approx(2 / 6)
    assert figures["goodput_request_throughput_rps"] == 1.0
    assert figures["goodput_output_throughput_tok_s"] == 5.5
    assert (figures["goodput_completed_trajectories"], figures["goodput_trajectory_share"]) == (None, None)
    assert least_share(figures) == pytest.approx(2 / 6)


def test_a_bound_on_plays_is_of_those_that_are_over() -> None:
    figures = goodput(pp.Sla(trajectory_ms=1000), COLUMNS, PLAYS, COUNTS, 2.0)
    # Two completed and one failed; the fourth was still running.
    assert figures["sla"] == {"trajectory_ms": {"bound_ms": 1000.0, "asked": 3, "held": 1, "share": 1 / 3}}
    assert (figures["goodput_completed_trajectories"], figures["goodput_completed_requests"]) == (1, None)
    assert least_share(figures) == 1 / 3
    both = goodput(pp.Sla(trajectory_ms=2000, e2e_ms=100), COLUMNS, PLAYS, COUNTS, 2.0)
    assert least_share(both) == both["goodput_request_share"] == 1 / 6 < both["goodput_trajectory_share"]


def test_nothing_asked_shows_nothing() -> None:
    empty: Any = SimpleNamespace(**{name: values[:0] for name, values in vars(COLUMNS).items()})
    figures = goodput(pp.Sla(ttft_ms=1), empty, PLAYS, {"num_requests": 0, "skipped_requests": 0}, 0.0)
    assert figures["sla"]["ttft_ms"]["share"] is None
    assert least_share(figures) is None
    assert least_share(NO_BOUNDS) is None


@pytest.mark.parametrize("bound", [0, -1, "5", True, math.inf])
def test_a_bound_is_above_zero(bound: Any) -> None:
    with pytest.raises(pp.InvalidDeployment, match=r"Sla\.ttft_ms"):
        pp.Sla(ttft_ms=bound)


CONTROLLED = pp.Load(lanes=2, snapshot_seed=1, warmup=True, profile=pp.Profile(duration_seconds=60))


@pytest.mark.parametrize("offered", [pp.Load(lanes=3), CONTROLLED])
@pytest.mark.parametrize("sla", [pp.Sla(ttft_ms=50, itl_ms=12.2, trajectory_ms=30_000), pp.Sla(e2e_ms=1000)])
def test_goodput_is_what_the_lines_say(offered: pp.Load, sla: pp.Sla) -> None:
    trace = pp.load(EXAMPLES / "weka")
    report = pp.replay(trace, DEPLOYMENT, offered, sla=sla)
    figures, lines = report.to_dict(), list(report.request_dicts())

    def holds(line: dict[str, Any], name: str, bound: float | None) -> bool:
        return bound is None or line[name] is None or line[name] <= bound

    good = [
        line
        for line in lines
        if line["terminal_status"] == "completed"
        and holds(line, "ttft_ms", sla.ttft_ms)
        and holds(line, "tpot_ms", sla.itl_ms)
        and holds(line, "e2e_latency_ms", sla.e2e_ms)
    ]
    seconds = figures["duration_ms"] / 1000
    assert 0 < len(good) < len(lines)
    assert figures["goodput_completed_requests"] == len(good)
    assert figures["goodput_output_throughput_tok_s"] == sum(line["output_length"] for line in good) / seconds
    # Bounds are asked of a run, they do not change it.
    bare = pp.replay(trace, DEPLOYMENT, offered, per_request=False).to_dict()
    assert bare["digests"]["ledger"] == figures["digests"]["ledger"]
    assert bare["digests"]["configuration"] == figures["digests"]["configuration"]
    assert {name: bare[name] for name in NO_BOUNDS} == NO_BOUNDS


PEERS = b"""
evaluation: {sla: {ttft_ms: 500, itl_ms: 50}}
execution:
  resources: {memory_limit_gb: auto, cpu_limit: 4, reserve_memory_gb: 0.0, shutdown_timeout_seconds: 5}
"""


def test_one_file_serves_both_tools() -> None:
    read = parse_configuration(DEFAULT_CONFIGURATION + PEERS, file="both.yaml")
    assert read.sla == pp.Sla(ttft_ms=500, itl_ms=50)
    assert [note.where.field.rpartition(".")[2] for note in read.notes] == [
        *("shutdown_timeout_seconds", "memory_limit_gb", "cpu_limit", "reserve_memory_gb")
    ]
    assert {note.severity for note in read.notes} == {Severity.NOTE}
    assert read.notes[0].where.line == 10
    report = pp.run(msgspec.structs.replace(read, paths=(EXAMPLES / "weka",)))
    assert report.to_dict()["finding_counts"]["config-no-effect"] == 4
    assert report.findings.warnings == 0


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("evaluation: {sla: {ttft_ms: 0}}", "evaluation.sla.ttft_ms"),
        ("evaluation: {sla: {ttfp_ms: 5}}", "evaluation.sla.ttfp_ms"),
        ("evaluation: {sla: 5}", "evaluation.sla"),
        ("execution: {resources: {cpu_limit: 0}}", "execution.resources.cpu_limit"),
        ("execution: {resources: {memory_limit_gb: all}}", "execution.resources.memory_limit_gb"),
        ("execution: {resource: {}}", "execution.resource"),
    ],
)
def test_what_neither_tool_reads_is_refused_by_name(section: str, field: str) -> None:
    with pytest.raises(pp.InvalidDeployment) as refused:
        parse_configuration(DEFAULT_CONFIGURATION + section.encode())
    (problem,) = refused.value.findings.items
    assert problem.where.field == field
    assert problem.where.line == 7


def test_no_bound_is_no_sla() -> None:
    for section in ("evaluation: null", "evaluation: {sla: null}", "evaluation: {sla: {}}", "execution: {}"):
        assert parse_configuration(DEFAULT_CONFIGURATION + section.encode()).sla is None
