"""The load of workers as who places requests knows it: whom a worker was given, and who of them has begun there.

It is kept in tokens, a block being so many of them.
"""

from __future__ import annotations

from playproof_spec.deployment import Role

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled, constant

_PREFILL = constant(Role.PREFILL)


@compiled
def assigned(sim: Sim, worker: int) -> int:
    """Return the tokens, of prompts and of output, that the requests of `worker` have."""
    return int(sim.workers[worker].assigned + sim.workers[worker].decode_tokens)


@compiled
def assign(sim: Sim, worker: int, request: int, device: int, host: int) -> None:
    """Count `request` among those of `worker`, which was told to have so much of its prompt; it has not begun."""
    record, ticket = sim.workers[worker], sim.tickets[request]
    size = sim.config[0].block_size
    ticket.overlap = (device + host) * size
    ticket.is_assigned = 1
    ticket.missing = sim.static[request].input - device * size
    ticket.restorable = host * size
    record.assigned += sim.static[request].input
    record.missing += ticket.missing
    record.restorable += ticket.restorable


@compiled
def begin(sim: Sim, worker: int, request: int) -> None:
    """Take in that `request` was admitted for the first time, or that it never will be."""
    record, ticket = sim.workers[worker], sim.tickets[request]
    record.missing -= ticket.missing
    record.restorable -= ticket.restorable
    ticket.missing = 0
    ticket.restorable = 0


@compiled
def leave(sim: Sim, worker: int, request: int) -> None:
    """Take in that `worker` has done with `request`; told twice, it counts once."""
    record, ticket = sim.workers[worker], sim.tickets[request]
    if ticket.is_assigned == 0:
        return
    ticket.is_assigned = 0
    begin(sim, worker, request)
    record.assigned -= sim.static[request].input
    if sim.config[record.role].role != _PREFILL:
        # A prefill worker's one token was never counted.
        record.assigned -= sim.live[request].generated
