"""Machine code: which functions have any, where it is kept, when it is made, and when Python does without.

Importing this imports no compiler.
"""

from playproof_native.functions import (
    allocating,
    allocating_entry,
    by_reference,
    compiled,
    compiled_entry,
    constant,
    interpreted_only,
)
from playproof_native.modes import Mode, Setting, running
from playproof_native.seams import Seam

__all__ = [
    "Mode",
    "Seam",
    "Setting",
    "allocating",
    "allocating_entry",
    "by_reference",
    "compiled",
    "compiled_entry",
    "constant",
    "interpreted_only",
    "running",
]
