"""Prefill/decode, instant by instant, beside the naive model: requests come, clients give up, and time passes.

What is checked after every step is what the specification asks of the handoff: a request completes at most once and
never before its decode; it stands in exactly one place of the way it is on; both pools account for all their blocks;
while anything remains, something is due; and whatever can be seen of a worker is what the naive worker shows.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_disagg import DestinationRole, NaiveDisagg, SourceRole
from naive_sglang import NaiveSglangWorker
from playproof_kernel import Backend, LoadSpec, driver
from playproof_kernel.arrays import HEAP, NONE, OUTCOMES, PENDING, READY, WAITING, records
from playproof_kernel.compiled import compile_graph
from playproof_kernel.requests import Hold
from playproof_kernel.simulate import new_sim, run_for
from playproof_spec.graph import Graph
from playproof_spec.machines import HandoffState, NodeState
from pressure import check_nothing_is_left, check_pools
from strategies import disaggregated, graphs, loads

# Instants before which a run is not hurried to its end.
STEPS_LEAST = 12
ENDED = (NodeState.COMPLETED, NodeState.FAILED, NodeState.CANCELED, NodeState.SKIPPED)

# Where the request of a handoff state stands between two instants: in the queue or seat of which role. The states that
# are missing are passed through within an instant.
PLACES = {
    HandoffState.PREFILLING: {"waits to prefill", "runs at prefill", "leaves prefill"},
    HandoffState.RESERVING: {"waits for its destination"},
    HandoffState.TRANSFERRING: {"moves"},
    HandoffState.DECODE_WAITING: {"waits to decode", "leaves decode"},
    # SGLang: one that was retracted may compute its prompt again in chunks, and has its seat, but waits between them.
    HandoffState.DECODING: {"runs at decode", "leaves decode", "waits to decode"},
}


class HandoffBesideNaive(RuleBasedStateMachine):
    """One replay by the kernel and one by the naive model, pass by pass, in steps of whole instants."""

    backend: Backend

    @initialize(graph=graphs(max_plays=3, max_nodes=5), load=loads, data=st.data())
    def create(self, graph: Graph, load: LoadSpec, data: st.DataObject) -> None:
        deployment = data.draw(disaggregated([self.backend]))
        load = LoadSpec(lanes=load.lanes, speedup=load.speedup, macro_steps=False)
        compiled = compile_graph(
            graph,
            block_size=deployment.worker.block_size,
            blocks=deployment.worker.blocks,
            context=deployment.context_length,
            lanes=load.lanes is not None,
            speedup=load.speedup,
        )
        self.sim = new_sim(compiled, deployment, load)
        driver.start(self.sim)
        self.naive = NaiveDisagg(graph, deployment, load)
        self.naive.driver.start()
        self.over = False
        self.steps = 0
        self.ended: dict[int, int] = {}

    # Steps

    @rule(instants=st.sampled_from([1, 1, 1, 2]))
    def let_time_pass(self, instants: int) -> None:
        """Passes and transfers end, requests are dispatched, some fail, as it comes."""
        for _ in range(instants):
            if not self.over:
                self.run_to_next_instant()
                self.completions_come_from_decode()
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
        self.run_naive()
        self.sim, done = run_for(self.sim, 1)
        while True:
            ours = None if done else int(self.sim.run[0].now)
            theirs = self.naive.next_time()
            if ours == theirs:
                break
            if theirs is not None and (ours is None or theirs < ours):
                self.naive.driver.now = theirs
                self.run_naive()
            else:
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
        entries = records(len(left), HEAP)
        for entry, (time, number) in zip(entries, left, strict=True):
            entry.time, entry.node = time, number
        self.sim = self.sim._replace(cancellations=entries)
        self.sim.run[0].next_cancellation = 0

    # What holds after each

    @invariant()
    def completions_come_from_decode(self) -> None:
        nodes = len(self.sim.node_state)
        for node, state in enumerate(self.sim.node_state.tolist()):
            assert self.ended.get(node, state) == state, f"request {node} ended twice"
            if state in ENDED:
                self.ended[node] = state
            if state == NodeState.COMPLETED:
                steps = self.sim.handoffs[node]
                assert self.sim.handoff_state[node] == HandoffState.COMPLETED
                assert 0 <= steps.held <= steps.activated, f"request {node} completed before its decode"
                assert self.sim.live[nodes + node].first_admit >= steps.activated
                assert self.sim.live[nodes + node].generated == self.sim.static[nodes + node].limit

    @invariant()
    def same_states(self) -> None:
        ours = [NodeState(int(state)).name.lower() for state in self.sim.node_state]
        assert ours == ["failed" if r.state == "rejected" else r.state for r in self.naive.driver.requests]

    @invariant()
    def same_steps_and_tokens(self) -> None:
        nodes = len(self.sim.node_state)
        for node, (ours, naive) in enumerate(zip(self.sim.handoffs, self.naive.handoffs, strict=True)):
            theirs = (naive.held_ns, naive.reserved_ns, naive.activated_ns, naive.released_ns)
            assert (ours.held, ours.reserved, ours.activated, ours.released) == theirs
            assert self.sim.live[nodes + node].generated == len(self.naive.destinations[node].tokens_ns)

    @invariant()
    def same_workers(self) -> None:
        for worker, naive in enumerate(self.naive.workers):
            record = self.sim.workers[worker]
            cache = naive.tree if isinstance(naive, NaiveSglangWorker) else naive.pool
            assert record.free + record.idle == cache.available()
            assert self.seated(worker) == naive.running
            assert self.queued(worker, WAITING) == naive.waiting
            if isinstance(naive, DestinationRole):
                assert self.queued(worker, PENDING) == naive.pending
                assert self.queued(worker, READY) == getattr(naive, "prebuilt", [])
            elif isinstance(naive, SourceRole):
                held = (self.sim.tickets.hold == Hold.SOURCE) & (self.sim.live.worker == worker)
                assert held.nonzero()[0].tolist() == sorted(naive.sources)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        check_pools(self.sim)

    @invariant()
    def nobody_is_lost_or_doubled(self) -> None:
        assert self.sim.actions[-1].head == NONE
        places = self.places()
        for node, state in enumerate(self.sim.handoff_state.tolist()):
            if self.sim.node_state[node] == NodeState.DISPATCHED:
                (place,) = places.get(node, [])
                assert place in PLACES[HandoffState(state)], f"request {node} is {HandoffState(state).name} but {place}"

    def seated(self, worker: int) -> list[int]:
        nodes = len(self.sim.node_state)
        return [int(r) % nodes for r in self.sim.running[worker][: int(self.sim.workers[worker].running)]]

    def queued(self, worker: int, queue: int) -> list[int]:
        nodes, found, at = len(self.sim.node_state), [], int(self.sim.queues[worker, queue].head)
        while at != NONE:
            found.append(at % nodes)
            at = int(self.sim.live[at].next)
        return found

    def places(self) -> dict[int, list[str]]:
        """Return every place in which each node stands; held memory is no place of its own."""
        places: dict[int, list[str]] = {}
        for worker, record in enumerate(self.sim.workers):
            role = "decode" if record.role else "prefill"
            standing = [
                (f"runs at {role}", self.seated(worker)),
                (f"waits to {role}", self.queued(worker, WAITING) + self.queued(worker, READY)),
                (f"leaves {role}", self.queued(worker, OUTCOMES)),
                ("waits for its destination", self.queued(worker, PENDING)),
            ]
            for name, members in standing:
                for node in members:
                    places.setdefault(node, []).append(name)
        moving = Counter(self.sim.transfers.node[: int(self.sim.run[0].transfers)].tolist())
        for node, state in enumerate(self.sim.handoff_state.tolist()):
            row = node + len(self.sim.node_state)
            activates = self.sim.tickets[row].action != 0
            if state == HandoffState.TRANSFERRING:
                places.setdefault(node, []).extend(["moves"] * (moving[node] + activates))
        return places


class VllmHandoffBesideNaive(HandoffBesideNaive):
    """Source first."""

    backend = Backend.VLLM


class SglangHandoffBesideNaive(HandoffBesideNaive):
    """Destination first."""

    backend = Backend.SGLANG
