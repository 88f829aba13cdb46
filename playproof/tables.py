"""Per-request results as tables: Arrow, pandas, Polars, CSV and Parquet.

The columns are the fields of requests.jsonl that hold one value each, and null stands for what did not happen. The
libraries come with ``playproof[tables]`` and are imported where a table is made; CSV needs none of them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = [
    "FORMATS",
    "MissingHtml",
    "MissingTables",
    "columns",
    "csv_chunks",
    "parquet_bytes",
    "require",
    "to_arrow",
    "to_pandas",
    "to_polars",
]

# Formats of per-request results; each is the ending of its file, too.
FORMATS = ("jsonl", "csv", "parquet")

# What has a name of its own among the texts and whole numbers; all else ends in _ms and is a time.
_TEXTS = frozenset(
    {
        *("request_id", "source_request_id", "play_id", "session_id", "model", "phase", "terminal_status"),
        *("agentic_request_id", "agentic_play_id", "agentic_conversation_id", "agentic_cache_id", "agentic_lane_id"),
        *("endpoint", "cause"),
    }
)
# What holds a list has no place in a table.
_NESTED = frozenset({"admission_history"})


class MissingTables(ImportError):
    """A table needs a library of ``playproof[tables]`` that is not installed."""


class MissingHtml(ImportError):
    """A page needs Plotly, of ``playproof[html]``, which is not installed."""


def require(format: str) -> None:
    """Check, before a long replay, that what a format of requests needs is installed.

    Raises
    ------
    MissingTables
        When it is not.
    """
    if format == "parquet":
        _library("pyarrow")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingTables(f"{name} is not installed: pip install 'playproof[tables]' brings it along") from None


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of a request without what is nested: mappings become columns, lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{part}": inner for part, inner in value.items()}
        elif name not in _NESTED:
            flat[name] = value
    return flat


def columns(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the lines of requests.jsonl as columns, None for null.

    Examples
    --------
    >>> columns([{"request_id": "a", "lane": None, "agentic": {"lane_id": "lane:0"}}])
    {'request_id': ['a'], 'lane': [None], 'agentic_lane_id': ['lane:0']}
    """
    table: dict[str, list[Any]] = {}
    for line in lines:
        for name, value in _flat(line).items():
            table.setdefault(name, []).append(value)
    return table


def to_arrow(lines: Iterable[Mapping[str, Any]], names: Sequence[str]) -> pyarrow.Table:
    """Return lines of requests.jsonl as an Arrow table.

    Parameters
    ----------
    lines : iterable of mapping
    names : sequence of str
        The columns of a table without rows.

    Raises
    ------
    MissingTables
        Without PyArrow.
    """
    arrow = _library("pyarrow")
    table = columns(lines) or {name: [] for name in names}
    kinds = {True: arrow.string(), False: arrow.int64()}

    def kind(name: str) -> Any:
        return arrow.float64() if name.endswith("_ms") else kinds[name in _TEXTS]

    return arrow.table({name: arrow.array(values, type=kind(name)) for name, values in table.items()})


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return an Arrow table as a pandas frame whose columns know null.

    Raises
    ------
    MissingTables
        Without pandas.
    """
    pandas, arrow = _library("pandas"), _library("pyarrow")
    kinds = {
        arrow.int64(): pandas.Int64Dtype(),
        arrow.float64(): pandas.Float64Dtype(),
        arrow.string(): pandas.StringDtype(),
    }
    return table.to_pandas(types_mapper=kinds.get)


def to_polars(table: pyarrow.Table) -> polars.DataFrame:
    """Return an Arrow table as a Polars frame.

    Raises
    ------
    MissingTables
        Without Polars.
    """
    frame: polars.DataFrame = _library("polars").from_arrow(table)
    return frame


def csv_chunks(lines: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Iterator[bytes]:
    """Yield lines of requests.jsonl as CSV with a head, an empty field for null.

    Parameters
    ----------
    lines : iterable of mapping
    names : sequence of str
        The columns of a table without rows.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    head: list[str] | None = None
    for line in lines:
        flat = _flat(line)
        if head is None:
            head = list(flat)
            writer.writerow(head)
        writer.writerow([flat.get(name) for name in head])
        if buffer.tell() > 1 << 20:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    if head is None:
        writer.writerow(names)
    yield buffer.getvalue().encode()


def parquet_bytes(table: pyarrow.Table) -> bytes:
    """Return an Arrow table as the bytes of a Parquet file.

    Raises
    ------
    MissingTables
        Without PyArrow.
    """
    sink = io.BytesIO()
    _library("pyarrow.parquet").write_table(table, sink)
    return sink.getvalue()
