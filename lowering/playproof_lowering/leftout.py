"""What is left out of a corpus, when its author says that bad files and records may be.

Readers leave out what they cannot read, and refuse the corpus for it. With ``--skip-bad`` such an error is a warning
instead: the rest is read and proven, and what was left out is counted by kind and named. What can be read and
contradicts itself, a child before its parent or a circle, stays an error: without it the rest would mean another thing.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
from playproof_spec.findings import Finding, Findings, Severity

__all__ = ["SkipBad"]

MAX_NAMED: Final = 100

# A whole file cannot be read.
_FILES: Final = frozenset(
    {"path-symlink", "path-special", "path-not-text", "file-unreadable", "file-changed", "file-empty"}
    | {"file-too-large", "compression-broken", "compression-unknown", "encoding-bom", "format-unknown", "format-mixed"}
    | {"header-missing", "header-invalid", "rows-missing"}
)
# A record of a file cannot be read, or a value of it.
_RECORDS: Final = frozenset(
    {"encoding-not-utf8", "json-malformed", "json-trailing", "json-not-object", "json-too-deep"}
    | {"field-missing", "field-type", "field-repeated", "field-conflict", "value-unknown", "event-unknown"}
    | {"number-out-of-range", "hash-id-invalid", "header-repeated", "time-unreadable", "time-not-finite"}
    | {"time-negative", "time-beyond-horizon", "length-out-of-bounds", "id-empty", "replay-missing", "turns-mismatch"}
)
# How the JSON of a line shows that its end is missing.
_TORN: Final = frozenset({"json-malformed", "encoding-not-utf8"})


class SkipBad(Findings):
    """Findings of a reading that goes on without what it cannot read.

    Parameters
    ----------
    limit_per_code : int
        As for :class:`~playproof_spec.findings.Findings`.
    """

    __slots__ = ("_by_code", "_files", "_named", "_records", "_torn")

    def __init__(self, limit_per_code: int = 100) -> None:
        super().__init__(limit_per_code)
        self._files: set[str] = set()
        # Lines by file, each with the code it was first refused by.
        self._records: dict[tuple[str, int, str], str] = {}
        self._torn = 0
        self._by_code: Counter[str] = Counter()
        self._named: dict[str, None] = {}

    def add(self, item: Finding) -> None:
        """Keep `item`; an error about what cannot be read becomes a warning, and what it is about is counted."""
        if item.severity is Severity.ERROR and self._may_go(item):
            self._count(item)
            item = msgspec.structs.replace(item, severity=Severity.WARNING)
        super().add(item)

    @staticmethod
    def _may_go(item: Finding) -> bool:
        # A row of another version within a file says that all of its rows mean something else.
        if item.code == "header-missing":
            return not item.where.field
        return item.code in _FILES or item.code in _RECORDS

    def _count(self, item: Finding) -> None:
        where = item.where
        self._by_code[item.code] += 1
        whole = item.code in _FILES or (where.line == 0 and not where.field)
        if whole:
            self._files.add(where.file)
        else:
            # Of a file that is one record, the values that cannot be read are what is left out.
            self._records.setdefault((where.file, where.line, "" if where.line else where.field), item.code)
        if len(self._named) < MAX_NAMED:
            self._named[where.file + (f":{where.line}" if where.line and not whole else "")] = None

    def whole_file(self, file: str) -> None:
        """Take note that nothing of a file is read, whatever of it was found wrong."""
        for key in [key for key in self._records if key[0] == file]:
            del self._records[key]
        self._files.add(file)

    def ended_unterminated(self, file: str, line: int) -> None:
        """Take note that the last line of a file has no line break: one that cannot be read was torn."""
        if self._records.get((file, line, "")) in _TORN:
            del self._records[file, line, ""]
            self._torn += 1

    @property
    def left_out(self) -> dict[str, object]:
        """What was left out, as JSON values: counts by kind and by code, and the names of the first 100."""
        return {
            "files": len(self._files),
            "records": len(self._records),
            "torn_last_lines": self._torn,
            "by_code": dict(sorted(self._by_code.items())),
            "named": list(self._named),
        }
