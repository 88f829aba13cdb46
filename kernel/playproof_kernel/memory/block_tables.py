"""Block tables of requests that hold blocks: one arena, compacted when it is full.

A request's table lists the frames that it holds, head of the prompt first. It has `table_size` entries from its
admission (or its reservation) on, and gives them up when it lets the blocks go; holes are compacted out only when the
arena runs short.
"""

from __future__ import annotations

from playproof_kernel.ground.arrays import DEFERRED, NONE, WAITING, Sim
from playproof_kernel.ground.jit import ONE, ZERO, compiled
from playproof_kernel.ground.lifecycle import config_of
from playproof_kernel.memory import block_pool, cache_events


@compiled
def never_fits(sim: Sim, worker: int, request: int) -> bool:
    """Whether no state of the pool admits `request`: its prompt reaches the context limit, or it is too large."""
    config = config_of(sim, worker)
    prompt = sim.static[request].input
    return prompt >= config.context or prompt + sim.live[request].generated > config.blocks * config.block_size


@compiled
def room_for_one(sim: Sim) -> bool:
    """Make room for one more table of any size; False when the arena must grow (see `reserve_room`)."""
    run = sim.run[0]
    longest = sim.found.shape[0] - 1
    if run.arena + longest <= sim.arena.shape[0]:
        return True
    return _compact(sim, longest)


@compiled
def _wanted_by(sim: Sim, worker: int, request: int, seats: int) -> int:
    """Return the entries that the tables of `seats` requests of a queue want, from `request` on."""
    wanted = 0
    while request != NONE and seats > 0:
        # One that will be refused takes no seat, and what stands behind it moves up.
        if not never_fits(sim, worker, request):
            wanted += sim.static[request].table_size
            seats -= 1
        request = int(sim.live[request].next)
    return wanted


@compiled
def reserve_room(sim: Sim, worker: int) -> bool:
    """Make room for every request that the next pass of `worker` could admit, and for one reservation at its end.

    Writes `arena`, `spare` and the tables' places; leaves the entries wanted in ``run.arena_wanted``, and returns
    False, when the arena must grow.
    """
    run = sim.run[0]
    # Seats may become free within the pass (a running request can fail in it), so all of them count.
    config = config_of(sim, worker)
    seats = config.max_sequences
    if config.host != 0:
        # A restore takes its table before it has a seat.
        seats = sim.live.shape[0]
    longest = sim.found.shape[0] - 1
    if run.arena + (seats + 1) * longest <= sim.arena.shape[0]:
        return True
    wanted = longest + _wanted_by(sim, worker, int(sim.queues[worker, WAITING].head), seats)
    if config.host != 0:
        wanted += _wanted_by(sim, worker, int(sim.queues[worker, DEFERRED].head), seats)
    if run.arena + wanted <= sim.arena.shape[0]:
        return True
    return _compact(sim, wanted)


@compiled
def _compact(sim: Sim, wanted: int) -> bool:
    """Compact the holes out of the arena; False when it must grow, to take `wanted` more entries.

    It must, too, when it stays more than half full: the next time would come too soon.
    """
    run = sim.run[0]
    used = 0
    for i in range(run.holders):
        request = sim.holders[i]
        live = sim.live[request]
        begin, length = live.table_begin, live.table_len
        for entry in range(length):
            sim.spare[used + entry] = sim.arena[begin + entry]
        live.table_begin = used
        used += sim.static[request].table_size
    for entry in range(used):
        sim.arena[entry] = sim.spare[entry]
    run.arena = used
    run.arena_wanted = max(used + wanted, 2 * used)
    return bool(run.arena_wanted <= sim.arena.shape[0])


@compiled
def _open(sim: Sim, request: int) -> None:
    run = sim.run[0]
    live = sim.live[request]
    sim.tickets[request].holder = run.holders
    sim.holders[run.holders] = request
    run.holders += 1
    live.table_begin = run.arena
    run.arena += sim.static[request].table_size


@compiled
def open_with_prefix(sim: Sim, worker: int, request: int, hits: int) -> None:
    """Give `request` a table that begins with the `hits` frames of `get_computed_blocks`, one reference each."""
    live = sim.live[request]
    _open(sim, request)
    block_pool.touch(block_pool.pool_of(sim, worker), sim.found, sim.arena, live.table_begin, hits)
    live.table_len = hits
    live.filled = hits


@compiled
def extend(sim: Sim, worker: int, request: int, tokens: int) -> None:
    """Give `request` fresh frames until its table covers `tokens` tokens; the caller has checked that they exist."""
    live = sim.live[request]
    size = config_of(sim, worker).block_size
    needed = (tokens + size - 1) // size
    if live.table_len < needed:
        cache_events.note_taking(sim, worker, needed - live.table_len)
        pool = block_pool.pool_of(sim, worker)
        block_pool.get_new_blocks(
            pool, sim.arena, live.table_begin + live.table_len, needed - live.table_len, block_pool.ALLOCATE
        )
        live.table_len = needed


@compiled
def cache_full_blocks(sim: Sim, worker: int, request: int) -> None:
    """Cache every block of `request` that its computed tokens have filled since the last call."""
    cache_up_to(sim, worker, request, int(sim.live[request].computed))


@compiled
def cache_up_to(sim: Sim, worker: int, request: int, tokens: int) -> None:
    """Cache every block that the first `tokens` tokens of `request` fill and that is not cached yet."""
    config = config_of(sim, worker)
    if config.caching == 0:
        return
    full = tokens // config.block_size
    if sim.live[request].filled < full:
        _cache(sim, worker, request, full, block_pool.FILL)


@compiled
def cache_loaded(sim: Sim, worker: int, request: int) -> None:
    """Cache the blocks of `request` that a load from the host has filled: all of its table that is not cached yet."""
    _cache(sim, worker, request, int(sim.live[request].table_len), block_pool.LOADED)


@compiled
def _cache(sim: Sim, worker: int, request: int, full: int, event: int) -> None:
    """Cache the blocks of `request` up to block `full`, those that are not cached yet."""
    config = config_of(sim, worker)
    live = sim.live[request]
    static = sim.static[request]
    pool = block_pool.pool_of(sim, worker)
    # Walk the runs of keys to the first block not cached yet, then one key a block.
    number = 0
    for run in range(static.key_begin, static.answer_end):
        keys = sim.keys[run]
        block = max(number, live.filled)
        upto = min(number + keys.count, full)
        if block < upto:
            key = static.space + keys.first + (block - number) * config.key_stride
            at = live.table_begin + block
            block_pool.cache_blocks(pool, sim.arena, at, upto - block, key, config.key_stride, event)
            if cache_events.are_told(sim):
                cache_events.note_cached(sim, worker, key, config.key_stride, upto - block)
        number += keys.count
        if number >= full:
            break
    block = max(number, live.filled)
    if block < full:
        key = block_pool.generated_key(static.serial, block)
        block_pool.cache_blocks(pool, sim.arena, live.table_begin + block, full - block, key, ONE, event)
    live.filled = full


@compiled
def release_all(sim: Sim, worker: int, request: int) -> None:
    """Release every frame of `request`, last block first, so that a prompt's tail is evicted before its head."""
    live = sim.live[request]
    ticket = sim.tickets[request]
    if live.table_len > 0:
        block_pool.free_blocks(block_pool.pool_of(sim, worker), sim.arena, live.table_begin, live.table_len)
    live.table_len = 0
    live.filled = 0
    live.computed = 0
    if ticket.holder != NONE:
        sim.workers[worker].capacity_epoch += 1
        run = sim.run[0]
        run.holders -= 1
        last = sim.holders[run.holders]
        sim.holders[ticket.holder] = last
        sim.tickets[last].holder = ticket.holder
        ticket.holder = NONE


@compiled
def get_computed_blocks(sim: Sim, worker: int, request: int, most: int) -> int:
    """Find the resident leading full blocks of `request`, at most `most`.

    Returns
    -------
    int
        How many blocks were found; their frames are left in ``sim.found``.
    """
    return _prefix(sim, worker, request, most, ZERO)


@compiled
def fits(sim: Sim, worker: int, total: int, hits: int, promised: int) -> bool:
    """Whether `total` blocks can be had, beside `promised` other ones, when the first `hits` are those found last.

    Of these, the ones that no request uses are taken out of what is available.
    """
    short = total - (block_pool.available(sim, worker) - promised)
    return bool(
        short <= 0 or (short <= hits and short <= block_pool.in_use(block_pool.pool_of(sim, worker), sim.found, hits))
    )


@compiled
def take_prefix(sim: Sim, worker: int, request: int, most: int) -> int:
    """Give `request`, which is known to fit, a table that begins with its resident leading full blocks, at most `most`.

    One walk does what `get_computed_blocks` and `open_with_prefix` do in two. Returns how many blocks were found.
    """
    live = sim.live[request]
    _open(sim, request)
    hits = _prefix(sim, worker, request, most, ONE)
    live.table_len = hits
    live.filled = hits
    return hits


@compiled
def _prefix(sim: Sim, worker: int, request: int, most: int, taken: int) -> int:
    config = config_of(sim, worker)
    static = sim.static[request]
    hits, number = 0, 0
    for run in range(static.key_begin, static.answer_end):
        keys = sim.keys[run]
        wanted = min(keys.count, most - number)
        first = static.space + keys.first
        more = _look_up(sim, worker, request, hits, first, config.key_stride, wanted, taken)
        hits += more
        number += keys.count
        if more < wanted or number >= most:
            return hits
    # Blocks that the request itself filled with its output before it was preempted.
    if number < most:
        first = block_pool.generated_key(static.serial, number)
        hits += _look_up(sim, worker, request, hits, first, ONE, most - number, taken)
    return hits


@compiled
def _look_up(sim: Sim, worker: int, request: int, begin: int, key: int, stride: int, number: int, taken: int) -> int:
    pool = block_pool.pool_of(sim, worker)
    if taken != 0:
        return block_pool.touch_cached(pool, sim.arena, sim.live[request].table_begin + begin, key, stride, number)
    return block_pool.find(pool, sim.found, begin, key, stride, number)
