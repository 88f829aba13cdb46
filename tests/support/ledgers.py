"""Ledgers as plain values, so that two runs can be compared whole."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from playproof_kernel import ControlledLedger
from playproof_reference.runs import Run as NaiveRun
from playproof_spec.ledger import Ledger
from playproof_spec.machines import HandoffState, NodeState, PlayState, RequestState

# What a host pool did, as far as a naive one counts it.
HOST_COLUMNS = (
    *("used", "resident", "hits", "misses", "stores", "loads", "stored_blocks", "loaded_blocks", "evictions"),
    *("deferrals", "retries", "d2h_busy", "h2d_busy", "pool_d2h_busy", "pool_h2d_busy"),
)


def columns(ledger: Ledger) -> dict[str, Any]:
    """Return every column of `ledger` as lists."""
    values = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def controlled_columns(ledger: ControlledLedger) -> dict[str, Any]:
    """Return every column of a run under run controls as plain values, captured requests too."""
    assert ledger.captured is not None
    captured = {"requests": ledger.captured.requests.tolist(), "admissions": ledger.captured.admissions.tolist()}
    values = {field.name: getattr(ledger, field.name) for field in fields(ledger) if field.name != "captured"}
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return {**plain, "cuts": [repr(cut) for cut in ledger.cuts], "captured": captured}


def host_columns(hosts: np.ndarray[Any, Any]) -> list[dict[str, int]]:
    """Return what the workers with host memory did with it, and the pools did."""
    rows = zip(hosts[[*HOST_COLUMNS]].tolist(), hosts["pool"], strict=True)
    return [dict(zip(HOST_COLUMNS, row, strict=True)) for row, pool in rows if pool >= 0]


def observed(ledger: Ledger) -> dict[str, Any]:
    """Return what a naive run can be compared on."""
    history: list[list[tuple[int, int, int, bool, int]]] = [[] for _ in ledger.node_state]
    reuse = (ledger.admission_reused, ledger.admission_host_reused)
    columns_of_history = (ledger.admission_at_ns, *reuse, ledger.admission_pool_ordinal)
    for node, decode, at, reused, host, ordinal in zip(
        ledger.admission_node, ledger.admission_decode, *columns_of_history, strict=True
    ):
        history[node].append((int(at), int(reused), int(host), bool(decode), int(ordinal)))
    return {
        "state": [NodeState(int(state)).name.lower() for state in ledger.node_state],
        "request_state": [RequestState(int(state)).name.lower() for state in ledger.request_state],
        "handoff_state": [HandoffState(int(state)).name.lower() for state in ledger.handoff_state],
        "dispatched": ledger.dispatched_ns.tolist(),
        "first_token": ledger.first_token_ns.tolist(),
        "second_token": ledger.second_token_ns.tolist(),
        "last_token": ledger.last_token_ns.tolist(),
        "terminal": ledger.terminal_ns.tolist(),
        "output": ledger.output_length.tolist(),
        "worker": ledger.worker.tolist(),
        "decode_worker": ledger.decode_worker.tolist(),
        "overlap": ledger.route_overlap.tolist(),
        "decode_overlap": ledger.decode_route_overlap.tolist(),
        "held": ledger.source_held_ns.tolist(),
        "reserved": ledger.destination_reserved_ns.tolist(),
        "activated": ledger.destination_activated_ns.tolist(),
        "released": ledger.source_released_ns.tolist(),
        "admissions": history,
        "play_state": [PlayState(int(state)).name.lower() for state in ledger.play_state],
        "play_start": ledger.play_start_ns.tolist(),
        "play_settled": ledger.play_settled_ns.tolist(),
        "play_lane": ledger.play_lane.tolist(),
        "failed_node": ledger.play_failed_node.tolist(),
        "gaps": dict(zip(ledger.gap_ns.tolist(), ledger.gap_count.tolist(), strict=True)),
        "passes": ledger.passes.tolist(),
        "preemptions": ledger.preemptions.tolist(),
        "hosts": host_columns(ledger.hosts),
    }


def naively_observed(run: NaiveRun) -> dict[str, Any]:
    """Return the same of a naive run."""
    driver = run.driver
    requests = driver.requests
    # The kernel has one state for both: what the driver calls failed, the request calls rejected or failed.
    states = ["failed" if r.state == "rejected" else r.state for r in requests]
    # Of a run that was stopped the last four: they have not ended for anybody.
    unended = dict.fromkeys(("skipped", "blocked", "ready", "dispatched"), "queued")
    of_request = {"completed": "finished", **unended}
    of_handoff = {"skipped": "queued", "rejected": "failed"}
    histories = [
        [(*entry, r.host_reused.get(i, 0), False, i) for i, entry in enumerate(r.admissions)]
        + [(*entry, r.decode_host_reused.get(i, 0), True, i) for i, entry in enumerate(r.decode_admissions)]
        for r in requests
    ]
    return {
        "state": states,
        "request_state": [of_request.get(r.state, r.state) for r in requests],
        "handoff_state": [of_handoff.get(r.state, r.state) if run.disaggregated else "queued" for r in requests],
        "dispatched": [r.dispatched_ns for r in requests],
        "first_token": [r.tokens_ns[0] if r.tokens_ns else -1 for r in requests],
        "second_token": [r.tokens_ns[1] if len(r.tokens_ns) > 1 else -1 for r in requests],
        "last_token": [r.tokens_ns[-1] if r.tokens_ns else -1 for r in requests],
        "terminal": [r.terminal_ns for r in requests],
        "output": [len(r.tokens_ns) for r in requests],
        "worker": [r.worker for r in requests],
        "decode_worker": [h.worker for h in run.handoffs],
        "overlap": [run.overlap.get(r.index, -1) for r in requests],
        "decode_overlap": [run.decode_overlap.get(r.index, -1) for r in requests],
        "held": [h.held_ns for h in run.handoffs],
        "reserved": [h.reserved_ns for h in run.handoffs],
        "activated": [h.activated_ns for h in run.handoffs],
        "released": [h.released_ns for h in run.handoffs],
        "admissions": histories,
        "play_state": driver.play_state,
        "play_start": driver.play_start,
        "play_settled": driver.play_settled,
        "play_lane": driver.play_lane,
        "failed_node": driver.failed_node,
        "gaps": run.gaps(),
        "passes": [w.passes for w in run.workers],
        "preemptions": [w.preemptions for w in run.workers],
        "hosts": [use for w in run.workers if (use := w.host_use())],
    }
