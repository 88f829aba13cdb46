"""Source mutants: put one fault at a time into a copy of the project, and see whether the tests named for it fail.

    python tests/mutants/mutate.py [--only NAME …] [--missing] [--jobs N] [--timeout S] [--minutes M] [--check]

Each fault of `source_faults` is put into a copy of the tracked files, never into the project itself, and the tests that
it names run there, interpreted, up to the first failure. A fault is *killed* when a test fails, *timed out* when the
tests take several times as long as without it, *broken* when the copy cannot even be imported, which counts as killed
too, and a *survivor* when all pass. What failed must pass without the fault. Results go to `results.json`, and
as a table to `results.md`; those of faults that were not tried this time stay. `--check` says only whether what is
written there is complete and good enough.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from mutant_scores import (  # noqa: E402
    BROKEN,
    KILLED,
    PAGE,
    SEEN,
    SURVIVED,
    TIMED_OUT,
    problems,
    read_results,
    score,
    write,
    write_page,
)
from source_faults import FAULTS, Fault  # noqa: E402

ROOMS = ("", "native", "spec", "lowering", "kernel", "reference")
# Seconds of the processor, which other work on the machine does not lengthen: a fault may make tests slower without
# being one that hangs.
TIMEOUT_FACTOR, TIMEOUT_LEAST_S = 5.0, 15.0
PLAIN_LIMIT_S, UNKNOWN_LIMIT_S = 600.0, 20.0
WALL_FACTOR = 60.0
TOOK = re.compile(r"^took (.+) s$", re.MULTILINE)
# Ended by the limit, or killed a moment later.
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
# A process that has imported the libraries, of which those that run tests are copies: half of the time of most tests.
FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = (
    "pytest",
    "hypothesis.stateful",
    "_hypothesis_pytestplugin",
    "numba.extending",
    "networkx",
    "z3",
    "msgspec",
)
RUNNING: set[Any] = set()
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# Of so many faults with the same tests, all of these run once without a fault; else only those that failed.
SHARED_BY = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run of tests."""

    verdict: str
    seconds: float
    by: str
    said: str


def stop_tests(number: int, _: object) -> None:
    """Let no tests go on when this process is told to end."""
    for process in tuple(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(128 + number)


def copy_of_the_project(folder: Path) -> None:
    """Copy the files that git tracks, or knows to be new, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def tests_of_a_copy(
    copy: Path, tests: tuple[str, ...], environment: dict[str, str], limit_s: int, said_to: Path
) -> None:
    """Run tests in `copy`, in a process of their own that has the libraries, and nothing of the project."""
    os.setsid()
    with said_to.open("wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    # What tests say of public traces must not decide: not everyone has them.
    for name in ("PLAYPROOF_DATA", "PLAYPROOF_REFERENCE", "PLAYPROOF_COMPILE", "PLAYPROOF_MONITOR"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    os.chdir(copy)
    sys.path[:] = [*environment["PYTHONPATH"].split(os.pathsep), *(path for path in sys.path if path != str(HERE))]
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    import pytest

    code = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"\ntook {sum(own.ru_utime + own.ru_stime for own in used):.1f} s", flush=True)
    os._exit(code)


def run_tests(copy: Path, fault: Fault, limit_s: float) -> Outcome:
    """Run the tests that `fault` names in `copy` as it is, for so many seconds of the processor."""
    environment = {
        "PYTHONPATH": os.pathsep.join(str(copy / room) for room in ROOMS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PLAYPROOF_CACHE_DIR": str(copy / ".code"),
        "HYPOTHESIS_PROFILE": fault.profile,
    }
    limit, said_to = max(int(limit_s), 1), copy.with_suffix(".said")
    started = time.monotonic()
    process = FORKS.Process(target=tests_of_a_copy, args=(copy, fault.tests, environment, limit, said_to))
    process.start()
    RUNNING.add(process)
    try:
        # Tests that wait for something take no time of the processor.
        process.join(WALL_FACTOR * limit)
        is_late = process.is_alive()
        if is_late:
            assert process.pid is not None, "it was started"
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
    finally:
        RUNNING.discard(process)
    said = said_to.read_text("utf-8", "replace")
    took = TOOK.search(said)
    code = process.exitcode
    if is_late or code in OUT_OF_TIME:
        return Outcome(TIMED_OUT, time.monotonic() - started if is_late else limit, "", said)
    verdict = {0: SURVIVED, 1: KILLED}.get(-1 if code is None else code, BROKEN)
    failed = FAILED_TEST.search(said)
    return Outcome(verdict, float(took.group(1)) if took else 0.0, failed.group(1) if failed else "", said)


class Runner:
    """Takes faults off a queue, one copy of the project a worker."""

    def __init__(self, faults: list[Fault], jobs: int, timeout_s: float | None, until: float) -> None:
        self.faults: queue.SimpleQueue[Fault] = queue.SimpleQueue()
        # Faults with the same tests one after the other; tests of properties, which take longer, come last.
        self.sharing = Counter((fault.tests, fault.profile) for fault in faults)
        for fault in sorted(faults, key=lambda f: ("properties" in str(f.tests), f.tests, f.profile, f.name)):
            self.faults.put(fault)
        self.jobs, self.timeout_s, self.until = jobs, timeout_s, until
        self.plain: dict[tuple[Any, ...], Outcome] = {}
        self.lock = threading.Lock()
        self.seconds = 0.0
        self.results: dict[str, dict[str, Any]] = {}
        self.wrong: list[str] = []

    def run(self) -> None:
        """Try all, or as many as there is time for."""
        with tempfile.TemporaryDirectory(prefix="mutants") as scratch:
            threads = []
            for number in range(self.jobs):
                copy = Path(scratch) / str(number)
                copy_of_the_project(copy)
                threads.append(threading.Thread(target=self._work, args=(copy,)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _work(self, copy: Path) -> None:
        while time.monotonic() < self.until:
            try:
                fault = self.faults.get_nowait()
            except queue.Empty:
                return
            try:
                self._try(copy, fault)
            except Exception as error:
                self.wrong.append(f"{fault.name}: {error!r}")

    def _try(self, copy: Path, fault: Fault) -> None:
        found = (copy / fault.file).read_text("utf-8").count(fault.text)
        if found != 1:
            self.wrong.append(f"{fault.name}: its text occurs {found} times in {fault.file}")
            return
        outcome = self._with_fault(copy, fault)
        if outcome.verdict != SURVIVED:
            plain = self._without_fault(copy, fault, outcome)
            if plain.verdict != SURVIVED:
                self.wrong.append(f"{fault.name}: its tests fail without it ({plain.verdict} {plain.by})\n{plain.said}")
                return
            if outcome.verdict == TIMED_OUT and outcome.seconds < TIMEOUT_FACTOR * plain.seconds:
                # The time that the tests take was not known.
                outcome = self._with_fault(copy, fault)
        with self.lock:
            self.seconds += outcome.seconds
            self.results[fault.name] = {
                "fingerprint": fault.fingerprint,
                "verdict": outcome.verdict,
                "by": outcome.by,
            }
            # At once, so that nothing is lost when the rest is not waited for.
            write(read_results() | {fault.name: self.results[fault.name]})
            mark = "" if (outcome.verdict in SEEN) != bool(fault.equivalent) else "   <---"
            print(f"{fault.name:14} {outcome.verdict:9} {outcome.seconds:6.1f} s  {outcome.by}{mark}", flush=True)
            if outcome.verdict == BROKEN:
                print("\n".join(outcome.said.splitlines()[-6:]), flush=True)

    def _with_fault(self, copy: Path, fault: Fault) -> Outcome:
        with self.lock:
            plain = self.plain.get((fault.tests, fault.profile))
        limit = UNKNOWN_LIMIT_S if plain is None else max(TIMEOUT_LEAST_S, TIMEOUT_FACTOR * plain.seconds)
        file = copy / fault.file
        whole = file.read_text("utf-8")
        try:
            file.write_text(whole.replace(fault.text, fault.instead), "utf-8")
            return run_tests(copy, fault, self.timeout_s or limit)
        finally:
            file.write_text(whole, "utf-8")

    def _without_fault(self, copy: Path, fault: Fault, outcome: Outcome) -> Outcome:
        """Run what failed without the fault, or all of its tests where others share them or nothing has a name."""
        if outcome.by and self.sharing[fault.tests, fault.profile] < SHARED_BY:
            failed = self._plain(copy, replace(fault, tests=(outcome.by,)))
            if failed.verdict == SURVIVED:
                return failed
        return self._plain(copy, fault)

    def _plain(self, copy: Path, fault: Fault) -> Outcome:
        key = (fault.tests, fault.profile)
        with self.lock:
            known = self.plain.get(key)
        if known is None:
            known = run_tests(copy, fault, PLAIN_LIMIT_S)
            print(f"{'without':14} {known.verdict:9} {known.seconds:6.1f} s  {' '.join(fault.tests)}", flush=True)
            with self.lock:
                self.plain[key] = known
                self.seconds += known.seconds
        return known


def main() -> int:
    """Run what is asked for; 0 when all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="faults whose name begins with one of these"
    )
    parser.add_argument("--missing", action="store_true", help="only those without a result, and survivors")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--timeout", type=float, help="seconds, instead of a multiple of what the tests take")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin none after this long")
    parser.add_argument("--check", action="store_true", help="try nothing, look at what is written")
    asked = parser.parse_args()
    results = read_results()
    if not asked.check:
        chosen = [f for f in FAULTS if not asked.only or any(f.name.startswith(name) for name in asked.only)]
        if asked.missing:
            chosen = [
                fault
                for fault in chosen
                if fault.name not in results or (not fault.equivalent and results[fault.name]["verdict"] == SURVIVED)
            ]
        os.nice(19)
        # Compiling the kernel anew for each fault would take a minute; interpreted it gives the same ledgers.
        os.environ["NUMBA_DISABLE_JIT"] = "1"
        FORKS.set_forkserver_preload(list(LIBRARIES))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop_tests)
        runner = Runner(chosen, asked.jobs, asked.timeout, time.monotonic() + 60.0 * asked.minutes)
        runner.run()
        print(f"{len(runner.results)} faults tried, {runner.seconds:.0f} s of the processor")
        results |= runner.results
        if runner.wrong:
            print("\n".join(runner.wrong), file=sys.stderr)
            return 2
    killed, possible = score(results)
    print(f"{killed} of {possible} faults seen ({killed / possible:.1%}); {len(FAULTS) - possible} equivalent")
    found = problems(results, PAGE.read_text("utf-8"))
    print("\n".join(found[:20]))
    if not found and not asked.check:
        write_page(results)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
