"""The online driver: the kernel's driver on the wall clock, its requests sent over HTTP.

One event loop does everything. The kernel says what is due (`LiveDriver.step`), each request is a task of its own, and
what ends is told to the kernel at once. Between two steps the loop sleeps until something is due or something ends.

Three things tell whether the client kept up: how late each request was sent, how long the end of a request waited to be
heard, and how late the event loop itself was.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_kernel import ReplayFault
from playproof_kernel.runs.controlled_ledger import ControlledLedger
from playproof_kernel.runs.live_driver import End, LiveDriver, Order
from playproof_spec.ledger import NEVER, Ledger
from playproof_spec.machines import RequestState
from playproof_spec.units import NS_PER_S

from playproof.online.client import Client
from playproof.online.clock import Clock
from playproof.online.options import OnlineOptions
from playproof.online.prompts import Encoding
from playproof.online.stream import Answer, shown

Int64 = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

# Gaps between tokens are counted in steps of 10 µs, so that their table stays small however long the run.
GAP_STEP_NS = 10_000
# Causes that are told apart.
MAX_CAUSES, OTHER_CAUSES = 100, "other causes"
# How often the event loop is asked how late it is, and how often somebody who watches is told of progress.
HEARTBEAT_S = 0.02
PROGRESS_S = 0.25


class EndedBy(StrEnum):
    """Why a run ended."""

    COMPLETION = "completion"
    DURATION = "duration"
    INTERRUPT = "interrupt"
    WORKER = "worker"  # a mock worker died


class Lateness:
    """How late something was, again and again: exact up to a bound, and in steps of 1 % beyond its first samples.

    Attributes
    ----------
    counts : Counter
        By microseconds, rounded to three figures.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.most_ns = 0

    def add(self, span_ns: int) -> None:
        """Count one; less than nothing is nothing."""
        span_ns = max(span_ns, 0)
        self.most_ns = max(self.most_ns, span_ns)
        self.counts[int(float(f"{span_ns / 1000:.2e}"))] += 1

    @property
    def number(self) -> int:
        """How many were counted."""
        return self.counts.total()

    def percentile_ms(self, percent: int) -> float | None:
        """Return a percentile, or None without samples."""
        total = self.number
        if not total:
            return None
        rank, reached = (2 * percent * (total - 1) + 100) // 200, 0
        for microseconds in sorted(self.counts):
            reached += self.counts[microseconds]
            if reached > rank:
                return microseconds / 1000
        return self.most_ns / 1e6

    def figures(self) -> dict[str, float | int | None]:
        """Return number, median, 99th percentile and maximum, milliseconds of wall time."""
        return {
            "samples": self.number,
            "median_ms": self.percentile_ms(50),
            "p99_ms": self.percentile_ms(99),
            "max_ms": self.most_ns / 1e6 if self.number else None,
        }


@dataclass(frozen=True, slots=True)
class Sent:
    """What the report tells of one request besides its ledger.

    Attributes
    ----------
    endpoint : int
    late_ns : int
        Wall time.
    cause : str
    """

    endpoint: int
    late_ns: int
    cause: str


@dataclass(slots=True)
class Observed:
    """What an online run showed besides the kernel's ledger.

    Attributes
    ----------
    ledger : Ledger or ControlledLedger
    ended_by : EndedBy
    partial : bool
        Whether something of the corpus was not issued, or given up, for that reason.
    closed_ns : int or None
        When admission was ended for that reason, on the driver's clock.
    ended_ns, wall_ns : int
        The run's end on the driver's clock; what it took of wall time.
    dispatch, hearing, loop : Lateness
    sent : dict of int to Sent
        By the request's number, where requests are kept.
    causes : Counter of str
        Of requests that did not complete, or completed oddly.
    without_usage, without_cached, miscounted, prompts_differ : int
        Streams without usage; without a count of cached tokens that can be used; with more tokens than their usage
        says; whose prompts the server counted otherwise.
    fewer, more : int
        Completed requests with fewer and with more tokens than were asked for.
    deaths : tuple of str
        Mock workers that ended by themselves, and how.
    """

    ledger: Ledger | ControlledLedger
    ended_by: EndedBy
    partial: bool
    closed_ns: int | None
    ended_ns: int
    wall_ns: int
    dispatch: Lateness
    hearing: Lateness
    loop: Lateness
    sent: dict[int, Sent] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)
    without_usage: int = 0
    without_cached: int = 0
    miscounted: int = 0
    fewer: int = 0
    more: int = 0
    prompts_differ: int = 0
    deaths: tuple[str, ...] = ()


@contextlib.contextmanager
def _masked(number: int) -> Iterator[None]:
    """Let a signal wait while its handler is changed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class OnlineDriver:
    """Drives one run.

    Parameters
    ----------
    driver : LiveDriver
    encoding : Encoding
    client : Client
    clock : Clock
        Started just before.
    options : OnlineOptions
    prompt_tokens : Int64, shape (nodes,)
        As the trace says.
    finite : bool
        Whether each node runs once: no run controls.
    per_request : bool
        Keep what is seen of each request.
    at_barrier : callable, optional
        Awaited once, when measurement begins.
    progress : callable, optional
        Called now and then with (requests over, requests in all).
    """

    def __init__(
        self,
        driver: LiveDriver,
        encoding: Encoding,
        client: Client,
        clock: Clock,
        options: OnlineOptions,
        prompt_tokens: Int64,
        *,
        finite: bool,
        per_request: bool,
        at_barrier: Callable[[], Awaitable[None]] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._driver = driver
        self._encoding = encoding
        self._client = client
        self._clock = clock
        self._options = options
        self._prompt_tokens = prompt_tokens
        self._finite = finite
        self._per_request = per_request
        self._at_barrier = at_barrier
        self._progress = progress
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tails: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._over: asyncio.Future[None] | None = None
        self._barrier: asyncio.Future[None] | None = None
        self._close_at: int | None = None
        self._closed_ns: int | None = None
        self._give_up_at: int | None = None
        self._ended_by = EndedBy.COMPLETION
        self._heard: list[int] = []
        self._gaps: Counter[int] = Counter()
        self.dispatch, self.hearing, self.loop = Lateness(), Lateness(), Lateness()
        self._sent: dict[int, Sent] = {}
        self._causes: Counter[str] = Counter()
        self._without_usage = self._without_cached = self._miscounted = self._prompts_differ = 0
        self._fewer = self._more = 0

    async def run(self) -> Observed:
        """Run to the end, or until a signal or the duration ends it.

        Raises
        ------
        ReplayFault
            When the run cannot go on; no trace and no server may bring that about.
        """
        started = time.monotonic_ns()
        self._over = asyncio.get_running_loop().create_future()
        watches = [asyncio.create_task(self._beat()), asyncio.create_task(self._show())]
        try:
            with self._interruptible():
                self._pump_soon()
                await self._over
                await self._settle()
        finally:
            for watch in watches:
                watch.cancel()
            if self._timer is not None:
                self._timer.cancel()
            for task in (*self._tasks.values(), *self._tails):
                task.cancel()
        values = np.array(sorted(self._gaps), np.int64)
        counts = np.array([self._gaps[value] for value in values.tolist()], np.int64)
        return Observed(
            ledger=self._driver.ledger(values * GAP_STEP_NS, counts),
            ended_by=self._ended_by,
            partial=self._ended_by is not EndedBy.COMPLETION,
            closed_ns=self._closed_ns,
            ended_ns=self._clock.now(),
            wall_ns=time.monotonic_ns() - started,
            dispatch=self.dispatch,
            hearing=self.hearing,
            loop=self.loop,
            sent=self._sent,
            causes=self._causes,
            without_usage=self._without_usage,
            without_cached=self._without_cached,
            miscounted=self._miscounted,
            fewer=self._fewer,
            more=self._more,
            prompts_differ=self._prompts_differ,
        )

    # The pump --------------------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        assert self._over is not None
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._over.done():
            return
        try:
            self._step()
        except Exception as fault:
            self._over.set_exception(fault)

    def _step(self) -> None:
        assert self._over is not None
        now = self._clock.now()
        heard = time.monotonic_ns()
        for ended in self._heard:
            self.hearing.add(heard - ended)
        self._heard.clear()
        orders, given_up = self._driver.step(now)
        for slot in given_up:
            self._tasks.pop(slot).cancel()
        if self._at_barrier is not None and self._driver.measuring_since is not None:
            self._barrier = asyncio.ensure_future(self._at_barrier())
            self._at_barrier = None
        for order in orders:
            task = asyncio.create_task(self._serve(order))
            self._tasks[order.slot] = task
        if self._driver.over:
            self._over.set_result(None)
            return
        self._end_in_time(now)
        due = [when for when in (self._driver.upcoming, self._close_at, self._give_up_at) if when is not None]
        if due:
            self._timer = asyncio.get_running_loop().call_at(self._clock.due(min(due)), self._pump)
        elif not self._tasks and not self._soon:
            raise ReplayFault("nothing is under way and nothing is due, and the run is not over")

    def _end_in_time(self, now: int) -> None:
        """End admission when its duration is over, and give up what is under way when its drain is."""
        since, duration = self._driver.measuring_since, self._options.duration_seconds
        if duration is not None and self._ended_by is EndedBy.COMPLETION and since is not None:
            self._close_at = since + int(duration * NS_PER_S)
            if now >= self._close_at:
                self._close(EndedBy.DURATION, now)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            self._give_up()

    def _close(self, why: EndedBy, now: int) -> None:
        """End admission; what is under way has the drain's time."""
        if self._ended_by is not EndedBy.COMPLETION:
            return
        self._ended_by = why
        self._close_at, self._closed_ns = None, now
        if self._driver.preparing:
            self._give_up()
            return
        drain = int(self._options.drain_seconds * NS_PER_S)
        self._driver.close(drain)
        if self._finite:
            self._give_up_at = now + drain
        self._pump_soon()

    def _give_up(self) -> None:
        if self._driver.preparing:
            # Preparation that is not whole is none: its first failure makes the run invalid.
            for slot, task in list(self._tasks.items()):
                task.cancel()
                self._ended(slot, None, Answer(cause="the run was interrupted", ended=time.monotonic_ns()))
        elif self._finite:
            self._driver.give_up_all()
        self._pump_soon()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let the first Ctrl-C end admission, and the second give up what is under way."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        installed: dict[int, Any] = {}
        for number in signals:
            # Elsewhere than in the main thread, or without POSIX signals, whoever runs us ends us.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                before = signal.getsignal(number)
                loop.add_signal_handler(number, self.interrupt)
                installed[number] = before
        try:
            yield
        finally:
            for taken, before in installed.items():
                # asyncio would put back the defaults, by which a second Ctrl-C ends the run without its report.
                with _masked(taken):
                    loop.remove_signal_handler(taken)
                    signal.signal(taken, before)

    def lose_worker(self) -> None:
        """End admission since a mock worker is gone: what is still sent to it would say nothing of the deployment."""
        self._close(EndedBy.WORKER, self._clock.now())

    def interrupt(self) -> None:
        """End admission now; when that has been done already, give up what is under way."""
        now = self._clock.now()
        if self._ended_by is EndedBy.COMPLETION:
            self._close(EndedBy.INTERRUPT, now)
        else:
            self._ended_by = EndedBy.INTERRUPT
            if self._finite:
                self._give_up_at = now
            else:
                self._driver.close(0)
            self._pump_soon()

    # Requests --------------------------------------------------------------------------------------------------------

    async def _serve(self, order: Order) -> None:
        def told(answer: Answer) -> None:
            task = self._tasks.get(order.slot)
            if task is None:
                return  # given up meanwhile
            self._tails.add(task)
            task.add_done_callback(self._tails.discard)
            self._ended(order.slot, order, answer)

        try:
            await self._client.send(
                order.worker,
                self._encoding.text(order.source),
                order.output,
                order.namespace,
                told,
                prompt_tokens=int(self._prompt_tokens[order.source]),
            )
        except Exception as fault:
            # Nobody works on it any more, so it is over, or the run would wait for it for ever.
            if order.slot in self._tasks:
                cause = f"playproof could not send it ({type(fault).__name__}: {shown(str(fault))})"
                self._ended(order.slot, order, Answer(cause=cause, ended=time.monotonic_ns()))

    def _ended(self, slot: int, order: Order | None, answer: Answer) -> None:
        """Take in how a request ended. Whatever is wrong with that is the end of the request, and never of the run."""
        self._tasks.pop(slot, None)
        try:
            end = self._end_of(answer)
            self._driver.end(slot, end)
        except Exception as fault:
            cause = f"its end cannot be taken in ({type(fault).__name__}: {shown(str(fault))})"
            answer = Answer(cause=cause, sent=answer.sent, ended=time.monotonic_ns())
            end = self._end_of(answer)
            self._driver.end(slot, end)
        self._heard.append(answer.ended)
        if order is not None:
            self._note(order, answer, end)
        self._pump_soon()

    def _end_of(self, answer: Answer) -> End:
        """Return the end of a request on the driver's clock."""
        clock = self._clock

        def on_clock(instant: int) -> int:
            return clock.at(instant) if instant else NEVER

        return End(
            outcome=answer.outcome,
            sent=on_clock(answer.sent),
            first_token=on_clock(answer.first),
            second_token=on_clock(answer.second),
            last_token=on_clock(answer.last),
            terminal=on_clock(answer.ended),
            generated=answer.tokens,
            cached=answer.cached,
        )

    def _note(self, order: Order, answer: Answer, end: End) -> None:
        late_ns = max(self._clock.wall_ns(end.sent - order.ready), 0)
        self.dispatch.add(late_ns)
        if answer.cause:
            known = answer.cause in self._causes or len(self._causes) < MAX_CAUSES
            self._causes[answer.cause if known else OTHER_CAUSES] += 1
        if not order.measured:
            return
        if self._per_request:
            self._sent[order.serial] = Sent(order.worker, late_ns, answer.cause)
        if answer.outcome != RequestState.FINISHED:
            return
        scale = self._clock.scale
        for gap in answer.gaps:
            self._gaps[round(gap * scale / GAP_STEP_NS)] += 1
        # Tokens that came together in one event.
        together = answer.tokens - max(answer.chunks, 1)
        if together > 0:
            self._gaps[0] += together
        self._without_usage += answer.prompt < 0
        self._without_cached += answer.cached < 0
        self._miscounted += answer.chunks > answer.tokens
        self._fewer += answer.tokens < order.output
        self._more += answer.tokens > order.output
        self._prompts_differ += 0 <= answer.prompt != int(self._prompt_tokens[order.source])

    async def _settle(self) -> None:
        """Let connections whose answers are whole come to their ends."""
        if self._barrier is not None:
            await self._barrier
        if self._tails:
            await asyncio.wait(self._tails, timeout=2.0)

    # Watching --------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Measure how late the event loop is."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self.loop.add(int((loop.time() - due) * NS_PER_S))

    async def _show(self) -> None:
        while self._progress is not None:
            self._progress(self._driver.finished, max(len(self._prompt_tokens), self._driver.finished))
            await asyncio.sleep(PROGRESS_S)
