"""The wire of Weka / AgentX: one JSON object a play, checked field by field and kept in small.

What comes out, a :class:`PlayRecord`, has every time as it was recorded; what nested times and markers mean is decided
over the whole corpus (:mod:`playproof_lowering.weka_readings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS, Int64, UInt64
from playproof_spec.units import HORIZON_MS

from playproof_lowering.identity import namespace
from playproof_lowering.names import repeated_name
from playproof_lowering.runs import OK, RunBuffer, append_private, joined, renumber
from playproof_lowering.source import Reading
from playproof_lowering.streams import Prompts
from playproof_lowering.wire import (
    DecodeErrors,
    Problem,
    UnknownFields,
    explain,
    hash_ids_problem,
    nearest,
    report,
)

__all__ = ["Agent", "Counts", "Entry", "PlayRecord", "WekaRecords"]

HORIZON_S: Final = HORIZON_MS / 1000
MAX_BLOCK_SIZE: Final = 2**20
# Blocks without a recorded hash that a corpus may declare: each becomes an id in the digest and in the canonical form.
# Five thousand times those of the public recordings; a file of a few kilobytes could otherwise ask for terabytes.
MAX_PRIVATE_BLOCKS: Final = 2**28
STATUSES: Final = ("completed", "async_launched")
_ABSENT: Final = msgspec.Raw(b"")
_NO_HASHES: Final = msgspec.Raw(b"[]")


class _Request(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", gc=False, kw_only=True):
    t: float
    model: str
    input_length: int = msgspec.field(name="in")
    output_length: int = msgspec.field(name="out")
    hash_ids: msgspec.Raw = _NO_HASHES
    api_time: float | None = None
    # Recorded beside the request and without effect on a replay: the gap between requests holds the thinking, the
    # timing model gives the first token, and the output's length says where it stops.
    think_time: msgspec.Raw = _ABSENT
    ttft: msgspec.Raw = _ABSENT
    stop: msgspec.Raw = _ABSENT
    input_types: msgspec.Raw = _ABSENT
    output_types: msgspec.Raw = _ABSENT


class _Normal(_Request, tag="n"):
    pass


class _Streaming(_Request, tag="s"):
    pass


class _Subagent(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="subagent", kw_only=True):
    t: float
    agent_id: str
    status: str
    requests: list[_Normal | _Streaming]
    duration_ms: float | None = None
    subagent_type: msgspec.Raw = _ABSENT
    total_tokens: msgspec.Raw = _ABSENT
    tool_use_count: msgspec.Raw = _ABSENT
    tool_tokens: msgspec.Raw = _ABSENT
    system_tokens: msgspec.Raw = _ABSENT
    models: msgspec.Raw = _ABSENT


class _Play(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    block_size: int
    hash_id_scope: str
    requests: list[_Normal | _Streaming | _Subagent]
    models: list[str] = []
    tool_tokens: msgspec.Raw = _ABSENT
    system_tokens: msgspec.Raw = _ABSENT
    totals: msgspec.Raw = _ABSENT


_PLAY = msgspec.json.Decoder(_Play)


class Entry(msgspec.Struct, gc=False):
    """One request as recorded. `inner` is -1 for a request of the parent. Times in seconds, `t` not yet interpreted."""

    outer: int
    inner: int
    t: float
    api_time: float | None
    model: str
    input_length: int
    output_length: int

    @property
    def path(self) -> str:
        """JSON path within the play."""
        return f"requests[{self.outer}]" + (f".requests[{self.inner}]" if self.inner >= 0 else "")

    @property
    def service_s(self) -> float:
        """How long it ran, as far as recorded."""
        return self.api_time or 0.0


@dataclass(slots=True)
class Agent:
    """One subagent's marker.

    Attributes
    ----------
    outer : int
        Its place in the play's ``requests``.
    t : float
        Seconds, not yet interpreted.
    duration_s : float | None
    begin, end : int
        Its requests are the play's entries ``begin:end``.
    owner, follower : int
        The entries of the last parent request before the marker and of the first one behind it, -1 for none.
    """

    outer: int
    t: float
    agent_id: str
    blocking: bool
    duration_s: float | None
    begin: int
    end: int
    owner: int
    follower: int = -1

    @property
    def path(self) -> str:
        """JSON path within the play."""
        return f"requests[{self.outer}]"


@dataclass(slots=True)
class PlayRecord:
    """One play as recorded, checked field by field.

    Attributes
    ----------
    name : str
        Namespace of all its ids.
    label : str
        How its author would call the record: file, and line where it has one.
    where : Where
    entries : list of Entry
        In document order, nested ones at their marker's place.
    agents : list of Agent
        In document order.
    offsets, first, count
        Hash ids of the entries as runs, numbered within the play: those that the recording shares from 0 on, private
        ones above all of them.
    ids : int
        How many ids the play uses.
    prompts : Prompts
        What tells the streams apart: all hashes as recorded, those of partial blocks and the surplus too, which have no
        place in the graph.
    """

    name: str
    label: str
    where: Where
    entries: list[Entry]
    agents: list[Agent]
    offsets: Int64
    first: UInt64
    count: Int64
    ids: int
    prompts: Prompts

    def at(self, path: str, *ids: str) -> Where:
        """Return the place of a field of this play."""
        return Where(file=self.where.file, line=self.where.line, field=path, ids=ids)


@dataclass(slots=True)
class Counts:
    """What is counted over the corpus, for the facts."""

    plays: int = 0
    requests: int = 0
    nested_requests: int = 0
    subagents: int = 0
    zero_outputs: int = 0
    plays_with_undeclared_models: int = 0
    surplus_hashes: int = 0
    partial_block_hashes: int = 0
    private_blocks: int = 0
    nested_times_clamped: int = 0
    overlaps_floored: int = 0


class WekaRecords:
    """Reads files into play records.

    Parameters
    ----------
    findings : Findings
        Receives what is wrong; a record with an error is left out.
    block_size : int, optional
        What the files must say.
    strict : bool
        Unknown fields are errors.

    Attributes
    ----------
    plays : list of PlayRecord
        In corpus order.
    block_size : int
        Of the corpus, 0 before the first play.
    counts : Counts
    """

    def __init__(self, findings: Findings, block_size: int | None, strict: bool) -> None:
        self.findings = findings
        self.plays: list[PlayRecord] = []
        self.block_size = 0
        self.counts = Counts()
        self._asked_block_size = block_size
        self._first_file = ""
        self._unknown = UnknownFields(strict)
        self._full = RunBuffer(2**16)
        self._rest = RunBuffer()

    def read(self, reading: Reading) -> None:
        """Read one file to its end.

        Raises
        ------
        SourceError
            When the file cannot be read on.
        """
        file = reading.file
        try:
            for where, record in reading.placed():
                label = f"{file.relative}:{where.line}" if where.line else file.relative
                self._record(record, where, namespace(file, where.line), label)
        finally:
            self._unknown.tell(self.findings)

    def _record(self, data: bytes, where: Where, name: str, label: str) -> None:
        play = self._decode(data, where)
        if play is None:
            return
        problems = list(self._play_problems(play, where.file))
        if problems:
            # Without a sound block size the rest cannot be judged.
            report(self.findings, problems, where)
            return
        self._full.clear()
        self._rest.clear()
        harvest = _Harvest(play, self._full, self._rest, where, self.findings, self.counts)
        harvest.collect()
        if harvest.problems:
            report(self.findings, harvest.problems, where)
            return
        self._warn_undeclared(play, harvest.entries, where)
        self.counts.plays += 1
        self.counts.requests += len(harvest.entries)
        self.plays.append(harvest.record(name, label))

    def _decode(self, data: bytes, where: Where) -> _Play | None:
        try:
            play = _PLAY.decode(data)
        except DecodeErrors:
            explained = explain(data, _Play)
            self._unknown.note(explained.unknown, where)
            report(self.findings, explained.problems, where)
            if explained.problems:
                return None
            play = _PLAY.decode(explained.cleaned)
        twice = repeated_name(data)
        if twice is not None:
            report(self.findings, [twice], where)
            return None
        return play

    def _play_problems(self, play: _Play, shown: str) -> Iterator[Problem]:
        if not play.id.strip():
            yield Problem("id-empty", "id", "the play has an empty id", '""', "a non-empty string")
        if play.hash_id_scope != "local":
            message = "hash ids of this scope are not read"
            yield Problem("value-unknown", "hash_id_scope", message, play.hash_id_scope, "local")
        size = play.block_size
        if not 1 <= size <= MAX_BLOCK_SIZE:
            yield Problem("block-size", "block_size", "out of bounds", str(size)[:60], f"1 … {MAX_BLOCK_SIZE}")
        elif self._asked_block_size is not None and size != self._asked_block_size:
            message = "the file has another block size than the option says"
            yield Problem("block-size-mismatch", "block_size", message, str(size), str(self._asked_block_size))
        elif self.block_size not in (0, size):
            message = f"{self._first_file} has block size {self.block_size}"
            yield Problem("block-size-mixed", "block_size", message, str(size), str(self.block_size))
        elif not self.block_size:
            self.block_size = size
            self._first_file = shown

    def _warn_undeclared(self, play: _Play, entries: list[Entry], where: Where) -> None:
        if not play.models:
            return
        undeclared = sorted({entry.model for entry in entries} - set(play.models))
        if not undeclared:
            return
        self.counts.plays_with_undeclared_models += 1
        close = nearest(undeclared[0], play.models)
        self.findings.add(
            finding(
                "model-undeclared",
                "requests ask for models that the list leaves out" + (f"; nearest: {close}" if close else ""),
                where=Where(file=where.file, line=where.line, field="models"),
                found=", ".join(undeclared),
                wanted="every model of the play in the list",
            )
        )


class _Harvest:
    """Takes the requests and subagents out of one decoded play.

    `full` collects the hashes of full blocks, `rest` those that some recorders give beyond them.
    """

    def __init__(
        self, play: _Play, full: RunBuffer, rest: RunBuffer, where: Where, findings: Findings, counts: Counts
    ) -> None:
        self.entries: list[Entry] = []
        self.agents: list[Agent] = []
        self.problems: list[Problem] = []
        self._play = play
        self._full = full
        self._rest = rest
        self._where = where
        self._findings = findings
        self._counts = counts
        self._offsets = [0]
        self._rest_offsets = [0]
        self._private: list[int] = []

    def collect(self) -> None:
        """Go through the entries in document order."""
        owner = -1
        waiting: list[Agent] = []
        agent_ids: dict[str, int] = {}
        for outer, item in enumerate(self._play.requests):
            if isinstance(item, _Subagent):
                agent = self._agent(item, outer, owner, agent_ids)
                if agent is not None:
                    self.agents.append(agent)
                    waiting.append(agent)
                continue
            owner = len(self.entries)
            self._entry(item, outer, -1)
            for agent in waiting:
                agent.follower = owner
            waiting.clear()
        if owner < 0:
            self.problems.append(
                Problem("play-empty", "requests", "the play has no request of its own", "none", "at least one")
            )

    def _agent(self, item: _Subagent, outer: int, owner: int, agent_ids: dict[str, int]) -> Agent | None:
        path = f"requests[{outer}]"
        problems = self.problems
        _check_time(item.t, f"{path}.t", problems)
        if not item.agent_id.strip():
            problems.append(Problem("id-empty", f"{path}.agent_id", "the subagent has an empty id", '""', "an id"))
        earlier = agent_ids.setdefault(item.agent_id, outer)
        if earlier != outer:
            message = f"requests[{earlier}] has this id already"
            problems.append(
                Problem("subagent-duplicate", f"{path}.agent_id", message, item.agent_id, "an id of its own")
            )
        if item.status not in STATUSES:
            problems.append(
                Problem("value-unknown", f"{path}.status", "no such status", item.status[:60], " or ".join(STATUSES))
            )
        duration_s = None
        if item.duration_ms is not None:
            duration_s = item.duration_ms / 1000
            _check_time(item.duration_ms, f"{path}.duration_ms", problems, HORIZON_MS, "ms")
        if owner < 0:
            message = "no request of the parent stands before the subagent"
            problems.append(Problem("subagent-without-owner", path, message, item.agent_id, "a request before it"))
        begin = len(self.entries)
        for inner, request in enumerate(item.requests):
            self._entry(request, outer, inner)
        self._counts.nested_requests += len(item.requests)
        if not item.requests:
            self._findings.add(
                finding(
                    "subagent-empty",
                    "the subagent has no requests",
                    where=Where(file=self._where.file, line=self._where.line, field=f"{path}.requests"),
                    found=item.agent_id,
                )
            )
            return None
        self._counts.subagents += 1
        blocking = item.status == "completed"
        return Agent(outer, item.t, item.agent_id, blocking, duration_s, begin, len(self.entries), owner)

    def _entry(self, item: _Normal | _Streaming, outer: int, inner: int) -> None:
        entry = Entry(outer, inner, item.t, item.api_time, item.model, item.input_length, item.output_length)
        api_time = item.api_time or 0.0
        sound = (
            0.0 <= item.t <= HORIZON_S
            and 0.0 <= api_time <= HORIZON_S
            and 1 <= item.input_length <= MAX_TOKENS
            and 0 <= item.output_length <= MAX_TOKENS
            and item.model
        )
        if not sound:
            self.problems.extend(_entry_problems(entry))
        elif item.output_length == 0:
            self._counts.zero_outputs += 1
        self.entries.append(entry)
        self._hash_ids(item, entry, bool(sound))

    def _hash_ids(self, item: _Normal | _Streaming, entry: Entry, sound: bool) -> None:
        """Take over the ids of the full blocks; all other blocks of the prompt become private."""
        full, tail = divmod(min(max(item.input_length, 0), MAX_TOKENS), self._play.block_size)
        blocks = full + (1 if tail else 0)
        ids = 0
        if item.hash_ids is not _NO_HASHES:
            status, ids = self._full.parse(item.hash_ids, 0, full)
            if status != OK:
                self.problems.append(hash_ids_problem(item.hash_ids, status, ids, f"{entry.path}.hash_ids"))
            elif ids > full:
                self._rest.parse(item.hash_ids, full)
        self._offsets.append(self._full.used)
        self._rest_offsets.append(self._rest.used)
        private = blocks - min(ids, full)
        self._private.append(private)
        if not sound:
            return
        before = self._counts.private_blocks
        self._counts.private_blocks = before + private
        if before <= MAX_PRIVATE_BLOCKS < before + private:
            message = f"up to here the corpus declares {before + private} blocks without hash ids"
            wanted = f"at most {MAX_PRIVATE_BLOCKS} such blocks in a corpus"
            found = str(item.input_length)
            self.problems.append(Problem("length-out-of-bounds", f"{entry.path}.in", message, found, wanted))
        if ids == blocks > full:
            self._counts.partial_block_hashes += 1
        elif ids > blocks:
            self._counts.surplus_hashes += ids - blocks
            self._warn_hashes("hashes-surplus", entry, ids, blocks)
        elif 0 < ids < full:
            self._warn_hashes("hashes-short", entry, ids, full)

    def _warn_hashes(self, code: str, entry: Entry, ids: int, blocks: int) -> None:
        what = "full blocks" if code == "hashes-short" else "blocks"
        self._findings.add(
            finding(
                code,
                f"{entry.input_length} tokens have {blocks} {what} of {self._play.block_size}",
                where=Where(file=self._where.file, line=self._where.line, field=f"{entry.path}.hash_ids"),
                found=f"{ids} ids",
                wanted=f"{blocks} ids",
            )
        )

    def record(self, name: str, label: str) -> PlayRecord:
        """Return what was collected, with the play's ids numbered from 0."""
        lists = len(self.entries)
        offsets, first, count, limit, shared = self._numbered(lists)
        private = np.array(self._private, dtype=np.int64)
        own = slice(0, int(offsets[lists]))
        own_offsets, own_first, own_count = append_private(
            offsets[: lists + 1], first[own], count[own], private, shared
        )
        if self._rest.used:
            prompts = Prompts(*joined(lists, offsets, first, count), limit)
        else:
            prompts = Prompts(own_offsets, own_first, own_count, shared)
        return PlayRecord(
            name=name,
            label=label,
            where=self._where,
            entries=self.entries,
            agents=self.agents,
            offsets=own_offsets,
            first=own_first,
            count=own_count,
            ids=shared + int(private.sum()),
            prompts=prompts,
        )

    def _numbered(self, lists: int) -> tuple[Int64, UInt64, Int64, int, int]:
        """Number the hashes of full blocks from 0, and those that only stand beyond them above.

        Returns (offsets, first, count) of the lists of full blocks, then of the rests if there are any; how many ids
        there are, and how many of them are of full blocks.
        """
        full, rest = self._full, self._rest
        offsets = np.array(self._offsets, dtype=np.int64)
        first, count = full.first[: full.used], full.count[: full.used]
        if rest.used:
            offsets = np.concatenate([offsets, np.array(self._rest_offsets[1:], dtype=np.int64) + full.used])
            first = np.concatenate([first, rest.first[: rest.used]])
            count = np.concatenate([count, rest.count[: rest.used]])
        offsets, first, count, distinct = renumber(offsets, first, count)
        own = int(offsets[lists])
        # Numbers go by first appearance, so those of full blocks are the least.
        shared = int((first[:own] + count[:own].astype(np.uint64)).max()) if own else 0
        return offsets, first, count, distinct, shared


def _check_time(value: float, path: str, problems: list[Problem], horizon: float = HORIZON_S, unit: str = "s") -> None:
    if value < 0:
        problems.append(Problem("time-negative", path, "the time is negative", repr(value), "0 or more"))
    elif not value <= horizon:
        wanted = f"at most {horizon:.0f} {unit}"
        problems.append(Problem("time-beyond-horizon", path, "the time lies beyond the clock", repr(value), wanted))


def _entry_problems(entry: Entry) -> list[Problem]:
    problems: list[Problem] = []
    _check_time(entry.t, f"{entry.path}.t", problems)
    if entry.api_time is not None:
        _check_time(entry.api_time, f"{entry.path}.api_time", problems)
    for name, value, least in (("in", entry.input_length, 1), ("out", entry.output_length, 0)):
        if not least <= value <= MAX_TOKENS:
            wanted = f"{least} … {MAX_TOKENS}"
            path = f"{entry.path}.{name}"
            problems.append(
                Problem("length-out-of-bounds", path, f"`{name}` is out of bounds", str(value)[:60], wanted)
            )
    if not entry.model:
        problems.append(Problem("id-empty", f"{entry.path}.model", "the model has no name", '""', "a non-empty string"))
    return problems
