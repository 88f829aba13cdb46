"""Blocks are neither lost nor made: asserted at the end of every pass, in interpreted runs."""

from __future__ import annotations

import numpy as np

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import interpreted_only


@interpreted_only
def assert_conserved(sim: Sim, worker: int) -> None:
    """Assert that free, idle and used blocks of the device pool of `worker` are all that it has.

    Raises
    ------
    AssertionError
        With the figures. A fault of ours.
    """
    record = sim.workers[worker]
    config = sim.config[record.role]
    free, idle, blocks = int(record.free), int(record.idle), int(config.blocks)
    if config.keeps_tree != 0:
        # What requests hold in a tree is counted page by page in the tests.
        assert min(free, idle) >= 0 <= blocks - free - idle, f"{free} free and {idle} idle pages of {blocks}"
        return
    used = int(np.count_nonzero(sim.frames["refs"][worker] > 0))
    assert free + idle + used == blocks, f"{free} free, {idle} idle and {used} used blocks of {blocks}"
