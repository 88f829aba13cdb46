"""Mutated files: whatever the bytes, reading and proving end with findings, and never with a traceback or a hang.

Set FUZZ_SECONDS to go on for that long with a fresh seed, which is printed; FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from playproof_lowering import LoweringOptions, load_graph, placed
from playproof_lowering.formats import FORMATS
from playproof_spec.certificate import prove
from playproof_spec.findings import Finding, InvalidInput

CASES = 300
# A case takes milliseconds; this only has to tell a hang from a busy machine.
CASE_SECONDS_MAX = 300.0

NASTY = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"-0", b"0", b"1e-400", b"null", b"true", b"[]", b"{}", b'""',
    b'"\\ud800"', b'"\xff"', b"9" * 400, str(2**63).encode(), str(2**64).encode(), b"1.5", b"[" * 100_000, b"{" * 5_000,
    b'{"a":' * 2_000, b'"' + b"x" * 70_000 + b'"', b"\x00", b"\xef\xbb\xbf", b"\n", b"\r\n", b",", b":", b"]", b"}",
]  # fmt: skip
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9.eE+]+|true|false|null|[{}\[\],:\n]')


def v2_file() -> bytes:
    def row(number: int, **changes: Any) -> dict[str, Any]:
        edges = [{"request_id": f"r{number - 1}", "trigger": "completion", "delay_ms": 1.5, "relation": "sequence"}]
        return {
            "request_id": f"r{number}",
            "play_id": f"p{number // 3}",
            "source_play_ordinal": number // 3,
            "session_id": "s",
            "model": "m",
            "input_length": 40,
            "output_length": 2,
            "output_token_ids": [5, 6],
            "hash_ids": [1, 2, 3 + number],
            "not_before_ms": 2.5 * number,
            "recorded_api_time_ms": None,
            "priority": number,
            "policy_class": "batch",
            "dependencies": edges if number % 3 else [],
        } | changes

    source = {"format": "hand", "digest": "none"}
    schema = "dynamo.agentic_mooncake"
    header = {"schema": schema, "version": 2, "block_size": 16, "hash_id_scope": "local", "source": source}
    return b"".join(json.dumps(record).encode() + b"\n" for record in [header, *(row(n) for n in range(6))])


def weka_play() -> bytes:
    def call(t: float, *ids: int, **changes: Any) -> dict[str, Any]:
        return {
            "t": t,
            "type": "n",
            "model": "m",
            "in": 16 * len(ids) + 3,
            "out": 2,
            "hash_ids": ids,
            "api_time": 1.0,
        } | changes

    agent = {
        "t": 9.0,
        "type": "subagent",
        "agent_id": "a",
        "subagent_type": "Explore",
        "duration_ms": 4000,
        "status": "completed",
        "requests": [call(0.0, 7, 8), call(2.0, 7, 8, 9, type="s", ttft=0.2)],
    }
    requests = [
        call(0.0, 1),
        call(2.0, 1, 2),
        agent,
        agent | {"agent_id": "b", "t": 8.0},
        call(12.0, 1, 2, 3),
        call(12.5, 1, 5),
    ]
    return json.dumps(
        {"id": "x", "models": ["m"], "block_size": 16, "hash_id_scope": "local", "requests": requests}
    ).encode()


def goldens() -> list[tuple[str, bytes]]:
    """Return the recordings of all goldens, each file by itself: every format has some."""
    folder = Path(__file__).resolve().parent.parent / "goldens"
    files = [
        path
        for golden in sorted(folder.glob("lower-*"))
        for path in sorted([*golden.rglob("*.jsonl"), *golden.rglob("*.json")])
        if path.name not in ("expected.jsonl", "options.json")
    ]
    return [(path.suffix, path.read_bytes()) for path in files]


SEEDS = [(".jsonl", v2_file()), (".json", weka_play()), (".jsonl", weka_play() + b"\n" + weka_play() + b"\n")]
SESSIONS = goldens()


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return `data` with one thing wrong."""
    spans = [match.span() for match in TOKEN.finditer(data)] or [(0, len(data))]
    begin, end = rng.choice(spans)
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(9)
    if kind == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:begin] + rng.choice(NASTY) + data[end:]
    if kind == 3:
        other_begin, other_end = rng.choice(spans)
        return data[:begin] + data[other_begin:other_end] + data[end:]
    if kind == 4:
        return data[:at] + rng.choice(NASTY) + data[at:]
    if kind == 5:
        stop = min(len(data), at + rng.randrange(1, 200))
        return data[:at] + data[stop:]
    if kind == 6:
        stop = min(len(data), at + rng.randrange(1, 200))
        return data[:stop] + data[at:stop] + data[stop:]
    if kind == 7:
        # A duplicate key: the same member once more, with another value.
        members = [m.span() for m in re.finditer(rb'"[a-z_]+": [^,{}\[\]]+,', data)] or [(begin, end)]
        begin, end = rng.choice(members)
        return data[:end] + data[begin:end].replace(b"1", b"7") + data[end:]
    return data + rng.choice([b"x", data, b"\x00", b"{}", b"\n\n"])


def wrapped(rng: random.Random, suffix: str, data: bytes) -> tuple[str, bytes]:
    """Return (suffix, content), now and then compressed, and damaged after that."""
    kind = rng.randrange(12)
    if kind == 0:
        return suffix + ".gz", gzip.compress(data, mtime=0)
    if kind == 1:
        return suffix + ".zst", zstandard.compress(data)
    if kind == 2:
        return suffix + ".gz", mutated(rng, gzip.compress(data, mtime=0))
    if kind == 3:
        return suffix + ".zst", mutated(rng, zstandard.compress(data))
    if kind == 4:
        return suffix, data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"]))
    return suffix, data


def check(path: Path, rng: random.Random) -> None:
    """Read and prove one file; only findings may come of it."""
    format = rng.choice(["auto", "auto", "auto", *FORMATS])
    options = LoweringOptions(
        nested_timestamp_basis=rng.choice(["auto", "relative", "absolute"]),
        subagent_marker=rng.choice(["auto", "spawn", "completion"]),
        strict=rng.random() < 0.2,
        skip_bad=rng.random() < 0.3,
    )
    begin = time.monotonic()
    lowered = load_graph([path], format=format, options=options)
    findings = lowered.findings
    if lowered.graph is None:
        assert lowered.findings.errors
    else:
        try:
            certificate = prove(lowered.graph, lowered.findings).certificate
            assert not lowered.findings.errors
            assert bool(certificate.left_out) is options.skip_bad
        except InvalidInput as error:
            findings = error.findings
    items: tuple[Finding, ...] = placed(findings, lowered.sources).items
    assert len(items) == len(findings.items)
    for item in items:
        assert item.where.file or item.code in ("corpus-empty", "files-ignored")
        assert str(item).isprintable()
        msgspec.json.encode(item)
    assert time.monotonic() - begin < CASE_SECONDS_MAX


def test_mutated_files_end_in_findings(tmp_path: Path) -> None:
    seconds = float(os.environ.get("FUZZ_SECONDS", "0"))
    seed = int(os.environ.get("FUZZ_SEED", str(time.time_ns() if seconds else 1)))
    deadline = time.monotonic() + seconds
    done = 0
    while done < CASES or time.monotonic() < deadline:
        rng = random.Random(f"{seed}:{done}")
        suffix, data = rng.choice(rng.choice([SEEDS, SESSIONS]))
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            data = mutated(rng, data)
        suffix, data = wrapped(rng, suffix, data)
        path = tmp_path / f"case{suffix}"
        path.write_bytes(data)
        try:
            check(path, rng)
        except BaseException:
            print(f"FUZZ_SEED={seed}, case {done}: {data[:2000]!r}")
            raise
        path.unlink()
        done += 1
    print(f"{done} files, FUZZ_SEED={seed}")


FOLDERS = sorted(
    trace
    for kind in ("claude", "codex", "dynamo", "atif", "otel")
    for trace in (Path(__file__).resolve().parent.parent / "goldens").glob(f"lower-{kind}*/trace")
)


def test_folders_with_one_mutated_file_end_in_findings(tmp_path: Path) -> None:
    """What ties the files of a session or a corpus together must bear that one of them is broken."""
    for case in range(CASES // 3):
        rng = random.Random(f"folder:{case}")
        source = rng.choice(FOLDERS)
        files = sorted(path for path in source.rglob("*") if path.is_file())
        broken = rng.choice(files)
        target = tmp_path / f"case{case}"
        for path in files:
            data = path.read_bytes()
            for _ in range(rng.choice([1, 1, 3]) if path == broken else 0):
                data = mutated(rng, data)
            own = target / path.relative_to(source)
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_bytes(data)
        try:
            check(target, rng)
        except BaseException:
            print(f"case {case}: {broken}, {(target / broken.relative_to(source)).read_bytes()[:2000]!r}")
            raise
