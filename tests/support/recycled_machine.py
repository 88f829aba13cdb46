"""A run under run controls on workers with host memory, instant by instant, beside the naive one.

All plays number their blocks alike, so that their hash ids collide, and lanes take the same plays again and again. What
is checked after every step: a request reuses no more of its prompt, in device or host memory, than requests of its own
play instance brought before it, whatever the keys say; whatever it holds, waits for or has on its way bears the keys of
its own namespace; and the same requests are in flight, with the same admissions, as in the naive run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from controlled import controlled_loads
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loading import loading_controls
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.runs import loop
from playproof_kernel.runs.controlled_setup import start_controlled
from playproof_kernel.runs.cuts import InvalidSnapshot
from playproof_kernel.runs.room import with_room
from playproof_reference.controls import ControlledAggregated
from playproof_reference.controls import ControlledDisaggregated as ControlledDisagg
from playproof_reference.controls import Controls as NaiveControls
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.digest import graph_digest
from playproof_spec.graph import Graph
from playproof_spec.machines import HostBlockState, NodeState


def common_tokens(graph: Graph, one: int, other: int) -> int:
    """How many tokens the prompts of two nodes have in common from the start."""
    alike = 0
    for a, b in zip(graph.hash_ids(one).tolist(), graph.hash_ids(other).tolist(), strict=False):
        if a != b:
            break
        alike += 1
    return min(alike * graph.block_size, int(graph.input_length[one]), int(graph.input_length[other]))


def key_of(sim: Sim, worker: int, copy: int) -> int:
    """Return the key under which a copy of a worker is cached."""
    page, place = divmod(int(sim.frames[worker, copy].place), GROUP)
    return int(sim.key_groups[worker, page].number) * GROUP + place


class RecycledPlays(RuleBasedStateMachine):
    """One controlled run by the kernel and one by the naive model."""

    shared: bool
    split: bool
    sim: Sim | None

    @initialize(data=st.data(), load=controlled_loads)
    def create(self, data: st.DataObject, load: LoadSpec) -> None:
        graph, deployment = data.draw(loading_controls(self.split, self.shared))
        self.begin(graph, deployment, load)

    def begin(self, graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
        load = replace(load, macro_steps=False)
        try:
            self.sim, _ = start_controlled(graph, graph_digest(graph, shift_floors=False), deployment, load)
        except InvalidSnapshot:
            self.sim = None
            return
        self.graph = graph
        self.controls = NaiveControls(graph, load)
        run = ControlledAggregated if deployment.decode is None else ControlledDisagg
        self.naive: ControlledAggregated | ControlledDisagg = run(self.controls, deployment)
        self.over = False
        # Of each request by its number: the node of the corpus, and the lane and ordinal of its play instance.
        self.requests: dict[int, tuple[int, tuple[int, int]]] = {}
        self.dispatched: list[int] = []
        self.admitted: Counter[tuple[int, int, int, int]] = Counter()

    # Steps

    @precondition(lambda self: self.sim is not None and not self.over)
    @rule(instants=st.sampled_from([1, 1, 3, 10, 40]))
    def let_time_pass(self, instants: int) -> None:
        for _ in range(instants):
            if not self.over:
                self.run_to_next_instant()
                self.keys_are_of_their_own_namespace()

    @precondition(lambda self: self.sim is None or self.over)
    @rule()
    def nothing_is_left(self) -> None:
        """The end of a run: Hypothesis wants a rule that applies."""

    def run_to_next_instant(self) -> None:
        """Run both to the next instant; one of them may know of an instant between, at which nothing happens."""
        while self.naive.step():
            pass
        done = self.run_kernel()
        theirs = self.naive.next_time()
        while not done and theirs is not None and int(self.sim_run.now) != theirs:
            if theirs < int(self.sim_run.now):
                self.controls.now = theirs
                while self.naive.step():
                    pass
                theirs = self.naive.next_time()
            else:
                done = self.run_kernel()
        self.over = done or theirs is None
        if theirs is not None:
            self.controls.now = theirs

    @property
    def sim_run(self) -> Any:
        assert self.sim is not None
        return self.sim.run[0]

    def run_kernel(self) -> bool:
        """Run the kernel to its next instant; say whether it is over. Takes its logs in."""
        assert self.sim is not None
        while True:
            stop = loop.run(self.sim, 1)
            self.take_logs()
            if stop == loop.Stop.OVER:
                return True
            if stop == loop.Stop.SLICE:
                return False
            self.sim = with_room(self.sim, stop)

    def take_logs(self) -> None:
        assert self.sim is not None
        # What came and went within one instant has left its seat, to the next play perhaps.
        ended = self.sim.ended[: int(self.sim_run.ended)]
        owners = {int(play.instance): (int(play.lane), int(play.ordinal)) for play in (*self.sim.plays, *ended)}
        for result in self.sim.results[: int(self.sim_run.results)]:
            number = int(result.serial)
            if number not in self.requests and int(result.instance) in owners:
                self.requests[number] = (int(result.source), owners[int(result.instance)])
                self.dispatched.append(number)
        for number, slot in self.seen():
            if number not in self.requests:
                self.requests[number] = (int(self.sim.static[slot].source), self.instance(slot))
                self.dispatched.append(number)
        for admission in self.sim.admissions[: int(self.sim_run.admissions)]:
            self.takes_what_its_play_brought(admission)
            entry = (int(admission.request), int(admission["at"]), int(admission.reused), int(admission.host))
            self.admitted[entry] += 1
        self.sim_run.results = self.sim_run.ended = self.sim_run.shifts = self.sim_run.admissions = 0
        self.sim_run.noted = 0

    def seen(self) -> Iterator[tuple[int, int]]:
        """Numbers and slots of requests that are, or just were, in flight."""
        assert self.sim is not None
        states = (NodeState.DISPATCHED, NodeState.COMPLETED, NodeState.FAILED, NodeState.CANCELED)
        for slot, state in enumerate(self.sim.node_state.tolist()):
            if state in states:
                yield int(self.sim.static[slot].serial), slot

    def instance(self, slot: int) -> tuple[int, int]:
        """Lane and ordinal of the play of a request; what prepares a lane prepares its first play."""
        assert self.sim is not None
        prepares = slot - int(self.sim.config[0].prep_begin)
        if 0 <= prepares < len(self.sim.prep):
            return int(self.sim.prep[prepares].lane), 0
        play = self.sim.plays[int(self.sim.static[slot].play)]
        return int(play.lane), int(play.ordinal)

    # What holds after each

    def takes_what_its_play_brought(self, admission: Any) -> None:
        number, reused = int(admission.request), int(admission.reused)
        if reused == 0 or int(admission.ordinal) > 0:
            return  # what it computed itself before it was pushed out is its own
        node, instance = self.requests[number]
        others = [self.requests[other] for other in self.dispatched if other != number]
        before = [other for other, whose in others if whose == instance]
        brought = max((common_tokens(self.graph, node, other) for other in before), default=0)
        assert reused <= brought, f"request {number} reuses what its play instance never brought"

    @invariant()
    def keys_are_of_their_own_namespace(self) -> None:
        """Blocks in tables, and blocks that a load pins, are of the namespace of the request that holds them."""
        if self.sim is None:
            return
        sim, nodes, span = self.sim, len(self.sim.node_state), int(self.sim.config[0].key_span)
        for row, live in enumerate(sim.live):
            if live.table_len == 0:
                continue
            space = int(sim.static[row].space)
            table = sim.arena[int(live.table_begin) : int(live.table_begin) + int(live.filled)]
            keys = [key_of(sim, int(live.worker), int(copy)) for copy in table]
            assert all(space <= key < space + span for key in keys if 0 <= key < nodes * span)
        for pool, states in enumerate(sim.host_state):
            for place in (states == HostBlockState.PINNED).nonzero()[0]:
                key = int(sim.host_key_groups[pool][place // GROUP].number) * GROUP + int(place) % GROUP
                loading = {int(sim.static[row].space) for row, ticket in enumerate(sim.tickets) if ticket.load != NONE}
                assert key // span * span in loading

    @invariant()
    def same_requests_in_flight(self) -> None:
        if self.sim is None:
            return
        flying = (self.sim.node_state == NodeState.DISPATCHED).nonzero()[0]
        assert sorted(int(self.sim.static[slot].serial) for slot in flying) == sorted(self.controls.in_flight())

    @invariant()
    def same_admissions(self) -> None:
        if self.sim is None:
            return
        if isinstance(self.naive, ControlledDisagg):
            served = [self.naive.sources, self.naive.destinations]
        else:
            served = [self.controls.requests]
        theirs = Counter((r.index, *entry) for requests in served for r in requests for entry in r.history)
        assert self.admitted == theirs
