"""The one way in: paths to a graph, with the format told by the content."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from playproof_spec.findings import Finding, Findings, Where, finding
from playproof_spec.graph import Graph

from playproof_lowering.formats import FORMATS, beside, detect, reader
from playproof_lowering.reader import HEAD_BYTES
from playproof_lowering.source import Reading, SourceError, SourceFile, collect

__all__ = ["Lowered", "LoweringOptions", "load_graph"]


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """How to read.

    Attributes
    ----------
    block_size : int | None
        Tokens a hash id stands for, where the format does not say; where it does, the option must agree.
    nested_timestamp_basis : str
        Weka: what the times of a subagent's requests count from.
    subagent_marker : str
        Weka: what the time of a subagent's marker means.
    strict : bool
        Unknown fields are errors.
    progress : callable, optional
        Called with (bytes done, bytes in all), both on disk, as reading goes on.
    """

    block_size: int | None = None
    nested_timestamp_basis: Literal["auto", "relative", "absolute"] = "auto"
    subagent_marker: Literal["auto", "spawn", "completion"] = "auto"
    strict: bool = False
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """What came of reading.

    Attributes
    ----------
    graph : Graph | None
        None when nothing could be made of the input. With errors among the findings it may lack what they are about;
        it then serves to find the defects of the rest, and :func:`~playproof_spec.certificate.prove` refuses it.
    findings : Findings
    facts : Mapping[str, object]
        What was read and what was decided, JSON values only; also the graph's `facts`.
    """

    graph: Graph | None
    findings: Findings
    facts: Mapping[str, object]


def load_graph(
    paths: Sequence[str | os.PathLike[str]],
    *,
    format: str = "auto",
    options: LoweringOptions = LoweringOptions(),
) -> Lowered:
    """Read trace files and folders into one graph.

    Parameters
    ----------
    paths : sequence of paths
        Files and folders, in any order.
    format : str
        One of :data:`~playproof_lowering.formats.FORMATS`, or ``auto`` to let the first record of each file decide.
    options : LoweringOptions

    Returns
    -------
    Lowered
        Bad input is among its findings; nothing is raised for it.

    Raises
    ------
    ValueError
        When `format` is no format's name.
    """
    if format not in ("auto", *FORMATS):
        raise ValueError(f"no such format: {format!r}; there are auto, {', '.join(FORMATS)}")
    findings = Findings()
    facts: dict[str, object] = {}
    files, ignored = collect(paths, findings)
    if ignored:
        findings.add(finding("files-ignored", f"{ignored} files with other extensions were left out", found=ignored))
    if not files:
        return Lowered(None, findings, facts)
    chosen: str | None = format
    if format == "auto":
        chosen, files = _detect_all(files, findings)
    if chosen is None:
        return Lowered(None, findings, facts)
    size = sum(file.size for file in files)
    facts.update(input_format=chosen, input_files=len(files), input_files_ignored=ignored, input_bytes=size)
    on_bytes = None if options.progress is None else _Progress(options.progress, size)
    chosen_reader = reader(chosen)
    meant = {name: getattr(options, name) for name in chosen_reader.options}
    graph = chosen_reader.read(files, findings, facts, on_bytes=on_bytes, **meant)
    return Lowered(graph, findings, facts)


class _Progress:
    """Adds up bytes for the caller."""

    def __init__(self, tell: Callable[[int, int], None], total: int) -> None:
        self._tell = tell
        self._total = total
        self._done = 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._tell(self._done, self._total)


def _detect_all(files: list[SourceFile], findings: Findings) -> tuple[str | None, list[SourceFile]]:
    """Return the one format of the files and those that have it; what has none, or another one, is a finding."""
    formats: dict[str, list[SourceFile]] = {}
    empty: list[tuple[SourceFile, Finding]] = []
    for file in files:
        try:
            head = Reading(file).head(HEAD_BYTES)
        except SourceError as error:
            if error.item.code == "file-empty":
                empty.append((file, error.item))
            else:
                findings.add(error.item)
            continue
        found = detect(head) or beside(file.relative)
        if found is None:
            _refuse_unknown(head, file, findings, empty)
        else:
            formats.setdefault(found, []).append(file)
    if not formats or not reader(next(iter(formats))).reads_empty:
        for _, item in empty:
            findings.add(item)
        empty = []
    if not formats:
        return None, []
    # The first file's format is the corpus', so that one stray file does not turn every other one into a finding.
    chosen, same = next(iter(formats.items()))
    kept = {*same, *(file for file, _ in empty)}
    for other, strangers in formats.items():
        for file in strangers if other != chosen else ():
            findings.add(
                finding(
                    "format-mixed",
                    f"this file is {other}, {same[0].shown} is {chosen}",
                    where=Where(file=file.shown),
                    found=other,
                    wanted=chosen,
                )
            )
    findings.add(
        finding(
            "format-chosen",
            f"{len(same)} {'file' if len(same) == 1 else 'files'} read as {chosen}, by the first record",
            where=Where(file=same[0].shown),
            found=chosen,
        )
    )
    return chosen, [file for file in files if file in kept]


def _refuse_unknown(head: bytes, file: SourceFile, findings: Findings, empty: list[tuple[SourceFile, Finding]]) -> None:
    where = Where(file=file.shown, line=1 if file.lines else 0)
    start = head.lstrip()
    text = start[:60].decode("utf-8", "backslashreplace")
    if not start:
        empty.append((file, finding("file-empty", "the file is blank", where=where, found="blank", wanted="a trace")))
    elif not start.startswith(b"{"):
        findings.add(
            finding("json-not-object", "the first record is not an object", where=where, found=text, wanted="an object")
        )
    else:
        findings.add(finding("format-unknown", "the first record has the marks of no format", where=where, found=text))
