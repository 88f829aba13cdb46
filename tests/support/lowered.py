"""What tests of the readers ask of a lowering."""

from __future__ import annotations

from playproof_lowering import Lowered
from playproof_spec.certificate import prove
from playproof_spec.findings import Finding
from playproof_spec.graph import Graph


def graph_of(result: Lowered) -> Graph:
    """Return the graph, which was read without an error and is proven."""
    assert result.graph is not None
    assert not result.findings.errors, [str(item) for item in result.findings.items]
    prove(result.graph, result.findings)
    return result.graph


def told(result: Lowered, code: str) -> Finding:
    """Return the one finding of that code."""
    found = [item for item in result.findings.items if item.code == code]
    assert len(found) == 1, [str(item) for item in result.findings.items]
    return found[0]


def edges(graph: Graph, request_id: str) -> list[str]:
    """Return the edges into a request, as people read them."""
    return [str(edge).removesuffix(f"→ {request_id}") for edge in graph.edges_into(graph.request_ids.index(request_id))]
