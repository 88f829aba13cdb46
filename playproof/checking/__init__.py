"""The checker of runs: whether a report and its lines can be what the trace, the load and the rules make of them.

It is the second opinion on a replay. It reads `requests.jsonl` and `report.json` as anybody else could, with its own
reading of the rules in docs/checking.md, in NumPy and Python; it imports nothing of the kernel, nor of what writes
reports (a contract of import-linter sees to that). `check_lines` is all of it; `playproof check` and
`playproof replay --check` call it.
"""

from playproof.checking.check import check_lines
from playproof.checking.verdict import RULES, RuleResult, Tally, Verdict

__all__ = ["RULES", "RuleResult", "Tally", "Verdict", "check_lines"]
