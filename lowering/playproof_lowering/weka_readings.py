"""What the times of subagents mean in a Weka corpus: chosen once for all of it, with the evidence.

Producers differ in two ways. The times of nested requests count from the recording's origin (absolute) or from the
subagent's start (relative). And the marker of a blocking subagent stands where it was spawned, or where its answer
arrived (completion): the public recordings write it when the tool's result comes back. The marker of a background
subagent is always its launch, since its tool returns at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from playproof_spec.findings import Findings, finding

from playproof_lowering.streams import EPSILON_S
from playproof_lowering.weka_records import Agent, Entry, PlayRecord

__all__ = ["AgentTimes", "Basis", "Evidence", "Marker", "Readings", "agent_times", "choose_readings"]

# How long a tool call may take to start a subagent; in the public recordings it is 0.1 to 1.1 s.
TOOL_START_S: Final = 2.0

Basis = Literal["relative", "absolute"]
Marker = Literal["spawn", "completion"]


@dataclass(frozen=True, slots=True)
class AgentTimes:
    """One subagent's times under one reading, in seconds on the play's clock.

    Attributes
    ----------
    start_s, end_s : float
        Of the subagent as its marker declares them.
    starts_s : list of float
        Of its requests.
    early : list of int
        Requests whose absolute time lies before the subagent's start by more than rounding.
    clamped : int
        Requests whose absolute time was raised to the start, within rounding.
    """

    start_s: float
    end_s: float
    starts_s: list[float]
    early: list[int]
    clamped: int

    def last_end_s(self, entries: Sequence[Entry]) -> float:
        """Return when its last request ends."""
        return max(start_s + entry.service_s for start_s, entry in zip(self.starts_s, entries, strict=True))


def agent_times(agent: Agent, entries: Sequence[Entry], basis: Basis, marker: Marker) -> AgentTimes:
    """Read a subagent's times.

    Parameters
    ----------
    agent : Agent
    entries : sequence of Entry
        Its requests, at least one.
    """
    times = [entry.t for entry in entries]
    last_s = max(entry.t + entry.service_s for entry in entries)
    at_end = agent.blocking and marker == "completion"
    if not at_end:
        start_s = agent.t
    elif agent.duration_s is not None:
        start_s = agent.t - agent.duration_s
    else:
        # Without a duration the requests themselves say how long it took.
        start_s = agent.t - last_s if basis == "relative" else min(agent.t, *times)
    early: list[int] = []
    clamped = 0
    if basis == "relative":
        times = [start_s + t for t in times]
        last_s += start_s
    else:
        early = [place for place, t in enumerate(times) if t < start_s - EPSILON_S]
        clamped = sum(1 for t in times if t < start_s) - len(early)
        times = [max(t, start_s) for t in times]
    if at_end:
        end_s = agent.t
    else:
        end_s = max(agent.t, last_s) if agent.duration_s is None else agent.t + agent.duration_s
    return AgentTimes(start_s, end_s, times, early, clamped)


@dataclass(slots=True)
class Evidence:
    """How often one reading of the markers contradicts a corpus, over its blocking subagents.

    Attributes
    ----------
    child_before_owner : int
        Subagents that would start before the request that spawned them is dispatched.
    parent_before_child_end : int
        Subagents that would still run when their parent's next request starts.
    child_follows_owner : int
        Subagents that would start within two seconds behind the end of the request that spawned them, as a tool call
        does. Told as evidence for people; it does not decide.
    """

    child_before_owner: int = 0
    parent_before_child_end: int = 0
    child_follows_owner: int = 0

    @property
    def contradictions(self) -> int:
        """What decides."""
        return self.child_before_owner + self.parent_before_child_end


@dataclass(frozen=True, slots=True)
class Readings:
    """The readings of a corpus.

    Attributes
    ----------
    basis, marker : str
        As applied.
    basis_name, marker_name : str
        As reported: ``not_applicable`` where no subagent makes a difference and none was asked for.
    blocking : int
        Blocking subagents with requests.
    spawn, completion : Evidence
    """

    basis: Basis
    marker: Marker
    basis_name: str
    marker_name: str
    blocking: int
    spawn: Evidence
    completion: Evidence

    def facts(self) -> dict[str, object]:
        """Return what goes into reports."""
        return {
            "weka_nested_timestamp_basis": self.basis_name,
            "weka_subagent_marker": self.marker_name,
            "weka_subagent_marker_evidence": {
                "blocking_subagents": self.blocking,
                "spawn": _figures(self.spawn),
                "completion": _figures(self.completion),
            },
        }


def _brief(evidence: Evidence) -> str:
    return f"{evidence.contradictions} contradicted ({evidence.child_follows_owner} start right behind their owner)"


def _figures(evidence: Evidence) -> dict[str, object]:
    return {
        "child_before_owner": evidence.child_before_owner,
        "parent_before_child_end": evidence.parent_before_child_end,
        "child_follows_owner": evidence.child_follows_owner,
    }


def choose_readings(
    plays: Sequence[PlayRecord],
    basis: Literal["auto", "relative", "absolute"],
    marker: Literal["auto", "spawn", "completion"],
    findings: Findings,
) -> Readings:
    """Decide how to read the subagents of a corpus.

    Parameters
    ----------
    plays : sequence of PlayRecord
    basis, marker : str
        What was asked for. For ``auto``, nested times are relative when any of them is earlier than its marker; and of
        the two meanings of a marker the one with fewer contradictions is taken, spawn when they are equal.
    findings : Findings
        Receives a note on what was chosen.
    """
    agents = [(play, agent) for play in plays for agent in play.agents]
    any_early = any(
        entry.t < agent.t - EPSILON_S for play, agent in agents for entry in play.entries[agent.begin : agent.end]
    )
    chosen_basis: Basis = ("relative" if any_early else "absolute") if basis == "auto" else basis
    blocking = [(play, agent) for play, agent in agents if agent.blocking]
    spawn = _evidence(blocking, chosen_basis, "spawn")
    completion = _evidence(blocking, chosen_basis, "completion")
    chosen_marker: Marker = "completion" if completion.contradictions < spawn.contradictions else "spawn"
    if marker != "auto":
        chosen_marker = marker
    if agents and "auto" in (basis, marker):
        evidence = (
            f", markers of blocking subagents mean {chosen_marker}; over {len(blocking)} of them, spawn has "
            f"{_brief(spawn)}, completion {_brief(completion)}"
        )
        findings.add(
            finding(
                "reading-chosen",
                f"nested times are {chosen_basis}" + (evidence if blocking else ""),
                where=agents[0][0].at(agents[0][1].path),
                found=f"{chosen_basis}, {chosen_marker}" if blocking else chosen_basis,
            )
        )
    return Readings(
        basis=chosen_basis,
        marker=chosen_marker,
        basis_name=chosen_basis if agents or basis != "auto" else "not_applicable",
        marker_name=chosen_marker if blocking or marker != "auto" else "not_applicable",
        blocking=len(blocking),
        spawn=spawn,
        completion=completion,
    )


def _evidence(blocking: Sequence[tuple[PlayRecord, Agent]], basis: Basis, marker: Marker) -> Evidence:
    evidence = Evidence()
    for play, agent in blocking:
        entries = play.entries[agent.begin : agent.end]
        times = agent_times(agent, entries, basis, marker)
        owner = play.entries[agent.owner]
        start_s = min(times.start_s, *times.starts_s)
        evidence.child_before_owner += start_s < owner.t - EPSILON_S
        wait_s = start_s - (owner.t + owner.service_s)
        evidence.child_follows_owner += -EPSILON_S <= wait_s <= TOOL_START_S
        if agent.follower >= 0:
            end_s = max(times.end_s, times.last_end_s(entries))
            evidence.parent_before_child_end += play.entries[agent.follower].t < end_s - EPSILON_S
    return evidence
