"""More memory for a run that has stopped for want of it: logs, tables, trees and seats."""

from __future__ import annotations

from typing import Any

import numpy as np

from playproof_kernel.engines.passes import MAX_VARYING_PASSES
from playproof_kernel.ground.arrays import (
    ADMISSION_LOG,
    BRANCHES,
    ENTRIES,
    HANDED_OVER,
    KV_TRANSFERS,
    NODES,
    PLAYS,
    PREPARED,
    Ended,
    Gap,
    Result,
    Sim,
)
from playproof_kernel.ground.faults import ReplayFault as ReplayFault
from playproof_kernel.ground.records import enlarged, records
from playproof_kernel.memory import radix_tree
from playproof_kernel.runs import loop
from playproof_kernel.runs.controlled_setup import PLAYS_SPARE, RESULTS_SPARE
from playproof_kernel.runs.setup import new_branches


def with_room(sim: Sim, stop: int) -> Sim:
    """Return the arrays with the room that a stopped run wants.

    Raises
    ------
    ReplayFault
        When what it wants is no room: a run that cannot go on is our fault.
    """
    if stop == loop.Stop.LOGS:
        return _with_larger_logs(sim)
    if stop == loop.Stop.ARENA:
        size = 2 * int(sim.run[0].arena_wanted)
        larger: Sim = enlarged(sim, {ENTRIES: size})
        return larger
    if stop == loop.Stop.TREE:
        return _with_larger_trees(sim)
    if stop == loop.Stop.SEATS:
        return _with_more_seats(sim)
    raise ReplayFault(f"no room helps a run that stopped for {loop.Stop(stop).name}")


def logs_are_short(sim: Sim) -> bool:
    """Whether the logs have too little room for the next pass of any worker even when nothing is in them."""
    workers, sequences = sim.running.shape
    return bool(
        2 * (sim.run[0].gaps + (MAX_VARYING_PASSES + sequences) * workers) > len(sim.gaps)
        or 2 * sequences > len(sim.admissions)
    )


def _with_larger_logs(sim: Sim) -> Sim:
    """Double the log of admissions, and rehash the gaps into a table of twice the size."""
    gaps = records(2 * len(sim.gaps), Gap)
    larger: Sim = enlarged(sim, {ADMISSION_LOG: 2 * len(sim.admissions)})._replace(gaps=gaps)
    loop.rehash_gaps(larger, sim.gaps[sim.gaps["count"] > 0])
    return larger


def _with_larger_trees(sim: Sim) -> Sim:
    """Double the trees' capacity, and enter their nodes into hash tables of twice the size."""
    workers, capacity = sim.leaves.shape
    larger: Sim = enlarged(sim, {BRANCHES: 2 * capacity})._replace(branches=new_branches(workers, 2 * capacity))
    radix_tree.enter_all(larger, sim.branches)
    return larger


def _with_more_seats(sim: Sim) -> Sim:
    """Return the arrays with twice the seats, behind all other slots.

    The engine requests of the decode role are numbered from the number of nodes on, and so move up.
    """
    nodes, plays, seats = len(sim.node_state), len(sim.plays), len(sim.plays) - int(sim.config[0].corpus_plays)
    largest = nodes - int(sim.plays.shift[-1])
    slots = nodes + seats * largest

    def widened(array: Any) -> Any:
        """Both halves of an array with a row an engine request, each with room behind it."""
        wide = np.zeros(2 * slots, array.dtype)
        wide[:nodes], wide[slots : slots + nodes] = array[:nodes], array[nodes:]
        return wide.view(type(array))

    def moved(requests: Any) -> Any:
        return np.where(requests >= nodes, requests + slots - nodes, requests)

    more = {NODES: slots, HANDED_OVER: slots, KV_TRANSFERS: slots, PLAYS: plays + seats}
    larger: Sim = enlarged(sim, more)._replace(
        **{name: widened(getattr(sim, name)) for name in ("static", "live", "tickets", "request_state")},
        # These have room for a row each; what they hold stands at their beginning.
        holders=np.pad(moved(sim.holders), (0, 2 * slots - len(sim.holders))),
        feedback=np.pad(sim.feedback, (0, 2 * slots - len(sim.feedback))),
        play_nodes=np.concatenate((sim.play_nodes, np.arange(nodes, slots))),
        results=records(2 * slots + RESULTS_SPARE, Result),
        ended=records(2 * (plays + seats) + PLAYS_SPARE, Ended),
    )
    for links in (larger.live, larger.tickets):
        links.next = moved(links.next)
    for queues in (sim.queues[:, :PREPARED], sim.actions):
        queues["head"], queues["tail"] = moved(queues["head"]), moved(queues["tail"])
    larger.host_transfers.request = moved(larger.host_transfers.request)
    larger.hosts.recent = moved(larger.hosts.recent)
    larger.running[:] = moved(sim.running)
    larger.plays.shift[plays:] = nodes + largest * np.arange(seats)
    for seat in range(plays + seats - 1, plays - 1, -1):
        larger.plays[seat].next, larger.run[0].seat = larger.run[0].seat, seat
    larger.run[0].seats += seats
    return larger
