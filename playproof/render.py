"""What people read on the terminal: findings, certificates, and the table of a report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from playproof_spec.catalogue import CATALOGUE, Severity
from playproof_spec.findings import Finding, Findings, printable
from playproof_spec.graph import Graph
from playproof_spec.obligation import PROVEN, Obligation
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from playproof_spec.certificate import Certificate

    from playproof.checking import Verdict

# Findings of one code that are printed whole; the rest are counted (`--output json` has more of them).
SHOWN_PER_CODE = 5
# Longer latencies are printed in seconds, and those of hours in hours.
MS_UP_TO = 1000
MS_PER_HOUR = 3_600_000
# What the columns of a table of latencies are.
SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")
# What the bounds are called on the screen.
BOUNDS = {
    "ttft_ms": "TTFT",
    "itl_ms": "mean ITL",
    "tpot_ms": "TPOT",
    "e2e_ms": "request E2E",
    "trajectory_ms": "trajectory E2E",
}
NAME_WIDTH = 27
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}

LATENCIES = (
    ("trajectory E2E", "trajectory_e2e_latency"),
    ("TTFT", "ttft"),
    ("TTST", "ttst"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("request E2E", "e2e_latency"),
)


def escaped(text: str) -> str:
    """Return text with all that a terminal would act upon escaped, but for line breaks.

    Examples
    --------
    >>> escaped("a\\x1b[2J\\nb")
    'a\\\\x1b[2J\\nb'
    """
    return text if text.isprintable() else "\n".join(printable(line) for line in text.split("\n"))


def escaped_json(text: str) -> str:
    """Return a JSON text with the same escaped as JSON does; outside of strings it has none of it but line breaks."""
    if text.isprintable():
        return text
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else _UNPRINTABLE.sub(_json_escape, line) for line in lines)


# What `str.isprintable` may find wrong is no letter, digit or common mark.
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def _json_escape(match: re.Match[str]) -> str:
    char = match.group()
    return char if char.isprintable() else json.dumps(char)[1:-1]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> counted(1, "play"), counted(1200, "edge")
    ('1 play', '1,200 edges')
    """
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def print_findings(console: Console, findings: Findings) -> None:
    """Print findings grouped by severity and code, errors first, each group with its reason and way out."""
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for item in findings.items:
        groups.setdefault((item.severity, item.code), []).append(item)
    order = list(Severity)
    for (severity, code), items in sorted(groups.items(), key=lambda group: order.index(group[0][0])):
        _print_group(console, severity, code, items, findings.counts[code])


def _print_group(console: Console, severity: Severity, code: str, items: list[Finding], count: int) -> None:
    if severity is Severity.NOTE:
        for item in items[:SHOWN_PER_CODE]:
            console.print(Text.assemble(("note", STYLES[severity]), " ", (code, "bold"), f": {item.message}"))
        return
    kind = CATALOGUE[code]
    head = Text.assemble((severity.value, STYLES[severity]), " ", (code, "bold"), f" ×{count}" if count > 1 else "")
    console.print(head.append(f": {kind.title}"))
    for item in items[:SHOWN_PER_CODE]:
        place = str(item.where)
        console.print(Text(f"  {place}{': ' if place else ''}{item.message}"))
        found = [f"found {item.found}"] if item.found else []
        found += [f"wanted {item.wanted}"] if item.wanted else []
        if found:
            console.print(Text(f"      {', '.join(found)}"))
        if item.because != kind.because:
            console.print(Text(f"      why: {item.because}"))
        if item.hint != kind.hint:
            console.print(Text(f"      way out: {item.hint}"))
    hidden = count - min(len(items), SHOWN_PER_CODE)
    if hidden:
        console.print(Text(f"  … and {hidden} more"))
    console.print(Text(f"  why: {kind.because}", style="dim"))
    console.print(Text(f"  way out: {kind.hint}", style="dim"))


def print_graph(console: Console, graph: Graph) -> None:
    """Print what was read, and what the reader decided with its evidence."""
    sizes = ((len(graph.plays), "play"), (graph.node_count, "request"), (graph.edge_count, "edge"))
    console.print(
        Text.assemble(
            (", ".join(counted(count, noun) for count, noun in sizes), "bold"),
            f" read as {graph.facts.get('input_format', graph.source.format)}",
        )
    )
    for name, fact in graph.facts.items():
        if name != "input_format" and fact != 0:
            console.print(Text(f"  {name.replace('_', ' ')}: {_fact(fact)}"))


def _fact(value: object) -> str:
    if isinstance(value, Mapping):
        parts = [f"{name.replace('_', ' ')} {_fact(part)}" for name, part in value.items() if part != 0]
        return ", ".join(parts) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_fact(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_certificate(console: Console, certificate: Certificate) -> None:
    """Print each obligation with its verdict and how it was shown."""
    console.print(
        Text.assemble(
            ("proven", "bold green"),
            f": {counted(certificate.plays, 'play')} of {counted(certificate.shapes, 'shape')}, "
            f"graph {certificate.graph_digest[:16]}…",
        )
    )
    left_out = left_out_in_words(certificate.left_out)
    if left_out:
        console.print(Text(f"  of what was left out nothing is shown: {left_out}", style="yellow"))
    print_obligations(console, certificate.obligations)


def left_out_in_words(left_out: Mapping[str, Any]) -> str:
    """Return what was left out of a corpus, an empty text where nothing was.

    Examples
    --------
    >>> left_out_in_words({"files": 1, "records": 20, "torn_last_lines": 0})
    '1 file, 20 records'
    """
    kinds = (("files", "file"), ("records", "record"), ("torn_last_lines", "torn last line"))
    return ", ".join(counted(left_out[name], noun) for name, noun in kinds if left_out.get(name))


def print_obligations(console: Console, obligations: Iterable[Obligation]) -> None:
    """Print obligations with their verdicts and how each was shown."""
    for obligation in obligations:
        verdict = (obligation.verdict, "green" if obligation.verdict == PROVEN else "bold red")
        console.print(
            Text.assemble(f"  {obligation.code} {obligation.title}: ", verdict, (f" ({obligation.how})", "dim"))
        )


def print_rules(console: Console, verdict: Verdict) -> None:
    """Print each rule of a check with what came of it."""
    width = max(len(rule.code) for rule in verdict.rules)
    for rule in verdict.rules:
        style = {"held": "green", "violated": "bold red"}.get(rule.verdict, "dim")
        came = rule.verdict.replace("_", " ")
        if rule.facts:
            came += f", {counted(rule.facts, 'fact')}" + (f", {rule.broken:,} broken" if rule.broken else "")
        why = f" ({rule.why_not})" if rule.why_not else ""
        console.print(Text.assemble(f"  {rule.code:<{width}} {rule.says}: ", (came, style), (why, "dim")))


def print_check(console: Console, verdict: Verdict) -> None:
    """Print the verdict of a check in a line."""
    held = sum(rule.verdict == "held" for rule in verdict.rules)
    broken = sum(rule.broken > 0 for rule in verdict.rules)
    rest = len(verdict.rules) - held - broken
    word, style = ("passed", "bold green") if verdict.ok else ("violated", "bold red")
    counts = f"{counted(held, 'rule')} held, {broken} broken, {rest} not applicable; {counted(verdict.facts, 'fact')}"
    lines = f"{counted(verdict.lines, 'line')} of a {verdict.kind}"
    console.print(Text.assemble("check ", (word, style), f": {lines}: {counts}"))


def print_verdict(console: Console, findings: Findings, verdict: str = "not proven") -> None:
    """Print the counts of a refused trace or configuration."""
    counts = f"{counted(findings.errors, 'error')}, {counted(findings.warnings, 'warning')}"
    console.print(Text.assemble((verdict, "bold red"), f": {counts}"))


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the table of a report: `report` is `Report.to_dict()`."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("latency", no_wrap=True)
    for name in SHOWN:
        table.add_column(name, justify="right", no_wrap=True)
    for title, name in LATENCIES:
        cells = [report[f"{statistic}_{name}_ms"] for statistic in SHOWN]
        table.add_row(title, *(_duration(cell) for cell in cells))
    if report["simulated"] is not None:
        console.print(Text(f"{'simulated':<{NAME_WIDTH}}{report['simulated']}"))
    rows = (
        (f"{_plays(report)} completed", f"{report['completed_trajectories']:,} of {report['total_trajectories']:,}"),
        ("requests completed", f"{report['completed_requests']:,} of {_requests(report):,}"),
        ("rejected, failed, skipped", _counts(report, "rejected_requests", "failed_requests", "skipped_requests")),
        *_controls(report),
        *_stopped(report),
        *_online(report.get("online")),
        ("simulated time", _span(report["duration_ms"])),
        ("output throughput", _rate(report["output_throughput_tok_s"])),
        ("prompt tokens reused", _share(report["first_admission_prefix_cache_reused_ratio"])),
        *_goodput(report),
        ("forward passes", _number(report["forward_passes"])),
        *_roles(report["roles"] or {}),
        *_left_out(report["reading"]),
        ("replayed in", f"{report['wall_time_ms'] / 1000:,.2f} s"),
    )
    for name, value in rows:
        console.print(Text(f"{name:<{NAME_WIDTH}}{value}"))
    if report.get("online") and report["online"]["client_was_the_limit"]:
        console.print(Text(_LATE, style="yellow"))
        return
    console.print(table)


# Instead of figures that would pass for the server's.
_LATE = (
    "The client was the limit: it was later than its bound, so latencies and throughput are not the server's and are\n"
    "withheld (online.withheld in the report has them). Give the client a core of its own, or a lower load."
)


def _online(online: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return what an online replay adds to the table."""
    if online is None:
        return []
    late = online["dispatch_lateness"]
    rows = [
        ("servers", counted(len(online["endpoints"]), "mock worker" if online["mock_workers"] else "endpoint")),
        ("dispatched late by", f"{_duration(late['median_ms'])} median, {_duration(late['p99_ms'])} p99"),
    ]
    prompts = online["prompts"]
    if prompts["format"] != "ids":
        off = "not counted" if prompts["share_off"] is None else f"{prompts['share_off']:.2%} off as counted"
        rows.append(("prompts", f"{prompts['format']}, {off}"))
    if online["partial"]:
        rows.append(("partial", f"ended by {online['ended_by']}"))
    for cause, count in list(online["causes"].items())[:SHOWN_PER_CODE]:
        rows.append((counted(count, "request"), cause))
    return rows


def _left_out(reading: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row on what of the corpus could not be read, where something was left out."""
    words = left_out_in_words(reading.get("left_out", {}))
    return [("left out, unreadable", words)] if words else []


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%} at first admission"


def print_inspection(console: Console, figures: Mapping[str, Any]) -> None:
    """Print what a corpus holds: `figures` is `Inspection.to_dict()`."""
    edges, reuse, joins, fan = (figures[name] for name in ("edges", "prefix_reuse", "joins", "fan_out"))
    sizes = ((figures["plays"], "play"), (figures["requests"], "request"), (figures["sessions"], "session"))
    head = ", ".join(counted(count, noun) for count, noun in sizes)
    console.print(Text.assemble((head, "bold"), f" read as {figures['input_format']} ({figures['input_kind']})"))
    shared = "–" if reuse["ratio"] is None else f"{reuse['ratio']:.1%} of the prompt tokens"
    within = "–" if reuse["ratio_within_plays"] is None else f"{reuse['ratio_within_plays']:.1%} within plays"
    rows = [
        ("edges", ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in edges.items() if count) or "none"),
        ("agents spawned", f"{fan['spawned']:,} by {counted(fan['spawning_requests'], 'request')}"),
        ("answers joined", f"{joins['joined']:,} by {counted(joins['joining_requests'], 'request')}"),
        ("agents nobody waits for", f"{figures['background_agents']:,}"),
        ("tokens", f"{figures['input_tokens']['total']:,} in, {figures['output_tokens']['total']:,} out"),
        ("prefix reuse, at best", f"{shared}; {within} (blocks of {figures['block_size']})"),
    ]
    if reuse["recorded_ratio"] is not None:
        rows.append(("prefix reuse, recorded", f"{reuse['recorded_ratio']:.1%} of the prompt tokens"))
    for name, held in figures["models"].items():
        counts = f"{counted(held['requests'], 'request')}, {held['input_tokens']:,} in, {held['output_tokens']:,} out"
        rows.append(("model", f"{printable(name)}: {counts}"))
    estimated = [
        f"{counted(count, 'request')} as a whole" if name == "request" else f"{name.replace('_', ' ')} of {count:,}"
        for name, count in figures["estimated"].items()
    ]
    rows.append(("estimated or restored", ", ".join(estimated) or "nothing"))
    repaired = [f"{name.replace('_', ' ')} {count:,}" for name, count in figures["repaired"].items()]
    rows.append(("repaired or left out", ", ".join(repaired) or "nothing"))
    for name, value in rows:
        console.print(Text(f"{name:<{NAME_WIDTH}}{value}"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for name in SHOWN:
        table.add_column(name, justify="right", no_wrap=True)
    for title, key, shown in (
        ("requests a play", "requests_per_play", _number),
        ("depth of a play", "depth_per_play", _number),
        ("agents a spawn", "fan_out", _number),
        ("input tokens", "input_tokens", _number),
        ("output tokens", "output_tokens", _number),
        ("gap in a session", "gap_ms", _duration),
        ("tool time in a gap", "tool_wait_ms", _duration),
        ("recorded service", "recorded_service_ms", _duration),
    ):
        table.add_row(title, *(shown(figures[key][name]) for name in SHOWN))
    console.print(table)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def _stopped(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row on what a stop left over, where it left anything."""
    if report["agentic_snapshots"] is not None or not report["unfinished_requests"] + report["never_issued_requests"]:
        return []
    return [("unfinished, never issued", _counts(report, "unfinished_requests", "never_issued_requests"))]


def _roles(roles: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row a role where there are several."""
    if len(roles) < 2:
        return []
    return [
        (f"{name} workers", f"{role['workers']:,}, busy {_busy(role)}, {role['forward_passes']:,} passes")
        for name, role in roles.items()
    ]


def _busy(role: Mapping[str, Any]) -> str:
    return f"{role['busy_seconds'] / role['worker_seconds']:.1%}" if role["worker_seconds"] else "–"


def _controls(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what warmup and profile add to the table."""
    rows = []
    if report["agentic_profile"] is not None:
        rows.append(("canceled, never issued", _counts(report, "canceled_requests", "never_issued_requests")))
    if report["agentic_phases"] is not None and report["valid"]:
        opened_s = report["agentic_phases"]["profile_start_ms"] / 1000
        rows.append(("warmed up", f"{len(report['agentic_phases']['requests']):,} requests, {opened_s:,.3f} s"))
    return rows


def _plays(report: Mapping[str, Any]) -> str:
    return "sessions" if report["reading"].get("input_kind") == "ordinary" else "plays"


def _requests(report: Mapping[str, Any]) -> int:
    """Return how many requests there were to complete: all of the corpus, or under run controls those issued."""
    issued = int(report["num_requests"])
    if report["agentic_snapshots"] is not None:
        return issued
    return issued + int(report["skipped_requests"]) + int(report["never_issued_requests"])


def _counts(report: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{report[name]:,}" for name in names)


def _duration(value_ms: float | None) -> str:
    if value_ms is None:
        return "–"
    if value_ms < MS_UP_TO:
        return f"{value_ms:,.1f} ms"
    return f"{value_ms / 1000:,.2f} s" if value_ms < MS_PER_HOUR else f"{value_ms / MS_PER_HOUR:,.2f} h"


def _span(value_ms: float) -> str:
    """Return how long a run was, to the millisecond, and in hours where it has any."""
    text = f"{value_ms / 1000:,.3f} s"
    return text if value_ms < MS_PER_HOUR else f"{text} ({value_ms / MS_PER_HOUR:,.2f} h)"


def _goodput(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what holds the bounds: the good requests and plays, and each bound with its share."""
    rows = []
    if report["goodput_completed_requests"] is not None:
        rate = _rate(report["goodput_output_throughput_tok_s"])
        share = _percent(report["goodput_request_share"])
        rows.append(("goodput", f"{counted(report['goodput_completed_requests'], 'request')} ({share}), {rate}"))
    for name, held in (report["sla"] or {}).items():
        bound = f"{BOUNDS[name]} ≤ {_duration(held['bound_ms'])}"
        rows.append((bound, f"{held['held']:,} of {held['asked']:,} ({_percent(held['share'])})"))
    return rows


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} tokens/s"
