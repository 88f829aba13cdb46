"""Streams: which request of a recording continues which conversation, told by the prefixes of their prompts.

A recording lists the calls of an agent in time order; several conversations may be interleaved in it. A request extends
the stream whose last prompt is a full prefix of its own; one that shares only part forks off; a fork from a finished
conversation is its continuation after a compaction. The formats that record block hashes share these rules.

Comparing each request with every stream would be quadratic; :mod:`playproof_lowering.splitting` sorts the prompts once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from playproof_spec.graph import Int64, UInt64

from playproof_lowering.splitting import split

__all__ = ["EPSILON_S", "Call", "Prompts", "Stream", "barriers", "split_streams"]

# Recorders round times; two instants closer than this are one.
EPSILON_S: Final = 1e-6
# A conversation that pauses longer than this and comes back with less than half of its prompt is another one.
SEAM_GAP_S: Final = 3600.0
# A first request whose prefix nobody shares is a preamble (a title, a quota check). With a longer answer than this it
# may be a conversation that was rewritten, which shows in blocks that come back elsewhere.
PREAMBLE_OUTPUT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The hash ids of calls as runs.

    Attributes
    ----------
    offsets : Int64, shape (prompts + 1,); first : UInt64; count : Int64, shape (runs,)
        Prompt k has the runs ``offsets[k]:offsets[k + 1]``, the fewest possible.
    limit : int
        Ids from here on are private to one prompt and stand behind its other ids; they say nothing about streams.
    """

    offsets: Int64
    first: UInt64
    count: Int64
    limit: int

    def opening(self, prompt: int) -> int:
        """Return the first id of a prompt, -1 when it has none that counts."""
        at = int(self.offsets[prompt])
        if at == int(self.offsets[prompt + 1]):
            return -1
        value = int(self.first[at])
        return value if value < self.limit else -1


@dataclass(slots=True, eq=False)
class Call:
    """One request as the splitting sees it.

    Attributes
    ----------
    order : int
        Its prompt; and its place in the file, which decides between equal starts.
    start_s, end_s : float
        Recorded seconds.
    model : str
    output_length : int
        Tokens.
    """

    order: int
    start_s: float
    end_s: float
    model: str
    output_length: int

    @property
    def key(self) -> tuple[float, int]:
        """The order of calls in time."""
        return self.start_s, self.order


@dataclass(slots=True, eq=False)
class Stream:
    """One conversation: its calls in time order, and the call it forked from (None for none)."""

    calls: list[Call]
    fork: Call | None = None


def split_streams(calls: Sequence[Call], prompts: Prompts) -> list[Stream]:
    """Split the calls of one scope into streams.

    Parameters
    ----------
    calls : sequence of Call
        At least one, in any order.
    prompts : Prompts

    Returns
    -------
    list of Stream
        The main stream first (it has the earliest call), the others by their first call.

    Notes
    -----
    A call extends the stream whose last prompt is the longest full prefix of its own, of the same model and ended by
    then; of equal ones the oldest stream. Else it forks from the stream with the longest common prefix, then the
    longest prompt, then the oldest. A fork that waits at the finished last prompt of a stream continues it, unless it
    comes more than an hour later with less than half of the prompt. A call without ids goes to the first stream. A
    first call that shares nothing rides in front of the main stream.

    Cost: calls × log(calls) prompts compared, run by run, while they are sorted; a few logarithms a call afterwards.
    Only a pool of many forks that wait at one prompt is walked, at some nanoseconds a fork.
    """
    ordered = sorted(calls, key=_key)
    if len(ordered) == 1:
        return [Stream(ordered)]
    preamble = ordered[0] if _has_preamble(ordered, prompts) else None
    if preamble is not None:
        del ordered[0]
    models = {name: code for code, name in enumerate(sorted({call.model for call in ordered}))}
    stream_of, fork, continues = split(
        np.array([call.order for call in ordered], dtype=np.int64),
        prompts.offsets,
        prompts.first,
        prompts.count,
        np.uint64(prompts.limit),
        np.array([call.start_s for call in ordered], dtype=np.float64),
        np.array([call.end_s for call in ordered], dtype=np.float64),
        np.array([models[call.model] for call in ordered], dtype=np.int64),
        EPSILON_S,
        SEAM_GAP_S,
    )
    owner = list(range(len(fork)))
    forks = fork.tolist()
    streams = [Stream([], None if at < 0 else ordered[at]) for at in forks]
    # A stream that continues another opened later than it, so owners are known when they are asked for.
    for number, continued in enumerate(continues.tolist()):
        if continued >= 0:
            owner[number] = owner[continued]
    for call, number in zip(ordered, stream_of.tolist(), strict=True):
        streams[owner[number]].calls.append(call)
    # The first stream holds the earliest call and continues nothing, for it has no fork.
    streams = [stream for stream in streams if stream.calls]
    if preamble is not None:
        streams[0].calls.insert(0, preamble)
    return streams


def _key(call: Call) -> tuple[float, int]:
    return call.start_s, call.order


def _has_preamble(ordered: Sequence[Call], prompts: Prompts) -> bool:
    """Tell whether the first call shares nothing with the rest, and so only rides in front of it."""
    opening = prompts.opening(ordered[0].order)
    if opening < 0 or any(prompts.opening(call.order) == opening for call in ordered[1:]):
        return False
    return ordered[0].output_length <= PREAMBLE_OUTPUT_TOKENS or not _shares_any_block(ordered, prompts)


def _shares_any_block(ordered: Sequence[Call], prompts: Prompts) -> bool:
    """Tell whether any id of the first call's prompt is in another one."""
    limit = np.uint64(prompts.limit)

    def spans(calls: Sequence[Call]) -> tuple[UInt64, UInt64]:
        """Return the first and the last id of each run, without private ids."""
        runs = np.concatenate(
            [np.arange(prompts.offsets[call.order], prompts.offsets[call.order + 1]) for call in calls]
        )
        runs = runs[prompts.first[runs] < limit]
        first = prompts.first[runs]
        return first, np.minimum(first + prompts.count[runs].astype(np.uint64), limit) - np.uint64(1)

    begins, ends = spans(ordered[:1])
    by_begin = np.argsort(begins)
    begins, reach = begins[by_begin], np.maximum.accumulate(ends[by_begin])
    other_begins, other_ends = spans(ordered[1:])
    # Of the own runs that begin before another one ends, the one that reaches furthest decides.
    at = np.searchsorted(begins, other_ends, side="right") - 1
    return bool(((at >= 0) & (reach[np.maximum(at, 0)] >= other_begins)).any())


def barriers(streams: Sequence[Sequence[Call]]) -> Iterator[tuple[Call, Call]]:
    """Yield (source, target) of the replay barriers between the streams of one scope.

    Parameters
    ----------
    streams : sequence of sequences of Call
        Each in time order.

    Yields
    ------
    tuple[Call, Call]
        For each call, of every other stream the latest call that had ended when it started; of those only the frontier:
        none that had ended when another of them started.

    Notes
    -----
    With M the latest start among those candidates, exactly those ended by M (and started before it) are behind another
    one. So the frontier is read off two sorted lists: calls × log(streams), plus the barriers.
    """
    if len(streams) < 2:
        return
    # A call counts from the instant when both hold: it started strictly before, and it has ended.
    arrivals = sorted(
        ((call.end_s, call.start_s, call.order, number, call) for number, own in enumerate(streams) for call in own),
        key=lambda entry: entry[:3],
    )
    held: list[tuple[float, float, int, int, Call]] = []
    latest: dict[int, tuple[float, float, int, int, Call]] = {}
    frontier = _Frontier()
    at = 0
    targets = sorted(((call.key, number, call) for number, own in enumerate(streams) for call in own), key=_first)
    for (start_s, _), number, call in targets:
        while at < len(arrivals) and arrivals[at][0] <= start_s + EPSILON_S:
            # By start: within the tolerance a call may have "ended" before it starts.
            heapq.heappush(held, (arrivals[at][1], *arrivals[at][:1], *arrivals[at][2:]))
            at += 1
        while held and held[0][0] < start_s:
            begun_s, end_s, order, stream, source = heapq.heappop(held)
            entry = (end_s, begun_s, order, stream, source)
            known = latest.get(stream)
            if known is None or known[:3] < entry[:3]:
                latest[stream] = entry
                frontier.replace(known, entry)
        for source in frontier.of_others(number):
            yield source, call


def _first(entry: tuple[tuple[float, int], int, Call]) -> tuple[float, int]:
    return entry[0]


class _Frontier:
    """The latest ended call of each stream, by end and by start."""

    def __init__(self) -> None:
        self._by_end: list[tuple[float, float, int, int, Call]] = []
        self._by_start: list[tuple[float, int, int, Call]] = []

    def replace(
        self, old: tuple[float, float, int, int, Call] | None, new: tuple[float, float, int, int, Call]
    ) -> None:
        """Let `new` stand for its stream instead of `old`."""
        if old is not None:
            del self._by_end[bisect_left(self._by_end, old[:4], key=_four)]
            del self._by_start[bisect_left(self._by_start, (old[1], old[2], old[3]), key=_three)]
        insort(self._by_end, new, key=_four)
        insort(self._by_start, (new[1], new[2], new[3], new[4]), key=_three)

    def of_others(self, stream: int) -> Iterator[Call]:
        """Yield the calls that no other one is behind, without regard to `stream`."""
        at = len(self._by_start) - 1
        while at >= 0 and self._by_start[at][2] == stream:
            at -= 1
        if at < 0:
            return
        latest_start_s = self._by_start[at][0]
        place = len(self._by_end) - 1
        while place >= 0 and self._by_end[place][0] > latest_start_s + EPSILON_S:
            if self._by_end[place][3] != stream:
                yield self._by_end[place][4]
            place -= 1
        # Those that started last are behind nobody, even when they ended at once.
        while at >= 0 and self._by_start[at][0] == latest_start_s:
            call = self._by_start[at][3]
            if self._by_start[at][2] != stream and call.end_s <= latest_start_s + EPSILON_S:
                yield call
            at -= 1


def _four(entry: tuple[float, float, int, int, Call]) -> tuple[float, float, int, int]:
    return entry[:4]


def _three(entry: tuple[float, int, int, Call]) -> tuple[float, int, int]:
    return entry[:3]
