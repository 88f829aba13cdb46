"""SMT-LIB formulas of `playproof_spec.models` as Python functions, so that a test asks of a run what z3 was asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Values = Mapping[str, Any]
_INFIX = {"and": " and ", "or": " or ", "+": " + ", "*": " * "}
_COMPARED = {"=": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def _translated(tokens: list[str]) -> str:
    token = tokens.pop(0)
    if token != "(":
        if token in ("true", "false"):
            return token.capitalize()
        return token if re.fullmatch(r"\d+", token) else f"v[{token!r}]"
    operator = tokens.pop(0)
    parts = []
    while tokens[0] != ")":
        parts.append(_translated(tokens))
    tokens.pop(0)
    if operator in _INFIX:
        return f"({_INFIX[operator].join(parts)})"
    if operator == "-":
        return f"({' - '.join(parts)})" if len(parts) > 1 else f"(-{parts[0]})"
    if operator == "not":
        return f"(not {parts[0]})"
    if operator == "=>":
        return f"((not {parts[0]}) or {parts[1]})"
    if operator == "ite":
        return f"({parts[1]} if {parts[0]} else {parts[2]})"
    return f"({parts[0]} {_COMPARED[operator]} {parts[1]})"


@cache
def compiled(formula: str) -> Callable[[Values], Any]:
    """Return `formula` as a function of the values of its names."""
    tokens = re.findall(r"[()]|[^\s()]+", formula)
    expression = _translated(tokens)
    assert not tokens, f"more than one formula: {formula}"
    function: Callable[[Values], Any] = eval(f"lambda v: {expression}")
    return function


def holds(formula: str, values: Values) -> bool:
    """Return whether `formula` holds of `values`."""
    return bool(compiled(formula)(values))
