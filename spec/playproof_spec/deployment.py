"""What is simulated: the deployment's shape and the load on it, checked before, in tokens and nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Backend(IntEnum):
    """Which engine's scheduler and cache a worker runs."""

    VLLM = 0
    SGLANG = 1


class Rules(IntEnum):
    """Whose rules an SGLang worker follows where SGLang and the peer part (docs/fidelity.md)."""

    SGLANG = 0  # its own
    AISIMULATE = 1  # the peer's


class Role(IntEnum):
    """What a worker does of a request."""

    AGGREGATED = 0
    PREFILL = 1
    DECODE = 2


class TimingKind(IntEnum):
    """How long a pass takes."""

    FIXED = 0
    POLYNOMIAL = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """A timing model. `prefill_ns` and `decode_ns` belong to the fixed kind; the polynomial kind has no parameters."""

    kind: TimingKind = TimingKind.FIXED
    prefill_ns: int = 40_000_000
    decode_ns: int = 12_000_000


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Host memory behind the G1 pools of vLLM workers (G2), and the two links of each worker to it.

    Attributes
    ----------
    blocks : int
        Blocks that it holds, > 0.
    block_bytes : int
        Bytes of one block's KV, over all its tokens.
    d2h_bytes_per_second, h2d_bytes_per_second : float | None
        Rate of the link from device to host, and of the one back; None: at once.
    latency_ns : int
        From the instant a copy may start to its first byte.
    shared : bool
        Whether it is one pool for all workers whose roles say so, with its blocks counted once; else each worker has
        its own. Roles that share it agree on everything but the links and the latency.
    shared_d2h_bytes_per_second, shared_h2d_bytes_per_second : float | None
        Rate of all links to a shared pool together, and of those back; None: no bound. A private pool has no such rate.
    """

    blocks: int
    block_bytes: int
    d2h_bytes_per_second: float | None = None
    h2d_bytes_per_second: float | None = None
    latency_ns: int = 0
    shared: bool = False
    shared_d2h_bytes_per_second: float | None = None
    shared_h2d_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: scheduler limits and G1 pool.

    Attributes
    ----------
    blocks : int
        Physical KV blocks in the pool.
    block_size : int
        Tokens a block holds.
    max_batched_tokens : int
        Token budget of a vLLM pass.
    max_sequences : int
        How many requests may run at once.
    prefix_caching : bool
    timing : Timing
    backend : Backend
    chunked_prefill_size : int
        Tokens that an SGLang prefill pass may compute; a longer rest of a prompt is cut to whole pages.
    max_prefill_tokens : int
        Tokens that an SGLang prefill pass may compute of prompts, whatever the chunk.
    schedule_conservativeness : float
        Scales how much of the running requests' remaining output SGLang keeps free when it admits.
    host : HostSpec | None
        Its host memory, or None. vLLM with prefix caching only.
    ahead : bool
        vLLM's asynchronous scheduling, or SGLang's overlap schedule: a pass is scheduled while the one before it runs.
        Neither with host memory nor with speculation nor in prefill/decode; with SGLang's own rules only.
    reserve_full_prompt : bool
        Whether vLLM admits a request only when all tokens that it knows have room, or as soon as those of its first
        pass have.
    watermark : float
        Share of the pool that stays available when vLLM admits a request beside running ones; 0 to 1.
    long_prefill_tokens : int
        Most tokens that a vLLM pass computes of one request, unless there is no other; 0: no bound of its own.
    reuse_output : bool
        Whether blocks of generated tokens are found by a prompt that the trace makes of them (docs/configuration.md).
    rules : Rules
        Whose rules an SGLang worker follows.
    ignore_eos : bool
        Whether SGLang knows that requests generate all that they may, and keeps all of it free instead of a share.
    """

    blocks: int
    block_size: int = 64
    max_batched_tokens: int = 8192
    max_sequences: int = 256
    prefix_caching: bool = True
    timing: Timing = field(default_factory=Timing)
    backend: Backend = Backend.VLLM
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    schedule_conservativeness: float = 1.0
    host: HostSpec | None = None
    ahead: bool = False
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    long_prefill_tokens: int = 0
    reuse_output: bool = False
    rules: Rules = Rules.SGLANG
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """How a prompt's KV moves from a prefill worker to a decode worker. Transfers do not slow each other.

    Attributes
    ----------
    bytes_per_token : int
    bytes_per_second : float | None
        None: at once.
    full_prompt : bool
        Whether all tokens of the prompt move, or only the blocks that the destination lacks.
    """

    bytes_per_token: int
    bytes_per_second: float | None = None
    full_prompt: bool = False


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """The decode role of a prefill/decode deployment: equal workers behind a router of their own."""

    workers: int
    worker: WorkerSpec
    transfer: TransferSpec


# Draft tokens that a pass may verify for one request at most.
MAX_DRAFTS = 16


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """Speculative decoding on all workers that generate (docs/configuration.md).

    Attributes
    ----------
    drafts : int
        Tokens proposed for each request of a decode pass, 1 to MAX_DRAFTS.
    rates : tuple of float
        How likely each is accepted if those before it were. Those that are missing are 0, those too many are ignored.
    seed : int
        Of the draws, 0 to 2^64 - 1.
    """

    drafts: int
    rates: tuple[float, ...]
    seed: int = 42


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """A KV-aware router before each role (docs/routing.md).

    Attributes
    ----------
    overlap_score_weight : float
        What a prompt block that has to be computed (or moved) costs, beside a block that is held; finite, ≥ 0.
    host_cache_hit_weight : float
        How much of a block less it is when host memory has it; 0 to 1.
    """

    overlap_score_weight: float = 1.0
    host_cache_hit_weight: float = 0.75


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """`workers` equal workers behind a router: aggregated, or the prefill role if there is a decode role.

    Attributes
    ----------
    context_length : int
        Tokens of prompt and output a request may have. A prompt this long is rejected; generation stops when it is
        reached.
    decode : DecodeSpec | None
        The decode role, of the same backend and block size; None: the deployment is aggregated.
    speculation : SpeculationSpec | None
    router : RouterSpec | None
        None: round robin, in each role.
    """

    workers: int
    worker: WorkerSpec
    context_length: int
    decode: DecodeSpec | None = None
    speculation: SpeculationSpec | None = None
    router: RouterSpec | None = None


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """A profile: lanes are refilled for a time, and what still runs then gets a grace. Nanoseconds.

    Attributes
    ----------
    duration_ns : int
        From the barrier on; > 0. At its end nothing new is issued.
    grace_ns : int
        After that, before what is in flight is canceled.
    drain_ns : int
        What the cancellation may take at most. Simulated engines acknowledge it at once.
    tree_cap_ns, global_cap_ns : int
        How long one play, and all plays together, may wait for nothing but timers; > 0.
    """

    duration_ns: int = 3_600_000_000_000
    grace_ns: int = 30_000_000_000
    drain_ns: int = 10_000_000_000
    tree_cap_ns: int = 300_000_000_000
    global_cap_ns: int = 10_000_000_000


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """How the corpus is offered.

    Attributes
    ----------
    lanes : int | None
        Seats for plays, or None: every play starts at its recorded time.
    speedup : float
        Divides authored floors and delays, never engine time.
    stop_ns : int | None
        The run stops at this instant, once all that is due by then has happened; what has not ended is left as it is.
    macro_steps : bool
        Advance decode passes many at a time. The result is the same without; the property tests say so.
    cancellations : tuple of (int, int)
        Instants (ns) and node indices: the client gives up on the node's request at that instant. What is not in flight
        then is left alone.
    play_scope : bool
        Whether a play shares no cached block with any other. Under the run controls it never does.
    snapshot_seed : int | None
        Start each lane inside its first play, at a cut drawn from this seed; needs lanes. A run under run
        controls, in which plays are instances.
    warmup : bool
        Bring what the cut plays have in progress into the caches first; needs a snapshot.
    profile : ProfileSpec | None
        Refill lanes until a deadline; needs a snapshot. None: each lane runs its one play.
    """

    lanes: int | None = None
    speedup: float = 1.0
    stop_ns: int | None = None
    macro_steps: bool = True
    cancellations: tuple[tuple[int, int], ...] = ()
    play_scope: bool = False
    snapshot_seed: int | None = None
    warmup: bool = False
    profile: ProfileSpec | None = None
