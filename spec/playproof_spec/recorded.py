"""Obligation G6: the recorded times satisfy the recorded edges.

A recording rounds. So what is asked is whether there are times within the format's resolution of those recorded at
which every edge holds. Where the recorded times themselves satisfy all edges, they are such times. Else the earliest
times are followed along the order of the play, each no earlier than its record and its edges allow; one that comes out
later than its record allows contradicts it, and so do the edges on the way. z3 is asked of each contradiction that is
reported whether these edges and records can hold together after all.

A contradiction does not stop a replay, which goes by edges and floors: it tells that the trace, or the reader's idea of
what waited for what, is not what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from playproof_spec.findings import Finding, Findings, finding
from playproof_spec.graph import Graph, Int64, Trigger
from playproof_spec.obligation import FAILED, NOT_APPLICABLE, PROVEN, UNPROVEN, Obligation, Stopwatch
from playproof_spec.places import place
from playproof_spec.proofs import Prover
from playproof_spec.topology import Topology
from playproof_spec.units import HORIZON_NS, ms_to_ns, ns_to_ms

__all__ = ["RESOLUTION_MS", "prove_recorded"]

# How far a recorded instant may lie from the true one, by format. Formats without recorded starts are not here.
RESOLUTION_MS: Final[Mapping[str, float]] = {
    "weka": 1.0,  # seconds, durations in whole milliseconds
    "claude": 1.0,  # ISO 8601 with milliseconds
    "codex": 1.0,
    "dynamo": 1.0,  # milliseconds
    "agentic_mooncake": 1e-3,  # milliseconds as floats: what sums of them may lose
}
# Contradictions that z3 is asked about, and edges of one that a finding names.
ASKED_MAX = 16
NAMED_MAX = 4
_UNKNOWN = -(2**62)


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """Recorded starts and ends in ns; `start_known`, `end_known` say which there are."""

    start: Int64
    end: Int64
    start_known: npt.NDArray[np.bool_]
    end_known: npt.NDArray[np.bool_]
    slack: int

    @classmethod
    def of(cls, graph: Graph) -> _Records:
        timed = ~np.isnan(graph.recorded_api_time_ms)
        # A row of Agentic Mooncake that does not say how long it took need not have been recorded: its floor is one.
        known = timed if graph.source.format == "agentic_mooncake" else np.ones(graph.node_count, np.bool_)
        start = ms_to_ns(graph.not_before_ms)
        took = ms_to_ns(np.where(timed, graph.recorded_api_time_ms, 0.0))
        end = np.minimum(start + np.minimum(took, HORIZON_NS - 1), HORIZON_NS)
        return cls(start, end, known, known & timed, ms_to_ns(RESOLUTION_MS[graph.source.format]))


@dataclass(frozen=True, slots=True)
class _Breach:
    """Node `node` comes `late` ns later than its record allows, by `edges` (places in the topology, in their order)."""

    node: int
    late: int
    edges: tuple[int, ...]


def prove_recorded(graph: Graph, topology: Topology, findings: Findings) -> Obligation:
    """Obligation G6.

    Parameters
    ----------
    graph : Graph
        Acyclic, with well-formed times.
    topology : Topology
    findings : Findings
        Receives a warning for each request whose recorded start contradicts an edge, with its milliseconds.

    Returns
    -------
    Obligation
        ``proven``, ``failed`` with the number of contradictions, or ``not_applicable`` to a format without records.

    Notes
    -----
    O(nodes + edges); plays whose recorded times satisfy all edges as they are cost array operations alone.
    """
    watch = Stopwatch()
    title = "recorded times satisfy the edges"
    if graph.source.format not in RESOLUTION_MS:
        return watch.stop("G6", title, NOT_APPLICABLE, f"{graph.source.format} records no starts")
    records = _Records.of(graph)
    source, target = topology.source, topology.target
    at_end = graph.edge_trigger[topology.number] == Trigger.COMPLETION
    delay = ms_to_ns(graph.edge_delay_ms[topology.number])
    event = np.where(at_end, records.end[source], records.start[source])
    compared = records.start_known[source] & records.start_known[target]
    # Not their sum: two times of the whole clock are more than an integer holds.
    breaks = compared & (event > records.start[target] - delay)
    doubtful = np.unique(graph.node_play[target[breaks]]).astype(np.int64)
    breaches = _breaches(graph, topology, records, doubtful) if len(doubtful) else []
    how = f"{int(compared.sum())} edges at a resolution of {RESOLUTION_MS[graph.source.format]:g} ms: "
    how += f"{len(graph.plays) - len(doubtful)} plays satisfy them as recorded"
    if len(doubtful):
        how += f", {len(doubtful)} were followed along their order"
    agreed = True
    for number, breach in enumerate(breaches):
        if number < findings.limit_per_code:
            findings.add(_finding(graph, topology, breach))
        if number < ASKED_MAX:
            agreed = agreed and not _can_hold(graph, topology, records, breach)
    findings.add_count("recorded-contradiction", len(breaches) - findings.limit_per_code)
    if not breaches:
        return watch.stop("G6", title, PROVEN, how)
    how += f"; {len(breaches)} requests contradict them, z3 agrees on {min(len(breaches), ASKED_MAX)}"
    return watch.stop("G6", title, FAILED if agreed else UNPROVEN, how)


def _breaches(graph: Graph, topology: Topology, records: _Records, plays: Int64) -> list[_Breach]:
    """Follow the earliest times of `plays` along the order; a start that is too late is taken as recorded again."""
    inside = np.isin(graph.node_play[topology.target], plays)
    incoming: dict[int, list[int]] = {}
    for k in np.flatnonzero(inside).tolist():
        incoming.setdefault(int(topology.target[k]), []).append(k)
    nodes = topology.order[np.isin(graph.node_play[topology.order], plays)].tolist()
    at_end = graph.edge_trigger[topology.number] == Trigger.COMPLETION
    earliest: dict[int, int] = {}
    cause: dict[int, int] = {}
    breaches = []
    for node in nodes:
        start = int(records.start[node])
        low = start - records.slack if records.start_known[node] else _UNKNOWN
        for k in incoming.get(node, ()):
            source = int(topology.source[k])
            event = earliest[source]
            recorded = at_end[k] and records.end_known[source] and int(records.end[source]) - records.slack > event
            if recorded:
                event = int(records.end[source]) - records.slack
            due = event + ms_to_ns(float(graph.edge_delay_ms[topology.number[k]]))
            if due > low:
                low = due
                # The path goes on from the source's start, or begins at its recorded end.
                cause[node] = k if not recorded else -1 - k
        late = low - (start + records.slack)
        if records.start_known[node] and late > 0:
            breaches.append(_Breach(node, late, _path(topology, cause, node)))
            low = start + records.slack
            cause.pop(node)
        earliest[node] = low
    return breaches


def _path(topology: Topology, cause: Mapping[int, int], node: int) -> tuple[int, ...]:
    """Return the edges by which `node` comes so late, from the record with which they begin."""
    path: list[int] = []
    while node in cause:
        k = cause[node]
        path.append(k if k >= 0 else -1 - k)
        if k < 0:
            break
        node = int(topology.source[k])
    return tuple(reversed(path))


def _finding(graph: Graph, topology: Topology, breach: _Breach) -> Finding:
    edges = [str(graph.edge(int(topology.number[k]), int(topology.target[k]))) for k in breach.edges]
    named = "; ".join(edges[-NAMED_MAX:]) + (
        f"; behind {len(edges) - NAMED_MAX} more" if len(edges) > NAMED_MAX else ""
    )
    early = ns_to_ms(breach.late) + 2 * RESOLUTION_MS[graph.source.format]
    return finding(
        "recorded-contradiction",
        f"the recorded start lies {early:.6g} ms before {named} can have let it",
        where=place(graph, breach.node, "not_before_ms"),
        found=f"a start at {float(graph.not_before_ms[breach.node]):.6g} ms",
        wanted=f"at least {ns_to_ms(breach.late):.6g} ms later, whatever the recording's rounding",
    )


def _can_hold(graph: Graph, topology: Topology, records: _Records, breach: _Breach) -> bool:
    """Ask z3 whether the edges of a contradiction can hold at times within the resolution of those recorded."""
    nodes = sorted({int(n) for k in breach.edges for n in (topology.source[k], topology.target[k])})
    lines = []
    for node in nodes:
        lines.append(f"(declare-const d{node} Int)(declare-const e{node} Int)(assert (<= d{node} e{node}))")
        for name, known, value in (("d", records.start_known, records.start), ("e", records.end_known, records.end)):
            if known[node]:
                low, high = int(value[node]) - records.slack, int(value[node]) + records.slack
                lines.append(f"(assert (<= {_smt(low)} {name}{node}))(assert (<= {name}{node} {_smt(high)}))")
    for k in breach.edges:
        number, source, target = int(topology.number[k]), int(topology.source[k]), int(topology.target[k])
        name = "e" if graph.edge_trigger[number] == Trigger.COMPLETION else "d"
        delay = ms_to_ns(float(graph.edge_delay_ms[number]))
        lines.append(f"(assert (<= (+ {name}{source} {delay}) d{target}))")
    return Prover().ask("\n".join(lines)).verdict != "unsat"


def _smt(number: int) -> str:
    return str(number) if number >= 0 else f"(- {-number})"
