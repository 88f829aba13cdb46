"""From a proven graph to dense arrays: CSR edges, integer times, and the keys of every full block of every prompt.

**Block keys.** A full engine block is identified by its tokens and all tokens before it. A trace block's tokens are
its hash id repeated, so two prompts share an engine block exactly when they share the chain of trace blocks up to its
end. Chains are interned in a trie over runs of consecutive ids: every distinct chain gets a number, neighbours on a
chain get neighbouring numbers, and the work grows with runs, not with blocks. From chain number c (its block covers the
tokens from p·T to (p + 1)·T of the prompt) an engine block that ends at token e within it gets the key
``(c·T + e − p·T) / g − 1`` with g = gcd(T, B): injective in (chain, e), and an arithmetic progression of stride B / g
along a run. With equal sizes the key is the chain number itself.

**Answers.** Where a later prompt holds the answer of a request, the blocks that the request generates are those of that
prompt: they have its keys, and the prompt finds them. It is the prompt of a request that waits for the completion of
the other, that starts with all its full trace blocks and reaches to the end of its answer; the first of them in the
order of the corpus. The ids of its blocks stand for the request's own partial last block as well. Whether workers look
is theirs to say (`WorkerSpec.reuse_output`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from playproof_spec.graph import Graph, Trigger
from playproof_spec.units import ms_to_ns

from playproof_kernel.ground.arrays import NONE, Edge, Keys, Static
from playproof_kernel.ground.jit import compiled, compiled_entry
from playproof_kernel.ground.records import records

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGraph:
    """The corpus as the kernel reads it; see `arrays` for the record types.

    Attributes
    ----------
    static, edges, keys
        Records by node, by outgoing edge (grouped by source), by run of block keys.
    play_begin : Int64, shape (plays + 1,); play_nodes : Int64, shape (nodes,)
        Nodes of each play, in document order.
    key_stride : int
        Distance between the keys of neighbouring engine blocks.
    key_span : int
        Above every key.
    """

    static: Any
    edges: Any
    keys: Any
    play_begin: Int64
    play_nodes: Int64
    key_stride: int
    key_span: int


def compile_graph(
    graph: Graph,
    *,
    block_size: int,
    blocks: int,
    context: int,
    lanes: bool,
    speedup: float,
    play_scope: bool = False,
    answers: bool = False,
) -> CompiledGraph:
    """Compile `graph` for workers with `blocks` blocks of `block_size` tokens.

    Parameters
    ----------
    context : int
        Tokens of prompt and output that a request may have.
    lanes : bool
        Whether floors count from the play's start (lanes) or from the corpus' earliest floor.
    speedup : float
        Divides floors and delays, once, here.
    play_scope : bool
        Give each play a namespace of its own.
    answers : bool
        Give the blocks of answers that later prompts hold the keys that they have there.
    """
    static = records(graph.node_count, Static)
    static.input = graph.input_length
    static.limit = np.minimum(graph.output_length, np.maximum(context - graph.input_length, 0))
    static.floor = _floors_ns(graph, lanes, speedup)
    static.play = graph.node_play
    static.in_degree = np.diff(graph.edge_offsets)
    static.table_size = np.minimum((static.input + static.limit + block_size - 1) // block_size, blocks)

    order = np.argsort(graph.edge_source, kind="stable")
    edges = records(graph.edge_count, Edge)
    edges.target = graph.edge_target()[order]
    edges.trigger = graph.edge_trigger[order]
    edges.delay = ms_to_ns(graph.edge_delay_ms[order] / speedup)
    bounds = np.searchsorted(graph.edge_source[order], np.arange(graph.node_count + 1))
    static.edge_begin = bounds[:-1]
    static.edge_end = bounds[1:]

    holders = prompts_with_answers(graph) if answers else None
    key_offsets, keys, prompt_ends = keys_of(graph, block_size, holders, np.asarray(static.limit))
    static.key_begin = key_offsets[:-1]
    static.key_end = prompt_ends
    static.answer_end = key_offsets[1:]
    static.keyed = static.input // block_size
    if holders is not None:
        held = holders != np.arange(graph.node_count)
        static.keyed[held] = (static.input + static.limit)[held] // block_size
    stride = block_size // gcd(graph.block_size, block_size)
    span = int((keys.first + (keys["count"] - 1) * stride).max(initial=-1)) + 1
    static.source = np.arange(graph.node_count)
    static.serial = graph.tie_ranks
    static.space = graph.node_play.astype(np.int64) * span if play_scope else 0

    sizes = [len(play.nodes) for play in graph.plays]
    return CompiledGraph(
        static=static,
        edges=edges,
        keys=keys,
        play_begin=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        play_nodes=np.concatenate([play.nodes for play in graph.plays]).astype(np.int64),
        key_stride=stride,
        key_span=span,
    )


def _floors_ns(graph: Graph, lanes: bool, speedup: float) -> Int64:
    """Floors from the earliest floor of a root: of the corpus, or with lanes of the node's own play.

    Only a root's floor says when something began. Recorders put placeholders, 0 above all, on nodes that wait for
    others; a floor before the origin holds nothing back.
    """
    floors = graph.not_before_ms
    is_root = np.diff(graph.edge_offsets) == 0
    first_root = np.full(len(graph.plays), np.inf)
    np.minimum.at(first_root, graph.node_play[is_root], floors[is_root])
    origin = first_root[graph.node_play] if lanes else first_root.min(initial=np.inf)
    return ms_to_ns(np.maximum(floors - origin, 0.0) / speedup)


def prompts_with_answers(graph: Graph) -> Int64:
    """Return for each node the node whose prompt holds its prompt and its answer, or itself; shape (nodes,)."""
    holders = np.arange(graph.node_count, dtype=np.int64)
    order = np.lexsort((graph.tie_ranks, graph.node_line, graph.node_file))
    for node in order.tolist():
        for edge in range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])):
            source = int(graph.edge_source[edge])
            if graph.edge_trigger[edge] == Trigger.COMPLETION and holders[source] == source:
                if _continues(graph, source, node):
                    holders[source] = node
    return holders


def _continues(graph: Graph, source: int, node: int) -> bool:
    """Whether the prompt of `node` starts with all full blocks of that of `source`, and reaches past its answer."""
    if graph.input_length[node] < graph.input_length[source] + graph.output_length[source]:
        return False
    whole = int(graph.input_length[source]) // graph.block_size
    mine, other = (_leading_runs(graph, each, whole) for each in (source, node))
    return mine == other


def _leading_runs(graph: Graph, node: int, blocks: int) -> list[tuple[int, int]]:
    """Return the first `blocks` hash ids of `node` as runs, neighbouring runs joined."""
    runs: list[tuple[int, int]] = []
    for run in range(int(graph.run_offsets[node]), int(graph.run_offsets[node + 1])):
        first, count = int(graph.run_first[run]), min(int(graph.run_count[run]), blocks)
        if count > 0 and runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        elif count > 0:
            runs.append((first, count))
        blocks -= count
    return runs


def block_keys(graph: Graph, block_size: int) -> tuple[Int64, Any]:
    """Intern the prompts of `graph` as runs of engine-block keys.

    Returns
    -------
    offsets : Int64, shape (nodes + 1,)
    keys : records of `Keys`
        Node i's full blocks have the keys of runs ``offsets[i]:offsets[i + 1]``, in order.
    """
    offsets, keys, _ = keys_of(graph, block_size, None, np.zeros(graph.node_count, np.int64))
    return offsets, keys


def keys_of(graph: Graph, block_size: int, holders: Int64 | None, limit: Int64) -> tuple[Int64, Any, Int64]:
    """Intern the prompts of `graph`, and the answers that `holders` hold, as runs of engine-block keys.

    Parameters
    ----------
    holders : Int64, shape (nodes,), or None
        As `prompts_with_answers` returns them; None: no answer has a key.
    limit : Int64, shape (nodes,)
        Tokens of the answers.

    Returns
    -------
    offsets : Int64, shape (nodes + 1,)
    keys : records of `Keys`
        As those of `block_keys`; behind the blocks of a prompt stand those of its answer, in runs of their own.
    prompt_ends : Int64, shape (nodes,)
        Where the runs of each node's prompt end.
    """
    tokens, trace_size = graph.input_length, graph.block_size
    run_offsets = np.stack((graph.run_offsets[:-1], graph.run_offsets[1:]))
    if holders is not None:
        tokens = np.where(holders != np.arange(graph.node_count), tokens + limit, tokens)
        run_offsets = run_offsets[:, holders]
    order = np.concatenate([play.nodes for play in graph.plays]).astype(np.int64)
    whole = tokens // trace_size
    # A prompt's partial last trace block matters only where an engine block ends inside it. Such tails are interned
    # after all whole blocks: most are private to their request and would break up the runs of the others.
    ends_in_tail = (tokens // block_size) * block_size > whole * trace_size
    depth = whole + ends_in_tail
    trie = _new_trie(int((run_offsets[1] - run_offsets[0]).sum()))
    # Copies: the arrays of a proven graph are read only, which to the compiler is another type.
    runs = (np.array(run_offsets), graph.run_first.view(np.int64).copy(), graph.run_count.copy())
    _intern(trie, *runs, order, whole)
    if ends_in_tail.any():
        _intern(trie, *runs, order, depth)
    offsets, prompt_ends = np.zeros(graph.node_count + 1, np.int64), np.zeros(graph.node_count, np.int64)
    shape = np.array([trace_size, block_size, gcd(trace_size, block_size)], np.int64)
    lengths = np.stack((tokens, graph.input_length))
    _emit_keys(trie, *runs, depth, lengths, shape, offsets, prompt_ends, records(0, Keys))
    keys = records(int(offsets[-1]), Keys)
    _emit_keys(trie, *runs, depth, lengths, shape, offsets, prompt_ends, keys)
    return offsets, keys, prompt_ends


class Trie(NamedTuple):
    """Chains of trace blocks as segments of consecutive ids; a branch hangs on a chain number.

    Attributes
    ----------
    label, chain, length : Int64, shape (segments,)
        First hash id, first chain number, blocks.
    slot_parent, slot_label, slot_segment : Int64, shape (power of two,)
        Open-addressing map from (chain number of the parent, hash id) to the segment that begins there.
    used : Int64, shape (2,)
        Segments and chain numbers in use.
    """

    label: Int64
    chain: Int64
    length: Int64
    slot_parent: Int64
    slot_label: Int64
    slot_segment: Int64
    used: Int64


def _new_trie(runs: int) -> Trie:
    """Return an empty trie with room for the branches that `runs` runs can make: one each, for each of two passes."""
    segments = 2 * runs + 1
    slots = 1 << (2 * segments).bit_length()
    return Trie(
        label=np.zeros(segments, np.int64),
        chain=np.zeros(segments, np.int64),
        length=np.zeros(segments, np.int64),
        slot_parent=np.zeros(slots, np.int64),
        slot_label=np.zeros(slots, np.int64),
        slot_segment=np.full(slots, NONE, np.int64),
        used=np.zeros(2, np.int64),
    )


@compiled
def _slot(trie: Any, parent: int, label: int) -> int:
    """Return the slot of (parent, label): the one that holds it, or the free one where it belongs."""
    mask = trie.slot_segment.shape[0] - 1
    mixed = (parent & 0x3FFFFFFF) * 0x9E3779B1 + ((label ^ (label >> 31)) & 0x3FFFFFFF) * 0x85EBCA6B
    at = (mixed >> 15) & mask
    while trie.slot_segment[at] != NONE and (trie.slot_parent[at] != parent or trie.slot_label[at] != label):
        at = (at + 1) & mask
    return at


@compiled
def _descend(trie: Any, segment: int, offset: int, label: int, left: int) -> tuple[int, int, int]:
    """Follow existing chains for up to `left` consecutive ids from `label`, from a position in the trie.

    Returns
    -------
    segment, offset : int
        The position after the step.
    taken : int
        Blocks followed, 0 when the trie has no such branch.
    """
    if segment != NONE and offset + 1 < trie.length[segment] and trie.label[segment] + offset + 1 == label:
        taken = min(left, trie.length[segment] - offset - 1)
        return segment, offset + taken, taken
    parent = NONE if segment == NONE else trie.chain[segment] + offset
    child = trie.slot_segment[_slot(trie, parent, label)]
    if child == NONE:
        return segment, offset, 0
    taken = min(left, trie.length[child])
    return child, taken - 1, taken


@compiled
def _grow(trie: Any, segment: int, offset: int, label: int, left: int) -> tuple[int, int]:
    """Add `left` consecutive ids from `label` below a position; writes the trie and returns the new position."""
    chains = trie.used[1]
    trie.used[1] = chains + left
    at_end = segment != NONE and offset + 1 == trie.length[segment]
    newest = at_end and trie.chain[segment] + trie.length[segment] == chains
    if newest and trie.label[segment] + trie.length[segment] == label:
        trie.length[segment] += left
        return segment, offset + left
    parent = NONE if segment == NONE else trie.chain[segment] + offset
    new = trie.used[0]
    trie.used[0] = new + 1
    trie.label[new] = label
    trie.chain[new] = chains
    trie.length[new] = left
    slot = _slot(trie, parent, label)
    trie.slot_parent[slot] = parent
    trie.slot_label[slot] = label
    trie.slot_segment[slot] = new
    return new, left - 1


@compiled_entry
def _intern(trie: Any, run_offsets: Any, run_first: Any, run_count: Any, order: Any, depth: Any) -> None:
    """Add the first `depth` trace blocks of every prompt to the trie, in the order of `order`."""
    for node in order:
        segment, offset, consumed = NONE, 0, 0
        for run in range(run_offsets[0, node], run_offsets[1, node]):
            label = run_first[run]
            left = min(run_count[run], depth[node] - consumed)
            consumed += left
            while left > 0:
                segment, offset, taken = _descend(trie, segment, offset, label, left)
                if taken == 0:
                    segment, offset = _grow(trie, segment, offset, label, left)
                    taken = left
                label += taken
                left -= taken


@compiled_entry
def _emit_keys(
    trie: Any,
    run_offsets: Any,
    run_first: Any,
    run_count: Any,
    depth: Any,
    lengths: Any,
    shape: Any,
    offsets: Any,
    prompt_ends: Any,
    keys: Any,
) -> None:
    """Write the runs of engine-block keys of every prompt to `keys`; with no room there, only count into `offsets`.

    `lengths` are the tokens that have keys and, of these, the prompts'; `prompt_ends` receives where their runs end.
    `shape` is (trace block size, engine block size, their greatest common divisor).
    """
    trace_size, size, common = shape[0], shape[1], shape[2]
    stride = size // common
    used = 0
    for node in range(offsets.shape[0] - 1):
        offsets[node] = used
        segment, offset, consumed = NONE, 0, 0
        expected = NONE
        prompt_blocks = lengths[1, node] // size
        prompt_ends[node] = used
        for run in range(run_offsets[0, node], run_offsets[1, node]):
            label = run_first[run]
            left = min(run_count[run], depth[node] - consumed)
            while left > 0:
                segment, offset, taken = _descend(trie, segment, offset, label, left)
                chain = trie.chain[segment] + offset - taken + 1
                begin = consumed * trace_size
                end = min(begin + taken * trace_size, lengths[0, node])
                block = begin // size
                first_end = (block + 1) * size
                count = end // size - block
                key = (chain * trace_size + first_end - begin) // common - 1
                while count > 0:
                    # An answer has runs of its own, and its first block begins one.
                    number = min(count, prompt_blocks - block) if block < prompt_blocks else count
                    if key != expected or block == prompt_blocks:
                        used += 1
                    if keys.shape[0] > 0:
                        if key != expected or block == prompt_blocks:
                            keys[used - 1].first = key
                            keys[used - 1].count = 0
                            keys[used - 1].begin = block
                        keys[used - 1].count += number
                    if block < prompt_blocks:
                        prompt_ends[node] = used
                    block += number
                    count -= number
                    key += number * stride
                    expected = key
                label += taken
                left -= taken
                consumed += taken
        offsets[offsets.shape[0] - 1] = used
