"""Reference results that have no test of their own: large cases of every topology, and the engine's own scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import references

# Blocks of one age are evicted in another order; see docs/differences.md.
OF_ONE_AGE = ["agent-g2-shared-evict-002"]
LARGE = (
    *("agg-vllm-1-40000-poly", "agg-vllm-1-5000-g2", "agg-vllm-1-8000", "agg-vllm-4-4000"),
    *("pd-vllm-1-40000-poly", "pd-vllm-1-40000", "pd-vllm-1-5000-g2", "pd-vllm-2-5000"),
)


@pytest.fixture(scope="module")
def large_trace(reference_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return references.unpacked(reference_dir / "scale" / "w40", tmp_path_factory.mktemp("w40"))


@pytest.mark.parametrize("name", LARGE)
def test_a_large_case_of_every_topology(reference_dir: Path, large_trace: Path, name: str) -> None:
    outcome = references.compare_large(reference_dir / "scale" / "w40" / f"{name}.yaml", large_trace)
    assert outcome.requests == 1451
    if name == "pd-vllm-2-5000":
        # A prefill ends exactly at a decode boundary, which the peer's float sums miss by 1e-12 ms: ours is right.
        assert len(outcome.differences) == 8
        assert len({found.split()[0] for found in outcome.differences}) == 2
    else:
        assert outcome.differences == []


def test_rows_that_share_their_timestamps_go_in_the_order_of_the_file(reference_dir: Path) -> None:
    (outcome,) = references.compare_folder(reference_dir / "scale" / "mooncake3000", only="vllm")
    assert (outcome.requests, outcome.differences) == (3000, [])


def test_ordinary_traces_host_memory_of_several_workers_and_speculation(reference_dir: Path) -> None:
    outcomes = list(references.compare_folder(reference_dir / "ordinary"))
    compared = [outcome for outcome in outcomes if not outcome.peer]
    assert len(compared) == 75
    assert [each.name for each in compared if each.differences] == OF_ONE_AGE


def test_every_request_ends_where_the_peer_gave_up(reference_dir: Path) -> None:
    folders = [case for case in (reference_dir / "ordinary").iterdir() if (case / "expected.json").exists()]
    gave_up = [case for case in folders if json.loads((case / "expected.json").read_text())["status"] != "ok"]
    assert len(gave_up) == 4
    for case in gave_up:
        assert references.ends(case), case.name


@pytest.mark.parametrize("file", sorted(references.OPTIONS))
def test_the_engines_own_scheduler(reference_dir: Path, file: str) -> None:
    outcomes = list(references.compare_folder(reference_dir / "vllm_scheduler", file))
    compared = [outcome for outcome in outcomes if not outcome.peer]
    assert len(compared) == (39 if file == "expected.json" else 38)
    assert {each.name: each.differences[:3] for each in compared if each.differences} == {}


@pytest.mark.parametrize("file", sorted(set(references.OPTIONS) - {"expected.json"}))
def test_each_option_shows(reference_dir: Path, file: str) -> None:
    """Without its option a result is not reached: the comparison can fail, and the option does something."""
    different = 0
    for case in sorted((reference_dir / "vllm_scheduler").glob("case-0*")):
        expected, option = case / "expected.json", case / file
        if option.exists() and "requests" in json.loads(option.read_text()):
            tokens = [
                {name: entry["last_token_ms"] for name, entry in json.loads(path.read_text())["requests"].items()}
                for path in (expected, option)
            ]
            different += tokens[0] != tokens[1]
    assert different >= (1 if file == "answers.json" else 5)


def test_the_comparison_sees_a_difference(reference_dir: Path) -> None:
    case = reference_dir / "vllm_scheduler" / "case-005"
    assert references.compare_engine(case, "answers.json").differences == []
    wrong = {**references.OPTIONS, "answers.json": ()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(references, "OPTIONS", wrong)
        assert references.compare_engine(case, "answers.json").differences
