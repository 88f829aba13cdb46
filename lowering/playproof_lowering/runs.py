"""Lists of hash ids as runs of consecutive ids: the compiled parser, and renumbering.

A public corpus holds 94 million ids; as runs they are some 100,000 pairs. The functions here go from the bytes of a
JSON list straight to runs, so that no id ever becomes a Python object.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from playproof_native import allocating_entry
from playproof_spec.graph import Int64, UInt64

__all__ = ["BAD_ID", "NOT_A_LIST", "OK", "TOO_LARGE", "RunBuffer", "append_private", "joined", "renumber"]

Bytes = npt.NDArray[np.uint8]

OK: Final = 0
BAD_ID: Final = 1
TOO_LARGE: Final = 2
NOT_A_LIST: Final = 3
_FULL: Final = 4


@allocating_entry
def _parse(text: Bytes, begin: int, end: int, first: UInt64, count: Int64, at: int) -> tuple[int, int, int]:
    """Parse a JSON list of unsigned integers into runs behind entry `at`. Writes `first` and `count`.

    Returns (status, entries used, ids in the list). Only ids `begin` … `end` - 1 become runs; all are counted. On a bad
    id the third value is its place. The list is valid JSON already, so that a byte tells what the element is.
    """
    size = len(text)
    capacity = len(first)
    opening = at
    place = 0
    while place < size and (text[place] == 32 or (9 <= text[place] <= 13)):
        place += 1
    if place == size or text[place] != 91:
        return 3, at, 0
    place += 1
    ids = 0
    value = np.uint64(0)
    digits = 0
    expected = np.uint64(0)
    while place < size:
        byte = text[place]
        place += 1
        if 48 <= byte <= 57:
            digit = np.uint64(byte - 48)
            if digits >= 19:
                if digits > 19 or value > np.uint64(1844674407370955161):
                    return 2, at, ids
                if value == np.uint64(1844674407370955161) and digit > np.uint64(5):
                    return 2, at, ids
            value = value * np.uint64(10) + digit
            digits += 1
        elif byte == 44 or byte == 93:
            if digits > 0:
                if begin <= ids < end:
                    # A run never passes the greatest id: the one after it would be 0.
                    if at > opening and value == expected and value != np.uint64(0):
                        count[at - 1] += 1
                    else:
                        if at == capacity:
                            return 4, at, ids
                        first[at] = value
                        count[at] = 1
                        at += 1
                    expected = value + np.uint64(1)
                ids += 1
                value = np.uint64(0)
                digits = 0
        elif byte == 32 or (9 <= byte <= 13):
            pass
        else:
            return 1, at, ids
    return 0, at, ids


class RunBuffer:
    """Growing arrays that collect the runs of one list after the other.

    Attributes
    ----------
    first : UInt64; count : Int64
        The runs so far are the leading `used` entries.
    used : int
    """

    __slots__ = ("count", "first", "used")

    def __init__(self, capacity: int = 1024) -> None:
        self.first: UInt64 = np.empty(capacity, dtype=np.uint64)
        self.count: Int64 = np.empty(capacity, dtype=np.int64)
        self.used = 0

    def parse(self, text: bytes | msgspec.Raw, begin: int = 0, end: int = 2**62) -> tuple[int, int]:
        """Append the runs of a JSON list.

        Parameters
        ----------
        text : bytes-like
            Valid JSON.
        begin, end : int
            Only ids at these places, the end left out, are kept; all are counted.

        Returns
        -------
        status : int
            OK, BAD_ID (an element that is no unsigned integer), TOO_LARGE (2**64 or more) or NOT_A_LIST; but for OK,
            nothing was appended.
        ids : int
            Ids in the list; the place of the bad one otherwise.
        """
        view = np.frombuffer(text, dtype=np.uint8)
        while True:
            status, used, ids = _parse(view, begin, end, self.first, self.count, self.used)
            if status != _FULL:
                break
            self.reserve(2 * len(self.first))
        if status == OK:
            self.used = used
        return status, ids

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` runs in all."""
        if capacity > len(self.first):
            self.first = np.concatenate([self.first, np.empty(capacity - len(self.first), dtype=np.uint64)])
            self.count = np.concatenate([self.count, np.empty(capacity - len(self.count), dtype=np.int64)])

    def clear(self) -> None:
        """Forget all runs, keep the room."""
        self.used = 0

    def runs(self) -> tuple[UInt64, Int64]:
        """Return copies of (first, count)."""
        return self.first[: self.used].copy(), self.count[: self.used].copy()


@allocating_entry
def _renumber(
    offsets: Int64,
    first: UInt64,
    count: Int64,
    bounds: UInt64,
    begins: Int64,
    dense: Int64,
    out_offsets: Int64,
    out_first: UInt64,
    out_count: Int64,
) -> tuple[int, int]:
    """Renumber runs; `bounds` cuts the ids into intervals that no run divides. Writes `dense` and the three outputs.

    `begins[r]` is the interval where run r starts; `dense[i]` the new number of interval i's first id, -1 before it is
    met. Returns (runs written, ids numbered), or (-1, ids numbered) when the output is too small.
    """
    fresh = 0
    at = 0
    for lst in range(len(offsets) - 1):
        out_offsets[lst] = at
        opening = at
        for run in range(offsets[lst], offsets[lst + 1]):
            left = count[run]
            interval = begins[run]
            while left > 0:
                # The last interval ends at 2**64, which wraps to 0 and gives the right width.
                after = bounds[interval + 1] if interval + 1 < len(bounds) else np.uint64(0)
                width = min(np.int64(after - bounds[interval]), left)
                if dense[interval] < 0:
                    dense[interval] = fresh
                    fresh += width
                start = np.uint64(dense[interval])
                if at > opening and out_first[at - 1] + np.uint64(out_count[at - 1]) == start:
                    out_count[at - 1] += width
                else:
                    if at == len(out_first):
                        return -1, fresh
                    out_first[at] = start
                    out_count[at] = width
                    at += 1
                left -= width
                interval += 1
    out_offsets[len(offsets) - 1] = at
    return at, fresh


def renumber(offsets: Int64, first: UInt64, count: Int64) -> tuple[Int64, UInt64, Int64, int]:
    """Give the distinct ids of some lists dense numbers 0, 1, … in the order of their first appearance.

    Parameters
    ----------
    offsets : Int64, shape (lists + 1,); first : UInt64; count : Int64, shape (runs,)
        List k has the runs ``offsets[k]:offsets[k + 1]``. A run never passes 2**64 - 1.

    Returns
    -------
    offsets, first, count
        The same lists, renumbered, again as runs (fewest possible).
    distinct : int
        How many numbers were given.

    Notes
    -----
    The ends of all runs cut the ids into intervals; an interval is met whole or not at all. Work: runs × log(runs)
    plus the intervals that each run spans, which are never more than its ids.
    """
    ends = first + count.astype(np.uint64)
    bounds = np.unique(np.concatenate([first, ends]))
    begins = np.searchsorted(bounds, first).astype(np.int64)
    dense = np.full(len(bounds), -1, dtype=np.int64)
    out_offsets = np.empty_like(offsets)
    capacity = 2 * len(first) + 16
    while True:
        out_first = np.empty(capacity, dtype=np.uint64)
        out_count = np.empty(capacity, dtype=np.int64)
        written, distinct = _renumber(offsets, first, count, bounds, begins, dense, out_offsets, out_first, out_count)
        if written >= 0:
            return out_offsets, out_first[:written].copy(), out_count[:written].copy(), distinct
        dense.fill(-1)
        capacity *= 2


@allocating_entry
def _append_private(
    offsets: Int64,
    first: UInt64,
    count: Int64,
    private: Int64,
    fresh: np.uint64,
    out_offsets: Int64,
    out_first: UInt64,
    out_count: Int64,
) -> int:
    """Copy lists of runs, each with `private[k]` fresh ids behind it. Writes the three outputs; returns the runs."""
    at = 0
    for lst in range(len(offsets) - 1):
        out_offsets[lst] = at
        for run in range(offsets[lst], offsets[lst + 1]):
            out_first[at] = first[run]
            out_count[at] = count[run]
            at += 1
        if private[lst] > 0:
            if at > out_offsets[lst] and out_first[at - 1] + np.uint64(out_count[at - 1]) == fresh:
                out_count[at - 1] += private[lst]
            else:
                out_first[at] = fresh
                out_count[at] = private[lst]
                at += 1
            fresh += np.uint64(private[lst])
    out_offsets[len(offsets) - 1] = at
    return at


def append_private(
    offsets: Int64, first: UInt64, count: Int64, private: Int64, fresh: int
) -> tuple[Int64, UInt64, Int64]:
    """Give each list some ids of its own behind those it has.

    Parameters
    ----------
    offsets, first, count
        As in :func:`renumber`.
    private : Int64, shape (lists,)
        How many ids list k gets.
    fresh : int
        The first of them; they count up from list to list.

    Returns
    -------
    offsets, first, count
        The longer lists, again as the fewest possible runs.
    """
    out_offsets = np.empty_like(offsets)
    out_first = np.empty(len(first) + len(private), dtype=np.uint64)
    out_count = np.empty(len(first) + len(private), dtype=np.int64)
    runs = _append_private(offsets, first, count, private, np.uint64(fresh), out_offsets, out_first, out_count)
    return out_offsets, out_first[:runs].copy(), out_count[:runs].copy()


@allocating_entry
def _joined(
    lists: int, offsets: Int64, first: UInt64, count: Int64, out_offsets: Int64, out_first: UInt64, out_count: Int64
) -> int:
    """Put list `lists` + k behind list k. Writes the three outputs; returns the runs."""
    at = 0
    for lst in range(lists):
        out_offsets[lst] = at
        for part in (lst, lists + lst):
            for run in range(offsets[part], offsets[part + 1]):
                if at > out_offsets[lst] and out_first[at - 1] + np.uint64(out_count[at - 1]) == first[run]:
                    out_count[at - 1] += count[run]
                else:
                    out_first[at] = first[run]
                    out_count[at] = count[run]
                    at += 1
    out_offsets[lists] = at
    return at


def joined(lists: int, offsets: Int64, first: UInt64, count: Int64) -> tuple[Int64, UInt64, Int64]:
    """Return the first `lists` of twice as many lists, each with its counterpart of the second half behind it.

    Parameters
    ----------
    offsets : Int64, shape (2 · lists + 1,); first : UInt64; count : Int64, shape (runs,)
        As in :func:`renumber`.
    """
    out_offsets = np.empty(lists + 1, dtype=np.int64)
    out_first = np.empty_like(first)
    out_count = np.empty_like(count)
    runs = _joined(lists, offsets, first, count, out_offsets, out_first, out_count)
    return out_offsets, out_first[:runs].copy(), out_count[:runs].copy()
