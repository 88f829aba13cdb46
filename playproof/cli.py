"""The command line: validate, lower, inspect, replay, explain, compare, check, fuzz, serve, warm, machines.

Results go to standard output, everything else to standard error. Exit codes: 0 proven (or done), 1 findings of severity
error, 2 usage or an unreadable file, 3 below a threshold that was asked for, 70 a fault of ours, 130 interrupted with
partial results.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from playproof_native import modes, notices
from playproof_spec import diagrams
from playproof_spec.findings import Findings, InvalidInput, Severity, printable
from playproof_spec.graph import Graph
from playproof_spec.machines import MACHINES
from playproof_spec.obligation import PROVEN
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from playproof import api, tables
from playproof.checking.verdict import CHECK_SCHEMA
from playproof.commands.compare import EXIT_MISSED, compare
from playproof.commands.starting import demo, init, schema
from playproof.config import (
    DEFAULT_CONFIGURATION,
    READERS,
    Basis,
    Configuration,
    Marker,
    parse_configuration,
    read_configuration,
)
from playproof.deployment import Deployment, InvalidDeployment
from playproof.files import left_by_another_run
from playproof.goodput import least_share
from playproof.online import MissingExtra, require_extra
from playproof.online.options import SILENCE_TIMEOUT_S, OnlineOptions, PromptFormat
from playproof.render import (
    counted,
    escaped,
    escaped_json,
    print_certificate,
    print_check,
    print_findings,
    print_graph,
    print_inspection,
    print_obligations,
    print_report,
    print_rules,
    print_verdict,
)
from playproof.report import Report
from playproof.sarif import to_sarif
from playproof.short import Short, share_of
from playproof.tables import MissingHtml, MissingTables
from playproof.terminal import err, out, print_json, print_text, say

if TYPE_CHECKING:
    from playproof_native.modes import Setting
    from playproof_spec.certificate import ProvenGraph

    from playproof.checking import Verdict
    from playproof.fuzzing import Tried
    from playproof.online.processes import WorkerProcess

EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_OURS = 70
# Ctrl-C: the results are there, and partial.
EXIT_INTERRUPTED = 130

UNREADABLE = frozenset({"path-missing", "file-unreadable"})

# Shorter work needs no progress.
PROGRESS_AFTER_S = 1.0


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help says `[default: …]` as it is written: Rich takes brackets for markup."""
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            if text := getattr(parameter, "help", None):
                parameter.help = _BRACKET.sub(r"\\[", text)
        return command


# A bracket that is not escaped yet.
_BRACKET = re.compile(r"(?<!\\)\[")

app = typer.Typer(
    name="playproof",
    cls=_Commands,
    help="Validate, prove and replay agentic LLM workloads on a simulated serving deployment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    text = "text"
    json = "json"
    sarif = "sarif"


class CheckOutput(StrEnum):
    text = "text"
    json = "json"


class Lines(StrEnum):
    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


class View(StrEnum):
    text = "text"
    json = "json"
    mermaid = "mermaid"
    dot = "dot"


def _known_format(name: str | None) -> str | None:
    if name is not None and name not in READERS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(READERS)}")
    return name


Paths = Annotated[list[Path], typer.Argument(help="Trace files and folders; - is standard input.", show_default=False)]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        # Names apart by spaces: a comma would not fit beside the longest one on a terminal of 80 columns.
        help=f"How to read them; auto, the default, tells by the content. One of: {' '.join(READERS)}",
        metavar="FORMAT",
        callback=_known_format,
    ),
]
BasisOption = Annotated[Basis | None, typer.Option(help="What Weka's nested times count from [default: auto].")]
MarkerOption = Annotated[Marker | None, typer.Option(help="What a Weka subagent's own time marks [default: auto].")]
BlockSizeOption = Annotated[int | None, typer.Option(min=1, help="Tokens per hash id, where the files do not say.")]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and say what, instead of refusing all.")
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Leave out files and folders like this; repeatable.")
]
FollowOption = Annotated[bool, typer.Option("--follow-links", help="Read what symbolic links lead to.")]


class Engine(StrEnum):
    kernel = "kernel"
    reference = "reference"


class FinishReason(StrEnum):
    length = "length"
    stop = "stop"


class FailOn(StrEnum):
    failed = "failed"
    any = "any"


class Compile(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


CompileOption = Annotated[
    Compile | None,
    typer.Option(
        "--compile",
        help="Wait for machine code that is not kept, or run interpreted [default: auto, by the size of the work].",
    ),
]
WorkersOption = Annotated[
    str | None, typer.Option("--workers", metavar="N", help="Workers; PREFILL+DECODE for a pair, such as 1+3.")
]
LanesOption = Annotated[int | None, typer.Option("--lanes", min=1, help="Plays at once.")]
BlocksOption = Annotated[
    str | None, typer.Option("--blocks", metavar="N", help="KV blocks of each worker; PREFILL+DECODE for a pair.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A YAML configuration.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="a.b.c=value: put over the configuration.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.
    """
    try:
        modes.default_setting()
    except ValueError as error:
        return say(str(error), EXIT_USAGE)
    try:
        app(args=arguments, prog_name="playproof")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
    except (MissingExtra, MissingTables, MissingHtml) as missing:
        return say(str(missing), EXIT_USAGE)
    except InvalidInput as refused:
        print_findings(err, refused.findings)
        print_verdict(err, refused.findings, "refused")
        return EXIT_FINDINGS
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        return say(f"{name}{error.strerror or error}", EXIT_USAGE)
    except MemoryError:
        return say("there is not enough memory for this; take fewer files at a time", EXIT_USAGE)
    except Exception as error:
        return _our_fault(error)
    return 0


def _our_fault(error: Exception) -> int:
    if os.environ.get("PLAYPROOF_TRACEBACK"):
        err.print_exception()
    return say(
        f"internal error ({type(error).__name__}: {error})\n"
        "This is a fault of playproof, not of your input. Please report it with the command you ran and what\n"
        "`PLAYPROOF_TRACEBACK=1 playproof …` prints; `playproof --version` says which version it is.",
        EXIT_OURS,
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"playproof {version('playproof')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version)
]


@app.callback()
def _common(show_version: VersionOption = False) -> None:
    """Take the options that stand before a command."""


@app.command()
def validate(
    paths: Paths,
    config: ConfigOption = None,
    format: FormatOption = None,
    nested_timestamp_basis: BasisOption = None,
    subagent_marker: MarkerOption = None,
    block_size: BlockSizeOption = None,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Take unknown fields as errors.")] = False,
    output: Annotated[Output, typer.Option(help="What to print.")] = Output.text,
    compile: CompileOption = None,
) -> None:
    """Prove a trace, or say what is wrong with it."""
    settings = read_configuration(config) if config is not None else None
    reading = _reading(settings, format, nested_timestamp_basis, subagent_marker, block_size)
    _select(reading, skip_bad, exclude, follow_links)
    with _patience("reading and proving"):
        result = api.validate(
            paths,
            **reading,
            strict=strict,
            deployment=settings.deployment if settings is not None else None,
            offered=settings.load if settings is not None else None,
            places=settings.places if settings is not None else api.PLACES,
            compile=_setting(compile),
        )
    for note in settings.notes if settings is not None else ():
        result.findings.add(note)
    if output is Output.text:
        _print_validation(result)
    elif output is Output.json:
        print_json(_validation_dict(result))
    else:
        print_json(to_sarif(result.findings))
    if not result.ok:
        raise typer.Exit(_refusal(result.findings))


def _print_validation(result: api.Validation) -> None:
    if result.graph is not None:
        print_graph(out, result.graph)
    print_findings(out, result.findings)
    if result.certificate is not None:
        print_certificate(out, result.certificate)
        print_obligations(out, result.capacity)
    else:
        print_verdict(out, result.findings)


def _validation_dict(result: api.Validation) -> dict[str, object]:
    graph, certificate = result.graph, result.certificate
    return {
        "schema": "playproof.validation.v1",
        "proven": result.ok,
        "plays": len(graph.plays) if graph is not None else 0,
        "requests": graph.node_count if graph is not None else 0,
        "reading": dict(graph.facts) if graph is not None else {},
        "counts": result.findings.counts,
        "findings": [msgspec.to_builtins(item) for item in result.findings.items],
        "certificate": certificate.to_dict() if certificate is not None else None,
        "capacity": [msgspec.to_builtins(obligation) for obligation in result.capacity],
    }


@app.command()
def lower(
    paths: Paths,
    out_file: Annotated[Path, typer.Option("--out", help="The file to write.", show_default=False)],
    format: FormatOption = None,
    nested_timestamp_basis: BasisOption = None,
    subagent_marker: MarkerOption = None,
    block_size: BlockSizeOption = None,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    compile: CompileOption = None,
) -> None:
    """Write a proven trace in canonical form (Agentic Mooncake v2)."""
    from playproof_lowering import write_v2

    reading = _reading(None, format, nested_timestamp_basis, subagent_marker, block_size)
    _select(reading, skip_bad, exclude, follow_links)
    with _patience("reading and proving"):
        result = api.validate(paths, **reading, compile=_setting(compile))
    print_findings(err, result.findings)
    if result.proven is None:
        print_verdict(err, result.findings)
        raise typer.Exit(_refusal(result.findings))
    graph = result.proven.graph
    with _patience("writing"):
        write_v2(graph, out_file)
    plays, requests = counted(len(graph.plays), "play"), counted(graph.node_count, "request")
    out.print(f"written {out_file}: {plays}, {requests}", markup=False)


@app.command()
def inspect(
    paths: Paths,
    format: FormatOption = None,
    nested_timestamp_basis: BasisOption = None,
    subagent_marker: MarkerOption = None,
    block_size: BlockSizeOption = None,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    output: Annotated[View, typer.Option(help="What to print; mermaid and dot draw one play.")] = View.text,
    play: Annotated[str | None, typer.Option(help="The play to draw [default: the one with the most agents].")] = None,
    compile: CompileOption = None,
) -> None:
    """Show what a corpus holds, before anyone replays it."""
    from playproof.inspection import inspect_graph

    drawing = output in (View.mermaid, View.dot)
    if play is not None and not drawing:
        raise typer.BadParameter("only a picture is of one play: add --output mermaid or dot", param_hint="--play")
    reading = _reading(None, format, nested_timestamp_basis, subagent_marker, block_size)
    _select(reading, skip_bad, exclude, follow_links)
    proven, findings = _read_and_proven(paths, reading, compile)
    graph = proven.graph
    if drawing:
        _draw(graph, play, output)
        return
    figures = inspect_graph(graph, findings).to_dict()
    if output is View.json:
        print_json(figures)
    else:
        print_inspection(out, figures)
        print_findings(out, findings)


def _draw(graph: Graph, name: str | None, output: View) -> None:
    from playproof import picture

    play = picture.find_play(graph, name)
    if play is None:
        raise typer.BadParameter(f"the corpus has no play {name!r}", param_hint="--play")
    if len(play.nodes) > picture.MAX_REQUESTS:
        message = (
            f"play {printable(play.play_id)} has {len(play.nodes):,} requests, a picture holds {picture.MAX_REQUESTS}"
        )
        raise typer.BadParameter(message, param_hint="--play")
    draw = picture.mermaid if output is View.mermaid else picture.dot
    print_text(escaped(draw(graph, play)) + "\n")


@app.command()
def replay(
    paths: Annotated[list[Path] | None, typer.Argument(help="Traces, instead of the configuration's.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    workers: WorkersOption = None,
    lanes: LanesOption = None,
    blocks: BlocksOption = None,
    out_folder: Annotated[Path | None, typer.Option("--out", help="Folder for report.json.")] = None,
    per_request: Annotated[bool, typer.Option("--per-request", help="Also write a file of all requests.")] = False,
    format: Annotated[Lines, typer.Option(help="Of the file of all requests.")] = Lines.jsonl,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto or Chrome to this file; .gz compresses it.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with charts to this file.")] = None,
    fail_under: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Exit with 3 if less than this share, such as 95%, holds evaluation.sla."),
    ] = None,
    check_run: Annotated[
        bool, typer.Option("--check", help="Check the run with the independent checker; the report has its verdict.")
    ] = False,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report alone.")] = False,
    online: Annotated[bool, typer.Option("--online", help="Replay on the wall clock, over HTTP.")] = False,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Online: a server, repeatable [default: mock workers of the deployment].")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Online: the endpoints' model [default: the one they serve].")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Online: token ids stay below [default: 32000].")] = None,
    prompt_format: Annotated[
        PromptFormat, typer.Option(help="Online: send prompts as token ids, as text, or as chats.")
    ] = PromptFormat.ids,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FILE", help="Online: a tokenizer.json, for prompts of text [default: asked].")
    ] = None,
    time_scale: Annotated[float, typer.Option(help="Online: seconds of the replay in one of wall time.")] = 1.0,
    duration: Annotated[float | None, typer.Option(help="Online: end admission after so many seconds.")] = None,
    silence_timeout: Annotated[
        float, typer.Option(help="Online: wall seconds without a byte after which a request has failed.")
    ] = SILENCE_TIMEOUT_S,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help="Online: leave with 1 if a request failed, or if any did not complete or is not as asked for."
        ),
    ] = None,
    compile: CompileOption = None,
    engine: Annotated[
        Engine, typer.Option(help="Who replays: the kernel, or the executable specification, for small traces.")
    ] = Engine.kernel,
) -> None:
    """Replay a trace on a simulated deployment, or with --online on the wall clock."""
    options = _online_options(
        online,
        {
            "--endpoint": ("endpoints", tuple(endpoint or ())),
            "--model": ("model", model),
            "--vocabulary": ("vocabulary", vocabulary),
            "--prompt-format": ("prompt_format", prompt_format),
            "--tokenizer": ("tokenizer", tokenizer),
            "--time-scale": ("time_scale", time_scale),
            "--duration": ("duration_seconds", duration),
            "--silence-timeout": ("silence_timeout_seconds", silence_timeout),
        },
    )
    if fail_on is not None and not online:
        raise typer.BadParameter("belongs to --online", param_hint="--fail-on")
    if online and engine is Engine.reference:
        raise typer.BadParameter("the reference does not replay online", param_hint="--engine")
    if per_request and out_folder is None:
        raise typer.BadParameter("--per-request needs --out, the folder for its file", param_hint="--per-request")
    configuration = _configuration(config, settings or [], Short(workers, lanes, blocks))
    threshold = _threshold(fail_under, configuration)
    proven = _proven(configuration, paths, skip_bad, exclude, follow_links, compile)
    if out_folder is not None:
        _prepare(out_folder, (f"requests.{format.value}",) if per_request else ())
    _prepare_views(format if per_request else None, timeline, html)
    written: list[Path] = []

    def keep(report: Report) -> None:
        if out_folder is not None:
            written[:] = report.write(out_folder, per_request=per_request, format=format.value)

    with _replay_progress() as progress:
        captured = per_request or check_run or timeline is not None or html is not None
        report = _replayed(proven, configuration, options, captured, progress, _setting(compile), engine, keep)
    verdict = _checked(report) if check_run else None
    if report.findings.warnings and not as_json:
        codes = sorted({item.code for item in report.findings.items if item.severity is Severity.WARNING})
        counts = ", ".join(f"{code} ×{report.findings.counts[code]}" for code in codes)
        told = counted(report.findings.warnings, "warning")
        err.print(f"{told} ({counts}); `playproof validate --config` shows them", markup=False)
    if not written or verdict is not None:
        keep(report)
    if timeline is not None and report.valid:
        written.append(report.write_timeline(timeline))
    if html is not None and report.valid:
        written.append(report.write_html(html))
    if as_json:
        print_text(escaped_json(report.to_json().decode()))
    else:
        print_report(out, report.to_dict())
        if verdict is not None:
            print_check(out, verdict)
        for path in written:
            out.print(f"written {path}", markup=False)
    if verdict is not None and not verdict.ok:
        print_findings(err, verdict.findings)
        raise typer.Exit(EXIT_FINDINGS)
    if not report.valid:
        reason = report.to_dict()["agentic_phases"]["failure_reason"]
        err.print(f"the run is invalid: {reason}; agentic_phases has the evidence", markup=False)
        raise typer.Exit(EXIT_FINDINGS)
    if online:
        _leave_online(report, fail_on)
    if threshold is not None:
        _hold(report, threshold)


def _leave_online(report: Report, fail_on: FailOn | None) -> None:
    """Say what is wrong with an online run as a whole, and leave with a code where it is not simply done."""
    from playproof.online.outcome import failures

    figures = report.to_dict()
    for warning in figures["online"]["warnings"]:
        err.print(f"warning: {warning}", markup=False)
    if getattr(report, "interrupted", False):
        raise typer.Exit(EXIT_INTERRUPTED)
    why = failures(figures, fail_on.value if fail_on is not None else None)
    if why:
        err.print(f"playproof: {why}", markup=False)
        raise typer.Exit(EXIT_FINDINGS)


def _prepare(folder: Path, written: Sequence[str]) -> None:
    """Make the folder of a run; what cannot be made, or written there, is told before a long replay."""
    folder.mkdir(parents=True, exist_ok=True)
    left_by_another_run(folder, written)


def _prepare_views(format: Lines | None, timeline: Path | None, html: Path | None) -> None:
    """Tell before a long replay what is not installed, and what folder cannot be made."""
    if format is not None:
        tables.require(format.value)
    if html is not None:
        from playproof import page

        page.require()
    for path in (timeline, html):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)


def _threshold(text: str | None, configuration: Configuration) -> float | None:
    """Return the share below which a run fails, None where none is asked for."""
    if text is None:
        return None
    share = share_of(text)
    if share is None:
        raise typer.BadParameter(f"{text!r} is no share: write 95% or 0.95", param_hint="--fail-under")
    if configuration.sla is None:
        raise typer.BadParameter("needs bounds: set evaluation.sla, such as ttft_ms", param_hint="--fail-under")
    return share


def _hold(report: Report, threshold: float) -> None:
    """Leave with an exit code of its own if less than the threshold holds the bounds."""
    share = least_share(report.to_dict())
    if share is None or share < threshold:
        found = "nothing that shows it" if share is None else f"{share:.2%}"
        err.print(f"goodput is under {threshold:.2%}: {found} holds the bounds", markup=False)
        raise typer.Exit(EXIT_MISSED)


@app.command()
def explain(
    request: Annotated[str, typer.Argument(help="A request's id, or `slowest`.")],
    paths: Annotated[list[Path] | None, typer.Argument(help="Traces, instead of the configuration's.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    workers: WorkersOption = None,
    lanes: LanesOption = None,
    blocks: BlocksOption = None,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    output: Annotated[CheckOutput, typer.Option(help="What to print.")] = CheckOutput.text,
    compile: CompileOption = None,
) -> None:
    """Replay, and say what a request waited for: which edge, queue or transfer decided it."""
    from playproof.explaining import NoSuchRequest

    configuration = _configuration(config, settings or [], Short(workers, lanes, blocks))
    proven = _proven(configuration, paths, skip_bad, exclude, follow_links, compile)
    with _replay_progress() as progress:
        report = _replayed(
            proven, configuration, None, True, progress, _setting(compile), Engine.kernel, lambda report: None
        )
    try:
        explanation = report.explain(request)
    except NoSuchRequest as error:
        raise typer.BadParameter(str(error), param_hint="REQUEST") from None
    if output is CheckOutput.json:
        print_json(explanation.to_dict())
    else:
        out.print(str(explanation), markup=False)


def _proven(
    configuration: Configuration,
    paths: list[Path] | None,
    skip_bad: bool,
    exclude: Sequence[str] | None,
    follow_links: bool,
    compile: Compile | None,
) -> ProvenGraph:
    """Return the proven traces that are named, or else the configuration's; say what is not proven, and leave."""
    chosen = paths or configuration.paths
    if not chosen:
        raise typer.BadParameter(
            "name a trace here, or in the configuration's traffic.source.paths", param_hint="paths"
        )
    reading = _reading(configuration, None)
    _select(reading, skip_bad, exclude, follow_links)
    return _read_and_proven(chosen, reading, compile)[0]


def _read_and_proven(
    paths: Sequence[Path], reading: api.Reading, compile: Compile | None
) -> tuple[ProvenGraph, Findings]:
    """Return the traces, proven, and what was found besides; say what is not proven, and leave."""
    with _patience("reading and proving"):
        result = api.validate(paths, **reading, compile=_setting(compile))
    if result.proven is None:
        print_findings(err, result.findings)
        print_verdict(err, result.findings)
        raise typer.Exit(_refusal(result.findings))
    return result.proven, result.findings


def _checked(report: Report) -> Verdict:
    with _patience("checking"):
        return report.check()


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A run's report.json or requests.jsonl, or the folder of both.")],
    traces: Annotated[
        list[Path] | None, typer.Option("--trace", help="The run's traces; repeatable [default: the configuration's].")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    format: FormatOption = None,
    nested_timestamp_basis: BasisOption = None,
    subagent_marker: MarkerOption = None,
    block_size: BlockSizeOption = None,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    output: Annotated[CheckOutput, typer.Option(help="What to print.")] = CheckOutput.text,
    compile: CompileOption = None,
) -> None:
    """Check that a run's files are what its trace, its settings and the rules make of them."""
    configured = config is not None or bool(settings)
    configuration = _configuration(config, settings or []) if configured else None
    chosen = traces or (list(configuration.paths) if configuration is not None else [])
    if not chosen:
        raise typer.BadParameter("name the traces of the run", param_hint="--trace")
    reading = _reading(configuration, format, nested_timestamp_basis, subagent_marker, block_size)
    _select(reading, skip_bad, exclude, follow_links)
    with _patience("reading and proving"):
        result = api.validate(chosen, **reading, compile=_setting(compile))
    if result.proven is None:
        print_findings(err, result.findings)
        print_verdict(err, result.findings)
        raise typer.Exit(_refusal(result.findings))
    with _patience("checking"):
        verdict = api.check(path, result.proven, configuration)
    if output is CheckOutput.json:
        findings = [msgspec.to_builtins(item) for item in verdict.findings.items]
        counts = verdict.findings.counts
        print_json({"schema": CHECK_SCHEMA, **verdict.summary(), "counts": counts, "findings": findings})
    else:
        print_findings(out, verdict.findings)
        print_rules(out, verdict)
        print_check(out, verdict)
    if not verdict.ok:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def fuzz(
    paths: Annotated[list[Path] | None, typer.Argument(help="Traces, instead of the configuration's.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="How long new rounds are begun.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="What decides all rounds [default: a fresh one].")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Make so many rounds, whatever the time.")] = None,
    only: Annotated[int | None, typer.Option(min=1, help="Make this round of the seed again, and no other.")] = None,
    skip_bad: SkipBadOption = False,
    exclude: ExcludeOption = None,
    follow_links: FollowOption = False,
    compile: CompileOption = None,
) -> None:
    """Replay variants of a run, and check each; macro-steps, single passes and the reference have to agree."""
    from playproof.fuzzing import Hunt

    if rounds is not None and only is not None:
        raise typer.BadParameter("is one round; leave --rounds out", param_hint="--only")
    configuration = _configuration(config, settings or [])
    proven = _proven(configuration, paths, skip_bad, exclude, follow_links, compile)
    seed = Hunt.fresh_seed() if seed is None else seed
    files = [str(path) for path in paths or ()] + (["--config", str(config)] if config is not None else [])
    chosen = [argument for setting in settings or () for argument in ("--set", setting)]
    left_out = ["--skip-bad"] * skip_bad + [argument for glob in exclude or () for argument in ("--exclude", glob)]
    reading = [*left_out, *["--follow-links"] * follow_links]
    again = shlex.join(["playproof", "fuzz", *files, *chosen, *reading, "--seed", str(seed)])
    out.print(f"seed {seed}: {again} --rounds …", markup=False)
    tried = api.fuzz(
        proven,
        configuration.deployment,
        configuration.load,
        seed=seed,
        minutes=minutes,
        rounds=rounds,
        only=only,
        places=configuration.places or api.PLACES,
        compile=_setting(compile),
    )
    made = found = 0
    for each in tried:
        made += 1
        found += each.findings.errors > 0
        out.print(f"round {each.round}: {'; '.join(each.variants)}{_drawn_in_vain(each)}", markup=False)
        if each.findings.errors:
            print_findings(out, each.findings)
            out.print(f"again: {again} --only {each.round}", markup=False)
    out.print(f"{counted(made, 'round')}, {found or 'none'} of them found something", markup=False)
    if found:
        raise typer.Exit(EXIT_FINDINGS)


def _drawn_in_vain(tried: Tried) -> str:
    return f"; {counted(tried.refused, 'draw')} cannot be run" if tried.refused else ""


def _online_options(online: bool, given: Mapping[str, tuple[str, Any]]) -> OnlineOptions | None:
    """Return how to replay online, or None for offline, which has no such options: (option, value) by their flags."""
    options = OnlineOptions()
    for flag, (name, value) in given.items():
        if value == getattr(options, name):
            continue
        if not online:
            raise typer.BadParameter("belongs to --online", param_hint=flag)
        try:
            options = msgspec.structs.replace(options, **{name: value})
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=flag) from None
    return options if online else None


def _replayed(
    proven: ProvenGraph,
    configuration: Configuration,
    options: OnlineOptions | None,
    per_request: bool,
    progress: Callable[[int, int], None] | None,
    compile: Setting | None,
    engine: Engine,
    keep: Callable[[Report], None],
) -> Report:
    if options is None:
        return api.replay_configured(
            proven, configuration, per_request=per_request, progress=progress, compile=compile, engine=engine.value
        )
    require_extra()
    from playproof.online.processes import WorkerFault
    from playproof.online.replay import UnusableEndpoint

    try:
        return api.replay_online(
            proven,
            configuration.deployment,
            configuration.load,
            options,
            places=configuration.places or api.PLACES,
            per_request=per_request,
            progress=progress,
            sla=configuration.sla,
            keep=keep,
        )
    except (UnusableEndpoint, WorkerFault, ValueError) as error:
        raise typer.Exit(say(str(error), EXIT_USAGE)) from None


@app.command()
def serve(
    config: ConfigOption = None,
    settings: SetOption = None,
    host: Annotated[str, typer.Option(help="Where to listen; loopback, so that nobody else reaches it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the first worker; 0 takes any.")] = 8000,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes, a port each [default: the configuration's].")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name to serve under [default: the configuration's].")] = None,
    time_scale: Annotated[float, typer.Option(help="Seconds of the engine in one of wall time.")] = 1.0,
    finish_reason: Annotated[FinishReason, typer.Option(help="Why answers end.")] = FinishReason.length,
    inject: Annotated[
        list[str] | None, typer.Option(metavar="FAULT=RATE", help="Fail such a share of requests; repeatable.")
    ] = None,
    inject_seed: Annotated[int, typer.Option(min=0, help="What decides which requests those are.")] = 0,
) -> None:
    """Serve mock workers that speak the OpenAI API, each the simulated engine on the wall clock."""
    require_extra()
    from playproof.online.inject import parsed
    from playproof.online.options import unsupported
    from playproof.online.processes import Manner, WorkerFault
    from playproof.online.processes import workers as started

    try:
        injection = parsed(inject or (), inject_seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--inject") from None

    configuration = _configuration(config, settings or [])
    findings = unsupported(configuration.deployment, configuration.load, configuration.places or api.PLACES, mock=True)
    if findings.errors:
        raise InvalidDeployment(findings)
    deployment = configuration.deployment
    assert isinstance(deployment, Deployment)  # the findings have seen to it
    number = deployment.workers if workers is None else workers
    if port and port + number > 65536:
        raise typer.BadParameter(f"there are no {number} ports from {port} on", param_hint="--port")
    if not 0 < time_scale < float("inf"):
        raise typer.BadParameter("the time scale is above 0", param_hint="--time-scale")
    try:
        manner = Manner(model=model, scale=time_scale, reason=finish_reason.value, injection=injection)
        with started(deployment, number, manner=manner, host=host, port=port) as running:
            for worker in running:
                out.print(f"serving {worker.url}/v1", markup=False)
            died = _wait_for_a_signal(running)
    except WorkerFault as error:
        raise typer.Exit(say(str(error), EXIT_USAGE)) from None
    if died:
        raise typer.Exit(say(died, EXIT_OURS))


def _wait_for_a_signal(running: Sequence[WorkerProcess]) -> str:
    """Return when Ctrl-C or a request to terminate comes, or when a worker ends by itself, and then say how."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    while not told.wait(timeout=0.5):
        for worker in running:
            if worker.death is not None:
                return f"the mock worker at {worker.url} died: {worker.death}"
    return ""


@app.command()
def machines(
    prove: Annotated[bool, typer.Option("--prove", help="Prove the obligations on the machines.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print Mermaid diagrams instead of tables.")] = False,
) -> None:
    """Print every lifecycle, or prove them."""
    if prove:
        _prove_machines()
        return
    for number, machine in enumerate(MACHINES):
        text = f"%% {machine.name}\n{diagrams.mermaid(machine)}" if mermaid else diagrams.table_text(machine)
        out.print(("\n" if number else "") + text, markup=False)


def _prove_machines() -> None:
    """Print each obligation on the machines; a failed one is a fault of ours that the exit code tells."""
    from playproof_kernel.checks.translation import computed_identities
    from playproof_spec.machine_proofs import prove_machines

    obligations = prove_machines(computed=computed_identities())
    print_obligations(out, obligations)
    if any(obligation.verdict != PROVEN for obligation in obligations):
        raise typer.Exit(EXIT_OURS)


@app.command()
def warm(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Traces whose formats the readers are compiled for.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    format: FormatOption = None,
    online: Annotated[bool, typer.Option("--online", help="Also what mock workers and --online call.")] = False,
) -> None:
    """Compile all that replaying on a deployment needs, ahead of time, and keep it."""
    from playproof import machine_code

    configuration = _configuration(config, settings or [])
    chosen = paths or [Path(path) for path in configuration.paths]
    jobs: list[machine_code.Job] = [machine_code.ReplayJob(configuration.deployment, configuration.load)]
    reading = {**_reading(configuration, format)}
    jobs.insert(
        0, machine_code.ReadingJob(tuple(str(path) for path in api.existing(chosen)) if chosen else (), reading)
    )
    compiled: list[str] = []
    with _warming(compiled) as told:
        for job in jobs:
            machine_code.warm(job, told)
        if online:
            machine_code.warm_online(configuration.deployment, told)
    what = f"compiled {counted(len(compiled), 'function')}" if compiled else "nothing to compile: all of it is kept"
    out.print(f"{what}; it lies in {machine_code.folder()}", markup=False)


for _command in (compare, init, schema, demo):
    app.command()(_command)


@contextlib.contextmanager
def _warming(compiled: list[str]) -> Iterator[Callable[[str], None]]:
    """Give a callback that says which function is being compiled, and fills `compiled`."""
    if not err.is_terminal:

        def tell(name: str) -> None:
            compiled.append(name)
            err.print(f"compiling {name}", markup=False)

        yield tell
        return
    with err.status("looking for kept code …") as status:

        def show(name: str) -> None:
            compiled.append(name)
            status.update(f"compiling {name} …")

        yield show


def _setting(compile: Compile | None) -> Setting | None:
    return compile.value if compile is not None else None


def _refusal(findings: Findings) -> int:
    """Return the exit code of a refused trace: 2 when a file of it could not be read at all."""
    return EXIT_USAGE if UNREADABLE & findings.counts.keys() else EXIT_FINDINGS


def _configuration(config: Path | None, settings: Sequence[str], short: Short | None = None) -> Configuration:
    def read(overrides: Sequence[str]) -> Configuration:
        if config is not None:
            return read_configuration(config, overrides)
        return parse_configuration(DEFAULT_CONFIGURATION, file="defaults", overrides=overrides)

    configuration = read(settings)
    if short is None or not any(short):
        return configuration
    try:
        return read([*settings, *short.settings(configuration.deployment)])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _reading(
    configuration: Configuration | None,
    format: str | None,
    basis: Basis | None = None,
    marker: Marker | None = None,
    block_size: int | None = None,
) -> api.Reading:
    """Return how to read: the command line's word, else the configuration's, else the defaults."""
    said = configuration or Configuration()
    return {
        "format": format or said.format,
        "nested_timestamp_basis": basis or said.nested_timestamp_basis,
        "subagent_marker": marker or said.subagent_marker,
        "block_size": block_size if block_size is not None else said.block_size,
        "skip_bad": said.skip_bad,
        "exclude": said.exclude,
        "follow_links": said.follow_links,
    }


def _select(reading: api.Reading, skip_bad: bool, exclude: Sequence[str] | None, follow_links: bool) -> None:
    """Add to a reading what the command line leaves out and follows besides."""
    reading["skip_bad"] |= skip_bad
    reading["exclude"] += tuple(exclude or ())
    reading["follow_links"] |= follow_links


@contextlib.contextmanager
def _patience(what: str) -> Iterator[None]:
    """Show that something goes on: after a second where anyone watches, else in one line after a few."""
    if not err.is_terminal:
        with notices.patience(f"{what} …"):
            yield
        return
    status = err.status(f"{what} …")
    try:
        with notices.shown_by(_notice), _after(PROGRESS_AFTER_S, status.start):
            yield
    finally:
        status.stop()


def _notice(line: str) -> None:
    err.print(f"playproof: {line}", markup=False)


@contextlib.contextmanager
def _after(seconds: float, start: Callable[[], None]) -> Iterator[None]:
    """Call `start` if the body takes longer than that."""
    timer = threading.Timer(seconds, start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextlib.contextmanager
def _replay_progress() -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback that moves a bar, which appears on a terminal after a second; None, and a line after a few
    seconds, where nobody watches."""
    if not err.is_terminal:
        with notices.patience("replaying …"):
            yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=err, transient=True)
    task = bar.add_task("starting", total=None)

    def progress(done: int, total: int) -> None:
        bar.update(task, description="replaying", completed=done, total=total)

    try:
        with notices.shown_by(_notice), _after(PROGRESS_AFTER_S, bar.start):
            yield progress
    finally:
        bar.stop()
