"""Claude Code sessions as a format: how they are told, and who reads them."""

from __future__ import annotations

from typing import Final

from playproof_lowering.claude import read_claude
from playproof_lowering.reader import Confidence, Head, Reader

__all__ = ["READER"]


def _marks(head: Head) -> Confidence:
    if head.has_any("sessionId", "parentUuid", "isSidechain", "leafUuid", "agentType"):
        return Confidence.SHAPED
    if head.has("messageId", "snapshot"):
        return Confidence.SHAPED
    if head.has("type", "message") or head.has("type", "uuid"):
        return Confidence.ALIKE
    return Confidence.NONE


READER: Final = Reader(name="claude", title="Claude Code sessions", marks=_marks, read=read_claude)
