"""The event loop: one total order, no wall clock.

At each instant a turn of steps is repeated until it changes nothing; then the clock jumps to the next timer, pass end,
transfer or cancellation. The steps of a turn are those of `Step`. The loop is resumable: it stops within a turn when a
log, the block tables or the radix trees want room, after a slice of instants (so that progress can be shown), and at
the end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from playproof_kernel.driver import instances, play_driver
from playproof_kernel.engines import engine, passes
from playproof_kernel.engines.seam import Room
from playproof_kernel.ground import timers
from playproof_kernel.ground.arrays import DEFERRED, NONE, PENDING, READY, WAITING, Sim
from playproof_kernel.ground.jit import compiled, compiled_entry, constant
from playproof_kernel.ground.timers import sooner
from playproof_kernel.handoff import handoffs
from playproof_kernel.host import offload
from playproof_kernel.runs import phases


class Stop(IntEnum):
    """Why `run` returned."""

    DONE = 0
    SLICE = 1  # call again
    LOGS = 2  # a log wants room
    ARENA = 3  # the arena of block tables wants ``run.arena_wanted`` entries
    STALL = 4  # requests remain and nothing is due: a fault of ours
    HORIZON = 5  # the clock reached its end: its bound, or where the load stops the run
    TREE = 6  # the radix trees want twice their room
    SEATS = 7  # play instances want seats
    OVER = 8  # a run under the run controls has ended for its client


class Step(IntEnum):
    """The steps of a turn, in their order."""

    ENDS = 0  # passes end, workers of the prefill role first; then transfers
    ACTIONS = 1  # the queue of handoff actions and clean-ups, until it is empty
    FEEDBACK = 2  # the driver hears of what ended; clients cancel; the run controls do what is due
    CLEANUPS = 3  # the queue again
    DISPATCHES = 4  # the driver dispatches what is due
    STARTS = 5  # idle workers start passes, those of the prefill role first


_DONE, _SLICE, _LOGS, _ARENA = constant(Stop.DONE), constant(Stop.SLICE), constant(Stop.LOGS), constant(Stop.ARENA)
_STALL, _HORIZON, _TREE = constant(Stop.STALL), constant(Stop.HORIZON), constant(Stop.TREE)
_SEATS, _OVER = constant(Stop.SEATS), constant(Stop.OVER)
_ENDS, _ACTIONS, _FEEDBACK = constant(Step.ENDS), constant(Step.ACTIONS), constant(Step.FEEDBACK)
_CLEANUPS, _DISPATCHES, _STARTS = constant(Step.CLEANUPS), constant(Step.DISPATCHES), constant(Step.STARTS)
_ENOUGH, _TREES = constant(Room.ENOUGH), constant(Room.TREES)


@compiled
def _end_pass(sim: Sim, worker: int) -> None:
    begin = sim.run[0].feedback
    engine.apply_passes(sim, worker, sim.workers[worker].macro)
    handoffs.end_of_pass(sim, worker, begin)


@compiled
def _end_passes(sim: Sim) -> int:
    run = sim.run[0]
    # What `_next_instant` saw holds until this instant's first turn.
    if sim.hosts.shape[0] > 0 and (run.scanned != 0 or NONE != run.transfers_due <= run.now):
        _end_host_transfers(sim)
    for worker in range(sim.workers.shape[0]):
        if sim.hosts.shape[0] > 0:
            # A pass that ended before it in the order may have made host transfers that took no time.
            _cut_if_woken(sim, worker, True)
        if sim.workers[worker].pass_end == run.now:
            if handoffs.is_split(sim):
                room = engine.room_for_action(sim)
                if room != _ENOUGH:
                    return _stop_for(room)
            _end_pass(sim, worker)
            run.changed = 1
    for worker in range(sim.hosts.shape[0]):
        _cut_if_woken(sim, worker, False)
    return _DONE


@compiled
def _end_host_transfers(sim: Sim) -> None:
    """End the host transfers that are due: of a shared pool for all of its workers, else of idle ones.

    A worker in a pass hears of its own at the pass's end; a macro-step ends with that pass if anybody waits for it.
    """
    run = sim.run[0]
    for worker in range(sim.workers.shape[0]):
        time = offload.next_end(sim, worker)
        if time == NONE or time > run.now:
            continue
        if offload.is_shared(sim, worker) or sim.workers[worker].pass_end == NONE:
            offload.end_transfers(sim, worker, run.now)
            run.changed = 1
        elif _awaits_transfers(sim, worker):
            _cut(sim, worker)
            run.changed = 1
    for worker in range(sim.hosts.shape[0]):
        _cut_if_woken(sim, worker, True)


@compiled
def _awaits_transfers(sim: Sim, worker: int) -> bool:
    """Whether `worker` is in a macro-step while a request, or a destination, waits for the end of some transfer."""
    if sim.workers[worker].macro <= 1:
        return False
    return bool(sim.queues[worker, DEFERRED].head != NONE or sim.queues[worker, PENDING].head != NONE)


@compiled
def _cut_if_woken(sim: Sim, worker: int, in_turn: bool) -> None:
    """Cut the macro-step of `worker` if its host pool heard of ends that matter to it.

    `in_turn` says that the worker's pass end is still to come at this instant, if there is one.
    """
    record = sim.workers[worker]
    if sim.hosts[worker].woken == 0 or record.pass_end == NONE:
        return
    sim.hosts[worker].woken = 0
    if record.pass_end != sim.run[0].now and offload.ends_matter(sim, worker):
        if in_turn:
            _cut(sim, worker)
        else:
            engine.interrupt(sim, worker)


@compiled
def _cut(sim: Sim, worker: int) -> None:
    """Cut the macro-step of `worker` before the ends of passes at this instant.

    If one of its own passes ends now, the step ends with that, in its turn among the others and with all that the end
    of a pass brings about: a destination that waits is tried.
    """
    record = sim.workers[worker]
    if record.macro <= 1:
        return
    number, end = passes.done(sim, worker)
    if number > 0 and end == sim.run[0].now and sim.run[0].scanned == 0:
        record.macro = number
        record.pass_end = end
    else:
        engine.interrupt(sim, worker)


@compiled
def _try_woken(sim: Sim) -> None:
    """Try a pending destination on idle workers that heard of nothing but ends of host transfers at this instant."""
    run = sim.run[0]
    for worker in range(sim.hosts.shape[0]):
        record = sim.workers[worker]
        if sim.hosts[worker].woken != 0 and record.pass_end == NONE:
            sim.hosts[worker].woken = 0
            if record.asked != run.now and handoffs.reserve_next(sim, worker):
                run.changed = 1


@compiled
def _stop_for(room: int) -> int:
    """Return why the loop stops when an engine's memory wants `room`."""
    return _TREE if room == _TREES else _ARENA


@compiled
def _cancel_due(sim: Sim) -> None:
    run = sim.run[0]
    while run.next_cancellation < sim.cancellations.shape[0]:
        entry = sim.cancellations[run.next_cancellation]
        if entry.time > run.now:
            return
        run.next_cancellation += 1
        run.changed = 1
        if play_driver.cancel(sim, entry.node):
            handoffs.cancel(sim, entry.node)


@compiled
def _dispatch_due(sim: Sim) -> None:
    run = sim.run[0]
    while timers.is_due(sim):
        node = timers.pop_timer(sim)
        play_driver.dispatch(sim, node)
        handoffs.begin(sim, node)
        run.changed = 1


@compiled
def _act(sim: Sim) -> int:
    run = sim.run[0]
    while sim.actions[sim.workers.shape[0]].head != NONE:
        room = engine.room_for_action(sim)
        if room != _ENOUGH:
            return _stop_for(room)
        handoffs.act(sim)
        run.changed = 1
    return _DONE


@compiled
def _room(sim: Sim, worker: int) -> int:
    """Check that the logs, the arena and the trees can take one more pass of `worker`."""
    run = sim.run[0]
    sequences = sim.running.shape[1]
    # A pass may be scheduled together with the one behind it.
    if run.admissions + 2 * sequences > sim.admissions.shape[0]:
        return _LOGS
    if 2 * (run.gaps + (passes.MAX_VARYING_PASSES + sequences) * sim.workers.shape[0]) > sim.gaps.shape[0]:
        return _LOGS
    room = engine.room_for_pass(sim, worker)
    return _DONE if room == _ENOUGH else _stop_for(room)


@compiled
def _room_of_controls(sim: Sim) -> int:
    """Check that the logs of the run controls, and the free seats, can take one more turn."""
    run, lanes = sim.run[0], sim.config[0].lanes
    short = sim.results.shape[0] - run.results < sim.node_state.shape[0]
    short = short or sim.ended.shape[0] - run.ended < sim.plays.shape[0]
    if short or sim.shifts.shape[0] - run.shifts <= lanes:
        return _LOGS
    # A lane takes one play a turn at most. Aggregated workers hold nothing of a play that has left its seat.
    return _SEATS if handoffs.is_split(sim) and run.seats < lanes else _DONE


@compiled
def _queued(sim: Sim, worker: int) -> bool:
    if sim.hosts.shape[0] > 0 and offload.some_awake(sim, worker):
        return True
    if sim.workers[worker].prepared != 0:
        return True
    return bool(sim.queues[worker, WAITING].head != NONE or sim.queues[worker, READY].head != NONE)


@compiled
def _first_startable(sim: Sim, role: int) -> int:
    """Return the first idle worker of `role` with work that was not tried in vain at this instant, or NONE."""
    config = sim.config[role]
    for worker in range(config.first_worker, config.first_worker + config.workers):
        record = sim.workers[worker]
        if record.pass_end == NONE and record.tried != sim.run[0].now:
            if record.running > 0 or _queued(sim, worker):
                return int(worker)
    return NONE


@compiled
def _start_passes(sim: Sim, role: int) -> int:
    """Start passes on idle workers of `role` with work: the first of them, one pass, then look again from the first."""
    run = sim.run[0]
    while True:
        worker = _first_startable(sim, role)
        if worker == NONE:
            return _DONE
        room = _room(sim, worker)
        if room != _DONE:
            return room
        record = sim.workers[worker]
        record.prefill_before = record.prefill_tokens
        if engine.start_pass(sim, worker):
            run.changed = 1
            if sim.config[0].controls != 0:
                instances.note_admissions(sim)
            if record.pass_end == run.now:
                _end_pass(sim, worker)
        elif handoffs.reserve_next(sim, worker):
            run.changed = 1
        else:
            record.tried = run.now


@compiled
def _turn(sim: Sim) -> int:
    """Take the steps of one turn, from where the last call stopped; anything but DONE means: make room, call again.

    Most steps of most turns have nothing to do. Finding that out here spares a call, which would transfer all of `sim`.
    """
    run = sim.run[0]
    controls = sim.config[0].controls != 0
    actions = sim.actions[sim.workers.shape[0]]
    if run.step == _ENDS:
        if controls:
            stop = _room_of_controls(sim)
            if stop != _DONE:
                return stop
        stop = _end_passes(sim)
        if stop != _DONE:
            return stop
        if run.kv_transfers > 0 and handoffs.end_kv_transfers(sim):
            run.changed = 1
        run.step = _ACTIONS
    if run.step == _ACTIONS:
        if actions.head != NONE:
            stop = _act(sim)
            if stop != _DONE:
                return stop
        run.step = _FEEDBACK
    if run.step == _FEEDBACK:
        if run.feedback > 0:
            play_driver.hear(sim)
            run.changed = 1
        if run.next_cancellation < sim.cancellations.shape[0]:
            _cancel_due(sim)
        if controls and phases.step(sim):
            run.changed = 1
        run.step = _CLEANUPS
    if run.step == _CLEANUPS:
        if actions.head != NONE:
            stop = _act(sim)
            if stop != _DONE:
                return stop
        if controls and phases.is_over(sim):
            return _OVER
        run.step = _DISPATCHES
    if run.step == _DISPATCHES:
        if timers.is_due(sim):
            _dispatch_due(sim)
        run.step = _STARTS
    for role in range(sim.config.shape[0]):
        stop = _start_passes(sim, role)
        if stop != _DONE:
            return stop
    if handoffs.is_split(sim) and sim.hosts.shape[0] > 0:
        _try_woken(sim)
    run.step = _ENDS
    run.scanned = 1
    return _DONE


@compiled
def _next_instant(sim: Sim) -> int:
    run = sim.run[0]
    time = timers.next_timer(sim)
    for worker in range(sim.workers.shape[0]):
        time = sooner(time, sim.workers[worker].pass_end)
    if sim.hosts.shape[0] > 0:
        run.transfers_due = NONE
        for worker in range(sim.workers.shape[0]):
            # A busy worker hears of its own host transfers at the end of its pass.
            if sim.workers[worker].pass_end == NONE or sim.hosts[worker].shared != 0 or _awaits_transfers(sim, worker):
                run.transfers_due = sooner(run.transfers_due, offload.next_end(sim, worker))
        time = sooner(time, run.transfers_due)
    if run.kv_transfers > 0:
        time = sooner(time, sim.kv_transfers[0].time)
    if run.in_flight > 0 and run.next_cancellation < sim.cancellations.shape[0]:
        time = sooner(time, sim.cancellations[run.next_cancellation].time)
    if sim.config[0].controls != 0:
        time = sooner(time, phases.next_time(sim))
    return int(time)


@compiled
def _cut_macro_steps(sim: Sim) -> None:
    """Let passes that have ended by now count."""
    for worker in range(sim.workers.shape[0]):
        _cut(sim, worker)


@compiled_entry
def run(sim: Sim, instants: int) -> int:
    """Run until the end, or for `instants` instants, or until something wants room; returns a `Stop`."""
    state = sim.run[0]
    for _ in range(instants):
        while True:
            stop = _turn(sim)
            if stop != _DONE:
                return stop
            changed = state.changed
            state.changed = 0
            if changed == 0:
                break
        time = _next_instant(sim)
        state.upcoming = time
        if time == NONE:
            return _DONE if state.finished == sim.node_state.shape[0] else _STALL
        if time > sim.config[0].end:
            if state.now >= sim.config[0].end:
                return _HORIZON
            time = sim.config[0].end
        state.now = time
        state.scanned = 0
        if time == sim.config[0].end:
            _cut_macro_steps(sim)
    return _SLICE


@compiled_entry
def rehash_gaps(sim: Sim, used: Any) -> None:
    """Enter `used`, the gaps of the table before it grew, into the larger, empty table of `sim`."""
    sim.run[0].gaps = 0
    for entry in range(used.shape[0]):
        passes.record_gap(sim, used[entry].value, used[entry].count)
