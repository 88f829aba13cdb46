"""The report of an online replay: the offline one's fields where they mean the same, and a block on what is online.

What only a server knows is null where none said it. When the client was the limit, figures that would pass for the
server's are null too, and stand in the block instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from playproof_spec.machines import NodeState
from playproof_spec.units import NS_PER_MS

from playproof.controlled import ControlledReport
from playproof.online.driver import EndedBy, Observed
from playproof.online.options import OnlineOptions
from playproof.report import Report

# What workers did, which only mock workers say.
_WORK = (
    "committed_prefill_tokens",
    "forward_passes",
    "preemptions",
    "evicted_blocks",
    "prefill_worker_seconds",
    "decode_worker_seconds",
    "busy_worker_seconds",
    "roles",
)
_REUSE = ("first_admission_prefix_cache_reused_ratio", "prefix_cache_reused_ratio")
# Endings of the names of figures that a late client spoils.
_SPOILT = ("_latency_ms", "_ttft_ms", "_ttst_ms", "_tpot_ms", "_itl_ms", "_rps", "_tok_s")

# A greater share of the completed requests that are not what was asked for is a warning.
WARNED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Setting:
    """Where an online replay ran.

    Attributes
    ----------
    endpoints : tuple of str
        Servers, in the order of their numbers.
    model : str
    mock : bool
        Whether they were mock workers of the deployment.
    options : OnlineOptions
    """

    endpoints: tuple[str, ...]
    model: str
    mock: bool
    options: OnlineOptions


class _Online(Report):
    """What the reports of online replays share. `Report` or `ControlledReport` makes the rest, with its parameters.

    What was seen besides is added by `of`.
    """

    setting: Setting
    observed: Observed

    def of(self, setting: Setting, observed: Observed) -> Self:
        """Make this the report of a replay in `setting` of which `observed` was seen."""
        self.setting, self.observed = setting, observed
        self.wall_time_ms = observed.wall_ns / NS_PER_MS
        return self

    @property
    def client_limited(self) -> bool:
        """Whether the client was later than its bound, so that latencies are its own as much as the server's."""
        return any(late["over_bound"] for late in self._clocks().values())

    @property
    def partial(self) -> bool:
        """Whether the run was ended before it was over."""
        return self.observed.partial

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it."""
        return self.observed.ended_by is EndedBy.INTERRUPT

    def to_dict(self) -> dict[str, Any]:
        """Return report.json as JSON values."""
        report = super().to_dict()
        if not self.setting.mock:
            report |= dict.fromkeys((*_WORK, "deployment"))
        if self.observed.without_cached:
            report |= dict.fromkeys(_REUSE)
        withheld = None
        if self.client_limited:
            withheld = {name: value for name, value in report.items() if name.endswith(_SPOILT)}
            report |= dict.fromkeys(withheld)
        return {**report, "online": self._online(withheld)}

    def _online(self, withheld: Mapping[str, Any] | None) -> dict[str, Any]:
        observed, setting = self.observed, self.setting
        return {
            "endpoints": list(setting.endpoints),
            "model": setting.model,
            "mock_workers": setting.mock,
            "time_scale": setting.options.time_scale,
            "partial": observed.partial,
            "ended_by": observed.ended_by.value,
            "ended_at_ms": observed.ended_ns / NS_PER_MS,
            "wall_seconds": observed.wall_ns / NS_PER_MS / 1000,
            "client_was_the_limit": self.client_limited,
            "lateness_bound_ms": setting.options.lateness_bound_ms,
            **self._clocks(),
            "withheld": withheld,
            "causes": dict(sorted(observed.causes.items(), key=lambda item: (-item[1], item[0]))),
            "requests_without_usage": observed.without_usage,
            "requests_without_cached_tokens": observed.without_cached,
            "requests_with_other_token_counts": observed.miscounted,
            "requests_with_fewer_tokens": observed.fewer,
            "requests_with_more_tokens": observed.more,
            "prompts_counted_otherwise": observed.prompts_differ,
            "warnings": self.warnings(),
            "limits": {
                "connect_timeout_seconds": setting.options.connect_timeout_seconds,
                "silence_timeout_seconds": setting.options.silence_timeout_seconds,
                "request_timeout_seconds": setting.options.request_timeout_seconds,
                "max_connections": setting.options.max_connections,
                "drain_seconds": setting.options.drain_seconds,
            },
        }

    def warnings(self) -> list[str]:
        """Return what is wrong with the run as a whole, in sentences; empty for one whose figures can be used."""
        observed, completed = self.observed, self._counts()["completed_requests"]
        said = [f"a mock worker died, {death}" for death in observed.deaths]
        options = self.setting.options
        if options.connections_wanted is not None:
            said.append(
                f"this system lets a process have {options.max_connections:,} connections open instead of "
                f"{options.connections_wanted:,} (ulimit -n), and requests beyond them wait for one"
            )
        for count, what in ((observed.fewer, "fewer"), (observed.more, "more")):
            if count > WARNED_SHARE * completed:
                share = f"{count:,} of {completed:,} completed requests"
                said.append(f"{share} have {what} tokens than were asked for: it is another load than the trace's")
        if observed.prompts_differ > WARNED_SHARE * completed:
            share = f"{observed.prompts_differ:,} of {completed:,} prompts"
            said.append(f"{share} are counted otherwise by the server than they were sent")
        return said

    def _clocks(self) -> dict[str, dict[str, Any]]:
        """Return how late the client was, in wall time; the bound is of the replay's time, as latencies are."""
        observed, options = self.observed, self.setting.options
        bound = options.lateness_bound_ms / options.time_scale
        clocks = {
            "dispatch_lateness": observed.dispatch.figures(),
            "hearing_lateness": observed.hearing.figures(),
            "event_loop_lateness": observed.loop.figures(),
        }
        return {
            name: {**figures, "over_bound": figures["p99_ms"] is not None and figures["p99_ms"] > bound}
            for name, figures in clocks.items()
        }

    def _online_line(self, line: dict[str, Any], serial: int) -> dict[str, Any]:
        sent = self.observed.sent.get(serial)
        if sent is None:  # given up
            return {**line, "endpoint": None, "dispatch_lateness_ms": None, "cause": "given up"}
        return {
            **line,
            "endpoint": self.setting.endpoints[sent.endpoint],
            "dispatch_lateness_ms": sent.late_ns / NS_PER_MS,
            "cause": sent.cause or None,
        }


class OnlineReport(_Online):
    """The report of a finite online replay."""

    def _counts(self) -> dict[str, Any]:
        counts = super()._counts()
        counts["never_issued_requests"] += int((self.ledger.node_state == NodeState.NEVER_ISSUED).sum())
        return counts

    def _lines(self) -> Iterator[dict[str, Any]]:
        for node, line in zip(self._columns.node.tolist(), super()._lines(), strict=True):
            yield self._online_line(line, node)


class OnlineControlledReport(_Online, ControlledReport):
    """The report of an online replay under the run controls."""

    def _profile(self) -> dict[str, Any]:
        profile, closed_ns = super()._profile(), self.observed.closed_ns
        if closed_ns is not None and self.valid:
            # It was ended earlier than its options say, with the drain in place of grace and cancellation.
            over_ms = closed_ns / NS_PER_MS + self.setting.options.drain_seconds * 1000
            profile |= {
                "admission_cutoff_ms": closed_ns / NS_PER_MS,
                "response_grace_deadline_ms": over_ms,
                "cancel_drain_deadline_ms": over_ms,
                "admission_closed": True,
            }
        return profile

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self.controlled.captured is not None
        serials = self.controlled.captured.requests.serial.tolist()
        lines = list(ControlledReport._lines(self))
        assert len(lines) == len(serials)
        for serial, line in zip(serials, lines, strict=True):
            yield self._online_line(line, serial)
