"""What each guard of the tables says, as a predicate on the arrays of a run.

The kernel raises an event only where its guard holds, and does not look at the guard again: looking costs more than the
event. These predicates do look, plainly and slowly, in interpreted runs of the tests (`tests/support/monitor.py`). Each
reads the arrays as they are when the event is raised; it takes nothing from what the kernel has counted, where it can
count for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from playproof_spec.graph import Trigger
from playproof_spec.machines import HostBlockState, LaneState, NodeState, PhaseState, PlayState, RequestState

from playproof_kernel.ground import key_groups, lifecycle
from playproof_kernel.ground.arrays import NONE, Sim
from playproof_kernel.memory import prompt_keys

__all__ = ["PREDICATES", "At"]

# Output tokens of a request for which SGLang keeps room at the most.
KEPT_OUTPUT_MAX = 4096
_WAITING_NODES = (NodeState.BLOCKED, NodeState.READY, NodeState.DISPATCHED)


@dataclass(frozen=True, slots=True)
class At:
    """An event that is about to be raised.

    Attributes
    ----------
    sim : Sim
    machine : str
    states : Int8 array
        The state array that will be written; of blocks, that of one worker or pool.
    index, event : int
    """

    sim: Sim
    machine: str
    states: Any
    index: int
    event: int

    def row(self, arrays: Any) -> int:
        """Return which row of `arrays` the states are: the worker of a block, the pool of a host block."""
        address = self.states.__array_interface__["data"][0]
        return next(i for i in range(len(arrays)) if arrays[i].__array_interface__["data"][0] == address)


# Nodes, plays, lanes --------------------------------------------------------------------------------------------------


def nodes_of_play(sim: Sim, play: int) -> list[int]:
    """Return the nodes of a play, or the slots of a seat."""
    record = sim.plays[play]
    return [int(sim.play_nodes[i]) for i in range(int(record.node_begin), int(record.node_end))]


def _states_of_play(sim: Sim, play: int) -> list[NodeState]:
    return [NodeState(int(sim.node_state[node])) for node in nodes_of_play(sim, play)]


def _edges_into(sim: Sim, node: int) -> Iterator[tuple[int, Any]]:
    """Yield (source, edge) for the edges of the node's play that lead to it."""
    play = int(sim.static[node].play)
    shift = int(sim.plays[play].shift)
    for source in nodes_of_play(sim, play):
        for number in range(int(sim.static[source].edge_begin), int(sim.static[source].edge_end)):
            if shift + int(sim.edges[number].target) == node:
                yield source, sim.edges[number]


def _is_preparation(sim: Sim, node: int) -> bool:
    return bool(sim.static[node].play == NONE)


def _preparation(sim: Sim) -> list[int]:
    begin = int(sim.config[0].prep_begin)
    return list(range(begin, begin + len(sim.prep)))


def _turn_has_come(sim: Sim, node: int) -> bool:
    """Whether the preparation request before `node` in its lane has completed, and none has failed."""
    number = node - int(sim.config[0].prep_begin)
    first = number == 0 or sim.prep[number - 1].lane != sim.prep[number].lane
    before = first or sim.node_state[node - 1] == NodeState.COMPLETED
    return bool(before and sim.run[0].prep_failed == NONE)


def _all_edges_fired(at: At) -> bool:
    sim, node = at.sim, at.index
    if _is_preparation(sim, node):
        return _turn_has_come(sim, node)
    if sim.play_state[sim.static[node].play] != PlayState.ACTIVE:
        return False
    for source, edge in _edges_into(sim, node):
        state = sim.node_state[source]
        if edge.trigger == Trigger.DISPATCH:
            fired = sim.live[source].dispatched != NONE or state == NodeState.HISTORICAL
        else:
            fired = state in (NodeState.COMPLETED, NodeState.HISTORICAL)
        if not fired:
            return False
    return True


def _due(at: At) -> bool:
    sim, node, now = at.sim, at.index, int(at.sim.run[0].now)
    if _is_preparation(sim, node):
        return _turn_has_come(sim, node)
    play = sim.plays[sim.static[node].play]
    if sim.play_state[sim.static[node].play] != PlayState.ACTIVE or now < sim.live[node].ready:
        return False
    if sim.config[0].profile != 0:
        return True  # idle caps may have brought its time forward
    ready = int(play.start) + int(sim.static[node].floor)
    for source, edge in _edges_into(sim, node):
        if sim.node_state[source] == NodeState.HISTORICAL:
            continue  # what is left of it stands in the floor
        live = sim.live[lifecycle.served(sim, source)]
        fired = sim.live[source].dispatched if edge.trigger == Trigger.DISPATCH else live.terminal
        ready = max(ready, int(fired) + int(edge.delay))
    return now >= ready


def _play_failed(at: At) -> bool:
    sim = at.sim
    if at.machine == "node" and _is_preparation(sim, at.index):
        return bool(sim.run[0].prep_failed != NONE)
    play = int(sim.static[at.index].play)
    failed = any(state in (NodeState.FAILED, NodeState.CANCELED) for state in _states_of_play(sim, play))
    return failed and bool(sim.play_state[play] == PlayState.FAILING)


def _play_closing(at: At) -> bool:
    return bool(at.sim.play_state[at.sim.static[at.index].play] == PlayState.CLOSING)


def _before_cut(at: At) -> bool:
    sim, number = at.sim, int(at.sim.static[at.index].play)
    play = sim.plays[number]
    begun = sim.phase_state[0] != PhaseState.PRIMER or sim.run[0].now != 0 or sim.run[0].in_flight != 0
    return bool(sim.play_state[number] == PlayState.PENDING and play.ordinal == 0 and play.start == NONE and not begun)


def _all_over(at: At) -> bool:
    sim = at.sim
    if at.machine == "play":
        plays = [at.index]
    elif sim.config[0].controls != 0:
        plays = [int(sim.lanes[at.index].seat)]
    else:
        begun = np.flatnonzero(sim.play_state != PlayState.PENDING)
        plays = [int(play) for play in begun if sim.plays[play].lane == at.index]
    return not any(state in _WAITING_NODES for play in plays for state in _states_of_play(sim, play))


def _all_completed(at: At) -> bool:
    ends = (NodeState.COMPLETED, NodeState.HISTORICAL)
    return all(state in ends for state in _states_of_play(at.sim, at.index))


# Phases ---------------------------------------------------------------------------------------------------------------


def _servers_settled(sim: Sim) -> bool:
    if any(sim.hosts.host_transfers > 0) or np.any(sim.node_state == NodeState.DISPATCHED):
        return False
    return not any(lifecycle.engaged(sim, node) for node in _preparation(sim))


def _ended(sim: Sim, node: int) -> bool:
    return int(sim.node_state[node]) not in _WAITING_NODES


def _primers_ended(at: At) -> bool:
    begin = int(at.sim.config[0].prep_begin)
    return all(_ended(at.sim, node) for node in _preparation(at.sim) if at.sim.prep[node - begin].primer)


def _warmups_ended(at: At) -> bool:
    return all(_ended(at.sim, node) for node in _preparation(at.sim))


def _all_lanes_prepared(at: At) -> bool:
    sim = at.sim
    prepared = all(sim.node_state[node] == NodeState.COMPLETED for node in _preparation(sim))
    return prepared and bool(sim.run[0].prep_failed == NONE) and _servers_settled(sim)


def _preparation_failed(at: At) -> bool:
    return bool(at.sim.run[0].prep_failed != NONE) and _servers_settled(at.sim)


def _profile_over(at: At) -> bool:
    run, config = at.sim.run[0], at.sim.config[0]
    return bool(config.profile != 0 and run.now >= run.profile_start + config.duration)


def _plays_settled(at: At) -> bool:
    return not np.any(at.sim.lane_state == LaneState.OCCUPIED)


def _run_at_rest(at: At) -> bool:
    return not np.any(at.sim.node_state == NodeState.DISPATCHED)


def _grace_over(at: At) -> bool:
    run, config = at.sim.run[0], at.sim.config[0]
    return _profile_over(at) and not _run_at_rest(at) and run.now >= run.profile_start + config.duration + config.grace


# Requests -------------------------------------------------------------------------------------------------------------


def _pages(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _request(at: At) -> tuple[Any, int, int, Any]:
    """Return the run, the engine request that an event is about, its worker and the configuration of that."""
    sim, request = at.sim, at.index
    if at.machine.startswith("handoff"):
        request += lifecycle.nodes_of(sim)
    worker = int(sim.live[request].worker)
    return sim, request, worker, sim.config[sim.workers[worker].role]


def _is_outside(config: Any) -> bool:
    """Whether the engine is a server of its own: what is simulated of it then has no seats."""
    return bool(config.max_sequences == 0)


def _fits(at: At) -> bool:
    sim, request, worker, config = _request(at)
    if _is_outside(config):
        return True
    live, record, size = sim.live[request], sim.workers[worker], int(config.block_size)
    if at.machine.startswith("handoff") and sim.request_state[request] == RequestState.PLACED:
        return bool(live.table_len * size >= sim.static[request].input)
    seats = int(record.running) + (request not in sim.running[worker, : record.running])
    if seats > config.max_sequences:
        return False
    if config.keeps_tree != 0:
        return bool(live.table_len >= _pages(int(live.computed), size))
    free = int(config.blocks) - int(np.count_nonzero(sim.block_state[worker]))
    idle = int(np.count_nonzero((sim.block_state[worker] != 0) & (sim.frames[worker].refs < 0)))
    tokens = lifecycle.known(sim, request)
    if config.reserve == 0:
        # Only what the pass computes has to find room; how much that is, the pass's budget says, but one at the least.
        tokens = min(tokens, int(live.computed) + 1)
    return _pages(tokens, size) - int(live.table_len) <= free + idle


def _never_fits_idle(sim: Sim, request: int, worker: int, config: Any) -> bool:
    """Whether SGLang refuses a request on a worker where nothing else runs or holds memory, nor will."""
    record, size = sim.workers[worker], int(config.block_size)
    if config.keeps_tree == 0 or record.running > 0 or record.holding > 0:
        return False
    tokens = _pages(lifecycle.known(sim, request), size) * size
    kept = min(int(sim.static[request].limit - sim.live[request].generated), KEPT_OUTPUT_MAX)
    most = min(int(config.chunked_prefill_size), int(config.max_prefill_tokens))
    if config.whole_batches != 0:
        # SGLang's own rules ask for a page more than prompt and output.
        return bool(lifecycle.known(sim, request) + kept + size >= config.blocks * size or tokens > most)
    return tokens + kept >= config.blocks * size or tokens > most


def _never_fits(at: At) -> bool:
    sim, request, worker, config = _request(at)
    if _is_outside(config) or sim.static[request].input >= config.context:
        return True
    if _pages(lifecycle.known(sim, request), int(config.block_size)) > config.blocks:
        return True
    return _never_fits_idle(sim, request, worker, config)


def _over_context(at: At) -> bool:
    return bool(at.sim.static[at.index].input >= at.sim.config[0].context)


def _all_generated(at: At) -> bool:
    return bool(at.sim.live[at.index].generated >= at.sim.static[at.index].limit)


def _outgrew_pool(at: At) -> bool:
    sim, request, worker, config = _request(at)
    if _is_outside(config) or lifecycle.known(sim, request) + 1 > config.blocks * config.block_size:
        return True
    return _never_fits_idle(sim, request, worker, config)


def _zero_tokens(at: At) -> bool:
    return bool(at.sim.static[at.index + lifecycle.nodes_of(at.sim)].limit == 0)


# Blocks ---------------------------------------------------------------------------------------------------------------


def _cache_on(at: At) -> bool:
    sim, worker = at.sim, at.row(at.sim.block_state)
    config = sim.config[sim.workers[worker].role]
    if config.caching == 0:
        return False
    for i in range(int(sim.run[0].holders)):
        live = sim.live[sim.holders[i]]
        table = sim.arena[live.table_begin : live.table_begin + live.table_len]
        for place in np.flatnonzero(table == at.index) if live.worker == worker else ():
            return bool(live.computed >= (place + 1) * config.block_size)
    return False


def _loads_of(at: At) -> int:
    """Return how many loads under way read the host block."""
    sim, row = at.sim, at.row(at.sim.host_state)
    key = key_groups.key_at(sim.host_key_groups[row], at.index)
    loads = 0
    for request in range(len(sim.tickets)):
        copying = int(sim.tickets[request].load)
        # A seat that no play has taken yet has a ticket that says nothing.
        if copying == NONE or sim.host_transfers[copying].request != request:
            continue
        if sim.hosts[sim.host_transfers[copying].worker].pool != row:
            continue
        part = sim.host_transfers[copying]
        stride = int(sim.config[sim.workers[part.worker].role].key_stride)
        static = sim.static[request]
        for run in range(int(static.key_begin), int(static.key_end)):
            _, number, first = prompt_keys.part_of(
                sim.keys[run], static, stride, int(part.first), int(part.first + part.blocks)
            )
            loads += key in range(int(first), int(first) + int(number) * stride, stride)
    return loads


def _last_reference(at: At) -> bool:
    if at.machine == "host_block":
        return _loads_of(at) == 1
    return bool(at.sim.frames[at.row(at.sim.block_state)][at.index].refs == 0)


def _unpinned(at: At) -> bool:
    return _loads_of(at) == 0


def _host_room(at: At) -> bool:
    row = at.row(at.sim.host_state)
    return bool(np.count_nonzero(at.states != HostBlockState.ABSENT) < at.sim.hosts[row].capacity)


def _no_free_block(at: At) -> bool:
    """Whether blocks are short, and the idle blocks that came to rest before this one are gone."""
    worker = at.row(at.sim.block_state)
    record, frames = at.sim.workers[worker], at.sim.frames[worker]
    config = at.sim.config[record.role]
    free = int(config.blocks) - int(np.count_nonzero(at.states))
    idle = np.flatnonzero((at.states != 0) & (frames.refs < 0))
    ring = len(at.sim.order[worker])
    # Stretches stand in the order in which they came to rest, the copies of one from the highest number down.
    age = [((-1 - int(frames[copy].refs) - int(record.oldest)) % ring, -int(copy)) for copy in idle]
    return free < record.free_wanted and idle[age.index(min(age))] == at.index


PREDICATES: Final[Mapping[str, Callable[[At], bool]]] = {
    "all_edges_fired": _all_edges_fired,
    "due": _due,
    "play_failed": _play_failed,
    "play_closing": _play_closing,
    "before_cut": _before_cut,
    "all_over": _all_over,
    "all_completed": _all_completed,
    "cache_on": _cache_on,
    "last_reference": _last_reference,
    "no_free_block": _no_free_block,
    "fits": _fits,
    "never_fits": _never_fits,
    "over_context": _over_context,
    "all_generated": _all_generated,
    "outgrew_pool": _outgrew_pool,
    "zero_tokens": _zero_tokens,
    "primers_ended": _primers_ended,
    "warmups_ended": _warmups_ended,
    "all_lanes_prepared": _all_lanes_prepared,
    "preparation_failed": _preparation_failed,
    "profile_over": _profile_over,
    "plays_settled": _plays_settled,
    "grace_over": _grace_over,
    "run_at_rest": _run_at_rest,
    "host_room": _host_room,
    "unpinned": _unpinned,
}
