"""Regenerate the pages that are made from the law: `python -m playproof.docs`, or `--check` to only compare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from playproof_spec.diagrams import findings_page, spec_readme

ROOT = Path(__file__).resolve().parent.parent


def pages() -> dict[str, str]:
    """Return each generated page by its path from the project's root."""
    return {"spec/README.md": spec_readme(), "docs/findings.md": findings_page()}


def stale(root: Path) -> list[str]:
    """Return the pages under `root` that are not what the law says now."""
    return [
        name
        for name, text in pages().items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the stale pages; with ``--check`` name them and return 1 instead."""
    names = stale(root)
    if "--check" in arguments:
        for name in names:
            print(f"{name} is not current: run `python -m playproof.docs`")
        return 1 if names else 0
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(pages()[name], encoding="utf-8")
        print(f"written {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
