"""Agentic Mooncake v2: what rows become, several files, the canonical form (bad rows are in test_bad_input)."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from playproof_lowering import LoweringOptions, load_graph, write_v2
from playproof_spec.certificate import prove
from playproof_spec.digest import graph_digest
from playproof_spec.findings import InvalidInput, Severity
from playproof_spec.graph import Carried, Graph
from playproof_spec.sketch import sketch


def header(**changes: Any) -> dict[str, Any]:
    source = {"format": "hand", "digest": "none"}
    fixed = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 16, "hash_id_scope": "local"}
    return {**fixed, "source": source, **changes}


def row(request_id: str, **changes: Any) -> dict[str, Any]:
    fields = {"request_id": request_id, "play_id": "p", "session_id": "s", "model": "m", "input_length": 20}
    return {**fields, "output_length": 5, "hash_ids": [1, 2], "not_before_ms": 0.0, **changes}


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def graph_of(*paths: Path) -> Graph:
    lowered = load_graph(paths)
    assert lowered.graph is not None
    assert not lowered.findings.errors
    return lowered.graph


def test_a_row_becomes_a_node(tmp_path: Path) -> None:
    edges = [{"request_id": "b", "trigger": "dispatch", "delay_ms": 2.5, "relation": "spawn"}]
    carried = {"priority": 3, "strict_priority": 1, "policy_class": "batch", "output_token_ids": [1, 2, 3, 4, 5]}
    first = row("b", input_length=17, hash_ids=[7, 9], not_before_ms=4, recorded_api_time_ms=0)
    second = row("a", play_id="p", session_id="t", model="n", dependencies=edges, **carried)
    path = written(tmp_path / "x.jsonl", header(), first, second)
    graph = graph_of(path)
    assert graph.request_ids == ("a", "b")
    assert graph.plays[0].nodes.tolist() == [1, 0]
    assert graph.node(1).recorded_api_time_ms == 0.0
    assert graph.node(0).recorded_api_time_ms is None
    assert graph.node(1).not_before_ms == 4.0
    assert graph.hash_ids(1).tolist() == [7, 9]
    assert [str(edge) for edge in graph.edges_into(0)] == ["b —spawn/dispatch +2.5 ms→ a"]
    assert graph.carried == {0: Carried(3, 1, "batch", (1, 2, 3, 4, 5))}
    assert (graph.node_line.tolist(), graph.files) == ([3, 2], (str(path),))
    assert graph.source.format == "hand"
    assert graph.facts["input_format"] == "agentic_mooncake"


def test_aliases_of_lengths(tmp_path: Path) -> None:
    aliased = {name: value for name, value in row("a").items() if name not in ("input_length", "output_length")}
    one = graph_of(written(tmp_path / "x.jsonl", header(), {**aliased, "input_tokens": 20, "output_tokens": 5}))
    other = graph_of(written(tmp_path / "y.jsonl", header(), row("a")))
    assert graph_digest(one) == graph_digest(other)


def test_order_of_rows_and_packing_change_no_digest(tmp_path: Path) -> None:
    rows = [row(f"r{number}", hash_ids=[number, 2]) for number in range(12)]
    there = graph_of(written(tmp_path / "x.jsonl", header(), *rows))
    back = graph_of(written(tmp_path / "y.jsonl", header(), *reversed(rows)))
    (tmp_path / "z.jsonl.gz").write_bytes(gzip.compress((tmp_path / "x.jsonl").read_bytes()))
    packed = graph_of(tmp_path / "z.jsonl.gz")
    assert graph_digest(there) == graph_digest(back) == graph_digest(packed)
    assert there.request_ids == back.request_ids


def test_plays_run_by_ordinal_else_by_id(tmp_path: Path) -> None:
    named = [row("a", play_id="z"), row("b", play_id="y")]
    assert [play.play_id for play in graph_of(written(tmp_path / "x.jsonl", header(), *named)).plays] == ["y", "z"]
    numbered = [row("a", play_id="z", source_play_ordinal=0), row("b", play_id="y", source_play_ordinal=1)]
    assert [play.play_id for play in graph_of(written(tmp_path / "y.jsonl", header(), *numbered)).plays] == ["z", "y"]


def test_hash_ids_are_local_to_their_file(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", header(), row("a", hash_ids=[2**64 - 1, 5]), row("b", hash_ids=[2**64 - 1, 6]))
    written(tmp_path / "b.jsonl", header(), row("c", play_id="q", hash_ids=[2**64 - 1, 5]))
    graph = graph_of(tmp_path)
    assert [graph.hash_ids(node).tolist() for node in range(3)] == [[0, 1], [0, 2], [3, 4]]
    alone = graph_of(tmp_path / "a.jsonl")
    assert alone.hash_ids(0).tolist() == [2**64 - 1, 5]


def test_ordinals_of_several_files_are_chained(tmp_path: Path) -> None:
    for name in "cba":
        rows = [row(f"{name}{n}", play_id=f"{name}{n}", source_play_ordinal=1 - n) for n in range(2)]
        written(tmp_path / f"{name}.jsonl", header(), *rows)
    lowered = load_graph([tmp_path])
    assert lowered.graph is not None
    assert [(play.play_id, play.ordinal) for play in lowered.graph.plays] == [
        ("a1", 0),
        ("a0", 1),
        ("b1", 2),
        ("b0", 3),
        ("c1", 4),
        ("c0", 5),
    ]
    notes = {item.code for item in lowered.findings.items if item.severity is Severity.NOTE}
    assert notes == {"format-chosen", "ordinals-chained"}


def test_several_sources_are_named_together(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", header(source={"format": "weka", "digest": "1"}), row("a"))
    written(tmp_path / "b.jsonl", header(source={"format": "hand", "digest": "2"}), row("b", play_id="q"))
    assert graph_of(tmp_path).source.format == "hand+weka"


def test_the_canonical_form(tmp_path: Path) -> None:
    edges = [{"request_id": "b", "relation": "join", "delay_ms": 0.1}, "a"]
    rows: list[dict[str, Any]] = [{"request_id": "b"}, {"request_id": "a", "output_length": 0}]
    rows.append({"request_id": "c", "dependencies": edges})
    graph = sketch(rows, 16)
    out = tmp_path / "out.jsonl"
    write_v2(graph, out)
    assert out.read_text().splitlines() == [
        '{"schema":"dynamo.agentic_mooncake","version":2,"block_size":16,"hash_id_scope":"local",'
        '"source":{"format":"sketch","digest":"none"}}',
        '{"request_id":"b","play_id":"play","session_id":"play","model":"model","input_length":16,"output_length":1,'
        '"hash_ids":[2],"not_before_ms":0.0,"dependencies":[]}',
        '{"request_id":"a","play_id":"play","session_id":"play","model":"model","input_length":16,"output_length":0,'
        '"hash_ids":[1],"not_before_ms":0.0,"dependencies":[]}',
        '{"request_id":"c","play_id":"play","session_id":"play","model":"model","input_length":16,"output_length":1,'
        '"hash_ids":[3],"not_before_ms":0.0,"dependencies":['
        '{"request_id":"a","trigger":"completion","delay_ms":0.0,"relation":"sequence"},'
        '{"request_id":"b","trigger":"completion","delay_ms":0.1,"relation":"join"}]}',
    ]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    graph = sketch([{"request_id": "a"}])

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_v2(graph, out)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("name", ["no/such/out.jsonl", "folder"])
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"No such folder|Is a directory") as refused:
        write_v2(sketch([{"request_id": "a"}]), tmp_path / name)
    assert ".part" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    write_v2(sketch([{"request_id": "a"}]), tmp_path / "out.jsonl")
    (tmp_path / "plain").write_text("")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", header(), row("a"))
    seen: list[tuple[int, int]] = []
    load_graph([path], options=LoweringOptions(progress=lambda done, total: seen.append((done, total))))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_digests_of_the_peer(reference_dir: Path) -> None:
    """The graph digest of every reference case that has one, as the peer computed it; those at another speed aside."""
    compared = 0
    for case in sorted((reference_dir / "cases").iterdir()):
        expected = json.loads((case / "expected.json").read_text())
        digest = (expected.get("agentic_graph") or {}).get("graph_digest")
        if digest is None or "speedup" in (case / "config.yaml").read_text():
            continue
        graph = graph_of(case / "trace.jsonl")
        assert digest in (graph_digest(graph), graph_digest(graph, shift_floors=False)), case.name
        compared += 1
    assert compared > 90


def test_unknown_format_name_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="no such format"):
        load_graph([], format="wekka")


def test_the_row_behind_one_that_is_refused_keeps_its_own_hash_ids(tmp_path: Path) -> None:
    bad = row("b", hash_ids=[3, 4], input_tokens=21)  # not what its input_length says
    rows = [row("a", hash_ids=[1, 2]), bad, row("c", hash_ids=[5, 6])]
    result = load_graph([written(tmp_path / "x.jsonl", header(), *rows)], options=LoweringOptions(skip_bad=True))
    assert result.graph is not None
    assert result.graph.request_ids == ("a", "c")
    assert [result.graph.hash_ids(node).tolist() for node in range(2)] == [[1, 2], [5, 6]]


def test_of_two_requests_with_one_id_the_first_is_the_one_that_others_wait_for(tmp_path: Path) -> None:
    # The second is the defect: what waits for `a` is not told to cross plays.
    waits = [{"request_id": "a", "relation": "sequence", "trigger": "completion", "delay_ms": 0.0}]
    rows = [row("a"), row("b", dependencies=waits), row("a", play_id="q")]
    lowered = load_graph([written(tmp_path / "x.jsonl", header(), *rows)])
    assert lowered.graph is not None
    with pytest.raises(InvalidInput) as refused:
        prove(lowered.graph, lowered.findings)
    told = [(item.code, item.where.line) for item in refused.value.findings.items if item.severity is Severity.ERROR]
    assert told == [("id-duplicate", 4)]
