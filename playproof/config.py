"""The YAML configuration: one file says which trace, which load and which deployment.

The field names are those of `aisimulate predict`, so that one file serves both tools. Nothing is passed over: an
unknown key, a value of the wrong type and a setting that this version does not simulate are findings, all of them at
once, each with the dotted name of its field and its line.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from blake3 import blake3
from playproof_lowering.formats import FORMATS
from playproof_spec.findings import Finding, Findings, Severity, Where, finding

from playproof.deployment import (
    DEFAULT_BLOCKS,
    DEFAULT_LINK_GBPS,
    DEFAULT_SHARED_GBPS,
    LOAD_NAMES,
    POOL_SETTINGS,
    RULES,
    AnyDeployment,
    BackendName,
    DecodeRole,
    Deployment,
    Disaggregated,
    FixedTiming,
    HostOffload,
    InvalidDeployment,
    KvRouter,
    Load,
    PolynomialTiming,
    PrefillRole,
    Profile,
    RoundRobin,
    Speculation,
    Transfer,
    bandwidth_without_bytes,
    excluding,
    lacking,
    seed_too_long,
    too_many_blocks,
    unequal_blocks,
    unequal_pools,
    unequal_rules,
    unusable_host,
    unusable_scheduling,
    unusable_speculation,
)
from playproof.fields import (
    Bandwidth,
    Blocks,
    BlockSize,
    BoundMs,
    Conservativeness,
    ContextLength,
    Drafts,
    Gigabytes,
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
    SpareGigabytes,
    Speedup,
    Tokens,
    Weight,
    Workers,
    as_written,
    check,
)
from playproof.goodput import Sla

# A configuration is a page or two. The bounds stop files that are something else, and aliases that unfold for ever.
MAX_CONFIG_BYTES = 1_000_000
MAX_CONFIG_VALUES = 10_000

Basis = Literal["auto", "relative", "absolute"]
Marker = Literal["auto", "spawn", "completion"]

READERS = ("auto", *FORMATS)

# What runs where no configuration is given: the defaults of `Deployment`.
DEFAULT_CONFIGURATION = f"""
engine:
  workers:
    aggregated:
      kv_cache: {{capacity: {{type: fixed, blocks: {DEFAULT_BLOCKS}}}}}
      timing: {{type: fixed, prefill_ms: {FixedTiming().prefill_ms}, decode_ms: {FixedTiming().decode_ms}}}
""".encode()


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping of the file. Its attributes are the keys that this version simulates."""


class _Source(_Section, frozen=True, kw_only=True):
    type: str = "trace"
    format: str = "auto"
    paths: list[str] = []
    block_size: BlockSize | None = None
    nested_timestamp_basis: Basis = "auto"
    subagent_marker: Marker = "auto"
    skip_bad: bool = False
    exclude: list[str] = []
    follow_links: bool = False


class _Snapshot(_Section, frozen=True, kw_only=True):
    seed: Seed


class _Profile(_Section, frozen=True, kw_only=True):
    duration_seconds: SomeSeconds = 3600.0
    response_grace_seconds: Seconds = 30.0
    cancel_drain_seconds: Seconds = 10.0
    tree_idle_cap_seconds: SomeSeconds = 300.0
    global_idle_cap_seconds: SomeSeconds = 10.0


class _Load(_Section, frozen=True, kw_only=True):
    type: str = "trace_timestamps"
    concurrency: Lanes | None = None
    speedup: Speedup = 1.0
    agentic_lanes: Lanes | None = None
    agentic_snapshot: _Snapshot | None = None
    agentic_warmup: bool = False
    agentic_profile: _Profile | None = None
    agentic_prefix_scope: str = "corpus"


class _Stop(_Section, frozen=True, kw_only=True):
    max_virtual_time_seconds: SomeSeconds | None = None


class _Traffic(_Section, frozen=True, kw_only=True):
    source: _Source = _Source()
    load: _Load = _Load()
    stop: _Stop | None = None


class _Parallelism(_Section, frozen=True, kw_only=True):
    replicas: Workers = 1
    # With given timings and a given pool these two change nothing; they are labels that other tools read.
    tensor: Positive = 1
    pipeline: Positive = 1
    attention_data: Positive = 1


class _Scheduler(_Section, frozen=True, kw_only=True):
    max_batched_tokens: Positive = 8192
    max_sequences: Sequences = 256
    # SGLang's own, at its defaults.
    chunked_prefill_size: Positive = 8192
    max_prefill_tokens: Positive = 16384
    schedule_conservativeness: Conservativeness = 1.0
    # vLLM's own, at its defaults but for the first, which is the peer's.
    async_scheduling: bool = False
    watermark: Share = 0.0
    long_prefill_token_threshold: Tokens = 0
    scheduler_reserve_full_isl: bool = True
    prefill_schedule_interval: Positive = 1
    rules: str = "sglang"
    ignore_eos: bool = False


class _PrefillScheduler(_Scheduler, frozen=True, kw_only=True):
    max_sequences: Sequences = 1


class _Capacity(_Section, frozen=True, kw_only=True):
    type: str
    blocks: Blocks


class _HostOffload(_Section, frozen=True, kw_only=True):
    num_host_blocks: Blocks
    scope: str = "dp_rank_local"
    d2h_bandwidth_gbps: LinkBandwidth = DEFAULT_LINK_GBPS
    h2d_bandwidth_gbps: LinkBandwidth = DEFAULT_LINK_GBPS
    latency_to_first_byte_ms: PassMs = 0.0
    # Of a pool that workers share; a private one has no use for them, and leaves them be.
    shared_d2h_bandwidth_gbps: LinkBandwidth = DEFAULT_SHARED_GBPS
    shared_h2d_bandwidth_gbps: LinkBandwidth = DEFAULT_SHARED_GBPS


class _KvCache(_Section, frozen=True, kw_only=True):
    block_size: BlockSize | None = None
    prefix_caching: bool = True
    bytes_per_token: Positive | None = None
    capacity: _Capacity
    host_offload: _HostOffload | None = None
    reuse_output: str = "never"


class _Timing(_Section, frozen=True, kw_only=True):
    type: str
    prefill_ms: PassMs | None = None
    decode_ms: PassMs | None = None


class _Worker(_Section, frozen=True, kw_only=True):
    parallelism: _Parallelism = _Parallelism()
    scheduler: _Scheduler = _Scheduler()
    kv_cache: _KvCache
    timing: _Timing


class _PrefillWorker(_Worker, frozen=True, kw_only=True):
    scheduler: _PrefillScheduler = _PrefillScheduler()


class _Workers(_Section, frozen=True, kw_only=True):
    # Which of them are required is the mode's to say.
    aggregated: _Worker | None = None
    prefill: _PrefillWorker | None = None
    decode: _Worker | None = None


class _KvTransfer(_Section, frozen=True, kw_only=True):
    bytes_per_token: Positive | None = None
    bandwidth_gb_per_second: Bandwidth | None = None
    timing_mode: str = "destination_missing"


class _Router(_Section, frozen=True, kw_only=True):
    policy: str = "round_robin"
    # Of the KV router alone.
    overlap_score_weight: Weight | None = None
    host_cache_hit_weight: Share | None = None


class _Speculation(_Section, frozen=True, kw_only=True):
    kind: str
    num_speculative_tokens: Drafts
    acceptance_rates: Rates
    seed: Seed = 42


class _Engine(_Section, frozen=True, kw_only=True):
    mode: str = "aggregated"
    backend: str = "vllm"
    model: str | None = None
    hardware: str | None = None
    context_length: ContextLength = "max"
    router: _Router = _Router()
    workers: _Workers
    kv_transfer: _KvTransfer | None = None
    speculation: _Speculation | None = None


class _Sla(_Section, frozen=True, kw_only=True):
    ttft_ms: BoundMs | None = None
    itl_ms: BoundMs | None = None
    e2e_ms: BoundMs | None = None
    # Ours; the peer knows the three above.
    tpot_ms: BoundMs | None = None
    trajectory_ms: BoundMs | None = None


class _Evaluation(_Section, frozen=True, kw_only=True):
    sla: _Sla | None = None


class _Resources(_Section, frozen=True, kw_only=True):
    """Limits of the machine that the peer runs on. They are checked, and say nothing here."""

    initialization_timeout_seconds: SomeSeconds | None = None
    shutdown_timeout_seconds: SomeSeconds | None = None
    memory_limit_gb: Gigabytes | Literal["auto"] | None = None
    cpu_limit: Positive | Literal["auto"] | None = None
    reserve_memory_gb: SpareGigabytes | None = None
    reserve_memory_fraction: Share | None = None
    available_memory_fraction: Share | None = None


class _Execution(_Section, frozen=True, kw_only=True):
    resources: _Resources | None = None


class ConfigurationFile(_Section, frozen=True, kw_only=True):
    """A whole file."""

    traffic: _Traffic = _Traffic()
    engine: _Engine
    evaluation: _Evaluation | None = None
    execution: _Execution | None = None


# What each mode has and the other has not. Its roles are required.
_OF_MODE: Mapping[str, tuple[str, ...]] = {
    "aggregated": ("engine.workers.aggregated",),
    "disaggregated": ("engine.workers.prefill", "engine.workers.decode", "engine.kv_transfer"),
}
_WORKERS = ("engine.workers.aggregated", "engine.workers.prefill", "engine.workers.decode")
# What `kv_cache.block_size` is where it is not given.
_BLOCK_SIZES = {"vllm": 64, "sglang": 1}
# Sessions that are open at once under `type: concurrency` where the file does not say.
DEFAULT_CONCURRENCY = 10

# What belongs to `policy: kv_router`.
_KV_ROUTER = ("overlap_score_weight", "host_cache_hit_weight")

# Keys that other tools or later versions know: refused by name, with what they would bring.
LATER: Mapping[str, str] = {
    **{f"{worker}.kv_cache.g3_offload": "G3 offload is not supported" for worker in _WORKERS},
    # What other releases of the router know.
    "engine.router.prefill_load_scale": "prefill_load_scale is not supported: here it is overlap_score_weight",
    "engine.router.overlap_score_credit": "overlap_score_credit is not supported: what the device has counts whole",
    "engine.router.disk_cache_hit_weight": "disk_cache_hit_weight is not supported: there is no disk tier",
    "engine.router.router_temperature": "router_temperature is not supported: the least cost always wins",
}

_SCOPES = {"worker_local": "worker_local is a scope of G3; a worker's own host memory is dp_rank_local"}

# Words a text field takes: those that work, and those refused by name with the reason.
WORDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "traffic.source.type": (("trace",), {}),
    "traffic.source.format": (READERS, {}),
    "traffic.load.type": (("trace_timestamps", "concurrency"), {}),
    "traffic.load.agentic_prefix_scope": (("corpus", "play"), {}),
    "engine.mode": (tuple(_OF_MODE), {}),
    "engine.speculation.kind": (("ngram",), {}),
    "engine.backend": (tuple(_BLOCK_SIZES), {}),
    "engine.router.policy": (("round_robin", "kv_router"), {}),
    "engine.kv_transfer.timing_mode": (("destination_missing", "full_prompt"), {}),
    **{f"{worker}.kv_cache.capacity.type": (("fixed",), {}) for worker in _WORKERS},
    **{f"{worker}.kv_cache.host_offload.scope": (("dp_rank_local", "cluster_shared"), _SCOPES) for worker in _WORKERS},
    **{f"{worker}.kv_cache.reuse_output": (("auto", "never"), {}) for worker in _WORKERS},
    **{f"{worker}.timing.type": (("fixed", "polynomial"), {}) for worker in _WORKERS},
    **{f"{worker}.scheduler.rules": (RULES, {}) for worker in _WORKERS},
}

SectionT = TypeVar("SectionT", bound=_Section)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, read and checked.

    Attributes
    ----------
    paths : tuple[Path, ...]
        Traces; relative ones were relative to the configuration's folder.
    format, nested_timestamp_basis, subagent_marker : str
    block_size : int or None
    skip_bad, follow_links : bool
    exclude : tuple[str, ...]
        Reading options of the trace.
    deployment : Deployment or Disaggregated
    load : Load
    sla : Sla or None
        The bounds that the report's goodput is counted by.
    places : dict of str to Where
        Where in the file the settings stand that only a trace can prove wrong: fields of `load`, and the "mode".
    notes : tuple of Finding
        What the file says that means nothing here.
    """

    paths: tuple[Path, ...] = ()
    format: str = "auto"
    block_size: int | None = None
    nested_timestamp_basis: Basis = "auto"
    subagent_marker: Marker = "auto"
    skip_bad: bool = False
    exclude: tuple[str, ...] = ()
    follow_links: bool = False
    deployment: AnyDeployment = Deployment()
    load: Load = Load()
    sla: Sla | None = None
    places: dict[str, Where] = {}
    notes: tuple[Finding, ...] = ()


def configuration_digest(deployment: AnyDeployment, load: Load) -> str:
    """Return the BLAKE3 of everything that a configuration can change in a replay of one graph; labels cannot."""
    deployed = {name: value for name, value in deployment.to_dict().items() if name not in ("model", "hardware")}
    resolved = {"deployment": deployed, "load": load.to_dict()}
    return blake3(msgspec.json.encode(resolved, order="deterministic")).hexdigest()


def read_configuration(path: str | Path, overrides: Iterable[str] = ()) -> Configuration:
    """Read a YAML configuration.

    Parameters
    ----------
    path : path
    overrides : iterable of str
        ``a.b.c=value`` settings put over the file's; values are read as YAML.

    Raises
    ------
    InvalidDeployment
        With every problem of the file and of the overrides.
    OSError
        When the file cannot be read.
    """
    path = Path(path)
    data = path.read_bytes()
    return parse_configuration(data, file=str(path), folder=path.parent, overrides=overrides)


def parse_configuration(
    data: bytes, *, file: str = "", folder: Path = Path(), overrides: Iterable[str] = ()
) -> Configuration:
    """Read a YAML configuration from its bytes; see :func:`read_configuration`."""
    reader = _Reader(file)
    tree = reader.parse(data)
    for override in overrides:
        reader.override(tree, override)
    config = reader.section(ConfigurationFile, tree, "") if not reader.findings.errors else None
    if config is None or reader.findings.errors:
        raise InvalidDeployment(reader.findings)
    return _resolve(config, folder, reader)


def _resolve(config: ConfigurationFile, folder: Path, reader: _Reader) -> Configuration:
    source = config.traffic.source
    return Configuration(
        paths=tuple(folder / path for path in source.paths),
        format=source.format,
        block_size=source.block_size,
        nested_timestamp_basis=source.nested_timestamp_basis,
        subagent_marker=source.subagent_marker,
        skip_bad=source.skip_bad,
        exclude=tuple(source.exclude),
        follow_links=source.follow_links,
        deployment=_deployment(config.engine),
        load=_resolve_load(config.traffic),
        sla=_bounds(config.evaluation),
        notes=reader.findings.items,
        places={name: reader.near(field) for name, field in {**_CONTROLS, "mode": "engine.mode"}.items()},
    )


# What the run controls are called in a file.
_CONTROLS = {
    "lanes": "traffic.load.agentic_lanes",
    "snapshot_seed": "traffic.load.agentic_snapshot",
    "warmup": "traffic.load.agentic_warmup",
    "profile": "traffic.load.agentic_profile",
    "concurrency": "traffic.load.type",
    "max_virtual_time_seconds": "traffic.stop.max_virtual_time_seconds",
}
assert _CONTROLS.keys() == LOAD_NAMES.keys()


class _Controls(msgspec.Struct, frozen=True, kw_only=True):
    """The run controls of a file before they have been checked against one another."""

    concurrency: int | None
    max_virtual_time_seconds: float | None
    lanes: int | None
    snapshot_seed: int | None
    warmup: bool
    profile: _Profile | None


def _controls(load: _Load, stop: _Stop | None = None) -> _Controls:
    return _Controls(
        concurrency=_concurrency(load),
        max_virtual_time_seconds=stop.max_virtual_time_seconds if stop is not None else None,
        lanes=load.agentic_lanes,
        snapshot_seed=load.agentic_snapshot.seed if load.agentic_snapshot is not None else None,
        warmup=load.agentic_warmup,
        profile=load.agentic_profile,
    )


def _concurrency(load: _Load) -> int | None:
    if load.type != "concurrency":
        return None
    return DEFAULT_CONCURRENCY if load.concurrency is None else load.concurrency


def _resolve_load(traffic: _Traffic) -> Load:
    load, stop = traffic.load, traffic.stop
    profile = load.agentic_profile
    return Load(
        lanes=load.agentic_lanes,
        concurrency=_concurrency(load),
        max_virtual_time_seconds=stop.max_virtual_time_seconds if stop is not None else None,
        speedup=load.speedup,
        snapshot_seed=load.agentic_snapshot.seed if load.agentic_snapshot is not None else None,
        warmup=load.agentic_warmup,
        profile=Profile(**msgspec.structs.asdict(profile)) if profile is not None else None,
        prefix_scope="play" if load.agentic_prefix_scope == "play" else "corpus",
    )


def _bounds(evaluation: _Evaluation | None) -> Sla | None:
    if evaluation is None or evaluation.sla is None:
        return None
    sla = Sla(**msgspec.structs.asdict(evaluation.sla))
    return sla if sla.given() else None


def _deployment(engine: _Engine) -> AnyDeployment:
    """Return what `engine` says; the reader has seen to it that the mode's roles are there, and no other."""
    backend: BackendName = "sglang" if engine.backend == "sglang" else "vllm"
    common: dict[str, Any] = {
        "context_length": engine.context_length,
        "speculation": None
        if engine.speculation is None
        else Speculation(
            num_speculative_tokens=engine.speculation.num_speculative_tokens,
            acceptance_rates=engine.speculation.acceptance_rates,
            seed=engine.speculation.seed,
        ),
        "router": _router(engine.router),
        "model": engine.model,
        "hardware": engine.hardware,
    }
    workers, transfer = engine.workers, engine.kv_transfer or _KvTransfer()
    if workers.aggregated is not None:
        return Deployment(backend=backend, **common, **_worker_fields(workers.aggregated, backend))
    assert workers.prefill is not None
    assert workers.decode is not None
    return Disaggregated(
        backend=backend,
        prefill=PrefillRole(**_worker_fields(workers.prefill, backend)),
        decode=DecodeRole(**_worker_fields(workers.decode, backend)),
        transfer=Transfer(
            bandwidth_gb_per_second=transfer.bandwidth_gb_per_second,
            bytes_per_token=transfer.bytes_per_token,
            timing_mode="full_prompt" if transfer.timing_mode == "full_prompt" else "destination_missing",
        ),
        **common,
    )


def _router(router: _Router) -> RoundRobin | KvRouter:
    if router.policy == "round_robin":
        return RoundRobin()
    return KvRouter(**{name: value for name in _KV_ROUTER if (value := getattr(router, name)) is not None})


def _host_offload(worker: _Worker) -> HostOffload | None:
    host = worker.kv_cache.host_offload
    if host is None:
        return None
    assert worker.kv_cache.bytes_per_token is not None
    common: dict[str, Any] = {
        "num_host_blocks": host.num_host_blocks,
        "bytes_per_token": worker.kv_cache.bytes_per_token,
        "d2h_bandwidth_gbps": host.d2h_bandwidth_gbps,
        "h2d_bandwidth_gbps": host.h2d_bandwidth_gbps,
        "latency_to_first_byte_ms": host.latency_to_first_byte_ms,
    }
    if host.scope != "cluster_shared":
        return HostOffload(**common)
    return HostOffload(
        scope="cluster_shared",
        shared_d2h_bandwidth_gbps=host.shared_d2h_bandwidth_gbps,
        shared_h2d_bandwidth_gbps=host.shared_h2d_bandwidth_gbps,
        tensor=worker.parallelism.tensor,
        pipeline=worker.parallelism.pipeline,
        **common,
    )


def _worker_fields(worker: _Worker, backend: BackendName) -> dict[str, Any]:
    timing: FixedTiming | PolynomialTiming = PolynomialTiming()
    if worker.timing.prefill_ms is not None and worker.timing.decode_ms is not None:
        timing = FixedTiming(prefill_ms=worker.timing.prefill_ms, decode_ms=worker.timing.decode_ms)
    return {
        "workers": worker.parallelism.replicas,
        "blocks": worker.kv_cache.capacity.blocks,
        "block_size": worker.kv_cache.block_size or _BLOCK_SIZES[backend],
        "prefix_caching": worker.kv_cache.prefix_caching,
        "timing": timing,
        "host_offload": _host_offload(worker),
        "reuse_output": worker.kv_cache.reuse_output,
        **msgspec.structs.asdict(worker.scheduler),
    }


class _Reader:
    """Walks the parsed file along the sections, and collects findings with field and line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings = Findings()
        self._lines: dict[str, int] = {}
        self._overridden: set[str] = set()
        # Sections that belong to another mode than the file's: refused as a whole, and not read.
        self._foreign: set[str] = set()
        self._block_size: int | None = None
        self._backend = "vllm"

    def add(self, code: str, message: str, field: str, found: object = "", **details: Any) -> None:
        self.findings.add(finding(code, message, where=self._where(field), found=as_written(found), **details))

    def _where(self, field: str) -> Where:
        if field in self._overridden or (field not in self._lines and self._overridden_below(field)):
            return Where(file="--set", field=field)
        return Where(file=self.file, line=self._lines.get(field, 0), field=field)

    def _overridden_below(self, field: str) -> bool:
        """Whether a setting within a section was overridden, which a file without the section gets by it."""
        return bool(field) and any(setting.startswith(f"{field}.") for setting in self._overridden)

    # Parsing ---------------------------------------------------------------------------------------------------------

    def parse(self, data: bytes) -> dict[str, Any]:
        """Return the file's mapping; an empty one with a finding when there is none."""
        if len(data) > MAX_CONFIG_BYTES:
            self.add("config-unreadable", "the file is too large", "", found=f"{len(data)} bytes")
            return {}
        try:
            text = data.decode("utf-8-sig")
            self._note_lines(yaml.compose(text, Loader=yaml.SafeLoader), "", MAX_CONFIG_VALUES)
            tree = {} if self.findings.errors else msgspec.yaml.decode(text.encode())
        except UnicodeDecodeError as error:
            self.add("config-unreadable", "the file is not UTF-8 text", "", found=f"byte {error.start}")
        except (yaml.YAMLError, msgspec.DecodeError) as error:
            self._not_yaml(error)
        except RecursionError:
            self.add("config-unreadable", "the file is nested too deeply", "")
        except ValueError as error:
            self.add("config-unreadable", "the file cannot be read", "", found=str(error))
        else:
            if isinstance(tree, dict):
                return {str(key): value for key, value in tree.items()}
            self.add(
                "config-unreadable", "the file is not a mapping", "", found=tree, wanted="traffic: … and engine: …"
            )
        return {}

    def _not_yaml(self, error: Exception) -> None:
        mark = getattr(error, "problem_mark", None)
        where = Where(file=self.file, line=mark.line + 1 if mark is not None else 0)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        self.findings.add(finding("config-unreadable", "the file is not YAML", where=where, found=problem))

    def _note_lines(self, node: yaml.Node | None, path: str, budget: int) -> int:
        """Remember the line of every key, and find keys that stand twice; return what is left of the budget."""
        budget -= 1
        if budget < 0:
            raise ValueError(f"more than {MAX_CONFIG_VALUES} values")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                field = f"{path}.{key.value}".lstrip(".")
                self._lines.setdefault(field, key.start_mark.line + 1)
                if field in seen:
                    where = Where(file=self.file, line=key.start_mark.line + 1, field=field)
                    self.findings.add(finding("config-duplicate-key", f"{key.value} stands twice", where=where))
                seen.add(field)
                budget = self._note_lines(value, field, budget)
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                self._lines.setdefault(f"{path}[{number}]", value.start_mark.line + 1)
                budget = self._note_lines(value, f"{path}[{number}]", budget)
        return budget

    def override(self, tree: dict[str, Any], setting: str) -> None:
        """Put one ``a.b.c=value`` into the tree."""
        field, equals, text = setting.partition("=")
        *parents, last = field.split(".")
        try:
            value = msgspec.yaml.decode(text.encode())
        except (msgspec.DecodeError, ValueError, RecursionError):
            value, equals = None, ""
        if not equals or not all([*parents, last]):
            where = Where(file="--set", field=field)
            self.findings.add(
                finding("config-unreadable", "not a setting", where=where, found=setting, wanted="a.b.c=value")
            )
            return
        place = tree
        for parent in parents:
            child = place.get(parent)
            if not isinstance(child, dict):
                child = place[parent] = {}
            place = child
        place[last] = value
        self._overridden.add(field)

    # Reading ---------------------------------------------------------------------------------------------------------

    def section(self, kind: type[SectionT], tree: object, path: str) -> SectionT | None:
        """Read one mapping into `kind`; None, with findings, when something in it cannot be used."""
        if not isinstance(tree, dict):
            self.add("config-type", f"{path or 'the file'} is not a mapping", path, found=tree, wanted="a mapping")
            return None
        infos = {info.name: info for info in msgspec.structs.fields(kind)}
        self._refuse_others(tree, path, list(infos))
        if kind is _Engine:
            self._mode(tree)
        values: dict[str, Any] = {}
        usable = True
        for name, info in infos.items():
            field = f"{path}.{name}".lstrip(".")
            if name not in tree:
                if info.required:
                    usable = False
                    self._missing(field)
                continue
            if field in self._foreign:
                continue
            value = self._value(info.type, tree[name], field)
            usable = usable and value is not _BAD
            values[name] = value
        section = kind(**values) if usable else None
        if section is not None:
            self._consistent(section, path)
        return section

    def _mode(self, engine: Mapping[Any, object]) -> None:
        """Check that the file has the roles of its mode and nothing of the other one; what they hold is read later."""
        backend, workers = engine.get("backend", "vllm"), engine.get("workers")
        self._block_size = _BLOCK_SIZES.get(backend) if isinstance(backend, str) else None
        if isinstance(backend, str) and backend in _BLOCK_SIZES:
            self._backend = backend
        mode = engine.get("mode", "aggregated")
        if not isinstance(mode, str) or mode not in _OF_MODE:
            return
        given: dict[str, object] = {"engine.kv_transfer": engine.get("kv_transfer")}
        if isinstance(workers, dict):
            given |= {field: workers.get(field.rpartition(".")[2]) for field in _WORKERS}
        for other, fields in _OF_MODE.items():
            for field in fields:
                name, value = field.rpartition(".")[2], given.get(field)
                absent = value is None or value is False
                if other != mode:
                    self._foreign.add(field)
                    if not absent:
                        self.add("config-combination", f"{name} belongs to mode: {other}", field, found=value)
                elif absent and field in given and field in _WORKERS:
                    self._missing(field)

    def _value(self, kind: Any, raw: object, field: str) -> Any:
        section_kinds = [arm for arm in get_args(kind) if isinstance(arm, type) and issubclass(arm, _Section)]
        if section_kinds:  # a section that may be absent, or switched off
            if raw is None or raw is False:
                return None
            (kind,) = section_kinds
        if isinstance(kind, type) and issubclass(kind, _Section):
            section = self.section(kind, raw, field)
            return _BAD if section is None else section
        value, problem = check(kind, raw, self._where(field))
        if problem is not None:
            hint = ""
            if isinstance(raw, str) and float in _arms(kind) and _reads_as_number(raw):
                hint = f"YAML reads {raw} as text: write the point and the exponent's sign, as in 1.0e+3"
            self.findings.add(msgspec.structs.replace(problem, hint=hint or problem.hint))
            return _BAD
        if isinstance(value, str) and field in WORDS:
            return self._word(value, field)
        return value

    def _word(self, value: str, field: str) -> Any:
        words, later = WORDS[field]
        if value in words:
            return value
        if value in later:
            self.add("config-unsupported", later[value], field, found=value, wanted=" or ".join(words))
        else:
            near = difflib.get_close_matches(value, [*words, *later], n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            message = f"{field.rpartition('.')[2]} has no value {value}"
            self.add("config-value", message, field, found=value, wanted=" or ".join(words), hint=hint)
        return _BAD

    def _refuse_others(self, tree: Mapping[Any, object], path: str, known: list[str]) -> None:
        later = {field.rpartition(".")[2] for field in LATER if field.rpartition(".")[0] == path}
        for key in tree:
            field = f"{path}.{key}".lstrip(".")
            if key in known or (key in later and (tree[key] is None or tree[key] is False)):
                continue
            if key in later:
                self.add("config-unsupported", LATER[field], field, found=tree[key])
                continue
            near = difflib.get_close_matches(str(key), [*known, *sorted(later)], n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            self.add("config-unknown-key", f"{key} is no key of {path or 'a configuration'}", field, hint=hint)

    def _missing(self, field: str) -> None:
        self.findings.add(finding("config-missing", f"{field.rpartition('.')[2]} is required", where=self.near(field)))

    def near(self, field: str) -> Where:
        """Return where `field` is, or where it would have to be: at the line of its nearest parent in the file."""
        parent = field
        while parent and not (parent in self._lines or parent in self._overridden or self._overridden_below(parent)):
            parent = parent.rpartition(".")[0]
        return msgspec.structs.replace(self._where(parent), field=field)

    def _consistent(self, section: _Section, path: str) -> None:
        """Check what no single field can show."""
        if isinstance(section, _Timing):
            self._timing(section, path)
        elif isinstance(section, _Load):
            for problem in lacking(_controls(section), _CONTROLS):
                where = self._where(problem.where.field)
                self.findings.add(msgspec.structs.replace(problem, where=where))
            if section.concurrency is not None and section.type != "concurrency":
                message, field = "a concurrency belongs to type: concurrency", f"{path}.concurrency"
                hint = "Set traffic.load.type: concurrency, or remove it."
                self.add(
                    "config-combination",
                    message,
                    field,
                    found=f"{section.concurrency} with type: {section.type}",
                    wanted="type: concurrency",
                    hint=hint,
                )
        elif isinstance(section, _Traffic):
            for problem in excluding(_controls(section.load, section.stop), _CONTROLS):
                self.findings.add(msgspec.structs.replace(problem, where=self._where(problem.where.field)))
        elif isinstance(section, _Engine):
            self._schedulers(section, path)
            if section.speculation is None:
                return
            hosts = [f"{path}.workers.{role}.kv_cache.host_offload" for role, _ in _hosted(section.workers)]
            for problem in unusable_speculation(self._where(f"{path}.speculation"), section.backend, hosts):
                self._told(problem)
        elif isinstance(section, _Router) and section.policy == "round_robin":
            for name in _KV_ROUTER:
                if getattr(section, name) is not None:
                    message, field = f"{name} belongs to policy: kv_router", f"{path}.{name}"
                    found, hint = f"{getattr(section, name)} with policy: round_robin", "Set the policy, or remove it."
                    self.add("config-combination", message, field, found=found, wanted="policy: kv_router", hint=hint)
        elif isinstance(section, _Speculation):
            self._told(seed_too_long(self._where(f"{path}.seed"), section.seed))
        elif isinstance(section, _Parallelism) and section.attention_data != 1:
            message = "attention data parallelism is not supported"
            field = f"{path}.attention_data"
            self.add("config-unsupported", message, field, found=section.attention_data, wanted="1")
        elif isinstance(section, _Resources):
            for info in msgspec.structs.fields(section):
                if (value := getattr(section, info.name)) is not None:
                    self.findings.add(_of_the_peers_machine(self._where(f"{path}.{info.name}"), info.name, value))
        elif isinstance(section, _Worker):
            where = self._where(f"{path}.kv_cache.capacity.blocks")
            self._told(too_many_blocks(where, (section.parallelism.replicas, section.kv_cache.capacity.blocks)))
        elif isinstance(section, _Workers):
            self._hosts(section, path)
            if section.prefill is not None and section.decode is not None:
                self._roles(section.prefill, section.decode, path)
        elif (
            isinstance(section, _KvTransfer)
            and section.bandwidth_gb_per_second is not None
            and section.bytes_per_token is None
        ):
            self._told(bandwidth_without_bytes(self.near(f"{path}.bytes_per_token")))

    def _schedulers(self, engine: _Engine, path: str) -> None:
        """Check the settings of a scheduler that do not go with everything."""
        workers = engine.workers
        for role, worker in (
            ("aggregated", workers.aggregated),
            ("prefill", workers.prefill),
            ("decode", workers.decode),
        ):
            if worker is None:
                continue
            others = {
                "host offload": worker.kv_cache.host_offload is not None,
                "speculation": engine.speculation is not None,
                "prefill/decode": role != "aggregated",
            }
            place = f"{path}.workers.{role}.scheduler"
            for problem in unusable_scheduling(worker.scheduler, engine.backend, place, self._where, others):
                self._told(problem)

    def _hosts(self, workers: _Workers, path: str) -> None:
        for role, worker in _hosted(workers):
            field = f"{path}.{role}.kv_cache.host_offload"
            if worker.kv_cache.bytes_per_token is None:
                where = self.near(f"{path}.{role}.kv_cache.bytes_per_token")
                self._told(finding("config-missing", "host offload needs bytes_per_token", where=where))
            for problem in unusable_host(self._where(field), self._backend, worker.kv_cache.prefix_caching):
                self._told(problem)
        shared = [_pool_fields(worker) for _, worker in _hosted(workers) if _shares(worker)]
        if len(shared) > 1:
            for (field, mine), other in zip(shared[0].items(), shared[1].values(), strict=True):
                where = self.near(f"{path}.decode.{field}")
                self._told(unequal_pools(where, field.rpartition(".")[2], mine, other))

    def _roles(self, prefill: _Worker, decode: _Worker, path: str) -> None:
        roles = {f"{path}.prefill": prefill, f"{path}.decode": decode}
        sizes = {
            f"{role}.kv_cache.block_size": worker.kv_cache.block_size or self._block_size
            for role, worker in roles.items()
        }
        # Where the backend is none, the default is not known.
        known = {field: size for field, size in sizes.items() if size is not None}
        if len(known) == len(sizes):
            self._told(unequal_blocks(self.near(f"{path}.decode.kv_cache.block_size"), known))
        field = f"{path}.decode.scheduler.rules"
        self._told(unequal_rules(self.near(field), prefill.scheduler.rules, decode.scheduler.rules))
        pools = [(worker.parallelism.replicas, worker.kv_cache.capacity.blocks) for worker in roles.values()]
        if not any(too_many_blocks(Where(), pool) for pool in pools):  # or else it has been told of one role
            self._told(too_many_blocks(self._where(f"{path}.decode.kv_cache.capacity.blocks"), *pools))

    def _told(self, problem: Finding | None) -> None:
        if problem is not None:
            self.findings.add(problem)

    def _timing(self, timing: _Timing, path: str) -> None:
        for name in ("prefill_ms", "decode_ms"):
            given = getattr(timing, name) is not None
            field = f"{path}.{name}"
            if timing.type == "fixed" and not given:
                self.findings.add(finding("config-missing", f"fixed timing needs {name}", where=self.near(field)))
            if timing.type == "polynomial" and given:
                self.add("config-combination", f"polynomial timing has no {name}", field, found=getattr(timing, name))


def _of_the_peers_machine(where: Where, name: str, value: object) -> Finding:
    return finding(
        "config-no-effect",
        f"{name} says nothing here: it limits the machine that the peer runs on",
        where=where,
        found=as_written(value),
        because="One file serves both tools, and this one needs no such limit.",
        hint="Leave it for the peer, or remove it.",
        severity=Severity.NOTE,
    )


# Stands for a value that gave a finding. None is a value of some fields.
_BAD = object()


def _hosted(workers: _Workers) -> list[tuple[str, _Worker]]:
    """Return the roles that have host memory, by name."""
    roles = (("aggregated", workers.aggregated), ("prefill", workers.prefill), ("decode", workers.decode))
    return [(role, worker) for role, worker in roles if worker is not None and worker.kv_cache.host_offload is not None]


def _shares(worker: _Worker) -> bool:
    return worker.kv_cache.host_offload is not None and worker.kv_cache.host_offload.scope == "cluster_shared"


def _pool_fields(worker: _Worker) -> dict[str, object]:
    """Return what roles that share a host pool agree on, by the fields of a worker."""
    host = worker.kv_cache.host_offload
    return {
        "kv_cache.bytes_per_token": worker.kv_cache.bytes_per_token,
        "parallelism.tensor": worker.parallelism.tensor,
        "parallelism.pipeline": worker.parallelism.pipeline,
        **{f"kv_cache.host_offload.{name}": getattr(host, name) for name in POOL_SETTINGS},
    }


def sections(kind: type[_Section] = ConfigurationFile, path: str = "") -> dict[str, type[_Section]]:
    """Return the section that stands at each dotted name of a file, the whole file at the empty one."""
    found = {path: kind}
    for info in msgspec.structs.fields(kind):
        for arm in get_args(info.type) or (info.type,):
            if isinstance(arm, type) and issubclass(arm, _Section):
                found |= sections(arm, f"{path}.{info.name}".lstrip("."))
    return found


def _arms(kind: Any) -> tuple[Any, ...]:
    arms = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return tuple(getattr(arm, "__origin__", arm) for arm in arms)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
