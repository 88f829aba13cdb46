"""A vLLM worker under asynchronous scheduling: a pass is scheduled while the one before it runs.

A worker may have a pass prepared behind the one in progress, in which the tokens that the latter owes count as known.
Both go along in a macro-step. What the two ways of scheduling share is in `vllm`.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import Backend, DeploymentSpec, WorkerSpec
from playproof_spec.machines import RequestEvent, RequestState

from playproof_kernel.engines import passes, vllm
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, OUTCOMES, WAITING, Sim
from playproof_kernel.ground.jit import ONE, ZERO, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.memory import block_pool, block_tables

_FAIL = constant(RequestEvent.FAIL)
_RUNNING = constant(RequestState.RUNNING)


@compiled
def _is_ending(sim: Sim, request: int) -> bool:
    """Whether the pass in progress brings `request`, which runs, to its end: there is nothing to schedule for it."""
    live = sim.live[request]
    return bool(live.owed > 0 and live.generated + live.owed >= sim.static[request].limit)


@compiled
def _schedule_running_ahead(sim: Sim, worker: int, budget: int, part: Any) -> tuple[int, bool]:
    """Give running requests their tokens, those that they are owed counted as known.

    Returns
    -------
    budget : int
        What is left.
    preempted : bool
        Whether any was preempted.
    """
    config = config_of(sim, worker)
    record = sim.workers[worker]
    preempted = False
    i = ZERO
    while i < record.running and budget > 0:
        request = sim.running[worker, i]
        if _is_ending(sim, request):
            i += 1
            continue
        live = sim.live[request]
        want = min(known(sim, request) + live.owed - live.computed, record.most, budget)
        needed = (live.computed + want + config.block_size - 1) // config.block_size
        if needed > config.blocks:
            block_tables.release_all(sim, worker, request)
            lifecycle.remove_running(sim, worker, request)
            lifecycle.note_outcome(sim, worker, request, _FAIL)
            continue
        fits = True
        while needed - live.table_len > block_pool.available(sim, worker):
            preempted = True
            if vllm.preempt_last(sim, worker) == request:
                fits = False
                break
        if not fits:
            break
        vllm.compute(sim, worker, request, want, part)
        budget -= want
        i += 1
    return budget, preempted


@compiled
def _note_receivers(sim: Sim, worker: int, row: int) -> tuple[int, int]:
    """Write down whom the pass just scheduled gives a token or brings to its end, in ``sim.receivers[worker, row]``.

    Returns
    -------
    decoding, known_tokens : int
        Those in the decode part, and the tokens that they know together.
    """
    record = sim.workers[worker]
    decoding, known_tokens, receiving = 0, 0, 0
    for i in range(record.running):
        request = sim.running[worker, i]
        live = sim.live[request]
        tokens = known(sim, request) + live.owed
        if live.computed != tokens or _is_ending(sim, request):
            continue
        sim.receivers[worker, row, receiving] = request
        receiving += 1
        if sim.static[request].limit > 0 and (live.generated + live.owed > 0 or live.prompt_pass != record.passes):
            decoding += 1
            known_tokens += tokens
        live.owed += 1
    record.receiving[row] = receiving
    return decoding, known_tokens


@compiled
def _prepare(sim: Sim, worker: int) -> bool:
    """Schedule the pass behind the one in progress, or behind none; False when it would have no effect."""
    config, run, record = config_of(sim, worker), sim.run[0], sim.workers[worker]
    row = 1 - record.flight
    part = sim.part[worker]
    part[:] = 0
    record.passes += 1
    if config.long_prefill < config.max_batched_tokens:
        vllm.bound_requests(sim, worker)
    record.prefill_begin[row] = record.prefill_tokens
    evidence = run.admissions + record.preemptions
    earlier = queues.length(sim.queues[worker, OUTCOMES], sim.live)
    budget, preempted = _schedule_running_ahead(sim, worker, config.max_batched_tokens, part)
    if not preempted:
        vllm.admit_waiting(sim, worker, budget, part)
    decoding, known_tokens = _note_receivers(sim, worker, row)
    outcomes = queues.length(sim.queues[worker, OUTCOMES], sim.live) - earlier
    admitted = evidence != run.admissions + record.preemptions
    computes = budget < config.max_batched_tokens or admitted
    if not computes:
        record.passes -= 1
        if outcomes == 0:
            return False
    record.computes[row] = computes
    record.pass_outcomes[row] = outcomes
    record.prepared_duration = passes.cost(sim, worker, part, decoding, known_tokens)
    record.prepared_known = known_tokens
    quiet = part[0] == 0 and budget == config.max_batched_tokens - record.receiving[row]
    quiet = quiet and decoding == record.receiving[row] and not admitted and outcomes == 0
    record.quiet[row] = quiet
    record.prepared = 1
    return True


@compiled
def start_pass(sim: Sim, worker: int) -> bool:
    """Start the pass that was prepared, or schedule one, and prepare the one behind it; False when there is none."""
    record = sim.workers[worker]
    if record.prepared == 0 and not _prepare(sim, worker):
        return False
    record.flight = 1 - record.flight
    record.prepared = 0
    record.prefill_before = record.prefill_begin[record.flight]
    passes.begin(sim, worker, int(record.prepared_duration), int(record.prepared_known))
    if _prepare(sim, worker):
        same = record.receiving[0] == record.running and record.receiving[1] == record.running
        quiet = same and record.quiet[0] != 0 and record.quiet[1] != 0
        if config_of(sim, worker).macro != 0 and quiet and record.first_duration > 0:
            vllm.plan_macro(sim, worker)
    return True


@compiled
def _give_owed(sim: Sim, worker: int, request: int, number: int, end: int) -> None:
    """Give `request` the tokens of `number` passes, the last of which ended at `end`."""
    live = sim.live[request]
    # All but the first of these passes were scheduled since.
    live.owed -= 1
    if sim.static[request].limit > 0:
        passes.give_tokens(sim, worker, request, number, end)
    is_running = sim.request_state[request] == _RUNNING
    if is_running:
        block_tables.cache_up_to(sim, worker, request, int(live.computed - live.owed))
    if live.generated < sim.static[request].limit:
        return
    if is_running:
        block_tables.release_all(sim, worker, request)
    else:  # it was preempted for the sake of the next pass
        queues.remove(sim.queues[worker, WAITING], sim.live, request)
    lifecycle.finish(sim, worker, request, end)


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    """End the first `number` passes of the current step; the one behind them stays prepared."""
    record = sim.workers[worker]
    end = passes.finish(sim, worker, number)
    lifecycle.drop_canceled(sim, worker)
    if number > 1:
        vllm.grow(sim, worker, number - 1)
        passes.record_gaps_between(sim, worker, number)
    row = record.flight
    # Those that want no token let go before the others.
    for wanting in range(2):
        for i in range(record.receiving[row]):
            request = int(sim.receivers[worker, row, i])
            if request == NONE or sim.tickets[request].canceled != 0:
                continue
            if (sim.static[request].limit > 0) == (wanting > 0):
                _give_owed(sim, worker, request, number, end)
    kept = 0
    for i in range(record.running):
        request = sim.running[worker, i]
        if sim.request_state[request] == _RUNNING:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept
    lifecycle.tell_first_outcomes(sim, worker, end, int(record.pass_outcomes[row]))
    record.receiving[row] = 0
    if number > 1:
        record.prepared_duration = passes.duration_of(sim, worker, number + 1)
        record.prepared_known = record.decode_tokens_known + number * record.receiving[1 - row]
    passes.rest(sim, worker)


@compiled
def forget(sim: Sim, worker: int, request: int) -> None:
    """Let no pass that has been scheduled give `request` anything any more: another may take its place."""
    for row in range(2):
        for i in range(sim.workers[worker].receiving[row]):
            if sim.receivers[worker, row, i] == request:
                sim.receivers[worker, row, i] = NONE


@compiled
def go_on(sim: Sim, worker: int) -> None:
    """What was a pass in the middle of a macro-step is the first of the next step: note what it computes.

    What a pass computes shows at once in the pool, and so does what the pass behind it does.
    """
    vllm.grow(sim, worker, ONE)
    record = sim.workers[worker]
    record.prepared_duration = passes.duration_of(sim, worker, 2)
    record.prepared_known = record.decode_tokens_known + record.running
    record.receiving[:] = record.running
    for i in range(record.running):
        sim.live[sim.running[worker, i]].owed += 1
        sim.receivers[worker, :, i] = sim.running[worker, i]


def _serves(spec: WorkerSpec) -> bool:
    return spec.backend == Backend.VLLM and spec.ahead


def _refuse(deployment: DeploymentSpec) -> None:
    if deployment.decode is not None or deployment.speculation is not None or deployment.worker.host is not None:
        raise ValueError("asynchronous scheduling excludes host memory, speculation and prefill/decode")


ENGINE = vllm.ENGINE._replace(
    name="vllm, asynchronous",
    serves=_serves,
    refuse=_refuse,
    start_pass=start_pass,
    apply_passes=apply_passes,
    go_on=go_on,
    forget=forget,
)
