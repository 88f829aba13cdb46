"""Single facts of honest runs, altered, each with the rule that has to see it.

A fault alters one fact of one line or of the report; where a file says a fact more than once (an amount of reuse stands
in the history and beside it), all its places are altered, so that no rule can tell by their difference alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from honest_runs import BLOCK, HonestRun, Line

Alter = Callable[[HonestRun], None]


@dataclass(frozen=True)
class Change:
    """What becomes of a value."""

    says: str
    of: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.of(value)

    def __str__(self) -> str:
        return self.says


@dataclass(frozen=True)
class Fault:
    """One altered fact.

    Attributes
    ----------
    rule : str
        The rule that has to be broken by it.
    kind : str
        Of the honest run.
    says : str
        What is altered.
    alter : callable
        Writes it into a copy of the run.
    """

    rule: str
    kind: str
    says: str
    alter: Alter

    def __str__(self) -> str:
        return f"{self.rule}: {self.kind}: {self.says}"


def steps(path: str) -> list[str | int]:
    """Return the keys of a path.

    Examples
    --------
    >>> steps("roles.decode.each[0].busy_seconds")
    ['roles', 'decode', 'each', 0, 'busy_seconds']
    """
    return [int(number) if number else name for number, name in re.findall(r"\[(-?\d+)\]|([^.\[\]]+)", path)]


def put(values: Any, path: str, change: Change) -> None:
    """Change the value at a path; what is not there is None before."""
    *inner, last = steps(path)
    for key in inner:
        values = values[key]
    before = values.get(last) if isinstance(values, dict) else values[last]
    values[last] = change(before)
    assert values[last] != before or type(values[last]) is not type(before), f"{path} is as it was: {before!r}"


def plus(amount: float) -> Change:
    """Return a change that adds."""
    return Change(f"{amount:+}", lambda value: value + amount)


def to(value: Any) -> Change:
    """Return a change that sets."""
    return Change(f"= {value!r}", lambda _: value)


def line(rule: str, kind: str, request: str, path: str, change: Change) -> Fault:
    """Return a fault in a field of a request's line."""
    return Fault(rule, kind, f"{path} of {request} {change}", lambda run: put(run.by_name(request), path, change))


def lines(rule: str, kind: str, request: str, says: str, alter: Callable[[Line], object]) -> Fault:
    """Return a fault in a fact that a line says in several fields."""
    return Fault(rule, kind, f"{says} of {request}", lambda run: _done(alter(run.by_name(request))))


def report(rule: str, kind: str, path: str, change: Change) -> Fault:
    """Return a fault in a field of the report."""
    return Fault(rule, kind, f"{path} {change}", lambda run: put(run.report, path, change))


def whole(rule: str, kind: str, says: str, alter: Callable[[list[Line]], object]) -> Fault:
    """Return a fault in which lines there are."""
    return Fault(rule, kind, says, lambda run: _done(alter(run.lines)))


def _done(_: object) -> None:
    """Alterations return what they like."""


# Facts that a line says more than once ------------------------------------------------------------------------------


def reuse(tokens: int, number: int = 0) -> Callable[[Line], None]:
    """Return an alteration of what an admission found on the device."""

    def alter(one: Line) -> None:
        admission = one["admission_history"][number]
        added = tokens - admission["reused_input_tokens"]
        assert added
        for name in ("reused_input_tokens", "g1_reused_input_tokens"):
            admission[name] += added
            if number == 0:
                one[f"first_admission_{name}"] += added

    return alter


def start(change: Change) -> Callable[[Line], None]:
    """Return an alteration of when a request was sent; its latencies stay those of its instants."""

    def alter(one: Line) -> None:
        before = one["dispatched_at_ms"]
        one["dispatched_at_ms"] = one["arrival_time_ms"] = change(before)
        for name in ("ttft_ms", "e2e_latency_ms"):
            one[name] += before - one["dispatched_at_ms"]

    return alter


def admitted(at_ms: float) -> Callable[[Line], None]:
    """Return an alteration of when a request was first admitted."""

    def alter(one: Line) -> None:
        assert one["first_admit_ms"] != at_ms
        one["first_admit_ms"] = one["admission_history"][0]["at_ms"] = at_ms

    return alter


def first_token(change: Change) -> Callable[[Line], None]:
    """Return an alteration of when the first token came."""

    def alter(one: Line) -> None:
        before, tokens = one["first_token_ms"], one["output_length"]
        one["first_token_ms"] = change(before)
        one["ttft_ms"] = one["first_token_ms"] - one["dispatched_at_ms"]
        one["tpot_ms"] = (one["last_token_ms"] - one["first_token_ms"]) / (tokens - 1)

    return alter


def finished(change: Change) -> Callable[[Line], None]:
    """Return an alteration of when a request ended."""

    def alter(one: Line) -> None:
        one["last_token_ms"] = one["terminal_time_ms"] = change(one["terminal_time_ms"])
        one["tpot_ms"] = (one["last_token_ms"] - one["first_token_ms"]) / (one["output_length"] - 1)
        one["e2e_latency_ms"] = one["terminal_time_ms"] - one["dispatched_at_ms"]

    return alter


def answer(change: Change) -> Callable[[Line], None]:
    """Return an alteration of how many tokens a request generated."""

    def alter(one: Line) -> None:
        one["output_length"] = change(one["output_length"])
        one["tpot_ms"] = (one["last_token_ms"] - one["first_token_ms"]) / (one["output_length"] - 1)

    return alter


def without_admission(pool: str) -> Callable[[Line], None]:
    """Return an alteration that leaves out a pool's admissions."""

    def alter(one: Line) -> None:
        one["admission_history"] = [entry for entry in one["admission_history"] if entry["pool"] != pool]

    return alter


def swap(first: int, second: int) -> Callable[[list[Line]], None]:
    """Return an alteration that exchanges two lines."""

    def alter(all_lines: list[Line]) -> None:
        all_lines[first], all_lines[second] = all_lines[second], all_lines[first]

    return alter


# The table ----------------------------------------------------------------------------------------------------------

FAULTS: list[Fault] = [
    # What there is, and in which order
    report("run-settings", "finite", "deployment.mode", to("elsewhere")),
    report("run-settings", "finite", "agentic_graph.node_count", plus(1)),
    report("run-settings", "finite", "certificate.edges", plus(-1)),
    report("run-settings", "finite", "agentic_lanes", plus(1)),
    report("run-settings", "finite", "valid", to(False)),
    report("run-settings", "finite", "agentic_snapshots", to([])),
    report("run-settings", "hosted", "host_pools[0].hits", plus(1)),
    report("run-settings", "hosted", "host_pools[0].resident_blocks", plus(1000)),
    report("run-settings", "hosted", "host_pools[0].capacity_blocks", plus(1)),
    line("run-line", "finite", "p0b", "input_length", to(-1)),
    line("run-line", "finite", "p0b", "terminal_status", to("done")),
    line("run-line", "finite", "p0b", "dispatched_at_ms", to(1e300)),
    lines("run-line", "finite", "p0b", "no model", lambda one: one.pop("model")),
    lines("run-line", "finite", "p0b", "one field more", lambda one: one.update(note="hello")),
    whole("run-extra", "finite", "a line twice", lambda all_lines: all_lines.insert(1, dict(all_lines[0]))),
    line("run-extra", "finite", "p0b", "request_id", to("nobody")),
    whole("run-missing", "finite", "the last line is gone", lambda all_lines: all_lines.pop()),
    whole("run-missing", "finite", "the first line is gone", lambda all_lines: all_lines.pop(0)),
    whole("run-missing", "cut", "the last line is gone", lambda all_lines: all_lines.pop()),
    whole("run-missing", "online", "the last line is gone", lambda all_lines: all_lines.pop()),
    whole("run-order", "finite", "two lines exchanged", swap(0, 1)),
    whole("run-order", "profile", "two lines exchanged", swap(0, -1)),
    line("run-identity", "finite", "p0b", "model", to("another")),
    line("run-identity", "finite", "p0b", "input_length", plus(1)),
    line("run-identity", "finite", "p0b", "requested_output_length", plus(1)),
    line("run-identity", "finite", "p0b", "session_id", to("session-p1")),
    line("run-identity", "finite", "p0b", "play_ordinal", plus(1)),
    line("run-identity", "finite", "p0b", "turn_index", to(1)),
    line("run-identity", "ordinary", "p0t1", "turn_index", plus(1)),
    line("run-identity", "profile", "p0t3", "agentic.cache_id", to("shared")),
    line("run-identity", "profile", "p0t3", "agentic.lane_id", to("lane:9")),
    # The driver
    lines("run-clock", "finite", "p0b", "half a nanosecond", start(plus(5e-7))),
    lines("run-edge", "finite", "p0b", "an earlier start", start(plus(-0.001))),
    lines("run-edge", "finite", "p0c", "an earlier start", start(plus(-0.001))),
    lines("run-edge", "timed", "p0d", "an earlier start", start(plus(-0.001))),
    lines("run-edge", "pair", "p0b", "an earlier start", start(plus(-0.001))),
    lines("run-edge", "online", "p0b", "an earlier start", start(plus(-0.001))),
    lines("run-edge", "online", "p0c", "an earlier start", start(plus(-1.0))),
    line("run-edge", "timed", "p0b", "terminal_status", to("failed")),
    lines("run-floor", "finite", "p0e", "an earlier start", start(plus(-0.001))),
    lines("run-floor", "timed", "p1e", "an earlier start", start(plus(-0.001))),
    lines("run-floor", "online", "p0e", "an earlier start", start(plus(-0.001))),
    lines("run-late", "finite", "p0a", "a later start", start(plus(0.001))),
    lines("run-late", "sglang", "p0b", "a later start", start(plus(0.001))),
    lines("run-late", "cut", "p0t3", "a later start", start(plus(0.001))),
    lines("run-late", "profile", "p1t3", "a later start", start(plus(0.001))),
    lines("run-late", "online", "p0b", "a later start", start(plus(0.3))),
    line("run-failure", "finite", "p0a", "terminal_status", to("failed")),
    lines("run-failure", "timed", "p2d", "a start after the failure of p2b", start(plus(3.0))),
    line("run-lane", "finite", "p0b", "lane", plus(1)),
    line("run-lane", "finite", "p0b", "lane", plus(7)),
    line("run-lane", "finite", "p0b", "lane", to(None)),
    line("run-lane", "timed", "p0b", "lane", to(0)),
    lines("run-lane", "finite", "p3a", "a start before the lane is free", start(plus(-0.001))),
    # Each request
    line("run-stamp", "finite", "p0b", "arrival_time_ms", plus(0.001)),
    line("run-stamp", "finite", "p0b", "first_token_ms", to(None)),
    lines("run-stamp", "finite", "p0b", "a first token behind the last", first_token(plus(1000.0))),
    line("run-stamp", "finite", "p0b", "terminal_time_ms", plus(0.001)),
    line("run-stamp", "timed", "p0b", "first_admit_ms", to(None)),
    line("run-stamp", "online", "p0b", "first_admit_ms", to(1.0)),
    line("run-latency", "finite", "p0b", "ttft_ms", plus(0.001)),
    line("run-latency", "finite", "p0b", "tpot_ms", plus(0.001)),
    line("run-latency", "finite", "p0b", "e2e_latency_ms", plus(0.001)),
    line("run-latency", "finite", "p0b", "ttst_ms", plus(1000.0)),
    line("run-latency", "finite", "p0b", "ttst_ms", to(None)),
    lines("run-tokens", "finite", "p0b", "one token more", answer(plus(1))),
    lines("run-tokens", "finite", "p0b", "one token less", answer(plus(-1))),
    lines("run-tokens", "online", "p0b", "one token more", answer(plus(1))),
    line("run-tokens", "finite", "p2b", "output_length", plus(1)),
    line("run-ending", "finite", "p2b", "terminal_status", to("failed")),
    line("run-ending", "finite", "p1e", "terminal_status", to("rejected")),
    line("run-ending", "finite", "p1e", "terminal_status", to("canceled")),
    line("run-ending", "sglang", "p2b", "terminal_status", to("completed")),
    # Admissions
    line("run-admission", "finite", "p0b", "readmission_count", plus(1)),
    line("run-admission", "finite", "p0b", "admission_history[0].admission_ordinal", plus(1)),
    line("run-admission", "pair", "p0b", "admission_history[1].pool_admission_ordinal", plus(1)),
    line("run-admission", "finite", "p0b", "admission_history[0].is_readmission", to(True)),
    line("run-admission", "finite", "p0b", "admission_history[0].pool", to("decode")),
    lines("run-admission", "finite", "p0b", "an admission before it was sent", admitted(0.0)),
    line("run-admission", "finite", "p0b", "first_admit_ms", plus(0.001)),
    line("run-admission", "finite", "p0b", "first_admission_reused_input_tokens", plus(BLOCK)),
    line("run-admission", "online", "p0b", "admission_history[0].at_ms", to(1.0)),
    line("run-reuse", "finite", "p0b", "admission_history[0].host_reused_input_tokens", plus(BLOCK)),
    lines("run-reuse", "finite", "p0b", "part of a block", reuse(BLOCK + 1)),
    lines("run-reuse", "finite", "p0b", "more than its prompt", reuse(100 * BLOCK)),
    lines("run-reuse", "pair", "p0b", "a first admission to decode finds something", reuse(BLOCK, 1)),
    lines("run-reuse-source", "finite", "p0a", "blocks that nothing computed", reuse(BLOCK)),
    lines("run-reuse-source", "sglang", "p2a", "blocks that nothing computed", reuse(BLOCK)),
    lines("run-reuse-source", "pair", "p1a", "blocks that nothing computed", reuse(2 * BLOCK)),
    # Its play has computed six blocks of this prompt, other plays all eight of it.
    lines("run-reuse-source", "apart", "p3b", "a block more than was computed", reuse(7 * BLOCK)),
    lines("run-reuse-source", "online", "p0a", "blocks that nothing computed", reuse(BLOCK)),
    # Workers
    line("run-worker", "finite", "p0b", "decode_worker_idx", to(2)),
    line("run-worker", "finite", "p0b", "decode_worker_idx", to(None)),
    line("run-worker", "finite", "p0b", "prefill_worker_idx", to(0)),
    line("run-worker", "finite", "p2b", "decode_worker_idx", to(0)),
    line("run-worker", "finite", "p0b", "decode_route_overlap_tokens", to(0)),
    line("run-worker", "routed", "p0b", "decode_route_overlap_tokens", plus(1000)),
    line("run-placement", "finite", "p0b", "decode_worker_idx", Change("is the other", lambda worker: 1 - worker)),
    line("run-placement", "pair", "p0b", "decode_worker_idx", Change("is the other", lambda worker: 1 - worker)),
    lines("run-seats", "crowded", "p1a", "an admission beside another request", admitted(0.0)),
    report("run-seats", "finite", "deployment.max_sequences", to(1)),
    report("run-pool", "timed", "deployment.blocks", to(12)),
    report("run-pool", "sglang", "deployment.blocks", to(8)),
    report("run-pool", "pair", "deployment.prefill.blocks", to(8)),
    report("run-pool", "pair", "deployment.decode.blocks", to(7)),
    lines("run-service", "finite", "p0b", "a first token at once", first_token(plus(-9.0))),
    lines("run-service", "crowded", "p0b", "an answer too soon", finished(plus(-0.001))),
    line("run-service", "finite", "p0b", "ttst_ms", to(0.5)),
    line("run-handoff", "pair", "p0b", "source_held_ms", plus(1000.0)),
    line("run-handoff", "pair", "p0b", "destination_reserved_ms", to(None)),
    line("run-handoff", "pair", "p0b", "destination_activated_ms", plus(-0.001)),
    line("run-handoff", "pair", "p0b", "source_released_ms", to(None)),
    line("run-handoff", "sglang pair", "p0b", "destination_reserved_ms", plus(1000.0)),
    line("run-handoff", "finite", "p0b", "source_held_ms", to(1.0)),
    lines("run-decode", "pair", "p0b", "no admission to decode", without_admission("decode")),
    line("run-decode", "pair", "p0b", "admission_history[1].at_ms", plus(-0.001)),
    line("run-decode", "pair", "p0b", "admission_history[1].at_ms", plus(1000.0)),
    # Run controls
    report("run-snapshot", "cut", "agentic_snapshots[0].t_star_ms", plus(0.001)),
    report("run-snapshot", "cut", "agentic_snapshots[0].requests[-1].remaining_delay_ms", plus(0.001)),
    report("run-snapshot", "cut", "agentic_snapshots[0].requests[1].historical", to(False)),
    report("run-snapshot", "cut", "agentic_snapshots[1].primers[0].input_length", plus(1)),
    report("run-snapshot", "cut", "agentic_snapshots[1].cache_id", to("shared")),
    report("run-snapshot", "profile", "agentic_snapshots[-1].recorded_start_ms", plus(1.0)),
    report("run-phase", "cut", "agentic_phases.profile_start_ms", plus(-1.0)),
    report("run-phase", "cut", "agentic_phases.phase", to("warmup")),
    report("run-phase", "cut", "agentic_phases.lanes[0].warmup_completed", plus(-1)),
    report("run-phase", "cut", "agentic_phases.requests[0].quiescent_at_ms", plus(1.0)),
    report("run-phase", "cut", "agentic_phases.requests[1].dispatched_at_ms", plus(-0.001)),
    report("run-phase", "cut", "agentic_phases.requests[0].first_admission_reused_input_tokens", to(1)),
    report("run-profile", "profile", "agentic_profile.issued_requests", plus(1)),
    report("run-profile", "profile", "agentic_profile.admission_cutoff_ms", plus(1.0)),
    report("run-profile", "profile", "agentic_profile.idle_shifts[0].at_ms", plus(-0.001)),
    report("run-profile", "profile", "agentic_profile.idle_shifts[1].timer_count", plus(1)),
    report("run-profile", "profile", "agentic_profile.options.duration_seconds", plus(1.0)),
    report("run-profile", "profile", "load.profile.duration_seconds", to(0.05)),
    # The report
    report("run-outcome", "finite", "agentic_play_outcomes[0].status", to("failed")),
    report("run-outcome", "finite", "agentic_play_outcomes[2].status", to("completed")),
    report("run-outcome", "finite", "agentic_play_outcomes[2].failure_request_id", to("p2a")),
    report("run-outcome", "finite", "agentic_play_outcomes[2].failure_status", to("failed")),
    report("run-outcome", "finite", "agentic_play_outcomes[0].settled_at_ms", plus(0.001)),
    report("run-outcome", "finite", "agentic_play_outcomes[0].causal_terminal_ms", plus(0.001)),
    report("run-outcome", "finite", "agentic_play_outcomes[1].lane", plus(1)),
    report("run-outcome", "profile", "agentic_play_outcomes[0].started_at_ms", plus(1.0)),
    report("run-figure", "finite", "mean_ttft_ms", plus(0.001)),
    report("run-figure", "finite", "p90_e2e_latency_ms", plus(0.001)),
    report("run-figure", "finite", "std_trajectory_e2e_latency_ms", plus(0.1)),
    report("run-figure", "finite", "num_itl_samples", plus(1)),
    report("run-figure", "finite", "total_output_tokens", plus(1)),
    report("run-figure", "finite", "completed_requests", plus(1)),
    report("run-figure", "finite", "skipped_requests", plus(1)),
    report("run-figure", "finite", "committed_prefill_tokens", plus(1)),
    report("run-figure", "finite", "roles.aggregated.each[0].decode_tokens", plus(1)),
    report("run-figure", "finite", "preemptions", plus(1)),
    report("run-figure", "finite", "output_throughput_tok_s", plus(0.001)),
    report("run-figure", "finite", "prefix_cache_reused_ratio", plus(0.001)),
    report("run-figure", "finite", "failed_trajectories", plus(1)),
    report("run-figure", "pair", "prefill_worker_seconds", plus(0.001)),
    report("run-figure", "online", "total_input_tokens", plus(1)),
    report("run-figure", "online", "online.time_scale", to(-1.0)),
]


# Numbers ------------------------------------------------------------------------------------------------------------

# Numbers of which neither lines nor report nor trace show what they must be, or only within bounds; by their places
# (``[*]`` for any), each with the reason.
UNTOLD: dict[str, str] = {
    r"report\.(wall_time_ms|certificate\.obligations\[\*\]\.wall_ms)": "what the machine took",
    r"report\.certificate\.shapes": "how the prover grouped plays",
    r"report\.finding_counts\..*": "warnings of the proof and the configuration",
    r"report\.deployment\..*": "settings are given: their digest tells of them where files are checked",
    r"report\.\w+_itl_ms": "gaps between tokens are in no line; only their sum, their number and bounds are",
    r"report\.agentic_phases\.requests\[\*\]\.first_adm\w+": "preparation has no lines: an admission lies in its time",
    r"report\.host_pools\[\*\]\..*(busy_ms|evictions|resident_blocks|used_blocks)": "of host memory no line tells",
    r"lines\[\*\]\.source_released_ms": "a source goes when the prefill worker's pass ends, of which no line tells",
    r"lines\[\*\]\.destination_reserved_ms": "a destination is reserved when there is room, of which no line tells",
    r"lines\[\*\]\.decode_route_overlap_tokens": "what the router knew of caches",
}
# Of some kinds of runs.
UNTOLD_OF: dict[str, dict[str, str]] = {
    "profile": {
        r"lines\[\*\]\.(first_token_ms|last_token_ms|output_length)": "how far a canceled request was",
    },
    "online": {
        r"report\.online\..*": "what the client's machine took",
        r"lines\[\*\]\.dispatch_lateness_ms": "what the client's machine took",
        r"lines\[\*\]\.decode_worker_idx": "whose turn it was when a request arrived over the network",
        r"report\.(load\.speedup|\w+_trajectory_e2e_latency_ms)": "within what the client heard late",
        r"report\.agentic_play_outcomes\[\*\]\.\w+_ms": "within what the client heard late",
    },
}


def numbers(values: Any, path: str = "") -> list[tuple[str, float]]:
    """Return (place, number) of every number inside of a JSON value."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    found: list[tuple[str, float]] = []
    for key, value in inner:
        place = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else key
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append((place, value))
        else:
            found += numbers(value, place)
    return found


def why_untold(kind: str, place: str) -> str:
    """Return why a number of a run cannot be told, "" if it can."""
    general = re.sub(r"\[\d+\]", "[*]", place)
    known = {**UNTOLD, **UNTOLD_OF.get(kind, {})}
    return next((why for pattern, why in known.items() if re.fullmatch(pattern, general)), "")
