"""Replays random corpora interpreted with every event watched; run by a test in a process of its own.

Usage: ``NUMBA_DISABLE_JIT=1 python watched_run.py SEED COUNT [FAULT]``. Prints, as JSON, the events seen by entry,
those of which no run was in sight, and the turns compared. With a fault of `FAULTS` built into the kernel, it should
not come to an end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import interpreted_run
import monitor
from playproof_kernel.driver import play_driver
from playproof_kernel.ground import lifecycle, transitions
from playproof_kernel.memory import block_pool
from playproof_kernel.runs import phases
from playproof_spec.machines import BlockEvent, BlockState, NodeEvent, NodeState, PlayState, RequestEvent

WAITING = (NodeState.BLOCKED, NodeState.READY)


def _skip_before_failing() -> None:
    """Skip the nodes of a failed play before the play hears of the failure, as the kernel once did."""

    def fail_play(sim: Any, node: int, outcome: int) -> None:
        number = int(sim.static[node].play)
        play = sim.plays[number]
        if sim.play_state[number] == PlayState.ACTIVE:
            for i in range(play.node_begin, play.node_end):
                if sim.node_state[sim.play_nodes[i]] in WAITING:
                    transitions.advance(transitions.NODE_TABLE, sim.node_state, sim.play_nodes[i], NodeEvent.SKIP)
                    sim.run[0].finished += 1
        real(sim, node, outcome)

    real = play_driver._fail_play
    play_driver._fail_play = fail_play


def _expire_before_closing() -> None:
    def expire(sim: Any) -> None:
        for lane in range(sim.config[0].lanes):
            play = sim.plays[sim.lanes[lane].seat]
            for slot in range(play.node_begin, play.node_end):
                if sim.node_state[slot] in WAITING:
                    transitions.advance(transitions.NODE_TABLE, sim.node_state, slot, NodeEvent.EXPIRE)
        real(sim)

    real = phases._expire
    phases._expire = expire


def _evict_without_need() -> None:
    """Evict an idle block whenever there is one."""
    real = block_pool.get_new_blocks

    def allocate(pool: Any, table: Any, begin: int, number: int, event: int) -> None:
        if pool.worker[0].idle > 0 and number <= pool.worker[0].free:
            copies, states = pool.frames, pool.states
            idle = next(i for i in range(len(states)) if states[i] == BlockState.CACHED_IDLE and copies[i].refs < 0)
            transitions.advance(transitions.BLOCK_TABLE, states, idle, BlockEvent.EVICT)
        real(pool, table, begin, number, event)

    block_pool.get_new_blocks = allocate


def _dispatch_early() -> None:
    """Let a node with several edges go with the first of them."""
    real = play_driver.activate

    def activate(sim: Any, play: int, lane: int) -> None:
        real(sim, play, lane)
        for node in sim.play_nodes[sim.plays[play].node_begin : sim.plays[play].node_end]:
            sim.live[node].pending = min(int(sim.live[node].pending), 1)

    play_driver.activate = activate


def _keep_memory_at_the_end() -> None:
    """Let a request that has finished hold a block."""
    real = lifecycle.finish

    def finish(sim: Any, worker: int, request: int, end: int) -> None:
        real(sim, worker, request, end)
        sim.live[request].table_len = 1

    lifecycle.finish = finish


def _settle_a_play_that_waits() -> None:
    """Let a failing play settle, and its lane go, while another node of it is in flight."""
    real = play_driver.settle_play

    def settle_play(sim: Any, number: int) -> None:
        if sim.play_state[number] == PlayState.FAILING:
            sim.plays[number].in_flight = 0
        real(sim, number)

    play_driver.settle_play = settle_play


def _fail_what_could_go_on() -> None:
    """Fail a running request where it should be preempted."""
    real = lifecycle.preempt

    def preempt(sim: Any, worker: int, request: int) -> None:
        transitions.advance(transitions.REQUEST_TABLE, sim.request_state, request, RequestEvent.FAIL)
        real(sim, worker, request)

    lifecycle.preempt = preempt


def _stop_without_the_play() -> None:
    """Let a node fail and its play not hear of it."""
    play_driver._fail_play = lambda sim, node, outcome: None


FAULTS: dict[str, Callable[[], None]] = {
    "skip-before-failing": _skip_before_failing,
    "expire-before-closing": _expire_before_closing,
    "evict-without-need": _evict_without_need,
    "dispatch-early": _dispatch_early,
    "keep-memory": _keep_memory_at_the_end,
    "settle-early": _settle_a_play_that_waits,
    "fail-instead-of-preempt": _fail_what_could_go_on,
    "stop-without-the-play": _stop_without_the_play,
}


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    watch = monitor.install()
    if len(sys.argv) > 3:
        FAULTS[sys.argv[3]]()
    for number in range(seed, seed + count):
        interpreted_run.digests(number)
    seen = {" ".join(entry): number for entry, number in sorted(watch.seen.items())}
    print(json.dumps({"seen": seen, "unseen": sum(watch.unseen.values()), "turns": watch.turns}))


if __name__ == "__main__":
    main()
