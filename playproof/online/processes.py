"""Mock workers as processes: one worker, one process, one port.

A child is told what to be on its standard input, says on its standard output where it listens, and lives until that
input closes: it never outlasts whoever started it, however that one ends. It has a session of its own, so that a Ctrl-C
on the terminal is its parent's to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO

import msgspec
import numpy as np
import uvicorn
from playproof_kernel.runs.live_engine import LiveEngine

from playproof.deployment import Deployment
from playproof.online.server import MockServer

LOOPBACK = "127.0.0.1"
READY = "listening on port"
# Connections that may wait to be taken.
BACKLOG = 2048
# How long an idle connection is kept.
KEEP_ALIVE_S = 75
# What open connections get when a worker is told to stop.
GRACEFUL_S = 1
# A process imports the kernel, compiles it if nobody has yet, and listens.
START_S = 600.0


class WorkerFault(Exception):
    """A mock worker could not be started."""


class _Task(msgspec.Struct, frozen=True):
    """What a child is told to be."""

    deployment: Deployment
    model: str | None
    scale: float
    host: str
    port: int


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port, 0 for any.

    Raises
    ------
    OSError
        When the port is taken, or not ours to take.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off where the protocol is named, and not otherwise: a token would wait up to
    # 40 ms for the acknowledgement of the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def serve(
    deployment: Deployment,
    listener: socket.socket,
    *,
    model: str | None = None,
    scale: float = 1.0,
    ready: Callable[[int], None] | None = None,
    until: IO[bytes] | None = None,
) -> None:
    """Serve one mock worker until a signal ends it, or `until` reaches its end.

    Parameters
    ----------
    deployment : Deployment
    listener : socket
    model, scale
        As for `MockServer`.
    ready : callable, optional
        Called with the port once the worker answers.
    until : binary file, optional
    """
    compile_engine(deployment)  # loads the machine code: the first request should not wait for that
    asyncio.run(_serve(MockServer(deployment, model=model, scale=scale), listener, ready, until))


async def _serve(
    mock: MockServer, listener: socket.socket, ready: Callable[[int], None] | None, until: IO[bytes] | None
) -> None:
    config = uvicorn.Config(
        mock.app,
        http="httptools",
        lifespan="off",
        log_level="critical",
        access_log=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    def wait() -> None:
        assert until is not None
        until.read()
        # The loop may be gone, with the rest of the process.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop)

    async def tell() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        assert ready is not None
        ready(int(listener.getsockname()[1]))

    if until is not None:
        threading.Thread(target=wait, daemon=True).start()
    telling = asyncio.create_task(tell()) if ready is not None else None
    try:
        await server.serve(sockets=[listener])
    finally:
        if telling is not None:
            telling.cancel()
        mock.worker.close()


def compile_engine(deployment: Deployment) -> None:
    """Let the kernel compile what workers run, if that has not been done on this machine: once, and not in each."""
    engine = LiveEngine(deployment.to_spec())
    engine.arrive(np.zeros(1, np.uint32), 1)
    engine.advance(0)


class WorkerProcess:
    """A mock worker in a process of its own.

    Attributes
    ----------
    url : str
        Where it listens, once `wait` has returned.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        model: str | None = None,
        scale: float = 1.0,
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        self._host = host
        self.url = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "playproof.online.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        task = _Task(deployment, model, scale, host, port)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `wait` says so
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self) -> None:
        """Return when it listens.

        Raises
        ------
        WorkerFault
            With what it said.
        """
        assert self._process.stdout is not None
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline().decode().strip()
        finally:
            timer.cancel()
        if not line.startswith(READY):
            self.close()
            raise WorkerFault(f"a mock worker did not start: {line or 'it ended without a word'}")
        self.url = f"http://{_shown(self._host)}:{line.rpartition(' ')[2]}"

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(GRACEFUL_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def workers(
    deployment: Deployment,
    number: int,
    *,
    model: str | None = None,
    scale: float = 1.0,
    host: str = LOOPBACK,
    port: int = 0,
) -> Iterator[list[WorkerProcess]]:
    """Run `number` mock workers, at ports from `port` on, or at any free ones for 0.

    Raises
    ------
    WorkerFault
        When one does not start; the others are ended then.
    """
    compile_engine(deployment)
    started: list[WorkerProcess] = []
    try:
        for place in range(number):
            own = port + place if port else 0
            started.append(WorkerProcess(deployment, model=model, scale=scale, host=host, port=own))
        for process in started:
            process.wait()
        yield started
    finally:
        for process in started:
            process.close()


def child(stdin: IO[bytes], stdout: IO[str]) -> int:
    """Be the worker that the first line of `stdin` describes, until it ends."""
    task = msgspec.json.decode(stdin.readline(), type=_Task)

    def ready(port: int) -> None:
        print(f"{READY} {port}", file=stdout, flush=True)

    try:
        listener = bound(task.host, task.port)
    except OSError as error:
        print(f"{task.host}:{task.port}: {error.strerror or error}", file=stdout, flush=True)
        return 1
    serve(task.deployment, listener, model=task.model, scale=task.scale, ready=ready, until=stdin)
    return 0
