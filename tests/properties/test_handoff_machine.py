"""The handoff machine on both engines, and that it sees a completion that a kernel forwards at prefill.

The proof obligation M3 looks for the same fault in the handoff *tables*: `test_m3_sees_a_completion_before_decoding` of
`tests/unit/test_obligations.py` breaks both tables, this very completion among other ways, and sees the proof fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from handoff_machine import SglangHandoffBesideNaive, VllmHandoffBesideNaive
from hypothesis import settings

SCRIPT = Path(__file__).resolve().parent.parent / "support" / "faulty_handoff.py"

TestVllmHandoffBesideNaive = VllmHandoffBesideNaive.TestCase
TestVllmHandoffBesideNaive.settings = settings(stateful_step_count=25)
TestSglangHandoffBesideNaive = SglangHandoffBesideNaive.TestCase
TestSglangHandoffBesideNaive.settings = settings(stateful_step_count=25)


def run(backend: str, kernel: str) -> subprocess.CompletedProcess[str]:
    """Run the machine interpreted, since only so can a function of the kernel be exchanged for a faulty one."""
    command = [sys.executable, str(SCRIPT), backend, kernel]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_a_completion_at_prefill_is_seen(backend: str) -> None:
    sound = run(backend, "sound")
    assert sound.returncode == 0, sound.stderr
    faulty = run(backend, "faulty")
    assert faulty.returncode == 1
    assert "completed before its decode" in faulty.stderr
