"""ATIF trajectories (Harbor's Agent Trajectory Interchange Format) into the graph.

A trajectory is a conversation, its agent steps are the calls. A step's time is when it was written, that is when its
call had ended; observations have no time, so a call that follows tools tells when it ended and not when it began.
Subagents are trajectories too, in the same document or in files beside it, and hang at the step whose observation
refers to them: the observation is what that step's tools returned, so the next call of the parent has seen the answer.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph, Relation, Source

from playproof_lowering.chains import BlockIds, tell_cut, too_many_blocks
from playproof_lowering.conversation import DEFAULT_BLOCK_SIZE, Conversation, divided, length_problems
from playproof_lowering.identity import namespace, without_collisions
from playproof_lowering.names import repeated_name
from playproof_lowering.provenance import read_corpus
from playproof_lowering.reader import Confidence, Head, Reader
from playproof_lowering.source import Reading, SourceFile
from playproof_lowering.turns import Corpus, after, circular, clock_went_back, recorded_ns, sequence
from playproof_lowering.wire import DecodeErrors, Problem, decoded, report

__all__ = ["READER", "read_atif"]

VERSIONS: Final = "ATIF-v1."
# Calls that one step may stand for; a step is one turn of an agent.
MAX_CALLS_OF_A_STEP: Final = 10_000
MAX_DEPTH_OF_SUBAGENTS: Final = 64
SOURCES: Final = ("agent", "user", "system")


class _Metrics(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Reference(msgspec.Struct):
    trajectory_id: str | None = None
    trajectory_path: str | None = None
    session_id: str | None = None


class _Result(msgspec.Struct):
    subagent_trajectory_ref: list[_Reference] | None = None


class _Observation(msgspec.Struct):
    results: list[_Result] = []


class _Step(msgspec.Struct):
    source: str
    timestamp: str | None = None
    model_name: str | None = None
    metrics: _Metrics | None = None
    observation: _Observation | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None


class _Agent(msgspec.Struct):
    model_name: str | None = None


class _Named(msgspec.Struct):
    trajectory_id: str | None = None


class _Document(msgspec.Struct):
    schema_version: str
    steps: list[_Step]
    agent: _Agent | None = None
    session_id: str | None = None
    trajectory_id: str | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list[msgspec.Raw] | None = None


_DOCUMENT = msgspec.json.Decoder(_Document)


@dataclass(slots=True, eq=False)
class _Trajectory:
    """One trajectory.

    Attributes
    ----------
    key : str
        What others hang it by: its session in the corpus.
    path : str
        Of its file, relative to the corpus.
    where, prefix : Where, str
        Its record, and its JSON path there.
    spawned : list of (int, _Reference, str)
        What it refers to: calls made by then, the reference, and its JSON path.
    embedded : dict of str
        Keys of the trajectories within it, by their id.
    clocked : bool
        Some step has a time.
    """

    key: str
    path: str
    where: Where
    prefix: str
    document: _Document
    talk: Conversation
    spawned: list[tuple[int, _Reference, str]] = field(default_factory=list)
    embedded: dict[str, str] = field(default_factory=dict)
    clocked: bool = False


def read_atif(
    files: Sequence[SourceFile],
    findings: Findings,
    facts: dict[str, object],
    *,
    block_size: int | None,
    on_bytes: Callable[[int], None] | None = None,
) -> Graph | None:
    """Read ATIF trajectories into one graph.

    Parameters
    ----------
    files : sequence of SourceFile
        Trajectories; subagents and continuations find theirs by path, or by session.
    findings : Findings
        Receives what is wrong, missing, or estimated.
    facts : dict
        Receives counts and the digest.
    block_size : int, optional
        Tokens a hash id stands for, 64 by default: trajectories have none.
    on_bytes : callable, optional
        Told the bytes as they are read.

    Returns
    -------
    Graph or None
        None when there is no call.
    """
    size = block_size or DEFAULT_BLOCK_SIZE
    lowering = _Lowering(findings, size)
    kept = without_collisions(files, findings)
    source = read_corpus(READER.name, size, kept, lowering.read, findings, facts, on_bytes)
    return lowering.finish(source, facts, Where(file=files[0].shown))


class _Lowering:
    """The state of reading one corpus."""

    def __init__(self, findings: Findings, block_size: int) -> None:
        self._findings = findings
        self._block_size = block_size
        self._ids = BlockIds()
        self._counts: Counter[str] = Counter()
        self._trajectories: dict[str, _Trajectory] = {}
        self._by_path: dict[str, str] = {}
        self._by_session: dict[str, list[str]] = {}

    # Reading ------------------------------------------------------------------------------------------------------

    def read(self, reading: Reading) -> None:
        """Read one file to its end."""
        for where, record in reading.placed():
            key = namespace(reading.file, where.line)
            if self._document(record, key, None, where, "", reading.file.relative) is not None:
                self._by_path.setdefault(reading.file.relative, key)

    def _document(
        self, data: bytes, key: str, owner: _Trajectory | None, where: Where, prefix: str, path: str, depth: int = 0
    ) -> _Trajectory | None:
        """Take a trajectory and those within it; return it when it is sound."""
        if depth > MAX_DEPTH_OF_SUBAGENTS:
            message = "subagents within subagents"
            problem = Problem("json-too-deep", "", message, f"{depth} levels", f"at most {MAX_DEPTH_OF_SUBAGENTS}")
            report(self._findings, [problem], where, prefix)
            return None
        document = decoded(_DOCUMENT, data, where, self._findings, prefix)
        twice = repeated_name(data) if document is not None and owner is None else None
        if document is None or twice is not None:
            report(self._findings, [] if twice is None else [twice], where)
            return None
        if not document.schema_version.startswith(VERSIONS):
            message, found = "this version is not read", document.schema_version
            problem = Problem("value-unknown", "schema_version", message, found, f"{VERSIONS}x")
            report(self._findings, [problem], where, prefix)
            return None
        talk = Conversation(key, self._ids, self._block_size, where.file)
        trajectory = _Trajectory(key, path, where, prefix, document, talk)
        self._trajectories[key] = trajectory
        self._counts["trajectories"] += 1
        if document.session_id:
            self._by_session.setdefault(document.session_id, []).append(key)
        self._calls(trajectory)
        self._embedded(trajectory, depth)
        # What is left of a document are its links.
        document.steps.clear()
        document.subagent_trajectories = None
        return trajectory

    def _embedded(self, owner: _Trajectory, depth: int) -> None:
        """Take the trajectories within another one."""
        for number, raw in enumerate(owner.document.subagent_trajectories or ()):
            place = f"{owner.prefix}.subagent_trajectories[{number}]".lstrip(".")
            named = _trajectory_id(raw)
            key = f"{owner.key}:{named or number}"
            if key in self._trajectories:
                message = "a trajectory beside it has this id too"
                problem = Problem("id-duplicate", "trajectory_id", message, named, "another id")
                report(self._findings, [problem], owner.where, place)
            elif (
                self._document(bytes(raw), key, owner, owner.where, place, owner.path, depth + 1) is not None and named
            ):
                owner.embedded[named] = key

    def _calls(self, trajectory: _Trajectory) -> None:
        """Make the calls of a trajectory, and note what its observations refer to."""
        steps = [
            (f"steps[{number}]", step)
            for number, step in enumerate(trajectory.document.steps)
            if not self._passed_over(trajectory, step, f"steps[{number}]")
        ]
        instants = [self._instant(trajectory, step, place) for place, step in steps]
        # A step without a time comes when the one before it did; one before all times, with the first of them.
        reached_ns = next((at_ns for at_ns in instants if at_ns is not None), 0)
        trajectory.clocked = any(at_ns is not None for at_ns in instants)
        asked_ns, went_back = -1, 0
        unused: list[str] = []
        untimed: list[str] = []
        for (place, step), told_ns in zip(steps, instants, strict=True):
            went_back += told_ns is not None and told_ns < reached_ns
            at_ns = reached_ns if told_ns is None else max(told_ns, reached_ns)
            if step.source == "agent" and step.llm_call_count != 0:
                timed = asked_ns >= 0 and told_ns is not None
                missing = self._agent_step(trajectory, step, place, (reached_ns, at_ns), timed)
                unused += missing
                untimed += [place] if not timed and not missing else []
            reached_ns = at_ns
            # Messages have their own time. When tools returned, and so when the next call began, no step tells.
            asks = step.source != "agent" and told_ns is not None and step.observation is None
            asked_ns = at_ns if asks else -1
            self._references(trajectory, step, place)
        self._tell(trajectory, unused, untimed, went_back)

    def _passed_over(self, trajectory: _Trajectory, step: _Step, place: str) -> bool:
        """Tell whether a step is none of this trajectory's own."""
        if step.source not in SOURCES:
            wanted = " or ".join(SOURCES)
            problem = Problem("value-unknown", f"{place}.source", "no such source", step.source, wanted)
            report(self._findings, [problem], trajectory.where, trajectory.prefix)
            return True
        self._counts["steps_copied"] += bool(step.is_copied_context)
        return bool(step.is_copied_context)

    def _instant(self, trajectory: _Trajectory, step: _Step, place: str) -> int | None:
        if step.timestamp is None:
            return None
        path = f"{trajectory.prefix}.{place}.timestamp".lstrip(".")
        return recorded_ns(step.timestamp, path, trajectory.where, self._findings)

    def _agent_step(
        self, trajectory: _Trajectory, step: _Step, place: str, span_ns: tuple[int, int], timed: bool
    ) -> list[str]:
        """Make the calls that an agent step stands for; return the JSON path of a length that it does not tell."""
        metrics = step.metrics or _Metrics()
        prompt, output, cached = metrics.prompt_tokens, metrics.completion_tokens, metrics.cached_tokens or 0
        if not prompt or output is None:
            self._counts["calls_without_usage"] += 1
            return [f"{place}.metrics.{'completion_tokens' if prompt else 'prompt_tokens'}"]
        calls = 1 if step.llm_call_count is None else step.llm_call_count
        problems = length_problems(
            {
                f"{place}.metrics.prompt_tokens": (prompt, 1),
                f"{place}.metrics.completion_tokens": (output, 0),
                f"{place}.metrics.cached_tokens": (cached, 0),
            }
        )
        most = max(min(MAX_CALLS_OF_A_STEP, prompt), 1)
        if not 1 <= calls <= most:
            path, message = f"{place}.llm_call_count", "out of range"
            problems.append(Problem("number-out-of-range", path, message, str(calls)[:60], f"0 … {most}"))
        if problems:
            report(self._findings, problems, trajectory.where, trajectory.prefix)
            return []
        if calls > 1:
            self._counts["steps_divided"] += 1
            self._counts["calls_divided"] += calls
        agent = trajectory.document.agent
        shares = zip(divided(prompt, calls), divided(cached, calls), divided(output, calls), strict=True)
        for input_length, found, output_length in shares:
            trajectory.talk.call(
                label=f"{trajectory.key}:{place}",
                model=step.model_name or (agent.model_name if agent is not None else None) or "",
                input_length=input_length,
                cached=found,
                output_length=output_length,
                start_ns=span_ns[0],
                end_ns=span_ns[1],
                line=trajectory.where.line,
                timed=timed and calls == 1,
                estimated=("request",) if calls > 1 else () if timed else ("start",),
            )
        self._counts["cached_tokens_recorded"] += cached
        return []

    def _references(self, trajectory: _Trajectory, step: _Step, place: str) -> None:
        for number, result in enumerate(step.observation.results if step.observation is not None else ()):
            for which, reference in enumerate(result.subagent_trajectory_ref or ()):
                path = f"{place}.observation.results[{number}].subagent_trajectory_ref[{which}]"
                trajectory.spawned.append((len(trajectory.talk.turns), reference, path))

    def _tell(self, trajectory: _Trajectory, unused: list[str], untimed: list[str], went_back: int) -> None:
        """Tell what a trajectory does not say, once each with its first place."""
        where, prefix = trajectory.where, trajectory.prefix
        if unused:
            message = f"{len(unused)} calls are left out, since their steps do not say how many tokens they had"
            at = _at(where, prefix, unused[0])
            self._findings.add(finding("call-without-usage", message, where=at, found="nothing", wanted="a number"))
        if untimed:
            self._counts["calls_without_times"] += len(untimed)
            name = "timestamp" if not trajectory.clocked else "observation"
            message = f"when {len(untimed)} calls began is not told: {_WHY_UNTIMED[name]}"
            at = _at(where, prefix, f"{untimed[0]}.{name}")
            self._findings.add(finding("times-missing", message, where=at, found=len(untimed)))
        if went_back:
            self._counts["clock_went_back"] += went_back
            self._findings.add(clock_went_back(where.file, where.line, went_back))

    # Lowering -----------------------------------------------------------------------------------------------------

    def finish(self, source: Source, facts: dict[str, object], where: Where) -> Graph | None:
        """Tie the trajectories into plays, and make the graph."""
        parents, places = self._parents()
        for key in sorted(circular(parents)):
            at = self._trajectories[key].where
            message = "the trajectory is its own ancestor"
            self._findings.add(
                finding("parent-conflict", message, where=at, found=parents[key], wanted="another trajectory")
            )
            del parents[key]
        corpus = Corpus(self._block_size)
        for play_id, members in self._plays(parents):
            self._give_clocks(members, parents, places)
            for trajectory in members:
                own = trajectory.talk.turns
                self._counts["overlaps_floored"] += sequence(own)
                if trajectory.key in parents:
                    self._tie(trajectory, self._trajectories[parents[trajectory.key]], places[trajectory.key])
            turns = [turn for trajectory in members for turn in trajectory.talk.turns]
            if turns:
                corpus.play(play_id, turns)
        if self._counts["steps_divided"]:
            message = f"{self._counts['steps_divided']} steps stand for several calls each"
            self._findings.add(finding("calls-divided", message, where=where, found=self._counts["calls_divided"]))
        facts["recorded_cached_tokens"] = self._counts["cached_tokens_recorded"]
        corpus.tell(facts, "atif_counts", self._counts)
        tell_cut(self._ids, where, self._findings)
        declared = self._ids.used + self._counts["requests"]
        if not corpus.holds_calls("no agent step is a call with token counts", where, self._findings):
            return None
        if too_many_blocks(declared, where, self._findings):
            return None
        return corpus.finish(source, facts, self._ids.used)

    def _parents(self) -> tuple[dict[str, str], dict[str, int]]:
        """Return by trajectory the one that it hangs at, and how many calls that one had made by then.

        A continuation hangs behind the last call of what it continues: its place is -1.
        """
        parents: dict[str, str] = {}
        places: dict[str, int] = {}
        missing: list[tuple[_Trajectory, str]] = []
        for key, trajectory in self._trajectories.items():
            wanted = [(made, self._child(trajectory, reference), path) for made, reference, path in trajectory.spawned]
            onward = trajectory.document.continued_trajectory_ref
            if onward:
                wanted.append((-1, self._beside(trajectory, onward), "continued_trajectory_ref"))
            for made, child, path in wanted:
                if child is None:
                    missing.append((trajectory, path))
                elif child in parents:
                    message = f"{parents[child]} refers to this trajectory too"
                    at = _at(trajectory.where, trajectory.prefix, path)
                    self._findings.add(finding("agent-link-conflict", message, where=at, found=child))
                else:
                    parents[child], places[child] = key, made
        if missing:
            self._counts["agents_unrecorded"] += len(missing)
            at = _at(missing[0][0].where, missing[0][0].prefix, missing[0][1])
            message = f"{len(missing)} of the trajectories referred to are not in the corpus"
            self._findings.add(finding("agent-unrecorded", message, where=at, found=len(missing)))
        return parents, places

    def _child(self, parent: _Trajectory, reference: _Reference) -> str | None:
        """Return the key of the trajectory that is meant: an embedded one by its id, a file by its path or session."""
        if reference.trajectory_id and reference.trajectory_id in parent.embedded:
            return parent.embedded[reference.trajectory_id]
        if reference.trajectory_path:
            found = self._beside(parent, reference.trajectory_path)
            if found is not None:
                return found
        sessions = [key for key in self._by_session.get(reference.session_id or "", ()) if key != parent.key]
        return sessions[0] if len(sessions) == 1 else None

    def _beside(self, trajectory: _Trajectory, path: str) -> str | None:
        """Return the key of the file at `path`, from the folder of the trajectory's own file."""
        folder = posixpath.dirname(trajectory.path)
        return self._by_path.get(posixpath.normpath(posixpath.join(folder, path)))

    def _tie(self, child: _Trajectory, parent: _Trajectory, made: int) -> None:
        """Hang a trajectory at the call that ran it, and let the next call join it."""
        if not child.talk.turns or not parent.talk.turns:
            return
        first, last, turns = child.talk.turns[0], child.talk.turns[-1], parent.talk.turns
        if made < 0:
            self._counts["overlaps_floored"] += after(turns[-1], first, Relation.SEQUENCE)
            return
        if made:
            self._counts["spawns"] += 1
            self._counts["overlaps_floored"] += after(turns[made - 1], first, Relation.SPAWN)
        if made < len(turns):
            self._counts["joins"] += 1
            self._counts["overlaps_floored"] += after(last, turns[made], Relation.JOIN)

    def _give_clocks(self, members: list[_Trajectory], parents: dict[str, str], places: dict[str, int]) -> None:
        """Let trajectories without any time run when the others of their play do, each behind what spawned it."""
        starts = [turn.start_ns for each in members if each.clocked for turn in each.talk.turns]
        begin_ns = min(starts, default=0)
        for trajectory in members:
            at_ns = begin_ns
            if trajectory.key in parents and places[trajectory.key]:
                behind = self._trajectories[parents[trajectory.key]].talk.turns
                at_ns = (
                    behind[places[trajectory.key] - 1 if places[trajectory.key] > 0 else -1].end_ns if behind else at_ns
                )
            for turn in () if trajectory.clocked else trajectory.talk.turns:
                turn.start_ns = turn.end_ns = at_ns

    def _plays(self, parents: dict[str, str]) -> Iterator[tuple[str, list[_Trajectory]]]:
        """Yield each play's id and members: each trajectory before those that hang at it, roots in order of time."""
        children: dict[str, list[_Trajectory]] = {}
        for key, parent in parents.items():
            children.setdefault(parent, []).append(self._trajectories[key])
        roots = [each for key, each in self._trajectories.items() if key not in parents]
        for root in sorted(roots, key=_order):
            members: list[_Trajectory] = []
            waiting = [root]
            while waiting:
                members.append(waiting.pop())
                waiting += sorted(children.get(members[-1].key, ()), key=_order, reverse=True)
            yield root.key, members


_WHY_UNTIMED: Final = {
    "timestamp": "the steps have no time",
    "observation": "the tools before them return at a time that no step has",
}


def _order(trajectory: _Trajectory) -> tuple[int, str]:
    turns = trajectory.talk.turns
    return turns[0].start_ns if turns else -1, trajectory.key


def _at(where: Where, prefix: str, path: str) -> Where:
    return Where(file=where.file, line=where.line, field=f"{prefix}.{path}".lstrip("."))


def _trajectory_id(raw: msgspec.Raw) -> str:
    """Return the id of an embedded trajectory, an empty one where it has none that can be read."""
    try:
        return msgspec.json.decode(raw, type=_Named).trajectory_id or ""
    except DecodeErrors:
        return ""


def _marks(head: Head) -> Confidence:
    if head.text("schema_version").startswith("ATIF-"):
        return Confidence.SIGNED
    return Confidence.SHAPED if head.has("steps", "agent") else Confidence.NONE


READER: Final = Reader(name="atif", title="ATIF trajectories (Harbor)", marks=_marks, read=read_atif)
