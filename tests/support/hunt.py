"""A hunt for counterexamples with fresh seeds and a budget of time: what ``make fuzz`` and a stage of CI run.

    python tests/support/hunt.py --minutes 1 [--jobs 2] [--seed S] [pytest options]

Each process runs the property tests in an order and with examples of its own seed, round after round, until the time is
over. The seed of each round is printed before it starts; with ``--seed S`` the first round is made again, whatever the
time. A counterexample is also printed as Hypothesis prints it, and kept in ``.hypothesis`` (or under
``PLAYPROOF_EXAMPLES``), from where each later round tries it first.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Set by this script for the pytest that it starts; read by tests/conftest.py.
SEED, UNTIL = "PLAYPROOF_HUNT_SEED", "PLAYPROOF_HUNT_UNTIL"
SEED_BITS = 32


def _round(seed: int, until: float | None, options: list[str]) -> subprocess.Popen[bytes]:
    """Start one round of one process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
    # The fuzzing of files, which is not Hypothesis's, takes the same seed.
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "hunt", SEED: str(seed), "FUZZ_SEED": str(seed)}
    if until is not None:
        environment[UNTIL] = str(until)
    return subprocess.Popen(
        [*command, *(options or ["tests/properties"])],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def hunt(minutes: float, jobs: int, seed: int | None, options: list[str]) -> int:
    """Run rounds until the time is over; return 1 if any found something."""
    until = time.time() + 60.0 * minutes
    fresh = random.SystemRandom()
    failed = rounds = 0
    while True:
        seeds = [seed] if seed is not None else [fresh.getrandbits(SEED_BITS) for _ in range(jobs)]
        for each in seeds:
            print(f"seed {each}: python tests/support/hunt.py --seed {each}", flush=True)
        running = [_round(each, None if seed is not None else until, options) for each in seeds]
        for each, process in zip(seeds, running, strict=True):
            told, _ = process.communicate()
            rounds += 1
            if process.returncode:
                failed += 1
                print(told.decode(errors="replace"))
                print(f"found with seed {each}: python tests/support/hunt.py --seed {each}", flush=True)
            else:
                print(f"seed {each}: {told.decode(errors='replace').strip().splitlines()[-1]}", flush=True)
        if seed is not None or failed or time.time() >= until:
            break
    print(f"{rounds} rounds, {failed} of them found something")
    return 1 if failed else 0


def main() -> int:
    """Read the command line and hunt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="make the round of this seed again")
    arguments, options = parser.parse_known_args()
    return hunt(arguments.minutes, arguments.jobs, arguments.seed, options)


if __name__ == "__main__":
    sys.exit(main())
