"""A run as a picture over time: trace events that Perfetto and Chrome open.

Every worker is a process whose threads are its seats, every play a process whose threads are its sessions; arrows are
the edges of the graph, counters the requests that wait at a worker and run on it. Everything is made from the ledger's
columns: what requests did, not what passes did, since a ledger has no passes.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from playproof_spec.graph import Relation, Trigger

from playproof.files import write_whole
from playproof.requests import TERMINAL_STATUS
from playproof.stages import MILESTONES, STAGES, TRANSFERRED, WAITED, intervals

if TYPE_CHECKING:
    from playproof_spec.ledger import Ledger

    from playproof.report import Report

__all__ = ["RequestTimes", "request_times", "timeline_chunks", "write_timeline"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# Numbers of processes: the workers first, then the plays.
FIRST_WORKER, FIRST_PLAY = 1, 10_000
# The format counts microseconds; what it is made from, nanoseconds.
NS_PER_US = 1000.0
US_PER_MS = 1000.0
# An arrow begins within the slice that it comes from: a nanosecond before its end.
ONE_NS_IN_US = 0.001
EVENTS_PER_CHUNK = 50_000

# The ledger's name of each milestone; the admission to decode is in its history.
_COLUMNS = {name: f"{name.removesuffix('_ms').removesuffix('_time')}_ns" for name, _ in MILESTONES}
DECODE_ADMIT = "decode_admit_ms"


def write_timeline(report: Report, path: str | Path) -> Path:
    """Write a run as trace events in JSON; compressed where the name ends with ``.gz``, which Perfetto opens as well.

    Parameters
    ----------
    report : Report
    path : path

    Returns
    -------
    Path
        The path written.

    Raises
    ------
    OSError
        When the file cannot be written.
    ValueError
        When a replay under run controls ran with ``per_request=False``: it has no requests.
    """
    path = Path(path)
    chunks: Iterable[bytes] = timeline_chunks(report)
    if path.suffix == ".gz":
        chunks = _packed(chunks)
    write_whole(path, chunks)
    return path


def _packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Members of a gzip file follow one another, so each chunk is one.
    return (gzip.compress(chunk, compresslevel=1, mtime=0) for chunk in chunks)


def timeline_chunks(report: Report) -> Iterator[bytes]:
    """Yield the trace events of a run, as the bytes of one JSON document; see :func:`write_timeline`."""
    timeline = _Timeline(report)
    head = json.dumps({"simulated": report.simulated, "graph": report.proven.certificate.graph_digest})
    yield f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n'.encode()
    events = timeline.events()
    separator = b""
    while chunk := list(islice(events, EVENTS_PER_CHUNK)):
        yield separator + ",\n".join(chunk).encode()
        separator = b",\n"
    yield b"\n]}\n"


class RequestTimes(NamedTuple):
    """When requests did what.

    Attributes
    ----------
    us : dict of str to Float64
        Microseconds from the run's origin by the milestones of :mod:`playproof.stages`, NaN for never.
    steps : list of (str, Float64, Float64)
        What they were in, from when, until when, in microseconds.
    """

    us: dict[str, Float64]
    steps: list[tuple[str, Float64, Float64]]

    @property
    def spent_ms(self) -> dict[str, Float64]:
        """How long each request was in each stage, milliseconds."""
        times = {stage: np.zeros(len(self.us["dispatched_at_ms"])) for stage in STAGES}
        for stage, begin, end in self.steps:
            times[stage] += (end - begin) / US_PER_MS
        return times


def request_times(report: Report) -> RequestTimes:
    """Return when the requests of a report did what, by the rows of its columns."""
    ledger, node = report.columns.ledger, report.columns.node
    admits = _decode_admits(ledger)
    times = {"dispatched_at_ms": _us(ledger.dispatched_ns[node])} | {
        name: _us((admits if name == DECODE_ADMIT else getattr(ledger, field))[node])
        for name, field in _COLUMNS.items()
    }
    return RequestTimes(times, intervals(times))


class _Timeline:
    """The columns that events are made of; times are microseconds from the run's origin, NaN for never."""

    def __init__(self, report: Report) -> None:
        columns = report.columns
        graph, ledger, node = columns.graph, columns.ledger, columns.node
        self.report, self.graph, self.columns = report, graph, columns
        self.disaggregated = len(report.deployment.roles) > 1
        self.times, self.steps = request_times(report)
        self.begin, self.end = self.times["dispatched_at_ms"], self.times["terminal_time_ms"]
        self.ids = [json.dumps(graph.request_ids[row]) for row in node.tolist()]
        self.play_process = columns.play.astype(np.int64) + FIRST_PLAY
        # A worker's process; of none, -1.
        first_decode = FIRST_WORKER + next(iter(report.deployment.roles.values())).workers
        self.first_worker = np.where(ledger.worker[node] < 0, -1, ledger.worker[node] + FIRST_WORKER)
        decode = np.where(ledger.decode_worker[node] < 0, -1, ledger.decode_worker[node] + first_decode)
        self.last_worker = decode if self.disaggregated else self.first_worker
        session = list(zip(columns.play.tolist(), graph.node_session[node].tolist(), strict=True))
        self.threads = _rows(session, self.begin.tolist(), self.end.tolist())

    def events(self) -> Iterator[str]:
        """Return every event, encoded."""
        return chain(
            self._names(),
            self._plays(),
            self._requests(),
            self._stages(),
            self._arrows(),
            self._seats(),
            self._counters(),
        )

    def _names(self) -> Iterator[str]:
        """Yield what processes and threads are called."""
        number = FIRST_WORKER
        for role, workers in self.report.deployment.roles.items():
            for worker in range(workers.workers):
                yield _name("process_name", number, 0, f"{role} worker {worker}")
                number += 1
        for play in np.unique(self.columns.play).tolist():
            yield _name("process_name", FIRST_PLAY + play, 0, f"play {self.graph.plays[play].play_id}")
            yield _name("thread_name", FIRST_PLAY + play, 0, "the whole play")
        sessions = self.graph.node_session[self.columns.node].tolist()
        processes = self.play_process.tolist()
        for thread, row in sorted({thread: row for row, thread in enumerate(self.threads)}.items()):
            yield _name("thread_name", processes[row], thread, self.graph.sessions[sessions[row]])

    def _plays(self) -> Iterator[str]:
        """Yield a slice a play, from its first dispatch to its last end."""
        count = len(self.graph.plays)
        begin, end = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(begin, self.columns.play, self.begin)
        np.maximum.at(end, self.columns.play, self.end)
        for play in np.flatnonzero(end >= begin).tolist():
            span = f'"ts":{float(begin[play])},"dur":{float(end[play] - begin[play])}'
            name = json.dumps(self.graph.plays[play].play_id)
            yield f'{{"ph":"X","cat":"play","pid":{FIRST_PLAY + play},"tid":0,{span},"name":{name}}}'

    def _requests(self) -> Iterator[str]:
        """Return a slice a request, on the thread of its session."""
        columns = self.columns
        states = {int(state): status for state, status in TERMINAL_STATUS.items()}
        rows = zip(
            self.play_process.tolist(),
            self.threads,
            self.begin.tolist(),
            (self.end - self.begin).tolist(),
            self.ids,
            self.graph.input_length[columns.node].tolist(),
            columns.output.tolist(),
            columns.first_reused.tolist(),
            columns.readmissions.tolist(),
            columns.state.tolist(),
            strict=True,
        )
        return (
            f'{{"ph":"X","cat":"request","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"name":{name},"args":{{"input":'
            f'{tokens},"output":{output},"reused":{reused},"preempted":{again},"status":"{states.get(state, "")}"}}}}'
            for pid, tid, ts, dur, name, tokens, output, reused, again, state in rows
        )

    def _stages(self) -> Iterator[str]:
        """Yield what each request was in, one after the other, within its slice."""
        threads = np.array(self.threads, dtype=np.int64)
        for stage, begin, end in self.steps:
            (there,) = np.nonzero(end > begin)
            yield from _slices(
                f'"cat":"stage","name":"{stage}"', self.play_process[there], threads[there], begin[there], end[there]
            )

    def _arrows(self) -> Iterator[str]:
        """Yield an arrow for each edge both of whose ends were dispatched."""
        source, target, edge = self._edges()
        threads = np.array(self.threads, dtype=np.int64)
        at_end = self.proven_graph.edge_trigger[edge] == Trigger.COMPLETION
        left = np.where(at_end, np.fmax(self.end[source] - ONE_NS_IN_US, self.begin[source]), self.begin[source])
        names = [f'"cat":"edge","name":"{relation.name.lower()}"' for relation in Relation]
        rows = zip(
            range(1, len(edge) + 1),
            self.proven_graph.edge_relation[edge].tolist(),
            self.play_process[source].tolist(),
            threads[source].tolist(),
            left.tolist(),
            self.play_process[target].tolist(),
            threads[target].tolist(),
            self.begin[target].tolist(),
            strict=True,
        )
        for number, relation, pid, tid, ts, to_pid, to_tid, to_ts in rows:
            name = names[relation]
            yield f'{{"ph":"s",{name},"id":{number},"pid":{pid},"tid":{tid},"ts":{ts}}}'
            yield f'{{"ph":"f","bp":"e",{name},"id":{number},"pid":{to_pid},"tid":{to_tid},"ts":{to_ts}}}'

    @property
    def proven_graph(self) -> Any:
        """The graph that was replayed, whose edges are the arrows."""
        return self.report.proven.graph

    def _edges(self) -> tuple[Int64, Int64, Int64]:
        """Return the rows of each edge's source and target, and the edge, of edges that have both."""
        graph = self.proven_graph
        node, instance = self.report.origins()
        # A request is known by its play's instance and its node: the order of rows need not be that of nodes.
        known = instance * graph.node_count + node
        order = np.argsort(known)
        count = (graph.edge_offsets[node + 1] - graph.edge_offsets[node]).astype(np.int64)
        target = np.repeat(np.arange(len(node)), count)
        first = np.repeat(graph.edge_offsets[node], count)
        edge = first + np.arange(len(target)) - np.repeat(np.cumsum(count) - count, count)
        wanted = instance[target] * graph.node_count + graph.edge_source[edge]
        place = np.minimum(np.searchsorted(known[order], wanted), max(len(known) - 1, 0))
        source = order[place] if len(known) else np.zeros(0, dtype=np.int64)
        there = (known[source] == wanted) if len(known) else np.zeros(0, dtype=np.bool_)
        return source[there], target[there], edge[there]

    def _held(self) -> list[tuple[str, Int64, Float64, Float64]]:
        """Return what requests do at workers: what, the worker's process, from when, until when."""
        times, end = self.times, self.end
        admitted, token = times["first_admit_ms"], times["first_token_ms"]
        if not self.disaggregated:
            computed = np.where(np.isnan(token), end, token)
            return [
                ("prefill", self.first_worker, admitted, computed),
                ("decode", self.first_worker, token, end),
            ]
        ledger, node = self.columns.ledger, self.columns.node
        kept = times["source_held_ms"]
        return [
            ("prefill", self.first_worker, admitted, np.where(np.isnan(kept), end, kept)),
            ("kept for the transfer", self.first_worker, kept, _us(ledger.source_released_ns[node])),
            ("decode", self.last_worker, times[DECODE_ADMIT], end),
        ]

    def _seats(self) -> Iterator[str]:
        """Yield what each seat of a worker holds: a request takes the first one that is free."""
        for processes in [self.first_worker, self.last_worker] if self.disaggregated else [self.first_worker]:
            parts = [part for part in self._held() if part[1] is processes]
            begin, end = parts[0][2], np.fmax.reduce([part[3] for part in parts])
            (there,) = np.nonzero((processes >= 0) & (end > begin))
            seats = _rows(processes[there].tolist(), begin[there].tolist(), end[there].tolist(), by_group=True)
            seat = np.zeros(len(processes), dtype=np.int64)
            seat[there] = seats
            for name, _, since, until in parts:
                rows = there[(until[there] > since[there])]
                names = [self.ids[row] for row in rows.tolist()]
                yield from _named_slices(name, processes[rows], seat[rows], since[rows], until[rows], names)
            for process, number in sorted(set(zip(processes[there].tolist(), seats, strict=True))):
                yield _name("thread_name", process, number, f"seat {number}")

    def _counters(self) -> Iterator[str]:
        """Yield how many requests wait at each worker, run on it, and are on their way to it."""
        # What the first worker refused never came to another.
        last = np.where(self.last_worker < 0, self.first_worker, self.last_worker)
        spans: list[tuple[str, Int64, Float64, Float64]] = [
            ("running", process, begin, end) for name, process, begin, end in self._held() if "kept" not in name
        ]
        for number, (stage, begin, end) in enumerate(self.steps):
            if stage == WAITED:
                spans.append(("waiting", self.first_worker if number == 0 else last, begin, end))
            elif stage == TRANSFERRED and self.disaggregated:
                spans.append(("moving", last, begin, end))
        for name in ("running", "waiting", "moving"):
            chosen = [span for span in spans if span[0] == name]
            if chosen:
                yield from _counted(name, chosen)


def _counted(name: str, spans: Sequence[tuple[str, Int64, Float64, Float64]]) -> Iterator[str]:
    """Yield how many of the spans are under way at each process, whenever that changes."""
    kept = [(process >= 0) & (end > begin) for _, process, begin, end in spans]
    processes = np.concatenate([span[1][keep] for span, keep in zip(spans, kept, strict=True)] * 2)
    times = np.concatenate(
        [span[2][keep] for span, keep in zip(spans, kept, strict=True)]
        + [span[3][keep] for span, keep in zip(spans, kept, strict=True)]
    )
    steps = np.repeat([1, -1], len(times) // 2)
    for process in np.unique(processes).tolist():
        mine = processes == process
        at, place = np.unique(times[mine], return_inverse=True)
        level = np.cumsum(np.bincount(place, weights=steps[mine], minlength=len(at))).astype(np.int64)
        changed = np.flatnonzero(np.diff(level, prepend=0))
        head = f'{{"ph":"C","pid":{process},"name":"{name}","ts":'
        for ts, count in zip(at[changed].tolist(), level[changed].tolist(), strict=True):
            yield f'{head}{ts},"args":{{"requests":{count}}}}}'


def _slices(what: str, pid: Int64, tid: Int64, begin: Float64, end: Float64) -> Iterator[str]:
    rows = zip(pid.tolist(), tid.tolist(), begin.tolist(), (end - begin).tolist(), strict=True)
    return (f'{{"ph":"X",{what},"pid":{p},"tid":{t},"ts":{ts},"dur":{dur}}}' for p, t, ts, dur in rows)


def _named_slices(
    what: str, pid: Int64, tid: Int64, begin: Float64, end: Float64, names: Sequence[str]
) -> Iterator[str]:
    rows = zip(pid.tolist(), tid.tolist(), begin.tolist(), (end - begin).tolist(), names, strict=True)
    return (
        f'{{"ph":"X","cat":"worker","name":"{what}","pid":{p},"tid":{t},"ts":{ts},"dur":{dur},"args":{{"request":{name}}}}}'
        for p, t, ts, dur, name in rows
    )


def _name(what: str, pid: int, tid: int, name: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{{"name":{json.dumps(name)}}}}}'


def _rows(groups: Sequence[Any], begin: Sequence[float], end: Sequence[float], *, by_group: bool = False) -> list[int]:
    """Return a row for each interval, so that no two of a group on one row overlap: the first row that is free.

    Parameters
    ----------
    groups : sequence
        What intervals share rows with.
    begin, end : sequence of float
    by_group : bool
        Whether rows count from 1 in each group, and not over all.
    """
    rows = [0] * len(groups)
    taken: dict[Any, list[tuple[float, int]]] = {}
    free: dict[Any, list[int]] = {}
    count: dict[Any, int] = {}
    total = 0
    for index in sorted(range(len(groups)), key=begin.__getitem__):
        group = groups[index]
        held, spare = taken.setdefault(group, []), free.setdefault(group, [])
        while held and held[0][0] <= begin[index]:
            heapq.heappush(spare, heapq.heappop(held)[1])
        if spare:
            row = heapq.heappop(spare)
        else:
            total += 1
            count[group] = count.get(group, 0) + 1
            row = count[group] if by_group else total
        rows[index] = row
        heapq.heappush(held, (end[index], row))
    return rows


def _us(times_ns: Int64) -> Float64:
    """Return nanoseconds as microseconds, NaN for never."""
    return np.where(times_ns < 0, np.nan, times_ns / NS_PER_US)


def _decode_admits(ledger: Ledger) -> Int64:
    """Return when each node was first admitted to decode, -1 for never."""
    admits = np.full(len(ledger.dispatched_ns), -1, dtype=np.int64)
    (later,) = np.nonzero(ledger.admission_decode)
    admits[ledger.admission_node[later[::-1]]] = ledger.admission_at_ns[later[::-1]]  # the first one is written last
    return admits
