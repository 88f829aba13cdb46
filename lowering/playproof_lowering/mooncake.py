"""Ordinary traces into the graph: Mooncake, mooncake-delta, applied_compute_agentic.

Each session is a play of one sequence. What these rows do not tell, a model above all, is the same for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec
from playproof_spec.findings import Findings, Where
from playproof_spec.graph import MAX_TOKENS, Carried, Graph, Relation, Source, Trigger
from playproof_spec.units import HORIZON_MS

from playproof_lowering.agentic_mooncake import version_1_row
from playproof_lowering.builder import GraphBuilder
from playproof_lowering.chains import BlockIds, PrefixChain, PromptBlocks, Runs, too_many_blocks
from playproof_lowering.hash_counts import HashCounts
from playproof_lowering.identity import namespace, without_collisions
from playproof_lowering.names import repeated_name
from playproof_lowering.numbering import Numbering
from playproof_lowering.provenance import read_corpus
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.runs import OK, RunBuffer
from playproof_lowering.source import Reading, SourceFile
from playproof_lowering.wire import DecodeErrors, Problem, UnknownFields, explain, hash_ids_problem, report

__all__ = ["DEFAULT_BLOCK_SIZE", "READER", "OrdinaryFormat", "read_ordinary"]

DEFAULT_BLOCK_SIZE: Final = 512
MODEL: Final = "unspecified"
_NO_HASHES: Final = msgspec.Raw(b"[]")

Value = TypeVar("Value", int, float)

OrdinaryFormat = Literal["mooncake", "mooncake-delta", "applied_compute_agentic"]


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    output_length: int | None = None
    hash_ids: msgspec.Raw = _NO_HASHES
    request_id: str | None = None
    session_id: str | None = None
    model: str | None = None
    input_length: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    timestamp: float | None = None
    created_time: float | None = None
    delay: float | None = None
    delay_ms: float | None = None
    priority: int | None = None
    strict_priority: int | None = None
    policy_class: str | None = None


class _Agentic(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    num_turns: int
    input_prompt_length: int
    assistant_response_length: list[int]
    tool_call_output_length: list[int]
    tool_call_latency: list[float]
    final_assistant_response_length: int


_ROW = msgspec.json.Decoder(_Row)
_AGENTIC = msgspec.json.Decoder(_Agentic)


@dataclass(slots=True)
class _Step:
    """One turn of a session. `delay_ms` is from the completion of the one before it, 0 for the first."""

    request_id: str
    line: int
    model: str
    input_length: int
    output_length: int
    delay_ms: float
    runs: Runs
    private: int
    carried: Carried | None = None


@dataclass(slots=True)
class _Session:
    """The turns of one session.

    Attributes
    ----------
    named : bool
        By its rows; else it is a row of its own under the row's id.
    start_ms : float
        When it arrives, on the trace's clock.
    at_ms : float | None
        The latest timestamp of its rows.
    """

    name: str
    named: bool
    file: str
    start_ms: float
    at_ms: float | None
    chain: PrefixChain
    steps: list[_Step] = field(default_factory=list)


def read_ordinary(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    format: OrdinaryFormat,
    block_size: int | None,
    strict: bool,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read ordinary traces into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        In corpus order. Hash ids and sessions belong to their file.
    findings : Findings
        Receives what is wrong; a row with an error is left out.
    facts : dict
        Receives counts, the loads that the trace allows, and the digest.
    format : str
    block_size : int, optional
        Tokens a hash id stands for, 512 by default: the rows do not say.
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
    reader = _Reader(findings, format, size, strict)
    kept = without_collisions(files, findings)
    source = read_corpus(format, size, kept, reader.read, findings, facts, on_bytes)
    reader.hash_counts.tell(findings)
    facts["input_kind"] = "ordinary"
    timed = format != "applied_compute_agentic"
    facts["ordinary_loads"] = ["trace_timestamps", "concurrency"] if timed else ["concurrency"]
    facts["ordinary_counts"] = dict(sorted(reader.counts.items()))
    return reader.finish(source, facts)


class _Reader:
    """The state of reading one corpus."""

    def __init__(self, findings: Findings, format: OrdinaryFormat, block_size: int, strict: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._findings = findings
        self._format = format
        self._block_size = block_size
        self._unknown = UnknownFields(strict)
        self._ids = BlockIds()
        self._numbering = Numbering(self._ids)
        self._buffer = RunBuffer()
        self._sessions: dict[str, _Session] = {}
        self.hash_counts = HashCounts(block_size)

    def read(self, reading: Reading) -> None:
        """Read one file to its end."""
        self._numbering.forget()
        try:
            for where, record in reading.placed():
                self._record(record, where, namespace(reading.file, where.line))
        finally:
            self._unknown.tell(self._findings)

    def _record(self, data: bytes, where: Where, name: str) -> None:
        agentic = self._format == "applied_compute_agentic"
        row: _Row | _Agentic
        try:
            row = _AGENTIC.decode(data) if agentic else _ROW.decode(data)
        except DecodeErrors:
            explained = explain(data, _Agentic if agentic else _Row)
            older = version_1_row(explained.unknown)
            if older is not None:
                # Their rows look like ours, and the graph is in what we do not know.
                report(self._findings, [older], where)
                return
            self._unknown.note(explained.unknown, where)
            if explained.problems:
                report(self._findings, explained.problems, where)
                return
            row = _AGENTIC.decode(explained.cleaned) if agentic else _ROW.decode(explained.cleaned)
        twice = repeated_name(data)
        if twice is not None:
            report(self._findings, [twice], where)
        elif isinstance(row, _Agentic):
            self._agentic(row, where, name)
        else:
            self._row(row, where, name)

    def _row(self, row: _Row, where: Where, name: str) -> None:
        problems = list(_row_problems(row))
        timestamp = _either(row.timestamp, row.created_time, "created_time", "timestamp", problems)
        delay_ms = _either(row.delay, row.delay_ms, "delay_ms", "delay", problems)
        self._buffer.clear()
        status, ids = self._buffer.parse(row.hash_ids)
        if status != OK:
            problems.append(hash_ids_problem(row.hash_ids, status, ids, "hash_ids"))
        input_length = _either(row.input_length, row.input_tokens, "input_tokens", "input_length", problems)
        output_length = _either(row.output_length, row.output_tokens, "output_tokens", "output_length", problems)
        if output_length is None:
            message = "`output_length` is missing"
            problems.append(Problem("field-missing", "output_length", message, "nothing", "an integer"))
        length = input_length if input_length is not None else ids * self._block_size
        if length == 0 and not problems:
            message = "the row has neither a length nor hash ids"
            problems.append(Problem("field-missing", "input_length", message, "nothing", "a number"))
        request_id = row.request_id if row.request_id is not None else name
        session = self._sessions.get(row.session_id if row.session_id is not None else request_id)
        if session is None and timestamp is None:
            message = "the first row of a session says when it arrives"
            problems.append(Problem("field-missing", "timestamp", message, "nothing", "milliseconds"))
        if session is None and delay_ms is not None:
            message = "the first row of a session waits for nothing"
            problems.append(Problem("delay-without-turn", "delay", message, f"{delay_ms:g}", "no delay"))
        if session is not None and (row.session_id is None or not session.named):
            field = "request_id" if row.session_id is None else "session_id"
            message = "an earlier row has this id" if not session.named else "an earlier row's session has this id"
            problems.append(Problem("id-duplicate", field, message, session.name, "another id"))
        elif session is not None and session.file != where.file:
            message = f"the session has rows in {session.file} too"
            problems.append(Problem("play-across-files", "session_id", message, session.name, "one file"))
        if session is not None and delay_ms is None:
            delay_ms = self._difference(session, timestamp, problems)
        if problems:
            report(self._findings, problems, where)
            return
        if not self.hash_counts.fits(length, ids, where):
            return
        self.counts["rows_without_hashes"] += ids == 0
        if session is None:
            session = self._begin(row.session_id, request_id, where, timestamp or 0.0)
        carried = _carried(row)
        step = _Step(
            request_id, where.line, row.model or MODEL, length, output_length or 0, delay_ms or 0.0, [], 0, carried
        )
        if timestamp is not None:
            session.at_ms = timestamp
        self._append(session, step, where)

    def _difference(self, session: _Session, timestamp: float | None, problems: list[Problem]) -> float:
        """Return how long after the turn before it this one was recorded."""
        if timestamp is None or session.at_ms is None:
            return 0.0
        if timestamp < session.at_ms:
            message = f"the turn before it is stamped {session.at_ms:g} ms"
            wanted = f"at least {session.at_ms:g}"
            problems.append(Problem("time-negative", "timestamp", message, f"{timestamp:g}", wanted))
        return max(timestamp - session.at_ms, 0.0)

    def _begin(self, session_id: str | None, request_id: str, where: Where, start_ms: float) -> _Session:
        """Begin a session; a row without one is one by itself."""
        chain = PrefixChain(self._ids, self._block_size)
        name = request_id if session_id is None else session_id
        session = _Session(name, session_id is not None, where.file, start_ms, start_ms, chain)
        self._sessions[name] = session
        self.counts["sessions"] += 1
        return session

    def _append(self, session: _Session, step: _Step, where: Where) -> None:
        """Add a turn whose hash ids are in the buffer."""
        full, tail = divmod(step.input_length, self._block_size)
        if self._buffer.used and (self._format == "mooncake" or not session.steps):
            step.runs = self._numbering.runs(self._buffer)
            step.private = full + (1 if tail else 0) - sum(count for _, count in step.runs)
            # Later prompts of a delta trace go on from the full blocks; the partial one ends differently in each.
            session.chain.resume(step.runs, step.input_length)
        elif self._format == "mooncake" or not session.steps:
            step.runs = session.chain.extend(step.input_length, 0) if self._format != "mooncake" else []
            step.private = full + (1 if tail else 0) - sum(count for _, count in step.runs)
        else:
            before = session.steps[-1]
            self._lengthen(session, step, before, where, "input_length")
            if step.input_length > MAX_TOKENS:
                return
        session.steps.append(step)
        self.counts["requests"] += 1

    def _lengthen(self, session: _Session, step: _Step, before: _Step, where: Where, path: str) -> None:
        """Put the conversation so far before a turn that tells only what is new, with a number at `path`."""
        step.input_length += before.input_length + before.output_length
        if step.input_length > MAX_TOKENS:
            message = "with the turns before it the prompt is out of bounds"
            found = str(step.input_length)
            problem = Problem("length-out-of-bounds", path, message, found, f"at most {MAX_TOKENS}")
            report(self._findings, [problem], where)
            return
        step.runs = session.chain.extend(step.input_length, 0)
        step.private = 1 if step.input_length % self._block_size else 0

    def _agentic(self, row: _Agentic, where: Where, name: str) -> None:
        problems = list(_agentic_problems(row))
        if problems:
            report(self._findings, problems, where)
            return
        session = self._begin(None, name, where, 0.0)
        outputs = [*row.assistant_response_length, row.final_assistant_response_length]
        for turn, output_length in enumerate(outputs):
            step = _Step(f"{name}:{turn}", where.line, MODEL, row.input_prompt_length, output_length, 0.0, [], 0)
            if turn == 0:
                step.runs = session.chain.extend(step.input_length, 0)
                step.private = 1 if step.input_length % self._block_size else 0
            else:
                step.input_length = row.tool_call_output_length[turn - 1]
                step.delay_ms = row.tool_call_latency[turn - 1] * 1000.0
                path = f"tool_call_output_length[{turn - 1}]"
                self._lengthen(session, step, session.steps[-1], where, path)
                if step.input_length > MAX_TOKENS:
                    return
            session.steps.append(step)
            self.counts["requests"] += 1

    def finish(self, source: Source, facts: dict[str, object]) -> Graph | None:
        """Make the graph of what was read."""
        sessions = [session for session in self._sessions.values() if session.steps]
        if not sessions:
            return None
        declared = self._ids.used + sum(step.private for session in sessions for step in session.steps)
        if too_many_blocks(declared, Where(file=sessions[0].file), self._findings):
            return None
        builder = GraphBuilder(self._block_size)
        blocks = PromptBlocks()
        handles: dict[str, int] = {}
        origin_ms = min(session.start_ms for session in sessions)
        for session in sessions:
            if session.file not in handles:
                handles[session.file] = builder.file(session.file)
            builder.play(session.name, builder.play_count)
        # Row by row: what is due at one instant goes in that order. Rows of one line are turns of one session.
        turns = ((session, turn) for session in sessions for turn in range(len(session.steps)))
        for session, turn in sorted(turns, key=lambda each: (handles[each[0].file], each[0].steps[each[1]].line)):
            step = session.steps[turn]
            number = builder.node(
                request_id=step.request_id,
                source_request_id=step.request_id,
                play=builder.play(session.name, None),
                session_id=session.name,
                model=step.model,
                input_length=step.input_length,
                output_length=step.output_length,
                not_before_ms=0.0 if turn else session.start_ms - origin_ms,
                recorded_api_time_ms=None,
                file=handles[session.file],
                line=step.line,
                carried=step.carried,
            )
            if turn:
                before = session.steps[turn - 1].request_id
                builder.edge(number, before, Relation.SEQUENCE, Trigger.COMPLETION, step.delay_ms)
            blocks.add(step.runs, step.private)
        blocks.assign(builder, self._ids.used)
        return builder.finish(source, facts)


def _row_problems(row: _Row) -> list[Problem]:
    problems = []
    for name, least in (("input_length", 1), ("input_tokens", 1), ("output_length", 0), ("output_tokens", 0)):
        value = getattr(row, name)
        if value is not None and not least <= value <= MAX_TOKENS:
            wanted = f"{least} … {MAX_TOKENS}"
            problems.append(Problem("length-out-of-bounds", name, "out of bounds", str(value)[:60], wanted))
    for name in ("timestamp", "created_time", "delay", "delay_ms"):
        problems += _time_problems(getattr(row, name), name, 1.0)
    for name in ("request_id", "session_id", "model"):
        if getattr(row, name) == "":
            problems.append(Problem("id-empty", name, "the name is empty", '""', "a name, or no field"))
    for name, low, high in (("priority", -(2**31), 2**31 - 1), ("strict_priority", 0, 2**32 - 1)):
        value = getattr(row, name)
        if value is not None and not low <= value <= high:
            problems.append(Problem("number-out-of-range", name, "out of range", str(value)[:60], f"{low} … {high}"))
    return problems


def _time_problems(value: float | None, path: str, ms: float) -> list[Problem]:
    """Return what is wrong with a time of units of `ms` milliseconds."""
    if value is None or 0 <= value * ms <= HORIZON_MS:
        return []
    if value < 0:
        return [Problem("time-negative", path, "the time is negative", repr(value), "0 or more")]
    wanted = f"at most {HORIZON_MS / ms:.0f}"
    return [Problem("time-beyond-horizon", path, "the time lies beyond the clock", repr(value), wanted)]


def _agentic_problems(row: _Agentic) -> list[Problem]:
    problems = []
    lists = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
    for name in lists:
        values = getattr(row, name)
        if len(values) != row.num_turns:
            message = f"the row has {row.num_turns} turns"
            problems.append(
                Problem("turns-mismatch", name, message, f"{len(values)} values", f"{row.num_turns} values")
            )
    if not 1 <= row.input_prompt_length <= MAX_TOKENS:
        found = str(row.input_prompt_length)[:60]
        problems.append(
            Problem("length-out-of-bounds", "input_prompt_length", "out of bounds", found, f"1 … {MAX_TOKENS}")
        )
    lengths = [("final_assistant_response_length", row.final_assistant_response_length)]
    for name in lists[:2]:
        lengths += [(f"{name}[{place}]", value) for place, value in enumerate(getattr(row, name))]
    for path, value in lengths:
        if not 0 <= value <= MAX_TOKENS:
            problems.append(
                Problem("length-out-of-bounds", path, "out of bounds", str(value)[:60], f"0 … {MAX_TOKENS}")
            )
    for place, seconds in enumerate(row.tool_call_latency):
        problems += _time_problems(seconds, f"tool_call_latency[{place}]", 1000.0)
    return problems


def _either(
    value: Value | None, alias: Value | None, alias_name: str, name: str, problems: list[Problem]
) -> Value | None:
    """Return what the row gives under either name."""
    if value is not None and alias is not None:
        problems.append(Problem("field-conflict", alias_name, f"the row has {name} too", f"{alias:g}", "one of them"))
    return alias if value is None else value


def _carried(row: _Row) -> Carried | None:
    if not (row.priority or row.strict_priority or row.policy_class is not None):
        return None
    return Carried(row.priority or 0, row.strict_priority or 0, row.policy_class, None)


def _marks(head: Head) -> Confidence:
    lengths = head.has_any("input_length", "input_tokens") and head.has_any("output_length", "output_tokens")
    known = head.has("hash_ids") or lengths
    return Confidence.ALIKE if known else Confidence.NONE


READER: Final = Reader(
    name="mooncake",
    title="Mooncake rows",
    marks=_marks,
    read=partial(read_ordinary, format="mooncake"),
    options=("block_size", "strict"),
)
