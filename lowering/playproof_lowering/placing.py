"""Lines and columns of what findings are about, in files that are one record: from the JSON path back to the bytes.

Readers know where in a record something is wrong, and of a record of many lines that is a path and no line. When the
reading is over, the few places that findings name are looked up in the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from playproof_spec.findings import Finding, Findings

from playproof_lowering.source import Reading, SourceError, SourceFile
from playproof_lowering.wire import DecodeErrors

__all__ = ["Document", "placed"]

# A file is held in memory whole for it; findings of larger ones keep their path.
MAX_BYTES: Final = 2**26
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^"{}\[\],:\s]+')
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_BYTE = re.compile(r"\(byte (\d+)\)")
_SYNTAX: Final = frozenset({"json-malformed", "json-trailing", "json-too-deep", "encoding-not-utf8", "json-not-object"})


def placed(findings: Findings, sources: Sequence[SourceFile]) -> Findings:
    """Return the findings, with line and column where they are about a value of a file that is one record.

    Parameters
    ----------
    findings : Findings
    sources : sequence of SourceFile
        The files that were read.
    """
    whole = {file.shown: file for file in sources if not file.lines}
    documents: dict[str, Document | None] = {}

    def change(item: Finding) -> Finding:
        where = item.where
        if where.line or where.file not in whole or not (where.field or item.code in _SYNTAX):
            return item
        if where.file not in documents:
            documents[where.file] = _document(whole[where.file])
        document = documents[where.file]
        if document is None:
            return item
        at = document.broken if item.code in _SYNTAX and document.broken >= 0 else document.offset(where.field)
        line, column = document.line_and_column(at)
        return msgspec.structs.replace(item, where=msgspec.structs.replace(where, line=line, column=column))

    return findings.mapped(change) if whole else findings


def _document(file: SourceFile) -> Document | None:
    """Return a file's content, None where it cannot be had a second time."""
    if file.size > MAX_BYTES:
        return None
    try:
        data = b""
        for chunk in Reading(file).chunks():
            data += chunk
            if len(data) > MAX_BYTES:
                return None
    except SourceError:
        return None
    return Document(data)


class Document:
    """A JSON text in which paths are looked up.

    Parameters
    ----------
    data : bytes
        Sound JSON or not.

    Attributes
    ----------
    broken : int
        The byte at which it stops being JSON, -1 where it is sound.

    Examples
    --------
    >>> document = Document(b'{"a": [1,\\n  {"b.c": 2}]}')
    >>> document.line_and_column(document.offset("a[1].b.c"))
    (2, 11)
    """

    __slots__ = ("_data", "_members", "broken")

    def __init__(self, data: bytes) -> None:
        self._data = data
        # Of each object or list that a path led through: its values by name, or by place.
        self._members: dict[int, dict[str | int, int]] = {}
        self.broken = self._broken()

    def _broken(self) -> int:
        try:
            msgspec.json.decode(self._data, type=msgspec.Raw)
            self._data.decode()
        except UnicodeDecodeError as error:
            return error.start
        except DecodeErrors as error:
            match = _BYTE.search(str(error))
            return min(int(match.group(1)), len(self._data)) if match else len(self._data)
        return -1

    def offset(self, path: str) -> int:
        """Return the byte at which the value at a path begins, or the innermost one around it that there is."""
        at = self._begin(0)
        rest = path
        while rest:
            step = self._step(at, rest)
            if step is None:
                break
            at, rest = step
        return at

    def _step(self, at: int, rest: str) -> tuple[int, str] | None:
        """Return where the next part of a path leads, and what is left of it."""
        members = self._of(at)
        if rest.startswith("["):
            number, _, behind = rest[1:].partition("]")
            found = members.get(int(number)) if number.isascii() and number.isdecimal() and len(number) < 10 else None
            return None if found is None else (found, behind.removeprefix("."))
        # Names may have dots and brackets in them: the longest that fits is meant.
        names = [name for name in members if isinstance(name, str) and _leads(name, rest)]
        if not names:
            return None
        name = max(names, key=len)
        return members[name], rest[len(name) :].removeprefix(".")

    def _of(self, at: int) -> dict[str | int, int]:
        """Return the values of the object or list at `at`: where each begins."""
        if at not in self._members:
            self._members[at] = self._scan(at)
        return self._members[at]

    def _scan(self, at: int) -> dict[str | int, int]:
        opening = self._data[at : at + 1]
        found: dict[str | int, int] = {}
        if opening not in (b"{", b"["):
            return found
        name: str | int | None = 0 if opening == b"[" else None
        last = b""
        place = at + 1
        while (match := _TOKEN.search(self._data, place)) is not None:
            token, place = match.group(), match.end()
            if token in (b"}", b"]"):
                break
            if token == b",":
                name = len(found) if opening == b"[" else None
            elif token == b":":
                name = _text(last)
            elif name is not None:
                found.setdefault(name, match.start())
                name = None
                if token in (b"{", b"["):
                    place = self._behind(match.start())
            last = token
        return found

    def _behind(self, at: int) -> int:
        """Return the byte behind the object or list at `at`."""
        depth = 0
        for match in _BRACKET.finditer(self._data, at):
            mark = match.group()[:1]
            depth += mark in b"{["
            depth -= mark in b"}]"
            if depth == 0:
                return match.end()
        return len(self._data)

    def _begin(self, at: int) -> int:
        match = _TOKEN.search(self._data, at)
        return at if match is None else match.start()

    def line_and_column(self, at: int) -> tuple[int, int]:
        """Return the 1-based line and column (in characters) of a byte."""
        begin = self._data.rfind(b"\n", 0, at) + 1
        return self._data.count(b"\n", 0, at) + 1, len(self._data[begin:at].decode("utf-8", "replace")) + 1


def _leads(name: str, rest: str) -> bool:
    return rest.startswith(name) and rest[len(name) : len(name) + 1] in ("", ".", "[")


def _text(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except DecodeErrors:
        return ""
