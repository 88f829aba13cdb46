"""The page of a run: what its charts add up to, that it needs no network, and acts upon nothing foreign."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import playproof as pp
from playproof import page, tables
from playproof.report import Report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EVIL = "</script><script>alert(1)</script>\x1b[2J"


@pytest.fixture(scope="module")
def report() -> Report:
    pytest.importorskip("plotly")
    role: dict[str, Any] = {"blocks": 320, "timing": pp.FixedTiming(prefill_ms=40, decode_ms=12)}
    transfer = pp.Transfer(bytes_per_token=98304, bandwidth_gb_per_second=2)
    roles: dict[str, Any] = {"prefill": pp.PrefillRole(**role), "decode": pp.DecodeRole(**role)}
    return pp.replay(pp.load(EXAMPLES / "weka"), pp.Disaggregated(transfer=transfer, **roles), pp.Load(lanes=3))


class Seen(HTMLParser):
    """Collects the tags of a page, their attributes, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self.scripts += tag == "script"
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def seen(text: str) -> Seen:
    parser = Seen()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_the_page_needs_no_network(report: Report, tmp_path: Path) -> None:
    text = report.write_html(tmp_path / "page.html").read_text()
    assert seen(text).links == []
    assert len(text) < 10_000_000
    assert text == page.html_page(report)
    assert "<td>completed_requests</td><td>56</td>" in text
    assert "<td>deployment.transfer.bandwidth_gb_per_second</td><td>2.0</td>" in text


def test_the_charts_are_the_reports_figures(report: Report) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    charts = {heading: figure for heading, _, figure in page._charts(report, go)}
    figures = report.to_dict()
    (time,) = charts["Where the time went"].data
    total = figures["mean_e2e_latency_ms"] * figures["num_e2e_latency_samples"] / 1000
    assert sum(time.x) == pytest.approx(total)
    (waits,) = charts["Waiting by cause"].data
    assert sum(waits.x) == pytest.approx(time.x[time.y.index("waited")])
    (reuse,) = charts["Cache reuse"].data
    assert sum(reuse.y) == figures["completed_requests"]
    ttft = charts["Latencies"].data[0]
    assert (ttft.name, ttft.x[-1], ttft.y[-1]) == ("TTFT", figures["max_ttft_ms"], 1.0)
    plays = [heading for heading in charts if heading.startswith("Play ")]
    assert len(plays) == page.SLOWEST_PLAYS
    slowest = charts[plays[0]]
    end = max(base + length for bar in slowest.data for base, length in zip(bar.base, bar.x, strict=True))
    assert end == pytest.approx(figures["max_trajectory_e2e_latency_ms"] / 1000)


def test_names_from_a_trace_do_nothing(report: Report) -> None:
    graph = report.proven.graph
    plays = tuple(dataclasses.replace(play, play_id=f"{EVIL}{number}") for number, play in enumerate(graph.plays))
    evil = dataclasses.replace(
        graph,
        plays=plays,
        request_ids=tuple(f"{EVIL}{number}" for number in range(graph.node_count)),
        sessions=tuple(f"{EVIL}{number}" for number in range(len(graph.sessions))),
    )
    hostile = Report(report.proven, report.ledger, report.deployment, report.load)
    hostile.columns.graph = evil
    text = page.html_page(hostile)
    assert seen(text).scripts == seen(page.html_page(report)).scripts
    assert "<script>alert" not in text
    assert "\x1b" not in text


def test_a_run_without_requests_has_a_page() -> None:
    pytest.importorskip("plotly")
    load = pp.Load(lanes=1, snapshot_seed=1, profile=pp.Profile(duration_seconds=0.001))
    report = pp.replay(pp.load(EXAMPLES / "weka"), pp.Deployment(), load)
    assert seen(page.html_page(report)).open == []


def test_plotly_is_named_where_it_is_missing(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(page, "import_module", missing)
    with pytest.raises(tables.MissingHtml, match=r"playproof\[html\]"):
        page.html_page(report)


def test_the_command_tells_before_it_replays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from playproof.cli import main

    def missing(name: str) -> Any:
        raise ImportError(name)

    config = ["replay", "--config", str(EXAMPLES / "deployment.yaml")]
    for module, arguments, extra in (
        (page, ["--html", str(tmp_path / "a.html")], "playproof[html]"),
        (tables, ["--out", str(tmp_path), "--per-request", "--format", "parquet"], "playproof[tables]"),
    ):
        monkeypatch.setattr(module, "import_module", missing)
        assert main([*config, *arguments]) == 2
        told = capsys.readouterr()
        assert (told.out, extra in told.err) == ("", True)
    (tmp_path / "file").write_text("")
    assert main([*config, "--timeline", str(tmp_path / "file" / "t.json")]) == 2
    assert capsys.readouterr().out == ""
