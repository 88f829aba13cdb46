"""Machine code on demand: loaded where it is kept, compiled and kept where it is not. Only here is Numba imported.

Two processes that want the same code do not both make it: whoever compiles holds a lock beside the kept code, and the
others wait and then load. The system drops the lock of a process that ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import numba
from numba.core import types
from numba.core.compiler import Compiler, CompileResult, compile_result
from numba.core.registry import CPUDispatcher

from playproof_native import bundles, functions, linking, notices, store
from playproof_native.functions import Entry, Interpreted, Marked
from playproof_native.seams import Door

# How long a process waits for another's code before it compiles the same itself; a kernel takes about two minutes.
WAIT_VARIABLE = "PLAYPROOF_COMPILE_WAIT"
WAIT_S = 900.0

# No fast-math: compiled and interpreted code would differ.
_OPTIONS = {"nopython": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "boundscheck": None}

# Called with the name of each entry that this process begins to compile; `playproof warm` shows them.
compiling: list[Callable[[str], None]] = []

_prepared = 0
_bundles = 0
_types: list[Any] = []  # Numba's types refer to dispatchers weakly
_preparing = threading.Lock()


def call(entry: Entry, arguments: tuple[Any, ...]) -> Any:
    """Call `entry` compiled."""
    if entry.dispatcher is None:
        _make_ready(entry)
    try:
        return entry.dispatcher(*arguments)
    finally:
        _release(entry)


def type_of(entry: Entry | Door | Interpreted) -> Any:
    """Return Numba's type of `entry` for other compiled functions that call it: of the same function as a callee."""
    with _preparing:
        if entry.callee is None:
            entry.callee = _dispatcher(entry.marked, entry=False)
        return types.Dispatcher(entry.callee)


def _make_ready(entry: Entry) -> None:
    with _preparing:
        _register_bundles()
        if entry.dispatcher is None:
            dispatcher = _dispatcher(entry.marked, entry=True)
            dispatcher._cache = _Kept(entry)
            entry.dispatcher = dispatcher


def _register_bundles() -> None:
    global _bundles
    for bundle in functions.BUNDLES[_bundles:]:
        bundles.register(bundle)
    _bundles = len(functions.BUNDLES)


def _prepare_callees() -> None:
    """Let Numba see the marked functions, of which it knows nothing while kept code is all that is wanted."""
    global _prepared
    with _preparing:
        for marked in functions.MARKED[_prepared:]:
            dispatcher = _dispatcher(marked, entry=False)
            _types.append(dispatcher)
            marked.function._numba_type_ = types.Dispatcher(dispatcher)  # type: ignore[attr-defined]
        _prepared = len(functions.MARKED)


def _dispatcher(marked: Marked, *, entry: bool) -> Any:
    # Numba's runtime is left out where no array is made: see `Marked`.
    options = {**_OPTIONS, "_nrt": marked.allocates, "no_cpython_wrapper": not entry}
    pipeline: Any = Compiler
    if linking.works():
        pipeline = linking.EntryPipeline if entry else linking.CalleePipeline
    return CPUDispatcher(py_func=marked.function, locals={}, targetoptions=options, pipeline_class=pipeline)


class _Kept:
    """The code of one entry as Numba's dispatcher asks for it and gives it."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.lock: contextlib.ExitStack | None = None

    @property
    def cache_path(self) -> str:
        return str(store.folders(self.entry)[0])

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return kept code; without any, come back as the one who is to compile it."""
        found = self._read(signature, target)
        if found is not None:
            return found
        self.lock = contextlib.ExitStack()
        self.lock.enter_context(_alone(self.entry))
        # Another process may have made it since: while this one waited, or just before it took the lock.
        found = self._read(signature, target)
        if found is not None:
            self.release()
            return found
        for told in compiling:
            told(self.entry.name)
        self.lock.enter_context(notices.patience(COMPILING))
        _prepare_callees()
        return None

    def _read(self, signature: Any, target: Any) -> Any:
        payload = store.read(self.entry, str(signature))
        return None if payload is None else _rebuilt(target, pickle.loads(payload))

    def save_overload(self, signature: Any, result: CompileResult) -> None:
        if not store.write(self.entry, str(signature), pickle.dumps(_reduced(result))):
            folders = ", ".join(str(folder) for folder in store.candidates())
            notices.say(
                f"compiled code cannot be kept, so each run compiles anew: none of {folders} takes files "
                f"({store.VARIABLE} names another folder)"
            )
        self.release()

    def release(self) -> None:
        """Let other processes compile."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None


COMPILING = "compiling for this machine, once (one to two minutes for the kernel); the code is kept"


def _release(entry: Entry) -> None:
    """Drop the lock that a compilation holds which failed."""
    kept = entry.dispatcher._cache
    if isinstance(kept, _Kept):
        kept.release()


@contextlib.contextmanager
def _alone(entry: Entry) -> Iterator[None]:
    """Hold the lock on compiling code of this module, while others may compile that of other modules.

    Where no lock can be had, because nothing is writable or the other takes too long, the body runs without.
    """
    folder = store.writable(entry)
    if folder is None:
        yield
        return
    lock = filelock.FileLock(folder / f"{entry.marked.function.__module__}.lock", thread_local=False, is_singleton=True)
    try:
        _acquire(lock, folder)
    except OSError:  # a file system without locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: Any, folder: Path) -> None:
    with contextlib.suppress(filelock.Timeout):
        lock.acquire(timeout=0)
        return
    seconds = wait_s()
    with notices.patience(f"waiting for another process that compiles the same code (for {seconds:g} s at most)", 1.0):
        try:
            lock.acquire(timeout=seconds)
        except filelock.Timeout:
            notices.say(f"another process has compiled for {seconds:g} s; compiling the same code here ({folder})")


def wait_s() -> float:
    """Return how many seconds to wait for another process's code."""
    with contextlib.suppress(ValueError):
        seconds = float(os.environ.get(WAIT_VARIABLE, ""))
        if 0 <= seconds < float("inf"):
            return seconds
    return WAIT_S


def _reduced(result: Any) -> tuple[Any, ...]:
    """Return what of a compiled entry is kept: its object code, what it defines, and how Python calls it."""
    library = result.library
    environments = tuple(result._find_referenced_environments())
    description = result.fndesc
    description.typemap = description.calltypes = None  # of the compilation, and not to be pickled
    defined = [item.name for item in library._final_module.functions if not item.is_declaration]
    defined += [item.name for item in library._final_module.global_variables if not item.is_declaration]
    return (
        library.name,
        library._get_compiled_object(),
        defined,
        description,
        result.environment,
        result.signature,
        result.reload_init,
        environments,
    )


def _rebuilt(target: Any, reduced: tuple[Any, ...]) -> Any:
    """Return a compile result from what was kept of it; its code is for Python to call, not to be linked again."""
    name, code, defined, description, environment, signature, reload_init, environments = reduced
    target.refresh()  # the symbols of Numba's runtime, to which the code refers
    for reload in reload_init or ():
        reload()
    library = target.codegen().create_library(name)
    library.enable_object_caching()
    library._set_compiled_object(code)
    library._finalize_final_module()
    library._codegen._engine._defined_symbols.update(defined)
    result = compile_result(
        typing_context=target.typing_context,
        target_context=target,
        entry_point=target.get_executable(library, description, environment),
        type_annotation="",
        signature=signature,
        objectmode=False,
        lifted=(),
        fndesc=description,
        library=library,
        environment=environment,
        reload_init=reload_init,
        referenced_envs=environments,
    )
    for item in environments:
        library.codegen.set_env(item.env_name, item)
    return result


def numba_version() -> str:
    """Return the version of Numba, and whether it is one that the tests run with."""
    return str(numba.__version__) + ("" if linking.works() else " (not tested)")
