"""Direct and materialized input give byte-equal results (invariant 10): what `lower` writes replays the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from playproof_lowering import write_v2
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.deployment import LoadSpec
from playproof_spec.graph import Graph
from strategies import graphs, loads

import playproof as pp

# Small enough a pool that plays evict each other's blocks, so that the order of everything shows.
TIGHT = pp.Deployment(workers=2, blocks=4096, timing=pp.FixedTiming(prefill_ms=40, decode_ms=12))
ROOMY = pp.Deployment(blocks=16_000, timing=pp.PolynomialTiming())


def results(trace: ProvenGraph, deployment: pp.Deployment, load: pp.Load) -> bytes:
    """Return the lines of requests.jsonl and the ledger's digest, as bytes."""
    report = pp.replay(trace, deployment, load)
    return msgspec.json.encode([list(report.request_dicts()), report.to_dict()["digests"]["ledger"]])


def materialized(trace: ProvenGraph, folder: Path) -> ProvenGraph:
    path = folder / "corpus.jsonl"
    write_v2(trace.graph, path)
    return pp.load(path)


def check_equal(direct: ProvenGraph, back: ProvenGraph, deployment: pp.Deployment, load: pp.Load) -> None:
    assert direct.certificate.graph_digest == back.certificate.graph_digest
    assert results(direct, deployment, load) == results(back, deployment, load)


@pytest.mark.unwatched
@pytest.mark.parametrize("load", [pp.Load(), pp.Load(lanes=3)], ids=["recorded times", "lanes"])
def test_public_weka_files(data_dir: Path, tmp_path: Path, load: pp.Load) -> None:
    direct = pp.load(data_dir / "weka" / "small")
    back = materialized(direct, tmp_path)
    for deployment in (TIGHT, ROOMY):
        check_equal(direct, back, deployment, load)


@given(graph=graphs(max_plays=5), load=loads)
def test_random_graphs(graph: Graph, load: LoadSpec) -> None:
    direct = prove(graph)
    with tempfile.TemporaryDirectory() as folder:
        back = materialized(direct, Path(folder))
    deployment = pp.Deployment(workers=2, blocks=40, block_size=4, timing=pp.FixedTiming(prefill_ms=3, decode_ms=1))
    check_equal(direct, back, deployment, pp.Load(lanes=load.lanes, speedup=load.speedup))
