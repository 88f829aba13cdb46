"""Records: one declaration gives the dtype, new rows, blank rows, and names that a type checker knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import playproof_kernel.arrays
import pytest
from mypy import api
from playproof_kernel.arrays import NONE, Config, Live, Sim, Worker
from playproof_kernel.jit import compiled_entry
from playproof_kernel.records import Record, Rows, f8, i4, i8, i8s, records

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


def test_every_field_of_the_bundle_says_what_it_holds() -> None:
    kinds: dict[str, Any] = dict(Sim.__annotations__)
    assert len(kinds) > 60
    named = {name for name, value in vars(playproof_kernel.arrays).items() if isinstance(value, type)}
    for field, kind in kinds.items():
        text = getattr(kind, "__forward_arg__", kind)
        whole, _, record = text.rstrip("]").partition("[")
        assert whole in {"Rows", "Grid", "Int8", "Int32", "Int64"}, field
        assert not record or record in named, field


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return sim.live[3].dispatched + sim.copies[1, 2].refs", ""),
        ("return sim.live[3].dispatchd", '"Live" has no attribute "dispatchd"'),
        ("return sim.copies[1, 2].ref", '"Copy" has no attribute "ref"'),
        ("return sim.queues[0, 1].heads", '"Queue" has no attribute "heads"'),
        ("return sim.copies[1][2].ref", '"Copy" has no attribute "ref"'),
        ("return int(sim.lives[0].worker)", '"Sim" has no attribute "lives"'),
    ],
)
def test_a_misspelt_field_fails_the_type_check(tmp_path: Path, body: str, error: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"from playproof_kernel.arrays import Sim\n\n\ndef look(sim: Sim) -> int:\n    {body}\n")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    said, failed, code = api.run([*options, str(module)])
    assert not failed
    assert (code != 0) == bool(error), said
    assert error in said


def test_no_function_of_the_kernel_takes_just_anything_for_the_bundle() -> None:
    for source in sorted(Path(playproof_kernel.arrays.__file__).parent.rglob("*.py")):
        assert "sim: Any" not in source.read_text("utf-8"), source.name
