"""Seams and what runs interpreted only, on a toy: compiled and interpreted do the same, whatever choice holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from playproof_kernel.memory.conservation import assert_conserved
from playproof_native import Seam, compiled, store

TOY = """
from typing import Any, NamedTuple

import numpy as np
from playproof_native import Seam, by_reference, compiled, compiled_entry, interpreted_only


@by_reference
class Arrays(NamedTuple):
    which: Any
    values: Any


class Choice(NamedTuple):
    serves: Any
    act: Any


@compiled
def holding(arrays, index):
    return int(arrays.which[0])


SEAM = Seam("toy", holding)
act = SEAM.door("act")
seen = []


@interpreted_only
def note(arrays, index):
    seen.append(int(arrays.values[index]))


def choice(number):
    @compiled
    def add(arrays, index):
        arrays.values[index] += number
        return arrays.values[index] > 5

    return Choice(lambda told: told == number, add)


for number in (1, 10, 100):
    SEAM.register(choice(number))


@compiled_entry
def run(arrays, times):
    over = 0
    for _ in range(times):
        if act(arrays, 0):
            over += 1
        note(arrays, 0)
    return over


for told in (1, 10, 100):
    arrays = Arrays(np.array([SEAM.number_of(told)]), np.zeros(1, np.int64))
    print(run(arrays, 7), arrays.values[0], len(seen))
"""


class Choice(NamedTuple):
    serves: Any
    act: Any


@compiled
def _holding(arrays: Any, index: int) -> int:
    return int(arrays.which[0])


def seam(*numbers: int) -> Seam[Choice]:
    toy: Seam[Choice] = Seam("toy", _holding)
    for number in numbers:
        toy.register(Choice(lambda told, number=number: told == number, lambda arrays, index, number=number: number))
    return toy


@pytest.mark.parametrize("mode", ["always", "never"])
def test_a_door_calls_the_choice_that_holds(tmp_path: Path, mode: str) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    told = subprocess.run(
        [sys.executable, str(tmp_path / "toy.py")],
        env={**os.environ, "PLAYPROOF_COMPILE": mode, "PLAYPROOF_CACHE_DIR": str(tmp_path / "code")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    # Seven times 1 is over 5 twice; what notes runs interpreted alone.
    noted = (0, 0, 0) if mode == "always" else (7, 14, 21)
    expected = [
        f"{over} {value} {seen}" for (over, value), seen in zip([(2, 7), (7, 70), (7, 700)], noted, strict=True)
    ]
    assert told.stdout.splitlines() == expected


def test_the_first_that_serves_is_taken_and_no_more_are() -> None:
    toy = seam(4, 5, 5)
    assert [toy.number_of(told) for told in (4, 5)] == [0, 1]
    with pytest.raises(ValueError, match="no toy serves 6"):
        toy.number_of(6)
    with pytest.raises(RuntimeError, match="a toy is registered before the first run"):
        toy.register(Choice(None, None))


@pytest.mark.parametrize("numbers", [(7,), (7, 8), (7, 8, 9)])
def test_a_door_of_any_number_of_choices(numbers: tuple[int, ...]) -> None:
    door = seam(*numbers).door("act")
    for which, number in enumerate(numbers):
        assert door(SimpleNamespace(which=[which]), 0) == number


def test_what_is_registered_from_elsewhere_is_a_part_of_the_key() -> None:
    before = store.key_of("playproof_kernel")
    try:
        store.depend_on(__name__)
        assert store.key_of("playproof_kernel") != before
    finally:
        store._registered.discard(__name__)
        store.key_of.cache_clear()
    store.depend_on("playproof_kernel.runs.loop")  # of a room, whose sources are in the key anyway
    assert store.key_of("playproof_kernel") == before


@pytest.mark.parametrize(("free", "idle", "used", "holds"), [(5, 2, 3, True), (5, 2, 2, False), (6, 2, 3, False)])
def test_blocks_are_neither_lost_nor_made(free: int, idle: int, used: int, holds: bool) -> None:
    worker = SimpleNamespace(role=0, free=free, idle=idle)
    sim: Any = SimpleNamespace(
        workers=[worker],
        config=[SimpleNamespace(blocks=10, keeps_tree=0)],
        frames={"refs": np.array([[1] * used + [0] * free + [-1] * idle])},
    )
    if holds:
        assert_conserved(sim, 0)
    else:
        with pytest.raises(AssertionError, match=f"{free} free, {idle} idle and {used} used blocks of 10"):
            assert_conserved(sim, 0)
