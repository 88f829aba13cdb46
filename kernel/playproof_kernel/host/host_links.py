"""The links of a host pool that several workers share: how fast transfers move, and when they end.

A submitted transfer begins to move at its first byte's instant, `ready`; until then it takes no share. The moving
transfers of one direction share the pool's rate max-min fairly, those of one worker within that worker's rate:

- the moving transfers of one worker move equally fast, and together no faster than its link;
- all together move no faster than the pool;
- no transfer could be faster but at the cost of one that is no faster than itself.

So there is a level: a worker with n moving transfers gives each of them the smaller of the level and 1/n of its link's
rate, and the level is as high as the pool allows. A rate of 0 stands for no bound; a transfer that nothing bounds ends
at its first byte's instant.

**What an exact model has to know.** Time is whole nanoseconds; rates and bytes left are double floats. They change at
*events* only: an instant at which a transfer is submitted without latency, begins to move, ends or is dropped. At each
event first every transfer that moved since the event before has rate × elapsed fewer bytes left; then those due end,
new ones begin, and all rates are taken anew, by the filling in `_fill`. The end of a transfer with `left` bytes at
`rate` bytes per nanosecond is then known until the next event:

    end = now + floor(left / rate + 1/2 + 2^-10)

that is the nearest nanosecond, where what lies within 2^-10 ns below a half counts as the half. A model in exact
fractions that follows this rule finds the same ends: floats are some 10^-6 ns from it, and the sums and quotients of
whole bytes that do lie on a half are kept away from the boundary by the 2^-10. Transfers that end at one instant end
stores first, and then in the order of their submission.
"""

from __future__ import annotations

from playproof_spec.machines import TransferEvent, TransferState
from playproof_spec.units import HORIZON_NS, NS_PER_S

from playproof_kernel.ground import queues
from playproof_kernel.ground.arrays import D2H, ENDED_TRANSFERS, H2D, NONE, STORES, Sim
from playproof_kernel.ground.jit import compiled, constant
from playproof_kernel.ground.timers import sooner
from playproof_kernel.ground.transitions import HOST_TRANSFER_TABLE, advance

_START, _FINISH = constant(TransferEvent.START), constant(TransferEvent.FINISH)
_MOVING = constant(TransferState.MOVING)

# Added before an end is cut to whole nanoseconds: a half, and a little so that exact halves are no boundary.
_ROUNDING = 0.5 + 2.0**-10
_NS_PER_S = float(NS_PER_S)


@compiled
def submit(sim: Sim, pool: int, row: int, direction: int, ready: int) -> None:
    """Add a transfer whose first byte moves at `ready`; `step` lets it begin when that is now."""
    transfer = sim.host_transfers[row]
    transfer.ready = ready
    transfer.left = float(transfer.blocks * sim.hosts[pool].block_bytes)
    queues.append(sim.queues[pool, STORES + direction], sim.host_transfers, row)
    sim.hosts[pool].due = sooner(sim.hosts[pool].due, ready)


@compiled
def drop(sim: Sim, pool: int, row: int, direction: int, now: int) -> None:
    """Take a transfer that is under way out; what it leaves is shared anew."""
    _move(sim, pool, now)
    if sim.host_transfer_state[row] == _MOVING:
        sim.hosts[sim.host_transfers[row].worker].moving[direction] -= 1
    queues.remove(sim.queues[pool, STORES + direction], sim.host_transfers, row)
    _share(sim, pool, now)


@compiled
def step(sim: Sim, pool: int, now: int) -> None:
    """Take the event that is due at `now`; transfers that end are left in the queue `ENDED_TRANSFERS`, in order."""
    _move(sim, pool, now)
    _settle(sim, pool, D2H, now)
    _settle(sim, pool, H2D, now)
    _share(sim, pool, now)


@compiled
def _move(sim: Sim, pool: int, now: int) -> None:
    """Let the transfers that move do so until `now`."""
    record = sim.hosts[pool]
    elapsed = now - record.advanced
    record.advanced = now
    if elapsed == 0:
        return
    for direction in range(2):
        any_moving = False
        for worker in range(sim.hosts.shape[0]):
            host = sim.hosts[worker]
            if host.pool == pool and host.moving[direction] > 0:
                host.busy[direction] += elapsed
                any_moving = True
        if any_moving:
            record.pool_busy[direction] += elapsed
            row = int(sim.queues[pool, STORES + direction].head)
            while row != NONE:
                transfer = sim.host_transfers[row]
                if sim.host_transfer_state[row] == _MOVING:
                    transfer.left -= sim.hosts[transfer.worker].rate[direction] * elapsed
                row = int(transfer.next)


@compiled
def _settle(sim: Sim, pool: int, direction: int, now: int) -> None:
    """End the transfers of one direction that are due, and let those begin whose first byte is."""
    queue = sim.queues[pool, STORES + direction]
    unbounded = sim.hosts[pool].pool_bytes_per_second[direction] == 0.0
    row = int(queue.head)
    queue.head = NONE
    queue.tail = NONE
    while row != NONE:
        transfer = sim.host_transfers[row]
        host = sim.hosts[transfer.worker]
        following = int(transfer.next)
        ended = False
        if sim.host_transfer_state[row] == _MOVING:
            ended = transfer.end <= now
            if ended:
                host.moving[direction] -= 1
        elif transfer.ready <= now:
            advance(HOST_TRANSFER_TABLE, sim.host_transfer_state, row, _START)
            ended = unbounded and host.bytes_per_second[direction] == 0.0
            if not ended:
                host.moving[direction] += 1
        if ended:
            advance(HOST_TRANSFER_TABLE, sim.host_transfer_state, row, _FINISH)
            queues.append(sim.queues[pool, ENDED_TRANSFERS], sim.host_transfers, row)
        else:
            queues.append(queue, sim.host_transfers, row)
        row = following


@compiled
def _fill(sim: Sim, pool: int, direction: int) -> None:
    """Give every worker of the pool the rate of each of its moving transfers, bytes per ns.

    Workers whose links are full at the level that the pool allows the others are given their link's rate, over and over
    since that raises the level; the level is for the rest.
    """
    total = sim.hosts[pool].pool_bytes_per_second[direction]
    left, sharing = total, 0
    for worker in range(sim.hosts.shape[0]):
        host = sim.hosts[worker]
        if host.pool == pool:
            host.rate[direction] = 0.0
            sharing += host.moving[direction]
    given = True
    while given and sharing > 0:
        given = False
        for worker in range(sim.hosts.shape[0]):
            host = sim.hosts[worker]
            moving, rate = host.moving[direction], host.bytes_per_second[direction]
            if host.pool != pool or moving == 0 or host.rate[direction] > 0.0 or rate == 0.0:
                continue
            if total == 0.0 or rate * sharing <= left * moving:
                host.rate[direction] = rate / moving / _NS_PER_S
                left -= rate
                sharing -= moving
                given = True
    if sharing > 0:
        level = left / sharing / _NS_PER_S
        for worker in range(sim.hosts.shape[0]):
            host = sim.hosts[worker]
            if host.pool == pool and host.moving[direction] > 0 and host.rate[direction] == 0.0:
                host.rate[direction] = level


@compiled
def _share(sim: Sim, pool: int, now: int) -> None:
    """Take all rates anew, and with them the ends of what moves and the pool's next event."""
    due = NONE
    for direction in range(2):
        if sim.queues[pool, STORES + direction].head == NONE:
            continue
        _fill(sim, pool, direction)
        row = int(sim.queues[pool, STORES + direction].head)
        while row != NONE:
            transfer = sim.host_transfers[row]
            if sim.host_transfer_state[row] == _MOVING:
                span = transfer.left / sim.hosts[transfer.worker].rate[direction] + _ROUNDING
                transfer.end = now + int(min(span, float(HORIZON_NS)))
                due = sooner(due, int(transfer.end))
            else:
                due = sooner(due, int(transfer.ready))
            row = int(transfer.next)
    sim.hosts[pool].due = due
