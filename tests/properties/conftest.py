"""Compiles the kernel before the first property, so that no example is timed with the compiler in it."""

from __future__ import annotations

import pytest
from playproof_kernel import simulate
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec, WorkerSpec
from playproof_spec.sketch import sketch


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernel() -> None:
    simulate(prove(sketch([{"request_id": "only"}])), DeploymentSpec(1, WorkerSpec(8, 4), 100), LoadSpec())
