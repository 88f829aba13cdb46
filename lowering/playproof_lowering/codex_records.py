"""The wire of Codex rollouts: one file's records, reduced to calls, spawns and what the parent saw of its agents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS

from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.source import Reading
from playproof_lowering.surrogates import whole_characters
from playproof_lowering.turns import instant_ns, recorded_ns
from playproof_lowering.wire import DecodeErrors, Problem, decoded, report

__all__ = ["NamedSpawn", "RolloutCall", "RolloutLog", "read_rollout"]

# A thread that was reverted gets a new file: behind its own id the name has the file's.
_NAME = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:_[0-9a-f-]{36})?\.jsonl")
_TIMED_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
_NOTIFIED = re.compile(rb"agent_(?:id|path)\\*\"\s*:\s*\\*\"([^\"\\]{1,200})")
_ENVELOPE = re.compile(r"Message Type: .*\n(?:.*\n)?Sender: (\S{1,200})\n")
_ABSENT: Final = msgspec.Raw(b"")
LINES: Final = frozenset(
    {
        "session_meta",
        "turn_context",
        "response_item",
        "event_msg",
        "compacted",
        "token_usage_record",
        "inter_agent_communication",
    }
)
ITEMS: Final = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "agent_message",
    }
)
EVENTS: Final = frozenset(
    {
        "token_count",
        "task_started",
        "task_complete",
        "turn_aborted",
        "error",
        "collab_agent_spawn_end",
        "sub_agent_activity",
        "collab_waiting_end",
        "collab_close_end",
    }
)
# Tools whose calls or outputs say something about agents.
AGENT_TOOLS: Final = frozenset({"spawn_agent", "wait_agent", "list_agents"})
# In code mode the model writes a program, which may spawn agents; `wait` goes on with one that has not come to its end.
CODE_TOOLS: Final = frozenset({"exec", "wait"})
# A copied history is written at once: its records have the time of the child's head, or their own, which is earlier.
COPIED_WITHIN_NS: Final = 10**9
# A call that took longer was not copied.
COPIED_CALL_NS: Final = 50 * 10**6


class _Line(msgspec.Struct):
    type: str
    timestamp: str | None = None
    ordinal: msgspec.Raw = _ABSENT
    payload: msgspec.Raw = _ABSENT


class _ThreadSpawn(msgspec.Struct):
    parent_thread_id: str | None = None
    agent_path: str | None = None


class _Subagent(msgspec.Struct):
    thread_spawn: _ThreadSpawn | None = None


class _Source(msgspec.Struct):
    subagent: msgspec.Raw = _ABSENT


class _SessionMeta(msgspec.Struct):
    id: str
    forked_from_id: str | None = None
    parent_thread_id: str | None = None
    agent_path: str | None = None
    subagent_history_start_ordinal: msgspec.Raw = _ABSENT
    source: msgspec.Raw = _ABSENT


class _TurnContext(msgspec.Struct):
    model: str | None = None
    turn_id: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    role: str | None = None
    name: str | None = None
    call_id: str | None = None
    author: str | None = None
    arguments: msgspec.Raw = _ABSENT
    output: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0


class _Info(msgspec.Struct):
    total_token_usage: _Usage
    last_token_usage: _Usage | None = None


class _UsageRecord(msgspec.Struct):
    thread_id: str | None = None
    turn_id: str | None = None
    response_id: str | None = None
    usage: _Usage | None = None
    turn_token_usage: _Usage | None = None
    thread_token_usage: _Usage | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Communication(msgspec.Struct):
    author: str
    recipient: str


class _Spawned(msgspec.Struct):
    task_name: str | None = None
    agent_id: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    turn_id: str | None = None
    info: _Info | None = None
    call_id: str | None = None
    new_thread_id: str | None = None
    statuses: dict[str, msgspec.Raw] | None = None
    receiver_thread_id: str | None = None
    status: msgspec.Raw = _ABSENT
    event_id: str | None = None
    agent_thread_id: str | None = None
    agent_path: str | None = None
    kind: str | None = None


class _Listed(msgspec.Struct):
    agent_name: str
    agent_status: msgspec.Raw


class _AgentsOutput(msgspec.Struct):
    status: dict[str, msgspec.Raw] = {}
    agents: list[_Listed] = []


_LINE = msgspec.json.Decoder(_Line)
_META = msgspec.json.Decoder(_SessionMeta)
_SOURCE = msgspec.json.Decoder(_Source)
_SUBAGENT = msgspec.json.Decoder(_Subagent)
_CONTEXT = msgspec.json.Decoder(_TurnContext)
_ITEM = msgspec.json.Decoder(_Item)
_EVENT = msgspec.json.Decoder(_Event)
_AGENTS = msgspec.json.Decoder(_AgentsOutput)
_USAGE_RECORD = msgspec.json.Decoder(_UsageRecord)
_PARTS = msgspec.json.Decoder(list[_Part])
_COMMUNICATION = msgspec.json.Decoder(_Communication)
_SPAWNED = msgspec.json.Decoder(_Spawned)
_ORDINAL = msgspec.json.Decoder(int | str | None)


@dataclass(slots=True, eq=False)
class RolloutCall:
    """One LLM call.

    Attributes
    ----------
    start_ns, end_ns : int
        When the latest input before its first output arrived, and when its tokens were counted.
    input_length, cached, output_length, reasoning : int
        Tokens; `cached` are part of the input, `reasoning` of the output.
    answers : bool
        An input stands before it, so `start_ns` is recorded.
    reset : bool
        A compaction stands before it.
    """

    line: int
    model: str
    start_ns: int
    end_ns: int
    input_length: int
    cached: int
    output_length: int
    reasoning: int
    answers: bool
    reset: bool


@dataclass(frozen=True, slots=True)
class NamedSpawn:
    """A spawn that tells the path of its agent and no thread: the number of the call, -1 for broken off, and when."""

    number: int
    at_ns: int


@dataclass(slots=True, eq=False)
class RolloutLog:
    """What stays of one file.

    Attributes
    ----------
    thread, parent, path : str
        Whose rollout it is, the thread that it says spawned it, and its agent path; empty for none.
    head_ns : int
        When the thread's head was written, -1 for unknown.
    forked : bool
        It begins with its parent's records.
    calls : list of RolloutCall
    spawned : dict
        By thread, the number of the call that spawned it; -1 for one that was broken off and has no count.
    named_spawns : dict
        By agent path, the spawns that tell it.
    seen : list of (str, int)
        Threads or agent paths of which a result arrived, and the number of the first call that saw it.
    answered_ns : int
        When it first answered whoever started it, -1 for never.
    unnamed : list of (int, int)
        Notifications whose text has been taken out: the number of the first call that saw one, and when it arrived.
    paths : dict
        Threads by agent path: an agent that was closed may leave its path to another one.
    spawn_calls, wait_calls, duplicates, empty_counts, restarts, compactions, went_back, without_usage : int
        Tool calls, repeated and empty token counts, counters that started anew, compactions, clocks that went back, and
        counts that grew by a call without a prompt.
    spawns_known : int
        Of `spawn_calls`, those that tell their agent.
    broken_off : int
        Answers that ended without a count.
    replayed_lines : int
        Lines of the parent's history.
    surrogates, surrogates_line : int
        Escapes of half a character, and the first line that has one.
    """

    file: str
    thread: str = ""
    parent: str = ""
    path: str = ""
    head_ns: int = -1
    forked: bool = False
    calls: list[RolloutCall] = field(default_factory=list)
    spawned: dict[str, int] = field(default_factory=dict)
    named_spawns: dict[str, list[NamedSpawn]] = field(default_factory=dict)
    seen: list[tuple[str, int]] = field(default_factory=list)
    answered_ns: int = -1
    unnamed: list[tuple[int, int]] = field(default_factory=list)
    paths: dict[str, list[str]] = field(default_factory=dict)
    spawn_calls: int = 0
    spawns_known: int = 0
    wait_calls: int = 0
    duplicates: int = 0
    empty_counts: int = 0
    restarts: int = 0
    compactions: int = 0
    broken_off: int = 0
    went_back: int = 0
    went_back_line: int = 0
    without_usage: int = 0
    without_usage_line: int = 0
    replayed_lines: int = 0
    surrogates: int = 0
    surrogates_line: int = 0

    def forget(self) -> None:
        """Drop what is another thread's."""
        for held in (self.calls, self.spawned, self.named_spawns, self.seen, self.unnamed, self.paths):
            held.clear()
        self.spawn_calls = self.spawns_known = self.wait_calls = self.compactions = self.broken_off = 0
        self.went_back = self.went_back_line = self.without_usage = self.without_usage_line = 0
        self.answered_ns = -1

    def drop_leading(self, count: int) -> None:
        """Drop the first `count` calls, which are another thread's, and number the others anew."""
        if count == len(self.calls):
            self.forget()
            return
        del self.calls[:count]
        self.spawned = {name: max(number - count, -1) for name, number in self.spawned.items()}
        self.named_spawns = {
            path: [NamedSpawn(max(spawn.number - count, -1), spawn.at_ns) for spawn in spawns]
            for path, spawns in self.named_spawns.items()
        }
        self.seen = [(name, seer - count) for name, seer in self.seen if seer >= count]
        self.unnamed = [(seer - count, at_ns) for seer, at_ns in self.unnamed if seer >= count]


def read_rollout(reading: Reading, findings: Findings, log: RolloutLog) -> None:
    """Read one file into `log`.

    Raises
    ------
    SourceError
        When the file cannot be read on; `log` has what stood before.
    """
    _RolloutReader(reading, findings, log).read()


class _RolloutReader:
    """The state of reading one rollout."""

    def __init__(self, reading: Reading, findings: Findings, log: RolloutLog) -> None:
        self._reading = reading
        self._findings = findings
        self._log = log
        match = _NAME.search(reading.file.path.name)
        self._named = match.group(1) if match else ""
        self._canonical = False
        self._model = ""
        self._history = _History()
        self._usage = _UsageMeter()
        self._agents = _AgentTools(log)
        # The call in flight: the input that it answers, whether it has answered, and what came in since.
        self._input_ns = -1
        self._later_ns = -1
        self._answering = False
        self._reset = False
        # The latest message of the user's role that says nothing of itself: its line, who sees it, when it arrived.
        self._unmarked = (0, 0, 0)

    def read(self) -> None:
        log = self._log
        try:
            for where, record in self._reading.placed():
                whole, surrogates = whole_characters(record)
                log.surrogates += surrogates
                log.surrogates_line = log.surrogates_line or (where.line if surrogates else 0)
                self._record(whole, where)
        finally:
            log.thread = log.thread or self._named or namespace(self._reading.file)
        self._tell_uncut()

    def _tell_uncut(self) -> None:
        """Tell that a copied history has no end that shows; nothing of it is counted."""
        log = self._log
        found = "no task_started of its own" if self._history.replaying else ""
        if not found and log.parent and not self._history.own_turn:
            copied = 0
            while copied < len(log.calls) and _looks_copied(log.calls[copied], log.head_ns):
                copied += 1
            if copied:
                log.drop_leading(copied)
                found = f"{copied} calls at the time of its head"
        if found:
            message = "it begins with another thread's records, and nothing shows where its own begin"
            where = Where(file=log.file, ids=(log.thread,))
            self._findings.add(finding("history-uncut", message, where=where, found=found))

    def _record(self, data: bytes, where: Where) -> None:
        line = decoded(_LINE, data, where, self._findings)
        if line is None or line.type not in LINES:
            return
        twice = repeated_name(data)
        if twice is not None:
            report(self._findings, [twice], where)
            return
        if line.type == "session_meta":
            self._session_meta(line, where)
            return
        self._history.place(line, self._log, where)
        if line.type == "turn_context":
            context = decoded(_CONTEXT, line.payload, where, self._findings, "payload")
            if context is not None:
                self._history.turn(context.turn_id, self._log, self._agents, where)
                self._model = context.model or self._model
        elif line.type == "compacted":
            if not self._history.replaying:
                self._log.compactions += 1
                self._reset = True
        else:
            self._timed(line, where)

    def _timed(self, line: _Line, where: Where) -> None:
        at_ns = recorded_ns(line.timestamp, "timestamp", where, self._findings)
        if at_ns is None:
            return
        if line.type == "event_msg":
            event = decoded(_EVENT, line.payload, where, self._findings, "payload", EVENTS)
            if event is not None:
                self._event(event, at_ns, where)
        elif line.type == "token_usage_record":
            record = decoded(_USAGE_RECORD, line.payload, where, self._findings, "payload")
            if record is not None:
                self._usage_record(record, at_ns, where)
        elif self._history.replaying:
            return
        elif line.type == "inter_agent_communication":
            author = _author(bytes(line.payload))
            if author and author != self._log.path:
                self._arrive(at_ns)
                self._log.seen.append((author, self._seer))
        else:
            item = decoded(_ITEM, line.payload, where, self._findings, "payload", ITEMS)
            if item is not None:
                self._item(item, at_ns, where)

    def _session_meta(self, line: _Line, where: Where) -> None:
        """The first one with the file's own id is canonical; one with another id begins a copied history."""
        meta = decoded(_META, line.payload, where, self._findings, "payload")
        if meta is None or (self._canonical and meta.id == self._log.thread):
            return
        log = self._log
        if self._canonical:
            # Its parent's, at the head of the copied records.
            self._history.ancestors.add(meta.id)
            if not log.calls:
                self._history.replaying = log.forked = True
            return
        if log.thread and meta.id != self._named:
            return
        # What stood before the file's own head was another thread's.
        log.forget()
        self._agents.forget()
        self._input_ns = self._later_ns = -1
        self._answering = self._reset = False
        self._unmarked = (0, 0, 0)
        self._canonical = meta.id == self._named or not self._named
        spawned = _spawned_by(meta.source)
        log.thread = meta.id
        log.parent = meta.parent_thread_id or spawned.parent_thread_id or ""
        log.path = meta.agent_path or spawned.agent_path or ""
        head_ns = instant_ns(line.timestamp) if line.timestamp is not None else None
        log.head_ns = -1 if head_ns is None else head_ns
        log.forked = meta.forked_from_id is not None
        self._history = _History(_made_ms(meta.id), log.forked, _ordinal(meta.subagent_history_start_ordinal))
        self._history.ancestors.update(name for name in (meta.forked_from_id, log.parent) if name)

    def _event(self, event: _Event, at_ns: int, where: Where) -> None:
        log = self._log
        if event.type == "token_count":
            self._token_count(event, at_ns, where)
        elif event.type == "task_started":
            self._usage.turn += 1
            self._history.turn(event.turn_id, log, self._agents, where)
            if not self._history.replaying:
                self._break_off()
                if self._input_ns >= 0:
                    # Nothing is asked before its turn, whenever the input came that it begins with.
                    self._input_ns = max(self._input_ns, at_ns)
        elif self._history.replaying:
            return
        elif event.type in ("turn_aborted", "error"):
            self._break_off()
        elif event.type == "task_complete":
            self._break_off()
            log.answered_ns = log.answered_ns if log.answered_ns >= 0 else at_ns
        elif event.type == "collab_agent_spawn_end":
            if event.new_thread_id:
                self._agents.spawned(event.new_thread_id, event.call_id)
        elif event.type == "sub_agent_activity":
            if event.agent_thread_id and event.agent_path:
                known = log.paths.setdefault(event.agent_path, [])
                if event.agent_thread_id not in known[-1:]:
                    known.append(event.agent_thread_id)
            if event.kind == "started" and event.agent_thread_id:
                self._agents.spawned(event.agent_thread_id, event.event_id)
        elif event.type == "collab_waiting_end":
            for thread, status in (event.statuses or {}).items():
                self._result(thread, status)
        elif event.type == "collab_close_end" and event.receiver_thread_id:
            self._result(event.receiver_thread_id, event.status)

    def _break_off(self) -> None:
        """End the answer under way, if there is one: no count will come of it, so the next call has its number."""
        log = self._log
        if self._answering:
            self._answering = False
            log.broken_off += 1
            self._agents.break_off()
            number = len(log.calls)
            for held in range(len(log.seen) - 1, -1, -1):
                name, seer = log.seen[held]
                if seer <= number:
                    break
                log.seen[held] = name, number
            for held in range(len(log.unnamed) - 1, -1, -1):
                seer, arrived_ns = log.unnamed[held]
                if seer <= number:
                    break
                log.unnamed[held] = number, arrived_ns
        self._input_ns = max(self._input_ns, self._later_ns)
        self._later_ns = -1

    def _result(self, name: str, status: msgspec.Raw) -> None:
        """Note that the status of an agent arrived; one that is over has its answer or its error within."""
        if bytes(status).lstrip()[:1] == b"{":
            self._log.seen.append((name, self._seer))

    @property
    def _seer(self) -> int:
        """The number of the first call that sees what arrives now."""
        return len(self._log.calls) + (1 if self._answering else 0)

    def _arrive(self, at_ns: int) -> None:
        """Note that something came in for the next call to answer."""
        if self._answering:
            self._later_ns = max(self._later_ns, at_ns)
        else:
            self._input_ns = max(self._input_ns, at_ns)

    def _item(self, item: _Item, at_ns: int, where: Where) -> None:
        log = self._log
        author = item.author if item.type == "agent_message" else None
        if item.type == "message" and item.role == "assistant":
            # What another agent says comes in this role too, with its envelope as the text.
            author = item.author or _sender(bytes(item.content))
            author = author if author != log.path else None
            said = author is None
        else:
            said = item.type == "reasoning" or item.type.endswith("_call")
        if said:
            self._answering = True
            if item.call_id:
                self._agents.call(item, at_ns)
            return
        if item.type not in ("message", "agent_message") and not item.type.endswith("_output"):
            return
        self._arrive(at_ns)
        if author:
            log.seen.append((author, self._seer))
        elif item.type.endswith("_output"):
            for name, status in self._agents.output(item):
                self._result(name, status)
        elif item.role == "user":
            self._user(bytes(item.content), at_ns, where)

    def _user(self, content: bytes, at_ns: int, where: Where) -> None:
        """A message of the user, or one that the harness puts in: with an agent's answer, among others."""
        if b"subagent_notification" in content:
            for match in _NOTIFIED.findall(content):
                self._log.seen.append((match.decode("utf-8", "replace"), self._seer))
        elif b"<" not in content:
            # All that the harness puts in is marked up; where it is not, the text may have been taken out.
            self._unmarked = where.line, self._seer, at_ns

    def _token_count(self, event: _Event, at_ns: int, where: Where) -> None:
        log = self._log
        info = event.info
        if info is None:
            log.empty_counts += 1
            return
        problems = _bounds(info)
        if problems:
            report(self._findings, problems, where)
            return
        growth = self._usage.counted(info.total_token_usage)
        if growth is None:
            log.duplicates += 1
            line, seer, arrived_ns = self._unmarked
            if line and line == where.line - 1 and not self._history.replaying:
                # Behind what the harness puts in, the totals are told again; a user's own message has an event there.
                log.unnamed.append((seer, arrived_ns))
            return
        if self._history.replaying:
            return
        log.restarts += growth.restarted
        last = info.last_token_usage
        if last is None:
            last = growth.usage
            problems = list(_usage_problems("info.total_token_usage", last, MAX_TOKENS))
            if problems:
                report(self._findings, problems, where)
                return
        self._close(last, "count", at_ns, where)

    def _usage_record(self, record: _UsageRecord, at_ns: int, where: Where) -> None:
        """A response's usage, as newer versions write it beside the token count, or instead of it."""
        log = self._log
        problems: list[Problem] = []
        for name in ("usage", "turn_token_usage", "thread_token_usage"):
            usage = getattr(record, name)
            if usage is not None:
                problems += _usage_problems(name, usage, MAX_TOKENS if name == "usage" else 2**53)
        if problems:
            report(self._findings, problems, where)
            return
        growth = self._usage.recorded(record)
        if self._history.replaying or (record.thread_id and log.thread and record.thread_id != log.thread):
            return
        if growth is None:
            log.duplicates += 1
            return
        log.restarts += growth.restarted
        problems = list(_usage_problems("turn_token_usage", growth.usage, MAX_TOKENS))
        if problems:
            report(self._findings, problems, where)
            return
        self._close(growth.usage, "record", at_ns, where)

    def _close(self, usage: _Usage, told_by: str, at_ns: int, where: Where) -> None:
        """End a call by its usage, unless the other kind of record has told it before."""
        log = self._log
        if not self._answering and self._usage.told_before(usage, told_by):
            return
        if usage.input_tokens > 0:
            self._usage.note(usage, told_by)
            self._call(usage, at_ns, where)
        else:
            log.without_usage += 1
            log.without_usage_line = log.without_usage_line or where.line

    def _call(self, usage: _Usage, at_ns: int, where: Where) -> None:
        log = self._log
        answers = self._input_ns >= 0
        start_ns = self._input_ns if answers else at_ns
        earliest_ns = max(start_ns, log.calls[-1].start_ns) if log.calls else start_ns
        if earliest_ns != start_ns or start_ns > at_ns:
            log.went_back += 1
            log.went_back_line = log.went_back_line or where.line
        log.calls.append(
            RolloutCall(
                line=where.line,
                model=self._model or "unknown",
                start_ns=earliest_ns,
                end_ns=max(at_ns, earliest_ns),
                input_length=usage.input_tokens,
                cached=usage.cached_input_tokens,
                output_length=usage.output_tokens,
                reasoning=usage.reasoning_output_tokens,
                answers=answers,
                reset=self._reset,
            )
        )
        self._agents.counted()
        self._input_ns, self._later_ns = self._later_ns, -1
        self._answering = self._reset = False


class _History:
    """Tells the records that a thread copied from its parent from its own.

    Parameters
    ----------
    made_ms : int, optional
        When the thread was made, as its id tells; None for an id that tells no time.
    replaying : bool
        The head says that a history follows.
    start_ordinal : int, optional
        The first line of the thread's own, where the head tells it.
    """

    def __init__(self, made_ms: int | None = None, replaying: bool = False, start_ordinal: int | None = None) -> None:
        self._made_ms = made_ms
        self._start_ordinal = start_ordinal
        # Threads that the file names as those it comes from; a turn may have the id of its thread.
        self.ancestors: set[str] = set()
        self.replaying = replaying
        self.own_turn = False

    def place(self, line: _Line, log: RolloutLog, where: Where) -> None:
        """Tell by its number whose a line is, where lines have numbers and the head tells the first own one."""
        if self._start_ordinal is None:
            return
        ordinal = _ordinal(line.ordinal)
        if ordinal is None:
            return
        copied = ordinal < self._start_ordinal
        if not copied and not self.own_turn:
            self.own_turn = True
            log.replayed_lines = where.line - 1
        self.replaying = copied

    def turn(self, turn_id: str | None, log: RolloutLog, agents: _AgentTools, where: Where) -> None:
        """A turn begins: the thread's own, or one that was copied.

        A turn is the thread's own if it was made no earlier than the thread. Only ids of version 7 tell when they were
        made; by one of another version, or by a name, nothing is decided. Within the millisecond a thread's first turn
        may have the lower id.
        """
        made_ms = _made_ms(turn_id or "")
        if self._made_ms is None or made_ms is None or self.own_turn:
            return
        if made_ms < self._made_ms or turn_id in self.ancestors:
            if not self.replaying:
                # A fork of the last turns begins within one of them, and its head may not say so.
                log.forget()
                agents.forget()
            self.replaying = True
            return
        self.own_turn = True
        if self.replaying:
            self.replaying = False
            log.replayed_lines = where.line - 1
        elif log.parent and (not log.calls or log.calls[-1].end_ns <= log.head_ns + COPIED_WITHIN_NS):
            # What a child has before its first turn was written with its head, so it is copied.
            log.replayed_lines = where.line - 1 if log.calls else 0
            log.forget()
            agents.forget()


@dataclass(frozen=True, slots=True)
class _Growth:
    """What a call used, and whether the counter had started anew."""

    usage: _Usage
    restarted: bool = False


class _UsageMeter:
    """Reads calls off counters that grow, and keeps two kinds of records of one call apart."""

    def __init__(self) -> None:
        self.turn = 0
        self._total: tuple[int, int, int] | None = None
        self._of_thread: tuple[int, int, int] | None = None
        self._of_turn: tuple[int, int, int] | None = None
        self._turn_key: str | int = 0
        self._responses: set[str] = set()
        self._told: tuple[str, tuple[int, int, int]] | None = None

    def counted(self, total: _Usage) -> _Growth | None:
        """Return what a token count adds, None when it tells the totals again."""
        before, self._total = self._total, _three(total)
        return _grown(before, total)

    def recorded(self, record: _UsageRecord) -> _Growth | None:
        """Return what a usage record tells, None when it tells a response again.

        Where a response's own usage is left out, the counters of its turn or of the thread tell it.
        """
        key = record.turn_id or self.turn
        before = self._of_turn if key == self._turn_key else (0, 0, 0)
        thread_before = self._of_thread
        self._turn_key = key
        self._of_turn = _three(record.turn_token_usage) if record.turn_token_usage is not None else None
        if record.thread_token_usage is not None:
            self._of_thread = _three(record.thread_token_usage)
        if record.response_id:
            if record.response_id in self._responses:
                return None
            self._responses.add(record.response_id)
        if record.usage is not None:
            return _Growth(record.usage)
        if record.turn_token_usage is not None:
            return _grown(before, record.turn_token_usage)
        if record.thread_token_usage is not None:
            return _grown(thread_before, record.thread_token_usage)
        return _Growth(_Usage())

    def note(self, usage: _Usage, told_by: str) -> None:
        """Note the latest call and what told it."""
        self._told = told_by, _three(usage)

    def told_before(self, usage: _Usage, told_by: str) -> bool:
        """Tell whether the other kind of record has just told the call; it does so once."""
        told = self._told
        if told is None or told[0] == told_by or told[1] != _three(usage):
            return False
        self._told = None
        return True


class _AgentTools:
    """The tool calls of a thread that say something about agents, by the number of the LLM call that made them."""

    def __init__(self, log: RolloutLog) -> None:
        self._log = log
        # By call id: the tool, the LLM call, and when.
        self._uses: dict[str, tuple[str, int, int]] = {}
        self._asked_paths: dict[str, str] = {}
        # Programs that run, by the LLM call that wrote them or went on with them; and the latest of those.
        self._running: dict[str, int] = {}
        self._latest_code = -1
        self._known: set[str] = set()
        # What is of a call that has no count yet.
        self._fresh_uses: list[str] = []
        self._fresh_spawned: list[str] = []

    def forget(self) -> None:
        """Drop what is another thread's."""
        for held in (self._uses, self._asked_paths, self._running, self._known, self._fresh_uses, self._fresh_spawned):
            held.clear()
        self._latest_code = -1

    def counted(self) -> None:
        """The LLM call under way is over and has a count."""
        self._fresh_uses.clear()
        self._fresh_spawned.clear()

    def break_off(self) -> None:
        """The LLM call under way is over and has no count: what it spawned, no call did."""
        for call_id in self._fresh_uses:
            if call_id in self._uses:
                name, _, at_ns = self._uses[call_id]
                self._uses[call_id] = name, -1, at_ns
            if call_id in self._running:
                self._running[call_id] = -1
        number = len(self._log.calls)
        for name in self._fresh_spawned:
            if self._log.spawned.get(name) == number:
                self._log.spawned[name] = -1
        if self._latest_code == number:
            self._latest_code = -1
        self.counted()

    def call(self, item: _Item, at_ns: int) -> None:
        """Note a tool call."""
        number = len(self._log.calls)
        call_id, name = item.call_id or "", item.name or ""
        if item.type == "function_call" and name in AGENT_TOOLS:
            self._uses[call_id] = name, number, at_ns
            self._log.spawn_calls += name == "spawn_agent"
            self._log.wait_calls += name == "wait_agent"
            if name == "spawn_agent":
                self._asked_paths[call_id] = _asked_path(bytes(item.arguments), self._log.path)
        elif name in CODE_TOOLS or (item.type == "custom_tool_call" and name != "apply_patch"):
            self._running[call_id] = self._latest_code = number
        else:
            return
        self._fresh_uses.append(call_id)

    def spawned(self, thread: str, call_id: str | None) -> None:
        """A thread was spawned, by the tool call of that id, or by a program that runs."""
        log = self._log
        if call_id in self._uses:
            number = self._uses[call_id][1]
            self._know(call_id)
        elif self._running:
            number = max(self._running.values())
        elif self._latest_code >= 0:
            # A program may go on while the model is asked again.
            number = self._latest_code
        else:
            return
        if thread not in log.spawned:
            log.spawned[thread] = number
            self._fresh_spawned.append(thread)

    def _know(self, call_id: str) -> None:
        self._log.spawns_known += call_id not in self._known
        self._known.add(call_id)

    def output(self, item: _Item) -> list[tuple[str, msgspec.Raw]]:
        """Take the output of a tool call; return the states of agents that it tells."""
        call_id = item.call_id or ""
        self._running.pop(call_id, None)
        name, number, at_ns = self._uses.get(call_id, ("", 0, 0))
        if item.type != "function_call_output" or not name:
            return []
        text = _text(bytes(item.output))
        if name == "spawn_agent":
            self._spawn_output(call_id, text, number, at_ns)
            return []
        try:
            output = _AGENTS.decode(text)
        except DecodeErrors:
            # Prose, as an interrupted wait returns.
            return []
        return [*output.status.items(), *((agent.agent_name, agent.agent_status) for agent in output.agents)]

    def _spawn_output(self, call_id: str, text: bytes, number: int, at_ns: int) -> None:
        """What a spawn returned: the path of its agent or its thread, or an error in words."""
        try:
            told = _SPAWNED.decode(text)
        except DecodeErrors:
            told = _Spawned()
        if told.agent_id:
            self.spawned(told.agent_id, call_id)
        path = told.task_name or ("" if told.agent_id else self._asked_paths.get(call_id, ""))
        if told.task_name:
            self._know(call_id)
        if path:
            self._log.named_spawns.setdefault(path, []).append(NamedSpawn(number, at_ns))


def _made_ms(name: str) -> int | None:
    """Return when a UUID of version 7 was made, in ms since 1970; None for other names."""
    match = _TIMED_ID.fullmatch(name)
    return int(match.group(1) + match.group(2), 16) if match else None


def _ordinal(value: msgspec.Raw) -> int | None:
    """Return the number of a line; some versions write it as a text."""
    try:
        ordinal = _ORDINAL.decode(value) if value else None
        return None if ordinal is None else int(ordinal)
    except (*DecodeErrors, ValueError):
        return None


def _looks_copied(call: RolloutCall, head_ns: int) -> bool:
    """Tell whether a call at the head of a child is one of its parent's: it ended before, or took no time then."""
    at_once = call.end_ns - call.start_ns <= COPIED_CALL_NS
    return head_ns >= 0 and (call.end_ns < head_ns or (at_once and call.end_ns <= head_ns + COPIED_WITHIN_NS))


def _three(usage: _Usage) -> tuple[int, int, int]:
    return usage.input_tokens, usage.cached_input_tokens, usage.output_tokens


def _grown(before: tuple[int, int, int] | None, now: _Usage) -> _Growth | None:
    """Return by what a counter grew, None for not at all; one that has less than before starts anew."""
    if _three(now) == before:
        return None
    restarted = before is not None and now.input_tokens < before[0]
    base = (0, 0, 0) if before is None or restarted else before
    usage = _Usage(
        now.input_tokens - base[0],
        max(now.cached_input_tokens - base[1], 0),
        max(now.output_tokens - base[2], 0),
        now.reasoning_output_tokens if base == (0, 0, 0) else 0,
    )
    return _Growth(usage, restarted)


def _text(value: bytes) -> bytes:
    """Return the text of an item's content or output: a string, or the first part of a list that has one."""
    try:
        if value[:1] == b"[":
            return next((part.text for part in _PARTS.decode(value) if part.text), "").encode()
        return msgspec.json.decode(value, type=str).encode() if value else b""
    except DecodeErrors:
        return b""


def _author(value: bytes) -> str | None:
    try:
        return _COMMUNICATION.decode(value).author or None
    except DecodeErrors:
        return None


def _sender(content: bytes) -> str | None:
    """Return who sent a message whose text is the envelope of an agent's; None for the model's own words."""
    if b"author" in content and b"recipient" in content:
        return _author(_text(content))
    if b"Sender: " in content:
        match = _ENVELOPE.match(_text(content).decode())
        return match.group(1) if match else None
    return None


def _asked_path(arguments: bytes, own_path: str) -> str:
    """Return the path of the agent that a spawn asks for, empty where it names none."""
    try:
        name = _SPAWNED.decode(_text(arguments)).task_name or ""
    except DecodeErrors:
        return ""
    return name if not name or name.startswith("/") else f"{own_path or '/root'}/{name}"


def _spawned_by(source: msgspec.Raw) -> _ThreadSpawn:
    """Return what the source of a session tells of its spawn; older and other sources are plain strings."""
    nothing = _ThreadSpawn()
    if bytes(source).lstrip()[:1] != b"{":
        return nothing
    try:
        subagent = _SOURCE.decode(source).subagent
        if bytes(subagent).lstrip()[:1] != b"{":
            return nothing
        return _SUBAGENT.decode(subagent).thread_spawn or nothing
    except DecodeErrors:
        return nothing


def _bounds(info: _Info) -> list[Problem]:
    problems = list(_usage_problems("info.total_token_usage", info.total_token_usage, 2**53))
    if info.last_token_usage is not None:
        problems += _usage_problems("info.last_token_usage", info.last_token_usage, MAX_TOKENS)
    return problems


def _usage_problems(place: str, usage: _Usage, most: int) -> Iterator[Problem]:
    for name in ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens"):
        value = getattr(usage, name)
        if not 0 <= value <= most:
            path = f"payload.{place}.{name}"
            yield Problem("length-out-of-bounds", path, "out of bounds", str(value)[:60], f"0 … {most}")
