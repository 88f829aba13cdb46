"""Streams and barriers against slow twins that compare everything with everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_lowering.streams import EPSILON_S, Call, Prompts, barriers, split_streams

Ids = list[int]
LIMIT = 6


def compressed(ids: Ids) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in ids:
        if runs and runs[-1][0] + runs[-1][1] == value:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return runs


@dataclass(frozen=True, eq=False)
class Scope:
    """Calls and the ids of their prompts, private ones left out."""

    calls: list[Call]
    ids: list[Ids]
    prompts: Prompts

    @classmethod
    def of(cls, calls: list[Call], ids: list[Ids]) -> Scope:
        runs = [compressed(own) for own in ids]
        flat = [run for own in runs for run in own]
        return cls(
            calls,
            [[value for value in own if value < LIMIT] for own in ids],
            Prompts(
                np.cumsum([0, *map(len, runs)]).astype(np.int64),
                np.array([first for first, _ in flat], dtype=np.uint64),
                np.array([count for _, count in flat], dtype=np.int64),
                LIMIT,
            ),
        )


def lcp(left: Ids, right: Ids) -> int:
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    return shared


@dataclass
class Twin:
    """One stream of the slow twin."""

    calls: list[Call]
    tail: Call | None = None
    fork: Call | None = None
    waits_at: Call | None = None
    merged: bool = False
    forks: list[Twin] = field(default_factory=list)


def naive_streams(scope: Scope) -> list[tuple[list[int], int | None]]:
    calls = scope.calls

    def expanded(call: Call) -> Ids:
        return scope.ids[call.order]

    ordered = sorted(calls, key=lambda call: call.key)
    preamble = None
    first, rest = ordered[0], ordered[1:]
    if rest and expanded(first) and all(lcp(expanded(first), expanded(other)) == 0 for other in rest):
        elsewhere = {value for other in rest for value in expanded(other)}
        if first.output_length <= 64 or not elsewhere & set(expanded(first)):
            preamble, ordered = first, rest
    twins: list[Twin] = [Twin([])]
    for call in ordered:
        ids = expanded(call)
        best: Twin | None = None
        for twin in twins if ids else ():
            tail = twin.tail
            if (
                tail is not None
                and tail.model == call.model
                and tail.end_s <= call.start_s + EPSILON_S
                and ids[: len(expanded(tail))] == expanded(tail)
                and (best is None or best.tail is None or len(expanded(tail)) > len(expanded(best.tail)))
            ):
                best = twin
        if best is None and ids and any(twin.tail is not None for twin in twins):
            keyed = [(lcp(expanded(t.tail), ids), len(expanded(t.tail)), -n) for n, t in enumerate(twins) if t.tail]
            shared, _, place = max(keyed)
            best = Twin([])
            if shared:
                best.waits_at = best.fork = twins[-place].tail
            twins.append(best)
        best = best or twins[0]
        best.calls.append(call)
        if ids:
            best.tail = call
    for call in ordered:
        splice(call, twins, expanded)
    kept = [twin for twin in twins if not twin.merged]
    result = [
        (sorted((c.order for c in twin.calls), key=lambda o: next(c.key for c in calls if c.order == o)), twin.fork)
        for twin in kept
    ]
    if preamble is not None:
        result[0] = ([preamble.order, *result[0][0]], result[0][1])
    starts = {call.order: call.key for call in calls}
    main, others = result[0], sorted(result[1:], key=lambda entry: starts[entry[0][0]])
    return [(orders, None if fork is None else fork.order) for orders, fork in [main, *others]]


def splice(tail: Call, twins: list[Twin], expanded: Callable[[Call], Ids]) -> None:
    """Let the stream that ends with `tail` go on with the best of the forks that wait there."""
    owner = next((twin for twin in twins if not twin.merged and twin.tail is tail), None)
    if owner is None:
        return
    waiting = [twin for twin in twins if not twin.merged and twin.waits_at is tail]

    def rank(twin: Twin) -> tuple[int, float, int]:
        start = twin.calls[0]
        return -lcp(expanded(tail), expanded(start)), start.start_s, start.order

    def eligible(twin: Twin) -> bool:
        start = twin.calls[0]
        late = start.start_s - tail.end_s > 3600
        return (
            tail.end_s <= start.start_s + EPSILON_S
            and start.model == tail.model
            and not (late and -rank(twin)[0] < 0.5 * len(expanded(tail)))
        )

    elected = min(filter(eligible, waiting), key=rank, default=None)
    if elected is None:
        return
    owner.calls += elected.calls
    owner.tail = elected.tail
    elected.merged = True
    assert elected.tail is not None
    for twin in waiting:
        if not twin.merged and twin.calls[0].key >= elected.tail.key:
            twin.waits_at = twin.fork = elected.tail


def naive_barriers(streams: list[list[Call]]) -> set[tuple[int, int]]:
    found = set()
    for own in streams:
        for target in own:
            latest = []
            for other in streams:
                ended = [c for c in other if c.start_s < target.start_s and c.end_s <= target.start_s + EPSILON_S]
                if other is not own and ended:
                    latest.append(max(ended, key=lambda c: (c.end_s, c.start_s, c.order)))
            for source in latest:
                behind = any(
                    source.start_s < later.start_s and source.end_s <= later.start_s + EPSILON_S for later in latest
                )
                if not behind:
                    found.add((source.order, target.order))
    return found


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    """Calls over few ids and instants, so that prefixes, ties and overlaps are common."""
    count = draw(st.integers(1, 14))
    prompts: list[Ids] = []
    calls = []
    for order in range(count):
        base = draw(st.sampled_from([*prompts, []]))
        base = [value for value in base if value < LIMIT]
        kept = base[: draw(st.integers(0, len(base)))] if draw(st.booleans()) else base
        ids = kept + draw(st.lists(st.integers(0, 5), max_size=4))
        private = draw(st.integers(0, 2))
        prompts.append(ids + list(range(10 * order + LIMIT, 10 * order + LIMIT + private)))
        start_s = float(draw(st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 5000, 9000])))
        end_s = start_s + draw(st.sampled_from([0.0, 0.5, 1.0, 1.0000005, 3.0]))
        model = draw(st.sampled_from(["a", "a", "a", "b"]))
        output = draw(st.sampled_from([10, 100]))
        calls.append(Call(order, start_s, end_s, model, output))
    return Scope.of(calls, prompts)


@given(scopes())
def test_streams_are_those_of_the_slow_twin(scope: Scope) -> None:
    found = [
        ([call.order for call in stream.calls], None if stream.fork is None else stream.fork.order)
        for stream in split_streams(scope.calls, scope.prompts)
    ]
    assert found == naive_streams(scope)


@pytest.mark.parametrize(
    ("output", "second", "streams"),
    [
        # 64 tokens are a preamble whatever comes back elsewhere; a longer answer, if its prompt comes back nowhere.
        (64, [1, 2], [[0, 1]]),
        (64, [1, 0], [[0, 1]]),
        (65, [1, 2], [[0, 1]]),
        (65, [1, 0], [[0], [1]]),
        (64, [0, 1], [[0, 1]]),
        (65, [0, 1], [[0, 1]]),
    ],
)
def test_a_first_call_that_shares_nothing_rides_in_front(output: int, second: Ids, streams: list[Ids]) -> None:
    scope = Scope.of([Call(0, 0.0, 1.0, "a", output), Call(1, 2.0, 3.0, "a", 10)], [[0], second])
    found = [[call.order for call in stream.calls] for stream in split_streams(scope.calls, scope.prompts)]
    assert found == streams


@given(scopes(), st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_barriers_are_those_of_the_slow_twin(scope: Scope, places: list[int]) -> None:
    streams: list[list[Call]] = [[] for _ in range(4)]
    for call in scope.calls:
        streams[places[call.order]].append(call)
    streams = [sorted(own, key=lambda call: call.key) for own in streams if own]
    found = [(source.order, target.order) for source, target in barriers(streams)]
    assert len(found) == len(set(found))
    assert set(found) == naive_barriers(streams)
