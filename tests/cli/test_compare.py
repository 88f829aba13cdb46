"""`playproof compare`: what it prints, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = str(EXAMPLES / "deployment.yaml")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    from playproof.cli import main

    folder = tmp_path_factory.mktemp("runs")
    paths = str(folder / "wide"), str(folder / "narrow")
    for path, blocks in zip(paths, ("160", "80"), strict=True):
        given = ["--config", CONFIG, "--blocks", blocks, "--set", "engine.context_length=max", "--out", path]
        assert main(["replay", *given, "--per-request"]) == 0
    return paths


def test_the_text_names_setting_cause_and_movers(said: Any, runs: tuple[str, str]) -> None:
    code, out, err = said("compare", *runs, "--most", "2")
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert "deployment.blocks 160 80" in shown
    assert "less memory: deployment.blocks 160 → 80" in shown
    assert "requests: 9 found fewer tokens in cache" in shown
    assert any(line.startswith("fix-a-bug:outer:5 671.0 ms 723.0 ms +52.0 ms recomputed") for line in shown)
    assert "p95_ttft_ms 60.00 80.00 +20.00 +33.3%" in shown
    assert any(line.endswith("figures are equal") for line in shown)
    assert "completed_requests 56 56 0 0.0%" not in shown
    assert "completed_requests 56 56 0 0.0%" in " ".join(said("compare", *runs, "--all")[1].split())


def test_json_and_markdown_hold_the_same(said: Any, runs: tuple[str, str]) -> None:
    code, out, _ = said("compare", *runs, "--output", "json", "--max-regression", "p95_ttft=50%")
    document = json.loads(out)
    assert (code, document["schema"], document["regressions"]) == (0, "playproof.comparison.v1", [])
    (change,) = document["changes"]
    assert [cause["code"] for cause in change["causes"]] == ["memory"]
    assert change["requests"][0]["change_ms"] == 52.0
    (figure,) = (figure for figure in document["figures"] if figure["name"] == "p95_ttft_ms")
    assert (figure["values"], figure["absolute"], figure["relative"]) == ([60.0, 80.0], [20.0], [pytest.approx(1 / 3)])
    code, out, _ = said("compare", *runs, "--output", "markdown")
    assert code == 0
    assert "| p95\\_ttft\\_ms | 60.00 | 80.00 | +20.00 | +33.3% |" in out
    for line in out.splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_a_regression_has_an_exit_code_of_its_own(said: Any, runs: tuple[str, str]) -> None:
    code, out, err = said("compare", *runs, "--max-regression", "p95_ttft=5%", "--max-regression", "p50_ttft=5%")
    assert code == 3
    assert out
    assert err.strip() == f"regression: {runs[1]}: p95_ttft_ms is 80.00, was 60.00; at most 63.00 was allowed"
    code, out, err = said("compare", *runs, "--output", "json", "--max-regression", "p95_ttft=19")
    assert (code, json.loads(out)["regressions"][0]["worst"]) == (3, 79.0)
    assert said("compare", *runs, "--max-regression", "p95_ttft=20")[0] == 0
    # What became better is no regression.
    assert said("compare", *runs[::-1], "--max-regression", "p95_ttft=0%")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "two runs"),
        (("{1}", "--max-regression", "p95_ttft"), "no bound"),
        (("{1}", "--max-regression", "p95_tfft=1%"), "near"),
    ],
)
def test_usage(said: Any, runs: tuple[str, str], arguments: tuple[str, ...], told: str) -> None:
    code, _, err = said("compare", runs[0], *(argument.replace("{1}", runs[1]) for argument in arguments))
    assert (code, told in err) == (2, True)


def test_what_is_no_run(said: Any, runs: tuple[str, str], tmp_path: Path) -> None:
    assert said("compare", runs[0], str(tmp_path / "nowhere"))[0] == 2
    (tmp_path / "report.json").write_text('{"schema": "\\u001b[2J"}')
    code, out, err = said("compare", runs[0], str(tmp_path))
    assert (code, out) == (1, "")
    assert "error run-file" in err
    assert "\x1b[2J" not in err


def test_names_from_foreign_files_are_escaped(said: Any, runs: tuple[str, str], tmp_path: Path) -> None:
    report = json.loads((Path(runs[1]) / "report.json").read_text())
    report["deployment"]["reuse_output"] = "\x1b[2J|**x**"
    report["digests"]["requests"] = None
    (tmp_path / "report.json").write_text(json.dumps(report))
    for view in ("text", "json", "markdown"):
        code, out, _ = said("compare", runs[0], str(tmp_path), "--output", view)
        assert (code, "\x1b[2J" in out) == (0, False)
    assert "\\|\\*\\*x\\*\\*" in out
