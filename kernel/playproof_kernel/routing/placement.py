"""The door to whichever policy places the requests of a run."""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import RouterSpec

from playproof_kernel.routing import kv_router, round_robin
from playproof_kernel.routing.seam import POLICIES

for _policy in (round_robin.POLICY, kv_router.POLICY):
    POLICIES.register(_policy)

# What it does, `seam.Policy` says.
choose = POLICIES.door("choose")


def fill(config: Any, spec: RouterSpec | None) -> None:
    """Write a routing policy into the configuration; `ValueError` when none serves what is described."""
    config.policy = POLICIES.number_of(spec)
    policy = POLICIES.choices[config.policy[0]]
    config.hears = policy.hears
    policy.configure(config, spec)
