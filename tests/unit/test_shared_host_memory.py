"""Host memory that workers share: what they see of one another, and how their links share the pool's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from playproof_kernel import simulate
from playproof_spec.certificate import prove
from playproof_spec.sketch import sketch

import playproof as pp

BLOCK = 4
TIMING = pp.FixedTiming(prefill_ms=10, decode_ms=1)
PROMPT = [1, 2, 3, 4]


def host(**changed: Any) -> pp.HostOffload:
    """Return a pool of blocks of 1 MB behind links of 1 GB/s, so that a block takes 1 ms."""
    fields: dict[str, Any] = {
        "num_host_blocks": 64,
        "bytes_per_token": 250_000,
        "scope": "cluster_shared",
        "d2h_bandwidth_gbps": 1.0,
        "h2d_bandwidth_gbps": 1.0,
        "shared_d2h_bandwidth_gbps": 0.0,
        "shared_h2d_bandwidth_gbps": 0.0,
    }
    return pp.HostOffload(**{**fields, **changed})


def workers(count: int = 2, **changed: Any) -> pp.Deployment:
    blocks = changed.pop("blocks", 100)
    return pp.Deployment(workers=count, blocks=blocks, block_size=BLOCK, timing=TIMING, host_offload=host(**changed))


def asks(request: str, hashes: list[int], at_ms: float, output: int = 1) -> dict[str, Any]:
    size = len(hashes) * BLOCK
    play = {"play_id": request, "session_id": request}
    return {
        **play,
        "request_id": request,
        "input_length": size,
        "output_length": output,
        "hash_ids": hashes,
        "not_before_ms": at_ms,
    }


def replayed(deployment: Any, *rows: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lines of requests.jsonl by request, and the report."""
    report = pp.replay(prove(sketch(list(rows), block_size=BLOCK)), deployment)
    return {line["request_id"]: line for line in report.request_dicts()}, report.to_dict()


def from_host(line: dict[str, Any]) -> int:
    return int(line["first_admission_host_reused_input_tokens"])


def test_a_block_is_visible_everywhere_when_its_store_ends_and_not_before() -> None:
    # `a` runs on worker 0 until 10 ms, its four blocks are in the host at 14; `b` comes to worker 1 at 11.
    rows = asks("a", PROMPT, 0.0), asks("b", [*PROMPT, 5], 11.0)
    lines, report = replayed(workers(), *rows)
    assert [lines[name]["decode_worker_idx"] for name in "ab"] == [0, 1]
    assert from_host(lines["b"]) == 16
    # Deferred until 14, restored until 18.
    assert lines["b"]["first_admit_ms"] == 18.0
    (pool,) = report["host_pools"]
    assert (pool["deferrals"], pool["loads"], pool["loaded_bytes"]) == (1, 1, 4_000_000)
    # With host memory of its own, worker 1 has nothing to wait for.
    lines, _ = replayed(workers(scope="dp_rank_local"), *rows)
    assert (from_host(lines["b"]), lines["b"]["first_admit_ms"]) == (0, 11.0)


def test_an_eviction_withdraws_a_block_everywhere() -> None:
    # `b` stores its blocks over those of `a` where there is room for four; `d` asks on worker 1 for those of `a`.
    rows = (
        asks("a", PROMPT, 0.0),
        asks("b", [11, 12, 13, 14], 20.0),
        asks("c", [21], 40.0, output=0),
        asks("d", [*PROMPT, 5], 60.0),
    )
    for capacity, evicted, restored in ((4, True, 0), (64, False, 16)):
        lines, report = replayed(workers(num_host_blocks=capacity), *rows)
        assert lines["d"]["decode_worker_idx"] == 1
        assert from_host(lines["d"]) == restored
        (pool,) = report["host_pools"]
        assert (pool["evictions"] > 0) == evicted


def test_the_capacity_counts_once() -> None:
    rows = asks("a", PROMPT, 0.0), asks("b", [11, 12, 13, 14], 0.0), asks("c", [21, 22], 0.0)
    _, report = replayed(workers(3, num_host_blocks=6), *rows)
    # `c` stands behind the others: its cohort has to wait for room, and is done before there is any.
    assert report["g2_domains"] == [{"capacity_blocks": 6, "resident_blocks": 6, "used_blocks": 6}]
    (pool,) = report["host_pools"]
    assert pool["stores"] == 2
    assert pool["retries"] > 0
    _, report = replayed(workers(3, num_host_blocks=6, scope="dp_rank_local"), *rows)
    assert report["g2_domains"] is None
    assert [pool["stores"] for pool in report["host_pools"]] == [1, 1, 1]


@pytest.mark.parametrize(
    ("link", "shared", "busy"),
    [
        (1.0, 0.0, 4.0),  # nothing but the links
        (1.0, 2.0, 4.0),  # the pool has room for both
        (1.0, 1.0, 8.0),  # half of the pool each
        (0.0, 1.0, 8.0),
        (0.25, 1.0, 16.0),
        (0.0, 0.0, 0.0),  # at once
    ],
)
def test_stores_of_one_instant_share_the_pool(link: float, shared: float, busy: float) -> None:
    deployment = workers(d2h_bandwidth_gbps=link, shared_d2h_bandwidth_gbps=shared)
    rows = asks("a", PROMPT, 0.0), asks("b", [11, 12, 13, 14], 0.0), asks("z", [99], 100.0)
    _, report = replayed(deployment, *rows)
    (pool,) = report["host_pools"]
    alone_ms = 1.0 / min([rate for rate in (link, shared) if rate], default=float("inf"))
    # `z` has a block of its own on worker 0, long after.
    assert [worker["d2h_busy_ms"] for worker in pool["workers"]] == pytest.approx([busy + alone_ms, busy])
    assert pool["d2h_busy_ms"] == pytest.approx(busy + alone_ms)


def test_what_a_copy_leaves_the_others_get() -> None:
    # Two blocks and six at 0.5 GB/s each, then the rest of the six at the link's 1 GB/s: 4 ms and 4 ms.
    rows = asks("a", [1, 2], 0.0), asks("b", [11, 12, 13, 14, 15, 16], 0.0), asks("z", [99], 100.0)
    _, report = replayed(workers(shared_d2h_bandwidth_gbps=1.0), *rows)
    (pool,) = report["host_pools"]
    assert [worker["d2h_busy_ms"] for worker in pool["workers"]] == pytest.approx([4.0 + 1.0, 8.0])


@pytest.mark.parametrize(("shared", "busy"), [(2.0, 4.0), (1.5, 8.0)])
def test_what_a_full_link_leaves_of_the_pool_the_others_get(shared: float, busy: float) -> None:
    # Worker 1 stores three prompts at once, and its link of 1 GB/s is full with a third of that each. What is left of
    # the pool is worker 0's, which stores one: of 2 GB/s 1 GB/s, and 4 ms; of 1.5 GB/s 0.5 GB/s, and 8 ms. An equal
    # share of 2 GB/s for each of the four copies would be 0.5 GB/s; all of 1.5 GB/s would fill its own link.
    deployment = workers(shared_d2h_bandwidth_gbps=shared)
    rows = [asks(name, [10 * n + i for i in range(4)], 0.0) for n, name in enumerate("abcdef", start=1)]
    for row in rows[2::2]:
        # A prompt shorter than a block is not stored.
        row.update(input_length=3, hash_ids=row["hash_ids"][:1])
    _, report = replayed(deployment, *rows)
    (pool,) = report["host_pools"]
    assert [worker["stores"] for worker in pool["workers"]] == [1, 3]
    assert [worker["d2h_busy_ms"] for worker in pool["workers"]] == pytest.approx([busy, 12.0])


def test_a_copy_that_waits_for_its_first_byte_takes_no_share() -> None:
    # The second pair is submitted while the first moves, and begins when that is done.
    deployment = workers(shared_d2h_bandwidth_gbps=1.0, latency_to_first_byte_ms=4.0)
    rows = asks("a", PROMPT, 0.0), asks("b", [11, 12, 13, 14], 4.0), asks("z", [99], 100.0)
    _, report = replayed(deployment, *rows)
    (pool,) = report["host_pools"]
    # `a`: 14 to 18 ms; `b`: 18 to 22 ms.
    assert [worker["d2h_busy_ms"] for worker in pool["workers"]] == pytest.approx([4.0 + 1.0, 4.0])


def test_a_store_keeps_its_blocks_until_it_has_ended() -> None:
    # `a` holds four of the six blocks; its store takes until 50 ms. Another prompt of four has to wait for that, where
    # a private pool gives the blocks away and fences the pass that writes them.
    rows = asks("a", PROMPT, 0.0), asks("b", [11, 12, 13, 14], 11.0)
    shared, _ = replayed(workers(1, blocks=6, d2h_bandwidth_gbps=0.1), *rows)
    assert shared["b"]["first_admit_ms"] == 50.0
    assert shared["b"]["first_token_ms"] == 60.0
    private, _ = replayed(workers(1, blocks=6, d2h_bandwidth_gbps=0.1, scope="dp_rank_local"), *rows)
    assert private["b"]["first_admit_ms"] == 11.0
    assert private["b"]["first_token_ms"] == 60.0


def test_what_is_gone_at_its_turn_is_computed_again() -> None:
    # `d` waits on worker 1 behind `e`, which has its only seat until 51 ms; `b` stores at 30 ms on worker 0.
    rows = (
        asks("a", PROMPT, 0.0),
        asks("e", [31], 1.0, output=41),
        asks("x", [32], 15.0, output=0),
        asks("d", [*PROMPT, 5], 16.0),
        asks("b", [11, 12, 13, 14], 25.0),
    )
    for row in rows[1:3]:
        row["input_length"] = 3
    for capacity, restored in ((4, 0), (64, 16)):
        deployment = msgspec.structs.replace(workers(num_host_blocks=capacity), max_sequences=1)
        lines, _ = replayed(deployment, *rows)
        assert lines["d"]["decode_worker_idx"] == lines["e"]["decode_worker_idx"] == 1
        assert lines["d"]["first_admit_ms"] >= lines["e"]["terminal_time_ms"] == 51.0
        assert from_host(lines["d"]) == restored
        assert lines["d"]["terminal_status"] == "completed"


def test_what_a_restore_reads_stays() -> None:
    # `d` reads all four blocks of the host from 20 to 60 ms; the store of `b` finds no room meanwhile.
    rows = asks("a", PROMPT, 0.0), asks("d", [*PROMPT, 5], 20.0), asks("b", [11, 12, 13, 14], 30.0)
    rows[1]["input_length"] = 18
    lines, report = replayed(workers(num_host_blocks=4, h2d_bandwidth_gbps=0.1), *rows)
    assert (from_host(lines["d"]), lines["d"]["first_admit_ms"]) == (16, 60.0)
    (pool,) = report["host_pools"]
    assert (pool["evictions"], pool["stores"]) == (0, 1)
    assert pool["retries"] > 0


def test_what_one_worker_restores_another_may_restore_meanwhile() -> None:
    # Four blocks take 40 ms: `d` on worker 1 reads them from 20 to 60 ms, `e` on worker 2 from 30 to 70.
    rows = [asks("a", PROMPT, 0.0), asks("d", [*PROMPT, 5], 20.0), asks("e", [*PROMPT, 6], 30.0)]
    lines, report = replayed(workers(3, h2d_bandwidth_gbps=0.1), *rows)
    assert [lines[name]["first_admit_ms"] for name in "de"] == [60.0, 70.0]
    (pool,) = report["host_pools"]
    # At 60 ms `e` is looked at, too, and waits for its own.
    assert (pool["loads"], pool["deferrals"]) == (2, 1)
    # A second request on the worker that reads them waits for that, and finds them in device memory.
    rows += [asks("f", [31], 31.0, output=0), asks("g", [*PROMPT, 7], 32.0)]
    lines, report = replayed(workers(3, h2d_bandwidth_gbps=0.1), *rows)
    assert lines["g"]["decode_worker_idx"] == 1
    assert (from_host(lines["g"]), lines["g"]["first_admit_ms"]) == (0, 60.0)
    assert lines["g"]["first_admission_g1_reused_input_tokens"] == 16
    (pool,) = report["host_pools"]
    assert pool["loads"] == 2


def test_ordinary_traces_use_it(tmp_path: Path) -> None:
    turns = [{"timestamp": at, "input_length": 16, "output_length": 1, "hash_ids": PROMPT} for at in (0, 40)]
    trace = tmp_path / "turns.jsonl"
    trace.write_bytes(msgspec.json.Encoder().encode_lines(turns))
    report = pp.replay(pp.load(trace, format="mooncake", block_size=BLOCK), workers())
    assert [from_host(line) for line in report.request_dicts()] == [0, 12]


def test_both_roles_share_one_pool() -> None:
    role: dict[str, Any] = {"blocks": 40, "block_size": BLOCK, "timing": TIMING, "host_offload": host()}
    pair = pp.Disaggregated(prefill=pp.PrefillRole(workers=2, **role), decode=pp.DecodeRole(workers=2, **role))
    rows = asks("a", PROMPT, 0.0, output=3), asks("b", [*PROMPT, 5], 40.0, output=3)
    lines, report = replayed(pair, *rows)
    assert lines["b"]["prefill_worker_idx"] == 1
    assert from_host(lines["b"]) == 16
    (pool,) = report["host_pools"]
    assert [(worker["role"], worker["worker_idx"]) for worker in pool["workers"]] == [
        (role, worker) for role in ("prefill", "decode") for worker in (0, 1)
    ]
    assert pool["capacity_blocks"] == 64
    assert len(report["g2_domains"]) == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_role_may_have_the_pool_alone(role: str) -> None:
    fields: dict[str, Any] = {"workers": 2, "blocks": 40, "block_size": BLOCK, "timing": TIMING}
    hosted = {name: {**fields, "host_offload": host() if name == role else None} for name in ("prefill", "decode")}
    pair = pp.Disaggregated(prefill=pp.PrefillRole(**hosted["prefill"]), decode=pp.DecodeRole(**hosted["decode"]))
    _, report = replayed(pair, asks("a", PROMPT, 0.0, output=3), asks("b", [*PROMPT, 5], 40.0, output=3))
    (pool,) = report["host_pools"]
    assert {worker["role"] for worker in pool["workers"]} == {role}
    assert pool["stored_bytes"] == 5_000_000


def test_roles_may_differ_in_their_links_and_not_in_the_pool() -> None:
    deployment = pp.Disaggregated(
        prefill=pp.PrefillRole(host_offload=host(d2h_bandwidth_gbps=3.0, latency_to_first_byte_ms=1.0)),
        decode=pp.DecodeRole(host_offload=host()),
    )
    assert deployment.to_spec().decode is not None
    for name, value in {
        "bytes_per_token": 1000,
        "tensor": 2,
        "pipeline": 2,
        "num_host_blocks": 65,
        "shared_d2h_bandwidth_gbps": 7.0,
        "shared_h2d_bandwidth_gbps": 7.0,
    }.items():
        with pytest.raises(pp.InvalidDeployment) as refused:
            pp.Disaggregated(
                prefill=pp.PrefillRole(host_offload=host()),
                decode=pp.DecodeRole(host_offload=host(**{name: value})),
            )
        (problem,) = refused.value.findings.items
        assert (problem.code, problem.where.field) == (
            "config-combination",
            f"Disaggregated.decode.host_offload.{name}",
        )
        # Of their own they may be as they like.
        pp.Disaggregated(
            prefill=pp.PrefillRole(host_offload=host(scope="dp_rank_local")),
            decode=pp.DecodeRole(host_offload=host(scope="dp_rank_local", **{name: value})),
        )


def test_the_kernel_refuses_roles_that_describe_one_pool_differently() -> None:
    pair = pp.Disaggregated(
        prefill=pp.PrefillRole(host_offload=host(scope="dp_rank_local")),
        decode=pp.DecodeRole(host_offload=host(scope="dp_rank_local", num_host_blocks=65)),
    )
    trace = prove(sketch([asks("a", PROMPT, 0.0)], block_size=BLOCK))
    spec = pair.to_spec()
    simulate(trace, spec)
    shared = msgspec.structs.replace(pair.decode, host_offload=host(num_host_blocks=65))
    spec = pp.Disaggregated(prefill=pp.PrefillRole(host_offload=None), decode=shared).to_spec()
    other = pp.Disaggregated(prefill=pp.PrefillRole(host_offload=host()), decode=pp.DecodeRole()).to_spec()
    assert spec.decode is not None
    with pytest.raises(ValueError, match="describe it alike"):
        simulate(trace, type(spec)(other.workers, other.worker, spec.context_length, spec.decode))
