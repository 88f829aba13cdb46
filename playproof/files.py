"""Results as files: written whole or not at all, never beside those of another run; and a report read again."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

# What a run writes into its folder.
REPORT_FILE = "report.json"
LINES_FILES = ("requests.jsonl", "requests.csv", "requests.parquet")
REPORT_SCHEMA = "playproof.report.v1"
# A report beyond that is a defect or an attack.
MAX_REPORT_BYTES = 1 << 30


class _Schema(msgspec.Struct):
    schema: str = ""


def left_by_another_run(folder: Path, written: Collection[str]) -> list[Path]:
    """Return the per-request files in a folder that a new run does not write: beside its report they would lie.

    Parameters
    ----------
    folder : Path
        It need not exist.
    written : collection of str
        The names that the new run writes.

    Raises
    ------
    FileExistsError
        When such a file lies beside no report of ours, so that it is not ours to remove.
    """
    stale = [folder / name for name in LINES_FILES if name not in written and (folder / name).exists()]
    if stale and not _is_report(folder / REPORT_FILE):
        raise FileExistsError(
            errno.EEXIST, "lies there, and no report of a run beside it; move it, or choose another folder", stale[0]
        )
    return stale


def _is_report(path: Path) -> bool:
    with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return msgspec.json.decode(path.read_bytes(), type=_Schema).schema == REPORT_SCHEMA
    return False


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write `chunks` to a temporary file beside `path`, then rename it: nobody ever sees half a file.

    Raises
    ------
    OSError
        When the folder cannot be written; the temporary file is gone then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        # mkstemp makes files that only their owner can read; a report is as readable as any other file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def report_in(path: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the report that a file holds, or None and why it is none; nothing in it is believed yet.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    if path.stat().st_size > MAX_REPORT_BYTES:
        return None, f"the file has more than {MAX_REPORT_BYTES:,} bytes"
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, f"it is no JSON: {error}"
    if not isinstance(value, dict) or value.get("schema") != REPORT_SCHEMA:
        return None, f"it is no {REPORT_SCHEMA}"
    return value, ""
