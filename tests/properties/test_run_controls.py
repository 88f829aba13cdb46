"""Snapshot, warmup and profile beside a naive twin: whole runs on real workers, and the driver step by step.

Both topologies, both engines. In the machine Hypothesis plays the engine, and in prefill/decode it decides, too, how
long engines hold a request that is over for its client.

The twin can be made wrong in five ways; each must show.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from controlled import MS, controlled_loads, expected, observed, steady, steady_pairs
from faulty_controls import FAULTY
from hypothesis import HealthCheck, Phase, assume, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from playproof_kernel import simulate_controlled
from playproof_kernel.driver import instances, play_driver
from playproof_kernel.ground import timers
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.lifecycle import Hold
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance, advance_handoff
from playproof_kernel.runs import phases
from playproof_kernel.runs.controlled_setup import start_controlled
from playproof_kernel.runs.cuts import InvalidSnapshot
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.room import with_room
from playproof_reference.controls import Controls as NaiveControls
from playproof_reference.controls import replay_controlled as naive_controlled
from playproof_spec.certificate import prove
from playproof_spec.deployment import (
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    ProfileSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.digest import graph_digest
from playproof_spec.findings import InvalidInput
from playproof_spec.graph import Graph
from playproof_spec.machines import (
    HandoffEvent,
    LaneState,
    NodeState,
    PhaseState,
    RequestEvent,
)
from playproof_spec.sketch import sketch
from strategies import graphs


def both(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> tuple[Any, Any]:
    """Return what both runs observed; the example is dropped when the trace contradicts itself."""
    try:
        proven = prove(graph)
    except InvalidInput:
        assume(False)
    try:
        ledger = simulate_controlled(proven, deployment, load, capture=True)
    except InvalidSnapshot:
        assert NaiveControls.__dict__["contradictory"]
        assume(False)
    naive = naive_controlled(graph, deployment, load)
    return observed(ledger), expected(naive)


@given(graphs(max_plays=3, max_nodes=5, max_blocks=5), steady() | steady_pairs(), controlled_loads)
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_runs_equal_the_naive_ones(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    ours, theirs = both(graph, deployment, load)
    for name in theirs:
        assert ours[name] == theirs[name], name


def test_the_first_failure_of_a_play_that_closes_is_its_own() -> None:
    """After the deadline two requests fail at one instant: `grows` outgrows the pool, `long` never had room."""
    rows = [{"request_id": "grows", "input_length": 1, "output_length": 2}, {"request_id": "long", "input_length": 2}]
    graph = sketch([{"play_id": "one", "output_length": 0, **row} for row in rows], block_size=1)
    timing = Timing(TimingKind.FIXED, prefill_ns=7 * MS, decode_ns=2 * MS)
    worker = WorkerSpec(1, 1, max_batched_tokens=1, max_sequences=1, prefix_caching=False, timing=timing)
    profile = ProfileSpec(duration_ns=5 * MS, grace_ns=50 * MS, drain_ns=MS, tree_cap_ns=MS, global_cap_ns=MS)
    load = LoadSpec(lanes=1, snapshot_seed=0, profile=profile)
    ours, theirs = both(graph, DeploymentSpec(1, worker, context_length=8), load)
    assert ours == theirs
    assert [row[1][0] for row in ours["requests"]] == ["failed", "rejected"]
    assert ours["requests"][0][0][4] == ours["requests"][1][0][4]
    assert ours["failures"] == [0]


@given(graphs(max_plays=3, max_nodes=5, max_blocks=5), steady() | steady_pairs(), controlled_loads)
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_macro_steps_change_nothing(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    try:
        proven = prove(graph)
        fast = simulate_controlled(proven, deployment, load, capture=True)
    except InvalidInput:
        assume(False)
    slow = simulate_controlled(proven, deployment, dataclasses.replace(load, macro_steps=False), capture=True)
    assert observed(fast) == observed(slow)
    assert fast.gap_ns.tolist() == slow.gap_ns.tolist()
    assert fast.gap_count.tolist() == slow.gap_count.tolist()


TOPOLOGIES = {"aggregated": steady(), "disaggregated": steady_pairs()}


@pytest.mark.unwatched
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("fault", FAULTY)
def test_a_seeded_fault_shows(fault: type[NaiveControls], topology: str) -> None:
    """The twin with one fault differs from the kernel somewhere among the examples."""
    scenario = st.tuples(graphs(max_plays=3, max_nodes=5, max_blocks=5), TOPOLOGIES[topology], controlled_loads)

    def differs(drawn: tuple[Graph, DeploymentSpec, LoadSpec]) -> bool:
        try:
            proven = prove(drawn[0])
            ledger = simulate_controlled(proven, drawn[1], drawn[2], capture=True)
        except InvalidInput:
            return False
        naive = naive_controlled(*drawn, fault)
        return observed(ledger) != expected(naive)

    hunt = settings(
        max_examples=400, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    try:
        find(scenario, differs, settings=hunt)
    except NoSuchExample:
        pytest.fail(f"no example shows {fault.__name__}")


# The driver, step by step ---------------------------------------------------------------------------------------------


@compiled_entry
def dispatch_next(sim: Any) -> int:
    node = timers.pop_timer(sim)
    play_driver.dispatch(sim, node)
    return node


@compiled_entry
def request_event(sim: Any, node: int, event: int) -> None:
    advance(REQUEST_TABLE, sim.request_state, node, event)


@compiled_entry
def handoff_event(sim: Any, node: int, event: int) -> None:
    advance_handoff(sim, node, event)


@compiled_entry
def hear(sim: Any) -> None:
    play_driver.hear(sim)


@compiled_entry
def let_go(sim: Any, node: int) -> None:
    instances.settle_request(sim, node)


@compiled_entry
def step(sim: Any) -> bool:
    return phases.step(sim)


@compiled_entry
def is_over(sim: Any) -> bool:
    return phases.is_over(sim)


OUTCOMES = {
    "completed": (RequestEvent.PLACE, RequestEvent.ENQUEUE, RequestEvent.ADMIT, RequestEvent.FINISH),
    "rejected": (RequestEvent.PLACE, RequestEvent.ENQUEUE, RequestEvent.REJECT),
    "failed": (RequestEvent.PLACE, RequestEvent.ENQUEUE, RequestEvent.ADMIT, RequestEvent.FAIL),
}
# Source first: what a node's handoff goes through to its end.
HANDOFFS = {
    "completed": (
        *(HandoffEvent.SUBMIT, HandoffEvent.PREFILL_DONE, HandoffEvent.RESERVE, HandoffEvent.GRANT),
        *(HandoffEvent.TRANSFER, HandoffEvent.ACTIVATE, HandoffEvent.ADMIT, HandoffEvent.COMPLETE),
    ),
    "rejected": (HandoffEvent.SUBMIT, HandoffEvent.FAIL),
    "failed": (HandoffEvent.SUBMIT, HandoffEvent.FAIL),
}
# Without seats: the engine is outside, and what it finds of memory is its own business.
ROLE = WorkerSpec(1000, 4, max_sequences=0)
AGGREGATED = DeploymentSpec(1, ROLE, 100_000)
PAIR = DeploymentSpec(1, ROLE, 100_000, DecodeSpec(1, ROLE, TransferSpec(0)))
PREPARING = ("primer", "warmup", "barrier")


class ControlsBesideNaive(RuleBasedStateMachine):
    """Hypothesis plays the engine: it decides when each request ends, how, and when nothing is held of it any more."""

    deployment = AGGREGATED

    @initialize(graph=graphs(max_plays=3, max_nodes=5, max_blocks=3), load=controlled_loads)
    def create(self, graph: Graph, load: LoadSpec) -> None:
        self.naive = NaiveControls(graph, load) if not contradicts(graph, load) else None
        self.held: dict[int, int] = {}  # slots of requests that are over and not settled, by their numbers
        if self.naive is not None:
            self.naive.engaged = self.held.__contains__
            self.sim, _ = start_controlled(graph, graph_digest(graph, shift_floors=False), self.deployment, load)

    @property
    def split(self) -> bool:
        return self.deployment.decode is not None

    def slots(self) -> dict[int, int]:
        """Slots of the requests in flight, by their numbers."""
        flying = np.flatnonzero(self.sim.node_state == NodeState.DISPATCHED)
        return {int(self.sim.static[slot].serial): int(slot) for slot in flying}

    def running(self) -> bool:
        return self.naive is not None and self.naive.phase in ("preparation", "profile", "grace")

    @precondition(lambda self: self.running() and self.naive.due())
    @rule()
    def dispatch(self) -> None:
        assert self.naive is not None
        wanted = self.naive.due()[0]
        slot = dispatch_next(self.sim)
        assert int(self.sim.static[slot].serial) == wanted
        self.naive.dispatch(wanted)

    def move_to(self, now: int) -> None:
        assert self.naive is not None
        self.naive.now = now
        self.sim.run[0].now = now
        self.both_step()

    def both_step(self) -> None:
        assert self.naive is not None
        if self.split and int(self.sim.run[0].seats) < int(self.sim.config[0].lanes):
            self.sim = with_room(self.sim, Stop.SEATS)
        while step(self.sim):
            pass
        before = -1
        while before != len(self.naive.shifts):
            before = len(self.naive.shifts)
            self.naive.step()
        if self.naive.phase == "grace" and self.naive.grace_is_over():
            self.naive.cancel()
            self.naive.settle_canceled(set(self.held))
        if self.naive.phase in ("done", "invalid"):
            waits = self.held and self.naive.phase == "done" and self.naive.load.profile is None
            assert is_over(self.sim) == (not waits)

    @precondition(lambda self: self.running() and not self.naive.due() and self.naive.next_time() is not None)
    @rule()
    def wait_for_what_is_next(self) -> None:
        assert self.naive is not None
        following = self.naive.next_time()
        assert following is not None
        self.move_to(following)

    @precondition(lambda self: self.running() and not self.naive.due() and (self.naive.in_flight() or self.held))
    @rule(later_ns=st.sampled_from([0, 1, 500_000, 1_000_000, 7_000_000]))
    def let_time_pass(self, later_ns: int) -> None:
        assert self.naive is not None
        following = self.naive.next_time()
        now = self.naive.now + later_ns
        self.move_to(now if following is None else min(now, following))

    @precondition(lambda self: self.running() and self.naive.in_flight())
    @rule(data=st.data())
    def requests_end(self, data: st.DataObject) -> None:
        assert self.naive is not None
        ending = data.draw(st.lists(st.sampled_from(self.naive.in_flight()), min_size=1, unique=True))
        kinds = st.sampled_from(["completed"] * 6 + ["rejected", "failed"])
        outcomes = [(number, data.draw(kinds)) for number in ending]
        slots = self.slots()
        for position, (number, outcome) in enumerate(outcomes):
            slot = slots[number]
            for event in OUTCOMES[outcome]:
                request_event(self.sim, slot, event)
            for handoff in HANDOFFS[outcome] if self.split else ():
                handoff_event(self.sim, slot, handoff)
            if self.split and data.draw(st.booleans()):
                self.sim.tickets[slot].hold = Hold.SOURCE
                self.held[number] = slot
            self.sim.live[slot + len(self.sim.node_state) if self.split else slot].generated = 1
            self.sim.feedback[position] = slot
        self.sim.run[0].feedback = len(outcomes)
        hear(self.sim)
        self.naive.hear(outcomes)
        self.both_step()

    @precondition(lambda self: self.running() and self.held)
    @rule(data=st.data())
    def engines_let_go(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        slot = self.held.pop(number)
        assert int(self.sim.static[slot].serial) == number
        self.sim.tickets[slot].hold = Hold.NOTHING
        let_go(self.sim, slot)
        self.both_step()

    @precondition(lambda self: not self.running())
    @rule()
    def nothing_is_left(self) -> None:
        """The end of a run: Hypothesis wants a rule that applies."""

    @invariant()
    def same_requests_in_flight_and_waiting(self) -> None:
        if self.naive is None:
            return
        assert sorted(self.slots()) == sorted(self.naive.in_flight())
        waiting = np.flatnonzero(self.sim.node_state == NodeState.READY)
        ours = {int(self.sim.static[slot].serial): int(self.sim.live[slot].ready) for slot in waiting}
        assert ours == {r.index: r.ready_ns for r in self.naive.requests if r.state == "ready"}

    @invariant()
    def same_phase_and_counts(self) -> None:
        if self.naive is None:
            return
        phase = PhaseState(int(self.sim.phase_state[0])).name.lower()
        assert ("preparation" if phase in PREPARING else phase) == self.naive.phase
        run = self.sim.run[0]
        assert int(run.instances) == len(self.naive.instances)
        assert int(run.unsettled) == len(self.held)
        assert int(run.never_issued) == sum(p.expired for p in self.naive.instances)
        assert int(run.canceled) == sum(r.state == "canceled" for r in self.naive.requests)
        shifts = [(int(s["at"]), int(s.instance), int(s.by), int(s.timers)) for s in self.sim.shifts[: int(run.shifts)]]
        assert shifts == self.naive.shifts

    @invariant()
    def no_more_plays_than_lanes(self) -> None:
        """A lane is occupied exactly while its play has not ended for its client."""
        if self.naive is None:
            return
        live = [p.lane for p in self.naive.instances if p.settled_ns < 0]
        assert len(live) == len(set(live)) <= len(self.sim.lane_state)
        occupied = np.flatnonzero(self.sim.lane_state == LaneState.OCCUPIED).tolist()
        assert occupied == sorted(live)

    @invariant()
    def a_seat_is_free_when_nothing_is_held_of_its_play(self) -> None:
        if self.naive is None or not self.running():
            return
        lasting = [
            p for p in self.naive.instances if p.settled_ns < 0 or any(n in self.held for n in p.requests.values())
        ]
        seats = len(self.sim.plays) - int(self.sim.config[0].corpus_plays)
        assert int(self.sim.run[0].seats) == seats - len(lasting)

    @invariant()
    def identities_are_never_used_twice(self) -> None:
        """Small hash ids collide all the time; keys of two play instances never do."""
        if self.naive is None:
            return
        config, static = self.sim.config[0], self.sim.static
        taken = [play for play in self.sim.plays[int(config.corpus_plays) :] if play.lane >= 0 and play.node_end > 0]
        keys: list[set[int]] = []
        serials = static.serial[int(config.prep_begin) :][: len(self.sim.prep)].tolist()
        for play in taken:
            seat = range(int(play.node_begin), int(play.node_end))
            space = (int(play.ordinal) * int(config.lanes) + int(play.lane)) * int(config.key_span)
            assert {int(static.space[slot]) for slot in seat} == {space}
            serials += [int(static.serial[slot]) for slot in seat]
            keys.append({key for slot in seat for key in self.keys_of(slot)})
        assert len(serials) == len(set(serials))
        assert sum(map(len, keys)) == len(set().union(*keys))

    def keys_of(self, slot: int) -> list[int]:
        static, stride = self.sim.static[slot], int(self.sim.config[0].key_stride)
        runs = self.sim.keys[int(static.key_begin) : int(static.key_end)]
        return [int(static.space) + int(run.first) + i * stride for run in runs for i in range(int(run["count"]))]


class PairBesideNaive(ControlsBesideNaive):
    deployment = PAIR


def contradicts(graph: Graph, load: LoadSpec) -> bool:
    try:
        start_controlled(graph, graph_digest(graph, shift_floors=False), AGGREGATED, load)
    except InvalidSnapshot:
        return True
    return False


TestControlsBesideNaive = ControlsBesideNaive.TestCase
TestControlsBesideNaive.settings = settings(stateful_step_count=60)
TestPairBesideNaive = PairBesideNaive.TestCase
TestPairBesideNaive.settings = settings(stateful_step_count=60)
