"""From trace files of any supported format to one typed graph, and back to canonical files.

One call reads, :func:`load_graph`; one writes, :func:`write_v2`. Readers of single formats, sources and the builder are
this room's own business.
"""

from playproof_lowering.load import Lowered, LoweringOptions, load_graph
from playproof_lowering.writer import write_v2

__all__ = ["Lowered", "LoweringOptions", "load_graph", "write_v2"]
