"""The machines for people: tables as text, diagrams as Mermaid, and the pages that are generated from the law.

`python -m playproof.docs` writes what :func:`spec_readme` and :func:`findings_page` return; tests compare.
"""

from __future__ import annotations

from enum import IntEnum

from playproof_spec.catalogue import SECTIONS, Severity
from playproof_spec.machines import GUARDS, MACHINES, Machine

__all__ = ["findings_page", "mermaid", "spec_readme", "table_text"]


def _name(member: IntEnum) -> str:
    return member.name.lower()


def table_text(machine: Machine) -> str:
    """Return a machine's table as plain text, one entry a line: from, event, to, guard.

    Examples
    --------
    >>> from playproof_spec.machines import LANE
    >>> print(table_text(LANE).splitlines()[0])
    lane: one seat for a play; when its play settles it takes the next one at the same instant.
    """
    rows = [("from", "event", "to", "guard")]
    for state in machine.states:
        mark = " (initial)" if state == machine.initial else " (terminal)" if state in machine.terminal else ""
        entries = sorted(machine.table[state].items())
        if not entries:
            rows.append((_name(state) + mark, "", "", ""))
        for number, (event, rule) in enumerate(entries):
            rows.append(("" if number else _name(state) + mark, _name(event), _name(rule.to), rule.guard))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    about = machine.about[0].lower() + machine.about[1:]
    return "\n".join([f"{machine.name}: {about}", "", *lines])


def mermaid(machine: Machine) -> str:
    """Return a machine as a Mermaid state diagram; a guard stands in brackets behind its event.

    Examples
    --------
    >>> from playproof_spec.machines import LANE
    >>> print(mermaid(LANE).splitlines()[2])
        idle --> occupied: admit
    """
    lines = ["stateDiagram-v2", f"    [*] --> {_name(machine.initial)}"]
    for state in machine.states:
        for event, rule in sorted(machine.table[state].items()):
            guard = f" [{rule.guard}]" if rule.guard else ""
            lines.append(f"    {_name(state)} --> {_name(rule.to)}: {_name(event)}{guard}")
        if state in machine.terminal:
            lines.append(f"    {_name(state)} --> [*]")
    return "\n".join(lines)


_ABOUT = """\
# spec: the law

`playproof_spec` says what may happen, and proves it of a corpus before anything runs. It imports nothing else of this
project; the readers (`lowering/`) build its graph, the replayer (`kernel/`) executes its tables, the executable
specification (`reference/`) says the rules of a replay a second time, the face (`playproof/`) shows findings. This page
is generated (`python -m playproof.docs`), the diagrams from the tables.

| module | owns |
|---|---|
| `machines` | every lifecycle as a table; nothing else changes a state |
| `graph` | the corpus as columns: plays, nodes, typed edges, hash ids in runs |
| `sketch` | graphs from Python literals |
| `findings`, `catalogue` | what can be wrong, where, why it matters, and the way out |
| `shape`, `topology` | obligations G1 to G3 |
| `reduction` | plays without short cuts, chains as one node, distinct shapes |
| `proofs` | obligations G4 and G5; the only module that imports z3 |
| `recorded` | obligation G6: recorded times against recorded edges |
| `capacity` | obligation G7: what a deployment's memory holds of a load |
| `clock` | whether a replay stays on the clock |
| `models` | the machines as transition systems: what events do, what guards mean, what must hold and be possible |
| `machine_proofs` | obligations M1 to M10, by induction over the models |
| `certificate` | `prove()`, the only door to a replay, and what it certifies |
| `digest` | the digests of a graph and of the tables |
| `deployment` | `DeploymentSpec`, `WorkerSpec`, `Timing`, `LoadSpec`: what is simulated, in tokens and nanoseconds |
| `ledger` | everything that a replay observed, whoever replayed it |
| `diagrams` | this page |
| `units` | milliseconds outside, whole nanoseconds inside |

```python
from playproof_spec import prove, sketch

graph = sketch(
    [
        {"request_id": "plan"},
        {"request_id": "child", "dependencies": [{"request_id": "plan", "trigger": "dispatch", "relation": "spawn"}]},
        {"request_id": "answer", "dependencies": ["plan", {"request_id": "child", "relation": "join"}]},
    ]
)
for obligation in prove(graph).certificate.obligations:
    print(obligation.code, obligation.verdict, obligation.how)
```

## What is proven of the machines

Once, for all corpora; `playproof machines --prove` shows it. Each table is made a transition system (`models`): what
an event does beside changing the state, what each guard means, an invariant, and claims of two kinds, what may never
happen and what must be possible. z3 shows by induction over the moves that the invariant holds, that each entry can
happen, and that each claim stands. A guard that a model does not know restricts nothing where safety is argued, and is
taken to be false where progress is. `tests/unit/test_table_mutants.py` makes every single fault of every table,
thousands of them, and sees an obligation fail for all but eleven, which change nothing (docs/assurance.md).

- **M1** Each table is deterministic and total: one successor an entry, an absent pair is illegal, ends have empty rows.
- **M2** Every state can be reached, and from every state an end can be. (A block is a resource: its end is to be free.)
- **M3** In prefill/decode no request completes at its prefill or its handoff: every way to *completed* passes
  *decoding*, but for the named edge of a request that asks for no token, which passes *transferring*. Each step happens
  in its place, a live request may fail or be canceled at any time, and none is stuck.
- **M4** A play of any number of nodes keeps its books: each end counts its events, what was dispatched is in flight or
  has ended; after a failure nothing is released or dispatched; an ended play has nothing left; a completed one has
  completed all its nodes; a node can end in every way whatever its play does; no play is ever stuck, and none runs for
  ever, self-loops counted. No node starts before its edges fired and its time came. Each occupied lane has one open
  play and is freed by that play's end alone. Assumed: service ends, time passes, and an active play with nothing ready,
  in flight or failed has a blocked node whose edges have all fired (the acyclicity lemma, which G2 and G3 show of each
  graph).
- **M5** KV blocks are neither lost nor made; a block is free or idle exactly when nothing refers to it; only idle
  blocks are evicted, and only when fewer are free than are wanted.
- **M6** A block's identity stands for its namespace and its whole chain of tokens, and two play instances have two
  namespaces under snapshot, warmup and profile. Host memory has a block under its identity alone. So no cache hit, in
  device or host memory, crosses a recycled play. `playproof machines --prove` runs the kernel's own functions on terms
  instead of numbers, and M6 shows that they compute what the rule says; every run compares what it gave its instances.
- **M7** A request finishes only from a seat, is admitted only with room, is rejected or fails only when it cannot go
  on, may be canceled at any time, and holds nothing after its end but the source of a handoff until that is released.
- **M8** A block of host memory is evicted only when no load reads it, read only when its store has ended, and stored
  only with room; pins are counted.
- **M9** A profile opens only through the barrier, with all lanes prepared; no warmup phase before the primers have
  ended; a run whose preparation fails measures nothing.
- **M10** A transfer is done only after it was submitted and moved, and can be given up until then.

In runs, every event of the kernel is a move of these models: an interpreted monitor (`make watch`) evaluates the guard
of each event on the arrays (`playproof_kernel.checks.guards`), takes the move in the model, and compares the two after
every turn of the loop. The formulas that it evaluates are those that z3 was asked.

## What is proven of a graph

At load, before anything runs. Only `prove()` makes a `ProvenGraph`, and only that replays. It holds a sealed copy: its
arrays lie in memory that cannot be made writable.

- **G1** Nodes and edges are well-formed: ids, times, lengths, numbers of hash ids, ordinals, legal relations and
  triggers, and sources that exist, in the same play. Array checks.
- **G2** No circle of dependencies. A topological order is computed, then checked edge by edge; where there is none,
  networkx finds the knots, and the shortest circle of each is named edge by edge.
- **G3** Each play has a root, and roots lead to all its nodes.
- **G4** Each play has a run in which every node completes and every edge holds. z3 shows it of the structure for all
  finite times at once (each edge taking one unit of time: any delays are a multiple of that); the earliest run of the
  times given is then computed and checked against the end of the clock. Where they do not fit, z3's core names a least
  set of floors and edges to blame.
- **G5** A failure anywhere is contained: nothing that needs the completion of a failed node is dispatched, nothing
  waits for ever, and every node ends. z3 looks for a run that breaks it, over all service times and delays, and finds
  none.
- **G6** The recorded times satisfy the recorded edges: there are times within the format's resolution of those recorded
  at which every edge holds. A contradiction is a warning that names edges and milliseconds; a replay goes by the edges.
- **G7** With a deployment and a load (`playproof validate --config`): **(a)** every request can be served alone, its
  engine's reserve and the context included, so that nothing fails for want of memory; **(b)** what can be in flight at
  one time fits together, so that nothing is preempted or retracted. The heaviest antichain of each play's order of
  completions is found by a least flow, and antichain and flow prove each other. A smaller pool is told the size that
  would do. Nothing is claimed of (b) beside a host pool that workers share, whose stores keep blocks of ended
  requests, and of SGLang's own rules (`rules: sglang`).

**What the solver is asked of each graph, honestly.** G4 and G5 of an acyclic play follow from lemmas: for the tables as
they are, z3's answer on the structure of a graph that passed G2 and G3 is always the same, and the question asked of
each shape checks our reduction, our tables and the order rather than the graph. What a graph's own numbers decide are
G4's end of the clock (the earliest run of its floors and delays, sat or unsat), G6 (its records), and G7 (its lengths);
each has tests with both answers.

Short cuts are dropped and chains become one node first; the two lemmas that allow it are shown by z3 for G4 and G5
alike, and a property test compares verdicts. Plays of one shape are proven once. What is still too large for z3 (its
time is quadratic in a shape's size) is shown by induction: z3 proves the steps over one edge and to one node, of G4 and
of G5 each, and the order along which they are taken is checked edge by edge. z3 runs with a fixed seed and a bound on
its work, and an *unknown* never counts as proven.

## Guards

A guard restricts when an event may be raised; it never changes the successor. Each has a predicate on the arrays of a
run, `playproof_kernel.checks.guards.PREDICATES`.

"""


def spec_readme() -> str:
    """Return `spec/README.md`: what the room is, its obligations, and every machine as diagram and table."""
    guards = "\n".join(f"- `{name}`: {meaning}" for name, meaning in sorted(GUARDS.items()))
    parts = [_ABOUT + guards + "\n\n## Machines\n"]
    for machine in MACHINES:
        parts.append(
            f"### {machine.name}\n\n{machine.about}\n\n```mermaid\n{mermaid(machine)}\n```\n\n"
            f"```text\n{table_text(machine).split(chr(10), 2)[2]}\n```\n"
        )
    return "\n".join(parts)


_FINDINGS = """\
# Findings

What `playproof` can find wrong with a trace, a configuration or a deployment. An *error* stops a replay; a *warning* is
told and counted; a *note* says what a reader decided. A code never changes its meaning, so a CI job may filter on it.
This page is generated from the catalogue in `spec/playproof_spec/catalogue.py` (`python -m playproof.docs`).
"""


def findings_page() -> str:
    """Return `docs/findings.md`: every code of the catalogue with its reason, a way out and an example."""
    parts = [_FINDINGS]
    marks = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
    for title, kinds in SECTIONS:
        rows = "\n".join(f"| [`{kind.code}`](#{kind.code}) | {marks[kind.severity]} | {kind.title} |" for kind in kinds)
        parts.append(f"## {title}\n\n| code | severity | what |\n|---|---|---|\n{rows}\n")
        for kind in kinds:
            parts.append(
                f"### {kind.code}\n\n*{marks[kind.severity]}: {kind.title}.* {kind.because}\n\n"
                f"**Way out.** {kind.hint}\n\n**Example.** {kind.example}\n"
            )
    return "\n".join(parts)
