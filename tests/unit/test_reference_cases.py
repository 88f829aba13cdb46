"""Every reference case of the families simulated so far, per request, to the microsecond."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from peer import as_the_peer

import playproof as pp

# The run controls have a module of their own (`test_controlled_cases`).
LATER = re.compile("snapshot|warm|profile")
EXACT = ("terminal_status", "output_length", "input_length", "prefill_worker_idx", "decode_worker_idx")
TIMES_MS = ("arrival_time_ms", "dispatched_at_ms", "first_token_ms", "terminal_time_ms")
HANDOFF_MS = ("source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms")
MICROSECOND_MS = 0.001
# Where the peer died ("effect-free zero-duration pass"), our outcome, pinned: one request's output outgrows the pool
# alone; it fails with its play, nothing of that play is left to skip, and all others complete.
# agg-sglang-tight: requests whose prompt, or prompt and output, the pool cannot hold, and which the peer waits for.
PEER_DIED = {
    "agg-vllm-tight-001": {"completed": 29, "failed": 1},
    # The peer dies where nothing runs while a load is under way. One request outgrows the pool (27 + 90 tokens in 116).
    "agg-vllm-g2-000": {"completed": 13, "failed": 1},
    # The same; 60 + 85, 56 + 89 and 70 + 75 in 144.
    "agg-vllm-g2-003": {"completed": 25, "failed": 3},
    # p1n3: 145 + 16 tokens in a decode pool of 160; p2n1: a prompt of 221. What stands behind them is skipped.
    "pd-vllm-g2-001": {"completed": 13, "failed": 2},
    # Pools that workers share. p0n4: 112 + 131 tokens in 200, p4n0: 103 + 136; p2n2: a prompt of 258.
    "agg-vllm-g2-shared-000": {"completed": 20, "failed": 2, "rejected": 1},
    # 170 + 112, 87 + 119 and 86 + 132 in 196; prompts of 213, 200 and 229.
    "agg-vllm-g2-shared-002": {"completed": 18, "failed": 3, "rejected": 3},
    # p1n1: 67 + 119 in a decode pool of 136, p1n6: 98 + 60; p0n1: a prompt of 141 in a prefill pool of 136.
    "pd-vllm-g2-shared-000": {"completed": 2, "failed": 2, "rejected": 1},
    # p0n6: 181 + 149 in 192; prompts of 214 and 215.
    "pd-vllm-g2-shared-003": {"completed": 8, "failed": 1, "rejected": 2},
    "agg-sglang-tight-001": {"completed": 1, "rejected": 2},
    "agg-sglang-tight-003": {"completed": 8, "failed": 2, "rejected": 1},
    # Prompt and output of one request outgrow the decode pool (p0n2: 26 + 134 tokens in 156, with 131 tokens out).
    "pd-vllm-tight-002": {"completed": 16, "failed": 1},
    # The same, p0n9: 262 + 87 in 304; the request behind it is skipped.
    "pd-sglang-tight-000": {"completed": 34, "failed": 1},
    # The first requests' prompts (37, 60 and 29 tokens) are larger than the decode pool of 27.
    "pd-sglang-tight-001": {"failed": 3},
    # p1n5: 12 + 122 in 116; the request behind it is skipped.
    "pd-sglang-tight-003": {"completed": 27, "failed": 1},
}


def cases(reference_dir: Path) -> list[Path]:
    folders = sorted(folder for folder in (reference_dir / "cases").iterdir() if not LATER.search(folder.name))
    assert folders, "the reference folder holds no case of these families"
    return folders


def outcome(case: Path) -> dict[str, dict[str, Any]]:
    """Replay `case` as it stands and return our request records by id."""
    return {record["request_id"]: record for record in pp.run(as_the_peer(case / "config.yaml")).request_dicts()}


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return what differs between two records of one request, in words."""
    found = [f"{name}: {ours[name]} != {theirs[name]}" for name in EXACT if ours[name] != theirs[name]]
    for name in (*TIMES_MS, *HANDOFF_MS):
        a, b = ours.get(name), theirs.get(name)
        if (a is None) != (b is None) or (a is not None and abs(a - b) > MICROSECOND_MS):
            found.append(f"{name}: {a} != {b}")
    for name in ("first_admission_g1_reused_input_tokens", "first_admission_host_reused_input_tokens"):
        if name in theirs and ours[name] != theirs[name]:
            found.append(f"{name}: {ours[name]} != {theirs[name]}")
    history = [ours["admission_history"], theirs["admission_history"]]
    if len(history[0]) != len(history[1]):
        return [*found, f"admissions: {len(history[0])} != {len(history[1])}"]
    for mine, other in zip(*history, strict=True):
        for name, value in other.items():
            same = abs(mine[name] - value) <= MICROSECOND_MS if name == "at_ms" else mine[name] == value
            if not same:
                found.append(f"admission {other['admission_ordinal']} {name}: {mine[name]} != {value}")
    return found


def test_every_request_equals_the_peers(reference_dir: Path) -> None:
    compared = 0
    for case in cases(reference_dir):
        expected = json.loads((case / "expected.json").read_text())
        if expected["status"] != "ok":
            assert case.name in PEER_DIED, f"the peer has no result for {case.name}: pin ours, with its reason"
            continue
        report = pp.run(as_the_peer(case / "config.yaml"))
        ours = {record["request_id"]: record for record in report.request_dicts()}
        assert ours.keys() == {record["request_id"] for record in expected["requests"]}, case.name
        assert report.to_dict()["g2_domains"] == expected["g2_domains"], case.name
        for theirs in expected["requests"]:
            found = differences(ours[theirs["request_id"]], theirs)
            assert not found, (case.name, theirs["request_id"], found)
            compared += 1
    assert compared > 1100


@pytest.mark.parametrize("name", sorted(PEER_DIED))
def test_ends_where_the_peer_died(reference_dir: Path, name: str) -> None:
    case = reference_dir / "cases" / name
    assert json.loads((case / "expected.json").read_text())["status"] == "error"
    counts: dict[str, int] = {}
    for record in outcome(case).values():
        counts[record["terminal_status"]] = counts.get(record["terminal_status"], 0) + 1
    assert counts == PEER_DIED[name]


def test_host_memory_was_used_where_the_peer_died(reference_dir: Path) -> None:
    # The cases that the peer ends restore nothing.
    restores = {
        "agg-vllm-g2-000": 2,
        "agg-vllm-g2-003": 14,
        "agg-vllm-g2-shared-000": 3,
        "agg-vllm-g2-shared-002": 12,
        "pd-vllm-g2-shared-000": 1,
        "pd-vllm-g2-shared-003": 3,
    }
    for name, restored in restores.items():
        report = pp.run(as_the_peer(reference_dir / "cases" / name / "config.yaml"))
        (pool,) = report.to_dict()["host_pools"]
        admissions = [entry for record in report.request_dicts() for entry in record["admission_history"]]
        assert sum(entry["host_reused_input_tokens"] > 0 for entry in admissions) == pool["loads"] == restored
        for entry in admissions:
            whole = entry["g1_reused_input_tokens"] + entry["host_reused_input_tokens"]
            assert whole == entry["reused_input_tokens"]


def test_the_comparison_sees_a_difference(reference_dir: Path) -> None:
    case = cases(reference_dir)[0]
    theirs = json.loads((case / "expected.json").read_text())["requests"][0]
    ours = outcome(case)[theirs["request_id"]]
    assert not differences(ours, theirs)
    for name in (*EXACT, *TIMES_MS):
        changed = (ours[name] or 0) + 1 if name != "terminal_status" else "failed"
        assert differences({**ours, name: changed}, theirs), name
    admissions = [{**admission, "reused_input_tokens": 7} for admission in ours["admission_history"]]
    assert differences({**ours, "admission_history": admissions}, theirs)
