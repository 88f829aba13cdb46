"""Agentic Mooncake v2: one header line, then one line a request.

The reader checks what belongs to the wire: JSON, types, names, the header, and the few facts that a graph has no place
for (a play in two files, two ordinals for a play). Everything else about a row (counts, bounds, edges) is an obligation
of the graph and is found by proving it, with the file and line recorded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import RELATION_NAMES, TRIGGER_NAMES, Carried, Graph, Int64, Relation, Source, Trigger

from playproof_lowering.builder import GraphBuilder
from playproof_lowering.names import repeated_name
from playproof_lowering.provenance import corpus_digest
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.runs import OK, RunBuffer, renumber
from playproof_lowering.source import Reading, SourceFile, read_through
from playproof_lowering.wire import DecodeErrors, Problem, UnknownFields, explain, hash_ids_problem, nearest, report

__all__ = ["READER", "SCHEMA", "TIES_BY_ROW", "VERSION", "read_agentic_mooncake", "version_1_row"]

SCHEMA: Final = "dynamo.agentic_mooncake"
VERSION: Final = 2
# What rows of version 1 wait by; no other row has them.
VERSION_1_FIELDS: Final = ("wait_for", "branches")
# The one value of the header's `tie_order`, a field that only this project writes.
TIES_BY_ROW: Final = "rows"
INT64_MAX: Final = 2**63 - 1
MAX_BLOCK_SIZE: Final = 2**20

RELATIONS: Final = {name: relation for relation, name in RELATION_NAMES.items()}
TRIGGERS: Final = {name: trigger for trigger, name in TRIGGER_NAMES.items()}


class HeaderSource(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    digest: str


class Header(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    version: int
    block_size: int
    hash_id_scope: str
    source: HeaderSource
    # Ours: what is due at one instant goes in the order of the rows. Without it the byte order of the ids decides.
    tie_order: str | None = None


class Dependency(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    request_id: str
    trigger: str
    delay_ms: float
    relation: str


class Row(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    request_id: str
    play_id: str
    session_id: str
    model: str
    hash_ids: msgspec.Raw
    not_before_ms: float
    source_play_ordinal: int | None = None
    input_length: int | None = None
    input_tokens: int | None = None
    output_length: int | None = None
    output_tokens: int | None = None
    output_token_ids: list[int] | None = None
    recorded_api_time_ms: float | None = None
    priority: int | None = None
    strict_priority: int | None = None
    policy_class: str | None = None
    dependencies: list[Dependency] = []


class _RequestId(msgspec.Struct):
    request_id: str


_HEADER = msgspec.json.Decoder(Header)
_ROW = msgspec.json.Decoder(Row)


def read_agentic_mooncake(
    files: list[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    strict: bool,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read v2 files into one graph.

    Parameters
    ----------
    files : list of SourceFile
        In corpus order. Hash ids are local to their file: with more than one file each file's distinct ids are
        renumbered above those of the files before it; a single file's ids stay as they are.
    findings : Findings
        Receives what is wrong.
    facts : dict
        Receives the digest and size of the input.
    block_size : int, optional
        What the header must say.
    strict : bool
        Unknown fields are errors.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when no header could be used. After errors in rows the graph holds the other rows, so that their defects
        can be listed too.
    """
    reader = _Reader(files, findings, block_size, strict)
    digests = [read_through(file, reader.read, findings, on_bytes) for file in files]
    if not all(digest for _, digest in digests):
        reader.incomplete = True
    facts["input_digest"] = corpus_digest(digests)
    return reader.finish(facts)


class _Reader:
    """The state of reading one corpus."""

    def __init__(self, files: list[SourceFile], findings: Findings, block_size: int | None, strict: bool) -> None:
        self.findings = findings
        self.builder: GraphBuilder | None = None
        self.incomplete = False
        self._files = files
        self._asked_block_size = block_size
        self._unknown = UnknownFields(strict)
        self._sources: list[HeaderSource] = []
        self._ties_by_id = False
        self._first_block_size: tuple[int, str] = (0, "")
        self._file_of_play: dict[str, str] = {}
        self._ordinals: list[dict[str, int | None]] = []
        self._ids_held = 0

    def read(self, reading: Reading) -> None:
        """Read one file to its end."""
        shown = reading.file.shown
        records = reading.records()
        first = next(records, None)
        if first is None:
            self.findings.add(
                finding("file-empty", "the file has blank lines only", where=Where(file=shown), wanted="a header line")
            )
            return
        line, record = first
        header = self._header(record, Where(file=shown, line=line))
        if header is None:
            # Nothing can be made of the rows, but the file is still hashed and its end still checked.
            for _ in records:
                pass
            return
        if self.builder is None:
            self.builder = GraphBuilder(header.block_size)
        self._sources.append(header.source)
        self._ties_by_id |= header.tie_order is None
        self._ordinals.append({})
        handle = self.builder.file(shown)
        begin = self.builder.node_count
        buffer = RunBuffer()
        offsets = [0]
        rows = 0
        try:
            for line, record in records:
                rows += 1
                self._record(record, Where(file=shown, line=line), handle, buffer, offsets)
        finally:
            # Also when the file breaks off: its rows are looked at all the same.
            self._assign_runs(begin, np.array(offsets, dtype=np.int64), buffer)
            self._unknown.tell(self.findings)
        if rows == 0:
            self.findings.add(
                finding("rows-missing", "nothing follows the header", where=Where(file=shown, line=1), wanted="rows")
            )

    def _assign_runs(self, begin: int, offsets: Int64, buffer: RunBuffer) -> None:
        assert self.builder is not None
        first, count = buffer.runs()
        if len(self._files) > 1:
            offsets, first, count, distinct = renumber(offsets, first, count)
            first += np.uint64(self._ids_held)
            self._ids_held += distinct
        self.builder.assign_runs(begin, offsets, first, count)

    def _header(self, record: bytes, where: Where) -> Header | None:
        """Return the header when rows can be read by it."""
        try:
            header = _HEADER.decode(record)
        except DecodeErrors:
            explained = explain(record, Header)
            if _is_row(record):
                self.findings.add(
                    finding(
                        "header-missing",
                        "the first line is a row, not the header",
                        where=where,
                        found="a row",
                        wanted="the header on line 1",
                    )
                )
                return None
            report(self.findings, explained.problems, where)
            if explained.problems:
                return None
            self._unknown.note(explained.unknown, where)
            self._unknown.tell(self.findings)
            header = _HEADER.decode(explained.cleaned)
        twice = repeated_name(record)
        problems = [twice] if twice is not None else list(self._header_problems(header, where.file))
        report(self.findings, problems, where)
        return None if problems else header

    def _header_problems(self, header: Header, shown: str) -> list[Problem]:
        problems = []

        def wrong(code: str, path: str, message: str, found: object, wanted: object) -> None:
            problems.append(Problem(code, path, message, str(found), str(wanted)))

        if header.schema != SCHEMA:
            wrong("header-invalid", "schema", "another schema", header.schema, SCHEMA)
        elif header.version != VERSION:
            wrong("header-invalid", "version", "this version of the schema is not read", header.version, VERSION)
        if header.hash_id_scope != "local":
            wrong(
                "header-invalid", "hash_id_scope", "hash ids of this scope are not read", header.hash_id_scope, "local"
            )
        if header.tie_order not in (None, TIES_BY_ROW):
            wrong("header-invalid", "tie_order", "no such order", header.tie_order, f"{TIES_BY_ROW}, or no tie_order")
        for name, value in (("format", header.source.format), ("digest", header.source.digest)):
            if not value:
                wrong("header-invalid", f"source.{name}", "the source is not named", '""', "a non-empty string")
        if not 1 <= header.block_size <= MAX_BLOCK_SIZE:
            wrong("header-invalid", "block_size", "out of bounds", header.block_size, f"1 … {MAX_BLOCK_SIZE}")
        elif self._asked_block_size is not None and header.block_size != self._asked_block_size:
            message = "the file has another block size than the option says"
            wrong("block-size-mismatch", "block_size", message, header.block_size, self._asked_block_size)
        elif self._first_block_size[0] not in (0, header.block_size):
            size, earlier = self._first_block_size
            wrong("block-size-mixed", "block_size", f"{earlier} has block size {size}", header.block_size, size)
        elif not problems:
            self._first_block_size = (header.block_size, shown)
        return problems

    def _record(self, record: bytes, where: Where, file: int, buffer: RunBuffer, offsets: list[int]) -> None:
        """Read one line; a row that has something wrong is left out of the graph."""
        problems: list[Problem] = []
        try:
            row = _ROW.decode(record)
        except DecodeErrors:
            if _is_header(record):
                self.incomplete = True
                self.findings.add(
                    finding("header-repeated", "a second header", where=where, found="a header", wanted="a row")
                )
                return
            explained = explain(record, Row)
            older = version_1_row(explained.unknown)
            if older is not None:
                self.incomplete = True
                report(self.findings, [older], _named(record, where))
                return
            self._unknown.note(explained.unknown, where)
            if explained.problems:
                self.incomplete = True
                report(self.findings, explained.problems, _named(record, where))
                return
            row = _ROW.decode(explained.cleaned)
        twice = repeated_name(record)
        if twice is not None:
            problems.append(twice)
        input_length = _length(row.input_length, row.input_tokens, "input", problems)
        output_length = _length(row.output_length, row.output_tokens, "output", problems)
        edges = _edges(row.dependencies, problems)
        self._check_play(row, where, problems)
        carried = _carried(row, problems)
        status, ids = buffer.parse(row.hash_ids)
        if status != OK:
            problems.append(hash_ids_problem(row.hash_ids, status, ids, "hash_ids"))
        if problems:
            self.incomplete = True
            named = Where(file=where.file, line=where.line, ids=(row.request_id,) if row.request_id else ())
            report(self.findings, problems, named)
            buffer.used = offsets[-1]
            return
        offsets.append(buffer.used)
        assert self.builder is not None
        number = self.builder.node(
            request_id=row.request_id,
            source_request_id=row.request_id,
            play=self.builder.play(row.play_id, row.source_play_ordinal),
            session_id=row.session_id,
            model=row.model,
            input_length=input_length,
            output_length=output_length,
            not_before_ms=row.not_before_ms,
            recorded_api_time_ms=row.recorded_api_time_ms,
            file=file,
            line=where.line,
            carried=carried,
        )
        for source_id, relation, trigger, delay_ms in edges:
            self.builder.edge(number, source_id, relation, trigger, delay_ms)

    def _check_play(self, row: Row, where: Where, problems: list[Problem]) -> None:
        """Check that the row's play lives in one file and has one ordinal."""
        earlier = self._file_of_play.setdefault(row.play_id, where.file)
        if earlier != where.file:
            problems.append(
                Problem("play-across-files", "play_id", f"the play has rows in {earlier} too", row.play_id, "one file")
            )
            return
        ordinals = self._ordinals[-1]
        known = ordinals.setdefault(row.play_id, row.source_play_ordinal)
        if known != row.source_play_ordinal:
            problems.append(
                Problem(
                    "ordinal-conflict",
                    "source_play_ordinal",
                    f"another row of play {row.play_id} says otherwise",
                    str(row.source_play_ordinal),
                    str(known),
                )
            )

    def finish(self, facts: dict[str, object]) -> Graph | None:
        """Make the graph of what was read."""
        builder = self.builder
        if builder is None or builder.node_count == 0:
            return None
        if self.incomplete:
            # Rows that could not be read are told already: what their absence tears open is no second finding.
            builder.forget_dangling()
            builder.set_ordinals({play: None for ordinals in self._ordinals for play in ordinals if play in builder})
        elif len(self._ordinals) > 1:
            self._chain_ordinals(builder)
        if len(self._sources) == 1:
            source = Source(self._sources[0].format, self._sources[0].digest)
        else:
            formats = sorted({source.format for source in self._sources})
            digest = corpus_digest([(source.format, source.digest) for source in self._sources])
            source = Source("+".join(formats), digest)
        # Files that do not agree have no order of rows between them.
        builder.ties_by_id = self._ties_by_id
        return builder.finish(source, facts)

    def _chain_ordinals(self, builder: GraphBuilder) -> None:
        """Number the plays on from file to file, when each file numbers its own from 0."""
        counted = [sorted(o for o in ordinals.values() if o is not None) for ordinals in self._ordinals]
        whole = all(numbers == list(range(len(own))) for numbers, own in zip(counted, self._ordinals, strict=True))
        if not whole:
            return
        base = 0
        for ordinals in self._ordinals:
            builder.set_ordinals({play: base + ordinal for play, ordinal in ordinals.items() if ordinal is not None})
            base += len(ordinals)
        self.findings.add(
            finding(
                "ordinals-chained",
                f"the plays of {len(self._ordinals)} files run in the order of the files",
                found=f"{base} plays",
            )
        )


def _named(record: bytes, where: Where) -> Where:
    """Return `where` with the row's id, if that much of the row can be read."""
    try:
        request_id = msgspec.json.decode(record, type=_RequestId).request_id
    except DecodeErrors:
        return where
    return Where(file=where.file, line=where.line, ids=(request_id,))


def _is_header(record: bytes) -> bool:
    return b'"schema"' in record[:256] and _keys(record) >= {"schema", "version"}


def _is_row(record: bytes) -> bool:
    keys = _keys(record)
    return "schema" not in keys and bool(keys & {"request_id", "hash_ids", "input_length", "input_tokens", "play_id"})


def _keys(record: bytes) -> set[str]:
    try:
        return set(msgspec.json.decode(record, type=dict[str, msgspec.Raw]))
    except DecodeErrors:
        return set()


def _length(value: int | None, alias: int | None, name: str, problems: list[Problem]) -> int:
    """Return the length that the row gives under either name."""
    if value is not None and alias is not None:
        problems.append(
            Problem("field-conflict", f"{name}_tokens", f"the row has {name}_length too", str(alias), "one of them")
        )
        return value
    length = alias if value is None else value
    if length is None:
        problems.append(Problem("field-missing", f"{name}_length", f"`{name}_length` is missing", "nothing", "integer"))
        return 0
    if not -INT64_MAX <= length <= INT64_MAX:
        path = f"{name}_length" if value is not None else f"{name}_tokens"
        problems.append(Problem("number-out-of-range", path, "the number is too large", str(length)[:60], "a length"))
        return 0
    return length


def _edges(rows: list[Dependency], problems: list[Problem]) -> list[tuple[str, Relation, Trigger, float]]:
    edges = []
    for place, row in enumerate(rows):
        relation = RELATIONS.get(row.relation)
        trigger = TRIGGERS.get(row.trigger)
        if relation is None:
            problems.append(_no_such(f"dependencies[{place}].relation", row.relation, RELATIONS))
        if trigger is None:
            problems.append(_no_such(f"dependencies[{place}].trigger", row.trigger, TRIGGERS))
        if relation is not None and trigger is not None:
            edges.append((row.request_id, relation, trigger, row.delay_ms))
    return edges


def _no_such(path: str, name: str, known: dict[str, Relation] | dict[str, Trigger]) -> Problem:
    close = nearest(name, known)
    hint = f"; did you mean `{close}`?" if close else ""
    return Problem("value-unknown", path, f"no such value{hint}", name, " or ".join(known))


def _carried(row: Row, problems: list[Problem]) -> Carried | None:
    """Return what few rows have, or None."""
    ids = row.output_token_ids
    if ids is not None:
        bad = next((place for place, token in enumerate(ids) if not 0 <= token < 2**32), None)
        length = row.output_length if row.output_length is not None else row.output_tokens
        if bad is not None:
            problems.append(
                Problem("field-type", f"output_token_ids[{bad}]", "not a token id", str(ids[bad])[:60], "0 … 2**32 - 1")
            )
        elif length is not None and len(ids) != length:
            problems.append(
                Problem(
                    "hash-count", "output_token_ids", "not one for each output token", f"{len(ids)} ids", str(length)
                )
            )
    if not (row.priority or row.strict_priority or row.policy_class is not None or ids is not None):
        return None
    for name, value, low, high in (
        ("priority", row.priority or 0, -(2**31), 2**31 - 1),
        ("strict_priority", row.strict_priority or 0, 0, 2**32 - 1),
    ):
        if not low <= value <= high:
            problems.append(Problem("number-out-of-range", name, "out of range", str(value)[:60], f"{low} … {high}"))
    return Carried(row.priority or 0, row.strict_priority or 0, row.policy_class, None if ids is None else tuple(ids))


def version_1_row(unknown: Iterable[tuple[str, str, str]]) -> Problem | None:
    """Return what is wrong with a row that has the fields by which version 1 waits.

    Parameters
    ----------
    unknown : iterable of (path, name, nearest)
        The fields of the row that the format at hand does not have.
    """
    names = [name for path, name, _ in unknown if not path and name in VERSION_1_FIELDS]
    if not names:
        return None
    message = "the row is one of version 1, which waits by fields that version 2 does not have"
    return Problem("header-missing", names[0], message, f"a row with {' and '.join(names)}", "rows of version 2")


def _marks(head: Head) -> Confidence:
    if head.text("schema") == SCHEMA:
        return Confidence.SIGNED
    if head.has("version", "hash_id_scope"):
        return Confidence.SHAPED
    # A header of another schema, or rows of any version without their header: refused, with the way to convert.
    if head.has_any("schema", "play_id", "dependencies", *VERSION_1_FIELDS, "not_before_ms"):
        return Confidence.ALIKE
    return Confidence.NONE


READER: Final = Reader(
    name="agentic_mooncake",
    title="Agentic Mooncake, version 2",
    marks=_marks,
    read=read_agentic_mooncake,
    options=("block_size", "strict"),
)
