"""Queues of engine requests as linked lists: a record with head and tail, and the links of its members.

The links stand in the field `next` of an array with a record for each request (`links`), so a request is in one queue
of each array at a time. Every function writes the queue and the links of the members that it moves.
"""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground.arrays import NONE
from playproof_kernel.ground.jit import compiled


@compiled
def append(queue: Any, links: Any, request: int) -> None:
    """Put `request` at the end."""
    links[request].next = NONE
    if queue.head == NONE:
        queue.head = request
    else:
        links[queue.tail].next = request
    queue.tail = request


@compiled
def prepend(queue: Any, links: Any, request: int) -> None:
    """Put `request` at the head."""
    links[request].next = queue.head
    if queue.head == NONE:
        queue.tail = request
    queue.head = request


@compiled
def insert(queue: Any, links: Any, before: int, request: int) -> None:
    """Put `request` behind `before`, a member, or at the head for NONE."""
    if before == NONE:
        prepend(queue, links, request)
    elif before == queue.tail:
        append(queue, links, request)
    else:
        links[request].next = links[before].next
        links[before].next = request


@compiled
def take(queue: Any, links: Any) -> int:
    """Take the head, which is there, and return it."""
    request = int(queue.head)
    queue.head = links[request].next
    if queue.head == NONE:
        queue.tail = NONE
    return request


@compiled
def remove(queue: Any, links: Any, request: int) -> bool:
    """Take `request` out, wherever it stands; False when it is no member."""
    before, at = NONE, int(queue.head)
    while at != NONE and at != request:
        before, at = at, int(links[at].next)
    if at == NONE:
        return False
    if before == NONE:
        take(queue, links)
        return True
    links[before].next = links[request].next
    if queue.tail == request:
        queue.tail = before
    return True


@compiled
def move_all(source: Any, target: Any, links: Any) -> None:
    """Put all members of `source` at the end of `target`, in their order."""
    if source.head == NONE:
        return
    if target.head == NONE:
        target.head = source.head
    else:
        links[target.tail].next = source.head
    target.tail = source.tail
    source.head = NONE
    source.tail = NONE


@compiled
def length(queue: Any, links: Any) -> int:
    """Return how many members there are."""
    number, at = 0, int(queue.head)
    while at != NONE:
        number += 1
        at = int(links[at].next)
    return number
