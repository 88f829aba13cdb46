"""What both engines share about passes: their times within a macro-step, the tokens that they make, their cost.

A macro-step is a run of decode passes with one batch. Its first pass was scheduled; the others follow from it.
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import Role

from playproof_kernel.engines import timing
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.ground.jit import ONE, ZERO, compiled, constant
from playproof_kernel.ground.lifecycle import config_of

_PREFILL, _DECODE = constant(Role.PREFILL), constant(Role.DECODE)

# Bound on the passes of a macro-step whose durations differ, so that the log of gaps can be given room beforehand.
MAX_VARYING_PASSES = 4096


@compiled
def cost(sim: Sim, worker: int, part: Any, decoding: int, known_tokens: int) -> int:
    """Return the duration of a pass, ns.

    Parameters
    ----------
    part : Int64, shape (3,)
        Requests that computed prompt tokens, the sum of their prompt tokens known after the pass, and before it.
    decoding, known_tokens : int
        Requests in the decode part, and the tokens that they know together.
    """
    config = config_of(sim, worker)
    duration = 0
    if part[0] > 0 and config.role != _DECODE:
        mean_isl, mean_prefix = part[1] // part[0], part[2] // part[0]
        if mean_isl > mean_prefix:
            duration += int(timing.prefill_ns(sim, worker, part[0], mean_isl, mean_prefix))
    if decoding > 0 and config.role != _PREFILL:
        duration += int(timing.decode_ns(sim, worker, decoding, known_tokens))
    return duration


@compiled
def begin(sim: Sim, worker: int, duration: int, known_tokens: int) -> None:
    """Start a pass of `duration` ns now."""
    now = sim.run[0].now
    record = sim.workers[worker]
    record.pass_start = now
    record.pass_end = now + duration
    record.first_duration = duration
    record.decode_tokens_known = known_tokens
    record.macro = 1


@compiled
def finish(sim: Sim, worker: int, number: int) -> int:
    """End the first `number` passes of the current step for the worker's record, and return when the last ended."""
    record = sim.workers[worker]
    end = record.pass_start + record.first_duration if number == 1 else end_of(sim, worker, number)
    record.passes += number - 1
    record.busy += end - record.pass_start
    return int(end)


@compiled
def rest(sim: Sim, worker: int) -> None:
    """Let the worker idle."""
    record = sim.workers[worker]
    record.pass_end = NONE
    record.macro = 0


@compiled
def duration_of(sim: Sim, worker: int, number: int) -> int:
    """Return the duration of pass `number` (from 1) of the current macro-step."""
    record = sim.workers[worker]
    if number == 1:
        return int(record.first_duration)
    tokens = record.decode_tokens_known + (number - 1) * record.running
    return int(timing.decode_ns(sim, worker, record.running, tokens))


@compiled
def end_of(sim: Sim, worker: int, number: int) -> int:
    """Return the instant at which pass `number` of the current macro-step ends."""
    record = sim.workers[worker]
    if config_of(sim, worker).steady != 0:
        return int(record.pass_start + number * record.first_duration)
    end = int(record.pass_start)
    for i in range(1, number + 1):
        end += duration_of(sim, worker, i)
    return end


@compiled
def done(sim: Sim, worker: int) -> tuple[int, int]:
    """Return how many passes of the current macro-step have ended by now, and the instant at which the last did."""
    now = sim.run[0].now
    record = sim.workers[worker]
    if config_of(sim, worker).steady != 0:
        number = min((now - record.pass_start) // record.first_duration, record.macro)
        return int(number), int(record.pass_start + number * record.first_duration)
    number, end = 0, int(record.pass_start)
    while number < record.macro:
        following = end + duration_of(sim, worker, number + 1)
        if following > now:
            break
        end = following
        number += 1
    return number, end


@compiled
def resume(sim: Sim, worker: int, number: int, end: int, duration: int) -> bool:
    """After `number` passes of a macro-step, the last at `end`, start the one in progress alone; it takes `duration`.

    Returns
    -------
    bool
        False at a boundary that is now, before idle workers start their passes: what cut the step short belongs to the
        next pass, and nothing is started.
    """
    run = sim.run[0]
    record = sim.workers[worker]
    if end == run.now and run.scanned == 0:
        return False
    record.passes += 1
    record.decode_tokens_known += number * record.running
    record.pass_start = end
    record.first_duration = duration
    record.pass_end = end + duration
    record.macro = 1
    return True


@compiled
def record_gap(sim: Sim, value: int, count: int) -> None:
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
def _is_counted(sim: Sim, request: int) -> bool:
    """Whether the gaps between the tokens of `request` go to the log: it completes (see `finite`)."""
    return bool(sim.run[0].uncounted == 0 or sim.static[request].uncounted == 0)


@compiled
def _counted(sim: Sim, worker: int) -> int:
    """Return for how many running requests gaps go to the log."""
    number = int(sim.workers[worker].running)
    if sim.run[0].uncounted != 0:
        for i in range(sim.workers[worker].running):
            number -= sim.static[sim.running[worker, i]].uncounted
    return number


@compiled
def record_gaps_between(sim: Sim, worker: int, number: int) -> None:
    """Count the gaps between the `number` passes of the current step, for every running request."""
    record = sim.workers[worker]
    counted = _counted(sim, worker)
    if counted == 0:
        return
    if config_of(sim, worker).steady != 0:
        record_gap(sim, record.first_duration, (number - 1) * counted)
    else:
        for i in range(2, number + 1):
            record_gap(sim, duration_of(sim, worker, i), counted)


@compiled
def give_tokens(sim: Sim, worker: int, request: int, number: int, last: int) -> None:
    """Note the `number` tokens of `request`, the last at `last`, and the gap before the first of them."""
    record = sim.workers[worker]
    live = sim.live[request]
    first = record.pass_start + record.first_duration
    if live.generated == 0:
        live.first_token = first
    elif _is_counted(sim, request):
        record_gap(sim, first - live.last_token, ONE)
    if live.generated == 1:
        live.second_token = first
    elif live.generated == 0 and number > 1:
        live.second_token = first + duration_of(sim, worker, 2)
    live.last_token = last
    live.generated += number
    if config_of(sim, worker).role != _PREFILL:
        record.decode_tokens += number


@compiled
def give_burst(sim: Sim, worker: int, request: int, number: int, end: int) -> None:
    """Note the `number` tokens that a pass which ended at `end` gave `request` all at once."""
    live = sim.live[request]
    give_tokens(sim, worker, request, ONE, end)
    if number > 1:
        if live.generated == 1:
            live.second_token = end
        if _is_counted(sim, request):
            record_gap(sim, ZERO, number - 1)
        live.generated += number - 1
        sim.workers[worker].decode_tokens += number - 1
