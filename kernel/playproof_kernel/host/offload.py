"""Host memory behind vLLM workers' G1 pools: stores, loads, their links, and the requests that wait for them.

Full prompt blocks are written through. A **store** is prepared while a pass is scheduled, for the blocks that one
request completed and that the host lacks, and submitted at the pass's end. A **load** brings the blocks behind a
request's G1 prefix back into G1 blocks reserved for it, before it is admitted.

A worker has a pool of its own, with a link in each direction, first in, first out; or the deployment has one pool that
its workers share, and with it the rate of the transfers (`host_links`).

What becomes of a G1 block that a store still reads differs. Before a private pool it may be given to another request,
but the pass that writes it does not begin to compute before that store has ended: the pass's fence. Before a shared
pool it is not known when that will be, so the store keeps the block: it has a reference of its own until it has ended,
and with it the pass during which it does.

A request is *deferred* for what is on its way. Deferred requests keep their order, come before the waiting queue, and
are looked at again once any transfer of the pool has ended. A busy worker hears of such ends at the end of its pass.
"""

from __future__ import annotations

from playproof_spec.machines import RequestEvent, TransferEvent
from playproof_spec.units import HORIZON_NS

from playproof_kernel.ground import queues
from playproof_kernel.ground.arrays import (
    D2H,
    DEFERRED,
    ENDED_TRANSFERS,
    H2D,
    LOADS,
    NONE,
    PENDING,
    PREPARED,
    RETURNING,
    STORES,
    WAITING,
    Sim,
)
from playproof_kernel.ground.jit import ZERO, compiled, constant, natural
from playproof_kernel.ground.key_groups import GROUP_BITS
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.ground.timers import sooner
from playproof_kernel.ground.transitions import HOST_TRANSFER_TABLE, REQUEST_TABLE, advance, renew
from playproof_kernel.host import host_links, host_pool
from playproof_kernel.memory import block_pool, block_tables, cache_events, prompt_keys

_SUBMIT, _START = constant(TransferEvent.SUBMIT), constant(TransferEvent.START)
_FINISH, _DROP = constant(TransferEvent.FINISH), constant(TransferEvent.DROP)
_LOAD = constant(RequestEvent.LOAD)

ON_ITS_WAY = constant(-1)
# Behind every block.
_END = constant(1 << 31)


@compiled
def is_used(sim: Sim, worker: int) -> bool:
    """Whether `worker` has host memory."""
    return bool(config_of(sim, worker).host != 0)


@compiled
def is_shared(sim: Sim, worker: int) -> bool:
    """Whether `worker`, which has host memory, shares it."""
    return bool(sim.hosts[worker].shared != 0)


# Transfers ------------------------------------------------------------------------------------------------------------


@compiled
def _new_transfer(sim: Sim, worker: int, request: int) -> int:
    record = sim.hosts[worker]
    if record.transfers_spare != NONE:
        row = int(record.transfers_spare)
        record.transfers_spare = sim.host_transfers[row].next
    else:
        row = int(worker * sim.host_key_groups.shape[1] + record.transfers_taken)
        record.transfers_taken += 1
    record.host_transfers += 1
    renew(HOST_TRANSFER_TABLE, sim.host_transfer_state, row)
    transfer = sim.host_transfers[row]
    transfer.worker = worker
    transfer.request = request
    transfer.end = NONE
    transfer.blocks = 0
    transfer.first = NONE
    return row


@compiled
def _give_back(sim: Sim, row: int) -> None:
    record = sim.hosts[sim.host_transfers[row].worker]
    record.host_transfers -= 1
    sim.host_transfers[row].next = record.transfers_spare
    record.transfers_spare = row


@compiled
def _submit(sim: Sim, row: int, direction: int, may_start: int) -> None:
    """Let a transfer begin as soon as its link or its pool lets it, not before `may_start` and the latency."""
    transfer = sim.host_transfers[row]
    worker = int(transfer.worker)
    record = sim.hosts[worker]
    record.moved_blocks[direction] += transfer.blocks
    advance(HOST_TRANSFER_TABLE, sim.host_transfer_state, row, _SUBMIT)
    ready = may_start + record.latency
    if record.shared != 0:
        host_links.submit(sim, int(record.pool), row, direction, ready)
        return
    duration, rate = 0, record.bytes_per_second[direction]
    if rate > 0.0:
        duration = round(min(transfer.blocks * record.block_bytes / rate * 1e9, float(HORIZON_NS)))
    record.link_free[direction] = min(max(record.link_free[direction], ready) + duration, HORIZON_NS)
    record.busy[direction] += duration
    transfer.end = record.link_free[direction]
    record.due = sooner(record.due, int(transfer.end))
    queues.append(sim.queues[worker, STORES + direction], sim.host_transfers, row)


@compiled
def next_end(sim: Sim, worker: int) -> int:
    """Return the instant of the next event of the links to the pool of `worker`, or NONE.

    That is the end of a transfer, or, in a shared pool, also the first byte of one.
    """
    pool = sim.hosts[worker].pool
    return NONE if pool == NONE else int(sim.hosts[pool].due)


@compiled
def _find_due(sim: Sim, worker: int) -> None:
    """Find out anew when the next transfer of a private pool ends."""
    store, load = sim.queues[worker, STORES].head, sim.queues[worker, LOADS].head
    end = NONE if store == NONE else int(sim.host_transfers[store].end)
    sim.hosts[worker].due = end if load == NONE else sooner(end, int(sim.host_transfers[load].end))


@compiled
def end_transfers(sim: Sim, worker: int, now: int) -> bool:
    """End every transfer of the pool of `worker` that is due at `now`, stores before loads of one instant.

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
        is_store = stores.head != NONE and sim.host_transfers[stores.head].end == end
        row = queues.take(stores if is_store else loads, sim.host_transfers)
        _find_due(sim, worker)
        advance(HOST_TRANSFER_TABLE, sim.host_transfer_state, row, _START)
        advance(HOST_TRANSFER_TABLE, sim.host_transfer_state, row, _FINISH)
        _end(sim, row)
        any_ended = True
    if any_ended:
        _wake(sim, worker)
    return any_ended


@compiled
def _end_shared(sim: Sim, pool: int, now: int) -> bool:
    ended = sim.queues[pool, ENDED_TRANSFERS]
    any_ended = False
    while sim.hosts[pool].due != NONE and sim.hosts[pool].due <= now:
        host_links.step(sim, pool, int(sim.hosts[pool].due))
        while ended.head != NONE:
            _end(sim, queues.take(ended, sim.host_transfers))
            any_ended = True
    if any_ended:
        for worker in range(sim.hosts.shape[0]):
            if sim.hosts[worker].pool == pool:
                _wake(sim, worker)
    return any_ended


@compiled
def _end(sim: Sim, row: int) -> None:
    """A transfer is at its end: what it brought is there, and what it read is free of it."""
    worker = int(sim.host_transfers[row].worker)
    if sim.tickets[sim.host_transfers[row].request].load == row:
        _end_load(sim, row)
        _give_back(sim, row)
    elif _end_store(sim, row):
        _give_back(sim, row)
    if sim.workers[worker].pass_end == NONE:
        # Else it tells at the end of its pass: what that has done so far is not known to others.
        cache_events.publish(sim, worker)


@compiled
def _end_store(sim: Sim, row: int) -> bool:
    """End a store; False when it still keeps its G1 frames, linked by ``sim.kept`` from ``transfer.first`` on."""
    transfer = sim.host_transfers[row]
    worker = int(transfer.worker)
    keeps = is_shared(sim, worker)
    pool = host_pool.pool_of(sim, worker)
    first = int(transfer.first)
    if keeps:
        _keep(sim, worker, row)
    sources = _sources(sim, worker, ZERO, ZERO)
    while first != NONE:
        first, evicted = host_pool.stored(pool, first, sources)
        sim.workers[worker].evicted_reads -= evicted
    # The request may be gone, and another in its place.
    if sim.tickets[transfer.request].store == row:
        sim.tickets[transfer.request].store = NONE
    if not keeps:
        sim.workers[worker].capacity_epoch += 1  # a destination may have waited for it
        return True
    transfer.end = sim.run[0].now
    queues.append(sim.queues[worker, RETURNING], sim.host_transfers, row)
    if sim.workers[worker].pass_end == NONE:
        return_frames(sim, worker, int(transfer.end))
    return False


@compiled
def _keep(sim: Sim, worker: int, row: int) -> None:
    """Chain the G1 frames that a store has read, from the last block to the first, from ``transfer.first`` on."""
    transfer = sim.host_transfers[row]
    pool = host_pool.pool_of(sim, worker)
    kept = sim.kept[worker]
    place, last = int(transfer.first), NONE
    while place != NONE:
        frame = int(pool.details[natural(place)].source)
        kept[natural(frame)] = NONE
        if last == NONE:
            transfer.first = frame
        else:
            kept[natural(last)] = frame
        last = frame
        place = int(pool.details[natural(place)].link)


@compiled
def return_frames(sim: Sim, worker: int, until: int) -> None:
    """Let go of the G1 frames that stores which ended by `until` have kept, the last block of each store first."""
    returning = sim.queues[worker, RETURNING]
    pool = block_pool.pool_of(sim, worker)
    while returning.head != NONE and sim.host_transfers[returning.head].end <= until:
        row = queues.take(returning, sim.host_transfers)
        frame = int(sim.host_transfers[row].first)
        for i in range(sim.host_transfers[row].blocks - 1, -1, -1):
            sim.found[i] = frame
            frame = int(sim.kept[worker, frame])
        block_pool.free_blocks(pool, sim.found, ZERO, int(sim.host_transfers[row].blocks))
        sim.workers[worker].capacity_epoch += 1
        _give_back(sim, row)


@compiled
def _end_load(sim: Sim, row: int) -> None:
    transfer = sim.host_transfers[row]
    request, worker = int(transfer.request), int(transfer.worker)
    _unpin_all(sim, row)
    live = sim.live[request]
    block_tables.cache_loaded(sim, worker, request)
    live.filled = live.table_len
    sim.tickets[request].load = NONE


@compiled
def _unpin_all(sim: Sim, row: int) -> None:
    transfer = sim.host_transfers[row]
    worker = int(transfer.worker)
    static = sim.static[transfer.request]
    stride = config_of(sim, worker).key_stride
    pool = host_pool.pool_of(sim, worker)
    for run in range(static.key_end - 1, static.key_begin - 1, -1):
        _, number, key = prompt_keys.part_of(
            sim.keys[run], static, stride, transfer.first, transfer.first + transfer.blocks
        )
        if number > 0:
            host_pool.unpin(pool, key, stride, number)


@compiled
def at_pass_end(sim: Sim, worker: int, now: int) -> None:
    """Hear of transfers that ended during the pass, and submit the stores that it prepared."""
    end_transfers(sim, worker, now)
    _store_behind_fence(sim, worker)
    prepared = sim.queues[worker, PREPARED]
    if prepared.head == NONE:
        return
    while prepared.head != NONE:
        _submit(sim, queues.take(prepared, sim.host_transfers), D2H, now)
    end_transfers(sim, worker, now)


@compiled
def _store_behind_fence(sim: Sim, worker: int) -> None:
    """At a pass's end, prepare stores of what requests that end computed behind its fence: no later pass will do that.

    What the fence waited for has ended by now.
    """
    if sim.hosts[worker].retrying == 0:
        return
    for i in range(sim.workers[worker].running):
        request = int(sim.running[worker, i])
        static, live, ticket = sim.static[request], sim.live[request], sim.tickets[request]
        if ticket.fenced == 0:
            continue
        ticket.fenced = 0
        if ticket.canceled == 0 and live.computed == known(sim, request) and live.generated + 1 >= static.limit:
            _prepare_store(sim, worker, request, int(static.input // config_of(sim, worker).block_size))


# Stores ------------------------------------------------------------------------------------------------------------


@compiled
def begin_pass(sim: Sim, worker: int) -> None:
    """Nothing holds the pass to be scheduled back yet."""
    record = sim.hosts[worker]
    record.fence = sim.run[0].now
    record.retrying = 0


@compiled
def prepare_stores(sim: Sim, worker: int, scheduled: int) -> None:
    """Prepare stores for the first `scheduled` of the running requests, those of the pass."""
    for i in range(scheduled):
        request = int(sim.running[worker, i])
        static, live = sim.static[request], sim.live[request]
        end = min(live.computed, static.input) // config_of(sim, worker).block_size
        if end > sim.tickets[request].cursor:
            _prepare_store(sim, worker, request, end)


@compiled
def _prepare_store(sim: Sim, worker: int, request: int, end: int) -> None:
    """Prepare a store of what the host lacks of the blocks of `request` from its cursor to `end`."""
    record, ticket = sim.hosts[worker], sim.tickets[request]
    pool = host_pool.pool_of(sim, worker)
    begin = int(ticket.cursor)
    missing, kept, is_read = _examine(sim, worker, request, begin, end)
    if missing == 0:
        ticket.cursor = end
        return
    if is_read:
        # A block written in this pass, behind the fence, is copied another time.
        record.retrying = 1
        ticket.fenced = 1
        return
    short = missing - (pool.record[0].capacity - pool.record[0].used)
    if short > pool.record[0].older - kept:
        _settle(sim, worker)  # its own blocks before the cohort may have to go
    if short > pool.record[0].idle - kept:
        record.retrying = 1
        record.retries += 1
        return
    static, live = sim.static[request], sim.live[request]
    stride = config_of(sim, worker).key_stride
    if short > 0:
        # Its other blocks do not go. All blocks of the prompt are used below, in whatever order they stand.
        if kept > 0:
            _use(sim, worker, request, begin, end, _END)
        host_pool.evict(pool, short)
    row = _new_transfer(sim, worker, request)
    for run in range(static.key_begin, static.key_end):
        block, number, key = prompt_keys.part_of(sim.keys[run], static, stride, begin, end)
        if number > 0:
            sources = _sources(sim, worker, int(live.table_begin + block), number)
            host_pool.store(pool, sim.host_transfers[row], key, stride, number, sources, is_shared(sim, worker))
    queues.append(sim.queues[worker, PREPARED], sim.host_transfers, row)
    record.stores += 1
    ticket.store = row
    ticket.cursor = end
    _use_all(sim, worker, request)


@compiled
def _sources(sim: Sim, worker: int, entry: int, number: int) -> host_pool.Sources:
    """Return the `number` G1 frames in the arena from `entry` on."""
    return host_pool.Sources(
        sim.arena[entry : entry + number],
        sim.addresses[worker],
        sim.read_addresses[worker],
        sim.block_state[worker],
        sim.frames[worker],
    )


@compiled
def _examine(sim: Sim, worker: int, request: int, begin: int, end: int) -> tuple[int, int, bool]:
    """Look at the blocks of `request` from `begin` to `end`; returns as `host_pool.examine` does."""
    static, live = sim.static[request], sim.live[request]
    stride = config_of(sim, worker).key_stride
    pool = host_pool.pool_of(sim, worker)
    some_read = sim.workers[worker].evicted_reads > 0
    missing, kept, is_read = 0, 0, False
    for run in range(static.key_begin, static.key_end):
        block, number, key = prompt_keys.part_of(sim.keys[run], static, stride, begin, end)
        if number > 0:
            sources = _sources(sim, worker, int(live.table_begin + block), number)
            more_missing, more_kept, more_read = host_pool.examine(pool, key, stride, number, sources, some_read)
            missing += more_missing
            kept += more_kept
            is_read = is_read or more_read
    return missing, kept, is_read


@compiled
def _use_all(sim: Sim, worker: int, request: int) -> None:
    """Use every prompt block of `request` that is idle in the host, last first.

    A prompt that is computed in chunks is used with each of them. All but the last of these uses show only in the order
    of the request's own blocks, as long as no other request's blocks are used and none of its own are evicted; so they
    are put off until that could matter (`_settle`).
    """
    record = sim.hosts[sim.hosts[worker].pool]
    if record.recent == request:
        if record.newest > record.used_at:
            record.unsettled = 1
    else:
        _settle(sim, worker)
        moved = _use(sim, worker, request, ZERO, _END, _END)
        record.recent = request
        record.older = record.idle - moved
    record.used_at = record.newest


@compiled
def _settle(sim: Sim, worker: int) -> None:
    """Enter in the order of use what was put off: the latest use by `recent`, before what has come into it since."""
    pool = host_pool.pool_of(sim, worker)
    record = pool.record[0]
    if record.unsettled != 0:
        recent, since = int(record.recent), int(record.newest - record.used_at)
        host_pool.reserve(pool, _idle_runs(sim, worker, recent) + since)
        used_at, end = int(record.used_at), int(record.newest)
        _use(sim, worker, recent, ZERO, _END, used_at)
        host_pool.use_again(pool, used_at, end)
    record.unsettled = 0
    record.recent = NONE


@compiled
def _idle_runs(sim: Sim, worker: int, request: int) -> int:
    """Return how many idle runs of the order a use of the prompt of `request` makes at most: one for each group."""
    static = sim.static[request]
    stride = config_of(sim, worker).key_stride
    number = 0
    for run in range(static.key_begin, static.key_end):
        number += ((sim.keys[run].count * stride) >> GROUP_BITS) + 2
    return int(number)


@compiled
def _use(sim: Sim, worker: int, request: int, begin: int, end: int, before: int) -> int:
    """Use the idle ones of the prompt blocks `begin` to `end` of `request`, last first; returns how many there were.

    Only those that stand before `before` in the order of use, if that is not behind it.
    """
    static = sim.static[request]
    stride = config_of(sim, worker).key_stride
    pool = host_pool.pool_of(sim, worker)
    if before == _END:
        host_pool.reserve(pool, _idle_runs(sim, worker, request))
    moved = 0
    for run in range(static.key_end - 1, static.key_begin - 1, -1):
        _, number, key = prompt_keys.part_of(sim.keys[run], static, stride, begin, end)
        if number > 0:
            moved += host_pool.use(pool, key, stride, number, before)
    return moved


@compiled
def forget(sim: Sim, request: int) -> None:
    """Forget a request whose slot is taken by another one."""
    for worker in range(sim.hosts.shape[0]):
        if sim.hosts[worker].recent == request:
            _settle(sim, worker)


# Fences ------------------------------------------------------------------------------------------------------------


@compiled
def _readers_end(sim: Sim, worker: int, request: int, begin: int) -> int:
    """Return when the last store ends that reads at the address of a frame that `request` was given, or NONE.

    These frames are those from `begin` on in its table.
    """
    live = sim.live[request]
    end = NONE
    if sim.workers[worker].evicted_reads == 0:
        return int(end)
    for entry in range(live.table_begin + begin, live.table_begin + live.table_len):
        address = block_pool.address_of(sim.addresses[worker], int(sim.arena[entry]))
        if sim.read_addresses[worker, address] != 0:
            end = max(end, _end_of_reading(sim, worker, address))
    return int(end)


@compiled
def _end_of_reading(sim: Sim, worker: int, address: int) -> int:
    """Return when the store that reads an address ends, or NONE while it has not been submitted."""
    pool = host_pool.pool_of(sim, worker)
    row = int(sim.queues[worker, STORES].head)
    while row != NONE:
        place = int(sim.host_transfers[row].first)
        while place != NONE:
            if pool.details[natural(place)].address == address:
                # An earlier reader of the address had ended before this one could begin.
                return int(sim.host_transfers[row].end)
            place = int(pool.details[natural(place)].link)
        row = int(sim.host_transfers[row].next)
    return NONE


@compiled
def is_read(sim: Sim, worker: int, request: int, begin: int) -> bool:
    """Whether a store still reads one of the frames just given to `request`, those from `begin` on."""
    return bool(_readers_end(sim, worker, request, begin) != NONE)


@compiled
def fence(sim: Sim, worker: int, request: int, begin: int) -> None:
    """Let the pass wait for the readers of the frames just given to `request`, those from `begin` on."""
    record = sim.hosts[worker]
    record.fence = max(record.fence, _readers_end(sim, worker, request, begin))


@compiled
def fence_preempted(sim: Sim, worker: int, request: int) -> None:
    """Let the pass wait for the latest store of a request that is preempted in it."""
    record = sim.hosts[worker]
    row = sim.tickets[request].store
    if row != NONE and record.shared == 0:
        record.fence = max(record.fence, sim.host_transfers[row].end)


@compiled
def is_still(sim: Sim, worker: int) -> bool:
    """Whether nothing of the host can change the passes that follow, but the ends of transfers; see `ends_matter`."""
    record = sim.hosts[worker]
    fenced = record.fence != sim.run[0].now
    if fenced or record.retrying != 0 or sim.queues[worker, PREPARED].head != NONE:
        return False
    if record.shared == 0:
        return not _reads_loose_frames(sim, worker)
    # Being looked at counts as use, in each pass, among what others use.
    return bool(sim.hosts[record.pool].users == 1 or not _looks_at_some(sim, worker))


@compiled
def _looks_at_some(sim: Sim, worker: int) -> bool:
    """Whether passes of `worker` look at a request that waits, and would admit it if there were room."""
    waits = sim.hosts[worker].awake > 0 or sim.queues[worker, WAITING].head != NONE
    return bool(waits and sim.workers[worker].running < config_of(sim, worker).max_sequences)


@compiled
def eviction_matters(sim: Sim, worker: int) -> bool:
    """Whether the eviction of a G1 block can change the passes that follow.

    A candidate without room is deferred once its prefix in G1 is so short that a block behind it is on its way.
    """
    return bool(sim.hosts[worker].host_transfers > 0 and _looks_at_some(sim, worker))


@compiled
def _reads_loose_frames(sim: Sim, worker: int) -> bool:
    """Whether a store of `worker` reads a G1 block that may be without a holder, so that growth may take it."""
    pool = host_pool.pool_of(sim, worker)
    addresses = sim.addresses[worker]
    row = int(sim.queues[worker, STORES].head)
    while row != NONE:
        request = int(sim.host_transfers[row].request)
        place = int(sim.host_transfers[row].first)
        if sim.tickets[request].store == row and sim.live[request].table_len > 0:
            place = NONE  # all stand in its table: once it lets them go, it has none while this store lasts
        while place != NONE:
            detail = pool.details[natural(place)]
            frame = natural(detail.source)
            if sim.frames[worker, frame].refs <= 0 or block_pool.address_of(addresses, frame) != detail.address:
                return True
            place = int(pool.details[natural(place)].link)
        row = int(sim.host_transfers[row].next)
    return False


@compiled
def ends_matter(sim: Sim, worker: int) -> bool:
    """Whether the end of a transfer matters before the end of the macro-step that `worker` is in.

    It may let in a request that waits, and what a store has kept takes its place among the idle blocks at the end of
    the pass in which the store ended.
    """
    if sim.workers[worker].macro <= 1:
        return False
    if sim.queues[worker, RETURNING].head != NONE:
        return True
    if sim.queues[worker, DEFERRED].head != NONE or sim.queues[worker, PENDING].head != NONE:
        return True
    full = sim.workers[worker].running >= config_of(sim, worker).max_sequences
    return bool(not full and sim.queues[worker, WAITING].head != NONE)


# Who is looked at --------------------------------------------------------------------------------------------------


@compiled
def _wake(sim: Sim, worker: int) -> None:
    record = sim.hosts[worker]
    record.wakenings += 1
    record.awake = 0
    request = sim.queues[worker, DEFERRED].head
    while request != NONE:
        record.awake += 1
        request = sim.live[request].next
    sim.workers[worker].tried = NONE
    record.woken = 1


@compiled
def some_awake(sim: Sim, worker: int) -> bool:
    """Whether a request that was deferred is to be looked at."""
    return bool(sim.hosts[worker].awake > 0)


@compiled
def candidate(sim: Sim, worker: int) -> int:
    """Return whom admission looks at next, or NONE: who was deferred and is awake, then the head of the queue."""
    record = sim.hosts[worker]
    if record.awake > 0:
        request = int(sim.queues[worker, DEFERRED].head)
        while sim.tickets[request].asleep == record.wakenings:
            request = int(sim.live[request].next)
        return request
    return int(sim.queues[worker, WAITING].head)


@compiled
def first_restored(sim: Sim, worker: int) -> int:
    """Return the first deferred request that is awake and whose blocks come, or came, from the host, or NONE."""
    record = sim.hosts[worker]
    request = int(sim.queues[worker, DEFERRED].head)
    while request != NONE:
        ticket = sim.tickets[request]
        if ticket.restored != NONE and ticket.asleep != record.wakenings:
            return request
        request = int(sim.live[request].next)
    return NONE


@compiled
def leave(sim: Sim, worker: int, request: int) -> None:
    """Take a request that waits, deferred or not, out of its queue."""
    record = sim.hosts[worker]
    if queues.remove(sim.queues[worker, DEFERRED], sim.live, request):
        if sim.tickets[request].asleep != record.wakenings:
            record.awake -= 1
    else:
        queues.remove(sim.queues[worker, WAITING], sim.live, request)


@compiled
def _put_off(sim: Sim, worker: int, request: int) -> None:
    """Let `request`, the candidate, sleep until a transfer ends; one that was deferred before keeps its place."""
    record = sim.hosts[worker]
    if record.awake > 0:
        record.awake -= 1
    else:
        queues.take(sim.queues[worker, WAITING], sim.live)
        queues.append(sim.queues[worker, DEFERRED], sim.live, request)
    sim.tickets[request].asleep = record.wakenings


@compiled
def defer(sim: Sim, worker: int, request: int) -> None:
    """Defer the candidate because of something that is on its way."""
    sim.hosts[worker].deferrals += 1
    _put_off(sim, worker, request)


# Loads -------------------------------------------------------------------------------------------------------------


@compiled
def awaits(sim: Sim, worker: int, request: int) -> bool:
    """Whether a store or the load of `request` itself is under way."""
    ticket = sim.tickets[request]
    return bool(ticket.store != NONE or ticket.load != NONE)


@compiled
def look_up(sim: Sim, worker: int, request: int, cached: int) -> int:
    """Return how many prompt blocks behind the first `cached` can be loaded, or `ON_ITS_WAY` when one is.

    Every prompt block of the request that is in the host counts as used.
    """
    static = sim.static[request]
    stride = config_of(sim, worker).key_stride
    pool = host_pool.pool_of(sim, worker)
    present, on_its_way, loads = 0, False, False
    for run in range(static.key_begin, static.key_end):
        _, wanted, key = prompt_keys.part_of(sim.keys[run], static, stride, cached, _END)
        if wanted > 0:
            number, pending, pinned = host_pool.find(pool, key, stride, wanted)
            present += number
            on_its_way = on_its_way or pending
            loads = loads or pinned
            if number < wanted:
                break
    if loads and not on_its_way:
        # What another worker of the pool loads is there for this one, too.
        on_its_way = _loads_any(sim, worker, request, cached, cached + present)
    _use_all(sim, worker, request)
    return ON_ITS_WAY if on_its_way else present


@compiled
def _loads_any(sim: Sim, worker: int, request: int, begin: int, end: int) -> bool:
    """Whether `worker` loads one of the prompt blocks `begin` to `end` of `request` for somebody."""
    stride = config_of(sim, worker).key_stride
    row = int(sim.queues[sim.hosts[worker].pool, LOADS].head)
    while row != NONE:
        transfer = sim.host_transfers[row]
        first, last = int(max(begin, transfer.first)), int(min(end, transfer.first + transfer.blocks))
        if transfer.worker == worker and first < last:
            # Blocks are equal only where all before them are, so the first tells of all.
            static, other = sim.static[request], sim.static[transfer.request]
            if prompt_keys.key_at(sim.keys, static, static.space, stride, first) == prompt_keys.key_at(
                sim.keys, other, other.space, stride, first
            ):
                return True
        row = int(transfer.next)
    return False


@compiled
def _promised(sim: Sim, worker: int) -> int:
    """Return the G1 blocks that running prefills and restored requests still need for the tokens that they know."""
    size = config_of(sim, worker).block_size
    promised = 0
    for i in range(sim.workers[worker].running):
        request = sim.running[worker, i]
        if sim.live[request].computed < sim.static[request].input:
            promised += (known(sim, request) + size - 1) // size - sim.live[request].table_len
    request = sim.queues[worker, DEFERRED].head
    while request != NONE:
        if sim.tickets[request].restored != NONE:
            promised += (known(sim, request) + size - 1) // size - sim.live[request].table_len
        request = sim.live[request].next
    return int(promised)


@compiled
def start_load(sim: Sim, worker: int, request: int, hits: int, number: int) -> bool:
    """Reserve G1 blocks for the candidate and queue a load of the `number` blocks behind its `hits` resident ones.

    The frames of those stand in ``sim.found``. False, and nothing is done, when there is no room for it beside what is
    promised to others.
    """
    size = config_of(sim, worker).block_size
    if not block_tables.fits(sim, worker, (known(sim, request) + size - 1) // size, hits, _promised(sim, worker)):
        return False
    live, ticket, record = sim.live[request], sim.tickets[request], sim.hosts[worker]
    block_tables.open_with_prefix(sim, worker, request, hits)
    cache_events.note_taking(sim, worker, number)
    block_pool.get_new_blocks(
        block_pool.pool_of(sim, worker), sim.arena, live.table_begin + hits, number, block_pool.RESERVE_LOAD
    )
    live.table_len = hits + number
    row = _new_transfer(sim, worker, request)
    sim.host_transfers[row].first = hits
    sim.host_transfers[row].blocks = number
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
    _put_off(sim, worker, request)
    return True


@compiled
def _pin_all(sim: Sim, row: int) -> None:
    transfer = sim.host_transfers[row]
    worker = int(transfer.worker)
    static = sim.static[transfer.request]
    stride = config_of(sim, worker).key_stride
    pool = host_pool.pool_of(sim, worker)
    for run in range(static.key_begin, static.key_end):
        _, number, key = prompt_keys.part_of(
            sim.keys[run], static, stride, transfer.first, transfer.first + transfer.blocks
        )
        if number > 0:
            host_pool.pin(pool, key, stride, number)


@compiled
def drop_load(sim: Sim, worker: int, request: int) -> None:
    """Give up the load of a request that is canceled, if one is under way; a link of a private pool stays taken."""
    row = int(sim.tickets[request].load)
    if row == NONE:
        return
    if is_shared(sim, worker):
        host_links.drop(sim, int(sim.hosts[worker].pool), row, H2D, int(sim.run[0].now))
    else:
        queues.remove(sim.queues[worker, LOADS], sim.host_transfers, row)
        _find_due(sim, worker)
    advance(HOST_TRANSFER_TABLE, sim.host_transfer_state, row, _DROP)
    _unpin_all(sim, row)
    sim.tickets[request].load = NONE
    _give_back(sim, row)
    _wake(sim, worker)
