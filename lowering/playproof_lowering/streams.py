"""Streams: which request of a recording continues which conversation, told by the prefixes of their prompts.

A recording lists the calls of an agent in time order; several conversations may be interleaved in it. A request extends
the stream whose last prompt is a full prefix of its own; one that shares only part forks off; a fork from a finished
conversation is its continuation after a compaction. The formats that record block hashes share these rules.

Comparing each request with every stream would be quadratic. Here the last prompts of all streams stand in a prefix tree
over runs of hash ids, from which both the longest full prefix and the longest common one are read off the path of the
new prompt.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar, cast

__all__ = ["EPSILON_S", "Call", "Stream", "barriers", "split_streams"]

Runs = Sequence[tuple[int, int]]

# Recorders round times; two instants closer than this are one.
EPSILON_S: Final = 1e-6
# A conversation that pauses longer than this and comes back with less than half of its prompt is another one.
SEAM_GAP_S: Final = 3600.0
SEAM_OVERLAP: Final = 0.5
# A first request whose prefix nobody shares is a preamble (a title, a quota check). With a longer answer than this it
# may be a conversation that was rewritten, which shows in blocks that come back elsewhere.
PREAMBLE_OUTPUT_TOKENS: Final = 64


@dataclass(slots=True, eq=False)
class Call:
    """One request as the splitting sees it.

    Attributes
    ----------
    order : int
        Place within its scope in the file; decides between equal starts.
    start_s, end_s : float
        Recorded seconds.
    model : str
    output_length : int
        Tokens.
    runs : sequence of (first id, count)
        Its hash ids as the fewest possible runs; ids that are equal are the same block.
    blocks : int
        How many ids that are.
    """

    order: int
    start_s: float
    end_s: float
    model: str
    output_length: int
    runs: Runs
    blocks: int

    @property
    def key(self) -> tuple[float, int]:
        """The order of calls in time."""
        return self.start_s, self.order


@dataclass(slots=True, eq=False)
class Stream:
    """One conversation: its calls in time order, and the call it forked from (None for none)."""

    calls: list[Call]
    fork: Call | None = None


def split_streams(calls: Sequence[Call]) -> list[Stream]:
    """Split the calls of one scope into streams.

    Parameters
    ----------
    calls : sequence of Call
        At least one, in any order.

    Returns
    -------
    list of Stream
        The main stream first (it has the earliest call), the others by their first call.

    Notes
    -----
    Rules of FORMATS, "Weka / AgentX", streams. Of several streams that a call could extend, the one with the longest
    last prompt takes it, then the oldest; it forks from the stream with the longest common prefix, then the longest
    prompt, then the oldest. Near-linear: calls × runs × log(calls).
    """
    ordered = sorted(calls, key=lambda call: call.key)
    preamble = _has_preamble(ordered)
    builders = _extend_and_fork(ordered[1:] if preamble else ordered)
    _splice_seams(builders)
    streams = []
    for builder in builders:
        if builder.spliced_into is None:
            builder.calls.sort(key=lambda call: call.key)
            streams.append(Stream(builder.calls, builder.fork))
    # The first builder holds the earliest call and is never spliced, for it has no fork.
    if preamble:
        streams[0].calls.insert(0, ordered[0])
    streams[1:] = sorted(streams[1:], key=lambda stream: stream.calls[0].key)
    return streams


def _has_preamble(ordered: Sequence[Call]) -> bool:
    """Tell whether the first call shares nothing with the rest, and so only rides in front of it."""
    first = ordered[0]
    rest = ordered[1:]
    if not rest or not first.runs:
        return False
    opening = first.runs[0][0]
    if any(call.runs and call.runs[0][0] == opening for call in rest):
        return False
    return first.output_length <= PREAMBLE_OUTPUT_TOKENS or not _shares_any_block(first, rest)


def _shares_any_block(first: Call, rest: Sequence[Call]) -> bool:
    starts: list[int] = []
    ends: list[int] = []
    for begin, count in sorted(first.runs):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], begin + count)
        else:
            starts.append(begin)
            ends.append(begin + count)
    for call in rest:
        for begin, count in call.runs:
            at = bisect_left(starts, begin + count) - 1
            if at >= 0 and ends[at] > begin:
                return True
    return False


@dataclass(slots=True, eq=False)
class _Builder:
    """A stream while it grows. `tail` is its last call with hashes."""

    number: int
    calls: list[Call] = field(default_factory=list)
    tail: Call | None = None
    fork: Call | None = None
    spliced_into: _Builder | None = None
    forks_at_tail: list[_Builder] = field(default_factory=list)


def _extend_and_fork(ordered: Sequence[Call]) -> list[_Builder]:
    """Assign each call to a stream, in time order."""
    builders = [_Builder(0)]
    tails = _PrefixTree[int]()
    for call in ordered:
        if not call.runs:
            builders[0].calls.append(call)
            continue
        path = tails.walk(call.runs)
        number = path.extendable(call)
        if number is None:
            nearest = next(path.nearest(), None)
            if len(builders) == 1 and builders[0].tail is None:
                number = 0
            else:
                number = len(builders)
                builders.append(_Builder(number))
                if nearest is not None:
                    parent = builders[nearest[1]]
                    builders[number].fork = parent.tail
                    parent.forks_at_tail.append(builders[number])
        builder = builders[number]
        tails.put(number, call, (-call.blocks, number), path)
        if builder.tail is not None:
            # Forks of a prompt that the stream then went on from are no seams.
            builder.forks_at_tail = []
        builder.tail = call
        builder.calls.append(call)
    return builders


def _splice_seams(builders: Sequence[_Builder]) -> None:
    """Splice forks from the finished tail of a stream back as its continuation.

    Tails are visited in time order. Each elects one of the forks that wait at it: the one with the longest common
    prefix, then the earliest. The elected stream's own tail is the stream's new tail, and forks that start after it
    wait there on, beside its own.
    """
    inherited: dict[int, _Waiting] = {}
    for builder in sorted((b for b in builders if b.tail is not None), key=_tail_key):
        tail = builder.tail
        assert tail is not None
        waiting = inherited.pop(builder.number, None)
        if waiting is None and not builder.forks_at_tail:
            continue
        waiting = _Waiting() if waiting is None else waiting
        for fork in builder.forks_at_tail:
            waiting.add(fork)
        waiting.drop_overlapping(tail)
        elected = waiting.elect(tail)
        if elected is None:
            waiting.settle(tail)
            continue
        owner = builder
        while owner.spliced_into is not None:
            owner = owner.spliced_into
        owner.calls.extend(elected.calls)
        elected.calls = []
        elected.spliced_into = owner
        assert elected.tail is not None
        waiting.drop_until(elected.tail.key, tail)
        inherited[elected.number] = waiting


def _tail_key(builder: _Builder) -> tuple[float, int]:
    assert builder.tail is not None
    return builder.tail.key


class _Waiting:
    """Forks that wait at one tail, in time order and by prefix and model."""

    __slots__ = ("_by_model", "_queue", "_there")

    def __init__(self) -> None:
        self._queue: list[tuple[tuple[float, int], int, _Builder]] = []
        self._there: set[int] = set()
        self._by_model: dict[str, _PrefixTree[_Builder]] = {}

    def add(self, fork: _Builder) -> None:
        first = fork.calls[0]
        heapq.heappush(self._queue, (first.key, fork.number, fork))
        self._there.add(fork.number)
        tree = self._by_model.setdefault(first.model, _PrefixTree())
        tree.put(fork, first, first.key, tree.walk(first.runs))

    def drop_overlapping(self, tail: Call) -> None:
        """Let go of the forks that start before `tail` ends: they run beside it, and so before all later tails."""
        while self._queue and self._queue[0][0][0] + EPSILON_S < tail.end_s:
            self._let_go(heapq.heappop(self._queue)[2], tail)

    def drop_until(self, key: tuple[float, int], tail: Call) -> None:
        """Let go of the forks that start before the call with `key`; `tail` stays what they forked from."""
        while self._queue and self._queue[0][0] < key:
            self._let_go(heapq.heappop(self._queue)[2], tail)

    def settle(self, tail: Call) -> None:
        """Say of all forks that are left that they forked from `tail`."""
        for _, number, fork in self._queue:
            if number in self._there:
                fork.fork = tail

    def elect(self, tail: Call) -> _Builder | None:
        """Take out the continuation of `tail`, if there is one."""
        tree = self._by_model.get(tail.model)
        if tree is None:
            return None
        for shared, fork in tree.walk(tail.runs).nearest():
            # The earliest of those that share this much. When even that comes too late, so do all others.
            gap_s = fork.calls[0].start_s - tail.end_s
            if gap_s <= SEAM_GAP_S or shared >= SEAM_OVERLAP * tail.blocks:
                self._there.discard(fork.number)
                tree.remove(fork)
                return fork
        return None

    def _let_go(self, fork: _Builder, tail: Call) -> None:
        if fork.number in self._there:
            self._there.discard(fork.number)
            self._by_model[fork.calls[0].model].remove(fork)
            fork.fork = tail


class _Node:
    """A node of the prefix tree: the ids from its parent to it as runs, and who ends here or below."""

    __slots__ = ("children", "depth", "ending", "heap", "items", "label", "parent")

    def __init__(self, parent: _Node | None, label: list[tuple[int, int]], depth: int) -> None:
        self.parent = parent
        self.label = label
        self.depth = depth
        self.children: dict[int, _Node] = {}
        self.items = 0
        self.ending: dict[str, _Ending] | None = None
        self.heap: _Heap = None


class _Ending:
    """The calls of one model whose prompt ends at one node: those that have ended by now, the oldest stream first."""

    __slots__ = ("ended", "running")

    def __init__(self) -> None:
        self.running: list[tuple[float, int, int]] = []
        self.ended: list[tuple[int, int]] = []


# A leftist heap: (rank, key, item, stamp, left, right). It is never changed, so a split node takes over the heap of the
# node below it in no time.
_Heap: TypeAlias = "tuple[int, tuple[float, int], object, int, _Heap, _Heap] | None"


def _merged(left: _Heap, right: _Heap) -> _Heap:
    """Return the union of two heaps; the depth of the recursion is the logarithm of their sizes."""
    if left is None:
        return right
    if right is None:
        return left
    if right[1] < left[1]:
        left, right = right, left
    _, key, item, stamp, near, far = left
    joined = _merged(far, right)
    if near is None or (joined is not None and near[0] < joined[0]):
        near, joined = joined, near
    return (1 + (joined[0] if joined is not None else 0), key, item, stamp, near, joined)


_Item = TypeVar("_Item", bound=Hashable)


class _PrefixTree(Generic[_Item]):
    """Items by the prompt of a call, for questions about common prefixes.

    An item stands at one place; putting it again moves it. What is removed stays in the heaps until it comes to the
    top, and is known there by its old stamp.
    """

    def __init__(self) -> None:
        self.root = _Node(None, [], 0)
        self._place: dict[_Item, tuple[_Node, int]] = {}
        self._stamps = 0

    def walk(self, runs: Runs) -> _Path[_Item]:
        """Follow a prompt as far as the tree knows it."""
        node = self.root
        nodes: list[_Node] = []
        at = used = 0
        while at < len(runs):
            child = node.children.get(runs[at][0] + used)
            if child is None:
                break
            matched, at, used = _match(child.label, runs, at, used)
            if node.depth + matched < child.depth:
                return _Path(self, node, nodes, child, matched, runs, at, used)
            node = child
            nodes.append(node)
        return _Path(self, node, nodes, None, 0, runs, at, used)

    def put(self, item: _Item, call: Call, key: tuple[float, int], path: _Path[_Item]) -> None:
        """Place `item` at the prompt of `call`, to which `path` was just walked; a smaller key is preferred."""
        node = path.node
        nodes = path.nodes
        if path.partial is not None:
            node = self._split(path.partial, path.matched)
            nodes = [*nodes, node]
        if path.at < len(path.runs):
            first, count = path.runs[path.at]
            label = [(first + path.used, count - path.used), *path.runs[path.at + 1 :]]
            leaf = _Node(node, label, call.blocks)
            node.children[label[0][0]] = leaf
            node = leaf
            nodes = [*nodes, node]
        self._stamps += 1
        stamp = self._stamps
        for passed in nodes:
            passed.heap = _merged(passed.heap, (1, key, item, stamp, None, None))
        node.items += 1
        if node.ending is None:
            node.ending = {}
        ending = node.ending.get(call.model)
        if ending is None:
            ending = node.ending[call.model] = _Ending()
        heapq.heappush(ending.running, (call.end_s, stamp, key[1]))
        earlier = self._place.get(item)
        self._place[item] = (node, stamp)
        if earlier is not None:
            self._leave(earlier[0])

    def remove(self, item: _Item) -> None:
        """Take `item` out."""
        self._leave(self._place.pop(item)[0])

    def stands(self, item: _Item, stamp: int) -> bool:
        """Tell whether `item` was put with this stamp and has neither moved nor left since."""
        place = self._place.get(item)
        return place is not None and place[1] == stamp

    def _split(self, node: _Node, blocks: int) -> _Node:
        """Cut the edge to `node` behind `blocks` ids; return the node at the cut."""
        parent = node.parent
        assert parent is not None
        upper: list[tuple[int, int]] = []
        left = blocks
        for place, (first, count) in enumerate(node.label):
            if count > left:
                lower = [(first + left, count - left), *node.label[place + 1 :]]
                if left:
                    upper.append((first, left))
                break
            upper.append((first, count))
            left -= count
        middle = _Node(parent, upper, parent.depth + blocks)
        parent.children[upper[0][0]] = middle
        middle.children[lower[0][0]] = node
        middle.heap = node.heap
        node.parent = middle
        node.label = lower
        return middle

    def _leave(self, node: _Node) -> None:
        """Note that an item left `node`, and prune what has no more use."""
        node.items -= 1
        while node.items == 0 and node.parent is not None:
            parent = node.parent
            if not node.children:
                del parent.children[node.label[0][0]]
                node = parent
            elif len(node.children) == 1:
                (child,) = node.children.values()
                parent.children[node.label[0][0]] = child
                child.parent = parent
                child.label = _joined(node.label, child.label)
                return
            else:
                return


class _Path(Generic[_Item]):
    """How far a tree knows a prompt.

    Attributes
    ----------
    node : _Node
        The last one that matches whole.
    nodes : list of _Node
        All of those, from the top; without the root.
    partial : _Node | None
        The child of `node` of which only the first `matched` ids match.
    at, used : int
        What is left of `runs`: from run `at` on, of which `used` ids match.
    """

    __slots__ = ("at", "matched", "node", "nodes", "partial", "runs", "tree", "used")

    def __init__(
        self,
        tree: _PrefixTree[_Item],
        node: _Node,
        nodes: list[_Node],
        partial: _Node | None,
        matched: int,
        runs: Runs,
        at: int,
        used: int,
    ) -> None:
        self.tree = tree
        self.node = node
        self.nodes = nodes
        self.partial = partial
        self.matched = matched
        self.runs = runs
        self.at = at
        self.used = used

    def nearest(self) -> Iterator[tuple[int, _Item]]:
        """Yield (ids in common, item), most first; of the items that share that much the one with the least key."""
        if self.partial is not None:
            item = self._top(self.partial)
            if item is not None:
                yield self.node.depth + self.matched, item
        for node in reversed(self.nodes):
            item = self._top(node)
            if item is not None:
                yield node.depth, item

    def _top(self, node: _Node) -> _Item | None:
        heap = node.heap
        while heap is not None and not self.tree.stands(cast("_Item", heap[2]), heap[3]):
            heap = _merged(heap[4], heap[5])
        node.heap = heap
        return None if heap is None else cast("_Item", heap[2])

    def extendable(self: _Path[int], call: Call) -> int | None:
        """Return the stream that `call` extends, or None. Asked with calls in time order only."""
        for node in reversed(self.nodes):
            ending = None if node.ending is None else node.ending.get(call.model)
            if ending is None:
                continue
            # Time does not go back from question to question: who has ended stays so.
            while ending.running and ending.running[0][0] <= call.start_s + EPSILON_S:
                _, stamp, number = heapq.heappop(ending.running)
                heapq.heappush(ending.ended, (number, stamp))
            while ending.ended:
                number, stamp = ending.ended[0]
                if self.tree.stands(number, stamp):
                    return number
                heapq.heappop(ending.ended)
        return None


def _match(label: Runs, runs: Runs, at: int, used: int) -> tuple[int, int, int]:
    """Compare an edge with what is left of a prompt; return (ids in common, at, used) behind them."""
    matched = 0
    for first, count in label:
        done = 0
        while done < count:
            if at == len(runs) or runs[at][0] + used != first + done:
                return matched, at, used
            step = min(count - done, runs[at][1] - used)
            done += step
            matched += step
            used += step
            if used == runs[at][1]:
                at += 1
                used = 0
    return matched, at, used


def _joined(upper: list[tuple[int, int]], lower: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return two edges as one, again in the fewest possible runs."""
    first, count = upper[-1]
    if first + count == lower[0][0]:
        return [*upper[:-1], (first, count + lower[0][1]), *lower[1:]]
    return upper + lower


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
