"""What online replay and its mock workers count, without a server: clocks with a scale, lateness, histograms."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("aiohttp")

from playproof_kernel.runs.live_engine import Counters
from playproof_spec.units import NS_PER_S

from playproof.online.clock import Clock
from playproof.online.driver import Lateness
from playproof.online.metrics import Metrics


@pytest.mark.parametrize("scale", [0.5, 1.0, 20.0])
def test_a_clock_is_waited_for_by_its_scale(scale: float) -> None:
    clock = Clock(scale)
    begun = time.monotonic_ns()
    at = clock.at(begun)
    # What lies ten of its seconds ahead comes after so many less of ours.
    due_s = clock.due(at + 10 * NS_PER_S)
    assert due_s - begun / NS_PER_S == pytest.approx(10.0 / scale, abs=1e-3)
    assert clock.at(int(due_s * NS_PER_S)) == pytest.approx(at + 10 * NS_PER_S, abs=1e6)
    assert clock.wall_ns(10 * NS_PER_S) == int(10 * NS_PER_S / scale)


def test_lateness_has_ranks_as_reports_do_and_is_never_negative() -> None:
    lateness = Lateness()
    assert lateness.figures() == {"samples": 0, "median_ms": None, "p99_ms": None, "max_ms": None}
    for milliseconds in (-5, 1, 2, 4):
        lateness.add(milliseconds * 1_000_000)
    # Ranks 0 to 3 are 0, 1, 2 and 4 ms: the median is rank 2 of them, half of three rounded away from zero.
    assert lateness.percentile_ms(0) == 0.0
    assert [lateness.percentile_ms(percent) for percent in (33, 50, 99)] == [1.0, 2.0, 4.0]
    assert lateness.figures()["max_ms"] == 4.0


def counted(text: str, name: str) -> dict[str, int]:
    """The buckets of a histogram by their bounds."""
    lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}_bucket")]
    return {line.partition('le="')[2].partition('"')[0]: int(line.rpartition(" ")[2]) for line in lines}


def test_buckets_add_up_and_hold_their_bounds() -> None:
    metrics = Metrics('m"odel')
    # Two on bounds, one between, one beyond all of them.
    for seconds in (0.01, 0.025, 0.03, 1000.0):
        metrics.next_token(seconds)
    text = metrics.text(Counters(*(1 for _ in Counters.__dataclass_fields__)))
    buckets = counted(text, "inter_token_latency_seconds")
    assert (buckets["0.01"], buckets["0.025"], buckets["0.05"]) == (1, 2, 3)
    assert (buckets["80.0"], buckets["+Inf"]) == (3, 4)
    assert list(buckets.values()) == sorted(buckets.values())
    assert 'vllm:inter_token_latency_seconds_count{engine="0",model_name="m\\"odel"} 4' in text
    assert sum(counted(text, "time_to_first_token_seconds").values()) == 0
