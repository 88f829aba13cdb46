"""What a finished run observed, as the ledger that reports are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_spec.ledger import HOST_USE, NEVER, Ledger
from playproof_spec.machines import HandoffState, NodeState, PlayState, RequestState

from playproof_reference.host import HostVllmWorker
from playproof_reference.requests import Request
from playproof_reference.runs import Run

# How a request ended, or where it is when the run is stopped, as each machine calls it.
NODE = {
    **{state.name.lower(): state for state in NodeState},
    "rejected": NodeState.FAILED,  # the driver knows only that it did not complete
}
REQUEST = {
    "completed": RequestState.FINISHED,
    "rejected": RequestState.REJECTED,
    "failed": RequestState.FAILED,
    "canceled": RequestState.CANCELED,
}
HANDOFF = {
    "completed": HandoffState.COMPLETED,
    "rejected": HandoffState.FAILED,
    "failed": HandoffState.FAILED,
    "canceled": HandoffState.CANCELED,
}
# As `host_use` calls what a ledger has.
HOST_COLUMNS = tuple(name for name in HOST_USE.names or () if name not in ("pool", "capacity", "block_bytes"))


def ledger_of(run: Run) -> Ledger:
    """Return the ledger of a run."""
    requests, gaps = run.driver.requests, sorted(run.gaps().items())
    handoff = [HANDOFF.get(request.state, HandoffState.QUEUED) for request in requests]
    return Ledger(
        node_state=_int8(NODE[request.state] for request in requests),
        request_state=_int8(REQUEST.get(request.state, RequestState.QUEUED) for request in requests),
        handoff_state=_int8(handoff if run.disaggregated else [HandoffState.QUEUED] * len(requests)),
        dispatched_ns=_int64(request.dispatched_ns for request in requests),
        first_admit_ns=_int64(_first([at for at, _ in request.admissions]) for request in requests),
        first_token_ns=_int64(_first(request.tokens_ns) for request in requests),
        second_token_ns=_int64(_first(request.tokens_ns[1:]) for request in requests),
        last_token_ns=_int64(_first(request.tokens_ns[::-1]) for request in requests),
        terminal_ns=_int64(request.terminal_ns for request in requests),
        output_length=_int64(len(request.tokens_ns) for request in requests),
        source_held_ns=_int64(steps.held_ns for steps in run.handoffs),
        destination_reserved_ns=_int64(steps.reserved_ns for steps in run.handoffs),
        destination_activated_ns=_int64(steps.activated_ns for steps in run.handoffs),
        source_released_ns=_int64(steps.released_ns for steps in run.handoffs),
        worker=_int32(request.worker for request in requests),
        decode_worker=_int32(steps.worker for steps in run.handoffs),
        route_overlap=_int64(run.overlap.get(request.index, NEVER) for request in requests),
        decode_route_overlap=_int64(run.decode_overlap.get(request.index, NEVER) for request in requests),
        admissions=_int32(len(request.admissions) + len(request.decode_admissions) for request in requests),
        admission_node=_int32(admission.node for admission in run.log),
        admission_at_ns=_int64(admission.at_ns for admission in run.log),
        admission_reused=_int64(admission.reused for admission in run.log),
        admission_pool_ordinal=_int64(admission.ordinal for admission in run.log),
        admission_host_reused=_int64(admission.host_reused for admission in run.log),
        admission_decode=np.array([admission.decode for admission in run.log], np.bool_),
        **_plays(run),
        gap_ns=_int64(value for value, _ in gaps),
        gap_count=_int64(count for _, count in gaps),
        **_workers(run),
        hosts=_hosts(run),
        end_ns=_end_ns(run),
    )


def _plays(run: Run) -> dict[str, Any]:
    """Return the columns by play."""
    driver = run.driver

    def times(of: Callable[[Request], int]) -> list[list[int]]:
        return [
            [at for node in play.nodes.tolist() if (at := of(driver.requests[node])) != NEVER]
            for play in driver.graph.plays
        ]

    return {
        "play_state": _int8(PlayState[state.upper()] for state in driver.play_state),
        "play_lane": _int32(driver.play_lane),
        "play_start_ns": _int64(driver.play_start),
        "play_first_dispatch_ns": _int64(min(at, default=NEVER) for at in times(lambda each: each.dispatched_ns)),
        "play_last_terminal_ns": _int64(max(at, default=NEVER) for at in times(lambda each: each.terminal_ns)),
        "play_settled_ns": _int64(driver.play_settled),
        "play_failed_node": _int32(driver.failed_node),
    }


def _workers(run: Run) -> dict[str, Any]:
    """Return the columns by worker."""
    # Tokens are the client's: a prefill worker makes none, and a request never changes its decode worker.
    serving = [steps.worker for steps in run.handoffs] if run.disaggregated else [r.worker for r in run.driver.requests]
    first = len(run.workers) - run.decode_workers if run.disaggregated else 0
    tokens = [0] * len(run.workers)
    for request, number in zip(run.driver.requests, serving, strict=True):
        if number >= 0:
            tokens[first + number] += len(request.tokens_ns)
    return {
        "passes": _int64(worker.passes for worker in run.workers),
        "busy_ns": _int64(worker.busy_ns for worker in run.workers),
        "prefill_tokens": _int64(worker.prefill_tokens for worker in run.workers),
        "decode_tokens": _int64(tokens),
        "preemptions": _int64(worker.preemptions for worker in run.workers),
        "evictions": _int64(worker.evictions() for worker in run.workers),
    }


def _hosts(run: Run) -> npt.NDArray[np.void]:
    """Return what each worker did with its host pool, and the pools; empty where there is none."""
    hosted = {number: each for number, each in enumerate(run.workers) if isinstance(each, HostVllmWorker)}
    rows: npt.NDArray[np.void] = np.zeros(len(run.workers) if hosted else 0, HOST_USE)
    rows["pool"] = NEVER
    for number, worker in hosted.items():
        pool = next(other for other, each in hosted.items() if each.host is worker.host)
        rows[number]["pool"] = pool
        rows[number]["block_bytes"] = worker.host_spec.block_bytes
        if pool == number:
            rows[number]["capacity"] = worker.host.spec.blocks
        use = worker.host_use()
        for name in HOST_COLUMNS:
            rows[number][name] = use[name]
    return rows


def _end_ns(run: Run) -> int:
    """Return when the run ended: with its last event, or where it was stopped."""
    stop = run.driver.load.stop_ns
    open_states = ("blocked", "ready", "dispatched")
    if stop is not None and any(request.state in open_states for request in run.driver.requests):
        return stop
    return run.driver.now


def _first(values: list[int]) -> int:
    return values[0] if values else NEVER


def _int8(values: Iterable[int]) -> npt.NDArray[np.int8]:
    return np.array([int(value) for value in values], np.int8)


def _int32(values: Iterable[int]) -> npt.NDArray[np.int32]:
    return np.array([int(value) for value in values], np.int32)


def _int64(values: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.array([int(value) for value in values], np.int64)
