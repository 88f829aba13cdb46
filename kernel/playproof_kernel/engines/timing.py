"""How long a pass takes: prefill and decode parts in whole nanoseconds.

The polynomial's coefficients are those of the public reference engine's default model (milliseconds).
"""

from __future__ import annotations

from typing import Any

from playproof_spec.deployment import TimingKind

from playproof_kernel.ground.jit import compiled, constant

_FIXED = constant(TimingKind.FIXED)


@compiled
def prefill_ns(config: Any, requests: int, mean_isl: int, mean_prefix: int) -> int:
    """Return the prefill part of a pass over `requests` requests that computed prompt tokens."""
    if config.timing == _FIXED:
        return int(config.prefill_ns)
    tokens = float(requests * (mean_isl - mean_prefix))
    ms = 4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142
    return round(ms * 1e6)


@compiled
def decode_ns(config: Any, total_tokens: int) -> int:
    """Return the decode part of a pass over requests that know `total_tokens` tokens together."""
    if config.timing == _FIXED:
        return int(config.decode_ns)
    capacity = float(config.blocks * config.block_size)
    share = min(1.0, float(total_tokens) / capacity)
    ms = max(1.0, -25.74 * share * share + 54.01 * share + 5.74)
    return round(ms * 1e6)
