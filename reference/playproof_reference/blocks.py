"""A block pool of the device, as vLLM keeps it: free blocks, cached ones, and the order in which idle ones go."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """A block pool: content → copies in the order in which they were cached; idle copies by age."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.refs: dict[int, int] = {}
        self.content: dict[int, object] = {}
        self.cached: dict[object, list[int]] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.evictions = 0

    def available(self) -> int:
        return len(self.free) + len(self.idle)

    def find(self, content: object) -> int | None:
        copies = self.cached.get(content)
        return copies[0] if copies else None

    def allocate(self) -> int:
        if self.free:
            copy = self.free.pop()
        else:
            copy, _ = self.idle.popitem(last=False)
            self.evictions += 1
            copies = self.cached[self.content[copy]]
            copies.remove(copy)
            del self.content[copy]
        self.refs[copy] = 1
        return copy

    def allocate_all(self, number: int) -> list[int]:
        """Take `number` copies at once; those evicted for it come first, the last one evicted before the others."""
        spare = min(number, len(self.free))
        taken = [self.allocate() for _ in range(number)]
        return taken[: spare - 1 : -1] + taken[:spare] if spare else taken[::-1]

    def give_back(self, copies: list[int]) -> None:
        """Undo an allocation of `copies`; what was evicted for it stays evicted."""
        for copy in reversed(copies):
            self.refs[copy] = 0
            self.free.append(copy)

    def reuse(self, copy: int) -> None:
        self.idle.pop(copy, None)
        self.refs[copy] += 1

    def fill(self, copy: int, content: object) -> None:
        self.content[copy] = content
        self.cached.setdefault(content, []).append(copy)

    def release(self, copy: int) -> None:
        self.refs[copy] -= 1
        if self.refs[copy] == 0:
            if copy in self.content:
                self.idle[copy] = None
            else:
                self.free.append(copy)
