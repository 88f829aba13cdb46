"""A run to compare: its report, and its requests where they lie beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from playproof_spec.findings import Finding, Findings, InvalidInput, Where, finding

from playproof.files import REPORT_FILE, report_in

if TYPE_CHECKING:
    from playproof.report import Report

__all__ = ["Run", "read_run", "run_of"]

LINES_FILE = "requests.jsonl"

# What is kept of a request's line, in columns: texts, whole numbers and times.
_TEXTS = ("request_id", "play_id", "terminal_status")
_NUMBERS = ("input_length", "output_length", "first_admission_reused_input_tokens", "readmission_count")
_WORKERS = ("prefill_worker_idx", "decode_worker_idx")
_TIMES = (
    *("dispatched_at_ms", "first_admit_ms", "first_token_ms", "terminal_time_ms"),
    *("source_held_ms", "destination_reserved_ms", "destination_activated_ms"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One of the runs that are compared.

    Attributes
    ----------
    name : str
        What it is called, such as its folder.
    report : mapping
        Its report.json.
    keys : tuple of str
        What each request is called in every run of its trace; empty where the requests are not known.
    plays : tuple of str
        The play of each request.
    columns : mapping of str to array
        The requests, column by column; times in ms with NaN for what did not happen, workers −1 for none.
    has_requests : bool
        Whether the requests are known.
    """

    name: str
    report: Mapping[str, Any]
    keys: tuple[str, ...]
    plays: tuple[str, ...]
    columns: Mapping[str, npt.NDArray[Any]]
    has_requests: bool


def read_run(path: str | Path, name: str = "") -> Run:
    """Read a run from its folder, its report.json, or its requests.jsonl.

    Parameters
    ----------
    path : path
    name : str
        What it is called; by default its path.

    Raises
    ------
    InvalidInput
        When the file is no report of ours, or its requests are none.
    OSError
        When it cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        path = path / REPORT_FILE
    elif path.suffix == ".jsonl":
        path = path.with_name(REPORT_FILE)
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}")
    report = _read_report(path)
    lines = path.with_name(LINES_FILE)
    # Only the lines that the report names are its own.
    named = isinstance(report.get("digests"), Mapping) and report["digests"].get("requests") is not None
    return _run(name or str(path), report, _lines(lines) if named and lines.is_file() else None)


def run_of(report: Report, name: str) -> Run:
    """Return a report in memory as a run, with its requests where they were captured."""
    document = msgspec.json.decode(msgspec.json.encode(report.to_dict()))
    return _run(name, document, report.request_dicts() if report.per_request else None)


def _read_report(path: Path) -> dict[str, Any]:
    value, why = report_in(path)
    if value is None:
        raise _refused(
            finding("run-file", why, where=Where(file=str(path)), wanted="a report.json of `playproof replay`")
        )
    return value


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                where = Where(file=str(path), line=number)
                raise _refused(
                    finding("run-file", f"it is no request: {error}", where=where, wanted="a line of `--per-request`")
                ) from None


def _run(name: str, report: Mapping[str, Any], lines: Iterator[dict[str, Any]] | None) -> Run:
    keys: list[str] = []
    plays: list[str] = []
    table: dict[str, list[Any]] = {column: [] for column in (*_TEXTS, *_NUMBERS, *_WORKERS, *_TIMES, "decode_admit_ms")}
    for number, line in enumerate(lines or (), 1):
        try:
            key, play = _names(line)
            row = [line[column] for column in (*_TEXTS, *_NUMBERS, *_WORKERS, *_TIMES)]
            row.append(_decode_admit(line))
        except (KeyError, TypeError, AttributeError) as error:
            where = Where(file=name, line=number)
            message = f"a line of requests.jsonl lacks what a request has: {error}"
            raise _refused(finding("run-file", message, where=where)) from None
        keys.append(key)
        plays.append(play)
        for values, value in zip(table.values(), row, strict=True):
            values.append(value)
    try:
        return Run(name, report, tuple(keys), tuple(plays), _arrays(table), lines is not None)
    except (TypeError, ValueError, OverflowError) as error:
        message = f"requests.jsonl holds a value that no request has: {error}"
        raise _refused(finding("run-file", message, where=Where(file=name))) from None


def _arrays(table: Mapping[str, list[Any]]) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {name: np.array(table[name], dtype=object) for name in _TEXTS}
    arrays |= {name: np.array(table[name], dtype=np.int64) for name in _NUMBERS}
    for name in _WORKERS:
        arrays[name] = np.array([-1 if value is None else value for value in table[name]], dtype=np.int64)
    for name in (*_TIMES, "decode_admit_ms"):
        arrays[name] = np.array(table[name], dtype=np.float64)  # None becomes NaN
    return arrays


def _names(line: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a request and its play are called, whatever the run.

    Under run controls ids hold the graph's digest and the seed; the lane, the play's ordinal and the trace's own id say
    the same in every run.
    """
    if "agentic" in line:
        play = f"lane {line['lane']}, play {line['play_ordinal']}"
        return f"{play}, {line['source_request_id']}", play
    return str(line["request_id"]), str(line["play_id"])


def _decode_admit(line: Mapping[str, Any]) -> float | None:
    return next((entry["at_ms"] for entry in line["admission_history"] if entry["pool"] == "decode"), None)


def _refused(problem: Finding) -> InvalidInput:
    findings = Findings()
    findings.add(problem)
    return InvalidInput(findings)
