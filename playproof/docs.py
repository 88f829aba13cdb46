"""Regenerate what is made from the law and from real runs: `python -m playproof.docs`, or `--check` to only compare.

Three pages and the JSON Schema are generated whole; in `README.md` the output below each command of a console block
is what the command prints.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from playproof_lowering.formats import readers
from playproof_spec.diagrams import findings_page, spec_readme

import playproof
from playproof.cli import main as run_command
from playproof.schema import configuration_schema

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = re.compile(r"```console\n\$ playproof (?P<arguments>.*)\n(?P<output>(?:.*\n)*?)```")
# What differs from run to run.
WALL = re.compile(r"^replayed in .*$", re.MULTILINE)


def pages(root: Path) -> dict[str, str]:
    """Return each generated page by its path from `root`, the project's root."""
    readers()  # formats declare findings of their own
    readme = (root / "README.md").read_text(encoding="utf-8")
    return {
        "spec/README.md": spec_readme(),
        "docs/findings.md": findings_page(),
        "docs/api.md": api_page(),
        "playproof/configuration.schema.json": schema_page(),
        "README.md": CONSOLE.sub(lambda block: _rerun(block, root), readme),
    }


def schema_page() -> str:
    """Return the JSON Schema of a configuration, as the wheel ships it."""
    return msgspec.json.format(msgspec.json.encode(configuration_schema()), indent=2).decode() + "\n"


def api_page() -> str:
    """Return the page of all public names: what each is, in the first sentence of its docstring."""
    lines = [
        "# The Python interface",
        "",
        "Every name of `playproof`, made from the docstrings by `make docs`; `help(playproof.replay)` has",
        "parameters, units and exceptions. In a notebook `Report`, `ProvenGraph` and `Findings` show tables, and a",
        "`Comparison` its Markdown.",
    ]
    kinds = (("Functions", inspect.isfunction), ("Classes", inspect.isclass))
    for title, is_kind in kinds:
        lines += ["", f"## {title}", "", "| name | what it is |", "|---|---|"]
        for name in playproof.__all__:
            value = getattr(playproof, name)
            if is_kind(value):
                lines.append(f"| `{name}` | {_first_sentence(inspect.getdoc(value) or '')} |")
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]
    plain = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", sentence).replace("``", "`")
    return plain.replace("|", "\\|").rstrip(".")


def _rerun(block: re.Match[str], root: Path) -> str:
    """Return a console block with what its command prints now; figures of this machine's speed stay as they were."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _folder(root):
        run_command(shlex.split(block["arguments"]))
    # Tables are padded with spaces that editors would strip.
    output = re.sub(r" +$", "", printed.getvalue(), flags=re.MULTILINE)
    before = WALL.search(block["output"])
    if before is not None:
        output = WALL.sub(before[0], output)
    return f"```console\n$ playproof {block['arguments']}\n{output}```"


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def stale(root: Path) -> list[str]:
    """Return the pages under `root` that are not what they would be now."""
    return [name for name, text in pages(root).items() if _read(root / name) != text]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the stale pages; with ``--check`` name them and return 1 instead."""
    current = pages(root)
    names = [name for name, text in current.items() if _read(root / name) != text]
    if "--check" in arguments:
        for name in names:
            print(f"{name} is not current: run `python -m playproof.docs`")
        return 1 if names else 0
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(current[name], encoding="utf-8")
        print(f"written {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
