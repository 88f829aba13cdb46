"""What is typed often, in short: flags that stand for settings, and shares."""

from __future__ import annotations

import math
from typing import NamedTuple

from playproof.deployment import AnyDeployment, Disaggregated

__all__ = ["Short", "share_of"]


class Short(NamedTuple):
    """The short flags of a command, None where one is not given."""

    workers: str | None = None
    lanes: int | None = None
    blocks: str | None = None

    def settings(self, deployment: AnyDeployment) -> list[str]:
        """Return the settings that the flags stand for.

        Parameters
        ----------
        deployment : Deployment or Disaggregated
            What they are put over: it says which roles there are.

        Raises
        ------
        ValueError
            When a flag does not speak of as many roles as there are.

        Examples
        --------
        >>> from playproof import Deployment, Disaggregated
        >>> Short(workers="4").settings(Deployment())
        ['engine.workers.aggregated.parallelism.replicas=4']
        >>> Short(blocks="320+160").settings(Disaggregated())
        ['engine.workers.prefill.kv_cache.capacity.blocks=320', 'engine.workers.decode.kv_cache.capacity.blocks=160']
        """
        roles = ("prefill", "decode") if isinstance(deployment, Disaggregated) else ("aggregated",)
        settings = []
        for flag, text, field in (
            ("--workers", self.workers, "parallelism.replicas"),
            ("--blocks", self.blocks, "kv_cache.capacity.blocks"),
        ):
            if text is None:
                continue
            parts = text.split("+")
            if len(parts) != len(roles):
                wanted = "PREFILL+DECODE, such as 1+3" if len(roles) == 2 else "one number"
                raise ValueError(f"{flag} of this deployment is {wanted}, not {text!r}")
            settings += [f"engine.workers.{role}.{field}={part}" for role, part in zip(roles, parts, strict=True)]
        if self.lanes is not None:
            settings.append(f"traffic.load.agentic_lanes={self.lanes}")
        return settings


def share_of(text: str) -> float | None:
    """Return a share that is written as a percentage or as a number up to 1; None where it is neither.

    Examples
    --------
    >>> share_of("95%"), share_of("0.95"), share_of("95"), share_of("much")
    (0.95, 0.95, None, None)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        return None
    return share if not rest and math.isfinite(share) and 0 <= share <= 1 else None
