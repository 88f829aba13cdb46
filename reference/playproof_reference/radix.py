"""SGLang's radix tree over pages, page by page, and the number of free ones."""

from __future__ import annotations

from collections.abc import Sequence


class Branch:
    """A node of the tree: pages in order, each as the whole of what it and the pages before it hold."""

    def __init__(self, parent: Branch | None, pages: list[object], tick: int) -> None:
        self.parent = parent
        self.pages = pages
        self.tick: float = tick
        self.locks = 0
        self.children: list[Branch] = []

    def path(self) -> list[Branch]:
        """The nodes from here up, without the root."""
        return [] if self.parent is None else [self, *self.parent.path()]

    def below(self) -> list[Branch]:
        return [self, *(branch for child in self.children for branch in child.below())]


class RadixTree:
    """A radix tree over pages, and the number of free ones."""

    def __init__(self, pages: int) -> None:
        self.root = Branch(None, [], 0)
        self.free = pages
        self.clock = 0
        self.evictions = 0

    def branches(self) -> list[Branch]:
        return self.root.below()[1:]

    def evictable(self) -> int:
        return sum(len(branch.pages) for branch in self.branches() if branch.locks == 0)

    def available(self) -> int:
        return self.free + self.evictable()

    def child(self, branch: Branch, page: object) -> Branch | None:
        found = [child for child in branch.children if child.pages[0] == page]
        assert len(found) <= 1
        return found[0] if found else None

    def agreed(self, branch: Branch, pages: Sequence[object]) -> int:
        count = 0
        while count < min(len(branch.pages), len(pages)) and branch.pages[count] == pages[count]:
            count += 1
        return count

    def cached(self, pages: Sequence[object]) -> int:
        at, done = self.root, 0
        while done < len(pages) and (child := self.child(at, pages[done])) is not None:
            common = self.agreed(child, pages[done:])
            done += common
            at = child
            if common < len(child.pages):
                break
        return done

    def evictable_of(self, pages: Sequence[object]) -> int:
        """How many of `pages`, which are all cached, nobody has locked."""
        at, done, count = self.root, 0, 0
        while done < len(pages):
            child = self.child(at, pages[done])
            assert child is not None
            common = self.agreed(child, pages[done:])
            count += common if child.locks == 0 else 0
            done += common
            at = child
        return count

    def split(self, branch: Branch, count: int) -> Branch:
        assert branch.parent is not None
        branch.tick = self.clock
        head = Branch(branch.parent, branch.pages[:count], self.clock)
        head.locks = branch.locks
        branch.parent.children[branch.parent.children.index(branch)] = head
        head.children = [branch]
        branch.parent, branch.pages = head, branch.pages[count:]
        return head

    def lock(self, pages: Sequence[object]) -> Branch:
        """Lock the path of `pages`, which are all cached."""
        self.clock += 1
        at, done = self.root, 0
        while done < len(pages):
            child = self.child(at, pages[done])
            assert child is not None
            common = self.agreed(child, pages[done:])
            done += common
            if common < len(child.pages):
                at = self.split(child, common)
            else:
                at = child
                at.tick = self.clock
        for branch in at.path():
            branch.locks += 1
        return at

    def unlock(self, branch: Branch) -> None:
        for one in branch.path():
            assert one.locks > 0
            one.locks -= 1

    def insert(self, start: Branch, pages: Sequence[object]) -> Branch:
        """Cache `pages` below `start`; the caller's copies of those that are there already become free."""
        self.clock += 1
        for branch in start.path():
            branch.tick = self.clock
        if not pages:
            return start
        at, done = start, 0
        while done < len(pages):
            mine = at is start and at.locks == 1
            if at is not self.root and not at.children and (at.locks == 0 or mine):
                at.pages = [*at.pages, *pages[done:]]
                at.tick = self.clock
                return at
            child = self.child(at, pages[done])
            if child is None:
                return self.hang(at, pages[done:])
            common = self.agreed(child, pages[done:])
            self.free += common
            done += common
            if common < len(child.pages):
                head = self.split(child, common)
                return self.hang(head, pages[done:]) if done < len(pages) else head
            at = child
            at.tick = self.clock
        return at

    def hang(self, parent: Branch, pages: Sequence[object]) -> Branch:
        branch = Branch(parent, list(pages), self.clock)
        parent.children.append(branch)
        return branch

    def evict(self, count: int) -> None:
        for _ in range(count):
            leaves = [branch for branch in self.branches() if not branch.children and branch.locks == 0]
            victim = min(leaves, key=lambda branch: branch.tick)
            victim.pages = victim.pages[:-1]
            if not victim.pages:
                assert victim.parent is not None
                victim.parent.children.remove(victim)
            self.free += 1
            self.evictions += 1

    def take(self, count: int) -> None:
        self.evict(max(count - self.free, 0))
        self.free -= count
        assert self.free >= 0


class OwnTree(RadixTree):
    """The tree as SGLang has it: what one insert adds is a node for good, and is evicted whole."""

    def match(self, pages: Sequence[object]) -> None:
        """Look at `pages`, which are all cached: a node that ends later is cut, and the path is the newest."""
        self.clock += 1
        at, done = self.root, 0
        while done < len(pages):
            child = self.child(at, pages[done])
            assert child is not None
            common = self.agreed(child, pages[done:])
            done += common
            at = self.split(child, common) if common < len(child.pages) else child
        self.stamp(at)

    def stamp(self, branch: Branch) -> None:
        for one in branch.path():
            one.tick = self.clock

    def split(self, branch: Branch, count: int) -> Branch:
        head = super().split(branch, count)
        branch.tick = self.clock - 0.5  # of what is cut off, until the path that needs it is stamped
        return head

    def lock(self, pages: Sequence[object]) -> Branch:
        if pages:
            self.match(pages)
        at, done = self.root, 0
        while done < len(pages):
            child = self.child(at, pages[done])
            assert child is not None
            at, done = child, done + len(child.pages)
        for branch in at.path():
            branch.locks += 1
        return at

    def insert(self, start: Branch, pages: Sequence[object], prompt: int | None = None) -> Branch:
        """Cache `pages` below `start`; a node with pages on both sides of the first `prompt` ones is cut there."""
        self.clock += 1
        at, done = start, 0
        while done < len(pages):
            child = self.child(at, pages[done])
            if child is None:
                at, done = self.hang(at, pages[done:]), len(pages)
                break
            common = self.agreed(child, pages[done:])
            self.free += common
            done += common
            at = self.split(child, common) if common < len(child.pages) else child
        for branch in at.path():
            begin = sum(len(above.pages) for above in branch.path()[1:])
            if prompt is not None and begin < prompt < begin + len(branch.pages):
                self.split(branch, prompt - begin)
        self.stamp(at)
        return at

    def evict(self, count: int) -> None:
        while count > 0:
            leaves = [branch for branch in self.branches() if not branch.children and branch.locks == 0]
            if not leaves:
                return
            victim = min(leaves, key=lambda branch: branch.tick)
            assert victim.parent is not None
            victim.parent.children.remove(victim)
            count -= len(victim.pages)
            self.free += len(victim.pages)
            self.evictions += len(victim.pages)

    def make_free(self, count: int) -> None:
        """Have `count` pages free, as far as they can be evicted."""
        self.evict(count - self.free)
