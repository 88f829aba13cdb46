"""Admissions: that a history counts, and that what an admission reused could be reused.

A prompt's blocks are its trace's hash ids, cut to its length. Of an admission that found R tokens in cache it is shown
that an earlier request computed a prompt that begins with the same R tokens, on the same worker (or, of what came from
a shared host pool, on any) and in the same namespace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from playproof_spec.findings import Finding
from playproof_spec.graph import Graph, Trigger

from playproof.checking.lines import AGGREGATED, DECODE, POOLS, PREFILL
from playproof.checking.run import Run, in_ms
from playproof.checking.settings import Deployment, Int64, Role
from playproof.checking.verdict import Bool

UInt64 = npt.NDArray[np.uint64]


def check_admissions(run: Run) -> None:
    """Check histories, amounts and sources of reuse."""
    _check_counts(run)
    _check_instants(run)
    _check_first(run)
    if run.online is not None and run.online.mock is not True:
        run.tally.skip("what a real server has in its cache, it alone knows", ["run-reuse", "run-reuse-source"])
        return
    if run.deployment is None:
        run.tally.skip("the deployment is not known", ["run-reuse", "run-reuse-source"])
        return
    _check_amounts(run, run.deployment)
    check_sources(run, run.deployment)


def _told(run: Run, admission: int, code: str, message: str, found: object, wanted: object) -> Finding:
    entry = run.lines.admissions
    field = f"admission_history[{int(admission - np.searchsorted(entry.row, entry.row[admission]))}]"
    return run.told(code, int(entry.row[admission]), field, message, found, wanted)


def _check_counts(run: Run) -> None:
    """Ordinals count all admissions of a request, and those of each pool."""
    entry = run.lines.admissions
    count = len(entry.row)
    begin = np.searchsorted(entry.row, entry.row)
    split = run.deployment.split if run.deployment is not None else bool((entry.pool != AGGREGATED).any())
    allowed = (entry.pool != AGGREGATED) if split else (entry.pool == AGGREGATED)
    run.tally.check(
        "run-admission",
        allowed,
        lambda a: _told(
            run, a, "run-admission", "the deployment has no such pool", POOLS[int(entry.pool[a])], "its own"
        ),
    )
    place = np.arange(count) - begin
    of_pool = np.zeros(count, np.int64)
    for pool in (AGGREGATED, PREFILL, DECODE):
        mine = entry.pool == pool
        upto = np.cumsum(mine)
        of_pool[mine] = (upto - 1 - np.concatenate(([0], upto))[begin])[mine]
    for name, given, wanted in (
        ("admission_ordinal", entry.ordinal, place),
        ("pool_admission_ordinal", entry.pool_ordinal, of_pool),
        ("is_readmission", entry.again.astype(np.int64), (of_pool > 0).astype(np.int64)),
    ):
        run.tally.check(
            "run-admission",
            given == wanted,
            lambda a, name=name, given=given, wanted=wanted: _told(  # type: ignore[misc]
                run, a, "run-admission", f"{name} does not count", int(given[a]), int(wanted[a])
            ),
        )
    again = np.bincount(entry.row[of_pool > 0], minlength=len(run.lines))
    _rows(run, "readmission_count", again)


def _rows(run: Run, name: str, wanted: Int64) -> None:
    given = run.lines[name]
    run.tally.check(
        "run-admission",
        given == wanted,
        lambda row: run.told(
            "run-admission", row, name, f"{name} is not that of the history", int(given[row]), int(wanted[row])
        ),
    )


def _check_instants(run: Run) -> None:
    """Admissions lie between dispatch and end, one after another, and the first is the first."""
    entry, lines = run.lines.admissions, run.lines
    if run.online is not None:
        run.tally.check(
            "run-admission",
            entry.at < 0,
            lambda a: _told(
                run, a, "run-admission", "an online admission has an instant", in_ms(int(entry.at[a])), None
            ),
        )
        return
    low = lines["dispatched_at_ms"][entry.row]
    follows = np.zeros(len(entry.row), np.bool_)
    follows[1:] = entry.row[1:] == entry.row[:-1]
    before = np.concatenate(([0], entry.at))[:-1]
    low = np.where(follows, np.maximum(low, before), low)
    high = lines["terminal_time_ms"][entry.row]
    run.tally.check(
        "run-admission",
        (entry.at >= low) & (entry.at <= high),
        lambda a: _told(
            run, a, "run-admission", "the admission lies outside of its time", in_ms(int(entry.at[a])),
            f"{in_ms(int(low[a]))} to {in_ms(int(high[a]))}",
        ),
    )  # fmt: skip
    first = np.full(len(lines), -1, np.int64)
    first[entry.row[~follows]] = entry.at[~follows]
    given = lines["first_admit_ms"]
    run.tally.check(
        "run-admission",
        given == first,
        lambda row: run.told(
            "run-admission", row, "first_admit_ms", "first_admit_ms is not the first admission", in_ms(int(given[row])),
            in_ms(int(first[row])),
        ),
    )  # fmt: skip


def _check_first(run: Run) -> None:
    """Reuse adds up by tier, and what a line repeats of its first admission is that."""
    entry = run.lines.admissions
    run.tally.check(
        "run-reuse",
        entry.reused == entry.g1 + entry.host,
        lambda a: _told(
            run, a, "run-reuse", "the tiers do not add up", f"{entry.g1[a]} + {entry.host[a]}", int(entry.reused[a])
        ),
    )
    firsts = np.unique(entry.row, return_index=True)[1]
    for name, column in (("", entry.reused), ("g1_", entry.g1), ("host_", entry.host)):
        wanted = np.zeros(len(run.lines), np.int64)
        wanted[entry.row[firsts]] = column[firsts]
        _rows(run, f"first_admission_{name}reused_input_tokens", wanted)


def role_of(deployment: Deployment, pool: int) -> Role:
    """Return the role to which a pool belongs."""
    return deployment.roles[1] if pool == DECODE and deployment.split else deployment.roles[0]


def _check_amounts(run: Run, deployment: Deployment) -> None:
    """Reuse is of whole blocks, and of no more than a request may find.

    The last token of what it knows is always computed, unless it asks for none. A request handed over finds nothing at
    its first admission to decode: what was there is no part of what had to be moved.
    """
    entry = run.lines.admissions
    size, asked, output = run.input[entry.row], run.asked[entry.row], run.lines["output_length"][entry.row]
    for pool in np.unique(entry.pool).tolist():
        role = role_of(deployment, pool)
        known = size + np.where(entry.pool_ordinal > 0, np.maximum(output, 0), 0)
        most = (known - (asked > 0)) // role.block_size * role.block_size
        if deployment.drafts and not deployment.split:
            # Draft heads look one block less far.
            most = np.where(asked > 0, np.maximum(most - role.block_size, 0), most)
        if not role.prefix_caching:
            most = np.zeros_like(most)
        if pool == DECODE:
            most = np.where(entry.pool_ordinal == 0, 0, most)
        mine = np.flatnonzero(entry.pool == pool)
        run.tally.check(
            "run-reuse",
            (entry.reused <= most)[mine],
            lambda e, mine=mine, most=most: _told(  # type: ignore[misc]
                run, int(mine[e]), "run-reuse", "more is reused than there is to reuse",
                int(entry.reused[mine[e]]), f"at most {most[mine[e]]} tokens",
            ),
        )  # fmt: skip
        whole = (entry.g1 % role.block_size == 0) & (entry.host % role.block_size == 0)
        run.tally.check(
            "run-reuse",
            whole[mine],
            lambda e, mine=mine, size=role.block_size: _told(  # type: ignore[misc]
                run, int(mine[e]), "run-reuse", "part of a block is reused",
                f"{entry.g1[mine[e]]} and {entry.host[mine[e]]} tokens", f"whole blocks of {size}",
            ),
        )  # fmt: skip
        if not role.host:
            run.tally.check(
                "run-reuse",
                (entry.host == 0)[mine],
                lambda e, mine=mine: _told(  # type: ignore[misc]
                    run, int(mine[e]), "run-reuse", "the role has no host memory", int(entry.host[mine[e]]), 0
                ),
            )


# Where reused blocks come from --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Chains:
    """Prompts as maximal runs of consecutive hash ids, joined where the trace splits them.

    Two prompts begin with the same n blocks exactly if their runs before the one that holds block n − 1 are the same,
    and that run begins with the same id at the same block. So a run and all before it have one *name*, a sum of 64-bit
    mixtures of (id, length, place): equal for equal beginnings, and different for different ones but for a chance of
    2⁻⁶⁴ a pair, which could hide a broken fact and never make one up.

    Attributes
    ----------
    offset : Int64, shape (nodes + 1,)
    name : UInt64, shape (runs,)
    first_block : Int64, shape (runs,)
        Blocks before each run.
    length : Int64, shape (runs,)
    """

    offset: Int64
    name: UInt64
    first_block: Int64
    length: Int64


_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def _mixed(values: UInt64) -> UInt64:
    """Scramble 64-bit values, one to one."""
    values = values + _MIX[0]
    values = (values ^ (values >> np.uint64(30))) * _MIX[1]
    values = (values ^ (values >> np.uint64(27))) * _MIX[2]
    return values ^ (values >> np.uint64(31))


def _chains(graph: Graph) -> _Chains:
    first, count = graph.run_first, graph.run_count.astype(np.int64)
    nodes = np.repeat(np.arange(graph.node_count), np.diff(graph.run_offsets))
    joins = np.zeros(len(first), np.bool_)
    joins[1:] = (first[1:] == first[:-1] + count[:-1].astype(np.uint64)) & (nodes[1:] == nodes[:-1])
    joins |= count == 0
    begin = np.flatnonzero(~joins)
    node = nodes[begin]
    length = np.add.reduceat(count, begin) if len(begin) else np.zeros(0, np.int64)
    offset = np.searchsorted(node, np.arange(graph.node_count + 1))
    total = np.concatenate(([0], np.cumsum(length)))
    first_block = total[:-1] - total[offset[:-1]][node]
    label = _mixed(first[begin]) + _mixed(first_block.astype(np.uint64) ^ _MIX[0])
    whole = _mixed(label ^ (length.astype(np.uint64) * _MIX[1]))
    with np.errstate(over="ignore"):
        summed = np.concatenate((np.zeros(1, np.uint64), np.cumsum(whole)))
        before = summed[:-1] - summed[offset[:-1]][node]
        name = _mixed(before ^ _mixed(label))
    return _Chains(offset, name, first_block, length)


@dataclass(frozen=True, slots=True, eq=False)
class _Holders:
    """What may have left blocks in a cache: a prompt, from an instant on.

    Attributes
    ----------
    node, at, space : Int64, shape (holders,)
        Whose prompt, from when on, and worker and namespace as one number.
    reach, reused : Int64, shape (holders,)
        Tokens of its full blocks, and how many of them it found instead of computing them.
    """

    node: Int64
    at: Int64
    space: Int64
    reach: Int64
    reused: Int64


def _space(run: Run, worker: Int64, instance: Int64) -> Int64:
    """Return worker and namespace as one number."""
    return worker * (len(run.plays.play) + 1) + (instance if run.load.by_play else 0)


def check_sources(run: Run, deployment: Deployment) -> None:
    """What a first admission reused, an earlier request had computed.

    Later admissions of a request may find what it computed itself before it was preempted, and are not looked at.
    """
    entry = run.lines.admissions
    chains = _chains(run.graph)
    prepared = _prepared(run)
    if prepared is None:
        run.tally.skip("what prepared the caches, only the report of a warmup says", ["run-reuse-source"])
        return
    if run.load.stop_ns >= 0 and len(run.node) < run.graph.node_count:
        run.tally.skip("what a stop leaves unfinished has no line, and may have computed it", ["run-reuse-source"])
        return
    role = deployment.roles[0]
    first = np.flatnonzero((entry.pool != DECODE) & (entry.pool_ordinal == 0))
    row = entry.row[first]
    worker = run.lines["prefill_worker_idx" if deployment.split else "decode_worker_idx"][row]
    shared = any(each.host == "cluster_shared" for each in deployment.roles)
    # A load from host memory that workers share brings to a worker what others computed, and does so for a request
    # that may be admitted later than those that find it there, or never: on the device, too, it may be of any of them.
    _check_pool(run, chains, role, first, np.zeros_like(worker) if shared else worker, entry.reused, prepared)


def _prepared(run: Run) -> tuple[Int64, Int64] | None:
    """Return node and instance of every request that prepared the caches; None where it cannot be known."""
    if not (run.controlled and run.load.warmup):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    phases = run.report.get("agentic_phases") if run.report is not None else None
    requests = phases.get("requests") if isinstance(phases, dict) else None
    if not isinstance(requests, list):
        return None
    index = {name: node for node, name in enumerate(run.graph.request_ids)}
    nodes, lanes = [], []
    for request in requests:
        name, lane = (request.get("source_request_id"), request.get("lane_id")) if isinstance(request, dict) else (0, 0)
        if isinstance(name, str) and name in index and type(lane) is int and 0 <= lane < run.load.lanes:
            nodes.append(index[name])
            lanes.append(lane)  # the first plays are numbered by lane
    return np.array(nodes, np.int64), np.array(lanes, np.int64)


def _check_pool(
    run: Run,
    chains: _Chains,
    role: Role,
    first: Int64,
    worker: Int64,
    reused: Int64,
    prepared: tuple[Int64, Int64],
) -> None:
    """Check the admissions `first`, on workers `worker`, whose caches may share nothing."""
    entry = run.lines.admissions
    row = entry.row[first]
    at = entry.at[first] if run.online is None else run.lines["dispatched_at_ms"][row]
    space = _space(run, worker, run.instance[row])
    full = run.input[row] // role.block_size * role.block_size
    parts: list[tuple[Int64, ...]] = [(run.node[row], at, space, full, reused[first])]
    if role.reuse_output:
        parts.append(_answers(run, role, row, at, space, reused[first]))
    if len(prepared[0]):
        parts.append(_preparation(run, role, prepared, bool((worker > 0).any())))
    holders = _Holders(*(np.concatenate(columns).astype(np.int64) for columns in zip(*parts, strict=True)))
    asking = np.flatnonzero(reused[first] > 0)
    run.tally.count("run-reuse-source", len(first) - len(asking))
    when = at if run.online is None else run.lines["terminal_time_ms"][row]
    # The first holders are those whose admissions are looked at.
    good = _supported(run, chains, holders, asking, reused[first][asking], when[asking])
    run.tally.check(
        "run-reuse-source",
        good,
        lambda e: _told(
            run, int(first[asking[e]]), "run-reuse-source", "nothing before it computed what it reuses",
            f"{reused[first[asking[e]]]} tokens", "an earlier request there that begins with the same tokens",
        ),
    )  # fmt: skip


def _preparation(run: Run, role: Role, prepared: tuple[Int64, Int64], apart: bool) -> tuple[Int64, ...]:
    """Return the requests of a warmup as holders. On which worker one was is not told: any may have been."""
    workers = role.workers if apart else 1
    nodes, instances = (np.repeat(part, workers) for part in prepared)
    worker = np.tile(np.arange(workers), len(prepared[0]))
    full = run.graph.input_length[nodes] // role.block_size * role.block_size
    never = np.full(len(nodes), -1, np.int64)
    return nodes, never, _space(run, worker, instances), full, never


def _answers(run: Run, role: Role, row: Int64, at: Int64, space: Int64, reused: Int64) -> tuple[Int64, ...]:
    """Return answers as holders: a prompt that waits for an answer may repeat the prompt behind it, and the answer."""
    plays, graph = run.plays, run.graph
    of_row = np.full(len(run.lines), -1, np.int64)
    of_row[row] = np.arange(len(row))
    holder = run.of_occurrences(of_row)[plays.source]
    edges = np.flatnonzero((graph.edge_trigger[plays.number] == Trigger.COMPLETION) & (holder >= 0))
    holder, node = holder[edges], plays.node[plays.target[edges]]
    known = (run.input + run.lines["output_length"])[row[holder]]
    reach = np.minimum(known, graph.input_length[node]) // role.block_size * role.block_size
    return node, at[holder], space[holder], reach, reused[holder]


def _supported(run: Run, chains: _Chains, holders: _Holders, asking: Int64, want: Int64, when: Int64) -> Bool:
    """Say of the prompts of the holders `asking` whether another in their space has their first `want` tokens.

    It has to have them at the instant `when`. Whoever computed the last of these blocks found fewer tokens than that,
    and reaches as far. Of holders that began earlier the reach is enough, since they themselves are looked at; of those
    of the same instant it is not.
    """
    entries = _entries(chains, holders, run.graph.block_size)
    node = holders.node[asking]
    good = np.zeros(len(asking), np.bool_)
    # A prompt without a block has nothing that it could reuse.
    some = np.flatnonzero(chains.offset[node + 1] > chains.offset[node])
    asking, node, want, when = asking[some], node[some], want[some], when[some]
    block = (np.minimum(want, run.graph.input_length[node]) - 1) // run.graph.block_size
    group = entries.group[entries.place[asking] + _run_of(chains, node, block) - chains.offset[node]]
    held = np.zeros(len(asking), np.bool_)
    if run.online is None:
        held = entries.furthest_before(group, when) >= want
    for number in np.flatnonzero(~held).tolist():
        span = slice(*entries.begin[group[number] : group[number] + 2].tolist())
        found = (entries.at[span] <= when[number]) & (entries.reach[span] >= want[number])
        held[number] = bool((found & (entries.reused[span] < want[number])).any())
    good[some] = held
    return good


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """A holder's prompt passes through runs: one entry each, in groups of one run's name and space, and then by time.

    Attributes
    ----------
    begin : Int64, shape (groups + 1,)
        Where the entries of each group begin.
    at, reach, reused : Int64, shape (entries,)
        `reach` is the last token of the run, or of the holder's full blocks.
    place : Int64, shape (holders,)
        Of each holder's first run, in the next array; its other runs follow.
    group : Int64, shape (entries,)
        By holder and run.
    instants : Int64, shape (holders,)
        Of all holders, ascending.
    """

    begin: Int64
    at: Int64
    reach: Int64
    reused: Int64
    place: Int64
    group: Int64
    instants: Int64

    def furthest_before(self, group: Int64, when: Int64) -> Int64:
        """Return the furthest reach of the entries of each group that are there before `when`, -1 for none."""
        of_entry = np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))
        # One running maximum over all groups: later groups stand above earlier ones.
        far = np.maximum.accumulate(self.reach + of_entry * ABOVE_TOKENS) - of_entry * ABOVE_TOKENS
        # Instants by their place among all of them, so that place and group make one ascending number.
        rank = of_entry * (len(self.instants) + 1) + np.searchsorted(self.instants, self.at)
        wanted = group * (len(self.instants) + 1) + np.searchsorted(self.instants, when)
        last = np.searchsorted(rank, wanted) - 1
        if not len(far):
            return np.full(len(group), -1, np.int64)
        return np.where(last >= self.begin[group], far[np.maximum(last, 0)], -1)


# More than any prompt has tokens.
ABOVE_TOKENS = 2**32


def _entries(chains: _Chains, holders: _Holders, trace_block: int) -> _Entries:
    by_time = np.argsort(holders.at, kind="stable")
    counts = np.diff(chains.offset)[holders.node[by_time]]
    before = np.cumsum(counts) - counts
    place = np.empty(len(by_time), np.int64)
    place[by_time] = before
    holder = np.repeat(by_time, counts)
    run = chains.offset[holders.node[holder]] + np.arange(len(holder)) - np.repeat(before, counts)
    key = _keyed(chains.name[run], holders.space[holder])
    order = np.argsort(key, kind="stable")
    key, holder, run = key[order], holder[order], run[order]
    is_first = np.ones(len(key), np.bool_)
    is_first[1:] = key[1:] != key[:-1]
    group = np.empty(len(key), np.int64)
    group[order] = np.cumsum(is_first) - 1
    end = (chains.first_block[run] + chains.length[run]) * trace_block
    return _Entries(
        begin=np.concatenate((np.flatnonzero(is_first), [len(key)])),
        at=holders.at[holder],
        reach=np.minimum(end, holders.reach[holder]),
        reused=holders.reused[holder],
        place=place,
        group=group,
        instants=holders.at[by_time],
    )


def _keyed(name: UInt64, space: Int64) -> UInt64:
    return _mixed(name ^ _mixed(space.astype(np.uint64)))


def _run_of(chains: _Chains, node: Int64, block: Int64) -> Int64:
    """Return the run of each node's prompt that holds a block."""
    owner = np.repeat(np.arange(len(chains.offset) - 1), np.diff(chains.offset))
    place = owner * ABOVE_TOKENS + chains.first_block
    return np.searchsorted(place, node * ABOVE_TOKENS + block, side="right") - 1
