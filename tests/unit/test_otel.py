"""OpenTelemetry GenAI spans: which are calls, what they wait for, and what their lengths are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, load_graph
from playproof_spec.findings import Severity

BEGIN_NS = 1_770_000_000_000_000_000
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def span(span_id: str, begin: float, end: float, parent: str = "", trace: str = "t", **changes: Any) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": "x",
        "startTimeUnixNano": str(BEGIN_NS + round(begin * 1e9)),
        "endTimeUnixNano": str(BEGIN_NS + round(end * 1e9)),
        "attributes": [],
    } | changes


def attributes(**pairs: Any) -> list[dict[str, Any]]:
    values = {name.replace("__", "."): value for name, value in pairs.items()}
    return [
        {"key": k, "value": {"intValue": v} if isinstance(v, int) else {"stringValue": v}} for k, v in values.items()
    ]


def call(span_id: str, begin: float, end: float, parent: str = "", trace: str = "t", **extra: Any) -> dict[str, Any]:
    usage = {"gen_ai__usage__input_tokens": 20, "gen_ai__usage__output_tokens": 3} | extra
    stated = attributes(**{k: v for k, v in usage.items() if v is not None})
    chat = [{"key": k, "value": {"stringValue": v}} for k, v in CHAT.items()]
    return span(span_id, begin, end, parent, trace, attributes=chat + stated)


def agent(span_id: str, begin: float, end: float, parent: str = "", trace: str = "t", **extra: Any) -> dict[str, Any]:
    return span(
        span_id, begin, end, parent, trace, attributes=attributes(gen_ai__operation__name="invoke_agent", **extra)
    )


def lowered(folder: Path, *lines: list[dict[str, Any]]) -> Lowered:
    path = folder / "t.jsonl"
    rows = [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]} for spans in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_graph([path])


def errors(result: Lowered) -> list[tuple[str, int, str]]:
    return [(i.code, i.where.line, i.where.field) for i in result.findings.items if i.severity is Severity.ERROR]


SPANS = [
    agent("a", 0, 20),
    call("c1", 1, 2, "a"),
    span("tool", 2, 8, "a"),
    agent("b", 2.5, 7.5, "tool"),
    call("d1", 3, 4, "b"),
    call("d2", 5, 6, "b"),
    call("c2", 9, 10, "a"),
]


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_spans_and_lines_does_not_matter(tmp_path: Path, seed: int) -> None:
    spans = [json.loads(json.dumps(each)) for each in SPANS]
    random.Random(seed).shuffle(spans)
    cut = seed + 1
    graph = graph_of(lowered(tmp_path, spans[:cut], spans[cut:]))
    assert edges(graph, "t:b:0") == ["t:0 —spawn/completion +1000 ms"]
    assert edges(graph, "t:b:1") == ["t:b:0 —sequence/completion +1000 ms"]
    assert edges(graph, "t:1") == ["t:0 —sequence/completion +7000 ms", "t:b:1 —join/completion +3000 ms"]


def test_an_agent_that_runs_on_is_not_waited_for(tmp_path: Path) -> None:
    spans = [
        agent("a", 0, 20),
        call("c1", 1, 2, "a"),
        agent("b", 3, 15, "a"),
        call("d1", 4, 14, "b"),
        call("c2", 9, 10, "a"),
    ]
    graph = graph_of(lowered(tmp_path, spans))
    assert edges(graph, "t:1") == ["t:0 —sequence/completion +7000 ms"]


@pytest.mark.parametrize("gap", [0.0, 1e-9, -1e-9])
def test_what_ends_as_another_begins_is_waited_for(tmp_path: Path, gap: float) -> None:
    begin, end = 1, 2
    second = call("c2", end, 3)
    second["startTimeUnixNano"] = str(int(second["startTimeUnixNano"]) + round(gap * 1e9))
    graph = graph_of(lowered(tmp_path, [call("c1", begin, end), second]))
    assert len(edges(graph, "t:1")) == (gap >= 0)


def test_calls_side_by_side_stay_so_and_are_joined(tmp_path: Path) -> None:
    spans = [call("c0", 0, 1), *(call(f"p{n}", 2 + n / 10, 5 - n / 10) for n in range(4)), call("c9", 6, 7)]
    graph = graph_of(lowered(tmp_path, spans))
    for number in range(1, 5):
        (edge,) = edges(graph, f"t:{number}")
        assert edge.startswith("t:0 —sequence/completion")
    into = edges(graph, "t:5")
    assert len(into) == 4
    assert "t:1 —sequence/completion +1000 ms" in into
    assert "t:4 —join/completion +1300 ms" in into


def test_a_call_told_by_two_spans_is_one(tmp_path: Path) -> None:
    spans = [call("outer", 1, 3), call("inner", 1.1, 2.9, "outer"), call("next", 4, 5)]
    graph = graph_of(lowered(tmp_path, spans))
    assert graph.recorded_api_time_ms.tolist() == [1800.0, 1000.0]
    # An inner span without lengths tells nothing; the outer one does.
    bare = call("inner", 1.1, 2.9, "outer", gen_ai__usage__input_tokens=None)
    assert graph_of(lowered(tmp_path, [spans[0], bare])).recorded_api_time_ms.tolist() == [2000.0]


@pytest.mark.parametrize("name", ["input", "output"])
def test_a_call_without_a_length_says_which(tmp_path: Path, name: str) -> None:
    absent: dict[str, Any] = {f"gen_ai__usage__{name}_tokens": None}
    bare = call("c1", 1, 2, **absent)
    result = lowered(tmp_path, [bare, call("c2", 3, 4)])
    assert told(result, "call-without-usage").wanted == f"gen_ai.usage.{name}_tokens"
    assert graph_of(result).node_count == 1


@pytest.mark.parametrize("old", ["prompt", "completion"])
@pytest.mark.parametrize("operation", [True, False])
def test_names_of_older_conventions(tmp_path: Path, old: str, operation: bool) -> None:
    new = {"prompt": "input", "completion": "output"}[old]
    changed: dict[str, Any] = {f"gen_ai__usage__{new}_tokens": None, f"gen_ai__usage__{old}_tokens": 7}
    span_ = call("c1", 1, 2, **changed)
    if not operation:
        span_["attributes"] = [each for each in span_["attributes"] if each["key"] not in CHAT]
    graph = graph_of(lowered(tmp_path, [span_]))
    assert (graph.input_length.tolist(), graph.output_length.tolist()) == (
        ([7], [3]) if old == "prompt" else ([20], [7])
    )


@pytest.mark.parametrize(("cached", "written", "wanted"), [(20, 5, 20), (21, None, 41), (64, 10, 94)])
def test_an_input_without_its_cached_tokens_gets_them(
    tmp_path: Path, cached: int, written: int | None, wanted: int
) -> None:
    read, new = "gen_ai__usage__cache_read__input_tokens", "gen_ai__usage__cache_creation__input_tokens"
    extra: dict[str, Any] = {read: cached, new: written}
    result = lowered(tmp_path, [call("c1", 1, 2, **extra)])
    assert graph_of(result).input_length.tolist() == [wanted]
    assert ("input-without-cached" in result.findings.counts) is (wanted != 20)


def test_a_conversation_goes_on_over_traces(tmp_path: Path) -> None:
    named = {"gen_ai__conversation__id": "talk", "gen_ai__agent__name": "helper"}
    lines = [
        [
            agent(f"a{n}", 10 * n, 10 * n + 5, trace=f"t{n}", **named),
            call("c", 10 * n + 1, 10 * n + 2, f"a{n}", f"t{n}"),
        ]
        for n in range(3)
    ]
    graph = graph_of(lowered(tmp_path, *lines))
    assert [play.play_id for play in graph.plays] == ["talk"]
    assert edges(graph, "talk:2") == ["talk:1 —sequence/completion +9000 ms"]
    # Every full block of the first prompt is in the later ones: they are one conversation.
    assert graph.sessions == ("talk",)


def test_two_agents_side_by_side_are_two_conversations(tmp_path: Path) -> None:
    spans = [
        agent("a", 0, 5, gen_ai__agent__name="one"),
        call("c1", 1, 2, "a"),
        agent("b", 6, 9, gen_ai__agent__name="two"),
        call("c2", 7, 8, "b"),
    ]
    graph = graph_of(lowered(tmp_path, spans))
    assert graph.sessions == ("t:a", "t:b")
    assert edges(graph, "t:b:0") == ["t:a:0 —sequence/completion +5000 ms"]


BROKEN: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    ("no start", {"startTimeUnixNano": None}, ("field-missing", "startTimeUnixNano")),
    ("start 0", {"startTimeUnixNano": "0"}, ("field-missing", "startTimeUnixNano")),
    ("no end", {"endTimeUnixNano": None}, ("field-missing", "endTimeUnixNano")),
    ("words", {"endTimeUnixNano": "soon"}, ("time-unreadable", "endTimeUnixNano")),
    ("backwards", {"endTimeUnixNano": str(BEGIN_NS)}, ("time-negative", "endTimeUnixNano")),
    ("beyond", {"endTimeUnixNano": str(2**63)}, ("time-beyond-horizon", "endTimeUnixNano")),
    ("no id", {"spanId": ""}, ("id-empty", "spanId")),
]


@pytest.mark.parametrize(("changes", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], wanted: tuple[str, str]) -> None:
    result = lowered(tmp_path, [call("c0", 0, 1)], [call("c1", 1, 2) | changes])
    assert errors(result) == [(wanted[0], 2, f"resourceSpans[0].scopeSpans[0].spans[0].{wanted[1]}")]


def test_parents_in_a_circle_are_no_parents(tmp_path: Path) -> None:
    spans = [agent("a", 0, 9, "b"), agent("b", 0, 9, "a"), call("c1", 1, 2, "a"), call("c2", 3, 4, "b")]
    assert graph_of(lowered(tmp_path, spans)).node_count == 2


def test_deep_nesting_and_wide_fans_end(tmp_path: Path) -> None:
    deep = [agent(f"a{n}", 0, 9, f"a{n - 1}" if n else "") for n in range(3000)]
    assert graph_of(lowered(tmp_path, [*deep, call("c1", 1, 2, "a2999")])).node_count == 1
    wide = [call(f"p{n}", 1, 2) for n in range(600)] + [call(f"q{n}", 3, 4) for n in range(3)]
    graph = graph_of(lowered(tmp_path, wide))
    assert graph.edge_count == 3 * 256
    assert graph.facts["otel_counts"]["waits_left_out"] == 3 * (600 - 256)  # type: ignore[index]
