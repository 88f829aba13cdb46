"""The event loop of an aggregated deployment: one total order, no wall clock.

At each instant the steps (pass ends, feedback, dispatches, pass starts) are repeated until none changes anything; then
the clock jumps to the next timer or pass end. The loop is resumable: it stops when a log wants room, after a slice of
instants (so that progress can be shown), and at the end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from playproof_spec.units import HORIZON_NS

from playproof_kernel import driver, instances, phases, radix, sglang, tables, vllm
from playproof_kernel.arrays import NONE
from playproof_kernel.deployment import Backend
from playproof_kernel.jit import compiled, compiled_entry


class Stop(IntEnum):
    """Why `run` returned."""

    DONE = 0
    SLICE = 1  # call again
    LOGS = 2  # a log wants room
    ARENA = 3  # the arena of block tables wants ``run.arena_wanted`` entries
    STALL = 4  # requests remain and nothing is due: a fault of ours
    HORIZON = 5  # the clock ran past its bound
    TREE = 6  # the radix trees want twice their room


_DONE, _SLICE, _LOGS, _ARENA = int(Stop.DONE), int(Stop.SLICE), int(Stop.LOGS), int(Stop.ARENA)
_STALL, _HORIZON, _TREE = int(Stop.STALL), int(Stop.HORIZON), int(Stop.TREE)
_SGLANG = int(Backend.SGLANG)


@compiled
def _enqueue(sim: Any, worker: int, node: int) -> None:
    if sim.config[0].backend == _SGLANG:
        sglang.enqueue(sim, worker, node)
    else:
        vllm.enqueue(sim, worker, node)


@compiled
def _start_pass(sim: Any, worker: int) -> bool:
    if sim.config[0].backend == _SGLANG:
        return sglang.start_pass(sim, worker)
    return vllm.start_pass(sim, worker)


@compiled
def _apply_passes(sim: Any, worker: int, passes: int) -> None:
    if sim.config[0].backend == _SGLANG:
        sglang.apply_passes(sim, worker, passes)
    else:
        vllm.apply_passes(sim, worker, passes)


@compiled
def _end_passes(sim: Any) -> bool:
    now = sim.run[0].now
    changed = False
    for worker in range(sim.config[0].workers):
        if sim.workers[worker].pass_end == now:
            _apply_passes(sim, worker, sim.workers[worker].macro)
            changed = True
    return changed


@compiled
def _dispatch_due(sim: Any) -> bool:
    changed = False
    while True:
        time = driver.next_timer(sim)
        if time == NONE or time > sim.run[0].now:
            return changed
        node = driver.pop_timer(sim)
        _enqueue(sim, driver.dispatch(sim, node), node)
        changed = True


@compiled
def _room(sim: Any, worker: int) -> int:
    """Check that the logs and the arena can take one more pass of `worker`."""
    run = sim.run[0]
    sequences = sim.config[0].max_sequences
    if run.admissions + sequences > sim.admissions.shape[0]:
        return _LOGS
    if 2 * (run.gaps + (vllm.MAX_VARYING_PASSES + sequences) * sim.config[0].workers) > sim.gaps.shape[0]:
        return _LOGS
    if sim.config[0].backend == _SGLANG:
        return _DONE if sim.workers[worker].tree_live + radix.room(sequences) <= sim.tree.shape[1] else _TREE
    return _DONE if tables.reserve_room(sim, worker) else _ARENA


@compiled
def _first_startable(sim: Any) -> int:
    """Return the first idle worker with work that was not tried in vain at this instant, or NONE."""
    for worker in range(sim.config[0].workers):
        record = sim.workers[worker]
        if record.pass_end == NONE and record.tried != sim.run[0].now:
            if record.running > 0 or record.wait_head != NONE:
                return worker
    return NONE


@compiled
def _start_passes(sim: Any) -> tuple[int, bool]:
    """Start passes on idle workers with work: the first of them, one pass, then look again from worker 0."""
    now = sim.run[0].now
    changed = False
    while True:
        worker = _first_startable(sim)
        if worker == NONE:
            return _DONE, changed
        room = _room(sim, worker)
        if room != _DONE:
            return room, changed
        record = sim.workers[worker]
        sim.prefill_before[worker] = record.prefill_tokens
        if _start_pass(sim, worker):
            changed = True
            if sim.config[0].controls != 0:
                instances.note_admissions(sim)
            if record.pass_end == now:
                _apply_passes(sim, worker, record.macro)
        else:
            record.tried = now


@compiled
def _next_instant(sim: Any) -> int:
    time = driver.next_timer(sim)
    for worker in range(sim.config[0].workers):
        end = sim.workers[worker].pass_end
        if end != NONE and (time == NONE or end < time):
            time = end
    if sim.config[0].controls != 0:
        control = phases.next_time(sim)
        if control != NONE and (time == NONE or control < time):
            time = control
    return time


@compiled
def _logs_hold(sim: Any) -> bool:
    """Whether the logs of the run controls can take one more round of this instant."""
    run, config = sim.run[0], sim.config[0]
    results = sim.results.shape[0] - run.results >= sim.static.shape[0]
    ended = sim.ended.shape[0] - run.ended > config.lanes
    return results and ended and sim.shifts.shape[0] - run.shifts > config.lanes


@compiled_entry
def run(sim: Any, instants: int) -> int:
    """Run until the end, or for `instants` instants, or until a log wants room; returns a `Stop`."""
    state = sim.run[0]
    controls = sim.config[0].controls != 0
    for _ in range(instants):
        while True:
            changed = False
            if state.in_scan == 0:
                if controls and not _logs_hold(sim):
                    return _LOGS
                changed = _end_passes(sim)
                if state.feedback > 0:
                    driver.hear(sim)
                    changed = True
                if controls:
                    changed = phases.step(sim) or changed
                    if phases.is_over(sim):
                        return _DONE
                changed = _dispatch_due(sim) or changed
                state.in_scan = 1
            room, started = _start_passes(sim)
            if room != _DONE:
                return room
            state.in_scan = 0
            state.scanned = 1
            if not (changed or started):
                break
        time = _next_instant(sim)
        if time == NONE:
            return _DONE if state.finished == sim.static.shape[0] else _STALL
        if time > HORIZON_NS:
            return _HORIZON
        state.now = time
        state.scanned = 0
    return _SLICE


@compiled_entry
def rehash_gaps(sim: Any, old: Any) -> None:
    """Enter every gap of `old` into the larger, empty table of `sim`."""
    sim.run[0].gaps = 0
    for slot in range(old.shape[0]):
        if old[slot].count > 0:
            vllm.record_gap(sim, old[slot].value, old[slot].count)
