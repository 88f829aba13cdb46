"""The dense arrays that a replay runs on: their record types, and `Sim`, the bundle that compiled functions take.

Each record says what a new row has, each field of `Sim` how many rows there are; see `records`. Columns that describe
the corpus are read only (`static`, `edges`, `keys`); the rest is written in place. Lifecycle
states stand apart, one int8 array a machine, since only `advance` may write them. -1 (`NONE`) stands for no index and
for no time. Indices are int64 wherever compiled functions pass them on, since a second integer type would mean a second
compilation of every function it reaches; only the block pool, which is walked most, keeps int32.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from playproof_kernel.ground.jit import by_reference, constant
from playproof_kernel.ground.records import Dimension, Grid, Record, Rows, f8, f8s, i4, i8, i8s, per_draft

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

NONE = constant(-1)


class Static(Record):
    """A node, as the corpus and the deployment fix it. Times are ns, lengths tokens."""

    input: i8 = 0
    limit: i8 = 0  # tokens it will generate: the requested output, cut by the context limit
    floor: i8 = 0  # earliest start, from the play's activation
    edge_begin: i8 = 0  # outgoing edges
    edge_end: i8 = 0
    key_begin: i8 = 0  # runs of block keys of its prompt
    key_end: i8 = 0
    answer_end: i8 = 0  # behind them, runs of block keys of the answer, where prompts repeat it
    keyed: i8 = 0  # full blocks that all these runs have keys for
    table_size: i8 = 0  # most blocks it can ever hold
    play: i8 = 0
    in_degree: i8 = 0
    source: i8 = 0  # node of the corpus that this one runs
    space: i8 = 0  # namespace: what is added to its block keys
    serial: i8 = 0  # number of the request, never used again; equal times are in its order
    uncounted: i8 = 0  # whether the gaps between its tokens stay out of the log: it does not complete


class Edge(Record):
    """An outgoing edge. `target` counts from the `shift` of the play."""

    delay: i8 = 0
    target: i8 = 0
    trigger: i8 = 0


class Keys(Record):
    """Keys of consecutive full blocks of a prompt, from its block `begin` on:

    first, first + stride, … (`count` of them).
    """

    first: i8 = 0
    count: i8 = 0
    begin: i8 = 0


class Live(Record):
    """A node, as the run changes it."""

    ready: i8 = 0
    dispatched: i8 = NONE
    first_admit: i8 = NONE
    first_token: i8 = NONE
    second_token: i8 = NONE
    last_token: i8 = NONE
    terminal: i8 = NONE
    computed: i8 = 0  # tokens whose KV exists
    generated: i8 = 0
    table_begin: i8 = 0  # its block table in the arena
    prompt_pass: i8 = 0  # the last pass of its worker that computed prompt tokens of it
    table_len: i8 = 0
    filled: i8 = 0  # leading blocks of the table that are full and cached
    leaf: i8 = 0  # SGLang: the node of the radix tree that ends its cached pages
    worker: i8 = NONE
    pending: i8 = 0  # incoming edges that have not fired
    next: i8 = NONE  # link in one of its worker's queues
    admissions: i8 = 0
    # With speculative decoding
    granted: i8 = 0  # most tokens that the current pass may give it
    drafting: i8 = 0  # whether it got a token since it was admitted last: drafts follow on that
    # With asynchronous scheduling
    owed: i8 = 0  # passes that have been scheduled and have not ended, and that will give it a token


class Ticket(Record):
    """An engine request, as the handoff and cancellations change it: what passes seldom look at."""

    action: i8 = 0  # what waits to be done for it: an `Action`
    next: i8 = NONE  # link in a queue of actions
    hold: i8 = 0  # a `Hold`
    order: i8 = 0  # of arrival at its decode worker
    tried_epoch: i8 = NONE  # capacity epoch of the last try to reserve its destination
    canceled: i8 = 0
    holder: i8 = NONE  # its place in `holders`, NONE without a block table
    first_reused: i8 = NONE  # tokens found in cache at its first admission, and at the one that found most
    most_reused: i8 = NONE
    # The KV router
    overlap: i8 = NONE  # tokens of its prompt published at its worker when it was placed; NONE if none looked
    is_assigned: i8 = 0  # whether it counts among its worker's requests
    missing: i8 = 0  # tokens that were not published on the device, and of these in host memory; 0 once it
    restorable: i8 = 0  # has begun
    # Host memory
    cursor: i8 = 0  # leading prompt blocks that need not be stored any more
    store: i8 = NONE  # its latest store while that is under way: a row of `host_transfers`, or NONE
    load: i8 = NONE  # the same of its load
    fenced: i8 = 0  # whether the current pass wrote blocks of it that a store was still reading
    restored: i8 = NONE  # blocks that the device had when its load was queued; NONE once it is admitted
    asleep: i8 = NONE  # the wakening after which it was last deferred


class Handoff(Record):
    """A node's way from prefill to decode."""

    held: i8 = NONE
    reserved: i8 = NONE
    activated: i8 = NONE
    released: i8 = NONE
    missing: i8 = 0  # tokens that the destination lacked when it was reserved


class Play(Record):
    """A play, or an instance of one in a seat."""

    start: i8 = NONE
    first_dispatch: i8 = NONE
    last_terminal: i8 = NONE
    settled: i8 = NONE
    node_begin: i8 = 0
    node_end: i8 = 0
    lane: i8 = NONE
    in_flight: i8 = 0
    completed: i8 = 0
    failed_node: i8 = NONE
    failed_at: i8 = NONE  # instant at which that was heard
    shift: i8 = 0  # first slot of the seat that it runs in, 0 in finite mode
    # Run controls
    next: i8 = 0  # link in the stack of free seats
    source: i8 = 0  # play of the corpus
    instance: i8 = 0  # number of the play instance
    ordinal: i8 = 0  # how many plays the lane had before
    idle_since: i8 = NONE  # instant from which the tree's idle cap counts
    earliest: i8 = NONE  # its earliest timer while nothing is in flight, NONE when that must be looked up
    unsettled: i8 = 0  # requests that are over for their client, and that engines still hold
    expired: i8 = 0  # requests that the deadline kept from being issued
    failed_outcome: i8 = NONE  # final state of the request that failed it


class Worker(Record):
    """A worker."""

    pass_start: i8 = 0
    pass_end: i8 = NONE  # NONE while idle; of the last pass of a macro-step
    macro: i8 = 0  # passes in the current macro-step
    first_duration: i8 = 0  # of its first pass
    decode_tokens_known: i8 = 0  # tokens known to the batch at its first pass, for the timing model
    role: i8 = 0  # its row in `config`
    passes: i8 = 0
    busy: i8 = 0
    prefill_tokens: i8 = 0
    decode_tokens: i8 = 0
    preemptions: i8 = 0
    evictions: i8 = 0
    tried: i8 = NONE  # instant of the last start without effect
    asked: i8 = NONE  # instant of the last try to reserve a destination
    running: i8 = 0
    canceled: i8 = 0  # running requests that were canceled since the current pass began
    holding: i8 = 0  # requests with a `Hold` on memory
    arrivals: i8 = 0  # destinations ever asked for here
    capacity_epoch: i8 = 0  # rises whenever memory or a seat may have become free
    free: i8 = 0  # blocks that no request holds and that cache nothing
    idle: i8 = 0  # cached blocks without a reference
    free_wanted: i8 = 0  # blocks that the latest eviction was to leave free; vLLM
    next_frame: i8 = 0  # where the search for a free block begins; vLLM
    oldest: i8 = 0  # where the order of idle blocks begins and ends; vLLM
    newest: i8 = 0
    groups: i8 = 0  # key groups of the index ever taken; the list of spare ones holds those given back; vLLM
    spare_group: i8 = NONE
    most: i8 = 0  # tokens that the pass being scheduled computes of one request at most; vLLM
    evicted_reads: i8 = 0  # blocks that were evicted while a store reads them; vLLM
    # Asynchronous scheduling; see `ahead`
    prepared: i8 = 0  # whether a pass is scheduled behind the one in progress
    flight: i8 = 0  # which row of `receivers` belongs to the pass in progress
    receiving: i8s  # length of each
    quiet: i8s  # whether that pass only gives one token to each running request
    pass_outcomes: i8s  # requests that it refused or failed
    prefill_begin: i8s  # `prefill_tokens` before it
    computes: i8s  # whether it computes anything, and so counts
    prefills: i8s  # whether it is a prefill pass; SGLang, and so the next two
    cuts: i8s  # whose prompt it computes in part, or NONE
    opens: i8s  # whether others are looked at again after it
    prepared_duration: i8 = 0
    prepared_known: i8 = 0
    # SGLang
    ratio: f8 = 0  # share of the running requests' remaining output that admission keeps free
    prefill: i8 = 0  # whether the current pass is a prefill pass
    stalled: i8 = 0  # requests that ran before the current pass admitted
    retracted: i8 = 0  # whether the current pass retracted
    stuck: i8 = 0  # whether the last running request that wants a token cannot have it in the current pass
    blocked: i8 = 0  # why the head of the queue was not admitted: a `Block`
    need: i8 = 0  # tokens that the head would have to find free
    least_need: i8 = 0  # the same if its cached prefix went
    full: i8 = 0  # whether no waiting request is looked at until a running one leaves; rules of SGLang's own
    cut: i8 = NONE  # whose prompt the current pass computes in part, or NONE; likewise, and so the next six
    offset: f8 = 0  # tokens that the batch that is put together will want, and running requests may
    charged: i8 = 0  # tokens that it takes now
    input_left: i8 = 0  # what is left of its budgets
    chunk_left: i8 = 0
    room_wanted: i8 = 0  # tokens for which it makes room
    fresh: i8 = 0  # pages that it takes
    noticed: i8 = 0  # waiting requests about which the next pass does something, wherever they stand
    tick: i8 = 0  # the tree's clock
    tree_live: i8 = 1  # nodes of the tree; the root is one
    tree_used: i8 = 1  # nodes ever taken; the free list holds the others
    tree_spare: i8 = NONE
    leaves: i8 = 0  # unlocked leaves
    # Run controls
    passes_before: i8 = 0  # passes run when the barrier opened
    prefill_before: i8 = 0  # `prefill_tokens` before the latest pass
    # The KV router
    published: i8 = 0  # how often it told of its caches
    ghosts: i8 = 0  # SGLang: runs of pages evicted since then
    assigned: i8 = 0  # tokens of its requests, less all of `decode_tokens`
    missing: i8 = 0  # the sums of its requests' tickets
    restorable: i8 = 0


class Queue(Record):
    """A queue of requests; see `queues`."""

    head: i8 = NONE
    tail: i8 = NONE


# Which queue of a worker: for a seat; what was rejected or failed in the current pass; for a destination here; for a
# seat with the prompt handed over, in the order of activation (SGLang).
WAITING, OUTCOMES, PENDING, READY = constant(0), constant(1), constant(2), constant(3)
# With host memory: for a transfer to end; and, linked by `host_transfers`, transfers prepared, under way in each
# direction, and just ended. Those under way and ended in a shared pool stand with the worker whose row the pool has.
# Stores that have ended while their worker was in a pass keep their blocks until that has ended, too.
DEFERRED, PREPARED, STORES, LOADS, ENDED_TRANSFERS = constant(4), constant(5), constant(6), constant(7), constant(8)
RETURNING = constant(9)
QUEUES = 10

# Directions of a link, and places in what a record keeps of each.
D2H, H2D = constant(0), constant(1)


class Branch(Record):
    """A node of a radix tree: the pages `begin` to `end` of the prompt (and output) of its owner. See `radix_tree`."""

    key: i8 = 0  # of its first page
    owner: i8 = 0  # node of the corpus
    space: i8 = 0  # namespace and number of the owner, which may be gone
    serial: i8 = 0
    begin: i8 = 0
    end: i8 = 0
    parent: i8 = 0
    children: i8 = 0
    locks: i8 = 0
    tick: i8 = 0
    next: i8 = 0  # link in a hash bucket or in the free list
    place: i8 = 0  # in the heap of unlocked leaves
    # The KV router
    grown: i8 = 0  # how often the worker had published when pages were added last
    shown: i8 = 0  # end of the pages that had been published then


class Frame(Record):
    """A physical block."""

    place: i4 = 0  # of its key in the index, when it is cached
    refs: i4 = 0  # of an idle block: -1 less the place of its idle run in the order of idle ones


class IdleRun(Record):
    """Idle frames that were freed in a row, with numbers that descend by one."""

    top: i4 = 0  # the frame of the highest number that was not evicted from it
    idle: i4 = 0  # frames that have been idle since


class KeyGroup(Record):
    """A group of neighbouring keys in an index of blocks: those from `number` times `key_groups.GROUP` on."""

    number: i8 = 0
    next: i4 = 0  # link in a hash bucket or in the list of spare groups
    used: i4 = 0  # keys that have blocks


class Indexed(Record):
    """A key that a pool has cached, or had when it last published; see `cache_events`.

    The last record is about the others.
    """

    key: i8 = 0
    frames: i4 = 0
    published: i4 = 0
    next: i4 = 0  # link in a hash bucket or in the list of spare entries
    marked: i4 = 0  # link in the list of entries whose event has not been published
    is_marked: i8 = 0


# Host memory --------------------------------------------------------------------------------------------------------


class Host(Record):
    """A worker's links to its host pool and who waits for them; and the pool itself, in the row that `pool` names:

    the worker's own, or, of a shared pool, that of the first worker that has a part in it.
    """

    pool: i8 = NONE  # NONE without host memory
    shared: i8 = 0
    # Of the pool's links: the instant at which the next transfer ends or, where it is shared, begins to move, or NONE
    due: i8 = NONE
    woken: i8 = 0  # whether transfers of the pool ended since the loop last looked at this worker
    users: i8 = 0  # workers of the pool
    # The pool
    capacity: i8 = 0  # blocks
    block_bytes: i8 = 0
    used: i8 = 0  # blocks resident or on their way
    groups: i8 = 0  # key groups of the index ever taken; the list of spare ones holds those given back
    spare_group: i8 = NONE
    idle: i8 = 0  # resident blocks that are not pinned
    oldest: i8 = 0  # where their order of use begins and ends
    newest: i8 = 0
    order_end: i8 = 0  # how far it goes before it is compacted
    # Who used its blocks last, and what of that has not been entered in the order of use; see `offload._use_all`
    recent: i8 = NONE  # request, or NONE
    unsettled: i8 = 0
    used_at: i8 = 0  # where the order ended then
    older: i8 = 0  # idle blocks used before its own
    # A shared pool's links; see `host_links`
    pool_bytes_per_second: f8s  # by direction; 0: no bound
    pool_busy: i8s
    advanced: i8 = 0  # instant up to which transfers have moved
    # The worker's links
    bytes_per_second: f8s  # 0: at once
    latency: i8 = 0
    link_free: i8s  # private: instants at which the links have done what was submitted
    moving: i8s  # shared: transfers that move
    rate: f8s  # bytes per ns of each of them
    host_transfers: i8 = 0  # transfers prepared or under way
    transfers_taken: i8 = 0  # rows of `host_transfers` ever taken, and those given up since
    transfers_spare: i8 = NONE
    fence: i8 = 0  # earliest instant at which the pass being scheduled may compute
    retrying: i8 = 0  # whether a running request has blocks that it could not store in the current pass
    wakenings: i8 = 0
    awake: i8 = 0  # deferred requests that have not been looked at since the latest wakening
    # What the report counts; evictions stand with the pool
    hits: i8 = 0
    misses: i8 = 0
    stores: i8 = 0
    loads: i8 = 0
    moved_blocks: i8s
    evictions: i8 = 0
    deferrals: i8 = 0
    retries: i8 = 0
    busy: i8s  # ns in which a transfer of the worker moved


class HostKeyGroup(Record):
    """A group of neighbouring keys in the index of a host pool:

    those from `number` times `key_groups.GROUP` on. Its blocks stand as bits, by place.
    """

    number: i8 = 0
    next: i4 = 0  # link in a hash bucket or in the list of spare groups
    latest: i4 = 0  # the idle run of its blocks that were used last, or NONE
    there: i8 = 0  # blocks that are not absent
    pending: i8 = 0
    idle: i8 = 0  # resident and not pinned


class HostDetail(Record):
    """What is to be known of a block in host memory that is pending or pinned."""

    link: i4 = 0  # pending: the next block of its store, or NONE; pinned: by how many loads
    source: i4 = 0  # pending: the G1 frame that its store reads, and the address that this had then
    address: i4 = 0


class HostIdleRun(Record):
    """Idle blocks of one key group that were used in one go; see `host_pool`."""

    group: i4 = 0
    earlier: i4 = 0  # the group's idle run before it, or NONE
    blocks: i8 = 0  # those that have been idle since, as bits


class HostTransfer(Record):
    """Blocks on their way to the host (a store) or back (a load)."""

    next: i8 = 0  # link in a queue or in the list of spare rows
    worker: i8 = 0
    request: i8 = 0
    ready: i8 = 0  # instant of its first byte in a shared pool
    left: f8 = 0  # bytes that have not moved yet in a shared pool
    end: i8 = 0  # NONE until that is known
    blocks: i8 = 0
    # store: the place of its last block, or, when it is returning, in G1; load: its first block in the prompt
    first: i8 = 0


class Heap(Record):
    """An entry of a heap of instants."""

    time: i8 = 0
    node: i8 = 0
    serial: i8 = 0


class Admission(Record):
    """That a request was admitted."""

    at: i8 = 0
    reused: i8 = 0
    request: i8 = 0
    ordinal: i8 = 0
    decode: i8 = 0
    host: i8 = 0


class Gap(Record):
    """An inter-token gap, with how often it occurred."""

    value: i8 = 0
    count: i8 = 0


class Config(Record):
    """One record a role: aggregated alone, or prefill and decode. What belongs to the run stands in the first."""

    role: i8 = 0
    engine: i8 = 0  # its number at the seam of engines
    keeps_tree: i8 = 0  # whether the cache is a radix tree, and not a pool of blocks
    destination_first: i8 = 0  # whether a handoff asks for memory at the decode worker first
    workers: i8 = 0
    first_worker: i8 = 0
    blocks: i8 = 0
    block_size: i8 = 0
    max_batched_tokens: i8 = 0
    max_sequences: i8 = 0
    ahead: i8 = 0  # whether a pass is scheduled while the one before it runs
    reserve: i8 = 0  # whether a request is admitted only when all that it knows has room
    watermark: i8 = 0  # blocks that stay available when a request is admitted beside others
    long_prefill: i8 = 0  # most tokens of one request in a pass, beside others
    plain: i8 = 0  # admission without speculation, watermark, and with `reserve`
    chunked_prefill_size: i8 = 0
    max_prefill_tokens: i8 = 0
    ratio_start: f8 = 0
    ratio_least: f8 = 0
    ratio_step: f8 = 0
    # SGLang's rules: the switches of `sglang_rules.RuleSet`
    whole_batches: i8 = 0
    sorted_batch: i8 = 0
    late_places: i8 = 0
    spare_pages: i8 = 0
    fixed_nodes: i8 = 0
    whole_leaves: i8 = 0
    ignore_eos: i8 = 0
    caching: i8 = 0
    reuse_output: i8 = 0  # whether the blocks of an answer have the keys that later prompts give them
    context: i8 = 0
    timing: i8 = 0  # the number of its timing model
    steady: i8 = 0  # whether a decode pass takes as long as every other
    instant_prompts: i8 = 0  # whether prompts are computed in no time
    prefill_ns: i8 = 0
    decode_ns: i8 = 0
    key_stride: i8 = 0
    lanes: i8 = 0  # 0: every play starts at the origin
    macro: i8 = 0
    host: i8 = 0  # whether its workers have host memory
    bytes_per_token: i8 = 0
    bytes_per_second: f8 = 0  # 0: KV transfers take no time
    full_prompt: i8 = 0
    end: i8 = 0  # the clock's bound: what is due later never happens
    # Routing
    policy: i8 = 0  # the number of the policy
    hears: i8 = 0  # whether the policy hears what caches tell
    overlap_score_weight: f8 = 0
    host_cache_hit_weight: f8 = 0
    # Speculative decoding
    speculative: i8 = 0  # whether the deployment has it
    drafts: i8 = 0  # tokens drafted for a request of a decode pass; in the prefill role none
    seed_low: i8 = 0
    seed_high: i8 = 0
    rates: per_draft
    # Run controls
    controls: i8 = 0  # whether plays run as instances in seats
    corpus: i8 = 0  # nodes of the corpus; under run controls they are not run themselves
    corpus_plays: i8 = 0
    prep_begin: i8 = 0  # first slot of the preparation requests
    profile: i8 = 0
    duration: i8 = 0
    grace: i8 = 0
    tree_cap: i8 = 0
    global_cap: i8 = 0
    key_span: i8 = 0  # above every block key of the corpus


class Run(Record):
    """The run: its clock and its counts."""

    now: i8 = 0
    heap: i8 = 0
    feedback: i8 = 0
    next_play: i8 = 0
    placed: i8s  # requests placed in turn on workers of each role
    in_flight: i8 = 0
    admissions: i8 = 0
    gaps: i8 = 0
    arena: i8 = 0  # used entries of the arena
    arena_wanted: i8 = 0
    finished: i8 = 0  # nodes in a terminal state
    holders: i8 = 0  # requests with a block table
    kv_transfers: i8 = 0  # entries of the heap of KV transfers
    next_cancellation: i8 = 0
    step: i8 = 0  # where in a turn the loop stands: a `Step`
    changed: i8 = 0  # whether this turn changed anything so far
    uncounted: i8 = 0  # whether gaps of some requests are not counted
    upcoming: i8 = 0  # the next instant at which something is due by itself, or NONE
    transfers_due: i8 = 0  # the same of host transfers that anybody hears of
    scanned: i8 = 0  # idle workers have had their chance to start at this instant
    # Run controls
    serial: i8 = 0  # requests numbered so far
    instances: i8 = 0  # play instances so far
    seat: i8 = 0  # top of the stack of free seats
    seats: i8 = 0  # seats on it
    noted: i8 = 0  # admissions taken note of
    results: i8 = 0  # used entries of the logs
    ended: i8 = 0
    shifts: i8 = 0
    prep_left: i8 = 0  # preparation requests that have not ended
    primers_left: i8 = 0
    prep_failed: i8 = 0  # slot of the first preparation request that failed, or NONE
    profile_start: i8 = 0  # NONE before the barrier
    finished_at: i8 = 0
    idle_since: i8 = 0  # instant of the last terminal request, or the profile's start
    occupied: i8 = 0  # lanes that hold a play
    refilled_at: i8 = 0  # instant of the last refill, and the refills at that instant
    refills: i8 = 0
    first_dispatch: i8 = 0
    issued: i8 = 0
    never_issued: i8 = 0
    canceled: i8 = 0
    unsettled: i8 = 0  # requests that are over for their client, and that engines still hold
    no_identity: i8 = 0  # a lane stopped for want of namespaces or numbers


# Records of the run controls ----------------------------------------------------------------------------------------


class Kept(Record):
    """A node of the first play of a lane, by lane and by position in the play."""

    historical: i8 = 0
    remaining: i8 = 0


class Lane(Record):
    """A lane under the run controls."""

    plays: i8 = 0  # plays that it has had
    seat: i8 = 0  # of its play: a row of `plays`
    prep_next: i8 = 0  # its next preparation request, and where they end
    prep_end: i8 = 0


class Prep(Record):
    """A preparation request, in the order of lanes. Its slot is `prep_begin` plus its number."""

    source: i8 = 0
    lane: i8 = 0
    primer: i8 = 0
    settled: i8 = 0


class Result(Record):
    """A request that is over, on its way out of the run."""

    serial: i8 = 0
    source: i8 = 0
    instance: i8 = 0
    state: i8 = 0
    worker: i8 = 0
    decode_worker: i8 = 0
    dispatched: i8 = 0
    first_admit: i8 = 0
    first_token: i8 = 0
    second_token: i8 = 0
    last_token: i8 = 0
    terminal: i8 = 0
    generated: i8 = 0
    admissions: i8 = 0
    first_reused: i8 = 0
    most_reused: i8 = 0
    held: i8 = 0
    reserved: i8 = 0
    activated: i8 = 0
    released: i8 = 0
    handoff_state: i8 = 0
    overlap: i8 = 0
    decode_overlap: i8 = 0


class Ended(Record):
    """A play instance that has ended, or that the run ended with."""

    instance: i8 = 0
    source: i8 = 0
    lane: i8 = 0
    ordinal: i8 = 0
    state: i8 = 0
    start: i8 = 0
    first_dispatch: i8 = 0
    last_terminal: i8 = 0
    settled: i8 = 0
    failed_source: i8 = 0
    failed_outcome: i8 = 0
    failed_at: i8 = 0
    expired: i8 = 0
    skipped: i8 = 0


class Shift(Record):
    """Timers moved by an idle cap; an instance of NONE stands for the cap over all plays."""

    at: i8 = 0
    instance: i8 = 0
    by: i8 = 0
    timers: i8 = 0


# Dimensions ---------------------------------------------------------------------------------------------------------

# What arrays have one row of, and what is in a row.
ROLES = Dimension("roles")
ONE = Dimension("record of its kind")
REQUESTS = Dimension("engine requests")
NODES = Dimension("nodes")
HANDED_OVER = Dimension("nodes that are handed over: all in prefill/decode, else none")
EDGES = Dimension("edges")
KEY_RUNS = Dimension("runs of block keys")
PLAYS = Dimension("plays")
LANES = Dimension("lanes, or one without")
WORKERS = Dimension("workers")
SEATS = Dimension("seats of the worker that has most")
TWO = Dimension("passes, in progress and prepared")
SEATS_AHEAD = Dimension("seats, or none without asynchronous scheduling")
QUEUE_KINDS = Dimension("queues a worker")
ACTION_QUEUES = Dimension("queues of actions: one a worker, and that of what is to be done now")
NUMBERS = Dimension("numbers of blocks")
NUMBERS_SHOWN = Dimension("numbers of blocks whose place shows, or none")
BLOCKS_SHOWN = Dimension("places of blocks that show, or none")
IDLE_RUNS = Dimension("runs of idle blocks (a power of two)")
BUCKETS = Dimension("buckets of the index of blocks (a power of two)")
BLOCKS = Dimension("blocks of the largest pool")
PLACES = Dimension("keys of the groups of the index")
ENTRIES = Dimension("entries of block tables")
LONGEST_TABLE = Dimension("entries of the longest block table, and one")
TREES = Dimension("radix trees: one a worker, and with the KV router as many again, for the ghosts")
BRANCHES = Dimension("nodes of a radix tree")
BRANCH_BUCKETS = Dimension("buckets of a radix tree (a power of two)")
THREE = Dimension("sums of a prefill part")
KV_TRANSFERS = Dimension("KV transfers that may be on their way")
CANCELLATIONS = Dimension("cancellations, in the order of their times")
HOSTS = Dimension("workers, or none without host memory")
HOST_POOLS = Dimension("host pools: one that all share, or one a worker")
HOST_PLACES = Dimension("keys of the groups of a host pool")
HOST_IDLE_RUNS = Dimension("runs of idle blocks of a host pool")
HOST_BLOCKS = Dimension("blocks of a host pool")
HOST_BUCKETS = Dimension("buckets of the index of a host pool (a power of two)")
HOST_TRANSFERS = Dimension("host transfers that may be under way, worker by worker")
INDICES = Dimension("indices of the KV router: of devices, of host pools, of what each worker evicted there")
INDEXED_KEYS = Dimension("keys of such an index, and one")
INDEX_BUCKETS = Dimension("buckets of such an index (a power of two)")
ADMISSION_LOG = Dimension("admissions that there is room for")
GAP_LOG = Dimension("distinct gaps that there is room for (a power of two)")
LANES_CONTROLLED = Dimension("lanes under run controls")
PREPARATION = Dimension("preparation requests")
RESULT_LOG = Dimension("results that there is room for")
ENDED_LOG = Dimension("ended plays that there is room for")
SHIFT_LOG = Dimension("shifts of timers that there is room for")
UNCOUNTED = Dimension("requests whose gaps stay out of the log")


@by_reference
class Sim(NamedTuple):
    """Everything a replay works on. `run` is a record of length one.

    A node is a request of the corpus; an engine request is one request on one worker (see `lifecycle`), R of them.
    Under the run controls the first nodes and plays are the corpus', which are copied and not run; the slots and seats
    of play instances follow, with the slots of preparation requests between (see `instances`).

    What each group of arrays is for is said in `kernel/README.md`; what one row is, by its record; how many rows there
    are, by its dimension.
    """

    config: Annotated[Rows[Config], ROLES]
    run: Annotated[Rows[Run], ONE]
    static: Annotated[Rows[Static], REQUESTS]
    live: Annotated[Rows[Live], REQUESTS]
    tickets: Annotated[Rows[Ticket], REQUESTS]
    request_state: Annotated[Int8, REQUESTS]  # `RequestState`
    node_state: Annotated[Int8, NODES]
    handoffs: Annotated[Rows[Handoff], HANDED_OVER]
    handoff_state: Annotated[Int8, HANDED_OVER]
    edges: Annotated[Rows[Edge], EDGES]
    keys: Annotated[Rows[Keys], KEY_RUNS]
    plays: Annotated[Rows[Play], PLAYS]
    blank_live: Annotated[Rows[Live], ONE]
    blank_ticket: Annotated[Rows[Ticket], ONE]
    blank_handoff: Annotated[Rows[Handoff], ONE]
    blank_play: Annotated[Rows[Play], ONE]
    play_state: Annotated[Int8, PLAYS]
    play_nodes: Annotated[Int64, NODES]  # in document order
    lane_state: Annotated[Int8, LANES]
    workers: Annotated[Rows[Worker], WORKERS]
    running: Annotated[Int64, WORKERS, SEATS]
    receivers: Annotated[Int64, WORKERS, TWO, SEATS_AHEAD]  # whom a pass gives a token or brings to its end
    queues: Annotated[Grid[Queue], WORKERS, QUEUE_KINDS]  # linked by `live`
    actions: Annotated[Rows[Queue], ACTION_QUEUES]  # linked by `tickets`
    frames: Annotated[Grid[Frame], WORKERS, NUMBERS]
    block_state: Annotated[Int8, WORKERS, NUMBERS]
    links: Annotated[Int32, WORKERS, NUMBERS]  # to a later frame of the same key
    addresses: Annotated[Int32, WORKERS, NUMBERS_SHOWN]  # place in device memory; see `block_pool`
    free_addresses: Annotated[Int32, WORKERS, BLOCKS_SHOWN]  # as a stack
    read_addresses: Annotated[Int8, WORKERS, BLOCKS_SHOWN]  # whether a store still reads there what was evicted
    order: Annotated[Grid[IdleRun], WORKERS, IDLE_RUNS]
    buckets: Annotated[Int32, WORKERS, BUCKETS]
    key_groups: Annotated[Grid[KeyGroup], WORKERS, BLOCKS]
    index_places: Annotated[Int32, WORKERS, PLACES]
    arena: Annotated[Int32, ENTRIES]  # block tables
    spare: Annotated[Int32, ENTRIES]  # room to compact them into
    holders: Annotated[Int64, REQUESTS]  # requests with a block table
    found: Annotated[Int32, LONGEST_TABLE]  # scratch: the blocks of the last prefix lookup
    tree: Annotated[Grid[Branch], TREES, BRANCHES]
    leaves: Annotated[Int64, WORKERS, BRANCHES]  # heaps of unlocked leaves
    branches: Annotated[Int64, WORKERS, BRANCH_BUCKETS]
    part: Annotated[Int64, WORKERS, THREE]  # scratch: the prefill part of the pass being scheduled
    heap: Annotated[Rows[Heap], NODES]  # timers of ready nodes
    kv_transfers: Annotated[Rows[Heap], KV_TRANSFERS]  # their ends
    cancellations: Annotated[Rows[Heap], CANCELLATIONS]
    hosts: Annotated[Rows[Host], HOSTS]
    host_state: Annotated[Int8, HOST_POOLS, HOST_PLACES]
    host_details: Annotated[Grid[HostDetail], HOST_POOLS, HOST_PLACES]
    host_order: Annotated[Grid[HostIdleRun], HOST_POOLS, HOST_IDLE_RUNS]
    host_key_groups: Annotated[Grid[HostKeyGroup], HOST_POOLS, HOST_BLOCKS]
    host_buckets: Annotated[Int32, HOST_POOLS, HOST_BUCKETS]
    kept: Annotated[Int32, HOSTS, NUMBERS]  # what comes after a block, or NONE, among those that an ended store keeps
    host_transfers: Annotated[Rows[HostTransfer], HOST_TRANSFERS]
    host_transfer_state: Annotated[Int8, HOST_TRANSFERS]
    index: Annotated[Grid[Indexed], INDICES, INDEXED_KEYS]  # type: ignore[assignment]  # tuples have a method of that name
    index_buckets: Annotated[Int32, INDICES, INDEX_BUCKETS]
    feedback: Annotated[Int64, REQUESTS]  # requests that ended at this instant
    admissions: Annotated[Rows[Admission], ADMISSION_LOG]
    gaps: Annotated[Rows[Gap], GAP_LOG]
    phase_state: Annotated[Int8, ONE]
    lanes: Annotated[Rows[Lane], LANES_CONTROLLED]
    prep: Annotated[Rows[Prep], PREPARATION]
    results: Annotated[Rows[Result], RESULT_LOG]
    ended: Annotated[Rows[Ended], ENDED_LOG]
    shifts: Annotated[Rows[Shift], SHIFT_LOG]
    uncounted: Annotated[Int64, UNCOUNTED]  # their serial numbers, ascending
