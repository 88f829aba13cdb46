"""A pool in host memory (G2), one worker's or shared by several: which blocks are there or on their way, who is
pinned, and who was used last.

A block is absent, pending while a store writes it, resident, or pinned while a load reads it. Resident blocks that are
not pinned are idle; they have an order of use, and the oldest are evicted for new ones. The functions take a
`HostPool`, the views of one pool's arrays, and a run of keys: from `key` in steps of `stride`, `number` of them.

**Places.** A block is known by the place of its key in the index (`pages`), and what is known of it stands in arrays by
place. So the blocks of a prompt stand side by side, and a run of keys is a walk over neighbours; there is no slot to be
taken, and no key to be compared. Pages without blocks are given back.

**Order.** Idle blocks stand in `order` from the oldest to the newest. A block that is used again, or pinned, leaves a
hole, which eviction skips. When the end of the array is reached, the holes are squeezed out; it is four times as long
as the pool, so that this costs each use a fixed share of a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import HostBlockEvent, HostBlockState

from playproof_kernel import pages, router
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled, constant, natural
from playproof_kernel.pages import PAGE, PAGE_BITS
from playproof_kernel.transitions import HOST_BLOCK_TABLE, advance

_PIN, _UNPIN, _EVICT = (
    constant(HostBlockEvent.PIN),
    constant(HostBlockEvent.UNPIN),
    constant(HostBlockEvent.EVICT),
)
ABSENT, PENDING_STORE = constant(HostBlockState.ABSENT), constant(HostBlockState.PENDING_STORE)
_RESIDENT, _PINNED = constant(HostBlockState.RESIDENT), constant(HostBlockState.PINNED)

# Length of `order`, in blocks of the pool: all may be idle, be used, and give way to what was used since, between two
# times that it is squeezed; see `offload._settle`.
ORDER_PER_BLOCK = 4


class HostPool(NamedTuple):
    """Views of one pool's part of `Sim`; every function here writes to them alone.

    Attributes
    ----------
    states : Int8; links, sources : Int32; shape (capacity * PAGE,), by place
        `links` of an idle block: its place in the order; of a pinned one: less than zero by its pins; of a pending one:
        the next block of its store, or NONE. `sources` of a pending block: the G1 copy that its store reads.
    order : Int32, shape (capacity * ORDER_PER_BLOCK,)
        Places of idle blocks; NONE for holes.
    buckets : Int32, shape (power of two,); pages : records of `INDEX_PAGE`, shape (capacity,)
    record : records of `HOST`, shape (1,)
    index, evicted : records of `INDEXED`; index_buckets : Int32
        What the KV router was told of the pool, and what the worker has yet to tell; without the router the last
        record of each alone.
    """

    states: Any
    links: Any
    sources: Any
    order: Any
    buckets: Any
    pages: Any
    record: Any
    index: Any
    index_buckets: Any
    evicted: Any


@compiled
def pool_of(sim: Any, worker: int) -> HostPool:
    """Return the host pool of `worker`."""
    row, workers = int(sim.hosts[worker].pool), sim.workers.shape[0]
    return HostPool(
        sim.host_state[row],
        sim.host_links[row],
        sim.host_sources[row],
        sim.host_order[row],
        sim.host_buckets[row],
        sim.host_pages[row],
        sim.hosts[row : row + 1],
        sim.index[workers + row],
        sim.index_buckets[workers + row],
        sim.index[2 * workers + worker],
    )


@compiled
def find(pool: Any, key: int, stride: int, number: int) -> tuple[int, bool, bool]:
    """Look up keys up to the first whose block is absent.

    Returns
    -------
    present : int
        How many were found.
    pending, pinned : bool
        Whether any of these is on its way, and whether any is being read.
    """
    pending, pinned, i = False, False, 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            break
        while at < end and i < number:
            state = pool.states[natural(at)]
            if state == ABSENT:
                return i, pending, pinned
            pending = pending or state == PENDING_STORE
            pinned = pinned or state == _PINNED
            at += stride
            i += 1
    return i, pending, pinned


# The order of use --------------------------------------------------------------------------------------------------


@compiled
def reserve(pool: Any, number: int) -> None:
    """See to it that `number` blocks can come into the order, at most twice as many as the pool has."""
    record = pool.record[0]
    if record.newest + number > pool.order.shape[0]:
        _squeeze(pool)


@compiled
def _squeeze(pool: Any) -> None:
    """Close the holes of the order; its blocks keep their sequence, and `used_at` its place among them."""
    record = pool.record[0]
    kept, before = 0, 0
    for at in range(record.oldest, record.newest):
        place = pool.order[natural(at)]
        if place != NONE:
            pool.order[natural(kept)] = place
            pool.links[natural(place)] = kept
            kept += 1
            before += 1 if at < record.used_at else 0
    record.oldest = 0
    record.newest = kept
    record.used_at = before


@compiled
def use(pool: Any, key: int, stride: int, number: int, before: int) -> tuple[int, int]:
    """Let idle blocks be the most recent, last key first; the caller has reserved room.

    Parameters
    ----------
    before : int
        Only blocks that stand before this in the order are used.

    Returns
    -------
    moved, leading : int
        How many were used, and how many keys are before the first whose block was not.
    """
    record = pool.record[0]
    links, states, order = pool.links, pool.states, pool.order
    newest = record.newest
    moved, leading, i = 0, number, number - 1
    while i >= 0:
        at, _ = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            i -= ((key + i * stride) & (PAGE - 1)) // stride + 1
            leading = max(i + 1, 0)
            continue
        begin = at & ~(PAGE - 1)
        while at >= begin and i >= 0:
            place = natural(at)
            if states[place] == _RESIDENT and links[place] < before:
                order[natural(links[place])] = NONE
                order[natural(newest)] = place
                links[place] = newest
                newest += 1
                moved += 1
            else:
                leading = i
            at -= stride
            i -= 1
    record.newest = newest
    return moved, leading


@compiled
def use_again(pool: Any, begin: int, end: int) -> None:
    """Let the blocks from `begin` to `end` of the order be the most recent, in the same sequence."""
    record = pool.record[0]
    newest = record.newest
    for at in range(begin, end):
        place = pool.order[natural(at)]
        if place != NONE:
            pool.order[natural(at)] = NONE
            pool.order[natural(newest)] = place
            pool.links[natural(place)] = newest
            newest += 1
    record.newest = newest


# Blocks come and go ------------------------------------------------------------------------------------------------


@compiled
def evict(pool: Any, number: int) -> None:
    """Evict the `number` oldest idle blocks; the caller knows that they exist."""
    record = pool.record[0]
    oldest = record.oldest
    page, closed = 0, 0
    for _ in range(number):
        place = pool.order[natural(oldest)]
        while place == NONE:
            oldest += 1
            place = pool.order[natural(oldest)]
        oldest += 1
        advance(HOST_BLOCK_TABLE, pool.states, natural(place), _EVICT)
        if pool.index.shape[0] > 1:
            router.log(pool.evicted, pages.key_at(pool.pages, place))
        if place >> PAGE_BITS != page:
            _close(pool, page, closed)
            page, closed = place >> PAGE_BITS, 0
        closed += 1
    _close(pool, page, closed)
    record.oldest = oldest
    record.used -= number
    record.idle -= number
    record.older -= number
    record.evictions += number


@compiled
def _close(pool: Any, page: int, number: int) -> None:
    """Take in that `number` blocks of a page are gone; the page goes with the last."""
    page = natural(page)
    pool.pages[page].used -= number
    if number > 0 and pool.pages[page].used == 0:
        pages.drop(pool.pages, pool.buckets, pool.record[0], page)


@compiled
def pin(pool: Any, key: int, stride: int, number: int) -> None:
    """Keep blocks, all of them there, until a load has read them."""
    links, states = pool.links, pool.states
    pinned, i = 0, 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        while at < end and i < number:
            place = natural(at)
            if states[place] == _RESIDENT:
                pool.order[natural(links[place])] = NONE
                advance(HOST_BLOCK_TABLE, states, place, _PIN)
                links[place] = 0
                pinned += 1
            links[place] -= 1
            at += stride
            i += 1
    pool.record[0].idle -= pinned


@compiled
def unpin(pool: Any, key: int, stride: int, number: int) -> None:
    """Let go of pinned blocks, last key first; each is the most recent once it has no pins."""
    reserve(pool, number)
    record = pool.record[0]
    links, states = pool.links, pool.states
    newest = record.newest
    i = number - 1
    while i >= 0:
        at, _ = pages.places(pool.pages, pool.buckets, key + i * stride)
        begin = at & ~(PAGE - 1)
        while at >= begin and i >= 0:
            place = natural(at)
            links[place] += 1
            if links[place] == 0:
                advance(HOST_BLOCK_TABLE, states, place, _UNPIN)
                pool.order[natural(newest)] = place
                links[place] = newest
                newest += 1
            at -= stride
            i -= 1
    record.idle += newest - record.newest
    record.newest = newest
