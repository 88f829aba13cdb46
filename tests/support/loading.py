"""Corpora and deployments under which vLLM workers load from host memory often, and wait, evict, defer and give up.

Conversations return with prompts that the small G1 pools have let go of meanwhile, some of them alike across plays; a
chain of small requests keeps a worker busy, so that copies end within passes. Hypothesis draws a seed; the rest comes
from it, since drawing a corpus row by row would take longer than replaying it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st
from playproof_spec.deployment import (
    DecodeSpec,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch

MS = 1_000_000
# Blocks of a prompt at most.
LONGEST = 8
WORKERS_MOST = 4


def _row(play: str, number: int, size: int, hashes: list[int], chance: Random, **more: Any) -> dict[str, Any]:
    short = chance.choice([0, 0, 0, 1, size - 1])
    return {
        "request_id": f"{play}n{number}",
        "play_id": play,
        "session_id": play,
        "input_length": max(len(hashes) * size - short, (len(hashes) - 1) * size + 1),
        "output_length": chance.choice([0, 1, 2, 5, 12, 20]),
        "hash_ids": list(hashes),
        "not_before_ms": float(chance.choice([0, 0, 3, 5, 10])),
        **more,
    }


def _after(play: str, number: int, delay_ms: float) -> dict[str, Any]:
    edge = {"request_id": f"{play}n{number - 1}", "relation": "sequence", "trigger": "completion"}
    return {"dependencies": [] if number == 0 else [{**edge, "delay_ms": delay_ms}]}


def loading_graph(chance: Random, size: int, recorded: bool = False) -> Graph:
    """Return conversations in blocks of `size` tokens.

    With `recorded`, their recorded times follow their edges, so that they can be cut, and all plays number their blocks
    alike, so that only namespaces keep them apart.
    """
    rows: list[dict[str, Any]] = []
    taken = 0

    def fresh(count: int) -> list[int]:
        nonlocal taken
        taken += count
        return list(range(taken - count + 1, taken + 1))

    common = fresh(4)
    for number in range(chance.randint(0, 12)):
        rows.append(_row("busy", number, size, fresh(1), chance, **_after("busy", number, 0.0)))
    for play in range(chance.randint(2, 6)):
        if recorded:
            taken = len(common)
        chain = [*(common if chance.random() < 0.6 else []), *fresh(chance.randint(1, 5))][:LONGEST]
        for number in range(chance.randint(2, 6)):
            if number > 0:
                kept = chain[: chance.randint(max(len(chain) // 2, 1), len(chain))]
                chain = [*kept, *fresh(chance.randint(0, 2))][:LONGEST]
            delay_ms = float(chance.choice([0, 0, 1, 5, 30]))
            rows.append(_row(f"play{play}", number, size, chain, chance, **_after(f"play{play}", number, delay_ms)))
    for row in rows if recorded else []:
        row["not_before_ms"] += 20.0 * int(row["request_id"].rpartition("n")[2])
        row["recorded_api_time_ms"] = 5.0
    return sketch(rows, block_size=size)


def _rate(chance: Random) -> float | None:
    return chance.choice([None, 1e9, 3e8, 1e8])


def loading_deployment(chance: Random, size: int, shared: bool, split: bool) -> DeploymentSpec:
    """Return 1 to 4 workers a role, most roles with host memory, all of one pool if `shared`."""
    pool = HostSpec(
        blocks=chance.choice([2, 3, 4, 6, 12, 40]),
        block_bytes=1_000_000,
        shared=shared,
        shared_d2h_bytes_per_second=chance.choice([None, 1e9, 2e8]) if shared else None,
        shared_h2d_bytes_per_second=chance.choice([None, 1e9, 3e8]) if shared else None,
    )

    def worker(hosted: bool) -> WorkerSpec:
        rates: dict[str, Any] = {"d2h_bytes_per_second": _rate(chance), "h2d_bytes_per_second": _rate(chance)}
        latency_ns = chance.choice([0, 0, MS])
        timing = Timing(TimingKind.FIXED, chance.choice([0, 3, 7]) * MS, chance.choice([0, 1, 2]) * MS)
        return WorkerSpec(
            blocks=chance.randint(LONGEST - 2, LONGEST + 7),
            block_size=size,
            max_batched_tokens=chance.choice([4, 16, 64, 64]),
            max_sequences=chance.choice([1, 2, 4, 16]),
            timing=timing,
            host=replace(pool, latency_ns=latency_ns, **rates) if hosted else None,
        )

    transfer = TransferSpec(chance.choice([0, 250_000]), chance.choice([None, 1e9]), chance.random() < 0.3)
    which = chance.choice(["both", "both", "prefill", "decode"]) if split else "both"
    first, second = worker(which != "decode"), worker(which != "prefill")
    decode = DecodeSpec(chance.randint(1, WORKERS_MOST), second, transfer) if split else None
    return DeploymentSpec(chance.randint(1, WORKERS_MOST), first, chance.choice([25, 1000, 1000]), decode)


def loading_case(seed: int, shared: bool, split: bool) -> tuple[Graph, DeploymentSpec, LoadSpec]:
    """Return the case of `seed`: who gives up, and when, is in its load."""
    chance = Random(seed)
    size = chance.choice([1, 2, 4])
    graph = loading_graph(chance, size)
    deployment = loading_deployment(chance, size, shared, split)
    instants = [chance.randint(0, 250) * MS // 2 for _ in range(chance.choice([0, 0, 10, 25]))]
    given_up = tuple((at, chance.randrange(graph.node_count)) for at in sorted(instants))
    return graph, deployment, LoadSpec(lanes=chance.choice([None, None, 2]), cancellations=given_up)


def loading_cases(
    shared: bool | None = None, split: bool | None = None
) -> st.SearchStrategy[tuple[Graph, DeploymentSpec, LoadSpec]]:
    """Draw cases of the scope and topology, or of any."""

    def either(wanted: bool | None) -> st.SearchStrategy[bool]:
        return st.booleans() if wanted is None else st.just(wanted)

    return st.builds(loading_case, st.integers(0, 2**32 - 1), either(shared), either(split))


@st.composite
def loading_controls(draw: st.DrawFn, split: bool, shared: bool | None = None) -> tuple[Graph, DeploymentSpec]:
    """Draw plays that number their blocks alike, and a deployment whose passes take time, for runs under controls."""
    chance = Random(draw(st.integers(0, 2**32 - 1)))
    size = chance.choice([1, 2, 4])
    graph = loading_graph(chance, size, recorded=True)
    deployment = loading_deployment(chance, size, draw(st.booleans()) if shared is None else shared, split)

    def timed(worker: WorkerSpec) -> WorkerSpec:
        timing = worker.timing
        return replace(worker, timing=Timing(timing.kind, max(timing.prefill_ns, 3 * MS), max(timing.decode_ns, MS)))

    deployment = replace(deployment, worker=timed(deployment.worker))
    if deployment.decode is not None:
        decode = replace(deployment.decode, worker=timed(deployment.decode.worker))
        deployment = replace(deployment, decode=decode)
    return graph, deployment
