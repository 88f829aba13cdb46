"""The driver of offline replay on a clock from outside, its requests served by whoever takes them.

Plays, lanes, edges, delays, failures and the run controls are the offline loop's own: its workers have no seats here
and so never start a pass. `step` moves the clock on and says what is to be sent and what to give up; `end` takes in how
a request ended.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_spec.certificate import ProvenGraph
from playproof_spec.deployment import DeploymentSpec, LoadSpec, WorkerSpec
from playproof_spec.digest import graph_digest
from playproof_spec.ledger import Ledger
from playproof_spec.machines import NodeState, PhaseState, RequestState

from playproof_kernel.checks.translation import compile_checked, settings_of
from playproof_kernel.driver import arrivals, play_driver
from playproof_kernel.ground.arrays import NONE, Heap, Play, Run, Sim
from playproof_kernel.ground.faults import ReplayFault
from playproof_kernel.ground.records import records
from playproof_kernel.runs import loop
from playproof_kernel.runs.controlled_ledger import ControlledLedger, Drain, ledger_of_controlled
from playproof_kernel.runs.controlled_setup import start_controlled
from playproof_kernel.runs.ledgers import ledger_of
from playproof_kernel.runs.loop import Stop
from playproof_kernel.runs.setup import new_sim
from playproof_kernel.runs.simulation import Simulation

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Order:
    """A request to send now.

    Attributes
    ----------
    slot : int
        Its name while it is under way.
    source : int
        Its node of the corpus.
    worker : int
        Where it goes, from 0.
    output : int
        Tokens wanted.
    ready : int
        When it was due, ns.
    namespace : str
        With whose prompts it may share cached blocks; "" where all may share.
    measured : bool
        False for preparation.
    serial : int
        Number of the request, never used again: its node in a finite run.
    """

    slot: int
    source: int
    worker: int
    output: int
    ready: int
    namespace: str
    measured: bool
    serial: int


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended. Times are ns on the driver's clock, NEVER (-1) for what did not happen.

    Attributes
    ----------
    outcome : RequestState
        FINISHED, REJECTED or FAILED.
    sent, first_token, second_token, last_token, terminal : int
    generated : int
    cached : int
        Prompt tokens found in cache, -1 if the server did not say.
    """

    outcome: RequestState
    sent: int
    first_token: int
    second_token: int
    last_token: int
    terminal: int
    generated: int
    cached: int


class LiveDriver:
    """A proven graph and a load, to be driven from outside.

    Parameters
    ----------
    proven : ProvenGraph
    load : LoadSpec
        Without `stop_ns` and cancellations.
    workers : int
        Between which requests go round.
    capture : bool
        Keep every request, under the run controls; else the finite ledger has them anyway.

    Raises
    ------
    InvalidSnapshot
        When the trace contradicts itself at a snapshot's cut.
    """

    def __init__(self, proven: ProvenGraph, load: LoadSpec, *, workers: int, capture: bool = False) -> None:
        graph = proven.graph
        # What serves the requests is not known here: neither its blocks nor its context.
        context = int((graph.input_length + graph.output_length).max()) + 2
        worker = WorkerSpec(blocks=1, block_size=graph.block_size, max_sequences=1)
        deployment = DeploymentSpec(workers=workers, worker=worker, context_length=context)
        self._drain: Drain | None = None
        self._digest = ""
        self._cuts: tuple[Any, ...] = ()
        if load.snapshot_seed is not None:
            self._digest = graph_digest(graph, shift_floors=False)
            sim, self._cuts = start_controlled(graph, self._digest, deployment, load)
            self._drain = Drain(graph, capture)
        else:
            # A server's caches are its own: blocks have no namespaces here.
            settings = settings_of(deployment, load)._replace(play_scope=False)
            compiled = compile_checked(graph, proven.certificate.graph_digest, settings)
            sim = new_sim(compiled, deployment, load)
            play_driver.start(sim)
        sim = sim._replace(running=np.zeros((workers, 0), np.int64))
        self._simulation = Simulation(sim, None if self._drain is None else self._drain.take)
        self._sim.config.max_sequences = 0
        self._by_play = load.play_scope
        self._placed: Int64 = np.zeros(len(self._sim.static), np.int64)
        self._out: set[int] = set()
        # How many requests were given up, and how many of them have been named.
        self._gave_up = self._canceled = 0
        self._closed = self._over = False

    @property
    def _sim(self) -> Sim:
        return self._simulation.sim

    def warm_up(self) -> None:
        """Let the kernel compile what a run needs, before its clock starts; nothing of the run happens."""
        # Each is called where it has nothing to do: on no instants, no requests, no plays.
        loop.run(self._sim, 0)
        arrivals.hand_over(self._sim, self._placed)
        arrivals.take_end(self._sim, 0, int(RequestState.FAILED), int(NONE))
        empty = self._sim._replace(plays=records(0, Play), run=records(1, Run))
        arrivals.close_admission(empty)
        arrivals.close_plays(empty)

    # Time ------------------------------------------------------------------------------------------------------------

    def step(self, now: int) -> tuple[list[Order], list[int]]:
        """Let all happen that is due by `now`, ns, which never goes back.

        Returns
        -------
        orders : list of Order
            What is to be sent now, in the order of its being due.
        given_up : list of int
            Slots under way whose client has given up: their connections are to be closed, and nothing said of them.
        """
        run, config = self._sim.run[0], self._sim.config[0]
        # Everything that was due before happens now, and nothing in the past.
        run.now = config.end = max(now, int(run.now))
        run.scanned = 0
        stop = Stop.SLICE
        while stop == Stop.SLICE:
            stop = self._simulation.advance()
        self._over = stop in (Stop.DONE, Stop.OVER)
        if run.no_identity:
            raise ReplayFault("the profile ran out of cache identities")
        return self._orders(), self._given_up()

    def _orders(self) -> list[Order]:
        count = arrivals.hand_over(self._sim, self._placed)
        orders = [self._order(slot) for slot in self._placed[:count].tolist()]
        orders.sort(key=lambda order: (order.ready, order.serial))
        self._out.update(order.slot for order in orders)
        return orders

    def _order(self, slot: int) -> Order:
        static, record = self._sim.static[slot], self._sim.live[slot]
        return Order(
            slot=slot,
            source=int(static.source),
            worker=int(record.worker),
            output=int(static.limit),
            ready=int(record.ready),
            namespace=self._namespace(slot),
            measured=int(static.play) != NONE,
            serial=int(static.serial),
        )

    def _namespace(self, slot: int) -> str:
        """Return the cache namespace of a slot: that of its play instance, or of the corpus."""
        static, config = self._sim.static[slot], self._sim.config[0]
        if self._drain is not None:
            # Preparation and the first play of its lane have one namespace.
            return f"instance-{int(static.space) // max(int(config.key_span), 1)}"
        return f"play-{int(static.play)}" if self._by_play else ""

    def _given_up(self) -> list[int]:
        canceled = int(self._sim.run[0].canceled) if self._drain is not None else self._gave_up
        if canceled == self._canceled:
            return []
        self._canceled = canceled
        out = np.array(sorted(self._out), np.int64)
        gone: list[int] = out[self._sim.node_state[out] == int(NodeState.CANCELED)].tolist()
        self._out.difference_update(gone)
        return gone

    @property
    def upcoming(self) -> int | None:
        """The next instant at which something is due by itself, or None."""
        upcoming = int(self._sim.run[0].upcoming)
        return None if upcoming == NONE else upcoming

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        run = self._sim.run[0]
        return self._over or bool(self._closed and self._drain is None and run.in_flight == 0)

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._out)

    @property
    def finished(self) -> int:
        """Requests that are over, those that will never be issued included."""
        return int(self._sim.run[0].finished)

    @property
    def measuring_since(self) -> int | None:
        """When the barrier opened; 0 in a finite run, None while preparation goes on."""
        if self._drain is None:
            return 0
        start = int(self._sim.run[0].profile_start)
        return None if start < 0 else start

    # What comes from outside -----------------------------------------------------------------------------------------

    def end(self, slot: int, end: End) -> None:
        """Take in how the request in `slot` ended; the next `step` acts upon it."""
        self._out.discard(slot)
        record = self._sim.live[slot]
        record.dispatched = max(end.sent, int(record.dispatched))
        record.first_token, record.second_token = end.first_token, end.second_token
        record.last_token, record.generated = end.last_token, end.generated
        record.terminal = end.terminal
        arrivals.take_end(self._sim, slot, int(end.outcome), end.cached)

    def close(self, grace: int) -> None:
        """End admission at the instant of the last `step`: nothing is issued any more.

        What is under way is left alone; under the run controls it is given up `grace` ns later, as at a profile's end.
        Preparation cannot be cut short: `give_up_all` makes the run invalid.
        """
        self._closed = True
        run, config = self._sim.run[0], self._sim.config[0]
        if self._drain is None:
            arrivals.close_admission(self._sim)
        elif self._sim.phase_state[0] == PhaseState.PROFILE:
            config.profile = 1
            config.duration = run.now - run.profile_start
            config.grace = grace
        elif self._sim.phase_state[0] == PhaseState.GRACE:
            config.grace = min(config.grace, run.now - run.profile_start - config.duration + grace)

    @property
    def preparing(self) -> bool:
        """Whether the barrier has not opened yet."""
        return bool(self._drain is not None and self._sim.phase_state[0] <= PhaseState.BARRIER)

    def give_up_all(self) -> list[int]:
        """Give up on every request under way in a finite run that is closed, and return their slots.

        The next `step` names them as given up.
        """
        slots = sorted(self._out)
        self._gave_up += len(slots)
        arrivals.close_plays(self._sim)
        cancellations = records(len(slots), Heap)
        cancellations.time = self._sim.run[0].now
        cancellations.node = slots
        self._simulation.sim = self._sim._replace(cancellations=cancellations)
        self._sim.run[0].next_cancellation = 0
        return slots

    # Results ---------------------------------------------------------------------------------------------------------

    def ledger(self, gap_ns: Int64, gap_count: Int64) -> Ledger | ControlledLedger:
        """Return the ledger of a run that is over, with the gaps between tokens that its caller counted.

        Times of admissions are -1, and what workers did is 0: only they know.
        """
        if self._drain is None:
            ledger = ledger_of(self._sim)
            return dataclasses.replace(ledger, gap_ns=gap_ns, gap_count=gap_count)
        ledger_ = ledger_of_controlled(self._sim, self._digest, self._cuts, self._drain)
        return dataclasses.replace(ledger_, gap_ns=gap_ns, gap_count=gap_count)
