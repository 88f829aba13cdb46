"""From trace files of any supported format to one typed graph, and back to canonical files.

One call reads, :func:`load_graph`; one writes, :func:`write_v2`. Readers of single formats, sources and the builder are
this room's own business. The names are imported when they are used: who only asks for the list of formats
(`formats.py`) does not wait for the compiler that the readers bring along.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playproof_lowering.load import Lowered, LoweringOptions, load_graph
    from playproof_lowering.placing import placed
    from playproof_lowering.writer import write_v2

__all__ = ["Lowered", "LoweringOptions", "load_graph", "placed", "write_v2"]

_MODULES = {
    "Lowered": "load",
    "LoweringOptions": "load",
    "load_graph": "load",
    "placed": "placing",
    "write_v2": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
