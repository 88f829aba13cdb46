"""What stays of one Codex rollout, and what has to be kept while it is read: its history, its counters, its agents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Where

from playproof_lowering.codex_wire import (
    AGENTS,
    SPAWNED,
    Item,
    Line,
    Spawned,
    Usage,
    UsageRecord,
    asked_path,
    ordinal_of,
    text_of,
)
from playproof_lowering.wire import DecodeErrors

__all__ = ["AgentTools", "History", "NamedSpawn", "RolloutCall", "RolloutLog", "UsageMeter", "looks_copied", "made_ms"]

_TIMED_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
# Tools whose calls or outputs say something about agents.
AGENT_TOOLS: Final = frozenset({"spawn_agent", "wait_agent", "list_agents"})
# In code mode the model writes a program, which may spawn agents; `wait` goes on with one that has not come to its end.
CODE_TOOLS: Final = frozenset({"exec", "wait"})
# A copied history is written at once: its records have the time of the child's head, or their own, which is earlier.
COPIED_WITHIN_NS: Final = 10**9
# A call that took longer was not copied.
COPIED_CALL_NS: Final = 50 * 10**6


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


class History:
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

    def place(self, line: Line, log: RolloutLog, where: Where) -> None:
        """Tell by its number whose a line is, where lines have numbers and the head tells the first own one."""
        if self._start_ordinal is None:
            return
        ordinal = ordinal_of(line.ordinal)
        if ordinal is None:
            return
        copied = ordinal < self._start_ordinal
        if not copied and not self.own_turn:
            self.own_turn = True
            log.replayed_lines = where.line - 1
        self.replaying = copied

    def turn(self, turn_id: str | None, log: RolloutLog, agents: AgentTools, where: Where) -> None:
        """A turn begins: the thread's own, or one that was copied.

        A turn is the thread's own if it was made no earlier than the thread. Only ids of version 7 tell when they were
        made; by one of another version, or by a name, nothing is decided. Within the millisecond a thread's first turn
        may have the lower id.
        """
        began_ms = made_ms(turn_id or "")
        if self._made_ms is None or began_ms is None or self.own_turn:
            return
        if began_ms < self._made_ms or turn_id in self.ancestors:
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
class Growth:
    """What a call used, and whether the counter had started anew."""

    usage: Usage
    restarted: bool = False


class UsageMeter:
    """Reads calls off counters that grow, and keeps two kinds of records of one call apart."""

    def __init__(self) -> None:
        self.turn = 0
        self._total: tuple[int, int, int] | None = None
        self._of_thread: tuple[int, int, int] | None = None
        self._of_turn: tuple[int, int, int] | None = None
        self._turn_key: str | int = 0
        self._responses: set[str] = set()
        self._told: tuple[str, tuple[int, int, int]] | None = None

    def counted(self, total: Usage) -> Growth | None:
        """Return what a token count adds, None when it tells the totals again."""
        before, self._total = self._total, three(total)
        return grown(before, total)

    def recorded(self, record: UsageRecord) -> Growth | None:
        """Return what a usage record tells, None when it tells a response again.

        Where a response's own usage is left out, the counters of its turn or of the thread tell it.
        """
        key = record.turn_id or self.turn
        before = self._of_turn if key == self._turn_key else (0, 0, 0)
        thread_before = self._of_thread
        self._turn_key = key
        self._of_turn = three(record.turn_token_usage) if record.turn_token_usage is not None else None
        if record.thread_token_usage is not None:
            self._of_thread = three(record.thread_token_usage)
        if record.response_id:
            if record.response_id in self._responses:
                return None
            self._responses.add(record.response_id)
        if record.usage is not None:
            return Growth(record.usage)
        if record.turn_token_usage is not None:
            return grown(before, record.turn_token_usage)
        if record.thread_token_usage is not None:
            return grown(thread_before, record.thread_token_usage)
        return Growth(Usage())

    def note(self, usage: Usage, told_by: str) -> None:
        """Note the latest call and what told it."""
        self._told = told_by, three(usage)

    def told_before(self, usage: Usage, told_by: str) -> bool:
        """Tell whether the other kind of record has just told the call; it does so once."""
        told = self._told
        if told is None or told[0] == told_by or told[1] != three(usage):
            return False
        self._told = None
        return True


class AgentTools:
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

    def call(self, item: Item, at_ns: int) -> None:
        """Note a tool call."""
        number = len(self._log.calls)
        call_id, name = item.call_id or "", item.name or ""
        if item.type == "function_call" and name in AGENT_TOOLS:
            self._uses[call_id] = name, number, at_ns
            self._log.spawn_calls += name == "spawn_agent"
            self._log.wait_calls += name == "wait_agent"
            if name == "spawn_agent":
                self._asked_paths[call_id] = asked_path(bytes(item.arguments), self._log.path)
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

    def output(self, item: Item) -> list[tuple[str, msgspec.Raw]]:
        """Take the output of a tool call; return the states of agents that it tells."""
        call_id = item.call_id or ""
        self._running.pop(call_id, None)
        name, number, at_ns = self._uses.get(call_id, ("", 0, 0))
        if item.type != "function_call_output" or not name:
            return []
        text = text_of(bytes(item.output))
        if name == "spawn_agent":
            self._spawn_output(call_id, text, number, at_ns)
            return []
        try:
            output = AGENTS.decode(text)
        except DecodeErrors:
            # Prose, as an interrupted wait returns.
            return []
        return [*output.status.items(), *((agent.agent_name, agent.agent_status) for agent in output.agents)]

    def _spawn_output(self, call_id: str, text: bytes, number: int, at_ns: int) -> None:
        """What a spawn returned: the path of its agent or its thread, or an error in words."""
        try:
            told = SPAWNED.decode(text)
        except DecodeErrors:
            told = Spawned()
        if told.agent_id:
            self.spawned(told.agent_id, call_id)
        path = told.task_name or ("" if told.agent_id else self._asked_paths.get(call_id, ""))
        if told.task_name:
            self._know(call_id)
        if path:
            self._log.named_spawns.setdefault(path, []).append(NamedSpawn(number, at_ns))


def made_ms(name: str) -> int | None:
    """Return when a UUID of version 7 was made, in ms since 1970; None for other names."""
    match = _TIMED_ID.fullmatch(name)
    return int(match.group(1) + match.group(2), 16) if match else None


def looks_copied(call: RolloutCall, head_ns: int) -> bool:
    """Tell whether a call at the head of a child is one of its parent's: it ended before, or took no time then."""
    at_once = call.end_ns - call.start_ns <= COPIED_CALL_NS
    return head_ns >= 0 and (call.end_ns < head_ns or (at_once and call.end_ns <= head_ns + COPIED_WITHIN_NS))


def three(usage: Usage) -> tuple[int, int, int]:
    return usage.input_tokens, usage.cached_input_tokens, usage.output_tokens


def grown(before: tuple[int, int, int] | None, now: Usage) -> Growth | None:
    """Return by what a counter grew, None for not at all; one that has less than before starts anew."""
    if three(now) == before:
        return None
    restarted = before is not None and now.input_tokens < before[0]
    base = (0, 0, 0) if before is None or restarted else before
    usage = Usage(
        now.input_tokens - base[0],
        max(now.cached_input_tokens - base[1], 0),
        max(now.output_tokens - base[2], 0),
        now.reasoning_output_tokens if base == (0, 0, 0) else 0,
    )
    return Growth(usage, restarted)
