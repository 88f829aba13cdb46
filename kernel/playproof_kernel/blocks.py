"""The G1 block pool of a worker: physical copies, the cache of full blocks, and the order of the idle ones.

A copy is free, private to a request, or cached under a key (active while referenced, else idle and evictable). A key
may have several copies; a lookup takes the one cached first. Allocation takes free copies, then evicts idle ones from
the old end. `tests/properties/test_blocks.py` runs this pool beside a naive one.

**Index.** A prompt asks for neighbouring keys one after another, so keys are looked up a page of neighbours at a time:
a hash table leads to the page, whose places are the copies of its keys. Later copies of a key are chained behind the
first. A page without copies is given back, with all its places empty, as it is taken.

**Order.** Idle copies stand in `order`, a ring, from the oldest to the newest. A copy that is used again leaves a hole,
which eviction skips: so eviction reads one stretch of memory, where a linked list would have it wait for each copy to
learn of the next. When the ring is full its holes are squeezed out; it has twice as many places as there are copies at
least, so that this costs a fixed share of a step for each copy.

**Numbers.** Free copies are taken by number, going round. There are more numbers than copies, so that a round meets
stretches of free ones, and the copies of a prompt stand side by side in memory. Copies that were handed out again as
they came free would be strewn all over it after some thousand requests, and each step would wait for memory. With host
memory it shows which copy is given to whom, since stores read copies: there numbers are places in device memory, as
many as there are blocks, and free ones stand on a stack.

The functions take a `Pool`, the views of one worker's arrays, and as many blocks as one step of a request touches: a
call for each block would cost more than the work it does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState

from playproof_kernel import pages
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import ZERO, compiled, constant, natural
from playproof_kernel.pages import PAGE_BITS
from playproof_kernel.transitions import BLOCK_TABLE, advance

ALLOCATE, RESERVE_LOAD = constant(BlockEvent.ALLOCATE), constant(BlockEvent.RESERVE_LOAD)
FILL, LOADED = constant(BlockEvent.FILL), constant(BlockEvent.LOADED)
_RELEASE = constant(BlockEvent.RELEASE)
_REUSE = constant(BlockEvent.REUSE)
_EVICT = constant(BlockEvent.EVICT)
_FREE = constant(BlockState.FREE)

# Keys of generated blocks: this bit, the request's number, the block's number. Prompt keys stay below it.
GENERATED = 1 << 62
_NUMBER_BITS = 31
SERIALS_BELOW = 1 << 31


@compiled
def generated_key(serial: int, number: int) -> int:
    """Return the key of block `number` of a request when it holds a generated token: nobody else's, ever."""
    return GENERATED | (int(serial) << _NUMBER_BITS) | int(number)


class Pool(NamedTuple):
    """Views of one worker's part of `Sim`; every function here writes to them alone.

    Attributes
    ----------
    copies : records of `COPY`, shape (numbers,); states : Int8, shape (numbers,)
        There are more numbers than blocks; those of free blocks and those in excess are alike.
    free : Int32, shape (blocks,)
        The stack of free copies of a worker with host memory.
    order : Int32, shape (power of two,)
    buckets : Int32, shape (power of two,); pages : records of `INDEX_PAGE`, shape (blocks,)
    places : Int32, shape (blocks * PAGE,)
        Of each key of each page, one more than the copy that was cached first, or 0.
    worker : records, shape (1,)
        The worker's own record: its counters of free and idle copies and of evictions, where its order of idle copies
        begins and ends, and which pages are spare.
    """

    copies: Any
    states: Any
    free: Any
    order: Any
    buckets: Any
    pages: Any
    places: Any
    worker: Any


@compiled
def pool_of(sim: Any, worker: int) -> Pool:
    """Return the pool of `worker`."""
    return Pool(
        sim.copies[worker],
        sim.block_state[worker],
        sim.free[worker],
        sim.order[worker],
        sim.buckets[worker],
        sim.index_pages[worker],
        sim.index_places[worker],
        sim.workers[worker : worker + 1],
    )


@compiled
def available(sim: Any, worker: int) -> int:
    """Return how many copies can be allocated now."""
    record = sim.workers[worker]
    return record.free + record.idle


@compiled
def find(pool: Any, found: Any, begin: int, key: int, stride: int, number: int) -> tuple[int, int]:
    """Look up `number` keys, from `key` in steps of `stride`, up to the first that is not cached.

    Of each key, the copy that was cached first is written to ``found[begin:]``.

    Returns
    -------
    hits, active : int
        How many keys were found, and how many of their copies are referenced now.
    """
    copies = pool.copies
    active, i = 0, 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            return i, active
        while at < end and i < number:
            first = pool.places[natural(at)]
            if first == 0:
                return i, active
            found[begin + i] = first - 1
            active += 1 if copies[natural(first - 1)].refs > 0 else 0
            at += stride
            i += 1
    return number, active


@compiled
def allocate(pool: Any, table: Any, begin: int, number: int, event: int) -> None:
    """Write `number` copies with one reference each to ``table[begin:]``; the caller knows that they exist.

    Parameters
    ----------
    event : int
        What takes them: `ALLOCATE` for a request that will compute them, `RESERVE_LOAD` for a restore.
    """
    record = pool.worker[0]
    entries = table[begin : begin + number]
    if record.next_copy == NONE:
        # Copies evicted for it come first, the last one evicted before the others, then those that were free.
        evicted = max(number - record.free, 0)
        _take_from_stack(pool, entries, evicted, number, event)
        evict(pool, evicted)
        _take_from_stack(pool, entries, ZERO, evicted, event)
        return
    if number > record.free:
        evict(pool, number - record.free)
    copies, states = pool.copies, pool.states
    copy, end = natural(record.next_copy), states.shape[0]
    for i in range(number):
        while states[copy] != _FREE:
            copy = natural(copy + 1) if copy + 1 < end else 0
        advance(BLOCK_TABLE, states, copy, event)
        copies[copy].refs = 1
        entries[i] = copy
    record.next_copy = copy
    record.free -= number


@compiled
def _take_from_stack(pool: Any, entries: Any, begin: int, end: int, event: int) -> None:
    """Write the copies on top of the stack of free ones to ``entries[begin:end]``."""
    record = pool.worker[0]
    for i in range(begin, end):
        record.free -= 1
        copy = natural(pool.free[natural(record.free)])
        advance(BLOCK_TABLE, pool.states, copy, event)
        pool.copies[copy].refs = 1
        entries[i] = copy


@compiled
def evict(pool: Any, number: int) -> None:
    """Free the `number` oldest idle copies; the caller knows that they exist."""
    record = pool.worker[0]
    oldest = record.oldest
    for i in range(number):
        oldest, copy = next_idle(pool, oldest)
        _unlink(pool, copy)
        advance(BLOCK_TABLE, pool.states, copy, _EVICT)
        pool.copies[copy].refs = 0
        if record.next_copy == NONE:
            pool.free[natural(record.free + i)] = copy
    record.oldest = oldest
    record.free += number
    record.idle -= number
    record.evictions += number


@compiled
def reuse(pool: Any, found: Any, table: Any, begin: int, number: int) -> None:
    """Add a reference to each of ``found[:number]``, cached copies, and write them to ``table[begin:]``."""
    copies = pool.copies
    woken = 0
    for i in range(number):
        copy = natural(found[i])
        refs = copies[copy].refs
        if refs < 0:
            pool.order[natural(-1 - refs)] = NONE
            advance(BLOCK_TABLE, pool.states, copy, _REUSE)
            woken += 1
            refs = 0
        copies[copy].refs = refs + 1
        table[begin + i] = copy
    pool.worker[0].idle -= woken


@compiled
def take(pool: Any, table: Any, begin: int, key: int, stride: int, number: int) -> int:
    """Look up keys as `find` does, and add a reference to each copy found at once, as `reuse` does.

    Returns
    -------
    int
        How many keys were found; their copies stand in ``table[begin:]``.
    """
    copies = pool.copies
    entries = table[begin : begin + number]
    woken, i = 0, 0
    missed = False
    while i < number and not missed:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        missed = at == NONE
        while at < end and i < number:
            first = pool.places[natural(at)]
            if first == 0:
                missed = True
                break
            copy = natural(first - 1)
            refs = copies[copy].refs
            if refs < 0:
                pool.order[natural(-1 - refs)] = NONE
                advance(BLOCK_TABLE, pool.states, copy, _REUSE)
                woken += 1
                refs = 0
            copies[copy].refs = refs + 1
            entries[i] = copy
            at += stride
            i += 1
    pool.worker[0].idle -= woken
    return i


@compiled
def fill(pool: Any, table: Any, begin: int, number: int, key: int, stride: int, event: int) -> None:
    """Cache the copies ``table[begin : begin + number]``, now full, under keys from `key` in steps of `stride`.

    Each goes behind earlier copies of its key. `event` is what filled them: `FILL` private ones, `LOADED` those of a
    restore.
    """
    copies = pool.copies
    entries = table[begin : begin + number]
    i = 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            at, end = pages.new_places(pool.pages, pool.buckets, pool.worker[0], key + i * stride)
        opened = 0
        while at < end and i < number:
            copy = natural(entries[i])
            advance(BLOCK_TABLE, pool.states, copy, event)
            copies[copy].place = at
            copies[copy].next = NONE
            first = pool.places[natural(at)]
            if first == 0:
                pool.places[natural(at)] = copy + 1
                opened += 1
            else:
                earlier = natural(first - 1)
                while copies[earlier].next != NONE:
                    earlier = natural(copies[earlier].next)
                copies[earlier].next = copy
            at += stride
            i += 1
        pool.pages[natural((end - 1) >> PAGE_BITS)].used += opened


@compiled
def release(pool: Any, table: Any, begin: int, number: int) -> None:
    """Drop a reference to each of ``table[begin : begin + number]``, last first.

    The last reference makes a cached copy idle and most recent, and frees a private one.
    """
    record = pool.worker[0]
    copies = pool.copies
    mask = natural(pool.order.shape[0] - 1)
    if record.newest - record.oldest + number > mask:
        _squeeze(pool)
    newest = record.newest
    entries = table[begin : begin + number]
    rested = 0
    for i in range(number - 1, -1, -1):
        copy = natural(entries[i])
        refs = copies[copy].refs - 1
        copies[copy].refs = refs
        if refs > 0:
            continue
        advance(BLOCK_TABLE, pool.states, copy, _RELEASE)
        if pool.states[copy] != _FREE:
            pool.order[newest & mask] = copy
            copies[copy].refs = -1 - (newest & mask)
            newest += 1
            rested += 1
        else:
            if record.next_copy == NONE:
                pool.free[natural(record.free)] = copy
            record.free += 1
    record.newest = newest
    record.idle += rested


# The index --------------------------------------------------------------------------------------------------------


@compiled
def key_of(pool: Any, copy: int) -> int:
    """Return the key of `copy`, which is cached."""
    return pages.key_at(pool.pages, pool.copies[copy].place)


@compiled
def _unlink(pool: Any, copy: int) -> None:
    """Take `copy`, which is cached, out of the index."""
    copies = pool.copies
    place = natural(copies[copy].place)
    earlier = natural(pool.places[place] - 1)
    if earlier != copy:
        while copies[earlier].next != copy:
            earlier = natural(copies[earlier].next)
        copies[earlier].next = copies[copy].next
        return
    pool.places[place] = copies[copy].next + 1
    if copies[copy].next == NONE:
        page = natural(place >> PAGE_BITS)
        pool.pages[page].used -= 1
        if pool.pages[page].used == 0:
            pages.drop(pool.pages, pool.buckets, pool.worker[0], page)


# The order of idle copies -----------------------------------------------------------------------------------------


@compiled
def next_idle(pool: Any, at: int) -> tuple[int, int]:
    """Return the place behind the oldest idle copy from place `at` on, where there is one, and that copy."""
    mask = natural(pool.order.shape[0] - 1)
    copy = int(pool.order[at & mask])
    while copy == NONE:
        at += 1
        copy = int(pool.order[at & mask])
    return at + 1, natural(copy)


@compiled
def _squeeze(pool: Any) -> None:
    """Close the holes of the order; its copies keep their sequence."""
    record = pool.worker[0]
    mask = natural(pool.order.shape[0] - 1)
    kept = record.oldest
    for at in range(record.oldest, record.newest):
        copy = int(pool.order[at & mask])
        if copy != NONE:
            pool.order[kept & mask] = copy
            pool.copies[natural(copy)].refs = -1 - (kept & mask)
            kept += 1
    record.newest = kept
