"""Which of the calls that files tell are one call: copies by resume, fork and compaction, told from ids used again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from playproof_lowering.claude_calls import RecordedCall
from playproof_lowering.claude_records import FileLog

__all__ = ["name_calls"]


@dataclass(slots=True, eq=False)
class _Group:
    """The copies of one call."""

    first: RecordedCall
    request: str
    copies: list[RecordedCall] = field(default_factory=list)


def name_calls(logs: Sequence[FileLog]) -> list[RecordedCall]:
    """Give each call the key that names it in the corpus.

    Calls with one message id are one if a row of both has the same id (or says that it was copied from one that has),
    or if they have the same request. They are also one if their instants and prompts are equal and their requests do
    not differ; but not where a file has several calls of that id, for then it is no name of one call. Nothing depends
    on the order of files.

    Returns
    -------
    list of RecordedCall
        Of calls whose message id is another call's too, all but the first.

    Notes
    -----
    Linear in the rows, but for sorting the calls of one id.
    """
    by_message: dict[str, list[RecordedCall]] = {}
    common: set[str] = set()
    for log in logs:
        for scope in log.scopes.values():
            for call in scope.calls:
                by_message.setdefault(call.message, []).append(call)
            own = [call.message for call in scope.calls]
            common.update(message for message, count in Counter(own).items() if count > 1)
    reused = []
    for message, calls in by_message.items():
        groups = _grouped(calls, message in common) if len(calls) > 1 else []
        for number, group in enumerate(groups[1:], 2):
            reused.append(group.first)
            for call in group.copies:
                call.key = f"{message}#{number}"
    return sorted(reused, key=_order)


def _order(call: RecordedCall) -> tuple[int, int, str, str, int, str]:
    return call.first_ns, call.prompt, call.rows[0] if call.rows else "", call.request, call.line, call.file


def _grouped(calls: list[RecordedCall], common: bool) -> list[_Group]:
    """Put the copies of each call together; the groups are in time order.

    Parameters
    ----------
    common : bool
        The message id is no name of one call.
    """
    groups: list[_Group] = []
    by_row: dict[str, _Group] = {}
    by_request: dict[str, _Group] = {}
    by_instant: dict[tuple[int, int, str], _Group] = {}
    for call in sorted(calls, key=_order):
        group = next((by_row[row] for row in call.rows if row in by_row), None)
        group = group or by_request.get(call.request or " ")
        if group is None and not (common and call.rows):
            # A copy may have lost its request's id; two ids that differ are two calls.
            alike = by_instant.get((call.first_ns, call.prompt, ""))
            same = by_instant.get((call.first_ns, call.prompt, call.request)) if call.request else alike
            lost = alike if alike is not None and (not call.request or not alike.request) else None
            group = same or lost
        if group is None:
            group = _Group(call, call.request)
            groups.append(group)
        group.copies.append(call)
        group.request = group.request or call.request
        for row in call.rows:
            by_row.setdefault(row, group)
        if call.request:
            by_request.setdefault(call.request, group)
            by_instant.setdefault((call.first_ns, call.prompt, call.request), group)
        by_instant.setdefault((call.first_ns, call.prompt, ""), group)
    return groups
