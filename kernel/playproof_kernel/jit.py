"""The one way a function of the kernel is compiled.

Compiled functions are leaves of the program: module-level, arrays and scalars in, arrays written in place, no object,
dict or callback inside. With ``NUMBA_DISABLE_JIT=1`` the same source runs interpreted and gives the same ledger; a
property test says so. No fast-math: it would break that equality.

Machine code is kept on disk. Numba judges a kept function by its own file alone, but ours call each other across files
and have the machines' tables compiled in; so the code is kept under a digest of all sources it may depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import blake3
import numba
import playproof_spec

Function = TypeVar("Function", bound=Callable[..., object])


def _cache_folder() -> str:
    here = Path(__file__).parent
    digest = blake3.blake3()
    for folder in (here, Path(playproof_spec.__file__).parent):
        for source in sorted(folder.glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
    return str(here / "__pycache__" / f"compiled-{digest.hexdigest(8)}")


_CACHE_FOLDER = _cache_folder()


def compiled(function: Function) -> Function:
    """Compile `function` when a compiled function first calls it."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """Compile `function` into each caller: for what runs once a block, where a call costs more than the work."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy", inline="always")(function))


def compiled_entry(function: Function) -> Function:
    """Compile `function`, which Python calls, and keep its machine code, callees included, for the next process."""
    # The setting is read while a function is decorated; other users of Numba in this process keep theirs.
    config: Any = numba.core.config
    before = config.CACHE_DIR
    config.CACHE_DIR = before or _CACHE_FOLDER
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    finally:
        config.CACHE_DIR = before
