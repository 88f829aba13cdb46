"""Configurations of reference cases, to be replayed as the peer replays them."""

from __future__ import annotations

from pathlib import Path

import playproof as pp
from playproof.config import Configuration


def as_the_peer(path: Path) -> Configuration:
    """Read a configuration; SGLang workers follow the peer's rules, which no file of the peer's has to say."""
    configuration = pp.read_configuration(path)
    if configuration.deployment.backend == "vllm":
        return configuration
    roles = configuration.deployment.roles
    rules = [f"engine.workers.{role}.scheduler.rules=aisimulate" for role in roles]
    return pp.read_configuration(path, overrides=rules)
