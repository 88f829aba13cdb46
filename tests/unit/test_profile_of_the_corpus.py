"""An hour of profile of the public Weka corpus, cold and warmed, on each engine in each topology."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from playproof_spec.certificate import ProvenGraph

import playproof as pp
from playproof.controlled import ControlledReport

ARCHIVE = "kv-cache-tester-710traces.tar.xz"
LANES, SEED, HOUR_MS = 32, 42, 3_600_000.0
# Room for the conversations of all lanes at once.
TOKENS = 8_388_608
LOADS = {
    name: pp.Load(lanes=LANES, snapshot_seed=SEED, warmup=name == "warm", profile=pp.Profile())
    for name in ("cold", "warm")
}


def role(size: int) -> dict[str, Any]:
    return {"blocks": TOKENS // size, "block_size": size, "timing": pp.PolynomialTiming()}


def pair(backend: Any, size: int) -> pp.Disaggregated:
    return pp.Disaggregated(
        backend=backend,
        prefill=pp.PrefillRole(**role(size)),
        decode=pp.DecodeRole(**role(size)),
        transfer=pp.Transfer(bytes_per_token=98_304, bandwidth_gb_per_second=50.0),
    )


DEPLOYMENTS: dict[str, pp.Deployment | pp.Disaggregated] = {
    "vllm": pp.Deployment(backend="vllm", **role(64)),
    "vllm 1P1D": pair("vllm", 64),
    "sglang": pp.Deployment(backend="sglang", **role(1)),
    "sglang 1P1D": pair("sglang", 1),
}


@pytest.fixture(scope="module")
def corpus(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ProvenGraph:
    archive = data_dir / "weka" / ARCHIVE
    if not archive.exists():
        pytest.skip(f"the public corpus is not at {archive}")
    folder = tmp_path_factory.mktemp("corpus")
    # Python 3.11.0 to 3.11.3 know no filters.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **options)
    trace = pp.load(folder)
    assert len(trace.graph.plays) == 710
    return trace


def profiled(corpus: ProvenGraph, name: str, kind: str, *, per_request: bool = True) -> ControlledReport:
    made = pp.replay(corpus, DEPLOYMENTS[name], LOADS[kind], per_request=per_request)
    assert isinstance(made, ControlledReport)
    return made


def as_bytes(report: ControlledReport) -> bytes:
    document = report.to_dict()
    del document["wall_time_ms"]
    return json.dumps(document).encode()


def continued(report: ControlledReport) -> list[dict[str, Any]]:
    """Lines of the requests with which the cut plays go on: the first of each lane."""
    first: dict[int, dict[str, Any]] = {}
    for line in report.request_dicts():
        lane = line["lane"]
        if line["play_ordinal"] == 0 and line["terminal_status"] == "completed":
            if lane not in first or line["dispatched_at_ms"] < first[lane]["dispatched_at_ms"]:
                first[lane] = line
    return list(first.values())


def share_cached(lines: list[dict[str, Any]]) -> float:
    reused = sum(line["first_admission_g1_reused_input_tokens"] for line in lines)
    return float(reused / sum(line["input_length"] for line in lines))


def check_invariants(report: ControlledReport) -> None:
    document = report.to_dict()
    profile, outcomes = document["agentic_profile"], document["agentic_play_outcomes"]
    assert document["valid"]
    assert profile["issued_requests"] == document["num_requests"]
    ends = ("completed_requests", "failed_requests", "rejected_requests", "canceled_requests")
    assert sum(document[name] for name in ends) == document["num_requests"] > 2000
    assert profile["plays_started"] == len(outcomes) == document["total_trajectories"] > LANES
    assert profile["never_issued_requests"] == sum(play["never_issued_requests"] for play in outcomes)
    # A lane has one play at a time, each from the end of the one before; none begins after the cutoff.
    for lane in range(LANES):
        mine = [play for play in outcomes if play["lane"] == lane]
        assert [play["play_ordinal"] for play in mine] == list(range(len(mine)))
        assert [play["started_at_ms"] for play in mine] == [0.0, *(play["causal_terminal_ms"] for play in mine[:-1])]
        assert mine[-1]["started_at_ms"] < HOUR_MS
        assert all(play["status"] in ("completed", "failed") for play in mine[:-1])
    grace_ms = profile["response_grace_deadline_ms"] - profile["profile_start_ms"]
    for line in report.request_dicts():
        assert 0 <= line["dispatched_at_ms"] < HOUR_MS
        assert line["dispatched_at_ms"] <= line["terminal_time_ms"] <= grace_ms
        assert line["output_length"] == line["requested_output_length"] or line["terminal_status"] != "completed"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_an_hour_of_profile(corpus: ProvenGraph, name: str) -> None:
    warm = profiled(corpus, name, "warm")
    check_invariants(warm)
    again = profiled(corpus, name, "warm")
    assert as_bytes(warm) == as_bytes(again)
    assert list(warm.request_dicts()) == list(again.request_dicts())
    cold = profiled(corpus, name, "cold")
    check_invariants(cold)
    before, after = continued(cold), continued(warm)
    assert len(before) == len(after) == LANES
    assert share_cached(before) < 0.2
    assert share_cached(after) > 0.8
    ttft_ms = [sum(line["ttft_ms"] for line in lines) / LANES for lines in (before, after)]
    assert ttft_ms[1] < ttft_ms[0] / 2


def test_capture_changes_no_figure(corpus: ProvenGraph) -> None:
    kept, left = (profiled(corpus, "vllm 1P1D", "warm", per_request=wanted).to_dict() for wanted in (True, False))
    for document in (kept, left):
        del document["wall_time_ms"]
        for snapshot in document["agentic_snapshots"]:
            snapshot["requests"] = None
    assert kept == left
