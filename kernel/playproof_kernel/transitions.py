"""The machines of the specification as arrays, and the only function that writes a state.

`advance` looks the successor up and refuses an illegal pair; no other statement of the kernel assigns to a state array
(`tests/unit/test_only_advance_writes_states.py` reads the source to make sure).
"""

from __future__ import annotations

from typing import Any

from playproof_spec import machines

from playproof_kernel.deployment import Backend
from playproof_kernel.jit import compiled

_SGLANG = int(Backend.SGLANG)


class IllegalTransition(Exception):
    """A compiled function raised an event in a state that refuses it: a fault of ours, never of the trace."""


NODE_TABLE = machines.NODE.as_array()
PLAY_TABLE = machines.PLAY.as_array()
LANE_TABLE = machines.LANE.as_array()
REQUEST_TABLE = machines.REQUEST.as_array()
SOURCE_FIRST_TABLE = machines.HANDOFF_SOURCE_FIRST.as_array()
DESTINATION_FIRST_TABLE = machines.HANDOFF_DESTINATION_FIRST.as_array()
BLOCK_TABLE = machines.BLOCK.as_array()


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
def advance_handoff(sim: Any, node: int, event: int) -> None:
    """Move the handoff of `node` along `event`, by the table of the deployment's engine."""
    if sim.config[0].backend == _SGLANG:
        advance(DESTINATION_FIRST_TABLE, sim.handoff_state, node, event)
    else:
        advance(SOURCE_FIRST_TABLE, sim.handoff_state, node, event)
