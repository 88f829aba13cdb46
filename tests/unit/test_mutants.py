"""The list of source mutants still means the sources as they are, and its results are whole and good enough.

Trying them is `make mutants`.
"""

from __future__ import annotations

import ast
import copy
import functools
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from mutant_scores import PAGE, SEEN, page_with, problems, read_results, score, written_score
from source_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"spec": 30, "lowering": 30, "kernel": 30, "playproof": 20}
# What an earlier review found unseen, by the names under which it is in the list.
NAMED = {"spec-S04", "spec-S09", "spec-S12", "spec-S13", "spec-S15", "spec-S21"} | {
    f"lowering-{name}" for name in ("join-step", "join-tolerance", "tie-streams", "half", "equal-begin", "equal-end")
}


@pytest.fixture
def results() -> dict[str, dict[str, Any]]:
    """Return the results; one of a fault that has changed since counts as none, until it is tried (`make mutants`)."""
    return read_results()


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


def test_every_fault_was_tried_and_enough_are_seen(results: dict[str, dict[str, Any]]) -> None:
    assert problems(results, PAGE.read_text("utf-8")) == []


@pytest.mark.parametrize("name", sorted(NAMED))
def test_what_an_earlier_review_found_unseen_is_seen(name: str) -> None:
    assert read_results()[name]["verdict"] in SEEN


def test_the_page_says_what_the_results_say(results: dict[str, dict[str, Any]]) -> None:
    page = PAGE.read_text("utf-8")
    assert page == page_with(results, page)
    assert written_score(page) == Fraction(*score(results))


def test_a_lower_score_or_a_fault_not_tried_is_told(results: dict[str, dict[str, Any]]) -> None:
    page = PAGE.read_text("utf-8")
    seen = [fault for fault in FAULTS if results[fault.name]["verdict"] in SEEN]
    one_less = copy.deepcopy(results)
    one_less[seen[0].name]["verdict"] = "survived"
    (told,) = problems(one_less, page)
    assert "docs/assurance.md says" in told
    # Where the page says nothing, 95 % will do, and less will not.
    unsaid = page.replace("that a test could tell are seen", "")
    assert problems(one_less, unsaid) == []
    for fault in seen[: len(FAULTS) // 10]:
        one_less[fault.name]["verdict"] = "survived"
    (told,) = problems(one_less, unsaid)
    assert "less than 95%" in told
    del one_less[seen[0].name]
    assert f"{seen[0].name} was not tried as it is now" in problems(one_less, unsaid)
    equivalent = next(fault for fault in FAULTS if fault.equivalent)
    one_less = copy.deepcopy(results)
    one_less[equivalent.name]["verdict"] = "killed"
    (told,) = problems(one_less, page)
    assert told.startswith(f"{equivalent.name} is said to be equivalent")
