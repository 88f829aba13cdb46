"""Rules of one pass and one instant that random replays rarely meet, each on a few requests."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from ledgers import columns
from playproof_kernel import simulate
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, Timing, TimingKind, WorkerSpec
from playproof_spec.ledger import NEVER
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


def test_four_plays_that_end_at_one_instant_settle_by_node_index() -> None:
    # A worker each, in the order of the plays: all end at 10 ms. The driver hears of `a` first, on lane 2, then of `b`,
    # on lane 0, `c` on lane 3 and `d` on lane 1; in this order their lanes take the next four plays.
    rows: list[dict[str, Any]] = [
        {"request_id": name, "play_id": f"p{number}"} for number, name in enumerate(["b", "d", "a", "c", *"wxyz"])
    ]
    lines = replayed(rows, lanes=4, blocks=100, workers=4)
    assert {lines[name]["terminal_time_ms"] for name in "abcd"} == {10.0}
    assert {name: lines[name]["lane"] for name in "abcd"} == {"b": 0, "d": 1, "a": 2, "c": 3}
    assert {name: lines[name]["lane"] for name in "wxyz"} == {"w": 2, "x": 0, "y": 3, "z": 1}


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


def test_a_prompt_computed_again_in_two_passes_has_its_next_token_after_the_second() -> None:
    # Five blocks and no cache. `b` is preempted at 14 with five tokens, and starts again when `a` ends at 16: it has 9
    # tokens to compute, and a pass takes eight. Its sixth token comes with the ninth of these, not with the eighth.
    rows = [{"request_id": name, "input_length": 4, "output_length": n} for name, n in (("a", 7), ("b", 7))]
    lines = replayed(rows, blocks=5, prefix_caching=False, max_batched_tokens=8)
    assert [each["at_ms"] for each in lines["b"]["admission_history"]] == [0.0, 16.0]
    assert lines["a"]["terminal_time_ms"] == 16.0
    assert lines["b"]["terminal_time_ms"] == 28.0


def test_a_prompt_handed_over_late_goes_before_those_that_arrived_after_it() -> None:
    # Beside `a` the decode worker has one seat. `b`, `c` and `d` ask for memory in this order and have it in three
    # neighbouring passes, but moving `b` takes 12 ms, `c` 6 and `d` one: `d` has the seat before the others are there.
    # `c` is there before `b`, and behind it when the seat is free again.
    rows = [
        {"request_id": name, "play_id": name, "input_length": tokens, "output_length": output, "not_before_ms": at}
        for name, tokens, output, at in (("a", 4, 100, 0.0), ("b", 12, 5, 15.0), ("c", 6, 5, 15.0), ("d", 1, 20, 15.0))
    ]
    pair = pp.Disaggregated(
        prefill=pp.PrefillRole(workers=4, blocks=64, block_size=4, timing=TIMING),
        decode=pp.DecodeRole(blocks=64, block_size=4, max_sequences=2, timing=TIMING),
        transfer=pp.Transfer(bytes_per_token=10**6, bandwidth_gb_per_second=1),
    )
    report = pp.replay(prove(sketch(rows, block_size=4)), pair)
    lines = {line["request_id"]: line for line in report.request_dicts()}
    there = {name: line["destination_activated_ms"] for name, line in lines.items()}
    ends = {name: line["terminal_time_ms"] for name, line in lines.items()}
    assert there["d"] < there["c"] < there["b"] < ends["d"] < ends["a"]
    assert ends["d"] < ends["b"] < ends["c"] < ends["a"]


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_the_second_token_of_a_macro_step_comes_with_the_second_of_its_passes(
    backend: Literal["vllm", "sglang"],
) -> None:
    """A decode worker gives the first token of a prompt in a macro-step; by the polynomial no pass is like another.

    Under vLLM the pass that admits a request is one of its own, under SGLang it may be the first of several.
    """
    roles: dict[str, Any] = {"blocks": 640, "block_size": 4, "timing": pp.PolynomialTiming()}
    pair = pp.Disaggregated(backend=backend, prefill=pp.PrefillRole(**roles), decode=pp.DecodeRole(**roles))
    proven = prove(sketch([{"request_id": "a", "input_length": 400, "output_length": 9}], block_size=4))
    many, single = (simulate(proven, pair.to_spec(), LoadSpec(macro_steps=macro)) for macro in (True, False))
    gaps = [int(ledger.second_token_ns[0] - ledger.first_token_ns[0]) for ledger in (many, single)]
    assert gaps[0] == gaps[1] > 0
    assert int(many.last_token_ns[0]) == int(single.last_token_ns[0])


def test_gaps_within_a_macro_step_are_those_of_its_passes() -> None:
    # Two requests side by side, the second from the middle of the first on: nine and four gaps.
    rows = [
        {"request_id": "a", "input_length": 4, "output_length": 10},
        {"request_id": "b", "input_length": 4, "output_length": 5, "not_before_ms": 12.0},
    ]
    spec = pp.Deployment(blocks=64, block_size=4, timing=TIMING).to_spec()
    proven = prove(sketch(rows, block_size=4))
    many, single = (simulate(proven, spec, LoadSpec(macro_steps=macro)) for macro in (True, False))
    assert columns(many) == columns(single)
    assert int(many.gap_count.sum()) == 9 + 4


def split(blocks: int, prefill_workers: int = 1) -> pp.Disaggregated:
    """Return prefill workers and a decode worker of so many blocks; a token takes 1 ms from one to the other."""
    return pp.Disaggregated(
        prefill=pp.PrefillRole(workers=prefill_workers, blocks=64, block_size=4, timing=TIMING),
        decode=pp.DecodeRole(blocks=blocks, block_size=4, timing=TIMING),
        transfer=pp.Transfer(bytes_per_token=10**6, bandwidth_gb_per_second=1),
    )


@pytest.mark.parametrize(("tokens", "status"), [(12, "completed"), (13, "failed")])
def test_a_prompt_may_fill_the_pool_of_a_decode_worker_to_the_last_token(tokens: int, status: str) -> None:
    # Three blocks of four tokens; the only token of output is never computed on.
    rows = [{"request_id": "a", "input_length": tokens, "output_length": 1}]
    (line,) = pp.replay(prove(sketch(rows, block_size=4)), split(blocks=3)).request_dicts()
    assert line["terminal_status"] == status
    # Prefilled at 10 ms, there 12 ms later, and a pass of 1 ms behind that; or refused as soon as it is prefilled.
    assert line["terminal_time_ms"] == (23.0 if status == "completed" else 10.0)


def test_a_transfer_whose_client_has_given_up_activates_nothing() -> None:
    # `a` is prefilled at 10 ms and moves until 30; its client goes at 15. `b`, which is prefilled from 15 on, moves
    # from 25 to 29 and has its token at 30.
    rows = [
        {"request_id": "a", "play_id": "a", "input_length": 20, "output_length": 2},
        {"request_id": "b", "play_id": "b", "input_length": 4, "not_before_ms": 15.0},
    ]
    load = LoadSpec(cancellations=((15_000_000, 0),))
    ledger = simulate(prove(sketch(rows, block_size=4)), split(blocks=64).to_spec(), load)
    assert ledger.terminal_ns.tolist() == [15_000_000, 30_000_000]
    assert ledger.output_length.tolist() == [0, 1]
    assert ledger.destination_activated_ns.tolist() == [NEVER, 29_000_000]


def test_destinations_have_the_memory_that_a_preempted_request_cannot_use() -> None:
    # Eight blocks at the decode worker. `x` (one block) runs from 29 ms on, `p` (five) from 30; when they have used up
    # all, `p` is preempted. `y` (six) and `z` (one) are held at their sources from 30 and 31 on. `x` ends at 43: `y`
    # has its six, and in two blocks `p` cannot be computed again, so nothing runs. `z` has its block at once, and not
    # when `y` is there, 24 ms later.
    rows = [
        {"request_id": name, "play_id": name, "input_length": tokens, "output_length": output, "not_before_ms": at}
        for name, tokens, output, at in (("p", 20, 10, 0.0), ("x", 4, 14, 15.0), ("y", 24, 2, 20.0), ("z", 4, 2, 21.0))
    ]
    pair = split(blocks=8, prefill_workers=4)
    lines = {line["request_id"]: line for line in pp.replay(prove(sketch(rows, block_size=4)), pair).request_dicts()}
    assert {line["terminal_status"] for line in lines.values()} == {"completed"}
    assert (lines["x"]["terminal_time_ms"], lines["p"]["readmission_count"]) == (43.0, 1)
    assert {name: lines[name]["destination_reserved_ms"] for name in "yz"} == {"y": 43.0, "z": 43.0}
    assert {name: lines[name]["destination_activated_ms"] for name in "yz"} == {"y": 67.0, "z": 47.0}
