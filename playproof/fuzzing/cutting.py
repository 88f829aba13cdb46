"""Graphs made from a graph: fewer plays, the first requests of a play, shorter prompts, other times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from playproof_spec.graph import Graph
from playproof_spec.sketch import compress_hash_ids

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

# By what a recorded time may be multiplied.
TIME_FACTORS = (0.0, 0.25, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0)


def kept(graph: Graph, nodes: Bool) -> Graph:
    """Return the graph of some of the nodes.

    Parameters
    ----------
    graph : Graph
    nodes : Bool, shape (nodes,)
        Which stay. The sources of every node that stays have to stay; a play that keeps none is gone.
    """
    chosen = np.flatnonzero(nodes)
    place = np.cumsum(nodes) - 1
    edges = nodes[graph.edge_target()]
    runs = np.repeat(nodes, np.diff(graph.run_offsets))
    stay = np.zeros(len(graph.plays), np.bool_)
    stay[graph.node_play[chosen]] = True
    play_place = np.cumsum(stay) - 1
    plays = tuple(
        replace(
            play,
            nodes=place[play.nodes[nodes[play.nodes]]].astype(np.int32),
            ordinal=None if play.ordinal is None else int(play_place[number]),
        )
        for number, play in enumerate(graph.plays)
        if stay[number]
    )
    columns = (
        *("node_session", "node_model", "input_length", "output_length", "not_before_ms"),
        *("recorded_api_time_ms", "node_file", "node_line"),
    )
    changed: dict[str, Any] = {name: getattr(graph, name)[chosen] for name in columns}
    changed |= {name: _some(getattr(graph, name), chosen) for name in ("request_ids", "source_request_ids")}
    changed |= {name: _moved(getattr(graph, name), nodes, place) for name in ("carried", "observed")}
    changed |= {name: getattr(graph, name)[edges] for name in ("edge_trigger", "edge_relation", "edge_delay_ms")}
    changed |= {name: getattr(graph, name)[runs] for name in ("run_first", "run_count")}
    return replace(
        graph,
        **changed,
        plays=plays,
        node_play=play_place[graph.node_play[chosen]].astype(np.int32),
        edge_offsets=_offsets(np.diff(graph.edge_offsets)[chosen]),
        edge_source=place[graph.edge_source[edges]].astype(np.int32),
        run_offsets=_offsets(np.diff(graph.run_offsets)[chosen]),
        node_path=None if graph.node_path is None else _some(graph.node_path, chosen),
        tie_rank=None if graph.tie_rank is None else np.argsort(np.argsort(graph.tie_rank[chosen])).astype(np.int64),
    )


def _some(values: Sequence[T], chosen: Int64) -> tuple[T, ...]:
    return tuple(values[node] for node in chosen.tolist())


def _moved(values: Mapping[int, T], nodes: Bool, place: Int64) -> dict[int, T]:
    return {int(place[node]): value for node, value in values.items() if nodes[node]}


def _offsets(counts: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int64)


def of_plays(graph: Graph, plays: Sequence[int]) -> Graph:
    """Return the graph of some of the plays, by their positions."""
    return kept(graph, np.isin(graph.node_play, plays))


def beginnings(graph: Graph, most: int) -> Graph:
    """Return the graph of the first requests of each play, at most `most`: none before one that it depends on."""
    nodes = np.zeros(graph.node_count, np.bool_)
    for play in graph.plays:
        left = sorted(play.nodes.tolist(), key=lambda node: (float(graph.not_before_ms[node]), node))
        taken = 0
        while taken < most:
            sources = ((node, _sources(graph, node)) for node in left)
            first = next((node for node, sources_of in sources if nodes[sources_of].all()), None)
            if first is None:
                break
            nodes[first] = True
            left.remove(first)
            taken += 1
    return kept(graph, nodes)


def _sources(graph: Graph, node: int) -> npt.NDArray[np.int32]:
    return graph.edge_source[int(graph.edge_offsets[node]) : int(graph.edge_offsets[node + 1])]


def thinned(graph: Graph, blocks: int, output: int) -> Graph:
    """Return the graph with prompts of at most so many blocks, and outputs of at most so many tokens.

    Of each prompt one hash id in so many stays, the same places in all, so that prompts that began alike still do.
    """
    ids = [graph.hash_ids(node) for node in range(graph.node_count)]
    step = max(-(-max(map(len, ids), default=0) // blocks), 1)
    thin = [of_prompt[::step] for of_prompt in ids]
    missing = np.array([len(before) - len(after) for before, after in zip(ids, thin, strict=True)], np.int64)
    offsets, first, count = compress_hash_ids(thin)
    return replace(
        graph,
        input_length=graph.input_length - missing * graph.block_size,
        output_length=np.minimum(graph.output_length, output),
        run_offsets=offsets,
        run_first=first,
        run_count=count,
        carried={},  # output ids that would be longer than the output
    )


def at_other_times(graph: Graph, random: Random) -> Graph:
    """Return the graph with floors and delays each multiplied by one of a few factors, some of them made equal."""
    floors, delays = graph.not_before_ms.copy(), graph.edge_delay_ms.copy()
    for times in (floors, delays):
        factors = np.array(random.choices(TIME_FACTORS, k=len(times)), np.float64)
        touched = np.array([random.random() < 0.5 for _ in times], np.bool_)
        times[touched] *= factors[touched]
        if random.random() < 0.5:
            times[:] = np.round(times, -2)  # more things at one instant
    return replace(graph, not_before_ms=floors, edge_delay_ms=delays)
