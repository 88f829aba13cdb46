"""Claude Code sessions as a format: how they are told, and who reads them."""

from __future__ import annotations

from typing import Final

from playproof_lowering.claude import read_claude
from playproof_lowering.claude_side import side_kind, side_kind_by_name
from playproof_lowering.reader import Confidence, Head, Reader

__all__ = ["READER"]


def _marks(head: Head) -> Confidence:
    if head.has_any("sessionId", "parentUuid", "isSidechain", "leafUuid", "agentType"):
        return Confidence.SHAPED
    if head.has("messageId", "snapshot") or side_kind(head.texts):
        return Confidence.SHAPED
    if head.has("type", "message") or head.has("type", "uuid"):
        return Confidence.ALIKE
    return Confidence.NONE


def _knows_path(relative: str) -> bool:
    return bool(side_kind_by_name(relative))


READER: Final = Reader(
    name="claude",
    title="Claude Code sessions",
    marks=_marks,
    read=read_claude,
    knows_path=_knows_path,
    reads_empty=True,
)
