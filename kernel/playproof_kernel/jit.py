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
import numpy as np
import playproof_spec

Function = TypeVar("Function", bound=Callable[..., object])


def _cache_folder() -> str:
    """Return where machine code of exactly these sources is kept; ``NUMBA_CACHE_DIR`` moves it."""
    here = Path(__file__).parent
    digest = blake3.blake3()
    for folder in (here, Path(playproof_spec.__file__).parent):
        for source in sorted(folder.glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
    base = Path(_CONFIG.CACHE_DIR) if _CONFIG.CACHE_DIR else here / "__pycache__"
    return str(base / f"compiled-{digest.hexdigest(8)}")


_CONFIG: Any = numba.core.config
_CACHE_FOLDER = _cache_folder()

# Without Numba's runtime no compiled function can allocate, and none counts references to the arrays it is given: the
# counting took three fifths of a replay's time. All memory is Python's, made before a run starts.
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
_NJIT: Any = numba.njit  # `_nrt` is not in its typed signature


def constant(value: int) -> int:
    """Return `value` as compiled functions should see a constant that they pass on.

    A literal, or a Python number of a module, would have every callee compiled once more for each value.
    """
    return cast(int, np.int64(value))


ZERO, ONE = constant(0), constant(1)


def compiled(function: Function) -> Function:
    """Compile `function` when a compiled function first calls it; Python cannot call it.

    Without the two wrappers through which Python would, the whole kernel compiles in two thirds of the time.
    """
    return cast(Function, _NJIT(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function))


def compiled_entry(function: Function) -> Function:
    """Compile `function`, which Python calls, and keep its machine code, callees included, for the next process."""
    # The setting is read while a function is decorated; other users of Numba in this process keep theirs.
    before = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _CACHE_FOLDER
    try:
        return cast(Function, _NJIT(cache=True, **_OPTIONS)(function))
    finally:
        _CONFIG.CACHE_DIR = before


@compiled
def natural(number: int) -> int:
    """Return `number`, from 0 to 2^31 - 1, as an index of which the compiler knows that it does not count from the end.

    Looking for that at each access was a third of the instructions of the block pool.
    """
    return number & 0x7FFF_FFFF
