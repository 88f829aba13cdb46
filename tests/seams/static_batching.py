"""A third engine, in a file of its own: static batching without a cache.

A batch is taken from the head of the waiting queue once nobody runs: as many requests as have seats, and pages for
their prompts and all of their output. One pass computes all of their prompts and gives each its first token; decode
passes follow until the last has all of its tokens. Only then is the next batch taken.
"""

from __future__ import annotations

from typing import cast

from playproof_kernel.engines import passes
from playproof_kernel.engines.seam import (
    ENGINES,
    Engine,
    always_room,
    nothing_for_request,
    nothing_for_worker,
    notices_nobody,
    publishes_nothing,
)
from playproof_kernel.ground import lifecycle, queues
from playproof_kernel.ground.arrays import NONE, OUTCOMES, WAITING, Sim
from playproof_kernel.ground.jit import ONE, compiled, constant
from playproof_kernel.ground.lifecycle import config_of, known
from playproof_spec.deployment import Backend, DeploymentSpec, WorkerSpec
from playproof_spec.machines import RequestEvent

STATIC = cast(Backend, 2)
_REJECT = constant(RequestEvent.REJECT)


@compiled
def _pages(sim: Sim, worker: int, request: int) -> int:
    static, size = sim.static[request], config_of(sim, worker).block_size
    return int((static.input + static.limit + size - 1) // size)


@compiled
def _take_batch(sim: Sim, worker: int) -> None:
    config, record = config_of(sim, worker), sim.workers[worker]
    waiting = sim.queues[worker, WAITING]
    while waiting.head != NONE and record.running < config.max_sequences:
        request = int(waiting.head)
        pages = _pages(sim, worker, request)
        if pages > config.blocks:
            queues.take(waiting, sim.live)
            lifecycle.note_outcome(sim, worker, request, _REJECT)
            continue
        if pages > record.free:
            return
        queues.take(waiting, sim.live)
        live = sim.live[request]
        live.table_len = pages
        live.computed = sim.static[request].input
        record.free -= pages
        record.prefill_tokens += live.computed
        lifecycle.seat(sim, worker, request)
        lifecycle.admit(sim, worker, request, 0)


@compiled
def start_pass(sim: Sim, worker: int) -> bool:
    record, part = sim.workers[worker], sim.part[worker]
    part[:] = 0
    record.passes += 1
    decoding, tokens = int(record.running), 0
    if decoding == 0:
        _take_batch(sim, worker)
        for i in range(record.running):
            part[0] += 1
            part[1] += sim.static[sim.running[worker, i]].input
    for i in range(decoding):
        tokens += known(sim, sim.running[worker, i])
    if record.running == 0:
        record.passes -= 1
        if sim.queues[worker, OUTCOMES].head == NONE:
            return False
    passes.begin(sim, worker, passes.cost(sim, worker, part, decoding, tokens), tokens)
    return True


@compiled
def apply_passes(sim: Sim, worker: int, number: int) -> None:
    record = sim.workers[worker]
    end = passes.finish(sim, worker, number)
    lifecycle.drop_canceled(sim, worker)
    kept = 0
    for i in range(record.running):
        request = int(sim.running[worker, i])
        live = sim.live[request]
        if sim.static[request].limit > 0:
            passes.give_tokens(sim, worker, request, ONE, end)
        if live.generated >= sim.static[request].limit:
            let_go(sim, worker, request)
            lifecycle.finish(sim, worker, request, end)
        else:
            sim.running[worker, kept] = request
            kept += 1
    record.running = kept
    lifecycle.tell_outcomes(sim, worker, end)
    passes.rest(sim, worker)


@compiled
def let_go(sim: Sim, worker: int, request: int) -> None:
    live = sim.live[request]
    sim.workers[worker].free += live.table_len
    sim.workers[worker].capacity_epoch += 1
    live.table_len = 0


@compiled
def _no_memory_for(sim: Sim, worker: int, request: int) -> int:
    return int(NONE)


def _refuse(deployment: DeploymentSpec) -> None:
    if deployment.decode is not None or deployment.worker.host is not None or deployment.speculation is not None:
        raise ValueError("static batching is aggregated, without host memory and speculation")


def _tokens_a_pass(spec: WorkerSpec) -> int:
    return spec.blocks * spec.block_size


ENGINE = ENGINES.register(
    Engine(
        name="static batching",
        serves=lambda spec: spec.backend == STATIC,
        refuse=_refuse,
        tokens_a_pass=_tokens_a_pass,
        keeps_tree=True,  # no tables of blocks; the tree stays empty
        destination_first=False,
        start_pass=start_pass,
        apply_passes=apply_passes,
        go_on=nothing_for_worker,
        notices=notices_nobody,
        reserve=_no_memory_for,
        activate=nothing_for_request,
        release_source=nothing_for_request,
        let_go=let_go,
        forget=nothing_for_request,
        published=publishes_nothing,
        room_for_pass=always_room,
        room_for_action=always_room,
    )
)
