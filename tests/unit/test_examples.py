"""The bundled corpus: made by its script byte for byte, and one ledger whichever form is replayed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import playproof as pp
from playproof.report import ledger_digest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(
    path.relative_to(EXAMPLES).as_posix()
    for folder in ("weka", "v2", "broken")
    for path in (EXAMPLES / folder).iterdir()
)


def test_the_script_makes_the_files_again(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLES / "make_corpus.py"), "--out", str(tmp_path)]
    subprocess.run(script, check=True, cwd=tmp_path)
    made = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert made == FILES
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes(), name


@pytest.mark.parametrize("load", [pp.Load(), pp.Load(lanes=2), pp.Load(lanes=8, speedup=2.0)])
def test_both_forms_give_one_ledger(load: pp.Load) -> None:
    direct, materialized = pp.load(EXAMPLES / "weka"), pp.load(EXAMPLES / "v2" / "corpus.jsonl")
    assert direct.certificate.graph_digest == materialized.certificate.graph_digest
    deployment = pp.read_configuration(EXAMPLES / "deployment.yaml").deployment
    ledgers = [pp.replay(trace, deployment, load).ledger for trace in (direct, materialized)]
    assert ledger_digest(ledgers[0]) == ledger_digest(ledgers[1])


def test_the_corpus_shows_what_it_promises() -> None:
    trace = pp.load(EXAMPLES / "weka")
    facts = trace.graph.facts
    assert (facts["weka_subagent_marker"], facts["weka_nested_timestamp_basis"]) == ("completion", "relative")
    assert [item for item in trace.findings if item.severity.value == "warning"] == []
    report = pp.run(EXAMPLES / "deployment.yaml")
    assert report.trajectories.completed == report.trajectories.total == 5
    assert report.to_dict()["evicted_blocks"] > 0


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_the_corpus_completes_on_the_pair(backend: str) -> None:
    report = pp.run(EXAMPLES / "disaggregated.yaml", overrides=[f"engine.backend={backend}"])
    assert report.trajectories.completed == report.trajectories.total == 5
    roles = report.to_dict()["roles"]
    assert roles["prefill"]["forward_passes"] >= 56
    assert roles["prefill"]["decode_tokens"] == 0
    assert roles["decode"]["decode_tokens"] == report.to_dict()["total_output_tokens"]


@pytest.mark.parametrize(
    ("name", "codes"),
    [("deadlock.jsonl", {"cycle", "edge-dangling"}), ("careless-export.json", {"field-type", "field-unknown"})],
)
def test_the_broken_ones_are_broken_as_told(name: str, codes: set[str]) -> None:
    with pytest.raises(pp.InvalidTrace) as caught:
        pp.load(EXAMPLES / "broken" / name)
    assert codes <= set(caught.value.findings.counts)


def test_every_configuration_of_the_examples_is_read() -> None:
    files = sorted(EXAMPLES.glob("*.yaml"))
    assert [file.name for file in files] == ["deployment.yaml", "disaggregated.yaml"]
    for file in files:
        assert pp.read_configuration(file).paths == (EXAMPLES / "weka",)
