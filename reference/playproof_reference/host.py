"""vLLM workers with host memory (G2), their own or one pool of all: every copy an object, every list sorted anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from playproof_spec.deployment import HostSpec, WorkerSpec
from playproof_spec.graph import Graph

from playproof_reference.links import FairLink, per_ns
from playproof_reference.requests import Request
from playproof_reference.roles import VllmDestination, VllmSource
from playproof_reference.vllm import VllmWorker


@dataclass(eq=False)
class Copying:
    """Blocks of a worker on their way to the host (a store) or back (a load)."""

    number: int
    load: bool
    rank: int
    node: int
    keys: list[object]
    end_ns: int | None = None  # None until it is submitted, and on shared links until it has ended


class PrivateLinks:
    """A worker's two links, first in, first out."""

    def __init__(self, spec: HostSpec) -> None:
        self.latency_ns = spec.latency_ns
        self.bytes_per_second = {False: spec.d2h_bytes_per_second, True: spec.h2d_bytes_per_second}
        self.free_ns = {False: 0, True: 0}
        self.busy_ns = {False: 0, True: 0}
        self.under_way: list[Copying] = []

    def submit(self, copying: Copying, size: int, may_start_ns: int) -> None:
        rate = self.bytes_per_second[copying.load]
        duration = round(size / rate * 1e9) if rate else 0
        copying.end_ns = max(self.free_ns[copying.load], may_start_ns + self.latency_ns) + duration
        self.free_ns[copying.load] = copying.end_ns
        self.busy_ns[copying.load] += duration
        self.under_way.append(copying)

    def rank_busy_ns(self, load: bool, rank: int) -> int:
        return self.busy_ns[load]

    def pool_busy_ns(self, load: bool) -> int:
        return 0  # there is no pool beside the link

    def drop(self, copying: Copying) -> None:
        """Give a copy up; the link stays taken."""
        self.under_way.remove(copying)

    def next_ns(self) -> int | None:
        return min((copying.end_ns for copying in self.under_way if copying.end_ns is not None), default=None)

    def advance(self, now_ns: int) -> list[Copying]:
        """Return what has ended by `now_ns`, stores before loads of one instant."""
        due = [copying for copying in self.under_way if copying.end_ns is not None and copying.end_ns <= now_ns]
        self.under_way = [copying for copying in self.under_way if copying not in due]
        return sorted(due, key=lambda copying: (copying.end_ns, copying.load))


class SharedLinks:
    """The links of several ranks to one pool, under the pool's own rates."""

    def __init__(self, pool: HostSpec, ranks: Sequence[HostSpec]) -> None:
        self.latency_ns = [spec.latency_ns for spec in ranks]
        to_host = {rank: per_ns(spec.d2h_bytes_per_second) for rank, spec in enumerate(ranks)}
        back = {rank: per_ns(spec.h2d_bytes_per_second) for rank, spec in enumerate(ranks)}
        self.links = {
            False: FairLink(per_ns(pool.shared_d2h_bytes_per_second), to_host),
            True: FairLink(per_ns(pool.shared_h2d_bytes_per_second), back),
        }
        self.under_way: dict[int, Copying] = {}

    def submit(self, copying: Copying, size: int, may_start_ns: int) -> None:
        self.under_way[copying.number] = copying
        first_byte_ns = may_start_ns + self.latency_ns[copying.rank]
        self.links[copying.load].submit(copying.number, copying.rank, size, first_byte_ns)

    def rank_busy_ns(self, load: bool, rank: int) -> int:
        return int(self.links[load].rank_busy_ns[rank])

    def pool_busy_ns(self, load: bool) -> int:
        return int(self.links[load].busy_ns)

    def drop(self, copying: Copying) -> None:
        del self.under_way[copying.number]
        self.links[copying.load].drop(copying.number)

    def next_ns(self) -> int | None:
        times = [at for link in self.links.values() if (at := link.next_ns()) is not None]
        return int(min(times)) if times else None

    def advance(self, now_ns: int) -> list[Copying]:
        due: list[Copying] = []
        for link in self.links.values():
            for at, number in link.advance(now_ns):
                copying = self.under_way.pop(number)
                copying.end_ns = int(at)
                due.append(copying)
        return sorted(due, key=lambda copying: (copying.end_ns, copying.load))


class HostPool:
    """A host pool: what is in it or on its way there, who is pinned, and the order in which blocks were last used.

    It belongs to one worker, or to all workers of a deployment. What ends shows in the pool at that instant; each
    worker hears of it, and of its own copies, when it is idle or at the end of its pass.
    """

    def __init__(self, spec: HostSpec, links: PrivateLinks | SharedLinks) -> None:
        self.spec = spec
        self.links = links
        self.pending: set[object] = set()
        self.pins: dict[object, int] = {}  # of resident blocks
        self.told: Counter[object] = Counter()  # what a KV router was told of
        self.oldest_first: list[object] = []  # resident blocks that are not pinned
        self.copyings: list[Copying] = []  # prepared or under way
        self.ended: list[Copying] = []  # that their workers have not heard of
        self.endings = 0
        self.numbers = 0
        self.evictions = 0
        self.stored_by: dict[object, int] = {}  # the rank that brought a block here last

    def absent(self, key: object) -> bool:
        return key not in self.pending and key not in self.pins

    def touch(self, keys: Sequence[object]) -> None:
        """Make each of `keys` the most recent in turn; pending and pinned blocks have no place in the order."""
        for key in keys:
            if self.pins.get(key) == 0:
                if key in self.oldest_first:
                    self.oldest_first.remove(key)
                self.oldest_first.append(key)

    def make_room(self, wanted: int, kept: Sequence[object]) -> bool:
        """Evict what it takes for `wanted` more blocks; False, and nothing evicted, when that does not suffice."""
        short = wanted - (self.spec.blocks - len(self.pending) - len(self.pins))
        victims = [key for key in self.oldest_first if key not in kept][: max(short, 0)]
        if len(victims) < short:
            return False
        for key in victims:
            self.oldest_first.remove(key)
            del self.pins[key]
        self.evictions += len(victims)
        return True

    def pin(self, keys: Sequence[object]) -> None:
        for key in keys:
            self.pins[key] += 1
            if key in self.oldest_first:
                self.oldest_first.remove(key)

    def unpin(self, keys: Sequence[object]) -> None:
        for key in keys:
            self.pins[key] -= 1
        # Blocks of one copy are of one age; the end of a prompt goes before its head, as everywhere.
        self.touch(keys[::-1])

    def arrive(self, keys: Sequence[object], rank: int) -> None:
        self.stored_by.update(dict.fromkeys(keys, rank))
        self.pending.difference_update(keys)
        self.pins.update(dict.fromkeys(keys, 0))
        self.told.update(keys)
        self.touch(keys[::-1])

    def copy(self, load: bool, rank: int, node: int, keys: list[object]) -> Copying:
        """Prepare a copy of `keys`, which are kept, or for which there is room."""
        self.numbers += 1
        copying = Copying(self.numbers, load, rank, node, keys)
        self.copyings.append(copying)
        if load:
            self.pin(keys)
        else:
            self.pending.update(keys)
        return copying

    def submit(self, copying: Copying, may_start_ns: int) -> None:
        self.links.submit(copying, len(copying.keys) * self.spec.block_bytes, may_start_ns)

    def drop(self, load: Copying) -> None:
        self.links.drop(load)
        self.copyings.remove(load)
        self.unpin(load.keys)

    def advance(self, now_ns: int) -> None:
        """End what is due by `now_ns`."""
        for copying in self.links.advance(now_ns):
            self.copyings.remove(copying)
            if copying.load:
                self.unpin(copying.keys)
            else:
                self.arrive(copying.keys, copying.rank)
            self.ended.append(copying)
            self.endings += 1


@dataclass
class Restore:
    """Blocks of a request that come, or came, from the host: from block `begin` of its table on."""

    begin: int
    copying: Copying


class HostVllmWorker(VllmWorker):
    """A vLLM worker whose prompt blocks are written through to a host pool: its own, until it joins another."""

    shares = False

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        assert spec.host is not None
        self.host_spec = spec.host
        self.host = HostPool(spec.host, PrivateLinks(spec.host))
        self.rank = 0
        self.heard = 0  # endings of copies
        self.counters = dict.fromkeys(("hits", "misses", "stores", "loads", "deferrals", "retries"), 0)
        self.cursor: dict[int, int] = {}
        self.latest_store: dict[int, Copying] = {}
        self.reading: dict[int, Copying] = {}  # blocks of the G1 pool that a store reads
        self.restores: dict[int, Restore] = {}
        self.aside: list[int] = []  # who waits for a copy, or did, in order
        self.asleep: set[int] = set()  # those of them who wait until some copy ends
        self.scheduled: set[int] = set()
        self.fenced: set[int] = set()  # who wrote, in this pass, blocks that a store was reading
        self.fence_ns = 0
        self.prepared: list[Copying] = []
        self.rescued: int | None = None  # who is looked at before all others
        self.seen: Counter[str] = Counter()  # what a strategy is wanted to show
        self.deferred_for: dict[int, list[object]] = {}  # keys that were there, or to come, when a request was deferred
        self.stored_blocks = self.loaded_blocks = 0
        self.tried_ns = -1
        self.evicted: list[object] = []  # from the host, and a KV router has not been told

    def join(self, pool: HostPool, rank: int) -> None:
        self.host, self.rank, self.shares = pool, rank, True

    def keys(self, node: int) -> list[object]:
        return self.contents(node, self.prompt(node) // self.spec.block_size)

    def in_flight(self, copying: Copying | None) -> bool:
        return copying in self.host.copyings

    def host_published(self) -> set[object]:
        return {key for key in self.host.told if self.host.told[key] > 0}

    def publish(self, outcomes: Sequence[tuple[int, str]] = ()) -> None:
        super().publish(outcomes)
        self.host.told.subtract(self.evicted)
        self.evicted = []

    def host_use(self) -> dict[str, int]:
        pool, links = self.host, self.host.links
        first = self.rank == 0  # what is the pool's is told once
        return {
            **self.counters,
            "evictions": pool.evictions if first else 0,
            "used": len(pool.pins) + len(pool.pending) if first else 0,
            "resident": len(pool.pins) if first else 0,
            "stored_blocks": self.stored_blocks,
            "loaded_blocks": self.loaded_blocks,
            "d2h_busy": links.rank_busy_ns(False, self.rank),
            "h2d_busy": links.rank_busy_ns(True, self.rank),
            "pool_d2h_busy": links.pool_busy_ns(False) if first else 0,
            "pool_h2d_busy": links.pool_busy_ns(True) if first else 0,
        }

    # Passes

    def accept(self, node: int) -> None:
        super().accept(node)
        self.tried_ns = -1

    def present(self) -> int:
        return super().present() + len(self.aside)

    def has_work(self) -> bool:
        self.hear()
        return bool(self.running or self.waiting or len(self.aside) > len(self.asleep))

    def start(self, now: int) -> bool:
        self.hear()
        if self.tried_ns == now:
            return False
        self.scheduled = set()
        self.fence_ns = now
        started = super().start(now)
        if not started:
            self.tried_ns = now
        return started

    def compute(self, node: int, tokens: int) -> None:
        before = len(self.requests[node].table)
        super().compute(node, tokens)
        self.scheduled.add(node)
        self.fence_ns = max([self.fence_ns, *self.read_ends(self.requests[node].table[before:])])

    def read_ends(self, copies: Sequence[int]) -> list[int]:
        """When the stores end that read `copies`, which a request has just been given: on private links alone."""
        ends = [self.reading[copy].end_ns for copy in copies if copy in self.reading]
        return [end for end in ends if end is not None]

    def preempt(self, node: int) -> None:
        store = self.latest_store.get(node)
        if store is not None and store.end_ns is not None:
            self.fence_ns = max(self.fence_ns, store.end_ns)
        self.scheduled.discard(node)
        super().preempt(node)

    def compute_start(self, now: int) -> int:
        for node in self.running:
            if node in self.scheduled:
                self.prepare_store(node)
        self.seen["fences"] += self.fence_ns > now
        return max(now, self.fence_ns)

    def finish(self, now: int) -> list[tuple[int, str]]:
        self.tried_ns = -1
        self.store_behind_fence(now)
        outcomes = super().finish(now)
        self.host.advance(now)
        self.hear()
        for store in self.prepared:
            self.host.submit(store, now)
            self.stored_blocks += len(store.keys)
        self.prepared = []
        self.host.advance(now)
        self.hear()
        return outcomes

    def look_again(self) -> None:
        self.tried_ns = -1

    # Stores

    def store_behind_fence(self, now: int) -> None:
        """Store what was written behind the fence for those who end with this pass: there is no other time."""
        fenced, self.fenced = self.fenced, set()
        if not fenced:
            return
        self.host.advance(now)
        self.hear()
        for node in self.running:
            last = len(self.requests[node].tokens_ns) + 1 >= self.limit(node)
            whole = self.requests[node].computed == self.known(node)
            if node in fenced and node not in self.canceled and whole and last:
                self.prepare_store(node)
                self.seen["behind the fence"] += 1

    def prepare_store(self, node: int) -> None:
        request = self.requests[node]
        begin, end = self.cursor.get(node, 0), min(request.computed, self.prompt(node)) // self.spec.block_size
        keys = self.keys(node)
        missing = [block for block in range(begin, end) if self.host.absent(keys[block])]
        if not missing:
            self.cursor[node] = max(begin, end)
            return
        copies = [request.table[block] for block in missing]
        if any(copy in self.reading for copy in copies):
            self.fenced.add(node)
            return  # written in this pass, behind the fence: another time
        before = list(self.host.pins)
        room = self.host.make_room(len(missing), keys[begin:end])
        self.evicted += [key for key in before if key not in self.host.pins]
        if not room:
            self.counters["retries"] += 1
            return
        store = self.host.copy(False, self.rank, node, [keys[block] for block in missing])
        self.prepared.append(store)
        self.counters["stores"] += 1
        for copy in copies:
            self.reading[copy] = store
            if self.shares:
                self.pool.refs[copy] += 1
        self.latest_store[node] = store
        self.cursor[node] = end
        self.host.touch(keys[::-1])

    # Ends of copies

    def end_due_copies(self, now: int) -> bool:
        if self.shares:
            self.host.advance(now)
        if self.end_ns is not None:
            return False
        self.host.advance(now)
        return self.hear()

    def copying(self) -> bool:
        return bool(self.host.copyings)

    def next_copy_end(self) -> int | None:
        return self.host.links.next_ns() if self.shares or self.end_ns is None else None

    def hear(self) -> bool:
        """Hear of copies that have ended, of whichever worker they were; say whether there were any."""
        mine = [copying for copying in self.host.ended if copying.rank == self.rank]
        self.host.ended = [copying for copying in self.host.ended if copying not in mine]
        for copying in mine:
            if copying.load:
                self.restored(copying)
            else:
                read = [copy for copy, store in self.reading.items() if store is copying]
                self.reading = {copy: store for copy, store in self.reading.items() if store is not copying}
                self.end_reading(read[::-1])
        if mine and self.end_ns is None:
            self.publish()
        if self.heard == self.host.endings:
            return False
        self.heard = self.host.endings
        self.wake()
        return True

    def end_reading(self, copies: Sequence[int]) -> None:
        """Let go of `copies`, which a store has read."""
        for copy in copies if self.shares else []:
            self.pool.release(copy)
            self.seen["holds"] += self.pool.refs[copy] == 0

    def wake(self) -> None:
        self.asleep.clear()
        self.tried_ns = -1

    def restored(self, copying: Copying) -> None:
        request = self.requests[copying.node]
        begin = self.restores[copying.node].begin
        for block, key in enumerate(copying.keys):
            self.pool.fill(request.table[begin + block], key)
        request.filled = len(request.table)

    # Admission

    def head(self) -> int | None:
        if self.rescued is not None:
            return self.rescued
        awake = [node for node in self.aside if node not in self.asleep]
        return awake[0] if awake else super().head()

    def others_hold(self) -> bool:
        """Whether memory here will be let go, or a request begin here, without a pass."""
        return False

    def rescue(self) -> bool:
        """The head has no room: if what it waits for is held by restored requests behind it alone, the first is next.

        Nothing runs, no copy of this worker is under way, and no handoff will change anything: it would wait for ever.
        """
        mine = [copying for copying in self.host.copyings if copying.rank == self.rank]
        awake = [node for node in self.aside if node not in self.asleep and node in self.restores]
        stuck = not (self.running or mine or self.others_hold())
        self.rescued = awake[0] if stuck and awake else None
        self.seen["rescues"] += self.rescued is not None
        return self.rescued is not None

    def leave_queue(self, node: int) -> None:
        self.waiting = [other for other in self.waiting if other != node]
        self.aside = [other for other in self.aside if other != node]

    def refuse(self, node: int) -> None:
        self.leave_queue(node)
        self.waiting.insert(0, node)
        super().refuse(node)

    def set_aside(self, node: int) -> None:
        if node not in self.aside:
            self.waiting.remove(node)
            self.aside.append(node)
        self.asleep.add(node)

    def awaits_copy(self, node: int) -> bool:
        restore = self.restores.get(node)
        return self.in_flight(self.latest_store.get(node)) or (restore is not None and self.in_flight(restore.copying))

    def host_hit(self, node: int, cached: int) -> list[object] | None:
        """What the host has of `node` behind its first `cached` blocks; None when some of it is on its way."""
        keys = self.keys(node)
        present: list[object] = []
        for key in keys[cached:]:
            if self.host.absent(key):
                break
            present.append(key)
        mine = [copying for copying in self.host.copyings if copying.load and copying.rank == self.rank]
        loading = {key for copying in mine for key in copying.keys}
        self.host.touch(keys[::-1])
        self.seen["lost"] += any(self.host.absent(key) for key in self.deferred_for.pop(node, []))
        if any(key in self.host.pending or key in loading for key in present):
            self.deferred_for[node] = present
            return None
        return present

    def promised(self) -> int:
        """Blocks that running prefills and restored requests still need for what they know."""
        owed = 0
        for node in self.running:
            if self.requests[node].computed < self.prompt(node):
                owed += self.ceil_blocks(self.known(node)) - len(self.requests[node].table)
        for node in self.restores:
            owed += self.ceil_blocks(self.known(node)) - len(self.requests[node].table)
        return owed

    def last_reusable(self, node: int) -> int:
        last = self.known(node) if self.limit(node) == 0 else self.known(node) - 1
        return last // self.spec.block_size

    def admit(self, now: int, budget: int) -> None:
        self.rescued = None
        while len(self.running) < self.spec.max_sequences and budget > 0:
            node = self.head()
            if node is None:
                break
            if self.prompt(node) >= self.context:
                self.refuse(node)
                continue
            if self.materialized(node):
                self.leave_queue(node)
                self.running.append(node)
                self.scheduled.add(node)
                self.note_admission(now, node, 0)
                continue
            if node in self.restores and not self.awaits_copy(node):
                if self.ceil_blocks(self.known(node)) - len(self.requests[node].table) > self.pool.available():
                    break
                self.rescued = None  # it is seated now
                budget -= self.admit_restored(now, node, budget)
                continue
            if self.awaits_copy(node):
                self.counters["deferrals"] += 1
                self.set_aside(node)
                continue
            found = self.resident(node, self.known(node) // self.spec.block_size)
            hit = self.host_hit(node, len(found))
            if hit is None:
                self.counters["deferrals"] += 1
                self.set_aside(node)
                continue
            if self.impossible(node):
                self.refuse(node)
                continue
            if hit:
                if not self.start_load(now, node, found, hit) and not self.rescue():
                    break
                continue
            found = found[: self.last_reusable(node)]
            if not self.fits(node, found):
                if not self.rescue():
                    break
                continue
            self.counters["misses"] += 1
            self.leave_queue(node)
            self.take(node, found)
            request = self.requests[node]
            request.computed = len(found) * self.spec.block_size
            budget -= self.seat(now, node, budget)

    def take(self, node: int, found: list[int]) -> None:
        request = self.requests[node]
        for copy in found:
            self.pool.reuse(copy)
        request.table, request.filled = list(found), len(found)

    def start_load(self, now: int, node: int, found: list[int], hit: list[object]) -> bool:
        active = sum(self.pool.refs[copy] > 0 for copy in found)
        if self.ceil_blocks(self.known(node)) - active > self.pool.available() - self.promised():
            return False
        self.take(node, found)
        fresh = self.pool.allocate_all(len(hit))
        self.requests[node].table += fresh
        load = self.host.copy(True, self.rank, node, hit)
        self.host.submit(load, max([now, *self.read_ends(fresh)]))
        self.counters["hits"] += 1
        self.counters["loads"] += 1
        self.loaded_blocks += len(hit)
        self.seen["loads of others"] += any(self.host.stored_by[key] != self.rank for key in hit)
        self.restores[node] = Restore(len(found), load)
        self.set_aside(node)
        return True

    def admit_restored(self, now: int, node: int, budget: int) -> int:
        request, size = self.requests[node], self.spec.block_size
        self.leave_queue(node)
        restore = self.restores.pop(node)
        request.computed = min(len(request.table), self.last_reusable(node)) * size
        request.host_reused[len(request.admissions)] = max(request.computed - restore.begin * size, 0)
        self.cursor[node] = request.computed // size
        return self.seat(now, node, budget)

    def forget(self, node: int) -> None:
        self.hear()
        restore = self.restores.pop(node, None)
        if restore is not None and self.in_flight(restore.copying):
            self.host.drop(restore.copying)
            self.seen["dropped loads"] += 1
            self.wake()
        self.leave_queue(node)
        self.asleep.discard(node)
        self.tried_ns = -1
        super().forget(node)


class HostVllmSource(HostVllmWorker, VllmSource):
    """A vLLM worker of the prefill role with host memory."""

    def others_hold(self) -> bool:
        return bool(self.sources)

    def release(self, node: int) -> None:
        super().release(node)
        self.tried_ns = -1


class HostVllmDestination(HostVllmWorker, VllmDestination):
    """A vLLM worker of the decode role with host memory."""

    def head(self) -> int | None:
        # Requests handed over come first, whether or not others are pending.
        handed_off = sorted((node for node in self.waiting if node in self.ready), key=lambda node: self.order[node])
        if handed_off:
            return handed_off[0]
        if not self.pending:
            return super().head()
        # What is pending may wait for the blocks of restored requests, and these for what is pending.
        awake = [node for node in self.aside if node not in self.asleep and node in self.restores]
        return awake[0] if awake and not self.running and not self.reserved else None

    def end_reading(self, copies: Sequence[int]) -> None:
        super().end_reading(copies)
        self.changes += 1

    def others_hold(self) -> bool:
        return bool(self.reserved)

    def activate(self, node: int) -> None:
        super().activate(node)
        self.tried_ns = -1

    def still_read(self, copies: Sequence[int]) -> bool:
        return any(copy in self.reading for copy in copies)


def join_pool(workers: Sequence[VllmWorker]) -> None:
    """Give all workers whose host memory is the deployment's one pool, of which there is one alone."""
    ranks = [w for w in workers if isinstance(w, HostVllmWorker) and w.host_spec.shared]
    if ranks:
        spec = ranks[0].host_spec
        pool = HostPool(spec, SharedLinks(spec, [worker.host_spec for worker in ranks]))
        for rank, worker in enumerate(ranks):
            worker.join(pool, rank)
