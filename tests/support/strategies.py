"""Random graphs, deployments and loads: small universes, so that ties, shared blocks and full pools are common."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from playproof_kernel import DeploymentSpec, LoadSpec, Timing, TimingKind, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch

# Milliseconds; few values, so that events collide.
times = st.sampled_from([0.0, 0.0, 1.0, 2.0, 5.0, 7.5, 40.0])
RELATIONS = [
    ("sequence", "completion"),
    ("spawn", "dispatch"),
    ("spawn", "completion"),
    ("join", "completion"),
    ("replay_barrier", "completion"),
]


@st.composite
def rows(
    draw: st.DrawFn, max_plays: int = 4, max_nodes: int = 6, max_blocks: int = 8
) -> tuple[int, list[dict[str, Any]]]:
    """Draw (block size, v2 rows) of a well-formed corpus."""
    block_size = draw(st.sampled_from([1, 2, 3, 4]))
    result: list[dict[str, Any]] = []
    for play in range(draw(st.integers(1, max_plays))):
        for node in range(draw(st.integers(1, max_nodes))):
            earlier = [f"p{play}n{i}" for i in range(node)]
            sources = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
            edges = []
            for source in sources:
                relation, trigger = draw(st.sampled_from(RELATIONS))
                edge = {"request_id": source, "relation": relation, "trigger": trigger, "delay_ms": draw(times)}
                edges.append(edge)
            length = draw(st.integers(1, max_blocks * block_size))
            blocks = -(-length // block_size)
            # A prefix of one of two long chains, then a tail: requests share, within a play and across plays.
            common = draw(st.sampled_from([0, blocks // 2, max(blocks - 1, 0), blocks, blocks]))
            chain = 100 * draw(st.integers(1, 2))
            hashes = [chain + i for i in range(common)]
            hashes += [1000 + 10 * (3 * play + node % 3) + i for i in range(blocks - common)]
            result.append(
                {
                    "request_id": f"p{play}n{node}",
                    "play_id": f"play{play}",
                    "session_id": f"s{play}",
                    "model": "m",
                    "input_length": length,
                    "output_length": draw(st.sampled_from([0, 1, 2, 3, 9, 30])),
                    "hash_ids": hashes,
                    "not_before_ms": draw(times),
                    "dependencies": edges,
                }
            )
    return block_size, result


@st.composite
def graphs(draw: st.DrawFn, max_plays: int = 4, max_nodes: int = 6, max_blocks: int = 8) -> Graph:
    """Draw a well-formed graph."""
    block_size, drawn = draw(rows(max_plays, max_nodes, max_blocks))
    return sketch(drawn, block_size=block_size)


timings = st.one_of(
    st.builds(
        Timing,
        kind=st.just(TimingKind.FIXED),
        prefill_ns=st.sampled_from([0, 3_000_000, 7_000_000]),
        decode_ns=st.sampled_from([0, 1_000_000, 2_500_000]),
    ),
    st.builds(Timing, kind=st.just(TimingKind.POLYNOMIAL), prefill_ns=st.just(0), decode_ns=st.just(0)),
)

deployments = st.builds(
    DeploymentSpec,
    workers=st.integers(1, 3),
    worker=st.builds(
        WorkerSpec,
        blocks=st.integers(1, 24),
        block_size=st.sampled_from([1, 2, 3, 4, 6]),
        max_batched_tokens=st.sampled_from([1, 3, 8, 64]),
        max_sequences=st.sampled_from([1, 2, 4, 16]),
        prefix_caching=st.booleans(),
        timing=timings,
    ),
    context_length=st.sampled_from([8, 20, 1000]),
)

loads = st.builds(LoadSpec, lanes=st.sampled_from([None, None, 1, 2, 8]), speedup=st.sampled_from([1.0, 2.0, 0.5]))
