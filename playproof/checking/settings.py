"""What a run was to do, as the checker reads it: the deployment and the load of a report or a configuration.

Both come as JSON values, the form that `report.json` has; nothing in them is trusted, and nothing here knows the types
that the kernel is configured with. Milliseconds become nanoseconds here, by the checker's own rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from playproof_spec.findings import Where, finding
from playproof_spec.pass_times import DECODE_MS, PREFILL_MS

from playproof.checking.verdict import Tally

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
# Longer than any delay that a run can have; sums of it and of an instant stay below 2**63.
LONGEST_NS = 2.0**61
# Longer than any prompt and answer that a trace may declare: `context_length: max`.
NO_LIMIT = 2**40
# What a pass costs at least under the polynomial timing model (docs/configuration.md): the constant of its prefill
# part, and the decode part of an empty pool, which is its least between no use and full use.
POLYNOMIAL_PREFILL_NS = int(PREFILL_MS[0] * NS_PER_MS) - 1
POLYNOMIAL_DECODE_NS = int(DECODE_MS[0] * NS_PER_MS) - 1

# No setting is beyond these (docs/configuration.md), and what is computed of one that a file claims stays finite.
Count = Annotated[int, Meta(ge=0, le=2**40)]
Size = Annotated[int, Meta(ge=1, le=2**40)]
Workers = Annotated[int, Meta(ge=1, le=2**12)]
Lanes = Annotated[int, Meta(ge=1, le=2**20)]
PassMs = Annotated[float, Meta(ge=0.0, le=3.6e6)]
Seconds = Annotated[float, Meta(ge=0.0, le=8.64e7)]
Speedup = Annotated[float, Meta(ge=1e-6, le=1e6)]
Bandwidth = Annotated[float, Meta(ge=1e-6, le=1e6)]


class AsJson(Protocol):
    """What says of itself what it is as JSON values: `playproof.Deployment`, `playproof.Load`."""

    def to_dict(self) -> dict[str, Any]: ...


class _Timing(msgspec.Struct):
    type: Literal["fixed", "polynomial"]
    prefill_ms: PassMs = 0.0
    decode_ms: PassMs = 0.0


class _Host(msgspec.Struct):
    num_host_blocks: Size
    scope: Literal["dp_rank_local", "cluster_shared"]


class _Speculation(msgspec.Struct):
    num_speculative_tokens: Size


class _Router(msgspec.Struct):
    policy: Literal["round_robin", "kv_router"]


class _Role(msgspec.Struct):
    workers: Workers
    blocks: Size
    block_size: Size
    prefix_caching: bool
    max_batched_tokens: Size
    max_sequences: Size
    chunked_prefill_size: Size
    async_scheduling: bool
    reuse_output: Literal["auto", "never"]
    timing: _Timing
    host_offload: _Host | None


class _Transfer(msgspec.Struct):
    bandwidth_gb_per_second: Bandwidth | None
    bytes_per_token: Count | None
    timing_mode: Literal["destination_missing", "full_prompt"]


class _Common(msgspec.Struct):
    mode: Literal["aggregated", "disaggregated"]
    backend: Literal["vllm", "sglang"]
    context_length: Size | Literal["max"]
    speculation: _Speculation | None
    router: _Router


class _Roles(msgspec.Struct):
    prefill: _Role
    decode: _Role
    transfer: _Transfer


class _Profile(msgspec.Struct):
    duration_seconds: Seconds
    response_grace_seconds: Seconds
    cancel_drain_seconds: Seconds
    tree_idle_cap_seconds: Seconds
    global_idle_cap_seconds: Seconds


class _Load(msgspec.Struct):
    lanes: Lanes | None = None
    concurrency: Lanes | None = None
    max_virtual_time_seconds: Seconds | None = None
    speedup: Speedup = 1.0
    snapshot_seed: Annotated[int, Meta(ge=0)] | None = None
    warmup: bool = False
    profile: _Profile | None = None
    prefix_scope: Literal["corpus", "play"] = "corpus"


@dataclass(frozen=True, slots=True)
class Role:
    """The workers of one role.

    Attributes
    ----------
    name : str
        "aggregated", "prefill" or "decode".
    chunk : int
        Most prompt tokens that a pass computes of one request.
    prefill_ns, decode_ns : int
        What a pass with such a part costs at least.
    host : str
        The scope of its host memory, "" without.
    host_blocks : int
        Blocks of that memory, 0 without.
    """

    name: str
    workers: int
    blocks: int
    block_size: int
    prefix_caching: bool
    max_sequences: int
    chunk: int
    ahead: bool
    reuse_output: bool
    prefill_ns: int
    decode_ns: int
    host: str
    host_blocks: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment as the checker needs it.

    Attributes
    ----------
    roles : tuple of Role
        One, or prefill and decode.
    context : int
        Tokens of prompt and answer, `NO_LIMIT` without a limit.
    drafts : int
        Speculative tokens of a decode pass, 0 without.
    transfer_bytes : int
        What a token's KV weighs on its way from prefill to decode.
    transfer_rate : float
        Bytes per second; 0 moves everything at once.
    full_prompt : bool
        Whether a transfer moves the whole prompt.
    """

    backend: str
    roles: tuple[Role, ...]
    context: int
    drafts: int
    round_robin: bool
    transfer_bytes: int
    transfer_rate: float
    full_prompt: bool

    @property
    def split(self) -> bool:
        """Whether it is prefill/decode."""
        return len(self.roles) == 2


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile's times, ns."""

    duration_ns: int
    grace_ns: int
    drain_ns: int
    tree_cap_ns: int
    global_cap_ns: int


@dataclass(frozen=True, slots=True)
class Load:
    """A load as the checker needs it.

    Attributes
    ----------
    lanes : int
        Plays (or sessions) at a time, 0 without a bound.
    stop_ns : int
        Where the run was to be stopped, -1 for nowhere.
    seed : int or None
        Of a snapshot.
    profile_seconds : dict of str to float
        A profile's times as they were given.
    by_play : bool
        Whether plays share no cached blocks.
    """

    lanes: int
    agentic_lanes: int | None
    stop_ns: int
    speedup: float
    seed: int | None
    warmup: bool
    profile: Profile | None
    profile_seconds: dict[str, float]
    by_play: bool


def to_ns(times_ms: Float64) -> Int64:
    """Return milliseconds as whole nanoseconds, halves to the even one; no more than fit a clock twice."""
    with np.errstate(over="ignore"):
        whole: Int64 = np.minimum(np.rint(times_ms * NS_PER_MS), LONGEST_NS).astype(np.int64)
    return whole


def at_speed(times_ms: Float64, speedup: float) -> Float64:
    """Return authored times as they are at a speed."""
    with np.errstate(over="ignore"):
        faster: Float64 = times_ms / speedup
    return faster


def ms_as_ns(time_ms: float) -> int:
    """Return milliseconds as whole nanoseconds, halves to the even one."""
    return round(time_ms * NS_PER_MS)


def as_json(given: object) -> Any:
    """Return settings as JSON values: what says of itself what it is, or what a file says, whatever that is."""
    told = getattr(given, "to_dict", None)
    return given if told is None else told()


def read_deployment(given: Mapping[str, Any] | AsJson | None, tally: Tally, field: str) -> Deployment | None:
    """Return a deployment, or None where there is none or it cannot be read, which is a finding then."""
    if given is None:
        return None
    values = as_json(given)
    try:
        common = msgspec.convert(values, _Common)
        if common.mode == "aggregated":
            roles: tuple[Role, ...] = (_role("aggregated", msgspec.convert(values, _Role), common.backend),)
            transfer = _Transfer(None, None, "destination_missing")
        else:
            pair = msgspec.convert(values, _Roles)
            roles = tuple(_role(name, getattr(pair, name), common.backend) for name in ("prefill", "decode"))
            transfer = pair.transfer
    except (msgspec.ValidationError, RecursionError) as error:
        _unreadable(tally, field, str(error))
        return None
    return Deployment(
        backend=common.backend,
        roles=roles,
        context=NO_LIMIT if isinstance(common.context_length, str) else common.context_length,
        drafts=common.speculation.num_speculative_tokens if common.speculation is not None else 0,
        round_robin=common.router.policy == "round_robin",
        transfer_bytes=transfer.bytes_per_token or 0,
        transfer_rate=(transfer.bandwidth_gb_per_second or 0.0) * 1e9,
        full_prompt=transfer.timing_mode == "full_prompt",
    )


def _role(name: str, role: _Role, backend: str) -> Role:
    fixed = role.timing.type == "fixed"
    return Role(
        name=name,
        workers=role.workers,
        blocks=role.blocks,
        block_size=role.block_size,
        prefix_caching=role.prefix_caching,
        max_sequences=role.max_sequences,
        chunk=role.max_batched_tokens if backend == "vllm" else role.chunked_prefill_size,
        ahead=role.async_scheduling and backend == "vllm",
        reuse_output=role.reuse_output == "auto",
        prefill_ns=ms_as_ns(role.timing.prefill_ms) if fixed else POLYNOMIAL_PREFILL_NS,
        decode_ns=ms_as_ns(role.timing.decode_ms) if fixed else POLYNOMIAL_DECODE_NS,
        host=role.host_offload.scope if role.host_offload is not None else "",
        host_blocks=role.host_offload.num_host_blocks if role.host_offload is not None else 0,
    )


def read_load(given: Mapping[str, Any] | AsJson | None, tally: Tally, field: str) -> Load | None:
    """Return a load, the default one where none is given, or None where it cannot be read, which is a finding then."""
    values = {} if given is None else as_json(given)
    try:
        load = msgspec.convert(values, _Load)
    except (msgspec.ValidationError, RecursionError) as error:
        _unreadable(tally, field, str(error))
        return None
    stop = load.max_virtual_time_seconds
    return Load(
        lanes=load.lanes or load.concurrency or 0,
        agentic_lanes=load.lanes,
        stop_ns=-1 if stop is None else ms_as_ns(stop * 1000.0),
        speedup=load.speedup,
        seed=load.snapshot_seed,
        warmup=load.warmup,
        profile=_profile(load.profile) if load.profile is not None else None,
        profile_seconds=msgspec.structs.asdict(load.profile) if load.profile is not None else {},
        by_play=load.prefix_scope == "play" or load.snapshot_seed is not None,
    )


def _profile(profile: _Profile) -> Profile:
    seconds = (
        profile.duration_seconds,
        profile.response_grace_seconds,
        profile.cancel_drain_seconds,
        profile.tree_idle_cap_seconds,
        profile.global_idle_cap_seconds,
    )
    return Profile(*(ms_as_ns(value * 1000.0) for value in seconds))


def _unreadable(tally: Tally, field: str, why: str) -> None:
    tally.tell(
        "run-settings",
        finding("run-settings", f"{field} cannot be read: {why}", where=Where(file=tally.report_file, field=field)),
    )
