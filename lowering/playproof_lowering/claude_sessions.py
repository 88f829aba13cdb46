"""Claude Code sessions over all their files: conversations put together, and which session each call counts in."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from playproof_lowering.claude_calls import RecordedCall, Scope
from playproof_lowering.claude_records import BRANCH, MAIN, AgentResult, FileLog, Meta
from playproof_lowering.turns import Turn

__all__ = [
    "Conversation",
    "Session",
    "answers_of",
    "first_ns",
    "metas_by_session",
    "owners_in_front",
    "owners_of",
    "sessions_of",
]


@dataclass(slots=True, eq=False)
class Conversation:
    """One scope of a session, over all files.

    Attributes
    ----------
    calls : list of RecordedCall
        In time order, those that another session owns too.
    run : str
        The workflow run that its agent is of, empty for none.
    fork : RecordedCall, optional
        The call that it branched off from.
    listed : list of Turn
        Of the session's own calls and the restored ones, in order.
    first, last : dict
        Number of the first and of the last turn of each of its own calls: a message may have taken several.
    """

    name: str
    calls: list[RecordedCall] = field(default_factory=list)
    by_key: dict[str, RecordedCall] = field(default_factory=dict)
    input_ns: int = -1
    run: str = ""
    fork: RecordedCall | None = None
    listed: list[Turn] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    @property
    def trunk(self) -> str:
        """The conversation that it branched off from, or itself."""
        return self.name.partition(BRANCH)[0]

    @property
    def branched(self) -> bool:
        return BRANCH in self.name

    @property
    def agent(self) -> str:
        return self.name.removeprefix("agent:") if self.name.startswith("agent:") and not self.branched else ""


@dataclass(slots=True, eq=False)
class Session:
    """One play to be.

    Attributes
    ----------
    results : dict of AgentResult
        By tool use.
    results_of : dict of list of AgentResult
        By agent, in time order.
    progress_links : dict
        Tool use by agent.
    tasks : dict
        Task by workflow run.
    """

    name: str
    file: str
    conversations: dict[str, Conversation] = field(default_factory=dict)
    results: dict[str, AgentResult] = field(default_factory=dict)
    results_of: dict[str, list[AgentResult]] = field(default_factory=dict)
    progress_links: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    last_ns: int = -1

    @property
    def ordered(self) -> list[Conversation]:
        """The main conversation, then the agents by their first call."""
        return sorted(
            (conversation for conversation in self.conversations.values() if conversation.calls),
            key=lambda c: (c.name != MAIN, c.calls[0].start_ns, c.name),
        )


def sessions_of(logs: Sequence[FileLog]) -> list[Session]:
    """Put the files' logs together, session by session; nothing depends on the order of the files."""
    sessions: dict[str, Session] = {}
    # A run's own file says nothing of its session; no two runs have one id.
    tasks = {run: task for log in logs for run, task in log.tasks.items()}
    for log in logs:
        owners: dict[str, Session] = {}
        for name, scope in log.scopes.items():
            # An agent's own file belongs to the session that its records name.
            owner = log.session if MAIN in log.scopes or not scope.session else scope.session
            session = owners[owner] = sessions.setdefault(owner, Session(owner, log.file))
            conversation = session.conversations.setdefault(name, Conversation(name))
            conversation.run = conversation.run or (log.run if name.startswith("agent:") else "")
            conversation.fork = conversation.fork or scope.fork
            _merge(conversation, scope)
        for session in owners.values():
            for result in log.results:
                session.results.setdefault(result.tool_use, result)
            for agent, tool_use in log.progress_links.items():
                session.progress_links.setdefault(agent, tool_use)
            session.tasks.update(tasks)
    for session in sessions.values():
        for conversation in session.conversations.values():
            conversation.calls.sort(key=lambda call: (call.start_ns, call.line, call.key))
            for call in conversation.calls:
                session.last_ns = max(session.last_ns, call.end_ns)
        for result in sorted(session.results.values(), key=lambda result: (result.at_ns, result.tool_use)):
            session.results_of.setdefault(result.agent, []).append(result)
    return sorted(sessions.values(), key=_ended_first)


def metas_by_session(metas: Sequence[Meta], logs: Sequence[FileLog]) -> dict[tuple[str, str], Meta]:
    """Return the meta files by session and agent.

    Which session an agent is of is told by the records of the file beside the meta file, whatever the folder is called;
    one given by itself has no session.
    """
    sessions = {(log.folder, log.agent): scope.session for log in logs if log.agent for scope in log.scopes.values()}
    return {(sessions.get((meta.folder, meta.agent), ""), meta.agent): meta for meta in metas}


def _ended_first(session: Session) -> tuple[int, str]:
    return session.last_ns, session.name


def owners_of(sessions: Sequence[Session]) -> dict[str, tuple[str, str]]:
    """Return the session and the conversation that each call counts in.

    Of several sessions that have a call it is of one whose records name itself, for others keep the name that they
    copied; as a copy may also have been renamed, of the one that ended first. Within a session the main conversation
    comes before agents, which may have been forked off it and begin with a copy of it.

    Parameters
    ----------
    sessions : sequence of Session
        Those that ended first in front.
    """
    owners: dict[str, tuple[str, str]] = {}
    claimed: set[str] = set()
    for session in sessions:
        for conversation in session.ordered:
            own = session.name, conversation.name
            for call in conversation.calls:
                if call.native == session.name and call.key not in claimed:
                    claimed.add(call.key)
                    owners[call.key] = own
                else:
                    owners.setdefault(call.key, own)
    return owners


def owners_in_front(sessions: Sequence[Session], owners: Mapping[str, tuple[str, str]]) -> list[Session]:
    """Return the sessions so that one whose calls another one copied comes before it.

    Sessions that copied each other are in no such order; the one that ended first comes first.
    """
    copied: dict[str, set[str]] = {session.name: set() for session in sessions}
    for session in sessions:
        for conversation in session.conversations.values():
            for call in conversation.calls:
                if owners[call.key][0] != session.name:
                    copied[owners[call.key][0]].add(session.name)
    waits = Counter(name for names in copied.values() for name in names)
    rank = {session.name: number for number, session in enumerate(sessions)}
    ready = [number for name, number in rank.items() if not waits[name]]
    ordered: dict[int, Session] = {}
    first_left = 0
    while len(ordered) < len(sessions):
        while first_left in ordered:
            first_left += 1
        number = heapq.heappop(ready) if ready else first_left
        if number in ordered:
            continue
        ordered[number] = sessions[number]
        for name in copied[sessions[number].name]:
            waits[name] -= 1
            if not waits[name]:
                heapq.heappush(ready, rank[name])
    return list(ordered.values())


def first_ns(session: Session) -> tuple[int, str]:
    starts = [conversation.calls[0].start_ns for conversation in session.conversations.values() if conversation.calls]
    return min(starts, default=-1), session.name


def _merge(conversation: Conversation, scope: Scope) -> None:
    """Add the calls of one file; of a call told twice the copy that ends last has the counts."""
    for call in scope.calls:
        known = conversation.by_key.setdefault(call.key, call)
        if known is call:
            conversation.calls.append(call)
        else:
            _put_together(known, call)
    conversation.input_ns = max(conversation.input_ns, scope.input_ns)


def _put_together(call: RecordedCall, other: RecordedCall) -> None:
    """Let `call` have what either copy of it tells. All counts are taken from one of them."""
    if (other.end_ns, other.output_length, other.prompt) > (call.end_ns, call.output_length, call.prompt):
        call.parts, call.prompt = other.parts, other.prompt
    call.start_ns = min(call.start_ns, other.start_ns)
    call.end_ns = max(call.end_ns, other.end_ns)
    call.characters = max(call.characters, other.characters)
    call.uses = list(dict.fromkeys([*call.uses, *other.uses]))
    call.workflows = list(dict.fromkeys([*call.workflows, *other.workflows]))
    call.results = list(dict.fromkeys([*call.results, *other.results]))
    call.notices = list(dict.fromkeys([*call.notices, *other.notices]))
    call.calls_tool |= other.calls_tool


def answers_of(session: Session, conversation: Conversation) -> list[AgentResult]:
    """Return what a blocking agent answered, in time order."""
    results = session.results_of.get(conversation.agent, ()) if conversation.agent else ()
    return [result for result in results if not result.background]
