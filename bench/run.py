"""Benchmarks: what `make bench` prints.

    python bench/run.py [--corpus FOLDER] [--quick]

1. The public Weka corpus (710 plays, 49,334 requests): reading, lowering and proving; the replay with 32 lanes on one
   worker; peak memory. Each in a process of its own, compiled code cached.
2. Growth with the corpus: the same plays once, twice and four times.
3. Growth within a play: one play of 1,000, 2,000 and 4,000 requests, lowered.
4. Deployments: the corpus on several of them, with 32 lanes each no slower than twice the first, aggregated vLLM.
5. Host memory: the corpus on vLLM workers with host memory of their own and shared, each no slower than twice the same
   deployment without.
6. Run controls: an hour of profile from a snapshot on, cold and warmed, on aggregated workers and prefill/decode.
7. The cold start, as `bench/cold.py` has it.

The corpus is looked for beside the project (``../shared/data/weka``, or under ``PLAYPROOF_DATA``) and unpacked into a
temporary folder; without it only part 3 runs. Absolute times depend on the machine; the ratios are what to watch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import cold

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = "kv-cache-tester-710traces.tar.xz"
# The pool of each worker, in tokens, and the context: they fit the largest request of the corpus.
TOKENS = 1_000_000
BLOCK_SIZE = 64
# Of prefill/decode: what a token's KV weighs, and how fast it moves.
KV_BYTES_PER_TOKEN = 98_304
KV_GB_PER_SECOND = 50.0
# Backend and block size.
Engine = tuple[str, int]
VLLM = ("vllm", BLOCK_SIZE)
LANES = 32
LIMITS = {"load_s": 20.0, "replay_s": 8.0, "peak_mb": 1536.0}
CORPUS_GROWTH_MAX = 1.3
PLAY_GROWTH_MAX = 1.5
# Replay time of a deployment, to that of one aggregated vLLM worker.
DEPLOYMENT_RATIO_MAX = 2.0
# Host memory behind each worker, or as much for each in one pool: twice the device memory; and the replay time with it,
# to that of the same deployment without.
HOST_BLOCKS = 32_768
HOST_RATIO_MAX = 2.0
SCOPES = ("dp_rank_local", "cluster_shared")
# Other work on the machine only ever adds time, so the best of some runs is the one to compare.
REPEATS = 3
# Of an hour of profile: a pool with room for the conversations of all lanes at once, and the memory that it may take
# without capture.
PROFILE_TOKENS = 8_388_608
PROFILE_MB = 1536.0
PROFILE_SEED = 42


def deployment_of(pp: Any, engine: Engine, workers: int, pair: bool, profile: bool, scope: str) -> Any:
    """Return a deployment of `workers` aggregated workers, or of as many in each of the two roles.

    `scope` is that of their host memory, if not empty.
    """
    backend, size = engine
    role = {"workers": workers, "blocks": TOKENS // size, "block_size": size}
    if scope:
        sharers = workers * (2 if pair else 1) if scope == "cluster_shared" else 1
        blocks = HOST_BLOCKS * sharers
        role["host_offload"] = pp.HostOffload(num_host_blocks=blocks, bytes_per_token=KV_BYTES_PER_TOKEN, scope=scope)
    if profile:
        role |= {"blocks": PROFILE_TOKENS // size, "timing": pp.PolynomialTiming()}
    if not pair:
        return pp.Deployment(backend=backend, context_length=TOKENS, **role)
    return pp.Disaggregated(
        backend=backend,
        context_length=TOKENS,
        prefill=pp.PrefillRole(**role),
        decode=pp.DecodeRole(**role),
        transfer=pp.Transfer(bytes_per_token=KV_BYTES_PER_TOKEN, bandwidth_gb_per_second=KV_GB_PER_SECOND),
    )


def measure(
    path: str, lanes: int | None, workers: int, replay: bool, engine: Engine, pair: bool, profile: str, scope: str
) -> dict[str, Any]:
    """Load (and replay) in this process and return the figures; `profile` is "cold" or "warm" for an hour of it."""
    import resource

    from playproof_kernel import simulate

    import playproof as pp

    deployment = deployment_of(pp, engine, workers, pair, bool(profile), scope)
    load = pp.Load(lanes=lanes)
    if profile:
        load = pp.Load(lanes=lanes, snapshot_seed=PROFILE_SEED, warmup=profile == "warm", profile=pp.Profile())
    warm_up(pp, simulate, deployment)
    started = time.perf_counter()
    trace = pp.load(path)
    loaded = time.perf_counter()
    figures: dict[str, Any] = {"requests": trace.graph.node_count, "load_s": loaded - started}
    if profile:
        report = pp.replay(trace, deployment, load, per_request=False).to_dict()
        figures["replay_s"] = report["wall_time_ms"] / 1000
        names = ("valid", "num_requests", "total_trajectories", "forward_passes", "mean_ttft_ms")
        figures |= {name: report[name] for name in (*names, "first_admission_prefix_cache_reused_ratio")}
    elif replay:
        ledger = simulate(trace, deployment.to_spec(), load.to_spec())
        figures["replay_s"] = time.perf_counter() - loaded
        report = pp.Report(trace, ledger, deployment, load).to_dict()
        figures |= {name: report[name] for name in ("completed_trajectories", "total_trajectories", "forward_passes")}
        figures["host_reused"] = int((ledger.admission_host_reused > 0).sum())
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def warm_up(pp: Any, simulate: Any, deployment: Any) -> None:
    """Load every compiled function from the cache (or compile it), so that compilation is not measured."""
    trace = pp.load(ROOT / "examples" / "weka")
    simulate(trace, deployment.to_spec(), pp.Load(lanes=2).to_spec())


def in_a_process(
    path: Path,
    lanes: int | None = LANES,
    workers: int = 1,
    replay: bool = True,
    engine: Engine = VLLM,
    pair: bool = False,
    profile: str = "",
    scope: str = "",
) -> dict[str, Any]:
    """Measure in a fresh process, since peak memory is a process's."""
    shape = {"lanes": lanes, "workers": workers, "engine": engine, "pair": pair, "scope": scope}
    call = json.dumps({"path": str(path), "replay": replay, "profile": profile, **shape})
    result = subprocess.run([sys.executable, __file__, "--measure", call], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"a benchmark process failed:\n{result.stderr}")
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


def find_corpus(given: Path | None, scratch: Path) -> Path | None:
    """Return a folder with the unpacked corpus, or None with a word on where it was looked for."""
    if given is not None:
        return given
    data = Path(os.environ.get("PLAYPROOF_DATA", ROOT.parent / "shared" / "data"))
    archive = data / "weka" / ARCHIVE
    if not archive.exists():
        print(f"The public corpus is not at {archive}; parts 1, 2 and 4 are skipped.\n")
        return None
    # Python 3.11.0 to 3.11.3 know no filters.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as packed:
        packed.extractall(scratch / "corpus", **options)
    return scratch / "corpus"


def copies(corpus: Path, scratch: Path, count: int) -> Path:
    """Return a folder with the corpus' files `count` times over, as hard links: the same plays under other names."""
    folder = scratch / f"times{count}"
    for number in range(count):
        for file in sorted(corpus.rglob("*.json")):
            target = folder / f"copy{number}" / file.relative_to(corpus)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
    return folder


def long_play(requests: int) -> dict[str, Any]:
    """Return a Weka play of `requests` requests: prompts grow and are compacted, every tenth entry is a subagent.

    Prompts stay bounded, so that bytes grow with requests and not with their square.
    """
    chance = random.Random(requests)
    entries: list[dict[str, Any]] = []
    fresh, made, now = 1, 0, 0.0

    def request(at: float, hashes: list[int]) -> dict[str, Any]:
        size = len(hashes) * BLOCK_SIZE + chance.randrange(BLOCK_SIZE)
        shape = {"t": round(at, 3), "type": "n", "model": "m", "in": size, "out": 200, "api_time": 2.0}
        return shape | {"hash_ids": list(hashes), "input_types": ["text"], "output_types": ["text"], "stop": "tool_use"}

    prompt: list[int] = []
    while made < requests:
        if len(prompt) > 400:
            prompt = prompt[:40]
        prompt += range(fresh, fresh + 8)
        fresh += 8
        entries.append(request(now, prompt))
        made += 1
        now += 3.0
        if len(entries) % 10 == 0 and made + 3 <= requests:
            own = list(range(fresh, fresh + 30))
            fresh += 30
            nested = [request(3.0 * turn, own[: 10 + 10 * turn]) for turn in range(3)]
            marker = {"type": "subagent", "agent_id": f"a{made}", "subagent_type": "Explore", "status": "completed"}
            entries.append({"t": round(now + 9.0, 3), **marker, "duration_ms": 9000, "requests": nested})
            made += 3
            now += 10.0
    return {"id": "long", "models": ["m"], "block_size": BLOCK_SIZE, "hash_id_scope": "local", "requests": entries}


def lowering_seconds(file: Path, repeats: int) -> tuple[int, float]:
    """Return (requests, best time to read and lower `file`)."""
    from playproof_lowering import load_graph

    best, nodes = float("inf"), 0
    for _ in range(repeats):
        started = time.perf_counter()
        lowered = load_graph([file])
        best = min(best, time.perf_counter() - started)
        if lowered.graph is None or lowered.findings.errors:
            sys.exit(f"the benchmark's own play has findings: {[str(item) for item in lowered.findings.items]}")
        nodes = lowered.graph.node_count
    return nodes, best


class Limits:
    """Collects the limits that were not kept, for the exit code and a last word."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def check(self, what: str, value: float, limit: float) -> str:
        """Note a breach of `limit`; return how to print it."""
        if value > limit:
            self.broken.append(f"{what}: {value:.2f}, limit {limit:g}")
        return f"(limit {limit:g})"


def show_growth_within_a_play(scratch: Path, limits: Limits) -> None:
    print("Growth within a play (reading and lowering one play)")
    print("  requests    total ms    µs a request    ratio")
    files = [scratch / f"play{size}.json" for size in (1000, 2000, 4000)]
    for file, size in zip(files, (1000, 2000, 4000), strict=True):
        file.write_text(json.dumps(long_play(size)))
    measured = [lowering_seconds(file, 7 * REPEATS) for file in files]
    first = measured[0][1] / measured[0][0]
    for nodes, seconds in measured:
        ratio = seconds / nodes / first
        limit = limits.check(f"growth within a play of {nodes} requests", ratio, PLAY_GROWTH_MAX)
        print(f"  {nodes:8,}  {seconds * 1e3:10.1f}  {seconds / nodes * 1e6:14.1f}  {ratio:7.2f}   {limit}")
    print()


def show_growth_with_the_corpus(corpus: Path, scratch: Path, limits: Limits) -> None:
    print(f"Growth with the corpus (the same plays once, twice, four times; {LANES} lanes, one worker)")
    print("  plays × requests      load µs a request  ratio    replay µs a request  ratio")
    counts = (1, 2, 4)
    folders = [copies(corpus, scratch, count) for count in counts]
    # Round by round, so that a slow spell of the machine does not fall on one size.
    rounds = [[in_a_process(folder) for folder in folders] for _ in range(REPEATS)]
    base: dict[str, float] = {}
    for number, count in enumerate(counts):
        requests = rounds[0][number]["requests"]
        cells = []
        for name in ("load_s", "replay_s"):
            each = min(figures[number][name] for figures in rounds) / requests * 1e6
            ratio = each / base.setdefault(name, each)
            limit = limits.check(f"{name} a request at {count}×", ratio, CORPUS_GROWTH_MAX)
            cells.append((each, ratio))
        (load, load_ratio), (replay, replay_ratio) = cells
        print(f"  {count}×  {requests:9,} {load:24.1f} {load_ratio:6.2f} {replay:22.1f} {replay_ratio:6.2f}   {limit}")
    print()


def replay_seconds(figures: dict[str, Any]) -> float:
    return float(figures["replay_s"])


def show_deployments(corpus: Path, limits: Limits) -> None:
    print(f"Deployments (the whole corpus; each worker with a pool of {TOKENS:,} tokens)")
    print("  engine  block  workers  lanes    plays completed    forward passes    replay s    ratio")
    sglang = [("sglang", size) for size in (1, BLOCK_SIZE)]
    rows: list[tuple[Engine, int | None, int, bool]] = [(VLLM, LANES, 1, False), (VLLM, LANES, 4, False)]
    rows += [(VLLM, lanes, workers, False) for lanes in (8, None) for workers in (1, 4)]
    rows += [(engine, LANES, workers, False) for engine in sglang for workers in (1, 4)]
    rows += [(engine, LANES, workers, True) for engine in (VLLM, *sglang) for workers in (1, 4)]
    base = min((in_a_process(corpus) for _ in range(REPEATS)), key=replay_seconds)
    base_s = replay_seconds(base)
    for number, (engine, lanes, workers, pair) in enumerate(rows):
        figures = base if number == 0 else in_a_process(corpus, lanes, workers, engine=engine, pair=pair)
        repeats = 1
        while lanes == LANES and replay_seconds(figures) > DEPLOYMENT_RATIO_MAX * base_s and repeats < REPEATS:
            again = in_a_process(corpus, lanes, workers, engine=engine, pair=pair)
            figures = min(figures, again, key=replay_seconds)
            repeats += 1
        shape = f"{workers}P{workers}D" if pair else str(workers)
        name = f"{engine[0]}, block {engine[1]}, {shape} workers, {lanes} lanes"
        plays, all_plays = figures["completed_trajectories"], figures["total_trajectories"]
        limits.check(f"plays not completed on {name}", all_plays - plays, 0)
        ratio = figures["replay_s"] / base_s
        # Other lanes are other work: their time is shown, not judged.
        limit = limits.check(f"replay time of {name}", ratio, DEPLOYMENT_RATIO_MAX) if lanes == LANES else ""
        print(
            f"  {engine[0]:6}  {engine[1]:5}  {shape:>7}  {'none' if lanes is None else lanes:>5}"
            f"  {f'{plays} of {all_plays}':>17}  {figures['forward_passes']:16,}  {figures['replay_s']:10.2f}"
            f"  {ratio:7.2f}   {limit}".rstrip()
        )
    print()


def show_host_memory(corpus: Path, limits: Limits) -> None:
    """Deployments with host memory beside the same ones without, measured in turn."""
    print(f"Host memory (the whole corpus, {LANES} lanes; {HOST_BLOCKS:,} blocks a worker behind {TOKENS:,} tokens)")
    print("  workers           scope    plays completed    admissions with host reuse    replay s    ratio")
    for workers, pair in ((1, False), (2, False), (4, False), (8, False), (2, True), (4, True)):
        shape = f"{workers}P{workers}D" if pair else str(workers)
        best: dict[str, dict[str, Any]] = {}
        for scope in ("", *SCOPES) * REPEATS:
            figures = in_a_process(corpus, workers=workers, pair=pair, scope=scope)
            best[scope] = min(best.get(scope, figures), figures, key=replay_seconds)
        for scope, figures in best.items():
            name = f"{shape} workers, host memory: {scope or 'none'}"
            plays, all_plays = figures["completed_trajectories"], figures["total_trajectories"]
            limits.check(f"plays not completed on {name}", all_plays - plays, 0)
            ratio = replay_seconds(figures) / replay_seconds(best[""])
            limit = limits.check(f"replay time of {name}", ratio, HOST_RATIO_MAX) if scope else ""
            print(
                f"  {shape:>7}  {scope or 'none':>14}  {f'{plays} of {all_plays}':>17}  {figures['host_reused']:28,}"
                f"  {figures['replay_s']:10.2f}  {ratio:7.2f}   {limit}".rstrip()
            )
    print()


def show_profiles(corpus: Path, limits: Limits) -> None:
    """An hour of profile from a snapshot on; warmed, the cut plays find what they have done before in the caches."""
    print(f"Profiles (one hour, {LANES} lanes, polynomial timing, pools of {PROFILE_TOKENS:,} tokens, no capture)")
    print(
        "  engine  block  workers          plays  requests    forward passes   cached    TTFT ms    replay s  peak MB"
    )
    for engine, pair in ((VLLM, False), (VLLM, True), (("sglang", 1), False), (("sglang", 1), True)):
        cold, warm = (in_a_process(corpus, engine=engine, pair=pair, profile=kind) for kind in ("cold", "warm"))
        name = f"a profile on {engine[0]}, {'1P1D' if pair else 'aggregated'}"
        for kind, figures in (("cold", cold), ("warm", warm)):
            limits.check(f"{name}, {kind}: invalid runs", 0.0 if figures["valid"] else 1.0, 0)
            limit = limits.check(f"memory of {name}, {kind}", figures["peak_mb"], PROFILE_MB)
            plays, requests = figures["total_trajectories"], figures["num_requests"]
            print(
                f"  {engine[0]:6}  {engine[1]:5}  {'1P1D' if pair else '1':>7}  {kind}  {plays:7,}"
                f"  {requests:8,}  {figures['forward_passes']:16,}"
                f"  {figures['first_admission_prefix_cache_reused_ratio']:7.1%}  {figures['mean_ttft_ms']:9.1f}"
                f"  {figures['replay_s']:10.2f}  {figures['peak_mb']:7.0f}   {limit}"
            )
        limits.check(f"TTFT of {name}, warm to cold", warm["mean_ttft_ms"] / cold["mean_ttft_ms"], 1.0)
    print()


def show_corpus(corpus: Path, limits: Limits) -> None:
    runs = [in_a_process(corpus) for _ in range(REPEATS)]
    print(
        f"The corpus: {runs[0]['requests']:,} requests, {LANES} lanes, one worker, fixed timing, compiled code cached"
        f" (best of {REPEATS})"
    )
    labels = {"load_s": "reading, lowering, proving", "replay_s": "replay", "peak_mb": "peak memory"}
    for name, label in labels.items():
        value, unit = min(figures[name] for figures in runs), "MB" if name == "peak_mb" else "s"
        print(f"  {label:28} {value:8.2f} {unit:2}   {limits.check(label, value, LIMITS[name])}")


def show_cold_start(limits: Limits) -> None:
    print("The cold start (nothing kept)")
    for label, value, unit, limit in cold.cold_start():
        print(f"  {label:44} {value:8.2f} {unit:5}   {limits.check(label, value, limit)}")
    print()


def main() -> None:
    """Run the benchmarks, or one measurement of them; leave with 1 when a limit is not kept."""
    parser = argparse.ArgumentParser(description="Benchmarks of playproof.")
    parser.add_argument("--corpus", type=Path, help="folder with the unpacked public Weka corpus")
    parser.add_argument("--quick", action="store_true", help="leave out the table of deployments")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(**json.loads(arguments.measure))))
        return
    limits = Limits()
    # Hard links want one file system.
    with tempfile.TemporaryDirectory(dir=arguments.corpus.parent if arguments.corpus else None) as folder:
        scratch = Path(folder)
        show_cold_start(limits)
        show_growth_within_a_play(scratch, limits)
        corpus = find_corpus(arguments.corpus, scratch)
        if corpus is not None:
            show_growth_with_the_corpus(corpus, scratch, limits)
            if not arguments.quick:
                show_deployments(corpus, limits)
                show_host_memory(corpus, limits)
                show_profiles(corpus, limits)
            show_corpus(corpus, limits)
    if limits.broken:
        sys.exit("Not kept:\n  " + "\n  ".join(limits.broken))


if __name__ == "__main__":
    main()
