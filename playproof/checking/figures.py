"""The report's figures, computed again from the lines.

Sums of floating-point figures depend on the order of their terms, so figures are alike if they differ by no more than
10⁻⁹ of their size. What lines do not show is bounded by what they do: gaps between tokens, tokens computed, passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from playproof_spec.findings import finding

from playproof.checking.course import Course
from playproof.checking.driver import late_ns
from playproof.checking.lines import CANCELED, COMPLETED, DECODE, FAILED, REJECTED, STATUSES
from playproof.checking.profile import cutoff_ns
from playproof.checking.requests import ALIKE, latencies
from playproof.checking.run import AFTER_ALL, Run
from playproof.checking.settings import NS_PER_MS, Deployment, Float64, Int64
from playproof.checking.verdict import Bool

PERCENTS = (50, 75, 90, 95, 99)
MS_PER_S = 1000.0
# Online, gaps are counted in steps of 10 µs.
GAP_STEP_MS = 0.01
# Figures that an online report withholds when its client was too slow, by the ends of their names.
WITHHELD = ("_latency_ms", "_ttft_ms", "_ttst_ms", "_tpot_ms", "_itl_ms", "_rps", "_tok_s")


class Figures:
    """Compares fields of the report.

    Parameters
    ----------
    run : Run
        With a report.
    """

    def __init__(self, run: Run) -> None:
        assert run.report is not None
        self.run, self.report = run, run.report
        online = run.report.get("online")
        withheld = online.get("withheld") if isinstance(online, Mapping) else None
        self._withheld: Mapping[str, Any] = withheld if isinstance(withheld, Mapping) else {}

    def value(self, name: str) -> Any:
        """Return a field, also where it stands among what an online report withholds."""
        given = self.report.get(name)
        if given is None and name in self._withheld and name.endswith(WITHHELD):
            return self._withheld[name]
        return given

    def number(self, name: str) -> float | None:
        """Return a field that is a finite number, else None."""
        given = self.value(name)
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            return None
        return given

    def equal(self, name: str, wanted: float | None, slack: float = 0.0) -> None:
        """Compare a field with a number, or with None for null."""
        given = self.number(name)
        if given is None or wanted is None:
            good = self.value(name) is None and wanted is None and name in self.report
        else:
            good = abs(given - wanted) <= ALIKE * abs(wanted) + slack
        self._tell(name, good, wanted)

    def between(self, name: str, low: float, high: float = math.inf) -> None:
        """Compare a field with bounds."""
        given = self.number(name)
        good = given is not None and low - ALIKE * abs(low) <= given <= high + ALIKE * abs(high)
        wanted = f"at least {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        self._tell(name, good, wanted)

    def _tell(self, name: str, good: bool, wanted: object) -> None:
        self.run.tally.fact(
            "run-figure",
            good,
            lambda: finding(
                "run-figure",
                "the figure is not that of the lines",
                where=self.run.report_at(name),
                found="nothing" if name not in self.report else repr(self.value(name)),
                wanted="null" if wanted is None else str(wanted),
            ),
        )

    def told(self, field: str, good: bool, message: str, found: object, wanted: object) -> None:
        """Count a fact on a field inside of others."""
        self.run.tally.fact(
            "run-figure",
            good,
            lambda: finding("run-figure", message, where=self.run.report_at(field), found=found, wanted=str(wanted)),
        )


def check_figures(run: Run, course: Course) -> None:
    """Check every figure of the report that lines show, or bound."""
    if run.report is None:
        run.tally.skip("no report is given", ["run-figure"])
        return
    figures = Figures(run)
    _check_counts(figures, course)
    _check_sums(figures)
    _check_latencies(figures)
    _check_trajectories(figures, course)
    if run.online is not None and run.online.mock is not True:
        run.tally.skip("what a real server does, its report does not say", ["run-figure"])
        return
    _check_reuse(figures)
    if run.deployment is not None:
        _check_roles(figures, run.deployment)


# Counts and sums ----------------------------------------------------------------------------------------------------


def _check_counts(figures: Figures, course: Course) -> None:
    run = figures.run
    for number, name in enumerate(STATUSES):
        figures.equal(f"{name}_requests", int((run.lines.status == number).sum()))
    assert tuple(range(len(STATUSES))) == (COMPLETED, REJECTED, FAILED, CANCELED)
    unfinished, never = figures.number("unfinished_requests") or 0, figures.number("never_issued_requests") or 0
    bounds = _left_over(run, course)
    figures.equal("num_requests", len(run.lines) + unfinished)
    for name, (least, most) in bounds.items():
        figures.between(name, least, most)
    if not run.controlled:
        absent = int((~run.present).sum())
        given = (figures.number("skipped_requests") or 0) + unfinished + never
        figures.told("skipped_requests", given == absent, "skipped, unfinished and never issued requests do not add up",
                     given, f"{absent}, the requests without a line")  # fmt: skip


def _left_over(run: Run, course: Course) -> dict[str, tuple[int, int]]:
    """Return bounds on the requests without a line: unfinished, skipped and never issued ones.

    A play's failure skips what it has left, but for a failure after a profile's cutoff. Which of two things at one
    instant came first the lines do not say.
    """
    absent = ~run.present
    failed_at = course.failed_at[run.plays.instance]
    sent = sent_for_sure = np.zeros(len(absent), np.bool_)
    if run.load.stop_ns >= 0:
        at_stop = course.ready <= run.load.stop_ns
        sent_for_sure, sent = (
            absent & at_stop & (course.ready < failed_at),
            absent & at_stop & (course.ready <= failed_at),
        )
    skipped = absent & (failed_at < AFTER_ALL)
    skipped_for_sure = skipped & ~sent
    if run.load.profile is not None:
        cutoff = cutoff_ns(run)
        skipped_for_sure &= failed_at < cutoff
        skipped &= (failed_at <= cutoff) | (run.online is not None)
    if run.online is not None and run.stopped:
        skipped_for_sure &= False
    skipped &= ~sent_for_sure
    never = (int((absent & ~skipped & ~sent).sum()), int((absent & ~skipped_for_sure & ~sent_for_sure).sum()))
    return {
        "unfinished_requests": (int(sent_for_sure.sum()), int(sent.sum())),
        "skipped_requests": (int(skipped_for_sure.sum()), int(skipped.sum())),
        "never_issued_requests": never if run.stopped or run.load.profile is not None else (0, 0),
    }


def _check_sums(figures: Figures) -> None:
    run = figures.run
    done = run.completed
    tokens_in, tokens_out = int(run.input[done].sum()), int(run.lines["output_length"][done].sum())
    figures.equal("total_input_tokens", tokens_in)
    figures.equal("total_output_tokens", tokens_out)
    figures.equal("processed_tokens", tokens_in + tokens_out)
    dispatched, terminal = run.lines["dispatched_at_ms"], run.lines["terminal_time_ms"]
    if run.load.profile is not None:
        span = int(terminal[done].max() - dispatched[done].min()) if done.any() else 0
    else:
        span = int(terminal.max(initial=0))
    duration_ms = max(span, 0) / NS_PER_MS
    # Under the run controls a play may have ended when its driver heard of it.
    heard = 0.0 if run.online is None or not run.controlled else min(run.online.heard_ns, 10**15) / NS_PER_MS
    if heard and run.load.profile is None:
        figures.between("duration_ms", duration_ms, duration_ms + heard)
        duration_ms = figures.number("duration_ms") or duration_ms
    else:
        figures.equal("duration_ms", duration_ms)
    seconds = duration_ms / MS_PER_S
    for name, amount in (
        ("request_throughput_rps", int(done.sum())),
        ("input_throughput_tok_s", tokens_in),
        ("output_throughput_tok_s", tokens_out),
        ("total_throughput_tok_s", tokens_in + tokens_out),
    ):
        figures.equal(name, amount / seconds if seconds else None)


# Latencies ----------------------------------------------------------------------------------------------------------


def statistics(values_ms: Float64) -> dict[str, float | None]:
    """Return the statistics of docs/report.md."""
    names = ("mean", "min", "max", "std", "median", *(f"p{percent}" for percent in PERCENTS))
    if not len(values_ms):
        return dict.fromkeys(names)
    ranked = np.sort(values_ms)
    # NumPy adds in pairs: the error of its sums is far below what figures may differ by.
    mean = float(ranked.mean())
    variance = float(np.square(ranked - mean).mean())
    place = {f"p{percent}": (2 * percent * (len(ranked) - 1) + 100) // 200 for percent in PERCENTS}
    chosen: dict[str, float | None] = {name: float(ranked[at]) for name, at in place.items()}
    return {
        "mean": mean,
        "min": float(ranked[0]),
        "max": float(ranked[-1]),
        "std": math.sqrt(variance),
        "median": chosen["p50"],
        **chosen,
    }


def _check_latencies(figures: Figures) -> None:
    run = figures.run
    spans = {**latencies(run), "ttst_ms": run.lines.figures["ttst_ms"]}
    names = {"ttft": "ttft_ms", "ttst": "ttst_ms", "tpot": "tpot_ms", "e2e_latency": "e2e_latency_ms"}
    for name, column in names.items():
        values = spans[column]
        values = values[~np.isnan(values)]
        figures.equal(f"num_{name}_samples", len(values))
        for statistic, wanted in statistics(values).items():
            # The squares of small differences lose digits.
            slack = 1e-6 * (abs(wanted or 0.0) + 1e-3) if statistic == "std" else 0.0
            figures.equal(f"{statistic}_{name}_ms", wanted, slack)
    _check_gaps(figures)


def _check_gaps(figures: Figures) -> None:
    """Of gaps between tokens, lines show how many there are and their sum, and bounds on the least and the greatest."""
    run = figures.run
    lines = run.lines
    several = run.completed & (lines["output_length"] > 1)
    gaps = int((lines["output_length"][several] - 1).sum())
    if run.online is not None and (run.online.mock is not True or figures.report.get("online") is None):
        run.tally.skip("how a real server's tokens came along, its lines do not show", ["run-figure"])
        return
    figures.equal("num_itl_samples", gaps)
    if gaps == 0:
        for name in ("mean", "min", "max", "std", "median", *(f"p{percent}" for percent in PERCENTS)):
            figures.equal(f"{name}_itl_ms", None)
        return
    step = 0.0 if run.online is None else GAP_STEP_MS * max(run.online.scale or 1.0, 1.0)
    spans = (lines["last_token_ms"] - lines["first_token_ms"])[several]
    figures.equal("mean_itl_ms", int(spans.sum()) / NS_PER_MS / gaps, step)
    second, mean = lines.figures["ttst_ms"][several], spans / NS_PER_MS / (lines["output_length"][several] - 1)
    figures.between("min_itl_ms", 0.0, float(min(second.min(), mean.min())) + step)
    figures.between(
        "max_itl_ms", max(float(max(second.max(), mean.max())) - step, 0.0), float(spans.max()) / NS_PER_MS + step
    )
    least, greatest = figures.number("min_itl_ms"), figures.number("max_itl_ms")
    ordered = [figures.number(f"p{percent}_itl_ms") for percent in PERCENTS]
    known = [value for value in (least, *ordered, greatest) if value is not None]
    in_order = len(known) == len(ordered) + 2 and known == sorted(known)
    what = "percentiles of gaps do not lie in order between the least and the greatest"
    figures.told("p50_itl_ms", in_order, what, known, "ascending")
    figures.equal("median_itl_ms", figures.number("p50_itl_ms"))
    figures.between("std_itl_ms", 0.0, (greatest or 0.0) - (least or 0.0))


# Plays --------------------------------------------------------------------------------------------------------------


def ended_plays(run: Run, course: Course) -> tuple[Bool, Bool, Bool]:
    """Return which instances started, completed and failed."""
    count = len(run.plays.play)
    lines = np.bincount(run.instance, minlength=count)
    absent = np.bincount(run.plays.instance[~run.present], minlength=count)
    started = np.ones(count, np.bool_) if run.controlled else lines > 0
    failed = course.failed_at < AFTER_ALL
    return started, started & (absent == 0) & ~failed, failed


def _failed_in_time(run: Run, failed: Bool) -> Bool:
    """Return which plays count as failed: of a profile not those that its cutoff had closed before, or its grace."""
    if run.load.profile is None:
        return failed
    bad = ~run.completed & ~run.canceled
    failed_at = np.full(len(failed), AFTER_ALL)
    np.minimum.at(failed_at, run.instance[bad], run.lines["terminal_time_ms"][bad])
    absent = np.bincount(run.plays.instance[~run.present], minlength=len(failed))
    counts: Bool = (failed_at <= cutoff_ns(run)) | ((absent == 0) & (failed_at < AFTER_ALL))
    return counts


def _check_trajectories(figures: Figures, course: Course) -> None:
    run = figures.run
    started, completed, failed = ended_plays(run, course)
    number, done = int(started.sum()), int(completed.sum())
    if run.stopped and not run.controlled:
        # A play of which only unfinished requests were sent has no line.
        figures.between("total_trajectories", number, len(run.plays.play))
    else:
        figures.equal("total_trajectories", number)
    figures.equal("completed_trajectories", done)
    total = figures.number("total_trajectories") or 0
    figures.equal("incomplete_trajectories", total - done)
    if run.stopped or (run.load.profile is not None and run.online is not None):
        # A play that an end met first is incomplete, whatever became of its requests.
        figures.between("failed_trajectories", 0, int(failed.sum()))
    else:
        figures.equal("failed_trajectories", int(_failed_in_time(run, failed).sum()))
    low, high = _spans(run, course, completed)
    figures_low, figures_high = statistics(low / NS_PER_MS), statistics(high / NS_PER_MS)
    for statistic, least in figures_low.items():
        most, name = figures_high[statistic], f"{statistic}_trajectory_e2e_latency_ms"
        if least is None or most is None:
            figures.equal(name, None)
        elif run.online is None:
            figures.equal(name, least, 1e-6 * (least + 1e-3) if statistic == "std" else 0.0)
        elif statistic != "std":
            figures.between(name, least, most)


def _spans(run: Run, course: Course, completed: Bool) -> tuple[Int64, Int64]:
    """Return the least and the greatest length that each completed play can have had; offline they are one."""
    dispatched, terminal = run.lines["dispatched_at_ms"], run.lines["terminal_time_ms"]
    count = len(run.plays.play)
    first, decided = np.full(count, AFTER_ALL), np.full(count, AFTER_ALL)
    np.minimum.at(first, run.instance, dispatched)
    np.minimum.at(decided, run.instance, dispatched - late_ns(run))
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, run.instance, terminal)
    if run.controlled:
        first = decided = course.start
    heard = 0 if run.online is None else min(run.online.heard_ns, 10**18)
    low = (last - first)[completed]
    if run.online is not None and run.controlled:
        low = low - heard
    return np.maximum(low, 0), (last + heard - decided)[completed]


# Cache and work -----------------------------------------------------------------------------------------------------


def _check_reuse(figures: Figures) -> None:
    run = figures.run
    lines, entry, done = run.lines, run.lines.admissions, run.completed
    inputs = int(run.input[done].sum())
    first = int(lines["first_admission_reused_input_tokens"][done].sum())
    most = np.zeros(len(lines), np.int64)
    np.maximum.at(most, entry.row, entry.reused)
    if run.online is not None and figures.report.get("first_admission_prefix_cache_reused_ratio") is None:
        run.tally.skip("a stream without usage leaves reuse unknown", ["run-figure"])
        return
    figures.equal("first_admission_prefix_cache_reused_ratio", first / inputs if inputs else 0.0)
    figures.equal("prefix_cache_reused_ratio", min(int(most[done].sum()), inputs) / inputs if inputs else 0.0)


WORK = ("busy_seconds", "forward_passes", "prefill_tokens", "decode_tokens", "preemptions", "evicted_blocks")


def _check_roles(figures: Figures, deployment: Deployment) -> None:
    """Workers add up to roles and roles to the whole; tokens, admissions and spans are those of the lines."""
    roles = figures.report.get("roles")
    names = [role.name for role in deployment.roles]
    if not isinstance(roles, dict) or sorted(roles) != sorted(names):
        figures.told("roles", False, "the roles are not those of the deployment", roles, names)
        return
    each = {}
    for role in deployment.roles:
        work = _work(roles[role.name], role.workers)
        if work is None:
            figures.told(
                f"roles.{role.name}", False, "the role cannot be read", roles[role.name], f"{role.workers} workers"
            )
            return
        each[role.name] = work
        for name in WORK:
            total = roles[role.name][name]
            good = abs(total - work[name].sum()) <= ALIKE * abs(total)
            figures.told(f"roles.{role.name}.{name}", good, "the workers do not add up to it", total, work[name].sum())
        span_s = roles[role.name]["worker_seconds"] / role.workers
        good = bool((work["busy_seconds"] <= span_s * (1 + ALIKE)).all()) or figures.run.online is not None
        figures.told(f"roles.{role.name}.busy_seconds", good, "a worker is busy for longer than it is there",
                     float(work["busy_seconds"].max()), f"at most {span_s}")  # fmt: skip
    for name, field in (
        ("forward_passes", "forward_passes"),
        ("committed_prefill_tokens", "prefill_tokens"),
        ("preemptions", "preemptions"),
        ("evicted_blocks", "evicted_blocks"),
        ("busy_worker_seconds", "busy_seconds"),
    ):
        figures.equal(name, float(sum(work[field].sum() for work in each.values())))
    seconds = [roles[name]["worker_seconds"] for name in names]
    figures.equal("prefill_worker_seconds", seconds[0] if deployment.split else 0.0)
    figures.equal("decode_worker_seconds", seconds[-1])
    if figures.run.online is None:
        _check_span(figures, deployment, seconds)
        _check_work(figures, deployment, each)


def _work(told: Any, workers: int) -> dict[str, Float64] | None:
    """Return what each worker of a role did, None where that cannot be read."""
    fields = (*WORK, "worker_seconds")
    if not isinstance(told, dict) or told.get("workers") != workers or not isinstance(told.get("each"), list):
        return None
    if not all(_is_number(told.get(name)) for name in fields) or len(told["each"]) != workers:
        return None
    if not all(isinstance(one, dict) and all(_is_number(one.get(name)) for name in WORK) for one in told["each"]):
        return None
    return {name: np.array([one[name] for one in told["each"]], np.float64) for name in WORK}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _check_span(figures: Figures, deployment: Deployment, seconds: list[float]) -> None:
    """All workers are there for one span, which reaches to the last event: the last end of a request, or later."""
    run = figures.run
    spans = [amount / role.workers for amount, role in zip(seconds, deployment.roles, strict=True)]
    alike = max(spans) - min(spans) <= ALIKE * max(spans)
    figures.told("roles", alike, "roles are there for different spans", spans, "one span")
    last = max(int(run.lines[name].max(initial=0)) for name in ("terminal_time_ms", "source_released_ms"))
    good = spans[0] * MS_PER_S * NS_PER_MS >= last - ALIKE * last
    figures.told("decode_worker_seconds", good, "workers leave before the last event", spans[0], f"{last / 1e9} s")


def _check_work(figures: Figures, deployment: Deployment, each: dict[str, dict[str, Float64]]) -> None:
    """Compare what workers did with the tokens and admissions of the lines."""
    run = figures.run
    lines = run.lines
    last = deployment.roles[-1]
    worker = lines["decode_worker_idx"]
    served = worker >= 0
    tokens = np.bincount(worker[served], lines["output_length"][served], minlength=last.workers)[: last.workers]
    given = each[last.name]["decode_tokens"]
    # What a stop left unfinished, or a cancellation ended, has tokens of which no line tells.
    exact = run.load.stop_ns < 0 and not run.canceled.any()
    good = bool((given == tokens).all()) if exact else bool((given >= tokens).all())
    figures.told(f"roles.{last.name}.each", good, "tokens generated are not those of the lines", given.tolist(),
                 tokens.tolist())  # fmt: skip
    per_pass = last.max_sequences * (1 + deployment.drafts)
    passes = each[last.name]["forward_passes"]
    most, what = passes * per_pass, "there are more tokens than passes could give"
    figures.told(f"roles.{last.name}.forward_passes", bool((most >= given).all()), what, given.tolist(), most.tolist())
    _check_prefill(figures, deployment, each)
    again = int(lines["readmission_count"].sum())
    pushed_out = sum(work["preemptions"].sum() for work in each.values())
    settled = bool(run.completed.all()) and exact and not any(role.ahead for role in deployment.roles)
    good = pushed_out == again if settled else pushed_out >= again
    figures.told("preemptions", good, "preemptions are not those of the admission histories", pushed_out, again)


def _check_prefill(figures: Figures, deployment: Deployment, each: dict[str, dict[str, Float64]]) -> None:
    """Bound the prompt tokens computed: what each admission did not find, all of it where the request completed.

    Without preemptions, failures and cancellations both bounds are one.
    """
    run = figures.run
    lines, entry = run.lines, run.lines.admissions
    known = run.input[entry.row] + np.where(entry.pool_ordinal > 0, lines["output_length"][entry.row], 0)
    most = np.maximum(known - entry.reused, 0)
    most[(entry.pool == DECODE) & (entry.pool_ordinal == 0)] = 0
    last = np.ones(len(entry.row), np.bool_)
    if len(entry.row):
        last[:-1] = (entry.row[1:] != entry.row[:-1]) | (entry.pool[1:] != entry.pool[:-1])
    least = np.where(last & run.completed[entry.row], np.maximum(run.input[entry.row] - entry.reused, 0), 0)
    least[(entry.pool == DECODE) & (entry.pool_ordinal == 0)] = 0
    given = sum(work["prefill_tokens"].sum() for work in each.values())
    # Of what a stop or a cancellation left in the middle of a pass nothing is counted, and no line tells of the rest.
    high = math.inf if run.load.stop_ns >= 0 else float(most.sum())
    good = float(least.sum()) <= given <= high
    wanted = f"{int(least.sum())}" + ("" if high == least.sum() else f" to {high:g}")
    figures.told(
        "committed_prefill_tokens", good, "prompt tokens computed are not those of the admissions", given, wanted
    )
