"""What a request waited for, in words: which edge, floor, queue or transfer decided when it started and ended."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from playproof_spec.findings import printable
from playproof_spec.graph import Relation, Trigger
from playproof_spec.units import NS_PER_MS, ms_to_ns

from playproof.requests import TERMINAL_STATUS
from playproof.stages import STAGES
from playproof.timeline import request_times

if TYPE_CHECKING:
    from playproof.report import Report

__all__ = ["Condition", "Explanation", "NoSuchRequest", "explain"]

# What is asked for where no request has that name: the one that took longest.
SLOWEST = "slowest"
# Steps of a chain that are told; the rest is counted.
MOST_STEPS = 40


class NoSuchRequest(KeyError):
    """No request of the run has this id; the message names similar ones."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that had to be met before a request could start.

    Attributes
    ----------
    kind : str
        The relation of an edge, such as ``join``; ``floor``: its recorded time in its play; ``play``: the play's start.
    source : str
        The request that an edge comes from, else empty.
    fired_ms : float
        When the source was dispatched or completed; for a floor the play's start.
    delay_ms : float
        How long after that it was met.
    decided : bool
        Whether the request started when this was met: nothing was met later.
    """

    kind: str
    source: str
    fired_ms: float
    delay_ms: float
    decided: bool

    @property
    def due_ms(self) -> float:
        """When it was met."""
        return self.fired_ms + self.delay_ms


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one request.

    Attributes
    ----------
    request_id, play_id, status : str
    dispatched_ms, took_ms : float
    conditions : tuple of Condition
        What it waited for before its start, the last to be met first.
    spent_ms : dict of str to float
        What it was in, and how long: its whole time.
    worker : str
        Where it waited first, empty where no worker took it.
    running, waiting : int
        Requests that ran there, and that waited there ahead of it, when it was dispatched.
    freed_by : tuple of str
        Requests that left that worker at the instant of its admission.
    input_tokens, reused_tokens, output_tokens, preemptions : int
    chain : tuple of str
        The requests that decided when it started, from the latest back to its play's start.
    """

    request_id: str
    play_id: str
    status: str
    dispatched_ms: float
    took_ms: float
    conditions: tuple[Condition, ...]
    spent_ms: dict[str, float]
    worker: str
    running: int
    waiting: int
    freed_by: tuple[str, ...]
    input_tokens: int
    reused_tokens: int
    output_tokens: int
    preemptions: int
    chain: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        conditions = [
            {**{name: getattr(each, name) for name in each.__slots__}, "due_ms": each.due_ms}
            for each in self.conditions
        ]
        return {"schema": "playproof.explanation.v1", **fields, "conditions": conditions}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        tokens = f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out"
        yield f"{printable(self.request_id)} of play {printable(self.play_id)}: {tokens}, {self.status}"
        first = True
        for condition in self.conditions:
            yield f"  {'started' if first else 'before:'} {_time(condition.due_ms)}: {_condition(condition)}"
            first = False
        waited = self.spent_ms["waited"]
        if waited and self.worker:
            yield f"  waited {_span(waited)}, first at {self.worker}: {self._queue()}"
        computed = f"{self.reused_tokens:,} of its {self.input_tokens:,} prompt tokens were in cache"
        if self.spent_ms["prefill"]:
            yield f"  prefill {_span(self.spent_ms['prefill'])}: {computed}"
        if self.spent_ms["transferred"]:
            yield f"  transferred {_span(self.spent_ms['transferred'])}: its KV moved to the decode worker"
        if self.spent_ms["decode"]:
            again = f", preempted {self.preemptions:,} times" if self.preemptions else ""
            yield f"  decode {_span(self.spent_ms['decode'])}: {self.output_tokens:,} tokens{again}"
        longest = max(STAGES, key=self.spent_ms.__getitem__)
        yield f"  took {_span(self.took_ms)} in all, most of it {longest}"
        if self.chain:
            yield "  what decided its start, back to its play's start:"
            yield from (f"    {printable(step)}" for step in self.chain[:MOST_STEPS])
            if len(self.chain) > MOST_STEPS:
                yield f"    … and {len(self.chain) - MOST_STEPS:,} more"

    def _queue(self) -> str:
        text = f"{self.running:,} ran there and {self.waiting:,} waited ahead of it"
        if self.freed_by:
            names = ", ".join(map(printable, self.freed_by[:3]))
            return f"{text}; it was admitted when {names} left"
        return text if self.running + self.waiting else "the pass under way had to end"


def _condition(condition: Condition) -> str:
    after = f", and {_span(condition.delay_ms)} after that" if condition.delay_ms else ""
    if condition.kind == "play":
        return "its play started"
    if condition.kind == "floor":
        return f"its recorded time, {_span(condition.delay_ms)} after its play's start"
    return f"{condition.kind} from {printable(condition.source)} at {_time(condition.fired_ms)}{after}"


def _time(value_ms: float) -> str:
    return f"{value_ms / 1000:,.3f} s"


def _span(value_ms: float) -> str:
    return f"{value_ms:,.1f} ms" if value_ms < 1000 else f"{value_ms / 1000:,.2f} s"


def explain(report: Report, request_id: str) -> Explanation:
    """Say what a request of a run waited for.

    Parameters
    ----------
    report : Report
    request_id : str
        Its id in the trace; ``slowest`` for the completed request that took longest.

    Raises
    ------
    NoSuchRequest
        When none has this id.
    ValueError
        When a replay under run controls ran with ``per_request=False``.
    """
    return _Explainer(report).explanation(request_id)


class _Explainer:
    def __init__(self, report: Report) -> None:
        self.report, self.columns = report, report.columns
        self.graph, self.ledger = self.columns.graph, self.columns.ledger
        self.node, self.instance = report.origins()
        self.times = request_times(report)
        self.place = {(int(i), int(n)): row for row, (i, n) in enumerate(zip(self.instance, self.node, strict=True))}

    @cached_property
    def ids(self) -> list[str]:
        return [self.graph.request_ids[row] for row in self.columns.node.tolist()]

    def _row(self, request_id: str) -> int:
        if request_id in self.ids:
            return self.ids.index(request_id)
        if request_id == SLOWEST and self.columns.completed.any():
            took = np.where(self.columns.completed, self._ms("terminal_ns") - self._ms("dispatched_ns"), -1.0)
            return int(np.argmax(took))
        near = difflib.get_close_matches(request_id, self.ids, n=3)
        hint = f"; similar: {', '.join(map(printable, near))}" if near else ""
        raise NoSuchRequest(f"no request that ended is called {printable(request_id)!r}{hint}")

    def _ms(self, name: str) -> npt.NDArray[np.float64]:
        values: npt.NDArray[np.float64] = getattr(self.ledger, name)[self.columns.node] / NS_PER_MS
        return values

    def explanation(self, request_id: str) -> Explanation:
        row = self._row(request_id)
        columns, node = self.columns, self.columns.node
        spent = {stage: float(values[row]) for stage, values in self.times.spent_ms.items()}
        worker, running, waiting, freed_by = self._queue(row)
        dispatched = float(self._ms("dispatched_ns")[row])
        return Explanation(
            request_id=self.ids[row],
            play_id=self.graph.plays[int(columns.play[row])].play_id,
            status={int(state): text for state, text in TERMINAL_STATUS.items()}.get(int(columns.state[row]), ""),
            dispatched_ms=dispatched,
            took_ms=float(self._ms("terminal_ns")[row]) - dispatched,
            conditions=tuple(self._conditions(row)),
            spent_ms=spent,
            worker=worker,
            running=running,
            waiting=waiting,
            freed_by=freed_by,
            input_tokens=int(self.graph.input_length[node[row]]),
            reused_tokens=int(columns.first_reused[row]),
            output_tokens=int(columns.output[row]),
            preemptions=int(columns.readmissions[row]),
            chain=tuple(self._chain(row)),
        )

    def _conditions(self, row: int) -> list[Condition]:
        """Return what had to be met before a request started, the last to be met first."""
        graph = self.report.proven.graph
        node, dispatched = int(self.node[row]), int(self.ledger.dispatched_ns[self.columns.node[row]])
        found: list[tuple[int, Condition]] = []

        def decided(kind: str, source: str, fired_ns: int, delay_ns: int) -> None:
            # Timers of a profile may be moved forward, so that a request starts before all of its conditions are due.
            due = fired_ns + delay_ns
            condition = Condition(kind, source, fired_ns / NS_PER_MS, delay_ns / NS_PER_MS, due == dispatched)
            found.append((due, condition))

        for edge in range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1])):
            source = self.place.get((int(self.instance[row]), int(graph.edge_source[edge])))
            if source is None:
                continue
            at_dispatch = graph.edge_trigger[edge] == Trigger.DISPATCH
            times = self.ledger.dispatched_ns if at_dispatch else self.ledger.terminal_ns
            delay = int(ms_to_ns(float(graph.edge_delay_ms[edge]) / self.report.load.speedup))
            kind = Relation(int(graph.edge_relation[edge])).name.lower().replace("_", " ")
            decided(kind, graph.request_ids[graph.edge_source[edge]], int(times[self.columns.node[source]]), delay)
        start = int(self.ledger.play_start_ns[self.columns.play[row]])
        if start >= 0 and (dispatched != start or not found):
            latest = max((due for due, _ in found), default=start)
            if dispatched > latest:  # no edge was met that late: its own recorded time was
                decided("floor", "", start, dispatched - start)
        if not found:
            decided("play", "", start, 0)
        return [condition for _, condition in sorted(found, key=lambda each: -each[0])]

    def _chain(self, row: int) -> Iterator[str]:
        """Yield what decided a request's start, then that one's, back to the play's start."""
        seen: set[int] = set()
        while row not in seen:
            seen.add(row)
            deciding = next((each for each in self._conditions(row) if each.decided), None)
            if deciding is None:
                return
            yield f"{self.ids[row]} at {_time(deciding.due_ms)}: {_condition(deciding)}"
            if not deciding.source:
                return
            source = self.report.proven.graph.request_ids.index(deciding.source)
            found = self.place.get((int(self.instance[row]), source))
            if found is None:
                return
            row = found

    def _queue(self, row: int) -> tuple[str, int, int, tuple[str, ...]]:
        """Return where a request waited first, what was there when it came, and who left when it was admitted."""
        node = self.columns.node
        workers = self.ledger.worker[node]
        worker = int(workers[row])
        if worker < 0:
            return "", 0, 0, ()
        role = next(iter(self.report.deployment.roles))
        admitted, dispatched = self.ledger.first_admit_ns[node], self.ledger.dispatched_ns[node]
        held = self.ledger.source_held_ns[node]
        left = np.where(held >= 0, held, self.ledger.terminal_ns[node])
        others = (workers == worker) & (np.arange(len(node)) != row)
        now = dispatched[row]
        running = others & (admitted >= 0) & (admitted <= now) & (left > now)
        waiting = others & (dispatched <= now) & (admitted > now) & (admitted <= admitted[row])
        freed = others & (left == admitted[row]) & (admitted[row] > now) & (admitted >= 0)
        names = tuple(self.ids[other] for other in np.flatnonzero(freed).tolist())
        return f"{role} worker {worker}", int(running.sum()), int(waiting.sum()), names
