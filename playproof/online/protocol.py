"""The HTTP side of a mock worker: uvicorn's protocol with bounds on what a client may send before it is served.

uvicorn waits for ever for a head that does not end, and keeps all that comes of it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from playproof.online.wire import Refused

# A head, request line and all: uvicorn's other parser has the same bound.
MAX_HEAD_BYTES = 1 << 16
# Fields of a head, and of the trailers behind a body.
MAX_FIELDS = 256
# Wall time in which a head has to be whole.
HEAD_S = 30.0


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections whose heads are too large, or do not become whole in time.

    The scope of a request has `playproof.abort`, which cuts its connection.
    """

    head_s = HEAD_S
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"a head is larger than {MAX_HEAD_BYTES:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        if self._timer is None:
            self._start_timer()
        self.scope["extensions"] = {"playproof.abort": {"abort": self._reset}}

    def _reset(self) -> None:
        """Cut the connection, and say so to the other side at once, as for a process that was killed."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_FIELDS:
            raise ValueError("too many fields")  # uvicorn answers 400 and closes
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.head_s, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(408, f"no request came within {self.head_s:g} s")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = Refused(status, message).body()
        reason = {408: "Request Timeout", 431: "Request Header Fields Too Large"}[status]
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
