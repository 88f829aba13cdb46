"""The machine of host memory on both scopes and topologies, and that it sees faults of a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from host_machine import HostBesideNaive
from hypothesis import settings

SCRIPT = Path(__file__).resolve().parent.parent / "support" / "faulty_host.py"
# The checks that may be the first to see a fault: what a store takes at least, or what it takes beside the naive pool.
FAULTS = {
    "early": ("a block is visible before its store can have ended", "in pools_are_the_same"),
    "unpinned": ("in pools_are_the_same", "in pins_are_those_of_loads_under_way"),
}


def machine(shared: bool, split: bool) -> Any:
    kind: Any = type("HostMemory", (HostBesideNaive,), {"shared": shared, "split": split})
    case = kind.TestCase
    case.settings = settings(stateful_step_count=25)
    return case


TestPrivateAggregated = machine(shared=False, split=False)
TestPrivateSplit = machine(shared=False, split=True)
TestSharedAggregated = machine(shared=True, split=False)
TestSharedSplit = machine(shared=True, split=True)


def run(scope: str, topology: str, kernel: str) -> subprocess.CompletedProcess[str]:
    """Run the machine interpreted, since only so can a function of the kernel be exchanged for a faulty one."""
    command = [sys.executable, str(SCRIPT), scope, topology, kernel]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("scope", "topology"), [("private", "aggregated"), ("shared", "aggregated"), ("shared", "split")]
)
def test_faults_are_seen(scope: str, topology: str) -> None:
    sound = run(scope, topology, "sound")
    assert sound.returncode == 0, sound.stderr
    for fault, checks in FAULTS.items():
        faulty = run(scope, topology, fault)
        assert faulty.returncode == 1, fault
        assert any(check in faulty.stderr for check in checks)
