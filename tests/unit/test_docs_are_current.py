"""The generated pages and the README's console blocks are what the tables, the catalogue and the commands say now."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from playproof import docs

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_current() -> None:
    assert docs.stale(ROOT) == [], "run `make docs`"


def test_a_stale_page_is_seen_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    readme = (ROOT / "README.md").read_text()
    (tmp_path / "README.md").write_text(readme.replace("edge-dangling", "edge-dangly"))
    assert docs.stale(tmp_path) == [
        "spec/README.md",
        "docs/findings.md",
        "docs/api.md",
        "playproof/configuration.schema.json",
        "README.md",
    ]
    assert docs.main([], tmp_path) == 0
    assert docs.main(["--check"], tmp_path) == 0
    assert (tmp_path / "README.md").read_text() == readme
    page = tmp_path / "docs" / "findings.md"
    page.write_text(page.read_text() + "edited by hand\n")
    assert docs.main(["--check"], tmp_path) == 1
    assert "docs/findings.md is not current" in capsys.readouterr().out


def test_the_readme_shows_a_finding_and_a_report() -> None:
    blocks = docs.CONSOLE.findall((ROOT / "README.md").read_text())
    assert [arguments.split()[0] for arguments, _ in blocks] == ["validate", "replay"]
    assert "error cycle" in blocks[0][1]
    assert "plays completed" in blocks[1][1]


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert sorted(path.name for path in (tmp_path / "out" / "api").iterdir()) == ["report.json", "requests.jsonl"]


def test_every_link_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
