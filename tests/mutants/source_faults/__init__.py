"""Single faults of the source over the five rooms, each with the tests that must see it."""

from __future__ import annotations

from source_faults.face import FACE
from source_faults.fault import Fault
from source_faults.kernel import KERNEL
from source_faults.lowering import LOWERING
from source_faults.native import NATIVE
from source_faults.spec import SPEC

__all__ = ["FAULTS", "Fault"]

FAULTS: tuple[Fault, ...] = (*SPEC, *LOWERING, *KERNEL, *FACE, *NATIVE)
