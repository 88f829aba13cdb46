"""Reads the kernel's source: which function writes which array of a run, under whatever name it has it.

A function writes a field of `Sim` when it, or a function that it calls, assigns to an element, a slice or a column of
it, or calls a method that writes in place. Names are followed: ``record = sim.workers[worker]`` is `workers`, an
argument is what the caller gives, and a bundle such as `Pool` is what the function that makes it puts into it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

import playproof_kernel
from playproof_kernel.ground.arrays import Sim

KERNEL = Path(playproof_kernel.__file__).parent
WRITING_METHODS = {"fill", "put", "itemset", "sort", "partition"}
# Tools that write what they are given: whoever gives it to them writes it.
TOOLS = "ground"
# An array: a field of the run's arrays, or a parameter with the attribute of it, if any.
Target = tuple[str, str]
# An array that is written, and the room that does so; empty while only tools are known to.
Write = tuple[str, str, str]


@dataclass
class Function:
    """What is known of one function: its parameters, what it writes itself, and whom it calls with what."""

    room: str
    name: str
    parameters: list[str]
    writes: set[Write] = field(default_factory=set)
    calls: list[tuple[str, list[Target | None]]] = field(default_factory=list)
    # Of a function that returns a bundle: which array each of its fields is.
    makes: dict[str, Target] = field(default_factory=dict)


class _Reader(ast.NodeVisitor):
    def __init__(
        self, function: Function, bundles: dict[str, list[str]], module: str, imported: dict[str, str]
    ) -> None:
        self.function = function
        self.bundles = bundles
        self.module, self.imported = module, imported
        self.names: dict[str, Target] = {}
        for parameter in function.parameters:
            self.names[parameter] = ("parameter", parameter)

    def target(self, node: ast.expr) -> Target | None:
        """Return which array an expression is, or is a part of."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Subscript):
            return self.target(node.value)
        if isinstance(node, ast.Attribute):
            base = self.target(node.value)
            if base is None:
                return None
            kind, name = base
            if kind == "parameter" and "." not in name:
                if name == "sim":
                    return ("sim", node.attr) if node.attr in Sim._fields else None
                return (kind, f"{name}.{node.attr}")
            return base
        if isinstance(node, ast.Call):
            called = self.called(node)
            if called is not None:
                return ("made", called)
        return None

    def called(self, node: ast.Call) -> str | None:
        """Return module and name of what is called: a plain name is of this module, or imported into it."""
        if isinstance(node.func, ast.Name):
            return f"{self.imported.get(node.func.id, self.module)}.{node.func.id}"
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            return f"{node.func.value.id}.{node.func.attr}"
        return None

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            values = (
                node.value.elts if isinstance(node.value, ast.Tuple) and len(parts) > 1 else [node.value] * len(parts)
            )
            for part, value in zip(parts, values, strict=False):
                self._assign(part, value)

    def _assign(self, part: ast.expr, value: ast.expr) -> None:
        if isinstance(part, ast.Name):
            known = (
                self.target(value) if isinstance(value, ast.Subscript | ast.Attribute | ast.Call | ast.Name) else None
            )
            if known is not None:
                self.names[part.id] = known
            return
        self._written(part)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            self._written(node.target)

    def _written(self, node: ast.expr) -> None:
        if isinstance(node, ast.Subscript | ast.Attribute):
            # The outermost attribute of a record is a column, not another array.
            written = self.target(node.value) if isinstance(node, ast.Attribute) else self.target(node)
            self._note(written)

    def _note(self, written: Target | None) -> None:
        if written is not None and written[0] != "made":
            by = "" if written[0] == "parameter" and self.function.room == TOOLS else self.function.room
            self.function.writes.add((*written, by))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in WRITING_METHODS:
            self._note(self.target(node.func.value))
        called = self.called(node)
        if called is not None:
            self.function.calls.append((called, [self.target(argument) for argument in node.args]))

    def visit_Return(self, node: ast.Return) -> None:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call):
            called = self.called(node.value) or ""
            fields = self.bundles.get(called.rpartition(".")[2])
            if fields is not None:
                for name, argument in zip(fields, node.value.args, strict=False):
                    known = self.target(argument)
                    if known is not None:
                        self.function.makes[name] = known


def _bundles(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Return the fields of every named tuple of arrays but `Sim`."""
    found = {}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "NamedTuple" for base in node.bases):
                fields = [
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                ]
                found[node.name] = fields
    return {name: fields for name, fields in found.items() if name != "Sim"}


def functions() -> dict[str, Function]:
    """Return every function of the kernel by module and name, with what it writes, calls followed."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(KERNEL.rglob("*.py"))}
    bundles = _bundles(trees)
    known: dict[str, Function] = {}
    for path, tree in trees.items():
        room = path.relative_to(KERNEL).parts[0] if path.parent != KERNEL else ""
        imported = {
            alias.asname or alias.name: (node.module or "").rpartition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            function = Function(room, node.name, [argument.arg for argument in node.args.args])
            reader = _Reader(function, bundles, path.stem, imported)
            for statement in node.body:
                reader.visit(statement)
            known[f"{path.stem}.{node.name}"] = function
    _follow(known)
    return known


def _follow(known: dict[str, Function]) -> None:
    """Add to each function what those that it calls write, until nothing is new."""
    changed = True
    while changed:
        changed = False
        for function in known.values():
            for called, given in function.calls:
                callee = known.get(called)
                if callee is None:
                    continue
                for kind, name, by in set(callee.writes):
                    for resolved in _resolved(known, callee, (kind, name), given):
                        # A tool that hands on what it was given leaves it open who writes.
                        handed_on = resolved[0] == "parameter" and function.room == TOOLS
                        write = (*resolved, by or ("" if handed_on else function.room))
                        if write not in function.writes:
                            function.writes.add(write)
                            changed = True


def _resolved(
    known: dict[str, Function], callee: Function, written: Target, given: list[Target | None]
) -> list[Target]:
    """Return what `written`, as the callee calls it, is to a caller that gave it `given`."""
    kind, name = written
    if kind != "parameter":
        return []  # the callee's own writes are its room's; a caller causes them
    parameter, _, attribute = name.partition(".")
    if parameter not in callee.parameters:
        return []
    at = callee.parameters.index(parameter)
    argument = given[at] if at < len(given) else None
    if argument is None:
        return []
    if argument[0] == "made":
        maker = known.get(argument[1])
        return [maker.makes[attribute]] if maker is not None and attribute in maker.makes else []
    if argument[0] == "parameter" and attribute and "." not in argument[1]:
        return [("parameter", f"{argument[1]}.{attribute}")]
    return [argument]


def written_by_room() -> dict[str, set[str]]:
    """Return the fields of `Sim` that the functions of each room write, themselves or by tools."""
    rooms: dict[str, set[str]] = {}
    for function in functions().values():
        for kind, name, by in function.writes:
            if kind == "sim":
                rooms.setdefault(by, set()).add(name)
    return rooms
