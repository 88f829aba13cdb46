"""What the goldens of Claude Code and Codex shapes hold, worked out by hand from their records.

`test_goldens_of_lowering.py` compares the files whole; these tables could not be written by a mistaken program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
ROOT, KID, KID2 = (f"019d0000-0000-7000-8000-0000000000{number}" for number in ("01", "50", "51"))

Edge = tuple[str, str, str, float]


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"lower-{name}" / "expected.jsonl").read_text().splitlines()[1:]]


def findings(name: str) -> list[str]:
    lines = (FOLDER / f"lower-{name}" / "findings.txt").read_text(encoding="utf-8").splitlines()
    return [line.split()[1] for line in lines if "format-chosen" not in line]


def after(source: str, delay_ms: float) -> Edge:
    return source, "sequence", "completion", delay_ms


def spawned(source: str, delay_ms: float) -> Edge:
    return source, "spawn", "completion", delay_ms


def joins(source: str, delay_ms: float) -> Edge:
    return source, "join", "completion", delay_ms


def a(call: str) -> str:
    return f"alpha:{call}"


def r(number: int) -> str:
    return f"{ROOT}:{ROOT}:{number}"


def k(number: int, kid: str = KID) -> str:
    return f"{ROOT}:{kid}:{number}"


# Of each call: its id, start and service in ms on its play's clock, tokens in and out, and the edges into it.
Call = tuple[str, float, float, int, int, list[Edge]]
CALLS: dict[str, list[Call]] = {
    # The clock of each play starts with its first input, at 1 s.
    "claude-one-id": [
        (a("main:0"), 0, 2000, 40, 5, []),
        (a("main:1"), 3000, 2000, 60, 5, [after(a("main:0"), 1000)]),
        (a("main:2"), 6000, 2000, 60, 5, [after(a("main:1"), 1000)]),
        (a("main:3"), 9000, 2000, 96, 8, [after(a("main:2"), 1000)]),
        ("beta:main:0", 0, 2000, 40, 5, []),
        ("beta:main:1", 19000, 2000, 56, 5, [after("beta:main:0", 17000)]),
    ],
    # 10 s from 10 s on, by 20 : 60 : 20; and 8 s from 32 s on, by 30 : 10.
    "claude-iterations": [
        (a("main:0"), 0, 2000, 64, 5, []),
        (a("main:1"), 9000, 2000, 16 + 64, 20, [after(a("main:0"), 7000)]),
        (a("main:2"), 11000, 6000, 320, 60, [after(a("main:1"), 0)]),
        (a("main:3"), 17000, 2000, 16 + 80, 20, [after(a("main:2"), 0)]),
        (a("main:4"), 20000, 1000, 112, 5, [after(a("main:3"), 1000)]),
        (a("main:5"), 31000, 6000, 144, 30, [after(a("main:4"), 10000)]),
        (a("main:6"), 37000, 2000, 48, 10, [after(a("main:5"), 0)]),
    ],
    "claude-last-row": [
        (a("main:0"), 0, 4000, 8 + 32, 9, []),
        (a("main:1"), 19000, 2000, 60, 5, [joins(a("agent:one:0"), 11000), after(a("main:0"), 15000)]),
        (a("main:2"), 29000, 3000, 80, 5, [after(a("main:1"), 8000)]),
        (a("agent:one:0"), 5000, 3000, 24, 5, [spawned(a("main:0"), 1000)]),
    ],
    "claude-workflow": [
        (a("main:0"), 0, 2000, 40, 5, []),
        (a("main:1"), 2500, 1500, 56, 5, [after(a("main:0"), 500)]),
        (a("main:2"), 4500, 1500, 72, 5, [after(a("main:1"), 500)]),
        (
            a("main:3"),
            29000,
            2000,
            88,
            5,
            [joins(a("agent:wa:0"), 24000), joins(a("agent:wb:1"), 10000), after(a("main:2"), 23000)],
        ),
        (a("main:4"), 39000, 2000, 104, 5, [joins(a("agent:wc:0"), 32000), after(a("main:3"), 8000)]),
        (a("agent:wa:0"), 3000, 2000, 24, 5, [spawned(a("main:0"), 1000)]),
        (a("agent:wc:0"), 5000, 2000, 24, 5, [spawned(a("main:1"), 1000)]),
        (a("agent:wb:0"), 9000, 2000, 24, 5, [spawned(a("main:0"), 7000)]),
        (a("agent:wb:1"), 12000, 7000, 40, 5, [after(a("agent:wb:0"), 1000)]),
    ],
    "claude-surrogate": [
        (a("main:0"), 0, 2000, 40, 5, []),
        (a("main:1"), 3000, 2000, 60, 5, [after(a("main:0"), 1000)]),
    ],
    "claude-two-processes": [
        (a("main:0"), 0, 2000, 64, 5, []),
        (a("main:1"), 10000, 2000, 80, 5, [after(a("main:0"), 8000)]),
        (a("main:2"), 16000, 2000, 112, 5, [after(a("main:1"), 4000)]),
        (a("main:3"), 29000, 1000, 128, 5, [after(a("main:2"), 11000)]),
        (a("main:4"), 39000, 1000, 120, 5, [after(a("main:3"), 9000)]),
        (a("main~a2:0"), 9000, 5000, 96, 5, [spawned(a("main:0"), 7000)]),
        (a("main~a2:1"), 15000, 4000, 128, 5, [after(a("main~a2:0"), 1000)]),
    ],
    "claude-branch": [
        (a("main:0"), 0, 2000, 40, 5, []),
        (a("main:1"), 4000, 1000, 60, 5, [after(a("main:0"), 2000)]),
        (a("main:2"), 499000, 1000, 80, 5, [after(a("main:1"), 494000)]),
        ("beta:main:0", 0, 2000, 76, 5, []),
    ],
    "codex-aborted": [
        (r(0), 0, 2000, 96, 5, []),
        (r(1), 59000, 2500, 144, 5, [after(r(0), 57000)]),
        (r(2), 89500, 1500, 160, 5, [after(r(1), 28000)]),
        (k(0), 4800, 2200, 32, 5, []),
    ],
    "codex-history": [
        (r(0), 0, 2000, 96, 5, []),
        (r(1), 3000, 2000, 112, 5, [after(r(0), 1000)]),
        (r(2), 5400, 800, 128, 5, [after(r(1), 400)]),
        (r(3), 19000, 2000, 160, 5, [after(r(2), 12800), joins(k(0), 9800)]),
        (k(0), 6000, 3200, 128, 5, [spawned(r(1), 1000)]),
    ],
    "codex-last-turns": [
        (r(0), 0, 2000, 96, 5, []),
        (r(1), 3000, 2000, 112, 5, [after(r(0), 1000)]),
        (r(2), 5400, 800, 128, 5, [after(r(1), 400)]),
        (r(3), 19000, 2000, 160, 5, [after(r(2), 12800), joins(k(0), 9800), joins(k(0, KID2), 9800)]),
        (k(0), 6000, 3200, 128, 5, [spawned(r(1), 1000)]),
        (k(0, KID2), 6000, 3200, 128, 5, [spawned(r(1), 1000)]),
    ],
    "codex-paths": [
        (r(0), 0, 2000, 80, 5, []),
        (r(1), 2300, 2800, 96, 5, [after(r(0), 300)]),
        (r(2), 11010, 1990, 112, 5, [after(r(1), 5910), joins(k(0), 1010)]),
        (r(3), 19000, 2000, 128, 5, [after(r(2), 6000), joins(k(0, KID2), 1000)]),
        (k(0), 2400, 7600, 32, 5, [spawned(r(0), 400)]),
        (k(0, KID2), 2500, 15500, 32, 5, [spawned(r(0), 500)]),
    ],
    "codex-code-mode": [
        (r(0), 0, 2050, 80, 5, []),
        (r(1), 2200, 2900, 96, 5, [after(r(0), 150)]),
        (r(2), 11010, 1990, 112, 5, [after(r(1), 5910), joins(k(0), 1010)]),
        (r(3), 19000, 2000, 128, 5, [after(r(2), 6000), joins(k(0, KID2), 1000)]),
        (k(0), 2200, 7800, 32, 5, [spawned(r(0), 150)]),
        (k(0, KID2), 6500, 11500, 32, 5, [spawned(r(1), 1400)]),
    ],
    "codex-usage-records": [
        (r(0), 0, 1500, 96, 3, []),
        (r(1), 2000, 2000, 208 - 96, 8 - 3, [after(r(0), 500)]),
        (r(2), 9000, 2000, 128, 4, [after(r(1), 5000)]),
        (r(3), 19000, 2000, 144, 6, [after(r(2), 8000)]),
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_worked_out_by_hand(name: str) -> None:
    told = [
        (
            row["request_id"],
            row["not_before_ms"],
            row["recorded_api_time_ms"],
            row["input_length"],
            row["output_length"],
            sorted((e["request_id"], e["relation"], e["trigger"], e["delay_ms"]) for e in row["dependencies"]),
        )
        for row in rows(name)
    ]
    assert told == [(*call[:5], sorted(call[5])) for call in CALLS[name]]


# Blocks of 16 tokens; only full ones are shared. A prompt keeps those of the one that it goes on from.
FULL_BLOCKS: list[tuple[str, str, list[int]]] = [
    # The advisor's 20 are its own, and the conversation goes on from what it was before it.
    ("claude-iterations", a("main:1"), [0, 1, 2, 3, 4]),
    ("claude-iterations", a("main:2"), list(range(5, 25))),
    ("claude-iterations", a("main:3"), [0, 1, 2, 3, 4, 25]),
    ("claude-iterations", a("main:5"), [0, 1, 2, 3, 4, 25, 26, 27, 28]),
    ("claude-iterations", a("main:6"), [29, 30, 31]),
    ("claude-two-processes", a("main:1"), [0, 1, 2, 3, 4]),
    ("claude-two-processes", a("main~a2:0"), [0, 1, 2, 3, 15, 16]),
    ("claude-branch", "beta:main:0", [0, 1, 2, 5]),
    # A full fork goes on from the call that spawned it, 112 tokens; a fork of the last turns does not.
    ("codex-history", k(0), [0, 1, 2, 3, 4, 5, 6, 10]),
    ("codex-last-turns", k(0), list(range(10, 18))),
]


@pytest.mark.parametrize(("name", "request_id", "wanted"), FULL_BLOCKS, ids=[f"{c[0]}-{c[1]}" for c in FULL_BLOCKS])
def test_blocks_are_those_worked_out_by_hand(name: str, request_id: str, wanted: list[int]) -> None:
    row = next(row for row in rows(name) if row["request_id"] == request_id)
    assert row["hash_ids"][: row["input_length"] // 16] == wanted


def test_the_advisor_is_another_model() -> None:
    models = {row["request_id"]: row["model"] for row in rows("claude-iterations")}
    assert [request_id for request_id, model in models.items() if model == "bigger"] == [a("main:2")]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("claude-one-id", ["message-id-reused"]),
        ("claude-iterations", ["message-divided"]),
        ("claude-last-row", ["call-without-usage"]),
        ("claude-workflow", ["file-beside"] * 4),
        ("claude-surrogate", ["surrogate-lone"]),
        ("claude-two-processes", ["conversation-branched"]),
        ("claude-branch", ["calls-copied"]),
        ("codex-aborted", ["agent-unlinked"]),
        ("codex-history", ["history-uncut", "session-empty"]),
        ("codex-last-turns", []),
        ("codex-paths", []),
        ("codex-code-mode", []),
        ("codex-usage-records", []),
    ],
)
def test_what_is_told_of_each(name: str, wanted: list[str]) -> None:
    assert findings(name) == wanted
