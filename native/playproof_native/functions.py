"""The marks of functions that may be compiled, and the door through which Python calls them.

A marked function stays the plain Python function that it is. Python runs it as such, which needs no compiler at all;
`compiler` gives it a compiled twin when one is wanted. One source serves both; which of the two runs is decided where a
run begins (`modes`), not where a function is defined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from playproof_native import modes

Function = TypeVar("Function", bound=Callable[..., object])
Bundle = TypeVar("Bundle", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """A function that may be compiled.

    Attributes
    ----------
    function : callable
        The plain Python function.
    allocates : bool
        Whether it makes arrays of its own, and so needs Numba's runtime, which counts references to every array that a
        function is given. In the kernel that counting took three fifths of a replay's time.
    """

    function: Callable[..., Any]
    allocates: bool


# Every marked function and every bundle of arrays, in the order of definition; `compiler` reads both.
MARKED: list[Marked] = []
BUNDLES: list[type] = []


class Entry:
    """A compiled function that Python calls; its machine code is kept, callees included.

    Called, it runs compiled or interpreted as `modes` says.
    """

    def __init__(self, marked: Marked) -> None:
        functools.update_wrapper(self, marked.function)
        self.marked = marked
        # Made by the compiler, on demand: for calls from Python, and for calls from other compiled functions.
        self.dispatcher: Any = None
        self.callee: Any = None

    @property
    def name(self) -> str:
        """The name under which its machine code is kept."""
        function = self.marked.function
        return f"{function.__module__}.{function.__qualname__}"

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks of a value that compiled code refers to."""
        from playproof_native import compiler

        return compiler.type_of(self)

    def __call__(self, *arguments: Any) -> Any:
        """Run the function in the mode of this moment."""
        if modes.interpreted(self):
            # Integers wrap around in both modes; NumPy would warn of it where a compiled function says nothing.
            with np.errstate(over="ignore"):
                return self.marked.function(*arguments)
        from playproof_native import compiler

        return compiler.call(self, arguments)


ENTRIES: list[Entry] = []


def compiled(function: Function) -> Function:
    """Mark a function that only other compiled functions call: no Python object in it, no array made by it."""
    MARKED.append(Marked(function, allocates=False))
    return function


def allocating(function: Function) -> Function:
    """Mark a function that only other compiled functions call, and that makes arrays."""
    MARKED.append(Marked(function, allocates=True))
    return function


def compiled_entry(function: Function) -> Function:
    """Mark a function that Python calls, and that makes no array; its machine code is kept for the next process."""
    return _entry(function, allocates=False)


def allocating_entry(function: Function) -> Function:
    """Mark a function that Python calls, and that makes arrays; its machine code is kept for the next process."""
    return _entry(function, allocates=True)


def _entry(function: Function, *, allocates: bool) -> Function:
    entry = Entry(Marked(function, allocates))
    ENTRIES.append(entry)
    return cast(Function, entry)


def by_reference(bundle: type[Bundle]) -> type[Bundle]:
    """Let compiled functions take a named tuple of arrays as one pointer, however many arrays it has.

    Given by value, each array is seven arguments of every function that the tuple goes through; Numba spent three
    quarters of its time on those. Python sees the named tuple as before. Compiled code may read its fields, and write
    into the arrays, but not make such a tuple.
    """
    BUNDLES.append(bundle)
    return bundle


def constant(value: int) -> int:
    """Return `value` as compiled functions should see a constant that they pass on.

    A literal, or a Python number of a module, would have every callee compiled once more for each value.
    """
    return cast(int, np.int64(value))


class Interpreted:
    """A function that runs in interpreted code alone; where compiled code calls it, nothing happens."""

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.marked = Marked(_nothing, allocates=False)
        self.callee: Any = None  # made by the compiler

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks of a value that compiled code refers to."""
        from playproof_native import compiler

        return compiler.type_of(self)

    def __call__(self, *arguments: Any) -> None:
        """Run the function."""
        self.function(*arguments)


def _nothing(*_arguments: Any) -> None:
    pass


def interpreted_only(function: Function) -> Function:
    """Mark a function that returns nothing and runs interpreted only: an assertion too dear for compiled code."""
    return cast(Function, Interpreted(cast(Callable[..., None], function)))
