"""What a run under the run controls came to: drained from it slice by slice, and read from its arrays at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from playproof_spec.graph import Graph
from playproof_spec.ledger import NEVER, Float64, Int64, RunTotals
from playproof_spec.machines import NodeState, PhaseState, RequestState

from playproof_kernel.checks.translation import (
    refuse_wrong_namespaces,
)
from playproof_kernel.ground.arrays import (
    NONE,
    Admission,
    Ended,
    Result,
    Shift,
    Sim,
)
from playproof_kernel.ground.records import Record, Rows, records
from playproof_kernel.runs.cuts import Cut
from playproof_kernel.runs.ledgers import final_states, host_use


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """Every measured request and admission. Records of `arrays.RESULT` and `arrays.ADMISSION`.

    Attributes
    ----------
    requests : records, shape (requests,)
        In the order of play instances, and of node indices within one.
    admissions : records, shape (admissions,)
        In the order of events; `request` is the request's serial.
    """

    requests: Any
    admissions: Any


@dataclass(frozen=True, slots=True, eq=False)
class ControlledLedger(RunTotals):
    """What happened under the run controls. Times are nanoseconds from the run's origin; NEVER (-1) stands for never.

    Of the totals, workers' figures count from the barrier on; preparation asks for one token and has no gaps.

    Attributes
    ----------
    graph_digest : str
        Of the graph with its floors as recorded; cuts are drawn from it.
    cuts : tuple of Cut
        The first play of each lane.
    phase : int
        `PhaseState` at the end: DONE, or INVALID when preparation failed.
    profile_start_ns, finished_ns : int
        The barrier, and the end for the client.
    preparation : records of `arrays.PREP`
        By lane and in its order; the next columns are beside it.
    prep_state, prep_dispatched_ns, prep_first_admit_ns, prep_terminal_ns, prep_output, prep_reused : Int64
        Of each preparation request: final `RequestState`, and so on; `prep_reused` at its first admission.
    prep_failed : int
        Number of the first that failed, -1 for none.
    plays : records of `arrays.ENDED`, shape (instances,)
        By instance number, which is the order in which they took their seats.
    shifts : records of `arrays.SHIFT`
        Timers moved by idle caps, in the order of events.
    issued, never_issued, canceled, unsettled : int
        Measured requests dispatched; those that the deadline kept back; canceled ones; those that engines still held
        at the end.
    first_dispatch_ns : int
    outcomes : Int64, shape (request states,)
        Measured requests by their final `RequestState`.
    completed_input, completed_output, first_reused, most_reused : int
        Tokens of the completed requests: of prompts, generated, found in cache at the first admission and at the one
        that found most.
    first_success_ns, last_success_ns : int
        The earliest dispatch, and the latest end, of a completed request.
    ttft_ns, e2e_ns, ttst_ns, tpot_ns : Float64, shape (samples,)
        Of completed requests with a token, the latter two with two; in the order of events.
    captured : Captured or None
    """

    graph_digest: str
    cuts: tuple[Cut, ...]
    phase: int
    profile_start_ns: int
    finished_ns: int
    preparation: Any
    prep_state: Int64
    prep_dispatched_ns: Int64
    prep_first_admit_ns: Int64
    prep_terminal_ns: Int64
    prep_output: Int64
    prep_reused: Int64
    prep_failed: int
    plays: Any
    shifts: Any
    issued: int
    never_issued: int
    canceled: int
    unsettled: int
    first_dispatch_ns: int
    outcomes: Int64
    completed_input: int
    completed_output: int
    first_reused: int
    most_reused: int
    first_success_ns: int
    last_success_ns: int
    ttft_ns: Float64
    e2e_ns: Float64
    ttst_ns: Float64
    tpot_ns: Float64
    captured: Captured | None

    @property
    def valid(self) -> bool:
        """Whether all preparation succeeded; nothing was measured otherwise."""
        return self.phase != PhaseState.INVALID


class Drain:
    """Takes what ended out of a run, slice by slice, and keeps what reports need of it.

    Parameters
    ----------
    graph : Graph
    capture : bool
        Keep all of every request.
    """

    def __init__(self, graph: Graph, capture: bool) -> None:
        self.input_length = graph.input_length
        self.capture = capture
        self.outcomes: Int64 = np.zeros(len(RequestState), np.int64)
        self.completed_input = self.completed_output = self.first_reused = self.most_reused = 0
        self.first_success_ns = self.last_success_ns = NEVER
        self.samples: dict[str, list[Float64]] = {"ttft": [], "e2e": [], "ttst": [], "tpot": []}
        self.plays: list[Any] = []
        self.shifts: list[Any] = []
        self.requests: list[Any] = []
        self.admissions: list[Any] = []
        self.unfinished: list[Int64] = []

    def uncounted(self, sim: Sim) -> Int64:
        """Return the numbers of the requests with gaps between tokens that did not complete, ascending."""
        nodes = len(sim.node_state)
        begun = np.isin(sim.node_state, (NodeState.DISPATCHED, NodeState.CANCELED, NodeState.FAILED))
        left = sim.static.serial[:nodes][begun & (sim.live.generated[-nodes:] > 1)]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self.unfinished, left]))

    def take(self, sim: Sim) -> None:
        """Empty the logs of `sim`."""
        run = sim.run[0]
        results = sim.results[: int(run.results)]
        self._reduce(results)
        if self.capture:
            self.requests.append(results.copy())
            admissions = sim.admissions[: int(run.admissions)]
            self.admissions.append(admissions[admissions.request >= len(sim.prep)].copy())
        self.plays.append(sim.ended[: int(run.ended)].copy())
        self.shifts.append(sim.shifts[: int(run.shifts)].copy())
        run.results = run.ended = run.shifts = run.admissions = run.noted = 0

    def _reduce(self, results: Any) -> None:
        self.outcomes += np.bincount(results.state, minlength=len(self.outcomes))
        self.unfinished.append(results.serial[(results.state != RequestState.FINISHED) & (results.generated > 1)])
        done = results[results.state == RequestState.FINISHED]
        if not len(done):
            return
        self.completed_input += int(self.input_length[done.source].sum())
        self.completed_output += int(done.generated.sum())
        self.first_reused += int(done.first_reused.sum())
        self.most_reused += int(done.most_reused.sum())
        first = int(done.dispatched.min())
        self.first_success_ns = first if self.first_success_ns == NEVER else min(first, self.first_success_ns)
        self.last_success_ns = max(int(done.terminal.max()), self.last_success_ns)
        answered = done[done.generated > 0]
        several = done[done.generated > 1]
        self.samples["ttft"].append((answered.first_token - answered.dispatched).astype(np.float64))
        self.samples["e2e"].append((answered.terminal - answered.dispatched).astype(np.float64))
        self.samples["ttst"].append((several.second_token - several.first_token).astype(np.float64))
        self.samples["tpot"].append((several.last_token - several.first_token) / (several.generated - 1))

    def sample(self, name: str) -> Float64:
        """Return all samples of one latency, ns."""
        return np.concatenate([np.zeros(0), *self.samples[name]])

    def captured(self) -> Captured | None:
        """Return what was captured, requests in the order of their numbers."""
        if not self.capture:
            return None
        requests = _joined(self.requests, Result)
        return Captured(requests[np.argsort(requests.serial, kind="stable")], _joined(self.admissions, Admission))


def _joined(parts: list[Any], kind: type[Record]) -> Any:
    return np.concatenate([records(0, kind), *parts]).view(Rows)


def ledger_of_controlled(sim: Sim, digest: str, cuts: tuple[Cut, ...], drain: Drain) -> ControlledLedger:
    refuse_wrong_namespaces(sim)
    run, workers = sim.run[0], sim.workers
    gaps = sim.gaps[sim.gaps["count"] > 0]
    gaps = gaps[np.argsort(gaps.value, kind="stable")]
    plays = _joined(drain.plays, Ended)
    begin, nodes = int(sim.config[0].prep_begin), len(sim.node_state)
    prepared = slice(begin, begin + len(sim.prep))
    prep, served = sim.live[prepared], sim.live[-nodes:][prepared]
    return ControlledLedger(
        graph_digest=digest,
        cuts=cuts,
        phase=int(sim.phase_state[0]),
        profile_start_ns=int(run.profile_start),
        finished_ns=int(run.finished_at),
        preparation=sim.prep,
        prep_state=final_states(sim)[prepared].astype(np.int64),
        prep_dispatched_ns=prep.dispatched.copy(),
        prep_first_admit_ns=prep.first_admit.copy(),
        prep_terminal_ns=served.terminal.copy(),
        prep_output=served.generated.copy(),
        prep_reused=sim.tickets[prepared].first_reused.copy(),
        prep_failed=NEVER if run.prep_failed == NONE else int(run.prep_failed) - begin,
        plays=plays[np.argsort(plays.instance, kind="stable")],
        shifts=_joined(drain.shifts, Shift),
        issued=int(run.issued),
        never_issued=int(run.never_issued),
        canceled=int(run.canceled),
        unsettled=int(run.unsettled),
        first_dispatch_ns=int(run.first_dispatch),
        outcomes=drain.outcomes,
        completed_input=drain.completed_input,
        completed_output=drain.completed_output,
        first_reused=drain.first_reused,
        most_reused=drain.most_reused,
        first_success_ns=drain.first_success_ns,
        last_success_ns=drain.last_success_ns,
        ttft_ns=drain.sample("ttft"),
        e2e_ns=drain.sample("e2e"),
        ttst_ns=drain.sample("ttst"),
        tpot_ns=drain.sample("tpot"),
        gap_ns=gaps.value.copy(),
        gap_count=gaps["count"].copy(),
        passes=workers.passes - workers.passes_before,
        busy_ns=workers.busy.copy(),
        prefill_tokens=workers.prefill_tokens.copy(),
        decode_tokens=workers.decode_tokens.copy(),
        preemptions=workers.preemptions.copy(),
        evictions=workers.evictions.copy(),
        hosts=host_use(sim),
        captured=drain.captured(),
    )
