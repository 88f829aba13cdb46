"""The report: a ledger small enough to check by hand, naive twins of the statistics, and the peer's own figures."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer import as_the_peer
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.ledger import HOST_USE, NEVER, Ledger
from playproof_spec.machines import HandoffState, NodeState, PlayState, RequestState
from playproof_spec.sketch import sketch
from rich.console import Console

from playproof.api import load, replay, run
from playproof.deployment import DecodeRole, Deployment, Disaggregated, FixedTiming, Load, PrefillRole
from playproof.figures import PERCENTILES, STATISTICS, percentile_index, summarize, summarize_weighted
from playproof.files import write_whole
from playproof.render import print_report
from playproof.report import Report, ledger_digest
from playproof.requests import REQUEST_DTYPE

MS = 1_000_000


# Statistics ---------------------------------------------------------------------------------------------------------


def naive_percentile(values: list[float], percent: int) -> float:
    """The definition, in rational arithmetic: the value at round(percent/100 · (n − 1)), half away from zero."""
    place = Fraction(percent, 100) * (len(values) - 1)
    return sorted(values)[math.floor(place + Fraction(1, 2))]


latencies = st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=40)


@given(latencies, st.sampled_from(PERCENTILES))
def test_percentiles_equal_their_definition(values: list[float], percent: int) -> None:
    assert summarize(np.array(values))[f"p{percent}"] == naive_percentile(values, percent)


@given(st.integers(1, 10**7), st.integers(0, 100))
def test_percentile_index_is_within_the_values(count: int, percent: int) -> None:
    assert 0 <= percentile_index(percent, count) < count


@given(latencies)
def test_mean_and_deviation_equal_the_standard_library(values: list[float]) -> None:
    summary = summarize(np.array(values))
    assert summary["mean"] == pytest.approx(statistics.fmean(values), rel=1e-12)
    assert summary["std"] == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-6)
    assert (summary["min"], summary["max"]) == (min(values), max(values))
    assert summary["median"] == summary["p50"]


@given(st.dictionaries(st.integers(0, 10**6), st.integers(0, 5), max_size=12))
def test_weighted_statistics_equal_those_of_the_values_written_out(counts: dict[int, int]) -> None:
    values = np.array(sorted(counts), dtype=np.float64)
    weights = np.array([counts[value] for value in sorted(counts)], dtype=np.int64)
    written_out = summarize(np.repeat(values, weights))
    if not weights.sum():
        assert summarize_weighted(values, weights) == written_out == dict.fromkeys(STATISTICS)
    else:
        assert summarize_weighted(values, weights) == pytest.approx(written_out, rel=1e-12)


@given(latencies)
def test_statistics_do_not_depend_on_order(values: list[float]) -> None:
    assert summarize(np.array(values)) == summarize(np.array(values[::-1]))


def test_an_empty_set_has_no_statistics() -> None:
    assert summarize(np.empty(0)) == dict.fromkeys(STATISTICS)
    assert summarize_weighted(np.array([3.0]), np.array([0])) == dict.fromkeys(STATISTICS)


# A ledger by hand ---------------------------------------------------------------------------------------------------
#
# Two plays on two lanes, one worker. Play "a": plan (10 prompt tokens, 3 output tokens), then edit, which asks for
# nothing. Play "b": big is rejected, so its follower is skipped.
#
#   plan: dispatched 0, admitted 5, tokens at 45, 57, 69, ends 69
#   edit: dispatched 169, admitted 169, ends 209 without a token; 16 of its 20 prompt tokens were in cache
#   big:  dispatched 0, rejected 5


def hand_made() -> tuple[ProvenGraph, Ledger]:
    graph = sketch(
        [
            {"request_id": "a1", "play_id": "a", "input_length": 10, "output_length": 3},
            {"request_id": "a2", "play_id": "a", "input_length": 20, "output_length": 0, "dependencies": ["a1"]},
            {"request_id": "b1", "play_id": "b", "input_length": 5000, "output_length": 7},
            {"request_id": "b2", "play_id": "b", "input_length": 16, "output_length": 7, "dependencies": ["b1"]},
        ]
    )
    assert graph.request_ids == ("a1", "a2", "b1", "b2")

    def times(*values_ms: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([value if value < 0 else value * MS for value in values_ms], dtype=np.int64)

    never = NEVER
    ledger = Ledger(
        node_state=np.array(
            [NodeState.COMPLETED, NodeState.COMPLETED, NodeState.FAILED, NodeState.SKIPPED], dtype=np.int8
        ),
        request_state=np.array(
            [RequestState.FINISHED, RequestState.FINISHED, RequestState.REJECTED, RequestState.QUEUED], dtype=np.int8
        ),
        handoff_state=np.full(4, HandoffState.QUEUED, dtype=np.int8),
        dispatched_ns=times(0, 169, 0, never),
        first_admit_ns=times(5, 169, never, never),
        first_token_ns=times(45, never, never, never),
        second_token_ns=times(57, never, never, never),
        last_token_ns=times(69, never, never, never),
        terminal_ns=times(69, 209, 5, never),
        output_length=np.array([3, 0, 0, 0], dtype=np.int64),
        source_held_ns=times(never, never, never, never),
        destination_reserved_ns=times(never, never, never, never),
        destination_activated_ns=times(never, never, never, never),
        source_released_ns=times(never, never, never, never),
        worker=np.array([0, 0, 0, -1], dtype=np.int32),
        decode_worker=np.full(4, -1, dtype=np.int32),
        route_overlap=np.full(4, -1, dtype=np.int64),
        decode_route_overlap=np.full(4, -1, dtype=np.int64),
        admissions=np.array([2, 1, 0, 0], dtype=np.int32),
        admission_node=np.array([0, 0, 1], dtype=np.int32),
        admission_at_ns=times(5, 50, 169),
        admission_reused=np.array([0, 4, 16], dtype=np.int64),
        admission_pool_ordinal=np.array([0, 1, 0], dtype=np.int64),
        admission_host_reused=np.array([0, 0, 0], dtype=np.int64),
        admission_decode=np.zeros(3, dtype=np.bool_),
        play_state=np.array([PlayState.COMPLETED, PlayState.FAILED], dtype=np.int8),
        play_lane=np.array([0, 1], dtype=np.int32),
        play_start_ns=times(0, 0),
        play_first_dispatch_ns=times(0, 0),
        play_last_terminal_ns=times(209, 5),
        play_settled_ns=times(209, 5),
        play_failed_node=np.array([-1, 2], dtype=np.int32),
        gap_ns=times(12),
        gap_count=np.array([2], dtype=np.int64),
        passes=np.array([4], dtype=np.int64),
        busy_ns=times(104),
        prefill_tokens=np.array([14], dtype=np.int64),
        decode_tokens=np.array([3], dtype=np.int64),
        preemptions=np.array([1], dtype=np.int64),
        evictions=np.array([2], dtype=np.int64),
        hosts=np.zeros(0, HOST_USE),
        end_ns=209 * MS,
    )
    return prove(graph), ledger


@pytest.fixture
def report() -> Report:
    proven, ledger = hand_made()
    return Report(proven, ledger, Deployment(model="m"), Load(lanes=2), wall_time_ms=1.5)


def test_counts_and_rates(report: Report) -> None:
    figures = report.to_dict()
    expected = {
        "num_requests": 3,
        "completed_requests": 2,
        "failed_requests": 0,
        "rejected_requests": 1,
        "canceled_requests": 0,
        "skipped_requests": 1,
        "duration_ms": 209.0,
        "total_trajectories": 2,
        "completed_trajectories": 1,
        "failed_trajectories": 1,
        "incomplete_trajectories": 1,
        "total_input_tokens": 30,
        "total_output_tokens": 3,
        "request_throughput_rps": 2 / 0.209,
        "input_throughput_tok_s": 30 / 0.209,
        "output_throughput_tok_s": 3 / 0.209,
        "total_throughput_tok_s": 33 / 0.209,
        "first_admission_prefix_cache_reused_ratio": 16 / 30,
        "prefix_cache_reused_ratio": 20 / 30,
        "committed_prefill_tokens": 14,
        "processed_tokens": 33,
        "forward_passes": 4,
        "preemptions": 1,
        "evicted_blocks": 2,
        "prefill_worker_seconds": 0.0,
        "decode_worker_seconds": 0.209,
        "busy_worker_seconds": 0.104,
        "agentic_lanes": 2,
        "agentic_qualification": "functional_only",
        "wall_time_ms": 1.5,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "samples", "value"),
    [("ttft", 1, 45.0), ("ttst", 1, 12.0), ("tpot", 1, 12.0), ("e2e_latency", 1, 69.0), ("itl", 2, 12.0)],
)
def test_latencies_are_of_completed_requests_with_tokens(report: Report, name: str, samples: int, value: float) -> None:
    figures = report.to_dict()
    assert figures[f"num_{name}_samples"] == samples
    assert figures[f"mean_{name}_ms"] == figures[f"p99_{name}_ms"] == value
    assert figures[f"std_{name}_ms"] == 0.0


def test_trajectories_span_from_first_dispatch_to_last_completion(report: Report) -> None:
    assert report.to_dict()["mean_trajectory_e2e_latency_ms"] == 209.0
    assert report.trajectories.e2e_latency_ms[0] == 209.0
    assert np.isnan(report.trajectories.e2e_latency_ms[1])


def test_outcomes_name_the_failure(report: Report) -> None:
    completed, failed = report.to_dict()["agentic_play_outcomes"]
    assert completed == {
        "play_id": "a",
        "play_ordinal": 0,
        "lane": 0,
        "status": "completed",
        "causal_terminal_ms": 209.0,
        "settled_at_ms": 209.0,
    }
    assert failed["status"] == "failed"
    assert (failed["failure_request_id"], failed["failure_status"]) == ("b1", "rejected")


def test_request_lines(report: Report) -> None:
    plan, edit, big = report.request_dicts()
    assert plan == {
        "request_id": "a1",
        "source_request_id": "a1",
        "turn_index": None,
        "play_id": "a",
        "session_id": plan["session_id"],
        "play_ordinal": 0,
        "lane": 0,
        "phase": "profile",
        "model": "model",
        "terminal_status": "completed",
        "input_length": 10,
        "output_length": 3,
        "requested_output_length": 3,
        "arrival_time_ms": 0.0,
        "dispatched_at_ms": 0.0,
        "first_admit_ms": 5.0,
        "first_token_ms": 45.0,
        "last_token_ms": 69.0,
        "terminal_time_ms": 69.0,
        "ttft_ms": 45.0,
        "ttst_ms": 12.0,
        "tpot_ms": 12.0,
        "e2e_latency_ms": 69.0,
        "prefill_worker_idx": None,
        "decode_worker_idx": 0,
        "first_admission_reused_input_tokens": 0,
        "first_admission_g1_reused_input_tokens": 0,
        "first_admission_host_reused_input_tokens": 0,
        "readmission_count": 1,
        "admission_history": [
            {
                "admission_ordinal": ordinal,
                "pool": "agg",
                "pool_admission_ordinal": ordinal,
                "at_ms": at_ms,
                "is_readmission": ordinal > 0,
                "reused_input_tokens": reused,
                "g1_reused_input_tokens": reused,
                "host_reused_input_tokens": 0,
            }
            for ordinal, (at_ms, reused) in enumerate([(5.0, 0), (50.0, 4)])
        ],
        "source_held_ms": None,
        "destination_reserved_ms": None,
        "destination_activated_ms": None,
        "source_released_ms": None,
        "prefill_route_overlap_tokens": None,
        "decode_route_overlap_tokens": None,
    }
    assert (edit["ttft_ms"], edit["e2e_latency_ms"], edit["terminal_status"]) == (None, None, "completed")
    assert edit["first_admission_g1_reused_input_tokens"] == 16
    assert (big["terminal_status"], big["first_admit_ms"], big["admission_history"]) == ("rejected", None, [])
    assert big["requested_output_length"] == 7


def test_the_array_says_the_same(report: Report) -> None:
    rows = report.requests
    assert rows is not None
    assert rows.dtype == REQUEST_DTYPE
    assert rows["request_id"].tolist() == ["a1", "a2", "b1"]
    assert rows["terminal_status"].tolist() == ["completed", "completed", "rejected"]
    assert rows["ttft_ms"][0] == 45.0
    assert np.isnan(rows["ttft_ms"][1:]).all()


def test_aggregated_workers_are_one_role(report: Report) -> None:
    worker = {
        "busy_seconds": 0.104,
        "forward_passes": 4,
        "prefill_tokens": 14,
        "decode_tokens": 3,
        "preemptions": 1,
        "evicted_blocks": 2,
    }
    assert report.to_dict()["roles"] == {
        "aggregated": {"workers": 1, "worker_seconds": 0.209, **worker, "each": [worker]}
    }


def test_without_capture_the_figures_stay(report: Report) -> None:
    proven, ledger = hand_made()
    bare = Report(proven, ledger, Deployment(model="m"), Load(lanes=2), wall_time_ms=1.5, per_request=False)
    assert bare.requests is None
    with pytest.raises(ValueError, match="per_request"):
        bare.request_dicts()
    wall = re.compile(rb'"[^"]*wall[^"]*": [0-9.e-]+')
    assert wall.sub(b"", bare.to_json()) == wall.sub(b"", report.to_json())


def test_provenance(report: Report) -> None:
    figures = report.to_dict()
    certificate = report.proven.certificate
    assert figures["agentic_graph"] == {
        "block_size": 16,
        "graph_digest": certificate.graph_digest,
        "node_count": 4,
        "play_count": 2,
        "source": {"digest": report.proven.graph.source.digest, "format": report.proven.graph.source.format},
        "source_models": ["model"],
    }
    assert figures["agentic_model_projection"]["target_model"] == "m"
    assert set(figures["digests"]) == {"input", "graph", "tables", "configuration", "ledger", "requests"}
    assert figures["certificate"]["obligations"]
    assert msgspec.json.decode(report.to_json()) == msgspec.json.decode(msgspec.json.encode(figures))


def test_the_ledger_digest_sees_every_column() -> None:
    _, ledger = hand_made()
    digest = ledger_digest(ledger)
    assert ledger_digest(hand_made()[1]) == digest
    for field in dataclasses.fields(ledger):
        value = getattr(ledger, field.name)
        other: Any = np.zeros(1, HOST_USE)
        if field.name != "hosts":
            other = ~value if field.name == "admission_decode" else value + 1
        assert ledger_digest(dataclasses.replace(ledger, **{field.name: other})) != digest, field.name


# A prefill/decode ledger by hand ------------------------------------------------------------------------------------
#
# One play a request, two prefill workers and one decode worker.
#
#   a: dispatched 0, prefilled on worker 0 at 10, moved by 14, tokens at 16, 18, and, preempted in between, 40
#   b: dispatched 0, prefilled on worker 1 at 10 with 8 of its 20 tokens from cache, asks for nothing, over at 12
#   c: dispatched 0, prefilled on worker 0 at 20, too large for the decode worker's pool, failed


def hand_made_pair() -> Report:
    lengths = {"a": (10, 3), "b": (20, 0), "c": (400, 7)}
    graph = sketch(
        [
            {"request_id": name, "play_id": name, "input_length": prompt, "output_length": output}
            for name, (prompt, output) in lengths.items()
        ]
    )

    def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    def times(*values_ms: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return ints(*(value if value < 0 else value * MS for value in values_ms))

    never, done = NEVER, NodeState.COMPLETED
    ledger = Ledger(
        node_state=ints(done, done, NodeState.FAILED).astype(np.int8),
        request_state=ints(RequestState.FINISHED, RequestState.FINISHED, RequestState.FAILED).astype(np.int8),
        handoff_state=ints(HandoffState.COMPLETED, HandoffState.COMPLETED, HandoffState.FAILED).astype(np.int8),
        dispatched_ns=times(0, 0, 0),
        first_admit_ns=times(0, 0, 10),
        first_token_ns=times(16, never, never),
        second_token_ns=times(18, never, never),
        last_token_ns=times(40, never, never),
        terminal_ns=times(40, 12, 20),
        output_length=ints(3, 0, 0),
        source_held_ns=times(10, 10, 20),
        destination_reserved_ns=times(10, 10, never),
        destination_activated_ns=times(14, 12, never),
        source_released_ns=times(14, 12, 20),
        worker=ints(0, 1, 0).astype(np.int32),
        decode_worker=ints(0, 0, -1).astype(np.int32),
        route_overlap=ints(4, 0, 0),
        decode_route_overlap=ints(8, 0, -1),
        admissions=ints(3, 2, 1).astype(np.int32),
        admission_node=ints(0, 1, 2, 1, 0, 0).astype(np.int32),
        admission_at_ns=times(0, 0, 10, 12, 14, 30),
        admission_reused=ints(0, 8, 0, 0, 0, 4),
        admission_pool_ordinal=ints(0, 0, 0, 0, 0, 1),
        admission_host_reused=ints(0, 0, 0, 0, 0, 0),
        admission_decode=np.array([False, False, False, True, True, True]),
        play_state=ints(PlayState.COMPLETED, PlayState.COMPLETED, PlayState.FAILED).astype(np.int8),
        play_lane=ints(-1, -1, -1).astype(np.int32),
        play_start_ns=times(0, 0, 0),
        play_first_dispatch_ns=times(0, 0, 0),
        play_last_terminal_ns=times(40, 12, 20),
        play_settled_ns=times(40, 12, 20),
        play_failed_node=ints(-1, -1, 2).astype(np.int32),
        gap_ns=times(2, 22),
        gap_count=ints(1, 1),
        passes=ints(2, 1, 4),
        busy_ns=times(20, 10, 26),
        prefill_tokens=ints(410, 12, 8),
        decode_tokens=ints(0, 0, 3),
        preemptions=ints(0, 0, 1),
        evictions=ints(0, 2, 5),
        hosts=np.zeros(0, HOST_USE),
        end_ns=40 * MS,
    )
    pair = Disaggregated(
        prefill=PrefillRole(workers=2, blocks=64, block_size=16), decode=DecodeRole(blocks=8, block_size=16)
    )
    return Report(prove(graph), ledger, pair, Load())


def test_each_role_has_its_own_figures() -> None:
    figures = hand_made_pair().to_dict()
    names = ("busy_seconds", "forward_passes", "prefill_tokens", "decode_tokens", "preemptions", "evicted_blocks")

    def work(*values: float) -> dict[str, Any]:
        return dict(zip(names, values, strict=True))

    first, second, decode = work(0.02, 2, 410, 0, 0, 0), work(0.01, 1, 12, 0, 0, 2), work(0.026, 4, 8, 3, 1, 5)
    assert figures["roles"] == {
        "prefill": {"workers": 2, "worker_seconds": 0.08, **work(0.03, 3, 422, 0, 0, 2), "each": [first, second]},
        "decode": {"workers": 1, "worker_seconds": 0.04, **decode, "each": [decode]},
    }
    assert (figures["prefill_worker_seconds"], figures["decode_worker_seconds"]) == (0.08, 0.04)
    assert (figures["forward_passes"], figures["preemptions"], figures["evicted_blocks"]) == (7, 1, 7)
    assert figures["committed_prefill_tokens"] == 430
    assert figures["busy_worker_seconds"] == pytest.approx(0.056)


def test_reuse_of_a_pair_is_the_most_that_either_role_found() -> None:
    figures = hand_made_pair().to_dict()
    # Of the 30 prompt tokens of the two that completed: 0 and 8 at first; the preempted one found 4 at its decode one.
    assert figures["first_admission_prefix_cache_reused_ratio"] == 8 / 30
    assert figures["prefix_cache_reused_ratio"] == 12 / 30
    assert (figures["mean_ttft_ms"], figures["failed_requests"], figures["failed_trajectories"]) == (16.0, 1, 1)


def test_request_lines_of_a_pair() -> None:
    report = hand_made_pair()
    a, b, c = report.request_dicts()
    names = ("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms")
    assert [a[name] for name in names] == [10.0, 10.0, 14.0, 14.0]
    assert [b[name] for name in names] == [10.0, 10.0, 12.0, 12.0]
    assert [c[name] for name in names] == [20.0, None, None, 20.0]
    workers = [(row["prefill_worker_idx"], row["decode_worker_idx"]) for row in (a, b, c)]
    assert workers == [(0, 0), (1, 0), (0, None)]
    assert [row["readmission_count"] for row in (a, b, c)] == [1, 0, 0]
    assert [row["terminal_status"] for row in (a, b, c)] == ["completed", "completed", "failed"]
    assert (b["first_admission_reused_input_tokens"], b["ttft_ms"]) == (8, None)
    assert [
        (entry["admission_ordinal"], entry["pool"], entry["pool_admission_ordinal"], entry["is_readmission"])
        for entry in a["admission_history"]
    ] == [(0, "prefill", 0, False), (1, "decode", 0, False), (2, "decode", 1, True)]
    assert [(entry["at_ms"], entry["reused_input_tokens"]) for entry in a["admission_history"]] == [
        (0.0, 0),
        (14.0, 0),
        (30.0, 4),
    ]
    rows = report.requests
    assert rows is not None
    assert rows["decode_worker_idx"].tolist() == [0, 0, -1]
    assert np.isnan(rows["destination_activated_ms"]).tolist() == [False, False, True]


def test_a_play_settles_when_its_source_is_released() -> None:
    report = hand_made_pair()
    released = np.array([50 * MS, 12 * MS, NEVER], dtype=np.int64)
    ledger = dataclasses.replace(report.ledger, source_released_ns=released)
    outcomes = Report(report.proven, ledger, report.deployment, Load()).to_dict()["agentic_play_outcomes"]
    assert [outcome["causal_terminal_ms"] for outcome in outcomes] == [40.0, 12.0, 20.0]
    assert [outcome["settled_at_ms"] for outcome in outcomes] == [50.0, 12.0, 20.0]


def test_the_table_shows_both_roles() -> None:
    screen = io.StringIO()
    print_report(Console(file=screen, width=80), hand_made_pair().to_dict())
    shown = [" ".join(line.split()) for line in screen.getvalue().splitlines()]
    assert "prefill workers 2, busy 37.5%, 3 passes" in shown
    assert "decode workers 1, busy 65.0%, 4 passes" in shown
    assert "rejected, failed, skipped 0, 1, 0" in shown


def test_the_table_of_one_role_shows_no_roles(report: Report) -> None:
    screen = io.StringIO()
    print_report(Console(file=screen, width=80), report.to_dict())
    assert "workers" not in screen.getvalue()


def test_a_pair_on_which_nothing_ran_has_a_table() -> None:
    report = hand_made_pair()
    ledger = dataclasses.replace(report.ledger, end_ns=0, busy_ns=np.zeros(3, dtype=np.int64))
    screen = io.StringIO()
    print_report(Console(file=screen, width=80), Report(report.proven, ledger, report.deployment, Load()).to_dict())
    assert screen.getvalue().count("busy –") == 2


# Writing ------------------------------------------------------------------------------------------------------------


def test_written_files_equal_the_objects(report: Report, tmp_path: Path) -> None:
    written = report.write(tmp_path / "new" / "folder", per_request=True)
    assert [path.name for path in written] == ["report.json", "requests.jsonl"]
    assert written[0].read_bytes() == report.to_json()
    lines = written[1].read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(report.request_dicts())
    assert sorted(path.name for path in written[0].parent.iterdir()) == ["report.json", "requests.jsonl"]


def test_nothing_is_half_written(tmp_path: Path) -> None:
    target = tmp_path / "requests.jsonl"
    target.write_bytes(b"before")

    def failing() -> Any:
        yield b"half"
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_whole(target, failing())
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


# The peer's figures -------------------------------------------------------------------------------------------------

# Of its summary these mean something else, or nothing to us; docs/differences.md gives the reasons.
NOT_COMPARED = re.compile(
    "agentic_lifecycle_.*|kv_eviction_policy|gpu_hours|.*_gpus_per_worker|processed_(output_)?tokens_per_s"
    "|.*output_token_throughput_per_user|(median|p75|p90|p95|p99)_itl_ms"
)


def test_summaries_equal_the_peers(reference_dir: Path) -> None:
    later = re.compile("g2|shared|snapshot|warm|profile")
    compared = 0
    for case in sorted(reference_dir.glob("cases/*")):
        expected = json.loads((case / "expected.json").read_text())
        if later.search(case.name) or expected["status"] != "ok":
            continue
        configuration = as_the_peer(case / "config.yaml")
        report = replay(load(configuration.paths), configuration.deployment, configuration.load)
        figures = report.to_dict()
        for name, value in expected["summary"].items():
            if NOT_COMPARED.fullmatch(name):
                continue
            # The peer adds float milliseconds, we count nanoseconds.
            wanted = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert figures[name] == wanted, (case.name, name)
            compared += 1
        for ours, theirs in zip(figures["agentic_play_outcomes"], expected["agentic_play_outcomes"], strict=True):
            assert (ours["play_id"], ours["status"]) == (theirs["play_id"], theirs["status"]), case.name
            for name in ("causal_terminal_ms", "settled_at_ms"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-6), case.name
        assert figures["agentic_graph"] == expected["agentic_graph"]
    assert compared > 70 * 60


def test_handoff_times_equal_the_peers(reference_dir: Path) -> None:
    names = ("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms")
    later = re.compile("g2|shared|warm|profile")
    compared = 0
    for case in sorted(reference_dir.glob("cases/pd-*")):
        expected = json.loads((case / "expected.json").read_text())
        if later.search(case.name) or expected["status"] != "ok":
            continue
        ours = {line["request_id"]: line for line in run(as_the_peer(case / "config.yaml")).request_dicts()}
        for theirs in expected["requests"]:
            line = ours[theirs["request_id"]]
            assert [line[name] for name in names] == pytest.approx([theirs[name] for name in names], abs=0.001), (
                case.name
            )
            compared += 1
    assert compared > 500


def test_what_is_not_simulated_is_null(report: Report) -> None:
    document = report.to_dict()
    names = ("agentic_snapshots", "agentic_phases", "agentic_profile", "g2_domains")
    assert [document[name] for name in names] == [None] * 4


def test_the_table_fits_a_narrow_terminal(report: Report) -> None:
    document = report.to_dict()
    for name in [name for name in document if name.endswith(("_ttft_ms", "_tpot_ms", "_latency_ms"))]:
        document[name] = 31_239_909.3 if "trajectory" in name else 999_990.0 if "tpot" in name else 999.9
    screen = io.StringIO()
    print_report(Console(file=screen, width=80), document)
    assert screen.getvalue().count("8.68 h") == screen.getvalue().count("999.99 s") == 6
    assert "…" not in screen.getvalue()


def test_reports_are_equal_but_for_wall_times() -> None:
    proven, _ = hand_made()
    deployment = Deployment(blocks=64, block_size=16, timing=FixedTiming(prefill_ms=40, decode_ms=12))

    def scrubbed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: scrubbed(part) for name, part in value.items() if "wall" not in name}
        return [scrubbed(part) for part in value] if isinstance(value, list) else value

    first, second = (replay(proven, deployment, Load(lanes=1)) for _ in range(2))
    assert msgspec.json.encode(scrubbed(first.to_dict())) == msgspec.json.encode(scrubbed(second.to_dict()))
    assert list(first.request_dicts()) == list(second.request_dicts())
