"""The arrays of a run under the run controls that has begun: seats, lanes, what prepares them, and cuts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph
from playproof_spec.ledger import Float64, Int64
from playproof_spec.units import ms_to_ns

from playproof_kernel.checks.translation import (
    compile_checked,
    refuse_wrong_seats,
    settings_of,
)
from playproof_kernel.corpus.compiled import CompiledGraph
from playproof_kernel.ground.arrays import (
    NONE,
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
from playproof_kernel.ground.faults import ReplayFault
from playproof_kernel.ground.records import records, untouched
from playproof_kernel.memory.block_pool import GENERATED
from playproof_kernel.runs import phases
from playproof_kernel.runs.cuts import Cut, plan_snapshots
from playproof_kernel.runs.setup import new_sim

# Entries of the logs beyond what one round of the loop may need.
RESULTS_SPARE, PLAYS_SPARE = 1 << 14, 1 << 10


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
