"""Replays random corpora and prints a digest of each ledger; run with and without the compiler by a property test.

Usage: ``python interpreted_run.py SEED COUNT``.
"""

from __future__ import annotations

import dataclasses
import random
import sys

import blake3
import msgspec
from ledgers import columns, controlled_columns
from playproof_kernel import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    ProfileSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
    simulate,
    simulate_controlled,
)
from playproof_kernel.snapshot import InvalidSnapshot
from playproof_spec.certificate import prove
from playproof_spec.sketch import sketch

RELATIONS = [
    ("sequence", "completion"),
    ("spawn", "dispatch"),
    ("join", "completion"),
    ("replay_barrier", "completion"),
]


def random_rows(chance: random.Random) -> tuple[int, list[dict[str, object]]]:
    """Return (block size, rows) of a well-formed corpus."""
    block_size = chance.choice([1, 2, 4])
    rows: list[dict[str, object]] = []
    for play in range(chance.randint(1, 5)):
        for node in range(chance.randint(1, 7)):
            sources = chance.sample(range(node), min(node, chance.randint(0, 2)))
            edges = []
            for source in sources:
                relation, trigger = chance.choice(RELATIONS)
                delay = chance.choice([0.0, 1.0, 3.25])
                edge = {"request_id": f"p{play}n{source}", "relation": relation, "trigger": trigger, "delay_ms": delay}
                edges.append(edge)
            length = chance.randint(1, 10 * block_size)
            blocks = -(-length // block_size)
            common = chance.randint(0, blocks)
            hashes = [i + 1 for i in range(common)] + [chance.randint(50, 70) for _ in range(blocks - common)]
            rows.append(
                {
                    "request_id": f"p{play}n{node}",
                    "play_id": f"play{play}",
                    "input_length": length,
                    "output_length": chance.choice([0, 1, 5, 40]),
                    "hash_ids": hashes,
                    "not_before_ms": chance.choice([0.0, 1.0, 10.0]),
                    "dependencies": edges,
                }
            )
    return block_size, rows


def random_ledger(seed: int) -> dict[str, object]:
    """Replay the corpus of `seed` on the deployment of `seed`."""
    chance = random.Random(seed)
    block_size, rows = random_rows(chance)
    fixed = Timing(TimingKind.FIXED, chance.choice([0, 3_000_000]), chance.choice([0, 1_000_000]))
    worker = WorkerSpec(
        blocks=chance.randint(2, 30),
        block_size=chance.choice([1, 2, 3, 4]),
        max_batched_tokens=chance.choice([2, 8, 64]),
        max_sequences=chance.choice([1, 2, 8]),
        prefix_caching=chance.random() < 0.8,
        timing=chance.choice([fixed, Timing(TimingKind.POLYNOMIAL, 0, 0)]),
        backend=chance.choice(list(Backend)),
        chunked_prefill_size=chance.choice([3, 8, 8192]),
        schedule_conservativeness=chance.choice([1.0, 0.01]),
    )
    deployment = DeploymentSpec(chance.randint(1, 3), worker, chance.choice([12, 1000]))
    if chance.random() < 0.4:
        decode = dataclasses.replace(worker, blocks=chance.randint(2, 30), max_sequences=chance.choice([1, 2, 8]))
        transfer = TransferSpec(1000, chance.choice([None, 1e6]), full_prompt=chance.random() < 0.5)
        deployment = dataclasses.replace(deployment, decode=DecodeSpec(chance.randint(1, 2), decode, transfer))
    load = LoadSpec(lanes=chance.choice([None, 1, 2]), speedup=chance.choice([1.0, 3.0]))
    proven = prove(sketch(rows, block_size=block_size))
    controlled = random_controls(chance)
    try:
        ledger = simulate_controlled(proven, deployment, controlled, capture=True)
    except InvalidSnapshot as refused:
        return {**columns(simulate(proven, deployment, load)), "refused": len(refused.findings.items)}
    return {**columns(simulate(proven, deployment, load)), "controlled": controlled_columns(ledger)}


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
        print(number, blake3.blake3(msgspec.json.encode(random_ledger(number))).hexdigest())


if __name__ == "__main__":
    main()
