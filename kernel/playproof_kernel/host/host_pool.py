"""A pool in host memory (G2), one worker's or shared by several: which blocks are there or on their way, who is
pinned, and who was used last.

A block is absent, pending while a store writes it, resident, or pinned while a load reads it. Resident blocks that are
not pinned are idle; they have an order of use, and the oldest are evicted for new ones. The functions take a
`HostPool`, the views of one pool's arrays, and a run of keys: from `key` in steps of `stride`, `number` of them.

**Pages.** A block is known by the place of its key in the index (`pages`), and what is known of it stands in arrays by
place. What a step asks of most blocks, whether they are there, pending or idle, each page has as well, a bit for each
of its places; so a run of keys is looked up and used a page at a time, and only blocks whose state changes are touched
one by one. Pages without blocks are given back.

**Order.** Idle blocks stand in `order`, from the oldest to the newest, as stretches: those of a page that were used in
one go, of which the one with the highest key is the oldest. A page knows its latest stretch, and each stretch the
page's one before it. Blocks that are used again, pinned or evicted leave their stretches, and a stretch without blocks
is passed over. When the end of the order is reached, such stretches are squeezed out; it reaches twice as far as there
are stretches then, so that this costs each use a fixed share of a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState, HostBlockEvent

from playproof_kernel.ground import pages
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant, natural
from playproof_kernel.ground.pages import PAGE, PAGE_BITS
from playproof_kernel.ground.transitions import BLOCK_TABLE, HOST_BLOCK_TABLE, advance
from playproof_kernel.memory import cache_events
from playproof_kernel.memory.block_pool import slot_of

_PREPARE_STORE, _STORE_DONE = constant(HostBlockEvent.PREPARE_STORE), constant(HostBlockEvent.STORE_DONE)
_PIN, _UNPIN, _EVICT = (
    constant(HostBlockEvent.PIN),
    constant(HostBlockEvent.UNPIN),
    constant(HostBlockEvent.EVICT),
)
_START_READ, _READ_DONE = constant(BlockEvent.START_READ), constant(BlockEvent.READ_DONE)
_READING, _READING_IDLE = constant(BlockState.READING), constant(BlockState.READING_IDLE)

# Length of `order`, in blocks of the pool: each may be a stretch of its own, and be used again.
ORDER_PER_BLOCK = 2
# How far the order reaches at least before it is squeezed, if it is that long.
_SHORTEST = 1024


class HostPool(NamedTuple):
    """Views of one pool's part of `Sim`; every function here writes to them alone.

    Attributes
    ----------
    states : Int8; details : records of `HOST_DETAIL`; shape (capacity * PAGE,), by place
    order : records of `HOST_STRETCH`, shape (capacity * ORDER_PER_BLOCK,)
    buckets : Int32, shape (power of two,); pages : records of `HOST_PAGE`, shape (capacity,)
    record : records of `HOST`, shape (1,)
    index, evicted : records of `INDEXED`; index_buckets : Int32
        What the KV router was told of the pool, and what the worker has yet to tell; without the router the last
        record of each alone.
    """

    states: Any
    details: Any
    order: Any
    buckets: Any
    pages: Any
    record: Any
    index: Any
    index_buckets: Any
    evicted: Any


class Sources(NamedTuple):
    """The G1 copies of a run of keys, and what a store writes to them.

    Attributes
    ----------
    table : Int32, shape (number,)
        The copies.
    slots : Int32; read_slots, states : Int8; copies : records of `COPY`
        Those of the worker; see `Sim`.
    """

    table: Any
    slots: Any
    read_slots: Any
    states: Any
    copies: Any


@compiled
def pool_of(sim: Sim, worker: int) -> HostPool:
    """Return the host pool of `worker`."""
    row, workers = int(sim.hosts[worker].pool), sim.workers.shape[0]
    return HostPool(
        sim.host_state[row],
        sim.host_details[row],
        sim.host_order[row],
        sim.host_buckets[row],
        sim.host_pages[row],
        sim.hosts[row : row + 1],
        sim.index[workers + row],
        sim.index_buckets[workers + row],
        sim.index[2 * workers + worker],
    )


# Places of a page as bits --------------------------------------------------------------------------------------------


@compiled
def _from(key: int, stride: int, number: int) -> tuple[int, int]:
    """Return the places in its page that `key`, and those after it in steps of `stride`, have, and how many they are.

    There are `number` keys at most.
    """
    low = key & (PAGE - 1)
    if stride == 1:  # no division, and no loop
        of_page = min(PAGE - low, number)
        return ((1 << of_page) - 1) << low, of_page
    of_page = min((PAGE - 1 - low) // stride + 1, number)
    return _places(low, stride, of_page), of_page


@compiled
def _up_to(key: int, stride: int, number: int) -> tuple[int, int]:
    """Return the same of `key` and those before it."""
    low = key & (PAGE - 1)
    if stride == 1:
        of_page = min(low + 1, number)
        return ((1 << of_page) - 1) << (low + 1 - of_page), of_page
    of_page = min(low // stride + 1, number)
    return _places(low - (of_page - 1) * stride, stride, of_page), of_page


@compiled
def _places(low: int, stride: int, number: int) -> int:
    bits = 0
    for i in range(number):
        bits |= 1 << (low + i * stride)
    return bits


@compiled
def _count(bits: int) -> int:
    """Return how many of the `PAGE` lowest bits are set, and no other may be; side by side, then summed up."""
    bits -= (bits >> 1) & 0x5555_5555
    bits = (bits & 0x3333_3333) + ((bits >> 2) & 0x3333_3333)
    bits = (bits + (bits >> 4)) & 0x0F0F_0F0F
    return ((bits * 0x0101_0101) >> 24) & 0xFF


@compiled
def _page_of(pool: Any, key: int, near: int) -> int:
    """Return the page of `key`, or NONE when it has none; most often it is `near`, beside the page of the key before.

    For pages are taken one after another, and those of a prompt at once.
    """
    if 0 <= near < pool.pages.shape[0]:
        page = pool.pages[natural(near)]
        if page.number == key >> PAGE_BITS and page.there != 0:
            return near
    return pages.page_of(pool.pages, pool.buckets, key)


# Looking -------------------------------------------------------------------------------------------------------------


@compiled
def find(pool: Any, key: int, stride: int, number: int) -> tuple[int, bool, bool]:
    """Look up keys up to the first whose block is absent.

    Returns
    -------
    present : int
        How many were found.
    pending, pinned : bool
        Whether any of these is on its way, and whether any is being read.
    """
    pending, pinned, page, i = False, False, NONE, 0
    while i < number:
        page = _page_of(pool, key + i * stride, page + 1)
        if page == NONE:
            break
        record = pool.pages[natural(page)]
        found, of_page = _from(key + i * stride, stride, number - i)
        absent = found & ~record.there
        if absent != 0:
            found &= (absent & -absent) - 1
        pending = pending or found & record.pending != 0
        pinned = pinned or found & ~(record.pending | record.idle) != 0
        if absent != 0:
            return i + _count(found), pending, pinned
        i += of_page
    return i, pending, pinned


@compiled
def examine(pool: Any, key: int, stride: int, number: int, sources: Any, some_read: bool) -> tuple[int, int, bool]:
    """Look at blocks that could be stored.

    Parameters
    ----------
    some_read : bool
        Whether stores of the worker read evicted blocks at all.

    Returns
    -------
    missing, kept : int
        How many are absent, and how many of the others are idle.
    is_read : bool
        Whether an earlier store still reads what was in the place of a missing one in G1.
    """
    missing, kept, is_read, page, i = 0, 0, False, NONE, 0
    while i < number:
        page = _page_of(pool, key + i * stride, page + 1)
        asked, of_page = _from(key + i * stride, stride, number - i)
        if page != NONE:
            kept += _count(asked & pool.pages[natural(page)].idle)
            asked &= ~pool.pages[natural(page)].there
        missing += _count(asked)
        if some_read and asked != 0:
            low = (key + i * stride) & (PAGE - 1)
            for j in range(of_page):
                if (asked >> (low + j * stride)) & 1 != 0:
                    slot = slot_of(sources.slots, int(sources.table[i + j]))
                    is_read = is_read or sources.read_slots[natural(slot)] != 0
        i += of_page
    return missing, kept, is_read


# The order of use --------------------------------------------------------------------------------------------------


@compiled
def reserve(pool: Any, number: int) -> None:
    """See to it that `number` stretches can come into the order before it is squeezed, at most one for each block."""
    record = pool.record[0]
    if record.newest + number > record.order_end:
        _squeeze(pool)
        record.order_end = min(max(record.order_end, record.newest + number), pool.order.shape[0])


@compiled
def use(pool: Any, key: int, stride: int, number: int, before: int) -> int:
    """Let idle blocks be the most recent, last key first; the caller has reserved room.

    Parameters
    ----------
    before : int
        Only blocks that stand before this in the order are used.

    Returns
    -------
    int
        How many were used.
    """
    moved, page, left = 0, NONE, number
    while left > 0:
        last = key + (left - 1) * stride
        page = _page_of(pool, last, page - 1)
        asked, of_page = _up_to(last, stride, left)
        if page != NONE:
            moved += _use_of_page(pool, page, asked & pool.pages[natural(page)].idle, before)
        left -= of_page
    return moved


@compiled
def _use_of_page(pool: Any, page: int, blocks: int, before: int) -> int:
    record, of_page, order = pool.record[0], pool.pages[natural(page)], pool.order
    if blocks == 0:
        return 0
    old, new = natural(of_page.latest), natural(record.newest)
    if order[old].blocks == blocks and order[old].earlier == NONE and old < before:
        # Most often the page has one stretch, and all of it is used.
        order[old].blocks = 0
        order[new].page = page
        order[new].blocks = blocks
        order[new].earlier = NONE
        of_page.latest = new
        record.newest += 1
        return _count(blocks)
    at = int(of_page.latest)
    while at >= before:
        blocks &= ~order[natural(at)].blocks
        at = int(order[natural(at)].earlier)
    if blocks != 0:
        _leave(pool, page, blocks)
        _come(pool, page, blocks)
    return _count(blocks)


@compiled
def use_again(pool: Any, begin: int, end: int) -> None:
    """Let the stretches from `begin` to `end` of the order be the most recent, in the same sequence; room is there."""
    for at in range(begin, end):
        stretch = pool.order[natural(at)]
        if stretch.blocks != 0:
            page, blocks = int(stretch.page), int(stretch.blocks)
            _leave(pool, page, blocks)
            _come(pool, page, blocks)


@compiled
def _come(pool: Any, page: int, blocks: int) -> None:
    """Let blocks of a page, as bits, be idle and most recent."""
    record = pool.record[0]
    if record.newest == record.order_end:
        _squeeze(pool)
    at = natural(record.newest)
    of_page = pool.pages[natural(page)]
    pool.order[at].page = page
    pool.order[at].blocks = blocks
    pool.order[at].earlier = of_page.latest
    of_page.latest = at
    of_page.idle |= blocks
    record.newest += 1


@compiled
def _leave(pool: Any, page: int, blocks: int) -> None:
    """Take idle blocks of a page, as bits, out of the order."""
    of_page, order = pool.pages[natural(page)], pool.order
    of_page.idle &= ~blocks
    later, at = NONE, int(of_page.latest)
    while blocks != 0:
        stretch = natural(at)
        earlier = int(order[stretch].earlier)
        left = order[stretch].blocks & ~blocks
        blocks &= ~order[stretch].blocks
        order[stretch].blocks = left
        if left != 0:
            later = at
        elif later == NONE:
            of_page.latest = earlier
        else:
            order[natural(later)].earlier = earlier
        at = earlier


@compiled
def _squeeze(pool: Any) -> None:
    """Close the gaps that stretches without blocks are in the order; the others keep theirs, as does `used_at`."""
    record, order = pool.record[0], pool.order
    kept, before = 0, 0
    for at in range(record.oldest, record.newest):
        old, new = natural(at), natural(kept)
        if order[old].blocks != 0:
            page = natural(order[old].page)
            # The page's one before it, if there is any, has its new place already, and is its latest so far.
            earlier = NONE if order[old].earlier == NONE else int(pool.pages[page].latest)
            order[new].page = page
            order[new].blocks = order[old].blocks
            order[new].earlier = earlier
            pool.pages[page].latest = new
            kept += 1
            before += 1 if at < record.used_at else 0
    record.oldest = 0
    record.newest = kept
    record.used_at = before
    record.order_end = min(max(2 * kept, _SHORTEST), order.shape[0])


# Blocks come and go ------------------------------------------------------------------------------------------------


@compiled
def evict(pool: Any, number: int) -> None:
    """Evict the `number` oldest idle blocks; the caller knows that they exist."""
    record = pool.record[0]
    at, left = int(record.oldest), number
    while left > 0:
        blocks = pool.order[natural(at)].blocks
        if blocks == 0:
            at += 1
            continue
        page = natural(pool.order[natural(at)].page)
        evicted = 0
        for low in range(PAGE - 1, -1, -1):
            if left > 0 and (blocks >> low) & 1 != 0:
                place = natural((page << PAGE_BITS) | low)
                advance(HOST_BLOCK_TABLE, pool.states, place, _EVICT)
                if pool.index.shape[0] > 1:
                    cache_events.log(pool.evicted, pages.key_at(pool.pages, place))
                evicted |= 1 << low
                left -= 1
        _leave(pool, page, evicted)
        pool.pages[page].there &= ~evicted
        if pool.pages[page].there == 0:
            pages.drop(pool.pages, pool.buckets, record, page)
    record.oldest = at
    record.used -= number
    record.idle -= number
    record.older -= number
    record.evictions += number


@compiled
def store(pool: Any, copying: Any, key: int, stride: int, number: int, sources: Any, keeps: bool) -> None:
    """Add what the pool lacks of a run of keys to a store; the caller knows that there is room.

    Its blocks are chained from the last to the first. With `keeps` it has references of its own to what it reads.
    """
    chain, added, page, i = int(copying.first), 0, NONE, 0
    while i < number:
        page = _page_of(pool, key + i * stride, page + 1)
        missing, of_page = _from(key + i * stride, stride, number - i)
        if page == NONE:
            page = pages.new_page(pool.pages, pool.buckets, pool.record[0], key + i * stride)
            pool.pages[natural(page)].latest = NONE
        missing &= ~pool.pages[natural(page)].there
        pool.pages[natural(page)].there |= missing
        pool.pages[natural(page)].pending |= missing
        low = (key + i * stride) & (PAGE - 1)
        for j in range(of_page if missing != 0 else 0):
            if (missing >> (low + j * stride)) & 1 != 0:
                place = natural((page << PAGE_BITS) | (low + j * stride))
                copy = natural(sources.table[i + j])
                slot = slot_of(sources.slots, copy)
                advance(HOST_BLOCK_TABLE, pool.states, place, _PREPARE_STORE)
                pool.details[place].link = chain
                pool.details[place].source = copy
                pool.details[place].slot = slot
                chain = place
                advance(BLOCK_TABLE, sources.states, copy, _START_READ)
                if keeps:
                    sources.copies[copy].refs += 1
                added += 1
        i += of_page
    copying.first = chain
    copying.blocks += added
    pool.record[0].used += added


@compiled
def stored(pool: Any, place: int, sources: Any) -> tuple[int, int]:
    """Let the blocks of a store that ended be there, of one page from `place` on.

    They are the most recent ones, the last block first, so that the head of a prompt stays longest.

    Returns
    -------
    following : int
        Where the rest of the store begins, or NONE.
    evicted : int
        How many of them were evicted from G1 meanwhile.
    """
    page, blocks, number, evicted = place >> PAGE_BITS, 0, 0, 0
    states, following = sources.states, place
    while following != NONE and following >> PAGE_BITS == page and following <= place:
        place = natural(following)
        following = int(pool.details[place].link)
        copy, slot = natural(pool.details[place].source), int(pool.details[place].slot)
        # If it was evicted, its number may stand for another copy.
        is_there = slot_of(sources.slots, copy) == slot
        if is_there and (states[copy] == _READING or states[copy] == _READING_IDLE):
            advance(BLOCK_TABLE, states, copy, _READ_DONE)
        else:
            sources.read_slots[natural(slot)] = 0
            evicted += 1
        advance(HOST_BLOCK_TABLE, pool.states, place, _STORE_DONE)
        if pool.index.shape[0] > 1:
            cache_events.tell(pool.index, pool.index_buckets, pages.key_at(pool.pages, place), ONE)
        blocks |= 1 << (place & (PAGE - 1))
        number += 1
    pool.pages[natural(page)].pending &= ~blocks
    _come(pool, page, blocks)
    pool.record[0].idle += number
    return following, evicted


@compiled
def pin(pool: Any, key: int, stride: int, number: int) -> None:
    """Keep blocks, all of them there, until a load has read them."""
    page, i = NONE, 0
    while i < number:
        page = _page_of(pool, key + i * stride, page + 1)
        asked, of_page = _from(key + i * stride, stride, number - i)
        fresh = asked & pool.pages[natural(page)].idle
        _leave(pool, page, fresh)
        low = (key + i * stride) & (PAGE - 1)
        for j in range(of_page):
            place = natural((page << PAGE_BITS) | (low + j * stride))
            if (fresh >> (low + j * stride)) & 1 != 0:
                advance(HOST_BLOCK_TABLE, pool.states, place, _PIN)
                pool.details[place].link = 0
            pool.details[place].link += 1
        pool.record[0].idle -= _count(fresh)
        i += of_page


@compiled
def unpin(pool: Any, key: int, stride: int, number: int) -> None:
    """Let go of pinned blocks, last key first; each is the most recent once it has no pins."""
    page, left = NONE, number
    while left > 0:
        last = key + (left - 1) * stride
        page = _page_of(pool, last, page - 1)
        _, of_page = _up_to(last, stride, left)
        freed = 0
        for j in range(of_page):
            low = (last & (PAGE - 1)) - j * stride
            place = natural((page << PAGE_BITS) | low)
            pool.details[place].link -= 1
            if pool.details[place].link == 0:
                advance(HOST_BLOCK_TABLE, pool.states, place, _UNPIN)
                freed |= 1 << low
        if freed != 0:
            _come(pool, page, freed)
            pool.record[0].idle += _count(freed)
        left -= of_page
