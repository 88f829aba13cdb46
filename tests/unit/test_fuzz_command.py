"""`playproof fuzz`: deterministic for a seed, silent on a sound kernel, and loud on one with a fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import playproof_kernel
import pytest
from playproof_lowering import write_v2
from playproof_reference import vllm
from playproof_spec.certificate import prove
from playproof_spec.deployment import LoadSpec
from playproof_spec.ledger import Ledger
from playproof_spec.machines import IllegalTransition

import playproof as pp
from playproof import config
from playproof.cli import main
from playproof.fuzzing import cutting, hunt, ways
from playproof.fuzzing.variants import small, whole

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
GOLDENS = ROOT / "tests" / "goldens"
SEED = ["--seed", "3"]
Simulate = Callable[..., Ledger]


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """Arguments of a fuzz on a play or two of the examples."""
    graph = pp.load(EXAMPLES / "weka").graph
    write_v2(cutting.beginnings(cutting.of_plays(graph, [0, 1]), 6), tmp_path / "two.jsonl")
    return ["fuzz", str(tmp_path / "two.jsonl"), "--config", str(EXAMPLES / "deployment.yaml"), *SEED]


def changed(change: Callable[[LoadSpec, Ledger], Ledger]) -> Simulate:
    """Return the kernel with a fault: what `change` makes of its ledgers."""
    simulate = playproof_kernel.simulate

    def faulty(proven: Any, deployment: Any, load: LoadSpec, **more: Any) -> Ledger:
        return change(load, simulate(proven, deployment, load, **more))

    return faulty


def late(ledger: Ledger) -> Ledger:
    return dataclasses.replace(ledger, first_token_ns=ledger.first_token_ns + 1)


def test_a_sound_kernel_passes_and_a_seed_says_all(trace: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        assert main([*trace, "--rounds", "3"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert len(re.findall(r"^round \d: plays .*; slice: plays ", said[0], re.MULTILINE)) == 3
    assert said[0].endswith("3 rounds, none of them found something\n")
    assert main([*trace, "--only", "3"]) == 0
    third = capsys.readouterr().out.splitlines()[1]
    assert third in said[0].splitlines()


FAULTS: dict[str, tuple[str, Callable[[LoadSpec, Ledger], Ledger]]] = {
    "a macro-step too long": ("macro-steps-differ", lambda load, one: late(one) if load.macro_steps else one),
    "a token too late": ("engines-differ", lambda load, one: late(one)),
    "a request before its time": (
        "run-",
        lambda load, one: dataclasses.replace(one, dispatched_ns=np.maximum(one.dispatched_ns - 1, -1)),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_kernel_is_found_and_made_again(
    name: str, trace: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, change = FAULTS[name]
    monkeypatch.setattr(playproof_kernel, "simulate", changed(change))
    assert main([*trace, "--rounds", "2"]) == 1
    told = capsys.readouterr().out
    assert f"error {code}" in told
    again = re.search(r"^again: playproof (.* --only (\d+))$", told, re.MULTILINE)
    assert again is not None
    assert main(again[1].split()) == 1
    assert f"round {again[2]}: " in capsys.readouterr().out
    monkeypatch.undo()
    assert main(again[1].split()) == 0


def test_a_fault_of_the_reference_is_found(
    trace: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm.VllmWorker, "decode_ns", lambda self, tokens: self.spec.timing.decode_ns + 1)
    assert main([*trace, "--rounds", "2"]) == 1
    assert "error engines-differ" in capsys.readouterr().out


@pytest.mark.parametrize("fault", [playproof_kernel.ReplayFault, IllegalTransition, IndexError])
def test_a_replay_that_breaks_its_own_rules_is_a_finding(
    trace: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: type[Exception]
) -> None:
    def stall(*_: Any, **__: Any) -> Ledger:
        raise fault("no event is due but 3 requests remain")

    monkeypatch.setattr(playproof_kernel, "simulate", stall)
    assert main([*trace, "--rounds", "1"]) == 1
    told = capsys.readouterr().out
    assert "error replay-fault" in told
    assert fault.__name__ in told
    assert "3 requests remain" in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["no-such-file.jsonl"], 2, "no such file"),
        ([str(EXAMPLES / "broken" / "deadlock.jsonl")], 1, "error cycle"),
        (["--set", "engine.context_length=none"], 1, "config-"),
        (["--rounds", "0"], 2, "--rounds"),
        (["--only", "1", "--rounds", "1"], 2, "--rounds"),
        (["--set", "traffic.load.type=concurrency"], 1, "config-"),
    ],
)
def test_bad_input_is_refused_as_by_replay(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if not arguments[0].startswith("--") else [str(EXAMPLES / "weka"), *arguments]
    assert main(["fuzz", *given, "--seed", "1"]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err + told.out


def test_time_is_looked_at_between_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 59.0, 61.0])
    monkeypatch.setattr("playproof.fuzzing.hunt.time.monotonic", lambda: next(clock))
    assert list(hunt.Hunt(1, minutes=1.0).numbers()) == [1, 2, 3]
    assert list(hunt.Hunt(1, minutes=0.0, only=7).numbers()) == [7]


@pytest.mark.parametrize("name", ["controls-warmup", "controls-pd-sources", "replay-router-shared"])
def test_every_kind_of_run_is_tried(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--config", str(GOLDENS / name / "config.yaml"), *SEED, "--rounds", "3"]) == 0
    assert "none of them found something" in capsys.readouterr().out


# How variants are made ------------------------------------------------------------------------------------------------


def test_variants_are_runs_and_differ() -> None:
    settings = config.read_configuration(EXAMPLES / "deployment.yaml")
    graph = pp.load(EXAMPLES / "weka").graph
    drawn = []
    for number in range(30):
        for draw in (whole, small):
            variant = draw(graph, settings.deployment, settings.load, Random(f"variants:{number}"))
            prove(variant.graph)
            drawn.append(str(variant))
    assert len(set(drawn)) > 50
    assert any("cancellations" in one for one in drawn)


def test_a_graph_of_some_plays_is_theirs() -> None:
    graph = pp.load(EXAMPLES / "weka").graph
    some = cutting.of_plays(graph, [1, 3])
    before = [node for play in (1, 3) for node in graph.plays[play].nodes.tolist()]
    after = [node for play in some.plays for node in play.nodes.tolist()]
    assert [play.play_id for play in some.plays] == [graph.plays[play].play_id for play in (1, 3)]
    for old, new in zip(before, after, strict=True):
        one, other = graph.node(old), some.node(new)
        assert dataclasses.replace(one, index=new) == other
        assert list(graph.edges_into(old)) == list(some.edges_into(new))
        assert graph.hash_ids(old).tolist() == some.hash_ids(new).tolist()
    ties = np.argsort(graph.tie_ranks[before]).tolist()
    assert ties == np.argsort(some.tie_ranks[after]).tolist()


def test_thinned_prompts_share_as_much_as_before() -> None:
    graph = cutting.of_plays(pp.load(EXAMPLES / "weka").graph, [0])
    thin = cutting.thinned(graph, 5, 3)
    assert int(np.diff(thin.run_offsets).max()) <= 5
    assert int(thin.output_length.max()) == 3
    step = -(-max(len(graph.hash_ids(node)) for node in range(graph.node_count)) // 5)
    for node in range(graph.node_count):
        assert thin.hash_ids(node).tolist() == graph.hash_ids(node).tolist()[::step]
    prove(thin)


def test_differences_name_column_row_and_values() -> None:
    trace = prove(cutting.thinned(cutting.of_plays(pp.load(EXAMPLES / "weka").graph, [0]), 3, 2))
    ledger = playproof_kernel.simulate(trace, pp.Deployment().to_spec(), LoadSpec())
    assert ways.differences(ledger, ledger) == []
    at = int(ledger.first_token_ns[0])
    assert ways.differences(ledger, late(ledger))[0] == f"first_token_ns[0]: {at} and {at + 1}"
    assert ways.differences(ledger, dataclasses.replace(ledger, end_ns=0)) == [f"end_ns: {ledger.end_ns} and 0"]
