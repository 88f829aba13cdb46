"""The kernel's second door: a run under snapshot, warmup and profile.

Plays run as instances in a fixed number of seats, so that memory does not grow with the length of a profile: what ended
is drained from the compiled run between slices, and reduced there. Without capture the run keeps four figures of each
completed request (its latencies, for exact percentiles) and one record of each play; with it, all of each request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_spec.certificate import ProvenGraph
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.digest import graph_digest
from playproof_spec.graph import Graph
from playproof_spec.ledger import NEVER, Float64, Int64
from playproof_spec.machines import NodeState, PhaseState, RequestState
from playproof_spec.units import ms_to_ns

from playproof_kernel.checks.translation import (
    compile_checked,
    refuse_wrong_namespaces,
    refuse_wrong_seats,
    settings_of,
)
from playproof_kernel.corpus.compiled import CompiledGraph
from playproof_kernel.engines.passes import MAX_VARYING_PASSES
from playproof_kernel.ground.arrays import (
    HANDED_OVER,
    NODES,
    NONE,
    PLAYS,
    PREPARED,
    TRANSFERS,
    Admission,
    Ended,
    Handoff,
    Kept,
    Lane,
    Live,
    Prep,
    Result,
    Shift,
    Sim,
    Static,
    Ticket,
)
from playproof_kernel.ground.records import Record, Rows, enlarged, records, untouched
from playproof_kernel.memory.block_pool import GENERATED
from playproof_kernel.runs import loop, phases
from playproof_kernel.runs.clock_bound import refuse_past_horizon
from playproof_kernel.runs.cuts import Cut, plan_snapshots
from playproof_kernel.runs.finite import (
    SLICE,
    ReplayFault,
    final_states,
    host_use,
    new_sim,
    with_room,
)

# Entries of the logs beyond what one round of the loop may need.
RESULTS_SPARE, PLAYS_SPARE = 1 << 14, 1 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """Every measured request and admission. Records of `arrays.RESULT` and `arrays.ADMISSION`.

    Attributes
    ----------
    requests : records, shape (requests,)
        In the order of play instances, and of node indices within one.
    admissions : records, shape (admissions,)
        In the order of events; `request` is the request's serial.
    """

    requests: Any
    admissions: Any


@dataclass(frozen=True, slots=True, eq=False)
class ControlledLedger:
    """What happened under the run controls. Times are nanoseconds from the run's origin; NEVER (-1) stands for never.

    Attributes
    ----------
    graph_digest : str
        Of the graph with its floors as recorded; cuts are drawn from it.
    cuts : tuple of Cut
        The first play of each lane.
    phase : int
        `PhaseState` at the end: DONE, or INVALID when preparation failed.
    profile_start_ns, finished_ns : int
        The barrier, and the end for the client.
    preparation : records of `arrays.PREP`
        By lane and in its order; the next columns are beside it.
    prep_state, prep_dispatched_ns, prep_first_admit_ns, prep_terminal_ns, prep_output, prep_reused : Int64
        Of each preparation request: final `RequestState`, and so on; `prep_reused` at its first admission.
    prep_failed : int
        Number of the first that failed, -1 for none.
    plays : records of `arrays.ENDED`, shape (instances,)
        By instance number, which is the order in which they took their seats.
    shifts : records of `arrays.SHIFT`
        Timers moved by idle caps, in the order of events.
    issued, never_issued, canceled, unsettled : int
        Measured requests dispatched; those that the deadline kept back; canceled ones; those that engines still held
        at the end.
    first_dispatch_ns : int
    outcomes : Int64, shape (request states,)
        Measured requests by their final `RequestState`.
    completed_input, completed_output, first_reused, most_reused : int
        Tokens of the completed requests: of prompts, generated, found in cache at the first admission and at the one
        that found most.
    first_success_ns, last_success_ns : int
        The earliest dispatch, and the latest end, of a completed request.
    ttft_ns, e2e_ns, ttst_ns, tpot_ns : Float64, shape (samples,)
        Of completed requests with a token, the latter two with two; in the order of events.
    gap_ns, gap_count : Int64, shape (gaps,)
        As in a finite ledger; preparation asks for one token and has none.
    hosts : records of `ledger.HOST_USE`, shape (workers,)
        Each worker's host pool, over the whole run; empty where no worker has any.
    passes, busy_ns, prefill_tokens, decode_tokens, preemptions, evictions : Int64, shape (workers,)
        From the barrier on.
    captured : Captured or None
    """

    graph_digest: str
    cuts: tuple[Cut, ...]
    phase: int
    profile_start_ns: int
    finished_ns: int
    preparation: Any
    prep_state: Int64
    prep_dispatched_ns: Int64
    prep_first_admit_ns: Int64
    prep_terminal_ns: Int64
    prep_output: Int64
    prep_reused: Int64
    prep_failed: int
    plays: Any
    shifts: Any
    issued: int
    never_issued: int
    canceled: int
    unsettled: int
    first_dispatch_ns: int
    outcomes: Int64
    completed_input: int
    completed_output: int
    first_reused: int
    most_reused: int
    first_success_ns: int
    last_success_ns: int
    ttft_ns: Float64
    e2e_ns: Float64
    ttst_ns: Float64
    tpot_ns: Float64
    gap_ns: Int64
    gap_count: Int64
    passes: Int64
    busy_ns: Int64
    prefill_tokens: Int64
    decode_tokens: Int64
    preemptions: Int64
    evictions: Int64
    hosts: npt.NDArray[np.void]
    captured: Captured | None

    @property
    def valid(self) -> bool:
        """Whether all preparation succeeded; nothing was measured otherwise."""
        return self.phase != PhaseState.INVALID


def simulate_controlled(
    proven: ProvenGraph,
    deployment: DeploymentSpec,
    load: LoadSpec,
    *,
    capture: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ControlledLedger:
    """Replay a proven graph from a snapshot on, with or without warmup and profile.

    Parameters
    ----------
    proven : ProvenGraph
    deployment : DeploymentSpec
    load : LoadSpec
        With `lanes` and `snapshot_seed`.
    capture : bool
        Keep every request.
    progress : callable, optional
        Called now and then with simulated seconds since the barrier and their bound in a profile, and with requests
        ended and in all else.

    Raises
    ------
    InvalidSnapshot
        When the trace contradicts itself at a cut.
    UnfitLoad
        When a time could lie past the end of the clock, or the run comes to it.
    ReplayFault
        When the run cannot go on; no input that was proven may bring that about.
    """
    refuse_past_horizon(proven.graph, deployment, load)
    digest = graph_digest(proven.graph, shift_floors=False)
    sim, cuts = start_controlled(proven.graph, digest, deployment, load)
    drain = Drain(proven.graph, capture)
    sim = _run(sim, drain, progress)
    ledger = ledger_of_controlled(sim, digest, cuts, drain)
    uncounted = drain.uncounted(sim)
    if len(uncounted) == 0:
        return ledger
    # Gaps are counted as they happen, and which requests complete is known now: the same run again, without the others.
    again, _ = start_controlled(proven.graph, digest, deployment, load, uncounted)
    counted = ledger_of_controlled(_run(again, Drain(proven.graph, False), None), digest, cuts, drain)
    return dataclasses.replace(ledger, gap_ns=counted.gap_ns, gap_count=counted.gap_count)


def _run(sim: Sim, drain: Drain, progress: Callable[[int, int], None] | None) -> Sim:
    """Run to the end, taking out what ends on the way; returns the arrays as they are then."""
    while True:
        stop = loop.run(sim, SLICE)
        drain.take(sim)
        refuse_wrong_namespaces(sim)
        if progress is not None:
            progress(*_progress(sim))
        if sim.run[0].no_identity:
            raise ReplayFault("the profile ran out of cache identities")
        if stop == loop.Stop.OVER:
            return sim
        if stop == loop.Stop.SEATS:
            sim = with_more_seats(sim)
        elif stop != loop.Stop.LOGS or _gaps_short(sim):
            sim = with_room(sim, stop)


def start_controlled(
    graph: Graph, digest: str, deployment: DeploymentSpec, load: LoadSpec, uncounted: Int64 | None = None
) -> tuple[Sim, tuple[Cut, ...]]:
    """Return the arrays of a controlled run of `graph`, whose digest is `digest`, that has begun, and its cuts.

    The gaps between the tokens of the requests with the numbers `uncounted`, ascending, stay out of its log.
    """
    if load.lanes is None or load.snapshot_seed is None:
        raise ValueError("a controlled run needs lanes and a snapshot seed")
    cuts = plan_snapshots(graph, digest, load.lanes, load.snapshot_seed)
    # A play's namespace is given to each instance of it when that begins.
    settings = settings_of(deployment, load)._replace(play_scope=False)
    compiled = compile_checked(graph, digest, settings)
    sim = _new_controlled(graph, compiled, deployment, load, cuts)
    if uncounted is not None:
        sim = sim._replace(uncounted=uncounted)
        sim.run[0].uncounted = 1
    if load.lanes * compiled.key_span > GENERATED:
        raise ReplayFault("the lanes' namespaces together need more block keys than there are")
    refuse_wrong_seats(graph, sim, load.speedup)
    phases.start(sim, _kept(graph, cuts, load))
    return sim, cuts


def _new_controlled(
    graph: Graph, compiled: CompiledGraph, deployment: DeploymentSpec, load: LoadSpec, cuts: tuple[Cut, ...]
) -> Sim:
    lanes, nodes, plays = len(cuts), len(compiled.static), len(compiled.play_begin) - 1
    prep = _preparation(graph, cuts if load.warmup else ())
    # Seats of prefill/decode outlast their plays while a source or a reservation of them waits for a pass to end.
    seats, largest = (lanes if deployment.decode is None else 2 * lanes), int(np.diff(compiled.play_begin).max())
    first_seat = nodes + len(prep)
    slots = first_seat + seats * largest
    members = _by_play(graph, compiled)
    edges = compiled.edges
    edges.target = _positions(compiled, members)[edges.target]
    compiled.static.floor = _whole_floors(graph, load.speedup)
    static = untouched(slots, Static)
    static[:nodes] = compiled.static
    seated = dataclasses.replace(
        compiled,
        static=static,
        play_begin=np.concatenate((compiled.play_begin[:-1], first_seat + largest * np.arange(seats + 1))),
        play_nodes=np.concatenate((members, np.arange(nodes, slots))),
    )
    sim = new_sim(seated, deployment, load)
    sim.plays.node_end[plays - 1] = nodes
    sim.plays.shift[plays:] = sim.plays.node_begin[plays:]
    _configure(sim.config[0], compiled, load, lanes, plays)
    run = sim.run[0]
    run.profile_start = run.prep_failed = run.first_dispatch = run.refilled_at = run.finished_at = run.seat = NONE
    run.prep_left = len(prep)
    run.primers_left = int(prep.primer.sum())
    return sim._replace(
        # Small plays leave most of their seat alone.
        live=untouched(len(sim.static), Live),
        tickets=untouched(len(sim.static), Ticket),
        handoffs=untouched(len(sim.handoffs), Handoff),
        lane_state=np.zeros(lanes, np.int8),
        lanes=_lanes(prep, lanes),
        prep=prep,
        results=records(2 * slots + RESULTS_SPARE, Result),
        ended=records(2 * len(sim.plays) + PLAYS_SPARE, Ended),
        shifts=records(2 * lanes + PLAYS_SPARE, Shift),
    )


def _configure(config: Any, compiled: CompiledGraph, load: LoadSpec, lanes: int, plays: int) -> None:
    config.controls = 1
    config.lanes = lanes
    config.corpus = config.prep_begin = len(compiled.static)
    config.corpus_plays = plays
    config.key_span = compiled.key_span
    if load.profile is not None:
        config.profile = 1
        config.duration = load.profile.duration_ns
        config.grace = load.profile.grace_ns
        config.tree_cap = load.profile.tree_cap_ns
        config.global_cap = load.profile.global_cap_ns


def _lanes(prep: Any, lanes: int) -> Any:
    records_of_lanes = records(lanes, Lane)
    begin = np.searchsorted(prep.lane, np.arange(lanes + 1))
    records_of_lanes.prep_next = begin[:-1]
    records_of_lanes.prep_end = begin[1:]
    return records_of_lanes


def with_more_seats(sim: Sim) -> Sim:
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

    more = {NODES: slots, HANDED_OVER: slots, TRANSFERS: slots, PLAYS: plays + seats}
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
    larger.copyings.request = moved(larger.copyings.request)
    larger.hosts.recent = moved(larger.hosts.recent)
    larger.running[:] = moved(sim.running)
    larger.plays.shift[plays:] = nodes + largest * np.arange(seats)
    for seat in range(plays + seats - 1, plays - 1, -1):
        larger.plays[seat].next, larger.run[0].seat = larger.run[0].seat, seat
    larger.run[0].seats += seats
    return larger


def _by_play(graph: Graph, compiled: CompiledGraph) -> Int64:
    """Return the nodes of each play, in the order in which those go that are due at one instant."""
    return compiled.play_nodes[np.lexsort((graph.tie_ranks[compiled.play_nodes], graph.node_play[compiled.play_nodes]))]


def _positions(compiled: CompiledGraph, members: Int64) -> Int64:
    """Return each node's place in its play."""
    positions = np.empty(len(members), np.int64)
    starts = np.repeat(compiled.play_begin[:-1], np.diff(compiled.play_begin))
    positions[members] = np.arange(len(members)) - starts
    return positions


def _whole_floors(graph: Graph, speedup: float) -> Int64:
    """Return the floors of plays that start whole, from their start: those of roots only."""
    first = np.full(len(graph.plays), np.inf)
    np.minimum.at(first, graph.node_play, graph.not_before_ms)
    floors = ms_to_ns((graph.not_before_ms - first[graph.node_play]) / speedup)
    return np.where(np.diff(graph.edge_offsets) == 0, floors, 0)


def _kept(graph: Graph, cuts: tuple[Cut, ...], load: LoadSpec) -> Any:
    """Return what each cut leaves, lane by lane."""
    kept = records(sum(len(cut.nodes) for cut in cuts), Kept)
    kept.historical = np.concatenate([cut.historical for cut in cuts])
    delays = np.concatenate([_delays(graph, cut, load.profile is not None) for cut in cuts])
    kept.remaining = ms_to_ns(delays / load.speedup)
    return kept


def _delays(graph: Graph, cut: Cut, profile: bool) -> Float64:
    """Return what holds each request of a cut play back besides its edges.

    In a profile that is nothing for a request that depends on a kept one: neither its floor nor what is left of its
    edges from history (reference case agg-vllm-warm-profile-001).
    """
    remaining = np.array(cut.remaining_ms)
    if not profile:
        return remaining
    historical = dict(zip(cut.nodes, cut.historical, strict=True))
    for position, node in enumerate(cut.nodes):
        sources = graph.edge_source[int(graph.edge_offsets[node]) : int(graph.edge_offsets[node + 1])].tolist()
        if any(not historical[source] for source in sources):
            remaining[position] = 0.0
    return remaining


def _preparation(graph: Graph, cuts: tuple[Cut, ...]) -> Any:
    """Return the primers and warmups of each lane, by lane."""
    rows = [
        (node, cut.lane, primer)
        for cut in cuts
        for nodes, primer in ((cut.primers, 1), (cut.warmups(graph), 0))
        for node in nodes
    ]
    prep = records(len(rows), Prep)
    for name, column in zip(("source", "lane", "primer"), zip(*rows, strict=True), strict=False):
        prep[name] = column
    prep.settled = NONE
    return prep


def _progress(sim: Sim) -> tuple[int, int]:
    run, config = sim.run[0], sim.config[0]
    if config.profile == 0:
        return int(run.finished), max(int(run.issued), 1)
    if run.profile_start < 0:
        return 0, int(config.duration // 10**9)
    return int((run.now - run.profile_start) // 10**9), int(config.duration // 10**9)


def _gaps_short(sim: Sim) -> bool:
    workers, sequences = sim.running.shape
    return bool(
        2 * (sim.run[0].gaps + (MAX_VARYING_PASSES + sequences) * workers) > len(sim.gaps)
        or 2 * sequences > len(sim.admissions)
    )


class Drain:
    """Takes what ended out of a run, slice by slice, and keeps what reports need of it.

    Parameters
    ----------
    graph : Graph
    capture : bool
        Keep all of every request.
    """

    def __init__(self, graph: Graph, capture: bool) -> None:
        self.input_length = graph.input_length
        self.capture = capture
        self.outcomes: Int64 = np.zeros(len(RequestState), np.int64)
        self.completed_input = self.completed_output = self.first_reused = self.most_reused = 0
        self.first_success_ns = self.last_success_ns = NEVER
        self.samples: dict[str, list[Float64]] = {"ttft": [], "e2e": [], "ttst": [], "tpot": []}
        self.plays: list[Any] = []
        self.shifts: list[Any] = []
        self.requests: list[Any] = []
        self.admissions: list[Any] = []
        self.unfinished: list[Int64] = []

    def uncounted(self, sim: Sim) -> Int64:
        """Return the numbers of the requests with gaps between tokens that did not complete, ascending."""
        nodes = len(sim.node_state)
        begun = np.isin(sim.node_state, (NodeState.DISPATCHED, NodeState.CANCELED, NodeState.FAILED))
        left = sim.static.serial[:nodes][begun & (sim.live.generated[-nodes:] > 1)]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self.unfinished, left]))

    def take(self, sim: Sim) -> None:
        """Empty the logs of `sim`."""
        run = sim.run[0]
        results = sim.results[: int(run.results)]
        self._reduce(results)
        if self.capture:
            self.requests.append(results.copy())
            admissions = sim.admissions[: int(run.admissions)]
            self.admissions.append(admissions[admissions.request >= len(sim.prep)].copy())
        self.plays.append(sim.ended[: int(run.ended)].copy())
        self.shifts.append(sim.shifts[: int(run.shifts)].copy())
        run.results = run.ended = run.shifts = run.admissions = run.noted = 0

    def _reduce(self, results: Any) -> None:
        self.outcomes += np.bincount(results.state, minlength=len(self.outcomes))
        self.unfinished.append(results.serial[(results.state != RequestState.FINISHED) & (results.generated > 1)])
        done = results[results.state == RequestState.FINISHED]
        if not len(done):
            return
        self.completed_input += int(self.input_length[done.source].sum())
        self.completed_output += int(done.generated.sum())
        self.first_reused += int(done.first_reused.sum())
        self.most_reused += int(done.most_reused.sum())
        first = int(done.dispatched.min())
        self.first_success_ns = first if self.first_success_ns == NEVER else min(first, self.first_success_ns)
        self.last_success_ns = max(int(done.terminal.max()), self.last_success_ns)
        answered = done[done.generated > 0]
        several = done[done.generated > 1]
        self.samples["ttft"].append((answered.first_token - answered.dispatched).astype(np.float64))
        self.samples["e2e"].append((answered.terminal - answered.dispatched).astype(np.float64))
        self.samples["ttst"].append((several.second_token - several.first_token).astype(np.float64))
        self.samples["tpot"].append((several.last_token - several.first_token) / (several.generated - 1))

    def sample(self, name: str) -> Float64:
        """Return all samples of one latency, ns."""
        return np.concatenate([np.zeros(0), *self.samples[name]])

    def captured(self) -> Captured | None:
        """Return what was captured, requests in the order of their numbers."""
        if not self.capture:
            return None
        requests = _joined(self.requests, Result)
        return Captured(requests[np.argsort(requests.serial, kind="stable")], _joined(self.admissions, Admission))


def _joined(parts: list[Any], kind: type[Record]) -> Any:
    return np.concatenate([records(0, kind), *parts]).view(Rows)


def ledger_of_controlled(sim: Sim, digest: str, cuts: tuple[Cut, ...], drain: Drain) -> ControlledLedger:
    refuse_wrong_namespaces(sim)
    run, workers = sim.run[0], sim.workers
    gaps = sim.gaps[sim.gaps["count"] > 0]
    gaps = gaps[np.argsort(gaps.value, kind="stable")]
    plays = _joined(drain.plays, Ended)
    begin, nodes = int(sim.config[0].prep_begin), len(sim.node_state)
    prepared = slice(begin, begin + len(sim.prep))
    prep, served = sim.live[prepared], sim.live[-nodes:][prepared]
    return ControlledLedger(
        graph_digest=digest,
        cuts=cuts,
        phase=int(sim.phase_state[0]),
        profile_start_ns=int(run.profile_start),
        finished_ns=int(run.finished_at),
        preparation=sim.prep,
        prep_state=final_states(sim)[prepared].astype(np.int64),
        prep_dispatched_ns=prep.dispatched.copy(),
        prep_first_admit_ns=prep.first_admit.copy(),
        prep_terminal_ns=served.terminal.copy(),
        prep_output=served.generated.copy(),
        prep_reused=sim.tickets[prepared].first_reused.copy(),
        prep_failed=NEVER if run.prep_failed == NONE else int(run.prep_failed) - begin,
        plays=plays[np.argsort(plays.instance, kind="stable")],
        shifts=_joined(drain.shifts, Shift),
        issued=int(run.issued),
        never_issued=int(run.never_issued),
        canceled=int(run.canceled),
        unsettled=int(run.unsettled),
        first_dispatch_ns=int(run.first_dispatch),
        outcomes=drain.outcomes,
        completed_input=drain.completed_input,
        completed_output=drain.completed_output,
        first_reused=drain.first_reused,
        most_reused=drain.most_reused,
        first_success_ns=drain.first_success_ns,
        last_success_ns=drain.last_success_ns,
        ttft_ns=drain.sample("ttft"),
        e2e_ns=drain.sample("e2e"),
        ttst_ns=drain.sample("ttst"),
        tpot_ns=drain.sample("tpot"),
        gap_ns=gaps.value.copy(),
        gap_count=gaps["count"].copy(),
        passes=workers.passes - workers.passes_before,
        busy_ns=workers.busy.copy(),
        prefill_tokens=workers.prefill_tokens.copy(),
        decode_tokens=workers.decode_tokens.copy(),
        preemptions=workers.preemptions.copy(),
        evictions=workers.evictions.copy(),
        hosts=host_use(sim),
        captured=drain.captured(),
    )
