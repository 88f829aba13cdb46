"""The radix tree beside a naive one, step by step: what is cached, counted and evicted, and in which order."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from playproof_kernel.ground.arrays import NONE, Branch, Config, Keys, Static, Worker
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.records import records
from playproof_kernel.memory import radix_tree
from playproof_kernel.memory.radix_tree import Tree
from playproof_reference.radix import Branch as NaiveBranch
from playproof_reference.radix import OwnTree
from playproof_reference.radix import RadixTree as NaiveTree

PAGES = 24
CAPACITY = 400


# The tree's functions are compiled into their callers; these are callers for the test.
@compiled_entry
def find_prefix(tree: Tree, request: int, most: int) -> tuple[int, int]:
    return radix_tree.match_prefix(tree, request, most)


@compiled_entry
def lock_prefix(tree: Tree, pages: int, node: int) -> int:
    return radix_tree.lock_matched(tree, pages, node)


@compiled_entry
def evictable_on_path(tree: Tree, pages: int, node: int) -> int:
    return radix_tree.evictable_on_path(tree, pages, node)


@compiled_entry
def published_prefix(tree: Tree, request: int, most: int) -> int:
    return radix_tree.published_prefix(tree, request, most)


@compiled_entry
def insert_and_lock(tree: Tree, request: int, start: int, begin: int, end: int, prompt: int) -> int:
    node = radix_tree.insert(tree, request, start, begin, end)
    if tree.config[0].fixed_nodes != 0:
        radix_tree.part_at(tree, node, prompt)
    radix_tree.lock_below(tree, node, start)
    return node


@compiled_entry
def touch(tree: Tree, pages: int, node: int) -> int:
    return radix_tree.touch(tree, pages, node)


@compiled_entry
def unlock(tree: Tree, node: int) -> None:
    radix_tree.dec_lock_ref(tree, node)


@compiled_entry
def evict(tree: Tree, pages: int) -> None:
    radix_tree.evict(tree, pages)


def new_tree(prompts: list[list[int]]) -> Tree:
    """Return an empty tree over `prompts`, one key a page: equal prefixes have equal keys, nothing else."""
    chains: dict[tuple[int, ...], int] = {}
    static = records(len(prompts), Static)
    runs: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        static[number].input = len(prompt)
        static[number].key_begin = len(runs)
        for page in range(len(prompt)):
            key = chains.setdefault(tuple(prompt[: page + 1]), len(chains))
            last = runs[-1] if len(runs) > static[number].key_begin else None
            if last is not None and last[0] + last[1] == key:
                last[1] += 1
            else:
                runs.append([key, 1, page])
        static[number].key_end = static[number].answer_end = len(runs)
        static[number].keyed = len(prompt)
    static.source = static.serial = np.arange(len(static))
    keys, config, worker = records(len(runs), Keys), records(1, Config), records(1, Worker)
    for at, (first, count, begin) in enumerate(runs):
        keys[at].first, keys[at].count, keys[at].begin = first, count, begin
    config.block_size = config.key_stride = config.hears = 1
    worker.free = PAGES
    worker.tree_used = worker.tree_live = 1
    worker.tree_spare = NONE
    nodes = records(CAPACITY, Branch)
    nodes[0].place = NONE
    ghosts, leaves = records(CAPACITY, Branch), np.zeros(CAPACITY, np.int64)
    return Tree(nodes, np.full(16, NONE, np.int64), leaves, worker, ghosts, static, keys, config)


class Holder:
    """A request with cached pages, in both trees."""

    def __init__(self, request: int, pages: int, node: int, branch: NaiveBranch) -> None:
        self.request, self.pages, self.node, self.branch = request, pages, node, branch


class TreeBesideNaive(RuleBasedStateMachine):
    """Requests lock prefixes, insert pages and let go; prompts are few and branch often, pages are short.

    The tree is SGLang's own, whose nodes stay as they were inserted and go whole, or the peer's.
    """

    @initialize(
        prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=2, max_size=6),
        own=st.booleans(),
    )
    def create(self, prompts: list[list[int]], own: bool) -> None:
        self.prompts, self.own = prompts, own
        self.tree = new_tree(prompts)
        self.tree.config.fixed_nodes = self.tree.config.whole_leaves = own
        self.naive = OwnTree(PAGES) if own else NaiveTree(PAGES)
        self.holders: list[Holder] = []
        self.told: set[object] = set()

    def pages(self, request: int, count: int) -> list[object]:
        return [tuple(self.prompts[request][: page + 1]) for page in range(count)]

    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        request = data.draw(st.integers(0, len(self.prompts) - 1))
        most = data.draw(st.integers(0, len(self.prompts[request])))
        count, node = find_prefix(self.tree, request, most)
        found = self.pages(request, count)
        assert count == self.naive.cached(self.pages(request, most))
        assert evictable_on_path(self.tree, count, node) == self.naive.evictable_of(found)
        leaf = lock_prefix(self.tree, count, node)
        self.holders.append(Holder(request, count, leaf, self.naive.lock(found)))

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        request = data.draw(st.integers(0, len(self.prompts) - 1))
        count, node = find_prefix(self.tree, request, len(self.prompts[request]))
        touch(self.tree, count, node)
        assert isinstance(self.naive, OwnTree)
        self.naive.match(self.pages(request, count))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        more = min(len(self.prompts[holder.request]) - holder.pages, self.naive.available())
        if more <= 0:
            return
        count = data.draw(st.integers(1, more))
        if count > self.naive.free:
            evict(self.tree, count - self.naive.free)
        self.tree.worker[0].free -= count
        self.naive.take(count)
        end = holder.pages + count
        prompt = data.draw(st.integers(0, end))  # where prompt and output part
        holder.node = insert_and_lock(self.tree, holder.request, holder.node, holder.pages, end, prompt)
        before, pages = holder.branch, self.pages(holder.request, end)[holder.pages :]
        if isinstance(self.naive, OwnTree):
            holder.branch = self.naive.insert(before, pages, prompt)
        else:
            holder.branch = self.naive.insert(before, pages)
        for branch in holder.branch.path():
            branch.locks += 1
        self.naive.unlock(before)
        holder.pages = end

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        unlock(self.tree, holder.node)
        self.naive.unlock(holder.branch)

    @precondition(lambda self: self.naive.evictable() > 0)
    @rule(data=st.data())
    def evict_some(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.naive.evictable()))
        evict(self.tree, count)
        self.naive.evict(count)

    @rule()
    def tell(self) -> None:
        self.tree.worker[0].published += 1
        self.tree.worker[0].ghosts = 0
        self.told = {page for branch in self.naive.branches() for page in branch.pages}

    @invariant()
    def same_counts(self) -> None:
        worker = self.tree.worker[0]
        assert (int(worker.free), int(worker.idle)) == (self.naive.free, self.naive.evictable())
        assert int(worker.tree_live) == len(self.naive.branches()) + 1

    @invariant()
    def no_page_is_lost(self) -> None:
        assert self.naive.free + sum(len(branch.pages) for branch in self.naive.branches()) == PAGES

    @invariant()
    def same_prefixes_are_cached(self) -> None:
        for request, prompt in enumerate(self.prompts):
            count, _ = find_prefix(self.tree, request, len(prompt))
            assert count == self.naive.cached(self.pages(request, len(prompt)))

    @invariant()
    def same_prefixes_were_told(self) -> None:
        for request, prompt in enumerate(self.prompts):
            told = [page in self.told for page in self.pages(request, len(prompt))]
            assert published_prefix(self.tree, request, len(prompt)) == [*told, False].index(False)


TestTreeBesideNaive = TreeBesideNaive.TestCase
TestTreeBesideNaive.settings = settings(stateful_step_count=60)
