"""The boundary: every format hands nodes and typed edges to a :class:`GraphBuilder`, and only it makes a graph.

Readers add nodes in document order and name edges by the source's request id; the builder puts the columns into node
order (byte order of the ids), resolves edges, and keeps what does not resolve as dangling. It judges nothing: whatever
the columns can hold, the graph obligations judge.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from playproof_spec.graph import (
    MAX_NODES,
    Carried,
    Float64,
    Graph,
    Int8,
    Int32,
    Int64,
    Observed,
    Play,
    Relation,
    Source,
    Trigger,
    UInt64,
)

__all__ = ["GraphBuilder"]

_NAN = float("nan")


class GraphBuilder:
    """Collects the nodes and edges of a corpus.

    Parameters
    ----------
    block_size : int
        Tokens that one hash id stands for.
    ties_by_id : bool
        Whether what is due at one instant goes in the byte order of the request ids, and not in the order in which
        nodes are added.
    """

    def __init__(self, block_size: int, *, ties_by_id: bool = False) -> None:
        self.block_size = block_size
        self.ties_by_id = ties_by_id
        self._files: list[str] = []
        self._play_ids: list[str] = []
        self._play_ordinals: list[int | None] = []
        self._play_nodes: list[list[int]] = []
        self._play_of: dict[str, int] = {}
        self._request_ids: list[str] = []
        self._source_request_ids: list[str] = []
        self._plays: list[int] = []
        self._sessions: list[str] = []
        self._models: list[str] = []
        self._input_length: list[int] = []
        self._output_length: list[int] = []
        self._not_before_ms: list[float] = []
        self._recorded_ms: list[float] = []
        self._node_file: list[int] = []
        self._node_line: list[int] = []
        self._node_path: list[str] = []
        self._carried: dict[int, Carried] = {}
        self._observed: dict[int, Observed] = {}
        self._edges: list[list[tuple[str, Relation, Trigger, float]]] = []
        self._run_parts: list[tuple[UInt64, Int64]] = []
        self._run_lengths: list[Int64] = []
        self._runs_assigned = 0

    @property
    def node_count(self) -> int:
        """Nodes so far."""
        return len(self._request_ids)

    @property
    def play_count(self) -> int:
        """Plays so far."""
        return len(self._play_ids)

    def __contains__(self, play_id: str) -> bool:
        return play_id in self._play_of

    def file(self, shown: str) -> int:
        """Register a file; return its handle for :meth:`node`."""
        self._files.append(shown)
        return len(self._files) - 1

    def play(self, play_id: str, ordinal: int | None) -> int:
        """Return the handle of a play, which is made when it is new; an existing one keeps its ordinal."""
        handle = self._play_of.setdefault(play_id, len(self._play_ids))
        if handle == len(self._play_ids):
            self._play_ids.append(play_id)
            self._play_ordinals.append(ordinal)
            self._play_nodes.append([])
        return handle

    def assign_runs(self, begin: int, offsets: Int64, first: UInt64, count: Int64) -> None:
        """Give the nodes from document number `begin` on their hash ids, and take the arrays over.

        Parameters
        ----------
        offsets : Int64, shape (nodes + 1,); first : UInt64; count : Int64, shape (runs,)
            Node ``begin + k`` has the runs ``offsets[k]:offsets[k + 1]``. Every node is given its runs once, in
            document order.
        """
        assert begin == self._runs_assigned, "runs are assigned in document order"
        self._runs_assigned += len(offsets) - 1
        self._run_parts.append((first, count))
        self._run_lengths.append(np.diff(offsets))

    def node(
        self,
        *,
        request_id: str,
        source_request_id: str,
        play: int,
        session_id: str,
        model: str,
        input_length: int,
        output_length: int,
        not_before_ms: float,
        recorded_api_time_ms: float | None,
        file: int,
        line: int = 0,
        path: str = "",
        carried: Carried | None = None,
        observed: Observed | None = None,
    ) -> int:
        """Add a node; return its number in document order.

        Parameters
        ----------
        play, file : int
            Handles.
        line : int
            1-based, 0 where the format has no lines.
        path : str
            JSON path, for formats without lines.

        Raises
        ------
        OverflowError
            Beyond the bound on nodes; lengths are int64.
        """
        number = len(self._request_ids)
        if number >= MAX_NODES:
            raise OverflowError(f"more than {MAX_NODES} requests")
        self._request_ids.append(request_id)
        self._source_request_ids.append(source_request_id)
        self._plays.append(play)
        self._play_nodes[play].append(number)
        self._sessions.append(session_id)
        self._models.append(model)
        self._input_length.append(input_length)
        self._output_length.append(output_length)
        self._not_before_ms.append(not_before_ms)
        self._recorded_ms.append(_NAN if recorded_api_time_ms is None else recorded_api_time_ms)
        self._node_file.append(file)
        self._node_line.append(line)
        self._node_path.append(path)
        self._edges.append([])
        if carried is not None:
            self._carried[number] = carried
        if observed is not None:
            self._observed[number] = observed
        return number

    def edge(self, target: int, source_id: str, relation: Relation, trigger: Trigger, delay_ms: float) -> None:
        """Add a dependency of node `target` (its document number) on the request `source_id`."""
        self._edges[target].append((source_id, relation, trigger, delay_ms))

    def set_ordinals(self, ordinals: Mapping[str, int | None]) -> None:
        """Replace the ordinals of the plays named."""
        for play_id, ordinal in ordinals.items():
            self._play_ordinals[self._play_of[play_id]] = ordinal

    def forget_dangling(self) -> None:
        """Drop every edge whose source does not exist.

        For a corpus of which some rows could not be read: an edge to one of those is no finding of its own.
        """
        known = set(self._request_ids)
        for edges in self._edges:
            edges[:] = [edge for edge in edges if edge[0] in known]

    def finish(self, source: Source, facts: Mapping[str, object]) -> Graph:
        """Make the graph. The builder may not be used afterwards."""
        # Python compares strings by code point, which is the byte order of their UTF-8.
        order = sorted(range(self.node_count), key=self._request_ids.__getitem__)
        document = np.array(order, dtype=np.int64)
        node_of = np.empty(len(order), dtype=np.int32)
        node_of[document] = np.arange(len(order), dtype=np.int32)
        plays, place_of_play = self._ordered_plays(node_of)
        sessions, node_session = _names(self._sessions, document)
        models, node_model = _names(self._models, document)
        run_offsets, run_first, run_count = self._run_columns(document)
        offsets, sources, triggers, relations, delays, dangling = self._edge_columns(order, node_of)
        paths = tuple(self._node_path[number] for number in order)
        return Graph(
            block_size=self.block_size,
            source=source,
            request_ids=tuple(self._request_ids[number] for number in order),
            source_request_ids=tuple(self._source_request_ids[number] for number in order),
            plays=plays,
            sessions=sessions,
            models=models,
            node_play=place_of_play[np.array(self._plays, dtype=np.int64)[document]],
            node_session=node_session,
            node_model=node_model,
            input_length=np.array(self._input_length, dtype=np.int64)[document],
            output_length=np.array(self._output_length, dtype=np.int64)[document],
            not_before_ms=np.array(self._not_before_ms, dtype=np.float64)[document],
            recorded_api_time_ms=np.array(self._recorded_ms, dtype=np.float64)[document],
            edge_offsets=offsets,
            edge_source=sources,
            edge_trigger=triggers,
            edge_relation=relations,
            edge_delay_ms=delays,
            run_offsets=run_offsets,
            run_first=run_first,
            run_count=run_count,
            files=tuple(self._files),
            node_file=np.array(self._node_file, dtype=np.int32)[document],
            node_line=np.array(self._node_line, dtype=np.int64)[document],
            node_path=paths if any(paths) else None,
            carried={int(node_of[number]): hints for number, hints in self._carried.items()},
            dangling=dangling,
            facts=dict(facts),
            observed={int(node_of[number]): seen for number, seen in self._observed.items()},
            tie_rank=None if self.ties_by_id else document,
        )

    def _ordered_plays(self, node_of: Int32) -> tuple[tuple[Play, ...], Int32]:
        """Return the plays in execution order, and the place of each handle in it."""

        def key(handle: int) -> tuple[bool, int, str]:
            ordinal = self._play_ordinals[handle]
            return ordinal is None, ordinal or 0, self._play_ids[handle]

        handles = sorted(range(self.play_count), key=key)
        place = np.empty(len(handles), dtype=np.int32)
        place[np.array(handles, dtype=np.int64)] = np.arange(len(handles), dtype=np.int32)
        plays = tuple(
            Play(
                self._play_ids[handle],
                self._play_ordinals[handle],
                node_of[np.array(self._play_nodes[handle], dtype=np.int64)],
            )
            for handle in handles
        )
        return plays, place

    def _run_columns(self, document: Int64) -> tuple[Int64, UInt64, Int64]:
        """Return the runs in node order."""
        first = np.concatenate([np.empty(0, dtype=np.uint64), *(part[0] for part in self._run_parts)])
        count = np.concatenate([np.empty(0, dtype=np.int64), *(part[1] for part in self._run_parts)])
        written = np.concatenate([np.empty(0, dtype=np.int64), *self._run_lengths])
        begin = (np.cumsum(written) - written)[document]
        lengths = written[document]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        gather = np.arange(offsets[-1], dtype=np.int64) + np.repeat(begin - offsets[:-1], lengths)
        return offsets, first[gather], count[gather]

    def _edge_columns(
        self, order: list[int], node_of: Int32
    ) -> tuple[Int64, Int32, Int8, Int8, Float64, dict[int, str]]:
        """Return the edge columns. Of two requests with one id an edge means the first in the document."""
        number_of: dict[str, int] = {}
        for number, request_id in enumerate(self._request_ids):
            number_of.setdefault(request_id, number)
        offsets = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum([len(self._edges[number]) for number in order], out=offsets[1:])
        edges = [edge for number in order for edge in self._edges[number]]
        numbers = np.array([number_of.get(edge[0], -1) for edge in edges], dtype=np.int64)
        sources = np.where(numbers < 0, np.int32(-1), node_of[numbers] if len(node_of) else np.int32(-1))
        dangling = {int(at): edges[at][0] for at in np.flatnonzero(numbers < 0)}
        relations = np.array([edge[1] for edge in edges], dtype=np.int8)
        triggers = np.array([edge[2] for edge in edges], dtype=np.int8)
        delays = np.array([edge[3] for edge in edges], dtype=np.float64)
        return offsets, sources.astype(np.int32), triggers, relations, delays, dangling


def _names(names: list[str], document: Int64) -> tuple[tuple[str, ...], Int32]:
    """Return the distinct names in byte order, and each node's place among them, in node order."""
    distinct = sorted(set(names))
    place = {name: number for number, name in enumerate(distinct)}
    column = np.array([place[name] for name in names], dtype=np.int32)
    return tuple(distinct), column[document]
