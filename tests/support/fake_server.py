"""A server on loopback that answers as a test says, byte by byte: what no proper server would send."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[["Connection"], None]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Connection:
    """One request, and the socket to answer it on."""

    def __init__(self, sock: socket.socket, path: str, body: dict[str, Any], released: threading.Event) -> None:
        self.sock = sock
        self.path = path
        self.body = body
        self.released = released

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, value: object) -> None:
        """Send one server-sent event."""
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def tokens(self, number: int, *, finish: bool = False) -> None:
        for i in range(number):
            reason = "length" if finish and i == number - 1 else None
            self.event({"choices": [{"index": 0, "text": f" {i}", "finish_reason": reason}]})

    def usage(self, output: int, cached: int | None = 0) -> None:
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        prompt = len(self.body["prompt"])
        self.event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}})

    def done(self) -> None:
        self.chunk(b"data: [DONE]\n\n")
        self.send(b"0\r\n\r\n")

    def whole(self) -> None:
        """Answer as a proper server does."""
        output = int(self.body["max_tokens"])
        self.send(HEAD)
        self.tokens(output, finish=True)
        self.usage(output)
        self.done()

    def status(self, status: str, body: bytes, *, kind: str = "application/json", extra: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        self.send(head.encode() + body)

    def reset(self) -> None:
        """Cut the connection, as the kernel does for a process that was killed with bytes unread."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def hang(self) -> None:
        """Say nothing more for as long as the server lives."""
        self.released.wait()


@contextlib.contextmanager
def fake_server(
    answer: Answer, *, models: bytes = b'{"data":[{"id":"fake"}]}', tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Run a server whose completions are `answer`, and which names `models`; gives its URL."""
    released = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while True:
                    request = _read(self.request)
                    if request is None:
                        return
                    path, body = request
                    connection = Connection(self.request, path, body, released)
                    if path == "/v1/models":
                        connection.status("200 OK", models)
                    else:
                        answer(connection)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 128

        def get_request(self) -> tuple[socket.socket, Any]:
            sock, address = super().get_request()
            if tls is None:
                return sock, address
            try:
                return tls.wrap_socket(sock, server_side=True), address
            except ssl.SSLError as error:  # a client that does not trust us
                raise OSError(str(error)) from None

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
        finally:
            released.set()
            server.shutdown()
            thread.join()


def _read(sock: socket.socket) -> tuple[str, dict[str, Any]] | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(1 << 16)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    while len(body) < int(fields.get("content-length", 0)):
        body += sock.recv(1 << 16)
    return lines[0].split()[1], json.loads(body) if body else {}


def unused_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
