"""The lines of requests.jsonl as columns: read strictly, nothing trusted.

A line that is no record of docs/report.md becomes a finding with its number, and is left out of everything else. What
is well-formed becomes arrays, since a corpus has tens of thousands of lines and most rules look at all of them.
"""

from __future__ import annotations

import contextlib
import gc
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple
from playproof_spec.findings import Where, finding

from playproof.checking.settings import NS_PER_MS, Float64, Int64
from playproof.checking.verdict import Tally

Bool = npt.NDArray[np.bool_]
Lines = bytes | Iterable[bytes] | Iterable[Mapping[str, Any]]

NEVER = -1
COMPLETED, REJECTED, FAILED, CANCELED = range(4)
STATUSES = ("completed", "rejected", "failed", "canceled")
AGGREGATED, PREFILL, DECODE = range(3)
POOLS = ("agg", "prefill", "decode")

# A record longer than that is a defect or an attack; the longest of a real run, with thousands of admissions, is not.
MAX_LINE_BYTES = 64 << 20
# Lines that are decoded together: as many as stay in the processor's caches while their columns are made.
CHUNK_BYTES = 1 << 19
DICTS_PER_CHUNK = 2000
NEWLINE = ord("\n")

Number = Annotated[int, Meta(ge=0, le=2**53)]
# The clock ends after 2**62 ns; the sum of two instants fits 64 bits.
Instant = Annotated[float, Meta(ge=0.0, le=4.6e12)]
Figure = Annotated[float, Meta(ge=-1e18, le=1e18)]


class Admission(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One entry of an admission history."""

    admission_ordinal: Number
    pool: Literal["agg", "prefill", "decode"]
    pool_admission_ordinal: Number
    at_ms: Instant | None
    is_readmission: bool
    reused_input_tokens: Number
    g1_reused_input_tokens: Number
    host_reused_input_tokens: Number


class Agentic(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The ids of a request under the run controls."""

    request_id: str
    play_id: str
    conversation_id: str
    cache_id: str
    lane_id: str


class Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One line. Fields with a default belong to some kinds of run only."""

    request_id: str
    source_request_id: str
    play_id: str
    session_id: str
    model: str
    phase: Literal["profile"]
    terminal_status: Literal["completed", "rejected", "failed", "canceled"]
    play_ordinal: Number
    turn_index: Number | None
    lane: Number | None
    prefill_worker_idx: Number | None
    decode_worker_idx: Number | None
    prefill_route_overlap_tokens: Number | None
    decode_route_overlap_tokens: Number | None
    input_length: Number
    output_length: Number
    requested_output_length: Number
    first_admission_reused_input_tokens: Number
    first_admission_g1_reused_input_tokens: Number
    first_admission_host_reused_input_tokens: Number
    readmission_count: Number
    arrival_time_ms: Instant
    dispatched_at_ms: Instant
    first_admit_ms: Instant | None
    first_token_ms: Instant | None
    last_token_ms: Instant | None
    terminal_time_ms: Instant
    source_held_ms: Instant | None
    destination_reserved_ms: Instant | None
    destination_activated_ms: Instant | None
    source_released_ms: Instant | None
    ttft_ms: Figure | None
    ttst_ms: Figure | None
    tpot_ms: Figure | None
    e2e_latency_ms: Figure | None
    admission_history: list[Admission]
    agentic: Agentic | UnsetType = UNSET
    endpoint: str | UnsetType | None = UNSET
    dispatch_lateness_ms: Instant | UnsetType | None = UNSET
    cause: str | UnsetType | None = UNSET


# Columns by what they become: nanoseconds, floats with NaN for null, integers with -1 for null.
INSTANTS = (
    *("arrival_time_ms", "dispatched_at_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms"),
    *("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms"),
)
FIGURES = ("ttft_ms", "ttst_ms", "tpot_ms", "e2e_latency_ms")
NUMBERS = (
    *("play_ordinal", "input_length", "output_length", "requested_output_length", "readmission_count"),
    "first_admission_reused_input_tokens",
    *("first_admission_g1_reused_input_tokens", "first_admission_host_reused_input_tokens"),
)
NULLABLE = (
    *("turn_index", "lane", "prefill_worker_idx", "decode_worker_idx"),
    *("prefill_route_overlap_tokens", "decode_route_overlap_tokens"),
)
ADMITTED = ("admission_ordinal", "pool_admission_ordinal")
REUSED = ("reused_input_tokens", "g1_reused_input_tokens", "host_reused_input_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Admissions:
    """Admission histories, one after the other.

    Attributes
    ----------
    row : Int64, shape (admissions,)
        Row of the line.
    ordinal, pool, pool_ordinal, at, reused, g1, host : Int64, shape (admissions,)
        As the lines have them; `at` in ns, -1 for null.
    again : Bool, shape (admissions,)
    """

    row: Int64
    ordinal: Int64
    pool: Int64
    pool_ordinal: Int64
    at: Int64
    reused: Int64
    g1: Int64
    host: Int64
    again: Bool

    def of(self, rows: Int64) -> Admissions:
        """Return those of `rows`, ascending, with the rows numbered anew."""
        place = np.full(int(max(self.row.max(initial=-1), rows.max(initial=-1))) + 1, -1, np.int64)
        place[rows] = np.arange(len(rows))
        kept = place[self.row] >= 0
        return Admissions(
            place[self.row[kept]],
            self.ordinal[kept],
            self.pool[kept],
            self.pool_ordinal[kept],
            self.at[kept],
            self.reused[kept],
            self.g1[kept],
            self.host[kept],
            self.again[kept],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Well-formed lines, one row each.

    Attributes
    ----------
    line : Int64, shape (rows,)
        Its number in the file, from 1.
    text : dict of str to list of str
        ``request_id``, ``source_request_id``, ``play_id``, ``session_id``, ``model``.
    status : Int64, shape (rows,)
        Index into `STATUSES`.
    instants : dict of str to Int64
        Nanoseconds by the names of the line, -1 for null.
    figures : dict of str to Float64
        NaN for null.
    numbers : dict of str to Int64
        -1 for null.
    agentic : list of Agentic or None
        Under the run controls the ids of each line; empty where no line has any.
    lateness_ms : Float64
        Online: by how much a request was late, NaN for null.
    online : Bool
        Whether the line has the fields of an online run.
    admissions : Admissions
    blurred : Bool, shape (rows,)
        Whether an instant of the line is no whole number of nanoseconds.
    """

    line: Int64
    text: dict[str, list[str]]
    status: Int64
    instants: dict[str, Int64]
    figures: dict[str, Float64]
    numbers: dict[str, Int64]
    agentic: list[Agentic | None]
    lateness_ms: Float64
    online: Bool
    admissions: Admissions
    blurred: Bool

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, name: str) -> Int64:
        """Return a column of instants (ns) or numbers by the name that it has in a line."""
        return self.instants[name] if name in self.instants else self.numbers[name]

    def of(self, rows: Int64) -> Columns:
        """Return the rows `rows`, ascending."""
        if len(rows) == len(self):
            return self
        kept = rows.tolist()
        return Columns(
            line=self.line[rows],
            text={name: [column[row] for row in kept] for name, column in self.text.items()},
            status=self.status[rows],
            instants={name: column[rows] for name, column in self.instants.items()},
            figures={name: column[rows] for name, column in self.figures.items()},
            numbers={name: column[rows] for name, column in self.numbers.items()},
            agentic=[self.agentic[row] for row in kept] if self.agentic else [],
            lateness_ms=self.lateness_ms[rows],
            online=self.online[rows],
            admissions=self.admissions.of(rows),
            blurred=self.blurred[rows],
        )


_DECODER = msgspec.json.Decoder(Line)
_TEXTS = ("request_id", "source_request_id", "play_id", "session_id", "model")
_STATUS = {name: number for number, name in enumerate(STATUSES)}
_POOL = {name: number for number, name in enumerate(POOLS)}


def read_lines(lines: Lines, tally: Tally) -> tuple[Columns, int]:
    """Read lines; those that are no records become findings.

    Parameters
    ----------
    lines : bytes, iterable of bytes, or iterable of mappings
        A file, a file in pieces of any size, or what `Report.request_dicts` yields.
    tally : Tally

    Returns
    -------
    columns : Columns
    number : int
        Lines that there are.
    """
    parts: list[_Part] = []
    number = 0
    with _without_collector():
        for chunk in _chunks(lines):
            records, numbers, number = _decode(chunk, number, tally)
            if records:
                parts.append(_part(records, numbers))
    return _joined(parts), number


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the collector of cycles from looking at what is read: there are none, and it looks very often."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _chunks(lines: Lines) -> Iterator[memoryview]:
    """Yield whole lines, many at a time."""
    if isinstance(lines, bytes):
        yield from _cut(lines)
        return
    rest: list[bytes] = []
    each = iter(lines)
    first = next(each, None)
    if first is None:
        return
    if not isinstance(first, bytes):
        yield from (memoryview(line) for line in _encoded(first, each))
        return
    while first is not None:
        assert isinstance(first, bytes), "lines are all bytes, or all values"
        head, cut, tail = first.rpartition(b"\n")
        if cut:
            yield from _cut(b"".join((*rest, head, cut)))
            rest = []
        rest.append(tail)
        first = next(each, None)
    yield from _cut(b"".join(rest))


def _cut(data: bytes) -> Iterator[memoryview]:
    view, begin = memoryview(data), 0
    while begin < len(data):
        end = data.find(b"\n", begin + CHUNK_BYTES)
        end = len(data) if end < 0 else end + 1
        yield view[begin:end]
        begin = end


def _encoded(first: Any, rest: Iterable[Any]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    chunk = [first, *islice(rest, DICTS_PER_CHUNK)]
    while chunk:
        yield encoder.encode_lines(chunk)
        chunk = list(islice(rest, DICTS_PER_CHUNK))


def _decode(chunk: memoryview, before: int, tally: Tally) -> tuple[list[Line], Int64, int]:
    """Return the records of a chunk, their line numbers, and the number of the last; `before` lines come before it."""
    try:
        records = _DECODER.decode_lines(chunk)
        # The decoder passes over blank lines, and so would their numbers be.
        ends = np.count_nonzero(np.frombuffer(chunk, np.uint8) == NEWLINE)
        if len(records) == ends + (chunk[-1] != NEWLINE):
            tally.count("run-line", len(records))
            return records, np.arange(before + 1, before + len(records) + 1), before + len(records)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    records, numbers = [], []
    for offset, raw in enumerate(bytes(chunk).removesuffix(b"\n").split(b"\n"), start=1):
        number = before + offset
        why = ""
        try:
            if len(raw) > MAX_LINE_BYTES:
                why = f"it has {len(raw):,} bytes, at most {MAX_LINE_BYTES:,} are read"
            else:
                records.append(_DECODER.decode(raw))
                numbers.append(number)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = str(error) or type(error).__name__
        if why:
            where = Where(file=tally.lines_file, line=number)
            tally.tell("run-line", finding("run-line", f"the line is no record: {why}", where=where, found=_shown(raw)))
        else:
            tally.count("run-line", 1)
        before = number - offset
    return records, np.array(numbers, np.int64), before + offset


def _shown(raw: bytes) -> str:
    return raw[:200].decode("utf-8", "replace")


# Columns ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The columns of some neighbouring lines. What is null in all of them is None.

    Attributes
    ----------
    line : Int64, shape (rows,)
    text : dict of str to tuple of str
    numbers : dict of str to array or None
        Statuses, floats and integers by field, NaN and -1 for null.
    agentic : tuple or None
    online : tuple of bool or None
    sizes : Int64, shape (rows,)
        Admissions of each line.
    history : dict of str to array or None
        Admissions, one after the other, by field.
    """

    line: Int64
    text: dict[str, tuple[str, ...]]
    numbers: dict[str, npt.NDArray[Any] | None]
    agentic: tuple[Any, ...] | None
    online: tuple[bool, ...] | None
    sizes: Int64
    history: dict[str, npt.NDArray[Any] | None]


def _by_field(records: Sequence[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each field. A tuple a record, turned around, is what Python does fastest."""
    names = records[0].__struct_fields__
    return dict(zip(names, zip(*map(astuple, records), strict=True), strict=True))


def _part(records: Sequence[Line], numbers: Int64) -> _Part:
    fields = _by_field(records)
    kept: dict[str, npt.NDArray[Any] | None] = {name: _floats(fields[name]) for name in (*INSTANTS, *FIGURES)}
    kept |= {name: _integers(fields[name]) for name in (*NUMBERS, *NULLABLE)}
    kept["status"] = _coded(fields["terminal_status"], _STATUS)
    late = fields["dispatch_lateness_ms"]
    kept["lateness"] = None if _all(late, UNSET) else _floats(tuple(None if v is UNSET else v for v in late))
    histories = fields["admission_history"]
    sizes = np.fromiter(map(len, histories), np.int64, len(histories))
    entries = list(chain.from_iterable(histories))
    return _Part(
        line=numbers,
        text={name: fields[name] for name in _TEXTS},
        numbers=kept,
        agentic=None if _all(fields["agentic"], UNSET) else tuple(None if v is UNSET else v for v in fields["agentic"]),
        online=None if _all(fields["endpoint"], UNSET) else tuple(v is not UNSET for v in fields["endpoint"]),
        sizes=sizes,
        history=_history(entries) if entries else {},
    )


def _history(entries: Sequence[Admission]) -> dict[str, npt.NDArray[Any] | None]:
    fields = _by_field(entries)
    kept: dict[str, npt.NDArray[Any] | None] = {name: _integers(fields[name]) for name in (*ADMITTED, *REUSED)}
    kept["pool"] = _coded(fields["pool"], _POOL)
    kept["at_ms"] = _floats(fields["at_ms"])
    kept["is_readmission"] = np.frombuffer(bytes(fields["is_readmission"]), np.bool_)
    return kept


def _all(values: tuple[Any, ...], value: object) -> bool:
    """Whether all are one value; of most columns none or all are, so that the first one tells."""
    return values[0] is value and values.count(value) == len(values)


def _floats(values: tuple[float | None, ...]) -> Float64 | None:
    """Return values as floats, NaN for None; None where all are."""
    if _all(values, None):
        return None
    try:
        # Several times as fast as `np.array`, which looks at the type of each.
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)
    except struct.error:
        return np.array(values, np.float64)


def _integers(values: tuple[int | None, ...]) -> Int64 | None:
    """Return values as integers, -1 for None; None where all are."""
    if _all(values, None):
        return None
    try:
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        return np.array([NEVER if value is None else value for value in values], np.int64)


def _coded(values: tuple[str, ...], codes: Mapping[str, int]) -> npt.NDArray[np.uint8]:
    if _all(values, values[0]):
        return np.full(len(values), codes[values[0]], np.uint8)
    return np.frombuffer(bytes(map(codes.__getitem__, values)), np.uint8)


def _whole_ns(times_ms: Float64) -> tuple[Int64, Bool]:
    """Return times in ns, -1 for NaN, and which are no whole number of them."""
    scaled = np.rint(times_ms * NS_PER_MS)
    absent = np.isnan(times_ms)
    away = (scaled / NS_PER_MS != times_ms) & ~absent
    scaled[absent] = NEVER
    return scaled.astype(np.int64), away


def _joined(parts: list[_Part]) -> Columns:
    sizes = [len(part.line) for part in parts]
    rows = sum(sizes)
    instants, blurred = {}, np.zeros(rows, np.bool_)
    for name in INSTANTS:
        times_ms = _together([part.numbers[name] for part in parts], sizes, np.float64, np.nan)
        if times_ms is None:
            instants[name] = np.full(rows, NEVER, np.int64)
        else:
            instants[name], away = _whole_ns(times_ms)
            blurred |= away

    def whole(name: str, kind: type[Any], null: float) -> npt.NDArray[Any]:
        column = _together([part.numbers[name] for part in parts], sizes, kind, null)
        return np.full(rows, null, kind) if column is None else column

    some_ids = any(part.agentic is not None for part in parts)
    some_online = any(part.online is not None for part in parts)
    return Columns(
        line=np.concatenate([np.zeros(0, np.int64), *(part.line for part in parts)]),
        text={name: list(chain.from_iterable(part.text[name] for part in parts)) for name in _TEXTS},
        status=whole("status", np.int64, NEVER),
        instants=instants,
        figures={name: whole(name, np.float64, np.nan) for name in FIGURES},
        numbers={name: whole(name, np.int64, NEVER) for name in (*NUMBERS, *NULLABLE)},
        agentic=[ids for part in parts for ids in part.agentic or (None,) * len(part.line)] if some_ids else [],
        lateness_ms=whole("lateness", np.float64, np.nan),
        online=np.array([each for part in parts for each in part.online or (False,) * len(part.line)], np.bool_)
        if some_online
        else np.zeros(rows, np.bool_),
        admissions=_admissions(parts, blurred),
        blurred=blurred,
    )


def _together(
    columns: Sequence[npt.NDArray[Any] | None], sizes: Sequence[int], kind: type[Any], null: float
) -> npt.NDArray[Any] | None:
    """Return columns one after the other, `null` where one is None; None where all are."""
    if all(column is None for column in columns):
        return None
    filled = [
        np.full(size, null, kind) if column is None else column for column, size in zip(columns, sizes, strict=True)
    ]
    return np.concatenate(filled, dtype=kind)


def _admissions(parts: list[_Part], blurred: Bool) -> Admissions:
    """Return all histories; `blurred` is written where an instant is no whole number of nanoseconds."""
    sizes = np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)])
    row = np.repeat(np.arange(len(sizes)), sizes)
    some = [part for part in parts if part.history]
    counts = [int(part.sizes.sum()) for part in some]

    def whole(name: str, kind: type[Any], null: float) -> npt.NDArray[Any]:
        column = _together([part.history[name] for part in some], counts, kind, null)
        return np.full(len(row), null, kind) if column is None else column

    at, away = _whole_ns(whole("at_ms", np.float64, np.nan))
    blurred[row[away]] = True
    return Admissions(
        row=row,
        ordinal=whole("admission_ordinal", np.int64, NEVER),
        pool=whole("pool", np.int64, NEVER),
        pool_ordinal=whole("pool_admission_ordinal", np.int64, NEVER),
        at=at,
        reused=whole("reused_input_tokens", np.int64, NEVER),
        g1=whole("g1_reused_input_tokens", np.int64, NEVER),
        host=whole("host_reused_input_tokens", np.int64, NEVER),
        again=whole("is_readmission", np.bool_, 0),
    )
