"""Compiled and interpreted, the kernel gives equal ledgers (invariant 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

SCRIPT = Path(__file__).resolve().parent.parent / "support" / "interpreted_run.py"


def digests(count: int, disable: str) -> list[str]:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": disable}
    command = [sys.executable, str(SCRIPT), "0", str(count)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_compiled_equals_interpreted() -> None:
    count = settings().max_examples
    compiled = digests(count, disable="0")
    assert len(compiled) == count
    # Different corpora give different ledgers, or the comparison would show nothing.
    assert len({line.split()[1] for line in compiled}) > count * 0.9
    assert digests(count, disable="1") == compiled
