"""Block tables of running requests: one arena, compacted when it is full.

A request's table lists the copies that it holds, head of the prompt first. It has `table_size` entries from its
admission on, and gives them up when it leaves the worker; holes are squeezed out only when the arena runs short.
"""

from __future__ import annotations

from typing import Any

from playproof_kernel import blocks
from playproof_kernel.arrays import NONE
from playproof_kernel.jit import compiled


@compiled
def never_fits(sim: Any, node: int) -> bool:
    """Whether no state of the pool admits `node`: its prompt reaches the context limit, or it needs too many blocks."""
    config = sim.config[0]
    known = sim.static[node].input + sim.live[node].generated
    return sim.static[node].input >= config.context or known > config.blocks * config.block_size


@compiled
def reserve_room(sim: Any, worker: int) -> bool:
    """Make room for every request that the next pass of `worker` could admit; False when the arena must grow.

    Writes `arena`, `spare` and the tables' places; leaves the entries wanted in ``run.arena_wanted``.
    """
    run = sim.run[0]
    # Seats may become free within the pass (a running request can fail in it), so all of them count.
    seats = sim.config[0].max_sequences
    longest = sim.found.shape[0] - 1
    if run.arena + seats * longest <= sim.arena.shape[0]:
        return True
    wanted = 0
    node = sim.workers[worker].wait_head
    while node != NONE and seats > 0:
        # One that will be refused takes no seat, and what stands behind it moves up.
        if not never_fits(sim, node):
            wanted += sim.static[node].table_size
            seats -= 1
        node = sim.live[node].next
    if run.arena + wanted <= sim.arena.shape[0]:
        return True
    _compact(sim)
    run.arena_wanted = run.arena + wanted
    return run.arena_wanted <= sim.arena.shape[0]


@compiled
def _compact(sim: Any) -> None:
    used = 0
    for worker in range(sim.config[0].workers):
        for i in range(sim.workers[worker].running):
            node = sim.running[worker, i]
            live = sim.live[node]
            begin, length = live.table_begin, live.table_len
            for entry in range(length):
                sim.spare[used + entry] = sim.arena[begin + entry]
            live.table_begin = used
            used += sim.static[node].table_size
    for entry in range(used):
        sim.arena[entry] = sim.spare[entry]
    sim.run[0].arena = used


@compiled
def extend(sim: Any, worker: int, node: int, tokens: int) -> None:
    """Give `node` fresh copies until its table covers `tokens` tokens; the caller has checked that they exist."""
    live = sim.live[node]
    size = sim.config[0].block_size
    needed = (tokens + size - 1) // size
    if live.table_len >= needed:
        return
    pool = blocks.pool_of(sim, worker)
    while live.table_len < needed:
        sim.arena[live.table_begin + live.table_len] = blocks.allocate(pool)
        live.table_len += 1


@compiled
def cache_full_blocks(sim: Any, worker: int, node: int) -> None:
    """Cache every block of `node` that its computed tokens have filled since the last call."""
    config = sim.config[0]
    if config.caching == 0:
        return
    live = sim.live[node]
    full = live.computed // config.block_size
    if live.filled >= full:
        return
    static = sim.static[node]
    pool = blocks.pool_of(sim, worker)
    # Walk the runs of prompt keys to the first block not cached yet, then one key a block.
    number = 0
    for run in range(static.key_begin, static.key_end):
        keys = sim.keys[run]
        upto = min(number + keys.count, full)
        for block in range(max(number, live.filled), upto):
            key = static.space + keys.first + (block - number) * config.key_stride
            blocks.fill(pool, sim.arena[live.table_begin + block], key)
        number += keys.count
        if number >= full:
            break
    for block in range(max(number, live.filled), full):
        blocks.fill(pool, sim.arena[live.table_begin + block], blocks.generated_key(static.serial, block))
    live.filled = full


@compiled
def release_all(sim: Any, worker: int, node: int) -> None:
    """Release every copy of `node`, last block first, so that a prompt's tail is evicted before its head."""
    live = sim.live[node]
    pool = blocks.pool_of(sim, worker)
    for i in range(live.table_len - 1, -1, -1):
        blocks.release(pool, sim.arena[live.table_begin + i])
    live.table_len = 0
    live.filled = 0
    live.computed = 0


@compiled
def cached_prefix(sim: Any, worker: int, node: int, most: int) -> tuple[int, int]:
    """Find the resident leading full blocks of `node`, at most `most`.

    Returns
    -------
    hits, active : int
        How many blocks were found (their copies are left in ``sim.found``), and how many of them are referenced now.
    """
    config = sim.config[0]
    static = sim.static[node]
    pool = blocks.pool_of(sim, worker)
    hits, active, number = 0, 0, 0
    for run in range(static.key_begin, static.key_end):
        keys = sim.keys[run]
        for i in range(min(keys.count, most - number)):
            copy = blocks.find(pool, static.space + keys.first + i * config.key_stride)
            if copy == NONE:
                return hits, active
            sim.found[hits] = copy
            hits += 1
            if pool.copies[copy].refs > 0:
                active += 1
        number += keys.count
        if number >= most:
            return hits, active
    # Blocks that the request itself filled with its output before it was preempted.
    for block in range(number, most):
        copy = blocks.find(pool, blocks.generated_key(static.serial, block))
        if copy == NONE:
            break
        sim.found[hits] = copy
        hits += 1
        if pool.copies[copy].refs > 0:
            active += 1
    return hits, active
