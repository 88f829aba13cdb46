"""What a request waited for: on every request of a corpus, against its lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import playproof as pp
from playproof.cli import main
from playproof.report import Report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMING = pp.FixedTiming(prefill_ms=40, decode_ms=12)
ROLE: dict[str, Any] = {"blocks": 320, "timing": TIMING}


@pytest.fixture(scope="module", params=["aggregated", "pair", "profile"])
def report(request: pytest.FixtureRequest) -> Report:
    proven = pp.load(EXAMPLES / "weka")
    if request.param == "pair":
        transfer = pp.Transfer(bytes_per_token=98304, bandwidth_gb_per_second=2)
        roles: dict[str, Any] = {"prefill": pp.PrefillRole(**ROLE), "decode": pp.DecodeRole(**ROLE)}
        return pp.replay(proven, pp.Disaggregated(transfer=transfer, **roles), pp.Load(lanes=5))
    deployment = pp.Deployment(workers=2, blocks=160, max_sequences=2, timing=TIMING)
    if request.param == "profile":
        return pp.replay(proven, deployment, pp.Load(lanes=2, snapshot_seed=1, profile=pp.Profile(duration_seconds=60)))
    return pp.replay(proven, deployment, pp.Load(lanes=5))


def test_every_request_is_explained(report: Report) -> None:
    lines = {line["source_request_id"]: line for line in reversed(list(report.request_dicts()))}
    for name, line in lines.items():
        explained = report.explain(name)
        assert explained.dispatched_ms == line["dispatched_at_ms"]
        assert sum(explained.spent_ms.values()) == pytest.approx(explained.took_ms)
        assert explained.took_ms == pytest.approx(line["terminal_time_ms"] - line["dispatched_at_ms"])
        for condition in explained.conditions:
            assert condition.decided == (abs(condition.due_ms - explained.dispatched_ms) < 1e-6)
        if report.load.profile is None:
            # Something decided its start, and nothing was met later.
            assert explained.conditions[0].decided
            assert explained.conditions[0].due_ms == pytest.approx(explained.dispatched_ms)
            last = explained.chain[-1]
            assert "recorded time" in last or "its play started" in last
        assert json.loads(msgspec.json.encode(explained.to_dict()))["request_id"] == name
        assert name in str(explained)


def test_the_slowest_is_found(report: Report) -> None:
    took = {
        line["source_request_id"]: line["e2e_latency_ms"]
        for line in report.request_dicts()
        if line["e2e_latency_ms"] is not None
    }
    assert report.explain("slowest").took_ms == pytest.approx(
        max(line["e2e_latency_ms"] or 0 for line in report.request_dicts())
    )
    assert took


def test_a_request_that_there_is_not(report: Report) -> None:
    with pytest.raises(pp.NoSuchRequest, match="similar: fix-a-bug:outer:"):
        report.explain("fix-a-bug:outr:0")


def test_the_conditions_by_hand() -> None:
    # The answer of the explorers joins three agents.
    proven = pp.load(EXAMPLES / "weka")
    report = pp.replay(proven, pp.Deployment(workers=4, timing=TIMING), pp.Load(lanes=5))
    joined = report.explain("explore-in-parallel:outer:4")
    assert [condition.kind for condition in joined.conditions].count("join") == 3
    assert [condition.due_ms for condition in joined.conditions] == sorted(
        (condition.due_ms for condition in joined.conditions), reverse=True
    )
    first = report.explain("explore-in-parallel:outer:0")
    assert [(each.kind, each.decided) for each in first.conditions] == [("play", True)]
    assert first.chain == ("explore-in-parallel:outer:0 at 0.000 s: its play started",)


def test_a_queue_names_who_left() -> None:
    # One seat: each request waits until the one before it has left.
    proven = pp.load(EXAMPLES / "weka")
    report = pp.replay(proven, pp.Deployment(max_sequences=1, timing=TIMING), pp.Load(lanes=5))
    lines = {line["request_id"]: line for line in report.request_dicts()}
    waited = [name for name, line in lines.items() if line["first_admit_ms"] > line["dispatched_at_ms"]]
    assert waited
    for name in waited:
        explained = report.explain(name)
        assert explained.running == 1
        (gone,) = explained.freed_by
        assert lines[gone]["terminal_time_ms"] == lines[name]["first_admit_ms"]
        ahead = [
            other
            for other, line in lines.items()
            if line["dispatched_at_ms"] <= lines[name]["dispatched_at_ms"] < line["first_admit_ms"] and other != name
        ]
        assert explained.waiting == len(
            [o for o in ahead if lines[o]["first_admit_ms"] <= lines[name]["first_admit_ms"]]
        )
        assert f"it was admitted when {gone} left" in str(explained)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(EXAMPLES / "deployment.yaml")
    assert main(["explain", "slowest", "--config", config]) == 0
    assert "what decided its start" in capsys.readouterr().out
    assert main(["explain", "fix-a-bug:outer:1", "--config", config, "--output", "json", "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "playproof.explanation.v1"
    assert main(["explain", "nobody\x1b[2J", "--config", config]) == 2
    told = capsys.readouterr().err
    assert "no request that ended" in told
    assert "\x1b[2J" not in told
