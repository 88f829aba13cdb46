"""Graphs from Python literals: for tests, notebooks and whoever makes workloads in code.

A row is a dictionary with the fields of an Agentic Mooncake v2 row; whatever does not matter may be left out. A sketch
checks only what a :class:`~playproof_spec.graph.Graph` cannot hold. It may be ill-formed (dangling, cyclic, negative
times): finding that out is the obligations' business.

Examples
--------
>>> graph = sketch([
...     {"request_id": "plan"},
...     {"request_id": "child", "dependencies": [{"request_id": "plan", "trigger": "dispatch", "relation": "spawn"}]},
...     {"request_id": "answer", "dependencies": ["plan", {"request_id": "child", "relation": "join", "delay_ms": 5}]},
... ])
>>> [str(edge) for edge in graph.edges_into(graph.request_ids.index("answer"))]
['plan —sequence/completion +0 ms→ answer', 'child —join/completion +5 ms→ answer']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from playproof_spec.graph import (
    RELATION_NAMES,
    TRIGGER_NAMES,
    Carried,
    Graph,
    Int64,
    Play,
    Relation,
    Source,
    Trigger,
    UInt64,
)

__all__ = ["compress_hash_ids", "sketch"]

_RELATIONS = {name: relation for relation, name in RELATION_NAMES.items()}
_TRIGGERS = {name: trigger for trigger, name in TRIGGER_NAMES.items()}
_FRESH_END = 2**63


class _Dependency(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    request_id: str
    relation: str = "sequence"
    trigger: str = "completion"
    delay_ms: float = 0.0


class _Row(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    request_id: str
    source_request_id: str | None = None
    play_id: str = "play"
    source_play_ordinal: int | None = None
    session_id: str | None = None
    model: str = "model"
    input_length: int | None = None
    output_length: int = 1
    output_token_ids: tuple[int, ...] | None = None
    hash_ids: Any = None
    not_before_ms: float = 0.0
    recorded_api_time_ms: float | None = None
    priority: int = 0
    strict_priority: int = 0
    policy_class: str | None = None
    dependencies: list[str | _Dependency] = []


def sketch(
    nodes: Iterable[Mapping[str, Any]],
    block_size: int = 16,
    source: Source | None = None,
) -> Graph:
    """Build a graph from dictionaries in the shape of v2 rows.

    Parameters
    ----------
    nodes : iterable of mappings
        In document order. Only ``request_id`` is required. Defaults: one play ``play``; the play's id as session; one
        block of prompt (or as many tokens as ``hash_ids`` hold); one output token; fresh ids for missing ``hash_ids``
        (consecutive, above every id given below 2**63); no floor, no recorded time. A dependency is a dictionary, or
        just the source's id for a sequence edge without delay. ``source_request_id`` defaults to the request's id.
    block_size : int
        Tokens that one hash id stands for.
    source : Source, optional
        Provenance; ``Source("sketch", "none")`` by default.

    Returns
    -------
    Graph
        Node *k* of the input is line *k + 1* of the file ``sketch`` in findings.

    Raises
    ------
    msgspec.ValidationError
        When a row has an unknown field or a value of the wrong type.
    ValueError
        When a relation or trigger has no such name, or one play has two ordinals: a graph cannot hold them.
    """
    rows = [msgspec.convert(row, _Row) for row in nodes]
    lines = sorted(range(len(rows)), key=lambda line: rows[line].request_id.encode("utf-8", "surrogatepass"))
    ordered = [rows[line] for line in lines]
    plays, node_play = _plays(rows, lines)
    sessions, node_session = _names([row.play_id if row.session_id is None else row.session_id for row in ordered])
    models, node_model = _names([row.model for row in ordered])
    hash_ids, input_length = _prompts(ordered, block_size)
    run_offsets, run_first, run_count = compress_hash_ids(hash_ids)
    edges = _edges(ordered)
    carried = (Carried(r.priority, r.strict_priority, r.policy_class, r.output_token_ids) for r in ordered)
    return Graph(
        block_size=block_size,
        source=source or Source("sketch", "none"),
        request_ids=tuple(row.request_id for row in ordered),
        source_request_ids=tuple(row.source_request_id or row.request_id for row in ordered),
        plays=plays,
        sessions=sessions,
        models=models,
        node_play=node_play,
        node_session=node_session,
        node_model=node_model,
        input_length=input_length,
        output_length=np.array([row.output_length for row in ordered], dtype=np.int64),
        not_before_ms=np.array([row.not_before_ms for row in ordered], dtype=np.float64),
        recorded_api_time_ms=np.array([row.recorded_api_time_ms for row in ordered], dtype=np.float64),
        **edges,
        run_offsets=run_offsets,
        run_first=run_first,
        run_count=run_count,
        files=("sketch",),
        node_file=np.zeros(len(ordered), dtype=np.int32),
        node_line=np.array(lines, dtype=np.int64) + 1,
        carried={index: hints for index, hints in enumerate(carried) if hints != Carried()},
    )


def compress_hash_ids(per_node: Sequence[Iterable[int] | UInt64]) -> tuple[Int64, UInt64, Int64]:
    """Return (`run_offsets`, `run_first`, `run_count`) of a graph for the hash ids of its nodes.

    Parameters
    ----------
    per_node : sequence of iterables of int
        In node-index order; every id in [0, 2**64).

    Notes
    -----
    A run never wraps from 2**64 - 1 to 0. Linear in the number of ids.
    """
    arrays = [ids if isinstance(ids, np.ndarray) else np.array(list(ids), dtype=np.uint64) for ids in per_node]
    ends = np.cumsum([0, *(len(ids) for ids in arrays)]).astype(np.int64)
    ids = np.concatenate([np.empty(0, dtype=np.uint64), *arrays])
    begins_run = np.ones(len(ids), dtype=np.bool_)
    begins_run[1:] = (ids[1:] != ids[:-1] + np.uint64(1)) | (ids[1:] == 0)
    node_starts = ends[:-1]
    begins_run[node_starts[node_starts < len(ids)]] = True
    starts = np.flatnonzero(begins_run).astype(np.int64)
    counts = np.diff(np.append(starts, len(ids))).astype(np.int64)
    return np.searchsorted(starts, ends).astype(np.int64), ids[starts], counts


def _names(names: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return the distinct names in byte order, and each entry's place among them."""
    distinct = sorted(set(names), key=lambda name: name.encode("utf-8", "surrogatepass"))
    places = {name: place for place, name in enumerate(distinct)}
    return tuple(distinct), np.array([places[name] for name in names], dtype=np.int32)


def _plays(
    rows: Sequence[_Row], lines: Sequence[int]
) -> tuple[tuple[Play, ...], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return the plays in execution order with their nodes in document order, and the play of each node."""
    node_of_line = {line: node for node, line in enumerate(lines)}
    members: dict[str, list[int]] = {}
    ordinals: dict[str, int | None] = {}
    for line, row in enumerate(rows):
        members.setdefault(row.play_id, []).append(node_of_line[line])
        if ordinals.setdefault(row.play_id, row.source_play_ordinal) != row.source_play_ordinal:
            raise ValueError(f"play {row.play_id!r} has two ordinals")

    def order(play_id: str) -> tuple[bool, int, bytes]:
        ordinal = ordinals[play_id]
        return ordinal is None, ordinal or 0, play_id.encode("utf-8", "surrogatepass")

    ids = sorted(members, key=order)
    place = {play_id: number for number, play_id in enumerate(ids)}
    plays = tuple(Play(play_id, ordinals[play_id], np.array(members[play_id], dtype=np.int32)) for play_id in ids)
    return plays, np.array([place[rows[line].play_id] for line in lines], dtype=np.int32)


def _prompts(rows: Sequence[_Row], block_size: int) -> tuple[list[UInt64], Int64]:
    """Return each node's hash ids and prompt length, with the defaults filled in."""
    given = [None if row.hash_ids is None else np.array(list(row.hash_ids), dtype=np.uint64) for row in rows]
    # Above every given id, but in the lower half of the range, so that a test of the greatest ids leaves room.
    lower = (ids[ids < _FRESH_END] for ids in given if ids is not None)
    fresh = max((int(ids.max()) + 1 for ids in lower if len(ids)), default=1)
    hash_ids: list[UInt64] = []
    lengths: list[int] = []
    for row, ids in zip(rows, given, strict=True):
        length = row.input_length
        if length is None:
            length = block_size * (1 if ids is None else len(ids))
        if ids is None:
            count = max(-(-length // block_size), 0)
            ids = np.arange(fresh, fresh + count, dtype=np.uint64)
            fresh += count
        hash_ids.append(ids)
        lengths.append(length)
    return hash_ids, np.array(lengths, dtype=np.int64)


def _edges(rows: Sequence[_Row]) -> dict[str, Any]:
    """Return the edge columns of a graph by their names; a source without a row dangles."""
    node_of: dict[str, int] = {}
    for index, row in enumerate(rows):
        node_of.setdefault(row.request_id, index)
    offsets, sources, triggers, relations, delays = [0], list[int](), list[int](), list[int](), list[float]()
    dangling: dict[int, str] = {}
    for row in rows:
        for item in row.dependencies:
            edge = _Dependency(item) if isinstance(item, str) else item
            source = node_of.get(edge.request_id, -1)
            if source < 0:
                dangling[len(sources)] = edge.request_id
            sources.append(source)
            triggers.append(_named(_TRIGGERS, edge.trigger, "trigger"))
            relations.append(_named(_RELATIONS, edge.relation, "relation"))
            delays.append(edge.delay_ms)
        offsets.append(len(sources))
    return {
        "edge_offsets": np.array(offsets, dtype=np.int64),
        "edge_source": np.array(sources, dtype=np.int32),
        "edge_trigger": np.array(triggers, dtype=np.int8),
        "edge_relation": np.array(relations, dtype=np.int8),
        "edge_delay_ms": np.array(delays, dtype=np.float64),
        "dangling": dangling,
    }


def _named(names: Mapping[str, Relation] | Mapping[str, Trigger], name: str, what: str) -> int:
    if name not in names:
        raise ValueError(f"no such {what}: {name!r}; there are {', '.join(names)}")
    return int(names[name])
