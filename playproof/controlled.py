"""The report of a run under snapshot, warmup and profile.

Times of measured requests and plays count from the barrier, where measurement starts; those of preparation, of the
profile and of its deadlines from the start of the run, as the peer has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from playproof_spec.findings import Findings
from playproof_spec.graph import Graph, Play
from playproof_spec.machines import PlayState, RequestState
from playproof_spec.units import NS_PER_MS

from playproof.deployment import AnyDeployment, Disaggregated, Load
from playproof.figures import ratio
from playproof.report import MS_PER_S, PLAY_STATUS, Measured, Report, Trajectories
from playproof.requests import TERMINAL_STATUS, RequestColumns

if TYPE_CHECKING:
    from playproof_kernel.runs.controlled_ledger import ControlledLedger
    from playproof_kernel.runs.cuts import Cut
    from playproof_spec.certificate import ProvenGraph
    from playproof_spec.ledger import Ledger

SNAPSHOT_SCHEMA = "aisimulate.agentic.snapshot.v1"
PHASES_SCHEMA = "aisimulate.agentic.phases.v1"
PROFILE_SCHEMA = "aisimulate.agentic.profile.v1"
BARRIER = "all_preparation_succeeded_and_server_quiescent"


class ControlledReport(Report):
    """What one run under the run controls showed.

    Parameters
    ----------
    proven : ProvenGraph
    controlled : ControlledLedger
    deployment : Deployment or Disaggregated
    load : Load
    findings : Findings, optional
    wall_time_ms : float
    per_request : bool
        Whether the ledger captured requests. Figures never need it.
    """

    def __init__(
        self,
        proven: ProvenGraph,
        controlled: ControlledLedger,
        deployment: AnyDeployment,
        load: Load,
        *,
        findings: Findings | None = None,
        wall_time_ms: float = 0.0,
        per_request: bool = False,
    ) -> None:
        super().__init__(
            proven, controlled, deployment, load, findings=findings, wall_time_ms=wall_time_ms, per_request=per_request
        )
        self.controlled = controlled

    @cached_property
    def trajectories(self) -> Trajectories:
        """The play instances of the run."""
        return _trajectories(self.controlled)

    @cached_property
    def _measured(self) -> Measured:
        ledger = self.controlled
        return Measured(
            requests=int(ledger.outcomes[RequestState.FINISHED]),
            input_tokens=ledger.completed_input,
            output_tokens=ledger.completed_output,
            first_reused=ledger.first_reused,
            most_reused=ledger.most_reused,
            ttft_ms=ledger.ttft_ns / NS_PER_MS,
            ttst_ms=ledger.ttst_ns / NS_PER_MS,
            tpot_ms=ledger.tpot_ns / NS_PER_MS,
            e2e_ms=ledger.e2e_ns / NS_PER_MS,
        )

    @property
    def valid(self) -> bool:
        """Whether preparation succeeded; nothing was measured otherwise."""
        return self.controlled.valid

    def _lines(self) -> Iterator[dict[str, Any]]:
        ordinals, lanes = self.controlled.plays.ordinal.tolist(), self.controlled.plays.lane.tolist()
        for line in self._columns.dicts():
            instance = line["play_ordinal"]
            yield {
                **line,
                "play_ordinal": ordinals[instance],
                "agentic": {
                    "request_id": f"{line['play_id']}:request:{line['source_request_id']}",
                    "play_id": line["play_id"],
                    "conversation_id": line["session_id"],
                    "cache_id": f"{line['play_id']}:cache",
                    "lane_id": f"lane:{lanes[instance]}",
                },
            }

    @cached_property
    def _columns(self) -> RequestColumns:
        """The captured requests as rows of a graph of their own: one node a request, one play an instance."""
        unrolled, ledger = _unrolled(self.proven.graph, self.controlled, self._play_id)
        return RequestColumns(unrolled, ledger, disaggregated=isinstance(self.deployment, Disaggregated))

    @property
    def columns(self) -> RequestColumns:
        """The requests that were captured, column by column.

        Raises
        ------
        ValueError
            When they were not.
        """
        if self.controlled.captured is None:
            raise ValueError("this report has no per-request results: replay with per_request=True")
        return self._columns

    def origins(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the node of the proven graph that each row of :attr:`columns` is, and its play's instance."""
        assert self.controlled.captured is not None
        rows = self.controlled.captured.requests
        node = self._columns.node
        return rows.source[node].astype(np.int64), rows.instance[node].astype(np.int64)

    def _play_id(self, lane: int, ordinal: int) -> str:
        return f"agentic-v1:{self.controlled.graph_digest}:{self.load.snapshot_seed}:{lane}:{ordinal}"

    def _since_barrier_ms(self, time_ns: int) -> float | None:
        return None if time_ns < 0 else (time_ns - self.controlled.profile_start_ns) / NS_PER_MS

    # Sections of to_dict ---------------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, Any]:
        outcomes = self.controlled.outcomes
        return {
            "num_requests": int(outcomes.sum()),
            "completed_requests": int(outcomes[RequestState.FINISHED]),
            "failed_requests": int(outcomes[RequestState.FAILED]),
            "rejected_requests": int(outcomes[RequestState.REJECTED]),
            "canceled_requests": int(outcomes[RequestState.CANCELED]),
            "skipped_requests": int(self.controlled.plays.skipped.sum()),
            "unfinished_requests": 0,  # what the deadline met in flight was canceled
            "never_issued_requests": self.controlled.never_issued,
            "duration_ms": self.duration_ms,
        }

    @property
    def duration_ms(self) -> float:
        """What throughput is over, milliseconds.

        In a profile the observed interval, from the first dispatch to the last end of a completed request; else from
        the barrier to the end of the last request.
        """
        ledger = self.controlled
        if self.load.profile is not None:
            return max(ledger.last_success_ns - ledger.first_success_ns, 0) / NS_PER_MS
        ends = ledger.plays.last_terminal
        return max(int(ends.max(initial=0)) - ledger.profile_start_ns, 0) / NS_PER_MS if len(ends) else 0.0

    def _span_ns(self) -> int:
        """Return how long workers were measured: from the barrier to the end, nothing if it never opened."""
        return self.controlled.finished_ns - self.controlled.profile_start_ns if self.valid else 0

    def _replayed_digest(self) -> str:
        return self.controlled.graph_digest

    def _controls(self) -> dict[str, Any]:
        return {
            "agentic_snapshots": self._snapshots(),
            "agentic_phases": self._phases() if self.load.warmup else None,
            "agentic_profile": self._profile() if self.load.profile is not None else None,
        }

    def _outcomes(self) -> list[dict[str, Any]]:
        graph = self.proven.graph
        outcomes = []
        for play in self.controlled.plays:
            failed = int(play.state) == PlayState.FAILED
            outcome: dict[str, Any] = {
                "play_id": self._play_id(int(play.lane), int(play.ordinal)),
                "source_play_id": graph.plays[int(play.source)].play_id,
                "play_ordinal": int(play.ordinal),
                "lane": int(play.lane),
                "status": PLAY_STATUS.get(PlayState(int(play.state)), "incomplete"),
                "started_at_ms": self._since_barrier_ms(int(play.start)),
                "causal_terminal_ms": self._since_barrier_ms(int(play.failed_at if failed else play.last_terminal)),
                # None where a pass still held a canceled request of it when the run ended.
                "settled_at_ms": self._since_barrier_ms(int(play.settled)),
                "never_issued_requests": int(play.expired),
            }
            if play.failed_source >= 0:
                outcome["failure_request_id"] = graph.request_ids[int(play.failed_source)]
                outcome["failure_status"] = TERMINAL_STATUS.get(RequestState(int(play.failed_outcome)))
            outcomes.append(outcome)
        return outcomes

    # Snapshots -------------------------------------------------------------------------------------------------------

    def _snapshots(self) -> list[dict[str, Any]]:
        """The first play of each lane as it was cut; then, in a profile, each play that started whole.

        Requests of the latter are left out without per-request capture: they are the source play's own, and a long
        profile has very many.
        """
        from playproof_kernel.runs.cuts import whole_play

        graph, ledger = self.proven.graph, self.controlled
        snapshots = [self._snapshot(cut, requests=True) for cut in ledger.cuts]
        # A long profile runs each play of the corpus many times: it is looked at once.
        whole: dict[int, Cut] = {}
        for play in ledger.plays[len(ledger.cuts) :]:
            lane, ordinal, source = int(play.lane), int(play.ordinal), int(play.source)
            if source not in whole:
                whole[source] = whole_play(graph, lane, ordinal, source)
            cut = dataclasses.replace(whole[source], lane=lane, ordinal=ordinal)
            snapshots.append(self._snapshot(cut, requests=self.per_request))
        return snapshots

    def _snapshot(self, cut: Cut, *, requests: bool) -> dict[str, Any]:
        graph, play_id = self.proven.graph, self._play_id(cut.lane, cut.ordinal)
        return {
            "schema": SNAPSHOT_SCHEMA,
            "seed": self.load.snapshot_seed,
            "lane_id": cut.lane,
            "play_ordinal": cut.ordinal,
            "source_play_id": graph.plays[cut.play].play_id,
            "play_id": play_id,
            "cache_id": f"{play_id}:cache",
            "t_star_ms": cut.time_ms,
            "recorded_start_ms": cut.first_start_ms,
            "recorded_last_start_ms": cut.last_start_ms,
            "primers": [
                {
                    "source_request_id": graph.request_ids[node],
                    "request_id": f"{play_id}:request:{graph.request_ids[node]}",
                    "conversation_id": f"{play_id}:conversation:{graph.sessions[graph.node_session[node]]}",
                    "input_length": int(graph.input_length[node]),
                }
                for node in cut.primers
            ],
            "requests": list(_snapshot_requests(graph, cut, play_id)) if requests else None,
        }

    # Phases ----------------------------------------------------------------------------------------------------------

    def _phases(self) -> dict[str, Any]:
        graph, ledger = self.proven.graph, self.controlled
        requests = list(self._preparation())
        failed = ledger.prep_failed
        reason = None
        if failed >= 0:
            status = requests[failed]["terminal_status"]
            reason = f"preparation request ended {status} after {requests[failed]['observed_output_tokens']} tokens"
        return {
            "schema": PHASES_SCHEMA,
            "phase": "profile" if ledger.valid else "aborted",
            "barrier_condition": BARRIER,
            "profile_start_ms": _ms(ledger.profile_start_ns),
            "finished_at_ms": _ms(ledger.profile_start_ns if ledger.valid else ledger.finished_ns),
            "failure_request_id": None if failed < 0 else graph.request_ids[int(ledger.preparation[failed].source)],
            "failure_reason": reason,
            "lanes": [self._prepared_lane(cut.lane, requests) for cut in ledger.cuts],
            "requests": requests,
        }

    def _prepared_lane(self, lane: int, requests: list[dict[str, Any]]) -> dict[str, Any]:
        own = [request for request in requests if request["lane_id"] == lane]

        def completed(phase: str) -> int:
            done = [r for r in own if r["phase"] == phase and r["terminal_status"] == "completed"]
            return sum(request["observed_output_tokens"] == 1 for request in done)

        return {
            "lane_id": lane,
            "play_id": self._play_id(lane, 0),
            "primers_completed": completed("primer"),
            "primers_expected": sum(request["phase"] == "primer" for request in own),
            "requests_quiescent": sum(request["quiescent_at_ms"] is not None for request in own),
            "warmup_completed": completed("warmup"),
            "warmup_expected": sum(request["phase"] == "warmup" for request in own),
        }

    def _preparation(self) -> Iterator[dict[str, Any]]:
        graph, ledger = self.proven.graph, self.controlled
        # The same in both roles.
        size = next(iter(self.deployment.roles.values())).block_size
        for number, request in enumerate(ledger.preparation):
            source, lane = int(request.source), int(request.lane)
            tokens, reused = int(graph.input_length[source]), int(ledger.prep_reused[number])
            yield {
                "source_request_id": graph.request_ids[source],
                "play_id": self._play_id(lane, 0),
                "lane_id": lane,
                "phase": "primer" if request.primer else "warmup",
                "input_length": tokens,
                "max_output_tokens": 1,
                "expected_full_block_tokens": tokens // size * size,
                "dispatched_at_ms": _ms(int(ledger.prep_dispatched_ns[number])),
                "first_admit_ms": _ms(int(ledger.prep_first_admit_ns[number])),
                "causal_terminal_at_ms": _ms(int(ledger.prep_terminal_ns[number])),
                "quiescent_at_ms": _ms(int(request.settled)),
                "first_admission_reused_input_tokens": None if reused < 0 else reused,
                "observed_output_tokens": int(ledger.prep_output[number]),
                "terminal_status": TERMINAL_STATUS.get(RequestState(int(ledger.prep_state[number]))),
            }

    # Profile ---------------------------------------------------------------------------------------------------------

    def _profile(self) -> dict[str, Any]:
        ledger, profile = self.controlled, self.load.profile
        assert profile is not None
        spec, start = profile.to_spec(), ledger.profile_start_ns
        cutoff = start + spec.duration_ns
        opened = start >= 0
        plays = ledger.plays
        successes = int(ledger.outcomes[RequestState.FINISHED])
        return {
            "schema": PROFILE_SCHEMA,
            "options": msgspec.to_builtins(profile),
            "profile_start_ms": _ms(start),
            "admission_cutoff_ms": _ms(cutoff) if opened else None,
            "response_grace_deadline_ms": _ms(cutoff + spec.grace_ns) if opened else None,
            "cancel_drain_deadline_ms": _ms(cutoff + spec.grace_ns + spec.drain_ns) if opened else None,
            "admission_closed": opened and ledger.finished_ns >= cutoff,
            "finished_at_ms": _ms(ledger.finished_ns),
            # Simulated engines acknowledge a cancellation at once.
            "cancel_drain_timed_out": False,
            "plays_started": len(plays),
            "client_completed_plays": int(np.count_nonzero(plays.expired == 0)),
            "retired_plays": len(plays),
            "server_quiescent_plays": int(np.count_nonzero(plays.settled >= 0)),
            "issued_requests": ledger.issued,
            "successful_responses": successes,
            "canceled_requests": ledger.canceled,
            "never_issued_requests": ledger.never_issued,
            "client_in_flight_requests": 0,
            "server_unsettled_requests": ledger.unsettled,
            "unsettled_server_requests": ledger.unsettled,
            "first_request_ms": _ms(ledger.first_dispatch_ns),
            "last_successful_response_ms": _ms(ledger.last_success_ns),
            "observation_duration_ms": self.duration_ms,
            "successful_request_throughput": ratio(successes, self.duration_ms / MS_PER_S) if successes else None,
            "corpus_cursor": len(plays),
            "idle_shifts": [self._shift(shift) for shift in ledger.shifts],
        }

    def _shift(self, shift: Any) -> dict[str, Any]:
        play_id = None
        if shift.instance >= 0:
            play = self.controlled.plays[int(shift.instance)]
            play_id = self._play_id(int(play.lane), int(play.ordinal))
        return {
            "at_ms": int(shift["at"]) / NS_PER_MS,
            "play_id": play_id,
            "shifted_by_ms": int(shift.by) / NS_PER_MS,
            "timer_count": int(shift.timers),
        }


def _ms(time_ns: int) -> float | None:
    return None if time_ns < 0 else time_ns / NS_PER_MS


def _snapshot_requests(graph: Graph, cut: Cut, play_id: str) -> Iterator[dict[str, Any]]:
    historical = dict(zip(cut.nodes, cut.historical, strict=True))
    for node, remaining_ms in zip(cut.nodes, cut.remaining_ms, strict=True):
        start, took = float(graph.not_before_ms[node]), float(graph.recorded_api_time_ms[node])
        sources = graph.edge_source[int(graph.edge_offsets[node]) : int(graph.edge_offsets[node + 1])].tolist()
        pending = [] if historical[node] else [source for source in sources if not historical[source]]
        yield {
            "source_request_id": graph.request_ids[node],
            "recorded_start_ms": start,
            "recorded_end_ms": None if np.isnan(took) else start + took,
            "historical": historical[node],
            "remaining_delay_ms": remaining_ms,
            "pending_dependencies": [f"{play_id}:request:{graph.request_ids[source]}" for source in pending],
        }


def _trajectories(ledger: ControlledLedger) -> Trajectories:
    states = ledger.plays.state
    completed = int(np.count_nonzero(states == PlayState.COMPLETED))
    spans = (ledger.plays.last_terminal - ledger.plays.start) / NS_PER_MS
    return Trajectories(
        total=len(states),
        completed=completed,
        failed=int(np.count_nonzero((states == PlayState.FAILED) | (states == PlayState.FAILING))),
        incomplete=len(states) - completed,
        e2e_latency_ms=np.where(states == PlayState.COMPLETED, spans, np.nan),
    )


def _unrolled(graph: Graph, ledger: ControlledLedger, play_id: Any) -> tuple[Graph, Ledger]:
    """Return a graph with one node a captured request and one play an instance, and the finite ledger of that graph."""
    assert ledger.captured is not None
    rows, plays = ledger.captured.requests, ledger.plays
    source = rows.source
    bounds = np.searchsorted(rows.instance, np.arange(len(plays) + 1))
    names = [play_id(int(play.lane), int(play.ordinal)) for play in plays]
    sessions = [
        f"{names[instance]}:conversation:{graph.sessions[graph.node_session[node]]}"
        for node, instance in zip(source.tolist(), rows.instance.tolist(), strict=True)
    ]
    distinct = {name: number for number, name in enumerate(dict.fromkeys(sessions))}
    unrolled = dataclasses.replace(
        graph,
        request_ids=tuple(graph.request_ids[node] for node in source.tolist()),
        plays=tuple(
            Play(name, None, np.arange(bounds[number], bounds[number + 1], dtype=np.int32))
            for number, name in enumerate(names)
        ),
        sessions=tuple(distinct),
        node_play=rows.instance.astype(np.int32),
        node_session=np.array([distinct[name] for name in sessions], dtype=np.int32),
        node_model=graph.node_model[source],
        input_length=graph.input_length[source],
        output_length=graph.output_length[source],
    )
    return unrolled, _as_finite(ledger)


def _as_finite(ledger: ControlledLedger) -> Ledger:
    """Return the captured requests as a finite ledger, its times from the barrier on."""
    from playproof_spec.ledger import Ledger

    assert ledger.captured is not None
    rows, admissions, plays = ledger.captured.requests, ledger.captured.admissions, ledger.plays

    def since(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.where(times < 0, -1, times - ledger.profile_start_ns)

    return Ledger(
        node_state=np.zeros(len(rows), np.int8),
        request_state=rows.state.astype(np.int8),
        handoff_state=rows.handoff_state.astype(np.int8),
        dispatched_ns=since(rows.dispatched),
        first_admit_ns=since(rows.first_admit),
        first_token_ns=since(rows.first_token),
        second_token_ns=since(rows.second_token),
        last_token_ns=since(rows.last_token),
        terminal_ns=since(rows.terminal),
        output_length=rows.generated.copy(),
        source_held_ns=since(rows.held),
        destination_reserved_ns=since(rows.reserved),
        destination_activated_ns=since(rows.activated),
        source_released_ns=since(rows.released),
        worker=rows.worker.astype(np.int32),
        decode_worker=rows.decode_worker.astype(np.int32),
        route_overlap=rows.overlap.copy(),
        decode_route_overlap=rows.decode_overlap.copy(),
        admissions=rows.admissions.astype(np.int32),
        admission_node=np.searchsorted(rows.serial, admissions.request).astype(np.int32),
        admission_at_ns=since(admissions["at"]),
        admission_reused=admissions.reused.copy(),
        admission_pool_ordinal=admissions.ordinal.copy(),
        admission_host_reused=admissions.host.copy(),
        admission_decode=admissions.decode.astype(np.bool_),
        play_state=plays.state.astype(np.int8),
        play_lane=plays.lane.astype(np.int32),
        play_start_ns=since(plays.start),
        play_first_dispatch_ns=since(plays.first_dispatch),
        play_last_terminal_ns=since(plays.last_terminal),
        play_settled_ns=since(plays.settled),
        play_failed_node=np.full(len(plays), -1, np.int32),
        gap_ns=ledger.gap_ns,
        gap_count=ledger.gap_count,
        passes=ledger.passes,
        busy_ns=ledger.busy_ns,
        prefill_tokens=ledger.prefill_tokens,
        decode_tokens=ledger.decode_tokens,
        preemptions=ledger.preemptions,
        evictions=ledger.evictions,
        hosts=ledger.hosts,
        end_ns=ledger.finished_ns - ledger.profile_start_ns,
    )
