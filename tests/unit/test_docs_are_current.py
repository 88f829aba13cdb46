"""The generated pages are what the tables and the catalogue say now."""

from __future__ import annotations

from pathlib import Path

import pytest

from playproof import docs

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_current() -> None:
    assert docs.stale(ROOT) == [], "run `make docs`"


def test_a_stale_page_is_seen_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"], tmp_path) == 1
    assert docs.main([], tmp_path) == 0
    assert docs.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs" / "findings.md"
    page.write_text(page.read_text() + "edited by hand\n")
    assert docs.stale(tmp_path) == ["docs/findings.md"]
    assert docs.main(["--check"], tmp_path) == 1
    assert "docs/findings.md is not current" in capsys.readouterr().out
