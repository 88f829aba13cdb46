"""Seams: where one of several functions is called, which one being written in the arrays of a run.

A seam has *choices*, each a named tuple with the same fields, most of them functions, and a number that says in a run
which of them holds: of engines, say, the number of the one that serves the deployment. A `door` is one function of all
choices: it calls that of the choice which holds. Compiled, it is a chain of comparisons around the choices' own
functions, each of which is compiled once; interpreted, it calls what it would.

A choice is registered before the first run that passes the seam. It may come from anywhere: what its module says
belongs to the key below which machine code is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from playproof_native import store
from playproof_native.functions import Marked

Choice = TypeVar("Choice", bound=tuple[Any, ...])


class Seam(Generic[Choice]):
    """A place where one of several choices holds. Each has a field `serves` that says of a description if it is meant.

    Parameters
    ----------
    name : str
        What there is one of, as errors call it.
    holding : callable
        Takes the first two things that a door takes, and returns the number of the choice that holds. Marked as
        compiled.
    """

    def __init__(self, name: str, holding: Callable[[Any, Any], int]) -> None:
        self.name = name
        self.holding = holding
        self._choices: list[Choice] = []
        self._is_open = True

    def register(self, choice: Choice) -> Choice:
        """Add a choice, and return it. Its number is its place.

        Raises
        ------
        RuntimeError
            When a run has passed the seam already: it would not know of it.
        """
        if not self._is_open:
            raise RuntimeError(f"a {self.name} is registered before the first run, not after it")
        self._choices.append(choice)
        if store.is_of_a_room(self.holding.__module__):
            for part in choice:
                module = getattr(part, "__module__", None)
                if callable(part) and module in sys.modules:
                    store.depend_on(module)
        return choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices there are, in the order of their numbers."""
        return tuple(self._choices)

    def number_of(self, described: Any) -> int:
        """Return the number of the first choice whose `serves` says that it is what is described.

        A run is about to begin, so no choice is taken any more.

        Raises
        ------
        ValueError
            When none is.
        """
        self._is_open = False
        for number, choice in enumerate(self._choices):
            if choice.serves(described):  # type: ignore[attr-defined]
                return number
        raise ValueError(f"no {self.name} serves {described}")

    def door(self, name: str) -> Door:
        """Return the function that calls the one called `name` of the choice that holds."""
        return Door(f"{self.name}.{name}", self, name)


class Door:
    """One function of whichever choice holds."""

    def __init__(self, name: str, seam: Seam[Any], part: str) -> None:
        self.__name__ = self.__qualname__ = name
        self._seam, self._part = seam, part
        self._function: Callable[..., Any] | None = None
        self.callee: Any = None  # made by the compiler

    @property
    def marked(self) -> Marked:
        """The function as the compiler takes it."""
        return Marked(self._made(), allocates=False)

    def _made(self) -> Callable[..., Any]:
        if self._function is None:
            self._function = _chain(self.__name__, self._seam, self._part, 0)
        return self._function

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks of a value that compiled code refers to."""
        from playproof_native import compiler

        return compiler.type_of(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function of the choice that holds."""
        return self._made()(*arguments)


class _Others(Door):
    """The same function of the choices behind some number, none before which holds."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.__name__ = self.__qualname__ = name
        self._function = function
        self.callee = None


def _chain(name: str, seam: Seam[Any], part: str, number: int) -> Callable[..., Any]:
    """Return a function that calls the `part` of the choice that holds; none below `number` does."""
    first: Callable[..., Any] = getattr(seam.choices[number], part)
    behind = len(seam.choices) - 1 - number
    if behind == 0:
        return first
    others = _chain(f"{name}.{number + 1}", seam, part, number + 1)
    if behind > 1:
        others = _Others(f"{name}.{number + 1}", others)
    holding, which = seam.holding, np.int64(number)

    def choose(*arguments: Any) -> Any:
        if holding(arguments[0], arguments[1]) == which:
            return first(*arguments)
        return others(*arguments)

    choose.__name__ = choose.__qualname__ = name
    return choose
