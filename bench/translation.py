"""What it costs to check the translation of the public corpus before it runs, and what the check would find.

    python bench/translation.py [FOLDER]

FOLDER is the unpacked corpus; without it the archive beside the project is unpacked into a temporary folder
(``../shared/data/weka``, or under ``PLAYPROOF_DATA``). Printed are CPU seconds of loading, of compiling the graph to
arrays and of checking them, with and without the keys of answers, the best of some runs. The limit is a share of
loading. Every number but a key is looked at in every row. Of keys the sample is looked at, and what that finds is
reckoned: wrong keys of a number of requests that are spread at random are found unless none of them is in the sample.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from math import exp, lgamma
from pathlib import Path
from typing import Any

from playproof_kernel.checks import translation
from playproof_kernel.corpus.compiled import compile_graph

import playproof as pp

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = "kv-cache-tester-710traces.tar.xz"
SHARE_MAX = 0.03
REPEATS = 5
# As in `run.py`: the pool of the worker, in blocks of 64 tokens, and the context.
SETTINGS = translation.Settings(block_size=64, blocks=15_625, context=1_000_000, lanes=True, speedup=1.0)
SHARES = (0.01, 0.001, 0.0001)


def best(what: Callable[[], object]) -> float:
    """Return the least CPU seconds of some calls."""
    taken = []
    for _ in range(REPEATS):
        started = time.process_time()
        what()
        taken.append(time.process_time() - started)
    return min(taken)


def found(nodes: int, drawn: int, faulty: int) -> float:
    """Return how likely `drawn` of `nodes` have one at least of `faulty` of them."""

    def log_choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    missed = log_choose(nodes - faulty, drawn) - log_choose(nodes, drawn)
    return 1.0 - exp(missed)


def measure(folder: Path) -> int:
    """Print the figures and return the exit code."""
    pp.load(folder, compile="always")  # what is compiled is kept
    trace = pp.load(folder, compile="always")
    loading = best(lambda: pp.load(folder, compile="always"))
    graph, digest = trace.graph, trace.certificate.graph_digest
    print(f"{graph.node_count:,} requests, {graph.edge_count:,} edges, {int(graph.run_count.sum()):,} hash ids")
    print(f"loading               {loading:7.3f} s")
    code = 0
    for answers in (False, True):
        settings = SETTINGS._replace(answers=answers)
        compiled = compile_graph(graph, **settings._asdict())
        making = best(lambda settings=settings: compile_graph(graph, **settings._asdict()))  # type: ignore[misc]
        checking = best(
            lambda settings=settings, compiled=compiled: translation.check_translation(  # type: ignore[misc]
                graph, compiled, settings, digest
            )
        )
        share = checking / loading
        code |= share > SHARE_MAX
        what = "with answers" if answers else "prompts alone"
        print(f"{what:14} arrays  {making:7.3f} s   check {checking:7.3f} s   {share:6.2%} of loading")
    chosen = len(translation.sample(graph, digest))
    print(f"keys: {chosen:,} requests of the sample ({chosen / graph.node_count:.1%})")
    for part in SHARES:
        faulty = max(round(part * graph.node_count), 1)
        print(f"  wrong keys in {faulty:4} requests: found with {found(graph.node_count, chosen, faulty):.1%}")
    print("ok" if code == 0 else f"more than {SHARE_MAX:.0%} of loading")
    return code


def main() -> int:
    """Find the corpus and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    if folder is not None:
        return measure(folder)
    archive = Path(os.environ.get("PLAYPROOF_DATA", ROOT.parent / "shared" / "data")) / "weka" / ARCHIVE
    if not archive.exists():
        print(f"the public corpus is not at {archive}", file=sys.stderr)
        return 2
    # Python 3.11.0 to 3.11.3 know no filters.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(archive) as packed:
        packed.extractall(scratch, **options)
        return measure(Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
