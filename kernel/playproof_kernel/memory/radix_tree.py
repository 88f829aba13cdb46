"""The radix tree of an SGLang worker: which pages are cached, which are in use, which go next.

A tree node is a stretch of pages that every prompt through it shares. Page keys identify the whole chain up to their
page (see `compiled`), and so

- a node needs no keys of its own: it names a request whose pages `begin` to `end` it holds, by what outlives that
  request (its node of the corpus, its namespace, its number);
- two stretches that begin alike agree up to page e exactly when their keys of page e agree: a whole node is compared
  by its last key, a fork is found by bisection;
- a child is found by its first key alone, in one hash table a worker.

Work therefore grows with forks, not with pages. Node 0 is the root. The identity of free pages does not matter, so the
pool is a counter; `free` and `idle` of the worker's record count free and evictable pages.

**Recency.** One clock a tree. A match that locks stamps the nodes that it covers; an insert stamps the path that it
starts from and the nodes that it covers; what either cuts off a node is stamped with it, but goes before the rest. So
the clock ticks by two, and what was cut off gets the odd stamp before. Unlocked leaves stand in a heap by stamp. No two
of them have the same one: even stamps of one tick lie on one path, and a tick cuts one node at most.

**What has been published.** A worker tells the KV router of its tree when a pass or a transfer ends, and counts how
often it did. A node notes that count, and where it ended, when pages are added to it: what was added since the last
telling is not known yet. What was evicted since is a *ghost*, a stretch of pages without a node that is still believed
to be there. Telling forgets the ghosts, and touches no node.

`tests/properties/test_radix.py` runs this tree beside a naive one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from playproof_kernel.ground import buckets
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import compiled, compiled_entry
from playproof_kernel.memory import prompt_keys
from playproof_kernel.memory.block_pool import generated_key

ROOT = 0


@compiled_entry
def room(sequences: int) -> int:
    """Return how many nodes a pass of `sequences` requests may add: one at each match, three at each insert."""
    return 5 * sequences + 8


@compiled
def has_room(sim: Sim, worker: int, number: int) -> bool:
    """Whether the tree of `worker` can take `number` more nodes, and evict all of them."""
    record = sim.workers[worker]
    wanted = record.tree_live + number
    if sim.config[0].hears != 0:
        # As many evictions, whole nodes or in part, may leave a ghost each; so may all nodes.
        wanted += record.ghosts + number
    return bool(wanted <= sim.tree.shape[1])


class Tree(NamedTuple):
    """Views of one worker's part of `Sim`, and of what its keys are made of.

    Attributes
    ----------
    nodes : records, shape (capacity,); buckets : Int64, shape (power of two,)
    leaves : Int64, shape (capacity,)
        Heap of unlocked leaves by stamp.
    worker : records, shape (1,)
        The worker's own record: counters, clock, free list of nodes.
    ghosts : records, shape (capacity,)
        With the KV router; a node's record with the fields that name pages. Without it, the nodes once more.
    static, keys, config : records, read only
    """

    nodes: Any
    buckets: Any
    leaves: Any
    worker: Any
    ghosts: Any
    static: Any
    keys: Any
    config: Any


@compiled
def tree_of(sim: Sim, worker: int) -> Tree:
    """Return the tree of `worker`."""
    return Tree(
        sim.tree[worker],
        sim.branches[worker],
        sim.leaves[worker],
        sim.workers[worker : worker + 1],
        sim.tree[worker + sim.config[0].hears * sim.workers.shape[0]],
        sim.static,
        sim.keys,
        sim.config,
    )


@compiled
def key_at(tree: Any, request: int, page: int) -> int:
    """Return the key of page `page` of `request`; pages that hold a generated token have keys of their own."""
    static = tree.static[request]
    return _page_key(tree, request, static.space, static.serial, page)


@compiled
def _owned_key(tree: Any, node: int, page: int) -> int:
    """Return the key of page `page` of the request that owns `node`."""
    return _named_key(tree, tree.nodes[node], page)


@compiled
def _named_key(tree: Any, entry: Any, page: int) -> int:
    return _page_key(tree, entry.owner, entry.space, entry.serial, page)


@compiled
def _own(tree: Any, node: int, request: int) -> None:
    entry, static = tree.nodes[node], tree.static[request]
    entry.owner = static.source
    entry.space = static.space
    entry.serial = static.serial


@compiled
def _page_key(tree: Any, source: int, space: int, serial: int, page: int) -> int:
    """Return the key of page `page` of a request with the prompt of `source`."""
    static = tree.static[source]
    if page >= static.keyed:
        return generated_key(serial, page)
    return prompt_keys.key_at(tree.keys, static, space, tree.config[0].key_stride, page)


# The heap of unlocked leaves --------------------------------------------------------------------------------------


@compiled
def _sift_up(tree: Any, at: int) -> int:
    nodes, leaves = tree.nodes, tree.leaves
    leaf = leaves[at]
    while at > 0:
        above = leaves[(at - 1) // 2]
        if nodes[above].tick <= nodes[leaf].tick:
            break
        leaves[at] = above
        nodes[above].place = at
        at = (at - 1) // 2
    leaves[at] = leaf
    nodes[leaf].place = at
    return at


@compiled
def _sift_down(tree: Any, at: int) -> None:
    nodes, leaves = tree.nodes, tree.leaves
    count = tree.worker[0].leaves
    leaf = leaves[at]
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and nodes[leaves[child + 1]].tick < nodes[leaves[child]].tick:
            child += 1
        if nodes[leaves[child]].tick >= nodes[leaf].tick:
            break
        leaves[at] = leaves[child]
        nodes[leaves[at]].place = at
        at = child
    leaves[at] = leaf
    nodes[leaf].place = at


@compiled
def _add_leaf(tree: Any, node: int) -> None:
    at = tree.worker[0].leaves
    tree.leaves[at] = node
    tree.worker[0].leaves += 1
    _sift_up(tree, at)


@compiled
def _remove_leaf(tree: Any, node: int) -> None:
    at = tree.nodes[node].place
    tree.nodes[node].place = NONE
    tree.worker[0].leaves -= 1
    last = tree.leaves[tree.worker[0].leaves]
    if last != node:
        tree.leaves[at] = last
        tree.nodes[last].place = at
        _sift_down(tree, _sift_up(tree, at))


@compiled
def _stamp(tree: Any, node: int, tick: int) -> None:
    """Stamp `node`, and move it in the heap if it is there."""
    tree.nodes[node].tick = tick
    if tree.nodes[node].place != NONE:
        _sift_down(tree, tree.nodes[node].place)


# Nodes and children -----------------------------------------------------------------------------------------------


@compiled
def _link(tree: Any, node: int, key: int) -> None:
    bucket = buckets.bucket_of(key, tree.buckets.shape[0])
    tree.nodes[node].key = key
    tree.nodes[node].next = tree.buckets[bucket]
    tree.buckets[bucket] = node


@compiled
def _child(tree: Any, key: int) -> int:
    """Return the node whose first page has `key`, or NONE; its parent can be no other than where one looks."""
    return buckets.find(tree.nodes, tree.buckets, key)


@compiled
def _new_node(tree: Any, parent: int, begin: int, end: int) -> int:
    """Take a node from the free list or the end of the used ones; the loop has made sure of room.

    The caller names its owner.
    """
    record = tree.worker[0]
    new = int(record.tree_spare)
    if new != NONE:
        record.tree_spare = tree.nodes[new].next
    else:
        new = int(record.tree_used)
        record.tree_used += 1
    record.tree_live += 1
    node = tree.nodes[new]
    node.parent = parent
    node.begin = begin
    node.end = end
    node.children = 0
    node.locks = 0
    node.place = NONE
    return new


@compiled
def _split(tree: Any, node: int, page: int) -> int:
    """Cut `node` before `page` and return the new node for its head; `node` keeps the tail and its place."""
    old = tree.nodes[node]
    head = _new_node(tree, old.parent, old.begin, page)
    new = tree.nodes[head]
    new.owner = old.owner
    new.space = old.space
    new.serial = old.serial
    new.children = 1
    new.locks = old.locks
    new.grown = old.grown
    new.shown = min(old.shown, page)
    old.shown = max(old.shown, page)
    new.tick = tree.worker[0].tick
    _stamp(tree, node, new.tick - 1)
    buckets.unlink(tree.nodes, tree.buckets, node)
    _link(tree, head, old.key)
    old.parent = head
    old.begin = page
    _link(tree, node, _owned_key(tree, node, page))
    return head


@compiled
def _common(tree: Any, request: int, node: int, most: int) -> int:
    """Return the page before which `request` and `node` part; they agree on the node's first page.

    Never past the node's end nor past `most`.
    """
    high = min(tree.nodes[node].end, most)
    same = tree.nodes[node].serial == tree.static[request].serial
    if same or key_at(tree, request, high - 1) == _owned_key(tree, node, high - 1):
        return int(high)
    low = tree.nodes[node].begin + 1
    high -= 1
    # Agreed up to `low`, and not up to `high + 1`.
    while low < high:
        middle = (low + high + 1) // 2
        if key_at(tree, request, middle - 1) == _owned_key(tree, node, middle - 1):
            low = middle
        else:
            high = middle - 1
    return int(low)


# What a worker does with the tree ---------------------------------------------------------------------------------


@compiled
def match_prefix(tree: Any, request: int, most: int) -> tuple[int, int]:
    """Find the longest cached prefix of `request`, at most `most` pages; nothing is written.

    Returns
    -------
    pages, node : int
        Its length, and the node in which it ends (perhaps before the node's end), the root for none.
    """
    at, depth = ROOT, 0
    while depth < most:
        child = _child(tree, key_at(tree, request, depth))
        if child == NONE:
            break
        at = child
        depth = _common(tree, request, child, most)
        if depth < tree.nodes[child].end:
            break
    return depth, at


@compiled
def evictable_on_path(tree: Any, pages: int, node: int) -> int:
    """Return how many of the pages that `match_prefix` found are evictable now, and would not be once locked."""
    evictable, upto, at = 0, pages, node
    while at != ROOT:
        entry = tree.nodes[at]
        if entry.locks == 0:
            evictable += upto - entry.begin
        upto = entry.begin
        at = entry.parent
    return int(evictable)


@compiled
def _lock(tree: Any, node: int) -> None:
    entry = tree.nodes[node]
    if entry.locks == 0:
        tree.worker[0].idle -= entry.end - entry.begin
        if entry.place != NONE:
            _remove_leaf(tree, node)
    entry.locks += 1


@compiled
def touch(tree: Any, pages: int, node: int) -> int:
    """Stamp what `match_prefix` found, and return the node that now ends it.

    A node that is covered in part is cut there.
    """
    if pages == 0:
        return ROOT
    record = tree.worker[0]
    record.tick += 2
    last = node
    if pages < tree.nodes[node].end:
        last = _split(tree, node, pages)
    at = last
    while at != ROOT:
        _stamp(tree, at, record.tick)
        at = tree.nodes[at].parent
    return last


@compiled
def inc_lock_ref(tree: Any, node: int) -> None:
    """Lock the path that ends at `node`."""
    lock_below(tree, node, ROOT)


@compiled
def lock_matched(tree: Any, pages: int, node: int) -> int:
    """Stamp and lock what `match_prefix` found, and return the node that now ends it."""
    last = touch(tree, pages, node)
    inc_lock_ref(tree, last)
    return last


@compiled
def dec_lock_ref(tree: Any, node: int) -> None:
    """Let go of the path that ends at `node`."""
    record = tree.worker[0]
    at = node
    while at != ROOT:
        entry = tree.nodes[at]
        entry.locks -= 1
        if entry.locks == 0:
            record.idle += entry.end - entry.begin
            if entry.children == 0:
                _add_leaf(tree, at)
        at = entry.parent


@compiled
def _hang(tree: Any, parent: int, request: int, begin: int, end: int) -> int:
    """Add an unlocked leaf below `parent`."""
    record = tree.worker[0]
    if tree.nodes[parent].place != NONE:
        _remove_leaf(tree, parent)
    new = _new_node(tree, parent, begin, end)
    _own(tree, new, request)
    tree.nodes[new].tick = record.tick
    tree.nodes[new].grown = record.published
    tree.nodes[new].shown = begin
    tree.nodes[parent].children += 1
    _link(tree, new, key_at(tree, request, begin))
    record.idle += end - begin
    _add_leaf(tree, new)
    return new


@compiled
def insert(tree: Any, request: int, start: int, begin: int, end: int) -> int:
    """Cache pages `begin` to `end` of `request` below `start`, the locked node that ends the pages before.

    Pages that the tree already has are free again. What is added is not locked, unless it prolongs `start` itself: only
    a leaf is prolonged, and only if this request alone has locked it.

    Returns
    -------
    node : int
        The node that ends at page `end`.
    """
    record = tree.worker[0]
    record.tick += 2
    at = start
    while at != ROOT:
        tree.nodes[at].tick = record.tick  # locked, and so in no heap
        at = tree.nodes[at].parent
    at, depth = start, begin
    while depth < end:
        entry = tree.nodes[at]
        mine = entry.locks == 0 or (at == start and entry.locks == 1)
        if mine and at != ROOT and entry.children == 0 and tree.config[0].fixed_nodes == 0:
            # All pages before are the same, so the whole node may as well be this request's.
            _own(tree, at, request)
            if entry.grown != record.published:
                entry.grown = record.published
                entry.shown = entry.end
            entry.end = end
            if entry.locks == 0:
                record.idle += end - depth
            return at
        child = _child(tree, key_at(tree, request, depth))
        if child == NONE:
            return _hang(tree, at, request, depth, end)
        common = _common(tree, request, child, end)
        record.free += common - depth
        depth = common
        if common < tree.nodes[child].end:
            head = _split(tree, child, common)
            return _hang(tree, head, request, common, end) if common < end else head
        at = child
        _stamp(tree, at, record.tick)
    return at


@compiled
def part_at(tree: Any, leaf: int, page: int) -> None:
    """Cut the node on the path to `leaf` that has pages on both sides of `page`, if there is one."""
    at = leaf
    while at != ROOT and tree.nodes[at].begin >= page:
        at = tree.nodes[at].parent
    if at != ROOT and tree.nodes[at].end > page > 0:
        tree.worker[0].tick += 2  # what is cut off is newer than what the insert cut off
        _split(tree, at, page)


@compiled
def lock_below(tree: Any, node: int, above: int) -> None:
    """Lock the nodes from `node` up to, and not including, `above`, whose path is locked already."""
    at = node
    while at != above:
        _lock(tree, at)
        at = tree.nodes[at].parent


@compiled
def _shown(tree: Any, entry: Any) -> int:
    """Return the end of the published pages of a node."""
    return int(entry.shown if entry.grown == tree.worker[0].published else entry.end)


@compiled
def _note_ghost(tree: Any, node: int, begin: int) -> None:
    """Take note that the pages of `node` from `begin` on will be evicted, as far as they have been published."""
    record, entry = tree.worker[0], tree.nodes[node]
    end = _shown(tree, entry)
    if end > begin:
        ghost = tree.ghosts[record.ghosts]
        ghost.owner = entry.owner
        ghost.space = entry.space
        ghost.serial = entry.serial
        ghost.begin = begin
        ghost.end = end
        record.ghosts += 1
    if entry.shown > begin:
        entry.shown = begin


@compiled
def published_prefix(tree: Any, request: int, most: int) -> int:
    """Return how many leading pages of `request`, at most `most`, the worker had when it last told of its tree."""
    depth = 0
    while depth < most:
        child = _child(tree, key_at(tree, request, depth))
        if child == NONE:
            break
        shown = _shown(tree, tree.nodes[child])
        depth = min(_common(tree, request, child, most), max(shown, depth))
        if depth < tree.nodes[child].end:
            break
    for i in range(tree.worker[0].ghosts):
        ghost = tree.ghosts[i]
        high = min(ghost.end, most)
        low = max(ghost.begin, depth)
        # One that agrees on a page agrees on all before it.
        if low < high and key_at(tree, request, low) == _named_key(tree, ghost, low):
            low += 1
            while low < high:
                middle = (low + high + 1) // 2
                if key_at(tree, request, middle - 1) == _named_key(tree, ghost, middle - 1):
                    low = middle
                else:
                    high = middle - 1
            depth = low
    return int(depth)


@compiled
def evict(tree: Any, pages: int) -> None:
    """Free `pages` evictable pages, from the end of the leaf with the oldest stamp.

    Where leaves go whole, as many as it takes, and at most all that are unlocked.
    """
    record = tree.worker[0]
    whole = tree.config[0].whole_leaves != 0
    while pages > 0 and record.leaves > 0:
        victim = tree.leaves[0]
        entry = tree.nodes[victim]
        length = entry.end - entry.begin
        count = length if whole else min(length, pages)
        if tree.config[0].hears != 0:
            _note_ghost(tree, victim, entry.end - count)
        record.evictions += count
        record.idle -= count
        record.free += count
        pages -= count
        if count < length:
            entry.end -= count
            return
        _remove_leaf(tree, victim)
        buckets.unlink(tree.nodes, tree.buckets, victim)
        entry.next = record.tree_spare
        record.tree_spare = victim
        record.tree_live -= 1
        parent = entry.parent
        tree.nodes[parent].children -= 1
        if parent != ROOT and tree.nodes[parent].children == 0 and tree.nodes[parent].locks == 0:
            _add_leaf(tree, parent)


@compiled_entry
def enter_all(sim: Sim, old: Any) -> None:
    """Enter every node of `old`, the trees before they grew, into the larger, empty hash tables of `sim`."""
    for worker in range(old.shape[0]):
        tree = tree_of(sim, worker)
        for bucket in range(old.shape[1]):
            node = old[worker, bucket]
            while node != NONE:
                following = tree.nodes[node].next
                _link(tree, node, tree.nodes[node].key)
                node = following
