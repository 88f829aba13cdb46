"""A mock worker: the kernel's engine on the wall clock. Requests come in, tokens come out when their pass ends.

The event loop sleeps until the pass in progress ends. Its end is taken at its own instant however late the loop wakes,
so passes do not drift; a token is late by as much as the loop is, once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from playproof_kernel.runs.live_engine import LiveEngine, Progress
from playproof_spec.machines import RequestState
from playproof_spec.units import NS_PER_S

from playproof.online.clock import Clock
from playproof.online.metrics import Metrics


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
    writing_since : float or None
        When the server began to write what it has not got rid of yet, by the event loop's clock.
    """

    slot: int
    prompt_tokens: int
    arrived_ns: int
    available: int = 0
    cached: int = 0
    last_token_ns: int = 0
    outcome: RequestState | None = None
    writing_since: float | None = None
    _waiter: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def canceled(self) -> bool:
        """Whether its client gave up on it."""
        return self.outcome == RequestState.CANCELED

    async def more(self, known: int) -> None:
        """Return once there are more than `known` tokens, or the request is over."""
        while self.available <= known and self.outcome is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def wake(self) -> None:
        """Let `more` look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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

    def submit(self, tokens: npt.NDArray[np.uint32], output: int, namespace: str) -> Stream:
        """Let a request arrive now; those that arrive in one turn of the event loop are scheduled together."""
        now = self._look()
        slot = self.engine.arrive(tokens, output, namespace)
        stream = Stream(slot, len(tokens), now)
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
        """Let all happen that is due, tell the streams, and return the time."""
        now = self.clock.now()
        for progress in self.engine.advance(now):
            self._tell(self._streams[progress.slot], progress, now)
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
                self.metrics.finished((now - stream.arrived_ns) / NS_PER_S)
                if stream.available == 0:
                    self.metrics.computed(stream.prompt_tokens)
            elif progress.outcome == RequestState.CANCELED:
                self.metrics.aborted()
        stream.wake()

    def _measure(self, stream: Stream, fresh: int, now: int) -> None:
        self.metrics.generated(fresh)
        if stream.available == 0:
            self.metrics.computed(stream.prompt_tokens)
            self.metrics.first_token((now - stream.arrived_ns) / NS_PER_S)
        else:
            self.metrics.next_token((now - stream.last_token_ns) / NS_PER_S)
        stream.last_token_ns = now
