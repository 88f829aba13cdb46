"""The driver: sole owner of nodes, plays and lanes.

It decides when a request may be dispatched (edges, delays, floors), what a failure stops, and when a lane takes its
next play. It knows nothing of engines: a request leaves through `dispatch` and comes back through `hear`.
`tests/properties/test_driver.py` runs it beside a naive model.

Under the run controls plays are instances in seats (see `instances`), and `phases` says when anything may begin; the
rest is the same.
"""

from __future__ import annotations

from playproof_spec.graph import Trigger
from playproof_spec.machines import LaneEvent, NodeEvent, NodeState, PlayEvent, PlayState, RequestState

from playproof_kernel.driver import instances
from playproof_kernel.ground import lifecycle
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import compiled, compiled_entry, constant
from playproof_kernel.ground.timers import drop_dead, push_timer
from playproof_kernel.ground.transitions import LANE_TABLE, NODE_TABLE, PLAY_TABLE, advance

_BLOCKED, _READY, _DISPATCHED = constant(NodeState.BLOCKED), constant(NodeState.READY), constant(NodeState.DISPATCHED)
_RELEASE, _DISPATCH, _COMPLETE = constant(NodeEvent.RELEASE), constant(NodeEvent.DISPATCH), constant(NodeEvent.COMPLETE)
_REJECT, _FAIL, _SKIP = constant(NodeEvent.REJECT), constant(NodeEvent.FAIL), constant(NodeEvent.SKIP)
_CANCEL = constant(NodeEvent.CANCEL)
_ACTIVE, _FAILING, _CLOSING = constant(PlayState.ACTIVE), constant(PlayState.FAILING), constant(PlayState.CLOSING)
_ACTIVATE, _NODE_FAILED = constant(PlayEvent.ACTIVATE), constant(PlayEvent.NODE_FAILED)
_LAST_COMPLETED, _SETTLED = constant(PlayEvent.LAST_COMPLETED), constant(PlayEvent.SETTLED)
_ADMIT, _PLAY_SETTLED, _EXHAUSTED = (
    constant(LaneEvent.ADMIT),
    constant(LaneEvent.PLAY_SETTLED),
    constant(LaneEvent.EXHAUSTED),
)
_LANE_DEADLINE = constant(LaneEvent.DEADLINE)
_FINISHED, _REJECTED = constant(RequestState.FINISHED), constant(RequestState.REJECTED)
_CANCELED = constant(RequestState.CANCELED)
_ON_DISPATCH, _ON_COMPLETION = constant(Trigger.DISPATCH), constant(Trigger.COMPLETION)


@compiled
def _release(sim: Sim, node: int) -> None:
    advance(NODE_TABLE, sim.node_state, node, _RELEASE)
    push_timer(sim, sim.live[node].ready, node)


@compiled
def activate(sim: Sim, play: int, lane: int) -> None:
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
def start(sim: Sim) -> None:
    """Begin the run: every play at the origin, or one play a lane."""
    lanes = sim.config[0].lanes
    if lanes == 0:
        for play in range(sim.plays.shape[0]):
            activate(sim, play, NONE)
        sim.run[0].next_play = sim.plays.shape[0]
    for lane in range(lanes):
        occupy(sim, lane)


@compiled
def occupy(sim: Sim, lane: int) -> None:
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
def _refill(sim: Sim, lane: int) -> None:
    """Give a lane that its play has left the next one of the cursor, which wraps, as long as a profile admits plays."""
    run, config = sim.run[0], sim.config[0]
    if run.refilled_at != run.now:
        run.refilled_at = run.now
        run.refills = 0
    if config.profile != 0 and run.now >= run.profile_start + config.duration:
        advance(LANE_TABLE, sim.lane_state, lane, _LANE_DEADLINE)
    elif not instances.has_identity(sim, lane, sim.lanes[lane].plays):
        run.no_identity = 1
        advance(LANE_TABLE, sim.lane_state, lane, _EXHAUSTED)
    elif config.profile != 0 and run.refills < config.corpus_plays + config.lanes:
        run.refills += 1
        advance(LANE_TABLE, sim.lane_state, lane, _ADMIT)
        instances.begin(sim, instances.take_seat(sim, lane))
    else:
        # No profile: a lane has one play. Else a whole round of the corpus took no time, and the next would take none.
        advance(LANE_TABLE, sim.lane_state, lane, _EXHAUSTED)


@compiled
def _fire(sim: Sim, source: int, trigger: int) -> None:
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
def dispatch(sim: Sim, node: int) -> None:
    """Dispatch a ready node at the current instant."""
    run = sim.run[0]
    advance(NODE_TABLE, sim.node_state, node, _DISPATCH)
    sim.live[node].dispatched = run.now
    run.in_flight += 1
    if sim.static[node].play == NONE:
        return  # of the preparation
    play = sim.plays[sim.static[node].play]
    if play.first_dispatch == NONE:
        play.first_dispatch = run.now
    play.in_flight += 1
    play.earliest = NONE
    run.issued += 1
    if run.first_dispatch == NONE:
        run.first_dispatch = run.now
    _fire(sim, node, _ON_DISPATCH)


@compiled
def _fail_play(sim: Sim, node: int, outcome: int) -> None:
    """After a node's failure nothing of its play is released or dispatched any more; a closing play is past that."""
    number = sim.static[node].play
    play = sim.plays[number]
    if play.failed_node == NONE:
        play.failed_node = node
        play.failed_at = sim.run[0].now
        play.failed_outcome = outcome
    if sim.play_state[number] == _CLOSING:
        return
    first = sim.play_state[number] != _FAILING
    # One step with the node's event (obligation M4): nothing is skipped in a play that has not failed.
    advance(PLAY_TABLE, sim.play_state, number, _NODE_FAILED)
    if first:
        for i in range(play.node_begin, play.node_end):
            other = sim.play_nodes[i]
            state = sim.node_state[other]
            if state in (_BLOCKED, _READY):
                advance(NODE_TABLE, sim.node_state, other, _SKIP)
                sim.run[0].finished += 1
        if sim.config[0].controls != 0:
            drop_dead(sim)


@compiled
def settle_play(sim: Sim, number: int) -> None:
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
        sim.run[0].occupied -= 1
        if play.unsettled == 0:
            instances.leave_seat(sim, number)
    if lane != NONE:
        advance(LANE_TABLE, sim.lane_state, lane, _PLAY_SETTLED)
        occupy(sim, lane)


@compiled
def _sort_feedback(sim: Sim) -> None:
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
def hear(sim: Sim) -> None:
    """Take in what became terminal at this instant, by node index: completions fire edges, failures stop plays."""
    run = sim.run[0]
    heard = run.feedback
    _sort_feedback(sim)
    run.feedback = 0
    for position in range(heard):
        node = sim.feedback[position]
        _take_back(sim, node)
        outcome = lifecycle.outcome(sim, node)
        number = sim.static[node].play
        if number == NONE:
            _hear_preparation(sim, node, outcome)
            continue
        if outcome == _FINISHED:
            advance(NODE_TABLE, sim.node_state, node, _COMPLETE)
            sim.plays[number].completed += 1
            if sim.play_state[number] == _ACTIVE:
                _fire(sim, node, _ON_COMPLETION)
        else:
            advance(NODE_TABLE, sim.node_state, node, _REJECT if outcome == _REJECTED else _FAIL)
            _fail_play(sim, node, outcome)
        if sim.config[0].controls != 0:
            instances.end_request(sim, node)
        settle_play(sim, number)


@compiled
def _take_back(sim: Sim, node: int) -> None:
    """Count a dispatched node as terminal now."""
    run = sim.run[0]
    run.in_flight -= 1
    run.idle_since = run.now
    if sim.static[node].play == NONE:
        return
    play = sim.plays[sim.static[node].play]
    play.in_flight -= 1
    play.last_terminal = run.now
    play.idle_since = run.now
    run.finished += 1


@compiled
def give_up(sim: Sim, node: int) -> bool:
    """Give up on `node` at the current instant; False, and nothing changes, unless it is in flight.

    What that means for its play's end is for the caller to see to.
    """
    if sim.node_state[node] != _DISPATCHED:
        return False
    _take_back(sim, node)
    advance(NODE_TABLE, sim.node_state, node, _CANCEL)
    _fail_play(sim, node, _CANCELED)
    return True


@compiled
def cancel(sim: Sim, node: int) -> bool:
    """Give up on `node` at the current instant, as `give_up` does; its play ends if nothing else is in flight."""
    if not give_up(sim, node):
        return False
    settle_play(sim, sim.static[node].play)
    return True


# Preparation --------------------------------------------------------------------------------------------------------


@compiled
def _hear_preparation(sim: Sim, node: int, outcome: int) -> None:
    """Take in the end of a primer or warmup: its lane goes on at once, or the first failure stops all preparation."""
    run = sim.run[0]
    record = sim.prep[node - sim.config[0].prep_begin]
    run.prep_left -= 1
    run.primers_left -= record.primer
    if outcome == _FINISHED:
        advance(NODE_TABLE, sim.node_state, node, _COMPLETE)
    else:
        advance(NODE_TABLE, sim.node_state, node, _REJECT if outcome == _REJECTED else _FAIL)
    instances.end_request(sim, node)
    if run.prep_failed == NONE and (outcome != _FINISHED or sim.live[lifecycle.served(sim, node)].generated != 1):
        run.prep_failed = node
        for other in range(sim.config[0].prep_begin, sim.config[0].prep_begin + sim.prep.shape[0]):
            if sim.node_state[other] in (_BLOCKED, _READY):
                advance(NODE_TABLE, sim.node_state, other, _SKIP)
    if run.prep_failed == NONE:
        prepare(sim, record.lane)


@compiled
def prepare(sim: Sim, lane: int) -> None:
    """Let the next preparation request of `lane` be dispatched now, if there is one."""
    record = sim.lanes[lane]
    if record.prep_next < record.prep_end:
        node = sim.config[0].prep_begin + record.prep_next
        record.prep_next += 1
        sim.live[node].ready = sim.run[0].now
        _release(sim, node)
