"""The catalogue of finding codes: for each its severity, reason, way out and an example.

`docs/findings.md` is generated from here. A code is added here before it is used; its name says what is wrong, with the
thing first (`edge-dangling`, `hash-count`), and never changes once released, since CI jobs of users filter on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Errors stop a replay; warnings are told and counted; notes say what a reader decided."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Kind:
    """What the catalogue says of one code."""

    code: str
    severity: Severity
    title: str
    because: str
    hint: str
    example: str


def _kinds(section: str, *kinds: Kind) -> tuple[str, tuple[Kind, ...]]:
    return section, kinds


# Sections: reading (files and bytes), format (rows and fields), graph (obligations on the graph), deployment
# (configuration). Each room adds to its own.
READING = _kinds("Reading files")
FORMAT = _kinds("Rows and fields")
GRAPH = _kinds(
    "The dependency graph",
    Kind(
        "graph-empty",
        Severity.ERROR,
        "no requests",
        "A corpus without a request has no play to prove or to replay.",
        "Check the paths and the format; `playproof validate` prints which files were read.",
        "a header line and nothing after it",
    ),
    Kind(
        "block-size",
        Severity.ERROR,
        "block size out of bounds",
        "A hash id stands for that many tokens; without a positive number of them prompts have no blocks.",
        "Give the number of tokens that one hash id of this corpus stands for.",
        '`"block_size": 0`',
    ),
    Kind(
        "id-empty",
        Severity.ERROR,
        "empty id",
        "Edges, reports and findings name requests, plays, sessions and models by their ids.",
        "Give every request a non-empty request_id, play_id, session_id and model.",
        '`"request_id": ""`',
    ),
    Kind(
        "id-duplicate",
        Severity.ERROR,
        "request id used twice",
        "An edge to that id could mean either request, and a report could not tell them apart.",
        "Rename one of the two; when two files were joined, prefix their ids with the file's name.",
        'two rows with `"request_id": "a:1"`',
    ),
    Kind(
        "edge-dangling",
        Severity.ERROR,
        "dependency on a request that does not exist",
        "The edge can never fire, so its request and all that follow would wait for ever.",
        "Correct the id, add the missing request, or drop the dependency.",
        '`"dependencies": [{"request_id": "gone", …}]`',
    ),
    Kind(
        "edge-self",
        Severity.ERROR,
        "request depends on itself",
        "It would wait for its own dispatch or completion, for ever.",
        "Drop the dependency, or name the request that was meant.",
        'request `a` with `"dependencies": [{"request_id": "a", …}]`',
    ),
    Kind(
        "edge-cross-play",
        Severity.ERROR,
        "dependency on a request of another play",
        "Plays start, fail and recycle on their own; an edge between two would tie one to a play that may never run.",
        "Put both requests into one play, or turn the dependency into a floor (not_before_ms).",
        "request `p1:3` of play `p1` depends on `p0:7` of play `p0`",
    ),
    Kind(
        "edge-duplicate",
        Severity.ERROR,
        "the same dependency twice",
        "Two edges with equal source, trigger and relation say one thing twice; with different delays they contradict.",
        "Keep one of them (the longer delay is the one that would have counted).",
        "two `sequence` dependencies of `b` on `a`",
    ),
    Kind(
        "edge-pair",
        Severity.ERROR,
        "illegal pair of relation and trigger",
        "Only a spawn may fire at its source's dispatch; a sequence, a join or a barrier waits for a completion.",
        'Use `"trigger": "completion"`, or `"relation": "spawn"` when the child may start while its parent runs.',
        '`"relation": "join", "trigger": "dispatch"`',
    ),
    Kind(
        "time-not-finite",
        Severity.ERROR,
        "time that is not a finite number",
        "An infinite or undefined time has no place on the clock.",
        "Give the time in milliseconds as an ordinary number, or leave an optional one out.",
        '`"delay_ms": Infinity`',
    ),
    Kind(
        "time-negative",
        Severity.ERROR,
        "negative time",
        "A floor, a delay or a service time below zero would start a request before its cause.",
        "Use 0 for none; if clocks of two machines were mixed, align them before writing the trace.",
        '`"not_before_ms": -5.0`',
    ),
    Kind(
        "time-beyond-horizon",
        Severity.ERROR,
        "time beyond the clock",
        "The clock counts whole nanoseconds and ends after about 146 years.",
        "Times are in milliseconds; a value in nanoseconds or an absolute date is the usual mistake.",
        '`"not_before_ms": 1.7e18`',
    ),
    Kind(
        "length-out-of-bounds",
        Severity.ERROR,
        "token count out of bounds",
        "A prompt has at least one token, an output none or more, and both stay below 2**31.",
        "Correct the length; a request without a prompt is not a request.",
        '`"input_length": 0`',
    ),
    Kind(
        "hash-count",
        Severity.ERROR,
        "wrong number of hash ids",
        "Prefix reuse is counted block by block, so each block of the prompt needs its id, the partial one too.",
        "Give exactly ceil(input_length / block_size) ids, or correct block_size in the header.",
        "input_length 100, block_size 16 and 6 hash ids (wanted 7)",
    ),
    Kind(
        "ordinal-missing",
        Severity.ERROR,
        "some plays have an ordinal and some have none",
        "The order of plays is by ordinal or by play id; a mixture has no order.",
        "Give source_play_ordinal to every play or to none.",
        "play `a` with ordinal 0, play `b` without",
    ),
    Kind(
        "ordinal-gap",
        Severity.ERROR,
        "ordinals that are not 0, 1, 2, …",
        "A lane takes plays by ordinal; a number used twice or left out leaves it undefined which one is next.",
        "Number the plays from 0 without gaps, each number once.",
        "three plays with the ordinals 0, 1 and 3",
    ),
    Kind(
        "cycle",
        Severity.ERROR,
        "dependencies in a circle",
        "Each request of the circle waits for the one before it, so none of them can ever start.",
        "Drop the edge that points back in time; the finding names every edge of the shortest circle.",
        "`a` waits for `b`, `b` for `c`, and `c` for `a`",
    ),
    Kind(
        "play-without-root",
        Severity.ERROR,
        "play without a first request",
        "A play starts with its requests that depend on nothing; this one has none, so it never starts.",
        "Remove the dependencies of the request that starts the play.",
        "two requests that depend on each other, and nothing else",
    ),
    Kind(
        "node-unreachable",
        Severity.ERROR,
        "request that no root leads to",
        "It is never released, its play never completes, and the lane that runs it is never free again.",
        "Connect it to the play's first request, or remove the circle it waits for.",
        "a request behind a circle of dependencies",
    ),
    Kind(
        "join-unsatisfiable",
        Severity.ERROR,
        "play that cannot complete in time",
        "Even with instant service the floors and delays named here add up to more than the clock holds.",
        "Shorten the delays or floors named; together they are at fault, and without any one of them they would fit.",
        "three delays of 60 years, one after the other",
    ),
    Kind(
        "failure-not-contained",
        Severity.ERROR,
        "failure that is not contained",
        "After a failed request nothing that needs its completion may run, and nothing may be left waiting.",
        "Look at the findings on the play's edges first: a circle or a dangling edge leaves requests waiting.",
        "a play in which a request still waits after the failure has settled",
    ),
    Kind(
        "proof-unknown",
        Severity.ERROR,
        "the prover gave up",
        "What is not proven does not replay; the prover reached its limit of work before an answer.",
        "Split the play into smaller ones; if it is not unusual, report it to us: the limit is ours.",
        "one play of a million requests, every one joined with every other",
    ),
)
DEPLOYMENT = _kinds(
    "Configuration and deployment",
    Kind(
        code="config-unreadable",
        severity=Severity.ERROR,
        title="The configuration is not one YAML mapping",
        because="nothing in it can be trusted before it parses",
        hint="write one YAML mapping with `engine` and `traffic`, in UTF-8; look at the indentation of the named line",
        example="engine: {workers: {aggregated: [",
    ),
    Kind(
        code="config-duplicate-key",
        severity=Severity.ERROR,
        title="A key stands twice in one mapping",
        because="YAML readers keep one of the two values without a word, so a replay could run with the other one",
        hint="keep one of them",
        example="scheduler: {max_sequences: 8, max_sequences: 256}",
    ),
    Kind(
        code="config-unknown-key",
        severity=Severity.ERROR,
        title="A key that no configuration has",
        because="a misspelt key that is passed over changes the result in silence",
        hint="use the name suggested, or remove the key",
        example="engine.workers.aggregated.scheduler.max_sequence: 8",
    ),
    Kind(
        code="config-missing",
        severity=Severity.ERROR,
        title="A required key is absent",
        because="no default would be right for every deployment, and a wrong one would look like a result",
        hint="add the key",
        example="kv_cache without capacity",
    ),
    Kind(
        code="config-type",
        severity=Severity.ERROR,
        title="A value of the wrong type",
        because='values are taken as written, never converted: `true` is not 1 and `"8"` is not 8',
        hint="write the value in the wanted type",
        example="parallelism: {replicas: true}",
    ),
    Kind(
        code="config-value",
        severity=Severity.ERROR,
        title="A value out of its range",
        because="the simulated deployment has no meaning there",
        hint="choose a value within the range",
        example="load: {speedup: 0}",
    ),
    Kind(
        code="config-combination",
        severity=Severity.ERROR,
        title="Two settings that exclude one another",
        because="one of them would have no effect",
        hint="remove the one that you do not mean",
        example="timing: {type: polynomial, decode_ms: 12}",
    ),
    Kind(
        code="config-unsupported",
        severity=Severity.ERROR,
        title="A setting that this version does not simulate",
        because="passing over it would give the figures of another deployment",
        hint="remove the setting, or use a version that supports it",
        example="kv_cache: {g3_offload: {…}}",
    ),
    Kind(
        code="clock-horizon",
        severity=Severity.ERROR,
        title="The replay could outlast the clock",
        because="the clock counts nanoseconds in 64 bits and ends after about 146 years",
        hint="look for a wrong unit in the trace's times, or raise load.speedup or lower the timing model's durations",
        example="a delay of 1e13 ms replayed with speedup 0.001",
    ),
    Kind(
        code="request-never-fits",
        severity=Severity.WARNING,
        title="A request that this deployment must reject",
        because="its prompt needs the whole context or more blocks than the pool has; its play fails there",
        hint="raise engine.context_length or kv_cache.capacity.blocks, or leave the play out",
        example="a prompt of 900,000 tokens on a pool of 4,096 blocks of 64",
    ),
)

SECTIONS: tuple[tuple[str, tuple[Kind, ...]], ...] = (READING, FORMAT, GRAPH, DEPLOYMENT)
CATALOGUE: dict[str, Kind] = {kind.code: kind for _, kinds in SECTIONS for kind in kinds}
