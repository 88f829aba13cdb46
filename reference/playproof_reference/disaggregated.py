"""Prefill and decode: two roles of workers, a queue of handoff actions, transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playproof_spec.deployment import Backend, DeploymentSpec, LoadSpec, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.ledger import NEVER

from playproof_reference.clock import Replay
from playproof_reference.driver import Driver
from playproof_reference.host import HostVllmDestination, HostVllmSource, join_pool
from playproof_reference.requests import Request
from playproof_reference.roles import (
    DestinationRole,
    SglangDestination,
    SglangSource,
    SourceRole,
    VllmDestination,
    VllmSource,
)
from playproof_reference.router import Router
from playproof_reference.runs import HandoffTimes, Run
from playproof_reference.vllm import VllmWorker
from playproof_reference.workers import of_one_run, speculate


@dataclass
class Handoff(HandoffTimes):
    """A request between its two workers."""

    source: SourceRole | None = None
    destination: DestinationRole | None = None
    fresh: int = 0


def _roles(worker: WorkerSpec, other: WorkerSpec) -> tuple[type[SourceRole], type[DestinationRole]]:
    if worker.backend is Backend.SGLANG:
        return SglangSource, SglangDestination
    return (HostVllmSource if worker.host else VllmSource, HostVllmDestination if other.host else VllmDestination)


class Disaggregated(Replay[SourceRole | DestinationRole]):
    """A whole prefill/decode replay."""

    def __init__(self, graph: Graph, deployment: DeploymentSpec, load: LoadSpec, driver: Driver | None = None) -> None:
        assert deployment.decode is not None
        self.deployment, self.decode_spec = deployment, deployment.decode
        self.driver = driver or Driver(graph, load)
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
        self.workers = [*self.prefill, *self.decode]
        speculate(self.prefill, deployment, drafting=False)
        speculate(self.decode, deployment)
        join_pool(self.workers)
        self.log = of_one_run(self.workers, load)
        self.queue: list[tuple[str, int]] = []
        self.deferred: list[tuple[VllmWorker, str, int]] = []
        self.transfers: list[tuple[int, int]] = []
        self.feedback: list[tuple[int, str]] = []
        self.prefill_router = Router(self.prefill, deployment.router)
        self.decode_router = Router(self.decode, deployment.router)

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
        outcomes = worker.end_pass(self.driver.now)
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

    def clean_up(self, node: int, worker: VllmWorker | None, action: str, before: tuple[str, ...]) -> None:
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
            if worker.begin(self.driver.now):
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


def replay_disaggregated(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> Run:
    """Replay `graph` on a prefill and a decode role the slow way."""
    run = Disaggregated(graph, deployment, load)
    run.run()
    for request, source, destination in zip(run.driver.requests, run.sources, run.destinations, strict=True):
        request.tokens_ns, request.admissions = destination.tokens_ns, source.admissions
        request.decode_admissions = destination.admissions
        request.host_reused, request.decode_host_reused = source.host_reused, destination.host_reused
    overlaps = (run.prefill_router.overlap, run.decode_router.overlap)
    return Run(run.driver, run.workers, run.handoffs, run.log, len(run.decode), *overlaps)
