"""What both engines do with a request: queues, admission, preemption, its end. One place for the lifecycle and its log.

An engine request is one request on one worker. Aggregated, it has its node's index. In prefill/decode a node has two:
its own index on the prefill worker, and that plus the number of nodes on the decode worker (`decode_of`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from playproof_spec.deployment import Role
from playproof_spec.machines import HandoffEvent, HandoffState, RequestEvent, RequestState

from playproof_kernel.ground import queues, worker_load
from playproof_kernel.ground.arrays import NONE, OUTCOMES, PENDING, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance, advance_handoff


class Hold(IntEnum):
    """What a request holds on its worker besides a place in a queue or a seat."""

    NOTHING = 0
    PENDING = 1  # a place in the queue for a destination, no memory
    SOURCE = 2  # the KV of a computed prompt, until the decode worker has it
    DESTINATION = 3  # memory for its prompt's KV, until it is admitted


_ADMIT, _PREEMPT, _FINISH = constant(RequestEvent.ADMIT), constant(RequestEvent.PREEMPT), constant(RequestEvent.FINISH)
_HANDOFF_ADMIT, _HANDOFF_RESERVE = constant(HandoffEvent.ADMIT), constant(HandoffEvent.RESERVE)
_NOTHING, _SOURCE, _DESTINATION = constant(Hold.NOTHING), constant(Hold.SOURCE), constant(Hold.DESTINATION)
_PREFILL, _DECODE = constant(Role.PREFILL), constant(Role.DECODE)
_COMPLETED = constant(HandoffState.COMPLETED)
_FINISHED, _REJECTED, _FAILED = (
    constant(RequestState.FINISHED),
    constant(RequestState.REJECTED),
    constant(RequestState.FAILED),
)


@compiled
def config_of(sim: Sim, worker: int) -> Any:
    """Return the configuration of the role of `worker`."""
    return sim.config[sim.workers[worker].role]


@compiled
def nodes_of(sim: Sim) -> int:
    """Return the number of nodes; engine requests of the decode role are numbered from there on."""
    return int(sim.node_state.shape[0])


@compiled
def node_of(sim: Sim, request: int) -> int:
    """Return the node that an engine request belongs to."""
    nodes = nodes_of(sim)
    return request - nodes if request >= nodes else request


@compiled
def known(sim: Sim, request: int) -> int:
    """Return the tokens of prompt and output that `request` has."""
    return int(sim.static[request].input + sim.live[request].generated)


@compiled
def outcome(sim: Sim, node: int) -> int:
    """Return how the request of `node` ended for its client, as a `RequestState`."""
    if sim.config.shape[0] == 1:
        return int(sim.request_state[node])
    if sim.handoff_state[node] == _COMPLETED:
        return _FINISHED
    rejected = sim.request_state[node] == _REJECTED or sim.static[node].input >= sim.config[0].context
    return _REJECTED if rejected else _FAILED


@compiled
def served(sim: Sim, node: int) -> int:
    """Return the engine request whose tokens the client of `node` gets."""
    return node + nodes_of(sim) if sim.config.shape[0] > 1 else node


@compiled
def engaged(sim: Sim, node: int) -> bool:
    """Whether engines still hold anything for `node`, or have something to do for it; known when its client is done."""
    ticket, other = sim.tickets[node], sim.tickets[served(sim, node)]
    return bool(ticket.action != 0 or ticket.hold != _NOTHING or other.action != 0 or other.hold != _NOTHING)


# Queues and seats -------------------------------------------------------------------------------------------------


@compiled
def pending_due(sim: Sim, worker: int) -> bool:
    """Whether the first pending destination of `worker` would be tried at the end of its next pass."""
    record = sim.workers[worker]
    first = sim.queues[worker, PENDING].head
    return first != NONE and sim.tickets[first].tried_epoch != record.capacity_epoch


@compiled
def remove_running(sim: Sim, worker: int, request: int) -> None:
    """Take `request` out of the running ones, if it is there; the others keep their order."""
    record = sim.workers[worker]
    kept = 0
    stalled = record.stalled
    for i in range(record.running):
        if sim.running[worker, i] != request:
            sim.running[worker, kept] = sim.running[worker, i]
            kept += 1
        elif i < stalled:
            record.stalled -= 1
    if kept < record.running:
        record.full = 0
    record.running = kept


# The lifecycle ----------------------------------------------------------------------------------------------------


@compiled
def admit(sim: Sim, worker: int, request: int, reused: int) -> None:
    """Give `request` a seat and log its admission with the `reused` tokens that the cache had."""
    run = sim.run[0]
    live = sim.live[request]
    record = sim.workers[worker]
    advance(REQUEST_TABLE, sim.request_state, request, _ADMIT)
    if config_of(sim, worker).role == _DECODE:
        advance_handoff(sim, node_of(sim, request), _HANDOFF_ADMIT)
        if sim.tickets[request].hold == _DESTINATION:
            sim.tickets[request].hold = _NOTHING
            record.holding -= 1
    admission = sim.admissions[run.admissions]
    admission.request = request
    admission.at = run.now
    admission.reused = reused
    admission.ordinal = live.admissions
    admission.host = 0  # the log is used again under run controls
    run.admissions += 1
    if live.admissions == 0:
        live.first_admit = run.now
        worker_load.begin(sim, worker, request)
    live.admissions += 1


@compiled
def seat(sim: Sim, worker: int, request: int) -> None:
    """Add `request` to the running ones."""
    record = sim.workers[worker]
    sim.running[worker, record.running] = request
    record.running += 1


@compiled
def preempt(sim: Sim, worker: int, request: int) -> None:
    """Note that `request` loses its seat and memory; the caller queues it again."""
    record = sim.workers[worker]
    advance(REQUEST_TABLE, sim.request_state, request, _PREEMPT)
    if config_of(sim, worker).role == _DECODE:
        advance_handoff(sim, node_of(sim, request), _HANDOFF_RESERVE)
    record.preemptions += 1


@compiled
def tell(sim: Sim, request: int) -> None:
    """Put a request that ended on the feedback list."""
    run = sim.run[0]
    sim.feedback[run.feedback] = request
    run.feedback += 1


@compiled
def finish(sim: Sim, worker: int, request: int, end: int) -> None:
    """Note that `request` has all its tokens at `end`; a prefill worker holds its KV from here on."""
    record = sim.workers[worker]
    advance(REQUEST_TABLE, sim.request_state, request, _FINISH)
    sim.live[request].terminal = end
    worker_load.leave(sim, worker, request)
    record.capacity_epoch += 1
    if config_of(sim, worker).role == _PREFILL:
        sim.tickets[request].hold = _SOURCE
        record.holding += 1
    tell(sim, request)


@compiled
def note_outcome(sim: Sim, worker: int, request: int, event: int) -> None:
    """Settle a request that leaves in this pass without finishing; the driver hears of it at the pass's end."""
    advance(REQUEST_TABLE, sim.request_state, request, event)
    queues.append(sim.queues[worker, OUTCOMES], sim.live, request)


@compiled
def tell_outcomes(sim: Sim, worker: int, end: int) -> None:
    """Put what was rejected or failed in a pass that ended at `end` on the feedback list."""
    while sim.queues[worker, OUTCOMES].head != NONE:
        tell_first_outcomes(sim, worker, end, ONE)


@compiled
def tell_first_outcomes(sim: Sim, worker: int, end: int, number: int) -> None:
    """Put the first `number` of what has been rejected or failed on the feedback list."""
    for _ in range(number):
        request = queues.take(sim.queues[worker, OUTCOMES], sim.live)
        worker_load.leave(sim, worker, request)
        if sim.tickets[request].canceled == 0:
            sim.live[request].terminal = end
            tell(sim, request)


@compiled
def drop_canceled(sim: Sim, worker: int) -> None:
    """Take canceled requests out of the running ones at a pass's end; what they hold goes when they are cleaned up."""
    record = sim.workers[worker]
    while record.canceled > 0:
        record.canceled -= 1
        for i in range(record.running):
            request = sim.running[worker, i]
            if sim.tickets[request].canceled != 0:
                remove_running(sim, worker, request)
                break
