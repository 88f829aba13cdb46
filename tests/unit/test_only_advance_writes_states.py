"""Reads the kernel's source: no statement but those in `advance` and `renew` assigns to a state array."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import playproof_kernel
from playproof_kernel.ground.arrays import Sim
from playproof_spec.machines import MACHINES

KERNEL = Path(playproof_kernel.__file__).parent
# How state arrays are called: fields of `Sim`; and "states", a field of `Pool` and the parameter of `advance`.
STATE_NAMES = {*(field for field in Sim._fields if field.endswith("_state")), "states"}


def written_states(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (function, line) of every assignment to an element or a slice of a state array, under whatever alias."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        aliases = set(STATE_NAMES)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _names(node.value) & aliases and not isinstance(node.value, ast.Call):
                aliases |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(function):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                # Methods that write in place.
                if (
                    node.func.attr in {"fill", "put", "itemset", "sort", "partition"}
                    and _base(node.func.value) in aliases
                ):
                    yield function.name, node.lineno
            for target in targets:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(part, ast.Subscript) and _base(part.value) in aliases:
                        yield function.name, part.lineno


def _base(expression: ast.expr) -> str:
    """Return the last name of `a.b.c` or of `a.b.c[i]`."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _names(expression: ast.expr) -> set[str]:
    """Return the array that a plain alias stands for: `x = sim.node_state` or `x = sim.block_state[worker]`."""
    if isinstance(expression, ast.Attribute | ast.Name | ast.Subscript):
        return {_base(expression)}
    return set()


def test_every_machine_that_runs_has_an_array() -> None:
    assert {"node_state", "request_state", "handoff_state", "phase_state", "host_transfer_state"} < STATE_NAMES
    assert len(STATE_NAMES) == 10


def test_advance_alone_writes_states() -> None:
    written = {
        (source.name, function)
        for source in KERNEL.rglob("*.py")
        for function, _ in written_states(ast.parse(source.read_text()))
    }
    # `renew` begins another life of a machine that has ended; it refuses any other.
    assert written == {("transitions.py", "advance"), ("transitions.py", "renew")}


def test_the_reading_finds_each_way_of_writing() -> None:
    ways = [
        "def f(sim):\n    sim.node_state[3] = 1",
        "def f(sim, w):\n    sim.block_state[w, 2] = 1",
        "def f(sim, w):\n    mine = sim.block_state[w]\n    mine[2] = 1",
        "def f(sim):\n    sim.play_state[0] += 1",
        "def f(pool):\n    pool.states[:] = 0",
        "def f(sim):\n    sim.lane_state.fill(0)",
        "def f(sim):\n    a, sim.request_state[0] = 1, 2",
    ]
    for way in ways:
        assert list(written_states(ast.parse(way))), way
    assert not list(written_states(ast.parse("def f(sim):\n    state = sim.node_state[3]\n    sim.live[3].ready = 1")))


def test_every_event_of_a_machine_is_raised() -> None:
    """An event that nobody raises is law without a case: it would be proven, drawn and counted for nothing."""
    raised = {
        f"{node.value.id}.{node.attr}"
        for source in KERNEL.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    events = {machine.events for machine in MACHINES}
    wanted = {f"{kind.__name__}.{event.name}" for kind in events for event in kind}
    assert len(wanted) > 40
    assert wanted <= raised
