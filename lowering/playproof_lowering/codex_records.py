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
from playproof_lowering.turns import recorded_ns
from playproof_lowering.wire import DecodeErrors, Problem, decoded, report

__all__ = ["RolloutCall", "RolloutLog", "read_rollout"]

_NAME = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl")
_NOTIFIED = re.compile(rb"agent_(?:id|path)\\*\"\s*:\s*\\*\"([^\"\\]{1,200})")
_ABSENT: Final = msgspec.Raw(b"")
LINES: Final = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
ITEMS: Final = frozenset({"message", "reasoning", "function_call", "function_call_output", "agent_message"})
EVENTS: Final = frozenset(
    {
        "token_count",
        "task_started",
        "task_complete",
        "collab_agent_spawn_end",
        "sub_agent_activity",
        "collab_waiting_end",
        "collab_close_end",
    }
)
# Tools whose calls or outputs say something about agents.
AGENT_TOOLS: Final = frozenset({"spawn_agent", "wait_agent", "list_agents"})


class _Line(msgspec.Struct):
    type: str
    timestamp: str | None = None
    payload: msgspec.Raw = _ABSENT


class _ThreadSpawn(msgspec.Struct):
    parent_thread_id: str | None = None


class _Subagent(msgspec.Struct):
    thread_spawn: _ThreadSpawn | None = None


class _Source(msgspec.Struct):
    subagent: msgspec.Raw = _ABSENT


class _SessionMeta(msgspec.Struct):
    id: str
    forked_from_id: str | None = None
    parent_thread_id: str | None = None
    source: msgspec.Raw = _ABSENT


class _TurnContext(msgspec.Struct):
    model: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    role: str | None = None
    name: str | None = None
    call_id: str | None = None
    author: str | None = None
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


@dataclass(slots=True, eq=False)
class RolloutLog:
    """What stays of one file.

    Attributes
    ----------
    thread, parent : str
        Whose rollout it is, and the thread that it says spawned it; empty for none.
    forked : bool
        It begins with its parent's records.
    calls : list of RolloutCall
    spawned : dict
        By thread, the number of the call that spawned it.
    seen : list of (str, int)
        Threads or agent paths of which a result arrived, and the number of the first call that saw it.
    answered_ns : int
        When it first answered whoever started it, -1 for never.
    unnamed : list of (int, int)
        Notifications whose text has been taken out: the number of the first call that saw one, and when it arrived.
    paths : dict
        Thread by agent path.
    spawn_calls, wait_calls, duplicates, empty_counts, restarts, compactions, went_back, without_usage : int
        Tool calls, repeated and empty token counts, counters that started anew, compactions, clocks that went back, and
        counts that grew by a call without a prompt.
    replayed_lines : int
        Lines of the parent's history.
    """

    file: str
    thread: str = ""
    parent: str = ""
    forked: bool = False
    calls: list[RolloutCall] = field(default_factory=list)
    spawned: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[str, int]] = field(default_factory=list)
    answered_ns: int = -1
    unnamed: list[tuple[int, int]] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    spawn_calls: int = 0
    wait_calls: int = 0
    duplicates: int = 0
    empty_counts: int = 0
    restarts: int = 0
    compactions: int = 0
    went_back: int = 0
    went_back_line: int = 0
    without_usage: int = 0
    without_usage_line: int = 0
    replayed_lines: int = 0

    def forget(self) -> None:
        """Drop what is another thread's."""
        for held in (self.calls, self.spawned, self.seen, self.unnamed, self.paths):
            held.clear()
        self.spawn_calls = self.wait_calls = self.compactions = 0
        self.answered_ns = -1


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
        self._replaying = False
        self._canonical = False
        self._model = ""
        self._total: tuple[int, int, int] | None = None
        # The call in flight: the input that it answers, whether it has answered, and what came in since.
        self._input_ns = -1
        self._later_ns = -1
        self._answering = False
        self._reset = False
        self._uses: dict[str, tuple[str, int]] = {}
        # The latest message of the user's role that says nothing of itself: its line, who sees it, when it arrived.
        self._unmarked = (0, 0, 0)

    def read(self) -> None:
        log = self._log
        try:
            for where, record in self._reading.placed():
                self._record(record, where)
        finally:
            log.thread = log.thread or self._named or namespace(self._reading.file)
        if self._replaying:
            message = "it begins with another thread's records, and nothing shows where its own begin"
            where = Where(file=log.file, ids=(log.thread,))
            self._findings.add(finding("history-uncut", message, where=where, found="no task_started of its own"))

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
        elif line.type == "turn_context":
            context = decoded(_CONTEXT, line.payload, where, self._findings, "payload")
            if context is not None and context.model:
                self._model = context.model
        elif line.type == "compacted":
            if not self._replaying:
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
        elif not self._replaying:
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
            self._replaying = self._replaying or not log.calls
            log.forked = log.forked or not log.calls
            return
        if log.thread and meta.id != self._named:
            return
        # What stood before the file's own head was another thread's.
        log.forget()
        self._uses.clear()
        self._input_ns = self._later_ns = -1
        self._answering = self._reset = False
        self._unmarked = (0, 0, 0)
        self._canonical = meta.id == self._named or not self._named
        log.thread = meta.id
        log.parent = meta.parent_thread_id or _spawned_by(meta.source) or ""
        log.forked = meta.forked_from_id is not None
        self._replaying = log.forked

    def _event(self, event: _Event, at_ns: int, where: Where) -> None:
        log = self._log
        if event.type == "token_count":
            self._token_count(event, at_ns, where)
        elif event.type == "task_started":
            # Both are UUIDs of version 7, whose order is that of their making.
            if self._replaying and event.turn_id is not None and event.turn_id >= log.thread:
                self._replaying = False
                log.replayed_lines = where.line - 1
        elif self._replaying:
            return
        elif event.type == "task_complete":
            log.answered_ns = log.answered_ns if log.answered_ns >= 0 else at_ns
        elif event.type == "collab_agent_spawn_end":
            if event.new_thread_id and event.call_id in self._uses:
                log.spawned.setdefault(event.new_thread_id, self._uses[event.call_id][1])
        elif event.type == "sub_agent_activity":
            if event.agent_thread_id and event.agent_path:
                log.paths[event.agent_path] = event.agent_thread_id
            if event.kind == "started" and event.agent_thread_id and event.event_id in self._uses:
                log.spawned.setdefault(event.agent_thread_id, self._uses[event.event_id][1])
        elif event.type == "collab_waiting_end":
            for thread, status in (event.statuses or {}).items():
                self._result(thread, status)
        elif event.type == "collab_close_end" and event.receiver_thread_id:
            self._result(event.receiver_thread_id, event.status)

    def _result(self, name: str, status: msgspec.Raw) -> None:
        """Note that the status of an agent arrived; one that is over has its answer or its error within."""
        if bytes(status).lstrip()[:1] == b"{":
            self._log.seen.append((name, self._seer))

    @property
    def _seer(self) -> int:
        """The number of the first call that sees what arrives now."""
        return len(self._log.calls) + (1 if self._answering else 0)

    def _item(self, item: _Item, at_ns: int, where: Where) -> None:
        log = self._log
        said = item.type == "message" and item.role == "assistant"
        if said or item.type == "reasoning" or item.type.endswith("_call"):
            self._answering = True
            if item.type == "function_call" and item.call_id and item.name in AGENT_TOOLS:
                self._uses[item.call_id] = (item.name, len(log.calls))
                log.spawn_calls += item.name == "spawn_agent"
                log.wait_calls += item.name == "wait_agent"
            return
        if item.type not in ("message", "agent_message") and not item.type.endswith("_output"):
            return
        if self._answering:
            self._later_ns = max(self._later_ns, at_ns)
        else:
            self._input_ns = max(self._input_ns, at_ns)
        if item.type == "agent_message" and item.author:
            log.seen.append((item.author, self._seer))
        elif item.type == "function_call_output":
            self._agents_output(item)
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

    def _agents_output(self, item: _Item) -> None:
        """What a wait returned, where no event says it, or a list of agents."""
        if self._uses.get(item.call_id or "", ("", 0))[0] not in ("wait_agent", "list_agents"):
            return
        try:
            output = _AGENTS.decode(msgspec.json.decode(item.output, type=str))
        except DecodeErrors:
            # Prose, as an interrupted wait returns.
            return
        for thread, status in output.status.items():
            self._result(thread, status)
        for agent in output.agents:
            self._result(agent.agent_name, agent.agent_status)

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
        total = info.total_token_usage
        counted = (total.input_tokens, total.cached_input_tokens, total.output_tokens)
        before = self._total
        if counted == before:
            log.duplicates += 1
            line, seer, arrived_ns = self._unmarked
            if line and line == where.line - 1:
                # Behind what the harness puts in, the totals are told again; a user's own message has an event there.
                log.unnamed.append((seer, arrived_ns))
            return
        self._total = counted
        if self._replaying:
            return
        restarted = before is not None and counted[0] < before[0]
        log.restarts += restarted
        last = info.last_token_usage
        if last is None:
            base = (0, 0, 0) if before is None or restarted else before
            last = _Usage(counted[0] - base[0], max(counted[1] - base[1], 0), max(counted[2] - base[2], 0))
            problems = list(_usage_problems("total_token_usage", last, MAX_TOKENS))
            if problems:
                report(self._findings, problems, where)
                return
        if last.input_tokens > 0:
            self._call(last, at_ns, where)
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
        self._input_ns, self._later_ns = self._later_ns, -1
        self._answering = self._reset = False


def _spawned_by(source: msgspec.Raw) -> str | None:
    """Return the parent that the source of a session names; older and other sources are plain strings."""
    if bytes(source).lstrip()[:1] != b"{":
        return None
    try:
        subagent = _SOURCE.decode(source).subagent
        if bytes(subagent).lstrip()[:1] != b"{":
            return None
        thread_spawn = _SUBAGENT.decode(subagent).thread_spawn
    except DecodeErrors:
        return None
    return thread_spawn.parent_thread_id if thread_spawn is not None else None


def _bounds(info: _Info) -> list[Problem]:
    problems = list(_usage_problems("total_token_usage", info.total_token_usage, 2**53))
    if info.last_token_usage is not None:
        problems += _usage_problems("last_token_usage", info.last_token_usage, MAX_TOKENS)
    return problems


def _usage_problems(place: str, usage: _Usage, most: int) -> Iterator[Problem]:
    for name in ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens"):
        value = getattr(usage, name)
        if not 0 <= value <= most:
            path = f"payload.info.{place}.{name}"
            yield Problem("length-out-of-bounds", path, "out of bounds", str(value)[:60], f"0 … {most}")
