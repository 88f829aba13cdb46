"""Numbers of hash ids against prompt lengths, where rows do not say what a hash id stands for."""

from __future__ import annotations

from typing import Final

from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import MAX_TOKENS

__all__ = ["HashCounts"]

MAX_MISMATCHES: Final = 100


class HashCounts:
    """Checks one row after the other, and narrows down which block size would fit them all.

    Parameters
    ----------
    block_size : int
        Tokens that a hash id is taken to stand for.
    """

    __slots__ = ("_block_size", "_count", "_kept", "_least_size", "_most_size")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._kept: list[tuple[Where, int, int]] = []
        self._count = 0
        # The block sizes that fit every row so far.
        self._least_size, self._most_size = 1, MAX_TOKENS

    def fits(self, length: int, ids: int, where: Where) -> bool:
        """Tell whether a prompt of `length` tokens has `ids` hash ids; none at all fit any prompt."""
        if length and ids:
            self._least_size = max(self._least_size, -(-length // ids))
            self._most_size = min(self._most_size, -(-length // (ids - 1)) - 1 if ids > 1 else MAX_TOKENS)
        if ids in (0, -(-length // self._block_size)):
            return True
        self._count += 1
        if len(self._kept) < MAX_MISMATCHES:
            self._kept.append((where, ids, length))
        return False

    def tell(self, findings: Findings) -> None:
        """Refuse the rows that did not fit, with the block size that would."""
        fitting = ""
        if self._least_size <= self._most_size:
            power = 1 << (self._least_size - 1).bit_length()
            fitting = str(power if power <= self._most_size else self._least_size)
        hint = f"Try --block-size {fitting}: it fits every row." if fitting else ""
        for where, ids, length in self._kept:
            blocks = -(-length // self._block_size)
            at = Where(file=where.file, line=where.line, field="hash_ids")
            message = f"{length} tokens have {blocks} blocks of {self._block_size}"
            findings.add(
                finding("hash-count", message, where=at, found=f"{ids} ids", wanted=f"{blocks} ids", hint=hint)
            )
        findings.add_count("hash-count", self._count - len(self._kept))
