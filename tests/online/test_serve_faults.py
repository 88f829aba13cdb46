"""What clients may do to a mock worker, and what it bounds; and the faults that it makes on purpose."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pytest
from mock_thread import mock_thread
from online_runs import replay, trace_of
from playproof_spec.machines import RequestState

import playproof as pp
from playproof.cli import main
from playproof.online import processes, protocol, server, worker
from playproof.online.inject import Injected, Injection, parsed
from playproof.online.processes import Manner, workers
from playproof.online.server import MockServer
from playproof.online.worker import Bell, Stream, Worker

WATCHDOG_S = 120.0
DEPLOYMENT = pp.Deployment(
    blocks=64, block_size=16, context_length=2000, model="mock", timing=pp.FixedTiming(prefill_ms=2, decode_ms=1)
)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with mock_thread(DEPLOYMENT) as (url, _):
        yield url


def connected(url: str) -> socket.socket:
    place = urlparse(url)
    return socket.create_connection((place.hostname or "", place.port or 0), timeout=WATCHDOG_S)


def rest_of(sock: socket.socket) -> bytes:
    """Return all that comes until the other side closes."""
    data = b""
    try:
        while more := sock.recv(1 << 16):
            data += more
    except ConnectionError:  # it closed with something of ours unread
        pass
    return data


def ask(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    place = urlparse(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WATCHDOG_S)
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json", **headers})
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None
    finally:
        connection.close()


# Before a request is whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000, b"431"),
        (b"GET /" + b"y" * 70_000, b"431"),
        (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 300, b"400"),
        (b"GET /health HTTP/1.1\r\n" + b"x: " + b"y" * 1000 + b"\r\n" + b"z: " + b"y" * 69_000, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
    ],
)
def test_floods_of_heads(served: str, head: bytes, status: bytes) -> None:
    with connected(served) as sock:
        sock.sendall(head)
        assert rest_of(sock).startswith(b"HTTP/1.1 " + status)
    assert ask(served, "/health")[0] == 200


def test_floods_of_trailers(served: str) -> None:
    with connected(served) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        answered = b""
        try:
            for _ in range(1000):
                sock.sendall(b"x: y\r\n" * 100)
            answered = rest_of(sock)
        except ConnectionError:
            answered = answered or b"HTTP/1.1 400"
        assert answered.startswith(b"HTTP/1.1 400")


def test_connections_that_do_not_become_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One says nothing, one half a head, one half a head after a request; a body that does not come in time."""
    monkeypatch.setattr(protocol.GuardedProtocol, "head_s", 1.0)
    monkeypatch.setattr(server, "BODY_S", 1.0)
    with mock_thread(DEPLOYMENT) as (url, _):
        for head in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea"):
            with connected(url) as sock:
                sock.sendall(head)
                answered = rest_of(sock)
            assert b"HTTP/1.1 408" in answered
            assert answered.startswith(b"HTTP/1.1 200") is head.endswith(b"GET /hea")
        with connected(url) as sock:
            sock.sendall(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"model": ')
            answered = rest_of(sock)
        assert answered.startswith(b"HTTP/1.1 408")
        assert b"body_too_slow" in answered
        # Whoever is served has as long as it takes.
        body = {"model": "mock", "prompt": [1] * 20, "max_tokens": 500}
        assert ask(url, "/v1/completions", body)[1]["usage"]["completion_tokens"] == 500


# Descriptors ---------------------------------------------------------------------------------------------------------


def test_a_lack_of_descriptors_is_said_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    passed: list[dict[str, Any]] = []

    class Loop:
        now = 0.0

        def time(self) -> float:
            return self.now

        def default_exception_handler(self, context: dict[str, Any]) -> None:
            passed.append(context)

    loop: Any = Loop()
    handle = processes._Shortage()
    for now in (0.0, 1.0, 59.0, 61.0):
        loop.now = now
        handle(loop, {"exception": OSError(errno.EMFILE, "x")})
    handle(loop, {"exception": ValueError()})
    assert capsys.readouterr().err.splitlines() == ["playproof: connections wait: Too many open files (ulimit -n)"] * 2
    assert len(passed) == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_a_worker_without_descriptors_goes_on_and_one_that_dies_is_noticed() -> None:
    """Far more connections than it may have: it says so in one line, and serves when some are closed; then it dies."""
    process = subprocess.Popen(
        [sys.executable, "-m", "playproof", "serve", "--port", "0", "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48)),
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[1].removesuffix("/v1")
        assert process.stderr is not None
        many = [connected(url) for _ in range(80)]
        assert process.stderr.readline() == "playproof: connections wait: Too many open files (ulimit -n)\n"
        for sock in many:
            sock.close()
        assert ask(url, "/health")[0] == 200
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        _, said = process.communicate(timeout=WATCHDOG_S)
    finally:
        process.kill()
    assert process.returncode == 70
    assert said == f"playproof: the mock worker at {url} died: it was ended by SIGKILL\n"


# Memory and turns ----------------------------------------------------------------------------------------------------


def test_namespaces_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred namespaces, of which 50 are kept and those whose blocks are in the cache: 64 blocks at most."""
    monkeypatch.setattr(worker, "MAX_NAMESPACES", 50)
    mock = MockServer(DEPLOYMENT, scale=1000.0)

    def over(stream: Stream) -> bool:
        return stream.outcome is not None

    async def run() -> list[int]:
        cached = []
        for number in range(300):
            for salt in (f"salt {number}", f"salt {number}"):
                stream = mock.worker.submit(np.arange(40, dtype=np.uint32), 1, salt, Bell())
                await stream.bell.until(partial(over, stream))
                cached.append(stream.cached)
            short = mock.worker.submit(np.arange(5, dtype=np.uint32), 1, f"short {number}", Bell())
            await short.bell.until(partial(over, short))
        mock.worker.close()
        return cached

    cached = asyncio.run(run())
    # Each salt finds its own blocks the second time, and nobody else's the first.
    assert cached == [0, 32] * 300
    assert len(mock.worker.engine.chains._roots) <= 1 + 50 + 64
    assert not any(name.startswith("short") for name in mock.worker.engine.chains._roots)


class _Slow:
    """An engine whose passes take a millisecond, on the wall too: none is due before it begins, and then 500 are."""

    context = 100
    passes = 0
    begun = False

    @property
    def upcoming(self) -> int | None:
        return self.passes * 1_000_000 if self.begun and self.passes < 500 else None

    def advance(self, now: int) -> list[Any]:
        while self.begun and self.passes < 500 and self.passes * 1_000_000 <= now:
            self.passes += 1
            time.sleep(0.001)
        return []


def test_the_passes_of_a_turn_are_bounded() -> None:
    """A turn ends after some milliseconds, whatever is due; the rest comes in the next ones."""

    class Clock:
        scale = 1.0

        def now(self) -> int:
            return 10**9

        def due(self, when: int) -> float:
            return 0.0

    engine = _Slow()
    tested = Worker(engine, Clock(), None)  # type: ignore[arg-type]

    async def run() -> list[int]:
        turns = []
        for _ in range(100):  # from which nothing follows for a call that has much to do
            tested._look()
        engine.begun = True
        tested._pump()
        while engine.upcoming is not None:
            turns.append(engine.passes)
            await asyncio.sleep(0)
        return turns

    turns = asyncio.run(run())
    assert engine.passes == 500
    # Calls of one pass or two until five milliseconds are over, on a machine however slow.
    assert np.diff([0, *turns]).max() <= 8
    assert len(turns) >= 500 // 8


def test_a_long_answer_does_not_keep_others_waiting() -> None:
    """At a great time scale all tokens are due at once: others are answered while they are made and written."""
    long = pp.Deployment(blocks=70_000, block_size=16, model="mock", timing=pp.FixedTiming(prefill_ms=1, decode_ms=0))
    with workers(long, 1, manner=Manner(scale=1e6)) as (process,):
        answered: list[Any] = []

        def generate() -> None:
            body = {"model": "mock", "prompt": [1] * 20, "max_tokens": 1_000_000}
            answered.append(ask(process.url, "/v1/completions", body))

        thread = threading.Thread(target=generate)
        thread.start()
        healthy = 0
        while thread.is_alive():
            assert ask(process.url, "/health")[0] == 200
            healthy += not answered
            time.sleep(0.02)
        thread.join()
    assert answered[0][1]["usage"]["completion_tokens"] == 1_000_000
    assert healthy >= 3


# What a chat is ------------------------------------------------------------------------------------------------------


def chat(**more: Any) -> dict[str, Any]:
    text = "What is the weather in the towns of the north on the first days of May?"
    return {"model": "mock", "max_tokens": 1, "messages": [{"role": "user", "content": text}], **more}


def called(arguments: str, name: str = "weather", call: str = "c1") -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "What is the weather in the towns of the north?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": call, "content": "Rain, and more rain, and then some sun in the evening."},
    ]
    return {"model": "mock", "max_tokens": 1, "messages": messages}


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
_LONG = json.dumps({"city": "Reykjavik", "days": 5})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (called('{"city": "Oslo"}'), called('{"city": "Rome"}')),
        (called("{}"), called("{}", name="another")),
        (called("{}"), called("{}", call="c2")),
        (chat(), chat(tools=[TOOL])),
        (chat(tools=[TOOL]), chat(tools=[{**TOOL, "function": {"name": "other"}}])),
        (chat(), chat(functions=[{"name": "weather"}])),
    ],
    ids=["arguments", "name", "id", "tools", "other tools", "functions"],
)
def test_tools_are_part_of_a_chat(one: Any, other: Any, served: str) -> None:
    """Chats that differ by a tool share no more than stands before it; equal ones share all."""
    salt = f"{time.monotonic_ns()}"
    usages = [
        ask(served, "/v1/chat/completions", {**body, "cache_salt": salt})[1]["usage"] for body in (one, other, one)
    ]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    # All but the last block of it, which is not full or would leave nothing to compute.
    assert cached[2] == (usages[0]["prompt_tokens"] - 1) // 16 * 16
    assert cached[0] == 0
    assert cached[1] < min(cached[2], (usages[1]["prompt_tokens"] - 1) // 16 * 16)


def test_calls_count_in_the_prompt(served: str) -> None:
    few, many = (ask(served, "/v1/chat/completions", called(text))[1]["usage"] for text in ("{}", _LONG))
    # A token is four bytes of the JSON of the calls, in which quotes are escaped.
    more = len(json.dumps(_LONG)) - len(json.dumps("{}"))
    assert abs((many["prompt_tokens"] - few["prompt_tokens"]) - more / 4) <= 1


def test_spaces_in_a_tool_do_not_count(served: str) -> None:
    place, counts = urlparse(served), []
    for separators in ((",", ":"), (" , ", " :  ")):
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WATCHDOG_S)
        body = json.dumps(chat(tools=[TOOL]), separators=separators).encode()
        connection.request("POST", "/v1/chat/completions", body)
        counts.append(json.loads(connection.getresponse().read())["usage"]["prompt_tokens"])
        connection.close()
    assert counts[0] == counts[1]


# Faults on purpose ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "cause"),
    [
        ("429", "failed", "the server answered 429: too many requests"),
        ("500", "failed", "the server answered 500: the engine failed"),
        ("503", "failed", "the server answered 503: the server is overloaded"),
        ("reset", "failed", "the connection broke"),
        ("cut", "failed", "the connection broke after"),
        ("stall", "failed", "the server was silent for too long after"),
        ("error", "failed", "the server gave up: this fault was asked for"),
        ("garbage", "failed", "a chunk of the stream cannot be read"),
        ("no-end", "failed", "neither a finish reason nor a usage"),
        ("no-usage", "completed", "the stream had no usage"),
        ("miscount", "completed", "more tokens came than were asked for"),
    ],
)
def test_faults_on_purpose(fault: str, status: str, cause: str, tmp_path: Path) -> None:
    """Each as the driver sees it, for every request."""
    with mock_thread(DEPLOYMENT, injection=parsed([f"{fault}=1"])) as (url, _):
        report = replay(trace_of(tmp_path, plays=1, requests=1), url, silence_timeout_seconds=2.0)
    (line,) = report.request_dicts()
    assert line["terminal_status"] == status
    assert cause in line["cause"] or (fault == "no-end" and "ended before the answer did" in line["cause"])


def test_every_fault_is_tested() -> None:
    (marks,) = (mark.args[1] for mark in test_faults_on_purpose.pytestmark)  # type: ignore[attr-defined]
    assert {fault for fault, _, _ in marks} == set(Injected)


def test_a_fault_by_its_header(served: str) -> None:
    body = {"model": "mock", "prompt": "x", "max_tokens": 1}
    status, answer = ask(served, "/v1/completions", body, **{"x-playproof-inject": "503"})
    assert (status, answer["error"]["code"]) == (503, "injected")
    status, answer = ask(served, "/v1/completions", body, **{"x-playproof-inject": "flood"})
    assert (status, answer["error"]["message"][:18]) == (400, "x-playproof-inject")
    assert ask(served, "/v1/completions", body)[0] == 200


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("429", "429"),
        ("500", "500"),
        ("reset", "broken"),
        ("cut", "broken"),
        ("stall", "silent"),
        ("error", "500"),
        ("garbage", "no JSON"),
        ("no-end", "no JSON"),
        ("no-usage", "without usage"),
        ("miscount", "miscounted"),
    ],
)
def test_faults_of_whole_answers(fault: str, seen: str, served: str) -> None:
    place = urlparse(served)
    body = json.dumps({"model": "mock", "prompt": "x", "max_tokens": 2}).encode()
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=1.0 if seen == "silent" else 60)
    try:
        connection.request("POST", "/v1/completions", body, {"x-playproof-inject": fault})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            what = str(response.status)
            assert (response.getheader("retry-after") == "1") is (what == "429")
        else:
            usage = json.loads(data).get("usage")
            what = "without usage" if usage is None else "miscounted" if usage["completion_tokens"] == 3 else "whole"
    except TimeoutError:
        what = "silent"
    except (ConnectionError, http.client.HTTPException):
        what = "broken"
    except ValueError:
        what = "no JSON"
    finally:
        connection.close()
    assert what == seen
    assert ask(served, "/health")[0] == 200


def test_rates_are_kept_and_the_same_again() -> None:
    injection = parsed(["500=0.25", "cut=0.05"], seed=7)
    drawn = [injection.of(number, {}) for number in range(20_000)]
    assert drawn == [injection.of(number, {}) for number in range(20_000)]
    assert drawn != [parsed(["500=0.25", "cut=0.05"], seed=8).of(number, {}) for number in range(20_000)]
    # Of 20,000 the standard deviations are 61 and 31.
    assert abs(drawn.count(Injected.FAIL_500) - 5000) < 400
    assert abs(drawn.count(Injected.CUT) - 1000) < 200
    assert Injection().of(1, {}) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["500"], "is not FAULT=RATE"),
        (["500=x"], "is not FAULT=RATE"),
        (["500=1.5"], "is not FAULT=RATE"),
        (["500=nan"], "is not FAULT=RATE"),
        (["flood=0.1"], "is none of the faults"),
        (["500=0.6", "cut=0.6"], "more than 1"),
    ],
)
def test_rates_that_are_none(settings: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [argument for setting in settings for argument in ("--inject", setting)]
    assert main(["serve", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_states_of_streams_are_those_of_requests() -> None:
    assert Stream(0, 1, 0, Bell(), outcome=RequestState.CANCELED).canceled
