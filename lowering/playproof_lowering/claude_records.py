"""The wire of Claude Code sessions: one file's records, reduced to calls, links and counts.

A file is read once, record by record; what stays of it are its LLM calls and the ids that tie agents together. Text is
looked at only to count its characters and to find the ids in notifications.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS

from playproof_lowering.claude_calls import COMPACTION, MESSAGE, Input, Part, RecordedCall, Row, Scope
from playproof_lowering.claude_side import side_kind, side_kind_by_name
from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.source import Reading
from playproof_lowering.surrogates import whole_characters
from playproof_lowering.turns import recorded_ns
from playproof_lowering.wire import DecodeErrors, Problem, decoded, report

__all__ = ["BRANCH", "MAIN", "AgentResult", "FileLog", "Meta", "Usage", "read_file"]

MAIN: Final = "main"
# Stands between the name of a conversation and that of one that branched off from it.
BRANCH: Final = "~"
SYNTHETIC: Final = "<synthetic>"
TYPES: Final = frozenset({"assistant", "user", "progress", "attachment", "system"})
AGENT_TOOLS: Final = frozenset({"Task", "Agent"})
# What a tool's result has if it tells of an agent.
RESULT_MARKS: Final = (b'"agentId"', b'"async_launched"', b'"task"', b'"runId"')
WORKFLOW_TOOL: Final = "Workflow"
# Iterations that are no part of what a message's own counts tell.
ASIDE: Final = frozenset({COMPACTION, "advisor_message"})
# From this version on output_tokens is the final count; before it, what the stream said first.
RELIABLE_OUTPUT_SINCE: Final = (2, 1, 78)
_META_NAME = re.compile(r"agent-(.+)\.meta\.json(?:\.gz|\.zst)?$")
_AGENT_NAME = re.compile(r"agent-(.+?)\.jsonl(?:\.gz|\.zst)?$")
_TASK_ID = re.compile(rb"<(?:task|tool[-_]use)[-_]id>([^<\\\"]{1,200})</(?:task|tool[-_]use)[-_]id>")
_ABSENT: Final = msgspec.Raw(b"")


class _Counts(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def prompt(self) -> int:
        """All tokens of the prompt, cached or not."""
        return (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)

    def part(self, kind: str, model: str) -> Part:
        """Return the call that these counts are of."""
        cached, created = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        return Part(kind, model, self.prompt, cached, created, self.output_tokens or 0)


class _Iteration(_Counts):
    type: str | None = None
    model: str | None = None


class Usage(_Counts):
    """Token counts of one message, and of the LLM calls that it took."""

    iterations: list[_Iteration] | None = None

    def parts(self, model: str) -> list[Part]:
        """Return the LLM calls of a message, in order.

        The provider may ask the model several times for one message, and another model in between. The message's own
        counts are then a sum over some of these calls, and providers differ on which; so they stand for a call only
        where no iteration goes on with the conversation.
        """
        own = [self.part(MESSAGE, model)] if self.prompt > 0 else []
        told = [each.part(each.type or MESSAGE, each.model or model) for each in self.iterations or () if each.prompt]
        asides = [part for part in told if part.kind in ASIDE]
        if len(told) == len(asides) or (len(told) == 1 and told[0].input_length == self.prompt):
            return [*(p for p in asides if p.kind == COMPACTION), *own, *(p for p in asides if p.kind != COMPACTION)]
        return told


class _Record(msgspec.Struct):
    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parentUuid: str | msgspec.UnsetType | None = msgspec.UNSET
    logicalParentUuid: str | None = None
    forkedFrom: msgspec.Raw = _ABSENT
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


class _Side(msgspec.Struct):
    runId: str | None = None
    taskId: str | None = None


class _ForkedFrom(msgspec.Struct):
    sessionId: str | None = None
    messageUuid: str | None = None


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
    runId: str | None = None
    taskId: str | None = None


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
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_NO_ORIGIN: Final = _ForkedFrom()
_SIDE = msgspec.json.Decoder(_Side)
_FORKED_FROM = msgspec.json.Decoder(_ForkedFrom)
_PROGRESS = msgspec.json.Decoder(_Progress)


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The result of a tool use that ran an agent or a workflow.

    `input_ns` is the agent's latest input by then, -1 for none known; `run` and `task` are a workflow's, else empty.
    """

    tool_use: str
    agent: str
    run: str
    task: str
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
    run : str
        The workflow run whose folder the file is in; empty for none.
    tasks : dict
        Task by workflow run, as a workflow's own file tells it.
    side : str
        What kind of file it is, if it stands beside sessions and holds no call; else empty.
    background, compactions : set of str
        Launches into the background, and compactions, by the ids of their records.
    synthetic, duplicates, went_back, without_usage : int
        Records of no real call, records told before, clocks that went back, and records of calls without token counts.
    surrogates, surrogates_line : int
        Escapes of half a character, and the first line that has one.
    """

    file: str
    folder: str = ""
    session: str = ""
    agent: str = ""
    scopes: dict[str, Scope] = field(default_factory=dict)
    results: list[AgentResult] = field(default_factory=list)
    progress_links: dict[str, str] = field(default_factory=dict)
    run: str = ""
    tasks: dict[str, str] = field(default_factory=dict)
    side: str = ""
    background: set[str] = field(default_factory=set)
    compactions: set[str] = field(default_factory=set)
    synthetic: int = 0
    duplicates: int = 0
    went_back: int = 0
    went_back_line: int = 0
    without_usage: int = 0
    without_usage_line: int = 0
    surrogates: int = 0
    surrogates_line: int = 0


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
        log.run = _run_of(reading.file.path)
        self._sidechains: dict[str, str] = {}
        self._versions: dict[str | None, bool] = {}
        self._sessions: dict[str, None] = {}

    def read(self) -> None:
        shown = self._log.file
        log = self._log
        try:
            for where, record in self._reading.placed():
                whole, surrogates = whole_characters(record)
                log.surrogates += surrogates
                log.surrogates_line = log.surrogates_line or (where.line if surrogates else 0)
                self._record(whole, where)
        finally:
            log.session = self._file_session()
            self._close()
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

    def _close(self) -> None:
        """End the conversations: leave out what has no counts, and tell those apart that ran beside each other."""
        log = self._log
        for name, scope in list(log.scopes.items()):
            for call in scope.close():
                log.without_usage += max(len(call.rows), 1)
                log.without_usage_line = min(log.without_usage_line or call.line, call.line)
            for branch, own in scope.branches():
                log.scopes.setdefault(f"{name}{BRANCH}{branch}", own)

    def _record(self, data: bytes, where: Where) -> None:
        if self._log.side or (not self._log.scopes and self._is_side(data)):
            self._side(data, where)
            return
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
            self._pass(record)
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

    def _is_side(self, data: bytes) -> bool:
        """Tell whether a file's first record is one of a file that stands beside sessions."""
        by_name = side_kind_by_name(self._reading.file.relative)
        try:
            fields = _FIELDS.decode(data)
        except DecodeErrors:
            self._log.side = by_name
        else:
            self._log.side = side_kind(fields) or ("" if "sessionId" in fields else by_name)
        return bool(self._log.side)

    def _side(self, data: bytes, where: Where) -> None:
        """Take from a side file what ties a workflow's agents together; nothing else of it is read."""
        try:
            record = _SIDE.decode(data)
        except DecodeErrors:
            # It holds no call, so what is in it changes nothing; but it must be JSON.
            decoded(_ANYTHING, data, where, self._findings)
            return
        if record.runId and record.taskId:
            self._log.tasks[record.runId] = record.taskId

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

    def _hangs_on(self, record: _Record, scope: Scope) -> tuple[Input | RecordedCall | None, bool]:
        """Return what a record hangs on, and whether the records say so; else it is the one before it."""
        for parent in (record.parentUuid, record.logicalParentUuid):
            if isinstance(parent, str) and parent in scope.nodes:
                return scope.nodes[parent], parent not in scope.loose
        if record.parentUuid is None and record.type == "user":
            # A conversation begins: the first of the file, or another one in it.
            return None, True
        return scope.latest, False

    def _pass(self, record: _Record) -> None:
        """Keep the chain of parents over a record of another kind."""
        if record.uuid and isinstance(record.parentUuid, str):
            scope = self._log.scopes.get(self._scope_name(record))
            if scope is not None and record.uuid not in scope.nodes:
                above, placed = self._hangs_on(record, scope)
                scope.place(record.uuid, above)
                if not placed:
                    scope.loose.add(record.uuid)

    def _attachment(self, record: _Record) -> None:
        """A notification that was queued arrives as an attachment."""
        if b"<task-" in bytes(record.attachment):
            scope = self._scope(self._scope_name(record), record)
            above, placed = self._hangs_on(record, scope)
            scope.arrive(Input(-1, above, placed, notices=_task_ids(record.attachment)), record.uuid)
        else:
            self._pass(record)

    def _progress(self, record: _Record, where: Where) -> None:
        """An agent's record, wrapped into one of its parent's."""
        self._pass(record)
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
        known = self._log.scopes.get(name)
        if record.uuid is not None and known is not None and record.uuid in known.nodes:
            self._log.duplicates += 1
            return
        at_ns = recorded_ns(record.timestamp, f"{prefix}.timestamp".lstrip("."), where, self._findings)
        if at_ns is None:
            return
        scope = self._scope(name, record)
        if record.type == "assistant":
            self._assistant(record, scope, at_ns, where, prefix)
        elif record.type == "user":
            self._user(record, scope, at_ns, where, prefix)
        else:
            above, placed = self._hangs_on(record, scope)
            scope.arrive(Input(-1, above, placed, reset=True), record.uuid)
            self._log.compactions.add(_identity(record, where))

    def _user(self, record: _Record, scope: Scope, at_ns: int, where: Where, prefix: str) -> None:
        above, placed = self._hangs_on(record, scope)
        item = Input(at_ns, above, placed)
        scope.arrive(item, record.uuid)
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
            item.results += results
        result = bytes(record.toolUseResult)
        if b"<task-" in content and not results:
            item.notices += _task_ids(content)
        if result[:1] == b"{" and any(name in result for name in RESULT_MARKS):
            self._result(result, results, item, at_ns, where, _identity(record, where), prefix)

    def _result(
        self, data: bytes, uses: list[str], item: Input, at_ns: int, where: Where, identity: str, prefix: str
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
                item.notices.append(result.task.task_id)
            return
        background = bool(result.isAsync) or result.status == "async_launched" or bool(result.runId)
        if background:
            self._log.background.add(identity)
        if (result.agentId or result.runId or (result.taskId and background)) and uses:
            agent = self._log.scopes.get(f"agent:{result.agentId}")
            self._log.results.append(
                AgentResult(
                    tool_use=uses[0],
                    agent=result.agentId or "",
                    run=result.runId or "",
                    task=result.taskId or "",
                    background=background,
                    usage=result.usage,
                    at_ns=at_ns,
                    input_ns=-1 if agent is None else agent.waiting_ns,
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
        above, placed = self._hangs_on(record, scope)
        if message.model == SYNTHETIC:
            self._log.synthetic += 1
            scope.place(record.uuid, above)
            return
        key = message.id or record.requestId or record.uuid
        if key is None:
            problem = Problem("field-missing", f"{place}.id", "nothing identifies the call", "nothing", "an id")
            report(self._findings, [problem], where)
            return
        usage = message.usage or Usage()
        if not self._in_bounds(usage, where, place):
            return
        prompt = usage.prompt or sum(part.input_length for part in usage.parts(""))
        row = Row(key, record.requestId or "", record.uuid or "", at_ns, prompt, above, placed)
        call, repeated = scope.call_of(row, where.line)
        begins = call is None
        if call is None:
            call = self._begin(row, record, message, scope, where)
        scope.note(row, call)
        origin = _origin(record).messageUuid
        if origin and origin != row.uuid:
            call.rows.append(origin)
        characters = self._content(call, message.content, where, f"{place}.content")
        parts = usage.parts(call.model)
        if parts and (not repeated or sum(part.output_length for part in parts) > call.output_length):
            call.prompt, call.parts = prompt, parts
        if repeated:
            # A copy of a record that is not the latest call's: it says nothing new of when.
            self._log.duplicates += 1
            return
        if at_ns < call.end_ns and not begins:
            self._went_back(where)
        call.end_ns = max(call.end_ns, at_ns)
        call.characters += characters

    def _in_bounds(self, usage: Usage, where: Where, place: str) -> bool:
        problems: list[Problem] = []
        told = [(f"{place}.usage", usage), *_iterations(usage, place)]
        for path, counts in told:
            for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"):
                value = getattr(counts, name) or 0
                if not 0 <= value <= MAX_TOKENS:
                    wanted = f"0 … {MAX_TOKENS}"
                    problems.append(
                        Problem("length-out-of-bounds", f"{path}.{name}", "out of bounds", str(value)[:60], wanted)
                    )
        for path, counts in told if not problems else ():
            if counts.prompt > MAX_TOKENS:
                message, wanted = "the prompt is out of bounds", f"at most {MAX_TOKENS}"
                problems.append(Problem("length-out-of-bounds", path, message, str(counts.prompt), wanted))
        report(self._findings, problems, where)
        return not problems

    def _begin(self, row: Row, record: _Record, message: _Message, scope: Scope, where: Where) -> RecordedCall:
        """Start a call: what came in since the last one is its input."""
        call = RecordedCall(
            message=row.message,
            key=row.message,
            request=row.request,
            line=where.line,
            file=where.file,
            model=message.model or "unknown",
            start_ns=row.at_ns,
            end_ns=row.at_ns,
            first_ns=row.at_ns,
            unreliable_output=self._unreliable(record.version),
            answers=False,
            reset=False,
            native=_origin(record).sessionId or record.sessionId or "",
            index=0,
            parent=None,
        )
        scope.begin(row, call)
        earliest_ns = call.start_ns if call.parent is None else max(call.start_ns, call.parent.start_ns)
        if earliest_ns != call.start_ns or earliest_ns > row.at_ns:
            self._went_back(where)
        call.start_ns = earliest_ns
        call.end_ns = max(row.at_ns, earliest_ns)
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
                if block.id and (block.name in AGENT_TOOLS or block.name == WORKFLOW_TOOL):
                    call.uses.append(block.id)
                    if block.name == WORKFLOW_TOOL:
                        call.workflows.append(block.id)
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


def _iterations(usage: Usage, place: str) -> Iterator[tuple[str, _Counts]]:
    for number, iteration in enumerate(usage.iterations or ()):
        yield f"{place}.usage.iterations[{number}]", iteration


def _origin(record: _Record) -> _ForkedFrom:
    """Return where a record was copied from: a branch says it of the records that it begins with."""
    if bytes(record.forkedFrom).lstrip()[:1] == b"{":
        try:
            return _FORKED_FROM.decode(record.forkedFrom)
        except DecodeErrors:
            pass
    return _NO_ORIGIN


def _run_of(path: Path) -> str:
    """Return the workflow run whose folder a file is in, empty for none."""
    folders = path.parts[:-1]
    for at in range(len(folders) - 1, 0, -1):
        if folders[at - 1] == "workflows":
            return folders[at]
    return ""


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
