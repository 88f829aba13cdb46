"""Linking once for each entry, in place of once for each function.

Numba links every function with all of its callees, and optimises and emits the whole; of a program of four hundred
functions that call each other that is four hundred programs. Only entries are ever run from Python. So a callee stays
what the compiler's front made of it, intermediate code, and an entry takes in all that it reaches, once.

This works on the two pieces of Numba that a compilation is given from outside, its pipeline and its library, and
changes nothing of Numba itself. It leans on their inner names all the same; so it is used with the versions that the
tests run with (`TESTED`), and with others Numba compiles in its own, slower way, to the same results.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

# The oldest and the newest release that the tests run with, without the patch number.
TESTED = ((0, 61), (0, 68))

# A callee is never called through the pointer that Numba wants of each function; it has to be some function's.
_SOME_POINTER = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value


def works() -> bool:
    """Return whether this Numba is one that the tests run with."""
    return TESTED[0] <= numba.version_info.short <= TESTED[1]


class _Remembering:
    """The code generator as a callee sees it: the callee's environment is set when an entry has taken it in."""

    def __init__(self, codegen: Any, library: _Callee) -> None:
        self._codegen = codegen
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        self._library.environments.append((name, environment))


class _Callee(JITCodeLibrary):
    """The code of a function that is only ever a part of an entry's."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.environments: list[tuple[str, Any]] = []

    @property
    def codegen(self) -> Any:
        return _Remembering(self._codegen, self)

    def finalize(self) -> None:
        self._raise_if_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and str(function.linkage) == "Linkage.external":
                function.linkage = "linkonce_odr"
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> Any:
        self._ensure_finalized()
        return _SOME_POINTER


class _Entry(JITCodeLibrary):
    """The code of an entry, with that of everything it reaches."""

    def finalize(self) -> None:
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        callees: list[_Callee] = []
        for library in _reached(self):
            if hasattr(library, "_reload_init"):  # not in the oldest release
                self._reload_init.update(library._reload_init)
            if isinstance(library, _Callee):
                callees.append(library)
                self._final_module.link_in(library._final_module, preserve=True)
            else:
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()
        for callee in callees:
            for name, environment in callee.environments:
                if self._codegen._engine.is_symbol_defined(name):
                    self._codegen.set_env(name, environment)


def _reached(entry: _Entry) -> list[Any]:
    """Return the libraries that `entry` reaches, callers before callees, in an order that only the code decides."""
    order: list[Any] = []
    seen: set[int] = set()

    def visit(library: Any) -> None:
        for callee in library._linking_libraries:
            if id(callee) not in seen:
                seen.add(id(callee))
                if isinstance(callee, _Callee):
                    visit(callee)
                order.append(callee)

    visit(entry)
    return order[::-1]


class CalleePipeline(Compiler):
    """Compiles a function into intermediate code that entries take in."""

    def compile_extra(self, func: Any) -> Any:
        self.state.library = _Callee(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class EntryPipeline(Compiler):
    """Compiles an entry, and links, optimises and emits it with all that it reaches."""

    def compile_extra(self, func: Any) -> Any:
        self.state.library = _Entry(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(func)
