"""What each request's own line has to satisfy: instants in order, latencies, tokens, and how it ended."""

from __future__ import annotations

import itertools

import numpy as np
from playproof_spec.findings import Finding

from playproof.checking.lines import COMPLETED, FAILED, REJECTED, STATUSES
from playproof.checking.run import Run, in_ms
from playproof.checking.settings import NS_PER_MS, Float64, Int64, Role
from playproof.checking.verdict import Bool

# Two floating-point figures made by formulas that differ in the order of their operations are alike to this share.
ALIKE = 1e-9


def check_requests(run: Run) -> None:
    """Check instants, latencies, tokens and endings."""
    _check_clock(run)
    _check_order(run)
    _check_presence(run)
    _check_latencies(run)
    _check_tokens(run)
    _check_endings(run)


def _check_clock(run: Run) -> None:
    run.tally.check(
        "run-clock",
        ~run.lines.blurred,
        lambda row: run.told(
            "run-clock", row, "", "an instant is not on the clock", "milliseconds with part of a nanosecond",
            "whole nanoseconds",
        ),
    )  # fmt: skip


def _in_order(run: Run, earlier: str, later: str, rows: Bool | None = None) -> None:
    """Check that of two instants of a line the one is not before the other, where both are there."""
    first, second = run.lines[earlier], run.lines[later]
    both = (first >= 0) & (second >= 0)
    checked = np.flatnonzero(both if rows is None else both & rows)
    run.tally.check(
        "run-stamp",
        (first <= second)[checked],
        lambda entry: _backwards(run, int(checked[entry]), earlier, later),
    )


def _backwards(run: Run, row: int, earlier: str, later: str) -> Finding:
    found, bound = in_ms(int(run.lines[later][row])), in_ms(int(run.lines[earlier][row]))
    return run.told("run-stamp", row, later, f"{later} lies before {earlier}", found, f"at least {bound}")


def _check_order(run: Run) -> None:
    _equal_instants(run, "arrival_time_ms", "dispatched_at_ms", np.ones(len(run.lines), np.bool_))
    chain = ("dispatched_at_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms")
    for earlier, later in itertools.pairwise(chain):
        _in_order(run, earlier, later)
    _in_order(run, "dispatched_at_ms", "terminal_time_ms")
    _in_order(run, "first_admit_ms", "terminal_time_ms")
    one = run.lines["output_length"] == 1
    _equal_instants(run, "first_token_ms", "last_token_ms", one)
    if run.online is None:
        # A worker is done with a request at the end of the pass that gives it its last token.
        answered = run.completed & (run.lines["output_length"] > 0)
        _equal_instants(run, "last_token_ms", "terminal_time_ms", answered)


def _equal_instants(run: Run, name: str, other: str, rows: Bool) -> None:
    checked = np.flatnonzero(rows)
    first, second = run.lines[name][checked], run.lines[other][checked]
    run.tally.check(
        "run-stamp",
        first == second,
        lambda entry: run.told(
            "run-stamp", int(checked[entry]), other, f"{other} is not {name}", in_ms(int(second[entry])),
            in_ms(int(first[entry])),
        ),
    )  # fmt: skip


def _there(run: Run, name: str, wanted: Bool, why: str, rows: Bool | None = None) -> None:
    """Check that an instant is there exactly where it is wanted."""
    has = run.lines[name] >= 0
    checked = np.arange(len(has)) if rows is None else np.flatnonzero(rows)
    run.tally.check(
        "run-stamp",
        (has == wanted)[checked],
        lambda entry: run.told(
            "run-stamp", int(checked[entry]), name, f"{name} {'is missing' if wanted[checked[entry]] else 'is there'}",
            in_ms(int(run.lines[name][checked[entry]])), why,
        ),
    )  # fmt: skip


def _check_presence(run: Run) -> None:
    tokens = run.lines["output_length"] > 0
    # Of a request that failed on its way online it is not known how many of its tokens had come.
    rows = None if run.online is None else run.completed
    for name in ("first_token_ms", "last_token_ms"):
        _there(run, name, tokens, "an instant exactly where there are tokens", rows)
    if run.online is not None:
        _there(run, "first_admit_ms", np.zeros(len(tokens), np.bool_), "null: only the server knows when")
        return
    _there(run, "first_admit_ms", run.completed, "a completed request was admitted", run.completed)
    refused = run.lines.status == REJECTED
    _there(run, "first_admit_ms", ~refused, "a refused request was never admitted", refused)


# Latencies ----------------------------------------------------------------------------------------------------------


def latencies(run: Run) -> dict[str, Float64]:
    """Return TTFT, TPOT and E2E of each line from its instants, NaN where it has none."""
    instants = run.lines
    first, last = instants["first_token_ms"], instants["last_token_ms"]
    dispatched, output = instants["dispatched_at_ms"], instants["output_length"]
    answered = run.completed & (output > 0)
    several = answered & (output > 1)
    return {
        "ttft_ms": np.where(answered, (first - dispatched) / NS_PER_MS, np.nan),
        "tpot_ms": np.where(several, (last - first) / NS_PER_MS / np.maximum(output - 1, 1), np.nan),
        "e2e_latency_ms": np.where(answered, (instants["terminal_time_ms"] - dispatched) / NS_PER_MS, np.nan),
    }


def _check_latencies(run: Run) -> None:
    for name, wanted in latencies(run).items():
        given = run.lines.figures[name]
        same = (np.abs(given - wanted) <= ALIKE * np.abs(wanted)) | (np.isnan(given) & np.isnan(wanted))
        run.tally.check(
            "run-latency",
            same,
            lambda row, name=name, given=given, wanted=wanted: _wrong_latency(run, row, name, given, wanted),  # type: ignore[misc]
        )
    # Of the second token there is no instant: it lies between the first and the last.
    given = run.lines.figures["ttst_ms"]
    first, last, output = run.lines["first_token_ms"], run.lines["last_token_ms"], run.lines["output_length"]
    several = run.completed & (output > 1)
    span = (last - first) / NS_PER_MS
    low = np.where(output == 2, span, 0.0)
    good = np.where(several, (given >= low) & (given <= span), np.isnan(given))
    run.tally.check(
        "run-latency",
        good,
        lambda row: run.told(
            "run-latency", row, "ttst_ms", "ttst_ms does not lie between the first token and the last",
            _known(given[row]), f"{low[row]:g} to {span[row]:g} ms" if several[row] else "null",
        ),
    )  # fmt: skip


def _known(value: float) -> object:
    return None if np.isnan(value) else float(value)


def _wrong_latency(run: Run, row: int, name: str, given: Float64, wanted: Float64) -> Finding:
    message = f"{name} is not the difference of the line's instants"
    return run.told("run-latency", row, name, message, _known(given[row]), _known(wanted[row]))


# Tokens and endings -------------------------------------------------------------------------------------------------


def _check_tokens(run: Run) -> None:
    output, asked = run.lines["output_length"], run.asked
    if run.online is not None and run.online.mock is not True:
        run.tally.skip("how long its answers are, a real server decides", ["run-tokens"])
        return
    run.tally.check(
        "run-tokens",
        output <= asked,
        lambda row: run.told(
            "run-tokens", row, "output_length", "the answer is longer than asked", int(output[row]),
            f"at most {asked[row]}",
        ),
    )  # fmt: skip
    done = np.flatnonzero(run.completed)
    run.tally.check(
        "run-tokens",
        (output == asked)[done],
        lambda entry: run.told(
            "run-tokens", int(done[entry]), "output_length", "a completed request has another answer than it asked for",
            int(output[done[entry]]), int(asked[done[entry]]),
        ),
    )  # fmt: skip
    refused = np.flatnonzero(run.lines.status == REJECTED)
    run.tally.check(
        "run-tokens",
        (output == 0)[refused],
        lambda entry: run.told(
            "run-tokens", int(refused[entry]), "output_length", "a refused request has an answer",
            int(output[refused[entry]]), 0,
        ),
    )  # fmt: skip


def _check_endings(run: Run) -> None:
    """Requests that never fit end as such, and those that say so did not fit."""
    _check_cancellations(run)
    deployment = run.deployment
    if deployment is None:
        run.tally.skip("the deployment is not known", ["run-ending"])
        return
    status, size = run.lines.status, run.input
    long = size >= deployment.context
    good = ~long | (status == REJECTED)
    if run.online is None:
        # The front end refuses it at once; of a run that was cut short it may have been canceled first.
        good &= ~long | (run.lines["terminal_time_ms"] == run.lines["dispatched_at_ms"])
    _tell_endings(run, np.arange(len(size)), good, "a prompt at or over the context limit is refused at its dispatch")
    whole = size + np.maximum(run.asked - 1, 0)
    for number, role in enumerate(deployment.roles):
        held = size if number == 0 and deployment.split else whole
        fits = blocks_for(held, role) <= role.blocks
        _tell_endings(run, np.arange(len(size)), fits | (status != COMPLETED), "the pool never holds what it completed")
    if deployment.backend != "vllm" or run.online is not None:
        if deployment.backend != "vllm":
            run.tally.skip("what SGLang refuses or fails depends on what it keeps free", ["run-ending"])
        return
    first, last = deployment.roles[0], deployment.roles[-1]
    refused = np.flatnonzero(status == REJECTED)
    _tell_endings(run, refused, (long | (blocks_for(size, first) > first.blocks))[refused], "it fits, and is refused")
    failed = np.flatnonzero(status == FAILED)
    room = blocks_for(size + run.lines["output_length"] + deployment.drafts, last) > last.blocks
    _tell_endings(run, failed, room[failed], "it fits, and fails")


def _check_cancellations(run: Run) -> None:
    """Clients give up at a profile's grace and at an online run's end, and where the caller says that they may."""
    if run.load.profile is not None or run.online is not None or run.may_cancel:
        return
    _tell_endings(run, np.arange(len(run.lines)), ~run.canceled, "nobody gives up on requests in such a run")


def blocks_for(tokens: Int64, role: Role) -> Int64:
    """Return the blocks that tokens take."""
    blocks: Int64 = -(-tokens // role.block_size)
    return blocks


def _tell_endings(run: Run, rows: Int64, good: Bool, why: str) -> None:
    run.tally.check(
        "run-ending",
        good,
        lambda entry: run.told(
            "run-ending", int(rows[entry]), "terminal_status", "the request does not end as it must",
            STATUSES[int(run.lines.status[rows[entry]])], why,
        ),
    )  # fmt: skip
