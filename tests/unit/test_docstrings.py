"""The examples in docstrings run, and say what they give."""

from __future__ import annotations

import doctest
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOMS = (
    "playproof",
    "playproof_native",
    "playproof_spec",
    "playproof_lowering",
    "playproof_kernel",
    "playproof_reference",
)


def modules_with_examples() -> list[str]:
    """Return the modules of all rooms whose text has an example."""
    found = []
    for room in ROOMS:
        spec = find_spec(room)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            if ">>> " in path.read_text("utf-8"):
                parts = path.relative_to(root).with_suffix("").parts
                found.append(".".join((room, *(part for part in parts if part != "__init__"))))
    return found


def test_every_room_that_users_call_shows_examples() -> None:
    assert {name.partition(".")[0] for name in modules_with_examples()} >= {"playproof", "playproof_spec"}


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(name))
    assert tried.attempted > 0
    assert tried.failed == 0
