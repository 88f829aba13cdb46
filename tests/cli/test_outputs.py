"""What a replay takes in short, writes and exits with: thresholds, formats, folders of earlier runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = str(EXAMPLES / "deployment.yaml")
PAIR = str(EXAMPLES / "disaggregated.yaml")
BOUNDS = ("--set", "evaluation.sla.ttft_ms=50", "--set", "evaluation.sla.trajectory_ms=40000")


def test_the_screen_says_what_holds_the_bounds(said: Any) -> None:
    code, out, _ = said("replay", "--config", CONFIG, *BOUNDS)
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert any(line.startswith("goodput 46 requests (82.1%), ") for line in shown)
    assert "TTFT ≤ 50.0 ms 46 of 56 (82.1%)" in shown
    assert "trajectory E2E ≤ 40.00 s 4 of 5 (80.0%)" in shown
    assert shown[0].startswith("simulated 2 vLLM workers of 160 × 64 tokens")


@pytest.mark.parametrize(("share", "code"), [("80%", 0), ("0.8", 0), ("80.1%", 3), ("1", 3), ("0%", 0)])
def test_a_threshold_has_an_exit_code_of_its_own(said: Any, share: str, code: int) -> None:
    left, _, err = said("replay", "--config", CONFIG, *BOUNDS, "--fail-under", share)
    assert left == code
    assert ("80.00% holds the bounds" in err) == (code == 3)


@pytest.mark.parametrize("share", ["95", "-1%", "nan", "much", "101%", "50%%"])
def test_a_threshold_is_a_share(said: Any, share: str) -> None:
    code, _, err = said("replay", "--config", CONFIG, *BOUNDS, f"--fail-under={share}")
    assert code == 2
    assert "no share" in err


def test_a_threshold_needs_bounds(said: Any) -> None:
    code, _, err = said("replay", "--config", CONFIG, "--fail-under", "95%")
    assert (code, "evaluation.sla" in err) == (2, True)


def test_notes_of_the_peers_sections_are_told(said: Any, tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text(Path(CONFIG).read_text() + "execution: {resources: {cpu_limit: 4}}\n")
    code, out, _ = said("validate", str(EXAMPLES / "weka"), "--config", str(both))
    assert code == 0
    assert "note config-no-effect: cpu_limit says nothing here" in out
    code, out, _ = said("replay", str(EXAMPLES / "weka"), "--config", str(both), "--json")
    assert (code, json.loads(out)["finding_counts"]["config-no-effect"]) == (0, 1)


def test_short_flags_are_settings(said: Any) -> None:
    _, out, _ = said("replay", "--config", CONFIG, "--json", "--workers", "3", "--blocks", "200", "--lanes", "2")
    report = json.loads(out)
    deployment = report["deployment"]
    assert (deployment["workers"], deployment["blocks"], report["load"]["lanes"]) == (3, 200, 2)
    _, out, _ = said("replay", "--config", PAIR, "--json", "--workers", "2+1", "--blocks", "300+200")
    roles = [json.loads(out)["deployment"][role] for role in ("prefill", "decode")]
    assert [(role["workers"], role["blocks"]) for role in roles] == [(2, 300), (1, 200)]


@pytest.mark.parametrize(
    ("config", "flags", "told"),
    [
        (PAIR, ("--workers", "3"), "PREFILL+DECODE"),
        (CONFIG, ("--blocks", "3+4"), "one number"),
        (CONFIG, ("--lanes", "0"), "lanes"),
    ],
)
def test_short_flags_that_do_not_fit(said: Any, config: str, flags: tuple[str, ...], told: str) -> None:
    code, _, err = said("replay", "--config", config, *flags)
    assert (code, told in err) == (2, True)


def test_a_short_flag_with_a_bad_number_names_its_setting(said: Any) -> None:
    code, _, err = said("replay", "--config", CONFIG, "--workers", "many")
    assert (code, "engine.workers.aggregated.parallelism.replicas" in err) == (1, True)


def test_a_newer_report_lies_beside_no_older_requests(said: Any, tmp_path: Path) -> None:
    said("replay", "--config", CONFIG, "--out", str(tmp_path), "--per-request")
    assert said("replay", "--config", CONFIG, "--out", str(tmp_path), "--per-request", "--format", "csv")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "requests.csv"]
    assert said("replay", "--config", CONFIG, "--out", str(tmp_path))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]
    (tmp_path / "report.json").unlink()
    (tmp_path / "requests.jsonl").write_text("somebody's")
    code, out, err = said("replay", "--config", CONFIG, "--out", str(tmp_path))
    assert (code, out) == (2, "")  # before anything is replayed
    assert "requests.jsonl: lies there" in err
    assert (tmp_path / "requests.jsonl").read_text() == "somebody's"
