"""What an engine is to the rest of the kernel, and where it is registered.

An engine is a tuple of functions, `Engine`. Whoever adds one writes a module with its rules and an `Engine` of them,
and registers that; the doors in `engine` lead to it in runs whose worker it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from playproof_native import Seam
from playproof_spec.deployment import DeploymentSpec, WorkerSpec

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled


class Room(IntEnum):
    """What wants more memory of Python's before an engine may go on."""

    ENOUGH = 0
    TABLES = 1  # the arena of block tables
    TREES = 2  # the radix trees


class Engine(NamedTuple):
    """The scheduler and the cache of a worker.

    The first fields are asked once for a run, by Python. The others are compiled and called within a run. They write
    the worker's record, its memory and its queues, and the requests that they touch; that a request ended they tell
    through `lifecycle`.

    Attributes
    ----------
    name : str
    serves : callable (WorkerSpec) -> bool
        Whether workers of this description run it. The first engine that says so does.
    refuse : callable (DeploymentSpec) -> None
        Raises `ValueError` for what it cannot run.
    tokens_a_pass : callable (WorkerSpec) -> int
        Prompt tokens that a pass computes at least where a prompt has as many left: what bounds the end of a run.
    keeps_tree : bool
        Whether its cache is a radix tree, and not a pool of blocks with tables.
    destination_first : bool
        Whether, in prefill/decode, memory is asked for at the decode worker before the prompt is computed.
    start_pass : (sim, worker) -> bool
        Schedule one pass of an idle worker at the current instant; False when it would have no effect.
    apply_passes : (sim, worker, number) -> None
        End the first `number` passes of the current step; the worker idles.
    go_on : (sim, worker) -> None
        Note what the pass computes that was in the middle of a macro-step and is the first of the next one.
    notices : (sim, worker, request) -> bool
        Whether a pass of a macro-step would do something about `request`, wherever it stands in the waiting queue.
    reserve : (sim, worker, request) -> int
        Take memory for the prompt of a destination; the tokens to move there, or NONE when there is no room.
    activate : (sim, worker, request) -> None
        The prompt of a destination is there: it waits for its seat.
    release_source : (sim, worker, request) -> None
        Let the prompt go that was held for a destination.
    let_go : (sim, worker, request) -> None
        Take from a request that is canceled whatever memory it holds.
    forget : (sim, worker, request) -> None
        Let nothing that the worker is about to do be for `request`.
    published : (sim, worker, request, blocks) -> int
        How many leading ones of the `blocks` full prompt blocks of `request` the worker has told that it has.
    room_for_pass : (sim, worker) -> Room
        Whether one more pass of the worker has room in its memory.
    room_for_action : (sim, worker) -> Room
        Whether one step of a handoff, or the end of a pass with what it brings about, has room in its memory.
    """

    name: str
    serves: Callable[[WorkerSpec], bool]
    refuse: Callable[[DeploymentSpec], None]
    tokens_a_pass: Callable[[WorkerSpec], int]
    keeps_tree: bool
    destination_first: bool
    start_pass: Callable[[Sim, int], bool]
    apply_passes: Callable[[Sim, int, int], None]
    go_on: Callable[[Sim, int], None]
    notices: Callable[[Sim, int, int], bool]
    reserve: Callable[[Sim, int, int], int]
    activate: Callable[[Sim, int, int], None]
    release_source: Callable[[Sim, int, int], None]
    let_go: Callable[[Sim, int, int], None]
    forget: Callable[[Sim, int, int], None]
    published: Callable[[Sim, int, int, int], int]
    room_for_pass: Callable[[Sim, int], int]
    room_for_action: Callable[[Sim, int], int]


@compiled
def holding(sim: Sim, worker: int) -> int:
    """Return the number of the engine of this run."""
    return int(sim.config[0].engine)


ENGINES: Seam[Engine] = Seam("engine", holding)


# What an engine gives that has nothing to do ------------------------------------------------------------------------


def refuses_nothing(deployment: DeploymentSpec) -> None:
    """Run any deployment."""


@compiled
def nothing_for_worker(sim: Sim, worker: int) -> None:
    """Do nothing."""


@compiled
def nothing_for_request(sim: Sim, worker: int, request: int) -> None:
    """Do nothing."""


@compiled
def notices_nobody(sim: Sim, worker: int, request: int) -> bool:
    """Whoever stands behind others changes nothing."""
    return False


@compiled
def publishes_nothing(sim: Sim, worker: int, request: int, blocks: int) -> int:
    """Nothing is kept for others."""
    return 0


@compiled
def always_room(sim: Sim, worker: int) -> int:
    """Nothing grows."""
    return 0
