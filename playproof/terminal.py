"""Standard output and standard error of the command line: escaped, and deaf to a reader that went away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from playproof.render import escaped, escaped_json

__all__ = ["err", "out", "print_json", "print_text", "say"]


def _deafen(stream: TextIO) -> None:
    """Send what is still printed to nowhere: whoever read it has seen enough, and the verdict stays the verdict."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with what a terminal would act upon escaped: names, ids and paths come from foreign files."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escaped(text), style, control)

    def on_broken_pipe(self) -> None:
        """Go on without a reader; Rich would leave with 1, which says that there are errors."""
        _deafen(sys.stderr if self.stderr else sys.stdout)


out = _Console(soft_wrap=True, highlight=False)
err = _Console(stderr=True, soft_wrap=True, highlight=False)


def say(message: str, code: int) -> int:
    """Tell the user on standard error, and return the exit code."""
    err.print(f"playproof: {message}", markup=False)
    return code


def print_json(value: object) -> None:
    """Print a value as JSON, indented."""
    print_text(escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def print_text(text: str) -> None:
    """Print text as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _deafen(sys.stdout)
