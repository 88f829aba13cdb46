"""Obligations M1 to M6: the machines' tables, shown once for all plays, pools and links.

Every proof reads the tables; what stands here beside them is the meaning of the guards (as formulas) and the claims.
A proof that fails says which entry of which table breaks which claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import networkx as nx

from playproof_spec.machines import (
    GUARDS,
    MACHINES,
    BlockEvent,
    HandoffEvent,
    HandoffState,
    LaneState,
    Machine,
    NodeEvent,
    NodeState,
    PlayEvent,
    PlayState,
)
from playproof_spec.obligation import FAILED, NOT_APPLICABLE, PROVEN, UNPROVEN, Obligation, Stopwatch
from playproof_spec.proofs import Prover

__all__ = ["prove_machines"]


def prove_machines(machines: Sequence[Machine] = MACHINES) -> tuple[Obligation, ...]:
    """Try the obligations M1 to M6 on the tables.

    Parameters
    ----------
    machines : sequence of Machine
        All tables in force; M3 to M6 look for theirs by name and are ``not_applicable`` without.

    Returns
    -------
    tuple[Obligation, ...]
        Six; `how` of a failed one names what breaks it.
    """
    named = {machine.name: machine for machine in machines}
    return (
        prove_well_formed(machines),
        prove_reachable(machines),
        prove_no_completion_at_prefill(named),
        prove_counters(named),
        prove_blocks(named),
        prove_identity(),
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
    how = f"networkx: the dominators of completed in {len(tables)} tables, with and without the zero-token edge"
    return _conclude(watch, "M3", title, how, broken)


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


# ---------------------------------------------------------------------------------------------------------------- M4

# What the guards of plays and nodes say in the counter abstraction. n0 … n8 count the nodes in each state, p is the
# play's state. An edge fires only in an active play, so `all_edges_fired` and `due` include that.
_PLAY_GUARDS: Mapping[str, str] = {
    "": "true",
    "all_edges_fired": f"(= p {PlayState.ACTIVE:d})",
    "due": f"(= p {PlayState.ACTIVE:d})",
    "play_failed": f"(or (= p {PlayState.FAILING:d}) (= p {PlayState.FAILED:d}))",
    "play_closing": f"(or (= p {PlayState.CLOSING:d}) (= p {PlayState.INCOMPLETE:d}))",
    "before_cut": f"(= p {PlayState.PENDING:d})",
    "all_completed": f"(= N (+ n{NodeState.COMPLETED:d} n{NodeState.HISTORICAL:d}))",
    "nothing_in_flight": f"(= n{NodeState.DISPATCHED:d} 0)",
}


def _meaning(guard: str) -> str:
    """Return the formula of a guard; one that says nothing about counts restricts nothing."""
    return _PLAY_GUARDS.get(guard, "true")


_COUNTERS = [f"n{state:d}" for state in NodeState]
_FAILURES = f"(+ n{NodeState.FAILED:d} n{NodeState.CANCELED:d})"
_DECLARE_PLAY = "".join(f"(declare-const {name} Int)" for name in ["N", "p", *_COUNTERS])


def _play_invariant(play: Machine) -> str:
    """Return the invariant as a function of (N, p, n0 … n8); the claims of M4 follow from it."""

    def when(states: Iterable[IntEnum], claim: str) -> str:
        return f"(=> (or {' '.join(f'(= p {state:d})' for state in states)} false) {claim})"

    zero = "(= 0 (+ {}))".format(" ".join(f"n{s:d}" for s in (NodeState.SKIPPED, NodeState.NEVER_ISSUED)))
    at_rest = f"(= N (+ n{NodeState.BLOCKED:d} n{NodeState.HISTORICAL:d}))"
    parts = [
        "(>= N 1)",
        *(f"(>= {counter} 0)" for counter in _COUNTERS),
        f"(= N (+ {' '.join(_COUNTERS)}))",
        f"(or {' '.join(f'(= p {state:d})' for state in play.states)})",
        when([PlayState.PENDING], at_rest),
        when([PlayState.ACTIVE], f"(and (= 0 {_FAILURES}) {zero})"),
        when([PlayState.SETTLING, PlayState.COMPLETED], _PLAY_GUARDS["all_completed"]),
        when([PlayState.FAILING, PlayState.FAILED], f"(and (>= {_FAILURES} 1) (= n{NodeState.NEVER_ISSUED:d} 0))"),
        when([PlayState.CLOSING, PlayState.INCOMPLETE], f"(= n{NodeState.SKIPPED:d} 0)"),
        when(sorted(play.terminal), f"(= n{NodeState.DISPATCHED:d} 0)"),
    ]
    arguments = " ".join(f"({name} Int)" for name in ["N", "p", *_COUNTERS])
    return f"(define-fun Inv ({arguments}) Bool (and {' '.join(parts)}))"


def _failed_play(play: Machine) -> str:
    """Return the play's next state when a node fails: where its row has the event, else it stays."""
    after = "p"
    for state in play.states:
        rule = play.table[state].get(PlayEvent.NODE_FAILED)
        if rule is not None:
            after = f"(ite (= p {state:d}) {rule.to:d} {after})"
    return after


def _moves(node: Machine, play: Machine) -> list[tuple[str, str, str, list[str]]]:
    """Return every entry of the two tables as (its name, when it may happen, the next p, the next counters)."""
    moves = []
    for state, row in node.table.items():
        for event, rule in row.items():
            counters = list(_COUNTERS)
            counters[state] = f"(- {counters[state]} 1)"
            counters[rule.to] = f"(+ {counters[rule.to]} 1)"
            fails = state == NodeState.DISPATCHED and event != NodeEvent.COMPLETE
            enabled = f"(and (> n{state:d} 0) {_meaning(rule.guard)})"
            name = f"node {_name(state)} —{_name(event)}→ {_name(rule.to)}"
            moves.append((name, enabled, _failed_play(play) if fails else "p", counters))
    for state, row in play.table.items():
        for event, rule in row.items():
            if event == PlayEvent.NODE_FAILED:
                continue  # happens with a node's failure only, above
            enabled = f"(and (= p {state:d}) {_meaning(rule.guard)})"
            name = f"play {_name(state)} —{_name(event)}→ {_name(rule.to)}"
            moves.append((name, enabled, f"{rule.to:d}", list(_COUNTERS)))
    return moves


def prove_counters(machines: Mapping[str, Machine]) -> Obligation:
    """M4: a play of any number of nodes keeps its books, contains failures, and ends.

    By induction over the entries of the tables, on a play that is only counted: how many nodes are in which state. The
    one thing the counts do not know is which node is blocked by which; that a play without nodes ready or in flight has
    a blocked one whose edges have all fired is the acyclicity lemma (G2, G3), assumed here by name.
    """
    watch = Stopwatch()
    title = "a play's counts add up, failures stop it, and it ends"
    if not {"node", "play", "lane"} <= set(machines):
        return watch.stop("M4", title, NOT_APPLICABLE, "no node, play or lane table")
    node, play, lane = machines["node"], machines["play"], machines["lane"]
    head = _DECLARE_PLAY + _play_invariant(play)
    before = f"(assert (Inv N p {' '.join(_COUNTERS)}))"
    questions = _Questions()
    start = " ".join("N" if state == node.initial else "0" for state in NodeState)
    questions.refute(
        "a new play does not keep the invariant",
        f"{head}(assert (>= N 1))(assert (not (Inv N {play.initial:d} {start})))",
    )
    moves = _moves(node, play)
    for name, enabled, next_p, counters in moves:
        after = f"(assert (not (Inv N {next_p} {' '.join(counters)})))"
        questions.refute(f"{name} breaks the play's invariant", f"{head}{before}(assert {enabled}){after}")
    for state, row in node.table.items():
        for event, rule in row.items():
            if rule.to in (NodeState.READY, NodeState.DISPATCHED):
                happens = f"(assert (and (> n{state:d} 0) {_meaning(rule.guard)} (>= {_FAILURES} 1)))"
                claim = f"node {_name(state)} —{_name(event)}→ {_name(rule.to)} can happen after a failure"
                questions.refute(claim, head + before + happens)
    for event, rule in lane.table[LaneState.OCCUPIED].items():
        in_flight = f"(assert (and {_meaning(rule.guard)} (> n{NodeState.DISPATCHED:d} 0)))"
        questions.refute(
            f"lane occupied —{_name(event)}→ can happen with requests in flight", head + before + in_flight
        )
    questions.refute("a reachable state is stuck", head + before + _stuck(play, moves))
    for machine in (node, play):
        looping = nx.DiGraph((a, b) for a, b in _graph(machine).edges if a != b)
        if not nx.is_directed_acyclic_graph(looping):
            questions.broken.append(f"{machine.name}: a run can go round for ever")
    how = (
        f"z3: {questions.asked} steps of an induction over {len(moves)} entries, for any number of nodes; "
        "assumes the acyclicity lemma (G2, G3) and that service ends; both tables go one way, so every run is finite"
    )
    return _conclude(watch, "M4", title, how, questions.broken, questions.unknown)


def _stuck(play: Machine, moves: Sequence[tuple[str, str, str, list[str]]]) -> str:
    """Return the assertion that the play is not over and nothing can happen to it by itself."""
    # Deadlines and cuts come from outside; a play must not need them.
    own = [
        f"(and {enabled} (or someReleasable (not (> n{NodeState.BLOCKED:d} 0))))" if "—release→" in name else enabled
        for name, enabled, _, _ in moves
        if "—deadline→" not in name and "—cut→" not in name
    ]
    waiting = (NodeState.BLOCKED, NodeState.READY, NodeState.DISPATCHED)
    terminal = " ".join(f"(= p {state:d})" for state in sorted(play.terminal))
    over = f"(and (or {terminal}) (= 0 (+ {' '.join(f'n{state:d}' for state in waiting)})))"
    lemma = (
        f"(=> (and (= 0 (+ n{NodeState.READY:d} n{NodeState.DISPATCHED:d} {_FAILURES})) (> n{NodeState.BLOCKED:d} 0))"
        " someReleasable)"
    )
    return (
        f"(declare-const someReleasable Bool)(assert {lemma})(assert (not {over}))(assert (not (or {' '.join(own)})))"
    )


# ---------------------------------------------------------------------------------------------------------------- M5

# Which counter of the pool a block is in, by its state.
_POOL_COUNTER: Mapping[str, str] = {
    "FREE": "free",
    "PRIVATE": "private",
    "CACHED_ACTIVE": "active",
    "READING": "active",
    "CACHED_IDLE": "idle",
    "READING_IDLE": "idle",
    "LOADING": "loading",
}
# How many requests may refer to a block in each counter: (at least, at most or None).
_REFERENCES: Mapping[str, tuple[int, int | None]] = {
    "free": (0, 0),
    "private": (1, 1),
    "active": (1, None),
    "idle": (0, 0),
    "loading": (1, 1),
}
# What an event does to the number of requests that refer to the block; every other event leaves it.
_REFERENCE_STEP: Mapping[IntEnum, int] = {
    BlockEvent.ALLOCATE: 1,
    BlockEvent.RESERVE_LOAD: 1,
    BlockEvent.REUSE: 1,
    BlockEvent.RELEASE: -1,
}


def prove_blocks(machines: Mapping[str, Machine]) -> Obligation:
    """M5: blocks are conserved, and references never go below zero.

    By induction over the entries of the block table: free + private + active + idle + loading stays the capacity, and a
    block that nobody refers to is free or idle, one that somebody refers to is neither.
    """
    watch = Stopwatch()
    title = "KV blocks are conserved and references are counted"
    if "block" not in machines:
        return watch.stop("M5", title, NOT_APPLICABLE, "no block table")
    block = machines["block"]
    counters = list(_REFERENCES)
    declare = "".join(f"(declare-const {name} Int)" for name in ["capacity", "refs", *counters])
    conserved = f"(= capacity (+ {' '.join(counters)}))"
    holds = "".join(f"(assert (>= {counter} 0))" for counter in counters) + f"(assert {conserved})"
    questions = _Questions()
    entries = 0
    for state, row in block.table.items():
        for event, rule in row.items():
            entries += 1
            name = f"{_name(state)} —{_name(event)}→ {_name(rule.to)}"
            source, target = _POOL_COUNTER.get(state.name), _POOL_COUNTER.get(rule.to.name)
            taken = f"(assert (>= {source} 1))" if source else ""
            after = [f"(+ {counter} {(counter == target) - (counter == source)})" for counter in counters]
            bad_counts = f"(or (not (= capacity (+ {' '.join(after)}))) {' '.join(f'(< {a} 0)' for a in after)})"
            questions.refute(f"{name} loses or makes a block", f"{declare}{holds}{taken}(assert {bad_counts})")
            if source and target:
                guard = "(= refs 1)" if rule.guard == "last_reference" else "true"
                step = f"(+ refs {_REFERENCE_STEP.get(event, 0)})"
                allowed = f"(assert (and {_within('refs', source)} {guard}))(assert (not {_within(step, target)}))"
                questions.refute(f"{name} leaves a wrong number of references", declare + allowed)
    # A block may be shared without changing its state: one more request, or one of several that lets go.
    for shared in (counter for counter, (_, most) in _REFERENCES.items() if most is None):
        for step, guard in (("(+ refs 1)", "true"), ("(- refs 1)", "(> refs 1)")):
            allowed = f"(assert (and {_within('refs', shared)} {guard}))(assert (not {_within(step, shared)}))"
            questions.refute(f"sharing a block that is {shared} miscounts", declare + allowed)
    how = f"z3: {questions.asked} steps of an induction over {entries} entries, for any capacity"
    return _conclude(watch, "M5", title, how, questions.broken, questions.unknown)


def _within(refs: str, counter: str) -> str:
    least, most = _REFERENCES[counter]
    return f"(and (>= {refs} {least}) {'true' if most is None else f'(<= {refs} {most})'})"


# ---------------------------------------------------------------------------------------------------------------- M6

# The rules under proof, as terms. A block's identity is interned from the identity before it and its tokens; the first
# one before is the namespace. Play instance number `ordinal` of lane `lane` has this number as its namespace.
IDENTITY_RULE = "(step before tokens)"
NAMESPACE_RULE = "(+ (* ordinal lanes) lane)"
# Host memory, a worker's own or one for all, has a block under its identity and nothing else.
HOST_KEY_RULE = "block"
# As a number: the blocks of a corpus are numbered below `span`, and each namespace has that many numbers of its own.
NUMBER_RULE = "(+ (* space span) offset)"


def prove_identity(
    identity: str = IDENTITY_RULE,
    namespace: str = NAMESPACE_RULE,
    host_key: str = HOST_KEY_RULE,
    number: str = NUMBER_RULE,
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
    how = f"z3: {questions.asked} questions, by induction over the length of a chain, for any number of lanes and plays"
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
