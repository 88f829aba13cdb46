"""What a user says of a deployment and of the load on it: `Deployment`, `Load` and the timing models.

Milliseconds and tokens, checked when made; `to_spec()` gives the kernel's own form, in nanoseconds.
The kernel is imported there and not above: it brings the compiler along, which a validation does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from playproof_spec.findings import Findings, InvalidInput, Where, finding
from playproof_spec.graph import MAX_TOKENS
from playproof_spec.units import ms_to_ns

from playproof.fields import (
    MAX_BLOCKS_ALL_WORKERS,
    Blocks,
    BlockSize,
    Conservativeness,
    ContextLength,
    Lanes,
    PassMs,
    Positive,
    Sequences,
    Speedup,
    Workers,
    check,
)

if TYPE_CHECKING:
    from playproof_kernel.deployment import DeploymentSpec, LoadSpec, Timing

# `context_length: max`: longer than any prompt and output that a trace may declare.
UNLIMITED_CONTEXT_TOKENS = 2 * MAX_TOKENS + 1
# The pool of the stated default: 1,048,576 tokens, so that a request of a million tokens fits.
DEFAULT_BLOCKS = 16_384


class InvalidDeployment(InvalidInput):
    """A deployment, a load or a configuration that cannot be simulated; `.findings` say why."""


class _Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct that checks every field when it is made, and tells all that is wrong at once."""

    def __post_init__(self) -> None:
        findings = Findings()
        for info in msgspec.structs.fields(self):
            where = Where(field=f"{type(self).__name__}.{info.name}")
            value, problem = check(info.type, getattr(self, info.name), where)
            if problem is not None:
                findings.add(problem)
            else:
                msgspec.structs.force_setattr(self, info.name, value)
        if findings.errors:
            raise InvalidDeployment(findings)


class FixedTiming(_Checked, frozen=True, kw_only=True, tag="fixed", tag_field="type"):
    """Every pass takes the same time, whatever its batch.

    Attributes
    ----------
    prefill_ms, decode_ms : float
        Cost of a pass's prefill part and of its decode part, milliseconds, ≥ 0. A pass that has both pays both.
    """

    prefill_ms: PassMs = 40.0
    decode_ms: PassMs = 12.0


class PolynomialTiming(_Checked, frozen=True, kw_only=True, tag="polynomial", tag_field="type"):
    """Passes cost by polynomials in the tokens computed and in the share of the pool in use.

    The coefficients stand in docs/configuration.md.
    """


class Deployment(_Checked, frozen=True, kw_only=True):
    """Aggregated workers, all alike, behind a round-robin router.

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
    context_length : int or "max"
        Tokens of prompt and output that a request may have; "max" sets no limit.
    timing : FixedTiming or PolynomialTiming
    model, hardware : str or None
        Labels that reports repeat; they change nothing.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type; all such fields are named.

    Examples
    --------
    >>> Deployment(workers=4, blocks=8192).context_length
    'max'
    """

    backend: Literal["vllm", "sglang"] = "vllm"
    workers: Workers = 1
    blocks: Blocks = DEFAULT_BLOCKS
    block_size: BlockSize = 64
    prefix_caching: bool = True
    max_batched_tokens: Positive = 8192
    max_sequences: Sequences = 256
    chunked_prefill_size: Positive = 8192
    max_prefill_tokens: Positive = 16384
    schedule_conservativeness: Conservativeness = 1.0
    context_length: ContextLength = "max"
    timing: FixedTiming | PolynomialTiming = FixedTiming()
    model: str | None = None
    hardware: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers * self.blocks > MAX_BLOCKS_ALL_WORKERS:
            findings = Findings()
            findings.add(
                finding(
                    "config-value",
                    "the pools of all workers together are too large",
                    where=Where(field="Deployment.blocks"),
                    found=f"{self.workers} workers × {self.blocks} blocks",
                    wanted=f"at most {MAX_BLOCKS_ALL_WORKERS} blocks in all",
                )
            )
            raise InvalidDeployment(findings)

    @property
    def context_tokens(self) -> int:
        """The context limit in tokens, also where it is "max"."""
        return UNLIMITED_CONTEXT_TOKENS if self.context_length == "max" else self.context_length

    def to_dict(self) -> dict[str, Any]:
        """Return the deployment as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def to_spec(self) -> DeploymentSpec:
        """Return the kernel's form."""
        from playproof_kernel.deployment import Backend, DeploymentSpec, WorkerSpec

        worker = WorkerSpec(
            blocks=self.blocks,
            block_size=self.block_size,
            max_batched_tokens=self.max_batched_tokens,
            max_sequences=self.max_sequences,
            prefix_caching=self.prefix_caching,
            timing=_timing_spec(self.timing),
            backend=Backend[self.backend.upper()],
            chunked_prefill_size=self.chunked_prefill_size,
            max_prefill_tokens=self.max_prefill_tokens,
            schedule_conservativeness=self.schedule_conservativeness,
        )
        return DeploymentSpec(workers=self.workers, worker=worker, context_length=self.context_tokens)


def _timing_spec(timing: FixedTiming | PolynomialTiming) -> Timing:
    from playproof_kernel.deployment import Timing, TimingKind

    if isinstance(timing, PolynomialTiming):
        return Timing(TimingKind.POLYNOMIAL)
    return Timing(TimingKind.FIXED, ms_to_ns(timing.prefill_ms), ms_to_ns(timing.decode_ms))


class Load(_Checked, frozen=True, kw_only=True):
    """How the corpus is offered.

    Attributes
    ----------
    lanes : int or None
        Seats for plays: each runs one play at a time and takes the next one when it settles. None starts every play
        at its recorded time.
    speedup : float
        Divides authored floors and delays, never engine time.

    Raises
    ------
    InvalidDeployment
        When a field is out of range or of the wrong type.
    """

    lanes: Lanes | None = None
    speedup: Speedup = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the load as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def to_spec(self) -> LoadSpec:
        """Return the kernel's form."""
        from playproof_kernel.deployment import LoadSpec

        return LoadSpec(lanes=self.lanes, speedup=self.speedup)
