"""`playproof check` as a command, on runs as they are and on files that are bad in every way we could think of."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from seeded_faults import put, to

from playproof.cli import main

ROOT = Path(__file__).resolve().parents[2]
V2 = ROOT / "examples" / "v2" / "corpus.jsonl"
OTHER = ROOT / "tests" / "goldens" / "replay-lanes" / "trace.jsonl"
WEKA = ROOT / "examples" / "weka"
# Clears a screen, rings, turns the writing around, is an escape of one byte, ends a line, is a null.
NASTY = ("\x1b[2J", "\x07", "\u202e", "\x9b31m", "a\nb", "\r", "\x00", "\x7f", "\u2028")
HUGE = (10**30, -(10**30), 2**63, 2**64, -1, 1e300, -1e300, 1e-300, 2**53 + 1, 0.1)


BARE = b'{"schema": "playproof.report.v1"}'


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    arguments = ("--set", "engine.workers.aggregated.parallelism.replicas=2", "--set", "traffic.load.agentic_lanes=2")
    assert main(["replay", str(V2), *arguments, "--out", str(folder), "--per-request", "--check"]) == 0
    return folder


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controlled")
    load = "traffic.load.agentic"
    arguments = [f"{load}_lanes=2", f"{load}_snapshot={{seed: 3}}", f"{load}_warmup=true"]
    arguments += [f"{load}_profile={{duration_seconds: 60, tree_idle_cap_seconds: 5, global_idle_cap_seconds: 1}}"]
    settings = [part for argument in arguments for part in ("--set", argument)]
    assert main(["replay", str(WEKA), *settings, "--out", str(folder), "--per-request", "--check"]) == 0
    return folder


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


@pytest.fixture
def controlled_run(controlled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(controlled, tmp_path / "controlled"))


def edit(path: str, value: Any) -> Callable[[Path], None]:
    """Return an alteration of the report."""

    def alter(folder: Path) -> None:
        report = json.loads((folder / "report.json").read_text())
        put(report, path, to(value))
        (folder / "report.json").write_text(json.dumps(report))

    return alter


def edit_line(number: int, **fields: Any) -> Callable[[Path], None]:
    """Return an alteration of a line."""

    def alter(folder: Path) -> None:
        rows = [json.loads(row) for row in (folder / "requests.jsonl").read_text().splitlines()]
        rows[number] |= fields
        (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return alter


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return an alteration of a file's bytes."""

    def alter(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return alter


def instead(before: bytes, after: bytes, name: str = "requests.jsonl") -> Callable[[Path], None]:
    """Return an alteration that puts bytes where others first were."""
    return rewrite(name, lambda data: data.replace(before, after, 1))


def test_a_run_passes(said: Any, run: Path) -> None:
    code, out, err = said("check", str(run), "--trace", str(V2))
    assert (code, err) == (0, "")
    assert "check passed" in out


@pytest.mark.parametrize("name", ["report.json", "requests.jsonl"])
def test_either_file_names_the_run(said: Any, run: Path, name: str) -> None:
    code, out, _ = said("check", str(run / name), "--trace", str(V2))
    assert code == 0
    assert "0 broken" in out


def test_a_run_from_a_snapshot_on_passes(said: Any, controlled_run: Path) -> None:
    code, out, _ = said("check", str(controlled_run), "--trace", str(WEKA), "--output", "json")
    told = json.loads(out)
    assert (code, told["verdict"], told["findings"]) == (0, "passed", [])
    facts = {rule["code"]: rule["facts"] for rule in told["rules"]}
    assert min(facts[code] for code in ("run-snapshot", "run-phase", "run-profile", "run-late", "run-edge")) > 10


def test_nothing_there_is_said(said: Any, tmp_path: Path) -> None:
    code, out, err = said("check", str(tmp_path / "nowhere"), "--trace", str(V2))
    assert code == 2
    assert "nowhere" in err
    assert "Traceback" not in out + err


def test_an_empty_folder_is_no_run(said: Any, tmp_path: Path) -> None:
    code, out, _ = said("check", str(tmp_path), "--trace", str(V2))
    assert code == 1
    assert "run-file" in out


BAD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no lines": ("run-file", lambda run: (run / "requests.jsonl").unlink()),
    "empty lines": ("run-missing", rewrite("requests.jsonl", lambda _: b"")),
    "blank lines": ("run-line", rewrite("requests.jsonl", lambda data: data.replace(b"\n", b"\n\n", 1))),
    "lines cut in the middle": ("run-line", rewrite("requests.jsonl", lambda data: data[: len(data) // 2])),
    "lines that are no JSON": ("run-line", rewrite("requests.jsonl", lambda data: b"hello\n" + data)),
    "lines that are lists": ("run-line", rewrite("requests.jsonl", lambda data: b"[1, 2]\n" + data)),
    "a line of nested lists": ("run-line", rewrite("requests.jsonl", lambda data: b"[" * 100_000 + b"\n" + data)),
    "bytes that are no text": ("run-line", rewrite("requests.jsonl", lambda data: b'{"request_id":"\xff"}\n' + data)),
    "zeros": ("run-line", rewrite("requests.jsonl", lambda data: bytes(1000))),
    "NaN in a line": ("run-line", instead(b'"output_length":', b'"output_length":NaN,"x":')),
    "Infinity in a line": ("run-line", instead(b'"ttft_ms":', b'"ttft_ms":Infinity,"x":')),
    "a null for a number": ("run-line", edit_line(0, input_length=None)),
    "a text for a number": ("run-line", edit_line(0, output_length="many")),
    "a truth for a number": ("run-line", edit_line(0, output_length=True)),
    "half a token": ("run-line", edit_line(0, output_length=1.5)),
    "a list for an id": ("run-line", edit_line(0, request_id=[])),
    "an empty history": ("run-admission", edit_line(0, admission_history=[])),
    "a report that is empty": ("run-file", rewrite("report.json", lambda _: b"")),
    "a report cut in the middle": ("run-file", rewrite("report.json", lambda data: data[: len(data) // 2])),
    "a report that is a list": ("run-file", rewrite("report.json", lambda _: b"[]")),
    "a report of nested lists": ("run-file", rewrite("report.json", lambda _: b"[" * 100_000)),
    "a report that is no text": ("run-file", rewrite("report.json", lambda _: b'{"schema": "\xff\xfe"}')),
    "a report with NaN": ("run-file", instead(b'"valid": true', b'"valid": NaN', "report.json")),
    "a report without anything": ("run-figure", rewrite("report.json", lambda _: BARE)),
    "a deployment that is a text": ("run-settings", edit("deployment", "big")),
    "a load that is a list": ("run-settings", edit("load", [])),
    "too many workers": ("run-settings", edit("deployment.workers", 2**53)),
    "too many lanes": ("run-settings", edit("load.lanes", 2**53)),
    "no speed": ("run-settings", edit("load.speedup", 0.0)),
    "outcomes that are numbers": ("run-outcome", edit("agentic_play_outcomes", [1, 2])),
    "roles that are texts": ("run-figure", edit("roles", {"aggregated": "busy"})),
    "an online run that is a text": ("run-figure", edit("online", "yes")),
    "digests that are a list": ("run-digest", edit("digests", [])),
    "a certificate that is a number": ("run-digest", edit("certificate", 7)),
    "another graph": ("run-digest", edit("digests.graph", "0" * 64)),
    "other lines": ("run-digest", edit("digests.requests", "0" * 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("output", ["text", "json"])
def test_bad_files_are_findings(said: Any, run: Path, name: str, output: str) -> None:
    rule, alter = BAD[name]
    alter(run)
    code, out, err = said("check", str(run), "--trace", str(V2), "--output", output)
    assert (code, err) == (1, "")
    assert is_safe(out)
    if output == "json":
        assert rule in {item["code"] for item in json.loads(out)["findings"]}
    else:
        assert f"error {rule}" in out
        assert "check violated" in out


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "field", ["input_length", "output_length", "lane", "dispatched_at_ms", "ttft_ms", "decode_worker_idx"]
)
def test_numbers_that_cannot_be(said: Any, run: Path, field: str, value: float) -> None:
    edit_line(0, **{field: value})(run)
    code, out, err = said("check", str(run), "--trace", str(V2))
    assert (code, err) == (1, "")
    assert "check violated" in out


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("output", ["text", "json"])
def test_what_a_terminal_would_act_upon_is_escaped(said: Any, run: Path, nasty: str, output: str) -> None:
    edit_line(0, request_id=f"r{nasty}", model=f"m{nasty}")(run)
    edit_line(1, model=f"m{nasty}", session_id=f"s{nasty}", play_id=f"p{nasty}")(run)
    edit_line(2, terminal_status=nasty)(run)
    for path in ("deployment.backend", "agentic_play_outcomes[0].play_id", "agentic_input_format", "digests.graph"):
        edit(path, f"x{nasty}")(run)
    edit("agentic_graph.source_models", [nasty])(run)
    code, out, _ = said("check", str(run), "--trace", str(V2), "--output", output)
    assert code == 1
    assert is_safe(out)


def test_a_report_of_another_trace(said: Any, run: Path) -> None:
    code, out, err = said("check", str(run), "--trace", str(OTHER))
    assert (code, err) == (1, "")
    for rule in ("run-digest", "run-settings", "run-extra", "run-missing"):
        assert f"error {rule}" in out


def test_a_configuration_of_another_run(said: Any, run: Path) -> None:
    code, out, _ = said(
        "check", str(run), "--trace", str(V2), "--set", "engine.workers.aggregated.parallelism.replicas=3"
    )
    assert code == 1
    assert "error run-settings" in out


def places(value: Any, path: str = "") -> list[str]:
    """Return the paths of all values inside of one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, one in inner:
        if isinstance(key, str) and not key.replace("_", "").isalnum():
            continue  # no path names it
        here = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else key
        found += [here, *places(one, here)]
    return found


WRONG: tuple[Any, ...] = (None, True, "text", [], {}, [None], {"a": 1}, -1, 0, 0.5, *HUGE)


@pytest.mark.parametrize("part", range(8))
def test_whatever_a_report_holds_is_no_traceback(said: Any, controlled_run: Path, part: int) -> None:
    """Values of every type anywhere in a report of the richest kind; and several of them at once."""
    path = controlled_run / "report.json"
    report = json.loads(path.read_text())
    anywhere = places(report)
    rng = random.Random(part)
    for _ in range(12):
        altered = json.loads(path.read_text())
        for place in rng.sample(anywhere, rng.choice((1, 1, 4))):
            try:
                put(altered, place, to(rng.choice(WRONG)))
            except (AssertionError, KeyError, IndexError, TypeError):
                continue  # what was there before, or nothing is there any more
        (controlled_run / "altered.json").write_text(json.dumps(altered))
        shutil.copy(controlled_run / "altered.json", controlled_run / "report.json")
        code, out, err = said("check", str(controlled_run), "--trace", str(WEKA))
        assert code in (0, 1)
        assert "Traceback" not in out + err
        assert is_safe(out + err)
        path.write_text(json.dumps(report))
