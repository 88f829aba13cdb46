"""What `codex exec --json` prints, into the graph.

The stream tells what a turn did, and the tokens that the thread had used by its end: no times, and no usage of single
calls. A turn asks the model once, and once more behind each round of tools; its tokens are divided between those calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Source

from playproof_lowering.chains import BlockIds, tell_cut, too_many_blocks
from playproof_lowering.conversation import DEFAULT_BLOCK_SIZE, Conversation, divided, length_problems
from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.provenance import read_corpus
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.source import Reading, SourceFile
from playproof_lowering.turns import Corpus, sequence
from playproof_lowering.wire import decoded, report

__all__ = ["READER", "read_codex_exec"]

# Items behind which the model is asked again. A web search runs at the provider, within a call.
_TOOLS: Final = frozenset({"command_execution", "file_change", "mcp_tool_call", "collab_tool_call", "todo_list"})
SPAWN: Final = "spawn_agent"


class _Usage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0


class _Item(msgspec.Struct):
    id: str = ""
    type: str = ""
    tool: str | None = None
    receiver_thread_ids: list[str] | None = None


class _Event(msgspec.Struct):
    type: str
    thread_id: str | None = None
    usage: _Usage | None = None
    item: _Item | None = None


_EVENT = msgspec.json.Decoder(_Event)
_EVENTS: Final = frozenset(
    {
        "thread.started",
        "turn.started",
        "turn.completed",
        "turn.failed",
        "item.started",
        "item.updated",
        "item.completed",
    }
)


@dataclass(slots=True, eq=False)
class _Thread:
    """One thread.

    Attributes
    ----------
    used : tuple of int
        Input, cached and output tokens by the end of its latest turn.
    rounds : int
        Rounds of tools in the turn at hand.
    running : set of str
        Tools that have started and not ended.
    """

    talk: Conversation
    used: tuple[int, int, int] = (0, 0, 0)
    rounds: int = 0
    running: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)


def read_codex_exec(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read streams of `codex exec` into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        In corpus order: a thread that was resumed goes on in a later file.
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
        None when there is no turn with token counts.
    """
    size = block_size or DEFAULT_BLOCK_SIZE
    lowering = _Lowering(findings, size)
    source = read_corpus(READER.name, size, files, lowering.read, findings, facts, on_bytes)
    return lowering.finish(source, facts, Where(file=files[0].shown))


class _Lowering:
    """The state of reading one corpus."""

    def __init__(self, findings: Findings, block_size: int) -> None:
        self._findings = findings
        self._block_size = block_size
        self._ids = BlockIds()
        self._counts: Counter[str] = Counter()
        self._threads: dict[str, _Thread] = {}
        self._divided: list[Where] = []
        self._without: list[Where] = []
        self._spawned: list[Where] = []

    def read(self, reading: Reading) -> None:
        """Read one file to its end.

        Raises
        ------
        SourceError
            When the file cannot be read on.
        """
        thread = self._thread(namespace(reading.file))
        for where, data in reading.placed():
            event = decoded(_EVENT, data, where, self._findings, types=_EVENTS)
            if event is None or event.type not in _EVENTS:
                self._counts["events_passed_over"] += event is not None
                continue
            twice = repeated_name(data)
            if twice is not None:
                report(self._findings, [twice], where)
            elif event.type == "thread.started" and event.thread_id:
                thread = self._thread(event.thread_id)
            elif event.type == "turn.started":
                thread.rounds = 0
                thread.running.clear()
                thread.ended.clear()
            elif event.type in ("turn.completed", "turn.failed"):
                self._turn(thread, event, where)
            elif event.item is not None and event.item.type in _TOOLS:
                self._tool(thread, event.type, event.item, where)

    def _thread(self, name: str) -> _Thread:
        return self._threads.setdefault(name, _Thread(Conversation(name, self._ids, self._block_size, "")))

    def _tool(self, thread: _Thread, what: str, item: _Item, where: Where) -> None:
        """Count the rounds of tools: those that run side by side are one, and a call of the model ends it."""
        if item.id not in thread.running and item.id not in thread.ended:
            thread.rounds += not thread.running
        if what == "item.completed":
            thread.running.discard(item.id)
            thread.ended.add(item.id)
            if item.tool == SPAWN and item.receiver_thread_ids:
                self._spawned.append(where)
        elif item.id not in thread.ended:
            thread.running.add(item.id)
        if item.type == "todo_list":
            # A list is kept to the end of the turn; the tool that writes it returns at once.
            thread.running.discard(item.id)
            thread.ended.add(item.id)

    def _turn(self, thread: _Thread, event: _Event, where: Where) -> None:
        """Make the calls of a turn that has ended."""
        usage = event.usage
        if usage is None:
            self._without.append(where)
            return
        total = (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens)
        grown = tuple(now - before for now, before in zip(total, thread.used, strict=True))
        # Totals are the thread's, of all its turns; where they fall they were begun anew.
        prompt, cached, output = grown if min(grown) >= 0 else total
        calls = thread.rounds + 1
        problems = length_problems(
            {
                "usage.input_tokens": (prompt, calls),
                "usage.cached_input_tokens": (cached, 0),
                "usage.output_tokens": (output, 0),
            }
        )
        if prompt == 0 and output == 0:
            self._without.append(where)
            return
        if problems:
            report(self._findings, problems, where)
            return
        thread.used = total
        if calls > 1:
            self._divided.append(where)
            self._counts["calls_divided"] += calls
        thread.talk.file = where.file
        for shares in zip(divided(prompt, calls), divided(cached, calls), divided(output, calls), strict=True):
            thread.talk.call(
                label=f"line {where.line}",
                model="",
                input_length=shares[0],
                cached=shares[1],
                output_length=shares[2],
                start_ns=0,
                end_ns=0,
                line=where.line,
                timed=False,
                estimated=("request",) if calls > 1 else ("start",),
            )
        self._counts["cached_tokens_recorded"] += cached
        self._counts["turns"] += 1

    def finish(self, source: Source, facts: dict[str, object], where: Where) -> Graph | None:
        """Make the graph."""
        corpus = Corpus(self._block_size)
        for name, thread in self._threads.items():
            if thread.talk.turns:
                sequence(thread.talk.turns)
                corpus.play(name, thread.talk.turns)
        self._tell(where)
        facts["recorded_cached_tokens"] = self._counts["cached_tokens_recorded"]
        corpus.tell(facts, "codex_exec_counts", self._counts)
        tell_cut(self._ids, where, self._findings)
        if not corpus.holds_calls("no turn tells its token counts", where, self._findings):
            return None
        if too_many_blocks(self._ids.used + self._counts["requests"], where, self._findings):
            return None
        return corpus.finish(source, facts, self._ids.used)

    def _tell(self, where: Where) -> None:
        """Tell what the streams do not say, once each with its first place."""
        if self._counts["turns"]:
            message = "events have no time: calls follow one another at once, without a service time"
            at = Where(file=where.file, field="timestamp")
            self._findings.add(finding("times-missing", message, where=at, found="nothing", wanted="an instant"))
        if self._without:
            self._counts["turns_without_usage"] = len(self._without)
            message = f"{len(self._without)} turns are left out, since they do not say how many tokens they had"
            at = Where(file=self._without[0].file, line=self._without[0].line, field="usage")
            self._findings.add(finding("call-without-usage", message, where=at, found="nothing", wanted="an object"))
        if self._divided:
            first = self._divided[0]
            calls = self._counts["calls_divided"]
            message = f"{len(self._divided)} turns have the tokens of {calls} calls in one `usage`"
            at = Where(file=first.file, line=first.line, field="usage")
            self._findings.add(finding("calls-divided", message, where=at, found=calls))
        if self._spawned:
            self._counts["agents_unrecorded"] = len(self._spawned)
            at = Where(file=self._spawned[0].file, line=self._spawned[0].line, field="item.receiver_thread_ids")
            message = f"the stream does not have the calls of {len(self._spawned)} of the agents spawned"
            self._findings.add(finding("agent-unrecorded", message, where=at, found=len(self._spawned)))


def _marks(head: Head) -> Confidence:
    if head.text("type") == "thread.started":
        return Confidence.SIGNED
    return Confidence.SHAPED if head.text("type").startswith(("turn.", "item.")) else Confidence.NONE


READER: Final = Reader(name="codex-exec", title="codex exec --json", marks=_marks, read=read_codex_exec)
