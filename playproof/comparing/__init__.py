"""Runs side by side: what was set differently, what came out differently, and which requests moved for what reason.

Reads the files that a run wrote, `report.json` and `requests.jsonl`, or reports in memory; it replays nothing.
"""

from playproof.comparing.comparison import Cause, Comparison, compare
from playproof.comparing.reading import Run, read_run
from playproof.comparing.regressions import Bound, Miss

__all__ = ["Bound", "Cause", "Comparison", "Miss", "Run", "compare", "read_run"]
