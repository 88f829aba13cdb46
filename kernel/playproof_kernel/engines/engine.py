"""The doors to whichever engine serves a run, and what is the same of all of them."""

from __future__ import annotations

from playproof_spec.deployment import WorkerSpec
from playproof_spec.machines import RequestEvent

from playproof_kernel.engines import passes, sglang, sglang_overlap, vllm, vllm_async
from playproof_kernel.engines.seam import ENGINES as ENGINES
from playproof_kernel.engines.seam import Engine
from playproof_kernel.ground import queues
from playproof_kernel.ground.arrays import NONE, READY, WAITING, Sim
from playproof_kernel.ground.jit import compiled, constant
from playproof_kernel.ground.transitions import REQUEST_TABLE, advance
from playproof_kernel.host import offload
from playproof_kernel.memory import cache_events, conservation

for _engine in (vllm.ENGINE, vllm_async.ENGINE, sglang.ENGINE, sglang_overlap.ENGINE):
    ENGINES.register(_engine)

# What each does, `seam.Engine` says.
start_pass = ENGINES.door("start_pass")
reserve = ENGINES.door("reserve")
release_source = ENGINES.door("release_source")
forget = ENGINES.door("forget")
published = ENGINES.door("published")
room_for_pass = ENGINES.door("room_for_pass")
_apply_passes = ENGINES.door("apply_passes")
_activate = ENGINES.door("activate")
_go_on = ENGINES.door("go_on")
_notices = ENGINES.door("notices")
_let_go = ENGINES.door("let_go")
_room_for_action = ENGINES.door("room_for_action")

_ENQUEUE = constant(RequestEvent.ENQUEUE)


def engine_of(worker: WorkerSpec) -> Engine:
    """Return the engine that serves workers of this description.

    Raises
    ------
    ValueError
        When none does.
    """
    return ENGINES.choices[ENGINES.number_of(worker)]


@compiled
def enqueue(sim: Sim, worker: int, request: int) -> None:
    """Put `request` at the end of the waiting queue of `worker`, cutting a macro-step short if it matters.

    Behind others it changes nothing before its turn, unless the engine notices it.
    """
    record = sim.workers[worker]
    waiting = sim.queues[worker, WAITING]
    noticed = _notices(sim, worker, request)
    if waiting.head == NONE or noticed:
        interrupt(sim, worker)
    advance(REQUEST_TABLE, sim.request_state, request, _ENQUEUE)
    queues.append(waiting, sim.live, request)
    record.tried = NONE
    if noticed:
        record.noticed += 1


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    """End the first `number` passes of the current step of `worker`, which publishes what it did in them."""
    _apply_passes(sim, worker, number)
    conservation.assert_conserved(sim, worker)
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
        _go_on(sim, worker)


@compiled
def activate(sim: Sim, worker: int, request: int) -> None:
    """Let `request`, whose prompt has been moved to `worker`, wait for its seat there; the end of a transfer."""
    _activate(sim, worker, request)
    cache_events.publish(sim, worker)


@compiled
def let_go(sim: Sim, worker: int, request: int) -> None:
    """Take from `request` whatever memory it holds on `worker`."""
    if sim.live[request].table_len > 0:
        _let_go(sim, worker, request)


@compiled
def remove_waiting(sim: Sim, worker: int, request: int) -> None:
    """Take `request` out of the queue in which it waits for a seat."""
    if queues.remove(sim.queues[worker, READY], sim.live, request):
        return
    if offload.is_used(sim, worker):
        offload.leave(sim, worker, request)
        return
    queues.remove(sim.queues[worker, WAITING], sim.live, request)
    if _notices(sim, worker, request):
        sim.workers[worker].noticed -= 1


@compiled
def room_for_action(sim: Sim) -> int:
    """Return whether the memory of every worker has room for one step of a handoff, or one end of a pass."""
    for worker in range(sim.workers.shape[0]):
        room = _room_for_action(sim, worker)
        if room != 0:
            return int(room)
    return 0
