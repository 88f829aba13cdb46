"""The hunt: round after round until the time is over, each the same for a seed and its number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random, SystemRandom

from playproof_spec.findings import Findings, InvalidInput
from playproof_spec.graph import Graph

from playproof.deployment import AnyDeployment, Load
from playproof.fuzzing.variants import Variant, small, whole
from playproof.fuzzing.ways import found_in

SEED_BITS = 32
S_PER_MINUTE = 60.0
# Attempts at a variant that is a run, before a round goes without; most are.
TRIES = 5


@dataclass(frozen=True, slots=True)
class Tried:
    """What one round tried.

    Attributes
    ----------
    round : int
        Its number, from 1.
    variants : tuple of str
        What was replayed, in words: the variant of the run, and the slice that the executable specification replayed.
    refused : int
        Draws that were no runs, such as a trace whose changed times cannot be proven.
    findings : Findings
        What differed, and what the checker said.
    """

    round: int
    variants: tuple[str, ...]
    refused: int
    findings: Findings


@dataclass(frozen=True, slots=True)
class Hunt:
    """Which rounds are made.

    Attributes
    ----------
    seed : int
    minutes : float
        How long new rounds are begun; not looked at with the others.
    rounds : int or None
        How many are made.
    only : int or None
        The one that is made.
    """

    seed: int
    minutes: float = 1.0
    rounds: int | None = None
    only: int | None = None

    @staticmethod
    def fresh_seed() -> int:
        """Return a seed that nobody chose."""
        return SystemRandom().getrandbits(SEED_BITS)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the rounds; the clock is asked between rounds alone."""
        if self.only is not None:
            yield self.only
        elif self.rounds is not None:
            yield from range(1, self.rounds + 1)
        else:
            until, number = time.monotonic() + S_PER_MINUTE * self.minutes, 0
            while number == 0 or time.monotonic() < until:
                number += 1
                yield number


def fuzz(graph: Graph, deployment: AnyDeployment, load: Load, hunt: Hunt) -> Iterator[Tried]:
    """Try variants of a run, a round after the other.

    Parameters
    ----------
    graph : Graph
        Proven.
    deployment : Deployment or Disaggregated
    load : Load
    hunt : Hunt

    Yields
    ------
    Tried
        Of each round. The first round replays the run itself, as it is, beside a slice.
    """
    for number in hunt.numbers():
        random = Random(f"{hunt.seed}:{number}")
        said: list[str] = []
        refused, findings = 0, Findings()
        if number == 1:
            variant = Variant(graph, deployment, load, 0)
            said.append(str(variant))
            findings.extend(found_in(variant, random, reference=False))
        else:
            refused += _try(lambda r: whole(graph, deployment, load, r), random, said, findings, reference=False)
        refused += _try(lambda r: small(graph, deployment, load, r), random, said, findings, reference=True)
        yield Tried(number, tuple(said), refused, findings)


def _try(
    draw: Callable[[Random], Variant], random: Random, said: list[str], findings: Findings, *, reference: bool
) -> int:
    """Draw until a variant is a run, and add what is found; return how many were none."""
    for refused in range(TRIES):
        try:
            variant = draw(random)
            found = found_in(variant, random, reference=reference)
        except InvalidInput:
            continue
        said.append(("slice: " if reference else "") + str(variant))
        findings.extend(found)
        return refused
    return TRIES
