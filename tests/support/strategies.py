"""Random graphs, deployments and loads: small universes, so that ties, shared blocks and full pools are common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from playproof_spec.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    RouterSpec,
    Rules,
    SpeculationSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
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

hosts = st.builds(
    HostSpec,
    blocks=st.integers(1, 30),
    block_bytes=st.just(1_000_000),
    d2h_bytes_per_second=st.sampled_from([None, 1e9, 4e9, 2e8]),
    h2d_bytes_per_second=st.sampled_from([None, 1e9, 3e9, 2e8]),
    latency_ns=st.sampled_from([0, 0, 1_000_000]),
)

hosted_deployments = st.builds(
    DeploymentSpec,
    workers=st.integers(1, 3),
    worker=st.builds(
        WorkerSpec,
        blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 3, 4]),
        max_batched_tokens=st.sampled_from([2, 8, 64, 64]),
        max_sequences=st.sampled_from([1, 2, 4, 16]),
        timing=timings,
        host=hosts,
    ),
    context_length=st.sampled_from([20, 1000]),
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

# Settings of vLLM's scheduler and cache beside the peer's, by the names of the kernel.
scheduler_options: dict[str, st.SearchStrategy[Any]] = {
    "watermark": st.sampled_from([0.0, 0.0, 0.1, 0.4, 1.0]),
    "long_prefill_tokens": st.sampled_from([0, 0, 1, 3, 7]),
    "reserve_full_prompt": st.booleans(),
    "reuse_output": st.booleans(),
}
# In prefill/decode a prompt is admitted as a whole.
split_options = {name: values for name, values in scheduler_options.items() if name != "reserve_full_prompt"}


@st.composite
def optioned_deployments(draw: st.DrawFn, ahead: bool | None = None) -> DeploymentSpec:
    """Draw aggregated vLLM workers with settings of their own; `ahead` says whether they schedule asynchronously."""
    drawn = draw(deployments)
    options = {name: draw(values) for name, values in scheduler_options.items()}
    is_ahead = draw(st.booleans()) if ahead is None else ahead
    return replace(drawn, worker=replace(drawn.worker, ahead=is_ahead, **options))


@st.composite
def overlapped(
    draw: st.DrawFn, drawn: st.SearchStrategy[DeploymentSpec], overlap: bool | None = None
) -> DeploymentSpec:
    """Draw from `drawn` SGLang workers, some of them (`overlap`: all, none) under SGLang's overlap schedule."""
    deployment = draw(drawn)
    worker = deployment.worker
    if overlap:
        worker = replace(worker, rules=Rules.SGLANG)
    if overlap is None:
        overlap = worker.rules is Rules.SGLANG and draw(st.booleans())
    return replace(deployment, worker=replace(worker, ahead=overlap))


_sglang_workers = st.builds(
    DeploymentSpec,
    workers=st.integers(1, 2),
    worker=st.builds(
        WorkerSpec,
        backend=st.just(Backend.SGLANG),
        blocks=st.integers(1, 60),
        block_size=st.sampled_from([1, 1, 2, 3, 4, 6]),
        chunked_prefill_size=st.sampled_from([1, 3, 8, 8192]),
        max_prefill_tokens=st.sampled_from([4, 10, 16384]),
        # The small one admits too much, so that retraction is common.
        schedule_conservativeness=st.sampled_from([1.0, 1.4, 0.01]),
        max_sequences=st.sampled_from([1, 2, 4, 16]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        timing=timings,
        rules=st.sampled_from(Rules),
        ignore_eos=st.sampled_from([False, False, True]),
    ),
    context_length=st.sampled_from([8, 20, 1000]),
)

sglang_deployments = overlapped(_sglang_workers)
overlapping_deployments = overlapped(_sglang_workers, overlap=True)

speculations = st.builds(
    SpeculationSpec,
    drafts=st.integers(1, 4),
    rates=st.lists(st.sampled_from([0.0, 0.5, 0.8, 1.0, 1.0]), max_size=5).map(tuple),
    seed=st.sampled_from([0, 42, 2**32 - 1, 2**64 - 1]),
)

routers = st.builds(
    RouterSpec,
    overlap_score_weight=st.sampled_from([1.0, 1.0, 0.0, 0.3, 2.0, 10.0]),
    host_cache_hit_weight=st.sampled_from([0.75, 0.75, 0.0, 1.0, 0.1]),
)

loads = st.builds(LoadSpec, lanes=st.sampled_from([None, None, 1, 2, 8]), speedup=st.sampled_from([1.0, 2.0, 0.5]))


@st.composite
def canceled(draw: st.DrawFn, graph: Graph, load: LoadSpec) -> LoadSpec:
    """Draw `load` with clients that give up, now and then at the instant of another event."""
    instant = st.one_of(
        st.integers(0, 60).map(lambda ms: ms * 500_000), st.integers(0, 400).map(lambda ms: ms * 1_000_000)
    )
    given_up = draw(st.lists(st.tuples(instant, st.integers(0, graph.node_count - 1)), max_size=4))
    return replace(load, cancellations=tuple(given_up))


transfers = st.builds(
    TransferSpec,
    bytes_per_token=st.sampled_from([0, 1000, 250_000]),
    bytes_per_second=st.sampled_from([None, 1e9, 1e8]),
    full_prompt=st.booleans(),
)


@st.composite
def disaggregated(draw: st.DrawFn, backends: Sequence[Backend] = tuple(Backend), plain: bool = False) -> DeploymentSpec:
    """Draw a prefill and a decode role: one backend, block size and cache, everything else of each role's own.

    Unless `plain`, vLLM's roles may have settings of `scheduler_options`.
    """
    backend = draw(st.sampled_from(backends))
    size = draw(st.sampled_from([1, 1, 2, 3, 4]))
    caching = draw(st.sampled_from([True, True, True, False]))
    optioned = backend is Backend.VLLM and plain is False and draw(st.booleans())
    rules = draw(st.sampled_from(Rules))
    roles = [
        WorkerSpec(
            backend=backend,
            blocks=draw(st.integers(1, 60)) if draw(st.booleans()) else draw(st.integers(8, 40)),
            block_size=size,
            max_batched_tokens=draw(st.sampled_from([1, 3, 8, 64])),
            max_sequences=draw(st.sampled_from([1, 2, 4, 16])),
            prefix_caching=caching,
            timing=draw(timings),
            chunked_prefill_size=draw(st.sampled_from([1, 3, 8, 8192])),
            max_prefill_tokens=draw(st.sampled_from([4, 10, 16384])),
            schedule_conservativeness=draw(st.sampled_from([1.0, 1.4, 0.01])),
            **({name: draw(values) for name, values in split_options.items()} if optioned else {}),
            rules=rules,
        )
        for _ in range(2)
    ]
    decode = DecodeSpec(draw(st.integers(1, 3)), roles[1], draw(transfers))
    return DeploymentSpec(draw(st.integers(1, 3)), roles[0], draw(st.sampled_from([8, 20, 1000])), decode)


@st.composite
def pressed(draw: st.DrawFn, overlap: bool | None = None) -> tuple[Graph, DeploymentSpec]:
    """Draw short prompts with long outputs that SGLang admits side by side and has no room to finish side by side.

    `overlap` is as in `overlapped`.
    """
    count = draw(st.integers(2, 8))
    common = draw(st.integers(0, 3))
    drawn = []
    for number in range(count):
        hashes = [*range(1, common + 1), *range(100 * (number + 1), 100 * (number + 1) + draw(st.integers(1, 6)))]
        shape = {"input_length": len(hashes), "hash_ids": hashes, "output_length": draw(st.integers(1, 40))}
        drawn.append({"request_id": f"r{number}", "play_id": f"p{number}", "not_before_ms": draw(times), **shape})
    size = draw(st.sampled_from([1, 2, 3]))
    worker = WorkerSpec(
        backend=Backend.SGLANG,
        blocks=draw(st.integers(30 // size, 90 // size)),
        block_size=size,
        chunked_prefill_size=draw(st.sampled_from([3, 8192])),
        schedule_conservativeness=draw(st.sampled_from([1.0, 0.01])),
        max_sequences=draw(st.sampled_from([2, 4, 16])),
        prefix_caching=draw(st.sampled_from([True, True, False])),
        timing=draw(timings),
        rules=draw(st.sampled_from(Rules)),
        ignore_eos=draw(st.booleans()),
    )
    return sketch(drawn, block_size=1), draw(overlapped(st.just(DeploymentSpec(1, worker, 1000)), overlap))


@st.composite
def hosted_pairs(draw: st.DrawFn) -> DeploymentSpec:
    """Draw a prefill and a decode role of vLLM, with host memory on either or both."""
    pair = draw(disaggregated([Backend.VLLM], plain=True))
    assert pair.decode is not None
    which = draw(st.sampled_from(["prefill", "decode", "both"]))
    prefill, decode = (replace(worker, prefix_caching=True) for worker in (pair.worker, pair.decode.worker))
    if which != "decode":
        prefill = replace(prefill, host=draw(hosts))
    if which != "prefill":
        decode = replace(decode, host=draw(hosts))
    return replace(pair, worker=prefill, decode=replace(pair.decode, worker=decode))
