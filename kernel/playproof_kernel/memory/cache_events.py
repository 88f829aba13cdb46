"""Cache events: what prompt blocks a device or host pool stored and removed, and what of it has been told.

A worker's events (a prompt block was cached, a cached one was evicted) go out together when one of its passes ends, or,
while it idles, a transfer to it or to or from its host memory; what its pass under way has done so far is not told yet.
So each device has an *index* beside it: for every key that it has or had, the frames there are and the frames that were
published. An event changes the first and marks the entry; publishing makes the second equal and drops entries that are
gone. A host pool, which workers may share, has an index as well: what arrives there is published at once, for that is
the end of a transfer; what a worker evicts from it while it schedules a pass, when that pass ends. Generated blocks
match no other request, and have no entry.

Caches write here and know nothing of who listens; a routing policy reads what is published. Without one that does,
nothing here runs.
"""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground import buckets
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ONE, compiled
from playproof_kernel.memory import block_pool, prompt_keys
from playproof_kernel.memory.block_pool import GENERATED


@compiled
def are_told(sim: Sim) -> bool:
    """Whether anybody listens: a routing policy that places requests by what workers have."""
    return bool(sim.config[0].hears != 0)


@compiled
def _entry_of(entries: Any, table: Any, key: int) -> int:
    """Return the entry of `key`, a new one if there is none.

    The last record counts the entries ever taken (`key`), and heads the lists of spare (`next`) and of marked ones.
    """
    entry = buckets.find(entries, table, key)
    if entry != NONE:
        return entry
    head = entries[entries.shape[0] - 1]
    if head.next != NONE:
        entry = int(head.next)
        head.next = entries[entry].next
    else:
        entry = int(head.key)
        head.key += 1
    bucket = buckets.bucket_of(key, table.shape[0])
    entries[entry].key = key
    entries[entry].frames = 0
    entries[entry].published = 0
    entries[entry].is_marked = 0
    entries[entry].next = table[bucket]
    table[bucket] = entry
    return entry


@compiled
def note(entries: Any, table: Any, key: int, change: int) -> None:
    """Take in that a device has one frame more (1) or less (-1) of the prompt block `key`; writes its index."""
    entry = _entry_of(entries, table, key)
    entries[entry].frames += change
    if entries[entry].is_marked == 0:
        head = entries[entries.shape[0] - 1]
        entries[entry].is_marked = 1
        entries[entry].marked = head.marked
        head.marked = entry


@compiled
def note_cached(sim: Sim, worker: int, key: int, stride: int, number: int) -> None:
    """Take in that `number` prompt blocks were cached, with keys from `key` in steps of `stride`."""
    for i in range(number):
        note(sim.index[worker], sim.index_buckets[worker], key + i * stride, ONE)


@compiled
def note_taking(sim: Sim, worker: int, number: int) -> None:
    """Take in that `number` blocks of the pool of `worker` will be taken now, and idle ones evicted for it."""
    if not are_told(sim):
        return
    pool = block_pool.pool_of(sim, worker)
    at, passed, frame = int(sim.workers[worker].oldest), 0, 0
    for _ in range(number - sim.workers[worker].free):
        at, passed, frame = block_pool.next_idle(pool, at, passed, frame)
        key = block_pool.key_of(pool, frame)
        if key < GENERATED:
            note(sim.index[worker], sim.index_buckets[worker], key, -ONE)


@compiled
def _drop(entries: Any, table: Any, entry: int) -> None:
    head = entries[entries.shape[0] - 1]
    buckets.unlink(entries, table, entry)
    entries[entry].next = head.next
    head.next = entry


@compiled
def tell(entries: Any, table: Any, key: int, change: int) -> None:
    """Publish at once that a host pool has one frame more (1) or less (-1) of the prompt block `key`."""
    entry = _entry_of(entries, table, key)
    entries[entry].published += change
    if entries[entry].published == 0:
        _drop(entries, table, entry)


@compiled
def log(evicted: Any, key: int) -> None:
    """Take in that a worker evicted `key` from its host pool in a pass; told at its end."""
    head = evicted[evicted.shape[0] - 1]
    evicted[head.key].key = key
    head.key += 1


@compiled
def publish(sim: Sim, worker: int) -> None:
    """Publish the events of `worker`: those of its device, and what it evicted from its host pool."""
    if not are_told(sim):
        return
    record = sim.workers[worker]
    record.published += 1
    record.ghosts = 0
    _publish_device(sim.index[worker], sim.index_buckets[worker])
    if sim.config[record.role].host != 0:
        workers = sim.workers.shape[0]
        pool = workers + int(sim.hosts[worker].pool)
        evicted = sim.index[2 * workers + worker]
        head = evicted[evicted.shape[0] - 1]
        for i in range(head.key):
            tell(sim.index[pool], sim.index_buckets[pool], evicted[i].key, -ONE)
        head.key = 0


@compiled
def _publish_device(entries: Any, table: Any) -> None:
    head = entries[entries.shape[0] - 1]
    while head.marked != NONE:
        entry = int(head.marked)
        head.marked = entries[entry].marked
        entries[entry].is_marked = 0
        entries[entry].published = entries[entry].frames
        if entries[entry].frames == 0:
            _drop(entries, table, entry)


@compiled
def is_published(sim: Sim, row: int, key: int) -> bool:
    """Whether what events have told of a pool, row `row` of ``sim.index``, has the prompt block `key` in it."""
    entry = buckets.find(sim.index[row], sim.index_buckets[row], key)
    return bool(entry != NONE and sim.index[row, entry].published > 0)


@compiled
def published_run(sim: Sim, row: int, request: int, begin: int, blocks: int) -> int:
    """Return how many full prompt blocks from `begin` on, one after the other, the pool of `row` has."""
    block = begin
    while block < blocks and is_published(sim, row, prompt_keys.of_block(sim, request, block)):
        block += 1
    return int(block - begin)
