"""The wire of Dynamo request traces: rows, plain or in the envelope of a sink, and what stays of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS
from playproof_spec.units import HORIZON_MS, NS_PER_MS

from playproof_lowering.chains import BlockIds
from playproof_lowering.names import repeated_name
from playproof_lowering.numbering import Numbering
from playproof_lowering.runs import OK, RunBuffer
from playproof_lowering.source import Reading
from playproof_lowering.turns import Turn
from playproof_lowering.wire import Problem, decoded, hash_ids_problem, report

__all__ = ["SCHEMAS", "AgentTool", "DynamoRows", "Session"]

# Rows of the older agent traces have the same fields.
SCHEMAS: Final = ("dynamo.request.trace.v1", "dynamo.agent.trace.v1")
# Compact rows do not say which model was asked.
MODEL: Final = "unspecified"
MAX_BLOCK_SIZE: Final = 2**20
SKIPPED: Final = frozenset({"request_payload", "tool_start"})
_ABSENT: Final = msgspec.Raw(b"")


class _AgentContext(msgspec.Struct):
    # With a trajectory, the session is the whole run and the trajectory is one conversation of it.
    session_id: str | None = None
    parent_session_id: str | None = None
    trajectory_id: str | None = None
    parent_trajectory_id: str | None = None


class _Row(msgspec.Struct):
    schema: str | None = None
    event_type: str | None = None
    event_time_unix_ms: float | int | None = None
    agent_context: _AgentContext | None = None
    request: msgspec.Raw = _ABSENT
    tool: msgspec.Raw = _ABSENT
    # A sink's envelope: {timestamp, event}.
    event: msgspec.Raw = _ABSENT


class _Replay(msgspec.Struct):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: msgspec.Raw


class _Request(msgspec.Struct):
    request_id: str
    output_tokens: int
    model: str | None = None
    request_received_ms: float | int | None = None
    total_time_ms: float | int | None = None
    replay: _Replay | None = None


class _ClaudeTool(msgspec.Struct):
    source_request_id: str | None = None
    child_session_id: str | None = None
    execution_mode: str | None = None
    consumer_request_id: str | None = None


class _Tool(msgspec.Struct):
    started_at_unix_ms: float | int | None = None
    ended_at_unix_ms: float | int | None = None
    duration_ms: float | int | None = None
    claude: _ClaudeTool | None = None


_ROW = msgspec.json.Decoder(_Row)
_REQUEST = msgspec.json.Decoder(_Request)
_TOOL = msgspec.json.Decoder(_Tool)


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool record that ran an agent: which session, for whom. Empty names are not stated.

    Attributes
    ----------
    where, path : Where, str
        Its row, and its JSON path there.
    begun_ns : int
        Nanoseconds since 1970, -1 where that is not stated.
    """

    child: str
    session: str
    source: str
    consumer: str
    mode: str
    where: Where
    path: str
    begun_ns: int


@dataclass(slots=True, eq=False)
class Session:
    """The requests of one session, or of one trajectory of it.

    Attributes
    ----------
    parent : str
        Empty for none.
    where, path : Where, str
        The row that named the parent, else the first row, and the JSON path of its context.
    tool_windows : list of (int, int)
        Begin and end of its tools, in nanoseconds since 1970.
    """

    name: str
    where: Where
    path: str
    parent: str = ""
    turns: list[Turn] = field(default_factory=list)
    tool_windows: list[tuple[int, int]] = field(default_factory=list)


class DynamoRows:
    """Reads shards.

    Parameters
    ----------
    findings : Findings
        Receives what is wrong; a row with an error is left out.
    block_size : int, optional
        What the rows must say.

    Attributes
    ----------
    sessions : dict of Session
        By id; a request without context is under an empty one.
    tools : dict of dict of AgentTool
        By the session that the tool ran, then by what the record says.
    ids : BlockIds
        Counts the distinct hashes.
    block_size : int
    counts : Counter
    """

    def __init__(self, findings: Findings, block_size: int | None) -> None:
        self.sessions: dict[str, Session] = {}
        self.tools: dict[str, dict[tuple[str, str, str], AgentTool]] = {}
        self.counts: Counter[str] = Counter()
        self.ids = BlockIds()
        self._numbering = Numbering(self.ids)
        self.block_size = 0
        self._findings = findings
        self._asked_block_size = block_size
        self._block_size_from = ""
        self._where_of: dict[str, Where] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._named: dict[str, tuple[str, str]] = {}
        self._buffer = RunBuffer()
        self._first_with: Where | None = None
        self._first_without: Where | None = None

    @property
    def agentic(self) -> bool:
        """Whether the requests have an agent context."""
        return self._first_with is not None

    def turns(self) -> list[Turn]:
        """Return the requests of all sessions."""
        return [turn for session in self.sessions.values() for turn in session.turns]

    def check_contexts(self) -> None:
        """Refuse a corpus of which some requests have an agent context and some have none."""
        if self._first_with is not None and self._first_without is not None:
            message = f"this request has no agent context, {self._first_with} has one"
            wanted = "a context in every row, or in none"
            self._findings.add(
                finding("context-mixed", message, where=self._first_without, found="no agent_context", wanted=wanted)
            )

    def read(self, reading: Reading) -> None:
        """Read one shard to its end.

        Raises
        ------
        SourceError
            When the file cannot be read on.
        """
        for where, record in reading.placed():
            self._record(record, where)

    def _record(self, data: bytes, where: Where) -> None:
        row = decoded(_ROW, data, where, self._findings)
        prefix = ""
        if row is not None and row.event and row.event_type is None:
            prefix = "event"
            row = decoded(_ROW, row.event, where, self._findings, prefix)
        if row is None:
            return
        twice = repeated_name(data)
        problems = [twice] if twice is not None else []
        if row.schema not in SCHEMAS:
            message = "another schema, or none"
            problems.append(Problem("value-unknown", _under(prefix, "schema"), message, str(row.schema), SCHEMAS[0]))
        elif row.event_type is None:
            path = _under(prefix, "event_type")
            problems.append(Problem("field-missing", path, "`event_type` is missing", "nothing", "a string"))
        if problems:
            report(self._findings, problems, where)
        elif row.event_type == "request_end":
            self._request_end(row, where, prefix)
        elif row.event_type in ("tool_end", "tool_error"):
            self._tool_end(row, where, prefix)
        elif row.event_type in SKIPPED:
            self.counts["rows_skipped"] += 1
        else:
            problem = Problem(
                "event-unknown",
                _under(prefix, "event_type"),
                "no such event",
                row.event_type or "",
                "request_end, tool_end, tool_error, request_payload or tool_start",
            )
            report(self._findings, [problem], where)

    def _session(self, context: _AgentContext | None, where: Where, prefix: str) -> Session:
        name, parent = self._identity(context)
        session = self.sessions.setdefault(name, Session(name, where, _under(prefix, "agent_context")))
        if parent and not session.parent:
            session.parent = parent
            session.where, session.path = where, _under(prefix, "agent_context")
        elif parent and parent != session.parent:
            message = f"session {name} has parent {session.parent} at {session.where}"
            field = "parent_session_id" if context is None or not context.trajectory_id else "parent_trajectory_id"
            path = _under(prefix, f"agent_context.{field}")
            report(self._findings, [Problem("parent-conflict", path, message, parent, session.parent)], where)
        return session

    def _identity(self, context: _AgentContext | None) -> tuple[str, str]:
        """Return the names of a request's conversation and of the one that spawned it, empty where there is none."""
        if context is None:
            return "", ""
        session, trajectory = context.session_id or "", context.trajectory_id or ""
        if not trajectory:
            return self._name(session, ""), self._name(context.parent_session_id or "", "")
        return self._name(session, trajectory), self._name(session, context.parent_trajectory_id or "", within=True)

    def _name(self, session: str, trajectory: str, within: bool = False) -> str:
        """Return the one name of a conversation: two runs may call trajectories alike."""
        if not (trajectory or (session and not within)):
            return ""
        key = (session, trajectory)
        if key not in self._names:
            # Trajectory ids often begin with the run's already.
            short = not session or trajectory.startswith(session)
            name = trajectory if trajectory and short else ":".join(part for part in key if part)
            while name in self._named:
                name += "~"
            self._names[key] = name
            self._named[name] = key
        return self._names[key]

    def _tool_end(self, row: _Row, where: Where, prefix: str) -> None:
        self.counts["tool_rows"] += 1
        if not row.tool:
            problem = Problem("field-missing", _under(prefix, "tool"), "`tool` is missing", "nothing", "an object")
            report(self._findings, [problem], where)
            return
        tool = decoded(_TOOL, row.tool, where, self._findings, _under(prefix, "tool"))
        if tool is None:
            return
        if row.agent_context is None:
            # Whose time it took is not said, so no request waited for it as far as anybody knows.
            self.counts["tool_rows_without_context"] += 1
            return
        problems = self._context_problems(row.agent_context, prefix)
        window = _window(row, tool, prefix, problems)
        if problems:
            report(self._findings, problems, where)
            return
        session = self._session(row.agent_context, where, prefix)
        if window is not None:
            session.tool_windows.append(window)
        claude = tool.claude
        if claude is not None and claude.child_session_id:
            record = AgentTool(
                child=claude.child_session_id,
                session=session.name,
                source=claude.source_request_id or "",
                consumer=claude.consumer_request_id or "",
                mode=claude.execution_mode or "",
                where=where,
                path=_under(prefix, "tool.claude"),
                begun_ns=-1 if window is None else window[0],
            )
            # A record that is told twice is one.
            self.tools.setdefault(record.child, {}).setdefault((record.session, record.source, record.consumer), record)

    def _request_end(self, row: _Row, where: Where, prefix: str) -> None:
        place = _under(prefix, "request")
        if not row.request:
            problem = Problem("field-missing", place, "`request` is missing", "nothing", "an object")
            report(self._findings, [problem], where)
            return
        request = decoded(_REQUEST, row.request, where, self._findings, place)
        if request is None:
            return
        named = Where(file=where.file, line=where.line, ids=(request.request_id,) if request.request_id else ())
        problems = list(self._request_problems(request, place))
        if row.agent_context is not None:
            problems += self._context_problems(row.agent_context, prefix)
        times = _times(row, request, prefix, problems)
        if request.replay is not None and not problems:
            self._hashes(request.replay, f"{place}.replay", problems)
        earlier = self._where_of.setdefault(request.request_id, where)
        if earlier is not where:
            message = f"the request of {earlier} has this id too"
            problems.append(Problem("id-duplicate", f"{place}.request_id", message, request.request_id, "another id"))
        if problems or times is None or request.replay is None:
            report(self._findings, problems, named)
            return
        session = self._session(row.agent_context, where, prefix)
        if row.agent_context is None:
            self._first_without = self._first_without or where
        else:
            self._first_with = self._first_with or where
        session.turns.append(
            Turn(
                request_id=request.request_id,
                label=request.request_id,
                session=session.name or request.request_id,
                model=request.model or MODEL,
                input_length=request.replay.input_length,
                output_length=request.output_tokens,
                start_ns=times[0],
                end_ns=times[1],
                file=where.file,
                line=where.line,
                runs=self._numbering.runs(self._buffer),
            )
        )

    @staticmethod
    def _context_problems(context: _AgentContext, prefix: str) -> list[Problem]:
        problems = []
        for name in ("session_id", "trajectory_id"):
            if getattr(context, name) == "":
                path = _under(prefix, f"agent_context.{name}")
                problems.append(Problem("id-empty", path, "the id is empty", '""', "an id"))
        if context.session_id is None and context.trajectory_id is None:
            path = _under(prefix, "agent_context.session_id")
            message = "the context names neither a session nor a trajectory"
            problems.append(Problem("field-missing", path, message, "nothing", "an id"))
        return problems

    def _request_problems(self, request: _Request, place: str) -> list[Problem]:
        problems = []
        for name in ("request_id", "model"):
            if getattr(request, name) == "":
                problems.append(Problem("id-empty", f"{place}.{name}", "the name is empty", '""', "a name"))
        if not 0 <= request.output_tokens <= MAX_TOKENS:
            found = str(request.output_tokens)[:60]
            problems.append(
                Problem("length-out-of-bounds", f"{place}.output_tokens", "out of bounds", found, f"0 … {MAX_TOKENS}")
            )
        if request.replay is None:
            message = "the row has no replay block"
            problems.append(Problem("replay-missing", f"{place}.replay", message, "nothing", "an object"))
        elif not 1 <= request.replay.input_length <= MAX_TOKENS:
            path = f"{place}.replay.input_length"
            found = str(request.replay.input_length)[:60]
            problems.append(Problem("length-out-of-bounds", path, "out of bounds", found, f"1 … {MAX_TOKENS}"))
        if request.replay is not None:
            problems += self._block_size_problems(request.replay.trace_block_size, f"{place}.replay.trace_block_size")
        return problems

    def _block_size_problems(self, size: int, path: str) -> list[Problem]:
        if not 1 <= size <= MAX_BLOCK_SIZE:
            return [Problem("block-size", path, "out of bounds", str(size)[:60], f"1 … {MAX_BLOCK_SIZE}")]
        if self._asked_block_size is not None and size != self._asked_block_size:
            message = "the row has another block size than the option says"
            return [Problem("block-size-mismatch", path, message, str(size), str(self._asked_block_size))]
        if self.block_size not in (0, size):
            message = f"{self._block_size_from} has block size {self.block_size}"
            return [Problem("block-size-mixed", path, message, str(size), str(self.block_size))]
        self.block_size = size
        return []

    def _hashes(self, replay: _Replay, place: str, problems: list[Problem]) -> None:
        """Read the hashes of one prompt into the buffer."""
        self._buffer.clear()
        path = f"{place}.input_sequence_hashes"
        status, ids = self._buffer.parse(replay.input_sequence_hashes)
        blocks = -(-replay.input_length // replay.trace_block_size)
        if status != OK:
            problems.append(hash_ids_problem(replay.input_sequence_hashes, status, ids, path))
        elif ids != blocks:
            message = f"{replay.input_length} tokens have {blocks} blocks of {replay.trace_block_size}"
            problems.append(Problem("hash-count", path, message, f"{ids} hashes", f"{blocks} hashes"))


def _under(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _sound(ms: float) -> bool:
    return 0 <= ms <= HORIZON_MS


def _ns(ms: float) -> int:
    """Return milliseconds since 1970 in nanoseconds; whole ones exactly."""
    whole = int(ms)
    return whole * NS_PER_MS + round((ms - whole) * NS_PER_MS)


def _time_problems(times: Iterable[tuple[str, float | None]]) -> Iterator[Problem]:
    """Yield what is wrong with times in milliseconds, given with their JSON paths."""
    for path, value in times:
        if value is not None and not _sound(value):
            code = "time-negative" if value < 0 else "time-beyond-horizon"
            message = "the time is negative" if value < 0 else "the time lies beyond the clock"
            yield Problem(code, path, message, str(value)[:60], f"0 … {HORIZON_MS:.0f} ms")


def _window(row: _Row, tool: _Tool, prefix: str, problems: list[Problem]) -> tuple[int, int] | None:
    """Return when a tool began and ended, in nanoseconds since 1970, None where the record does not say."""
    place = _under(prefix, "tool")
    started, ended, duration = tool.started_at_unix_ms, tool.ended_at_unix_ms, tool.duration_ms
    event = _under(prefix, "event_time_unix_ms"), row.event_time_unix_ms
    last = (f"{place}.ended_at_unix_ms", ended) if ended is not None else event
    problems += _time_problems(((f"{place}.started_at_unix_ms", started), (f"{place}.duration_ms", duration), last))
    if started is None and last[1] is not None and duration is not None:
        started = last[1] - duration
    if problems or started is None or last[1] is None:
        return None
    if not 0 <= started <= last[1]:
        message = "the tool ends before it starts"
        problems.append(Problem("time-negative", last[0], message, str(last[1])[:60], f"at least {started}"))
        return None
    return _ns(started), _ns(last[1])


def _times(row: _Row, request: _Request, prefix: str, problems: list[Problem]) -> tuple[int, int] | None:
    """Return (start, end) in nanoseconds since 1970."""
    place = _under(prefix, "request")
    received, total, ended = request.request_received_ms, request.total_time_ms, row.event_time_unix_ms
    problems += _time_problems(
        (
            (f"{place}.request_received_ms", received),
            (f"{place}.total_time_ms", total),
            (_under(prefix, "event_time_unix_ms"), ended),
        )
    )
    if received is None and (total is None or ended is None):
        message = "neither the arrival of the request is known, nor its end and how long it took"
        problems.append(Problem("field-missing", f"{place}.request_received_ms", message, "nothing", "a number"))
    elif total is None and ended is None:
        message = "neither `total_time_ms` nor the time of the event says when the request ended"
        problems.append(Problem("field-missing", f"{place}.total_time_ms", message, "nothing", "a number"))
    if problems:
        return None
    if total is not None:
        total_ns = _ns(total)
        start_ns = _ns(received) if received is not None else _ns(ended or 0) - total_ns
        return start_ns, start_ns + total_ns
    # Compact rows are written as the request ends, and tell its arrival.
    start_ns, end_ns = _ns(received or 0), _ns(ended or 0)
    if end_ns < start_ns:
        message = "the event lies before the request's arrival"
        path = _under(prefix, "event_time_unix_ms")
        problems.append(Problem("time-negative", path, message, f"{ended}", f"at least {received}"))
        return None
    return start_ns, end_ns
