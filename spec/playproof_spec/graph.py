"""The typed graph: what every format is lowered to, and what the proofs and the kernel read.

A graph is a set of plays; a play is a dependency tree of nodes; a node is one LLM request. The columns are arrays, one
entry a node or an edge, so that a corpus of a million requests stays small; :class:`Node` and :class:`Edge` are the
same facts for people. A graph may be ill-formed (that is what the obligations find out); a
:class:`~playproof_spec.certificate.ProvenGraph` is not.

**Node index** = rank of the request id in byte order (UTF-8) over the corpus. What people read lists nodes in document
order (`Play.nodes`), and ties in execution go by that, but where ids are the author's own (`Graph.tie_rank`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]


class Relation(IntEnum):
    """Why an edge exists. The order is the digest's."""

    SEQUENCE = 0
    SPAWN = 1
    JOIN = 2
    REPLAY_BARRIER = 3


class Trigger(IntEnum):
    """When an edge fires: at the source's dispatch, or at its successful completion."""

    DISPATCH = 0
    COMPLETION = 1


RELATION_NAMES = {relation: relation.name.lower() for relation in Relation}
TRIGGER_NAMES = {trigger: trigger.name.lower() for trigger in Trigger}

# Only a spawn may fire at dispatch: a child can start while its parent still generates.
LEGAL_PAIRS: frozenset[tuple[Relation, Trigger]] = frozenset(
    {(relation, Trigger.COMPLETION) for relation in Relation} | {(Relation.SPAWN, Trigger.DISPATCH)}
)

# Bounds on what a file may declare. They keep every product of two of them within int64.
MAX_TOKENS = 2**31 - 1
MAX_NODES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Edge:
    """One dependency of `target` on `source`; the delay counts from the moment the trigger fires."""

    source: str
    target: str
    relation: Relation
    trigger: Trigger
    delay_ms: float

    def __str__(self) -> str:
        return (
            f"{self.source} —{RELATION_NAMES[self.relation]}/{TRIGGER_NAMES[self.trigger]}"
            f" +{self.delay_ms:g} ms→ {self.target}"
        )


@dataclass(frozen=True, slots=True)
class Node:
    """One request, for people and findings."""

    index: int
    request_id: str
    source_request_id: str
    play_id: str
    session_id: str
    model: str
    input_length: int
    output_length: int
    not_before_ms: float
    recorded_api_time_ms: float | None


@dataclass(frozen=True, slots=True)
class Play:
    """One play: its nodes in document order.

    Attributes
    ----------
    ordinal : int | None
        The corpus order that the file gave (all plays have one, or none).
    nodes : Int32
        Node indices in document order.
    """

    play_id: str
    ordinal: int | None
    nodes: Int32


@dataclass(frozen=True, slots=True)
class Carried:
    """What few rows have: scheduling hints that we carry, and the recorded output ids."""

    priority: int = 0
    strict_priority: int = 0
    policy_class: str | None = None
    output_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What a reader knows of a request beside what it replays.

    Attributes
    ----------
    estimated : tuple[str, ...]
        Which values are not as recorded, by name, in byte order: ``output_length``, ``start``, ``request`` (all of it).
    tool_wait_ms : float
        How much of the gap before the request was recorded as tool time.
    """

    estimated: tuple[str, ...] = ()
    tool_wait_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where a graph came from: the format it was written in, and a digest of the bytes and the readings chosen."""

    format: str
    digest: str


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of a one-dimensional array in memory that cannot be made writable: that of a bytes object."""
    return np.frombuffer(array.tobytes(), dtype=array.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A corpus of plays as columns.

    Attributes
    ----------
    block_size : int
        Tokens that one hash id stands for.
    source : Source
    request_ids : tuple[str, ...]
        In node-index order. A duplicate id may stand here twice; obligation G1 finds it.
    source_request_ids : tuple[str, ...]
        The id that the file's own author would recognise, node by node.
    plays : tuple[Play, ...]
        In execution order: by ordinal, else by play id in byte order.
    sessions, models : tuple[str, ...]
        Distinct names, in byte order.
    node_play, node_session, node_model : Int32, shape (nodes,)
        Indices into `plays`, `sessions`, `models`.
    input_length, output_length : Int64, shape (nodes,)
        Tokens.
    not_before_ms : Float64, shape (nodes,)
        Floor on the node's start, on the recording's clock.
    recorded_api_time_ms : Float64, shape (nodes,)
        Recorded service time, NaN where the file gave none.
    edge_offsets : Int64, shape (nodes + 1,)
        Incoming edges of node i are ``edge_offsets[i]:edge_offsets[i + 1]``.
    edge_source : Int32, edge_trigger, edge_relation : Int8, edge_delay_ms : Float64, shape (edges,)
        A source of -1 dangles; `dangling` has its name.
    run_offsets : Int64, shape (nodes + 1,); run_first : UInt64; run_count : Int64, shape (runs,)
        Hash ids in runs: node i's ids are, for each run r in ``run_offsets[i]:run_offsets[i + 1]``, the `run_count[r]`
        consecutive ids from `run_first[r]`. A prompt that extends its predecessor has one run or few, so a corpus of
        94 million ids takes megabytes.
    files : tuple[str, ...]; node_file : Int32; node_line : Int64
        Where each node was read (line 0 where the format has none).
    node_path : tuple[str, ...] | None
        JSON path of each node, for formats without lines.
    carried : Mapping[int, Carried]
        Sparse, by node index.
    dangling : Mapping[int, str]
        By edge number, the source id that does not exist.
    observed : Mapping[int, Observed]
        Sparse, by node index. Reported, and no part of the digest.
    facts : Mapping[str, object]
        What the reader decided, with its evidence; goes into reports as it is (JSON values only).
    tie_rank : Int64 | None, shape (nodes,)
        The order of nodes that are due at one instant: the order in which the corpus lists them, file by file. None for
        that of node indices, which Agentic Mooncake v2 asks for: its ids are given, not made from names and numbers.
    """

    block_size: int
    source: Source
    request_ids: tuple[str, ...]
    source_request_ids: tuple[str, ...]
    plays: tuple[Play, ...]
    sessions: tuple[str, ...]
    models: tuple[str, ...]
    node_play: Int32
    node_session: Int32
    node_model: Int32
    input_length: Int64
    output_length: Int64
    not_before_ms: Float64
    recorded_api_time_ms: Float64
    edge_offsets: Int64
    edge_source: Int32
    edge_trigger: Int8
    edge_relation: Int8
    edge_delay_ms: Float64
    run_offsets: Int64
    run_first: UInt64
    run_count: Int64
    files: tuple[str, ...]
    node_file: Int32
    node_line: Int64
    node_path: tuple[str, ...] | None = None
    carried: Mapping[int, Carried] = field(default_factory=dict)
    dangling: Mapping[int, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    observed: Mapping[int, Observed] = field(default_factory=dict)
    tie_rank: Int64 | None = None

    @property
    def node_count(self) -> int:
        return len(self.request_ids)

    @property
    def edge_count(self) -> int:
        return len(self.edge_source)

    @property
    def tie_ranks(self) -> Int64:
        """The rank of each node among those that are due at one instant, shape (nodes,)."""
        return np.arange(self.node_count, dtype=np.int64) if self.tie_rank is None else self.tie_rank

    def node(self, index: int) -> Node:
        """Return node `index` as an object."""
        recorded = float(self.recorded_api_time_ms[index])
        return Node(
            index=index,
            request_id=self.request_ids[index],
            source_request_id=self.source_request_ids[index],
            play_id=self.plays[self.node_play[index]].play_id,
            session_id=self.sessions[self.node_session[index]],
            model=self.models[self.node_model[index]],
            input_length=int(self.input_length[index]),
            output_length=int(self.output_length[index]),
            not_before_ms=float(self.not_before_ms[index]),
            recorded_api_time_ms=None if np.isnan(recorded) else recorded,
        )

    def edge(self, number: int, target: int | None = None) -> Edge:
        """Return edge `number` as an object; `target` saves the search for its node where the caller knows it."""
        if target is None:
            target = int(np.searchsorted(self.edge_offsets, number, side="right")) - 1
        source = int(self.edge_source[number])
        return Edge(
            source=self.request_ids[source] if source >= 0 else self.dangling.get(number, "?"),
            target=self.request_ids[target],
            relation=Relation(int(self.edge_relation[number])),
            trigger=Trigger(int(self.edge_trigger[number])),
            delay_ms=float(self.edge_delay_ms[number]),
        )

    def edges_into(self, index: int) -> Iterator[Edge]:
        """Yield the incoming edges of node `index` in their stored order."""
        for number in range(int(self.edge_offsets[index]), int(self.edge_offsets[index + 1])):
            yield self.edge(number, index)

    def hash_ids(self, index: int) -> UInt64:
        """Return the hash ids of node `index`, one for each block of its prompt."""
        begin, end = int(self.run_offsets[index]), int(self.run_offsets[index + 1])
        counts = self.run_count[begin:end]
        ids = np.repeat(self.run_first[begin:end], counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        offsets: Int64 = np.arange(len(ids), dtype=np.int64) - starts
        return ids + offsets.astype(np.uint64)

    def sealed(self) -> Graph:
        """Return a copy that nothing can change: its arrays lie in memory that NumPy will not write, its mappings are
        views of copies. O(nodes + edges + runs)."""
        nodes = _sealed(np.concatenate([play.nodes for play in self.plays]) if self.plays else np.empty(0, np.int32))
        ends = np.cumsum([len(play.nodes) for play in self.plays]).tolist()
        plays = tuple(
            replace(play, nodes=nodes[end - len(play.nodes) : end]) for play, end in zip(self.plays, ends, strict=True)
        )
        held = {item.name: getattr(self, item.name) for item in fields(self)}
        changed: dict[str, Any] = {name: _sealed(v) for name, v in held.items() if isinstance(v, np.ndarray)}
        changed |= {name: MappingProxyType(dict(v)) for name, v in held.items() if isinstance(v, Mapping)}
        return replace(self, **{**changed, "plays": plays})

    def edge_target(self) -> Int32:
        """Return the target node of every edge, shape (edges,)."""
        return np.repeat(np.arange(self.node_count, dtype=np.int32), np.diff(self.edge_offsets))
