"""A run as one HTML page that needs no network: figures, distributions, where time went, the slowest plays, settings.

The charts are Plotly's, whose script is put into the page; ``playproof[html]`` brings it along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from playproof_spec.findings import printable
from playproof_spec.html import table

from playproof.files import write_whole
from playproof.stages import STAGES
from playproof.tables import MissingHtml
from playproof.timeline import RequestTimes, request_times
from playproof.words import report_html

if TYPE_CHECKING:
    from playproof.report import Report

__all__ = ["html_page", "require", "write_html"]

Float64 = npt.NDArray[np.float64]

# Points of a distribution: more cannot be told apart on a screen.
POINTS = 400
SLOWEST_PLAYS, MOST_REQUESTS = 3, 400
COLOURS = {"waited": "#d62728", "prefill": "#1f77b4", "transferred": "#9467bd", "decode": "#2ca02c"}
# What a request waits for, by the milestone that ends it; the last is a refusal.
CAUSES = ("an admission", "room at the decode worker", "the decode pass", "a refusal")
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:72rem;color:#222;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.5rem 0}caption{text-align:left;font-weight:600}
td,th{padding:.15rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}.chart{width:100%;height:26rem}
"""


def require() -> Any:
    """Return Plotly; asked before a long replay, too.

    Raises
    ------
    MissingHtml
        When it is not installed.
    """
    try:
        return import_module("plotly")
    except ImportError:
        raise MissingHtml("plotly is not installed: pip install 'playproof[html]' brings it along") from None


def write_html(report: Report, path: str | Path) -> Path:
    """Write a run as one HTML page, and return the path.

    Parameters
    ----------
    report : Report
    path : path

    Raises
    ------
    MissingHtml
        Without Plotly, which ``playproof[html]`` brings along.
    OSError
        When the file cannot be written.
    ValueError
        When a replay under run controls ran with ``per_request=False``.
    """
    write_whole(Path(path), [html_page(report).encode()])
    return Path(path)


def html_page(report: Report) -> str:
    """Return a run as one HTML page; see :func:`write_html`."""
    plotly = require()
    go, io = import_module("plotly.graph_objects"), import_module("plotly.io")
    document = report.to_dict()
    title = escape(printable(f"playproof: {report.simulated or 'an online replay'}"))
    parts = [f"<h1>{title}</h1>", f'<div class="scroll">{report_html(document)}</div>']
    for number, (heading, note, figure) in enumerate(_charts(report, go)):
        chart = io.to_html(
            figure,
            full_html=False,
            include_plotlyjs=number == 0,
            div_id=f"chart-{number}",  # else a random one, and equal runs would differ
            default_height="26rem",
            config={"responsive": True, "displaylogo": False},
        )
        parts.append(f"<h2>{escape(heading)}</h2><p>{escape(note)}</p>{chart}")
    parts.append(f'<h2>Settings</h2><div class="scroll">{table("", (), _settings(document))}</div>')
    digests = [(name, value) for name, value in document["digests"].items() if value]
    parts.append(f'<h2>Digests</h2><div class="scroll">{table("", (), digests)}</div>')
    made = f"<footer>playproof {escape(document['playproof_version'])}, charts by Plotly {plotly.__version__}</footer>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>{''.join(parts)}{made}</body></html>\n"
    )


def _charts(report: Report, go: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the heading, the words and the figure of each chart."""
    times = request_times(report)
    if not len(times.us["dispatched_at_ms"]):
        return
    yield "Latencies", "The share of requests or plays that took at most so long.", _distributions(report, go)
    note = "What requests were in, together: the whole of their time from dispatch to end."
    together = {stage: float(values.sum()) for stage, values in times.spent_ms.items()}
    yield "Where the time went", note, _bars(go, together)
    note = "Waiting by what ended it."
    yield "Waiting by cause", note, _bars(go, _waits(times))
    note = "Requests by the share of their prompt that the first admission found in cache."
    yield "Cache reuse", note, _reuse(report, go)
    for name, figure in _slowest(report, times, go):
        yield f"Play {printable(name)}", "Requests by session, coloured by what they were in.", figure


def _distributions(report: Report, go: Any) -> Any:
    columns = report.columns
    plays = report.trajectories.e2e_latency_ms
    figure = go.Figure()
    requests = (("TTFT", columns.ttft_ms), ("TPOT", columns.tpot_ms), ("request E2E", columns.e2e_ms))
    for name, values in (*requests, ("play E2E", plays)):
        known = np.sort(values[~np.isnan(values)])
        if len(known):
            at = np.unique(np.linspace(0, len(known) - 1, POINTS).astype(np.int64))
            shares = (at + 1) / len(known)
            line = {"x": known[at].tolist(), "y": shares.tolist(), "mode": "lines", "line_shape": "hv"}
            figure.add_trace(go.Scatter(name=name, **line))
    figure.update_xaxes(title="ms", type="log")
    figure.update_yaxes(title="share", range=[0, 1.02])
    return _shaped(figure)


def _bars(go: Any, amounts_ms: Mapping[str, float]) -> Any:
    names = list(amounts_ms)
    seconds = [amounts_ms[name] / 1000 for name in names]
    colours = [COLOURS.get(name, COLOURS["waited"]) for name in names]
    figure = go.Figure(go.Bar(x=seconds, y=names, orientation="h", marker_color=colours))
    figure.update_xaxes(title="seconds of all requests")
    figure.update_yaxes(autorange="reversed")
    return _shaped(figure)


def _waits(times: RequestTimes) -> dict[str, float]:
    """Return how long requests waited for what, ms."""
    waits = [float((end - begin).sum()) / 1000 for stage, begin, end in times.steps if stage == "waited"]
    return dict(zip(CAUSES, waits, strict=True))


def _reuse(report: Report, go: Any) -> Any:
    columns = report.columns
    prompts = columns.graph.input_length[columns.node]
    shares = columns.first_reused[prompts > 0] / prompts[prompts > 0]
    counts, edges = np.histogram(shares, bins=20, range=(0.0, 1.0))
    middles = (edges[:-1] + edges[1:]) / 2
    figure = go.Figure(go.Bar(x=middles.tolist(), y=counts.tolist(), width=0.048, marker_color=COLOURS["prefill"]))
    figure.update_xaxes(title="share of the prompt found in cache", tickformat=".0%", range=[0, 1])
    figure.update_yaxes(title="requests")
    return _shaped(figure)


def _slowest(report: Report, times: RequestTimes, go: Any) -> Iterator[tuple[str, Any]]:
    """Yield the plays that took longest, each with its requests over time."""
    columns, graph = report.columns, report.columns.graph
    count = len(graph.plays)
    begin, end = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(begin, columns.play, times.us["dispatched_at_ms"])
    np.maximum.at(end, columns.play, times.us["terminal_time_ms"])
    spans = np.where(end > begin, end - begin, -1.0)
    for play in np.argsort(-spans, kind="stable")[:SLOWEST_PLAYS].tolist():
        if spans[play] < 0:
            return
        rows = np.flatnonzero(columns.play == play)[:MOST_REQUESTS]
        sessions = [printable(graph.sessions[row]) for row in graph.node_session[columns.node[rows]].tolist()]
        names = [printable(graph.request_ids[row]) for row in columns.node[rows].tolist()]
        figure = go.Figure()
        for stage in STAGES:
            since = [step[1][rows] for step in times.steps if step[0] == stage]
            until = [step[2][rows] for step in times.steps if step[0] == stage]
            x = np.concatenate([u - s for s, u in zip(since, until, strict=True)]) / 1e6
            base = (np.concatenate(since) - begin[play]) / 1e6
            there = np.flatnonzero(x > 0)
            repeated, labels = sessions * len(since), names * len(since)
            figure.add_trace(
                go.Bar(
                    x=x[there].tolist(),
                    base=base[there].tolist(),
                    y=[repeated[i] for i in there.tolist()],
                    text=[labels[i] for i in there.tolist()],
                    textposition="none",
                    orientation="h",
                    name=stage,
                    marker_color=COLOURS[stage],
                    hovertemplate="%{text}<br>%{x:.3f} s",
                )
            )
        figure.update_layout(barmode="overlay")
        figure.update_xaxes(title="seconds since the play's first dispatch")
        yield graph.plays[play].play_id, _shaped(figure)


def _shaped(figure: Any) -> Any:
    figure.update_layout(
        template="plotly_white",
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    )
    figure.update_yaxes(automargin=True)
    figure.update_xaxes(automargin=True)
    return figure


def _settings(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, str(value)) for section in ("deployment", "load") for name, value in _flat(section, document[section])
    ]


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _flat(f"{name}.{part}", inner)
    elif value is not None:
        yield name, value
