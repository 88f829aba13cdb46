"""Conversations of lengths: what the formats without hash ids share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playproof_lowering.chains import BlockIds
from playproof_lowering.conversation import Conversation, divided, length_problems
from playproof_spec.graph import MAX_TOKENS


@given(total=st.integers(0, 10**12), parts=st.integers(1, 1000))
def test_shares_add_up_and_differ_by_one_at_most(total: int, parts: int) -> None:
    shares = divided(total, parts)
    assert (len(shares), sum(shares)) == (parts, total)
    assert max(shares) - min(shares) <= 1


def test_a_prompt_starts_with_the_one_before_it() -> None:
    talk = Conversation("s", BlockIds(), 16, "f")
    lengths = [(40, 0), (70, 0), (50, 20)]
    turns = [
        talk.call(label="x", model="", input_length=n, cached=cached, output_length=1, start_ns=0, end_ns=0, line=n)
        for n, cached in lengths
    ]
    # 40: blocks 0 and 1; 70 grew: those and two more; 50 shrank with 20 in the cache: one block stays, two are new.
    assert [turn.runs for turn in turns] == [[(0, 2)], [(0, 4)], [(0, 1), (4, 2)]]
    assert [turn.private for turn in turns] == [1, 1, 1]
    assert [turn.request_id for turn in turns] == ["s:0", "s:1", "s:2"]
    assert {turn.model for turn in turns} == {"unspecified"}


@pytest.mark.parametrize(("value", "least", "sound"), [(0, 0, True), (0, 1, False), (MAX_TOKENS, 1, True)])
def test_lengths_have_bounds(value: int, least: int, sound: bool) -> None:
    assert bool(length_problems({"x": (value, least)})) is not sound
    assert [problem.path for problem in length_problems({"a.b": (MAX_TOKENS + 1, 0)})] == ["a.b"]
