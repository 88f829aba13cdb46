"""The proofs against naive twins: enumeration of runs, plain search, and the unreduced encoding."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_spec import proofs
from playproof_spec.certificate import ProvenGraph, examine, prove
from playproof_spec.digest import format_float, format_hash_ids
from playproof_spec.findings import Findings, InvalidInput
from playproof_spec.graph import Graph
from playproof_spec.machine_proofs import prove_counters
from playproof_spec.machines import LANE, NODE, PLAY, Machine, NodeEvent, NodeState, PlayEvent, PlayState, Rule
from playproof_spec.obligation import NOT_APPLICABLE, PROVEN
from playproof_spec.proofs import Lifecycle
from playproof_spec.reduction import Shape, distinct_shapes, reduce_plays
from playproof_spec.sketch import compress_hash_ids, sketch
from playproof_spec.topology import earliest_dispatch_ns, topology
from playproof_spec.units import HORIZON_MS, HORIZON_NS, ms_to_ns

Rows = list[dict[str, Any]]
COMPLETION = ["sequence", "join", "replay_barrier", "spawn"]


@st.composite
def plays(draw: st.DrawFn, nodes_max: int = 8, acyclic: bool = True, delays: bool = False) -> Rows:
    """Rows of one play whose edges go forward (or anywhere), in an order of ids that differs from that of the edges."""
    size = draw(st.integers(1, nodes_max))
    names = draw(st.permutations([f"r{k}" for k in range(size)]))
    rows: Rows = []
    for k in range(size):
        sources = draw(st.sets(st.integers(0, (k if acyclic else size) - 1), max_size=3)) if k or not acyclic else set()
        edges = []
        for source in sorted(sources - {k}):
            at_dispatch = draw(st.booleans())
            relation = "spawn" if at_dispatch else draw(st.sampled_from(COMPLETION))
            delay = draw(st.sampled_from([0.0, 1.0, 2.5, HORIZON_MS / 3])) if delays else 0.0
            trigger = "dispatch" if at_dispatch else "completion"
            edges.append({"request_id": names[source], "relation": relation, "trigger": trigger, "delay_ms": delay})
        floor = draw(st.sampled_from([0.0, 3.0, HORIZON_MS / 2])) if delays else 0.0
        rows.append({"request_id": names[k], "dependencies": edges, "not_before_ms": floor})
    return rows


def structure_verdicts(graph: Graph, simplify: bool) -> tuple[str, str]:
    order = topology(graph)
    shapes = distinct_shapes(graph, order, reduce_plays(graph, order, simplify))
    findings = Findings()
    joins = proofs.prove_joins(graph, order, shapes, findings)
    return joins.verdict, proofs.prove_failures(graph, order, shapes, findings).verdict


@given(plays(nodes_max=10))
def test_reduction_keeps_the_verdicts_of_acyclic_plays(rows: Rows) -> None:
    graph = sketch(rows)
    assert structure_verdicts(graph, simplify=True) == structure_verdicts(graph, simplify=False) == ("proven", "proven")


@given(plays(acyclic=False))
def test_reduction_keeps_the_verdicts_of_any_play(rows: Rows) -> None:
    graph = sketch(rows)
    assert structure_verdicts(graph, simplify=True) == structure_verdicts(graph, simplify=False)


@given(plays(nodes_max=12))
def test_reduction_keeps_who_waits_for_whom(rows: Rows) -> None:
    graph = sketch(rows)
    order = topology(graph)
    full, small = reduce_plays(graph, order, simplify=False), reduce_plays(graph, order)
    whole: nx.DiGraph[int] = nx.DiGraph(zip(full.source.tolist(), full.target.tolist(), strict=True))
    whole.add_nodes_from(range(graph.node_count))
    reduced: nx.DiGraph[int] = nx.DiGraph(zip(small.source.tolist(), small.target.tolist(), strict=True))
    heads = set(small.head.tolist())
    reduced.add_nodes_from(heads)
    for node in heads:
        before = {int(small.head[n]) for n in nx.ancestors(whole, node)} - {node}
        assert nx.ancestors(reduced, node) == before


@given(plays(), st.randoms(use_true_random=False))
def test_shapes_do_not_depend_on_names(rows: Rows, random: Any) -> None:
    names = [f"x{k}" for k in range(len(rows))]
    random.shuffle(names)
    new = {row["request_id"]: name for row, name in zip(rows, names, strict=True)}
    renamed = [
        {
            "request_id": new[row["request_id"]],
            "dependencies": [{**edge, "request_id": new[edge["request_id"]]} for edge in row["dependencies"]],
        }
        for row in rows
    ]

    def shapes(graph: Graph) -> list[Shape]:
        order = topology(graph)
        return [item.shape for item in distinct_shapes(graph, order, reduce_plays(graph, order))]

    assert shapes(sketch(rows)) == shapes(sketch(renamed))


# ------------------------------------------------------------------------------------------- G5 against enumeration


def run_breaks_the_rule(shape: Shape, life: Lifecycle, lags: tuple[int, ...], fails: tuple[bool, ...]) -> bool:
    """Simulate one run, service taking one unit and each node starting `lag` after its events; look for a breach."""
    incoming: list[list[tuple[int, bool]]] = [[] for _ in range(shape.size)]
    for source, target, completion in shape.edges:
        incoming[target].append((source, completion))
    dispatched: dict[int, int] = {}
    failed_at = math.inf
    for now in range(4 * shape.size + 4):
        ending = [node for node, start in dispatched.items() if start + 1 == now and fails[node]]
        failed_at = min([failed_at, now]) if ending else failed_at
        progress = True
        while progress:
            progress = False
            for node in range(shape.size):
                if node in dispatched or (life.stops and now >= failed_at):
                    continue
                events = []
                for source, completion in incoming[node]:
                    completes = life.failure_completes if fails[source] else life.success_completes
                    if source not in dispatched or (completion and not completes):
                        break
                    events.append(dispatched[source] + completion)
                else:
                    if now >= max(events, default=0) + lags[node]:
                        dispatched[node] = now
                        progress = True
    any_failed = any(fails[node] for node in dispatched)
    poisoned: set[int] = set()
    for _ in range(shape.size):
        for node in range(shape.size):
            if any(s in poisoned or (c and s in dispatched and fails[s]) for s, c in incoming[node]):
                poisoned.add(node)
    late = any(start >= failed_at for start in dispatched.values())
    waiting = len(dispatched) < shape.size and not (any_failed and life.skips)
    endless = bool(dispatched) and not life.ends
    return bool(poisoned & set(dispatched)) or late or waiting or endless


LIVES = [
    Lifecycle.of(),
    Lifecycle(success_completes=True, failure_completes=True, ends=True, skips=True, stops=False),
    Lifecycle(success_completes=True, failure_completes=False, ends=True, skips=True, stops=False),
    Lifecycle(success_completes=True, failure_completes=True, ends=True, skips=True, stops=True),
    Lifecycle(success_completes=True, failure_completes=False, ends=True, skips=False, stops=True),
    Lifecycle(success_completes=False, failure_completes=False, ends=True, skips=True, stops=True),
    Lifecycle(success_completes=True, failure_completes=False, ends=False, skips=True, stops=True),
]


@pytest.mark.parametrize("life", LIVES, ids=str)
@given(rows=plays(nodes_max=4, acyclic=False))
def test_failure_question_equals_enumeration(life: Lifecycle, rows: Rows) -> None:
    graph = sketch(rows)
    order = topology(graph)
    (item,) = distinct_shapes(graph, order, reduce_plays(graph, order, simplify=False))
    size = item.shape.size
    breach = any(
        run_breaks_the_rule(item.shape, life, lags, fails)
        for lags in itertools.product((0, 2), repeat=size)
        for fails in itertools.product((False, True), repeat=size)
    )
    assert proofs.Prover().ask(proofs.failure_question(item.shape, life)).verdict == ("sat" if breach else "unsat")


# ------------------------------------------------------------------------------------------ M4 against enumeration

PLAY_IS: dict[str, tuple[PlayState, ...]] = {
    "all_edges_fired": (PlayState.ACTIVE,),
    "due": (PlayState.ACTIVE,),
    "play_failed": (PlayState.FAILING,),
    "play_closing": (PlayState.CLOSING,),
    "before_cut": (PlayState.PENDING,),
}


def allowed(guard: str, play: PlayState, nodes: tuple[NodeState, ...]) -> bool:
    if guard == "all_completed":
        return all(state in (NodeState.COMPLETED, NodeState.HISTORICAL) for state in nodes)
    if guard == "all_over":
        return not {NodeState.BLOCKED, NodeState.READY, NodeState.DISPATCHED} & set(nodes)
    return play in PLAY_IS.get(guard, tuple(PlayState))


def plain_search_finds_a_breach(node: Machine, play: Machine, size: int) -> bool:
    """Walk through every reachable state of a play of `size` nodes without edges; look for a breach of M4."""
    failures = (NodeState.FAILED, NodeState.CANCELED)
    start = (PlayState(play.initial), (NodeState(node.initial),) * size)
    seen, stack = {start}, [start]
    while stack:
        state, nodes = stack.pop()
        failed = any(s in failures for s in nodes)
        over = state in play.terminal and all(s in node.terminal for s in nodes)
        if state in play.terminal and NodeState.DISPATCHED in nodes:
            return True
        if state == PlayState.COMPLETED and not allowed("all_completed", state, nodes):
            return True
        successors, goes_on = [], False
        for place, at in enumerate(nodes):
            for event, rule in node.table[at].items():
                if not allowed(rule.guard, state, nodes):
                    continue
                if rule.to in (NodeState.READY, NodeState.DISPATCHED) and failed:
                    return True
                after = state
                if at == NodeState.DISPATCHED and event != NodeEvent.COMPLETE:
                    raised = play.table[state].get(PlayEvent.NODE_FAILED)
                    after = PlayState(raised.to) if raised else state
                successors.append((after, (*nodes[:place], NodeState(rule.to), *nodes[place + 1 :])))
                goes_on |= event != NodeEvent.CUT
        for event, rule in play.table[state].items():
            if event != PlayEvent.NODE_FAILED and allowed(rule.guard, state, nodes):
                successors.append((PlayState(rule.to), nodes))
                goes_on |= event != PlayEvent.DEADLINE
        if not over and not goes_on:
            return True
        for successor in successors:
            if successor not in seen:
                seen.add(successor)
                stack.append(successor)
    return False


@st.composite
def mutated_tables(draw: st.DrawFn) -> tuple[Machine, Machine]:
    """The node and play tables with one entry taken out, led elsewhere, added, or guarded otherwise."""
    machine = draw(st.sampled_from([NODE, PLAY]))
    state = draw(st.sampled_from(list(machine.states)))
    event = draw(st.sampled_from(list(machine.events)))
    row = dict(machine.table[state])
    row.pop(event, None)
    if draw(st.booleans()):
        guard = draw(st.sampled_from(["", "all_completed", "all_over", *PLAY_IS]))
        row[event] = Rule(draw(st.sampled_from(list(machine.states))), guard)
    changed = dataclasses.replace(machine, table={**machine.table, state: row})
    return (changed, PLAY) if machine is NODE else (NODE, changed)


def test_plain_search_finds_no_breach_in_our_tables() -> None:
    assert not any(plain_search_finds_a_breach(NODE, PLAY, size) for size in (1, 2, 3))


@given(mutated_tables())
def test_what_plain_search_finds_broken_is_not_proven(tables: tuple[Machine, Machine]) -> None:
    node, play = tables
    if any(plain_search_finds_a_breach(node, play, size) for size in (1, 2)):
        verdict = prove_counters({"node": node, "play": play, "lane": LANE})
        assert verdict.verdict == "failed", verdict.how


# ------------------------------------------------------------------------------------------------- times and circles


@given(plays(delays=True))
def test_the_earliest_run_equals_plain_recursion_and_decides_g4(rows: Rows) -> None:
    graph = sketch(rows)
    index = {request_id: node for node, request_id in enumerate(graph.request_ids)}

    def earliest(node: int) -> int:
        causes = [earliest(index[edge.source]) + ms_to_ns(edge.delay_ms) for edge in graph.edges_into(node)]
        return max([ms_to_ns(float(graph.not_before_ms[node])), *causes])

    exact = [earliest(node) for node in range(graph.node_count)]
    dispatch, _ = earliest_dispatch_ns(graph, topology(graph))
    assert dispatch.tolist() == [min(time, HORIZON_NS + 1) for time in exact]

    findings = Findings()
    obligations, _ = examine(graph, findings)
    joins = next(o for o in obligations if o.code == "G4")
    assert joins.verdict == ("failed" if max(exact) > HORIZON_NS else "proven")
    assert set(findings.counts) == ({"join-unsatisfiable"} if max(exact) > HORIZON_NS else set())


@given(plays(acyclic=False))
def test_circles_equal_plain_search(rows: Rows) -> None:
    graph = sketch(rows)
    plain: nx.DiGraph[str] = nx.DiGraph()
    plain.add_nodes_from(row["request_id"] for row in rows)
    plain.add_edges_from((edge["request_id"], row["request_id"]) for row in rows for edge in row["dependencies"])
    knots = [knot for knot in nx.strongly_connected_components(plain) if len(knot) > 1]
    findings = Findings()
    examine(graph, findings)
    cycles = [item for item in findings.items if item.code == "cycle"]
    assert len(cycles) == len(knots)
    for item in cycles:
        (knot,) = (knot for knot in knots if item.where.ids[0] in knot)
        shortest = min(len(circle) for circle in nx.simple_cycles(plain.subgraph(knot)))
        assert item.message.startswith(f"the shortest circle has {shortest} edges")
        assert all(plain.has_edge(a, b) for a, b in itertools.pairwise([*item.where.ids, item.where.ids[0]]))

    roots = [node for node in plain if plain.in_degree(node) == 0]
    reached = set(roots).union(*(nx.descendants(plain, root) for root in roots))
    lost = {"node-unreachable", "play-without-root"} & set(findings.counts)
    assert bool(lost) == (len(reached) < len(plain))


# ---------------------------------------------------------------------------------------------------- broken graphs

VALUES = st.sampled_from([0.0, 1.5, -1.0, math.nan, math.inf, -math.inf, 1e300, HORIZON_MS])


@st.composite
def broken_corpora(draw: st.DrawFn) -> Graph:
    """Any nonsense that a graph can hold."""
    names = ["a", "b", "c", "d", "e", ""]
    edge = st.fixed_dictionaries(
        {
            "request_id": st.sampled_from([*names, "gone"]),
            "relation": st.sampled_from(["sequence", "spawn", "join", "replay_barrier"]),
            "trigger": st.sampled_from(["dispatch", "completion"]),
            "delay_ms": VALUES,
        }
    )
    row = st.fixed_dictionaries(
        {
            "request_id": st.sampled_from(names),
            "dependencies": st.lists(edge, max_size=3),
            "input_length": st.integers(-1, 40),
            "output_length": st.integers(-1, 3),
            "not_before_ms": VALUES,
            "recorded_api_time_ms": st.none() | VALUES,
            "hash_ids": st.lists(st.integers(0, 2**64 - 1), max_size=3),
        }
    )
    rows = draw(st.lists(row, max_size=6))
    owner = draw(st.lists(st.sampled_from(["p", "q", ""]), min_size=len(rows), max_size=len(rows)))
    ordinal = {name: draw(st.none() | st.integers(-1, 3)) for name in ("p", "q", "")}
    return sketch(
        [{**r, "play_id": o, "source_play_ordinal": ordinal[o]} for r, o in zip(rows, owner, strict=True)],
        block_size=draw(st.sampled_from([16, 1, -4])),
    )


@given(broken_corpora())
def test_nonsense_gives_findings_and_never_a_traceback(graph: Graph) -> None:
    findings = Findings()
    obligations, _ = examine(graph, findings)
    sound = all(o.verdict in (PROVEN, NOT_APPLICABLE) for o in obligations)
    assert sound == (findings.errors == 0)
    if sound:
        assert isinstance(prove(graph), ProvenGraph)
    else:
        with pytest.raises(InvalidInput) as refused:
            prove(graph)
        assert refused.value.findings.items == findings.items


@given(plays(), st.data())
def test_an_injected_defect_is_found(rows: Rows, data: st.DataObject) -> None:
    assert isinstance(prove(sketch(rows)), ProvenGraph)
    victim = data.draw(st.sampled_from(range(len(rows))))
    kind = data.draw(st.sampled_from(["edge-dangling", "edge-self", "time-negative", "hash-count", "cycle"]))
    row = {**rows[victim]}
    if kind == "edge-dangling":
        row["dependencies"] = [*row["dependencies"], "gone"]
    elif kind == "edge-self":
        row["dependencies"] = [*row["dependencies"], row["request_id"]]
    elif kind == "time-negative":
        row["not_before_ms"] = -1.0
    elif kind == "hash-count":
        row["hash_ids"], row["input_length"] = [1, 2, 3], 16
    changed = [*rows[:victim], row, *rows[victim + 1 :]]
    if kind == "cycle":
        changed += [
            {"request_id": "y", "dependencies": ["z", row["request_id"]]},
            {"request_id": "z", "dependencies": ["y"]},
        ]
    with pytest.raises(InvalidInput) as refused:
        prove(sketch(changed))
    assert kind in refused.value.findings.counts


# ------------------------------------------------------------------------------------------------------------ digest


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 12), max_size=12), max_size=6))
def test_hash_ids_survive_compression_and_formatting(per_node: list[list[int]]) -> None:
    offsets, first, count = compress_hash_ids(per_node)
    for node, ids in enumerate(per_node):
        runs = slice(offsets[node], offsets[node + 1])
        buffer = np.empty(4200, dtype=np.uint8)
        text = b"".join(bytes(chunk) for chunk in format_hash_ids(first[runs], count[runs], buffer)).decode()
        assert text == ",".join(map(str, ids))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_read_back_equal_in_rusts_layout(value: float) -> None:
    text = format_float(value)
    assert float(text) == value
    mantissa, _, exponent = text.partition("e")
    assert "+" not in text
    if exponent:
        assert value != 0
        assert not 1e-5 <= abs(value) < 1e16
        assert not exponent.lstrip("-").startswith("0")
        assert not mantissa.endswith(".0")
    else:
        assert value == 0 or 1e-5 <= abs(value) < 1e16
        assert "." in mantissa
