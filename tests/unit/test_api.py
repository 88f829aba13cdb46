"""The Python interface: what it raises, and what it passes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import playproof as pp

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = EXAMPLES / "deployment.yaml"


@pytest.mark.parametrize("paths", ["no/such", ["examples", "no/such"], [], Path("no/such")])
def test_a_trace_that_is_not_there(paths: str | list[str] | Path) -> None:
    with pytest.raises(FileNotFoundError):
        pp.load(paths)


def test_an_invalid_trace_carries_every_finding(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lines = (EXAMPLES / "broken" / "deadlock.jsonl").read_text().replace('"not_before_ms": 0.0', '"not_befor_ms": 0.0')
    trace.write_text(lines)
    with pytest.raises(pp.InvalidTrace) as caught:
        pp.load(trace)
    assert caught.value.findings.errors >= 2
    assert caught.value.findings.warnings == 1


def test_validate_returns_instead_of_raising() -> None:
    refused = pp.validate(EXAMPLES / "broken" / "deadlock.jsonl")
    assert (refused.ok, refused.proven, refused.certificate) == (False, None, None)
    assert refused.graph is not None
    assert refused.graph.node_count == 4
    proven = pp.validate([EXAMPLES / "weka"])
    assert proven.ok
    assert proven.certificate is not None
    assert all(obligation.verdict == "proven" for obligation in proven.certificate.obligations)


def test_run_takes_settings_and_paths_over_the_file() -> None:
    report = pp.run(CONFIG, overrides=["traffic.load.agentic_lanes=1"], per_request=False)
    assert report.load.lanes == 1
    assert report.requests is None
    one = pp.run(CONFIG, paths=EXAMPLES / "weka" / "fix-a-bug.json")
    assert one.trajectories.total == 1
    again = pp.run(pp.read_configuration(CONFIG), paths=str(EXAMPLES / "weka" / "fix-a-bug.json"))
    assert again.to_dict()["digests"] == one.to_dict()["digests"]


def test_run_is_load_and_replay() -> None:
    configuration = pp.read_configuration(CONFIG)
    by_hand = pp.replay(pp.load(EXAMPLES / "weka"), configuration.deployment, configuration.load)
    assert by_hand.to_dict()["digests"] == pp.run(CONFIG).to_dict()["digests"]


def test_progress_is_told_in_requests() -> None:
    told: list[tuple[int, int]] = []
    pp.replay(pp.load(EXAMPLES / "weka"), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert {total for _, total in told} == {56}
    assert all(0 <= done <= 56 for done, _ in told)


@pytest.mark.parametrize("option", [{"format": "weka"}, {"block_size": 16}])
def test_reading_options_reach_the_reader(option: dict[str, object]) -> None:
    with pytest.raises(pp.InvalidTrace):
        pp.load(EXAMPLES / "v2" / "corpus.jsonl", **option)  # type: ignore[arg-type]


def test_readings_of_weka_are_taken() -> None:
    completion = pp.load(EXAMPLES / "weka", subagent_marker="completion", nested_timestamp_basis="relative")
    spawn = pp.load(EXAMPLES / "weka", subagent_marker="spawn")
    assert completion.certificate.graph_digest == pp.load(EXAMPLES / "weka").certificate.graph_digest
    assert completion.certificate.graph_digest != spawn.certificate.graph_digest
