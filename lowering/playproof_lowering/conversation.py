"""Conversations of which a recording tells the lengths of each call: what formats without hash ids share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from playproof_spec.graph import MAX_TOKENS

from playproof_lowering.chains import BlockIds, PrefixChain
from playproof_lowering.turns import Turn
from playproof_lowering.wire import Problem

__all__ = ["DEFAULT_BLOCK_SIZE", "MODEL", "Conversation", "divided", "length_problems"]

DEFAULT_BLOCK_SIZE: Final = 64
# Of a call whose recording names none.
MODEL: Final = "unspecified"


@dataclass(slots=True, eq=False)
class Conversation:
    """The calls of one conversation, in the order in which they were made.

    Attributes
    ----------
    name : str
        The session of its calls; their ids are this name and a number.
    ids : BlockIds
        Of the corpus.
    block_size : int
        Tokens.
    file : str
        As shown to people.
    """

    name: str
    ids: BlockIds
    block_size: int
    file: str
    turns: list[Turn] = field(default_factory=list)
    chain: PrefixChain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = PrefixChain(self.ids, self.block_size)

    def call(
        self,
        *,
        label: str,
        model: str,
        input_length: int,
        cached: int,
        output_length: int,
        start_ns: int,
        end_ns: int,
        line: int,
        timed: bool = True,
        estimated: tuple[str, ...] = (),
    ) -> Turn:
        """Add a call; its prompt starts with the one before it as far as it grew, or as the cache found.

        Parameters
        ----------
        label : str
            The id that the recording's author knows.
        cached : int
            Tokens of the prompt that the recorded cache had.
        timed : bool
            Its start and its end are recorded.
        """
        turn = Turn(
            request_id=f"{self.name}:{len(self.turns)}",
            label=label,
            session=self.name,
            model=model or MODEL,
            input_length=input_length,
            output_length=output_length,
            start_ns=start_ns,
            end_ns=end_ns,
            file=self.file,
            line=line,
            runs=self.chain.extend(input_length, cached),
            private=1 if input_length % self.block_size else 0,
            timed=timed,
            estimated=estimated,
        )
        self.turns.append(turn)
        return turn


def divided(total: int, parts: int) -> list[int]:
    """Return `total` in `parts` shares that differ by one at most, the larger ones last.

    Examples
    --------
    >>> divided(10, 3)
    [3, 3, 4]
    """
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def length_problems(lengths: dict[str, tuple[int, int]]) -> list[Problem]:
    """Return what is wrong with numbers of tokens, given by JSON path with the least that each may be."""
    return [
        Problem("length-out-of-bounds", path, "out of bounds", str(value)[:60], f"{least} … {MAX_TOKENS}")
        for path, (value, least) in lengths.items()
        if not least <= value <= MAX_TOKENS
    ]
