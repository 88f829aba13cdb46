"""Online replay beside offline replay, its end by hand, by the clock and by itself, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp.client_proto import ResponseHandler
from fake_server import HEAD, Connection, fake_server
from online_runs import agents_of, lines_of, replay, trace_of
from playproof_spec.graph import Trigger

import playproof as pp
from playproof.cli import main
from playproof.online import MissingExtra, client, require_extra, stream
from playproof.online import options as online_options
from playproof.online.driver import Lateness
from playproof.online.prompts import Encoding

ROOT = Path(__file__).resolve().parents[2]
WEKA = str(ROOT / "examples" / "weka")
V2 = ROOT / "examples" / "v2" / "corpus.jsonl"

# However busy the machine, what is waited for comes within this; where something hangs, it never does.
WATCHDOG_S = 300.0

TWO_WORKERS = pp.Deployment(
    workers=2, blocks=2000, block_size=64, max_sequences=16, timing=pp.FixedTiming(prefill_ms=40, decode_ms=12)
)


def events(trace: Any, lines: dict[str, dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Return the dispatches and ends of each play, in the order of their times."""
    order: dict[str, list[tuple[float, str, str]]] = {}
    for name, line in lines.items():
        play = order.setdefault(line["play_id"], [])
        play += [(line["dispatched_at_ms"], "dispatched", name), (line["terminal_time_ms"], "ended", name)]
    return {play: [(what, name) for _, what, name in sorted(own)] for play, own in order.items()}


def causally_ordered(trace: Any, lines: dict[str, dict[str, Any]]) -> None:
    """Check every edge: what it holds back came after its event and delay."""
    graph = trace.graph
    for node in range(graph.node_count):
        for edge in graph.edges_into(node):
            source, target = lines[edge.source], lines[edge.target]
            # A dispatch is decided when it is due; its bytes leave as much later as the client is late.
            due = source["dispatched_at_ms"] - source["dispatch_lateness_ms"]
            event = due if edge.trigger == Trigger.DISPATCH else source["terminal_time_ms"]
            assert target["dispatched_at_ms"] >= event + edge.delay_ms - 1e-3


def apart(field: str, a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Return the medians of |a − b| over requests: milliseconds, and as a share of b."""
    spans = np.array([abs(a[name][field] - b[name][field]) for name in b])
    return float(np.median(spans)), float(np.median(spans / [b[name][field] for name in b]))


def test_online_is_what_offline_says(tmp_path: Path) -> None:
    """On two workers at time scale 1: everything completes, in the same order, with the same reuse, and as fast.

    Whatever else runs on the machine may delay a run, and then nothing can be said of its times: a run that was on time
    by its own measure, and still has other latencies, fails.
    """
    trace = agents_of(tmp_path, plays=2, rounds=2)
    # One play at a time: which of two plays goes first when both could is for the network to say.
    load = pp.Load(lanes=1)
    offline = pp.replay(trace, TWO_WORKERS, load)
    expected, figures = lines_of(offline), offline.to_dict()
    for attempt in range(6):
        online = replay(trace, load=load, deployment=TWO_WORKERS)
        seen, report = lines_of(online), online.to_dict()
        assert {line["terminal_status"] for line in seen.values()} == {"completed"}
        assert seen.keys() == expected.keys()
        causally_ordered(trace, seen)
        ttft, e2e = apart("ttft_ms", seen, expected), apart("e2e_latency_ms", seen, expected)
        if not report["online"]["client_was_the_limit"] and ttft[0] <= 5.0 and e2e[0] <= 5.0 and e2e[1] <= 0.02:
            break
        lateness = report["online"]["dispatch_lateness"], report["online"]["event_loop_lateness"]
        print(f"attempt {attempt}: TTFT {ttft}, E2E {e2e}, {lateness}")
    else:
        busy = max(late["p99_ms"] for late in lateness) > 2.0
        if not busy:
            pytest.fail("online latencies are not the offline ones")
        pytest.skip("this machine is too busy to be on time: nothing can be said of latencies")
    for name, line in expected.items():
        for field in ("output_length", "first_admission_reused_input_tokens", "decode_worker_idx", "lane"):
            assert seen[name][field] == line[field], (name, field)
    for name in ("completed_trajectories", "completed_requests", "total_output_tokens", "committed_prefill_tokens"):
        assert report[name] == figures[name]
    assert report["first_admission_prefix_cache_reused_ratio"] == figures["first_admission_prefix_cache_reused_ratio"]
    assert abs(report["forward_passes"] - figures["forward_passes"]) <= 0.1 * figures["forward_passes"]


def test_the_order_of_events_is_the_same_where_it_is_decided(tmp_path: Path) -> None:
    """A play whose events offline are all at least 40 ms apart has them in the same order online."""
    trace = trace_of(tmp_path, plays=3, requests=3, output=5, delay_ms=60.0)
    load = pp.Load(lanes=2)
    expected = events(trace, lines_of(pp.replay(trace, TWO_WORKERS, load)))
    for _ in range(6):  # a busy machine may turn two events around, but not in every run
        seen = events(trace, lines_of(replay(trace, load=load, deployment=TWO_WORKERS)))
        if seen == expected:
            break
    assert seen == expected


def test_sglang_serves_too(tmp_path: Path) -> None:
    """Pages of one token: every token of a prompt but the last is found that a request of its play has had."""
    deployment = pp.Deployment(
        backend="sglang", workers=1, blocks=4000, block_size=1, timing=pp.FixedTiming(prefill_ms=20, decode_ms=10)
    )
    trace = trace_of(tmp_path, plays=2, requests=3, output=4, delay_ms=50.0)
    offline, online = pp.replay(trace, deployment), replay(trace, deployment=deployment)
    seen, expected = lines_of(online), lines_of(offline)
    for name, line in expected.items():
        assert seen[name]["first_admission_reused_input_tokens"] == line["first_admission_reused_input_tokens"]
    assert [seen[f"p0r{number}"]["first_admission_reused_input_tokens"] for number in range(3)] == [0, 32, 64]


def test_run_controls_online(tmp_path: Path) -> None:
    """Snapshot, warmup and profile: as many preparations as offline, all warm, then the profile till its deadline."""
    load = pp.Load(
        lanes=3,
        snapshot_seed=42,
        warmup=True,
        profile=pp.Profile(duration_seconds=30, response_grace_seconds=1, cancel_drain_seconds=1),
    )
    trace = pp.load(WEKA)
    offline = pp.replay(trace, TWO_WORKERS, load).to_dict()
    report = replay(trace, load=load, deployment=TWO_WORKERS, time_scale=10.0)
    online = report.to_dict()
    assert online["valid"] is True
    assert len(online["agentic_phases"]["requests"]) == len(offline["agentic_phases"]["requests"])
    assert {request["terminal_status"] for request in online["agentic_phases"]["requests"]} == {"completed"}
    cuts = [[snapshot[name] for name in ("t_star_ms", "source_play_id")] for snapshot in online["agentic_snapshots"]]
    assert cuts[:3] == [
        [snapshot[name] for name in ("t_star_ms", "source_play_id")] for snapshot in offline["agentic_snapshots"][:3]
    ]
    profile = online["agentic_profile"]
    assert profile["admission_closed"] is True
    assert profile["issued_requests"] == online["num_requests"]
    # A busy machine issues fewer.
    assert 0 < online["num_requests"] <= 1.3 * offline["num_requests"]
    # Each play instance has a namespace of its own, which its preparation has filled.
    assert online["first_admission_prefix_cache_reused_ratio"] > 0
    assert all(line["endpoint"] for line in report.request_dicts() if line["terminal_status"] == "completed")
    assert online["forward_passes"] > 0


# Ends ---------------------------------------------------------------------------------------------------------------


def test_a_duration_ends_admission_and_drains(tmp_path: Path) -> None:
    """The third request of each play is not issued; the second is under way, and has the time that it takes."""
    trace = trace_of(tmp_path, plays=2, requests=3, output=200)
    request_s = (TWO_WORKERS.timing.prefill_ms + 199 * TWO_WORKERS.timing.decode_ms) / 1000  # type: ignore[union-attr]
    report = replay(trace, deployment=TWO_WORKERS, duration_seconds=1.5 * request_s, drain_seconds=60)
    figures = report.to_dict()
    assert (figures["online"]["partial"], figures["online"]["ended_by"]) == (True, "duration")
    assert (figures["completed_requests"], figures["never_issued_requests"]) == (4, 2)
    assert (figures["canceled_requests"], figures["unfinished_requests"]) == (0, 0)
    assert figures["incomplete_trajectories"] == 2
    assert figures["total_output_tokens"] == 800


def test_what_does_not_drain_is_canceled(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, plays=2, requests=2, output=2000)
    began = time.monotonic()
    report = replay(trace, deployment=TWO_WORKERS, duration_seconds=0.3, drain_seconds=0.3)
    assert time.monotonic() - began < WATCHDOG_S
    figures = report.to_dict()
    assert (figures["completed_requests"], figures["canceled_requests"]) == (0, 2)
    assert figures["never_issued_requests"] == 2
    assert {line["cause"] for line in report.request_dicts()} == {"given up"}


def test_a_profile_ends_early_too(tmp_path: Path) -> None:
    load = pp.Load(lanes=2, snapshot_seed=1, warmup=True, profile=pp.Profile(duration_seconds=3600))
    report = replay(pp.load(WEKA), load=load, deployment=TWO_WORKERS, time_scale=10.0, duration_seconds=10)
    figures = report.to_dict()
    assert (figures["valid"], figures["online"]["partial"]) == (True, True)
    assert figures["num_requests"] > 0
    opened, profile = figures["agentic_phases"]["profile_start_ms"], figures["agentic_profile"]
    assert 10_000 <= profile["admission_cutoff_ms"] - opened < 3_600_000  # of an hour, ten seconds of wall time
    assert profile["admission_closed"] is True
    assert profile["admission_cutoff_ms"] <= figures["online"]["ended_at_ms"]


def test_ctrl_c_writes_a_partial_report(tmp_path: Path) -> None:
    """The first Ctrl-C ends admission, the second what is under way; the report is whole and adds up."""
    asked = threading.Semaphore(0)

    def answer(connection: Connection) -> None:
        if connection.path == "/v1/completions" and len(connection.body["prompt"]) > 32:
            asked.release()
            connection.hang()
        connection.whole()

    trace_of(tmp_path, plays=2, requests=3)
    out = tmp_path / "out"
    with fake_server(answer) as url:
        command = ["replay", str(tmp_path / "trace.jsonl"), "--online", "--endpoint", url]
        process = subprocess.Popen(
            [sys.executable, "-m", "playproof", *command, "--out", str(out), "--per-request"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            for _ in range(2):  # the second request of each play
                assert asked.acquire(timeout=WATCHDOG_S)
            process.send_signal(signal.SIGINT)
            time.sleep(2.0)
            assert process.poll() is None, "it does not drain"
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=WATCHDOG_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "ended by interrupt" in said
    report = json.loads((out / "report.json").read_text())
    assert (report["online"]["partial"], report["online"]["ended_by"]) == (True, "interrupt")
    assert (report["completed_requests"], report["canceled_requests"], report["never_issued_requests"]) == (2, 2, 2)
    assert report["num_requests"] == 4
    assert len((out / "requests.jsonl").read_text().splitlines()) == 4
    assert sorted(path.name for path in out.iterdir()) == ["report.json", "requests.jsonl"]


def test_ctrl_c_during_preparation_makes_the_run_invalid(tmp_path: Path) -> None:
    hung = threading.Event()

    def answer(connection: Connection) -> None:
        hung.set()
        connection.hang()

    def interrupt() -> None:
        hung.wait(WATCHDOG_S)
        os.kill(os.getpid(), signal.SIGINT)

    trace = pp.load(WEKA)
    load = pp.Load(lanes=2, snapshot_seed=42, warmup=True)
    with fake_server(answer) as url:
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        report = replay(trace, url, load=load)
        interrupter.join()
    figures = report.to_dict()
    assert (figures["valid"], figures["online"]["partial"]) == (False, True)
    assert figures["num_requests"] == 0


# A client that is late ----------------------------------------------------------------------------------------------


def test_a_late_client_says_so_instead_of_giving_figures(tmp_path: Path) -> None:
    """With one connection for four plays, three wait for it: that is the client's doing, and no latency of a server."""

    def answer(connection: Connection) -> None:
        time.sleep(0.1)
        connection.whole()

    with fake_server(answer) as url:
        report = replay(trace_of(tmp_path, plays=4, requests=1), url, max_connections=1)
    figures = report.to_dict()
    online = figures["online"]
    assert online["client_was_the_limit"] is True
    assert online["dispatch_lateness"]["p99_ms"] > 200
    assert online["dispatch_lateness"]["over_bound"] is True
    for name in ("p50_ttft_ms", "mean_e2e_latency_ms", "p99_trajectory_e2e_latency_ms", "output_throughput_tok_s"):
        assert figures[name] is None
        assert online["withheld"][name] > 0
    assert figures["completed_requests"] == 4
    late = sorted(line["dispatch_lateness_ms"] for line in report.request_dicts())
    # Each waited for the one before it, which the server kept for 100 ms.
    assert [late[k + 1] - late[k] > 90 for k in range(3)] == [True] * 3


def test_lateness_is_counted() -> None:
    late = Lateness()
    assert late.figures() == {"samples": 0, "median_ms": None, "p99_ms": None, "max_ms": None}
    for microseconds in range(1, 1001):
        late.add(microseconds * 1000)
    late.add(-5)
    assert late.figures() == {"samples": 1001, "median_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}


def test_times_are_stamped_where_bytes_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes its time between the arrival of bytes and their being read: the stamp is of the arrival."""
    waited: list[int] = []
    received, feed = ResponseHandler.data_received, stream.Reading.feed

    def busy(self: Any, data: bytes) -> None:
        received(self, data)
        time.sleep(0.05)

    def noted(self: Any, data: bytes, at: int) -> bool:
        waited.append(time.monotonic_ns() - at)
        return feed(self, data, at)

    monkeypatch.setattr(ResponseHandler, "data_received", busy)
    monkeypatch.setattr(stream.Reading, "feed", noted)

    def answer(connection: Connection) -> None:
        connection.send(HEAD)
        connection.tokens(1)
        time.sleep(0.3)  # so that the rest does not come with the first token
        connection.tokens(2, finish=True)
        connection.done()

    with fake_server(answer) as url:
        report = replay(trace_of(tmp_path, plays=1, requests=1), url, lateness_bound_ms=1000.0)
    assert len(waited) >= 2
    assert min(waited) >= 50_000_000
    assert report.to_dict()["completed_requests"] == 1


def test_silence_ends_a_request_even_if_nobody_says_that_its_connection_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client._Body, "lose", lambda self, because: None)

    def answer(connection: Connection) -> None:
        connection.send(HEAD)
        connection.tokens(1)
        time.sleep(0.2)
        connection.send(b"zz\r\nno chunk\r\n")
        connection.hang()

    with fake_server(answer) as url:
        report = replay(trace_of(tmp_path, plays=1, requests=1), url, silence_timeout_seconds=1.0)
    (line,) = report.request_dicts()
    assert (line["terminal_status"], line["cause"]) == ("failed", "the server was silent for too long after 1 token")


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["replay", WEKA, "--online", "--config", "examples/disaggregated.yaml"], 1, "prefill/decode is not supported"),
        (
            [
                "replay",
                WEKA,
                "--online",
                "--set",
                "engine.speculation={kind: ngram, num_speculative_tokens: 2, acceptance_rates: [0.5]}",
            ],
            1,
            "speculation is not supported online",
        ),
        (
            ["replay", WEKA, "--online", "--set", "traffic.stop.max_virtual_time_seconds=5"],
            1,
            "max_virtual_time_seconds",
        ),
        (["replay", WEKA, "--online", "--time-scale", "0"], 2, "time_scale is above 0"),
        (["replay", WEKA, "--online", "--duration", "nan"], 2, "duration_seconds is above 0"),
        (["replay", WEKA, "--online", "--vocabulary", "1"], 2, "between 2 and 2^32"),
        (["replay", WEKA, "--endpoint", "http://127.0.0.1:1"], 2, "belongs to --online"),
        (["replay", WEKA, "--duration", "5"], 2, "belongs to --online"),
        (["replay", WEKA, "--online", "--endpoint", "http://127.0.0.1:1"], 2, "http://127.0.0.1:1/v1/models"),
        (["serve", "--config", "examples/disaggregated.yaml"], 1, "prefill/decode is not supported"),
        (["serve", "--port", "65535", "--workers", "2"], 2, "there are no 2 ports"),
        (["serve", "--time-scale", "-1"], 2, "above 0"),
    ],
)
def test_refusals(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(arguments) == code
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_a_setting_that_another_version_has_is_refused_by_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        online_options, "_UNSUPPORTED_OF_WORKERS", {"prefix_caching": "caching is not supported online"}
    )
    from playproof.api import PLACES

    findings = online_options.unsupported(pp.Deployment(), pp.Load(), PLACES, mock=True)
    assert [item.message for item in findings.items] == ["caching is not supported online"]


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("playproof.online.find_spec", lambda name: None if name == "aiohttp" else object())
    with pytest.raises(MissingExtra, match="aiohttp"):
        require_extra()
    for arguments in (["serve"], ["replay", WEKA, "--online"]):
        assert main(arguments) == 2
        assert "pip install 'playproof[online]'" in capsys.readouterr().err


def test_the_core_does_not_import_the_extra() -> None:
    code = (
        "import sys; from playproof import cli, api; cli.main(['machines']);"
        "import playproof.api as a;"
        f"a.replay(a.load({str(V2)!r}));"
        "assert not {'aiohttp', 'starlette', 'uvicorn', 'httptools'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# Serving ------------------------------------------------------------------------------------------------------------


def test_serve_runs_its_workers_until_it_is_told_to_stop() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "playproof", "serve", "--port", "0", "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        urls = [process.stdout.readline().split()[1] for _ in range(2)]
        import urllib.request

        for url in urls:
            assert url.startswith("http://127.0.0.1:")
            assert json.load(urllib.request.urlopen(f"{url}/models"))["data"][0]["id"] == "playproof-mock"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WATCHDOG_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert err == ""
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{urls[0]}/models")


# Prompts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [2, 3, 1000, 1 << 31])
def test_blocks_are_told_apart_whatever_the_vocabulary(vocabulary: int, tmp_path: Path) -> None:
    trace = trace_of(tmp_path, plays=5, requests=3)
    encoding = Encoding(trace.graph, vocabulary)
    known: dict[tuple[int, ...], int] = {}
    for node in range(trace.graph.node_count):
        tokens = encoding.tokens(node)
        assert len(tokens) == trace.graph.input_length[node]
        assert json.loads(b"[" + encoding.text(node) + b"]") == tokens.tolist()
        assert tokens.max() < vocabulary
        for block, label in enumerate(trace.graph.hash_ids(node).tolist()):
            chunk = tuple(tokens[16 * block : 16 * (block + 1)].tolist())
            assert known.setdefault(chunk, label) == label
    assert len(set(known.values())) == len(known) == 30


def test_a_vocabulary_that_is_too_small(tmp_path: Path) -> None:
    lines = (tmp_path / "trace.jsonl", trace_of(tmp_path, plays=5, requests=3))[0].read_text().splitlines()
    head = json.loads(lines[0]) | {"block_size": 1}
    rows = [json.loads(line) for line in lines[1:]]
    for row in rows:
        row["input_length"] = len(row["hash_ids"])
    path = tmp_path / "ones.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *rows]))
    with pytest.raises(ValueError, match="30 blocks of 1 tokens cannot be told apart with a vocabulary of 2"):
        Encoding(pp.load(path).graph, 2)
