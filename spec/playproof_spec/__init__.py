"""The law of playproof: state machines as tables, the typed graph, findings, proofs and certificates."""

from typing import TYPE_CHECKING, Any

from playproof_spec.catalogue import CATALOGUE, Kind, Severity
from playproof_spec.findings import Finding, Findings, InvalidInput, Where, finding
from playproof_spec.graph import Carried, Edge, Graph, Node, Play, Relation, Source, Trigger
from playproof_spec.machines import MACHINES, IllegalTransition, Machine
from playproof_spec.obligation import Obligation
from playproof_spec.sketch import sketch

if TYPE_CHECKING:
    from playproof_spec.certificate import Certificate, ProvenGraph, examine, prove
    from playproof_spec.digest import graph_digest, tables_digest
    from playproof_spec.machine_proofs import prove_machines

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
    "prove_machines",
    "sketch",
    "tables_digest",
]

# These bring a prover or a compiler along, half a second that `playproof --help` should not wait for.
_ON_DEMAND = {
    "Certificate": "certificate",
    "ProvenGraph": "certificate",
    "examine": "certificate",
    "graph_digest": "digest",
    "prove": "certificate",
    "prove_machines": "machine_proofs",
    "tables_digest": "digest",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
