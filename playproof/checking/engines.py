"""The workers' rules, as far as lines show them: who serves what, in turn, within seats, memory and time.

Lines do not say when a request was preempted, nor how far a prompt was at an instant. So what is checked of memory and
seats is a lower bound: what a worker held for sure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from playproof_spec.findings import Finding

from playproof.checking.lines import AGGREGATED, COMPLETED, DECODE, PREFILL
from playproof.checking.requests import blocks_for
from playproof.checking.run import Run, in_ms
from playproof.checking.settings import LONGEST_NS, Deployment, Int64, Role
from playproof.checking.verdict import Bool

OF_ENGINES = ("run-worker", "run-placement", "run-seats", "run-pool", "run-service", "run-handoff", "run-decode")
STEPS = ("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms")
# Instants of the greatest demand at which memory is counted prompt by prompt, where a simpler sum does not do.
INSTANTS_COUNTED = 256


def check_engines(run: Run) -> None:
    """Check workers, placement, seats, memory, service times and handoffs."""
    deployment = run.deployment
    if deployment is None:
        run.tally.skip("the deployment is not known", OF_ENGINES)
        return
    _check_workers(run, deployment)
    _check_handoff(run, deployment)
    if run.online is not None:
        run.tally.skip("of an online run, instants at the workers are not known", OF_ENGINES[1:5])
        return
    _check_placement(run, deployment)
    _check_service(run, deployment)
    if any(role.ahead for role in deployment.roles):
        run.tally.skip("scheduled ahead, a request may lose its seat before its last token", ["run-seats", "run-pool"])
        return
    _check_seats(run, deployment)
    _check_memory(run, deployment)


# Workers ------------------------------------------------------------------------------------------------------------


def _check_workers(run: Run, deployment: Deployment) -> None:
    split = deployment.split
    roles = {"prefill_worker_idx": deployment.roles[0] if split else None, "decode_worker_idx": deployment.roles[-1]}
    refused = run.input >= deployment.context
    for name, role in roles.items():
        worker = run.lines[name]
        workers = role.workers if role is not None else 0
        good = worker < workers
        # A completed request was served by each role; one that the front end refused by none.
        good &= ~(run.completed & (worker < 0)) if role is not None else worker < 0
        if run.online is None:
            good &= ~refused | (worker < 0)
        wanted = f"one of {workers}" if workers else "null: there is no such role"
        _tell(run, "run-worker", np.arange(len(worker)), good, name, "there is no such worker for it", worker, wanted)
    routes = {
        "prefill_route_overlap_tokens": roles["prefill_worker_idx"],
        "decode_route_overlap_tokens": deployment.roles[-1],
    }
    for name, role in routes.items():
        overlap = run.lines[name]
        routed = role is not None and not deployment.round_robin
        good = overlap <= np.where(routed, run.input, -1)
        wanted = "at most the prompt" if routed else "null: no router chose"
        _tell(run, "run-worker", np.arange(len(overlap)), good, name, "no router knew that", overlap, wanted)


def _tell(run: Run, code: str, rows: Int64, good: Bool, field: str, message: str, found: Int64, wanted: str) -> None:
    """Check rows, with one field's number as what was found."""
    run.tally.check(
        code,
        good,
        lambda entry: run.told(
            code, int(rows[entry]), field, message, None if found[entry] < 0 else int(found[entry]), wanted
        ),
    )


def _check_placement(run: Run, deployment: Deployment) -> None:
    """Round robin: the n-th request placed in a role goes to worker n modulo their number.

    Requests placed at one instant are compared as a set, since which of them comes first is not told.
    """
    if not deployment.round_robin:
        run.tally.skip("a router that knows caches and load places requests where they cost least", ["run-placement"])
        return
    if run.controlled or run.load.stop_ns >= 0:
        run.tally.skip(
            "preparation, and what a stop leaves unfinished, take turns too and have no line", ["run-placement"]
        )
        return
    lines = run.lines
    reached = run.input < deployment.context
    dispatched, held = lines["dispatched_at_ms"], lines["source_held_ms"]
    reserved = lines["destination_reserved_ms"]
    if not deployment.split:
        _turns(run, deployment.roles[0], "decode_worker_idx", dispatched, reached)
    elif deployment.backend == "vllm":
        _turns(run, deployment.roles[0], "prefill_worker_idx", dispatched, reached)
        _turns(run, deployment.roles[1], "decode_worker_idx", held, reached & (held >= 0))
    else:
        _turns(run, deployment.roles[1], "decode_worker_idx", dispatched, reached)
        _turns(run, deployment.roles[0], "prefill_worker_idx", reserved, reached & (reserved >= 0))


def _turns(run: Run, role: Role, name: str, at: Int64, placed: Bool) -> None:
    rows = np.flatnonzero(placed)
    order = rows[np.argsort(at[rows], kind="stable")]
    worker = run.lines[name][order]
    turn = np.arange(len(order)) % role.workers
    good = worker == turn
    instants = at[order]
    for instant in np.unique(instants[~good]).tolist():
        span = slice(*np.searchsorted(instants, (instant, instant + 1)).tolist())
        # Those that a failure kept from being served name no worker.
        known = worker[span][worker[span] >= 0]
        counts = np.bincount(known, minlength=role.workers)
        wanted = np.bincount(turn[span], minlength=role.workers)
        good[span] = len(counts) == role.workers and bool((counts <= wanted).all())
    _tell(run, "run-placement", order, good, name, "it is another worker's turn", worker, "the next worker in turn")


# Seats and memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Stretches of time in which requests hold something on a worker.

    Attributes
    ----------
    row, worker, begin, end, amount : Int64, shape (stretches,)
    """

    row: Int64
    worker: Int64
    begin: Int64
    end: Int64
    amount: Int64

    def kept(self, which: Bool) -> _Held:
        """Return some of them."""
        return _Held(*(column[which] for column in (self.row, self.worker, self.begin, self.end, self.amount)))

    def together(self) -> tuple[Int64, Int64, Int64]:
        """Return (instants, workers, sums): what is held from each begin on, ends at that instant taken off first."""
        # Ends stand before begins, and a stable sort leaves them there within an instant.
        at = np.concatenate((self.end, self.begin))
        worker = np.concatenate((self.worker, self.worker))
        amount = np.concatenate((-self.amount, self.amount))
        order = np.argsort(at, kind="stable")
        if worker.any():
            order = order[np.argsort(worker[order], kind="stable")]
        # Every worker ends with nothing, so one sum over all of them does.
        return at[order], worker[order], np.cumsum(amount[order])

    def at(self, worker: int, instant: int) -> _Held:
        """Return the stretches of a worker that hold at an instant."""
        return self.kept((self.worker == worker) & (self.begin <= instant) & (self.end > instant))


def _joined(parts: Iterable[_Held]) -> _Held:
    columns = [(part.row, part.worker, part.begin, part.end, part.amount) for part in parts]
    return _Held(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _last_admissions(run: Run, pool: int) -> tuple[Int64, Int64, Int64]:
    """Return rows admitted to a pool, the instant of their last admission there, and how many there were."""
    entry = run.lines.admissions
    mine = np.flatnonzero(entry.pool == pool)
    row = entry.row[mine]
    last = np.concatenate((row[1:] != row[:-1], [True])) if len(row) else np.zeros(0, np.bool_)
    counts = np.bincount(row, minlength=len(run.lines))
    return row[last], entry.at[mine][last], counts[row[last]]


def _served_until(run: Run, rows: Int64) -> Int64:
    """Return until when a request was surely served: its end, or, if it did not complete, its last token."""
    return np.where(run.completed[rows], run.lines["terminal_time_ms"][rows], run.lines["last_token_ms"][rows])


def _served(run: Run, pool: int, amount: int = 1) -> tuple[_Held, Int64]:
    """Return in which stretches requests were surely seated, and how often each was admitted."""
    rows, begin, counts = _last_admissions(run, pool)
    until = _served_until(run, rows) if pool != PREFILL else run.lines["source_held_ms"][rows]
    worker = run.lines["prefill_worker_idx" if pool == PREFILL else "decode_worker_idx"][rows]
    held = _Held(rows, worker, begin, until, np.full(len(rows), amount, np.int64))
    lasting = (held.end > held.begin) & (held.worker >= 0)
    return held.kept(lasting), counts[lasting]


def _pools(deployment: Deployment) -> list[tuple[int, Role]]:
    if deployment.split:
        return [(PREFILL, deployment.roles[0]), (DECODE, deployment.roles[1])]
    return [(AGGREGATED, deployment.roles[0])]


def _check_seats(run: Run, deployment: Deployment) -> None:
    for pool, role in _pools(deployment):
        held, counts = _served(run, pool)
        if deployment.backend == "sglang" and pool == DECODE:
            # One that was retracted computes its prompt again, chunk by chunk. Between two chunks it stands in the
            # queue, and what was handed over meanwhile takes its seat.
            held = held.kept(counts == 1)
        _tell_bound(run, "run-seats", held, role.max_sequences, "sequences run at once", role)


def _tell_bound(run: Run, code: str, held: _Held, most: int, what: str, role: Role) -> None:
    at, worker, total = held.together()
    run.tally.check(
        code,
        total <= most,
        lambda entry: _over(run, code, held, int(worker[entry]), int(at[entry]), int(total[entry]), most, what, role),
    )


def _over(
    run: Run, code: str, held: _Held, worker: int, instant: int, total: int, most: int, what: str, role: Role
) -> Finding:
    rows = held.at(worker, instant).row.tolist()
    names = ", ".join(run.lines.text["request_id"][row] for row in rows[:4])
    found = f"{total} {what} on {role.name} worker {worker} at {in_ms(instant)}: {names}, …"
    return run.told(code, rows[-1] if rows else 0, "", "the worker has no room for that", found, f"at most {most}")


def _check_memory(run: Run, deployment: Deployment) -> None:
    """Count the blocks that a worker surely holds.

    From its first token on a request that was admitted once holds its prompt's blocks. vLLM allocates those that it did
    not find for it alone, so their sum is a bound. Otherwise requests may share them: of those whose prompts begin with
    the same block the longest counts, and of others each.
    """
    vllm = deployment.backend == "vllm"
    for pool, role in _pools(deployment):
        held = _prompts_held(run, pool, role, own=vllm and pool != DECODE)
        if vllm and pool != DECODE:
            _tell_bound(run, "run-pool", held, role.blocks, "blocks are held", role)
        else:
            _tell_shared(run, held, role)


def _prompts_held(run: Run, pool: int, role: Role, *, own: bool) -> _Held:
    """Return when prompts surely are in memory, with their blocks; with `own`, without those found in cache."""
    entry, lines = run.lines.admissions, run.lines
    if pool == DECODE:
        return _destinations(run, role)
    served, counts = _served(run, pool)
    once = served.kept(counts == 1)
    blocks = blocks_for(run.input, role)
    if own:
        found = np.zeros(len(lines), np.int64)
        mine = (entry.pool == pool) & (entry.pool_ordinal == 0)
        found[entry.row[mine]] = entry.reused[mine] // role.block_size
        blocks = blocks - found
    name = "source_held_ms" if pool == PREFILL else "first_token_ms"
    whole = lines[name][once.row]
    until = lines["source_released_ms"][once.row] if pool == PREFILL else once.end
    prompts = _Held(once.row, once.worker, whole, until, blocks[once.row])
    prompts = prompts.kept((prompts.begin >= 0) & (prompts.end > prompts.begin))
    if not own:
        return prompts
    # Before, and after a preemption, it computes something and so holds at least one block of its own.
    before = np.where(
        counts == 1, np.where(lines[name][served.row] >= 0, lines[name][served.row], served.end), served.end
    )
    computing = _Held(served.row, served.worker, served.begin, np.minimum(before, served.end), np.ones_like(served.row))
    return _joined((prompts, computing.kept((computing.end > computing.begin) & (blocks[served.row] > 0))))


def _destinations(run: Run, role: Role) -> _Held:
    """Return when prompts surely are in a decode worker's memory: from the reservation on, if never preempted."""
    lines = run.lines
    rows = np.flatnonzero((lines["destination_reserved_ms"] >= 0) & (lines["decode_worker_idx"] >= 0))
    entry = lines.admissions
    again = np.zeros(len(lines), np.bool_)
    again[entry.row[(entry.pool == DECODE) & (entry.pool_ordinal > 0)]] = True
    rows = rows[~again[rows] & (lines.status[rows] == COMPLETED)]
    held = _Held(
        rows,
        lines["decode_worker_idx"][rows],
        lines["destination_reserved_ms"][rows],
        lines["terminal_time_ms"][rows],
        blocks_for(run.input, role)[rows],
    )
    return held.kept(held.end > held.begin)


def _tell_shared(run: Run, held: _Held, role: Role) -> None:
    """Where the sum of all prompts exceeds the pool, count those that may share blocks once."""
    at, worker, total = held.together()
    over = np.flatnonzero(total > role.blocks)
    run.tally.count("run-pool", len(total) - len(over))
    if len(over) > INSTANTS_COUNTED:
        most = np.argsort(total[over], kind="stable")[-INSTANTS_COUNTED:]
        over = np.sort(over[most])
    family = _families(run, role) if len(over) else over
    for entry in over.tolist():
        there = held.at(int(worker[entry]), int(at[entry]))
        longest: dict[int, int] = {}
        for name, amount in zip(family[there.row].tolist(), there.amount.tolist(), strict=True):
            longest[name] = max(longest.get(name, 0), amount)
        least = sum(longest.values())
        run.tally.fact(
            "run-pool",
            least <= role.blocks,
            lambda entry=entry, least=least: _over(  # type: ignore[misc]
                run, "run-pool", held, int(worker[entry]), int(at[entry]), least, role.blocks, "blocks are held", role
            ),
        )


def _families(run: Run, role: Role) -> Int64:
    """Return for each row a number that requests whose prompts may share blocks have in common."""
    if not role.prefix_caching:
        return np.arange(len(run.lines))
    graph, node = run.graph, run.node
    first = np.zeros(graph.node_count, np.uint64)
    some = np.diff(graph.run_offsets) > 0
    first[some] = graph.run_first[graph.run_offsets[:-1][some]]
    namespace = run.instance if run.load.by_play else np.zeros(len(node), np.int64)
    _, begins = np.unique(first[node], return_inverse=True)
    return begins.reshape(-1).astype(np.int64) * len(run.plays.play) + namespace


# Service times ------------------------------------------------------------------------------------------------------


def _check_service(run: Run, deployment: Deployment) -> None:
    """No token comes sooner than the passes take that make it; of requests that were never preempted.

    A prompt takes as many passes as it has chunks, each with a prefill part; each token after the first a pass with a
    decode part, or with drafts as many tokens as a pass may give.
    """
    lines, entry = run.lines, run.lines.admissions
    once = lines["readmission_count"] == 0
    first_of = (entry.pool != DECODE) & (entry.pool_ordinal == 0)
    found = np.zeros(len(lines), np.int64)
    found[entry.row[first_of]] = entry.reused[first_of]
    role = deployment.roles[0]
    passes = -(-np.maximum(run.input - found, 0) // role.chunk)
    ends = lines["source_held_ms" if deployment.split else "first_token_ms"]
    _tell_service(run, lines["first_admit_ms"], ends, passes * role.prefill_ns, once, "a prompt")
    role = deployment.roles[-1]
    if deployment.split:
        begin = np.full(len(lines), -1, np.int64)
        to_decode = entry.pool == DECODE
        begin[entry.row[to_decode]] = entry.at[to_decode]
        least = np.full(len(lines), role.decode_ns)
        _tell_service(run, begin, lines["first_token_ms"], least, once, "a first token")
    tokens = np.maximum(lines["output_length"] - 1, 0)
    least = -(-tokens // (1 + deployment.drafts)) * role.decode_ns
    _tell_service(run, lines["first_token_ms"], lines["last_token_ms"], least, once, "an answer")
    second = lines.figures["ttst_ms"]
    if not deployment.drafts:
        rows = np.flatnonzero(once & ~np.isnan(second))
        run.tally.check(
            "run-service",
            np.rint(second[rows] * 1e6) >= role.decode_ns,
            lambda e: run.told(
                "run-service", int(rows[e]), "ttst_ms", "a second token comes sooner than its pass takes",
                f"{second[rows[e]]} ms", f"at least {in_ms(role.decode_ns)}",
            ),
        )  # fmt: skip


def _tell_service(run: Run, begin: Int64, end: Int64, least: Int64, rows: Bool, what: str) -> None:
    checked = np.flatnonzero(rows & (begin >= 0) & (end >= 0))
    took = (end - begin)[checked]
    run.tally.check(
        "run-service",
        took >= least[checked],
        lambda entry: run.told(
            "run-service", int(checked[entry]), "", f"{what} comes sooner than its passes take",
            in_ms(max(int(took[entry]), 0)), f"at least {in_ms(int(least[checked[entry]]))}",
        ),
    )  # fmt: skip


# Handoff ------------------------------------------------------------------------------------------------------------


def _check_handoff(run: Run, deployment: Deployment) -> None:
    """The steps of a handoff come in order, and nothing completes before it was admitted to decode."""
    if not deployment.split:
        for name in STEPS:
            given = run.lines[name]
            _tell(run, "run-handoff", np.arange(len(given)), given < 0, name, "there is no handoff", given, "null")
        run.tally.skip("there is no decode role", ["run-decode"])
        return
    lines, entry = run.lines, run.lines.admissions
    stamps = {name: lines[name] for name in STEPS}
    for pool, name in ((PREFILL, "prefill admission"), (DECODE, "decode admission")):
        first = np.full(len(lines), -1, np.int64)
        mine = (entry.pool == pool) & (entry.pool_ordinal == 0)
        first[entry.row[mine]] = entry.at[mine]
        stamps[name] = first
    stamps["dispatched_at_ms"] = lines["dispatched_at_ms"]
    held, reserved, activated, released = STEPS
    if deployment.backend == "vllm":
        order = ("dispatched_at_ms", "prefill admission", held, reserved, activated, released)
    else:
        order = ("dispatched_at_ms", reserved, "prefill admission", held, activated, released)
    for earlier, later in itertools.pairwise(order):
        _after(run, "run-handoff", earlier, later, stamps, every=True)
    _check_transfer(run, deployment, stamps)
    _after(run, "run-decode", activated, "decode admission", stamps, every=True)
    done = np.flatnonzero(run.completed)
    run.tally.check(
        "run-decode",
        (stamps["decode admission"] >= 0)[done],
        lambda e: run.told(
            "run-decode", int(done[e]), "admission_history", "it completed without an admission to decode", None,
            "an admission to decode",
        ),
    )  # fmt: skip
    for later in ("first_token_ms", "terminal_time_ms"):
        stamps[later] = np.where(run.completed, lines[later], -1)
        _after(run, "run-decode", "decode admission", later, stamps)
    if run.load.profile is None and run.load.stop_ns < 0:
        _after(run, "run-handoff", activated, released, stamps, backwards=True)


def _after(
    run: Run, code: str, earlier: str, later: str, stamps: dict[str, Int64], *, every: bool = False,
    backwards: bool = False,
) -> None:  # fmt: skip
    """Check that a step is not before another; with `every`, that it has the other at all; or the other way round."""
    first, second = stamps[earlier], stamps[later]
    if backwards:
        rows, good = np.flatnonzero((first >= 0) & run.completed), second >= 0
    elif every:
        rows, good = np.flatnonzero(second >= 0), (first >= 0) & (first <= second)
    else:
        rows, good = np.flatnonzero((second >= 0) & (first >= 0)), first <= second
    run.tally.check(
        code,
        good[rows],
        lambda entry: run.told(
            code, int(rows[entry]), later, f"{later} does not follow {earlier}", in_ms(int(second[rows[entry]])),
            f"at least {in_ms(int(first[rows[entry]]))}" if first[rows[entry]] >= 0 else f"{earlier} before it",
        ),
    )  # fmt: skip


def _check_transfer(run: Run, deployment: Deployment, stamps: dict[str, Int64]) -> None:
    """Where whole prompts move, activation comes no sooner than that takes."""
    if not (deployment.full_prompt and deployment.transfer_rate > 0):
        return
    weight = run.input.astype(np.float64) * deployment.transfer_bytes
    least = np.rint(np.minimum(weight / deployment.transfer_rate * 1e9, LONGEST_NS)).astype(np.int64)
    begin = stamps["destination_reserved_ms" if deployment.backend == "vllm" else "source_held_ms"]
    rows = np.flatnonzero((begin >= 0) & (stamps["destination_activated_ms"] >= 0))
    took = stamps["destination_activated_ms"] - begin
    run.tally.check(
        "run-handoff",
        (took >= least)[rows],
        lambda entry: run.told(
            "run-handoff", int(rows[entry]), "destination_activated_ms", "the KV arrives sooner than it can move",
            in_ms(max(int(took[rows[entry]]), 0)), f"at least {in_ms(int(least[rows[entry]]))}",
        ),
    )  # fmt: skip
