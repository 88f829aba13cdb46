"""The phases of a run under the run controls: preparation, the barrier, the profile, and its orderly end.

`step` stands in the loop between what the driver hears and what it dispatches, so that a deadline of this instant finds
the completions of this instant told and nothing of it issued. `next_time` adds the deadlines and the idle caps to what
the clock may jump to.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import (
    LaneEvent,
    NodeEvent,
    NodeState,
    PhaseEvent,
    PhaseState,
    PlayEvent,
    PlayState,
    RequestEvent,
    RequestState,
)

from playproof_kernel import driver, instances, sglang, vllm
from playproof_kernel.arrays import NONE
from playproof_kernel.deployment import Backend
from playproof_kernel.jit import compiled, compiled_entry
from playproof_kernel.timers import bring_forward, drop_dead, next_timer
from playproof_kernel.transitions import LANE_TABLE, NODE_TABLE, PHASE_TABLE, PLAY_TABLE, REQUEST_TABLE, advance

_PRIMER, _WARMUP, _BARRIER = int(PhaseState.PRIMER), int(PhaseState.WARMUP), int(PhaseState.BARRIER)
_PROFILE, _GRACE, _DRAIN = int(PhaseState.PROFILE), int(PhaseState.GRACE), int(PhaseState.DRAIN)
_DONE, _INVALID = int(PhaseState.DONE), int(PhaseState.INVALID)
_PRIMED, _WARMED, _OPEN = int(PhaseEvent.PRIMED), int(PhaseEvent.WARMED), int(PhaseEvent.OPEN)
_DEADLINE, _GRACE_OVER = int(PhaseEvent.DEADLINE), int(PhaseEvent.GRACE_OVER)
_SETTLED, _PREPARATION_FAILED = int(PhaseEvent.SETTLED), int(PhaseEvent.PREPARATION_FAILED)
_BLOCKED, _READY, _DISPATCHED = int(NodeState.BLOCKED), int(NodeState.READY), int(NodeState.DISPATCHED)
_EXPIRE, _CANCEL_NODE = int(NodeEvent.EXPIRE), int(NodeEvent.CANCEL)
_ACTIVE, _FAILING, _CLOSING = int(PlayState.ACTIVE), int(PlayState.FAILING), int(PlayState.CLOSING)
_PLAY_DEADLINE, _PLAY_SETTLED = int(PlayEvent.DEADLINE), int(PlayEvent.SETTLED)
_ADMIT = int(LaneEvent.ADMIT)
_CANCEL = int(RequestEvent.CANCEL)
_FINISHED, _CANCELED = int(RequestState.FINISHED), int(RequestState.CANCELED)
_SGLANG = int(Backend.SGLANG)


@compiled_entry
def start(sim: Any) -> None:
    """Begin the run: every lane takes its seat, and preparation begins, or the barrier opens if there is none."""
    run, config = sim.run[0], sim.config[0]
    plays = sim.source_begin.shape[0] - 1
    for number in range(sim.prep.shape[0]):
        instances.clear_request(sim, config.prep_begin + number, sim.prep[number].source, number, 0)
        static = sim.static[config.prep_begin + number]
        static.play = NONE
        static.limit = min(1, max(config.context - static.input, 0))
        static.table_size = _most_blocks(config, static)
    run.serial = sim.prep.shape[0]
    for lane in range(config.lanes):
        advance(LANE_TABLE, sim.lane_state, lane, _ADMIT)
        run.occupied += 1
        sim.lane_plays[lane] = 1
        instances.take_seat(sim, lane, 0, lane % plays)
        for number in range(sim.prep_begin[lane], sim.prep_begin[lane + 1]):
            sim.static[config.prep_begin + number].space = instances.namespace(sim, lane, 0)
        driver.prepare(sim, lane)
    step(sim)


@compiled
def _most_blocks(config: Any, static: Any) -> int:
    size = config.block_size
    return int(min((static.input + static.limit + size - 1) // size, config.blocks))


@compiled
def is_over(sim: Any) -> bool:
    """Whether the run has ended for its client, whatever engines still hold."""
    return sim.phase_state[0] == _DONE or sim.phase_state[0] == _INVALID


@compiled
def _server_settled(sim: Any) -> bool:
    """Whether engines hold nothing of preparation; on aggregated workers nothing outlives the request itself."""
    return sim.run[0].prep_in_flight == 0


@compiled
def step(sim: Any) -> bool:
    """Raise what is due in the current phase, and say whether anything was."""
    run, config, phase = sim.run[0], sim.config[0], sim.phase_state
    before = phase[0]
    moved = False
    if phase[0] <= _BARRIER:
        run.prep_in_flight = run.in_flight
        if run.prep_failed != NONE:
            if _server_settled(sim):
                advance(PHASE_TABLE, phase, 0, _PREPARATION_FAILED)
                run.finished_at = run.now
            return before != phase[0]
        if phase[0] == _PRIMER and run.primers_left == 0:
            advance(PHASE_TABLE, phase, 0, _PRIMED)
        if phase[0] == _WARMUP and run.prep_left == 0:
            advance(PHASE_TABLE, phase, 0, _WARMED)
        if phase[0] == _BARRIER and _server_settled(sim):
            advance(PHASE_TABLE, phase, 0, _OPEN)
            _open(sim)
    if phase[0] == _PROFILE and config.profile != 0:
        if run.now >= run.profile_start + config.duration:
            advance(PHASE_TABLE, phase, 0, _DEADLINE)
            _expire(sim)
        else:
            moved = _cap_idle(sim)
    if phase[0] == _PROFILE and run.occupied == 0:
        _finish(sim)
    if phase[0] == _GRACE:
        if run.in_flight > 0 and run.now >= run.profile_start + config.duration + config.grace:
            advance(PHASE_TABLE, phase, 0, _GRACE_OVER)
            _cancel_all(sim)
        if run.in_flight == 0:
            _finish(sim)
    return moved or before != phase[0]


@compiled
def _finish(sim: Any) -> None:
    advance(PHASE_TABLE, sim.phase_state, 0, _SETTLED)
    sim.run[0].finished_at = sim.run[0].now


@compiled
def _open(sim: Any) -> None:
    """Open the barrier: measurement begins now, with caches, workers and plays as they are."""
    run = sim.run[0]
    run.profile_start = run.now
    run.idle_since = run.now
    run.finished = 0
    for worker in range(sim.config[0].workers):
        record = sim.workers[worker]
        record.busy = 0
        record.prefill_tokens = 0
        record.decode_tokens = 0
        record.preemptions = 0
        record.evictions = 0
        sim.passes_before[worker] = record.passes
    for seat in range(sim.config[0].lanes):
        # Seats were taken in the order of lanes, from the last of the stack, which is the first seat.
        instances.begin(sim, seat)


@compiled
def next_time(sim: Any) -> int:
    """Return the next instant at which a deadline or an idle cap is due, or NONE."""
    run, config = sim.run[0], sim.config[0]
    phase = sim.phase_state[0]
    if config.profile == 0 or phase < _PROFILE:
        return NONE
    if phase == _GRACE:
        return int(run.profile_start + config.duration + config.grace)
    time = run.profile_start + config.duration
    for seat in range(config.lanes):
        if sim.play_state[seat] == _ACTIVE and sim.plays[seat].in_flight == 0:
            capped = sim.plays[seat].idle_since + config.tree_cap
            if capped < time and instances.earliest_timer(sim, seat) > capped:
                time = capped
    if run.in_flight == 0:
        capped = run.idle_since + config.global_cap
        if capped < time and next_timer(sim) > capped:
            time = capped
    return int(time)


# Idle caps --------------------------------------------------------------------------------------------------------


@compiled
def _cap_idle(sim: Any) -> bool:
    """Let nobody wait longer than the caps: idle trees first, in the order of seats, then all together."""
    run, config = sim.run[0], sim.config[0]
    moved = False
    for seat in range(config.lanes):
        play = sim.plays[seat]
        if sim.play_state[seat] == _ACTIVE and play.in_flight == 0 and run.now >= play.idle_since + config.tree_cap:
            by = instances.earliest_timer(sim, seat) - run.now
            if by > 0:
                _note_shift(sim, play.instance, by, bring_forward(sim, seat, by))
                play.earliest = run.now
                moved = True
    if run.in_flight == 0 and run.now >= run.idle_since + config.global_cap:
        by = next_timer(sim) - run.now
        if by > 0:
            _note_shift(sim, NONE, by, bring_forward(sim, NONE, by))
            for seat in range(config.lanes):
                sim.plays[seat].earliest = NONE
            moved = True
    return moved


@compiled
def _note_shift(sim: Any, instance: int, by: int, timers: int) -> None:
    run = sim.run[0]
    shift = sim.shifts[run.shifts]
    shift.at = run.now
    shift.instance = instance
    shift.by = by
    shift.timers = timers
    run.shifts += 1


# The end of a profile ---------------------------------------------------------------------------------------------


@compiled
def _expire(sim: Any) -> None:
    """Issue nothing any more. A play whose requests have all been issued may still complete; the others cannot."""
    run = sim.run[0]
    for seat in range(sim.config[0].lanes):
        if sim.play_state[seat] != _ACTIVE:
            continue
        play = sim.plays[seat]
        for slot in range(play.node_begin, play.node_end):
            if sim.node_state[slot] == _BLOCKED or sim.node_state[slot] == _READY:
                advance(NODE_TABLE, sim.node_state, slot, _EXPIRE)
                play.expired += 1
        run.never_issued += play.expired
        if play.expired > 0:
            advance(PLAY_TABLE, sim.play_state, seat, _PLAY_DEADLINE)
            driver.settle_play(sim, seat)
    drop_dead(sim)


@compiled
def _cancel_all(sim: Any) -> None:
    """Cancel every request in flight, and write off the plays that they belong to.

    The client is done with them at once. What a running pass holds stays unsettled: the run ends before that pass does.
    """
    config = sim.config[0]
    for worker in range(config.workers):
        _hold(sim, worker)
    for seat in range(config.lanes):
        play = sim.plays[seat]
        if play.in_flight == 0 or sim.play_state[seat] not in (_ACTIVE, _FAILING, _CLOSING):
            continue
        for slot in range(play.node_begin, play.node_end):
            if sim.node_state[slot] == _DISPATCHED:
                _cancel(sim, seat, slot)
        if sim.play_state[seat] == _ACTIVE:
            advance(PLAY_TABLE, sim.play_state, seat, _PLAY_DEADLINE)
        if play.unsettled == 0:
            driver.settle_play(sim, seat)
        else:
            instances.note_end(sim, seat)


@compiled
def _cancel(sim: Any, seat: int, slot: int) -> None:
    run, play = sim.run[0], sim.plays[seat]
    advance(NODE_TABLE, sim.node_state, slot, _CANCEL_NODE)
    if sim.request_state[slot] < _FINISHED:
        advance(REQUEST_TABLE, sim.request_state, slot, _CANCEL)
    run.canceled += 1
    run.in_flight -= 1
    run.idle_since = run.now
    play.in_flight -= 1
    play.last_terminal = run.now
    if play.failed_node == NONE:
        play.failed_node = slot
        play.failed_outcome = _CANCELED
    instances.note_result(sim, slot, _CANCELED)


@compiled
def _hold(sim: Any, worker: int) -> None:
    """End the passes of a worker that have ended by now, and count what the one in progress holds as unsettled."""
    record = sim.workers[worker]
    if record.pass_end == NONE:
        return
    if record.macro > 1:
        if sim.config[0].backend == _SGLANG:
            sglang.interrupt(sim, worker)
        else:
            vllm.interrupt(sim, worker)
    if record.pass_end == NONE:
        return
    # What the pass computes of prompts will never be there.
    record.prefill_tokens = sim.prefill_before[worker]
    for i in range(record.running):
        _hold_request(sim, sim.running[worker, i])
    node = record.outcome_head
    while node != NONE:
        _hold_request(sim, node)
        node = sim.live[node].next
    head = record.wait_head
    if head != NONE and record.prefill != 0 and sim.live[head].computed > 0:
        # SGLang: a prompt between two chunks stands at the head of the queue while its chunk is computed.
        _hold_request(sim, head)


@compiled
def _hold_request(sim: Any, node: int) -> None:
    sim.run[0].unsettled += 1
    sim.plays[sim.static[node].play].unsettled += 1
