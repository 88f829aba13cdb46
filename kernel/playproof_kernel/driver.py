"""The driver: sole owner of nodes, plays and lanes.

It decides when a request may be dispatched (edges, delays, floors), what a failure stops, and when a lane takes its
next play. It knows nothing of engines: a request leaves through `dispatch` and comes back through `hear`.
`tests/properties/test_driver.py` runs it beside a naive model.

Under the run controls plays are instances in seats (see `instances`), and `phases` says when anything may begin; the
rest is the same.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.graph import Trigger
from playproof_spec.machines import LaneEvent, NodeEvent, NodeState, PlayEvent, PlayState, RequestEvent, RequestState

from playproof_kernel import instances
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled, compiled_entry
from playproof_kernel.timers import drop_dead, next_timer, pop_timer, push_timer
from playproof_kernel.transitions import LANE_TABLE, NODE_TABLE, PLAY_TABLE, REQUEST_TABLE, advance

__all__ = ["dispatch", "hear", "next_timer", "pop_timer", "prepare", "push_timer", "settle_play", "start"]

_BLOCKED, _READY = int(NodeState.BLOCKED), int(NodeState.READY)
_RELEASE, _DISPATCH, _COMPLETE = int(NodeEvent.RELEASE), int(NodeEvent.DISPATCH), int(NodeEvent.COMPLETE)
_REJECT, _FAIL, _SKIP = int(NodeEvent.REJECT), int(NodeEvent.FAIL), int(NodeEvent.SKIP)
_ACTIVE, _FAILING, _CLOSING = int(PlayState.ACTIVE), int(PlayState.FAILING), int(PlayState.CLOSING)
_ACTIVATE, _NODE_FAILED = int(PlayEvent.ACTIVATE), int(PlayEvent.NODE_FAILED)
_LAST_COMPLETED, _SETTLED = int(PlayEvent.LAST_COMPLETED), int(PlayEvent.SETTLED)
_ADMIT, _PLAY_SETTLED, _EXHAUSTED = int(LaneEvent.ADMIT), int(LaneEvent.PLAY_SETTLED), int(LaneEvent.EXHAUSTED)
_PLACE = int(RequestEvent.PLACE)
_FINISHED, _REJECTED = int(RequestState.FINISHED), int(RequestState.REJECTED)
_LANE_DEADLINE = int(LaneEvent.DEADLINE)
_ON_DISPATCH, _ON_COMPLETION = int(Trigger.DISPATCH), int(Trigger.COMPLETION)


@compiled
def _release(sim: Any, node: int) -> None:
    advance(NODE_TABLE, sim.node_state, node, _RELEASE)
    push_timer(sim, sim.live[node].ready, node)


@compiled
def activate(sim: Any, play: int, lane: int) -> None:
    """Start `play` at the current instant on `lane` (NONE without lanes): its roots get their timers."""
    now = sim.run[0].now
    record = sim.plays[play]
    advance(PLAY_TABLE, sim.play_state, play, _ACTIVATE)
    record.start = now
    record.lane = lane
    for i in range(record.node_begin, record.node_end):
        node = sim.play_nodes[i]
        sim.live[node].ready = now + sim.static[node].floor
        sim.live[node].pending = sim.static[node].in_degree
        if sim.static[node].in_degree == 0:
            _release(sim, node)


@compiled_entry
def start(sim: Any) -> None:
    """Begin the run: every play at the origin, or one play a lane."""
    lanes = sim.config[0].lanes
    if lanes == 0:
        for play in range(sim.plays.shape[0]):
            activate(sim, play, NONE)
        sim.run[0].next_play = sim.plays.shape[0]
    for lane in range(lanes):
        occupy(sim, lane)


@compiled
def occupy(sim: Any, lane: int) -> None:
    """Give an idle lane the next play of the one shared queue, or retire it."""
    run = sim.run[0]
    if sim.config[0].controls != 0:
        _refill(sim, lane)
    elif run.next_play < sim.plays.shape[0]:
        advance(LANE_TABLE, sim.lane_state, lane, _ADMIT)
        run.next_play += 1
        activate(sim, run.next_play - 1, lane)
    else:
        advance(LANE_TABLE, sim.lane_state, lane, _EXHAUSTED)


@compiled
def _refill(sim: Any, lane: int) -> None:
    """Give a lane that its play has left the next one of the cursor, which wraps, as long as a profile admits plays."""
    run, config = sim.run[0], sim.config[0]
    plays = sim.source_begin.shape[0] - 1
    if run.refilled_at != run.now:
        run.refilled_at = run.now
        run.refills = 0
    if config.profile != 0 and run.now >= run.profile_start + config.duration:
        advance(LANE_TABLE, sim.lane_state, lane, _LANE_DEADLINE)
    elif not instances.has_identity(sim, lane, sim.lane_plays[lane]):
        run.no_identity = 1
        advance(LANE_TABLE, sim.lane_state, lane, _EXHAUSTED)
    elif config.profile != 0 and run.refills < plays + config.lanes:
        run.refills += 1
        advance(LANE_TABLE, sim.lane_state, lane, _ADMIT)
        run.occupied += 1
        seat = instances.take_seat(sim, lane, sim.lane_plays[lane], run.instances % plays)
        sim.lane_plays[lane] += 1
        instances.begin(sim, seat)
    else:
        # No profile: a lane has one play. Else a whole round of the corpus took no time, and the next would take none.
        advance(LANE_TABLE, sim.lane_state, lane, _EXHAUSTED)


@compiled
def _fire(sim: Any, source: int, trigger: int) -> None:
    """Fire the outgoing edges of `source` that wait for `trigger`; nodes whose last edge this was get their timer."""
    now = sim.run[0].now
    shift = sim.plays[sim.static[source].play].shift
    for number in range(sim.static[source].edge_begin, sim.static[source].edge_end):
        edge = sim.edges[number]
        if edge.trigger != trigger:
            continue
        target = shift + edge.target
        live = sim.live[target]
        live.ready = max(live.ready, now + edge.delay)
        live.pending -= 1
        if live.pending == 0:
            _release(sim, target)


@compiled
def dispatch(sim: Any, node: int) -> int:
    """Dispatch a ready node at the current instant and return the worker it is placed on, round robin."""
    run = sim.run[0]
    live = sim.live[node]
    advance(NODE_TABLE, sim.node_state, node, _DISPATCH)
    live.dispatched = run.now
    run.in_flight += 1
    advance(REQUEST_TABLE, sim.request_state, node, _PLACE)
    live.worker = run.placed % sim.config[0].workers
    run.placed += 1
    if node < sim.config[0].prep_begin:
        play = sim.plays[sim.static[node].play]
        if play.first_dispatch == NONE:
            play.first_dispatch = run.now
        play.in_flight += 1
        play.earliest = NONE
        run.issued += 1
        if run.first_dispatch == NONE:
            run.first_dispatch = run.now
        _fire(sim, node, _ON_DISPATCH)
    return int(live.worker)


@compiled
def _fail_play(sim: Any, node: int) -> None:
    """After a node's failure nothing of its play is released or dispatched any more."""
    number = sim.static[node].play
    play = sim.plays[number]
    if sim.play_state[number] != _FAILING:
        play.failed_node = node
        play.failed_outcome = sim.request_state[node]
        for i in range(play.node_begin, play.node_end):
            other = sim.play_nodes[i]
            state = sim.node_state[other]
            if state in (_BLOCKED, _READY):
                advance(NODE_TABLE, sim.node_state, other, _SKIP)
                sim.run[0].finished += 1
        if sim.config[0].controls != 0:
            drop_dead(sim)
    advance(PLAY_TABLE, sim.play_state, number, _NODE_FAILED)


@compiled
def settle_play(sim: Any, number: int) -> None:
    """End a play with nothing in flight if it completed or failed; its lane takes the next one at this instant."""
    play = sim.plays[number]
    if play.in_flight > 0:
        return
    if sim.play_state[number] == _ACTIVE:
        if play.completed < play.node_end - play.node_begin:
            return
        advance(PLAY_TABLE, sim.play_state, number, _LAST_COMPLETED)
    advance(PLAY_TABLE, sim.play_state, number, _SETTLED)
    play.settled = sim.run[0].now
    lane = play.lane
    if sim.config[0].controls != 0:
        instances.leave_seat(sim, number)
        sim.run[0].occupied -= 1
    if lane != NONE:
        advance(LANE_TABLE, sim.lane_state, lane, _PLAY_SETTLED)
        occupy(sim, lane)


@compiled
def _sort_feedback(sim: Any) -> None:
    """Sort the feedback by the requests' numbers (heap sort: no memory, no worse when a whole queue is refused)."""
    values, static, count = sim.feedback, sim.static, sim.run[0].feedback
    for end in range(1, count):
        at = end
        while at > 0 and static[values[(at - 1) // 2]].serial < static[values[at]].serial:
            values[at], values[(at - 1) // 2] = values[(at - 1) // 2], values[at]
            at = (at - 1) // 2
    for end in range(count - 1, 0, -1):
        values[0], values[end] = values[end], values[0]
        at = 0
        while 2 * at + 1 < end:
            child = 2 * at + 1
            if child + 1 < end and static[values[child + 1]].serial > static[values[child]].serial:
                child += 1
            if static[values[child]].serial <= static[values[at]].serial:
                break
            values[at], values[child] = values[child], values[at]
            at = child


@compiled
def hear(sim: Any) -> None:
    """Take in what became terminal at this instant, by node index: completions fire edges, failures stop plays."""
    run, config = sim.run[0], sim.config[0]
    heard = run.feedback
    _sort_feedback(sim)
    run.feedback = 0
    for position in range(heard):
        node = sim.feedback[position]
        run.in_flight -= 1
        run.idle_since = run.now
        if node >= config.prep_begin:
            _hear_preparation(sim, node)
            continue
        number = sim.static[node].play
        play = sim.plays[number]
        play.in_flight -= 1
        play.last_terminal = run.now
        play.idle_since = run.now
        run.finished += 1
        outcome = sim.request_state[node]
        if config.controls != 0:
            instances.note_result(sim, node, outcome)
        if outcome == _FINISHED:
            advance(NODE_TABLE, sim.node_state, node, _COMPLETE)
            play.completed += 1
            if sim.play_state[number] == _ACTIVE:
                _fire(sim, node, _ON_COMPLETION)
        else:
            advance(NODE_TABLE, sim.node_state, node, _REJECT if outcome == _REJECTED else _FAIL)
            if sim.play_state[number] == _CLOSING:
                play.failed_node = node
                play.failed_outcome = outcome
            else:
                _fail_play(sim, node)
        settle_play(sim, number)


@compiled
def _hear_preparation(sim: Any, node: int) -> None:
    """Take in the end of a primer or warmup: its lane goes on at once, or the first failure stops all preparation."""
    run = sim.run[0]
    record = sim.prep[node - sim.config[0].prep_begin]
    outcome = sim.request_state[node]
    record.settled = run.now
    run.prep_left -= 1
    run.primers_left -= record.primer
    if outcome == _FINISHED:
        advance(NODE_TABLE, sim.node_state, node, _COMPLETE)
    else:
        advance(NODE_TABLE, sim.node_state, node, _REJECT if outcome == _REJECTED else _FAIL)
    if run.prep_failed == NONE and (outcome != _FINISHED or sim.live[node].generated != 1):
        run.prep_failed = node
        for other in range(sim.config[0].prep_begin, sim.config[0].prep_begin + sim.prep.shape[0]):
            if sim.node_state[other] in (_BLOCKED, _READY):
                advance(NODE_TABLE, sim.node_state, other, _SKIP)
    if run.prep_failed == NONE:
        prepare(sim, record.lane)


@compiled
def prepare(sim: Any, lane: int) -> None:
    """Let the next preparation request of `lane` be dispatched now, if there is one."""
    number = sim.prep_next[lane]
    if number < sim.prep_begin[lane + 1]:
        sim.prep_next[lane] = number + 1
        node = sim.config[0].prep_begin + number
        sim.live[node].ready = sim.run[0].now
        _release(sim, node)
