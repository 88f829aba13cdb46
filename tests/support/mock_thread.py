"""A mock worker in a thread of the test, so that a test can turn its bounds down and look into it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import playproof as pp
from playproof.online import processes
from playproof.online.server import MockServer


@contextlib.contextmanager
def mock_thread(deployment: pp.Deployment, **settings: Any) -> Iterator[tuple[str, MockServer]]:
    """Serve one mock worker until the context ends; gives its URL and its server."""
    listener = processes.bound("127.0.0.1", 0)
    mock = MockServer(deployment, **settings)
    ready = threading.Event()
    ports: list[int] = []
    read, write = os.pipe()

    def serve() -> None:
        with open(read, "rb") as until:
            asyncio.run(processes._serve(mock, listener, tell, until))

    def tell(port: int) -> None:
        ports.append(port)
        ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{ports[0]}", mock
    finally:
        os.close(write)
        thread.join()
