"""Dynamo request traces: shards, contexts, parents, tool records, and the public plays against their Weka originals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from lowered import edges, graph_of, told
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Finding, Severity
from playproof_spec.graph import Graph, Relation
from playproof_spec.units import HORIZON_MS

import playproof as pp

ORIGIN_MS = 1_777_000_000_000


def request(
    name: str, start: float, total: float, *hashes: int, session: str = "root", parent: str = "", **changes: Any
) -> dict[str, Any]:
    length = 16 * len(hashes) - 3
    replay = {"trace_block_size": 16, "input_length": length, "input_sequence_hashes": list(hashes)}
    fields = {"request_id": name, "model": "m", "output_tokens": 5, "request_received_ms": ORIGIN_MS + start}
    body = {**fields, "total_time_ms": total, "replay": replay, **changes}
    row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": body}
    context = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
    return row | ({"agent_context": context} if session else {})


def tool(session: str, start: float, end: float, **claude: str) -> dict[str, Any]:
    body = {"started_at_unix_ms": ORIGIN_MS + start, "ended_at_unix_ms": ORIGIN_MS + end, "claude": claude}
    row = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": ORIGIN_MS + end}
    return {**row, "agent_context": {"session_id": session}, "tool": body}


def lowered(folder: Path, *shards: list[dict[str, Any]], **options: Any) -> Lowered:
    for number, rows in enumerate(shards):
        (folder / f"shard{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_graph([folder], options=LoweringOptions(**options))


def errors(result: Lowered) -> list[tuple[str, int, str]]:
    found: list[Finding] = [item for item in result.findings.items if item.severity is Severity.ERROR]
    return [(item.code, item.where.line, item.where.field) for item in found]


ROWS = [
    request("r1", 0, 1000, 7, 8),
    request("k1", 1100, 500, 9, session="kid", parent="root"),
    request("k2", 2000, 700, 9, 10, session="kid", parent="root"),
    request("r2", 3000, 1000, 7, 8, 11),
]


@pytest.mark.parametrize("how", ["shards", "other order", "envelope", "gzip"])
def test_shards_and_wrapped_lines_read_alike(tmp_path: Path, how: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "other").mkdir()
    plain = graph_of(lowered(tmp_path / "plain", ROWS))
    if how == "shards":
        other = lowered(tmp_path / "other", ROWS[:2], ROWS[2:])
    elif how == "other order":
        # Hashes are numbered as they are met, so the rows keep their order but for their files.
        other = lowered(tmp_path / "other", ROWS[:1], ROWS[1:3], ROWS[3:])
    elif how == "envelope":
        other = lowered(tmp_path / "other", [{"timestamp": 5, "event": row} for row in ROWS])
    else:
        data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        (tmp_path / "other" / "all.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
        other = load_graph([tmp_path / "other"])
    assert graph_digest(graph_of(other)) == graph_digest(plain)


def test_a_play_is_what_hangs_together(tmp_path: Path) -> None:
    rows = [*ROWS, request("x1", 50, 10, 1, session="other")]
    graph = graph_of(lowered(tmp_path, rows))
    assert [play.play_id for play in graph.plays] == ["root", "other"]
    assert graph.facts["input_kind"] == "agentic"
    assert edges(graph, "k1") == ["r1 —spawn/completion +100 ms"]
    assert edges(graph, "r2") == ["k2 —join/completion +300 ms", "r1 —sequence/completion +2000 ms"]


def test_equal_hashes_are_equal_blocks_in_all_plays(tmp_path: Path) -> None:
    rows = [request("a", 0, 10, 2**64 - 1, 5, session="a"), request("b", 0, 10, 2**64 - 1, 6, session="b")]
    graph = graph_of(lowered(tmp_path, rows))
    assert [graph.hash_ids(node).tolist() for node in range(2)] == [[0, 1], [0, 2]]


def test_without_an_arrival_the_start_counts_back_from_the_end(tmp_path: Path) -> None:
    late = request("b", 0, 1500, 1, 2, event_time=None)
    del late["request"]["request_received_ms"]
    late["event_time_unix_ms"] = ORIGIN_MS + 4000.25
    graph = graph_of(lowered(tmp_path, [request("a", 0, 1000, 1), late]))
    assert edges(graph, "b") == ["a —sequence/completion +1500.25 ms"]


def test_a_background_agent_with_a_consumer_is_joined_there(tmp_path: Path) -> None:
    stated = {"child_session_id": "kid", "execution_mode": "background", "consumer_request_id": "r2"}
    graph = graph_of(lowered(tmp_path, [*ROWS, tool("root", 1000, 2700, **stated)]))
    assert "k2 —join/completion +300 ms" in edges(graph, "r2")


def test_a_tool_record_alone_names_the_parent(tmp_path: Path) -> None:
    rows = [ROWS[0], ROWS[3], request("k1", 1100, 500, 9, session="kid")]
    rows.append(tool("root", 1000, 1600, child_session_id="kid", source_request_id="r1", consumer_request_id="r2"))
    graph = graph_of(lowered(tmp_path, rows))
    assert edges(graph, "k1") == ["r1 —spawn/completion +100 ms"]


def test_an_agent_that_was_run_twice_has_a_spawn_and_a_join_for_each_run(tmp_path: Path) -> None:
    rows = [*ROWS, request("k3", 4500, 500, 9, 10, 12, session="kid"), request("r3", 6000, 10, 7)]
    again = tool("root", 4100, 5000, child_session_id="kid", source_request_id="r2", consumer_request_id="r3")
    rows += [tool("root", 1000, 2700, child_session_id="kid", source_request_id="r1"), again, again]
    graph = graph_of(lowered(tmp_path, rows))
    assert edges(graph, "k1") == ["r1 —spawn/completion +100 ms"]
    assert edges(graph, "k3") == ["k2 —sequence/completion +1800 ms", "r2 —spawn/completion +500 ms"]
    assert "k2 —join/completion +300 ms" in edges(graph, "r2")
    assert "k3 —join/completion +1000 ms" in edges(graph, "r3")


def test_a_tool_that_tells_its_duration_began_so_long_before(tmp_path: Path) -> None:
    row = tool("root", 0, 2500)
    row["tool"] = {"duration_ms": 1500}
    graph = graph_of(lowered(tmp_path, [*ROWS, row]))
    assert {graph.request_ids[node]: seen.tool_wait_ms for node, seen in graph.observed.items()} == {"r2": 1500.0}


def test_a_run_of_which_no_request_is_there_is_counted(tmp_path: Path) -> None:
    rows = [*ROWS, tool("root", 1000, 2700, child_session_id="kid", source_request_id="r1")]
    rows.append(tool("root", 4100, 5000, child_session_id="kid", source_request_id="r2"))
    result = lowered(tmp_path, rows)
    graph_of(result)
    counts = result.facts["dynamo_counts"]
    assert isinstance(counts, dict)
    assert (counts["spawns"], counts["tool_runs_without_requests"]) == (1, 1)


def test_agents_without_a_request_are_told(tmp_path: Path) -> None:
    result = lowered(tmp_path, [*ROWS, tool("root", 1000, 2700, child_session_id="ghost")])
    graph_of(result)
    item = told(result, "agent-unrecorded")
    assert (item.severity, item.where.line, item.where.ids, item.found) == (Severity.NOTE, 5, ("ghost",), "1")


def test_a_tool_that_names_nobody_is_counted_and_makes_no_wait(tmp_path: Path) -> None:
    row = tool("root", 1000, 2700)
    del row["agent_context"]
    result = lowered(tmp_path, [*ROWS, row])
    assert graph_of(result).observed == {}
    counts = result.facts["dynamo_counts"]
    assert isinstance(counts, dict)
    assert (counts["tool_rows"], counts["tool_rows_without_context"]) == (1, 1)


def test_tool_windows_within_a_gap_are_its_tool_wait(tmp_path: Path) -> None:
    rows = [request("a", 0, 1000, 1), request("b", 6000, 1000, 1, 2), request("c", 9000, 10, 1, 2, 3)]
    windows = [(500, 1500), (1400, 2000), (1450, 1500), (5000, 9500), (20000, 20001)]
    graph = graph_of(lowered(tmp_path, rows + [tool("root", begin, end) for begin, end in windows]))
    assert {graph.request_ids[node]: seen.tool_wait_ms for node, seen in graph.observed.items()} == {
        "b": 500 + 500 + 1000,
        "c": 2000,
    }
    assert edges(graph, "b") == ["a —sequence/completion +5000 ms"]


def test_requests_without_context_arrive_on_their_own(tmp_path: Path) -> None:
    rows = [request("b", 2500, 10, 1, session=""), request("a", 1000, 10, 1, session="")]
    graph = graph_of(lowered(tmp_path, rows))
    assert graph.facts["input_kind"] == "ordinary"
    assert [play.play_id for play in graph.plays] == ["a", "b"]
    assert graph.not_before_ms.tolist() == [0.0, 1500.0]
    assert graph.edge_count == 0


def changed(place: int, **changes: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(json.dumps(ROWS))
    for path, value in changes.items():
        at = rows[place]
        *names, last = path.split("__")
        for name in names:
            at = at[name]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return rows


def wrapped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"timestamp": 5, "event": row} for row in rows]


def timed(place: int, **times: Any) -> list[dict[str, Any]]:
    rows = [*changed(0), tool("root", 1, 2)]
    target = rows[place]["tool"] if place == 4 else rows[place]["request"]
    target.update(times)
    return rows


KID = {"session_id": "kid", "parent_session_id": "x"}
HORIZON = f"0 … {HORIZON_MS:.0f} ms"
AFTER = "a request of the session after r2"
Told = tuple[str, int, str, str, str]
# The rows; then code, line, field, what is found and what is wanted.
BROKEN: list[tuple[str, list[dict[str, Any]], list[Told]]] = [
    (
        "context mixed",
        changed(3, agent_context=None),
        [("context-mixed", 4, "", "no agent_context", "a context in every row, or in none")],
    ),
    (
        "unknown parent",
        [*ROWS, request("x", 9, 9, 1, session="x", parent="gone")],
        [("parent-unknown", 5, "agent_context", "gone", "the id of a session with requests")],
    ),
    (
        "two parents",
        changed(2, agent_context=KID),
        [("parent-conflict", 3, "agent_context.parent_session_id", "x", "root")],
    ),
    (
        "two parents in an envelope",
        wrapped(changed(2, agent_context=KID)),
        [("parent-conflict", 3, "event.agent_context.parent_session_id", "x", "root")],
    ),
    (
        "own parent",
        [request("x", 9, 9, 1, session="x", parent="x")],
        [("parent-conflict", 1, "agent_context", "x", "another parent")],
    ),
    (
        "too early",
        changed(0, request__request_received_ms=ORIGIN_MS + 2500),
        [("child-before-parent", 2, "agent_context", "k1", "a request of root before it")],
    ),
    ("twice", [*ROWS, ROWS[0]], [("id-duplicate", 5, "request.request_id", "r1", "another id")]),
    (
        "no replay",
        changed(0, request__replay=None),
        [
            ("replay-missing", 1, "request.replay", "nothing", "an object"),
            ("child-before-parent", 2, "agent_context", "k1", "a request of root before it"),
        ],
    ),
    (
        "no request",
        changed(1, request=None),
        [("field-missing", 2, "request", "nothing", "an object")],
    ),
    (
        "unknown event",
        changed(1, event_type="request_begin"),
        [
            (
                "event-unknown",
                2,
                "event_type",
                "request_begin",
                "request_end, tool_end, tool_error, request_payload or tool_start",
            )
        ],
    ),
    (
        "no event",
        changed(1, event_type=None),
        [("field-missing", 2, "event_type", "nothing", "a string")],
    ),
    (
        "another schema",
        changed(1, schema="dynamo.request.trace.v9"),
        [("value-unknown", 2, "schema", "dynamo.request.trace.v9", "dynamo.request.trace.v1")],
    ),
    (
        "block sizes",
        changed(2, request__replay__trace_block_size=32),
        [("block-size-mixed", 3, "request.replay.trace_block_size", "32", "16")],
    ),
    (
        "no block size",
        changed(2, request__replay__trace_block_size=0),
        [("block-size", 3, "request.replay.trace_block_size", "0", "1 … 1048576")],
    ),
    (
        "too few hashes",
        changed(2, request__replay__input_sequence_hashes=[9]),
        [("hash-count", 3, "request.replay.input_sequence_hashes", "1 hashes", "2 hashes")],
    ),
    (
        "too many hashes",
        changed(2, request__replay__input_sequence_hashes=[9, 10, 11]),
        [("hash-count", 3, "request.replay.input_sequence_hashes", "3 hashes", "2 hashes")],
    ),
    (
        "a bad hash",
        changed(2, request__replay__input_sequence_hashes=[9, -1]),
        [("hash-id-invalid", 3, "request.replay.input_sequence_hashes[1]", "-1", "0 … 2**64 - 1")],
    ),
    (
        "no length",
        changed(2, request__replay__input_length=0),
        [("length-out-of-bounds", 3, "request.replay.input_length", "0", "1 … 2147483647")],
    ),
    (
        "a negative output",
        changed(2, request__output_tokens=-1),
        [("length-out-of-bounds", 3, "request.output_tokens", "-1", "0 … 2147483647")],
    ),
    (
        "no model",
        changed(2, request__model=""),
        [("id-empty", 3, "request.model", '""', "a name")],
    ),
    (
        "no duration",
        changed(2, request__total_time_ms=None),
        [("field-missing", 3, "request.total_time_ms", "nothing", "a number")],
    ),
    (
        "no time",
        changed(2, request__request_received_ms=None),
        [("field-missing", 3, "request.request_received_ms", "nothing", "a number")],
    ),
    (
        "a negative time",
        changed(2, request__total_time_ms=-1),
        [("time-negative", 3, "request.total_time_ms", "-1", HORIZON)],
    ),
    (
        "a time beyond the clock",
        wrapped(changed(2, event_time_unix_ms=1e15)),
        [("time-beyond-horizon", 3, "event.event_time_unix_ms", "1000000000000000.0", HORIZON)],
    ),
    (
        "empty session",
        changed(2, agent_context={"session_id": ""}),
        [("id-empty", 3, "agent_context.session_id", '""', "an id")],
    ),
    (
        "unknown consumer",
        [*ROWS, tool("root", 1, 2, child_session_id="kid", consumer_request_id="gone")],
        [
            (
                "tool-link-unknown",
                5,
                "tool.claude.consumer_request_id",
                "gone",
                "a request of the session that ran the tool",
            )
        ],
    ),
    (
        "unknown source",
        wrapped([*ROWS, tool("root", 1, 2, child_session_id="kid", source_request_id="k1")]),
        [
            (
                "tool-link-unknown",
                5,
                "event.tool.claude.source_request_id",
                "k1",
                "a request of the session that ran the tool",
            )
        ],
    ),
    (
        "consumer before spawn",
        [*ROWS, tool("root", 1, 2, child_session_id="kid", source_request_id="r2", consumer_request_id="r1")],
        [("tool-link-unknown", 5, "tool.claude.consumer_request_id", "r1", AFTER)],
    ),
    (
        "spawned by another",
        [*ROWS, request("x", 9, 9, 1, session="x"), tool("x", 1, 2, child_session_id="kid")],
        [("parent-conflict", 2, "agent_context", "x", "root")],
    ),
    (
        "no tool",
        changed(1, event_type="tool_end", request=None),
        [("field-missing", 2, "tool", "nothing", "an object")],
    ),
    (
        "a tool of numbers",
        wrapped([*ROWS, {**tool("root", 1, 2), "tool": 5}]),
        [("json-not-object", 5, "event.tool", "5", "an object")],
    ),
    (
        "a request of numbers",
        changed(1, request=5),
        [("json-not-object", 2, "request", "5", "an object")],
    ),
    (
        "an event of numbers",
        [*ROWS, {"timestamp": 1, "event": 5}],
        [("json-not-object", 5, "event", "5", "an object")],
    ),
    (
        "a tool that ends first",
        timed(4, ended_at_unix_ms=ORIGIN_MS),
        [("time-negative", 5, "tool.ended_at_unix_ms", str(ORIGIN_MS), f"at least {ORIGIN_MS + 1}")],
    ),
    (
        "a tool of negative duration",
        timed(4, duration_ms=-4),
        [("time-negative", 5, "tool.duration_ms", "-4", HORIZON)],
    ),
]


@pytest.mark.parametrize(("rows", "wanted"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_contradicts_itself_is_an_error(tmp_path: Path, rows: list[dict[str, Any]], wanted: list[Told]) -> None:
    result = lowered(tmp_path, rows)
    found = [item for item in result.findings.items if item.severity is Severity.ERROR]
    assert [(item.code, item.where.line, item.where.field, item.found, item.wanted) for item in found] == wanted
    assert {item.where.file for item in found} == {str(tmp_path / "shard0.jsonl")}


def test_a_request_in_two_shards_names_both(tmp_path: Path) -> None:
    result = lowered(tmp_path, ROWS, [ROWS[1]])
    item = next(item for item in result.findings.items if item.code == "id-duplicate")
    assert item.where.file.endswith("shard1.jsonl")
    assert "shard0.jsonl:2" in item.message


def test_the_option_must_agree_with_the_rows(tmp_path: Path) -> None:
    assert errors(lowered(tmp_path, ROWS[:1], block_size=64)) == [
        ("block-size-mismatch", 1, "request.replay.trace_block_size")
    ]


# The public traces ---------------------------------------------------------------------------------------------------


# Compact rows, and trajectories ------------------------------------------------------------------------------------


def compact(request_id: str, received: float | None, event: float | None, **context: Any) -> dict[str, Any]:
    """Return a row as the recorder writes it of requests without context: no model, no total time."""
    inner: dict[str, Any] = {
        "request_id": request_id,
        "output_tokens": 2,
        "replay": {"trace_block_size": 16, "input_length": 16, "input_sequence_hashes": [1]},
    }
    if received is not None:
        inner["request_received_ms"] = received
    row: dict[str, Any] = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": inner}
    if event is not None:
        row["event_time_unix_ms"] = event
    return row | ({"agent_context": context} if context else {})


@pytest.mark.parametrize("how", ["plain", "wrapped", "reversed", "agent trace"])
@pytest.mark.parametrize(
    ("received", "event"), [(1000, 1000), (1000.5, 1001), (1_777_000_000_000, 1_777_000_000_001.25)]
)
def test_a_compact_row_took_from_its_arrival_to_its_event(
    tmp_path: Path, how: str, received: float, event: float
) -> None:
    rows = [compact("a", received, event), compact("b", received + 10, event + 30)]
    if how == "wrapped":
        rows = [{"timestamp": 1, "event": row} for row in rows]
    elif how == "reversed":
        rows = rows[::-1]
    elif how == "agent trace":
        rows = [row | {"schema": "dynamo.agent.trace.v1"} for row in rows]
    graph = graph_of(lowered(tmp_path, rows))
    assert graph.recorded_api_time_ms.tolist() == [event - received, event - received + 20]
    assert graph.not_before_ms.tolist() == [0.0, 10.0]
    assert graph.models == ("unspecified",)


@pytest.mark.parametrize(
    ("received", "event", "wanted"),
    [
        (2000, 1999, ("time-negative", "event_time_unix_ms")),
        (2000, None, ("field-missing", "request.total_time_ms")),
        (None, 2000, ("field-missing", "request.request_received_ms")),
        (None, None, ("field-missing", "request.request_received_ms")),
    ],
)
def test_a_compact_row_without_its_times_says_which(
    tmp_path: Path, received: float | None, event: float | None, wanted: tuple[str, str]
) -> None:
    found = errors(lowered(tmp_path, [compact("a", 0, 5), compact("b", received, event)]))
    assert found == [(wanted[0], 2, wanted[1])]


@pytest.mark.parametrize("run", ["run", "r:u:n", None, "über"])
@pytest.mark.parametrize("names", [("plan", "kid"), ("run:plan", "run:kid"), ("kid", "plan")])
def test_a_trajectory_is_a_conversation_and_its_parent_spawned_it(
    tmp_path: Path, run: str | None, names: tuple[str, str]
) -> None:
    parent, child = names
    whole = {"session_type_id": "x"} | ({} if run is None else {"session_id": run})
    rows = [
        compact("k", 1300, 2000, **whole, trajectory_id=child, parent_trajectory_id=parent),
        compact("b", 2500, 2600, **whole, trajectory_id=parent),
        compact("a", 1000, 1200, **whole, trajectory_id=parent),
    ]
    graph = graph_of(lowered(tmp_path, rows))
    assert len(graph.plays) == 1
    assert edges(graph, "k") == ["a —spawn/completion +100 ms"]
    assert sorted(edges(graph, "b")) == ["a —sequence/completion +1300 ms", "k —join/completion +500 ms"]


def test_trajectories_of_two_runs_are_not_each_others(tmp_path: Path) -> None:
    rows = [
        compact(f"{run}{number}", 1000 * number, 1000 * number + 500, session_id=run, trajectory_id="plan")
        for number in range(3)
        for run in ("a", "a:plan", "b")
    ]
    graph = graph_of(lowered(tmp_path, rows))
    assert sorted(play.play_id for play in graph.plays) == ["a:plan", "a:plan:plan", "b:plan"]
    assert all(len(play.nodes) == 3 for play in graph.plays)


def test_conversations_whose_names_would_be_one_stay_two(tmp_path: Path) -> None:
    first = compact("x", 0, 5, session_id="a", trajectory_id="b:c")
    second = compact("y", 10, 15, session_id="a:b", trajectory_id="c")
    graph = graph_of(lowered(tmp_path, [first, second]))
    assert sorted(play.play_id for play in graph.plays) == ["a:b:c", "a:b:c~"]


def test_a_trajectory_whose_parent_is_in_another_run_has_none(tmp_path: Path) -> None:
    rows = [
        compact("a", 0, 5, session_id="one", trajectory_id="plan"),
        compact("k", 9, 12, session_id="two", trajectory_id="kid", parent_trajectory_id="plan"),
    ]
    assert [code for code, _, _ in errors(lowered(tmp_path, rows))] == ["parent-unknown"]


def test_a_context_names_a_session_or_a_trajectory(tmp_path: Path) -> None:
    rows = [compact("a", 0, 5, session_id="one"), compact("b", 7, 9, session_type_id="x")]
    assert errors(lowered(tmp_path, rows)) == [("field-missing", 2, "agent_context.session_id")]
    rows[1]["agent_context"] = {"trajectory_id": ""}
    assert errors(lowered(tmp_path, rows)) == [("id-empty", 2, "agent_context.trajectory_id")]


def by_place(graph: Graph) -> dict[tuple[int, int, int], int]:
    """Return the nodes by (start in ms, tokens in, tokens out), which name a request in either format."""
    return {
        (round(float(graph.not_before_ms[node])), int(graph.input_length[node]), int(graph.output_length[node])): node
        for node in range(graph.node_count)
    }


def typed_edges(graph: Graph) -> set[tuple[Any, ...]]:
    name = {node: key for key, node in by_place(graph).items()}
    number = {request_id: node for node, request_id in enumerate(graph.request_ids)}
    return {
        (name[number[edge.source]], name[node], edge.relation, edge.trigger, round(edge.delay_ms))
        for node in range(graph.node_count)
        for edge in graph.edges_into(node)
    }


def full_blocks(graph: Graph) -> dict[tuple[int, int, int], list[int]]:
    """Return the full blocks of each prompt, numbered as they are met in the order of the names."""
    numbers: dict[int, int] = {}
    return {
        key: [
            numbers.setdefault(value, len(numbers))
            for value in graph.hash_ids(node)[: key[1] // graph.block_size].tolist()
        ]
        for key, node in sorted(by_place(graph).items())
    }


def pair(data_dir: Path, name: str) -> tuple[list[Path], list[Path]]:
    """Return the files of a recording in Weka's format and in Dynamo's."""
    return (
        [data_dir / "weka" / "small" / f"trace_{name}.json"],
        sorted((data_dir / "dynamo").glob(f"derived_weka_{name}*")),
    )


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "requests", "edge_count"), [("0277", 53, 56), ("0291", 32, 33)])
def test_a_dynamo_trace_gives_the_play_of_its_weka_original(
    data_dir: Path, name: str, requests: int, edge_count: int
) -> None:
    original, graph = (graph_of(load_graph(paths)) for paths in pair(data_dir, name))
    assert len(graph.plays) == len(original.plays) == 1
    assert graph.node_count == original.node_count == len(by_place(graph)) == requests
    assert by_place(graph).keys() == by_place(original).keys()
    assert typed_edges(graph) == typed_edges(original)
    assert graph.edge_count == original.edge_count == edge_count
    assert full_blocks(graph) == full_blocks(original)


NAMES = ("request_id", "source_request_id", "play_id", "session_id")


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["0277", "0291"])
@pytest.mark.parametrize("blocks", [60_000, 3_000])
def test_a_dynamo_trace_replays_as_its_weka_original(data_dir: Path, name: str, blocks: int) -> None:
    """Request by request, on a pool that holds everything and on one that evicts."""
    results = []
    for paths in pair(data_dir, name):
        trace = pp.load(paths)
        places = {trace.graph.request_ids[node]: key for key, node in by_place(trace.graph).items()}
        report = pp.replay(trace, pp.Deployment(blocks=blocks, block_size=64), pp.Load())
        rows = list(report.request_dicts())
        results.append({places[row["request_id"]]: {k: v for k, v in row.items() if k not in NAMES} for row in rows})
    assert results[0] == results[1]


@pytest.mark.corpus
def test_the_other_public_traces(data_dir: Path) -> None:
    family = graph_of(load_graph([data_dir / "dynamo" / "derived_codex_skills_family.jsonl.gz"]))
    assert (len(family.plays), family.node_count) == (2, 174)
    assert int((family.edge_relation == Relation.SPAWN).sum()) == 8
    ordinary = graph_of(load_graph([data_dir / "dynamo" / "derived_weka_0026_contextfree.jsonl"]))
    assert (len(ordinary.plays), ordinary.facts["input_kind"]) == (3, "ordinary")
    example = load_graph([data_dir / "dynamo" / "doc_example.jsonl"])
    assert [item.code for item in example.findings.items if item.severity is Severity.ERROR] == ["parent-unknown"]


@pytest.mark.parametrize(("starts_at", "joined"), [(2699, "r3"), (2700, "r2"), (2701, "r2")])
def test_a_request_joins_a_session_from_the_instant_at_which_that_ends(
    tmp_path: Path, starts_at: float, joined: str
) -> None:
    rows = [*ROWS[:3], request("r2", starts_at, 1000, 7, 8, 11), request("r3", 5000, 1000, 7, 8, 11, 12)]
    graph = graph_of(lowered(tmp_path, rows))
    assert [name for name in ("r2", "r3") if any("k2 —join" in edge for edge in edges(graph, name))] == [joined]
