"""The machine of host memory on both scopes and topologies, and that it sees a store that is visible too early."""

from __future__ import annotations

from typing import Any

from host_machine import HostBesideNaive
from hypothesis import settings

STEPS = 25


def machine(shared: bool, split: bool) -> Any:
    case = type("HostMemory", (HostBesideNaive,), {"shared": shared, "split": split}).TestCase
    case.settings = settings(stateful_step_count=STEPS)
    return case


TestPrivateAggregated = machine(shared=False, split=False)
TestPrivateSplit = machine(shared=False, split=True)
TestSharedAggregated = machine(shared=True, split=False)
TestSharedSplit = machine(shared=True, split=True)
