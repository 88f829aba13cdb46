"""What finding generated tokens in the cache changes on a corpus: `reuse_output: auto` beside `never`.

    python bench/answers.py CORPUS [--blocks N]

Prints a table for docs/fidelity.md: how many requests have an answer that a later prompt holds, and the figures of one
vLLM worker with 32 lanes, either way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from playproof_kernel.corpus.compiled import prompts_with_answers

import playproof as pp

LANES = 32
FIGURES = (
    ("prompt tokens reused at first admission", "first_admission_prefix_cache_reused_ratio", "{:.2%}"),
    ("prompt tokens computed", "committed_prefill_tokens", "{:,.0f}"),
    ("TTFT, mean ms", "mean_ttft_ms", "{:,.1f}"),
    ("trajectory E2E, mean s", "mean_trajectory_e2e_latency_ms", "{:,.0f}"),
    ("duration, s", "duration_ms", "{:,.0f}"),
)


def main() -> None:
    """Replay the corpus both ways and print the table."""
    parser = argparse.ArgumentParser(description="What finding answers in the cache changes.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--blocks", type=int, default=15_625, help="of 64 tokens, in the pool of the worker")
    arguments = parser.parse_args()
    trace = pp.load(arguments.corpus)
    held = prompts_with_answers(trace.graph) != np.arange(trace.graph.node_count)
    outputs = trace.graph.output_length
    print(f"{int(held.sum()):,} of {len(held):,} requests have an answer that a later prompt holds;")
    print(f"{int(outputs[held].sum()):,} of {int(outputs.sum()):,} generated tokens.\n")
    reports = {}
    for choice in ("never", "auto"):
        deployment = pp.Deployment(blocks=arguments.blocks, reuse_output=choice)
        reports[choice] = pp.replay(trace, deployment, pp.Load(lanes=LANES), per_request=False).to_dict()
    print("| | `never` | `auto` |\n|---|---:|---:|")
    for name, figure, shape in FIGURES:
        scale = 1000.0 if name.endswith(" s") else 1
        print(f"| {name} | " + " | ".join(shape.format(report[figure] / scale) for report in reports.values()) + " |")


if __name__ == "__main__":
    main()
