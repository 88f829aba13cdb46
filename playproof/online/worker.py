"""A mock worker: the kernel's engine on the wall clock. Requests come in, tokens come out when their pass ends.

The event loop sleeps until the pass in progress ends. Its end is taken at its own instant however late the loop wakes,
so passes do not drift; a token is late by as much as the loop is, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from playproof_kernel.runs.live_engine import LiveEngine, Progress
from playproof_spec.machines import RequestState
from playproof_spec.units import NS_PER_S

from playproof.online.clock import Clock
from playproof.online.metrics import Metrics

# Wall time after which the passes of one turn of the event loop go on in the next. Engine time of one call: the least
# has at most a thousand passes (`server.LEAST_PASS_MS`), a millisecond's work.
TURN_NS, MIN_SPAN_NS, MAX_SPAN_NS = 5_000_000, 1_000_000, 1 << 40
# Cache namespaces between two times of forgetting.
MAX_NAMESPACES = 1 << 14


class Bell:
    """What one connection waits at: it is rung when anything happened to one of its requests."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once a condition holds, which is looked at now and whenever the bell rings."""
        while not condition():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def ring(self) -> None:
        """Let `until` look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True, eq=False)
class Stream:
    """One request of a mock worker, as its connection sees it.

    Attributes
    ----------
    prompt_tokens, arrived_ns : int
    available : int
        Tokens generated so far.
    cached : int
        Prompt tokens found in cache, 0 before it was admitted.
    outcome : RequestState or None
        How it ended.
    """

    slot: int
    prompt_tokens: int
    arrived_ns: int
    bell: Bell
    available: int = 0
    cached: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    outcome: RequestState | None = None

    @property
    def canceled(self) -> bool:
        """Whether its client gave up on it."""
        return self.outcome == RequestState.CANCELED


class Worker:
    """One engine and its clock.

    Parameters
    ----------
    engine : LiveEngine
    clock : Clock
    metrics : Metrics
        What it counts in.
    """

    def __init__(self, engine: LiveEngine, clock: Clock, metrics: Metrics) -> None:
        self.engine = engine
        self.clock = clock
        self.metrics = metrics
        self._streams: dict[int, Stream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        # How much of the engine's time is let pass in one call, ns. It follows how long calls take that use it up; one
        # that has nothing to do says nothing of how long one with much to do would take.
        self._span = MIN_SPAN_NS
        self._reached = 0
        self._namespaces: set[str] = set()

    def submit(self, tokens: npt.NDArray[np.uint32], output: int, namespace: str, bell: Bell) -> Stream:
        """Let a request arrive now; those that arrive in one turn of the event loop are scheduled together.

        Namespaces cost memory until the engine forgets them, which it does by the tokens that it has seen: a prompt
        without a full block shares nothing and needs none, and when there are too many it forgets at once.
        """
        now = self._look()
        if namespace:
            namespace = self._known(namespace) if len(tokens) >= self.engine.chains.block_size else ""
        slot = self.engine.arrive(tokens, output, namespace)
        stream = Stream(slot, len(tokens), now, bell)
        self._streams[slot] = stream
        self._pump_soon()
        return stream

    def cancel(self, stream: Stream) -> None:
        """Give up on a request, if it is not over: its blocks are free when the pass that computes it has ended."""
        if self._streams.get(stream.slot) is stream:
            self._look()
            if stream.outcome is None:
                self.engine.cancel(stream.slot)
                self._pump_soon()

    def close(self) -> None:
        """Stop; nothing ends any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _known(self, namespace: str) -> str:
        if namespace not in self._namespaces:
            if len(self._namespaces) >= MAX_NAMESPACES:
                self.engine._forget()  # the engine's own way to do that goes by tokens alone
                self._namespaces.clear()
            self._namespaces.add(namespace)
        return namespace

    # The pump --------------------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._look()
        upcoming = self.engine.upcoming
        if upcoming is not None:
            self._timer = asyncio.get_running_loop().call_at(self.clock.due(upcoming), self._pump)

    def _look(self) -> int:
        """Let happen what is due, tell the streams, and return the time.

        What takes longer than a turn of the event loop may take goes on in the next one (`_pump` sees that it is
        due): an engine that is behind, as at a great time scale, must not keep everything else waiting.
        """
        now = self.clock.now()
        begun = before = time.perf_counter_ns()
        while True:
            upcoming = self.engine.upcoming
            if upcoming is None and self._streams:
                upcoming = self._reached  # what has just arrived is due, and not known to the engine's clock yet
            until = now if upcoming is None else min(now, upcoming + self._span)
            for progress in self.engine.advance(until):
                self._tell(self._streams[progress.slot], progress, now)
            after = time.perf_counter_ns()
            if after - before > TURN_NS // 2:
                self._span = max(self._span // 2, MIN_SPAN_NS)
            elif until < now and after - before < TURN_NS // 8:
                self._span = min(2 * self._span, MAX_SPAN_NS)
            before, self._reached = after, until
            if until >= now or after - begun > TURN_NS:
                return now

    def _tell(self, stream: Stream, progress: Progress, now: int) -> None:
        fresh = progress.generated - stream.available
        if fresh > 0:
            self._measure(stream, fresh, now)
        stream.available = progress.generated
        stream.cached = max(progress.cached, 0)
        stream.outcome = progress.outcome
        if progress.outcome is not None:
            del self._streams[progress.slot]
            if progress.outcome == RequestState.FINISHED:
                decode = max(stream.last_token_ns - stream.first_token_ns, 0) / NS_PER_S
                took = (now - stream.arrived_ns) / NS_PER_S
                self.metrics.finished(took, decode, stream.prompt_tokens, stream.available)
                if stream.available == 0:
                    self.metrics.computed(stream.prompt_tokens)
            elif progress.outcome == RequestState.CANCELED:
                self.metrics.aborted()
        stream.bell.ring()

    def _measure(self, stream: Stream, fresh: int, now: int) -> None:
        self.metrics.generated(fresh)
        if stream.available == 0:
            self.metrics.computed(stream.prompt_tokens)
            self.metrics.first_token((now - stream.arrived_ns) / NS_PER_S)
            stream.first_token_ns = now
        else:
            self.metrics.next_token((now - stream.last_token_ns) / NS_PER_S)
        stream.last_token_ns = now
