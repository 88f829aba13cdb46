"""The ledger: everything a replay observed, as arrays. Reports are made from it and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Bool = npt.NDArray[np.bool_]

# Stands for "never happened" in every time column. No event has a negative time.
NEVER = -1


# What a worker did with its host pool: the lookups that led to an admission or a load (misses, hits), the copies and
# the blocks that they moved (stores and loads), how often a request was set aside because of something on its way
# (deferrals), stores put off for want of room (retries), and the ns in which its links moved bytes.
# `pool` is the row of its pool, which has what belongs to the pool: its blocks, those in use and resident at the end,
# evictions, and the ns in which any link of a shared pool moved bytes; these are 0 in other rows. A pool of one's own
# is one's own row; -1 stands for no host memory.
HOST_USE = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("pool", "capacity", "used", "resident", "block_bytes", "hits", "misses", "stores", "loads"),
            *("stored_blocks", "loaded_blocks", "evictions", "deferrals", "retries", "d2h_busy", "h2d_busy"),
            *("pool_d2h_busy", "pool_h2d_busy"),
        )
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class RunTotals:
    """What every run comes to, whatever its plays were: the gaps between tokens, and what its workers did.

    Attributes
    ----------
    gap_ns, gap_count : Int64, shape (gaps,)
        Inter-token gaps as (distinct value, multiplicity), values ascending.
    passes : Int64, shape (workers,)
        Forward passes run. Workers of the aggregated or prefill role come first, then those of the decode role.
    busy_ns : Int64, shape (workers,)
        Time spent in passes.
    prefill_tokens : Int64, shape (workers,)
        Tokens that requests computed in passes in which they computed prompt tokens: prompts less what the cache had,
        and the output that a preempted request computes again together with its prompt.
    decode_tokens : Int64, shape (workers,)
        Tokens generated.
    preemptions : Int64, shape (workers,)
    evictions : Int64, shape (workers,)
    hosts : records of `HOST_USE`, shape (workers,)
        Each worker's use of its host pool and links, and the pools; empty where no worker has any.
    """

    gap_ns: Int64
    gap_count: Int64
    passes: Int64
    busy_ns: Int64
    prefill_tokens: Int64
    decode_tokens: Int64
    preemptions: Int64
    evictions: Int64
    hosts: npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Ledger(RunTotals):
    """What happened, by node, by play, by admission; besides, the totals. Times are ns from the run's origin.

    Attributes
    ----------
    node_state : Int8, shape (nodes,)
        Final `NodeState` of each node, by node index.
    request_state : Int8, shape (nodes,)
        Final `RequestState` of the node's request, whatever the topology; QUEUED for nodes never dispatched.
    handoff_state : Int8, shape (nodes,)
        Final `HandoffState` in prefill/decode; QUEUED for nodes never dispatched, and everywhere when aggregated.
    dispatched_ns, first_admit_ns, first_token_ns, second_token_ns, last_token_ns, terminal_ns : Int64, shape (nodes,)
        NEVER where it did not happen.
    output_length : Int64, shape (nodes,)
        Tokens generated.
    source_held_ns, destination_reserved_ns, destination_activated_ns, source_released_ns : Int64, shape (nodes,)
        Steps of the handoff in prefill/decode; NEVER where it did not happen, and everywhere when aggregated.
    worker, decode_worker : Int32, shape (nodes,)
        Worker of the aggregated or prefill role that served the node, and of the decode role; counted from 0 in each
        role, -1 for none.
    route_overlap, decode_route_overlap : Int64, shape (nodes,)
        Tokens of the prompt that the KV router knew to be at that worker when it chose it, on the device and, behind
        those, in host memory; -1 where it chose none.
    admissions : Int32, shape (nodes,)
        How often the node was admitted (the first time included), over both roles.
    admission_node : Int32; admission_at_ns, admission_reused, admission_pool_ordinal : Int64, shape (admissions,)
        The admission history, in the order of events: who, when, tokens found in cache, and how often the request had
        been admitted before in that role.
    admission_host_reused : Int64, shape (admissions,)
        How many of the reused tokens had been restored from host memory for it.
    admission_decode : Bool, shape (admissions,)
        Whether a decode worker admitted it.
    play_state : Int8, shape (plays,)
        Final `PlayState`.
    play_lane : Int32; play_start_ns, play_first_dispatch_ns, play_last_terminal_ns, play_settled_ns : Int64
        By play, in the graph's play order; lane -1 without lanes.
    play_failed_node : Int32, shape (plays,)
        The node whose failure failed the play, -1 for none.
    end_ns : int
        Time of the last event.
    """

    node_state: Int8
    request_state: Int8
    handoff_state: Int8
    dispatched_ns: Int64
    first_admit_ns: Int64
    first_token_ns: Int64
    second_token_ns: Int64
    last_token_ns: Int64
    terminal_ns: Int64
    output_length: Int64
    source_held_ns: Int64
    destination_reserved_ns: Int64
    destination_activated_ns: Int64
    source_released_ns: Int64
    worker: Int32
    decode_worker: Int32
    route_overlap: Int64
    decode_route_overlap: Int64
    admissions: Int32
    admission_node: Int32
    admission_at_ns: Int64
    admission_reused: Int64
    admission_pool_ordinal: Int64
    admission_host_reused: Int64
    admission_decode: Bool
    play_state: Int8
    play_lane: Int32
    play_start_ns: Int64
    play_first_dispatch_ns: Int64
    play_last_terminal_ns: Int64
    play_settled_ns: Int64
    play_failed_node: Int32
    end_ns: int
