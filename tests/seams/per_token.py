"""A third timing model, in a file of its own: every token that a pass computes or makes takes as long."""

from __future__ import annotations

from typing import Any, cast

from playproof_kernel.engines.timing import TIMING_MODELS, TimingModel
from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled
from playproof_kernel.ground.lifecycle import config_of
from playproof_spec.clock import PassBound
from playproof_spec.deployment import Timing, TimingKind
from playproof_spec.units import NS_PER_MS

PER_TOKEN = cast(TimingKind, 2)


@compiled
def prefill_ns(sim: Sim, worker: int, requests: int, mean_isl: int, mean_prefix: int) -> int:
    return int(config_of(sim, worker).prefill_ns * requests * (mean_isl - mean_prefix))


@compiled
def decode_ns(sim: Sim, worker: int, requests: int, tokens: int) -> int:
    return int(config_of(sim, worker).decode_ns * requests)


def _configure(config: Any, timing: Timing) -> None:
    config.prefill_ns = timing.prefill_ns
    config.decode_ns = timing.decode_ns


def _upper_bound(timing: Timing, tokens: int) -> PassBound:
    # A request in the decode part gets one token, and all decoding of a run together makes its output.
    return PassBound(pass_ms=timing.decode_ns * 1024 / NS_PER_MS, token_ms=timing.prefill_ns / NS_PER_MS)


MODEL = TIMING_MODELS.register(
    TimingModel(
        name="per token",
        serves=lambda timing: timing.kind == PER_TOKEN,
        configure=_configure,
        upper_bound=_upper_bound,
        is_steady=lambda timing: False,
        prefill_ns=prefill_ns,
        decode_ns=decode_ns,
    )
)
