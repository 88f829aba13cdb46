"""The report of one replay: every figure made from the proven graph and the ledger, and from nothing else.

Field names are aisimulate's where the meaning is the same; docs/report.md defines each. Equal input gives equal bytes,
but for the fields with `wall` in their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3
from playproof_spec.findings import Findings
from playproof_spec.ledger import Ledger, RunTotals
from playproof_spec.machines import NodeState, PlayState, RequestState
from playproof_spec.units import NS_PER_MS

from playproof import tables
from playproof.config import configuration_digest
from playproof.deployment import AnyDeployment, Disaggregated, Load
from playproof.figures import Summary, ratio, summarize, summarize_weighted
from playproof.files import REPORT_FILE, REPORT_SCHEMA, left_by_another_run, write_whole
from playproof.goodput import NO_BOUNDS, Sla, goodput
from playproof.requests import TABLE_COLUMNS, TERMINAL_STATUS, RequestColumns, to_ms
from playproof.words import report_html, simulated

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from playproof_spec.certificate import ProvenGraph

    from playproof.checking import Verdict
    from playproof.explaining import Explanation

MS_PER_S = 1000.0
# Lines of requests.jsonl that are encoded together.
LINES_PER_CHUNK = 2000
# The ledger's word for what did not happen.
NEVER_NS = -1

# What only agentic traces have; null in the report of an ordinary one.
AGENTIC_FIELDS = (
    "agentic_qualification",
    "agentic_input_format",
    "agentic_graph",
    "agentic_model_projection",
    "agentic_lanes",
    "agentic_snapshots",
    "agentic_phases",
    "agentic_profile",
    "agentic_play_outcomes",
)

PLAY_STATUS = {
    PlayState.COMPLETED: "completed",
    PlayState.FAILED: "failed",
    PlayState.INCOMPLETE: "incomplete",
}


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """The plays of a run.

    Attributes
    ----------
    total, completed, failed, incomplete : int
        Plays of which a request was dispatched; completed ones; failed ones; started but not completed (failed ones
        included).
    e2e_latency_ms : Float64, shape (plays,)
        Last completion − first dispatch of each play in execution order, NaN where it did not complete.
    """

    total: int
    completed: int
    failed: int
    incomplete: int
    e2e_latency_ms: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What the figures over completed requests are made of.

    Attributes
    ----------
    requests, input_tokens, output_tokens : int
    first_reused, most_reused : int
        Prompt tokens found in cache at the first admission, and at the one that found most.
    ttft_ms, ttst_ms, tpot_ms, e2e_ms : Float64
        One sample each request that has one, in no order that matters.
    """

    requests: int
    input_tokens: int
    output_tokens: int
    first_reused: int
    most_reused: int
    ttft_ms: npt.NDArray[np.float64]
    ttst_ms: npt.NDArray[np.float64]
    tpot_ms: npt.NDArray[np.float64]
    e2e_ms: npt.NDArray[np.float64]


class Report:
    """What one replay showed.

    Parameters
    ----------
    proven : ProvenGraph
    ledger : Ledger
        Of the replay of `proven` on `deployment` under `load`.
    deployment : Deployment or Disaggregated
    load : Load
    findings : Findings, optional
        What the deployment made of the graph.
    wall_time_ms : float
        What the replay took on this machine.
    per_request : bool
        Whether :attr:`requests` and :meth:`request_dicts` are wanted. Figures over requests and trajectories never
        need it.

    Attributes
    ----------
    trajectories : Trajectories
    findings : Findings
        Warnings and notes on the trace and on what the deployment makes of it.
    verdict : Verdict or None
        What :meth:`check` found.
    requests_digest : str or None
        The BLAKE3 of the lines, once they were written or checked.
    sla : Sla or None
        The bounds that goodput is counted by; they change nothing else.
    """

    def __init__(
        self,
        proven: ProvenGraph,
        ledger: RunTotals,
        deployment: AnyDeployment,
        load: Load,
        *,
        findings: Findings | None = None,
        wall_time_ms: float = 0.0,
        per_request: bool = True,
    ) -> None:
        self.proven = proven
        self.totals = ledger
        self.deployment = deployment
        self.load = load
        self.findings = Findings()
        self.wall_time_ms = wall_time_ms
        self.per_request = per_request
        for item in proven.findings:
            self.findings.add(item)
        self.findings.extend(findings or Findings())
        self.verdict: Verdict | None = None
        self.requests_digest: str | None = None
        self.sla: Sla | None = None

    def __repr__(self) -> str:
        plays = self.trajectories
        return f"<{type(self).__name__}: {plays.completed} of {plays.total} plays completed; {self.simulated}>"

    def _repr_html_(self) -> str:
        """Return the main figures as a table for notebooks."""
        return report_html(self.to_dict())

    @property
    def client_limited(self) -> bool:
        """Whether latencies are a client's as much as the server's; no simulated run has a client."""
        return False

    @property
    def valid(self) -> bool:
        """Whether the figures mean what they say; only a preparation that failed makes a run invalid."""
        return True

    @property
    def ledger(self) -> Ledger:
        """What happened, by node; a run under the run controls has `ControlledReport.controlled` instead."""
        if not isinstance(self.totals, Ledger):
            raise AttributeError("a run under the run controls has no ledger by node; see `controlled`")
        return self.totals

    @cached_property
    def trajectories(self) -> Trajectories:
        """The plays of the run."""
        return _trajectories(self.ledger)

    @cached_property
    def _columns(self) -> RequestColumns:
        """The requests, column by column."""
        return RequestColumns(self.proven.graph, self.ledger, disaggregated=isinstance(self.deployment, Disaggregated))

    @property
    def columns(self) -> RequestColumns:
        """The requests that ended, column by column.

        Raises
        ------
        ValueError
            When a replay under run controls ran with ``per_request=False``, so that requests were not captured.
        """
        return self._columns

    def origins(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the node of the proven graph that each row of :attr:`columns` is, and its play's instance."""
        return self._columns.node.astype(np.int64), self._columns.play.astype(np.int64)

    @cached_property
    def _measured(self) -> Measured:
        columns = self._columns
        completed = columns.completed
        known = {name: getattr(columns, name) for name in ("ttft_ms", "ttst_ms", "tpot_ms", "e2e_ms")}
        return Measured(
            requests=columns.count(RequestState.FINISHED),
            input_tokens=int(self.proven.graph.input_length[columns.node[completed]].sum()),
            output_tokens=int(columns.output[completed].sum()),
            first_reused=int(columns.first_reused[completed].sum()),
            most_reused=int(columns.most_reused[completed].sum()),
            **{name: values[~np.isnan(values)] for name, values in known.items()},
        )

    @cached_property
    def requests(self) -> npt.NDArray[np.void] | None:
        """The requests as a structured array (see `playproof.requests.REQUEST_DTYPE`), None when not captured."""
        return self._columns.array() if self.per_request else None

    def request_dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of requests.jsonl: one dispatched request each, plays in order, nodes in document order.

        Raises
        ------
        ValueError
            When the replay ran with ``per_request=False``.
        """
        if not self.per_request:
            raise ValueError("this report has no per-request results: replay with per_request=True")
        return self._lines()

    def _lines(self) -> Iterator[dict[str, Any]]:
        return self._columns.dicts()

    def check(self, *, may_cancel: bool = False) -> Verdict:
        """Check the lines and figures with the independent checker, and put its verdict into the certificate.

        Parameters
        ----------
        may_cancel : bool
            Whether the caller gave a finite run a list of cancellations.

        Returns
        -------
        Verdict

        Raises
        ------
        ValueError
            When the replay ran with ``per_request=False``.
        """
        from playproof.checking import check_lines

        hasher = blake3()
        chunks = list(_hashed(_encoded(self.request_dicts()), hasher))
        self.requests_digest = hasher.hexdigest()
        document = msgspec.json.decode(msgspec.json.encode(self.to_dict()))
        graph = self.proven.graph
        settings = document["deployment"], document["load"]
        self.verdict = check_lines(graph, chunks, document, *settings, may_cancel=may_cancel)
        return self.verdict

    def to_dict(self) -> dict[str, Any]:
        """Return report.json as JSON values."""
        return {
            "schema": REPORT_SCHEMA,
            "playproof_version": version("playproof"),
            "valid": self.valid,
            **self._counts(),
            **self._trajectory_figures(),
            **self._throughput(),
            **self._latencies(),
            **self._goodput(),
            **self._cache_and_work(),
            **self._provenance(),
            "wall_time_ms": self.wall_time_ms,
        }

    def to_json(self) -> bytes:
        """Return report.json as bytes."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2) + b"\n"

    def write(self, folder: str | Path, *, per_request: bool = False, format: str = "jsonl") -> list[Path]:
        """Write report.json, and the requests if `per_request`; return the paths written.

        Requests that an earlier run wrote into the folder, and this one does not, are removed.

        Parameters
        ----------
        folder : path
        per_request : bool
            Also write a file of all requests.
        format : {"jsonl", "csv", "parquet"}
            Which; the latter two leave out what is nested, and Parquet needs ``playproof[tables]``.

        Raises
        ------
        OSError
            When the folder cannot be written, or requests lie in it that no run of ours wrote.
        ValueError
            When per-request results are wanted of a replay without them, or in a format that there is not.
        MissingTables
            When Parquet is wanted without PyArrow.
        """
        if format not in tables.FORMATS:
            raise ValueError(f"{format!r} is not one of {', '.join(tables.FORMATS)}")
        folder = Path(folder)
        written = [folder / REPORT_FILE]
        stale = left_by_another_run(folder, (f"requests.{format}",) if per_request else ())
        if per_request:
            written.append(folder / f"requests.{format}")
            hasher = blake3()
            # Made before anything is removed: a library may be missing.
            chunks = iter([self._parquet()]) if format == "parquet" else self._chunks(format)
            write_whole(written[1], _hashed(chunks, hasher))
            if format == "jsonl":  # the report names the lines that lie beside it
                self.requests_digest = hasher.hexdigest()
        for path in stale:
            path.unlink(missing_ok=True)
        write_whole(written[0], [self.to_json()])
        return written

    def _chunks(self, format: str) -> Iterator[bytes]:
        rows = self.request_dicts()
        return _encoded(rows) if format == "jsonl" else tables.csv_chunks(rows, TABLE_COLUMNS)

    def _parquet(self) -> bytes:
        return tables.parquet_bytes(self.to_arrow())

    def write_timeline(self, path: str | Path) -> Path:
        """Write the run as trace events that Perfetto and Chrome open (docs/timeline.md), and return the path.

        Raises
        ------
        OSError
            When the file cannot be written.
        ValueError
            When a replay under run controls ran with ``per_request=False``.
        """
        from playproof.timeline import write_timeline

        return write_timeline(self, path)

    def write_html(self, path: str | Path) -> Path:
        """Write the run as one HTML page that needs no network, and return the path.

        Raises
        ------
        MissingHtml
            Without Plotly, which ``playproof[html]`` brings along.
        OSError
            When the file cannot be written.
        ValueError
            When a replay under run controls ran with ``per_request=False``.
        """
        from playproof.page import write_html

        return write_html(self, path)

    def explain(self, request_id: str) -> Explanation:
        """Say what a request waited for, and which edge, queue or transfer decided it.

        Parameters
        ----------
        request_id : str
            Its id in the trace; ``slowest`` for the completed request that took longest.

        Raises
        ------
        NoSuchRequest
            When none that ended has this id.
        ValueError
            When a replay under run controls ran with ``per_request=False``.
        """
        from playproof.explaining import explain

        return explain(self, request_id)

    def to_arrow(self) -> pyarrow.Table:
        """Return the requests as an Arrow table: the fields of requests.jsonl that hold one value, null for none.

        Raises
        ------
        MissingTables
            Without PyArrow, which ``playproof[tables]`` brings along.
        ValueError
            When the replay ran with ``per_request=False``.
        """
        return tables.to_arrow(self.request_dicts(), TABLE_COLUMNS)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the requests as a pandas frame, with nullable columns; otherwise as :meth:`to_arrow`."""
        return tables.to_pandas(self.to_arrow())

    def to_polars(self) -> polars.DataFrame:
        """Return the requests as a Polars frame; otherwise as :meth:`to_arrow`."""
        return tables.to_polars(self.to_arrow())

    # Sections of to_dict ---------------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, Any]:
        columns = self._columns
        states = self.ledger.node_state
        unfinished = int(np.count_nonzero(states == NodeState.DISPATCHED))
        return {
            "num_requests": len(columns.node) + unfinished,
            "completed_requests": columns.count(RequestState.FINISHED),
            "failed_requests": columns.count(RequestState.FAILED),
            "rejected_requests": columns.count(RequestState.REJECTED),
            "canceled_requests": columns.count(RequestState.CANCELED),
            "skipped_requests": int(np.count_nonzero(states == NodeState.SKIPPED)),
            # Of a run that was stopped; else both are 0.
            "unfinished_requests": unfinished,
            "never_issued_requests": int(np.isin(states, (NodeState.BLOCKED, NodeState.READY)).sum()),
            "duration_ms": self.duration_ms,
        }

    @property
    def duration_ms(self) -> float:
        """From the run's origin to the end of the last request, milliseconds."""
        ends = self.ledger.terminal_ns
        return int(ends.max(initial=0)) / NS_PER_MS

    def _trajectory_figures(self) -> dict[str, Any]:
        plays = self.trajectories
        latencies = plays.e2e_latency_ms[~np.isnan(plays.e2e_latency_ms)]
        return {
            "total_trajectories": plays.total,
            "completed_trajectories": plays.completed,
            "failed_trajectories": plays.failed,
            "incomplete_trajectories": plays.incomplete,
            **_named("trajectory_e2e_latency", summarize(latencies)),
        }

    def _throughput(self) -> dict[str, Any]:
        measured, seconds = self._measured, self.duration_ms / MS_PER_S
        inputs, outputs = measured.input_tokens, measured.output_tokens
        return {
            "total_input_tokens": inputs,
            "total_output_tokens": outputs,
            "request_throughput_rps": ratio(measured.requests, seconds),
            "input_throughput_tok_s": ratio(inputs, seconds),
            "output_throughput_tok_s": ratio(outputs, seconds),
            "total_throughput_tok_s": ratio(inputs + outputs, seconds),
        }

    def _latencies(self) -> dict[str, Any]:
        measured, ledger = self._measured, self.totals
        figures: dict[str, Any] = {}
        samples = (
            ("ttft", measured.ttft_ms),
            ("ttst", measured.ttst_ms),
            ("tpot", measured.tpot_ms),
            ("e2e_latency", measured.e2e_ms),
        )
        for name, values in samples:
            figures[f"num_{name}_samples"] = len(values)
            figures.update(_named(name, summarize(values)))
        figures["num_itl_samples"] = int(ledger.gap_count.sum())
        figures.update(_named("itl", summarize_weighted(ledger.gap_ns / NS_PER_MS, ledger.gap_count)))
        return figures

    def _goodput(self) -> dict[str, Any]:
        bounds = self.sla
        if bounds is None or not bounds.given() or self.client_limited:
            return NO_BOUNDS
        return goodput(bounds, self.columns, self.trajectories, self._counts(), self.duration_ms / MS_PER_S)

    def _cache_and_work(self) -> dict[str, Any]:
        measured, ledger = self._measured, self.totals
        inputs = measured.input_tokens
        roles = self._roles()
        # An aggregated worker counts as one that decodes.
        decoding = roles.get("decode") or roles["aggregated"]
        return {
            # A run that computed no prompt reused none of it; the peer reports 0 there as well.
            "first_admission_prefix_cache_reused_ratio": measured.first_reused / inputs if inputs else 0.0,
            "prefix_cache_reused_ratio": min(measured.most_reused, inputs) / inputs if inputs else 0.0,
            "committed_prefill_tokens": int(ledger.prefill_tokens.sum()),
            "processed_tokens": inputs + measured.output_tokens,
            "forward_passes": int(ledger.passes.sum()),
            "preemptions": int(ledger.preemptions.sum()),
            "evicted_blocks": int(ledger.evictions.sum()),
            "prefill_worker_seconds": roles["prefill"]["worker_seconds"] if "prefill" in roles else 0.0,
            "decode_worker_seconds": decoding["worker_seconds"],
            "busy_worker_seconds": _seconds(ledger.busy_ns),
            "roles": roles,
        }

    def _roles(self) -> dict[str, dict[str, Any]]:
        """Return what each role's workers did, together and one by one."""
        ledger, begin = self.totals, 0
        roles = {}
        for name, role in self.deployment.roles.items():
            workers = range(begin, begin + role.workers)
            begin += role.workers
            roles[name] = {
                "workers": role.workers,
                "worker_seconds": role.workers * self._span_ns() / NS_PER_MS / MS_PER_S,
                **_work(ledger, slice(workers.start, workers.stop)),
                "each": [_work(ledger, slice(worker, worker + 1)) for worker in workers],
            }
        return roles

    def _span_ns(self) -> int:
        """Return how long the workers were there, ns."""
        return self.ledger.end_ns

    def _provenance(self) -> dict[str, Any]:
        graph, certificate = self.proven.graph, self.proven.certificate
        pools = host_pools(self.totals.hosts, self.deployment)
        return {
            **(dict.fromkeys(AGENTIC_FIELDS) if self.ordinary else self._agentic()),
            # Pools that workers share; the peer names no private ones here.
            "g2_domains": g2_domains(pools),
            "host_pools": pools,
            **{name: fact for name, fact in graph.facts.items() if name.startswith("weka_")},
            "reading": {name: fact for name, fact in graph.facts.items() if not name.startswith("weka_")},
            "finding_counts": self.findings.counts,
            "simulated": self.simulated,
            "deployment": self.deployment.to_dict(),
            "engine_rules": engine_rules(self.deployment),
            "load": self.load.to_dict(),
            "digests": {
                "input": graph.facts.get("input_digest", graph.source.digest),
                "graph": certificate.graph_digest,
                "tables": certificate.tables_digest,
                "configuration": configuration_digest(self.deployment, self.load),
                "ledger": ledger_digest(self.totals),
                "requests": self.requests_digest,
            },
            "certificate": {**certificate.to_dict(), "run": self._run_certificate()},
        }

    @property
    def simulated(self) -> str | None:
        """What was simulated, in a line; None where real servers ran."""
        online = getattr(self, "setting", None)
        if online is not None and not online.mock:
            return None
        return simulated(self.deployment.to_dict(), self.load.to_dict())

    def _run_certificate(self) -> dict[str, Any] | None:
        """Return what the checker said of this run, None where it was not asked."""
        if self.verdict is None:
            return None
        digests = {"ledger_digest": ledger_digest(self.totals), "requests_digest": self.requests_digest}
        return {**self.verdict.summary(), **digests}

    @property
    def ordinary(self) -> bool:
        """Whether the trace is an ordinary one: sessions instead of agents' plays."""
        return self.proven.graph.facts.get("input_kind") == "ordinary"

    def _agentic(self) -> dict[str, Any]:
        """Return what only an agentic trace has, by `AGENTIC_FIELDS`."""
        graph = self.proven.graph
        return {
            "agentic_qualification": "functional_only",
            "agentic_input_format": graph.facts.get("input_format", graph.source.format),
            "agentic_graph": {
                "block_size": graph.block_size,
                "graph_digest": self._replayed_digest(),
                "node_count": graph.node_count,
                "play_count": len(graph.plays),
                "source": {"digest": graph.source.digest, "format": graph.source.format},
                "source_models": sorted(graph.models),
            },
            "agentic_model_projection": {
                "policy": "project_to_configured_target",
                "source_models": sorted(graph.models),
                "target_model": self.deployment.model,
            },
            "agentic_lanes": self.load.lanes,
            **self._controls(),
            "agentic_play_outcomes": self._outcomes(),
        }

    def _controls(self) -> dict[str, Any]:
        """Return the evidence of the run controls; a finite replay has none, as with the peer."""
        return {"agentic_snapshots": None, "agentic_phases": None, "agentic_profile": None}

    def _replayed_digest(self) -> str:
        """Return the digest of the graph at the replay's speed, which is the one that the peer reports."""
        if self.load.speedup == 1.0:
            return self.proven.certificate.graph_digest
        # Brings a compiler along, which the command line should not wait for at its start.
        from playproof_spec.digest import graph_digest

        return graph_digest(self.proven.graph, speedup=self.load.speedup)

    def _outcomes(self) -> list[dict[str, Any]]:
        graph, ledger = self.proven.graph, self.ledger
        # A prefill worker may hold blocks of a play that is over and whose lane is free: it settles when they are back.
        settled_ns = ledger.play_settled_ns.copy()
        np.maximum.at(settled_ns, graph.node_play, ledger.source_released_ns)
        settled_ns[ledger.play_settled_ns < 0] = NEVER_NS
        # A play that fails is over for what depends on it when it fails, whatever of it still runs.
        failed_node = ledger.play_failed_node
        has_failed = (ledger.play_state == PlayState.FAILED) & (failed_node >= 0)
        ends_ns = np.where(has_failed, ledger.terminal_ns[failed_node], ledger.play_last_terminal_ns)
        last, settled = to_ms(ends_ns), to_ms(settled_ns)
        outcomes = []
        for ordinal, play in enumerate(graph.plays):
            lane, failed = int(ledger.play_lane[ordinal]), int(ledger.play_failed_node[ordinal])
            outcome: dict[str, Any] = {
                "play_id": play.play_id,
                "play_ordinal": ordinal,
                "lane": None if lane < 0 else lane,
                "status": PLAY_STATUS.get(PlayState(int(ledger.play_state[ordinal])), "incomplete"),
                "causal_terminal_ms": _known(last[ordinal]),
                "settled_at_ms": _known(settled[ordinal]),
            }
            if failed >= 0:
                outcome["failure_request_id"] = graph.request_ids[failed]
                outcome["failure_status"] = TERMINAL_STATUS.get(RequestState(int(ledger.request_state[failed])))
            outcomes.append(outcome)
        return outcomes


def ledger_digest(ledger: RunTotals) -> str:
    """Return the BLAKE3 of every column of a ledger: two replays are equal when their ledgers' digests are.

    Columns go by name. What was captured besides does not count, since it decides nothing.
    """
    hasher = blake3()
    for name in sorted(column.name for column in dataclasses.fields(ledger) if column.name != "captured"):
        value = getattr(ledger, name)
        hasher.update(f"{name}:".encode())
        if isinstance(value, np.ndarray):
            little_endian = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"))
            hasher.update(f"{little_endian.dtype.str}{little_endian.shape}".encode())
            hasher.update(little_endian.tobytes())
        else:
            hasher.update(repr(value).encode())
    return hasher.hexdigest()


def _trajectories(ledger: Ledger) -> Trajectories:
    states = ledger.play_state
    completed = states == PlayState.COMPLETED
    started = int(np.count_nonzero(ledger.play_first_dispatch_ns >= 0))
    spans = (ledger.play_last_terminal_ns - ledger.play_first_dispatch_ns) / NS_PER_MS
    return Trajectories(
        total=started,
        completed=int(np.count_nonzero(completed)),
        failed=int(np.count_nonzero(states == PlayState.FAILED)),
        incomplete=started - int(np.count_nonzero(completed)),
        e2e_latency_ms=np.where(completed, spans, np.nan),
    )


def _work(ledger: RunTotals, workers: slice) -> dict[str, Any]:
    return {
        "busy_seconds": _seconds(ledger.busy_ns[workers]),
        "forward_passes": int(ledger.passes[workers].sum()),
        "prefill_tokens": int(ledger.prefill_tokens[workers].sum()),
        "decode_tokens": int(ledger.decode_tokens[workers].sum()),
        "preemptions": int(ledger.preemptions[workers].sum()),
        "evicted_blocks": int(ledger.evictions[workers].sum()),
    }


def _seconds(times_ns: npt.NDArray[np.int64]) -> float:
    return int(times_ns.sum()) / NS_PER_MS / MS_PER_S


def _named(name: str, summary: Summary) -> dict[str, float | None]:
    return {f"{statistic}_{name}_ms": value for statistic, value in summary.items()}


def engine_rules(deployment: AnyDeployment) -> str:
    """Return whose rules the workers follow, with the version that they were compared with (docs/fidelity.md)."""
    if deployment.backend == "vllm":
        return "vllm 0.33.0"
    from playproof_kernel.engines.sglang_rules import RULE_SETS
    from playproof_spec.deployment import Rules

    (name,) = {role.rules for role in deployment.roles.values()}
    return RULE_SETS[Rules[name.upper()]].engine


def host_pools(hosts: npt.NDArray[np.void], deployment: AnyDeployment) -> list[dict[str, Any]] | None:
    """Return each host pool and what its workers did with it (`HOST_USE` of the kernel), or None without any."""
    if len(hosts) == 0:
        return None
    # Rows stand role by role; a role may have none.
    workers = [(role, worker) for role, fields in deployment.roles.items() for worker in range(fields.workers)]
    scopes = {role: fields.host_offload.scope for role, fields in deployment.roles.items() if fields.host_offload}
    pools = []
    for row in np.unique(hosts["pool"][hosts["pool"] >= 0]):
        members = np.flatnonzero(hosts["pool"] == row)
        pool = hosts[row]
        scope = scopes[workers[members[0]][0]]
        busy = "pool_" if scope == "cluster_shared" else ""
        pools.append(
            {
                "scope": scope,
                "capacity_blocks": int(pool["capacity"]),
                "resident_blocks": int(pool["resident"]),
                "used_blocks": int(pool["used"]),
                "evictions": int(pool["evictions"]),
                "d2h_busy_ms": int(pool[f"{busy}d2h_busy"]) / NS_PER_MS,
                "h2d_busy_ms": int(pool[f"{busy}h2d_busy"]) / NS_PER_MS,
                **_use_of_host(hosts[members]),
                "workers": [
                    {
                        "role": workers[member][0],
                        "worker_idx": workers[member][1],
                        **_use_of_host(hosts[[member]]),
                        "d2h_busy_ms": int(hosts[member]["d2h_busy"]) / NS_PER_MS,
                        "h2d_busy_ms": int(hosts[member]["h2d_busy"]) / NS_PER_MS,
                    }
                    for member in members
                ],
            }
        )
    return pools


def _use_of_host(rows: npt.NDArray[np.void]) -> dict[str, int]:
    """Return what the workers of `rows` did together."""
    return {
        "lookups": int((rows["hits"] + rows["misses"]).sum()),
        **{name: int(rows[name].sum()) for name in ("hits", "stores", "loads")},
        "stored_bytes": int((rows["stored_blocks"] * rows["block_bytes"]).sum()),
        "loaded_bytes": int((rows["loaded_blocks"] * rows["block_bytes"]).sum()),
        **{name: int(rows[name].sum()) for name in ("deferrals", "retries")},
    }


def g2_domains(pools: list[dict[str, Any]] | None) -> list[dict[str, int]] | None:
    """Return the host pools that workers share, as the peer reports them, or None without any."""
    names = ("capacity_blocks", "resident_blocks", "used_blocks")
    shared = [pool for pool in pools or () if pool["scope"] == "cluster_shared"]
    return [{name: pool[name] for name in names} for pool in shared] or None


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _encoded(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """Yield rows as lines, many at a time."""
    encoder = msgspec.json.Encoder()
    while chunk := list(islice(rows, LINES_PER_CHUNK)):
        yield encoder.encode_lines(chunk)


def _hashed(chunks: Iterator[bytes], hasher: Any) -> Iterator[bytes]:
    """Yield pieces of a file, and hash them."""
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk
