"""One worker of the kernel whose requests arrive while it runs: the engine under a mock server.

It is the offline loop over a corpus of empty slots. A request takes a slot, is dispatched at once, and is scheduled as
ever; passes end at their own instants, however late the caller looks, so that its clock does not drift. The caller
moves time on with `advance` and reads what was generated.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.machines import BlockState, NodeState, RequestState

from playproof_kernel.corpus.compiled import CompiledGraph
from playproof_kernel.corpus.live_keys import Chains
from playproof_kernel.driver import arrivals
from playproof_kernel.engines.engine import engine_of
from playproof_kernel.ground.arrays import NODES, NONE, PLAYS, REQUESTS, Edge, Heap, Keys, Sim, Static
from playproof_kernel.ground.key_groups import GROUP
from playproof_kernel.ground.records import enlarged, records
from playproof_kernel.memory.block_pool import GENERATED, SERIALS_BELOW
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.setup import new_sim
from playproof_kernel.runs.simulation import Simulation

_DISPATCHED, _NOT_YET = int(NodeState.DISPATCHED), int(NONE)

Int64 = npt.NDArray[np.int64]
Uint32 = npt.NDArray[np.uint32]

# Slots beyond the seats at the start; they double when they are short.
SLOTS = 1024
# Distinct gaps between tokens that may stay in their table, which is not read here and takes time to empty.
GAPS_KEPT = 4096


class Progress(NamedTuple):
    """What became of a request since the last look.

    Attributes
    ----------
    slot : int
    generated : int
        Tokens generated so far.
    cached : int
        Prompt tokens found in cache at its first admission, -1 before.
    outcome : RequestState or None
        How it ended; None while it goes on. The slot may be taken again afterwards.
    """

    slot: int
    generated: int
    cached: int
    outcome: RequestState | None


@dataclass(frozen=True, slots=True)
class Counters:
    """What the engine did since it began, and what it holds now. Times are ns."""

    passes: int
    busy_ns: int
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    evictions: int
    queried_tokens: int
    cached_tokens: int
    running: int
    waiting: int
    blocks: int
    used_blocks: int


class LiveEngine:
    """One aggregated vLLM or SGLang worker, pass by pass.

    Parameters
    ----------
    deployment : DeploymentSpec
        Its worker; how many there are is not looked at. No decode role, no speculation: a draw is numbered by the
        trace's requests, which a server does not see.
    """

    def __init__(self, deployment: DeploymentSpec) -> None:
        if deployment.decode is not None or deployment.speculation is not None:
            raise ValueError("a live engine is one aggregated worker without speculation")
        deployment = dataclasses.replace(deployment, workers=1)
        worker = deployment.worker
        self._keeps_tree = engine_of(worker).keeps_tree
        self._block_size = worker.block_size
        slots = worker.max_sequences + SLOTS
        static = records(slots, Static)
        static.table_size = worker.blocks
        static.source = static.play = np.arange(slots)
        graph = CompiledGraph(
            static=static,
            edges=records(0, Edge),
            keys=records(4 * slots, Keys),
            play_begin=np.arange(slots + 1),
            play_nodes=np.arange(slots),
            key_stride=1,
            key_span=GENERATED,
        )
        self._simulation = Simulation(new_sim(graph, deployment, LoadSpec(macro_steps=False)), self._read_logs)
        self._sim.config[0].end = 0
        self._sim.run[0].upcoming = NONE
        self.context = deployment.context_length
        self._chains = Chains(worker.block_size)
        self._keys_used = 0
        self._serial = 0
        self._free = list(range(slots - 1, -1, -1))
        self._over: list[int] = []  # slots whose request is over for its client, and that may still be held
        self._active: list[int] = []
        self._told: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._canceled: list[int] = []
        self._queried = self._hit = 0

    @property
    def _sim(self) -> Sim:
        return self._simulation.sim

    @property
    def upcoming(self) -> int | None:
        """The next instant at which something happens without an arrival, or None."""
        upcoming = int(self._sim.run[0].upcoming)
        return None if upcoming == NONE else upcoming

    # Time ------------------------------------------------------------------------------------------------------------

    def advance(self, now: int) -> list[Progress]:
        """Let all happen that is due by `now`, ns, and return what became of requests. Time never goes back."""
        run, config = self._sim.run[0], self._sim.config[0]
        if self._canceled:
            # Only what was dispatched can be canceled, so what has just arrived comes first.
            config.end = run.now
            self._go_on()
            self._cancel_now()
        now = max(now, int(run.now))
        config.end = now
        self._go_on()
        # With nothing due the loop leaves the clock where it was.
        if run.now < now:
            run.now, run.scanned = now, 0
        return self._progress()

    def _go_on(self) -> None:
        while self._simulation.advance() == Stop.SLICE:
            pass

    def _read_logs(self, sim: Sim) -> None:
        """Take note of admissions, and forget gaps once there are many: the client measures them."""
        run = sim.run[0]
        for admission in sim.admissions[: int(run.admissions)]:
            slot = int(admission.request)
            if admission.ordinal == 0:
                self._cached[slot] = int(admission.reused)
                self._queried += int(sim.static[slot].input)
                self._hit += int(admission.reused)
        run.admissions = 0
        if run.gaps > GAPS_KEPT:
            sim.gaps["count"] = 0
            run.gaps = 0

    def _progress(self) -> list[Progress]:
        if not self._active:
            return []
        slots = np.array(self._active)
        generated = self._sim.live["generated"][slots].tolist()
        over = (self._sim.node_state[slots] > _DISPATCHED).tolist()
        told, cached = self._told, self._cached
        progress: list[Progress] = []
        ended = False
        for slot, tokens, ends in zip(self._active, generated, over, strict=True):
            if ends:
                ended = True
                progress.append(Progress(slot, tokens, cached.pop(slot, _NOT_YET), self._outcome(slot)))
                self._over.append(slot)
                del told[slot]
            elif tokens != told[slot]:
                told[slot] = tokens
                progress.append(Progress(slot, tokens, cached.get(slot, _NOT_YET), None))
        if ended:
            self._active = [slot for slot in self._active if slot in told]
        return progress

    def _outcome(self, slot: int) -> RequestState:
        if self._sim.node_state[slot] == NodeState.CANCELED:
            return RequestState.CANCELED
        return RequestState(int(self._sim.request_state[slot]))

    # Requests --------------------------------------------------------------------------------------------------------

    def arrive(self, tokens: Uint32, output: int, namespace: str = "") -> int:
        """Let a request arrive at the instant of the last `advance`, and return its slot.

        Parameters
        ----------
        tokens : Uint32
            Its prompt, at least one token.
        output : int
            Tokens wanted; the context limit may cut them.
        namespace : str
            It shares cached blocks with requests of the same namespace alone.
        """
        slot = self._take_slot()
        if self._chains.crowded:
            self._forget()
        runs = self._chains.intern(tokens, namespace)
        begin = self._room_for_keys(len(runs))
        keys, number = self._sim.keys, 0
        for place, (first, count) in enumerate(runs, begin):
            keys.first[place], keys["count"][place], keys.begin[place] = first, count, number
            number += count
        self._keys_used = begin + len(runs)
        static = self._sim.static[slot]
        static.input = len(tokens)
        static.limit = min(output, max(self.context - len(tokens), 0))
        blocks = -(-(static.input + static.limit) // self._block_size)
        static.table_size = min(blocks, int(self._sim.config[0].blocks))
        static.key_begin, static.key_end = begin, begin + len(runs)
        static.answer_end, static.keyed = static.key_end, static.input // self._block_size
        arrivals.arrive(self._sim, slot, self._serial)
        # Numbers come round after 2^31 requests: the caches have long forgotten the output of the first.
        self._serial = (self._serial + 1) % SERIALS_BELOW
        self._active.append(slot)
        self._told[slot] = 0
        return slot

    def cancel(self, slot: int) -> None:
        """Give up on the request in `slot`, which is not over: the next `advance` cancels it before all else."""
        self._canceled.append(slot)

    def _cancel_now(self) -> None:
        cancellations = records(len(self._canceled), Heap)
        cancellations.time = self._sim.run[0].now
        cancellations.node = self._canceled
        self._simulation.sim = self._sim._replace(cancellations=cancellations)
        self._sim.run[0].next_cancellation = 0
        self._canceled.clear()

    @property
    def free_addresses(self) -> int:
        """Slots that can be taken at once."""
        return len(self._free)

    @property
    def slots(self) -> int:
        return len(self._sim.static)

    @property
    def chains(self) -> Chains:
        """The prompts known to the worker."""
        return self._chains

    def _take_slot(self) -> int:
        if not self._free:
            self._sweep()
            # A sweep costs as much as there is, so it has to bring something.
            if len(self._free) < self.slots // 4:
                self._double_slots()
        return self._free.pop()

    def _engaged(self, slot: int) -> bool:
        ticket = self._sim.tickets[slot]
        return bool(ticket.action != 0 or ticket.hold != 0 or self._sim.live[slot].table_len != 0)

    def _owned(self) -> Int64:
        """Return, for each slot, before which page a node of the radix tree may hold pages of its prompt."""
        owned = np.zeros(self.slots, np.int64)
        if self._keeps_tree:
            tree = self._sim.tree[0, 1 : int(self._sim.workers[0].tree_used)]
            # Nodes on the free list count as well until they are used again: too much is kept, never too little.
            np.maximum.at(owned, tree.owner, tree.end)
        return owned

    def _sweep(self) -> None:
        """Free the slots that neither a client, nor the engine, nor its cache has a use for."""
        owned = self._owned()
        held = []
        for slot in self._over:
            if owned[slot] > 0 or self._engaged(slot):
                held.append(slot)
            else:
                self._free.append(slot)
        self._over = held

    def _double_slots(self) -> None:
        sim, slots = self._sim, self.slots
        more = np.arange(slots, 2 * slots)
        larger = enlarged(sim, dict.fromkeys((REQUESTS, NODES, PLAYS), 2 * slots))
        self._simulation.sim = larger._replace(play_nodes=np.concatenate((sim.play_nodes, more)))
        static, plays = self._sim.static, self._sim.plays
        static.source[more] = static.play[more] = more
        plays.node_begin[more], plays.node_end[more] = more, more + 1
        self._free.extend(reversed(more.tolist()))

    # Memory of prompts -----------------------------------------------------------------------------------------------

    def _retained(self) -> list[int]:
        """Return the slots whose block keys are needed."""
        return self._active + self._over

    def _room_for_keys(self, number: int) -> int:
        """Return where `number` runs of keys can be written; runs of slots that are free are dropped when needed."""
        if self._keys_used + number <= len(self._sim.keys):
            return self._keys_used
        self._sweep()
        sim, retained = self._sim, self._retained()
        sizes = sim.static.key_end[retained] - sim.static.key_begin[retained]
        used = int(sizes.sum())
        keys = records(max(len(sim.keys), 2 * (used + number)), Keys)
        at = 0
        for slot, size in zip(retained, sizes.tolist(), strict=True):
            begin = int(sim.static[slot].key_begin)
            keys[at : at + size] = sim.keys[begin : begin + size]
            sim.static[slot].key_begin, sim.static[slot].key_end = at, at + size
            sim.static[slot].answer_end = at + size
            at += size
        self._simulation.sim = sim._replace(keys=keys)
        return at

    def _forget(self) -> None:
        """Let the trie forget prompts that neither a request nor the cache knows any more."""
        self._sweep()
        sim, owned = self._sim, self._owned()
        first, count = [], []
        active = set(self._active)
        for slot in self._retained():
            static = sim.static[slot]
            runs = sim.keys[int(static.key_begin) : int(static.key_end)]
            whole = slot in active or self._engaged(slot)
            upto = runs["count"] if whole else np.clip(owned[slot] - runs.begin, 0, runs["count"])
            first.append(runs["first"])
            count.append(upto)
        if not self._keeps_tree:
            states = sim.block_state[0]
            cached = (states == BlockState.CACHED_ACTIVE) | (states == BlockState.CACHED_IDLE)
            places = sim.frames["place"][0, cached].astype(np.int64)
            keys = sim.key_groups["number"][0, places // GROUP] * GROUP + places % GROUP
            keys = keys[keys < GENERATED]
            first.append(keys)
            count.append(np.ones(len(keys), np.int64))
        nothing = np.zeros(0, np.int64)
        self._chains.forget(np.concatenate([nothing, *first]), np.concatenate([nothing, *count]))

    # Evidence --------------------------------------------------------------------------------------------------------

    def counters(self) -> Counters:
        """Return what the engine did so far."""
        record, config = self._sim.workers[0], self._sim.config[0]
        running = int(record.running)
        return Counters(
            passes=int(record.passes),
            busy_ns=int(record.busy),
            prefill_tokens=int(record.prefill_tokens),
            decode_tokens=int(record.decode_tokens),
            preemptions=int(record.preemptions),
            evictions=int(record.evictions),
            queried_tokens=self._queried,
            cached_tokens=self._hit,
            running=running,
            # What its client has given up may run to the end of its pass, and waits for nothing.
            waiting=sum(int(self._sim.request_state[slot]) != RequestState.RUNNING for slot in self._active),
            blocks=int(config.blocks),
            used_blocks=int(config.blocks - record.free - record.idle),
        )
