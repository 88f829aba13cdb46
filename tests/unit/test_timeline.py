"""The timeline of a run: its slices add up to what the report says, nest, and are joined by the graph's edges."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import playproof as pp
from playproof.deployment import AnyDeployment
from playproof.report import Report
from playproof.stages import STAGES
from playproof.timeline import FIRST_PLAY, _rows

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMING = pp.FixedTiming(prefill_ms=40, decode_ms=12)
ROLE: dict[str, Any] = {"blocks": 320, "timing": TIMING}
PAIR = pp.Disaggregated(
    prefill=pp.PrefillRole(**ROLE),
    decode=pp.DecodeRole(workers=2, **ROLE),
    transfer=pp.Transfer(bytes_per_token=98304, bandwidth_gb_per_second=5),
)
RUNS: dict[str, tuple[AnyDeployment, pp.Load]] = {
    "aggregated": (pp.Deployment(workers=2, blocks=160, max_sequences=2, timing=TIMING), pp.Load(lanes=5)),
    "pair": (PAIR, pp.Load(lanes=5)),
    "sglang": (pp.Deployment(backend="sglang", workers=2, blocks=160, timing=TIMING), pp.Load()),
    # Prompts of more than 40 blocks are rejected, and what follows them is skipped.
    "rejected": (pp.Deployment(blocks=40, timing=TIMING), pp.Load(lanes=2)),
    "profile": (
        pp.Deployment(workers=2, blocks=160, timing=TIMING),
        pp.Load(lanes=2, snapshot_seed=1, warmup=True, profile=pp.Profile(duration_seconds=60)),
    ),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, list[Any]]:
    deployment, load = RUNS[request.param]
    report = pp.replay(pp.load(EXAMPLES / "weka"), deployment, load)
    path = report.write_timeline(tmp_path_factory.mktemp("timeline") / "trace.json")
    document = json.loads(path.read_text())
    assert document["otherData"]["simulated"] == report.simulated
    return report, document["traceEvents"]


def slices(events: list[Any], category: str, name: str | None = None) -> list[Any]:
    chosen = [event for event in events if event["ph"] == "X" and event["cat"] == category]
    return [event for event in chosen if name is None or event["name"] == name]


def ms(events: list[Any]) -> float:
    return float(sum(event["dur"] for event in events)) / 1000


def test_the_slices_are_the_reports_times(run: tuple[Report, list[Any]]) -> None:
    report, events = run
    figures, lines = report.to_dict(), list(report.request_dicts())
    requests = slices(events, "request")
    assert len(requests) == len(lines)
    completed = [event for event in requests if event["args"]["status"] == "completed"]
    assert len(completed) == figures["completed_requests"]
    wanted = figures["mean_e2e_latency_ms"] * figures["num_e2e_latency_samples"]
    assert ms([event for event in completed if event["args"]["output"]]) == pytest.approx(wanted)
    # What requests were in is all of their time.
    assert sum(ms(slices(events, "stage", stage)) for stage in STAGES) == pytest.approx(ms(requests))
    assert sum(event["args"]["output"] for event in completed) == figures["total_output_tokens"]


def test_plays_last_as_long_as_their_trajectories(run: tuple[Report, list[Any]]) -> None:
    report, events = run
    figures = report.to_dict()
    ended = {outcome["play_id"] for outcome in figures["agentic_play_outcomes"] if outcome["status"] == "completed"}
    spans = [event for event in slices(events, "play") if event["name"] in ended]
    if report.load.profile is not None:
        # A trajectory under a snapshot begins when its lane starts, not with its first dispatch.
        assert len(spans) == figures["completed_trajectories"]
        return
    assert len(spans) == figures["completed_trajectories"]
    mean = figures["mean_trajectory_e2e_latency_ms"]
    assert ms(spans) == pytest.approx((mean or 0.0) * len(spans))


def test_slices_of_a_thread_nest(run: tuple[Report, list[Any]]) -> None:
    _, events = run
    threads: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((begin, -round((event["ts"] + event["dur"]) * 1000)))
    for spans in threads.values():
        open_until: list[int] = []
        for begin, end in sorted(spans):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)


def test_arrows_join_the_ends_of_edges(run: tuple[Report, list[Any]]) -> None:
    report, events = run
    lines = {line["request_id"] if report.load.profile is None else None for line in report.request_dicts()}
    tails = {event["id"]: event for event in events if event["ph"] == "s"}
    heads = {event["id"]: event for event in events if event["ph"] == "f"}
    assert tails.keys() == heads.keys()
    if report.load.profile is None:
        graph = report.proven.graph
        targets = graph.edge_target()
        both = sum(
            graph.request_ids[source] in lines and graph.request_ids[target] in lines
            for source, target in zip(graph.edge_source.tolist(), targets.tolist(), strict=True)
        )
        assert len(tails) == both > 0
    begins = {(event["pid"], event["tid"], event["ts"]) for event in slices(events, "request")}
    for number, tail in tails.items():
        head = heads[number]
        assert (head["pid"], head["tid"], head["ts"]) in begins
        assert (tail["ts"] <= head["ts"], tail["pid"], tail["name"]) == (True, head["pid"], head["name"])
        assert any(
            event["ts"] <= tail["ts"] < event["ts"] + max(event["dur"], 0.001)
            for event in slices(events, "request")
            if (event["pid"], event["tid"]) == (tail["pid"], tail["tid"])
        )


def test_counters_are_what_the_slices_say(run: tuple[Report, list[Any]]) -> None:
    _, events = run
    area: dict[str, float] = defaultdict(float)
    series: dict[Any, list[Any]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            series[event["pid"], event["name"]].append((event["ts"], event["args"]["requests"]))
    for (pid, name), points in series.items():
        assert pid < FIRST_PLAY
        assert points == sorted(points)
        assert points[-1][1] == 0
        assert min(level for _, level in points) >= 0
        for (since, level), (until, _) in itertools.pairwise(points):
            area[name] += level * (until - since) / 1000
    assert area["waiting"] == pytest.approx(ms(slices(events, "stage", "waited")), abs=1e-6)
    assert area["moving"] == pytest.approx(ms(slices(events, "stage", "transferred")), abs=1e-6)
    held = ms(slices(events, "worker", "prefill")) + ms(slices(events, "worker", "decode"))
    assert area["running"] == pytest.approx(held)


def test_every_process_and_thread_has_a_name(run: tuple[Report, list[Any]]) -> None:
    _, events = run
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xsf"}
    assert used <= named
    assert {event["pid"] for event in events} <= processes


def test_compressed_and_plain_hold_the_same(run: tuple[Report, list[Any]], tmp_path: Path) -> None:
    report, _ = run
    plain, packed = (report.write_timeline(tmp_path / name) for name in ("a.json", "a.json.gz"))
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size


def test_without_captured_requests_there_is_nothing_to_show() -> None:
    deployment, load = RUNS["profile"]
    report = pp.replay(pp.load(EXAMPLES / "weka"), deployment, load, per_request=False)
    with pytest.raises(ValueError, match="per_request=True"):
        report.write_timeline("nowhere.json")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 5)), max_size=30))
def test_rows_do_not_overlap_and_are_as_few_as_can_be(spans: list[tuple[str, int, int]]) -> None:
    begin, end = [float(since) for _, since, _ in spans], [float(since + dur) for _, since, dur in spans]
    rows = _rows([group for group, _, _ in spans], begin, end, by_group=True)
    for group in "ab":
        mine = [index for index, span in enumerate(spans) if span[0] == group]
        for one in mine:
            for other in mine:
                if one < other and rows[one] == rows[other]:
                    assert end[one] <= begin[other] or end[other] <= begin[one]
        most = max((sum(begin[o] <= begin[i] < end[o] or o == i for o in mine) for i in mine), default=0)
        # Spans of no length may meet on a row of their own.
        assert len({rows[index] for index in mine}) <= max(most, 0) + sum(begin[i] == end[i] for i in mine)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from playproof.cli import main

    path = tmp_path / "trace.json.gz"
    assert main(["replay", "--config", str(EXAMPLES / "deployment.yaml"), "--timeline", str(path)]) == 0
    assert f"written {path}" in capsys.readouterr().out
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
