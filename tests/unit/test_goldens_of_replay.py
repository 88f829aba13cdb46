"""Goldens: small traces with the exact results of their replay, worked out by hand from the engine's rules.

Each folder's README says which rule it shows and how the figures come about. There is no way to write `expected.json`
from a run: a difference is a defect of one of the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import playproof as pp

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
NAMES = sorted(path.name for path in FOLDER.glob("replay-*"))


class Admission(msgspec.Struct, forbid_unknown_fields=True):
    """One admission to a worker: when, how many tokens were found in its cache, and of which pool it is."""

    at_ms: float
    reused: int
    pool: str = "agg"


class Handoff(msgspec.Struct, forbid_unknown_fields=True):
    """How a request got from its prefill worker to its decode worker; None where it did not get that far."""

    prefill_worker: int
    source_held_ms: float | None
    destination_reserved_ms: float | None
    destination_activated_ms: float | None
    source_released_ms: float | None


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a dispatched request; None where something never happened."""

    status: str
    worker: int | None
    output_length: int
    dispatched_ms: float
    first_admit_ms: float | None
    first_token_ms: float | None
    last_token_ms: float | None
    terminal_ms: float
    admissions: list[Admission]
    handoff: Handoff | None = None
    # Tokens that the KV router knew the worker to have, and the prefill worker; None where it has not placed it.
    known: int | None = None
    known_at_prefill: int | None = None


class Play(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a play."""

    play_id: str
    status: str
    lane: int | None
    terminal_ms: float
    settled_ms: float
    failed_by: str | None


class Expected(msgspec.Struct, forbid_unknown_fields=True):
    """A golden: every dispatched request, the requests that never were, and the plays in order."""

    requests: dict[str, Request]
    skipped: list[str]
    plays: list[Play]


def request_of(row: dict[str, Any]) -> Request:
    history = [
        Admission(admission["at_ms"], admission["reused_input_tokens"], admission["pool"])
        for admission in row["admission_history"]
    ]
    reused = row["first_admission_g1_reused_input_tokens"] + row["first_admission_host_reused_input_tokens"]
    assert reused == (history[0].reused if history else 0)
    assert row["readmission_count"] == len(history) - len({admission.pool for admission in history})
    handoff = {name: row[name] for name in Handoff.__struct_fields__[1:]}
    if row["prefill_worker_idx"] is None:
        assert set(handoff.values()) == {None}
    return Request(
        status=row["terminal_status"],
        worker=row["decode_worker_idx"],
        output_length=row["output_length"],
        dispatched_ms=row["dispatched_at_ms"],
        first_admit_ms=row["first_admit_ms"],
        first_token_ms=row["first_token_ms"],
        last_token_ms=row["last_token_ms"],
        terminal_ms=row["terminal_time_ms"],
        admissions=history,
        known=row["decode_route_overlap_tokens"],
        known_at_prefill=row["prefill_route_overlap_tokens"],
        handoff=None if row["prefill_worker_idx"] is None else Handoff(row["prefill_worker_idx"], **handoff),
    )


def play_of(outcome: dict[str, Any]) -> Play:
    return Play(
        play_id=outcome["play_id"],
        status=outcome["status"],
        lane=outcome["lane"],
        terminal_ms=outcome["causal_terminal_ms"],
        settled_ms=outcome["settled_at_ms"],
        failed_by=outcome.get("failure_request_id"),
    )


def observed(report: pp.Report) -> Expected:
    requests = {row["request_id"]: request_of(row) for row in report.request_dicts()}
    return Expected(
        requests=requests,
        skipped=[name for name in report.proven.graph.request_ids if name not in requests],
        # Sessions of an ordinary trace are not listed.
        plays=[play_of(outcome) for outcome in report.to_dict()["agentic_play_outcomes"] or ()],
    )


@pytest.mark.parametrize("name", NAMES)
def test_trace_replays_to_its_results(name: str) -> None:
    expected = msgspec.json.decode((FOLDER / name / "expected.json").read_bytes(), type=Expected)
    assert observed(pp.run(FOLDER / name / "config.yaml")) == expected


def test_every_golden_says_what_it_shows() -> None:
    assert NAMES
    for name in NAMES:
        assert len((FOLDER / name / "README.md").read_text(encoding="utf-8").strip()) > 40


def test_a_field_that_nothing_compares_is_refused() -> None:
    text = (FOLDER / NAMES[0] / "expected.json").read_text(encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(text.replace('"worker"', '"wroker": 0, "worker"', 1), type=Expected)
