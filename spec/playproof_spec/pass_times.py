"""Facts of the timing models that more than one room asks for."""

from __future__ import annotations

from typing import Final

__all__ = ["DECODE_LEAST_MS", "DECODE_MS", "PREFILL_MS"]

# The polynomial model's coefficients, constant first, are those of the public reference engine's default model, in
# milliseconds: of a prefill part by its new tokens, and of a decode part by the share of the pool that is known tokens.
PREFILL_MS: Final = (16.50142, 1.518344e-02, 4.209989e-07)
DECODE_MS: Final = (5.74, 54.01, -25.74)
DECODE_LEAST_MS: Final = 1.0
