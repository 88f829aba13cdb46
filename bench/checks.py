"""Check runs with the independent checker, and say what it found and cost: the evidence behind docs/checking.md.

    python bench/checks.py [FOLDER...] [--reference ROOT] [--corpus FOLDER] [--only REGEX] [--verbose]

Without a FOLDER: the goldens of replays and run controls, every reference case beside the project
(``../shared/reference``, or under ``PLAYPROOF_REFERENCE``), with SGLang's rules and with the peer's, vLLM's scheduler
with each option of `references.OPTIONS`, the large traces, and the public Weka corpus on several deployments. For the
corpus the check's CPU seconds stand beside those of the replay.

The exit code is 1 when a rule is broken.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import references
import run as benchmarks

import playproof as pp
from playproof.checking import Verdict, check_lines

ROOT = Path(__file__).resolve().parent.parent
REFERENCES = ("cases", "ordinary", "router", "sglang_scheduler", "vllm_scheduler")
LARGE = ("scale/w40", "scale/mooncake3000")
REPEATS = 3


@dataclass(slots=True)
class Sum:
    """What the checks of one folder came to."""

    name: str
    runs: int = 0
    lines: int = 0
    facts: int = 0
    refused: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, name: str, verdict: Verdict) -> None:
        """Count one run."""
        self.runs += 1
        self.lines += verdict.lines
        self.facts += verdict.facts
        if not verdict.ok:
            rules = ", ".join(f"{rule.code} ×{rule.broken}" for rule in verdict.rules if rule.broken)
            self.broken.append(f"{name}: {rules}\n" + "\n".join(f"      {item}" for item in verdict.findings.items[:8]))

    def show(self) -> None:
        """Print it."""
        print(
            f"{self.name}: {self.runs - len(self.broken)} of {self.runs} runs pass, {self.lines:,} lines, "
            f"{self.facts:,} facts" + (f"; {self.refused} refused before they ran" if self.refused else ""),
            flush=True,
        )
        for text in self.broken:
            print(f"  {text}", flush=True)


def checked(report: pp.Report) -> Verdict:
    """Check a report and its lines as they are written."""
    document = msgspec.json.decode(report.to_json())
    lines = msgspec.json.Encoder().encode_lines(list(report.request_dicts()))
    return check_lines(report.proven.graph, lines, document, document["deployment"], document["load"])


def replayed(config: Path, overrides: Sequence[str] = (), **arguments: Any) -> Verdict | None:
    """Replay a configuration and check it; None when it is refused by name."""
    try:
        return checked(pp.run(config, overrides=overrides, **arguments))
    except (pp.InvalidDeployment, pp.InvalidTrace):
        return None


def count(sums: Sum, name: str, verdict: Verdict | None) -> None:
    """Add a run, or that it was refused."""
    if verdict is None:
        sums.refused += 1
    else:
        sums.add(name, verdict)


def variants(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the overrides with which the cases of a reference folder are replayed, by name."""
    if folder.name == "vllm_scheduler":
        yield from references.OPTIONS.items()
        return
    yield "", ()
    if folder.name in ("cases", "sglang_scheduler"):
        yield "rules: aisimulate", ("rules",)


def sglang_roles(config: Path) -> list[str]:
    """Return the roles of a configuration of SGLang workers, for settings of each."""
    text = config.read_text(encoding="utf-8")
    if not re.search(r"^\s*backend:\s*sglang", text, re.MULTILINE):
        return []
    return [role for role in ("aggregated", "prefill", "decode") if re.search(rf"^\s*{role}:", text, re.MULTILINE)]


def check_folder(folder: Path, only: str) -> Iterator[Sum]:
    """Check every case of a folder."""
    for variant, overrides in variants(folder):
        sums = Sum(f"{folder.name} {variant}".strip())
        for config in sorted(folder.glob("*/config.yaml")):
            if not re.search(only, config.parent.name):
                continue
            given = overrides
            if overrides == ("rules",):
                roles = sglang_roles(config)
                if not roles:
                    continue
                given = tuple(f"engine.workers.{role}.scheduler.rules=aisimulate" for role in roles)
            count(sums, config.parent.name, replayed(config, given))
        yield sums


def check_large(folder: Path, only: str) -> Sum:
    """Check every deployment of a large trace."""
    sums = Sum(folder.name)
    with tempfile.TemporaryDirectory() as scratch:
        trace = references.unpacked(folder, Path(scratch))
        for config in sorted(folder.glob("*.yaml")):
            if re.search(only, config.stem):
                count(sums, config.stem, replayed(config, paths=trace))
    return sums


def check_goldens(only: str) -> Iterator[Sum]:
    """Check the goldens of replays and of run controls."""
    for kind in ("replay", "controls"):
        sums = Sum(f"goldens {kind}-*")
        for config in sorted((ROOT / "tests" / "goldens").glob(f"{kind}-*/config.yaml")):
            if re.search(only, config.parent.name):
                count(sums, config.parent.name, replayed(config))
        yield sums


# The corpus ---------------------------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least CPU time that `work` takes in some runs, and its result."""
    best, result = float("inf"), None
    for _ in range(REPEATS):
        started = time.process_time()
        result = work()
        best = min(best, time.process_time() - started)
    return best, result


def corpus_loads() -> list[tuple[str, Any, Any]]:
    """Return (name, deployment, load) of what the corpus is replayed on."""
    lanes = pp.Load(lanes=benchmarks.LANES)
    loads = []
    for engine in (benchmarks.VLLM, ("sglang", 64)):
        for workers, pair in ((1, False), (4, False), (1, True)):
            name = f"{engine[0]}, {f'{workers}P{workers}D' if pair else workers} workers, {benchmarks.LANES} lanes"
            loads.append((name, benchmarks.deployment_of(pp, engine, workers, pair, False, ""), lanes))
    loads.append(
        ("vllm, 4 workers, no lanes", benchmarks.deployment_of(pp, benchmarks.VLLM, 4, False, False, ""), pp.Load())
    )
    hosted = benchmarks.deployment_of(pp, benchmarks.VLLM, 4, False, False, "cluster_shared")
    loads.append(("vllm, 4 workers, shared host memory", hosted, lanes))
    for warmup in (False, True):
        hour = pp.Load(
            lanes=benchmarks.LANES, snapshot_seed=benchmarks.PROFILE_SEED, warmup=warmup, profile=pp.Profile()
        )
        deployment = benchmarks.deployment_of(pp, benchmarks.VLLM, 1, False, True, "")
        loads.append((f"vllm, an hour of profile, {'warmed' if warmup else 'cold'}", deployment, hour))
    return loads


def check_corpus(corpus: Path, only: str) -> Sum:
    """Replay the corpus and check it; print what either costs."""
    sums = Sum("the corpus")
    trace = pp.load(corpus)
    print(f"The corpus: {trace.graph.node_count:,} requests; CPU seconds, the best of {REPEATS}")
    print("  deployment                                   lines      facts   replay    check   ratio")
    for name, deployment, load in corpus_loads():
        if not re.search(only, name):
            continue
        replay_s, report = cpu_seconds(partial(pp.replay, trace, deployment, load))
        lines = msgspec.json.Encoder().encode_lines(list(report.request_dicts()))
        document = msgspec.json.decode(report.to_json())
        settings = (document["deployment"], document["load"])
        check_s, verdict = cpu_seconds(partial(check_lines, trace.graph, lines, document, *settings))
        sums.add(name, verdict)
        times = f"{replay_s:7.2f}  {check_s:7.2f}  {check_s / replay_s:6.2f}"
        print(f"  {name:42} {verdict.lines:7,}  {verdict.facts:9,}  {times}", flush=True)
    return sums


def main() -> None:
    """Check the folders named, or everything; leave with 1 when a rule is broken."""
    parser = argparse.ArgumentParser(description="Check runs with the independent checker.")
    parser.add_argument("folders", nargs="*", help="goldens, corpus, folders of the reference results, or paths")
    parser.add_argument("--reference", type=Path, default=references.reference_root(), help="where the folders lie")
    parser.add_argument("--corpus", type=Path, help="folder with the unpacked public Weka corpus")
    parser.add_argument("--only", default="", help="a regular expression that names of cases match")
    arguments = parser.parse_args()
    os.environ.setdefault("PLAYPROOF_COMPILE", "always")
    broken = False
    for name in arguments.folders or ("goldens", *REFERENCES, *LARGE, "corpus"):
        if not present(name, arguments):
            sys.exit(f"{name} is not at {arguments.reference}: set PLAYPROOF_REFERENCE, or name other folders")
        for sums in checks_of(name, arguments):
            sums.show()
            broken = broken or bool(sums.broken)
    sys.exit(1 if broken else 0)


def present(name: str, arguments: argparse.Namespace) -> bool:
    """Whether there is something to check: no runs are no evidence."""
    return name in ("goldens", "corpus") or Path(name).is_dir() or (arguments.reference / name).is_dir()


def checks_of(name: str, arguments: argparse.Namespace) -> Iterator[Sum]:
    """Yield what the checks of one folder came to."""
    if name == "goldens":
        yield from check_goldens(arguments.only)
    elif name == "corpus":
        with tempfile.TemporaryDirectory() as scratch:
            corpus = benchmarks.find_corpus(arguments.corpus, Path(scratch))
            if corpus is not None:
                yield check_corpus(corpus, arguments.only)
    else:
        folder = Path(name) if Path(name).is_dir() else arguments.reference / name
        if name in LARGE:
            yield check_large(folder, arguments.only)
        else:
            yield from check_folder(folder, arguments.only)


if __name__ == "__main__":
    main()
