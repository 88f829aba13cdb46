"""How long a pass takes: timing models behind a seam, each a tuple of functions, in whole nanoseconds.

Whoever adds one writes a `TimingModel` and registers it; nothing else knows how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from playproof_native import Seam
from playproof_spec.clock import PassBound
from playproof_spec.deployment import Timing, TimingKind
from playproof_spec.pass_times import DECODE_LEAST_MS, DECODE_MS, PREFILL_MS
from playproof_spec.units import NS_PER_MS

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled
from playproof_kernel.ground.lifecycle import config_of


class TimingModel(NamedTuple):
    """What a pass takes.

    Attributes
    ----------
    name : str
    serves : callable (Timing) -> bool
        Whether it is the model that is described. The first that says so is taken.
    configure : callable (Config, Timing) -> None
        Write into the configuration of a role what its functions read there.
    upper_bound : callable (Timing, tokens) -> PassBound
        What a pass over at most so many prompt tokens takes at the most; see `playproof_spec.clock`.
    is_steady : callable (Timing) -> bool
        Whether a decode pass takes as long as every other, so that the end of a macro-step is a product.
    prefill_ns : (sim, worker, requests, mean_isl, mean_prefix) -> int
        The prefill part of a pass: how many requests computed prompt tokens in it, and the means, rounded down, of
        their prompt tokens known after it and before it.
    decode_ns : (sim, worker, requests, tokens) -> int
        The decode part: how many requests decode, and the tokens that they know together.
    """

    name: str
    serves: Callable[[Timing], bool]
    configure: Callable[[Any, Timing], None]
    upper_bound: Callable[[Timing, int], PassBound]
    is_steady: Callable[[Timing], bool]
    prefill_ns: Callable[[Sim, int, int, int, int], int]
    decode_ns: Callable[[Sim, int, int, int], int]


@compiled
def holding(sim: Sim, worker: int) -> int:
    """Return the number of the timing model of `worker`."""
    return int(config_of(sim, worker).timing)


TIMING_MODELS: Seam[TimingModel] = Seam("timing model", holding)

prefill_ns = TIMING_MODELS.door("prefill_ns")
decode_ns = TIMING_MODELS.door("decode_ns")


def model_of(timing: Timing) -> TimingModel:
    """Return the model that is described; `ValueError` when there is none."""
    return TIMING_MODELS.choices[TIMING_MODELS.number_of(timing)]


def fill(config: Any, timing: Timing) -> None:
    """Write a timing model into the configuration of a role."""
    model = model_of(timing)
    config.timing = TIMING_MODELS.number_of(timing)
    config.steady = model.is_steady(timing)
    model.configure(config, timing)


# Fixed: whatever is in it, a part takes the same --------------------------------------------------------------------


@compiled
def _fixed_prefill_ns(sim: Sim, worker: int, requests: int, mean_isl: int, mean_prefix: int) -> int:
    return int(config_of(sim, worker).prefill_ns)


@compiled
def _fixed_decode_ns(sim: Sim, worker: int, requests: int, tokens: int) -> int:
    return int(config_of(sim, worker).decode_ns)


def _configure_fixed(config: Any, timing: Timing) -> None:
    config.prefill_ns = timing.prefill_ns
    config.decode_ns = timing.decode_ns
    config.instant_prompts = timing.prefill_ns == 0


FIXED = TIMING_MODELS.register(
    TimingModel(
        name="fixed",
        serves=lambda timing: timing.kind == TimingKind.FIXED,
        configure=_configure_fixed,
        upper_bound=lambda timing, tokens: PassBound((timing.prefill_ns + timing.decode_ns) / NS_PER_MS),
        is_steady=lambda timing: True,
        prefill_ns=_fixed_prefill_ns,
        decode_ns=_fixed_decode_ns,
    )
)

# Polynomial: by new tokens, and by the use of the pool --------------------------------------------------------------

_PREFILL_0, _PREFILL_1, _PREFILL_2 = PREFILL_MS
_DECODE_0, _DECODE_1, _DECODE_2 = DECODE_MS


@compiled
def _polynomial_prefill_ns(sim: Sim, worker: int, requests: int, mean_isl: int, mean_prefix: int) -> int:
    tokens = float(requests * (mean_isl - mean_prefix))
    return round((_PREFILL_2 * tokens * tokens + _PREFILL_1 * tokens + _PREFILL_0) * 1e6)


@compiled
def _polynomial_decode_ns(sim: Sim, worker: int, requests: int, tokens: int) -> int:
    config = config_of(sim, worker)
    capacity = float(config.blocks * config.block_size)
    share = min(1.0, float(tokens) / capacity)
    return round(max(DECODE_LEAST_MS, _DECODE_2 * share * share + _DECODE_1 * share + _DECODE_0) * 1e6)


def _polynomial_bound(timing: Timing, tokens: int) -> PassBound:
    # The decode part grows up to a full pool. The square of a sum of tokens is its largest times the sum, at most.
    return PassBound(_PREFILL_0 + _DECODE_0 + _DECODE_1 + _DECODE_2, _PREFILL_1 + _PREFILL_2 * tokens)


POLYNOMIAL = TIMING_MODELS.register(
    TimingModel(
        name="polynomial",
        serves=lambda timing: timing.kind == TimingKind.POLYNOMIAL,
        configure=lambda config, timing: None,
        upper_bound=_polynomial_bound,
        is_steady=lambda timing: False,
        prefill_ns=_polynomial_prefill_ns,
        decode_ns=_polynomial_decode_ns,
    )
)
