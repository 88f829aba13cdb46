"""Runs on what is registered here and nowhere else; prints what each request went through, in milliseconds.

    python tests/seams/seam_runs.py

A process of its own, since a choice is registered before the first run.
"""

from __future__ import annotations

import json
from typing import Any

from least_loaded import LeastLoaded
from per_token import PER_TOKEN
from playproof_kernel import simulate
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, Timing, WorkerSpec
from playproof_spec.sketch import sketch
from static_batching import STATIC

MS = 1_000_000


def row(name: str, tokens: int, output: int, at_ms: float = 0.0) -> dict[str, Any]:
    return {
        "request_id": name,
        "play_id": name,
        "input_length": tokens,
        "output_length": output,
        "not_before_ms": at_ms,
    }


ROWS = [row("a", 8, 3), row("b", 4, 1), row("c", 4, 2, 1.0), row("d", 40, 1, 1.0)]
FIXED = Timing(prefill_ns=10 * MS, decode_ns=2 * MS)
EACH = Timing(PER_TOKEN, prefill_ns=1 * MS, decode_ns=2 * MS)

RUNS = {
    # Of 8 pages of 4 tokens `a` takes 3 and `b` 2; `d` would want 11.
    "static": DeploymentSpec(1, WorkerSpec(8, 4, timing=FIXED, backend=STATIC), 100),
    "static, two seats": DeploymentSpec(1, WorkerSpec(32, 4, max_sequences=2, timing=FIXED, backend=STATIC), 100),
    "per token": DeploymentSpec(1, WorkerSpec(32, 4, timing=EACH), 100),
    "least loaded": DeploymentSpec(2, WorkerSpec(32, 4, timing=FIXED), 100, router=LeastLoaded()),
    "all": DeploymentSpec(2, WorkerSpec(32, 4, timing=EACH, backend=STATIC), 100, router=LeastLoaded()),
}


def main() -> None:
    proven = prove(sketch(ROWS, block_size=4))
    for name, deployment in RUNS.items():
        ledger = simulate(proven, deployment, LoadSpec())
        told = {
            "state": ledger.node_state.tolist(),
            "worker": ledger.worker.tolist(),
            "first": (ledger.first_token_ns / MS).tolist(),
            "last": (ledger.terminal_ns / MS).tolist(),
        }
        print(json.dumps({"run": name, **told}))


if __name__ == "__main__":
    main()
