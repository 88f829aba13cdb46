"""Small packed files that would become large: refused by their size, their growth, or how many elements they have."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from playproof_lowering import load_graph
from playproof_lowering import source as source_module
from playproof_lowering.source import Reading, collect, read_through
from playproof_spec.findings import Finding, Findings

from playproof import cli


def found_in(path: Path) -> list[Finding]:
    findings = load_graph([path]).findings
    return [item for item in findings.items if item.code != "format-chosen"]


def test_a_small_file_of_millions_of_elements_takes_little_memory(tmp_path: Path) -> None:
    """80 MB of brackets in about 90 KB: decoded they would be some 40 million lists of 56 bytes."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id":"x","models":[],"requests":[' + b"[[],[]]," * 10_000_000 + b"0]}\n"))
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    try:
        (item,) = found_in(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (item.code, item.where.line) == ("file-too-large", 1)
    assert "one record has more than 8388608 elements" in item.message
    assert item.hint
    # Its text in pieces, and joined.
    assert peak < 300e6


@pytest.mark.parametrize("elements", [1000, 1001])
def test_elements_are_counted_exactly(elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of n numbers has n - 1 commas and one bracket."""
    monkeypatch.setattr(source_module, "MAX_ELEMENTS", 1000)
    path = tmp_path / "a.json"
    path.write_bytes(b"[" + b",".join(b"1" for _ in range(elements)) + b"]")
    (file,), _ = collect([path], Findings())
    findings, sink = Findings(), list[object]()
    read_through(file, lambda reading: sink.append(reading.whole()), findings)
    assert [item.code for item in findings.items] == ([] if elements == 1000 else ["file-too-large"])
    path.rename(tmp_path / "a.jsonl")
    (file,), _ = collect([tmp_path / "a.jsonl"], Findings())
    again = Findings()
    read_through(file, lambda reading: sink.extend(reading.records()), again)
    assert len(again.items) == (elements > 1000)


def unpack(reading: Reading) -> None:
    for _ in reading.chunks():
        pass


@pytest.mark.parametrize("pack", ["gz", "zst"])
def test_growth_is_bounded(pack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces grow about a thousandfold with gzip, and more with zstd; a bound of 100 refuses both beyond 1 MiB."""
    monkeypatch.setattr(source_module, "FREE_EXPANSION_BYTES", 2**20)
    monkeypatch.setattr(source_module, "MAX_EXPANSION", 100)
    compress = gzip.compress if pack == "gz" else zstandard.compress
    for size, refused in ((2**20, False), (2**22, True)):
        path = tmp_path / f"{size}.jsonl.{pack}"
        path.write_bytes(compress(b"{}\n" + b" " * (size - 3)))
        (file,), _ = collect([path], Findings())
        findings = Findings()
        read_through(file, unpack, findings)
        assert [item.code for item in findings.items] == (["file-too-large"] if refused else [])
        if refused:
            assert "unpacks to more than 100 times its size" in findings.items[0].message


def test_records_have_128_mib() -> None:
    assert source_module.MAX_RECORD_BYTES == 128 * 2**20


def test_too_little_memory_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    (file,), _ = collect([path], Findings())

    def read(reading: Reading) -> None:
        raise MemoryError

    findings = Findings()
    read_through(file, read, findings)
    assert [item.message for item in findings.items] == ["there is not enough memory to read this file"]


def test_too_little_memory_elsewhere_is_no_fault_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*given: object, **settings: object) -> None:
        raise MemoryError

    monkeypatch.setattr("playproof.api.validate", short)
    assert cli.main(["validate", str(tmp_path)]) == 2
    assert "not enough memory" in capsys.readouterr().err
