"""Workers that do both prefill and decode: the order of what is due at one instant, and the clock."""

from __future__ import annotations

from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph

from playproof_reference.clock import Replay
from playproof_reference.driver import Driver
from playproof_reference.host import join_pool
from playproof_reference.router import Router
from playproof_reference.vllm import VllmWorker
from playproof_reference.workers import new_worker, of_one_run, speculate


class Aggregated(Replay[VllmWorker]):
    """A whole aggregated replay."""

    def __init__(self, graph: Graph, deployment: DeploymentSpec, load: LoadSpec, driver: Driver | None = None) -> None:
        self.driver = driver or Driver(graph, load)
        requests = self.driver.requests
        self.workers = [new_worker(graph, deployment, requests) for _ in range(deployment.workers)]
        speculate(self.workers, deployment)
        join_pool(self.workers)
        self.log = of_one_run(self.workers, load)
        self.router = Router(self.workers, deployment.router)

    def over(self) -> bool:
        """Whether the run has ended although events are due."""
        return False

    def give_up(self, nodes: list[int]) -> None:
        """The client cancels `nodes`, which are in flight."""
        for node in nodes:
            self.workers[self.driver.requests[node].worker].cancel(node)

    def step(self) -> bool:
        """Do once what is due at this instant, in order; say whether anything was."""
        now, changed = self.driver.now, False
        outcomes: list[tuple[int, str]] = []
        for worker in self.workers:
            changed = worker.end_due_copies(now) or changed
        for worker in self.workers:
            if worker.end_ns == now:
                outcomes += self.end_pass(worker)
                changed = True
        self.driver.hear(outcomes)
        given_up = self.driver.give_up()
        self.give_up(given_up)
        if self.over():
            return False
        refused: list[tuple[int, str]] = []
        while due := self.driver.due():
            changed = True
            if self.workers[0].prompt(due[0]) >= self.workers[0].context:
                # The front end refuses it: no worker hears of it.
                self.driver.dispatch(due[0])
                refused.append((due[0], "rejected"))
                continue
            number = self.router.place(due[0])
            self.driver.requests[due[0]].worker = number
            self.driver.dispatch(due[0])
            self.workers[number].accept(due[0])
        started = self.start_passes(refused)
        return started or bool(given_up) or changed

    def end_pass(self, worker: VllmWorker) -> list[tuple[int, str]]:
        outcomes = worker.end_pass(self.driver.now)
        worker.publish(outcomes)
        worker.forget_canceled()
        return outcomes

    def start_passes(self, outcomes: list[tuple[int, str]]) -> bool:
        """Start passes; the driver hears of `outcomes` together with what ends at once."""
        changed = False
        while True:
            idle = [w for w in self.workers if w.end_ns is None and w.has_work()]
            started = next((w for w in idle if w.begin(self.driver.now)), None)
            if started is None:
                break
            changed = True
            if started.end_ns == self.driver.now:
                outcomes += self.end_pass(started)
        self.driver.hear(outcomes)
        return changed

    def next_time(self) -> int | None:
        times = [w.end_ns for w in self.workers]
        times += [w.next_copy_end() for w in self.workers]
        return min((at for at in [*times, self.driver.next_time()] if at is not None), default=None)
