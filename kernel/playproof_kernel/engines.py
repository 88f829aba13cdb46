"""One door to both engines: the deployment's backend decides which module acts."""

from __future__ import annotations

from typing import Any

from playproof_kernel import requests, sglang, tables, vllm
from playproof_kernel.deployment import Backend
from playproof_kernel.jit import compiled

_SGLANG = int(Backend.SGLANG)


@compiled
def _is_sglang(sim: Any) -> bool:
    return bool(sim.config[0].backend == _SGLANG)


@compiled
def enqueue(sim: Any, worker: int, request: int) -> None:
    """Put `request` into the waiting queue of `worker`."""
    sim.workers[worker].tried = -1
    if _is_sglang(sim):
        sglang.enqueue(sim, worker, request)
    else:
        vllm.enqueue(sim, worker, request)


@compiled
def start_pass(sim: Any, worker: int) -> bool:
    """Schedule one pass of an idle worker; False when it would have no effect."""
    if _is_sglang(sim):
        return sglang.start_pass(sim, worker)
    return vllm.start_pass(sim, worker)


@compiled
def apply_passes(sim: Any, worker: int, number: int) -> None:
    """End the first `number` passes of the current step of `worker`."""
    if _is_sglang(sim):
        sglang.apply_passes(sim, worker, number)
    else:
        vllm.apply_passes(sim, worker, number)


@compiled
def interrupt(sim: Any, worker: int) -> None:
    """Cut a macro-step of `worker` short, if it is in one: only the pass in progress goes on."""
    if sim.workers[worker].macro > 1:
        if _is_sglang(sim):
            sglang.interrupt(sim, worker)
        else:
            vllm.interrupt(sim, worker)


@compiled
def reserve(sim: Any, worker: int, request: int) -> int:
    """Take memory for the prompt of `request`; returns the tokens to move there, or NONE when there is no room."""
    if _is_sglang(sim):
        return sglang.reserve(sim, worker, request)
    return vllm.reserve(sim, worker, request)


@compiled
def activate(sim: Any, worker: int, request: int) -> None:
    """Let `request`, whose prompt has been moved to `worker`, wait for its seat there."""
    if _is_sglang(sim):
        sglang.activate(sim, worker, request)
    else:
        vllm.activate(sim, worker, request)


@compiled
def release_source(sim: Any, worker: int, request: int) -> None:
    """Let the prompt that `worker` holds for `request` go."""
    if _is_sglang(sim):
        sglang.release_source(sim, worker, request)
    else:
        vllm.release_source(sim, worker, request)


@compiled
def let_go(sim: Any, worker: int, request: int) -> None:
    """Take from `request` whatever memory it holds on `worker`."""
    if sim.live[request].table_len == 0:
        return
    if _is_sglang(sim):
        sglang.let_go(sim, worker, request)
    else:
        tables.release_all(sim, worker, request)


@compiled
def remove_waiting(sim: Any, worker: int, request: int) -> None:
    """Take `request` out of the queue in which it waits for a seat."""
    if _is_sglang(sim):
        if sglang.remove_ready(sim, worker, request):
            return
        if sim.static[request].input >= sim.config[0].context:
            sim.workers[worker].too_long -= 1
    requests.remove_waiting(sim, worker, request)
