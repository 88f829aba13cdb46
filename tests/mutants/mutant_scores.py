"""What became of the source mutants: the results as they are written, their score, and the pages that tell of them."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

from source_faults import FAULTS, Fault

__all__ = [
    "BROKEN",
    "KILLED",
    "PAGE",
    "SEEN",
    "SURVIVED",
    "TIMED_OUT",
    "page_with",
    "problems",
    "read_results",
    "score",
    "write",
    "write_page",
    "written_score",
]

HERE = Path(__file__).resolve().parent
RESULTS, TABLE = HERE / "results.json", HERE / "results.md"
PAGE = HERE.parents[1] / "docs" / "assurance.md"
# Between these lines of the page stands what is made of the results.
BEGIN, END = "<!-- Written by tests/mutants/mutate.py. -->\n", "<!-- So far. -->\n"
WRITTEN_SCORE = re.compile(r"\*\*(\d+) of the (\d+) that a test could tell are seen")
# Of the faults that some test could tell.
LEAST_KILLED = Fraction(95, 100)
KILLED, TIMED_OUT, BROKEN, SURVIVED = "killed", "timed out", "broken", "survived"
SEEN = (KILLED, TIMED_OUT, BROKEN)

Results = dict[str, dict[str, Any]]


def read_results() -> Results:
    """Return what is written of faults as they are now; results of a fault that has changed since are left out."""
    if not RESULTS.exists():
        return {}
    held = json.loads(RESULTS.read_text("utf-8"))["faults"]
    current = {fault.name: fault.fingerprint for fault in FAULTS}
    return {name: row for name, row in held.items() if current.get(name) == row["fingerprint"]}


def is_seen(results: Results, fault: Fault) -> bool:
    """Tell whether tests saw `fault`; one that was not tried was not seen."""
    return results.get(fault.name, {}).get("verdict") in SEEN


def score(results: Results, room: str = "") -> tuple[int, int]:
    """Return how many faults (of `room`) are seen, and how many could be."""
    possible = [fault for fault in FAULTS if not fault.equivalent and room in ("", fault.room)]
    return sum(is_seen(results, fault) for fault in possible), len(possible)


def written_score(page: str) -> Fraction | None:
    """Return the share of faults that `page` says are seen; None where it does not say."""
    found = WRITTEN_SCORE.search(page)
    return Fraction(int(found.group(1)), int(found.group(2))) if found else None


def problems(results: Results, page: str) -> list[str]:
    """Return what is wrong: faults not tried, a low score, one below what `page` says, an equivalent that is seen."""
    found = [f"{fault.name} was not tried as it is now" for fault in FAULTS if fault.name not in results]
    killed, possible = score(results)
    if killed < LEAST_KILLED * possible:
        found.append(f"{killed} of {possible} faults are seen, which is less than {float(LEAST_KILLED):.0%}")
    before = written_score(page)
    if before is not None and Fraction(killed, possible) < before:
        found.append(
            f"{killed} of {possible} faults are seen, and docs/assurance.md says {float(before):.2%}; "
            "where less is meant, take the sentence with the score out there, and run this again"
        )
    for fault in FAULTS:
        if fault.equivalent and is_seen(results, fault):
            found.append(f"{fault.name} is said to be equivalent, but {results[fault.name]['by'] or 'a test'} sees it")
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rooms(results: Results) -> list[str]:
    """Return a table of the rooms: faults, how many are seen, survive, are equivalent."""
    lines = ["| room | faults | seen | survivors | equivalent |", "|---|---|---|---|---|"]
    for room in (*dict.fromkeys(fault.room for fault in FAULTS), ""):
        number = sum(room in ("", fault.room) for fault in FAULTS)
        killed, possible = score(results, room)
        lines.append(f"| {room or 'all'} | {number} | {killed} | {possible - killed} | {number - possible} |")
    return lines


def table(results: Results) -> str:
    """Return the results as a page with a row for each fault."""
    killed, possible = score(results)
    lines = [
        "# Source mutants",
        "",
        "Written by `tests/mutants/mutate.py`; see there, and docs/assurance.md.",
        "",
        f"{len(FAULTS)} faults: {killed} of the {possible} that a test could tell are seen.",
        "",
        *_rooms(results),
        "",
        "| fault | where | what is wrong then | verdict | seen by |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        row = results.get(fault.name, {})
        why = fault.why + (f" *Equivalent: {fault.equivalent}*" if fault.equivalent else "")
        by = row.get("by", "").rpartition("/")[2]
        lines.append(
            f"| {fault.name} | {fault.file} | {_cell(why)} | {row.get('verdict', 'not tried')} | {_cell(by)} |"
        )
    return "\n".join(lines) + "\n"


def _section(results: Results) -> str:
    """Return what the page of assurances says of the results."""
    killed, possible = score(results)
    share = int(1000 * Fraction(killed, possible)) / 10
    lines = [
        f"Of {len(FAULTS)} faults, **{killed} of the {possible} that a test could tell are seen ({share} %)**. "
        "Each stands with its verdict, and the test that sees it, in [results.md](../tests/mutants/results.md).",
        "",
        *_rooms(results),
        "",
    ]
    if left := [fault for fault in FAULTS if not fault.equivalent and not is_seen(results, fault)]:
        lines += [
            "Survivors, which a test could tell and none does:",
            "",
            "| fault | what is wrong then |",
            "|---|---|",
        ]
        lines += [f"| {fault.name} | {_cell(fault.why)} |" for fault in left]
        lines.append("")
    lines += [
        "Equivalent faults, which no test could tell:",
        "",
        "| fault | what is wrong then | why nothing could tell |",
        "|---|---|---|",
    ]
    lines += [
        f"| {fault.name} | {_cell(fault.why)} | {_cell(fault.equivalent)} |" for fault in FAULTS if fault.equivalent
    ]
    return "\n".join(lines) + "\n"


def page_with(results: Results, page: str) -> str:
    """Return `page` with what it says of the results renewed."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks the lines between which the score stands")
    return before + BEGIN + "\n" + _section(results) + "\n" + END + after


def write(results: Results) -> None:
    """Write results and their table."""
    killed, possible = score(results)
    ordered = {fault.name: results[fault.name] for fault in FAULTS if fault.name in results}
    whole = {"faults_in_all": len(FAULTS), "possible": possible, "seen": killed, "faults": ordered}
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    TABLE.write_text(table(results), "utf-8")


def write_page(results: Results) -> None:
    """Renew what the page of assurances says."""
    PAGE.write_text(page_with(results, PAGE.read_text("utf-8")), "utf-8")
