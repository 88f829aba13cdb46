"""How online runs end and what is said of that: signals while they close, workers that die, exit codes, addresses."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from fake_server import Connection, fake_server, unused_port
from online_runs import lines_of, replay, trace_of
from playproof_kernel.runs.live_driver import End, LiveDriver

import playproof as pp
from playproof.cli import main
from playproof.online import descriptors, processes
from playproof.online import replay as online_replay
from playproof.online.client import cause_of
from playproof.online.counted import Offsets
from playproof.online.driver import Lateness
from playproof.online.options import OnlineOptions
from playproof.online.outcome import failures
from playproof.online.prompts import Encoding
from playproof.online.report import _Online
from playproof.online.stream import Answer

WATCHDOG_S = 300.0
QUICK = pp.Deployment(timing=pp.FixedTiming(prefill_ms=5, decode_ms=2))


def whole(connection: Connection) -> None:
    connection.whole()


# Whatever raises -----------------------------------------------------------------------------------------------------


def test_what_raises_while_an_end_is_told_ends_that_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = LiveDriver.end
    seen: list[int] = []

    def strict(self: LiveDriver, slot: int, end: End) -> None:
        seen.append(end.generated)
        if len(seen) == 1:
            raise OverflowError("too \x1b[31mlarge")
        taken(self, slot, end)

    monkeypatch.setattr(LiveDriver, "end", strict)
    with fake_server(whole) as url:
        report = replay(trace_of(tmp_path), url)
    states = sorted(line["terminal_status"] for line in report.request_dicts())
    assert states == ["completed", "completed", "failed"]
    assert seen[:2] == [3, 0]
    (cause,) = report.to_dict()["online"]["causes"]
    assert cause == r"its end cannot be taken in (OverflowError: too \x1b[31mlarge)"


def test_what_raises_while_a_request_is_made_ends_that_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Encoding.text

    def short(self: Encoding, node: int) -> bytes:
        if node == 0:
            raise MemoryError
        return written(self, node)

    monkeypatch.setattr(Encoding, "text", short)
    with fake_server(whole) as url:
        report = replay(trace_of(tmp_path), url)
    lines = lines_of(report)
    assert lines["p0r0"]["cause"] == "playproof could not send it (MemoryError: )"
    assert lines["p1r1"]["terminal_status"] == "completed"


# Signals -------------------------------------------------------------------------------------------------------------


def test_signals_wait_until_the_report_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come while workers are asked what they counted, while the report is kept, and while workers stop."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    kept: list[Any] = []

    def both() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)

    asked, stopped = online_replay._Run._counters, processes.close_all

    async def counters(self: Any) -> Any:
        both()
        return await asked(self)

    def stop(started: Any) -> None:
        both()
        stopped(started)

    def keep(report: Any) -> None:
        both()
        # The workers are still there.
        with urllib.request.urlopen(f"{report.setting.endpoints[0]}/health") as answer:
            kept.append((answer.status, report.write(tmp_path / "out", per_request=True)))

    monkeypatch.setattr(online_replay._Run, "_counters", counters)
    monkeypatch.setattr(processes, "close_all", stop)
    report = pp.replay_online(trace_of(tmp_path), QUICK, keep=keep)
    assert [status for status, _ in kept] == [200]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["completed_requests"] == 4
    assert report.to_dict()["forward_passes"] > 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ctrl_c_again_and_again_leaves_a_report(tmp_path: Path) -> None:
    """From the first on, one every few milliseconds, into everything that happens until the end."""
    trace_of(tmp_path, plays=2, requests=2, output=2000)
    asked, out = threading.Event(), tmp_path / "out"

    def answer(connection: Connection) -> None:
        asked.set()
        connection.hang()

    with fake_server(answer) as url:
        command = ["replay", str(tmp_path / "trace.jsonl"), "--online", "--endpoint", url, "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "playproof", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert asked.wait(WATCHDOG_S)
            deadline = time.monotonic() + WATCHDOG_S
            while not (out / "report.json").exists() and time.monotonic() < deadline:
                process.send_signal(signal.SIGINT)
                time.sleep(0.005)
            _, said = process.communicate(timeout=WATCHDOG_S)
        finally:
            process.kill()
    # One may come after the report, into the printing.
    assert process.returncode in (130, 1, -signal.SIGINT)
    report = json.loads((out / "report.json").read_text())
    assert (report["online"]["ended_by"], report["canceled_requests"]) == ("interrupt", 2)
    assert [path.name for path in out.iterdir()] == ["report.json"]
    assert "internal error" not in said


# Workers -------------------------------------------------------------------------------------------------------------


def test_workers_stop_together() -> None:
    """All are told to before one is waited for, and all have the same deadline."""
    done: list[tuple[str, int]] = []
    deadlines: set[float] = set()

    class Stub:
        def __init__(self, number: int) -> None:
            self.number = number

        def release(self) -> None:
            done.append(("told", self.number))

        def close(self, deadline: float) -> None:
            done.append(("waited", self.number))
            deadlines.add(deadline)

    processes.close_all([Stub(0), Stub(1), Stub(2)])  # type: ignore[list-item]
    assert done == [("told", 0), ("told", 1), ("told", 2), ("waited", 0), ("waited", 1), ("waited", 2)]
    assert len(deadlines) == 1


def test_a_worker_that_dies_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two is killed while both stream: the run ends by that, has a report, and says which one."""
    real = processes.workers
    killed: list[str] = []

    @contextmanager
    def deadly(*given: Any, **settings: Any) -> Iterator[list[processes.WorkerProcess]]:
        with real(*given, **settings) as started:

            def kill() -> None:
                with urllib.request.urlopen(f"{started[0].url}/playproof/counters") as answer:
                    while not json.load(answer)["running"]:
                        time.sleep(0.02)
                        answer = urllib.request.urlopen(f"{started[0].url}/playproof/counters")
                killed.append(started[0].url)
                os.kill(started[0].pid, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            yield started
            killer.join()

    monkeypatch.setattr(processes, "workers", deadly)
    slow = pp.Deployment(workers=2, timing=pp.FixedTiming(prefill_ms=20, decode_ms=20))
    report = replay(trace_of(tmp_path, plays=2, requests=3, output=60), deployment=slow)
    figures = report.to_dict()
    assert (figures["online"]["ended_by"], figures["online"]["partial"]) == ("worker", True)
    assert figures["online"]["warnings"][0] == f"a mock worker died, {killed[0]}: it was ended by SIGKILL"
    assert figures["failed_requests"] >= 1
    assert figures["never_issued_requests"] + figures["skipped_requests"] >= 2
    assert failures(figures, None) == "the run ended with the death of a mock worker"


# Other loads than were asked for --------------------------------------------------------------------------------------


def replayed(tmp_path: Path, url: str, *more: str) -> int:
    return main(["replay", str(tmp_path / "trace.jsonl"), "--online", "--endpoint", url, *more])


def test_other_lengths_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four requests one brings a token less and one a token more."""

    def answer(connection: Connection) -> None:
        prompt, output = connection.body["prompt"], connection.body["max_tokens"]
        if len(prompt) > 32:
            connection.body["max_tokens"] = output + (1 if prompt[0] else -1)
        connection.whole()

    trace_of(tmp_path, delay_ms=50.0)
    with fake_server(answer) as url:
        code = replayed(tmp_path, url, "--json")
        figures, said = json.loads(capsys.readouterr()[0]), capsys.readouterr().err
        assert code == 0
        online = figures["online"]
        assert (online["requests_with_fewer_tokens"], online["requests_with_more_tokens"]) == (1, 1)
        assert online["causes"] == {
            "fewer tokens came than were asked for": 1,
            "more tokens came than were asked for": 1,
        }
        assert replayed(tmp_path, url, "--fail-on", "failed") == 0
        assert replayed(tmp_path, url, "--fail-on", "any") == 1
        said = capsys.readouterr().err
    assert "warning: 1 of 4 completed requests have fewer tokens than were asked for" in said
    assert "--fail-on any: requests 1 with fewer tokens than asked for, 1 with more tokens" in said


def test_a_share_of_one_in_a_hundred_is_no_warning() -> None:
    observed = SimpleNamespace(deaths=(), fewer=1, more=2, prompts=Offsets(), causes={})
    setting = SimpleNamespace(options=OnlineOptions())
    report: Any = SimpleNamespace(observed=observed, setting=setting, _counts=lambda: {"completed_requests": 100})
    report._miscounted = lambda completed: _Online._miscounted(report, completed)
    for prompt in range(100):
        observed.prompts.add(16, 17 if prompt == 0 else 16)
    (warning,) = _Online.warnings(report)
    assert warning.startswith("2 of 100 completed requests have more tokens")


# Exit codes ----------------------------------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run in which nothing completes fails by itself, one in which something fails only when that is asked for."""

    def broken(connection: Connection) -> None:
        connection.status("500 Oh", b"{}")

    def half(connection: Connection) -> None:
        (broken if connection.body["prompt"][0] else whole)(connection)

    trace_of(tmp_path)
    with fake_server(broken) as url:
        assert replayed(tmp_path, url) == 1
        assert "playproof: no request completed: 2 failed" in capsys.readouterr().err
    with fake_server(half) as url:
        assert [replayed(tmp_path, url, *more) for more in ((), ("--fail-on", "failed"))] == [0, 1]
        assert "--fail-on failed: requests 1 failed" in capsys.readouterr().err
    with fake_server(whole) as url:
        assert replayed(tmp_path, url, "--fail-on", "failed") == 0
    assert main(["replay", str(tmp_path / "trace.jsonl"), "--fail-on", "any"]) == 2
    assert "belongs to --online" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "fail_on", "why"),
    [
        ({}, None, ""),
        ({}, "any", ""),
        ({"canceled_requests": 1}, None, ""),
        ({"canceled_requests": 1}, "failed", ""),
        ({"canceled_requests": 1}, "any", "1 canceled"),
        ({"rejected_requests": 2}, "failed", "2 rejected by the server"),
        ({"completed_requests": 0, "canceled_requests": 3}, None, "no request completed"),
        ({"online": {"client_was_the_limit": True}}, None, ""),
        ({"online": {"client_was_the_limit": True}}, "any", "the client was the limit"),
        ({"online": {"warnings": ["x"]}}, "any", "warnings"),
        ({"online": {"ended_by": "worker"}}, None, "death of a mock worker"),
    ],
)
def test_what_fails_a_run(changed: dict[str, Any], fail_on: str | None, why: str) -> None:
    names = ("failed", "rejected", "canceled", "skipped", "unfinished", "never_issued")
    online = {"client_was_the_limit": False, "warnings": [], "ended_by": "completion"}
    for name in ("with_fewer_tokens", "with_more_tokens", "with_other_token_counts"):
        online[f"requests_{name}"] = 0
    report = {**{f"{name}_requests": 0 for name in names}, "completed_requests": 5, **changed}
    report["online"] = online | changed.get("online", {})
    said = failures(report, fail_on)
    assert (why in said) if why else not said


# Addresses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "not nothing"),
        ("localhost:8000", "an endpoint is http://host:port or https://host:port"),
        ("ftp://host", "an endpoint is http://host:port"),
        ("http://", "an endpoint is http://host:port"),
        ("http://host:0", "a port"),
        ("http://host:99999", "between 1 and 65535"),
        ("http://host:x", "between 1 and 65535"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://host/v1?key=1", "neither ? nor #"),
        ("http://user:secret@host:1/v1", "holds no credentials, unlike the one of host:1/v1"),
        ("user:secret@host", "holds no credentials"),
        ("http://ho\x1b[2Jst", r"http://ho\x1b[2Jst"),
    ],
)
def test_addresses_are_looked_over_first(
    url: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_of(tmp_path)
    assert replayed(tmp_path, url) == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said.replace("a port", "port") in error
    assert "secret" not in error
    assert "\x1b[2J" not in error


@pytest.mark.parametrize("url", ["http://host", "https://host:443/v1/", "http://[::1]:8000", "HTTP://127.0.0.1:1/a/b"])
def test_proper_addresses(url: str) -> None:
    assert OnlineOptions(endpoints=(url,)).endpoints == (url,)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that signs itself, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    try:
        subprocess.run([*command, *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate")
    both = folder / "both.pem"
    both.write_text((folder / "cert").read_text() + (folder / "key").read_text())
    return both


def test_certificates(tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody vouches for is refused in words; SSL_CERT_FILE vouches for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    trace = trace_of(tmp_path)
    with fake_server(whole, tls=context) as url:
        report = replay(trace, url, model="m")
        (cause,) = report.to_dict()["online"]["causes"]
        assert cause.startswith("no connection: its certificate is not trusted (self-signed certificate)")
        assert "SSL_CERT_FILE" in cause
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("cert")))
        assert replay(trace, url).to_dict()["completed_requests"] == 4


def test_https_at_a_server_that_speaks_http(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            for _ in range(2):
                sock, _ = plain.accept()
                sock.recv(1 << 16)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.close()

        server = threading.Thread(target=answer, daemon=True)
        server.start()
        report = replay(trace, f"https://127.0.0.1:{plain.getsockname()[1]}", model="m")
        server.join(WATCHDOG_S)
    (cause,) = report.to_dict()["online"]["causes"]
    assert cause.startswith("no connection: no TLS with it (")
    assert cause.endswith("does it speak https?")


def test_a_name_without_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(tmp_path)
    assert replayed(tmp_path, "http://no-such-host.invalid:1") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "http://no-such-host.invalid:1/v1/models: no connection: the name no-such-host.invalid has no address" in said
    )


def test_model_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = json.dumps({"data": [{"id": "\x1b[2J\nrequests completed         1,000"}]}).encode()
    trace_of(tmp_path)
    with fake_server(whole, models=models) as url, fake_server(whole) as other:
        assert replayed(tmp_path, url) == 0
        printed = capsys.readouterr().out
        assert replayed(tmp_path, url, "--endpoint", other) == 2
        said = capsys.readouterr().err
    assert "\x1b" not in printed + said
    assert r"\x1b[2J requests completed 1,000" in said
    assert [line for line in (printed + said).splitlines() if line.startswith("requests completed         1,000")] == []


def test_what_a_server_said_is_escaped_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(connection: Connection) -> None:
        connection.status("500 Oh", json.dumps({"error": {"message": "\x1b[31m\nred\x07"}}).encode())

    trace_of(tmp_path)
    with fake_server(answer) as url:
        assert replayed(tmp_path, url) == 1
    printed = capsys.readouterr().out
    assert r"the server answered 500: \x1b[31m red\x07" in printed
    assert "\x1b[31m" not in printed


# The system's limits -------------------------------------------------------------------------------------------------


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, fixed = [(256, 4096)], False

    def set_limit(kind: int, wanted: tuple[int, int]) -> None:
        if fixed:
            raise OSError(errno.EPERM, "no")
        limits.append(wanted)

    stub = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda kind: limits[-1], setrlimit=set_limit)
    monkeypatch.setattr(descriptors, "resource", stub)
    assert descriptors.with_descriptors(OnlineOptions()).max_connections == 1024
    assert limits[-1] == (1088, 4096)
    fewer = descriptors.with_descriptors(OnlineOptions(max_connections=10_000))
    assert limits[-1] == (4096, 4096)
    assert (fewer.max_connections, fewer.connections_wanted) == (4032, 10_000)
    limits, fixed = [(256, 4096)], True
    assert descriptors.with_descriptors(OnlineOptions()).max_connections == 192


def test_a_run_with_few_descriptors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty plays begin where sixteen connections can be open: never more are, all complete, and it is said."""
    stub = SimpleNamespace(
        RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda kind: (80, 80), setrlimit=lambda *_: None
    )
    monkeypatch.setattr(descriptors, "resource", stub)
    lock, count, most = threading.Lock(), [0], [0]

    def answer(connection: Connection) -> None:
        with lock:
            count[0] += 1
            most[0] = max(most[0], count[0])
        time.sleep(0.02)
        with lock:
            count[0] -= 1
        connection.whole()

    trace_of(tmp_path, plays=30, requests=1)
    with fake_server(answer) as url:
        assert replayed(tmp_path, url, "--json") == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["completed_requests"] == 30
    assert report["online"]["limits"]["max_connections"] == 16
    assert 1 < most[0] <= 16
    assert "16 connections open instead of 1,024 (ulimit -n)" in said.err


def test_out_of_descriptors_is_no_fault_of_the_server() -> None:
    key = ConnectionKey("host", 1, False, True, None, None, None)
    error = aiohttp.ClientConnectorError(key, OSError(errno.EMFILE, "Too many open files"))
    assert "playproof has no file descriptor left" in cause_of(error, Answer())
    assert "no fault of the server" in cause_of(error, Answer())


def test_lateness_counts_in_the_replay_s_time() -> None:
    """A millisecond on the wall is one at scale 1, and 200 at scale 200: over a bound of 20 there, and not here."""
    late = Lateness()
    for _ in range(100):
        late.add(1_000_000)
    for scale, over in ((0.5, False), (1.0, False), (19.0, False), (21.0, True), (200.0, True)):
        setting = SimpleNamespace(options=OnlineOptions(time_scale=scale))
        report: Any = SimpleNamespace(observed=SimpleNamespace(dispatch=late, hearing=late, loop=late), setting=setting)
        clocks = _Online._clocks(report)
        assert {clock["over_bound"] for clock in clocks.values()} == {over}
        assert {clock["p99_ms"] for clock in clocks.values()} == {1.0}


def test_a_late_client_at_a_great_scale_says_so(tmp_path: Path) -> None:
    """Every answer takes some tenths of a millisecond at least, which at this scale are seconds of the replay."""
    with fake_server(whole) as url:
        report = replay(trace_of(tmp_path), url, time_scale=100_000.0)
    figures = report.to_dict()
    assert figures["online"]["client_was_the_limit"] is True
    assert figures["p50_ttft_ms"] is None


def test_no_connection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(tmp_path)
    assert replayed(tmp_path, f"http://127.0.0.1:{unused_port()}", "--model", "m") == 1
    assert "no connection: Connection refused" in capsys.readouterr().out
