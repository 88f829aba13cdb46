"""Obligations G4 and G5 in z3, and the one door to z3: no other module imports it.

Encodings are SMT-LIB text, so each can be printed, read and given to another solver. z3 runs with a fixed seed and a
bound on its work rather than on time: the same input has the same verdict on every machine. `unknown` proves nothing.

What is encoded of a play, node by node: whether it is ever dispatched (D), ends by success (S) or by a failing event
(X), and when (d, e > d). `failed` says that some node fails, `phi` when the first does. A node is dispatched exactly
when all its edges fire and no failure came before. *When* is the place in the total order of events, which is finer
than time: a request may be rejected at the very instant of its dispatch, but after it. How an event ends a node, and
what a failure does to the rest, is read from the machines' tables (:class:`Lifecycle`): a wrong table fails the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import z3

from playproof_spec.findings import Finding, Findings, finding
from playproof_spec.graph import Graph, Int64
from playproof_spec.machines import NODE, PLAY, Machine, NodeEvent, NodeState, PlayEvent, PlayState
from playproof_spec.obligation import FAILED, PROVEN, UNPROVEN, Obligation, Stopwatch
from playproof_spec.places import listed, place
from playproof_spec.reduction import Shape, ShapeOfPlays
from playproof_spec.topology import Topology, earliest_dispatch_ns
from playproof_spec.units import HORIZON_NS, ms_to_ns, ns_to_ms

__all__ = [
    "Answer",
    "Lifecycle",
    "Prover",
    "chain_lemma",
    "failure_question",
    "induction_lemma",
    "join_lemma",
    "join_question",
    "prove_failures",
    "prove_joins",
    "shortcut_lemma",
]

# z3's own count of work, some 2 seconds' worth on a laptop. Reaching it is `unknown`.
WORK_MAX = 20_000_000
# z3 takes time quadratic in a shape's size: 0.1 s at 300 nodes, 5 s at 1,600; and a few milliseconds at least. Larger
# shapes, and what exceeds the budget of a corpus (some 4 s), are shown by induction along the order instead.
SHAPE_NODES_MAX = 300
SHAPE_COST = 6_000
CORPUS_COST_MAX = 3_000_000
# A core is searched among the ancestors of a request, if they are few, else along the path that decides.
CORE_NODES_MAX = 200
# A path from which nothing can be left out needs no solver to say so; beyond this length none is asked.
CORE_EDGES_MAX = 500
CORE_EDGES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What the solver said.

    Attributes
    ----------
    verdict : str
        ``sat``, ``unsat`` or ``unknown``.
    true : tuple[str, ...]
        The boolean constants that hold in the model, sorted; empty unless `sat`.
    core : tuple[str, ...]
        The names of the assertions that cannot hold together, sorted; empty unless `unsat` with named assertions.
    """

    verdict: str
    true: tuple[str, ...] = ()
    core: tuple[str, ...] = ()


class Prover:
    """z3 for a few questions that belong together: what it learns of names and memory it keeps, assertions it does not.

    Make one for each proof: what came before could sway how much work a question takes, and so whether it is answered.
    """

    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context = z3.Context()

    def ask(self, smt: str, want_core: bool = False) -> Answer:
        """Decide a set of SMT-LIB declarations and assertions.

        Parameters
        ----------
        smt : str
            With `want_core`, the boolean constants named ``use-…`` are what a core is made of: they are assumed, so
            each assertion to be blamed is written ``(=> use-… …)``.
        want_core : bool
            Ask z3 for a core from which nothing can be left out.
        """
        solver = z3.Solver(ctx=self._context)
        solver.set("random_seed", 0)
        solver.set("rlimit", WORK_MAX)
        if want_core:
            solver.set("core.minimize", True)
        solver.from_string(smt)
        words = smt.replace("(", " ").replace(")", " ").split() if want_core else ()
        names = sorted({word for word in words if word.startswith("use-")})
        verdict = str(solver.check(*(z3.Bool(name, self._context) for name in names)))
        if verdict == "sat":
            model = solver.model()
            return Answer(verdict, true=tuple(sorted(c.name() for c in model if z3.is_true(model[c]))))
        if verdict == "unsat" and want_core:
            return Answer(verdict, core=tuple(sorted(str(name) for name in solver.unsat_core())))
        return Answer(verdict)


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What the tables, guards included, say of the start and the end of a node and of the failure of a play.

    A guard that may not hold when the event is needed argues for nothing: the event is then taken as refused.

    Attributes
    ----------
    success_completes, failure_completes : bool
        Whether the event of a success surely leads a dispatched node to *completed*; whether a failing event may.
    ends : bool
        Whether every event of a dispatched node can happen whatever its play does, and is its last.
    skips : bool
        Whether blocked and ready nodes of a failing play can end as skipped.
    stops : bool
        Whether a failure takes the play out of the state in which nodes are released and dispatched.
    waits, starts : bool
        Whether a node is dispatched only once its edges have fired and it is due, and surely then.
    """

    success_completes: bool
    failure_completes: bool
    ends: bool
    skips: bool
    stops: bool
    waits: bool = True
    starts: bool = True

    @classmethod
    def of(cls, node: Machine = NODE, play: Machine = PLAY) -> Lifecycle:
        """Read it from the tables."""
        dispatched = node.table[NodeState.DISPATCHED]
        success = dispatched.get(NodeEvent.COMPLETE)
        failing = [rule for event, rule in dispatched.items() if event != NodeEvent.COMPLETE]
        skips = [node.table[state].get(NodeEvent.SKIP) for state in (NodeState.BLOCKED, NodeState.READY)]
        failure = play.table[PlayState.ACTIVE].get(PlayEvent.NODE_FAILED)
        release = node.table[NodeState.BLOCKED].get(NodeEvent.RELEASE)
        dispatch = node.table[NodeState.READY].get(NodeEvent.DISPATCH)
        guards = ["" if rule is None else rule.guard for rule in (release, dispatch)]
        return cls(
            success_completes=success is not None and success.to == NodeState.COMPLETED and not success.guard,
            failure_completes=any(rule.to == NodeState.COMPLETED for rule in failing),
            ends=all(rule.to in node.terminal and not rule.guard for rule in dispatched.values()),
            skips=all(r is not None and r.to in node.terminal and r.guard in ("", "play_failed") for r in skips),
            # Both guards say that the play is active.
            stops=failure is not None
            and failure.to != PlayState.ACTIVE
            and not failure.guard
            and set(guards) <= {"all_edges_fired", "due"},
            waits=guards == ["all_edges_fired", "due"],
            starts=release is not None
            and release.to == NodeState.READY
            and release.guard in ("", "all_edges_fired")
            and dispatch is not None
            and dispatch.to == NodeState.DISPATCHED
            and dispatch.guard in ("", "all_edges_fired", "due"),
        )

    def completes(self, node: object) -> str:
        """Return the formula that says that `node` ends as completed."""
        ways = [f"S{node}"] * self.success_completes + [f"X{node}"] * self.failure_completes
        return f"(or {' '.join(ways)} false)"

    def no_failure_before(self, node: object) -> str:
        """Return the formula that says that no failure keeps `node` from its dispatch."""
        return f"(or (not failed) (< d{node} phi))" if self.stops else "true"


def _declare(node: object) -> str:
    booleans = "".join(f"(declare-const {name}{node} Bool)" for name in "DSXP")
    return f"{booleans}(declare-const d{node} Real)(declare-const e{node} Real)"


def _node_rules(life: Lifecycle, node: object, all_fired: str) -> tuple[str, ...]:
    """Return how `node` behaves: dispatched when released and allowed, then ended by exactly one event."""
    allowed = f"(and {all_fired} {life.no_failure_before(node)})"
    only = allowed if life.waits else life.no_failure_before(node)
    return (
        f"(=> D{node} {only})",
        f"(=> {allowed} D{node})" if life.starts else f"(not D{node})",
        f"(= D{node} (or S{node} X{node}))",
        f"(not (and S{node} X{node}))",
        f"(< d{node} e{node})",
        f"(=> X{node} (and failed (<= phi e{node})))",
    )


def _node_axioms(life: Lifecycle, node: object, all_fired: str) -> str:
    return "".join(f"(assert {rule})" for rule in _node_rules(life, node, all_fired))


def _violation(life: Lifecycle, node: object) -> str:
    """Return the formula that says that G5 is broken at `node`.

    P stands for: it needs, directly or not, the completion of a node that fails. Then it must not be dispatched. What
    is never dispatched must be skipped, which takes a failure; and nothing is dispatched once a failure is known.
    """
    waits = f"(and (not D{node}) {'(not failed)' if life.skips else 'true'})"
    never_ends = "false" if life.ends else f"D{node}"
    return f"(or (and P{node} D{node}) {waits} (and D{node} failed (<= phi d{node})) {never_ends})"


def _play_axioms(shape: Shape, life: Lifecycle) -> list[str]:
    """Return how the play behaves, for all service times, delays and floors."""
    incoming: list[list[tuple[int, bool]]] = [[] for _ in range(shape.size)]
    for source, target, completion in shape.edges:
        incoming[target].append((source, completion))
    lines = ["(declare-const failed Bool)(declare-const phi Real)"]
    lines += [_declare(node) for node in range(shape.size)]
    for node, edges in enumerate(incoming):
        fired = [life.completes(source) if completion else f"D{source}" for source, completion in edges]
        lines.append(_node_axioms(life, node, f"(and {' '.join(fired)} true)"))
        for source, completion in edges:
            # A delay of any length, or none, may follow the event.
            lines.append(f"(assert (=> D{node} (< {'e' if completion else 'd'}{source} d{node})))")
        poison = [f"P{source}" for source, _ in edges] + [f"X{source}" for source, completion in edges if completion]
        lines.append(f"(assert (= P{node} (or {' '.join(poison)} false)))")
    first = " ".join(f"(and X{node} (= phi e{node}))" for node in range(shape.size))
    lines.append(f"(assert (=> failed (or {first} false)))")
    return lines


def failure_question(shape: Shape, life: Lifecycle) -> str:
    """Return G5's question: is there a run that breaks the obligation at some node? `unsat` proves it."""
    broken = " ".join(f"V{node}" for node in range(shape.size))
    lines = _play_axioms(shape, life)
    for node in range(shape.size):
        lines.append(f"(declare-const V{node} Bool)(assert (= V{node} {_violation(life, node)}))")
    return "\n".join([*lines, f"(assert (or {broken} false))"])


def join_question(shape: Shape, life: Lifecycle) -> str:
    """Return G4's question for a shape: can all complete, each edge taking one unit of time or more?

    `sat` proves it for all finite delays and floors: multiply the model's times by the greatest of them, and shift.
    Without the unit a circle of edges without delays would pass, each request causing the next at one instant.
    """
    lines = _play_axioms(shape, life)
    lines += [f"(assert (and D{node} S{node} {life.completes(node)}))" for node in range(shape.size)]
    for source, target, completion in shape.edges:
        lines.append(f"(assert (<= (+ {'e' if completion else 'd'}{source} 1.0) d{target}))")
    return "\n".join(lines)


def chain_lemma(life: Lifecycle) -> str:
    """Return the question behind the reduction of chains (`reduction`): does one node fail to stand for a → b?

    The environment is arbitrary: whether a's edges fired (A), whether a is poisoned, and when the play fails. The node
    ``ab`` is defined from a and b; the question is whether it can break a node's axioms, hide a violation at b, or tell
    the outside anything else than b would. `unsat` proves the lemma.
    """
    ab = (
        "(declare-const A Bool)(declare-const failed Bool)(declare-const phi Real)"
        + "".join(_declare(node) for node in ("a", "b"))
        + _node_axioms(life, "a", "A")
        + _node_axioms(life, "b", life.completes("a"))
        + "(assert (=> Db (< ea db)))(assert (= Pb (or Pa Xa)))"
        "(define-fun Dab () Bool Da)(define-fun dab () Real da)(define-fun eab () Real (ite Db eb ea))"
        "(define-fun Xab () Bool (or Xa Xb))(define-fun Sab () Bool (and Da (not Xab)))(define-fun Pab () Bool Pa)"
    )
    axioms = (
        f"(= Dab (and A {life.no_failure_before('ab')}))",
        "(= Dab (or Sab Xab))",
        "(< dab eab)",
        "(=> Xab (and failed (<= phi eab)))",
    )
    faithful = (
        f"(=> {_violation(life, 'b')} {_violation(life, 'a')})",
        f"(=> {_violation(life, 'ab')} (or {_violation(life, 'a')} {_violation(life, 'b')}))",
        f"(=> {life.completes('b')} (and {life.completes('ab')} (= eab eb)))",
        f"(=> (not failed) (= {life.completes('ab')} {life.completes('b')}))",
        "(=> (or Xa Xb) Xab)",
    )
    return f"{ab}(assert (not (and {' '.join(axioms + faithful)})))"


def shortcut_lemma(life: Lifecycle) -> str:
    """Return the question behind the removal of short cuts (`reduction`): can a → c matter beside a → b → c?

    R is whatever else b waits for. Shown is that the edge from b fires only when the edge from a has, not earlier, and
    that a failure which the edge from a would pass on comes through b as well. `unsat` proves the lemma.
    """
    flags = "".join(f"(declare-const {name} Bool)" for name in ("failed", "R", "abWaits", "bcWaits", "acWaits"))
    fires = {
        "ab": f"(ite abWaits {life.completes('a')} Da)",
        "bc": f"(ite bcWaits {life.completes('b')} Db)",
        "ac": f"(ite acWaits {life.completes('a')} Da)",
    }
    return (
        f"{flags}(declare-const phi Real)(declare-const A Bool)(declare-const dc Real)"
        + _declare("a")
        + _declare("b")
        + _node_axioms(life, "a", "A")
        + _node_axioms(life, "b", f"(and {fires['ab']} R)")
        + "(assert (=> Db (< (ite abWaits ea da) db)))(assert (=> (or Pa (and abWaits Xa)) Pb))"
        + f"(assert (=> acWaits abWaits))(assert (=> {fires['bc']} (< (ite bcWaits eb db) dc)))"
        + f"(assert (not (and (=> {fires['bc']} (and {fires['ac']} (< (ite acWaits ea da) dc)))"
        + " (=> (or Pa (and acWaits Xa)) (or Pb (and bcWaits Xb))))))"
    )


def induction_lemma(life: Lifecycle) -> tuple[str, str]:
    """Return the two questions behind the proof of G5 by induction along an order, `unsat` both.

    Claimed of each node n: if n needs the completion of a node that fails, n is not dispatched; and in a play without a
    failure n is dispatched and completes. The first question is the step over one edge from such a source, the second
    the step from all edges to the node. An order in which each edge goes forward then proves the play, of any size.
    """

    def claim(node: str) -> str:
        return f"(and (=> P{node} (not D{node})) (=> (not failed) (and D{node} {life.completes(node)})))"

    head = "(declare-const failed Bool)(declare-const phi Real)(declare-const A Bool)"
    over_edge = (
        head
        + _declare("s")
        + "(declare-const released Bool)"
        + _node_axioms(life, "s", "released")
        + "(declare-const completion Bool)(declare-const fired Bool)"
        + f"(assert (= fired (ite completion {life.completes('s')} Ds)))(assert {claim('s')})"
        "(assert (not (and (=> (or Ps (and completion Xs)) (not fired)) (=> (not failed) fired))))"
    )
    over_node = (
        head
        + _declare("n")
        + _node_axioms(life, "n", "A")
        + "(assert (=> Pn (not A)))(assert (=> (not failed) A))"
        + f"(assert (not (and {claim('n')} (not {_violation(life, 'n')}))))"
    )
    return over_edge, over_node


def join_lemma(life: Lifecycle) -> tuple[str, str]:
    """Return the two questions behind the proof of G4 by induction along an order, `unsat` both.

    Claimed of each node n: in a play without a failure it can be dispatched, at any time that is later than its events
    by their delays, and completes. The first question is whether an edge from such a source can fail to fire, the
    second whether a node all of whose edges fired, dispatched at an instant `late` after them and ended by success one
    unit later, can break its rules, or not complete.
    """
    head = "(declare-const phi Real)(define-fun failed () Bool false)"
    claim = f"(and Ds Ss {life.completes('s')})"
    over_edge = (
        head
        + "(declare-const released Bool)(declare-const completion Bool)"
        + _declare("s")
        + _node_axioms(life, "s", "released")
        + f"(assert {claim})(assert (not (ite completion {life.completes('s')} Ds)))"
    )
    run = (
        "(declare-const late Real)(define-fun Dn () Bool true)(define-fun Sn () Bool true)(define-fun Xn () Bool false)"
        "(define-fun dn () Real late)(define-fun en () Real (+ late 1.0))"
    )
    rules = " ".join(_node_rules(life, "n", "true"))
    over_node = f"{head}{run}(assert (not (and {rules} Dn Sn {life.completes('n')})))"
    return over_edge, over_node


def _goes_forward(item: ShapeOfPlays, topology: Topology) -> bool:
    """Check edge by edge that the graph's order orders the shape: the premise of the induction."""
    position = topology.position[item.nodes]
    if (position < 0).any():
        return False
    return all(position[source] < position[target] for source, target, _ in item.shape.edges)


def _counted(items: Sequence[ShapeOfPlays]) -> str:
    plays = sum(len(item.plays) for item in items)
    largest = max(item.shape.size for item in items)
    return f"{len(items)} shapes of {plays} plays (reduced to at most {largest} nodes)"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How the shapes of a corpus fared: what z3 decided whole, what induction showed, what failed and what neither."""

    whole: tuple[ShapeOfPlays, ...]
    by_order: tuple[ShapeOfPlays, ...]
    failed: tuple[tuple[ShapeOfPlays, Answer], ...]
    unknown: tuple[ShapeOfPlays, ...]

    def how(self, words: str) -> str:
        parts = [] if self.failed else [words]
        if self.whole:
            parts.append(f"z3 on {_counted(self.whole)}")
        if self.by_order:
            parts.append(f"{_counted(self.by_order)} by induction along their order, which was checked edge by edge")
        if self.failed:
            parts.append(f"{_counted([item for item, _ in self.failed])} fail")
        if self.unknown:
            parts.append(f"{_counted(self.unknown)} stay unproven")
        return "; ".join(parts)

    def verdict(self, lemmas_hold: bool) -> str:
        if self.failed or not lemmas_hold:
            return FAILED
        return UNPROVEN if self.unknown else PROVEN


def _decide(
    shapes: Sequence[ShapeOfPlays],
    topology: Topology,
    question: Callable[[Shape], str],
    wanted: str,
    induction_holds: bool,
) -> _Outcome:
    """Ask z3 about each shape, smallest first; what is too large, or too hard, must be shown by induction."""
    whole: list[ShapeOfPlays] = []
    failed: list[tuple[ShapeOfPlays, Answer]] = []
    rest: list[ShapeOfPlays] = []
    prover = Prover()
    budget = CORPUS_COST_MAX
    for item in sorted(shapes, key=lambda item: item.shape.size):
        budget -= item.shape.size**2 + SHAPE_COST
        if item.shape.size > SHAPE_NODES_MAX or budget < 0:
            rest.append(item)
            continue
        answer = prover.ask(question(item.shape))
        if answer.verdict == "unknown":
            rest.append(item)
        elif answer.verdict == wanted:
            whole.append(item)
        else:
            failed.append((item, answer))
    by_order = tuple(item for item in rest if induction_holds and _goes_forward(item, topology))
    unknown = tuple(item for item in rest if not (induction_holds and _goes_forward(item, topology)))
    return _Outcome(tuple(whole), by_order, tuple(failed), unknown)


def _report_unknown(graph: Graph, outcome: _Outcome, code: str, findings: Findings) -> None:
    for item in outcome.unknown:
        plays = tuple(graph.plays[number].play_id for number in item.plays)
        message = f"{code} is not proven for {listed(plays)}: {item.shape.size} requests after reduction"
        findings.add(finding("proof-unknown", message, where=place(graph, int(item.nodes[0]), ids=plays)))


def prove_failures(
    graph: Graph,
    topology: Topology,
    shapes: Sequence[ShapeOfPlays],
    findings: Findings,
    lifecycle: Lifecycle | None = None,
) -> Obligation:
    """Obligation G5: a failure anywhere is contained, and leaves nothing waiting.

    Parameters
    ----------
    graph : Graph
    topology : Topology
    shapes : sequence of ShapeOfPlays
        From :func:`~playproof_spec.reduction.distinct_shapes`.
    findings : Findings
        Receives one finding for each shape that breaks the obligation.
    lifecycle : Lifecycle, optional
        What the tables say; the real ones by default.
    """
    watch = Stopwatch()
    life = lifecycle or Lifecycle.of()
    prover = Prover()
    lemmas_hold = all(prover.ask(lemma(life)).verdict == "unsat" for lemma in (chain_lemma, shortcut_lemma))
    steps_hold = all(prover.ask(step).verdict == "unsat" for step in induction_lemma(life))
    outcome = _decide(shapes, topology, lambda shape: failure_question(shape, life), "unsat", steps_hold)
    for item, answer in outcome.failed:
        broken = [int(item.nodes[int(name[1:])]) for name in answer.true if name[0] == "V"]
        failing = [int(item.nodes[int(name[1:])]) for name in answer.true if name[0] == "X"]
        names = tuple(graph.request_ids[node] for node in broken)
        cause = ", ".join(graph.request_ids[node] for node in failing) or "nothing"
        findings.add(
            finding(
                "failure-not-contained",
                f"when {cause} fails, these are left waiting, or run without what they need: {listed(names)}",
                where=place(graph, broken[0], "dependencies", names),
                found=f"a run of {len(item.plays)} plays of this shape that breaks the rule",
                wanted="every request ends, and none runs that needs a failed one",
            )
        )
    _report_unknown(graph, outcome, "G5", findings)
    words = "no run breaks it, for all service times, delays and floors"
    if not lemmas_hold:
        words += "; but the lemmas of the reduction do not hold for these tables"
    return watch.stop("G5", "failures are contained", outcome.verdict(lemmas_hold), outcome.how(words))


def prove_joins(
    graph: Graph,
    topology: Topology,
    shapes: Sequence[ShapeOfPlays],
    findings: Findings,
    lifecycle: Lifecycle | None = None,
) -> Obligation:
    """Obligation G4: each play has a run in which every request completes, on the clock.

    The structure is shown for all finite times at once (:func:`join_question`). That the times given fit the clock is
    shown by the earliest run, whose every edge and floor is checked; where they do not, z3 names a least set of edges
    and floors to blame.

    Parameters
    ----------
    graph, topology, shapes, findings, lifecycle
        As in :func:`prove_failures`. Times must be well-formed.
    """
    watch = Stopwatch()
    life = lifecycle or Lifecycle.of()
    prover = Prover()
    lemmas_hold = all(prover.ask(lemma(life)).verdict == "unsat" for lemma in (chain_lemma, shortcut_lemma))
    steps_hold = all(prover.ask(step).verdict == "unsat" for step in join_lemma(life))
    outcome = _decide(shapes, topology, lambda shape: join_question(shape, life), "sat", steps_hold)
    for item, _ in outcome.failed:
        findings.add(_blame_structure(graph, topology, item.plays[0]))
    _report_unknown(graph, outcome, "G4", findings)

    dispatch, cause = earliest_dispatch_ns(graph, topology)
    late = np.flatnonzero(dispatch > HORIZON_NS)
    first_late: dict[int, int] = {}
    for node in late[np.argsort(topology.position[late])].tolist():
        first_late.setdefault(int(graph.node_play[node]), node)
    for node in list(first_late.values())[: findings.limit_per_code]:
        findings.add(_blame_times(graph, topology, node, cause))
    findings.add_count("join-unsatisfiable", len(first_late) - findings.limit_per_code)
    verdict = FAILED if first_late or not _is_run(graph, topology, dispatch) else outcome.verdict(lemmas_hold)
    words = "a run exists in which all requests complete, for all finite delays and floors"
    if not lemmas_hold:
        words += "; but the lemmas of the reduction do not hold for these tables"
    how = outcome.how(words) + "; the earliest run of these times was checked edge by edge"
    if first_late:
        how += f"; in {len(first_late)} plays it passes the end of the clock"
    return watch.stop("G4", "every join can be satisfied", verdict, how)


def _is_run(graph: Graph, topology: Topology, dispatch_ns: Int64) -> bool:
    """Check that the times satisfy each floor and each edge, with service that takes no time."""
    delay = np.minimum(ms_to_ns(graph.edge_delay_ms[topology.number]), HORIZON_NS)
    event = dispatch_ns[topology.source]
    # Two times of the whole clock are more than an integer holds.
    earliest = event + np.minimum(delay, HORIZON_NS + 1 - event)
    floors = np.minimum(ms_to_ns(graph.not_before_ms), HORIZON_NS)
    return bool((dispatch_ns >= floors).all() and (dispatch_ns[topology.target] >= earliest).all())


def _core(graph: Graph, topology: Topology, edges: Sequence[int], late: int | None) -> list[str]:
    """Return a least set of `edges` (places in `topology`) and floors of their ends that cannot hold together.

    Node `late` must be dispatched on the clock; without one, no floors count and each edge only takes some time.
    """
    ends = {int(node) for k in edges for node in (topology.source[k], topology.target[k])}
    lines: list[str] = []
    named: dict[str, str] = {}
    for node in sorted(ends if late is None else ends | {late}):
        lines.append(f"(declare-const d{node} Int)(assert (<= 0 d{node}))")
        floor_ns = 0 if late is None else ms_to_ns(float(graph.not_before_ms[node]))
        if floor_ns > 0:
            named[f"use-f{node}"] = f"{graph.request_ids[node]} not before {graph.not_before_ms[node]:g} ms"
            lines.append(f"(declare-const use-f{node} Bool)(assert (=> use-f{node} (<= {floor_ns} d{node})))")
    for k in sorted(edges, key=lambda k: (topology.position[topology.target[k]], k)):
        source, target, number = int(topology.source[k]), int(topology.target[k]), int(topology.number[k])
        step_ns = 1 if late is None else ms_to_ns(float(graph.edge_delay_ms[number]))
        named[f"use-e{k}"] = str(graph.edge(number, target))
        lines.append(f"(declare-const use-e{k} Bool)(assert (=> use-e{k} (<= (+ d{source} {step_ns}) d{target})))")
    if late is not None:
        lines.append(f"(assert (<= d{late} {HORIZON_NS}))")
    answer = Prover().ask("\n".join(lines), want_core=True) if len(edges) <= CORE_EDGES_MAX else Answer("unknown")
    # Without an answer the whole set is to blame, if not always the least.
    return [text for name, text in named.items() if name in answer.core or not answer.core]


def _named(core: Sequence[str]) -> str:
    rest = len(core) - CORE_EDGES_NAMED
    return "; ".join(core[:CORE_EDGES_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def _blame_structure(graph: Graph, topology: Topology, play: int) -> Finding:
    inside = np.flatnonzero(graph.node_play[topology.source] == play)
    core = _core(graph, topology, inside.tolist(), late=None)
    first = int(graph.plays[play].nodes[0])
    return finding(
        "join-unsatisfiable",
        f"no run completes play {graph.plays[play].play_id}: together these have no solution: {_named(core)}",
        where=place(graph, first, "dependencies", (graph.plays[play].play_id,)),
        found=f"{len(core)} edges that contradict each other",
        wanted="a time for every request at which all its edges have fired",
        because="Each edge takes its target after its source; these lead back to where they began.",
        hint="Drop one of the edges named.",
    )


def _blame_times(graph: Graph, topology: Topology, node: int, cause: Int64) -> Finding:
    """Name a least set of floors and edges that keep `node` from being dispatched on the clock."""
    edges = _ancestor_edges(graph, topology, node)
    if edges is None:
        edges, node = _deciding_window(graph, topology, node, cause)
    core = _core(graph, topology, edges, late=node)
    return finding(
        "join-unsatisfiable",
        f"even with instant service this request starts after the end of the clock; to blame are: {_named(core)}",
        where=place(graph, node, "dependencies"),
        found=f"{len(core)} floors and edges that add up to more",
        wanted=f"a start within {ns_to_ms(HORIZON_NS):.0f} ms",
    )


def _ancestor_edges(graph: Graph, topology: Topology, node: int) -> list[int] | None:
    """Return the edges that lead to `node`, as places in `topology`; None when they are many."""
    incoming: dict[int, list[int]] = {}
    play = graph.node_play[node]
    for k in np.flatnonzero(graph.node_play[topology.target] == play).tolist():
        incoming.setdefault(int(topology.target[k]), []).append(k)
    seen, stack, edges = {node}, [node], list[int]()
    while stack:
        for k in incoming.get(stack.pop(), ()):
            edges.append(k)
            source = int(topology.source[k])
            if source not in seen:
                seen.add(source)
                stack.append(source)
        if len(seen) > CORE_NODES_MAX or len(edges) > 2 * CORE_NODES_MAX:
            return None
    return sorted(edges)


def _deciding_window(graph: Graph, topology: Topology, node: int, cause: Int64) -> tuple[list[int], int]:
    """Return the fewest consecutive edges of the path that decides `node` which exceed the clock, and their end.

    No edge can be left out of them: what remains on either side of it fits. The floor at the path's start counts only
    for a window that begins there, and `_core` takes it from the node itself.
    """
    path: list[int] = []
    at = node
    while cause[at] >= 0:
        path.append(int(cause[at]))
        at = int(topology.source[path[-1]])
    path.reverse()
    steps = [ms_to_ns(float(graph.edge_delay_ms[topology.number[k]])) for k in path]
    floor_ns = ms_to_ns(float(graph.not_before_ms[at]))
    best = (0, len(path))
    begin, total = 0, floor_ns  # `begin` counts what was dropped in front: the floor first, then edges
    for end, step in enumerate(steps, start=1):
        total += step
        while begin < end:
            less = total - (floor_ns if begin == 0 else steps[begin - 1])
            if less <= HORIZON_NS:
                break
            total = less
            begin += 1
        if total > HORIZON_NS and end - begin < best[1] - best[0]:
            best = (begin, end)
    window = path[max(best[0] - 1, 0) : best[1]]
    return window, int(topology.target[window[-1]])
