"""Which line is of which request, and whether it repeats what the trace says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from playproof_spec.findings import Where, finding
from playproof_spec.graph import Graph

from playproof.checking.lines import Bool, Columns
from playproof.checking.plays import Plays
from playproof.checking.run import Run
from playproof.checking.settings import Int64
from playproof.checking.verdict import Tally


def match(graph: Graph, plays: Plays, lines: Columns, controlled: bool, tally: Tally) -> tuple[Int64, Int64]:
    """Return the rows of lines that are of an occurrence, and of which.

    Lines of no request of the run, and second lines of one, become findings.
    """
    if not controlled:
        # Most runs have a line of each request, in order.
        order = np.argsort(plays.rank)
        if lines.text["request_id"] == _named(graph.request_ids, plays.node[order]):
            tally.count("run-extra", len(lines))
            return np.arange(len(lines)), order
    node = _indices(graph.request_ids, lines.text["request_id"])
    occurrence = _of_instances(plays, lines, node, graph.node_count) if controlled else node
    known = occurrence >= 0

    def stranger(row: int) -> str:
        if node[row] < 0:
            return "the trace has no such request"
        return "no play of that lane and ordinal has such a request to run"

    _tell_extra(lines, known, stranger, tally)
    rows = np.flatnonzero(known)
    occurrence = occurrence[rows]
    _, firsts = np.unique(occurrence, return_index=True)
    if len(firsts) == len(rows):
        return rows, occurrence
    first = np.zeros(len(rows), np.bool_)
    first[firsts] = True
    again = np.ones(len(lines), np.bool_)
    again[rows[~first]] = False
    _tell_extra(lines, again, lambda row: "an earlier line is of the same request", tally)
    return rows[first], occurrence[first]


def _tell_extra(lines: Columns, good: Bool, why: Callable[[int], str], tally: Tally) -> None:
    tally.check(
        "run-extra",
        good,
        lambda row: finding(
            "run-extra",
            why(row),
            where=Where(
                file=tally.lines_file,
                line=int(lines.line[row]),
                field="request_id",
                ids=(lines.text["request_id"][row],),
            ),
            found=lines.text["request_id"][row],
        ),
    )


def _indices(names: Sequence[str], wanted: list[str]) -> Int64:
    index = {name: number for number, name in enumerate(names)}
    return np.array([index.get(name, -1) for name in wanted], np.int64)


def _of_instances(plays: Plays, lines: Columns, node: Int64, nodes: int) -> Int64:
    """Return the occurrence of each line by lane, ordinal and node, -1 for none."""
    places = {
        place: number for number, place in enumerate(zip(plays.lane.tolist(), plays.ordinal.tolist(), strict=True))
    }
    named = zip(lines["lane"].tolist(), lines["play_ordinal"].tolist(), strict=True)
    instance = np.array([places.get(place, -1) for place in named], np.int64)
    keys = plays.instance * nodes + plays.node
    order = np.argsort(keys)
    wanted = instance * nodes + node
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), max(len(keys) - 1, 0))
    if len(keys) == 0:
        return np.full(len(wanted), -1, np.int64)
    found = order[at]
    hit = (instance >= 0) & (node >= 0) & (keys[found] == wanted)
    return np.where(hit, found, -1)


def check_order(run: Run) -> None:
    """Lines stand play after play, and within a play as its file has them."""
    rank = run.plays.rank[run.occurrence]
    before = np.maximum.accumulate(np.concatenate(([-1], rank)))[:-1]
    run.tally.check(
        "run-order",
        rank > before,
        lambda row: run.told(
            "run-order", row, "", "the line stands behind one that comes after it", "a later request", "plays in order"
        ),
    )


def check_identity(run: Run, digest: str) -> None:
    """Compare what a line repeats of the trace.

    Parameters
    ----------
    run : Run
    digest : str
        Under the run controls the graph's digest in the names of play instances, else not looked at.
    """
    graph, text, node = run.graph, run.lines.text, run.node.tolist()
    _texts(run, "source_request_id", text["request_id"])
    _texts(run, "model", _named(graph.models, graph.node_model[run.node]))
    sessions = _named(graph.sessions, graph.node_session[run.node])
    plays = _named([play.play_id for play in graph.plays], graph.node_play[run.node])
    if run.controlled:
        plays = [instance_name(run, digest, instance) for instance in run.instance.tolist()]
        sessions = [f"{play}:conversation:{name}" for play, name in zip(plays, sessions, strict=True)]
    _texts(run, "session_id", sessions)
    _texts(run, "play_id", plays)
    _numbers(run, "input_length", graph.input_length[run.node])
    _numbers(run, "requested_output_length", graph.output_length[run.node])
    _numbers(run, "play_ordinal", run.plays.ordinal[run.instance])
    turns = np.full(len(node), -1, np.int64)
    if run.ordinary:
        place = np.zeros(graph.node_count, np.int64)
        for play in graph.plays:
            place[play.nodes] = np.arange(len(play.nodes))
        turns = place[run.node]
    _numbers(run, "turn_index", turns)
    if run.controlled or run.lines.agentic:
        _ids(run)


def _named(names: Sequence[str], numbers: npt.NDArray[np.integer[Any]]) -> list[str]:
    """Return the name of each number; NumPy looks them up several times as fast as Python."""
    listed = np.empty(len(names), object)
    listed[:] = names
    named: list[str] = listed[numbers].tolist()
    return named


def instance_name(run: Run, digest: str, instance: int) -> str:
    """Return the name of a play instance under the run controls."""
    lane, ordinal = int(run.plays.lane[instance]), int(run.plays.ordinal[instance])
    return f"agentic-v1:{digest}:{run.load.seed}:{lane}:{ordinal}"


def _texts(run: Run, field: str, wanted: list[str]) -> None:
    mine = run.lines.text[field]
    if mine == wanted:
        run.tally.count("run-identity", len(mine))
        return
    good = np.array([value == other for value, other in zip(mine, wanted, strict=True)], np.bool_)
    run.tally.check(
        "run-identity",
        good,
        lambda row: run.told("run-identity", row, field, f"{field} is not the trace's", mine[row], wanted[row]),
    )


def _numbers(run: Run, field: str, wanted: Int64) -> None:
    mine = run.lines[field]

    def told(value: int) -> object:
        return None if value < 0 else value

    run.tally.check(
        "run-identity",
        mine == wanted,
        lambda row: run.told(
            "run-identity", row, field, f"{field} is not the trace's", told(int(mine[row])), told(int(wanted[row]))
        ),
    )


def _ids(run: Run) -> None:
    """Compare the ids of the run controls, which have to be there exactly under them."""
    given = run.lines.agentic or [None] * len(run.lines)
    good, wanted = [], []
    for row, ids in enumerate(given):
        play, source = run.lines.text["play_id"][row], run.lines.text["source_request_id"][row]
        lane = int(run.plays.lane[run.instance[row]])
        names = (f"{play}:request:{source}", play, run.lines.text["session_id"][row], f"{play}:cache", f"lane:{lane}")
        wanted.append(names)
        mine = None if ids is None else (ids.request_id, ids.play_id, ids.conversation_id, ids.cache_id, ids.lane_id)
        good.append(mine == (names if run.controlled else None))
    run.tally.check(
        "run-identity",
        np.array(good, np.bool_),
        lambda row: run.told(
            "run-identity", row, "agentic", "the ids are not those of the play", given[row], wanted[row]
        ),
    )
