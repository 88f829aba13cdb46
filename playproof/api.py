"""The Python interface: load, validate, replay, run.

The kernel and the prover are imported where they are used: they bring a compiler and a solver along, and a caller that
only reads a configuration should not wait for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from playproof_native import modes, notices
from playproof_native.modes import Setting
from playproof_spec.findings import Findings, InvalidInput, Where
from playproof_spec.units import NS_PER_MS

from playproof import machine_code
from playproof.by_reference import REFERENCE_PATIENCE_S, SLOW_REFERENCE, Engine, beyond_reference, reference_s
from playproof.config import Basis, Configuration, Marker, read_configuration
from playproof.controlled import ControlledReport
from playproof.deployment import LOAD_NAMES, AnyDeployment, Deployment, InvalidDeployment, Load
from playproof.fit import contradictions, fit, misoffered
from playproof.goodput import Sla
from playproof.online.options import OnlineOptions
from playproof.report import Report

if TYPE_CHECKING:
    from playproof_spec.certificate import Certificate, ProvenGraph
    from playproof_spec.graph import Graph
    from playproof_spec.obligation import Obligation

    from playproof.checking import Verdict
    from playproof.fuzzing import Tried
    from playproof.online.report import OnlineControlledReport, OnlineReport

# Where the settings that only a trace can prove wrong stand for who sets them in Python.
PLACES = {**{name: Where(field=field) for name, field in LOAD_NAMES.items()}, "mode": Where(field="Disaggregated")}

PathOrPaths = str | Path | Sequence[str | Path]
Progress = Callable[[int, int], None]


class Reading(TypedDict):
    """How to read traces: the keyword arguments that :func:`load` and :func:`validate` share."""

    format: str
    block_size: int | None
    nested_timestamp_basis: Basis
    subagent_marker: Marker
    skip_bad: bool
    exclude: tuple[str, ...]
    follow_links: bool


class InvalidTrace(InvalidInput):
    """A trace that cannot be replayed; `.findings` holds every finding, warnings included."""


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """What `validate` found.

    Attributes
    ----------
    findings : Findings
        Everything, in the order of discovery.
    proven : ProvenGraph or None
        None when any finding is an error.
    graph : Graph or None
        What was read, also where it could not be proven; None when nothing could be read.
    capacity : tuple of Obligation
        With a deployment: that nothing fails for want of memory (G7a), and that nothing is preempted (G7b).
    """

    findings: Findings
    proven: ProvenGraph | None
    graph: Graph | None
    capacity: tuple[Obligation, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the trace is proven."""
        return self.proven is not None

    @property
    def certificate(self) -> Certificate | None:
        """The certificate of a proven trace."""
        return self.proven.certificate if self.proven is not None else None


def load(
    paths: PathOrPaths,
    *,
    format: str = "auto",
    block_size: int | None = None,
    nested_timestamp_basis: Basis = "auto",
    subagent_marker: Marker = "auto",
    strict: bool = False,
    skip_bad: bool = False,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    compile: Setting | None = None,
) -> ProvenGraph:
    """Read traces, lower them to one graph, and prove it.

    Parameters
    ----------
    paths : path or sequence of paths
        Files and folders; "-" is standard input.
    format : str
        "auto" decides from the content; otherwise a name of docs/formats.md, such as "weka" or "claude".
    block_size : int, optional
        Tokens per hash id, for formats whose files do not say.
    nested_timestamp_basis : {"auto", "relative", "absolute"}
        How Weka's nested times count.
    subagent_marker : {"auto", "spawn", "completion"}
        What the time of a Weka subagent marks.
    strict : bool
        Take unknown fields as errors.
    skip_bad : bool
        Leave out files, records and torn last lines that cannot be read, with a warning each; the certificate has them.
    exclude : sequence of str
        Patterns of files and folders to leave out.
    follow_links : bool
        Read what symbolic links lead to.
    compile : {"auto", "always", "never"}, optional
        Whether to wait for machine code that is not kept: "auto" reads small traces without, and has it compiled
        meanwhile. ``PLAYPROOF_COMPILE`` by default, else "auto". Results are the same.

    Returns
    -------
    ProvenGraph

    Raises
    ------
    InvalidTrace
        With all findings, when any is an error.
    OSError
        When a path does not exist or cannot be read.
    """
    result = validate(
        paths,
        format=format,
        block_size=block_size,
        nested_timestamp_basis=nested_timestamp_basis,
        subagent_marker=subagent_marker,
        strict=strict,
        skip_bad=skip_bad,
        exclude=exclude,
        follow_links=follow_links,
        compile=compile,
    )
    if result.proven is None:
        raise InvalidTrace(result.findings)
    return result.proven


def validate(
    paths: PathOrPaths,
    *,
    format: str = "auto",
    block_size: int | None = None,
    nested_timestamp_basis: Basis = "auto",
    subagent_marker: Marker = "auto",
    strict: bool = False,
    skip_bad: bool = False,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    deployment: AnyDeployment | None = None,
    offered: Load | None = None,
    places: Mapping[str, Where] = PLACES,
    compile: Setting | None = None,
) -> Validation:
    """Read, lower and prove traces, and return what was found instead of raising.

    Parameters
    ----------
    paths, format, block_size, nested_timestamp_basis, subagent_marker, strict, skip_bad, exclude, follow_links, compile
        As for :func:`load`.
    deployment : Deployment or Disaggregated, optional
        Also name the requests that it would have to reject, and show what its memory holds of the load.
    offered : Load, optional
        The load on that deployment.
    places : mapping of str to Where
        Where the load's settings stand, for findings: `Configuration.places`.

    Raises
    ------
    OSError
        When a path does not exist or cannot be read.
    """
    from playproof_lowering import LoweringOptions, load_graph, placed
    from playproof_spec.certificate import prove

    reading: dict[str, Any] = {
        "block_size": block_size,
        "nested_timestamp_basis": nested_timestamp_basis,
        "subagent_marker": subagent_marker,
        "strict": strict,
        "skip_bad": skip_bad,
        "exclude": tuple(exclude),
        "follow_links": follow_links,
    }
    listed = existing(paths)
    # Standard input is read once, and not by whoever compiles.
    kept = tuple(str(path) for path in listed if str(path) != "-")
    job = machine_code.ReadingJob(kept, {"format": format, **reading})
    graph: Graph | None = None
    with machine_code.reading(compile, job):
        lowered = load_graph(listed, format=format, options=LoweringOptions(**reading))
        graph = lowered.graph
        if graph is None:
            return Validation(placed(lowered.findings, lowered.sources), None, None)
        try:
            proven = prove(graph, lowered.findings)
        except InvalidInput as refused:
            return Validation(placed(refused.findings, lowered.sources), None, graph)
    findings = Findings()
    for item in proven.findings:
        findings.add(item)
    if deployment is not None:
        findings.extend(_unfit(proven.graph, deployment, offered or Load(), places))
        findings.extend(contradictions(proven.graph, offered or Load()))
    held: tuple[Obligation, ...] = ()
    if deployment is not None and not findings.errors:
        from playproof.capacity import capacity

        held, told = capacity(proven.graph, deployment, offered or Load())
        findings.extend(told)
    findings = placed(findings, lowered.sources)
    return Validation(findings, proven if not findings.errors else None, graph, held)


def replay(
    trace: ProvenGraph,
    deployment: AnyDeployment | None = None,
    load: Load | None = None,
    *,
    per_request: bool = True,
    progress: Progress | None = None,
    compile: Setting | None = None,
    engine: Engine = "kernel",
    sla: Sla | None = None,
) -> Report:
    """Replay a proven trace on a simulated deployment.

    Parameters
    ----------
    trace : ProvenGraph
    deployment : Deployment or Disaggregated, optional
        One vLLM worker with the stated defaults of :class:`Deployment`.
    load : Load, optional
        Every play at its recorded time.
    per_request : bool
        Offer `Report.requests` and `Report.request_dicts()`.
    progress : callable, optional
        Called now and then with (requests finished, requests in all).
    compile : {"auto", "always", "never"}, optional
        Whether to wait for machine code that is not kept: "auto" replays what is small without, and has it compiled
        meanwhile. ``PLAYPROOF_COMPILE`` by default, else "auto". Results are the same.
    engine : {"kernel", "reference"}
        Who replays: the kernel, or the executable specification (reference/README.md), which is for small traces and
        has no run controls. Results are the same.
    sla : Sla, optional
        Bounds that the report counts goodput by; they change nothing else.

    Returns
    -------
    Report

    Raises
    ------
    InvalidDeployment
        When the load does not belong to the kind of trace, the replay could outlast the clock, the trace contradicts
        itself at a snapshot's cut, or the engine does not have a setting.
    """
    deployment, load = deployment or Deployment(), load or Load()
    return _replay(trace, deployment, load, PLACES, per_request, progress, compile, engine, sla)


def replay_configured(
    trace: ProvenGraph,
    configuration: Configuration,
    *,
    per_request: bool = True,
    progress: Progress | None = None,
    compile: Setting | None = None,
    engine: Engine = "kernel",
) -> Report:
    """Replay a proven trace as a configuration that was read says, and name its fields in findings.

    Parameters and exceptions are those of :func:`replay`.
    """
    places = configuration.places or PLACES
    deployment, load, sla = configuration.deployment, configuration.load, configuration.sla
    report = _replay(trace, deployment, load, places, per_request, progress, compile, engine, sla)
    for note in configuration.notes:
        report.findings.add(note)
    return report


def _unfit(graph: Graph, deployment: AnyDeployment, load: Load, places: Mapping[str, Where]) -> Findings:
    """Say what of a load does not belong to the kind of trace, and what of a deployment does not fit it."""
    findings = misoffered(graph, deployment, load, places)
    findings.extend(fit(graph, deployment, load))
    return findings


def _replay(
    trace: ProvenGraph,
    deployment: AnyDeployment,
    load: Load,
    places: Mapping[str, Where],
    per_request: bool,
    progress: Progress | None,
    compile: Setting | None,
    engine: Engine,
    sla: Sla | None,
) -> Report:
    if engine == "reference":
        report = _replay_slowly(trace, deployment, load, places, per_request)
    else:
        # Under run controls bounds are held against captured requests.
        capture = per_request or sla is not None
        with machine_code.replaying(compile, trace.graph, machine_code.ReplayJob(deployment, load)):
            report = _replay_so(trace, deployment, load, places, per_request, capture, progress)
    report.sla = sla
    return report


def _replay_slowly(
    trace: ProvenGraph, deployment: AnyDeployment, load: Load, places: Mapping[str, Where], per_request: bool
) -> Report:
    """Replay by the executable specification."""
    from playproof_reference.ledger import ledger_of
    from playproof_reference.replay import replay as by_the_book

    findings = _unfit(trace.graph, deployment, load, places)
    findings.extend(beyond_reference(load, places))
    if findings.errors:
        raise InvalidDeployment(findings)
    if reference_s(trace.graph, deployment) > REFERENCE_PATIENCE_S:
        notices.say(SLOW_REFERENCE)
    started = time.perf_counter_ns()
    ledger = ledger_of(by_the_book(trace.graph, deployment.to_spec(), load.to_spec()))
    wall_time_ms = (time.perf_counter_ns() - started) / NS_PER_MS
    return Report(
        trace, ledger, deployment, load, findings=findings, wall_time_ms=wall_time_ms, per_request=per_request
    )


def _replay_so(
    trace: ProvenGraph,
    deployment: AnyDeployment,
    load: Load,
    places: Mapping[str, Where],
    per_request: bool,
    capture: bool,
    progress: Progress | None,
) -> Report:
    from playproof_kernel import UnfitLoad, simulate
    from playproof_kernel.runs.controlled_run import simulate_controlled
    from playproof_kernel.runs.cuts import InvalidSnapshot

    findings = _unfit(trace.graph, deployment, load, places)
    if findings.errors:
        raise InvalidDeployment(findings)
    started = time.perf_counter_ns()
    if load.snapshot_seed is not None:
        try:
            controlled = simulate_controlled(
                trace, deployment.to_spec(), load.to_spec(), capture=capture, progress=progress
            )
        except (InvalidSnapshot, UnfitLoad) as refused:
            findings.extend(refused.findings)
            raise InvalidDeployment(findings) from None
        wall_time_ms = (time.perf_counter_ns() - started) / NS_PER_MS
        return ControlledReport(
            trace, controlled, deployment, load, findings=findings, wall_time_ms=wall_time_ms, per_request=per_request
        )
    try:
        ledger = simulate(trace, deployment.to_spec(), load.to_spec(), progress=progress)
    except UnfitLoad as refused:
        findings.extend(refused.findings)
        raise InvalidDeployment(findings) from None
    wall_time_ms = (time.perf_counter_ns() - started) / NS_PER_MS
    return Report(
        trace, ledger, deployment, load, findings=findings, wall_time_ms=wall_time_ms, per_request=per_request
    )


def fuzz(
    trace: ProvenGraph,
    deployment: AnyDeployment | None = None,
    load: Load | None = None,
    *,
    seed: int | None = None,
    minutes: float = 1.0,
    rounds: int | None = None,
    only: int | None = None,
    places: Mapping[str, Where] = PLACES,
    compile: Setting | None = None,
) -> Iterator[Tried]:
    """Replay variants of a run in several ways that have to agree, a round after the other (docs/fuzzing.md).

    Parameters
    ----------
    trace : ProvenGraph
    deployment : Deployment or Disaggregated, optional
    load : Load, optional
        The run whose variants are tried; by default as for :func:`replay`.
    seed : int, optional
        What decides, with the number of a round, all of it; a fresh one by default.
    minutes : float
        How long new rounds are begun.
    rounds, only : int, optional
        How many rounds are made instead, or which one, from 1.
    places, compile
        As for :func:`validate`. Machine code is waited for by default: many replays follow.

    Yields
    ------
    Tried
        Of each round, with what was found.

    Raises
    ------
    InvalidDeployment
        When the run itself cannot be replayed.
    """
    from playproof.fuzzing import Hunt
    from playproof.fuzzing import fuzz as tried

    deployment, load = deployment or Deployment(), load or Load()
    findings = _unfit(trace.graph, deployment, load, places)
    if findings.errors:
        raise InvalidDeployment(findings)
    hunt = Hunt(Hunt.fresh_seed() if seed is None else seed, minutes, rounds, only)
    if compile is None and modes.VARIABLE not in os.environ:
        compile = "always"
    with machine_code.replaying(compile, trace.graph, machine_code.ReplayJob(deployment, load)):
        yield from tried(trace.graph, deployment, load, hunt)


def replay_online(
    trace: ProvenGraph,
    deployment: AnyDeployment | None = None,
    load: Load | None = None,
    options: OnlineOptions | None = None,
    *,
    places: Mapping[str, Where] = PLACES,
    per_request: bool = True,
    progress: Progress | None = None,
    sla: Sla | None = None,
    keep: Callable[[OnlineReport | OnlineControlledReport], object] | None = None,
) -> OnlineReport | OnlineControlledReport:
    """Replay a proven trace on the wall clock, against mock workers or real servers (docs/online.md).

    Parameters
    ----------
    trace : ProvenGraph
    deployment : Deployment, optional
        What mock workers are; not looked at when `options` has endpoints.
    load : Load, optional
        Every play at its recorded time.
    options : OnlineOptions, optional
    places : mapping of str to Where
        Where the settings stand, for findings: `Configuration.places`.
    per_request, progress, sla
        As for :func:`replay`.
    keep : callable, optional
        Called with the report before mock workers are stopped, and before a signal can interrupt.

    Raises
    ------
    InvalidDeployment
        When the load does not belong to the kind of trace, or online replay does not have a setting.
    MissingExtra
        When ``playproof[online]`` is not installed, or a tokenizer is given and ``playproof[tokenizer]`` is not.
    UnusableEndpoint
        When an endpoint does not say which model it serves, and none is named, or how it counts prompts of text.
    """
    from playproof.online import require_extra

    require_extra()
    from playproof.online import replay as online

    def bounded(report: OnlineReport | OnlineControlledReport) -> None:
        report.sla = sla
        if keep is not None:
            keep(report)

    return online.replay_online(
        trace,
        deployment or Deployment(),
        load or Load(),
        options or OnlineOptions(),
        places,
        per_request=per_request or sla is not None,
        progress=progress,
        keep=bounded,
    )


def check(path: str | Path, trace: ProvenGraph, configuration: str | Path | Configuration | None = None) -> Verdict:
    """Check a run that was written to files, with the independent checker (docs/checking.md).

    Parameters
    ----------
    path : path
        The report.json or the requests.jsonl of the run, or their folder; the other one is looked for beside it.
    trace : ProvenGraph
        The trace of the run.
    configuration : path or Configuration, optional
        The configuration of the run: what the report says of its deployment and load is compared with it. Without, the
        report's own are taken.

    Raises
    ------
    InvalidDeployment
        When the configuration cannot be used.
    OSError
        When a file cannot be read.
    """
    from playproof_spec.digest import graph_digest

    from playproof.checking.files import check_files

    if configuration is not None and not isinstance(configuration, Configuration):
        configuration = read_configuration(configuration)
    certificate, graph = trace.certificate, trace.graph
    load = configuration.load if configuration is not None else None
    digests = {
        "input": str(graph.facts.get("input_digest", graph.source.digest)),
        "graph": certificate.graph_digest,
        "tables": certificate.tables_digest,
    }

    def replayed(seed: object, speedup: float) -> str:
        """Return the graph's digest in a run: at its speed, and of a snapshot with its floors as they are."""
        if seed is not None:
            return graph_digest(graph, shift_floors=False)
        return certificate.graph_digest if speedup == 1.0 else graph_digest(graph, speedup=speedup)

    return check_files(
        Path(path),
        graph,
        deployment=configuration.deployment if configuration is not None else None,
        load=load,
        digests=digests,
        replayed=replayed,
    )


def run(
    configuration: str | Path | Configuration,
    *,
    paths: PathOrPaths | None = None,
    overrides: Iterable[str] = (),
    per_request: bool = True,
    progress: Progress | None = None,
    compile: Setting | None = None,
    engine: Engine = "kernel",
) -> Report:
    """Load and replay what a configuration file says.

    Parameters
    ----------
    configuration : path or Configuration
        A YAML file, or one that was read; relative trace paths in a file start at its folder.
    paths : path or sequence of paths, optional
        Traces to take instead of the configuration's.
    overrides : iterable of str
        ``a.b.c=value`` settings put over the file's.
    per_request, progress, compile, engine
        As for :func:`replay`.

    Raises
    ------
    InvalidDeployment
        When the configuration cannot be used.
    InvalidTrace
        When the trace cannot be replayed.
    OSError
        When a file cannot be read.
    """
    if not isinstance(configuration, Configuration):
        configuration = read_configuration(configuration, overrides)
    proven = load(
        configuration.paths if paths is None else paths,
        format=configuration.format,
        block_size=configuration.block_size,
        nested_timestamp_basis=configuration.nested_timestamp_basis,
        subagent_marker=configuration.subagent_marker,
        skip_bad=configuration.skip_bad,
        exclude=configuration.exclude,
        follow_links=configuration.follow_links,
        compile=compile,
    )
    return replay_configured(
        proven, configuration, per_request=per_request, progress=progress, compile=compile, engine=engine
    )


def existing(paths: PathOrPaths) -> list[Path]:
    """Return `paths` as a list.

    Raises
    ------
    FileNotFoundError
        When there is none, or the first that does not exist.
    """
    listed = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not listed:
        raise FileNotFoundError("no trace is given")
    for path in listed:
        # A dangling link exists as a link: readers refuse it with a finding that says so. A dash is standard input.
        if str(path) != "-" and not path.exists() and not path.is_symlink():
            raise FileNotFoundError(f"no such file or folder: {path}")
    return listed
