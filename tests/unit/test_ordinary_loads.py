"""Ordinary traces replayed: loads, stops, reports, and the guards between ordinary and agentic controls."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from playproof_spec.certificate import ProvenGraph
from playproof_spec.findings import Finding, Findings

import playproof as pp
from playproof.report import AGENTIC_FIELDS

ROWS: list[dict[str, Any]] = [
    {"session_id": "a", "timestamp": 100, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]},
    {"session_id": "b", "timestamp": 110, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 4]},
    {"session_id": "a", "delay": 50, "input_length": 70, "output_length": 2, "hash_ids": [1, 2, 3, 5, 6]},
    {"session_id": "c", "timestamp": 300, "input_length": 20, "output_length": 4, "hash_ids": [7, 8]},
    {"session_id": "b", "delay": 5, "input_length": 60, "output_length": 2, "hash_ids": [1, 2, 4, 9]},
]
DELTA = [{**row, "hash_ids": []} if "delay" in row else row for row in ROWS]
APPLIED = {
    "num_turns": 1,
    "input_prompt_length": 40,
    "assistant_response_length": [3],
    "tool_call_output_length": [7],
    "tool_call_latency": [0.05],
    "final_assistant_response_length": 2,
}
HEADER = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 16,
    "hash_id_scope": "local",
    "source": {"format": "hand", "digest": "loads"},
}
NODE = {
    "request_id": "r",
    "play_id": "p",
    "session_id": "s",
    "model": "m",
    "input_length": 16,
    "output_length": 1,
    "hash_ids": [1],
    "not_before_ms": 0,
    "dependencies": [],
}
TRACES = {
    "mooncake": ROWS,
    "mooncake-delta": DELTA,
    "applied_compute_agentic": [APPLIED, APPLIED],
    "agentic_mooncake": [HEADER, NODE],
}
DEPLOYMENT = pp.Deployment(blocks=512, block_size=16, timing=pp.FixedTiming(prefill_ms=25, decode_ms=2))
SNAPSHOT = pp.Load(lanes=1, snapshot_seed=1)
MS = 1_000_000


def trace_file(folder: Path, format: str = "mooncake") -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TRACES[format]))
    return path


def traced(folder: Path, format: str = "mooncake") -> ProvenGraph:
    size = None if format == "agentic_mooncake" else 16
    return pp.load(trace_file(folder, format), format=format, block_size=size)


# Loads --------------------------------------------------------------------------------------------------------------


def ends(report: pp.Report) -> dict[tuple[str, int], tuple[float, float]]:
    return {
        (row["session_id"], row["turn_index"]): (row["dispatched_at_ms"], row["terminal_time_ms"])
        for row in report.request_dicts()
    }


def test_timestamps_start_sessions_and_completions_turns(tmp_path: Path) -> None:
    """Arrival and end of each request as aisimulate gives them for these rows."""
    assert ends(pp.replay(traced(tmp_path), DEPLOYMENT)) == {
        ("a", 0): (0.0, 54.0),
        ("b", 0): (10.0, 56.0),
        ("b", 1): (61.0, 88.0),
        ("a", 1): (104.0, 131.0),
        ("c", 0): (200.0, 231.0),
    }


def test_a_session_holds_its_slot_while_it_thinks(tmp_path: Path) -> None:
    assert ends(pp.replay(traced(tmp_path), DEPLOYMENT, pp.Load(concurrency=2))) == {
        ("a", 0): (0.0, 29.0),
        ("b", 0): (0.0, 29.0),
        ("b", 1): (34.0, 61.0),
        ("c", 0): (61.0, 117.0),
        ("a", 1): (79.0, 115.0),
    }


def test_speedup_divides_what_is_authored(tmp_path: Path) -> None:
    found = ends(pp.replay(traced(tmp_path), DEPLOYMENT, pp.Load(speedup=2)))
    assert [found[key][0] for key in (("a", 0), ("b", 0), ("c", 0))] == [0.0, 5.0, 100.0]
    assert found[("b", 1)][0] == found[("b", 0)][1] + 2.5


@pytest.mark.parametrize("concurrency", [1, 2, 64])
def test_a_concurrency_is_the_lanes_of_the_lowered_trace(tmp_path: Path, concurrency: int) -> None:
    """Lowered to the canonical form an ordinary trace is an agentic one, whose lanes do the same."""
    from playproof_lowering import write_v2

    trace = traced(tmp_path)
    write_v2(trace.graph, tmp_path / "lowered.jsonl")
    lowered = pp.replay(pp.load(tmp_path / "lowered.jsonl"), DEPLOYMENT, pp.Load(lanes=concurrency))
    direct = pp.replay(trace, DEPLOYMENT, pp.Load(concurrency=concurrency))
    assert lowered.to_dict()["digests"]["ledger"] == direct.to_dict()["digests"]["ledger"]


# Stops --------------------------------------------------------------------------------------------------------------


def stopped(folder: Path, seconds: float) -> dict[str, Any]:
    return pp.replay(traced(folder), DEPLOYMENT, pp.Load(max_virtual_time_seconds=seconds)).to_dict()


@pytest.mark.parametrize(
    ("seconds", "issued", "completed", "unfinished", "never", "sessions", "duration", "prefilled"),
    [
        # The second pass of the first two prompts is under way.
        (0.04, 2, 0, 2, 3, (2, 0, 2), 0.0, 40),
        # Between two arrivals: both first turns are through, nothing runs.
        (0.06, 2, 2, 0, 3, (2, 0, 2), 56.0, 48),
        # What ends at the very instant has ended: session b is complete.
        (0.088, 3, 3, 0, 2, (2, 1, 1), 88.0, 76),
        # The last prompt is being computed: nothing of it counts.
        (0.21, 5, 4, 1, 0, (3, 2, 1), 131.0, 114),
        # It is computed, and its first tokens are out, but it has not ended.
        (0.228, 5, 4, 1, 0, (3, 2, 1), 131.0, 134),
        (10.0, 5, 5, 0, 0, (3, 3, 0), 231.0, 134),
    ],
)
def test_a_stop_counts_what_has_ended(
    tmp_path: Path,
    seconds: float,
    issued: int,
    completed: int,
    unfinished: int,
    never: int,
    sessions: tuple[int, int, int],
    duration: float,
    prefilled: int,
) -> None:
    report = stopped(tmp_path, seconds)
    assert report["num_requests"] == issued
    assert report["completed_requests"] == report["num_e2e_latency_samples"] == completed
    assert (report["unfinished_requests"], report["never_issued_requests"]) == (unfinished, never)
    names = ("total_trajectories", "completed_trajectories", "incomplete_trajectories")
    assert tuple(report[name] for name in names) == sessions
    assert (report["duration_ms"], report["committed_prefill_tokens"]) == (duration, prefilled)
    # The deployment was there until the stop, or until everything had ended.
    assert report["decode_worker_seconds"] == min(seconds, 0.231)


def test_a_stop_before_anything_ended_has_no_figures(tmp_path: Path) -> None:
    report = stopped(tmp_path, 0.001)
    assert report["mean_ttft_ms"] is None
    assert report["output_throughput_tok_s"] is None
    assert report["forward_passes"] == report["processed_tokens"] == 0
    assert (report["num_requests"], report["unfinished_requests"]) == (1, 1)


def test_unfinished_requests_have_no_line(tmp_path: Path) -> None:
    report = pp.replay(traced(tmp_path), DEPLOYMENT, pp.Load(max_virtual_time_seconds=0.21))
    assert ("c", 0) not in ends(report)
    assert {row["terminal_status"] for row in report.request_dicts()} == {"completed"}
    assert len(report.requests if report.requests is not None else ()) == 4


# The report ---------------------------------------------------------------------------------------------------------


def test_agentic_fields_are_null(tmp_path: Path) -> None:
    report = pp.replay(traced(tmp_path), DEPLOYMENT, pp.Load(concurrency=2)).to_dict()
    assert [name for name in AGENTIC_FIELDS if report[name] is not None] == []
    assert {name for name in report if name.startswith("agentic_")} == set(AGENTIC_FIELDS)
    assert report["reading"]["input_kind"] == "ordinary"
    assert report["load"]["concurrency"] == 2


def test_an_agentic_trace_has_them_and_no_turns(tmp_path: Path) -> None:
    report = pp.replay(traced(tmp_path, "agentic_mooncake"), DEPLOYMENT)
    told = report.to_dict()
    assert all(told[name] is not None for name in ("agentic_graph", "agentic_play_outcomes", "agentic_qualification"))
    assert [row["turn_index"] for row in report.request_dicts()] == [None]


# Guards: library, file and --set ------------------------------------------------------------------------------------

DISAGGREGATED = pp.Disaggregated(
    prefill=pp.PrefillRole(blocks=512, block_size=16), decode=pp.DecodeRole(blocks=512, block_size=16)
)
PROFILE = pp.Load(lanes=1, snapshot_seed=1, profile=pp.Profile())
# trace, deployment, load; the field in Python, the settings of a file, and the fields there
GUARDS: list[tuple[str, pp.Deployment | pp.Disaggregated, pp.Load, list[str], dict[str, Any], list[str]]] = [
    (
        "mooncake",
        DEPLOYMENT,
        pp.Load(lanes=2),
        ["Load.lanes"],
        {"traffic.load.agentic_lanes": 2},
        ["traffic.load.agentic_lanes"],
    ),
    (
        "mooncake-delta",
        DEPLOYMENT,
        SNAPSHOT,
        ["Load.lanes", "Load.snapshot_seed"],
        {"traffic.load.agentic_lanes": 1, "traffic.load.agentic_snapshot": {"seed": 1}},
        ["traffic.load.agentic_lanes", "traffic.load.agentic_snapshot"],
    ),
    (
        "mooncake",
        DEPLOYMENT,
        pp.Load(lanes=1, snapshot_seed=1, warmup=True),
        ["Load.lanes", "Load.snapshot_seed", "Load.warmup"],
        {
            "traffic.load.agentic_lanes": 1,
            "traffic.load.agentic_snapshot": {"seed": 1},
            "traffic.load.agentic_warmup": True,
        },
        ["traffic.load.agentic_lanes", "traffic.load.agentic_snapshot", "traffic.load.agentic_warmup"],
    ),
    (
        "mooncake",
        DEPLOYMENT,
        PROFILE,
        ["Load.lanes", "Load.snapshot_seed", "Load.profile"],
        {
            "traffic.load.agentic_lanes": 1,
            "traffic.load.agentic_snapshot": {"seed": 1},
            "traffic.load.agentic_profile": {},
        },
        ["traffic.load.agentic_lanes", "traffic.load.agentic_snapshot", "traffic.load.agentic_profile"],
    ),
    (
        "agentic_mooncake",
        DEPLOYMENT,
        pp.Load(concurrency=4),
        ["Load.concurrency"],
        {"traffic.load.type": "concurrency", "traffic.load.concurrency": 4},
        ["traffic.load.type"],
    ),
    (
        "agentic_mooncake",
        DEPLOYMENT,
        pp.Load(max_virtual_time_seconds=3),
        ["Load.max_virtual_time_seconds"],
        {"traffic.stop.max_virtual_time_seconds": 3},
        ["traffic.stop.max_virtual_time_seconds"],
    ),
    (
        "applied_compute_agentic",
        DEPLOYMENT,
        pp.Load(),
        ["Load.concurrency"],
        {"traffic.load.type": "trace_timestamps"},
        ["traffic.load.type"],
    ),
    ("mooncake-delta", DISAGGREGATED, pp.Load(), ["Disaggregated"], {"engine.mode": "disaggregated"}, ["engine.mode"]),
]
IDS = [f"{guard[0]}: {', '.join(guard[5])}" for guard in GUARDS]


def sound(problems: list[Finding], fields: list[str]) -> None:
    assert [(item.code, item.where.field) for item in problems] == [("config-combination", field) for field in fields]
    assert all(item.found and item.wanted and item.because and item.hint for item in problems)


@pytest.mark.parametrize(("format", "deployment", "load", "fields", "_", "__"), GUARDS, ids=IDS)
def test_the_library_names_its_field(
    tmp_path: Path,
    format: str,
    deployment: pp.Deployment | pp.Disaggregated,
    load: pp.Load,
    fields: list[str],
    _: object,
    __: object,
) -> None:
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.replay(traced(tmp_path, format), deployment, load)
    sound(list(refused.value.findings.items), fields)


def configuration(settings: dict[str, Any]) -> dict[str, Any]:
    role = {
        "kv_cache": {"block_size": 16, "capacity": {"type": "fixed", "blocks": 512}},
        "timing": {"type": "fixed", "prefill_ms": 25, "decode_ms": 2},
    }
    split = settings.get("engine.mode") == "disaggregated"
    tree: dict[str, Any] = {"engine": {"workers": {"prefill": role, "decode": role} if split else {"aggregated": role}}}
    for field, value in settings.items():
        *parents, last = field.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


@pytest.mark.parametrize(("format", "_", "__", "___", "settings", "fields"), GUARDS, ids=IDS)
def test_a_file_and_an_override_name_theirs(
    tmp_path: Path, format: str, _: object, __: object, ___: object, settings: dict[str, Any], fields: list[str]
) -> None:
    source = {"format": format, "paths": [str(trace_file(tmp_path, format))]}
    if format != "agentic_mooncake":
        source["block_size"] = 16  # type: ignore[assignment]
    file = tmp_path / "c.yaml"
    file.write_bytes(msgspec.yaml.encode(configuration({**settings, "traffic.source": source})))
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.run(file)
    problems = list(refused.value.findings.items)
    sound(problems, fields)
    assert all(item.where.file == str(file) and item.where.line > 0 for item in problems)
    if "engine.mode" in settings:
        return  # other roles come with it
    file.write_bytes(msgspec.yaml.encode(configuration({"traffic.source": source})))
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.run(file, overrides=[f"{field}={json.dumps(value)}" for field, value in settings.items()])
    problems = list(refused.value.findings.items)
    sound(problems, fields)
    assert all(item.where.file == "--set" for item in problems)


@pytest.mark.parametrize("control", ["lanes", "snapshot_seed", "warmup", "profile"])
@pytest.mark.parametrize("ordinary", [{"concurrency": 2}, {"max_virtual_time_seconds": 1.0}])
def test_controls_of_both_kinds_exclude_each_other(control: str, ordinary: dict[str, Any]) -> None:
    """Even before there is a trace: a profile with a virtual-time stop, above all."""
    agentic = {"lanes": 1, "snapshot_seed": 1, "warmup": True, "profile": pp.Profile()}
    needed = {"lanes": 1, "snapshot_seed": 1} if control != "lanes" else {}
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.Load(**{**needed, control: agentic[control], **ordinary})
    assert f"Load.{control}" in {item.where.field for item in refused.value.findings.items}
    assert {item.code for item in refused.value.findings.items} == {"config-combination"}


def test_a_file_with_a_profile_and_a_stop_is_refused() -> None:
    from playproof.config import parse_configuration

    settings = {
        "traffic.load.agentic_lanes": 1,
        "traffic.load.agentic_snapshot": {"seed": 1},
        "traffic.load.agentic_profile": {},
        "traffic.stop.max_virtual_time_seconds": 3,
    }
    with pytest.raises(pp.InvalidDeployment) as refused:
        parse_configuration(msgspec.yaml.encode(configuration(settings)), file="c.yaml")
    fields = [item.where.field for item in refused.value.findings.items]
    assert fields == [f"traffic.load.agentic_{name}" for name in ("lanes", "snapshot", "profile")]
    assert all(item.where.line > 0 for item in refused.value.findings.items)


def test_a_concurrency_without_a_number_is_ten() -> None:
    from playproof.config import parse_configuration

    data = msgspec.yaml.encode(configuration({"traffic.load.type": "concurrency"}))
    assert parse_configuration(data).load == pp.Load(concurrency=10)


# Speculation --------------------------------------------------------------------------------------------------------

NGRAM = {"kind": "ngram", "num_speculative_tokens": 2, "acceptance_rates": [1.0, 0.5], "seed": 7}


@pytest.mark.parametrize("kind", [pp.Deployment, pp.Disaggregated])
def test_speculation_is_vllms(kind: Any) -> None:
    speculation = pp.Speculation(num_speculative_tokens=2, acceptance_rates=(1.0,))
    assert kind(speculation=speculation).to_spec().speculation.drafts == 2
    with pytest.raises(pp.InvalidDeployment) as refused:
        kind(backend="sglang", speculation=speculation)
    (problem,) = refused.value.findings.items
    assert (problem.code, problem.where.field) == ("config-unsupported", f"{kind.__name__}.speculation")
    assert (problem.found, problem.wanted) == ("backend: sglang", "backend: vllm")


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_a_file_says_how_to_speculate(mode: str) -> None:
    from playproof.config import parse_configuration

    settings = {"engine.mode": mode, "engine.speculation": NGRAM}
    read = parse_configuration(msgspec.yaml.encode(configuration(settings)), file="c.yaml")
    assert read.deployment.speculation == pp.Speculation(num_speculative_tokens=2, acceptance_rates=(1.0, 0.5), seed=7)
    with pytest.raises(pp.InvalidDeployment) as refused:
        parse_configuration(msgspec.yaml.encode(configuration({**settings, "engine.backend": "sglang"})), file="c.yaml")
    (problem,) = refused.value.findings.items
    assert (problem.code, problem.where.field) == ("config-unsupported", "engine.speculation")
    assert problem.where.line > 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_speculative_tokens": 0, "acceptance_rates": []}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 2, "acceptance_rates": [1.01]}, "acceptance_rates"),
        ({"num_speculative_tokens": 2, "acceptance_rates": [0.5], "seed": 2**64}, "seed"),
        ({"num_speculative_tokens": 2, "acceptance_rates": [0.5], "kind": "eagle"}, "kind"),
    ],
)
def test_the_library_checks_speculation(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.Speculation(**fields)
    assert [item.where.field for item in refused.value.findings.items] == [f"Speculation.{field}"]


def test_a_request_whose_last_token_has_no_place_is_named(tmp_path: Path) -> None:
    """Without speculation the last token needs none: 70 + 11 tokens fit into 5 blocks of 16, less one."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({**ROWS[2], "timestamp": 0, "delay": None, "output_length": 11}) + "\n")
    trace = pp.load(path, block_size=16)
    tight = pp.Deployment(blocks=5, block_size=16)
    assert pp.replay(trace, tight).to_dict()["completed_requests"] == 1
    drafts = pp.Speculation(num_speculative_tokens=2, acceptance_rates=(1.0, 1.0))
    report = pp.replay(trace, msgspec.structs.replace(tight, speculation=drafts))
    assert report.to_dict()["failed_requests"] == 1
    assert report.to_dict()["finding_counts"]["request-never-fits"] == 1


# The public conversation trace --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversation(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ProvenGraph:
    folder = tmp_path_factory.mktemp("mooncake")
    with lzma.open(data_dir / "mooncake" / "conversation_3000.jsonl.xz") as packed:
        (folder / "conversation.jsonl").write_bytes(packed.read())
    return pp.load(folder)


FLEET = pp.Deployment(workers=16, blocks=8192, block_size=64, timing=pp.PolynomialTiming())


@pytest.mark.corpus
@pytest.mark.parametrize("load", [pp.Load(), pp.Load(concurrency=64)], ids=["timestamps", "concurrency 64"])
def test_the_conversation_trace_replays_whole(conversation: ProvenGraph, load: pp.Load) -> None:
    report = pp.replay(conversation, FLEET, load)
    told = report.to_dict()
    graph, ledger = conversation.graph, report.ledger
    assert told["num_requests"] == told["completed_requests"] == told["completed_trajectories"] == 3000
    assert told["total_input_tokens"] == 40_550_180
    assert told["total_output_tokens"] == int(graph.output_length.sum()) == int(ledger.decode_tokens.sum())
    # Some prompts begin alike, and no cache finds more than one without bound would.
    from playproof.inspection import inspect_graph

    best = inspect_graph(graph, Findings()).to_dict()["prefix_reuse"]["ratio"]
    assert 0.05 < told["first_admission_prefix_cache_reused_ratio"] <= best
    assert 0 < told["min_ttft_ms"] < told["median_ttft_ms"] < told["p99_ttft_ms"]
    if load.concurrency is None:
        arrivals = graph.not_before_ms - graph.not_before_ms.min()
        assert np.array_equal(ledger.dispatched_ns, np.round(arrivals * MS).astype(np.int64))
        assert told["duration_ms"] > arrivals.max()
    else:
        order = np.argsort(ledger.dispatched_ns, kind="stable")
        opened, closed = ledger.dispatched_ns[order], np.sort(ledger.terminal_ns)
        # The 65th session starts when the first is through, and so on: never more than 64, and 64 while there are any.
        assert (opened[:64] == 0).all()
        assert np.array_equal(opened[64:], closed[:-64])
    assert pp.replay(conversation, FLEET, load).to_dict()["digests"] == told["digests"]


@pytest.mark.corpus
def test_the_conversation_trace_speculates(conversation: ProvenGraph) -> None:
    drafts = pp.Speculation(num_speculative_tokens=3, acceptance_rates=(0.8, 0.6, 0.4))
    plain = pp.replay(conversation, FLEET).to_dict()
    faster = pp.replay(conversation, msgspec.structs.replace(FLEET, speculation=drafts)).to_dict()
    assert faster["completed_requests"] == 3000
    assert faster["mean_tpot_ms"] < plain["mean_tpot_ms"]
    assert faster["median_itl_ms"] == 0.0  # more than half of the tokens come behind another of their pass
