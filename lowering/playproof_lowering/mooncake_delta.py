"""Mooncake rows whose later turns hold only what is new. They look like Mooncake's, so the format has to be named."""

from __future__ import annotations

from functools import partial
from typing import Final

from playproof_lowering.mooncake import read_ordinary
from playproof_lowering.reader import Confidence, Head, Reader

__all__ = ["READER"]


def _marks(head: Head) -> Confidence:
    return Confidence.NONE


READER: Final = Reader(
    name="mooncake-delta",
    title="Mooncake rows, later turns as differences",
    marks=_marks,
    read=partial(read_ordinary, format="mooncake-delta"),
    options=("block_size", "strict"),
)
