"""Obligations M1 to M10: the machines' tables, shown once for all plays, pools and links.

Every proof reads the tables; what their events and guards mean, and what is claimed of them, stands in `models`.
A proof that fails says which entry of which table breaks which claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

import networkx as nx

from playproof_spec import models
from playproof_spec.identity import HOST_KEY_RULE, IDENTITY_RULE, NAMESPACE_RULE, NUMBER_RULE, Computed
from playproof_spec.machines import GUARDS, MACHINES, HandoffEvent, HandoffState, Machine
from playproof_spec.obligation import FAILED, NOT_APPLICABLE, PROVEN, UNPROVEN, Obligation, Stopwatch
from playproof_spec.proofs import Prover

__all__ = ["prove_machines"]


def prove_machines(machines: Sequence[Machine] = MACHINES, computed: Computed | None = None) -> tuple[Obligation, ...]:
    """Try the obligations M1 to M10 on the tables.

    Parameters
    ----------
    machines : sequence of Machine
        All tables in force; all but M1, M2 and M6 look for theirs by name and are ``not_applicable`` without.
    computed : Computed, optional
        What a kernel computes of cache identities, for M6.

    Returns
    -------
    tuple[Obligation, ...]
        Ten; `how` of a failed one names what breaks it.
    """
    named = {machine.name: machine for machine in machines}
    return (
        prove_well_formed(machines),
        prove_reachable(machines),
        prove_no_completion_at_prefill(named),
        prove_counters(named),
        prove_blocks(named),
        prove_identity(computed=computed),
        prove_requests(named),
        prove_host_blocks(named),
        prove_phases(named),
        prove_transfers(named),
    )


def _graph(machine: Machine, without: frozenset[IntEnum] = frozenset()) -> nx.DiGraph[IntEnum]:
    """Return the states of `machine` as a directed graph, without the entries of some events."""
    graph: nx.DiGraph[IntEnum] = nx.DiGraph()
    graph.add_nodes_from(machine.states)
    for state, row in machine.table.items():
        graph.add_edges_from((state, rule.to) for event, rule in row.items() if event not in without)
    return graph


def _name(member: IntEnum) -> str:
    return member.name.lower()


def _conclude(watch: Stopwatch, code: str, title: str, how: str, broken: Sequence[str], unknown: int = 0) -> Obligation:
    if broken:
        return watch.stop(code, title, FAILED, "; ".join(broken))
    if unknown:
        return watch.stop(code, title, UNPROVEN, f"{how}; the prover gave up on {unknown} questions")
    return watch.stop(code, title, PROVEN, how)


class _Questions:
    """Asks z3 whether a claim can be broken, and keeps what came out."""

    __slots__ = ("_prover", "asked", "broken", "unknown")

    def __init__(self) -> None:
        self._prover = Prover()
        self.asked = 0
        self.unknown = 0
        self.broken: list[str] = []

    def refute(self, claim: str, smt: str) -> None:
        """Note `claim` as broken when `smt`, its negation, has a model."""
        verdict = self._prover.ask(smt).verdict
        self.asked += 1
        if verdict == "sat":
            self.broken.append(claim)
        self.unknown += verdict == "unknown"

    def find(self, denial: str, smt: str) -> None:
        """Note `denial` as what breaks when `smt` has no model: what is asked for must be possible."""
        verdict = self._prover.ask(smt).verdict
        self.asked += 1
        if verdict == "unsat":
            self.broken.append(denial)
        self.unknown += verdict == "unknown"


# ---------------------------------------------------------------------------------------------------------------- M1


def prove_well_formed(machines: Sequence[Machine]) -> Obligation:
    """M1: each table is deterministic and total over its alphabet, with its initial and terminal states named."""
    watch = Stopwatch()
    broken: list[str] = []
    entries = 0
    for machine in machines:
        entries += sum(len(row) for row in machine.table.values())
        broken += [f"{machine.name}: {problem}" for problem in _malformed(machine)]
    how = f"{entries} entries of {len(machines)} tables looked at: one successor each, an absent pair is illegal"
    return _conclude(watch, "M1", "tables are deterministic and total", how, broken)


def _malformed(machine: Machine) -> Iterable[str]:
    for alphabet in (machine.states, machine.events):
        if [int(member) for member in alphabet] != list(range(len(alphabet))):
            yield f"the values of {alphabet.__name__} are not 0, 1, 2, …"
    if set(machine.table) != set(machine.states):
        yield "a state has no row, or a row no state"
    used = set()
    for state, row in machine.table.items():
        for event, rule in row.items():
            used.add(event)
            pair = f"{_name(state)} —{_name(event)}→"
            if not isinstance(event, machine.events):
                yield f"{pair}: the event is not of this machine"
            if not isinstance(rule.to, machine.states):
                yield f"{pair}: the successor is not of this machine"
            if rule.guard and rule.guard not in GUARDS:
                yield f"{pair}: guard {rule.guard} has no meaning"
    for event in machine.events:
        if event not in used:
            yield f"event {_name(event)} is never legal"
    if not isinstance(machine.initial, machine.states) or machine.initial in machine.terminal:
        yield "the initial state is none, or terminal"
    for state in machine.states:
        if (state in machine.terminal) != (not machine.table.get(state)):
            yield f"{_name(state)} is terminal, or its row is empty, but not both"


# ---------------------------------------------------------------------------------------------------------------- M2


def prove_reachable(machines: Sequence[Machine]) -> Obligation:
    """M2: every state can be reached, and from every state an end can be.

    A machine without terminal states describes a resource (a block); its end is its initial state, at rest.
    """
    watch = Stopwatch()
    broken: list[str] = []
    states = 0
    for machine in machines:
        graph = _graph(machine)
        states += len(graph)
        reachable = nx.descendants(graph, machine.initial) | {machine.initial}
        ends = machine.terminal or {machine.initial}
        to_an_end = set(ends).union(*(nx.ancestors(graph, end) for end in ends))
        for state in sorted(machine.states):
            if state not in reachable:
                broken.append(f"{machine.name}: {_name(state)} cannot be reached")
            if state not in to_an_end:
                broken.append(f"{machine.name}: {_name(state)} never comes to an end")
    how = f"networkx: descendants of the initial and ancestors of the last states, {states} states"
    return _conclude(watch, "M2", "every state is reachable and comes to an end", how, broken)


# ---------------------------------------------------------------------------------------------------------------- M3


def prove_no_completion_at_prefill(machines: Mapping[str, Machine]) -> Obligation:
    """M3: in prefill/decode a request completes only after it was decoded.

    On every path to `completed`, by either of its edges, lie `prefilling`, `transferring` and `decoding`; the edge
    without a token is only for requests that ask for none.
    """
    watch = Stopwatch()
    title = "no completion at prefill or handoff"
    tables = [m for name, m in machines.items() if name.startswith("handoff")]
    if not tables:
        return watch.stop("M3", title, NOT_APPLICABLE, "no handoff table")
    broken: list[str] = []
    questions = _Questions()
    decoded = (HandoffState.PREFILLING, HandoffState.TRANSFERRING, HandoffState.DECODING)
    for machine in tables:
        for without in (HandoffEvent.COMPLETE_EMPTY, HandoffEvent.COMPLETE):
            dominators = _dominators(_graph(machine, frozenset({without})), machine.initial, HandoffState.COMPLETED)
            way = "complete" if without is HandoffEvent.COMPLETE_EMPTY else "complete_empty"
            if dominators is None:
                broken.append(f"{machine.name}: no path leads to completed by {way}")
                continue
            for milestone in decoded:
                if milestone not in dominators:
                    broken.append(f"{machine.name}: a path to completed by {way} avoids {_name(milestone)}")
        for state, row in machine.table.items():
            rule = row.get(HandoffEvent.COMPLETE_EMPTY)
            if rule is not None and rule.guard != "zero_tokens":
                broken.append(f"{machine.name}: {_name(state)} —complete_empty→ is not for zero tokens only")
        _prove_model(questions, models.handoff_model(machine))
    how = (
        f"networkx: the dominators of completed in {len(tables)} tables, with and without the zero-token edge; "
        f"z3: {questions.asked} questions of an induction: each step in its place, every end possible"
    )
    return _conclude(watch, "M3", title, how, [*broken, *questions.broken], questions.unknown)


def _dominators(graph: nx.DiGraph[IntEnum], initial: IntEnum, state: IntEnum) -> set[IntEnum] | None:
    """Return the states on every path from `initial` to `state`, or None when there is no path."""
    if not nx.has_path(graph, initial, state):
        return None
    immediate = nx.immediate_dominators(graph, initial)
    dominators = {initial}
    while state != initial:
        dominators.add(state)
        state = immediate[state]
    return dominators


# ------------------------------------------------------------------------------------------------------------ M4, M5


def prove_counters(machines: Mapping[str, Machine]) -> Obligation:
    """M4: a play of any number of nodes keeps its books, contains failures, and ends; lanes hold one play each.

    By induction over the moves of three models: a play that is only counted, one node with its clock, and the lanes of
    a run, counted. The one thing the counts do not know is which node is blocked by which; that an active play without
    nodes ready or in flight has a blocked one whose edges have all fired is the acyclicity lemma (G2, G3), assumed
    here by name.
    """
    watch = Stopwatch()
    title = "a play's counts add up, failures stop it, and it ends"
    if not {"node", "play", "lane"} <= set(machines):
        return watch.stop("M4", title, NOT_APPLICABLE, "no node, play or lane table")
    node, play, lane = machines["node"], machines["play"], machines["lane"]
    questions = _Questions()
    for model in (models.play_model(node, play), models.node_model(node), models.lane_model(lane)):
        _prove_model(questions, model)
    how = (
        f"z3: {questions.asked} questions of an induction, for any number of nodes and lanes; assumes the acyclicity "
        "lemma (G2, G3) and that service ends; the tables go one way, self-loops counted, so every run is finite"
    )
    return _conclude(watch, "M4", title, how, questions.broken, questions.unknown)


def prove_blocks(machines: Mapping[str, Machine]) -> Obligation:
    """M5: blocks are conserved, and references never go below zero.

    By induction over the entries of the block table: free + private + active + idle + loading stays the capacity, and a
    block that nothing refers to is free or idle, one that something refers to is neither; a block is evicted only when
    nothing refers to it and fewer are free than are wanted.
    """
    title = "KV blocks are conserved and references are counted"
    return _prove_machine("M5", title, machines, "block", (models.pool_model, models.block_model), "for any capacity")


# ---------------------------------------------------------------------------------------------------------- M7 to M10


def prove_requests(machines: Mapping[str, Machine]) -> Obligation:
    """M7: a request finishes only from a seat, and holds nothing after its end but the source of a handoff."""
    title = "a request finishes only while it runs, and holds nothing after its end"
    return _prove_machine("M7", title, machines, "request", (models.request_model,), "in each role")


def prove_host_blocks(machines: Mapping[str, Machine]) -> Obligation:
    """M8: no block of host memory is evicted while a load reads it, none is read before its store has ended."""
    title = "host memory counts its pins, and evicts nothing that is read"
    return _prove_machine("M8", title, machines, "host_block", (models.host_block_model,), "for any number of loads")


def prove_phases(machines: Mapping[str, Machine]) -> Obligation:
    """M9: a profile opens only through the barrier with all lanes prepared, and phases come in their order."""
    title = "a profile is measured only after all lanes are prepared"
    return _prove_machine("M9", title, machines, "phase", (models.phase_model,), "for any number of lanes and requests")


def prove_transfers(machines: Mapping[str, Machine]) -> Obligation:
    """M10: a transfer is done only when it was submitted and has moved, and can be given up until then."""
    title = "a transfer is done only after it moved"
    return _prove_machine("M10", title, machines, "transfer", (models.transfer_model,), "from its table alone")


def _prove_machine(
    code: str,
    title: str,
    machines: Mapping[str, Machine],
    name: str,
    makers: Sequence[Callable[[Machine], models.Model]],
    scope: str,
) -> Obligation:
    watch = Stopwatch()
    if name not in machines:
        return watch.stop(code, title, NOT_APPLICABLE, f"no {name.replace('_', ' ')} table")
    questions = _Questions()
    moves = 0
    for make in makers:
        model = make(machines[name])
        moves = max(moves, len(model.moves))
        _prove_model(questions, model)
    how = f"z3: {questions.asked} questions of an induction over {moves} moves, {scope}"
    return _conclude(watch, code, title, how, questions.broken, questions.unknown)


def _prove_model(questions: _Questions, model: models.Model) -> None:
    """Prove a model's invariant by induction over its moves, each of which must be possible, and its claims."""
    names = " ".join(f"({name} {sort})" for name, sort in model.variables.items())
    parts = " ".join(model.invariant.values())
    head = "".join(f"(declare-const {name} {sort})" for name, sort in {**model.variables, **model.inputs}.items())
    head += f"(define-fun Inv ({names}) Bool (and {parts}))"
    holds = f"{head}(assert (Inv {' '.join(model.variables)}))"
    questions.refute(
        f"a new {model.name} does not keep the invariant",
        f"{head}(assert {model.initial})(assert (not (Inv {' '.join(model.variables)})))",
    )
    for move in model.moves:
        after = " ".join(move.updates.get(name, name) for name in model.variables)
        possible = f"{holds}(assert {move.enabled})"
        questions.find(f"{move.name} can never happen", possible)
        words = f"{move.name} breaks the {model.name}'s invariant"
        if move.entry is not None and model.name in ("pool", "block"):
            words = f"{move.name} {'loses or makes a block' if model.name == 'pool' else 'leaves it in a wrong state'}"
        questions.refute(words, f"{possible}(assert (not (Inv {after})))")
    for claim in model.claims:
        questions.refute(claim.words, f"{holds}(assert {claim.when})")
    for machine, edges in model.endless:
        if not nx.is_directed_acyclic_graph(nx.DiGraph(edges)):
            questions.broken.append(f"{machine}: a run can go round for ever")


# ---------------------------------------------------------------------------------------------------------------- M6


def prove_identity(
    identity: str = IDENTITY_RULE,
    namespace: str = NAMESPACE_RULE,
    host_key: str = HOST_KEY_RULE,
    number: str = NUMBER_RULE,
    computed: Computed | None = None,
) -> Obligation:
    """M6: equal block identities mean equal namespaces and equal chains, and no two play instances share a namespace.

    Hence no hit, in device or host memory, crosses a recycled play under snapshot, warmup or profile.

    Parameters
    ----------
    identity : str
        The identity of a block as an SMT-LIB term over ``before`` (the identity before it) and ``tokens``.
    namespace : str
        The namespace of a play instance, over ``lane``, ``ordinal``, ``lanes`` and ``plays``.
    host_key : str
        What host memory has a block under, over ``block``, its identity, with ``parent``, ``content`` and ``space``.
    number : str
        The number that stands for an identity, over ``space``, its namespace, and ``offset``, its block in the corpus,
        which is less than ``span``.
    """
    watch = Stopwatch()
    title = "cache identity is exact within a play instance"
    questions = _Questions()
    head = (
        "(declare-datatypes ((Id 0)) (((root (space Int)) (step (parent Id) (content Int)))))"
        f"(define-fun identify ((before Id) (tokens Int)) Id {identity})"
        "(declare-const p Id)(declare-const q Id)(declare-const t Int)(declare-const u Int)"
        "(declare-const a Int)(declare-const b Int)"
    )
    # Induction over the shorter of two chains; beyond it, a block is never taken for the start of a chain.
    questions.refute("two namespaces begin alike", f"{head}(assert (= (root a) (root b)))(assert (not (= a b)))")
    questions.refute("a block can equal the start of a chain", f"{head}(assert (= (root a) (identify q u)))")
    different = "(assert (not (and (= p q) (= t u))))"
    questions.refute("two chains have one identity", f"{head}(assert (= (identify p t) (identify q u))){different}")
    hosted = f"{head}(declare-const v Id)(declare-const w Id)(define-fun host_key ((block Id)) Id {host_key})"
    alike = "(assert (= (host_key v) (host_key w)))(assert (not (= v w)))"
    questions.refute("host memory takes one block for another", f"{hosted}{alike}")
    _ask_of_numbers(questions, number)
    names = ("lane", "ordinal", "lane2", "ordinal2", "lanes", "plays")
    instances = (
        "".join(f"(declare-const {name} Int)" for name in names)
        + "(assert (and (>= lanes 1) (>= plays 1)))"
        + "".join(f"(assert (and (<= 0 {lane}) (< {lane} lanes)))" for lane in ("lane", "lane2"))
        + "(assert (and (<= 0 ordinal) (<= 0 ordinal2)))"
        + f"(define-fun instance ((lane Int) (ordinal Int)) Int {namespace})"
        + "(assert (= (instance lane ordinal) (instance lane2 ordinal2)))"
    )
    # The order of the two instances is free, so the first may be the earlier.
    for case in ("(< ordinal ordinal2)", "(and (= ordinal ordinal2) (< lane lane2))"):
        questions.refute("two play instances share a namespace", f"{instances}(assert {case})")
    if computed is not None:
        _ask_of_computed(questions, namespace, number, computed)
    of_what = "of the rules" if computed is None else "of the rules, and of what the kernel's own source computes"
    how = (
        f"z3: {questions.asked} questions {of_what}, by induction over the length of a chain, for any number of lanes "
        "and plays"
    )
    return _conclude(watch, "M6", title, how, questions.broken, questions.unknown)


def _ask_of_numbers(questions: _Questions, number: str) -> None:
    """Whether two blocks of the corpus, or of two namespaces, can have one number."""
    names = ("space", "space2", "offset", "offset2", "span")
    blocks = (
        "".join(f"(declare-const {name} Int)" for name in names)
        + "(assert (and (<= 0 space) (<= 0 space2)))"
        + "".join(f"(assert (and (<= 0 {offset}) (< {offset} span)))" for offset in ("offset", "offset2"))
        + f"(define-fun number ((space Int) (offset Int)) Int {number})"
        + "(assert (= (number space offset) (number space2 offset2)))"
    )
    questions.refute("two blocks have one number", f"{blocks}(assert (= space space2))(assert (< offset offset2))")
    # The order of the two is free, so the first may be the smaller.
    questions.refute("blocks of two namespaces have one number", f"{blocks}(assert (< space space2))")


def _ask_of_computed(questions: _Questions, namespace: str, number: str, computed: Computed) -> None:
    """Whether a kernel can compute another namespace, or another key, than the rules say."""
    names = ("lane", "ordinal", "lanes", "span", "first", "begin", "stride", "block")
    head = (
        "".join(f"(declare-const {name} Int)" for name in names)
        + f"(define-fun number ((space Int) (offset Int)) Int {number})"
        # The rule speaks of the plays of a corpus too, though only a false one takes them.
        + f"(declare-const plays Int)(define-fun instance () Int {namespace})"
        + f"(define-fun space () Int {computed.namespace})"
    )
    words = "the kernel's namespace is not the rule's"
    questions.refute(words, f"{head}(assert (not (= space (number instance 0))))")
    for key in computed.keys:
        offset = "(+ first (* (- block begin) stride))"
        wrong = f"(assert (not (= {key} (number instance {offset}))))"
        questions.refute("the kernel's key of a block is not the rule's", f"{head}{wrong}")
