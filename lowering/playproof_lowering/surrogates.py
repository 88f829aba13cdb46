"""Escapes of half a character in JSON text.

A recorder that cuts a text by UTF-16 units may cut a character in two; what is left is an escape such as ``\\ud83d``
without its other half. JSON's grammar allows it, but it stands for no character, and strict decoders refuse the record.
"""

from __future__ import annotations

import re
from typing import Final

from playproof_spec.findings import Finding, Where, finding

__all__ = ["surrogates_replaced", "whole_characters"]

_REPLACEMENT: Final = rb"\ufffd"
# Escapes are taken one after the other, so that an escaped backslash in front of a "ud83d" is none of ours.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def whole_characters(record: bytes) -> tuple[bytes, int]:
    """Return a record in which U+FFFD stands for each half of a character, and how many there were.

    The text keeps its length, so that offsets into it stay right. Linear, and next to nothing for records without such
    an escape.

    Examples
    --------
    >>> whole_characters(rb'{"a": "\\ud83d\\ude00 \\ud83d"}')
    (b'{"a": "\\\\ud83d\\\\ude00 \\\\ufffd"}', 1)
    """
    if b"\\ud" not in record and b"\\uD" not in record:
        return record, 0
    count = 0

    def replaced(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match.group(1) is None:
            return match.group()
        count += 1
        return _REPLACEMENT

    return _ESCAPE.sub(replaced, record), count


def surrogates_replaced(file: str, line: int, count: int) -> Finding:
    """Return the finding that `count` escapes of a file, one at `line` first, are halves of characters."""
    message = f"{count} escapes of half a character stand for U+FFFD"
    return finding("surrogate-lone", message, where=Where(file=file, line=line), found=count)
