"""Block keys of prompts that arrive one by one: equal token chains in one namespace share a key, and nothing else does.

`compiled` interns the prompts of a corpus, which it knows beforehand, as runs of hash ids. A live worker is given token
ids, of any kind and without end. Here too a trie gives every distinct chain of blocks a number, neighbours on a chain
neighbouring numbers; its segments are stretches of tokens, compared as a whole, so that the work grows with forks.

What no prompt can meet any more is forgotten (`forget`): else a server's memory would grow with all it ever saw.
`tests/properties/test_chains.py` runs this beside a naive one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Uint32 = npt.NDArray[np.uint32]

# Tokens kept before the first look at what can be forgotten (16 MB); later looks come when they have doubled.
TOKENS_BEFORE_FORGETTING = 1 << 22


@dataclass(slots=True, eq=False)
class _Segment:
    """A stretch of blocks that hang together: block i of it has key ``base + i``.

    `children` are the segments that begin below it: by how many of its blocks come before, and their first block.
    """

    tokens: Uint32
    base: int
    blocks: int
    parent: _Segment | None
    branch: tuple[int, bytes]
    children: dict[tuple[int, bytes], _Segment] = field(default_factory=dict)


class Chains:
    """The trie of one worker.

    Parameters
    ----------
    block_size : int
        Tokens of an engine block.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens = 0
        self._roots: dict[str, _Segment] = {}
        self._segments: list[_Segment] = []  # by base
        self._next_key = 0
        self._forget_at = TOKENS_BEFORE_FORGETTING

    @property
    def segments(self) -> int:
        """How many segments are kept."""
        return len(self._segments)

    @property
    def crowded(self) -> bool:
        """Whether it is time to forget what can be forgotten."""
        return self.tokens >= self._forget_at

    def intern(self, tokens: Uint32, namespace: str = "") -> list[tuple[int, int]]:
        """Return the keys of the full blocks of a prompt, as runs of (first key, blocks).

        Parameters
        ----------
        tokens : Uint32
        namespace : str
            Prompts of different namespaces share nothing.
        """
        size = self.block_size
        blocks = len(tokens) // size
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Segment(tokens[:0], 0, 0, None, (0, b""))
        runs: list[tuple[int, int]] = []
        at, depth, done = root, 0, 0
        while done < blocks:
            branch = (depth, tokens[done * size : (done + 1) * size].tobytes())
            child = at.children.get(branch)
            if child is None:
                child = self._grow(at, branch, tokens[done * size : blocks * size])
            depth = _common(child, tokens[done * size :], size)
            at = child
            runs.append((child.base, depth))
            done += depth
        return runs

    def _grow(self, parent: _Segment, branch: tuple[int, bytes], tokens: Uint32) -> _Segment:
        blocks = len(tokens) // self.block_size
        new = _Segment(tokens.copy(), self._next_key, blocks, parent, branch)
        self._next_key += blocks
        self.tokens += len(tokens)
        parent.children[branch] = new
        self._segments.append(new)
        return new

    def forget(self, first: Int64, count: Int64) -> None:
        """Keep only what leads to these keys: runs of `count` keys from `first` on, in any order."""
        bases = np.array([segment.base for segment in self._segments], np.int64)
        keep = np.zeros(len(bases), np.int64)
        wanted = count > 0
        first, last = first[wanted], (first + count)[wanted]
        if len(bases):
            # A run lies within one segment, since it was handed out from one.
            place = np.searchsorted(bases, first, side="right") - 1
            np.maximum.at(keep, place, last - bases[place])
        numbers = {id(segment): number for number, segment in enumerate(self._segments)}
        kept: list[_Segment] = []
        # A child has a greater base than its parent.
        for number in range(len(self._segments) - 1, -1, -1):
            segment, blocks = self._segments[number], int(keep[number])
            parent = segment.parent
            assert parent is not None
            if blocks == 0:
                del parent.children[segment.branch]
                continue
            if parent.parent is not None:
                above = numbers[id(parent)]
                keep[above] = max(keep[above], segment.branch[0])
            if blocks < segment.blocks:
                segment.tokens = segment.tokens[: blocks * self.block_size].copy()
                segment.blocks = blocks
            kept.append(segment)
        self._segments = kept[::-1]
        self._roots = {namespace: root for namespace, root in self._roots.items() if root.children}
        self.tokens = sum(len(segment.tokens) for segment in self._segments)
        self._forget_at = max(TOKENS_BEFORE_FORGETTING, 2 * self.tokens)


def _common(segment: _Segment, tokens: Uint32, size: int) -> int:
    """Return how many leading blocks `segment` and `tokens` have in common."""
    length = min(segment.blocks, len(tokens) // size) * size
    same = segment.tokens[:length] == tokens[:length]
    return (length if same.all() else int(same.argmin())) // size
