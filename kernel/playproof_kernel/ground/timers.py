"""Heaps of (time, node, number of the request), earliest first, equal times by number; and the heap of timers.

The number (`serial`) is the node index in finite mode. The caller of `push` and `pop` keeps the number of entries and
makes room.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import NodeState

from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ZERO, compiled, constant

_READY = constant(NodeState.READY)


@compiled
def sooner(a: int, b: int) -> int:
    """Return the earlier of two instants, either of which may be NONE."""
    if a == NONE or (b != NONE and b < a):
        return b
    return a


@compiled
def _earlier(a: Any, b: Any) -> bool:
    return a.time < b.time or (a.time == b.time and a.serial < b.serial)


@compiled
def _move(a: Any, b: Any) -> None:
    """Copy entry `b` to `a`."""
    a.time = b.time
    a.node = b.node
    a.serial = b.serial


@compiled
def _swap(a: Any, b: Any) -> None:
    time, node, serial = a.time, a.node, a.serial
    _move(a, b)
    b.time, b.node, b.serial = time, node, serial


@compiled
def push(heap: Any, count: int, time: int, node: int, serial: int) -> None:
    """Add an entry to a heap of `count`."""
    at = count
    heap[at].time = time
    heap[at].node = node
    heap[at].serial = serial
    while at > 0 and _earlier(heap[at], heap[(at - 1) // 2]):
        _swap(heap[at], heap[(at - 1) // 2])
        at = (at - 1) // 2


@compiled
def _sift_down(heap: Any, count: int, at: int) -> None:
    while True:
        child = 2 * at + 1
        if child >= count:
            return
        if child + 1 < count and _earlier(heap[child + 1], heap[child]):
            child += 1
        if not _earlier(heap[child], heap[at]):
            return
        _swap(heap[child], heap[at])
        at = child


@compiled
def pop(heap: Any, count: int) -> int:
    """Take the earliest of `count` entries off the heap and return its node."""
    node = int(heap[0].node)
    _move(heap[0], heap[count - 1])
    _sift_down(heap, count - 1, ZERO)
    return node


# Timers of ready nodes ----------------------------------------------------------------------------------------------


@compiled
def push_timer(sim: Sim, time: int, node: int) -> None:
    """Add a timer; a node has one timer in its life, so the heap never outgrows the nodes."""
    run = sim.run[0]
    push(sim.heap, run.heap, time, node, sim.static[node].serial)
    run.heap += 1


@compiled
def pop_timer(sim: Sim) -> int:
    """Take the earliest timer off the heap and return its node."""
    run = sim.run[0]
    node = pop(sim.heap, run.heap)
    run.heap -= 1
    return node


@compiled
def next_timer(sim: Sim) -> int:
    """Return the time of the earliest timer that still matters, or NONE; timers of skipped nodes are dropped here."""
    while sim.run[0].heap > 0:
        if sim.node_state[sim.heap[0].node] == _READY:
            return int(sim.heap[0].time)
        pop_timer(sim)
    return NONE


@compiled
def is_due(sim: Sim) -> bool:
    """Whether a timer that still matters is due; others that are due are dropped here."""
    run = sim.run[0]
    while run.heap > 0 and sim.heap[0].time <= run.now:
        if sim.node_state[sim.heap[0].node] == _READY:
            return True
        pop_timer(sim)
    return False


@compiled
def _order(sim: Sim) -> None:
    count = sim.run[0].heap
    for at in range(count // 2 - 1, -1, -1):
        _sift_down(sim.heap, count, at)


@compiled
def drop_dead(sim: Sim) -> None:
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
def bring_forward(sim: Sim, play: int, by: int) -> int:
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
