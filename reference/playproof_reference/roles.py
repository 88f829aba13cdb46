"""Workers of the prefill and of the decode role: what they change of a worker that does both."""

from __future__ import annotations

from collections.abc import Sequence

from playproof_spec.deployment import WorkerSpec
from playproof_spec.graph import Graph

from playproof_reference.radix import Branch
from playproof_reference.requests import Request
from playproof_reference.sglang import SglangWorker
from playproof_reference.vllm import VllmWorker

# Prefill role: one hidden token, and the prompt's blocks stay until they are released.


class SourceRole(VllmWorker):
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


class SglangSource(SourceRole, SglangWorker):
    """An SGLang worker of the prefill role. What it computed enters the tree when it is held."""

    def others_hold(self) -> bool:
        return bool(self.sources)

    def hold(self, node: int) -> None:
        self.cache(node)

    def let_go(self, node: int) -> None:
        self.end(node)


# Decode role: destinations are reserved one after another, each after something changed.


class DestinationRole(VllmWorker):
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

    def activate(self, node: int) -> None:
        """Let `node`, whose KV has arrived in its place, wait for a seat."""
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
            self.fill_blocks(node, self.prompt(node) // self.spec.block_size)
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


class SglangDestination(DestinationRole, SglangWorker):
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
            self.note_admission(now, node, 0)
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
