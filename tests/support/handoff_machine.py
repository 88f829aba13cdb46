"""Prefill/decode, instant by instant, beside the naive model: requests come, clients give up, and time passes.

What is checked after every step is what the specification asks of the handoff: a request completes at most once and
never before its decode; it stands in exactly one place of the way it is on; both pools account for all their blocks;
while anything remains, something is due; and whatever can be seen of a worker is what the naive worker shows.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from playproof_kernel.ground.arrays import NONE, OUTCOMES, PENDING, READY, WAITING
from playproof_kernel.ground.lifecycle import Hold
from playproof_reference.disaggregated import Disaggregated as NaiveDisagg
from playproof_reference.roles import DestinationRole, SourceRole
from playproof_reference.sglang import SglangWorker as NaiveSglangWorker
from playproof_spec.deployment import Backend, LoadSpec
from playproof_spec.graph import Graph
from playproof_spec.machines import HandoffState, NodeState
from pressure import check_pools
from replay_machine import ReplayBesideNaive
from strategies import disaggregated, graphs, loads

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


class HandoffBesideNaive(ReplayBesideNaive):
    """One replay by the kernel and one by the naive model, pass by pass, in steps of whole instants."""

    backend: Backend
    naive: NaiveDisagg

    @initialize(graph=graphs(max_plays=3, max_nodes=5), load=loads, data=st.data())
    def create(self, graph: Graph, load: LoadSpec, data: st.DataObject) -> None:
        self.begin(graph, data.draw(disaggregated([self.backend])), load)
        self.ended: dict[int, int] = {}

    def look_closely(self) -> None:
        self.completions_come_from_decode()

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
        moving = Counter(self.sim.kv_transfers.node[: int(self.sim.run[0].kv_transfers)].tolist())
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
