"""Online replay under load: many streams at once against mock workers in other processes.

    python bench/online.py [--seconds 60] [--streams 256] [--requests 2000] [--workers 2]

256 agents, each with one request after the other, share two mock workers for at least `--seconds`; every request is a
stream.
Shown, and checked against its limit where it has one:

- that every request completed, with as many tokens as it asked for, none lost and none twice;
- how late requests were sent (99th percentile under 20 ms), and how late the client heard of ends;
- the memory of each process, which is flat: its last third is no more than 5 % and 8 MiB above its second.

The full form, which the project's figures are from, takes ten minutes and a machine with nothing else to do:

    python bench/online.py --seconds 600
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import playproof as pp
from playproof.online.processes import workers
from playproof.online.prompts import MOCK_VOCABULARY

BLOCK = 64
PREFILL_MS, DECODE_MS = 20.0, 40.0
LATENESS_P99_MS = 20.0
GROWTH_SHARE, GROWTH_BYTES = 1.05, 8 << 20
SAMPLE_S = 0.5


def write_trace(path: Path, streams: int, requests: int, seconds: float) -> int:
    """Write chains of requests, one a stream, that take at least so long; return the tokens of an answer."""
    length = -(-requests // streams)
    # A token takes a decode pass, and prefill passes hold those up; so decoding alone fills the time asked for.
    output = max(math.ceil(seconds * 1000 / length / DECODE_MS), 8)
    head = {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": BLOCK,
        "hash_id_scope": "local",
        "source": {"format": "bench", "digest": f"{streams}x{length}"},
    }
    lines: list[dict[str, Any]] = [head]
    for stream in range(streams):
        for number in range(length):
            if len(lines) > requests:
                break
            edge = {"trigger": "completion", "delay_ms": 0, "relation": "sequence"}
            blocks = 16 + 2 * number
            lines.append(
                {
                    "request_id": f"s{stream}r{number}",
                    "play_id": f"s{stream}",
                    "session_id": f"s{stream}",
                    "model": "m",
                    "input_length": blocks * BLOCK,
                    # Not all the same, so that ends do not come all at once.
                    "output_length": output - stream % 7,
                    "hash_ids": list(range(stream * 1000, stream * 1000 + blocks)),
                    "not_before_ms": 10 * stream,  # they come one by one
                    "dependencies": [{"request_id": f"s{stream}r{number - 1}", **edge}] if number else [],
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return output


class Memory:
    """Samples the resident memory of processes from a thread."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.samples: dict[str, list[int]] = {name: [] for name in processes}
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._over.wait(SAMPLE_S):
            for name, pid in self._processes.items():
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.samples[name].append(resident * page)

    def thirds(self, name: str) -> tuple[float, float]:
        """Return the medians of the second and the last third."""
        samples = self.samples[name]
        third = max(len(samples) // 3, 1)
        return statistics.median(samples[third : 2 * third] or samples), statistics.median(samples[-third:])


def main() -> int:
    parser = argparse.ArgumentParser(description="Online replay under load.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    deployment = pp.Deployment(
        workers=asked.workers,
        blocks=16_384,
        block_size=BLOCK,
        timing=pp.FixedTiming(prefill_ms=PREFILL_MS, decode_ms=DECODE_MS),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        output = write_trace(path, asked.streams, asked.requests, asked.seconds)
        trace = pp.load(path)
    print(f"{trace.graph.node_count:,} requests of about {output:,} tokens, {asked.streams} at a time", flush=True)
    with workers(deployment, asked.workers) as started:
        options = pp.OnlineOptions(endpoints=tuple(worker.url for worker in started), vocabulary=MOCK_VOCABULARY)
        processes = {"client": os.getpid(), **{f"worker {i}": worker.pid for i, worker in enumerate(started)}}
        before = {name: _cpu_s(pid) for name, pid in processes.items()}
        began = time.monotonic()
        with Memory(processes) as memory:
            report = pp.replay_online(trace, options=options)
        took_s = time.monotonic() - began
        cpu = {name: (_cpu_s(pid) - before[name]) / took_s for name, pid in processes.items()}
    return show(trace, report, memory, cpu, took_s)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(trace: Any, report: Any, memory: Memory, cpu: dict[str, float], took_s: float) -> int:
    """Print what was seen; return 1 if a limit is broken."""
    figures = report.to_dict()
    online, failures = figures["online"], []

    def check(what: str, seen: Any, wanted: bool) -> None:
        print(f"{what:<36}{seen}{'' if wanted else '   OVER ITS LIMIT'}")
        if not wanted:
            failures.append(what)

    tokens = int(trace.graph.output_length.sum())
    print(f"{'took':<36}{took_s:,.1f} s, {tokens / took_s:,.0f} tokens/s")
    check("requests completed", figures["completed_requests"], figures["completed_requests"] == trace.graph.node_count)
    wrong = sum(line["output_length"] != line["requested_output_length"] for line in report.request_dicts())
    check("answers with lost or doubled tokens", wrong, wrong == 0 and not online["requests_with_other_token_counts"])
    gaps = tokens - trace.graph.node_count
    shown = f"{figures['num_itl_samples']:,} of {gaps:,}"
    check("gaps between tokens", shown, figures["num_itl_samples"] == gaps)
    for name in ("dispatch_lateness", "hearing_lateness", "event_loop_lateness"):
        late = online[name]
        shown = f"{late['median_ms']:.2f} ms median, {late['p99_ms']:.2f} ms p99, {late['max_ms']:.2f} ms at most"
        check(name.replace("_", " "), shown, name != "dispatch_lateness" or late["p99_ms"] < LATENESS_P99_MS)
    for name in memory.samples:
        second, last = memory.thirds(name)
        shown = f"{second / 2**20:,.1f} MiB, then {last / 2**20:,.1f} MiB; {cpu[name]:.0%} of a core"
        check(f"{name}", shown, last <= second * GROWTH_SHARE + GROWTH_BYTES)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
