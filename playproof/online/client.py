"""The HTTP client: one streamed completion a request, timed where its bytes arrive.

aiohttp, since at 256 streams the client must not be what is measured: its parser is compiled, where that of httpx is
Python, and its protocol object can be told to note when bytes came (`_StampingHandler`), before any of them is parsed
and whatever else waits in the event loop.

Nothing is sent twice: a request that failed has failed.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import io
import os
import ssl
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from playproof_spec.machines import RequestState

from playproof.online.options import API_KEY, OnlineOptions
from playproof.online.stream import Answer, Broken, Reading, message_of, shown

# Bytes of an error's body that are read.
MAX_ERROR_BYTES = 1 << 16
# Wall time for the end of a stream after its last event, so that its connection can be used again.
TAIL_S = 1.0
# What may stand behind the last event of a stream; with more, its connection is not used again.
MAX_TAIL_BYTES = 1 << 16
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

    def __init__(self, content: aiohttp.StreamReader, reading: Reading) -> None:
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
        self._under_way: dict[asyncio.Task[Any], Reading] = {}
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
        self,
        worker: int,
        prompt: bytes,
        output: int,
        namespace: str,
        told: Callable[[Answer], None],
        *,
        prompt_tokens: int,
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
            Not called if this task is canceled. It raises nothing.
        prompt_tokens : int
            How many ids `prompt` has.
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
            reading = Reading(answer, output, prompt_tokens)
            task = asyncio.current_task()
            assert task is not None
            self._under_way[task] = reading
            try:
                await self._exchange(self._urls[worker], body, reading, told)
            except asyncio.CancelledError:
                if not reading.silent:
                    raise
                task.uncancel()
                _fail(reading, aiohttp.SocketTimeoutError(), told)
            except Exception as error:
                # Whatever it is, the request has ended: a run must not wait for one that nobody works on.
                _fail(reading, error, told)
            finally:
                del self._under_way[task]

    async def _exchange(self, url: str, body: bytes, reading: Reading, told: Callable[[Answer], None]) -> None:
        answer = reading.answer
        async with self._session.post(url, data=_payload(body), allow_redirects=False) as response:
            if response.status != 200:
                said = await _head_of(response)
                refused = response.status in REFUSING
                answer.outcome = RequestState.REJECTED if refused else RequestState.FAILED
                answer.cause = _status_cause(response, said)
                answer.ended = time.monotonic_ns()
                _tell(reading, told)
                return
            if response.content_type != "text/event-stream":
                raise Broken(f"the server answered with {shown(response.content_type)} instead of a stream")
            connection = response.connection
            handler = connection.protocol if connection is not None else None
            if handler is not None and not isinstance(handler, _StampingHandler):
                raise Broken("aiohttp made a connection of its own kind: install it as constraints.txt has it")
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
            _tell(reading, told)
            await _read_tail(response)


async def _read_tail(response: aiohttp.ClientResponse) -> None:
    """Read the end of a body, which is due any moment; without it the connection is not used again."""
    read = 0
    try:
        async with asyncio.timeout(TAIL_S):
            while data := await response.content.readany():
                read += len(data)
                if read > MAX_TAIL_BYTES:
                    break
            else:
                return
    except TimeoutError:
        pass
    response.close()


def _tell(reading: Reading, told: Callable[[Answer], None]) -> None:
    """Say how a request ended."""
    reading.told = True
    told(reading.answer)


def _fail(reading: Reading, error: Exception, told: Callable[[Answer], None]) -> None:
    """Say that a request failed, unless its end was told already."""
    if not reading.told:
        answer = reading.answer
        answer.outcome = RequestState.FAILED
        answer.cause = cause_of(error, answer)
        answer.ended = time.monotonic_ns()
        _tell(reading, told)


def session(options: OnlineOptions, key: str | None) -> aiohttp.ClientSession:
    """Return a session with the stated limits and time-outs, which are of wall time."""
    # A compressed stream would come when the compressor likes, not when a token does.
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    # Made here and not where aiohttp is imported, so that SSL_CERT_FILE counts as it is now.
    secure = any(endpoint.lower().startswith("https:") for endpoint in options.endpoints)
    trusted: ssl.SSLContext | bool = ssl.create_default_context() if secure else True
    return aiohttp.ClientSession(
        connector=_StampingConnector(limit=options.max_connections, keepalive_timeout=KEEP_ALIVE_S, ssl=trusted),
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return shown(data)
    return message_of(value.get("error", value) if isinstance(value, dict) else value)


def _status_cause(response: aiohttp.ClientResponse, said: str) -> str:
    """Return what a status other than 200 means, in the server's words where it has any."""
    status = response.status
    if 300 <= status < 400:
        place = shown(response.headers.get("location", "")) or "nowhere"
        return f"the server answered {status}: it points to {place}, and nothing is sent elsewhere than was said"
    reason = said or shown(response.reason or "") or "without a reason"
    hint = f"; {API_KEY} holds the key that is sent" if status in (401, 403) else ""
    return f"the server answered {status}: {reason}{hint}"


# Of the system's limits, not of the server's.
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def cause_of(error: Exception, answer: Answer) -> str:
    """Return a readable cause of a request that failed on its way."""
    progress = f" after {answer.tokens} token{'s' if answer.tokens > 1 else ''}" if answer.tokens else ""
    if isinstance(error, Broken):
        return f"{error}{progress}"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection was made in time"
    if isinstance(error, aiohttp.SocketTimeoutError):
        return f"the server was silent for too long{progress}"
    if isinstance(error, TimeoutError):
        return f"the request took too long{progress}"
    if isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS:
        return "no connection: playproof has no file descriptor left (ulimit -n), which is no fault of the server"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError):
        return f"no connection: {_no_connection(error)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return f"the answer is not HTTP{progress}: {shown(error.message)}"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientOSError | ConnectionError):
        return f"the connection broke{progress}"
    return f"{type(error).__name__}: {shown(str(error))}{progress}"


def _no_connection(error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError) -> str:
    """Return why there is no connection: the name, the certificate, TLS as such, or what the system says."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        return f"its certificate is not trusted ({shown(why)}); SSL_CERT_FILE names a file of authorities that are"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {shown(error.host)} has no address (DNS: {shown(error.strerror or str(error.os_error))})"
    if isinstance(error.os_error, ssl.SSLError):
        why = (error.os_error.reason or "").replace("_", " ").lower() or str(error.os_error)
        return f"no TLS with it ({shown(why)}); does it speak https?"
    return os.strerror(error.errno) if error.errno else shown(str(error))
