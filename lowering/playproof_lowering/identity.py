"""Identity: namespaces of ids that derive from where a record stands in its corpus."""

from __future__ import annotations

from collections.abc import Iterable

from playproof_lowering.source import COMPRESSIONS, TRACE_SUFFIXES, SourceFile

__all__ = ["collisions", "namespace"]


def namespace(file: SourceFile, line: int = 0) -> str:
    """Return the prefix of all ids of one record: the relative path without extensions, and the line if it has one.

    Examples
    --------
    ``team/trace_0277.json`` gives ``team/trace_0277``; line 3 of ``all.jsonl.gz`` gives ``all:3``.
    """
    name = file.relative
    for suffix in (*COMPRESSIONS, *TRACE_SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            name = name[: -len(suffix)]
    return f"{name}:{line}" if line else name


def collisions(files: Iterable[SourceFile]) -> list[tuple[SourceFile, SourceFile]]:
    """Return the pairs (file, earlier file) whose records would have equal namespaces."""
    seen: dict[str, SourceFile] = {}
    pairs = []
    for file in files:
        name = namespace(file)
        if name in seen:
            pairs.append((file, seen[name]))
        seen.setdefault(name, file)
    return pairs
