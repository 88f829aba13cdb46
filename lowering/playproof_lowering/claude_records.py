"""The wire of Claude Code sessions: one file's records, reduced to calls, links and counts.

A file is read once, record by record; what stays of it are its LLM calls and the ids that tie agents together. Text is
looked at only to count its characters and to find the ids in notifications.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS

from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.source import Reading
from playproof_lowering.turns import recorded_ns
from playproof_lowering.wire import DecodeErrors, Problem, decoded, report

__all__ = ["MAIN", "AgentResult", "FileLog", "Meta", "RecordedCall", "Scope", "Usage", "read_file"]

MAIN: Final = "main"
SYNTHETIC: Final = "<synthetic>"
TYPES: Final = frozenset({"assistant", "user", "progress", "attachment", "system"})
AGENT_TOOLS: Final = frozenset({"Task", "Agent"})
# From this version on output_tokens is the final count; before it, what the stream said first.
RELIABLE_OUTPUT_SINCE: Final = (2, 1, 78)
_META_NAME = re.compile(r"agent-(.+)\.meta\.json(?:\.gz|\.zst)?$")
_AGENT_NAME = re.compile(r"agent-(.+?)\.jsonl(?:\.gz|\.zst)?$")
_TASK_ID = re.compile(rb"<task[-_]id>([^<\\\"]{1,200})</task[-_]id>")
_ABSENT: Final = msgspec.Raw(b"")


class Usage(msgspec.Struct, gc=False):
    """Token counts of one call."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def prompt(self) -> int:
        """All tokens of the prompt, cached or not."""
        return (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)


class _Record(msgspec.Struct):
    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parentUuid: str | None = None
    timestamp: str | None = None
    sessionId: str | None = None
    agentId: str | None = None
    isSidechain: bool | None = None
    version: str | None = None
    requestId: str | None = None
    parentToolUseID: str | None = None
    message: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT
    attachment: msgspec.Raw = _ABSENT
    toolUseResult: msgspec.Raw = _ABSENT
    # Meta files of agents: no type, but the tool use that spawned the agent.
    toolUseId: str | None = None
    agentType: str | None = None


class _Message(msgspec.Struct):
    model: str
    content: msgspec.Raw
    id: str | None = None
    usage: Usage | None = None


class _Block(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: msgspec.Raw = _ABSENT


class _UserMessage(msgspec.Struct):
    content: msgspec.Raw = _ABSENT


class _UserBlock(msgspec.Struct):
    tool_use_id: str | None = None


class _Task(msgspec.Struct):
    task_id: str | None = None
    status: str | None = None


class _Result(msgspec.Struct):
    agentId: str | None = None
    isAsync: bool | None = None
    status: str | None = None
    usage: Usage | None = None
    task: _Task | None = None


class _Agent(msgspec.Struct):
    agentId: str


class _Progress(msgspec.Struct):
    type: str = ""
    agentId: str | None = None
    message: msgspec.Raw = _ABSENT


_RECORD = msgspec.json.Decoder(_Record)
_MESSAGE = msgspec.json.Decoder(_Message)
_BLOCKS = msgspec.json.Decoder(list[_Block])
_TEXT = msgspec.json.Decoder(str | None)
_USER = msgspec.json.Decoder(_UserMessage)
_USER_BLOCKS = msgspec.json.Decoder(list[_UserBlock])
_RESULT = msgspec.json.Decoder(_Result)
_AGENT = msgspec.json.Decoder(_Agent)
_PROGRESS = msgspec.json.Decoder(_Progress)


@dataclass(slots=True, eq=False)
class RecordedCall:
    """One LLM call as one file tells it.

    Attributes
    ----------
    key : str
        ``message.id``, else ``requestId``, else ``uuid``.
    start_ns, end_ns : int
        When the latest input before it arrived, and when its last record was written.
    input_length, cached, created, output_length, characters : int
        Of the input, `cached` tokens were read from the provider's cache and `created` written to it; `characters` of
        the content are what counts where `output_length` is unreliable.
    unreliable_output : bool
    answers : bool
        An input stands before it, so `start_ns` is recorded.
    reset : bool
        A compaction stands before it.
    uses : list of str
        Tool uses that spawn agents.
    results, notices : list of str
        Tool uses whose results, and agents of whose completion, it was the first to see.
    calls_tool : bool
        It asks for a tool, so the conversation goes on.
    native : str
        The session that its records name, which is another one than the file's in a copy.
    """

    key: str
    line: int
    file: str
    model: str
    start_ns: int
    end_ns: int
    input_length: int
    cached: int
    created: int
    output_length: int
    unreliable_output: bool
    answers: bool
    reset: bool
    native: str
    characters: int = 0
    uses: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    calls_tool: bool = False


@dataclass(slots=True, eq=False)
class Scope:
    """One conversation of a file: the main one, or an agent's.

    Attributes
    ----------
    session : str
        As its records say.
    calls : dict of RecordedCall
        By key, in file order.
    last : RecordedCall | None
        The latest call, which goes on as long as records of its key come.
    input_ns : int
        The latest input since the last call began, -1 for none.
    results, notices : list of str
        What arrived since then, for the next call to see.
    reset : bool
        A compaction came since then.
    """

    session: str = ""
    calls: dict[str, RecordedCall] = field(default_factory=dict)
    last: RecordedCall | None = None
    input_ns: int = -1
    results: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    reset: bool = False


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The result of a tool use that ran an agent; `input_ns` is the agent's latest input by then, -1 for none known."""

    tool_use: str
    agent: str
    background: bool
    usage: Usage | None
    at_ns: int
    input_ns: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Meta:
    """What stands beside an agent's file: the tool use that spawned it."""

    folder: str
    agent: str
    tool_use: str
    file: str


@dataclass(slots=True, eq=False)
class FileLog:
    """What stays of one file.

    Attributes
    ----------
    folder : str
        That the file is in.
    session : str
        Whose file it is.
    agent : str
        That the file's name speaks of; empty for none.
    scopes : dict of Scope
        By name: ``main``, ``agent:<id>``, or ``sidechain:<uuid>`` for an agent that the records do not name.
    results : list of AgentResult
    progress_links : dict
        Tool use by agent, as progress records tell it.
    background, compactions : set of str
        Launches into the background, and compactions, by the ids of their records.
    synthetic, duplicates, went_back, without_usage : int
        Records of no real call, records told before, clocks that went back, and calls without token counts.
    """

    file: str
    folder: str = ""
    session: str = ""
    agent: str = ""
    scopes: dict[str, Scope] = field(default_factory=dict)
    results: list[AgentResult] = field(default_factory=list)
    progress_links: dict[str, str] = field(default_factory=dict)
    background: set[str] = field(default_factory=set)
    compactions: set[str] = field(default_factory=set)
    synthetic: int = 0
    duplicates: int = 0
    went_back: int = 0
    went_back_line: int = 0
    without_usage: int = 0
    without_usage_line: int = 0


def read_file(reading: Reading, findings: Findings, log: FileLog, metas: list[Meta]) -> None:
    """Read one file into `log`, or into `metas` if it is one that stands beside an agent's file.

    Raises
    ------
    SourceError
        When the file cannot be read on; `log` has what stood before.
    """
    _FileReader(reading, findings, log, metas).read()


class _FileReader:
    """The state of reading one file."""

    def __init__(self, reading: Reading, findings: Findings, log: FileLog, metas: list[Meta]) -> None:
        self._reading = reading
        self._findings = findings
        self._log = log
        self._metas = metas
        log.folder = str(reading.file.path.parent)
        log.agent = self._named_agent = _agent_named(reading.file.path.name)
        self._seen: set[str] = set()
        self._sidechains: dict[str, str] = {}
        self._versions: dict[str | None, bool] = {}
        self._sessions: dict[str, None] = {}

    def read(self) -> None:
        shown = self._log.file
        try:
            for where, record in self._reading.placed():
                self._record(record, where)
        finally:
            self._log.session = self._file_session()
        others = [name for name in self._log.scopes if name != f"agent:{self._named_agent}"]
        if self._named_agent and others:
            self._findings.add(
                finding(
                    "agent-link-conflict",
                    f"the file's name speaks of agent {self._named_agent}, its records of another",
                    where=Where(file=shown, field="agentId"),
                    found=others[0],
                    wanted=f"agent:{self._named_agent}",
                )
            )

    def _file_session(self) -> str:
        """Return whose file it is: its name if a record agrees, else the last session named (copies come first)."""
        if not self._sessions:
            return namespace(self._reading.file)
        stem = namespace(self._reading.file).rpartition("/")[2]
        return stem if stem in self._sessions else next(reversed(self._sessions))

    def _record(self, data: bytes, where: Where) -> None:
        record = decoded(_RECORD, data, where, self._findings, types=TYPES)
        if record is None:
            return
        if not record.type and record.agentType is not None:
            self._meta(record, where)
            return
        if record.sessionId:
            self._sessions.pop(record.sessionId, None)
            self._sessions[record.sessionId] = None
        if record.type not in TYPES or (record.type == "system" and record.subtype != "compact_boundary"):
            return
        twice = repeated_name(data)
        if twice is not None:
            report(self._findings, [twice], where)
            return
        if record.type == "attachment":
            self._attachment(record)
        elif record.type == "progress":
            self._progress(record, where)
        else:
            self._dispatch(record, self._scope_name(record), where, "")

    def _meta(self, record: _Record, where: Where) -> None:
        match = _META_NAME.search(self._reading.file.path.name)
        # Some versions do not write the tool use; the agent's other links hold then.
        if match is not None and record.toolUseId:
            self._metas.append(Meta(self._log.folder, match.group(1), record.toolUseId, where.file))

    def _scope_name(self, record: _Record) -> str:
        if not record.isSidechain:
            return MAIN
        if record.agentId:
            return f"agent:{record.agentId}"
        if self._named_agent:
            return f"agent:{self._named_agent}"
        # Before agents had ids: the chain of parents tells the conversations apart.
        root = self._sidechains.get(record.parentUuid or "", record.uuid or "")
        if record.uuid:
            self._sidechains[record.uuid] = root
        return f"sidechain:{root}"

    def _scope(self, name: str, record: _Record) -> Scope:
        scope = self._log.scopes.get(name)
        if scope is None:
            scope = self._log.scopes[name] = Scope()
        if record.sessionId:
            scope.session = record.sessionId
        return scope

    def _attachment(self, record: _Record) -> None:
        """A notification that was queued arrives as an attachment."""
        if b"<task-" in bytes(record.attachment):
            scope = self._scope(self._scope_name(record), record)
            scope.notices += _task_ids(record.attachment)

    def _progress(self, record: _Record, where: Where) -> None:
        """An agent's record, wrapped into one of its parent's."""
        progress = decoded(_PROGRESS, record.data, where, self._findings, "data") if record.data else None
        if progress is None or progress.type != "agent_progress" or not progress.agentId:
            return
        if not progress.message:
            problem = Problem("field-missing", "data.message", "`message` is missing", "nothing", "an object")
            report(self._findings, [problem], where)
            return
        inner = decoded(_RECORD, progress.message, where, self._findings, "data.message")
        if inner is None:
            return
        if record.parentToolUseID:
            self._log.progress_links.setdefault(progress.agentId, record.parentToolUseID)
        inner.version = record.version
        inner.sessionId = record.sessionId
        if inner.timestamp is None:
            inner.timestamp = record.timestamp
        self._dispatch(inner, f"agent:{progress.agentId}", where, "data.message")

    def _dispatch(self, record: _Record, name: str, where: Where, prefix: str) -> None:
        if record.type not in ("assistant", "user", "system"):
            return
        if record.uuid is not None:
            key = f"{name} {record.uuid}"
            if key in self._seen:
                self._log.duplicates += 1
                return
            self._seen.add(key)
        at_ns = recorded_ns(record.timestamp, f"{prefix}.timestamp".lstrip("."), where, self._findings)
        if at_ns is None:
            return
        scope = self._scope(name, record)
        if record.type == "assistant":
            self._assistant(record, scope, at_ns, where, prefix)
        elif record.type == "user":
            self._user(record, scope, at_ns, where, prefix)
        else:
            scope.reset = True
            self._log.compactions.add(_identity(record, where))

    def _user(self, record: _Record, scope: Scope, at_ns: int, where: Where, prefix: str) -> None:
        scope.input_ns = max(scope.input_ns, at_ns)
        message = bytes(record.message)
        content = b""
        if message[:1] == b"{":
            user = decoded(_USER, message, where, self._findings, f"{prefix}.message".lstrip("."))
            if user is None:
                return
            content = bytes(user.content)
        results: list[str] = []
        if content[:1] == b"[" and b'"tool_use_id"' in content:
            blocks = decoded(_USER_BLOCKS, content, where, self._findings, f"{prefix}.message.content".lstrip("."))
            if blocks is None:
                return
            results = [block.tool_use_id for block in blocks if block.tool_use_id]
            scope.results += results
        result = bytes(record.toolUseResult)
        if b"<task-" in content and not results:
            scope.notices += _task_ids(content)
        if result[:1] == b"{" and (b'"agentId"' in result or b'"async_launched"' in result or b'"task"' in result):
            self._result(result, results, scope, at_ns, where, _identity(record, where), prefix)

    def _result(
        self, data: bytes, uses: list[str], scope: Scope, at_ns: int, where: Where, identity: str, prefix: str
    ) -> None:
        try:
            result = _RESULT.decode(data)
        except DecodeErrors:
            # Results of other tools may have fields of these names with other types: they are not ours to judge.
            if _names_agent(data) and uses:
                decoded(_RESULT, data, where, self._findings, f"{prefix}.toolUseResult".lstrip("."))
            return
        if result.task is not None:
            if result.task.status == "completed" and result.task.task_id:
                scope.notices.append(result.task.task_id)
            return
        background = bool(result.isAsync) or result.status == "async_launched"
        if background:
            self._log.background.add(identity)
        if result.agentId and uses:
            agent = self._log.scopes.get(f"agent:{result.agentId}")
            self._log.results.append(
                AgentResult(
                    tool_use=uses[0],
                    agent=result.agentId,
                    background=background,
                    usage=result.usage,
                    at_ns=at_ns,
                    input_ns=-1 if agent is None else agent.input_ns,
                    file=where.file,
                    line=where.line,
                )
            )

    def _assistant(self, record: _Record, scope: Scope, at_ns: int, where: Where, prefix: str) -> None:
        place = f"{prefix}.message".lstrip(".")
        if not record.message:
            problem = Problem("field-missing", place, "`message` is missing", "nothing", "an object")
            report(self._findings, [problem], where)
            return
        message = decoded(_MESSAGE, record.message, where, self._findings, place)
        if message is None:
            return
        if message.model == SYNTHETIC:
            self._log.synthetic += 1
            return
        key = message.id or record.requestId or record.uuid
        if key is None:
            problem = Problem("field-missing", f"{place}.id", "nothing identifies the call", "nothing", "an id")
            report(self._findings, [problem], where)
            return
        usage = message.usage
        if usage is None or usage.prompt == 0:
            self._log.without_usage += 1
            self._log.without_usage_line = self._log.without_usage_line or where.line
            return
        if not self._in_bounds(usage, where, place):
            return
        known = scope.calls.get(key)
        call = known or self._begin(key, record, message, usage, scope, at_ns, where)
        call.output_length = max(call.output_length, usage.output_tokens or 0)
        characters = self._content(call, message.content, where, f"{place}.content")
        if call is not scope.last:
            # A copy of a record that is not the latest call's: it says nothing new of when and how much.
            self._log.duplicates += 1
            return
        if at_ns < call.end_ns and known is not None:
            self._went_back(where)
        call.end_ns = max(call.end_ns, at_ns)
        call.characters += characters

    def _in_bounds(self, usage: Usage, where: Where, place: str) -> bool:
        problems = []
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"):
            value = getattr(usage, name) or 0
            if not 0 <= value <= MAX_TOKENS:
                path = f"{place}.usage.{name}"
                problems.append(
                    Problem("length-out-of-bounds", path, "out of bounds", str(value)[:60], f"0 … {MAX_TOKENS}")
                )
        if not problems and usage.prompt > MAX_TOKENS:
            message = "the prompt is out of bounds"
            problems.append(
                Problem("length-out-of-bounds", f"{place}.usage", message, str(usage.prompt), f"at most {MAX_TOKENS}")
            )
        report(self._findings, problems, where)
        return not problems

    def _begin(
        self, key: str, record: _Record, message: _Message, usage: Usage, scope: Scope, at_ns: int, where: Where
    ) -> RecordedCall:
        """Start a call: what came in since the last one is its input."""
        last = scope.last
        answers = scope.input_ns >= 0
        start_ns = scope.input_ns if answers else at_ns
        earliest_ns = start_ns if last is None else max(start_ns, last.start_ns)
        if earliest_ns != start_ns or earliest_ns > at_ns:
            self._went_back(where)
        call = RecordedCall(
            key=key,
            line=where.line,
            file=where.file,
            model=message.model or "unknown",
            start_ns=earliest_ns,
            end_ns=max(at_ns, earliest_ns),
            input_length=usage.prompt,
            cached=usage.cache_read_input_tokens or 0,
            created=usage.cache_creation_input_tokens or 0,
            output_length=0,
            unreliable_output=self._unreliable(record.version),
            answers=answers,
            reset=scope.reset,
            native=record.sessionId or "",
            results=scope.results,
            notices=scope.notices,
        )
        scope.results, scope.notices, scope.reset, scope.input_ns = [], [], False, -1
        scope.calls[key] = scope.last = call
        return call

    def _content(self, call: RecordedCall, content: msgspec.Raw, where: Where, place: str) -> int:
        """Note what a call asks for; return the characters of this part of it."""
        if bytes(content)[:1] != b"[":
            text = decoded(_TEXT, content, where, self._findings, place)
            return len(text or "")
        blocks = decoded(_BLOCKS, content, where, self._findings, place)
        characters = 0
        for block in blocks or ():
            characters += len(block.text or "") + len(block.thinking or "")
            if block.type == "tool_use":
                characters += _compact_length(block.input) if call.unreliable_output else 0
                call.calls_tool = True
                if block.name in AGENT_TOOLS and block.id:
                    call.uses.append(block.id)
        return characters

    def _unreliable(self, version: str | None) -> bool:
        known = self._versions.get(version)
        if known is None:
            numbers = re.findall(r"\d+", version or "")[:3]
            known = self._versions[version] = tuple(int(number[:9]) for number in numbers) < RELIABLE_OUTPUT_SINCE
        return known

    def _went_back(self, where: Where) -> None:
        self._log.went_back += 1
        self._log.went_back_line = self._log.went_back_line or where.line


def _identity(record: _Record, where: Where) -> str:
    """Return what names a record in every file that has a copy of it."""
    return record.uuid or f"{where.file}:{where.line}"


def _names_agent(result: bytes) -> bool:
    try:
        _AGENT.decode(result)
    except DecodeErrors:
        return False
    return True


def _compact_length(value: msgspec.Raw) -> int:
    """Return the characters of a JSON value, however its recorder spaced and escaped it."""
    try:
        return len(msgspec.json.encode(msgspec.json.decode(value)).decode()) if value else 0
    except DecodeErrors:
        # Numbers that only JSON can hold.
        return len(bytes(value).decode("utf-8", "replace"))


def _task_ids(text: bytes | msgspec.Raw) -> list[str]:
    return [match.decode("utf-8", "replace") for match in _TASK_ID.findall(bytes(text))]


def _agent_named(name: str) -> str:
    """Return the agent that a file's name speaks of, or an empty string."""
    match = _AGENT_NAME.search(name)
    return match.group(1) if match else ""
