"""The dense arrays that a replay runs on: their record types, and `Sim`, the bundle that compiled functions take.

Columns that describe the corpus are read only (`static`, `edges`, `keys`); the rest is written in place. Lifecycle
states stand apart, one int8 array a machine, since only `advance` may write them. -1 (`NONE`) stands for no index and
for no time. Indices are int64 wherever compiled functions pass them on, since a second integer type would mean a second
compilation of every function it reaches; only the block pool, which is walked most, keeps int32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from playproof_spec.deployment import MAX_DRAFTS

from playproof_kernel.jit import by_reference, constant

NONE = constant(-1)

# A node, as the corpus and the deployment fix it. Times are ns, lengths tokens.
STATIC = np.dtype(
    [
        ("input", np.int64),
        ("limit", np.int64),  # tokens it will generate: the requested output, cut by the context limit
        ("floor", np.int64),  # earliest start, from the play's activation
        ("edge_begin", np.int64),  # outgoing edges
        ("edge_end", np.int64),
        ("key_begin", np.int64),  # runs of block keys of its prompt
        ("key_end", np.int64),
        ("answer_end", np.int64),  # behind them, runs of block keys of the answer, where prompts repeat it
        ("keyed", np.int64),  # full blocks that all these runs have keys for
        ("table_size", np.int64),  # most blocks it can ever hold
        ("play", np.int64),
        ("in_degree", np.int64),
        ("source", np.int64),  # node of the corpus that this one runs
        ("space", np.int64),  # namespace: what is added to its block keys
        ("serial", np.int64),  # number of the request, never used again; equal times are in its order
        ("uncounted", np.int64),  # whether the gaps between its tokens stay out of the log: it does not complete
    ],
    align=True,
)

# An outgoing edge. `target` counts from the `shift` of the play.
EDGE = np.dtype([("delay", np.int64), ("target", np.int64), ("trigger", np.int64)], align=True)

# Keys of consecutive full blocks of a prompt, from its block `begin` on: first, first + stride, … (`count` of them).
KEYS = np.dtype([("first", np.int64), ("count", np.int64), ("begin", np.int64)], align=True)

# A node, as the run changes it.
LIVE = np.dtype(
    [
        ("ready", np.int64),
        ("dispatched", np.int64),
        ("first_admit", np.int64),
        ("first_token", np.int64),
        ("second_token", np.int64),
        ("last_token", np.int64),
        ("terminal", np.int64),
        ("computed", np.int64),  # tokens whose KV exists
        ("generated", np.int64),
        ("table_begin", np.int64),  # its block table in the arena
        ("prompt_pass", np.int64),  # the last pass of its worker that computed prompt tokens of it
        ("table_len", np.int64),
        ("filled", np.int64),  # leading blocks of the table that are full and cached
        ("leaf", np.int64),  # SGLang: the node of the radix tree that ends its cached pages
        ("worker", np.int64),
        ("pending", np.int64),  # incoming edges that have not fired
        ("next", np.int64),  # link in one of its worker's queues
        ("admissions", np.int64),
        # With speculative decoding
        ("granted", np.int64),  # most tokens that the current pass may give it
        ("drafting", np.int64),  # whether it got a token since it was admitted last: drafts follow on that
        # With asynchronous scheduling
        ("owed", np.int64),  # passes that have been scheduled and have not ended, and that will give it a token
    ],
    align=True,
)

# An engine request, as the handoff and cancellations change it: what passes seldom look at.
TICKET = np.dtype(
    [
        ("action", np.int64),  # what waits to be done for it: an `Action`
        ("next", np.int64),  # link in a queue of actions
        ("hold", np.int64),  # a `Hold`
        ("order", np.int64),  # of arrival at its decode worker
        ("tried_epoch", np.int64),  # capacity epoch of the last try to reserve its destination
        ("canceled", np.int64),
        ("holder", np.int64),  # its place in `holders`, NONE without a block table
        (
            "first_reused",
            np.int64,
        ),  # tokens found in cache at its first admission, and at the one that found most (run controls)
        ("most_reused", np.int64),
        # The KV router
        ("overlap", np.int64),  # tokens of its prompt published at its worker when it was placed; NONE if none looked
        ("is_assigned", np.int64),  # whether it counts among its worker's requests
        ("missing", np.int64),  # tokens that were not published on the device, and of these in host memory; 0 once it
        ("restorable", np.int64),  # has begun
        # Host memory
        ("cursor", np.int64),  # leading prompt blocks that need not be stored any more
        ("store", np.int64),  # its latest store while that is under way: a row of `copyings`, or NONE
        ("load", np.int64),  # the same of its load
        ("fenced", np.int64),  # whether the current pass wrote blocks of it that a store was still reading
        ("restored", np.int64),  # blocks that the device had when its load was queued; NONE once it is admitted
        ("asleep", np.int64),  # the wakening after which it was last set aside
    ],
    align=True,
)

# A node's way from prefill to decode.
HANDOFF = np.dtype(
    [
        ("held", np.int64),
        ("reserved", np.int64),
        ("activated", np.int64),
        ("released", np.int64),
        ("missing", np.int64),  # tokens that the destination lacked when it was reserved
    ],
    align=True,
)

PLAY = np.dtype(
    [
        ("start", np.int64),
        ("first_dispatch", np.int64),
        ("last_terminal", np.int64),
        ("settled", np.int64),
        ("node_begin", np.int64),
        ("node_end", np.int64),
        ("lane", np.int64),
        ("in_flight", np.int64),
        ("completed", np.int64),
        ("failed_node", np.int64),
        ("failed_at", np.int64),  # instant at which that was heard
        ("shift", np.int64),  # first slot of the seat that it runs in, 0 in finite mode
        # Run controls
        ("next", np.int64),  # link in the stack of free seats
        ("source", np.int64),  # play of the corpus
        ("instance", np.int64),  # number of the play instance
        ("ordinal", np.int64),  # how many plays the lane had before
        ("idle_since", np.int64),  # instant from which the tree's idle cap counts
        ("earliest", np.int64),  # its earliest timer while nothing is in flight, NONE when that must be looked up
        ("unsettled", np.int64),  # requests that are over for their client, and that engines still hold
        ("expired", np.int64),  # requests that the deadline kept from being issued
        ("failed_outcome", np.int64),  # final state of the request that failed it
    ],
    align=True,
)

WORKER = np.dtype(
    [
        ("pass_start", np.int64),
        ("pass_end", np.int64),  # NONE while idle; of the last pass of a macro-step
        ("macro", np.int64),  # passes in the current macro-step
        ("first_duration", np.int64),  # of its first pass
        ("decode_tokens_known", np.int64),  # tokens known to the batch at its first pass, for the timing model
        ("role", np.int64),  # its row in `config`
        ("passes", np.int64),
        ("busy", np.int64),
        ("prefill_tokens", np.int64),
        ("decode_tokens", np.int64),
        ("preemptions", np.int64),
        ("evictions", np.int64),
        ("tried", np.int64),  # instant of the last start without effect
        ("asked", np.int64),  # instant of the last try to reserve a destination
        ("running", np.int64),
        ("canceled", np.int64),  # running requests that were canceled since the current pass began
        ("holding", np.int64),  # requests with a `Hold` on memory
        ("arrivals", np.int64),  # destinations ever asked for here
        ("capacity_epoch", np.int64),  # rises whenever memory or a seat may have become free
        ("free", np.int64),  # blocks that nobody holds and that cache nothing
        ("idle", np.int64),  # cached blocks without a reference
        ("free_wanted", np.int64),  # blocks that the latest eviction was to leave free; vLLM
        ("next_copy", np.int64),  # where the search for a free block begins; vLLM
        ("oldest", np.int64),  # where the order of idle blocks begins and ends; vLLM
        ("newest", np.int64),
        ("pages", np.int64),  # pages of the index ever taken; the list of spare ones holds those given back; vLLM
        ("spare_page", np.int64),
        ("most", np.int64),  # tokens that the pass being scheduled computes of one request at most; vLLM
        ("evicted_reads", np.int64),  # blocks that were evicted while a store reads them; vLLM
        # Asynchronous scheduling; see `ahead`
        ("prepared", np.int64),  # whether a pass is scheduled behind the one in progress
        (
            "flight",
            np.int64,
        ),  # which row of `receivers` belongs to the pass in progress; the other, to the prepared one
        ("receiving", np.int64, (2,)),  # length of each
        ("quiet", np.int64, (2,)),  # whether that pass only gives one token to each running request
        ("pass_outcomes", np.int64, (2,)),  # requests that it refused or failed
        ("prefill_begin", np.int64, (2,)),  # `prefill_tokens` before it
        ("computes", np.int64, (2,)),  # whether it computes anything, and so counts
        ("prefills", np.int64, (2,)),  # whether it is a prefill pass; SGLang, and so the next two
        ("cuts", np.int64, (2,)),  # whose prompt it computes in part, or NONE
        ("opens", np.int64, (2,)),  # whether others are looked at again after it
        ("prepared_duration", np.int64),
        ("prepared_known", np.int64),
        # SGLang
        ("ratio", np.float64),  # share of the running requests' remaining output that admission keeps free
        ("prefill", np.int64),  # whether the current pass is a prefill pass
        ("stalled", np.int64),  # requests that ran before the current pass admitted
        ("retracted", np.int64),  # whether the current pass retracted
        ("stuck", np.int64),  # whether the last running request that wants a token cannot have it in the current pass
        ("blocked", np.int64),  # why the head of the queue was not admitted: a `Block`
        ("need", np.int64),  # tokens that the head would have to find free
        ("least_need", np.int64),  # the same if its cached prefix went
        ("full", np.int64),  # whether nobody is looked at until a request leaves; rules of SGLang's own
        ("cut", np.int64),  # whose prompt the current pass computes in part, or NONE; likewise, and so the next six
        ("offset", np.float64),  # tokens that the batch that is put together will want, and running requests may
        ("charged", np.int64),  # tokens that it takes now
        ("input_left", np.int64),  # what is left of its budgets
        ("chunk_left", np.int64),
        ("room_wanted", np.int64),  # tokens for which it makes room
        ("fresh", np.int64),  # pages that it takes
        ("too_long", np.int64),  # waiting prompts at or over the context limit
        ("tick", np.int64),  # the tree's clock
        ("tree_live", np.int64),  # nodes of the tree
        ("tree_used", np.int64),  # nodes ever taken; the free list holds the others
        ("tree_spare", np.int64),
        ("leaves", np.int64),  # unlocked leaves
        # Run controls
        ("passes_before", np.int64),  # passes run when the barrier opened
        ("prefill_before", np.int64),  # `prefill_tokens` before the latest pass
        # The KV router
        ("published", np.int64),  # how often it told of its caches
        ("ghosts", np.int64),  # SGLang: stretches of pages evicted since then
        ("assigned", np.int64),  # tokens of its requests, less all of `decode_tokens`
        ("missing", np.int64),  # the sums of its requests' tickets
        ("restorable", np.int64),
    ],
    align=True,
)

# A queue of requests; see `queues`.
QUEUE = np.dtype([("head", np.int64), ("tail", np.int64)], align=True)

# Which queue of a worker: for a seat; what was rejected or failed in the current pass; for a destination here; for a
# seat with the prompt handed over, in the order of activation (SGLang).
WAITING, OUTCOMES, PENDING, READY = constant(0), constant(1), constant(2), constant(3)
# With host memory: for a copy to end; and, linked by `copyings`, copies prepared, under way in each direction, and just
# ended. Those under way and ended in a shared pool stand with the worker whose row the pool has.
# Stores that have ended while their worker was in a pass keep their blocks until that has ended, too.
ASIDE, PREPARED, STORES, LOADS, ENDED_COPIES = constant(4), constant(5), constant(6), constant(7), constant(8)
RETURNING = constant(9)
QUEUES = 10

# Directions of a link, and places in what a record keeps of each.
D2H, H2D = constant(0), constant(1)

# A node of a radix tree: the pages `begin` to `end` of the prompt (and output) of its owner. See `radix`.
BRANCH = np.dtype(
    [
        ("key", np.int64),  # of its first page
        ("owner", np.int64),  # node of the corpus
        ("space", np.int64),  # namespace and number of the owner, which may be gone
        ("serial", np.int64),
        ("begin", np.int64),
        ("end", np.int64),
        ("parent", np.int64),
        ("children", np.int64),
        ("locks", np.int64),
        ("tick", np.int64),
        ("next", np.int64),  # link in a hash bucket or in the free list
        ("place", np.int64),  # in the heap of unlocked leaves
        # The KV router
        ("grown", np.int64),  # how often the worker had published when pages were added last
        ("shown", np.int64),  # end of the pages that had been published then
    ],
    align=True,
)

# A physical block.
COPY = np.dtype(
    [
        ("place", np.int32),  # of its key in the index, when it is cached
        ("refs", np.int32),  # of an idle block: -1 less the place of its stretch in the order of idle ones
    ],
    align=True,
)

# Idle copies that came to rest in a row, with numbers that descend by one.
STRETCH = np.dtype(
    [
        ("top", np.int32),  # the copy of the highest number that was not evicted from it
        ("idle", np.int32),  # copies that have been idle since
    ],
    align=True,
)

# A page of an index of blocks: the keys from `number` times `pages.PAGE` on.
INDEX_PAGE = np.dtype(
    [
        ("number", np.int64),
        ("next", np.int32),  # link in a hash bucket or in the list of spare pages
        ("used", np.int32),  # keys that have blocks
    ],
    align=True,
)

# A key that a pool has cached, or had when it last published; see `router`. The last record is about the others.
INDEXED = np.dtype(
    [
        ("key", np.int64),
        ("copies", np.int32),
        ("published", np.int32),
        ("next", np.int32),  # link in a hash bucket or in the list of spare entries
        ("marked", np.int32),  # link in the list of entries whose event has not been published
        ("is_marked", np.int64),
    ],
    align=True,
)

# Host memory --------------------------------------------------------------------------------------------------------

# A worker's links to its host pool and who waits for them; and the pool itself, in the row that `pool` names: the
# worker's own, or, of a shared pool, that of the first worker that has a part in it.
HOST = np.dtype(
    [
        ("pool", np.int64),  # NONE without host memory
        ("shared", np.int64),
        # Of the pool's links: the instant at which the next copy ends or, where it is shared, begins to move, or NONE
        ("due", np.int64),
        ("stirred", np.int64),  # whether copies of the pool ended since the loop last looked at this worker
        ("users", np.int64),  # workers of the pool
        # The pool
        ("capacity", np.int64),  # blocks
        ("block_bytes", np.int64),
        ("used", np.int64),  # blocks resident or on their way
        ("pages", np.int64),  # pages of the index ever taken; the list of spare ones holds those given back
        ("spare_page", np.int64),
        ("idle", np.int64),  # resident blocks that are not pinned
        ("oldest", np.int64),  # where their order of use begins and ends
        ("newest", np.int64),
        ("order_end", np.int64),  # how far it goes before it is squeezed
        # Who used its blocks last, and what of that has not been entered in the order of use; see `offload._use_all`
        ("recent", np.int64),  # request, or NONE
        ("unsettled", np.int64),
        ("used_at", np.int64),  # where the order ended then
        ("older", np.int64),  # idle blocks used before its own
        # A shared pool's links; see `links`
        ("pool_bytes_per_second", np.float64, (2,)),  # by direction; 0: no bound
        ("pool_busy", np.int64, (2,)),
        ("advanced", np.int64),  # instant up to which copies have moved
        # The worker's links
        ("bytes_per_second", np.float64, (2,)),  # 0: at once
        ("latency", np.int64),
        ("link_free", np.int64, (2,)),  # private: instants at which the links have done what was submitted
        ("moving", np.int64, (2,)),  # shared: copies that move
        ("rate", np.float64, (2,)),  # bytes per ns of each of them
        ("copyings", np.int64),  # copies prepared or under way
        ("copyings_taken", np.int64),  # rows of `copyings` ever taken, and those given up since
        ("copyings_spare", np.int64),
        ("fence", np.int64),  # earliest instant at which the pass being scheduled may compute
        ("retrying", np.int64),  # whether a running request has blocks that it could not store in the current pass
        ("wakenings", np.int64),
        ("awake", np.int64),  # requests set aside that have not been looked at since the latest wakening
        # What the report counts; evictions stand with the pool
        ("hits", np.int64),
        ("misses", np.int64),
        ("stores", np.int64),
        ("loads", np.int64),
        ("moved_blocks", np.int64, (2,)),
        ("evictions", np.int64),
        ("deferrals", np.int64),
        ("retries", np.int64),
        ("busy", np.int64, (2,)),  # ns in which a copy of the worker moved
    ],
    align=True,
)

# A page of the index of a host pool: the keys from `number` times `pages.PAGE` on. Its blocks stand as bits, by place.
HOST_PAGE = np.dtype(
    [
        ("number", np.int64),
        ("next", np.int32),  # link in a hash bucket or in the list of spare pages
        ("latest", np.int32),  # the stretch of its idle blocks that were used last, or NONE
        ("there", np.int64),  # blocks that are not absent
        ("pending", np.int64),
        ("idle", np.int64),  # resident and not pinned
    ],
    align=True,
)

# What is to be known of a block in host memory that is pending or pinned.
HOST_DETAIL = np.dtype(
    [
        ("link", np.int32),  # pending: the next block of its store, or NONE; pinned: by how many loads
        ("source", np.int32),  # pending: the G1 copy that its store reads, and the slot that this had then
        ("slot", np.int32),
    ],
    align=True,
)

# Idle blocks of one page that were used in one go; see `host`.
HOST_STRETCH = np.dtype(
    [
        ("page", np.int32),
        ("earlier", np.int32),  # the page's stretch before it, or NONE
        ("blocks", np.int64),  # those that have been idle since, as bits
    ],
    align=True,
)

# A copy of blocks to the host (a store) or back (a load).
COPYING = np.dtype(
    [
        ("next", np.int64),  # link in a queue or in the list of spare rows
        ("worker", np.int64),
        ("request", np.int64),
        ("ready", np.int64),  # instant of its first byte in a shared pool
        ("left", np.float64),  # bytes that have not moved yet in a shared pool
        ("end", np.int64),  # NONE until that is known
        ("blocks", np.int64),
        # store: the place of its last block, or, when it is returning, in G1; load: its first block in the prompt
        ("first", np.int64),
    ],
    align=True,
)

HEAP = np.dtype([("time", np.int64), ("node", np.int64), ("serial", np.int64)], align=True)
ADMISSION = np.dtype(
    [(name, np.int64) for name in ("at", "reused", "request", "ordinal", "decode", "host")], align=True
)
GAP = np.dtype([("value", np.int64), ("count", np.int64)], align=True)

# One record a role: aggregated alone, or prefill and decode. What belongs to the run stands in the first.
CONFIG = np.dtype(
    [
        ("role", np.int64),
        ("backend", np.int64),
        ("workers", np.int64),
        ("first_worker", np.int64),
        ("blocks", np.int64),
        ("block_size", np.int64),
        ("max_batched_tokens", np.int64),
        ("max_sequences", np.int64),
        ("ahead", np.int64),  # whether a pass is scheduled while the one before it runs
        ("reserve", np.int64),  # whether a request is admitted only when all that it knows has room
        ("watermark", np.int64),  # blocks that stay available when a request is admitted beside others
        ("long_prefill", np.int64),  # most tokens of one request in a pass, beside others
        ("plain", np.int64),  # admission without speculation, watermark, and with `reserve`
        ("chunked_prefill_size", np.int64),
        ("max_prefill_tokens", np.int64),
        ("ratio_start", np.float64),
        ("ratio_least", np.float64),
        ("ratio_step", np.float64),
        # SGLang's rules: the switches of `sglang_rules.RuleSet`
        ("whole_batches", np.int64),
        ("sorted_batch", np.int64),
        ("late_places", np.int64),
        ("spare_pages", np.int64),
        ("fixed_nodes", np.int64),
        ("whole_leaves", np.int64),
        ("ignore_eos", np.int64),
        ("caching", np.int64),
        ("reuse_output", np.int64),  # whether the blocks of an answer have the keys that later prompts give them
        ("context", np.int64),
        ("timing", np.int64),
        ("prefill_ns", np.int64),
        ("decode_ns", np.int64),
        ("key_stride", np.int64),
        ("lanes", np.int64),  # 0: every play starts at the origin
        ("macro", np.int64),
        ("host", np.int64),  # whether its workers have host memory
        ("bytes_per_token", np.int64),
        ("bytes_per_second", np.float64),  # 0: transfers take no time
        ("full_prompt", np.int64),
        ("end", np.int64),  # the clock's bound: what is due later never happens
        # The KV router
        ("router", np.int64),  # whether it places requests
        ("overlap_score_weight", np.float64),
        ("host_cache_hit_weight", np.float64),
        # Speculative decoding
        ("speculative", np.int64),  # whether the deployment has it
        ("drafts", np.int64),  # tokens drafted for a request of a decode pass; in the prefill role none
        ("seed_low", np.int64),
        ("seed_high", np.int64),
        ("rates", np.float64, (MAX_DRAFTS,)),
        # Run controls
        ("controls", np.int64),  # whether plays run as instances in seats
        ("corpus", np.int64),  # nodes of the corpus; under run controls they are not run themselves
        ("corpus_plays", np.int64),
        ("prep_begin", np.int64),  # first slot of the preparation requests
        ("profile", np.int64),
        ("duration", np.int64),
        ("grace", np.int64),
        ("tree_cap", np.int64),
        ("global_cap", np.int64),
        ("key_span", np.int64),  # above every block key of the corpus
    ],
    align=True,
)

RUN = np.dtype(
    [
        ("now", np.int64),
        ("heap", np.int64),
        ("feedback", np.int64),
        ("next_play", np.int64),
        ("placed", np.int64),  # requests placed on workers of the aggregated or prefill role
        ("placed_decode", np.int64),
        ("in_flight", np.int64),
        ("admissions", np.int64),
        ("gaps", np.int64),
        ("arena", np.int64),  # used entries of the arena
        ("arena_wanted", np.int64),
        ("finished", np.int64),  # nodes in a terminal state
        ("holders", np.int64),  # requests with a block table
        ("transfers", np.int64),  # entries of the heap of transfers
        ("next_cancellation", np.int64),
        ("step", np.int64),  # where in a turn the loop stands: a `Step`
        ("changed", np.int64),  # whether this turn changed anything so far
        ("uncounted", np.int64),  # whether gaps of some requests are not counted
        ("upcoming", np.int64),  # the next instant at which something is due by itself, or NONE
        ("copies_due", np.int64),  # the same of copies to and from host memory that anybody hears of
        ("scanned", np.int64),  # idle workers have had their chance to start at this instant
        # Run controls
        ("serial", np.int64),  # requests numbered so far
        ("instances", np.int64),  # play instances so far
        ("seat", np.int64),  # top of the stack of free seats
        ("seats", np.int64),  # seats on it
        ("noted", np.int64),  # admissions taken note of
        ("results", np.int64),  # used entries of the logs
        ("ended", np.int64),
        ("shifts", np.int64),
        ("prep_left", np.int64),  # preparation requests that have not ended
        ("primers_left", np.int64),
        ("prep_failed", np.int64),  # slot of the first preparation request that failed, or NONE
        ("profile_start", np.int64),  # NONE before the barrier
        ("finished_at", np.int64),
        ("idle_since", np.int64),  # instant of the last terminal request, or the profile's start
        ("occupied", np.int64),  # lanes that hold a play
        ("refilled_at", np.int64),  # instant of the last refill, and the refills at that instant
        ("refills", np.int64),
        ("first_dispatch", np.int64),
        ("issued", np.int64),
        ("never_issued", np.int64),
        ("canceled", np.int64),
        ("unsettled", np.int64),  # requests that are over for their client, and that engines still hold
        ("no_identity", np.int64),  # a lane stopped for want of namespaces or numbers
    ],
    align=True,
)

# Records of the run controls ----------------------------------------------------------------------------------------

# A node of the first play of a lane, by lane and by position in the play.
KEPT = np.dtype([("historical", np.int64), ("remaining", np.int64)], align=True)

LANE = np.dtype(
    [
        ("plays", np.int64),  # plays that it has had
        ("seat", np.int64),  # of its play: a row of `plays`
        ("prep_next", np.int64),  # its next preparation request, and where they end
        ("prep_end", np.int64),
    ],
    align=True,
)

# A preparation request, in the order of lanes. Its slot is `prep_begin` plus its number.
PREP = np.dtype([("source", np.int64), ("lane", np.int64), ("primer", np.int64), ("settled", np.int64)], align=True)

# A request that is over, on its way out of the run.
RESULT = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("serial", "source", "instance", "state", "worker", "decode_worker", "dispatched", "first_admit"),
            *("first_token", "second_token", "last_token", "terminal", "generated", "admissions", "first_reused"),
            *("most_reused", "held", "reserved", "activated", "released", "handoff_state", "overlap", "decode_overlap"),
        )
    ],
    align=True,
)

# A play instance that has ended, or that the run ended with.
ENDED = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("instance", "source", "lane", "ordinal", "state", "start", "first_dispatch", "last_terminal", "settled"),
            *("failed_source", "failed_outcome", "failed_at", "expired", "skipped"),
        )
    ],
    align=True,
)

# Timers moved by an idle cap; an instance of NONE stands for the cap over all plays.
SHIFT = np.dtype([("at", np.int64), ("instance", np.int64), ("by", np.int64), ("timers", np.int64)], align=True)


@by_reference
class Sim(NamedTuple):
    """Everything a replay works on. `run` is a record of length one.

    A node is a request of the corpus; an engine request is one request on one worker (see `requests`), R of them.
    Under the run controls the first nodes and plays are the corpus', which are copied and not run; the slots and seats
    of play instances follow, with the slots of preparation requests between (see `instances`).

    Attributes
    ----------
    config : records, shape (roles,)
    static, live, tickets, request_state : shape (R,)
        The first rows are the nodes'.
    node_state, handoffs, handoff_state : shape (nodes,)
        `handoffs` is empty when aggregated.
    edges : shape (edges,); keys : shape (key runs,)
    plays, play_state : shape (plays,); play_nodes : Int64, shape (nodes,)
    lane_state : Int8, shape (max(lanes, 1),)
    workers : shape (W,); running : Int64, shape (W, max_sequences)
    receivers : Int64, shape (W, 2, max_sequences)
        With asynchronous scheduling: the requests that a pass gives a token or brings to their end. Else rows of none.
    queues : records of `QUEUE`, shape (W, QUEUES)
        Linked by `live`.
    actions : records of `QUEUE`, shape (W + 1,)
        Linked by `tickets`: what waits for the end of each worker's pass; last, what is to be done now.
    copies : shape (W, numbers); block_state : Int8, shape (W, numbers)
    links : Int32, shape (W, numbers)
    slots : Int32, shape (W, numbers); free_slots : Int32, shape (W, blocks); read_slots : Int8, shape (W, blocks)
        Rows without length where no worker has host memory of its own.
    order : records of `STRETCH`, shape (W, power of two); buckets : Int32, shape (W, power of two)
    index_pages : records of `INDEX_PAGE`, shape (W, blocks); index_places : Int32, shape (W, blocks * PAGE)
        See `blocks`.
    arena, spare : Int32
        Block tables, and the room to compact them into.
    holders : Int64, shape (R,)
        Requests with a block table.
    found : Int32, shape (longest table,)
        Scratch: the copies of the last prefix lookup.
    tree : records, shape (W, capacity); leaves : Int64, shape (W, capacity); branches : Int64, shape (W, power of two)
        Radix trees: nodes, heaps of unlocked leaves, hash buckets. They grow between slices of the run. With the KV
        router there are as many rows of `tree` again, for the ghosts.
    part : Int64, shape (W, 3)
        Scratch: the prefill part of the pass being scheduled.
    heap, transfers : shape (nodes,)
        Timers of ready nodes; ends of transfers.
    cancellations : records of `HEAP`
        In the order of their times.
    hosts : records of `HOST`, shape (W,)
        Empty without host memory, as are all of these.
    host_state : Int8, shape (pools, host blocks * PAGE); host_details : records of `HOST_DETAIL`, the same shape
        By `pool`, as are the next three: with a pool that all share there is one row, else one a worker.
    host_order : records of `HOST_STRETCH`, shape (pools, host blocks * ORDER_PER_BLOCK)
    host_pages : records of `HOST_PAGE`, shape (pools, host blocks); host_buckets : Int32, shape (pools, power of two)
        See `host`.
    kept : Int32, shape (W, numbers)
        What comes after a copy, or NONE, among those that a store to a shared pool keeps.
    copyings : records of `COPYING`, shape (W · host blocks,); copying_state : Int8, the same shape
        Rows worker by worker.
    index : records of `INDEXED`, shape (W, capacity + 1), or (3W, capacity + 1) with host memory
        What the KV router knows of each worker's device; then of the host pools, in the rows that `pool` names; then
        the keys that each worker evicted from its host pool and has not told of.
    index_buckets : Int32, shape (the same, power of two)
    feedback : Int64, shape (R,)
    admissions, gaps : logs that grow between slices of the run
    phase_state : Int8, shape (1,)
    lanes : records of `LANE`, shape (lanes,); prep : records of `PREP`
    results, ended, shifts : logs of the run controls, drained between slices
        All of these are empty in finite mode, but for the phase.
    uncounted : Int64
        Under run controls, the numbers of the requests whose gaps stay out of the log, ascending.
    """

    config: Any
    run: Any
    static: Any
    live: Any
    tickets: Any
    request_state: Any
    node_state: Any
    handoffs: Any
    handoff_state: Any
    edges: Any
    keys: Any
    plays: Any
    play_state: Any
    play_nodes: Any
    lane_state: Any
    workers: Any
    running: Any
    receivers: Any
    queues: Any
    actions: Any
    copies: Any
    block_state: Any
    links: Any
    slots: Any
    free_slots: Any
    read_slots: Any
    order: Any
    buckets: Any
    index_pages: Any
    index_places: Any
    arena: Any
    spare: Any
    holders: Any
    found: Any
    tree: Any
    leaves: Any
    branches: Any
    part: Any
    heap: Any
    transfers: Any
    cancellations: Any
    hosts: Any
    host_state: Any
    host_details: Any
    host_order: Any
    host_pages: Any
    host_buckets: Any
    kept: Any
    copyings: Any
    copying_state: Any
    index: Any
    index_buckets: Any
    feedback: Any
    admissions: Any
    gaps: Any
    phase_state: Any
    lanes: Any
    prep: Any
    results: Any
    ended: Any
    shifts: Any
    uncounted: Any


class Rows(np.ndarray):
    """Records whose fields can be read and written as attributes, compiled or not.

    NumPy's own `recarray` does the same at three times the cost, which the set-up of a small run is made of.
    """

    def __getattr__(self, name: str) -> Any:
        fields = self.dtype.fields
        if fields is None or name not in fields:
            raise AttributeError(f"records of {self.dtype} have no field {name}")
        field = self[name]
        return field if field.dtype.names else field.view(np.ndarray)

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.dtype.fields
        if fields is not None and name in fields:
            self[name] = value
        else:
            super().__setattr__(name, value)


def records(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return zeroed records, one row of which has attributes as all of them have."""
    return np.zeros(shape, np.dtype((np.record, dtype))).view(Rows)


def as_rows(array: npt.NDArray[Any]) -> Any:
    """Return a view of records with attributes."""
    return array.view(np.dtype((np.record, array.dtype))).view(Rows)
