"""The rule sets of SGLang workers: each switch shows in a golden, in the report and in the docs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ledgers import columns
from playproof_kernel import simulate
from playproof_kernel.engines import sglang, sglang_rules
from playproof_kernel.engines.sglang_rules import RULE_SETS, RuleSet
from playproof_kernel.ground.arrays import Config
from playproof_kernel.ground.jit import compiled_entry
from playproof_kernel.ground.records import records
from playproof_spec.certificate import prove
from playproof_spec.deployment import Rules
from playproof_spec.sketch import sketch

import playproof as pp
from playproof.deployment import RULES, InvalidDeployment

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDENS = ROOT / "tests" / "goldens"
SWITCHES = [field.name for field in dataclasses.fields(RuleSet) if field.type == "bool"]
# Which golden cannot stay as it is when SGLang's own rules lose that switch.
SHOWN_BY = {
    "whole_batches": "replay-sglang-full-sticks",
    "sorted_batch": "replay-sglang-retraction",
    "late_places": "replay-sglang-retraction",
    "spare_pages": "replay-sglang-page-each",
    "fixed_nodes": "replay-sglang-prompt-and-output",
    "whole_leaves": "replay-sglang-eviction",
}


def replayed(name: str) -> list[dict[str, Any]]:
    return list(pp.run(GOLDENS / name / "config.yaml").request_dicts())


def test_every_switch_has_a_golden() -> None:
    assert sorted(SHOWN_BY) == sorted(SWITCHES)


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_decides_its_golden(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = SHOWN_BY[switch]
    before = replayed(name)
    changed: dict[str, Any] = {switch: False}
    without = dataclasses.replace(RULE_SETS[Rules.SGLANG], **changed)
    monkeypatch.setitem(sglang_rules.RULE_SETS, Rules.SGLANG, without)
    assert replayed(name) != before


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDENS.glob("replay-sglang-*")))
def test_goldens_are_the_same_pass_by_pass(name: str) -> None:
    # A macro-step passes over what a rule would do in the passes within it: here nobody is passed over.
    configuration = pp.read_configuration(GOLDENS / name / "config.yaml")
    proven = pp.load(configuration.paths)
    spec, load = configuration.deployment.to_spec(), configuration.load.to_spec()
    many, single = (simulate(proven, spec, dataclasses.replace(load, macro_steps=macro)) for macro in (True, False))
    assert columns(many) == columns(single)


def test_the_ratio_has_its_bound() -> None:
    starts = {}
    for rules in Rules:
        config = records(1, Config)
        sglang_rules.fill(config, rules, 2.0)
        starts[rules] = (float(config.ratio_start[0]), float(config.ratio_least[0]))
    assert starts == {Rules.SGLANG: (1.0, 0.14), Rules.AISIMULATE: (1.4, pytest.approx(0.196))}


def test_reports_say_whose_rules_they_follow() -> None:
    folder = GOLDENS / "replay-sglang-reserve"
    found = {}
    for rules in RULES:
        overrides = [f"engine.workers.aggregated.scheduler.rules={rules}"]
        report = pp.run(pp.read_configuration(folder / "config.yaml", overrides)).to_dict()
        assert report["deployment"]["rules"] == rules
        found[rules] = report["engine_rules"]
    assert found == {"sglang": "sglang 0.5.23", "aisimulate": "aisimulate 0.13.0.dev202610270000000085"}


def test_the_docs_name_every_switch_and_version() -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text()
    for rule_set in RULE_SETS.values():
        assert rule_set.engine in text
    for field in dataclasses.fields(RuleSet):
        assert field.name == "engine" or f"`{field.name}`" in text, field.name


def test_both_roles_follow_one_set() -> None:
    with pytest.raises(InvalidDeployment, match="one set of rules"):
        pp.Disaggregated(backend="sglang", decode=pp.DecodeRole(rules="aisimulate"))
    prefill, decode = pp.PrefillRole(rules="aisimulate"), pp.DecodeRole(rules="aisimulate")
    spec = pp.Disaggregated(backend="sglang", prefill=prefill, decode=decode).to_spec()
    assert spec.decode is not None
    assert spec.worker.rules == spec.decode.worker.rules == Rules.AISIMULATE


def test_after_a_retraction_the_ratio_is_what_the_survivors_will_have_in_twenty_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang's `new_estimate_ratio`: tokens so far and 20 more of each, over all that they may have and one."""
    told: list[tuple[list[int], float]] = []
    real = sglang._estimate_ratio

    def heard(sim: Any, worker: int) -> None:
        real(sim, worker)
        record = sim.workers[worker]
        running = [int(sim.running[worker, place]) for place in range(record.running)]
        told.append(([int(sim.live[request].generated) for request in running], float(record.ratio)))

    monkeypatch.setattr(sglang, "_estimate_ratio", heard)
    rows = [{"request_id": name, "input_length": 4, "output_length": 100} for name in "ab"]
    deployment = pp.Deployment(
        backend="sglang",
        blocks=130,
        block_size=1,
        schedule_conservativeness=0.01,
        timing=pp.FixedTiming(prefill_ms=10, decode_ms=1),
    )
    pp.replay(prove(sketch(rows, block_size=4)), deployment, compile="never")
    # Each had its four tokens of prompt and 60 of output in 130 pages when the next two were wanted.
    ((generated, ratio),) = told
    assert len(generated) == 1
    assert ratio == pytest.approx((generated[0] + 20) / 101)
    assert 0.7 < ratio < 0.9


def lines_of(rows: list[dict[str, Any]], blocks: int, **changed: Any) -> dict[str, dict[str, Any]]:
    """Return the lines of requests.jsonl by request, of one SGLang worker whose prompts take 10 ms and tokens 1 ms."""
    timing = pp.FixedTiming(prefill_ms=10, decode_ms=1)
    deployment = pp.Deployment(backend="sglang", blocks=blocks, timing=timing, **changed)
    report = pp.replay(prove(sketch(rows, block_size=4)), deployment)
    return {line["request_id"]: line for line in report.request_dicts()}


def test_of_two_leaves_the_one_unused_for_longer_is_evicted() -> None:
    # 24 pages of one token. `a` and `b` leave eight each, and `c` wants twelve of the eight that are free: `a` goes.
    prompts = [("a", [1, 2], 0.0), ("b", [3, 4], 100.0), ("c", [5, 6, 7], 200.0), ("d", [3, 4, 8], 300.0)]
    rows = [
        {"request_id": name, "play_id": name, "input_length": 4 * len(ids), "hash_ids": ids, "not_before_ms": at}
        for name, ids, at in prompts
    ]
    assert lines_of(rows, 24, block_size=1)["d"]["first_admission_reused_input_tokens"] == 8


def test_a_new_prompt_is_cut_to_whole_pages_of_its_chunk() -> None:
    # Chunks of six tokens, pages of four: of twelve tokens the first pass takes four, the second six, the third two.
    (line,) = lines_of([{"request_id": "a", "input_length": 12}], 64, block_size=4, chunked_prefill_size=6).values()
    assert line["first_token_ms"] == 30.0


def test_who_has_the_least_output_is_retracted() -> None:
    # `a` has two tokens more than `b` when 130 pages do not do for both.
    rows = [
        {"request_id": name, "play_id": name, "input_length": 4, "output_length": 100, "not_before_ms": at}
        for name, at in (("a", 0.0), ("b", 12.0))
    ]
    lines = lines_of(rows, 130, block_size=1, schedule_conservativeness=0.01)
    assert {name: line["readmission_count"] for name, line in lines.items()} == {"a": 0, "b": 1}


@compiled_entry
def ratio_after(config: Any, ratio: float, number: int) -> float:
    return sglang.ratio_after(config[0], ratio, number)


@pytest.mark.parametrize(
    ("ratio", "passes", "wanted"), [(0.5, 0, 0.5), (0.5, 1, 0.25), (0.25, 1, 0.2), (0.25, 2, 0.2), (0.125, 1, 0.2)]
)
def test_the_ratio_never_falls_below_its_bound(ratio: float, passes: int, wanted: float) -> None:
    config = records(1, Config)
    config.ratio_step, config.ratio_least = 0.25, 0.2
    assert ratio_after(config, ratio, passes) == wanted
