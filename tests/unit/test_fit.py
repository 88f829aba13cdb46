"""What a deployment makes of a graph before it runs."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_spec.certificate import prove
from playproof_spec.sketch import sketch
from playproof_spec.units import HORIZON_MS

import playproof as pp
from playproof.deployment import AnyDeployment
from playproof.fit import fit

requests = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 60)), min_size=1, max_size=6)
block_sizes = st.sampled_from([1, 16, 64])
contexts = st.integers(1, 250) | st.just("max")


def warned_and_unfinished(lengths: list[tuple[int, int]], deployment: AnyDeployment) -> tuple[set[str], set[str]]:
    """Replay one play a request; return the requests that were warned of, and those that did not complete."""
    rows = [
        {"request_id": f"r{i}", "play_id": f"p{i}", "input_length": prompt, "output_length": output}
        for i, (prompt, output) in enumerate(lengths)
    ]
    report = pp.replay(prove(sketch(rows)), deployment)
    warned = {item.where.ids[0] for item in report.findings.items if item.code == "request-never-fits"}
    assert report.requests is not None
    ended = report.requests["request_id"][report.requests["terminal_status"] != "completed"]
    return warned, set(ended.tolist())


@given(requests, st.integers(1, 12), block_sizes, contexts)
def test_what_never_fits_is_what_vllm_cannot_complete(
    lengths: list[tuple[int, int]], blocks: int, block_size: int, context: int | Literal["max"]
) -> None:
    deployment = pp.Deployment(blocks=blocks, block_size=block_size, context_length=context)
    warned, unfinished = warned_and_unfinished(lengths, deployment)
    assert warned == unfinished


@given(requests, st.integers(1, 250), block_sizes, contexts)
def test_what_never_fits_is_never_completed_by_sglang(
    lengths: list[tuple[int, int]], blocks: int, block_size: int, context: int | Literal["max"]
) -> None:
    deployment = pp.Deployment(backend="sglang", blocks=blocks, block_size=block_size, context_length=context)
    warned, unfinished = warned_and_unfinished(lengths, deployment)
    assert warned <= unfinished


@given(requests, st.tuples(st.integers(1, 250), st.integers(1, 250)), block_sizes, contexts, st.booleans())
def test_what_never_fits_is_what_a_pair_cannot_complete(
    lengths: list[tuple[int, int]],
    blocks: tuple[int, int],
    block_size: int,
    context: int | Literal["max"],
    sglang: bool,
) -> None:
    prefill, decode = blocks
    pair = pp.Disaggregated(
        backend="sglang" if sglang else "vllm",
        prefill=pp.PrefillRole(blocks=-(-prefill // block_size), block_size=block_size),
        decode=pp.DecodeRole(blocks=-(-decode // block_size), block_size=block_size),
        context_length=context,
    )
    warned, unfinished = warned_and_unfinished(lengths, pair)
    assert warned <= unfinished if sglang else warned == unfinished


def test_a_warning_names_the_request_and_the_limit() -> None:
    graph = sketch([{"request_id": "small", "input_length": 10}, {"request_id": "large", "input_length": 1000}])
    findings = fit(graph, pp.Deployment(blocks=10), pp.Load())
    (item,) = findings.items
    assert (item.code, item.where.ids, item.found) == ("request-never-fits", ("large",), "1000 tokens")
    assert item.wanted == "at most 10 blocks of 64 tokens"
    (item,) = fit(graph, pp.Deployment(context_length=1000), pp.Load()).items
    assert item.wanted == "less than the context of 1000 tokens"


@pytest.mark.parametrize(
    ("prefill", "decode", "message", "found", "wanted"),
    [
        (9, 100, "rejects the request", "100 tokens", "at most 9 blocks of 10 tokens in the pool of a prefill worker"),
        (10, 9, "handoff of the request fails", "100 tokens", "at most 9 blocks of 10 tokens in the pool of a decode"),
        (10, 10, "outgrows its pool", "100 tokens and 2 of output", "at most 10 blocks of 10 tokens in the pool of a"),
        (9, 9, "rejects the request", "100 tokens", "at most 9 blocks of 10 tokens in the pool of a prefill worker"),
    ],
)
def test_each_pool_has_to_hold_the_request(prefill: int, decode: int, message: str, found: str, wanted: str) -> None:
    # The 100th token of the prompt fills ten blocks; the first token of output comes before its KV needs room.
    rows = [{"request_id": f"r{n}", "play_id": f"p{n}", "input_length": 100, "output_length": n} for n in (0, 1, 2)]
    pair = pp.Disaggregated(
        prefill=pp.PrefillRole(blocks=prefill, block_size=10), decode=pp.DecodeRole(blocks=decode, block_size=10)
    )
    items = fit(sketch(rows), pair, pp.Load()).items
    assert [item.where.ids for item in items] == ([("r2",)] if "of output" in found else [("r0",), ("r1",), ("r2",)])
    assert message in items[-1].message
    assert items[-1].found == found
    assert items[-1].wanted.startswith(wanted)
    assert fit(sketch(rows), msgspec.structs.replace(pair, context_length=101), pp.Load()).errors == 0


def test_output_that_the_context_cuts_off_does_not_outgrow_the_pool() -> None:
    graph = sketch([{"request_id": "r", "input_length": 100, "output_length": 50}])
    pool = pp.Deployment(blocks=10, block_size=10)
    (item,) = fit(graph, pool, pp.Load()).items
    assert (item.where.field, item.found) == ("output_length", "100 tokens and 50 of output")
    cut = fit(graph, msgspec.structs.replace(pool, context_length=101), pp.Load())
    assert [item.code for item in cut.items] == ["context-exceeds-pool"]


@pytest.mark.parametrize(("context_length", "told"), [(160, False), (161, True), ("max", False)])
def test_a_context_that_no_pool_holds_is_told(context_length: int | Literal["max"], told: bool) -> None:
    graph = sketch([{"request_id": "r", "input_length": 20, "output_length": 5}])
    pool = pp.Deployment(blocks=10, block_size=16, context_length=context_length)
    items = [item for item in fit(graph, pool, pp.Load()).items if item.code == "context-exceeds-pool"]
    assert [(item.where.field, item.found, item.wanted) for item in items] == (
        [("engine.context_length", "161", "at most 160 tokens (10 blocks)")] if told else []
    )


def test_a_context_is_compared_with_the_pool_of_each_role() -> None:
    graph = sketch([{"request_id": "r", "input_length": 20, "output_length": 5}])
    prefill, decode = pp.PrefillRole(blocks=100, block_size=16), pp.DecodeRole(blocks=10, block_size=16)
    items = fit(graph, pp.Disaggregated(context_length=1000, prefill=prefill, decode=decode), pp.Load()).items
    assert [item.message for item in items] == [
        "the context is longer than what the KV pool of one decode worker holds"
    ]


def test_an_interval_that_throttles_nothing_is_told() -> None:
    graph = sketch([{"request_id": "r", "input_length": 20, "output_length": 5}])
    assert not fit(graph, pp.Deployment(prefill_schedule_interval=1), pp.Load()).items
    (item,) = fit(graph, pp.Deployment(prefill_schedule_interval=4), pp.Load()).items
    assert (item.code, item.found, item.wanted) == ("config-no-effect", "4", "1")
    assert item.where.field == "engine.workers.aggregated.scheduler.prefill_schedule_interval"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("watermark", 0.1), ("long_prefill_token_threshold", 8)),
        *(("scheduler_reserve_full_isl", False), ("prefill_schedule_interval", 2)),
    ],
)
def test_settings_of_vllm_mean_nothing_to_sglang(name: str, value: object) -> None:
    graph = sketch([{"request_id": "r", "input_length": 20, "output_length": 5}])
    deployment = pp.Deployment(backend="sglang", block_size=1, **{name: value})  # type: ignore[arg-type]
    (item,) = fit(graph, deployment, pp.Load()).items
    assert (item.code, item.where.field) == ("config-no-effect", f"engine.workers.aggregated.scheduler.{name}")
    spec = deployment.to_spec().worker
    assert (spec.ahead, spec.watermark, spec.long_prefill_tokens, spec.reserve_full_prompt) == (False, 0.0, 0, True)


def test_settings_without_effect_name_their_role() -> None:
    pair = pp.Disaggregated(
        backend="sglang",
        prefill=pp.PrefillRole(max_batched_tokens=64, chunked_prefill_size=64),
        decode=pp.DecodeRole(max_batched_tokens=32),
    )
    graph = sketch([{"request_id": "r"}])
    items = fit(graph, pair, pp.Load()).items
    assert [(item.code, item.where.field) for item in items] == [
        ("config-no-effect", f"engine.workers.{role}.scheduler.max_batched_tokens") for role in ("prefill", "decode")
    ]
    assert not fit(graph, pp.Disaggregated(prefill=pp.PrefillRole(max_batched_tokens=64)), pp.Load()).items


@pytest.mark.parametrize(
    ("fields", "deployment", "load"),
    [
        ({"not_before_ms": HORIZON_MS / 4}, pp.Deployment(), pp.Load(speedup=0.01)),
        (
            {"not_before_ms": HORIZON_MS * 0.9, "output_length": 2**30},
            pp.Deployment(timing=pp.FixedTiming(decode_ms=1e3)),
            pp.Load(),
        ),
        ({"output_length": 2**31 - 1}, pp.Deployment(timing=pp.FixedTiming(decode_ms=3.6e6)), pp.Load()),
    ],
)
def test_a_replay_past_the_clock_is_refused(fields: dict[str, float], deployment: pp.Deployment, load: pp.Load) -> None:
    proven = prove(sketch([{"request_id": "r", **fields}]))
    with pytest.raises(pp.InvalidDeployment, match="clock-horizon"):
        pp.replay(proven, deployment, load)


@pytest.mark.parametrize(
    ("deployment", "fits"),
    [
        (pp.Disaggregated(), True),
        (pp.Disaggregated(prefill=pp.PrefillRole(timing=pp.FixedTiming(prefill_ms=3.6e6))), True),
        (pp.Disaggregated(decode=pp.DecodeRole(timing=pp.FixedTiming(decode_ms=3.6e6))), False),
        (pp.Disaggregated(transfer=pp.Transfer(bytes_per_token=10**6, bandwidth_gb_per_second=1)), True),
        (pp.Disaggregated(transfer=pp.Transfer(bytes_per_token=10**9, bandwidth_gb_per_second=1e-6)), False),
    ],
)
def test_passes_of_both_roles_and_transfers_count_towards_the_clock(deployment: pp.Disaggregated, fits: bool) -> None:
    rows = [
        {"request_id": f"r{i}", "play_id": f"p{i}", "input_length": 10_000, "output_length": 2000} for i in range(1000)
    ]
    assert (fit(sketch([{**row, "hash_ids": []} for row in rows]), deployment, pp.Load()).errors == 0) is fits


@pytest.mark.parametrize("timing", [pp.FixedTiming(), pp.PolynomialTiming()])
def test_a_corpus_of_billions_of_tokens_stays_within_the_clock(timing: pp.FixedTiming | pp.PolynomialTiming) -> None:
    rows = [
        {"request_id": f"r{i}", "input_length": 2_000_000, "hash_ids": [], "output_length": 5000} for i in range(4000)
    ]
    assert fit(sketch(rows), pp.Deployment(timing=timing, blocks=2**16), pp.Load()).errors == 0


@pytest.mark.parametrize(("tokens", "told"), [(159, []), (160, []), (161, ["161 tokens"])])
def test_the_last_block_of_a_prompt_counts_though_it_is_not_full(tokens: int, told: list[str]) -> None:
    # The one token of output needs no room; what is told is that the prompt itself has none.
    graph = sketch([{"request_id": "r", "input_length": tokens, "output_length": 1}])
    items = fit(graph, pp.Deployment(blocks=10, block_size=16), pp.Load()).items
    assert [item.found for item in items] == told
    assert all("rejects the request" in item.message for item in items)


@pytest.mark.parametrize(("chunk", "prefill", "fits"), [(8192, 16_384, True), (8192, 1, False), (65, 16_384, False)])
def test_the_smaller_of_sglangs_budgets_says_how_many_passes_a_prompt_takes(
    chunk: int, prefill: int, fits: bool
) -> None:
    # A pass takes an hour. A token a pass would be three million hours, and the clock ends before 2.6 million.
    graph = sketch([{"request_id": "r", "input_length": 3_000_000, "hash_ids": []}])
    deployment = pp.Deployment(
        backend="sglang",
        blocks=2**16,
        block_size=64,
        chunked_prefill_size=chunk,
        max_prefill_tokens=prefill,
        timing=pp.FixedTiming(prefill_ms=3.6e6, decode_ms=0.0),
    )
    told = {item.code for item in fit(graph, deployment, pp.Load()).items}
    assert ("clock-horizon" not in told) is fits
