"""Heaps of (time, node), earliest first, equal times by node. The caller keeps their number and makes room."""

from __future__ import annotations

from typing import Any

from playproof_kernel.jit import compiled


@compiled
def _earlier(a: Any, b: Any) -> bool:
    return a.time < b.time or (a.time == b.time and a.node < b.node)


@compiled
def _swap(a: Any, b: Any) -> None:
    time, node = a.time, a.node
    a.time, a.node = b.time, b.node
    b.time, b.node = time, node


@compiled
def push(heap: Any, count: int, time: int, node: int) -> None:
    """Add an entry to a heap of `count`."""
    at = count
    heap[at].time = time
    heap[at].node = node
    while at > 0 and _earlier(heap[at], heap[(at - 1) // 2]):
        _swap(heap[at], heap[(at - 1) // 2])
        at = (at - 1) // 2


@compiled
def pop(heap: Any, count: int) -> int:
    """Take the earliest of `count` entries off the heap and return its node."""
    node = int(heap[0].node)
    last = count - 1
    heap[0].time = heap[last].time
    heap[0].node = heap[last].node
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            return node
        if child + 1 < last and _earlier(heap[child + 1], heap[child]):
            child += 1
        if not _earlier(heap[child], heap[at]):
            return node
        _swap(heap[child], heap[at])
        at = child
