"""The tables themselves, their diagrams, and the page generated from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playproof_kernel.checks.guards import PREDICATES
from playproof_kernel.ground import transitions
from playproof_spec.catalogue import CATALOGUE, SECTIONS
from playproof_spec.diagrams import findings_page, mermaid, spec_readme, table_text
from playproof_spec.digest import tables_digest
from playproof_spec.machines import (
    BLOCK,
    GUARDS,
    HANDOFF_DESTINATION_FIRST,
    HANDOFF_SOURCE_FIRST,
    HOST_BLOCK,
    LANE,
    MACHINES,
    NODE,
    PHASE,
    PLAY,
    REQUEST,
    TRANSFER,
    IllegalTransition,
    Machine,
    NodeEvent,
    NodeState,
    PlayEvent,
    Rule,
)
from playproof_spec.models import (
    block_model,
    handoff_model,
    host_block_model,
    lane_model,
    phase_model,
    play_model,
    request_model,
    transfer_model,
)

ROOT = Path(__file__).resolve().parents[2]
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


@each_machine
def test_array_and_lookup_agree_on_every_pair(machine: Machine) -> None:
    array = machine.as_array()
    assert array.shape == (len(machine.states), len(machine.events))
    legal = 0
    for state in machine.states:
        for event in machine.events:
            if array[state, event] < 0:
                with pytest.raises(IllegalTransition, match=f"{machine.name}: {event.name.lower()} is illegal"):
                    machine.successor(state, event)
            else:
                legal += 1
                assert machine.successor(state, event) == machine.states(array[state, event])
    assert legal == sum(len(row) for row in machine.table.values())
    assert np.all(array[sorted(machine.terminal)] == -1)


@each_machine
def test_text_and_diagram_show_every_entry(machine: Machine) -> None:
    text, diagram = table_text(machine), mermaid(machine)
    for state in machine.states:
        assert state.name.lower() in text
        for event, rule in machine.table[state].items():
            label = event.name.lower() + (f" [{rule.guard}]" if rule.guard else "")
            assert f"    {state.name.lower()} --> {rule.to.name.lower()}: {label}" in diagram.splitlines()
    entries = sum(len(row) for row in machine.table.values())
    assert diagram.count("-->") == entries + 1 + len(machine.terminal)
    rows = text.splitlines()[3:]
    assert len(rows) == entries + len(machine.terminal)


def test_every_guard_is_used_and_explained() -> None:
    used = {rule.guard for machine in MACHINES for row in machine.table.values() for rule in row.values()} - {""}
    assert used == set(GUARDS)


def test_every_guard_has_a_predicate_and_a_meaning_in_a_model() -> None:
    assert set(PREDICATES) == set(GUARDS)
    models = {
        **{name: play_model(NODE, PLAY) for name in ("node", "play")},
        "lane": lane_model(LANE),
        "phase": phase_model(PHASE),
        "request": request_model(REQUEST),
        "handoff_source_first": handoff_model(HANDOFF_SOURCE_FIRST),
        "handoff_destination_first": handoff_model(HANDOFF_DESTINATION_FIRST),
        "block": block_model(BLOCK),
        "host_block": host_block_model(HOST_BLOCK),
        "transfer": transfer_model(TRANSFER),
    }
    for machine in MACHINES:
        moves = {move.entry: move for move in models[machine.name].moves if move.entry is not None}
        for state, row in machine.table.items():
            for event, rule in row.items():
                if machine is PLAY and event == PlayEvent.NODE_FAILED:
                    assert not rule.guard  # one step with the node's own event
                    continue
                enabled = moves[machine.name, state, event].enabled
                # A guard that the model did not know would restrict nothing beside the state.
                assert (enabled.count("true") == 1) == bool(rule.guard), (machine.name, state, event, enabled)


def test_tables_digest_sees_successors_and_guards() -> None:
    def changed(rule: Rule) -> Machine:
        table = {**NODE.table, NodeState.READY: {**NODE.table[NodeState.READY], NodeEvent.DISPATCH: rule}}
        return Machine(NODE.name, NODE.about, NODE.states, NODE.events, table, NODE.initial, NODE.terminal)

    digests = {
        tables_digest((NODE,)),
        tables_digest((changed(Rule(NodeState.DISPATCHED)),)),
        tables_digest((changed(Rule(NodeState.COMPLETED, "due")),)),
    }
    assert len(digests) == 3
    assert tables_digest((changed(Rule(NodeState.DISPATCHED, "due")),)) == tables_digest((NODE,))


def test_spec_readme_is_current() -> None:
    assert (ROOT / "spec" / "README.md").read_text("utf-8") == spec_readme(), "run: python -m playproof.docs"


def test_findings_page_has_every_code_once_and_whole() -> None:
    page = findings_page()
    assert len(CATALOGUE) == sum(len(kinds) for _, kinds in SECTIONS), "a code stands twice in the catalogue"
    for kind in CATALOGUE.values():
        assert page.count(f"\n### {kind.code}\n") == 1
        assert all([kind.title, kind.because, kind.hint, kind.example])
        # Titles go behind a colon, reasons and ways out stand as sentences.
        first = kind.title.split()[0]
        assert first[0].islower() or first.isupper()
        assert not kind.title.endswith(".")
        assert kind.because.endswith(".")
        assert kind.hint.endswith(".")
        assert kind.hint in page
        assert kind.example in page


@each_machine
def test_the_kernel_carries_out_no_illegal_transition(machine: Machine) -> None:
    array = machine.as_array()
    for state in machine.states:
        for event in machine.events:
            states = np.array([0, state, 0], np.int8)
            if array[state, event] < 0:
                with pytest.raises(transitions.IllegalTransition):
                    transitions.advance(array, states, 1, event)
                assert states.tolist() == [0, state, 0]
            else:
                transitions.advance(array, states, 1, event)
                assert states.tolist() == [0, array[state, event], 0]
