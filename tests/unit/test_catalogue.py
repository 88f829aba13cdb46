"""The catalogue of findings and the sources name the same codes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import playproof_kernel
import playproof_lowering
import playproof_reference
import playproof_spec
import pytest
from playproof_lowering.formats import readers
from playproof_spec.catalogue import CATALOGUE, Kind, Severity, declare
from playproof_spec.findings import finding

import playproof

readers()  # formats declare findings of their own
PACKAGES = (playproof, playproof_kernel, playproof_lowering, playproof_reference, playproof_spec)
ROOMS = [Path(inspect.getfile(room)).parent for room in PACKAGES]
# What takes a code as its first argument.
MAKERS = {"finding", "Problem", "SourceError", "add", "_refuse"}


def sources() -> Iterator[ast.Module]:
    for room in ROOMS:
        for source in sorted(room.rglob("*.py")):
            if source.name != "catalogue.py":
                yield ast.parse(source.read_text())


def texts(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def raised(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if name in MAKERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def test_every_code_of_the_catalogue_occurs() -> None:
    named = set().union(*(texts(tree) for tree in sources()))
    assert [code for code in CATALOGUE if code not in named] == []


def test_every_code_raised_is_in_the_catalogue() -> None:
    codes = {code for tree in sources() for code in raised(tree)}
    assert len(codes) > 30
    assert codes - set(CATALOGUE) == set()


def test_a_code_without_an_entry_cannot_be_raised() -> None:
    with pytest.raises(KeyError):
        finding("no-such-code", "nobody wrote down what this means")


def test_a_code_is_declared_once() -> None:
    kind = CATALOGUE["cycle"]
    with pytest.raises(ValueError, match="declared before: cycle"):
        declare("another", (kind,))
    assert Kind("x", Severity.NOTE, "t", "b", "h", "e") not in CATALOGUE.values()
