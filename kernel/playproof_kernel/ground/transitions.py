"""The machines of the specification as arrays, and the only function that writes a state.

`advance` looks the successor up and refuses an illegal pair; `renew` gives a slot whose machine has ended to the next
one. No other statement of the kernel assigns to a state array (`tests/unit/test_only_advance_writes_states.py` reads
the source to make sure).
"""

from __future__ import annotations

from typing import Any

from playproof_spec import machines

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled


class IllegalTransition(Exception):
    """A compiled function raised an event in a state that refuses it: a fault of ours, never of the trace."""


NODE_TABLE = machines.NODE.as_array()
PLAY_TABLE = machines.PLAY.as_array()
LANE_TABLE = machines.LANE.as_array()
PHASE_TABLE = machines.PHASE.as_array()
REQUEST_TABLE = machines.REQUEST.as_array()
SOURCE_FIRST_TABLE = machines.HANDOFF_SOURCE_FIRST.as_array()
DESTINATION_FIRST_TABLE = machines.HANDOFF_DESTINATION_FIRST.as_array()
BLOCK_TABLE = machines.BLOCK.as_array()
HOST_BLOCK_TABLE = machines.HOST_BLOCK.as_array()
HOST_TRANSFER_TABLE = machines.TRANSFER.as_array()


@compiled
def advance(table: Any, states: Any, index: Any, event: Any) -> None:
    """Move ``states[index]`` along `event`.

    Parameters
    ----------
    table : Int8, shape (states, events)
        From :meth:`playproof_spec.machines.Machine.as_array`.
    states : Int8, shape (n,)
        Written at `index`.
    index, event : int

    Raises
    ------
    IllegalTransition
        When the pair is illegal; the state is unchanged.
    """
    successor = table[states[index], event]
    if successor < 0:
        # Arguments known only now would cost eight times the whole transition, taken or not.
        raise IllegalTransition("an event reached a state that refuses it; interpreted, the traceback shows which")
    states[index] = successor


@compiled
def advance_handoff(sim: Sim, node: int, event: int) -> None:
    """Move the handoff of `node` along `event`, by the table for the order of its steps."""
    if sim.config[0].destination_first != 0:
        advance(DESTINATION_FIRST_TABLE, sim.handoff_state, node, event)
    else:
        advance(SOURCE_FIRST_TABLE, sim.handoff_state, node, event)


@compiled
def renew(table: Any, states: Any, index: Any) -> None:
    """Let ``states[index]`` begin another life: a slot of an ended play instance is taken by a new one.

    Every machine begins with its state 0. One that has begun and not ended is not let go of.

    Raises
    ------
    IllegalTransition
        When the state is neither terminal nor the initial one; it is unchanged.
    """
    if states[index] != 0:
        for event in range(table.shape[1]):
            if table[states[index], event] >= 0:
                raise IllegalTransition("a machine that has not ended cannot begin anew")
    states[index] = 0
