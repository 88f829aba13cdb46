"""Runs the machine of host memory on a sound kernel, or on one with a fault.

Usage: ``python faulty_host.py private|shared aggregated|split sound|early|unpinned``, with ``NUMBA_DISABLE_JIT=1``: a
store is visible as soon as it is submitted, or a load does not pin what it reads. Called by a property test, which
wants the same settings to pass on the sound one and fail on the others.
"""

from __future__ import annotations

import sys
from typing import Any

from host_machine import HostBesideNaive
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from playproof_kernel.ground.arrays import D2H
from playproof_kernel.host import offload


def show_at_submission() -> None:
    """Let a store take no time, whatever its links, so that its blocks are visible from its submission on."""
    submit = offload._submit

    def submit_at_once(sim: Any, row: int, direction: int, may_start: int) -> None:
        record = sim.hosts[sim.host_transfers[row].worker]
        latency = int(record.latency)
        if direction == D2H:
            record.bytes_per_second[D2H] = sim.hosts[record.pool].pool_bytes_per_second[D2H] = 0.0
            record.latency = 0
        submit(sim, row, direction, may_start)
        record.latency = latency

    offload._submit = submit_at_once


def pin_nothing() -> None:
    """Let loads read what may be evicted meanwhile."""
    offload._pin_all = offload._unpin_all = lambda sim, row: None


FAULTS = {"sound": lambda: None, "early": show_at_submission, "unpinned": pin_nothing}


def main() -> None:
    scope, topology, kernel = sys.argv[1:]
    FAULTS[kernel]()
    parts = {"shared": scope == "shared", "split": topology == "split"}
    # Without shrinking: that a failure was found is all that is asked.
    chosen = settings(
        max_examples=8,
        stateful_step_count=25,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(type("HostMemory", (HostBesideNaive,), parts), settings=chosen)


if __name__ == "__main__":
    main()
