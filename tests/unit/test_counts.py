"""What is counted of requests that do not complete, of passes that compute nothing, and of ties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playproof_spec.certificate import prove
from playproof_spec.sketch import sketch

import playproof as pp
from playproof.deployment import BackendName

TIMING = pp.FixedTiming(prefill_ms=10, decode_ms=1)


def report(*rows: dict[str, Any], load: pp.Load | None = None, **deployment: Any) -> dict[str, Any]:
    """Replay rows on workers with blocks of four tokens, and return report.json."""
    trace = prove(sketch(list(rows), block_size=4))
    made = pp.Deployment(**{"block_size": 4, "timing": TIMING, **deployment})
    return pp.replay(trace, made, load or pp.Load()).to_dict()


def row(name: str, length: int, output: int = 1, at: float = 0.0, after: str = "") -> dict[str, Any]:
    """Return a request whose prompt shares nothing; `after` is what it waits for."""
    first = 1000 * sum(name.encode())
    made = {"request_id": name, "play_id": name, "input_length": length, "output_length": output, "not_before_ms": at}
    return {**made, "hash_ids": list(range(first, first + -(-length // 4))), "dependencies": [after] if after else []}


# Gaps between tokens -------------------------------------------------------------------------------------------------


def test_the_gaps_of_a_request_that_fails_are_not_counted() -> None:
    # `a` outgrows 4 blocks: 12 tokens of prompt, fails when its 17th has no place, after tokens at 10 and, with `b`
    # beside it, at 11 to 14. `b` has one gap, of 1 ms.
    figures = report(row("a", 12, 30), row("b", 4, 2, at=30.0), blocks=4)
    assert (figures["failed_requests"], figures["completed_requests"]) == (1, 1)
    assert (figures["num_itl_samples"], figures["mean_itl_ms"], figures["max_itl_ms"]) == (1, 1.0, 1.0)


def test_without_a_completed_request_there_are_no_gaps() -> None:
    figures = report(row("a", 12, 30), blocks=4)
    assert (figures["failed_requests"], figures["num_itl_samples"]) == (1, 0)
    assert {figures[f"{name}_itl_ms"] for name in ("mean", "min", "max", "std", "median", "p99")} == {None}


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_a_failed_sibling_changes_no_other_figure_than_its_own(backend: BackendName) -> None:
    """The run is made a second time to leave its gaps out: everything else is of the first."""
    rows = [row("a", 12, 40), row("b", 4, 3), row("c", 4, 9, at=2.0)]
    deployment = pp.Deployment(backend=backend, blocks=8, block_size=4, timing=TIMING, max_sequences=8)
    whole = pp.replay(prove(sketch(rows, block_size=4)), deployment)
    lines = {line["request_id"]: line for line in whole.request_dicts()}
    assert lines["a"]["terminal_status"] != "completed"
    gaps = sum(line["output_length"] - 1 for line in lines.values() if line["terminal_status"] == "completed")
    assert whole.to_dict()["num_itl_samples"] == gaps


# Passes --------------------------------------------------------------------------------------------------------------


def test_a_pass_that_only_refuses_is_no_forward_pass() -> None:
    assert report(row("a", 20), blocks=4)["forward_passes"] == 0
    # Refused beside one that runs.
    both = report(row("a", 4), row("b", 20), blocks=4)
    assert (both["forward_passes"], both["rejected_requests"]) == (1, 1)


def test_what_the_front_end_refuses_reaches_no_worker() -> None:
    """Round robin goes on as if it had not been there."""
    rows = [row("a", 4), row("b", 8), row("c", 4)]
    trace = prove(sketch(rows, block_size=4))
    made = pp.replay(trace, pp.Deployment(workers=2, blocks=8, block_size=4, context_length=8, timing=TIMING))
    lines = {line["request_id"]: line for line in made.request_dicts()}
    assert [lines[name]["decode_worker_idx"] for name in "abc"] == [0, None, 1]
    assert (lines["b"]["terminal_status"], lines["b"]["terminal_time_ms"]) == ("rejected", 0.0)
    assert lines["b"]["admission_history"] == []


def test_the_front_end_refuses_before_the_handoff_too() -> None:
    trace = prove(sketch([row("a", 8, 2, at=3.0), row("b", 4, 2)], block_size=4))
    backends: tuple[BackendName, ...] = ("vllm", "sglang")
    for backend in backends:
        role: dict[str, Any] = {"blocks": 64, "block_size": 4, "timing": TIMING}
        pair = pp.Disaggregated(
            backend=backend, prefill=pp.PrefillRole(**role), decode=pp.DecodeRole(**role), context_length=8
        )
        lines = {line["request_id"]: line for line in pp.replay(trace, pair).request_dicts()}
        assert (lines["a"]["terminal_status"], lines["a"]["terminal_time_ms"]) == ("rejected", 3.0)
        assert (lines["a"]["prefill_worker_idx"], lines["a"]["decode_worker_idx"]) == (None, None)
        assert lines["b"]["terminal_status"] == "completed"


# Host memory ---------------------------------------------------------------------------------------------------------


def behind_a_fence(last_output: int = 1) -> dict[str, Any]:
    """Return the report of two prompts of two blocks on a device of two, whose stores take 100 ms.

    `a` is over at 10, and its store at 110. `b` is given its blocks, so its pass computes from 110 on and ends at 120.
    """
    host = pp.HostOffload(num_host_blocks=16, bytes_per_token=1_000_000, d2h_bandwidth_gbps=0.08)
    return report(row("a", 8), row("b", 8, last_output, at=10.0), blocks=2 + (last_output > 1), host_offload=host)


def test_a_prompt_computed_behind_a_fence_by_a_request_of_one_token_is_stored() -> None:
    figures = behind_a_fence()
    (pool,) = figures["host_pools"]
    assert (pool["stores"], pool["resident_blocks"], pool["stored_bytes"]) == (2, 4, 16_000_000)


def test_worker_seconds_run_to_the_end_of_the_last_copy() -> None:
    figures = behind_a_fence()
    assert figures["duration_ms"] == 120.0
    assert figures["decode_worker_seconds"] == 0.22


# Ties ----------------------------------------------------------------------------------------------------------------


def mooncake(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"output_length": 1, "input_length": 4, **each}) + "\n" for each in rows))
    return path


def workers_of(path: Path | list[Path], **load: Any) -> dict[str, int]:
    """Return the worker of each request, by what is left of its id when the file's name is taken off."""
    trace = pp.load(path, format="mooncake", block_size=4)
    made = pp.replay(trace, pp.Deployment(workers=5, blocks=64, block_size=4, timing=TIMING), pp.Load(**load))
    return {line["request_id"].rpartition(":")[2]: line["decode_worker_idx"] for line in made.request_dicts()}


def test_a_name_decides_no_tie(tmp_path: Path) -> None:
    rows = [{"timestamp": 5, "hash_ids": [number]} for number in range(12)]
    expected = {str(number + 1): number % 5 for number in range(12)}
    for name in ("a", "z", "10", "Ä"):
        assert workers_of(mooncake(tmp_path, name, *rows)) == expected


def test_given_names_decide_no_tie_between_rows(tmp_path: Path) -> None:
    rows = [{"timestamp": 5, "hash_ids": [number], "request_id": f"r{99 - number}"} for number in range(7)]
    assert workers_of(mooncake(tmp_path, "trace", *rows)) == {f"r{99 - number}": number % 5 for number in range(7)}


def test_a_later_turn_goes_by_its_row(tmp_path: Path) -> None:
    # At 20 a turn of the first session is due (row 3) and a session arrives (row 2): row 2 goes first.
    rows = [
        {"session_id": "z", "timestamp": 0, "hash_ids": [1]},
        {"session_id": "a", "timestamp": 20, "hash_ids": [2], "request_id": "new"},
        {"session_id": "z", "delay": 10, "hash_ids": [1], "request_id": "turn"},
    ]
    placed = workers_of(mooncake(tmp_path, "trace", *rows))
    assert (placed["new"], placed["turn"]) == (1, 2)
    placed = workers_of(mooncake(tmp_path, "trace", rows[0], rows[2], rows[1]))
    assert (placed["turn"], placed["new"]) == (1, 2)


def test_concurrency_lets_sessions_in_by_their_rows(tmp_path: Path) -> None:
    rows = [{"timestamp": 100 - number, "hash_ids": [number]} for number in range(3)]
    assert workers_of(mooncake(tmp_path, "trace", *rows), concurrency=1) == {"1": 0, "2": 1, "3": 2}


def test_what_was_lowered_keeps_its_order_and_given_ids_go_by_bytes(tmp_path: Path) -> None:
    rows = [{"timestamp": 5, "hash_ids": [number]} for number in range(12)]
    mooncake(tmp_path, "trace", *rows)
    from playproof.cli import main

    out = tmp_path / "lowered.jsonl"
    arguments = ["lower", str(tmp_path / "trace.jsonl"), "--out", str(out), "--format", "mooncake", "--block-size", "4"]
    assert main(arguments) == 0
    header, *written = out.read_text().splitlines()
    assert json.loads(header)["tie_order"] == "rows"
    deployment = pp.Deployment(workers=5, blocks=64, block_size=4, timing=TIMING)
    placed = [line["decode_worker_idx"] for line in pp.replay(pp.load(out), deployment).request_dicts()]
    assert placed == [number % 5 for number in range(12)]
    # The same rows without that word: by the bytes of their ids.
    out.write_text("\n".join([header.replace(',"tie_order":"rows"', ""), *written]) + "\n")
    lines = pp.replay(pp.load(out), deployment).request_dicts()
    by_bytes = sorted((line["request_id"] for line in lines), key=str.encode)
    lines = pp.replay(pp.load(out), deployment).request_dicts()
    assert {line["request_id"]: line["decode_worker_idx"] for line in lines} == {
        name: number % 5 for number, name in enumerate(by_bytes)
    }


def test_another_order_of_ties_is_refused(tmp_path: Path) -> None:
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({**header, "source": {"format": "hand", "digest": "x"}, "tie_order": "dice"}) + "\n{}\n")
    with pytest.raises(pp.InvalidTrace) as refused:
        pp.load(path)
    finding = next(item for item in refused.value.findings.items if item.where.field == "tie_order")
    assert (finding.code, finding.where.line, finding.found, finding.wanted) == (
        *("header-invalid", 1, "dice"),
        "rows, or no tie_order",
    )


# Reuse ---------------------------------------------------------------------------------------------------------------


def test_reuse_is_the_most_that_an_admission_found_and_no_more_than_the_prompts() -> None:
    """Two prompts of one block, whose answers do not fit side by side: the later one is preempted.

    Admitted again it finds what is left of its prompt and its answer, which may be more than its prompt.
    """
    trace = prove(sketch([row("a", 4, 25), row("b", 4, 25)], block_size=4))
    made = pp.replay(trace, pp.Deployment(blocks=10, block_size=4, timing=TIMING))
    found = {
        line["request_id"]: [admission["reused_input_tokens"] for admission in line["admission_history"]]
        for line in made.request_dicts()
    }
    most = [max(tokens) for tokens in found.values()]
    assert len(found["b"]) > 1
    # More than both prompts hold.
    assert sum(most) == 12
    assert made.to_dict()["prefix_cache_reused_ratio"] == 1.0
