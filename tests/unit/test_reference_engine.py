"""`--engine reference`: the executable specification makes the report that the kernel makes, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playproof_native import notices

import playproof as pp
from playproof import by_reference
from playproof.cli import main

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
NAMES = sorted(path.name for path in FOLDER.glob("replay-*"))
CONTROLLED = sorted(path.name for path in FOLDER.glob("controls-*"))
EXAMPLES = FOLDER.parents[1] / "examples"


def without_wall(value: Any) -> Any:
    """Return a report but for what differs from run to run."""
    if isinstance(value, dict):
        return {name: without_wall(each) for name, each in value.items() if name not in ("wall_ms", "wall_time_ms")}
    return [without_wall(each) for each in value] if isinstance(value, list) else value


def written(report: pp.Report, folder: Path) -> tuple[bytes, Any]:
    report.write(folder, per_request=True)
    return (folder / "requests.jsonl").read_bytes(), without_wall(report.to_dict())


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_has_the_lines_and_the_report_of_the_kernel(name: str, tmp_path: Path) -> None:
    runs = [
        written(pp.run(FOLDER / name / "config.yaml", engine=engine), tmp_path / engine)
        for engine in ("kernel", "reference")
    ]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1] == runs[1][1]
    assert runs[0][0].count(b"\n") >= 1


def test_plays_kept_apart_are_so_in_both() -> None:
    trace = pp.load(FOLDER / "replay-prefix-across-plays" / "trace.jsonl")
    found = {
        (engine, scope): pp.replay(
            trace, pp.Deployment(block_size=4, blocks=64), pp.Load(prefix_scope=scope), engine=engine
        ).ledger.admission_reused.tolist()
        for engine in ("kernel", "reference")
        for scope in ("corpus", "play")
    }
    assert found["reference", "corpus"] == found["kernel", "corpus"]
    assert found["reference", "play"] == found["kernel", "play"]
    assert sum(found["kernel", "play"]) < sum(found["kernel", "corpus"])


@pytest.mark.parametrize("name", CONTROLLED)
def test_run_controls_are_refused_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["replay", "--config", str(FOLDER / name / "config.yaml"), "--engine", "reference"])
    told = capsys.readouterr().err
    assert code == 1
    assert "config-unsupported" in told
    assert "snapshot" in told
    assert "Traceback" not in told


def test_the_reference_does_not_replay_online(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(EXAMPLES / "weka"), "--online", "--engine", "reference"]) == 2
    assert "--engine" in capsys.readouterr().err


def test_a_large_trace_is_announced_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playproof.api.REFERENCE_PATIENCE_S", 0.0)
    monkeypatch.setattr(notices, "_said", set())
    said: list[str] = []
    with notices.shown_by(said.append):
        report = pp.run(FOLDER / NAMES[0] / "config.yaml", engine="reference")
    assert said == [by_reference.SLOW_REFERENCE]
    assert report.requests is not None
    assert len(report.requests) >= 1


def test_nobody_imports_the_reference_before_it_is_asked_for() -> None:
    names = "playproof, playproof.api, playproof.cli, playproof_kernel, playproof_lowering"
    script = f"import sys, {names}; sys.exit('playproof_reference' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
