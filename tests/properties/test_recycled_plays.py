"""No hit, in device or host memory, crosses a recycled play (obligation M6): on any number of workers, in both scopes.

The explicit case shows its own edge: without the namespaces that keep play instances apart the very same replays do
find in host memory what an earlier instance left there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from recycled import DEPLOYMENTS, PROMPT, SIZE, found
from recycled_machine import RecycledPlays

SCRIPT = Path(__file__).resolve().parent.parent / "support" / "recycled.py"
INSTANCES_LEAST = 6


@pytest.mark.parametrize(("shared", "split", "workers"), DEPLOYMENTS)
def test_a_recycled_play_finds_nothing_of_an_earlier_instance(shared: bool, split: bool, workers: int) -> None:
    result = found(shared, split, workers)
    assert result.instances >= INSTANCES_LEAST
    assert result.first_reused == 0
    # And what it stored itself it does find, all but the block that is always computed.
    assert result.last_restored == (PROMPT - 1) * SIZE


def test_without_namespaces_it_would() -> None:
    """Run interpreted, since only so can a function of the kernel be exchanged for a faulty one."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == len(DEPLOYMENTS)
    for *deployment, _, first_reused, _ in lines:
        assert int(first_reused) == (PROMPT - 1) * SIZE, deployment


def machine(shared: bool, split: bool) -> Any:
    kind: Any = type("Recycled", (RecycledPlays,), {"shared": shared, "split": split})
    case = kind.TestCase
    case.settings = settings(stateful_step_count=25)
    return case


TestPrivateAggregated = machine(shared=False, split=False)
TestPrivateSplit = machine(shared=False, split=True)
TestSharedAggregated = machine(shared=True, split=False)
TestSharedSplit = machine(shared=True, split=True)
