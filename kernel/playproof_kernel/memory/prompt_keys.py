"""Keys of the full blocks of a prompt: runs of neighbours, and what of them lies in a range of blocks."""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled


@compiled
def key_at(keys: Any, static: Any, space: int, stride: int, block: int) -> int:
    """Return the key of a full block of what `static` describes, which has one, in the namespace `space`."""
    low, high = static.key_begin, static.answer_end
    while high - low > 1:
        middle = (low + high) // 2
        if keys[middle].begin <= block:
            low = middle
        else:
            high = middle
    run = keys[low]
    return int(space + run.first + (block - run.begin) * stride)


@compiled
def part_of(run: Any, static: Any, stride: int, begin: int, end: int) -> tuple[int, int, int]:
    """Return what of a run of the prompt that `static` describes lies among its blocks from `begin` to `end`.

    Returns
    -------
    block, number : int
        The first of these blocks, and how many there are; none if that is not above zero.
    key : int
        The key of the first; those of the others follow in steps of `stride`.
    """
    block = max(begin, run.begin)
    number = min(end, run.begin + run.count) - block
    return int(block), int(number), int(static.space + run.first + (block - run.begin) * stride)


@compiled
def of_block(sim: Sim, request: int, block: int) -> int:
    """Return the key of a full block of the prompt of `request`."""
    static = sim.static[request]
    return key_at(sim.keys, static, static.space, sim.config[0].key_stride, block)
