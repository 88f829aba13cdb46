"""Prefixes of prompts whose text is not kept: block ids from lengths, and from what a cache was seen to hold.

Session recordings count tokens and tell how many of them came from a cache; they hold no block hashes, and we keep no
text. Within one conversation that is enough: a prompt that grew starts with the one before it, and one that shrank
keeps what the cache still found.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Int64

from playproof_lowering.builder import GraphBuilder
from playproof_lowering.runs import append_private

__all__ = ["MAX_BLOCKS", "BlockIds", "PrefixChain", "PromptBlocks", "Runs", "tell_cut", "too_many_blocks"]

Runs = list[tuple[int, int]]
"""Hash ids as (first, count)."""

# Ids that a corpus may ask for; a file of a few kilobytes could otherwise declare terabytes of canonical form. Five
# hundred times those of a year of sessions.
MAX_BLOCKS: Final = 2**28
# A conversation that goes back and forth has a run for each time; beyond this its prefix starts anew, so that a
# recording made to hurt stays linear.
MAX_RUNS: Final = 256


class BlockIds:
    """Hands out ids that nobody has yet, in order."""

    __slots__ = ("cut", "used")

    def __init__(self) -> None:
        self.used = 0
        # Prompts that had to forget the one before them.
        self.cut = 0

    def take(self, count: int) -> int:
        """Return the first of `count` new consecutive ids."""
        first = self.used
        self.used += count
        return first


def too_many_blocks(declared: int, where: Where, findings: Findings) -> bool:
    """Refuse a corpus that declares more blocks than any real one; tell whether it does."""
    if declared <= MAX_BLOCKS:
        return False
    message = f"the corpus declares {declared} blocks"
    wanted = f"at most {MAX_BLOCKS} blocks in a corpus"
    findings.add(finding("length-out-of-bounds", message, where=where, found=declared, wanted=wanted))
    return True


def tell_cut(ids: BlockIds, where: Where, findings: Findings) -> None:
    """Tell of prompts that had to forget the one before them."""
    if ids.cut:
        message = f"{ids.cut} prompts begin anew: before each, its conversation had gone back {MAX_RUNS} times"
        findings.add(finding("prefix-cut", message, where=where, found=ids.cut, wanted=f"at most {MAX_RUNS} times"))


class PrefixChain:
    """The full blocks of the latest prompt of one conversation.

    Parameters
    ----------
    ids : BlockIds
        Of the corpus: no two conversations share an id.
    block_size : int
        Tokens.

    Examples
    --------
    >>> chain = PrefixChain(BlockIds(), 16)
    >>> chain.extend(40, 0), chain.extend(70, 0)  # grown: all full blocks of the first prompt stay
    ([(0, 2)], [(0, 4)])
    >>> chain.extend(50, 20)  # shrunk: one full block was in the cache
    [(0, 1), (4, 2)]
    >>> chain.reset()
    >>> chain.extend(50, 20)
    [(6, 3)]
    """

    __slots__ = ("_block_size", "_ids", "_length", "_runs")

    def __init__(self, ids: BlockIds, block_size: int) -> None:
        self._ids = ids
        self._block_size = block_size
        self._runs: Runs = []
        self._length = 0

    def reset(self) -> None:
        """Forget the prefix: what follows starts from another prompt."""
        self._runs = []
        self._length = 0

    def resume(self, runs: Runs, input_length: int) -> None:
        """Go on from a prompt of another conversation, whose blocks `runs` are."""
        self._runs = list(runs)
        self._length = input_length

    def extend(self, input_length: int, cached: int) -> Runs:
        """Return the runs of the full blocks of the next prompt.

        Parameters
        ----------
        input_length : int
            Tokens of the prompt.
        cached : int
            Tokens that the recorded cache found; they count where the prompt is shorter than the one before it.
        """
        full = input_length // self._block_size
        kept_tokens = self._length if input_length >= self._length else min(cached, input_length)
        kept = min(kept_tokens // self._block_size, self._length // self._block_size, full)
        if len(self._runs) >= MAX_RUNS and kept:
            self._ids.cut += 1
            kept = 0
        runs = _leading(self._runs, kept)
        if full > kept:
            fresh = self._ids.take(full - kept)
            if runs and runs[-1][0] + runs[-1][1] == fresh:
                runs[-1] = (runs[-1][0], runs[-1][1] + full - kept)
            else:
                runs.append((fresh, full - kept))
        self._runs = runs
        self._length = input_length
        return list(runs)


def _leading(runs: Runs, blocks: int) -> Runs:
    """Return the runs of the first `blocks` ids."""
    leading: Runs = []
    for first, count in runs:
        if blocks <= 0:
            break
        leading.append((first, min(count, blocks)))
        blocks -= count
    return leading


class PromptBlocks:
    """Collects the hash ids of all nodes of a corpus, in document order, and hands them to the builder at once.

    Partial blocks and others that nothing shares are counted and get ids above all shared ones, so that prompts that
    grow stay one run.
    """

    __slots__ = ("_count", "_first", "_offsets", "_private")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._count: list[int] = []
        self._offsets = [0]
        self._private: list[int] = []

    def add(self, runs: Runs, private: int) -> None:
        """Add the ids of the next node: `runs`, then `private` ids of its own."""
        for first, count in runs:
            self._first.append(first)
            self._count.append(count)
        self._offsets.append(len(self._first))
        self._private.append(private)

    def assign(self, builder: GraphBuilder, shared: int) -> None:
        """Give the builder's nodes their ids; those of the runs are below `shared`."""
        offsets: Int64 = np.array(self._offsets, dtype=np.int64)
        first = np.array(self._first, dtype=np.uint64)
        count: Int64 = np.array(self._count, dtype=np.int64)
        private: Int64 = np.array(self._private, dtype=np.int64)
        builder.assign_runs(0, *append_private(offsets, first, count, private, shared))
