"""The trie of a live worker beside a naive one: equal chains of one namespace share a key, nothing else ever does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from playproof_kernel.corpus.live_keys import Chains

Prompt = tuple[str, tuple[int, ...]]

# Few ids and few lengths, so that prompts begin alike and part within blocks and at their ends.
prompts = st.lists(
    st.tuples(st.sampled_from(["", "a"]), st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)), max_size=12
)


def keys_of(chains: Chains, prompt: Prompt) -> list[int]:
    runs = chains.intern(np.array(prompt[1], np.uint32), prompt[0])
    return [first + i for first, count in runs for i in range(count)]


def chains_of(prompt: Prompt, size: int) -> list[Prompt]:
    """Return what identifies each full block of a prompt: its namespace and all tokens up to its end."""
    namespace, tokens = prompt
    return [(namespace, tokens[:end]) for end in range(size, len(tokens) + 1, size)]


@given(prompts, st.integers(1, 4))
def test_keys_are_equal_exactly_where_chains_are(drawn: list[Prompt], size: int) -> None:
    chains, known = Chains(size), dict[Prompt, int]()
    for prompt in drawn:
        keys = keys_of(chains, prompt)
        expected = chains_of(prompt, size)
        assert len(keys) == len(expected)
        for chain, key in zip(expected, keys, strict=True):
            assert known.setdefault(chain, key) == key
    assert len(set(known.values())) == len(known)


@given(st.lists(st.tuples(prompts, st.data()), max_size=3), st.integers(1, 3))
def test_what_is_forgotten_is_new_and_what_is_kept_is_not(
    rounds: list[tuple[list[Prompt], st.DataObject]], size: int
) -> None:
    chains, known, used = Chains(size), dict[Prompt, int](), dict[int, Prompt]()
    for drawn, data in rounds:
        for prompt in drawn:
            for chain, key in zip(chains_of(prompt, size), keys_of(chains, prompt), strict=True):
                # A key never comes to stand for another chain, forgotten or not.
                assert used.setdefault(key, chain) == chain
                assert known.setdefault(chain, key) == key
        wanted = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []
        chains.forget(np.array([known[chain] for chain in wanted], np.int64), np.ones(len(wanted), np.int64))
        # What leads to something wanted is kept, for its children hang on it.
        known = {
            chain: key
            for chain, key in known.items()
            if any(chain[0] == kept[0] and kept[1][: len(chain[1])] == chain[1] for kept in wanted)
        }
        assert chains.tokens == size * len(known)


def test_memory_follows_what_is_kept() -> None:
    chains = Chains(4)
    for number in range(200):
        chains.intern(np.full(400, number, np.uint32))
    assert (chains.tokens, chains.segments) == (80_000, 200)
    first = chains.intern(np.full(400, 7, np.uint32))[0][0]
    chains.forget(np.array([first]), np.array([3]))
    assert (chains.tokens, chains.segments) == (12, 1)
    assert chains.intern(np.full(400, 7, np.uint32))[0] == (first, 3)
