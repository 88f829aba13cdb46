"""What a user says of a deployment and of the load on it: `Deployment`, `Disaggregated`, `Load`, the timing models.

Milliseconds and tokens, checked when made; `to_spec()` gives the specification's form, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec
from playproof_spec.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    ProfileSpec,
    RouterSpec,
    Rules,
    SpeculationSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.findings import Finding, Findings, InvalidInput, Where, finding
from playproof_spec.graph import MAX_TOKENS
from playproof_spec.units import ms_to_ns

from playproof.fields import (
    MAX_BLOCKS_ALL_WORKERS,
    MAX_SEED,
    Bandwidth,
    Blocks,
    BlockSize,
    Conservativeness,
    ContextLength,
    Drafts,
    Lanes,
    LinkBandwidth,
    PassMs,
    Positive,
    Rates,
    Seconds,
    Seed,
    Sequences,
    Share,
    SomeSeconds,
    Speedup,
    Tokens,
    Weight,
    Workers,
    check,
)

BackendName = Literal["vllm", "sglang"]
ReuseOutput = Literal["auto", "never"]
RulesName = Literal["sglang", "aisimulate"]
RULES: tuple[str, ...] = get_args(RulesName)
# `context_length: max`: longer than any prompt and output that a trace may declare.
UNLIMITED_CONTEXT_TOKENS = 2 * MAX_TOKENS + 1
# The pool of the stated default: 1,048,576 tokens, so that a request of a million tokens fits.
DEFAULT_BLOCKS = 16_384
BYTES_PER_GB = 1e9
# Of a worker's link to host memory, and of all links to a shared pool together, where nothing else is said.
DEFAULT_LINK_GBPS = 32.0
DEFAULT_SHARED_GBPS = 80.0
# What roles that share a host pool have to agree on, besides their block size: the layout of a block in it, and the
# pool itself. How the KV moves between the roles is no part of it.
POOL_LAYOUT = ("bytes_per_token", "tensor", "pipeline")
POOL_SETTINGS = ("num_host_blocks", "shared_d2h_bandwidth_gbps", "shared_h2d_bandwidth_gbps")
MS_PER_S = 1000.0


class SchedulerSettings(Protocol):
    """What has the settings of a scheduler that do not go with everything: workers, and a section of a file."""

    @property
    def async_scheduling(self) -> bool: ...
    @property
    def rules(self) -> str: ...
    @property
    def watermark(self) -> float: ...
    @property
    def scheduler_reserve_full_isl(self) -> bool: ...


class InvalidDeployment(InvalidInput):
    """A deployment, a load or a configuration that cannot be simulated; `.findings` say why."""


def too_many_blocks(where: Where, *pools: tuple[int, int]) -> Finding | None:
    """Return a finding if `pools`, each its workers and the blocks of one of them, are too large together."""
    if sum(workers * blocks for workers, blocks in pools) <= MAX_BLOCKS_ALL_WORKERS:
        return None
    return finding(
        "config-value",
        "the pools of all workers together are too large",
        where=where,
        found=" + ".join(f"{workers} workers × {blocks} blocks" for workers, blocks in pools),
        wanted=f"at most {MAX_BLOCKS_ALL_WORKERS} blocks in all",
    )


def unequal_blocks(where: Where, sizes: Mapping[str, int]) -> Finding | None:
    """Return a finding if the roles' block sizes, by the names of their fields, differ."""
    if len(set(sizes.values())) == 1:
        return None
    return finding(
        "config-combination",
        "prefill and decode blocks are not of one size",
        where=where,
        found=", ".join(f"{field}: {size}" for field, size in sizes.items()),
        wanted="one size for both",
        because="A handoff moves blocks one for one, from the prefill worker's pool to the decode worker's.",
        hint="Give both roles the same block_size.",
    )


def unequal_rules(where: Where, prefill: str, decode: str) -> Finding | None:
    """Return a finding if the roles follow different sets of SGLang's rules."""
    if prefill == decode:
        return None
    return finding(
        "config-combination",
        "the roles do not follow one set of rules",
        where=where,
        found=f"prefill: {prefill}, decode: {decode}",
        wanted="one value for both",
        because="A set of rules says how one engine behaves, and both roles are that engine.",
        hint="Give both roles the same rules.",
    )


def bandwidth_without_bytes(where: Where) -> Finding:
    """Return the finding on a bandwidth of which nobody knows what it has to carry."""
    return finding("config-missing", "a bandwidth needs bytes_per_token", where=where)


def unusable_host(where: Where, backend: str, prefix_caching: bool) -> list[Finding]:
    """Return findings on host memory behind a cache that cannot use it."""
    problems = []
    if backend != "vllm":
        message = f"host offload with the backend {backend} is not supported"
        problems.append(finding("config-unsupported", message, where=where, wanted="backend: vllm"))
    if not prefix_caching:
        message = "host offload keeps blocks of the prefix cache, which is off"
        problems.append(finding("config-combination", message, where=where, wanted="prefix_caching: true"))
    return problems


# Settings of vLLM's scheduler that exclude something else of a worker, with their defaults; and what each excludes. In
# prefill/decode, prompts that wait to be moved may hold what a prompt that was admitted by its first chunk needs: it
# would be preempted and admitted again without end.
BESIDE_HOST = {"async_scheduling": False, "watermark": 0.0, "scheduler_reserve_full_isl": True}
EXCLUDED = {
    "async_scheduling": ("host offload", "speculation", "prefill/decode"),
    "watermark": ("host offload",),
    "scheduler_reserve_full_isl": ("host offload", "prefill/decode"),
}


def unusable_scheduling(
    worker: SchedulerSettings, backend: str, place: str, where: Callable[[str], Where], others: Mapping[str, bool]
) -> list[Finding]:
    """Return findings on scheduler settings that exclude what else a worker has.

    Parameters
    ----------
    worker : SchedulerSettings
    backend : str
    place : str
        What the settings stand in, for their full names.
    where : callable
        Where a setting of a full name was written.
    others : mapping of str to bool
        Whether there is "host offload", "speculation", "prefill/decode".
    """
    settings: Mapping[str, bool | float] = BESIDE_HOST
    if backend == "sglang":
        # The other settings have no effect there. The other two are refused there, whatever the scheduler does.
        settings = {"async_scheduling": False}
        others = {"prefill/decode": others.get("prefill/decode", False), "rules: aisimulate": worker.rules != "sglang"}
    problems = []
    for name, default in settings.items():
        value = getattr(worker, name)
        excluded = others if backend == "sglang" else EXCLUDED[name]
        for other in (other for other in excluded if others.get(other, False) and value != default):
            problems.append(
                finding(
                    "config-unsupported",
                    f"{name} with {other} is not simulated",
                    where=where(f"{place}.{name}"),
                    found=str(value),
                    wanted=str(default),
                    hint=f"Leave {name} at its default, or remove the {other}.",
                )
            )
    return problems


def unequal_pools(where: Where, name: str, prefill: object, decode: object) -> Finding | None:
    """Return a finding if the roles that share a host pool differ in `name`, of `POOL_LAYOUT` or `POOL_SETTINGS`."""
    if prefill == decode:
        return None
    of_layout = name in POOL_LAYOUT
    return finding(
        "config-combination",
        f"the roles share one host pool, but not one {name}",
        where=where,
        found=f"prefill: {prefill}, decode: {decode}",
        wanted="one value for both",
        because="A block in the pool serves both roles as it is." if of_layout else "There is one pool for both roles.",
        hint=f"Give both roles the same {name}, or each worker host memory of its own (scope: dp_rank_local).",
    )


def unusable_speculation(where: Where, backend: str, hosts: Sequence[str]) -> list[Finding]:
    """Return findings on speculation that workers of `backend` cannot do, or not with the host memory named `hosts`."""
    problems = []
    if backend != "vllm":
        message = "ngram speculation is simulated on vLLM workers only"
        hint = "Remove the speculation, or choose backend: vllm."
        problems.append(
            finding(
                "config-unsupported",
                message,
                where=where,
                found=f"backend: {backend}",
                wanted="backend: vllm",
                hint=hint,
            )
        )
    if hosts:
        message = "speculation and host offload exclude one another"
        hint = "Remove the speculation, or the host offload."
        problems.append(
            finding(
                "config-combination", message, where=where, found=", ".join(hosts), wanted="no host offload", hint=hint
            )
        )
    return problems


def seed_too_long(where: Where, seed: int) -> Finding | None:
    """Return a finding if a seed has more than 64 bits."""
    if seed <= MAX_SEED:
        return None
    message, wanted = "the seed has more than 64 bits", f"a whole number from 0 to {MAX_SEED}"
    return finding("config-value", message, where=where, found=str(seed), wanted=wanted)


def _field(name: str) -> Where:
    return Where(field=name)


def _refused(*problems: Finding) -> InvalidDeployment:
    findings = Findings()
    for problem in problems:
        findings.add(problem)
    return InvalidDeployment(findings)


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct that checks every field when it is made, and tells all that is wrong at once."""

    def __post_init__(self) -> None:
        problems: list[Finding] = []
        for info in msgspec.structs.fields(self):
            where = Where(field=f"{type(self).__name__}.{info.name}")
            value, problem = check(info.type, getattr(self, info.name), where)
            if problem is not None:
                problems.append(problem)
            else:
                msgspec.structs.force_setattr(self, info.name, value)
        if problems:
            raise _refused(*problems)


class FixedTiming(Checked, frozen=True, kw_only=True, tag="fixed", tag_field="type"):
    """Every pass takes the same time, whatever its batch.

    Attributes
    ----------
    prefill_ms, decode_ms : float
        Cost of a pass's prefill part and of its decode part, milliseconds, ≥ 0. A pass that has both pays both.
    """

    prefill_ms: PassMs = 40.0
    decode_ms: PassMs = 12.0


class PolynomialTiming(Checked, frozen=True, kw_only=True, tag="polynomial", tag_field="type"):
    """Passes cost by polynomials in the tokens computed and in the share of the pool in use.

    The coefficients stand in docs/configuration.md.
    """


class HostOffload(Checked, frozen=True, kw_only=True):
    """Host memory behind the KV pool of each worker (G2), and the worker's links to it.

    Attributes
    ----------
    num_host_blocks : int
        KV blocks that it holds.
    bytes_per_token : int
        What one token's KV weighs.
    scope : "dp_rank_local" or "cluster_shared"
        Each worker has its own, or all workers of all roles that say so share one, whose blocks are counted once.
    d2h_bandwidth_gbps, h2d_bandwidth_gbps : float
        Of the link from device to host, and of the one back, in 10⁹ bytes per second; 0 moves everything at once.
    latency_to_first_byte_ms : float
        From the instant a copy may start to its first byte.
    shared_d2h_bandwidth_gbps, shared_h2d_bandwidth_gbps : float
        Of all links to a shared pool together, and of those back; 0 sets no bound. They mean nothing to private ones.
    tensor, pipeline : int
        Ranks over which the workers' KV is split. Like the block size and `bytes_per_token` they say what a block in
        host memory looks like: roles that share a pool agree on all of them.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type; all such fields are named.
    """

    num_host_blocks: Blocks
    bytes_per_token: Positive
    scope: Literal["dp_rank_local", "cluster_shared"] = "dp_rank_local"
    d2h_bandwidth_gbps: LinkBandwidth = DEFAULT_LINK_GBPS
    h2d_bandwidth_gbps: LinkBandwidth = DEFAULT_LINK_GBPS
    latency_to_first_byte_ms: PassMs = 0.0
    shared_d2h_bandwidth_gbps: LinkBandwidth = DEFAULT_SHARED_GBPS
    shared_h2d_bandwidth_gbps: LinkBandwidth = DEFAULT_SHARED_GBPS
    tensor: Positive = 1
    pipeline: Positive = 1

    @property
    def is_shared(self) -> bool:
        """Whether it is one pool for all workers."""
        return self.scope == "cluster_shared"

    def _pool_spec(self) -> dict[str, Any]:
        """Return what the kernel's form says of a shared pool."""
        if not self.is_shared:
            return {}
        return {
            "shared": True,
            "shared_d2h_bytes_per_second": self.shared_d2h_bandwidth_gbps * BYTES_PER_GB or None,
            "shared_h2d_bytes_per_second": self.shared_h2d_bandwidth_gbps * BYTES_PER_GB or None,
        }


class RoleWorkers(Checked, frozen=True, kw_only=True):
    """Workers, all alike, behind a router: what the aggregated deployment and each role have in common.

    :class:`Deployment` says what each field means.
    """

    workers: Workers = 1
    blocks: Blocks = DEFAULT_BLOCKS
    block_size: BlockSize = 64
    prefix_caching: bool = True
    max_batched_tokens: Positive = 8192
    max_sequences: Sequences = 256
    chunked_prefill_size: Positive = 8192
    max_prefill_tokens: Positive = 16384
    schedule_conservativeness: Conservativeness = 1.0
    async_scheduling: bool = False
    watermark: Share = 0.0
    long_prefill_token_threshold: Tokens = 0
    scheduler_reserve_full_isl: bool = True
    prefill_schedule_interval: Positive = 1
    reuse_output: ReuseOutput = "never"
    rules: RulesName = "sglang"
    ignore_eos: bool = False
    timing: FixedTiming | PolynomialTiming = FixedTiming()
    host_offload: HostOffload | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = too_many_blocks(Where(field=f"{type(self).__name__}.blocks"), (self.workers, self.blocks))
        if problem is not None:
            raise _refused(problem)

    def _unusable_host(self, name: str, backend: BackendName) -> list[Finding]:
        """Return findings on host memory that the workers cannot use; `name` is what a finding calls them."""
        if self.host_offload is None:
            return []
        return unusable_host(Where(field=f"{name}.host_offload"), backend, self.prefix_caching)

    def _host_spec(self) -> HostSpec | None:
        host = self.host_offload
        if host is None:
            return None
        return HostSpec(
            blocks=host.num_host_blocks,
            block_bytes=host.bytes_per_token * self.block_size,
            d2h_bytes_per_second=host.d2h_bandwidth_gbps * BYTES_PER_GB or None,
            h2d_bytes_per_second=host.h2d_bandwidth_gbps * BYTES_PER_GB or None,
            latency_ns=ms_to_ns(host.latency_to_first_byte_ms),
            **host._pool_spec(),
        )

    def _worker_spec(self, backend: BackendName) -> WorkerSpec:
        return WorkerSpec(
            blocks=self.blocks,
            block_size=self.block_size,
            max_batched_tokens=self.max_batched_tokens,
            max_sequences=self.max_sequences,
            prefix_caching=self.prefix_caching,
            timing=_timing_spec(self.timing),
            backend=Backend[backend.upper()],
            chunked_prefill_size=self.chunked_prefill_size,
            max_prefill_tokens=self.max_prefill_tokens,
            schedule_conservativeness=self.schedule_conservativeness,
            rules=Rules[self.rules.upper()],
            ignore_eos=self.ignore_eos,
            host=self._host_spec(),
            ahead=self.async_scheduling,
            watermark=self.watermark if backend == "vllm" else 0.0,
            long_prefill_tokens=self.long_prefill_token_threshold if backend == "vllm" else 0,
            reserve_full_prompt=self.scheduler_reserve_full_isl or backend != "vllm",
            reuse_output=self.reuse_output == "auto",
        )


class Speculation(Checked, frozen=True, kw_only=True):
    """Speculative decoding with drafts looked up in the prompt: a decode pass gives a request its next token, and
    behind it every draft up to the first that is not accepted.

    Attributes
    ----------
    num_speculative_tokens : int
        Drafts for each request of a decode pass.
    acceptance_rates : tuple of float
        How likely each draft is accepted if those before it were. Missing ones are 0, surplus ones are ignored.
    seed : int
        Of the draws.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type.
    """

    num_speculative_tokens: Drafts
    acceptance_rates: Rates
    seed: Seed = 42
    kind: Literal["ngram"] = "ngram"

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = seed_too_long(Where(field="Speculation.seed"), self.seed)
        if problem is not None:
            raise _refused(problem)

    def to_spec(self) -> SpeculationSpec:
        """Return the specification's form."""
        return SpeculationSpec(self.num_speculative_tokens, self.acceptance_rates, self.seed)


def _speculating(speculation: Speculation | None) -> SpeculationSpec | None:
    return None if speculation is None else speculation.to_spec()


class RoundRobin(Checked, frozen=True, kw_only=True, tag="round_robin", tag_field="policy"):
    """Requests go to the workers of a role in turn."""

    def to_spec(self) -> RouterSpec | None:
        """Return the specification's form."""
        return None


class KvRouter(Checked, frozen=True, kw_only=True, tag="kv_router", tag_field="policy"):
    """A request goes where it costs least, by what each worker has told of its caches and by its load.

    The cost stands in docs/routing.md. Each role has a router of its own.

    Attributes
    ----------
    overlap_score_weight : float
        What a block of prompt that has to be computed, or moved, costs beside a block that is merely held; 0 leaves
        caches out of it.
    host_cache_hit_weight : float
        The part of that which a block saves when host memory has it, 0 to 1; on the device it saves all.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type.
    """

    overlap_score_weight: Weight = 1.0
    host_cache_hit_weight: Share = 0.75

    def to_spec(self) -> RouterSpec | None:
        """Return the specification's form."""
        return RouterSpec(self.overlap_score_weight, self.host_cache_hit_weight)


class Deployment(RoleWorkers, frozen=True, kw_only=True, tag="aggregated", tag_field="mode"):
    """Aggregated workers, all alike, behind a router. For prefill/decode see :class:`Disaggregated`.

    Attributes
    ----------
    workers : int
    backend : "vllm" or "sglang"
        Whose scheduler and cache the workers run.
    blocks : int
        KV blocks in the pool of one worker. The default holds 1,048,576 tokens at the default block size.
    block_size : int
        Tokens a block holds; SGLang calls it the page size.
    prefix_caching : bool
    max_batched_tokens : int
        Token budget of one vLLM pass; it means nothing to SGLang.
    max_sequences : int
        Requests that may run at once on one worker.
    chunked_prefill_size, max_prefill_tokens : int
        What one SGLang prefill pass may compute: of a prompt that it has to cut, and in all. They mean nothing to vLLM.
    schedule_conservativeness : float
        Scales how much of the running requests' remaining output SGLang keeps free when it admits.
    async_scheduling : bool
        Whether a pass is scheduled while the one before it runs: vLLM's asynchronous scheduling and SGLang's overlap
        schedule, which both have by default; here the default is not to, as in the peer. Neither with host memory nor
        with speculation, and not under ``rules="aisimulate"``.
    watermark : float
        Share of the pool that vLLM leaves available when it admits a request beside running ones, 0 to 1.
    long_prefill_token_threshold : int
        Most tokens that a vLLM pass computes of one request while there is another; 0 sets no bound but the budget.
    scheduler_reserve_full_isl : bool
        Whether vLLM admits a request only when its whole prompt has room, or as soon as its first chunk has.
    prefill_schedule_interval : int
        vLLM throttles prefills by it between ranks of one data-parallel engine, which are not simulated: it changes
        nothing here, and a value other than 1 is told of.
    reuse_output : "auto" or "never"
        Whether generated tokens are found in cache by a later prompt whose hash ids say that it holds them.
    rules : "sglang" or "aisimulate"
        Whose rules SGLang workers follow where SGLang itself and the peer part; both roles follow the same.
    ignore_eos : bool
        Whether SGLang is told that every request generates all that it may; it then keeps all of that free.
    context_length : int or "max"
        Tokens of prompt and output that a request may have; "max" sets no limit.
    speculation : Speculation or None
        vLLM only.
    router : RoundRobin or KvRouter
    timing : FixedTiming or PolynomialTiming
    host_offload : HostOffload or None
        Host memory behind each worker's pool: vLLM with prefix caching only.
    model, hardware : str or None
        Labels that reports repeat; they change nothing.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type; all such fields are named. When host memory stands behind a
        cache that does not use it.

    Examples
    --------
    >>> Deployment(workers=4, blocks=8192).context_length
    'max'
    """

    backend: BackendName = "vllm"
    context_length: ContextLength = "max"
    speculation: Speculation | None = None
    router: RoundRobin | KvRouter = RoundRobin()
    model: str | None = None
    hardware: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = self._unusable_host("Deployment", self.backend)
        others = {"host offload": self.host_offload is not None, "speculation": self.speculation is not None}
        problems += unusable_scheduling(self, self.backend, "Deployment", _field, others)
        if self.speculation is not None:
            hosts = ["Deployment.host_offload"] if self.host_offload is not None else []
            problems += unusable_speculation(Where(field="Deployment.speculation"), self.backend, hosts)
        if problems:
            raise _refused(*problems)

    @property
    def context_tokens(self) -> int:
        """The context limit in tokens, also where it is "max"."""
        return _context_tokens(self.context_length)

    @property
    def roles(self) -> dict[str, RoleWorkers]:
        """The workers by their role: here all of them are "aggregated"."""
        return {"aggregated": self}

    def to_dict(self) -> dict[str, Any]:
        """Return the deployment as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def to_spec(self) -> DeploymentSpec:
        """Return the specification's form."""
        worker = self._worker_spec(self.backend)
        return DeploymentSpec(
            workers=self.workers,
            worker=worker,
            context_length=self.context_tokens,
            speculation=_speculating(self.speculation),
            router=self.router.to_spec(),
        )


class PrefillRole(RoleWorkers, frozen=True, kw_only=True):
    """The workers that compute prompts, in a :class:`Disaggregated` deployment.

    The fields are those of :class:`Deployment` that speak of workers. `max_sequences` is 1 unless given: one prompt
    after the other.
    """

    max_sequences: Sequences = 1


class DecodeRole(RoleWorkers, frozen=True, kw_only=True):
    """The workers that generate, in a :class:`Disaggregated` deployment; the fields are those of `PrefillRole`."""


class Transfer(Checked, frozen=True, kw_only=True):
    """How a prompt's KV gets from its prefill worker to its decode worker. Transfers do not slow each other.

    Attributes
    ----------
    bandwidth_gb_per_second : float or None
        Of each transfer, in 10⁹ bytes per second; None moves everything at once.
    bytes_per_token : int or None
        What one token's KV weighs; a bandwidth needs it.
    timing_mode : "destination_missing" or "full_prompt"
        Whether the blocks that the destination lacks are moved, or all tokens of the prompt.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type, or a bandwidth has no `bytes_per_token`.
    """

    bandwidth_gb_per_second: Bandwidth | None = None
    bytes_per_token: Positive | None = None
    timing_mode: Literal["destination_missing", "full_prompt"] = "destination_missing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bandwidth_gb_per_second is not None and self.bytes_per_token is None:
            raise _refused(bandwidth_without_bytes(Where(field="Transfer.bytes_per_token")))

    @property
    def bytes_per_second(self) -> float | None:
        """The bandwidth, in bytes per second."""
        return None if self.bandwidth_gb_per_second is None else self.bandwidth_gb_per_second * BYTES_PER_GB


class Disaggregated(Checked, frozen=True, kw_only=True, tag="disaggregated", tag_field="mode"):
    """Prefill workers and decode workers, each role behind a router of its own.

    Attributes
    ----------
    backend : "vllm" or "sglang"
        Whose scheduler, cache and handoff both roles run: vLLM reserves at the destination after the prefill, SGLang
        before it.
    prefill : PrefillRole
    decode : DecodeRole
        Its blocks are as large as the prefill role's, since they move one for one.
    transfer : Transfer
    context_length : int or "max"
        Tokens of prompt and output that a request may have; "max" sets no limit.
    speculation : Speculation or None
        Of the decode role; vLLM only.
    router : RoundRobin or KvRouter
        Of each role.
    model, hardware : str or None
        Labels that reports repeat; they change nothing.

    Raises
    ------
    InvalidDeployment
        When a field is of the wrong type, the roles' blocks differ in size, or the pools are too large together.

    Examples
    --------
    >>> pair = Disaggregated(prefill=PrefillRole(workers=4), transfer=Transfer(timing_mode="full_prompt"))
    >>> pair.prefill.workers, pair.prefill.max_sequences, pair.decode.workers, pair.decode.max_sequences
    (4, 1, 1, 256)
    """

    backend: BackendName = "vllm"
    prefill: PrefillRole = PrefillRole()
    decode: DecodeRole = DecodeRole()
    transfer: Transfer = Transfer()
    context_length: ContextLength = "max"
    speculation: Speculation | None = None
    router: RoundRobin | KvRouter = RoundRobin()
    model: str | None = None
    hardware: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {f"Disaggregated.{name}.block_size": role.block_size for name, role in self.roles.items()}
        pools = [(role.workers, role.blocks) for role in self.roles.values()]
        problems = (
            unequal_blocks(Where(field="Disaggregated.decode.block_size"), sizes),
            too_many_blocks(Where(field="Disaggregated.decode.blocks"), *pools),
            unequal_rules(Where(field="Disaggregated.decode.rules"), self.prefill.rules, self.decode.rules),
        )
        found = [problem for problem in problems if problem is not None]
        for name, role in self.roles.items():
            found += role._unusable_host(f"Disaggregated.{name}", self.backend)
            others = {"host offload": role.host_offload is not None, "prefill/decode": True}
            found += unusable_scheduling(role, self.backend, f"Disaggregated.{name}", _field, others)
        found += self._unequal_pools()
        if self.speculation is not None:
            hosts = [f"Disaggregated.{name}.host_offload" for name, role in self.roles.items() if role.host_offload]
            found += unusable_speculation(Where(field="Disaggregated.speculation"), self.backend, hosts)
        if found:
            raise _refused(*found)

    def _unequal_pools(self) -> list[Finding]:
        prefill, decode = self.prefill.host_offload, self.decode.host_offload
        if prefill is None or decode is None or not (prefill.is_shared and decode.is_shared):
            return []
        problems = (
            unequal_pools(
                Where(field=f"Disaggregated.decode.host_offload.{name}"),
                name,
                getattr(prefill, name),
                getattr(decode, name),
            )
            for name in (*POOL_LAYOUT, *POOL_SETTINGS)
        )
        return [problem for problem in problems if problem is not None]

    @property
    def context_tokens(self) -> int:
        """The context limit in tokens, also where it is "max"."""
        return _context_tokens(self.context_length)

    @property
    def roles(self) -> dict[str, RoleWorkers]:
        """The workers by their role: "prefill", then "decode"."""
        return {"prefill": self.prefill, "decode": self.decode}

    def to_dict(self) -> dict[str, Any]:
        """Return the deployment as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def to_spec(self) -> DeploymentSpec:
        """Return the specification's form."""
        transfer = TransferSpec(
            # Without a bandwidth nothing weighs anything.
            bytes_per_token=self.transfer.bytes_per_token or 0,
            bytes_per_second=self.transfer.bytes_per_second,
            full_prompt=self.transfer.timing_mode == "full_prompt",
        )
        return DeploymentSpec(
            workers=self.prefill.workers,
            worker=self.prefill._worker_spec(self.backend),
            context_length=self.context_tokens,
            decode=DecodeSpec(self.decode.workers, self.decode._worker_spec(self.backend), transfer),
            speculation=_speculating(self.speculation),
            router=self.router.to_spec(),
        )


AnyDeployment = Deployment | Disaggregated


def _context_tokens(context_length: int | str) -> int:
    return UNLIMITED_CONTEXT_TOKENS if isinstance(context_length, str) else context_length


def _timing_spec(timing: FixedTiming | PolynomialTiming) -> Timing:
    if isinstance(timing, PolynomialTiming):
        return Timing(TimingKind.POLYNOMIAL)
    return Timing(TimingKind.FIXED, ms_to_ns(timing.prefill_ms), ms_to_ns(timing.decode_ms))


class Profile(Checked, frozen=True, kw_only=True):
    """Lanes that are refilled for a time: each takes the next play of one cursor, which wraps, when its play ends.

    Attributes
    ----------
    duration_seconds : float
        From the barrier on, > 0. At its end nothing new is issued.
    response_grace_seconds : float
        How long what is in flight may go on after that, before it is canceled.
    cancel_drain_seconds : float
        How long the cancellation may take at most. Simulated engines acknowledge it at once.
    tree_idle_cap_seconds, global_idle_cap_seconds : float
        How long one play, and all plays together, may wait for nothing but recorded pauses, > 0.
    """

    duration_seconds: SomeSeconds = 3600.0
    response_grace_seconds: Seconds = 30.0
    cancel_drain_seconds: Seconds = 10.0
    tree_idle_cap_seconds: SomeSeconds = 300.0
    global_idle_cap_seconds: SomeSeconds = 10.0

    def to_spec(self) -> ProfileSpec:
        """Return the specification's form."""
        seconds = (getattr(self, info.name) for info in msgspec.structs.fields(self))
        return ProfileSpec(*(ms_to_ns(value * MS_PER_S) for value in seconds))


class Load(Checked, frozen=True, kw_only=True):
    """How the corpus is offered. Lanes and what follows from them are for agentic traces, a concurrency and a virtual
    time for ordinary ones.

    Attributes
    ----------
    lanes : int or None
        Seats for plays: each runs one play at a time and takes the next one when it settles. None starts every play
        at its recorded time.
    concurrency : int or None
        How many sessions of an ordinary trace are open at once: each holds its slot through all its turns and the
        pauses between them. None starts every session at its timestamp.
    max_virtual_time_seconds : float or None
        The replay of an ordinary trace stops at this instant; what has not ended then is counted as unfinished.
    speedup : float
        Divides authored floors and delays, never engine time.
    snapshot_seed : int or None
        Start each lane inside its play, at a cut drawn from this seed; needs lanes. Lanes beyond the corpus wrap.
    warmup : bool
        First bring the prompts of the cut plays into the caches, outside of all measurement; needs a snapshot.
    profile : Profile or None
        Refill lanes until a deadline; needs a snapshot. Without, each lane of a snapshot runs its one play.
    prefix_scope : "corpus" or "play"
        Which plays may share cached blocks: all, or none. Under a snapshot none ever do.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type, lacks the one that it needs, or excludes another.
    """

    lanes: Lanes | None = None
    concurrency: Lanes | None = None
    max_virtual_time_seconds: SomeSeconds | None = None
    speedup: Speedup = 1.0
    snapshot_seed: Seed | None = None
    warmup: bool = False
    profile: Profile | None = None
    prefix_scope: Literal["corpus", "play"] = "corpus"

    def __post_init__(self) -> None:
        super().__post_init__()
        findings = Findings()
        for problem in (*lacking(self, LOAD_NAMES), *excluding(self, LOAD_NAMES)):
            findings.add(problem)
        if findings.errors:
            raise InvalidDeployment(findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the load as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def to_spec(self) -> LoadSpec:
        """Return the specification's form."""
        return LoadSpec(
            # A slot for sessions is a lane: both are held until the last turn has ended.
            lanes=self.lanes if self.concurrency is None else self.concurrency,
            speedup=self.speedup,
            stop_ns=None
            if self.max_virtual_time_seconds is None
            else ms_to_ns(self.max_virtual_time_seconds * MS_PER_S),
            play_scope=self.prefix_scope == "play",
            snapshot_seed=self.snapshot_seed,
            warmup=self.warmup,
            profile=self.profile.to_spec() if self.profile is not None else None,
        )


# The controls of a load that belong to agentic traces.
AGENTIC_CONTROLS = ("lanes", "snapshot_seed", "warmup", "profile")
# What the settings that depend on one another, or on the trace, are called in Python.
LOAD_NAMES = {name: f"Load.{name}" for name in (*AGENTIC_CONTROLS, "concurrency", "max_virtual_time_seconds")}


class RunControls(Protocol):
    """What has run controls: a load, and the section of a file that it is made from."""

    @property
    def concurrency(self) -> int | None: ...
    @property
    def max_virtual_time_seconds(self) -> float | None: ...
    @property
    def lanes(self) -> int | None: ...
    @property
    def snapshot_seed(self) -> int | None: ...
    @property
    def warmup(self) -> bool: ...
    @property
    def profile(self) -> object | None: ...


def lacking(load: RunControls, names: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong between the run controls of a load.

    Parameters
    ----------
    load : RunControls
    names : mapping of str to str
        What each of these is called where the user wrote it.
    """
    seeded = load.snapshot_seed is not None
    problem = seed_too_long(Where(field=names["snapshot_seed"]), load.snapshot_seed or 0)
    if problem is not None:
        yield problem
    needs = (
        ("snapshot_seed", seeded, "lanes", load.lanes is not None, "a snapshot cuts the play of each lane"),
        ("warmup", load.warmup, "snapshot_seed", seeded, "a warmup prepares the plays of a snapshot"),
        ("profile", load.profile is not None, "snapshot_seed", seeded, "a profile starts from a snapshot"),
    )
    for name, given, other, present, reason in needs:
        if given and not present:
            message = f"{names[name].rpartition('.')[2]} needs {names[other].rpartition('.')[2]}: {reason}"
            where = Where(field=names[name])
            hint = f"Set {names[other]}, or remove {names[name]}."
            yield finding("config-combination", message, where=where, hint=hint)


def excluding(load: RunControls, names: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what of a load belongs to agentic traces, and what to ordinary ones, where it has both.

    Parameters
    ----------
    load : RunControls
    names : mapping of str to str
        What each of these is called where the user wrote it.
    """
    ordinary = [name for name in ("concurrency", "max_virtual_time_seconds") if getattr(load, name) is not None]
    for name in AGENTIC_CONTROLS:
        value = getattr(load, name)
        if ordinary and value is not None and value is not False:
            mine, other = names[name].rpartition(".")[2], names[ordinary[0]].rpartition(".")[2]
            message = f"{mine} belongs to agentic traces, {other} to ordinary ones"
            hint = f"Remove {names[name]} or {names[ordinary[0]]}."
            yield finding(
                "config-combination", message, where=Where(field=names[name]), found=f"{mine} and {other}", hint=hint
            )
