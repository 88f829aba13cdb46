"""Standard input as a file of the corpus: it is read once, to a temporary file, and then read as any other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO, Final

from playproof_spec.findings import Where, finding

from playproof_lowering.source import CHUNK_BYTES, MAX_FILE_BYTES, Reading, SourceError, SourceFile

__all__ = ["NAME", "spooled"]

# The path that stands for it.
NAME: Final = "-"
SHOWN: Final = "<stdin>"
_MAGIC: Final = ((b"\x1f\x8b", "gz"), (b"\x28\xb5\x2f\xfd", "zst"))
_HEAD_BYTES: Final = 2**16


def spooled(folder: Path, stream: BinaryIO | None = None) -> SourceFile:
    """Copy standard input to a file in `folder` and describe it.

    Parameters
    ----------
    folder : Path
        Somewhere that is removed when the reading is over.
    stream : binary file, optional
        Standard input.

    Notes
    -----
    It has no name that could tell how it is packed, so its first bytes do; and it is one record a line, unless its
    first line is the beginning of a record that goes on below.

    Raises
    ------
    SourceError
        When it holds more than a file may.
    """
    source = sys.stdin.buffer if stream is None else stream
    path = folder / "stdin"
    size = 0
    with path.open("wb") as target:
        while chunk := source.read(CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                message = f"standard input is larger than {MAX_FILE_BYTES} bytes"
                raise SourceError(finding("file-too-large", message, where=Where(file=SHOWN)))
            target.write(chunk)
    status = path.stat()
    with path.open("rb") as copied:
        start = copied.read(4)
    compression = next((name for magic, name in _MAGIC if start.startswith(magic)), "")

    def described(lines: bool) -> SourceFile:
        return SourceFile(path, SHOWN, "stdin", compression, lines, status.st_size, status.st_mtime_ns, status.st_ino)

    try:
        head = Reading(described(lines=True)).head(_HEAD_BYTES)
    except SourceError:
        # Whatever is wrong is told when it is read.
        return described(lines=True)
    first = head.lstrip().split(b"\n", 1)[0].rstrip()
    return described(lines=not first.endswith((b"{", b"[", b",", b":")))
