"""What `claude -p --output-format stream-json` prints, into the graph.

The stream has the calls of Claude Code's session files and few of their times: one record a content block, all with the
usage of their call. Agents are told by the tool use that runs them, and joined by the call that sees its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Relation, Source

from playproof_lowering.chains import BlockIds, tell_cut, too_many_blocks
from playproof_lowering.conversation import DEFAULT_BLOCK_SIZE, Conversation, length_problems
from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.provenance import read_corpus
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.source import Reading, SourceFile
from playproof_lowering.turns import Corpus, Turn, after, circular, recorded_ns, sequence
from playproof_lowering.wire import decoded, report

__all__ = ["READER", "read_claude_stream"]

CHARACTERS_PER_TOKEN: Final = 4
SYNTHETIC: Final = "<synthetic>"
MAIN: Final = ""
BACKGROUND: Final = "async_launched"
_RECORDS: Final = frozenset({"assistant", "user", "system", "result", "stream_event"})


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Block(msgspec.Struct):
    type: str = ""
    id: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")
    tool_use_id: str | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    content: str | list[_Block] = ""


class _Result(msgspec.Struct):
    status: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    message: _Message | None = None
    usage: _Usage | None = None


class _Record(msgspec.Struct):
    type: str
    subtype: str | None = None
    session_id: str | None = None
    parent_tool_use_id: str | None = None
    timestamp: str | None = None
    message: _Message | None = None
    event: _Event | None = None
    usage: _Usage | None = None
    # Of tools that tell more than their text; their shapes are their own.
    tool_use_result: msgspec.Raw = msgspec.Raw(b"")
    tool_use_id: str | None = None


_RECORD = msgspec.json.Decoder(_Record)
_RESULT = msgspec.json.Decoder(_Result)


@dataclass(slots=True, eq=False)
class _Call:
    """One call.

    Attributes
    ----------
    usage : _Usage
        Of its latest record that has one.
    exact : bool
        Its output is the final count.
    characters : int
        Of its content.
    uses : list of str
        Ids of its tool uses.
    joins : list of str
        Tool uses whose results it was first to see.
    start_ns, end_ns : int
        Recorded instants, -1 where there is none.
    fresh : bool
        Its prompt starts anew.
    """

    key: str
    where: Where
    model: str
    start_ns: int
    end_ns: int = -1
    usage: _Usage = field(default_factory=_Usage)
    exact: bool = False
    characters: int = 0
    uses: list[str] = field(default_factory=list)
    joins: list[str] = field(default_factory=list)
    fresh: bool = False


@dataclass(slots=True, eq=False)
class _Talk:
    """The calls of one conversation, and what has come in since the last of them."""

    calls: list[_Call] = field(default_factory=list)
    asked_ns: int = -1
    answered: list[str] = field(default_factory=list)
    input_since: bool = True
    fresh: bool = False
    streamed: str = ""


@dataclass(slots=True, eq=False)
class _Session:
    """One play to be: its conversations by the tool use that runs them, the main one under an empty one."""

    name: str
    talks: dict[str, _Talk] = field(default_factory=dict)
    background: set[str] = field(default_factory=set)
    final: dict[str, int] = field(default_factory=dict)
    total_output: int = 0


def read_claude_stream(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read streams of Claude Code into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        In corpus order: a session that was resumed goes on in a later file.
    findings : Findings
        Receives what is wrong, missing, or estimated.
    facts : dict
        Receives counts and the digest.
    block_size : int, optional
        Tokens a hash id stands for, 64 by default: streams have none.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no call.
    """
    size = block_size or DEFAULT_BLOCK_SIZE
    stream = _Stream(findings)
    source = read_corpus(READER.name, size, files, stream.read, findings, facts, on_bytes)
    return _Lowering(stream, findings, size, Where(file=files[0].shown)).finish(source, facts)


class _Stream:
    """Reads records."""

    def __init__(self, findings: Findings) -> None:
        self.sessions: dict[str, _Session] = {}
        self.counts: Counter[str] = Counter()
        self.untimed: Where | None = None
        self._findings = findings

    def read(self, reading: Reading) -> None:
        """Read one file to its end.

        Raises
        ------
        SourceError
            When the file cannot be read on.
        """
        for where, data in reading.placed():
            record = decoded(_RECORD, data, where, self._findings, types=_RECORDS)
            if record is None or record.type not in _RECORDS:
                self.counts["records_passed_over"] += record is not None
                continue
            twice = repeated_name(data)
            if twice is not None:
                report(self._findings, [twice], where)
                continue
            name = record.session_id or namespace(reading.file)
            session = self.sessions.setdefault(name, _Session(name))
            talk = session.talks.setdefault(record.parent_tool_use_id or MAIN, _Talk())
            at_ns = -1
            if record.type in ("assistant", "user"):
                at_ns = self._instant(record, where)
            if record.type == "assistant":
                self._assistant(record, talk, where, at_ns)
            elif record.type == "user":
                self._user(record, session, talk, at_ns)
            elif record.type == "stream_event":
                _event(record, session, talk)
            elif record.type == "result" and record.usage is not None:
                session.total_output += record.usage.output_tokens or 0
            elif record.type == "system":
                talk.fresh = talk.fresh or record.subtype == "compact_boundary"
                if record.subtype == "task_notification" and record.tool_use_id:
                    session.background.discard(record.tool_use_id)
                    talk.answered.append(record.tool_use_id)

    def _instant(self, record: _Record, where: Where) -> int:
        if record.timestamp is None:
            self.untimed = self.untimed or where
            return -1
        at_ns = recorded_ns(record.timestamp, "timestamp", where, self._findings)
        return -1 if at_ns is None else at_ns

    def _assistant(self, record: _Record, talk: _Talk, where: Where, at_ns: int) -> None:
        message = record.message
        if message is None or message.model == SYNTHETIC:
            self.counts["messages_synthetic"] += 1
            return
        usage = message.usage
        call = talk.calls[-1] if talk.calls else None
        if call is None or not _same(call, message, usage, talk.input_since):
            call = _Call(message.id or "", where, message.model or "", talk.asked_ns)
            call.joins, talk.answered = talk.answered, []
            call.fresh, talk.fresh = talk.fresh, False
            talk.calls.append(call)
        talk.input_since = False
        call.end_ns = max(call.end_ns, at_ns)
        if usage is not None and _prompt(usage):
            call.usage = usage
        for block in message.content if isinstance(message.content, list) else ():
            call.characters += len(block.text or "") + len(block.thinking or "") + len(bytes(block.input))
            if block.type == "tool_use" and block.id:
                call.uses.append(block.id)
        if isinstance(message.content, str):
            call.characters += len(message.content)

    def _user(self, record: _Record, session: _Session, talk: _Talk, at_ns: int) -> None:
        talk.asked_ns = max(talk.asked_ns, at_ns)
        talk.input_since = True
        content = record.message.content if record.message is not None else ""
        results = [block.tool_use_id for block in content if block.tool_use_id] if isinstance(content, list) else []
        launched = False
        if bytes(record.tool_use_result)[:1] == b"{":
            try:
                launched = _RESULT.decode(record.tool_use_result).status == BACKGROUND
            except msgspec.DecodeError:
                launched = False
        if launched:
            session.background.update(results)
        else:
            talk.answered += results


def _event(record: _Record, session: _Session, talk: _Talk) -> None:
    """Take the final count of a call's output from the events of its stream."""
    event = record.event
    if event is None:
        return
    if event.type == "message_start" and event.message is not None:
        talk.streamed = event.message.id or ""
    elif event.type == "message_delta" and event.usage is not None and event.usage.output_tokens is not None:
        if talk.streamed:
            session.final[talk.streamed] = event.usage.output_tokens


def _same(call: _Call, message: _Message, usage: _Usage | None, input_since: bool) -> bool:
    """Tell whether a record is of the call before it: gateways use one id for many calls, which their prompts tell."""
    if not message.id or message.id != call.key:
        return False
    return not input_since or usage is None or not _prompt(call.usage) or _prompt(usage) == _prompt(call.usage)


def _prompt(usage: _Usage) -> int:
    return (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)


class _Lowering:
    """Turns sessions into plays."""

    def __init__(self, stream: _Stream, findings: Findings, block_size: int, where: Where) -> None:
        self._stream = stream
        self._counts = stream.counts
        self._findings = findings
        self._block_size = block_size
        self._where = where
        self._ids = BlockIds()
        self._estimated: list[_Call] = []
        self._without: list[tuple[_Call, str]] = []
        self._unlinked: list[_Call] = []

    def finish(self, source: Source, facts: dict[str, object]) -> Graph | None:
        """Make the graph."""
        corpus = Corpus(self._block_size)
        for session in self._stream.sessions.values():
            turns = self._session(session)
            if turns:
                corpus.play(session.name, turns)
        self._tell()
        facts["recorded_cached_tokens"] = self._counts["cached_tokens_recorded"]
        corpus.tell(facts, "claude_stream_counts", self._counts)
        tell_cut(self._ids, self._where, self._findings)
        if not corpus.holds_calls("no record is a call of a model with usage", self._where, self._findings):
            return None
        if too_many_blocks(self._ids.used + self._counts["requests"], self._where, self._findings):
            return None
        return corpus.finish(source, facts, self._ids.used)

    def _session(self, session: _Session) -> list[Turn]:
        """Return the calls of a session, each conversation behind the one that ran it."""
        exact = self._output_is_exact(session)
        turns: dict[str, list[Turn | None]] = {}
        for agent, talk in session.talks.items():
            name = f"{session.name}:{agent}" if agent else session.name
            turns[agent] = self._calls(session, talk, Conversation(name, self._ids, self._block_size, ""), exact)
        spawners = {
            use: (agent, n) for agent, t in session.talks.items() for n, c in enumerate(t.calls) for use in c.uses
        }
        parents = {agent: spawners[agent][0] for agent in session.talks if agent and agent in spawners}
        for agent in circular(parents):
            del parents[agent]
        joins = {
            use: (agent, n) for agent, t in session.talks.items() for n, c in enumerate(t.calls) for use in c.joins
        }
        for agent, talk in session.talks.items():
            own = [turn for turn in turns[agent] if turn is not None]
            self._counts["overlaps_floored"] += sequence(own)
            if agent and own:
                self._tie(agent, own, turns, parents, spawners, joins.get(agent), talk)
        children: dict[str, list[str]] = {}
        for child, parent in parents.items():
            children.setdefault(parent, []).append(child)
        order = [agent for agent in session.talks if agent not in parents]
        for agent in order:
            order += children.get(agent, ())
        return [turn for agent in order for turn in turns[agent] if turn is not None]

    def _output_is_exact(self, session: _Session) -> bool:
        """Tell whether the records' output counts add up to the result's, and so are the final ones."""
        recorded = sum(call.usage.output_tokens or 0 for talk in session.talks.values() for call in talk.calls)
        main = session.talks.get(MAIN, _Talk())
        own = sum(call.usage.output_tokens or 0 for call in main.calls)
        return session.total_output > 0 and session.total_output in (recorded, own)

    def _calls(self, session: _Session, talk: _Talk, made: Conversation, exact: bool) -> list[Turn | None]:
        """Return the turn of each call, None for one that has no lengths."""
        turns: list[Turn | None] = []
        timed = self._stream.untimed is None
        reached_ns = 0
        for call in talk.calls:
            prompt, output = _prompt(call.usage), call.usage.output_tokens
            final = session.final.get(call.key)
            if not prompt or (output is None and final is None):
                self._without.append((call, "input_tokens" if not prompt else "output_tokens"))
                turns.append(None)
                continue
            length = final if final is not None else output or 0
            estimate = -(-call.characters // CHARACTERS_PER_TOKEN)
            estimated = final is None and not exact and estimate > length
            if estimated:
                length = estimate
                self._estimated.append(call)
            cached = call.usage.cache_read_input_tokens or 0
            problems = length_problems(
                {"message.usage.input_tokens": (prompt, 1), "message.usage.output_tokens": (length, 0)}
            )
            if problems or cached < 0:
                report(self._findings, problems, call.where)
                turns.append(None)
                continue
            if call.fresh:
                made.chain.reset()
            made.file = call.where.file
            # Of the first call, which answers the command line, only the end is told.
            begin_ns = call.start_ns if call.start_ns >= 0 else reached_ns or call.end_ns
            start_ns = max(begin_ns, reached_ns) if timed else 0
            known = timed and call.start_ns >= 0
            reached_ns = max(call.end_ns, start_ns) if timed else 0
            turns.append(
                made.call(
                    label=call.key,
                    model=call.model,
                    input_length=prompt,
                    cached=cached,
                    output_length=length,
                    start_ns=start_ns,
                    end_ns=reached_ns,
                    line=call.where.line,
                    timed=known,
                    estimated=(("output_length",) if estimated else ()) + (() if known else ("start",)),
                )
            )
            self._counts["cached_tokens_recorded"] += cached
        return turns

    def _tie(
        self,
        agent: str,
        own: list[Turn],
        turns: dict[str, list[Turn | None]],
        parents: dict[str, str],
        spawners: dict[str, tuple[str, int]],
        seer: tuple[str, int] | None,
        talk: _Talk,
    ) -> None:
        """Hang an agent at the call whose tool use ran it, and let the call that saw its result join it."""
        if agent not in parents:
            self._unlinked.append(talk.calls[0])
            return
        parent, number = spawners[agent]
        spawner = _sound(turns[parent][number::-1])
        if spawner is not None:
            self._counts["spawns"] += 1
            if not own[0].timed and own[0].start_ns < spawner.end_ns:
                _move(own, spawner.end_ns)
            self._counts["overlaps_floored"] += after(spawner, own[0], Relation.SPAWN)
        if seer is not None and seer[0] == parent and seer[1] > number:
            joiner = _sound(turns[parent][seer[1] :])
            if joiner is not None:
                self._counts["joins"] += 1
                self._counts["overlaps_floored"] += after(own[-1], joiner, Relation.JOIN)

    def _tell(self) -> None:
        """Tell what the streams do not say, once each with its first place."""
        if self._stream.untimed is not None:
            where = self._stream.untimed
            at = Where(file=where.file, line=where.line, field="timestamp")
            message = "records have no time: calls follow what they depend on at once, without a service time"
            self._findings.add(finding("times-missing", message, where=at, found="nothing", wanted="an instant"))
        if self._without:
            call, name = self._without[0]
            self._counts["calls_without_usage"] = len(self._without)
            at = Where(file=call.where.file, line=call.where.line, field=f"message.usage.{name}")
            message = f"{len(self._without)} calls are left out, since they do not say how many tokens they had"
            self._findings.add(finding("call-without-usage", message, where=at, found="nothing", wanted="a number"))
        for code, calls, message in (
            ("output-estimated", self._estimated, "of {} calls the stream has the first count of output tokens only"),
            ("agent-unlinked", self._unlinked, "the tool uses of {} agents are not in the stream"),
        ):
            if calls:
                at = Where(file=calls[0].where.file, line=calls[0].where.line)
                self._findings.add(finding(code, message.format(len(calls)), where=at, found=len(calls)))


def _sound(turns: list[Turn | None]) -> Turn | None:
    """Return the first turn that there is."""
    return next((turn for turn in turns if turn is not None), None)


def _move(turns: list[Turn], at_ns: int) -> None:
    """Let calls without a time of their own begin no earlier than `at_ns`."""
    for turn in turns:
        turn.start_ns = max(turn.start_ns, at_ns)
        turn.end_ns = max(turn.end_ns, turn.start_ns)


def _marks(head: Head) -> Confidence:
    if head.text("type") and head.has("session_id") and not head.has_any("sessionId", "hash_ids"):
        return Confidence.SHAPED
    return Confidence.NONE


READER: Final = Reader(
    name="claude-stream",
    title="claude -p --output-format stream-json",
    marks=_marks,
    read=read_claude_stream,
)
