"""A naive prefill/decode replay: two roles of naive workers, a queue of handoff actions, transfers; see `naive`.

Written from the documented rules and the reference cases, not from the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from naive import (
    NEVER,
    NaiveDriver,
    NaiveHandoff,
    NaiveRun,
    NaiveWorker,
    Request,
    leave_unfinished,
    share_host,
    speculate,
    stops_before,
)
from naive_router import NaiveRouter
from naive_sglang import Branch, NaiveSglangWorker
from playproof_kernel import Backend, DeploymentSpec, LoadSpec, WorkerSpec
from playproof_spec.graph import Graph

# Prefill role: one hidden token, and the prompt's blocks stay until they are released.


class SourceRole(NaiveWorker):
    """What workers of the prefill role have in common, before the worker of an engine."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.sources: list[int] = []

    def limit(self, node: int) -> int:
        return min(1, super().limit(node))

    def hold(self, node: int) -> None:
        """Do what the engine does with a prompt that is held."""

    def let_go(self, node: int) -> None:
        """Do what the engine does with a prompt that is released."""
        raise NotImplementedError

    def complete(self, node: int) -> str:
        self.hold(node)
        self.sources.append(node)
        return "held"

    def release(self, node: int) -> None:
        self.sources.remove(node)
        self.let_go(node)

    def forget(self, node: int) -> None:
        if node in self.sources:
            self.release(node)
        else:
            super().forget(node)


class VllmSource(SourceRole):
    """A vLLM worker of the prefill role."""

    decode_part = False

    def let_go(self, node: int) -> None:
        self.drop(node)


class SglangSource(SourceRole, NaiveSglangWorker):
    """An SGLang worker of the prefill role. What it computed enters the tree when it is held."""

    def others_hold(self) -> bool:
        return bool(self.sources)

    def hold(self, node: int) -> None:
        self.cache(node)

    def let_go(self, node: int) -> None:
        self.end(node)


# Decode role: destinations are reserved one after another, each after something changed.


class DestinationRole(NaiveWorker):
    """What workers of the decode role have in common, before the worker of an engine."""

    prefill_part = False

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.pending: list[int] = []
        self.reserved: list[int] = []
        self.changes = 0
        self.tried: dict[int, int] = {}
        self.heard_copies = False  # to or from the host, and has not tried since

    def accept(self, node: int) -> None:
        self.pending.append(node)

    def take_place(self, node: int) -> int | None:
        """Take memory for the prompt of `node` and return its fresh blocks, None when there is no room."""
        raise NotImplementedError

    def still_read(self, copies: Sequence[int]) -> bool:
        """Whether any of `copies`, just allocated, may not be written yet."""
        return False

    def try_reserve(self) -> tuple[int, int] | None:
        """Try the first pending destination, once per change; return it and its fresh blocks."""
        if not self.pending:
            return None
        node = self.pending[0]
        if self.tried.get(node) == self.changes:
            return None
        self.tried[node] = self.changes
        fresh = self.take_place(node)
        if fresh is None:
            return None
        self.pending.pop(0)
        self.reserved.append(node)
        return node, fresh

    def forget(self, node: int) -> None:
        super().forget(node)
        self.pending = [other for other in self.pending if other != node]
        self.reserved = [other for other in self.reserved if other != node]
        self.changes += 1


class VllmDestination(DestinationRole):
    """A vLLM worker of the decode role."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.order: dict[int, int] = {}
        self.ready: set[int] = set()  # activated, and not preempted since

    def accept(self, node: int) -> None:
        self.order[node] = len(self.order)
        super().accept(node)

    def take_place(self, node: int) -> int | None:
        if len(self.running) >= self.spec.max_sequences:
            return None
        request = self.requests[node]
        found = self.resident(node, self.prompt(node) // self.spec.block_size)
        fresh = self.ceil_blocks(self.prompt(node)) - len(found)
        idle = sum(self.pool.refs[copy] == 0 for copy in found)
        if fresh > self.pool.available() - idle - self.kept_free():
            return None
        for copy in found:
            self.pool.reuse(copy)
        taken = self.pool.allocate_all(fresh)
        if self.still_read(taken):
            self.pool.give_back(taken)
            for copy in found[::-1]:
                self.pool.release(copy)
            return None
        request.filled = len(found)
        request.table = found + taken
        return fresh

    def activate(self, node: int) -> None:
        self.reserved.remove(node)
        request = self.requests[node]
        request.computed = self.prompt(node)
        if self.spec.prefix_caching:
            full = self.prompt(node) // self.spec.block_size
            for block, content in enumerate(self.contents(node, full)):
                if block >= request.filled:
                    self.pool.fill(request.table[block], content)
            request.filled = full
        self.ready.add(node)
        later = [i for i, other in enumerate(self.waiting) if self.order[other] > self.order[node]]
        self.waiting.insert(later[0] if later else len(self.waiting), node)

    def head(self) -> int | None:
        # By arrival: a request that was pushed out may stand among them, at the front.
        handed_off = sorted((node for node in self.waiting if node in self.ready), key=lambda node: self.order[node])
        if self.pending:
            return handed_off[0] if handed_off else None
        first = super().head()
        if first is None or self.running or not handed_off or self.impossible(first) or first in self.ready:
            return first
        # Nothing runs: if the head does not fit, it waits for blocks of these, and these would wait for it.
        return first if self.fits(first, self.lookup(first)) else handed_off[0]

    def materialized(self, node: int) -> bool:
        return node in self.ready

    def drop(self, node: int) -> None:
        if self.requests[node].table:
            self.changes += 1
        self.ready.discard(node)
        super().drop(node)


class SglangDestination(DestinationRole, NaiveSglangWorker):
    """An SGLang worker of the decode role."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.prebuilt: list[int] = []

    def take_place(self, node: int) -> int | None:
        pages = self.contents(node, self.prompt(node) // self.spec.block_size) if self.spec.prefix_caching else []
        matched = self.tree.cached(pages)
        place = self.lock(pages[:matched])
        fresh = self.ceil_blocks(self.prompt(node)) - matched
        if fresh > self.tree.available():
            self.tree.unlock(place)
            return None
        self.tree.take(fresh)
        self.place[node], self.cached[node], self.held[node] = place, matched, matched + fresh
        return fresh

    def lock(self, pages: list[object]) -> Branch:
        return self.tree.lock(pages) if self.spec.prefix_caching else self.tree.root

    def activate(self, node: int) -> None:
        self.reserved.remove(node)
        self.requests[node].computed = self.prompt(node)
        self.prebuilt.append(node)

    def promote(self, now: int) -> bool:
        while self.prebuilt and len(self.running) < self.spec.max_sequences:
            node = self.prebuilt.pop(0)
            self.cache(node)
            self.requests[node].admissions.append((now, 0))
            self.running.append(node)
        self.unstick()
        return not self.prebuilt and not self.pending

    def unstick(self) -> None:
        """Let a cut request at the head go back whole if a pending destination waits for its pages and it for that."""
        alone = self.pending and not (self.running or self.prebuilt or self.reserved)
        if alone and self.waiting and self.requests[self.waiting[0]].computed > 0:
            self.retract(self.waiting.pop(0))

    def others_hold(self) -> bool:
        return bool(self.reserved)

    def resolve(self) -> None:
        (node,) = self.growers()
        if self.ceil_blocks(self.requests[node].computed + 1) > self.spec.blocks:
            super().resolve()
        elif self.running == [node] and self.prebuilt:
            self.running.remove(node)
            self.retract(node)
        else:
            self.stalls = True  # others in the batch end without a token, or others hold pages and will run

    def give_up(self, node: int) -> None:
        super().give_up(node)
        self.changes += 1

    def complete(self, node: int) -> str:
        self.changes += 1
        return super().complete(node)

    def forget(self, node: int) -> None:
        super().forget(node)
        self.prebuilt = [other for other in self.prebuilt if other != node]


@dataclass
class Handoff(NaiveHandoff):
    """A request between its two workers."""

    source: SourceRole | None = None
    destination: DestinationRole | None = None
    fresh: int = 0


def _roles(worker: WorkerSpec, other: WorkerSpec) -> tuple[type[SourceRole], type[DestinationRole]]:
    from naive_g2 import HostVllmDestination, HostVllmSource  # which builds on this module

    if worker.backend is Backend.SGLANG:
        return SglangSource, SglangDestination
    return (HostVllmSource if worker.host else VllmSource, HostVllmDestination if other.host else VllmDestination)


class NaiveDisagg:
    """A whole prefill/decode replay."""

    def __init__(
        self, graph: Graph, deployment: DeploymentSpec, load: LoadSpec, driver: NaiveDriver | None = None
    ) -> None:
        assert deployment.decode is not None
        self.deployment, self.decode_spec = deployment, deployment.decode
        self.driver = driver or NaiveDriver(graph, load)
        self.sources = [Request(i) for i in range(graph.node_count)]
        self.destinations = [Request(i) for i in range(graph.node_count)]
        self.handoffs = [Handoff() for _ in range(graph.node_count)]
        context = deployment.context_length
        self.sglang = deployment.worker.backend is Backend.SGLANG
        worker, other = deployment.worker, self.decode_spec.worker
        source, destination = _roles(worker, other)
        self.prefill: list[SourceRole] = [
            source(graph, worker, context, self.sources) for _ in range(deployment.workers)
        ]
        self.decode: list[DestinationRole] = [
            destination(graph, other, context, self.destinations) for _ in range(self.decode_spec.workers)
        ]
        speculate(self.prefill, deployment, drafting=False)
        speculate(self.decode, deployment)
        share_host(self.workers)
        self.queue: list[tuple[str, int]] = []
        self.deferred: list[tuple[NaiveWorker, str, int]] = []
        self.transfers: list[tuple[int, int]] = []
        self.feedback: list[tuple[int, str]] = []
        self.prefill_router = NaiveRouter(self.prefill, deployment.router)
        self.decode_router = NaiveRouter(self.decode, deployment.router)

    @property
    def workers(self) -> Sequence[SourceRole | DestinationRole]:
        return [*self.prefill, *self.decode]

    # What happened

    def held(self, node: int) -> None:
        self.handoffs[node].held_ns = self.driver.now
        self.queue.append(("transfer" if self.sglang else "reserve", node))

    def attempt(self, destination: DestinationRole) -> bool:
        """Try the first pending destination of an idle worker, and say whether it has its place now."""
        destination.heard_copies = False
        first = destination.pending[0] if destination.pending else None
        if first is not None and self.driver.requests[first].state == "canceled":
            return False  # it is cleaned up in a moment
        reserved = destination.try_reserve()
        if reserved is None:
            return False
        node, self.handoffs[reserved[0]].fresh = reserved
        self.handoffs[node].reserved_ns = self.driver.now
        self.queue.append(("submit" if self.sglang else "transfer", node))
        return True

    def failed(self, node: int, outcome: str) -> None:
        """End `node` before decode; what it holds is given up in the queue."""
        self.feedback.append((node, outcome))
        if self.handoffs[node].source is not None:
            self.queue.append(("cancel source", node))
        if self.handoffs[node].destination is not None:
            self.queue.append(("cancel destination", node))

    def outgrown(self, node: int) -> None:
        """Give up the source of a request that failed at decode, if it has not been released yet."""
        if self.handoffs[node].released_ns == NEVER:
            self.queue = [entry for entry in self.queue if entry[1] != node]
            self.deferred = [entry for entry in self.deferred if entry[2] != node]
            self.queue.append(("cancel source", node))

    def end_pass(self, worker: SourceRole | DestinationRole) -> None:
        outcomes = worker.finish(self.driver.now)
        worker.publish(outcomes)
        worker.canceled = []
        if isinstance(worker, DestinationRole):
            self.feedback += outcomes
            for node in [node for node, outcome in outcomes if outcome == "failed"]:
                self.outgrown(node)
            self.attempt(worker)
            return
        for node, outcome in outcomes:
            if outcome != "held":
                self.failed(node, outcome)
        # Who has no token to make is done before the others.
        held = [node for node, outcome in outcomes if outcome == "held"]
        for node in sorted(held, key=lambda node: worker.limit(node) > 0):
            self.held(node)

    # The queue

    def place_source(self, node: int) -> None:
        number = self.prefill_router.place(node)
        self.handoffs[node].source = self.prefill[number]
        self.driver.requests[node].worker = number
        self.prefill[number].accept(node)

    def place_destination(self, node: int) -> None:
        number = self.decode_router.place(node)
        worker = self.decode[number]
        if worker.prompt(node) >= worker.context:
            worker.assigned.pop(node, None)
            self.failed(node, "rejected")
        elif worker.ceil_blocks(worker.prompt(node)) > worker.spec.blocks:
            worker.assigned.pop(node, None)
            self.failed(node, "failed")
        else:
            self.handoffs[node].destination = worker
            self.handoffs[node].worker = number
            worker.accept(node)
            if worker.end_ns is None:
                self.attempt(worker)

    def transfer_ns(self, node: int) -> int:
        spec = self.decode_spec.transfer
        if not spec.bytes_per_second:
            return 0
        tokens = self.handoffs[node].fresh * self.decode_spec.worker.block_size
        if spec.full_prompt:
            tokens = self.prefill[0].prompt(node)
        return round(tokens * spec.bytes_per_token / spec.bytes_per_second * 1e9)

    def start_transfer(self, node: int) -> None:
        destination = self.handoffs[node].destination
        assert destination is not None
        length = self.transfer_ns(node)
        if length > 0:
            self.transfers.append((self.driver.now + length, node))
        else:
            self.queue.append(("activate", node))

    def on_source(self, action: str, node: int, source: SourceRole) -> None:
        if action == "release":
            source.release(node)
            self.handoffs[node].released_ns = self.driver.now
        else:
            source.forget(node)

    def on_destination(self, action: str, node: int, destination: DestinationRole) -> None:
        if action == "activate":
            destination.activate(node)
            destination.publish()
            self.handoffs[node].activated_ns = self.driver.now
            self.queue.append(("release", node))
        else:
            destination.forget(node)
        self.attempt(destination)

    def act(self, action: str, node: int) -> None:
        handoff = self.handoffs[node]
        if action == "submit":
            self.place_source(node)
        elif action == "reserve":
            self.place_destination(node)
        elif action == "transfer":
            self.start_transfer(node)
        else:
            at_source = action in ("release", "cancel source")
            worker = handoff.source if at_source else handoff.destination
            assert worker is not None
            if worker.end_ns is not None:
                self.deferred.append((worker, action, node))
            elif isinstance(worker, SourceRole):
                self.on_source(action, node, worker)
            else:
                self.on_destination(action, node, worker)

    def give_up(self, node: int) -> None:
        """The client cancels `node`, which is in flight."""
        self.transfers = [entry for entry in self.transfers if entry[1] != node]
        handoff = self.handoffs[node]
        at_source = handoff.source is not None and handoff.released_ns == NEVER
        self.clean_up(node, handoff.source if at_source else None, "cancel source", ("submit", "release"))
        self.clean_up(node, handoff.destination, "cancel destination", ("reserve", "transfer", "activate"))

    def clean_up(self, node: int, worker: NaiveWorker | None, action: str, before: tuple[str, ...]) -> None:
        """Let `action` take the place of what waits to be done for `node` at one side, or the last place."""
        if worker is None:
            self.queue = [entry for entry in self.queue if entry[1] != node or entry[0] not in before]
            return
        if worker.end_ns is not None:
            worker.canceled.append(node)
        replaced = [entry for entry in self.queue if entry[1] == node and entry[0] in before]
        replaced_later = [entry for entry in self.deferred if entry[2] == node and entry[1] in before]
        self.queue = [(action, node) if entry in replaced else entry for entry in self.queue]
        self.deferred = [(worker, action, node) if entry in replaced_later else entry for entry in self.deferred]
        if not replaced and not replaced_later:
            self.queue.append((action, node))

    # The loop

    def over(self) -> bool:
        """Whether the run has ended although events are due."""
        return False

    def step(self) -> bool:
        """Do once what is due at this instant, in order; say whether anything was."""
        now, changed = self.driver.now, False
        for worker in self.workers:
            if worker.end_due_copies(now):
                changed = True
                if isinstance(worker, DestinationRole):
                    worker.heard_copies = True
        for worker in self.workers:
            if worker.end_ns == now:
                self.queue += [(action, node) for busy, action, node in self.deferred if busy is worker]
                self.deferred = [entry for entry in self.deferred if entry[0] is not worker]
                self.end_pass(worker)
                changed = True
        for entry in sorted(self.transfers, key=lambda each: (each[0], self.driver.tie(each[1]))):
            if entry[0] == now:
                self.transfers.remove(entry)
                self.queue.append(("activate", entry[1]))
        while self.queue:
            self.act(*self.queue.pop(0))
            changed = True
        if self.feedback:
            self.driver.hear(self.feedback)
            self.feedback = []
            changed = True
        for node in self.driver.give_up():
            self.give_up(node)
            changed = True
        while self.queue:
            self.act(*self.queue.pop(0))
        if self.over():
            return False
        while due := self.driver.due():
            self.driver.dispatch(due[0])
            changed = True
            if self.prefill[0].prompt(due[0]) >= self.prefill[0].context:
                self.feedback.append((due[0], "rejected"))
            else:
                self.queue.append(("reserve" if self.sglang else "submit", due[0]))
        roles: tuple[Sequence[SourceRole | DestinationRole], ...] = (self.prefill, self.decode)
        for role in roles:
            while started := self.start_one(role):
                changed = True
                if started.end_ns == now:
                    self.end_pass(started)
        return changed

    def start_one(self, role: Sequence[SourceRole | DestinationRole]) -> SourceRole | DestinationRole | None:
        for worker in role:
            if worker.end_ns is not None:
                continue
            if worker.start(self.driver.now):
                return worker
            # Who has work that cannot go on looks at what is pending, too, and who heard of copies and has not yet.
            if isinstance(worker, DestinationRole):
                if (worker.has_work() or worker.heard_copies) and self.attempt(worker):
                    worker.look_again()
                    return worker
        return None

    def next_time(self) -> int | None:
        times = [worker.end_ns for worker in self.workers if worker.end_ns is not None]
        times += [at for at, _ in self.transfers]
        copies = [worker.next_copy_end() for worker in self.workers]
        times += [at for at in copies if at is not None]
        following = self.driver.next_time()
        return min(times if following is None else [*times, following], default=None)

    def run(self) -> None:
        self.driver.start()
        while True:
            while self.step():
                pass
            following = self.next_time()
            if following is None or stops_before(following, self.driver.load):
                leave_unfinished(self.workers)
                break
            self.driver.now = following


def disagg_replay(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> NaiveRun:
    """Replay `graph` on a prefill and a decode role the slow way."""
    run = NaiveDisagg(graph, deployment, load)
    run.run()
    for request, source, destination in zip(run.driver.requests, run.sources, run.destinations, strict=True):
        request.tokens_ns, request.admissions = destination.tokens_ns, source.admissions
        request.decode_admissions = destination.admissions
        request.host_reused, request.decode_host_reused = source.host_reused, destination.host_reused
    overlaps = (run.prefill_router.overlap, run.decode_router.overlap)
    return NaiveRun(run.driver, run.workers, run.handoffs, True, *overlaps)
