"""An SGLang worker: prefill passes before decode passes, retraction, and macro-steps over decode passes.

The rules are those of SGLang's scheduler. A pass is either a prefill of requests from the head of the waiting queue, in
which running requests stand still, or a decode of all running ones. Admission keeps a share (the new-token ratio) of
the output that running requests may still want free; when decoding runs out of pages nevertheless, requests with the
least output are retracted.

What a pass changes takes effect at its end, but for admissions and retractions, which belong to its start. Nothing on
the worker can tell the difference. A prompt enters the tree when its prefill is through; output does when its request
ends, and not before.

**Macro-steps.** A decode pass that retracted nobody is followed by an equal one, one token further, unless a request
has all its tokens, the pages do not cover the growth, somebody arrives at an empty queue, or the blocked head of the
queue comes to fit. The last is excluded by bounds over a stretch of passes (`_stays_blocked`), and the step ends where
they no longer exclude it.

**Prefill and decode roles.** A prefill worker ends a request with its first, hidden token, and keeps its prompt
locked until the decode worker has it. A decode worker seats requests whose prompt was handed over in the order of
activation; while a destination is pending, or one of those has no seat, nobody else is admitted.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from playproof_spec.machines import RequestEvent
from playproof_spec.units import HORIZON_NS

from playproof_kernel import passes, queues, radix, requests
from playproof_kernel.arrays import NONE, OUTCOMES, PENDING, READY, WAITING
from playproof_kernel.deployment import Role, TimingKind
from playproof_kernel.jit import ONE, ZERO, compiled, constant
from playproof_kernel.requests import config_of, known
from playproof_kernel.transitions import REQUEST_TABLE, advance

# The new-token ratio: where it starts, the share of that which it keeps, and the decode passes from one to the other.
RATIO_START = 0.7
RATIO_LEAST_SHARE = 0.14
RATIO_STEPS = 600.0
# Remaining output counts up to here.
_CLIP = 4096
# Decode passes for which a retraction expects each survivor to have room.
_RETRACT_STEPS = 20
# Far more than the rounding of a budget in tokens can come to.
_MARGIN = 1e-3


class Block(IntEnum):
    """Why the head of the waiting queue was not admitted."""

    NONE = 0  # nobody waits, or no seat is free
    BUDGET = 1  # its tokens and reserve do not fit into what is free
    OTHER = 2  # anything else; macro-steps do not reason about it


_NOT, _BUDGET, _OTHER = constant(Block.NONE), constant(Block.BUDGET), constant(Block.OTHER)
_ENQUEUE, _REJECT, _FAIL = constant(RequestEvent.ENQUEUE), constant(RequestEvent.REJECT), constant(RequestEvent.FAIL)
_PREFILL, _DECODE = constant(Role.PREFILL), constant(Role.DECODE)
_FIXED = constant(TimingKind.FIXED)


@compiled
def _remaining(sim: Any, request: int) -> int:
    return int(sim.static[request].limit - sim.live[request].generated)


@compiled
def _pages(sim: Any, tokens: int) -> int:
    size = sim.config[0].block_size  # the same in both roles
    return int((tokens + size - 1) // size)


# The waiting queue ------------------------------------------------------------------------------------------------


@compiled
def _refuse_too_long(sim: Any, worker: int) -> None:
    """Reject every waiting prompt that reaches the context limit; the others keep their order."""
    waiting = sim.queues[worker, WAITING]
    sim.workers[worker].too_long = 0
    last, request = waiting.tail, NONE
    while waiting.head != NONE and request != last:
        request = queues.take(waiting, sim.live)
        if sim.static[request].input >= sim.config[0].context:
            requests.note_outcome(sim, worker, request, _REJECT)
        else:
            queues.append(waiting, sim.live, request)


# Pages of a request -----------------------------------------------------------------------------------------------


@compiled
def let_go(sim: Any, worker: int, request: int) -> None:
    """Take every page from a request that is retracted, failed or canceled; what it had cached stays in the tree."""
    live = sim.live[request]
    sim.workers[worker].free += live.table_len - live.filled
    sim.workers[worker].capacity_epoch += 1
    radix.unlock(radix.tree_of(sim, worker), live.leaf)
    live.table_len = 0
    live.filled = 0
    live.computed = 0


@compiled
def _cache(sim: Any, worker: int, request: int) -> None:
    """Cache the whole pages of a request that goes on, as far as it has computed, and lock them."""
    config = config_of(sim, worker)
    if config.caching == 0:
        return
    live = sim.live[request]
    tree = radix.tree_of(sim, worker)
    pages = live.computed // config.block_size
    leaf = radix.insert(tree, request, live.leaf, live.filled, pages)
    radix.lock_below(tree, leaf, live.leaf)
    live.leaf = leaf
    live.filled = pages


@compiled
def _leave(sim: Any, worker: int, request: int) -> None:
    """Let a request that has its tokens go: its whole pages stay cached, unlocked; the others are free again."""
    live = sim.live[request]
    record = sim.workers[worker]
    config = config_of(sim, worker)
    pages = 0 if config.caching == 0 else live.computed // config.block_size
    record.free += live.table_len - pages
    tree = radix.tree_of(sim, worker)
    if config.caching != 0:
        radix.insert(tree, request, live.leaf, live.filled, pages)
    radix.unlock(tree, live.leaf)
    live.table_len = 0
    live.filled = 0


@compiled
def _finish(sim: Any, worker: int, request: int, end: int) -> None:
    if config_of(sim, worker).role == _PREFILL:
        _cache(sim, worker, request)
    else:
        _leave(sim, worker, request)
    requests.finish(sim, worker, request, end)


# Prefill ----------------------------------------------------------------------------------------------------------


@compiled
def _tokens_free(sim: Any, worker: int) -> float:
    """Return the tokens that admission may give away: free and evictable ones, less what running requests may want."""
    record = sim.workers[worker]
    reserved = 0.0
    for i in range(record.running):
        reserved += float(min(_remaining(sim, sim.running[worker, i]), _CLIP)) * record.ratio
    return float((record.free + record.idle) * config_of(sim, worker).block_size) - reserved


@compiled
def _shape(sim: Any, worker: int, request: int, chunk: int) -> tuple[int, int, int, int]:
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
    start, branch = int(live.computed), radix.ROOT
    if start == 0 and config.caching != 0:
        # The last token is always computed, unless nothing follows it.
        most = total // config.block_size if sim.static[request].limit == 0 else (total - 1) // config.block_size
        pages, branch = radix.find_prefix(radix.tree_of(sim, worker), request, most)
        start = pages * config.block_size
    tokens = total - start
    if _pages(sim, tokens) * config.block_size > chunk:
        tokens = chunk // config.block_size * config.block_size
        if tokens == 0:
            return start, NONE, 0, branch
    reserve = 0 if tokens < total - start else min(_remaining(sim, request), _CLIP)
    return start, tokens, reserve, branch


@compiled
def _take(sim: Any, worker: int, request: int, start: int, tokens: int, branch: int, part: Any) -> bool:
    """Give `request`, the head of the queue, pages for `tokens` tokens after `start`; False when they are not there."""
    record = sim.workers[worker]
    live = sim.live[request]
    size = config_of(sim, worker).block_size
    tree = radix.tree_of(sim, worker)
    first = live.computed == 0
    held, evictable = live.table_len, record.idle
    if first:
        held = start // size
        evictable -= radix.evictable_on_path(tree, held, branch)
    fresh = _pages(sim, start + tokens) - held
    if fresh > record.free + evictable:
        return False
    leaf = radix.lock_prefix(tree, held, branch) if first else live.leaf
    if fresh > record.free:
        radix.evict(tree, fresh - record.free)
    record.free -= fresh
    queues.take(sim.queues[worker, WAITING], sim.live)
    live.table_len = held + fresh
    live.computed = start + tokens
    if first:
        live.leaf = leaf
        live.filled = held
        requests.admit(sim, worker, request, start)
    if tokens > 0:
        part[0] += 1
        part[1] += start + tokens
        part[2] += start
        record.prefill_tokens += tokens
    return True


@compiled
def _end_head(sim: Any, worker: int) -> None:
    """End the head of the queue, which will never fit: rejected, or failed if it was admitted before."""
    request = queues.take(sim.queues[worker, WAITING], sim.live)
    live = sim.live[request]
    if live.computed > 0:
        let_go(sim, worker, request)
    requests.note_outcome(sim, worker, request, _REJECT if live.admissions == 0 else _FAIL)


@compiled
def _note_need(sim: Any, worker: int, request: int, tokens: int, reserve: int) -> None:
    """Note why the head is blocked, and what it would have to find free, now and if its cached prefix were evicted."""
    config = config_of(sim, worker)
    record = sim.workers[worker]
    size = config.block_size
    record.blocked = _BUDGET
    record.need = _pages(sim, tokens) * size + reserve
    record.least_need = record.need
    if sim.live[request].computed == 0 and _pages(sim, known(sim, request)) * size > config.chunked_prefill_size:
        # With less of its prompt cached it would be cut, and need no more than a chunk.
        record.least_need = min(record.need, config.chunked_prefill_size // size * size)


@compiled
def _prefill_batch(sim: Any, worker: int, part: Any) -> int:
    """Take requests from the head of the queue into a prefill pass, and return how many; nobody overtakes."""
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
        if _pages(sim, known(sim, request)) > config.blocks:
            _end_head(sim, worker)
            continue
        start, tokens, reserve, branch = _shape(sim, worker, request, chunk)
        charge = _pages(sim, max(tokens, 0)) * size
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
            # Nobody will give anything back: what does not fit into an idle worker never will.
            _end_head(sim, worker)
            record.blocked = _NOT
            total = _tokens_free(sim, worker)
            continue
        taken += 1
        if sim.live[request].computed < known(sim, request):
            cut = request
        else:
            requests.seat(sim, worker, request)
        total -= float(charge + reserve)
        prefill -= charge
        chunk -= charge
        if chunk <= 0:
            break
    if cut != NONE:
        # Never a second one: what the first leaves of the chunk is less than a page.
        _cache(sim, worker, cut)
        queues.prepend(sim.queues[worker, WAITING], sim.live, cut)
    return taken


# Decode -----------------------------------------------------------------------------------------------------------


@compiled
def _growth(sim: Any, worker: int, number: int) -> int:
    """Return the pages that `number` decode passes of the batch would add; who wants no token takes no page."""
    pages = 0
    for i in range(sim.workers[worker].running):
        request = sim.running[worker, i]
        if _remaining(sim, request) > 0:
            pages += _pages(sim, known(sim, request) + number) - sim.live[request].table_len
    return pages


@compiled
def _growers(sim: Any, worker: int) -> int:
    """Return how many running requests want a token."""
    growers = 0
    for i in range(sim.workers[worker].running):
        if _remaining(sim, sim.running[worker, i]) > 0:
            growers += 1
    return growers


@compiled
def _first_grower(sim: Any, worker: int) -> int:
    i = 0
    while _remaining(sim, sim.running[worker, i]) == 0:
        i += 1
    return int(sim.running[worker, i])


@compiled
def _retract(sim: Any, worker: int, request: int) -> None:
    """Send `request` to the back of the queue without its pages."""
    sim.workers[worker].retracted = 1
    let_go(sim, worker, request)
    requests.preempt(sim, worker, request)
    queues.append(sim.queues[worker, WAITING], sim.live, request)


@compiled
def _retract_one(sim: Any, worker: int) -> None:
    """Retract the request with the least output, of several the one with the longest prompt, then the first."""
    request = NONE
    for i in range(sim.workers[worker].running):
        other = int(sim.running[worker, i])
        if _remaining(sim, other) > 0 and (request == NONE or _goes_before(sim, other, request)):
            request = other
    requests.remove_running(sim, worker, request)
    _retract(sim, worker, request)


@compiled
def _goes_before(sim: Any, a: int, b: int) -> bool:
    tokens, other = sim.live[a].generated, sim.live[b].generated
    return bool(tokens < other or (tokens == other and sim.static[a].input > sim.static[b].input))


@compiled
def _evict_for_survivors(sim: Any, worker: int) -> None:
    """After a retraction, free what the requests left will want over the next passes, as far as it can be evicted."""
    record = sim.workers[worker]
    short = _RETRACT_STEPS * _growers(sim, worker) - record.free * sim.config[0].block_size
    if short > 0:
        radix.evict(radix.tree_of(sim, worker), min(_pages(sim, short), record.idle))


@compiled
def _short(sim: Any, worker: int) -> bool:
    """Whether the pages do not cover one more token of each running request."""
    record = sim.workers[worker]
    return _growth(sim, worker, ONE) > record.free + record.idle


@compiled
def _outgrew(sim: Any, worker: int) -> bool:
    """Whether the first request that wants a token needs more pages for it than there are."""
    return _pages(sim, known(sim, _first_grower(sim, worker)) + 1) > config_of(sim, worker).blocks


@compiled
def _make_room(sim: Any, worker: int) -> None:
    """Retract until the pages cover one more token of each running request.

    One that is left alone takes the pages of a prompt that waits for its next chunk. If it cannot grow then, and never
    will, it fails. If others hold the pages without growing, it makes way for those that want its seat, or stalls until
    they give them up.
    """
    record = sim.workers[worker]
    while _growers(sim, worker) > 1 and _short(sim, worker):
        _retract_one(sim, worker)
        _evict_for_survivors(sim, worker)
    first = sim.queues[worker, WAITING].head
    if first != NONE and sim.live[first].computed > 0 and _short(sim, worker):
        _retract(sim, worker, queues.take(sim.queues[worker, WAITING], sim.live))
    alone = record.running == 1 and _short(sim, worker)
    if alone and sim.queues[worker, READY].head != NONE and not _outgrew(sim, worker):
        _retract_one(sim, worker)
    if record.retracted != 0:
        _estimate_ratio(sim, worker)
    if _short(sim, worker):
        if _outgrew(sim, worker):
            request = _first_grower(sim, worker)
            requests.remove_running(sim, worker, request)
            let_go(sim, worker, request)
            requests.note_outcome(sim, worker, request, _FAIL)
        else:
            record.stuck = 1


@compiled
def _estimate_ratio(sim: Any, worker: int) -> None:
    """After a retraction: what share of their output the survivors have, a few passes from now."""
    record = sim.workers[worker]
    generated, limits = 0, 0
    for i in range(record.running):
        request = sim.running[worker, i]
        generated += sim.live[request].generated
        limits += sim.static[request].limit
    expected = float(generated) + float(_RETRACT_STEPS) * float(_growers(sim, worker))
    record.ratio = min(1.0, expected / (float(limits) + 1.0))


# Handed-over requests ---------------------------------------------------------------------------------------------


@compiled
def _seat_ready(sim: Any, worker: int) -> None:
    """Seat requests whose prompt was handed over, in the order of activation; it enters the tree now."""
    record = sim.workers[worker]
    seats = config_of(sim, worker).max_sequences
    ready = sim.queues[worker, READY]
    while ready.head != NONE and record.running < seats:
        request = queues.take(ready, sim.live)
        _cache(sim, worker, request)
        requests.admit(sim, worker, request, ZERO)
        requests.seat(sim, worker, request)


@compiled
def _yield_to_destination(sim: Any, worker: int) -> None:
    """Retract a prompt that waits for its next chunk when it is all that stands against a pending destination."""
    record = sim.workers[worker]
    first = sim.queues[worker, WAITING].head
    if record.running > 0 or record.holding > 0 or sim.queues[worker, PENDING].head == NONE or first == NONE:
        return
    if sim.live[first].computed > 0:
        _retract(sim, worker, queues.take(sim.queues[worker, WAITING], sim.live))


@compiled
def reserve(sim: Any, worker: int, request: int) -> int:
    """Take pages for the prompt of `request`; returns the tokens that the pages not cached hold, or NONE.

    A try that fails has stamped the prefix all the same.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    live = sim.live[request]
    prompt = sim.static[request].input
    tree = radix.tree_of(sim, worker)
    held, branch = 0, radix.ROOT
    if config.caching != 0:
        held, branch = radix.find_prefix(tree, request, prompt // config.block_size)
    leaf = radix.lock_prefix(tree, held, branch)
    fresh = _pages(sim, prompt) - held
    if fresh > record.free + record.idle:
        radix.unlock(tree, leaf)
        return NONE
    _claim(sim, worker, fresh)
    live.leaf = leaf
    live.filled = held
    live.table_len = held + fresh
    return int(fresh * config.block_size)


@compiled
def activate(sim: Any, worker: int, request: int) -> None:
    """The prompt of `request` is there: it waits for a seat."""
    live = sim.live[request]
    live.computed = sim.static[request].input
    advance(REQUEST_TABLE, sim.request_state, request, _ENQUEUE)
    queues.append(sim.queues[worker, READY], sim.live, request)


@compiled
def release_source(sim: Any, worker: int, request: int) -> None:
    """Let a held prompt go: its whole pages stay cached."""
    _leave(sim, worker, request)


# A pass -----------------------------------------------------------------------------------------------------------


@compiled
def start_pass(sim: Any, worker: int) -> bool:
    """Schedule one pass of an idle worker at the current instant; False when it would have no effect.

    Writes the worker's record, its tree, its queues and the requests that it touches.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    record.passes += 1
    record.retracted = 0
    record.stuck = 0
    if record.too_long > 0:
        _refuse_too_long(sim, worker)
    _seat_ready(sim, worker)
    record.stalled = record.running
    part = sim.part[worker]
    part[:] = 0
    taken = 0
    record.blocked = _NOT
    if sim.queues[worker, READY].head == NONE and sim.queues[worker, PENDING].head == NONE:
        taken = _prefill_batch(sim, worker, part)
    record.prefill = 1 if taken > 0 else 0
    decoding, known_tokens = 0, 0
    if taken == 0:
        _yield_to_destination(sim, worker)
        if record.running > 0:
            _make_room(sim, worker)
        for i in range(record.running):
            request = sim.running[worker, i]
            if _remaining(sim, request) > 0 and record.stuck == 0:
                decoding += 1
                known_tokens += known(sim, request)
    waits = record.running == record.stuck  # nobody runs, or one that can do nothing
    no_outcome = sim.queues[worker, OUTCOMES].head == NONE
    if taken == 0 and waits and no_outcome and record.retracted == 0:
        record.passes -= 1
        return False
    passes.begin(sim, worker, passes.cost(sim, worker, part, decoding, known_tokens), known_tokens)
    quiet = taken == 0 and record.retracted == 0 and record.stuck == 0 and no_outcome
    quiet = quiet and record.first_duration > 0 and not requests.pending_due(sim, worker)
    if config.macro != 0 and quiet:
        _plan_macro(sim, worker)
    return True


# Macro-steps ------------------------------------------------------------------------------------------------------


@compiled
def _ratio_after(config: Any, ratio: float, number: int) -> float:
    """Return the new-token ratio after `number` decode passes, each rounded as it would be alone."""
    while number > 0 and ratio > config.ratio_least:
        ratio = max(ratio - config.ratio_step, config.ratio_least)
        number -= 1
    # A retraction may have left it lower; the first decay brings it up.
    return max(ratio, config.ratio_least) if number > 0 else ratio


@compiled
def _stays_blocked(sim: Any, worker: int, first: int, last: int) -> bool:
    """Whether the head is sure to be blocked after `first` to `last` more tokens of every running request.

    What is free and what is reserved both only fall on the way, so the most that admission could give away is bounded
    by the former at the first of these passes and the latter at the last.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    ratio = record.ratio
    if ratio > config.ratio_least:
        ratio = max(config.ratio_least, ratio - float(last) * config.ratio_step)
    reserved, size = 0.0, config.block_size
    for i in range(record.running):
        reserved += float(min(_remaining(sim, sim.running[worker, i]) - last, _CLIP)) * ratio
    free = float((record.free + record.idle - _growth(sim, worker, first)) * size)
    need = record.need if _growth(sim, worker, last) <= record.free else record.least_need
    return float(need) > free - reserved + _MARGIN


@compiled
def _blocked_for(sim: Any, worker: int, number: int) -> int:
    """Return after how many of `number` passes, from the first on, the head is still sure to be blocked."""
    done, stretch = 0, number
    while stretch > 0:
        if done + stretch <= number and _stays_blocked(sim, worker, done + 1, done + stretch):
            done += stretch
        else:
            stretch //= 2
    return done


@compiled
def _plan_macro(sim: Any, worker: int) -> None:
    """Extend the decode pass just scheduled over as many as the batch allows; writes `macro` and `pass_end`."""
    config = config_of(sim, worker)
    record = sim.workers[worker]
    number = HORIZON_NS // record.first_duration
    for i in range(record.running):
        number = min(number, _remaining(sim, sim.running[worker, i]))
    if config.timing != _FIXED:
        number = min(number, passes.MAX_VARYING_PASSES)
    if number <= 1 or record.blocked == _OTHER:
        return
    if _growth(sim, worker, number) > record.free + record.idle:
        # The most passes whose growth the pool covers; growth is monotone in the number of passes.
        low, high = 1, number
        while high - low > 1:
            middle = (low + high) // 2
            if _growth(sim, worker, middle) <= record.free + record.idle:
                low = middle
            else:
                high = middle
        number = low
    if record.blocked == _BUDGET:
        number = 1 + _blocked_for(sim, worker, number - 1)
    record.macro = number
    record.pass_end = passes.end_of(sim, worker, number)


# The end of a pass ------------------------------------------------------------------------------------------------


@compiled
def _grow(sim: Any, worker: int, request: int, number: int, end: int) -> None:
    """Give `request` `number` tokens and their place; the pages have been taken from the pool."""
    live = sim.live[request]
    passes.give_tokens(sim, worker, request, number, end)
    live.computed += number
    live.table_len = _pages(sim, live.computed)


@compiled
def _claim(sim: Any, worker: int, pages: int) -> None:
    record = sim.workers[worker]
    if pages > record.free:
        radix.evict(radix.tree_of(sim, worker), pages - record.free)
    record.free -= pages


@compiled
def _first_tokens(sim: Any, worker: int, end: int) -> None:
    """Give the requests whose prompt is now whole their first token.

    One that wants no other needs no place for it. If there is no place for those of all the others, they wait for
    theirs until the next decode pass, which may retract; their prompts are cached all the same.
    """
    record = sim.workers[worker]
    pages = 0
    for i in range(record.stalled, record.running):
        request = sim.running[worker, i]
        if _remaining(sim, request) > 1:
            pages += _pages(sim, known(sim, request) + 1) - sim.live[request].table_len
    room = pages <= record.free + record.idle
    if room:
        _claim(sim, worker, pages)
    for i in range(record.stalled, record.running):
        request = sim.running[worker, i]
        if _remaining(sim, request) == 1:
            passes.give_tokens(sim, worker, request, ONE, end)
        elif _remaining(sim, request) > 1:
            _cache(sim, worker, request)
            if room:
                _grow(sim, worker, request, ONE, end)


@compiled
def _decode(sim: Any, worker: int, number: int, end: int) -> None:
    """Give every running request that wants tokens `number` of them, the last at `end`."""
    record = sim.workers[worker]
    _claim(sim, worker, _growth(sim, worker, number))
    if number > 1:
        passes.record_gaps_between(sim, worker, number)
    for i in range(record.running):
        request = sim.running[worker, i]
        if _remaining(sim, request) > 0:
            _grow(sim, worker, request, number, end)


@compiled
def _finish_some(sim: Any, worker: int, wanted: bool, first: int, end: int) -> None:
    """End running requests from seat `first` on that have all they asked for: who `wanted` tokens, or who did not."""
    record = sim.workers[worker]
    kept = first
    for i in range(first, record.running):
        request = sim.running[worker, i]
        if _remaining(sim, request) == 0 and (sim.static[request].limit > 0) == wanted:
            _finish(sim, worker, request, end)
        else:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept


@compiled
def apply_passes(sim: Any, worker: int, number: int) -> None:
    """End the first `number` passes of the current step: tokens, inserts, completions; the worker idles.

    Requests that wanted no token leave before anything else happens. Writes the tree, the requests, the feedback list
    and the log of gaps.
    """
    record = sim.workers[worker]
    end = passes.finish(sim, worker, number)
    requests.set_canceled_aside(sim, worker)
    first = record.stalled if record.prefill != 0 else ZERO
    _finish_some(sim, worker, False, first, end)
    if record.prefill != 0:
        _first_tokens(sim, worker, end)
    else:
        if record.running > 0 and record.stuck == 0:
            _decode(sim, worker, number, end)
        if record.retracted == 0:
            record.ratio = _ratio_after(config_of(sim, worker), record.ratio, number)
    _finish_some(sim, worker, True, first, end)
    requests.tell_outcomes(sim, worker, end)
    passes.rest(sim, worker)
