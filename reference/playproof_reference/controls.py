"""The run controls: cuts, lanes, preparation, barrier, deadline, grace, cancellation and idle caps.

Lists and dictionaries, every question asked anew each time it arises, no seat ever reused. Workers are those of
finite runs, on a corpus in which every request of every play instance stands for itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.digest import graph_digest
from playproof_spec.graph import Edge, Graph, Trigger

from playproof_reference.aggregated import Aggregated
from playproof_reference.disaggregated import Disaggregated, Handoff
from playproof_reference.requests import Request, holder
from playproof_reference.sglang import SglangWorker
from playproof_reference.vllm import VllmWorker


@dataclass
class Instance:
    """A play as it runs."""

    number: int
    lane: int
    ordinal: int
    source: int
    state: str = "pending"
    start_ns: int = -1
    first_dispatch_ns: int = -1
    last_terminal_ns: int = -1
    settled_ns: int = -1
    failed: int = -1
    failed_outcome: str = ""
    expired: int = 0
    requests: dict[int, int] = field(default_factory=dict)  # by node of the corpus


@dataclass
class Unrolled:
    """What a worker asks of a graph, request by request."""

    graph: Graph
    block_size: int
    source: list[int] = field(default_factory=list)
    scope: list[int] = field(default_factory=list)
    input_length: list[int] = field(default_factory=list)
    output_length: list[int] = field(default_factory=list)

    @property
    def node_count(self) -> int:
        return len(self.source)

    def add(self, source: int, scope: int, output: int) -> None:
        self.source.append(source)
        self.scope.append(scope)
        self.input_length.append(int(self.graph.input_length[source]))
        self.output_length.append(output)

    def hash_ids(self, request: int) -> np.ndarray[Any, Any]:
        return np.array(self._scoped(request, self.source[request]), dtype=object)

    def _scoped(self, request: int, node: int) -> list[int]:
        return [(self.scope[request] << 40) + i for i in self.graph.hash_ids(node).tolist()]

    def told_ids(self, request: int) -> list[int] | None:
        """The hash ids of the prompt that holds its answer, if there is one, as its own play instance has them."""
        other = holder(self.graph, self.source[request])
        return None if other is None else self._scoped(request, other)


class Controls:
    """The driver under run controls, straight from the rules."""

    def __init__(self, graph: Graph, load: LoadSpec) -> None:
        assert load.lanes is not None
        self.graph, self.load, self.lanes = graph, load, load.lanes
        self.now = 0
        self.corpus = Unrolled(graph, graph.block_size)
        self.requests: list[Request] = []
        self.owner: list[Instance | None] = []
        self.instances: list[Instance] = []
        self.lane_plays = [0] * self.lanes
        self.phase = "preparation"
        self.start_ns = -1
        self.finished_ns = -1
        self.shifts: list[tuple[int, int, int, int]] = []
        self.refilled_at, self.refills = -1, 0
        self.prep: list[list[int]] = [[] for _ in range(self.lanes)]
        self.prep_failed = -1
        self.unsettled = 0
        self.quiescent: dict[int, int] = {}  # when engines had let go of a request
        self.last_terminal_ns = 0
        self.engaged: Callable[[int], bool] = lambda number: False  # whether engines still hold a request that is over
        self.copying: Callable[[], bool] = lambda: False  # whether anything is on its way to or from host memory
        self.workers: Sequence[VllmWorker] = []  # after a run
        self.edges = [[graph.edge(n, t) for n in self._into(t)] for t in range(graph.node_count)]
        self._begin()

    # The plan ---------------------------------------------------------------------------------------------------------

    def tie(self, number: int) -> int:
        """Requests are numbered as ties go."""
        return number

    def _into(self, node: int) -> range:
        return range(int(self.graph.edge_offsets[node]), int(self.graph.edge_offsets[node + 1]))

    def _ns(self, ms: float) -> int:
        return round(ms / self.load.speedup * 1_000_000)

    def recorded(self, node: int) -> float:
        return float(self.graph.not_before_ms[node])

    def nodes(self, play: int) -> list[int]:
        return sorted((int(node) for node in self.graph.plays[play].nodes), key=self.graph.tie_ranks.__getitem__)

    def index(self, name: str) -> int:
        return self.graph.request_ids.index(name)

    def cut_ms(self, lane: int, play: int) -> float:
        starts = [self.recorded(node) for node in self.nodes(play)]
        digest = graph_digest(self.graph, shift_floors=False)
        name = self.graph.plays[play].play_id
        key = json.dumps(
            ["aisimulate.agentic.snapshot.v1", self.load.snapshot_seed, digest, name, lane, 0], separators=(",", ":")
        )
        unit = (int.from_bytes(blake3(key.encode()).digest()[:8], "little") >> 11) / 2**53
        return min(starts) + (0.25 + 0.5 * unit) * (max(starts) - min(starts))

    def history(self, lane: int, play: int) -> set[int]:
        return {node for node in self.nodes(play) if self.recorded(node) < self.cut_ms(lane, play)}

    def contradictory(self) -> bool:
        for lane in range(self.lanes):
            past = self.history(lane, lane % len(self.graph.plays))
            if any(self.index(edge.source) not in past for node in past for edge in self.edges[node]):
                return True
        return False

    def remaining_ns(self, lane: int, play: int, node: int) -> int:
        cut, past = self.cut_ms(lane, play), self.history(lane, play)
        if self.load.profile is not None and any(self.index(edge.source) not in past for edge in self.edges[node]):
            return 0
        due = [self.recorded(node)]
        for edge in self.edges[node]:
            source = self.index(edge.source)
            if source in past:
                took = float(self.graph.recorded_api_time_ms[source])
                ended = edge.trigger is Trigger.COMPLETION and took == took
                due.append(self.recorded(source) + (took if ended else 0.0) + edge.delay_ms)
        return self._ns(max(max(due) - cut, 0.0))

    def primers(self, lane: int, play: int) -> list[int]:
        """Last request of history of each session that goes on; no two equal starts in a session depend on another."""
        past = self.history(lane, play)
        chosen = []
        for session in range(len(self.graph.sessions)):
            mine = [node for node in self.nodes(play) if int(self.graph.node_session[node]) == session]
            before = [node for node in mine if node in past]
            if before and len(before) < len(mine):
                chosen.append(max(before, key=lambda node: (self.recorded(node), self._rank(play, node))))
        return chosen

    def _rank(self, play: int, node: int) -> int:
        taken: list[int] = []
        while node not in taken:
            names = {self.graph.request_ids[other] for other in taken}
            free = [
                other
                for other in self.nodes(play)
                if other not in taken and all(edge.source in names for edge in self.edges[other])
            ]
            taken.append(min(free))
        return taken.index(node)

    # Requests and instances -------------------------------------------------------------------------------------------

    def _add(self, source: int, scope: int, output: int, owner: Instance | None) -> int:
        number = len(self.requests)
        self.requests.append(Request(number))
        self.owner.append(owner)
        self.corpus.add(source, scope, output)
        return number

    def _begin(self) -> None:
        plays = len(self.graph.plays)
        for lane in range(self.lanes if self.load.warmup else 0):
            play = lane % plays
            past = self.history(lane, play)
            first = self.primers(lane, play)
            again = first or [min((n for n in self.nodes(play) if n not in past), key=lambda n: (self.recorded(n), n))]
            sources = first + [again[i % len(again)] for i in range(10)]
            self.prep[lane] = [self._add(node, self._scope(lane, 0, play), 1, None) for node in sources]
        for lane in range(self.lanes):
            self._seat(lane, lane % plays)
        for lane in range(self.lanes):
            self._prepare(lane)
        self.step()

    def _scope(self, lane: int, ordinal: int, play: int) -> int:
        """Return the namespace of a play's blocks, which no other play instance has."""
        return 1 + ordinal * self.lanes + lane

    def _seat(self, lane: int, play: int) -> Instance:
        instance = Instance(len(self.instances), lane, self.lane_plays[lane], play)
        self.instances.append(instance)
        self.lane_plays[lane] += 1
        past = self.history(lane, play) if instance.ordinal == 0 else set()
        for node in self.nodes(play):
            output = int(self.graph.output_length[node])
            number = self._add(node, self._scope(lane, instance.ordinal, play), output, instance)
            instance.requests[node] = number
            request = self.requests[number]
            request.state = "historical" if node in past else "blocked"
            request.waiting_for = sum(self.index(edge.source) not in past for edge in self.edges[node])
        return instance

    def _activate(self, instance: Instance) -> None:
        instance.state, instance.start_ns = "active", self.now
        first = min(self.recorded(node) for node in self.nodes(instance.source))
        for node, number in instance.requests.items():
            request = self.requests[number]
            if instance.ordinal == 0:
                wait = self.remaining_ns(instance.lane, instance.source, node)
            else:
                wait = 0 if self.edges[node] else self._ns(self.recorded(node) - first)
            request.ready_ns = self.now + wait
            if request.state == "blocked" and request.waiting_for == 0:
                request.state = "ready"

    def _prepare(self, lane: int) -> None:
        waiting = [number for number in self.prep[lane] if self.requests[number].state == "blocked"]
        if waiting:
            self.requests[waiting[0]].state = "ready"
            self.requests[waiting[0]].ready_ns = self.now

    def states(self, instance: Instance) -> list[str]:
        return [self.requests[number].state for number in instance.requests.values()]

    def in_flight(self) -> list[int]:
        return [request.index for request in self.requests if request.state == "dispatched"]

    def measured(self) -> list[int]:
        """Requests that count: dispatched ones, but for preparation."""
        return [r.index for r in self.requests if r.dispatched_ns >= 0 and self.owner[r.index] is not None]

    # Events -----------------------------------------------------------------------------------------------------------

    def due(self) -> list[int]:
        ready = [r for r in self.requests if r.state == "ready" and r.ready_ns <= self.now]
        return [r.index for r in sorted(ready, key=lambda r: (r.ready_ns, r.index))]

    def dispatch(self, number: int) -> None:
        request, owner = self.requests[number], self.owner[number]
        request.state, request.dispatched_ns = "dispatched", self.now
        if owner is not None:
            if owner.first_dispatch_ns < 0:
                owner.first_dispatch_ns = self.now
            self._fire(owner, number, Trigger.DISPATCH)

    def _fire(self, owner: Instance, number: int, trigger: Trigger) -> None:
        name = self.graph.request_ids[self.corpus.source[number]]
        for node, target in owner.requests.items():
            for edge in self.edges[node]:
                if edge.source == name and edge.trigger is trigger:
                    self._arrive(self.requests[target], edge)

    def _arrive(self, request: Request, edge: Edge) -> None:
        request.ready_ns = max(request.ready_ns, self.now + self._ns(edge.delay_ms))
        request.waiting_for -= 1
        if request.waiting_for == 0 and request.state == "blocked":
            request.state = "ready"

    def hear(self, outcomes: list[tuple[int, str]]) -> None:
        for number, outcome in sorted(outcomes):
            request, owner = self.requests[number], self.owner[number]
            request.state, request.terminal_ns = outcome, self.now
            self.last_terminal_ns = self.now
            if owner is None:
                self._hear_preparation(number, outcome)
                continue
            owner.last_terminal_ns = self.now
            if outcome == "completed":
                if owner.state == "active":
                    self._fire(owner, number, Trigger.COMPLETION)
            elif owner.state == "active":
                owner.state, owner.failed, owner.failed_outcome = "failing", number, outcome
                for other in owner.requests.values():
                    if self.requests[other].state in ("blocked", "ready"):
                        self.requests[other].state = "skipped"
            elif owner.state == "closing" and owner.failed < 0:
                owner.failed, owner.failed_outcome = number, outcome
            self.settle(owner)

    def _hear_preparation(self, number: int, outcome: str) -> None:
        if outcome != "completed" and self.prep_failed < 0:
            self.prep_failed = number
            for lane in self.prep:
                for other in lane:
                    if self.requests[other].state in ("blocked", "ready"):
                        self.requests[other].state = "skipped"
        if self.prep_failed < 0:
            self._prepare(next(lane for lane, numbers in enumerate(self.prep) if number in numbers))

    def still_busy(self, states: list[str]) -> bool:
        """Whether a play with requests in `states` keeps its lane."""
        return "dispatched" in states

    def settle(self, instance: Instance) -> None:
        states = self.states(instance)
        if self.still_busy(states):
            return
        if instance.state == "active" and set(states) <= {"completed", "historical"}:
            instance.state = "completed"
        elif instance.state in ("failing", "closing"):
            instance.state = {"failing": "failed", "closing": "incomplete"}[instance.state]
        else:
            return
        instance.settled_ns = self.now
        self._refill(instance.lane)

    def closed(self) -> bool:
        """Whether nothing new is issued any more."""
        profile = self.load.profile
        return profile is None or self.now >= self.start_ns + profile.duration_ns

    def _refill(self, lane: int) -> None:
        if self.closed():
            return
        if self.refilled_at != self.now:
            self.refilled_at, self.refills = self.now, 0
        if self.refills < len(self.graph.plays) + self.lanes:
            self.refills += 1
            self._activate(self._seat(lane, len(self.instances) % len(self.graph.plays)))

    def step(self) -> None:
        """Between what is heard and what is dispatched."""
        if self.phase == "preparation":
            numbers = [n for lane in self.prep for n in lane]
            running = [n for n in numbers if self.requests[n].state == "dispatched" or self.engaged(n)]
            left = [
                n for lane in self.prep for n in lane if self.requests[n].state in ("blocked", "ready", "dispatched")
            ]
            if self.prep_failed >= 0:
                if not running and not self.copying():
                    self.phase, self.finished_ns = "invalid", self.now
            elif not left and not running and not self.copying():
                self.phase, self.start_ns, self.last_terminal_ns = "profile", self.now, self.now
                for instance in self.instances[: self.lanes]:
                    self._activate(instance)
        profile = self.load.profile
        if self.phase == "profile" and profile is not None:
            if self.now >= self.start_ns + profile.duration_ns:
                self.phase = "grace"
                self._expire()
            else:
                self._cap_idle()
        live = [instance for instance in self.instances if instance.settled_ns < 0]
        if self.phase == "profile" and not live:
            self.phase, self.finished_ns = "done", self.now
        if self.phase == "grace" and not self.in_flight():
            self.phase, self.finished_ns = "done", self.now

    # What a prefill/decode loop asks of its driver

    def start(self) -> None:
        """All has begun already."""

    def give_up(self) -> list[int]:
        """Between what is heard and what is dispatched: do what is due, and return what is canceled."""
        self.step()
        return self.cancel() if self.phase == "grace" and self.grace_is_over() else []

    def grace_is_over(self) -> bool:
        profile = self.load.profile
        if self.phase != "grace" or profile is None:
            return False
        return self.now >= self.start_ns + profile.duration_ns + profile.grace_ns

    def cancel(self) -> list[int]:
        """The client gives up on all that is in flight; returns what that was."""
        given_up = self.in_flight()
        for number in given_up:
            instance = self.owner[number]
            assert instance is not None
            self.requests[number].state, self.requests[number].terminal_ns = "canceled", self.now
            instance.last_terminal_ns = self.now
            if instance.failed < 0:
                instance.failed, instance.failed_outcome = number, "canceled"
            if instance.state == "active":
                instance.state = "closing"
        self.phase, self.finished_ns = "done", self.now
        return given_up

    def settle_canceled(self, held: set[int]) -> None:
        """End the plays of canceled requests; `held` are requests that a running pass still has."""
        for instance in self.instances:
            mine = set(instance.requests.values())
            if instance.settled_ns < 0 and not held & mine:
                self.settle(instance)

    def _expire(self) -> None:
        for instance in list(self.instances):
            if instance.state == "active":
                for number in instance.requests.values():
                    if self.requests[number].state in ("blocked", "ready"):
                        self.requests[number].state = "never_issued"
                        instance.expired += 1
                if instance.expired:
                    instance.state = "closing"
                    self.settle(instance)

    # Idle caps --------------------------------------------------------------------------------------------------------

    def _timers(self, instances: list[Instance]) -> list[Request]:
        numbers = [number for instance in instances for number in instance.requests.values()]
        return [self.requests[number] for number in numbers if self.requests[number].state == "ready"]

    def _active(self) -> list[Instance]:
        return [instance for instance in self.instances if instance.state == "active"]

    def _idle(self) -> list[tuple[int, list[Instance], int]]:
        """Who waits for nothing but timers: (since when and the cap, whose timers, -1 or the instance)."""
        profile = self.load.profile
        assert profile is not None
        found = []
        for instance in sorted(self._active(), key=lambda instance: instance.lane):
            if "dispatched" not in self.states(instance):
                since = max(instance.start_ns, instance.last_terminal_ns)
                found.append((since + profile.tree_cap_ns, [instance], instance.number))
        if not self.in_flight():
            found.append((self.last_terminal_ns + profile.global_cap_ns, self._active(), -1))
        return found

    def _cap_idle(self) -> None:
        for until, instances, number in self._idle():
            timers = self._timers(instances)
            if timers and self.now >= until:
                by = min(timer.ready_ns for timer in timers) - self.now
                if by > 0:
                    self.shifts.append((self.now, number, by, len(timers)))
                    for timer in timers:
                        timer.ready_ns -= by

    def next_time(self) -> int | None:
        times = [request.ready_ns for request in self.requests if request.state == "ready"]
        profile = self.load.profile
        if profile is not None and self.phase == "profile":
            times.append(self.start_ns + profile.duration_ns)
            for until, instances, _ in self._idle():
                timers = self._timers(instances)
                if timers and min(timer.ready_ns for timer in timers) > until:
                    times.append(until)
        if profile is not None and self.phase == "grace":
            times.append(self.start_ns + profile.duration_ns + profile.grace_ns)
        return min(times, default=None)


def _computing(worker: VllmWorker) -> list[int]:
    """Requests that the pass in progress of a worker computes for, or has decided on."""
    computing = [*worker.running, *worker.decided()]
    if isinstance(worker, SglangWorker) and worker.prefill and worker.waiting:
        # A chunk that was cut stands in the queue again while it is computed.
        first = worker.waiting[0]
        computing += [first] if worker.requests[first].computed > 0 else []
    return computing


class ControlledAggregated(Aggregated):
    """An aggregated replay under run controls."""

    def __init__(self, controls: Controls, deployment: DeploymentSpec) -> None:
        super().__init__(controls.corpus, deployment, controls.load, controls)  # type: ignore[arg-type]
        self.controls = controls
        controls.copying = lambda: any(worker.copying() for worker in self.workers)

    def over(self) -> bool:
        return self.controls.phase in ("done", "invalid")

    def give_up(self, nodes: list[int]) -> None:
        """The end of the run: passes in progress are not waited for."""
        if nodes:
            busy = [worker for worker in self.workers if worker.end_ns is not None]
            held = {number for worker in busy for number in _computing(worker)} & set(nodes)
            self.controls.unsettled = len(held)
            self.controls.settle_canceled(held)

    def step(self) -> bool:
        before = (self.controls.phase, len(self.controls.shifts))
        changed = super().step()
        return not self.over() and (changed or before != (self.controls.phase, len(self.controls.shifts)))

    def next_time(self) -> int | None:
        return None if self.over() else super().next_time()


class ControlledDisaggregated(Disaggregated):
    """A prefill/decode replay under run controls."""

    def __init__(self, controls: Controls, deployment: DeploymentSpec) -> None:
        super().__init__(controls.corpus, deployment, controls.load, controls)  # type: ignore[arg-type]
        self.controls = controls
        self.settled_ns: dict[int, int] = {}
        controls.engaged = self.engaged
        controls.copying = lambda: any(worker.copying() for worker in self.workers)

    def engaged(self, number: int) -> bool:
        """Whether a worker has `number` anywhere, or something other than a clean-up waits to be done for it."""
        actions = [*self.queue, *((action, node) for _, action, node in self.deferred)]
        if any(node == number and not action.startswith("cancel") for action, node in actions):
            return True
        if any(node == number for _, node in self.transfers):
            return True
        places: list[int] = []
        for worker in self.workers:
            places += [*worker.waiting, *worker.running, *(node for node, _ in worker.gone), *worker.canceled]
            places += getattr(worker, "aside", [])
        for source in self.prefill:
            places += source.sources
        for destination in self.decode:
            places += [*destination.pending, *destination.reserved, *getattr(destination, "prebuilt", [])]
        return number in places

    def note_settled(self) -> None:
        for request in self.controls.requests:
            if request.terminal_ns >= 0 and request.index not in self.settled_ns and not self.engaged(request.index):
                self.settled_ns[request.index] = self.controls.now

    def over(self) -> bool:
        self.note_settled()
        if self.controls.phase not in ("done", "invalid"):
            return False
        waits = self.controls.phase == "done" and self.controls.load.profile is None
        return not waits or all(r.index in self.settled_ns for r in self.controls.requests if r.terminal_ns >= 0)

    def step(self) -> bool:
        missing = range(len(self.handoffs), len(self.controls.requests))
        self.sources += [Request(number) for number in missing]
        self.destinations += [Request(number) for number in missing]
        self.handoffs += [Handoff() for _ in missing]
        before = (self.controls.phase, len(self.controls.shifts))
        changed = super().step()
        return not self.over() and (changed or before != (self.controls.phase, len(self.controls.shifts)))

    def next_time(self) -> int | None:
        return None if self.over() else super().next_time()

    def finish(self) -> None:
        """After the run, take what the client saw of each request from the worker that served it."""
        late = {r.index for r in self.controls.requests if r.terminal_ns >= 0} - self.settled_ns.keys()
        self.controls.unsettled = len(late)
        self.controls.settle_canceled(late)
        for request, handoff in zip(self.controls.requests, self.handoffs, strict=False):
            served, source = self.destinations[request.index], self.sources[request.index]
            request.tokens_ns, request.admissions = served.tokens_ns, [*source.admissions, *served.admissions]
            before = len(source.admissions)
            decode_reused = {before + ordinal: tokens for ordinal, tokens in served.host_reused.items()}
            request.host_reused = {**source.host_reused, **decode_reused}
            request.handoff = (
                handoff.worker,
                *(handoff.held_ns, handoff.reserved_ns, handoff.activated_ns, handoff.released_ns),
            )
        for instance in self.controls.instances:
            mine = [number for number in instance.requests.values() if self.controls.requests[number].terminal_ns >= 0]
            if instance.settled_ns >= 0:
                last = max((self.settled_ns.get(number, -1) for number in mine), default=-1)
                instance.settled_ns = -1 if late & set(mine) else max(instance.settled_ns, last)


def replay_controlled(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec, controls: type[Controls] = Controls
) -> Controls:
    """Replay `graph` under the run controls of `load`."""
    driver = controls(graph, load)
    if deployment.decode is not None:
        run = ControlledDisaggregated(driver, deployment)
        run.run()
        run.finish()
        driver.quiescent = run.settled_ns
        driver.workers = run.workers
    else:
        aggregated = ControlledAggregated(driver, deployment)
        aggregated.run()
        driver.quiescent = {request.index: request.terminal_ns for request in driver.requests}
        driver.workers = aggregated.workers
    return driver
