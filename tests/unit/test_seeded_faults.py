"""The checker finds each seeded fault by the rule that is about it, and passes the runs that they were seeded in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from honest_runs import KINDS, honest
from seeded_faults import FAULTS, Change, Fault, plus, put, to

import playproof as pp
from playproof.checking import RULES

V2 = Path(__file__).resolve().parents[2] / "examples" / "v2" / "corpus.jsonl"


@pytest.mark.parametrize("kind", KINDS)
def test_honest_runs_pass(kind: str) -> None:
    verdict = honest(kind).check()
    assert [str(item) for item in verdict.findings.items] == []
    assert verdict.facts > 300


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_seeded_fault_is_found(fault: Fault) -> None:
    run = honest(fault.kind).altered()
    fault.alter(run)
    verdict = run.check()
    assert fault.rule in [rule.code for rule in verdict.rules if rule.broken]
    named = next(item for item in verdict.findings.items if item.code == fault.rule)
    assert named.where is not None
    assert named.where.file in ("requests.jsonl", "report.json")


# A run as files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Any:
    return pp.load(V2)


@pytest.fixture(scope="module")
def written(trace: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's files, with the checker's verdict in the certificate."""
    folder = tmp_path_factory.mktemp("run")
    report = pp.replay(trace, pp.Deployment(workers=2), pp.Load(lanes=2))
    assert report.check().ok
    report.write(folder, per_request=True)
    return folder


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    """A copy that may be altered."""
    return Path(shutil.copytree(written, tmp_path / "run"))


def in_report(path: str, change: Change) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        file = folder / "report.json"
        report = json.loads(file.read_text())
        put(report, path, change)
        file.write_text(json.dumps(report))

    return alter


def in_lines(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        file = folder / "requests.jsonl"
        before = file.read_bytes()
        file.write_bytes(change(before))
        assert file.read_bytes() != before

    return alter


another = Change("reversed", lambda digest: digest[::-1])


FILE_FAULTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no lines": ("run-file", lambda folder: (folder / "requests.jsonl").unlink()),
    "an empty report": ("run-file", lambda folder: (folder / "report.json").write_bytes(b"")),
    "a report cut in the middle": (
        "run-file",
        lambda folder: (folder / "report.json").write_bytes((folder / "report.json").read_bytes()[:5000]),
    ),
    "another schema": ("run-file", in_report("schema", to("playproof.report.v0"))),
    "another input": ("run-digest", in_report("digests.input", another)),
    "another graph": ("run-digest", in_report("digests.graph", another)),
    "another law": ("run-digest", in_report("digests.tables", another)),
    "a certificate of another graph": ("run-digest", in_report("certificate.graph_digest", another)),
    "a certificate under another law": ("run-digest", in_report("certificate.tables_digest", another)),
    "a graph replayed otherwise": ("run-digest", in_report("agentic_graph.graph_digest", another)),
    "another deployment": ("run-digest", in_report("deployment.max_batched_tokens", plus(1))),
    "another load": ("run-digest", in_report("load.prefix_scope", to("play"))),
    "other lines": ("run-digest", in_report("digests.requests", another)),
    "lines with a blank": ("run-digest", in_lines(lambda data: data.replace(b'":', b'": ', 1))),
    "a certificate of another run": ("run-digest", in_report("certificate.run.ledger_digest", another)),
    "a certificate of other lines": ("run-digest", in_report("certificate.run.requests_digest", another)),
    "a run that did not pass": ("run-digest", in_report("certificate.run.verdict", to("violated"))),
}


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_of_files_is_found(name: str, run: Path, trace: Any) -> None:
    rule, alter = FILE_FAULTS[name]
    assert pp.check(run, trace).ok
    alter(run)
    verdict = pp.check(run, trace)
    assert rule in [each.code for each in verdict.rules if each.broken]


def test_every_rule_has_a_seeded_fault() -> None:
    """A new rule needs a fault that breaks it, and every rule that is named is there."""
    seeded = {fault.rule for fault in FAULTS} | {rule for rule, _ in FILE_FAULTS.values()}
    assert sorted(seeded) == sorted(RULES)
    assert len(FAULTS) + len(FILE_FAULTS) >= 30


def test_faults_have_names_of_their_own() -> None:
    names = [str(fault) for fault in FAULTS]
    assert len(names) == len(set(names))


# Online -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lateness_ms", "broken"), [(0.0, 1), (2.0, 1), (3.0, 0), (None, 0)])
def test_how_late_a_request_was_that_was_given_up_before_it_was_sent(lateness_ms: float | None, broken: int) -> None:
    """A start 3 ms late is explained by its own lateness; of one that was given up unsent there is none to compare."""
    run = honest("online").altered()
    line = run.by_name("p3b")
    line["dispatched_at_ms"] = line["arrival_time_ms"] = line["dispatched_at_ms"] + 3.0
    line |= {"dispatch_lateness_ms": lateness_ms, "terminal_status": "canceled", "cause": "given up", "endpoint": None}
    assert run.check().rule("run-late").broken == broken
