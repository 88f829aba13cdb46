"""The configuration: every guard names its field, all at once, and what is accepted becomes what was written."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_kernel import simulate
from playproof_spec.certificate import prove
from playproof_spec.deployment import Backend, LoadSpec, TimingKind, TransferSpec, WorkerSpec
from playproof_spec.findings import Finding
from playproof_spec.sketch import sketch

from playproof.config import (
    DEFAULT_CONFIGURATION,
    MAX_CONFIG_BYTES,
    configuration_digest,
    parse_configuration,
    read_configuration,
)
from playproof.deployment import (
    UNLIMITED_CONTEXT_TOKENS,
    DecodeRole,
    Deployment,
    Disaggregated,
    FixedTiming,
    HostOffload,
    InvalidDeployment,
    KvRouter,
    Load,
    PolynomialTiming,
    PrefillRole,
    RoundRobin,
    Speculation,
    Transfer,
)

ROOT = Path(__file__).resolve().parents[2]
WORKER = "engine.workers.aggregated"
HOSTED = f"{WORKER}.kv_cache.host_offload"
HOST = {"num_host_blocks": 4, "d2h_bandwidth_gbps": 1.0, "h2d_bandwidth_gbps": 0.0}
PAIR = b"""
engine:
  mode: disaggregated
  workers:
    prefill:
      parallelism: {replicas: 2}
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 100}}
      timing: {type: fixed, prefill_ms: 30, decode_ms: 1}
    decode:
      parallelism: {replicas: 3}
      scheduler: {max_batched_tokens: 4096}
      kv_cache: {block_size: 16, prefix_caching: false, capacity: {type: fixed, blocks: 200}}
      timing: {type: polynomial}
  kv_transfer: {bytes_per_token: 98304, bandwidth_gb_per_second: 50}
"""


def changed(field: str, value: object, configuration: bytes = DEFAULT_CONFIGURATION) -> bytes:
    """Return the default configuration, or another, with one field set."""
    tree = msgspec.yaml.decode(configuration)
    *parents, last = field.split(".")
    place = tree
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return msgspec.yaml.encode(tree)


def refused(data: bytes, **options: Any) -> list[Finding]:
    with pytest.raises(InvalidDeployment) as caught:
        parse_configuration(data, file="c.yaml", **options)
    return list(caught.value.findings.items)


NGRAM = {"kind": "ngram", "num_speculative_tokens": 3, "acceptance_rates": [0.8, 0.6, 0.4]}

# field, value, code of the one finding, and its field below that one where it is another
GUARDS: list[tuple[Any, ...]] = [
    ("traffic.source.type", "synthetic", "config-value"),
    (f"{WORKER}.scheduler.async_scheduling", 1, "config-type"),
    (f"{WORKER}.scheduler.watermark", 1.5, "config-value"),
    (f"{WORKER}.scheduler.watermark", -0.1, "config-value"),
    (f"{WORKER}.scheduler.long_prefill_token_threshold", -1, "config-value"),
    (f"{WORKER}.scheduler.prefill_schedule_interval", 0, "config-value"),
    (f"{WORKER}.scheduler.scheduler_reserve_full_isl", "yes", "config-type"),
    (f"{WORKER}.kv_cache.reuse_output", "always", "config-value"),
    ("traffic.source.format", "parquet", "config-value"),
    ("traffic.source.paths", "trace.jsonl", "config-type"),
    ("traffic.source.paths", [1], "config-type"),
    ("traffic.source.block_size", 0, "config-value"),
    ("traffic.source.nested_timestamp_basis", "nested", "config-value"),
    ("traffic.source.subagent_marker", "end", "config-value"),
    ("traffic.load.type", "poisson", "config-value"),
    ("traffic.load.concurrency", 4, "config-combination"),
    ("traffic.load.concurrency", 0, "config-value"),
    ("traffic.load.concurrency", True, "config-type"),
    ("traffic.load.concurrency", "64", "config-type"),
    ("traffic.load.speedup", 0, "config-value"),
    ("traffic.load.speedup", -1.0, "config-value"),
    ("traffic.load.speedup", float("nan"), "config-value"),
    ("traffic.load.speedup", float("inf"), "config-value"),
    ("traffic.load.speedup", True, "config-type"),
    ("traffic.load.agentic_lanes", 0, "config-value"),
    ("traffic.load.agentic_lanes", True, "config-type"),
    ("traffic.load.agentic_lanes", 2.0, "config-type"),
    ("traffic.load.agentic_lanes", "2", "config-type"),
    ("traffic.load.agentic_snapshot", 42, "config-type"),
    ("traffic.load.agentic_warmup", "yes", "config-type"),
    ("traffic.load.agentic_profile", 3600, "config-type"),
    ("traffic.load.agentic_prefix_scope", "lane", "config-value"),
    ("traffic.stop", 3, "config-type"),
    ("traffic.stop.max_virtual_time_seconds", 0, "config-value"),
    ("traffic.stop.max_virtual_time_seconds", -1.0, "config-value"),
    ("traffic.stop.max_virtual_time_seconds", float("inf"), "config-value"),
    ("traffic.stop.max_virtual_time_seconds", "300", "config-type"),
    ("traffic.stop.requests", 100, "config-unknown-key"),
    ("engine.mode", "agregated", "config-value"),
    ("engine.backend", "trtllm", "config-value"),
    ("engine.model", 3, "config-type"),
    ("engine.hardware", ["h200"], "config-type"),
    ("engine.context_length", 0, "config-value"),
    ("engine.context_length", "min", "config-value"),
    ("engine.context_length", True, "config-type"),
    ("engine.router.policy", "kv", "config-value"),
    ("engine.router.overlap_score_weight", 1.0, "config-combination"),
    ("engine.router.host_cache_hit_weight", 0.75, "config-combination"),
    *(
        ("engine.router", {"policy": "kv_router", name: value}, code, name)
        for name, value, code in (
            ("overlap_score_weight", -1.0, "config-value"),
            ("overlap_score_weight", float("nan"), "config-value"),
            ("overlap_score_weight", float("inf"), "config-value"),
            ("overlap_score_weight", "heavy", "config-type"),
            ("overlap_score_weight", True, "config-type"),
            ("host_cache_hit_weight", 1.5, "config-value"),
            ("host_cache_hit_weight", -0.1, "config-value"),
            ("host_cache_hit_weight", [0.5], "config-type"),
            ("overlap_weight", 1.0, "config-unknown-key"),
            ("prefill_load_scale", 1.0, "config-unsupported"),
            ("overlap_score_credit", 1.0, "config-unsupported"),
            ("disk_cache_hit_weight", 0.25, "config-unsupported"),
            ("router_temperature", 0.5, "config-unsupported"),
        )
    ),
    ("engine.router.policy", "random", "config-value"),
    ("engine.router", "round_robin", "config-type"),
    ("engine.mode", True, "config-type"),
    ("engine.kv_transfer", {"bytes_per_token": 1}, "config-combination"),
    ("engine.speculation", "ngram", "config-type"),
    ("engine.speculation", {**NGRAM, "kind": "eagle"}, "config-value", "kind"),
    ("engine.speculation", {**NGRAM, "num_speculative_tokens": 0}, "config-value", "num_speculative_tokens"),
    ("engine.speculation", {**NGRAM, "num_speculative_tokens": 17}, "config-value", "num_speculative_tokens"),
    ("engine.speculation", {**NGRAM, "num_speculative_tokens": True}, "config-type", "num_speculative_tokens"),
    ("engine.speculation", {**NGRAM, "acceptance_rates": 0.5}, "config-type", "acceptance_rates"),
    ("engine.speculation", {**NGRAM, "acceptance_rates": [0.5, 1.5]}, "config-value", "acceptance_rates"),
    ("engine.speculation", {**NGRAM, "acceptance_rates": [-0.1]}, "config-value", "acceptance_rates"),
    ("engine.speculation", {**NGRAM, "acceptance_rates": [float("nan")]}, "config-value", "acceptance_rates"),
    ("engine.speculation", {**NGRAM, "acceptance_rates": ["0.5"]}, "config-type", "acceptance_rates"),
    ("engine.speculation", {**NGRAM, "seed": -1}, "config-value", "seed"),
    ("engine.speculation", {**NGRAM, "tokens": 3}, "config-unknown-key", "tokens"),
    ("engine.workers.prefill", {}, "config-combination"),
    ("engine.workers.decode", {}, "config-combination"),
    (f"{WORKER}.parallelism.replicas", True, "config-type"),
    (f"{WORKER}.parallelism.replicas", 0, "config-value"),
    (f"{WORKER}.parallelism.replicas", 1.0, "config-type"),
    (f"{WORKER}.parallelism.replicas", 10**6, "config-value"),
    (f"{WORKER}.parallelism.tensor", 0, "config-value"),
    (f"{WORKER}.parallelism.pipeline", False, "config-type"),
    (f"{WORKER}.parallelism.attention_data", 2, "config-unsupported"),
    (f"{WORKER}.scheduler.max_batched_tokens", 0, "config-value"),
    (f"{WORKER}.scheduler.max_sequences", -1, "config-value"),
    (f"{WORKER}.scheduler.chunked_prefill_size", 0, "config-value"),
    (f"{WORKER}.scheduler.max_prefill_tokens", "8192", "config-type"),
    (f"{WORKER}.scheduler.schedule_conservativeness", 0, "config-value"),
    (f"{WORKER}.kv_cache.block_size", 0, "config-value"),
    (f"{WORKER}.kv_cache.prefix_caching", 1, "config-type"),
    (f"{WORKER}.kv_cache.bytes_per_token", 0, "config-value"),
    (f"{WORKER}.kv_cache.capacity.type", "estimated", "config-value"),
    (f"{WORKER}.kv_cache.capacity.blocks", 0, "config-value"),
    (f"{WORKER}.kv_cache.capacity.blocks", 2**70, "config-value"),
    (f"{WORKER}.kv_cache.g3_offload", {}, "config-unsupported"),
    (f"{WORKER}.timing.type", "measured", "config-value"),
    (f"{WORKER}.timing.prefill_ms", -1, "config-value"),
    (f"{WORKER}.timing.prefill_ms", "1e3", "config-type"),
    (f"{WORKER}.timing.decode_ms", float("inf"), "config-value"),
]


HOST_GUARDS = [
    ([f"{HOSTED}.scope=cluster"], "config-value", f"{HOSTED}.scope"),
    ([f"{HOSTED}.scope=worker_local"], "config-unsupported", f"{HOSTED}.scope"),
    ([f"{HOSTED}.num_host_blocks=0"], "config-value", f"{HOSTED}.num_host_blocks"),
    ([f"{HOSTED}.shared_d2h_bandwidth_gbps=-1"], "config-value", f"{HOSTED}.shared_d2h_bandwidth_gbps"),
    ([f"{WORKER}.parallelism.attention_data=2"], "config-unsupported", f"{WORKER}.parallelism.attention_data"),
    ([f"{HOSTED}.num_host_blocks=true"], "config-type", f"{HOSTED}.num_host_blocks"),
    ([f"{HOSTED}.d2h_bandwidth_gbps=-1"], "config-value", f"{HOSTED}.d2h_bandwidth_gbps"),
    ([f"{HOSTED}.bandwidth=1"], "config-unknown-key", f"{HOSTED}.bandwidth"),
    ([f"{WORKER}.kv_cache.bytes_per_token=null"], "config-missing", f"{WORKER}.kv_cache.bytes_per_token"),
    (["engine.backend=sglang"], "config-unsupported", HOSTED),
    ([f"{WORKER}.kv_cache.prefix_caching=false"], "config-combination", HOSTED),
]


@pytest.mark.parametrize(("overrides", "code", "field"), HOST_GUARDS)
def test_host_memory_needs_a_cache_that_uses_it(overrides: list[str], code: str, field: str) -> None:
    text = changed(f"{WORKER}.kv_cache.host_offload", HOST)
    given = [f"{WORKER}.kv_cache.bytes_per_token=1000"]
    host = parse_configuration(text, overrides=given).deployment
    assert isinstance(host, Deployment)
    assert host.host_offload == HostOffload(
        num_host_blocks=4, bytes_per_token=1000, d2h_bandwidth_gbps=1, h2d_bandwidth_gbps=0
    )
    (problem,) = refused(text, overrides=[*given, *overrides])
    assert (problem.code, problem.where.field) == (code, field)


@pytest.mark.parametrize("text", [DEFAULT_CONFIGURATION, PAIR])
def test_the_router_is_round_robin_unless_the_file_says_otherwise(text: bytes) -> None:
    for policy, router in (
        ("{policy: round_robin}", RoundRobin()),
        ("{policy: kv_router}", KvRouter(overlap_score_weight=1.0, host_cache_hit_weight=0.75)),
        ("{policy: kv_router, overlap_score_weight: 2}", KvRouter(overlap_score_weight=2.0)),
        (
            "{policy: kv_router, host_cache_hit_weight: 0, router_temperature: null}",
            KvRouter(host_cache_hit_weight=0.0),
        ),
    ):
        assert parse_configuration(text, overrides=[f"engine.router={policy}"]).deployment.router == router
    assert parse_configuration(text).deployment.router == RoundRobin()


def test_the_library_checks_a_router() -> None:
    with pytest.raises(InvalidDeployment) as caught:
        KvRouter(overlap_score_weight=-1.0, host_cache_hit_weight=2.0)
    assert [problem.where.field for problem in caught.value.findings.items] == [
        "KvRouter.overlap_score_weight",
        "KvRouter.host_cache_hit_weight",
    ]
    with pytest.raises(InvalidDeployment):
        Deployment(router="kv_router")  # type: ignore[arg-type]


def test_bandwidths_of_a_shared_pool_mean_nothing_to_a_private_one() -> None:
    given = [f"{WORKER}.kv_cache.bytes_per_token=1000"]
    private, left = (
        parse_configuration(changed(f"{WORKER}.kv_cache.host_offload", host), overrides=given)
        for host in (HOST, {**HOST, "shared_d2h_bandwidth_gbps": 80.0, "shared_h2d_bandwidth_gbps": 80.0})
    )
    assert private.deployment == left.deployment


def sharing_pair(**hosts: dict[str, Any]) -> bytes:
    """Return a pair whose roles share a host pool, with the settings of `hosts` changed."""
    tree = msgspec.yaml.decode(PAIR)
    for role in ("prefill", "decode"):
        cache = tree["engine"]["workers"][role]["kv_cache"]
        cache |= {"prefix_caching": True, "bytes_per_token": 1000}
        cache["host_offload"] = {**HOST, "scope": "cluster_shared", **hosts.get(role, {})}
    return msgspec.yaml.encode(tree)


def test_roles_share_a_host_pool_whatever_their_links_and_the_transfer_are() -> None:
    deployment = parse_configuration(
        sharing_pair(decode={"d2h_bandwidth_gbps": 3.0, "latency_to_first_byte_ms": 2.0}),
        # Another size of the transfer is no other layout.
        overrides=["engine.kv_transfer.bytes_per_token=2000"],
    ).deployment
    assert isinstance(deployment, Disaggregated)
    for role in deployment.roles.values():
        assert role.host_offload is not None
        assert role.host_offload.is_shared
        assert (role.host_offload.bytes_per_token, role.host_offload.shared_d2h_bandwidth_gbps) == (1000, 80.0)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("kv_cache.bytes_per_token", 2000, "prefill: 1000, decode: 2000"),
        ("parallelism.tensor", 2, "prefill: 1, decode: 2"),
        ("parallelism.pipeline", 4, "prefill: 1, decode: 4"),
        ("kv_cache.host_offload.num_host_blocks", 5, "prefill: 4, decode: 5"),
        ("kv_cache.host_offload.shared_d2h_bandwidth_gbps", 1.5, "prefill: 80.0, decode: 1.5"),
        ("kv_cache.host_offload.shared_h2d_bandwidth_gbps", 0.0, "prefill: 80.0, decode: 0.0"),
    ],
)
def test_roles_that_share_a_host_pool_agree_on_it(field: str, value: object, shown: str) -> None:
    override = f"engine.workers.decode.{field}={value}"
    (problem,) = refused(sharing_pair(), overrides=[override])
    assert (problem.code, problem.where.field) == ("config-combination", f"engine.workers.decode.{field}")
    assert (problem.found, problem.wanted) == (shown, "one value for both")
    assert problem.because
    assert problem.hint
    # In the file the finding has its line.
    *_, last = field.split(".")
    (problem,) = refused(changed(f"engine.workers.decode.{field}", value, sharing_pair()))
    assert problem.where.line
    assert last in problem.message
    # Apart, each may be as it likes; and so may one that has the pool alone.
    for role in ("prefill", "decode"):
        private = f"engine.workers.{role}.kv_cache.host_offload.scope=dp_rank_local"
        parse_configuration(sharing_pair(), overrides=[override, private])
    parse_configuration(sharing_pair(), overrides=[override, "engine.workers.prefill.kv_cache.host_offload=null"])


def test_every_difference_of_a_shared_pool_is_told() -> None:
    data = sharing_pair(decode={"num_host_blocks": 5, "shared_h2d_bandwidth_gbps": 1.0})
    problems = refused(data, overrides=["engine.workers.decode.parallelism.tensor=2"])
    assert [problem.where.field.rpartition(".")[2] for problem in problems] == [
        "tensor",
        "num_host_blocks",
        "shared_h2d_bandwidth_gbps",
    ]


@pytest.mark.parametrize("roles", [("aggregated",), ("prefill",), ("decode",), ("prefill", "decode")])
def test_speculation_and_host_memory_exclude_one_another(roles: tuple[str, ...]) -> None:
    mode = "aggregated" if roles == ("aggregated",) else "disaggregated"
    tree = msgspec.yaml.decode(DEFAULT_CONFIGURATION if mode == "aggregated" else PAIR)
    tree["engine"]["speculation"] = NGRAM
    for worker in tree["engine"]["workers"].values():
        worker["kv_cache"] |= {"prefix_caching": True, "bytes_per_token": 1000}
    assert parse_configuration(msgspec.yaml.encode(tree)).deployment.speculation is not None
    for role in roles:
        tree["engine"]["workers"][role]["kv_cache"]["host_offload"] = HOST
    both = msgspec.yaml.encode(tree)
    (problem,) = refused(both)
    assert (problem.code, problem.where.field) == ("config-combination", "engine.speculation")
    assert problem.where.line
    assert problem.found == ", ".join(f"engine.workers.{role}.kv_cache.host_offload" for role in roles)
    # Either is switched off by name.
    assert parse_configuration(both, overrides=["engine.speculation=false"]).deployment.speculation is None
    off = [f"engine.workers.{role}.kv_cache.host_offload=null" for role in roles]
    alone = parse_configuration(both, overrides=off).deployment
    assert alone.speculation is not None
    assert not any(role.host_offload for role in alone.roles.values())


SCHEDULING = {
    "async_scheduling": (True, "ahead", True),
    "watermark": (0.25, "watermark", 0.25),
    "long_prefill_token_threshold": (64, "long_prefill_tokens", 64),
    "scheduler_reserve_full_isl": (False, "reserve_full_prompt", False),
}


def test_the_settings_of_vllms_scheduler_become_what_was_written() -> None:
    for name, (value, kernel, meant) in SCHEDULING.items():
        deployment = parse_configuration(changed(f"{WORKER}.scheduler.{name}", value)).deployment
        assert getattr(deployment, name) == value
        assert getattr(deployment.to_spec().worker, kernel) == meant
        assert getattr(Deployment().to_spec().worker, kernel) != meant
        assert deployment.to_dict()[name] == value
    assert (
        parse_configuration(changed(f"{WORKER}.scheduler.prefill_schedule_interval", 3)).deployment.to_dict()[
            "prefill_schedule_interval"
        ]
        == 3
    )


@pytest.mark.parametrize(("choice", "reuses"), [("auto", True), ("never", False)])
def test_answers_are_reused_where_the_role_says_so(choice: str, reuses: bool) -> None:
    alone = parse_configuration(changed(f"{WORKER}.kv_cache.reuse_output", choice)).deployment.to_spec()
    assert alone.worker.reuse_output is reuses
    field = "engine.workers.decode.kv_cache.reuse_output"
    pair = parse_configuration(changed(field, choice, PAIR)).deployment.to_spec()
    assert pair.decode is not None
    assert (pair.worker.reuse_output, pair.decode.worker.reuse_output) == (False, reuses)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (value, _, _) in SCHEDULING.items()])
def test_what_is_not_simulated_beside_a_scheduler_setting_is_refused(name: str, value: object) -> None:
    field = f"{WORKER}.scheduler.{name}"
    tree = msgspec.yaml.decode(changed(field, value))
    tree["engine"]["workers"]["aggregated"]["kv_cache"] |= {"bytes_per_token": 1000, "host_offload": HOST}
    hosted = msgspec.yaml.encode(tree)
    if name == "long_prefill_token_threshold":
        assert parse_configuration(hosted).deployment.roles["aggregated"].host_offload is not None
        return
    (problem,) = refused(hosted)
    assert (problem.code, problem.where.field) == ("config-unsupported", field)
    assert problem.where.line
    assert "host offload" in problem.message
    with pytest.raises(InvalidDeployment) as caught:
        Deployment(host_offload=HOST_MEMORY, **{name: value})  # type: ignore[arg-type]
    assert [item.where.field for item in caught.value.findings.items] == [f"Deployment.{name}"]


def test_asynchronous_scheduling_stands_neither_with_speculation_nor_in_two_roles() -> None:
    tree = msgspec.yaml.decode(changed(f"{WORKER}.scheduler.async_scheduling", True))
    tree["engine"]["speculation"] = NGRAM
    (problem,) = refused(msgspec.yaml.encode(tree))
    assert (problem.code, problem.where.field) == ("config-unsupported", f"{WORKER}.scheduler.async_scheduling")
    for role in ("prefill", "decode"):
        field = f"engine.workers.{role}.scheduler.async_scheduling"
        (problem,) = refused(changed(field, True, PAIR))
        assert (problem.code, problem.where.field) == ("config-unsupported", field)
        ahead: dict[str, Any] = {role: {"prefill": PrefillRole, "decode": DecodeRole}[role](async_scheduling=True)}
        with pytest.raises(InvalidDeployment):
            Disaggregated(**ahead)
        for name, (value, _, _) in SCHEDULING.items():
            other = f"engine.workers.{role}.scheduler.{name}"
            if name in ("async_scheduling", "scheduler_reserve_full_isl"):
                (problem,) = refused(changed(other, value, PAIR))
                assert (problem.code, problem.where.field) == ("config-unsupported", other)
            else:
                assert parse_configuration(changed(other, value, PAIR)).deployment.roles[role]


def test_the_overlap_schedule_goes_with_sglangs_own_rules_on_aggregated_workers() -> None:
    own = Deployment(backend="sglang", async_scheduling=True)
    assert own.to_spec().worker.ahead
    assert not Deployment(backend="sglang").to_spec().worker.ahead
    for refused_one in (
        lambda: Deployment(backend="sglang", async_scheduling=True, rules="aisimulate"),
        lambda: Disaggregated(backend="sglang", prefill=PrefillRole(async_scheduling=True)),
    ):
        with pytest.raises(InvalidDeployment) as caught:
            refused_one()
        assert "config-unsupported" in {item.code for item in caught.value.findings.items}


HOST_MEMORY = HostOffload(num_host_blocks=4, bytes_per_token=1000, d2h_bandwidth_gbps=1, h2d_bandwidth_gbps=0)


@pytest.mark.parametrize(
    ("kind", "hosted", "named"),
    [
        (Deployment, {"host_offload": HOST_MEMORY}, ["host_offload"]),
        (Disaggregated, {"prefill": PrefillRole(host_offload=HOST_MEMORY)}, ["prefill.host_offload"]),
        (Disaggregated, {"decode": DecodeRole(host_offload=HOST_MEMORY)}, ["decode.host_offload"]),
        (
            Disaggregated,
            {"prefill": PrefillRole(host_offload=HOST_MEMORY), "decode": DecodeRole(host_offload=HOST_MEMORY)},
            ["prefill.host_offload", "decode.host_offload"],
        ),
    ],
)
def test_the_library_lets_no_host_memory_beside_speculation(
    kind: Any, hosted: dict[str, Any], named: list[str]
) -> None:
    speculation = Speculation(num_speculative_tokens=2, acceptance_rates=(1.0,))
    spec = kind(speculation=speculation).to_spec()
    host = kind(**hosted).to_spec()
    with pytest.raises(InvalidDeployment) as caught:
        kind(speculation=speculation, **hosted)
    (problem,) = caught.value.findings.items
    assert (problem.code, problem.where.field) == ("config-combination", f"{kind.__name__}.speculation")
    assert problem.found == ", ".join(f"{kind.__name__}.{name}" for name in named)
    # Nor does the kernel, which can be reached without either.
    both = dataclasses.replace(host, speculation=spec.speculation)
    with pytest.raises(ValueError, match="exclude one another"):
        simulate(prove(sketch([{"request_id": "a"}])), both, LoadSpec())


# The same of a prefill/decode configuration.
PAIR_GUARDS = [
    ("engine.workers.aggregated", {}, "config-combination"),
    ("engine.workers.prefill.parallelism.replicas", True, "config-type"),
    ("engine.workers.decode.parallelism.replicas", 1.0, "config-type"),
    ("engine.workers.decode.parallelism.attention_data", 2, "config-unsupported"),
    ("engine.workers.prefill.scheduler.max_sequences", 0, "config-value"),
    ("engine.workers.prefill.kv_cache.block_size", 0, "config-value"),
    ("engine.workers.decode.kv_cache.block_size", 32, "config-combination"),
    ("engine.workers.decode.kv_cache.capacity.type", "default", "config-value"),
    ("engine.workers.decode.kv_cache.capacity.blocks", 2**70, "config-value"),
    ("engine.workers.decode.kv_cache.g3_offload", {}, "config-unsupported"),
    ("engine.workers.prefill.timing.type", "default", "config-value"),
    ("engine.workers.decode.timing.decode_ms", 3, "config-combination"),
    ("engine.kv_transfer", 3, "config-type"),
    ("engine.kv_transfer.bytes_per_token", 0, "config-value"),
    ("engine.kv_transfer.bytes_per_token", "auto", "config-type"),
    ("engine.kv_transfer.bandwidth_gb_per_second", 0, "config-value"),
    ("engine.kv_transfer.bandwidth_gb_per_second", float("inf"), "config-value"),
    ("engine.kv_transfer.bandwidth_gb_per_second", "50", "config-type"),
    ("engine.kv_transfer.timing_mode", "full", "config-value"),
    ("engine.kv_transfer.bandwidth_gbps", 3, "config-unknown-key"),
]
EVERY_GUARD = [(guard, DEFAULT_CONFIGURATION) for guard in GUARDS] + [(guard, PAIR) for guard in PAIR_GUARDS]


@pytest.mark.parametrize(
    ("guard", "configuration"), EVERY_GUARD, ids=[f"{guard[0]}={guard[1]}" for guard, _ in EVERY_GUARD]
)
def test_each_guard_names_its_field(guard: tuple[Any, ...], configuration: bytes) -> None:
    field, value, code, *below = guard
    (problem,) = refused(changed(field, value, configuration))
    assert (problem.code, problem.where.field) == (code, ".".join([field, *below]))
    assert problem.where.file == "c.yaml"
    assert problem.where.line > 0
    assert problem.found or code == "config-unknown-key"
    assert problem.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("traffic.load.agentic_lanes", None),
        ("traffic.load.agentic_snapshot", None),
        ("traffic.load.agentic_warmup", False),
        ("traffic.load.agentic_prefix_scope", "corpus"),
        ("traffic.load.concurrency", None),
        ("traffic.stop", None),
        ("traffic.stop", False),
        ("traffic.stop", {}),
        ("engine.speculation", None),
        ("engine.speculation", False),
        ("engine.context_length", "max"),
        ("engine.model", "Any/Label"),
        (f"{WORKER}.parallelism.tensor", 8),
        (f"{WORKER}.parallelism.pipeline", 2),
        (f"{WORKER}.kv_cache.bytes_per_token", 98304),
        (f"{WORKER}.kv_cache.host_offload", None),
    ],
)
def test_switched_off_features_and_labels_are_accepted(field: str, value: object) -> None:
    configuration = parse_configuration(changed(field, value))
    plain = parse_configuration(DEFAULT_CONFIGURATION)
    assert configuration_digest(configuration.deployment, configuration.load) == configuration_digest(
        plain.deployment, plain.load
    )


def test_all_problems_are_told_at_once() -> None:
    text = b"""
traffic:
  load: {speed_up: 2, agentic_lanes: 0}
engine:
  mode: disagregated
  workers:
    aggregated:
      parallelism: {replicas: true}
      kv_cache: {capacity: {type: fixed, blocks: 0}}
"""
    found = {(item.code, item.where.field, item.where.line) for item in refused(text)}
    assert found == {
        ("config-unknown-key", "traffic.load.speed_up", 3),
        ("config-value", "traffic.load.agentic_lanes", 3),
        ("config-value", "engine.mode", 5),
        ("config-type", f"{WORKER}.parallelism.replicas", 8),
        ("config-value", f"{WORKER}.kv_cache.capacity.blocks", 9),
        ("config-missing", f"{WORKER}.timing", 7),
    }


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        (f"{WORKER}.parallelism.replicas", True, "true"),
        ("traffic.load.speedup", None, "null"),
        ("traffic.load.speedup", "fast", "fast"),
        (f"{WORKER}.kv_cache.g3_offload", {"num_host_blocks": 4}, '{"num_host_blocks": 4}'),
        ("traffic.source.subagent_marker", "end", "end"),
    ],
)
def test_what_was_found_is_shown_as_the_file_has_it(field: str, value: object, found: str) -> None:
    (problem,) = refused(changed(field, value))
    assert problem.found == found
    assert "range" not in problem.message


def test_a_setting_that_holds_itself_is_refused() -> None:
    (problem,) = refused(DEFAULT_CONFIGURATION, overrides=["traffic.load.agentic_lanes=&lanes [*lanes]"])
    assert problem.code == "config-type"


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [
        ("traffic.load", "agentic_lane", "agentic_lanes"),
        ("engine", "contextlength", "context_length"),
        (f"{WORKER}.scheduler", "max_sequence", "max_sequences"),
        (f"{WORKER}.kv_cache", "host_ofload", "host_offload"),
    ],
)
def test_an_unknown_key_comes_with_the_nearest_known_one(path: str, name: str, near: str) -> None:
    (problem,) = refused(changed(f"{path}.{name}", 1))
    assert problem.code == "config-unknown-key"
    assert problem.hint == f"did you mean {near}?"


def test_a_number_that_yaml_takes_for_text_comes_with_its_spelling() -> None:
    text = DEFAULT_CONFIGURATION.replace(b"prefill_ms: 40.0", b"prefill_ms: 1e3")
    (problem,) = refused(text)
    assert "1.0e+3" in problem.hint


@pytest.mark.parametrize(
    ("field", "configuration"),
    [
        (f"{WORKER}.kv_cache.capacity", DEFAULT_CONFIGURATION),
        (f"{WORKER}.timing", DEFAULT_CONFIGURATION),
        (WORKER, DEFAULT_CONFIGURATION),
        ("engine.workers", DEFAULT_CONFIGURATION),
        ("engine", DEFAULT_CONFIGURATION),
        ("engine.workers.prefill", PAIR),
        ("engine.workers.decode", PAIR),
        ("engine.workers.decode.timing", PAIR),
        ("engine.kv_transfer.bytes_per_token", PAIR),
    ],
)
def test_what_has_no_default_is_required(field: str, configuration: bytes) -> None:
    tree = msgspec.yaml.decode(configuration)
    *parents, last = field.split(".")
    place = tree
    for parent in parents:
        place = place[parent]
    del place[last]
    (problem,) = refused(msgspec.yaml.encode(tree))
    assert (problem.code, problem.where.field) == ("config-missing", field)


@pytest.mark.parametrize("name", ["prefill_ms", "decode_ms"])
def test_fixed_timing_needs_both_durations(name: str) -> None:
    tree = msgspec.yaml.decode(DEFAULT_CONFIGURATION)
    del tree["engine"]["workers"]["aggregated"]["timing"][name]
    (problem,) = refused(msgspec.yaml.encode(tree))
    assert (problem.code, problem.where.field) == ("config-missing", f"{WORKER}.timing.{name}")


def test_polynomial_timing_takes_no_durations() -> None:
    codes = [item.code for item in refused(changed(f"{WORKER}.timing", {"type": "polynomial", "decode_ms": 3}))]
    assert codes == ["config-combination"]
    accepted = parse_configuration(changed(f"{WORKER}.timing", {"type": "polynomial"}))
    assert isinstance(accepted.deployment, Deployment)
    assert accepted.deployment.timing == PolynomialTiming()
    assert accepted.deployment.to_spec().worker.timing.kind is TimingKind.POLYNOMIAL


def test_pools_are_bounded_together() -> None:
    tree = msgspec.yaml.decode(DEFAULT_CONFIGURATION)
    tree["engine"]["workers"]["aggregated"] |= {"parallelism": {"replicas": 1000}}
    tree["engine"]["workers"]["aggregated"]["kv_cache"]["capacity"]["blocks"] = 2**20
    (problem,) = refused(msgspec.yaml.encode(tree))
    assert problem.where.field == f"{WORKER}.kv_cache.capacity.blocks"
    with pytest.raises(InvalidDeployment, match="pools of all workers"):
        Deployment(workers=1000, blocks=2**20)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "config-unreadable"),
        (b"null", "config-unreadable"),
        (b"[]", "config-unreadable"),
        (b"3", "config-unreadable"),
        (b"engine: {workers: {aggregated: [", "config-unreadable"),
        (b"engine: 1\n\tx: 2", "config-unreadable"),
        (b"\xff\xfe\x00\x00", "config-unreadable"),
        (b"[" * 20_000, "config-unreadable"),
        (b"a: &x {b: *x}", "config-unreadable"),
        (b"a: 2020-99-99", "config-unreadable"),
        (b"a: !!python/object:os.system x", "config-unreadable"),
        (b"a: 1\n---\na: 2", "config-unreadable"),
        (b"#" * (MAX_CONFIG_BYTES + 1), "config-unreadable"),
        (b"engine: {}\nengine: {}", "config-duplicate-key"),
        (b"engine: 3", "config-type"),
        (b"1: 2\nengine: {workers: 0}", "config-unknown-key"),
    ],
    ids=range(16),
)
def test_files_that_are_no_configuration(text: bytes, code: str) -> None:
    assert refused(text)[0].code == code


def test_aliases_that_unfold_for_ever_are_refused() -> None:
    doublings = "".join(f"k{i}: &k{i} [*k{i - 1}, *k{i - 1}]\n" for i in range(1, 40))
    assert refused(f"k0: &k0 [1, 1]\n{doublings}".encode())[0].code == "config-unreadable"


def test_settings_are_put_over_the_file() -> None:
    data = changed("traffic.load.agentic_lanes", 4)
    configuration = parse_configuration(
        data,
        overrides=[
            "traffic.load.agentic_lanes=8",
            "engine.context_length=4096",
            f"{WORKER}.parallelism={{replicas: 2}}",
        ],
    )
    assert configuration.load.lanes == 8
    assert configuration.deployment.context_length == 4096
    assert isinstance(configuration.deployment, Deployment)
    assert configuration.deployment.workers == 2


@pytest.mark.parametrize("setting", ["", "a", "=1", "a..b=1", "engine.context_length={"])
def test_what_is_no_setting(setting: str) -> None:
    (problem,) = refused(DEFAULT_CONFIGURATION, overrides=[setting])
    assert problem.where.file == "--set"


def test_a_wrong_setting_is_named_as_one() -> None:
    (problem,) = refused(DEFAULT_CONFIGURATION, overrides=["engine.contextlength=3"])
    assert (problem.code, problem.where.file) == ("config-unknown-key", "--set")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "c.yaml"
    file.write_bytes(changed("traffic.source.paths", ["t.jsonl", "/abs/t.jsonl"]))
    assert read_configuration(file).paths == (tmp_path / "sub" / "t.jsonl", Path("/abs/t.jsonl"))


def test_the_default_configuration_is_the_default_deployment() -> None:
    configuration = parse_configuration(DEFAULT_CONFIGURATION)
    assert configuration.deployment == Deployment()
    assert configuration.load == Load()
    assert configuration.deployment.blocks * configuration.deployment.block_size >= 1_000_000


# Prefill/decode -----------------------------------------------------------------------------------------------------


def test_a_pair_becomes_what_was_written() -> None:
    deployment = parse_configuration(PAIR).deployment
    assert deployment == Disaggregated(
        prefill=PrefillRole(workers=2, blocks=100, block_size=16, timing=FixedTiming(prefill_ms=30, decode_ms=1)),
        decode=DecodeRole(
            workers=3,
            blocks=200,
            block_size=16,
            prefix_caching=False,
            max_batched_tokens=4096,
            timing=PolynomialTiming(),
        ),
        transfer=Transfer(bandwidth_gb_per_second=50, bytes_per_token=98304),
    )
    spec = deployment.to_spec()
    assert (spec.workers, spec.worker.blocks, spec.worker.max_sequences) == (2, 100, 1)
    assert (spec.worker.timing.prefill_ns, spec.worker.timing.decode_ns) == (30_000_000, 1_000_000)
    decode = spec.decode
    assert decode is not None
    assert (decode.workers, decode.worker.blocks, decode.worker.max_sequences) == (3, 200, 256)
    assert (decode.worker.max_batched_tokens, decode.worker.prefix_caching) == (4096, False)
    assert decode.worker.timing.kind is TimingKind.POLYNOMIAL
    assert decode.transfer == TransferSpec(98304, 50e9, full_prompt=False)


def test_a_transfer_is_at_once_unless_it_has_a_bandwidth() -> None:
    for transfer in (None, {}, {"bytes_per_token": 9}, {"bandwidth_gb_per_second": None, "timing_mode": "full_prompt"}):
        deployment = parse_configuration(changed("engine.kv_transfer", transfer, PAIR)).deployment
        decode = deployment.to_spec().decode
        assert decode is not None
        assert decode.transfer.bytes_per_second is None
        assert decode.transfer.full_prompt is ("timing_mode" in (transfer or {}))


def test_a_prefill_worker_takes_one_prompt_at_a_time_unless_told() -> None:
    given = changed("engine.workers.prefill.scheduler", {"max_sequences": 8}, PAIR)
    other = changed("engine.workers.prefill.scheduler", {"max_batched_tokens": 64}, PAIR)
    spec = parse_configuration(given).deployment.to_spec()
    assert spec.worker.max_sequences == 8
    assert parse_configuration(other).deployment.to_spec().worker.max_sequences == PrefillRole().max_sequences == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_unequal_blocks_name_both_fields(role: str) -> None:
    tree = msgspec.yaml.decode(PAIR)
    del tree["engine"]["workers"][role]["kv_cache"]["block_size"]
    tree["engine"]["backend"] = "sglang"
    (problem,) = refused(msgspec.yaml.encode(tree))
    for name in ("prefill", "decode"):
        assert f"engine.workers.{name}.kv_cache.block_size: {1 if name == role else 16}" in problem.found
    assert "one for one" in problem.because
    other: dict[str, Any] = {role: {"prefill": PrefillRole, "decode": DecodeRole}[role](block_size=1)}
    with pytest.raises(InvalidDeployment, match=r"Disaggregated\.decode\.block_size"):
        Disaggregated(**other)


def test_where_the_backend_is_none_no_default_is_compared() -> None:
    tree = msgspec.yaml.decode(PAIR)
    del tree["engine"]["workers"]["decode"]["kv_cache"]["block_size"]
    tree["engine"]["backend"] = "trtllm"
    (problem,) = refused(msgspec.yaml.encode(tree))
    assert problem.where.field == "engine.backend"


def test_a_mode_alone_names_what_it_lacks_and_what_it_refuses() -> None:
    found = refused(DEFAULT_CONFIGURATION, overrides=["engine.mode=disaggregated"])
    assert [(item.code, item.where.field) for item in found] == [
        ("config-combination", "engine.workers.aggregated"),
        ("config-missing", "engine.workers.prefill"),
        ("config-missing", "engine.workers.decode"),
    ]
    found = refused(PAIR, overrides=["engine.mode=aggregated"])
    assert [(item.code, item.where.field) for item in found] == [
        ("config-missing", "engine.workers.aggregated"),
        ("config-combination", "engine.workers.prefill"),
        ("config-combination", "engine.workers.decode"),
        ("config-combination", "engine.kv_transfer"),
    ]


@pytest.mark.parametrize("off", [None, False])
def test_what_another_mode_has_may_be_switched_off(off: object) -> None:
    assert parse_configuration(changed(WORKER, off, PAIR)).deployment == parse_configuration(PAIR).deployment
    for field in ("engine.workers.prefill", "engine.workers.decode", "engine.kv_transfer"):
        assert parse_configuration(changed(field, off)).deployment == Deployment()


def test_the_pools_of_both_roles_are_bounded_together() -> None:
    settings = [f"engine.workers.{role}.kv_cache.capacity.blocks={2**24}" for role in ("prefill", "decode")]
    (problem,) = refused(PAIR, overrides=settings)
    assert problem.where.field == "engine.workers.decode.kv_cache.capacity.blocks"
    (problem,) = refused(PAIR, overrides=[*settings, "engine.workers.prefill.parallelism.replicas=5"])
    assert problem.where.field == "engine.workers.prefill.kv_cache.capacity.blocks"
    with pytest.raises(InvalidDeployment, match="pools of all workers"):
        Disaggregated(prefill=PrefillRole(workers=4, blocks=2**24), decode=DecodeRole(blocks=1))


def test_python_roles_name_every_wrong_field() -> None:
    with pytest.raises(InvalidDeployment) as caught:
        Disaggregated(backend="trtllm", prefill=3, decode=PrefillRole())  # type: ignore[arg-type]
    fields = [item.where.field for item in caught.value.findings.items]
    assert fields == ["Disaggregated.backend", "Disaggregated.prefill", "Disaggregated.decode"]
    with pytest.raises(InvalidDeployment, match=r"PrefillRole\.workers"):
        PrefillRole(workers=0)
    with pytest.raises(InvalidDeployment, match=r"Transfer\.bytes_per_token"):
        Transfer(bandwidth_gb_per_second=1)


def test_both_forms_say_which_mode_they_are() -> None:
    assert Deployment().to_dict()["mode"] == "aggregated"
    pair = Disaggregated(model="a").to_dict()
    assert (pair["mode"], pair["prefill"]["max_sequences"], pair["decode"]["workers"]) == ("disaggregated", 1, 1)
    assert configuration_digest(Disaggregated(model="a"), Load()) == configuration_digest(Disaggregated(), Load())
    faster = Disaggregated(transfer=Transfer(bytes_per_token=1, bandwidth_gb_per_second=2))
    assert configuration_digest(faster, Load()) != configuration_digest(Disaggregated(), Load())


# The kernel's form --------------------------------------------------------------------------------------------------


def test_units_of_the_kernel() -> None:
    deployment = Deployment(workers=2, timing=FixedTiming(prefill_ms=1.5, decode_ms=0.25), context_length=100)
    spec = deployment.to_spec()
    assert (spec.worker.timing.prefill_ns, spec.worker.timing.decode_ns) == (1_500_000, 250_000)
    assert (spec.workers, spec.context_length) == (2, 100)
    assert Deployment().to_spec().context_length == UNLIMITED_CONTEXT_TOKENS
    assert Load(lanes=3, speedup=2).to_spec().speedup == 2.0


def test_python_classes_name_every_wrong_field() -> None:
    with pytest.raises(InvalidDeployment) as caught:
        Deployment(workers=True, blocks=0, prefix_caching=1, context_length="long", timing="fast")  # type: ignore[arg-type]
    fields = [item.where.field for item in caught.value.findings.items]
    assert fields == [
        f"Deployment.{name}" for name in ("workers", "blocks", "prefix_caching", "timing", "context_length")
    ]
    with pytest.raises(InvalidDeployment, match=r"Load\.lanes"):
        Load(lanes=0)


def test_sglang_has_its_own_page_size_and_scheduler() -> None:
    settings = ["engine.backend=sglang", f"{WORKER}.scheduler.chunked_prefill_size=512"]
    settings.append(f"{WORKER}.scheduler.schedule_conservativeness=0.5")
    deployment = parse_configuration(DEFAULT_CONFIGURATION, overrides=settings).deployment
    assert isinstance(deployment, Deployment)
    assert (deployment.backend, deployment.block_size, deployment.chunked_prefill_size) == ("sglang", 1, 512)
    assert deployment.max_prefill_tokens == 16384
    spec = deployment.to_spec().worker
    assert (spec.backend, spec.chunked_prefill_size, spec.schedule_conservativeness) == (Backend.SGLANG, 512, 0.5)
    default = parse_configuration(DEFAULT_CONFIGURATION).deployment
    assert isinstance(default, Deployment)
    assert default.block_size == 64


def test_labels_do_not_change_the_digest_and_settings_do() -> None:
    plain = configuration_digest(Deployment(), Load())
    assert configuration_digest(Deployment(model="a", hardware="b"), Load()) == plain
    assert configuration_digest(Deployment(blocks=1), Load()) != plain
    assert configuration_digest(Deployment(), Load(lanes=1)) != plain


def same_worker(workers: int, spec: WorkerSpec, written: dict[str, Any]) -> None:
    """Compare a worker's spec with what a reference configuration has of it."""
    scheduler, cache = written["scheduler"], written["kv_cache"]
    assert workers == written["parallelism"]["replicas"]
    assert spec.max_batched_tokens == scheduler["max_batched_tokens"]
    assert spec.max_sequences == scheduler["max_sequences"]
    assert (spec.blocks, spec.block_size) == (cache["capacity"]["blocks"], cache["block_size"])
    assert spec.prefix_caching is cache["prefix_caching"]
    if written["timing"]["type"] == "polynomial":
        assert spec.timing.kind is TimingKind.POLYNOMIAL
    else:
        ms = (written["timing"]["prefill_ms"], written["timing"]["decode_ms"])
        assert (spec.timing.prefill_ns, spec.timing.decode_ns) == tuple(value * 1_000_000 for value in ms)
    host = cache.get("host_offload")
    assert (spec.host is None) == (host is None)
    if spec.host is None:
        return
    assert (spec.host.blocks, spec.host.block_bytes) == (
        host["num_host_blocks"],
        cache["block_size"] * cache["bytes_per_token"],
    )
    assert spec.host.shared is (host["scope"] == "cluster_shared")
    assert (spec.host.d2h_bytes_per_second or 0.0) == host["d2h_bandwidth_gbps"] * 1e9
    assert (spec.host.h2d_bytes_per_second or 0.0) == host["h2d_bandwidth_gbps"] * 1e9
    assert spec.host.latency_ns == host["latency_to_first_byte_ms"] * 1_000_000
    if spec.host.shared:
        assert (spec.host.shared_d2h_bytes_per_second or 0.0) == host["shared_d2h_bandwidth_gbps"] * 1e9
        assert (spec.host.shared_h2d_bytes_per_second or 0.0) == host["shared_h2d_bandwidth_gbps"] * 1e9


def test_the_reference_configurations(reference_dir: Path) -> None:
    accepted = 0
    for file in sorted(reference_dir.glob("cases/*/config.yaml")):
        configuration = read_configuration(file)
        spec, engine = configuration.deployment.to_spec(), msgspec.yaml.decode(file.read_bytes())["engine"]
        roles = engine["workers"]
        if file.parent.name.startswith("agg-"):
            assert spec.decode is None
            same_worker(spec.workers, spec.worker, roles["aggregated"])
        else:
            assert spec.decode is not None
            same_worker(spec.workers, spec.worker, roles["prefill"])
            same_worker(spec.decode.workers, spec.decode.worker, roles["decode"])
            transfer, written = spec.decode.transfer, engine["kv_transfer"]
            assert transfer.bytes_per_token == written["bytes_per_token"]
            bandwidth = written.get("bandwidth_gb_per_second")
            assert transfer.bytes_per_second == (None if bandwidth is None else bandwidth * 1e9)
            assert transfer.full_prompt is (written["timing_mode"] == "full_prompt")
        assert configuration.paths == (file.parent / "trace.jsonl",)
        accepted += 1
    assert accepted >= 92


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({field for field, *_ in GUARDS} | {"engine", "traffic", "engine.workers", WORKER, f"{WORKER}.timing"})


PAIR_FIELDS = sorted(
    {field for field, _, _ in PAIR_GUARDS} | {"engine.mode", "engine.workers", "engine.workers.decode"}
)


@given(
    st.tuples(st.sampled_from(FIELDS), st.just(DEFAULT_CONFIGURATION))
    | st.tuples(st.sampled_from(PAIR_FIELDS), st.just(PAIR)),
    yaml_values,
)
def test_any_value_anywhere_is_accepted_or_refused_with_findings(place: tuple[str, bytes], value: object) -> None:
    field, configuration = place
    # Any other exception fails the test.
    with contextlib.suppress(InvalidDeployment):
        parse_configuration(changed(field, value, configuration))


@given(st.binary(max_size=60))
def test_any_bytes_are_accepted_or_refused_with_findings(data: bytes) -> None:
    assert refused(data)


PIECES = (
    b"{",
    b"}",
    b"[",
    b"*a",
    b"&a ",
    b"!!",
    b"\n",
    b": ",
    b"- ",
    b"<<: ",
    b"? ",
    b"|",
    b"\x00",
    b"1e999",
    b".nan",
    b"#",
    b"---\n",
)
EXAMPLE = (ROOT / "examples" / "deployment.yaml").read_bytes()


@given(st.lists(st.tuples(st.integers(0, len(EXAMPLE)), st.integers(0, 20), st.sampled_from(PIECES)), max_size=5))
def test_a_mutated_file_is_accepted_or_refused_with_findings(edits: list[tuple[int, int, bytes]]) -> None:
    data = EXAMPLE
    for place, cut, piece in edits:
        data = data[:place] + piece + data[place + cut :]
    # Any other exception fails the test.
    with contextlib.suppress(InvalidDeployment):
        parse_configuration(data)


def test_what_is_left_out_and_followed() -> None:
    plain = parse_configuration(DEFAULT_CONFIGURATION)
    assert (plain.skip_bad, plain.exclude, plain.follow_links) == (False, (), False)
    said = ["traffic.source.skip_bad=true", "traffic.source.exclude=[a*, b]", "traffic.source.follow_links=true"]
    chosen = parse_configuration(DEFAULT_CONFIGURATION, overrides=said)
    assert (chosen.skip_bad, chosen.exclude, chosen.follow_links) == (True, ("a*", "b"), True)
    for wrong in ("traffic.source.skip_bad=1", "traffic.source.exclude=a", "traffic.source.follow_links=maybe"):
        with pytest.raises(InvalidDeployment):
            parse_configuration(DEFAULT_CONFIGURATION, overrides=[wrong])


def test_a_block_in_host_memory_weighs_what_its_tokens_do() -> None:
    host = HostOffload(num_host_blocks=8, bytes_per_token=1000)
    for size in (16, 64):
        spec = Deployment(blocks=64, block_size=size, host_offload=host).to_spec().worker.host
        assert spec is not None
        assert spec.block_bytes == 1000 * size
