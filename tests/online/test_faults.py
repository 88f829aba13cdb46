"""Servers that misbehave, on real sockets: each request ends as it should, says why, and the run goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import HEAD, Connection, fake_server, unused_port
from online_runs import lines_of, replay, trace_of

import playproof as pp
from playproof.online.sse import MAX_EVENT_BYTES
from playproof.online.processes import WorkerProcess

# Wall time within which a run against a server that hangs is over: its silence is a second.
# A silence that no busy machine makes by itself; and an end that comes, however late, where a hang would not.
SILENCE_S, WATCHDOG_S = 5.0, 300.0


def killed_in_the_middle(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(2)
    connection.reset()


def closed_in_the_middle(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(2)
    connection.sock.close()


def closed_without_an_answer(connection: Connection) -> None:
    connection.sock.close()


def without_an_end(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(2)
    connection.send(b"0\r\n\r\n")


def too_many_requests(connection: Connection) -> None:
    connection.status("429 Too Many Requests", b'{"error": {"message": "slow down"}}')


def broken_inside(connection: Connection) -> None:
    connection.status("500 Internal Server Error", b"<html>oh no</html>", kind="text/html")


def moved_elsewhere(connection: Connection) -> None:
    connection.status("307 Temporary Redirect", b"", extra="location: http://127.0.0.1:1/\r\n")


def malformed_event(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(1)
    connection.chunk(b'data: {"choices": [{"te\n\n')
    connection.done()


def malformed_framing(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(1)
    connection.send(b"zz\r\nnot a chunk\r\n")


def not_http(connection: Connection) -> None:
    connection.send(b"220 mail.example ESMTP\r\n")
    connection.sock.close()


def not_a_stream(connection: Connection) -> None:
    connection.status("200 OK", b'{"choices": [{"text": "hello"}]}')


def error_in_the_stream(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(1)
    connection.event({"error": {"message": "the engine died", "code": 500}})
    connection.done()


def endless_line(connection: Connection) -> None:
    connection.send(HEAD)
    for _ in range(MAX_EVENT_BYTES // 1024 + 64):
        connection.chunk(b"x" * 1024)
    connection.hang()


def silent(connection: Connection) -> None:
    connection.hang()


def silent_in_the_middle(connection: Connection) -> None:
    connection.send(HEAD)
    connection.tokens(2)
    connection.hang()


def refused_as_too_long(connection: Connection) -> None:
    body = b'{"error": {"message": "too long", "code": "context_length_exceeded"}}'
    connection.status("400 Bad Request", body)


FAULTS: dict[Callable[[Connection], None], tuple[str, str]] = {
    killed_in_the_middle: ("failed", "the connection broke after 2 tokens"),
    closed_in_the_middle: ("failed", "the connection broke after 2 tokens"),
    closed_without_an_answer: ("failed", "the server closed the connection without an answer"),
    without_an_end: ("failed", "the stream ended before the answer did after 2 tokens"),
    too_many_requests: ("failed", "the server answered 429: slow down"),
    broken_inside: ("failed", "the server answered 500: <html>oh no</html>"),
    moved_elsewhere: ("failed", "the server answered 307: it points to http://127.0.0.1:1/"),
    malformed_event: ("failed", "a chunk of the stream cannot be read"),
    malformed_framing: ("failed", "the answer is not HTTP"),
    not_http: ("failed", "not HTTP"),
    not_a_stream: ("failed", "application/json instead of a stream"),
    error_in_the_stream: ("failed", "the server gave up: the engine died"),
    endless_line: ("failed", "a line of the stream is longer"),
    silent: ("failed", "the server was silent for too long"),
    silent_in_the_middle: ("failed", "the server was silent for too long after 2 tokens"),
    refused_as_too_long: ("rejected", "the server answered 400: too long"),
}


@pytest.mark.parametrize("fault", list(FAULTS), ids=lambda fault: fault.__name__)
def test_a_fault_fails_its_play_and_no_other(fault: Callable[[Connection], None], tmp_path: Path) -> None:
    """The first request of one play meets the fault; its play ends there, the other runs to its end."""

    def answer(connection: Connection) -> None:
        if len(connection.body["prompt"]) == 32 and connection.body["prompt"][0] == first:
            fault(connection)
        else:
            connection.whole()

    trace = trace_of(tmp_path)
    first = 0  # the first block of the first play is the first that is written
    status, cause = FAULTS[fault]
    began = time.monotonic()
    options: dict[str, Any] = {"silence_timeout_seconds": SILENCE_S} if "silent" in fault.__name__ else {}
    with fake_server(answer) as url:
        report = replay(trace, url, **options)
    assert time.monotonic() - began < WATCHDOG_S
    lines = lines_of(report)
    assert lines["p0r0"]["terminal_status"] == status
    assert cause in lines["p0r0"]["cause"]
    assert "p0r1" not in lines
    assert [lines[name]["terminal_status"] for name in ("p1r0", "p1r1")] == ["completed", "completed"]
    figures = report.to_dict()
    assert figures["skipped_requests"] == 1
    assert (figures["completed_trajectories"], figures["failed_trajectories"]) == (1, 1)
    assert figures["online"]["causes"] == {lines["p0r0"]["cause"]: 1}
    assert figures["num_ttft_samples"] == 2


def test_connection_refused(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    report = replay(trace, f"http://127.0.0.1:{unused_port()}", model="m")
    assert {line["terminal_status"] for line in report.request_dicts()} == {"failed"}
    assert list(report.to_dict()["online"]["causes"]) == ["no connection: Connection refused"]
    assert report.to_dict()["failed_trajectories"] == 2


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """A mock worker's process is killed while it streams: what it had under way fails, the other worker goes on."""
    trace = trace_of(tmp_path, plays=2, requests=2, output=150)
    deployment = pp.Deployment(timing=pp.FixedTiming(prefill_ms=20, decode_ms=20))

    def kill_while_it_streams() -> None:
        while (
            json.load(urllib.request.urlopen(f"{workers[0].url.removesuffix('/v1')}/playproof/counters"))["running"]
            == 0
        ):
            time.sleep(0.05)
        time.sleep(0.2)  # some of three seconds
        os.kill(workers[0].pid, signal.SIGKILL)

    workers = [WorkerProcess(deployment) for _ in range(2)]
    try:
        for worker in workers:
            worker.wait()
        killer = threading.Thread(target=kill_while_it_streams)
        killer.start()
        report = replay(trace, *(worker.url for worker in workers))
        killer.join()
    finally:
        for worker in workers:
            worker.close()
    lines = lines_of(report)
    assert lines["p0r0"]["terminal_status"] == "failed"
    assert lines["p0r0"]["cause"].startswith("the connection broke after ")
    assert lines["p1r0"]["terminal_status"] == "completed"
    # Its turn round robin is the dead one's.
    assert lines["p1r1"]["cause"] == "no connection: Connection refused"
    assert report.to_dict()["failed_trajectories"] == 2


def test_a_stream_without_usage_completes_and_says_so(tmp_path: Path) -> None:
    def answer(connection: Connection) -> None:
        connection.send(HEAD)
        connection.tokens(3, finish=True)
        connection.done()

    with fake_server(answer) as url:
        report = replay(trace_of(tmp_path), url)
    lines = lines_of(report)
    assert {line["terminal_status"] for line in lines.values()} == {"completed"}
    assert {line["output_length"] for line in lines.values()} == {3}
    assert all("no usage" in line["cause"] for line in lines.values())
    figures = report.to_dict()
    assert figures["online"]["requests_without_usage"] == 4
    assert figures["first_admission_prefix_cache_reused_ratio"] is None


def test_tokens_are_those_of_the_usage(tmp_path: Path) -> None:
    """Three tokens come in two events; an event too many is told; cached tokens may be missing alone."""

    def answer(connection: Connection) -> None:
        connection.send(HEAD)
        second = len(connection.body["prompt"]) > 32
        connection.tokens(4 if second else 2, finish=True)
        connection.usage(3, cached=None if second else 16)
        connection.done()

    with fake_server(answer) as url:
        report = replay(trace_of(tmp_path, plays=1), url)
    lines = lines_of(report)
    assert [lines[name]["output_length"] for name in ("p0r0", "p0r1")] == [3, 3]
    assert lines["p0r0"]["first_admission_reused_input_tokens"] == 16
    assert lines["p0r1"]["cause"] == "the stream brought 4 tokens, its usage says 3"
    figures = report.to_dict()
    assert figures["total_output_tokens"] == 6
    assert figures["online"]["requests_with_other_token_counts"] == 1
    # One gap between the first two events and one of nothing for the token that came along; three between four.
    assert figures["num_itl_samples"] == 2 + 3


def test_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact token counts, equal beginnings for equal blocks, the namespaces of plays, and no key but the variable's."""
    seen: list[Connection] = []

    def answer(connection: Connection) -> None:
        seen.append(connection)
        connection.whole()

    monkeypatch.setenv("PLAYPROOF_API_KEY", "secret")
    with fake_server(answer) as url:
        replay(trace_of(tmp_path), f"{url}/v1/", load=pp.Load(prefix_scope="play"), vocabulary=3)
    bodies = [connection.body for connection in seen]
    assert {connection.path for connection in seen} == {"/v1/completions"}
    assert sorted(len(body["prompt"]) for body in bodies) == [32, 32, 64, 64]
    assert {body["cache_salt"] for body in bodies} == {"play-0", "play-1"}
    for play in ("play-0", "play-1"):
        short, long = sorted((body["prompt"] for body in bodies if body["cache_salt"] == play), key=len)
        assert long[:32] == short
        assert max(long) < 3
    assert (
        bodies[0].items()
        >= {
            "model": "fake",
            "max_tokens": 3,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }.items()
    )
