"""The ways in which one variant is replayed, and whether they agree."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import numpy as np
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.deployment import LoadSpec
from playproof_spec.findings import Finding, Findings, InvalidInput, Where, finding
from playproof_spec.ledger import Ledger

from playproof.controlled import ControlledReport
from playproof.deployment import InvalidDeployment
from playproof.fit import fit
from playproof.fuzzing.variants import Variant
from playproof.report import Report

# Places of a difference that a finding names.
SHOWN = 3


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two ledgers differ: column, the first rows of it, and both values."""
    if is_dataclass(one) and not isinstance(one, type):
        names = [(field.name, f"{path}.{field.name}" if path else field.name) for field in fields(one)]
        return [
            told for name, column in names for told in differences(getattr(one, name), getattr(other, name), column)
        ]
    if not isinstance(one, np.ndarray):
        return [] if one == other else [f"{path}: {one} and {other}"]
    if one.shape != other.shape:
        return [f"{path}: {len(one)} and {len(other)} entries"]
    rows = [row for row, (a, b) in enumerate(zip(one.tolist(), other.tolist(), strict=True)) if a != b and a == a]
    return [f"{path}[{row}]: {one[row]} and {other[row]}" for row in rows[:SHOWN]]


def differing(code: str, variant: Variant, one: Any, other: Any) -> list[Finding]:
    """Return the finding that two ledgers of `variant` are not one, if they are not."""
    where = differences(one, other)
    if not where:
        return []
    message = f"{len(where)} places differ, the first in {where[0].partition(':')[0]}"
    return [finding(code, message, where=Where(ids=(str(variant),)), found="; ".join(where[:SHOWN]), wanted="equal")]


def in_flight(ledger: Ledger, number: int, random: Random) -> tuple[tuple[int, int], ...]:
    """Draw instants at which clients give up on requests: when something happened to them, or in between."""
    served = np.flatnonzero(ledger.terminal_ns > ledger.dispatched_ns).tolist()
    columns = (
        *("dispatched_ns", "first_admit_ns", "first_token_ns", "last_token_ns", "source_held_ns"),
        *("destination_reserved_ns", "destination_activated_ns"),
    )
    drawn = []
    for node in random.sample(served, min(number, len(served))):
        begin, end = int(ledger.dispatched_ns[node]), int(ledger.terminal_ns[node])
        events = {at for name in columns if begin <= (at := int(getattr(ledger, name)[node])) < end}
        drawn.append((random.choice((*sorted(events), random.randrange(begin, end))), node))
    return tuple(sorted(drawn))


class Attempt:
    """One variant, proven, and what is found when it is replayed.

    Raises
    ------
    InvalidInput
        When the variant is no run: the trace cannot be proven, or the deployment cannot have the load.
    """

    def __init__(self, variant: Variant, random: Random) -> None:
        self.variant = variant
        self.proven: ProvenGraph = prove(variant.graph)
        unfit = fit(variant.graph, variant.deployment, variant.load)
        if unfit.errors:
            raise InvalidDeployment(unfit)
        self.deployment = variant.deployment.to_spec()
        self.load: LoadSpec = variant.load.to_spec()
        if variant.cancellations:
            base = self.by_kernel(self.load)
            self.load = replace(self.load, cancellations=in_flight(base, variant.cancellations, random))

    def by_kernel(self, load: LoadSpec) -> Any:
        """Return the kernel's ledger, of a finite run or of one under run controls."""
        import playproof_kernel

        if load.snapshot_seed is None:
            return playproof_kernel.simulate(self.proven, self.deployment, load)
        return playproof_kernel.simulate_controlled(self.proven, self.deployment, load, capture=True)

    def macro_steps(self) -> tuple[Any, list[Finding]]:
        """Return the kernel's ledger, and whether it is that of single passes."""
        fast = self.by_kernel(self.load)
        slow = self.by_kernel(replace(self.load, macro_steps=False))
        return fast, differing("macro-steps-differ", self.variant, fast, slow)

    def checked(self, ledger: Any) -> list[Finding]:
        """Return what the checker says of the run."""
        variant = self.variant
        kind = Report if isinstance(ledger, Ledger) else ControlledReport
        report = kind(self.proven, ledger, variant.deployment, variant.load, per_request=True)
        verdict = report.check(may_cancel=bool(self.load.cancellations))
        return [item for item in verdict.findings.items if not verdict.ok]

    def by_reference(self) -> list[Finding]:
        """Return whether the executable specification gives the kernel's ledger of a finite run."""
        from playproof_reference import replay
        from playproof_reference.ledger import ledger_of

        theirs = ledger_of(replay(self.proven.graph, self.deployment, self.load))
        return differing("engines-differ", self.variant, self.by_kernel(self.load), theirs)


def found_in(variant: Variant, random: Random, *, reference: bool) -> Findings:
    """Replay `variant` in all ways, and return what is found.

    Parameters
    ----------
    variant : Variant
    random : Random
    reference : bool
        Whether the executable specification replays it as well.

    Raises
    ------
    InvalidInput
        When the variant is no run.
    """
    findings = Findings()
    try:
        attempt = Attempt(variant, random)
        ledger, told = attempt.macro_steps()
        told += attempt.checked(ledger)
        told += attempt.by_reference() if reference else []
    except InvalidInput:
        raise
    except Exception as fault:
        # Whatever a replay ends with, an illegal transition too, it was no fault of the variant's, which is proven.
        told = [finding("replay-fault", f"{type(fault).__name__}: {fault}", where=Where(ids=(str(variant),)))]
    for item in told:
        findings.add(item)
    return findings
