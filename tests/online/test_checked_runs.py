"""The checker passes real online runs of every kind, and sees what is altered in them."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_server import Connection, fake_server
from online_runs import agents_of, replay, trace_of

import playproof as pp
from playproof.checking import check_lines

WEKA = str(Path(__file__).resolve().parents[2] / "examples" / "weka")
TWO_WORKERS = pp.Deployment(
    workers=2, blocks=2000, block_size=64, max_sequences=16, timing=pp.FixedTiming(prefill_ms=40, decode_ms=12)
)


def told(report: pp.Report) -> list[str]:
    return [str(item) for item in report.check().findings.items]


def test_a_finished_run_passes(tmp_path: Path) -> None:
    report = replay(agents_of(tmp_path, plays=3, rounds=2), load=pp.Load(lanes=2), deployment=TWO_WORKERS)
    assert told(report) == []
    facts = {rule.code: rule.facts for rule in report.check().rules}
    assert min(facts[rule] for rule in ("run-edge", "run-late", "run-lane", "run-latency", "run-outcome")) > 0


def test_what_is_altered_in_it_is_found(tmp_path: Path) -> None:
    """A dependent that starts before its source has ended, by a millisecond: no lateness of a client explains it."""
    trace = trace_of(tmp_path, plays=2, requests=3, delay_ms=40.0)
    report = replay(trace, deployment=TWO_WORKERS)
    document = msgspec.json.decode(report.to_json())
    lines = {line["request_id"]: line for line in report.request_dicts()}
    late = copy.deepcopy(lines)
    ended = lines["p0r0"]["terminal_time_ms"] + 39.0
    late["p0r1"]["dispatched_at_ms"] = late["p0r1"]["arrival_time_ms"] = round(ended, 6)
    for run, broken in ((lines, 0), (late, 1)):
        verdict = check_lines(trace.graph, list(run.values()), document, document["deployment"], document["load"])
        assert verdict.rule("run-edge").broken == broken


@pytest.mark.parametrize("connections", [1, 64])
def test_a_run_whose_requests_are_given_up_passes(tmp_path: Path, connections: int) -> None:
    """The server never answers; with one connection all but one request are given up before they were ever sent."""

    def answer(connection: Connection) -> None:
        connection.hang()

    trace = trace_of(tmp_path, plays=4, requests=2)
    with fake_server(answer) as url:
        report = replay(trace, url, max_connections=connections, duration_seconds=0.3, drain_seconds=0.2)
    assert report.to_dict()["canceled_requests"] == 4
    assert told(report) == []


def test_a_run_that_is_ended_early_passes(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, plays=2, requests=3, output=60)
    report = replay(trace, deployment=TWO_WORKERS, duration_seconds=1.0, drain_seconds=60)
    assert report.to_dict()["online"]["partial"] is True
    assert told(report) == []


def test_a_run_of_a_server_passes(tmp_path: Path) -> None:
    """A server whose rules nobody knows, and which fails one request."""
    failed = threading.Event()

    def answer(connection: Connection) -> None:
        if len(connection.body["prompt"]) > 32 and not failed.is_set():
            failed.set()
            connection.status("500 Internal Server Error", b"{}")
        else:
            connection.whole()

    with fake_server(answer) as url:
        report = replay(trace_of(tmp_path, plays=3, requests=3), url)
    assert report.to_dict()["failed_requests"] == 1
    assert told(report) == []


@pytest.mark.parametrize("duration", [None, 3.0])
def test_a_profile_passes(duration: float | None) -> None:
    profile = pp.Profile(duration_seconds=40, response_grace_seconds=2, cancel_drain_seconds=2, tree_idle_cap_seconds=3)
    load = pp.Load(lanes=3, snapshot_seed=42, warmup=True, profile=profile)
    more: dict[str, Any] = {} if duration is None else {"duration_seconds": duration}
    report = replay(pp.load(WEKA), load=load, deployment=TWO_WORKERS, time_scale=10.0, **more)
    assert report.to_dict()["num_requests"] > 0
    assert told(report) == []
