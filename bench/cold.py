"""The cold start: what compiling costs once on a machine, and how long a first report takes.

    python bench/cold.py

Each figure is of a process of its own with an empty folder for machine code, measured by the operating system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "examples" / "deployment.yaml"
TRACE = ROOT / "examples" / "weka"

# Of compiling the readers, the proofs and the kernel for aggregated vLLM; and of the first report's wall time.
COMPILE_CPU_S_MAX = 90.0
COMPILE_MB_MAX = 800.0
FIRST_REPORT_S_MAX = 20.0
REPEATS = 3


def run(*arguments: str, code: Path) -> tuple[float, float, float]:
    """Run `playproof` with its machine code in `code`; return CPU seconds, wall seconds and peak MB."""
    environment = {**os.environ, "PLAYPROOF_CACHE_DIR": str(code), "PLAYPROOF_COMPILE": "auto"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "playproof", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"playproof {' '.join(arguments)} ended with {process.returncode}")
    wall = time.perf_counter() - began
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def cold_start() -> list[tuple[str, float, str, float]]:
    """Return what was measured: a label, the value, its unit, and its limit."""
    with tempfile.TemporaryDirectory() as folder:
        cpu, _, peak = run("warm", "--config", str(CONFIG), code=Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        replay = ("replay", str(TRACE), "--config", str(CONFIG))
        # A child of the first would still compile while the second begins: each has a folder of its own.
        first = min(run(*replay, code=Path(folder) / str(number))[1] for number in range(REPEATS))
    return [
        ("compiling for aggregated vLLM", cpu, "CPU s", COMPILE_CPU_S_MAX),
        ("peak memory while compiling", peak, "MB", COMPILE_MB_MAX),
        (f"first report, nothing kept (best of {REPEATS})", first, "s", FIRST_REPORT_S_MAX),
    ]


def main() -> None:
    """Print the figures; leave with 1 when a limit is not kept."""
    broken = False
    for label, value, unit, limit in cold_start():
        print(f"  {label:44} {value:8.2f} {unit:5}   (limit {limit:g})")
        broken |= value > limit
    if broken:
        sys.exit("a limit is not kept")


if __name__ == "__main__":
    main()
