"""The driver: sole owner of nodes, plays and lanes.

It decides when a request may be dispatched (edges, delays, floors), what a failure stops, and when a lane takes its
next play. It knows nothing of engines: a request leaves through `dispatch` and comes back through `hear`.
`tests/properties/test_driver.py` runs it beside a naive model.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.graph import Trigger
from playproof_spec.machines import LaneEvent, NodeEvent, NodeState, PlayEvent, PlayState, RequestState

from playproof_kernel import requests, timers
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled, compiled_entry
from playproof_kernel.transitions import LANE_TABLE, NODE_TABLE, PLAY_TABLE, advance

_BLOCKED, _READY, _DISPATCHED = int(NodeState.BLOCKED), int(NodeState.READY), int(NodeState.DISPATCHED)
_RELEASE, _DISPATCH, _COMPLETE = int(NodeEvent.RELEASE), int(NodeEvent.DISPATCH), int(NodeEvent.COMPLETE)
_REJECT, _FAIL, _SKIP = int(NodeEvent.REJECT), int(NodeEvent.FAIL), int(NodeEvent.SKIP)
_CANCEL = int(NodeEvent.CANCEL)
_ACTIVE, _FAILING = int(PlayState.ACTIVE), int(PlayState.FAILING)
_ACTIVATE, _NODE_FAILED = int(PlayEvent.ACTIVATE), int(PlayEvent.NODE_FAILED)
_LAST_COMPLETED, _SETTLED = int(PlayEvent.LAST_COMPLETED), int(PlayEvent.SETTLED)
_ADMIT, _PLAY_SETTLED, _EXHAUSTED = int(LaneEvent.ADMIT), int(LaneEvent.PLAY_SETTLED), int(LaneEvent.EXHAUSTED)
_FINISHED, _REJECTED = int(RequestState.FINISHED), int(RequestState.REJECTED)
_ON_DISPATCH, _ON_COMPLETION = int(Trigger.DISPATCH), int(Trigger.COMPLETION)


@compiled
def push_timer(sim: Any, time: int, node: int) -> None:
    """Add a timer to the heap; a node has one timer in its life, so the heap never outgrows the corpus."""
    run = sim.run[0]
    timers.push(sim.heap, run.heap, time, node)
    run.heap += 1


@compiled
def pop_timer(sim: Any) -> int:
    """Take the earliest timer off the heap and return its node."""
    run = sim.run[0]
    node = timers.pop(sim.heap, run.heap)
    run.heap -= 1
    return node


@compiled
def next_timer(sim: Any) -> int:
    """Return the time of the earliest timer that still matters, or NONE; timers of skipped nodes are dropped here."""
    while sim.run[0].heap > 0:
        if sim.node_state[sim.heap[0].node] == _READY:
            return int(sim.heap[0].time)
        pop_timer(sim)
    return NONE


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
        _occupy(sim, lane)


@compiled
def _occupy(sim: Any, lane: int) -> None:
    """Give an idle lane the next play of the one shared queue, or retire it."""
    run = sim.run[0]
    if run.next_play < sim.plays.shape[0]:
        advance(LANE_TABLE, sim.lane_state, lane, _ADMIT)
        run.next_play += 1
        activate(sim, run.next_play - 1, lane)
    else:
        advance(LANE_TABLE, sim.lane_state, lane, _EXHAUSTED)


@compiled
def _fire(sim: Any, source: int, trigger: int) -> None:
    """Fire the outgoing edges of `source` that wait for `trigger`; nodes whose last edge this was get their timer."""
    now = sim.run[0].now
    for number in range(sim.static[source].edge_begin, sim.static[source].edge_end):
        edge = sim.edges[number]
        if edge.trigger != trigger:
            continue
        live = sim.live[edge.target]
        live.ready = max(live.ready, now + edge.delay)
        live.pending -= 1
        if live.pending == 0:
            _release(sim, edge.target)


@compiled
def dispatch(sim: Any, node: int) -> None:
    """Dispatch a ready node at the current instant."""
    run = sim.run[0]
    play = sim.plays[sim.static[node].play]
    advance(NODE_TABLE, sim.node_state, node, _DISPATCH)
    sim.live[node].dispatched = run.now
    if play.first_dispatch == NONE:
        play.first_dispatch = run.now
    play.in_flight += 1
    run.in_flight += 1
    _fire(sim, node, _ON_DISPATCH)


@compiled
def _fail_play(sim: Any, node: int) -> None:
    """After a node's failure nothing of its play is released or dispatched any more."""
    number = sim.static[node].play
    play = sim.plays[number]
    if sim.play_state[number] != _FAILING:
        play.failed_node = node
        for i in range(play.node_begin, play.node_end):
            other = sim.play_nodes[i]
            state = sim.node_state[other]
            if state in (_BLOCKED, _READY):
                advance(NODE_TABLE, sim.node_state, other, _SKIP)
                sim.run[0].finished += 1
    advance(PLAY_TABLE, sim.play_state, number, _NODE_FAILED)


@compiled
def _settle_play(sim: Any, number: int) -> None:
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
    if play.lane != NONE:
        advance(LANE_TABLE, sim.lane_state, play.lane, _PLAY_SETTLED)
        _occupy(sim, play.lane)


@compiled
def _sort(values: Any, count: int) -> None:
    """Sort the first `count` values in place (heap sort: no memory, and no worse when a whole queue is refused)."""
    for end in range(1, count):
        at = end
        while at > 0 and values[(at - 1) // 2] < values[at]:
            values[at], values[(at - 1) // 2] = values[(at - 1) // 2], values[at]
            at = (at - 1) // 2
    for end in range(count - 1, 0, -1):
        values[0], values[end] = values[end], values[0]
        at = 0
        while 2 * at + 1 < end:
            child = 2 * at + 1
            if child + 1 < end and values[child + 1] > values[child]:
                child += 1
            if values[child] <= values[at]:
                break
            values[at], values[child] = values[child], values[at]
            at = child


@compiled
def hear(sim: Any) -> None:
    """Take in what became terminal at this instant, by node index: completions fire edges, failures stop plays."""
    run = sim.run[0]
    heard = run.feedback
    _sort(sim.feedback, heard)
    run.feedback = 0
    for position in range(heard):
        node = sim.feedback[position]
        _take_back(sim, node)
        outcome = requests.outcome(sim, node)
        if outcome == _FINISHED:
            number = sim.static[node].play
            advance(NODE_TABLE, sim.node_state, node, _COMPLETE)
            sim.plays[number].completed += 1
            if sim.play_state[number] == _ACTIVE:
                _fire(sim, node, _ON_COMPLETION)
        else:
            advance(NODE_TABLE, sim.node_state, node, _REJECT if outcome == _REJECTED else _FAIL)
            _fail_play(sim, node)
        _settle_play(sim, sim.static[node].play)


@compiled
def _take_back(sim: Any, node: int) -> None:
    """Count a dispatched node as terminal now."""
    run = sim.run[0]
    play = sim.plays[sim.static[node].play]
    play.in_flight -= 1
    play.last_terminal = run.now
    run.in_flight -= 1
    run.finished += 1


@compiled
def cancel(sim: Any, node: int) -> bool:
    """Give up on `node` at the current instant; False, and nothing changes, unless it is in flight."""
    if sim.node_state[node] != _DISPATCHED:
        return False
    _take_back(sim, node)
    advance(NODE_TABLE, sim.node_state, node, _CANCEL)
    _fail_play(sim, node)
    _settle_play(sim, sim.static[node].play)
    return True
