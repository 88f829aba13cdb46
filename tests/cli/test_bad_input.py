"""Every bad input that we know of, through the command line: its finding, exit code 1, and never a traceback."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from playproof.api import load
from playproof.cli import main

HEADER: dict[str, Any] = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 16,
    "hash_id_scope": "local",
    "source": {"format": "hand", "digest": "test"},
}


def row(name: str, *dependencies: Mapping[str, Any], play: str = "p", **fields: Any) -> dict[str, Any]:
    return {
        "request_id": name,
        "play_id": play,
        "session_id": f"{play}:main",
        "model": "m",
        "input_length": 20,
        "output_length": 4,
        "hash_ids": [1, 2],
        "not_before_ms": 0.0,
        "dependencies": list(dependencies),
        **fields,
    }


def after(name: str, **fields: Any) -> dict[str, Any]:
    return {"request_id": name, "trigger": "completion", "delay_ms": 0.0, "relation": "sequence", **fields}


def v2(*rows: Mapping[str, Any], header: Mapping[str, Any] | None = HEADER) -> bytes:
    # json writes NaN and Infinity as such, which is what a careless exporter does.
    return "".join(json.dumps(value) + "\n" for value in ([header] if header else []) + list(rows)).encode()


GOOD_V2 = v2(row("a"), row("b", after("a")))


def call(t: float, **fields: Any) -> dict[str, Any]:
    common = {"type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 1.0, "stop": ""}
    return {"t": t, **common, **fields}


def agent(t: float, *requests: Mapping[str, Any], name: str = "agent_001", **fields: Any) -> dict[str, Any]:
    common = {"type": "subagent", "agent_id": name, "subagent_type": "Explore", "status": "completed"}
    return {"t": t, **common, "duration_ms": 4000, "requests": list(requests), **fields}


def weka(*requests: Mapping[str, Any], **fields: Any) -> bytes:
    play = {"id": "w", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}
    return json.dumps(play | fields).encode()


NESTED = [call(0.0), agent(5.5, call(0.0), call(2.0)), call(7.0)]
GOOD_WEKA = weka(*NESTED)


def nested_time(value: float) -> bytes:
    requests = copy.deepcopy(NESTED)
    requests[1]["requests"][1]["t"] = value
    return weka(*requests)


# name: ({file: bytes}, a code that must be among the findings)
CASES: dict[str, tuple[dict[str, bytes], str]] = {
    "time not a number": ({"t.jsonl": v2(row("a", not_before_ms=float("nan")))}, "time-not-finite"),
    "time infinite": ({"t.jsonl": v2(row("a", not_before_ms=float("inf")))}, "time-not-finite"),
    "time beyond double": ({"t.jsonl": v2(row("a")).replace(b"0.0", b"1e999")}, "number-out-of-range"),
    "time negative": ({"t.jsonl": v2(row("a", not_before_ms=-1.0))}, "time-negative"),
    "time past the clock": ({"t.jsonl": v2(row("a", not_before_ms=1e300))}, "time-beyond-horizon"),
    "recorded time negative": ({"t.jsonl": v2(row("a", recorded_api_time_ms=-1.0))}, "time-negative"),
    "delay negative": ({"t.jsonl": v2(row("a"), row("b", after("a", delay_ms=-1.0)))}, "time-negative"),
    "delay past the clock": ({"t.jsonl": v2(row("a"), row("b", after("a", delay_ms=1e300)))}, "time-beyond-horizon"),
    "weka time not a number": ({"w.json": weka(call(float("nan")))}, "time-not-finite"),
    "weka time infinite": ({"w.json": weka(call(float("inf")))}, "time-not-finite"),
    "weka time negative": ({"w.json": weka(call(-1.0))}, "time-negative"),
    "weka time past the clock": ({"w.json": weka(call(1e300))}, "time-beyond-horizon"),
    "nested time not a number": ({"w.json": nested_time(float("nan"))}, "time-not-finite"),
    "nested time infinite": ({"w.json": nested_time(float("-inf"))}, "time-not-finite"),
    "nested time negative": ({"w.json": nested_time(-1.0)}, "time-negative"),
    "nested time past the clock": ({"w.json": nested_time(1e300)}, "time-beyond-horizon"),
    "duplicate id": ({"t.jsonl": v2(row("a"), row("a"))}, "id-duplicate"),
    "duplicate id across files": ({"t.jsonl": GOOD_V2, "u.jsonl": v2(row("a", play="q"))}, "id-duplicate"),
    "play in two files": ({"t.jsonl": GOOD_V2, "u.jsonl": v2(row("c"))}, "play-across-files"),
    "dangling edge": ({"t.jsonl": v2(row("a", after("nobody")))}, "edge-dangling"),
    "edge to itself": ({"t.jsonl": v2(row("a", after("a")))}, "edge-self"),
    "edge across plays": ({"t.jsonl": v2(row("a"), row("b", after("a"), play="q"))}, "edge-cross-play"),
    "cycle": ({"t.jsonl": v2(row("r"), row("a", after("r"), after("b")), row("b", after("a")))}, "cycle"),
    "repeated edge": ({"t.jsonl": v2(row("a"), row("b", after("a"), after("a")))}, "edge-duplicate"),
    "illegal pair": ({"t.jsonl": v2(row("a"), row("b", after("a", trigger="dispatch")))}, "edge-pair"),
    "unknown relation": ({"t.jsonl": v2(row("a"), row("b", after("a", relation="child")))}, "value-unknown"),
    "unknown trigger": ({"t.jsonl": v2(row("a"), row("b", after("a", trigger="start")))}, "value-unknown"),
    "too few hashes": ({"t.jsonl": v2(row("a", hash_ids=[1]))}, "hash-count"),
    "too many hashes": ({"t.jsonl": v2(row("a", hash_ids=[1, 2, 3]))}, "hash-count"),
    "a million tokens declared": ({"t.jsonl": v2(row("a", input_length=1_000_000))}, "hash-count"),
    "no header": ({"t.jsonl": v2(row("a"), header=None)}, "header-missing"),
    "header of another version": ({"t.jsonl": v2(row("a"), header=HEADER | {"version": 1})}, "header-invalid"),
    "header of another schema": ({"t.jsonl": v2(row("a"), header=HEADER | {"schema": "x"})}, "header-invalid"),
    "header without block size": (
        {"t.jsonl": v2(row("a"), header={k: v for k, v in HEADER.items() if k != "block_size"})},
        "field-missing",
    ),
    "header only": ({"t.jsonl": v2()}, "rows-missing"),
    "mixed block sizes": (
        {"t.jsonl": GOOD_V2, "u.jsonl": v2(row("c", play="q", hash_ids=[1]), header=HEADER | {"block_size": 32})},
        "block-size-mixed",
    ),
    "empty file": ({"t.jsonl": b""}, "file-empty"),
    "empty folder": ({}, "corpus-empty"),
    "null": ({"w.json": b"null"}, "json-not-object"),
    "list": ({"w.json": b"[]"}, "json-not-object"),
    "no json at all": ({"w.json": b"hello"}, "json-not-object"),
    "trailing garbage": ({"w.json": GOOD_WEKA + b" x"}, "json-trailing"),
    "two objects in one json": ({"w.json": GOOD_WEKA + GOOD_WEKA}, "json-trailing"),
    "byte order mark": ({"t.jsonl": b"\xef\xbb\xbf" + GOOD_V2}, "encoding-bom"),
    "utf-16": ({"t.jsonl": GOOD_V2.decode().encode("utf-16")}, "encoding-not-utf8"),
    "truncated gzip": ({"t.jsonl.gz": gzip.compress(GOOD_V2, mtime=0)[:-9]}, "compression-broken"),
    "subagent without owner": ({"w.json": weka(agent(5.5, call(0.0)), call(7.0))}, "subagent-without-owner"),
    "equal agent ids": (
        {"w.json": weka(call(0.0), agent(5.5, call(0.0)), agent(5.6, call(0.0)), call(7.0))},
        "subagent-duplicate",
    ),
    "agent ends before its children": (
        {"w.json": weka(call(0.0), agent(5.5, call(0.0), call(9.0)), call(20.0))},
        "subagent-ends-early",
    ),
}


@pytest.mark.parametrize(("files", "code"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_a_finding(
    files: dict[str, bytes], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert main(["validate", str(tmp_path), "--output", "json"]) == 1
    said = capsys.readouterr()
    findings = json.loads(said.out)["findings"]
    errors = [item for item in findings if item["severity"] == "error"]
    assert code in {item["code"] for item in errors}, [item["code"] for item in findings]
    assert all(item["message"] and item["because"] and item["hint"] for item in findings)
    assert "Traceback" not in said.out + said.err


def test_the_good_ones_are_proven(tmp_path: Path) -> None:
    for name, data in {"t.jsonl": GOOD_V2, "w.json": GOOD_WEKA}.items():
        (tmp_path / name).write_bytes(data)
        assert main(["validate", str(tmp_path / name)]) == 0


def test_an_unknown_field_is_a_warning_with_the_nearest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(v2(row("a", not_befor_ms=3.0)))
    assert main(["validate", str(trace)]) == 0
    said = capsys.readouterr().out
    assert "warning field-unknown" in said
    assert "did you mean `not_before_ms`?" in said
    assert main(["validate", str(trace), "--strict"]) == 1
    assert "error field-unknown" in capsys.readouterr().out


def test_rows_without_a_header_come_with_the_way_to_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(v2(row("a"), header=None))
    assert main(["validate", str(trace)]) == 1
    said = capsys.readouterr().out
    assert "header-missing" in said
    assert "way out" in said


def test_hash_ids_that_differ_only_above_32_bits_are_different(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(v2(row("a", hash_ids=[1, 2]), row("b", after("a"), hash_ids=[1 + 2**32, 2 + 2**63])))
    assert main(["validate", str(trace)]) == 0
    proven = load(trace)
    assert proven.graph.hash_ids(1).tolist() == [1 + 2**32, 2 + 2**63]


@pytest.mark.parametrize("command", [["replay"], ["lower", "--out", "x.jsonl"]])
def test_the_other_commands_refuse_it_as_well(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_bytes(v2(row("a", after("nobody"))))
    assert main([command[0], "t.jsonl", *command[1:]]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "edge-dangling" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl"]
