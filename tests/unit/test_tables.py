"""Per-request results as tables: the same values as the lines, with null where nothing happened."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import playproof as pp
from playproof import tables
from playproof.report import Report
from playproof.requests import TABLE_COLUMNS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONTROLLED = pp.Load(lanes=2, snapshot_seed=1, profile=pp.Profile(duration_seconds=60))


@pytest.fixture(scope="module", params=[pp.Load(), CONTROLLED], ids=["finite", "profile"])
def report(request: pytest.FixtureRequest) -> Report:
    # A pool that the largest prompts do not fit: their requests are rejected, and have no times.
    return pp.replay(pp.load(EXAMPLES / "weka"), pp.Deployment(blocks=40), request.param)


def flat(report: Report) -> list[dict[str, Any]]:
    lines = []
    for line in report.request_dicts():
        del line["admission_history"]
        agentic = line.pop("agentic", {})
        lines.append({**line, **{f"agentic_{name}": value for name, value in agentic.items()}})
    return lines


def test_csv_is_the_lines(report: Report, tmp_path: Path) -> None:
    _, path = report.write(tmp_path, per_request=True, format="csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert any(row["ttft_ms"] == "" for row in rows)
    wanted = flat(report)
    assert list(rows[0]) == list(wanted[0])
    assert rows == [{name: "" if value is None else str(value) for name, value in line.items()} for line in wanted]


def test_arrow_pandas_and_polars_are_the_lines(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    wanted = flat(report)
    table = report.to_arrow()
    assert table.to_pylist() == wanted
    assert {str(field.type) for field in table.schema} == {"string", "int64", "double"}
    frame = pytest.importorskip("polars").DataFrame
    assert isinstance(report.to_polars(), frame)
    assert report.to_polars().to_dicts() == wanted
    pytest.importorskip("pandas")
    pandas = report.to_pandas()
    assert str(pandas["lane"].dtype) == "Int64"
    assert pandas["ttft_ms"].isna().tolist() == [line["ttft_ms"] is None for line in wanted]
    _, path = report.write(tmp_path, per_request=True, format="parquet")
    assert pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist() == wanted


def test_a_table_without_rows_has_its_columns() -> None:
    assert list(tables.csv_chunks([], TABLE_COLUMNS)) == [(",".join(TABLE_COLUMNS) + "\n").encode()]
    pytest.importorskip("pyarrow")
    assert tables.to_arrow([], TABLE_COLUMNS).column_names == list(TABLE_COLUMNS)


def test_the_columns_are_those_of_a_line(report: Report) -> None:
    names = list(flat(report)[0])
    assert set(TABLE_COLUMNS) == {name for name in names if not name.startswith("agentic_")}


def test_a_library_that_is_missing_is_named(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tables, "import_module", missing)
    with pytest.raises(tables.MissingTables, match=r"pyarrow is not installed: pip install 'playproof\[tables\]'"):
        report.to_arrow()


def test_requests_of_another_run_do_not_stay(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path, per_request=True)
    report.write(tmp_path, per_request=True, format="csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "requests.csv"]
    report.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]


@pytest.mark.parametrize("beside", [None, b"{}", b"no json", json.dumps({"schema": "another"}).encode(), b"\xff"])
def test_requests_that_are_not_ours_are_refused(report: Report, tmp_path: Path, beside: bytes | None) -> None:
    (tmp_path / "requests.jsonl").write_text("somebody's")
    if beside is not None:
        (tmp_path / "report.json").write_bytes(beside)
    with pytest.raises(FileExistsError, match="no report of a run beside it"):
        report.write(tmp_path)
    assert (tmp_path / "requests.jsonl").read_text() == "somebody's"


def test_a_format_that_there_is_not(report: Report, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jsonl, csv, parquet"):
        report.write(tmp_path, per_request=True, format="xml")
