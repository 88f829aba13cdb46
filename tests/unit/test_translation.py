"""Translation validation: faults in every array that a run reads are found, in small corpora and by sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_kernel import ReplayFault, simulate
from playproof_kernel.checks import translation
from playproof_kernel.checks.translation import Settings, check_translation, computed_identities, sample
from playproof_kernel.corpus.compiled import CompiledGraph, compile_graph
from playproof_kernel.driver import instances
from playproof_kernel.ground.faults import TranslationFault
from playproof_kernel.runs.controlled_run import simulate_controlled
from playproof_kernel.runs.controlled_setup import start_controlled
from playproof_kernel.runs.live_driver import LiveDriver
from playproof_native.modes import Mode, running
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, ProfileSpec, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.identity import NAMESPACE_RULE, Computed, Term, evaluate, written_out
from playproof_spec.machine_proofs import prove_identity, prove_machines
from playproof_spec.sketch import sketch
from strategies import graphs

DIGEST = "5eed"
SIZE = 4


def corpus(plays: int) -> Graph:
    """Plays of five requests: a conversation of three, a child that the first spawns, and one that joins both."""
    rows: list[dict[str, Any]] = []
    for play in range(plays):
        own = 10 * play + 100
        prompts = {"a": [1, 2], "b": [1, 2, own], "c": [1, 2, own, own + 1], "d": [1, own + 2], "e": [own + 3]}
        waits = {"b": ["a"], "c": ["b"], "d": ["a"], "e": ["c", "d"]}
        for name, hashes in prompts.items():
            edges = []
            for source in waits.get(name, []):
                spawn = name == "d"
                kind = ("spawn", "dispatch") if spawn else ("sequence", "completion")
                edges.append(
                    {"request_id": f"p{play:04}{source}", "relation": kind[0], "trigger": kind[1], "delay_ms": 1.5}
                )
            rows.append(
                {
                    "request_id": f"p{play:04}{name}",
                    "play_id": f"play{play:04}",
                    "input_length": len(hashes) * SIZE,
                    "output_length": SIZE,
                    "hash_ids": hashes,
                    "not_before_ms": 2.25 * "abcde".index(name) + play,
                    "dependencies": edges,
                }
            )
    return sketch(rows, block_size=SIZE)


SMALL, LARGE = corpus(3), corpus(300)
PLAIN = Settings(block_size=SIZE, blocks=100, context=1000, lanes=True, speedup=1.0)
SCOPED = PLAIN._replace(lanes=False, speedup=0.5, play_scope=True, answers=True)


def compiled(graph: Graph, settings: Settings) -> CompiledGraph:
    return compile_graph(graph, **settings._asdict())


def test_small_corpora_are_looked_at_whole_and_large_ones_by_a_sample_of_their_digest() -> None:
    assert sample(SMALL, DIGEST).tolist() == list(range(15))
    assert (LARGE.node_count, len(sample(LARGE, DIGEST))) == (1500, 1500)  # the sample has room for all of this one


@pytest.mark.parametrize("settings", [PLAIN, SCOPED])
@pytest.mark.parametrize("graph", [SMALL, LARGE])
def test_the_translation_as_it_is_passes(graph: Graph, settings: Settings) -> None:
    check_translation(graph, compiled(graph, settings), settings, DIGEST)


@given(
    graph=graphs(max_plays=6),
    size=st.integers(1, 6),
    context=st.sampled_from([12, 1000]),
    lanes=st.booleans(),
    speedup=st.sampled_from([1.0, 3.0, 0.7]),
    play_scope=st.booleans(),
    answers=st.booleans(),
)
def test_random_translations_pass(graph: Graph, size: int, context: int, **others: Any) -> None:
    settings = Settings(block_size=size, blocks=5, context=context, **others)
    check_translation(graph, compiled(graph, settings), settings, DIGEST)


# Single faults --------------------------------------------------------------------------------------------------------

COLUMNS = [
    *(("static", name) for name in ("input", "limit", "floor", "edge_begin", "edge_end", "key_begin", "key_end")),
    *(("static", name) for name in ("answer_end", "keyed", "table_size", "play", "in_degree", "source", "space")),
    *(("static", name) for name in ("serial", "uncounted")),
    *(("edges", name) for name in ("target", "trigger", "delay")),
    *(("keys", name) for name in ("count", "begin")),
]


@pytest.mark.parametrize(("array", "column"), COLUMNS, ids=lambda name: name)
@pytest.mark.parametrize("graph", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("settings", [PLAIN, SCOPED], ids=["plain", "scoped"])
def test_one_wrong_number_is_found_in_every_column(graph: Graph, settings: Settings, array: str, column: str) -> None:
    # These are looked at in every row, however large the corpus.
    chance = Random(column)
    for by in (1, -1):
        made = compiled(graph, settings)
        rows = getattr(made, array)
        row = chance.randrange(len(rows))
        rows[column][row] += by
        with pytest.raises(TranslationFault, match=r"translated|belong"):
            check_translation(graph, made, settings, DIGEST)


def _swap(column: Any, one: int, other: int) -> None:
    column[one], column[other] = int(column[other]), int(column[one])


def _edge_of_another_source(made: CompiledGraph) -> None:
    """Give the last edge of a node to the node before it, which has an edge as well."""
    degrees = made.static.edge_end - made.static.edge_begin
    node = int(np.flatnonzero((degrees[:-1] > 0) & (degrees[1:] > 0))[-1])
    made.static.edge_end[node] += 1
    made.static.edge_begin[node + 1] += 1


def _triggers_swapped(made: CompiledGraph) -> None:
    triggers = made.edges.trigger
    _swap(triggers, int(np.flatnonzero(triggers == 0)[-1]), int(np.flatnonzero(triggers == 1)[-1]))


def _targets_swapped(made: CompiledGraph) -> None:
    _swap(made.edges.target, 0, len(made.edges) - 1)


def _play_nodes_swapped(made: CompiledGraph) -> None:
    _swap(made.play_nodes, 0, 5)


def _play_of_other_size(made: CompiledGraph) -> None:
    made.play_begin[1] += 1


@pytest.mark.parametrize(
    "fault", [_edge_of_another_source, _triggers_swapped, _targets_swapped, _play_nodes_swapped, _play_of_other_size]
)
@pytest.mark.parametrize("graph", [SMALL, LARGE], ids=["small", "large"])
def test_what_keeps_sums_and_counts_is_found(graph: Graph, fault: Callable[[CompiledGraph], None]) -> None:
    made = compiled(graph, PLAIN)
    fault(made)
    with pytest.raises(TranslationFault):
        check_translation(graph, made, PLAIN, DIGEST)


def test_half_a_nanosecond_is_found_where_the_sample_looks() -> None:
    # 0.5 ns is rounded to even: 0, and neither 1 nor what truncation makes of 1.5 ns.
    graph = sketch(
        [
            {"request_id": "a"},
            {"request_id": "b", "dependencies": [{"request_id": "a", "delay_ms": 0.5e-6}], "not_before_ms": 1.5e-6},
        ]
    )
    for array, wrong in (("edges", 1), ("static", 1)):
        made = compiled(graph, PLAIN._replace(block_size=16))
        assert (made.edges.delay.tolist(), made.static.floor.tolist()) == ([0], [0, 2])
        made_rows = getattr(made, array)
        made_rows["delay" if array == "edges" else "floor"][-1] = wrong
        with pytest.raises(TranslationFault):
            check_translation(graph, made, PLAIN._replace(block_size=16), DIGEST)


# Keys -----------------------------------------------------------------------------------------------------------------


def runs_of(made: CompiledGraph, node: int) -> slice:
    return slice(int(made.static.key_begin[node]), int(made.static.answer_end[node]))


def _one_key_for_two_blocks(made: CompiledGraph, graph: Graph) -> None:
    """Give the lone block of the last play's `e` the key of another play's."""
    mine, theirs = runs_of(made, graph.node_count - 1), runs_of(made, 4)
    made.keys.first[mine] = int(made.keys.first[theirs][0])


def _two_keys_for_one_block(made: CompiledGraph, graph: Graph) -> None:
    """Give the prefix that all plays share a key of its own in one of them."""
    node = graph.node_count - 5
    made.keys.first[runs_of(made, node)] = made.key_span - 2


def _blocks_in_another_order(made: CompiledGraph, graph: Graph) -> None:
    """Number the blocks of the longest prompt of a play from behind."""
    runs = runs_of(made, graph.node_count - 3)
    made.keys.first[runs] = made.keys.first[runs][::-1].copy()


KEY_FAULTS = [_one_key_for_two_blocks, _two_keys_for_one_block, _blocks_in_another_order]


@pytest.mark.parametrize("fault", KEY_FAULTS)
@pytest.mark.parametrize("graph", [SMALL, LARGE], ids=["small", "large"])
def test_wrong_keys_are_found(graph: Graph, fault: Callable[[CompiledGraph, Graph], None]) -> None:
    made = compiled(graph, PLAIN)
    fault(made, graph)
    with pytest.raises(TranslationFault, match="block"):
        check_translation(graph, made, PLAIN, DIGEST)


def test_a_collision_names_both_blocks() -> None:
    made = compiled(SMALL, PLAIN)
    _one_key_for_two_blocks(made, SMALL)
    with pytest.raises(TranslationFault, match=r"the key of block 0 of p0002e .* block 0 of p0000e, .*sketch:15"):
        check_translation(SMALL, made, PLAIN, DIGEST)


def test_of_keys_the_sample_finds_what_lies_in_it_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # With room for 60 trace blocks of whole plays and as many of other requests: some of 3,600.
    monkeypatch.setattr(translation, "PLAY_BLOCKS", 60)
    monkeypatch.setattr(translation, "OTHER_BLOCKS", 60)
    inside = sample(LARGE, DIGEST).tolist()
    assert 40 < len(inside) < 60
    assert sample(LARGE, DIGEST).tolist() == inside
    assert sample(LARGE, "another").tolist() != inside
    outside = sorted(set(range(LARGE.node_count)) - set(inside))[::30]
    made = compiled(LARGE, PLAIN)
    for node in (*inside, *outside):
        first = made.keys.first
        run = runs_of(made, node).start
        kept = int(first[run])
        # The key of a block that all plays share, for those that share it with others one that none of them has.
        first[run] = int(first[runs_of(made, inside[0]).start]) if kept != first[0] else made.key_span - 3
        if node in inside:
            with pytest.raises(TranslationFault):
                check_translation(LARGE, made, PLAIN, DIGEST)
        else:
            check_translation(LARGE, made, PLAIN, DIGEST)
        first[run] = kept


def test_a_fault_of_all_plays_is_found_by_any_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "PLAY_BLOCKS", 12)
    monkeypatch.setattr(translation, "OTHER_BLOCKS", 0)
    made = compiled(LARGE, PLAIN)
    made.keys.first[:] //= 2
    for digest in ("one", "two", "three"):
        with pytest.raises(TranslationFault):
            check_translation(LARGE, made, PLAIN, digest)


# At the doors --------------------------------------------------------------------------------------------------------

DEPLOYMENT = DeploymentSpec(1, WorkerSpec(blocks=64, block_size=SIZE), 1000)
CONTROLLED = LoadSpec(
    lanes=2,
    snapshot_seed=1,
    warmup=True,
    profile=ProfileSpec(duration_ns=60_000_000_000, grace_ns=0, drain_ns=0, tree_cap_ns=-1, global_cap_ns=-1),
)


def _late(graph: Graph, **settings: Any) -> CompiledGraph:
    made = compile_graph(graph, **settings)
    made.edges.delay[0] += 1
    return made


DOORS: dict[str, Callable[[], object]] = {
    "finite": lambda: simulate(prove(SMALL), DEPLOYMENT, LoadSpec()),
    "controlled": lambda: simulate_controlled(prove(SMALL), DEPLOYMENT, CONTROLLED),
    "online": lambda: LiveDriver(prove(SMALL), LoadSpec(), workers=1),
    "online controlled": lambda: LiveDriver(prove(SMALL), CONTROLLED, workers=1),
}


@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_a_false_translation_run(monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    monkeypatch.setattr(translation, "compile_graph", _late)
    with pytest.raises(ReplayFault, match="delay of an edge"):
        DOORS[door]()


def _positions_wrong(sim: Any) -> None:
    _swap(sim.edges.target, 0, 1)


def _floor_wrong(sim: Any) -> None:
    sim.static.floor[0] += 1


def _order_wrong(sim: Any) -> None:
    _swap(sim.play_nodes, 0, 1)


@pytest.mark.parametrize("fault", [_positions_wrong, _floor_wrong, _order_wrong])
def test_seats_are_compared_as_well(fault: Callable[[Any], None]) -> None:
    with running(Mode.INTERPRETED):
        sim, _ = start_controlled(SMALL, DIGEST, DEPLOYMENT, CONTROLLED)
    translation.refuse_wrong_seats(SMALL, sim, 1.0)
    fault(sim)
    with pytest.raises(TranslationFault):
        translation.refuse_wrong_seats(SMALL, sim, 1.0)


# Namespaces ----------------------------------------------------------------------------------------------------------

FALSE_NAMESPACES: dict[str, Callable[[Any, int, int], int]] = {
    "of the lane": lambda sim, lane, ordinal: lane * sim.config[0].key_span,
    "of the ordinal": lambda sim, lane, ordinal: ordinal * sim.config[0].key_span,
    "overlapping": lambda sim, lane, ordinal: (ordinal * sim.config[0].lanes + lane) * (sim.config[0].key_span - 1),
    "none": lambda sim, lane, ordinal: 0,
}


@pytest.mark.parametrize("false", FALSE_NAMESPACES.values(), ids=FALSE_NAMESPACES)
def test_a_run_that_gives_other_namespaces_is_refused(
    monkeypatch: pytest.MonkeyPatch, false: Callable[[Any, int, int], int]
) -> None:
    monkeypatch.setattr(instances, "namespace", false)
    with running(Mode.INTERPRETED), pytest.raises(TranslationFault, match="the rule says"):
        simulate_controlled(prove(SMALL), DEPLOYMENT, CONTROLLED)


def test_m6_is_shown_of_what_the_kernel_computes() -> None:
    computed = computed_identities()
    assert computed == Computed(
        namespace="(* (+ (* ordinal lanes) lane) span)", keys=("(+ (+ space first) (* (- block begin) stride))",) * 2
    )
    verdict = next(o for o in prove_machines(computed=computed) if o.code == "M6")
    assert verdict.verdict == "proven"
    assert "the kernel's own source" in verdict.how


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"namespace": "(* (+ (* ordinal lanes) ordinal) span)"}, "the kernel's namespace is not the rule's"),
        ({"namespace": "(* lane span)"}, "the kernel's namespace is not the rule's"),
        ({"namespace": "(* (+ ordinal lane) span)"}, "the kernel's namespace is not the rule's"),
        ({"keys": ("(+ first (* (- block begin) stride))",)}, "the kernel's key of a block is not the rule's"),
        ({"keys": ("(+ (+ space first) (* block stride))",)}, "the kernel's key of a block is not the rule's"),
    ],
)
def test_m6_sees_a_kernel_that_computes_something_else(changes: dict[str, Any], words: str) -> None:
    verdict = prove_identity(computed=dataclasses.replace(computed_identities(), **changes))
    assert verdict.verdict == "failed"
    assert words in verdict.how


@pytest.mark.parametrize("false", FALSE_NAMESPACES.values(), ids=FALSE_NAMESPACES)
def test_m6_is_asked_of_the_source_itself(false: Callable[[Any, int, int], int]) -> None:
    lane, ordinal, lanes, span = (Term(name) for name in ("lane", "ordinal", "lanes", "span"))
    sim = SimpleNamespace(config=[SimpleNamespace(lanes=lanes, key_span=span)])
    text = str(written_out(false, sim, lane, ordinal))
    assert prove_identity(computed=Computed(text, ())).verdict == "failed"


def test_code_that_decides_is_no_term() -> None:
    for decides in (
        lambda a: 1 if a else 2,
        lambda a: 1 if a == 3 else 2,
        lambda a: 1 if a < 3 else 2,
        lambda a: {a: 1},
    ):
        with pytest.raises(TypeError, match=r"decides|unhashable"):
            written_out(decides, Term("a"))


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_terms_are_worth_what_the_code_gives(ordinal: int, lane: int, lanes: int) -> None:
    def code(a: Any, b: Any, c: Any) -> Any:
        return 3 - int(a * b + c) + 2 * (7 + a) - b

    text = str(written_out(code, Term("a"), Term("b"), Term("c")))
    assert evaluate(text, a=ordinal, b=lanes, c=lane) == code(ordinal, lanes, lane)
    assert evaluate(NAMESPACE_RULE, ordinal=ordinal, lane=lane, lanes=lanes) == ordinal * lanes + lane


@pytest.mark.parametrize("text", ["", "(+ 1", "(+ 1 2", "(+ 1 2 3)", "(mod 1 2)", "x", "1 2", "("])
def test_what_is_no_term_has_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"term|value|operator"):
        evaluate(text)
