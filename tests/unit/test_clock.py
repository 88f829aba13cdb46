"""No load takes a proven graph past the end of the clock: it is refused by name, through either door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from playproof_kernel import UnfitLoad, simulate, simulate_controlled
from playproof_kernel.runs import loop
from playproof_kernel.runs.simulation import Simulation
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.clock import PREPARED_PLAYS, PassBound, RoleWork, clock_finding
from playproof_spec.deployment import (
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    ProfileSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.sketch import sketch
from playproof_spec.units import HORIZON_MS, HORIZON_NS, ms_to_ns

import playproof as pp

CENTURY_MS = 100 * 365.25 * 86_400_000
WORKER = WorkerSpec(64, 4)
ONE = DeploymentSpec(1, WORKER, 100)


def waits(*delays_ms: float, floor_ms: float = 0.0) -> ProvenGraph:
    rows: list[dict[str, Any]] = [{"request_id": "r0"}, {"request_id": "s", "not_before_ms": floor_ms}]
    for number, delay in enumerate(delays_ms, start=1):
        rows.append({"request_id": f"r{number}", "dependencies": [{"request_id": f"r{number - 1}", "delay_ms": delay}]})
    return prove(sketch(rows))


def lanes_of_centuries() -> ProvenGraph:
    return prove(
        sketch(
            [
                {
                    "request_id": f"{play}{k}",
                    "play_id": play,
                    "dependencies": [{"request_id": f"{play}0", "delay_ms": CENTURY_MS}] if k else [],
                }
                for play in "pqr"
                for k in (0, 1)
            ]
        )
    )


@pytest.mark.parametrize("speedup", [0.5, 0.01, 1e-6])
@pytest.mark.parametrize("stop_ns", [None, 1_000_000])
def test_a_delay_longer_than_the_clock_is_refused(speedup: float, stop_ns: int | None) -> None:
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate(waits(CENTURY_MS), ONE, LoadSpec(speedup=speedup, stop_ns=stop_ns))
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate(waits(1.0, floor_ms=CENTURY_MS), ONE, LoadSpec(speedup=speedup, stop_ns=stop_ns))


def test_what_fits_runs_and_has_its_own_times() -> None:
    ledger = simulate(waits(CENTURY_MS), ONE, LoadSpec())
    assert int(ledger.dispatched_ns[1]) == ms_to_ns(CENTURY_MS) + int(ledger.terminal_ns[0])


def test_a_floor_at_the_horizon_leaves_no_time_for_service() -> None:
    slow = DeploymentSpec(1, WorkerSpec(64, 4, timing=Timing(TimingKind.FIXED, 10_000_000, 10_000_000)), 100)
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate(waits(floor_ms=HORIZON_MS - 1), slow, LoadSpec())


def test_plays_of_one_lane_add_up_and_plays_side_by_side_do_not() -> None:
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate(lanes_of_centuries(), ONE, LoadSpec(lanes=1))
    assert set(simulate(lanes_of_centuries(), ONE, LoadSpec()).node_state.tolist()) == {3}


def test_run_controls_and_transfers_are_refused_too() -> None:
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate_controlled(waits(CENTURY_MS), ONE, LoadSpec(lanes=1, snapshot_seed=1, speedup=0.5))
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate_controlled(
            waits(1.0), ONE, LoadSpec(lanes=1, snapshot_seed=1, profile=ProfileSpec(duration_ns=HORIZON_NS))
        )
    crawling = DecodeSpec(1, WORKER, TransferSpec(10**9, 1e-9))
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        simulate(waits(1.0), DeploymentSpec(1, WORKER, 100, crawling), LoadSpec())


def test_a_run_that_comes_to_the_end_is_no_fault_of_ours() -> None:
    # What preemptions make of a run no bound foresees; the loop stops at the horizon, and says so by name.
    run = SimpleNamespace(config=[SimpleNamespace(end=HORIZON_NS)])
    with pytest.raises(UnfitLoad, match="clock-horizon"):
        Simulation(run).refuse(loop.Stop.HORIZON)  # type: ignore[arg-type]


def test_the_library_says_the_same() -> None:
    with pytest.raises(pp.InvalidDeployment, match="clock-horizon"):
        pp.replay(waits(CENTURY_MS), pp.Deployment(), pp.Load(speedup=0.01))
    with pytest.raises(pp.InvalidDeployment, match="clock-horizon"):
        pp.replay(lanes_of_centuries(), pp.Deployment(), pp.Load(lanes=1))


@pytest.mark.parametrize("ms", [2.0 * HORIZON_MS, -2.0 * HORIZON_MS, 1e300, np.inf, np.nan])
def test_the_cast_to_nanoseconds_is_checked(ms: float) -> None:
    with pytest.raises(OverflowError, match="fit the clock"):
        ms_to_ns(np.array([0.0, ms]))
    assert ms_to_ns(np.array([HORIZON_MS, -1.5])).tolist() == [HORIZON_NS, -1_500_000]


def test_each_lane_of_a_snapshot_prepares_plays_of_its_own() -> None:
    # One pass for the prompt's 16 tokens, one for the request, one for its token.
    work = RoleWork(prompts=True, outputs=True, budget=16, bound=PassBound(HORIZON_MS / (3 * PREPARED_PLAYS * 4)))
    graph = prove(sketch([{"request_id": "r"}])).graph
    for lanes, is_cut, fits in ((3, True, True), (4, True, False), (5, True, False), (5, False, True)):
        told = clock_finding(graph, [work], speedup=1.0, lanes=lanes, is_cut=is_cut)
        assert (told is None) is fits


def test_a_prompt_in_small_steps_takes_a_pass_for_each() -> None:
    # A pass takes a tenth of the clock. The prompt of 16 tokens is one, or 16; there is one more for its token.
    timing = Timing(TimingKind.FIXED, HORIZON_NS // 20, HORIZON_NS // 20)
    proven = prove(sketch([{"request_id": "r"}]))
    for tokens, fits in ((0, True), (16, True), (1, False)):
        deployment = DeploymentSpec(1, WorkerSpec(64, 4, timing=timing, long_prefill_tokens=tokens), 100)
        if fits:
            assert simulate(proven, deployment, LoadSpec()).output_length.tolist() == [1]
        else:
            with pytest.raises(UnfitLoad, match="clock-horizon"):
                simulate(proven, deployment, LoadSpec())
