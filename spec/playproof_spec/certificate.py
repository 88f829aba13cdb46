"""Certificates: what was proven of a graph, how, and at what cost; and the only door to a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from playproof_spec.findings import Finding, Findings, InvalidInput
from playproof_spec.graph import Graph


@dataclass(frozen=True, slots=True)
class Obligation:
    """One obligation's verdict.

    Attributes
    ----------
    code : str
        G1 … G7, M1 … M6.
    title : str
    verdict : str
        ``proven``, ``failed``, ``unproven`` (the prover gave up: never counts as proven) or ``not_applicable``.
    how : str
        The method, with its figures.
    wall_ms : float
        Cost.
    """

    code: str
    title: str
    verdict: str
    how: str
    wall_ms: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was shown of one graph. `tables_digest` names the machines that were in force."""

    obligations: tuple[Obligation, ...]
    graph_digest: str
    tables_digest: str
    plays: int
    nodes: int
    edges: int
    shapes: int

    def to_dict(self) -> Mapping[str, object]:
        """Return the certificate as JSON values."""
        return {
            "graph_digest": self.graph_digest,
            "tables_digest": self.tables_digest,
            "plays": self.plays,
            "nodes": self.nodes,
            "edges": self.edges,
            "shapes": self.shapes,
            "obligations": [
                {"code": o.code, "title": o.title, "verdict": o.verdict, "how": o.how, "wall_ms": o.wall_ms}
                for o in self.obligations
            ],
        }


_KEY: Final = object()


class ProvenGraph:
    """A graph whose every obligation is proven. Only :func:`prove` makes one; only this replays.

    Attributes
    ----------
    graph : Graph
    certificate : Certificate
    findings : tuple[Finding, ...]
        Warnings and notes; a proven graph has no errors.
    """

    __slots__ = ("certificate", "findings", "graph")

    def __init__(self, key: object, graph: Graph, certificate: Certificate, findings: tuple[Finding, ...]) -> None:
        if key is not _KEY:
            raise TypeError("a ProvenGraph comes from prove() only")
        self.graph = graph
        self.certificate = certificate
        self.findings = findings


def prove(graph: Graph, findings: Findings | None = None) -> ProvenGraph:
    """Show every graph obligation, or say what breaks.

    Parameters
    ----------
    graph : Graph
    findings : Findings, optional
        What the reader found already; its warnings travel with the proven graph, its errors refuse it.

    Raises
    ------
    InvalidInput
        With all findings, when any of them is an error.
    """
    raise InvalidInput(findings or Findings())
