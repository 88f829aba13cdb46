"""What a deployment makes of a graph before it runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_spec.certificate import prove
from playproof_spec.sketch import sketch
from playproof_spec.units import HORIZON_MS

import playproof as pp
from playproof.fit import fit


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=6),
    st.integers(1, 12),
    st.sampled_from([1, 16, 64]),
    st.integers(1, 200) | st.just("max"),
)
def test_what_never_fits_is_what_the_replay_rejects(
    inputs: list[int], blocks: int, block_size: int, context: int | str
) -> None:
    graph = sketch([{"request_id": f"r{i}", "play_id": f"p{i}", "input_length": n} for i, n in enumerate(inputs)])
    deployment = pp.Deployment(blocks=blocks, block_size=block_size, context_length=context)
    report = pp.replay(prove(graph), deployment)
    warned = {item.where.ids[0] for item in report.findings.items if item.code == "request-never-fits"}
    assert report.requests is not None
    rejected = report.requests["request_id"][report.requests["terminal_status"] == "rejected"]
    assert warned == set(rejected.tolist())


def test_a_warning_names_the_request_and_the_limit() -> None:
    graph = sketch([{"request_id": "small", "input_length": 10}, {"request_id": "large", "input_length": 1000}])
    findings = fit(graph, pp.Deployment(blocks=10), pp.Load())
    (item,) = findings.items
    assert (item.code, item.where.ids, item.found) == ("request-never-fits", ("large",), "1000 tokens")
    assert item.wanted == "at most 10 blocks of 64 tokens"
    (item,) = fit(graph, pp.Deployment(context_length=1000), pp.Load()).items
    assert item.wanted == "less than the context of 1000 tokens"


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


@pytest.mark.parametrize("timing", [pp.FixedTiming(), pp.PolynomialTiming()])
def test_a_corpus_of_billions_of_tokens_stays_within_the_clock(timing: pp.FixedTiming | pp.PolynomialTiming) -> None:
    rows = [
        {"request_id": f"r{i}", "input_length": 2_000_000, "hash_ids": [], "output_length": 5000} for i in range(4000)
    ]
    assert fit(sketch(rows), pp.Deployment(timing=timing, blocks=2**16), pp.Load()).errors == 0
