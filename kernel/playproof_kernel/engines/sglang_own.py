"""How an SGLang worker admits and retracts under SGLang's own rules; see `sglang_rules`.

Admission puts a whole batch together before it touches memory: each candidate is weighed with its prefix locked and
with a page to spare, and once the batch is complete, as much is evicted as the batch can want at most. After a
candidate that did not fit no other is looked at until a request leaves, so a macro-step, in which none does, needs no
bound for it.

Every look at a candidate counts as a use of its cached prefix, admitted or not. Only on a worker on which nothing runs,
where a look in vain is followed by another at once, it leaves no trace; else the result would hang on how often one
looks.
"""

from __future__ import annotations

from typing import Any

from playproof_kernel.engines import passes
from playproof_kernel.engines.sglang_pages import (
    CLIP,
    RETRACT_STEPS,
    cache,
    end_head,
    find,
    finish,
    growers,
    growth,
    pages_for,
    promised,
    remaining,
    retract,
    short,
    wants,
)
from playproof_kernel.engines.sglang_peer import Block
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, WAITING, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.memory import radix_tree

_NOT, _OTHER = constant(Block.NONE), constant(Block.OTHER)


@compiled
def _tokens(sim: Sim, worker: int, locked: int) -> float:
    """Return the tokens that are free or can be evicted when `locked` more pages no longer can."""
    record = sim.workers[worker]
    return float((record.free + record.idle - locked) * config_of(sim, worker).block_size)


@compiled
def _open_batch(sim: Sim, worker: int) -> None:
    """Set the budgets of an empty batch."""
    config, record = config_of(sim, worker), sim.workers[worker]
    record.blocked = _NOT
    record.offset = promised(sim, worker)
    record.charged = 0
    record.input_left = config.max_prefill_tokens
    record.chunk_left = config.chunked_prefill_size
    record.room_wanted = 0
    record.fresh = 0


@compiled
def _commit(sim: Sim, worker: int, request: int, start: int, tokens: int, part: Any) -> None:
    """Add `request`, the head of the queue, to the batch with `tokens` tokens after `start`; its pages come later."""
    record, live = sim.workers[worker], sim.live[request]
    size = config_of(sim, worker).block_size
    charge = pages_for(sim, tokens) * size
    whole = start + tokens == known(sim, request)
    output = min(sim.static[request].limit, CLIP) if whole else 0
    record.offset += float(charge + size + output)
    record.charged += charge + size
    record.input_left -= charge
    record.chunk_left -= charge
    record.room_wanted += tokens + (size if size > 1 else 0)
    fresh = pages_for(sim, start + tokens) - live.table_len
    record.fresh += fresh
    live.table_len += fresh
    live.computed = start + tokens
    if tokens > 0:
        part[0] += 1
        part[1] += start + tokens
        part[2] += start
        record.prefill_tokens += tokens
    queues.take(sim.queues[worker, WAITING], sim.live)
    if whole:
        lifecycle.seat(sim, worker, request)
    else:
        record.cut = request


@compiled
def _go_on(sim: Sim, worker: int, request: int, part: Any) -> bool:
    """Add the next chunk of `request`, which is never weighed; False when others have taken its pages meanwhile."""
    record, live = sim.workers[worker], sim.live[request]
    allowed = int(_tokens(sim, worker, 0) - record.offset)
    allowed = min(record.chunk_left, allowed) if allowed > 0 else record.chunk_left
    start = int(live.computed)
    tokens = min(known(sim, request) - start, allowed)
    if pages_for(sim, start + tokens) - live.table_len > record.free + record.idle:
        return False
    _commit(sim, worker, request, start, tokens, part)
    return True


@compiled
def _weigh(sim: Sim, worker: int, request: int, held: int, branch: int) -> tuple[bool, int]:
    """Say whether `request`, with `held` pages cached down to `branch`, fits, and what it would compute of its prompt.

    It is cut to the whole pages that the chunk has left, but has to fit as a whole, with its output and one page more.
    """
    record = sim.workers[worker]
    size = config_of(sim, worker).block_size
    locked = radix_tree.evictable_on_path(radix_tree.tree_of(sim, worker), held, branch)
    rest = known(sim, request) - held * size
    need = rest + min(remaining(sim, request), CLIP) + size
    fits = float(need) < _tokens(sim, worker, locked) - record.offset
    if pages_for(sim, rest) * size > record.chunk_left:
        tokens = record.chunk_left // size * size
        return fits, int(tokens if tokens > 0 else NONE)
    return fits, rest


@compiled
def _is_spent(sim: Sim, worker: int) -> bool:
    """Whether what the batch has been promised is all that the pool holds."""
    record = sim.workers[worker]
    free = _tokens(sim, worker, 0)
    return bool(free - record.offset <= 0.0 or free - float(record.charged) <= 0.0)


@compiled
def _try(sim: Sim, worker: int, request: int, part: Any) -> bool:
    """Look at `request`, the head of the queue, and admit it if it fits; else note whether the batch is full."""
    record = sim.workers[worker]
    tree = radix_tree.tree_of(sim, worker)
    held, branch = find(sim, worker, request)
    fits, tokens = _weigh(sim, worker, request, held, branch)
    admitted = fits and tokens != NONE
    others = record.running > 0 or record.cut != NONE
    if admitted or others:
        branch = radix_tree.touch(tree, held, branch)
    if not admitted:
        if fits:
            record.blocked = _OTHER
        elif others:
            record.full = 1
        return False
    live = sim.live[request]
    radix_tree.inc_lock_ref(tree, branch)
    live.leaf = branch
    live.filled = held
    live.table_len = held
    start = held * config_of(sim, worker).block_size
    lifecycle.admit(sim, worker, request, start)
    _commit(sim, worker, request, start, tokens, part)
    if _is_spent(sim, worker):
        record.full = 1
    return True


@compiled
def prefill_batch(sim: Sim, worker: int, part: Any) -> int:
    """Take requests from the head of the queue into a prefill pass, and return how many; none overtakes."""
    config, record = config_of(sim, worker), sim.workers[worker]
    waiting = sim.queues[worker, WAITING]
    _open_batch(sim, worker)
    stalled, taken = record.running, 0
    if stalled == 0:
        record.full = 0
    if waiting.head == NONE:
        return 0
    if sim.live[waiting.head].computed > 0:
        if not _go_on(sim, worker, int(waiting.head), part):
            record.blocked = _OTHER
            return 0
        taken = 1
    # That the memory is spent is seen before that the pass is: then the next one is looked at, which fills the batch.
    spent = taken > 0 and _is_spent(sim, worker)
    while waiting.head != NONE and record.full == 0 and (spent or (record.input_left > 0 and record.chunk_left > 0)):
        if stalled + taken >= config.max_sequences:
            record.full = 1
            break
        request = int(waiting.head)
        if pages_for(sim, known(sim, request)) > config.blocks:
            end_head(sim, worker)
            continue
        if _try(sim, worker, request, part):
            taken += 1
            continue
        if taken > 0 or stalled > 0 or record.holding > 0:
            break
        # No request will give anything back: what does not fit into an idle worker never will.
        end_head(sim, worker)
        record.blocked = _NOT
    _close_batch(sim, worker, taken)
    return taken


@compiled
def _close_batch(sim: Sim, worker: int, taken: int) -> None:
    """Evict what the batch can want at most, and take its pages; a prompt that was cut keeps the head of the queue."""
    record = sim.workers[worker]
    if taken == 0:
        return
    want = pages_for(sim, record.room_wanted) - record.free
    if want > 0:
        radix_tree.evict(radix_tree.tree_of(sim, worker), want)
    record.free -= record.fresh
    if record.cut != NONE:
        queues.prepend(sim.queues[worker, WAITING], sim.live, record.cut)


# The end of a pass ------------------------------------------------------------------------------------------------


@compiled
def end_prefill(sim: Sim, worker: int, end: int) -> None:
    """Give the requests whose prompt is now whole their first token, one after another.

    The place of that token is taken in the next decode pass. One that wants no other leaves at once, others cache their
    prompt.
    """
    record = sim.workers[worker]
    kept = int(record.stalled)
    for i in range(record.stalled, record.running):
        request = int(sim.running[worker, i])
        if remaining(sim, request) > 1:
            cache(sim, worker, request)
        passes.give_tokens(sim, worker, request, ONE, end)
        if remaining(sim, request) == 0:
            finish(sim, worker, request, end)
        else:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept


@compiled
def end_batch(sim: Sim, worker: int) -> None:
    """After a prefill pass: cache the chunk of a prompt that goes on, and look at others again if the batch was new.

    A batch that had none to join becomes the running one, and of a batch with a cut prompt that one leaves.
    """
    record = sim.workers[worker]
    if record.cut != NONE and sim.tickets[record.cut].canceled == 0:
        cache(sim, worker, int(record.cut))
    if record.cut != NONE or record.stalled == 0:
        record.full = 0
    record.cut = NONE


@compiled
def evict_ahead(sim: Sim, worker: int, number: int) -> None:
    """Evict as `number` decode passes do: before each, until there is a page for every request that wants a token."""
    record = sim.workers[worker]
    want = growth(sim, worker, number - 1) + growers(sim, worker) - record.free
    if want > 0:
        radix_tree.evict(radix_tree.tree_of(sim, worker), want)


# Retraction -------------------------------------------------------------------------------------------------------


@compiled
def _goes_before(sim: Sim, a: int, b: int) -> bool:
    """Whether `a` is kept rather than `b`: it has more output, or as much and a shorter prompt."""
    tokens, other = sim.live[a].generated, sim.live[b].generated
    return bool(tokens > other or (tokens == other and sim.static[a].input < sim.static[b].input))


@compiled
def _sort_batch(sim: Sim, worker: int) -> None:
    """Put the running requests in the order in which they are kept; equal ones keep theirs."""
    seats = sim.running[worker]
    for i in range(1, sim.workers[worker].running):
        request = seats[i]
        at = i
        while at > 0 and _goes_before(sim, request, seats[at - 1]):
            seats[at] = seats[at - 1]
            at -= 1
        seats[at] = request


@compiled
def make_room(sim: Sim, worker: int) -> None:
    """Retract the last requests of the sorted batch until the pages cover the others; what can be is evicted first."""
    record = sim.workers[worker]
    tree = radix_tree.tree_of(sim, worker)
    while growers(sim, worker) > 1 and short(sim, worker):
        radix_tree.evict(tree, record.idle)
        _sort_batch(sim, worker)
        i = record.running - 1
        while not wants(sim, sim.running[worker, i]):
            i -= 1
        request = int(sim.running[worker, i])
        lifecycle.remove_running(sim, worker, request)
        retract(sim, worker, request)
        want = pages_for(sim, RETRACT_STEPS * growers(sim, worker)) - record.free
        if want > 0:
            radix_tree.evict(tree, want)
