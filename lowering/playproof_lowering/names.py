"""Names that stand twice in one object of a record.

JSON leaves open which of two equal names counts, and decoders take one of them without a word. The compiled scan here
looks for them in a record that has been decoded: a nanosecond a byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from playproof_native import allocating_entry
from playproof_spec.findings import shown
from playproof_spec.graph import Int64

from playproof_lowering.wire import Problem, joined, path_at

__all__ = ["repeated_name"]

Bytes = npt.NDArray[np.uint8]

# No format has a tenth of these. Beyond them stand unknown fields, which have no effect and are told of anyway.
MAX_NAMES: Final = 256
MAX_OPEN_NAMES: Final = 4096
MAX_DEPTH: Final = 1024


@allocating_entry
def _scan(text: Bytes, begins: Int64, ends: Int64, opened: Int64) -> tuple[int, int]:
    """Return (begin, end) of the first name that equals an earlier one of its object, or (-1, -1).

    Writes `begins`, `ends` (Int64, names of the open objects) and `opened` (Int64, how many of them there were when an
    object or a list was opened). Names are compared as written.
    """
    size = len(text)
    depth, used, place = 0, 0, 0
    while place < size:
        byte = text[place]
        place += 1
        if 44 <= byte <= 58:
            continue
        if byte == 123 or byte == 91:
            if depth == len(opened):
                return -1, -1
            opened[depth] = used
            depth += 1
        elif byte == 125 or byte == 93:
            if depth > 0:
                depth -= 1
                used = opened[depth]
        elif byte == 34:
            begin = place
            while place < size and text[place] != 34:
                place += 2 if text[place] == 92 else 1
            end = place
            place += 1
            while place < size and (text[place] == 32 or 9 <= text[place] <= 13):
                place += 1
            if place >= size or text[place] != 58 or depth == 0:
                continue
            first = opened[depth - 1]
            for other in range(first, used):
                if ends[other] - begins[other] == end - begin:
                    same = 0
                    while same < end - begin and text[begins[other] + same] == text[begin + same]:
                        same += 1
                    if same == end - begin:
                        return begin, end
            if used < len(begins) and used - first < MAX_NAMES:
                begins[used] = begin
                ends[used] = end
                used += 1
    return -1, -1


def repeated_name(record: bytes) -> Problem | None:
    """Return what is wrong with a record in which an object has one name twice.

    Parameters
    ----------
    record : bytes
        Valid JSON.

    Examples
    --------
    >>> repeated_name(b'{"a": [{"t": 1}, {"t": 1, "t": 2}]}').path
    'a[1].t'
    >>> repeated_name(b'{"t": "t", "a": {"t": 1}}') is None
    True

    Notes
    -----
    Linear in the record. The first one is told.
    """
    names = np.empty((2, MAX_OPEN_NAMES), dtype=np.int64)
    opened = np.empty(MAX_DEPTH, dtype=np.int64)
    begin, end = _scan(np.frombuffer(record, dtype=np.uint8), names[0], names[1], opened)
    if begin < 0:
        return None
    name = record[begin:end].decode("utf-8", "backslashreplace")
    path = joined(path_at(record, begin - 1), name)
    return Problem("field-repeated", path, f"`{name}` stands twice in one object", shown(name), "one of the two")
