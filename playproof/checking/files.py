"""A run as files: report.json and requests.jsonl, whether they belong together, and to the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from playproof_spec.findings import Where, finding
from playproof_spec.graph import Graph

from playproof.checking.check import examine
from playproof.checking.provenance import LABELS, Settings
from playproof.checking.settings import read_load
from playproof.checking.verdict import PASSED, Tally, Verdict
from playproof.files import report_in

REPORT, LINES = "report.json", "requests.jsonl"
CHUNK_BYTES = 1 << 20


def located(path: Path) -> tuple[Path | None, Path | None]:
    """Return the report and the lines of a run, of which `path` names one, or the folder of both.

    The other one is looked for beside it. Either may be None.

    Raises
    ------
    FileNotFoundError
        When there is nothing at `path`.
    """
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}")
    if path.is_dir():
        report, lines = path / REPORT, path / LINES
    elif path.suffix == ".jsonl":
        report, lines = path.with_name(REPORT), path
    else:
        report, lines = path, path.with_name(LINES)
    return (report if report.is_file() else None), (lines if lines.is_file() else None)


def check_files(
    path: Path,
    graph: Graph,
    *,
    deployment: Settings = None,
    load: Settings = None,
    digests: Mapping[str, str] | None = None,
    replayed: Callable[[object, float], str] | None = None,
) -> Verdict:
    """Check a run that was written to files.

    Parameters
    ----------
    path : Path
        report.json, requests.jsonl, or their folder.
    graph : Graph
        Of the trace, proven.
    deployment, load : mapping or object with `to_dict`, optional
        Those of the configuration; the report's where none are given.
    digests : mapping of str to str, optional
        What the trace's own digests are: ``input``, ``graph``, ``tables``.
    replayed : callable, optional
        Gives the graph's digest under a load, of which it is told snapshot seed and speedup.

    Raises
    ------
    OSError
        When a file cannot be read.
    """
    report_path, lines_path = located(path)
    tally = Tally(str(lines_path or LINES), str(report_path or REPORT))
    _fact(tally, "run-file", lines_path is not None, tally.lines_file, "there are no lines beside the report",
          "a requests.jsonl, as --per-request writes it")  # fmt: skip
    report = _report(report_path, tally) if report_path is not None else None
    if report is None:
        tally.skip("no report is given", ("run-digest",))
    given, offered = deployment, load
    if report is not None:
        # An online run on servers has no deployment, whatever the configuration says.
        given = report.get("deployment") if deployment is None or report.get("deployment") is None else deployment
        offered = report.get("load") if load is None else load
    hasher = blake3()
    number, kind = 0, "unknown"
    if lines_path is not None:
        number, kind = examine(graph, _hashed(lines_path, hasher), report, given, offered, tally)
    if report is not None:
        known = {**(digests or {}), "requests": hasher.hexdigest()}
        told = read_load(offered, Tally(), "load")
        if replayed is not None and told is not None:
            known["replayed"] = replayed(told.seed, told.speedup)
        _check_digests(report, known, tally)
    return tally.verdict(number, kind)


def _fact(tally: Tally, code: str, good: bool, file: str, message: str, wanted: object, found: object = "") -> None:
    tally.fact(code, good, lambda: finding(code, message, where=Where(file=file), found=found, wanted=str(wanted)))


def _hashed(path: Path, hasher: Any) -> Iterator[bytes]:
    """Yield a file in pieces, and hash them."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
            yield chunk


def _report(path: Path, tally: Tally) -> Mapping[str, Any] | None:
    """Return a report, or None where the file is none, which is a finding then."""
    value, why = report_in(path)
    _fact(tally, "run-file", not why, str(path), why, "a report.json of `playproof replay`")
    return value


def _check_digests(report: Mapping[str, Any], known: Mapping[str, str], tally: Tally) -> None:
    """Compare every digest of the report that can be computed again."""
    told = report.get("digests")
    told = told if isinstance(told, Mapping) else {}
    certificate = report.get("certificate")
    certificate = certificate if isinstance(certificate, Mapping) else {}
    graph = report.get("agentic_graph")
    checked = certificate.get("run")
    facts: list[tuple[str, Any, Any]] = [
        *((f"digests.{name}", told.get(name), known[name]) for name in ("input", "graph", "tables") if name in known),
        *((f"certificate.{name}_digest", certificate.get(f"{name}_digest"), known[name])
          for name in ("graph", "tables") if name in known),
    ]  # fmt: skip
    if isinstance(graph, Mapping) and "replayed" in known:
        facts.append(("agentic_graph.graph_digest", graph.get("graph_digest"), known["replayed"]))
    if report.get("deployment") is not None:
        facts.append(("digests.configuration", told.get("configuration"), _configuration_digest(report)))
    if told.get("requests") is not None:
        facts.append(("digests.requests", told.get("requests"), known["requests"]))
    else:
        tally.skip("the report was written without its lines, and has no digest of them", ("run-digest",))
    if isinstance(checked, Mapping):
        facts.append(("certificate.run.ledger_digest", checked.get("ledger_digest"), told.get("ledger")))
        facts.append(("certificate.run.requests_digest", checked.get("requests_digest"), known["requests"]))
        facts.append(("certificate.run.verdict", checked.get("verdict"), PASSED))
    for field, found, wanted in facts:
        _digest_fact(tally, field, found, wanted)


def _digest_fact(tally: Tally, field: str, found: Any, wanted: Any) -> None:
    what = field.rpartition(".")[2].removesuffix("_digest")
    messages = {
        "requests": "the lines are not those of the report",
        "verdict": "the run did not pass when it was written",
        "ledger": "the certificate is of another run",
    }
    tally.fact(
        "run-digest",
        found == wanted,
        lambda: finding(
            "run-digest",
            messages.get(what, f"the {what} is not the one that the report was made with"),
            where=Where(file=tally.report_file, field=field),
            found=found,
            wanted=str(wanted),
        ),
    )


def _configuration_digest(report: Mapping[str, Any]) -> str:
    """Return the BLAKE3 of deployment and load, labels left out, as compact JSON with sorted keys."""
    deployment = report.get("deployment")
    deployed = (
        {name: value for name, value in deployment.items() if name not in LABELS}
        if isinstance(deployment, dict)
        else {}
    )
    resolved = {"deployment": deployed, "load": report.get("load")}
    try:
        return blake3(msgspec.json.encode(resolved, order="deterministic")).hexdigest()
    except OverflowError:  # a number that no setting can be
        return "none"
