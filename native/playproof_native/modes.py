"""Whether compiled functions run compiled or interpreted at this moment.

Three settings: ``always`` compiles what is not kept, ``never`` interprets, and ``auto`` decides for each stage of the
work (reading and proving, or a replay) from how long it would take interpreted, as `choose` says. The setting is that
of ``PLAYPROOF_COMPILE`` where nothing else is said; ``NUMBA_DISABLE_JIT=1``, which users of Numba know, means never.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from playproof_native.functions import Entry

Setting = Literal["auto", "always", "never"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
VARIABLE = "PLAYPROOF_COMPILE"

# Work that is done within this is not worth the half second in which Numba is imported and machine code is loaded.
TRIFLE_S = 0.4


class Mode(Enum):
    """How compiled functions run."""

    COMPILED = "compiled"
    INTERPRETED = "interpreted"
    # Interpreted, until another process has compiled the function: looked at whenever Python calls it.
    UNTIL_KEPT = "until kept"


_mode: ContextVar[Mode | None] = ContextVar("playproof_mode", default=None)


def default_setting() -> Setting:
    """Return the setting of the environment; ``auto`` where it has none.

    Raises
    ------
    ValueError
        When ``PLAYPROOF_COMPILE`` is not a setting.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "never"
    said = os.environ.get(VARIABLE) or "auto"
    if said not in SETTINGS:
        raise ValueError(f"{VARIABLE} is {said!r}; it may be {', '.join(SETTINGS)}")
    return said


def interpreted(entry: Entry) -> bool:
    """Return whether `entry` is to run interpreted now."""
    mode = _mode.get()
    if mode is None:  # outside of any stage: whoever calls the kernel itself
        return default_setting() == "never"
    if mode is Mode.UNTIL_KEPT:
        from playproof_native import store

        return not store.has(entry)
    return mode is Mode.INTERPRETED


@contextmanager
def running(mode: Mode) -> Iterator[None]:
    """Run compiled functions in `mode` within the body."""
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


def choose(setting: Setting, entries: Sequence[Entry], interpreted_s: float, patience_s: float) -> Mode:
    """Return how a stage of the work should run.

    Parameters
    ----------
    setting : {"auto", "always", "never"}
    entries : sequence of Entry
        What the stage calls.
    interpreted_s : float
        Seconds that it would take interpreted, estimated.
    patience_s : float
        Seconds below which ``auto`` interprets rather than compiles: about what compiling would take.
    """
    if setting == "never":
        return Mode.INTERPRETED
    if setting == "always":
        return Mode.COMPILED
    if interpreted_s <= TRIFLE_S:
        return Mode.INTERPRETED
    from playproof_native import store

    if all(store.has(entry) for entry in entries):
        return Mode.COMPILED
    return Mode.UNTIL_KEPT if interpreted_s <= patience_s else Mode.COMPILED
