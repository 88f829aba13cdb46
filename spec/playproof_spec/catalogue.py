"""The catalogue of finding codes: for each its severity, reason, way out and an example.

`docs/findings.md` is generated from here. A code is added here before it is used; its name says what is wrong, with the
thing first (`edge-dangling`, `hash-count`), and never changes once released, since CI jobs of users filter on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Errors stop a replay; warnings are told and counted; notes say what a reader decided."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Kind:
    """What the catalogue says of one code."""

    code: str
    severity: Severity
    title: str
    because: str
    hint: str
    example: str


def _kinds(section: str, *kinds: Kind) -> tuple[str, tuple[Kind, ...]]:
    return section, kinds


# Sections: reading (files and bytes), format (rows and fields), graph (obligations on the graph), deployment
# (configuration). Each room adds to its own.
READING = _kinds("Reading files")
FORMAT = _kinds("Rows and fields")
GRAPH = _kinds("The dependency graph")
DEPLOYMENT = _kinds(
    "Configuration and deployment",
    Kind(
        code="config-unreadable",
        severity=Severity.ERROR,
        title="The configuration is not one YAML mapping",
        because="nothing in it can be trusted before it parses",
        hint="write one YAML mapping with `engine` and `traffic`, in UTF-8; look at the indentation of the named line",
        example="engine: {workers: {aggregated: [",
    ),
    Kind(
        code="config-duplicate-key",
        severity=Severity.ERROR,
        title="A key stands twice in one mapping",
        because="YAML readers keep one of the two values without a word, so a replay could run with the other one",
        hint="keep one of them",
        example="scheduler: {max_sequences: 8, max_sequences: 256}",
    ),
    Kind(
        code="config-unknown-key",
        severity=Severity.ERROR,
        title="A key that no configuration has",
        because="a misspelt key that is passed over changes the result in silence",
        hint="use the name suggested, or remove the key",
        example="engine.workers.aggregated.scheduler.max_sequence: 8",
    ),
    Kind(
        code="config-missing",
        severity=Severity.ERROR,
        title="A required key is absent",
        because="no default would be right for every deployment, and a wrong one would look like a result",
        hint="add the key",
        example="kv_cache without capacity",
    ),
    Kind(
        code="config-type",
        severity=Severity.ERROR,
        title="A value of the wrong type",
        because='values are taken as written, never converted: `true` is not 1 and `"8"` is not 8',
        hint="write the value in the wanted type",
        example="parallelism: {replicas: true}",
    ),
    Kind(
        code="config-value",
        severity=Severity.ERROR,
        title="A value out of its range",
        because="the simulated deployment has no meaning there",
        hint="choose a value within the range",
        example="load: {speedup: 0}",
    ),
    Kind(
        code="config-combination",
        severity=Severity.ERROR,
        title="Two settings that exclude one another",
        because="one of them would have no effect",
        hint="remove the one that you do not mean",
        example="timing: {type: polynomial, decode_ms: 12}",
    ),
    Kind(
        code="config-unsupported",
        severity=Severity.ERROR,
        title="A setting that this version does not simulate",
        because="passing over it would give the figures of another deployment",
        hint="remove the setting, or use a version that supports it",
        example="kv_cache: {g3_offload: {…}}",
    ),
    Kind(
        code="clock-horizon",
        severity=Severity.ERROR,
        title="The replay could outlast the clock",
        because="the clock counts nanoseconds in 64 bits and ends after about 146 years",
        hint="look for a wrong unit in the trace's times, or raise load.speedup or lower the timing model's durations",
        example="a delay of 1e13 ms replayed with speedup 0.001",
    ),
    Kind(
        code="request-never-fits",
        severity=Severity.WARNING,
        title="A request that this deployment must reject",
        because="its prompt needs the whole context or more blocks than the pool has; its play fails there",
        hint="raise engine.context_length or kv_cache.capacity.blocks, or leave the play out",
        example="a prompt of 900,000 tokens on a pool of 4,096 blocks of 64",
    ),
)

SECTIONS: tuple[tuple[str, tuple[Kind, ...]], ...] = (READING, FORMAT, GRAPH, DEPLOYMENT)
CATALOGUE: dict[str, Kind] = {kind.code: kind for _, kinds in SECTIONS for kind in kinds}
