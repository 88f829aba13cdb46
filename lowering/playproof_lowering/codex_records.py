"""Reading one Codex rollout: its records, reduced to calls, spawns and what the parent saw of its agents."""

from __future__ import annotations

import re

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS

from playproof_lowering.codex_tracking import (
    AgentTools,
    History,
    NamedSpawn,
    RolloutCall,
    RolloutLog,
    UsageMeter,
    looks_copied,
    made_ms,
)
from playproof_lowering.codex_wire import (
    CONTEXT,
    EVENT,
    EVENTS,
    ITEM,
    ITEMS,
    LINE,
    LINES,
    META,
    USAGE_RECORD,
    Event,
    Item,
    Line,
    Usage,
    UsageRecord,
    author_of,
    bounds_problems,
    ordinal_of,
    sender_of,
    spawned_by,
    usage_problems,
)
from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.source import Reading
from playproof_lowering.surrogates import whole_characters
from playproof_lowering.turns import instant_ns, recorded_ns
from playproof_lowering.wire import Problem, decoded, report

__all__ = ["NamedSpawn", "RolloutCall", "RolloutLog", "read_rollout"]

# A thread that was reverted gets a new file: behind its own id the name has the file's.
_NAME = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:_[0-9a-f-]{36})?\.jsonl")
_NOTIFIED = re.compile(rb"agent_(?:id|path)\\*\"\s*:\s*\\*\"([^\"\\]{1,200})")


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
        self._history = History()
        self._usage = UsageMeter()
        self._agents = AgentTools(log)
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
            while copied < len(log.calls) and looks_copied(log.calls[copied], log.head_ns):
                copied += 1
            if copied:
                log.drop_leading(copied)
                found = f"{copied} calls at the time of its head"
        if found:
            message = "it begins with another thread's records, and nothing shows where its own begin"
            where = Where(file=log.file, ids=(log.thread,))
            self._findings.add(finding("history-uncut", message, where=where, found=found))

    def _record(self, data: bytes, where: Where) -> None:
        line = decoded(LINE, data, where, self._findings)
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
            context = decoded(CONTEXT, line.payload, where, self._findings, "payload")
            if context is not None:
                self._history.turn(context.turn_id, self._log, self._agents, where)
                self._model = context.model or self._model
        elif line.type == "compacted":
            if not self._history.replaying:
                self._log.compactions += 1
                self._reset = True
        else:
            self._timed(line, where)

    def _timed(self, line: Line, where: Where) -> None:
        at_ns = recorded_ns(line.timestamp, "timestamp", where, self._findings)
        if at_ns is None:
            return
        if line.type == "event_msg":
            event = decoded(EVENT, line.payload, where, self._findings, "payload", EVENTS)
            if event is not None:
                self._event(event, at_ns, where)
        elif line.type == "token_usage_record":
            record = decoded(USAGE_RECORD, line.payload, where, self._findings, "payload")
            if record is not None:
                self._usage_record(record, at_ns, where)
        elif self._history.replaying:
            return
        elif line.type == "inter_agent_communication":
            author = author_of(bytes(line.payload))
            if author and author != self._log.path:
                self._arrive(at_ns)
                self._log.seen.append((author, self._seer))
        else:
            item = decoded(ITEM, line.payload, where, self._findings, "payload", ITEMS)
            if item is not None:
                self._item(item, at_ns, where)

    def _session_meta(self, line: Line, where: Where) -> None:
        """The first one with the file's own id is canonical; one with another id begins a copied history."""
        meta = decoded(META, line.payload, where, self._findings, "payload")
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
        spawned = spawned_by(meta.source)
        log.thread = meta.id
        log.parent = meta.parent_thread_id or spawned.parent_thread_id or ""
        log.path = meta.agent_path or spawned.agent_path or ""
        head_ns = instant_ns(line.timestamp) if line.timestamp is not None else None
        log.head_ns = -1 if head_ns is None else head_ns
        log.forked = meta.forked_from_id is not None
        self._history = History(made_ms(meta.id), log.forked, ordinal_of(meta.subagent_history_start_ordinal))
        self._history.ancestors.update(name for name in (meta.forked_from_id, log.parent) if name)

    def _event(self, event: Event, at_ns: int, where: Where) -> None:
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

    def _item(self, item: Item, at_ns: int, where: Where) -> None:
        log = self._log
        author = item.author if item.type == "agent_message" else None
        if item.type == "message" and item.role == "assistant":
            # What another agent says comes in this role too, with its envelope as the text.
            author = item.author or sender_of(bytes(item.content))
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

    def _token_count(self, event: Event, at_ns: int, where: Where) -> None:
        log = self._log
        info = event.info
        if info is None:
            log.empty_counts += 1
            return
        problems = bounds_problems(info)
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
            problems = list(usage_problems("info.total_token_usage", last, MAX_TOKENS))
            if problems:
                report(self._findings, problems, where)
                return
        self._close(last, "count", at_ns, where)

    def _usage_record(self, record: UsageRecord, at_ns: int, where: Where) -> None:
        """A response's usage, as newer versions write it beside the token count, or instead of it."""
        log = self._log
        problems: list[Problem] = []
        for name in ("usage", "turn_token_usage", "thread_token_usage"):
            usage = getattr(record, name)
            if usage is not None:
                problems += usage_problems(name, usage, MAX_TOKENS if name == "usage" else 2**53)
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
        problems = list(usage_problems("turn_token_usage", growth.usage, MAX_TOKENS))
        if problems:
            report(self._findings, problems, where)
            return
        self._close(growth.usage, "record", at_ns, where)

    def _close(self, usage: Usage, told_by: str, at_ns: int, where: Where) -> None:
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

    def _call(self, usage: Usage, at_ns: int, where: Where) -> None:
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
