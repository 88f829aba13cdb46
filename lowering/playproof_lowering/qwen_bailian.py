"""Qwen-Bailian usage traces: one row a chat turn, times in seconds, each turn naming the one that it goes on from.

A conversation is a tree: most turns have one turn behind them, and a question that was asked again has several. Each
tree is a play; its turns wait for the turn before them and for the time that passed between the two arrivals, as the
turns of Mooncake sessions do, since rows do not say how long an answer took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.catalogue import Kind, Severity
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS, Graph, Relation, Source, Trigger
from playproof_spec.units import HORIZON_NS, NS_PER_MS, NS_PER_S

from playproof_lowering.agentic_mooncake import version_1_row
from playproof_lowering.builder import GraphBuilder
from playproof_lowering.chains import BlockIds, PromptBlocks, Runs, too_many_blocks
from playproof_lowering.hash_counts import HashCounts
from playproof_lowering.identity import namespace, without_collisions
from playproof_lowering.names import repeated_name
from playproof_lowering.numbering import Numbering
from playproof_lowering.provenance import read_corpus
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.runs import OK, RunBuffer
from playproof_lowering.source import Reading, SourceFile
from playproof_lowering.wire import DecodeErrors, Problem, UnknownFields, explain, hash_ids_problem, report

__all__ = ["DEFAULT_BLOCK_SIZE", "READER", "read_qwen_bailian"]

DEFAULT_BLOCK_SIZE: Final = 16
MODEL: Final = "unspecified"
NO_PARENT: Final = -1


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    chat_id: int
    parent_chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: msgspec.Raw
    # What kind of chat it is, and its place in the conversation; the links say more.
    type: str | None = None
    turn: int | None = None


_ROW = msgspec.json.Decoder(_Row)


@dataclass(slots=True, eq=False)
class _Turn:
    """One row. `parent` is the turn that it goes on from; `goes_on` tells whether a turn has gone on from this one."""

    request_id: str
    file: str
    line: int
    at_ns: int
    input_length: int
    output_length: int
    runs: Runs
    private: int
    parent: _Turn | None
    session: str = ""
    goes_on: bool = False


@dataclass(slots=True)
class _File:
    """What is known of one file: its turns by chat id, and the rows whose parent is none of them so far."""

    turns: dict[int, _Turn] = field(default_factory=dict)
    orphans: list[tuple[Where, int]] = field(default_factory=list)


def read_qwen_bailian(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    strict: bool,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read Qwen-Bailian rows into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        In corpus order. Chat ids and hash ids belong to their file.
    findings : Findings
        Receives what is wrong; a row with an error is left out.
    facts : dict
        Receives counts, the loads that the trace allows, and the digest.
    block_size : int, optional
        Tokens a hash id stands for, 16 by default: the rows do not say.
    strict : bool
        Unknown fields are errors.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no sound row.
    """
    size = block_size or DEFAULT_BLOCK_SIZE
    lowering = _Lowering(findings, size, strict)
    kept = without_collisions(files, findings)
    source = read_corpus(READER.name, size, kept, lowering.read, findings, facts, on_bytes)
    lowering.hash_counts.tell(findings)
    facts["input_kind"] = "ordinary"
    facts["ordinary_loads"] = ["trace_timestamps", "concurrency"]
    facts["ordinary_counts"] = dict(sorted(lowering.counts.items()))
    return lowering.finish(source, facts)


class _Lowering:
    """The state of reading one corpus."""

    def __init__(self, findings: Findings, block_size: int, strict: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.hash_counts = HashCounts(block_size)
        self._findings = findings
        self._block_size = block_size
        self._unknown = UnknownFields(strict)
        self._ids = BlockIds()
        self._numbering = Numbering(self._ids)
        self._buffer = RunBuffer()
        self._turns: list[_Turn] = []

    def read(self, reading: Reading) -> None:
        """Read one file to its end."""
        self._numbering.forget()
        seen = _File()
        try:
            for where, record in reading.placed():
                self._record(record, where, namespace(reading.file), seen)
        finally:
            self._unknown.tell(self._findings)
            self._tell_orphans(seen)

    def _record(self, data: bytes, where: Where, name: str, seen: _File) -> None:
        try:
            row = _ROW.decode(data)
        except DecodeErrors:
            explained = explain(data, _Row)
            older = version_1_row(explained.unknown)
            if older is not None or explained.problems:
                report(self._findings, [older] if older is not None else explained.problems, where)
                return
            self._unknown.note(explained.unknown, where)
            row = _ROW.decode(explained.cleaned)
        twice = repeated_name(data)
        problems = [twice] if twice is not None else list(_row_problems(row))
        self._buffer.clear()
        status, ids = self._buffer.parse(row.hash_ids)
        if status != OK:
            problems.append(hash_ids_problem(row.hash_ids, status, ids, "hash_ids"))
        if row.chat_id in seen.turns:
            message = f"the row of line {seen.turns[row.chat_id].line} has this id too"
            problems.append(Problem("id-duplicate", "chat_id", message, str(row.chat_id), "another id"))
        parent = seen.turns.get(row.parent_chat_id)
        if parent is not None and not problems and _ns(row.timestamp) < parent.at_ns:
            message = f"chat {row.parent_chat_id}, which it goes on from, is stamped {parent.at_ns / NS_PER_S:g} s"
            wanted = f"at least {parent.at_ns / NS_PER_S:g}"
            problems.append(Problem("time-negative", "timestamp", message, f"{row.timestamp:g}", wanted))
        if problems:
            report(self._findings, problems, where)
            return
        if not self.hash_counts.fits(row.input_length, ids, where):
            return
        if parent is None and row.parent_chat_id != NO_PARENT:
            seen.orphans.append((where, row.parent_chat_id))
        self._append(row, parent, where, name, ids, seen)

    def _append(self, row: _Row, parent: _Turn | None, where: Where, name: str, ids: int, seen: _File) -> None:
        """Add a turn whose hash ids are in the buffer."""
        blocks = -(-row.input_length // self._block_size)
        turn = _Turn(
            request_id=f"{name}:{row.chat_id}",
            file=where.file,
            line=where.line,
            at_ns=_ns(row.timestamp),
            input_length=row.input_length,
            output_length=row.output_length,
            runs=self._numbering.runs(self._buffer),
            private=blocks - ids,
            parent=parent,
        )
        # The first turn that goes on from another one is of its conversation; later ones are told apart from it.
        turn.session = turn.request_id if parent is None or parent.goes_on else parent.session
        if parent is not None:
            self.counts["branches"] += parent.goes_on
            parent.goes_on = True
        self.counts["rows_without_hashes"] += ids == 0
        self.counts["requests"] += 1
        self.counts["sessions"] += turn.session == turn.request_id
        seen.turns[row.chat_id] = turn
        self._turns.append(turn)

    def _tell_orphans(self, seen: _File) -> None:
        """Tell of rows whose parent is not there; one that comes later contradicts them."""
        missing = []
        for where, parent in seen.orphans:
            later = seen.turns.get(parent)
            if later is None:
                missing.append((where, parent))
                continue
            message = f"chat {parent}, which it goes on from, comes only on line {later.line}"
            wanted = "rows in the order of their arrival"
            report(self._findings, [Problem("parent-conflict", "parent_chat_id", message, str(parent), wanted)], where)
        if missing:
            self.counts["turns_without_parent"] += len(missing)
            where, parent = missing[0]
            at = Where(file=where.file, line=where.line, field="parent_chat_id")
            message = f"{len(missing)} turns go on from chats that the file does not have"
            self._findings.add(finding("turn-orphaned", message, where=at, found=parent, wanted="a chat of the file"))

    def finish(self, source: Source, facts: dict[str, object]) -> Graph | None:
        """Make the graph of what was read: plays in the order of arrival, the turns of each as they came."""
        if not self._turns:
            return None
        declared = self._ids.used + sum(turn.private for turn in self._turns)
        if too_many_blocks(declared, Where(file=self._turns[0].file), self._findings):
            return None
        plays: dict[str, list[_Turn]] = {}
        root_of: dict[str, str] = {}
        for turn in self._turns:
            root = turn.request_id if turn.parent is None else root_of[turn.parent.request_id]
            root_of[turn.request_id] = root
            plays.setdefault(root, []).append(turn)
        builder = GraphBuilder(self._block_size)
        blocks = PromptBlocks()
        handles: dict[str, int] = {}
        ordered = sorted(plays.items(), key=lambda play: play[1][0].at_ns)
        origin_ns = ordered[0][1][0].at_ns
        for play_id, turns in ordered:
            play = builder.play(play_id, builder.play_count)
            for turn in turns:
                if turn.file not in handles:
                    handles[turn.file] = builder.file(turn.file)
                number = builder.node(
                    request_id=turn.request_id,
                    source_request_id=turn.request_id,
                    play=play,
                    session_id=turn.session,
                    model=MODEL,
                    input_length=turn.input_length,
                    output_length=turn.output_length,
                    not_before_ms=0.0 if turn.parent is not None else (turn.at_ns - origin_ns) / NS_PER_MS,
                    recorded_api_time_ms=None,
                    file=handles[turn.file],
                    line=turn.line,
                )
                if turn.parent is not None:
                    delay_ms = (turn.at_ns - turn.parent.at_ns) / NS_PER_MS
                    builder.edge(number, turn.parent.request_id, Relation.SEQUENCE, Trigger.COMPLETION, delay_ms)
                blocks.add(turn.runs, turn.private)
        blocks.assign(builder, self._ids.used)
        return builder.finish(source, facts)


def _ns(seconds: float) -> int:
    """Return seconds of the trace's clock in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def _row_problems(row: _Row) -> list[Problem]:
    problems = []
    for name, least in (("input_length", 1), ("output_length", 0)):
        value = getattr(row, name)
        if not least <= value <= MAX_TOKENS:
            wanted = f"{least} … {MAX_TOKENS}"
            problems.append(Problem("length-out-of-bounds", name, "out of bounds", str(value)[:60], wanted))
    if row.timestamp < 0:
        problems.append(Problem("time-negative", "timestamp", "the time is negative", repr(row.timestamp), "0 or more"))
    elif row.timestamp > HORIZON_NS / NS_PER_S:
        wanted = f"at most {HORIZON_NS / NS_PER_S:.0f}"
        message = "the time lies beyond the clock"
        problems.append(Problem("time-beyond-horizon", "timestamp", message, repr(row.timestamp), wanted))
    if row.chat_id < 0:
        problems.append(Problem("number-out-of-range", "chat_id", "out of range", str(row.chat_id)[:60], "0 or more"))
    if row.parent_chat_id == row.chat_id:
        message = "the chat goes on from itself"
        problems.append(Problem("parent-conflict", "parent_chat_id", message, str(row.chat_id)[:60], "another chat"))
    return problems


def _marks(head: Head) -> Confidence:
    return Confidence.SIGNED if head.has("chat_id", "parent_chat_id") else Confidence.NONE


READER: Final = Reader(
    name="qwen-bailian",
    title="Qwen-Bailian chat turns",
    marks=_marks,
    read=read_qwen_bailian,
    options=("block_size", "strict"),
    kinds=(
        Kind(
            "turn-orphaned",
            Severity.WARNING,
            "chat turns whose conversation begins before the file",
            "What such a turn waited for is not known, so it arrives at its recorded time as a play of its own.",
            "Nothing needs to be done where the trace is a window of a longer one; else add the rows before it.",
            "`parent_chat_id` 7 in a file without a row of `chat_id` 7",
        ),
    ),
)
