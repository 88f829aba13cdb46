"""An SGLang worker: prefill passes before decode passes, retraction, and macro-steps over decode passes.

The rules are those of SGLang's scheduler. A pass is either a prefill of requests from the head of the waiting queue, in
which running requests stand still, or a decode of all running ones. Admission keeps a share (the new-token ratio) of
the output that running requests may still want free; when decoding runs out of pages nevertheless, requests with the
least output are retracted.

What a pass changes takes effect at its end, but for admissions and retractions, which belong to its start. Nothing on
the worker can tell the difference. A prompt enters the tree when its prefill is through; output does when its request
ends, and not before.

**Macro-steps.** A decode pass that retracted no request is followed by an equal one, one token further, unless a
request has all its tokens, the pages do not cover the growth, a request arrives at an empty queue, or the blocked head
of the queue comes to fit. The last is excluded by bounds over a series of passes (`sglang_peer`), and the step ends
where they no longer exclude it.

**Prefill and decode roles.** A prefill worker ends a request with its first, hidden token, and keeps its prompt
locked until the decode worker has it. A decode worker seats requests whose prompt was handed over in the order of
activation; while a destination is pending, or one of those has no seat, no other request is admitted.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import Backend, DeploymentSpec, Role, WorkerSpec
from playproof_spec.machines import RequestEvent
from playproof_spec.units import HORIZON_NS

from playproof_kernel.engines import passes, sglang_own, sglang_peer
from playproof_kernel.engines.seam import Engine, Room, nothing_for_request, nothing_for_worker
from playproof_kernel.engines.sglang_pages import (
    RETRACT_STEPS,
    cache,
    claim,
    finish,
    grow,
    growers,
    growth,
    leave,
    let_go,
    pages_for,
    remaining,
    retract,
    short,
    wants,
)
from playproof_kernel.engines.sglang_peer import Block
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, OUTCOMES, PENDING, READY, WAITING, Sim
from playproof_kernel.ground.jit import ZERO, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance
from playproof_kernel.memory import radix_tree

_NOT, _BUDGET, _OTHER = constant(Block.NONE), constant(Block.BUDGET), constant(Block.OTHER)
_ENQUEUE, _REJECT, _FAIL = constant(RequestEvent.ENQUEUE), constant(RequestEvent.REJECT), constant(RequestEvent.FAIL)
_PREFILL, _DECODE = constant(Role.PREFILL), constant(Role.DECODE)
_TREES = constant(Room.TREES)

# Reserving splits one node of the radix tree at most; activating and releasing each add two at most.
NODES_OF_ACTION = 8


# The waiting queue ------------------------------------------------------------------------------------------------


@compiled
def refuse_too_long(sim: Sim, worker: int) -> None:
    """Reject every waiting prompt that reaches the context limit; the others keep their order."""
    waiting = sim.queues[worker, WAITING]
    sim.workers[worker].noticed = 0
    last, request = waiting.tail, NONE
    while waiting.head != NONE and request != last:
        request = queues.take(waiting, sim.live)
        if sim.static[request].input >= sim.config[0].context:
            lifecycle.note_outcome(sim, worker, request, _REJECT)
        else:
            queues.append(waiting, sim.live, request)


# Decode -----------------------------------------------------------------------------------------------------------


@compiled
def _first_grower(sim: Sim, worker: int) -> int:
    i = 0
    while not wants(sim, sim.running[worker, i]):
        i += 1
    return int(sim.running[worker, i])


@compiled
def _outgrew(sim: Sim, worker: int) -> bool:
    """Whether the first request that wants a token needs more pages for it than there are."""
    return pages_for(sim, sim.live[_first_grower(sim, worker)].computed + 1) > config_of(sim, worker).blocks


@compiled
def make_room(sim: Sim, worker: int) -> None:
    """Retract until the pages cover one more token of each running request.

    One that is left alone takes the pages of a prompt that waits for its next chunk. If it cannot grow then, and never
    will, it fails. If others hold the pages without growing, it makes way for those that want its seat, or stalls until
    they give them up.
    """
    record = sim.workers[worker]
    if config_of(sim, worker).sorted_batch != 0:
        sglang_own.make_room(sim, worker)
    else:
        sglang_peer.make_room(sim, worker)
    first = sim.queues[worker, WAITING].head
    if first != NONE and sim.live[first].computed > 0 and short(sim, worker):
        retract(sim, worker, queues.take(sim.queues[worker, WAITING], sim.live))
    alone = record.running == 1 and short(sim, worker)
    if alone and sim.queues[worker, READY].head != NONE and not _outgrew(sim, worker):
        request = int(sim.running[worker, 0])
        lifecycle.remove_running(sim, worker, request)
        retract(sim, worker, request)
    if record.retracted != 0:
        _estimate_ratio(sim, worker)
    if short(sim, worker):
        if _outgrew(sim, worker):
            request = _first_grower(sim, worker)
            lifecycle.remove_running(sim, worker, request)
            let_go(sim, worker, request)
            lifecycle.note_outcome(sim, worker, request, _FAIL)
        else:
            record.stuck = 1


@compiled
def _estimate_ratio(sim: Sim, worker: int) -> None:
    """After a retraction: what share of their output the survivors have, a few passes from now."""
    record = sim.workers[worker]
    generated, limits = 0, 0
    for i in range(record.running):
        request = sim.running[worker, i]
        generated += sim.live[request].generated
        limits += sim.static[request].limit
    expected = float(generated) + float(RETRACT_STEPS) * float(growers(sim, worker))
    record.ratio = min(1.0, expected / (float(limits) + 1.0))


# Handed-over requests ---------------------------------------------------------------------------------------------


@compiled
def _seat_ready(sim: Sim, worker: int) -> None:
    """Seat requests whose prompt was handed over, in the order of activation; it enters the tree now."""
    record = sim.workers[worker]
    seats = config_of(sim, worker).max_sequences
    ready = sim.queues[worker, READY]
    while ready.head != NONE and record.running < seats:
        request = queues.take(ready, sim.live)
        cache(sim, worker, request)
        lifecycle.admit(sim, worker, request, ZERO)
        lifecycle.seat(sim, worker, request)


@compiled
def _yield_to_destination(sim: Sim, worker: int) -> None:
    """Retract a prompt that waits for its next chunk when it is all that stands against a pending destination."""
    record = sim.workers[worker]
    first = sim.queues[worker, WAITING].head
    if record.running > 0 or record.holding > 0 or sim.queues[worker, PENDING].head == NONE or first == NONE:
        return
    if sim.live[first].computed > 0:
        retract(sim, worker, queues.take(sim.queues[worker, WAITING], sim.live))


@compiled
def reserve(sim: Sim, worker: int, request: int) -> int:
    """Take pages for the prompt of `request`; returns the tokens that the pages not cached hold, or NONE.

    A try that fails has stamped the prefix all the same.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    live = sim.live[request]
    prompt = sim.static[request].input
    tree = radix_tree.tree_of(sim, worker)
    held, branch = 0, radix_tree.ROOT
    if config.caching != 0:
        held, branch = radix_tree.match_prefix(tree, request, prompt // config.block_size)
    leaf = radix_tree.lock_matched(tree, held, branch)
    fresh = pages_for(sim, prompt) - held
    if fresh > record.free + record.idle:
        radix_tree.dec_lock_ref(tree, leaf)
        return NONE
    claim(sim, worker, fresh)
    live.leaf = leaf
    live.filled = held
    live.table_len = held + fresh
    return int(fresh * config.block_size)


@compiled
def activate(sim: Sim, worker: int, request: int) -> None:
    """The prompt of `request` is there: it waits for a seat."""
    live = sim.live[request]
    live.computed = sim.static[request].input
    advance(REQUEST_TABLE, sim.request_state, request, _ENQUEUE)
    queues.append(sim.queues[worker, READY], sim.live, request)


@compiled
def release_source(sim: Sim, worker: int, request: int) -> None:
    """Let a held prompt go: its whole pages stay cached."""
    leave(sim, worker, request)


# A pass -----------------------------------------------------------------------------------------------------------


@compiled
def start_pass(sim: Sim, worker: int) -> bool:
    """Schedule one pass of an idle worker at the current instant; False when it would have no effect.

    Writes the worker's record, its tree, its queues and the requests that it touches.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    record.passes += 1
    record.retracted = 0
    record.stuck = 0
    record.cut = NONE
    if record.noticed > 0:
        refuse_too_long(sim, worker)
    _seat_ready(sim, worker)
    record.stalled = record.running
    part = sim.part[worker]
    part[:] = 0
    taken = 0
    record.blocked = _NOT
    if sim.queues[worker, READY].head == NONE and sim.queues[worker, PENDING].head == NONE:
        if config.whole_batches != 0:
            taken = sglang_own.prefill_batch(sim, worker, part)
        else:
            taken = sglang_peer.prefill_batch(sim, worker, part)
    record.prefill = 1 if taken > 0 else 0
    decoding, known_tokens = 0, 0
    if taken == 0:
        _yield_to_destination(sim, worker)
        if record.running > 0:
            make_room(sim, worker)
        for i in range(record.running):
            request = sim.running[worker, i]
            if remaining(sim, request) > 0 and record.stuck == 0:
                decoding += 1
                known_tokens += known(sim, request)
    waits = record.running == record.stuck  # no request runs, or one that can do nothing
    no_outcome = sim.queues[worker, OUTCOMES].head == NONE
    if taken == 0 and waits and no_outcome and record.retracted == 0:
        record.passes -= 1
        return False
    passes.begin(sim, worker, passes.cost(sim, worker, part, decoding, known_tokens), known_tokens)
    quiet = taken == 0 and record.retracted == 0 and record.stuck == 0 and no_outcome
    quiet = quiet and record.first_duration > 0 and not lifecycle.pending_due(sim, worker)
    if config.macro != 0 and quiet:
        plan_macro(sim, worker)
    return True


# Macro-steps ------------------------------------------------------------------------------------------------------


@compiled
def ratio_after(config: Any, ratio: float, number: int) -> float:
    """Return the new-token ratio after `number` decode passes, each rounded as it would be alone."""
    while number > 0 and ratio > config.ratio_least:
        ratio = max(ratio - config.ratio_step, config.ratio_least)
        number -= 1
    # A retraction may have left it lower; the first decay brings it up.
    return max(ratio, config.ratio_least) if number > 0 else ratio


@compiled
def plan_macro(sim: Sim, worker: int) -> None:
    """Extend the decode pass just scheduled over as many as the batch allows; writes `macro` and `pass_end`."""
    config = config_of(sim, worker)
    record = sim.workers[worker]
    number = HORIZON_NS // record.first_duration
    for i in range(record.running):
        # Under the overlap schedule the pass that is prepared goes on as well, with all of them.
        number = min(number, remaining(sim, sim.running[worker, i]) - config.ahead)
    if config.steady == 0:
        number = min(number, passes.MAX_VARYING_PASSES)
    if number <= 1 or record.blocked == _OTHER:
        return
    # There, the place for the second pass has been taken already.
    if growth(sim, worker, number - config.ahead) > record.free + record.idle:
        # The most passes whose growth the pool covers; growth is monotone in the number of passes.
        low, high = 1, number
        while high - low > 1:
            middle = (low + high) // 2
            if growth(sim, worker, middle - config.ahead) <= record.free + record.idle:
                low = middle
            else:
                high = middle
        number = low
    if record.blocked == _BUDGET:
        number = 1 + sglang_peer.blocked_for(sim, worker, number - 1)
    record.macro = number
    record.pass_end = passes.end_of(sim, worker, number)


# The end of a pass ------------------------------------------------------------------------------------------------


@compiled
def _decode(sim: Sim, worker: int, number: int, end: int) -> None:
    """Give every running request that wants tokens `number` of them, the last at `end`."""
    record = sim.workers[worker]
    if config_of(sim, worker).spare_pages != 0:
        sglang_own.evict_ahead(sim, worker, number)
    claim(sim, worker, growth(sim, worker, number))
    if number > 1:
        passes.record_gaps_between(sim, worker, number)
    for i in range(record.running):
        request = sim.running[worker, i]
        if remaining(sim, request) > 0:
            grow(sim, worker, request, number, end)


@compiled
def _finish_some(sim: Sim, worker: int, wanted: bool, first: int, end: int) -> None:
    """End running requests from seat `first` on that have all they asked for: who `wanted` tokens, or who did not."""
    record = sim.workers[worker]
    kept = first
    for i in range(first, record.running):
        request = sim.running[worker, i]
        if remaining(sim, request) == 0 and (sim.static[request].limit > 0) == wanted:
            finish(sim, worker, request, end)
        else:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    """End the first `number` passes of the current step: tokens, inserts, completions; the worker idles.

    Requests that wanted no token leave before anything else happens. Writes the tree, the requests, the feedback list
    and the log of gaps.
    """
    record = sim.workers[worker]
    end = passes.finish(sim, worker, number)
    lifecycle.drop_canceled(sim, worker)
    first = record.stalled if record.prefill != 0 else ZERO
    _finish_some(sim, worker, False, first, end)
    if record.prefill != 0:
        if config_of(sim, worker).late_places != 0:
            sglang_own.end_prefill(sim, worker, end)
        else:
            sglang_peer.first_tokens(sim, worker, end)
    else:
        if record.running > 0 and record.stuck == 0:
            _decode(sim, worker, number, end)
        if record.retracted == 0:
            record.ratio = ratio_after(config_of(sim, worker), record.ratio, number)
    _finish_some(sim, worker, True, first, end)
    if record.prefill != 0 and config_of(sim, worker).whole_batches != 0:
        sglang_own.end_batch(sim, worker)
    lifecycle.tell_outcomes(sim, worker, end)
    passes.rest(sim, worker)


# The engine -------------------------------------------------------------------------------------------------------


@compiled
def notices(sim: Sim, worker: int, request: int) -> bool:
    """Whether a prompt is at the context limit: the next pass refuses it, wherever it stands."""
    return bool(sim.static[request].input >= sim.config[0].context)


@compiled
def published(sim: Sim, worker: int, request: int, blocks: int) -> int:
    """Return how many leading prompt pages of `request` the tree of `worker` has, as far as it has told."""
    return radix_tree.published_prefix(radix_tree.tree_of(sim, worker), request, blocks)


@compiled
def room_for_pass(sim: Sim, worker: int) -> int:
    """Return whether the tree has room for the nodes that a pass may add."""
    return 0 if radix_tree.has_room(sim, worker, radix_tree.room(sim.running.shape[1])) else _TREES


@compiled
def room_for_action(sim: Sim, worker: int) -> int:
    """Return whether the tree has room for the nodes that a step of a handoff may add."""
    return 0 if radix_tree.has_room(sim, worker, NODES_OF_ACTION) else _TREES


def tokens_a_pass(spec: WorkerSpec) -> int:
    """Return the prompt tokens that a pass computes of a prompt which has as many left."""
    # A chunk is cut to whole pages.
    return min(max(spec.chunked_prefill_size - spec.block_size, 1), spec.max_prefill_tokens)


def _serves(spec: WorkerSpec) -> bool:
    return spec.backend == Backend.SGLANG and not spec.ahead


def refuse(deployment: DeploymentSpec) -> None:
    """Raise `ValueError` for what no SGLang worker is simulated with."""
    roles = [deployment.worker, *([] if deployment.decode is None else [deployment.decode.worker])]
    if any(role.host is not None for role in roles):
        raise ValueError("host memory belongs to vLLM with prefix caching")


ENGINE = Engine(
    name="sglang",
    serves=_serves,
    refuse=refuse,
    tokens_a_pass=tokens_a_pass,
    keeps_tree=True,
    destination_first=True,
    start_pass=start_pass,
    apply_passes=apply_passes,
    go_on=nothing_for_worker,  # what a pass computes shows in the pool at its end
    notices=notices,
    reserve=reserve,
    activate=activate,
    release_source=release_source,
    let_go=let_go,
    forget=nothing_for_request,
    published=published,
    room_for_pass=room_for_pass,
    room_for_action=room_for_action,
)
