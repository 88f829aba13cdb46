"""The block pool beside a naive one, step by step (invariant 3 of the specification, and the cache's order)."""

from __future__ import annotations

from typing import Any

import numpy as np
from group_index import live_pages
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from playproof_kernel.ground.arrays import NONE, Frame, IdleRun, KeyGroup, Worker
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.ground.records import records
from playproof_kernel.memory import block_pool
from playproof_kernel.memory.block_pool import GENERATED, Pool
from playproof_reference.blocks import BlockPool as NaivePool
from playproof_spec.machines import BlockState


# The pool's functions are compiled into their callers; these are callers for the test.
@compiled_entry
def find(pool: Pool, found: Any, begin: int, key: int, stride: int, number: int) -> int:
    return block_pool.find(pool, found, begin, key, stride, number)


@compiled_entry
def in_use(pool: Pool, found: Any, number: int) -> int:
    return block_pool.in_use(pool, found, number)


@compiled_entry
def allocate(pool: Pool, table: Any, begin: int, number: int) -> None:
    block_pool.get_new_blocks(pool, table, begin, number, block_pool.ALLOCATE)


@compiled_entry
def reuse(pool: Pool, found: Any, table: Any, begin: int, number: int) -> None:
    block_pool.touch(pool, found, table, begin, number)


@compiled_entry
def take(pool: Pool, table: Any, begin: int, key: int, stride: int, number: int) -> int:
    return block_pool.touch_cached(pool, table, begin, key, stride, number)


@compiled_entry
def fill(pool: Pool, table: Any, begin: int, number: int, key: int, stride: int) -> None:
    block_pool.cache_blocks(pool, table, begin, number, key, stride, block_pool.FILL)


@compiled_entry
def release(pool: Pool, table: Any, begin: int, number: int) -> None:
    block_pool.free_blocks(pool, table, begin, number)


@compiled_entry
def next_idle(pool: Pool, at: int, passed: int, copy: int) -> tuple[int, int, int]:
    return block_pool.next_idle(pool, at, passed, copy)


# Where the batches stand in the arrays that the pool is given; what stands before and behind is not to be touched.
BEGIN = 2
UNTOUCHED = -7


# Few keys, so that copies of one are common, at the edges of few pages of the index.
KEYS = st.builds(
    lambda page, place: page * GROUP + place,
    st.sampled_from([0, 1, 2, GENERATED // GROUP]),
    st.sampled_from([0, 1, 2, 3, GROUP - 4, GROUP - 3, GROUP - 2, GROUP - 1]),
)


def table_of(copies: list[int]) -> Any:
    return np.array([*[UNTOUCHED] * BEGIN, *copies, UNTOUCHED], np.int64)


def entries_of(table: Any) -> list[int]:
    assert [*table[:BEGIN], table[-1]] == [UNTOUCHED] * (BEGIN + 1)
    return [int(copy) for copy in table[BEGIN:-1]]


def new_pool(size: int, slotted: bool) -> Pool:
    worker = records(1, Worker)
    worker.free = size
    worker.spare_group = NONE
    # The ring is as small as it may be, so that it is often full.
    order = records(1 << (2 * size).bit_length(), IdleRun)
    return Pool(
        frames=records(2 * size, Frame),
        states=np.zeros(2 * size, np.int8),
        links=np.zeros(2 * size, np.int32),
        addresses=np.zeros(2 * size if slotted else 0, np.int32),
        free_addresses=np.arange(size - 1, -1, -1, dtype=np.int32)[: size if slotted else 0],
        read_addresses=np.zeros(size if slotted else 0, np.int8),
        order=order,
        buckets=np.full(4, NONE, np.int32),
        groups=records(size, KeyGroup),
        places=np.zeros(size * GROUP, np.int32),
        worker=worker,
    )


class PoolBesideNaive(RuleBasedStateMachine):
    """Holders take and give blocks; keys come from a small universe, so that copies of one key are common."""

    @initialize(size=st.integers(1, 9), slotted=st.booleans())
    def create(self, size: int, slotted: bool) -> None:
        self.size = size
        self.pool = new_pool(size, slotted)
        self.naive = NaivePool(size)
        # Copies in use, as (ours, naive's): which physical copy is taken may differ, what it holds may not.
        self.held: list[tuple[int, int]] = []
        self.pairs: dict[int, int] = {}

    def idle_or_free(self) -> int:
        return int(self.pool.worker[0].free + self.pool.worker[0].idle)

    @precondition(lambda self: self.naive.available() > 0)
    @rule(data=st.data())
    def take_private(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.naive.available()))
        table = table_of([0] * number)
        allocate(self.pool, table, BEGIN, number)
        for ours, theirs in zip(entries_of(table), self.naive.allocate_all(number), strict=True):
            self.pairs[ours] = theirs
            self.held.append((ours, theirs))
            # The naive copies are slots, counted from the other end.
            assert not len(self.pool.addresses) or self.pool.addresses[ours] == self.size - 1 - theirs

    @precondition(lambda self: any(theirs not in self.naive.content for _, theirs in self.held))
    @rule(data=st.data(), key=KEYS, stride=st.integers(1, 3))
    def fill_some(self, data: st.DataObject, key: int, stride: int) -> None:
        private = [pair for pair in self.held if pair[1] not in self.naive.content]
        chosen = data.draw(st.lists(st.sampled_from(private), min_size=1, unique=True))
        fill(self.pool, table_of([ours for ours, _ in chosen]), BEGIN, len(chosen), key, stride)
        for i, (_, theirs) in enumerate(chosen):
            self.naive.fill(theirs, key + i * stride)

    @rule(key=KEYS, stride=st.integers(1, 3), number=st.integers(1, 5), at_once=st.booleans())
    def look_up_and_share(self, key: int, stride: int, number: int, at_once: bool) -> None:
        wanted = [self.naive.find(key + i * stride) for i in range(number)]
        theirs = wanted[: wanted.index(None)] if None in wanted else wanted
        found = np.full(number + 1, UNTOUCHED, np.int64)
        hits = find(self.pool, found, 1, key, stride, number)
        ours = found[1 : 1 + hits]
        assert [self.pairs[int(copy)] for copy in ours] == theirs
        assert in_use(self.pool, ours.copy(), hits) == sum(
            self.naive.refs[copy] > 0 for copy in theirs if copy is not None
        )
        assert (found[1 + hits :] == UNTOUCHED).all()
        if at_once:
            table = table_of([0] * number)
            assert take(self.pool, table, BEGIN, key, stride, number) == hits
            assert entries_of(table) == [*ours.tolist(), *[0] * (number - hits)]
        else:
            table = table_of([0] * hits)
            reuse(self.pool, ours.copy(), table, BEGIN, hits)
            assert entries_of(table) == ours.tolist()
        for copy, pair in zip(ours, theirs, strict=True):
            assert pair is not None
            self.naive.reuse(pair)
            self.held.append((int(copy), pair))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        places = data.draw(st.lists(st.integers(0, len(self.held) - 1), min_size=1, unique=True))
        given = [self.held[place] for place in places]
        self.held = [pair for place, pair in enumerate(self.held) if place not in places]
        release(self.pool, table_of([ours for ours, _ in given]), BEGIN, len(given))
        for _, theirs in reversed(given):
            self.naive.release(theirs)

    @invariant()
    def same_counts(self) -> None:
        worker = self.pool.worker[0]
        assert int(worker.free) == len(self.naive.free)
        assert int(worker.idle) == len(self.naive.idle)

    @invariant()
    def nothing_is_lost(self) -> None:
        states = self.pool.states
        counts = {state: int((states == state).sum()) for state in BlockState}
        assert counts[BlockState.FREE] - len(states) + self.size == int(self.pool.worker[0].free)
        assert counts[BlockState.CACHED_IDLE] == int(self.pool.worker[0].idle)
        assert sum(counts.values()) == len(states)
        references = self.pool.frames["refs"][np.isin(states, [BlockState.PRIVATE, BlockState.CACHED_ACTIVE])]
        assert (references > 0).all()
        assert int(references.sum()) == len(self.held)

    @invariant()
    def each_slot_is_free_or_the_slot_of_one_copy(self) -> None:
        if len(self.pool.addresses):
            free = self.pool.free_addresses[: int(self.pool.worker[0].free)]
            taken = self.pool.addresses[self.pool.states != BlockState.FREE]
            assert sorted([*free.tolist(), *taken.tolist()]) == list(range(self.size))

    @invariant()
    def the_index_has_the_pages_of_the_cached_keys_alone(self) -> None:
        keys: list[Any] = [key for key, copies in self.naive.cached.items() if copies]  # integers, as `KEYS` has them
        live = live_pages(self.pool.groups, self.pool.worker[0])
        assert sorted(int(self.pool.groups[page].number) for page in live) == sorted({key // GROUP for key in keys})
        places = self.pool.places.reshape(-1, GROUP)
        assert np.count_nonzero(places) == len(keys)
        assert all(self.pool.groups[page].used == np.count_nonzero(places[page]) for page in live)

    @invariant()
    def idle_blocks_stand_in_order_of_age(self) -> None:
        worker = self.pool.worker[0]
        assert worker.newest - worker.oldest <= len(self.pool.order)
        at, passed, copy = int(worker.oldest), 0, 0
        for theirs in self.naive.idle:
            at, passed, copy = next_idle(self.pool, at, passed, copy)
            assert self.pairs[int(copy)] == theirs
        stretches = np.arange(worker.oldest, worker.newest) % len(self.pool.order)
        assert int(self.pool.order.idle[stretches].sum()) == len(self.naive.idle)


TestPoolBesideNaive = PoolBesideNaive.TestCase
TestPoolBesideNaive.settings = settings(stateful_step_count=60)


def filled(pool: Pool, key: int) -> int:
    """Cache one more copy under `key`, in use; return it."""
    table = table_of([0])
    allocate(pool, table, BEGIN, 1)
    fill(pool, table, BEGIN, 1, key, 1)
    return entries_of(table)[0]


def test_the_copies_of_a_key_are_found_one_after_the_other() -> None:
    pool = new_pool(5, False)
    copies = [filled(pool, 7) for _ in range(4)]
    for number, copy in enumerate(copies):
        found = np.full(1, UNTOUCHED, np.int64)
        assert find(pool, found, 0, 7, 1, 1) == 1
        # The one that was cached first of those that are left; it goes, and the next one is the first.
        assert int(found[0]) == copy
        release(pool, table_of([copy]), BEGIN, 1)
        table = table_of([0] * (2 + number))
        allocate(pool, table, BEGIN, 2 + number)
        assert find(pool, found, 0, 7, 1, 1) == (number < 3)
        release(pool, table, BEGIN, 2 + number)


def test_an_idle_block_keeps_its_place_however_often_others_are_used() -> None:
    pool = new_pool(2, False)
    old, used = filled(pool, 0), filled(pool, 1)
    release(pool, table_of([old]), BEGIN, 1)
    release(pool, table_of([used]), BEGIN, 1)
    for _ in range(5 * len(pool.order)):
        table = table_of([0])
        assert take(pool, table, BEGIN, 1, 1, 1) == 1
        release(pool, table, BEGIN, 1)
        at, passed, copy = next_idle(pool, int(pool.worker[0].oldest), 0, 0)
        assert copy == old
        assert next_idle(pool, at, passed, copy)[2] == used
