"""A vLLM worker: scheduling one pass, ending passes, and macro-steps over passes whose batch cannot change.

The rules are those of vLLM v1's scheduler: running requests first, in admission order, under one token budget;
preemption of the request admitted last; then admission from the head of the waiting queue, without overtaking. A
request's first token comes at the end of its last prefill pass.

**Macro-steps.** When a pass computed one output token of every running request and admitted, preempted and refused
nobody, the next pass would do the same, one token further, as long as no request finishes, the pool can cover the
growth and nobody arrives at an empty queue. Such passes are run as one event and their effects applied once, at its end
or when an arrival cuts it short.

A blocked head of the queue stays blocked meanwhile. It is blocked because its blocks, less those of its prefix that are
in use, outnumber the available ones. Each block of growth makes one fewer available; at most it evicts one idle block,
which can at most uncover one second copy in use of the same prefix block. So the first number falls by no more than the
second.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.machines import RequestEvent
from playproof_spec.units import HORIZON_NS

from playproof_kernel import blocks, tables, timing
from playproof_kernel.arrays import NONE
from playproof_kernel.deployment import TimingKind
from playproof_kernel.jit import compiled
from playproof_kernel.transitions import REQUEST_TABLE, advance

_ENQUEUE = int(RequestEvent.ENQUEUE)
_ADMIT = int(RequestEvent.ADMIT)
_PREEMPT = int(RequestEvent.PREEMPT)
_FINISH = int(RequestEvent.FINISH)
_REJECT = int(RequestEvent.REJECT)
_FAIL = int(RequestEvent.FAIL)
_FIXED = int(TimingKind.FIXED)

# Bound on the passes of a macro-step whose durations differ, so that the log of gaps can be given room beforehand.
MAX_VARYING_PASSES = 4096


@compiled
def record_gap(sim: Any, value: int, count: int) -> None:
    """Count `count` inter-token gaps of `value` ns in the open-addressing table `gaps`; the loop keeps room in it."""
    gaps = sim.gaps
    mask = gaps.shape[0] - 1
    slot = ((value & 0x7FFFFFFF) * 0x9E3779B1 >> 16) & mask
    while gaps[slot].count != 0 and gaps[slot].value != value:
        slot = (slot + 1) & mask
    if gaps[slot].count == 0:
        gaps[slot].value = value
        sim.run[0].gaps += 1
    gaps[slot].count += count


@compiled
def enqueue(sim: Any, worker: int, node: int) -> None:
    """Put `node` at the end of the waiting queue of `worker`, cutting a macro-step short if it matters."""
    record = sim.workers[worker]
    if record.wait_head == NONE and record.macro > 1:
        interrupt(sim, worker)
    advance(REQUEST_TABLE, sim.request_state, node, _ENQUEUE)
    sim.live[node].next = NONE
    if record.wait_head == NONE:
        record.wait_head = node
    else:
        sim.live[record.wait_tail].next = node
    record.wait_tail = node


@compiled
def pop_waiting(sim: Any, worker: int) -> int:
    record = sim.workers[worker]
    node = record.wait_head
    record.wait_head = sim.live[node].next
    if record.wait_head == NONE:
        record.wait_tail = NONE
    return node


@compiled
def note_outcome(sim: Any, worker: int, node: int, event: int) -> None:
    """Settle a request that leaves in this pass without finishing; the driver hears of it at the pass's end."""
    advance(REQUEST_TABLE, sim.request_state, node, event)
    sim.live[node].next = sim.workers[worker].outcome_head
    sim.workers[worker].outcome_head = node


@compiled
def _preempt_last(sim: Any, worker: int) -> int:
    record = sim.workers[worker]
    record.running -= 1
    node = sim.running[worker, record.running]
    tables.release_all(sim, worker, node)
    advance(REQUEST_TABLE, sim.request_state, node, _PREEMPT)
    record.preemptions += 1
    sim.live[node].next = record.wait_head
    if record.wait_head == NONE:
        record.wait_tail = node
    record.wait_head = node
    return node


@compiled
def _remove_running(sim: Any, worker: int, position: int) -> None:
    record = sim.workers[worker]
    for i in range(position, record.running - 1):
        sim.running[worker, i] = sim.running[worker, i + 1]
    record.running -= 1


@compiled
def _compute(sim: Any, worker: int, node: int, tokens: int, part: Any) -> None:
    """Let `node` compute `tokens` more tokens in this pass: blocks, cache, and its share of the prefill part.

    `part` (Int64, shape (3,)) is written: requests that computed prompt tokens, the sum of their prompt tokens known
    after this pass, and of those known before.
    """
    live = sim.live[node]
    record = sim.workers[worker]
    tables.extend(sim, worker, node, live.computed + tokens)
    prompt = sim.static[node].input
    before = min(live.computed, prompt)
    live.computed += tokens
    after = min(live.computed, prompt)
    if after > before:
        part[0] += 1
        part[1] += after
        part[2] += before
        record.prefill_tokens += tokens
        live.prompt_pass = record.passes
    tables.cache_full_blocks(sim, worker, node)


@compiled
def _schedule_running(sim: Any, worker: int, budget: int, part: Any) -> tuple[int, bool, bool]:
    """Give running requests their tokens, preempting from the end when the pool is short.

    Returns
    -------
    budget : int
        What is left.
    whole, preempted : bool
        Whether every request that is still running was scheduled; whether any was preempted.
    """
    config = sim.config[0]
    record = sim.workers[worker]
    preempted = False
    i = record.running - record.running  # 0, but not a literal: that would compile every callee once more
    while i < record.running and budget > 0:
        node = sim.running[worker, i]
        live = sim.live[node]
        want = min(sim.static[node].input + live.generated - live.computed, budget)
        needed = (live.computed + want + config.block_size - 1) // config.block_size
        if needed > config.blocks:
            # Even the whole pool would not do: retrying for ever would stall the worker.
            tables.release_all(sim, worker, node)
            _remove_running(sim, worker, i)
            note_outcome(sim, worker, node, _FAIL)
            continue
        fits = True
        while needed - live.table_len > blocks.available(sim, worker):
            preempted = True
            if _preempt_last(sim, worker) == node:
                fits = False
                break
        if fits:
            _compute(sim, worker, node, want, part)
            budget -= want
            i += 1
    return budget, i == record.running, preempted


@compiled
def _admit_waiting(sim: Any, worker: int, budget: int, part: Any) -> None:
    """Admit from the head of the waiting queue until one does not fit; end those that can never fit."""
    config = sim.config[0]
    run = sim.run[0]
    record = sim.workers[worker]
    size = config.block_size
    while record.running < config.max_sequences and record.wait_head != NONE:
        node = record.wait_head
        static, live = sim.static[node], sim.live[node]
        known = static.input + live.generated
        total = (known + size - 1) // size
        if tables.never_fits(sim, node):
            # Never admitted before: refused. Preempted after its output outgrew the pool: failed.
            pop_waiting(sim, worker)
            note_outcome(sim, worker, node, _REJECT if live.admissions == 0 else _FAIL)
            continue
        hits, active = 0, 0
        if config.caching != 0:
            # The last token is always computed, unless nothing follows it.
            most = known // size if static.limit == 0 else (known - 1) // size
            hits, active = tables.cached_prefix(sim, worker, node, most)
        if total - active > blocks.available(sim, worker) or budget <= 0:
            return
        pop_waiting(sim, worker)
        live.table_begin = run.arena
        run.arena += static.table_size
        pool = blocks.pool_of(sim, worker)
        for i in range(hits):
            blocks.reuse(pool, sim.found[i])
            sim.arena[live.table_begin + i] = sim.found[i]
        live.table_len = hits
        live.filled = hits
        live.computed = hits * size
        sim.running[worker, record.running] = node
        record.running += 1
        advance(REQUEST_TABLE, sim.request_state, node, _ADMIT)
        admission = sim.admissions[run.admissions]
        admission.node = node
        admission.at = run.now
        admission.reused = live.computed
        admission.ordinal = live.admissions
        run.admissions += 1
        if live.admissions == 0:
            live.first_admit = run.now
        live.admissions += 1
        want = min(known - live.computed, budget)
        _compute(sim, worker, node, want, part)
        budget -= want


@compiled
def start_pass(sim: Any, worker: int) -> bool:
    """Schedule one pass of an idle worker at the current instant; False when it would have no effect.

    Writes the worker's record, its pool, its queues and the requests that it touches.
    """
    config = sim.config[0]
    run = sim.run[0]
    record = sim.workers[worker]
    record.passes += 1
    evidence = run.admissions + record.preemptions
    part = sim.part[worker]
    part[:] = 0
    budget, whole, preempted = _schedule_running(sim, worker, config.max_batched_tokens, part)
    if not preempted:
        _admit_waiting(sim, worker, budget, part)
    duration = 0
    if part[0] > 0:
        mean_isl, mean_prefix = part[1] // part[0], part[2] // part[0]
        if mean_isl > mean_prefix:
            duration += timing.prefill_ns(config, part[0], mean_isl, mean_prefix)
    decoding, known_tokens = 0, 0
    for i in range(record.running):
        node = sim.running[worker, i]
        live = sim.live[node]
        known = sim.static[node].input + live.generated
        # A first token belongs to the prefill pass that computed the prompt's end. A request that was preempted and
        # recomputes its prompt decodes in the pass in which it catches up (reference case agg-vllm-tight-002).
        decodes = live.generated > 0 or live.prompt_pass != record.passes
        if live.computed == known and sim.static[node].limit > 0 and decodes:
            decoding += 1
            known_tokens += known
    if decoding > 0:
        duration += timing.decode_ns(config, known_tokens)
    if record.running == 0 and record.outcome_head == NONE:
        record.passes -= 1
        return False
    record.pass_start = run.now
    record.pass_end = run.now + duration
    record.first_duration = duration
    record.decode_tokens_known = known_tokens
    record.macro = 1
    # One token each: a request that still recomputes its output takes more of the budget than it will next time.
    quiet = whole and part[0] == 0 and budget == config.max_batched_tokens - record.running
    quiet = quiet and evidence == run.admissions + record.preemptions
    if config.macro != 0 and quiet and duration > 0 and record.outcome_head == NONE and decoding == record.running:
        _plan_macro(sim, worker)
    return True


@compiled
def _growth_fits(sim: Any, worker: int, passes: int) -> bool:
    """Whether the pool covers `passes` further decode passes of the batch."""
    size = sim.config[0].block_size
    short = 0
    for i in range(sim.workers[worker].running):
        live = sim.live[sim.running[worker, i]]
        short += (live.computed + passes + size - 1) // size - live.table_len
    return short <= blocks.available(sim, worker)


@compiled
def _plan_macro(sim: Any, worker: int) -> None:
    """Extend the pass just scheduled over as many equal ones as the batch allows; writes `macro` and `pass_end`."""
    config = sim.config[0]
    record = sim.workers[worker]
    passes = sim.static[sim.running[worker, 0]].limit - sim.live[sim.running[worker, 0]].generated
    for i in range(1, record.running):
        node = sim.running[worker, i]
        passes = min(passes, sim.static[node].limit - sim.live[node].generated)
    passes = min(passes, HORIZON_NS // record.first_duration)
    if config.timing != _FIXED:
        passes = min(passes, MAX_VARYING_PASSES)
    if passes <= 1:
        return
    if not _growth_fits(sim, worker, passes - 1):
        # The most passes whose growth the pool covers; growth is monotone in the number of passes.
        low, high = 0, passes - 1
        while high - low > 1:
            middle = (low + high) // 2
            if _growth_fits(sim, worker, middle):
                low = middle
            else:
                high = middle
        passes = low + 1
    record.macro = passes
    record.pass_end = end_of(sim, worker, passes)


@compiled
def duration_of(sim: Any, worker: int, number: int) -> int:
    """Return the duration of pass `number` (from 1) of the current macro-step."""
    record = sim.workers[worker]
    if number == 1:
        return record.first_duration
    return timing.decode_ns(sim.config[0], record.decode_tokens_known + (number - 1) * record.running)


@compiled
def end_of(sim: Any, worker: int, number: int) -> int:
    """Return the instant at which pass `number` of the current macro-step ends."""
    record = sim.workers[worker]
    if sim.config[0].timing == _FIXED:
        return record.pass_start + number * record.first_duration
    end = record.pass_start
    for i in range(1, number + 1):
        end += duration_of(sim, worker, i)
    return end


@compiled
def passes_done(sim: Any, worker: int) -> tuple[int, int]:
    """Return how many passes of the current macro-step have ended by now, and the instant at which the last did."""
    now = sim.run[0].now
    record = sim.workers[worker]
    if sim.config[0].timing == _FIXED:
        done = min((now - record.pass_start) // record.first_duration, record.macro)
        return done, record.pass_start + done * record.first_duration
    done, end = 0, record.pass_start
    while done < record.macro:
        following = end + duration_of(sim, worker, done + 1)
        if following > now:
            break
        end = following
        done += 1
    return done, end


@compiled
def interrupt(sim: Any, worker: int) -> None:
    """Cut a macro-step of `worker` short: passes that have ended count, the one in progress goes on alone."""
    run = sim.run[0]
    record = sim.workers[worker]
    done, end = passes_done(sim, worker)
    if done == 0:
        record.macro = 1
        record.pass_end = record.pass_start + record.first_duration
        return
    following_duration = duration_of(sim, worker, done + 1)
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
    for i in range(record.running):
        node = sim.running[worker, i]
        live = sim.live[node]
        live.computed += 1
        tables.extend(sim, worker, node, live.computed)
        tables.cache_full_blocks(sim, worker, node)


@compiled
def record_token_times(sim: Any, worker: int, node: int, passes: int, last: int) -> None:
    """Note the times of the `passes` tokens of `node`, and the gap before the first of them."""
    record = sim.workers[worker]
    live = sim.live[node]
    first = record.pass_start + record.first_duration
    if live.generated == 0:
        live.first_token = first
    else:
        record_gap(sim, first - live.last_token, 1)
    if live.generated == 1:
        live.second_token = first
    elif live.generated == 0 and passes > 1:
        live.second_token = first + duration_of(sim, worker, 2)
    live.last_token = last
    live.generated += passes


@compiled
def apply_passes(sim: Any, worker: int, passes: int) -> None:
    """End the first `passes` passes of the current step: tokens, completions, released blocks; the worker idles.

    Writes the pool, the requests, the feedback list and the log of gaps.
    """
    run = sim.run[0]
    record = sim.workers[worker]
    end = record.pass_start + record.first_duration if passes == 1 else end_of(sim, worker, passes)
    if passes > 1:
        # All growth comes before any release, as pass by pass.
        for i in range(record.running):
            node = sim.running[worker, i]
            live = sim.live[node]
            live.computed += passes - 1
            tables.extend(sim, worker, node, live.computed)
            tables.cache_full_blocks(sim, worker, node)
        if sim.config[0].timing == _FIXED:
            record_gap(sim, record.first_duration, (passes - 1) * record.running)
        else:
            for number in range(2, passes + 1):
                record_gap(sim, duration_of(sim, worker, number), record.running)
    record.passes += passes - 1
    record.busy += end - record.pass_start
    kept = 0
    for i in range(record.running):
        node = sim.running[worker, i]
        static, live = sim.static[node], sim.live[node]
        finished = False
        if live.computed == static.input + live.generated + passes - 1:
            if static.limit > 0:
                record_token_times(sim, worker, node, passes, end)
                record.decode_tokens += passes
            finished = live.generated >= static.limit
        if finished:
            tables.release_all(sim, worker, node)
            advance(REQUEST_TABLE, sim.request_state, node, _FINISH)
            live.terminal = end
            sim.feedback[run.feedback] = node
            run.feedback += 1
        else:
            sim.running[worker, kept] = node
            kept += 1
    record.running = kept
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
