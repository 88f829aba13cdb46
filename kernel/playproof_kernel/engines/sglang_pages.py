"""What SGLang workers do with the pages and the seats of a request, whatever the rules by which they admit.

A request holds `table_len` pages, of which the first `filled` are cached, in the path of the tree that ends at `leaf`
and is locked. Of `computed` tokens it has the KV. What is cached stays in the tree when the request leaves; the other
pages are free again.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import Role
from playproof_spec.machines import RequestEvent

from playproof_kernel.engines import passes
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, WAITING, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.memory import radix_tree

# Remaining output counts up to here.
CLIP = 4096
# Decode passes for which a retraction expects each survivor to have room.
RETRACT_STEPS = 20

_REJECT, _FAIL = constant(RequestEvent.REJECT), constant(RequestEvent.FAIL)
_PREFILL = constant(Role.PREFILL)


@compiled
def remaining(sim: Sim, request: int) -> int:
    """Return the tokens that `request` may still get."""
    return int(sim.static[request].limit - sim.live[request].generated)


@compiled
def wants(sim: Sim, request: int) -> bool:
    """Whether `request` wants a token beyond those that passes in progress owe it, of which overlap alone knows."""
    return bool(remaining(sim, request) > sim.live[request].owed)


@compiled
def pages_for(sim: Sim, tokens: int) -> int:
    """Return the pages that `tokens` tokens take."""
    size = sim.config[0].block_size  # the same in both roles
    return int((tokens + size - 1) // size)


# Pages of a request -----------------------------------------------------------------------------------------------


@compiled
def drop_owed(sim: Sim, worker: int, request: int) -> None:
    """Let no pass that has been scheduled give `request` a token: those are thrown away."""
    sim.live[request].owed = 0
    for row in range(2):
        for i in range(sim.workers[worker].receiving[row]):
            if sim.receivers[worker, row, i] == request:
                sim.receivers[worker, row, i] = NONE


@compiled
def let_go(sim: Sim, worker: int, request: int) -> None:
    """Take every page from a request that is retracted, failed or canceled; what it had cached stays in the tree."""
    live = sim.live[request]
    if live.owed > 0:
        drop_owed(sim, worker, request)
    sim.workers[worker].free += live.table_len - live.filled
    sim.workers[worker].capacity_epoch += 1
    radix_tree.dec_lock_ref(radix_tree.tree_of(sim, worker), live.leaf)
    live.table_len = 0
    live.filled = 0
    live.computed = 0


@compiled
def cache(sim: Sim, worker: int, request: int) -> None:
    """Cache the whole pages of a request that goes on, as far as it has computed, and lock them."""
    cache_up_to(sim, worker, request, int(sim.live[request].computed))


@compiled
def cache_up_to(sim: Sim, worker: int, request: int, tokens: int) -> None:
    """Cache the whole pages of the first `tokens` tokens of a request that goes on, and lock them."""
    config = config_of(sim, worker)
    if config.caching == 0:
        return
    live = sim.live[request]
    tree = radix_tree.tree_of(sim, worker)
    pages = tokens // config.block_size
    leaf = _insert(sim, tree, request, pages)
    radix_tree.lock_below(tree, leaf, live.leaf)
    live.leaf = leaf
    live.filled = pages


@compiled
def _insert(sim: Sim, tree: Any, request: int, pages: int) -> int:
    """Cache the first `pages` pages of `request`, and return the node that ends them."""
    live = sim.live[request]
    leaf = radix_tree.insert(tree, request, live.leaf, live.filled, pages)
    if sim.config[0].fixed_nodes != 0:
        radix_tree.part_at(tree, leaf, sim.static[request].input // sim.config[0].block_size)
    return leaf


@compiled
def leave(sim: Sim, worker: int, request: int) -> None:
    """Let a request that has its tokens go: its whole pages stay cached, unlocked; the others are free again."""
    live = sim.live[request]
    record = sim.workers[worker]
    config = config_of(sim, worker)
    pages = 0 if config.caching == 0 else live.computed // config.block_size
    record.free += live.table_len - pages
    tree = radix_tree.tree_of(sim, worker)
    if config.caching != 0:
        _insert(sim, tree, request, pages)
    radix_tree.dec_lock_ref(tree, live.leaf)
    live.table_len = 0
    live.filled = 0


@compiled
def claim(sim: Sim, worker: int, pages: int) -> None:
    """Take `pages` pages from the pool, which has them or can evict them."""
    record = sim.workers[worker]
    if pages > record.free:
        radix_tree.evict(radix_tree.tree_of(sim, worker), pages - record.free)
    record.free -= pages


@compiled
def growth(sim: Sim, worker: int, number: int) -> int:
    """Return the pages that `number` decode passes of the batch would add; who wants no token takes no page."""
    pages = 0
    for i in range(sim.workers[worker].running):
        request = sim.running[worker, i]
        if wants(sim, request):
            pages += pages_for(sim, sim.live[request].computed + number) - sim.live[request].table_len
    return pages


@compiled
def growers(sim: Sim, worker: int) -> int:
    """Return how many running requests want a token."""
    growers = 0
    for i in range(sim.workers[worker].running):
        if wants(sim, sim.running[worker, i]):
            growers += 1
    return growers


@compiled
def short(sim: Sim, worker: int) -> bool:
    """Whether the pages do not cover one more token of each running request."""
    record = sim.workers[worker]
    return growth(sim, worker, ONE) > record.free + record.idle


@compiled
def grow(sim: Sim, worker: int, request: int, number: int, end: int) -> None:
    """Give `request` `number` tokens and their place; the pages have been taken from the pool."""
    live = sim.live[request]
    passes.give_tokens(sim, worker, request, number, end)
    live.computed += number
    live.table_len = pages_for(sim, live.computed)


# Admission and its end --------------------------------------------------------------------------------------------


@compiled
def promised(sim: Sim, worker: int) -> float:
    """Return the tokens that running requests may still want, as far as admission keeps them free."""
    record = sim.workers[worker]
    share = 1.0 if config_of(sim, worker).ignore_eos != 0 else record.ratio
    reserved = 0.0
    for i in range(record.running):
        reserved += float(min(remaining(sim, sim.running[worker, i]), CLIP)) * share
    return reserved


@compiled
def find(sim: Sim, worker: int, request: int) -> tuple[int, int]:
    """Return the whole pages of `request` that are cached, and the node in which they end; the tree is not written.

    The last token is always computed, unless nothing follows it.
    """
    config = config_of(sim, worker)
    if config.caching == 0:
        return 0, radix_tree.ROOT
    total = known(sim, request)
    most = total if sim.static[request].limit == 0 else total - 1
    return radix_tree.match_prefix(radix_tree.tree_of(sim, worker), request, most // config.block_size)


@compiled
def end_head(sim: Sim, worker: int) -> None:
    """End the head of the queue, which will never fit: rejected, or failed if it was admitted before."""
    request = queues.take(sim.queues[worker, WAITING], sim.live)
    live = sim.live[request]
    if live.computed > 0:
        let_go(sim, worker, request)
    lifecycle.note_outcome(sim, worker, request, _REJECT if live.admissions == 0 else _FAIL)


@compiled
def finish(sim: Sim, worker: int, request: int, end: int) -> None:
    """End `request`, which has all its tokens at `end`; a prefill worker holds its prompt."""
    sim.workers[worker].full = 0
    if config_of(sim, worker).role == _PREFILL:
        cache(sim, worker, request)
    else:
        leave(sim, worker, request)
    lifecycle.finish(sim, worker, request, end)


@compiled
def retract(sim: Sim, worker: int, request: int) -> None:
    """Send `request` to the back of the queue without its pages."""
    sim.workers[worker].retracted = 1
    sim.workers[worker].full = 0
    let_go(sim, worker, request)
    lifecycle.preempt(sim, worker, request)
    queues.append(sim.queues[worker, WAITING], sim.live, request)
