"""Claude Code sessions into the graph: which calls there were, which agents they spawned, and who waited for whom.

A session is a play. Its main conversation and each agent's are sessions of it; an agent hangs at the call whose tool
use spawned it, and the call that was first to see its answer waits for it. A link is one that the records state: an
agent without one stands by itself, with a warning.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Source

from playproof_lowering.chains import BlockIds, PrefixChain, Runs, tell_cut, too_many_blocks
from playproof_lowering.claude_calls import COMPACTION, Part, RecordedCall
from playproof_lowering.claude_copies import name_calls
from playproof_lowering.claude_links import Links
from playproof_lowering.claude_records import MAIN, AgentResult, FileLog, Meta, read_file
from playproof_lowering.claude_sessions import (
    Conversation,
    Session,
    answers_of,
    first_ns,
    metas_by_session,
    owners_in_front,
    owners_of,
    sessions_of,
)
from playproof_lowering.provenance import corpus_digest
from playproof_lowering.source import Reading, SourceError, SourceFile, read_through
from playproof_lowering.surrogates import surrogates_replaced
from playproof_lowering.turns import Corpus, Turn, clock_went_back, sequence

__all__ = ["DEFAULT_BLOCK_SIZE", "read_claude"]

DEFAULT_BLOCK_SIZE: Final = 64
CHARACTERS_PER_TOKEN: Final = 4


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
    lowering = _Lowering(sessions_of(logs), metas_by_session(metas, logs), findings, size, Where(file=files[0].shown))
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
        sessions: list[Session],
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
        self._owner = owners_of(sessions)
        self._sessions = owners_in_front(sessions, self._owner)
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
        for session in sorted(self._sessions, key=first_ns):
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

    def _make_turns(self, session: Session) -> None:
        """Make turns of the session's own calls; those that another session owns only lend their prompts."""
        for conversation in session.ordered:
            chain = PrefixChain(self._ids, self._block_size)
            if conversation.fork is not None and conversation.fork.key in self._prompts:
                chain.resume(*self._prompts[conversation.fork.key])
            answers = deque(answers_of(session, conversation))
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

    def _add(self, session: Session, conversation: Conversation, call: RecordedCall, chain: PrefixChain) -> None:
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

    def _aside(self, session: Session, conversation: Conversation, model: str) -> PrefixChain:
        key = session.name, conversation.name, model
        if key not in self._asides:
            self._asides[key] = PrefixChain(self._ids, self._block_size)
        return self._asides[key]

    def _turn(self, session: Session, conversation: Conversation, call: RecordedCall, part: Part) -> Turn:
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
        session: Session,
        conversation: Conversation,
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

    def _link(self, session: Session) -> list[Turn]:
        """Make the edges of one session; return its turns in document order."""
        conversations = [c for c in session.ordered if c.listed]
        for conversation in conversations:
            self._counts["overlaps_floored"] += sequence(conversation.listed)
        links = Links(session, conversations, self._metas, self._findings, self._counts)
        links.connect()
        turns = [turn for conversation in conversations for turn in conversation.listed]
        self._tell(session, turns)
        return turns

    def _tell(self, session: Session, turns: list[Turn]) -> None:
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
