"""Obligation G1: each node and edge is well-formed by itself.

The checks are array operations over the whole corpus, so that a clean one of 100,000 edges costs milliseconds; a
finding is built only for what is wrong, and only as many as are kept.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from playproof_spec.findings import Finding, Findings, finding
from playproof_spec.graph import (
    LEGAL_PAIRS,
    MAX_TOKENS,
    RELATION_NAMES,
    TRIGGER_NAMES,
    Float64,
    Graph,
    Int32,
    Relation,
    Trigger,
)
from playproof_spec.places import in_reading_order, listed, place
from playproof_spec.units import HORIZON_MS

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.integer]

__all__ = ["check_shape"]


def check_shape(graph: Graph, findings: Findings) -> None:
    """Add a finding for everything that is wrong with single nodes, edges and plays.

    Parameters
    ----------
    graph : Graph
    findings : Findings
        Receives the findings, in reading order within each check.

    Raises
    ------
    ValueError
        When the nodes are not in byte order of their ids: whoever built the graph broke its contract.

    Notes
    -----
    O(nodes + edges · log edges).
    """
    ids = graph.request_ids
    # Code points order as UTF-8 bytes do, so comparing the strings is enough.
    if not all(map(operator.le, ids, ids[1:])):
        raise ValueError("the nodes of a graph must stand in byte order of their request ids")
    if not ids:
        findings.add(finding("graph-empty", "the corpus has no request"))
    if not 0 < graph.block_size <= MAX_TOKENS:
        findings.add(
            finding("block-size", "the block size is out of bounds", found=graph.block_size, wanted=f"1 … {MAX_TOKENS}")
        )
    _check_ids(graph, findings)
    _check_ordinals(graph, findings)
    _check_numbers(graph, findings)
    _check_edges(graph, findings)


def _report(graph: Graph, findings: Findings, code: str, nodes: Indices, build: Callable[[int], Finding]) -> None:
    """Add ``build(k)`` for the k-th of `nodes`, in reading order; beyond the limit only count."""
    if len(nodes) == 0:
        return
    order = in_reading_order(graph, nodes)
    for k in order[: findings.limit_per_code]:
        findings.add(build(int(k)))
    findings.add_count(code, len(order) - findings.limit_per_code)


def _check_ids(graph: Graph, findings: Findings) -> None:
    names: tuple[tuple[str, Iterable[str], Int32 | None], ...] = (
        ("request_id", graph.request_ids, None),
        ("play_id", (play.play_id for play in graph.plays), graph.node_play),
        ("session_id", graph.sessions, graph.node_session),
        ("model", graph.models, graph.node_model),
    )
    for field, candidates, name_of_node in names:
        empty = np.array([name == "" for name in candidates], dtype=np.bool_)
        if not empty.any():
            continue
        bad = np.flatnonzero(empty if name_of_node is None else empty[name_of_node])

        def build(k: int, field: str = field, bad: Indices = bad) -> Finding:
            return finding("id-empty", f"{field} is empty", where=place(graph, int(bad[k]), field), found='""')

        _report(graph, findings, "id-empty", bad, build)

    if len(set(graph.request_ids)) == graph.node_count:
        return
    twice = {request_id for request_id, count in Counter(graph.request_ids).items() if count > 1}
    members: dict[str, list[int]] = {}
    for node, request_id in enumerate(graph.request_ids):
        if request_id in twice:
            members.setdefault(request_id, []).append(node)
    again: list[int] = []
    first_of: dict[int, int] = {}
    for nodes_of_id in members.values():
        nodes = np.array(nodes_of_id)
        first, *others = nodes[in_reading_order(graph, nodes)].tolist()
        again += others
        first_of |= dict.fromkeys(others, first)

    def duplicate(k: int) -> Finding:
        before = place(graph, first_of[again[k]])
        return finding(
            "id-duplicate",
            f"request_id is used before, at {before.file}" + (f":{before.line}" if before.line else ""),
            where=place(graph, again[k], "request_id"),
            found=graph.request_ids[again[k]],
            wanted="an id of its own",
        )

    _report(graph, findings, "id-duplicate", np.array(again), duplicate)


def _check_ordinals(graph: Graph, findings: Findings) -> None:
    given = [play for play in graph.plays if play.ordinal is not None]
    if not given:
        return
    without = [play.play_id for play in graph.plays if play.ordinal is None]
    if without:
        findings.add(
            finding(
                "ordinal-missing",
                f"{len(given)} plays have a source_play_ordinal; none have {listed(without)}",
                where=place(graph, int(graph.plays[-1].nodes[0]), "source_play_ordinal", tuple(without)),
                wanted="an ordinal on every play, or on none",
            )
        )
    holder: dict[int, str] = {}
    for play in given:
        ordinal = play.ordinal
        assert ordinal is not None
        where = place(graph, int(play.nodes[0]), "source_play_ordinal", (play.play_id,))
        if ordinal in holder:
            message = f"the ordinal belongs to play {holder[ordinal]} already"
            findings.add(finding("ordinal-gap", message, where=where, found=ordinal, wanted="each ordinal once"))
        elif not 0 <= ordinal < len(graph.plays):
            wanted = f"0 … {len(graph.plays) - 1}, without gaps"
            findings.add(
                finding("ordinal-gap", "the ordinal is out of range", where=where, found=ordinal, wanted=wanted)
            )
        holder.setdefault(ordinal, play.play_id)


def _check_times(
    graph: Graph, findings: Findings, field: Callable[[int], str], values: Float64, nodes: Indices
) -> None:
    """Check that `values` (of the nodes beside them) are finite, not negative, and on the clock."""
    with np.errstate(invalid="ignore"):
        checks: tuple[tuple[str, Mask, str, str], ...] = (
            ("time-not-finite", ~np.isfinite(values), "is not a finite number", "milliseconds"),
            ("time-negative", np.isfinite(values) & (values < 0), "is negative", "0 or more"),
            (
                "time-beyond-horizon",
                np.isfinite(values) & (values > HORIZON_MS),
                "lies beyond the clock",
                f"at most {HORIZON_MS:.0f} ms",
            ),
        )
    for code, mask, message, wanted in checks:
        bad = np.flatnonzero(mask)

        def build(
            k: int, code: str = code, message: str = message, wanted: str = wanted, bad: Indices = bad
        ) -> Finding:
            at = int(bad[k])
            name = field(at)
            return finding(
                code,
                f"{name} {message}",
                where=place(graph, int(nodes[at]), name),
                found=float(values[at]),
                wanted=wanted,
            )

        _report(graph, findings, code, nodes[bad], build)


def _check_numbers(graph: Graph, findings: Findings) -> None:
    everyone = np.arange(graph.node_count)
    _check_times(graph, findings, lambda _: "not_before_ms", graph.not_before_ms, everyone)
    # NaN stands for a recorded time that the file did not give.
    recorded = np.flatnonzero(~np.isnan(graph.recorded_api_time_ms))
    _check_times(graph, findings, lambda _: "recorded_api_time_ms", graph.recorded_api_time_ms[recorded], recorded)
    for name, lengths, least in (
        ("input_length", graph.input_length, 1),
        ("output_length", graph.output_length, 0),
    ):
        bad = np.flatnonzero((lengths < least) | (lengths > MAX_TOKENS))
        _report(
            graph,
            findings,
            "length-out-of-bounds",
            bad,
            lambda k, name=name, lengths=lengths, least=least, bad=bad: finding(  # type: ignore[misc]
                "length-out-of-bounds",
                f"{name} is out of bounds",
                where=place(graph, int(bad[k]), name),
                found=int(lengths[bad[k]]),
                wanted=f"{least} … {MAX_TOKENS}",
            ),
        )
    if graph.block_size <= 0:
        return
    totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(graph.run_count)])
    counts = totals[graph.run_offsets[1:]] - totals[graph.run_offsets[:-1]]
    wanted = -(-graph.input_length // graph.block_size)
    bad = np.flatnonzero((counts != wanted) & (graph.input_length >= 1))
    _report(
        graph,
        findings,
        "hash-count",
        bad,
        lambda k: finding(
            "hash-count",
            f"{graph.input_length[bad[k]]} tokens of prompt in blocks of {graph.block_size} need another number of ids",
            where=place(graph, int(bad[k]), "hash_ids"),
            found=f"{counts[bad[k]]} ids",
            wanted=f"{wanted[bad[k]]} ids",
        ),
    )


def _check_edges(graph: Graph, findings: Findings) -> None:
    target = graph.edge_target()
    source = graph.edge_source
    number_in_row = np.arange(graph.edge_count) - graph.edge_offsets[target]

    def field(number: int, name: str = "") -> str:
        return f"dependencies[{number_in_row[number]}]" + (f".{name}" if name else "")

    def report(code: str, mask: Mask, name: str, message: str, wanted: str) -> None:
        bad = np.flatnonzero(mask)

        def build(k: int) -> Finding:
            number = int(bad[k])
            edge = graph.edge(number, int(target[number]))
            where = place(graph, int(target[number]), field(number, name), (edge.source, edge.target))
            pair = f"{RELATION_NAMES[edge.relation]}/{TRIGGER_NAMES[edge.trigger]}"
            found = {"request_id": edge.source, "relation": pair}.get(name, str(edge))
            return finding(code, message, where=where, found=found, wanted=wanted)

        _report(graph, findings, code, target[bad], build)

    play_of_source = graph.node_play[np.maximum(source, 0)] if graph.node_count else source
    crosses = (source >= 0) & (play_of_source != graph.node_play[target])
    legal = np.zeros((len(Relation), len(Trigger)), dtype=np.bool_)
    for relation, trigger in LEGAL_PAIRS:
        legal[relation, trigger] = True
    report("edge-dangling", source < 0, "request_id", "no request has this id", "an id of this play")
    report("edge-self", source == target, "request_id", "the request depends on itself", "another request")
    report("edge-cross-play", crosses, "request_id", "the source is in another play", "a request of the same play")
    report(
        "edge-pair",
        ~legal[graph.edge_relation, graph.edge_trigger],
        "relation",
        "this relation cannot have this trigger",
        "completion; dispatch for a spawn only",
    )
    report("edge-duplicate", _repeated(graph, target), "", "the request has this dependency already", "one of them")
    _check_times(graph, findings, lambda number: field(number, "delay_ms"), graph.edge_delay_ms, target)


def _repeated(graph: Graph, target: Int32) -> Mask:
    """Mark every edge whose source, target, trigger and relation an earlier edge has too."""
    source = graph.edge_source.astype(np.int64)
    # Two dangling edges are equal when the missing id is.
    missing: dict[str, int] = {}
    for number, name in graph.dangling.items():
        source[number] = -1 - missing.setdefault(name, len(missing))
    keys = (graph.edge_relation, graph.edge_trigger, source, target)
    order = np.lexsort(keys)
    equal = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for key in keys:
        equal &= key[order[1:]] == key[order[:-1]]
    repeated = np.zeros(len(order), dtype=np.bool_)
    repeated[order[1:][equal]] = True
    return repeated
