"""Prefill and decode as two roles: the steps of a logical request, the queue of actions, and clean-up after a cancel.

A dispatched node takes these steps, each an action in one queue, first in first out:

- source-first (vLLM): submit to a prefill worker; held there; reserve at a decode worker; transfer; activate; release;
- destination-first (SGLang): reserve; submit; held; transfer; activate; release.

An action that touches a worker in the middle of a pass waits for the pass's end, and then goes to the back of the
queue. Memory for a prompt is reserved first come, first served on each decode worker: one try, and so at most one
reservation, at the end of each pass, after each action that touches the worker while it is idle, and when it has work
but cannot start a pass. A try that failed is repeated only when memory or a seat may have become free since.

A canceled or failed request is cleaned up by an action for each role it has reached: it takes the place of the action
that waits there, if any. Aggregated deployments use the queue for that alone.
"""

from __future__ import annotations

from enum import IntEnum

from playproof_spec.machines import HandoffEvent, HandoffState, RequestEvent, RequestState

from playproof_kernel.driver import instances
from playproof_kernel.engines import engine
from playproof_kernel.ground import lifecycle, queues, timers, worker_load
from playproof_kernel.ground.arrays import NONE, PENDING, WAITING, Sim
from playproof_kernel.ground.jit import compiled, constant
from playproof_kernel.ground.lifecycle import Hold, node_of, nodes_of
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance, advance_handoff
from playproof_kernel.routing import placement


class Action(IntEnum):
    """What waits to be done for an engine request."""

    NOTHING = 0
    SUBMIT = 1  # place on a prefill worker
    RESERVE = 2  # place on a decode worker and ask for memory there
    TRANSFER = 3
    ACTIVATE = 4
    RELEASE = 5
    CLEAN = 6


_NOTHING, _SUBMIT, _RESERVE, _TRANSFER = (
    int(Action.NOTHING),
    int(Action.SUBMIT),
    int(Action.RESERVE),
    int(Action.TRANSFER),
)
_ACTIVATE, _RELEASE, _CLEAN = constant(Action.ACTIVATE), constant(Action.RELEASE), constant(Action.CLEAN)
_HOLDS_NOTHING, _PENDING = constant(Hold.NOTHING), constant(Hold.PENDING)
_SOURCE, _DESTINATION = constant(Hold.SOURCE), constant(Hold.DESTINATION)

_PLACE, _CANCEL = constant(RequestEvent.PLACE), constant(RequestEvent.CANCEL)
_REJECT = constant(RequestEvent.REJECT)
_RUNNING, _FINISHED = constant(RequestState.RUNNING), constant(RequestState.FINISHED)
_WAITING, _PREEMPTED = constant(RequestState.WAITING), constant(RequestState.PREEMPTED)
_LOADING = constant(RequestState.LOADING)
_TRANSFERRING = constant(HandoffState.TRANSFERRING)
_EVENT_SUBMIT, _EVENT_RESERVE = constant(HandoffEvent.SUBMIT), constant(HandoffEvent.RESERVE)
_EVENT_HELD, _EVENT_GRANT = constant(HandoffEvent.PREFILL_DONE), constant(HandoffEvent.GRANT)
_EVENT_TRANSFER, _EVENT_ACTIVATE = constant(HandoffEvent.TRANSFER), constant(HandoffEvent.ACTIVATE)
_EVENT_COMPLETE, _EVENT_EMPTY = constant(HandoffEvent.COMPLETE), constant(HandoffEvent.COMPLETE_EMPTY)
_EVENT_FAIL, _EVENT_CANCEL = constant(HandoffEvent.FAIL), constant(HandoffEvent.CANCEL)


@compiled
def is_split(sim: Sim) -> bool:
    """Whether the deployment has a prefill and a decode role."""
    return bool(sim.config.shape[0] > 1)


# The queue of actions ---------------------------------------------------------------------------------------------


@compiled
def _queue(sim: Sim, request: int, action: int) -> None:
    sim.tickets[request].action = action
    queues.append(sim.actions[sim.workers.shape[0]], sim.tickets, request)


@compiled
def act(sim: Sim) -> None:
    """Take the action at the head of the queue, which is there."""
    request = queues.take(sim.actions[sim.workers.shape[0]], sim.tickets)
    ticket = sim.tickets[request]
    action = ticket.action
    if action in (_ACTIVATE, _RELEASE, _CLEAN) and sim.live[request].worker != NONE:
        worker = int(sim.live[request].worker)
        engine.interrupt(sim, worker)
        if sim.workers[worker].pass_end != NONE:
            queues.append(sim.actions[worker], sim.tickets, request)
            return
    ticket.action = _NOTHING
    if action == _SUBMIT:
        _submit(sim, request)
    elif action == _RESERVE:
        _ask(sim, request)
    elif action == _TRANSFER:
        _transfer(sim, request)
    elif action == _ACTIVATE:
        _activate(sim, request)
    elif action == _RELEASE:
        _release(sim, request)
    else:
        _clean(sim, request)
    if action in (_RELEASE, _CLEAN) and sim.config[0].controls != 0:
        instances.settle_request(sim, node_of(sim, request))


# The steps --------------------------------------------------------------------------------------------------------


@compiled
def place(sim: Sim, request: int) -> int:
    """Place `request` on a worker of its role, by the deployment's policy, and return that worker."""
    advance(REQUEST_TABLE, sim.request_state, request, _PLACE)
    role = 0 if request < nodes_of(sim) else 1
    sim.live[request].worker = placement.choose(sim, role, request)
    return int(sim.live[request].worker)


@compiled
def begin(sim: Sim, node: int) -> None:
    """Take in a node that the driver dispatched; a prompt at or over the context limit gets no further than here."""
    if sim.static[node].input >= sim.config[0].context:
        _refuse(sim, node)
    elif not is_split(sim):
        engine.enqueue(sim, place(sim, node), node)
    elif sim.config[0].destination_first != 0:
        _queue(sim, node + nodes_of(sim), _RESERVE)
    else:
        _queue(sim, node, _SUBMIT)


@compiled
def _refuse(sim: Sim, node: int) -> None:
    """Refuse a request as the front end of a server does, before any worker hears of it."""
    advance(REQUEST_TABLE, sim.request_state, node, _REJECT)
    sim.live[lifecycle.served(sim, node)].terminal = sim.run[0].now
    if is_split(sim):
        advance_handoff(sim, node, _EVENT_FAIL)
    lifecycle.tell(sim, node)


@compiled
def _submit(sim: Sim, request: int) -> None:
    advance_handoff(sim, request, _EVENT_SUBMIT)
    engine.enqueue(sim, place(sim, request), request)


@compiled
def _ask(sim: Sim, request: int) -> None:
    """Ask a decode worker for memory; a prompt that can never have it there ends its request."""
    config = sim.config[1]
    node = node_of(sim, request)
    prompt = sim.static[request].input
    advance_handoff(sim, node, _EVENT_RESERVE)
    worker = place(sim, request)
    record = sim.workers[worker]
    sim.tickets[request].order = record.arrivals
    record.arrivals += 1
    if prompt >= config.context or prompt > config.blocks * config.block_size:
        advance(REQUEST_TABLE, sim.request_state, request, _CANCEL)
        worker_load.leave(sim, worker, request)
        sim.live[request].worker = NONE
        _give_up(sim, node)
        lifecycle.tell(sim, node)
        return
    sim.tickets[request].hold = _PENDING
    pending = sim.queues[worker, PENDING]
    if pending.head == NONE:
        engine.interrupt(sim, worker)
    queues.append(pending, sim.live, request)
    if record.pass_end == NONE:
        reserve_next(sim, worker)


@compiled
def reserve_next(sim: Sim, worker: int) -> bool:
    """Try to reserve memory for the first pending destination of an idle worker, unless that was tried in vain."""
    record = sim.workers[worker]
    if not lifecycle.pending_due(sim, worker):
        return False
    pending = sim.queues[worker, PENDING]
    request = int(pending.head)
    ticket = sim.tickets[request]
    if ticket.canceled != 0:
        return False  # its clean-up is on its way, and tries for the next one
    ticket.tried_epoch = record.capacity_epoch
    record.asked = sim.run[0].now
    missing = engine.reserve(sim, worker, request)
    if missing == NONE:
        return False
    queues.take(pending, sim.live)
    ticket.hold = _DESTINATION
    record.holding += 1
    record.tried = NONE
    node = node_of(sim, request)
    sim.handoffs[node].missing = missing
    sim.handoffs[node].reserved = sim.run[0].now
    advance_handoff(sim, node, _EVENT_GRANT)
    if sim.config[0].destination_first != 0:
        _queue(sim, node, _SUBMIT)
    else:
        _queue(sim, request, _TRANSFER)
    return True


@compiled
def _transfer(sim: Sim, request: int) -> None:
    config = sim.config[0]
    node = node_of(sim, request)
    advance_handoff(sim, node, _EVENT_TRANSFER)
    tokens = sim.static[request].input if config.full_prompt != 0 else sim.handoffs[node].missing
    duration = 0
    if config.bytes_per_second > 0.0:
        duration = round(float(tokens * config.bytes_per_token) / config.bytes_per_second * 1e9)
    run = sim.run[0]
    if duration > 0:
        timers.push(sim.kv_transfers, run.kv_transfers, run.now + duration, node, sim.static[node].serial)
        run.kv_transfers += 1
    else:
        _queue(sim, request, _ACTIVATE)


@compiled
def end_kv_transfers(sim: Sim) -> bool:
    """End the transfers that are over by now; those of requests that have ended count for nothing."""
    run = sim.run[0]
    changed = False
    while run.kv_transfers > 0 and sim.kv_transfers[0].time <= run.now:
        node = timers.pop(sim.kv_transfers, run.kv_transfers)
        run.kv_transfers -= 1
        if sim.handoff_state[node] == _TRANSFERRING:
            _queue(sim, node + nodes_of(sim), _ACTIVATE)
        changed = True
    return changed


@compiled
def _activate(sim: Sim, request: int) -> None:
    node = node_of(sim, request)
    worker = int(sim.live[request].worker)
    engine.activate(sim, worker, request)
    sim.workers[worker].tried = NONE
    advance_handoff(sim, node, _EVENT_ACTIVATE)
    sim.handoffs[node].activated = sim.run[0].now
    _queue(sim, node, _RELEASE)
    reserve_next(sim, worker)


@compiled
def _release(sim: Sim, request: int) -> None:
    worker = int(sim.live[request].worker)
    record = sim.workers[worker]
    engine.release_source(sim, worker, request)
    sim.tickets[request].hold = _HOLDS_NOTHING
    record.holding -= 1
    record.tried = NONE
    sim.handoffs[request].released = sim.run[0].now


@compiled
def end_of_pass(sim: Sim, worker: int, begin: int) -> None:
    """Take in the end of a pass of `worker`, whose requests that ended stand on the feedback list from `begin` on.

    What a prefill worker finished is held there; what else ended goes on to the driver, as nodes.
    """
    # What waited for the pass goes before what its end brings about.
    queues.move_all(sim.actions[worker], sim.actions[sim.workers.shape[0]], sim.tickets)
    if not is_split(sim):
        return
    run = sim.run[0]
    ended = run.feedback
    # Failures first, then prompts that want no token, then the others.
    for sweep in range(3):
        for position in range(begin, ended):
            request = int(sim.feedback[position])
            if _sweep_of(sim, request) == sweep:
                _end(sim, request)
    run.feedback = begin
    for position in range(begin, ended):
        request = int(sim.feedback[position])
        if request >= nodes_of(sim) or sim.request_state[request] != _FINISHED:
            lifecycle.tell(sim, node_of(sim, request))
    reserve_next(sim, worker)


@compiled
def _sweep_of(sim: Sim, request: int) -> int:
    if sim.request_state[request] != _FINISHED:
        return 0
    return 1 if sim.static[request].limit == 0 else 2


@compiled
def _end(sim: Sim, request: int) -> None:
    """Take in that an engine request ended: its prompt is held, or its node is at its end."""
    node = node_of(sim, request)
    if sim.request_state[request] != _FINISHED:
        _give_up(sim, node)
    elif request != node:
        advance_handoff(sim, node, _EVENT_EMPTY if sim.static[request].limit == 0 else _EVENT_COMPLETE)
    else:
        advance_handoff(sim, node, _EVENT_HELD)
        sim.handoffs[node].held = sim.run[0].now
        _queue(sim, node + nodes_of(sim), _TRANSFER if sim.config[0].destination_first != 0 else _RESERVE)


# Failure and cancellation -----------------------------------------------------------------------------------------


@compiled
def _give_up(sim: Sim, node: int) -> None:
    """End a logical request that cannot go on, and clean up after it."""
    advance_handoff(sim, node, _EVENT_FAIL)
    sim.live[node + nodes_of(sim)].terminal = sim.run[0].now
    _abandon(sim, node)
    _abandon(sim, node + nodes_of(sim))


@compiled
def cancel(sim: Sim, node: int) -> None:
    """The client gives up on a dispatched node now; what its request holds goes when its workers are between passes."""
    if is_split(sim):
        advance_handoff(sim, node, _EVENT_CANCEL)
        sim.live[node + nodes_of(sim)].terminal = sim.run[0].now
        _abandon(sim, node)
        _abandon(sim, node + nodes_of(sim))
    else:
        sim.live[node].terminal = sim.run[0].now
        _abandon(sim, node)


@compiled
def _abandon(sim: Sim, request: int) -> None:
    """Queue the clean-up of an engine request, in the place of whatever waits to be done for it."""
    ticket = sim.tickets[request]
    state = sim.request_state[request]
    if state in (_WAITING, _LOADING, _RUNNING, _PREEMPTED):
        worker = int(sim.live[request].worker)
        # Passes that have ended by now were still for it, so they end before it counts as canceled.
        engine.interrupt(sim, worker)
        if state == _RUNNING and sim.workers[worker].pass_end != NONE:
            sim.workers[worker].canceled += 1
    ticket.canceled = 1
    if ticket.action != _NOTHING:
        ticket.action = _CLEAN
    elif state in (_WAITING, _LOADING, _RUNNING, _PREEMPTED) or ticket.hold != _HOLDS_NOTHING:
        _queue(sim, request, _CLEAN)


@compiled
def _clean(sim: Sim, request: int) -> None:
    ticket = sim.tickets[request]
    state = sim.request_state[request]
    worker = int(sim.live[request].worker)
    if state < _FINISHED:
        advance(REQUEST_TABLE, sim.request_state, request, _CANCEL)
    if worker == NONE:
        return
    record = sim.workers[worker]
    worker_load.leave(sim, worker, request)
    engine.forget(sim, worker, request)
    if ticket.hold == _PENDING:
        queues.remove(sim.queues[worker, PENDING], sim.live, request)
    elif ticket.hold != _HOLDS_NOTHING:
        record.holding -= 1
    if state in (_WAITING, _LOADING, _PREEMPTED):
        engine.remove_waiting(sim, worker, request)
    elif state == _RUNNING:
        lifecycle.remove_running(sim, worker, request)
        if sim.queues[worker, WAITING].head == request:
            queues.take(sim.queues[worker, WAITING], sim.live)  # it runs by chunks, and waits for its next one
    if ticket.hold == _SOURCE:
        engine.release_source(sim, worker, request)
    else:
        engine.let_go(sim, worker, request)
    ticket.hold = _HOLDS_NOTHING
    record.capacity_epoch += 1
    record.tried = NONE
    reserve_next(sim, worker)
