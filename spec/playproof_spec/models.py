"""The machines as transition systems: what M3 to M10 prove by induction, and what runs are compared with.

A table says which event leads where. A model adds what an event does to the rest of the world (counts, references,
memory), what its guards mean, what must always hold, and what must be possible. Every move is an entry of a table, or
one of the few steps without an event (a block is shared once more). Formulas are SMT-LIB text over the variables and
inputs of the model: z3 proves them for all values (`machine_proofs`), and a test evaluates the very same text on the
arrays of runs (`tests/support/refinement.py`), so what is proven and what runs cannot drift apart.

A guard that a model does not know restricts nothing where safety is argued, and is false where progress is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from playproof_spec.machines import (
    BlockEvent,
    BlockState,
    HandoffEvent,
    HandoffState,
    HostBlockEvent,
    HostBlockState,
    LaneEvent,
    LaneState,
    Machine,
    NodeEvent,
    NodeState,
    PhaseEvent,
    PhaseState,
    PlayEvent,
    PlayState,
    RequestEvent,
    RequestState,
    TransferEvent,
    TransferState,
)

__all__ = [
    "Claim",
    "Model",
    "Move",
    "block_model",
    "handoff_model",
    "host_block_model",
    "lane_model",
    "node_model",
    "phase_model",
    "play_model",
    "pool_model",
    "request_model",
    "transfer_model",
]


Effects = Mapping[IntEnum, Mapping[str, str]]
Edges = tuple[tuple[IntEnum, IntEnum], ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a model.

    Attributes
    ----------
    name : str
    entry : tuple[str, IntEnum, IntEnum] or None
        The entry of a table that it takes, as (machine, state, event); None for a step without an event.
    enabled : str
        When it may happen, over the variables and inputs before it.
    updates : Mapping[str, str]
        The value after it of each variable that it changes.
    """

    name: str
    entry: tuple[str, IntEnum, IntEnum] | None
    enabled: str
    updates: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that no state may allow: `when` is its denial, over the variables and inputs, beside the invariant."""

    words: str
    when: str


@dataclass(frozen=True, slots=True)
class Model:
    """A transition system.

    Attributes
    ----------
    name : str
    variables, inputs : Mapping[str, str]
        Names and sorts; an input is decided anew at each step.
    initial : str
        A formula over the variables.
    invariant : Mapping[str, str]
        Its parts, in words and as formulas.
    moves : tuple[Move, ...]
    claims : tuple[Claim, ...]
    endless : tuple[tuple[str, Edges], ...]
        Of each machine, its entries that nothing bounds: a run takes each at most once, so they may not go round.
    """

    name: str
    variables: Mapping[str, str]
    inputs: Mapping[str, str]
    initial: str
    invariant: Mapping[str, str]
    moves: tuple[Move, ...]
    claims: tuple[Claim, ...]
    endless: tuple[tuple[str, Edges], ...] = ()


def _conj(*parts: str) -> str:
    return f"(and {' '.join(parts)} true)"


def _disj(parts: Iterable[str]) -> str:
    return f"(or {' '.join(parts)} false)"


def _name(member: IntEnum) -> str:
    return member.name.lower()


def _may(guard: str, meaning: Mapping[str, str]) -> str:
    """Return when an event with `guard` may happen at the most."""
    return meaning.get(guard, "true") if guard else "true"


def _must(guard: str, meaning: Mapping[str, str]) -> str:
    """Return when an event with `guard` can happen for sure."""
    return meaning.get(guard, "false") if guard else "true"


def _in(variable: str, states: Iterable[IntEnum]) -> str:
    return _disj(f"(= {variable} {state:d})" for state in states)


def _entries(machine: Machine) -> list[tuple[IntEnum, IntEnum, IntEnum, str]]:
    """Return (state, event, successor, guard) of every entry."""
    return [(state, event, r.to, r.guard) for state, row in machine.table.items() for event, r in row.items()]


def _entry_name(machine: Machine, state: IntEnum, event: IntEnum, to: IntEnum) -> str:
    return f"{machine.name} {_name(state)} —{_name(event)}→ {_name(to)}"


def _table_moves(machine: Machine, effects: Effects, meaning: Mapping[str, str]) -> list[Move]:
    """Return the entries of a table as moves of one object in state ``s``."""
    moves = []
    for state, event, to, guard in _entries(machine):
        name = _entry_name(machine, state, event, to)
        enabled = _conj(f"(= s {state:d})", _may(guard, meaning))
        updates = {"s": f"{to:d}", **effects.get(event, {})}
        moves.append(Move(name, (machine.name, state, event), enabled, updates))
    return moves


def _only(machine: Machine, event: IntEnum, meaning: Mapping[str, str], needs: str, words: str) -> list[Claim]:
    """Claim that each entry of `event` happens only when `needs` holds."""
    return [
        Claim(
            f"{_entry_name(machine, state, event, to)} can happen {words}",
            _conj(f"(= s {state:d})", _may(guard, meaning), f"(not {needs})"),
        )
        for state, column, to, guard in _entries(machine)
        if column == event
    ]


def _accepts(machine: Machine, event: IntEnum, meaning: Mapping[str, str], when: str, words: str) -> Claim:
    """Claim that `event` can happen for sure when `when` holds."""
    ways = [
        _conj(f"(= s {s:d})", _must(guard, meaning)) for s, column, _, guard in _entries(machine) if column == event
    ]
    return Claim(f"{machine.name}: {_name(event)} is refused {words}", _conj(when, f"(not {_disj(ways)})"))


def _endless(machine: Machine, bounded: Iterable[tuple[IntEnum | None, IntEnum]]) -> tuple[str, Edges]:
    """Return the entries of `machine` but for those bounded by something else: (state or None for any, event)."""
    skipped = set(bounded)
    left = tuple(
        (state, to)
        for state, event, to, _ in _entries(machine)
        if (state, event) not in skipped and (None, event) not in skipped
    )
    return machine.name, left


# ---------------------------------------------------------------------------------------------------- a play's nodes

COUNTERS = tuple(f"n{state:d}" for state in NodeState)
# How many events of each kind there were.
EVENTS = tuple(f"g{event:d}" for event in NodeEvent)
FAILURES = f"(+ n{NodeState.FAILED:d} n{NodeState.CANCELED:d})"
_FAILING_EVENTS = (NodeEvent.REJECT, NodeEvent.FAIL, NodeEvent.CANCEL)


def _n(state: NodeState) -> str:
    return f"n{state:d}"


def _g(*events: NodeEvent) -> str:
    return f"(+ 0 {' '.join(f'g{event:d}' for event in events)})"


_WAITING = f"(+ {_n(NodeState.BLOCKED)} {_n(NodeState.READY)} {_n(NodeState.DISPATCHED)})"
_ALL_COMPLETED = f"(= N (+ {_n(NodeState.COMPLETED)} {_n(NodeState.HISTORICAL)}))"
# What the guards of plays and nodes say of a play that is only counted: p is its state. Which of its blocked nodes is
# blocked by which the counts do not know: `releasable` says that some node's edges have all fired, `time` that the
# ready time of some ready node has come, `first` that the play is the first of its lane and nothing has begun.
PLAY_GUARDS: Mapping[str, str] = {
    "all_edges_fired": f"(and (= p {PlayState.ACTIVE:d}) releasable)",
    "due": f"(and (= p {PlayState.ACTIVE:d}) time)",
    "play_failed": f"(= p {PlayState.FAILING:d})",
    "play_closing": f"(= p {PlayState.CLOSING:d})",
    "before_cut": f"(and (= p {PlayState.PENDING:d}) first)",
    "all_completed": _ALL_COMPLETED,
    "all_over": f"(= 0 {_WAITING})",
}
_PLAY_VARIABLES = ("N", "p", "activated", "completed", "closed", "settled", *COUNTERS, *EVENTS)


def _books() -> dict[str, str]:
    """Return how the counts of nodes and of events belong together."""
    ends = {
        NodeState.COMPLETED: (NodeEvent.COMPLETE,),
        NodeState.FAILED: (NodeEvent.REJECT, NodeEvent.FAIL),
        NodeState.SKIPPED: (NodeEvent.SKIP,),
        NodeState.CANCELED: (NodeEvent.CANCEL,),
        NodeState.NEVER_ISSUED: (NodeEvent.EXPIRE,),
        NodeState.HISTORICAL: (NodeEvent.CUT,),
    }
    issued = f"(+ {_n(NodeState.DISPATCHED)} {_n(NodeState.COMPLETED)} {FAILURES})"
    left = f"(+ {_n(NodeState.SKIPPED)} {_n(NodeState.NEVER_ISSUED)})"
    beyond = f"(+ {_n(NodeState.READY)} {issued})"
    return {
        "the counts add up": _conj(*(f"(>= {v} 0)" for v in (*COUNTERS, *EVENTS)), f"(= N (+ {' '.join(COUNTERS)}))"),
        "each end counts its events": _conj(*(f"(= {_n(state)} {_g(*events)})" for state, events in ends.items())),
        "dispatched is in flight or ended": f"(= {_g(NodeEvent.DISPATCH)} {issued})",
        "released is ready or beyond": _conj(
            f"(>= {_g(NodeEvent.RELEASE)} {beyond})", f"(<= {_g(NodeEvent.RELEASE)} (+ {beyond} {left}))"
        ),
    }


def _play_invariant(play: Machine) -> dict[str, str]:
    s = PlayState

    def when(states: Sequence[PlayState], claim: str) -> str:
        return f"(=> {_in('p', states)} {claim})"

    def exactly(flag: str, states: Sequence[IntEnum]) -> str:
        return f"(= {flag} (ite {_in('p', states)} 1 0))"

    none = f"(and (= 0 {_n(NodeState.SKIPPED)}) (= 0 {_n(NodeState.NEVER_ISSUED)}))"
    at_rest = f"(= N (+ {_n(NodeState.BLOCKED)} {_n(NodeState.HISTORICAL)}))"
    only_skipped = f"(and (>= {FAILURES} 1) (= 0 {_n(NodeState.NEVER_ISSUED)}))"
    return {
        "a play has nodes and a state": _conj("(>= N 1)", _in("p", list(play.states))),
        **_books(),
        "nothing of a pending play has begun": when([s.PENDING], at_rest),
        "all but pending plays were activated once": exactly("activated", [state for state in s if state != s.PENDING]),
        "an active play has no failure": when([s.ACTIVE], _conj(f"(= 0 {FAILURES})", none)),
        "a completed play has completed all its nodes": when([s.SETTLING, s.COMPLETED], _ALL_COMPLETED),
        "completion was noted once": exactly("completed", [s.SETTLING, s.COMPLETED]),
        "a failed play has a failure": when([s.FAILING, s.FAILED], only_skipped),
        "a closed play skips nothing": when([s.CLOSING, s.INCOMPLETE], f"(= 0 {_n(NodeState.SKIPPED)})"),
        "the deadline was noted once": exactly("closed", [s.CLOSING, s.INCOMPLETE]),
        "an ended play has nothing left": when([s.COMPLETED, s.FAILED, s.INCOMPLETE], f"(= 0 {_WAITING})"),
        "ends were settled once": exactly("settled", [s.COMPLETED, s.FAILED, s.INCOMPLETE]),
    }


def _after_failure(play: Machine) -> str:
    """Return the play's state after a node's failure. A closing play is past that; elsewhere the event is raised."""
    after = "p"
    for state, event, to, _ in _entries(play):
        if event == PlayEvent.NODE_FAILED and state != PlayState.CLOSING:
            after = f"(ite (= p {state:d}) {to:d} {after})"
    return after


def _node_moves(node: Machine, play: Machine) -> list[Move]:
    """Return the entries of the node table as moves of the play; a failure and its play's event are one step."""
    moves = []
    for state, event, to, guard in _entries(node):
        updates = {f"n{state:d}": f"(- n{state:d} 1)"}
        updates[f"n{to:d}"] = f"(+ {updates.get(f'n{to:d}', f'n{to:d}')} 1)"
        updates[f"g{event:d}"] = f"(+ g{event:d} 1)"
        if event in _FAILING_EVENTS:
            updates["p"] = _after_failure(play)
        enabled = _conj(f"(> n{state:d} 0)", _may(guard, PLAY_GUARDS))
        name = _entry_name(node, state, event, to)
        moves.append(Move(name, (node.name, state, event), enabled, updates))
    return moves


_PLAY_FLAGS: Mapping[IntEnum, str] = {
    PlayEvent.ACTIVATE: "activated",
    PlayEvent.LAST_COMPLETED: "completed",
    PlayEvent.DEADLINE: "closed",
    PlayEvent.SETTLED: "settled",
}


def _play_moves(play: Machine) -> list[Move]:
    moves = []
    for state, event, to, guard in _entries(play):
        if event == PlayEvent.NODE_FAILED:
            continue  # one step with the node's failure
        updates = {"p": f"{to:d}"}
        if event in _PLAY_FLAGS:
            updates[_PLAY_FLAGS[event]] = f"(+ {_PLAY_FLAGS[event]} 1)"
        enabled = _conj(f"(= p {state:d})", _may(guard, PLAY_GUARDS))
        moves.append(Move(_entry_name(play, state, event, to), (play.name, state, event), enabled, updates))
    return moves


def _node_accepts(node: Machine, state: NodeState, event: NodeEvent, when: str, words: str) -> Claim:
    rule = node.table[state].get(event)
    sure = _must(rule.guard, PLAY_GUARDS) if rule is not None else "false"
    return Claim(
        f"a node that is {_name(state)} refuses {_name(event)} {words}",
        _conj(f"(> {_n(state)} 0)", when, f"(not {sure})"),
    )


def _play_accepts(play: Machine, states: Sequence[PlayState], event: PlayEvent, when: str, words: str) -> list[Claim]:
    claims = []
    for state in states:
        rule = play.table[state].get(event)
        sure = _must(rule.guard, PLAY_GUARDS) if rule is not None else "false"
        claims.append(
            Claim(
                f"a play that is {_name(state)} refuses {_name(event)} {words}",
                _conj(f"(= p {state:d})", when, f"(not {sure})"),
            )
        )
    return claims


def _progress(node: Machine, play: Machine) -> list[Claim]:
    """Claim what must be possible: what the world may do at any time, and what a play does next."""
    s, e = NodeState, NodeEvent
    p = PlayState
    active, failing, closing = (f"(= p {state:d})" for state in (p.ACTIVE, p.FAILING, p.CLOSING))
    in_flight = f"(> {_n(s.DISPATCHED)} 0)"
    ends = [e.COMPLETE, *_FAILING_EVENTS]
    claims = [_node_accepts(node, s.DISPATCHED, end, "true", "while its play goes on") for end in ends]
    claims += [
        _node_accepts(node, s.BLOCKED, e.RELEASE, _conj(active, "releasable"), "though its edges have fired"),
        _node_accepts(node, s.READY, e.DISPATCH, _conj(active, "time"), "though it is due"),
        *(_node_accepts(node, x, e.SKIP, failing, "in a failing play") for x in (s.BLOCKED, s.READY)),
        *(_node_accepts(node, x, e.EXPIRE, closing, "in a closing play") for x in (s.BLOCKED, s.READY)),
        _node_accepts(node, s.BLOCKED, e.CUT, f"(and (= p {p.PENDING:d}) first)", "before its play begins"),
    ]
    others = [state for state in p if state != p.CLOSING]
    claims += _play_accepts(play, others, PlayEvent.NODE_FAILED, in_flight, "while a node is in flight")
    claims += [
        Claim(f"play {_name(state)} —node_failed→ can never happen", f"(= p {state:d})")
        for state, event, _, _ in _entries(play)
        if event == PlayEvent.NODE_FAILED and state not in (p.ACTIVE, p.FAILING)
    ]
    claims += _play_accepts(play, [p.PENDING], PlayEvent.ACTIVATE, "true", "before it begins")
    claims += _play_accepts(play, [p.ACTIVE], PlayEvent.DEADLINE, "true", "while it is active")
    claims += _play_accepts(play, [p.ACTIVE], PlayEvent.LAST_COMPLETED, _ALL_COMPLETED, "with all nodes completed")
    over = f"(= 0 {_WAITING})"
    claims += _play_accepts(play, [p.FAILING, p.SETTLING, p.CLOSING], PlayEvent.SETTLED, over, "with nothing left")
    return claims


def _places(node: Machine) -> list[Claim]:
    """Claim in which state of its play each event of a node happens, and that nothing starts after a failure."""
    claims = []
    where: dict[IntEnum, PlayState] = {
        NodeEvent.SKIP: PlayState.FAILING,
        NodeEvent.EXPIRE: PlayState.CLOSING,
        NodeEvent.CUT: PlayState.PENDING,
    }
    for state, event, to, guard in _entries(node):
        happens = _conj(f"(> n{state:d} 0)", _may(guard, PLAY_GUARDS))
        name = _entry_name(node, state, event, to)
        if to in (NodeState.READY, NodeState.DISPATCHED):
            claims.append(Claim(f"{name} can happen after a failure", _conj(happens, f"(>= {FAILURES} 1)")))
            needs = f"(= p {PlayState.ACTIVE:d})"
            claims.append(Claim(f"{name} can happen in a play that is not active", _conj(happens, f"(not {needs})")))
        if event in where:
            needs = f"(= p {where[event]:d})"
            words = f"in a play that is not {_name(where[event])}"
            claims.append(Claim(f"{name} can happen {words}", _conj(happens, f"(not {needs})")))
    return claims


def _stuck(node: Machine, play: Machine, moves: Sequence[Move]) -> Claim:
    """Claim that a play that is not over can go on by itself; deadlines and cuts come from outside.

    Service ends, time passes, and the acyclicity lemma (G2, G3): an active play with blocked nodes, none ready, none in
    flight and no failure has a blocked node whose edges have all fired.
    """
    outside = {(node.name, NodeEvent.CUT), (play.name, PlayEvent.DEADLINE)}
    tables = {node.name: node, play.name: play}
    sure = []
    for move in moves:
        assert move.entry is not None
        machine, state, event = move.entry
        if (machine, event) in outside:
            continue
        there = f"(> n{state:d} 0)" if machine == node.name else f"(= p {state:d})"
        sure.append(_conj(there, _must(tables[machine].table[state][event].guard, PLAY_GUARDS)))
    quiet = f"(= 0 (+ {_n(NodeState.READY)} {_n(NodeState.DISPATCHED)} {FAILURES}))"
    assumed = _conj(
        f"(=> (> {_n(NodeState.READY)} 0) time)", f"(=> (and {quiet} (> {_n(NodeState.BLOCKED)} 0)) releasable)"
    )
    over = _conj(_in("p", sorted(play.terminal)), f"(= 0 {_WAITING})")
    return Claim("a reachable state is stuck", _conj(assumed, f"(not {over})", f"(not {_disj(sure)})"))


def play_model(node: Machine, play: Machine) -> Model:
    """Return a play of any number of nodes, which are only counted."""
    moves = [*_node_moves(node, play), *_play_moves(play)]
    start = {name: "0" for name in _PLAY_VARIABLES if name != "N"}
    start["p"], start[f"n{node.initial:d}"] = f"{play.initial:d}", "N"
    return Model(
        name="play",
        variables=dict.fromkeys(_PLAY_VARIABLES, "Int"),
        inputs={"releasable": "Bool", "time": "Bool", "first": "Bool"},
        initial=_conj("(>= N 1)", *(f"(= {name} {value})" for name, value in start.items())),
        invariant=_play_invariant(play),
        moves=tuple(moves),
        claims=(*_places(node), *_progress(node, play), _stuck(node, play, moves)),
        # A play's event of a failure comes with the end of a node, and those are bounded.
        endless=(_endless(node, []), _endless(play, [(None, PlayEvent.NODE_FAILED)])),
    )


def node_model(node: Machine) -> Model:
    """Return one node and its clock: no dispatch before its edges fired and its time came."""
    meaning = {"all_edges_fired": "fired", "due": "come"}
    s, e = NodeState, NodeEvent
    begun = [s.DISPATCHED, s.COMPLETED, s.FAILED, s.CANCELED]
    clock = [
        Move("the last edge fires", None, "(not fired)", {"fired": "true"}),
        Move("the ready time comes", None, "(and fired (not come))", {"come": "true"}),
    ]
    return Model(
        name="node",
        variables={"s": "Int", "fired": "Bool", "come": "Bool"},
        inputs={},
        initial=_conj(f"(= s {node.initial:d})", "(not fired)", "(not come)"),
        invariant={
            "a node has a state": _in("s", list(s)),
            "the ready time comes after the edges": "(=> come fired)",
            "a ready node's edges have fired": f"(=> (= s {s.READY:d}) fired)",
            "what was dispatched was due": f"(=> {_in('s', begun)} come)",
        },
        moves=(*_table_moves(node, {}, meaning), *clock),
        claims=(
            _accepts(node, e.RELEASE, meaning, f"(and (= s {s.BLOCKED:d}) fired)", "though all edges fired"),
            _accepts(node, e.DISPATCH, meaning, f"(and (= s {s.READY:d}) come)", "though the node is due"),
        ),
    )


def lane_model(lane: Machine) -> Model:
    """Return any number of lanes, counted: each occupied one has one play that has not settled.

    `open` counts the plays that were given to a lane and have not settled, `gone` the events that retire a lane.
    """
    s, e = LaneState, LaneEvent
    counters = {state: f"l{state:d}" for state in s}
    meaning = {"all_over": "all_over"}
    effects: Effects = {
        e.ADMIT: {"open": "(+ open 1)"},
        e.PLAY_SETTLED: {"open": "(- open 1)"},
        e.EXHAUSTED: {"gone": "(+ gone 1)"},
        e.DEADLINE: {"gone": "(+ gone 1)"},
    }
    moves, claims = [], []
    for state, event, to, guard in _entries(lane):
        updates = {f"l{state:d}": f"(- l{state:d} 1)"}
        updates[f"l{to:d}"] = f"(+ {updates.get(f'l{to:d}', f'l{to:d}')} 1)"
        updates |= effects.get(event, {})
        enabled = _conj(f"(> l{state:d} 0)", _may(guard, meaning))
        name = _entry_name(lane, state, event, to)
        moves.append(Move(name, (lane.name, state, event), enabled, updates))
        if state == s.OCCUPIED:
            claims.append(Claim(f"{name} can happen with requests in flight", _conj(enabled, "(not all_over)")))
    for state, event, when, words in (
        (s.IDLE, e.ADMIT, "true", "a play"),
        (s.IDLE, e.EXHAUSTED, "true", "the end of the plays"),
        (s.IDLE, e.DEADLINE, "true", "the deadline"),
        (s.OCCUPIED, e.PLAY_SETTLED, "all_over", "the end of its play"),
    ):
        rule = lane.table[state].get(event)
        sure = _must(rule.guard, meaning) if rule is not None else "false"
        denial = _conj(f"(> l{state:d} 0)", when, f"(not {sure})")
        claims.append(Claim(f"a lane that is {_name(state)} refuses {words}", denial))
    others = [name for state, name in counters.items() if state != lane.initial]
    return Model(
        name="lane",
        variables=dict.fromkeys(("lanes", "open", "gone", *counters.values()), "Int"),
        inputs={"all_over": "Bool"},
        initial=_conj(
            "(>= lanes 1)", f"(= l{lane.initial:d} lanes)", *(f"(= {name} 0)" for name in (*others, "open", "gone"))
        ),
        invariant={
            "lanes are neither lost nor made": f"(= lanes (+ {' '.join(counters.values())}))",
            "counts are counts": _conj(*(f"(>= {name} 0)" for name in (*counters.values(), "open", "gone"))),
            "an occupied lane has one open play": f"(= open {counters[s.OCCUPIED]})",
            "a retired lane stays so": f"(= gone {counters[s.RETIRED]})",
        },
        moves=tuple(moves),
        claims=tuple(claims),
        # The plays bound how often a lane is occupied.
        endless=(_endless(lane, [(s.IDLE, e.ADMIT)]),),
    )


# -------------------------------------------------------------------------------------------------------------- phase


def phase_model(phase: Machine) -> Model:
    """Return one run: what is left of its preparation, and whether it was opened, closed and ended in that order."""
    s, e = PhaseState, PhaseEvent
    ready = "(and (= primers 0) (= warmups 0) (not failed) (= work 0))"
    meaning = {
        "primers_ended": "(= primers 0)",
        "warmups_ended": "(and (= primers 0) (= warmups 0))",
        "all_lanes_prepared": ready,
        "preparation_failed": "(and failed (= work 0))",
        **{name: name for name in ("profile_over", "plays_settled", "grace_over", "run_at_rest")},
    }
    inputs = dict.fromkeys(("profile_over", "plays_settled", "grace_over", "run_at_rest"), "Bool")
    flags = {e.PRIMED: "primed", e.WARMED: "warmed", e.OPEN: "opened", e.DEADLINE: "closed", e.GRACE_OVER: "spent"}
    flags |= {e.SETTLED: "ended", e.PREPARATION_FAILED: "given_up"}
    names = list(dict.fromkeys(flags.values()))
    effects: Effects = {event: {flag: f"(+ {flag} 1)"} for event, flag in flags.items()}
    alive = "(< s 3)"
    steps = [
        Move("a primer ends", None, _conj(alive, "(> primers 0)"), {"primers": "(- primers 1)"}),
        Move("a warmup ends", None, _conj(alive, "(> warmups 0)"), {"warmups": "(- warmups 1)"}),
        Move("a request of the preparation fails", None, alive, {"failed": "true"}),
        Move("servers have something to do", None, alive, {"work": "(+ work 1)"}),
        Move("servers have done something", None, "(> work 0)", {"work": "(- work 1)"}),
    ]

    def exactly(flag: str, states: Sequence[PhaseState]) -> str:
        return f"(=> (not (= s {s.INVALID:d})) (= {flag} (ite {_in('s', states)} 1 0)))"

    opened = [s.PROFILE, s.GRACE, s.DRAIN, s.DONE]
    claims = [*_only(phase, e.OPEN, meaning, ready, "before all lanes are prepared")]
    claims += _only(phase, e.PRIMED, meaning, "(= primers 0)", "before the primers end")
    claims += _only(phase, e.WARMED, meaning, "(= warmups 0)", "before the preparation ends")
    claims += _only(phase, e.PREPARATION_FAILED, meaning, "(and failed (= work 0))", "without a failure, or too early")
    claims += _only(phase, e.DEADLINE, meaning, "profile_over", "before the profile is over")
    claims += _only(phase, e.GRACE_OVER, meaning, "grace_over", "before the grace is over")
    settled = f"(ite (= s {s.PROFILE:d}) plays_settled run_at_rest)"
    claims += _only(phase, e.SETTLED, meaning, settled, "with something under way")
    for state, event, when in (
        (s.PRIMER, e.PRIMED, "(= primers 0)"),
        (s.WARMUP, e.WARMED, "(and (= primers 0) (= warmups 0))"),
        (s.BARRIER, e.OPEN, ready),
        *((state, e.PREPARATION_FAILED, "(and failed (= work 0))") for state in (s.PRIMER, s.WARMUP, s.BARRIER)),
        (s.PROFILE, e.DEADLINE, "profile_over"),
        (s.PROFILE, e.SETTLED, "plays_settled"),
        (s.GRACE, e.GRACE_OVER, "grace_over"),
        (s.GRACE, e.SETTLED, "run_at_rest"),
        (s.DRAIN, e.SETTLED, "run_at_rest"),
    ):
        claims.append(_accepts(phase, event, meaning, f"(and (= s {state:d}) {when})", f"in {_name(state)}"))
    return Model(
        name="phase",
        variables={"s": "Int", "primers": "Int", "warmups": "Int", "work": "Int", "failed": "Bool"}
        | dict.fromkeys(names, "Int"),
        inputs=inputs,
        initial=_conj(
            f"(= s {phase.initial:d})",
            *(f"(>= {name} 0)" for name in ("primers", "warmups", "work")),
            "(not failed)",
            *(f"(= {name} 0)" for name in names),
        ),
        invariant={
            "a run has a phase": _in("s", list(s)),
            "counts are counts": _conj(*(f"(>= {name} 0)" for name in ("primers", "warmups", "work", *names))),
            "no warmup phase before the primers end": f"(=> {_in('s', [s.WARMUP, s.BARRIER, *opened])} (= primers 0))",
            "no barrier before the warmups end": f"(=> {_in('s', [s.BARRIER, *opened])} (= warmups 0))",
            "a measured run has prepared": f"(=> {_in('s', opened)} (not failed))",
            "phases come in order": _conj(
                exactly("primed", [s.WARMUP, s.BARRIER, *opened]),
                exactly("warmed", [s.BARRIER, *opened]),
                exactly("opened", opened),
                f"(=> (= s {s.PROFILE:d}) (= closed 0))",
                f"(=> {_in('s', [s.GRACE, s.DRAIN])} (= closed 1))",
                "(<= closed 1)",
                f"(=> {_in('s', [s.PROFILE, s.GRACE])} (= spent 0))",
                f"(=> (= s {s.DRAIN:d}) (= spent 1))",
                f"(= ended (ite (= s {s.DONE:d}) 1 0))",
                f"(=> {_in('s', [s.PRIMER, s.WARMUP, s.BARRIER])} (and (= closed 0) (= spent 0)))",
                "(<= spent closed)",
            ),
            "an invalid run was given up before it opened": _conj(
                f"(= given_up (ite (= s {s.INVALID:d}) 1 0))",
                f"(=> (= s {s.INVALID:d}) (and failed (= opened 0) (= closed 0)))",
            ),
        },
        moves=(*_table_moves(phase, effects, meaning), *steps),
        claims=tuple(claims),
        endless=(_endless(phase, []),),
    )


# ------------------------------------------------------------------------------------------------------------ request

# Where an engine request is.
NOWHERE, QUEUED, SEATED = 0, 1, 2


def request_model(request: Machine) -> Model:
    """Return one engine request: its place, its memory, and how it ended.

    `prefill` and `decode` say which role its worker has; without either it is aggregated. `silent` says that it asks
    for no token, `memory` that it holds KV, `ran` that it was admitted; `end` is one more than the event that ended it.
    """
    s, e = RequestState, RequestEvent
    guards = ("fits", "never_fits", "over_context", "all_generated", "outgrew_pool")
    meaning = {name: name for name in guards}
    live = [state for state in s if state < s.FINISHED]
    done: dict[str, str] = {"place": f"{NOWHERE}", "memory": "false"}
    effects: dict[IntEnum, Mapping[str, str]] = {
        e.PLACE: {"worker": "true"},
        e.ENQUEUE: {"place": f"{QUEUED}"},
        e.LOAD: {"memory": "true"},
        e.ADMIT: {"place": f"{SEATED}", "memory": "true", "ran": "true"},
        e.PREEMPT: {"place": f"{QUEUED}", "memory": "false"},
        e.FINISH: {**done, "memory": "prefill"},
    }
    effects |= dict.fromkeys((e.REJECT, e.FAIL, e.CANCEL), done)
    for event in (e.FINISH, e.REJECT, e.FAIL, e.CANCEL):
        effects[event] = {**effects[event], "end": f"{event + 1:d}"}
    shape = {  # worker, place, memory
        s.QUEUED: ("(not worker)", NOWHERE, "(not memory)"),
        s.PLACED: ("worker", NOWHERE, "(=> memory decode)"),
        s.WAITING: ("worker", QUEUED, "(=> memory decode)"),
        s.LOADING: ("worker", QUEUED, "memory"),
        s.RUNNING: ("worker", SEATED, "(or memory silent)"),
        s.PREEMPTED: ("worker", QUEUED, "(not memory)"),
    }
    ends = {s.FINISHED: e.FINISH, s.REJECTED: e.REJECT, s.FAILED: e.FAIL, s.CANCELED: e.CANCEL}
    invariant = {
        "a request has a state": _in("s", list(s)),
        **{
            f"what a request holds that is {_name(state)}": f"(=> (= s {state:d}) {_conj(w, f'(= place {place})', m)})"
            for state, (w, place, m) in shape.items()
        },
        "nothing is held after an end, but the source of a handoff": _conj(
            f"(=> (>= s {s.FINISHED:d}) (= place {NOWHERE}))",
            f"(=> (and (>= s {s.FINISHED:d}) memory) (and prefill (= s {s.FINISHED:d})))",
        ),
        "each end has its event": _conj(
            f"(=> {_in('s', live)} (= end 0))",
            *(f"(=> (= s {state:d}) (= end {event + 1:d}))" for state, event in ends.items()),
        ),
        "only what ran is preempted or finishes": _conj(
            f"(=> {_in('s', [s.QUEUED, s.PLACED, s.WAITING, s.REJECTED])} (not ran))",
            f"(=> {_in('s', [s.RUNNING, s.PREEMPTED, s.FINISHED, s.FAILED])} ran)",
        ),
        "a request has one role": "(not (and prefill decode))",
    }
    claims = [*_only(request, e.FINISH, meaning, f"(or (= place {SEATED}) all_generated)", "without a seat")]
    claims += _only(request, e.ADMIT, meaning, "(or fits memory)", "without room")
    claims += _only(request, e.LOAD, meaning, "fits", "without room")
    claims += _only(
        request, e.REJECT, meaning, "(and (or never_fits over_context) (not ran))", "to one that could fit, or ran"
    )
    claims += _only(request, e.FAIL, meaning, "(and outgrew_pool ran)", "to one that could go on")
    claims += _only(request, e.PREEMPT, meaning, f"(= place {SEATED})", "without a seat")
    for event in ends.values():
        claims += _only(request, event, meaning, "(= end 0)", "after the end")
    claims += [
        *(_accepts(request, e.CANCEL, meaning, f"(= s {state:d})", f"while {_name(state)}") for state in live),
        _accepts(request, e.PLACE, meaning, f"(= s {s.QUEUED:d})", "to a new request"),
        _accepts(request, e.ENQUEUE, meaning, f"(= s {s.PLACED:d})", "to a placed request"),
        *(
            _accepts(request, event, meaning, f"(and (= s {state:d}) fits)", f"with room, while {_name(state)}")
            for state in (s.WAITING, s.PREEMPTED)
            for event in (e.ADMIT, e.LOAD)
        ),
        _accepts(request, e.ADMIT, meaning, f"(= s {s.LOADING:d})", "when its load has ended"),
        _accepts(request, e.REJECT, meaning, f"(and (= s {s.WAITING:d}) never_fits)", "though it never fits"),
        _accepts(request, e.REJECT, meaning, f"(and (= s {s.QUEUED:d}) over_context)", "though its prompt is too long"),
        _accepts(
            request, e.FINISH, meaning, f"(and (= s {s.PREEMPTED:d}) all_generated)", "though it has its last token"
        ),
        *(
            _accepts(request, e.FAIL, meaning, f"(and (= s {state:d}) outgrew_pool)", f"while {_name(state)}")
            for state in (s.RUNNING, s.PREEMPTED)
        ),
        *(
            _accepts(request, event, meaning, f"(= s {s.RUNNING:d})", "while it runs")
            for event in (e.FINISH, e.PREEMPT)
        ),
    ]
    steps = [
        Move(
            "a destination is reserved",
            None,
            _conj("decode", f"(= s {s.PLACED:d})", "(not memory)"),
            {"memory": "true"},
        ),
        Move(
            "one that asks for no token lets go before its pass ends",
            None,
            _conj("silent", f"(= s {s.RUNNING:d})", "memory"),
            {"memory": "false"},
        ),
        Move("a source is released", None, _conj("prefill", f"(= s {s.FINISHED:d})", "memory"), {"memory": "false"}),
    ]
    return Model(
        name="request",
        variables={"s": "Int", "place": "Int", "end": "Int"}
        | dict.fromkeys(("worker", "memory", "ran", "prefill", "decode", "silent"), "Bool"),
        inputs=dict.fromkeys(guards, "Bool"),
        initial=_conj(
            f"(= s {request.initial:d})",
            f"(= place {NOWHERE})",
            "(= end 0)",
            "(not worker)",
            "(not memory)",
            "(not ran)",
            "(not (and prefill decode))",
        ),
        invariant=invariant,
        moves=(*_table_moves(request, effects, meaning), *steps),
        claims=tuple(claims),
        # Others' needs bound how often a request is pushed out.
        endless=(_endless(request, [(s.RUNNING, e.PREEMPT)]),),
    )


# ------------------------------------------------------------------------------------------------------------ handoff


def handoff_model(handoff: Machine) -> Model:
    """Return one logical request in prefill/decode: which of its steps were taken, and how it ended."""
    s, e = HandoffState, HandoffEvent
    meaning = {"fits": "fits", "zero_tokens": "zero_tokens"}
    steps = {
        e.SUBMIT: "submitted",
        e.PREFILL_DONE: "computed",
        e.RESERVE: "asked",
        e.GRANT: "granted",
        e.TRANSFER: "moving",
        e.ACTIVATE: "landed",
        e.ADMIT: "seated",
    }
    ends = {e.COMPLETE: s.COMPLETED, e.COMPLETE_EMPTY: s.COMPLETED, e.FAIL: s.FAILED, e.CANCEL: s.CANCELED}
    effects: dict[IntEnum, Mapping[str, str]] = {event: {fact: "true"} for event, fact in steps.items()}
    effects[e.RESERVE] = {"asked": "true", "seated": "false"}  # out of its seat, if it had one
    effects |= {event: {"end": f"{event + 1:d}"} for event in ends}
    # What the other role has done by then: vLLM computes the prompt first, SGLang reserves the destination first.
    source_first = handoff.name == "handoff_source_first"
    elsewhere, here = ("(not asked)", "computed") if source_first else ("granted", "(not submitted)")
    shape = {
        s.QUEUED: _conj(*(f"(not {fact})" for fact in steps.values())),
        s.PREFILLING: f"(and submitted (not computed) {elsewhere})",
        s.PREFILLED: f"(and computed (not moving) {elsewhere})",
        s.RESERVING: f"(and asked (not granted) {here})",
        s.RESERVED: f"(and granted (not moving) {here})",
        s.TRANSFERRING: "(and moving (not landed))",
        s.DECODE_WAITING: "(and landed (not seated))",
        s.DECODING: "seated",
        s.COMPLETED: "seated",
    }
    live = [state for state in s if state < s.COMPLETED]
    needs = {
        e.SUBMIT: "(not submitted)",
        e.PREFILL_DONE: "(and submitted (not computed))",
        e.RESERVE: "(or (not asked) seated)",
        e.GRANT: "(and asked (not granted) fits)",
        e.TRANSFER: "(and computed granted (not moving))",
        e.ACTIVATE: "(and moving (not landed))",
        e.ADMIT: "(and landed (not seated) fits)",
        e.COMPLETE: "(and seated (= end 0))",
        e.COMPLETE_EMPTY: "(and seated zero_tokens (= end 0))",
        e.FAIL: "(= end 0)",
        e.CANCEL: "(= end 0)",
    }
    claims = [
        claim for event, need in needs.items() for claim in _only(handoff, event, meaning, need, "out of its place")
    ]
    for state in live:
        claims += [
            _accepts(handoff, event, meaning, f"(= s {state:d})", f"while {_name(state)}")
            for event in (e.FAIL, e.CANCEL)
        ]
        onward = [
            _must(rule.guard, meaning)
            for event, rule in handoff.table[state].items()
            if event not in (e.FAIL, e.CANCEL)
        ]
        room = "fits" if state in (s.RESERVING, s.DECODE_WAITING) else "true"
        stuck = _conj(f"(= s {state:d})", room, f"(not {_disj(onward)})")
        claims.append(Claim(f"{handoff.name}: {_name(state)} is stuck", stuck))
    decoding = f"(= s {s.DECODING:d})"
    claims += [_accepts(handoff, event, meaning, decoding, "while decoding") for event in (e.COMPLETE, e.RESERVE)]
    claims.append(_accepts(handoff, e.COMPLETE_EMPTY, meaning, f"(and {decoding} zero_tokens)", "without a token"))
    ended = [f"(=> {_in('s', live)} (= end 0))"]
    ended += [
        f"(=> (= s {state:d}) {_disj(f'(= end {event + 1:d})' for event, to in ends.items() if to == state)})"
        for state in (s.COMPLETED, s.FAILED, s.CANCELED)
    ]
    return Model(
        name=handoff.name,
        variables={"s": "Int", "end": "Int"} | dict.fromkeys(steps.values(), "Bool"),
        inputs=dict.fromkeys(meaning, "Bool"),
        initial=_conj(f"(= s {handoff.initial:d})", "(= end 0)", shape[s.QUEUED]),
        invariant={
            "a handoff has a state": _in("s", list(s)),
            **{f"what was done of one that is {_name(st)}": f"(=> (= s {st:d}) {f})" for st, f in shape.items()},
            "steps come in order": _conj(
                "(=> computed submitted)",
                "(=> granted asked)",
                "(=> moving (and computed granted))",
                "(=> landed moving)",
                "(=> seated landed)",
            ),
            "each end has its event": _conj(*ended),
        },
        moves=tuple(_table_moves(handoff, effects, meaning)),
        claims=tuple(claims),
        # Others' needs bound how often a request is pushed out of its seat.
        endless=(_endless(handoff, [(s.DECODING, e.RESERVE)]),),
    )


# ------------------------------------------------------------------------------------------------------------- blocks

# Which counter of the pool a block is in, by the name of its state.
POOL_COUNTER: Mapping[str, str] = {
    "FREE": "free",
    "PRIVATE": "private",
    "CACHED_ACTIVE": "active",
    "READING": "active",
    "CACHED_IDLE": "idle",
    "READING_IDLE": "idle",
    "LOADING": "loading",
}


def pool_model(block: Machine) -> Model:
    """Return a pool of any number of blocks, which are only counted."""
    counters = list(dict.fromkeys(POOL_COUNTER.values()))
    moves = []
    for state, event, to, _ in _entries(block):
        source, target = POOL_COUNTER.get(state.name), POOL_COUNTER.get(to.name)
        updates: dict[str, str] = {}
        if source != target:
            updates |= {source: f"(- {source} 1)"} if source else {}
            updates |= {target: f"(+ {target} 1)"} if target else {}
        enabled = f"(>= {source} 1)" if source else "true"
        moves.append(Move(_entry_name(block, state, event, to), (block.name, state, event), enabled, updates))
    return Model(
        name="pool",
        variables=dict.fromkeys(("capacity", *counters), "Int"),
        inputs={},
        initial=_conj("(>= capacity 1)", "(= free capacity)", *(f"(= {c} 0)" for c in counters if c != "free")),
        invariant={
            "blocks are neither lost nor made": f"(= capacity (+ {' '.join(counters)}))",
            "counts are counts": _conj(*(f"(>= {c} 0)" for c in counters)),
        },
        moves=tuple(moves),
        claims=(),
    )


def block_model(block: Machine) -> Model:
    """Return one block: its references, whether it is cached under a key, loaded into, and read by a store."""
    s, e = BlockState, BlockEvent
    meaning = {"cache_on": "cache_on", "last_reference": "(= refs 1)", "no_free_block": "short"}
    one_more, one_less = {"refs": "(+ refs 1)"}, {"refs": "(- refs 1)"}
    effects: Effects = {
        e.ALLOCATE: one_more,
        e.RESERVE_LOAD: {**one_more, "loads": "true"},
        e.REUSE: one_more,
        e.RELEASE: {**one_less, "loads": "false"},
        e.FILL: {"keyed": "true"},
        e.LOADED: {"keyed": "true", "loads": "false"},
        # A store may go on reading where the block was: the pass that writes there waits for it.
        e.EVICT: {"keyed": "false", "reads": "false"},
        e.START_READ: {"reads": "true"},
        e.READ_DONE: {"reads": "false"},
    }
    shape = {  # references at least and at most, whether keyed, loaded into, read
        s.FREE: ("(= refs 0)", False, False, False),
        s.PRIVATE: ("(= refs 1)", False, False, False),
        s.CACHED_ACTIVE: ("(>= refs 1)", True, False, False),
        s.CACHED_IDLE: ("(= refs 0)", True, False, False),
        s.LOADING: ("(= refs 1)", False, True, False),
        s.READING: ("(>= refs 1)", True, False, True),
        s.READING_IDLE: ("(= refs 0)", True, False, True),
    }

    def flags(*values: bool) -> list[str]:
        return [n if v else f"(not {n})" for n, v in zip(("keyed", "loads", "reads"), values, strict=True)]

    referred = [s.PRIVATE, s.CACHED_ACTIVE, s.LOADING, s.READING]
    last = "(= refs 1)"
    claims = [*_only(block, e.FILL, meaning, "cache_on", "with caching off, or to a block that is not full")]
    claims += _only(block, e.EVICT, meaning, "(and short (= refs 0))", "to a block in use, or with enough free ones")
    claims += _only(block, e.RELEASE, meaning, last, "with a wrong number of references")
    claims += _only(block, e.START_READ, meaning, "(and keyed (not reads) (>= refs 1))", "to a block nobody holds")
    claims += _only(block, e.READ_DONE, meaning, "reads", "without a read")
    claims += _only(block, e.LOADED, meaning, "loads", "without a load")
    claims += _only(block, e.REUSE, meaning, "(and keyed (= refs 0))", "to a block that is not idle")
    for event in (e.ALLOCATE, e.RESERVE_LOAD):
        claims += _only(block, event, meaning, "(and (not keyed) (= refs 0))", "to a block that is not free")
    claims += [
        *(_accepts(block, e.RELEASE, meaning, f"(and (= s {st:d}) {last})", f"while {_name(st)}") for st in referred),
        *(_accepts(block, x, meaning, f"(= s {s.FREE:d})", "to a free block") for x in (e.ALLOCATE, e.RESERVE_LOAD)),
        _accepts(block, e.FILL, meaning, f"(and (= s {s.PRIVATE:d}) cache_on)", "to a full block"),
        _accepts(block, e.LOADED, meaning, f"(= s {s.LOADING:d})", "to a loaded block"),
        _accepts(block, e.START_READ, meaning, f"(= s {s.CACHED_ACTIVE:d})", "to a cached block"),
    ]
    for state in (s.CACHED_IDLE, s.READING_IDLE):
        claims.append(_accepts(block, e.REUSE, meaning, f"(= s {state:d})", f"while {_name(state)}"))
        claims.append(_accepts(block, e.EVICT, meaning, f"(and (= s {state:d}) short)", f"while {_name(state)}"))
    claims += [
        _accepts(block, e.READ_DONE, meaning, f"(= s {st:d})", "while read") for st in (s.READING, s.READING_IDLE)
    ]
    shared = [
        Move("one more shares the block", None, "(and keyed (>= refs 1))", one_more),
        Move("one of several lets go of the block", None, "(> refs 1)", one_less),
    ]
    return Model(
        name="block",
        variables={"s": "Int", "refs": "Int", "keyed": "Bool", "loads": "Bool", "reads": "Bool"},
        inputs={"cache_on": "Bool", "short": "Bool"},
        initial=_conj(f"(= s {block.initial:d})", "(= refs 0)", *flags(False, False, False)),
        invariant={
            "a block has a state": _in("s", list(s)),
            **{
                f"what refers to a block that is {_name(state)}": f"(=> (= s {state:d}) {_conj(refs, *flags(*facts))})"
                for state, (refs, *facts) in shape.items()
            },
        },
        moves=(*_table_moves(block, effects, meaning), *shared),
        claims=tuple(claims),
    )


def host_block_model(host: Machine) -> Model:
    """Return one block of host memory: its pins, and whether a store of it has begun and ended."""
    s, e = HostBlockState, HostBlockEvent
    meaning = {"host_room": "host_room", "unpinned": "(= pins 0)", "last_reference": "(= pins 1)"}
    effects: Effects = {
        e.PREPARE_STORE: {"stores": "true"},
        e.STORE_DONE: {"stores": "false", "there": "true"},
        e.PIN: {"pins": "(+ pins 1)"},
        e.UNPIN: {"pins": "(- pins 1)"},
        e.EVICT: {"there": "false"},
    }
    shape = {
        s.ABSENT: "(and (= pins 0) (not stores) (not there))",
        s.PENDING_STORE: "(and (= pins 0) stores (not there))",
        s.RESIDENT: "(and (= pins 0) (not stores) there)",
        s.PINNED: "(and (>= pins 1) (not stores) there)",
    }
    claims = [*_only(host, e.EVICT, meaning, "(and there (= pins 0))", "to a block that is pinned, or not there")]
    claims += _only(host, e.PIN, meaning, "(and there (= pins 0))", "to a block that is pinned, or not there")
    claims += _only(host, e.UNPIN, meaning, "(= pins 1)", "with pins left")
    claims += _only(host, e.PREPARE_STORE, meaning, "(and host_room (not stores) (not there))", "without room")
    claims += _only(host, e.STORE_DONE, meaning, "stores", "without a store")
    claims += [
        _accepts(host, e.PREPARE_STORE, meaning, f"(and (= s {s.ABSENT:d}) host_room)", "with room"),
        _accepts(host, e.STORE_DONE, meaning, f"(= s {s.PENDING_STORE:d})", "at the end of a store"),
        _accepts(host, e.PIN, meaning, f"(= s {s.RESIDENT:d})", "to a load"),
        _accepts(host, e.EVICT, meaning, f"(= s {s.RESIDENT:d})", "to a block that is there"),
        _accepts(host, e.UNPIN, meaning, f"(and (= s {s.PINNED:d}) (= pins 1))", "at the end of the last load"),
    ]
    shared = [
        Move("one more load reads the block", None, "(and there (>= pins 1))", {"pins": "(+ pins 1)"}),
        Move("one load of several has read the block", None, "(> pins 1)", {"pins": "(- pins 1)"}),
    ]
    return Model(
        name="host_block",
        variables={"s": "Int", "pins": "Int", "stores": "Bool", "there": "Bool"},
        inputs={"host_room": "Bool"},
        initial=_conj(f"(= s {host.initial:d})", shape[s.ABSENT]),
        invariant={
            "a host block has a state": _in("s", list(s)),
            **{f"what is known of one that is {_name(st)}": f"(=> (= s {st:d}) {f})" for st, f in shape.items()},
        },
        moves=(*_table_moves(host, effects, meaning), *shared),
        claims=tuple(claims),
    )


def transfer_model(transfer: Machine) -> Model:
    """Return one movement of blocks: done only when it was submitted, has begun, and was not given up."""
    s, e = TransferState, TransferEvent
    flags = {e.SUBMIT: "submitted", e.START: "begun", e.FINISH: "moved", e.DROP: "dropped"}
    effects: Effects = {event: {flag: "true"} for event, flag in flags.items()}
    shape = {
        s.PREPARED: "(and (not submitted) (not begun) (not moved) (not dropped))",
        s.SUBMITTED: "(and submitted (not begun) (not moved) (not dropped))",
        s.MOVING: "(and submitted begun (not moved) (not dropped))",
        s.DONE: "(and submitted begun moved (not dropped))",
        s.DROPPED: "(and dropped (not moved))",
    }
    meaning: dict[str, str] = {}
    claims = [*_only(transfer, e.FINISH, meaning, "(and begun (not dropped))", "before it moves")]
    claims += _only(transfer, e.START, meaning, "(and submitted (not begun) (not dropped))", "out of its place")
    claims += _only(transfer, e.SUBMIT, meaning, "(and (not submitted) (not dropped))", "out of its place")
    claims += _only(transfer, e.DROP, meaning, "(and (not moved) (not dropped))", "after its end")
    claims += [
        _accepts(transfer, e.SUBMIT, meaning, f"(= s {s.PREPARED:d})", "once it is prepared"),
        _accepts(transfer, e.START, meaning, f"(= s {s.SUBMITTED:d})", "once it is submitted"),
        _accepts(transfer, e.FINISH, meaning, f"(= s {s.MOVING:d})", "once it moves"),
        *(
            _accepts(transfer, e.DROP, meaning, f"(= s {state:d})", f"while {_name(state)}")
            for state in (s.PREPARED, s.SUBMITTED, s.MOVING)
        ),
    ]
    return Model(
        name="transfer",
        variables={"s": "Int"} | dict.fromkeys(flags.values(), "Bool"),
        inputs={},
        initial=_conj(f"(= s {transfer.initial:d})", shape[s.PREPARED]),
        invariant={
            "a transfer has a state": _in("s", list(s)),
            **{f"what was done of one that is {_name(st)}": f"(=> (= s {st:d}) {f})" for st, f in shape.items()},
        },
        moves=tuple(_table_moves(transfer, effects, meaning)),
        claims=tuple(claims),
        endless=(_endless(transfer, []),),
    )
