"""Records: what one row of an array is, declared once, and arrays of such rows.

A record is a class whose annotations are its fields, with what a new row has in them::

    class Seat(Record):
        worker: i8 = NONE
        taken_at: i8 = 0

From it come the dtype (`Seat.dtype`), a new array (`records(4, Seat)`) and a blank row (`blank(Seat)`), which compiled
code assigns where a row is used again. To a type checker ``rows[3]`` is a `Seat`, so that a misspelt field is an error
before anything runs; at run time it is a `numpy.record`, and in compiled code Numba's record.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
from playproof_spec.deployment import MAX_DRAFTS

__all__ = ["Grid", "Record", "Rows", "blank", "f8", "f8s", "i4", "i8", "i8s", "per_draft", "records"]

# The kinds of fields, by the names under which records declare them: numbers; one for each of two directions or passes;
# one for each draft. A type checker sees what an element is.
if TYPE_CHECKING:
    i8 = int
    i4 = int
    f8 = float
    i8s = npt.NDArray[np.int64]
    f8s = npt.NDArray[np.float64]
    per_draft = npt.NDArray[np.float64]
else:
    i8, i4, f8 = np.int64, np.int32, np.float64
    i8s, f8s, per_draft = (np.int64, (2,)), (np.float64, (2,)), (np.float64, (MAX_DRAFTS,))

_KINDS: dict[str, Any] = {
    "i8": (np.int64, ()),
    "i4": (np.int32, ()),
    "f8": (np.float64, ()),
    "i8s": (np.int64, (2,)),
    "f8s": (np.float64, (2,)),
    "per_draft": (np.float64, (MAX_DRAFTS,)),
}


class Record:
    """One row of an array; see the module.

    Attributes
    ----------
    dtype : numpy.dtype
        Aligned, so that compiled code reads whole words.
    """

    dtype: ClassVar[np.dtype[Any]]

    def __init_subclass__(cls) -> None:
        fields = [(name, *_KINDS[kind]) for name, kind in cls.__annotations__.items()]
        cls.dtype = np.dtype((np.record, np.dtype(fields, align=True)))


RecordT = TypeVar("RecordT", bound=Record)
Index = int | np.integer[Any]

if TYPE_CHECKING:

    class Rows(Generic[RecordT]):
        """To a type checker: an array of one dimension whose elements are records."""

        shape: tuple[int]
        dtype: np.dtype[Any]

        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[RecordT]: ...
        @overload
        def __getitem__(self, at: Index) -> RecordT: ...
        @overload
        def __getitem__(self, at: slice | npt.NDArray[Any] | list[int]) -> Rows[RecordT]: ...
        @overload
        def __getitem__(self, at: str) -> Any: ...
        def __getitem__(self, at: Any) -> Any: ...
        def __setitem__(self, at: Any, value: Any) -> None: ...
        def __getattr__(self, column: str) -> Any: ...
        def __setattr__(self, column: str, value: Any) -> None: ...

    class Grid(Generic[RecordT]):
        """To a type checker: an array of two dimensions whose elements are records."""

        shape: tuple[int, int]
        dtype: np.dtype[Any]

        def __len__(self) -> int: ...
        @overload
        def __getitem__(self, at: Index) -> Rows[RecordT]: ...
        @overload
        def __getitem__(self, at: tuple[Index, Index]) -> RecordT: ...
        @overload
        def __getitem__(self, at: Any) -> Any: ...
        def __getitem__(self, at: Any) -> Any: ...
        def __setitem__(self, at: Any, value: Any) -> None: ...
        def __getattr__(self, column: str) -> Any: ...

else:

    class Rows(np.ndarray):
        """Records whose fields can be read and written as attributes, compiled or not.

        NumPy's own `recarray` does the same at three times the cost, which the set-up of a small run is made of.
        """

        def __getattr__(self, name: str) -> Any:
            fields = self.dtype.fields
            if fields is None or name not in fields:
                raise AttributeError(f"records of {self.dtype} have no field {name}")
            field = self[name]
            return field if field.dtype.names else field.view(np.ndarray)

        def __setattr__(self, name: str, value: Any) -> None:
            fields = self.dtype.fields
            if fields is not None and name in fields:
                self[name] = value
            else:
                super().__setattr__(name, value)

    Grid = Rows


def records(shape: int | tuple[int, ...], kind: type[Record]) -> Any:
    """Return new rows, each field as its record declares it.

    Parameters
    ----------
    shape : int or tuple of int
        A `Rows` of `kind` for an int, else a `Grid`.
    kind : type
    """
    array: Any = np.zeros(shape, kind.dtype).view(Rows)
    if prod(shape if isinstance(shape, tuple) else (shape,)) > 0:
        # A row of zeros is what memory that was never touched has.
        for name, value in _defaults(kind):
            array[name] = value
    return array


def blank(kind: type[Record]) -> Any:
    """Return one new row, in an array of its own, for compiled code to assign."""
    return records(1, kind)


def _defaults(kind: type[Record]) -> list[tuple[str, Any]]:
    given = ((name, getattr(kind, name, 0)) for name in kind.__annotations__)
    return [(name, value) for name, value in given if value != 0]
