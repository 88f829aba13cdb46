"""The host pool beside a naive one, step by step: keys at the edges of pages, steps, and an order that is often full.

What a pool knows by page, as bits and stretches, the naive one knows block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from group_index import chained_blocks, live_pages
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from playproof_kernel.ground.arrays import (
    NONE,
    Frame,
    Host,
    HostDetail,
    HostIdleRun,
    HostKeyGroup,
    HostTransfer,
    Indexed,
)
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.ground.records import records
from playproof_kernel.host import host_pool
from playproof_kernel.host.host_pool import HostPool, Sources
from playproof_spec.machines import BlockState, HostBlockState

# Few keys, so that steps meet the same blocks, at the edges of few pages; a step may be longer than a page.
KEYS = st.builds(
    lambda page, place: page * GROUP + place,
    st.integers(0, 2),
    st.sampled_from([0, 1, 2, GROUP // 2, GROUP - 3, GROUP - 2, GROUP - 1]),
)
STRIDES = st.sampled_from([1, 1, 2, 3, GROUP + 1])


# The pool's functions are compiled into their callers; these are callers for the test.
@compiled_entry
def find(pool: HostPool, key: int, stride: int, number: int) -> tuple[int, bool, bool]:
    return host_pool.find(pool, key, stride, number)


@compiled_entry
def examine(pool: HostPool, key: int, stride: int, number: int, sources: Sources) -> tuple[int, int, bool]:
    return host_pool.examine(pool, key, stride, number, sources, True)


@compiled_entry
def store(pool: HostPool, copying: Any, key: int, stride: int, number: int, sources: Sources) -> None:
    host_pool.store(pool, copying[0], key, stride, number, sources, False)


@compiled_entry
def end_store(pool: HostPool, copying: Any, sources: Sources) -> int:
    place, evicted = int(copying[0].first), 0
    while place != NONE:
        place, more = host_pool.stored(pool, place, sources)
        evicted += more
    return evicted


@compiled_entry
def use(pool: HostPool, key: int, stride: int, number: int, before: int) -> int:
    if before == NONE:
        host_pool.reserve(pool, number)
        return host_pool.use(pool, key, stride, number, 1 << 40)
    host_pool.reserve(pool, 2 * int(pool.record[0].idle))
    used_at, end = int(pool.record[0].used_at), int(pool.record[0].newest)
    moved = host_pool.use(pool, key, stride, number, used_at)
    host_pool.use_again(pool, used_at, end)
    return moved


@compiled_entry
def evict(pool: HostPool, number: int) -> None:
    host_pool.evict(pool, number)


@compiled_entry
def pin(pool: HostPool, key: int, stride: int, number: int) -> None:
    host_pool.pin(pool, key, stride, number)


@compiled_entry
def unpin(pool: HostPool, key: int, stride: int, number: int) -> None:
    host_pool.unpin(pool, key, stride, number)


def new_pool(size: int) -> HostPool:
    record = records(1, Host)
    record.capacity = size
    record.spare_group = NONE
    log = records(1, Indexed)
    return HostPool(
        states=np.zeros(size * GROUP, np.int8),
        details=records(size * GROUP, HostDetail),
        order=records(size * host_pool.ORDER_PER_BLOCK, HostIdleRun),
        buckets=np.full(2, NONE, np.int32),
        groups=records(size, HostKeyGroup),
        record=record,
        index=log,
        index_buckets=np.zeros(0, np.int32),
        evicted=log,
    )


def new_sources(number: int) -> Sources:
    """Copies of G1 that are cached and held, one for each key of a run."""
    return Sources(
        table=np.arange(number, dtype=np.int32),
        addresses=np.arange(number, dtype=np.int32),
        read_addresses=np.zeros(number, np.int8),
        states=np.full(number, BlockState.CACHED_ACTIVE, np.int8),
        frames=records(number, Frame),
    )


class HostPoolBesideNaive(RuleBasedStateMachine):
    """Blocks are stored, used, pinned and evicted; `idle` has the idle ones of the naive pool, the oldest first."""

    @initialize(size=st.integers(1, 30))
    def create(self, size: int) -> None:
        self.pool = new_pool(size)
        self.size = size
        self.pending: set[int] = set()
        self.idle: list[int] = []
        self.pins: dict[int, int] = {}
        self.stores: list[tuple[Any, Sources, list[int]]] = []
        self.loads: list[tuple[int, int, int]] = []
        # Where the order ended at the latest mark, as the blocks that were idle before it.
        self.marked: set[int] = set()

    def held(self) -> set[int]:
        return self.pending | set(self.idle) | self.pins.keys()

    def come(self, keys: list[int]) -> None:
        """Let blocks be idle and most recent, one after another."""
        for key in keys:
            if key in self.idle:
                self.idle.remove(key)
            self.marked.discard(key)
            self.idle.append(key)

    @rule(key=KEYS, stride=STRIDES, number=st.integers(1, 9), gone=st.sets(st.integers(0, 8)))
    def begin_store(self, key: int, stride: int, number: int, gone: set[int]) -> None:
        room = self.size - len(self.held())
        missing = [key for key in (key + i * stride for i in range(number)) if key not in self.held()][:room]
        if not missing:
            return
        number = (missing[-1] - key) // stride + 1
        keys = [key + i * stride for i in range(number)]
        sources = new_sources(number)
        sources.read_addresses[[i for i in gone if i < number]] = 1
        is_read = any(i in gone for i, key in enumerate(keys) if key in missing)
        kept = sum(key in self.idle for key in keys)
        assert examine(self.pool, key, stride, number, sources) == (len(missing), kept, is_read)
        sources.read_addresses[:] = 0
        copying = records(1, HostTransfer)
        copying.first = NONE
        store(self.pool, copying, key, stride, number, sources)
        assert int(copying[0].blocks) == len(missing)
        read = [i for i, key in enumerate(keys) if key in missing]
        assert np.flatnonzero(sources.states == BlockState.READING).tolist() == read
        self.pending |= set(missing)
        self.stores.append((copying, sources, missing))

    @rule(runs=st.lists(st.tuples(KEYS, st.integers(1, 3)), min_size=1, max_size=4))
    def store_at_once(self, runs: list[tuple[int, int]]) -> None:
        """Store a prompt of several runs, in whatever order their keys are, and let it end."""
        copying = records(1, HostTransfer)
        copying.first = NONE
        sources, stored = new_sources(3 * len(runs)), list[int]()
        for turn, (key, number) in enumerate(runs):
            room = self.size - len(self.held()) - len(stored)
            keys = [key for key in range(key, key + number) if key not in (*self.held(), *stored)][:room]
            if keys:
                of_run = sources._replace(table=sources.table[3 * turn : 3 * (turn + 1)])
                store(self.pool, copying, key, 1, keys[-1] + 1 - key, of_run)
                stored += keys
        assert end_store(self.pool, copying, sources) == 0
        self.come(stored[::-1])

    @precondition(lambda self: self.stores)
    @rule(data=st.data())
    def finish_store(self, data: st.DataObject) -> None:
        copying, sources, keys = self.stores.pop(data.draw(st.integers(0, len(self.stores) - 1)))
        # Some were evicted from G1 meanwhile, and their numbers may stand for copies in other slots.
        gone = data.draw(st.lists(st.sampled_from(np.flatnonzero(sources.states).tolist()), unique=True))
        reading = [copy for copy in gone if sources.states[copy] == BlockState.READING]
        for copy in reading:
            sources.states[copy] = BlockState.FREE
            sources.read_addresses[copy] = 1
            if data.draw(st.booleans()):
                sources.states[copy], sources.addresses[copy] = BlockState.READING, len(sources.table)
        assert end_store(self.pool, copying, sources) == len(reading)
        assert not sources.read_addresses.any()
        assert np.count_nonzero(sources.states == BlockState.READING) == np.count_nonzero(
            sources.addresses == len(sources.table)
        )
        self.pending -= set(keys)
        self.come(keys[::-1])

    @rule(key=KEYS, stride=STRIDES, number=st.integers(1, 9))
    def look_up(self, key: int, stride: int, number: int) -> None:
        keys = [key + i * stride for i in range(number)]
        present = next((i for i, key in enumerate(keys) if key not in self.held()), number)
        found = set(keys[:present])
        expected = (present, bool(found & self.pending), bool(found & self.pins.keys()))
        assert find(self.pool, key, stride, number) == expected

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), stride=STRIDES, number=st.integers(1, 9))
    def use_some(self, data: st.DataObject, stride: int, number: int) -> None:
        key = data.draw(st.sampled_from(self.idle))
        used = [key for key in (key + i * stride for i in range(number - 1, -1, -1)) if key in self.idle]
        assert use(self.pool, key, stride, number, NONE) == len(used)
        self.come(used)

    @rule()
    def mark(self) -> None:
        self.pool.record.used_at = self.pool.record.newest
        self.marked = set(self.idle)

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), stride=STRIDES, number=st.integers(1, 9))
    def use_as_of_the_mark(self, data: st.DataObject, stride: int, number: int) -> None:
        """Use what stands before the mark, and then all that came since, as putting off a use wants it."""
        key = data.draw(st.sampled_from(self.idle))
        since = [key for key in self.idle if key not in self.marked]
        used = [key for key in (key + i * stride for i in range(number - 1, -1, -1)) if key in self.marked]
        assert use(self.pool, key, stride, number, 1) == len(used)
        self.come(used)
        self.come(since)
        self.mark()

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def evict_some(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, len(self.idle)))
        evict(self.pool, number)
        self.marked -= set(self.idle[:number])
        self.idle = self.idle[number:]

    @rule(key=KEYS, stride=STRIDES, number=st.integers(1, 9))
    def begin_load(self, key: int, stride: int, number: int) -> None:
        keys = [key + i * stride for i in range(number)]
        there = next((i for i, key in enumerate(keys) if key not in self.held() - self.pending), number)
        if there == 0:
            return
        pin(self.pool, key, stride, there)
        for pinned in keys[:there]:
            if pinned in self.idle:
                self.idle.remove(pinned)
                self.marked.discard(pinned)
            self.pins[pinned] = self.pins.get(pinned, 0) + 1
        self.loads.append((key, stride, there))

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def finish_load(self, data: st.DataObject) -> None:
        key, stride, number = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        unpin(self.pool, key, stride, number)
        for i in range(number - 1, -1, -1):
            pinned = key + i * stride
            self.pins[pinned] -= 1
            if self.pins[pinned] == 0:
                del self.pins[pinned]
                self.come([pinned])

    @invariant()
    def same_blocks(self) -> None:
        of_state: dict[int, set[int]] = {state: set() for state in HostBlockState}
        for place in np.flatnonzero(self.pool.states):
            key = int(self.pool.groups[place // GROUP].number) * GROUP + int(place) % GROUP
            of_state[int(self.pool.states[place])].add(key)
            if self.pool.states[place] == HostBlockState.PINNED:
                assert int(self.pool.details[place].link) == self.pins[key]
        assert of_state[HostBlockState.PENDING_STORE] == self.pending
        assert of_state[HostBlockState.RESIDENT] == set(self.idle)
        assert of_state[HostBlockState.PINNED] == self.pins.keys()
        record = self.pool.record[0]
        assert (int(record.used), int(record.idle)) == (len(self.held()), len(self.idle))

    @invariant()
    def same_order(self) -> None:
        record = self.pool.record[0]
        stretches = self.pool.order[int(record.oldest) : int(record.newest)]
        assert [
            int(self.pool.groups[int(stretch.group)].number) * GROUP + low
            for stretch in stretches
            for low in range(GROUP - 1, -1, -1)
            if int(stretch.blocks) >> low & 1
        ] == self.idle

    @invariant()
    def each_page_chains_its_stretches(self) -> None:
        """All of its idle blocks are in them."""
        for number, page in enumerate(self.pool.groups[: int(self.pool.record[0].groups)]):
            assert chained_blocks(self.pool.groups, self.pool.order, number) == int(page.idle)

    @invariant()
    def pages_without_blocks_are_given_back(self) -> None:
        live = live_pages(self.pool.groups, self.pool.record[0])
        numbers = sorted(int(self.pool.groups[page].number) for page in live)
        assert numbers == sorted({key // GROUP for key in self.held()})


TestHostPoolBesideNaive = HostPoolBesideNaive.TestCase
TestHostPoolBesideNaive.settings = settings(stateful_step_count=100)
