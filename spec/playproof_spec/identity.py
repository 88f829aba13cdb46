"""The rules of cache identity (obligation M6), as terms: proven by z3, evaluated beside runs, and read off code.

A term is SMT-LIB text over integers. The rules stand here once. `machine_proofs` shows that they keep play instances
apart; a kernel gives what its own functions compute (:class:`Computed`, made by :func:`written_out`), and M6 shows that
this is what the rules say; a check of runs evaluates the rules on what was really written (:func:`evaluate`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, mul, sub
from typing import Any, Final, NoReturn

__all__ = [
    "HOST_KEY_RULE",
    "IDENTITY_RULE",
    "NAMESPACE_RULE",
    "NUMBER_RULE",
    "Computed",
    "Term",
    "evaluate",
    "written_out",
]

# A block's identity is interned from the identity before it and its tokens; the first one before is the namespace.
IDENTITY_RULE: Final = "(step before tokens)"
# Play instance number `ordinal` of lane `lane` has this number as its namespace.
NAMESPACE_RULE: Final = "(+ (* ordinal lanes) lane)"
# Host memory, a worker's own or one for all, has a block under its identity and nothing else.
HOST_KEY_RULE: Final = "block"
# As a number: the blocks of a corpus are numbered below `span`, and each namespace has that many numbers of its own.
NUMBER_RULE: Final = "(+ (* space span) offset)"

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul}


@dataclass(frozen=True, slots=True)
class Computed:
    """What a kernel computes of identities, as terms.

    Attributes
    ----------
    namespace : str
        What is added to the block numbers of a play instance, over ``lane``, ``ordinal``, ``lanes`` and ``span``.
    keys : tuple[str, ...]
        The key of a block, by each function that says one: over ``space``, what is added, and ``first``, ``begin``,
        ``stride`` and ``block``, the run of numbers that it stands in.
    """

    namespace: str
    keys: tuple[str, ...]


class Term:
    """A number that code computes, as the text of how: what the code does to it is written down.

    Sums, differences and products alone. Code that decides by a term is refused, since what it does then is one case of
    several.

    Examples
    --------
    >>> Term("a") * 2 + Term("b")
    (+ (* a 2) b)
    """

    __slots__ = ("text",)

    def __init__(self, text: object) -> None:
        self.text = str(text)

    def __repr__(self) -> str:
        return self.text

    def __add__(self, other: object) -> Term:
        return Term(f"(+ {self} {other})")

    def __radd__(self, other: object) -> Term:
        return Term(f"(+ {other} {self})")

    def __sub__(self, other: object) -> Term:
        return Term(f"(- {self} {other})")

    def __rsub__(self, other: object) -> Term:
        return Term(f"(- {other} {self})")

    def __mul__(self, other: object) -> Term:
        return Term(f"(* {self} {other})")

    def __rmul__(self, other: object) -> Term:
        return Term(f"(* {other} {self})")

    def _decided(self, other: object = None) -> NoReturn:
        raise TypeError(f"code that decides by {self} is no term")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _decided
    __eq__ = __ne__ = _decided
    __hash__ = None  # type: ignore[assignment]


def written_out(
    function: Callable[..., Any], *arguments: Any, given: Mapping[str, Callable[..., Any]] | None = None
) -> Any:
    """Run the source of `function` on terms instead of numbers, and return what it returns.

    Parameters
    ----------
    function : callable
        A plain Python function. Its ``int``, which is there for the types, does nothing.
    arguments
        Terms, numbers, and whatever has attributes that are such.
    given : mapping of str to callable, optional
        Built-in functions that are to decide otherwise, such as a ``max`` that takes its first argument.

    Raises
    ------
    TypeError
        When it decides by a term.

    Examples
    --------
    >>> written_out(lambda a, b: int(a * b), Term("a"), Term("b"))
    (* a b)
    """
    names = {**function.__globals__, "int": lambda term: term, **(given or {})}
    return types.FunctionType(function.__code__, names)(*arguments)


def evaluate(term: str, **values: Any) -> Any:
    """Return the value of a term of sums, differences and products of two.

    Parameters
    ----------
    term : str
    values : number or array
        By name; integers in the term stand for themselves.

    Raises
    ------
    ValueError
        When the text is no such term.

    Examples
    --------
    >>> evaluate(NAMESPACE_RULE, ordinal=2, lanes=10, lane=3)
    23
    """
    words = term.replace("(", " ( ").replace(")", " ) ").split()
    value = _value(words, values)
    if words:
        raise ValueError(f"{term} is more than one term")
    return value


def _value(words: list[str], values: Mapping[str, Any]) -> Any:
    """Take the first term off `words` and return its value."""
    if not words:
        raise ValueError("a term ends too early")
    word = words.pop(0)
    if word != "(":
        if word not in values and not word.isdecimal():
            raise ValueError(f"{word} is no value")
        return values[word] if word in values else int(word)
    operator = words.pop(0) if words else ""
    if operator not in _OPERATORS:
        raise ValueError(f"{operator} is no operator")
    first, second = _value(words, values), _value(words, values)
    if not words or words.pop(0) != ")":
        raise ValueError("a term has more than two operands")
    return _OPERATORS[operator](first, second)
