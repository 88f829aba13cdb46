"""What a new user meets: a first run without machine code, and every command where none can be kept."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import unprivileged
from playproof_native import compiler, modes, store
from playproof_native.functions import ENTRIES, Entry

import playproof as pp
from playproof import machine_code

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CONFIG = EXAMPLES / "deployment.yaml"
HEAVY = ("numba", "z3", "networkx")
# A compilation in the background ends some time; only one that never does fails a test.
WATCHDOG_S = 900.0


def playproof(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that the permissions of files bind."""
    command = [sys.executable, "-m", "playproof", *arguments]
    return unprivileged.run(command, {modes.VARIABLE: "", **(environment or {})})


def of(folder: Path, **more: str) -> dict[str, str]:
    return {store.VARIABLE: str(folder), **more}


def entries_of(*rooms: str) -> list[Entry]:
    """Return what Python calls compiled in these rooms. Tests have entries of their own, which nobody warms."""
    for room in rooms:
        for module in pkgutil.iter_modules(importlib.import_module(room).__path__, f"{room}."):
            importlib.import_module(module.name)
    return [entry for entry in ENTRIES if entry.name.partition(".")[0] in rooms]


def imported(*arguments: str) -> set[str]:
    """Return which of the heavy libraries a Python command imports."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "playproof" in modules
    return modules & set(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [("-c", "import playproof"), ("-m", "playproof", "--version"), ("-m", "playproof", "--help")],
    ids=lambda arguments: arguments[-1],
)
def test_no_heavy_library_is_imported(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) == set()


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    assert set(pp.__all__) == set(pp._HOME_OF)
    for name in pp.__all__:
        assert getattr(pp, name).__name__ == name
    assert set(pp.__all__) <= set(dir(pp))
    with pytest.raises(AttributeError, match="has no attribute 'replays'"):
        pp.replays  # noqa: B018


def test_where_no_code_can_be_kept_everything_works_and_says_so_once(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    unprivileged.write_protect(folder, protected=True)
    nowhere = of(folder / "code", HOME=str(folder))
    for arguments in (["--version"], ["--help"], ["replay", "--help"]):
        done = playproof(*arguments, environment=nowhere)
        assert (done.returncode, done.stderr) == (0, "")
    trace = str(EXAMPLES / "weka")
    for arguments in (["validate", trace], ["replay", trace, "--config", str(CONFIG)]):
        done = playproof(*arguments, environment=nowhere)
        assert done.returncode == 0
        assert done.stderr == f"playproof: {machine_code.WITHOUT}\n"
    done = playproof("validate", str(EXAMPLES / "broken" / "deadlock.jsonl"), environment=nowhere)
    assert (done.returncode, done.stderr) == (1, f"playproof: {machine_code.WITHOUT}\n")
    compiling = playproof("validate", trace, "--compile", "always", environment=nowhere)
    assert compiling.returncode == 0
    assert compiling.stderr.count("compiled code cannot be kept") == 1


def test_a_first_run_does_not_wait_for_the_compiler_and_the_next_has_its_code(tmp_path: Path) -> None:
    """With nothing kept, the trace is read interpreted, and read again compiled once a child has made the code."""
    trace = tmp_path / "t.jsonl"
    trace.write_text((EXAMPLES / "v2" / "corpus.jsonl").read_text())
    first = playproof("validate", str(trace), environment=of(tmp_path / "code"))
    assert (first.returncode, first.stderr) == (0, f"playproof: {machine_code.MEANWHILE}\n")
    wanted = {entry.name for entry in entries_of("playproof_spec", "playproof_lowering")}
    assert len(wanted) > 10
    began = time.monotonic()
    while not wanted <= {path.name.rpartition("-")[0] for path in (tmp_path / "code").rglob(f"*{store.SUFFIX}")}:
        assert time.monotonic() - began < WATCHDOG_S, "the code that was promised never came"
        time.sleep(0.2)
    again = playproof("validate", str(trace), environment=of(tmp_path / "code"))
    assert (again.returncode, again.stderr, again.stdout) == (0, "", first.stdout)


def test_compile_never_keeps_nothing_and_says_nothing(tmp_path: Path) -> None:
    done = playproof("validate", str(EXAMPLES / "v2"), "--compile", "never", environment=of(tmp_path / "code"))
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "code").exists()


def test_interpreted_and_compiled_reports_are_equal() -> None:
    def report(setting: str) -> dict[str, Any]:
        arguments = ["replay", str(EXAMPLES / "weka"), "--config", str(CONFIG), "--json", "--compile", setting]
        done = playproof(*arguments)
        assert done.returncode == 0, done.stderr
        values: dict[str, Any] = json.loads(done.stdout)
        return {name: value for name, value in values.items() if name != "wall_time_ms"}

    never, always = report("never"), report("always")
    never["certificate"] = always["certificate"] = None  # it has the seconds that each proof took
    assert never == always


def test_a_setting_of_the_environment_that_is_none_is_named() -> None:
    done = playproof("validate", str(EXAMPLES / "v2"), environment={modes.VARIABLE: "maybe"})
    assert done.returncode == 2
    assert "PLAYPROOF_COMPILE is 'maybe'; it may be auto, always, never" in done.stderr
    assert "Traceback" not in done.stderr


def test_warm_compiles_all_of_it_and_then_nothing() -> None:
    """Into the folder of all tests, where most of it lies already."""
    arguments = ["warm", "--config", str(CONFIG), "--online"]
    patient = {compiler.WAIT_VARIABLE: str(WATCHDOG_S)}  # for other tests, which compile into it meanwhile
    first = playproof(*arguments, environment=patient)
    assert first.returncode == 0
    done = playproof(*arguments, environment=patient)
    assert "cannot be kept" not in first.stderr
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing to compile: all of it is kept; it lies in ")
    assert [entry.name for entry in entries_of("playproof_spec", "playproof_lowering") if not store.has(entry)] == []


# Estimates ------------------------------------------------------------------------------------------------------------


def test_what_reading_is_estimated_from(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_bytes(b"x" * 400_000)
    (tmp_path / "b.json.gz").write_bytes(b"x" * 100_000)
    per_mb = machine_code.READING_S_PER_MB
    assert machine_code.reading_s([tmp_path]) == pytest.approx((0.4 + 0.1 * machine_code.EXPANSION) * per_mb)
    assert machine_code.reading_s([tmp_path / "deep" / "a.jsonl", tmp_path / "absent"]) == pytest.approx(0.4 * per_mb)


def test_what_a_replay_is_estimated_from() -> None:
    graph = pp.load(EXAMPLES / "weka").graph
    aggregated, load = pp.Deployment(), pp.Load(lanes=2)
    once = machine_code.replay_s(graph, aggregated, load)
    expected = machine_code.REQUEST_S * 56 + machine_code.PROMPT_TOKEN_S * int(graph.input_length.sum())
    assert once == pytest.approx(expected + machine_code.OUTPUT_TOKEN_S * int(graph.output_length.sum()))
    pair = pp.Disaggregated()
    assert machine_code.replay_s(graph, pair, load) == pytest.approx(machine_code.SPLIT_FACTOR * once)
    routed = pp.Deployment(workers=2, router=pp.KvRouter())
    assert machine_code.replay_s(graph, routed, load) == pytest.approx(machine_code.EXTRAS_FACTOR * once)
    hour = pp.Load(lanes=2, snapshot_seed=1, profile=pp.Profile())
    assert machine_code.replay_s(graph, aggregated, hour) == float("inf")


def test_the_environment_is_that_of_the_tests() -> None:
    """Here everything compiles, or the properties would be interpreted."""
    assert os.environ[modes.VARIABLE] == "always"
