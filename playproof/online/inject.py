"""Faults on purpose: a mock worker that fails now and then, so that others can test their clients against it.

A request may ask for a fault by the header `x-playproof-inject`; else rates decide, by the request's number and a seed
alone, so that the same requests in the same order fail again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

HEADER = b"x-playproof-inject"
_STEPS = 1 << 53


class Injected(StrEnum):
    """What is done instead of a proper answer."""

    REFUSE_429 = "429"  # answer that there are too many requests, with Retry-After
    FAIL_500 = "500"
    FAIL_503 = "503"
    RESET = "reset"  # cut the connection before an answer
    CUT = "cut"  # cut it in the middle of the answer
    STALL = "stall"  # say nothing more after the first token
    ERROR = "error"  # an event with an error in the middle of a stream
    GARBAGE = "garbage"  # an event that is no JSON
    NO_END = "no-end"  # leave out the finish reason, the usage and [DONE]
    NO_USAGE = "no-usage"  # leave out the usage
    MISCOUNT = "miscount"  # count one token too many in the usage


# What is done in the middle of an answer or at its end.
LATER = frozenset(Injected) - {Injected.REFUSE_429, Injected.FAIL_500, Injected.FAIL_503, Injected.RESET}


@dataclass(frozen=True, slots=True)
class Injection:
    """Rates of faults.

    Attributes
    ----------
    rates : tuple of (Injected, float)
        Shares of requests, together at most 1.
    seed : int
    """

    rates: tuple[tuple[Injected, float], ...] = ()
    seed: int = 0

    def of(self, number: int, headers: Mapping[bytes, bytes]) -> Injected | None:
        """Return what happens to a request, by its number and its headers.

        Raises
        ------
        ValueError
            When the header names no fault.
        """
        asked = headers.get(HEADER)
        if asked is not None:
            return named(asked.decode("latin-1").strip())
        if not self.rates:
            return None
        digest = hashlib.blake2b(b"%d:%d" % (self.seed, number), digest_size=8).digest()
        draw = (int.from_bytes(digest, "little") % _STEPS) / _STEPS
        reached = 0.0
        for fault, rate in self.rates:
            reached += rate
            if draw < reached:
                return fault
        return None


def named(name: str) -> Injected:
    """Return the fault of a name.

    Raises
    ------
    ValueError
    """
    try:
        return Injected(name)
    except ValueError:
        raise ValueError(f"{name!r} is none of the faults {', '.join(Injected)}") from None


def parsed(settings: Sequence[str], seed: int = 0) -> Injection:
    """Read rates as a command line has them.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> parsed(["500=0.01", "cut=0.5"]).rates
    ((<Injected.FAIL_500: '500'>, 0.01), (<Injected.CUT: 'cut'>, 0.5))
    """
    rates: dict[Injected, float] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        try:
            rate = float(value) if equals else -1.0
        except ValueError:
            rate = -1.0
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"{setting!r} is not FAULT=RATE with a rate from 0 to 1, such as 500=0.01")
        rates[named(name)] = rate
    if sum(rates.values()) > 1.0 + 1e-9:
        raise ValueError("the rates together are more than 1")
    return Injection(tuple(rates.items()), seed)
