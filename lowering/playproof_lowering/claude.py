"""Claude Code sessions into the graph: which calls there were, which agents they spawned, and who waited for whom.

A session is a play. Its main conversation and each agent's are sessions of it; an agent hangs at the call whose tool
use spawned it, and the call that was first to see its answer waits for it. A link is one that the records state: an
agent without one stands by itself, with a warning.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Relation, Source

from playproof_lowering.chains import BlockIds, PrefixChain, Runs, tell_cut, too_many_blocks
from playproof_lowering.claude_calls import COMPACTION, Part, RecordedCall, Scope
from playproof_lowering.claude_copies import name_calls
from playproof_lowering.claude_records import BRANCH, MAIN, AgentResult, FileLog, Meta, read_file
from playproof_lowering.provenance import corpus_digest
from playproof_lowering.source import Reading, SourceError, SourceFile, read_through
from playproof_lowering.surrogates import surrogates_replaced
from playproof_lowering.turns import Corpus, Turn, after, begun_by, circular, clock_went_back, sequence, spawn

__all__ = ["DEFAULT_BLOCK_SIZE", "read_claude"]

DEFAULT_BLOCK_SIZE: Final = 64
CHARACTERS_PER_TOKEN: Final = 4


@dataclass(slots=True, eq=False)
class _Conversation:
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
class _Session:
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
    conversations: dict[str, _Conversation] = field(default_factory=dict)
    results: dict[str, AgentResult] = field(default_factory=dict)
    results_of: dict[str, list[AgentResult]] = field(default_factory=dict)
    progress_links: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    last_ns: int = -1

    @property
    def ordered(self) -> list[_Conversation]:
        """The main conversation, then the agents by their first call."""
        return sorted(
            (conversation for conversation in self.conversations.values() if conversation.calls),
            key=lambda c: (c.name != MAIN, c.calls[0].start_ns, c.name),
        )


def read_claude(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read Claude Code sessions into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        Session files, agents' files and the meta files beside them, in any order.
    findings : Findings
        Receives what is wrong, missing, or estimated.
    facts : dict
        Receives counts and the digest.
    block_size : int, optional
        Tokens a hash id stands for, 64 by default: the recordings have none.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no call.
    """
    logs: list[FileLog] = []
    metas: list[Meta] = []
    digests = []
    for file in files:
        log = FileLog(file.shown)
        logs.append(log)
        read = partial(_read_file, findings=findings, log=log, metas=metas)
        digests.append(read_through(file, read, findings, on_bytes))
    size = block_size or DEFAULT_BLOCK_SIZE
    reused = name_calls(logs)
    lowering = _Lowering(_sessions(logs), _by_session(metas, logs), findings, size, Where(file=files[0].shown))
    lowering.count(logs)
    lowering.tell_reused(reused)
    facts["input_digest"] = corpus_digest(digests)
    graph_source = Source("claude", corpus_digest(digests, (f"block_size={size}",)))
    return lowering.finish(graph_source, facts)


def _read_file(reading: Reading, findings: Findings, log: FileLog, metas: list[Meta]) -> None:
    """Read one file; one that is empty, as a session leaves that was opened and closed, is noted as such."""
    try:
        read_file(reading, findings, log, metas)
    except SourceError as error:
        if error.item.code != "file-empty":
            raise
        log.side = "empty session file"


def _sessions(logs: Sequence[FileLog]) -> list[_Session]:
    """Put the files' logs together, session by session; nothing depends on the order of the files."""
    sessions: dict[str, _Session] = {}
    # A run's own file says nothing of its session; no two runs have one id.
    tasks = {run: task for log in logs for run, task in log.tasks.items()}
    for log in logs:
        owners: dict[str, _Session] = {}
        for name, scope in log.scopes.items():
            # An agent's own file belongs to the session that its records name.
            owner = log.session if MAIN in log.scopes or not scope.session else scope.session
            session = owners[owner] = sessions.setdefault(owner, _Session(owner, log.file))
            conversation = session.conversations.setdefault(name, _Conversation(name))
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


def _by_session(metas: Sequence[Meta], logs: Sequence[FileLog]) -> dict[tuple[str, str], Meta]:
    """Return the meta files by session and agent.

    Which session an agent is of is told by the records of the file beside the meta file, whatever the folder is called;
    one given by itself has no session.
    """
    sessions = {(log.folder, log.agent): scope.session for log in logs if log.agent for scope in log.scopes.values()}
    return {(sessions.get((meta.folder, meta.agent), ""), meta.agent): meta for meta in metas}


def _ended_first(session: _Session) -> tuple[int, str]:
    return session.last_ns, session.name


def _owners(sessions: Sequence[_Session]) -> dict[str, tuple[str, str]]:
    """Return the session and the conversation that each call counts in.

    Of several sessions that have a call it is of one whose records name itself, for others keep the name that they
    copied; as a copy may also have been renamed, of the one that ended first. Within a session the main conversation
    comes before agents, which may have been forked off it and begin with a copy of it.

    Parameters
    ----------
    sessions : sequence of _Session
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


def _owners_in_front(sessions: Sequence[_Session], owners: Mapping[str, tuple[str, str]]) -> list[_Session]:
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
    ordered: dict[int, _Session] = {}
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


def _first_ns(session: _Session) -> tuple[int, str]:
    starts = [conversation.calls[0].start_ns for conversation in session.conversations.values() if conversation.calls]
    return min(starts, default=-1), session.name


def _merge(conversation: _Conversation, scope: Scope) -> None:
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


def _spans(call: RecordedCall) -> list[tuple[int, int]]:
    """Divide the time of a message among its LLM calls, in proportion to what they wrote.

    How long each one took is not recorded; the time to write is most of it. Returns (start, end) of each, in
    nanoseconds, without a gap.
    """
    written = [part.output_length for part in call.parts]
    whole = sum(written)
    if not whole:
        written, whole = [1] * len(written), len(written)
    spans, done = [], 0
    took_ns = call.end_ns - call.start_ns
    for tokens in written:
        begin_ns = call.start_ns + took_ns * done // whole
        done += tokens
        spans.append((begin_ns, call.start_ns + took_ns * done // whole))
    return spans


class _Lowering:
    """From sessions to the graph."""

    def __init__(
        self,
        sessions: list[_Session],
        metas: dict[tuple[str, str], Meta],
        findings: Findings,
        block_size: int,
        where: Where,
    ) -> None:
        self._where = where
        self._metas = metas
        self._findings = findings
        self._block_size = block_size
        self._ids = BlockIds()
        self._counts: Counter[str] = Counter()
        self._cached_tokens = 0
        self._owner = _owners(sessions)
        self._sessions = _owners_in_front(sessions, self._owner)
        self._count_copies()
        # By call, the blocks and the length of prompts that another conversation may go on from.
        self._prompts: dict[str, tuple[Runs, int]] = {}
        # The chains of other models that were asked within a message.
        self._asides: dict[tuple[str, str, str], PrefixChain] = {}
        # Side files, by kind.
        self._side: dict[str, list[str]] = {}

    def _count_copies(self) -> None:
        """Count the calls that stand in another conversation, too, and tell of them."""
        for session in self._sessions:
            copies = sum(
                self._owner[call.key] != (session.name, conversation.name)
                for conversation in session.conversations.values()
                for call in conversation.calls
            )
            self._counts["calls_copied"] += copies
            if copies:
                message = f"{copies} calls stand in another conversation too and are counted once"
                where = Where(file=session.file, ids=(session.name,))
                self._findings.add(finding("calls-copied", message, where=where, found=copies))

    def count(self, logs: Sequence[FileLog]) -> None:
        """Add up what the files count; a launch or a compaction that several files tell of is one."""
        for log in logs:
            self._count(log)
        for kind, files in sorted(self._side.items()):
            message = f"{kind}: {len(files)}, with no call in it"
            self._findings.add(finding("file-beside", message, where=Where(file=files[0]), found=len(files)))
        self._counts["async_launched"] = len(set().union(*(log.background for log in logs)))
        self._counts["compactions"] = len(set().union(*(log.compactions for log in logs)))

    def tell_reused(self, reused: Sequence[RecordedCall]) -> None:
        """Tell of calls whose message id is that of another one, too."""
        self._counts["ids_reused"] = len(reused)
        if reused:
            message = f"{len(reused)} calls have the message id of another one; each counts"
            where = Where(file=reused[0].file, line=reused[0].line)
            self._findings.add(finding("message-id-reused", message, where=where, found=len(reused)))

    def _count(self, log: FileLog) -> None:
        """Add up what one file counts, and tell what its user should know."""
        counts = self._counts
        counts["synthetic_records"] += log.synthetic
        counts["records_repeated"] += log.duplicates
        counts["clock_went_back"] += log.went_back
        counts["calls_without_usage"] += log.without_usage
        counts["surrogates"] += log.surrogates
        if log.side:
            counts["side_files"] += 1
            self._side.setdefault(log.side, []).append(log.file)
        if log.surrogates:
            self._findings.add(surrogates_replaced(log.file, log.surrogates_line, log.surrogates))
        merged = sum(scope.merged for scope in log.scopes.values())
        counts["rows_merged"] += merged
        if merged:
            message = f"{merged} rows behind an input are taken for the call of their message id; nothing shows it"
            line = min(scope.merged_line for scope in log.scopes.values() if scope.merged)
            where = Where(file=log.file, line=line)
            self._findings.add(finding("call-merged", message, where=where, found=merged))
        if log.went_back:
            self._findings.add(clock_went_back(log.file, log.went_back_line, log.went_back))
        if log.without_usage:
            message = f"{log.without_usage} records of calls have no token counts and are left out"
            where = Where(file=log.file, line=log.without_usage_line)
            self._findings.add(finding("call-without-usage", message, where=where, found=log.without_usage))

    def finish(self, source: Source, facts: dict[str, object]) -> Graph | None:
        corpus = Corpus(self._block_size)
        for session in self._sessions:
            self._make_turns(session)
        for session in sorted(self._sessions, key=_first_ns):
            turns = self._link(session)
            if turns:
                corpus.play(session.name, turns)
            else:
                where = Where(file=session.file, ids=(session.name,))
                self._findings.add(finding("session-empty", "no call of this session counts here", where=where))
        facts["input_kind"] = "agentic"
        facts["recorded_cached_tokens"] = self._cached_tokens
        corpus.tell(facts, "claude_counts", self._counts)
        if not corpus.holds_calls("no file has an LLM call", self._where, self._findings):
            return None
        if too_many_blocks(self._ids.used, self._where, self._findings):
            return None
        tell_cut(self._ids, self._where, self._findings)
        return corpus.finish(source, facts, self._ids.used)

    def _make_turns(self, session: _Session) -> None:
        """Make turns of the session's own calls; those that another session owns only lend their prompts."""
        for conversation in session.ordered:
            chain = PrefixChain(self._ids, self._block_size)
            if conversation.fork is not None and conversation.fork.key in self._prompts:
                chain.resume(*self._prompts[conversation.fork.key])
            answers = deque(_answers(session, conversation))
            last: RecordedCall | None = None
            for call in conversation.calls:
                while answers and answers[0].at_ns <= call.start_ns:
                    last = self._restore(session, conversation, chain, answers.popleft(), last)
                if call.reset:
                    chain.reset()
                if self._owner[call.key] != (session.name, conversation.name):
                    # Its owner came earlier, but for sessions that copied each other.
                    if call.key in self._prompts:
                        chain.resume(*self._prompts[call.key])
                    continue
                self._add(session, conversation, call, chain)
                last = call
            for answer in answers:
                last = self._restore(session, conversation, chain, answer, last)

    def _add(self, session: _Session, conversation: _Conversation, call: RecordedCall, chain: PrefixChain) -> None:
        """Add the turns of a message, one for each LLM call that it took."""
        conversation.first[call.key] = len(conversation.listed)
        divided = len(call.parts) > 1
        self._counts["messages_divided"] += divided
        for number, (part, span) in enumerate(zip(call.parts, _spans(call), strict=True)):
            turn = self._turn(session, conversation, call, part)
            turn.start_ns, turn.end_ns = span
            if divided:
                turn.label = f"{call.key}/{number}"
                turn.estimated = (*turn.estimated, "service_time")
            aside = part.kind != COMPACTION and part.model != call.model
            own = self._aside(session, conversation, part.model) if aside else chain
            turn.runs = own.extend(part.input_length, part.cached)
            turn.private = 1 if part.input_length % self._block_size else 0
            if part.kind == COMPACTION:
                chain.reset()
            elif not aside:
                self._prompts[call.key] = (turn.runs, part.input_length)
            conversation.last[call.key] = len(conversation.listed)
            conversation.listed.append(turn)

    def _aside(self, session: _Session, conversation: _Conversation, model: str) -> PrefixChain:
        key = session.name, conversation.name, model
        if key not in self._asides:
            self._asides[key] = PrefixChain(self._ids, self._block_size)
        return self._asides[key]

    def _turn(self, session: _Session, conversation: _Conversation, call: RecordedCall, part: Part) -> Turn:
        estimated = []
        output_length = part.output_length
        if call.unreliable_output and len(call.parts) == 1:
            output_length = max(output_length, -(-call.characters // CHARACTERS_PER_TOKEN))
            estimated.append("output_length")
        if not call.answers:
            estimated.append("start")
        main = conversation.trunk == MAIN
        self._counts["llm_calls" if main else "agent_calls"] += 1
        scope = "main" if main else "agent"
        self._counts[f"{scope}_output_tokens_recorded"] += part.output_length
        self._counts[f"{scope}_cache_read_tokens_recorded"] += part.cached
        self._cached_tokens += part.cached
        self._counts[f"{scope}_cache_creation_tokens_recorded"] += part.created
        return Turn(
            request_id=f"{session.name}:{conversation.name}:{len(conversation.listed)}",
            label=call.key,
            session=f"{session.name}:{conversation.name}",
            model=part.model,
            input_length=part.input_length,
            output_length=output_length,
            start_ns=call.start_ns,
            end_ns=call.end_ns,
            file=call.file,
            line=call.line,
            estimated=tuple(estimated),
        )

    def _restore(
        self,
        session: _Session,
        conversation: _Conversation,
        chain: PrefixChain,
        result: AgentResult,
        last: RecordedCall | None,
    ) -> RecordedCall | None:
        """Add the call that answered, and called no tool, where only the agent's result tells of it.

        Parameters
        ----------
        last : RecordedCall, optional
            The agent's latest call before the result.

        Returns
        -------
        RecordedCall or None
            `last`; None when its answer was added.
        """
        parts = [] if result.usage is None or last is None else result.usage.parts(last.model)
        if last is None or not last.calls_tool or not parts or result.at_ns < last.end_ns:
            return last
        # Of several calls of the answer the last one wrote it.
        part = parts[-1]
        # An agent's own file does not tell what had come in by then; but behind its last call, all of it had.
        input_ns = max(result.input_ns, conversation.input_ns if last is conversation.calls[-1] else -1)
        turn = Turn(
            request_id=f"{session.name}:{conversation.name}:{len(conversation.listed)}",
            label=f"{result.tool_use} toolUseResult.usage",
            session=f"{session.name}:{conversation.name}",
            model=last.model,
            input_length=part.input_length,
            output_length=part.output_length,
            start_ns=min(max(input_ns, last.end_ns), result.at_ns),
            end_ns=result.at_ns,
            file=result.file,
            line=result.line,
            runs=chain.extend(part.input_length, part.cached),
            private=1 if part.input_length % self._block_size else 0,
            estimated=("request",),
        )
        conversation.listed.append(turn)
        self._cached_tokens += part.cached
        self._counts["calls_restored"] += 1
        return None

    def _link(self, session: _Session) -> list[Turn]:
        """Make the edges of one session; return its turns in document order."""
        conversations = [c for c in session.ordered if c.listed]
        for conversation in conversations:
            self._counts["overlaps_floored"] += sequence(conversation.listed)
        links = _Links(session, conversations, self._metas, self._findings, self._counts)
        links.connect()
        turns = [turn for conversation in conversations for turn in conversation.listed]
        self._tell(session, turns)
        return turns

    def _tell(self, session: _Session, turns: list[Turn]) -> None:
        """Tell what of a session is not as recorded."""
        for name, code, message in (
            ("output_length", "output-estimated", "the output of {} calls is estimated from their characters"),
            ("request", "call-restored", "agents' last calls restored from their results: {}"),
            ("service_time", "message-divided", "calls that are parts of messages, whose time is divided: {}"),
        ):
            hit = [turn for turn in turns if name in turn.estimated]
            if hit:
                where = Where(file=hit[0].file, line=hit[0].line, ids=(session.name,))
                self._findings.add(finding(code, message.format(len(hit)), where=where, found=len(hit)))


def _answers(session: _Session, conversation: _Conversation) -> list[AgentResult]:
    """Return what a blocking agent answered, in time order."""
    results = session.results_of.get(conversation.agent, ()) if conversation.agent else ()
    return [result for result in results if not result.background]


class _Links:
    """Ties the agents of one session to the calls that spawned them and to those that waited for them."""

    def __init__(
        self,
        session: _Session,
        conversations: list[_Conversation],
        metas: dict[tuple[str, str], Meta],
        findings: Findings,
        counts: Counter[str],
    ) -> None:
        self._session = session
        self._findings = findings
        self._counts = counts
        self._conversations = conversations
        self._metas = metas
        self._calls = {call.key: call for c in conversations for call in c.calls if call.key in c.first}
        self._workflows = {use for call in self._calls.values() for use in call.workflows}
        self._spawner: dict[str, tuple[_Conversation, RecordedCall]] = {}
        for conversation in conversations:
            for call in conversation.calls:
                for use in call.uses if call.key in conversation.first else ():
                    self._spawner.setdefault(use, (conversation, call))
        # For each conversation and id, which of its turns were the first to see the result or the notification.
        self._seers: dict[tuple[str, str, bool], list[int]] = {}
        for conversation in conversations:
            for call in conversation.calls:
                if call.key not in conversation.first:
                    continue
                for seen, notified in ((call.results, False), (call.notices, True)):
                    for name in seen:
                        key = (conversation.name, name, notified)
                        self._seers.setdefault(key, []).append(conversation.first[call.key])
        counts["spawn_calls"] += sum(len(set(call.uses) - self._workflows) for call in self._calls.values())
        counts["workflow_calls"] += len(self._workflows)

    def connect(self) -> None:
        """Make the spawn and join edges."""
        children = {child.name: child for child in self._conversations if child.name != MAIN and not child.branched}
        uses = {name: self._uses_of(child) for name, child in children.items()}
        parents = {name: self._spawner[own[0]][0].name for name, own in uses.items() if own}
        for name in circular(parents):
            del parents[name]
        linked: set[str] = set()
        for name, child in children.items():
            if name in parents:
                linked.update(uses[name])
                self._activate(child, [use for use in uses[name] if self._spawner[use][0].name == parents[name]])
                continue
            self._counts["agents_unlinked"] += 1
            turn = child.listed[0]
            self._findings.add(
                finding(
                    "agent-unlinked",
                    "nothing in the records says which call spawned this agent",
                    where=Where(file=turn.file, line=turn.line, ids=(self._session.name, name)),
                    found=name,
                )
            )
        for branch in self._conversations:
            if branch.branched:
                self._branch(branch)
        unrecorded = len(self._spawner.keys() - linked - self._workflows)
        self._counts["agents_linked"] += len(parents)
        if unrecorded:
            self._counts["agents_unrecorded"] += unrecorded
            self._findings.add(
                finding(
                    "agent-unrecorded",
                    f"no calls in the corpus are tied to {unrecorded} of the agents spawned",
                    where=Where(file=self._session.file, ids=(self._session.name,)),
                    found=unrecorded,
                )
            )

    def _branch(self, branch: _Conversation) -> None:
        """Let a branch that ran beside its conversation begin where it left that."""
        self._counts["branches"] += 1
        turn = branch.listed[0]
        message = f"{len(branch.listed)} calls ran beside the conversation that they branched off from"
        where = Where(file=turn.file, line=turn.line, ids=(self._session.name, branch.name))
        self._findings.add(finding("conversation-branched", message, where=where, found=len(branch.listed)))
        fork = branch.fork
        if fork is None:
            return
        for left in self._conversations:
            if left.trunk == branch.trunk and fork.key in left.last:
                self._counts["overlaps_floored"] += spawn(left.listed[left.last[fork.key]], turn)
                return

    def _of_run(self, child: _Conversation) -> list[str]:
        """Return the tool use that ran the workflow of an agent: of several of one run, the latest before it."""
        if not child.run:
            return []
        task = self._session.tasks.get(child.run, "")
        started = sorted(
            (result.at_ns, result.tool_use)
            for result in self._session.results.values()
            if result.tool_use in self._spawner
            and (result.run == child.run or (not result.run and task and result.task == task))
        )
        before = [use for at_ns, use in started if at_ns <= child.listed[0].start_ns]
        return before[-1:] or [use for _, use in started[:1]]

    def _uses_of(self, child: _Conversation) -> list[str]:
        """Return the tool uses that ran an agent, the one that spawned it first."""
        agent = child.agent
        stated = [result.tool_use for result in self._session.results_of.get(agent, []) if agent]
        # A meta file given by itself does not say of which session it is.
        meta = self._metas.get((self._session.name, agent)) or self._metas.get(("", agent))
        progress = self._session.progress_links.get(agent, "")
        sources = [meta.tool_use if meta is not None else "", *stated, progress, *self._of_run(child)]
        uses = list(dict.fromkeys(use for use in sources if use in self._spawner))
        if meta is not None and (meta.tool_use not in self._spawner or (stated and meta.tool_use not in stated)):
            known = f"{stated[0]} by the result" if stated else "none of this session's"
            self._findings.add(
                finding(
                    "agent-link-conflict",
                    f"the meta file of agent {agent} names another tool use than the session's records",
                    where=Where(file=meta.file, field="toolUseId", ids=(self._session.name, child.name)),
                    found=meta.tool_use,
                    wanted=known,
                )
            )
            uses = uses[:1]
        return sorted(uses, key=self._order_of_use) if len(uses) > 1 else uses

    def _order_of_use(self, use: str) -> tuple[int, str]:
        call = self._spawner[use][1]
        return call.end_ns, use

    def _activate(self, child: _Conversation, uses: list[str]) -> None:
        """Tie each run of an agent: most have one, an agent that was called again has more."""
        turns = child.listed
        begin = 0
        for number, use in enumerate(uses):
            parent, call = self._spawner[use]
            result = self._session.results.get(use)
            until_ns = result.at_ns if result is not None and not result.background else None
            end = len(turns)
            if until_ns is not None and number + 1 < len(uses):
                end = next((at for at in range(begin, len(turns)) if turns[at].start_ns >= until_ns), len(turns))
            if begin < end:
                self._counts["overlaps_floored"] += spawn(parent.listed[parent.last[call.key]], turns[begin])
                self._join(parent, call, use, child, range(begin, end))
            begin = end

    def _join(self, parent: _Conversation, call: RecordedCall, use: str, child: _Conversation, run: range) -> None:
        """Let the calls that were first to see the agent's answers wait for them.

        A blocking agent answers once. One in the background that was sent more is told of each time it is done; an
        answer is of the calls that had begun by then.
        """
        result = self._session.results.get(use)
        background = result is not None and result.background
        task = result.task or self._session.tasks.get(result.run, "") if result is not None else ""
        seers: list[Turn] = []
        for conversation in self._conversations:
            # What a conversation asked for, one that branched off from it may see first.
            if conversation.trunk == parent.trunk and (conversation is parent or conversation.branched):
                at = conversation.last[call.key] if conversation is parent else -1
                found: list[int] = []
                for name in dict.fromkeys((child.agent, use, task) if background else (use,)):
                    known = self._seers.get((conversation.name, name, background), []) if name else []
                    found += known[bisect_right(known, at) :]
                seers += [conversation.listed[seer] for seer in sorted(set(found))]
        seers.sort(key=lambda turn: turn.start_ns)
        joined = run.start - 1
        for target in seers if background else seers[:1]:
            last = joined if background else run.start
            while last + 1 < run.stop and begun_by(child.listed[last + 1], target):
                last += 1
            if last > joined:
                self._counts["overlaps_floored"] += after(child.listed[last], target, Relation.JOIN)
                self._counts["joins"] += 1
                joined = last
