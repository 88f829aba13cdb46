"""Certificates: what was proven of a graph, how, and at what cost; and the only door to a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from playproof_spec.digest import graph_digest, tables_digest
from playproof_spec.findings import Finding, Findings, InvalidInput, finding
from playproof_spec.graph import Graph
from playproof_spec.obligation import FAILED, NOT_APPLICABLE, PROVEN, Obligation, Stopwatch
from playproof_spec.proofs import prove_failures, prove_joins
from playproof_spec.recorded import prove_recorded
from playproof_spec.reduction import distinct_shapes, reduce_plays
from playproof_spec.shape import check_shape
from playproof_spec.topology import check_cycles, check_reachability, topology

__all__ = ["Certificate", "Obligation", "ProvenGraph", "examine", "prove"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was shown of one graph.

    Attributes
    ----------
    tables_digest : str
        Names the machines that were in force.
    left_out : Mapping
        What the corpus has besides, as far as it could not be read and was left out: counts by kind and names. Of that
        nothing was shown.
    """

    obligations: tuple[Obligation, ...]
    graph_digest: str
    tables_digest: str
    plays: int
    nodes: int
    edges: int
    shapes: int
    left_out: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> Mapping[str, object]:
        """Return the certificate as JSON values."""
        return {
            "graph_digest": self.graph_digest,
            "tables_digest": self.tables_digest,
            "plays": self.plays,
            "nodes": self.nodes,
            "edges": self.edges,
            "shapes": self.shapes,
            "left_out": dict(self.left_out),
            "obligations": [
                {"code": o.code, "title": o.title, "verdict": o.verdict, "how": o.how, "wall_ms": o.wall_ms}
                for o in self.obligations
            ],
        }


_KEY: Final = object()


class ProvenGraph:
    """A graph whose every obligation from G1 to G5 is proven. Only :func:`prove` makes one; only this replays.

    Attributes
    ----------
    graph : Graph
        The copy that was proven (:meth:`~playproof_spec.graph.Graph.sealed`). It cannot be changed, or exchanged.
    certificate : Certificate
    findings : tuple[Finding, ...]
        Warnings and notes; a proven graph has no errors.
    """

    __slots__ = ("certificate", "findings", "graph")

    certificate: Certificate
    findings: tuple[Finding, ...]
    graph: Graph

    def __init__(self, key: object, graph: Graph, certificate: Certificate, findings: tuple[Finding, ...]) -> None:
        if key is not _KEY:
            raise TypeError("a ProvenGraph comes from prove() only")
        for name, value in (("graph", graph), ("certificate", certificate), ("findings", findings)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a proven graph stays as it was proven: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a proven graph stays as it was proven: {name} cannot be deleted")

    def __repr__(self) -> str:
        graph = self.graph
        sizes = f"{len(graph.plays)} plays, {graph.node_count} requests, {graph.edge_count} edges"
        return f"<ProvenGraph of {sizes}, digest {self.certificate.graph_digest[:16]}…>"

    def _repr_html_(self) -> str:
        """Return what was proven, as a table for notebooks."""
        from playproof_spec.html import table

        obligations = self.certificate.obligations
        rows = ((each.code, each.title, each.verdict, each.how) for each in obligations)
        return table(repr(self).strip("<>"), ("obligation", "what", "verdict", "how"), rows)


# While one of these stands, a play has no structure, or no times, that the provers could look at.
_NEEDS_STRUCTURE: Final = frozenset(
    {"graph-empty", "id-duplicate", "edge-dangling", "edge-self", "edge-cross-play", "cycle"}
    | {"play-without-root", "node-unreachable"}
)
_NEEDS_TIMES: Final = frozenset({"time-not-finite", "time-negative", "time-beyond-horizon"})


def examine(graph: Graph, findings: Findings) -> tuple[tuple[Obligation, ...], int]:
    """Try every graph obligation; what breaks becomes a finding.

    Parameters
    ----------
    graph : Graph
    findings : Findings
        Receives what is found.

    Returns
    -------
    obligations : tuple[Obligation, ...]
        G1 to G6. One whose premises are broken is ``not_applicable``: what it would say has been said.
    shapes : int
        Distinct shapes of plays.
    """
    found = Findings(findings.limit_per_code)
    watch = Stopwatch()
    check_shape(graph, found)
    g1 = watch.stop(
        "G1",
        "nodes and edges are well-formed",
        FAILED if found.errors else PROVEN,
        f"array checks of {graph.node_count} nodes and {graph.edge_count} edges",
    )
    watch = Stopwatch()
    order = topology(graph)
    check_cycles(graph, order, found)
    how = "a topological order of all nodes, checked edge by edge" if order.acyclic else "networkx names the circles"
    g2 = watch.stop("G2", "dependencies have no circle", PROVEN if order.acyclic else FAILED, how)
    watch = Stopwatch()
    unreached = check_reachability(graph, order, found)
    how = f"search from the roots of {len(graph.plays)} plays"
    g3 = watch.stop("G3", "a root of its play leads to every node", FAILED if unreached else PROVEN, how)

    broken = set(found.counts)
    watch = Stopwatch()
    g6 = watch.stop(
        "G6", "recorded times satisfy the edges", NOT_APPLICABLE, "needs a graph without findings of G1 to G3"
    )
    if broken & _NEEDS_STRUCTURE:
        how = "needs plays without the findings of G1 to G3"
        g4 = watch.stop("G4", "every join can be satisfied", NOT_APPLICABLE, how)
        g5 = watch.stop("G5", "failures are contained", NOT_APPLICABLE, how)
        shapes = 0
    else:
        reduced = distinct_shapes(graph, order, reduce_plays(graph, order))
        shapes = len(reduced)
        if broken & _NEEDS_TIMES:
            g4 = watch.stop("G4", "every join can be satisfied", NOT_APPLICABLE, "needs times without findings of G1")
        else:
            g4 = prove_joins(graph, order, reduced, found)
            g6 = prove_recorded(graph, order, found)
        g5 = prove_failures(graph, order, reduced, found)
    # What a reader said of a place in its own words need not be said again.
    said = {_place(item) for item in findings.items}
    fresh = Findings(findings.limit_per_code)
    for item in found.items:
        if _place(item) not in said:
            fresh.add(item)
    for code, count in found.counts.items():
        fresh.add_count(code, count - sum(item.code == code for item in found.items))
    findings.extend(fresh)
    return (g1, g2, g3, g4, g5, g6), shapes


def _place(item: Finding) -> tuple[str, str, int, str]:
    return item.code, item.where.file, item.where.line, item.where.field


def prove(graph: Graph, findings: Findings | None = None) -> ProvenGraph:
    """Show every graph obligation, or say what breaks.

    Parameters
    ----------
    graph : Graph
    findings : Findings, optional
        What the reader found already; its warnings travel with the proven graph, its errors refuse it.

    Returns
    -------
    ProvenGraph
        The graph with its certificate. The digest is the one of a finite replay at recorded speed (floors shifted).

    Raises
    ------
    InvalidInput
        With all findings, when any of them is an error.

    Notes
    -----
    Linear in nodes and edges but for z3, whose work is bounded; hash ids are read once, for the digest.
    """
    everything = Findings() if findings is None else findings
    graph = graph.sealed()
    obligations, shapes = examine(graph, everything)
    if not everything.errors:
        # A proof that fails without a finding is our fault, and still no proof.
        for o in obligations:
            # What a recording contradicts is told, and replayed by its edges.
            if o.verdict != PROVEN and o.code != "G6":
                everything.add(finding("proof-unknown", f"{o.code} ({o.title}) is {o.verdict}", found=o.how))
    if everything.errors:
        raise InvalidInput(everything)
    certificate = Certificate(
        obligations=obligations,
        graph_digest=graph_digest(graph),
        tables_digest=tables_digest(),
        plays=len(graph.plays),
        nodes=graph.node_count,
        edges=graph.edge_count,
        shapes=shapes,
        left_out=left_out if isinstance(left_out := graph.facts.get("left_out", {}), Mapping) else {},
    )
    return ProvenGraph(_KEY, graph, certificate, everything.items)
