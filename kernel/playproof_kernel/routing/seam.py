"""What a routing policy is to the rest of the kernel, and where it is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from playproof_native import Seam
from playproof_spec.deployment import RouterSpec

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled


class Policy(NamedTuple):
    """Which worker a request goes to.

    Attributes
    ----------
    name : str
    serves : callable (RouterSpec or None) -> bool
        Whether it is the policy that is described.
    configure : callable (Config, RouterSpec or None) -> None
        Write into the configuration of all roles what `choose` reads there.
    hears : bool
        Whether it reads what caches tell (`cache_events`); events that no policy reads are not recorded.
    choose : (sim, role, request) -> int
        The worker of the role where `request` is placed. It writes what the policy itself keeps, and no more.
    """

    name: str
    serves: Callable[[RouterSpec | None], bool]
    configure: Callable[[Any, RouterSpec | None], None]
    hears: bool
    choose: Callable[[Sim, int, int], int]


@compiled
def holding(sim: Sim, role: int) -> int:
    """Return the number of the policy of this run."""
    return int(sim.config[0].policy)


POLICIES: Seam[Policy] = Seam("routing policy", holding)
