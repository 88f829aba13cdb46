"""A KV router: every worker asked, every block of the prompt looked up, every request counted anew.

What workers have published is a copy of what they had when a
pass of theirs, or a transfer, last ended (`VllmWorker.publish`).
"""

from __future__ import annotations

from collections.abc import Sequence

from playproof_spec.deployment import RouterSpec

from playproof_reference.vllm import VllmWorker


class Router:
    """Places the requests of one role: in turn, or by cost."""

    def __init__(self, workers: Sequence[VllmWorker], spec: RouterSpec | None) -> None:
        self.workers = workers
        self.spec = spec
        self.placed = 0
        self.overlap: dict[int, int] = {}  # tokens of a prompt that its worker was known to have

    def place(self, node: int) -> int:
        """Return the worker that `node` goes to."""
        if self.spec is None:
            self.placed += 1
            return (self.placed - 1) % len(self.workers)
        spec = self.spec
        best = None
        for number, worker in enumerate(self.workers):
            device, host = self.known(worker, node)
            tokens = worker.prompt(node)
            size = worker.spec.block_size
            not_begun = [n for n in worker.assigned if not self.has_begun(worker, n)]
            missing = tokens - device * size + sum(worker.assigned[n][0] for n in not_begun)
            restorable = host * size + sum(worker.assigned[n][1] for n in not_begun)
            load = sum(worker.known(n) for n in worker.assigned)
            cost = spec.overlap_score_weight * (missing - spec.host_cache_hit_weight * restorable) + load
            if best is None or (cost, load, number) < best[:3]:
                best = (cost, load, number, (tokens - device * size, host * size))
        assert best is not None
        number, (missing, restorable) = best[2], best[3]
        self.workers[number].assigned[node] = (missing, restorable)
        self.overlap[node] = self.workers[number].prompt(node) - missing + restorable
        return number

    def has_begun(self, worker: VllmWorker, node: int) -> bool:
        return bool(worker.requests[node].admissions)

    def known(self, worker: VllmWorker, node: int) -> tuple[int, int]:
        """How many leading blocks of the prompt of `node` the device has, and how many behind them the host."""
        contents = worker.contents(node, worker.prompt(node) // worker.spec.block_size)
        device = 0
        while device < len(contents) and contents[device] in worker.published:
            device += 1
        host = 0
        while device + host < len(contents) and contents[device + host] in worker.host_published():
            host += 1
        return device, host
