"""One door to both engines: the deployment's backend decides which module acts."""

from __future__ import annotations

from playproof_spec.deployment import Backend
from playproof_spec.machines import RequestEvent

from playproof_kernel.engines import passes, sglang, sglang_overlap, sglang_pages, vllm
from playproof_kernel.ground import queues
from playproof_kernel.ground.arrays import NONE, READY, WAITING, Sim
from playproof_kernel.ground.jit import compiled, constant
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance
from playproof_kernel.host import offload
from playproof_kernel.memory import block_tables, cache_events

_SGLANG = constant(Backend.SGLANG)
_ENQUEUE = constant(RequestEvent.ENQUEUE)


@compiled
def _is_sglang(sim: Sim) -> bool:
    return bool(sim.config[0].backend == _SGLANG)


@compiled
def _overlaps(sim: Sim) -> bool:
    return bool(_is_sglang(sim) and sim.config[0].ahead != 0)


@compiled
def enqueue(sim: Sim, worker: int, request: int) -> None:
    """Put `request` at the end of the waiting queue of `worker`, cutting a macro-step short if it matters.

    Behind others it changes nothing before its turn, but that SGLang refuses a prompt at the context limit in its next
    pass, wherever it stands.
    """
    record = sim.workers[worker]
    waiting = sim.queues[worker, WAITING]
    too_long = _is_sglang(sim) and sim.static[request].input >= sim.config[0].context
    if waiting.head == NONE or too_long:
        interrupt(sim, worker)
    advance(REQUEST_TABLE, sim.request_state, request, _ENQUEUE)
    queues.append(waiting, sim.live, request)
    record.tried = NONE
    if too_long:
        record.too_long += 1


@compiled
def start_pass(sim: Sim, worker: int) -> bool:
    """Schedule one pass of an idle worker; False when it would have no effect."""
    if _overlaps(sim):
        return sglang_overlap.start_pass(sim, worker)
    if _is_sglang(sim):
        return sglang.start_pass(sim, worker)
    return vllm.start_pass(sim, worker)


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    """End the first `number` passes of the current step of `worker`, which publishes what it did in them."""
    if _overlaps(sim):
        sglang_overlap.apply_passes(sim, worker, number)
    elif _is_sglang(sim):
        sglang.apply_passes(sim, worker, number)
    else:
        vllm.apply_passes(sim, worker, number)
    cache_events.publish(sim, worker)


@compiled
def interrupt(sim: Sim, worker: int) -> None:
    """Cut a macro-step of `worker`, if it is in one: passes that have ended count, the one in progress goes on."""
    record = sim.workers[worker]
    if record.macro <= 1:
        return
    number, end = passes.done(sim, worker)
    if number == 0:
        record.macro = 1
        record.pass_end = record.pass_start + record.first_duration
        return
    following_duration = passes.duration_of(sim, worker, number + 1)
    apply_passes(sim, worker, number)
    if passes.resume(sim, worker, number, end, following_duration):
        # What a pass computes shows at once in vLLM's pool; in SGLang's at its end, but for the overlap schedule.
        if _overlaps(sim):
            sglang_overlap.go_on(sim, worker)
        elif not _is_sglang(sim):
            vllm.go_on(sim, worker)


@compiled
def reserve(sim: Sim, worker: int, request: int) -> int:
    """Take memory for the prompt of `request`; returns the tokens to move there, or NONE when there is no room."""
    if _is_sglang(sim):
        return sglang.reserve(sim, worker, request)
    return vllm.reserve(sim, worker, request)


@compiled
def activate(sim: Sim, worker: int, request: int) -> None:
    """Let `request`, whose prompt has been moved to `worker`, wait for its seat there; the end of a transfer."""
    if _is_sglang(sim):
        sglang.activate(sim, worker, request)
    else:
        vllm.activate(sim, worker, request)
    cache_events.publish(sim, worker)


@compiled
def release_source(sim: Sim, worker: int, request: int) -> None:
    """Let the prompt that `worker` holds for `request` go."""
    if _is_sglang(sim):
        sglang.release_source(sim, worker, request)
    else:
        vllm.release_source(sim, worker, request)


@compiled
def let_go(sim: Sim, worker: int, request: int) -> None:
    """Take from `request` whatever memory it holds on `worker`."""
    if sim.live[request].table_len == 0:
        return
    if _is_sglang(sim):
        sglang_pages.let_go(sim, worker, request)
        return
    if offload.is_used(sim, worker):
        offload.drop_load(sim, worker, request)
        sim.tickets[request].restored = NONE
    block_tables.release_all(sim, worker, request)


@compiled
def forget(sim: Sim, worker: int, request: int) -> None:
    """Let nothing that `worker` is about to do be for `request` any more."""
    if _overlaps(sim):
        sglang_overlap.forget(sim, worker, request)
    elif not _is_sglang(sim):
        vllm.forget(sim, worker, request)


@compiled
def remove_waiting(sim: Sim, worker: int, request: int) -> None:
    """Take `request` out of the queue in which it waits for a seat."""
    if queues.remove(sim.queues[worker, READY], sim.live, request):
        return
    if offload.is_used(sim, worker):
        offload.leave(sim, worker, request)
        return
    queues.remove(sim.queues[worker, WAITING], sim.live, request)
    if _is_sglang(sim) and sim.static[request].input >= sim.config[0].context:
        sim.workers[worker].too_long -= 1
