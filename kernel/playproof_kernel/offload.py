"""Host memory behind vLLM workers' G1 pools: stores, loads, their links, and the requests that wait for them.

Full prompt blocks are written through. A **store** is prepared while a pass is scheduled, for the blocks that one
request completed and that the host lacks, and submitted at the pass's end. A **load** brings the blocks behind a
request's G1 prefix back into G1 blocks reserved for it, before it is admitted.

A worker has a pool of its own, with a link in each direction, first in, first out; or the deployment has one pool that
its workers share, and with it the rate of the copies (`links`).

What becomes of a G1 block that a store still reads differs. Before a private pool it may be given to another request,
but the pass that writes it does not begin to compute before that store has ended: the pass's fence. Before a shared
pool nobody knows when that will be, so the store keeps the block: it has a reference of its own until it has ended, and
with it the pass during which it does.

What is on its way sets requests aside. They keep their order, come before the waiting queue, and are looked at again
once any copy of the pool has ended. A busy worker hears of such ends at the end of its pass.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import BlockEvent, BlockState, HostBlockEvent, HostBlockState, RequestEvent, TransferEvent
from playproof_spec.units import HORIZON_NS

from playproof_kernel import blocks, host, links, pages, queues, router, tables
from playproof_kernel.arrays import (
    ASIDE,
    D2H,
    ENDED_COPIES,
    H2D,
    LOADS,
    NONE,
    PENDING,
    PREPARED,
    RETURNING,
    STORES,
    WAITING,
)
from playproof_kernel.jit import ONE, ZERO, compiled, constant, natural
from playproof_kernel.pages import PAGE, PAGE_BITS
from playproof_kernel.requests import config_of, known
from playproof_kernel.timers import sooner
from playproof_kernel.transitions import BLOCK_TABLE, COPYING_TABLE, HOST_BLOCK_TABLE, REQUEST_TABLE, advance, renew

_SUBMIT, _START = constant(TransferEvent.SUBMIT), constant(TransferEvent.START)
_FINISH, _DROP = constant(TransferEvent.FINISH), constant(TransferEvent.DROP)
_START_READ, _READ_DONE = constant(BlockEvent.START_READ), constant(BlockEvent.READ_DONE)
_READING, _READING_IDLE = constant(BlockState.READING), constant(BlockState.READING_IDLE)
_PREPARE_STORE, _STORE_DONE = constant(HostBlockEvent.PREPARE_STORE), constant(HostBlockEvent.STORE_DONE)
_RESIDENT = constant(HostBlockState.RESIDENT)
_LOAD = constant(RequestEvent.LOAD)

DEFERRED = constant(-1)


@compiled
def is_used(sim: Any, worker: int) -> bool:
    """Whether `worker` has host memory."""
    return bool(config_of(sim, worker).host != 0)


@compiled
def is_shared(sim: Any, worker: int) -> bool:
    """Whether `worker`, which has host memory, shares it."""
    return bool(sim.hosts[worker].shared != 0)


# Copies ------------------------------------------------------------------------------------------------------------


@compiled
def _new_copying(sim: Any, worker: int, request: int) -> int:
    record = sim.hosts[worker]
    if record.copyings_spare != NONE:
        row = int(record.copyings_spare)
        record.copyings_spare = sim.copyings[row].next
    else:
        row = int(worker * sim.host_pages.shape[1] + record.copyings_taken)
        record.copyings_taken += 1
    record.copyings += 1
    renew(COPYING_TABLE, sim.copying_state, row)
    copying = sim.copyings[row]
    copying.worker = worker
    copying.request = request
    copying.end = NONE
    copying.blocks = 0
    copying.first = NONE
    return row


@compiled
def _give_back(sim: Any, row: int) -> None:
    record = sim.hosts[sim.copyings[row].worker]
    record.copyings -= 1
    sim.copyings[row].next = record.copyings_spare
    record.copyings_spare = row


@compiled
def _submit(sim: Any, row: int, direction: int, may_start: int) -> None:
    """Let a copy begin as soon as its link or its pool lets it, not before `may_start` and the latency."""
    copying = sim.copyings[row]
    worker = int(copying.worker)
    record = sim.hosts[worker]
    record.moved_blocks[direction] += copying.blocks
    advance(COPYING_TABLE, sim.copying_state, row, _SUBMIT)
    ready = may_start + record.latency
    if record.shared != 0:
        links.submit(sim, int(record.pool), row, direction, ready)
        return
    duration, rate = 0, record.bytes_per_second[direction]
    if rate > 0.0:
        duration = round(min(copying.blocks * record.block_bytes / rate * 1e9, float(HORIZON_NS)))
    record.link_free[direction] = min(max(record.link_free[direction], ready) + duration, HORIZON_NS)
    record.busy[direction] += duration
    copying.end = record.link_free[direction]
    queues.append(sim.queues[worker, STORES + direction], sim.copyings, row)


@compiled
def next_end(sim: Any, worker: int) -> int:
    """Return the instant of the next event of the links to the pool of `worker`, or NONE.

    That is the end of a copy, or, in a shared pool, also the first byte of one.
    """
    record = sim.hosts[worker]
    if record.pool == NONE:
        return NONE
    if record.shared != 0:
        return int(sim.hosts[record.pool].due)
    store, load = sim.queues[worker, STORES].head, sim.queues[worker, LOADS].head
    end = NONE if store == NONE else int(sim.copyings[store].end)
    return end if load == NONE else int(sooner(end, int(sim.copyings[load].end)))


@compiled
def end_copies(sim: Any, worker: int, now: int) -> bool:
    """End every copy of the pool of `worker` that is due at `now`, stores before loads of one instant.

    Returns
    -------
    bool
        Whether there was any.
    """
    if is_shared(sim, worker):
        return _end_shared(sim, int(sim.hosts[worker].pool), now)
    any_ended = False
    while True:
        end = next_end(sim, worker)
        if end == NONE or end > now:
            break
        stores, loads = sim.queues[worker, STORES], sim.queues[worker, LOADS]
        is_store = stores.head != NONE and sim.copyings[stores.head].end == end
        row = queues.take(stores if is_store else loads, sim.copyings)
        advance(COPYING_TABLE, sim.copying_state, row, _START)
        advance(COPYING_TABLE, sim.copying_state, row, _FINISH)
        _end(sim, row)
        any_ended = True
    if any_ended:
        _wake(sim, worker)
    return any_ended


@compiled
def _end_shared(sim: Any, pool: int, now: int) -> bool:
    ended = sim.queues[pool, ENDED_COPIES]
    any_ended = False
    while sim.hosts[pool].due != NONE and sim.hosts[pool].due <= now:
        links.step(sim, pool, int(sim.hosts[pool].due))
        while ended.head != NONE:
            _end(sim, queues.take(ended, sim.copyings))
            any_ended = True
    if any_ended:
        for worker in range(sim.hosts.shape[0]):
            if sim.hosts[worker].pool == pool:
                _wake(sim, worker)
    return any_ended


@compiled
def _end(sim: Any, row: int) -> None:
    """A copy is at its end: what it brought is there, and what it read is free of it."""
    worker = int(sim.copyings[row].worker)
    if sim.tickets[sim.copyings[row].request].load == row:
        _end_load(sim, row)
        _give_back(sim, row)
    elif _end_store(sim, row):
        _give_back(sim, row)
    if sim.workers[worker].pass_end == NONE:
        # Else it tells at the end of its pass: what that has done so far, nobody is to know.
        router.publish(sim, worker)


@compiled
def _end_store(sim: Any, row: int) -> bool:
    """End a store; False when it still keeps its G1 copies, linked by ``sim.kept`` from ``copying.first`` on."""
    copying = sim.copyings[row]
    worker = int(copying.worker)
    keeps = is_shared(sim, worker)
    pool = host.pool_of(sim, worker)
    readers, states, kept = sim.readers[worker], sim.block_state[worker], sim.kept[worker]
    host.reserve(pool, int(copying.blocks))
    newest = pool.record[0].newest
    last = NONE
    # The chain goes from the last block to the first, so that the head of a prompt stays longest.
    following = int(copying.first)
    while following != NONE:
        place = natural(following)
        following = int(pool.links[place])
        advance(HOST_BLOCK_TABLE, pool.states, place, _STORE_DONE)
        pool.order[natural(newest)] = place
        pool.links[place] = newest
        newest += 1
        if pool.index.shape[0] > 1:
            router.tell(pool.index, pool.index_buckets, pages.key_at(pool.pages, place), ONE)
        source = natural(pool.sources[place])
        readers[source] = NONE
        # It may have been evicted meanwhile, and be another's.
        if states[source] == _READING or states[source] == _READING_IDLE:
            advance(BLOCK_TABLE, states, source, _READ_DONE)
        if keeps:
            kept[source] = NONE
            if last == NONE:
                copying.first = source
            else:
                kept[natural(last)] = source
            last = source
    pool.record[0].newest = newest
    pool.record[0].idle += copying.blocks
    # The request may be gone, and another in its place.
    if sim.tickets[copying.request].store == row:
        sim.tickets[copying.request].store = NONE
    if not keeps:
        sim.workers[worker].capacity_epoch += 1  # a destination may have waited for it
        return True
    copying.end = sim.run[0].now
    queues.append(sim.queues[worker, RETURNING], sim.copyings, row)
    if sim.workers[worker].pass_end == NONE:
        return_copies(sim, worker, int(copying.end))
    return False


@compiled
def return_copies(sim: Any, worker: int, until: int) -> None:
    """Let go of the G1 copies that stores which ended by `until` have kept, the last block of each store first."""
    returning = sim.queues[worker, RETURNING]
    pool = blocks.pool_of(sim, worker)
    while returning.head != NONE and sim.copyings[returning.head].end <= until:
        row = queues.take(returning, sim.copyings)
        copy = int(sim.copyings[row].first)
        while copy != NONE:
            following = int(sim.kept[worker, copy])
            sim.found[0] = copy
            blocks.release(pool, sim.found, ZERO, ONE)
            copy = following
        sim.workers[worker].capacity_epoch += 1
        _give_back(sim, row)


@compiled
def _end_load(sim: Any, row: int) -> None:
    copying = sim.copyings[row]
    request, worker = int(copying.request), int(copying.worker)
    _unpin_all(sim, row)
    live = sim.live[request]
    tables.cache_loaded(sim, worker, request)
    live.filled = live.table_len
    sim.tickets[request].load = NONE


@compiled
def _unpin_all(sim: Any, row: int) -> None:
    copying = sim.copyings[row]
    worker = int(copying.worker)
    static = sim.static[copying.request]
    stride = config_of(sim, worker).key_stride
    pool = host.pool_of(sim, worker)
    for run in range(static.key_end - 1, static.key_begin - 1, -1):
        keys = sim.keys[run]
        begin = max(copying.first, keys.begin)
        number = min(copying.first + copying.blocks, keys.begin + keys.count) - begin
        if number > 0:
            host.unpin(pool, static.space + keys.first + (begin - keys.begin) * stride, stride, number)


@compiled
def at_pass_end(sim: Any, worker: int, now: int) -> None:
    """Hear of copies that ended during the pass, and submit the stores that it prepared."""
    end_copies(sim, worker, now)
    prepared = sim.queues[worker, PREPARED]
    if prepared.head == NONE:
        return
    while prepared.head != NONE:
        _submit(sim, queues.take(prepared, sim.copyings), D2H, now)
    end_copies(sim, worker, now)


# Stores ------------------------------------------------------------------------------------------------------------


@compiled
def begin_pass(sim: Any, worker: int) -> None:
    """Nothing holds the pass to be scheduled back yet."""
    record = sim.hosts[worker]
    record.fence = sim.run[0].now
    record.retrying = 0


@compiled
def prepare_stores(sim: Any, worker: int, scheduled: int) -> None:
    """Prepare stores for the first `scheduled` of the running requests, those of the pass."""
    for i in range(scheduled):
        request = int(sim.running[worker, i])
        static, live = sim.static[request], sim.live[request]
        end = min(live.computed, static.input) // config_of(sim, worker).block_size
        if end > sim.tickets[request].cursor:
            _prepare_store(sim, worker, request, end)


@compiled
def _prepare_store(sim: Any, worker: int, request: int, end: int) -> None:
    """Prepare a store of what the host lacks of the blocks of `request` from its cursor to `end`."""
    record = sim.hosts[worker]
    ticket = sim.tickets[request]
    pool = host.pool_of(sim, worker)
    begin = int(ticket.cursor)
    if pool.record[0].recent == request:
        begin = int(max(begin, min(end, pool.record[0].leading)))  # those before are there, and stay
    missing, kept, is_read = _examine(sim, worker, request, begin, end)
    if missing == 0:
        ticket.cursor = end
        return
    if is_read:
        # A block written in this pass, behind the fence, is copied another time.
        record.retrying = 1
        return
    short = missing - (pool.record[0].capacity - pool.record[0].used)
    if short > pool.record[0].older - kept:
        _settle(sim, worker)  # its own blocks before the cohort may have to go
        begin = int(ticket.cursor)
        missing, kept, is_read = _examine(sim, worker, request, begin, end)
    if short > pool.record[0].idle - (kept + begin - ticket.cursor):
        record.retrying = 1
        record.retries += 1
        return
    if short > 0:
        if kept > 0:
            # Blocks of the cohort do not go. All blocks of the prompt are used below, in whatever order they stand.
            host.reserve(pool, int(pool.record[0].idle))
            _use_idle(sim, worker, request, begin, end, int(pool.record[0].newest))
        host.evict(pool, short)
    row = _new_copying(sim, worker, request)
    static, live = sim.static[request], sim.live[request]
    stride = config_of(sim, worker).key_stride
    for run in range(static.key_begin, static.key_end):
        keys = sim.keys[run]
        block = max(begin, keys.begin)
        number = min(end, keys.begin + keys.count) - block
        if number > 0:
            key = static.space + keys.first + (block - keys.begin) * stride
            _store_run(sim, worker, row, key, stride, int(live.table_begin + block), number)
    queues.append(sim.queues[worker, PREPARED], sim.copyings, row)
    record.stores += 1
    ticket.store = row
    ticket.cursor = end
    _use_all(sim, worker, request)


@compiled
def _store_run(sim: Any, worker: int, row: int, key: int, stride: int, entry: int, number: int) -> None:
    """Add to a store what the host lacks of a run of keys; the arena has their copies from `entry` on."""
    pool = host.pool_of(sim, worker)
    readers, states, copies = sim.readers[worker], sim.block_state[worker], sim.copies[worker]
    sources = sim.arena[entry : entry + number]
    keeps = is_shared(sim, worker)
    copying = sim.copyings[row]
    chain = int(copying.first)
    stored, i = 0, 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            at, end = pages.new_places(pool.pages, pool.buckets, pool.record[0], key + i * stride)
        opened = 0
        while at < end and i < number:
            place = natural(at)
            if pool.states[place] == host.ABSENT:
                source = natural(sources[i])
                advance(HOST_BLOCK_TABLE, pool.states, place, _PREPARE_STORE)
                pool.links[place] = chain
                pool.sources[place] = source
                chain = place
                readers[source] = row
                advance(BLOCK_TABLE, states, source, _START_READ)
                if keeps:
                    copies[source].refs += 1
                opened += 1
            at += stride
            i += 1
        pool.pages[natural((end - 1) >> PAGE_BITS)].used += opened
        stored += opened
    copying.first = chain
    copying.blocks += stored
    pool.record[0].used += stored


@compiled
def _examine(sim: Any, worker: int, request: int, begin: int, end: int) -> tuple[int, int, bool]:
    """Look at the blocks of `request` from `begin` to `end`.

    Returns
    -------
    missing, kept : int
        How many the host lacks, and how many of the others are idle.
    is_read : bool
        Whether an earlier store still reads the G1 copy of a missing one.
    """
    static, live = sim.static[request], sim.live[request]
    stride = config_of(sim, worker).key_stride
    missing, kept, is_read = 0, 0, False
    for run in range(static.key_begin, static.key_end):
        keys = sim.keys[run]
        block = max(begin, keys.begin)
        number = min(end, keys.begin + keys.count) - block
        if number > 0:
            key = static.space + keys.first + (block - keys.begin) * stride
            entry = int(live.table_begin + block)
            more_missing, more_kept, more_read = _examine_run(sim, worker, key, stride, entry, number)
            missing += more_missing
            kept += more_kept
            is_read = is_read or more_read
    return missing, kept, is_read


@compiled
def _examine_run(sim: Any, worker: int, key: int, stride: int, entry: int, number: int) -> tuple[int, int, bool]:
    """Do the same for a run of keys; the arena has their copies from `entry` on."""
    pool = host.pool_of(sim, worker)
    readers = sim.readers[worker]
    sources = sim.arena[entry : entry + number]
    some_read = sim.hosts[worker].copyings > 0
    missing, kept, is_read, i = 0, 0, False, 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        has_page = at != NONE
        if not has_page:
            at, end = (key + i * stride) & (PAGE - 1), PAGE
            if not some_read:
                absent = min((end - 1 - at) // stride + 1, number - i)
                missing += absent
                i += absent
                continue
        while at < end and i < number:
            state = pool.states[natural(at)] if has_page else host.ABSENT
            if state == host.ABSENT:
                missing += 1
                is_read = is_read or (some_read and readers[natural(sources[i])] != NONE)
            elif state == _RESIDENT:
                kept += 1
            at += stride
            i += 1
    return missing, kept, is_read


# The order of use --------------------------------------------------------------------------------------------------


@compiled
def _use_all(sim: Any, worker: int, request: int) -> None:
    """Use every prompt block of `request` that is idle in the host, last first.

    A prompt that is computed in chunks is used with each of them. All but the last of these uses show only in the order
    of the request's own blocks, as long as nobody else's blocks are used and none of its own are evicted; so they are
    put off until that could matter (`_settle`).
    """
    pool = host.pool_of(sim, worker)
    record = pool.record[0]
    if record.recent == request:
        if record.newest > record.used_at:
            record.unsettled = 1
    else:
        _settle(sim, worker)
        host.reserve(pool, int(record.idle))
        moved, leading = _use_idle(sim, worker, request, ZERO, _prompt_end(sim, request), int(record.newest))
        record.recent = request
        record.older = record.idle - moved
        record.leading = leading
    record.used_at = record.newest


@compiled
def _settle(sim: Any, worker: int) -> None:
    """Enter in the order of use what was put off: the latest use by `recent`, before what has come into it since."""
    pool = host.pool_of(sim, worker)
    record = pool.record[0]
    if record.unsettled != 0:
        host.reserve(pool, int(2 * record.idle))
        used_at, end = int(record.used_at), int(record.newest)
        recent = int(record.recent)
        _use_idle(sim, worker, recent, ZERO, _prompt_end(sim, recent), used_at)
        host.use_again(pool, used_at, end)
    record.unsettled = 0
    record.recent = NONE


@compiled
def _prompt_end(sim: Any, request: int) -> int:
    """Return how many full blocks the prompt of `request` has."""
    static = sim.static[request]
    if static.key_end == static.key_begin:
        return 0
    last = sim.keys[static.key_end - 1]
    return int(last.begin + last.count)


@compiled
def _use_idle(sim: Any, worker: int, request: int, begin: int, end: int, before: int) -> tuple[int, int]:
    """Use the idle ones of the prompt blocks `begin` to `end` of `request`, last first.

    Only those that stand before `before` in the order of use; the caller has reserved room.

    Returns
    -------
    number : int
        How many were used.
    leading : int
        The first block that was not.
    """
    static = sim.static[request]
    stride = config_of(sim, worker).key_stride
    pool = host.pool_of(sim, worker)
    number, leading = 0, int(end)
    for run in range(static.key_end - 1, static.key_begin - 1, -1):
        keys = sim.keys[run]
        block = max(begin, keys.begin)
        wanted = min(end, keys.begin + keys.count) - block
        if wanted > 0:
            key = static.space + keys.first + (block - keys.begin) * stride
            moved, of_run = host.use(pool, key, stride, wanted, before)
            number += moved
            if of_run < wanted:
                leading = int(block + of_run)
    return number, leading


@compiled
def forget(sim: Any, request: int) -> None:
    """Have done with a request whose slot is taken by another one."""
    for worker in range(sim.hosts.shape[0]):
        if sim.hosts[worker].recent == request:
            _settle(sim, worker)


# Fences ------------------------------------------------------------------------------------------------------------


@compiled
def _readers_end(sim: Any, worker: int, request: int, begin: int) -> int:
    """Return when the last store ends that reads a copy in the table of `request` from `begin` on, or NONE."""
    live = sim.live[request]
    end = NONE
    for entry in range(live.table_begin + begin, live.table_begin + live.table_len):
        row = sim.readers[worker, sim.arena[entry]]
        if row != NONE:
            end = max(end, sim.copyings[row].end)
    return int(end)


@compiled
def is_read(sim: Any, worker: int, request: int, begin: int) -> bool:
    """Whether a store still reads one of the copies just given to `request`, those from `begin` on."""
    if not is_used(sim, worker) or sim.hosts[worker].copyings == 0:
        return False
    return bool(_readers_end(sim, worker, request, begin) != NONE)


@compiled
def fence(sim: Any, worker: int, request: int, begin: int) -> None:
    """Let the pass wait for the readers of the copies just given to `request`, those from `begin` on."""
    record = sim.hosts[worker]
    if record.copyings > 0 and record.shared == 0:
        record.fence = max(record.fence, _readers_end(sim, worker, request, begin))


@compiled
def fence_preempted(sim: Any, worker: int, request: int) -> None:
    """Let the pass wait for the latest store of a request that is preempted in it."""
    record = sim.hosts[worker]
    row = sim.tickets[request].store
    if row != NONE and record.shared == 0:
        record.fence = max(record.fence, sim.copyings[row].end)


@compiled
def is_still(sim: Any, worker: int) -> bool:
    """Whether nothing of the host can change the passes that follow, but the ends of copies; see `ends_matter`."""
    record = sim.hosts[worker]
    fenced = record.fence != sim.run[0].now
    if fenced or record.retrying != 0 or sim.queues[worker, PREPARED].head != NONE:
        return False
    if record.shared == 0:
        return not _reads_loose_copies(sim, worker)
    # Being looked at counts as use, in each pass, among what others use.
    waits = record.awake > 0 or sim.queues[worker, WAITING].head != NONE
    looked_at = waits and sim.workers[worker].running < config_of(sim, worker).max_sequences
    return bool(sim.hosts[record.pool].users == 1 or not looked_at)


@compiled
def _reads_loose_copies(sim: Any, worker: int) -> bool:
    """Whether a store of `worker` reads a G1 copy that nobody holds, and that growth may take."""
    pool = host.pool_of(sim, worker)
    row = int(sim.queues[worker, STORES].head)
    while row != NONE:
        place = int(sim.copyings[row].first)
        while place != NONE:
            if sim.copies[worker, natural(pool.sources[natural(place)])].refs <= 0:
                return True
            place = int(pool.links[natural(place)])
        row = int(sim.copyings[row].next)
    return False


@compiled
def ends_matter(sim: Any, worker: int) -> bool:
    """Whether the end of a copy matters before the end of the macro-step that `worker` is in.

    It may let in a request that waits, and what a store has kept takes its place among the idle blocks at the end of
    the pass in which the store ended.
    """
    if sim.workers[worker].macro <= 1:
        return False
    if sim.queues[worker, RETURNING].head != NONE:
        return True
    if sim.queues[worker, ASIDE].head != NONE or sim.queues[worker, PENDING].head != NONE:
        return True
    full = sim.workers[worker].running >= config_of(sim, worker).max_sequences
    return bool(not full and sim.queues[worker, WAITING].head != NONE)


# Who is looked at --------------------------------------------------------------------------------------------------


@compiled
def _wake(sim: Any, worker: int) -> None:
    record = sim.hosts[worker]
    record.wakenings += 1
    record.awake = 0
    request = sim.queues[worker, ASIDE].head
    while request != NONE:
        record.awake += 1
        request = sim.live[request].next
    sim.workers[worker].tried = NONE
    record.stirred = 1


@compiled
def some_awake(sim: Any, worker: int) -> bool:
    """Whether a request that was set aside is to be looked at."""
    return bool(sim.hosts[worker].awake > 0)


@compiled
def candidate(sim: Any, worker: int) -> int:
    """Return whom admission looks at next, or NONE: who was set aside and is awake, then the head of the queue."""
    record = sim.hosts[worker]
    if record.awake > 0:
        request = int(sim.queues[worker, ASIDE].head)
        while sim.tickets[request].asleep == record.wakenings:
            request = int(sim.live[request].next)
        return request
    return int(sim.queues[worker, WAITING].head)


@compiled
def first_restored(sim: Any, worker: int) -> int:
    """Return the first request set aside that is awake and whose blocks come, or came, from the host, or NONE."""
    record = sim.hosts[worker]
    request = int(sim.queues[worker, ASIDE].head)
    while request != NONE:
        ticket = sim.tickets[request]
        if ticket.restored != NONE and ticket.asleep != record.wakenings:
            return request
        request = int(sim.live[request].next)
    return NONE


@compiled
def leave(sim: Any, worker: int, request: int) -> None:
    """Take a request that waits, set aside or not, out of its queue."""
    record = sim.hosts[worker]
    if queues.remove(sim.queues[worker, ASIDE], sim.live, request):
        if sim.tickets[request].asleep != record.wakenings:
            record.awake -= 1
    else:
        queues.remove(sim.queues[worker, WAITING], sim.live, request)


@compiled
def _set_aside(sim: Any, worker: int, request: int) -> None:
    """Let `request`, the candidate, sleep until a copy ends; one that was set aside before keeps its place."""
    record = sim.hosts[worker]
    if record.awake > 0:
        record.awake -= 1
    else:
        queues.take(sim.queues[worker, WAITING], sim.live)
        queues.append(sim.queues[worker, ASIDE], sim.live, request)
    sim.tickets[request].asleep = record.wakenings


@compiled
def defer(sim: Any, worker: int, request: int) -> None:
    """Set the candidate aside because of something that is on its way."""
    sim.hosts[worker].deferrals += 1
    _set_aside(sim, worker, request)


# Loads -------------------------------------------------------------------------------------------------------------


@compiled
def awaits(sim: Any, worker: int, request: int) -> bool:
    """Whether a store or the load of `request` itself is under way."""
    ticket = sim.tickets[request]
    return bool(ticket.store != NONE or ticket.load != NONE)


@compiled
def look_up(sim: Any, worker: int, request: int, cached: int) -> int:
    """Return how many prompt blocks behind the first `cached` can be loaded, or `DEFERRED` when one is on its way.

    Every prompt block of the request that is in the host counts as used.
    """
    static = sim.static[request]
    stride = config_of(sim, worker).key_stride
    pool = host.pool_of(sim, worker)
    present, on_its_way, loads = 0, False, False
    for run in range(static.key_begin, static.key_end):
        keys = sim.keys[run]
        block = max(cached, keys.begin)
        wanted = keys.begin + keys.count - block
        if wanted > 0:
            key = static.space + keys.first + (block - keys.begin) * stride
            number, pending, pinned = host.find(pool, key, stride, wanted)
            present += number
            on_its_way = on_its_way or pending
            loads = loads or pinned
            if number < wanted:
                break
    if loads and not on_its_way:
        # What another worker of the pool loads is there for this one, too.
        on_its_way = _loads_any(sim, worker, request, cached, cached + present)
    _use_all(sim, worker, request)
    return DEFERRED if on_its_way else present


@compiled
def _key_of(sim: Any, worker: int, request: int, block: int) -> int:
    """Return the key of a full block of the prompt of `request`."""
    static = sim.static[request]
    run = int(static.key_begin)
    while block >= sim.keys[run].begin + sim.keys[run].count:
        run += 1
    keys = sim.keys[run]
    return int(static.space + keys.first + (block - keys.begin) * config_of(sim, worker).key_stride)


@compiled
def _loads_any(sim: Any, worker: int, request: int, begin: int, end: int) -> bool:
    """Whether `worker` loads one of the prompt blocks `begin` to `end` of `request` for somebody."""
    row = int(sim.queues[sim.hosts[worker].pool, LOADS].head)
    while row != NONE:
        copying = sim.copyings[row]
        first, last = int(max(begin, copying.first)), int(min(end, copying.first + copying.blocks))
        if copying.worker == worker and first < last:
            # Blocks are equal only where all before them are, so the first tells of all.
            other = int(copying.request)
            if _key_of(sim, worker, request, first) == _key_of(sim, worker, other, first):
                return True
        row = int(copying.next)
    return False


@compiled
def _promised(sim: Any, worker: int) -> int:
    """Return the G1 blocks that running prefills and restored requests still need for the tokens that they know."""
    size = config_of(sim, worker).block_size
    promised = 0
    for i in range(sim.workers[worker].running):
        request = sim.running[worker, i]
        if sim.live[request].computed < sim.static[request].input:
            promised += (known(sim, request) + size - 1) // size - sim.live[request].table_len
    request = sim.queues[worker, ASIDE].head
    while request != NONE:
        if sim.tickets[request].restored != NONE:
            promised += (known(sim, request) + size - 1) // size - sim.live[request].table_len
        request = sim.live[request].next
    return int(promised)


@compiled
def start_load(sim: Any, worker: int, request: int, hits: int, active: int, number: int) -> bool:
    """Reserve G1 blocks for the candidate and queue a load of the `number` blocks behind its `hits` resident ones.

    The copies of those stand in ``sim.found``; `active` of them are referenced. False, and nothing is done, when there
    is no room for it beside what is promised to others.
    """
    size = config_of(sim, worker).block_size
    needed = (known(sim, request) + size - 1) // size - active
    if needed > blocks.available(sim, worker) - _promised(sim, worker):
        return False
    live, ticket, record = sim.live[request], sim.tickets[request], sim.hosts[worker]
    tables.open_with_prefix(sim, worker, request, hits)
    router.note_taking(sim, worker, number)
    blocks.allocate(blocks.pool_of(sim, worker), sim.arena, live.table_begin + hits, number, blocks.RESERVE_LOAD)
    live.table_len = hits + number
    row = _new_copying(sim, worker, request)
    sim.copyings[row].first = hits
    sim.copyings[row].blocks = number
    # It has just been looked up, so it is `recent`, and what is pinned is its own.
    pool = host.pool_of(sim, worker)
    pool.record[0].leading = min(pool.record[0].leading, hits)
    _pin_all(sim, row)
    ticket.load = row
    may_start = int(sim.run[0].now)
    if not is_shared(sim, worker):
        may_start = max(may_start, _readers_end(sim, worker, request, hits))
    _submit(sim, row, H2D, may_start)
    ticket.restored = hits
    record.hits += 1
    record.loads += 1
    advance(REQUEST_TABLE, sim.request_state, request, _LOAD)
    _set_aside(sim, worker, request)
    return True


@compiled
def _pin_all(sim: Any, row: int) -> None:
    copying = sim.copyings[row]
    worker = int(copying.worker)
    static = sim.static[copying.request]
    stride = config_of(sim, worker).key_stride
    pool = host.pool_of(sim, worker)
    for run in range(static.key_begin, static.key_end):
        keys = sim.keys[run]
        block = max(copying.first, keys.begin)
        number = min(copying.first + copying.blocks, keys.begin + keys.count) - block
        if number > 0:
            host.pin(pool, static.space + keys.first + (block - keys.begin) * stride, stride, number)


@compiled
def drop_load(sim: Any, worker: int, request: int) -> None:
    """Give up the load of a request that is canceled, if one is under way; a link of a private pool stays taken."""
    row = int(sim.tickets[request].load)
    if row == NONE:
        return
    if is_shared(sim, worker):
        links.drop(sim, int(sim.hosts[worker].pool), row, H2D, int(sim.run[0].now))
    else:
        queues.remove(sim.queues[worker, LOADS], sim.copyings, row)
    advance(COPYING_TABLE, sim.copying_state, row, _DROP)
    _unpin_all(sim, row)
    sim.tickets[request].load = NONE
    _give_back(sim, row)
    _wake(sim, worker)
