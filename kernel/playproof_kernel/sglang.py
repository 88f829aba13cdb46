"""An SGLang worker: prefill passes before decode passes, retraction, and macro-steps over decode passes.

The rules are those of SGLang's scheduler. A pass is either a prefill of requests from the head of the waiting queue, in
which running requests stand still, or a decode of all running ones. Admission keeps a share (the new-token ratio) of
the output that running requests may still want free; when decoding runs out of pages nevertheless, requests with the
least output are retracted.

What a pass changes takes effect at its end, but for admissions and retractions, which belong to its start. Nothing on
the worker can tell the difference.

**Macro-steps.** A decode pass that retracted nobody is followed by an equal one, one token further, unless a request
has all its tokens, the pages do not cover the growth, somebody arrives at an empty queue, or the blocked head of the
queue comes to fit. The last is excluded by bounds over a stretch of passes (`_stays_blocked`), and the step ends where
they no longer exclude it. Recency is kept exact: inserts are applied in the order of each request's last one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from playproof_spec.machines import RequestEvent
from playproof_spec.units import HORIZON_NS

from playproof_kernel import radix, timing, vllm
from playproof_kernel.arrays import NONE
from playproof_kernel.deployment import TimingKind
from playproof_kernel.jit import compiled
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


_NOT, _BUDGET, _OTHER = int(Block.NONE), int(Block.BUDGET), int(Block.OTHER)
_ENQUEUE, _ADMIT, _PREEMPT = int(RequestEvent.ENQUEUE), int(RequestEvent.ADMIT), int(RequestEvent.PREEMPT)
_FINISH, _REJECT, _FAIL = int(RequestEvent.FINISH), int(RequestEvent.REJECT), int(RequestEvent.FAIL)
_FIXED = int(TimingKind.FIXED)


@compiled
def _known(sim: Any, node: int) -> int:
    return int(sim.static[node].input + sim.live[node].generated)


@compiled
def _remaining(sim: Any, node: int) -> int:
    return int(sim.static[node].limit - sim.live[node].generated)


@compiled
def _pages(sim: Any, tokens: int) -> int:
    size = sim.config[0].block_size
    return int((tokens + size - 1) // size)


# The waiting queue ------------------------------------------------------------------------------------------------


@compiled
def _push_back(sim: Any, worker: int, node: int) -> None:
    record = sim.workers[worker]
    sim.live[node].next = NONE
    if record.wait_head == NONE:
        record.wait_head = node
    else:
        sim.live[record.wait_tail].next = node
    record.wait_tail = node


@compiled
def _push_front(sim: Any, worker: int, node: int) -> None:
    record = sim.workers[worker]
    sim.live[node].next = record.wait_head
    if record.wait_head == NONE:
        record.wait_tail = node
    record.wait_head = node


@compiled
def enqueue(sim: Any, worker: int, node: int) -> None:
    """Put `node` at the end of the waiting queue of `worker`, cutting a macro-step short if it matters."""
    record = sim.workers[worker]
    too_long = sim.static[node].input >= sim.config[0].context
    # One that will be refused is refused at the next pass, wherever it stands.
    if record.macro > 1 and (record.wait_head == NONE or too_long):
        interrupt(sim, worker)
    advance(REQUEST_TABLE, sim.request_state, node, _ENQUEUE)
    _push_back(sim, worker, node)
    if too_long:
        record.too_long += 1


@compiled
def _refuse_too_long(sim: Any, worker: int) -> None:
    """Reject every waiting prompt that reaches the context limit; the others keep their order."""
    record = sim.workers[worker]
    record.too_long = 0
    node = record.wait_head
    record.wait_head = NONE
    record.wait_tail = NONE
    while node != NONE:
        following = sim.live[node].next
        if sim.static[node].input >= sim.config[0].context:
            vllm.note_outcome(sim, worker, node, _REJECT)
        else:
            _push_back(sim, worker, node)
        node = following


# Pages of a request -----------------------------------------------------------------------------------------------


@compiled
def _drop(sim: Any, worker: int, node: int) -> None:
    """Take every page from a request that is retracted or failed; what it had cached stays in the tree."""
    live = sim.live[node]
    sim.workers[worker].free += live.table_len - live.filled
    radix.unlock(radix.tree_of(sim, worker), live.leaf)
    live.table_len = 0
    live.filled = 0
    live.computed = 0


@compiled
def _cache(sim: Any, worker: int, node: int, tokens: int) -> None:
    """Cache the whole pages among the first `tokens` tokens of a request that goes on, and lock them."""
    live = sim.live[node]
    pages = tokens // sim.config[0].block_size
    if sim.config[0].caching == 0 or pages <= live.filled:
        return
    tree = radix.tree_of(sim, worker)
    leaf = radix.insert(tree, node, live.leaf, live.filled, pages)
    radix.lock_below(tree, leaf, live.leaf)
    live.leaf = leaf
    live.filled = pages


@compiled
def _finish(sim: Any, worker: int, node: int, end: int) -> None:
    """End a request: its whole pages stay cached, unlocked; the others are free again."""
    live = sim.live[node]
    record = sim.workers[worker]
    run = sim.run[0]
    pages = 0 if sim.config[0].caching == 0 else live.computed // sim.config[0].block_size
    record.free += live.table_len - pages
    tree = radix.tree_of(sim, worker)
    if pages > live.filled:
        radix.insert(tree, node, live.leaf, live.filled, pages)
    radix.unlock(tree, live.leaf)
    live.table_len = 0
    live.filled = 0
    advance(REQUEST_TABLE, sim.request_state, node, _FINISH)
    live.terminal = end
    sim.feedback[run.feedback] = node
    run.feedback += 1


# Prefill ----------------------------------------------------------------------------------------------------------


@compiled
def _tokens_free(sim: Any, worker: int) -> float:
    """Return the tokens that admission may give away: free and evictable ones, less what running requests may want."""
    record = sim.workers[worker]
    reserved = 0.0
    for i in range(record.running):
        reserved += float(min(_remaining(sim, sim.running[worker, i]), _CLIP)) * record.ratio
    return float((record.free + record.idle) * sim.config[0].block_size) - reserved


@compiled
def _shape(sim: Any, worker: int, node: int, chunk: int) -> tuple[int, int, int, int]:
    """Return what the next prefill of `node` would be with `chunk` tokens of the chunk budget left.

    Returns
    -------
    start, tokens : int
        Tokens that it has or finds cached, and tokens to compute after them; -1 when not even a page fits.
    reserve : int
        Output tokens to keep free for it.
    branch : int
        The tree node where its cached prefix ends.
    """
    config = sim.config[0]
    live = sim.live[node]
    known = _known(sim, node)
    start, branch = int(live.computed), radix.ROOT
    if start == 0 and config.caching != 0:
        # The last token is always computed, unless nothing follows it.
        most = known // config.block_size if sim.static[node].limit == 0 else (known - 1) // config.block_size
        pages, branch = radix.find_prefix(radix.tree_of(sim, worker), node, most)
        start = pages * config.block_size
    tokens = known - start
    if tokens > config.chunked_prefill_size:
        tokens = min(tokens, chunk // config.block_size * config.block_size)
        if tokens == 0:
            return start, NONE, 0, branch
    reserve = 0 if tokens < known - start else min(_remaining(sim, node), _CLIP)
    return start, tokens, reserve, branch


@compiled
def _take(sim: Any, worker: int, node: int, start: int, tokens: int, branch: int, part: Any) -> bool:
    """Give `node`, the head of the queue, pages for `tokens` tokens after `start`; False when they are not there."""
    run = sim.run[0]
    record = sim.workers[worker]
    live = sim.live[node]
    size = sim.config[0].block_size
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
    vllm.pop_waiting(sim, worker)
    live.table_len = held + fresh
    live.computed = start + tokens
    if first:
        live.leaf = leaf
        live.filled = held
        advance(REQUEST_TABLE, sim.request_state, node, _ADMIT)
        admission = sim.admissions[run.admissions]
        admission.node = node
        admission.at = run.now
        admission.reused = start
        admission.ordinal = live.admissions
        run.admissions += 1
        if live.admissions == 0:
            live.first_admit = run.now
        live.admissions += 1
    if tokens > 0:
        part[0] += 1
        part[1] += start + tokens
        part[2] += start
        record.prefill_tokens += tokens
    return True


@compiled
def _end_head(sim: Any, worker: int) -> None:
    """End the head of the queue, which will never fit: rejected, or failed if it was admitted before."""
    node = vllm.pop_waiting(sim, worker)
    live = sim.live[node]
    if live.computed > 0:
        _drop(sim, worker, node)
    vllm.note_outcome(sim, worker, node, _REJECT if live.admissions == 0 else _FAIL)


@compiled
def _note_need(sim: Any, worker: int, node: int, tokens: int, reserve: int) -> None:
    """Note why the head is blocked, and what it would have to find free, now and if its cached prefix were evicted."""
    config = sim.config[0]
    record = sim.workers[worker]
    size = config.block_size
    record.blocked = _BUDGET
    record.need = _pages(sim, tokens) * size + reserve
    record.least_need = record.need
    if sim.live[node].computed == 0 and _known(sim, node) > config.chunked_prefill_size:
        # With less of its prompt cached it would be cut, and need no more than a chunk.
        record.least_need = min(record.need, config.chunked_prefill_size // size * size)


@compiled
def _prefill_batch(sim: Any, worker: int, part: Any) -> int:
    """Take requests from the head of the queue into a prefill pass, and return how many; nobody overtakes."""
    config = sim.config[0]
    record = sim.workers[worker]
    size = config.block_size
    stalled = record.running
    total = _tokens_free(sim, worker)
    prefill, chunk = config.max_prefill_tokens, config.chunked_prefill_size
    taken, cut = 0, NONE
    record.blocked = _NOT
    while record.wait_head != NONE and stalled + taken < config.max_sequences:
        node = record.wait_head
        if _pages(sim, _known(sim, node)) > config.blocks:
            _end_head(sim, worker)
            continue
        start, tokens, reserve, branch = _shape(sim, worker, node, chunk)
        charge = _pages(sim, max(tokens, 0)) * size
        fits = False
        if tokens == NONE or (float(charge + reserve) < total and (charge > prefill or charge > chunk)):
            record.blocked = _OTHER
        elif float(charge + reserve) >= total:
            _note_need(sim, worker, node, tokens, reserve)
        elif _take(sim, worker, node, start, tokens, branch, part):
            fits = True
        else:
            record.blocked = _OTHER
        if not fits:
            if taken > 0 or stalled > 0:
                break
            # Nobody will give anything back: what does not fit into an idle worker never will.
            _end_head(sim, worker)
            record.blocked = _NOT
            total = _tokens_free(sim, worker)
            continue
        taken += 1
        if sim.live[node].computed < _known(sim, node):
            cut = node
        else:
            sim.running[worker, record.running] = node
            record.running += 1
        total -= float(charge + reserve)
        prefill -= charge
        chunk -= charge
        if chunk <= 0:
            break
    if cut != NONE:
        # Never a second one: what the first leaves of the chunk is less than a page.
        _cache(sim, worker, cut, sim.live[cut].computed)
        _push_front(sim, worker, cut)
    return taken


# Decode -----------------------------------------------------------------------------------------------------------


@compiled
def _growth(sim: Any, worker: int, passes: int) -> int:
    """Return the pages that `passes` decode passes of the batch would add."""
    pages = 0
    for i in range(sim.workers[worker].running):
        node = sim.running[worker, i]
        pages += _pages(sim, _known(sim, node) + passes) - sim.live[node].table_len
    return pages


@compiled
def _retract(sim: Any, worker: int, node: int) -> None:
    """Send `node` to the back of the queue without its pages."""
    record = sim.workers[worker]
    record.preemptions += 1
    record.retracted = 1
    _drop(sim, worker, node)
    advance(REQUEST_TABLE, sim.request_state, node, _PREEMPT)
    _push_back(sim, worker, node)


@compiled
def _retract_one(sim: Any, worker: int) -> None:
    """Retract the request with the least output, the first of several."""
    record = sim.workers[worker]
    position = record.running - record.running  # 0, but not a literal: that would compile every callee once more
    for i in range(1, record.running):
        if sim.live[sim.running[worker, i]].generated < sim.live[sim.running[worker, position]].generated:
            position = i
    node = sim.running[worker, position]
    for i in range(position, record.running - 1):
        sim.running[worker, i] = sim.running[worker, i + 1]
    record.running -= 1
    _retract(sim, worker, node)


@compiled
def _make_room(sim: Any, worker: int) -> None:
    """Retract until the pages cover one more token of each running request.

    One that is left alone takes the pages of a prompt that waits for its next chunk; if it cannot grow then, it fails.
    """
    record = sim.workers[worker]
    while record.running > 1 and _growth(sim, worker, 1) > record.free + record.idle:
        _retract_one(sim, worker)
    if record.wait_head != NONE and sim.live[record.wait_head].computed > 0:
        if _growth(sim, worker, 1) > record.free + record.idle:
            _retract(sim, worker, vllm.pop_waiting(sim, worker))
    if record.retracted != 0:
        generated, limits = 0, 0
        for i in range(record.running):
            node = sim.running[worker, i]
            generated += sim.live[node].generated
            limits += sim.static[node].limit
        expected = float(generated) + float(_RETRACT_STEPS) * float(record.running)
        record.ratio = min(1.0, expected / (float(limits) + 1.0))
    if record.running == 1 and _growth(sim, worker, 1) > record.free + record.idle:
        node = sim.running[worker, 0]
        record.running = 0
        _drop(sim, worker, node)
        vllm.note_outcome(sim, worker, node, _FAIL)


@compiled
def start_pass(sim: Any, worker: int) -> bool:
    """Schedule one pass of an idle worker at the current instant; False when it would have no effect.

    Writes the worker's record, its tree, its queues and the requests that it touches.
    """
    config = sim.config[0]
    run = sim.run[0]
    record = sim.workers[worker]
    record.passes += 1
    record.retracted = 0
    record.stalled = record.running
    if record.too_long > 0:
        _refuse_too_long(sim, worker)
    part = sim.part[worker]
    part[:] = 0
    taken = _prefill_batch(sim, worker, part)
    record.prefill = 1 if taken > 0 else 0
    duration, known_tokens = 0, 0
    if part[0] > 0:
        duration = timing.prefill_ns(config, part[0], part[1] // part[0], part[2] // part[0])
    if taken == 0 and record.running > 0:
        _make_room(sim, worker)
        for i in range(record.running):
            known_tokens += _known(sim, sim.running[worker, i])
        if record.running > 0:
            duration = timing.decode_ns(config, known_tokens)
    if taken == 0 and record.running == 0 and record.outcome_head == NONE:
        record.passes -= 1
        return False
    record.pass_start = run.now
    record.pass_end = run.now + duration
    record.first_duration = duration
    record.decode_tokens_known = known_tokens
    record.macro = 1
    quiet = taken == 0 and record.retracted == 0 and record.outcome_head == NONE
    if config.macro != 0 and quiet and duration > 0:
        _plan_macro(sim, worker)
    return True


# Macro-steps ------------------------------------------------------------------------------------------------------


@compiled
def _passes_before_a_fork(sim: Any, worker: int) -> int:
    """Return how many passes may pass before an insert could depend on what the passes before it evicted.

    A request alone on a node with children hangs its next page below it as one more child, or prolongs it if the
    children have been evicted by then. Every other request is sure of one of the two.
    """
    config = sim.config[0]
    passes = HORIZON_NS
    if config.caching == 0:
        return passes
    for i in range(sim.workers[worker].running):
        node = sim.running[worker, i]
        if sim.live[node].filled < _known(sim, node) // config.block_size:
            # It had no room for its first token: its prompt is inserted with the next one, and may free duplicates.
            return 1
        branch = sim.tree[worker, sim.live[node].leaf]
        if sim.live[node].leaf != radix.ROOT and branch.children > 0 and branch.locks == 1:
            whole = (sim.live[node].filled + 1) * config.block_size
            passes = min(passes, max(1, whole - _known(sim, node)))
    return int(passes)


@compiled
def _ratio_after(config: Any, ratio: float, passes: int) -> float:
    """Return the new-token ratio after `passes` decode passes, each rounded as it would be alone."""
    while passes > 0 and ratio > config.ratio_least:
        ratio = max(ratio - config.ratio_step, config.ratio_least)
        passes -= 1
    # A retraction may have left it lower; the first decay brings it up.
    return max(ratio, config.ratio_least) if passes > 0 else ratio


@compiled
def _stays_blocked(sim: Any, worker: int, first: int, last: int) -> bool:
    """Whether the head is sure to be blocked after `first` to `last` more tokens of every running request.

    What is free and what is reserved both only fall on the way, so the most that admission could give away is bounded
    by the former at the first of these passes and the latter at the last.
    """
    config = sim.config[0]
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
def _blocked_for(sim: Any, worker: int, passes: int) -> int:
    """Return after how many of `passes` passes, from the first on, the head is still sure to be blocked."""
    done, stretch = 0, passes
    while stretch > 0:
        if done + stretch <= passes and _stays_blocked(sim, worker, done + 1, done + stretch):
            done += stretch
        else:
            stretch //= 2
    return done


@compiled
def _plan_macro(sim: Any, worker: int) -> None:
    """Extend the decode pass just scheduled over as many as the batch allows; writes `macro` and `pass_end`."""
    config = sim.config[0]
    record = sim.workers[worker]
    passes = min(_passes_before_a_fork(sim, worker), HORIZON_NS // record.first_duration)
    for i in range(record.running):
        passes = min(passes, _remaining(sim, sim.running[worker, i]))
    if config.timing != _FIXED:
        passes = min(passes, vllm.MAX_VARYING_PASSES)
    if passes <= 1 or record.blocked == _OTHER:
        return
    if _growth(sim, worker, passes) > record.free + record.idle:
        # The most passes whose growth the pool covers; growth is monotone in the number of passes.
        low, high = 1, passes
        while high - low > 1:
            middle = (low + high) // 2
            if _growth(sim, worker, middle) <= record.free + record.idle:
                low = middle
            else:
                high = middle
        passes = low
    if record.blocked == _BUDGET:
        passes = 1 + _blocked_for(sim, worker, passes - 1)
    record.macro = passes
    record.pass_end = vllm.end_of(sim, worker, passes)


@compiled
def interrupt(sim: Any, worker: int) -> None:
    """Cut a macro-step of `worker` short: passes that have ended count, the one in progress goes on alone."""
    run = sim.run[0]
    record = sim.workers[worker]
    done, end = vllm.passes_done(sim, worker)
    if done == 0:
        record.macro = 1
        record.pass_end = record.pass_start + record.first_duration
        return
    following_duration = vllm.duration_of(sim, worker, done + 1)
    apply_passes(sim, worker, done)
    if end == run.now and run.scanned == 0:
        # The boundary is now, and idle workers have not started their passes yet: the arrival joins the next one.
        return
    record.passes += 1
    record.decode_tokens_known += done * record.running
    record.pass_start = end
    record.first_duration = following_duration
    record.pass_end = end + following_duration
    record.macro = 1


# The end of a pass ------------------------------------------------------------------------------------------------


@compiled
def _grow(sim: Any, worker: int, node: int, passes: int, end: int) -> None:
    """Give `node` `passes` tokens and their place; the pages have been taken from the pool.

    The token that ends a request is never computed on: the page that was taken for it alone is given back.
    """
    live = sim.live[node]
    record = sim.workers[worker]
    claimed = _pages(sim, live.computed + passes)
    vllm.record_token_times(sim, worker, node, passes, end)
    record.decode_tokens += passes
    live.computed += passes - (1 if _remaining(sim, node) == 0 else 0)
    live.table_len = _pages(sim, live.computed)
    record.free += claimed - live.table_len


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
    theirs until the next decode pass, which may retract.
    """
    record = sim.workers[worker]
    pages = 0
    for i in range(record.stalled, record.running):
        node = sim.running[worker, i]
        if _remaining(sim, node) > 1:
            pages += _pages(sim, _known(sim, node) + 1) - sim.live[node].table_len
    room = pages <= record.free + record.idle
    if room:
        _claim(sim, worker, pages)
    for i in range(record.stalled, record.running):
        node = sim.running[worker, i]
        if _remaining(sim, node) == 1:
            vllm.record_token_times(sim, worker, node, 1, end)
            record.decode_tokens += 1
        elif room and _remaining(sim, node) > 1:
            _grow(sim, worker, node, 1, end)
            _cache(sim, worker, node, sim.live[node].computed)


@compiled
def _passes_since_insert(sim: Any, node: int) -> int:
    """Return how many passes ago a page of `node` was last filled; the token that ends a request fills none."""
    last = 1 if _remaining(sim, node) == 0 else 0
    return int(last + sim.live[node].computed % sim.config[0].block_size)


@compiled
def _cache_in_order(sim: Any, worker: int) -> None:
    """Cache what the batch has filled, in the order of the requests' last inserts: by pass, then by seat."""
    record = sim.workers[worker]
    before = sim.config[0].block_size + 1
    while True:
        ago = -1
        for i in range(record.running):
            other = _passes_since_insert(sim, sim.running[worker, i])
            if ago < other < before:
                ago = other
        if ago < 0:
            return
        for i in range(record.running):
            node = sim.running[worker, i]
            if _passes_since_insert(sim, node) == ago:
                _cache(sim, worker, node, sim.live[node].computed)
        before = ago


@compiled
def _decode(sim: Any, worker: int, passes: int, end: int) -> None:
    """Give every running request `passes` tokens, the last at `end`."""
    record = sim.workers[worker]
    _claim(sim, worker, _growth(sim, worker, passes))
    if passes > 1:
        if sim.config[0].timing == _FIXED:
            vllm.record_gap(sim, record.first_duration, (passes - 1) * record.running)
        else:
            for number in range(2, passes + 1):
                vllm.record_gap(sim, vllm.duration_of(sim, worker, number), record.running)
    for i in range(record.running):
        _grow(sim, worker, sim.running[worker, i], passes, end)
    if sim.config[0].caching != 0:
        _cache_in_order(sim, worker)


@compiled
def _finish_all(sim: Any, worker: int, end: int) -> None:
    """End the requests that have what they asked for: those that asked for nothing first."""
    record = sim.workers[worker]
    for i in range(record.running):
        if sim.static[sim.running[worker, i]].limit == 0:
            _finish(sim, worker, sim.running[worker, i], end)
    kept = 0
    for i in range(record.running):
        node = sim.running[worker, i]
        if _remaining(sim, node) > 0:
            sim.running[worker, kept] = node
            kept += 1
        elif sim.static[node].limit > 0:
            _finish(sim, worker, node, end)
    record.running = kept


@compiled
def apply_passes(sim: Any, worker: int, passes: int) -> None:
    """End the first `passes` passes of the current step: tokens, inserts, completions; the worker idles.

    Writes the tree, the requests, the feedback list and the log of gaps.
    """
    run = sim.run[0]
    record = sim.workers[worker]
    end = record.pass_start + record.first_duration if passes == 1 else vllm.end_of(sim, worker, passes)
    record.passes += passes - 1
    record.busy += end - record.pass_start
    if record.prefill != 0:
        _first_tokens(sim, worker, end)
    else:
        if record.running > 0:
            _decode(sim, worker, passes, end)
        if record.retracted == 0:
            record.ratio = _ratio_after(sim.config[0], record.ratio, passes)
    _finish_all(sim, worker, end)
    node = record.outcome_head
    while node != NONE:
        following = sim.live[node].next
        sim.live[node].terminal = end
        sim.feedback[run.feedback] = node
        run.feedback += 1
        node = following
    record.outcome_head = NONE
    record.pass_end = NONE
    record.macro = 0
