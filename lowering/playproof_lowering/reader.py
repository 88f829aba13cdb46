"""What a format is: a name, the marks by which it is told, the function that reads it, and what that function needs.

A format is one module, which holds a :class:`Reader` under the name ``READER``, and one line in `formats.py`. From
those follow detection, the options handed over, the command line's list of formats, and the findings of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec
from playproof_spec.catalogue import Kind
from playproof_spec.graph import Graph

__all__ = ["HEAD_BYTES", "Confidence", "Head", "Reader", "head_of"]

HEAD_BYTES: Final = 4096
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^"{}\[\]]+')


class Confidence(IntEnum):
    """How sure a format is of a record. Of several formats that know one, the surest reads it."""

    NONE = 0
    # Fields that this format has, and others might.
    ALIKE = 1
    # A set of fields that only this format has.
    SHAPED = 2
    # The record names its format.
    SIGNED = 3


@dataclass(frozen=True, slots=True)
class Head:
    """What shows of a file's first record.

    Attributes
    ----------
    texts : Mapping[str, str]
        The names at the top of the record, as far as the first 4 KiB show them, each with its value where that is a
        string and else with an empty one.
    """

    texts: Mapping[str, str]

    def has(self, *names: str) -> bool:
        """Tell whether the record has all of these names."""
        return all(name in self.texts for name in names)

    def has_any(self, *names: str) -> bool:
        """Tell whether the record has one of these names."""
        return any(name in self.texts for name in names)

    def text(self, name: str) -> str:
        """Return the string under a name, an empty one where there is none."""
        return self.texts.get(name, "")


@dataclass(frozen=True, slots=True)
class Reader:
    """One format.

    Attributes
    ----------
    name : str
        What ``--format`` takes, and what a graph says it was read from.
    title : str
        What it is, in a few words, for lists.
    marks : callable
        Head to Confidence: how sure the format is that a record is its own.
    read : callable
        ``read(files, findings, facts, *, on_bytes, **options)`` to a graph, or None when nothing could be read.
        Findings receive what is wrong, facts what was read and decided.
    options : tuple of str
        Those of :class:`~playproof_lowering.load.LoweringOptions` that mean something to it, handed over by name.
    kinds : tuple of Kind
        Findings of its own; they enter the catalogue under the format's title.
    knows_path : callable, optional
        Relative path to bool: a file of that name stands beside the format's own, whatever is in it.
    reads_empty : bool
        Its recorder leaves empty files behind; the reader tells of them.
    """

    name: str
    title: str
    marks: Callable[[Head], Confidence]
    read: Callable[..., Graph | None]
    options: tuple[str, ...] = ("block_size",)
    kinds: tuple[Kind, ...] = field(default=())
    knows_path: Callable[[str], bool] | None = None
    reads_empty: bool = False


def head_of(start: bytes) -> Head:
    """Return what shows of the first record of a file that begins with `start`.

    Examples
    --------
    >>> dict(head_of(b'{"schema": "x", "n": 1, "rows": [{"deep": 2}]}').texts)
    {'schema': 'x', 'n': '', 'rows': ''}
    """
    keys: dict[str, str] = {}
    depth = 0
    last = ""
    key = ""
    for match in _TOKEN.finditer(start):
        token = match.group()
        if token[:1] == b'"':
            if depth == 1:
                last = _decoded(token)
                if key:
                    keys[key] = last
        elif token in (b"{", b"["):
            depth += 1
            if depth == 1 and token == b"[":
                return Head({})
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return Head(keys)
        elif depth == 1:
            key = ""
            if token.lstrip().startswith(b":"):
                keys.setdefault(last, "")
                # Behind a bare colon the value is a string or a container; anything else stands in this token.
                key = last if token.strip() == b":" else ""
        elif depth == 0 and token.strip():
            return Head({})
    return Head(keys)


def _decoded(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
