"""The mock worker's HTTP server: the OpenAI API over one `Worker`, on Starlette.

Bounds: a body has at most `wire.MAX_BODY_BYTES`, and is whole within `BODY_S`; a head has those of `protocol`. A client
that hangs up, or takes nothing of its answer for a while, cancels its request (`generate`).
"""

from __future__ import annotations

import asyncio
import itertools
from importlib.metadata import version
from typing import Any, Literal

import msgspec
from playproof_kernel.runs.live_engine import LiveEngine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from playproof.deployment import Deployment, FixedTiming
from playproof.online import metrics, wire
from playproof.online.answers import Writer
from playproof.online.clock import Clock
from playproof.online.generate import Answering, abort, refuse
from playproof.online.inject import HEADER, Injected, Injection
from playproof.online.wire import Refused
from playproof.online.worker import Worker

# Characters of a request's id that a client may give.
MAX_REQUEST_ID = 128
LEAST_PASS_MS = 1e-3
# Wall time in which a body has to be whole.
BODY_S = 120.0
DEFAULT_MODEL = "playproof-mock"


class _Generate:
    """One of the two endpoints that generate, as an ASGI application."""

    def __init__(self, server: MockServer, kind: Literal["completion", "chat"]) -> None:
        self._server = server
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        number, headers = next(server.numbers), dict(scope["headers"])
        try:
            injected = _injected(server.injection, number, headers)
            body = await _body(scope, receive)
            wanted = wire.read(self._kind, body, server.model, server.worker.engine.context)
            if injected in _STATUS:
                status, message = _STATUS[injected]
                raise Refused(status, f"{message}: this fault was asked for", code="injected")
        except Refused as refused:
            await refuse(refused)(scope, receive, send)
            return
        except _HungUp:
            return
        if injected is Injected.RESET:
            abort(scope)
            return
        name = _request_id(headers)
        writer = Writer(wanted, server.model, name or str(number), server.reason)
        echoed = {"x-request-id": name} if name else {}
        server.metrics.asked(wanted.n, wanted.output, len(wanted.choices))
        await Answering(server.worker, wanted, writer, echoed, injected).answer(scope, receive, send)


_STATUS = {
    Injected.REFUSE_429: (429, "too many requests"),
    Injected.FAIL_500: (500, "the engine failed"),
    Injected.FAIL_503: (503, "the server is overloaded"),
}


def _injected(injection: Injection, number: int, headers: dict[bytes, bytes]) -> Injected | None:
    try:
        return injection.of(number, headers)
    except ValueError as error:
        raise Refused(400, f"{HEADER.decode()}: {error}") from None


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the id that a client gave its request, if it is one: it comes back, and makes the answer's id."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if given.isascii() and given.isprintable() and len(given) <= MAX_REQUEST_ID else ""


class _HungUp(Exception):
    """The client went away before its request was whole."""


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request, refusing one that is too large as soon as that is known, or comes too slowly."""
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > wire.MAX_BODY_BYTES):
        raise _too_large()
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _HungUp
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > wire.MAX_BODY_BYTES:
                    raise _too_large()
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refused(408, f"the body was not whole within {BODY_S:g} s", code="body_too_slow") from None
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"the body is larger than {wire.MAX_BODY_BYTES:,} bytes", code="body_too_large")


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
    reason : str
        Why answers end that have all their tokens: `length`, or `stop` for clients that take nothing else.
    injection : Injection, optional
        Faults on purpose.

    Attributes
    ----------
    app : Starlette
        The application, for any ASGI server with one event loop.
    worker : Worker
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        model: str | None = None,
        scale: float = 1.0,
        reason: str = "length",
        injection: Injection | None = None,
    ) -> None:
        self.model = model or deployment.model or DEFAULT_MODEL
        self.reason, self.injection = reason, injection or Injection()
        self.metrics = metrics.Metrics(self.model, deployment.block_size, reason)
        deployment = _with_time(deployment)
        self.worker = Worker(LiveEngine(deployment.to_spec()), Clock(scale), self.metrics)
        self.numbers = itertools.count()
        self.app = Starlette(
            routes=[
                Route("/v1/completions", _Generate(self, "completion"), methods=["POST"]),
                Route("/v1/chat/completions", _Generate(self, "chat"), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._one_model),
                Route("/version", self._version),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                Route("/load", self._load),
                Route("/ping", self._health, methods=["GET", "POST"]),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/playproof/counters", self._counters),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    @property
    def _card(self) -> dict[str, Any]:
        return {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "playproof",
            "root": self.model,
            "parent": None,
            "max_model_len": self.worker.engine.context,
        }

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._card]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self.model:
            message = f"the model {name!r} is not served here"
            return refuse(Refused(404, message, param="model", code="model_not_found"))
        return _json(self._card)

    async def _version(self, request: Request) -> Response:
        return _json({"version": version("playproof")})

    async def _tokenize(self, request: Request) -> Response:
        try:
            body = await _body(request.scope, request.receive)
            return _json(wire.tokenized(body, self.model, self.worker.engine.context))
        except Refused as refused:
            return refuse(refused)
        except _HungUp:
            return Response(b"", 400)

    async def _detokenize(self, request: Request) -> Response:
        try:
            return _json(wire.detokenized(await _body(request.scope, request.receive), self.model))
        except Refused as refused:
            return refuse(refused)
        except _HungUp:
            return Response(b"", 400)

    async def _load(self, request: Request) -> Response:
        counters = self.worker.engine.counters()
        return _json({"server_load": counters.running + counters.waiting})

    async def _health(self, request: Request) -> Response:
        return Response(b"", 200)

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(self.worker.engine.counters())
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    async def _counters(self, request: Request) -> Response:
        """What the engine counted, for the report of `playproof replay --online`."""
        return _json(self.worker.engine.counters())


def _with_time(deployment: Deployment) -> Deployment:
    """Return the deployment with passes that take time, a microsecond at least: else an engine never lets go."""
    timing = deployment.timing
    if not isinstance(timing, FixedTiming):
        return deployment
    least = FixedTiming(
        prefill_ms=max(timing.prefill_ms, LEAST_PASS_MS), decode_ms=max(timing.decode_ms, LEAST_PASS_MS)
    )
    return msgspec.structs.replace(deployment, timing=least)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return refuse(Refused(error.status_code, message))
