"""Both sides of online replay beside offline replay, in its own time: no socket, no clock, equal to the nanosecond."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from playproof_kernel import simulate
from playproof_kernel.corpus import live_keys
from playproof_kernel.runs import live_engine
from playproof_kernel.runs.live_driver import End, LiveDriver
from playproof_kernel.runs.live_engine import LiveEngine
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.deployment import Backend, DeploymentSpec, LoadSpec, Timing, WorkerSpec
from playproof_spec.graph import Graph
from playproof_spec.ledger import Ledger
from playproof_spec.machines import RequestState
from playproof_spec.sketch import sketch
from strategies import deployments, graphs, loads, sglang_deployments

from playproof.online.prompts import Encoding


def proven(graph: Graph) -> ProvenGraph:
    return prove(graph)


def takes_time(deployment: DeploymentSpec) -> bool:
    timing = deployment.worker.timing
    return timing.kind == 1 or (timing.prefill_ns > 0 and timing.decode_ns > 0)


# The driver ---------------------------------------------------------------------------------------------------------


def driven(graph: Graph, load: LoadSpec, offline: Ledger, workers: int) -> Ledger:
    """Drive a live driver whose requests end when and as they did offline."""
    live = LiveDriver(proven(graph), load, workers=workers)
    due: dict[int, int] = {}
    now = 0
    while True:
        for slot in sorted(slot for slot, when in due.items() if when <= now):
            del due[slot]
            state = RequestState(int(offline.request_state[slot]))
            columns = (offline.dispatched_ns, offline.first_token_ns, offline.second_token_ns, offline.last_token_ns)
            sent, first, second, last = (int(column[slot]) for column in columns)
            live.end(slot, End(state, sent, first, second, last, now, int(offline.output_length[slot]), cached=-1))
        orders, given_up = live.step(now)
        assert not given_up
        for order in orders:
            assert order.ready == now
            assert order.output == graph.output_length[order.source]
            due[order.slot] = int(offline.terminal_ns[order.slot])
        if live.over:
            nothing = np.zeros(0, np.int64)
            ledger = live.ledger(nothing, nothing)
            assert isinstance(ledger, Ledger)
            return ledger
        following = [*due.values(), *([live.upcoming] if live.upcoming is not None else [])]
        assert following, "the driver is stuck"
        now = max(now, min(following))


@given(graphs(), st.one_of(deployments, sglang_deployments), loads)
def test_the_live_driver_does_what_the_offline_one_does(
    graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    # Requests that take no time end in the middle of an instant, which the outside cannot; so do those that a front end
    # refuses, which have no worker offline.
    assume(takes_time(deployment))
    assume(int(graph.input_length.max()) < deployment.context_length)
    offline = simulate(proven(graph), deployment, load)
    # One that wants no token takes none either, where all of its prompt is cached.
    assume(not ((offline.terminal_ns == offline.dispatched_ns) & (offline.dispatched_ns >= 0)).any())
    online = driven(graph, load, offline, deployment.workers)
    for name in (
        *("node_state", "request_state", "dispatched_ns", "first_token_ns", "last_token_ns", "terminal_ns", "worker"),
        *("output_length", "play_state", "play_lane", "play_start_ns", "play_first_dispatch_ns", "play_settled_ns"),
    ):
        np.testing.assert_array_equal(getattr(online, name), getattr(offline, name), name)


@given(graphs(), loads, st.integers(0, 60), st.integers(0, 20), st.integers(1, 9))
def test_admission_ends_at_once_and_everything_else_in_order(
    graph: Graph, load: LoadSpec, close_at: int, drain: int, service: int
) -> None:
    live = LiveDriver(proven(graph), load, workers=2)
    due: dict[int, int] = {}
    closed, given_up_all, now = False, False, 0
    while not live.over:
        for slot in [slot for slot, when in due.items() if when <= now]:
            del due[slot]
            live.end(slot, End(RequestState.FINISHED, now, now, now, now, now, 1, cached=0))
        orders, given_up = live.step(now)
        assert not (closed and orders), "something was issued after the end of admission"
        for slot in given_up:
            assert given_up_all
            del due[slot]
        due.update({order.slot: now + service for order in orders})
        if now >= close_at and not closed:
            closed = True
            live.close(drain)
        elif closed and now >= close_at + drain and not given_up_all:
            given_up_all = True
            assert live.give_up_all() == sorted(due)
        else:
            now += 1
    nothing = np.zeros(0, np.int64)
    ledger = live.ledger(nothing, nothing)
    assert isinstance(ledger, Ledger)
    # Everything has ended or was never begun; what was dispatched has exactly one end.
    dispatched = ledger.dispatched_ns >= 0
    assert set(ledger.request_state[dispatched]) <= {RequestState.FINISHED, RequestState.CANCELED}
    assert set(ledger.request_state[~dispatched]) <= {RequestState.QUEUED}
    assert live.in_flight == 0


# The engine ---------------------------------------------------------------------------------------------------------


def arrivals(draw: Any, graph: Graph) -> Graph:
    """Return the requests of `graph` without edges, each at an instant that no other event can have."""
    floors = [draw(st.integers(0, 40)) * 0.5 + (node + 1) * 1e-3 for node in range(graph.node_count)]
    rows = [
        {
            "request_id": graph.request_ids[node],
            "play_id": f"p{node}",
            "input_length": int(graph.input_length[node]),
            "output_length": int(graph.output_length[node]),
            "hash_ids": graph.hash_ids(node).tolist(),
            "not_before_ms": floors[node],
        }
        for node in range(graph.node_count)
    ]
    return sketch(rows, block_size=graph.block_size)


def served(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> dict[int, tuple[int, ...]]:
    """Let the requests arrive at a live engine; (outcome, first, last, end, tokens, cached) of each."""
    engine, encoding = LiveEngine(deployment), Encoding(graph)
    origin = graph.not_before_ms.min()
    starts = [(round((floor - origin) * 1e6), 0, node) for node, floor in enumerate(graph.not_before_ms.tolist())]
    events = sorted([*starts, *((time, 1, node) for time, node in load.cancellations)])
    seen: dict[int, list[int]] = {}
    ended: dict[int, tuple[int, ...]] = {}
    node_of: dict[int, int] = {}

    def look(now: int) -> None:
        for progress in engine.advance(now):
            node = node_of[progress.slot]
            if progress.generated:
                seen.setdefault(node, [now, now, 0])
            if progress.generated > seen.get(node, [0, 0, 0])[2]:
                seen[node][1:] = [now, progress.generated]
            if progress.outcome is not None:
                first, last, tokens = seen.get(node, [-1, -1, 0])
                ended[node] = (int(progress.outcome), first, last, now, tokens, progress.cached)
                del node_of[progress.slot]

    slots: dict[int, int] = {}
    while events or node_of:
        upcoming = engine.upcoming
        if events and (upcoming is None or events[0][0] <= upcoming):
            time, kind, node = events.pop(0)
            look(time)
            if kind == 0:
                slots[node] = engine.arrive(encoding.tokens(node), int(graph.output_length[node]))
                node_of[slots[node]] = node
            elif node in slots and node_of.get(slots[node]) == node:
                engine.cancel(slots[node])
            look(time)
        else:
            assert upcoming is not None, "the engine is stuck"
            look(upcoming)
    assert engine.counters().waiting == 0
    while (upcoming := engine.upcoming) is not None:  # the pass of one that was canceled goes on to its end
        look(upcoming)
    assert engine.counters().used_blocks == 0
    assert engine.counters().running == engine.counters().waiting == 0
    return ended


@settings(max_examples=40)
@given(st.data(), graphs(), st.one_of(deployments, sglang_deployments))
def test_a_live_engine_serves_as_the_offline_one_does(
    data: st.DataObject, drawn: Graph, deployment: DeploymentSpec
) -> None:
    assume(takes_time(deployment))
    graph = arrivals(data.draw, drawn)
    deployment = dataclasses.replace(deployment, workers=1)
    instants = st.integers(0, 200).map(lambda n: n * 250_000 + 137)
    given_up = data.draw(st.lists(st.tuples(instants, st.integers(0, graph.node_count - 1)), max_size=3))
    load = LoadSpec(cancellations=tuple(given_up))
    offline = simulate(proven(graph), deployment, load)
    online = served(graph, deployment, load)
    reused = np.full(graph.node_count, -1)
    first = offline.admission_pool_ordinal == 0
    reused[offline.admission_node[first]] = offline.admission_reused[first]
    for node, (outcome, first_token, last_token, end, tokens, cached) in online.items():
        assert outcome == offline.request_state[node]
        assert tokens == offline.output_length[node]
        assert (first_token, last_token) == (offline.first_token_ns[node], offline.last_token_ns[node])
        assert cached == reused[node]
        assert end == offline.terminal_ns[node]
    assert len(online) == graph.node_count


def many(engine: LiveEngine, requests: int) -> list[tuple[int, int]]:
    """Let a stream of requests through, some canceled, prompts coming back after a while; (outcome, cached) of each."""
    random, seen, live = np.random.default_rng(7), list[tuple[int, int]](), list[int]()
    for number in range(requests):
        family = int(random.integers(0, 8)) + number // 40
        prompt = np.full(24 + int(random.integers(0, 3)) * 8, family, np.uint32)
        prompt[16:] += 100_000 * int(random.integers(0, 4))
        progress = engine.advance(number * 3_000_000)
        live.append(engine.arrive(prompt, int(random.integers(0, 6)), "ab"[number % 2]))
        for item in progress:
            if item.outcome is not None:
                live.remove(item.slot)
                seen.append((int(item.outcome), item.cached))
        if number % 11 == 0 and len(live) > 1:
            engine.cancel(live[0])
    seen += [(int(item.outcome), item.cached) for item in engine.advance(10**12) if item.outcome is not None]
    return seen


@pytest.mark.parametrize("backend", list(Backend))
def test_a_long_life_takes_no_more_memory(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = Timing(prefill_ns=600_000, decode_ns=700_000)
    worker = WorkerSpec(
        blocks=40, block_size=4, max_sequences=4, backend=backend, chunked_prefill_size=16, timing=timing
    )
    deployment = DeploymentSpec(1, worker, 1000)
    roomy = LiveEngine(deployment)
    wanted = many(roomy, 1200)
    assert {outcome for outcome, _ in wanted} == {RequestState.FINISHED, RequestState.CANCELED}
    assert sum(cached for _, cached in wanted if cached > 0) > 1000
    # Slots, block keys and prompts run short and are swept, moved and forgotten all the time; nothing shows outside.
    monkeypatch.setattr(live_engine, "SLOTS", 4)
    monkeypatch.setattr(live_keys, "TOKENS_BEFORE_FORGETTING", 200)
    tight = LiveEngine(deployment)
    assert many(tight, 1200) == wanted
    # Of 1,200 requests, what 160 cached tokens and a few requests at a time need.
    assert tight.slots <= 64
    assert len(tight._sim.keys) <= 128
    assert tight.chains.tokens <= 1000
    assert roomy.chains.tokens > 3000
