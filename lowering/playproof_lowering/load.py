"""The one way in: paths to a graph, with the format told by the content."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from playproof_spec.findings import Finding, Findings, Where, finding
from playproof_spec.graph import Graph

from playproof_lowering.formats import FORMATS, beside, detect, reader
from playproof_lowering.leftout import SkipBad
from playproof_lowering.reader import HEAD_BYTES, Reader
from playproof_lowering.source import Reading, Selection, SourceError, SourceFile, collect
from playproof_lowering.stdin import NAME as STDIN
from playproof_lowering.stdin import spooled

__all__ = ["Lowered", "LoweringOptions", "load_graph"]


# Those of the options that a format has or has not; the others are of any reading.
FORMAT_OPTIONS: Final = ("block_size", "nested_timestamp_basis", "subagent_marker", "strict")


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
    skip_bad : bool
        Leave out files, records and torn last lines that cannot be read, with a warning each, and go on.
    exclude : tuple of str
        Patterns of files and folders to leave out, of their path within the given folder or of their name.
    follow_links : bool
        Read what symbolic links lead to.
    progress : callable, optional
        Called with (bytes done, bytes in all), both on disk, as reading goes on.
    """

    block_size: int | None = None
    nested_timestamp_basis: Literal["auto", "relative", "absolute"] = "auto"
    subagent_marker: Literal["auto", "spawn", "completion"] = "auto"
    strict: bool = False
    skip_bad: bool = False
    exclude: tuple[str, ...] = ()
    follow_links: bool = False
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
    sources : tuple of SourceFile
        The files that were read, for a second look at what findings are about.
    scratch : TemporaryDirectory, optional
        Where a copy of standard input lies, as long as this object is there.
    """

    graph: Graph | None
    findings: Findings
    facts: Mapping[str, object]
    sources: tuple[SourceFile, ...] = ()
    scratch: TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)


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
        Files and folders, in any order; ``-`` is standard input.
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
    lenient = SkipBad() if options.skip_bad else None
    findings: Findings = Findings() if lenient is None else lenient
    facts: dict[str, object] = {}
    selection = Selection(options.exclude, options.follow_links)
    files, scratch = _files(paths, findings, selection)
    for count, why in ((selection.ignored, "with other extensions"), (selection.excluded, "that patterns exclude")):
        if count:
            findings.add(finding("files-ignored", f"{count} files {why} were left out", found=count))
    chosen: str | None = format if files else None
    if files and format == "auto":
        chosen, files = _detect_all(files, findings)
    graph: Graph | None = None
    if chosen is not None:
        size = sum(file.size for file in files)
        facts.update(input_format=chosen, input_files=len(files), input_files_ignored=selection.ignored)
        if selection.excluded:
            facts["input_files_excluded"] = selection.excluded
        facts["input_bytes"] = size
        on_bytes = None if options.progress is None else _Progress(options.progress, size)
        chosen_reader = reader(chosen)
        meant = {name: getattr(options, name) for name in chosen_reader.options}
        _tell_idle(options, chosen_reader, Where(file=files[0].shown), findings)
        graph = chosen_reader.read(files, findings, facts, on_bytes=on_bytes, **meant)
    if lenient is not None:
        findings, graph = _without_bad(lenient, graph, facts)
    return Lowered(graph, findings, facts, tuple(files), scratch)


def _tell_idle(options: LoweringOptions, chosen: Reader, where: Where, findings: Findings) -> None:
    """Tell of options that were given and mean nothing to the format."""
    default = LoweringOptions()
    for name in FORMAT_OPTIONS:
        value = getattr(options, name)
        if name not in chosen.options and value != getattr(default, name):
            message = f"{name.replace('_', ' ')} has no meaning for {chosen.name}"
            findings.add(finding("option-no-effect", message, where=where, found=value))


def _files(
    paths: Sequence[str | os.PathLike[str]], findings: Findings, selection: Selection
) -> tuple[list[SourceFile], TemporaryDirectory[str] | None]:
    """Return the files of the corpus, and where standard input was copied to if it is one of them."""
    named = [path for path in paths if os.fspath(path) != STDIN]
    times = len(paths) - len(named)
    files: list[SourceFile] = []
    scratch = None
    if times:
        scratch = TemporaryDirectory(prefix="playproof-")
        try:
            files.append(spooled(Path(scratch.name)))
        except SourceError as error:
            findings.add(error.item)
    if times > 1:
        where = Where(file=files[0].shown if files else STDIN)
        findings.add(finding("path-twice", "standard input can be read once", where=where, found="given twice"))
    if named or not paths:
        files += collect(named, findings, selection)[0]
        files.sort(key=lambda file: file.relative)
    return files, scratch


def _without_bad(lenient: SkipBad, graph: Graph | None, facts: dict[str, object]) -> tuple[Findings, Graph | None]:
    """Return the findings as such, and the graph with what was left out among its facts."""
    facts["left_out"] = lenient.left_out
    findings = Findings(lenient.limit_per_code)
    findings.extend(lenient)
    if graph is None and not findings.errors:
        message = "nothing is left: all that was given was left out"
        findings.add(finding("corpus-empty", message, found="nothing", wanted="a file that can be read"))
    return findings, None if graph is None else replace(graph, facts={**graph.facts, "left_out": lenient.left_out})


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
            if isinstance(findings, SkipBad) and head.strip():
                findings.whole_file(file.shown)
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
