"""Source files: which ones a corpus has, in what order, and their bytes.

Paths become a deterministic list of regular files; a file is read once, decompressed as it streams, hashed as it is on
disk, and compared with what it was when the reading began. What is wrong with a path or with bytes is a
:class:`SourceError` that carries its finding, so that a reader notes it and goes on with the next file.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import FileIO
from pathlib import Path
from typing import Final

import zstandard
from blake3 import blake3
from playproof_spec.findings import Finding, Findings, Where, finding

from playproof_lowering.leftout import SkipBad

__all__ = ["MAX_FILE_BYTES", "MAX_RECORD_BYTES", "Reading", "Selection", "SourceError", "SourceFile", "collect"]

TRACE_SUFFIXES: Final = (".json", ".jsonl")
COMPRESSIONS: Final = {".gz": "gz", ".zst": "zst"}

# One record is held in memory whole, and what it says besides. The largest play of the public corpus is 10 MB and has
# two million elements; much more is a bomb or a mistake.
MAX_RECORD_BYTES: Final = 2**27
# Commas and opening brackets in one record, in texts too. Behind each there may be an object of 50 to 100 bytes, so
# that a small packed file could take all of the memory.
MAX_ELEMENTS: Final = 2**23
# A packed file may become so much, and beyond that so many times its size: gzip's own bound is 1032, zstd has none.
FREE_EXPANSION_BYTES: Final = 2**26
MAX_EXPANSION: Final = 2**10
# Decompressed. Streaming keeps memory small, so this bounds time: a few minutes of a decompressor that never ends.
MAX_FILE_BYTES: Final = 2**34
CHUNK_BYTES: Final = 2**20
# A zstd block of 4 bytes may stand for 128 KiB, and the decompressor gives out all that its input holds.
ZSTD_SLICE_BYTES: Final = 2**10
MAX_DEPTH_OF_FOLDERS: Final = 64

# How files begin that are packed in another way, or in one that their extension does not say.
_PACKED: Final = (
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
_BOM_UTF8: Final = b"\xef\xbb\xbf"
_BOMS_OTHER: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


class SourceError(Exception):
    """A file that cannot be read on; carries the finding that says why."""

    def __init__(self, item: Finding) -> None:
        super().__init__(str(item))
        self.item = item


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a corpus, as it was when the corpus was listed.

    Attributes
    ----------
    path : Path
        What is opened.
    shown : str
        Path as the user gave it, plus the path within for a directory; what findings say.
    relative : str
        Path within the given directory (the bare name for a file), with ``/``; ids and order derive from it, so that
        moving a corpus changes nothing.
    compression : str
        ``gz``, ``zst`` or empty.
    lines : bool
        One record a line; a plain ``.json`` holds one record.
    size, mtime_ns, inode : int
        For the comparison after reading. `size` in bytes.
    """

    path: Path
    shown: str
    relative: str
    compression: str
    lines: bool
    size: int
    mtime_ns: int
    inode: int


@dataclass(slots=True)
class Selection:
    """Which files of the given folders are read.

    Attributes
    ----------
    exclude : tuple of str
        Patterns (``*``, ``?``, ``[…]``) of files and folders to leave out: of their path within the given folder, or of
        their name.
    follow_links : bool
        Read what a symbolic link leads to.
    ignored, excluded : int
        Counted as files are listed: those whose extension is none of ours, and those that a pattern left out.
    """

    exclude: tuple[str, ...] = ()
    follow_links: bool = False
    ignored: int = 0
    excluded: int = 0

    def leaves_out(self, relative: str) -> bool:
        """Tell whether a pattern leaves out a file or a folder, and count it."""
        name = relative.rpartition("/")[2]
        out = any(fnmatchcase(text, p.rstrip("/")) for p in self.exclude for text in (relative, name))
        self.excluded += out
        return out

    def status(self, path: Path) -> os.stat_result:
        """Return what stands at a path: the link itself, unless links are followed."""
        return path.stat() if self.follow_links else path.lstat()


def collect(
    paths: Sequence[str | os.PathLike[str]], findings: Findings, selection: Selection | None = None
) -> tuple[list[SourceFile], int]:
    """List the trace files behind `paths`.

    Parameters
    ----------
    paths : sequence of paths
        Files (of any name) and directories, which are walked for ``.json`` and ``.jsonl``, plain or with ``.gz`` or
        ``.zst``.
    findings : Findings
        Receives what is wrong: missing paths, symlinks, devices, names that are not text, a file given twice, nothing
        to read.
    selection : Selection, optional
        Which of them; receives counts.

    Returns
    -------
    files : list of SourceFile
        In byte order of the relative paths, whatever the order of `paths`.
    ignored : int
        Files in directories whose extension is none of ours.
    """
    files: list[SourceFile] = []
    chosen = selection or Selection()
    for given in paths:
        path = Path(given)
        shown = os.fspath(given)
        try:
            if stat.S_ISDIR(chosen.status(path).st_mode):
                _walk(path, shown, "", files, findings, chosen, ())
            elif not chosen.leaves_out(path.name):
                files.append(_source_file(path, shown, path.name, chosen))
        except SourceError as error:
            findings.add(error.item)
        except (OSError, ValueError) as error:
            findings.add(_unreadable(shown, error))
    files.sort(key=lambda file: (file.relative.encode("utf-8", "surrogatepass"), file.shown))
    files = _each_once(files, findings)
    if not files and not findings.errors:
        given_names = ", ".join(os.fspath(path) for path in paths)
        others = chosen.ignored + chosen.excluded
        findings.add(
            finding(
                "corpus-empty",
                "no trace file here" + (f" ({others} other files)" if others else ""),
                where=Where(file=given_names),
                found="no file",
                wanted="at least one .json or .jsonl file (.gz and .zst too)",
            )
        )
    return files, chosen.ignored


def _walk(
    folder: Path,
    shown: str,
    within: str,
    files: list[SourceFile],
    findings: Findings,
    chosen: Selection,
    above: tuple[tuple[int, int], ...],
) -> None:
    """Append the trace files under `folder`, which lies in the folders `above` (device and inode of each)."""
    status = chosen.status(folder)
    own = (status.st_dev, status.st_ino)
    if own in above:
        message = "the link leads to a folder that it lies in"
        raise SourceError(finding("path-symlink", message, where=Where(file=shown), found="a circle of folders"))
    if len(above) > MAX_DEPTH_OF_FOLDERS:
        raise SourceError(
            finding(
                "file-unreadable",
                f"folders nested deeper than {MAX_DEPTH_OF_FOLDERS} are not walked",
                where=Where(file=shown),
            )
        )
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = folder / name
        relative = f"{within}{name}"
        place = f"{shown.rstrip('/')}/{name}"
        if chosen.leaves_out(relative):
            continue
        try:
            mode = chosen.status(path).st_mode
            if stat.S_ISDIR(mode):
                _walk(path, place, f"{relative}/", files, findings, chosen, (*above, own))
            elif stat.S_ISREG(mode) and not _is_trace_name(name):
                chosen.ignored += 1
            else:
                files.append(_source_file(path, place, relative, chosen))
        except SourceError as error:
            findings.add(error.item)
        except OSError as error:
            findings.add(_unreadable(place, error))


def _is_trace_name(name: str) -> bool:
    return _split_compression(name.lower())[0].endswith(TRACE_SUFFIXES)


def _split_compression(name: str) -> tuple[str, str]:
    for suffix, compression in COMPRESSIONS.items():
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], compression
    return name, ""


def _source_file(path: Path, shown: str, relative: str, chosen: Selection) -> SourceFile:
    """Describe one file, or refuse what is not a regular file with a readable name."""
    status = chosen.status(path)
    try:
        relative.encode("utf-8")
    except UnicodeEncodeError:
        raise SourceError(
            finding(
                "path-not-text",
                "the file's name is not valid UTF-8",
                where=Where(file=ascii(shown)),
                found=ascii(relative),
            )
        ) from None
    if stat.S_ISLNK(status.st_mode):
        raise SourceError(
            finding(
                "path-symlink",
                "symbolic links are not followed",
                where=Where(file=shown),
                found=f"link to {os.readlink(path)}",
                wanted="a regular file",
            )
        )
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(
            finding(
                "path-special",
                "this is neither a file nor a folder",
                where=Where(file=shown),
                found=stat.filemode(status.st_mode),
                wanted="a regular file",
            )
        )
    stem, compression = _split_compression(path.name)
    return SourceFile(
        # Links that are followed are followed once; what is opened is the file itself.
        path=Path(os.path.realpath(path)) if chosen.follow_links else path,
        shown=shown,
        relative=relative,
        compression=compression,
        lines=not stem.lower().endswith(".json"),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
    )


def _unreadable(shown: str, error: OSError | ValueError) -> Finding:
    code = "path-missing" if isinstance(error, FileNotFoundError) else "file-unreadable"
    return finding(
        code, "cannot be read", where=Where(file=shown), found=getattr(error, "strerror", None) or str(error)
    )


def _each_once(files: list[SourceFile], findings: Findings) -> list[SourceFile]:
    """Return the files without those that stand before in the list under another path."""
    seen: dict[str, SourceFile] = {}
    kept = []
    for file in files:
        first = seen.setdefault(os.path.realpath(file.path), file)
        if first is file:
            kept.append(file)
            continue
        message = f"the same file as {first.shown}"
        findings.add(finding("path-twice", message, where=Where(file=file.shown), found="given twice"))
    return kept


class Reading:
    """One pass over one file.

    Parameters
    ----------
    file : SourceFile
    on_bytes : callable, optional
        Told the number of bytes just taken from the disk.

    Attributes
    ----------
    digest : str
        BLAKE3 of the bytes on disk, once the pass is over.
    unterminated : int
        The number of the last line, if it has no line break; else 0.
    """

    __slots__ = ("_consumed", "_hasher", "_on_bytes", "_produced", "digest", "file", "unterminated")

    def __init__(self, file: SourceFile, on_bytes: Callable[[int], None] | None = None) -> None:
        self.file = file
        self.digest = ""
        self.unterminated = 0
        self._hasher = blake3()
        self._on_bytes = on_bytes
        self._consumed = self._produced = 0

    def whole(self) -> bytes:
        """Return the decompressed content.

        Raises
        ------
        SourceError
            Unreadable, changed, truncated or corrupt, too large, not UTF-8, or empty.
        """
        parts: list[bytes] = []
        held = 0
        for chunk in self.chunks():
            parts.append(chunk)
            held += len(chunk)
            self._refuse_large(held, MAX_RECORD_BYTES, "one record")
        record = parts[0] if len(parts) == 1 else b"".join(parts)
        self._refuse_crowded(record)
        return record

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1-based line, bytes) for each line that is not blank.

        Raises
        ------
        SourceError
            As :meth:`whole`; lines before the damage have been yielded by then.
        """
        held: list[bytes] = []
        held_bytes = 0
        line = 1
        for chunk in self.chunks():
            begin = 0
            while (end := chunk.find(b"\n", begin)) >= 0:
                record = chunk[begin:end]
                if held:
                    held.append(record)
                    record = b"".join(held)
                    held.clear()
                    held_bytes = 0
                if record and not record.isspace():
                    self._refuse_crowded(record, line)
                    yield line, record
                line += 1
                begin = end + 1
            if begin < len(chunk):
                held.append(chunk[begin:])
                held_bytes += len(chunk) - begin
                self._refuse_large(held_bytes, MAX_RECORD_BYTES, "one line", line)
        record = b"".join(held)
        if record and not record.isspace():
            self.unterminated = line
            self._refuse_crowded(record, line)
            yield line, record

    def placed(self) -> Iterator[tuple[Where, bytes]]:
        """Yield each record with where it stands: the lines that are not blank, or the whole file.

        Raises
        ------
        SourceError
            As :meth:`whole`, and when all lines are blank.
        """
        shown = self.file.shown
        if not self.file.lines:
            yield Where(file=shown), self.whole()
            return
        blank = True
        for line, record in self.records():
            blank = False
            yield Where(file=shown, line=line), record
        if blank:
            raise SourceError(finding("file-empty", "the file has blank lines only", where=Where(file=shown)))

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed content in pieces, checking encoding at its head and the file at its end.

        Raises
        ------
        SourceError
            As :meth:`whole`.
        """
        where = Where(file=self.file.shown)
        with self._opened() as raw:
            self._refuse_changed(os.fstat(raw.fileno()))
            first = True
            for chunk in self._decompressed(self._raw_chunks(raw)):
                if first:
                    self._refuse_encoding(chunk)
                    first = False
                self._produced += len(chunk)
                self._refuse_large(self._produced, MAX_FILE_BYTES, "the file")
                self._refuse_expanded()
                yield chunk
            self._refuse_changed(os.fstat(raw.fileno()))
        if first:
            raise SourceError(
                finding("file-empty", "the file is empty", where=where, found="0 bytes", wanted="a trace")
            )
        try:
            self._refuse_changed(self.file.path.lstat())
        except OSError as error:
            raise SourceError(_unreadable(self.file.shown, error)) from None
        self.digest = self._hasher.hexdigest()

    def head(self, size: int) -> bytes:
        """Return up to `size` bytes from the start of the content, for a look at the format.

        Raises
        ------
        SourceError
            As :meth:`whole`, for what shows at the start.
        """
        parts = b""
        with self._opened() as raw:
            pieces = iter(lambda: raw.read(size), b"")
            for chunk in self._decompressed(pieces):
                parts += chunk
                if len(parts) >= size:
                    break
        if not parts:
            raise SourceError(
                finding(
                    "file-empty",
                    "the file is empty",
                    where=Where(file=self.file.shown),
                    found="0 bytes",
                    wanted="a trace",
                )
            )
        self._refuse_encoding(parts)
        return parts[:size]

    def _opened(self) -> FileIO:
        """Open the file itself: no link that took its place, and no waiting for a pipe that did."""
        try:
            descriptor = os.open(self.file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(_unreadable(self.file.shown, error)) from None
        return open(descriptor, "rb", buffering=0)

    def _raw_chunks(self, raw: FileIO) -> Iterator[bytes]:
        # A plain file of one record comes in one piece; anything else streams.
        piecewise = self.file.lines or self.file.compression or self.file.size > MAX_RECORD_BYTES
        step = CHUNK_BYTES if piecewise else self.file.size + 1
        while True:
            try:
                chunk = raw.read(step)
            except OSError as error:
                raise SourceError(_unreadable(self.file.shown, error)) from None
            if not chunk:
                return
            self._hasher.update(chunk)
            self._consumed += len(chunk)
            if self._on_bytes is not None:
                self._on_bytes(len(chunk))
            yield chunk

    def _decompressed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        if not self.file.compression:
            yield from chunks
            return
        decompress = _gunzip if self.file.compression == "gz" else _unzstd
        try:
            yield from decompress(chunks)
        except (zlib.error, zstandard.ZstdError, EOFError) as error:
            raise SourceError(
                finding(
                    "compression-broken",
                    f"the {self.file.compression} stream is truncated or damaged after {self._produced} bytes",
                    where=Where(file=self.file.shown),
                    found=str(error),
                    wanted="a whole stream",
                )
            ) from None

    def _refuse_changed(self, now: os.stat_result) -> None:
        then = (self.file.size, self.file.mtime_ns, self.file.inode)
        if (now.st_size, now.st_mtime_ns, now.st_ino) != then:
            raise SourceError(
                finding(
                    "file-changed",
                    "the file changed while the corpus was read",
                    where=Where(file=self.file.shown),
                    found=f"{now.st_size} bytes now",
                    wanted=f"{self.file.size} bytes, unchanged since the reading began",
                )
            )

    def _refuse_large(self, size: int, limit: int, what: str, line: int = 0) -> None:
        if size > limit:
            raise SourceError(
                finding(
                    "file-too-large",
                    f"{what} is larger than {limit} bytes",
                    where=Where(file=self.file.shown, line=line),
                    found=f"more than {limit} bytes",
                )
            )

    def _refuse_expanded(self) -> None:
        if self._produced > max(FREE_EXPANSION_BYTES, MAX_EXPANSION * self._consumed) and self.file.compression:
            raise SourceError(
                finding(
                    "file-too-large",
                    f"the file unpacks to more than {MAX_EXPANSION} times its size",
                    where=Where(file=self.file.shown),
                    found=f"{self._produced} bytes of {self._consumed}",
                    wanted=f"at most {MAX_EXPANSION} times, or {FREE_EXPANSION_BYTES} bytes",
                    hint="Unpack it if that is what it has to hold.",
                )
            )

    def _refuse_crowded(self, record: bytes, line: int = 0) -> None:
        """Refuse a record of too many elements before it is decoded. One has at least a byte, so few are looked at."""
        if len(record) <= MAX_ELEMENTS:
            return
        elements = record.count(b",") + record.count(b"[") + record.count(b"{")
        if elements > MAX_ELEMENTS:
            raise SourceError(
                finding(
                    "file-too-large",
                    f"one record has more than {MAX_ELEMENTS} elements",
                    where=Where(file=self.file.shown, line=line),
                    found=f"{elements} elements in {len(record)} bytes",
                    wanted=f"at most {MAX_ELEMENTS}",
                )
            )

    def _refuse_encoding(self, head: bytes) -> None:
        where = Where(file=self.file.shown)
        for mark, kind in _PACKED:
            if head.startswith(mark):
                raise SourceError(
                    finding(
                        "compression-unknown",
                        f"the content is {kind}",
                        where=where,
                        found=kind,
                        wanted="plain text, or .gz or .zst by its extension",
                    )
                )
        if head.startswith(_BOM_UTF8):
            raise SourceError(
                finding(
                    "encoding-bom",
                    "the file starts with a byte order mark",
                    where=where,
                    found="EF BB BF",
                    wanted="UTF-8 without a mark",
                )
            )
        # JSON text has no NUL byte, while UTF-16 and UTF-32 have one beside each ASCII character.
        if head.startswith(_BOMS_OTHER) or b"\0" in head[:4]:
            raise SourceError(
                finding(
                    "encoding-not-utf8",
                    "the file is not UTF-8",
                    where=where,
                    found=head[:4].hex(" ").upper(),
                    wanted="UTF-8",
                )
            )


def read_through(
    file: SourceFile,
    read: Callable[[Reading], None],
    findings: Findings,
    on_bytes: Callable[[int], None] | None = None,
) -> tuple[str, str]:
    """Let `read` make one pass over a file; where it cannot be read on, that is a finding.

    Returns
    -------
    name, digest : str
        For :func:`~playproof_lowering.provenance.corpus_digest`: the relative path, and the digest of the bytes, which
        is empty when the pass did not come to the end.
    """
    reading = Reading(file, on_bytes)
    try:
        read(reading)
    except SourceError as error:
        findings.add(error.item)
    except MemoryError:
        message = "there is not enough memory to read this file"
        findings.add(finding("file-too-large", message, where=Where(file=file.shown), found=f"{file.size} bytes"))
    if isinstance(findings, SkipBad) and reading.unterminated:
        findings.ended_unterminated(file.shown, reading.unterminated)
    return file.relative, reading.digest


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress gzip members one after the other, in bounded pieces."""
    engine = zlib.decompressobj(wbits=31)
    fed = False
    for chunk in chunks:
        rest = chunk
        while rest:
            if engine.eof:
                engine = zlib.decompressobj(wbits=31)
                fed = False
            piece = engine.decompress(rest, CHUNK_BYTES)
            fed = True
            rest = engine.unused_data if engine.eof else engine.unconsumed_tail
            if piece:
                yield piece
    while not engine.eof and (piece := engine.decompress(b"", CHUNK_BYTES)):
        yield piece
    if fed and not engine.eof:
        raise EOFError("the stream ends in the middle")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress zstd frames one after the other, in bounded pieces."""
    engine = _zstd_frame()
    fed = False
    for chunk in chunks:
        for begin in range(0, len(chunk), ZSTD_SLICE_BYTES):
            rest = chunk[begin : begin + ZSTD_SLICE_BYTES]
            while rest:
                if engine.eof:
                    engine = _zstd_frame()
                piece = engine.decompress(rest)
                fed = True
                rest = engine.unused_data if engine.eof else b""
                if piece:
                    yield piece
    if fed and not engine.eof:
        raise EOFError("the stream ends in the middle")


def _zstd_frame() -> zstandard.ZstdDecompressionObj:
    # 2**27 is the window that the zstd tool itself accepts without being asked for more.
    return zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
