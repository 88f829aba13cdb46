"""--skip-bad, --exclude, --follow-links and standard input: what is read of a corpus, and what the certificate says."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_lowering.stdin import spooled
from playproof_spec.certificate import prove
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Severity

import playproof as pp
from playproof import api

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
# One recording in lines of each format, and the golden of v2, which has no folder of its own.
LINES = sorted(path.parent.name for path in GOLDENS.glob("lower-*/trace.jsonl"))
ROW = '{"input_length":5,"output_length":1,"timestamp":%d}\n'


def options_of(name: str) -> dict[str, Any]:
    file = GOLDENS / name / "options.json"
    return dict(json.loads(file.read_bytes())) if file.exists() else {}


def left_out(result: Lowered) -> Any:
    return result.facts["left_out"]


def read(path: Path, name: str = "", **more: Any) -> Lowered:
    options = options_of(name) if name else {}
    return load_graph([path], format=options.pop("format", "auto"), options=LoweringOptions(**{**options, **more}))


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("bad", ["middle", "torn", "both"])
def test_every_format_reads_on_without_what_cannot_be_read(tmp_path: Path, name: str, bad: str) -> None:
    lines = (GOLDENS / name / "trace.jsonl").read_bytes().splitlines(keepends=True)
    # Some formats name a request by its line, so an empty line stands where the bad one will.
    place = len(lines) // 2 + 1
    last = lines[-1]
    lines.insert(place, b"\n")
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    whole = read(path, name)
    if bad != "torn":
        lines[place] = b'{"broken": \n'
    if bad != "middle":
        lines.append(last.rstrip()[:-7])
    path.write_bytes(b"".join(lines))
    assert read(path, name).findings.errors
    result = read(path, name, skip_bad=True)
    assert result.graph is not None
    assert whole.graph is not None
    assert graph_digest(result.graph) == graph_digest(whole.graph)
    counts = left_out(result)
    assert (counts["records"], counts["torn_last_lines"]) == (int(bad != "torn"), int(bad != "middle"))
    assert counts["files"] == 0
    certificate = prove(result.graph, result.findings).certificate
    assert certificate.to_dict()["left_out"] == counts


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.jsonl", b""),
        ("text.jsonl", b"hello\n"),
        ("list.json", b"[1]"),
        ("half.json", b'{"requests": ['),
        ("other.jsonl", b'{"requests": []}\n'),
        ("nobodys.jsonl", b'{"a": 1}\n'),
        ("broken.jsonl.gz", gzip.compress(b"x" * 1000, mtime=0)[:40]),
        ("utf16.jsonl", '{"a": 1}'.encode("utf-16")),
    ],
)
def test_files_that_cannot_be_read_are_named_and_counted(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / "0.jsonl").write_text(ROW % 0)
    (tmp_path / name).write_bytes(data)
    assert load_graph([tmp_path]).findings.errors
    result = load_graph([tmp_path], options=LoweringOptions(skip_bad=True))
    assert result.graph is not None
    assert not result.findings.errors
    assert left_out(result)["files"] == 1
    assert any(name in named for named in left_out(result)["named"])
    assert result.graph.facts["left_out"] == left_out(result)


def test_nothing_left_is_not_proven(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("hello\n")
    result = load_graph([tmp_path], options=LoweringOptions(skip_bad=True))
    assert result.graph is None
    assert result.findings.errors == 1


def test_contradictions_are_not_left_out(tmp_path: Path) -> None:
    rows = [json.loads(ROW % 5) | {"session_id": "s"}, json.loads(ROW % 9) | {"wait_for": ["x"], "session_id": "s"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = load_graph([tmp_path], options=LoweringOptions(skip_bad=True))
    assert [item.code for item in result.findings.items if item.severity is Severity.ERROR] == ["header-missing"]


def test_what_the_proof_finds_wrong_stays_an_error(tmp_path: Path) -> None:
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}
    row = {"play_id": "p", "session_id": "p", "model": "m", "input_length": 4, "output_length": 1, "hash_ids": [1]}
    rows = [header | {"source": {"format": "h", "digest": "x"}}, row | {"request_id": "a", "not_before_ms": -1}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    result = api.validate(path, skip_bad=True)
    assert not result.ok
    assert [item.code for item in result.findings.items if item.severity is Severity.ERROR] == ["time-negative"]


def test_a_record_is_counted_once_however_much_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(ROW % 0 + '{"input_length": "x", "output_length": -1, "timestamp": "y"}\n' + ROW % 3)
    counts = left_out(load_graph([path], options=LoweringOptions(skip_bad=True)))
    assert (counts["records"], counts["named"]) == (1, [f"{path}:2"])


def test_the_report_says_what_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(ROW % 0 + "{oops\n" + ROW % 3)
    proven = pp.load(path, skip_bad=True)
    assert proven.certificate.left_out["records"] == 1
    assert proven.graph.facts["left_out"] == proven.certificate.left_out


# Which files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ((), ["a.jsonl", "b.jsonl", "sub/a.jsonl", "sub/deep/c.jsonl"]),
        (("b*",), ["a.jsonl", "sub/a.jsonl", "sub/deep/c.jsonl"]),
        (("a.jsonl",), ["b.jsonl", "sub/deep/c.jsonl"]),
        (("sub",), ["a.jsonl", "b.jsonl"]),
        (("sub/",), ["a.jsonl", "b.jsonl"]),
        (("sub/*",), ["a.jsonl", "b.jsonl"]),
        (("deep", "[b-z].jsonl"), ["a.jsonl", "sub/a.jsonl"]),
    ],
)
def test_patterns_leave_files_and_folders_out(tmp_path: Path, patterns: tuple[str, ...], kept: list[str]) -> None:
    for place, name in enumerate(("a.jsonl", "b.jsonl", "sub/a.jsonl", "sub/deep/c.jsonl")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ROW % place)
    result = load_graph([tmp_path], options=LoweringOptions(exclude=patterns))
    assert [source.relative for source in result.sources] == kept
    assert ("input_files_excluded" in result.facts) is bool(patterns)


def test_links_are_followed_when_that_is_asked_for(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "inner").mkdir(parents=True)
    (real / "a.jsonl").write_text(ROW % 0)
    (real / "inner" / "b.jsonl").write_text(ROW % 1)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "one.jsonl").symlink_to(real / "a.jsonl")
    (corpus / "folder").symlink_to(real / "inner")
    assert load_graph([corpus]).findings.counts["path-symlink"] == 2
    result = load_graph([corpus], options=LoweringOptions(follow_links=True))
    assert not result.findings.errors
    assert [source.relative for source in result.sources] == ["folder/b.jsonl", "one.jsonl"]
    assert load_graph([corpus / "one.jsonl"], options=LoweringOptions(follow_links=True)).graph is not None


def test_links_in_a_circle_or_to_nowhere_end_in_findings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(ROW % 0)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    result = load_graph([tmp_path], options=LoweringOptions(follow_links=True))
    assert {code for code in result.findings.counts if code.startswith("path")} == {"path-missing", "path-symlink"}


def test_a_file_under_two_links_is_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(ROW % 0)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    result = load_graph([tmp_path], options=LoweringOptions(follow_links=True))
    assert result.findings.counts["path-twice"] == 1


# Standard input -----------------------------------------------------------------------------------------------------


class _Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("pretty", [False, True])
def test_standard_input_is_read_as_a_file(monkeypatch: pytest.MonkeyPatch, pack: Any, pretty: bool) -> None:
    golden = GOLDENS / "lower-hashes-ceil"
    document = json.loads((golden / "trace.json").read_bytes())
    data = json.dumps(document, indent=2 if pretty else None).encode()
    monkeypatch.setattr("sys.stdin", _Stdin(pack(data)))
    result = load_graph(["-"])
    assert result.graph is not None
    assert (result.graph.node_count, result.graph.files) == (
        load_graph([golden / "trace.json"]).graph.node_count,  # type: ignore[union-attr]
        ("<stdin>",),
    )


def test_standard_input_beside_files_and_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text(ROW % 0)
    monkeypatch.setattr("sys.stdin", _Stdin((ROW % 5).encode()))
    result = load_graph([tmp_path / "a.jsonl", "-"])
    assert [source.relative for source in result.sources] == ["a.jsonl", "stdin"]
    monkeypatch.setattr("sys.stdin", _Stdin((ROW % 5).encode()))
    assert load_graph(["-", "-"]).findings.counts["path-twice"] == 1
    monkeypatch.setattr("sys.stdin", _Stdin(b""))
    assert load_graph(["-"]).findings.counts["file-empty"] == 1


def test_the_copy_of_standard_input_goes_with_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", _Stdin((ROW % 5).encode()))
    result = load_graph(["-"])
    assert result.scratch is not None
    folder = result.scratch.name
    assert os.path.isdir(folder)
    del result
    assert not os.path.exists(folder)


@pytest.mark.parametrize(("head", "lines"), [(b'{"a": 1}\n{"a": 2}\n', True), (b'{\n  "a": 1\n}\n', False)])
def test_records_of_standard_input(tmp_path: Path, head: bytes, lines: bool) -> None:
    assert spooled(tmp_path, io.BytesIO(head)).lines is lines
