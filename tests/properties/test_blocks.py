"""The block pool beside a naive one, step by step (invariant 3 of the specification, and the cache's order)."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive import NaivePool
from playproof_kernel import blocks
from playproof_kernel.arrays import COPY, NONE, WORKER, records
from playproof_kernel.blocks import Pool
from playproof_kernel.jit import compiled_entry
from playproof_spec.machines import BlockState


# The pool's functions are compiled into their callers; these are callers for the test.
@compiled_entry
def find(pool: Pool, key: int) -> int:
    return blocks.find(pool, key)


@compiled_entry
def allocate(pool: Pool) -> int:
    return blocks.allocate(pool)


@compiled_entry
def reuse(pool: Pool, copy: int) -> None:
    blocks.reuse(pool, copy)


@compiled_entry
def fill(pool: Pool, copy: int, key: int) -> None:
    blocks.fill(pool, copy, key)


@compiled_entry
def release(pool: Pool, copy: int) -> None:
    blocks.release(pool, copy)


def new_pool(size: int) -> Pool:
    copies = records(size + 1, COPY)
    copies["next"] = NONE
    copies["key"] = NONE
    copies["older"][size] = copies["newer"][size] = size
    worker = records(1, WORKER)
    worker.free = size
    free = np.arange(size, dtype=np.int32)
    return Pool(copies, np.zeros(size, np.int8), free, np.full(16, NONE, np.int32), worker)


class PoolBesideNaive(RuleBasedStateMachine):
    """Holders take and give blocks; keys come from a small universe, so that copies of one key are common."""

    @initialize(size=st.integers(1, 9))
    def create(self, size: int) -> None:
        self.size = size
        self.pool = new_pool(size)
        self.naive = NaivePool(size)
        # Copies in use, as (ours, naive's): which physical copy is taken may differ, what it holds may not.
        self.held: list[tuple[int, int]] = []
        self.pairs: dict[int, int] = {}

    def idle_or_free(self) -> int:
        return int(self.pool.worker[0].free + self.pool.worker[0].idle)

    @precondition(lambda self: self.naive.available() > 0)
    @rule()
    def take(self) -> None:
        ours, theirs = allocate(self.pool), self.naive.allocate()
        self.pairs[ours] = theirs
        self.held.append((ours, theirs))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.integers(0, 40))
    def fill_one(self, data: st.DataObject, key: int) -> None:
        ours, theirs = data.draw(st.sampled_from(self.held))
        if theirs not in self.naive.content:
            fill(self.pool, ours, key)
            self.naive.fill(theirs, key)

    @rule(key=st.integers(0, 40))
    def look_up_and_share(self, key: int) -> None:
        ours, theirs = find(self.pool, key), self.naive.find(key)
        if theirs is None:
            assert ours == NONE
        else:
            assert self.pairs[ours] == theirs
            reuse(self.pool, ours)
            self.naive.reuse(theirs)
            self.held.append((ours, theirs))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        ours, theirs = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        release(self.pool, ours)
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
        assert counts[BlockState.FREE] == int(self.pool.worker[0].free)
        assert counts[BlockState.CACHED_IDLE] == int(self.pool.worker[0].idle)
        assert sum(counts.values()) == self.size
        references = self.pool.copies["refs"][: self.size][
            np.isin(states, [BlockState.PRIVATE, BlockState.CACHED_ACTIVE])
        ]
        assert (references > 0).all()
        assert int(references.sum()) == len(self.held)

    @invariant()
    def idle_blocks_stand_in_order_of_age(self) -> None:
        order, at = [], int(self.pool.copies[self.size].newer)
        while at != self.size:
            order.append(self.pairs[at])
            at = int(self.pool.copies[at].newer)
        assert order == list(self.naive.idle)


TestPoolBesideNaive = PoolBesideNaive.TestCase
TestPoolBesideNaive.settings = settings(stateful_step_count=60)
