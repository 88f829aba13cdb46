"""Speculative decoding: how many tokens a decode pass gives a request.

A pass gives the token that it would give anyway, and behind it every draft token that is accepted, up to the first that
is not. Whether one is accepted is a draw of its own, with the rate of its place among the drafts; the draw is a
function of the seed, the worker, the request and the token's place in the output. So it depends on nothing that happens
in between: not on the batch, not on other requests, not on preemptions, and each token is drawn for once at most.

The draws are Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): sums,
rotations and exclusive ors of 32-bit words, which fit into an int64 and are the same compiled, interpreted and
everywhere. Key: seed + worker index, modulo 2^64, low word first. Counter: the request's number, the token's place.
Draw: the top 53 bits of the two words, the second one above, over 2^53.
"""

from __future__ import annotations

from playproof_kernel.ground.arrays import Sim
from playproof_kernel.ground.jit import compiled, compiled_entry, constant
from playproof_kernel.ground.lifecycle import config_of, known

_WORD = 0xFFFFFFFF
_PARITY = 0x1BD11BDA
# Rotations of the rounds: the first four, then the second four, in turn.
_A, _B, _C, _D = constant(13), constant(15), constant(26), constant(6)
_E, _F, _G, _H = constant(17), constant(29), constant(16), constant(24)


@compiled
def _mix(a: int, b: int, rotation: int) -> tuple[int, int]:
    """One round: the sum of both words, and the second one rotated against it."""
    a = (a + b) & _WORD
    return a, (((b << rotation) | (b >> (32 - rotation))) & _WORD) ^ a


@compiled_entry
def threefry(key_low: int, key_high: int, low: int, high: int) -> tuple[int, int]:
    """Return the two words of Threefry-2x32-20 at a counter of two words; each word is an int from 0 to 2^32 - 1."""
    last = _PARITY ^ key_low ^ key_high
    a, b = (low + key_low) & _WORD, (high + key_high) & _WORD
    first, second = key_low, key_high
    for group in range(1, 6):
        if group % 2 == 1:
            a, b = _mix(a, b, _A)
            a, b = _mix(a, b, _B)
            a, b = _mix(a, b, _C)
            a, b = _mix(a, b, _D)
        else:
            a, b = _mix(a, b, _E)
            a, b = _mix(a, b, _F)
            a, b = _mix(a, b, _G)
            a, b = _mix(a, b, _H)
        # The three words of the key schedule take turns.
        first, second, last = second, last, first
        a = (a + first) & _WORD
        b = (b + second + group) & _WORD
    return a, b


@compiled
def draw(sim: Sim, worker: int, request: int, place: int) -> float:
    """Return the draw, from 0 on and below 1, for the token of `request` at `place` in its output."""
    config = config_of(sim, worker)
    low = config.seed_low + worker - config.first_worker
    high = (config.seed_high + (low >> 32)) & _WORD
    a, b = threefry(low & _WORD, high, sim.static[request].serial & _WORD, place & _WORD)
    return float((b << 21) | (a >> 11)) / 9007199254740992.0


@compiled
def drafted(sim: Sim, worker: int, request: int) -> int:
    """Return how many tokens are drafted for a running request: none before its first there, nor past the context."""
    config = config_of(sim, worker)
    if sim.live[request].drafting == 0:
        return 0
    return int(min(config.drafts, config.context - known(sim, request) - 1))


@compiled
def accepted(sim: Sim, worker: int, request: int, most: int) -> int:
    """Return how many tokens the current decode pass gives `request`: 1, and the accepted drafts, `most` at most."""
    config = config_of(sim, worker)
    tokens = 1
    while tokens < most:
        if draw(sim, worker, request, sim.live[request].generated + tokens) >= config.rates[tokens - 1]:
            break
        tokens += 1
    return tokens
