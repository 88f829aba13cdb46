"""Weka / AgentX: readings of subagent times, owners, joins, identity, counts, and the public recordings."""

from __future__ import annotations

import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest
from lowered import edges
from playproof_lowering import Lowered, LoweringOptions, load_graph, write_v2
from playproof_lowering.weka import _milliseconds
from playproof_spec.digest import graph_digest
from playproof_spec.findings import Severity
from playproof_spec.graph import Graph


def call(t: float, *ids: int, api: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    fields = {"t": t, "type": "n", "model": "m", "in": 16 * len(ids) + 5, "out": 5, "hash_ids": list(ids)}
    return {**fields, "api_time": api, **changes}


def agent(t: float, name: str, *requests: dict[str, Any], **changes: Any) -> dict[str, Any]:
    fields = {"t": t, "type": "subagent", "agent_id": name, "subagent_type": "Explore", "status": "completed"}
    return {**fields, "requests": list(requests), **changes}


def lowered(folder: Path, *plays: list[dict[str, Any]], **options: Any) -> Lowered:
    for number, requests in enumerate(plays):
        record = {"id": "x", "block_size": 16, "hash_id_scope": "local", "requests": requests}
        (folder / f"play{number}.json").write_text(json.dumps(record))
    return load_graph([folder], options=LoweringOptions(**options))


def graph_of(result: Lowered) -> Graph:
    assert result.graph is not None
    assert not result.findings.errors, [str(item) for item in result.findings.items]
    return result.graph


def start_ms(graph: Graph, request_id: str) -> float:
    return float(graph.not_before_ms[graph.request_ids.index(request_id)])


def test_identity_lets_the_author_find_the_entry(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, [call(0, 1), agent(2.0, "a", call(0.0, 9)), call(4, 1, 2)]))
    assert graph.request_ids == ("play0:outer:0", "play0:outer:1:inner:0", "play0:outer:2")
    assert graph.source_request_ids[1] == "play0.json requests[1].requests[0]"
    assert graph.node_path is not None
    assert graph.node_path[1] == "requests[1].requests[0]"
    assert graph.sessions == ("play0:root", "play0:subagent:1:a")
    assert [(play.play_id, play.ordinal) for play in graph.plays] == [("play0", 0)]


def test_one_play_a_line(tmp_path: Path) -> None:
    record = {"id": "x", "block_size": 16, "hash_id_scope": "local", "requests": [call(0, 1)]}
    (tmp_path / "all.jsonl").write_text(f"{json.dumps(record)}\n\n{json.dumps(record)}\n")
    graph = graph_of(load_graph([tmp_path]))
    assert graph.request_ids == ("all:1:outer:0", "all:3:outer:0")
    assert graph.source_request_ids == ("all.jsonl:1 requests[0]", "all.jsonl:3 requests[0]")
    assert graph.node_line.tolist() == [1, 3]
    # Equal hashes in two plays are different blocks.
    assert graph.hash_ids(0).tolist() == [0, 1]
    assert graph.hash_ids(1).tolist() == [2, 3]


def test_document_order_is_not_byte_order(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, [call(2.0 * n, *range(n + 1)) for n in range(12)]))
    assert [graph.request_ids[node] for node in graph.plays[0].nodes] == [f"play0:outer:{n}" for n in range(12)]


def test_private_ids_follow_all_shared_ones_so_that_prompts_stay_few_runs(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, [call(2.0 * n, *range(100, 101 + n)) for n in range(50)]))
    assert len(graph.run_first) <= 2 * 50
    last = graph.request_ids.index("play0:outer:49")
    assert graph.hash_ids(last).tolist() == [*range(50), 99]


def test_nested_times_are_one_decision_for_the_corpus(tmp_path: Path) -> None:
    # The first play alone would be read as absolute: its nested request is not before its marker.
    first = [call(0, 1), agent(2.0, "a", call(3.0, 9))]
    second = [call(0, 1), agent(5.0, "a", call(1.0, 9))]
    alone = graph_of(lowered(tmp_path, first))
    assert start_ms(alone, "play0:outer:1:inner:0") == 3000.0
    assert alone.facts["weka_nested_timestamp_basis"] == "absolute"
    together = graph_of(lowered(tmp_path, first, second))
    assert start_ms(together, "play0:outer:1:inner:0") == 5000.0
    assert together.facts["weka_nested_timestamp_basis"] == "relative"


def test_nested_times_within_rounding_are_clamped_and_counted(tmp_path: Path) -> None:
    result = lowered(tmp_path, [call(0, 1), agent(2.0, "a", call(2.0 - 5e-7, 9))], nested_timestamp_basis="absolute")
    graph = graph_of(result)
    assert start_ms(graph, "play0:outer:1:inner:0") == 2000.0
    counts = graph.facts["weka_counts"]
    assert isinstance(counts, dict)
    assert counts["nested_times_clamped"] == 1


def test_absolute_nested_time_before_the_marker_is_refused(tmp_path: Path) -> None:
    result = lowered(tmp_path, [call(0, 1), agent(2.0, "a", call(1.0, 9))], nested_timestamp_basis="absolute")
    assert [(i.code, i.where.field) for i in result.findings.items if i.severity is Severity.ERROR] == [
        ("nested-before-marker", "requests[1].requests[0].t")
    ]


@pytest.mark.parametrize(
    ("marker", "start", "join"),
    [("spawn", 20_500.0, None), ("completion", 1_500.0, "play0:outer:1:inner:0 —join/completion +2500 ms")],
)
def test_the_two_readings_of_a_marker(tmp_path: Path, marker: str, start: float, join: str | None) -> None:
    requests = [call(0, 1), agent(20.5, "a", call(0.0, 9, api=18.0), duration_ms=19000), call(22, 1, 2)]
    graph = graph_of(lowered(tmp_path, requests, subagent_marker=marker))
    assert start_ms(graph, "play0:outer:1:inner:0") == start
    joins = [edge for edge in edges(graph, "play0:outer:2") if "join" in edge]
    assert joins == ([] if join is None else [join])


@pytest.mark.parametrize(
    ("start", "edge"), [(0.999, "dispatch +999 ms"), (1.0, "completion +0 ms"), (1.25, "completion +250 ms")]
)
def test_a_spawn_fires_at_the_dispatch_of_a_parent_that_still_runs(tmp_path: Path, start: float, edge: str) -> None:
    # The parent runs from 0 to 1 s.
    graph = graph_of(lowered(tmp_path, [call(0, 1), agent(start, "a", call(start, 9))], subagent_marker="spawn"))
    assert edges(graph, "play0:outer:1:inner:0") == [f"play0:outer:0 —spawn/{edge}"]


def test_the_marker_reading_with_fewer_contradictions_is_chosen_with_its_evidence(tmp_path: Path) -> None:
    ended = [call(0, 1), agent(20.5, "a", call(0.0, 9, api=18.0), duration_ms=19000), call(22, 1, 2)]
    # What comes later says nothing of when the agent had ended.
    ended.append(call(60, 1, 2, 3))
    graph = graph_of(lowered(tmp_path, ended, [call(0, 1)]))
    assert graph.facts["weka_subagent_marker"] == "completion"
    assert graph.facts["weka_subagent_marker_evidence"] == {
        "blocking_subagents": 1,
        "spawn": {"child_before_owner": 0, "parent_before_child_end": 1, "child_follows_owner": 0},
        "completion": {"child_before_owner": 0, "parent_before_child_end": 0, "child_follows_owner": 1},
    }


def test_equal_evidence_means_spawn(tmp_path: Path) -> None:
    graph = graph_of(
        lowered(tmp_path, [call(0, 1, api=0.1), agent(5.0, "a", call(0.0, 9), duration_ms=1000), call(9, 1)])
    )
    assert graph.facts["weka_subagent_marker"] == "spawn"
    assert start_ms(graph, "play0:outer:1:inner:0") == 5000.0


def test_a_corpus_without_subagents_has_no_readings(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, [call(0, 1)]))
    assert graph.facts["weka_nested_timestamp_basis"] == "not_applicable"
    assert graph.facts["weka_subagent_marker"] == "not_applicable"


def test_the_readings_are_part_of_the_source_digest(tmp_path: Path) -> None:
    requests = [call(0, 1), agent(20.5, "a", call(0.0, 9), duration_ms=1000), call(30, 1, 2)]
    sources = {
        marker: graph_of(lowered(tmp_path, requests, subagent_marker=marker)).source
        for marker in ("spawn", "completion")
    }
    assert sources["spawn"].digest != sources["completion"].digest
    assert sources["spawn"].format == sources["completion"].format == "weka"


def test_a_completed_marker_without_duration_counts_back_from_its_requests(tmp_path: Path) -> None:
    requests = [call(0, 1), agent(10.0, "a", call(0.0, 8), call(3.0, 8, 9, api=2.0)), call(11, 1, 2)]
    graph = graph_of(lowered(tmp_path, requests, subagent_marker="completion"))
    assert start_ms(graph, "play0:outer:1:inner:0") == 5000.0
    assert "play0:outer:1:inner:1 —join/completion +1000 ms" in edges(graph, "play0:outer:2")


def test_a_subagent_before_its_owner_names_both(tmp_path: Path) -> None:
    requests = [call(5, 1), agent(6.0, "a", call(0.0, 9), duration_ms=4000), call(9, 1, 2)]
    result = lowered(tmp_path, requests, subagent_marker="completion")
    errors = [item for item in result.findings.items if item.severity is Severity.ERROR]
    assert [(item.code, item.where.ids) for item in errors] == [
        ("subagent-before-owner", ("play0:outer:0", "play0:outer:1:inner:0"))
    ]
    assert "requests[0]" in errors[0].message


def test_a_join_waits_for_every_stream_of_the_child_and_for_the_right_request(tmp_path: Path) -> None:
    # The child has two streams side by side; the parent's next request comes too early, the one behind it joins.
    child = agent(
        2.0, "a", call(0.0, 50, 51, api=4.0), call(1.0, 60, api=1.0), call(1.5, 50, 52, api=1.0), duration_ms=6000
    )
    requests = [call(0, 1), child, call(4, 1, 2), call(8, 1, 2, 3), call(10, 1, 2, 3, 4)]
    graph = graph_of(lowered(tmp_path, requests, subagent_marker="spawn", nested_timestamp_basis="relative"))
    assert not [edge for edge in edges(graph, "play0:outer:2") if "join" in edge]
    joins = [edge for edge in edges(graph, "play0:outer:3") if "join" in edge]
    assert joins == [
        "play0:outer:1:inner:0 —join/completion +2000 ms",
        "play0:outer:1:inner:1 —join/completion +4000 ms",
        "play0:outer:1:inner:2 —join/completion +3500 ms",
    ]


def test_the_join_target_is_found_whatever_the_order_of_starts_in_the_file(tmp_path: Path) -> None:
    # requests[2] stands first behind the marker but started before the child's end; requests[3] is the earliest in the
    # file that did not, though requests[4] started before it.
    child = agent(2.0, "a", call(0.0, 50), duration_ms=6000)
    requests = [call(0, 1), child, call(4, 1, 2), call(12, 1, 2, 3, 4), call(9, 1, 2, 3)]
    graph = graph_of(lowered(tmp_path, requests, subagent_marker="spawn", nested_timestamp_basis="relative"))
    assert "play0:outer:1:inner:0 —join/completion +9000 ms" in edges(graph, "play0:outer:3")
    assert not [edge for edge in edges(graph, "play0:outer:4") if "join" in edge]


def test_overlap_within_a_stream_is_floored_and_counted(tmp_path: Path) -> None:
    graph = graph_of(lowered(tmp_path, [call(0, 1, api=5.0), call(1, 1, 2), call(2, hash_ids=[])]))
    assert "play0:outer:0 —sequence/completion +0 ms" in edges(graph, "play0:outer:2")
    counts = graph.facts["weka_counts"]
    assert isinstance(counts, dict)
    assert counts["overlaps_floored"] == 1


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(0.0, 0.0), (-1.0, 0.0), (1.5, 1500.0), (1e-9, 1e-6), (4.9e-10, 0.0), (0.1 + 0.2, 300.0), (1e6 + 1e-9, 1e9)],
)
def test_seconds_become_milliseconds_to_the_nanosecond(seconds: float, wanted: float) -> None:
    assert math.isclose(_milliseconds(seconds), wanted, rel_tol=1e-15)


def growing_play(requests: int) -> dict[str, Any]:
    """A play with all that costs: growth, forks that come back, parallel streams, subagents."""
    entries: list[dict[str, Any]] = []
    prompt: list[int] = list(range(20))
    fresh = 1000
    for number in range(requests):
        prompt = [*prompt, fresh, fresh + 1] if len(prompt) < 300 else prompt[:40]
        fresh += 2
        t = 2.0 * number
        if number % 3 == 0:
            entries.append(call(t + 0.2, *prompt[:20], fresh, fresh + 1, api=1.0))
            fresh += 2
        entries.append(call(t + 0.1, *prompt, fresh, api=0.5))
        fresh += 1
        if number % 5 == 0:
            entries.append(agent(t + 0.9, f"a{number}", call(0.0, fresh, api=0.2), duration_ms=250))
            fresh += 1
    return {"id": "x", "block_size": 16, "hash_id_scope": "local", "requests": entries}


def test_edges_per_request_do_not_grow_with_the_play(tmp_path: Path) -> None:
    """Barriers are pruned to the frontier, so a long play has no more edges a request than a short one.

    The time a request takes is the benchmark's to measure (`make bench`, growth within a play).
    """
    share = {}
    for size in (1000, 4000):
        path = tmp_path / f"{size}.json"
        path.write_text(json.dumps(growing_play(size)))
        graph = graph_of(load_graph([path]))
        share[size] = graph.edge_count / graph.node_count
    assert 1.0 < share[1000] < 3.0
    assert share[4000] == pytest.approx(share[1000], rel=0.01)


@pytest.mark.corpus
def test_the_small_public_recordings(data_dir: Path, tmp_path: Path) -> None:
    result = load_graph([data_dir / "weka" / "small"])
    graph = graph_of(result)
    assert len(graph.plays) == 10
    assert result.findings.counts["model-undeclared"] == 5
    out = tmp_path / "small.jsonl"
    write_v2(graph, out)
    assert graph_digest(graph_of(load_graph([out]))) == graph_digest(graph)


@pytest.mark.corpus
def test_all_public_recordings(data_dir: Path, tmp_path: Path) -> None:
    # Python 3.11.0 to 3.11.3 know no filters.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(data_dir / "weka" / "kv-cache-tester-710traces.tar.xz") as archive:
        archive.extractall(tmp_path, **options)
    result = load_graph([tmp_path])
    graph = graph_of(result)
    assert (len(graph.plays), graph.node_count) == (710, 49_334)
    warnings = {item.code for item in result.findings.items if item.severity is Severity.WARNING}
    assert warnings == {"model-undeclared"}
    assert result.findings.warnings == 17
    assert graph.facts["weka_nested_timestamp_basis"] == "relative"
    assert graph.facts["weka_subagent_marker"] == "completion"
    evidence = graph.facts["weka_subagent_marker_evidence"]
    assert isinstance(evidence, dict)
    assert evidence["blocking_subagents"] == 59
    assert evidence["completion"]["child_follows_owner"] == 57
    assert evidence["spawn"]["parent_before_child_end"] == 46
    counts = graph.facts["weka_counts"]
    assert isinstance(counts, dict)
    assert counts["zero_outputs"] == 27
    assert counts["surplus_hashes"] == 0
    # 94 million ids, in some 214,000 runs.
    assert int(graph.run_count.sum()) > 94_000_000
    assert len(graph.run_first) < 250_000


def test_evidence_of_a_completed_marker_without_duration_takes_absolute_times_as_they_are(tmp_path: Path) -> None:
    # The agent ran from 5 to 9.5 s, behind its owner; read as a spawn it would run from 10 s on, past the next request.
    requests = [call(3, 1), agent(10.0, "a", call(5.0, 8), call(7.0, 8, 9, api=2.5)), call(11, 1, 2)]
    graph = graph_of(lowered(tmp_path, requests, nested_timestamp_basis="absolute"))
    assert graph.facts["weka_subagent_marker"] == "completion"
    evidence = graph.facts["weka_subagent_marker_evidence"]
    assert isinstance(evidence, dict)
    assert (evidence["completion"]["child_before_owner"], evidence["spawn"]["parent_before_child_end"]) == (0, 1)
    assert start_ms(graph, "play0:outer:1:inner:0") == 2000.0
