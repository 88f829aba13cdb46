"""Codex rollouts into the graph: a thread and all threads that it spawned are one play."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Relation, Source

from playproof_lowering.chains import BlockIds, PrefixChain, tell_cut, too_many_blocks
from playproof_lowering.codex_records import RolloutLog, read_rollout
from playproof_lowering.provenance import corpus_digest
from playproof_lowering.source import SourceFile, read_through
from playproof_lowering.surrogates import surrogates_replaced
from playproof_lowering.turns import Corpus, Turn, after, begun_by, circular, clock_went_back, sequence, spawn

__all__ = ["DEFAULT_BLOCK_SIZE", "read_codex"]

DEFAULT_BLOCK_SIZE: Final = 64
COUNTED: Final = (
    "spawn_calls",
    "wait_calls",
    "duplicates",
    "empty_counts",
    "restarts",
    "compactions",
    "replayed_lines",
    "broken_off",
    "surrogates",
)


def read_codex(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read Codex rollouts into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        In any order; children find their parents by thread id.
    findings : Findings
        Receives what is wrong, missing, or estimated.
    facts : dict
        Receives counts and the digest.
    block_size : int, optional
        Tokens a hash id stands for, 64 by default: rollouts have none.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no call.
    """
    logs: dict[str, RolloutLog] = {}
    digests = []
    counts: Counter[str] = Counter()
    for file in files:
        log = RolloutLog(file.shown)
        digests.append(read_through(file, partial(read_rollout, findings=findings, log=log), findings, on_bytes))
        _count(log, counts, findings)
        first = logs.setdefault(log.thread, log)
        if first is not log:
            message = f"{first.file} is a rollout of this thread too"
            where = Where(file=log.file, ids=(log.thread,))
            findings.add(finding("thread-duplicate", message, where=where, found=log.thread))
    size = block_size or DEFAULT_BLOCK_SIZE
    facts["input_digest"] = corpus_digest(digests)
    lowering = _Lowering(logs, findings, counts, size, Where(file=files[0].shown))
    return lowering.finish(Source("codex", corpus_digest(digests, (f"block_size={size}",))), facts)


def _count(log: RolloutLog, counts: Counter[str], findings: Findings) -> None:
    for name in COUNTED:
        counts[name] += getattr(log, name)
    counts["calls_without_usage"] += log.without_usage
    for call in log.calls:
        counts["cached_tokens_recorded"] += call.cached
        counts["reasoning_tokens_recorded"] += call.reasoning
    counts["spawns_failed"] += log.spawn_calls - log.spawns_known
    counts["clock_went_back"] += log.went_back
    if log.surrogates:
        findings.add(surrogates_replaced(log.file, log.surrogates_line, log.surrogates))
    if log.went_back:
        findings.add(clock_went_back(log.file, log.went_back_line, log.went_back))
    if log.without_usage:
        message = f"{log.without_usage} token counts grew by a call without a prompt, which is left out"
        where = Where(file=log.file, line=log.without_usage_line)
        findings.add(finding("call-without-usage", message, where=where, found=log.without_usage))


@dataclass(slots=True, eq=False)
class _Thread:
    """One rollout with its place in the play."""

    log: RolloutLog
    parent: _Thread | None = None
    children: list[_Thread] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, str]:
        calls = self.log.calls
        return calls[0].start_ns if calls else -1, self.log.thread


def _number(spawned: tuple[str, int]) -> int:
    return spawned[1]


def _unnamed(parent: _Thread, seen: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    """Return the children that notifications without a text are of, and the first call that saw each.

    A child is notified once, when it first answers. So such a notification is of the child whose first answer was due,
    where it was due of one only; a child whose rollout is not here may have answered at any time.

    Parameters
    ----------
    seen : mapping of str to sequence of int
        By child, the calls that saw a result of it as other records tell.

    Notes
    -----
    Children × log(children), plus notifications.
    """
    log = parent.log
    answered_ns = {
        child.log.thread: child.log.answered_ns
        for child in parent.children
        if child.turns and child.log.answered_ns >= 0
    }
    spawned = deque(sorted(log.spawned.items(), key=_number))
    first_seen = deque(sorted((seers[0], name) for name, seers in seen.items()))
    working: list[tuple[int, str]] = []
    due: set[str] = set()
    known: set[str] = set()
    found = []
    for seer, at_ns in log.unnamed:
        if seer >= len(parent.turns):
            break
        while spawned and spawned[0][1] < seer:
            name = spawned.popleft()[0]
            heapq.heappush(working, (answered_ns.get(name, -1), name))
        while first_seen and first_seen[0][0] <= seer:
            known.add(first_seen[0][1])
            due.discard(first_seen.popleft()[1])
        while working and working[0][0] <= at_ns:
            name = heapq.heappop(working)[1]
            if name not in known:
                due.add(name)
        if len(due) == 1 and not due.isdisjoint(answered_ns):
            found.append((due.pop(), seer))
    return found


def _place_by_path(parent: _Thread) -> None:
    """Tell the spawns that name a path and no thread which thread they made: the child that has the path in its head.

    Of several spawns of one path, one after the other, a child is of the latest before it.
    """
    log = parent.log
    for child in sorted(parent.children, key=lambda child: (child.log.head_ns, *child.order)):
        path, thread = child.log.path, child.log.thread
        if not path:
            continue
        if thread not in log.paths.setdefault(path, []):
            log.paths[path].append(thread)
        spawns = log.named_spawns.get(path)
        if thread in log.spawned or not spawns:
            continue
        before = [spawn for spawn in spawns if spawn.at_ns <= child.log.head_ns]
        log.spawned[thread] = (before or spawns[:1])[-1].number


def _by_path(log: RolloutLog) -> dict[str, list[tuple[int, str]]]:
    """Return, by agent path, the threads that had it and the calls that spawned them, in the order of those."""
    return {
        path: sorted((log.spawned.get(thread, -1), thread) for thread in threads) for path, threads in log.paths.items()
    }


def _thread_named(threads: Sequence[tuple[int, str]], seer: int) -> str:
    """Return the thread that had a path when the call `seer` saw its result: the one spawned last before it."""
    if not threads:
        return ""
    at = bisect_left(threads, (seer, ""))
    return threads[max(at - 1, 0)][1]


class _Lowering:
    """From rollouts to the graph."""

    def __init__(
        self,
        logs: dict[str, RolloutLog],
        findings: Findings,
        counts: Counter[str],
        block_size: int,
        where: Where,
    ) -> None:
        self._where = where
        self._findings = findings
        self._counts = counts
        self._block_size = block_size
        self._ids = BlockIds()
        self._threads = {name: _Thread(log) for name, log in sorted(logs.items())}
        self._find_parents()

    def _find_parents(self) -> None:
        """Hang every thread at its parent: the one that it names, else the one that names it."""
        spawner: dict[str, str] = {}
        for name, thread in self._threads.items():
            for child in thread.log.spawned:
                spawner.setdefault(child, name)
        parents: dict[str, str] = {}
        for name, thread in self._threads.items():
            wanted = thread.log.parent or spawner.get(name, "")
            if wanted in self._threads:
                parents[name] = wanted
            elif wanted:
                message = "the thread that spawned this one is not in the corpus, so it is a play of its own"
                where = Where(file=thread.log.file, ids=(name,))
                self._findings.add(finding("parent-missing", message, where=where, found=wanted))
        cut = circular(parents)
        for name, wanted in parents.items():
            if name not in cut:
                self._threads[name].parent = self._threads[wanted]
                self._threads[wanted].children.append(self._threads[name])
        for thread in self._threads.values():
            _place_by_path(thread)

    def finish(self, source: Source, facts: dict[str, object]) -> Graph | None:
        corpus = Corpus(self._block_size)
        roots = sorted((t for t in self._threads.values() if t.parent is None), key=lambda t: t.order)
        for root in roots:
            turns = self._play(root)
            if turns:
                corpus.play(root.log.thread, turns)
        facts["input_kind"] = "agentic"
        facts["recorded_cached_tokens"] = self._counts["cached_tokens_recorded"]
        corpus.tell(facts, "codex_counts", self._counts)
        if not corpus.holds_calls("no file has an LLM call", self._where, self._findings):
            return None
        if too_many_blocks(self._ids.used, self._where, self._findings):
            return None
        tell_cut(self._ids, self._where, self._findings)
        return corpus.finish(source, facts, self._ids.used)

    def _play(self, root: _Thread) -> list[Turn]:
        """Return the turns of one play in document order: each thread before those that it spawned."""
        turns: list[Turn] = []
        waiting = [root]
        while waiting:
            thread = waiting.pop()
            self._make_turns(root, thread)
            turns += thread.turns
            waiting += sorted(thread.children, key=lambda child: child.order, reverse=True)
            if not thread.turns:
                where = Where(file=thread.log.file, ids=(thread.log.thread,))
                self._findings.add(finding("session-empty", "this thread has no call", where=where))
        waiting = [root]
        while waiting:
            thread = waiting.pop()
            seen = self._seen(thread)
            for child in thread.children:
                self._tie(thread, child, seen.get(child.log.thread, []))
            waiting += thread.children
            self._tell_unrecorded(thread)
        return turns

    def _seen(self, parent: _Thread) -> dict[str, list[int]]:
        """Return, by child, the numbers of the parent's calls that were the first to see a result of it."""
        log = parent.log
        seen: dict[str, list[int]] = {}
        known = _by_path(log)
        for name, seer in log.seen:
            thread = _thread_named(known.get(name, []), seer) or name
            seen.setdefault(thread, []).append(seer)
        inferred = _unnamed(parent, seen)
        for name, seer in inferred:
            seen.setdefault(name, []).insert(0, seer)
        if inferred:
            self._counts["answers_inferred"] += len(inferred)
            message = f"notifications without a text, each of the agent whose answer was due: {len(inferred)}"
            where = Where(file=log.file, line=parent.turns[inferred[0][1]].line, ids=(log.thread, inferred[0][0]))
            self._findings.add(finding("answer-inferred", message, where=where, found=len(inferred)))
        return seen

    def _tell_unrecorded(self, thread: _Thread) -> None:
        """Tell how many of the agents that a thread spawned have no calls in the corpus."""
        log = thread.log
        absent = {name for name in log.spawned if name not in self._threads}
        absent.update(path for path in log.named_spawns if path not in log.paths)
        if absent:
            self._counts["agents_unrecorded"] += len(absent)
            message = f"no calls in the corpus are tied to {len(absent)} of the agents spawned"
            where = Where(file=log.file, ids=(log.thread,))
            self._findings.add(finding("agent-unrecorded", message, where=where, found=len(absent)))

    def _make_turns(self, root: _Thread, thread: _Thread) -> None:
        log = thread.log
        chain = PrefixChain(self._ids, self._block_size)
        spawner = self._spawner(thread)
        if log.forked and spawner is not None and log.calls and spawner.model == log.calls[0].model:
            # Its history is its parent's up to here, so it shares the parent's blocks.
            chain.resume(spawner.runs, spawner.input_length)
        for number, call in enumerate(log.calls):
            if call.reset:
                chain.reset()
            thread.turns.append(
                Turn(
                    request_id=f"{root.log.thread}:{log.thread}:{number}",
                    label=f"{log.thread}#{number}",
                    session=log.thread,
                    model=call.model,
                    input_length=call.input_length,
                    output_length=call.output_length,
                    start_ns=call.start_ns,
                    end_ns=call.end_ns,
                    file=log.file,
                    line=call.line,
                    runs=chain.extend(call.input_length, call.cached),
                    private=1 if call.input_length % self._block_size else 0,
                    estimated=() if call.answers else ("start",),
                )
            )
        self._counts["llm_calls"] += len(log.calls)
        self._counts["overlaps_floored"] += sequence(thread.turns)

    def _spawner(self, thread: _Thread) -> Turn | None:
        """Return the parent's call that spawned a thread."""
        if thread.parent is None:
            return None
        number = thread.parent.log.spawned.get(thread.log.thread, -1)
        return thread.parent.turns[number] if 0 <= number < len(thread.parent.turns) else None

    def _tie(self, parent: _Thread, child: _Thread, seers: list[int]) -> None:
        """Make the spawn edge of a child, and a join for each of its results where its parent first saw it."""
        if not child.turns:
            return
        spawner = self._spawner(child)
        if spawner is None:
            self._counts["agents_unlinked"] += 1
            stated = child.log.thread in parent.log.spawned
            message = "the call that spawned it was broken off and has no token count"
            message = message if stated else "its parent's rollout does not say which call spawned it"
            where = Where(file=child.log.file, line=child.turns[0].line, ids=(parent.log.thread, child.log.thread))
            self._findings.add(finding("agent-unlinked", message, where=where, found=child.log.thread))
            return
        self._counts["agents_linked"] += 1
        self._counts["overlaps_floored"] += spawn(spawner, child.turns[0])
        began = parent.log.spawned[child.log.thread]
        joined = -1
        for seer in seers:
            if not began < seer < len(parent.turns):
                continue
            target = parent.turns[seer]
            # The result is of the calls that had begun by then; what the agent did later is another result.
            last = joined
            while last + 1 < len(child.turns) and begun_by(child.turns[last + 1], target):
                last += 1
            if last > joined:
                after(child.turns[last], target, Relation.JOIN)
                self._counts["joins"] += 1
                joined = last
