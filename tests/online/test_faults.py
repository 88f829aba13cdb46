"""Servers that misbehave, on real sockets: each request ends as it should, says why, and the run goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from fake_server import HEAD, Connection, fake_server, unused_port
from faults import ASKED, PROMPT, TABLE
from online_runs import lines_of, replay, trace_of

import playproof as pp
from playproof.online.processes import WorkerProcess

# Wall time within which a run against a server that hangs is over: its silence is a second.
# A silence that no busy machine makes by itself; and an end that comes, however late, where a hang would not.
SILENCE_S, WATCHDOG_S = 5.0, 300.0


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """One run, in which the first request of each play but the last meets a fault of the table; lines, and report."""

    def answer(connection: Connection) -> None:
        # Blocks are numbered by their hash ids, and each play has four of its own.
        play = connection.body["prompt"][0] // 4
        if play < len(TABLE) and len(connection.body["prompt"]) == PROMPT:
            TABLE[play].send(connection)
        else:
            connection.whole()

    trace = trace_of(tmp_path_factory.mktemp("faults"), plays=len(TABLE) + 1, output=ASKED)
    began = time.monotonic()
    with fake_server(answer) as url:
        report = replay(trace, url, silence_timeout_seconds=SILENCE_S, request_timeout_seconds=3 * SILENCE_S)
    assert time.monotonic() - began < WATCHDOG_S
    return {f"row{line['request_id'].removeprefix('p')}": line for line in report.request_dicts()}, report.to_dict()


def test_the_table_has_its_size() -> None:
    assert len({fault.name for fault in TABLE}) == len(TABLE) >= 70


@pytest.mark.parametrize("number", range(len(TABLE)), ids=[fault.name for fault in TABLE])
def test_a_fault_ends_its_request_and_no_other(number: int, ended: Any) -> None:
    """It ends in its state, with a cause in words; its play ends there, or goes on if it is an answer."""
    fault, lines = TABLE[number], ended[0]
    line = lines[f"row{number}r0"]
    assert (line["terminal_status"], line["cause"]) == (fault.state, line["cause"])
    if fault.cause is None:
        assert line["cause"] is None
    else:
        assert fault.cause in line["cause"]
        assert line["cause"].isprintable()
        assert not re.match(r"[A-Za-z.]*(Error|Exception)\b", line["cause"])
    if fault.state == "completed":
        assert lines[f"row{number}r1"]["terminal_status"] == "completed"
    else:
        assert f"row{number}r1" not in lines


def test_a_run_with_every_fault_adds_up(ended: Any) -> None:
    lines, figures = ended
    good = sum(fault.state == "completed" for fault in TABLE)
    assert (figures["completed_trajectories"], figures["total_trajectories"]) == (good + 1, len(TABLE) + 1)
    assert figures["skipped_requests"] == len(TABLE) - good
    assert figures["completed_requests"] == 2 * (good + 1)
    assert figures["online"]["ended_by"] == "completion"
    assert all(line["first_admission_reused_input_tokens"] in (None, 0) for line in lines.values())


def test_an_empty_first_event_is_no_token(ended: Any) -> None:
    number = next(i for i, fault in enumerate(TABLE) if fault.name == "an empty event first")
    assert ended[0][f"row{number}r0"]["ttft_ms"] >= 300.0


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
