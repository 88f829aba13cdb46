"""The driver beside a naive one: edges, delays, floors, failures, lanes and their recycling (invariants 1, 4–8)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from playproof_kernel.corpus.compiled import compile_graph
from playproof_kernel.driver import play_driver
from playproof_kernel.ground import timers
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance
from playproof_kernel.handoff import handoffs
from playproof_kernel.runs.setup import new_sim
from playproof_reference.driver import Driver as NaiveDriver
from playproof_spec.deployment import DeploymentSpec, LoadSpec, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.machines import LaneState, NodeState, PlayState, RequestEvent
from strategies import graphs, loads


# Leaves of the driver are compiled when a compiled function calls them; these are callers for the test.
@compiled_entry
def dispatch_next(sim: Any) -> int:
    node = timers.pop_timer(sim)
    play_driver.dispatch(sim, node)
    handoffs.place(sim, node)
    return node


@compiled_entry
def request_event(sim: Any, node: int, event: int) -> None:
    advance(REQUEST_TABLE, sim.request_state, node, event)


@compiled_entry
def hear(sim: Any) -> None:
    play_driver.hear(sim)


@compiled_entry
def next_timer(sim: Any) -> int:
    return timers.next_timer(sim)


OUTCOMES = {
    "completed": (RequestEvent.ENQUEUE, RequestEvent.ADMIT, RequestEvent.FINISH),
    "rejected": (RequestEvent.ENQUEUE, RequestEvent.REJECT),
    "failed": (RequestEvent.ENQUEUE, RequestEvent.ADMIT, RequestEvent.FAIL),
}


class DriverBesideNaive(RuleBasedStateMachine):
    """Hypothesis plays the engine: it decides when each request ends, and how."""

    @initialize(graph=graphs(max_plays=5, max_nodes=6), load=loads, workers=st.integers(1, 3))
    def create(self, graph: Graph, load: LoadSpec, workers: int) -> None:
        self.graph = graph
        self.load = load
        compiled_graph = compile_graph(
            graph, block_size=4, blocks=100, context=1000, lanes=load.lanes is not None, speedup=load.speedup
        )
        # Without seats: the engine is somebody else, here Hypothesis, and its word on who fits is taken.
        self.sim = new_sim(compiled_graph, DeploymentSpec(workers, WorkerSpec(100, 4, max_sequences=0), 1000), load)
        self.naive = NaiveDriver(graph, load)
        self.placed = 0
        play_driver.start(self.sim)
        self.naive.start()

    def in_flight(self) -> list[int]:
        return [r.index for r in self.naive.requests if r.state == "dispatched"]

    @precondition(lambda self: self.naive.due())
    @rule()
    def dispatch(self) -> None:
        expected = self.naive.due()[0]
        assert dispatch_next(self.sim) == expected
        assert int(self.sim.live[expected].worker) == self.placed % int(self.sim.config[0].workers)
        self.placed += 1
        self.naive.dispatch(expected)

    @precondition(lambda self: not self.naive.due() and self.naive.next_time() is not None)
    @rule()
    def wait_for_the_next_timer(self) -> None:
        timer = self.naive.next_time()
        assert timer is not None
        self.naive.now = timer
        self.sim.run[0].now = self.naive.now

    @precondition(lambda self: not self.naive.due() and self.in_flight())
    @rule(later_ns=st.sampled_from([0, 1, 500_000, 1_000_000, 7_000_000]))
    def let_time_pass(self, later_ns: int) -> None:
        timer = self.naive.next_time()
        now = self.naive.now + later_ns
        self.naive.now = now if timer is None else min(now, timer)
        self.sim.run[0].now = self.naive.now

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data())
    def requests_end(self, data: st.DataObject) -> None:
        ending = data.draw(st.lists(st.sampled_from(self.in_flight()), min_size=1, unique=True))
        kinds = st.sampled_from(["completed", "completed", "completed", "rejected", "failed"])
        outcomes = [(node, data.draw(kinds)) for node in ending]
        for position, (node, outcome) in enumerate(outcomes):
            for event in OUTCOMES[outcome]:
                request_event(self.sim, node, event)
            self.sim.feedback[position] = node
        self.sim.run[0].feedback = len(outcomes)
        hear(self.sim)
        self.naive.hear(outcomes)

    @precondition(lambda self: not self.in_flight() and self.naive.next_time() is None)
    @rule()
    def nothing_is_left(self) -> None:
        """The end of a run: Hypothesis wants a rule that applies."""

    @invariant()
    def same_nodes(self) -> None:
        ours = [NodeState(int(state)).name.lower() for state in self.sim.node_state]
        assert ours == ["failed" if r.state == "rejected" else r.state for r in self.naive.requests]

    @invariant()
    def same_plays(self) -> None:
        ours = [PlayState(int(state)).name.lower() for state in self.sim.play_state]
        assert ours == self.naive.play_state
        assert self.sim.plays.lane.tolist() == self.naive.play_lane
        assert self.sim.plays.start.tolist() == self.naive.play_start
        assert self.sim.plays.settled.tolist() == self.naive.play_settled
        assert self.sim.plays.failed_node.tolist() == self.naive.failed_node

    @invariant()
    def same_timer(self) -> None:
        following = self.naive.next_time()
        assert next_timer(self.sim) == (-1 if following is None else following)

    @invariant()
    def no_more_plays_than_lanes(self) -> None:
        if self.load.lanes is not None:
            active = np.isin(self.sim.play_state, [PlayState.ACTIVE, PlayState.FAILING])
            assert int(active.sum()) <= self.load.lanes
            occupied = self.sim.lane_state == LaneState.OCCUPIED
            assert int(occupied.sum()) == int(active.sum())

    @invariant()
    def work_remains_only_with_something_to_wait_for(self) -> None:
        """Liveness: unless a request is in flight or a timer runs, everything is over."""
        if not self.in_flight() and self.naive.next_time() is None:
            assert int(self.sim.run[0].finished) == self.graph.node_count
            assert int(self.sim.run[0].next_play) == len(self.graph.plays)


TestDriverBesideNaive = DriverBesideNaive.TestCase
TestDriverBesideNaive.settings = settings(stateful_step_count=60)
