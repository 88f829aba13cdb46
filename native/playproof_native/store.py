"""Where machine code is kept between processes, and under which key.

Numba judges a kept function by its own file alone, and chooses a folder of its own where it may not write beside the
source. Ours call each other across files and have tables compiled in; so code is kept here, and *always* below a key of
all that it depends on: the sources, the versions of Numba, llvmlite, NumPy and Python, and the processor.

**Where.** ``PLAYPROOF_CACHE_DIR``; without it the folder ``__pycache__`` of this package, then the user's cache folder.
All of them are read; the first that may be written is written. A folder that another user could have written is not
used: what lies in it is run.

**What.** A file a function and signature: a line that names the format, the BLAKE3 digest of the rest, the rest. A file
that is cut short or damaged is as good as absent, and is written anew. Files appear whole, by renaming.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import blake3

if TYPE_CHECKING:
    from playproof_native.functions import Entry

VARIABLE = "PLAYPROOF_CACHE_DIR"
HEAD = b"playproof machine code 1\n"
DIGEST_BYTES = 32
SUFFIX = ".code"
KEY_DIGITS = 24
# Keys of a room that stay, the newest among them, for whoever goes back and forth between versions. A room has one key
# at a time, whatever its modules are: with one for each, two versions would have driven each other out.
KEYS_MAX = 8
# A look for code that another process may have made meanwhile is worth a system call this often.
LOOK_EVERY_S = 0.25

# The rooms with compiled functions. Whatever they call lies in themselves and in the first two.
BELOW = ("playproof_native", "playproof_spec")
ROOMS = (*BELOW, "playproof_lowering", "playproof_kernel")
LIBRARIES = ("numba", "llvmlite", "numpy")
# Modules of no room whose functions the rooms call: what was registered at a seam.
_registered: set[str] = set()
# Settings of Numba that change the code it makes.
SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "NUMBA_BOUNDSCHECK", "NUMBA_SLP_VECTORIZE")


def candidates() -> list[Path]:
    """Return the folders in which code may be kept, the preferred one first."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return [Path(chosen)]
    return [Path(__file__).parent / "__pycache__", _user_folder() / "playproof"]


def _user_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.devnull)


def _trusted(folder: Path) -> bool:
    """Return whether only this user and root can have written into an existing folder."""
    try:
        found = folder.stat()
    except OSError:
        return False
    if os.name != "posix":
        return True
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWOTH | stat.S_IWGRP)


def _unit(module: str) -> str:
    """Return what shares a key with `module`: its room, or outside of the rooms itself alone."""
    package = module.partition(".")[0]
    return package if package in ROOMS else module


def is_of_a_room(module: str) -> bool:
    """Return whether `module` lies in a room with compiled functions."""
    return module.partition(".")[0] in ROOMS


def depend_on(module: str) -> None:
    """Let the machine code of the rooms depend on what `module` says, which is no part of them."""
    if not is_of_a_room(module) and module not in _registered:
        _registered.add(module)
        key_of.cache_clear()


@cache
def key_of(unit: str) -> str:
    """Return the key below which the machine code of a room, or of a module of no room, is kept: hexadecimal digits."""
    digest = blake3.blake3(_surroundings().encode())
    for name, source in _sources(unit):
        digest.update(name.encode() + b"\0" + len(source).to_bytes(8, "little") + source)
    return digest.hexdigest(KEY_DIGITS // 2)


def _surroundings() -> str:
    """Return what machine code depends on besides the sources, as one text."""
    facts = [f"{library} {_version(library)}" for library in LIBRARIES]
    facts += [sys.implementation.cache_tag or "", platform.machine(), *_processor()]
    facts += [f"{name}={os.environ.get(name, '')}" for name in SETTINGS]
    return "\n".join(facts)


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


def _processor() -> list[str]:
    """Return the instruction sets of this machine's processor, without a compiler's help where the system tells."""
    with contextlib.suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
        wanted = ("model name", "flags", "Features", "CPU part", "isa")
        return [line for line in told.splitlines() if line.split("\t", 1)[0].split(":", 1)[0].strip() in wanted]
    import llvmlite.binding as llvm

    return [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]


def _sources(unit: str) -> Iterator[tuple[str, bytes]]:
    """Give the sources that a function of `unit` may depend on: its own package's, and those of the rooms below."""
    own = unit.partition(".")[0]
    # A module that a tool imports by its path may belong to no package that can be found.
    file = getattr(sys.modules.get(unit), "__file__", None)
    if unit not in ROOMS and file is not None:
        yield unit, Path(file).read_bytes()
    for module in sorted(_registered if own in ROOMS else ()):
        yield module, Path(str(sys.modules[module].__file__)).read_bytes()
    packages = dict.fromkeys((*(BELOW if own in ROOMS else ROOMS), own))
    for package in packages:
        for path, name in _files(package):
            yield name, path.read_bytes()


def _files(package: str) -> Iterator[tuple[Path, str]]:
    """Give the source files of a package, or of a module that is none, with names that no folder changes."""
    loaded = sys.modules.get(package)
    found = getattr(loaded, "__spec__", None) or (find_spec(package) if package != "__main__" else None)
    origin = found.origin if found is not None else getattr(loaded, "__file__", None)
    if origin is None or not Path(origin).is_file():
        return
    root = Path(origin)
    if found is None or not found.submodule_search_locations:
        yield root, package
        return
    for path in sorted(root.parent.rglob("*.py")):
        yield path, f"{package}/{path.relative_to(root.parent).as_posix()}"


def _file(entry: Entry, signature: str) -> str:
    return f"{entry.name}-{blake3.blake3(signature.encode()).hexdigest(8)}{SUFFIX}"


def folders(entry: Entry) -> list[Path]:
    """Return the folders that may hold the code of `entry`, the preferred one first."""
    unit = _unit(entry.marked.function.__module__)
    return [folder / f"{unit}-{key_of(unit)}" for folder in candidates()]


_found: set[tuple[str, str]] = set()
_looked: dict[tuple[str, str], float] = {}


def has(entry: Entry) -> bool:
    """Return whether code of `entry` is kept, for some signature. A "no" holds for a moment, a "yes" for ever."""
    this = (entry.name, str(folders(entry)[0]))
    if this in _found:
        return True
    now = time.monotonic()
    if now - _looked.get(this, -LOOK_EVERY_S) < LOOK_EVERY_S:
        return False
    _looked[this] = now
    for folder in folders(entry):
        if _trusted(folder) and next(folder.glob(f"{_escaped(entry.name)}-*{SUFFIX}"), None) is not None:
            _found.add(this)
            return True
    return False


def _escaped(name: str) -> str:
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in name)


def read(entry: Entry, signature: str) -> bytes | None:
    """Return what is kept of `entry` for `signature`, or None where nothing whole is."""
    for folder in folders(entry):
        if not _trusted(folder):
            continue
        with contextlib.suppress(OSError):
            content = (folder / _file(entry, signature)).read_bytes()
            payload = content[len(HEAD) + DIGEST_BYTES :]
            if content == HEAD + blake3.blake3(payload).digest() + payload:
                return payload
    return None


def write(entry: Entry, signature: str, payload: bytes) -> bool:
    """Keep `payload` in the first folder that takes it, and return whether one did."""
    folder = writable(entry)
    if folder is None:
        return False
    try:
        handle, temporary = tempfile.mkstemp(prefix=".part-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                if os.name == "posix":
                    os.fchmod(handle, 0o644)  # what root has compiled, others may run
                file.write(HEAD + blake3.blake3(payload).digest() + payload)
            os.replace(temporary, folder / _file(entry, signature))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True


def writable(entry: Entry) -> Path | None:
    """Return the folder, made if need be, into which the code of `entry` goes; None when no candidate takes files."""
    for folder in folders(entry):
        try:
            new = not folder.exists()
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            if not _trusted(folder):
                continue
            handle, name = tempfile.mkstemp(prefix=".try-", dir=folder)
            os.close(handle)
            os.unlink(name)
        except OSError:
            continue
        if new:
            _prune(folder)
        return folder
    return None


def _prune(newest: Path) -> None:
    """Remove what has lain longest of the same room's earlier keys, but for a few."""
    same = f"{newest.name.rpartition('-')[0]}-{'[0-9a-f]' * KEY_DIGITS}"
    with contextlib.suppress(OSError):
        others = [folder for folder in newest.parent.glob(same) if folder != newest and folder.is_dir()]
        others.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in others[KEYS_MAX - 1 :]:
            for file in folder.iterdir():
                file.unlink(missing_ok=True)
            folder.rmdir()
