"""The exact max-min allocator that shared links are compared with: fair, and true to every byte."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import event, given
from hypothesis import strategies as st
from playproof_reference.links import FairLink, fair_rates, nearest_ns

rates = st.builds(Fraction, st.integers(1, 60), st.integers(1, 7))
pools = st.none() | rates
RANKS = 4
links = st.fixed_dictionaries({rank: st.none() | rates for rank in range(RANKS)})
movers = st.lists(st.integers(0, RANKS - 1), min_size=1, max_size=8)
# Submissions: rank, bytes, instant, latency until the first byte. Few instants, so that events coincide.
submissions = st.lists(
    st.tuples(st.integers(0, RANKS - 1), st.integers(1, 400), st.integers(0, 40), st.sampled_from([0, 0, 5, 13])),
    min_size=1,
    max_size=8,
).map(lambda drawn: sorted(drawn, key=lambda submission: submission[2]))

Submission = tuple[int, int, int, int]
Link = Fraction | None


def exact(time: Fraction) -> Fraction:
    return time


def ends(link: FairLink, drawn: list[Submission], pauses: tuple[int, ...] = ()) -> dict[int, Fraction]:
    """When each of the submissions ends, with stops at `pauses` besides."""
    found: list[tuple[Fraction, int]] = []
    stops = sorted([*((at, -1) for at in pauses), *((submission[2], n) for n, submission in enumerate(drawn))])
    for at, number in stops:
        found += link.advance(at)
        if number >= 0:
            rank, size, _, latency = drawn[number]
            link.submit(number, rank, size, at + latency)
    while (following := link.next_ns()) is not None:
        found += link.advance(following)
    assert not link.transfers
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    return {number: at for at, number in found}


@given(pool=pools, own=links, moving=movers)
def test_nobody_can_have_more_but_at_the_cost_of_one_with_no_more(
    pool: Link, own: dict[int, Link], moving: list[int]
) -> None:
    shares = fair_rates(pool, own, moving)
    known = [share for share in shares if share is not None]
    full = pool is not None and sum(known) == pool
    assert pool is None or sum(known) <= pool
    for rank in set(moving):
        mine = [share for share, mover in zip(shares, moving, strict=True) if mover == rank]
        link = own[rank]
        if link is None and pool is None:
            assert mine == [None] * len(mine)
            continue
        # A rank's own transfers are alike; together they stay within its link.
        total = sum(share for share in mine if share is not None)
        assert len(set(mine)) == 1
        assert None not in mine
        assert link is None or total <= link
        # Each is held back: by its own link, or by the pool, which gives nobody more than this one.
        held_by_link = link is not None and total == link
        assert held_by_link or (full and mine[0] == max(known))
        event(f"held by its link: {held_by_link}")
    event(f"pool full: {full}")


@given(pool=pools, own=links, moving=movers, data=st.data())
def test_the_order_of_submission_does_not_matter(
    pool: Link, own: dict[int, Link], moving: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(moving))))
    shares = fair_rates(pool, own, moving)
    assert fair_rates(pool, own, [moving[place] for place in order]) == [shares[place] for place in order]


@given(pool=rates, own=links, drawn=submissions)
def test_every_byte_moves_once(pool: Fraction, own: dict[int, Link], drawn: list[Submission]) -> None:
    """What the rates amount to over the time that passed is what was submitted, for each transfer."""
    link = FairLink(pool, own, exact)
    moved = dict.fromkeys(range(len(drawn)), Fraction(0))
    coming = list(enumerate(drawn))
    while coming or link.transfers:
        times = [at for at in (link.next_ns(), coming[0][1][2] if coming else None) if at is not None]
        until = max(Fraction(min(times)), link.now_ns)
        for transfer, rate in link.rates():
            assert rate is not None
            moved[transfer.number] += rate * (until - link.now_ns)
        link.advance(until)
        while coming and coming[0][1][2] <= until:
            number, (rank, size, at, latency) = coming.pop(0)
            link.submit(number, rank, size, at + latency)
    assert moved == {number: size for number, (_, size, _, _) in enumerate(drawn)}


@given(pool=pools, own=links, drawn=submissions, pauses=st.lists(st.integers(0, 90), max_size=6).map(tuple))
def test_looking_changes_nothing(
    pool: Link, own: dict[int, Link], drawn: list[Submission], pauses: tuple[int, ...]
) -> None:
    for rounded in (exact, nearest_ns):
        assert ends(FairLink(pool, own, rounded), drawn, pauses) == ends(FairLink(pool, own, rounded), drawn)


@given(pool=pools, own=links, drawn=submissions)
def test_rounded_ends_are_the_exact_ones_but_for_a_nanosecond_an_event(
    pool: Link, own: dict[int, Link], drawn: list[Submission]
) -> None:
    precise = ends(FairLink(pool, own, exact), drawn)
    rounded = ends(FairLink(pool, own), drawn)
    for number, end in rounded.items():
        assert end.denominator == 1
        assert abs(end - precise[number]) <= len(drawn)


@given(rate=rates, size=st.integers(1, 10**6), latency=st.integers(0, 50))
def test_one_transfer_takes_its_bytes_over_the_slower_rate(rate: Fraction, size: int, latency: int) -> None:
    for pool, own in ((rate, {0: None}), (None, {0: rate}), (rate, {0: rate + 1}), (rate + 1, {0: rate})):
        assert ends(FairLink(pool, own, exact), [(0, size, 0, latency)]) == {0: latency + size / rate}
    assert ends(FairLink(None, {0: None}), [(0, size, 0, latency)]) == {0: latency}


def test_what_a_slow_link_leaves_goes_to_the_others() -> None:
    # Of 12, the rank with a link of 2 takes 2, and the other two transfers 5 each; an equal split would give them 4.
    assert fair_rates(Fraction(12), {0: Fraction(2), 1: None}, [0, 1, 1]) == [2, 5, 5]
    # A transfer that waits for its first byte takes no share: the other has the pool for ten, then they halve it.
    link = FairLink(Fraction(10), {0: None, 1: None}, exact)
    assert ends(link, [(0, 200, 0, 0), (1, 100, 0, 10)]) == {0: 30, 1: 30}
