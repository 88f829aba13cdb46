"""A play that fills host memory, recycled by a profile, on several workers: what its first request finds again.

The play asks for one prompt at its beginning and, after requests that push it out of device memory, once more at its
end, on the same worker; it lands on another worker each time that it is recycled. So its end restores the prompt from
the host, and the beginning of the next instance would, too, if the two had one namespace.

Usage: ``python recycled.py``, with ``NUMBA_DISABLE_JIT=1``: replays it with one namespace for all instances, as without
obligation M6, and prints what was found, a line a deployment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

from playproof_kernel import simulate_controlled
from playproof_kernel.driver import instances
from playproof_kernel.runs import controlled_ledger, controlled_run
from playproof_spec.certificate import prove
from playproof_spec.deployment import (
    DecodeSpec,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    ProfileSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch

MS = 1_000_000
SIZE = 4
# The prompt, in blocks, and the requests that push it out: the last comes to the worker of the first, of 1, 2, 3 or 4.
PROMPT = 4
FILLERS = 11
DEPLOYMENTS = [
    (shared, split, workers) for shared in (False, True) for split in (False, True) for workers in (1, 2, 3, 4)
]


@dataclass(frozen=True)
class Found:
    """Over all instances of the play: how many there were, and what was reused, in tokens."""

    instances: int
    first_reused: int
    last_restored: int


def play() -> Graph:
    """Return the play: the prompt, the fillers one after another, the prompt once more."""
    prompt = list(range(1, PROMPT + 1))
    rows: list[dict[str, Any]] = []
    for number in range(FILLERS + 2):
        own = [100 * number + i for i in range(1, PROMPT + 1)]
        edge = {"request_id": f"n{number - 1:02d}", "relation": "sequence", "trigger": "completion", "delay_ms": 20.0}
        rows.append(
            {
                "request_id": f"n{number:02d}",
                "play_id": "play",
                "input_length": PROMPT * SIZE,
                "output_length": 2,
                "hash_ids": prompt if number in (0, FILLERS + 1) else own,
                "not_before_ms": 30.0 * number,
                "recorded_api_time_ms": 5.0,
                "dependencies": [edge] if number else [],
            }
        )
    return sketch(rows, block_size=SIZE)


def deployment(shared: bool, split: bool, workers: int) -> DeploymentSpec:
    """Return `workers` a role, whose device memory holds one request, and host memory that holds everything."""
    host = HostSpec(1000, 1_000_000, 4e9, 4e9, shared=shared)
    timing = Timing(TimingKind.FIXED, 3 * MS, MS)
    worker = WorkerSpec(PROMPT + 1, SIZE, timing=timing, host=host)
    decode = DecodeSpec(workers, worker, TransferSpec(250_000, 4e9)) if split else None
    return DeploymentSpec(workers, worker, 1000, decode)


def found(shared: bool, split: bool, workers: int) -> Found:
    """Replay the play over and over in one lane, and look at what its requests reused."""
    load = LoadSpec(lanes=1, snapshot_seed=1, profile=ProfileSpec(duration_ns=2_000 * MS))
    ledger = simulate_controlled(prove(play()), deployment(shared, split, workers), load, capture=True)
    assert ledger.captured is not None
    of_request = {int(result.serial): result for result in ledger.captured.requests}
    reused: dict[bool, list[int]] = {False: [0], True: [0]}
    for admission in ledger.captured.admissions:
        result = of_request[int(admission.request)]
        # What is admitted at decode has its prompt from the prefill worker.
        if int(result.source) == 0 and int(result.instance) > 0:
            reused[False].append(int(admission.reused))
        elif int(result.source) == FILLERS + 1 and not admission.decode:
            reused[True].append(int(admission.host))
    return Found(len(ledger.plays), max(reused[False]), max(reused[True]))


def main() -> None:
    instances.namespace = lambda sim, lane, ordinal: 0
    # What would see it, as its own test shows.
    with (
        mock.patch.object(controlled_run, "refuse_wrong_namespaces", return_value=None),
        mock.patch.object(controlled_ledger, "refuse_wrong_namespaces", return_value=None),
    ):
        for each in DEPLOYMENTS:
            result = found(*each)
            print(*each, result.instances, result.first_reused, result.last_restored)


if __name__ == "__main__":
    main()
