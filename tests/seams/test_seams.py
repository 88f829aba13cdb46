"""An engine, a routing policy and a timing model, each one file beside this one and one registration.

All figures can be checked by hand from the settings in `seam_runs`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from playproof_kernel import simulate
from playproof_kernel.engines.engine import ENGINES, engine_of
from playproof_kernel.engines.timing import TIMING_MODELS, model_of
from playproof_kernel.ground.arrays import Config
from playproof_kernel.ground.records import records
from playproof_kernel.routing import placement
from playproof_kernel.routing.seam import POLICIES
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, Timing, WorkerSpec
from playproof_spec.machines import NodeState
from playproof_spec.sketch import sketch

HERE = Path(__file__).resolve().parent
DONE, FAILED = int(NodeState.COMPLETED), int(NodeState.FAILED)
NEVER = -1e-6

EXPECTED: dict[str, dict[str, list[float]]] = {
    # a and b are one batch: 10 for their prompts, and 2 more passes for a. c comes at 1 and waits for its end.
    "static": {"state": [DONE, DONE, DONE, FAILED], "first": [10, 10, 24, NEVER], "last": [14, 10, 26, 24]},
    "static, two seats": {"state": [DONE] * 4, "first": [10, 10, 24, 24], "last": [14, 10, 26, 24]},
    # 12 tokens of prompt; then one token of a beside 44 of prompts: 2 + 44; then one of a and one of c: 4.
    "per token": {"first": [12, 12, 58, 58], "last": [62, 12, 62, 58]},
    # At 1 the workers have 8 and 4 tokens, so c goes to the second; then both have 8, so d goes to the first.
    "least loaded": {"worker": [0, 1, 1, 0], "first": [10, 10, 20, 22], "last": [24, 10, 22, 22]},
    "all": {"worker": [0, 1, 1, 0], "first": [8, 4, 8, 52], "last": [12, 4, 10, 52]},
}


@pytest.mark.parametrize("mode", ["never", "always"])
def test_what_is_registered_runs(mode: str) -> None:
    told = subprocess.run(
        [sys.executable, str(HERE / "seam_runs.py")],
        env={**os.environ, "PLAYPROOF_COMPILE": mode},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    runs = {run.pop("run"): run for run in map(json.loads, told.stdout.splitlines())}
    assert set(runs) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        for column, values in expected.items():
            assert runs[name][column] == values, (name, column)


def test_each_is_one_file_and_one_registration() -> None:
    for name, seam in (("static_batching", "ENGINES"), ("least_loaded", "POLICIES"), ("per_token", "TIMING_MODELS")):
        source = (HERE / f"{name}.py").read_text()
        assert source.count(f"{seam}.register(") == 1
    # Here they are not registered, so the kernel has none of them.
    assert [engine.name for engine in ENGINES.choices] == [
        "vllm",
        "vllm, asynchronous",
        "sglang",
        "sglang, overlap schedule",
    ]
    assert [policy.name for policy in POLICIES.choices] == ["round_robin", "kv_router"]
    assert [model.name for model in TIMING_MODELS.choices] == ["fixed", "polynomial"]


def test_what_nobody_serves_is_refused() -> None:
    with pytest.raises(ValueError, match="no engine serves"):
        engine_of(WorkerSpec(8, backend=7))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no timing model serves"):
        model_of(Timing(kind=7))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no routing policy serves"):
        placement.fill(records(1, Config), object())  # type: ignore[arg-type]


def test_nothing_is_registered_after_the_first_run() -> None:
    simulate(prove(sketch([{"request_id": "r"}])), DeploymentSpec(1, WorkerSpec(64), 100), LoadSpec())
    with pytest.raises(RuntimeError, match="before the first run"):
        ENGINES.register(ENGINES.choices[0])
