"""Block keys beside a naive twin: equal keys exactly where the tokens, and all tokens before them, are equal."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import event, example, given
from hypothesis import strategies as st
from playproof_kernel.corpus.compiled import block_keys
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch

Tokens = tuple[int, ...]

# Neighbouring ids make runs; the last ones are neighbours only above 32 bits, or as unsigned numbers.
IDS = [1, 2, 3, 4, 5, 9, 10, 2**32 + 1, 2**32 + 2, 2**63 - 1, 2**63, 2**64 - 1, 0]


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Draw (hash ids, tokens missing of the last block) of requests: new prompts, and ones that fork from others."""
    scattered = st.lists(st.sampled_from(IDS), min_size=1, max_size=4)
    consecutive = st.builds(
        lambda first, count: list(range(first, first + count)), st.integers(1, 12), st.integers(1, 8)
    )
    drawn: list[tuple[list[int], int]] = []
    for _ in range(draw(st.integers(1, 8))):
        ids: list[int] = []
        if drawn and draw(st.integers(0, 1)) == 1:
            parent = draw(st.sampled_from(drawn))[0]
            ids = parent[: draw(st.integers(0, len(parent)))]
        for piece in draw(st.lists(scattered | consecutive, min_size=0 if ids else 1, max_size=3)):
            ids = ids + piece
        drawn.append((ids, draw(st.integers(0, 6))))
    return drawn


def graph_of(drawn: list[tuple[list[int], int]], trace_size: int) -> tuple[Graph, list[Tokens]]:
    """Return the graph of `drawn`, and the tokens of each prompt by node index."""
    rows: list[dict[str, Any]] = []
    tokens: list[Tokens] = []
    for number, (ids, missing) in enumerate(drawn):
        length = len(ids) * trace_size - missing % trace_size
        rows.append(
            {
                "request_id": f"r{number}",
                "play_id": f"play{number % 3}",
                "input_length": length,
                "hash_ids": ids,
            }
        )
        tokens.append(tuple(hash_id for hash_id in ids for _ in range(trace_size))[:length])
    return sketch(rows, block_size=trace_size), tokens


def naive_identities(tokens: Tokens, size: int) -> list[Tokens]:
    """Return the identity of every full block: all tokens up to its end."""
    return [tokens[:end] for end in range(size, len(tokens) + 1, size)]


def keys_of(graph: Graph, size: int) -> list[list[int]]:
    """Return the keys of every full block of every prompt, its runs written out as the kernel does."""
    offsets, runs = block_keys(graph, size)
    stride = size // np.gcd(graph.block_size, size)
    return [
        [
            int(run.first) + i * int(stride)
            for run in runs[offsets[node] : offsets[node + 1]]
            for i in range(int(run.count))
        ]
        for node in range(graph.node_count)
    ]


@given(drawn=prompts(), trace_size=st.integers(1, 7), size=st.integers(1, 9))
@example(drawn=[([1, 2, 3], 0), ([1, 2], 2), ([1, 2, 4], 1)], trace_size=4, size=6)
@example(drawn=[([0], 0), ([2**64 - 1, 0], 0), ([2**63 - 1, 2**63], 0)], trace_size=2, size=1)
def test_equal_keys_are_equal_chains(drawn: list[tuple[list[int], int]], trace_size: int, size: int) -> None:
    graph, tokens = graph_of(drawn, trace_size)
    key_of: dict[Tokens, int] = {}
    identity_of: dict[int, Tokens] = {}
    for node, keys in enumerate(keys_of(graph, size)):
        identities = naive_identities(tokens[node], size)
        assert len(keys) == len(identities)
        for key, identity in zip(keys, identities, strict=True):
            assert key >= 0
            assert key_of.setdefault(identity, key) == key
            assert identity_of.setdefault(key, identity) == identity
    event(f"shared: {len(key_of) < sum(len(naive_identities(one, size)) for one in tokens)}")


@given(drawn=prompts(), trace_size=st.integers(1, 7), size=st.integers(1, 9))
def test_runs_are_as_long_as_they_can_be(drawn: list[tuple[list[int], int]], trace_size: int, size: int) -> None:
    graph, _ = graph_of(drawn, trace_size)
    offsets, runs = block_keys(graph, size)
    stride = size // np.gcd(trace_size, size)
    for node in range(graph.node_count):
        mine = list(runs[offsets[node] : offsets[node + 1]])
        assert all(run.count > 0 for run in mine)
        for one, following in pairwise(mine):
            assert int(following.first) != int(one.first) + int(one.count) * stride


def test_one_hash_id_behind_prefixes_that_share_a_place_of_the_table_is_many_blocks() -> None:
    """Prefixes of all lengths: those of one length alone would fall into places that never meet."""
    drawn = [([*range(100 * number, 100 * number + number * number % 61 + 1), 7], 0) for number in range(1, 700)]
    graph, _ = graph_of(drawn, 1)
    behind = [keys[-1] for keys in keys_of(graph, 1)]
    assert len(set(behind)) == len(drawn)
