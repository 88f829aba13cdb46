"""The G1 block pool of a worker: physical copies, the cache of full blocks, and the least-recently-used list.

A copy is free, private to a request, or cached under a key (active while referenced, else idle and evictable). A key
may have several copies; a lookup takes the one cached first. Allocation takes free copies, then evicts idle ones from
the old end. `tests/properties/test_blocks.py` runs this pool beside a naive one.

The functions take a `Pool`, the views of one worker's arrays, and not the whole `Sim`: they run once a block, and a
large tuple costs more to pass than the work they do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState

from playproof_kernel import buckets
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled, constant
from playproof_kernel.transitions import BLOCK_TABLE, advance

_ALLOCATE = constant(BlockEvent.ALLOCATE)
_FILL = constant(BlockEvent.FILL)
_RELEASE = constant(BlockEvent.RELEASE)
_REUSE = constant(BlockEvent.REUSE)
_EVICT = constant(BlockEvent.EVICT)
_IDLE = constant(BlockState.CACHED_IDLE)

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
def find(pool: Any, key: int) -> int:
    """Return the copy that was cached first under `key`, or NONE."""
    return buckets.find(pool.copies, pool.buckets, key)


@compiled
def available(sim: Any, worker: int) -> int:
    """Return how many copies can be allocated now."""
    record = sim.workers[worker]
    return record.free + record.idle


@compiled
def _unlink(pool: Any, copy: int) -> None:
    older, newer = int(pool.copies[copy].older), int(pool.copies[copy].newer)
    pool.copies[older].newer = newer
    pool.copies[newer].older = older


@compiled
def allocate(pool: Any) -> int:
    """Return a private copy with one reference; the caller has made sure that one is available."""
    if pool.worker[0].free > 0:
        pool.worker[0].free -= 1
        copy = int(pool.free[pool.worker[0].free])
    else:
        copy = int(pool.copies[pool.copies.shape[0] - 1].newer)
        _unlink(pool, copy)
        buckets.unlink(pool.copies, pool.buckets, copy)
        advance(BLOCK_TABLE, pool.states, copy, _EVICT)
        pool.worker[0].idle -= 1
        pool.worker[0].evictions += 1
    advance(BLOCK_TABLE, pool.states, copy, _ALLOCATE)
    pool.copies[copy].refs = 1
    return copy


@compiled
def reuse(pool: Any, copy: int) -> None:
    """Add a reference to a cached copy, taking it off the idle list if it was there."""
    if pool.copies[copy].refs == 0:
        _unlink(pool, copy)
        pool.worker[0].idle -= 1
        advance(BLOCK_TABLE, pool.states, copy, _REUSE)
    pool.copies[copy].refs += 1


@compiled
def fill(pool: Any, copy: int, key: int) -> None:
    """Cache a private copy that is now full under `key`, behind earlier copies of the same key."""
    copies = pool.copies
    advance(BLOCK_TABLE, pool.states, copy, _FILL)
    copies[copy].key = key
    copies[copy].next = NONE
    bucket = buckets.bucket_of(key, pool.buckets.shape[0])
    at = int(pool.buckets[bucket])
    if at == NONE:
        pool.buckets[bucket] = copy
    else:
        while copies[at].next != NONE:
            at = int(copies[at].next)
        copies[at].next = copy


@compiled
def release(pool: Any, copy: int) -> None:
    """Drop one reference: the last one makes a cached copy idle and most recent, and frees a private one."""
    pool.copies[copy].refs -= 1
    if pool.copies[copy].refs == 0:
        advance(BLOCK_TABLE, pool.states, copy, _RELEASE)
        if pool.states[copy] == _IDLE:
            sentinel = pool.copies.shape[0] - 1
            newest = int(pool.copies[sentinel].older)
            pool.copies[newest].newer = copy
            pool.copies[copy].older = newest
            pool.copies[copy].newer = sentinel
            pool.copies[sentinel].older = copy
            pool.worker[0].idle += 1
        else:
            pool.free[pool.worker[0].free] = copy
            pool.worker[0].free += 1
