"""Every format: what `playproof lower` writes replays to the same ledger as the direct input."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playproof_lowering import write_v2
from playproof_spec.certificate import ProvenGraph

import playproof as pp

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
FORMATS = ("claude", "codex", "dynamo", "mooncake", "applied")
NAMES = sorted(path.name for kind in FORMATS for path in GOLDENS.glob(f"lower-{kind}*"))


def results(trace: ProvenGraph, deployment: pp.Deployment, load: pp.Load) -> bytes:
    report = pp.replay(trace, deployment, load)
    return msgspec.json.encode([list(report.request_dicts()), report.to_dict()["digests"]["ledger"]])


def check(direct: ProvenGraph, folder: Path, deployment: pp.Deployment) -> None:
    write_v2(direct.graph, folder / "corpus.v2.jsonl")
    back = pp.load(folder / "corpus.v2.jsonl")
    assert back.certificate.graph_digest == direct.certificate.graph_digest
    for load in (pp.Load(), pp.Load(lanes=2)):
        assert results(direct, deployment, load) == results(back, deployment, load)


def test_there_are_goldens_of_every_format() -> None:
    assert {name.split("-")[1] for name in NAMES} == set(FORMATS)


@pytest.mark.parametrize("name", NAMES)
def test_goldens(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    if (GOLDENS / name / "options.json").exists():
        options = json.loads((GOLDENS / name / "options.json").read_bytes())
    direct = pp.load(next((GOLDENS / name).glob("trace*")), **options)
    check(direct, tmp_path, pp.Deployment(blocks=64, block_size=4, timing=pp.FixedTiming(prefill_ms=3, decode_ms=1)))


@pytest.mark.corpus
@pytest.mark.parametrize(
    "folder", ["claude_code/split", "codex/skills", "codex/git-sync", "dynamo/derived_weka_0291.jsonl"]
)
def test_public_traces(data_dir: Path, tmp_path: Path, folder: str) -> None:
    check(pp.load(data_dir / folder), tmp_path, pp.Deployment(blocks=8_000))


@pytest.mark.corpus
def test_the_public_conversation_trace(data_dir: Path, tmp_path: Path) -> None:
    with lzma.open(data_dir / "mooncake" / "conversation_3000.jsonl.xz") as packed:
        lines = packed.read().splitlines(keepends=True)[:500]
    (tmp_path / "conversation.jsonl").write_bytes(b"".join(lines))
    check(pp.load(tmp_path / "conversation.jsonl"), tmp_path, pp.Deployment(blocks=8_000))
