"""A pool in host memory (G2), one worker's or shared by several: which blocks are there or on their way, who is
pinned, and who was used last.

A block is absent, pending while a store writes it, resident, or pinned while a load reads it. Resident blocks that are
not pinned stand in one list by their last use, and the oldest are evicted for new ones. The functions take a
`HostPool`, the views of one pool's arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import HostBlockEvent, HostBlockState

from playproof_kernel import buckets
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled, constant
from playproof_kernel.transitions import HOST_BLOCK_TABLE, advance

_PREPARE, _DONE = constant(HostBlockEvent.PREPARE_STORE), constant(HostBlockEvent.STORE_DONE)
_PIN, _UNPIN, _EVICT = (
    constant(HostBlockEvent.PIN),
    constant(HostBlockEvent.UNPIN),
    constant(HostBlockEvent.EVICT),
)
_RESIDENT = constant(HostBlockState.RESIDENT)


class HostPool(NamedTuple):
    """Views of one pool's part of `Sim`; every function here writes to them alone.

    Attributes
    ----------
    blocks : records of `HOST_BLOCK`, shape (capacity + 1,); states : Int8, shape (capacity,)
    buckets : Int32, shape (power of two,)
    record : records of `HOST`, shape (1,)
    """

    blocks: Any
    states: Any
    buckets: Any
    record: Any


@compiled
def pool_of(sim: Any, worker: int) -> HostPool:
    """Return the host pool of `worker`."""
    row = int(sim.hosts[worker].pool)
    return HostPool(sim.host_blocks[row], sim.host_state[row], sim.host_buckets[row], sim.hosts[row : row + 1])


@compiled
def find(pool: Any, key: int) -> int:
    """Return the slot of the block with `key`, pending or resident, or NONE."""
    return buckets.find(pool.blocks, pool.buckets, key)


@compiled
def find_near(pool: Any, key: int, guess: int) -> int:
    """Do the same, looking at slot `guess` first, which may be NONE or the last record."""
    entries = pool.blocks
    if guess != NONE and guess < pool.states.shape[0]:
        if entries[guess].key == key and pool.states[guess] == _RESIDENT:
            return guess
    return buckets.find(entries, pool.buckets, key)


# The order of use --------------------------------------------------------------------------------------------------


@compiled
def _insert(pool: Any, before: int, slot: int) -> None:
    entries = pool.blocks
    older = int(entries[before].older)
    entries[older].newer = slot
    entries[slot].older = older
    entries[slot].newer = before
    entries[before].older = slot


@compiled
def _append(pool: Any, slot: int) -> None:
    """Let a block that is idle from now on be the most recent."""
    record = pool.record[0]
    record.idle += 1
    record.arrivals += 1
    pool.blocks[slot].arrival = record.arrivals
    if record.anchor == NONE:
        record.anchor = slot
    _insert(pool, pool.blocks.shape[0] - 1, slot)


@compiled
def _take_out(pool: Any, slot: int) -> None:
    entries = pool.blocks
    older, newer = int(entries[slot].older), int(entries[slot].newer)
    entries[older].newer = newer
    entries[newer].older = older


@compiled
def move(pool: Any, first: int, last: int, before: int) -> None:
    """Put the blocks from `first` to `last` of the order of use before `before`.

    The last record stands for the most recent place.
    """
    entries = pool.blocks
    older, newer = int(entries[first].older), int(entries[last].newer)
    if newer == before:
        return
    entries[older].newer = newer
    entries[newer].older = older
    older = int(entries[before].older)
    entries[older].newer = first
    entries[first].older = older
    entries[last].newer = before
    entries[before].older = last


# Blocks come and go ------------------------------------------------------------------------------------------------


@compiled
def make_room(pool: Any, wanted: int, kept: int) -> bool:
    """Evict what it takes for `wanted` more blocks, oldest first, and nothing of the current cohort.

    Parameters
    ----------
    kept : int
        Idle blocks that bear the current stamp.

    Returns
    -------
    bool
        False, and nothing is evicted, when that would not do.
    """
    record = pool.record[0]
    short = wanted - (record.capacity - record.used)
    if short > record.idle - kept:
        return False
    entries = pool.blocks
    slot = int(entries[entries.shape[0] - 1].newer)
    while short > 0:
        following = int(entries[slot].newer)
        if entries[slot].stamp != record.stamp:
            _take_out(pool, slot)
            buckets.unlink(entries, pool.buckets, slot)
            advance(HOST_BLOCK_TABLE, pool.states, slot, _EVICT)
            entries[slot].next = record.spare
            record.spare = slot
            record.used -= 1
            record.idle -= 1
            record.older -= 1
            record.evictions += 1
            short -= 1
        slot = following
    return True


@compiled
def prepare(pool: Any, key: int) -> int:
    """Take a slot for a block that a store will bring; the caller has made room. Returns the slot."""
    record = pool.record[0]
    entries = pool.blocks
    if record.spare != NONE:
        slot = int(record.spare)
        record.spare = entries[slot].next
    else:
        slot = int(record.taken)
        record.taken += 1
    record.used += 1
    advance(HOST_BLOCK_TABLE, pool.states, slot, _PREPARE)
    entries[slot].key = key
    bucket = buckets.bucket_of(key, pool.buckets.shape[0])
    entries[slot].next = pool.buckets[bucket]
    pool.buckets[bucket] = slot
    return slot


@compiled
def arrive(pool: Any, slot: int) -> None:
    """A pending block is there, and the most recent."""
    advance(HOST_BLOCK_TABLE, pool.states, slot, _DONE)
    _append(pool, slot)


@compiled
def pin(pool: Any, slot: int) -> None:
    """Keep a resident block until a load has read it."""
    entries = pool.blocks
    if entries[slot].pins == 0:
        _take_out(pool, slot)
        advance(HOST_BLOCK_TABLE, pool.states, slot, _PIN)
        pool.record[0].idle -= 1
    entries[slot].pins += 1


@compiled
def unpin(pool: Any, slot: int) -> None:
    """Let go of a pinned block; without pins it is the most recent."""
    entries = pool.blocks
    entries[slot].pins -= 1
    if entries[slot].pins == 0:
        advance(HOST_BLOCK_TABLE, pool.states, slot, _UNPIN)
        _append(pool, slot)
