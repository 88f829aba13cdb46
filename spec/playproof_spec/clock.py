"""Whether a replay stays on the clock: an upper bound of its end, and of every time on the way, before anything runs.

The clock is an int64 of nanoseconds with a horizon (`units`). Floors and delays are as the trace has them, divided by
the speedup; what engines need on top is bounded by all their work done one pass after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playproof_spec.findings import Finding, finding
from playproof_spec.graph import Graph
from playproof_spec.units import HORIZON_MS

__all__ = ["PassBound", "RoleWork", "clock_finding"]

# Under a snapshot a lane's preparation takes no longer than its play and ten prompts.
PREPARED_PLAYS = 12


@dataclass(frozen=True, slots=True)
class PassBound:
    """What one pass takes at the most: `pass_ms`, and `token_ms` for each prompt token that it computes."""

    pass_ms: float
    token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class RoleWork:
    """What the workers of one role do.

    Attributes
    ----------
    prompts, outputs : bool
        Whether they compute prompts, and whether they generate.
    budget : int
        Tokens of prompts that a pass takes if more are waiting, at least.
    bound : PassBound
    """

    prompts: bool
    outputs: bool
    budget: int
    bound: PassBound


def _passes_ms(graph: Graph, role: RoleWork) -> float:
    """Return what all passes of a role can cost at most, as long as nothing is preempted.

    Every pass uses up its token budget, ends a prompt, or generates a token.
    """
    prompts = int(graph.input_length.sum()) if role.prompts else 0
    outputs = int(graph.output_length.sum()) if role.outputs else 0
    passes = prompts / role.budget + graph.node_count + outputs
    return passes * role.bound.pass_ms + prompts * role.bound.token_ms


def _authored_ms(graph: Graph, is_laned: bool) -> float:
    """Return the most that floors and delays can hold a run up: of plays side by side, or one after the other."""
    plays = len(graph.plays)
    delays = np.bincount(graph.node_play[graph.edge_target()], weights=graph.edge_delay_ms, minlength=plays)
    spans = np.array(
        [float(np.ptp(graph.not_before_ms[play.nodes])) if len(play.nodes) else 0.0 for play in graph.plays]
    )
    latest = float(graph.not_before_ms.max(initial=0.0))
    each = delays + spans
    return latest + float(each.sum() if is_laned else each.max(initial=0.0))


def clock_finding(
    graph: Graph,
    roles: Sequence[RoleWork],
    *,
    speedup: float,
    lanes: int | None = None,
    transfers_ms: float = 0.0,
    is_cut: bool = False,
    profile_ms: float = 0.0,
    stops: bool = False,
) -> Finding | None:
    """Return a finding if a replay could come to a time past the end of the clock.

    Parameters
    ----------
    graph : Graph
        Proven.
    roles : sequence of RoleWork
    speedup : float
        Divides floors and delays; > 0.
    lanes : int, optional
        Plays that run one after the other; without, all start at their recorded times.
    transfers_ms : float
        What all transfers between roles can take, one after the other.
    is_cut : bool
        Whether lanes begin at a snapshot's cut.
    profile_ms : float
        Duration and grace of a profile.
    stops : bool
        Whether the load stops the run at an instant on the clock: then only single times count.
    """
    longest = max(float(graph.not_before_ms.max(initial=0.0)), float(graph.edge_delay_ms.max(initial=0.0))) / speedup
    if not longest < HORIZON_MS:
        message = f"at a speedup of {speedup:g} a floor or a delay alone lasts longer than the clock"
        return finding("clock-horizon", message, found=f"{longest:.3g} ms", wanted=f"less than {HORIZON_MS:.3g} ms")
    if stops:
        return None
    authored = _authored_ms(graph, lanes is not None) / speedup + profile_ms
    served = sum(_passes_ms(graph, role) for role in roles) + transfers_ms
    if is_cut and lanes is not None:
        # Each play at most once a lane.
        served *= PREPARED_PLAYS * lanes
    if authored + served < HORIZON_MS:
        return None
    return finding(
        "clock-horizon",
        "the replay could run past the end of the clock",
        found=f"up to {authored:.3g} ms of floors and delays and {served:.3g} ms of service",
        wanted=f"less than {HORIZON_MS:.3g} ms in all",
    )
