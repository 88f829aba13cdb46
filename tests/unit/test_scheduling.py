"""Rules of one pass and one instant that random replays rarely meet, each on a few requests."""

from __future__ import annotations

from typing import Any

import pytest
from playproof_kernel import simulate
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, Timing, TimingKind, WorkerSpec
from playproof_spec.sketch import sketch

import playproof as pp

TIMING = pp.FixedTiming(prefill_ms=10, decode_ms=1)


def replayed(
    rows: list[dict[str, Any]], lanes: int | None = None, timing: Any = TIMING, **deployment: Any
) -> dict[str, dict[str, Any]]:
    """Return the lines of requests.jsonl by request."""
    trace = prove(sketch(rows, block_size=4))
    report = pp.replay(trace, pp.Deployment(block_size=4, timing=timing, **deployment), pp.Load(lanes=lanes))
    return {line["request_id"]: line for line in report.request_dicts()}


def test_blocks_in_use_count_once_for_admission() -> None:
    # Six blocks. `first` holds its four and one for its output; `second` shares the four and needs one of its own.
    rows = [
        {"request_id": "first", "input_length": 16, "output_length": 4, "hash_ids": [1, 2, 3, 4]},
        {"request_id": "second", "input_length": 20, "hash_ids": [1, 2, 3, 4, 5], "not_before_ms": 11.0},
    ]
    lines = replayed(rows, blocks=6)
    assert lines["second"]["first_admit_ms"] == 11.0
    assert lines["second"]["first_admission_reused_input_tokens"] == 16
    # Without shared blocks it has to wait for the other's end.
    rows[1]["hash_ids"] = [6, 7, 8, 9, 5]
    lines = replayed(rows, blocks=6)
    assert lines["second"]["first_admit_ms"] == lines["first"]["terminal_time_ms"] > 11.0


def test_plays_that_end_at_one_instant_settle_by_node_index() -> None:
    # `z` gets its second token at 21 ms, in the pass in which `a`, that came at 10 ms, gets its only one. The worker
    # admitted `z` first; but the driver hears of `a` first, so its lane takes the next play.
    rows: list[dict[str, Any]] = [
        {"request_id": "z", "play_id": "p0", "output_length": 2},
        {"request_id": "zz", "play_id": "p1", "output_length": 0},
        {"request_id": "a", "play_id": "p1", "dependencies": ["zz"]},
        {"request_id": "c", "play_id": "p2"},
        {"request_id": "d", "play_id": "p3"},
    ]
    lines = replayed(rows, lanes=2, blocks=100, workers=2)
    assert {name: line["terminal_time_ms"] for name, line in lines.items() if name in "az"} == {"a": 21.0, "z": 21.0}
    assert {name: line["lane"] for name, line in lines.items()} == {"z": 0, "zz": 1, "a": 1, "c": 1, "d": 0}


def test_the_polynomial_knows_no_pool_fuller_than_full() -> None:
    # Two requests share a prompt that fills most of the pool: their tokens are more than it holds.
    rows = [{"request_id": name, "input_length": 16, "output_length": 3, "hash_ids": [1, 2, 3, 4]} for name in "ab"]
    lines = replayed(rows, timing=pp.PolynomialTiming(), blocks=7)
    full_pool_ms = -25.74 + 54.01 + 5.74
    assert lines["a"]["tpot_ms"] == pytest.approx(full_pool_ms, abs=1e-6)
    assert lines["b"]["tpot_ms"] == pytest.approx(full_pool_ms, abs=1e-6)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("macro", [False, True])
def test_a_client_that_gives_up_has_the_tokens_of_the_passes_that_ended(ahead: bool, macro: bool) -> None:
    # Tokens at 10, 11 and 12 ms; the client goes in the midst of the fourth pass, whose token nobody waits for.
    graph = sketch([{"request_id": "a", "input_length": 4, "output_length": 8}], block_size=4)
    timing = Timing(TimingKind.FIXED, prefill_ns=10_000_000, decode_ns=1_000_000)
    deployment = DeploymentSpec(1, WorkerSpec(8, 4, timing=timing, ahead=ahead), context_length=100)
    load = LoadSpec(cancellations=((12_500_000, 0),), macro_steps=macro)
    ledger = simulate(prove(graph), deployment, load)
    assert (ledger.output_length[0], ledger.last_token_ns[0], ledger.terminal_ns[0]) == (3, 12_000_000, 12_500_000)


def test_without_lanes_no_request_has_one() -> None:
    rows: list[dict[str, Any]] = [{"request_id": "a"}, {"request_id": "b", "dependencies": ["a"]}]
    assert [line["lane"] for line in replayed(rows, blocks=10).values()] == [None, None]
    assert [line["lane"] for line in replayed(rows, lanes=1, blocks=10).values()] == [0, 0]


def test_a_pass_that_preempted_admits_nobody() -> None:
    # Six blocks: both share three, each has a fourth of its own. At 10 ms `a` takes the last one and `b` is preempted.
    # Its blocks are all there again, but it is admitted in the next pass only.
    rows = [{"request_id": name, "input_length": 16, "output_length": 4, "hash_ids": [1, 2, 3, 4]} for name in "ab"]
    history = replayed(rows, blocks=6)["b"]["admission_history"]
    assert [(each["at_ms"], each["reused_input_tokens"]) for each in history] == [(0.0, 12), (11.0, 16)]


def test_a_lane_waits_for_all_that_its_failed_play_has_in_flight() -> None:
    # `bad` reaches the context and is refused at once; `long` has its last token at 12 ms, and the lane goes on then.
    rows: list[dict[str, Any]] = [
        {"request_id": "bad", "play_id": "p0", "input_length": 40, "hash_ids": list(range(10))},
        {"request_id": "long", "play_id": "p0", "output_length": 3},
        {"request_id": "next", "play_id": "p1"},
    ]
    lines = replayed(rows, lanes=1, blocks=100, context_length=40)
    assert {name: line["dispatched_at_ms"] for name, line in lines.items()} == {"bad": 0.0, "long": 0.0, "next": 12.0}
    assert lines["long"]["terminal_status"] == "completed"
