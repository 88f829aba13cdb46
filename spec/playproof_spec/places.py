"""Where a node or an edge was read, for findings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from playproof_spec.findings import Where
from playproof_spec.graph import Graph

# A finding that names a cycle of thousands names its first requests only.
MAX_IDS = 16


def place(graph: Graph, node: int, field: str = "", ids: tuple[str, ...] | None = None) -> Where:
    """Return where `node` was read.

    Parameters
    ----------
    graph : Graph
    node : int
    field : str
        Field of its row; goes behind the node's JSON path where the format has one.
    ids : tuple[str, ...], optional
        Who is involved; the node's request id by default. At most 16 are kept.
    """
    path = "" if graph.node_path is None else graph.node_path[node]
    return Where(
        file=graph.files[graph.node_file[node]],
        line=int(graph.node_line[node]),
        field=".".join(part for part in (path, field) if part),
        ids=(graph.request_ids[node],) if ids is None else ids[:MAX_IDS],
    )


def in_reading_order(graph: Graph, nodes: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Return the permutation that puts `nodes` into the order of files and lines, ties by node index."""
    return np.lexsort((nodes, graph.node_line[nodes], graph.node_file[nodes]))


def listed(names: list[str] | tuple[str, ...], most: int = 8) -> str:
    """Return names for a message: the first `most`, then how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
