"""The compiled part of stream splitting: prompts in lexicographic order, and questions about common prefixes.

All prompts of a scope are sorted once. Then the common prefix of two prompts is the least one of neighbours between
them, a full prefix is found by following links upwards, and the prompts that share at least `d` ids with a given one
are an interval. Trees of minima answer in the logarithm; no prompt is compared again.

Every function is a leaf on plain arrays; a call's index is its place in time order.
"""

from __future__ import annotations

import numpy as np
from playproof_native import allocating, allocating_entry
from playproof_spec.graph import Float64, Int32, Int64, UInt64

__all__ = ["split"]

# "Nothing" in a tree of minima.
_NONE = 2**62
# A key of a live prompt is stream − length · 2³¹: the longest first, then the oldest stream. Always negative.
_STREAM_BITS = 31


@allocating
def _trimmed(
    which: Int64, offsets: Int64, first: UInt64, count: Int64, limit: np.uint64
) -> tuple[Int64, UInt64, Int64, Int64]:
    """Return the runs of the calls without ids from `limit` on, which stand last: (offsets, first, count, lengths)."""
    total = 0
    for call in range(len(which)):
        total += offsets[which[call] + 1] - offsets[which[call]]
    own_offsets = np.zeros(len(which) + 1, dtype=np.int64)
    own_first = np.empty(total, dtype=np.uint64)
    own_count = np.empty(total, dtype=np.int64)
    length = np.zeros(len(which), dtype=np.int64)
    at = 0
    for call in range(len(which)):
        for run in range(offsets[which[call]], offsets[which[call] + 1]):
            if first[run] >= limit:
                break
            own_first[at] = first[run]
            own_count[at] = min(count[run], np.int64(limit - first[run]))
            length[call] += own_count[at]
            at += 1
        own_offsets[call + 1] = at
    return own_offsets, own_first, own_count, length


@allocating
def _compare(a: int, b: int, offsets: Int64, first: UInt64, count: Int64) -> tuple[int, int]:
    """Return (ids in common, sign) of two prompts; the sign is -1 when `a` comes first. Equal prompts give 0."""
    shared = 0
    i, i_end = offsets[a], offsets[a + 1]
    j, j_end = offsets[b], offsets[b + 1]
    while i < i_end and j < j_end:
        if first[i] != first[j]:
            return shared, -1 if first[i] < first[j] else 1
        if count[i] == count[j]:
            shared += count[i]
            i += 1
            j += 1
            continue
        step = min(count[i], count[j])
        shared += step
        following = first[i] + np.uint64(step)
        if count[i] < count[j]:
            if i + 1 == i_end:
                return shared, -1
            return shared, -1 if first[i + 1] < following else 1
        if j + 1 == j_end:
            return shared, 1
        return shared, 1 if first[j + 1] < following else -1
    if i < i_end:
        return shared, 1
    return shared, -1 if j < j_end else 0


@allocating
def _sorted_calls(calls: int, offsets: Int64, first: UInt64, count: Int64) -> Int64:
    """Return the calls in the order of their prompts, equal ones in time order: a merge sort from the bottom up."""
    order = np.arange(calls)
    other = np.empty_like(order)
    width = 1
    while width < calls:
        for low in range(0, calls, 2 * width):
            middle = min(low + width, calls)
            high = min(low + 2 * width, calls)
            left, right = low, middle
            for at in range(low, high):
                take_left = right == high
                if not take_left and left < middle:
                    take_left = _compare(order[left], order[right], offsets, first, count)[1] <= 0
                if take_left:
                    other[at] = order[left]
                    left += 1
                else:
                    other[at] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@allocating
def _range_min(tree: Int64, low: int, high: int) -> int:
    """Return the least value of places low … high - 1."""
    size = len(tree) // 2
    least = _NONE
    i, j = low + size, high + size
    while i < j:
        if i & 1:
            least = min(least, tree[i])
            i += 1
        if j & 1:
            j -= 1
            least = min(least, tree[j])
        i >>= 1
        j >>= 1
    return least


@allocating
def _put(tree: Int64, place: int, value: int) -> None:
    """Set one value. Writes `tree`."""
    i = place + len(tree) // 2
    tree[i] = value
    i >>= 1
    while i:
        tree[i] = min(tree[2 * i], tree[2 * i + 1])
        i >>= 1


@allocating
def _last_below(tree: Int64, place: int, limit: int) -> int:
    """Return the greatest place before `place` whose value is less than `limit`, or -1."""
    size = len(tree) // 2
    i = place + size
    while i > 1:
        if i & 1 and tree[i - 1] < limit:
            i -= 1
            while i < size:
                i = 2 * i + 1 if tree[2 * i + 1] < limit else 2 * i
            return i - size
        i >>= 1
    return -1


@allocating
def _first_below(tree: Int64, place: int, limit: int) -> int:
    """Return the least place from `place` on whose value is less than `limit`, or -1."""
    size = len(tree) // 2
    i = place + size
    if tree[i] < limit:
        return place
    while i > 1:
        if not i & 1 and tree[i + 1] < limit:
            i += 1
            while i < size:
                i = 2 * i if tree[2 * i] < limit else 2 * i + 1
            return i - size
        i >>= 1
    return -1


@allocating
def _common(common: Int64, a: int, b: int) -> int:
    """Return how many ids the prompts of two different ranks share."""
    return _range_min(common, min(a, b), max(a, b))


@allocating
def _interval(common: Int64, rank: int, depth: int) -> tuple[int, int]:
    """Return the first and the last rank whose prompts share at least `depth` ids with that of `rank`."""
    return _last_below(common, rank, depth) + 1, _first_below(common, rank, depth)


@allocating
def _tables(length: Int64, offsets: Int64, first: UInt64, count: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Sort the prompts; return (call by rank, rank by call, tree of neighbours' common ids, links to full prefixes).

    Place r of the tree holds what ranks r and r + 1 share, and -1 at the last rank, where every interval ends.
    """
    calls = len(length)
    by_rank = _sorted_calls(calls, offsets, first, count)
    rank = np.empty(calls, dtype=np.int64)
    size = 1
    while size < calls + 1:
        size *= 2
    common = np.full(2 * size, _NONE, dtype=np.int64)
    prefix = np.full(calls, -1, dtype=np.int64)
    # The ranks whose prompts are full prefixes of the one just visited, the shortest at the bottom.
    stack = np.empty(calls, dtype=np.int64)
    held = 0
    for at in range(calls):
        rank[by_rank[at]] = at
        if at:
            shared = _compare(by_rank[at - 1], by_rank[at], offsets, first, count)[0]
            common[size + at - 1] = shared
            while held and length[by_rank[stack[held - 1]]] > shared:
                held -= 1
            if held:
                prefix[at] = stack[held - 1]
        stack[held] = at
        held += 1
    common[size + calls - 1] = -1
    for i in range(size - 1, 0, -1):
        common[i] = min(common[2 * i], common[2 * i + 1])
    return by_rank, rank, common, prefix


@allocating
def _extendable(
    call: int,
    by_rank: Int64,
    rank: Int64,
    prefix: Int64,
    up: Int64,
    state: Int32,
    length: Int64,
    start_s: Float64,
    end_s: Float64,
    model: Int64,
    epsilon_s: float,
) -> int:
    """Return the stream that `call` extends, or -1. Writes `up`, whose links pass over prompts that are nobody's last.

    `state` by call: the stream whose last prompt it is; -1 not yet seen, -2 passed.
    """
    best = -1
    best_length = 0
    at = prefix[rank[call]]
    while at >= 0:
        # Skip what will never be a last prompt again, and shorten the way for the next time.
        root = at
        while root >= 0 and state[by_rank[root]] == -2:
            root = up[root]
        while at >= 0 and at != root:
            following = up[at]
            up[at] = root
            at = following
        if root < 0:
            break
        other = by_rank[root]
        if best >= 0 and length[other] < best_length:
            break
        stream = state[other]
        if stream >= 0 and model[other] == model[call] and end_s[other] <= start_s[call] + epsilon_s:
            if best < 0 or stream < best:
                best = stream
                best_length = length[other]
        at = up[root]
    return best


@allocating
def _assign(
    length: Int64,
    by_rank: Int64,
    rank: Int64,
    common: Int64,
    prefix: Int64,
    start_s: Float64,
    end_s: Float64,
    model: Int64,
    epsilon_s: float,
) -> tuple[Int32, Int64, Int64, Int64, int]:
    """Assign each call to a stream; return (stream by call, and by stream: first call, last prompt, fork; streams)."""
    calls = len(length)
    stream_of = np.zeros(calls, dtype=np.int32)
    opening = np.full(calls + 1, -1, dtype=np.int64)
    tail = np.full(calls + 1, -1, dtype=np.int64)
    fork = np.full(calls + 1, -1, dtype=np.int64)
    state = np.full(calls, -1, dtype=np.int32)
    live = np.full(len(common), _NONE, dtype=np.int64)
    up = prefix.copy()
    streams = 1
    for call in range(calls):
        if length[call] == 0:
            if opening[0] < 0:
                opening[0] = call
            continue
        at = rank[call]
        stream = _extendable(call, by_rank, rank, prefix, up, state, length, start_s, end_s, model, epsilon_s)
        if stream < 0 and tail[0] < 0:
            stream = 0
        elif stream < 0:
            before = _last_below(live, at, 0)
            after = _first_below(live, at, 0)
            depth = 0
            if before >= 0:
                depth = _common(common, before, at)
            if after >= 0:
                depth = max(depth, _common(common, at, after))
            stream = streams
            streams += 1
            if depth > 0:
                low, high = _interval(common, at, depth)
                parent = _range_min(live, low, high + 1) & ((1 << _STREAM_BITS) - 1)
                fork[stream] = tail[parent]
        if tail[stream] >= 0:
            state[tail[stream]] = -2
            _put(live, rank[tail[stream]], _NONE)
        if opening[stream] < 0:
            opening[stream] = call
        tail[stream] = call
        state[call] = stream
        stream_of[call] = stream
        _put(live, at, stream - (length[call] << _STREAM_BITS))
    return stream_of, opening[:streams], tail[:streams], fork[:streams], streams


@allocating
def _elect(
    last: int,
    pool: int,
    following: Int64,
    opening: Int64,
    length: Int64,
    rank: Int64,
    common: Int64,
    start_s: Float64,
    end_s: Float64,
    model: Int64,
    gap_s: float,
) -> int:
    """Return the fork of a pool that continues the prompt `last`, or -1.

    Of those that qualify the one with the longest common prefix, then the earliest. Two walks over the pool: the first
    finds the neighbours in rank, which share most; the second the earliest within the interval that shares as much.
    """
    at = rank[last]
    half_low, half_high = _interval(common, at, (length[last] + 1) // 2)
    below, above = -1, -1
    fork = pool
    while fork >= 0:
        first = opening[fork]
        place = rank[first]
        near = start_s[first] - end_s[last] <= gap_s or half_low <= place <= half_high
        if model[first] == model[last] and near:
            if place < at:
                below = max(below, place)
            elif above < 0 or place < above:
                above = place
        fork = following[fork]
    depth = 0
    if below >= 0:
        depth = _common(common, below, at)
    if above >= 0:
        depth = max(depth, _common(common, at, above))
    if depth == 0:
        return -1
    low, high = _interval(common, at, depth)
    best = -1
    fork = pool
    while fork >= 0:
        first = opening[fork]
        place = rank[first]
        near = start_s[first] - end_s[last] <= gap_s or half_low <= place <= half_high
        if model[first] == model[last] and near and low <= place <= high:
            if best < 0 or first < opening[best]:
                best = fork
        fork = following[fork]
    return best


@allocating
def _settle(pool: int, following: Int64, opening: Int64, fork_of: Int64, bound: int, last: int) -> int:
    """Let forks that open before call `bound` go, forked from `last`; return the pool of the others.

    Writes `following` and `fork_of`.
    """
    kept = -1
    fork = pool
    while fork >= 0:
        next_fork = following[fork]
        if opening[fork] < bound:
            fork_of[fork] = last
        else:
            following[fork] = kept
            kept = fork
        fork = next_fork
    return kept


@allocating
def _splice(
    streams: int,
    opening: Int64,
    tail: Int64,
    fork_of: Int64,
    length: Int64,
    rank: Int64,
    common: Int64,
    start_s: Float64,
    end_s: Float64,
    model: Int64,
    epsilon_s: float,
    gap_s: float,
) -> Int64:
    """Return the stream that each one continues, -1 for none. Writes `fork_of`.

    Last prompts are visited in time order. Each elects one of the forks that wait at it; that fork's own last prompt is
    where the others wait on, as far as they start after it, beside those that forked from it.
    """
    calls = len(length)
    continues = np.full(streams, -1, dtype=np.int64)
    following = np.full(streams, -1, dtype=np.int64)
    waiting = np.full(calls, -1, dtype=np.int64)
    inherited = np.full(streams, -1, dtype=np.int64)
    ends_with = np.full(calls, -1, dtype=np.int64)
    for stream in range(streams):
        if tail[stream] >= 0:
            ends_with[tail[stream]] = stream
        if fork_of[stream] >= 0:
            following[stream] = waiting[fork_of[stream]]
            waiting[fork_of[stream]] = stream
    for last in range(calls):
        stream = ends_with[last]
        if stream < 0:
            continue
        pool = inherited[stream]
        own = waiting[last]
        while own >= 0:
            next_own = following[own]
            following[own] = pool
            pool = own
            own = next_own
        if pool < 0:
            continue
        # Forks that start before the prompt has ended run beside it, and start before every later last prompt.
        bound, high = last, calls
        while bound < high:
            middle = (bound + high) // 2
            if start_s[middle] + epsilon_s < end_s[last]:
                bound = middle + 1
            else:
                high = middle
        pool = _settle(pool, following, opening, fork_of, bound, last)
        elected = _elect(last, pool, following, opening, length, rank, common, start_s, end_s, model, gap_s)
        if elected < 0:
            _settle(pool, following, opening, fork_of, calls, last)
            continue
        continues[elected] = stream
        # The elected fork leaves the pool with those before its last prompt; it is nobody's fork any more.
        inherited[elected] = _settle(pool, following, opening, fork_of, tail[elected] + 1, last)
        fork_of[elected] = -1
    return continues


@allocating_entry
def split(
    which: Int64,
    offsets: Int64,
    first: UInt64,
    count: Int64,
    limit: np.uint64,
    start_s: Float64,
    end_s: Float64,
    model: Int64,
    epsilon_s: float,
    gap_s: float,
) -> tuple[Int32, Int64, Int64]:
    """Split calls, given in time order, into streams.

    Parameters
    ----------
    which : Int64, shape (calls,)
        The list of runs of each call.
    offsets, first, count
        Hash ids as runs, as in :func:`playproof_lowering.runs.renumber`.
    limit : uint64
        Ids from here on belong to one call only and stand behind all others; they are left aside.
    start_s, end_s : Float64; model : Int64, shape (calls,)
    epsilon_s, gap_s : float
        Tolerance of instants; pause after which a continuation must share half of the prompt.

    Returns
    -------
    stream_of : Int32, shape (calls,)
    fork : Int64, shape (streams,)
        The call that the stream forked from, -1 for none.
    continues : Int64, shape (streams,)
        The stream that it is the continuation of, -1 for none.
    """
    own_offsets, own_first, own_count, length = _trimmed(which, offsets, first, count, limit)
    by_rank, rank, common, prefix = _tables(length, own_offsets, own_first, own_count)
    stream_of, opening, tail, fork, streams = _assign(
        length, by_rank, rank, common, prefix, start_s, end_s, model, epsilon_s
    )
    continues = _splice(streams, opening, tail, fork, length, rank, common, start_s, end_s, model, epsilon_s, gap_s)
    return stream_of, fork, continues
