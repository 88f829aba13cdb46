"""Properties of the session, Dynamo and ordinary readers: order of files, copies, shards, and their naive twins."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from playproof_lowering import Lowered, LoweringOptions, load_graph
from playproof_lowering.chains import BlockIds, PrefixChain
from playproof_lowering.codex import _Thread, _unnamed
from playproof_lowering.codex_records import RolloutLog
from playproof_lowering.numbering import Numbering
from playproof_lowering.runs import RunBuffer
from playproof_lowering.turns import Turn
from playproof_spec.certificate import prove
from playproof_spec.digest import graph_digest
from playproof_spec.graph import Graph

from playproof.inspection import _covered, inspect_graph


def lowered(files: dict[str, list[dict[str, Any]]], format: str = "auto") -> Lowered:
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in files.items():
            (Path(folder) / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_graph([folder], format=format, options=LoweringOptions(block_size=16))


def graph_of(result: Lowered) -> Graph:
    assert result.graph is not None
    assert not result.findings.errors, [str(item) for item in result.findings.items]
    return result.graph


# Prefix chains -------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 90), st.booleans()), min_size=1, max_size=12
)  # tokens, cached, reset before


def expanded(runs: list[tuple[int, int]]) -> list[int]:
    return [first + step for first, count in runs for step in range(count)]


@given(steps, st.sampled_from([1, 4, 16]))
def test_a_chain_keeps_and_adds_the_blocks_that_a_naive_one_does(
    calls: list[tuple[int, int, bool]], block_size: int
) -> None:
    chain = PrefixChain(BlockIds(), block_size)
    prompt: list[int] = []
    length = fresh = 0
    for tokens, cached, reset in calls:
        if reset:
            chain.reset()
            prompt, length = [], 0
        kept = prompt if tokens >= length else prompt[: min(cached, tokens) // block_size]
        prompt = kept[: tokens // block_size]
        while len(prompt) < tokens // block_size:
            prompt = [*prompt, fresh]
            fresh += 1
        length = tokens
        runs = chain.extend(tokens, cached)
        assert expanded(runs) == prompt
        assert all(first + count != after for (first, count), (after, _) in itertools.pairwise(runs))


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 5, 7, 2**63, 2**64 - 2, 2**64 - 1]), max_size=9), max_size=9))
def test_numbers_are_given_by_first_appearance(lists: list[list[int]]) -> None:
    ids, buffer = BlockIds(), RunBuffer()
    known: dict[int, int] = {}
    numbering = Numbering(ids)
    for hashes in lists:
        buffer.clear()
        buffer.parse(json.dumps(hashes).encode())
        wanted = [known.setdefault(value, len(known)) for value in hashes]
        assert expanded(numbering.runs(buffer)) == wanted
    assert ids.used == len(known)


def test_the_table_of_numbers_grows(tmp_path: Path) -> None:
    ids, buffer = BlockIds(), RunBuffer()
    numbering = Numbering(ids)
    values = [(value * 0x9E3779B97F4A7C15) % 2**64 for value in range(5000)]
    for begin in (0, 2500, 0):
        buffer.clear()
        buffer.parse(json.dumps(values[begin : begin + 2500]).encode())
        assert numbering.runs(buffer) == [(begin, 2500)]


# Claude Code ---------------------------------------------------------------------------------------------------------


@st.composite
def sessions(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Draw two or three sessions, each of which may begin with records of the one before it."""
    drawn: list[list[dict[str, Any]]] = []
    for number in range(draw(st.integers(2, 3))):
        name = f"session{number}"
        rows: list[dict[str, Any]] = []
        if drawn:
            copied = drawn[-1][: 2 * draw(st.integers(0, len(drawn[-1]) // 2))]
            rewrites = draw(st.booleans())
            rows = [{**row, "sessionId": name} if rewrites else row for row in copied]
        for call in range(draw(st.integers(1, 3))):
            at = 100 * number + 10 * call
            base = {"sessionId": name, "version": "2.1.100", "isSidechain": False}
            stamp = [f"2026-05-01T10:{(at + s) // 60:02d}:{(at + s) % 60:02d}Z" for s in (1, draw(st.integers(1, 9)))]
            usage = {"input_tokens": draw(st.integers(1, 99)), "output_tokens": draw(st.integers(0, 9))}
            message = {"id": f"{name}-{call}", "model": "m", "content": [], "usage": usage}
            rows.append({"type": "user", "uuid": f"u-{name}-{call}", "timestamp": stamp[0], "message": {}, **base})
            rows.append(
                {"type": "assistant", "uuid": f"a-{name}-{call}", "timestamp": stamp[1], "message": message, **base}
            )
        drawn.append(rows)
    return drawn


@given(sessions(), st.permutations(["a.jsonl", "b.jsonl", "c.jsonl"]))
def test_each_call_counts_once_whatever_the_order_of_the_files(
    drawn: list[list[dict[str, Any]]], names: list[str]
) -> None:
    in_order = lowered(dict(zip(("a.jsonl", "b.jsonl", "c.jsonl"), drawn, strict=False)))
    graph = graph_of(in_order)
    calls = {row["message"]["id"] for rows in drawn for row in rows if row["type"] == "assistant"}
    assert sorted(graph.source_request_ids) == sorted(calls)
    # The id of a message says which session asked it first.
    assert all(
        graph.plays[graph.node_play[node]].play_id == graph.source_request_ids[node].partition("-")[0]
        for node in range(graph.node_count)
    )
    other = graph_of(lowered(dict(zip(names, drawn, strict=False))))
    assert graph_digest(other) == graph_digest(graph)
    prove(graph, in_order.findings)


@st.composite
def processes(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[int, int, int]]]:
    """Draw processes that write into one session file, and what each of their calls was: (tokens, start, end) in s.

    Each goes on from one call that all begin with. Message ids are one for all or one for each; then requests have ids,
    or prompts differ. The counts of a message may stand in its last row only.
    """
    one_id, with_requests, late = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    base = {"sessionId": "s", "version": "2.1.100", "isSidechain": False}
    rows: list[tuple[int, dict[str, Any]]] = []
    calls: list[tuple[int, int, int]] = []

    def stamp(at: int) -> str:
        return f"2026-05-01T1{at // 3600}:{at // 60 % 60:02d}:{at % 60:02d}Z"

    def call(parent: str | None, start: int, seconds: int, count: int) -> str:
        number = len(calls)
        tokens = 16 if with_requests else 16 + number
        user: dict[str, Any] = {"type": "user", "uuid": f"u{number}", "parentUuid": parent, "message": {}}
        rows.append((start, user | {"timestamp": stamp(start)} | base))
        above = f"u{number}"
        for row in range(count):
            usage = {"input_tokens": 0 if late and row < count - 1 else tokens, "output_tokens": row}
            message = {"id": "gw" if one_id else f"m{number}", "model": "m", "content": [], "usage": usage}
            told = {"type": "assistant", "uuid": f"a{number}-{row}", "parentUuid": above, "message": message, **base}
            at = start + seconds * (row + 1) // count
            rows.append((at, told | {"timestamp": stamp(at)} | ({"requestId": f"q{number}"} if with_requests else {})))
            above = f"a{number}-{row}"
        calls.append((tokens, start, start + seconds))
        return above

    trunk = call(None, 1, 4, 1)
    for _ in range(draw(st.integers(1, 3))):
        above, at = trunk, 10 + draw(st.integers(0, 9))
        for _ in range(draw(st.integers(1, 4))):
            seconds = draw(st.integers(2, 9))
            above = call(above, at, seconds, draw(st.integers(1, 2)))
            at += seconds + draw(st.integers(1, 9))
    return [row for _, row in sorted(rows, key=lambda entry: entry[0])], calls


@given(processes())
def test_the_calls_of_a_file_are_those_that_its_processes_made(
    drawn: tuple[list[dict[str, Any]], list[tuple[int, int, int]]],
) -> None:
    rows, calls = drawn
    graph = graph_of(lowered({"s.jsonl": rows}))
    starts_s = graph.not_before_ms / 1000 + 1
    found = zip(graph.input_length, starts_s, starts_s + graph.recorded_api_time_ms / 1000, strict=True)
    assert sorted((int(tokens), int(start), int(end)) for tokens, start, end in found) == sorted(calls)
    # No call waits for one that was still under way when it began.
    ends_ms = graph.not_before_ms + graph.recorded_api_time_ms
    for source, target in zip(graph.edge_source, graph.edge_target(), strict=True):
        assert graph.not_before_ms[target] >= ends_ms[source]


# Codex ---------------------------------------------------------------------------------------------------------------


def thread(name: str, answered_ns: int = -1, calls: int = 1) -> _Thread:
    turn = Turn("r", "r", "s", "m", 1, 1, 0, 0, "f", 1)
    return _Thread(RolloutLog("f", thread=name, answered_ns=answered_ns), turns=[turn] * calls)


CALLS = 8
# When each child was spawned (the parent's call), when it first answered (None: it has no rollout, -1: it never did),
# and the first call that saw an answer of it otherwise.
answers = st.lists(
    st.tuples(
        st.integers(0, CALLS - 1),
        st.one_of(st.none(), st.just(-1), st.integers(0, 9)),
        st.one_of(st.none(), st.integers(0, CALLS)),
    ),
    max_size=6,
)


@given(answers, st.lists(st.tuples(st.integers(0, CALLS), st.integers(0, 9)), max_size=6))
def test_notifications_without_a_text_are_given_to_the_children_that_a_naive_reading_finds(
    children: list[tuple[int, int | None, int | None]], arrived: list[tuple[int, int]]
) -> None:
    parent = thread("root", calls=CALLS)
    # Calls and instants go on.
    parent.log.unnamed = sorted(zip(sorted(seer for seer, _ in arrived), sorted(at for _, at in arrived), strict=True))
    seen: dict[str, list[int]] = {}
    for number, (call, answered, seer) in enumerate(sorted(children, key=lambda child: child[0])):
        name = f"child{number}"
        parent.log.spawned[name] = call
        if answered is not None:
            parent.children.append(thread(name, answered))
        if seer is not None:
            seen[name] = [seer]
    rollouts = {child.log.thread: child.log.answered_ns for child in parent.children}
    wanted: list[tuple[str, int]] = []
    for seer, at_ns in parent.log.unnamed:
        due = [
            name
            for name, call in parent.log.spawned.items()
            if call < seer < CALLS
            and rollouts.get(name, -1) <= at_ns
            and seen.get(name, [CALLS + 1])[0] > seer
            and name not in dict(wanted)
        ]
        if len(due) == 1 and rollouts.get(due[0], -1) >= 0:
            wanted.append((due[0], seer))
    assert _unnamed(parent, seen) == wanted


# Dynamo --------------------------------------------------------------------------------------------------------------


@st.composite
def dynamo_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw a root session with children, on few instants, so that ties and overlaps are common."""
    rows = []
    for number in range(draw(st.integers(1, 4))):
        context = {"session_id": f"s{number}"} | (
            {"parent_session_id": f"s{draw(st.integers(0, number - 1))}"} if number else {}
        )
        for call in range(draw(st.integers(1, 3))):
            hashes = [*range(draw(st.integers(1, 3))), 100 * number + call]
            replay = {"trace_block_size": 16, "input_length": 16 * len(hashes), "input_sequence_hashes": hashes}
            begin = 10 if not number and not call else draw(st.integers(1, 6)) * 10 + 10
            body = {"request_id": f"r{number}.{call}", "model": "m", "output_tokens": 1, "request_received_ms": begin}
            body |= {"total_time_ms": draw(st.sampled_from([0, 5, 10, 25])), "replay": replay}
            row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": context}
            rows.append({**row, "request": body})
    return rows


@given(dynamo_rows(), st.data())
def test_shards_and_envelopes_change_nothing(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = lowered({"all.jsonl": rows})
    cut = data.draw(st.integers(1, len(rows)))
    second = [{"timestamp": 1, "event": row} for row in rows[cut:]]
    parts = {"0.jsonl": rows[:cut]} | ({"1.jsonl": second} if second else {})
    split = lowered(parts)
    assert [item.code for item in split.findings.items] == [item.code for item in whole.findings.items]
    if not whole.findings.errors:
        assert graph_digest(graph_of(split)) == graph_digest(graph_of(whole))


@given(dynamo_rows())
def test_edges_of_a_dynamo_play_are_those_of_a_naive_reading(rows: list[dict[str, Any]]) -> None:
    result = lowered({"all.jsonl": rows})
    starts: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows:
        body, session = row["request"], row["agent_context"]["session_id"]
        begin = body["request_received_ms"]
        starts.setdefault(session, []).append((begin, begin + body["total_time_ms"], body["request_id"]))
    wanted = set()
    early = False
    for session, requests in starts.items():
        requests.sort()
        for (_, end, source), (begin, _, target) in itertools.pairwise(requests):
            wanted.add((source, target, "SEQUENCE", "COMPLETION", float(max(begin - end, 0))))
        parent = next(
            (r["agent_context"].get("parent_session_id") for r in rows if r["agent_context"]["session_id"] == session),
            None,
        )
        if parent is None:
            continue
        begin, _, first = requests[0]
        before = [request for request in sorted(starts[parent]) if request[0] <= begin]
        if not before:
            early = True
            continue
        spawner = before[-1]
        at_dispatch = begin < spawner[1]
        delay = begin - (spawner[0] if at_dispatch else spawner[1])
        wanted.add((spawner[2], first, "SPAWN", "DISPATCH" if at_dispatch else "COMPLETION", float(delay)))
        end, _, last = max((end, start, name) for start, end, name in requests)
        later = [request for request in sorted(starts[parent])[len(before) :] if request[0] >= end]
        if later:
            wanted.add((last, later[0][2], "JOIN", "COMPLETION", float(later[0][0] - end)))
    assert bool(result.findings.errors) == early
    if not early:
        graph = graph_of(result)
        found = {
            (edge.source, edge.target, edge.relation.name, edge.trigger.name, edge.delay_ms)
            for node in range(graph.node_count)
            for edge in graph.edges_into(node)
        }
        assert found == wanted
        prove(graph, result.findings)


# Mooncake delta ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 40)), min_size=1, max_size=9))
def test_delta_prompts_are_all_that_was_said_before(turns: list[tuple[int, int, int]]) -> None:
    rows: list[dict[str, Any]] = []
    said: dict[int, int] = {}
    wanted: list[int] = []
    for session, new, output in turns:
        first = session not in said
        rows.append({"session_id": str(session), "input_length": new, "output_length": output}
                    | ({"timestamp": 0} if first else {"delay": 1}))  # fmt: skip
        prompt = said.get(session, 0) + new
        wanted.append(prompt)
        said[session] = prompt + output
    graph = graph_of(lowered({"t.jsonl": rows}, "mooncake-delta"))
    by_line = {int(graph.node_line[node]): node for node in range(graph.node_count)}
    assert [int(graph.input_length[by_line[line + 1]]) for line in range(len(rows))] == wanted
    for line, (session, _, _) in enumerate(turns):
        before = max((at for at in range(line) if turns[at][0] == session), default=None)
        if before is not None:
            old, new_ids = graph.hash_ids(by_line[before + 1]), graph.hash_ids(by_line[line + 1])
            full = wanted[before] // 16
            assert old[:full].tolist() == new_ids[:full].tolist()


# Inspection ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)), max_size=12))
def test_covered_numbers_are_counted_as_sets_do(intervals: list[tuple[int, int, int]]) -> None:
    columns = [np.array([interval[column] for interval in intervals], dtype=np.int64) for column in range(3)]
    wanted = {(group, value) for group, first, count in intervals for value in range(first, first + count)}
    assert _covered(*columns) == len(wanted)


@given(sessions())
def test_an_inspection_adds_up(drawn: list[list[dict[str, Any]]]) -> None:
    result = lowered({f"{number}.jsonl": rows for number, rows in enumerate(drawn)})
    graph = graph_of(result)
    figures = inspect_graph(graph, result.findings).to_dict()
    blocks = [
        tuple(graph.hash_ids(node)[: graph.input_length[node] // 16].tolist()) for node in range(graph.node_count)
    ]
    chains = {chain[: end + 1] for chain in blocks for end in range(len(chain))}
    assert figures["prefix_reuse"]["distinct_blocks"] == len(chains)
    assert figures["prefix_reuse"]["blocks"] == sum(map(len, blocks))
    assert figures["requests"] == sum(model["requests"] for model in figures["models"].values())
    assert sum(count for name, count in figures["edges"].items() if name != "at_dispatch") == graph.edge_count
