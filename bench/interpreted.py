"""How long work takes interpreted, beside what `playproof.machine_code` estimates: the basis of its constants.

    python bench/interpreted.py [TRACE ...]

Without traces, the bundled ones, and the small public ones where they lie beside the project (``../shared/data``, or
under ``PLAYPROOF_DATA``). An estimate should be too high rather than too low: the last column is measured to estimated.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import playproof as pp
from playproof import machine_code

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("PLAYPROOF_DATA", ROOT.parent / "shared" / "data"))
PUBLIC = ("weka/small/trace_0291.json", "claude_code/inline", "codex/skills", "codex/git-sync")

BLOCKS = 16_000
BIG: dict[str, Any] = {"blocks": BLOCKS, "context_length": 1_000_000}
HOST = pp.HostOffload(num_host_blocks=2 * BLOCKS, bytes_per_token=98_304, scope="dp_rank_local")
DEPLOYMENTS: dict[str, pp.Deployment | pp.Disaggregated] = {
    "vllm": pp.Deployment(**BIG),
    "sglang, page 1": pp.Deployment(backend="sglang", blocks=64 * BLOCKS, block_size=1, context_length=1_000_000),
    "vllm 1P1D": pp.Disaggregated(
        context_length=1_000_000, prefill=pp.PrefillRole(blocks=BLOCKS), decode=pp.DecodeRole(blocks=BLOCKS)
    ),
    "vllm, host memory": pp.Deployment(host_offload=HOST, **BIG),
    "vllm, 4, kv_router": pp.Deployment(workers=4, router=pp.KvRouter(), **BIG),
}


def main() -> None:
    """Print a row for each trace, and for each trace and deployment."""
    given = [Path(name) for name in sys.argv[1:]]
    traces = given or [ROOT / "examples" / "weka", *(DATA / name for name in PUBLIC if (DATA / name).exists())]
    load = pp.Load(lanes=4)
    print(f"  {'trace':20}  {'stage':20} {'measured s':>10} {'estimated s':>11} {'ratio':>6}")
    for path in traces:
        began = time.process_time()
        trace = pp.load(path, compile="never")
        _row(path.name, "reading, proving", time.process_time() - began, machine_code.reading_s([path]))
        for name, deployment in DEPLOYMENTS.items():
            began = time.process_time()
            pp.replay(trace, deployment, load, per_request=False, compile="never")
            estimate = machine_code.replay_s(trace.graph, deployment, load)
            _row(path.name, name, time.process_time() - began, estimate)


def _row(trace: str, stage: str, measured_s: float, estimated_s: float) -> None:
    print(f"  {trace[:20]:20}  {stage:20} {measured_s:10.2f} {estimated_s:11.2f} {measured_s / estimated_s:6.2f}")


if __name__ == "__main__":
    main()
