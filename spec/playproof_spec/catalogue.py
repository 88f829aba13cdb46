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
DEPLOYMENT = _kinds("Configuration and deployment")

SECTIONS: tuple[tuple[str, tuple[Kind, ...]], ...] = (READING, FORMAT, GRAPH, DEPLOYMENT)
CATALOGUE: dict[str, Kind] = {kind.code: kind for _, kinds in SECTIONS for kind in kinds}
