"""Replay reference cases and say how many of them are equal: the evidence behind docs/fidelity.md.

    python bench/references.py FOLDER... [--reference ROOT] [--file NAME] [--verbose]

A FOLDER is one of those beside the project (``../shared/reference``, or under ``PLAYPROOF_REFERENCE``):

``cases``
    The peer on small traces: every request by its id, times to 1 µs.
``scale/w40``, ``scale/mooncake3000``
    The peer on large traces: every request by its id, or, where ids differ, all rows as a multiset.
``ordinary``
    The peer on ordinary traces, host memory of several workers and speculation: requests as a multiset.
``vllm_scheduler``
    vLLM's own scheduler: requests, admissions and totals exactly. ``--file`` names another result beside
    ``expected.json``, which was made with one option changed (`OPTIONS`).

The exit code is 1 when something differs. ``--verbose`` names the first difference of each case.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import math
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import playproof as pp

ROOT = Path(__file__).resolve().parent.parent
NS_PER_MS = 1e6
MICROSECOND_NS = 1000

# What each result of vLLM's scheduler beside `expected.json` was made with, as settings of ours.
AGGREGATED = "engine.workers.aggregated"
OPTIONS = {
    "expected.json": (),
    "async.json": (f"{AGGREGATED}.scheduler.async_scheduling=true",),
    "reserve_off.json": (f"{AGGREGATED}.scheduler.scheduler_reserve_full_isl=false",),
    "watermark.json": (f"{AGGREGATED}.scheduler.watermark=0.05",),
    "long_prefill.json": (f"{AGGREGATED}.scheduler.long_prefill_token_threshold=64",),
    "answers.json": (f"{AGGREGATED}.kv_cache.reuse_output=auto",),
}


@dataclass(slots=True)
class Outcome:
    """What the comparison of one case came to.

    Attributes
    ----------
    name : str
    requests : int
        How many were compared.
    differences : list of str
        In words; none when the case is equal.
    peer : str
        Empty, or why there is nothing to compare with.
    """

    name: str
    requests: int = 0
    differences: list[str] = field(default_factory=list)
    peer: str = ""


def reference_root() -> Path:
    """Return the folder of the reference results."""
    return Path(os.environ.get("PLAYPROOF_REFERENCE", ROOT.parent / "shared" / "reference"))


# The peer, by request id ------------------------------------------------------------------------------------------

EXACT = ("terminal_status", "output_length", "input_length", "prefill_worker_idx", "decode_worker_idx")
TIMES_MS = (
    *("arrival_time_ms", "dispatched_at_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms"),
    *("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms"),
)
REUSED = ("first_admission_g1_reused_input_tokens", "first_admission_host_reused_input_tokens")


def _ns(value: Any) -> int | None:
    return None if value in (None, "") else round(float(value) * NS_PER_MS)


def _near(mine: Any, other: Any) -> bool:
    """Whether two times in ms, either of which may be missing, are within a microsecond."""
    a, b = _ns(mine), _ns(other)
    return a == b or (a is not None and b is not None and abs(a - b) <= MICROSECOND_NS)


def record_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return in words what differs between two records of one request; fields that `theirs` lacks are passed over."""
    found = [
        f"{name}: {ours[name]} != {theirs[name]}" for name in EXACT if name in theirs and ours[name] != theirs[name]
    ]
    for name in TIMES_MS:
        if name in theirs and not _near(ours.get(name), theirs[name]):
            found.append(f"{name}: {ours.get(name)} != {theirs[name]}")
    for name in REUSED:
        if name in theirs and ours[name] != theirs[name]:
            found.append(f"{name}: {ours[name]} != {theirs[name]}")
    if "admission_history" not in theirs:
        return found
    history = ours["admission_history"], theirs["admission_history"]
    if len(history[0]) != len(history[1]):
        return [*found, f"admissions: {len(history[0])} != {len(history[1])}"]
    for mine, other in zip(*history, strict=True):
        for name, value in other.items():
            if not (_near(mine[name], value) if name == "at_ms" else mine[name] == value):
                found.append(f"admission {other['admission_ordinal']} {name}: {mine[name]} != {value}")
    return found


# Plays are instances there, and phases and cuts belong to it.
CONTROLLED = re.compile("snapshot|warm|profile")


def compare_case(folder: Path) -> Outcome:
    """Compare one of ``cases``, but for the run controls, which have a test of their own."""
    if CONTROLLED.search(folder.name):
        return Outcome(folder.name, peer="run controls: see tests/unit/test_controlled_cases.py")
    expected = json.loads((folder / "expected.json").read_text())
    if expected["status"] != "ok":
        return Outcome(folder.name, peer=str(expected.get("error") or expected.get("message") or "no result")[:120])
    ours = {record["request_id"]: record for record in pp.run(folder / "config.yaml").request_dicts()}
    outcome = Outcome(folder.name, len(expected["requests"]))
    if ours.keys() != {record["request_id"] for record in expected["requests"]}:
        outcome.differences.append("other requests")
        return outcome
    for theirs in expected["requests"]:
        for found in record_differences(ours[theirs["request_id"]], theirs):
            outcome.differences.append(f"{theirs['request_id']}: {found}")
    return outcome


# The peer, large --------------------------------------------------------------------------------------------------

# A trace that lies elsewhere beside the project.
SHARED_TRACES = {"mooncake3000": "data/mooncake/conversation_3000.jsonl.xz"}


def unpacked(folder: Path, scratch: Path) -> Path:
    """Put the trace of a large case, unpacked, into `scratch`, and return its path."""
    packed = folder / "trace.jsonl.xz"
    if not packed.exists():
        packed = reference_root().parent / SHARED_TRACES[folder.name]
    trace = scratch / "trace.jsonl"
    trace.write_bytes(lzma.decompress(packed.read_bytes()))
    return trace


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode())))


def compare_large(config: Path, trace: Path, overrides: Sequence[str] = ()) -> Outcome:
    """Compare one deployment of ``scale``: every row of its table."""
    theirs = _rows(config.with_suffix(".csv.xz"))
    report = pp.run(config, paths=trace, overrides=overrides)
    ours = list(report.request_dicts())
    outcome = Outcome(config.stem, len(theirs))
    names = list(theirs[0])
    if "request_id" not in names:
        mine, other = (_multiset(rows, names) for rows in (ours, theirs))
        outcome.differences += [f"{count} × {row}" for row, count in ((other - mine) + (mine - other)).items()]
        return outcome
    by_id = {row["request_id"]: row for row in ours}
    if by_id.keys() != {row["request_id"] for row in theirs}:
        outcome.differences.append("other requests")
        return outcome
    for row in theirs:
        mine_row = by_id[row["request_id"]]
        for name in names:
            if not _same_cell(name, mine_row[name], row[name]):
                outcome.differences.append(f"{row['request_id']} {name}: {mine_row[name]} != {row[name]}")
    return outcome


def _same_cell(name: str, mine: Any, other: str) -> bool:
    if name.endswith("_ms"):
        return _near(mine, other)
    # The peer leaves a count empty where nothing counts, as without host memory.
    return ("" if mine is None else str(mine)) == other or (other == "" and mine == 0)


def _multiset(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Return the rows as a multiset of cells, times in whole microseconds."""
    return Counter(tuple(_cell(name, row.get(name)) for name in names) for row in rows)


def _cell(name: str, value: Any) -> Any:
    if name.endswith("_ms"):
        at = _ns(value)
        return None if at is None else round(at / MICROSECOND_NS)
    if name in REUSED:  # left out there where nothing was admitted
        return int(value or 0)
    return None if value in (None, "") else int(value)


def large_cases(folder: Path) -> Iterator[Outcome]:
    """Compare every deployment of a folder of ``scale``."""
    with tempfile.TemporaryDirectory() as scratch:
        trace = unpacked(folder, Path(scratch))
        for config in sorted(folder.glob("*.yaml")):
            yield compare_large(config, trace)


# The peer, as a multiset ------------------------------------------------------------------------------------------

ORDINARY = (
    *("arrival_time_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms", "output_length"),
    *(*REUSED, "prefill_worker_idx", "decode_worker_idx"),
)


# Figures of the report that no request shows.
SUMMARY = (
    *("first_admission_prefix_cache_reused_ratio", "prefix_cache_reused_ratio", "committed_prefill_tokens"),
    *("prefill_worker_seconds", "decode_worker_seconds", "duration_ms", "mean_itl_ms", "max_itl_ms", "std_itl_ms"),
)


def _summary_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Yield the figures that differ by more than the peer's float sums do."""
    for name in SUMMARY:
        mine, other = ours[name], theirs.get(name, ours[name])
        if mine != other and not (
            mine is not None and other is not None and math.isclose(mine, other, rel_tol=1e-6, abs_tol=1e-9)
        ):
            yield f"{name}: {mine} != {other}"


def compare_ordinary(folder: Path) -> Outcome:
    """Compare one of ``ordinary``: requests, and figures that no request shows."""
    expected = json.loads((folder / "expected.json").read_text())
    if expected["status"] not in ("ok", 0):
        return Outcome(folder.name, peer=str(expected.get("error") or expected.get("message") or "no result")[:120])
    report = pp.run(folder / "config.yaml")
    ours = list(report.request_dicts())
    names = [name for name in ORDINARY if name in expected["requests"][0]]
    mine, other = (_multiset(rows, names) for rows in (ours, expected["requests"]))
    differences = [f"ours {row}" for row in (mine - other).elements()]
    differences += [f"peer {row}" for row in (other - mine).elements()]
    differences += _summary_differences(report.to_dict(), expected["summary"])
    return Outcome(folder.name, len(expected["requests"]), differences)


def ends(folder: Path) -> bool:
    """Whether every request of one of ``ordinary`` ends, or the case is refused by name: the peer has no result."""
    try:
        report = pp.run(folder / "config.yaml")
    except (pp.InvalidDeployment, pp.InvalidTrace) as refused:
        return bool(refused.findings.errors)
    figures = report.to_dict()
    ended = sum(figures[f"{state}_requests"] for state in ("completed", "rejected", "failed", "canceled"))
    return bool(ended == figures["num_requests"] > 0)


# vLLM's scheduler -------------------------------------------------------------------------------------------------

# The driver has no front end before the scheduler: what is over the context limit reaches it where the option changes
# when. See the case's README.
WITHOUT_FRONT_END = "case-057"
TOTALS = ("passes", "busy_ms", "preemptions", "evictions", "prefill_tokens")


def observed(folder: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replay a case; return its requests that were dispatched, and the totals, as `run_vllm.py` writes them."""
    report = pp.run(folder / "config.yaml", overrides=overrides)
    requests = {}
    for row in report.request_dicts():
        requests[row["request_id"]] = {
            "arrival_ms": row["dispatched_at_ms"],
            "admissions": [(a["at_ms"], a["reused_input_tokens"]) for a in row["admission_history"]],
            "first_token_ms": row["first_token_ms"],
            "last_token_ms": row["last_token_ms"],
            "output_length": row["output_length"],
            "status": row["terminal_status"],
        }
    ledger = report.ledger
    totals = {
        "passes": int(ledger.passes.sum()),
        "busy_ms": float(ledger.busy_ns.sum()) / NS_PER_MS,
        "preemptions": int(ledger.preemptions.sum()),
        "evictions": int(ledger.evictions.sum()),
        "prefill_tokens": int(ledger.prefill_tokens.sum()),
    }
    return requests, totals


def _admission(entry: Any) -> tuple[float, int]:
    return (entry["at_ms"], entry["cached_tokens"]) if isinstance(entry, dict) else (entry[0], entry[1])


def compare_engine(folder: Path, file: str = "expected.json") -> Outcome:
    """Compare one of ``vllm_scheduler`` with the result named `file`: everything exactly.

    A request that the front end refuses never reaches the scheduler: it has no entry there, and no admission here.
    """
    if not (folder / file).exists():
        return Outcome(folder.name, peer=f"no {file}")
    expected = json.loads((folder / file).read_text())
    if folder.name == WITHOUT_FRONT_END and file != "expected.json":
        return Outcome(folder.name, peer="a prompt at the context limit, which the engine's front end refuses")
    if "error" in expected or not expected.get("requests"):
        return Outcome(folder.name, peer=str(expected.get("error", "no result"))[:120])
    requests, totals = observed(folder, OPTIONS[file])
    outcome = Outcome(folder.name, len(expected["requests"]))
    for name, mine in requests.items():
        refused = mine.pop("status") == "rejected"
        theirs = expected["requests"].get(name)
        if theirs is None:
            if not refused or mine["admissions"]:
                outcome.differences.append(f"{name}: unknown there")
            continue
        wanted = {key: theirs[key] for key in mine if key != "admissions"}
        wanted["admissions"] = [_admission(entry) for entry in theirs["admissions"]]
        for key, value in mine.items():
            if value != wanted[key]:
                outcome.differences.append(f"{name} {key}: {value} != {wanted[key]}")
    missing = expected["requests"].keys() - requests.keys()
    outcome.differences += [f"{name}: unknown here" for name in sorted(missing)]
    for key in TOTALS:
        if totals[key] != expected["totals"][key]:
            outcome.differences.append(f"{key}: {totals[key]} != {expected['totals'][key]}")
    return outcome


# Folders ----------------------------------------------------------------------------------------------------------


def compare_folder(folder: Path, file: str = "expected.json", only: str = "") -> Iterator[Outcome]:
    """Compare every case of a folder of reference results, those whose names match `only`."""
    if (folder / "run_vllm.py").exists():
        cases: Iterator[Outcome] = (compare_engine(case, file) for case in _cases(folder, only))
    elif folder.name == "ordinary":
        cases = (compare_ordinary(case) for case in _cases(folder, only))
    elif any(folder.glob("*.csv.xz")):
        with tempfile.TemporaryDirectory() as scratch:
            trace = unpacked(folder, Path(scratch))
            for config in sorted(folder.glob("*.yaml")):
                if re.search(only, config.stem):
                    yield compare_large(config, trace)
        return
    else:
        cases = (compare_case(case) for case in _cases(folder, only))
    yield from cases


def _cases(folder: Path, only: str) -> list[Path]:
    return [case for case in sorted(folder.iterdir()) if (case / "config.yaml").exists() and re.search(only, case.name)]


def main() -> None:
    """Compare the folders named; leave with 1 when something differs."""
    parser = argparse.ArgumentParser(description="Compare replays with reference results.")
    parser.add_argument("folders", nargs="+", help="folders of the reference results, or paths")
    parser.add_argument("--reference", type=Path, default=reference_root(), help="where the folders lie")
    parser.add_argument("--file", default="expected.json", choices=sorted(OPTIONS), help="of vllm_scheduler")
    parser.add_argument("--only", default="", help="a regular expression that names of cases match")
    parser.add_argument("--verbose", action="store_true", help="name the first difference of each case")
    arguments = parser.parse_args()
    differs = False
    for name in arguments.folders:
        folder = Path(name) if Path(name).is_dir() else arguments.reference / name
        equal = compared = requests = 0
        for outcome in compare_folder(folder, arguments.file, arguments.only):
            requests += outcome.requests
            compared += not outcome.peer
            equal += not outcome.peer and not outcome.differences
            if outcome.peer and arguments.verbose:
                print(f"  {outcome.name}: nothing to compare with ({outcome.peer})")
            if outcome.differences:
                print(f"  {outcome.name}: {len(outcome.differences)} differences")
                if arguments.verbose:
                    print(f"    {outcome.differences[0]}")
        differs = differs or equal < compared
        what = f"{name} ({arguments.file})" if arguments.file != "expected.json" else name
        print(f"{what}: {equal} of {compared} cases equal, {requests:,} requests compared")
    sys.exit(1 if differs else 0)


if __name__ == "__main__":
    main()
