"""Running timers: one binary heap by (ready time, number of the request)."""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import NodeState

from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled

_READY = int(NodeState.READY)


@compiled
def _earlier(a: Any, b: Any) -> bool:
    """The order of timers: ready time, then the request's number, which is the node index in finite mode."""
    return a.time < b.time or (a.time == b.time and a.serial < b.serial)


@compiled
def _move(a: Any, b: Any) -> None:
    """Copy timer `b` to `a`."""
    a.time = b.time
    a.node = b.node
    a.serial = b.serial


@compiled
def _swap(a: Any, b: Any) -> None:
    time, node, serial = a.time, a.node, a.serial
    _move(a, b)
    b.time, b.node, b.serial = time, node, serial


@compiled
def push_timer(sim: Any, time: int, node: int) -> None:
    """Add a timer to the heap; a node has one timer in its life, so the heap never outgrows the nodes."""
    run = sim.run[0]
    at = run.heap
    sim.heap[at].time = time
    sim.heap[at].node = node
    sim.heap[at].serial = sim.static[node].serial
    run.heap += 1
    while at > 0 and _earlier(sim.heap[at], sim.heap[(at - 1) // 2]):
        _swap(sim.heap[at], sim.heap[(at - 1) // 2])
        at = (at - 1) // 2


@compiled
def _sift_down(sim: Any, at: int) -> None:
    run = sim.run[0]
    while True:
        child = 2 * at + 1
        if child >= run.heap:
            return
        if child + 1 < run.heap and _earlier(sim.heap[child + 1], sim.heap[child]):
            child += 1
        if not _earlier(sim.heap[child], sim.heap[at]):
            return
        _swap(sim.heap[child], sim.heap[at])
        at = child


@compiled
def pop_timer(sim: Any) -> int:
    """Take the earliest timer off the heap and return its node."""
    run = sim.run[0]
    node = sim.heap[0].node
    run.heap -= 1
    _move(sim.heap[0], sim.heap[run.heap])
    _sift_down(sim, run.heap - run.heap)  # 0, but not a literal: that would compile the callee once more
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
def drop_dead(sim: Any) -> None:
    """Drop the timers of all nodes that are not ready any more, before another request takes the slot of one."""
    run = sim.run[0]
    kept = 0
    for at in range(run.heap):
        if sim.node_state[sim.heap[at].node] == _READY:
            _move(sim.heap[kept], sim.heap[at])
            kept += 1
    run.heap = kept
    _order(sim)


@compiled
def bring_forward(sim: Any, play: int, by: int) -> int:
    """Move the timers of `play` (NONE: of all plays) `by` ns earlier, and return how many those are."""
    run = sim.run[0]
    moved = 0
    for at in range(run.heap):
        timer = sim.heap[at]
        if sim.node_state[timer.node] == _READY and (play == NONE or sim.static[timer.node].play == play):
            timer.time -= by
            sim.live[timer.node].ready = timer.time
            moved += 1
    _order(sim)
    return moved


@compiled
def _order(sim: Any) -> None:
    for at in range(sim.run[0].heap // 2 - 1, -1, -1):
        _sift_down(sim, at)
