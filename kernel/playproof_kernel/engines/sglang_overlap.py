"""An SGLang worker under its overlap schedule: a pass is put together when the one before it starts to run.

The tokens of the pass in progress are not known by then. A request that is certain to get its last token from it, by
its length, takes no part in a decode pass behind it, but keeps its seat and its pages until the result is there. If
these pages are what a decode pass lacks, no pass is put behind the one in progress, and no request is retracted. A
request that is retracted nevertheless gets nothing from the pass in progress, and computes its token anew.

Other than without overlap, what a pass changes in the pool shows when it is scheduled: a decode pass takes the places
of its tokens then, and a chunk of a prompt can be found when the pass after it is scheduled. A whole prompt enters the
tree with its first token, and output when its request ends.

**Macro-steps.** Both passes go along in a macro-step, as with vLLM's asynchronous scheduling: its first pass is in
progress, the one behind it is prepared, and each that ends brings one more behind those.
"""

from __future__ import annotations

from playproof_spec.deployment import Backend, DeploymentSpec, WorkerSpec
from playproof_spec.machines import RequestState

from playproof_kernel.engines import passes, sglang, sglang_own
from playproof_kernel.engines.sglang_pages import (
    cache_up_to,
    claim,
    drop_owed,
    finish,
    growth,
    pages_for,
    remaining,
    short,
    wants,
)
from playproof_kernel.engines.sglang_peer import Block
from playproof_kernel.engines.sglang_rules import RULE_SETS
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, OUTCOMES, Sim
from playproof_kernel.ground.jit import ONE, ZERO, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_kernel.memory import radix_tree

_NOT, _OTHER = constant(Block.NONE), constant(Block.OTHER)
_RUNNING = constant(RequestState.RUNNING)


# Scheduling -------------------------------------------------------------------------------------------------------


@compiled
def _settle_flight(sim: Sim, worker: int) -> None:
    """Let the batch in progress join the running one: what it computes of a prompt that goes on can be found now."""
    record = sim.workers[worker]
    row = record.flight
    if record.pass_end == NONE or record.prefills[row] == 0:
        return
    if record.cuts[row] != NONE:
        request = int(record.cuts[row])
        cache_up_to(sim, worker, request, int(sim.live[request].computed))
    if record.opens[row] != 0:
        record.full = 0


@compiled
def _note_receiver(sim: Sim, worker: int, row: int, request: int) -> None:
    """Write down that the pass being scheduled gives `request` a token, or brings it to its end."""
    record = sim.workers[worker]
    sim.receivers[worker, row, record.receiving[row]] = request
    record.receiving[row] += 1
    sim.live[request].owed += 1


@compiled
def _ending(sim: Sim, worker: int) -> int:
    """Return how many running requests the pass in progress brings to the last token that they want."""
    ending = 0
    for i in range(sim.workers[worker].running):
        if not wants(sim, sim.running[worker, i]):
            ending += 1
    return ending


@compiled
def _decode_behind(sim: Sim, worker: int, row: int) -> tuple[int, int]:
    """Put a decode pass together, retracting for it, and take the places of its tokens.

    Returns
    -------
    decoding, known_tokens : int
        Its requests, and the tokens that they know together, those in progress among them.
    """
    record = sim.workers[worker]
    ending = _ending(sim, worker)
    # The batch is no longer full then; but that is noted when they end, before anybody is looked at again.
    if ending > 0 and short(sim, worker):
        radix_tree.evict(radix_tree.tree_of(sim, worker), record.idle)
        return 0, 0
    if ending == record.running:
        return 0, 0
    sglang.make_room(sim, worker)
    if record.running == 0 or record.stuck != 0:
        return 0, 0
    sglang_own.evict_ahead(sim, worker, ONE)
    claim(sim, worker, growth(sim, worker, ONE))
    decoding, known_tokens = 0, 0
    for i in range(record.running):
        request = int(sim.running[worker, i])
        if not wants(sim, request):
            continue
        live = sim.live[request]
        decoding += 1
        known_tokens += known(sim, request) + live.owed
        live.computed += 1
        live.table_len = pages_for(sim, live.computed)
        _note_receiver(sim, worker, row, request)
    if record.retracted == 0:
        record.ratio = sglang.ratio_after(config_of(sim, worker), record.ratio, ONE)
    return decoding, known_tokens


@compiled
def _prepare(sim: Sim, worker: int) -> bool:
    """Schedule the pass behind the one in progress, or behind none; False when it would have no effect."""
    record = sim.workers[worker]
    row = 1 - record.flight
    part = sim.part[worker]
    part[:] = 0
    _settle_flight(sim, worker)
    record.prefill_begin[row] = record.prefill_tokens
    record.retracted = 0
    record.stuck = 0
    record.cut = NONE
    record.blocked = _NOT
    record.receiving[row] = 0
    earlier = queues.length(sim.queues[worker, OUTCOMES], sim.live)
    if record.noticed > 0:
        sglang.refuse_too_long(sim, worker)
    record.stalled = record.running
    taken = sglang_own.prefill_batch(sim, worker, part)
    decoding, known_tokens = 0, 0
    if taken > 0:
        for i in range(record.stalled, record.running):
            _note_receiver(sim, worker, row, int(sim.running[worker, i]))
    elif record.running > 0:
        decoding, known_tokens = _decode_behind(sim, worker, row)
    outcomes = queues.length(sim.queues[worker, OUTCOMES], sim.live) - earlier
    if taken + decoding + outcomes == 0:
        return False
    record.computes[row] = taken + decoding > 0
    record.passes += record.computes[row]
    record.pass_outcomes[row] = outcomes
    record.prefills[row] = taken > 0
    record.cuts[row] = record.cut
    record.opens[row] = record.cut != NONE or record.stalled == 0
    record.prepared_duration = passes.cost(sim, worker, part, decoding, known_tokens)
    record.prepared_known = known_tokens
    record.quiet[row] = taken == 0 and outcomes == 0 and record.retracted == 0 and record.blocked != _OTHER
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
    record.prefill = record.prefills[record.flight]
    passes.begin(sim, worker, int(record.prepared_duration), int(record.prepared_known))
    if _prepare(sim, worker):
        same = record.receiving[0] == record.running and record.receiving[1] == record.running
        quiet = same and record.quiet[0] != 0 and record.quiet[1] != 0
        if config_of(sim, worker).macro != 0 and quiet and record.first_duration > 0:
            sglang.plan_macro(sim, worker)
    return True


# Macro-steps ------------------------------------------------------------------------------------------------------


@compiled
def _schedule_more(sim: Sim, worker: int, number: int) -> None:
    """Schedule `number` more decode passes of the same batch: the places of their tokens, and the ratio."""
    record = sim.workers[worker]
    sglang_own.evict_ahead(sim, worker, number)
    claim(sim, worker, growth(sim, worker, number))
    for i in range(record.running):
        live = sim.live[sim.running[worker, i]]
        live.computed += number
        live.table_len = pages_for(sim, live.computed)
    record.ratio = sglang.ratio_after(config_of(sim, worker), record.ratio, number)


@compiled
def go_on(sim: Sim, worker: int) -> None:
    """What was a pass in the middle of a macro-step is the first of the next step: one more is scheduled behind it."""
    record = sim.workers[worker]
    _schedule_more(sim, worker, ONE)
    record.prepared_duration = passes.duration_of(sim, worker, 2)
    record.prepared_known = record.decode_tokens_known + record.running
    record.receiving[:] = record.running
    for i in range(record.running):
        sim.live[sim.running[worker, i]].owed += 1
        sim.receivers[worker, :, i] = sim.running[worker, i]


# The end of a pass ------------------------------------------------------------------------------------------------


@compiled
def _give_owed(sim: Sim, worker: int, request: int, number: int, end: int) -> None:
    """Give `request` the tokens of `number` passes, the last of which ended at `end`."""
    live = sim.live[request]
    # All but the first of these passes were scheduled since.
    live.owed -= 1
    if sim.static[request].limit > 0:
        if sim.workers[worker].prefill != 0 and remaining(sim, request) > 1:
            # The place of its next token may have been taken by now, but there is nothing to be found in it.
            cache_up_to(sim, worker, request, known(sim, request))
        passes.give_tokens(sim, worker, request, number, end)
    if remaining(sim, request) <= 0:
        finish(sim, worker, request, end)


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    """End the first `number` passes of the current step; the one behind them stays prepared."""
    record = sim.workers[worker]
    end = passes.finish(sim, worker, number)
    lifecycle.drop_canceled(sim, worker)
    if number > 1:
        _schedule_more(sim, worker, number - 1)
        passes.record_gaps_between(sim, worker, number)
    row = record.flight
    # Those that want no token leave before the others.
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
    record.receiving[row] = ZERO
    if number > 1:
        record.prepared_duration = passes.duration_of(sim, worker, number + 1)
        record.prepared_known = record.decode_tokens_known + number * record.running
    passes.rest(sim, worker)


@compiled
def forget(sim: Sim, worker: int, request: int) -> None:
    """Let no pass that has been scheduled do anything for `request` any more: another may take its place."""
    drop_owed(sim, worker, request)
    record = sim.workers[worker]
    for row in range(2):
        if record.cuts[row] == request:
            record.cuts[row] = NONE


def _serves(spec: WorkerSpec) -> bool:
    return spec.backend == Backend.SGLANG and spec.ahead


def _refuse(deployment: DeploymentSpec) -> None:
    sglang.refuse(deployment)
    if deployment.decode is not None or deployment.speculation is not None:
        raise ValueError("the overlap schedule excludes speculation and prefill/decode")
    if not RULE_SETS[deployment.worker.rules].whole_batches:
        raise ValueError("the overlap schedule goes with the rules of SGLang's own")


ENGINE = sglang.ENGINE._replace(
    name="sglang, overlap schedule",
    serves=_serves,
    refuse=_refuse,
    start_pass=start_pass,
    apply_passes=apply_passes,
    go_on=go_on,
    forget=forget,
)
