"""Large replays of the peer on SGLang workers under the peer's rules, every request to the microsecond.

Small cases did not show that a prompt is cut to what is left of the chunk: only where many prompts come at once is
anything left of it to cut to.
"""

from __future__ import annotations

import csv
import io
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
from peer import as_the_peer

import playproof as pp

EXACT = ("terminal_status", "output_length", "readmission_count", "prefill_worker_idx", "decode_worker_idx")
TIMES_MS = ("dispatched_at_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms")
MICROSECOND_MS = 0.001


def read_expected(path: Path) -> dict[str, dict[str, str]]:
    text = lzma.decompress(path.read_bytes()).decode()
    return {row["request_id"]: row for row in csv.DictReader(io.StringIO(text))}


def replay(folder: Path, name: str, target: Path) -> dict[str, dict[str, Any]]:
    """Replay case `name` of `folder` and return our records by id."""
    (target / "trace.jsonl").write_bytes(lzma.decompress((folder / "trace.jsonl.xz").read_bytes()))
    shutil.copy(folder / f"{name}.yaml", target / "config.yaml")
    configuration = as_the_peer(target / "config.yaml")
    return {record["request_id"]: record for record in pp.run(configuration).request_dicts()}


def differences(ours: dict[str, Any], theirs: dict[str, str]) -> list[str]:
    """Return what differs between our record of a request and the peer's row of it."""
    found = []
    for name in EXACT:
        if str("" if ours[name] is None else ours[name]) != theirs[name]:
            found.append(f"{name}: {ours[name]} != {theirs[name]}")
    for name in TIMES_MS:
        mine, other = ours[name], theirs[name]
        if (mine is None) != (other == "") or (mine is not None and abs(mine - float(other)) > MICROSECOND_MS):
            found.append(f"{name}: {mine} != {other}")
    return found


TOPOLOGIES = (
    "agg-sglang-1-40000",
    "pd-sglang-1-40000",
    "agg-sglang-1-40000-poly",
    "agg-sglang-1-400000-page1",
    "agg-sglang-2-5000",
    "pd-sglang-2-6000",
)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_request_equals_the_peers(reference_dir: Path, tmp_path: Path, name: str) -> None:
    folder = reference_dir / "scale" / "w40"
    expected, ours = read_expected(folder / f"{name}.csv.xz"), replay(folder, name, tmp_path)
    assert ours.keys() == expected.keys()
    assert len(ours) > 1000
    found = {node: differences(ours[node], row) for node, row in expected.items()}
    assert not {node: words for node, words in found.items() if words}
