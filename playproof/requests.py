"""Per-request results: the columns, the structured array, and the lines of requests.jsonl."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from playproof_spec.graph import Graph
from playproof_spec.machines import RequestState
from playproof_spec.units import NS_PER_MS

if TYPE_CHECKING:
    from playproof_spec.ledger import Ledger

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

TERMINAL_STATUS = {
    RequestState.FINISHED: "completed",
    RequestState.REJECTED: "rejected",
    RequestState.FAILED: "failed",
    RequestState.CANCELED: "canceled",
}

# Names of the pools in an admission history.
POOL, PREFILL_POOL, DECODE_POOL = "agg", "prefill", "decode"

# A finite replay measures from its first request on: it is all profile, without preparation.
PHASE = "profile"

REQUEST_DTYPE = np.dtype(
    [
        ("request_id", object),
        ("play_id", object),
        ("session_id", object),
        ("node", np.int32),
        ("play_ordinal", np.int32),
        ("lane", np.int32),
        ("prefill_worker_idx", np.int32),
        ("decode_worker_idx", np.int32),
        ("prefill_route_overlap_tokens", np.int64),
        ("decode_route_overlap_tokens", np.int64),
        ("terminal_status", "U9"),
        ("input_length", np.int64),
        ("output_length", np.int64),
        ("requested_output_length", np.int64),
        ("dispatched_at_ms", np.float64),
        ("first_admit_ms", np.float64),
        ("first_token_ms", np.float64),
        ("last_token_ms", np.float64),
        ("terminal_time_ms", np.float64),
        ("source_held_ms", np.float64),
        ("destination_reserved_ms", np.float64),
        ("destination_activated_ms", np.float64),
        ("source_released_ms", np.float64),
        ("ttft_ms", np.float64),
        ("ttst_ms", np.float64),
        ("tpot_ms", np.float64),
        ("e2e_latency_ms", np.float64),
        ("first_admission_reused_input_tokens", np.int64),
        ("readmission_count", np.int32),
    ]
)
# The fields of a line that hold one value, in their order: what a table without rows has.
TABLE_COLUMNS = (
    "request_id",
    "source_request_id",
    *(name for name in REQUEST_DTYPE.names or () if name not in ("node", "request_id")),
    *("phase", "model", "turn_index", "arrival_time_ms"),
    *("first_admission_g1_reused_input_tokens", "first_admission_host_reused_input_tokens"),
)
# Columns in which -1 stands for none.
MAY_BE_NONE = frozenset(
    {
        "lane",
        *("prefill_worker_idx", "decode_worker_idx", "prefill_route_overlap_tokens", "decode_route_overlap_tokens"),
    }
)


def to_ms(times_ns: Int64) -> Float64:
    """Return nanoseconds as float milliseconds; a time that never came becomes NaN."""
    return np.where(times_ns < 0, np.nan, times_ns / NS_PER_MS)


class RequestColumns:
    """What happened to each request that ended, as columns.

    Rows are in the order of plays, and within a play in the order of its file; nodes that were never dispatched, or had
    not ended when the run was stopped, have no row.

    Parameters
    ----------
    graph : Graph
    ledger : Ledger
    disaggregated : bool
        Whether the ledger is of a prefill/decode deployment.

    Attributes
    ----------
    graph : Graph
    ledger : Ledger
    node : Int32, shape (rows,)
        Node index.
    play : Int32, shape (rows,)
        Position of the play in execution order.
    completed, answered : Bool, shape (rows,)
        Completed at all; completed with at least one token, which is what latencies are measured on.
    ttft_ms, ttst_ms, tpot_ms, e2e_ms : Float64, shape (rows,)
        NaN where the request has no such figure: TTFT and E2E need one output token, TTST and TPOT two.
    first_reused, most_reused : Int64, shape (rows,)
        Prompt tokens found in cache at the first admission, and at the one that found most: a request that is preempted
        is admitted again, and may then find its own output as well.
    readmissions : Int64, shape (rows,)
        Admissions after the first of their role.
    """

    def __init__(self, graph: Graph, ledger: Ledger, *, disaggregated: bool = False) -> None:
        self.graph = graph
        self.ledger = ledger
        self._disaggregated = disaggregated
        nodes = [play.nodes for play in graph.plays]
        order = np.concatenate(nodes) if nodes else np.empty(0, dtype=np.int32)
        # Under run controls the ledger has only what was dispatched and ended.
        self.node: Int32 = order[ledger.request_state[order] != RequestState.QUEUED].astype(np.int32)
        node = self.node
        self.play: Int32 = graph.node_play[node]
        self.state = ledger.request_state[node]
        self.output = ledger.output_length[node]
        self.completed: Bool = self.state == RequestState.FINISHED
        self.answered: Bool = self.completed & (self.output > 0)
        several = self.answered & (self.output > 1)
        dispatched, first = ledger.dispatched_ns[node], ledger.first_token_ns[node]
        gaps = np.maximum(self.output - 1, 1)
        self.ttft_ms = _where(self.answered, (first - dispatched) / NS_PER_MS)
        self.e2e_ms = _where(self.answered, (ledger.terminal_ns[node] - dispatched) / NS_PER_MS)
        self.ttst_ms = _where(several, (ledger.second_token_ns[node] - first) / NS_PER_MS)
        self.tpot_ms = _where(several, (ledger.last_token_ns[node] - first) / NS_PER_MS / gaps)
        # Admissions by node, each node's in the order of events.
        self._by_node = np.argsort(ledger.admission_node, kind="stable")
        sorted_nodes = ledger.admission_node[self._by_node]
        self._begin = np.searchsorted(sorted_nodes, node, side="left")
        self._end = np.searchsorted(sorted_nodes, node, side="right")
        self.first_reused, self.most_reused = self._reused(self._by_node, ledger.admission_reused)
        self.first_host_reused, _ = self._reused(self._by_node, ledger.admission_host_reused)
        again = ledger.admission_node[ledger.admission_pool_ordinal > 0]
        self.readmissions: Int64 = np.bincount(again, minlength=graph.node_count)[node]

    def _reused(self, admissions: npt.NDArray[np.intp], reused: Int64) -> tuple[Int64, Int64]:
        """Return the tokens `reused` at the first of each row's `admissions`, sorted by node, and the most of them."""
        nodes = self.ledger.admission_node[admissions]
        begin = np.searchsorted(nodes, self.node, side="left")
        end = np.searchsorted(nodes, self.node, side="right")
        first = np.zeros(len(self.node), dtype=np.int64)
        admitted = end > begin
        first[admitted] = reused[admissions[begin[admitted]]]
        most = np.zeros(self.graph.node_count, dtype=np.int64)
        np.maximum.at(most, nodes, reused[admissions])
        return first, most[self.node]

    def count(self, state: RequestState) -> int:
        """Return how many requests ended in `state`."""
        return int(np.count_nonzero(self.state == state))

    def array(self) -> npt.NDArray[np.void]:
        """Return the rows as a structured array of `REQUEST_DTYPE`; NaN and -1 stand for "never" and "none"."""
        graph, ledger, node = self.graph, self.ledger, self.node
        rows = np.empty(len(node), dtype=REQUEST_DTYPE)
        rows["request_id"] = [graph.request_ids[i] for i in node.tolist()]
        rows["play_id"] = [graph.plays[i].play_id for i in self.play.tolist()]
        rows["session_id"] = [graph.sessions[i] for i in graph.node_session[node].tolist()]
        rows["node"] = node
        rows["play_ordinal"] = self.play
        rows["lane"] = ledger.play_lane[self.play]
        # An aggregated worker does both parts; it is named where the answer comes from.
        rows["prefill_worker_idx"] = ledger.worker[node] if self._disaggregated else -1
        rows["decode_worker_idx"] = ledger.decode_worker[node] if self._disaggregated else ledger.worker[node]
        rows["prefill_route_overlap_tokens"] = ledger.route_overlap[node] if self._disaggregated else -1
        decode_overlap = ledger.decode_route_overlap if self._disaggregated else ledger.route_overlap
        rows["decode_route_overlap_tokens"] = decode_overlap[node]
        rows["terminal_status"] = [TERMINAL_STATUS.get(RequestState(i), "") for i in self.state.tolist()]
        rows["input_length"] = graph.input_length[node]
        rows["output_length"] = self.output
        rows["requested_output_length"] = graph.output_length[node]
        rows["dispatched_at_ms"] = to_ms(ledger.dispatched_ns[node])
        rows["first_admit_ms"] = to_ms(ledger.first_admit_ns[node])
        rows["first_token_ms"] = to_ms(ledger.first_token_ns[node])
        rows["last_token_ms"] = to_ms(ledger.last_token_ns[node])
        rows["terminal_time_ms"] = to_ms(ledger.terminal_ns[node])
        rows["source_held_ms"] = to_ms(ledger.source_held_ns[node])
        rows["destination_reserved_ms"] = to_ms(ledger.destination_reserved_ns[node])
        rows["destination_activated_ms"] = to_ms(ledger.destination_activated_ns[node])
        rows["source_released_ms"] = to_ms(ledger.source_released_ns[node])
        rows["ttft_ms"] = self.ttft_ms
        rows["ttst_ms"] = self.ttst_ms
        rows["tpot_ms"] = self.tpot_ms
        rows["e2e_latency_ms"] = self.e2e_ms
        rows["first_admission_reused_input_tokens"] = self.first_reused
        rows["readmission_count"] = self.readmissions
        return rows

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield one row after the other as JSON values, the lines of requests.jsonl."""
        graph = self.graph
        rows = self.array()
        names = [name for name in REQUEST_DTYPE.names or () if name != "node"]
        models = [graph.models[i] for i in graph.node_model[self.node].tolist()]
        turns = self._turns()
        columns = [_nullable(rows[name], may_be_none=name in MAY_BE_NONE) for name in names]
        for row, values in enumerate(zip(*columns, strict=True)):
            known = dict(zip(names, values, strict=True))
            reused = known["first_admission_reused_input_tokens"]
            request_id = known.pop("request_id")
            yield {
                "request_id": request_id,
                # The trace's own id. A finite replay runs each request once, under that id.
                "source_request_id": request_id,
                **known,
                "phase": PHASE,
                "model": models[row],
                "turn_index": turns[row] if turns is not None else None,
                "arrival_time_ms": known["dispatched_at_ms"],
                "first_admission_g1_reused_input_tokens": reused - int(self.first_host_reused[row]),
                "first_admission_host_reused_input_tokens": int(self.first_host_reused[row]),
                "admission_history": self._history(row),
            }

    def _turns(self) -> list[int] | None:
        """Return each row's place in its session, None for an agentic trace: its plays are no sequences."""
        if self.graph.facts.get("input_kind") != "ordinary":
            return None
        place = np.zeros(self.graph.node_count, dtype=np.int64)
        for play in self.graph.plays:
            place[play.nodes] = np.arange(len(play.nodes))
        turns: list[int] = place[self.node].tolist()
        return turns

    def _history(self, row: int) -> list[dict[str, Any]]:
        ledger = self.ledger
        history = []
        for ordinal, place in enumerate(range(int(self._begin[row]), int(self._end[row]))):
            admission = int(self._by_node[place])
            reused = int(ledger.admission_reused[admission])
            from_host = int(ledger.admission_host_reused[admission])
            before = int(ledger.admission_pool_ordinal[admission])
            role = DECODE_POOL if ledger.admission_decode[admission] else PREFILL_POOL
            history.append(
                {
                    "admission_ordinal": ordinal,
                    "pool": role if self._disaggregated else POOL,
                    "pool_admission_ordinal": before,
                    # Online only the server knows when.
                    "at_ms": _since(int(ledger.admission_at_ns[admission])),
                    "is_readmission": before > 0,
                    "reused_input_tokens": reused,
                    "g1_reused_input_tokens": reused - from_host,
                    "host_reused_input_tokens": from_host,
                }
            )
        return history


def _since(time_ns: int) -> float | None:
    return None if time_ns < 0 else time_ns / NS_PER_MS


def _where(wanted: Bool, values: Float64) -> Float64:
    return np.where(wanted, values, np.nan)


def _nullable(column: npt.NDArray[Any], *, may_be_none: bool) -> list[Any]:
    values: list[Any] = column.tolist()
    if may_be_none:
        return [None if value < 0 else value for value in values]
    if column.dtype == np.float64:
        return [None if value != value else value for value in values]
    return values
