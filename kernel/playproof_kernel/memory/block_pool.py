"""The G1 block pool of a worker: physical copies, the cache of full blocks, and the order of the idle ones.

A copy is free, private to a request, or cached under a key (active while referenced, else idle and evictable). A key
may have several copies; a lookup takes the one cached first. Allocation takes free copies, then evicts idle ones from
the old end. `tests/properties/test_blocks.py` runs this pool beside a naive one.

**Index.** A prompt asks for neighbouring keys one after another, so keys are looked up a page of neighbours at a time:
a hash table leads to the page, whose places are the copies of its keys. Later copies of a key are chained behind the
first by `links`, which are looked at where a place says that there are any: so records of copies, which each step
touches, are small. A page without copies is given back, with all its places empty, as it is taken.

**Order.** Idle copies stand in `order`, a ring of stretches, from the oldest to the newest: copies that came to rest in
a row, with numbers that descend by one. A stretch has its topmost copy and how many of its copies are still idle
in it; those know its place. A copy that is used again is told from them by its record, and eviction passes it over. So
no step of one copy writes to the ring, and the ring is small, where a linked list would go from copy to copy all over
memory. When the ring is full, stretches without copies are squeezed out; it has twice as many places as there are
copies at least, so that this costs a fixed share of a step for each copy.

**Numbers.** Free copies are taken by number, going round. There are more numbers than copies, so that a round meets
stretches of free ones, and the copies of a prompt stand side by side in memory. Copies that were handed out again as
they came free would be strewn all over it after some thousand requests, and each step would wait for memory.

**Slots.** Where a store to host memory may still read a block that was evicted, it shows which place in device memory
a copy is given. There each copy in use has a slot besides its number, and the slots of free ones stand on a stack. A
block that is evicted while it is read marks its slot, and who is given that knows.

The functions take a `Pool`, the views of one worker's arrays, and as many blocks as one step of a request touches: a
call for each block would cost more than the work it does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState

from playproof_kernel.ground import pages
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import compiled, constant, natural
from playproof_kernel.ground.pages import PAGE_BITS
from playproof_kernel.ground.transitions import BLOCK_TABLE, advance

ALLOCATE, RESERVE_LOAD = constant(BlockEvent.ALLOCATE), constant(BlockEvent.RESERVE_LOAD)
FILL, LOADED = constant(BlockEvent.FILL), constant(BlockEvent.LOADED)
_RELEASE = constant(BlockEvent.RELEASE)
_REUSE = constant(BlockEvent.REUSE)
_EVICT = constant(BlockEvent.EVICT)
_FREE, _READING_IDLE = constant(BlockState.FREE), constant(BlockState.READING_IDLE)

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
    copies : records of `COPY`, shape (numbers,); states : Int8, shape (numbers,)
        There are more numbers than blocks; those of free blocks and those in excess are alike.
    links : Int32, shape (numbers,)
        Of a copy whose key has several, the one that was cached after it, or NONE.
    slots : Int32, shape (numbers,); free_slots : Int32, shape (blocks,)
        The slot of each copy in use, and the slots of the `free` others, the one to be taken next as the last of them.
    read_slots : Int8, shape (blocks,)
        By slot, whether a store still reads there a block that was evicted. All three are empty where it does not show.
    order : records of `STRETCH`, shape (power of two,)
    buckets : Int32, shape (power of two,); pages : records of `INDEX_PAGE`, shape (blocks,)
    places : Int32, shape (blocks * PAGE,)
        Of each key of each page, one more than the copy that was cached first, negated when it is not the only one; or
        0 without any.
    worker : records, shape (1,)
        The worker's own record: its counters of free and idle copies and of evictions, where its order of idle copies
        begins and ends, and which pages are spare.
    """

    copies: Any
    states: Any
    links: Any
    slots: Any
    free_slots: Any
    read_slots: Any
    order: Any
    buckets: Any
    pages: Any
    places: Any
    worker: Any


@compiled
def pool_of(sim: Sim, worker: int) -> Pool:
    """Return the pool of `worker`."""
    return Pool(
        sim.copies[worker],
        sim.block_state[worker],
        sim.links[worker],
        sim.slots[worker],
        sim.free_slots[worker],
        sim.read_slots[worker],
        sim.order[worker],
        sim.buckets[worker],
        sim.index_pages[worker],
        sim.index_places[worker],
        sim.workers[worker : worker + 1],
    )


@compiled
def available(sim: Sim, worker: int) -> int:
    """Return how many copies can be allocated now."""
    record = sim.workers[worker]
    return record.free + record.idle


@compiled
def find(pool: Any, found: Any, begin: int, key: int, stride: int, number: int) -> int:
    """Look up `number` keys, from `key` in steps of `stride`, up to the first that is not cached.

    Returns
    -------
    int
        How many keys were found; of each, the copy that was cached first stands in ``found[begin:]``.
    """
    i = 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            break
        while at < end and i < number:
            first = pool.places[natural(at)]
            if first == 0:
                return i
            found[begin + i] = abs(first) - 1
            at += stride
            i += 1
    return i


@compiled
def in_use(pool: Any, found: Any, number: int) -> int:
    """Return how many of the copies ``found[:number]`` are referenced."""
    active = 0
    for i in range(number):
        active += 1 if pool.copies[natural(found[i])].refs > 0 else 0
    return active


@compiled
def allocate(pool: Any, table: Any, begin: int, number: int, event: int) -> None:
    """Write `number` copies with one reference each to ``table[begin:]``; the caller knows that they exist.

    Parameters
    ----------
    event : int
        What takes them: `ALLOCATE` for a request that will compute them, `RESERVE_LOAD` for a restore.
    """
    record = pool.worker[0]
    entries = table[begin : begin + number]
    if number > record.free:
        evict(pool, number)
    copies, states = pool.copies, pool.states
    copy, end = natural(record.next_copy), states.shape[0]
    for i in range(number):
        while states[copy] != _FREE:
            copy = natural(copy + 1) if copy + 1 < end else 0
        advance(BLOCK_TABLE, states, copy, event)
        copies[copy].refs = 1
        entries[i] = copy
    record.next_copy = copy
    if pool.slots.shape[0] > 0:
        for i in range(number):
            pool.slots[natural(entries[i])] = pool.free_slots[natural(record.free - 1 - i)]
    record.free -= number


@compiled
def slot_of(slots: Any, copy: int) -> int:
    """Return the slot of a copy in use; `slots` are those of its worker. Where they do not show, its number stands."""
    return int(slots[natural(copy)]) if slots.shape[0] > 0 else copy


@compiled
def evict(pool: Any, wanted: int) -> None:
    """Free the oldest idle copies until `wanted` are free, more than are now; the caller knows that they exist."""
    record = pool.worker[0]
    record.free_wanted = wanted
    number = wanted - record.free
    copies, order = pool.copies, pool.order
    mask = natural(order.shape[0] - 1)
    # Places of one page that were emptied; its count is lowered once for all of them.
    page, emptied = 0, 0
    free = record.free
    at, left = record.oldest, number
    while left > 0:
        stretch = natural(at & mask)
        idle = min(int(order[stretch].idle), left)
        copy = natural(order[stretch].top)
        for _ in range(idle):
            while copies[copy].refs != -1 - stretch:
                copy = natural(copy - 1)
            place = natural(copies[copy].place)
            if _unlink(pool, copy, place):
                if place >> PAGE_BITS != page:
                    _empty(pool, page, emptied)
                    page, emptied = place >> PAGE_BITS, 0
                emptied += 1
            if pool.slots.shape[0] > 0:
                slot = natural(pool.slots[copy])
                pool.free_slots[natural(free)] = slot
                if pool.states[copy] == _READING_IDLE:
                    pool.read_slots[slot] = 1
                    record.evicted_reads += 1
            # Its record still names the stretch, which eviction has passed.
            advance(BLOCK_TABLE, pool.states, copy, _EVICT)
            free += 1
            left -= 1
            copy = natural(copy - 1)
        order[stretch].top = copy
        order[stretch].idle -= idle
        if order[stretch].idle == 0:
            at += 1
    _empty(pool, page, emptied)
    record.oldest = at
    record.free = free
    record.idle -= number
    record.evictions += number


@compiled
def reuse(pool: Any, found: Any, table: Any, begin: int, number: int) -> None:
    """Add a reference to each of ``found[:number]``, cached copies, and write them to ``table[begin:]``."""
    mark, woken = 0, 0
    for i in range(number):
        mark, woken = _refer(pool, natural(found[i]), mark, woken)
        table[begin + i] = found[i]
    _wake(pool, mark, woken)


@compiled
def _refer(pool: Any, copy: int, mark: int, woken: int) -> tuple[int, int]:
    """Add a reference to `copy`; `woken` copies with `mark` for `refs` have got their first ones before it."""
    refs = int(pool.copies[copy].refs)
    if refs < 0:
        if refs != mark:
            _wake(pool, mark, woken)
            mark, woken = refs, 0
        advance(BLOCK_TABLE, pool.states, copy, _REUSE)
        woken += 1
        refs = 0
    pool.copies[copy].refs = refs + 1
    return mark, woken


@compiled
def take(pool: Any, table: Any, begin: int, key: int, stride: int, number: int) -> int:
    """Look up keys as `find` does, and add a reference to each copy found at once, as `reuse` does.

    Returns
    -------
    int
        How many keys were found; their copies stand in ``table[begin:]``.
    """
    entries = table[begin : begin + number]
    mark, woken, i = 0, 0, 0
    missed = False
    while i < number and not missed:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        missed = at == NONE
        while at < end and i < number:
            first = pool.places[natural(at)]
            if first == 0:
                missed = True
                break
            mark, woken = _refer(pool, natural(abs(first) - 1), mark, woken)
            entries[i] = abs(first) - 1
            at += stride
            i += 1
    _wake(pool, mark, woken)
    return i


@compiled
def fill(pool: Any, table: Any, begin: int, number: int, key: int, stride: int, event: int) -> None:
    """Cache the copies ``table[begin : begin + number]``, now full, under keys from `key` in steps of `stride`.

    Each goes behind earlier copies of its key. `event` is what filled them: `FILL` private ones, `LOADED` those of a
    restore.
    """
    copies = pool.copies
    entries = table[begin : begin + number]
    i = 0
    while i < number:
        at, end = pages.places(pool.pages, pool.buckets, key + i * stride)
        if at == NONE:
            at, end = pages.new_places(pool.pages, pool.buckets, pool.worker[0], key + i * stride)
        opened = 0
        while at < end and i < number:
            copy = natural(entries[i])
            advance(BLOCK_TABLE, pool.states, copy, event)
            copies[copy].place = at
            first = pool.places[natural(at)]
            if first == 0:
                pool.places[natural(at)] = copy + 1
                opened += 1
            else:
                _chain(pool, copy, at)
            at += stride
            i += 1
        pool.pages[natural((end - 1) >> PAGE_BITS)].used += opened


@compiled
def release(pool: Any, table: Any, begin: int, number: int) -> None:
    """Drop a reference to each of ``table[begin : begin + number]``, last first.

    The last reference makes a cached copy idle and most recent, and frees a private one.
    """
    record = pool.worker[0]
    copies, order = pool.copies, pool.order
    mask = natural(order.shape[0] - 1)
    if record.newest - record.oldest + number > mask:
        _squeeze(pool)
    entries = table[begin : begin + number]
    newest = record.newest
    stretch, below, rested = 0, NONE, 0
    for i in range(number - 1, -1, -1):
        copy = natural(entries[i])
        refs = copies[copy].refs - 1
        copies[copy].refs = refs
        if refs > 0:
            continue
        advance(BLOCK_TABLE, pool.states, copy, _RELEASE)
        if pool.states[copy] != _FREE:
            if copy != below:
                _close(pool, stretch, rested)
                stretch, rested = natural(newest & mask), 0
                order[stretch].top = copy
                newest += 1
            copies[copy].refs = -1 - stretch
            rested += 1
            below = copy - 1
        else:
            if pool.slots.shape[0] > 0:
                pool.free_slots[natural(record.free)] = pool.slots[copy]
            record.free += 1
    _close(pool, stretch, rested)
    record.newest = newest


# The index --------------------------------------------------------------------------------------------------------


@compiled
def key_of(pool: Any, copy: int) -> int:
    """Return the key of `copy`, which is cached."""
    return pages.key_at(pool.pages, pool.copies[copy].place)


@compiled
def _chain(pool: Any, copy: int, place: int) -> None:
    """Put `copy` behind the copies of its key, which has some; `place` is the key's."""
    links, places = pool.links, pool.places
    latest = natural(abs(places[natural(place)]) - 1)
    if places[natural(place)] > 0:
        places[natural(place)] = -(latest + 1)
    else:
        while links[latest] != NONE:
            latest = natural(links[latest])
    links[latest] = copy
    links[copy] = NONE


@compiled
def _unlink(pool: Any, copy: int, place: int) -> bool:
    """Take `copy` out of the index, from `place`, that of its key; returns whether that has no copy any more."""
    links, places = pool.links, pool.places
    if places[place] == copy + 1:
        places[place] = 0
        return True
    first = natural(-places[place] - 1)
    if first == copy:
        first = natural(links[copy])
    else:
        earlier = first
        while links[earlier] != copy:
            earlier = natural(links[earlier])
        links[earlier] = links[copy]
    places[place] = first + 1 if links[first] == NONE else -(first + 1)
    return False


@compiled
def _empty(pool: Any, page: int, emptied: int) -> None:
    """Take in that `emptied` places of `page` have lost their last copies; a page without copies is given back."""
    if emptied > 0:
        pool.pages[page].used -= emptied
        if pool.pages[page].used == 0:
            pages.drop(pool.pages, pool.buckets, pool.worker[0], page)


# The order of idle copies -----------------------------------------------------------------------------------------


@compiled
def next_idle(pool: Any, at: int, passed: int, copy: int) -> tuple[int, int, int]:
    """Return the oldest idle copy, where there is one, behind `copy`, which is number `passed` of the stretch at `at`.

    Returns
    -------
    at, passed, copy : int
        The next call's arguments; the first call's are the worker's `oldest`, 0 and any.
    """
    order = pool.order
    mask = natural(order.shape[0] - 1)
    while order[natural(at & mask)].idle == passed:
        at, passed = at + 1, 0
    stretch = natural(at & mask)
    copy = int(order[stretch].top) if passed == 0 else copy - 1
    while pool.copies[natural(copy)].refs != -1 - stretch:
        copy -= 1
    return at, passed + 1, copy


@compiled
def _wake(pool: Any, mark: int, woken: int) -> None:
    """Take in that `woken` copies with `mark` for `refs` have left the stretch that it names."""
    if woken > 0:
        pool.order[natural(-1 - mark)].idle -= woken
        pool.worker[0].idle -= woken


@compiled
def _close(pool: Any, stretch: int, rested: int) -> None:
    """Take in that `rested` copies have come to rest in `stretch`, and that no more will."""
    if rested > 0:
        pool.order[stretch].idle = rested
        pool.worker[0].idle += rested


@compiled
def _squeeze(pool: Any) -> None:
    """Close the gaps that stretches without copies are in the order; the others keep their sequence."""
    record = pool.worker[0]
    copies, order = pool.copies, pool.order
    mask = natural(order.shape[0] - 1)
    kept = record.oldest
    for at in range(record.oldest, record.newest):
        old, new = natural(at & mask), natural(kept & mask)
        if order[old].idle > 0:
            kept += 1
            copy = natural(order[old].top)
            order[new].top = copy
            order[new].idle = order[old].idle
            if new != old:
                for _ in range(order[new].idle):
                    while copies[copy].refs != -1 - old:
                        copy = natural(copy - 1)
                    copies[copy].refs = -1 - new
                    copy = natural(copy - 1)
    record.newest = kept
