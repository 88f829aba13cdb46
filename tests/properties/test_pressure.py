"""KV pressure on all four topologies: whatever the pools, every request ends and nothing stays held.

There is no twin here: graphs are larger than those of the other replays, and thousands of examples a minute are run.
"""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from ledgers import columns
from playproof_spec.deployment import Backend
from playproof_spec.machines import NodeState
from pressure import check_ledger, check_nothing_is_left, pressure_cases, replay, without_macro_steps

TOPOLOGIES = [
    pytest.param(backend, split, id=f"{backend.name.lower()}-{'prefill-decode' if split else 'aggregated'}")
    for backend in Backend
    for split in (False, True)
]


@pytest.mark.parametrize(("backend", "split"), TOPOLOGIES)
@given(data=st.data())
def test_every_request_ends_and_nothing_stays_held(data: st.DataObject, backend: Backend, split: bool) -> None:
    case = data.draw(pressure_cases(backend, split))
    sim, ledger = replay(case)
    for state in set(ledger.node_state.tolist()):
        event(NodeState(state).name.lower())
    event(f"pushed out: {int(ledger.preemptions.sum()) > 0}")
    check_nothing_is_left(sim)
    check_ledger(case, ledger)


@pytest.mark.parametrize(("backend", "split"), TOPOLOGIES)
@given(data=st.data())
def test_a_macro_step_equals_its_single_passes(data: st.DataObject, backend: Backend, split: bool) -> None:
    case = data.draw(pressure_cases(backend, split))
    assert columns(replay(case)[1]) == columns(replay(without_macro_steps(case))[1])
