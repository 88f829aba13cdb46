"""Nodes, plays and lanes: what is due when, what an end releases, and what a failure ends."""

from __future__ import annotations

from playproof_spec.deployment import LoadSpec
from playproof_spec.graph import Graph, Trigger

from playproof_reference.requests import Request


class Driver:
    """Nodes, plays and lanes, straight from the rules."""

    def __init__(self, graph: Graph, load: LoadSpec) -> None:
        self.graph = graph
        self.load = load
        self.now = 0
        self.requests = [Request(i) for i in range(graph.node_count)]
        self.play_state = ["pending"] * len(graph.plays)
        self.play_start = [-1] * len(graph.plays)
        self.play_settled = [-1] * len(graph.plays)
        self.failed_node = [-1] * len(graph.plays)
        self.lane_play: list[int | None] = []
        self.play_lane = [-1] * len(graph.plays)
        self.next_play = 0
        self.edges = [[graph.edge(n, t) for n in self._into(t)] for t in range(graph.node_count)]
        self.cancellations = sorted(load.cancellations)

    def tie(self, node: int) -> int:
        """The place of `node` among those that are due at one instant."""
        return int(self.graph.tie_ranks[node])

    def _into(self, node: int) -> range:
        return range(int(self.graph.edge_offsets[node]), int(self.graph.edge_offsets[node + 1]))

    def _ns(self, ms: float) -> int:
        return round(ms / self.load.speedup * 1_000_000)

    def floor_ns(self, node: int) -> int:
        floors = self.graph.not_before_ms
        nodes = range(self.graph.node_count)
        if self.load.lanes is not None:
            nodes = self.graph.plays[self.graph.node_play[node]].nodes.tolist()
        origin = min(float(floors[n]) for n in nodes if not self.edges[n])
        return self._ns(max(float(floors[node]) - origin, 0.0))

    def start(self) -> None:
        if self.load.lanes is None:
            for play in range(len(self.graph.plays)):
                self.activate(play)
        else:
            for lane in range(min(self.load.lanes, len(self.graph.plays))):
                self.lane_play.append(None)
                self.occupy(lane)

    def occupy(self, lane: int) -> None:
        if self.next_play < len(self.graph.plays):
            self.lane_play[lane] = self.next_play
            self.play_lane[self.next_play] = lane
            self.next_play += 1
            self.activate(self.next_play - 1)
        else:
            self.lane_play[lane] = None

    def activate(self, play: int) -> None:
        self.play_state[play] = "active"
        self.play_start[play] = self.now
        for node in self.graph.plays[play].nodes:
            request = self.requests[node]
            request.ready_ns = self.now + self.floor_ns(int(node))
            request.waiting_for = len(self.edges[node])
            if request.waiting_for == 0:
                request.state = "ready"

    def due(self) -> list[int]:
        """Nodes that can be dispatched now, in order."""
        ready = [r for r in self.requests if r.state == "ready" and r.ready_ns <= self.now]
        return [r.index for r in sorted(ready, key=lambda r: (r.ready_ns, self.tie(r.index)))]

    def next_time(self) -> int | None:
        times = [r.ready_ns for r in self.requests if r.state == "ready"]
        if any(request.state == "dispatched" for request in self.requests):
            times += [at for at, _ in self.cancellations]  # nobody gives up on what is not in flight
        return min(times, default=None)

    def give_up(self) -> list[int]:
        """Cancel what the client gives up now; nodes that are not in flight are left alone."""
        due = [node for at, node in self.cancellations if at <= self.now]
        self.cancellations = self.cancellations[len(due) :]
        nodes = [node for node in due if self.requests[node].state == "dispatched"]
        nodes = list(dict.fromkeys(nodes))
        self.hear([(node, "canceled") for node in nodes])
        return nodes

    def fire(self, source: int, trigger: Trigger) -> None:
        name = self.graph.request_ids[source]
        for target, edges in enumerate(self.edges):
            for edge in edges:
                if edge.source == name and edge.trigger is trigger:
                    request = self.requests[target]
                    request.ready_ns = max(request.ready_ns, self.now + self._ns(edge.delay_ms))
                    request.waiting_for -= 1
                    if request.waiting_for == 0:
                        request.state = "ready"

    def dispatch(self, node: int) -> None:
        self.requests[node].state = "dispatched"
        self.requests[node].dispatched_ns = self.now
        self.fire(node, Trigger.DISPATCH)

    def in_flight(self, play: int) -> int:
        return sum(self.requests[n].state == "dispatched" for n in self.graph.plays[play].nodes)

    def hear(self, outcomes: list[tuple[int, str]]) -> None:
        """Take in (node, completed | rejected | failed | canceled) of this instant."""
        for node, outcome in sorted(outcomes, key=lambda each: self.tie(each[0])):
            play = int(self.graph.node_play[node])
            self.requests[node].state = outcome
            self.requests[node].terminal_ns = self.now
            if outcome == "completed":
                if self.play_state[play] == "active":
                    self.fire(node, Trigger.COMPLETION)
            elif self.play_state[play] == "active":
                self.play_state[play] = "failing"
                self.failed_node[play] = node
                for other in self.graph.plays[play].nodes:
                    if self.requests[other].state in ("blocked", "ready"):
                        self.requests[other].state = "skipped"
            self.settle(play, outcomes, node)

    def settle(self, play: int, outcomes: list[tuple[int, str]], node: int) -> None:
        # Requests of the same instant that come later in node order are still in flight.
        if self.in_flight(play) > 0:
            return
        states = {self.requests[n].state for n in self.graph.plays[play].nodes}
        if states == {"completed"}:
            self.play_state[play] = "completed"
        elif self.play_state[play] == "failing":
            self.play_state[play] = "failed"
        else:
            return
        self.play_settled[play] = self.now
        if self.play_lane[play] >= 0:
            self.occupy(self.play_lane[play])
