"""What a run came to: its arrays read into a ledger."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_spec.ledger import HOST_USE, Ledger
from playproof_spec.machines import HostBlockState, NodeState, RequestState

from playproof_kernel.ground.arrays import (
    NONE,
    Handoff,
    Host,
    Sim,
)
from playproof_kernel.ground.faults import ReplayFault as ReplayFault
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.ground.records import records


def ledger_of(sim: Sim) -> Ledger:
    """Return what a simulation that has ended came to."""
    nodes = len(sim.node_state)
    split = len(sim.config) > 1
    # Tokens and ends as the client sees them: those of the decode worker, where there is one.
    first, served = sim.live[:nodes], sim.live[-nodes:]
    plays, workers = sim.plays, sim.workers
    admissions = sim.admissions[: int(sim.run[0].admissions)]
    gaps = sim.gaps[sim.gaps["count"] > 0]
    gaps = gaps[np.argsort(gaps.value, kind="stable")]
    handoffs = sim.handoffs if split else records(nodes, Handoff)
    decode_worker = np.where(served.worker == NONE, NONE, served.worker - int(sim.config[-1].first_worker))
    return Ledger(
        node_state=sim.node_state,
        request_state=final_states(sim),
        handoff_state=sim.handoff_state if split else np.zeros(nodes, np.int8),
        dispatched_ns=first.dispatched.copy(),
        first_admit_ns=first.first_admit.copy(),
        first_token_ns=served.first_token.copy(),
        second_token_ns=served.second_token.copy(),
        last_token_ns=served.last_token.copy(),
        terminal_ns=served.terminal.copy(),
        output_length=served.generated.copy(),
        source_held_ns=handoffs.held.copy(),
        destination_reserved_ns=handoffs.reserved.copy(),
        destination_activated_ns=handoffs.activated.copy(),
        source_released_ns=handoffs.released.copy(),
        worker=first.worker.astype(np.int32),
        decode_worker=decode_worker.astype(np.int32) if split else np.full(nodes, NONE, np.int32),
        route_overlap=sim.tickets.overlap[:nodes].copy(),
        decode_route_overlap=sim.tickets.overlap[nodes:].copy() if split else np.full(nodes, NONE, np.int64),
        admissions=(first.admissions + (served.admissions if split else 0)).astype(np.int32),
        admission_node=(admissions.request % nodes).astype(np.int32),
        admission_at_ns=admissions["at"].copy(),
        admission_reused=admissions.reused.copy(),
        admission_pool_ordinal=admissions.ordinal.copy(),
        admission_host_reused=admissions.host.copy(),
        admission_decode=admissions.request >= nodes,
        play_state=sim.play_state,
        play_lane=plays.lane.astype(np.int32),
        play_start_ns=plays.start.copy(),
        play_first_dispatch_ns=plays.first_dispatch.copy(),
        play_last_terminal_ns=plays.last_terminal.copy(),
        play_settled_ns=plays.settled.copy(),
        play_failed_node=plays.failed_node.astype(np.int32),
        gap_ns=gaps.value.copy(),
        gap_count=gaps["count"].copy(),
        passes=workers.passes.copy(),
        busy_ns=workers.busy.copy(),
        prefill_tokens=workers.prefill_tokens.copy(),
        decode_tokens=workers.decode_tokens.copy(),
        preemptions=workers.preemptions.copy(),
        evictions=workers.evictions.copy(),
        hosts=host_use(sim),
        end_ns=_end_ns(sim),
    )


def _end_ns(sim: Sim) -> int:
    """Return when the run ended: with its last event, or where it was stopped."""
    if int(sim.run[0].finished) < len(sim.node_state):
        return int(sim.config[0].end)
    # Transfers to host memory may go on behind the last request.
    return max(int(sim.run[0].now), 0)


def _moving_since(sim: Sim) -> npt.NDArray[np.int64]:
    """Return how long host transfers have moved, by worker and direction, since the last event of their shared pool."""
    moving = sim.hosts.moving > 0
    shared = np.flatnonzero(sim.hosts.shared)
    elapsed = np.zeros(len(sim.hosts), np.int64)
    elapsed[shared] = int(sim.run[0].now) - sim.hosts.advanced[sim.hosts.pool[shared]]
    return np.where(moving, elapsed[:, None], 0)


def host_use(sim: Sim) -> npt.NDArray[np.void]:
    """Return what each worker did with its host pool, and the pools; empty where there is none."""
    use: npt.NDArray[np.void] = np.zeros(len(sim.hosts), HOST_USE)
    unheard = _moving_since(sim)
    for name in set(HOST_USE.names or ()) & set(Host.dtype.names or ()):
        use[name] = sim.hosts[name]
    for direction, (link, blocks) in enumerate((("d2h", "stored"), ("h2d", "loaded"))):
        use[f"{blocks}_blocks"] = sim.hosts.moved_blocks[:, direction]
        use[f"{link}_busy"] = sim.hosts.busy[:, direction] + unheard[:, direction]
        use[f"pool_{link}_busy"] = sim.hosts.pool_busy[:, direction]
        for worker in np.flatnonzero(unheard[:, direction]):
            use[f"pool_{link}_busy"][sim.hosts[worker].pool] = (
                sim.hosts[sim.hosts[worker].pool].pool_busy[direction] + unheard[worker, direction]
            )
    held = (HostBlockState.RESIDENT, HostBlockState.PINNED)
    for row, states in enumerate(sim.host_state):
        use["resident"][row] = np.isin(states[: int(sim.hosts[row].groups) * GROUP], held).sum()
    return use


def final_states(sim: Sim) -> Any:
    """Return how the requests ended for their clients, as `RequestState`.

    That is not always how an engine ended them: one that is canceled in the pass that refuses it was canceled.
    """
    nodes = len(sim.node_state)
    too_long = sim.static.input[:nodes] >= int(sim.config[0].context)
    rejected = too_long | (sim.request_state[:nodes] == RequestState.REJECTED)
    ends = {
        RequestState.FINISHED: sim.node_state == NodeState.COMPLETED,
        RequestState.CANCELED: sim.node_state == NodeState.CANCELED,
        RequestState.REJECTED: (sim.node_state == NodeState.FAILED) & rejected,
        RequestState.FAILED: (sim.node_state == NodeState.FAILED) & ~rejected,
    }
    return np.select(list(ends.values()), [np.int8(state) for state in ends], np.int8(RequestState.QUEUED))


def leave_unfinished(sim: Sim) -> None:
    """Take what the passes in progress began out of the workers' counters: a pass counts when it has ended."""
    busy = sim.workers.pass_end != NONE
    ahead = np.array([role.ahead != 0 for role in sim.config for _ in range(role.workers)]) & busy
    sim.workers.passes[busy & ~ahead] -= 1
    prepared = sim.workers.prepared[ahead]
    rows, row = sim.workers.computes[ahead], sim.workers.flight[ahead]
    sim.workers.passes[ahead] -= np.take_along_axis(rows, row[:, None], 1)[:, 0]
    sim.workers.passes[ahead] -= prepared * np.take_along_axis(rows, 1 - row[:, None], 1)[:, 0]
    sim.workers.prefill_tokens[busy] = sim.workers.prefill_before[busy]
