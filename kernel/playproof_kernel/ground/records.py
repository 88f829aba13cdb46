"""Records: what one row of an array is, declared once, and arrays of such rows.

A record is a class whose annotations are its fields, with what a new row has in them::

    class Seat(Record):
        worker: i8 = NONE
        taken_at: i8 = 0

From it come the dtype (`Seat.dtype`), a new array (`records(4, Seat)`) and a blank row (`records(1, Seat)`), which
compiled code assigns where a row is used again. A bundle says of each array what it has one row of, a `Dimension`; from
that come its allocation and its growth. To a type checker ``rows[3]`` is a `Seat`, so that a misspelt field is an error
before anything runs; at run time it is a `numpy.record`, and in compiled code Numba's record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

import numpy as np
import numpy.typing as npt
from playproof_spec.deployment import MAX_DRAFTS

__all__ = [
    "Dimension",
    "Grid",
    "Record",
    "Rows",
    "allocate",
    "enlarged",
    "f8",
    "f8s",
    "fields_of",
    "i4",
    "i8",
    "i8s",
    "per_draft",
    "records",
    "untouched",
]

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
    i8, i4, f8 = (np.int64, ()), (np.int32, ()), (np.float64, ())
    i8s, f8s, per_draft = (np.int64, (2,)), (np.float64, (2,)), (np.float64, (MAX_DRAFTS,))
_KINDS: dict[str, Any] = {"i8": i8, "i4": i4, "f8": f8, "i8s": i8s, "f8s": f8s, "per_draft": per_draft}


class Record:
    """One row of an array; see the module.

    Attributes
    ----------
    dtype : numpy.dtype
        Aligned, so that compiled code reads whole words.
    """

    dtype: ClassVar[np.dtype[Any]]
    # The fields of a new row that are not 0, with what they are.
    _initial: ClassVar[tuple[tuple[str, Any], ...]]

    if TYPE_CHECKING:

        def __getitem__(self, field: str) -> Any: ...

    def __init_subclass__(cls) -> None:
        fields = [(name, *_KINDS[kind]) for name, kind in cls.__annotations__.items()]
        cls.dtype = np.dtype((np.record, np.dtype(fields, align=True)))
        given = ((name, getattr(cls, name, 0)) for name in cls.__annotations__)
        cls._initial = tuple((name, value) for name, value in given if value != 0)


RecordT = TypeVar("RecordT", bound=Record)
BundleT = TypeVar("BundleT")
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
            elif hasattr(np.ndarray, name):
                super().__setattr__(name, value)
            else:
                raise AttributeError(f"records of {self.dtype} have no field {name}")

    Grid = Rows


def records(shape: int | tuple[int, ...], kind: type[Record]) -> Any:
    """Return new rows, each field as its record declares it.

    Parameters
    ----------
    shape : int or tuple of int
        A `Rows` of `kind` for an int, else a `Grid`.
    kind : type
    """
    array = untouched(shape, kind)
    for name, value in kind._initial:
        array[name] = value
    return array


def untouched(shape: int | tuple[int, ...], kind: type[Record]) -> Any:
    """Return rows of zeros, whose memory the system gives as it is touched: for rows that are made blank before use."""
    return np.zeros(shape, kind.dtype).view(Rows)


class Dimension:
    """How many rows arrays of a bundle have that belong together.

    Parameters
    ----------
    says : str
        What there are so many of.
    """

    def __init__(self, says: str) -> None:
        self.says = says

    def __repr__(self) -> str:
        return f"Dimension({self.says!r})"


@dataclass(frozen=True)
class Field:
    """A field of a bundle: what its elements are, a record or the type of a number, and how many there are."""

    name: str
    element: Any
    dimensions: tuple[Dimension, ...]

    def new(self, shape: tuple[int, ...]) -> Any:
        """Return the array of a run that has not started."""
        if issubclass(self.element, Record):
            return records(shape, self.element)
        return np.zeros(shape, self.element)


@cache
def fields_of(bundle: Any) -> tuple[Field, ...]:
    """Return the fields of a named tuple of arrays, which annotates each as ``Annotated[Rows[Live], REQUESTS]``."""
    fields = []
    for name, kind in get_type_hints(bundle, include_extras=True).items():
        array, *dimensions = get_args(kind)
        element = get_args(array)[-1]
        if get_origin(element) is np.dtype:
            element = get_args(element)[0]
        fields.append(Field(name, element, tuple(dimensions)))
    return tuple(fields)


def allocate(bundle: Callable[..., BundleT], sizes: Mapping[Dimension, int], given: Mapping[str, Any]) -> BundleT:
    """Return a bundle of new arrays.

    Parameters
    ----------
    bundle : type
        A named tuple; see `fields_of`.
    sizes : mapping
        Of the dimensions of all arrays that are not given.
    given : mapping
        Arrays that are more than new rows, by field.

    Raises
    ------
    ValueError
        When two arrays differ in how many there are of one dimension, or one is given that there is none of.
    """
    known, arrays = dict(sizes), {}
    if unknown := set(given) - {field.name for field in fields_of(bundle)}:
        raise ValueError(f"{bundle} has no {', '.join(sorted(unknown))}")
    for field in fields_of(bundle):
        array = given[field.name] if field.name in given else field.new(tuple(known[d] for d in field.dimensions))
        if len(array.shape) != len(field.dimensions):
            raise ValueError(f"{field.name} has {len(array.shape)} dimensions, and {field.dimensions} wanted")
        for dimension, size in zip(field.dimensions, array.shape, strict=True):
            if known.setdefault(dimension, size) != size:
                raise ValueError(f"{field.name} is for {size} {dimension.says}, where there are {known[dimension]}")
        arrays[field.name] = array
    return bundle(**arrays)


def enlarged(bundle: Any, sizes: Mapping[Dimension, int]) -> Any:
    """Return a bundle whose arrays have more rows of some dimensions, new ones behind those that there were.

    Parameters
    ----------
    sizes : mapping
        How many there are to be of each dimension that grows.
    """
    kind: Any = type(bundle)
    larger = {}
    for field in fields_of(kind):
        if not any(dimension in sizes for dimension in field.dimensions):
            continue
        array = getattr(bundle, field.name)
        shape = tuple(sizes.get(d, size) for d, size in zip(field.dimensions, array.shape, strict=True))
        larger[field.name] = field.new(shape)
        larger[field.name][tuple(map(slice, array.shape))] = array
    return bundle._replace(**larger)
