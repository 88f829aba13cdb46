"""The compiled steps of online replay that offline replay does not have: what enters and leaves a run from outside.

Both sides of online replay run on the offline loop (`loop.run`), the bound of whose clock moves with the wall clock:

- a live engine (`live_engine`) is a run to whose empty corpus requests are added as they arrive (`arrive`);
- a live driver (`live_driver`) is a run whose workers have no seats. They never start a pass; what the driver places
  there is handed to the outside (`hand_over`), which says later how it ended (`take_end`).
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import NodeEvent, NodeState, PlayEvent, PlayState, RequestEvent, RequestState

from playproof_kernel.driver import instances, play_driver
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, WAITING, Sim
from playproof_kernel.ground.jit import ZERO, compiled_entry, constant
from playproof_kernel.ground.timers import drop_dead
from playproof_kernel.ground.transitions import NODE_TABLE, PLAY_TABLE, REQUEST_TABLE, advance, renew

_ADMIT, _FINISH = constant(RequestEvent.ADMIT), constant(RequestEvent.FINISH)
_REJECT, _FAIL = constant(RequestEvent.REJECT), constant(RequestEvent.FAIL)
_FINISHED, _REJECTED = constant(RequestState.FINISHED), constant(RequestState.REJECTED)
_BLOCKED, _READY, _DISPATCHED = constant(NodeState.BLOCKED), constant(NodeState.READY), constant(NodeState.DISPATCHED)
_EXPIRE = constant(NodeEvent.EXPIRE)
_ACTIVE, _DEADLINE = constant(PlayState.ACTIVE), constant(PlayEvent.DEADLINE)


@compiled_entry
def arrive(sim: Sim, slot: int, serial: int) -> None:
    """Let a request begin in `slot`, whose last one is over, as a play of its own that is due now.

    What is fixed of it (lengths, block keys) stands in ``sim.static[slot]`` already.
    """
    instances.clear_request(sim, slot, slot, serial, ZERO)
    renew(PLAY_TABLE, sim.play_state, slot)
    play = sim.plays[slot]
    play.first_dispatch = NONE
    play.last_terminal = NONE
    play.settled = NONE
    play.in_flight = 0
    play.completed = 0
    play.failed_node = NONE
    play.failed_outcome = NONE
    play_driver.activate(sim, slot, NONE)


@compiled_entry
def hand_over(sim: Sim, placed: Any) -> int:
    """Take every request off the workers' queues, and return how many those were.

    They are written to `placed` (Int64, shape (requests,)), worker by worker, and go on waiting for `take_end`.
    """
    count = 0
    for worker in range(sim.workers.shape[0]):
        waiting = sim.queues[worker, WAITING]
        while waiting.head != NONE:
            placed[count] = queues.take(waiting, sim.live)
            count += 1
    return count


@compiled_entry
def take_end(sim: Sim, node: int, outcome: int, reused: int) -> bool:
    """Take in that the request of `node` ended outside as `outcome`, a `RequestState`; the driver hears of it next.

    Its times and tokens stand in ``sim.live[node]`` already. `reused` are the prompt tokens found in cache, NONE if
    it was not said. False, and nothing changes, if the client had given up on it.
    """
    if sim.node_state[node] != _DISPATCHED:
        return False
    if outcome == _REJECTED:
        advance(REQUEST_TABLE, sim.request_state, node, _REJECT)
    else:
        advance(REQUEST_TABLE, sim.request_state, node, _ADMIT)
        advance(REQUEST_TABLE, sim.request_state, node, _FINISH if outcome == _FINISHED else _FAIL)
    if reused != NONE:
        run = sim.run[0]
        admission = sim.admissions[run.admissions]
        admission.request = node
        admission.at = NONE  # only the server knows
        admission.reused = reused
        admission.ordinal = 0
        run.admissions += 1
        sim.live[node].admissions = 1
        if sim.config[0].controls != 0:
            instances.note_admissions(sim)
    lifecycle.tell(sim, node)
    return True


@compiled_entry
def close_admission(sim: Sim) -> None:
    """Issue nothing any more in a finite run: what has not been dispatched by now never will be.

    Plays all of whose requests had been issued may still complete; plays that had not begun stay as they are.
    """
    run = sim.run[0]
    run.next_play = sim.plays.shape[0]
    for number in range(sim.plays.shape[0]):
        if sim.play_state[number] != _ACTIVE:
            continue
        play = sim.plays[number]
        for i in range(play.node_begin, play.node_end):
            node = sim.play_nodes[i]
            if sim.node_state[node] == _BLOCKED or sim.node_state[node] == _READY:
                if play.expired == 0:
                    advance(PLAY_TABLE, sim.play_state, number, _DEADLINE)
                advance(NODE_TABLE, sim.node_state, node, _EXPIRE)
                play.expired += 1
                run.finished += 1
        if play.expired > 0:
            play_driver.settle_play(sim, number)
    drop_dead(sim)


@compiled_entry
def close_plays(sim: Sim) -> None:
    """Let every play with requests under way end incomplete: what comes now is that they are given up."""
    for number in range(sim.plays.shape[0]):
        if sim.play_state[number] == _ACTIVE and sim.plays[number].in_flight > 0:
            advance(PLAY_TABLE, sim.play_state, number, _DEADLINE)
