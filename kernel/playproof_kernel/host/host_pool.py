"""A pool in host memory (G2), one worker's or shared by several: which blocks are there or on their way, who is
pinned, and who was used last.

A block is absent, pending while a store writes it, resident, or pinned while a load reads it. Resident blocks that are
not pinned are idle; they have an order of use, and the oldest are evicted for new ones. The functions take a
`HostPool`, the views of one pool's arrays, and a run of keys: from `key` in steps of `stride`, `number` of them.

**Groups.** A block is known by the place of its key in the index (`key_groups`), and what is known of it stands in
arrays by place. What a step asks of most blocks, whether they are there, pending or idle, each group has as well, a bit
for each of its places; so a run of keys is looked up and used a group at a time, and only blocks whose state changes
are touched one by one. Groups without blocks are given back.

**Order.** Idle blocks stand in `order`, from the oldest to the newest, as *idle runs*: blocks of one group that were
used in one go, of which the one with the highest key is the oldest. A group knows its latest idle run, and each idle
run the group's one before it. Blocks that are used again, pinned or evicted leave their idle runs, and an idle run
without blocks is passed over. When the end of the order is reached, such idle runs are compacted out; it reaches twice
as far as there are idle runs then, so that this costs each use a fixed share of a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_spec.machines import BlockEvent, BlockState, HostBlockEvent

from playproof_kernel.ground import key_groups
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant, natural
from playproof_kernel.ground.key_groups import GROUP, GROUP_BITS
from playproof_kernel.ground.transitions import BLOCK_TABLE, HOST_BLOCK_TABLE, advance
from playproof_kernel.memory import cache_events
from playproof_kernel.memory.block_pool import address_of

_PREPARE_STORE, _STORE_DONE = constant(HostBlockEvent.PREPARE_STORE), constant(HostBlockEvent.STORE_DONE)
_PIN, _UNPIN, _EVICT = (
    constant(HostBlockEvent.PIN),
    constant(HostBlockEvent.UNPIN),
    constant(HostBlockEvent.EVICT),
)
_START_READ, _READ_DONE = constant(BlockEvent.START_READ), constant(BlockEvent.READ_DONE)
_READING, _READING_IDLE = constant(BlockState.READING), constant(BlockState.READING_IDLE)

# Length of `order`, in blocks of the pool: each may be an idle run of its own, and be used again.
ORDER_PER_BLOCK = 2
# How far the order reaches at least before it is compacted, if it is that long.
_SHORTEST = 1024


class HostPool(NamedTuple):
    """Views of one pool's part of `Sim`; every function here writes to them alone.

    Attributes
    ----------
    states : Int8; details : records of `HostDetail`; shape (capacity * GROUP,), by place
    order : records of `HostIdleRun`, shape (capacity * ORDER_PER_BLOCK,)
    buckets : Int32, shape (power of two,); groups : records of `HostKeyGroup`, shape (capacity,)
    record : records of `Host`, shape (1,)
    index, evicted : records of `Indexed`; index_buckets : Int32
        What the KV router was told of the pool, and what the worker has yet to tell; without the router the last
        record of each alone.
    """

    states: Any
    details: Any
    order: Any
    buckets: Any
    groups: Any
    record: Any
    index: Any
    index_buckets: Any
    evicted: Any


class Sources(NamedTuple):
    """The G1 frames of a run of keys, and what a store writes to them.

    Attributes
    ----------
    table : Int32, shape (number,)
        The frames.
    addresses : Int32; read_addresses, states : Int8; frames : records of `Frame`
        Those of the worker; see `Sim`.
    """

    table: Any
    addresses: Any
    read_addresses: Any
    states: Any
    frames: Any


@compiled
def pool_of(sim: Sim, worker: int) -> HostPool:
    """Return the host pool of `worker`."""
    row, workers = int(sim.hosts[worker].pool), sim.workers.shape[0]
    return HostPool(
        sim.host_state[row],
        sim.host_details[row],
        sim.host_order[row],
        sim.host_buckets[row],
        sim.host_key_groups[row],
        sim.hosts[row : row + 1],
        sim.index[workers + row],
        sim.index_buckets[workers + row],
        sim.index[2 * workers + worker],
    )


# Places of a group as bits --------------------------------------------------------------------------------------------


@compiled
def _from(key: int, stride: int, number: int) -> tuple[int, int]:
    """Return the places in its group that `key`, and those after it in steps of `stride`, have, and how many they are.

    There are `number` keys at most.
    """
    low = key & (GROUP - 1)
    if stride == 1:  # no division, and no loop
        of_group = min(GROUP - low, number)
        return ((1 << of_group) - 1) << low, of_group
    of_group = min((GROUP - 1 - low) // stride + 1, number)
    return _places(low, stride, of_group), of_group


@compiled
def _up_to(key: int, stride: int, number: int) -> tuple[int, int]:
    """Return the same of `key` and those before it."""
    low = key & (GROUP - 1)
    if stride == 1:
        of_group = min(low + 1, number)
        return ((1 << of_group) - 1) << (low + 1 - of_group), of_group
    of_group = min(low // stride + 1, number)
    return _places(low - (of_group - 1) * stride, stride, of_group), of_group


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
def _group_of(pool: Any, key: int, near: int) -> int:
    """Return the group of `key`, or NONE when it has none; most often it is `near`, beside the group of the key before.

    For groups are taken one after another, and those of a prompt at once.
    """
    if 0 <= near < pool.groups.shape[0]:
        group = pool.groups[natural(near)]
        if group.number == key >> GROUP_BITS and group.there != 0:
            return near
    return key_groups.group_of(pool.groups, pool.buckets, key)


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
    pending, pinned, group, i = False, False, NONE, 0
    while i < number:
        group = _group_of(pool, key + i * stride, group + 1)
        if group == NONE:
            break
        record = pool.groups[natural(group)]
        found, of_group = _from(key + i * stride, stride, number - i)
        absent = found & ~record.there
        if absent != 0:
            found &= (absent & -absent) - 1
        pending = pending or found & record.pending != 0
        pinned = pinned or found & ~(record.pending | record.idle) != 0
        if absent != 0:
            return i + _count(found), pending, pinned
        i += of_group
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
    missing, kept, is_read, group, i = 0, 0, False, NONE, 0
    while i < number:
        group = _group_of(pool, key + i * stride, group + 1)
        asked, of_group = _from(key + i * stride, stride, number - i)
        if group != NONE:
            kept += _count(asked & pool.groups[natural(group)].idle)
            asked &= ~pool.groups[natural(group)].there
        missing += _count(asked)
        if some_read and asked != 0:
            low = (key + i * stride) & (GROUP - 1)
            for j in range(of_group):
                if (asked >> (low + j * stride)) & 1 != 0:
                    address = address_of(sources.addresses, int(sources.table[i + j]))
                    is_read = is_read or sources.read_addresses[natural(address)] != 0
        i += of_group
    return missing, kept, is_read


# The order of use --------------------------------------------------------------------------------------------------


@compiled
def reserve(pool: Any, number: int) -> None:
    """See to it that `number` idle runs can come into the order before it is compacted, at most one for each block."""
    record = pool.record[0]
    if record.newest + number > record.order_end:
        _compact(pool)
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
    moved, group, left = 0, NONE, number
    while left > 0:
        last = key + (left - 1) * stride
        group = _group_of(pool, last, group - 1)
        asked, of_group = _up_to(last, stride, left)
        if group != NONE:
            moved += _use_of_group(pool, group, asked & pool.groups[natural(group)].idle, before)
        left -= of_group
    return moved


@compiled
def _use_of_group(pool: Any, group: int, blocks: int, before: int) -> int:
    record, of_group, order = pool.record[0], pool.groups[natural(group)], pool.order
    if blocks == 0:
        return 0
    old, new = natural(of_group.latest), natural(record.newest)
    if order[old].blocks == blocks and order[old].earlier == NONE and old < before:
        # Most often the group has one idle run, and all of it is used.
        order[old].blocks = 0
        order[new].group = group
        order[new].blocks = blocks
        order[new].earlier = NONE
        of_group.latest = new
        record.newest += 1
        return _count(blocks)
    at = int(of_group.latest)
    while at >= before:
        blocks &= ~order[natural(at)].blocks
        at = int(order[natural(at)].earlier)
    if blocks != 0:
        _leave(pool, group, blocks)
        _come(pool, group, blocks)
    return _count(blocks)


@compiled
def use_again(pool: Any, begin: int, end: int) -> None:
    """Let the idle runs from `begin` to `end` of the order be the most recent, in the same sequence; room is there."""
    for at in range(begin, end):
        idle_run = pool.order[natural(at)]
        if idle_run.blocks != 0:
            group, blocks = int(idle_run.group), int(idle_run.blocks)
            _leave(pool, group, blocks)
            _come(pool, group, blocks)


@compiled
def _come(pool: Any, group: int, blocks: int) -> None:
    """Let blocks of a group, as bits, be idle and most recent."""
    record = pool.record[0]
    if record.newest == record.order_end:
        _compact(pool)
    at = natural(record.newest)
    of_group = pool.groups[natural(group)]
    pool.order[at].group = group
    pool.order[at].blocks = blocks
    pool.order[at].earlier = of_group.latest
    of_group.latest = at
    of_group.idle |= blocks
    record.newest += 1


@compiled
def _leave(pool: Any, group: int, blocks: int) -> None:
    """Take idle blocks of a group, as bits, out of the order."""
    of_group, order = pool.groups[natural(group)], pool.order
    of_group.idle &= ~blocks
    later, at = NONE, int(of_group.latest)
    while blocks != 0:
        idle_run = natural(at)
        earlier = int(order[idle_run].earlier)
        left = order[idle_run].blocks & ~blocks
        blocks &= ~order[idle_run].blocks
        order[idle_run].blocks = left
        if left != 0:
            later = at
        elif later == NONE:
            of_group.latest = earlier
        else:
            order[natural(later)].earlier = earlier
        at = earlier


@compiled
def _compact(pool: Any) -> None:
    """Close the gaps that idle runs without blocks are in the order; the others keep theirs, as does `used_at`."""
    record, order = pool.record[0], pool.order
    kept, before = 0, 0
    for at in range(record.oldest, record.newest):
        old, new = natural(at), natural(kept)
        if order[old].blocks != 0:
            group = natural(order[old].group)
            # The group's one before it, if there is any, has its new place already, and is its latest so far.
            earlier = NONE if order[old].earlier == NONE else int(pool.groups[group].latest)
            order[new].group = group
            order[new].blocks = order[old].blocks
            order[new].earlier = earlier
            pool.groups[group].latest = new
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
        group = natural(pool.order[natural(at)].group)
        evicted = 0
        for low in range(GROUP - 1, -1, -1):
            if left > 0 and (blocks >> low) & 1 != 0:
                place = natural((group << GROUP_BITS) | low)
                advance(HOST_BLOCK_TABLE, pool.states, place, _EVICT)
                if pool.index.shape[0] > 1:
                    cache_events.log(pool.evicted, key_groups.key_at(pool.groups, place))
                evicted |= 1 << low
                left -= 1
        _leave(pool, group, evicted)
        pool.groups[group].there &= ~evicted
        if pool.groups[group].there == 0:
            key_groups.drop(pool.groups, pool.buckets, record, group)
    record.oldest = at
    record.used -= number
    record.idle -= number
    record.older -= number
    record.evictions += number


@compiled
def store(pool: Any, transfer: Any, key: int, stride: int, number: int, sources: Any, keeps: bool) -> None:
    """Add what the pool lacks of a run of keys to a store; the caller knows that there is room.

    Its blocks are chained from the last to the first. With `keeps` it has references of its own to what it reads.
    """
    chain, added, group, i = int(transfer.first), 0, NONE, 0
    while i < number:
        group = _group_of(pool, key + i * stride, group + 1)
        missing, of_group = _from(key + i * stride, stride, number - i)
        if group == NONE:
            group = key_groups.new_group(pool.groups, pool.buckets, pool.record[0], key + i * stride)
            pool.groups[natural(group)].latest = NONE
        missing &= ~pool.groups[natural(group)].there
        pool.groups[natural(group)].there |= missing
        pool.groups[natural(group)].pending |= missing
        low = (key + i * stride) & (GROUP - 1)
        for j in range(of_group if missing != 0 else 0):
            if (missing >> (low + j * stride)) & 1 != 0:
                place = natural((group << GROUP_BITS) | (low + j * stride))
                frame = natural(sources.table[i + j])
                address = address_of(sources.addresses, frame)
                advance(HOST_BLOCK_TABLE, pool.states, place, _PREPARE_STORE)
                pool.details[place].link = chain
                pool.details[place].source = frame
                pool.details[place].address = address
                chain = place
                advance(BLOCK_TABLE, sources.states, frame, _START_READ)
                if keeps:
                    sources.frames[frame].refs += 1
                added += 1
        i += of_group
    transfer.first = chain
    transfer.blocks += added
    pool.record[0].used += added


@compiled
def stored(pool: Any, place: int, sources: Any) -> tuple[int, int]:
    """Let the blocks of a store that ended be there, of one group from `place` on.

    They are the most recent ones, the last block first, so that the head of a prompt stays longest.

    Returns
    -------
    following : int
        Where the rest of the store begins, or NONE.
    evicted : int
        How many of them were evicted from G1 meanwhile.
    """
    group, blocks, number, evicted = place >> GROUP_BITS, 0, 0, 0
    states, following = sources.states, place
    while following != NONE and following >> GROUP_BITS == group and following <= place:
        place = natural(following)
        following = int(pool.details[place].link)
        frame, address = natural(pool.details[place].source), int(pool.details[place].address)
        # If it was evicted, its number may stand for another transfer.
        is_there = address_of(sources.addresses, frame) == address
        if is_there and (states[frame] == _READING or states[frame] == _READING_IDLE):
            advance(BLOCK_TABLE, states, frame, _READ_DONE)
        else:
            sources.read_addresses[natural(address)] = 0
            evicted += 1
        advance(HOST_BLOCK_TABLE, pool.states, place, _STORE_DONE)
        if pool.index.shape[0] > 1:
            cache_events.tell(pool.index, pool.index_buckets, key_groups.key_at(pool.groups, place), ONE)
        blocks |= 1 << (place & (GROUP - 1))
        number += 1
    pool.groups[natural(group)].pending &= ~blocks
    _come(pool, group, blocks)
    pool.record[0].idle += number
    return following, evicted


@compiled
def pin(pool: Any, key: int, stride: int, number: int) -> None:
    """Keep blocks, all of them there, until a load has read them."""
    group, i = NONE, 0
    while i < number:
        group = _group_of(pool, key + i * stride, group + 1)
        asked, of_group = _from(key + i * stride, stride, number - i)
        fresh = asked & pool.groups[natural(group)].idle
        _leave(pool, group, fresh)
        low = (key + i * stride) & (GROUP - 1)
        for j in range(of_group):
            place = natural((group << GROUP_BITS) | (low + j * stride))
            if (fresh >> (low + j * stride)) & 1 != 0:
                advance(HOST_BLOCK_TABLE, pool.states, place, _PIN)
                pool.details[place].link = 0
            pool.details[place].link += 1
        pool.record[0].idle -= _count(fresh)
        i += of_group


@compiled
def unpin(pool: Any, key: int, stride: int, number: int) -> None:
    """Let go of pinned blocks, last key first; each is the most recent once it has no pins."""
    group, left = NONE, number
    while left > 0:
        last = key + (left - 1) * stride
        group = _group_of(pool, last, group - 1)
        _, of_group = _up_to(last, stride, left)
        freed = 0
        for j in range(of_group):
            low = (last & (GROUP - 1)) - j * stride
            place = natural((group << GROUP_BITS) | low)
            pool.details[place].link -= 1
            if pool.details[place].link == 0:
                advance(HOST_BLOCK_TABLE, pool.states, place, _UNPIN)
                freed |= 1 << low
        if freed != 0:
            _come(pool, group, freed)
            pool.record[0].idle += _count(freed)
        left -= of_group
