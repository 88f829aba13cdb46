"""A picture of one play, in the languages that documents and tools draw from: Mermaid and DOT."""

from __future__ import annotations

from collections.abc import Callable

from playproof_spec.graph import Graph, Play, Relation, Trigger

__all__ = ["MAX_REQUESTS", "dot", "find_play", "mermaid"]

# A picture of more boxes than this tells nobody anything, and drawing tools give up on it.
MAX_REQUESTS = 400

_MERMAID_ARROWS = {
    Relation.SEQUENCE: "-->",
    Relation.SPAWN: "==>",
    Relation.JOIN: "-.->",
    Relation.REPLAY_BARRIER: "-.-",
}
_DOT_STYLES = {
    Relation.SEQUENCE: "solid",
    Relation.SPAWN: "bold",
    Relation.JOIN: "dashed",
    Relation.REPLAY_BARRIER: "dotted",
}


def find_play(graph: Graph, name: str | None) -> Play | None:
    """Return the play of that name; without a name the one with the most sessions, then requests, then the first."""
    if name is not None:
        return next((play for play in graph.plays if play.play_id == name), None)

    def key(play: Play) -> tuple[int, int]:
        return len({int(graph.node_session[node]) for node in play.nodes}), len(play.nodes)

    fitting = [play for play in graph.plays if len(play.nodes) <= MAX_REQUESTS]
    return max(fitting or graph.plays, key=key)


def mermaid(graph: Graph, play: Play) -> str:
    """Return a Mermaid flowchart: a box a request, a frame a session.

    Thick arrows spawn, dashed ones join; the label says when an edge fires at its source's dispatch.
    """
    lines = ["flowchart TD"]
    for number, (session, nodes) in enumerate(_sessions(graph, play)):
        lines.append(f'    subgraph s{number}["{_html(session)}"]')
        lines += [f'        n{node}["{_label(graph, node, _html, "<br/>")}"]' for node in nodes]
        lines.append("    end")

    def arrow(source: int, target: int, relation: Relation, trigger: Trigger, delay_ms: float) -> str:
        line = _MERMAID_ARROWS[relation]
        mark = " at dispatch" if trigger == Trigger.DISPATCH else ""
        return f'    n{source} {line}|"{relation.name.lower()}{mark} +{_delay(delay_ms)}"| n{target}'

    return "\n".join([*lines, *_arrows(graph, play, arrow)])


def dot(graph: Graph, play: Play) -> str:
    """Return a DOT digraph: a box a request, a cluster a session.

    Bold edges spawn, dashed ones join; a dot at the tail is an edge that fires at its source's dispatch.
    """
    lines = ["digraph play {", "    rankdir=TB;", "    node [shape=box];"]
    for number, (session, nodes) in enumerate(_sessions(graph, play)):
        lines += [f"    subgraph cluster_{number} {{", f'        label="{_escaped(session)}";']
        lines += [f'        n{node} [label="{_label(graph, node, _escaped, chr(92) + "n")}"];' for node in nodes]
        lines.append("    }")

    def arrow(source: int, target: int, relation: Relation, trigger: Trigger, delay_ms: float) -> str:
        tail = ", arrowtail=dot, dir=both" if trigger == Trigger.DISPATCH else ""
        label = f"{relation.name.lower()} +{_delay(delay_ms)}"
        return f'    n{source} -> n{target} [style={_DOT_STYLES[relation]}, label="{label}"{tail}];'

    return "\n".join([*lines, *_arrows(graph, play, arrow), "}"])


def _sessions(graph: Graph, play: Play) -> list[tuple[str, list[int]]]:
    sessions: dict[str, list[int]] = {}
    for node in play.nodes.tolist():
        sessions.setdefault(graph.sessions[graph.node_session[node]], []).append(node)
    return list(sessions.items())


def _label(graph: Graph, node: int, escaped: Callable[[str], str], line_break: str) -> str:
    tokens = f"{graph.input_length[node]:,} → {graph.output_length[node]:,}"
    start = f"{graph.not_before_ms[node] / 1000:,.1f} s"
    return escaped(graph.request_ids[node]) + line_break + f"{tokens} at {start}"


def _arrows(graph: Graph, play: Play, arrow: Callable[[int, int, Relation, Trigger, float], str]) -> list[str]:
    return [
        arrow(
            int(graph.edge_source[edge]),
            node,
            Relation(int(graph.edge_relation[edge])),
            Trigger(int(graph.edge_trigger[edge])),
            float(graph.edge_delay_ms[edge]),
        )
        for node in play.nodes.tolist()
        for edge in range(int(graph.edge_offsets[node]), int(graph.edge_offsets[node + 1]))
    ]


def _delay(delay_ms: float) -> str:
    return f"{delay_ms / 1000:,.1f} s" if delay_ms >= 1000 else f"{delay_ms:g} ms"


def _html(text: str) -> str:
    """Escape what ends a Mermaid label; ids may come from a foreign file."""
    return "".join(c if c.isalnum() or c in " .:_-/" else f"#{ord(c)};" for c in text)


def _escaped(text: str) -> str:
    """Escape what ends a DOT string."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("\\", "\\\\").replace('"', '\\"')
