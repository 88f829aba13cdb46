"""Runs beside the models that the machine proofs are about: every step of the kernel must be a move of the model.

Each object (a play, a node, a request, a block, …) has a model state of its own. An event takes the move of its entry:
the move must be enabled, with the guards' truth taken from the run, and the invariant must hold after it. What the
model says an object holds is compared with the arrays whenever the loop has taken a turn; between two events of one
compound step (a node's failure and its play's) nothing may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from formulas import compiled, holds
from playproof_kernel.checks.guards import At, nodes_of_play
from playproof_kernel.ground import lifecycle
from playproof_kernel.ground.arrays import DEFERRED, NONE, READY, WAITING
from playproof_spec import models
from playproof_spec.machines import (
    BLOCK,
    HANDOFF_DESTINATION_FIRST,
    HANDOFF_SOURCE_FIRST,
    HOST_BLOCK,
    LANE,
    MACHINES,
    NODE,
    PHASE,
    PLAY,
    REQUEST,
    TRANSFER,
    BlockState,
    HostBlockState,
    LaneState,
    NodeEvent,
    NodeState,
    PlayEvent,
    PlayState,
    RequestState,
)

Values = dict[str, Any]
TABLES = {machine.name: machine for machine in MACHINES}
MODELS: Mapping[str, models.Model] = {
    "play": models.play_model(NODE, PLAY),
    "node": models.node_model(NODE),
    "lane": models.lane_model(LANE),
    "phase": models.phase_model(PHASE),
    "request": models.request_model(REQUEST),
    "handoff_source_first": models.handoff_model(HANDOFF_SOURCE_FIRST),
    "handoff_destination_first": models.handoff_model(HANDOFF_DESTINATION_FIRST),
    "pool": models.pool_model(BLOCK),
    "block": models.block_model(BLOCK),
    "host_block": models.host_block_model(HOST_BLOCK),
    "transfer": models.transfer_model(TRANSFER),
}
INVARIANTS = {name: f"(and {' '.join(model.invariant.values())} true)" for name, model in MODELS.items()}
ENTRIES = {name: {move.entry: move for move in model.moves if move.entry is not None} for name, model in MODELS.items()}
STEPS = {name: {move.name: move for move in model.moves if move.entry is None} for name, model in MODELS.items()}
ENDS = (NodeEvent.REJECT, NodeEvent.FAIL, NodeEvent.CANCEL)


class NotAMove(AssertionError):
    """A step of the kernel that the model does not have."""


def _take(model: str, values: Values, move: models.Move, inputs: Mapping[str, bool]) -> None:
    before = {**values, **inputs}
    if not holds(move.enabled, before):
        raise NotAMove(f"{move.name} is not enabled in the {model} model at {before}")
    values.update({name: compiled(term)(before) for name, term in move.updates.items()})
    if not holds(INVARIANTS[model], values):
        broken = [words for words, part in MODELS[model].invariant.items() if not holds(part, values)]
        raise NotAMove(f"{move.name} leaves the {model} model at {values}: {broken}")


def _new(model: str, **given: Any) -> Values:
    values: Values = {name: 0 if sort == "Int" else False for name, sort in MODELS[model].variables.items()}
    values.update(given)
    assert holds(MODELS[model].initial, values), (model, values)
    return values


def _same(what: str, model: object, run: object) -> None:
    if model != run:
        raise NotAMove(f"{what}: the model has {model}, the run {run}")


@dataclass
class Refinement:
    """The models of one run. `event` is told of every event before its guard's machine moves, `boundary` of turns."""

    plays: dict[int, Values] = field(default_factory=dict)
    nodes: dict[int, Values] = field(default_factory=dict)
    requests: dict[int, Values] = field(default_factory=dict)
    handoffs: dict[int, Values] = field(default_factory=dict)
    blocks: dict[tuple[int, int], Values] = field(default_factory=dict)
    pools: dict[int, Values] = field(default_factory=dict)
    host_blocks: dict[tuple[int, int], Values] = field(default_factory=dict)
    transfers: dict[int, Values] = field(default_factory=dict)
    lanes: Values | None = None
    phase: Values | None = None
    failing: int | None = None  # play whose node has failed, and which has not been told
    over: set[int] = field(default_factory=set)  # requests that ended, and were compared once more since
    moves: int = 0
    touched: set[tuple[str, int]] = field(default_factory=set)  # since the last boundary

    def renewed(self, machine: str, index: int) -> None:
        """Another life begins."""
        if machine == "request":
            self.over.discard(index)
        {
            "play": self.plays,
            "node": self.nodes,
            "request": self.requests,
            "handoff_source_first": self.handoffs,
            "handoff_destination_first": self.handoffs,
            "transfer": self.transfers,
        }[machine].pop(index, None)

    def event(self, at: At, guards: Mapping[str, bool]) -> None:
        """Take the move of an event that is about to be raised; `guards` has the truth of the entry's guard."""
        self.moves += 1
        if at.machine in ("node", "play", "transfer") or at.machine.startswith("handoff"):
            self.touched.add((at.machine.partition("_")[0], at.index))
        state = TABLES[at.machine].states(int(at.states[at.index]))
        event = TABLES[at.machine].events(at.event)
        entry = (at.machine, state, event)
        if self.failing is not None and not (at.machine == "play" and event == PlayEvent.NODE_FAILED):
            raise NotAMove(f"{entry} comes between a node's failure and its play's")
        if at.machine == "node":
            self._node(at, entry, guards)
        elif at.machine == "play":
            self._play(at, entry, guards)
        elif at.machine == "lane":
            self._lane(at, entry, guards)
        elif at.machine == "phase":
            self._phase(at, entry, guards)
        elif at.machine == "request":
            values = self._request(at.sim, at.index)
            _settle_memory(at.sim, at.index, values)
            _take("request", values, ENTRIES["request"][entry], _inputs("request", guards))
        elif at.machine.startswith("handoff"):
            values = self.handoffs.setdefault(at.index, _new(at.machine))
            _take(at.machine, values, ENTRIES[at.machine][entry], _inputs(at.machine, guards))
        elif at.machine == "block":
            self._block(at, entry, guards)
        elif at.machine == "host_block":
            self._host_block(at, entry, guards)
        else:
            values = self.transfers.setdefault(at.index, _new("transfer"))
            _take("transfer", values, ENTRIES["transfer"][entry], {})

    # Nodes and plays ----------------------------------------------------------------------------------------------

    def _counted(self, sim: Any, play: int) -> Values:
        if play not in self.plays:
            count = len(nodes_of_play(sim, play))
            self.plays[play] = _new("play", N=count, n0=count)
        return self.plays[play]

    def _node(self, at: At, entry: Any, guards: Mapping[str, bool]) -> None:
        sim, node, event = at.sim, at.index, entry[2]
        values = self.nodes.setdefault(node, _new("node"))
        if event == NodeEvent.RELEASE and guards.get("all_edges_fired") and not values["fired"]:
            _take("node", values, STEPS["node"]["the last edge fires"], {})
        if event == NodeEvent.DISPATCH and guards.get("due") and not values["come"]:
            _take("node", values, STEPS["node"]["the ready time comes"], {})
        _take("node", values, ENTRIES["node"][entry], {})
        play = int(sim.static[node].play)
        if play == NONE:
            return
        counted = self._counted(sim, play)
        before = counted["p"]
        inputs = {
            "releasable": guards.get("all_edges_fired", False),
            "time": guards.get("due", False),
            "first": guards.get("before_cut", False),
        }
        _take("play", counted, ENTRIES["play"][entry], inputs)
        if event in ENDS and before != PlayState.CLOSING:
            self.failing = play

    def _play(self, at: At, entry: Any, guards: Mapping[str, bool]) -> None:
        if entry[2] == PlayEvent.NODE_FAILED:
            _same("the play that a failure stops", self.failing, at.index)
            self.failing = None
            return  # it moved with the node
        values = self._counted(at.sim, at.index)
        _take("play", values, ENTRIES["play"][entry], {"releasable": False, "time": False, "first": False})

    def _lane(self, at: At, entry: Any, guards: Mapping[str, bool]) -> None:
        if self.lanes is None:
            counts = np.bincount(at.sim.lane_state, minlength=len(LaneState)).tolist()
            self.lanes = _new("lane", lanes=len(at.sim.lane_state), l0=len(at.sim.lane_state))
            assert counts[0] == len(at.sim.lane_state), "the lanes were not watched from the start"
        _take("lane", self.lanes, ENTRIES["lane"][entry], _inputs("lane", guards))

    def _phase(self, at: At, entry: Any, guards: Mapping[str, bool]) -> None:
        sim = at.sim
        begin = int(sim.config[0].prep_begin)
        left = [n for n in range(len(sim.prep)) if sim.node_state[begin + n] <= NodeState.DISPATCHED]
        if self.phase is None:
            self.phase = _new("phase", warmups=len(sim.prep))
        primers = sum(bool(sim.prep[number].primer) for number in left)
        failed = bool(sim.run[0].prep_failed != NONE)
        work = int(sim.run[0].unsettled + sim.run[0].in_flight) if self.phase["s"] < 3 else 0
        self.phase.update(primers=primers, warmups=len(left) - primers, failed=failed, work=work)
        _take("phase", self.phase, ENTRIES["phase"][entry], _inputs("phase", guards))

    # Requests -----------------------------------------------------------------------------------------------------

    def _request(self, sim: Any, request: int) -> Values:
        if request not in self.requests:
            split = sim.config.shape[0] > 1
            decode = split and request >= lifecycle.nodes_of(sim)
            silent = bool(sim.static[request].limit == 0)
            self.requests[request] = _new("request", prefill=split and not decode, decode=decode, silent=silent)
        return self.requests[request]

    def _check_requests(self, sim: Any) -> None:
        if sim.config[0].max_sequences == 0:
            return  # the engine is a server of its own
        places = _places(sim)
        for request, values in list(self.requests.items()):
            if request in self.over and values["s"] > RequestState.PREEMPTED and not values["memory"]:
                continue
            _same(f"state of request {request}", values["s"], int(sim.request_state[request]))
            _settle_memory(sim, request, values)
            if _waits_for_cleanup(sim, request) and values["s"] <= RequestState.PREEMPTED:
                continue  # canceled in the middle of a pass; what it holds goes at the end of that
            memory = bool(sim.live[request].table_len > 0)
            _same(f"memory of request {request} in state {values['s']}", values["memory"], memory)
            if values["s"] > RequestState.PREEMPTED and not memory:
                self.over.add(request)
            place = places.get(request, models.NOWHERE)
            _same(f"place of request {request} in state {values['s']}", values["place"], place)

    # Blocks -------------------------------------------------------------------------------------------------------

    def _block(self, at: At, entry: Any, guards: Mapping[str, bool]) -> None:
        worker = at.row(at.sim.block_state)
        if worker not in self.pools:
            blocks = int(at.sim.config[at.sim.workers[worker].role].blocks)
            self.pools[worker] = _new("pool", capacity=blocks, free=blocks)
        _take("pool", self.pools[worker], ENTRIES["pool"][entry], {})
        values = self.blocks.setdefault((worker, at.index), _new("block"))
        _share(
            values, "refs", _references(at), "block", "one more shares the block", "one of several lets go of the block"
        )
        inputs = {"cache_on": guards.get("cache_on", False), "short": guards.get("no_free_block", False)}
        _take("block", values, ENTRIES["block"][entry], inputs)

    def _host_block(self, at: At, entry: Any, guards: Mapping[str, bool]) -> None:
        row = at.row(at.sim.host_state)
        values = self.host_blocks.setdefault((row, at.index), _new("host_block"))
        if entry[1] == HostBlockState.PINNED:
            wanted = int(at.sim.host_details[row][at.index].link) + 1  # it is lowered before the event
            _share(values, "pins", wanted, "host_block", *list(STEPS["host_block"]))
        _take("host_block", values, ENTRIES["host_block"][entry], _inputs("host_block", guards))

    def _check_blocks(self, sim: Any) -> None:
        # As lists: the records are looked at a thousand times a run.
        block_states = [row.tolist() for row in sim.block_state]
        references = [row["refs"].tolist() for row in sim.frames]
        for (worker, copy), values in self.blocks.items():
            if values["s"] != block_states[worker][copy]:
                _same(f"state of block {copy} of worker {worker}", values["s"], block_states[worker][copy])
            if values["refs"] > 0 and values["refs"] != references[worker][copy]:
                _share(values, "refs", references[worker][copy], "block", *list(STEPS["block"]))
        for worker, counts in self.pools.items():
            states = np.bincount(sim.block_state[worker], minlength=len(BlockState))
            used = dict.fromkeys(counts, 0)
            for state in BlockState:
                used[models.POOL_COUNTER[state.name]] += int(states[state])
            used["free"] = counts["capacity"] - int(states.sum() - states[BlockState.FREE])
            for name in ("free", "private", "active", "idle", "loading"):
                _same(f"{name} blocks of worker {worker}", counts[name], used[name])
        for (row, place), values in self.host_blocks.items():
            _same(f"state of host block {place}", values["s"], int(sim.host_state[row][place]))
            if values["s"] == HostBlockState.PINNED:
                _share(values, "pins", int(sim.host_details[row][place].link), "host_block", *list(STEPS["host_block"]))

    # ---------------------------------------------------------------------------------------------------------------

    def boundary(self, sim: Any) -> None:
        """Compare the models with the arrays, after a turn of the loop."""
        _same("a play that waits to hear of a failure", self.failing, None)
        touched, self.touched = self.touched, set()
        # What was given to another life within the turn has none to be compared.
        nodes = [index for kind, index in touched if kind == "node" and index in self.nodes]
        plays = {int(sim.static[node].play) for node in nodes} | {index for kind, index in touched if kind == "play"}
        for play in plays & self.plays.keys():
            values = self.plays[play]
            counts = np.bincount(sim.node_state[nodes_of_play(sim, play)], minlength=len(NodeState)).tolist()
            _same(f"nodes of play {play}", [values[name] for name in models.COUNTERS], counts)
            _same(f"state of play {play}", values["p"], int(sim.play_state[play]))
        for node in nodes:
            _same(f"state of node {node}", self.nodes[node]["s"], int(sim.node_state[node]))
        if self.lanes is not None:
            counts = np.bincount(sim.lane_state, minlength=len(LaneState)).tolist()
            _same("lanes", [self.lanes[f"l{state:d}"] for state in LaneState], counts)
            _same("plays of lanes", self.lanes["open"], _open_plays(sim))
        if self.phase is not None:
            _same("phase", self.phase["s"], int(sim.phase_state[0]))
        self._check_requests(sim)
        for node in [index for kind, index in touched if kind == "handoff" and index in self.handoffs]:
            values = self.handoffs[node]
            _same(f"handoff of node {node}", values["s"], int(sim.handoff_state[node]))
            for fact, column in (("computed", "held"), ("granted", "reserved"), ("landed", "activated")):
                _same(f"{fact} of node {node}", values[fact], bool(sim.handoffs[node][column] != NONE))
        self._check_blocks(sim)
        for row in [index for kind, index in touched if kind == "transfer" and index in self.transfers]:
            _same(f"copy {row}", self.transfers[row]["s"], int(sim.host_transfer_state[row]))


def _settle_memory(sim: Any, request: int, values: Values) -> None:
    """Take the step without an event by which a request has got memory, or lost it."""
    memory, state = bool(sim.live[request].table_len > 0), values["s"]
    if memory and not values["memory"] and values["decode"] and state == RequestState.PLACED:
        _take("request", values, STEPS["request"]["a destination is reserved"], _inputs("request", {}))
    elif values["memory"] and not memory and values["prefill"] and state == RequestState.FINISHED:
        _take("request", values, STEPS["request"]["a source is released"], _inputs("request", {}))
    elif values["memory"] and not memory and values["silent"] and state == RequestState.RUNNING:
        step = STEPS["request"]["one that asks for no token lets go before its pass ends"]
        _take("request", values, step, _inputs("request", {}))


def _inputs(model: str, guards: Mapping[str, bool]) -> dict[str, bool]:
    return {name: guards.get(name, False) for name in MODELS[model].inputs}


def _share(values: Values, name: str, wanted: int, model: str, more: str, less: str) -> None:
    """Take as many steps without an event as it needs for the count to be `wanted`."""
    while values[name] != wanted:
        step = STEPS[model][more if values[name] < wanted else less]
        _take(model, values, step, _inputs(model, {}))


def _references(at: At) -> int:
    """Return how many references the block had before the event, whose own step may be done already."""
    refs = int(at.sim.frames[at.row(at.sim.block_state)][at.index].refs)
    state = int(at.states[at.index])
    if BLOCK.events(at.event).name == "RELEASE":
        return refs + 1
    return max(refs, 0) if state != BlockState.FREE else 0


def _open_plays(sim: Any) -> int:
    if sim.config[0].controls != 0:
        return int(sim.run[0].occupied)
    over = (PlayState.PENDING, PlayState.COMPLETED, PlayState.FAILED, PlayState.INCOMPLETE)
    return int(np.count_nonzero((sim.plays.lane != NONE) & ~np.isin(sim.play_state, over)))


def _queue(links: Any, head: int) -> list[int]:
    entries = []
    while head != NONE:
        entries.append(int(head))
        head = int(links[head].next)
    return entries


def _places(sim: Any) -> dict[int, int]:
    """Return where each request is that waits or runs; one between two chunks of its prompt has a seat."""
    places: dict[int, int] = {}
    for worker in range(len(sim.workers)):
        for queue in (WAITING, READY, DEFERRED):
            for request in _queue(sim.live, int(sim.queues[worker, queue].head)):
                runs = sim.request_state[request] == RequestState.RUNNING
                places[request] = models.SEATED if runs else models.QUEUED
        for request in sim.running[worker, : sim.workers[worker].running]:
            places[int(request)] = models.SEATED
    return places


def _waits_for_cleanup(sim: Any, request: int) -> bool:
    return bool(sim.tickets[request].canceled != 0)
