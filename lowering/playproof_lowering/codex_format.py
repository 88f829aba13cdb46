"""Codex rollouts as a format: how they are told, and who reads them."""

from __future__ import annotations

from typing import Final

from playproof_lowering.codex import read_codex
from playproof_lowering.reader import Confidence, Head, Reader

__all__ = ["READER"]


def _marks(head: Head) -> Confidence:
    if head.text("type") == "session_meta" or head.has("payload", "type"):
        return Confidence.SHAPED
    return Confidence.NONE


READER: Final = Reader(name="codex", title="Codex rollouts", marks=_marks, read=read_codex)
