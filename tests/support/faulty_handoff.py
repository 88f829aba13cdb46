"""Runs the handoff machine on a sound kernel, or on one that tells the client of a completion at prefill.

Usage: ``python faulty_handoff.py vllm|sglang sound|faulty``, with ``NUMBA_DISABLE_JIT=1``. Called by a property test,
which wants the same settings to pass on the one and fail on the other.
"""

from __future__ import annotations

import sys
from typing import Any

from handoff_machine import SglangHandoffBesideNaive, VllmHandoffBesideNaive
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from playproof_kernel.ground import lifecycle, transitions
from playproof_kernel.handoff import handoffs
from playproof_spec.machines import HandoffEvent, HandoffState, RequestState

MACHINES = {"vllm": VllmHandoffBesideNaive, "sglang": SglangHandoffBesideNaive}


def complete_at_prefill() -> None:
    """Let the end of a prefill complete its request, as a table with one rule too many would allow."""
    end, end_of_pass = handoffs._end, handoffs.end_of_pass
    early: list[int] = []

    def end_early(sim: Any, request: int) -> None:
        at_prefill = request == lifecycle.node_of(sim, request)
        if at_prefill and sim.request_state[request] == RequestState.FINISHED:
            transitions.advance_handoff(sim, request, HandoffEvent.COMPLETE)
            early.append(request)
        else:
            end(sim, request)

    def forward(sim: Any, worker: int, begin: int) -> None:
        end_of_pass(sim, worker, begin)
        while early:
            lifecycle.tell(sim, early.pop())

    for table in (transitions.SOURCE_FIRST_TABLE, transitions.DESTINATION_FIRST_TABLE):
        table[HandoffState.PREFILLING, HandoffEvent.COMPLETE] = HandoffState.COMPLETED
    handoffs._end, handoffs.end_of_pass = end_early, forward


def main() -> None:
    backend, kernel = sys.argv[1:]
    if kernel == "faulty":
        complete_at_prefill()
    # Without shrinking: that a failure was found is all that is asked.
    chosen = settings(max_examples=15, stateful_step_count=25, derandomize=True, deadline=None, phases=[Phase.generate])
    run_state_machine_as_test(MACHINES[backend], settings=chosen)


if __name__ == "__main__":
    main()
