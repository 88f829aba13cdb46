"""Every event of random runs happens under its guard and is a move of the models; the monitor sees faults that are not.

The whole of the property tests runs under the same monitor with `make watch`, which CI does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from playproof_spec.machines import MACHINES

SUPPORT = Path(__file__).resolve().parent.parent / "support"
SEEDS = 24
# Entries of the tables that these seeds do not come to are rare ones; `make watch` meets more.
LEAST_ENTRIES = 80


def watched(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(SUPPORT)}
    environment.pop("PLAYPROOF_MONITOR", None)
    command = [sys.executable, str(SUPPORT / "watched_run.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_event_of_random_runs_is_guarded_and_a_move_of_the_models() -> None:
    result = watched("0", str(SEEDS))
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["unseen"] == 0
    assert report["turns"] > 1000
    assert {entry.split()[0] for entry in report["seen"]} == {machine.name for machine in MACHINES}
    assert len(report["seen"]) >= LEAST_ENTRIES


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("skip-before-failing", "SKIP→ though not play_failed"),
        ("expire-before-closing", "EXPIRE→ though not play_closing"),
        ("evict-without-need", "EVICT→ though not no_free_block"),
        ("dispatch-early", "RELEASE→ though not all_edges_fired"),
        ("keep-memory", "memory of request"),
        ("settle-early", "though not all_over"),
        ("fail-instead-of-preempt", "FAIL→ though not outgrew_pool"),
        ("stop-without-the-play", "comes between a node's failure and its play's|waits to hear of a failure"),
    ],
)
def test_the_monitor_sees(fault: str, words: str) -> None:
    result = watched("0", "40", fault)
    assert result.returncode != 0
    assert any(part in result.stderr for part in words.split("|")), result.stderr[-1500:]
