"""What a run says when it, not its input, is at fault."""

from __future__ import annotations

__all__ = ["ReplayFault", "TranslationFault"]


class ReplayFault(Exception):
    """The replay broke a rule of its own, such as a stall. The message names it."""


class TranslationFault(ReplayFault):
    """The arrays of a run say something else than the graph that was proven. The message names the place."""
