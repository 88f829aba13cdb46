"""What the catalogue says of one code of finding; `catalogue` and `run_kinds` list them."""

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
