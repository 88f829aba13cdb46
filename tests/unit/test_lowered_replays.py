"""Every format: what `playproof lower` writes replays to the same ledger as the direct input."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playproof_lowering.formats import FORMATS
from playproof_spec.certificate import ProvenGraph

import playproof as pp
from playproof.cli import main

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
NAMES = sorted(path.name for path in GOLDENS.glob("lower-*"))


def loads(direct: ProvenGraph) -> list[tuple[pp.Load, pp.Load]]:
    """Return loads of a trace, each with the one that means the same to its canonical form, which is an agentic one."""
    if direct.graph.facts.get("input_kind") != "ordinary":
        return [(load, load) for load in (pp.Load(), pp.Load(lanes=2))]
    allowed = direct.graph.facts.get("ordinary_loads", ["trace_timestamps"])
    assert isinstance(allowed, list)
    slots = [(pp.Load(concurrency=2), pp.Load(lanes=2))]
    return slots + ([(pp.Load(), pp.Load())] if "trace_timestamps" in allowed else [])


def results(trace: ProvenGraph, deployment: pp.Deployment, load: pp.Load) -> bytes:
    report = pp.replay(trace, deployment, load)
    # Only an ordinary trace counts turns.
    lines = [{name: value for name, value in line.items() if name != "turn_index"} for line in report.request_dicts()]
    return msgspec.json.encode([lines, report.to_dict()["digests"]["ledger"]])


def check(folder: Path, deployment: pp.Deployment, *paths: Path, format: str = "auto", **options: Any) -> ProvenGraph:
    """Lower by the command line, read what it wrote, and compare both replays; return the trace as first read."""
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    target = folder / "corpus.v2.jsonl"
    assert main(["lower", *map(str, paths), "--out", str(target), "--format", format, *flags]) == 0
    direct = pp.load(paths, format=format, **options)
    back = pp.load(target)
    assert back.graph.facts["input_format"] == "agentic_mooncake"
    assert back.certificate.graph_digest == direct.certificate.graph_digest
    for load, same in loads(direct):
        assert results(direct, deployment, load) == results(back, deployment, same)
    return direct


def test_there_are_goldens_of_every_format() -> None:
    lowered = {
        json.loads((GOLDENS / name / "expected.jsonl").read_text().splitlines()[0])["source"]["format"]
        for name in NAMES
    }
    assert lowered == set(FORMATS) - {"agentic_mooncake"}


@pytest.mark.parametrize("name", NAMES)
def test_goldens(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    if (GOLDENS / name / "options.json").exists():
        options = json.loads((GOLDENS / name / "options.json").read_bytes())
    trace = next((GOLDENS / name).glob("trace*"))
    timing = pp.FixedTiming(prefill_ms=3, decode_ms=1)
    check(tmp_path, pp.Deployment(blocks=64, block_size=4, timing=timing), trace, **options)


SAMPLES = (
    "claude_code/inline",
    "claude_code/split",
    "claude_code/v1",
    "codex/skills",
    "codex/git-sync",
    "codex/entire-graph",
    "dynamo/derived_codex_skills_family.jsonl.gz",
    "dynamo/derived_weka_0026_contextfree.jsonl",
    "dynamo/derived_weka_0277*",
    "dynamo/derived_weka_0291.jsonl",
    "weka/small",
)


@pytest.mark.corpus
def test_all_public_traces_are_among_the_samples(data_dir: Path) -> None:
    """But for the example of a document, which names a parent that it does not show, and those named below."""
    covered = {path for sample in SAMPLES for path in data_dir.glob(sample)}
    rest = {path for kind in ("claude_code", "codex", "dynamo") for path in (data_dir / kind).iterdir()} - covered
    assert {path.name for path in rest} == {"expected_counts.csv", "doc_example.jsonl"}


@pytest.mark.corpus
@pytest.mark.parametrize("sample", SAMPLES)
def test_public_traces(data_dir: Path, tmp_path: Path, sample: str) -> None:
    check(tmp_path, pp.Deployment(blocks=20_000), *sorted(data_dir.glob(sample)))


@pytest.mark.corpus
@pytest.mark.parametrize("format", ["mooncake", "mooncake-delta"])
def test_the_public_conversation_trace(data_dir: Path, tmp_path: Path, format: str) -> None:
    with lzma.open(data_dir / "mooncake" / "conversation_3000.jsonl.xz") as packed:
        lines = packed.read().splitlines(keepends=True)[:500]
    (tmp_path / "conversation.jsonl").write_bytes(b"".join(lines))
    check(tmp_path, pp.Deployment(blocks=8_000), tmp_path / "conversation.jsonl", format=format)
