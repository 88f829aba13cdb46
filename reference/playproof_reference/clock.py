"""The clock of a replay: from instant to instant, until nothing is due or the load stops the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from playproof_reference.driver import Driver
from playproof_reference.vllm import VllmWorker

WorkerT = TypeVar("WorkerT", bound=VllmWorker)


class Replay(ABC, Generic[WorkerT]):
    """A whole replay: a driver, and workers that serve what it dispatches."""

    driver: Driver
    workers: Sequence[WorkerT]  # those of the prefill role first

    @abstractmethod
    def step(self) -> bool:
        """Take one turn at the present instant, and say whether it changed anything."""

    @abstractmethod
    def next_time(self) -> int | None:
        """When something is due next, or None."""

    def run(self) -> None:
        self.driver.start()
        while True:
            while self.step():
                pass
            following = self.next_time()
            stop_ns = self.driver.load.stop_ns
            if following is None or (stop_ns is not None and following > stop_ns):
                break
            self.driver.now = following
        # Passes that have not ended do not count.
        for worker in self.workers:
            worker.leave()
