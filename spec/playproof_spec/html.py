"""Tables for notebooks, of what may come from foreign files: all of it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from playproof_spec.findings import printable

__all__ = ["table"]


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table.

    Parameters
    ----------
    caption : str
    head : sequence of str
        What the columns are called; none where they need no names.
    rows : iterable of sequence

    Examples
    --------
    >>> table("One", [], [("<b>", 1)])
    '<table><caption>One</caption><tbody><tr><td>&lt;b&gt;</td><td>1</td></tr></tbody></table>'
    """
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    names = f"<thead><tr>{_cells('th', head)}</tr></thead>" if head else ""
    return f"<table><caption>{_text(caption)}</caption>{names}<tbody>{body}</tbody></table>"


def _cells(tag: str, row: Iterable[object]) -> str:
    return "".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in row)


def _text(value: object) -> str:
    return escape(printable(str(value)))
