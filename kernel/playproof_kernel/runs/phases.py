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
    RequestState,
)

from playproof_kernel.driver import instances, play_driver
from playproof_kernel.ground import lifecycle
from playproof_kernel.ground.arrays import NONE, WAITING, Sim
from playproof_kernel.ground.jit import ONE, ZERO, compiled, compiled_entry, constant
from playproof_kernel.ground.timers import bring_forward, drop_dead, next_timer
from playproof_kernel.ground.transitions import LANE_TABLE, NODE_TABLE, PHASE_TABLE, PLAY_TABLE, advance
from playproof_kernel.handoff import handoffs

_PRIMER, _WARMUP, _BARRIER = constant(PhaseState.PRIMER), constant(PhaseState.WARMUP), constant(PhaseState.BARRIER)
_PROFILE, _GRACE = constant(PhaseState.PROFILE), constant(PhaseState.GRACE)
_DONE, _INVALID = constant(PhaseState.DONE), constant(PhaseState.INVALID)
_PRIMED, _WARMED, _OPEN = constant(PhaseEvent.PRIMED), constant(PhaseEvent.WARMED), constant(PhaseEvent.OPEN)
_DEADLINE, _GRACE_OVER = constant(PhaseEvent.DEADLINE), constant(PhaseEvent.GRACE_OVER)
_SETTLED, _PREPARATION_FAILED = constant(PhaseEvent.SETTLED), constant(PhaseEvent.PREPARATION_FAILED)
_BLOCKED, _READY = constant(NodeState.BLOCKED), constant(NodeState.READY)
_DISPATCHED, _NODE_CANCELED = constant(NodeState.DISPATCHED), constant(NodeState.CANCELED)
_EXPIRE = constant(NodeEvent.EXPIRE)
_ACTIVE, _FAILING, _CLOSING = constant(PlayState.ACTIVE), constant(PlayState.FAILING), constant(PlayState.CLOSING)
_PLAY_DEADLINE = constant(PlayEvent.DEADLINE)
_ADMIT = constant(LaneEvent.ADMIT)
_REQUEST_RUNNING = constant(RequestState.RUNNING)
_REJECTED, _FAILED = constant(RequestState.REJECTED), constant(RequestState.FAILED)


@compiled_entry
def start(sim: Sim, kept: Any) -> None:
    """Begin the run: every lane takes its seat, and preparation begins, or the barrier opens if there is none.

    `kept` are records of `KEPT` for the nodes of each lane's first play, lane by lane.
    """
    run, config = sim.run[0], sim.config[0]
    for seat in range(sim.plays.shape[0] - 1, config.corpus_plays - 1, -1):
        instances.push_seat(sim, seat)  # the first one on top
    for number in range(sim.prep.shape[0]):
        slot = config.prep_begin + number
        space = instances.namespace(sim, sim.prep[number].lane, ZERO)
        instances.clear_request(sim, slot, sim.prep[number].source, number, space)
        instances.ask_one_token(sim, slot)
    run.serial = sim.prep.shape[0]
    begin = 0
    for lane in range(config.lanes):
        advance(LANE_TABLE, sim.lane_state, lane, _ADMIT)
        seat = instances.take_seat(sim, lane)
        play = sim.plays[seat]
        end = begin + play.node_end - play.node_begin
        instances.cut(sim, seat, kept[begin:end])
        begin = end
        play_driver.prepare(sim, lane)
    step(sim)


@compiled
def _server_settled(sim: Sim) -> bool:
    """Whether engines hold nothing of preparation: no request, and no source, reservation or clean-up of one."""
    for worker in range(sim.hosts.shape[0]):
        # A store outlives its request.
        if sim.hosts[worker].host_transfers > 0:
            return False
    return bool(sim.run[0].in_flight == 0 and sim.run[0].unsettled == 0)


@compiled
def step(sim: Sim) -> bool:
    """Raise what is due in the current phase, and say whether anything was."""
    run, config, phase = sim.run[0], sim.config[0], sim.phase_state
    before = phase[0]
    moved = False
    if phase[0] <= _BARRIER:
        if run.prep_failed != NONE:
            if _server_settled(sim):
                advance(PHASE_TABLE, phase, ZERO, _PREPARATION_FAILED)
                run.finished_at = run.now
            return before != phase[0]
        if phase[0] == _PRIMER and run.primers_left == 0:
            advance(PHASE_TABLE, phase, ZERO, _PRIMED)
        if phase[0] == _WARMUP and run.prep_left == 0:
            advance(PHASE_TABLE, phase, ZERO, _WARMED)
        if phase[0] == _BARRIER and _server_settled(sim):
            advance(PHASE_TABLE, phase, ZERO, _OPEN)
            _open(sim)
    if phase[0] == _PROFILE and config.profile != 0:
        if run.now >= run.profile_start + config.duration:
            advance(PHASE_TABLE, phase, ZERO, _DEADLINE)
            _expire(sim)
        else:
            moved = _cap_idle(sim)
    if phase[0] == _PROFILE and run.occupied == 0:
        _finish(sim)
    if phase[0] == _GRACE:
        if run.in_flight > 0 and run.now >= run.profile_start + config.duration + config.grace:
            advance(PHASE_TABLE, phase, ZERO, _GRACE_OVER)
            _cancel_all(sim)
        if run.in_flight == 0:
            _finish(sim)
    return moved or before != phase[0]


@compiled
def _finish(sim: Sim) -> None:
    advance(PHASE_TABLE, sim.phase_state, ZERO, _SETTLED)
    sim.run[0].finished_at = sim.run[0].now


@compiled
def _open(sim: Sim) -> None:
    """Open the barrier: measurement begins now, with caches, workers and plays as they are."""
    run = sim.run[0]
    run.profile_start = run.now
    run.idle_since = run.now
    run.finished = 0
    for worker in range(sim.workers.shape[0]):
        record = sim.workers[worker]
        record.busy = 0
        record.prefill_tokens = 0
        record.assigned += record.decode_tokens
        record.decode_tokens = 0
        record.preemptions = 0
        record.evictions = 0
        record.passes_before = record.passes
    for lane in range(sim.config[0].lanes):
        instances.begin(sim, sim.lanes[lane].seat)


@compiled
def next_time(sim: Sim) -> int:
    """Return the next instant at which a deadline or an idle cap is due, or NONE."""
    run, config = sim.run[0], sim.config[0]
    phase = sim.phase_state[0]
    if config.profile == 0 or phase < _PROFILE:
        return NONE
    if phase == _GRACE:
        return int(run.profile_start + config.duration + config.grace)
    time = run.profile_start + config.duration
    for lane in range(config.lanes):
        seat = int(sim.lanes[lane].seat)
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
def _cap_idle(sim: Sim) -> bool:
    """Let no timer be later than the caps allow: idle trees first, in the order of lanes, then all together."""
    run, config = sim.run[0], sim.config[0]
    moved = False
    for lane in range(config.lanes):
        seat = int(sim.lanes[lane].seat)
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
            for lane in range(config.lanes):
                sim.plays[sim.lanes[lane].seat].earliest = NONE
            moved = True
    return moved


@compiled
def _note_shift(sim: Sim, instance: int, by: int, timers: int) -> None:
    run = sim.run[0]
    shift = sim.shifts[run.shifts]
    shift.at = run.now
    shift.instance = instance
    shift.by = by
    shift.timers = timers
    run.shifts += 1


# The end of a profile ---------------------------------------------------------------------------------------------


@compiled
def _expire(sim: Sim) -> None:
    """Issue nothing any more. A play whose requests have all been issued may still complete; the others cannot."""
    run = sim.run[0]
    for lane in range(sim.config[0].lanes):
        seat = int(sim.lanes[lane].seat)
        if sim.play_state[seat] != _ACTIVE:
            continue
        play = sim.plays[seat]
        for slot in range(play.node_begin, play.node_end):
            if sim.node_state[slot] == _BLOCKED or sim.node_state[slot] == _READY:
                if play.expired == 0:
                    # The play closes before its nodes expire: nothing expires in a play that may still complete.
                    advance(PLAY_TABLE, sim.play_state, seat, _PLAY_DEADLINE)
                advance(NODE_TABLE, sim.node_state, slot, _EXPIRE)
                play.expired += 1
        run.never_issued += play.expired
        if play.expired > 0:
            play_driver.settle_play(sim, seat)
    drop_dead(sim)


@compiled
def _cancel_all(sim: Sim) -> None:
    """Cancel every request in flight. The client is done with them at once; engines clean up as far as they can now."""
    for lane in range(sim.config[0].lanes):
        seat = int(sim.lanes[lane].seat)
        play = sim.plays[seat]
        if play.in_flight == 0 or sim.play_state[seat] not in (_ACTIVE, _FAILING, _CLOSING):
            continue
        if sim.play_state[seat] == _ACTIVE:
            advance(PLAY_TABLE, sim.play_state, seat, _PLAY_DEADLINE)
        for slot in range(play.node_begin, play.node_end):
            if sim.node_state[slot] == _DISPATCHED:
                _cancel(sim, slot)
    for worker in range(sim.workers.shape[0]):
        record = sim.workers[worker]
        if record.pass_end != NONE:
            # What the pass in progress computes of prompts will never be there.
            record.prefill_tokens = record.prefill_before


@compiled
def _cancel(sim: Sim, slot: int) -> None:
    # One that the pass in progress rejects or fails: nothing is left to clean up, but the pass outlasts the run.
    other = lifecycle.served(sim, slot)
    ending = sim.request_state[slot] in (_REJECTED, _FAILED) or sim.request_state[other] in (_REJECTED, _FAILED)
    play_driver.give_up(sim, slot)
    handoffs.cancel(sim, slot)
    sim.run[0].canceled += 1
    instances.note_result(sim, slot)
    if ending or lifecycle.engaged(sim, slot):
        instances.count_unsettled(sim, slot, ONE)


@compiled
def is_over(sim: Sim) -> bool:
    """Whether the run has ended for its client; what engines still hold then is written off.

    Asked after the queue of actions was emptied. A run without a profile waits for engines to let go of everything.
    """
    run, phase = sim.run[0], sim.phase_state
    if phase[0] == _DONE and sim.config[0].profile == 0 and run.unsettled > 0:
        return False
    if phase[0] != _DONE and phase[0] != _INVALID:
        return False
    for seat in range(sim.config[0].corpus_plays, sim.plays.shape[0]):
        _write_off(sim, seat)
    return True


@compiled
def _write_off(sim: Sim, seat: int) -> None:
    """Note the end of the play in `seat`, if it is not free: what a pass in progress holds of it has not settled."""
    play = sim.plays[seat]
    if sim.phase_state[0] == _INVALID or (play.unsettled == 0 and sim.play_state[seat] not in (_FAILING, _CLOSING)):
        return
    for slot in range(play.node_begin, play.node_end):
        if lifecycle.engaged(sim, slot):
            if sim.node_state[slot] != _NODE_CANCELED:
                instances.note_result(sim, slot)
            elif not handoffs.is_split(sim) and not _computes(sim, slot):
                instances.count_unsettled(sim, slot, -ONE)
    if play.unsettled == 0:
        play_driver.settle_play(sim, seat)
    else:
        play.settled = NONE
        instances.note_end(sim, seat)


@compiled
def _computes(sim: Sim, slot: int) -> bool:
    """Whether the pass in progress of an aggregated worker computes for a canceled request.

    A running request does not take part while it stands at the head of the queue between two chunks of its prompt,
    unless its chunk is being computed.
    """
    if sim.request_state[slot] != _REQUEST_RUNNING:
        return False
    worker = int(sim.live[slot].worker)
    return bool(sim.queues[worker, WAITING].head != slot or sim.workers[worker].prefill != 0)
