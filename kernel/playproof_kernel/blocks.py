"""The G1 block pool of a worker: physical copies, the cache of full blocks, and the least-recently-used list.

A copy is free, private to a request, or cached under a key (active while referenced, else idle and evictable). A key
may have several copies; a lookup takes the one cached first. Allocation takes free copies, then evicts idle ones from
the old end. `tests/properties/test_blocks.py` runs this pool beside a naive one.

Each function takes the whole `Sim` and a worker, and writes `copies`, `block_state`, `free`, `buckets` and the
worker's counters of that worker only.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import BlockEvent, BlockState

from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled
from playproof_kernel.transitions import BLOCK_TABLE, advance

_ALLOCATE = int(BlockEvent.ALLOCATE)
_FILL = int(BlockEvent.FILL)
_RELEASE = int(BlockEvent.RELEASE)
_REUSE = int(BlockEvent.REUSE)
_EVICT = int(BlockEvent.EVICT)
_IDLE = int(BlockState.CACHED_IDLE)

# Keys of generated blocks: this bit, the node, the block's number. Prompt keys stay below it.
GENERATED = 1 << 62
_NUMBER_BITS = 31


@compiled
def generated_key(node: int, number: int) -> int:
    """Return the key of block `number` of `node` when it holds a generated token: nobody else's, ever."""
    return GENERATED | (int(node) << _NUMBER_BITS) | int(number)


@compiled
def bucket_of(key: int, buckets: int) -> int:
    """Return the bucket of `key`.

    Sixteen neighbouring keys share a stretch of buckets, since a prompt asks for neighbours one after another; the
    stretches are scattered by a multiplication that stays within int64.
    """
    stretch = (key >> 4) ^ (key >> 35)
    mixed = ((stretch & 0x7FFFFFFF) * 0x9E3779B1) >> 7
    return ((mixed << 4) | (key & 15)) & (buckets - 1)


@compiled
def find(sim: Any, worker: int, key: int) -> int:
    """Return the copy that was cached first under `key`, or NONE."""
    copies = sim.copies[worker]
    copy = int(sim.buckets[worker, bucket_of(key, sim.buckets.shape[1])])
    while copy != NONE and copies[copy].key != key:
        copy = int(copies[copy].next)
    return copy


@compiled
def available(sim: Any, worker: int) -> int:
    """Return how many copies can be allocated now."""
    record = sim.workers[worker]
    return record.free + record.idle


@compiled
def _unlink(copies: Any, copy: int) -> None:
    older, newer = int(copies[copy].older), int(copies[copy].newer)
    copies[older].newer = newer
    copies[newer].older = older


@compiled
def _uncache(sim: Any, worker: int, copy: int) -> None:
    copies = sim.copies[worker]
    bucket = bucket_of(copies[copy].key, sim.buckets.shape[1])
    at = int(sim.buckets[worker, bucket])
    if at == copy:
        sim.buckets[worker, bucket] = copies[copy].next
    else:
        while copies[at].next != copy:
            at = int(copies[at].next)
        copies[at].next = copies[copy].next
    copies[copy].next = NONE


@compiled
def allocate(sim: Any, worker: int) -> int:
    """Return a private copy with one reference; the caller has made sure that one is available."""
    record = sim.workers[worker]
    copies = sim.copies[worker]
    if record.free == 0:
        sentinel = copies.shape[0] - 1
        victim = int(copies[sentinel].newer)
        _unlink(copies, victim)
        _uncache(sim, worker, victim)
        advance(BLOCK_TABLE, sim.block_state[worker], victim, _EVICT)
        record.idle -= 1
        record.evictions += 1
        copy = victim
    else:
        record.free -= 1
        copy = int(sim.free[worker, record.free])
    advance(BLOCK_TABLE, sim.block_state[worker], copy, _ALLOCATE)
    copies[copy].refs = 1
    return copy


@compiled
def reuse(sim: Any, worker: int, copy: int) -> None:
    """Add a reference to a cached copy, taking it off the idle list if it was there."""
    copies = sim.copies[worker]
    if copies[copy].refs == 0:
        _unlink(copies, copy)
        sim.workers[worker].idle -= 1
        advance(BLOCK_TABLE, sim.block_state[worker], copy, _REUSE)
    copies[copy].refs += 1


@compiled
def fill(sim: Any, worker: int, copy: int, key: int) -> None:
    """Cache a private copy that is now full under `key`, behind earlier copies of the same key."""
    copies = sim.copies[worker]
    advance(BLOCK_TABLE, sim.block_state[worker], copy, _FILL)
    copies[copy].key = key
    copies[copy].next = NONE
    bucket = bucket_of(key, sim.buckets.shape[1])
    at = int(sim.buckets[worker, bucket])
    if at == NONE:
        sim.buckets[worker, bucket] = copy
    else:
        while copies[at].next != NONE:
            at = int(copies[at].next)
        copies[at].next = copy


@compiled
def release(sim: Any, worker: int, copy: int) -> None:
    """Drop one reference: the last one makes a cached copy idle and most recent, and frees a private one."""
    copies = sim.copies[worker]
    copies[copy].refs -= 1
    if copies[copy].refs > 0:
        return
    advance(BLOCK_TABLE, sim.block_state[worker], copy, _RELEASE)
    record = sim.workers[worker]
    if sim.block_state[worker, copy] == _IDLE:
        sentinel = copies.shape[0] - 1
        newest = int(copies[sentinel].older)
        copies[newest].newer = copy
        copies[copy].older = newest
        copies[copy].newer = sentinel
        copies[sentinel].older = copy
        record.idle += 1
    else:
        sim.free[worker, record.free] = copy
        record.free += 1
