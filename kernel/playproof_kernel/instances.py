"""Play instances under the run controls: seats, identities, and what leaves the run when a play ends.

A source play runs many times. Each time it takes a *seat*: consecutive node slots, as many as the largest play has,
whose `static` records are copied from the corpus and given the instance's identity (a namespace for its prompt blocks,
a number for each request). Engines see slots as they see nodes in finite mode. At its end the seat is free for the next
instance, so that memory does not grow with the plays run; what was observed goes to logs that are drained between
slices.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import NodeEvent, NodeState, PlayEvent

from playproof_kernel.arrays import NONE
from playproof_kernel.blocks import GENERATED, SERIALS_BELOW
from playproof_kernel.jit import compiled
from playproof_kernel.timers import push_timer
from playproof_kernel.transitions import NODE_TABLE, PLAY_TABLE, REQUEST_TABLE, advance, renew

_BLOCKED, _READY, _SKIPPED = int(NodeState.BLOCKED), int(NodeState.READY), int(NodeState.SKIPPED)
_RELEASE, _CUT = int(NodeEvent.RELEASE), int(NodeEvent.CUT)
_ACTIVATE = int(PlayEvent.ACTIVATE)


@compiled
def clear_request(sim: Any, slot: int, source: int, serial: int, space: int) -> None:
    """Make `slot` a request of node `source` that has not begun, numbered `serial`, in namespace `space`."""
    sim.static[slot] = sim.source[source]
    static, live = sim.static[slot], sim.live[slot]
    static.serial = serial
    static.space = space
    renew(NODE_TABLE, sim.node_state, slot)
    renew(REQUEST_TABLE, sim.request_state, slot)
    live.ready = 0
    live.dispatched = NONE
    live.first_admit = NONE
    live.first_token = NONE
    live.second_token = NONE
    live.last_token = NONE
    live.terminal = NONE
    live.computed = 0
    live.generated = 0
    live.table_begin = 0
    live.prompt_pass = 0
    live.table_len = 0
    live.filled = 0
    live.leaf = 0
    live.worker = NONE
    live.pending = static.in_degree
    live.next = NONE
    live.admissions = 0
    live.first_reused = NONE
    live.last_reused = NONE


@compiled
def namespace(sim: Any, lane: int, ordinal: int) -> int:
    """Return what is added to the block keys of play `ordinal` of `lane`: no other instance has it (obligation M6)."""
    config = sim.config[0]
    return int((ordinal * config.lanes + lane) * config.key_span)


@compiled
def has_identity(sim: Any, lane: int, ordinal: int) -> bool:
    """Whether play `ordinal` of `lane` can have block keys below those of generated blocks, and request numbers."""
    config = sim.config[0]
    # In floats, since the product could overflow; half of what there is makes up for their rounding.
    spaces = float(ordinal * config.lanes + lane + 1) * float(config.key_span)
    return bool(spaces < float(GENERATED // 2) and sim.run[0].serial + config.seat_size < SERIALS_BELOW)


@compiled
def take_seat(sim: Any, lane: int, ordinal: int, source: int) -> int:
    """Give play `source` of the corpus a free seat as play `ordinal` of `lane`; the cut is made if it is the first.

    Writes the seat's slots and its play record; returns the seat.
    """
    run, config = sim.run[0], sim.config[0]
    run.seats -= 1
    seat = int(sim.seats[run.seats])
    begin = seat * config.seat_size
    first = sim.source_begin[source]
    count = sim.source_begin[source + 1] - first
    renew(PLAY_TABLE, sim.play_state, seat)
    play = sim.plays[seat]
    play.start = NONE
    play.first_dispatch = NONE
    play.last_terminal = NONE
    play.settled = NONE
    play.node_begin = begin
    play.node_end = begin + count
    play.lane = lane
    play.in_flight = 0
    play.completed = 0
    play.failed_node = NONE
    play.failed_outcome = NONE
    play.shift = begin
    play.source = source
    play.instance = run.instances
    play.ordinal = ordinal
    play.idle_since = NONE
    play.earliest = NONE
    play.unsettled = 0
    play.expired = 0
    run.instances += 1
    space = namespace(sim, lane, ordinal)
    for i in range(count):
        clear_request(sim, begin + i, sim.members[first + i], run.serial + i, space)
        sim.static[begin + i].play = seat
    run.serial += count
    if ordinal == 0:
        _cut(sim, seat, lane)
    return seat


@compiled
def _cut(sim: Any, seat: int, lane: int) -> None:
    """Make history of what the recording had begun before the cut: its edges have fired, its nodes are over."""
    play = sim.plays[seat]
    for i in range(play.node_end - play.node_begin):
        slot = play.node_begin + i
        kept = sim.kept[sim.kept_begin[lane] + i]
        sim.static[slot].floor = kept.remaining
        if kept.historical != 0:
            advance(NODE_TABLE, sim.node_state, slot, _CUT)
            play.completed += 1
            for number in range(sim.static[slot].edge_begin, sim.static[slot].edge_end):
                sim.live[play.shift + sim.edges[number].target].pending -= 1


@compiled
def begin(sim: Any, seat: int) -> None:
    """Start the play in `seat` at the current instant: requests that wait for nothing but time get their timers."""
    now = sim.run[0].now
    play = sim.plays[seat]
    advance(PLAY_TABLE, sim.play_state, seat, _ACTIVATE)
    play.start = now
    play.idle_since = now
    for slot in range(play.node_begin, play.node_end):
        live = sim.live[slot]
        live.ready = now + sim.static[slot].floor
        if live.pending == 0 and sim.node_state[slot] == _BLOCKED:
            advance(NODE_TABLE, sim.node_state, slot, _RELEASE)
            push_timer(sim, live.ready, slot)


@compiled
def earliest_timer(sim: Any, seat: int) -> int:
    """Return the earliest timer of a play with nothing in flight, NONE if it has none; kept until it dispatches."""
    play = sim.plays[seat]
    if play.earliest == NONE:
        for slot in range(play.node_begin, play.node_end):
            ready = sim.live[slot].ready
            if sim.node_state[slot] == _READY and (play.earliest == NONE or ready < play.earliest):
                play.earliest = ready
    return int(play.earliest)


@compiled
def note_result(sim: Any, node: int, state: int) -> None:
    """Write a request that is terminal for its client to the log of results."""
    run = sim.run[0]
    static, live = sim.static[node], sim.live[node]
    result = sim.results[run.results]
    result.serial = static.serial
    result.source = static.source
    result.instance = sim.plays[static.play].instance
    result.state = state
    result.worker = live.worker
    result.dispatched = live.dispatched
    result.first_admit = live.first_admit
    result.first_token = live.first_token
    result.second_token = live.second_token
    result.last_token = live.last_token
    result.terminal = run.now
    result.generated = live.generated
    result.admissions = live.admissions
    result.first_reused = live.first_reused
    result.last_reused = live.last_reused
    run.results += 1


@compiled
def note_end(sim: Any, seat: int) -> None:
    """Write a play that has ended, or that the run ends with, to the log of plays."""
    run = sim.run[0]
    play = sim.plays[seat]
    ended = sim.ended[run.ended]
    ended.instance = play.instance
    ended.source = play.source
    ended.lane = play.lane
    ended.ordinal = play.ordinal
    ended.state = sim.play_state[seat]
    ended.start = play.start
    ended.first_dispatch = play.first_dispatch
    ended.last_terminal = play.last_terminal
    ended.settled = play.settled
    ended.failed_source = NONE if play.failed_node == NONE else sim.static[play.failed_node].source
    ended.failed_outcome = play.failed_outcome
    ended.expired = play.expired
    ended.skipped = 0
    for slot in range(play.node_begin, play.node_end):
        if sim.node_state[slot] == _SKIPPED:
            ended.skipped += 1
    run.ended += 1


@compiled
def leave_seat(sim: Any, seat: int) -> None:
    """Note the end of a settled play and free its seat."""
    note_end(sim, seat)
    sim.seats[sim.run[0].seats] = seat
    sim.run[0].seats += 1


@compiled
def note_admissions(sim: Any) -> None:
    """Take note of the admissions logged since the last call, and name the request in them instead of its slot."""
    run = sim.run[0]
    while run.noted < run.admissions:
        admission = sim.admissions[run.noted]
        live = sim.live[admission.node]
        if live.first_reused == NONE:
            live.first_reused = admission.reused
        live.last_reused = admission.reused
        admission.node = sim.static[admission.node].serial
        run.noted += 1
