"""Bounds on latencies, and what of a run holds them: goodput, with the peer's names and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from playproof.deployment import Checked
from playproof.fields import BoundMs
from playproof.figures import ratio

if TYPE_CHECKING:
    from playproof.report import Trajectories
    from playproof.requests import RequestColumns

__all__ = ["NO_BOUNDS", "REQUEST_BOUNDS", "Sla", "goodput", "least_share"]

# The bounds of a request, and the column that each is held against. The peer's `itl_ms` bounds a request's mean gap
# between tokens, which is its TPOT.
REQUEST_BOUNDS: Mapping[str, str] = {
    "ttft_ms": "ttft_ms",
    "itl_ms": "tpot_ms",
    "tpot_ms": "tpot_ms",
    "e2e_ms": "e2e_ms",
}

# What a report without bounds has in the place of goodput.
NO_BOUNDS: dict[str, Any] = dict.fromkeys(
    (
        "sla",
        "goodput_completed_requests",
        "goodput_request_share",
        "goodput_request_throughput_rps",
        "goodput_output_throughput_tok_s",
        "goodput_completed_trajectories",
        "goodput_trajectory_share",
    )
)


class Sla(Checked, frozen=True, kw_only=True):
    """Bounds that requests and plays are to hold; each is inclusive, and None bounds nothing.

    Attributes
    ----------
    ttft_ms : float or None
        From a request's dispatch to its first token.
    itl_ms, tpot_ms : float or None
        The mean gap between a request's tokens. The peer calls this bound `itl_ms`; the figure is the request's TPOT.
    e2e_ms : float or None
        From a request's dispatch to its end.
    trajectory_ms : float or None
        From a play's first dispatch to its last end.

    Raises
    ------
    InvalidDeployment
        When a bound is not above 0.

    Examples
    --------
    >>> Sla(ttft_ms=500, itl_ms=50).given()
    {'ttft_ms': 500.0, 'itl_ms': 50.0}
    """

    ttft_ms: BoundMs | None = None
    itl_ms: BoundMs | None = None
    e2e_ms: BoundMs | None = None
    tpot_ms: BoundMs | None = None
    trajectory_ms: BoundMs | None = None

    def given(self) -> dict[str, float]:
        """Return the bounds that are set, by name."""
        return {name: bound for name, bound in msgspec.structs.asdict(self).items() if bound is not None}


def goodput(
    sla: Sla, columns: RequestColumns, trajectories: Trajectories, counts: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Return the fields of a report on what holds the bounds.

    A request is good when it completed and holds every bound on requests. A bound is not asked of a completed request
    that has no such figure: of one without tokens no bound, of one with a single token none on its gaps.

    Parameters
    ----------
    sla : Sla
    columns : RequestColumns
        The requests that ended.
    trajectories : Trajectories
    counts : mapping of str to int
        `num_requests` and `skipped_requests` of the report: what the shares are of, whether or not it completed.
    seconds : float
        What throughput is over.
    """
    bounds = sla.given()
    completed = columns.completed
    lost = int(counts["num_requests"]) + int(counts["skipped_requests"]) - int(completed.sum())
    good = completed.copy()
    shares: dict[str, Any] = {}
    for name, figure in REQUEST_BOUNDS.items():
        if name not in bounds:
            continue
        values: npt.NDArray[np.float64] = getattr(columns, figure)
        late = values > bounds[name]  # never where there is no such figure
        good &= ~late
        asked = completed & ~np.isnan(values)
        shares[name] = _share(bounds[name], int((asked & ~late).sum()), int(asked.sum()) + lost)
    on_requests = bool(shares)
    held: int | None = None
    over = trajectories.completed + trajectories.failed
    if "trajectory_ms" in bounds:
        with np.errstate(invalid="ignore"):
            held = int((trajectories.e2e_latency_ms <= bounds["trajectory_ms"]).sum())
        shares["trajectory_ms"] = _share(bounds["trajectory_ms"], held, over)
    count = int(good.sum())
    return {
        "sla": shares,
        "goodput_completed_requests": count if on_requests else None,
        "goodput_request_share": ratio(count, int(completed.sum()) + lost) if on_requests else None,
        "goodput_request_throughput_rps": ratio(count, seconds) if on_requests else None,
        "goodput_output_throughput_tok_s": ratio(int(columns.output[good].sum()), seconds) if on_requests else None,
        "goodput_completed_trajectories": held,
        "goodput_trajectory_share": ratio(held, over) if held is not None else None,
    }


def _share(bound_ms: float, held: int, asked: int) -> dict[str, Any]:
    return {"bound_ms": bound_ms, "asked": asked, "held": held, "share": ratio(held, asked)}


def least_share(report: Mapping[str, Any]) -> float | None:
    """Return the share that a threshold is held against: the least of requests and plays that are bounded.

    Parameters
    ----------
    report : mapping
        `Report.to_dict()`.

    Returns
    -------
    float or None
        None where nothing was asked of any bound, so that nothing is shown.
    """
    sla = report.get("sla") or {}
    shares = []
    if set(sla) & set(REQUEST_BOUNDS):
        shares.append(report["goodput_request_share"])
    if "trajectory_ms" in sla:
        shares.append(report["goodput_trajectory_share"])
    return min(shares) if shares and None not in shares else None
