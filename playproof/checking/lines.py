"""The lines of requests.jsonl as columns: read strictly, nothing trusted.

A line that is no record of docs/report.md becomes a finding with its number, and is left out of everything else. What
is well-formed becomes arrays, since a corpus has tens of thousands of lines and most rules look at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType
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
CHUNK_BYTES = 1 << 18
DICTS_PER_CHUNK = 2000

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
    parts: list[Columns] = []
    number = 0
    for chunk in _chunks(lines):
        records, numbers, number = _decode(chunk, number, tally)
        parts.append(_columns(records, numbers))
    return _joined(parts), number


def _chunks(lines: Lines) -> Iterator[bytes]:
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
        yield from _encoded(first, each)
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


def _cut(data: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + CHUNK_BYTES)
        end = len(data) if end < 0 else end + 1
        yield data[begin:end]
        begin = end


def _encoded(first: Any, rest: Iterable[Any]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    chunk = [first, *islice(rest, DICTS_PER_CHUNK)]
    while chunk:
        yield encoder.encode_lines(chunk)
        chunk = list(islice(rest, DICTS_PER_CHUNK))


def _decode(chunk: bytes, before: int, tally: Tally) -> tuple[list[Line], Int64, int]:
    """Return the records of a chunk, their line numbers, and the number of the last; `before` lines come before it."""
    try:
        records = _DECODER.decode_lines(chunk)
        # The decoder passes over blank lines, and so would their numbers be.
        if len(records) == chunk.count(b"\n") + (not chunk.endswith(b"\n")):
            tally.count("run-line", len(records))
            return records, np.arange(before + 1, before + len(records) + 1), before + len(records)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    records, numbers = [], []
    for offset, raw in enumerate(chunk.removesuffix(b"\n").split(b"\n"), start=1):
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


def _columns(records: Sequence[Line], numbers: Int64) -> Columns:
    """Turn records into columns; a comprehension a column is what Python does fastest."""
    instants, blurred = {}, np.zeros(len(records), np.bool_)
    for name in INSTANTS:
        times_ms = _floats(list(map(attrgetter(name), records)))
        instants[name] = _whole_ns(times_ms, blurred) if times_ms is not None else np.full(len(records), NEVER)
    return Columns(
        line=numbers,
        text={name: list(map(attrgetter(name), records)) for name in _TEXTS},
        status=np.array([_STATUS[record.terminal_status] for record in records], np.int64),
        instants=instants,
        figures={name: np.array(list(map(attrgetter(name), records)), np.float64) for name in FIGURES},
        numbers={
            **{name: np.array(list(map(attrgetter(name), records)), np.int64) for name in NUMBERS},
            **{name: _or_none(list(map(attrgetter(name), records))) for name in NULLABLE},
        },
        agentic=_ids(records),
        lateness_ms=_lateness(records),
        online=np.array([record.endpoint is not UNSET for record in records], np.bool_),
        admissions=_admissions(records, blurred),
        blurred=blurred,
    )


def _floats(values: list[float | None]) -> Float64 | None:
    """Return values as floats, NaN for None; None where all are: many columns of a run are."""
    return None if values.count(None) == len(values) else np.array(values, np.float64)


def _ids(records: Sequence[Line]) -> list[Agentic | None]:
    ids = [record.agentic for record in records]
    return [] if ids.count(UNSET) == len(ids) else [None if isinstance(one, UnsetType) else one for one in ids]


def _lateness(records: Sequence[Line]) -> Float64:
    values = [record.dispatch_lateness_ms for record in records]
    if values.count(UNSET) == len(values):
        return np.full(len(values), np.nan)
    return np.array([None if isinstance(value, UnsetType) else value for value in values], np.float64)


def _whole_ns(times_ms: Float64, blurred: Bool, rows: Int64 | None = None) -> Int64:
    """Return times in ns, -1 for NaN; `blurred` is written where one is no whole number of them."""
    scaled = np.rint(times_ms * NS_PER_MS)
    away = scaled / NS_PER_MS != times_ms
    away &= ~np.isnan(times_ms)
    if rows is None:
        blurred |= away
    else:
        blurred[rows[away]] = True
    whole: Int64 = np.where(np.isnan(scaled), -1.0, scaled).astype(np.int64)
    return whole


def _or_none(values: list[int | None]) -> Int64:
    # Most columns of a run are null or not as a whole.
    if values.count(None) == len(values):
        return np.full(len(values), NEVER, np.int64)
    return np.array([NEVER if value is None else value for value in values], np.int64)


def _admissions(records: Sequence[Line], blurred: Bool) -> Admissions:
    histories = [record.admission_history for record in records]
    row = np.repeat(np.arange(len(records)), [len(history) for history in histories])
    entries = [entry for history in histories for entry in history]
    number = {name: np.array(list(map(attrgetter(name), entries)), np.int64) for name in (*ADMITTED, *REUSED)}
    return Admissions(
        row=row,
        ordinal=number["admission_ordinal"],
        pool=np.array([_POOL[entry.pool] for entry in entries], np.int64),
        pool_ordinal=number["pool_admission_ordinal"],
        at=_whole_ns(np.array(list(map(attrgetter("at_ms"), entries)), np.float64), blurred, row),
        reused=number["reused_input_tokens"],
        g1=number["g1_reused_input_tokens"],
        host=number["host_reused_input_tokens"],
        again=np.array(list(map(attrgetter("is_readmission"), entries)), np.bool_),
    )


def _joined(parts: list[Columns]) -> Columns:
    if not parts:
        return _columns([], np.zeros(0, np.int64))
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part) for part in parts)])

    def together(name: str) -> dict[str, Any]:
        columns = [getattr(part, name) for part in parts]
        return {key: np.concatenate([column[key] for column in columns]) for key in columns[0]}

    def admitted(name: str) -> Any:
        return np.concatenate([getattr(part.admissions, name) for part in parts])

    rows = [part.admissions.row + start for part, start in zip(parts, starts.tolist(), strict=False)]
    names = ("ordinal", "pool", "pool_ordinal", "at", "reused", "g1", "host", "again")
    return Columns(
        line=np.concatenate([part.line for part in parts]),
        text={name: [value for part in parts for value in part.text[name]] for name in _TEXTS},
        status=np.concatenate([part.status for part in parts]),
        instants=together("instants"),
        figures=together("figures"),
        numbers=together("numbers"),
        agentic=_joined_ids(parts),
        lateness_ms=np.concatenate([part.lateness_ms for part in parts]),
        online=np.concatenate([part.online for part in parts]),
        admissions=Admissions(np.concatenate(rows), *(admitted(name) for name in names)),
        blurred=np.concatenate([part.blurred for part in parts]),
    )


def _joined_ids(parts: list[Columns]) -> list[Agentic | None]:
    if not any(part.agentic for part in parts):
        return []
    return [ids for part in parts for ids in (part.agentic or [None] * len(part))]
