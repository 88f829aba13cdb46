"""What a run knows of a request, and which later prompt holds its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from playproof_spec.graph import Graph, Trigger


@dataclass
class Request:
    """What a run knows of a node and of the request that it sends."""

    index: int
    state: str = "blocked"
    ready_ns: int = 0
    waiting_for: int = 0
    dispatched_ns: int = -1
    first_token_ns: int = -1
    second_token_ns: int = -1
    last_token_ns: int = -1
    terminal_ns: int = -1
    tokens_ns: list[int] = field(default_factory=list)
    computed: int = 0
    prompt_computed_now: int = 0
    table: list[int] = field(default_factory=list)
    filled: int = 0
    worker: int = -1
    admissions: list[tuple[int, int]] = field(default_factory=list)
    decode_admissions: list[tuple[int, int]] = field(default_factory=list)
    # By number of admission: tokens restored from the host.
    host_reused: dict[int, int] = field(default_factory=dict)
    decode_host_reused: dict[int, int] = field(default_factory=dict)
    handoff: tuple[int, ...] = (-1, -1, -1, -1, -1)  # its decode worker and its steps, under the run controls

    @property
    def history(self) -> list[tuple[int, int, int]]:
        """When it was admitted, with how many tokens reused, and how many of them restored from the host."""
        return [(at, reused, self.host_reused.get(i, 0)) for i, (at, reused) in enumerate(self.admissions)]


@dataclass(frozen=True)
class Admission:
    """That a worker admitted a request: when, and with how many tokens found, some of them restored from the host."""

    node: int
    at_ns: int
    reused: int
    host_reused: int
    ordinal: int  # how often the request was admitted before in that role
    decode: bool


def holder(graph: Graph, node: int) -> int | None:
    """The first request that waits for the completion of `node` and whose prompt holds its own and its answer."""
    name, length = graph.request_ids[node], int(graph.input_length[node])
    whole = length // graph.block_size
    for other in sorted(range(graph.node_count), key=lambda each: (graph.node_file[each], graph.node_line[each])):
        into = range(int(graph.edge_offsets[other]), int(graph.edge_offsets[other + 1]))
        edges = [graph.edge(number, other) for number in into]
        follows = any(edge.source == name and edge.trigger is Trigger.COMPLETION for edge in edges)
        longer = int(graph.input_length[other]) >= length + int(graph.output_length[node])
        if follows and longer and (graph.hash_ids(other)[:whole] == graph.hash_ids(node)[:whole]).all():
            return other
    return None
