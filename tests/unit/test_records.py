"""Records: one declaration gives the dtype, new rows, blank rows, and names that a type checker knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import playproof_kernel.ground.arrays
import pytest
from mypy import api
from numpy.typing import NDArray
from playproof_kernel.ground.arrays import NONE, NUMBERS, REQUESTS, WORKERS, Config, Live, Sim, Worker
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.records import (
    Dimension,
    Record,
    Rows,
    allocate,
    enlarged,
    f8,
    fields_of,
    i4,
    i8,
    i8s,
    records,
)

ROOT = Path(__file__).resolve().parents[2]


class Parcel(Record):
    """A record of this test."""

    worker: i8 = NONE
    small: i4 = 7
    share: f8 = 0.5
    both: i8s


def test_a_record_gives_its_dtype_and_new_rows() -> None:
    assert [(name, Parcel.dtype[name].str) for name in Parcel.dtype.names or ()][:3] == [
        ("worker", "<i8"),
        ("small", "<i4"),
        ("share", "<f8"),
    ]
    assert Parcel.dtype["both"].shape == (2,)
    assert Parcel.dtype.isalignedstruct
    rows = records(3, Parcel)
    assert (rows.worker.tolist(), rows.small.tolist(), rows.share.tolist()) == ([-1] * 3, [7] * 3, [0.5] * 3)
    assert rows.both.tolist() == [[0, 0]] * 3
    assert records((2, 3), Parcel).worker.tolist() == [[-1] * 3] * 2
    assert len(records(0, Parcel)) == 0


def test_columns_and_rows_are_read_and_written_by_name() -> None:
    rows = records(3, Parcel)
    rows.small = [1, 2, 3]
    rows[1].small += 10
    assert (rows[1:].small.tolist(), type(rows.small)) == ([12, 3], np.ndarray)
    assert isinstance(rows[1:], np.ndarray)
    with pytest.raises(AttributeError, match="have no field smal"):
        print(rows.smal)
    with pytest.raises(AttributeError):
        rows[0].smal = 1


@compiled_entry
def _use_again(rows: Rows[Parcel], blank: Rows[Parcel], at: int) -> None:
    rows[at] = blank[0]


def test_a_row_is_blank_again() -> None:
    rows = records(2, Parcel)
    rows.worker, rows.small, rows.both = 5, 6, 9
    _use_again(rows, records(1, Parcel), 1)
    assert rows.worker.tolist() == [5, NONE]
    assert rows.small.tolist() == [6, 7]
    assert rows.both.tolist() == [[9, 9], [0, 0]]


def test_new_rows_of_the_kernel_are_what_they_were() -> None:
    """Some by hand: what nobody has set, and the root of a tree, which is there from the start."""
    live, worker = records(1, Live)[0], records(1, Worker)[0]
    assert (live.dispatched, live.worker, live.computed, live.drafting) == (NONE, NONE, 0, 0)
    assert (worker.pass_end, worker.tree_used, worker.tree_live, worker.free) == (NONE, 1, 1, 0)
    assert Config.dtype["rates"].shape == (16,)


def test_every_field_of_the_bundle_says_what_it_holds_and_how_many() -> None:
    fields = {field.name: field for field in fields_of(Sim)}
    assert tuple(fields) == Sim._fields
    assert (fields["live"].element, fields["live"].dimensions) == (Live, (REQUESTS,))
    assert (fields["block_state"].element, fields["block_state"].dimensions) == (np.int8, (WORKERS, NUMBERS))
    known = {value for value in vars(playproof_kernel.ground.arrays).values() if isinstance(value, Dimension)}
    assert {dimension for field in fields.values() for dimension in field.dimensions} == known


ROOMS, BOXES = Dimension("rooms"), Dimension("boxes")


class Store(NamedTuple):
    """A bundle of this test."""

    parcels: Annotated[Rows[Parcel], BOXES]
    weights: Annotated[NDArray[np.int64], ROOMS, BOXES]
    names: Annotated[NDArray[np.int8], ROOMS]


def test_a_bundle_is_allocated_and_grows_by_its_dimensions() -> None:
    store = allocate(Store, {BOXES: 2}, {"names": np.arange(3, dtype=np.int8), "weights": np.ones((3, 2), np.int64)})
    assert store.parcels.worker.tolist() == [NONE, NONE]
    store.parcels.worker = [4, 5]
    larger = enlarged(store, {BOXES: 3})
    assert larger.parcels.worker.tolist() == [4, 5, NONE]
    assert larger.weights.tolist() == [[1, 1, 0]] * 3
    assert larger.names is store.names
    with pytest.raises(ValueError, match="names is for 4 rooms, where there are 3"):
        allocate(Store, {BOXES: 2, ROOMS: 3}, {"names": np.zeros(4, np.int8)})
    with pytest.raises(ValueError, match="names has 2 dimensions"):
        allocate(Store, {BOXES: 2, ROOMS: 3}, {"names": np.zeros((3, 1), np.int8)})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return sim.live[3].dispatched + sim.frames[1, 2].refs", ""),
        ("return sim.live[3].dispatchd", '"Live" has no attribute "dispatchd"'),
        ("return sim.frames[1, 2].ref", '"Frame" has no attribute "ref"'),
        ("return sim.queues[0, 1].heads", '"Queue" has no attribute "heads"'),
        ("return sim.frames[1][2].ref", '"Frame" has no attribute "ref"'),
        ("return int(sim.lives[0].worker)", '"Sim" has no attribute "lives"'),
    ],
)
def test_a_misspelt_field_fails_the_type_check(tmp_path: Path, body: str, error: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"from playproof_kernel.ground.arrays import Sim\n\n\ndef look(sim: Sim) -> int:\n    {body}\n")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    said, failed, code = api.run([*options, str(module)])
    assert not failed
    assert (code != 0) == bool(error), said
    assert error in said


def test_no_function_of_the_kernel_takes_just_anything_for_the_bundle() -> None:
    for source in sorted(Path(playproof_kernel.ground.arrays.__file__).parents[1].rglob("*.py")):
        assert "sim: Any" not in source.read_text("utf-8"), source.name


def test_a_field_that_there_is_none_of_cannot_be_set() -> None:
    """NumPy would take it as an attribute of the array, and nothing would come of it."""
    rows = records(2, Worker)
    with pytest.raises(AttributeError, match="have no field misspelt"):
        rows.misspelt = 3
    with pytest.raises(ValueError, match="has no misspelt"):
        allocate(Sim, {}, {"misspelt": rows})
