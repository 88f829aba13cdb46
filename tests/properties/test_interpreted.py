"""Compiled and interpreted, pass by pass or not, the kernel gives equal ledgers on every topology (invariant 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

SCRIPT = Path(__file__).resolve().parent.parent / "support" / "interpreted_run.py"


def lines(disable: str) -> list[list[str]]:
    """Return (seed, topology, digest with macro-steps, digest without) of each replay."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": disable}
    command = [sys.executable, str(SCRIPT), "0", str(settings().max_examples)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled() -> list[list[str]]:
    return lines(disable="0")


@pytest.fixture(scope="module")
def interpreted() -> list[list[str]]:
    return lines(disable="1")


def test_compiled_equals_interpreted(compiled: list[list[str]], interpreted: list[list[str]]) -> None:
    count = settings().max_examples
    assert len(compiled) == count
    assert {topology for _, topology, _, _ in compiled} == {
        "VLLM-aggregated",
        "VLLM-split",
        "SGLANG-aggregated",
        "SGLANG-split",
    }
    # Different corpora give different ledgers, or the comparison would show nothing.
    assert len({digest for _, _, digest, _ in compiled}) > count * 0.9
    assert interpreted == compiled


def test_a_macro_step_equals_its_single_passes(compiled: list[list[str]], interpreted: list[list[str]]) -> None:
    for _, _, whole, single in compiled + interpreted:
        assert whole == single
