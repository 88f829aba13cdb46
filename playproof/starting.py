"""A configuration to begin with: commented, and read as it stands."""

from __future__ import annotations

__all__ = ["configuration"]

_TRAFFIC = """\
traffic:
  source:
    type: trace
    format: auto                  # or a name of docs/formats.md; auto tells by the content
    # Files and folders; relative ones start at this file's folder.
    paths: [{paths}]
    # block_size: 64              # tokens per hash id, only where the files do not say
    # skip_bad: true              # leave out what cannot be read, and say what
    # exclude: ["*.bak"]          # patterns of files and folders to leave out
"""

_AGENTIC_LOAD = """\
  load:
    type: trace_timestamps
    speedup: 1.0                  # divides recorded floors and delays, never engine time
    agentic_lanes: 8              # plays at once; without it every play starts at its recorded time
    # agentic_prefix_scope: play  # plays share no cached blocks
    # agentic_snapshot: {seed: 42}                    # start inside the plays,
    # agentic_warmup: true                            # warmed,
    # agentic_profile: {duration_seconds: 3600}       # for an hour: docs/run-controls.md
"""

_ORDINARY_LOAD = """\
  load:
    type: concurrency             # or trace_timestamps: sessions start at their timestamps
    concurrency: 64               # sessions at once
    speedup: 1.0                  # divides timestamps and delays, never engine time
  # stop: {max_virtual_time_seconds: 300}
"""

_ENGINE = """\
engine:
  mode: {mode}
  backend: {backend}
  # model: any label              # repeated in the report, changes nothing
  context_length: max             # or tokens of prompt and output that a request may have
  router: {{policy: round_robin}}   # or kv_router: by cached prefixes and load, docs/routing.md
  workers:
"""

_SCHEDULERS = {
    "vllm": "{{max_batched_tokens: {batched}, max_sequences: {sequences}}}",
    "sglang": "{{chunked_prefill_size: {batched}, max_prefill_tokens: 16384, max_sequences: {sequences}}}",
}

_WORKER = """\
    {role}:
      parallelism: {{replicas: {replicas}}}
      scheduler: {scheduler}
      kv_cache:
        block_size: 64            # tokens{page}
        prefix_caching: true
        capacity: {{type: fixed, blocks: {blocks}}}   # of each worker: what its KV memory holds
      timing: {{type: fixed, prefill_ms: 40, decode_ms: 12}}   # of the two parts of a pass; or type: polynomial
"""

_HOST = """\
        # bytes_per_token: 98304
        # host_offload: {num_host_blocks: 4096}   # host memory behind the cache, docs/host-offload.md
"""

_TRANSFER = """\
  kv_transfer: {bytes_per_token: 98304, bandwidth_gb_per_second: 50}   # of each transfer; without a bandwidth at once
"""

_REST = """\
# evaluation:
#   sla: {ttft_ms: 500, itl_ms: 50}   # the report says what holds these bounds; replay --fail-under 95% exits with 3
"""


def configuration(
    *, disaggregated: bool = False, sglang: bool = False, ordinary: bool = False, paths: str = "traces"
) -> str:
    """Return a commented YAML configuration.

    Parameters
    ----------
    disaggregated : bool
        Prefill and decode workers instead of aggregated ones.
    sglang : bool
        SGLang's scheduler and cache instead of vLLM's.
    ordinary : bool
        A load of sessions instead of agents' plays.
    paths : str
        The traces, as YAML writes them in a list.
    """
    backend = "sglang" if sglang else "vllm"
    roles = [("prefill", 1, 1, 20000), ("decode", 2, 256, 40000)] if disaggregated else [("aggregated", 1, 256, 40000)]
    workers = ""
    for role, replicas, sequences, blocks in roles:
        page = ": the page size" if sglang else ""
        scheduler = _SCHEDULERS[backend].format(batched=8192, sequences=sequences)
        text = _WORKER.format(role=role, replicas=replicas, scheduler=scheduler, page=page, blocks=blocks)
        head, timing, tail = text.partition("      timing:")
        workers += head + ("" if sglang else _HOST) + timing + tail
    return "".join(
        (
            "# What `playproof replay --config` reads; every key, its default and its reason: docs/configuration.md.\n",
            "# `playproof schema` prints the JSON Schema that editors complete and check it by.\n",
            _TRAFFIC.format(paths=paths),
            _ORDINARY_LOAD if ordinary else _AGENTIC_LOAD,
            _ENGINE.format(mode="disaggregated" if disaggregated else "aggregated", backend=backend),
            workers,
            _TRANSFER if disaggregated else "",
            _REST,
        )
    )
