"""`playproof init`, `schema` and `demo`: to begin with."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from playproof.files import write_whole
from playproof.terminal import out, print_json, print_text

# Where a checkout has what a wheel has beside the package.
_CHECKOUT = Path(__file__).resolve().parents[2] / "examples"
_EXAMPLES = ("weka", "v2", "broken", "deployment.yaml", "disaggregated.yaml", "README.md")


def init(
    traces: Annotated[list[Path] | None, typer.Argument(help="Traces that it names.", show_default="traces")] = None,
    out_file: Annotated[Path, typer.Option("--out", help="The file to write; - prints it.")] = Path("playproof.yaml"),
    disaggregated: Annotated[bool, typer.Option("--disaggregated", help="Prefill and decode workers.")] = False,
    sglang: Annotated[bool, typer.Option("--sglang", help="SGLang's scheduler and cache, not vLLM's.")] = False,
    ordinary: Annotated[bool, typer.Option("--ordinary", help="Sessions of turns, not agents' plays.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a commented configuration to begin with."""
    from playproof.starting import configuration

    printed = str(out_file) == "-"
    folder = Path() if printed else out_file.parent
    named = [json.dumps(os.path.relpath(path, folder), ensure_ascii=False) for path in traces or ()]
    text = configuration(
        disaggregated=disaggregated, sglang=sglang, ordinary=ordinary, paths=", ".join(named) or "traces"
    )
    if printed:
        print_text(text)
        return
    if out_file.exists() and not force:
        raise FileExistsError(errno.EEXIST, "exists; --force writes over it, --out names another", str(out_file))
    write_whole(out_file, [text.encode()])
    following = shlex.join(["playproof", "replay", "--config", str(out_file)])
    out.print(f"written {out_file}; next: {following}", markup=False)


def schema() -> None:
    """Print the JSON Schema of a configuration, which editors complete and check it by."""
    from playproof.schema import configuration_schema

    print_json(configuration_schema())


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the examples and the report.")] = Path(
        "playproof-demo"
    ),
) -> None:
    """Validate and replay the bundled corpus; its files are copied, to be changed and replayed again."""
    from playproof.cli import main

    examples = folder / "examples"
    copy_examples(examples)
    steps = (
        ["validate", str(examples / "weka")],
        [
            *("replay", "--config", str(examples / "deployment.yaml")),
            *("--out", str(folder / "report"), "--per-request"),
        ],
    )
    for step in steps:
        out.print(f"\n$ playproof {shlex.join(step)}", markup=False, style="bold")
        code = main(step)
        if code:
            raise typer.Exit(code)
    out.print("\nNext: change a setting, and see what it changes:", markup=False)
    report, one = str(folder / "report"), str(folder / "one")
    again = ["replay", "--config", str(examples / "deployment.yaml"), "--workers", "1", "--out", one, "--per-request"]
    for command in (again, ["compare", report, one]):
        out.print(f"  playproof {shlex.join(command)}", markup=False)


def copy_examples(folder: Path) -> None:
    """Copy the examples that come with the package into a folder; what is there already stays.

    Raises
    ------
    OSError
        When they cannot be written.
    """
    bundled = Path(str(files("playproof"))) / "examples"
    source = bundled if bundled.is_dir() else _CHECKOUT
    folder.mkdir(parents=True, exist_ok=True)
    for name in _EXAMPLES:
        for path in sorted((source / name).rglob("*")) if (source / name).is_dir() else [source / name]:
            target = folder / path.relative_to(source)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
