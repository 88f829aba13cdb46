"""Ties the agents of a Claude Code session to the calls that spawned them and to those that waited for them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Relation

from playproof_lowering.claude_calls import RecordedCall
from playproof_lowering.claude_records import MAIN, Meta
from playproof_lowering.claude_sessions import Conversation, Session
from playproof_lowering.turns import Turn, after, begun_by, circular, spawn

__all__ = ["Links"]


class Links:
    """Ties the agents of one session to the calls that spawned them and to those that waited for them."""

    def __init__(
        self,
        session: Session,
        conversations: list[Conversation],
        metas: dict[tuple[str, str], Meta],
        findings: Findings,
        counts: Counter[str],
    ) -> None:
        self._session = session
        self._findings = findings
        self._counts = counts
        self._conversations = conversations
        self._metas = metas
        self._calls = {call.key: call for c in conversations for call in c.calls if call.key in c.first}
        self._workflows = {use for call in self._calls.values() for use in call.workflows}
        self._spawner: dict[str, tuple[Conversation, RecordedCall]] = {}
        for conversation in conversations:
            for call in conversation.calls:
                for use in call.uses if call.key in conversation.first else ():
                    self._spawner.setdefault(use, (conversation, call))
        # For each conversation and id, which of its turns were the first to see the result or the notification.
        self._seers: dict[tuple[str, str, bool], list[int]] = {}
        for conversation in conversations:
            for call in conversation.calls:
                if call.key not in conversation.first:
                    continue
                for seen, notified in ((call.results, False), (call.notices, True)):
                    for name in seen:
                        key = (conversation.name, name, notified)
                        self._seers.setdefault(key, []).append(conversation.first[call.key])
        counts["spawn_calls"] += sum(len(set(call.uses) - self._workflows) for call in self._calls.values())
        counts["workflow_calls"] += len(self._workflows)

    def connect(self) -> None:
        """Make the spawn and join edges."""
        children = {child.name: child for child in self._conversations if child.name != MAIN and not child.branched}
        uses = {name: self._uses_of(child) for name, child in children.items()}
        parents = {name: self._spawner[own[0]][0].name for name, own in uses.items() if own}
        for name in circular(parents):
            del parents[name]
        linked: set[str] = set()
        for name, child in children.items():
            if name in parents:
                linked.update(uses[name])
                self._activate(child, [use for use in uses[name] if self._spawner[use][0].name == parents[name]])
                continue
            self._counts["agents_unlinked"] += 1
            turn = child.listed[0]
            self._findings.add(
                finding(
                    "agent-unlinked",
                    "nothing in the records says which call spawned this agent",
                    where=Where(file=turn.file, line=turn.line, ids=(self._session.name, name)),
                    found=name,
                )
            )
        for branch in self._conversations:
            if branch.branched:
                self._branch(branch)
        unrecorded = len(self._spawner.keys() - linked - self._workflows)
        self._counts["agents_linked"] += len(parents)
        if unrecorded:
            self._counts["agents_unrecorded"] += unrecorded
            self._findings.add(
                finding(
                    "agent-unrecorded",
                    f"no calls in the corpus are tied to {unrecorded} of the agents spawned",
                    where=Where(file=self._session.file, ids=(self._session.name,)),
                    found=unrecorded,
                )
            )

    def _branch(self, branch: Conversation) -> None:
        """Let a branch that ran beside its conversation begin where it left that."""
        self._counts["branches"] += 1
        turn = branch.listed[0]
        message = f"{len(branch.listed)} calls ran beside the conversation that they branched off from"
        where = Where(file=turn.file, line=turn.line, ids=(self._session.name, branch.name))
        self._findings.add(finding("conversation-branched", message, where=where, found=len(branch.listed)))
        fork = branch.fork
        if fork is None:
            return
        for left in self._conversations:
            if left.trunk == branch.trunk and fork.key in left.last:
                self._counts["overlaps_floored"] += spawn(left.listed[left.last[fork.key]], turn)
                return

    def _of_run(self, child: Conversation) -> list[str]:
        """Return the tool use that ran the workflow of an agent: of several of one run, the latest before it."""
        if not child.run:
            return []
        task = self._session.tasks.get(child.run, "")
        started = sorted(
            (result.at_ns, result.tool_use)
            for result in self._session.results.values()
            if result.tool_use in self._spawner
            and (result.run == child.run or (not result.run and task and result.task == task))
        )
        before = [use for at_ns, use in started if at_ns <= child.listed[0].start_ns]
        return before[-1:] or [use for _, use in started[:1]]

    def _uses_of(self, child: Conversation) -> list[str]:
        """Return the tool uses that ran an agent, the one that spawned it first."""
        agent = child.agent
        stated = [result.tool_use for result in self._session.results_of.get(agent, []) if agent]
        # A meta file given by itself does not say of which session it is.
        meta = self._metas.get((self._session.name, agent)) or self._metas.get(("", agent))
        progress = self._session.progress_links.get(agent, "")
        sources = [meta.tool_use if meta is not None else "", *stated, progress, *self._of_run(child)]
        uses = list(dict.fromkeys(use for use in sources if use in self._spawner))
        if meta is not None and (meta.tool_use not in self._spawner or (stated and meta.tool_use not in stated)):
            known = f"{stated[0]} by the result" if stated else "none of this session's"
            self._findings.add(
                finding(
                    "agent-link-conflict",
                    f"the meta file of agent {agent} names another tool use than the session's records",
                    where=Where(file=meta.file, field="toolUseId", ids=(self._session.name, child.name)),
                    found=meta.tool_use,
                    wanted=known,
                )
            )
            uses = uses[:1]
        return sorted(uses, key=self._order_of_use) if len(uses) > 1 else uses

    def _order_of_use(self, use: str) -> tuple[int, str]:
        call = self._spawner[use][1]
        return call.end_ns, use

    def _activate(self, child: Conversation, uses: list[str]) -> None:
        """Tie each run of an agent: most have one, an agent that was called again has more."""
        turns = child.listed
        begin = 0
        for number, use in enumerate(uses):
            parent, call = self._spawner[use]
            result = self._session.results.get(use)
            until_ns = result.at_ns if result is not None and not result.background else None
            end = len(turns)
            if until_ns is not None and number + 1 < len(uses):
                end = next((at for at in range(begin, len(turns)) if turns[at].start_ns >= until_ns), len(turns))
            if begin < end:
                self._counts["overlaps_floored"] += spawn(parent.listed[parent.last[call.key]], turns[begin])
                self._join(parent, call, use, child, range(begin, end))
            begin = end

    def _join(self, parent: Conversation, call: RecordedCall, use: str, child: Conversation, run: range) -> None:
        """Let the calls that were first to see the agent's answers wait for them.

        A blocking agent answers once. One in the background that was sent more is told of each time it is done; an
        answer is of the calls that had begun by then.
        """
        result = self._session.results.get(use)
        background = result is not None and result.background
        task = result.task or self._session.tasks.get(result.run, "") if result is not None else ""
        seers: list[Turn] = []
        for conversation in self._conversations:
            # What a conversation asked for, one that branched off from it may see first.
            if conversation.trunk == parent.trunk and (conversation is parent or conversation.branched):
                at = conversation.last[call.key] if conversation is parent else -1
                found: list[int] = []
                for name in dict.fromkeys((child.agent, use, task) if background else (use,)):
                    known = self._seers.get((conversation.name, name, background), []) if name else []
                    found += known[bisect_right(known, at) :]
                seers += [conversation.listed[seer] for seer in sorted(set(found))]
        seers.sort(key=lambda turn: turn.start_ns)
        joined = run.start - 1
        for target in seers if background else seers[:1]:
            last = joined if background else run.start
            while last + 1 < run.stop and begun_by(child.listed[last + 1], target):
                last += 1
            if last > joined:
                self._counts["overlaps_floored"] += after(child.listed[last], target, Relation.JOIN)
                self._counts["joins"] += 1
                joined = last
