"""Source files: order, identity, compression, and what is refused (the refusals are in test_bad_input)."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3
from playproof_lowering import load_graph
from playproof_lowering.formats import detect
from playproof_lowering.identity import namespace
from playproof_lowering.source import Reading, SourceError, SourceFile, collect
from playproof_lowering.turns import instant_ns
from playproof_spec.findings import Findings


def listed(*paths: Path) -> tuple[list[SourceFile], int, Findings]:
    findings = Findings()
    files, ignored = collect(paths, findings)
    return files, ignored, findings


def touched(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")


def test_a_folder_is_walked_in_the_order_of_relative_paths(tmp_path: Path) -> None:
    touched(tmp_path, "b/z.json", "b.json", "a/x.jsonl", "a/y.jsonl.gz", "a.JSON", "é.json.zst", "notes.txt", "a/z.gz")
    files, ignored, findings = listed(tmp_path)
    assert [file.relative for file in files] == [
        "a.JSON",
        "a/x.jsonl",
        "a/y.jsonl.gz",
        "b.json",
        "b/z.json",
        "é.json.zst",
    ]
    assert ignored == 2
    assert not findings.errors
    assert [file.lines for file in files] == [False, True, True, False, False, False]
    assert [file.compression for file in files] == ["", "", "gz", "", "", "zst"]
    assert files[1].shown == f"{tmp_path}/a/x.jsonl"


def test_the_order_of_the_paths_given_changes_nothing(tmp_path: Path) -> None:
    touched(tmp_path, "one/b.json", "two/a.json", "c.json")
    paths = [tmp_path / "one", tmp_path / "two", tmp_path / "c.json"]
    there, _, _ = listed(*paths)
    back, _, _ = listed(*reversed(paths))
    assert there == back
    assert [file.relative for file in there] == ["a.json", "b.json", "c.json"]


def test_ids_do_not_depend_on_where_the_corpus_lies(tmp_path: Path) -> None:
    touched(tmp_path, "here/team/trace.json", "elsewhere/deep/team/trace.json")
    one, _, _ = listed(tmp_path / "here")
    other, _, _ = listed(tmp_path / "elsewhere" / "deep")
    assert namespace(one[0]) == namespace(other[0]) == "team/trace"


@pytest.mark.parametrize(
    ("name", "line", "wanted"),
    [
        ("a.json", 0, "a"),
        ("a.jsonl.gz", 3, "a:3"),
        ("x/a.JSON.ZST", 0, "x/a"),
        (".json", 0, ".json"),
        ("a.b", 2, "a.b:2"),
    ],
)
def test_namespace(tmp_path: Path, name: str, line: int, wanted: str) -> None:
    touched(tmp_path, name)
    files, _, _ = listed(tmp_path / name)
    relative = SourceFile(**{field: getattr(files[0], field) for field in SourceFile.__slots__} | {"relative": name})
    assert namespace(relative, line) == wanted


def one(path: Path) -> Reading:
    files, _, findings = listed(path)
    assert not findings.errors
    return Reading(files[0])


CONTENT = b"".join(b'{"number": %d}\n' % number for number in range(5000))


@pytest.mark.parametrize("pack", ["plain", "gz", "zst", "two members", "two frames"])
def test_records_of_any_packing(tmp_path: Path, pack: str) -> None:
    half = CONTENT.index(b"\n", len(CONTENT) // 2) - 3
    packed = {
        "plain": ("a.jsonl", CONTENT),
        "gz": ("a.jsonl.gz", gzip.compress(CONTENT, mtime=0)),
        "zst": ("a.jsonl.zst", zstandard.compress(CONTENT)),
        "two members": ("a.jsonl.gz", gzip.compress(CONTENT[:half], mtime=0) + gzip.compress(CONTENT[half:], mtime=0)),
        "two frames": ("a.jsonl.zst", zstandard.compress(CONTENT[:half]) + zstandard.compress(CONTENT[half:])),
    }
    name, data = packed[pack]
    path = tmp_path / name
    path.write_bytes(data)
    reading = one(path)
    assert list(reading.records()) == [(line, text) for line, text in enumerate(CONTENT.splitlines(), 1)]
    assert reading.digest == blake3(data).hexdigest()
    assert one(path).whole() == CONTENT
    assert one(path).head(100) == CONTENT[:100]


def test_lines_count_blank_ones_and_need_no_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"a": 1}\r\n   \n{"b": 2}')
    assert list(one(path).records()) == [(2, b'{"a": 1}\r'), (4, b'{"b": 2}')]


def test_a_line_longer_than_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    long = b"[" + b"1," * 2_000_000 + b"1]"
    path.write_bytes(b"{}\n" + long + b"\n{}")
    assert [(line, len(text)) for line, text in one(path).records()] == [(1, 2), (2, len(long)), (3, 2)]


@pytest.mark.parametrize("cut", [1, 5, 12, 200])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_cut_stream_is_refused_after_its_whole_lines(tmp_path: Path, suffix: str, cut: int) -> None:
    packed = (
        gzip.compress(CONTENT, mtime=0)
        if suffix == "gz"
        else zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT)
    )
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(packed[:-cut])
    seen: list[int] = []
    with pytest.raises(SourceError) as caught:
        seen.extend(line for line, _ in one(path).records())
    assert caught.value.item.code == "compression-broken"
    assert seen == list(range(1, len(seen) + 1))


def test_a_file_that_grows_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(CONTENT)
    records = one(path).records()
    next(records)
    with path.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(SourceError) as caught:
        list(records)
    assert caught.value.item.code == "file-changed"


def test_a_file_that_was_replaced_after_listing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}")
    reading = one(path)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(SourceError) as caught:
        reading.whole()
    assert caught.value.item.code in ("file-unreadable", "file-changed")


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    _, _, findings = listed(tmp_path)
    assert [item.code for item in findings.items] == ["path-not-text"]
    assert str(findings.items[0]).isprintable()


@pytest.mark.parametrize(
    ("name", "packed", "found"),
    [
        ("trace.jsonl.xz", lzma.compress(b"{}"), "xz"),
        ("trace.jsonl.bz2", bz2.compress(b"{}"), "bzip2"),
        ("trace.zip", b"PK\x03\x04" + bytes(26), "zip"),
        ("trace.jsonl", gzip.compress(b"{}", mtime=0), "gzip"),
        ("trace.json", zstandard.compress(b"{}"), "zstd"),
        ("trace.json.gz", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "gzip"),
    ],
)
@pytest.mark.parametrize("format", ["auto", "mooncake"])
def test_other_archives_are_told_by_their_kind(
    tmp_path: Path, name: str, packed: bytes, found: str, format: str
) -> None:
    (tmp_path / name).write_bytes(packed)
    result = load_graph([tmp_path / name], format=format)
    items = [item for item in result.findings.items if item.code == "compression-unknown"]
    assert [(item.found, item.where.file) for item in items] == [(found, str(tmp_path / name))]


# One first record of each kind, with what surrounds the marks in real files; the names of files say nothing.
HEADS = [
    (b'{"schema": "dynamo.agentic_mooncake", "version": 2}', "agentic_mooncake"),
    (b'{"request_id": "a", "play_id": "p", "hash_ids": [1]}', "agentic_mooncake"),
    (b'{"id": "t", "models": ["m"], "block_size": 64, "requests": []}', "weka"),
    (b'{"type": "summary", "summary": "x", "leafUuid": "u"}', "claude"),
    (b'{"parentUuid": null, "isSidechain": false, "message": {"requests": [1]}}', "claude"),
    (b'{"agentType": "Explore", "description": "x"}', "claude"),
    (b'{"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}', "claude"),
    (b'{"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {"id": "t"}}', "codex"),
    (b'{"schema": "dynamo.request.trace.v1", "event_type": "request_end"}', "dynamo"),
    (b'{"timestamp": 5, "event": {"schema": "dynamo.request.trace.v1"}}', "dynamo"),
    (b'{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}', "mooncake"),
    (b'{"num_turns": 2, "input_prompt_length": 20}', "applied_compute_agentic"),
    (b'  \n {"num_turns": 2}\n{"hash_ids": []}', "applied_compute_agentic"),
    (b'{"name": "a package", "version": "1.0"}', None),
    (b'{"a": {"hash_ids": [1]}}', None),
    (b'["hash_ids"]', None),
    (b"hash_ids", None),
    (b'{"\\ud800": 1, "hash_idz": 2}', None),
    (b"", None),
]


@pytest.mark.parametrize(("head", "format"), HEADS)
def test_a_format_is_told_by_the_first_record(head: bytes, format: str | None) -> None:
    assert detect(head) == format


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T00:00:01", 10**9),
        ("1970-01-01T05:30:01+05:30", 10**9),
        ("1969-12-31T16:00:01.25-08:00", 1_250_000_000),
        ("1970-01-01T00:00:00+00:01", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", 253_402_351_199 * 10**9),
        ("yesterday", None),
        ("", None),
    ],
)
def test_instants_are_utc_whatever_their_offset(text: str, ns: int | None) -> None:
    assert instant_ns(text) == ns
