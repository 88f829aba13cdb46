"""Digests: the graph's, equal to the peer's for the same file, and the machines'.

The graph digest names a corpus in certificates, reports and snapshot cuts, so its recipe is fixed to the byte: BLAKE3
over compact JSON as Rust's ``serde_json`` prints it. Most of that text is hash ids (94 million in the public corpus),
held as runs of consecutive ids; a compiled formatter writes them without making a Python object of any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from playproof_native import allocating, allocating_entry

from playproof_spec.graph import (
    RELATION_NAMES,
    TRIGGER_NAMES,
    Carried,
    Float64,
    Graph,
    Int64,
    Relation,
    Trigger,
    UInt64,
)
from playproof_spec.machines import MACHINES, Machine

__all__ = ["format_float", "format_hash_ids", "format_string", "graph_digest", "tables_digest"]

Bytes = npt.NDArray[np.uint8]

# An id has up to 20 digits; with its comma 21 bytes. A block of 100 ids always fits into what is kept free.
_ID_BYTES = 21
_BLOCK_BYTES = 100 * _ID_BYTES
CHUNK_BYTES = 1 << 18  # a chunk stays in the second-level cache between its writing and its hashing


@allocating
def _write_decimal(value: np.uint64, out: Bytes, at: int) -> int:
    """Write `value` in decimal and a comma into `out` from `at`; return where it ends. Writes `out`."""
    width = 1
    rest = value // np.uint64(10)
    while rest > np.uint64(0):
        width += 1
        rest //= np.uint64(10)
    for place in range(at + width - 1, at - 1, -1):
        out[place] = np.uint8(np.uint64(48) + value % np.uint64(10))
        value //= np.uint64(10)
    out[at + width] = np.uint8(44)
    return at + width + 1


@allocating_entry
def _write_runs(first: UInt64, count: Int64, run: int, done: int, out: Bytes) -> tuple[int, int, int]:
    """Write ids in decimal, each with a comma, from id `done` of run `run` on. Writes `out`.

    Returns (bytes written, run, ids done of that run): where to go on when `out` was full.

    Ids that differ only in the last two digits form a block of constant width. A whole block that follows a whole
    block is a copy of it with the digits above the last two changed, which is one strided store an id.
    """
    at = 0
    while run < len(first):
        previous_width = 0  # of a whole block that ends at `at`, else 0
        while done < count[run]:
            if at + _BLOCK_BYTES > len(out):
                return at, run, done
            value = first[run] + np.uint64(done)
            begin = at
            if value < np.uint64(100):
                at = _write_decimal(value, out, at)
                done += 1
                continue
            tail = np.int64(value % np.uint64(100))
            ids = min(100 - tail, count[run] - done)
            at = _write_decimal(value, out, at)
            width = at - begin
            if ids == 100 and previous_width == width:
                # The last two digits and the comma are the earlier block's; so is every higher digit that is equal.
                size = 100 * width
                same = 0
                while out[begin + same] == out[begin - size + same]:
                    same += 1
                for place in range(size - width):
                    out[begin + width + place] = out[begin + width - size + place]
                for digit in range(same, width - 3):
                    for copy in range(1, 100):
                        out[begin + copy * width + digit] = out[begin + digit]
            else:
                for copy in range(1, ids):
                    start = begin + copy * width
                    for digit in range(width - 3):
                        out[start + digit] = out[begin + digit]
                    out[start + width - 3] = np.uint8(48 + (tail + copy) // 10)
                    out[start + width - 2] = np.uint8(48 + (tail + copy) % 10)
                    out[start + width - 1] = np.uint8(44)
            at = begin + ids * width
            done += ids
            previous_width = width if ids == 100 else 0
        run += 1
        done = 0
    return at, run, done


def format_hash_ids(run_first: UInt64, run_count: Int64, buffer: Bytes | None = None) -> Iterator[memoryview]:
    """Yield the ids of some runs as comma-separated decimals, in chunks.

    Parameters
    ----------
    run_first : UInt64, shape (runs,); run_count : Int64, shape (runs,)
        As in :class:`~playproof_spec.graph.Graph`; a run never passes 2**64 - 1.
    buffer : uint8 array, optional
        Scratch of at least 4,200 bytes that every chunk is written into; give one to save its allocation per call.

    Yields
    ------
    memoryview
        The next piece of the text. Valid until the next one is asked for, since the buffer is reused.

    Raises
    ------
    ValueError
        When the buffer is too small to hold a block of ids.

    Examples
    --------
    >>> b"".join(format_hash_ids(np.array([7, 100], np.uint64), np.array([3, 2], np.int64)))
    b'7,8,9,100,101'
    """
    out = np.empty(CHUNK_BYTES, dtype=np.uint8) if buffer is None else buffer
    if len(out) < 2 * _BLOCK_BYTES:
        raise ValueError(f"the buffer needs {2 * _BLOCK_BYTES} bytes")
    # The arrays of a proven graph are read only, which to the compiler is another type.
    run_first, run_count = np.require(run_first, requirements="W"), np.require(run_count, requirements="W")
    view = out.data
    run = done = 0
    comma = b""
    while True:
        written, run, done = _write_runs(run_first, run_count, run, done, out)
        if written == 0:
            return
        if comma:
            yield memoryview(comma)
        yield view[: written - 1]
        if run == len(run_first):
            return
        comma = b","


def format_float(value: float) -> str:
    """Return `value` as ``serde_json`` prints a Rust f64: shortest digits, ``.0`` for whole numbers.

    The digits are Python's (both are the shortest that read back equal); the layout differs. Rust writes numbers from
    1e-5 up to below 1e16 without an exponent, and an exponent without a plus sign or padding. Infinities and NaN are
    ``null``.

    Examples
    --------
    >>> [format_float(x) for x in (3.0, 1e-5, 1e-6, 1.5e16, 1e15, 0.1)]
    ['3.0', '0.00001', '1e-6', '1.5e16', '1000000000000000.0', '0.1']
    """
    text = repr(value)
    if "e" not in text:
        return text if math.isfinite(value) else "null"
    mantissa, _, exponent_text = text.partition("e")
    exponent = int(exponent_text)
    # Python turns to exponents below 1e-4 and from 1e16; only the decade from 1e-5 is written out by Rust.
    if exponent == -5:
        sign = "-" if mantissa.startswith("-") else ""
        return f"{sign}0.0000{mantissa.removeprefix('-').replace('.', '')}"
    return f"{mantissa}e{exponent}"


def format_string(text: str) -> str:
    """Return `text` as a JSON string as ``serde_json`` prints it: only quotes, backslashes and controls escaped.

    Examples
    --------
    >>> print(format_string('é "x"\\n'))
    "é \\"x\\"\\n"
    """
    return json.dumps(text, ensure_ascii=False)


def _dependencies(graph: Graph, names: list[str], delays: Float64, node: int) -> str:
    """Return the edges into `node` as JSON, sorted by source id, trigger, relation and delay."""
    begin, end = int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])
    rows = []
    for number in range(begin, end):
        source = int(graph.edge_source[number])
        if source >= 0:
            key, name = graph.request_ids[source], names[source]
        else:
            key = graph.dangling.get(number, "")
            name = format_string(key)
        trigger, relation = int(graph.edge_trigger[number]), int(graph.edge_relation[number])
        rows.append((_encode(key), trigger, relation, float(delays[number]), name))
    if len(rows) > 1:
        rows.sort()
    return ",".join(
        f'{{"request_id":{name},"trigger":"{TRIGGER_NAMES[Trigger(trigger)]}","delay_ms":{format_float(delay)},'
        f'"relation":"{RELATION_NAMES[Relation(relation)]}"}}'
        for _, trigger, relation, delay, name in rows
    )


def _encode(text: str) -> bytes:
    # A lone surrogate has no UTF-8 form; it is no reason to die over a digest.
    return text.encode("utf-8", "surrogatepass")


_PLAIN = Carried()


def graph_digest(graph: Graph, shift_floors: bool = True, speedup: float = 1.0) -> str:
    """Return the digest of a graph, 64 hexadecimal digits.

    Parameters
    ----------
    graph : Graph
    shift_floors : bool
        Shift the floors so that the least of the corpus is 0, as finite replay does. Under snapshot they stay.
    speedup : float
        Divides floors and delays (not recorded times) first, as a replay at that speed does.

    Notes
    -----
    Equal to aisimulate's ``graph_digest`` for the same Agentic Mooncake v2 file. Source, file names and the order of
    rows do not enter. Linear in nodes, edges and hash ids.
    """
    hasher = blake3()
    names = [format_string(request_id) for request_id in graph.request_ids]
    sessions = [format_string(name) for name in graph.sessions]
    models = [format_string(name) for name in graph.models]
    plays = [
        f"{format_string(play.play_id)},"
        + ("" if play.ordinal is None else f'"source_play_ordinal":{play.ordinal},')
        + '"session_id":'
        for play in graph.plays
    ]
    floors = graph.not_before_ms
    if shift_floors and len(floors):
        floors = floors - floors.min()
    floors = floors / speedup
    delays = graph.edge_delay_ms / speedup
    buffer = np.empty(CHUNK_BYTES, dtype=np.uint8)
    hasher.update(f'{{"block_size":{graph.block_size},"nodes":['.encode())
    for node, name in enumerate(names):
        hints = graph.carried.get(node, _PLAIN)
        tokens = hints.output_token_ids
        given = "null" if tokens is None else "[" + ",".join(map(str, tokens)) + "]"
        head = (
            f'{"," if node else ""}{{"request_id":{name},"play_id":{plays[graph.node_play[node]]}'
            f'{sessions[graph.node_session[node]]},"model":{models[graph.node_model[node]]},'
            f'"input_length":{graph.input_length[node]},"max_output_tokens":{graph.output_length[node]},'
            f'"output_token_ids":{given},"replay_key":{"null" if tokens is None else name},"hash_ids":['
        )
        hasher.update(_encode(head))
        runs = slice(graph.run_offsets[node], graph.run_offsets[node + 1])
        for chunk in format_hash_ids(graph.run_first[runs], graph.run_count[runs], buffer):
            hasher.update(chunk)
        recorded = float(graph.recorded_api_time_ms[node])
        policy = "null" if hints.policy_class is None else format_string(hints.policy_class)
        tail = (
            f'],"not_before_ms":{format_float(float(floors[node]))},'
            + ("" if math.isnan(recorded) else f'"recorded_api_time_ms":{format_float(recorded)},')
            + f'"priority":{hints.priority},"strict_priority":{hints.strict_priority},"policy_class":{policy},'
            f'"dependencies":[{_dependencies(graph, names, delays, node)}]}}'
        )
        hasher.update(_encode(tail))
    hasher.update(b"]}")
    return hasher.hexdigest()


def _table_rows(machine: Machine) -> dict[str, dict[str, list[str]]]:
    return {
        state.name.lower(): {
            event.name.lower(): [rule.to.name.lower(), rule.guard]
            for event, rule in sorted(machine.table[state].items())
        }
        for state in machine.states
    }


def tables_digest(machines: tuple[Machine, ...] = MACHINES) -> str:
    """Return the digest of the state machines' tables, guards included: 64 hexadecimal digits."""
    facts = [
        {
            "name": machine.name,
            "states": [state.name.lower() for state in machine.states],
            "events": [event.name.lower() for event in machine.events],
            "initial": machine.initial.name.lower(),
            "terminal": [state.name.lower() for state in sorted(machine.terminal)],
            "table": _table_rows(machine),
        }
        for machine in machines
    ]
    return blake3(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()
