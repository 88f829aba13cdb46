"""Which stages of the work run compiled, and how machine code comes about without anyone waiting for it.

Compiling takes a minute once on a machine; small work takes less than that interpreted. So with the setting ``auto`` a
stage whose code is not kept, and that is estimated to be done sooner than the compiler would be, runs interpreted, and
a child process compiles meanwhile. Results are the same to the byte.

The estimates are rough, and made to be too high rather than too low; ``python bench/interpreted.py`` prints them beside
what was measured. A stage that was underestimated goes on with machine code as soon as the child has made it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playproof_native import modes, notices, store
from playproof_native.functions import ENTRIES, Entry
from playproof_native.modes import Mode, Setting

if TYPE_CHECKING:
    from playproof_spec.graph import Graph

    from playproof.deployment import AnyDeployment, Load

BYTES_PER_MB = 1e6

# Interpreted, on a processor of 2020: per megabyte of a trace read, lowered and proven; per request; per token of a
# prompt (a walk over its blocks); per output token, of which each pass makes one at least, so passes are no more.
READING_S_PER_MB = 2.5
REQUEST_S = 0.0035
PROMPT_TOKEN_S = 0.25e-6
OUTPUT_TOKEN_S = 12e-6
# Both roles of prefill/decode look at a request; host memory and routing by cached prefixes add to each.
SPLIT_FACTOR = 2.0
EXTRAS_FACTOR = 1.3
# What a compressed trace is at the most, to its size on disk.
EXPANSION = 8

# About what compiling takes: the readers and the proofs, and the kernel.
READING_PATIENCE_S = 8.0
REPLAY_PATIENCE_S = 40.0

MEANWHILE = (
    "no machine code is kept for this yet: running interpreted, with the same results, while it is compiled in the "
    "background for the next run"
)
WITHOUT = "machine code is neither kept nor can it be: running interpreted, with the same results"

# The entries that a replay calls, by what of the deployment and the load wants them.
KEYS_OF_PROMPTS = ("playproof_kernel.corpus.compiled._intern", "playproof_kernel.corpus.compiled._emit_keys")
LOOP = "playproof_kernel.runs.loop.run"
FINITE_START = "playproof_kernel.driver.play_driver.start"
CONTROLLED_START = "playproof_kernel.runs.phases.start"


# A trace of each kind that readers take: hash ids that are renumbered, and prompts that are split into streams; hash
# ids that name blocks across rows, more of them than the first table of their numbers holds.
SAMPLES = {
    "sample.json": b"""{"id": "sample", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
{"t": 0.0, "type": "n", "model": "m", "in": 70, "out": 1, "hash_ids": [1, 2], "api_time": 1.0, "think_time": 0.0},
{"t": 2.0, "type": "n", "model": "m", "in": 140, "out": 1, "hash_ids": [1, 3, 4], "api_time": 1, "think_time": 0}]}""",
    "sample.jsonl": b"""{"timestamp": 0, "input_length": 512000, "output_length": 1, "hash_ids": [%s]}"""
    % b",".join(b"%d" % number for number in range(1000)),
}


@dataclass(frozen=True, slots=True)
class ReadingJob:
    """What a process is to compile for reading: whatever reading these traces calls, and what other readers call."""

    paths: tuple[str, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What a process is to compile for a replay: whatever this deployment under this load calls."""

    deployment: AnyDeployment
    load: Load


Job = ReadingJob | ReplayJob


def reading_s(paths: Iterable[Path]) -> float:
    """Return the estimated seconds of reading, lowering and proving traces interpreted."""
    size = 0
    for path in paths:
        files = path.rglob("*") if path.is_dir() else (path,)
        for file in files:
            with suppress(OSError):
                if file.is_file():
                    size += file.stat().st_size * (EXPANSION if file.suffix.lower() in (".gz", ".zst") else 1)
    return size / BYTES_PER_MB * READING_S_PER_MB


def replay_s(graph: Graph, deployment: AnyDeployment, load: Load) -> float:
    """Return the estimated seconds of a replay interpreted; without a bound where a profile refills the lanes."""
    if load.profile is not None:
        return float("inf")
    once = (
        REQUEST_S * graph.node_count
        + PROMPT_TOKEN_S * float(graph.input_length.sum())
        + OUTPUT_TOKEN_S * float(graph.output_length.sum())
    )
    roles = deployment.roles
    extras = any(role.host_offload is not None for role in roles.values()) or deployment.router.to_spec() is not None
    return once * (SPLIT_FACTOR if len(roles) > 1 else 1.0) * (EXTRAS_FACTOR if extras else 1.0)


@contextmanager
def reading(setting: Setting | None, job: ReadingJob) -> Iterator[None]:
    """Run the readers and the proofs within the body as `setting` says, the environment's by default."""
    import playproof_lowering.names  # noqa: F401  # so that its entries are there
    import playproof_spec.certificate  # noqa: F401

    entries = [entry for entry in ENTRIES if not entry.name.startswith("playproof_kernel.") and _used_always(entry)]
    with _stage(setting, entries, reading_s(map(Path, job.paths)), READING_PATIENCE_S, job):
        yield


def _used_always(entry: Entry) -> bool:
    """Return whether every format needs it."""
    return entry.name.startswith("playproof_spec.") or entry.name == "playproof_lowering.names._scan"


@contextmanager
def replaying(setting: Setting | None, graph: Graph, job: ReplayJob) -> Iterator[None]:
    """Run the kernel within the body as `setting` says, the environment's by default."""
    import playproof_kernel  # noqa: F401

    wanted = {
        *KEYS_OF_PROMPTS,
        LOOP,
        FINITE_START if job.load.snapshot_seed is None else CONTROLLED_START,
    }
    entries = [entry for entry in ENTRIES if entry.name in wanted]
    assert len(entries) == len(wanted), "an entry of the kernel has another name now"
    with _stage(setting, entries, replay_s(graph, job.deployment, job.load), REPLAY_PATIENCE_S, job):
        yield


@contextmanager
def _stage(
    setting: Setting | None, entries: list[Entry], estimate_s: float, patience_s: float, job: Job
) -> Iterator[None]:
    setting = setting or modes.default_setting()
    mode = modes.choose(setting, entries, estimate_s, patience_s)
    if setting == "auto" and mode is not Mode.COMPILED and not all(store.has(entry) for entry in entries):
        mode = Mode.UNTIL_KEPT if _compile_meanwhile(entries[0], job) else Mode.INTERPRETED
    with modes.running(mode):
        yield


def _compile_meanwhile(entry: Entry, job: Job) -> bool:
    """Start a child process that compiles what `job` needs; return whether one could be."""
    if store.writable(entry) is None or not sys.executable:
        notices.say(WITHOUT)
        return False
    environment = {**os.environ, modes.VARIABLE: "always"}
    options: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            **options,
        )
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(pickle.dumps(job))
    except OSError:
        notices.say(WITHOUT)
        return False
    _children.append(child)
    notices.say(MEANWHILE)
    return True


# A child outlives this process. Were its object collected before, Python would warn that it still runs.
_children: list[subprocess.Popen[bytes]] = []


@contextmanager
def _compiling(told: Callable[[str], None] | None) -> Iterator[None]:
    """Run compiled, and tell which function is compiled."""
    from playproof_native import compiler

    if told is not None:
        compiler.compiling.append(told)
    try:
        with modes.running(Mode.COMPILED):
            yield
    finally:
        if told is not None:
            compiler.compiling.remove(told)


def warm(job: Job, told: Callable[[str], None] | None = None) -> None:
    """Compile all that `job` needs and that is not kept, and keep it.

    Parameters
    ----------
    job : ReadingJob or ReplayJob
    told : callable, optional
        Called with the name of each function before it is compiled.
    """
    with _compiling(told):
        if isinstance(job, ReadingJob):
            _warm_readers(job)
        else:
            from playproof_kernel.runs import warming

            warming.warm(job.deployment.to_spec(), job.load.to_spec())


def warm_online(deployment: AnyDeployment, told: Callable[[str], None] | None = None) -> None:
    """Compile what mock workers of `deployment` and the online driver call.

    Raises
    ------
    MissingExtra
        When ``playproof[online]`` is not installed.
    ValueError
        When no mock worker can be such a deployment.
    """
    from playproof.online import require_extra

    require_extra()
    from playproof_kernel.runs import warming

    with _compiling(told):
        warming.warm_live(deployment.to_spec())


def _warm_readers(job: ReadingJob) -> None:
    from playproof import api

    if job.paths:
        api.validate(job.paths, **job.options, compile="always")
    with tempfile.TemporaryDirectory(prefix="playproof-") as folder:
        for name, content in SAMPLES.items():
            sample = Path(folder) / name
            sample.write_bytes(content)
            api.validate(sample, compile="always")


def folder() -> Path:
    """Return where machine code is kept: the folder that is written, else the preferred one."""
    for candidate in store.candidates():
        if candidate.is_dir() and os.access(candidate, os.W_OK):
            return candidate
    return store.candidates()[0]


def main() -> None:
    """Compile what standard input asks for, as a child that nobody waits for; one such child at a time."""
    import filelock

    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(5)
    job = pickle.loads(sys.stdin.buffer.read())
    alone = filelock.FileLock(folder() / f"meanwhile-{type(job).__name__}", timeout=0)
    with notices.quiet(), suppress(filelock.Timeout), alone:
        warm(job)
