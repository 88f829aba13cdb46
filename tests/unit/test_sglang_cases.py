"""What SGLang's own admission, cache and retraction code did on a CPU, request by request, to the microsecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import playproof as pp

MICROSECOND_MS = 0.001
# Written with a loop around SGLang's code in which a full batch stayed full though the batch that ended took the place
# of an empty running one. SGLang's flag belongs to a batch, and that batch has one of its own (docs/fidelity.md).
OLDER_LOOP = {"case-072", "case-114", "case-128"}
MINIMAL = 12
RANDOM_MOST_OTHER = 0.1


def cases(reference_dir: Path) -> list[Path]:
    found = sorted(path.parent for path in (reference_dir / "sglang_scheduler").glob("*/sglang.json"))
    assert found, "the reference folder holds no case of SGLang's own"
    return found


def outcome(record: dict[str, Any]) -> tuple[list[tuple[float, int]], float, float, int]:
    """Return what both sides know of a request: its admissions, its first and last token, and how many it got."""
    admissions = [(each["at_ms"], each["reused_input_tokens"]) for each in record["admission_history"]]
    return admissions, record["first_token_ms"], record["last_token_ms"], record["output_length"]


def wanted(entry: dict[str, Any]) -> tuple[list[tuple[float, int]], float, float, int]:
    admissions = [(each["at_ms"], each["cached_tokens"]) for each in entry["admissions"]]
    return admissions, entry["first_token_ms"], entry["last_token_ms"], entry["output_length"]


def equal(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    (mine, first, last, length), (other, first_then, last_then, length_then) = ours, theirs
    if [each[1] for each in mine] != [each[1] for each in other] or length != length_then:
        return False
    close = [abs(first - first_then), abs(last - last_then)]
    close += [abs(a[0] - b[0]) for a, b in zip(mine, other, strict=True)]
    return bool(max(close) <= MICROSECOND_MS)


def differences(case: Path) -> list[str]:
    """Return the requests of `case` that we serve otherwise than SGLang did."""
    expected = json.loads((case / "sglang.json").read_text())
    assert expected["version"] == "0.5.23"
    ours = {record["request_id"]: outcome(record) for record in pp.run(case / "config.yaml").request_dicts()}
    assert ours.keys() == expected["requests"].keys()
    return [name for name, entry in expected["requests"].items() if not equal(ours[name], wanted(entry))]


def test_every_minimal_case_is_sglangs(reference_dir: Path) -> None:
    minimal = [case for case in cases(reference_dir) if case.name.startswith("m")]
    assert len(minimal) == MINIMAL
    assert not {case.name: found for case in minimal if (found := differences(case))}


def test_random_cases_are_sglangs(reference_dir: Path) -> None:
    random = [case for case in cases(reference_dir) if case.name.startswith("case-")]
    other = {case.name for case in random if differences(case)}
    assert other <= OLDER_LOOP
    assert len(other) <= RANDOM_MOST_OTHER * len(random)


@pytest.mark.parametrize("name", ["m4-full-sticks", "m5-whole-leaf", "m10-locked-prefix", "m12-batch-evicts-late"])
def test_the_peers_rules_part_from_sglangs(reference_dir: Path, name: str) -> None:
    case = reference_dir / "sglang_scheduler" / name
    rules = ["engine.workers.aggregated.scheduler.rules=aisimulate"]
    expected = json.loads((case / "sglang.json").read_text())["requests"]
    report = pp.run(pp.read_configuration(case / "config.yaml", overrides=rules))
    ours = {record["request_id"]: outcome(record) for record in report.request_dicts()}
    assert any(not equal(ours[request], wanted(entry)) for request, entry in expected.items())
