"""The HTTP client: one streamed completion a request, timed where its bytes arrive.

aiohttp, since at 256 streams the client must not be what is measured: its parser is compiled, where that of httpx is
Python, and its protocol object can be told to note when bytes came (`_StampingHandler`), before any of them is parsed
and whatever else waits in the event loop.

Nothing is sent twice: a request that failed has failed.
"""

from __future__ import annotations

import asyncio
import functools
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from playproof_spec.machines import RequestState

from playproof.online.options import OnlineOptions

# Bytes of a line of a stream, and of an error's body, that are read.
MAX_LINE_BYTES = 1 << 20
MAX_ERROR_BYTES = 1 << 16
# How much of what a server said is repeated.
SHOWN = 200
# Wall time for the end of a stream after its last event, so that its connection can be used again.
TAIL_S = 1.0
# How long an idle connection is kept: less than servers keep theirs, or a request meets one that is being closed.
KEEP_ALIVE_S = 3.0
# aiohttp wants larger bodies as files.
_LARGE_BODY_BYTES = 1 << 20
# Statuses that say that the request itself cannot be served, whatever the load.
REFUSING = frozenset({400, 413, 422})


class _StampingHandler(ResponseHandler):
    """aiohttp's protocol, which notes when bytes came from the socket, and hands a body on at once.

    A task that waits for each chunk would cost as much again as the chunk, and would read it a turn later.
    """

    arrived_ns = 0
    body: _Body | None = None

    def data_received(self, data: bytes) -> None:
        if data:  # without, aiohttp goes on with bytes that came before
            self.arrived_ns = time.monotonic_ns()
        super().data_received(data)
        if self.body is not None:
            self.body.take(self.arrived_ns)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.body is not None:
            # What was wrong with the bytes, if that is why it was closed.
            self.body.lose(self.exception())


class _Body:
    """A body that is read as it comes: everything in it goes to `reading`, and `over` is done when no more does."""

    def __init__(self, content: aiohttp.StreamReader, reading: _Reading) -> None:
        self._content = content
        self._reading = reading
        self._taking = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, at: int) -> None:
        """Read what is there, which came at `at`."""
        if self.over.done() or self._taking:
            return
        # Reading may let aiohttp go on with bytes that it had kept back, and so come back here.
        self._taking = True
        try:
            while data := self._content.read_nowait(-1):
                self._reading.heard_ns = at
                if self._reading.feed(data, max(at, self._reading.answer.sent)):
                    self._end()
                    return
            if self._content.is_eof():
                self._end()
        except Exception as error:  # of what was read, or of the connection
            self._fail(error)
        finally:
            self._taking = False

    def lose(self, because: BaseException | None) -> None:
        """Take in that the connection is gone: aiohttp does not always say so to who reads a body."""
        self.take(time.monotonic_ns())
        if not self.over.done():
            lost = aiohttp.ClientPayloadError("the connection was lost in the middle of a body")
            self._fail(because if isinstance(because, HttpProcessingError) else lost)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)


class _StampingConnector(aiohttp.TCPConnector):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # There is no public way to name the protocol; a test sees to it that this one still is.
        handler: type[ResponseHandler] = _StampingHandler
        self._factory = functools.partial(handler, loop=asyncio.get_running_loop())


@dataclass(slots=True)
class Answer:
    """How a request ended. Instants are of `time.monotonic_ns`, 0 for what did not happen.

    Attributes
    ----------
    outcome : RequestState
    cause : str
        Why it did not complete, or what is odd about it though it did.
    sent, first, second, last, ended : int
        Sent; first, second and last token; the end.
    tokens : int
        Generated.
    chunks : int
        Events that brought tokens.
    cached : int
        Prompt tokens found in cache, -1 if the server did not say.
    prompt : int
        Prompt tokens as the server counts them, -1 if it did not say.
    gaps : list of int
        Between events that brought tokens, ns of wall time.
    """

    outcome: RequestState = RequestState.FAILED
    cause: str = ""
    sent: int = 0
    first: int = 0
    second: int = 0
    last: int = 0
    ended: int = 0
    tokens: int = 0
    chunks: int = 0
    cached: int = -1
    prompt: int = -1
    gaps: list[int] = field(default_factory=list)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class _Broken(Exception):
    """A stream that cannot be a request's answer; the message says why."""


class Client:
    """Sends requests to one endpoint after another, as it is told.

    Parameters
    ----------
    endpoints : list of str
        Roots of the API, without ``/v1``.
    model : str
    options : OnlineOptions
    key : str, optional
    """

    def __init__(self, endpoints: list[str], model: str, options: OnlineOptions, key: str | None = None) -> None:
        self._urls = [f"{endpoint}/v1/completions" for endpoint in endpoints]
        self._head = b'{"model":' + msgspec.json.encode(model)
        self._silence_ns = int(options.silence_timeout_seconds * 1e9)
        self._seats = asyncio.Semaphore(options.max_connections)
        self._under_way: dict[asyncio.Task[Any], _Reading] = {}
        self._watch = asyncio.create_task(self._watch_silence())
        self._session = session(options, key)

    async def close(self) -> None:
        """Close all connections."""
        self._watch.cancel()
        await self._session.close()

    async def _watch_silence(self) -> None:
        """End requests whose servers have been silent for too long: a timer for all, which a chunk costs nothing."""
        while True:
            await asyncio.sleep(min(self._silence_ns / 8e9, 1.0))
            now = time.monotonic_ns()
            for task, reading in list(self._under_way.items()):
                if now - reading.heard_ns > self._silence_ns and not reading.silent:
                    reading.silent = True
                    task.cancel()

    async def send(
        self, worker: int, prompt: bytes, output: int, namespace: str, told: Callable[[Answer], None]
    ) -> None:
        """Send one request, and call `told` once when it has ended, however it did.

        Parameters
        ----------
        worker : int
            Which endpoint.
        prompt : bytes
            Token ids as the inside of a JSON array.
        output : int
            Tokens wanted.
        namespace : str
            Sent as `cache_salt` where there is one.
        told : callable
            Not called if this task is canceled.
        """
        salt = b',"cache_salt":' + msgspec.json.encode(namespace) if namespace else b""
        body = b"".join(
            (
                self._head,
                b',"prompt":[',
                prompt,
                b'],"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}' % output,
                salt,
                b"}",
            )
        )
        async with self._seats:
            answer = Answer(sent=time.monotonic_ns())
            reading = _Reading(answer)
            task = asyncio.current_task()
            assert task is not None
            self._under_way[task] = reading
            try:
                await self._exchange(self._urls[worker], body, reading, told)
            except asyncio.CancelledError:
                if not reading.silent:
                    raise
                task.uncancel()
                reading.fail(aiohttp.SocketTimeoutError(), told)
            except Exception as error:
                # Whatever it is, the request has ended: a run must not wait for one that nobody works on.
                reading.fail(error, told)
            finally:
                del self._under_way[task]

    async def _exchange(self, url: str, body: bytes, reading: _Reading, told: Callable[[Answer], None]) -> None:
        answer = reading.answer
        async with self._session.post(url, data=_payload(body), allow_redirects=False) as response:
            if response.status != 200:
                said = await _head_of(response)
                refused = response.status in REFUSING
                answer.outcome = RequestState.REJECTED if refused else RequestState.FAILED
                answer.cause = f"the server answered {response.status}: {said or response.reason or 'without a reason'}"
                answer.ended = time.monotonic_ns()
                reading.tell(told)
                return
            if response.content_type != "text/event-stream":
                raise _Broken(f"the server answered with {response.content_type} instead of a stream")
            connection = response.connection
            handler = connection.protocol if connection is not None else None
            if handler is not None and not isinstance(handler, _StampingHandler):
                raise _Broken("aiohttp made a connection of its own kind: install it as constraints.txt has it")
            read = _Body(response.content, reading)
            # Without a handler all of the answer is here, and its connection has been let go of.
            if handler is not None:
                handler.body = read
                read.take(handler.arrived_ns)
                if handler.transport is None:
                    read.lose(handler.exception())
            else:
                read.take(time.monotonic_ns())
            try:
                await read.over
            finally:
                # The connection may serve another request already.
                if handler is not None and handler.body is read:
                    handler.body = None
            reading.finish(time.monotonic_ns())
            reading.tell(told)
            await _read_tail(response)


async def _read_tail(response: aiohttp.ClientResponse) -> None:
    """Read the end of a body, which is due any moment; without it the connection is not used again."""
    try:
        async with asyncio.timeout(TAIL_S):
            await response.content.read()
    except TimeoutError:
        response.close()


class _Reading:
    """One stream of events as it is read.

    Attributes
    ----------
    answer : Answer
    told : bool
        Whether its end was told.
    heard_ns : int
        When its server last said anything, or it was sent.
    silent : bool
        Whether it is being ended for its silence.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.told = self.silent = False
        self.heard_ns = answer.sent
        self._rest = b""
        self._usage: _Usage | None = None
        self._finished = self._done = False

    def tell(self, told: Callable[[Answer], None]) -> None:
        """Say how it ended."""
        self.told = True
        told(self.answer)

    def fail(self, error: Exception, told: Callable[[Answer], None]) -> None:
        """Say that it failed, unless its end was told already."""
        if not self.told:
            self.answer.outcome = RequestState.FAILED
            self.answer.cause = _cause(error, self.answer)
            self.answer.ended = time.monotonic_ns()
            self.tell(told)

    def feed(self, data: bytes, at: int) -> bool:
        """Take in bytes that came at `at`; True when the stream has said that it is over.

        Raises
        ------
        _Broken
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            raise _Broken(f"a line of the stream is longer than {MAX_LINE_BYTES:,} bytes")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # blank lines, comments, fields that this API does not use
            event = line[5:].strip()
            if event == b"[DONE]":
                self._done = True
                self.answer.ended = at
                return True
            self._take(event, at)
        return False

    def _take(self, event: bytes, at: int) -> None:
        try:
            chunk = _CHUNK.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _Broken(f"a chunk of the stream cannot be read ({error}): {_shown(event)}") from None
        if chunk.error is not None:
            raise _Broken(f"the server gave up: {_message(chunk.error)}")
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            # The last event of some servers has a reason and no token.
            if choice.text or choice.finish_reason is None:
                self._mark(at)
            if choice.finish_reason is not None:
                self._finished = True
                self.answer.ended = at

    def _mark(self, at: int) -> None:
        answer = self.answer
        answer.chunks += 1
        if answer.chunks == 1:
            answer.first = at
        else:
            if answer.chunks == 2:
                answer.second = at
            answer.gaps.append(at - answer.last)
        answer.last = at
        answer.tokens = answer.chunks

    def finish(self, now: int) -> None:
        """Take in that no more is read.

        Raises
        ------
        _Broken
            When the stream has not said that it is over.
        """
        answer, usage = self.answer, self._usage
        if not (self._done or self._finished):
            raise _Broken("the stream ended before the answer did")
        answer.ended = answer.ended or now
        answer.outcome = RequestState.FINISHED
        if usage is None:
            answer.cause = "the stream had no usage: tokens are counted by chunks, cached tokens are not known"
            return
        answer.tokens = usage.completion_tokens
        answer.prompt = usage.prompt_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            answer.cached = details.cached_tokens
        if answer.tokens > 0 and answer.chunks == 0:
            answer.first = answer.second = answer.last = answer.ended
        if answer.tokens > 1 and answer.chunks == 1:
            answer.second = answer.first
        if answer.chunks > answer.tokens:
            answer.cause = f"the stream brought {answer.chunks} tokens, its usage says {answer.tokens}"


def session(options: OnlineOptions, key: str | None) -> aiohttp.ClientSession:
    """Return a session with the stated limits and time-outs, which are of wall time."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        connector=_StampingConnector(limit=options.max_connections, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(
            total=options.request_timeout_seconds,
            sock_connect=options.connect_timeout_seconds,
        ),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _payload(body: bytes) -> bytes | io.BytesIO:
    return io.BytesIO(body) if len(body) > _LARGE_BODY_BYTES else body


async def _head_of(response: aiohttp.ClientResponse) -> str:
    """Return what an error's body says, as far as it is read."""
    data = await response.content.read(MAX_ERROR_BYTES)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _shown(data)
    return _message(value.get("error", value) if isinstance(value, dict) else value)


def _message(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message", error)
    return _shown(str(error).encode())


def _shown(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _cause(error: Exception, answer: Answer) -> str:
    """Return a readable cause of a request that failed on its way."""
    progress = f" after {answer.tokens} token{'s' if answer.tokens > 1 else ''}" if answer.tokens else ""
    if isinstance(error, _Broken):
        return f"{error}{progress}"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection was made in time"
    if isinstance(error, aiohttp.SocketTimeoutError):
        return f"the server was silent for too long{progress}"
    if isinstance(error, TimeoutError):
        return f"the request took too long{progress}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {os.strerror(error.errno) if error.errno else error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return f"the answer is not HTTP{progress}: {_shown(error.message.encode())}"
    if isinstance(error, aiohttp.ClientPayloadError | ConnectionError):
        return f"the connection broke{progress}"
    return f"{type(error).__name__}: {error}{progress}"
