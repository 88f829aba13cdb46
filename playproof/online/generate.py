"""How a mock worker answers one request that generates: its choices are requests of the engine, and share a connection.

What is generated for a slow reader is a count, so it costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from playproof_spec.machines import RequestState
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from playproof.online.answers import Writer, usage
from playproof.online.inject import Injected
from playproof.online.wire import Refused, Wanted
from playproof.online.worker import Bell, Worker

# Wall time for which a connection may take none of what is written to it.
STALL_S = 60.0
# Tokens of one choice that are written before others have their turn.
BURST = 1 << 12


def refuse(refused: Refused) -> Response:
    """Return the answer to a request that gets none."""
    # The rest of a body that was not read would be taken for the next request.
    headers = {"connection": "close"} if refused.status in (408, 413) else {}
    if refused.status == 429:
        headers["retry-after"] = "1"
    return Response(refused.body(), refused.status, headers, "application/json")


class Answering:
    """The answer to one request.

    Parameters
    ----------
    worker : Worker
    wanted : Wanted
    writer : Writer
    headers : list of (bytes, bytes)
        Of a stream's answer, besides its own.
    injected : Injected, optional
        What is to go wrong in it.
    """

    def __init__(
        self,
        worker: Worker,
        wanted: Wanted,
        writer: Writer,
        headers: dict[str, str],
        injected: Injected | None = None,
    ) -> None:
        self._worker, self._wanted, self._writer = worker, wanted, writer
        self._headers, self._injected = headers, injected
        self._bell = Bell()
        # When the server began to write what it has not got rid of yet, by the event loop's clock.
        self._writing_since: float | None = None
        self._hung_up = False
        self._streams = [
            worker.submit(prompt.tokens, wanted.output, wanted.namespace, self._bell) for prompt in wanted.choices
        ]

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the answer as its tokens come; the first decides on the status."""
        async with self._watched(receive):
            try:
                await self._bell.until(
                    lambda: (
                        self._gone or any(stream.available or stream.outcome is not None for stream in self._streams)
                    )
                )
                refused = self._why()
                if self._gone:
                    return
                if refused is not None and not any(stream.available for stream in self._streams):
                    await refuse(refused)(scope, receive, send)
                elif self._wanted.stream:
                    await self._send_stream(scope, send)
                else:
                    await self._send_whole(scope, receive, send)
            finally:
                for stream in self._streams:
                    self._worker.cancel(stream)

    @property
    def _gone(self) -> bool:
        """Whether the client gave up."""
        return self._hung_up or any(stream.canceled for stream in self._streams)

    def _why(self) -> Refused | None:
        """Return what a request is told of which the engine ended a choice, None for one that has none such."""
        for stream in self._streams:
            if stream.outcome == RequestState.REJECTED:
                message = f"the prompt of {stream.prompt_tokens:,} tokens does not fit into the worker's KV cache"
                return Refused(400, message, param="prompt", code="context_length_exceeded")
            if stream.outcome == RequestState.FAILED:
                return Refused(500, "the output outgrew the worker's KV cache", code="kv_cache_exhausted")
        return None

    def _counted(self, sent: list[int] | None = None) -> dict[str, Any]:
        """Return the usage: each prompt once, however often it is answered."""
        first = self._streams[:: self._wanted.n]
        output = sum(stream.available for stream in self._streams) if sent is None else sum(sent)
        prompt, cached = sum(stream.prompt_tokens for stream in first), sum(stream.cached for stream in first)
        return usage(prompt, output + (self._injected is Injected.MISCOUNT), cached)

    # Whole -----------------------------------------------------------------------------------------------------------

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._bell.until(lambda: self._gone or self._over())
        refused = self._why()
        if refused is not None:
            await refuse(refused)(scope, receive, send)
            return
        if self._gone:
            return
        if self._injected is Injected.STALL:
            await self._bell.until(lambda: self._gone)
            return
        choices: list[dict[str, Any]] = []
        for number, stream in enumerate(self._streams):
            for made in self._writer.choice(number, stream.available):
                if made is None:
                    await asyncio.sleep(0)
                else:
                    choices.append(made)
        if self._injected is Injected.ERROR:
            await refuse(Refused(500, "this fault was asked for", code="injected"))(scope, receive, send)
            return
        counted = None if self._injected is Injected.NO_USAGE else self._counted()
        whole = self._writer.whole(choices, counted)
        if self._injected in (Injected.CUT, Injected.NO_END, Injected.GARBAGE):
            whole = whole[: len(whole) // 2]
        response = Response(whole, headers=self._headers, media_type="application/json")
        if self._injected is Injected.CUT:
            response.headers["content-length"] = str(2 * len(whole))
        with _cut_short(self._injected is Injected.CUT):
            await response(scope, receive, send)

    def _over(self) -> bool:
        return all(stream.outcome is not None for stream in self._streams) or self._why() is not None

    # Streamed --------------------------------------------------------------------------------------------------------

    async def _send_stream(self, scope: Scope, send: Send) -> None:
        own = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        headers = own + [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent, ended = [0] * len(self._streams), [False] * len(self._streams)
        while not all(ended):
            await self._bell.until(lambda: self._gone or self._news(sent, ended))
            if self._gone:
                return
            body, refused = self._events(sent, ended), self._why()
            if refused is not None:
                await self._write(send, body + b"data: " + refused.body() + b"\n\ndata: [DONE]\n\n", last=True)
                return
            if await self._fails(scope, send, body, sum(sent)):
                return
            if not all(ended):
                await self._write(send, body)
        if self._injected is Injected.NO_END:
            await self._write(send, body, last=True)
            return
        with_usage = self._wanted.include_usage and self._injected is not Injected.NO_USAGE
        await self._write(send, body + self._writer.end(self._counted() if with_usage else None), last=True)

    def _news(self, sent: list[int], ended: list[bool]) -> bool:
        """Tell whether something of a choice has not been written."""
        return any(
            not done and (stream.available > known or stream.outcome is not None)
            for stream, known, done in zip(self._streams, sent, ended, strict=True)
        )

    def _events(self, sent: list[int], ended: list[bool]) -> bytes:
        """Return what is new, in bounded pieces; `sent` and `ended` are brought up to it."""
        parts = []
        for number, stream in enumerate(self._streams):
            begin, end = sent[number], min(stream.available, sent[number] + BURST)
            finished = stream.outcome == RequestState.FINISHED and end == stream.available
            if ended[number] or (begin == end and not finished):
                continue
            sent[number], ended[number] = end, finished
            counted = self._counted(sent) if self._wanted.continuous_usage else None
            last = finished and self._injected is not Injected.NO_END
            parts.append(self._writer.tokens(number, begin, end, last=last, counted=counted))
        return b"".join(parts)

    async def _fails(self, scope: Scope, send: Send, body: bytes, sent: int) -> bool:
        """Let go wrong what is to go wrong after the first tokens, and tell whether that was the end."""
        if self._injected is Injected.STALL:
            await self._write(send, body)
            await self._bell.until(lambda: self._gone)
            return True
        if self._injected is Injected.CUT:
            await self._write(send, body)
            abort(scope)
            return True
        if self._injected is Injected.ERROR:
            refused = Refused(500, "this fault was asked for", code="injected")
            await self._write(send, body + b"data: " + refused.body() + b"\n\ndata: [DONE]\n\n", last=True)
            return True
        if self._injected is Injected.GARBAGE:
            await self._write(send, body + b'data: {"choices": [{"te\n\ndata: [DONE]\n\n', last=True)
            return True
        return False

    async def _write(self, send: Send, body: bytes, *, last: bool = False) -> None:
        self._writing_since = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": body, "more_body": not last})
        self._writing_since = None
        if len(body) > BURST:
            await asyncio.sleep(0)  # what is written at once does not wait, and would keep all others waiting

    # Clients that go away --------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watched(self, receive: Receive) -> AsyncIterator[None]:
        """Cancel the request when its client hangs up, or takes nothing for too long."""
        owner = asyncio.current_task()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._hung_up = True
            for stream in self._streams:
                self._worker.cancel(stream)
            self._bell.ring()

        async def guard() -> None:
            seen = -1.0
            while True:
                await asyncio.sleep(STALL_S)
                if self._writing_since is not None and self._writing_since == seen:
                    assert owner is not None
                    owner.cancel()
                seen = self._writing_since if self._writing_since is not None else -1.0

        tasks = (asyncio.create_task(watch()), asyncio.create_task(guard()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def abort(scope: Scope) -> None:
    """Cut the connection of a request."""
    extension: dict[str, Callable[[], None]] | None = scope.get("extensions", {}).get("playproof.abort")
    if extension is not None:
        extension["abort"]()


@contextlib.contextmanager
def _cut_short(wanted: bool) -> Iterator[None]:
    """Let an answer be shorter than it said."""
    try:
        yield
    except RuntimeError:
        if not wanted:
            raise
