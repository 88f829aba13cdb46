"""Findings: what is wrong with a trace, a configuration or a deployment, said so that its author can act on it.

A finding names the place (file, line, field), what was found there, what was wanted, why it matters and a way out. Its
code comes from the catalogue (`catalogue.py`); the severity, the reason and the hint are the catalogue's unless a
reader knows better.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from playproof_spec.catalogue import CATALOGUE, Severity

__all__ = ["Finding", "Findings", "InvalidInput", "Severity", "Where", "finding"]


class Where(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place a finding points at.

    Attributes
    ----------
    file : str
        Path as the user gave it (for a directory: the path plus the relative path within).
    line : int
        1-based line, 0 where it is not known: the format has no lines.
    column : int
        1-based, in characters; 0 for the line as a whole.
    field : str
        Field name, or a JSON path such as ``requests[3].requests[0].t``.
    ids : tuple[str, ...]
        Requests, plays or sessions involved.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    field: str = ""
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.file + (f":{self.line}" if self.line else "") + (f":{self.column}" if self.column else "")
        return printable(" ".join(part for part in (place, self.field, " → ".join(self.ids)) if part))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. Build it with :func:`finding`, which fills in what the catalogue says of its code."""

    code: str
    severity: Severity
    message: str
    where: Where
    found: str
    wanted: str
    because: str
    hint: str

    def __str__(self) -> str:
        detail = f" (found {self.found}" + (f", wanted {self.wanted})" if self.wanted else ")") if self.found else ""
        return f"{self.severity.value} {self.code} {self.where}: {self.message}{detail}"


MAX_SHOWN = 120


def printable(text: str) -> str:
    """Return `text` on one line; what a terminal would act upon is escaped, for it may come from a foreign file."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object) -> str:
    """Return `value` as it goes into a finding: one line, bounded."""
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def finding(
    code: str,
    message: str,
    *,
    where: Where | None = None,
    found: object = "",
    wanted: str = "",
    because: str = "",
    hint: str = "",
    severity: Severity | None = None,
) -> Finding:
    """Make a finding whose severity, reason and hint default to the catalogue's.

    Raises
    ------
    KeyError
        When the catalogue has no such code; every code must be documented before it is used.
    """
    kind = CATALOGUE[code]
    return Finding(
        code=code,
        severity=severity or kind.severity,
        message=printable(message),
        where=where or Where(),
        found=shown(found),
        wanted=printable(wanted),
        because=printable(because) or kind.because,
        hint=printable(hint) or kind.hint,
    )


class Findings:
    """A bounded collection: all findings of a corpus up to a limit per code, and the count of the rest.

    Parameters
    ----------
    limit_per_code : int
        How many findings of one code are kept whole; more are counted, so that a broken corpus of a million rows
        gives a readable answer.
    """

    __slots__ = ("_counts", "_kept", "limit_per_code")

    def __init__(self, limit_per_code: int = 100) -> None:
        self.limit_per_code = limit_per_code
        self._kept: list[Finding] = []
        self._counts: dict[tuple[str, Severity], int] = {}

    def add(self, item: Finding) -> None:
        """Keep `item`, or only count it once its code has reached the limit."""
        key = (item.code, item.severity)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        if count < self.limit_per_code:
            self._kept.append(item)

    def add_count(self, code: str, count: int) -> None:
        """Count `count` more findings of `code` that the caller did not build, since they would not be kept."""
        if count > 0:
            key = (code, CATALOGUE[code].severity)
            self._counts[key] = self._counts.get(key, 0) + count

    def mapped(self, change: Callable[[Finding], Finding]) -> Findings:
        """Return findings of which those kept are `change` of these, with the same counts.

        Parameters
        ----------
        change : callable
            Leaves code and severity as they are.
        """
        other = Findings(self.limit_per_code)
        other._kept = [change(item) for item in self._kept]
        other._counts = dict(self._counts)
        return other

    def extend(self, other: Findings) -> None:
        """Add every finding of `other`, with the counts of those it dropped."""
        kept_before: dict[tuple[str, Severity], int] = {}
        for item in other._kept:
            self.add(item)
            key = (item.code, item.severity)
            kept_before[key] = kept_before.get(key, 0) + 1
        for key, count in other._counts.items():
            self._counts[key] = self._counts.get(key, 0) + count - kept_before.get(key, 0)

    @property
    def items(self) -> tuple[Finding, ...]:
        """The findings kept whole, in the order of discovery."""
        return tuple(self._kept)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings of each code there were, kept or not."""
        totals: dict[str, int] = {}
        for (code, _), count in self._counts.items():
            totals[code] = totals.get(code, 0) + count
        return totals

    @property
    def errors(self) -> int:
        """The number of findings of severity error, kept or not."""
        return sum(count for (_, severity), count in self._counts.items() if severity is Severity.ERROR)

    @property
    def warnings(self) -> int:
        """The number of findings of severity warning, kept or not."""
        return sum(count for (_, severity), count in self._counts.items() if severity is Severity.WARNING)

    def __repr__(self) -> str:
        counts = ", ".join(f"{code} ×{count}" for code, count in sorted(self.counts.items()))
        return f"<Findings: {self.errors} errors, {self.warnings} warnings{f': {counts}' if counts else ''}>"

    def _repr_html_(self) -> str:
        """Return the findings that were kept, as a table for notebooks."""
        from playproof_spec.html import table

        dropped = sum(self._counts.values()) - len(self._kept)
        caption = f"{self.errors} errors, {self.warnings} warnings" + (f"; {dropped} more" if dropped else "")
        names = ("severity", "code", "where", "what", "found", "wanted", "way out")
        rows = (
            (item.severity.value, item.code, item.where, item.message, item.found, item.wanted, item.hint)
            for item in self._kept
        )
        return table(caption, names, rows)


class InvalidInput(Exception):
    """Input that cannot be used; carries the findings that say why."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        first = next((str(f) for f in findings.items if f.severity is Severity.ERROR), "no finding")
        more = findings.errors - 1
        super().__init__(first + (f" (and {more} more)" if more > 0 else ""))
