"""The rules of a run, what was checked of each, and the verdict.

A *fact* is one comparison of what a file says with what a rule wants. Each rule has one code of finding, by which it is
named; every fact that breaks it is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from playproof_spec.findings import Finding, Findings

Bool = npt.NDArray[np.bool_]

CHECK_SCHEMA = "playproof.check.v1"
PASSED, VIOLATED = "passed", "violated"
HELD, BROKEN, NOT_APPLICABLE = "held", "violated", "not_applicable"

# Every rule by its code, and what it says; in the order in which they are told.
RULES: Final[dict[str, str]] = {
    "run-file": "the files are a report and its lines",
    "run-digest": "what the report says of its trace, its settings and its lines is what they are",
    "run-settings": "the report's deployment, load and graph are those given",
    "run-line": "each line is a record of docs/report.md",
    "run-extra": "each line is of a request that was to run, and of no other line's",
    "run-missing": "each request that nothing held back has a line",
    "run-order": "lines stand in the order of plays, and of requests within a play",
    "run-identity": "a line repeats what the trace says of its request",
    "run-clock": "every instant is a whole number of nanoseconds",
    "run-edge": "no request starts before each of its edges has fired and its delay is over",
    "run-floor": "no request starts before its play, or before its own floor",
    "run-late": "each request starts at the instant at which the last of these lets it",
    "run-failure": "nothing of a play starts after its first failure",
    "run-lane": "lanes are those of the load, take plays in order, and hold one at a time without pause",
    "run-stamp": "the instants of a request are there when they must be, and in order",
    "run-latency": "latencies are the differences of their instants",
    "run-tokens": "no answer is longer than asked, and that of a completed request is as long",
    "run-ending": "requests that never fit are refused or fail, and no others are",
    "run-admission": "each admission history counts, and lies between dispatch and end",
    "run-reuse": "reuse is of whole blocks, by tier, and no more than there is to reuse",
    "run-reuse-source": "what is reused was computed before, on that worker and in that namespace",
    "run-worker": "each request is served by workers that there are",
    "run-placement": "round robin deals requests to workers in turn",
    "run-seats": "no worker runs more sequences than it may",
    "run-pool": "no worker holds more blocks than it has",
    "run-service": "no token comes sooner than the passes that make it take",
    "run-handoff": "each step of a handoff comes after the one before it",
    "run-decode": "nothing completes before it was admitted to decode",
    "run-snapshot": "plays are cut where seed and trace say, and share nothing of their names",
    "run-phase": "the barrier opens when all preparation has ended and settled",
    "run-profile": "nothing starts after the cutoff, nothing runs after the grace, plays follow the cursor",
    "run-outcome": "each play's outcome is that of its requests",
    "run-figure": "each figure of the report is that of the lines",
}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What came of one rule.

    Attributes
    ----------
    code : str
    says : str
    facts, broken : int
        Comparisons made, and how many of them broke the rule.
    why_not : str
        Why some or all of it could not be checked of this run.
    """

    code: str
    says: str
    facts: int
    broken: int
    why_not: str

    @property
    def verdict(self) -> str:
        """``held``, ``violated``, or ``not_applicable`` where no fact of this run is of this rule."""
        if self.broken:
            return BROKEN
        return HELD if self.facts else NOT_APPLICABLE

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        values = {"code": self.code, "says": self.says, "verdict": self.verdict, "facts": self.facts}
        return {**values, "broken": self.broken, "why_not": self.why_not or None}


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What the checker found of one run.

    Attributes
    ----------
    rules : tuple of RuleResult
        All of them, those that do not apply with the reason.
    findings : Findings
        Every broken fact, up to a limit a rule; the rest is counted.
    lines : int
        Lines read.
    kind : str
        Which kind of run it is, in words.
    """

    rules: tuple[RuleResult, ...]
    findings: Findings = field(repr=False)
    lines: int
    kind: str

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return not any(rule.broken for rule in self.rules)

    @property
    def facts(self) -> int:
        """Comparisons made, over all rules."""
        return sum(rule.facts for rule in self.rules)

    def rule(self, code: str) -> RuleResult:
        """Return what came of the rule `code`.

        Raises
        ------
        KeyError
            When there is no such rule.
        """
        return {rule.code: rule for rule in self.rules}[code]

    def summary(self) -> dict[str, Any]:
        """Return the verdict and its rules as JSON values, without the findings: what a certificate holds of it."""
        return {
            "verdict": PASSED if self.ok else VIOLATED,
            "kind": self.kind,
            "lines": self.lines,
            "facts": self.facts,
            "rules": [rule.to_dict() for rule in self.rules],
        }


class Tally:
    """Counts facts rule by rule and keeps what breaks them.

    Parameters
    ----------
    lines_file, report_file : str
        What findings call the files.
    """

    def __init__(self, lines_file: str = "requests.jsonl", report_file: str = "report.json") -> None:
        self.lines_file, self.report_file = lines_file, report_file
        self.findings = Findings()
        self._facts = dict.fromkeys(RULES, 0)
        self._broken = dict.fromkeys(RULES, 0)
        self._why: dict[str, list[str]] = {code: [] for code in RULES}

    def check(self, code: str, good: Bool, tell: Callable[[int], Finding]) -> None:
        """Count one fact an entry of `good`; `tell` makes the finding of an entry that is False."""
        self._facts[code] += len(good)
        bad = np.flatnonzero(~good)
        if len(bad) == 0:
            return
        room = max(self.findings.limit_per_code - self._broken[code], 0)
        self._broken[code] += len(bad)
        for entry in bad[:room].tolist():
            self.findings.add(tell(entry))
        self.findings.add_count(code, len(bad) - room)

    def fact(self, code: str, good: bool, tell: Callable[[], Finding]) -> None:
        """Count one fact; `tell` makes the finding if it is broken."""
        self._facts[code] += 1
        if not good:
            self._broken[code] += 1
            self.findings.add(tell())

    def tell(self, code: str, item: Finding) -> None:
        """Count one fact that is broken."""
        self.fact(code, False, lambda: item)

    def count(self, code: str, facts: int) -> None:
        """Count facts that hold."""
        self._facts[code] += facts

    def skip(self, why: str, codes: Iterable[str]) -> None:
        """Say why rules, or part of them, cannot be checked of this run."""
        for code in codes:
            if why not in self._why[code]:
                self._why[code].append(why)

    def verdict(self, lines: int, kind: str) -> Verdict:
        """Return the verdict."""
        rules = tuple(
            RuleResult(code, says, self._facts[code], self._broken[code], "; ".join(self._why[code]))
            for code, says in RULES.items()
        )
        return Verdict(rules, self.findings, lines, kind)
