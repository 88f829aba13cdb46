"""What was set differently between runs, and what kind of change each setting is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "Difference", "Kind", "differences", "kind_of"]

# Where the settings of a run stand in its report.
_SECTIONS = ("deployment", "load", "engine_rules", "sla", "playproof_version")
_DIGESTS = ("input", "graph")
# Labels change nothing.
_LABELS = frozenset({"deployment.model", "deployment.hardware"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that not all runs have the same.

    Attributes
    ----------
    field : str
        Its dotted name in the report.
    values : tuple
        Its value in each run, None where a run has it not.
    """

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change: what it is called by its direction, and the figures that would show it.

    Attributes
    ----------
    code : str
    less, more : str
        What it is called where the setting's number is less, and where it is more; both alike for what has no number.
    fields : pattern
        The settings that it is about.
    figures : tuple of str
        Figures of the report that it moves first.
    """

    code: str
    less: str
    more: str
    fields: re.Pattern[str]
    figures: tuple[str, ...]


def _kind(code: str, less: str, more: str, fields: str, *figures: str) -> Kind:
    return Kind(code, less, more, re.compile(fields), figures)


_REUSE = ("first_admission_prefix_cache_reused_ratio", "committed_prefill_tokens")

# In the order in which they are told where nothing else decides. The first whose pattern a setting matches is its kind.
KINDS: tuple[Kind, ...] = (
    _kind("trace", "another trace", "another trace", r"digests\.(input|graph)", "num_requests", "total_input_tokens"),
    _kind("topology", "another topology", "another topology", r"deployment\.mode", "forward_passes"),
    _kind(
        *("engine", "another engine", "another engine"),
        *(r"deployment\.backend|(.*\.)?rules|engine_rules|playproof_version", "forward_passes", "mean_itl_ms"),
        *_REUSE,
    ),
    _kind(
        *("memory", "less memory", "more memory", r"deployment\.(.*\.)?(blocks|num_host_blocks|host_offload)"),
        *("evicted_blocks", "preemptions", *_REUSE),
    ),
    _kind(
        *("workers", "fewer workers", "more workers", r"deployment\.(.*\.)?workers", "busy_worker_seconds"),
        *("prefill_worker_seconds", "decode_worker_seconds"),
    ),
    _kind(
        *("link", "a slower link", "a faster link"),
        *(r"deployment\.(transfer\..*|(.*\.)?host_offload\..*(gbps|latency).*)", "mean_ttft_ms"),
    ),
    _kind("routing", "other routing", "other routing", r"deployment\.router(\..*)?", *_REUSE),
    _kind(
        *("timing", "shorter passes", "longer passes", r"deployment\.(.*\.)?timing\..*"),
        *("mean_itl_ms", "busy_worker_seconds"),
    ),
    _kind("load", "another load", "another load", r"load\..*", "request_throughput_rps", "duration_ms"),
    _kind("bounds", "other bounds", "other bounds", r"sla\..*", "goodput_request_share"),
    _kind("limit", "a lower limit", "a higher limit", r"deployment\.context_length", "rejected_requests"),
    _kind("scheduler", "another setting", "another setting", r"deployment\..*", "forward_passes", "preemptions"),
)


def kind_of(field: str) -> Kind:
    """Return the kind of change that a setting is.

    Examples
    --------
    >>> [kind_of(name).code for name in ("deployment.blocks", "deployment.decode.workers", "load.lanes")]
    ['memory', 'workers', 'load']
    """
    return next(kind for kind in KINDS if kind.fields.fullmatch(field))


def differences(reports: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Return every setting that not all reports have the same, in the order of the first report."""
    flats = [dict(_settings(report)) for report in reports]
    names = dict.fromkeys(name for flat in flats for name in flat)
    found = []
    for name in names:
        values = tuple(flat.get(name) for flat in flats)
        if name not in _LABELS and any(value != values[0] for value in values):
            found.append(Difference(name, values))
    return found


def _settings(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section in _SECTIONS:
        yield from _flat(section, report.get(section))
    digests = report.get("digests") or {}
    for name in _DIGESTS:
        yield f"digests.{name}", digests.get(name)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if name.startswith("sla."):  # a bound is a setting, the share that holds it a figure
        yield name, value["bound_ms"] if isinstance(value, Mapping) else value
    elif isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _flat(f"{name}.{part}", inner)
    elif value is not None:
        yield name, value
