"""A replay by the kernel and one by the naive model, instant by instant: what machines on replays have in common."""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from playproof_kernel.checks.translation import settings_of
from playproof_kernel.corpus.compiled import compile_graph
from playproof_kernel.driver import play_driver
from playproof_kernel.ground.arrays import NONE, Heap, Sim
from playproof_kernel.ground.records import records
from playproof_kernel.runs.setup import new_sim
from playproof_reference.aggregated import Aggregated as NaiveAggregated
from playproof_reference.disaggregated import Disaggregated as NaiveDisagg
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph
from playproof_spec.machines import NodeState
from pressure import check_nothing_is_left
from slices import run_for

# Instants before which a run is not hurried to its end.
STEPS_LEAST = 12


class ReplayBesideNaive(RuleBasedStateMachine):
    """Requests come, clients give up, and time passes; both replays show the same after every step."""

    sim: Sim
    naive: NaiveAggregated | NaiveDisagg

    def begin(self, graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
        """Set both replays up, pass by pass; no client gives up but by a rule."""
        load = LoadSpec(lanes=load.lanes, speedup=load.speedup, macro_steps=False)
        compiled = compile_graph(graph, **settings_of(deployment, load)._asdict())
        self.sim = new_sim(compiled, deployment, load)
        play_driver.start(self.sim)
        naive = NaiveAggregated if deployment.decode is None else NaiveDisagg
        self.naive = naive(graph, deployment, load)
        self.naive.driver.start()
        self.over = False
        self.steps = 0
        # The last instant at which both did what was due; and a later one, perhaps, at which only one of them had
        # something, which came to nothing.
        self.done_ns = self.past_ns = 0

    def look_closely(self) -> None:
        """Check what may not be left to the end of a rule that lets several instants pass."""

    # Steps

    @rule(instants=st.sampled_from([1, 1, 1, 2]))
    def let_time_pass(self, instants: int) -> None:
        """Passes and transfers end, requests are dispatched, some fail, as it comes."""
        for _ in range(instants):
            if not self.over:
                self.run_to_next_instant()
                self.look_closely()
                self.same_states()

    @rule(instants=st.sampled_from([5, 20, 60]))
    def let_more_time_pass(self, instants: int) -> None:
        """Come past the instants at which nothing but tokens can be seen."""
        self.let_time_pass(instants)

    @precondition(lambda self: self.over or self.steps > STEPS_LEAST)
    @rule()
    def let_everything_end(self) -> None:
        """While anything remains something is due (a stall raises), and in the end nothing is left."""
        while not self.over:
            self.let_time_pass(instants=1)
        check_nothing_is_left(self.sim)

    def run_to_next_instant(self) -> None:
        """Run both to the next instant that both know of: some hold nothing but a cancellation that comes too late."""
        self.steps += 1
        self.done_ns = self.past_ns = self.now()
        self.run_naive()
        self.sim, done = run_for(self.sim, 1)
        while True:
            ours = None if done else int(self.sim.run[0].now)
            theirs = self.naive.next_time()
            if ours == theirs:
                break
            if theirs is not None and (ours is None or theirs < ours):
                self.past_ns = self.naive.driver.now = theirs
                self.run_naive()
            else:
                self.past_ns = int(self.sim.run[0].now)
                self.sim, done = run_for(self.sim, 1)
        self.over = theirs is None
        if theirs is not None:
            self.naive.driver.now = theirs

    def run_naive(self) -> None:
        while self.naive.step():
            pass

    def timers(self) -> list[int]:
        return [r.index for r in self.naive.driver.requests if r.state == "ready" and r.ready_ns > self.now()]

    def now(self) -> int:
        return self.naive.driver.now

    @precondition(lambda self: not self.over and self.timers())
    @rule(data=st.data())
    def come_early(self, data: st.DataObject) -> None:
        """A request that could only be dispatched later is dispatched at this instant."""
        node = data.draw(st.sampled_from(self.timers()))
        self.naive.driver.requests[node].ready_ns = self.now()
        self.sim.live[node].ready = self.now()
        if "monitor" in sys.modules:
            sys.modules["monitor"].bring_forward(self.sim, node)
        heap = self.sim.heap[: int(self.sim.run[0].heap)]
        heap.time[heap.node == node] = self.now()
        heap.sort(order=["time", "node"])

    def in_flight(self) -> list[int]:
        return [r.index for r in self.naive.driver.requests if r.state == "dispatched"]

    @precondition(lambda self: self.in_flight())
    @rule(later_ns=st.sampled_from([0, 0, 1, 500_000, 7_000_000]), data=st.data())
    def give_up(self, later_ns: int, data: st.DataObject) -> None:
        """A client cancels a request that is in flight, now or when it may not be any more."""
        node = data.draw(st.sampled_from(self.in_flight()))
        left = sorted([*self.naive.driver.cancellations, (self.now() + later_ns, node)])
        self.naive.driver.cancellations = left
        entries = records(len(left), Heap)
        for entry, (time, number) in zip(entries, left, strict=True):
            entry.time, entry.node = time, number
        self.sim = self.sim._replace(cancellations=entries)
        self.sim.run[0].next_cancellation = 0

    # What holds after each

    @invariant()
    def same_states(self) -> None:
        ours = [NodeState(int(state)).name.lower() for state in self.sim.node_state]
        assert ours == ["failed" if r.state == "rejected" else r.state for r in self.naive.driver.requests]

    # What the kernel shows

    def seated(self, worker: int) -> list[int]:
        nodes = len(self.sim.node_state)
        return [int(r) % nodes for r in self.sim.running[worker][: int(self.sim.workers[worker].running)]]

    def queued(self, worker: int, queue: int) -> list[int]:
        nodes, found, at = len(self.sim.node_state), [], int(self.sim.queues[worker, queue].head)
        while at != NONE:
            found.append(at % nodes)
            at = int(self.sim.live[at].next)
        return found
