"""Play instances under the run controls: seats, identities, and what leaves the run when a request or a play ends.

A source play runs many times. Each time it takes a *seat*: consecutive node slots, as many as the largest play has,
whose `static` records are copied from the corpus and given the instance's identity (a namespace for its prompt blocks,
a number for each request). Engines see slots as they see nodes in finite mode. A seat is free for the next instance
when its play has ended and engines hold nothing of it any more (a lane does not wait for the latter), so that memory
does not grow with the plays run; what was observed goes to logs that are drained between slices.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import NodeEvent, NodeState, PlayEvent, PlayState, RequestState

from playproof_kernel.ground import lifecycle
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant
from playproof_kernel.ground.timers import push_timer
from playproof_kernel.ground.transitions import (
    DESTINATION_FIRST_TABLE,
    NODE_TABLE,
    PLAY_TABLE,
    REQUEST_TABLE,
    SOURCE_FIRST_TABLE,
    advance,
    renew,
)
from playproof_kernel.host import offload
from playproof_kernel.memory.block_pool import GENERATED, SERIALS_BELOW

_BLOCKED, _READY = constant(NodeState.BLOCKED), constant(NodeState.READY)
_DISPATCHED, _CANCELED = constant(NodeState.DISPATCHED), constant(NodeState.CANCELED)
_SKIPPED = constant(NodeState.SKIPPED)
_RELEASE, _CUT = constant(NodeEvent.RELEASE), constant(NodeEvent.CUT)
_ACTIVATE = constant(PlayEvent.ACTIVATE)
_COMPLETED, _FAILED, _INCOMPLETE = (
    constant(PlayState.COMPLETED),
    constant(PlayState.FAILED),
    constant(PlayState.INCOMPLETE),
)
_REQUEST_CANCELED = constant(RequestState.CANCELED)


# Slots --------------------------------------------------------------------------------------------------------------


@compiled
def _is_uncounted(sim: Sim, serial: int) -> bool:
    """Whether the gaps between the tokens of request number `serial` stay out of the log."""
    low, high = 0, sim.uncounted.shape[0]
    while low < high:
        middle = (low + high) // 2
        if sim.uncounted[middle] < serial:
            low = middle + 1
        else:
            high = middle
    return bool(low < sim.uncounted.shape[0] and sim.uncounted[low] == serial)


@compiled
def _clear_row(sim: Sim, row: int, source: int, serial: int, space: int) -> None:
    """Make an engine request of `row` that has not begun, with what is fixed of that of row `source`."""
    offload.forget(sim, row)
    sim.static[row] = sim.static[source]
    sim.live[row] = sim.blank_live[0]
    sim.tickets[row] = sim.blank_ticket[0]
    static, live = sim.static[row], sim.live[row]
    static.serial = serial
    static.space = space
    static.uncounted = _is_uncounted(sim, serial)
    renew(REQUEST_TABLE, sim.request_state, row)
    live.pending = static.in_degree


@compiled
def clear_request(sim: Sim, slot: int, source: int, serial: int, space: int) -> None:
    """Make `slot` a request of node `source` that has not begun, numbered `serial`, in namespace `space`."""
    _clear_row(sim, slot, source, serial, space)
    renew(NODE_TABLE, sim.node_state, slot)
    if sim.config.shape[0] == 1:
        return
    nodes = lifecycle.nodes_of(sim)
    _clear_row(sim, slot + nodes, source + nodes, serial, space)
    sim.handoffs[slot] = sim.blank_handoff[0]
    if sim.config[0].destination_first != 0:
        renew(DESTINATION_FIRST_TABLE, sim.handoff_state, slot)
    else:
        renew(SOURCE_FIRST_TABLE, sim.handoff_state, slot)


@compiled
def ask_one_token(sim: Sim, slot: int) -> None:
    """Let `slot` be a request of the preparation: of no play, for one token."""
    sim.static[slot].play = NONE
    row = slot
    for role in range(sim.config.shape[0]):
        config = sim.config[role]
        static = sim.static[row]
        static.limit = min(1, max(config.context - static.input, 0))
        blocks = (static.input + static.limit + config.block_size - 1) // config.block_size
        static.table_size = min(blocks, config.blocks)
        row += lifecycle.nodes_of(sim)


# Seats --------------------------------------------------------------------------------------------------------------


@compiled
def namespace(sim: Sim, lane: int, ordinal: int) -> int:
    """Return what is added to the block keys of play `ordinal` of `lane`: no other instance has it (obligation M6)."""
    config = sim.config[0]
    return int((ordinal * config.lanes + lane) * config.key_span)


@compiled
def has_identity(sim: Sim, lane: int, ordinal: int) -> bool:
    """Whether play `ordinal` of `lane` can have block keys below those of generated blocks, and request numbers."""
    run, config = sim.run[0], sim.config[0]
    # In floats, since the product could overflow; half of what there is makes up for their rounding.
    spaces = float(ordinal * config.lanes + lane + 1) * float(config.key_span)
    return bool(spaces < float(GENERATED // 2) and run.serial + config.corpus < SERIALS_BELOW)


@compiled
def push_seat(sim: Sim, seat: int) -> None:
    """Put a seat, a row of `plays`, on the stack of free ones."""
    run = sim.run[0]
    sim.plays[seat].next = run.seat
    run.seat = seat
    run.seats += 1


@compiled
def take_seat(sim: Sim, lane: int) -> int:
    """Give the play at the corpus' cursor a free seat as the next play of `lane`, and return the seat.

    Writes the seat's slots and its play record.
    """
    run, config = sim.run[0], sim.config[0]
    seat = int(run.seat)
    play = sim.plays[seat]
    run.seat, shift = play.next, play.shift
    run.seats -= 1
    source = run.instances % config.corpus_plays
    first = sim.plays[source].node_begin
    count = sim.plays[source].node_end - first
    renew(PLAY_TABLE, sim.play_state, seat)
    sim.plays[seat] = sim.blank_play[0]
    play.shift = shift
    play.node_begin = shift
    play.node_end = shift + count
    play.lane = lane
    play.source = source
    play.instance = run.instances
    play.ordinal = sim.lanes[lane].plays
    run.instances += 1
    run.occupied += 1
    space = namespace(sim, lane, play.ordinal)
    for i in range(count):
        clear_request(sim, play.shift + i, sim.play_nodes[first + i], run.serial + i, space)
        sim.static[play.shift + i].play = seat
    run.serial += count
    sim.lanes[lane].plays += 1
    sim.lanes[lane].seat = seat
    return seat


@compiled
def cut(sim: Sim, seat: int, kept: Any) -> None:
    """Make history of what the recording had begun before the cut: its edges have fired, its nodes are over.

    `kept` are the records of `KEPT` of the corpus' nodes in this seat.
    """
    play = sim.plays[seat]
    for i in range(play.node_end - play.node_begin):
        slot = play.node_begin + i
        sim.static[slot].floor = kept[i].remaining
        if kept[i].historical != 0:
            advance(NODE_TABLE, sim.node_state, slot, _CUT)
            play.completed += 1
            for number in range(sim.static[slot].edge_begin, sim.static[slot].edge_end):
                sim.live[play.shift + sim.edges[number].target].pending -= 1


@compiled
def begin(sim: Sim, seat: int) -> None:
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
def earliest_timer(sim: Sim, seat: int) -> int:
    """Return the earliest timer of a play with nothing in flight, NONE if it has none; kept until it dispatches."""
    play = sim.plays[seat]
    if play.earliest == NONE:
        for slot in range(play.node_begin, play.node_end):
            ready = sim.live[slot].ready
            if sim.node_state[slot] == _READY and (play.earliest == NONE or ready < play.earliest):
                play.earliest = ready
    return int(play.earliest)


# Ends ---------------------------------------------------------------------------------------------------------------


@compiled
def end_request(sim: Sim, node: int) -> None:
    """Take in that `node` ended for its client: its result goes to the log once engines hold nothing of it."""
    if lifecycle.engaged(sim, node):
        count_unsettled(sim, node, ONE)
    else:
        _note_settled(sim, node)


@compiled
def count_unsettled(sim: Sim, node: int, by: int) -> None:
    """Count `node` among the requests that are over for their client and held by engines, or (-1) no more."""
    sim.run[0].unsettled += by
    if sim.static[node].play != NONE:
        sim.plays[sim.static[node].play].unsettled += by


@compiled
def settle_request(sim: Sim, node: int) -> None:
    """Take in that engines let go of something of `node`; if that was all, and its client is done, it has settled."""
    if sim.node_state[node] > _DISPATCHED and not lifecycle.engaged(sim, node):
        count_unsettled(sim, node, -ONE)
        if sim.node_state[node] != _CANCELED:
            _note_settled(sim, node)
        number = sim.static[node].play
        if number != NONE and sim.plays[number].unsettled == 0:
            if sim.play_state[number] in (_COMPLETED, _FAILED, _INCOMPLETE):
                leave_seat(sim, number)


@compiled
def _note_settled(sim: Sim, node: int) -> None:
    if sim.static[node].play == NONE:
        sim.prep[node - sim.config[0].prep_begin].settled = sim.run[0].now
    else:
        note_result(sim, node)


@compiled
def note_result(sim: Sim, node: int) -> None:
    """Write a request that is over to the log of results."""
    run = sim.run[0]
    static, live, ticket = sim.static[node], sim.live[node], sim.tickets[node]
    other = sim.live[lifecycle.served(sim, node)]
    result = sim.results[run.results]
    result.serial = static.serial
    result.source = static.source
    result.instance = sim.plays[static.play].instance
    canceled = sim.node_state[node] == _CANCELED
    result.state = _REQUEST_CANCELED if canceled else lifecycle.outcome(sim, node)
    result.worker = live.worker
    result.dispatched = live.dispatched
    result.first_admit = live.first_admit
    result.first_token = other.first_token
    result.second_token = other.second_token
    result.last_token = other.last_token
    result.terminal = other.terminal
    result.generated = other.generated
    result.admissions = live.admissions
    result.first_reused = ticket.first_reused
    result.most_reused = ticket.most_reused
    result.overlap = ticket.overlap
    result.decode_overlap = NONE
    result.decode_worker = NONE
    result.held = NONE
    result.reserved = NONE
    result.activated = NONE
    result.released = NONE
    result.handoff_state = 0
    if sim.config.shape[0] > 1:
        handoff = sim.handoffs[node]
        result.admissions += other.admissions
        result.most_reused = max(result.most_reused, sim.tickets[lifecycle.served(sim, node)].most_reused)
        result.decode_overlap = sim.tickets[lifecycle.served(sim, node)].overlap
        result.decode_worker = NONE if other.worker == NONE else other.worker - sim.config[1].first_worker
        result.held = handoff.held
        result.reserved = handoff.reserved
        result.activated = handoff.activated
        result.released = handoff.released
        result.handoff_state = sim.handoff_state[node]
    run.results += 1


@compiled
def note_end(sim: Sim, seat: int) -> None:
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
    ended.failed_at = play.failed_at
    ended.failed_outcome = play.failed_outcome
    ended.expired = play.expired
    ended.skipped = 0
    for slot in range(play.node_begin, play.node_end):
        if sim.node_state[slot] == _SKIPPED:
            ended.skipped += 1
    run.ended += 1


@compiled
def leave_seat(sim: Sim, seat: int) -> None:
    """Note the end of a play that has settled, its server work included, and free its seat."""
    sim.plays[seat].settled = sim.run[0].now
    note_end(sim, seat)
    push_seat(sim, seat)


@compiled
def note_admissions(sim: Sim) -> None:
    """Take note of the admissions logged since the last call, and name the request in them instead of its slot."""
    run = sim.run[0]
    nodes = lifecycle.nodes_of(sim)
    while run.noted < run.admissions:
        admission = sim.admissions[run.noted]
        admission.decode = 1 if admission.request >= nodes else 0
        ticket = sim.tickets[admission.request]
        if ticket.first_reused == NONE:
            ticket.first_reused = admission.reused
        ticket.most_reused = max(ticket.most_reused, admission.reused)
        admission.request = sim.static[admission.request].serial
        run.noted += 1
