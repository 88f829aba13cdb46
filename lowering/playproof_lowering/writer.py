"""The canonical form of Agentic Mooncake v2: what `playproof lower` writes.

Keys in the order of the table in FORMATS, plays in execution order, their nodes in document order, dependencies in the
digest's order, floats in the shortest form that reads back equal. Equal graphs give equal bytes.

Where ties do not go by the ids of the requests, the rows stand in the order of ties, and the header says so.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from playproof_spec.digest import format_float, format_hash_ids, format_string
from playproof_spec.graph import RELATION_NAMES, TRIGGER_NAMES, Carried, Graph, Int64, Play, Relation, Trigger

from playproof_lowering.agentic_mooncake import SCHEMA, TIES_BY_ROW, VERSION

__all__ = ["write_v2"]

_PLAIN: Final = Carried()
_BUFFER_BYTES: Final = 2**18


def write_v2(graph: Graph, out_path: str | os.PathLike[str]) -> None:
    """Write a graph as an Agentic Mooncake v2 file.

    Parameters
    ----------
    graph : Graph
        Well-formed, or the reader of the file will find what is wrong.
    out_path : path
        Replaced only when all is written: the file is made beside it under a temporary name first.

    Raises
    ------
    OSError
        When the folder cannot be written; no temporary file stays behind.

    Notes
    -----
    Linear in nodes, edges and hash ids; memory is one buffer. Ids are written by the compiled formatter of the digest.
    """
    target = Path(out_path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(target.parent))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        # A temporary file is private; the result has the permissions that any other new file would have.
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(descriptor, 0o666 & ~mask)
        with open(descriptor, "wb", buffering=2**20) as out:
            for piece in _pieces(graph):
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _pieces(graph: Graph) -> Iterator[bytes | memoryview]:
    """Yield the file's bytes; a memory view is valid until the next piece is asked for."""
    yield (
        f'{{"schema":{format_string(SCHEMA)},"version":{VERSION},"block_size":{graph.block_size},'
        f'"hash_id_scope":"local","source":{{"format":{format_string(graph.source.format)},'
        f'"digest":{format_string(graph.source.digest)}}}{_tie_order(graph)}}}\n'
    ).encode()
    names = [format_string(request_id) for request_id in graph.request_ids]
    sessions = [format_string(name) for name in graph.sessions]
    models = [format_string(name) for name in graph.models]
    buffer = np.empty(_BUFFER_BYTES, dtype=np.uint8)
    heads = [_head(play) for play in graph.plays]
    for node in _in_order(graph).tolist():
        tokens = graph.carried.get(node, _PLAIN).output_token_ids
        given = "" if tokens is None else f'"output_token_ids":[{",".join(map(str, tokens))}],'
        yield (
            f'{{"request_id":{names[node]},{heads[graph.node_play[node]]}{sessions[graph.node_session[node]]},'
            f'"model":{models[graph.node_model[node]]},"input_length":{graph.input_length[node]},'
            f'"output_length":{graph.output_length[node]},{given}"hash_ids":['
        ).encode()
        runs = slice(graph.run_offsets[node], graph.run_offsets[node + 1])
        yield from format_hash_ids(graph.run_first[runs], graph.run_count[runs], buffer)
        yield f"],{_tail(graph, names, node)}}}\n".encode()


def _by_row(graph: Graph) -> bool:
    """Whether ties of `graph` go in another order than that of the ids of its requests."""
    return graph.tie_rank is not None and not np.array_equal(graph.tie_rank, np.arange(graph.node_count))


def _tie_order(graph: Graph) -> str:
    return f',"tie_order":"{TIES_BY_ROW}"' if _by_row(graph) else ""


def _in_order(graph: Graph) -> Int64:
    """Return the nodes in the order of their rows."""
    if graph.tie_rank is not None and _by_row(graph):
        return np.argsort(graph.tie_rank)
    return np.concatenate([np.empty(0, np.int64), *(play.nodes for play in graph.plays)])


def _head(play: Play) -> str:
    ordinal = "" if play.ordinal is None else f'"source_play_ordinal":{play.ordinal},'
    return f'"play_id":{format_string(play.play_id)},{ordinal}"session_id":'


def _tail(graph: Graph, names: list[str], node: int) -> str:
    """Return the fields behind the hash ids."""
    parts = [f'"not_before_ms":{format_float(float(graph.not_before_ms[node]))}']
    recorded = float(graph.recorded_api_time_ms[node])
    if not math.isnan(recorded):
        parts.append(f'"recorded_api_time_ms":{format_float(recorded)}')
    hints = graph.carried.get(node)
    if hints is not None:
        if hints.priority:
            parts.append(f'"priority":{hints.priority}')
        if hints.strict_priority:
            parts.append(f'"strict_priority":{hints.strict_priority}')
        if hints.policy_class is not None:
            parts.append(f'"policy_class":{format_string(hints.policy_class)}')
    parts.append(f'"dependencies":[{_dependencies(graph, names, node)}]')
    return ",".join(parts)


def _dependencies(graph: Graph, names: list[str], node: int) -> str:
    """Return the edges into `node`, sorted by source id, trigger, relation and delay."""
    rows = []
    for number in range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])):
        source = int(graph.edge_source[number])
        key = graph.request_ids[source] if source >= 0 else graph.dangling[number]
        name = names[source] if source >= 0 else format_string(key)
        trigger, relation = int(graph.edge_trigger[number]), int(graph.edge_relation[number])
        rows.append((key, trigger, relation, float(graph.edge_delay_ms[number]), name))
    rows.sort()
    return ",".join(
        f'{{"request_id":{name},"trigger":"{TRIGGER_NAMES[Trigger(trigger)]}","delay_ms":{format_float(delay)},'
        f'"relation":"{RELATION_NAMES[Relation(relation)]}"}}'
        for _, trigger, relation, delay, name in rows
    )
