"""SGLang's overlap schedule: a batch is put together when the one before it starts to run.

Of that one, whose tokens are not known yet, it takes only what is certain: whom it brings to the last token wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from playproof_spec.deployment import Rules, WorkerSpec
from playproof_spec.graph import Graph

from playproof_reference.ahead import Scheduled, TwoPasses
from playproof_reference.radix import OwnTree
from playproof_reference.requests import Request
from playproof_reference.sglang import SglangWorker


@dataclass(kw_only=True)
class Batch(Scheduled):
    """A pass that has been scheduled, of prompts or of next tokens."""

    prefill: bool
    cut: int | None = None  # whose prompt goes on after it
    opens: bool = False  # whether others are looked at again after it


class OverlapWorker(TwoPasses[Batch], SglangWorker):
    """An SGLang worker that schedules a pass while the one before it runs."""

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        assert spec.rules is Rules.SGLANG
        super().__init__(graph, spec, context, requests)

    # Scheduling

    def in_flight(self) -> list[int]:
        return [] if self.flight is None else self.flight.receivers

    def ending(self) -> list[int]:
        """Whom the pass that runs brings to the last token that it wants."""
        return [node for node in self.in_flight() if self.remaining(node) <= 1]

    def growers(self) -> list[int]:
        ending = self.ending()
        return [node for node in self.running if self.limit(node) > 0 and node not in ending]

    def settle_flight(self) -> None:
        """Let the batch that starts to run join the running one: what it computes of a prompt can be found now."""
        if self.flight is None or not self.flight.prefill:
            return
        if self.flight.cut is not None:
            self.cache(self.flight.cut)
        if self.flight.opens:
            self.full = False

    def schedule(self, now: int) -> Batch | None:
        self.settle_flight()
        self.fresh, self.prefilled, self.retracted, self.stalls, self.prefill = [], [], False, False, False
        self.gone, self.cut = [], None
        self.refuse_too_long()
        self.prefill_batch(now)
        self.prefill_tokens += self.prefilled_now()
        if self.prefill:
            opens = self.cut is not None or self.ran == 0
            return Batch(
                length_ns=self.prefill_length(),
                prefill=True,
                receivers=self.fresh,
                gone=self.gone,
                computes=True,
                prefill_tokens=self.prefilled_now(),
                cut=self.cut,
                opens=opens,
            )
        decoding = self.decode() if self.running else []
        if not decoding and not self.gone:
            return None
        known = sum(self.known(node) + (node in self.in_flight()) for node in decoding)
        length_ns = self.decode_ns(known) if decoding else 0
        return Batch(length_ns=length_ns, prefill=False, receivers=decoding, gone=self.gone, computes=bool(decoding))

    def decode(self) -> list[int]:
        """Take the places of the tokens of a decode pass, retracting for them; whose they are."""
        assert isinstance(self.tree, OwnTree)
        ending, growers = self.ending(), self.growers()
        if ending:
            self.full = False
            if self.growth(growers) > self.tree.available():
                # What those hold comes free when the pass that runs has ended; nobody is retracted for it.
                self.tree.evict(self.tree.evictable())
                return []
        if not growers:
            return []
        self.make_room()
        growers = [] if self.stalls else self.growers()
        self.take_places(growers)
        if growers and not self.retracted:
            self.ratio = self.decayed()
        return growers

    def give_up(self, node: int) -> None:
        super().give_up(node)
        if self.flight is not None and node in self.flight.receivers:
            self.flight.receivers.remove(node)  # its token is thrown away

    # The end of a pass

    def finish(self, now: int) -> list[tuple[int, str]]:
        assert self.flight is not None
        flight, self.flight, self.end_ns = self.flight, None, None
        before = len(self.running)
        self.running = [node for node in self.running if node not in self.canceled]
        for node, _ in flight.gone:
            self.assigned.pop(node, None)
        outcomes = [(node, outcome) for node, outcome in flight.gone if node not in self.canceled]
        for node in sorted(flight.receivers, key=lambda node: self.limit(node) > 0):
            if node in self.canceled:
                continue
            if self.limit(node) > 0:
                if flight.prefill and self.remaining(node) > 1:
                    # The place of its next token may have been taken already, but is not there to be found.
                    self.cache(node, self.known(node))
                self.requests[node].tokens_ns.append(now)
            if self.remaining(node) <= 0:
                self.running.remove(node)
                outcomes.append((node, self.complete(node)))
        if len(self.running) < before:
            self.full = False
        return outcomes

    def forget(self, node: int) -> None:
        for batch in self.scheduled():
            batch.cut = None if batch.cut == node else batch.cut
        super().forget(node)
