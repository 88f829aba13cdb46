"""The law of playproof: state machines as tables, the typed graph, findings, proofs and certificates."""

from playproof_spec.catalogue import CATALOGUE, Kind, Severity
from playproof_spec.certificate import Certificate, Obligation, ProvenGraph, examine, prove
from playproof_spec.digest import graph_digest, tables_digest
from playproof_spec.findings import Finding, Findings, InvalidInput, Where, finding
from playproof_spec.graph import Carried, Edge, Graph, Node, Play, Relation, Source, Trigger
from playproof_spec.machines import MACHINES, IllegalTransition, Machine
from playproof_spec.sketch import sketch

__all__ = [
    "CATALOGUE",
    "MACHINES",
    "Carried",
    "Certificate",
    "Edge",
    "Finding",
    "Findings",
    "Graph",
    "IllegalTransition",
    "InvalidInput",
    "Kind",
    "Machine",
    "Node",
    "Obligation",
    "Play",
    "ProvenGraph",
    "Relation",
    "Severity",
    "Source",
    "Trigger",
    "Where",
    "examine",
    "finding",
    "graph_digest",
    "prove",
    "sketch",
    "tables_digest",
]
