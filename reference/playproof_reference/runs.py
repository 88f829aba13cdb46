"""What a finished run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from playproof_spec.ledger import NEVER

from playproof_reference.driver import Driver
from playproof_reference.requests import Admission
from playproof_reference.vllm import VllmWorker


@dataclass
class HandoffTimes:
    """Which decode worker a request went to, and when it took which step."""

    worker: int = NEVER
    held_ns: int = NEVER
    reserved_ns: int = NEVER
    activated_ns: int = NEVER
    released_ns: int = NEVER


@dataclass
class Run:
    """A whole replay, finished."""

    driver: Driver
    workers: Sequence[VllmWorker]
    handoffs: Sequence[HandoffTimes]
    log: Sequence[Admission]
    decode_workers: int = 0  # of `workers`, the last ones; 0 when they do both
    # Tokens that a KV router knew each request to find where it sent it, by role.
    overlap: dict[int, int] = field(default_factory=dict)
    decode_overlap: dict[int, int] = field(default_factory=dict)

    @property
    def disaggregated(self) -> bool:
        return self.decode_workers > 0

    def gaps(self) -> dict[int, int]:
        """Inter-token gaps and how often each occurred."""
        counts: dict[int, int] = {}
        for request in self.driver.requests:
            if request.state != "completed":
                continue
            for before, after in pairwise(request.tokens_ns):
                counts[after - before] = counts.get(after - before, 0) + 1
        return counts
