"""vLLM's asynchronous scheduling: two passes at a time, the one that runs and the one behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from playproof_spec.deployment import WorkerSpec
from playproof_spec.graph import Graph

from playproof_reference.requests import Request
from playproof_reference.vllm import VllmWorker


@dataclass
class Scheduled:
    """A pass that has been scheduled: its length, whom it gives a token or brings to the end, what it refused."""

    length_ns: int
    receivers: list[int]
    gone: list[tuple[int, str]]
    computes: bool
    prefill_tokens: int = 0


@dataclass
class Owed:
    """How many tokens the passes that have not ended will give each request."""

    counts: dict[int, int] = field(default_factory=dict)

    def of(self, node: int) -> int:
        return self.counts.get(node, 0)

    def add(self, node: int, number: int) -> None:
        self.counts[node] = self.of(node) + number


ScheduledT = TypeVar("ScheduledT", bound=Scheduled)


class TwoPasses(VllmWorker, Generic[ScheduledT]):
    """A worker that schedules a pass while the one before it runs: what vLLM's and SGLang's have in common."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.flight: ScheduledT | None = None
        self.next: ScheduledT | None = None

    def schedule(self, now: int) -> ScheduledT | None:
        """Put the next pass together, if there is anything for it to do."""
        raise NotImplementedError

    def scheduled(self) -> list[ScheduledT]:
        """The pass that runs and the one behind it, as far as there are any."""
        return [each for each in (self.flight, self.next) if each is not None]

    def has_work(self) -> bool:
        return super().has_work() or self.next is not None

    def start(self, now: int) -> bool:
        if self.next is None:
            self.next = self.schedule(now)
        if self.next is None:
            return False
        self.flight, self.next = self.next, None
        self.end_ns = now + self.flight.length_ns
        self.passes += self.flight.computes
        self.next = self.schedule(now)
        return True

    def leave(self) -> None:
        self.passes -= self.flight.computes if self.flight is not None else 0
        self.prefill_tokens -= sum(each.prefill_tokens for each in self.scheduled())

    def decided(self) -> list[int]:
        return [node for each in self.scheduled() for node, _ in each.gone]

    def forget(self, node: int) -> None:
        for each in self.scheduled():
            each.receivers = [other for other in each.receivers if other != node]
            each.gone = [(other, outcome) for other, outcome in each.gone if other != node]
        super().forget(node)


class AheadWorker(TwoPasses[Scheduled]):
    """A vLLM worker that schedules a pass while the one before it runs, as if that had given its tokens."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.owed = Owed()
        self.computing: set[int] = set()

    def is_ending(self, node: int) -> bool:
        """Whether the pass that runs gives `node` the last that it wants."""
        tokens = len(self.requests[node].tokens_ns) + self.owed.of(node)
        return self.owed.of(node) > 0 and tokens >= self.limit(node)

    def schedule(self, now: int) -> Scheduled | None:
        for request in self.requests:
            request.prompt_computed_now = 0
        self.computing, self.gone, self.crowd = set(), [], self.present()
        prefilled = self.prefill_tokens
        admissions = sum(len(request.admissions) for request in self.requests)
        budget, preempted = self.schedule_running(self.spec.max_batched_tokens)
        if not preempted:
            self.admit(now, budget)
        admitted = sum(len(request.admissions) for request in self.requests) > admissions
        whole = {n for n in self.running if self.requests[n].computed == self.known(n) + self.owed.of(n)}
        receivers = [node for node in self.running if node in whole and not self.is_ending(node)]
        decoding = [node for node in receivers if self.limit(node) > 0 and self.decodes(node)]
        length = self.prefill_duration()
        if decoding:
            length += self.decode_ns(sum(self.known(node) + self.owed.of(node) for node in decoding))
        for node in receivers:
            self.owed.add(node, 1)
        computes = bool(self.computing or admitted or preempted)
        if not computes and not self.gone:
            return None
        return Scheduled(length, receivers, self.gone, computes, self.prefill_tokens - prefilled)

    def decodes(self, node: int) -> bool:
        has_token = len(self.requests[node].tokens_ns) + self.owed.of(node) > 0
        return has_token or not self.requests[node].prompt_computed_now

    def schedule_running(self, budget: int) -> tuple[int, bool]:
        i, preempted = 0, False
        while i < len(self.running) and budget > 0:
            node = self.running[i]
            request = self.requests[node]
            if self.is_ending(node):
                i += 1
                continue
            want = min(self.known(node) + self.owed.of(node) - request.computed, self.most(), budget)
            need = self.ceil_blocks(request.computed + want)
            if need > self.spec.blocks:
                self.drop(node)
                self.running.remove(node)
                self.gone.append((node, "failed"))
                continue
            while need - len(request.table) > self.pool.available() and node in self.running:
                self.preempt(self.running.pop())
                preempted = True
            if node not in self.running:
                break
            self.compute(node, want)
            budget -= want
            i += 1
        return budget, preempted

    def compute(self, node: int, tokens: int) -> None:
        self.computing.add(node)
        request = self.requests[node]
        before = min(request.computed, self.prompt(node))
        request.computed += tokens
        request.prompt_computed_now = min(request.computed, self.prompt(node)) - before
        self.prefill_tokens += tokens if request.prompt_computed_now > 0 else 0
        request.table += self.pool.allocate_all(max(self.ceil_blocks(request.computed) - len(request.table), 0))
        # A token that is owed is not there to be found.
        self.cache(node, min(request.computed, self.known(node)))

    def cache(self, node: int, tokens: int) -> None:
        if self.spec.prefix_caching:
            self.fill_blocks(node, tokens // self.spec.block_size)

    def finish(self, now: int) -> list[tuple[int, str]]:
        assert self.flight is not None
        flight, self.flight, self.end_ns = self.flight, None, None
        self.running = [node for node in self.running if node not in self.canceled]
        for node, _ in flight.gone:
            self.assigned.pop(node, None)
        outcomes = [(node, outcome) for node, outcome in flight.gone if node not in self.canceled]
        for node in sorted(flight.receivers, key=lambda node: self.limit(node) > 0):
            if node in self.canceled:
                continue
            request = self.requests[node]
            self.owed.add(node, -1)
            if self.limit(node) > 0:
                request.tokens_ns.append(now)
            if node in self.running:
                self.cache(node, request.computed - self.owed.of(node))
            if len(request.tokens_ns) < self.limit(node):
                continue
            if node in self.running:
                self.running.remove(node)
            else:  # it was preempted for the sake of the next pass
                self.waiting.remove(node)
            outcomes.append((node, self.complete(node)))
        return outcomes
