"""Replays random corpora and prints digests of the ledgers; run with and without the compiler by a property test.

Usage: ``python interpreted_run.py SEED COUNT``. A line a seed: the seed, its topology, and the digests of the ledger
with macro-steps, of the ledger pass by pass, and of a run under run controls.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import blake3
import msgspec
from ledgers import columns, controlled_columns
from playproof_kernel import simulate, simulate_controlled
from playproof_kernel.runs.cuts import InvalidSnapshot
from playproof_spec.certificate import prove
from playproof_spec.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    ProfileSpec,
    RouterSpec,
    Rules,
    SpeculationSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch
from pressure import random_cancellations, random_rows

TOPOLOGIES = [(backend, split) for backend in Backend for split in (False, True)]


def random_worker(chance: random.Random, backend: Backend, block_size: int, caching: bool, rules: Rules) -> WorkerSpec:
    """Return a worker with a small pool; which of its limits an engine looks at is the engine's business."""
    fixed = Timing(TimingKind.FIXED, chance.choice([0, 3_000_000]), chance.choice([0, 1_000_000]))
    return WorkerSpec(
        backend=backend,
        blocks=chance.randint(24 // block_size, 90 // block_size),
        block_size=block_size,
        max_batched_tokens=chance.choice([2, 8, 64]),
        max_sequences=chance.choice([1, 2, 8]),
        prefix_caching=caching,
        timing=chance.choice([fixed, Timing(TimingKind.POLYNOMIAL, 0, 0)]),
        chunked_prefill_size=chance.choice([3, 8, 8192]),
        schedule_conservativeness=chance.choice([1.0, 0.01]),
        rules=rules,
    )


def random_deployment(chance: random.Random, backend: Backend, split: bool) -> DeploymentSpec:
    """Return a deployment of the topology."""
    block_size, caching = chance.choice([1, 2, 3, 4]), chance.random() < 0.8
    rules = chance.choice(list(Rules))
    first, second = (random_worker(chance, backend, block_size, caching, rules) for _ in range(2))
    transfer = TransferSpec(chance.choice([1000, 250_000]), chance.choice([None, 1e8]), chance.random() < 0.5)
    decode = DecodeSpec(chance.randint(1, 3), second, transfer) if split else None
    context = chance.choice([12, 1000, 1000, 1000])
    speculation = random_speculation(chance, backend)
    router = chance.choice([None, RouterSpec(chance.choice([0.0, 1.0, 1.0, 5.0]))])
    deployment = DeploymentSpec(chance.randint(1, 3), first, context, decode, speculation, router)
    if backend is Backend.VLLM and caching and deployment.speculation is None:
        return with_host_memory(chance, deployment)
    return deployment


def with_host_memory(chance: random.Random, deployment: DeploymentSpec) -> DeploymentSpec:
    """Return `deployment` with host memory, of each worker's own or one pool for all, in most of its roles."""
    shared = chance.random() < 0.6
    common: dict[str, Any] = {"blocks": chance.choice([1, 3, 12, 40]), "block_bytes": 1_000_000, "shared": shared}
    if shared:
        common["shared_d2h_bytes_per_second"] = chance.choice([None, 3e8, 1e9])
        common["shared_h2d_bytes_per_second"] = chance.choice([None, 3e8, 7e8])

    def hosted(worker: WorkerSpec) -> WorkerSpec:
        rates = chance.choice([None, 1e9, 3e8]), chance.choice([None, 1e9, 3e8])
        host = HostSpec(
            d2h_bytes_per_second=rates[0],
            h2d_bytes_per_second=rates[1],
            latency_ns=chance.choice([0, 0, 1_000_000]),
            **common,
        )
        return replace(worker, host=host) if chance.random() < 0.8 else worker

    decode = deployment.decode
    return replace(
        deployment,
        worker=hosted(deployment.worker),
        decode=None if decode is None else replace(decode, worker=hosted(decode.worker)),
    )


def digests(seed: int) -> tuple[str, str]:
    """Replay the corpus of `seed` on the deployment of `seed`, with macro-steps and without."""
    chance = random.Random(seed)
    graph = sketch(random_rows(chance, plays=4, nodes=5, blocks=6), block_size=4)
    deployment = random_deployment(chance, *TOPOLOGIES[seed % len(TOPOLOGIES)])
    load = LoadSpec(
        lanes=chance.choice([None, 1, 2]),
        speedup=chance.choice([1.0, 3.0]),
        stop_ns=chance.choice([None, None, chance.randint(0, 60_000_000)]),
        cancellations=random_cancellations(chance, graph, chance.choice([0, 8])),
    )
    controls = random_controls(chance)
    with_macro, without = (
        blake3.blake3(
            msgspec.json.encode(
                observed(graph, deployment, replace(load, macro_steps=macro), replace(controls, macro_steps=macro))
            )
        ).hexdigest()
        for macro in (True, False)
    )
    return with_macro, without


def observed(graph: Graph, deployment: DeploymentSpec, load: LoadSpec, controls: LoadSpec) -> dict[str, object]:
    """Return what a finite replay shows, and one under run controls."""
    proven = prove(graph)
    finite = columns(simulate(proven, deployment, load))
    try:
        ledger = simulate_controlled(proven, deployment, controls, capture=True)
    except InvalidSnapshot as refused:
        return {**finite, "refused": len(refused.findings.items)}
    return {**finite, "controlled": controlled_columns(ledger)}


def random_speculation(chance: random.Random, backend: Backend) -> SpeculationSpec | None:
    """Return speculative decoding, on vLLM half the time."""
    rates = tuple(chance.choice([0.0, 0.3, 0.7, 1.0]) for _ in range(chance.randint(0, 4)))
    speculation = SpeculationSpec(chance.randint(1, 4), rates, chance.choice([1, 2**64 - 1]))
    return speculation if backend is Backend.VLLM and chance.random() < 0.5 else None


def random_controls(chance: random.Random) -> LoadSpec:
    """Return a load under run controls."""
    ms = 1_000_000
    profile = ProfileSpec(chance.choice([20, 90]) * ms, chance.choice([0, 5]) * ms, 0, 4 * ms, 3 * ms)
    return LoadSpec(
        lanes=chance.choice([1, 2, 5]),
        snapshot_seed=chance.randint(0, 9),
        warmup=chance.random() < 0.5,
        profile=chance.choice([None, profile]),
    )


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    for number in range(seed, seed + count):
        backend, split = TOPOLOGIES[number % len(TOPOLOGIES)]
        print(number, f"{backend.name}-{'split' if split else 'aggregated'}", *digests(number))


if __name__ == "__main__":
    main()
