"""Host memory, instant by instant, beside the naive workers: stores, loads, evictions, cancellations, preemptions.

What is checked after every step: the pools hold the same blocks in the same states and the same order of use; capacity,
counted once for a pool that is shared; pins are those of the loads under way; a block is visible no sooner than its
store can have ended; blocks and bytes are conserved, and links are at the same point of the same copies; G1 accounts
for all its blocks, those that stores keep among them; the same requests run, wait, and stand aside; and while anything
remains, something is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from group_index import chained_blocks
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from loading import loading_case
from playproof_kernel.ground.arrays import DEFERRED, NONE, PENDING, WAITING
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.host import offload
from playproof_reference.disaggregated import Disaggregated as NaiveDisagg
from playproof_reference.host import Copying, SharedLinks
from playproof_reference.host import HostPool as NaiveHost
from playproof_reference.host import HostVllmWorker as NaiveHostWorker
from playproof_reference.roles import DestinationRole
from playproof_spec.deployment import HostSpec
from playproof_spec.machines import HostBlockState, RequestState, TransferState
from pressure import check_pools
from replay_machine import ReplayBesideNaive

UNDER_WAY = (TransferState.PREPARED, TransferState.SUBMITTED, TransferState.MOVING)
VISIBLE = (HostBlockState.RESIDENT, HostBlockState.PINNED)
# The states of the blocks that a page has as bits, by field.
BITS = {
    "there": (HostBlockState.PENDING_STORE, *VISIBLE),
    "pending": (HostBlockState.PENDING_STORE,),
    "idle": (HostBlockState.RESIDENT,),
}
# By how much a sum of floats may miss the bytes that an exact link has left.
BYTES_OFF_MOST = 1e-3


@compiled_entry
def settle(sim: Any, worker: int) -> None:
    offload._settle(sim, worker)


class HostBesideNaive(ReplayBesideNaive):
    """One replay by the kernel and one by the naive model, on workers with host memory."""

    shared: bool
    split: bool

    @initialize(seed=st.integers(0, 2**32 - 1))
    def create(self, seed: int) -> None:
        graph, deployment, load = loading_case(seed, self.shared, self.split)
        self.begin(graph, deployment, load)
        self.contents = dict(self.blocks_of_the_corpus())
        self.pending_since: dict[
            tuple[int, int], int
        ] = {}  # by row and key: the instant at which its store was prepared

    def look_closely(self) -> None:
        self.nothing_is_visible_before_its_store_can_have_ended()
        self.pools_are_the_same()

    # What is compared

    def hosted(self) -> Iterator[tuple[int, NaiveHostWorker]]:
        for number, worker in enumerate(self.naive.workers):
            if isinstance(worker, NaiveHostWorker):
                yield number, worker

    def pools(self) -> dict[int, NaiveHost]:
        """The naive pools by their rows in the kernel."""
        return {int(self.sim.hosts[number].pool): worker.host for number, worker in self.hosted()}

    def blocks_of_the_corpus(self) -> Iterator[tuple[int, object]]:
        """What the tokens are, up to its end, of each full prompt block: by its key."""
        for number, worker in self.hosted():
            config = self.sim.config[self.role(number)]
            for node in range(len(self.sim.node_state)):
                static = self.sim.static[node + (len(self.sim.node_state) if config.first_worker > 0 else 0)]
                contents = worker.keys(node)
                for run in self.sim.keys[int(static.key_begin) : int(static.key_end)]:
                    for i in range(int(run["count"])):
                        key = int(static.space) + int(run.first) + i * int(config.key_stride)
                        if int(run.begin) + i < len(contents):
                            yield key, contents[int(run.begin) + i]

    def role(self, worker: int) -> int:
        return 1 if self.sim.workers[worker].role and len(self.sim.config) > 1 else 0

    def held(self, row: int) -> dict[int, tuple[int, int]]:
        """State and pins of the blocks of a pool that are pending or there, by key."""
        details, states = self.sim.host_details[row], self.sim.host_state[row]
        places = (states != HostBlockState.ABSENT).nonzero()[0]
        pins = np.where(states == HostBlockState.PINNED, details.link, 0)
        return {self.key_at(row, place): (int(states[place]), int(pins[place])) for place in places}

    def key_at(self, row: int, place: int) -> int:
        return int(self.sim.host_key_groups[row][place // GROUP].number) * GROUP + int(place) % GROUP

    def copies(self) -> list[int]:
        """Rows of the copies prepared or under way."""
        states = self.sim.host_transfer_state
        return [
            row for row, state in enumerate(states) if state in UNDER_WAY and self.sim.host_transfers[row].blocks > 0
        ]

    def is_load(self, row: int) -> bool:
        return bool(self.sim.tickets[int(self.sim.host_transfers[row].request)].load == row)

    # What holds after each step

    @invariant()
    def pools_are_the_same(self) -> None:
        for row, pool in self.pools().items():
            held = self.held(row)
            states = {self.contents[key]: state for key, (state, _) in held.items()}
            pinned = {content for content, pins in pool.pins.items() if pins > 0}
            assert {
                content for content, state in states.items() if state == HostBlockState.PENDING_STORE
            } == pool.pending
            assert {content for content, state in states.items() if state in VISIBLE} == pool.pins.keys()
            assert {content for content, state in states.items() if state == HostBlockState.PINNED} == pinned
            assert {self.contents[key]: pins for key, (_, pins) in held.items() if pins} == {
                content: pool.pins[content] for content in pinned
            }
            assert [self.contents[key] for key in self.oldest_first(row)] == pool.oldest_first

    def oldest_first(self, row: int) -> list[int]:
        """Idle blocks of a pool in their order of use, with what the kernel puts off entered in a copy of it."""
        changed = ("hosts", "host_key_groups", "host_order")
        sim = self.sim._replace(**{name: getattr(self.sim, name).copy() for name in changed})
        settle(sim, next(number for number, _ in self.hosted() if self.sim.hosts[number].pool == row))
        order = sim.host_order[row, int(sim.hosts[row].oldest) : int(sim.hosts[row].newest)]
        return [
            self.key_at(row, int(stretch.group) * GROUP + low)
            for stretch in order
            for low in range(GROUP - 1, -1, -1)
            if int(stretch.blocks) >> low & 1
        ]

    @invariant()
    def pages_know_the_states_of_their_blocks(self) -> None:
        """The bits of each page are the states of its places, and its chain of stretches has its idle ones."""
        for row in self.pools():
            pages, order = self.sim.host_key_groups[row], self.sim.host_order[row]
            states = self.sim.host_state[row].reshape(-1, GROUP)
            for number in range(int(self.sim.hosts[row].groups)):
                for name, of in BITS.items():
                    bits = sum(1 << low for low in range(GROUP) if states[number, low] in of)
                    assert pages[number][name] == bits, name
                assert chained_blocks(pages, order, number) == pages[number].idle

    @invariant()
    def capacity_is_kept_and_counted_once(self) -> None:
        rows = [int(self.sim.hosts[number].pool) for number, _ in self.hosted()]
        assert len(set(rows)) == (1 if self.shared else len(rows))
        assert (self.sim.hosts.capacity > 0).sum() == len(set(rows))
        for row in set(rows):
            record = self.sim.hosts[row]
            states = Counter(state for state, _ in self.held(row).values())
            assert states.total() == record.used <= record.capacity
            assert states[HostBlockState.RESIDENT] == record.idle

    @invariant()
    def pins_are_those_of_loads_under_way(self) -> None:
        pins: dict[int, Counter[object]] = {row: Counter() for row in self.pools()}
        for worker in dict(self.hosted()).values():
            for copying in worker.host.copyings:
                if copying.load and copying.rank == worker.rank:
                    row = next(row for row, pool in self.pools().items() if pool is worker.host)
                    pins[row].update(copying.keys)
        for row in pins:
            assert {self.contents[key]: count for key, (_, count) in self.held(row).items() if count} == pins[row]

    @invariant()
    def nothing_is_visible_before_its_store_can_have_ended(self) -> None:
        """With the link and the pool for itself, and nothing before it, a store takes so long at least."""
        least = min((least_ns(worker.host_spec) for _, worker in self.hosted()), default=0)
        for row in self.pools():
            held = self.held(row)
            pending = {key for key, (state, _) in held.items() if state == HostBlockState.PENDING_STORE}
            # What is neither pending any more nor there was evicted as soon as it was there.
            for key in {key for pool, key in self.pending_since if pool == row} - pending:
                waited_ns = self.past_ns - self.pending_since.pop((row, key))
                assert waited_ns >= least, "a block is visible before its store can have ended"
            for key in pending:
                self.pending_since.setdefault((row, key), self.done_ns)

    @invariant()
    def blocks_are_conserved(self) -> None:
        """What was submitted is there, was evicted, or is under way; what is pending besides is only prepared."""
        size = {row: Counter[str]() for row in self.pools()}
        for number in self.copies():
            copying = self.sim.host_transfers[number]
            row = int(self.sim.hosts[int(copying.worker)].pool)
            prepared = self.sim.host_transfer_state[number] == TransferState.PREPARED
            size[row]["load" if self.is_load(number) else "prepared" if prepared else "store"] += int(copying.blocks)
        for row in size:
            users = self.sim.hosts[self.sim.hosts.pool == row]
            states = Counter(state for state, _ in self.held(row).values())
            arrived = sum(states[state] for state in VISIBLE) + int(self.sim.hosts[row].evictions)
            assert int(users.moved_blocks[:, 0].sum()) == arrived + size[row]["store"]
            assert states[HostBlockState.PENDING_STORE] == size[row]["store"] + size[row]["prepared"]

    @invariant()
    def links_are_at_the_same_point(self) -> None:
        for number, worker in self.hosted():
            mine = [row for row in self.copies() if self.sim.host_transfers[row].worker == number]
            theirs = [copying for copying in worker.host.copyings if copying.rank == worker.rank]
            ours = Counter((self.is_load(row), int(self.sim.host_transfers[row].blocks)) for row in mine)
            assert ours == Counter((copying.load, len(copying.keys)) for copying in theirs)
            if self.shared:
                self.bytes_left_are_the_same(worker, mine, theirs)

    def bytes_left_are_the_same(self, worker: NaiveHostWorker, mine: list[int], theirs: list[Copying]) -> None:
        links = worker.host.links
        assert isinstance(links, SharedLinks)
        left = {t.number: t.left for link in links.links.values() for t in link.transfers}
        rates = {t.number: rate or Fraction(0) for link in links.links.values() for t, rate in link.rates()}
        # The kernel's are those of the pool's last event.
        since = int(self.sim.hosts.advanced.max())
        exact = sorted(
            float(left[c.number] + rates.get(c.number, 0) * (links.links[c.load].now_ns - since))
            for c in theirs
            if c.number in left
        )
        under_way = [row for row in mine if self.sim.host_transfer_state[row] != TransferState.PREPARED]
        ours = sorted(float(self.sim.host_transfers[row].left) for row in under_way)
        assert len(ours) == len(exact)
        assert all(abs(a - b) < BYTES_OFF_MOST for a, b in zip(ours, exact, strict=True))

    @invariant()
    def same_workers(self) -> None:
        for number, naive in enumerate(self.naive.workers):
            record = self.sim.workers[number]
            assert record.free + record.idle == naive.pool.available()
            assert self.seated(number) == naive.running
            assert self.queued(number, WAITING) == naive.waiting
            if isinstance(naive, NaiveHostWorker):
                assert self.queued(number, DEFERRED) == naive.aside
            if isinstance(naive, DestinationRole):
                assert self.queued(number, PENDING) == naive.pending

    @invariant()
    def same_tokens(self) -> None:
        if isinstance(self.naive, NaiveDisagg):
            served = [self.naive.sources, self.naive.destinations]
        else:
            served = [self.naive.driver.requests]
        theirs = [(len(request.table), len(request.tokens_ns)) for requests in served for request in requests]
        assert [(int(live.table_len), int(live.generated)) for live in self.sim.live] == theirs

    @invariant()
    def nobody_runs_on_blocks_that_are_still_loading(self) -> None:
        for row, state in enumerate(self.sim.request_state.tolist()):
            if state == RequestState.RUNNING:
                assert self.sim.tickets[row].load == NONE

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        check_pools(self.sim)


def least_ns(spec: HostSpec) -> int:
    """How long a store of one block takes at least on a link."""
    rates = [spec.d2h_bytes_per_second, spec.shared_d2h_bytes_per_second if spec.shared else None]
    bound = min((rate for rate in rates if rate), default=None)
    return spec.latency_ns + (int(spec.block_bytes / bound * 1e9) if bound else 0)
