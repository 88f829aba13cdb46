"""The commands: what each prints, writes and returns."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import playproof_kernel
import pytest
from playproof_lowering.formats import FORMATS
from playproof_spec.catalogue import CATALOGUE
from playproof_spec.machines import MACHINES
from rich.console import Console

from playproof import cli
from playproof.api import load
from playproof.report import Report
from playproof.sarif import SARIF_VERSION

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WEKA = str(EXAMPLES / "weka")
V2 = str(EXAMPLES / "v2" / "corpus.jsonl")
CONFIG = str(EXAMPLES / "deployment.yaml")
PAIR = str(EXAMPLES / "disaggregated.yaml")
DEADLOCK = str(EXAMPLES / "broken" / "deadlock.jsonl")


# validate -----------------------------------------------------------------------------------------------------------


def test_every_format_can_be_named() -> None:
    for name in ("auto", *FORMATS):
        assert get_args(cli.FormatOption)[1].callback(name) == name


def test_a_format_that_nobody_reads_is_refused_with_the_list(said: Any) -> None:
    code, _, err = said("validate", WEKA, "--format", "wekka")
    assert code == 2
    assert all(name in err for name in ("wekka", "auto", *FORMATS))


def test_the_help_lists_every_format(said: Any) -> None:
    _, out, err = said("validate", "--help")
    shown = "".join(char for char in out + err if char.isalnum() or char in "_-")
    assert all(name in shown for name in FORMATS)


def test_validate_prints_evidence_and_certificate(said: Any) -> None:
    code, out, err = said("validate", WEKA)
    assert (code, err) == (0, "")
    assert "5 plays, 56 requests" in out
    assert "weka subagent marker: completion" in out
    assert "weka subagent marker evidence" in out
    for obligation in ("G1", "G2", "G3", "G4", "G5"):
        assert f"  {obligation} " in out


def test_validate_groups_findings(said: Any) -> None:
    code, out, _ = said("validate", DEADLOCK)
    assert code == 1
    assert out.count("error cycle") == 1
    assert f"{DEADLOCK}:3" in out
    assert "why: " in out
    assert "way out: " in out
    assert "not proven: 2 errors, 0 warnings" in out


def test_validate_bounds_what_it_prints_and_counts_the_rest(said: Any, tmp_path: Path) -> None:
    lines = Path(DEADLOCK).read_text().splitlines()
    rows = [json.loads(lines[-1]) | {"request_id": f"r{number}"} for number in range(300)]
    trace = tmp_path / "many.jsonl"
    trace.write_text("\n".join([lines[0], *map(json.dumps, rows)]) + "\n")
    code, out, _ = said("validate", str(trace))
    assert code == 1
    assert "edge-dangling ×600" in out
    assert "… and 595 more" in out
    assert len(out.splitlines()) < 60


def test_validate_as_json(said: Any) -> None:
    code, out, _ = said("validate", WEKA, "--output", "json")
    document = json.loads(out)
    assert code == 0
    assert (document["proven"], document["plays"], document["requests"]) == (True, 5, 56)
    assert document["certificate"]["graph_digest"] == load(WEKA).certificate.graph_digest
    code, out, _ = said("validate", DEADLOCK, "--output", "json")
    document = json.loads(out)
    assert (code, document["proven"], document["certificate"]) == (1, False, None)
    assert document["counts"]["cycle"] == 1


def test_validate_as_sarif(said: Any) -> None:
    code, out, _ = said("validate", DEADLOCK, "--output", "sarif")
    assert code == 1
    log = json.loads(out)
    assert log["version"] == SARIF_VERSION == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CATALOGUE)
    for rule in rules:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
        assert not rule["fullDescription"]["text"].endswith("..")
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
    assert run["results"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning", "note"}
        assert result["message"]["text"]
    (cycle,) = (result for result in run["results"] if result["ruleId"] == "cycle")
    (location,) = cycle["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("examples/broken/deadlock.jsonl")
    assert location["physicalLocation"]["region"] == {"startLine": 3}
    assert {"fullyQualifiedName": "child"} in location["logicalLocations"]


def test_validate_takes_the_readings_that_its_findings_name(said: Any) -> None:
    assert "weka subagent marker: spawn" in said("validate", WEKA, "--subagent-marker", "spawn")[1]
    code, out, _ = said("validate", WEKA, "--nested-timestamp-basis", "absolute")
    assert code == 1
    assert "nested-before-marker" in out
    code, out, _ = said("validate", WEKA, "--block-size", "32")
    assert code == 1
    assert "block-size-mismatch" in out


def test_sarif_quotes_paths(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a b#c.jsonl").write_bytes(b"")
    code, out, _ = said("validate", "a b#c.jsonl", "--output", "sarif")
    assert code == 1
    (result,) = json.loads(out)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b%23c.jsonl"


def test_validate_with_a_deployment_warns_of_what_never_fits(said: Any, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(Path(CONFIG).read_text().replace("blocks: 160", "blocks: 60"))
    code, out, _ = said("validate", WEKA, "--config", str(config))
    assert code == 0
    assert "warning request-never-fits" in out
    assert "at most 60 blocks of 64 tokens" in out
    assert said("validate", WEKA, "--config", CONFIG)[1].count("request-never-fits") == 0


def test_validate_with_a_pair_names_the_role_that_lacks_room(said: Any, tmp_path: Path) -> None:
    assert said("validate", WEKA, "--config", PAIR)[1].count("request-never-fits") == 0
    config = tmp_path / "small.yaml"
    config.write_text(Path(PAIR).read_text().replace("blocks: 160", "blocks: 60"))
    code, out, _ = said("validate", WEKA, "--config", str(config))
    assert code == 0
    assert "at most 60 blocks of 64 tokens in the pool of a decode worker" in out
    assert "the handoff of the request fails" in out


# replay -------------------------------------------------------------------------------------------------------------


def test_replay_writes_what_it_prints(said: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    code, out, err = said("replay", WEKA, "--config", CONFIG, "--out", str(folder), "--per-request")
    assert (code, err) == (0, "")
    report = json.loads((folder / "report.json").read_text())
    assert (report["completed_trajectories"], report["completed_requests"]) == (5, 56)
    assert "5 of 5" in out
    assert f"{report['forward_passes']:,}" in out
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 56
    assert out.rstrip().endswith("requests.jsonl")


def test_replay_as_json_prints_the_report_alone(said: Any, tmp_path: Path) -> None:
    code, out, err = said("replay", "--config", CONFIG, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["agentic_lanes"] == 3
    assert document["weka_subagent_marker"] == "completion"
    assert document["weka_nested_timestamp_basis"] == "relative"
    assert document["certificate"]["plays"] == 5
    assert list(tmp_path.iterdir()) == []


def test_replay_without_a_configuration(said: Any) -> None:
    document = json.loads(said("replay", V2, "--json")[1])
    assert document["deployment"]["blocks"] * document["deployment"]["block_size"] == 1_048_576
    assert document["deployment"]["context_length"] == "max"
    assert document["agentic_lanes"] is None
    settings = ["--set", "traffic.load.agentic_lanes=2", "--set", "engine.workers.aggregated.timing.decode_ms=1"]
    changed = json.loads(said("replay", V2, "--json", *settings)[1])
    assert changed["agentic_lanes"] == 2
    assert changed["mean_tpot_ms"] < document["mean_tpot_ms"]
    assert changed["digests"]["configuration"] != document["digests"]["configuration"]


def test_replay_of_a_pair_shows_both_roles(said: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    code, out, err = said("replay", "--config", PAIR, "--out", str(folder), "--per-request")
    assert (code, err) == (0, "")
    report = json.loads((folder / "report.json").read_text())
    for name, role in report["roles"].items():
        assert f"{name} workers" in out
        assert f"{role['forward_passes']:,} passes" in out
    assert report["completed_trajectories"] == 5
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert {(line["prefill_worker_idx"], line["decode_worker_idx"]) for line in lines} == {(0, 0), (0, 1)}
    for line in lines:
        steps = ("dispatched_at_ms", "source_held_ms", "destination_reserved_ms", "destination_activated_ms")
        times = [line[name] for name in (*steps, "first_token_ms", "terminal_time_ms")]
        assert times == sorted(times)
        assert line["source_released_ms"] >= line["destination_activated_ms"]


def test_replay_says_what_the_deployment_rejects(said: Any) -> None:
    field = "engine.workers.aggregated.kv_cache.capacity.blocks"
    code, out, err = said("replay", WEKA, "--config", CONFIG, "--set", f"{field}=60")
    assert code == 0
    assert "request-never-fits" in err
    assert "5 of 5" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["validate", "no/such/file.jsonl"], 2, "no/such/file.jsonl"),
        (["replay", "no/such/file.jsonl"], 2, "no/such/file.jsonl"),
        (["lower", "no/such/file.jsonl", "--out", "x.jsonl"], 2, "no/such/file.jsonl"),
        (["replay", WEKA, "--config", "no/such.yaml"], 2, "no/such.yaml"),
        (["replay"], 2, "traffic.source.paths"),
        (["replay", WEKA, "--per-request"], 2, "--out"),
        (["replay", WEKA, "--out", f"{V2}/below/a/file"], 2, "corpus.jsonl"),
        (["replay", WEKA, "--set", "engine.mode=disaggregated"], 1, "config-missing"),
        (["replay", WEKA, "--set", "engine.workers.aggregated.parallelism.replicas=true"], 1, "config-type"),
        (["replay", WEKA, "--config", PAIR, "--set", "engine.mode=aggregated"], 1, "config-combination"),
        (["replay", WEKA, "--config", PAIR, "--set", "engine.kv_transfer.bytes_per_token=auto"], 1, "config-type"),
        (
            ["replay", WEKA, "--config", PAIR, "--set", "engine.workers.decode.kv_cache.block_size=32"],
            1,
            "engine.workers.prefill.kv_cache.block_size: 64, engine.workers.decode.kv_cache.block_size: 32",
        ),
        (["replay", WEKA, "--set", "engine.mood=x"], 1, "did you mean mode?"),
        (["validate", WEKA, "--config", DEADLOCK], 1, "config-"),
        (["validate"], 2, "paths"),
        (["validate", WEKA, "--output", "xml"], 2, "xml"),
        (["validate", WEKA, "--format", "parquet"], 2, "parquet"),
        (["lower", WEKA], 2, "--out"),
        (["lower", WEKA, "--out", "x.jsonl", "--subagent-marker", "middle"], 2, "middle"),
        (["lower", WEKA, "--out", "x.jsonl", "--block-size", "0"], 2, "--block-size"),
        (["frobnicate"], 2, "frobnicate"),
        ([], 2, "Usage"),
    ],
    ids=lambda value: " ".join(value).replace(str(EXAMPLES), "examples") if isinstance(value, list) else "",
)
def test_refusals(
    arguments: list[str], code: int, message: str, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    got, out, err = said(*arguments)
    assert got == code
    assert message in out + err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_no_bad_input(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(Path(V2).read_bytes())
    opened = os.open

    def denied(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("t.jsonl"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    # Permissions do not stop the superuser, whom containers run tests as.
    monkeypatch.setattr(os, "open", denied)
    code, out, err = said("validate", str(tmp_path))
    assert code == 2
    assert "Permission denied" in out + err
    assert "Traceback" not in out + err


# lower --------------------------------------------------------------------------------------------------------------


def test_lower_writes_what_reads_as_the_same_graph(said: Any, tmp_path: Path) -> None:
    target = tmp_path / "sub" / "lowered.jsonl"
    target.parent.mkdir()
    code, out, _ = said("lower", WEKA, "--out", str(target))
    assert code == 0
    assert "5 plays, 56 requests" in out
    assert load(target).certificate.graph_digest == load(WEKA).certificate.graph_digest
    code, _, _ = said("lower", WEKA, "--out", str(target), "--subagent-marker", "spawn")
    assert load(target).certificate.graph_digest != load(WEKA).certificate.graph_digest


# machines -----------------------------------------------------------------------------------------------------------


def test_machines_are_printed(said: Any) -> None:
    code, out, _ = said("machines")
    assert code == 0
    assert all(f"{machine.name}: " in out for machine in MACHINES)
    code, out, _ = said("machines", "--mermaid")
    assert code == 0
    assert out.count("stateDiagram-v2") == len(MACHINES)


def test_machines_are_proven(said: Any) -> None:
    code, out, _ = said("machines", "--prove")
    assert code == 0
    for obligation in [f"M{number}" for number in range(1, 11)]:
        assert f"  {obligation} " in out
    assert out.count(": proven (") == 10


# Everything else ----------------------------------------------------------------------------------------------------


def test_version_and_help(said: Any) -> None:
    code, out, _ = said("--version")
    assert (code, out.split()[0]) == (0, "playproof")
    for command in ("validate", "lower", "inspect", "replay", "check", "fuzz", "serve", "warm", "machines"):
        code, out, _ = said(command, "--help")
        assert code == 0
        assert "Usage" in out


def test_a_fault_of_ours_says_so(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(playproof_kernel, "simulate", broken)
    monkeypatch.delenv("PLAYPROOF_TRACEBACK", raising=False)
    code, out, err = said("replay", WEKA)
    assert (code, out) == (70, "")
    assert "ZeroDivisionError: a bug" in err
    assert "fault of playproof" in err
    assert "Traceback" not in err
    monkeypatch.setenv("PLAYPROOF_TRACEBACK", "1")
    assert "Traceback" in said("replay", WEKA)[2]


def test_nothing_is_written_when_writing_fails(said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_: Report) -> Iterator[dict[str, Any]]:
        raise ZeroDivisionError("a bug")
        yield

    monkeypatch.setattr(Report, "request_dicts", broken)
    assert said("replay", WEKA, "--out", str(tmp_path), "--per-request")[0] == 70
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_to_a_terminal_only(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "PROGRESS_AFTER_S", 0.0)
    assert said("replay", WEKA, "--json")[2] == ""
    screen = io.StringIO()
    monkeypatch.setattr(cli, "err", Console(file=screen, force_terminal=True, width=80))
    code, out, _ = said("replay", WEKA, "--json")
    assert code == 0
    assert json.loads(out)["completed_trajectories"] == 5
    assert "reading and proving" in screen.getvalue()
    assert "replaying" in screen.getvalue() or "compiling" in screen.getvalue()


def test_short_work_needs_no_progress(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "PROGRESS_AFTER_S", 60.0)
    screen = io.StringIO()
    monkeypatch.setattr(cli, "err", Console(file=screen, force_terminal=True, width=80))
    assert said("validate", WEKA)[0] == 0
    assert screen.getvalue() == ""


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "playproof", "validate", WEKA]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "verdict"),
    [(["machines"], 0), (["validate", WEKA, "--output", "json"], 0), (["validate", DEADLOCK], 1)],
    ids=["machines", "json", "findings"],
)
def test_a_reader_that_has_seen_enough_does_not_change_the_verdict(command: list[str], verdict: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "playproof", *command], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (verdict, b"")


def test_nothing_depends_on_the_order_of_hashes() -> None:
    said = []
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "playproof", "replay", "--config", CONFIG, "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append([line for line in done.stdout.splitlines() if "wall" not in line])
    assert len(said[0]) > 100
    assert said[0] == said[1]


def test_a_folder_that_cannot_be_made_is_told_before_the_replay(
    said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("replayed before the folder was tried")

    monkeypatch.setattr("playproof.api.replay", never)
    taken = tmp_path / "taken"
    taken.write_text("a file, not a folder")
    code, out, err = said("replay", WEKA, "--config", CONFIG, "--out", str(taken))
    assert (code, out) == (2, "")
    assert "taken" in err
    assert "Traceback" not in err


# What is read, and what is left out ---------------------------------------------------------------------------------

ROW = '{"input_length":5,"output_length":1,"timestamp":0}\n'


@pytest.mark.parametrize("command", ["validate", "inspect", "lower"])
def test_what_cannot_be_read_is_left_out_on_demand(said: Any, tmp_path: Path, command: str) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(ROW + "{oops\n")
    more = ["--out", str(tmp_path / "out.jsonl")] if command == "lower" else []
    assert said(command, str(trace), *more)[0] == 1
    code, out, err = said(command, str(trace), "--skip-bad", *more)
    assert code == 0
    assert "json-malformed" in out + err
    trace.write_text("{oops\n")
    assert said(command, str(trace), "--skip-bad", *more)[0] == 1


def test_the_certificate_says_what_was_left_out(said: Any, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(ROW + "{oops\n" + ROW.rstrip()[:-9])
    _, out, _ = said("validate", str(trace), "--skip-bad")
    assert "of what was left out nothing is shown: 1 record, 1 torn last line" in out
    _, out, _ = said("validate", str(trace), "--skip-bad", "--output", "json")
    shown = json.loads(out)["certificate"]["left_out"]
    assert (shown["records"], shown["torn_last_lines"], shown["named"]) == (1, 1, [f"{trace}:2", f"{trace}:3"])


def test_the_report_of_a_replay_says_what_was_left_out(said: Any, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(ROW + "{oops\n")
    assert said("replay", str(trace))[0] == 1
    code, out, _ = said("replay", str(trace), "--skip-bad")
    assert code == 0
    assert "left out, unreadable       1 record" in out
    _, out, _ = said("replay", str(trace), "--skip-bad", "--json")
    report = json.loads(out)
    assert report["reading"]["left_out"]["named"] == [f"{trace}:2"]
    assert report["certificate"]["left_out"] == report["reading"]["left_out"]


def test_exclude_and_links_on_the_command_line(said: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(ROW)
    (tmp_path / "b.jsonl").write_text("oops\n")
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "elsewhere" / "d.jsonl")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "d.jsonl").write_text(ROW)
    assert said("validate", str(tmp_path))[0] == 1
    code, out, _ = said("validate", str(tmp_path), "--exclude", "b*", "--exclude", "elsewhere", "--follow-links")
    assert code == 0
    assert "2 plays" in out


def test_a_dash_is_standard_input(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BytesIO(ROW.encode())})())
    code, out, _ = said("validate", "-")
    assert code == 0
    assert "1 play, 1 request" in out
