"""The run controls as users meet them: options and their guards, report keys, lines, exit codes, invalid runs."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playproof_kernel import ControlledLedger, simulate, simulate_controlled
from playproof_kernel.memory.block_pool import GENERATED
from playproof_kernel.runs import controlled_ledger, controlled_run, loop
from playproof_kernel.runs.controlled_setup import start_controlled
from playproof_kernel.runs.simulation import SLICE
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.digest import graph_digest
from playproof_spec.machines import RequestState
from playproof_spec.sketch import sketch
from rich.console import Console

import playproof as pp
from playproof.cli import EXIT_FINDINGS, main
from playproof.config import parse_configuration
from playproof.controlled import ControlledReport
from playproof.render import print_report
from playproof.report import ledger_digest

LOAD = "traffic.load"
ENGINE: dict[str, Any] = {
    "context_length": 400,
    "workers": {
        "aggregated": {
            "kv_cache": {"block_size": 4, "capacity": {"type": "fixed", "blocks": 64}},
            "timing": {"type": "fixed", "prefill_ms": 7, "decode_ms": 2},
        }
    },
}
_WORKER = ENGINE["workers"]["aggregated"]
ENGINE_PAIR: dict[str, Any] = {**ENGINE, "mode": "disaggregated", "workers": {"prefill": _WORKER, "decode": _WORKER}}
SEEDED: dict[str, Any] = {"agentic_lanes": 2, "agentic_snapshot": {"seed": 42}}


def parsed(load: dict[str, Any]) -> pp.Configuration:
    return parse_configuration(json.dumps({"traffic": {"load": load}, "engine": ENGINE}).encode(), file="c.yaml")


def refusals(load: dict[str, Any]) -> set[tuple[str, str]]:
    with pytest.raises(pp.InvalidDeployment) as refused:
        parsed(load)
    assert all(item.where.line > 0 and item.hint for item in refused.value.findings.items)
    return {(item.code, item.where.field) for item in refused.value.findings.items}


# Options ------------------------------------------------------------------------------------------------------------

GUARDS: list[tuple[dict[str, Any], set[tuple[str, str]]]] = [
    ({"agentic_snapshot": {"seed": 1}}, {("config-combination", f"{LOAD}.agentic_snapshot")}),
    ({"agentic_lanes": 2, "agentic_warmup": True}, {("config-combination", f"{LOAD}.agentic_warmup")}),
    ({"agentic_lanes": 2, "agentic_profile": {}}, {("config-combination", f"{LOAD}.agentic_profile")}),
    (
        {"agentic_warmup": True, "agentic_profile": {}},
        {("config-combination", f"{LOAD}.agentic_warmup"), ("config-combination", f"{LOAD}.agentic_profile")},
    ),
    ({"agentic_lanes": 2, "agentic_snapshot": {}}, {("config-missing", f"{LOAD}.agentic_snapshot.seed")}),
    ({**SEEDED, "agentic_snapshot": {"seed": -1}}, {("config-value", f"{LOAD}.agentic_snapshot.seed")}),
    ({**SEEDED, "agentic_snapshot": {"seed": True}}, {("config-type", f"{LOAD}.agentic_snapshot.seed")}),
    ({**SEEDED, "agentic_snapshot": {"seed": 1, "sede": 2}}, {("config-unknown-key", f"{LOAD}.agentic_snapshot.sede")}),
    ({**SEEDED, "agentic_profile": {"duration": 2}}, {("config-unknown-key", f"{LOAD}.agentic_profile.duration")}),
    ({**SEEDED, "agentic_prefix_scope": "lane"}, {("config-value", f"{LOAD}.agentic_prefix_scope")}),
    *(
        ({**SEEDED, "agentic_profile": {name: value}}, {("config-value", f"{LOAD}.agentic_profile.{name}")})
        for name, value in (
            ("duration_seconds", 0),
            ("duration_seconds", 1e12),
            ("response_grace_seconds", -1),
            ("cancel_drain_seconds", -0.5),
            ("tree_idle_cap_seconds", 0.0),
            ("global_idle_cap_seconds", -3),
        )
    ),
]


@pytest.mark.parametrize(("load", "expected"), GUARDS, ids=[str(load) for load, _ in GUARDS])
def test_each_guard_names_its_field(load: dict[str, Any], expected: set[tuple[str, str]]) -> None:
    assert refusals(load) == expected


def test_a_seed_has_64_bits() -> None:
    greatest = 2**64 - 1
    assert parsed({**SEEDED, "agentic_snapshot": {"seed": greatest}}).load.snapshot_seed == greatest
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.Load(lanes=1, snapshot_seed=greatest + 1)
    (problem,) = refused.value.findings.items
    assert (problem.code, problem.where.field) == ("config-value", "Load.snapshot_seed")


def test_options_reach_the_load() -> None:
    profile = {"duration_seconds": 2, "response_grace_seconds": 0, "tree_idle_cap_seconds": 0.5}
    load = parsed({**SEEDED, "agentic_warmup": True, "agentic_profile": profile, "agentic_prefix_scope": "play"}).load
    assert load == pp.Load(
        lanes=2,
        snapshot_seed=42,
        warmup=True,
        profile=pp.Profile(duration_seconds=2.0, response_grace_seconds=0.0, tree_idle_cap_seconds=0.5),
        prefix_scope="play",
    )
    assert parsed({**SEEDED, "agentic_profile": {}}).load.profile == pp.Profile()
    assert parsed({**SEEDED, "agentic_profile": None, "agentic_warmup": False}).load == pp.Load(
        lanes=2, snapshot_seed=42
    )


@pytest.mark.parametrize(
    "options", [{"snapshot_seed": 1}, {"lanes": 1, "warmup": True}, {"lanes": 1, "profile": pp.Profile()}]
)
def test_a_load_lacks_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(pp.InvalidDeployment) as refused:
        pp.Load(**options)
    assert {item.code for item in refused.value.findings.items} == {"config-combination"}


# Reports ------------------------------------------------------------------------------------------------------------


def rows() -> list[dict[str, Any]]:
    """Two plays of two sessions each; both can be cut between their requests."""
    made = []
    for play in ("p", "q"):
        for number, start in enumerate((0.0, 20.0, 60.0, 100.0)):
            made.append(
                {
                    "request_id": f"{play}{number}",
                    "play_id": play,
                    "session_id": f"{play}:{number % 2}",
                    "input_length": 8 + 4 * number,
                    "output_length": 3,
                    "hash_ids": list(range(1, 3 + number)),
                    "not_before_ms": start,
                    "recorded_api_time_ms": 10.0,
                    "dependencies": [f"{play}{number - 1}"] if number else [],
                }
            )
    return made


@pytest.fixture(scope="module")
def proven() -> ProvenGraph:
    return prove(sketch(rows(), block_size=4))


DEPLOYMENT = pp.Deployment(
    blocks=64, block_size=4, context_length=400, timing=pp.FixedTiming(prefill_ms=7, decode_ms=2)
)
ROLE: dict[str, Any] = {"blocks": 64, "block_size": 4, "timing": pp.FixedTiming(prefill_ms=7, decode_ms=2)}
PAIR = pp.Disaggregated(
    context_length=400,
    prefill=pp.PrefillRole(max_sequences=8, **ROLE),
    decode=pp.DecodeRole(**ROLE),
    transfer=pp.Transfer(bytes_per_token=100_000, bandwidth_gb_per_second=1.0),
)
DEPLOYMENTS: dict[str, pp.Deployment | pp.Disaggregated] = {"aggregated": DEPLOYMENT, "disaggregated": PAIR}
PROFILED = pp.Load(
    lanes=3,
    snapshot_seed=7,
    warmup=True,
    profile=pp.Profile(duration_seconds=0.47, response_grace_seconds=0.005, global_idle_cap_seconds=0.01),
)


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def report(proven: ProvenGraph, request: pytest.FixtureRequest) -> ControlledReport:
    made = pp.replay(proven, DEPLOYMENTS[request.param], PROFILED)
    assert isinstance(made, ControlledReport)
    return made


# Each of these is dropped in turn by a test below, which must see it.
KEYS: dict[str, Any] = {
    "agentic_graph": lambda value: value["play_count"] == 2 and len(value["graph_digest"]) == 64,
    "agentic_model_projection": lambda value: value["policy"] == "project_to_configured_target",
    "agentic_lanes": lambda value: value == 3,
    "agentic_snapshots": lambda value: (
        [s["lane_id"] for s in value][:3] == [0, 1, 2] and all(s["requests"] for s in value)
    ),
    "agentic_phases": lambda value: value["phase"] == "profile" and len(value["lanes"]) == 3,
    "agentic_profile": lambda value: value["admission_closed"] and value["plays_started"] > 3,
    "agentic_play_outcomes": lambda value: {o["status"] for o in value} == {"completed", "incomplete"},
    "agentic_qualification": lambda value: value == "functional_only",
    "valid": lambda value: value is True,
}


def missing(document: dict[str, Any]) -> list[str]:
    return [name for name, holds in KEYS.items() if name not in document or not holds(document[name])]


@pytest.mark.parametrize("name", KEYS)
def test_each_key_stands_at_the_top(report: ControlledReport, name: str) -> None:
    document = report.to_dict()
    assert missing(document) == []
    del document[name]
    assert missing(document) == [name]


def test_nothing_of_the_preparation_is_measured(report: ControlledReport) -> None:
    document = report.to_dict()
    phases, lines = document["agentic_phases"], list(report.request_dicts())
    prepared = len(phases["requests"])
    assert prepared == sum(len(s["primers"]) for s in document["agentic_snapshots"][:3]) + 30
    assert all(request["terminal_status"] == "completed" for request in phases["requests"])
    assert document["num_requests"] == len(lines) == document["agentic_profile"]["issued_requests"]
    assert {line["phase"] for line in lines} == {"profile"}
    assert min(line["dispatched_at_ms"] for line in lines) >= 0
    start = phases["profile_start_ms"]
    assert start == max(request["quiescent_at_ms"] for request in phases["requests"])
    span_ms = document["agentic_profile"]["finished_at_ms"] - start
    assert document["decode_worker_seconds"] == pytest.approx(span_ms / 1000)
    assert document["prefill_worker_seconds"] == (
        document["decode_worker_seconds"] if len(document["roles"]) > 1 else 0
    )
    assert document["busy_worker_seconds"] <= len(document["roles"]) * span_ms / 1000
    tokens = sum(line["input_length"] for line in lines)
    assert document["committed_prefill_tokens"] < tokens


def test_counts_of_a_profile_agree(report: ControlledReport) -> None:
    document, profile = report.to_dict(), report.to_dict()["agentic_profile"]
    outcomes = document["agentic_play_outcomes"]
    assert profile["issued_requests"] == profile["successful_responses"] + profile["canceled_requests"]
    assert profile["canceled_requests"] == document["canceled_requests"] > 0
    assert profile["never_issued_requests"] == sum(o["never_issued_requests"] for o in outcomes) > 0
    assert profile["plays_started"] == profile["corpus_cursor"] == len(outcomes)
    assert profile["idle_shifts"]
    seconds = profile["observation_duration_ms"] / 1000
    assert document["duration_ms"] == profile["observation_duration_ms"]
    assert profile["successful_request_throughput"] == pytest.approx(profile["successful_responses"] / seconds)


def test_identities_are_fresh(report: ControlledReport) -> None:
    lines = list(report.request_dicts())
    assert len({line["agentic"]["request_id"] for line in lines}) == len(lines)
    assert len({line["play_id"] for line in lines}) > 3
    for line in lines:
        assert line["agentic"]["cache_id"].startswith(line["play_id"])
        assert line["session_id"].startswith(line["play_id"])


@pytest.mark.parametrize("topology", DEPLOYMENTS)
def test_what_has_no_meaning_is_null(proven: ProvenGraph, topology: str) -> None:
    """A profile too short for any response."""
    short = msgspec.structs.replace(
        PROFILED, warmup=False, profile=pp.Profile(duration_seconds=0.001, response_grace_seconds=0.0)
    )
    document = pp.replay(proven, DEPLOYMENTS[topology], short).to_dict()
    assert document["agentic_phases"] is None
    assert document["completed_requests"] == 0
    assert document["agentic_profile"]["observation_duration_ms"] == 0
    names = ("request_throughput_rps", "output_throughput_tok_s", "mean_ttft_ms", "p99_trajectory_e2e_latency_ms")
    assert [document[name] for name in names] == [None] * 4
    assert document["agentic_profile"]["successful_request_throughput"] is None
    assert document["agentic_profile"]["last_successful_response_ms"] is None


def test_two_runs_give_equal_bytes(proven: ProvenGraph, report: ControlledReport) -> None:
    again = pp.replay(proven, report.deployment, PROFILED)
    assert ledger_digest(again.totals) == ledger_digest(report.totals)
    assert list(again.request_dicts()) == list(report.request_dicts())
    other = pp.replay(proven, report.deployment, msgspec.structs.replace(PROFILED, snapshot_seed=8))
    assert ledger_digest(other.totals) != ledger_digest(report.totals)


def test_without_capture_there_are_no_lines(proven: ProvenGraph) -> None:
    made = pp.replay(proven, DEPLOYMENT, PROFILED, per_request=False)
    assert made.requests is None
    with pytest.raises(ValueError, match="per_request"):
        made.request_dicts()


@pytest.mark.parametrize("topology", DEPLOYMENTS)
@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_plays_of_one_scope_share_nothing(topology: str, backend: str) -> None:
    """Finite mode: the second play finds the first one's prompt, unless each play is a scope of its own."""
    same = [dict(row, dependencies=[]) for row in rows() if row["request_id"] in ("p1", "q1")]
    proven = prove(sketch(same, block_size=4))
    deployment = msgspec.structs.replace(DEPLOYMENTS[topology], backend=backend)
    shared, apart = (
        pp.replay(proven, deployment, pp.Load(lanes=1, prefix_scope=scope)).to_dict() for scope in ("corpus", "play")
    )
    assert shared["first_admission_prefix_cache_reused_ratio"] == pytest.approx(8 / 24)
    assert apart["first_admission_prefix_cache_reused_ratio"] == 0.0


# A run that is invalid, and a trace that contradicts itself ----------------------------------------------------------


def written(folder: Path, made: list[dict[str, Any]], engine: dict[str, Any] = ENGINE) -> tuple[Path, Path]:
    from playproof_lowering import write_v2

    trace, config = folder / "trace.jsonl", folder / "config.yaml"
    write_v2(sketch(made, block_size=4), trace)
    load = {**SEEDED, "agentic_warmup": True}
    config.write_text(json.dumps({"traffic": {"source": {"paths": [str(trace)]}, "load": load}, "engine": ENGINE}))
    return trace, config


@pytest.mark.parametrize("engine", [ENGINE, ENGINE_PAIR, {**ENGINE_PAIR, "backend": "sglang"}])
def test_a_failed_preparation_ends_the_run_as_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: dict[str, Any]
) -> None:
    """Request p2's prompt reaches the context limit, and it is a primer or a warmup wherever play p is cut."""
    made = [dict(row, input_length=400, hash_ids=list(range(100))) if row["play_id"] == "p" else row for row in rows()]
    _, config = written(tmp_path, made, engine)
    assert main(["replay", "--config", str(config), "--out", str(tmp_path / "out")]) == EXIT_FINDINGS
    assert "invalid" in capsys.readouterr().err
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    phases = document["agentic_phases"]
    assert (document["valid"], phases["phase"]) == (False, "aborted")
    assert phases["failure_request_id"].startswith("p")
    assert "rejected" in phases["failure_reason"]
    assert phases["profile_start_ms"] is None
    # Preparation stopped at the first failure: what had been dispatched ran to its end, nothing else was.
    assert all((r["dispatched_at_ms"] is None) == (r["terminal_status"] is None) for r in phases["requests"])
    assert sum(r["dispatched_at_ms"] is not None for r in phases["requests"]) == 2
    assert document["num_requests"] == document["total_trajectories"] == 0
    assert document["request_throughput_rps"] is None


def test_a_trace_that_contradicts_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rows()
    made[1]["not_before_ms"] = 99.0  # p1 ran before p2, which depends on it, by the edges; not by the recording
    _, config = written(tmp_path, made)
    for command in (["validate", made_path(config), "--config", str(config)], ["replay", "--config", str(config)]):
        assert main(command) == EXIT_FINDINGS
        said = capsys.readouterr()
        assert "snapshot-contradiction" in said.out + said.err
        assert "p2" in said.out + said.err


def made_path(config: Path) -> str:
    return str(config.parent / "trace.jsonl")


def test_the_table_shows_preparation_and_cutoff(report: ControlledReport) -> None:
    document, shown = report.to_dict(), Console(file=io.StringIO(), width=200)
    print_report(shown, document)
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    profile, phases = document["agentic_profile"], document["agentic_phases"]
    counts = f"{profile['canceled_requests']}, {profile['never_issued_requests']}"
    assert f"canceled, never issued     {counts}\n" in text
    assert f"{len(phases['requests'])} requests, {phases['profile_start_ms'] / 1000:.3f} s" in text


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", DEPLOYMENTS)
def test_state_does_not_grow_with_the_length_of_a_profile(
    proven: ProvenGraph, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty times the plays in the same arrays; without capture only four latencies a request are kept of them."""
    finished: list[Any] = []
    make = controlled_ledger.ledger_of_controlled

    def kept(sim: Any, *rest: Any) -> ControlledLedger:
        finished.append(sim)
        return make(sim, *rest)

    monkeypatch.setattr(controlled_run, "ledger_of_controlled", kept)
    ledgers = []
    for seconds in (0.5, 20.0):
        load = msgspec.structs.replace(PROFILED, profile=pp.Profile(duration_seconds=seconds))
        spec = DEPLOYMENTS[topology].to_spec()
        ledgers.append(controlled_run.simulate_controlled(proven, spec, load.to_spec()))
    short, long = ({name: array.nbytes for name, array in sim._asdict().items()} for sim in finished)
    assert short == long
    plays = [len(ledger.plays) for ledger in ledgers]
    assert plays[1] > 20 * plays[0]
    assert all(ledger.captured is None for ledger in ledgers)
    assert len(ledgers[1].e2e_ns) == int(ledgers[1].outcomes[RequestState.FINISHED])


# Identities ---------------------------------------------------------------------------------------------------------


def test_a_profile_stops_before_identities_run_out(proven: ProvenGraph) -> None:
    """With a tenth of all keys a namespace, a few plays use up what there is; no key is ever used twice."""
    spec = DEPLOYMENT.to_spec()
    sim, _ = start_controlled(proven.graph, graph_digest(proven.graph, shift_floors=False), spec, PROFILED.to_spec())
    sim.config.key_span = GENERATED // 10
    while loop.run(sim, SLICE) != loop.Stop.OVER:
        pass
    assert int(sim.run[0].no_identity) == 1
    assert 3 < int(sim.run[0].instances) < 10
    assert int(sim.static.space.max()) < GENERATED


def test_the_finite_door_refuses_run_controls(proven: ProvenGraph) -> None:
    with pytest.raises(ValueError, match="simulate_controlled"):
        simulate(proven, DEPLOYMENT.to_spec(), PROFILED.to_spec())
    with pytest.raises(ValueError, match="snapshot seed"):
        simulate_controlled(proven, DEPLOYMENT.to_spec(), pp.Load(lanes=1).to_spec())


def test_of_a_prompt_of_the_preparation_whole_blocks_are_expected_in_the_cache() -> None:
    row = {"request_id": "a", "input_length": 10, "hash_ids": [1, 2, 3]}
    load = pp.Load(lanes=1, snapshot_seed=1, warmup=True)
    report = pp.replay(prove(sketch([row], block_size=4)), pp.Deployment(blocks=64, block_size=4), load)
    warmups = report.to_dict()["agentic_phases"]["requests"]
    assert len(warmups) == 10
    assert {(each["input_length"], each["expected_full_block_tokens"]) for each in warmups} == {(10, 8)}


def test_throughput_of_a_profile_is_over_the_time_from_its_first_request_to_its_last_response() -> None:
    """A request a second: each lane begins between two of them, and the wait for the first is nobody's."""
    rows: list[dict[str, Any]] = [
        {"request_id": name, "not_before_ms": 1000.0 * number, "recorded_api_time_ms": 10.0}
        for number, name in enumerate("abc")
    ]
    for before, row in itertools.pairwise(rows):
        row["dependencies"] = [{"request_id": before["request_id"], "delay_ms": 990.0}]
    load = pp.Load(lanes=1, snapshot_seed=0, profile=pp.Profile(duration_seconds=5.0, response_grace_seconds=0.0))
    told = pp.replay(prove(sketch(rows)), pp.Deployment(timing=pp.FixedTiming(prefill_ms=10, decode_ms=1)), load)
    profile = told.to_dict()["agentic_profile"]
    first, last = profile["first_request_ms"], profile["last_successful_response_ms"]
    assert (profile["successful_responses"], first > 100.0) == (7, True)
    # Plays follow one another at once: of seven requests of 10 ms each, four wait 990 ms for the one before them.
    assert last - first == pytest.approx(4030.0)
    assert told.to_dict()["duration_ms"] == profile["observation_duration_ms"] == pytest.approx(4030.0)
    assert told.to_dict()["request_throughput_rps"] == pytest.approx(7 / 4.03)


def test_a_barrier_waits_for_a_store_that_outlives_its_request() -> None:
    # Ten warmups of 10 ms, one after the other. The first one's two blocks of 1 MB each are stored from 10 ms on, at 10
    # MB a second: the engine is at rest at 210 ms, long after the last warmup.
    row = {"request_id": "a", "input_length": 8, "output_length": 1}
    host = pp.HostOffload(num_host_blocks=64, bytes_per_token=250_000, d2h_bandwidth_gbps=0.01)
    timing = pp.FixedTiming(prefill_ms=10, decode_ms=1)
    deployment = pp.Deployment(blocks=64, block_size=4, timing=timing, host_offload=host)
    load = pp.Load(lanes=1, snapshot_seed=1, warmup=True)
    ledger = simulate_controlled(prove(sketch([row], block_size=4)), deployment.to_spec(), load.to_spec())
    assert int(ledger.prep_terminal_ns[-1]) == 100_000_000
    assert ledger.profile_start_ns == 210_000_000


def test_the_cap_on_a_plays_idleness_counts_from_its_own_last_end() -> None:
    # `a1` ends at 10 ms, and a cap of 20 ms brings `a2` forward to 30, although `b1` of the other play ends at 15. `b2`
    # decodes all the while, and is one step of the engine from 25 on.
    rows: list[dict[str, Any]] = [
        {"request_id": "a1", "play_id": "p"},
        {"request_id": "a2", "play_id": "p", "dependencies": [{"request_id": "a1", "delay_ms": 1000.0}]},
        {"request_id": "b1", "play_id": "q", "output_length": 6},
        {"request_id": "b2", "play_id": "q", "output_length": 100, "dependencies": ["b1"]},
    ]
    profile = pp.Profile(duration_seconds=0.06, response_grace_seconds=0.0, tree_idle_cap_seconds=0.02)
    load = pp.Load(lanes=2, snapshot_seed=1, profile=profile)
    deployment = pp.Deployment(blocks=640, timing=pp.FixedTiming(prefill_ms=10, decode_ms=1))
    document = pp.replay(prove(sketch(rows)), deployment, load).to_dict()
    (shift,) = document["agentic_profile"]["idle_shifts"]
    assert (shift["at_ms"], shift["shifted_by_ms"], shift["timer_count"]) == (30.0, 980.0, 1)
