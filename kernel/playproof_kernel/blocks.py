"""The G1 block pool of a worker: physical copies, the cache of full blocks, and the least-recently-used list.

A copy is free, private to a request, or cached under a key (active while referenced, else idle and evictable). A key
may have several copies; a lookup takes the one cached first. Allocation takes free copies, then evicts idle ones from
the old end. `tests/properties/test_blocks.py` runs this pool beside a naive one.

The functions take a `Pool`, the views of one worker's arrays, and as many blocks as one step of a request touches: a
call for each block would cost more than the work it does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState

from playproof_kernel import buckets
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled, constant
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
    copies : records, shape (blocks + 1,); states : Int8, shape (blocks,); free : Int32, shape (blocks,)
    buckets : Int32, shape (power of two,)
    worker : records, shape (1,)
        The worker's own record, for its counters of free and idle copies and of evictions.
    """

    copies: Any
    states: Any
    free: Any
    buckets: Any
    worker: Any


@compiled
def pool_of(sim: Any, worker: int) -> Pool:
    """Return the pool of `worker`."""
    return Pool(
        sim.copies[worker],
        sim.block_state[worker],
        sim.free[worker],
        sim.buckets[worker],
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
    active = 0
    for i in range(number):
        copy = buckets.find(copies, pool.buckets, key + i * stride)
        if copy == NONE:
            return i, active
        found[begin + i] = copy
        if copies[copy].refs > 0:
            active += 1
    return number, active


@compiled
def allocate(pool: Any, table: Any, begin: int, number: int, event: int) -> None:
    """Write `number` copies with one reference each to ``table[begin:]``; the caller knows that they exist.

    Copies evicted for it come first, the last one evicted before the others, then free ones: which copy holds what
    shows only where a copy to the host still reads one.

    Parameters
    ----------
    event : int
        What takes them: `ALLOCATE` for a request that will compute them, `RESERVE_LOAD` for a restore.
    """
    record = pool.worker[0]
    copies = pool.copies
    stacked = min(number, record.free)
    evicted = number - stacked
    for i in range(evicted, number):
        record.free -= 1
        copy = int(pool.free[record.free])
        advance(BLOCK_TABLE, pool.states, copy, event)
        copies[copy].refs = 1
        table[begin + i] = copy
    if evicted == 0:
        return
    # The rest are the oldest idle ones: taken off the list together, once the last of them is known.
    sentinel = copies.shape[0] - 1
    copy = int(copies[sentinel].newer)
    for i in range(evicted - 1, -1, -1):
        buckets.unlink(copies, pool.buckets, copy)
        advance(BLOCK_TABLE, pool.states, copy, _EVICT)
        advance(BLOCK_TABLE, pool.states, copy, event)
        copies[copy].refs = 1
        table[begin + i] = copy
        copy = int(copies[copy].newer)
    copies[sentinel].newer = copy
    copies[copy].older = sentinel
    record.idle -= evicted
    record.evictions += evicted


@compiled
def evict(pool: Any, number: int) -> None:
    """Free the `number` oldest idle copies; the caller knows that they exist."""
    record = pool.worker[0]
    copies = pool.copies
    sentinel = copies.shape[0] - 1
    copy = int(copies[sentinel].newer)
    for _ in range(number):
        buckets.unlink(copies, pool.buckets, copy)
        advance(BLOCK_TABLE, pool.states, copy, _EVICT)
        pool.free[record.free] = copy
        record.free += 1
        copy = int(copies[copy].newer)
    copies[sentinel].newer = copy
    copies[copy].older = sentinel
    record.idle -= number
    record.evictions += number


@compiled
def reuse(pool: Any, found: Any, table: Any, begin: int, number: int) -> None:
    """Add a reference to each of ``found[:number]``, cached copies, and write them to ``table[begin:]``."""
    copies = pool.copies
    woken = 0
    for i in range(number):
        copy = int(found[i])
        if copies[copy].refs == 0:
            older, newer = int(copies[copy].older), int(copies[copy].newer)
            copies[older].newer = newer
            copies[newer].older = older
            advance(BLOCK_TABLE, pool.states, copy, _REUSE)
            woken += 1
        copies[copy].refs += 1
        table[begin + i] = copy
    pool.worker[0].idle -= woken


@compiled
def fill(pool: Any, table: Any, begin: int, number: int, key: int, stride: int, event: int) -> None:
    """Cache the copies ``table[begin : begin + number]``, now full, under keys from `key` in steps of `stride`.

    Each goes behind earlier copies of its key. `event` is what filled them: `FILL` private ones, `LOADED` those of a
    restore.
    """
    copies = pool.copies
    for i in range(number):
        copy = int(table[begin + i])
        own = key + i * stride
        advance(BLOCK_TABLE, pool.states, copy, event)
        copies[copy].key = own
        copies[copy].next = NONE
        bucket = buckets.bucket_of(own, pool.buckets.shape[0])
        at = int(pool.buckets[bucket])
        if at == NONE:
            pool.buckets[bucket] = copy
        else:
            while copies[at].next != NONE:
                at = int(copies[at].next)
            copies[at].next = copy


@compiled
def release(pool: Any, table: Any, begin: int, number: int) -> None:
    """Drop a reference to each of ``table[begin : begin + number]``, last first.

    The last reference makes a cached copy idle and most recent, and frees a private one.
    """
    record = pool.worker[0]
    copies = pool.copies
    sentinel = copies.shape[0] - 1
    newest = int(copies[sentinel].older)
    rested = 0
    for i in range(begin + number - 1, begin - 1, -1):
        copy = int(table[i])
        copies[copy].refs -= 1
        if copies[copy].refs > 0:
            continue
        advance(BLOCK_TABLE, pool.states, copy, _RELEASE)
        if pool.states[copy] != _FREE:
            copies[newest].newer = copy
            copies[copy].older = newest
            newest = copy
            rested += 1
        else:
            pool.free[record.free] = copy
            record.free += 1
    copies[newest].newer = sentinel
    copies[sentinel].older = newest
    record.idle += rested
