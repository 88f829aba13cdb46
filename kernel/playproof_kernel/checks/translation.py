"""Translation validation: what `compiled` made of a proven graph, read once more from the graph and compared.

What is proven is a `Graph`; what runs is arrays. So each translation is checked before it runs, without the code that
made it:

- *whole*: every column of every node and edge, as far as a comparison of arrays can say it. Edges are compared as a
  set, in-degrees are counted from the translated edges, times must lie within half a nanosecond.
- *node by node*, in plain Python: the exact nanoseconds, the outgoing edges, the request whose prompt holds an answer.
- *keys*: two blocks have one key exactly when they, and all blocks before them, hold the same tokens. Prompts are
  sorted; what neighbours share is what any two share, and there are as many keys as different chains.

The latter two look at all of a small corpus, and of a large one at a sample that its digest draws: some plays whole, as
prompts of one play share most, and single requests of all plays. What that costs beside loading the corpus, and what a
sample of this size finds, says `bench/translation.py`.

Under the run controls the arrays are changed once more, for seats, and instances get their namespaces while the run
goes on: `refuse_wrong_seats` and `refuse_wrong_namespaces` look at those. The latter evaluates the rule that obligation
M6 proves; `computed_identities` gives M6 what the kernel's own source computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph, Trigger
from playproof_spec.identity import NAMESPACE_RULE, NUMBER_RULE, Computed, Term, evaluate, written_out
from playproof_spec.places import place
from playproof_spec.units import NS_PER_MS

from playproof_kernel.corpus.compiled import CompiledGraph, compile_graph
from playproof_kernel.driver import instances
from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.faults import TranslationFault
from playproof_kernel.memory import prompt_keys

__all__ = [
    "check_translation",
    "compile_checked",
    "computed_identities",
    "refuse_wrong_namespaces",
    "refuse_wrong_seats",
    "sample",
    "settings_of",
]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

# A corpus up to this size is looked at whole: some 10 ms.
ALL_NODES = 1_000
ALL_BLOCKS = 100_000
# Of a larger one, trace blocks of the plays that are looked at whole, and of requests of other plays.
PLAY_BLOCKS = 750_000
OTHER_BLOCKS = 750_000
OTHER_NODES = 2_000


class Settings(NamedTuple):
    """What `compile_graph` was asked for; see there."""

    block_size: int
    blocks: int
    context: int
    lanes: bool
    speedup: float
    play_scope: bool = False
    answers: bool = False


def settings_of(deployment: DeploymentSpec, load: LoadSpec) -> Settings:
    """Return what a graph is compiled for on `deployment` under `load`."""
    worker, decode = deployment.worker, deployment.decode
    return Settings(
        block_size=worker.block_size,
        blocks=worker.blocks,
        context=deployment.context_length,
        lanes=load.lanes is not None,
        speedup=load.speedup,
        play_scope=load.play_scope,
        # Once any worker finds generated tokens in its cache.
        answers=worker.reuse_output or (decode is not None and decode.worker.reuse_output),
    )


def compile_checked(graph: Graph, digest: str, settings: Settings) -> CompiledGraph:
    """Compile `graph` as `compile_graph` does and check what came out; its `digest` draws the sample.

    Raises
    ------
    TranslationFault
        When the arrays say something else than the graph; that is our fault.
    """
    compiled = compile_graph(graph, **settings._asdict())
    check_translation(graph, compiled, settings, digest)
    return compiled


def check_translation(graph: Graph, compiled: CompiledGraph, settings: Settings, digest: str) -> None:
    """Compare compiled arrays with the graph they were made from.

    Raises
    ------
    TranslationFault
        With the first difference.

    Notes
    -----
    Linear in nodes and edges, with a small constant, and in the hash ids of the sample.
    """
    if (len(compiled.static), len(compiled.edges)) != (graph.node_count, graph.edge_count):
        raise TranslationFault(f"{len(compiled.static)} requests and {len(compiled.edges)} edges were translated")
    whole = _Whole(graph, compiled, settings)
    whole.check_nodes()
    whole.check_edges()
    whole.check_runs()
    chosen = sample(graph, digest)
    single = _Single(whole, chosen)
    for node in chosen.tolist():
        single.check_node(node)
    single.check_keys()


def sample(graph: Graph, digest: str) -> Int64:
    """Return the nodes that are looked at one by one: all of a small corpus, else what `digest` draws."""
    ends = np.concatenate(([0], np.cumsum(graph.run_count)))
    blocks = ends[graph.run_offsets[1:]] - ends[graph.run_offsets[:-1]]
    if graph.node_count <= ALL_NODES and int(blocks.sum()) <= ALL_BLOCKS:
        return np.arange(graph.node_count, dtype=np.int64)
    chance = np.random.default_rng(np.frombuffer(digest.encode(), np.uint8))
    chosen, left = [np.zeros(0, np.int64)], PLAY_BLOCKS
    for number in chance.permutation(len(graph.plays)).tolist():
        nodes = graph.plays[number].nodes.astype(np.int64)
        taken = nodes[np.cumsum(blocks[nodes]) <= left]
        chosen.append(taken)
        left -= int(blocks[taken].sum())
        if len(taken) < len(nodes):
            break
    others = chance.permutation(graph.node_count).astype(np.int64)
    chosen.append(others[np.cumsum(blocks[others]) <= OTHER_BLOCKS][:OTHER_NODES])
    # One at least, however long its prompt.
    return np.unique(np.concatenate([*chosen, others[:1]]))


def _columns(records: Any) -> dict[str, Int64]:
    """Return the columns of records as plain arrays, which are read ten times faster."""
    return {name: np.asarray(records[name]) for name in records.dtype.names}


def _fault(graph: Graph, node: int, what: str, found: object, wanted: object) -> TranslationFault:
    return TranslationFault(f"{what} was translated to {found}, the graph has {wanted} ({place(graph, node)})")


def _compare(graph: Graph, what: str, found: Int64, wanted: Any, nodes: Int64 | None = None) -> None:
    """Refuse the first row in which two columns differ; row i is of node ``nodes[i]``, or of node i."""
    different = np.flatnonzero(found != wanted)
    if len(different) > 0:
        row = int(different[0])
        said = int(np.broadcast_to(wanted, found.shape)[row])
        raise _fault(graph, row if nodes is None else int(nodes[row]), what, int(found[row]), said)


def _compare_times(graph: Graph, what: str, found: Int64, exact_ns: Float64, nodes: Int64 | None = None) -> None:
    """Refuse the first time that is not within half a nanosecond of what it stands for."""
    wrong = np.flatnonzero(~(np.abs(found.astype(np.float64) - exact_ns) <= 0.5))
    if len(wrong) > 0:
        row = int(wrong[0])
        node = row if nodes is None else int(nodes[row])
        raise _fault(graph, node, what, f"{int(found[row])} ns", f"{exact_ns[row]} ns")


def _compare_edges(graph: Graph, out: Int64, edges: dict[str, Int64], target: Int64, speedup: float) -> None:
    """Compare edges as a set: `out` of them leave each node, and `target` says how the targets of the graph's read."""
    count = graph.node_count

    def named(sources: Any, targets: Any, triggers: Any) -> Int64:
        """Number an edge: of less than 2^31 nodes, and of two triggers."""
        return (sources.astype(np.int64) * count + targets) * len(Trigger) + triggers

    wanted = named(graph.edge_source, target, graph.edge_trigger)
    found = named(np.repeat(np.arange(count), out), edges["target"], edges["trigger"])
    as_read, as_made = np.lexsort((graph.edge_delay_ms, wanted)), np.lexsort((edges["delay"], found))
    owner = graph.edge_target()[as_read].astype(np.int64)
    wrong = np.flatnonzero(wanted[as_read] != found[as_made])
    if len(wrong) > 0:
        row = int(wrong[0])
        other, trigger = divmod(int(found[as_made[row]]), len(Trigger))
        said = f"one of node {other // count} to node {other % count} at trigger {trigger}"
        raise _fault(graph, int(owner[row]), "an edge", said, graph.edge(int(as_read[row])))
    exact_ns = graph.edge_delay_ms[as_read] / speedup * NS_PER_MS
    _compare_times(graph, "the delay of an edge", edges["delay"][as_made], exact_ns, owner)


# Whole ---------------------------------------------------------------------------------------------------------------


class _Whole:
    """A translation column by column."""

    def __init__(self, graph: Graph, compiled: CompiledGraph, settings: Settings) -> None:
        self.graph, self.compiled, self.settings = graph, compiled, settings
        self.static, self.edges, self.keys = (
            _columns(records) for records in (compiled.static, compiled.edges, compiled.keys)
        )
        self.target = graph.edge_target().astype(np.int64)
        self.floors_ns = self._floors_ms() / settings.speedup * NS_PER_MS

    def _floors_ms(self) -> Float64:
        """Return each node's floor from the earliest root of its play, with lanes, else of all."""
        graph = self.graph
        waits = np.zeros(graph.node_count, np.bool_)
        waits[self.target] = True
        first_of_play = []
        for play in graph.plays:
            roots = graph.not_before_ms[play.nodes[~waits[play.nodes]]].tolist()
            first_of_play.append(min(roots, default=np.inf))
        first = np.array(first_of_play)[graph.node_play] if self.settings.lanes else min(first_of_play)
        return np.maximum(graph.not_before_ms - first, 0.0)

    def check_nodes(self) -> None:
        graph, static, settings = self.graph, self.static, self.settings
        nodes = np.arange(graph.node_count)
        limit = np.clip(settings.context - graph.input_length, 0, graph.output_length)
        needed = -((graph.input_length + limit) // -settings.block_size)
        spaces: Any = 0
        if settings.play_scope:
            spaces = evaluate(
                NUMBER_RULE, space=graph.node_play.astype(np.int64), span=self.compiled.key_span, offset=0
            )
        for what, name, wanted in (
            ("the prompt", "input", graph.input_length),
            ("the output", "limit", limit),
            ("the number of incoming edges", "in_degree", np.bincount(self.target, minlength=len(nodes))),
            ("the play", "play", graph.node_play),
            ("the request", "source", nodes),
            ("the place among equal times", "serial", nodes if graph.tie_rank is None else graph.tie_rank),
            ("the mark of uncounted gaps", "uncounted", 0),
            ("the size of the block table", "table_size", np.minimum(needed, settings.blocks)),
            ("the namespace", "space", spaces),
        ):
            _compare(graph, what, static[name], wanted)
        _compare_times(graph, "the floor", static["floor"], self.floors_ns)
        members = np.concatenate([play.nodes for play in graph.plays]) if graph.plays else nodes
        _compare(graph, "a request of a play", self.compiled.play_nodes, members, members)
        ends = np.cumsum([0, *(len(play.nodes) for play in graph.plays)])
        if not np.array_equal(self.compiled.play_begin, ends):
            raise TranslationFault("the plays were translated with other numbers of requests")

    def check_edges(self) -> None:
        """Compare the edges as a set, and count how many lead into each node."""
        graph, static, edges, settings = self.graph, self.static, self.edges, self.settings
        count = graph.node_count
        self._check_bounds("outgoing edge", "edge_begin", "edge_end", graph.edge_count)
        out = static["edge_end"] - static["edge_begin"]
        _compare(graph, "the number of outgoing edges", out, np.bincount(graph.edge_source, minlength=count))
        _compare(graph, "the number of edges in", np.bincount(edges["target"], minlength=count), static["in_degree"])

        _compare_edges(graph, out, edges, self.target, settings.speedup)

    def check_runs(self) -> None:
        """Check that the runs of keys of each node follow one another, block by block, and lie below the span."""
        graph, static, keys = self.graph, self.static, self.keys
        self._check_bounds("run of keys", "key_begin", "answer_end", len(keys["first"]))
        ends = np.concatenate(([0], np.cumsum(keys["count"])))
        begin, middle, end = (ends[static[name]] for name in ("key_begin", "key_end", "answer_end"))
        full = graph.input_length // self.settings.block_size
        _compare(graph, "the number of full blocks of the prompt", middle - begin, full)
        _compare(graph, "the number of blocks with keys", end - begin, static["keyed"])
        owner = np.repeat(np.arange(graph.node_count), static["answer_end"] - static["key_begin"])
        _compare(graph, "the first block of a run of keys", keys["begin"], ends[:-1] - begin[owner], owner)
        last = keys["first"] + (keys["count"] - 1) * self.compiled.key_stride
        outside = (keys["count"] < 1) | (keys["first"] < 0) | (last >= self.compiled.key_span)
        _compare(graph, "a run of keys outside of the span", outside.astype(np.int64), 0, owner)

    def _check_bounds(self, what: str, begin: str, end: str, count: int) -> None:
        """Check that the rows of each node begin where those of the node before end, and that all are someone's."""
        before = np.concatenate(([0], self.static[end]))
        _compare(self.graph, f"the first {what}", self.static[begin], before[:-1])
        if int(before[-1]) != count:
            raise TranslationFault(f"{int(before[-1])} rows of the kind {what} belong to requests, of {count}")


# One by one -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a cache can know of a request, in an order that sorts by content.

    Attributes
    ----------
    ids : bytes
        The hash ids of its trace blocks, the first byte the weightiest.
    tokens : int
        How many tokens have keys as soon as they fill a block.
    runs : slice
        Its runs of keys.
    keys : Int64
        Of its full blocks.
    """

    node: int
    ids: bytes
    tokens: int
    runs: slice
    keys: Int64


class _Single:
    """A translation request by request, for those of `chosen`."""

    def __init__(self, whole: _Whole, chosen: Int64) -> None:
        self.whole, self.graph, self.settings = whole, whole.graph, whole.settings
        self.floors_ns, self.target = whole.floors_ns, whole.target
        self.by_source = np.argsort(self.graph.edge_source)
        self.prompts = [self._prompt(node) for node in chosen.tolist()]

    def check_node(self, node: int) -> None:
        """Compare the times of a node and of its incoming edges to the nanosecond."""
        graph, static, edges = self.graph, self.whole.static, self.whole.edges
        floor = round(float(self.floors_ns[node]))
        if int(static["floor"][node]) != floor:
            raise _fault(graph, node, "the floor", int(static["floor"][node]), floor)
        begin, end = int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])
        if int(static["in_degree"][node]) != end - begin:
            raise _fault(graph, node, "the number of incoming edges", int(static["in_degree"][node]), end - begin)
        for number in range(begin, end):
            source = int(graph.edge_source[number])
            delay_ms = float(graph.edge_delay_ms[number])
            wanted = (node, int(graph.edge_trigger[number]), round(delay_ms / self.settings.speedup * NS_PER_MS))
            outgoing = slice(int(static["edge_begin"][source]), int(static["edge_end"][source]))
            made = [edges[name][outgoing].tolist() for name in ("target", "trigger", "delay")]
            if wanted not in zip(*made, strict=True):
                raise _fault(graph, node, f"{graph.edge(number, node)}", "no edge", f"{wanted[2]} ns")

    def _prompt(self, node: int) -> _Prompt:
        """Return the tokens that have keys and the keys that they have, of the prompt alone or with its answer."""
        graph, static, keys = self.graph, self.whole.static, self.whole.keys
        told = self._holder(node) if self.settings.answers else node
        tokens = int(graph.input_length[node])
        if told != node:
            tokens += max(min(int(graph.output_length[node]), self.settings.context - tokens), 0)
        blocks = tokens // self.settings.block_size
        if int(static["keyed"][node]) != blocks:
            raise _fault(graph, node, "the number of blocks with keys", int(static["keyed"][node]), blocks)
        runs = slice(int(static["key_begin"][node]), int(static["answer_end"][node]))
        stride = self.whole.compiled.key_stride
        base = np.repeat(keys["first"][runs] - keys["begin"][runs] * stride, keys["count"][runs])
        ids = graph.hash_ids(told)[: -(-tokens // graph.block_size)]
        return _Prompt(node, ids.astype(">u8").tobytes(), tokens, runs, base + np.arange(len(base)) * stride)

    def _holder(self, node: int) -> int:
        """Return the first request that waits for `node` to complete and whose prompt holds its answer, or `node`."""
        graph = self.graph
        length, output = int(graph.input_length[node]), int(graph.output_length[node])
        mine = graph.hash_ids(node)[: length // graph.block_size]
        begin, end = np.searchsorted(graph.edge_source, (node, node + 1), sorter=self.by_source)
        outgoing = self.by_source[begin:end]
        waiting = outgoing[graph.edge_trigger[outgoing] == Trigger.COMPLETION]
        ranks = graph.tie_ranks
        followers = sorted(
            set(self.target[waiting].tolist()),
            key=lambda n: (int(graph.node_file[n]), int(graph.node_line[n]), int(ranks[n])),
        )
        for other in followers:
            long_enough = int(graph.input_length[other]) >= length + output
            if long_enough and np.array_equal(graph.hash_ids(other)[: len(mine)], mine):
                return int(other)
        return node

    def check_keys(self) -> None:
        """Check that equal chains have equal keys, and that there are as many keys as chains."""
        graph = self.graph
        held = sorted(self.prompts, key=lambda prompt: (prompt.ids, prompt.tokens))
        chains = len(held[0].keys) if held else 0
        for one, other in pairwise(held):
            blocks = self._shared(one, other) // self.settings.block_size
            what = f"a block that {graph.request_ids[other.node]} shares with {graph.request_ids[one.node]}"
            _compare(graph, what, other.keys[:blocks], one.keys[:blocks], np.full(blocks, other.node))
            chains += len(other.keys) - blocks
        if self._different_keys(held) != chains:
            raise self._collision(held)

    def _shared(self, one: _Prompt, other: _Prompt) -> int:
        """Return how many tokens two prompts have in common at their beginning."""
        mine, theirs = np.frombuffer(one.ids, np.uint64), np.frombuffer(other.ids, np.uint64)
        most = min(len(mine), len(theirs))
        different = np.flatnonzero(mine[:most] != theirs[:most])
        blocks = int(different[0]) if len(different) > 0 else most
        return min(blocks * self.graph.block_size, one.tokens, other.tokens)

    def _different_keys(self, held: list[_Prompt]) -> int:
        """Count the different keys of some prompts: what their runs, as stretches of a line, cover."""
        keys, stride = self.whole.keys, self.whole.compiled.key_stride
        rows = np.concatenate([np.arange(prompt.runs.start, prompt.runs.stop) for prompt in held] or [np.zeros(0, int)])
        first, count = keys["first"][rows], keys["count"][rows]
        # Keys of one remainder lie side by side, those of another in a stretch of the line further on.
        at = first % stride * (self.whole.compiled.key_span // stride + 1) + first // stride
        order = np.argsort(at, kind="stable")
        begin, end = at[order], (at + count)[order]
        reached = np.maximum.accumulate(np.concatenate(([-1], end)))[:-1]
        return int(np.maximum(end - np.maximum(begin, reached), 0).sum())

    def _collision(self, held: list[_Prompt]) -> TranslationFault:
        """Name two blocks that have one key, though what they hold differs."""
        seen: dict[int, tuple[_Prompt, int]] = {}
        names = self.graph.request_ids
        for prompt in held:
            for block, key in enumerate(prompt.keys.tolist()):
                earlier, at = seen.setdefault(key, (prompt, block))
                same = (block + 1) * self.settings.block_size <= self._shared(earlier, prompt)
                if at != block or not (earlier is prompt or same):
                    what = f"the key of block {block} of {names[prompt.node]}"
                    found = f"{key}, that of block {at} of {names[earlier.node]}"
                    return _fault(self.graph, prompt.node, what, found, "other tokens there")
        return TranslationFault("two blocks have one key")


# Run controls --------------------------------------------------------------------------------------------------------


def refuse_wrong_seats(graph: Graph, sim: Sim, speedup: float) -> None:
    """Compare what seats are copied from with the graph: its edges name targets by their place in the play.

    Raises
    ------
    TranslationFault
        With the first difference.
    """
    ranks, members = graph.tie_ranks, []
    place_in_play = np.zeros(graph.node_count, np.int64)
    first_ms = np.zeros(graph.node_count)
    for play in graph.plays:
        members.append(play.nodes[np.argsort(ranks[play.nodes])].astype(np.int64))
        place_in_play[members[-1]] = np.arange(len(play.nodes))
        first_ms[play.nodes] = graph.not_before_ms[play.nodes].min()
    nodes = np.concatenate(members)
    _compare(graph, "a request of a seat", sim.play_nodes[: graph.node_count], nodes, nodes)
    static = sim.static[: graph.node_count]
    out = static.edge_end - static.edge_begin
    _compare_edges(graph, out, _columns(sim.edges), place_in_play[graph.edge_target()], speedup)
    is_root = np.diff(graph.edge_offsets) == 0
    floors_ns = np.where(is_root, graph.not_before_ms - first_ms, 0.0) / speedup * NS_PER_MS
    _compare_times(graph, "the floor in a whole play", static.floor, floors_ns)


def refuse_wrong_namespaces(sim: Sim) -> None:
    """Evaluate the rule that M6 proves, and compare what the run has given its instances and its preparation.

    Raises
    ------
    TranslationFault
        With the first request that has another namespace.
    """
    config, plays = sim.config[0], sim.plays
    seats = np.flatnonzero((np.arange(len(plays)) >= int(config.corpus_plays)) & (plays.lane >= 0))
    sizes = (plays.node_end - plays.node_begin)[seats]
    owner = np.repeat(seats, sizes)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    slots = plays.node_begin[owner] + np.arange(len(owner)) - starts
    prepared = int(config.prep_begin) + np.arange(len(sim.prep))
    lanes = np.concatenate((plays.lane[owner], sim.prep.lane))
    ordinals = np.concatenate((plays.ordinal[owner], np.zeros(len(sim.prep), np.int64)))
    rows = np.concatenate((slots, prepared))
    instance = evaluate(NAMESPACE_RULE, lane=lanes, ordinal=ordinals, lanes=int(config.lanes))
    wanted = evaluate(NUMBER_RULE, space=instance, span=int(config.key_span), offset=0)
    for role in range(len(sim.config)):
        # The requests of the decode role have rows of their own.
        found = sim.static.space[rows + role * len(sim.node_state)]
        different = np.flatnonzero(found != wanted)
        if len(different) > 0:
            row = int(different[0])
            raise TranslationFault(
                f"a request of play {int(ordinals[row])} of lane {int(lanes[row])} was given the namespace "
                f"{int(found[row])}, the rule says {int(wanted[row])}"
            )


def computed_identities() -> Computed:
    """Return what the kernel's source computes of cache identities, as terms for obligation M6."""
    lane, ordinal, lanes, span = (Term(name) for name in ("lane", "ordinal", "lanes", "span"))
    sim = SimpleNamespace(config=[SimpleNamespace(lanes=lanes, key_span=span)])
    space, stride, block = Term("space"), Term("stride"), Term("block")
    run = SimpleNamespace(first=Term("first"), begin=Term("begin"), count=Term("count"))
    alone = SimpleNamespace(key_begin=0, answer_end=1, space=space)

    def first(one: Any, _: Any) -> Any:
        return one

    return Computed(
        namespace=str(written_out(instances.namespace, sim, lane, ordinal)),
        keys=(
            str(written_out(prompt_keys.key_at, [run], alone, space, stride, block)),
            # Of the part of a run from `block` on, which is where it begins if the run has begun before.
            str(
                written_out(prompt_keys.part_of, run, alone, stride, block, block, given={"max": first, "min": first})[
                    2
                ]
            ),
        ),
    )
