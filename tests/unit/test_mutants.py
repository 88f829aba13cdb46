"""The list of source mutants still means the sources as they are. Trying them is `make mutants`."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from source_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"spec": 30, "lowering": 30, "kernel": 30, "playproof": 20}
# What an earlier review found unseen, by the names under which it is in the list.
NAMED = {"spec-S04", "spec-S09", "spec-S12", "spec-S13", "spec-S15", "spec-S21"} | {
    f"lowering-{name}" for name in ("join-step", "join-tolerance", "tie-streams", "half", "equal-begin", "equal-end")
}


@functools.cache
def source(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


def test_there_are_many_faults_in_every_room() -> None:
    assert len(FAULTS) >= 100
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.name for fault in FAULTS} >= NAMED
    for room, least in ROOMS.items():
        assert sum(fault.room == room for fault in FAULTS) >= least, room
    assert len({fault.file for fault in FAULTS}) >= 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_means_one_place_of_the_sources(fault: Fault) -> None:
    whole = source(fault.file)
    assert whole.count(fault.text) == 1, "the source has changed: mend the fault's text, and try it again"
    assert fault.text != fault.instead
    assert fault.why
    # What cannot be parsed would be seen by everybody.
    ast.parse(whole.replace(fault.text, fault.instead))
    files = [test for test in fault.tests if test.startswith("tests/")]
    assert files
    for test in files:
        assert (ROOT / test.partition("::")[0]).is_file()
