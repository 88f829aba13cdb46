"""The mock worker's HTTP server: the OpenAI API over one `Worker`, on Starlette.

Bounds: a body has at most `wire.MAX_BODY_BYTES`; a client that takes nothing for `STALL_S` is dropped. A client that
hangs up cancels its request. What is generated for a slow reader is a count, so it costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
from playproof_kernel.runs.live_engine import LiveEngine
from playproof_spec.machines import RequestState
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from playproof.deployment import Deployment
from playproof.online import metrics, wire
from playproof.online.clock import Clock
from playproof.online.wire import Refused, Wanted, Writer
from playproof.online.worker import Stream, Worker

# Wall time for which a connection may take none of what is written to it.
STALL_S = 60.0
DEFAULT_MODEL = "playproof-mock"


class _Generate:
    """One of the two endpoints that generate, as an ASGI application."""

    def __init__(self, server: MockServer, kind: Literal["completion", "chat"]) -> None:
        self._server = server
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        try:
            body = await _body(scope, receive)
            wanted = wire.read(self._kind, body, server.model, server.worker.engine.context)
        except Refused as refused:
            await _refuse(refused)(scope, receive, send)
            return
        except _HungUp:
            return
        writer = Writer(wanted, server.model, next(server.numbers))
        stream = server.worker.submit(wanted.tokens, wanted.output, wanted.namespace)
        async with _watched(receive, server.worker, stream):
            try:
                await _answer(scope, receive, send, stream, wanted, writer)
            finally:
                server.worker.cancel(stream)


class _HungUp(Exception):
    """The client went away before its request was whole."""


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request, refusing one that is too large as soon as that is known."""
    parts: list[bytes] = []
    size = 0
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    more = True
    while more:
        if size > wire.MAX_BODY_BYTES or (announced.isdigit() and int(announced) > wire.MAX_BODY_BYTES):
            message = f"the body is larger than {wire.MAX_BODY_BYTES:,} bytes"
            raise Refused(413, message, code="body_too_large")
        message_ = await receive()
        if message_["type"] == "http.disconnect":
            raise _HungUp
        parts.append(message_.get("body", b""))
        size += len(parts[-1])
        more = message_.get("more_body", False)
    return b"".join(parts)


def _refuse(refused: Refused) -> Response:
    # The rest of a body that was not read would be taken for the next request.
    headers = {"connection": "close"} if refused.status == 413 else None
    return Response(refused.body(), refused.status, headers, "application/json")


@contextlib.asynccontextmanager
async def _watched(receive: Receive, worker: Worker, stream: Stream) -> AsyncIterator[None]:
    """Cancel the request when its client hangs up, or takes nothing for too long."""
    owner = asyncio.current_task()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        worker.cancel(stream)

    async def guard() -> None:
        seen = -1.0
        while True:
            await asyncio.sleep(STALL_S)
            if stream.writing_since is not None and stream.writing_since == seen:
                assert owner is not None
                owner.cancel()
            seen = stream.writing_since if stream.writing_since is not None else -1.0

    tasks = (asyncio.create_task(watch()), asyncio.create_task(guard()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _answer(scope: Scope, receive: Receive, send: Send, stream: Stream, wanted: Wanted, writer: Writer) -> None:
    """Write the answer as its tokens come; the first decides on the status."""
    await stream.more(0)
    refused = _why(stream)
    if stream.canceled:
        return
    if refused is not None and stream.available == 0:
        await _refuse(refused)(scope, receive, send)
        return
    if wanted.stream:
        await _send_stream(send, stream, wanted, writer)
        return
    known = stream.available
    while stream.outcome is None:
        await stream.more(known)
        known = stream.available
    refused = _why(stream)
    if refused is not None:
        await _refuse(refused)(scope, receive, send)
    elif not stream.canceled:
        counted = wire.usage(stream.prompt_tokens, stream.available, stream.cached)
        whole = writer.whole(stream.available, counted)
        await Response(whole, media_type="application/json")(scope, receive, send)


async def _send_stream(send: Send, stream: Stream, wanted: Wanted, writer: Writer) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    loop, sent, over = asyncio.get_running_loop(), 0, False
    while not over:
        await stream.more(sent)
        available, over = stream.available, stream.outcome is not None
        if stream.canceled:
            return
        finished = stream.outcome == RequestState.FINISHED
        body = writer.tokens(sent, available, last=finished)
        if finished:
            counted = wire.usage(stream.prompt_tokens, available, stream.cached) if wanted.include_usage else None
            body += writer.end(counted)
        elif over:
            refused = _why(stream)
            assert refused is not None
            body += b"data: " + refused.body() + b"\n\ndata: [DONE]\n\n"
        stream.writing_since = loop.time()
        await send({"type": "http.response.body", "body": body, "more_body": not over})
        stream.writing_since = None
        sent = available


def _why(stream: Stream) -> Refused | None:
    """Return what a request that the engine ended is told, None for one that it did not end."""
    if stream.outcome == RequestState.REJECTED:
        message = f"the prompt of {stream.prompt_tokens:,} tokens does not fit into the worker's KV cache"
        return Refused(400, message, param="prompt", code="context_length_exceeded")
    if stream.outcome == RequestState.FAILED:
        return Refused(500, "the output outgrew the worker's KV cache", code="kv_cache_exhausted")
    return None


class MockServer:
    """One mock worker behind its API.

    Parameters
    ----------
    deployment : Deployment
        Its engine; `refusals.unsupported_online` has nothing against it.
    model : str, optional
        The name that it serves under: by default the deployment's label.
    scale : float
        Time scale.

    Attributes
    ----------
    app : Starlette
        The application, for any ASGI server with one event loop.
    worker : Worker
    """

    def __init__(self, deployment: Deployment, *, model: str | None = None, scale: float = 1.0) -> None:
        self.model = model or deployment.model or DEFAULT_MODEL
        self.metrics = metrics.Metrics(self.model)
        self.worker = Worker(LiveEngine(deployment.to_spec()), Clock(scale), self.metrics)
        self.numbers = itertools.count()
        self.app = Starlette(
            routes=[
                Route("/v1/completions", _Generate(self, "completion"), methods=["POST"]),
                Route("/v1/chat/completions", _Generate(self, "chat"), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/playproof/counters", self._counters),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    async def _models(self, request: Request) -> Response:
        model = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "playproof",
            "max_model_len": self.worker.engine.context,
        }
        return _json({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        return Response(b"", 200)

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(self.worker.engine.counters())
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    async def _counters(self, request: Request) -> Response:
        """What the engine counted, for the report of `playproof replay --online`."""
        return _json(self.worker.engine.counters())


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _refuse(Refused(error.status_code, message))
