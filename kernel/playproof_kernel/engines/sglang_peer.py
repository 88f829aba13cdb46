"""How an SGLang worker admits and retracts under the peer's rules (aisimulate); see `sglang_rules`.

Admission goes from head to head: each is tried with what the tree can evict at that moment, and takes its pages at
once. The head that does not fit is tried again in every pass, so a macro-step has to know for how long it will not: the
bounds of `blocked_for` say so over a stretch of passes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from playproof_kernel.engines import passes
from playproof_kernel.engines.sglang_pages import (
    CLIP,
    RETRACT_STEPS,
    cache,
    claim,
    end_head,
    find,
    grow,
    growers,
    growth,
    pages_for,
    promised,
    remaining,
    retract,
    short,
)
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, WAITING, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.memory import radix_tree

# Far more than the rounding of a budget in tokens can come to.
_MARGIN = 1e-3


class Block(IntEnum):
    """Why the head of the waiting queue was not admitted."""

    NONE = 0  # no request waits, no seat is free, or none is looked at until a request leaves
    BUDGET = 1  # its tokens and reserve do not fit into what is free
    OTHER = 2  # anything else; macro-steps do not reason about it


_NOT, _BUDGET, _OTHER = constant(Block.NONE), constant(Block.BUDGET), constant(Block.OTHER)


@compiled
def _tokens_free(sim: Sim, worker: int) -> float:
    """Return the tokens that admission may give away: free and evictable ones, less what running requests may want."""
    record = sim.workers[worker]
    return float((record.free + record.idle) * config_of(sim, worker).block_size) - promised(sim, worker)


@compiled
def _shape(sim: Sim, worker: int, request: int, chunk: int) -> tuple[int, int, int, int]:
    """Return what the next prefill of `request` would be with `chunk` tokens of the chunk budget left.

    Returns
    -------
    start, tokens : int
        Tokens that it has or finds cached, and tokens to compute after them; -1 when not even a page fits.
    reserve : int
        Output tokens to keep free for it.
    branch : int
        The tree node where its cached prefix ends.
    """
    config = config_of(sim, worker)
    live = sim.live[request]
    total = known(sim, request)
    start, branch = int(live.computed), radix_tree.ROOT
    if start == 0:
        pages, branch = find(sim, worker, request)
        start = pages * config.block_size
    tokens = total - start
    if pages_for(sim, tokens) * config.block_size > chunk:
        tokens = chunk // config.block_size * config.block_size
        if tokens == 0:
            return start, NONE, 0, branch
    reserve = 0 if tokens < total - start else min(remaining(sim, request), CLIP)
    return start, tokens, reserve, branch


@compiled
def _take(sim: Sim, worker: int, request: int, start: int, tokens: int, branch: int, part: Any) -> bool:
    """Give `request`, the head of the queue, pages for `tokens` tokens after `start`; False when they are not there."""
    record = sim.workers[worker]
    live = sim.live[request]
    size = config_of(sim, worker).block_size
    tree = radix_tree.tree_of(sim, worker)
    first = live.computed == 0
    held, evictable = live.table_len, record.idle
    if first:
        held = start // size
        evictable -= radix_tree.evictable_on_path(tree, held, branch)
    fresh = pages_for(sim, start + tokens) - held
    if fresh > record.free + evictable:
        return False
    leaf = radix_tree.lock_matched(tree, held, branch) if first else live.leaf
    if fresh > record.free:
        radix_tree.evict(tree, fresh - record.free)
    record.free -= fresh
    queues.take(sim.queues[worker, WAITING], sim.live)
    live.table_len = held + fresh
    live.computed = start + tokens
    if first:
        live.leaf = leaf
        live.filled = held
        lifecycle.admit(sim, worker, request, start)
    if tokens > 0:
        part[0] += 1
        part[1] += start + tokens
        part[2] += start
        record.prefill_tokens += tokens
    return True


@compiled
def _note_need(sim: Sim, worker: int, request: int, tokens: int, reserve: int) -> None:
    """Note why the head is blocked, and what it would have to find free, now and if its cached prefix were evicted."""
    config = config_of(sim, worker)
    record = sim.workers[worker]
    size = config.block_size
    record.blocked = _BUDGET
    record.need = pages_for(sim, tokens) * size + reserve
    record.least_need = record.need
    if sim.live[request].computed == 0 and pages_for(sim, known(sim, request)) * size > config.chunked_prefill_size:
        # With less of its prompt cached it would be cut, and need no more than a chunk.
        record.least_need = min(record.need, config.chunked_prefill_size // size * size)


@compiled
def prefill_batch(sim: Sim, worker: int, part: Any) -> int:
    """Take requests from the head of the queue into a prefill pass, and return how many; none overtakes."""
    config = config_of(sim, worker)
    record = sim.workers[worker]
    size = config.block_size
    stalled = record.running
    total = _tokens_free(sim, worker)
    prefill, chunk = config.max_prefill_tokens, config.chunked_prefill_size
    taken, cut = 0, NONE
    record.blocked = _NOT
    waiting = sim.queues[worker, WAITING]
    while waiting.head != NONE and stalled + taken < config.max_sequences:
        request = int(waiting.head)
        if pages_for(sim, known(sim, request)) > config.blocks:
            end_head(sim, worker)
            continue
        start, tokens, reserve, branch = _shape(sim, worker, request, chunk)
        charge = pages_for(sim, max(tokens, 0)) * size
        fits = False
        if tokens == NONE or (float(charge + reserve) < total and (charge > prefill or charge > chunk)):
            record.blocked = _OTHER
        elif float(charge + reserve) >= total:
            _note_need(sim, worker, request, tokens, reserve)
        elif _take(sim, worker, request, start, tokens, branch, part):
            fits = True
        else:
            record.blocked = _OTHER
        if not fits:
            if taken > 0 or stalled > 0 or record.holding > 0:
                break
            # No request will give anything back: what does not fit into an idle worker never will.
            end_head(sim, worker)
            record.blocked = _NOT
            total = _tokens_free(sim, worker)
            continue
        taken += 1
        if sim.live[request].computed < known(sim, request):
            cut = request
        else:
            lifecycle.seat(sim, worker, request)
        total -= float(charge + reserve)
        prefill -= charge
        chunk -= charge
        if chunk <= 0:
            break
    if cut != NONE:
        # Never a second one: what the first leaves of the chunk is less than a page.
        cache(sim, worker, cut)
        queues.prepend(sim.queues[worker, WAITING], sim.live, cut)
    return taken


@compiled
def _stays_blocked(sim: Sim, worker: int, first: int, last: int) -> bool:
    """Whether the head is sure to be blocked after `first` to `last` more tokens of every running request.

    What is free and what is reserved both only fall on the way, so the most that admission could give away is bounded
    by the former at the first of these passes and the latter at the last.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    ratio = record.ratio
    if config.ignore_eos != 0:
        ratio = 1.0
    elif ratio > config.ratio_least:
        ratio = max(config.ratio_least, ratio - float(last) * config.ratio_step)
    reserved, size = 0.0, config.block_size
    for i in range(record.running):
        reserved += float(min(remaining(sim, sim.running[worker, i]) - last, CLIP)) * ratio
    free = float((record.free + record.idle - growth(sim, worker, first)) * size)
    need = record.need if growth(sim, worker, last) <= record.free else record.least_need
    return float(need) > free - reserved + _MARGIN


@compiled
def blocked_for(sim: Sim, worker: int, number: int) -> int:
    """Return after how many of `number` passes, from the first on, the head is still sure to be blocked."""
    done, stretch = 0, number
    while stretch > 0:
        if done + stretch <= number and _stays_blocked(sim, worker, done + 1, done + stretch):
            done += stretch
        else:
            stretch //= 2
    return done


@compiled
def make_room(sim: Sim, worker: int) -> None:
    """Retract the requests with the least output until the pages cover the others, if one of them can go on alone."""
    while growers(sim, worker) > 1 and short(sim, worker):
        _retract_one(sim, worker)
        _evict_for_survivors(sim, worker)


@compiled
def _retract_one(sim: Sim, worker: int) -> None:
    """Retract the request with the least output, of several the one with the longest prompt, then the first."""
    request = NONE
    for i in range(sim.workers[worker].running):
        other = int(sim.running[worker, i])
        if remaining(sim, other) > 0 and (request == NONE or _goes_before(sim, other, request)):
            request = other
    lifecycle.remove_running(sim, worker, request)
    retract(sim, worker, request)


@compiled
def _goes_before(sim: Sim, a: int, b: int) -> bool:
    tokens, other = sim.live[a].generated, sim.live[b].generated
    return bool(tokens < other or (tokens == other and sim.static[a].input > sim.static[b].input))


@compiled
def _evict_for_survivors(sim: Sim, worker: int) -> None:
    """After a retraction, free what the requests left will want over the next passes, as far as it can be evicted."""
    record = sim.workers[worker]
    short = RETRACT_STEPS * growers(sim, worker) - record.free * sim.config[0].block_size
    if short > 0:
        radix_tree.evict(radix_tree.tree_of(sim, worker), min(pages_for(sim, short), record.idle))


@compiled
def first_tokens(sim: Sim, worker: int, end: int) -> None:
    """Give the requests whose prompt is now whole their first token.

    One that wants no other needs no place for it. If there is no place for those of all the others, they wait for
    theirs until the next decode pass, which may retract; their prompts are cached all the same.
    """
    record = sim.workers[worker]
    pages = 0
    for i in range(record.stalled, record.running):
        request = sim.running[worker, i]
        if remaining(sim, request) > 1:
            pages += pages_for(sim, known(sim, request) + 1) - sim.live[request].table_len
    room = pages <= record.free + record.idle
    if room:
        claim(sim, worker, pages)
    for i in range(record.stalled, record.running):
        request = sim.running[worker, i]
        if remaining(sim, request) == 1:
            passes.give_tokens(sim, worker, request, ONE, end)
        elif remaining(sim, request) > 1:
            cache(sim, worker, request)
            if room:
                grow(sim, worker, request, ONE, end)
