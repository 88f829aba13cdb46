"""Plays of the public Weka corpus on several workers with host memory, their own and shared, under forced eviction."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from playproof_spec.certificate import ProvenGraph

import playproof as pp

ARCHIVE = "kv-cache-tester-710traces.tar.xz"
PLAYS, LANES = 48, 16
SHAPES = [*((count, False) for count in (1, 2, 4, 8)), (2, True), (4, True)]
SCOPES = ("dp_rank_local", "cluster_shared")


@pytest.fixture(scope="module")
def plays(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ProvenGraph:
    archive = data_dir / "weka" / ARCHIVE
    if not archive.exists():
        pytest.skip(f"the public corpus is not at {archive}")
    folder = tmp_path_factory.mktemp("plays")
    with tarfile.open(archive) as packed:
        # Python 3.11.0 to 3.11.3 know no filters.
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        taken = 0
        for member in packed:
            if member.name.endswith(".json") and taken < PLAYS:
                packed.extract(member, folder, **options)
                taken += 1
    return pp.load(folder)


def deployment(trace: ProvenGraph, workers: int, pair: bool, scope: Any) -> pp.Deployment | pp.Disaggregated:
    """Return workers whose device memory holds little more than the longest request."""
    graph = trace.graph
    longest = int((graph.input_length + graph.output_length).max())
    sharers = workers * (2 if pair else 1) if scope == "cluster_shared" else 1
    host = pp.HostOffload(num_host_blocks=16_384 * sharers, bytes_per_token=98_304, scope=scope)
    role: dict[str, Any] = {"workers": workers, "blocks": longest // 64 + 64, "host_offload": host}
    if not pair:
        return pp.Deployment(**role)
    transfer = pp.Transfer(bytes_per_token=98_304, bandwidth_gb_per_second=50.0)
    return pp.Disaggregated(prefill=pp.PrefillRole(**role), decode=pp.DecodeRole(**role), transfer=transfer)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("workers", "pair"), SHAPES)
def test_every_deployment_restores_from_the_host_with_all_of_its_workers(
    plays: ProvenGraph, workers: int, pair: bool, scope: str
) -> None:
    report = pp.replay(plays, deployment(plays, workers, pair, scope), pp.Load(lanes=LANES), per_request=False)
    figures = report.to_dict()
    assert figures["completed_trajectories"] == figures["total_trajectories"] == len(plays.graph.plays)
    assert figures["evicted_blocks"] > 0
    roles = ("prefill", "decode") if pair else ("aggregated",)
    pools = figures["host_pools"]
    assert len(pools) == (1 if scope == "cluster_shared" else workers * len(roles))
    assert sum(pool["loads"] for pool in pools) > 0
    assert sum(pool["loaded_bytes"] for pool in pools) > 0
    used = [worker for pool in pools for worker in pool["workers"]]
    for role in roles:
        # A decode worker is given its prompts; it looks up only what it pushed out.
        of_role = [worker for worker in used if worker["role"] == role]
        assert len(of_role) == workers
        if role != "decode":
            assert all(worker["stores"] > 0 and worker["lookups"] > 0 for worker in of_role)
        elif scope == "dp_rank_local":
            assert all(worker["stores"] > 0 for worker in of_role)
    for role, work in figures["roles"].items():
        assert all(each["forward_passes"] > 0 for each in work["each"]), role
