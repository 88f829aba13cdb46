"""How a function of the kernel is compiled: `playproof_native` by the kernel's rules.

Compiled functions are leaves of the program: module-level, arrays and scalars in, arrays written in place, no object,
dict or callback inside. They run without Numba's runtime: none can allocate, and none counts references to the arrays
that it is given. All memory is Python's, made before a run starts. Interpreted, the same source gives the same ledger;
a property test says so.
"""

from __future__ import annotations

from playproof_native import by_reference, compiled, compiled_entry, constant, interpreted_only

__all__ = ["ONE", "ZERO", "by_reference", "compiled", "compiled_entry", "constant", "interpreted_only", "natural"]

ZERO, ONE = constant(0), constant(1)


@compiled
def natural(number: int) -> int:
    """Return `number`, from 0 to 2^31 - 1, as an index of which the compiler knows that it does not count from the end.

    Looking for that at each access was a third of the instructions of the block pool.
    """
    return number & 0x7FFF_FFFF
