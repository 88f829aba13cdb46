"""Every lifecycle of the project, as tables. Nothing else may change a state.

What may live here: enums of states and events, the successor tables, their guards, and the lookup that refuses an
illegal pair. What may not: time, arrays of a run, or any decision about *when* an event happens. The kernel turns each
table into an int8 array and executes it; the diagrams, the proofs and the tests read the same tables.

An absent pair is illegal. Terminal states have empty rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class IllegalTransition(Exception):
    """An event reached a state whose row has no such column. The fault is ours, never the trace's."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a table: the successor, and the named guard under which the event may happen."""

    to: IntEnum
    guard: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A finite state machine, whole.

    Attributes
    ----------
    name : str
        How the machine is called in the command line, the diagrams and the proofs.
    about : str
        One sentence on what the lifecycle belongs to.
    states, events : type[IntEnum]
        The alphabet; values are dense from 0, since they index arrays.
    table : Mapping[IntEnum, Mapping[IntEnum, Rule]]
        A row for every state.
    initial : IntEnum
    terminal : frozenset[IntEnum]
    """

    name: str
    about: str
    states: type[IntEnum]
    events: type[IntEnum]
    table: Mapping[IntEnum, Mapping[IntEnum, Rule]]
    initial: IntEnum
    terminal: frozenset[IntEnum]

    def successor(self, state: IntEnum, event: IntEnum) -> IntEnum:
        """Return the state after `event`.

        Raises
        ------
        IllegalTransition
            When the row of `state` has no such event.
        """
        rule = self.table[state].get(event)
        if rule is None:
            raise IllegalTransition(f"{self.name}: {event.name.lower()} is illegal in state {state.name.lower()}")
        return rule.to

    def as_array(self) -> npt.NDArray[np.int8]:
        """Return the table as an array of shape (states, events); -1 stands for an illegal pair."""
        array = np.full((len(self.states), len(self.events)), -1, dtype=np.int8)
        for state, row in self.table.items():
            for event, rule in row.items():
                array[state, event] = rule.to
        return array


Row = Mapping[IntEnum, Rule]


def _machine(
    name: str,
    about: str,
    initial: IntEnum,
    events: type[IntEnum],
    table: Mapping[IntEnum, Mapping[IntEnum, IntEnum | Rule]],
) -> Machine:
    """Build a machine; a bare state in a row is a rule without a guard, a state without a row is terminal."""
    states = type(initial)
    rows: dict[IntEnum, Row] = {
        state: {event: to if isinstance(to, Rule) else Rule(to) for event, to in table.get(state, {}).items()}
        for state in states
    }
    return Machine(name, about, states, events, rows, initial, frozenset(s for s in states if not rows[s]))


# What a guard's name stands for. A guard restricts when an event may be raised; it never changes the successor. Each
# has a predicate on the arrays of a run (`playproof_kernel.checks.guards`), which tests evaluate at every event.
GUARDS: dict[str, str] = {
    "all_edges_fired": "every incoming edge of the node has fired, and its play is active; of a preparation request: "
    "the one before it in its lane has completed",
    "due": "the play is active and the node's ready time has come: the latest of its floor and each event plus delay, "
    "or sooner where an idle cap brought it forward",
    "play_failed": "the play is failing: a node of it was rejected, failed or was canceled; of the preparation: a "
    "request of it has failed",
    "play_closing": "the play is closing: the deadline passed before all its nodes were dispatched",
    "before_cut": "neither the play nor anything else has begun, and the play is the first of its lane",
    "all_over": "every node of the play is over: none is blocked, ready or dispatched",
    "all_completed": "every node of the play completed, but for those that are history",
    "cache_on": "prefix caching is on and the block is full",
    "last_reference": "nothing else refers to the block",
    "no_free_block": "fewer blocks are free than are wanted; the block is the least recently used idle one",
    "fits": "a seat is free, and the pool holds what the request has to compute",
    "never_fits": "prompt at or over the context limit, or more than an idle worker can take: blocks for it, in "
    "SGLang also for what is kept free for its output, and tokens in a pass",
    "over_context": "the prompt is at or over the context limit",
    "all_generated": "the pass that gave the request its last token ended after it was preempted, as passes that are "
    "scheduled ahead do",
    "outgrew_pool": "the request alone needs more than the pool has: blocks for its next token, or in SGLang for its "
    "tokens and what is kept free for its output",
    "zero_tokens": "the request asks for no output token",
    "primers_ended": "no primer is left to end",
    "warmups_ended": "no request of the preparation is left to end",
    "all_lanes_prepared": "every lane's preparation succeeded and all its server work has settled",
    "preparation_failed": "a request of the preparation failed, and all server work has settled",
    "profile_over": "the profile has lasted as long as it should",
    "plays_settled": "no lane has a play",
    "grace_over": "the grace is over, and a request is still in flight",
    "run_at_rest": "no request is in flight",
    "host_room": "host memory has a place that holds nothing",
    "unpinned": "no load reads the block",
}


class NodeState(IntEnum):
    BLOCKED = 0
    READY = 1
    DISPATCHED = 2
    COMPLETED = 3
    FAILED = 4
    SKIPPED = 5
    CANCELED = 6
    NEVER_ISSUED = 7
    HISTORICAL = 8


class NodeEvent(IntEnum):
    RELEASE = 0
    DISPATCH = 1
    COMPLETE = 2
    REJECT = 3
    FAIL = 4
    CANCEL = 5
    SKIP = 6
    EXPIRE = 7
    CUT = 8


NODE = _machine(
    "node",
    "One request of one play instance, as the dependency graph sees it.",
    NodeState.BLOCKED,
    NodeEvent,
    {
        NodeState.BLOCKED: {
            NodeEvent.RELEASE: Rule(NodeState.READY, "all_edges_fired"),
            NodeEvent.SKIP: Rule(NodeState.SKIPPED, "play_failed"),
            NodeEvent.EXPIRE: Rule(NodeState.NEVER_ISSUED, "play_closing"),
            NodeEvent.CUT: Rule(NodeState.HISTORICAL, "before_cut"),
        },
        NodeState.READY: {
            NodeEvent.DISPATCH: Rule(NodeState.DISPATCHED, "due"),
            NodeEvent.SKIP: Rule(NodeState.SKIPPED, "play_failed"),
            NodeEvent.EXPIRE: Rule(NodeState.NEVER_ISSUED, "play_closing"),
        },
        NodeState.DISPATCHED: {
            NodeEvent.COMPLETE: NodeState.COMPLETED,
            NodeEvent.REJECT: NodeState.FAILED,
            NodeEvent.FAIL: NodeState.FAILED,
            NodeEvent.CANCEL: NodeState.CANCELED,
        },
    },
)


class PlayState(IntEnum):
    PENDING = 0
    ACTIVE = 1
    FAILING = 2
    SETTLING = 3
    CLOSING = 4
    COMPLETED = 5
    FAILED = 6
    INCOMPLETE = 7


class PlayEvent(IntEnum):
    ACTIVATE = 0
    NODE_FAILED = 1
    LAST_COMPLETED = 2
    DEADLINE = 3
    SETTLED = 4


PLAY = _machine(
    "play",
    "One play instance: from its activation to the settlement of its last request.",
    PlayState.PENDING,
    PlayEvent,
    {
        PlayState.PENDING: {PlayEvent.ACTIVATE: PlayState.ACTIVE},
        PlayState.ACTIVE: {
            PlayEvent.NODE_FAILED: PlayState.FAILING,
            PlayEvent.LAST_COMPLETED: Rule(PlayState.SETTLING, "all_completed"),
            PlayEvent.DEADLINE: PlayState.CLOSING,
        },
        PlayState.FAILING: {
            # A second request of the same play may fail while the first failure is still settling.
            PlayEvent.NODE_FAILED: PlayState.FAILING,
            PlayEvent.SETTLED: Rule(PlayState.FAILED, "all_over"),
        },
        PlayState.SETTLING: {PlayEvent.SETTLED: Rule(PlayState.COMPLETED, "all_over")},
        PlayState.CLOSING: {PlayEvent.SETTLED: Rule(PlayState.INCOMPLETE, "all_over")},
    },
)


class LaneState(IntEnum):
    IDLE = 0
    OCCUPIED = 1
    RETIRED = 2


class LaneEvent(IntEnum):
    ADMIT = 0
    PLAY_SETTLED = 1
    EXHAUSTED = 2
    DEADLINE = 3


LANE = _machine(
    "lane",
    "One seat for a play; when its play settles it takes the next one at the same instant.",
    LaneState.IDLE,
    LaneEvent,
    {
        LaneState.IDLE: {
            LaneEvent.ADMIT: LaneState.OCCUPIED,
            LaneEvent.EXHAUSTED: LaneState.RETIRED,
            LaneEvent.DEADLINE: LaneState.RETIRED,
        },
        LaneState.OCCUPIED: {LaneEvent.PLAY_SETTLED: Rule(LaneState.IDLE, "all_over")},
    },
)


class PhaseState(IntEnum):
    PRIMER = 0
    WARMUP = 1
    BARRIER = 2
    PROFILE = 3
    GRACE = 4
    DRAIN = 5
    DONE = 6
    INVALID = 7


class PhaseEvent(IntEnum):
    PRIMED = 0
    WARMED = 1
    OPEN = 2
    DEADLINE = 3
    GRACE_OVER = 4
    SETTLED = 5
    PREPARATION_FAILED = 6


PHASE = _machine(
    "phase",
    "One run: preparation, the barrier, the measured profile, and its orderly end.",
    PhaseState.PRIMER,
    PhaseEvent,
    {
        PhaseState.PRIMER: {
            PhaseEvent.PRIMED: Rule(PhaseState.WARMUP, "primers_ended"),
            PhaseEvent.PREPARATION_FAILED: Rule(PhaseState.INVALID, "preparation_failed"),
        },
        PhaseState.WARMUP: {
            PhaseEvent.WARMED: Rule(PhaseState.BARRIER, "warmups_ended"),
            PhaseEvent.PREPARATION_FAILED: Rule(PhaseState.INVALID, "preparation_failed"),
        },
        PhaseState.BARRIER: {
            PhaseEvent.OPEN: Rule(PhaseState.PROFILE, "all_lanes_prepared"),
            PhaseEvent.PREPARATION_FAILED: Rule(PhaseState.INVALID, "preparation_failed"),
        },
        PhaseState.PROFILE: {
            PhaseEvent.DEADLINE: Rule(PhaseState.GRACE, "profile_over"),
            # A finite run, or a profile whose every lane ran dry, needs no deadline to end.
            PhaseEvent.SETTLED: Rule(PhaseState.DONE, "plays_settled"),
        },
        PhaseState.GRACE: {
            PhaseEvent.GRACE_OVER: Rule(PhaseState.DRAIN, "grace_over"),
            PhaseEvent.SETTLED: Rule(PhaseState.DONE, "run_at_rest"),
        },
        PhaseState.DRAIN: {
            PhaseEvent.SETTLED: Rule(PhaseState.DONE, "run_at_rest"),
        },
    },
)


class RequestState(IntEnum):
    QUEUED = 0
    PLACED = 1
    WAITING = 2
    LOADING = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED = 6
    REJECTED = 7
    FAILED = 8
    CANCELED = 9


class RequestEvent(IntEnum):
    PLACE = 0
    ENQUEUE = 1
    LOAD = 2
    ADMIT = 3
    PREEMPT = 4
    FINISH = 5
    REJECT = 6
    FAIL = 7
    CANCEL = 8


REQUEST = _machine(
    "request",
    "One request on an aggregated worker.",
    RequestState.QUEUED,
    RequestEvent,
    {
        RequestState.QUEUED: {
            RequestEvent.PLACE: RequestState.PLACED,
            RequestEvent.REJECT: Rule(RequestState.REJECTED, "over_context"),
            RequestEvent.CANCEL: RequestState.CANCELED,
        },
        RequestState.PLACED: {
            RequestEvent.ENQUEUE: RequestState.WAITING,
            RequestEvent.CANCEL: RequestState.CANCELED,
        },
        RequestState.WAITING: {
            RequestEvent.LOAD: Rule(RequestState.LOADING, "fits"),
            RequestEvent.ADMIT: Rule(RequestState.RUNNING, "fits"),
            RequestEvent.REJECT: Rule(RequestState.REJECTED, "never_fits"),
            RequestEvent.CANCEL: RequestState.CANCELED,
        },
        RequestState.LOADING: {
            RequestEvent.ADMIT: RequestState.RUNNING,
            RequestEvent.CANCEL: RequestState.CANCELED,
        },
        RequestState.RUNNING: {
            RequestEvent.PREEMPT: RequestState.PREEMPTED,
            RequestEvent.FINISH: RequestState.FINISHED,
            RequestEvent.FAIL: Rule(RequestState.FAILED, "outgrew_pool"),
            RequestEvent.CANCEL: RequestState.CANCELED,
        },
        RequestState.PREEMPTED: {
            RequestEvent.LOAD: Rule(RequestState.LOADING, "fits"),
            RequestEvent.ADMIT: Rule(RequestState.RUNNING, "fits"),
            # With asynchronous scheduling the pass in progress may still owe it its last token.
            RequestEvent.FINISH: Rule(RequestState.FINISHED, "all_generated"),
            RequestEvent.FAIL: Rule(RequestState.FAILED, "outgrew_pool"),
            RequestEvent.CANCEL: RequestState.CANCELED,
        },
    },
)


class HandoffState(IntEnum):
    QUEUED = 0
    PREFILLING = 1
    PREFILLED = 2
    RESERVING = 3
    RESERVED = 4
    TRANSFERRING = 5
    DECODE_WAITING = 6
    DECODING = 7
    COMPLETED = 8
    FAILED = 9
    CANCELED = 10


class HandoffEvent(IntEnum):
    SUBMIT = 0
    PREFILL_DONE = 1
    RESERVE = 2
    GRANT = 3
    TRANSFER = 4
    ACTIVATE = 5
    ADMIT = 6
    COMPLETE = 7
    COMPLETE_EMPTY = 8
    FAIL = 9
    CANCEL = 10


# Any live state of a handoff may fail or be canceled; both free all that the request holds.
_LIVE_HANDOFF: dict[IntEnum, IntEnum | Rule] = {
    HandoffEvent.FAIL: HandoffState.FAILED,
    HandoffEvent.CANCEL: HandoffState.CANCELED,
}

# The decode side is the same whoever moves first.
_DECODE_SIDE: dict[IntEnum, Mapping[IntEnum, IntEnum | Rule]] = {
    HandoffState.TRANSFERRING: {
        HandoffEvent.ACTIVATE: HandoffState.DECODE_WAITING,
        **_LIVE_HANDOFF,
    },
    HandoffState.DECODE_WAITING: {HandoffEvent.ADMIT: Rule(HandoffState.DECODING, "fits"), **_LIVE_HANDOFF},
    HandoffState.DECODING: {
        # A request pushed out of a full decode pool waits for its turn again.
        HandoffEvent.RESERVE: HandoffState.DECODE_WAITING,
        HandoffEvent.COMPLETE: HandoffState.COMPLETED,
        # A request that asks for no token has its seat for one pass, like any other, and leaves without a token.
        HandoffEvent.COMPLETE_EMPTY: Rule(HandoffState.COMPLETED, "zero_tokens"),
        **_LIVE_HANDOFF,
    },
}

HANDOFF_SOURCE_FIRST = _machine(
    "handoff_source_first",
    "A logical request in prefill/decode as vLLM orders it: the prompt is computed, then the destination is reserved.",
    HandoffState.QUEUED,
    HandoffEvent,
    {
        HandoffState.QUEUED: {HandoffEvent.SUBMIT: HandoffState.PREFILLING, **_LIVE_HANDOFF},
        HandoffState.PREFILLING: {HandoffEvent.PREFILL_DONE: HandoffState.PREFILLED, **_LIVE_HANDOFF},
        HandoffState.PREFILLED: {HandoffEvent.RESERVE: HandoffState.RESERVING, **_LIVE_HANDOFF},
        HandoffState.RESERVING: {HandoffEvent.GRANT: Rule(HandoffState.RESERVED, "fits"), **_LIVE_HANDOFF},
        HandoffState.RESERVED: {HandoffEvent.TRANSFER: HandoffState.TRANSFERRING, **_LIVE_HANDOFF},
        **_DECODE_SIDE,
    },
)

HANDOFF_DESTINATION_FIRST = _machine(
    "handoff_destination_first",
    "A logical request in prefill/decode as SGLang orders it: the destination is reserved, then the prompt computed.",
    HandoffState.QUEUED,
    HandoffEvent,
    {
        HandoffState.QUEUED: {HandoffEvent.RESERVE: HandoffState.RESERVING, **_LIVE_HANDOFF},
        HandoffState.RESERVING: {HandoffEvent.GRANT: Rule(HandoffState.RESERVED, "fits"), **_LIVE_HANDOFF},
        HandoffState.RESERVED: {HandoffEvent.SUBMIT: HandoffState.PREFILLING, **_LIVE_HANDOFF},
        HandoffState.PREFILLING: {HandoffEvent.PREFILL_DONE: HandoffState.PREFILLED, **_LIVE_HANDOFF},
        HandoffState.PREFILLED: {HandoffEvent.TRANSFER: HandoffState.TRANSFERRING, **_LIVE_HANDOFF},
        **_DECODE_SIDE,
    },
)


class BlockState(IntEnum):
    FREE = 0
    PRIVATE = 1
    CACHED_ACTIVE = 2
    CACHED_IDLE = 3
    LOADING = 4
    READING = 5
    READING_IDLE = 6


class BlockEvent(IntEnum):
    ALLOCATE = 0
    FILL = 1
    RELEASE = 2
    REUSE = 3
    EVICT = 4
    RESERVE_LOAD = 5
    LOADED = 6
    START_READ = 7
    READ_DONE = 8


BLOCK = _machine(
    "block",
    "One physical KV block (a copy) in GPU memory, G1.",
    BlockState.FREE,
    BlockEvent,
    {
        BlockState.FREE: {
            BlockEvent.ALLOCATE: BlockState.PRIVATE,
            BlockEvent.RESERVE_LOAD: BlockState.LOADING,
        },
        BlockState.PRIVATE: {
            BlockEvent.FILL: Rule(BlockState.CACHED_ACTIVE, "cache_on"),
            BlockEvent.RELEASE: BlockState.FREE,
        },
        BlockState.CACHED_ACTIVE: {
            BlockEvent.RELEASE: Rule(BlockState.CACHED_IDLE, "last_reference"),
            BlockEvent.START_READ: BlockState.READING,
        },
        BlockState.CACHED_IDLE: {
            BlockEvent.REUSE: BlockState.CACHED_ACTIVE,
            BlockEvent.EVICT: Rule(BlockState.FREE, "no_free_block"),
        },
        BlockState.LOADING: {
            BlockEvent.LOADED: BlockState.CACHED_ACTIVE,
            BlockEvent.RELEASE: BlockState.FREE,
        },
        BlockState.READING: {
            BlockEvent.READ_DONE: BlockState.CACHED_ACTIVE,
            BlockEvent.RELEASE: Rule(BlockState.READING_IDLE, "last_reference"),
        },
        BlockState.READING_IDLE: {
            BlockEvent.READ_DONE: BlockState.CACHED_IDLE,
            BlockEvent.REUSE: BlockState.READING,
            # The pass that writes the block waits for the read to end; the block itself may go at once.
            BlockEvent.EVICT: Rule(BlockState.FREE, "no_free_block"),
        },
    },
)


class HostBlockState(IntEnum):
    ABSENT = 0
    PENDING_STORE = 1
    RESIDENT = 2
    PINNED = 3


class HostBlockEvent(IntEnum):
    PREPARE_STORE = 0
    STORE_DONE = 1
    PIN = 2
    UNPIN = 3
    EVICT = 4


HOST_BLOCK = _machine(
    "host_block",
    "One block in host memory, G2.",
    HostBlockState.ABSENT,
    HostBlockEvent,
    {
        HostBlockState.ABSENT: {HostBlockEvent.PREPARE_STORE: Rule(HostBlockState.PENDING_STORE, "host_room")},
        HostBlockState.PENDING_STORE: {HostBlockEvent.STORE_DONE: HostBlockState.RESIDENT},
        HostBlockState.RESIDENT: {
            HostBlockEvent.PIN: HostBlockState.PINNED,
            HostBlockEvent.EVICT: Rule(HostBlockState.ABSENT, "unpinned"),
        },
        HostBlockState.PINNED: {HostBlockEvent.UNPIN: Rule(HostBlockState.RESIDENT, "last_reference")},
    },
)


class TransferState(IntEnum):
    PREPARED = 0
    SUBMITTED = 1
    MOVING = 2
    DONE = 3
    DROPPED = 4


class TransferEvent(IntEnum):
    SUBMIT = 0
    START = 1
    FINISH = 2
    DROP = 3


TRANSFER = _machine(
    "transfer",
    "One movement of blocks over a link.",
    TransferState.PREPARED,
    TransferEvent,
    {
        TransferState.PREPARED: {
            TransferEvent.SUBMIT: TransferState.SUBMITTED,
            TransferEvent.DROP: TransferState.DROPPED,
        },
        TransferState.SUBMITTED: {
            TransferEvent.START: TransferState.MOVING,
            TransferEvent.DROP: TransferState.DROPPED,
        },
        TransferState.MOVING: {
            TransferEvent.FINISH: TransferState.DONE,
            TransferEvent.DROP: TransferState.DROPPED,
        },
    },
)

MACHINES: tuple[Machine, ...] = (
    NODE,
    PLAY,
    LANE,
    PHASE,
    REQUEST,
    HANDOFF_SOURCE_FIRST,
    HANDOFF_DESTINATION_FIRST,
    BLOCK,
    HOST_BLOCK,
    TRANSFER,
)
