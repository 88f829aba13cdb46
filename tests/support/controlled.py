"""Loads under run controls, deployments for them, and their runs as plain values: the kernel's, the naive twin's."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st
from ledgers import host_columns
from playproof_kernel import ControlledLedger
from playproof_reference.controls import Controls as NaiveControls
from playproof_spec.deployment import DeploymentSpec, LoadSpec, ProfileSpec, Timing, TimingKind, WorkerSpec
from playproof_spec.machines import PhaseState, PlayState, RequestState
from strategies import deployments, disaggregated, optioned_deployments, routers, sglang_deployments

MS = 1_000_000
profiles = st.builds(
    ProfileSpec,
    duration_ns=st.sampled_from([1 * MS, 20 * MS, 55 * MS, 120 * MS]),
    grace_ns=st.sampled_from([0, 3 * MS, 30 * MS]),
    drain_ns=st.just(10 * MS),
    tree_cap_ns=st.sampled_from([1 * MS, 4 * MS, 1000 * MS]),
    global_cap_ns=st.sampled_from([1 * MS, 3 * MS, 1000 * MS]),
)
controlled_loads = st.builds(
    LoadSpec,
    lanes=st.sampled_from([1, 1, 2, 3, 7]),
    speedup=st.sampled_from([1.0, 2.0, 0.5]),
    snapshot_seed=st.integers(0, 3),
    warmup=st.booleans(),
    profile=st.none() | profiles,
)


# Every pass takes time, so that no instant is endless and a deadline is reached.
TIMINGS = [Timing(TimingKind.FIXED, 7 * MS, 2 * MS), Timing(TimingKind.FIXED, 3 * MS, 1 * MS)]


@st.composite
def steady(draw: st.DrawFn) -> DeploymentSpec:
    drawn = draw(deployments | optioned_deployments() | sglang_deployments)
    return dataclasses.replace(drawn, worker=_timed(draw, drawn.worker), router=draw(st.none() | routers))


@st.composite
def steady_pairs(draw: st.DrawFn) -> DeploymentSpec:
    drawn = draw(disaggregated())
    assert drawn.decode is not None
    decode = dataclasses.replace(drawn.decode, worker=_timed(draw, drawn.decode.worker))
    router = draw(st.none() | routers)
    return dataclasses.replace(drawn, worker=_timed(draw, drawn.worker), decode=decode, router=router)


def _timed(draw: st.DrawFn, worker: WorkerSpec) -> WorkerSpec:
    return dataclasses.replace(worker, timing=draw(st.sampled_from(TIMINGS)))


def observed(ledger: ControlledLedger) -> dict[str, Any]:
    assert ledger.captured is not None
    history: dict[int, list[tuple[int, int, int]]] = {}
    for admission in ledger.captured.admissions:
        entry = (int(admission["at"]), int(admission.reused), int(admission.host))
        history.setdefault(int(admission.request), []).append(entry)
    return {
        "phase": PhaseState(ledger.phase).name.lower(),
        "barrier": ledger.profile_start_ns,
        "finished": ledger.finished_ns,
        "requests": [
            (
                (int(r.instance), int(r.source), int(r.dispatched), int(r.first_token), int(r.terminal), int(r.worker)),
                (RequestState(int(r.state)).name.lower(), int(r.generated), history.get(int(r.serial), [])),
                (int(r.decode_worker), int(r.held), int(r.reserved), int(r.activated), int(r.released)),
            )
            for r in ledger.captured.requests
        ],
        "preparation": [
            (int(p.source), int(p.lane), int(dispatched), int(terminal), int(p.settled))
            for p, dispatched, terminal in zip(
                ledger.preparation, ledger.prep_dispatched_ns, ledger.prep_terminal_ns, strict=True
            )
        ],
        "plays": [
            (int(p.source), int(p.lane), int(p.ordinal), int(p.start), int(p.first_dispatch), int(p.last_terminal))
            for p in ledger.plays
        ],
        "ends": [(PlayState(int(p.state)).name.lower(), int(p.settled), int(p.expired)) for p in ledger.plays],
        "failures": [int(p.failed_source) for p in ledger.plays],
        "shifts": [(int(s["at"]), int(s.instance), int(s.by), int(s.timers)) for s in ledger.shifts],
        "counts": (ledger.issued, ledger.never_issued, ledger.canceled, ledger.unsettled),
        "prompts": ledger.completed_input,
        "hosts": host_columns(ledger.hosts),
    }


def expected(naive: NaiveControls) -> dict[str, Any]:
    requests, corpus = naive.requests, naive.corpus
    outcome = {"completed": "finished"}
    valid = naive.phase == "done"

    def row(number: int) -> tuple[Any, ...]:
        r, owner = requests[number], naive.owner[number]
        first = r.tokens_ns[0] if r.tokens_ns else -1
        instance = -1 if owner is None else owner.number
        return (
            (instance, corpus.source[number], r.dispatched_ns, first, r.terminal_ns, r.worker),
            (outcome.get(r.state, r.state), len(r.tokens_ns), list(r.history)),
            r.handoff,
        )

    plays = naive.instances if valid else []
    measured = naive.measured()
    completed = [number for number in measured if requests[number].state == "completed"]
    return {
        "phase": naive.phase,
        "barrier": naive.start_ns,
        "finished": naive.finished_ns,
        "requests": [row(number) for number in measured],
        "preparation": [
            (corpus.source[n], lane, requests[n].dispatched_ns, requests[n].terminal_ns, naive.quiescent.get(n, -1))
            for lane, numbers in enumerate(naive.prep)
            for n in numbers
        ],
        "plays": [(p.source, p.lane, p.ordinal, p.start_ns, p.first_dispatch_ns, p.last_terminal_ns) for p in plays],
        "ends": [(p.state, p.settled_ns, p.expired) for p in plays],
        "failures": [corpus.source[p.failed] if p.failed >= 0 else -1 for p in plays],
        "shifts": naive.shifts,
        "counts": (
            len(measured),
            sum(p.expired for p in plays),
            sum(r.state == "canceled" for r in requests),
            naive.unsettled,
        ),
        "prompts": sum(corpus.input_length[number] for number in completed),
        "hosts": [use for worker in naive.workers if (use := worker.host_use())],
    }
