"""Max-min fair links, exactly: rational rates by water-filling, and transfers as fluids between whole nanoseconds.

Moving transfers share a pool's rate, as equally as the rates of their ranks' own links allow; the transfers of a rank
share its link. A transfer that waits for its first byte takes no share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

NS_PER_SECOND = 1_000_000_000


def per_ns(bytes_per_second: float | None) -> Fraction | None:
    """Bytes per nanosecond, exactly; None stays None: no limit."""
    return Fraction(bytes_per_second) / NS_PER_SECOND if bytes_per_second else None


def fair_rates(
    pool: Fraction | None, links: Mapping[int, Fraction | None], moving: Sequence[int]
) -> list[Fraction | None]:
    """Share `pool` among transfers that move.

    Parameters
    ----------
    pool : Fraction | None
        Rate of the pool, None: unlimited.
    links : mapping of int to Fraction | None
        Rate of each rank's link.
    moving : sequence of int
        The rank of each transfer that moves.

    Returns
    -------
    list of Fraction | None
        The rate of each, in the order of `moving`; None: it is limited by nothing.

    Notes
    -----
    The level rises for all transfers alike. Who is held back by its own link stops there, and what it leaves is shared
    by the others, until the pool is used up or everybody has stopped.
    """

    def own(rank: int) -> Fraction | None:
        link = links[rank]
        return None if link is None else link / moving.count(rank)

    if pool is None:
        return [own(rank) for rank in moving]
    rates: dict[int, Fraction] = {}
    rising = list(range(len(moving)))
    while rising:
        level = (pool - sum(rates.values(), Fraction(0))) / len(rising)
        caps = {place: cap for place in rising if (cap := own(moving[place])) is not None and cap <= level}
        if not caps:
            rates |= dict.fromkeys(rising, level)
            break
        lowest = min(caps.values())
        stopped = {place: cap for place, cap in caps.items() if cap == lowest}
        rates |= stopped
        rising = [place for place in rising if place not in stopped]
    return [rates[place] for place in range(len(moving))]


def nearest_ns(time: Fraction) -> int:
    """Round to whole nanoseconds; what lies within 2^-10 below a half counts as the half, for the sake of floats."""
    return floor(time + Fraction(1, 2) + Fraction(1, 1024))


@dataclass(eq=False)
class Transfer:
    """Bytes on their way: when the first may move, and how many are left."""

    number: int
    rank: int
    left: Fraction
    first_byte_ns: Fraction


class FairLink:
    """One direction of a pool that several ranks share.

    Parameters
    ----------
    pool : Fraction | None
        Bytes per nanosecond; None: unlimited.
    links : mapping of int to Fraction | None
        The same of each rank's own link.
    rounded : callable
        What becomes of the time that a transfer still takes, at its end: by default the nearest whole nanosecond.
        Rates are shared anew at the rounded instant.
    """

    def __init__(
        self,
        pool: Fraction | None,
        links: Mapping[int, Fraction | None],
        rounded: Callable[[Fraction], int | Fraction] = nearest_ns,
    ) -> None:
        self.pool, self.links, self.rounded = pool, dict(links), rounded
        self.now_ns = Fraction(0)
        self.busy_ns = Fraction(0)  # while anything moved
        self.rank_busy_ns = dict.fromkeys(self.links, Fraction(0))
        self.transfers: list[Transfer] = []  # in order of submission

    def submit(self, number: int, rank: int, size: int, first_byte_ns: int | Fraction) -> None:
        """Take `size` bytes of `rank`, the first of which may move at `first_byte_ns` but not before now."""
        self.transfers.append(Transfer(number, rank, Fraction(size), max(Fraction(first_byte_ns), self.now_ns)))

    def drop(self, number: int) -> None:
        self.transfers = [transfer for transfer in self.transfers if transfer.number != number]

    def moving(self) -> list[Transfer]:
        return [transfer for transfer in self.transfers if transfer.first_byte_ns <= self.now_ns]

    def rates(self) -> list[tuple[Transfer, Fraction | None]]:
        """Each transfer that moves, with its rate."""
        moving = self.moving()
        rates = fair_rates(self.pool, self.links, [transfer.rank for transfer in moving])
        return list(zip(moving, rates, strict=True))

    def ends(self) -> list[tuple[Fraction, Transfer]]:
        """When each transfer that moves would end, if nothing changed."""
        return [
            (self.now_ns + (self.rounded(transfer.left / rate) if rate is not None else 0), transfer)
            for transfer, rate in self.rates()
        ]

    def next_ns(self) -> Fraction | None:
        """When the next transfer ends, or has its first byte."""
        first_bytes = [t.first_byte_ns for t in self.transfers if t.first_byte_ns > self.now_ns]
        return min([*first_bytes, *(end for end, _ in self.ends())], default=None)

    def advance(self, now_ns: int | Fraction) -> list[tuple[Fraction, int]]:
        """Let time pass until `now_ns`; return (instant, number) of what has ended by then, in order of submission."""
        done: list[tuple[Fraction, int]] = []
        while (following := self.next_ns()) is not None and following <= now_ns:
            ended = [transfer for end, transfer in self.ends() if end <= following]
            self._let_pass(following)
            done += [(following, transfer.number) for transfer in ended]
            self.transfers = [transfer for transfer in self.transfers if transfer not in ended]
        self._let_pass(max(Fraction(now_ns), self.now_ns))
        return done

    def _let_pass(self, until_ns: Fraction) -> None:
        moving = self.rates()
        self.busy_ns += until_ns - self.now_ns if moving else 0
        for rank in {transfer.rank for transfer, _ in moving}:
            self.rank_busy_ns[rank] += until_ns - self.now_ns
        for transfer, rate in moving:
            if rate is not None:
                transfer.left = max(transfer.left - rate * (until_ns - self.now_ns), Fraction(0))
        self.now_ns = until_ns
