"""What a proof must not be made of: an answer that never came, an order that is none, a lemma that was not asked."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from playproof_spec import certificate, machine_proofs, proofs
from playproof_spec.certificate import examine, prove
from playproof_spec.findings import Findings, InvalidInput
from playproof_spec.graph import Graph
from playproof_spec.obligation import FAILED, PROVEN, UNPROVEN, Obligation
from playproof_spec.proofs import Lifecycle
from playproof_spec.reduction import distinct_shapes, reduce_plays
from playproof_spec.sketch import sketch
from playproof_spec.topology import Topology, topology

DIAMOND: list[dict[str, Any]] = [
    {"request_id": "a"},
    {"request_id": "b", "dependencies": [{"request_id": "a", "trigger": "dispatch", "relation": "spawn"}]},
    {"request_id": "c", "dependencies": ["a"]},
    {"request_id": "d", "dependencies": ["b", {"request_id": "c", "relation": "join"}]},
]
# Beyond the size of a shape that z3 is asked whole.
TANGLE: list[dict[str, Any]] = [
    {
        "request_id": f"n{k:03}",
        "dependencies": [
            *([{"request_id": f"n{k - 2:03}", "relation": "spawn", "trigger": "dispatch"}] if k >= 2 else []),
            *([{"request_id": f"n{k - 3:03}", "relation": "join"}] if k >= 3 else []),
        ],
    }
    for k in range(400)
]


def backwards(order: Topology) -> Topology:
    """The places of an order counted from its end: each node has one, and no edge goes forward."""
    return dataclasses.replace(order, position=(len(order.position) - 1 - order.position))


def structure(graph: Graph, order: Topology, life: Lifecycle | None = None) -> tuple[Obligation, Obligation, Findings]:
    """G4 and G5 of `graph` by a given order."""
    findings = Findings()
    shapes = distinct_shapes(graph, topology(graph), reduce_plays(graph, topology(graph)))
    joins = proofs.prove_joins(graph, order, shapes, findings, life)
    return joins, proofs.prove_failures(graph, order, shapes, findings, life), findings


def refuse_to_ask(*_: Any) -> proofs.Answer:
    raise AssertionError("the prover was asked")


# A circle of any size costs the prover time that grows with its square; what G2 has found needs no prover to say it.
@pytest.mark.parametrize("size", [3, 5_000])
def test_a_circle_behind_a_root_never_comes_to_the_prover(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    rows = [{"request_id": "root"}]
    rows += [{"request_id": f"n{k}", "dependencies": [f"n{(k - 1) % size}"]} for k in range(size)]  # type: ignore[dict-item]
    rows[1]["dependencies"] = ["root", f"n{size - 1}"]  # type: ignore[assignment]
    monkeypatch.setattr(proofs.Prover, "ask", refuse_to_ask)
    findings = Findings()
    verdicts = {o.code: o.verdict for o in examine(sketch(rows), findings)[0]}
    assert (verdicts["G2"], verdicts["G3"]) == ("failed", "proven")
    assert (verdicts["G4"], verdicts["G5"]) == ("not_applicable", "not_applicable")
    assert set(findings.counts) == {"cycle"}


def test_an_order_is_checked_and_not_trusted() -> None:
    order = topology(sketch(TANGLE))
    assert order.acyclic
    assert not backwards(order).acyclic
    holes = order.position.copy()
    holes[0] = -1
    assert not dataclasses.replace(order, position=holes).acyclic


def test_no_induction_goes_along_a_corrupt_order() -> None:
    graph = sketch(TANGLE)
    order = topology(graph)
    joins, failures, findings = structure(graph, order)
    assert (joins.verdict, failures.verdict, findings.counts) == (PROVEN, PROVEN, {})
    # One edge the wrong way round is enough.
    swapped = order.position.copy()
    swapped[[5, 8]] = swapped[[8, 5]]
    for corrupt in (backwards(order), dataclasses.replace(order, position=swapped)):
        joins, failures, findings = structure(graph, corrupt)
        assert (joins.verdict, failures.verdict) == (UNPROVEN, UNPROVEN)
        assert findings.counts == {"proof-unknown": 2}


def test_a_failed_verdict_without_a_finding_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "topology", lambda graph: backwards(topology(graph)))
    with pytest.raises(InvalidInput) as refused:
        prove(sketch(DIAMOND))
    assert "G2 (dependencies have no circle) is failed" in refused.value.findings.items[0].message
    monkeypatch.undo()
    for code, verdict in (("G3", FAILED), ("G5", UNPROVEN), ("G1", "not_applicable")):

        def doubtful(graph: Graph, findings: Findings, code: str = code, verdict: str = verdict) -> Any:
            obligations, shapes = examine(graph, findings)
            return tuple(dataclasses.replace(o, verdict=verdict) if o.code == code else o for o in obligations), shapes

        monkeypatch.setattr(certificate, "examine", doubtful)
        with pytest.raises(InvalidInput, match="proof-unknown") as refused:
            prove(sketch(DIAMOND))
        assert f"{code} (" in refused.value.findings.items[0].message
        monkeypatch.undo()


@pytest.mark.parametrize("code", [f"M{number}" for number in range(3, 11)])
def test_a_machine_is_not_proven_by_what_the_prover_gives_up_on(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(proofs.Prover, "ask", lambda *_: proofs.Answer("unknown"))
    verdict = next(o for o in machine_proofs.prove_machines() if o.code == code)
    assert verdict.verdict == UNPROVEN
    assert "the prover gave up on" in verdict.how


@pytest.mark.parametrize("given_up", ["refute", "find"])
@pytest.mark.parametrize("code", ["M4", "M5", "M6"])
def test_each_kind_of_question_counts(monkeypatch: pytest.MonkeyPatch, code: str, given_up: str) -> None:
    """Questions of one kind are given up on, those of the other are answered as wished."""
    said = {"refute": "unsat", "find": "sat", given_up: "unknown"}
    kinds = {name: getattr(machine_proofs._Questions, name) for name in said}
    now = [""]
    monkeypatch.setattr(proofs.Prover, "ask", lambda *_: proofs.Answer(said[now[0]]))
    for name, real in kinds.items():

        def ask(questions: Any, words: str, smt: str, name: str = name, real: Any = real) -> None:
            now[0] = name
            real(questions, words, smt)

        monkeypatch.setattr(machine_proofs._Questions, name, ask)
    found = next(o for o in machine_proofs.prove_machines() if o.code == code)
    # M6 asks only whether its claims can be broken.
    assert found.verdict == (PROVEN if (code, given_up) == ("M6", "find") else UNPROVEN)


@pytest.mark.parametrize("lemma", ["chain_lemma", "shortcut_lemma"])
@pytest.mark.parametrize("said", ["(assert true)", "(declare-const x Real)(assert (= (* x x x) 2.0))"])
def test_verdicts_fall_with_the_lemmas_of_the_reduction(monkeypatch: pytest.MonkeyPatch, lemma: str, said: str) -> None:
    monkeypatch.setattr(proofs, lemma, lambda life: said)
    joins, failures, _ = structure(sketch(DIAMOND), topology(sketch(DIAMOND)))
    for verdict in (joins, failures):
        assert verdict.verdict == FAILED
        assert "the lemmas of the reduction do not hold" in verdict.how


@pytest.mark.parametrize("step", ["induction_lemma", "join_lemma"])
@pytest.mark.parametrize("which", [0, 1])
def test_induction_falls_with_each_of_its_steps(monkeypatch: pytest.MonkeyPatch, step: str, which: int) -> None:
    real = getattr(proofs, step)

    def weaker(life: Lifecycle) -> tuple[str, ...]:
        steps = list(real(life))
        steps[which] = "(assert true)"
        return tuple(steps)

    monkeypatch.setattr(proofs, step, weaker)
    graph = sketch(TANGLE)
    joins, failures, _ = structure(graph, topology(graph))
    assert (joins.verdict, failures.verdict) == ((UNPROVEN, PROVEN) if step == "join_lemma" else (PROVEN, UNPROVEN))


def test_the_earliest_run_is_checked_by_its_edges_and_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [
        {"request_id": "a", "not_before_ms": 5.0},
        {"request_id": "b", "dependencies": ["a"]},
    ]
    graph = sketch(rows)
    order = topology(graph)
    for dispatch in ([0, 5_000_000], [5_000_000, 4_999_999], [4_999_999, 5_000_000]):
        wrong = (np.array(dispatch, np.int64), np.array([-1, 0], np.int64))
        monkeypatch.setattr(proofs, "earliest_dispatch_ns", lambda *_, wrong=wrong: wrong)
        assert structure(graph, order)[0].verdict == FAILED
    right = (np.array([5_000_000, 5_000_000], np.int64), np.array([-1, 0], np.int64))
    monkeypatch.setattr(proofs, "earliest_dispatch_ns", lambda *_: right)
    assert structure(graph, order)[0].verdict == PROVEN


@pytest.mark.parametrize("row", [{"not_before_ms": -1.0}, {"not_before_ms": float("nan")}, {"not_before_ms": 1e300}])
def test_no_run_is_sought_among_times_that_are_none(row: dict[str, Any]) -> None:
    verdicts = {o.code: o.verdict for o in examine(sketch([{"request_id": "a", **row}]), Findings())[0]}
    assert (verdicts["G1"], verdicts["G4"], verdicts["G5"]) == (FAILED, "not_applicable", PROVEN)


def test_an_edge_from_nowhere_crosses_no_plays() -> None:
    # The source that does not exist is not the corpus' first request, which is of another play.
    rows: list[dict[str, Any]] = [
        {"request_id": "a"},
        {"request_id": "b", "play_id": "other", "dependencies": ["gone"]},
    ]
    findings = Findings()
    examine(sketch(rows), findings)
    assert findings.counts == {"edge-dangling": 1}


def test_a_root_of_another_play_leads_nowhere() -> None:
    rows: list[dict[str, Any]] = [
        {"request_id": "a"},
        {"request_id": "b", "play_id": "other"},
        {"request_id": "c", "play_id": "other", "dependencies": ["a", "d"]},
        {"request_id": "d", "play_id": "other", "dependencies": ["c"]},
    ]
    findings = Findings()
    examine(sketch(rows), findings)
    assert findings.counts == {"edge-cross-play": 1, "cycle": 1, "node-unreachable": 1}


# What the lemmas of the reduction allow, and what they do not: edges are (source, target, waits for the completion).
REDUCTIONS: list[tuple[list[tuple[str, str, bool]], int, tuple[tuple[int, int, bool], ...]]] = [
    ([("a", "b", True), ("b", "c", True)], 1, ()),
    # The end of a chain that wakes another at its dispatch would wake it at the dispatch of the first.
    ([("a", "b", True), ("b", "c", False)], 3, ((0, 1, True), (1, 2, False))),
    # A join is no chain, nor is a call that two others follow, or one that the next does not wait for.
    ([("a", "c", True), ("b", "c", True)], 3, ((0, 2, True), (1, 2, True))),
    ([("a", "b", True), ("a", "c", True)], 3, ((0, 1, True), (0, 2, True))),
    ([("a", "b", False)], 2, ((0, 1, False),)),
    # A short cut goes where the way round waits for at least as much.
    ([("a", "b", True), ("b", "c", True), ("a", "c", True)], 1, ()),
    ([("a", "b", True), ("b", "c", False), ("a", "c", False)], 3, ((0, 1, True), (1, 2, False))),
    ([("a", "b", False), ("b", "c", True), ("a", "c", True)], 3, ((0, 1, False), (0, 2, True), (1, 2, True))),
]


@pytest.mark.parametrize(("edges", "size", "left"), REDUCTIONS)
def test_plays_are_made_smaller_where_the_lemmas_say(
    edges: list[tuple[str, str, bool]], size: int, left: tuple[tuple[int, int, bool], ...]
) -> None:
    into: dict[str, list[dict[str, str]]] = {name: [] for name in sorted({end for edge in edges for end in edge[:2]})}
    for source, target, waits in edges:
        kind = ("join", "completion") if waits else ("spawn", "dispatch")
        into[target].append({"request_id": source, "relation": kind[0], "trigger": kind[1]})
    graph = sketch([{"request_id": name, "dependencies": own} for name, own in into.items()])
    order = topology(graph)
    (found,) = distinct_shapes(graph, order, reduce_plays(graph, order))
    assert (found.shape.size, found.shape.edges) == (size, left)
