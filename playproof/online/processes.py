"""Mock workers as processes: one worker, one process, one port.

A child is told what to be on its standard input, says on its standard output where it listens, and lives until that
input closes: it never outlasts whoever started it, however that one ends. It has a session of its own, so that a Ctrl-C
on the terminal is its parent's to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec
import numpy as np
import uvicorn
from playproof_kernel.runs.live_engine import LiveEngine

from playproof.deployment import Deployment
from playproof.online.descriptors import raise_limit
from playproof.online.inject import Injection
from playproof.online.protocol import GuardedProtocol
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


# Connections that a worker has open at most, where the system lets it, and how often it says that there are no more.
MAX_OPEN, SHORTAGE_S = 1 << 16, 60.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class _Shortage:
    """Says once in a while that connections cannot be taken.

    asyncio would print a traceback for each, thousands a second, and as many again when it is stopped meanwhile.
    """

    def __init__(self) -> None:
        self._said = -SHORTAGE_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "_start_serving" in context.get("message", ""):
            return  # it would listen again, and is being stopped
        if not (isinstance(error, OSError) and error.errno in _SHORT):
            loop.default_exception_handler(context)
        elif loop.time() - self._said >= SHORTAGE_S:
            self._said = loop.time()
            print(f"playproof: connections wait: {os.strerror(error.errno)} (ulimit -n)", file=sys.stderr, flush=True)


class WorkerFault(Exception):
    """A mock worker could not be started."""


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How mock workers serve.

    Attributes
    ----------
    model : str or None
        The name that they serve under.
    scale : float
        Time scale.
    reason : str
        As for `MockServer`.
    injection : Injection
        Faults on purpose.
    """

    model: str | None = None
    scale: float = 1.0
    reason: str = "length"
    injection: Injection = Injection()


class _Task(msgspec.Struct, frozen=True):
    """What a child is told to be."""

    deployment: Deployment
    manner: Manner
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
    manner: Manner,
    *,
    ready: Callable[[int], None] | None = None,
    until: IO[bytes] | None = None,
) -> None:
    """Serve one mock worker until a signal ends it, or `until` reaches its end.

    Parameters
    ----------
    deployment : Deployment
    listener : socket
    manner : Manner
    ready : callable, optional
        Called with the port once the worker answers.
    until : binary file, optional
    """
    raise_limit(MAX_OPEN)
    compile_engine(deployment)  # loads the machine code: the first request should not wait for that
    mock = MockServer(
        deployment, model=manner.model, scale=manner.scale, reason=manner.reason, injection=manner.injection
    )
    asyncio.run(_serve(mock, listener, ready, until))


async def _serve(
    mock: MockServer, listener: socket.socket, ready: Callable[[int], None] | None, until: IO[bytes] | None
) -> None:
    config = uvicorn.Config(
        mock.app,
        http=GuardedProtocol,
        lifespan="off",
        log_level="critical",
        access_log=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_Shortage())

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
        manner: Manner | None = None,
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
        task = _Task(deployment, manner or Manner(), host, port)
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

    @property
    def death(self) -> str | None:
        """How it ended by itself, in words; None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"

    def release(self) -> None:
        """Tell it to end, and do not wait for that."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self, deadline: float | None = None) -> None:
        """End it, by force at `deadline`, a time of `time.monotonic`; by default after a few seconds."""
        self.release()
        left = GRACEFUL_S + 5.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            self._process.wait(left)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def close_all(processes: Sequence[WorkerProcess]) -> None:
    """End workers, all at once: together they take as long as the slowest."""
    for process in processes:
        process.release()
    deadline = time.monotonic() + GRACEFUL_S + 5.0
    for process in processes:
        process.close(deadline)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def workers(
    deployment: Deployment,
    number: int,
    *,
    manner: Manner | None = None,
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
            started.append(WorkerProcess(deployment, manner=manner, host=host, port=own))
        for process in started:
            process.wait()
        yield started
    finally:
        close_all(started)


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
    serve(task.deployment, listener, task.manner, ready=ready, until=stdin)
    return 0
