"""Reading and writing: files of any graph read back as that graph, and any recording lowers to a sound one."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from playproof_lowering import LoweringOptions, load_graph, write_v2
from playproof_lowering.runs import BAD_ID, OK, TOO_LARGE, RunBuffer, append_private, renumber
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Severity
from playproof_spec.graph import Graph, Relation, Source, Trigger
from playproof_spec.sketch import compress_hash_ids, sketch

U64 = st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
times = st.floats(0, 1e12) | st.integers(0, 1000).map(float)
id_lists = st.lists(st.tuples(st.integers(0, 9) | U64, st.integers(1, 5)), max_size=6).map(
    lambda runs: [first + step for first, count in runs for step in range(count) if first + step < 2**64]
)


@st.composite
def sketches(draw: st.DrawFn) -> Graph:
    """Graphs with strange names, extreme numbers and every optional column."""
    block_size = draw(st.integers(1, 9))
    ids = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    ordinals = draw(st.booleans())
    rows: list[dict[str, Any]] = []
    for place, request_id in enumerate(ids):
        hashes = draw(id_lists.filter(bool))
        sources = draw(st.lists(st.sampled_from(ids[:place]), max_size=3, unique=True)) if place else []
        pairs = [draw(st.sampled_from([("sequence", "completion"), ("spawn", "dispatch")])) for _ in sources]
        play = draw(st.integers(0, place // 2)) if ordinals else draw(names)
        output_length = draw(st.integers(0, 3))
        tokens = st.lists(st.integers(0, 2**32 - 1), min_size=output_length, max_size=output_length)
        rows.append(
            {
                "request_id": request_id,
                "play_id": f"play {play}" if ordinals else play,
                "source_play_ordinal": play if ordinals else None,
                "session_id": draw(names),
                "model": draw(names),
                "input_length": len(hashes) * block_size - draw(st.integers(0, block_size - 1)),
                "output_length": output_length,
                "output_token_ids": draw(st.none() | tokens),
                "hash_ids": hashes,
                "not_before_ms": draw(times),
                "recorded_api_time_ms": draw(st.none() | times),
                "priority": draw(st.integers(-(2**31), 2**31 - 1)),
                "strict_priority": draw(st.integers(0, 2**32 - 1)),
                "policy_class": draw(st.none() | names),
                "dependencies": [
                    {"request_id": source, "relation": relation, "trigger": trigger, "delay_ms": draw(times)}
                    for source, (relation, trigger) in zip(sources, pairs, strict=True)
                ],
            }
        )
    return sketch(rows, block_size, Source(draw(names), draw(names)))


def columns(graph: Graph) -> dict[str, Any]:
    """Return all that a v2 file carries, in comparable form; edges of a node in the digest's order."""
    skipped = {"files", "node_file", "node_line", "node_path", "facts", "source_request_ids", "plays"}
    skipped |= {"edge_source", "edge_trigger", "edge_relation", "edge_delay_ms"}
    result: dict[str, Any] = {}
    for field in dataclasses.fields(graph):
        if field.name in skipped:
            continue
        value = getattr(graph, field.name)
        result[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
    result["recorded_api_time_ms"] = [None if math.isnan(t) else t for t in result["recorded_api_time_ms"]]
    # No ranks are those of the nodes' order, and written out on the way back.
    result["tie_rank"] = graph.tie_ranks.tolist()
    result["plays"] = [(play.play_id, play.ordinal, play.nodes.tolist()) for play in graph.plays]
    result["edges"] = [sorted(map(str, graph.edges_into(node))) for node in range(graph.node_count)]
    return result


def materialized(graph: Graph) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.jsonl"
        write_v2(graph, path)
        first = path.read_bytes()
        lowered = load_graph([path])
        assert lowered.graph is not None
        assert {item.severity for item in lowered.findings.items} <= {Severity.NOTE}
        write_v2(lowered.graph, path)
        assert path.read_bytes() == first
        return lowered.graph


@given(sketches())
def test_a_written_graph_reads_back_equal(graph: Graph) -> None:
    back = materialized(graph)
    assert columns(back) == columns(graph)
    assert graph_digest(back) == graph_digest(graph)


@given(id_lists, st.sampled_from(["", " ", "\n\t"]), st.integers(0, 9), st.integers(0, 40))
def test_the_parser_of_runs_reads_what_json_reads(ids: list[int], space: str, begin: int, end: int) -> None:
    text = f"{space}[{space}" + f"{space},{space}".join(map(str, ids)) + f"{space}]{space}"
    assert json.loads(text) == ids
    buffer = RunBuffer(1)
    assert buffer.parse(text.encode(), begin, end) == (OK, len(ids))
    first, count = buffer.runs()
    _, wanted_first, wanted_count = compress_hash_ids([ids[begin:end]])
    assert first.tolist() == wanted_first.tolist()
    assert count.tolist() == wanted_count.tolist()


@given(
    id_lists, st.sampled_from(["-1", "1.5", "1e3", '"1"', "null", "[]", "{}", "true", str(2**64), "9" * 40]), id_lists
)
def test_the_parser_of_runs_points_at_the_bad_id(before: list[int], bad: str, after: list[int]) -> None:
    buffer = RunBuffer()
    text = "[" + ",".join([*map(str, before), bad, *map(str, after)]) + "]"
    status = TOO_LARGE if bad.isdigit() else BAD_ID
    assert buffer.parse(text.encode()) == (status, len(before))
    assert buffer.used == 0


@given(st.lists(id_lists, max_size=6), st.data())
def test_renumbering_keeps_what_is_equal_and_counts_from_zero(lists: list[list[int]], data: st.DataObject) -> None:
    offsets, first, count = compress_hash_ids(lists)
    private = np.array([data.draw(st.integers(0, 3)) for _ in lists], dtype=np.int64)
    offsets, first, count, distinct = renumber(offsets, first, count)
    offsets, first, count = append_private(offsets, first, count, private, distinct)
    number: dict[int, int] = {}
    fresh = len({value for ids in lists for value in ids})
    assert distinct == fresh
    for place, ids in enumerate(lists):
        wanted = [number.setdefault(value, len(number)) for value in ids]
        wanted += range(fresh, fresh + int(private[place]))
        fresh += int(private[place])
        runs = range(int(offsets[place]), int(offsets[place + 1]))
        found = [int(first[run]) + step for run in runs for step in range(int(count[run]))]
        assert found == wanted
        assert all(int(first[run]) + int(count[run]) != int(first[run + 1]) for run in list(runs)[:-1])


@st.composite
def recordings(draw: st.DrawFn) -> dict[str, Any]:
    """Weka plays whose subagents end before their parent goes on, in the spawn reading with relative times."""
    clock = 0.0
    requests: list[dict[str, Any]] = []
    prompts: list[list[int]] = [[]]

    def request(t: float) -> dict[str, Any]:
        base = draw(st.sampled_from(prompts))
        ids = base[: draw(st.integers(0, len(base)))] if draw(st.booleans()) else base
        ids = ids + draw(st.lists(st.integers(0, 9) | st.integers(2**40, 2**40 + 3), max_size=3))
        prompts.append(ids)
        length = max(len(ids) * 4 + draw(st.integers(-3, 6)), 1)
        api_time = draw(st.none() | st.sampled_from([0.0, 0.25, 1.0]))
        model = draw(st.sampled_from(["m", "m", "n"]))
        kind = draw(st.sampled_from(["n", "s"]))
        return {"t": t, "type": kind, "model": model, "in": length, "out": 3, "hash_ids": ids, "api_time": api_time}

    for outer in range(draw(st.integers(1, 8))):
        requests.append(request(clock))
        if draw(st.integers(0, 2)) == 0:
            begin = clock + draw(st.sampled_from([0.0, 0.5, 2.0]))
            inner = [request(0.5 * place) for place in range(draw(st.integers(1, 3)))]
            blocking = draw(st.booleans())
            span = max(r["t"] + (r["api_time"] or 0.0) for r in inner)
            duration_ms = draw(st.none() | st.just(math.ceil(span * 1000)))
            requests.append(
                {
                    "t": begin,
                    "type": "subagent",
                    "agent_id": f"agent_{outer}",
                    "duration_ms": duration_ms,
                    "status": "completed" if blocking else "async_launched",
                    "requests": inner,
                }
            )
            clock = begin + span
        clock += draw(st.sampled_from([0.0, 0.1, 1.0, 4000.0]))
    return {"id": "x", "block_size": 4, "hash_id_scope": "local", "requests": requests}


@given(recordings())
def test_a_recording_lowers_to_a_sound_graph_that_agrees_with_its_times(record: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        path.write_text(json.dumps(record))
        options = LoweringOptions(nested_timestamp_basis="relative", subagent_marker="spawn")
        lowered = load_graph([path], options=options)
    graph = lowered.graph
    assert graph is not None
    assert {item.code for item in lowered.findings.items} <= {"format-chosen", "hashes-surplus", "hashes-short"}
    nested = [inner for entry in record["requests"] for inner in entry.get("requests", ())]
    assert graph.node_count == sum("in" in entry for entry in record["requests"]) + len(nested)
    network: nx.DiGraph[int] = nx.DiGraph()
    network.add_nodes_from(range(graph.node_count))
    targets = graph.edge_target()
    for number in range(graph.edge_count):
        source, target = int(graph.edge_source[number]), int(targets[number])
        network.add_edge(source, target)
        event = graph.not_before_ms[source]
        recorded = graph.recorded_api_time_ms[source]
        if graph.edge_trigger[number] == Trigger.COMPLETION:
            event += 0.0 if math.isnan(recorded) else recorded
        ready = event + graph.edge_delay_ms[number]
        overlapped = graph.edge_relation[number] == Relation.SEQUENCE and graph.edge_delay_ms[number] == 0
        # What the edge asks for is what was recorded; only in a stream of overlapping calls it asks for more.
        assert overlapped or ready <= graph.not_before_ms[target] + 0.002
    assert nx.is_directed_acyclic_graph(network)
    roots = [node for node in network if network.in_degree(node) == 0]
    assert len(roots) == 1
    assert set(nx.descendants(network, roots[0])) | set(roots) == set(network)
    back = materialized(graph)
    assert columns(back) == columns(graph)
