"""Each obligation can fail: a broken table, rule or graph, and the proof that sees it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formulas import compiled, holds
from playproof_spec import machine_proofs, proofs
from playproof_spec.certificate import ProvenGraph, examine, prove
from playproof_spec.findings import Findings, InvalidInput, Where, finding
from playproof_spec.graph import MAX_TOKENS, Graph
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
    BlockEvent,
    BlockState,
    HandoffEvent,
    HandoffState,
    HostBlockEvent,
    HostBlockState,
    LaneEvent,
    LaneState,
    Machine,
    NodeEvent,
    NodeState,
    PhaseEvent,
    PhaseState,
    PlayEvent,
    PlayState,
    RequestEvent,
    RequestState,
    Rule,
    TransferEvent,
    TransferState,
)
from playproof_spec.models import phase_model
from playproof_spec.obligation import Obligation
from playproof_spec.proofs import Lifecycle
from playproof_spec.reduction import distinct_shapes, reduce_plays
from playproof_spec.sketch import sketch
from playproof_spec.topology import earliest_dispatch_ns, topology
from playproof_spec.units import HORIZON_MS, HORIZON_NS


def altered(machine: Machine, state: IntEnum, event: IntEnum, rule: Rule | None) -> Machine:
    """`machine` with one entry replaced, added, or (None) taken out."""
    row = {**machine.table[state]}
    row.pop(event, None)
    if rule is not None:
        row[event] = rule
    return dataclasses.replace(machine, table={**machine.table, state: row})


def machines_with(*changed: Machine) -> tuple[Machine, ...]:
    names = {machine.name: machine for machine in changed}
    return tuple(names.get(machine.name, machine) for machine in MACHINES)


def obligation(code: str, *changed: Machine) -> Obligation:
    """The verdict on one machine obligation with some machines changed."""
    return next(o for o in machine_proofs.prove_machines(machines_with(*changed)) if o.code == code)


# ----------------------------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize("code", [f"M{number}" for number in range(1, 11)])
def test_our_machines_are_proven(code: str) -> None:
    verdict = obligation(code)
    assert verdict.verdict == "proven", verdict.how


class Stray(IntEnum):
    ELSEWHERE = 0


READY_ROW: Mapping[IntEnum, Mapping[IntEnum, Rule]] = {s: r for s, r in NODE.table.items() if s != NodeState.READY}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (dataclasses.replace(NODE, table=READY_ROW), "a state has no row"),
        (altered(NODE, NodeState.READY, NodeEvent.DISPATCH, Rule(Stray.ELSEWHERE)), "successor is not of this machine"),
        (altered(NODE, NodeState.READY, Stray.ELSEWHERE, Rule(NodeState.FAILED)), "event is not of this machine"),
        (altered(NODE, NodeState.READY, NodeEvent.DISPATCH, Rule(NodeState.DISPATCHED, "if_lucky")), "has no meaning"),
        (altered(NODE, NodeState.READY, NodeEvent.DISPATCH, None), "dispatch is never legal"),
        (altered(NODE, NodeState.FAILED, NodeEvent.RELEASE, Rule(NodeState.READY)), "failed is terminal, or"),
        (dataclasses.replace(NODE, initial=NodeState.FAILED), "initial state is none, or terminal"),
        (dataclasses.replace(LANE, terminal=frozenset()), "retired is terminal, or"),
    ],
)
def test_m1_sees_a_malformed_table(broken: Machine, words: str) -> None:
    verdict = machine_proofs.prove_well_formed([broken])
    assert verdict.verdict == "failed"
    assert words in verdict.how


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (altered(NODE, NodeState.BLOCKED, NodeEvent.CUT, None), "node: historical cannot be reached"),
        (altered(PLAY, PlayState.FAILING, PlayEvent.SETTLED, None), "play: failing never comes to an end"),
        (altered(BLOCK, BlockState.PRIVATE, BlockEvent.RELEASE, Rule(BlockState.PRIVATE)), ""),
        (
            dataclasses.replace(BLOCK, table={**BLOCK.table, BlockState.CACHED_IDLE: {}, BlockState.READING_IDLE: {}}),
            "block: cached_idle never comes to an end",
        ),
    ],
)
def test_m2_sees_lost_and_stuck_states(broken: Machine, words: str) -> None:
    verdict = obligation("M2", broken)
    # A private block that cannot be freed can still be filled and evicted: M2 has nothing against it.
    assert verdict.verdict == ("failed" if words else "proven")
    assert words in verdict.how


@pytest.mark.parametrize("handoff", [HANDOFF_SOURCE_FIRST, HANDOFF_DESTINATION_FIRST])
@pytest.mark.parametrize(
    ("state", "event", "rule", "words"),
    [
        (HandoffState.PREFILLING, HandoffEvent.COMPLETE, Rule(HandoffState.COMPLETED), "avoids decoding"),
        (HandoffState.TRANSFERRING, HandoffEvent.COMPLETE, Rule(HandoffState.COMPLETED), "avoids decoding"),
        (HandoffState.RESERVING, HandoffEvent.ACTIVATE, Rule(HandoffState.DECODE_WAITING), "avoids transferring"),
        (HandoffState.PREFILLED, HandoffEvent.COMPLETE_EMPTY, Rule(HandoffState.COMPLETED, "zero_tokens"), "transferr"),
        (HandoffState.TRANSFERRING, HandoffEvent.COMPLETE_EMPTY, Rule(HandoffState.COMPLETED), "zero tokens only"),
        (HandoffState.DECODING, HandoffEvent.COMPLETE, None, "no path leads to completed by complete"),
    ],
)
def test_m3_sees_a_completion_before_decoding(
    handoff: Machine, state: HandoffState, event: HandoffEvent, rule: Rule | None, words: str
) -> None:
    # A kernel that completes at prefill whatever its tables say: see `tests/properties/test_handoff_machine.py`.
    verdict = obligation("M3", altered(handoff, state, event, rule))
    assert verdict.verdict == "failed"
    assert handoff.name in verdict.how
    assert words in verdict.how


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            altered(NODE, NodeState.READY, NodeEvent.DISPATCH, Rule(NodeState.DISPATCHED)),
            "ready —dispatch→ dispatched can happen after a failure",
        ),
        (
            altered(NODE, NodeState.BLOCKED, NodeEvent.RELEASE, Rule(NodeState.READY)),
            "blocked —release→ ready can happen after a failure",
        ),
        (altered(PLAY, PlayState.ACTIVE, PlayEvent.NODE_FAILED, None), "dispatched —fail→ failed breaks"),
        (altered(PLAY, PlayState.ACTIVE, PlayEvent.LAST_COMPLETED, Rule(PlayState.SETTLING)), "last_completed→"),
        (
            altered(PLAY, PlayState.FAILING, PlayEvent.SETTLED, Rule(PlayState.FAILED)),
            "failing —settled→ failed breaks",
        ),
        (altered(LANE, LaneState.OCCUPIED, LaneEvent.PLAY_SETTLED, Rule(LaneState.IDLE)), "requests in flight"),
        (altered(NODE, NodeState.BLOCKED, NodeEvent.SKIP, None), "a reachable state is stuck"),
        (altered(NODE, NodeState.READY, NodeEvent.EXPIRE, None), "a reachable state is stuck"),
        (altered(NODE, NodeState.DISPATCHED, NodeEvent.FAIL, Rule(NodeState.BLOCKED)), "go round for ever"),
        (altered(NODE, NodeState.DISPATCHED, NodeEvent.FAIL, Rule(NodeState.COMPLETED)), "fail→ completed breaks"),
        # A review found these accepted: a self-loop is a run for ever; a guard that nothing is known of argues for
        # nothing; a request whose success is refused waits for ever; a failure must be heard while another settles.
        (
            altered(NODE, NodeState.BLOCKED, NodeEvent.SKIP, Rule(NodeState.BLOCKED, "play_failed")),
            "node: a run can go round for ever",
        ),
        (
            altered(NODE, NodeState.READY, NodeEvent.EXPIRE, Rule(NodeState.READY, "play_closing")),
            "node: a run can go round for ever",
        ),
        (
            dataclasses.replace(
                NODE,
                table={
                    **NODE.table,
                    NodeState.DISPATCHED: {NodeEvent.COMPLETE: Rule(NodeState.COMPLETED, "cache_on")},
                },
            ),
            "a node that is dispatched refuses complete while its play goes on",
        ),
        (
            altered(NODE, NodeState.DISPATCHED, NodeEvent.COMPLETE, Rule(NodeState.COMPLETED, "play_closing")),
            "a node that is dispatched refuses complete while its play goes on",
        ),
        (
            altered(PLAY, PlayState.FAILING, PlayEvent.NODE_FAILED, None),
            "a play that is failing refuses node_failed while a node is in flight",
        ),
        (
            altered(PLAY, PlayState.PENDING, PlayEvent.ACTIVATE, Rule(PlayState.ACTIVE, "never_fits")),
            "a play that is pending refuses activate",
        ),
        (
            altered(LANE, LaneState.OCCUPIED, LaneEvent.ADMIT, Rule(LaneState.OCCUPIED, "all_over")),
            "lane occupied —admit→ occupied breaks the lane's invariant",
        ),
        (
            altered(LANE, LaneState.OCCUPIED, LaneEvent.PLAY_SETTLED, Rule(LaneState.OCCUPIED, "all_over")),
            "lane occupied —play_settled→ occupied breaks the lane's invariant",
        ),
        # Which guard it is matters: released nodes wait for their time, not only for their edges.
        (
            altered(NODE, NodeState.READY, NodeEvent.DISPATCH, Rule(NodeState.DISPATCHED, "all_edges_fired")),
            "ready —dispatch→ dispatched breaks the node's invariant",
        ),
        (altered(NODE, NodeState.FAILED, NodeEvent.COMPLETE, Rule(NodeState.COMPLETED)), "complete→ completed breaks"),
    ],
)
def test_m4_sees_a_play_that_cannot_be_trusted(broken: Machine, words: str) -> None:
    verdict = obligation("M4", broken)
    assert verdict.verdict == "failed"
    assert words in verdict.how


R, H, P, T = RequestState, HostBlockState, PhaseState, TransferState
FURTHER: list[tuple[str, Machine, IntEnum, IntEnum, Rule | None, str]] = [
    ("M7", REQUEST, R.WAITING, RequestEvent.FINISH, Rule(R.FINISHED), "waiting —finish→ finished can happen without a"),
    ("M7", REQUEST, R.WAITING, RequestEvent.ADMIT, Rule(R.RUNNING), "waiting —admit→ running can happen without room"),
    ("M7", REQUEST, R.RUNNING, RequestEvent.PREEMPT, Rule(R.LOADING), "preempt→ loading breaks"),
    ("M7", REQUEST, R.LOADING, RequestEvent.CANCEL, None, "cancel is refused while loading"),
    ("M7", REQUEST, R.RUNNING, RequestEvent.FAIL, Rule(R.FAILED, "never_fits"), "to one that could go on"),
    ("M7", REQUEST, R.FINISHED, RequestEvent.CANCEL, Rule(R.CANCELED), "can happen after the end"),
    ("M8", HOST_BLOCK, H.PINNED, HostBlockEvent.EVICT, Rule(H.ABSENT), "to a block that is pinned"),
    ("M8", HOST_BLOCK, H.PINNED, HostBlockEvent.UNPIN, Rule(H.RESIDENT), "unpin→ resident can happen with pins left"),
    ("M8", HOST_BLOCK, H.PENDING_STORE, HostBlockEvent.PIN, Rule(H.PINNED), "or not there"),
    ("M8", HOST_BLOCK, H.ABSENT, HostBlockEvent.PREPARE_STORE, Rule(H.PENDING_STORE), "can happen without room"),
    ("M9", PHASE, P.WARMUP, PhaseEvent.OPEN, Rule(P.PROFILE, "all_lanes_prepared"), "breaks the phase's invariant"),
    ("M9", PHASE, P.BARRIER, PhaseEvent.OPEN, Rule(P.PROFILE), "before all lanes are prepared"),
    ("M9", PHASE, P.PRIMER, PhaseEvent.PRIMED, Rule(P.WARMUP), "primed→ warmup breaks the phase's invariant"),
    ("M9", PHASE, P.BARRIER, PhaseEvent.PREPARATION_FAILED, None, "preparation_failed is refused in barrier"),
    # Harmless, since no measured run has a preparation that failed: an entry that says so all the same is a mistake.
    (
        "M9",
        PHASE,
        P.PROFILE,
        PhaseEvent.PREPARATION_FAILED,
        Rule(P.INVALID, "preparation_failed"),
        "invalid can never happen",
    ),
    ("M10", TRANSFER, T.SUBMITTED, TransferEvent.FINISH, Rule(T.DONE), "can happen before it moves"),
    ("M10", TRANSFER, T.MOVING, TransferEvent.DROP, None, "drop is refused while moving"),
]


@pytest.mark.parametrize(("code", "machine", "state", "event", "rule", "words"), FURTHER)
def test_m7_to_m10_see_broken_tables(
    code: str, machine: Machine, state: IntEnum, event: IntEnum, rule: Rule | None, words: str
) -> None:
    verdict = obligation(code, altered(machine, state, event, rule))
    assert verdict.verdict == "failed"
    assert words in verdict.how


def test_m9_lets_a_preparation_fail_at_the_barrier() -> None:
    # A run with one primer and one warmup goes up to the barrier, and there the preparation fails and is given up.
    model = phase_model(PHASE)
    moves = {move.name: move for move in model.moves}
    invariant = f"(and {' '.join(model.invariant.values())} true)"
    values: dict[str, Any] = {name: False if sort == "Bool" else 0 for name, sort in model.variables.items()}
    values |= {"primers": 1, "warmups": 1}
    for name in (
        "a primer ends",
        "phase primer —primed→ warmup",
        "a warmup ends",
        "phase warmup —warmed→ barrier",
        "a request of the preparation fails",
        "phase barrier —preparation_failed→ invalid",
    ):
        assert holds(moves[name].enabled, {**values, **dict.fromkeys(model.inputs, False)}), name
        values |= {key: compiled(term)(values) for key, term in moves[name].updates.items()}
        assert holds(invariant, values), name
    assert (values["s"], values["given_up"], values["opened"]) == (PhaseState.INVALID, 1, 0)


class LeakyState(IntEnum):
    """The block's states and one that no counter of the pool knows."""

    FREE = 0
    PRIVATE = 1
    CACHED_ACTIVE = 2
    CACHED_IDLE = 3
    LOADING = 4
    READING = 5
    READING_IDLE = 6
    LOST = 7


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            altered(BLOCK, BlockState.CACHED_ACTIVE, BlockEvent.RELEASE, Rule(BlockState.CACHED_IDLE)),
            "cached_active —release→ cached_idle can happen with a wrong number of references",
        ),
        (
            altered(BLOCK, BlockState.CACHED_ACTIVE, BlockEvent.EVICT, Rule(BlockState.FREE, "no_free_block")),
            "cached_active —evict→ free can happen to a block in use",
        ),
        (
            altered(BLOCK, BlockState.CACHED_IDLE, BlockEvent.RELEASE, Rule(BlockState.FREE)),
            "cached_idle —release→ free can happen with a wrong number of references",
        ),
        (
            altered(BLOCK, BlockState.PRIVATE, BlockEvent.RELEASE, Rule(LeakyState.LOST)),
            "private —release→ lost loses or makes a block",
        ),
    ],
)
def test_m5_sees_lost_blocks_and_wrong_references(broken: Machine, words: str) -> None:
    verdict = machine_proofs.prove_blocks({"block": broken})
    assert verdict.verdict == "failed"
    assert words in verdict.how


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"identity": "(step (root 0) tokens)"}, "two chains have one identity"),  # the block alone, without its prefix
        ({"identity": "(root tokens)"}, "a block can equal the start of a chain"),
        ({"namespace": "(mod (+ (* ordinal lanes) lane) plays)"}, "share a namespace"),  # the source play, recycled
        ({"namespace": "lane"}, "share a namespace"),
        ({"namespace": "(+ ordinal lane)"}, "share a namespace"),
        # A key of host memory without the namespace, and without the prefix; numbers whose namespaces overlap.
        ({"host_key": "(ite ((_ is root) block) (root 0) block)"}, "host memory takes one block for another"),
        (
            {"host_key": "(ite ((_ is step) block) (step (root 0) (content block)) block)"},
            "host memory takes one block",
        ),
        ({"number": "(+ space offset)"}, "blocks of two namespaces have one number"),
        ({"number": "offset"}, "blocks of two namespaces have one number"),
        ({"number": "(* space span)"}, "two blocks have one number"),
    ],
)
def test_m6_sees_identities_that_collide(rules: dict[str, Any], words: str) -> None:
    verdict = machine_proofs.prove_identity(**rules)
    assert verdict.verdict == "failed"
    assert words in verdict.how


def test_machine_proofs_without_their_table_do_not_apply() -> None:
    verdicts = {o.code: o.verdict for o in machine_proofs.prove_machines((LANE,))}
    assert verdicts == {
        "M1": "proven",
        "M2": "proven",
        "M3": "not_applicable",
        "M4": "not_applicable",
        "M5": "not_applicable",
        "M6": "proven",
        **dict.fromkeys(("M7", "M8", "M9", "M10"), "not_applicable"),
    }


# -------------------------------------------------------------------------------------------------------------- graph

SPAWN_JOIN: list[dict[str, Any]] = [
    {"request_id": "plan"},
    {"request_id": "child", "dependencies": [{"request_id": "plan", "trigger": "dispatch", "relation": "spawn"}]},
    {"request_id": "answer", "dependencies": ["plan", {"request_id": "child", "relation": "join"}]},
]


def verdicts(graph: Graph) -> tuple[dict[str, str], Findings]:
    findings = Findings()
    obligations, _ = examine(graph, findings)
    return {o.code: o.verdict for o in obligations}, findings


def test_a_sound_graph_is_proven_with_a_certificate() -> None:
    proven = prove(sketch(SPAWN_JOIN))
    certificate = proven.certificate
    assert [(o.code, o.verdict) for o in certificate.obligations] == [(f"G{n}", "proven") for n in range(1, 6)] + [
        ("G6", "not_applicable")
    ]
    assert (certificate.plays, certificate.nodes, certificate.edges, certificate.shapes) == (1, 3, 3, 1)
    assert certificate.to_dict()["graph_digest"] == certificate.graph_digest
    assert proven.findings == ()


def test_only_prove_makes_a_proven_graph() -> None:
    proven = prove(sketch(SPAWN_JOIN))
    with pytest.raises(TypeError, match="prove"):
        ProvenGraph(object(), proven.graph, proven.certificate, ())


def test_a_readers_errors_refuse_the_graph_and_its_warnings_travel() -> None:
    findings = Findings()
    findings.add(finding("ordinal-gap", "said by a reader"))
    with pytest.raises(InvalidInput, match="said by a reader"):
        prove(sketch(SPAWN_JOIN), findings)


def test_what_a_reader_said_of_a_place_is_not_said_again() -> None:
    graph = sketch(
        [{"request_id": "a", "hash_ids": [1, 2], "input_length": 1}, {"request_id": "b", "output_length": -1}]
    )
    findings = Findings()
    said = finding("hash-count", "in the reader's words", where=Where(file="sketch", line=1, field="hash_ids"))
    findings.add(said)
    examine(graph, findings)
    assert findings.counts == {"hash-count": 1, "length-out-of-bounds": 1}
    assert findings.items[0] is said


def test_what_a_reader_said_of_one_line_is_said_of_another() -> None:
    # Two requests of a file with one id too many each; the reader has told of the first line.
    surplus = {"hash_ids": [1, 2], "input_length": 1}
    findings = Findings()
    findings.add(finding("hash-count", "in the reader's words", where=Where(file="sketch", line=1, field="hash_ids")))
    examine(sketch([{"request_id": "a", **surplus}, {"request_id": "b", **surplus}]), findings)
    assert [item.where.line for item in findings.items] == [1, 2]


def one(changes: dict[str, Any]) -> Graph:
    return sketch([{"request_id": "a", **changes}])


def two(edge: dict[str, Any], **changes: Any) -> Graph:
    return sketch([{"request_id": "a"}, {"request_id": "b", "dependencies": [{"request_id": "a", **edge}], **changes}])


BROKEN_SHAPES: list[tuple[str, Callable[[], Graph], str, int]] = [
    ("graph-empty", lambda: sketch([]), "", 0),
    ("block-size", lambda: sketch([{"request_id": "a", "input_length": 4, "hash_ids": [1]}], block_size=-4), "", 0),
    ("id-empty", lambda: sketch([{"request_id": "a"}, {"request_id": ""}]), "request_id", 2),
    ("id-empty", lambda: one({"play_id": "", "session_id": "s"}), "play_id", 1),
    ("id-empty", lambda: one({"session_id": ""}), "session_id", 1),
    ("id-empty", lambda: one({"model": ""}), "model", 1),
    ("id-duplicate", lambda: sketch([{"request_id": "a"}, {"request_id": "b"}, {"request_id": "a"}]), "request_id", 3),
    ("edge-dangling", lambda: one({"dependencies": ["gone"]}), "dependencies[0].request_id", 1),
    ("edge-self", lambda: one({"dependencies": ["a"]}), "dependencies[0].request_id", 1),
    ("edge-cross-play", lambda: two({}, play_id="other"), "dependencies[0].request_id", 2),
    ("edge-pair", lambda: two({"relation": "join", "trigger": "dispatch"}), "dependencies[0].relation", 2),
    ("edge-pair", lambda: two({"trigger": "dispatch"}), "dependencies[0].relation", 2),
    ("edge-pair", lambda: two({"relation": "replay_barrier", "trigger": "dispatch"}), "dependencies[0].relation", 2),
    (
        "edge-duplicate",
        lambda: sketch([{"request_id": "a"}, {"request_id": "b", "dependencies": ["a", {"request_id": "a"}]}]),
        "dependencies[1]",
        2,
    ),
    ("time-not-finite", lambda: one({"not_before_ms": math.nan}), "not_before_ms", 1),
    ("time-not-finite", lambda: one({"not_before_ms": -math.inf}), "not_before_ms", 1),
    ("time-not-finite", lambda: one({"recorded_api_time_ms": math.inf}), "recorded_api_time_ms", 1),
    ("time-not-finite", lambda: two({"delay_ms": math.nan}), "dependencies[0].delay_ms", 2),
    ("time-negative", lambda: one({"not_before_ms": -1e-9}), "not_before_ms", 1),
    ("time-negative", lambda: one({"recorded_api_time_ms": -1.0}), "recorded_api_time_ms", 1),
    ("time-negative", lambda: two({"delay_ms": -5.0}), "dependencies[0].delay_ms", 2),
    ("time-beyond-horizon", lambda: one({"not_before_ms": 2 * HORIZON_MS}), "not_before_ms", 1),
    ("time-beyond-horizon", lambda: two({"delay_ms": 1e300}), "dependencies[0].delay_ms", 2),
    ("length-out-of-bounds", lambda: one({"input_length": 0, "hash_ids": []}), "input_length", 1),
    ("length-out-of-bounds", lambda: one({"input_length": MAX_TOKENS + 1, "hash_ids": [1]}), "input_length", 1),
    ("length-out-of-bounds", lambda: one({"output_length": -1}), "output_length", 1),
    ("length-out-of-bounds", lambda: one({"output_length": 2**40}), "output_length", 1),
    ("hash-count", lambda: one({"input_length": 17, "hash_ids": [1]}), "hash_ids", 1),
    ("hash-count", lambda: one({"input_length": 16, "hash_ids": [1, 2]}), "hash_ids", 1),
    (
        "ordinal-missing",
        lambda: sketch([{"request_id": "a", "source_play_ordinal": 0}, {"request_id": "b", "play_id": "q"}]),
        "source_play_ordinal",
        2,
    ),
    ("ordinal-gap", lambda: one({"source_play_ordinal": 1}), "source_play_ordinal", 1),
    (
        "ordinal-gap",
        lambda: sketch(
            [
                {"request_id": "a", "source_play_ordinal": 0},
                {"request_id": "b", "play_id": "q", "source_play_ordinal": 0},
            ]
        ),
        "source_play_ordinal",
        2,
    ),
]


@pytest.mark.parametrize(("code", "build", "field", "line"), BROKEN_SHAPES)
def test_g1_names_the_defect_and_its_place(code: str, build: Callable[[], Graph], field: str, line: int) -> None:
    verdict, findings = verdicts(build())
    assert verdict["G1"] == "failed"
    matching = [item for item in findings.items if item.code == code]
    assert len(matching) == 1, findings.items
    assert (matching[0].where.field, matching[0].where.line) == (field, line)
    with pytest.raises(InvalidInput):
        prove(build())


def test_g1_accepts_the_bounds_themselves() -> None:
    graph = sketch(
        [
            {"request_id": "a", "output_length": 0, "recorded_api_time_ms": 0.0, "source_play_ordinal": 1},
            {"request_id": "b", "play_id": "q", "source_play_ordinal": 0, "not_before_ms": HORIZON_MS},
            {"request_id": "c", "play_id": "q", "source_play_ordinal": 0, "output_length": MAX_TOKENS},
        ]
    )
    assert {v for code, v in verdicts(graph)[0].items() if code != "G6"} == {"proven"}


def test_g1_counts_what_it_does_not_keep() -> None:
    graph = sketch([{"request_id": f"n{k:03}", "dependencies": ["gone"]} for k in range(250)])
    findings = verdicts(graph)[1]
    assert findings.counts == {"edge-dangling": 250}
    assert len(findings.items) == findings.limit_per_code
    assert findings.items[0].where.line == 1


def test_g1_keeps_no_more_findings_than_the_limit() -> None:
    findings = Findings(limit_per_code=2)
    for number in range(3):
        findings.add(finding("graph-empty", f"said for the time {number}"))
    assert [item.message[-1] for item in findings.items] == ["0", "1"]
    assert findings.counts == {"graph-empty": 3}


def test_g1_tells_sources_that_do_not_exist_apart() -> None:
    two_sources = verdicts(one({"dependencies": ["gone", "lost"]}))[1]
    assert two_sources.counts == {"edge-dangling": 2}
    one_source_twice = verdicts(one({"dependencies": ["gone", "gone"]}))[1]
    assert one_source_twice.counts == {"edge-dangling": 2, "edge-duplicate": 1}


def test_g1_lists_every_defect_at_once() -> None:
    graph = sketch(
        [
            {"request_id": "a", "dependencies": ["a", "gone"], "not_before_ms": math.nan},
            {
                "request_id": "b",
                "input_length": 40,
                "hash_ids": [1],
                "dependencies": [{"request_id": "a", "delay_ms": -1}],
            },
        ]
    )
    wanted = {"edge-self", "edge-dangling", "time-not-finite", "hash-count", "time-negative"}
    assert set(verdicts(graph)[1].counts) == wanted


def test_g1_refuses_a_graph_out_of_order() -> None:
    graph = sketch(SPAWN_JOIN)
    with pytest.raises(ValueError, match="byte order"):
        examine(dataclasses.replace(graph, request_ids=graph.request_ids[::-1]), Findings())


def test_g2_names_the_shortest_circle_edge_by_edge() -> None:
    graph = sketch(
        [
            {"request_id": "root"},
            {"request_id": "a", "dependencies": ["root", "d"]},
            {"request_id": "b", "dependencies": ["a"]},
            {"request_id": "c", "dependencies": ["b"]},
            {
                "request_id": "d",
                "dependencies": [{"request_id": "c", "delay_ms": 5}, {"request_id": "b", "relation": "join"}],
            },
            {"request_id": "x", "dependencies": ["y"]},
            {"request_id": "y", "dependencies": ["x"]},
        ]
    )
    verdict, findings = verdicts(graph)
    assert verdict == {
        "G1": "proven",
        "G2": "failed",
        "G3": "failed",
        "G4": "not_applicable",
        "G5": "not_applicable",
        "G6": "not_applicable",
    }
    first, second = (item for item in findings.items if item.code == "cycle")
    assert first.message == (
        "the shortest circle has 3 edges: a —sequence/completion +0 ms→ b; b —join/completion +0 ms→ d; "
        "d —sequence/completion +0 ms→ a"
    )
    assert (first.where.line, first.where.ids) == (2, ("a", "b", "d"))
    assert second.where.ids == ("x", "y")


def test_g2_finds_the_shortest_circle_wherever_it_lies() -> None:
    # From a the shortest way round has three edges; b and c wait for each other.
    rows = [
        {"request_id": "a", "dependencies": ["c"]},
        {"request_id": "b", "dependencies": ["a", "c"]},
        {"request_id": "c", "dependencies": ["b"]},
    ]
    (cycle,) = (item for item in verdicts(sketch(rows))[1].items if item.code == "cycle")
    assert cycle.message.startswith("the shortest circle has 2 edges: b —")


def test_g2_is_bounded_on_a_giant_circle() -> None:
    size = 20_000
    circle = sketch([{"request_id": f"n{k}", "dependencies": [f"n{(k - 1) % size}"]} for k in range(size)])
    (cycle,) = (item for item in verdicts(circle)[1].items if item.code == "cycle")
    assert cycle.message.startswith(f"the shortest circle has {size} edges")
    assert len(cycle.message) < 2000
    assert len(cycle.where.ids) == 16


def test_g3_names_plays_without_a_root_and_lost_requests() -> None:
    graph = sketch(
        [
            {"request_id": "a", "dependencies": ["b"]},
            {"request_id": "b", "dependencies": ["a"]},
            {"request_id": "r", "play_id": "q"},
            {"request_id": "s", "play_id": "q", "dependencies": ["t"]},
            {"request_id": "t", "play_id": "q", "dependencies": ["s"]},
            {"request_id": "u", "play_id": "q", "dependencies": ["t"]},
        ]
    )
    verdict, findings = verdicts(graph)
    assert verdict["G3"] == "failed"
    (rootless,) = (item for item in findings.items if item.code == "play-without-root")
    (lost,) = (item for item in findings.items if item.code == "node-unreachable")
    assert rootless.where.ids == ("play",)
    assert (lost.where.line, lost.where.ids, lost.found) == (4, ("s", "t", "u"), "3 of 4 requests")


def years(count: float) -> float:
    return count * 365.25 * 86_400_000


def chain_of_delays(*delays_ms: float, floor_ms: float = 0.0) -> Graph:
    rows: list[dict[str, Any]] = [{"request_id": "n0", "not_before_ms": floor_ms}]
    for k, delay_ms in enumerate(delays_ms, start=1):
        rows.append({"request_id": f"n{k}", "dependencies": [{"request_id": f"n{k - 1}", "delay_ms": delay_ms}]})
    return sketch(rows)


def test_g4_names_a_least_set_of_edges_and_floors() -> None:
    verdict, findings = verdicts(chain_of_delays(years(0.1), years(60), years(60), floor_ms=years(40)))
    assert verdict["G4"] == "failed"
    (core,) = findings.items
    assert core.code == "join-unsatisfiable"
    assert core.where.ids == ("n3",)
    # Without the floor, or any of the edges that chain it to n3, the rest would fit.
    assert "n0 not before" in core.message
    assert core.found == "4 floors and edges that add up to more"

    (smaller,) = verdicts(chain_of_delays(years(0.1), years(80), years(80), floor_ms=years(40)))[1].items
    assert "n0 not before" not in smaller.message
    assert smaller.found == "2 floors and edges that add up to more"


def test_g4_accepts_what_just_fits_and_refuses_a_nanosecond_more() -> None:
    half_ms = HORIZON_MS / 2
    assert verdicts(chain_of_delays(half_ms, half_ms))[0]["G4"] == "proven"
    assert verdicts(chain_of_delays(half_ms, half_ms, 1e-6))[0]["G4"] == "failed"


def test_g4_finds_the_core_on_a_long_play() -> None:
    verdict, findings = verdicts(chain_of_delays(*[HORIZON_MS / 64] * 3000, floor_ms=1.0))
    assert verdict["G4"] == "failed"
    (core,) = findings.items
    # 64 of them reach the end exactly; one more, or the floor, passes it.
    assert core.found in ("65 floors and edges that add up to more", "66 floors and edges that add up to more")


def test_g4_names_no_edge_that_the_rest_can_spare_on_a_long_play() -> None:
    # 512 equal delays reach the end of the clock exactly, and a nanosecond before them passes it; nine more before that
    # can be spared. No solver is asked of so many edges.
    _, findings = verdicts(chain_of_delays(*[1e-6] * 10, *[HORIZON_MS / 512] * 512))
    (core,) = findings.items
    assert core.where.ids == ("n522",)
    assert core.found == "513 floors and edges that add up to more"


def test_g4_times_beyond_the_clock_do_not_add_up() -> None:
    # Three delays of the whole clock, 2**62 ns each, are more than an integer holds.
    graph = chain_of_delays(HORIZON_MS, HORIZON_MS, HORIZON_MS)
    dispatch, cause = earliest_dispatch_ns(graph, topology(graph))
    assert dispatch.tolist() == [0, HORIZON_NS, HORIZON_NS + 1, HORIZON_NS + 1]
    assert cause.tolist()[:3] == [-1, 0, 1]
    verdict, findings = verdicts(graph)
    assert verdict["G4"] == "failed"
    assert [item.where.ids for item in findings.items] == [("n2",)]


def structure(graph: Graph, life: Lifecycle | None = None) -> tuple[Obligation, Obligation, Findings]:
    """G4 and G5 alone, whatever G1 to G3 would say."""
    findings = Findings()
    order = topology(graph)
    shapes = distinct_shapes(graph, order, reduce_plays(graph, order))
    joins = proofs.prove_joins(graph, order, shapes, findings, life)
    failures = proofs.prove_failures(graph, order, shapes, findings, life)
    return joins, failures, findings


CIRCLE: list[dict[str, Any]] = [
    {"request_id": "root"},
    {"request_id": "a", "dependencies": ["root", "c"]},
    {"request_id": "b", "dependencies": ["a"]},
    {"request_id": "c", "dependencies": ["b"]},
]


def test_g4_alone_sees_a_circle_even_without_delays() -> None:
    joins, _, findings = structure(sketch(CIRCLE))
    assert joins.verdict == "failed"
    (core,) = (item for item in findings.items if item.code == "join-unsatisfiable")
    for edge in ("a —", "b —", "c —"):
        assert edge in core.message
    assert "root —" not in core.message


@pytest.mark.parametrize("guard", ["play_closing", "cache_on"])
def test_g4_alone_sees_a_success_that_a_guard_may_forbid(guard: str) -> None:
    forbidden = Rule(NodeState.COMPLETED, guard)
    life = Lifecycle.of(altered(NODE, NodeState.DISPATCHED, NodeEvent.COMPLETE, forbidden))
    assert not life.success_completes
    assert structure(sketch(SPAWN_JOIN))[0].verdict == "proven"
    assert structure(sketch(SPAWN_JOIN), life)[0].verdict == "failed"


def test_g5_alone_sees_requests_that_wait_for_ever() -> None:
    _, failures, findings = structure(sketch(CIRCLE))
    assert failures.verdict == "failed"
    (waiting,) = (item for item in findings.items if item.code == "failure-not-contained")
    assert set(waiting.where.ids) <= {"a", "b", "c"}


@pytest.mark.parametrize(
    "broken",
    [
        # Blocked requests of a failed play that nobody skips wait for ever.
        (altered(NODE, NodeState.BLOCKED, NodeEvent.SKIP, None), PLAY),
        # A play that ignores a failure goes on dispatching.
        (NODE, altered(PLAY, PlayState.ACTIVE, PlayEvent.NODE_FAILED, Rule(PlayState.ACTIVE))),
        # A canceled request that could be dispatched again never ends.
        (altered(NODE, NodeState.DISPATCHED, NodeEvent.CANCEL, Rule(NodeState.READY)), PLAY),
        # A success that does not complete leaves the rest waiting.
        (altered(NODE, NodeState.DISPATCHED, NodeEvent.COMPLETE, Rule(NodeState.SKIPPED)), PLAY),
        # So does one that the play's state may forbid, or of which nobody knows when it holds.
        (altered(NODE, NodeState.DISPATCHED, NodeEvent.COMPLETE, Rule(NodeState.COMPLETED, "play_closing")), PLAY),
        (altered(NODE, NodeState.DISPATCHED, NodeEvent.COMPLETE, Rule(NodeState.COMPLETED, "cache_on")), PLAY),
        # A skip that waits for the cache leaves the rest waiting, a dispatch without a guard waits for nothing.
        (altered(NODE, NodeState.READY, NodeEvent.SKIP, Rule(NodeState.SKIPPED, "cache_on")), PLAY),
        (altered(NODE, NodeState.READY, NodeEvent.DISPATCH, Rule(NodeState.DISPATCHED)), PLAY),
        (altered(NODE, NodeState.BLOCKED, NodeEvent.RELEASE, Rule(NodeState.READY, "cache_on")), PLAY),
        (NODE, altered(PLAY, PlayState.ACTIVE, PlayEvent.NODE_FAILED, Rule(PlayState.FAILING, "cache_on"))),
    ],
)
def test_g5_sees_broken_tables(broken: tuple[Machine, Machine]) -> None:
    graph = sketch([*SPAWN_JOIN, {"request_id": "other", "dependencies": ["plan"]}])
    assert structure(graph)[1].verdict == "proven"
    life = Lifecycle.of(*broken)
    assert life != Lifecycle.of()
    assert structure(graph, life)[1].verdict == "failed"


def test_g5_holds_by_the_plays_stop_alone() -> None:
    # A failure that counted as a completion would fire the joins behind it, but too late: the play has stopped. (M4
    # refuses such a table all the same, since the play's books no longer add up.)
    life = Lifecycle.of(altered(NODE, NodeState.DISPATCHED, NodeEvent.FAIL, Rule(NodeState.COMPLETED)))
    assert life.failure_completes
    assert structure(sketch(SPAWN_JOIN), life)[1].verdict == "proven"
    reckless = dataclasses.replace(life, stops=False)
    assert structure(sketch(SPAWN_JOIN), reckless)[1].verdict == "failed"


def test_what_z3_gives_up_on_is_shown_by_induction_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = sketch(SPAWN_JOIN)
    real_ask = proofs.Prover.ask

    def gives_up_on_shapes(prover: proofs.Prover, smt: str, want_core: bool = False) -> proofs.Answer:
        return proofs.Answer("unknown") if "D0" in smt else real_ask(prover, smt, want_core)

    monkeypatch.setattr(proofs.Prover, "ask", gives_up_on_shapes)
    joins, failures, findings = structure(graph)
    assert (joins.verdict, failures.verdict) == ("proven", "proven")
    assert "by induction" in failures.how
    assert findings.items == ()

    monkeypatch.setattr(proofs.Prover, "ask", lambda *_: proofs.Answer("unknown"))
    joins, failures, findings = structure(graph)
    assert failures.verdict != "proven"
    assert "proof-unknown" in findings.counts


def test_the_lemmas_hold_and_need_their_premises() -> None:
    life = Lifecycle.of()
    over_edge, over_node = proofs.induction_lemma(life)
    needed = {
        # The first edge must wait for the completion when the short cut does.
        proofs.shortcut_lemma(life): "(assert (=> acWaits abWaits))",
        # A chain's second node hears of the first one's completion only.
        proofs.chain_lemma(life): "(assert (=> Db (< ea db)))",
        # The steps of the induction need what was shown of the nodes before.
        over_edge: "(assert (and (=> Ps (not Ds))",
        over_node: "(assert (=> Pn (not A)))",
    }
    for question, premise in needed.items():
        assert proofs.Prover().ask(question).verdict == "unsat"
        assert premise in question
        weaker = question.replace("(assert (and (=> Ps (not Ds))", "(assert (or true (=> Ps (not Ds))").replace(
            premise, ""
        )
        assert proofs.Prover().ask(weaker).verdict == "sat", premise


ROOMS = ("spec", "lowering", "kernel", "reference", "playproof")


def test_only_one_module_talks_to_z3() -> None:
    folder = Path(proofs.__file__).parents[2]
    modules = [file for root in ROOMS for file in (folder / root).rglob("*.py")]
    assert len(modules) > 10
    importing = [file.name for file in modules if re.search(r"^\s*(import|from) z3\b", file.read_text("utf-8"), re.M)]
    assert importing == ["proofs.py"]


def test_a_giant_tangle_is_shown_by_induction() -> None:
    # Every request joins the three before it and wakes the next at its dispatch: nothing reduces.
    def edges(k: int) -> list[dict[str, Any]]:
        spawn = [{"request_id": f"n{k - 2:05}", "relation": "spawn", "trigger": "dispatch"}] if k >= 2 else []
        join = [{"request_id": f"n{k - 3:05}", "relation": "join"}] if k >= 3 else []
        return spawn + join

    graph = sketch([{"request_id": f"n{k:05}", "dependencies": edges(k)} for k in range(4000)])
    joins, failures, findings = structure(graph)
    assert (joins.verdict, failures.verdict) == ("proven", "proven")
    assert "by induction along their order" in failures.how
    assert findings.items == ()


def tangle(size: int) -> Graph:
    """A play in which nothing reduces: every request joins one before it, and is woken by another's dispatch."""

    def edges(k: int) -> list[dict[str, Any]]:
        spawn = [{"request_id": f"n{k - 2:05}", "relation": "spawn", "trigger": "dispatch"}] if k >= 2 else []
        join = [{"request_id": f"n{k - 3:05}", "relation": "join"}] if k >= 3 else []
        return spawn + join

    return sketch([{"request_id": f"n{k:05}", "dependencies": edges(k)} for k in range(size)])


@pytest.mark.parametrize("size", [40, 900])
@pytest.mark.parametrize("fault", ["success_completes", "starts"])
def test_g4_by_induction_asks_its_own_steps(size: int, fault: str) -> None:
    # 900 requests are beyond what z3 is asked whole: an order alone does not make a run in which all complete.
    life = dataclasses.replace(Lifecycle.of(), **{fault: False})
    assert structure(tangle(size))[0].verdict == "proven"
    assert structure(tangle(size), life)[0].verdict != "proven"


def test_the_steps_of_g4_hold_and_need_their_claims() -> None:
    over_edge, over_node = proofs.join_lemma(Lifecycle.of())
    for question in (over_edge, over_node):
        assert proofs.Prover().ask(question).verdict == "unsat"
        # What is assumed can be: the answer is not one of nothing.
        assert proofs.Prover().ask(question[: question.rindex("(assert (not ")]).verdict == "sat"
    claim = over_edge[over_edge.index("(assert (and Ds Ss") :].partition("(assert (not ")[0]
    assert proofs.Prover().ask(over_edge.replace(claim, "")).verdict == "sat"


def test_a_proven_graph_cannot_be_changed() -> None:
    graph = sketch(SPAWN_JOIN)
    proven = prove(graph)
    graph.edge_source[0] = 0  # what was proven is a copy
    assert proven.graph.edge_source[0] == 2
    arrays = [getattr(proven.graph, item.name) for item in dataclasses.fields(proven.graph)]
    arrays = [array for array in arrays if isinstance(array, np.ndarray)] + [play.nodes for play in proven.graph.plays]
    assert len(arrays) > 15
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    for name, mapping in (("facts", proven.graph.facts), ("carried", proven.graph.carried)):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(proven.graph, name, {})
    for name in ("graph", "certificate", "findings", "other"):
        with pytest.raises(AttributeError, match="stays as it was proven"):
            setattr(proven, name, sketch(CIRCLE))
    with pytest.raises(AttributeError, match="stays as it was proven"):
        del proven.graph


def recorded(starts: list[float], took: list[float | None], edges: list[tuple[int, int, str, float]]) -> Graph:
    """A play read from a recording: starts and durations, and (source, target, trigger, delay) of its edges."""
    rows: list[dict[str, Any]] = []
    for node, (start, duration) in enumerate(zip(starts, took, strict=True)):
        row: dict[str, Any] = {"request_id": f"r{node}", "not_before_ms": start, "dependencies": []}
        if duration is not None:
            row["recorded_api_time_ms"] = duration
        for source, target, trigger, delay in edges:
            if target == node:
                relation = "spawn" if trigger == "dispatch" else "join"
                row["dependencies"].append(
                    {"request_id": f"r{source}", "relation": relation, "trigger": trigger, "delay_ms": delay}
                )
        rows.append(row)
    graph = sketch(rows)
    return dataclasses.replace(graph, source=dataclasses.replace(graph.source, format="weka"))


@pytest.mark.parametrize(
    ("graph", "verdict", "words"),
    [
        (recorded([0, 110], [100, 5], [(0, 1, "completion", 10.0)]), "proven", ""),
        # A recording rounds: 1 ms at the start and 1 ms at the end may be nothing.
        (recorded([0, 108], [100, 5], [(0, 1, "completion", 10.0)]), "proven", ""),
        (recorded([0, 107], [100, 5], [(0, 1, "completion", 10.0)]), "failed", "3 ms before r0 —join/completion +10"),
        (recorded([0, 50], [100, 5], [(0, 1, "dispatch", 50.0)]), "proven", ""),
        (recorded([0, 40], [100, 5], [(0, 1, "dispatch", 50.0)]), "failed", "10 ms before r0 —spawn/dispatch +50"),
        # Without a recorded end, a request has not ended before it began.
        (recorded([0, 0], [None, 5], [(0, 1, "completion", 0.0)]), "proven", ""),
        (recorded([9, 0], [None, 5], [(0, 1, "completion", 0.0)]), "failed", "9 ms before"),
        # Each of two dispatches is within the rounding of the recording, but not both: what one gains the other lacks.
        (recorded([0, 48.5, 97], [1, 1, 1], [(0, 1, "dispatch", 50.0), (1, 2, "dispatch", 50.0)]), "failed", "; r1 —"),
        (recorded([0, 49, 98], [1, 1, 1], [(0, 1, "dispatch", 50.0), (1, 2, "dispatch", 50.0)]), "proven", ""),
        # What follows a contradiction is weighed by the record of it: there is one.
        (recorded([0, 40, 90], [1, 1, 1], [(0, 1, "dispatch", 50.0), (1, 2, "dispatch", 50.0)]), "failed", "10 ms bef"),
    ],
)
def test_g6_weighs_recorded_times(graph: Graph, verdict: str, words: str) -> None:
    seen, findings = verdicts(graph)
    assert seen["G6"] == verdict
    assert [seen[f"G{n}"] for n in range(1, 6)] == ["proven"] * 5
    breaches = [item for item in findings.items if item.code == "recorded-contradiction"]
    assert len(breaches) == (verdict == "failed")
    if breaches:
        assert words in breaches[0].message
        assert prove(graph).findings == findings.items  # it warns, and replays by its edges


def test_g6_sees_a_contradiction_beyond_the_clock() -> None:
    # A request that ends at the very end of the clock, and a delay of the whole clock behind it: together 2**63 ns,
    # which is more than an integer holds.
    seen, findings = verdicts(recorded([1, 1], [HORIZON_MS, 5], [(0, 1, "completion", HORIZON_MS)]))
    assert (seen["G4"], seen["G6"]) == ("failed", "failed")
    (breach,) = (item for item in findings.items if item.code == "recorded-contradiction")
    assert breach.where.ids == ("r1",)


def test_plays_of_one_shape_are_proven_once() -> None:
    rows = [
        {**row, "request_id": f"{play}.{row['request_id']}", "play_id": play}
        | {"dependencies": [_renamed(edge, play) for edge in row.get("dependencies", [])]}
        for play in ("p", "q", "r")
        for row in SPAWN_JOIN
    ]
    proven = prove(sketch(rows))
    assert (proven.certificate.plays, proven.certificate.shapes) == (3, 1)


def _renamed(edge: str | dict[str, Any], play: str) -> str | dict[str, Any]:
    if isinstance(edge, str):
        return f"{play}.{edge}"
    return {**edge, "request_id": f"{play}.{edge['request_id']}"}
