"""Identity: namespaces of ids that derive from where a record stands in its corpus."""

from __future__ import annotations

from collections.abc import Sequence

from playproof_spec.findings import Findings, Where, finding

from playproof_lowering.source import COMPRESSIONS, TRACE_SUFFIXES, SourceFile

__all__ = ["namespace", "without_collisions"]


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


def without_collisions(files: Sequence[SourceFile], findings: Findings) -> list[SourceFile]:
    """Return the files but for those whose records would have the ids of an earlier file's; those are refused."""
    seen: dict[str, SourceFile] = {}
    kept = []
    for file in files:
        name = namespace(file)
        earlier = seen.setdefault(name, file)
        if earlier is file:
            kept.append(file)
        else:
            message = f"its ids would be those of {earlier.shown}"
            findings.add(finding("ids-collide", message, where=Where(file=file.shown), found=name))
    return kept
