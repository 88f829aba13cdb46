"""Speculative decoding: every draw written out.

The generator is Threefry-2x32-20 as its paper tells it, word by word.
"""

from __future__ import annotations

from dataclasses import dataclass

from playproof_spec.deployment import SpeculationSpec

WORD = 2**32
ROTATIONS = [13, 15, 26, 6, 17, 29, 16, 24]


def rotate(word: int, by: int) -> int:
    return (word << by) % WORD + (word >> (32 - by))


def threefry(key: list[int], counter: list[int]) -> list[int]:
    """The two words of Threefry-2x32 with 20 rounds."""
    schedule = [*key, 0x1BD11BDA ^ key[0] ^ key[1]]
    x = [(counter[i] + schedule[i]) % WORD for i in (0, 1)]
    for number in range(20):
        x[0] = (x[0] + x[1]) % WORD
        x[1] = rotate(x[1], ROTATIONS[number % 8]) ^ x[0]
        if number % 4 == 3:
            turn = number // 4 + 1
            x[0] = (x[0] + schedule[turn % 3]) % WORD
            x[1] = (x[1] + schedule[(turn + 1) % 3] + turn) % WORD
    return x


@dataclass
class Drafts:
    """What is drafted for the requests of one worker."""

    spec: SpeculationSpec
    worker: int

    @property
    def width(self) -> int:
        return self.spec.drafts + 1

    def rate(self, draft: int) -> float:
        return self.spec.rates[draft] if draft < len(self.spec.rates) else 0.0

    def accepts(self, request: int, place: int, draft: int) -> bool:
        """Whether draft number `draft` of a pass, the token at `place` of the output, is accepted."""
        key = (self.spec.seed + self.worker) % 2**64
        low, high = threefry([key % WORD, key // WORD], [request % WORD, place % WORD])
        return (high * WORD + low) // 2**11 < self.rate(draft) * 2**53

    def tokens(self, request: int, generated: int) -> int:
        """How many tokens a pass would give a request that has `generated`, if it wanted any number."""
        drafts = 0
        while drafts < self.spec.drafts and self.accepts(request, generated + 1 + drafts, drafts):
            drafts += 1
        return 1 + drafts
