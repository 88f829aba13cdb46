"""Dense numbers for content hashes, given as they are met.

Hashes of content are spread over 64 bits; numbered by first appearance they become runs, since a prompt that extends
another one meets its new blocks in a row. The table is an open-addressing one in two arrays, which compiled code fills.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
from playproof_native import allocating, allocating_entry
from playproof_spec.graph import Int64, UInt64

from playproof_lowering.chains import BlockIds, Runs
from playproof_lowering.runs import RunBuffer

__all__ = ["Numbering"]

_INITIAL_CAPACITY: Final = 1024


@allocating
def _place(keys: UInt64, numbers: Int64, seed: np.uint64, key: np.uint64) -> int:
    """Return the entry of `key`, or the empty one where it belongs. The length of the table is a power of two."""
    mask = np.uint64(len(keys) - 1)
    mixed = key ^ seed
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    at = mixed & mask
    while numbers[at] >= 0 and keys[at] != key:
        at = (at + np.uint64(1)) & mask
    return int(at)


@allocating_entry
def _refill(keys: UInt64, numbers: Int64, seed: np.uint64, new_keys: UInt64, new_numbers: Int64) -> None:
    """Move a table into a larger one. Writes `new_keys` and `new_numbers`."""
    for entry in range(len(keys)):
        if numbers[entry] >= 0:
            at = _place(new_keys, new_numbers, seed, keys[entry])
            new_keys[at] = keys[entry]
            new_numbers[at] = numbers[entry]


@allocating_entry
def _number(
    keys: UInt64,
    numbers: Int64,
    seed: np.uint64,
    fresh: int,
    first: UInt64,
    count: Int64,
    out_first: Int64,
    out_count: Int64,
) -> tuple[int, int]:
    """Number the ids of some runs. Writes the table and the two outputs; returns (runs, the next free number)."""
    at = 0
    for run in range(len(first)):
        for step in range(count[run]):
            key = first[run] + np.uint64(step)
            entry = _place(keys, numbers, seed, key)
            if numbers[entry] < 0:
                keys[entry] = key
                numbers[entry] = fresh
                fresh += 1
            number = numbers[entry]
            if at > 0 and out_first[at - 1] + out_count[at - 1] == number:
                out_count[at - 1] += 1
            else:
                out_first[at] = number
                out_count[at] = 1
                at += 1
    return at, fresh


class Numbering:
    """Numbers 64-bit ids by first appearance.

    Parameters
    ----------
    ids : BlockIds
        Where the numbers come from.
    """

    __slots__ = ("_ids", "_keys", "_known", "_numbers", "_seed")

    def __init__(self, ids: BlockIds) -> None:
        self._ids = ids
        # Where an id lies in the table is nobody's business: the numbers do not depend on it, and a file made to put
        # all of its ids into one place cannot know.
        self._seed = np.uint64(int.from_bytes(os.urandom(8), "little"))
        self.forget()

    def forget(self) -> None:
        """Let the same ids mean something else from now on."""
        self._known = 0
        self._keys: UInt64 = np.zeros(_INITIAL_CAPACITY, dtype=np.uint64)
        self._numbers: Int64 = np.full(_INITIAL_CAPACITY, -1, dtype=np.int64)

    def runs(self, buffer: RunBuffer) -> Runs:
        """Return the ids that `buffer` holds, numbered, as the fewest possible runs."""
        first, count = buffer.first[: buffer.used], buffer.count[: buffer.used]
        ids = int(count.sum())
        while 2 * (self._known + ids) > len(self._keys):
            keys, numbers = self._keys, self._numbers
            self._keys = np.zeros(2 * len(keys), dtype=np.uint64)
            self._numbers = np.full(2 * len(keys), -1, dtype=np.int64)
            _refill(keys, numbers, self._seed, self._keys, self._numbers)
        out_first = np.empty(ids, dtype=np.int64)
        out_count = np.empty(ids, dtype=np.int64)
        fresh = self._ids.used
        written, self._ids.used = _number(
            self._keys, self._numbers, self._seed, fresh, first, count, out_first, out_count
        )
        self._known += self._ids.used - fresh
        return list(zip(out_first[:written].tolist(), out_count[:written].tolist(), strict=True))
