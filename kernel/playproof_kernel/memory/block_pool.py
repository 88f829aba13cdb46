"""The G1 block pool of a worker: physical frames, the cache of full blocks, and the order of the idle ones.

A frame is free, private to a request, or cached under a key (active while referenced, else idle and evictable). A key
may have several frames; a lookup takes the one cached first. Allocation takes free frames, then evicts idle ones from
the old end. `tests/properties/test_blocks.py` runs this pool beside a naive one.

**Index.** A prompt asks for neighbouring keys one after another, so keys are looked up a group of neighbours at a time:
a hash table leads to the group, whose places are the frames of its keys. Later frames of a key are chained behind the
first by `links`, which are looked at where a place says that there are any: so records of frames, which each step
touches, are small. A group without frames is given back, with all its places empty, as it is taken.

**Order.** Idle frames stand in `order`, a ring of *idle runs*, from the oldest to the newest. An idle run is frames
that were freed in a row, with numbers that descend by one; it has the highest of these and how many of its frames are
still idle, and the frames know its place. A frame that is used again is told from them by its record, and eviction
passes it over. So no step of one frame writes to the ring, and the ring is small, where a linked list would go from
frame to frame all over memory. When the ring is full, idle runs without frames are compacted out; it has twice as many
places as there are frames at least, so that this costs a fixed share of a step for each frame.

**Numbers.** Free frames are taken by number, in turn and round again. There are more numbers than blocks of memory, so
that a round meets runs of free frames, and the frames of a prompt stand side by side in the arrays. Frames that were
handed out again as they became free would be strewn all over them after some thousand requests, and each step would
wait for memory.

**Addresses.** Where a store to host memory may still read a block that was evicted, it matters which place in device
memory a frame is given. There each frame in use has an address besides its number, and the free addresses stand on a
stack. A block that is evicted while it is read marks its address, so that whoever is given that address knows.

The functions take a `Pool`, the views of one worker's arrays, and as many blocks as one step of a request touches: a
call for each block would cost more than the work it does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState

from playproof_kernel.ground import key_groups
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import compiled, constant, natural
from playproof_kernel.ground.key_groups import GROUP_BITS
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
    """Return the key of block `number` of a request when it holds a generated token: no other block ever has it."""
    return GENERATED | (int(serial) << _NUMBER_BITS) | int(number)


class Pool(NamedTuple):
    """Views of one worker's part of `Sim`; every function here writes to them alone.

    Attributes
    ----------
    frames : records of `Frame`, shape (numbers,); states : Int8, shape (numbers,)
        There are more numbers than blocks; those of free blocks and those in excess are alike.
    links : Int32, shape (numbers,)
        Of a frame whose key has several, the one that was cached after it, or NONE.
    addresses : Int32, shape (numbers,); free_addresses : Int32, shape (blocks,)
        The address of each frame in use, and the `free` other addresses, the one to be taken next as the last of them.
    read_addresses : Int8, shape (blocks,)
        By address, whether a store still reads there a block that was evicted. All three are empty where that does not
        matter.
    order : records of `IdleRun`, shape (power of two,)
    buckets : Int32, shape (power of two,); groups : records of `KeyGroup`, shape (blocks,)
    places : Int32, shape (blocks * GROUP,)
        Of each key of each group, one more than the frame that was cached first, negated if there are others; or
        0 without any.
    worker : records, shape (1,)
        The worker's own record: its counters of free and idle frames and of evictions, where its order of idle frames
        begins and ends, and which groups are spare.
    """

    frames: Any
    states: Any
    links: Any
    addresses: Any
    free_addresses: Any
    read_addresses: Any
    order: Any
    buckets: Any
    groups: Any
    places: Any
    worker: Any


@compiled
def pool_of(sim: Sim, worker: int) -> Pool:
    """Return the pool of `worker`."""
    return Pool(
        sim.frames[worker],
        sim.block_state[worker],
        sim.links[worker],
        sim.addresses[worker],
        sim.free_addresses[worker],
        sim.read_addresses[worker],
        sim.order[worker],
        sim.buckets[worker],
        sim.key_groups[worker],
        sim.index_places[worker],
        sim.workers[worker : worker + 1],
    )


@compiled
def available(sim: Sim, worker: int) -> int:
    """Return how many frames can be allocated now."""
    record = sim.workers[worker]
    return record.free + record.idle


@compiled
def find(pool: Any, found: Any, begin: int, key: int, stride: int, number: int) -> int:
    """Look up `number` keys, from `key` in steps of `stride`, up to the first that is not cached.

    Returns
    -------
    int
        How many keys were found; of each, the frame that was cached first stands in ``found[begin:]``.
    """
    i = 0
    while i < number:
        at, end = key_groups.places(pool.groups, pool.buckets, key + i * stride)
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
    """Return how many of the frames ``found[:number]`` are referenced."""
    active = 0
    for i in range(number):
        active += 1 if pool.frames[natural(found[i])].refs > 0 else 0
    return active


@compiled
def get_new_blocks(pool: Any, table: Any, begin: int, number: int, event: int) -> None:
    """Write `number` frames with one reference each to ``table[begin:]``; the caller knows that they exist.

    Parameters
    ----------
    event : int
        What takes them: `ALLOCATE` for a request that will compute them, `RESERVE_LOAD` for a restore.
    """
    record = pool.worker[0]
    entries = table[begin : begin + number]
    if number > record.free:
        evict(pool, number)
    frames, states = pool.frames, pool.states
    frame, end = natural(record.next_frame), states.shape[0]
    for i in range(number):
        while states[frame] != _FREE:
            frame = natural(frame + 1) if frame + 1 < end else 0
        advance(BLOCK_TABLE, states, frame, event)
        frames[frame].refs = 1
        entries[i] = frame
    record.next_frame = frame
    if pool.addresses.shape[0] > 0:
        for i in range(number):
            pool.addresses[natural(entries[i])] = pool.free_addresses[natural(record.free - 1 - i)]
    record.free -= number


@compiled
def address_of(addresses: Any, frame: int) -> int:
    """Return the address of a frame in use, or, where the `addresses` of its worker do not matter, its number."""
    return int(addresses[natural(frame)]) if addresses.shape[0] > 0 else frame


@compiled
def evict(pool: Any, wanted: int) -> None:
    """Free the oldest idle frames until `wanted` are free, more than are now; the caller knows that they exist."""
    record = pool.worker[0]
    record.free_wanted = wanted
    number = wanted - record.free
    frames, order = pool.frames, pool.order
    mask = natural(order.shape[0] - 1)
    # Places of one group that were emptied; its count is lowered once for all of them.
    group, emptied = 0, 0
    free = record.free
    at, left = record.oldest, number
    while left > 0:
        idle_run = natural(at & mask)
        idle = min(int(order[idle_run].idle), left)
        frame = natural(order[idle_run].top)
        for _ in range(idle):
            while frames[frame].refs != -1 - idle_run:
                frame = natural(frame - 1)
            place = natural(frames[frame].place)
            if _unlink(pool, frame, place):
                if place >> GROUP_BITS != group:
                    _empty(pool, group, emptied)
                    group, emptied = place >> GROUP_BITS, 0
                emptied += 1
            if pool.addresses.shape[0] > 0:
                address = natural(pool.addresses[frame])
                pool.free_addresses[natural(free)] = address
                if pool.states[frame] == _READING_IDLE:
                    pool.read_addresses[address] = 1
                    record.evicted_reads += 1
            # Its record still names the idle run, which eviction has passed.
            advance(BLOCK_TABLE, pool.states, frame, _EVICT)
            free += 1
            left -= 1
            frame = natural(frame - 1)
        order[idle_run].top = frame
        order[idle_run].idle -= idle
        if order[idle_run].idle == 0:
            at += 1
    _empty(pool, group, emptied)
    record.oldest = at
    record.free = free
    record.idle -= number
    record.evictions += number


@compiled
def touch(pool: Any, found: Any, table: Any, begin: int, number: int) -> None:
    """Add a reference to each of ``found[:number]``, cached frames, and write them to ``table[begin:]``."""
    mark, woken = 0, 0
    for i in range(number):
        mark, woken = _refer(pool, natural(found[i]), mark, woken)
        table[begin + i] = found[i]
    _wake(pool, mark, woken)


@compiled
def _refer(pool: Any, frame: int, mark: int, woken: int) -> tuple[int, int]:
    """Add a reference to `frame`; `woken` frames with `mark` for `refs` have got their first ones before it."""
    refs = int(pool.frames[frame].refs)
    if refs < 0:
        if refs != mark:
            _wake(pool, mark, woken)
            mark, woken = refs, 0
        advance(BLOCK_TABLE, pool.states, frame, _REUSE)
        woken += 1
        refs = 0
    pool.frames[frame].refs = refs + 1
    return mark, woken


@compiled
def touch_cached(pool: Any, table: Any, begin: int, key: int, stride: int, number: int) -> int:
    """Look up keys as `find` does, and add a reference to each frame found at once, as `touch` does.

    Returns
    -------
    int
        How many keys were found; their frames stand in ``table[begin:]``.
    """
    entries = table[begin : begin + number]
    mark, woken, i = 0, 0, 0
    missed = False
    while i < number and not missed:
        at, end = key_groups.places(pool.groups, pool.buckets, key + i * stride)
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
def cache_blocks(pool: Any, table: Any, begin: int, number: int, key: int, stride: int, event: int) -> None:
    """Cache the frames ``table[begin : begin + number]``, now full, under keys from `key` in steps of `stride`.

    Each goes behind earlier frames of its key. `event` is what filled them: `FILL` private ones, `LOADED` those of a
    restore.
    """
    frames = pool.frames
    entries = table[begin : begin + number]
    i = 0
    while i < number:
        at, end = key_groups.places(pool.groups, pool.buckets, key + i * stride)
        if at == NONE:
            at, end = key_groups.new_places(pool.groups, pool.buckets, pool.worker[0], key + i * stride)
        opened = 0
        while at < end and i < number:
            frame = natural(entries[i])
            advance(BLOCK_TABLE, pool.states, frame, event)
            frames[frame].place = at
            first = pool.places[natural(at)]
            if first == 0:
                pool.places[natural(at)] = frame + 1
                opened += 1
            else:
                _chain(pool, frame, at)
            at += stride
            i += 1
        pool.groups[natural((end - 1) >> GROUP_BITS)].used += opened


@compiled
def free_blocks(pool: Any, table: Any, begin: int, number: int) -> None:
    """Drop a reference to each of ``table[begin : begin + number]``, last first.

    The last reference makes a cached frame idle and most recent, and frees a private one.
    """
    record = pool.worker[0]
    frames, order = pool.frames, pool.order
    mask = natural(order.shape[0] - 1)
    if record.newest - record.oldest + number > mask:
        _compact(pool)
    entries = table[begin : begin + number]
    newest = record.newest
    idle_run, below, rested = 0, NONE, 0
    for i in range(number - 1, -1, -1):
        frame = natural(entries[i])
        refs = frames[frame].refs - 1
        frames[frame].refs = refs
        if refs > 0:
            continue
        advance(BLOCK_TABLE, pool.states, frame, _RELEASE)
        if pool.states[frame] != _FREE:
            if frame != below:
                _close(pool, idle_run, rested)
                idle_run, rested = natural(newest & mask), 0
                order[idle_run].top = frame
                newest += 1
            frames[frame].refs = -1 - idle_run
            rested += 1
            below = frame - 1
        else:
            if pool.addresses.shape[0] > 0:
                pool.free_addresses[natural(record.free)] = pool.addresses[frame]
            record.free += 1
    _close(pool, idle_run, rested)
    record.newest = newest


# The index --------------------------------------------------------------------------------------------------------


@compiled
def key_of(pool: Any, frame: int) -> int:
    """Return the key of `frame`, which is cached."""
    return key_groups.key_at(pool.groups, pool.frames[frame].place)


@compiled
def _chain(pool: Any, frame: int, place: int) -> None:
    """Put `frame` behind the frames of its key, which has some; `place` is the key's."""
    links, places = pool.links, pool.places
    latest = natural(abs(places[natural(place)]) - 1)
    if places[natural(place)] > 0:
        places[natural(place)] = -(latest + 1)
    else:
        while links[latest] != NONE:
            latest = natural(links[latest])
    links[latest] = frame
    links[frame] = NONE


@compiled
def _unlink(pool: Any, frame: int, place: int) -> bool:
    """Take `frame` out of the index, from `place`, that of its key; returns whether that has no frame any more."""
    links, places = pool.links, pool.places
    if places[place] == frame + 1:
        places[place] = 0
        return True
    first = natural(-places[place] - 1)
    if first == frame:
        first = natural(links[frame])
    else:
        earlier = first
        while links[earlier] != frame:
            earlier = natural(links[earlier])
        links[earlier] = links[frame]
    places[place] = first + 1 if links[first] == NONE else -(first + 1)
    return False


@compiled
def _empty(pool: Any, group: int, emptied: int) -> None:
    """Take in that `emptied` places of `group` have lost their last frames; a group without frames is given back."""
    if emptied > 0:
        pool.groups[group].used -= emptied
        if pool.groups[group].used == 0:
            key_groups.drop(pool.groups, pool.buckets, pool.worker[0], group)


# The order of idle frames -----------------------------------------------------------------------------------------


@compiled
def next_idle(pool: Any, at: int, passed: int, frame: int) -> tuple[int, int, int]:
    """Return the oldest idle frame behind `frame`, which is number `passed` of the idle run at `at`; there is one.

    Returns
    -------
    at, passed, frame : int
        The next call's arguments; the first call's are the worker's `oldest`, 0 and any.
    """
    order = pool.order
    mask = natural(order.shape[0] - 1)
    while order[natural(at & mask)].idle == passed:
        at, passed = at + 1, 0
    idle_run = natural(at & mask)
    frame = int(order[idle_run].top) if passed == 0 else frame - 1
    while pool.frames[natural(frame)].refs != -1 - idle_run:
        frame -= 1
    return at, passed + 1, frame


@compiled
def _wake(pool: Any, mark: int, woken: int) -> None:
    """Take in that `woken` frames with `mark` for `refs` have left the idle run that it names."""
    if woken > 0:
        pool.order[natural(-1 - mark)].idle -= woken
        pool.worker[0].idle -= woken


@compiled
def _close(pool: Any, idle_run: int, rested: int) -> None:
    """Take in that `rested` frames have come to rest in `idle_run`, and that no more will."""
    if rested > 0:
        pool.order[idle_run].idle = rested
        pool.worker[0].idle += rested


@compiled
def _compact(pool: Any) -> None:
    """Close the gaps that idle runs without frames are in the order; the others keep their sequence."""
    record = pool.worker[0]
    frames, order = pool.frames, pool.order
    mask = natural(order.shape[0] - 1)
    kept = record.oldest
    for at in range(record.oldest, record.newest):
        old, new = natural(at & mask), natural(kept & mask)
        if order[old].idle > 0:
            kept += 1
            frame = natural(order[old].top)
            order[new].top = frame
            order[new].idle = order[old].idle
            if new != old:
                for _ in range(order[new].idle):
                    while frames[frame].refs != -1 - old:
                        frame = natural(frame - 1)
                    frames[frame].refs = -1 - new
                    frame = natural(frame - 1)
    record.newest = kept
