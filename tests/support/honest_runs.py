"""Honest runs of every kind, small, for whoever wants to alter one fact of them: graph, lines and report as values."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import msgspec
from playproof_spec.certificate import prove
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch

import playproof as pp
from playproof.checking import Verdict, check_lines

Line = dict[str, Any]
BLOCK = 4


@dataclass(frozen=True, eq=False)
class HonestRun:
    """One run as its files tell it.

    Attributes
    ----------
    graph : Graph
    lines : list of dict
        Of requests.jsonl.
    report : dict
        report.json.
    """

    graph: Graph
    lines: list[Line]
    report: dict[str, Any]

    def altered(self) -> HonestRun:
        """Return a copy whose lines and report may be written to."""
        return HonestRun(self.graph, copy.deepcopy(self.lines), copy.deepcopy(self.report))

    def check(self) -> Verdict:
        """Check it, with the report's own settings."""
        lines: Iterable[Line] = self.lines
        settings = self.report.get("deployment"), self.report.get("load")
        return check_lines(self.graph, lines, self.report, *settings)

    def by_name(self, request: str) -> Line:
        """Return the first line of a request."""
        return next(line for line in self.lines if line["request_id"] == request)


Edges = Iterable[tuple[str, str, str, float]]


def request(name: str, play: str, prompt: Iterable[int], edges: Edges = (), **more: Any) -> Line:
    """Return a row of a request; an edge is (source, relation, trigger, delay in ms)."""
    blocks = list(prompt)
    return {
        "request_id": name,
        "play_id": play,
        "session_id": f"session-{play}",
        "model": "m",
        "input_length": BLOCK * len(blocks),
        "hash_ids": blocks,
        "output_length": 6,
        "dependencies": [
            {"request_id": source, "relation": relation, "trigger": trigger, "delay_ms": delay}
            for source, relation, trigger, delay in edges
        ],
        **more,
    }


def agents() -> list[Line]:
    """Plays with spawns, joins and floors; the third fails and skips what it has left, the fourth repeats prompts."""
    rows = []
    for number, base in enumerate((100, 200)):
        play = f"p{number}"
        a, b, c, d = (f"{play}{letter}" for letter in "abcd")
        rows += [
            request(a, play, range(base, base + 4)),
            request(b, play, range(base, base + 6), [(a, "sequence", "completion", 5.0)]),
            request(c, play, [*range(base, base + 2), base + 50], [(a, "spawn", "dispatch", 3.0)]),
            request(d, play, range(base, base + 8), [(b, "join", "completion", 2.0), (c, "join", "completion", 1.0)]),
            request(f"{play}e", play, [base + 60], not_before_ms=35.0, output_length=1),
        ]
    rows += [
        request("p2a", "p2", range(300, 304)),
        # Longer than the context: it is refused, and what waits for it is skipped.
        request("p2b", "p2", range(300, 400), [("p2a", "sequence", "completion", 4.0)]),
        request("p2c", "p2", range(300, 306), [("p2b", "sequence", "completion", 1.0)]),
        request("p2d", "p2", range(350, 354), [("p2a", "sequence", "completion", 2.0)], output_length=30),
        # What another play has computed is found.
        request("p3a", "p3", range(100, 106), output_length=3),
        request("p3b", "p3", range(100, 108), [("p3a", "sequence", "completion", 0.0)], output_length=2),
    ]
    return rows


def recorded() -> list[Line]:
    """Plays of four turns with recorded starts, and a side request: what snapshots can be cut out of."""
    rows = []
    for number in range(3):
        play, base = f"p{number}", 100 * (number + 1)
        before: list[tuple[str, str, str, float]] = []
        for turn in range(4):
            name = f"{play}t{turn}"
            start = 40.0 * turn
            rows.append(request(name, play, range(base, base + 3 + 2 * turn), before, not_before_ms=start))
            before = [(name, "sequence", "completion", 15.0)]
        rows.append(
            request(f"{play}s", play, range(base + 50, base + 53), not_before_ms=130.0, session_id=f"side-{play}")
        )
    return rows


FIXED = pp.FixedTiming(prefill_ms=10, decode_ms=1)
SMALL: dict[str, Any] = {"blocks": 64, "block_size": BLOCK, "max_sequences": 4, "timing": FIXED}


def _pair(backend: Literal["vllm", "sglang"], **more: Any) -> pp.Disaggregated:
    return pp.Disaggregated(
        backend=backend,
        prefill=pp.PrefillRole(workers=1, **SMALL),
        decode=pp.DecodeRole(workers=2, **SMALL),
        transfer=pp.Transfer(bandwidth_gb_per_second=0.001, bytes_per_token=100, timing_mode="full_prompt"),
        context_length=200,
        **more,
    )


def _settings() -> dict[str, tuple[list[Line], Any, pp.Load]]:
    lanes = pp.Load(lanes=2)
    host = pp.HostOffload(num_host_blocks=40, bytes_per_token=1000, d2h_bandwidth_gbps=1.0, h2d_bandwidth_gbps=1.0)
    hosted = {**SMALL, "blocks": 14, "max_sequences": 1, "host_offload": host}
    profile = pp.Profile(
        duration_seconds=0.15,
        response_grace_seconds=0.003,
        cancel_drain_seconds=0.01,
        tree_idle_cap_seconds=0.005,
        global_idle_cap_seconds=0.002,
    )
    cut = pp.Load(lanes=2, snapshot_seed=3)
    turns = [row for row in recorded() if row["request_id"][2] == "t"]
    ordinary = [{**row, "play_id": row["session_id"], "not_before_ms": 0.0} for row in turns]
    return {
        "finite": (agents(), pp.Deployment(workers=2, context_length=200, **SMALL), lanes),
        "apart": (agents(), pp.Deployment(context_length=200, **SMALL), replace_load(lanes, prefix_scope="play")),
        "timed": (agents(), pp.Deployment(workers=2, context_length=200, **SMALL), pp.Load(speedup=2.0)),
        "crowded": (agents(), pp.Deployment(context_length=200, **{**SMALL, "max_sequences": 1}), pp.Load()),
        "routed": (agents(), pp.Deployment(workers=2, context_length=200, router=pp.KvRouter(), **SMALL), lanes),
        "sglang": (agents(), pp.Deployment(backend="sglang", workers=2, context_length=200, **SMALL), lanes),
        "hosted": (agents(), pp.Deployment(workers=1, context_length=200, **hosted), lanes),
        "pair": (agents(), _pair("vllm"), lanes),
        "sglang pair": (agents(), _pair("sglang"), lanes),
        "cut": (recorded(), pp.Deployment(context_length=200, **SMALL), replace_load(cut, warmup=True)),
        "profile": (recorded(), pp.Deployment(context_length=200, **SMALL), replace_load(cut, profile=profile)),
        "ordinary": (ordinary, pp.Deployment(workers=2, context_length=200, **SMALL), pp.Load(concurrency=2)),
    }


def replace_load(load: pp.Load, **more: Any) -> pp.Load:
    """Return a load with other fields."""
    return msgspec.structs.replace(load, **more)


KINDS = (
    *("finite", "timed", "crowded", "routed", "sglang", "hosted", "pair", "sglang pair"),
    *("apart", "cut", "profile", "ordinary", "online"),
)


@cache
def honest(kind: str) -> HonestRun:
    """Return the run of a kind. It is shared: take `altered` to change it."""
    if kind == "online":
        return _online(honest("finite"))
    rows, deployment, load = _settings()[kind]
    graph = sketch(rows, block_size=BLOCK)
    if kind == "ordinary":
        graph = replace(graph, facts={"input_kind": "ordinary"})
    report = pp.replay(prove(graph), deployment, load)
    return HonestRun(graph, list(report.request_dicts()), msgspec.json.decode(report.to_json()))


# Online -------------------------------------------------------------------------------------------------------------


HEARD_MS = 0.25
LATE_MS = 0.5


def _online(offline: HonestRun) -> HonestRun:
    """Return a run as mock workers would have told of it, to a client that is late by nothing.

    A real one has another course each time. This one has that of a replay, and the figures that a client sees.
    """
    run = offline.altered()
    for line in run.lines:
        line["first_admit_ms"] = None
        for admission in line["admission_history"]:
            admission["at_ms"] = None
        line |= {"endpoint": "http://127.0.0.1:1", "dispatch_lateness_ms": 0.0, "cause": None}
    samples = {"samples": len(run.lines), "median_ms": 0.0, "p99_ms": 0.0, "max_ms": HEARD_MS, "over_bound": False}
    run.report["online"] = {
        "endpoints": ["http://127.0.0.1:1"],
        "model": "m",
        "mock_workers": True,
        "time_scale": 1.0,
        "partial": False,
        "ended_by": "completion",
        "ended_at_ms": run.report["duration_ms"],
        "wall_seconds": run.report["duration_ms"] / 1000.0,
        "client_was_the_limit": False,
        "lateness_bound_ms": 5.0,
        **{name: dict(samples) for name in ("dispatch_lateness", "hearing_lateness", "event_loop_lateness")},
        "withheld": None,
        "causes": {},
        "requests_without_usage": 0,
        "requests_with_other_token_counts": 0,
        "prompts_counted_otherwise": 0,
        "limits": {"drain_seconds": 30.0},
    }
    return run
