"""A vLLM worker: scheduling one pass, ending passes, and macro-steps over passes whose batch cannot change.

The rules are those of vLLM v1's scheduler: running requests first, in admission order, under one token budget;
preemption of the request admitted last; then admission from the head of the waiting queue, without overtaking. A
request's first token comes at the end of its last prefill pass.

**Macro-steps.** When a pass computed one output token of every running request and admitted, preempted and refused
none, the next pass would do the same, one token further, as long as no request finishes, the pool can cover the
growth and none arrives at an empty queue. Such passes are run as one event and their effects applied once, at its end
or when an arrival cuts it short.

A blocked head of the queue stays blocked meanwhile. It is blocked because its blocks, less those of its prefix that are
in use, outnumber the available ones. Each block of growth makes one fewer available; at most it evicts one idle block,
which can at most uncover one second frame in use of the same prefix block. So the first number falls by no more than
the second. With host memory it may be deferred instead: see `offload.eviction_matters`.

**Prefill and decode roles.** A prefill worker ends a request with its first, hidden token and holds its blocks. A
decode worker is given requests whose prompt is there already (materialized); they are seated without budget or blocks.

**Speculative decoding.** A request that runs and has one token left to compute is given drafts behind it, which take of
the budget but of the pool only when the pass is scheduled as a whole: then blocks are kept for every token that it may
give, and requests are preempted from the end where they do not suffice. What is accepted shows at the pass's end, and
so do the blocks that it fills. A prefix found in cache ends one block earlier, as for draft heads.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import Backend, DeploymentSpec, Role, WorkerSpec
from playproof_spec.machines import RequestEvent, RequestState
from playproof_spec.units import HORIZON_NS

from playproof_kernel.engines import passes, speculation
from playproof_kernel.engines.seam import Engine, Room, nothing_for_request, notices_nobody
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import DEFERRED, NONE, OUTCOMES, PENDING, WAITING, Sim
from playproof_kernel.ground.jit import ONE, ZERO, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance
from playproof_kernel.host import offload
from playproof_kernel.memory import block_pool, block_tables, cache_events, prompt_keys

_ENQUEUE, _REJECT, _FAIL = constant(RequestEvent.ENQUEUE), constant(RequestEvent.REJECT), constant(RequestEvent.FAIL)
_RUNNING = constant(RequestState.RUNNING)
_TABLES = constant(Room.TABLES)
_PREFILL, _DECODE = constant(Role.PREFILL), constant(Role.DECODE)


# Scheduling -------------------------------------------------------------------------------------------------------


@compiled
def preempt_last(sim: Sim, worker: int) -> int:
    record = sim.workers[worker]
    record.running -= 1
    request = int(sim.running[worker, record.running])
    if offload.is_used(sim, worker):
        offload.fence_preempted(sim, worker, request)
    block_tables.release_all(sim, worker, request)
    lifecycle.preempt(sim, worker, request)
    queues.prepend(sim.queues[worker, WAITING], sim.live, request)
    return request


@compiled
def compute(sim: Sim, worker: int, request: int, tokens: int, part: Any) -> None:
    """Let `request` compute `tokens` more tokens in this pass: blocks, cache, and its share of the prefill part.

    `part` (Int64, shape (3,)) is written: requests that computed prompt tokens, the sum of their prompt tokens known
    after this pass, and of those known before.
    """
    live = sim.live[request]
    record = sim.workers[worker]
    held = int(live.table_len)
    block_tables.extend(sim, worker, request, live.computed + tokens)
    if offload.is_used(sim, worker):
        offload.fence(sim, worker, request, held)
    prompt = sim.static[request].input
    before = min(live.computed, prompt)
    live.computed += tokens
    after = min(live.computed, prompt)
    if after > before:
        part[0] += 1
        part[1] += after
        part[2] += before
        record.prefill_tokens += tokens
        live.prompt_pass = record.passes
    # A token that a pass still owes is not there to be found.
    block_tables.cache_up_to(sim, worker, request, min(int(live.computed), known(sim, request)))


@compiled
def bound_requests(sim: Sim, worker: int) -> None:
    """Find out how many tokens the pass to be scheduled computes of one request at most.

    The bound of long prefills holds where there is another request that it could keep waiting.
    """
    config, record = config_of(sim, worker), sim.workers[worker]
    record.most = config.long_prefill
    present = int(record.running)
    for number in (WAITING, DEFERRED):
        request = int(sim.queues[worker, number].head)
        while request != NONE and present <= 1:
            present += 1
            request = int(sim.live[request].next)
    if present <= 1:
        record.most = config.max_batched_tokens


@compiled
def _schedule_running(sim: Sim, worker: int, budget: int, part: Any) -> tuple[int, int, bool]:
    """Give running requests their tokens, preempting from the end when the pool is short.

    Returns
    -------
    budget : int
        What is left.
    scheduled : int
        How many of the running requests were scheduled, the first ones.
    preempted : bool
        Whether any was preempted.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    preempted = False
    drafts = 0
    i = ZERO
    while i < record.running and budget > 0:
        request = sim.running[worker, i]
        live = sim.live[request]
        if config.drafts > 0:
            drafts = speculation.drafted(sim, worker, request)
            live.granted = min(1 + drafts, record.most, budget)
        # Drafts take of the budget, but no blocks yet.
        want = min(known(sim, request) - live.computed, record.most, budget)
        needed = (live.computed + want + config.block_size - 1) // config.block_size
        if needed > config.blocks:
            # Even the whole pool would not do: retrying for ever would stall the worker.
            block_tables.release_all(sim, worker, request)
            lifecycle.remove_running(sim, worker, request)
            lifecycle.note_outcome(sim, worker, request, _FAIL)
            continue
        fits = True
        while needed - live.table_len > block_pool.available(sim, worker):
            preempted = True
            if preempt_last(sim, worker) == request:
                fits = False
                break
        if fits:
            compute(sim, worker, request, want, part)
            budget -= min(want + drafts, record.most, budget)
            i += 1
    return budget, i, preempted


@compiled
def _first_materialized(sim: Sim, worker: int) -> int:
    """Return the waiting request that arrived first among those whose prompt is there already, or NONE."""
    first = NONE
    request = sim.queues[worker, WAITING].head
    while request != NONE:
        if sim.live[request].computed > 0 and (first == NONE or sim.tickets[request].order < sim.tickets[first].order):
            first = request
        request = sim.live[request].next
    return int(first)


@compiled
def _seat(sim: Sim, worker: int, request: int) -> None:
    lifecycle.seat(sim, worker, request)
    sim.live[request].granted = 1
    sim.live[request].drafting = 0


@compiled
def _seat_materialized(sim: Sim, worker: int, request: int) -> None:
    queues.remove(sim.queues[worker, WAITING], sim.live, request)
    lifecycle.admit(sim, worker, request, ZERO)
    _seat(sim, worker, request)


@compiled
def _takes_no_time(config: Any) -> bool:
    """Whether prompts are computed in no time on workers whose blocks others may hold."""
    return bool(config.role == _DECODE or (config.role == _PREFILL and config.instant_prompts != 0))


@compiled
def _most_reusable(sim: Sim, worker: int, request: int, tokens: int) -> int:
    """Return how many leading blocks `request`, which knows `tokens` tokens, may reuse at most."""
    config = config_of(sim, worker)
    if config.caching == 0:
        return 0
    # The last token is always computed, unless nothing follows it.
    return int((tokens - 1 if sim.static[request].limit > 0 else tokens) // config.block_size)


@compiled
def _reusable(sim: Sim, worker: int, request: int, tokens: int) -> int:
    """Return how many leading blocks of `request`, which knows `tokens` tokens, it may reuse.

    The frames are left in ``sim.found``.
    """
    hits = block_tables.get_computed_blocks(sim, worker, request, _most_reusable(sim, worker, request, tokens))
    if config_of(sim, worker).speculative != 0 and sim.static[request].limit > 0 and hits > 0:
        hits -= 1
    return hits


@compiled
def _admit_head(sim: Sim, worker: int, request: int, tokens: int, hits: int, budget: int, part: Any) -> int:
    """Admit the head of the waiting queue, whose table holds `hits` cached blocks; returns what it uses of `budget`."""
    live = sim.live[request]
    queues.take(sim.queues[worker, WAITING], sim.live)
    live.computed = hits * config_of(sim, worker).block_size
    _seat(sim, worker, request)
    lifecycle.admit(sim, worker, request, live.computed)
    want = min(tokens - live.computed, sim.workers[worker].most, budget)
    compute(sim, worker, request, want, part)
    return int(want)


@compiled
def _blocks_to_admit(sim: Sim, worker: int, room: int, hits: int, budget: int) -> int:
    """Return how many blocks there must be for a request to be admitted, the `hits` found in cache among them.

    They hold the `room` tokens that it knows, or what its first pass leaves it with.
    """
    config = config_of(sim, worker)
    size = config.block_size
    if config.reserve == 0:
        computed = hits * size
        room = min(room, computed + min(room - computed, sim.workers[worker].most, budget))
    return int((room + size - 1) // size)


@compiled
def _kept_free(sim: Sim, worker: int) -> int:
    """Return the blocks that admission leaves available: a watermark, unless nothing runs."""
    return int(config_of(sim, worker).watermark) if sim.workers[worker].running > 0 else 0


@compiled
def admit_waiting(sim: Sim, worker: int, budget: int, part: Any) -> None:
    """Admit from the head of the waiting queue until one does not fit; end those that can never fit.

    While a destination is pending, only materialized requests are admitted.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    waiting = sim.queues[worker, WAITING]
    size = config.block_size
    while record.running < config.max_sequences:
        pending = sim.queues[worker, PENDING].head != NONE
        request = _first_materialized(sim, worker) if pending else int(waiting.head)
        if request == NONE:
            return
        live = sim.live[request]
        if live.computed > 0:
            _seat_materialized(sim, worker, request)
            if budget <= 0:
                return
            continue
        static = sim.static[request]
        tokens = known(sim, request)
        if block_tables.never_fits(sim, worker, request):
            # Never admitted before: refused. Preempted after its output outgrew the pool: failed.
            queues.take(waiting, sim.live)
            lifecycle.note_outcome(sim, worker, request, _REJECT if live.admissions == 0 else _FAIL)
            continue
        if budget <= 0:
            return
        if config.plain != 0 and (tokens + size - 1) // size <= block_pool.available(sim, worker):
            # It fits, whatever it finds.
            hits = block_tables.take_prefix(sim, worker, request, _most_reusable(sim, worker, request, tokens))
            budget -= _admit_head(sim, worker, request, tokens, hits, budget, part)
            continue
        hits = _reusable(sim, worker, request, tokens)
        room = tokens
        if config.speculative != 0 and record.running == 0 and static.limit > 0 and _takes_no_time(config):
            # Where others hold blocks it would be pushed out again at this instant, without room for its next token.
            room = min(tokens + 1, config.blocks * size)
        total = _blocks_to_admit(sim, worker, int(room), hits, budget)
        if not block_tables.fits(sim, worker, total, hits, _kept_free(sim, worker)):
            # When nothing runs, what the head waits for is held by materialized requests behind it.
            request = _first_materialized(sim, worker) if record.running == 0 else NONE
            if request == NONE:
                return
            _seat_materialized(sim, worker, request)
            continue
        block_tables.open_with_prefix(sim, worker, request, hits)
        budget -= _admit_head(sim, worker, request, tokens, hits, budget, part)


@compiled
def _admit_beside_host(sim: Sim, worker: int, budget: int, part: Any) -> None:
    """Admit waiting requests on a worker with host memory, which restores what the host has of a prompt beforehand.

    No request is looked at without budget left, since looking counts as use.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    size = config.block_size
    rescued = NONE
    while record.running < config.max_sequences and budget > 0:
        request = rescued if rescued != NONE else _candidate_beside_host(sim, worker)
        rescued = NONE
        if request == NONE:
            return
        if config.role == _DECODE and sim.live[request].computed > 0:
            _seat_materialized(sim, worker, request)
            continue
        live, static, ticket = sim.live[request], sim.static[request], sim.tickets[request]
        if static.input >= config.context:
            _refuse_beside_host(sim, worker, request)
            continue
        if offload.awaits(sim, worker, request):
            offload.defer(sim, worker, request)
            continue
        tokens = known(sim, request)
        # The last token is always computed, unless nothing follows it.
        most = tokens // size if static.limit == 0 else (tokens - 1) // size
        from_host = 0
        if ticket.restored == NONE:
            hits = block_tables.get_computed_blocks(sim, worker, request, tokens // size)
            present = offload.look_up(sim, worker, request, hits)
            if present == offload.ON_ITS_WAY:
                offload.defer(sim, worker, request)
                continue
            if block_tables.never_fits(sim, worker, request):
                _refuse_beside_host(sim, worker, request)
                continue
            if present > 0:
                if not offload.start_load(sim, worker, request, hits, present):
                    rescued = _rescued(sim, worker)
                    if rescued == NONE:
                        return
                continue
            hits = min(hits, most)
            if not block_tables.fits(sim, worker, (tokens + size - 1) // size, hits, ZERO):
                rescued = _rescued(sim, worker)
                if rescued == NONE:
                    return
                continue
            block_tables.open_with_prefix(sim, worker, request, hits)
            live.computed = hits * size
            sim.hosts[worker].misses += 1
        else:
            if (tokens + size - 1) // size - live.table_len > block_pool.available(sim, worker):
                return
            live.computed = min(live.table_len, most) * size
            from_host = max(live.computed - ticket.restored * size, 0)
            ticket.cursor = live.computed // size
            ticket.restored = NONE
        offload.leave(sim, worker, request)
        _seat(sim, worker, request)
        lifecycle.admit(sim, worker, request, live.computed)
        sim.admissions[sim.run[0].admissions - 1].host = from_host
        want = min(tokens - live.computed, record.most, budget)
        compute(sim, worker, request, want, part)
        budget -= want


@compiled
def _candidate_beside_host(sim: Sim, worker: int) -> int:
    """Return whom admission looks at next, or NONE: requests handed over come first, pending destinations or not."""
    if config_of(sim, worker).role == _DECODE:
        request = _first_materialized(sim, worker)
        if request != NONE:
            return request
        if sim.queues[worker, PENDING].head != NONE:
            # What is pending may wait for the blocks of restored requests, and these for what is pending.
            # What is reserved will be handed over and run, and does not wait for anybody.
            record = sim.workers[worker]
            return offload.first_restored(sim, worker) if record.running == 0 and record.holding == 0 else NONE
    return offload.candidate(sim, worker)


@compiled
def _rescued(sim: Sim, worker: int) -> int:
    """Return whom to admit in place of a candidate that has no room, or NONE: most often it waits for the room.

    But when nothing runs, no frame of the worker is under way and no handoff holds memory here, what it waits for is
    held by requests behind it whose blocks have been restored. The first of those has room: it was promised.
    """
    record = sim.workers[worker]
    if record.running > 0 or record.holding > 0 or sim.hosts[worker].host_transfers > 0:
        return NONE
    return int(offload.first_restored(sim, worker))


@compiled
def _refuse_beside_host(sim: Sim, worker: int, request: int) -> None:
    """End a request that can never fit: refused, or failed if it ran before."""
    offload.leave(sim, worker, request)
    lifecycle.note_outcome(sim, worker, request, _REJECT if sim.live[request].admissions == 0 else _FAIL)


@compiled
def _decode_part(sim: Sim, worker: int) -> tuple[int, int]:
    """Return how many running requests decode in the pass just scheduled, and the tokens that they know together.

    A first token belongs to the prefill pass that computed the prompt's end. A request that was preempted and
    recomputes its prompt decodes in the pass in which it catches up (reference case agg-vllm-tight-002). On a decode
    worker every token is made by decoding.
    """
    record = sim.workers[worker]
    role = config_of(sim, worker).role
    decoding, known_tokens = 0, 0
    for i in range(record.running):
        request = sim.running[worker, i]
        live = sim.live[request]
        tokens = known(sim, request)
        decodes = live.generated > 0 or live.prompt_pass != record.passes or role == _DECODE
        if live.computed == tokens and sim.static[request].limit > 0 and decodes:
            decoding += 1
            known_tokens += tokens
    return decoding, known_tokens


@compiled
def start_pass(sim: Sim, worker: int) -> bool:
    """Schedule one pass of an idle worker at the current instant; False when it would have no effect.

    Writes the worker's record, its pool, its queues and the requests that it touches.
    """
    config = config_of(sim, worker)
    run = sim.run[0]
    record = sim.workers[worker]
    record.passes += 1
    if config.long_prefill < config.max_batched_tokens:
        bound_requests(sim, worker)
    evidence = run.admissions + record.preemptions
    part = sim.part[worker]
    part[:] = 0
    with_host = offload.is_used(sim, worker)
    if with_host:
        offload.begin_pass(sim, worker)
    budget, scheduled, preempted = _schedule_running(sim, worker, config.max_batched_tokens, part)
    whole = scheduled == record.running
    if not preempted:
        if with_host:
            _admit_beside_host(sim, worker, budget, part)
        else:
            admit_waiting(sim, worker, budget, part)
    if config.speculative != 0 and _reserve_tokens(sim, worker):
        preempted = True
    decoding, known_tokens = _decode_part(sim, worker)
    no_outcome = sim.queues[worker, OUTCOMES].head == NONE
    if record.running == 0 and not preempted:
        record.passes -= 1  # in which no request computes anything
        if no_outcome:
            return False
    duration = passes.cost(sim, worker, part, decoding, known_tokens)
    if with_host:
        offload.prepare_stores(sim, worker, record.running if whole else scheduled)
        duration += sim.hosts[worker].fence - run.now
    passes.begin(sim, worker, duration, known_tokens)
    # One token each: a request that still recomputes its output takes more of the budget than it will next time.
    quiet = whole and part[0] == 0 and budget == config.max_batched_tokens - record.running
    quiet = quiet and evidence == run.admissions + record.preemptions
    quiet = quiet and no_outcome and decoding == record.running
    quiet = quiet and (not with_host or offload.is_still(sim, worker))
    if config.macro != 0 and quiet and record.first_duration > 0 and not lifecycle.pending_due(sim, worker):
        plan_macro(sim, worker)
    return True


# Speculative decoding ---------------------------------------------------------------------------------------------


@compiled
def _most_tokens(sim: Sim, worker: int, request: int) -> int:
    """Return the most tokens that the current pass may give `request`: as granted, wanted, and held by the pool."""
    config = config_of(sim, worker)
    live = sim.live[request]
    pool = config.blocks * config.block_size - known(sim, request)
    return int(min(live.granted, sim.static[request].limit - live.generated, pool))


@compiled
def _new_blocks(sim: Sim, worker: int, request: int, tokens: int) -> int:
    """Return how many blocks `tokens` more tokens of `request` open."""
    size = config_of(sim, worker).block_size
    before = known(sim, request)
    return int((before + tokens + size - 1) // size - (before + size - 1) // size)


@compiled
def _release_done(sim: Sim, worker: int) -> None:
    """Let go of the blocks of requests that want no token and are through; fail those that the pool cannot hold."""
    record = sim.workers[worker]
    prefill = config_of(sim, worker).role == _PREFILL
    i = ZERO
    while i < record.running:
        request = sim.running[worker, i]
        live = sim.live[request]
        if live.computed == known(sim, request):
            if sim.static[request].limit == 0:
                if not prefill:  # which holds a prompt whole, whatever is wanted of it
                    computed = live.computed
                    block_tables.release_all(sim, worker, request)
                    live.computed = computed
            elif _most_tokens(sim, worker, request) <= 0:
                block_tables.release_all(sim, worker, request)
                lifecycle.remove_running(sim, worker, request)
                lifecycle.note_outcome(sim, worker, request, _FAIL)
                continue
        i += 1


@compiled
def _reserve_tokens(sim: Sim, worker: int) -> bool:
    """Keep blocks free for every token that the pass may give, preempting from the end; True if any was preempted."""
    record = sim.workers[worker]
    _release_done(sim, worker)
    preempted = False
    while True:
        wanted = 0
        for i in range(record.running):
            request = sim.running[worker, i]
            if sim.live[request].computed == known(sim, request) and sim.static[request].limit > 0:
                wanted += _new_blocks(sim, worker, request, _most_tokens(sim, worker, request))
        if wanted <= block_pool.available(sim, worker):
            break
        preempted = True
        preempt_last(sim, worker)
    if wanted > record.free:
        cache_events.note_taking(sim, worker, wanted)
        block_pool.evict(block_pool.pool_of(sim, worker), wanted)
    return preempted


@compiled
def _give_accepted(sim: Sim, worker: int, request: int, end: int) -> None:
    """Give `request` its next token and the drafts that were accepted behind it; all but the last are computed."""
    live = sim.live[request]
    number = speculation.accepted(sim, worker, request, _most_tokens(sim, worker, request))
    passes.give_burst(sim, worker, request, number, end)
    # A token that nothing follows has no place.
    last = 1 if live.generated >= sim.static[request].limit else 0
    block_tables.extend(sim, worker, request, known(sim, request) - last)
    live.computed += number - 1
    live.drafting = 1
    block_tables.cache_full_blocks(sim, worker, request)


# Macro-steps ------------------------------------------------------------------------------------------------------


@compiled
def _growth_fits(sim: Sim, worker: int, number: int, room: int) -> bool:
    """Whether `room` blocks cover `number` further decode passes of the batch."""
    size = config_of(sim, worker).block_size
    short = 0
    for i in range(sim.workers[worker].running):
        live = sim.live[sim.running[worker, i]]
        short += (live.computed + number + size - 1) // size - live.table_len
    return short <= room


@compiled
def plan_macro(sim: Sim, worker: int) -> None:
    """Extend the pass just scheduled over as many equal ones as the batch allows; writes `macro` and `pass_end`."""
    config = config_of(sim, worker)
    record = sim.workers[worker]
    number = sim.static[sim.running[worker, 0]].limit - sim.live[sim.running[worker, 0]].generated
    for i in range(1, record.running):
        request = sim.running[worker, i]
        number = min(number, sim.static[request].limit - sim.live[request].generated)
    # The pass that is prepared goes on as well, with all of them.
    number = min(number - config.ahead, HORIZON_NS // record.first_duration)
    if config.steady == 0:
        number = min(number, passes.MAX_VARYING_PASSES)
    if number <= 1:
        return
    room = block_pool.available(sim, worker)
    if offload.is_used(sim, worker) and offload.eviction_matters(sim, worker):
        room = int(record.free)
    if not _growth_fits(sim, worker, number - 1, room):
        # The most passes whose growth has room; growth is monotone in the number of passes.
        low, high = 0, number - 1
        while high - low > 1:
            middle = (low + high) // 2
            if _growth_fits(sim, worker, middle, room):
                low = middle
            else:
                high = middle
        number = low + 1
    record.macro = number
    record.pass_end = passes.end_of(sim, worker, number)


@compiled
def grow(sim: Sim, worker: int, number: int) -> None:
    """Compute `number` more tokens of every running request."""
    # The last of them is owed by the pass before, where one is scheduled ahead.
    owed = int(config_of(sim, worker).ahead)
    for i in range(sim.workers[worker].running):
        request = sim.running[worker, i]
        live = sim.live[request]
        live.computed += number
        block_tables.extend(sim, worker, request, live.computed)
        block_tables.cache_up_to(sim, worker, request, int(live.computed - owed))


@compiled
def go_on(sim: Sim, worker: int) -> None:
    """What was a pass in the middle of a macro-step is the first of the next step: note what it computes.

    What a pass computes shows at once in the pool.
    """
    grow(sim, worker, ONE)


@compiled
def _finish_unanswered(sim: Sim, worker: int, end: int) -> None:
    """End the running requests that want no token and have their prompt: they let go before the others do."""
    record = sim.workers[worker]
    kept = 0
    for i in range(record.running):
        request = sim.running[worker, i]
        if sim.static[request].limit == 0 and sim.live[request].computed == known(sim, request):
            if config_of(sim, worker).role != _PREFILL:
                block_tables.release_all(sim, worker, request)
            lifecycle.finish(sim, worker, request, end)
        else:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    """End the first `number` passes of the current step: tokens, completions, released blocks; the worker idles.

    Writes the pool, the requests, the feedback list and the log of gaps.
    """
    record = sim.workers[worker]
    end = passes.finish(sim, worker, number)
    if offload.is_used(sim, worker):
        offload.at_pass_end(sim, worker, end)
    lifecycle.drop_canceled(sim, worker)
    if number > 1:
        # All growth comes before any release, as pass by pass.
        grow(sim, worker, number - 1)
        passes.record_gaps_between(sim, worker, number)
    prefill = config_of(sim, worker).role == _PREFILL
    speculative = config_of(sim, worker).speculative != 0
    _finish_unanswered(sim, worker, end)
    kept = 0
    for i in range(record.running):
        request = sim.running[worker, i]
        static, live = sim.static[request], sim.live[request]
        finished = False
        if live.computed == static.input + live.generated + number - 1:
            if speculative:
                _give_accepted(sim, worker, request, end)
            else:
                passes.give_tokens(sim, worker, request, number, end)
            finished = live.generated >= static.limit
        if finished:
            if not prefill:
                block_tables.release_all(sim, worker, request)
            lifecycle.finish(sim, worker, request, end)
        else:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept
    lifecycle.tell_outcomes(sim, worker, end)
    passes.rest(sim, worker)
    if offload.is_used(sim, worker):
        offload.return_frames(sim, worker, end)


# Handoff ----------------------------------------------------------------------------------------------------------


@compiled
def reserve(sim: Sim, worker: int, request: int) -> int:
    """Take blocks for the prompt of `request`; returns the tokens that the blocks not resident hold, or NONE.

    Full blocks of the prompt that are resident are taken by reference, all others fresh. A fresh one that a store still
    reads cannot be written: then nothing is taken, but the fresh frames are free from now on.
    """
    config = config_of(sim, worker)
    size = config.block_size
    prompt = sim.static[request].input
    if sim.workers[worker].running >= config.max_sequences:
        return NONE
    most = prompt // size if config.caching != 0 else 0
    total = (prompt + size - 1) // size
    kept_free = _kept_free(sim, worker)
    if total + kept_free <= block_pool.available(sim, worker):
        hits = block_tables.take_prefix(sim, worker, request, most)
    else:
        hits = block_tables.get_computed_blocks(sim, worker, request, most)
        if not block_tables.fits(sim, worker, total, hits, kept_free):
            return NONE
        block_tables.open_with_prefix(sim, worker, request, hits)
    block_tables.extend(sim, worker, request, prompt)
    if offload.is_read(sim, worker, request, hits):
        # The transfer could not write yet. What was evicted stays so; no capacity has come free by this.
        epoch = sim.workers[worker].capacity_epoch
        block_tables.release_all(sim, worker, request)
        sim.workers[worker].capacity_epoch = epoch
        sim.run[0].arena -= sim.static[request].table_size
        return NONE
    return int((total - hits) * size)


@compiled
def activate(sim: Sim, worker: int, request: int) -> None:
    """The prompt of `request` is there: its full blocks are cached, and it waits at its order of arrival."""
    live = sim.live[request]
    live.computed = sim.static[request].input
    block_tables.cache_full_blocks(sim, worker, request)
    order = sim.tickets[request].order
    before = NONE
    waiting = sim.queues[worker, WAITING]
    at = waiting.head
    while at != NONE and sim.tickets[at].order <= order:
        before = at
        at = sim.live[at].next
    advance(REQUEST_TABLE, sim.request_state, request, _ENQUEUE)
    queues.insert(waiting, sim.live, before, request)


@compiled
def release_source(sim: Sim, worker: int, request: int) -> None:
    """Let a held prompt go: its full blocks stay cached."""
    block_tables.release_all(sim, worker, request)


@compiled
def let_go(sim: Sim, worker: int, request: int) -> None:
    """Take every block from a request that is canceled, and give up what comes for it from host memory."""
    if offload.is_used(sim, worker):
        offload.drop_load(sim, worker, request)
        sim.tickets[request].restored = NONE
    block_tables.release_all(sim, worker, request)


@compiled
def published(sim: Sim, worker: int, request: int, blocks: int) -> int:
    """Return how many leading prompt blocks of `request` the pool of `worker` has, as far as it has told.

    They are the leading ones of those that it has told of: whoever takes a block takes those before it with it, and
    lets go of it before them, so none is evicted before what follows it. So their number is found by bisection. But
    frames to a shared host pool keep the blocks that they read: there one block is asked for after the other.
    """
    if sim.config[sim.workers[worker].role].host != 0 and sim.hosts[worker].shared != 0:
        return cache_events.published_run(sim, worker, request, ZERO, blocks)
    low, high = ZERO, blocks
    while low < high:
        middle = (low + high + 1) // 2
        if cache_events.is_published(sim, worker, prompt_keys.of_block(sim, request, middle - 1)):
            low = middle
        else:
            high = middle - 1
    return int(low)


# The engine -------------------------------------------------------------------------------------------------------


@compiled
def room_for_pass(sim: Sim, worker: int) -> int:
    """Return whether the tables of all that the next pass could admit have room."""
    return 0 if block_tables.reserve_room(sim, worker) else _TABLES


@compiled
def room_for_action(sim: Sim, worker: int) -> int:
    """Return whether one more table of any size has room."""
    return 0 if block_tables.room_for_one(sim) else _TABLES


def is_plain(spec: WorkerSpec) -> bool:
    """Return whether a request is admitted once all that it knows has room, and no more than that is asked."""
    return spec.reserve_full_prompt and int(spec.watermark * (spec.blocks + 1)) == 0


def tokens_a_pass(spec: WorkerSpec) -> int:
    """Return the prompt tokens that a pass computes of a prompt which has as many left."""
    if spec.long_prefill_tokens > 0:
        return min(spec.max_batched_tokens, spec.long_prefill_tokens)
    return spec.max_batched_tokens


def _serves(spec: WorkerSpec) -> bool:
    return spec.backend == Backend.VLLM and not spec.ahead


def _refuse(deployment: DeploymentSpec) -> None:
    roles = [deployment.worker, *([] if deployment.decode is None else [deployment.decode.worker])]
    for role in roles:
        if role.host is not None and not role.prefix_caching:
            raise ValueError("host memory belongs to vLLM with prefix caching")
        if role.host is not None and deployment.speculation is not None:
            raise ValueError("host memory and speculation exclude one another")
        if role.host is not None and not is_plain(role):
            raise ValueError("host memory has rules of admission of its own")
        if deployment.decode is not None and not role.reserve_full_prompt:
            # What waits to be moved may hold what the rest of the prompt needs: it would be preempted and admitted
            # without end, and at one instant if passes take no time.
            raise ValueError("in prefill/decode a prompt is admitted as a whole")


ENGINE = Engine(
    name="vllm",
    serves=_serves,
    refuse=_refuse,
    tokens_a_pass=tokens_a_pass,
    keeps_tree=False,
    destination_first=False,
    start_pass=start_pass,
    apply_passes=apply_passes,
    go_on=go_on,
    notices=notices_nobody,
    reserve=reserve,
    activate=activate,
    release_source=release_source,
    let_go=let_go,
    forget=nothing_for_request,
    published=published,
    room_for_pass=room_for_pass,
    room_for_action=room_for_action,
)
