"""What routing by cached prefixes brings, and what it costs: the Weka corpus behind either router.

    python bench/routing.py CORPUS [--workers 4] [--lanes 32] [--repeats 3] [--host-blocks 0]

CORPUS is the folder of the unpacked corpus (see `run.py`). Each deployment is replayed behind round robin and behind
the KV router by turns in one process, and the best of the replay times is compared; the other figures are exact.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

TOKENS = 1_000_000
KV_BYTES_PER_TOKEN = 98_304
GBPS = 32.0


def deployments_of(pp: Any, workers: int, host_blocks: int) -> dict[str, Any]:
    """Return the deployments to compare, by name, each a function of its router."""
    host = None
    if host_blocks:
        links = {"d2h_bandwidth_gbps": GBPS, "h2d_bandwidth_gbps": GBPS}
        host = pp.HostOffload(num_host_blocks=host_blocks, bytes_per_token=KV_BYTES_PER_TOKEN, **links)
    role = {"workers": workers, "blocks": TOKENS // 64, "block_size": 64, "host_offload": host}
    common = {"context_length": TOKENS}
    roles = {"prefill": pp.PrefillRole(**role), "decode": pp.DecodeRole(**role)}
    transfer = pp.Transfer(bytes_per_token=KV_BYTES_PER_TOKEN, bandwidth_gb_per_second=50.0)
    made = {
        "vLLM": lambda router: pp.Deployment(**common, **role, router=router),
        "vLLM P/D": lambda router: pp.Disaggregated(**common, **roles, transfer=transfer, router=router),
    }
    if not host_blocks:
        pages = {"workers": workers, "blocks": TOKENS, "block_size": 1}
        made["SGLang"] = lambda router: pp.Deployment(backend="sglang", **common, **pages, router=router)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--host-blocks", type=int, default=0, help="host memory of each worker, in blocks")
    options = parser.parse_args()

    from playproof_kernel import simulate

    import playproof as pp

    trace = pp.load(options.corpus)
    load = pp.Load(lanes=options.lanes)
    print(f"{'':10}{'router':>13}{'reuse':>8}{'TTFT ms':>9}{'E2E s':>8}{'run h':>7}{'replay s':>10}")
    for name, deployment_of in deployments_of(pp, options.workers, options.host_blocks).items():
        routers = {"round_robin": pp.RoundRobin(), "kv_router": pp.KvRouter()}
        best = dict.fromkeys(routers, float("inf"))
        rows: dict[str, dict[str, Any]] = {}
        for _ in range(options.repeats + 1):
            for policy, router in routers.items():
                deployment = deployment_of(router)
                started = time.perf_counter()
                ledger = simulate(trace, deployment.to_spec(), load.to_spec())
                if policy in rows:  # the first run compiles, or loads what was compiled
                    best[policy] = min(best[policy], time.perf_counter() - started)
                else:
                    rows[policy] = pp.Report(trace, ledger, deployment, load).to_dict()
        for policy, row in rows.items():
            figures = (row["first_admission_prefix_cache_reused_ratio"], row["mean_ttft_ms"])
            print(f"{name:10}{policy:>13}{figures[0]:8.3f}{figures[1]:9.0f}", end="")
            print(f"{row['mean_e2e_latency_ms'] / 1000:8.2f}{row['duration_ms'] / 3.6e6:7.2f}{best[policy]:10.2f}")
            name = ""


if __name__ == "__main__":
    main()
