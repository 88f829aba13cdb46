"""Where a request goes under `kv_router`: to the worker where it costs least, by cached prefix and by load.

**What the router knows of caches** is what KV events have told. A worker's events (a prompt block was cached, a cached
one was evicted) go out together when one of its passes ends, or, while it idles, a transfer to it or to or from its
host memory; what its pass under way has done so far, nobody knows. So each device has an *index* beside it: for every
key that it has or had, the copies there are and the copies that were published. An event changes the first and marks
the entry; publishing makes the second equal and drops entries that are gone. A host pool, which workers may share, has
an index as well: what arrives there is published at once, for that is the end of a transfer; what a worker evicts from
it while it schedules a pass, when that pass ends. Generated blocks match no other request, and have no entry.

On the device the published blocks of a prompt are its leading ones: whoever takes a block takes those before it with
it, and lets go of it before them, so none is evicted before what follows it. The overlap is found by bisection. (But
copies to a shared host pool keep the blocks that they read, so there one block is asked for after the other.)

**What the router knows of load** is its own: which requests it has given to a worker, which of them have begun there,
and the tokens they have. It is kept in tokens, a block being so many of them.

`choose` documents the cost. Nothing here runs under round robin.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import Backend, Role

from playproof_kernel import blocks, buckets, prompts, radix
from playproof_kernel.arrays import NONE, Sim
from playproof_kernel.blocks import GENERATED
from playproof_kernel.jit import ONE, ZERO, compiled, constant

_PREFILL = constant(Role.PREFILL)
_SGLANG = constant(Backend.SGLANG)


@compiled
def is_used(sim: Sim) -> bool:
    """Whether requests are placed by what the workers have and do."""
    return bool(sim.config[0].router != 0)


# The index of published blocks ------------------------------------------------------------------------------------


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
    entries[entry].copies = 0
    entries[entry].published = 0
    entries[entry].is_marked = 0
    entries[entry].next = table[bucket]
    table[bucket] = entry
    return entry


@compiled
def note(entries: Any, table: Any, key: int, change: int) -> None:
    """Take in that a device has one copy more (1) or less (-1) of the prompt block `key`; writes its index."""
    entry = _entry_of(entries, table, key)
    entries[entry].copies += change
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
    if not is_used(sim):
        return
    pool = blocks.pool_of(sim, worker)
    at, passed, copy = int(sim.workers[worker].oldest), 0, 0
    for _ in range(number - sim.workers[worker].free):
        at, passed, copy = blocks.next_idle(pool, at, passed, copy)
        key = blocks.key_of(pool, copy)
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
    """Publish at once that a host pool has one copy more (1) or less (-1) of the prompt block `key`."""
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
    if not is_used(sim):
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
        entries[entry].published = entries[entry].copies
        if entries[entry].copies == 0:
            _drop(entries, table, entry)


@compiled
def _is_published(sim: Sim, row: int, key: int) -> bool:
    entry = buckets.find(sim.index[row], sim.index_buckets[row], key)
    return bool(entry != NONE and sim.index[row, entry].published > 0)


@compiled
def _key_of(sim: Sim, request: int, block: int) -> int:
    """Return the key of a full block of the prompt of `request`."""
    static = sim.static[request]
    return prompts.key_at(sim.keys, static, static.space, sim.config[0].key_stride, block)


@compiled
def _on_device(sim: Sim, worker: int, request: int, blocks: int) -> int:
    """Return how many leading ones of the `blocks` full prompt blocks of `request` the device of `worker` has."""
    if sim.config[0].backend == _SGLANG:
        return radix.published_prefix(radix.tree_of(sim, worker), request, blocks)
    if sim.config[sim.workers[worker].role].host != 0 and sim.hosts[worker].shared != 0:
        return _published_run(sim, worker, request, ZERO, blocks)
    low, high = ZERO, blocks
    while low < high:
        middle = (low + high + 1) // 2
        if _is_published(sim, worker, _key_of(sim, request, middle - 1)):
            low = middle
        else:
            high = middle - 1
    return int(low)


@compiled
def _published_run(sim: Sim, row: int, request: int, begin: int, blocks: int) -> int:
    """Return how many full prompt blocks from `begin` on, one after the other, the pool of `row` has."""
    block = begin
    while block < blocks and _is_published(sim, row, _key_of(sim, request, block)):
        block += 1
    return int(block - begin)


@compiled
def _on_host(sim: Sim, worker: int, request: int, begin: int, blocks: int) -> int:
    """Return how many full prompt blocks from `begin` on, one after the other, the host memory of `worker` has."""
    if sim.config[sim.workers[worker].role].host == 0:
        return 0
    row = sim.workers.shape[0] + int(sim.hosts[worker].pool)
    return _published_run(sim, row, request, begin, blocks)


# Load -------------------------------------------------------------------------------------------------------------


@compiled
def _assigned(sim: Sim, worker: int) -> int:
    """Return the tokens, of prompts and of output, that the requests of `worker` have."""
    return int(sim.workers[worker].assigned + sim.workers[worker].decode_tokens)


@compiled
def assign(sim: Sim, worker: int, request: int, device: int, host: int) -> None:
    """Count `request` among those of `worker`, which was told to have so much of its prompt; it has not begun."""
    record, ticket = sim.workers[worker], sim.tickets[request]
    size = sim.config[0].block_size
    ticket.overlap = (device + host) * size
    ticket.is_assigned = 1
    ticket.missing = sim.static[request].input - device * size
    ticket.restorable = host * size
    record.assigned += sim.static[request].input
    record.missing += ticket.missing
    record.restorable += ticket.restorable


@compiled
def begin(sim: Sim, worker: int, request: int) -> None:
    """Take in that `request` was admitted for the first time, or that it never will be."""
    record, ticket = sim.workers[worker], sim.tickets[request]
    record.missing -= ticket.missing
    record.restorable -= ticket.restorable
    ticket.missing = 0
    ticket.restorable = 0


@compiled
def leave(sim: Sim, worker: int, request: int) -> None:
    """Take in that `worker` has done with `request`; told twice, it counts once."""
    record, ticket = sim.workers[worker], sim.tickets[request]
    if ticket.is_assigned == 0:
        return
    ticket.is_assigned = 0
    begin(sim, worker, request)
    record.assigned -= sim.static[request].input
    if sim.config[record.role].role != _PREFILL:
        # A prefill worker's one token was never counted.
        record.assigned -= sim.live[request].generated


# The choice -------------------------------------------------------------------------------------------------------


@compiled
def choose(sim: Sim, role: int, request: int) -> int:
    """Return the worker of `role` where `request` costs least, and count it there.

    In blocks, with `device` and `host` the leading blocks of its prompt published on the device and, behind those, in
    host memory, the cost of a worker is ::

        overlap_score_weight · (prompt − device − host_cache_hit_weight · host + the same of what has not begun there)
          + prompts and output of all requests that it has

    The least cost wins, then the least of the last term, then the first worker. No pass may be cut short by it: the
    caller has let every pass of these workers that has ended count.
    """
    config = sim.config[role]
    prompt = sim.static[request].input
    size = config.block_size
    best, best_cost, best_load, best_device, best_host = NONE, 0.0, ZERO, ZERO, ZERO
    for worker in range(config.first_worker, config.first_worker + config.workers):
        record = sim.workers[worker]
        device = _on_device(sim, worker, request, prompt // size)
        host = _on_host(sim, worker, request, device, prompt // size)
        missing = float(prompt - device * size + record.missing)
        restorable = float(host * size + record.restorable)
        load = _assigned(sim, worker)
        cost = config.overlap_score_weight * (missing - config.host_cache_hit_weight * restorable) + float(load)
        if best == NONE or cost < best_cost or (cost == best_cost and load < best_load):
            best, best_cost, best_load, best_device, best_host = worker, cost, load, device, host
    assign(sim, best, request, best_device, best_host)
    return int(best)
