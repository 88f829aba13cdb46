"""Files that stand beside Claude Code sessions and hold no call: indices, and what workflows leave behind."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

__all__ = ["side_kind", "side_kind_by_name"]

INDEX: Final = "index of sessions"
JOURNAL: Final = "journal of a workflow"
WORKFLOW: Final = "record of a workflow"
STORED: Final = "stored result of a tool"
_BY_NAME: Final = (
    (INDEX, re.compile(r"(^|/)sessions-index\.json$")),
    (JOURNAL, re.compile(r"(^|/)wf_[^/]*/journal\.jsonl$")),
    (WORKFLOW, re.compile(r"(^|/)workflows/wf_[^/]*\.json$")),
    (STORED, re.compile(r"(^|/)tool-results/[^/]*\.jsonl?$")),
)
_COMPRESSION: Final = re.compile(r"\.(gz|zst)$", re.IGNORECASE)


def side_kind(names: Collection[str]) -> str:
    """Return what kind of side file has a first record with these fields, empty for none.

    Examples
    --------
    >>> side_kind({"version", "entries"}), side_kind({"type", "uuid", "sessionId"})
    ('index of sessions', '')
    """
    if "sessionId" in names or "uuid" in names:
        return ""
    if {"version", "entries"} <= set(names):
        return INDEX
    if {"type", "key", "agentId"} <= set(names):
        return JOURNAL
    if "runId" in names and "type" not in names and not {"taskId", "agentCount", "workflowName"}.isdisjoint(names):
        return WORKFLOW
    return ""


def side_kind_by_name(relative: str) -> str:
    """Return what kind of side file a path speaks of, empty for none."""
    name = _COMPRESSION.sub("", relative)
    return next((kind for kind, pattern in _BY_NAME if pattern.search(name)), "")
