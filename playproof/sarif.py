"""Findings as SARIF 2.1.0, the form that code-scanning services read."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from blake3 import blake3
from playproof_lowering.formats import readers
from playproof_spec.catalogue import CATALOGUE, Kind
from playproof_spec.findings import Finding, Findings

SARIF_VERSION = "2.1.0"
# Where a code is explained, before the code. The name is reserved for examples and leads nowhere: whoever publishes the
# documentation (docs/findings.md) puts its address here.
HELP_URI = "https://playproof.example/docs/findings.html#"
FINGERPRINT = "playproof/v1"
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(findings: Findings) -> dict[str, Any]:
    """Return a SARIF log of one run: the catalogue as rules, the findings as results.

    Parameters
    ----------
    findings : Findings

    Notes
    -----
    A severity is the level of the same name; SARIF knows ``error``, ``warning`` and ``note``, as we do. A fingerprint
    stays as it is when lines are put in before its place, so that services know a result again; findings that differ
    in nothing but their line are numbered.
    """
    readers()  # their findings are rules too
    codes = list(CATALOGUE)
    driver = {"name": "playproof", "version": version("playproof"), "rules": [_rule(CATALOGUE[code]) for code in codes]}
    places = {code: number for number, code in enumerate(codes)}
    results = [_result(item, places[item.code]) for item in findings.items]
    _put_fingerprints(results, findings)
    return {
        "$schema": SARIF_SCHEMA,
        "version": SARIF_VERSION,
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _rule(kind: Kind) -> dict[str, Any]:
    return {
        "id": kind.code,
        "shortDescription": {"text": kind.title},
        "fullDescription": {"text": f"{kind.title}: {kind.because}"},
        "help": {"text": kind.hint},
        "helpUri": HELP_URI + kind.code,
        "defaultConfiguration": {"level": kind.severity.value},
    }


def _result(item: Finding, rule: int) -> dict[str, Any]:
    detail = f" Found {item.found}." if item.found else ""
    detail += f" Wanted {item.wanted}." if item.wanted else ""
    result: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": rule,
        "level": item.severity.value,
        "message": {"text": f"{item.message}.{detail} {item.hint}".strip()},
    }
    location: dict[str, Any] = {}
    if item.where.file:
        location["physicalLocation"] = {"artifactLocation": {"uri": _uri(item.where.file)}}
        if item.where.line:
            region = {"startLine": item.where.line}
            if item.where.column:
                region["startColumn"] = item.where.column
            location["physicalLocation"]["region"] = region
    names = [item.where.field] if item.where.field else []
    names += item.where.ids
    if names:
        # Each once: a finding about one request may name it twice.
        location["logicalLocations"] = [{"fullyQualifiedName": name} for name in dict.fromkeys(names)]
    if location:
        result["locations"] = [location]
    return result


def _put_fingerprints(results: list[dict[str, Any]], findings: Findings) -> None:
    """Give each result a fingerprint that is its own."""
    seen: Counter[str] = Counter()
    for result, item in zip(results, findings.items, strict=True):
        where = item.where
        parts = [item.code, where.file, where.field, *where.ids, item.found]
        about = blake3(msgspec.json.encode([part.encode("utf-8", "backslashreplace").decode() for part in parts]))
        name = about.hexdigest(length=16)
        result["partialFingerprints"] = {FINGERPRINT: f"{name}:{seen[name]}"}
        seen[name] += 1


def _uri(file: str) -> str:
    path = Path(file)
    # Relative ones stay relative: services resolve them against the checkout.
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
