"""Every single fault of every machine's table is refused by an obligation, but for those that change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from playproof_spec.machines import MACHINES, Machine
from table_mutants import mutants, remember_answers, seen

# Faults that no run could tell from the table as it is; docs/assurance.md says why of each.
HARMLESS: dict[str, set[str]] = {
    "play": {
        "reguard active —last_completed → settling [all_over]",
        "reguard failing —node_failed → failing [play_failed]",
        "unguard settling —settled → completed []",
        "reguard settling —settled → completed [all_completed]",
    },
    "block": {
        "reguard private —release → free [last_reference]",
        "reguard loading —loaded → cached_active [last_reference]",
        "reguard loading —release → free [last_reference]",
    },
    "host_block": {
        "reguard pending_store —store_done → resident [unpinned]",
        "reguard resident —pin → pinned [unpinned]",
        "unguard resident —evict → absent []",
    },
}
LEAST_KILLED = 0.9
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_fault_of_a_table_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    remember_answers(monkeypatch)
    assert seen(machine) == ""
    faults = list(mutants(machine))
    survivors = {str(fault) for fault in faults if not seen(fault.of(machine))}
    assert survivors == HARMLESS.get(machine.name, set())
    assert len(faults) > 100
    name = machine.name.replace("handoff_", "handoff, ").replace("_", " ")
    row = f"| {name} | {len(faults):,} | {len(faults) - len(survivors):,} |"
    assert row in (ROOT / "docs" / "assurance.md").read_text("utf-8"), row
    assert 1 - len(survivors) / len(faults) >= LEAST_KILLED
