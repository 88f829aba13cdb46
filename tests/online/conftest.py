"""Mock workers for tests, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import playproof as pp
from playproof.online.processes import workers

# Small, so that requests have to share it: 64 blocks of 16 tokens.
SMALL = pp.Deployment(
    blocks=64,
    block_size=16,
    max_sequences=8,
    context_length=2000,
    model="mock",
    timing=pp.FixedTiming(prefill_ms=10, decode_ms=5),
)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The URL of a mock worker of `SMALL`."""
    with workers(SMALL, 1) as (worker,):
        yield worker.url
