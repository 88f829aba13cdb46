"""What an online run comes to for a script: whether its exit code says that something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FAILED = (("failed", "failed_requests"), ("rejected by the server", "rejected_requests"))
_UNDONE = (
    *_FAILED,
    ("canceled", "canceled_requests"),
    ("skipped", "skipped_requests"),
    ("unfinished", "unfinished_requests"),
    ("never issued", "never_issued_requests"),
)
_ODD = (
    ("with fewer tokens than asked for", "requests_with_fewer_tokens"),
    ("with more tokens than asked for", "requests_with_more_tokens"),
    ("with more events than tokens", "requests_with_other_token_counts"),
)


def failures(report: Mapping[str, Any], fail_on: str | None) -> str:
    """Return why a run counts as failed, or an empty text.

    Parameters
    ----------
    report : mapping
        `OnlineReport.to_dict()`.
    fail_on : {"failed", "any"}, optional
        What counts: requests that failed or were rejected; or all that did not complete as they were asked for, and
        whatever the report warns of. Without, a run fails in which nothing completed, or whose mock worker died.
    """
    online = report["online"]
    counted = [(what, report[name]) for what, name in (_UNDONE if fail_on == "any" else _FAILED)]
    if fail_on == "any":
        counted += [(what, online[name]) for what, name in _ODD]
    said = ", ".join(f"{count:,} {what}" for what, count in counted if count)
    if fail_on is not None and said:
        return f"--fail-on {fail_on}: requests {said}"
    if fail_on == "any" and online["client_was_the_limit"]:
        return "--fail-on any: the client was the limit"
    if fail_on == "any" and online["warnings"]:
        return "--fail-on any: the run has warnings"
    if online["ended_by"] == "worker":
        return "the run ended with the death of a mock worker"
    if not report["completed_requests"]:
        return f"no request completed{f': {said}' if said else ''}"
    return ""
