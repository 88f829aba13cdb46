"""Runs side by side: figures by hand, the partition of a request's time, and planted changes that are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_spec.findings import InvalidInput

import playproof as pp
from playproof.comparing import Bound, Miss
from playproof.comparing.figures import Figure, figures
from playproof.comparing.movers import REASONS, reason
from playproof.comparing.regressions import misses
from playproof.comparing.settings import KINDS, differences, kind_of
from playproof.comparing.show import markdown, miss_line
from playproof.deployment import AnyDeployment
from playproof.report import Report
from playproof.stages import MILESTONES, STAGES, spent

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMING = pp.FixedTiming(prefill_ms=40, decode_ms=12)


# Stages -------------------------------------------------------------------------------------------------------------


def one(**times: float) -> dict[str, float]:
    columns = {name: [np.nan] for name, _ in MILESTONES} | {name: [time] for name, time in times.items()}
    return {stage: float(time[0]) for stage, time in spent(columns).items()}


def test_an_aggregated_request_waits_computes_and_generates() -> None:
    times = one(dispatched_at_ms=10, first_admit_ms=15, first_token_ms=55, terminal_time_ms=115)
    assert times == {"waited": 5, "prefill": 40, "transferred": 0, "decode": 60}


def test_a_handed_over_request_waits_three_times() -> None:
    times = one(
        dispatched_at_ms=0,
        first_admit_ms=3,  # waited for the prefill worker
        source_held_ms=43,
        destination_reserved_ms=50,  # and for room at the decode worker
        destination_activated_ms=58,
        decode_admit_ms=60,  # and for its pass
        first_token_ms=72,  # which is no prefill
        terminal_time_ms=100,
    )
    assert times == {"waited": 3 + 7 + 2, "prefill": 40, "transferred": 8, "decode": 40}


def test_what_is_reserved_early_is_waited_for_by_nobody() -> None:
    times = one(
        dispatched_at_ms=0,
        destination_reserved_ms=1,
        first_admit_ms=2,
        source_held_ms=42,
        destination_activated_ms=50,
        decode_admit_ms=50,
        terminal_time_ms=60,
    )
    assert times == {"waited": 2, "prefill": 40, "transferred": 8, "decode": 10}


def test_a_refused_request_waited_for_it() -> None:
    assert one(dispatched_at_ms=4, terminal_time_ms=9) == {"waited": 5, "prefill": 0, "transferred": 0, "decode": 0}


@given(st.lists(st.one_of(st.just(np.nan), st.integers(0, 1000)), min_size=len(MILESTONES), max_size=len(MILESTONES)))
def test_the_stages_are_the_time_to_the_last_milestone(times: list[float]) -> None:
    columns = {"dispatched_at_ms": [0.0], **{name: [time] for (name, _), time in zip(MILESTONES, times, strict=True)}}
    by_stage = spent(columns)
    assert all(time[0] >= 0 for time in by_stage.values())
    # A first token after a handoff ends nothing of its own.
    if not np.isnan(times[1]):
        times = [*times[:5], np.nan, times[6]]
    assert sum(time[0] for time in by_stage.values()) == np.nanmax([0.0, *times])


# Figures, settings and bounds ----------------------------------------------------------------------------------------


def test_changes_are_from_the_first_run() -> None:
    figure = Figure("p95_ttft_ms", (100.0, 150.0, None))
    assert (figure.absolute(1), figure.relative(1), figure.absolute(2), figure.relative(2)) == (50.0, 0.5, None, None)
    assert Figure("preemptions", (0, 3)).relative(1) is None
    assert (Figure("a", (1, 1)).moved, Figure("a", (1, None)).moved) == (False, True)


def test_figures_are_numbers_of_the_run_and_no_settings() -> None:
    first = {"p95_ttft_ms": 1.0, "valid": True, "wall_time_ms": 9.0, "load": {"lanes": 3}, "sla": None}
    second = {"p95_ttft_ms": 2.0, "wall_time_ms": 8.0, "sla": {"ttft_ms": {"bound_ms": 5.0, "held": 3, "share": 0.5}}}
    assert figures([first, second]) == [
        Figure("p95_ttft_ms", (1.0, 2.0)),
        Figure("sla.ttft_ms.held", (None, 3)),
        Figure("sla.ttft_ms.share", (None, 0.5)),
    ]


def test_bounds_hold_in_the_direction_that_is_worse() -> None:
    table = [Figure("p95_ttft_ms", (100.0, 105.0, 106.0)), Figure("output_throughput_tok_s", (100.0, 95.0, 200.0))]
    assert misses(table, [Bound.parse("p95_ttft=5%")], 3) == [Miss(2, "p95_ttft_ms", 100.0, 106.0, 105.0)]
    assert misses(table, [Bound.parse("p95_ttft_ms=5")], 3) == [Miss(2, "p95_ttft_ms", 100.0, 106.0, 105.0)]
    assert misses(table, [Bound.parse("output_throughput_tok_s=5%")], 3) == []
    (miss,) = misses(table, [Bound.parse("output_throughput_tok_s=4%")], 3)
    assert (miss.run, miss.worst) == (1, 96.0)
    assert miss_line(miss, ["a", "b", "c"]) == (
        "b: output_throughput_tok_s is 95.00, was 100.00; at least 96.00 was allowed"
    )


def test_a_figure_that_is_gone_shows_nothing() -> None:
    gone = [Figure("p95_ttft_ms", (100.0, None)), Figure("goodput_request_share", (None, None))]
    assert misses(gone, [Bound.parse("p95_ttft=5%"), Bound.parse("goodput_request_share=1%")], 2) == [
        Miss(1, "p95_ttft_ms", 100.0, None, 105.0)
    ]
    with pytest.raises(KeyError, match="near: p95_ttft_ms"):
        misses(gone, [Bound.parse("p95_tfft=5%")], 2)


@pytest.mark.parametrize(
    "text", ["p95_ttft", "=5%", "p95_ttft=", "p95_ttft=-1%", "p95_ttft=5%%", "p95_ttft=nan", "a=5 ms"]
)
def test_what_is_no_bound(text: str) -> None:
    with pytest.raises(ValueError, match="is no bound"):
        Bound.parse(text)


def test_every_setting_of_a_deployment_is_of_a_kind() -> None:
    host = pp.HostOffload(num_host_blocks=4, bytes_per_token=1)
    documents = [
        {"deployment": pp.Deployment(host_offload=host, router=pp.KvRouter()).to_dict(), "load": pp.Load().to_dict()},
        {"deployment": pp.Disaggregated().to_dict(), "digests": {"input": "a"}},
    ]
    kinds = {difference.field: kind_of(difference.field).code for difference in differences(documents)}
    assert kinds["deployment.mode"] == "topology"
    assert kinds["deployment.decode.workers"] == "workers"
    assert kinds["deployment.host_offload.num_host_blocks"] == "memory"
    assert kinds["deployment.host_offload.d2h_bandwidth_gbps"] == "link"
    assert kinds["digests.input"] == "trace"
    assert set(kinds.values()) <= {kind.code for kind in KINDS}


@pytest.mark.parametrize(
    ("by_stage", "reused", "readmissions", "wanted"),
    [
        ((5, 1, 0, 0), 0, 0, "waited"),
        ((0, 40, 0, 0), -64, 0, "recomputed"),
        ((0, 40, 0, 0), 64, 0, "computed"),
        ((0, -40, 0, 0), 64, 0, "recomputed"),
        ((1, 1, 9, 1), 0, 0, "transferred"),
        ((0, 0, 0, 7), 0, 1, "evicted"),
        ((0, 0, 0, 7), 0, 0, "decoded"),
        ((-9, 1, 0, 2), 0, 0, "waited"),  # shorter in all, by the wait
    ],
)
def test_the_reason_is_where_most_of_the_change_lies(
    by_stage: tuple[float, ...], reused: int, readmissions: int, wanted: str
) -> None:
    assert reason(dict(zip(STAGES, by_stage, strict=True)), reused, readmissions) == wanted
    assert wanted in REASONS


# Planted changes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Any:
    return pp.load(EXAMPLES / "weka")


def pair(**transfer: Any) -> pp.Disaggregated:
    role: dict[str, Any] = {"blocks": 320, "timing": TIMING}
    return pp.Disaggregated(
        prefill=pp.PrefillRole(**role), decode=pp.DecodeRole(workers=2, **role), transfer=pp.Transfer(**transfer)
    )


def aggregated(**changed: Any) -> pp.Deployment:
    return pp.Deployment(**{"workers": 2, "blocks": 160, "max_sequences": 2, "timing": TIMING, **changed})


PLANTED: dict[str, tuple[AnyDeployment, AnyDeployment, str, set[str]]] = {
    "memory": (
        aggregated(max_batched_tokens=1024),
        aggregated(max_batched_tokens=1024, blocks=80),
        "less memory",
        {"recomputed", "waited"},
    ),
    "workers": (aggregated(), aggregated(workers=1), "fewer workers", {"waited"}),
    "link": (
        pair(bytes_per_token=98304, bandwidth_gb_per_second=25),
        pair(bytes_per_token=98304, bandwidth_gb_per_second=0.5),
        "a slower link",
        {"transferred"},
    ),
    "routing": (
        aggregated(router=pp.KvRouter(), max_sequences=256),
        aggregated(max_sequences=256),
        "other routing",
        {"recomputed", "decoded"},
    ),
    "engine": (
        aggregated(max_sequences=256),
        aggregated(backend="sglang", max_sequences=256),
        "another engine",
        {"decoded", "computed", "recomputed"},
    ),
}


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_change_is_named(trace: Any, code: str) -> None:
    before, after, title, reasons = PLANTED[code]
    offered = pp.Load(lanes=5)
    comparison = pp.compare(*(pp.replay(trace, deployment, offered) for deployment in (before, after)))
    cause, *others = comparison.causes(1)
    assert (cause.code, cause.title, others) == (code, title, [])
    assert cause.evidence
    assert abs(cause.explains_ms) > 0
    assert comparison.requests(1)[0].reason in reasons
    # The stages are the whole change of how long requests took.
    took = [report.columns["terminal_time_ms"] - report.columns["dispatched_at_ms"] for report in comparison.runs]
    assert sum(comparison.stages(1).values()) == pytest.approx(took[1].sum() - took[0].sum(), abs=1e-6)
    backwards = pp.compare(*(pp.replay(trace, deployment, offered) for deployment in (after, before)))
    assert backwards.causes(1)[0].code == code
    assert backwards.causes(1)[0].explains_ms == pytest.approx(-cause.explains_ms)


def test_of_two_changes_the_one_that_explains_more_stands_first(trace: Any) -> None:
    offered = pp.Load(lanes=5)
    base = pp.replay(trace, aggregated(), offered)
    # A little less memory beside half the workers; then much less memory beside the same workers, slightly slower.
    few = pp.compare(base, pp.replay(trace, aggregated(workers=1, blocks=150), offered))
    assert [cause.code for cause in few.causes(1)] == ["workers", "memory"]


def test_workers_that_change_their_role_are_neither_more_nor_fewer(trace: Any) -> None:
    def split(prefill: int, decode: int) -> Report:
        role: dict[str, Any] = {"blocks": 320, "timing": TIMING}
        roles = pp.PrefillRole(workers=prefill, **role), pp.DecodeRole(workers=decode, **role)
        return pp.replay(trace, pp.Disaggregated(prefill=roles[0], decode=roles[1]), pp.Load(lanes=5))

    comparison = pp.compare(split(1, 2), split(2, 1))
    assert [cause.title for cause in comparison.causes(1)] == ["other workers"]


def test_equal_runs_have_nothing_to_explain(trace: Any) -> None:
    report = pp.replay(trace, aggregated(), pp.Load(lanes=3))
    comparison = pp.compare(report, report, report, names=["a", "b", "c"])
    assert (comparison.settings, comparison.causes(2), comparison.requests(2), comparison.plays(1)) == ([], [], [], [])
    assert not any(figure.moved for figure in comparison.figures)
    assert "nothing" in markdown(comparison)


def test_requests_that_end_otherwise_are_told_first(trace: Any) -> None:
    # Prompts of more than 40 blocks are rejected, and what follows them is skipped.
    comparison = pp.compare(pp.replay(trace, aggregated()), pp.replay(trace, aggregated(blocks=40)))
    first = comparison.requests(1)[0]
    assert (first.reason, first.change_ms, first.second_ms) == ("ended", None, None)
    assert comparison.pairs[0].only_first > 0
    assert comparison.causes(1)[0].code == "memory"


CONTROLLED = pp.Load(lanes=2, snapshot_seed=1, profile=pp.Profile(duration_seconds=60))


def test_runs_under_controls_are_matched_by_lane_and_play(trace: Any) -> None:
    first, second = (pp.replay(trace, aggregated(blocks=blocks), CONTROLLED) for blocks in (160, 100))
    (matched,) = pp.compare(first, second).pairs
    assert len(matched.keys) > 20
    assert all(key.startswith("lane ") for key in matched.keys)


# Files --------------------------------------------------------------------------------------------------------------


def written(report: Report, folder: Path, **how: Any) -> Path:
    report.write(folder, **how)
    return folder


def test_files_and_reports_in_memory_compare_alike(trace: Any, tmp_path: Path) -> None:
    reports = [pp.replay(trace, aggregated(blocks=blocks), pp.Load(lanes=3)) for blocks in (160, 80)]
    folders = [written(report, tmp_path / name, per_request=True) for report, name in zip(reports, "ab", strict=True)]
    from_files = pp.compare(*folders, names=["a", "b"]).to_dict()
    assert from_files == pp.compare(*reports, names=["a", "b"]).to_dict()
    assert json.loads(msgspec.json.encode(from_files)) == from_files
    assert pp.compare(folders[0] / "report.json", folders[1] / "requests.jsonl").to_dict()["figures"]


def test_without_requests_only_figures_are_told(trace: Any, tmp_path: Path) -> None:
    reports = [pp.replay(trace, aggregated(blocks=blocks), per_request=False) for blocks in (160, 80)]
    folders = [written(report, tmp_path / name) for report, name in zip(reports, "ab", strict=True)]
    # Somebody else's lines beside a report that names none are not taken for its own.
    (folders[0] / "requests.jsonl").write_text("no line\n")
    comparison = pp.compare(*folders)
    assert not comparison.runs[0].has_requests
    assert comparison.causes(1)[0].code == "memory"
    assert "replay with --per-request" in markdown(comparison)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"schema": "other"}', b"[" * 100_000])
def test_what_is_no_report_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        pp.compare(path, path)
    (problem,) = refused.value.findings.items
    assert (problem.code, problem.where.file) == ("run-file", str(path))


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"request_id": "a"}', '"text"', '{"request_id": [], "play_id": 1, "admission_history": 3}'],
)
def test_what_is_no_request_is_refused_by_line(trace: Any, tmp_path: Path, line: str) -> None:
    folder = written(pp.replay(trace, aggregated()), tmp_path, per_request=True)
    path = folder / "requests.jsonl"
    kept = path.read_text().splitlines()
    path.write_text("\n".join([*kept[:2], line, *kept[2:]]))
    with pytest.raises(InvalidInput) as refused:
        pp.compare(folder, folder)
    assert refused.value.findings.items[0].code == "run-file"
    assert refused.value.findings.items[0].where.line == 3


@pytest.mark.parametrize("name", ["dispatched_at_ms", "input_length", "decode_worker_idx"])
@pytest.mark.parametrize("value", ["text", {}, [], 2**70])
def test_values_that_no_request_has_are_refused(trace: Any, tmp_path: Path, name: str, value: Any) -> None:
    folder = written(pp.replay(trace, aggregated()), tmp_path, per_request=True)
    path = folder / "requests.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {name: value}), *rest]))
    if (name, value) == ("dispatched_at_ms", 2**70):  # a time that far is one
        assert pp.compare(folder, folder).causes(1) == []
        return
    with pytest.raises(InvalidInput) as refused:
        pp.compare(folder, folder)
    assert refused.value.findings.items[0].code == "run-file"


def test_a_comparison_needs_two(trace: Any) -> None:
    with pytest.raises(ValueError, match="two runs"):
        pp.compare("one")
    with pytest.raises(ValueError, match="one name"):
        pp.compare("one", "other", names=["a"])
    with pytest.raises(FileNotFoundError):
        pp.compare("/nowhere", "/nowhere")
