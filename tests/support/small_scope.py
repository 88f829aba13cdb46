"""Every small corpus on every small deployment, with a client that gives up at every instant: ``make exhaustive``.

    python tests/support/small_scope.py [--nodes 3] [--jobs 2] [--part K/N]

All graphs of up to three nodes are enumerated, in each way that their edges, plays, requests and arrivals can be
(below), and replayed on vLLM and SGLang workers, aggregated and prefill/decode, one or two of a role, with pools that
hold little more than one request; up to two nodes also with passes that are scheduled ahead. Each run is made once as
it is, and once more for every instant at which something happens in it, up to two nodes also for an instant between
every two such: at each of them the client of each request in flight gives up.

Every run is compared with the reference model (`playproof_reference`), which shares no code with the kernel, and its
lines are given to the checker (`playproof.checking`), which reads the rules in a third way; with three nodes, of the
runs in which somebody gives up, every third is. Of each run that nobody gives up in the checker has the report, too,
and the run is made pass by pass as well. A difference is printed with all that is needed to see it again, and the exit
code is 1.

What is enumerated
------------------
edges
    Between each two nodes none, one at dispatch, or one at completion; up to two nodes also with a delay.
plays
    All nodes in one; where they do not hang together also each part in its own, without lanes and with one lane.
requests
    ``short`` (one block, two tokens), ``long`` (a shared prefix of one block and more of its own, five tokens: two of
    them press a pool), ``over`` (its output outgrows the smaller pool).
arrivals
    Roots all at once, and in every order, some passes apart; up to two nodes every node has a floor of its own.
pools
    Four and six blocks of four tokens a worker; a ``long`` holds three at its end, an ``over`` five. Two workers have
    four with three nodes.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
from ledgers import columns, naively_observed, observed
from playproof_kernel import simulate
from playproof_reference.replay import replay as naive_replay
from playproof_spec.certificate import ProvenGraph, prove
from playproof_spec.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_spec.graph import Graph
from playproof_spec.ledger import Ledger
from playproof_spec.sketch import sketch
from specs import deployment_of, load_of

import playproof as pp
from playproof.checking import check_lines
from playproof.deployment import AnyDeployment

BLOCK = 4
PASS_MS = 1.0
TIMING = Timing(TimingKind.FIXED, prefill_ns=2_000_000, decode_ns=1_000_000)
# Input, output, and hash ids of the node with this number.
REQUESTS: dict[str, Callable[[int], tuple[int, int, list[int]]]] = {
    "short": lambda node: (4, 2, [1]),
    "long": lambda node: (7, 5, [1, 10 + node]),
    "over": lambda node: (8, 12, [20 + node, 30 + node]),
}
Edge = tuple[str, float] | None
EDGES: tuple[Edge, ...] = (None, ("dispatch", 0.0), ("completion", 0.0))
# Of two nodes there is time for more.
MORE_EDGES: tuple[Edge, ...] = (*EDGES, ("dispatch", 1.5), ("completion", 1.5))
# Of the runs of three nodes in which somebody gives up; to check each would take longer than to make it twice.
CHECKED_EVERY = 3
RELATIONS = {"dispatch": "spawn", "completion": "sequence"}


@dataclass(frozen=True)
class Case:
    """A corpus and how it is offered, in words that make it again."""

    kinds: tuple[str, ...]
    edges: tuple[tuple[Edge, ...], ...]
    floors: tuple[float, ...]
    plays: tuple[int, ...]
    lanes: int | None

    def graph(self) -> Graph:
        """Return the corpus."""
        rows = []
        for node, kind in enumerate(self.kinds):
            prompt, output, ids = REQUESTS[kind](node)
            # Blocks are shared within a play only as a recording would have it: by their content.
            row: dict[str, Any] = {
                "request_id": f"r{node}",
                "play_id": f"p{self.plays[node]}",
                "input_length": prompt,
                "output_length": output,
                "hash_ids": ids,
                "not_before_ms": self.floors[node],
            }
            row["dependencies"] = [
                {"request_id": f"r{source}", "relation": RELATIONS[edge[0]], "trigger": edge[0], "delay_ms": edge[1]}
                for source, edge in enumerate(self.edges[node])
                if edge is not None
            ]
            rows.append(row)
        return sketch(rows, block_size=BLOCK)


def parts_of(edges: tuple[tuple[Edge, ...], ...]) -> tuple[int, ...]:
    """Return for each node the number of the part of the graph that it hangs in."""
    part = list(range(len(edges)))
    for node, into in enumerate(edges):
        for source, edge in enumerate(into):
            if edge is not None:
                old, new = part[node], part[source]
                part = [new if each == old else each for each in part]
    names: dict[int, int] = {}
    return tuple(names.setdefault(each, len(names)) for each in part)


def floors_of(edges: tuple[tuple[Edge, ...], ...]) -> Iterator[tuple[float, ...]]:
    """Return arrivals: all at once, and in every order."""
    count = len(edges)
    yield (0.0,) * count
    movable = [node for node in range(count) if count <= 2 or not any(edges[node])]
    if len(movable) < 2:
        return
    for order in itertools.permutations(range(len(movable))):
        floors = [0.0] * count
        for node, place in zip(movable, order, strict=True):
            floors[node] = 2.5 * PASS_MS * place
        yield tuple(floors)


def cases(most: int) -> Iterator[Case]:
    """Return every case of up to `most` nodes."""
    for count in range(1, most + 1):
        pairs = [(source, node) for node in range(count) for source in range(node)]
        for kinds in itertools.product(EDGES if count > 2 else MORE_EDGES, repeat=len(pairs)):
            chosen = dict(zip(pairs, kinds, strict=True))
            edges = tuple(tuple(chosen[source, node] for source in range(node)) for node in range(count))
            parts = parts_of(edges)
            plays: list[tuple[tuple[int, ...], int | None]] = [((0,) * count, None)]
            if max(parts) > 0:
                plays += [(parts, None), (parts, 1)]
            for requests in itertools.product(REQUESTS, repeat=count):
                for floors in floors_of(edges):
                    for play, lanes in plays:
                        yield Case(requests, edges, floors, play, lanes)


def deployments(nodes: int) -> Iterator[tuple[str, DeploymentSpec]]:
    """Return every deployment for graphs of so many nodes, with its name."""
    shapes = itertools.product(Backend, ("", "async", "split"), (1, 2), (4, 6))
    for backend, shape, workers, blocks in shapes:
        if nodes > 2 and (shape == "async" or (workers > 1 and blocks > 4)):
            continue
        split = shape == "split"
        worker = WorkerSpec(
            backend=backend,
            blocks=blocks,
            block_size=BLOCK,
            max_batched_tokens=8,
            max_sequences=2,
            timing=TIMING,
            chunked_prefill_size=8,
            ahead=shape == "async",
        )
        decode = DecodeSpec(workers, worker, TransferSpec(bytes_per_token=1, bytes_per_second=8_000.0))
        name = f"{workers} of {backend.name.lower()} {shape} with {blocks}"
        yield name, DeploymentSpec(workers, worker, context_length=64, decode=decode if split else None)


@cache
def public(deployment: DeploymentSpec, lanes: int | None) -> tuple[AnyDeployment, pp.Load]:
    """Return a deployment and a load as those who replay give them, and as the checker reads them."""
    return deployment_of(deployment), load_of(LoadSpec(lanes=lanes))


def instants(ledger: Ledger, between: bool) -> list[int]:
    """Return when something happens in a run, and perhaps an instant between every two such."""
    columns_of_time = (
        *(ledger.dispatched_ns, ledger.first_token_ns, ledger.second_token_ns, ledger.last_token_ns),
        *(ledger.terminal_ns, ledger.admission_at_ns, ledger.source_held_ns, ledger.destination_reserved_ns),
        *(ledger.destination_activated_ns, ledger.source_released_ns),
    )
    known = sorted({int(value) for column in columns_of_time for value in column if value >= 0})
    if between:
        known += [(first + second) // 2 for first, second in itertools.pairwise(known)]
    return sorted(set(known))


class Tally:
    """Makes the runs of cases and counts them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.differences: list[str] = []

    def case(self, case: Case) -> None:
        """Make every run of one case."""
        graph = case.graph()
        proven = prove(graph)
        self.counts["graphs"] += 1
        for name, deployment in deployments(graph.node_count):
            load = LoadSpec(lanes=case.lanes)
            ledger = self._run(case, name, proven, deployment, load)
            if ledger is None:
                continue
            single = simulate(proven, deployment, replace(load, macro_steps=False))
            self.counts["runs"] += 1
            if columns(single) != columns(ledger):
                self._differs(case, name, load, "macro-steps")
            for at in instants(ledger, between=graph.node_count < 3):
                for node in range(graph.node_count):
                    if 0 <= ledger.dispatched_ns[node] <= at <= ledger.terminal_ns[node]:
                        self.counts["given up"] += 1
                        self._run(case, name, proven, deployment, replace(load, cancellations=((at, node),)))

    def _run(
        self, case: Case, name: str, proven: ProvenGraph, deployment: DeploymentSpec, load: LoadSpec
    ) -> Ledger | None:
        self.counts["runs"] += 1
        try:
            ledger = simulate(proven, deployment, load)
        except Exception as error:
            self._differs(case, name, load, f"{type(error).__name__}: {error}")
            return None
        seen = observed(ledger)
        self.counts["preempted"] += bool(sum(seen["preemptions"]))
        for state in set(seen["state"]):
            self.counts[f"a request {state}"] += 1
        expected = naively_observed(naive_replay(proven.graph, deployment, load))
        if seen != expected:
            fields = [field for field in seen if seen[field] != expected[field]]
            self._differs(case, name, load, f"differs from the reference model in {', '.join(fields)}")
        if load.cancellations and proven.graph.node_count > 2 and self.counts["given up"] % CHECKED_EVERY:
            return ledger
        for finding in self._check(proven, ledger, deployment, load):
            self._differs(case, name, load, f"the checker says: {finding}")
        return ledger

    def _check(self, proven: ProvenGraph, ledger: Ledger, deployment: DeploymentSpec, load: LoadSpec) -> list[str]:
        """Return what the checker finds in a run."""
        deployed, offered = public(deployment, load.lanes)
        report = pp.Report(proven, ledger, deployed, offered)
        given_up = bool(load.cancellations)
        # To work out all figures of a report takes longer than the run.
        document = None if given_up else msgspec.json.decode(report.to_json())
        self.counts["checked"] += 1
        verdict = check_lines(proven.graph, report.request_dicts(), document, deployed, offered, may_cancel=given_up)
        self.counts["facts checked"] += verdict.facts
        return [str(item) for item in verdict.findings.items]

    def _differs(self, case: Case, name: str, load: LoadSpec, what: str) -> None:
        self.counts["differences"] += 1
        self.differences.append(f"{what}: {case} on {name} with {load}")


def _count(work: tuple[int, int, int]) -> tuple[Counter[str], list[str]]:
    most, part, parts = work
    tally = Tally()
    for case in itertools.islice(cases(most), part, None, parts):
        tally.case(case)
    return tally.counts, tally.differences


def main() -> int:
    """Make all runs, print what was counted, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 2, 3), help="the most nodes of a graph")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th case from the K-th on")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    began = time.monotonic()
    Tally().case(next(cases(1)))  # whoever compiles, compiles once
    # Small portions, so that the processes end together and progress shows.
    portions = 16 * arguments.jobs if arguments.nodes > 2 else arguments.jobs
    work = [(arguments.nodes, part + parts * portion, parts * portions) for portion in range(portions)]
    counts: Counter[str] = Counter()
    differences: list[str] = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for done, (counted, found) in enumerate(pool.imap_unordered(_count, work), 1):
            counts += counted
            differences += found
            if sys.stderr.isatty():
                print(f"\r{done} of {portions}: {counts['runs']:,} runs", end="", file=sys.stderr)
    for name, count in sorted(counts.items()):
        print(f"{name:20} {count:>12,}")
    print(f"{'seconds':20} {time.monotonic() - began:>12,.0f}")
    for difference in sorted(differences)[:20]:
        print(difference)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
