"""The formats that traces are read from: one line each. All else about a format stands in its module.

Naming a format imports nothing; its module is imported when a file has to be told or read.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from playproof_spec.catalogue import declare

from playproof_lowering.reader import Confidence, Reader, head_of

__all__ = ["FORMATS", "beside", "detect", "reader", "readers"]

# The module of each format. Of formats that are equally sure of a file, the first reads it.
_MODULES: Final = {
    "agentic_mooncake": "agentic_mooncake",
    "weka": "weka",
    "claude": "claude_format",
    "codex": "codex_format",
    "dynamo": "dynamo",
    "mooncake": "mooncake",
    "mooncake-delta": "mooncake_delta",
    "applied_compute_agentic": "applied_compute",
    "qwen-bailian": "qwen_bailian",
    "atif": "atif",
    "otel-genai": "otel",
    "claude-stream": "claude_stream",
    "codex-exec": "codex_exec",
}

FORMATS: Final = tuple(_MODULES)


@cache
def reader(name: str) -> Reader:
    """Return the reader of a format; the findings of its own are in the catalogue from then on.

    Raises
    ------
    KeyError
        When there is no such format.
    """
    module = import_module(f"playproof_lowering.{_MODULES[name]}")
    found: Reader = module.READER
    assert found.name == name, f"{module.__name__} is registered as {name} and says that it is {found.name}"
    if found.kinds:
        declare(found.title, found.kinds)
    return found


def readers() -> tuple[Reader, ...]:
    """Return all readers, in the order of registration."""
    return tuple(reader(name) for name in FORMATS)


def detect(start: bytes) -> str | None:
    """Return the name of the format that is surest of a file which begins with `start`, None where none is.

    Parameters
    ----------
    start : bytes
        The first 4 KiB hold the marks of every real record.
    """
    head = head_of(start)
    if not head.texts:
        return None
    sure = {each.name: each.marks(head) for each in readers()}
    best = max(sure, key=sure.__getitem__)
    return best if sure[best] is not Confidence.NONE else None


def beside(relative: str) -> str | None:
    """Return the name of the format beside whose files one of that path stands, None for none."""
    return next((each.name for each in readers() if each.knows_path is not None and each.knows_path(relative)), None)
