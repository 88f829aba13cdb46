"""Turn lengths of agent runs (applied_compute_agentic) as a format; read as the other ordinary rows are."""

from __future__ import annotations

from functools import partial
from typing import Final

from playproof_lowering.mooncake import read_ordinary
from playproof_lowering.reader import Confidence, Head, Reader

__all__ = ["READER"]


def _marks(head: Head) -> Confidence:
    return Confidence.SHAPED if head.has("num_turns") else Confidence.NONE


READER: Final = Reader(
    name="applied_compute_agentic",
    title="turn lengths of agent runs",
    marks=_marks,
    read=partial(read_ordinary, format="applied_compute_agentic"),
    options=("block_size", "strict"),
)
