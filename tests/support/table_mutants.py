"""Every single fault of a machine's table, and which obligation sees it.

A fault takes an entry out, leads it to another state, takes its guard off, gives it another guard, or adds an entry
without a guard. Questions that a fault leaves as they were are answered once for all faults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum

import pytest
from playproof_spec import machine_proofs, proofs
from playproof_spec.machines import GUARDS, MACHINES, Machine, Rule
from playproof_spec.obligation import PROVEN, Obligation

Named = Mapping[str, Machine]
PROOFS: dict[str, Callable[[Named], Obligation]] = {
    "node": machine_proofs.prove_counters,
    "play": machine_proofs.prove_counters,
    "lane": machine_proofs.prove_counters,
    "phase": machine_proofs.prove_phases,
    "request": machine_proofs.prove_requests,
    "handoff_source_first": machine_proofs.prove_no_completion_at_prefill,
    "handoff_destination_first": machine_proofs.prove_no_completion_at_prefill,
    "block": machine_proofs.prove_blocks,
    "host_block": machine_proofs.prove_host_blocks,
    "transfer": machine_proofs.prove_transfers,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: the entry as it is now, None where it is gone."""

    kind: str
    state: IntEnum
    event: IntEnum
    rule: Rule | None

    def __str__(self) -> str:
        there = "" if self.rule is None else f" → {self.rule.to.name.lower()} [{self.rule.guard}]"
        return f"{self.kind} {self.state.name.lower()} —{self.event.name.lower()}{there}"

    def of(self, machine: Machine) -> Machine:
        """Return `machine` with the fault; states without entries are its terminal ones."""
        row = {**machine.table[self.state]}
        row.pop(self.event, None)
        if self.rule is not None:
            row[self.event] = self.rule
        table = {**machine.table, self.state: row}
        return dataclasses.replace(machine, table=table, terminal=frozenset(s for s in table if not table[s]))


def mutants(machine: Machine) -> Iterator[Mutant]:
    """Yield every single fault of `machine`."""
    for state in machine.states:
        row = machine.table[state]
        for event, rule in row.items():
            yield Mutant("remove", state, event, None)
            for to in machine.states:
                if to != rule.to:
                    yield Mutant("redirect", state, event, Rule(to, rule.guard))
            for guard in ["", *GUARDS]:
                if guard != rule.guard:
                    yield Mutant("reguard" if guard else "unguard", state, event, Rule(rule.to, guard))
        for event in machine.events:
            if event not in row:
                for to in machine.states:
                    yield Mutant("add", state, event, Rule(to))


def remember_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each question be asked once, however many tables it is asked of."""
    asked: dict[tuple[str, bool], proofs.Answer] = {}
    real = proofs.Prover.ask

    def ask(prover: proofs.Prover, smt: str, want_core: bool = False) -> proofs.Answer:
        key = (smt, want_core)
        if key not in asked:
            asked[key] = real(prover, smt, want_core)
        return asked[key]

    monkeypatch.setattr(proofs.Prover, "ask", ask)


def seen(machine: Machine) -> str:
    """Return what refuses `machine` beside the other tables: an obligation or its first broken claim, or ""."""
    for prove in (machine_proofs.prove_well_formed, machine_proofs.prove_reachable):
        if prove([machine]).verdict != PROVEN:
            return prove([machine]).code
    tables = {**{other.name: other for other in MACHINES}, machine.name: machine}
    if machine.name.startswith("handoff"):
        tables = {machine.name: machine}
    with pytest.MonkeyPatch.context() as patch:
        # The first broken claim will do.
        patch.setattr(machine_proofs, "_Questions", _UntilBroken)
        try:
            verdict = PROOFS[machine.name](tables)
        except _Broken as broken:
            return str(broken)
    return "" if verdict.verdict == PROVEN else verdict.code


class _Broken(Exception):
    """What breaks first."""


class _UntilBroken(machine_proofs._Questions):
    __slots__ = ()

    def refute(self, claim: str, smt: str) -> None:
        super().refute(claim, smt)
        if self.broken:
            raise _Broken(claim)

    def find(self, denial: str, smt: str) -> None:
        super().find(denial, smt)
        if self.broken:
            raise _Broken(denial)
