"""A naive vLLM worker with host memory of its own (G2): every copy an object, every list sorted anew; see `naive`.

Written from the documented rules and the reference cases, not from the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from naive import NaiveWorker, Request
from naive_disagg import VllmDestination, VllmSource
from playproof_kernel import WorkerSpec
from playproof_kernel.deployment import HostSpec
from playproof_spec.graph import Graph


@dataclass(eq=False)
class Copying:
    """Blocks on their way to the host (a store) or back (a load)."""

    number: int
    load: bool
    node: int
    keys: list[object]
    end_ns: int | None = None  # None until it is submitted


class NaiveLink:
    """One direction of a worker's link: first in, first out."""

    def __init__(self, bytes_per_second: float | None, latency_ns: int) -> None:
        self.bytes_per_second = bytes_per_second
        self.latency_ns = latency_ns
        self.free_ns = 0
        self.busy_ns = 0
        self.bytes = 0

    def submit(self, may_start_ns: int, size: int) -> int:
        duration = round(size / self.bytes_per_second * 1e9) if self.bytes_per_second else 0
        self.free_ns = max(self.free_ns, may_start_ns + self.latency_ns) + duration
        self.busy_ns += duration
        self.bytes += size
        return self.free_ns


class NaiveHost:
    """A host pool: what is in it or on its way there, who is pinned, and the order in which blocks were last used."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.pending: set[object] = set()
        self.pins: dict[object, int] = {}  # of resident blocks
        self.told: Counter[object] = Counter()  # what a KV router was told of
        self.oldest_first: list[object] = []  # resident blocks that are not pinned
        self.counters = dict.fromkeys(["hits", "misses", "stores", "loads", "evictions", "deferrals", "retries"], 0)

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
        self.counters["evictions"] += len(victims)
        return True

    def arrive(self, keys: Sequence[object]) -> None:
        for key in keys:
            self.pending.remove(key)
            self.pins[key] = 0
        self.told.update(keys)
        # Blocks of one store are of one age; the end of a prompt goes before its head, as everywhere.
        self.touch(keys[::-1])

    def pin(self, keys: Sequence[object]) -> None:
        for key in keys:
            self.pins[key] += 1
            if key in self.oldest_first:
                self.oldest_first.remove(key)

    def unpin(self, keys: Sequence[object]) -> None:
        for key in keys:
            self.pins[key] -= 1
        self.touch(keys[::-1])


@dataclass
class Restore:
    """Blocks of a request that come, or came, from the host: from block `begin` of its table on."""

    begin: int
    copying: Copying


class NaiveHostWorker(NaiveWorker):
    """A vLLM worker whose prompt blocks are written through to its own host pool."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        assert spec.host is not None
        self.host = NaiveHost(spec.host)
        self.d2h = NaiveLink(spec.host.d2h_bytes_per_second, spec.host.latency_ns)
        self.h2d = NaiveLink(spec.host.h2d_bytes_per_second, spec.host.latency_ns)
        self.copyings: list[Copying] = []
        self.numbers = 0
        self.cursor: dict[int, int] = {}
        self.latest_store: dict[int, Copying] = {}
        self.reading: dict[int, Copying] = {}  # blocks of the G1 pool that a store reads
        self.restores: dict[int, Restore] = {}
        self.aside: list[int] = []  # who waits for a copy, or did, in order
        self.asleep: set[int] = set()  # those of them who wait until some copy ends
        self.scheduled: set[int] = set()
        self.fence_ns = 0
        self.tried_ns = -1
        self.evicted: list[object] = []  # from the host, and a KV router has not been told

    def keys(self, node: int) -> list[object]:
        return self.contents(node, self.prompt(node) // self.spec.block_size)

    def copying_of(self, load: bool, node: int, keys: list[object]) -> Copying:
        self.numbers += 1
        self.copyings.append(Copying(self.numbers, load, node, keys))
        return self.copyings[-1]

    def in_flight(self, copying: Copying | None) -> bool:
        return copying in self.copyings

    def host_published(self) -> set[object]:
        return {key for key in self.host.told if self.host.told[key] > 0}

    def publish(self, outcomes: Sequence[tuple[int, str]] = ()) -> None:
        super().publish(outcomes)
        self.host.told.subtract(self.evicted)
        self.evicted = []

    def host_use(self) -> dict[str, int]:
        size = self.host.spec.block_bytes
        return {
            **self.host.counters,
            "used": len(self.host.pins) + len(self.host.pending),
            "resident": len(self.host.pins),
            "stored_blocks": self.d2h.bytes // size,
            "loaded_blocks": self.h2d.bytes // size,
            "d2h_busy": self.d2h.busy_ns,
            "h2d_busy": self.h2d.busy_ns,
        }

    # Passes

    def accept(self, node: int) -> None:
        super().accept(node)
        self.tried_ns = -1

    def has_work(self) -> bool:
        return bool(self.running or self.waiting or len(self.aside) > len(self.asleep))

    def start(self, now: int) -> bool:
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
        self.wait_for_readers(self.requests[node].table[before:])

    def wait_for_readers(self, copies: Sequence[int]) -> None:
        self.fence_ns = max([self.fence_ns, *self.read_ends(copies)])

    def read_ends(self, copies: Sequence[int]) -> list[int]:
        ends = [self.reading[copy].end_ns for copy in copies if copy in self.reading]
        return [end for end in ends if end is not None]

    def preempt(self, node: int) -> None:
        store = self.latest_store.get(node)
        if store is not None and store in self.copyings and store.end_ns is not None:
            self.fence_ns = max(self.fence_ns, store.end_ns)
        self.scheduled.discard(node)
        super().preempt(node)

    def compute_start(self, now: int) -> int:
        for node in self.running:
            if node in self.scheduled:
                self.prepare_store(node)
        return max(now, self.fence_ns)

    def finish(self, now: int) -> list[tuple[int, str]]:
        self.tried_ns = -1
        self.end_copies(now)
        for copying in self.copyings:
            if copying.end_ns is None:
                copying.end_ns = self.d2h.submit(now, len(copying.keys) * self.host.spec.block_bytes)
        self.end_copies(now)
        return super().finish(now)

    def look_again(self) -> None:
        self.tried_ns = -1

    # Stores

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
            return  # written in this pass, behind the fence: another time
        before = list(self.host.pins)
        room = self.host.make_room(len(missing), keys[begin:end])
        self.evicted += [key for key in before if key not in self.host.pins]
        if not room:
            self.host.counters["retries"] += 1
            return
        store = self.copying_of(False, node, [keys[block] for block in missing])
        self.host.pending.update(store.keys)
        self.host.counters["stores"] += 1
        for copy in copies:
            self.reading[copy] = store
        self.latest_store[node] = store
        self.cursor[node] = end
        self.host.touch(keys[::-1])

    # Ends of copies

    def end_due_copies(self, now: int) -> bool:
        return self.end_copies(now)

    def next_copy_end(self) -> int | None:
        return min((copying.end_ns for copying in self.copyings if copying.end_ns is not None), default=None)

    def end_copies(self, now: int) -> bool:
        due = [copying for copying in self.copyings if copying.end_ns is not None and copying.end_ns <= now]
        for copying in sorted(due, key=lambda copying: (copying.end_ns, copying.load, copying.number)):
            self.copyings.remove(copying)
            if copying.load:
                self.host.unpin(copying.keys)
                self.restored(copying)
            else:
                self.host.arrive(copying.keys)
                self.reading = {copy: store for copy, store in self.reading.items() if store is not copying}
        if due:
            self.wake()
            self.publish()
        return bool(due)

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
        awake = [node for node in self.aside if node not in self.asleep]
        return awake[0] if awake else super().head()

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
        loading = {key for copying in self.copyings if copying.load for key in copying.keys}
        self.host.touch(keys[::-1])
        if any(key in self.host.pending or key in loading for key in present):
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
                self.requests[node].admissions.append((now, 0))
                continue
            if node in self.restores and not self.awaits_copy(node):
                if self.ceil_blocks(self.known(node)) - len(self.requests[node].table) > self.pool.available():
                    break
                budget -= self.admit_restored(now, node, budget)
                continue
            if self.awaits_copy(node):
                self.host.counters["deferrals"] += 1
                self.set_aside(node)
                continue
            found = self.resident(node, self.known(node) // self.spec.block_size)
            hit = self.host_hit(node, len(found))
            if hit is None:
                self.host.counters["deferrals"] += 1
                self.set_aside(node)
                continue
            if self.impossible(node):
                self.refuse(node)
                continue
            if hit:
                if not self.start_load(now, node, found, hit):
                    break
                continue
            found = found[: self.last_reusable(node)]
            if not self.fits(node, found):
                break
            self.host.counters["misses"] += 1
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
        load = self.copying_of(True, node, hit)
        may_start = max([now, *self.read_ends(fresh)])
        load.end_ns = self.h2d.submit(may_start, len(hit) * self.host.spec.block_bytes)
        self.host.pin(hit)
        self.host.counters["hits"] += 1
        self.host.counters["loads"] += 1
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
        restore = self.restores.pop(node, None)
        if restore is not None and self.in_flight(restore.copying):
            self.copyings.remove(restore.copying)
            self.host.unpin(restore.copying.keys)
            self.wake()
        self.leave_queue(node)
        self.asleep.discard(node)
        self.tried_ns = -1
        super().forget(node)


class HostVllmSource(NaiveHostWorker, VllmSource):
    """A vLLM worker of the prefill role with host memory."""

    def release(self, node: int) -> None:
        super().release(node)
        self.tried_ns = -1


class HostVllmDestination(NaiveHostWorker, VllmDestination):
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
        return awake[0] if awake and not self.running else None

    def activate(self, node: int) -> None:
        super().activate(node)
        self.tried_ns = -1

    def writable_ns(self, node: int, now: int) -> int:
        request = self.requests[node]
        return max([now, *self.read_ends(request.table[request.filled :])])
