"""The calls of one conversation of a Claude Code session, put together from rows in file order.

A row is one `assistant` record. Which rows make one call, which inputs a call answers, and whether two processes wrote
into one file, is decided here; nothing of the wire is known here but ids, instants and counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

__all__ = ["COMPACTION", "MESSAGE", "Input", "Part", "RecordedCall", "Row", "Scope"]

# Iterations of a message that go on with its conversation; any other one is a call beside it.
MESSAGE: Final = "message"
COMPACTION: Final = "compaction"
# A prompt that was typed and never answered waits this long, in further inputs.
MAX_PENDING: Final = 1024
# How far back calls are looked at, where branches of a conversation are told apart.
MAX_STEPS_BACK: Final = 256


@dataclass(frozen=True, slots=True)
class Part:
    """One LLM call by its usage; lengths in tokens. `kind` is that of an iteration."""

    kind: str
    model: str
    input_length: int
    cached: int
    created: int
    output_length: int


@dataclass(slots=True, eq=False)
class RecordedCall:
    """One message of the model as one file tells it: one LLM call, or several where its usage lists them.

    Attributes
    ----------
    message : str
        ``message.id``, else ``requestId``, else ``uuid``.
    key : str
        What names it in the corpus: `message`, with a number behind it where that id names several calls.
    request : str
        ``requestId``, empty for none.
    line, file
        Of its first row.
    start_ns, end_ns : int
        When the latest input before it arrived, and when its last row was written.
    first_ns : int
        When its first row was written.
    prompt : int
        Tokens of the prompt as its latest row tells them, 0 while none has.
    parts : list of Part
        Its LLM calls, as its latest row with counts tells them; empty while none has.
    characters : int
        Of the content; they count where the recorded output is unreliable.
    unreliable_output : bool
    answers : bool
        An input stands before it, so `start_ns` is recorded.
    reset : bool
        A compaction stands before it.
    native : str
        The session that its records come from, which is another one than the file's in a copy.
    rows : list of str
        The ids of its rows.
    index : int
        Its place among the calls of its conversation.
    parent : RecordedCall or None
        The call that it goes on from.
    uses, workflows : list of str
        Tool uses that spawn agents, and those of them that run a workflow.
    results, notices : list of str
        Tool uses whose results, and agents and tasks of whose completion, it was the first to see.
    calls_tool : bool
        It asks for a tool, so the conversation goes on.
    """

    message: str
    key: str
    request: str
    line: int
    file: str
    model: str
    start_ns: int
    end_ns: int
    first_ns: int
    unreliable_output: bool
    answers: bool
    reset: bool
    native: str
    index: int
    parent: RecordedCall | None
    prompt: int = 0
    parts: list[Part] = field(default_factory=list)
    characters: int = 0
    rows: list[str] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    workflows: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    calls_tool: bool = False

    @property
    def output_length(self) -> int:
        """Recorded tokens of the answer."""
        return sum(part.output_length for part in self.parts)


@dataclass(slots=True, eq=False)
class Input:
    """Something that came in for a call to answer.

    Attributes
    ----------
    at_ns : int
        -1 for what starts no call: a compaction, or a notice that was queued.
    above : Input or RecordedCall, optional
        What it hangs on in the chain of parents.
    placed : bool
        Its place in that chain is known.
    results, notices, reset
        As in :class:`RecordedCall`.
    open : bool
        No call has answered it yet.
    """

    at_ns: int
    above: Input | RecordedCall | None
    placed: bool
    results: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    reset: bool = False
    open: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """What tells of which call a row is.

    Attributes
    ----------
    message, request, uuid : str
        Ids; empty for none, but for the first.
    at_ns : int
    prompt : int
        Tokens, 0 for unknown.
    above : Input or RecordedCall, optional
        What it hangs on.
    placed : bool
        `above` is what its record says, and not only what stands before it.
    """

    message: str
    request: str
    uuid: str
    at_ns: int
    prompt: int
    above: Input | RecordedCall | None
    placed: bool


@dataclass(slots=True, eq=False)
class Scope:
    """One conversation of a file: the main one, an agent's, or one that branched off.

    Attributes
    ----------
    session : str
        As its records say.
    run : str
        The workflow run that its agent is of; empty for none.
    fork : RecordedCall or None
        The call that it branched off from.
    calls : list of RecordedCall
        In file order.
    last : RecordedCall | None
        The latest call, which goes on as long as rows of it come.
    latest : Input or RecordedCall or None
        The latest record.
    nodes : dict
        What each record hangs on or is, by uuid.
    loose : set of str
        Those of them whose own place in the chain of parents is not known.
    pending : list of Input
        What no call has answered yet.
    input_ns : int
        When the file is over, the latest input behind the last call, -1 for none.
    merged, merged_line : int
        Rows behind an input that were taken for a call though nothing shows that they are of it.
    """

    session: str = ""
    run: str = ""
    fork: RecordedCall | None = None
    calls: list[RecordedCall] = field(default_factory=list)
    last: RecordedCall | None = None
    latest: Input | RecordedCall | None = None
    nodes: dict[str, Input | RecordedCall | None] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    pending: list[Input] = field(default_factory=list)
    input_ns: int = -1
    merged: int = 0
    merged_line: int = 0
    _by_message: dict[str, RecordedCall] = field(default_factory=dict)
    _by_request: dict[tuple[str, str], RecordedCall] = field(default_factory=dict)
    _by_instant: dict[tuple[str, int], RecordedCall] = field(default_factory=dict)

    def place(self, uuid: str | None, node: Input | RecordedCall | None) -> None:
        """Note a record: `node` is what it is, or what it hangs on."""
        self.latest = node
        if uuid is not None:
            self.nodes[uuid] = node

    def arrive(self, item: Input, uuid: str | None) -> None:
        """Note something for the next call to answer."""
        self.pending.append(item)
        if len(self.pending) > MAX_PENDING:
            _answered(self.pending.pop(0))
        self.place(uuid, item)

    @property
    def waiting_ns(self) -> int:
        """The latest input that no call has answered, -1 for none."""
        return max((item.at_ns for item in self.pending), default=-1)

    def call_of(self, row: Row, line: int) -> tuple[RecordedCall | None, bool]:
        """Return the call that a row is of, and whether the row only repeats it; (None, False) for a new call.

        A message's rows have its id; but gateways give one id to many messages. So behind an input a row is of another
        call if its request or its prompt differs. Where nothing tells, and the id is the same, it is taken for one of
        the same call, and counted.
        """
        known = self._known(row)
        if known is None:
            return None, False
        call, sure = known
        if not sure:
            self.merged += 1
            self.merged_line = self.merged_line or line
        return call, call is not self.last and not (row.placed and call is row.above)

    def _known(self, row: Row) -> tuple[RecordedCall, bool] | None:
        """Return the call of a row and whether that is sure; None when it is of a new one."""
        latest = self._by_message.get(row.message)
        if latest is None:
            return None
        above = row.above if row.placed and isinstance(row.above, RecordedCall) else None
        if above is not None and above.message == row.message and not _differ(above.request, row.request):
            return above, True
        if row.request and (row.message, row.request) in self._by_request:
            return self._by_request[row.message, row.request], True
        same = self._by_instant.get((row.message, row.at_ns))
        if same is not None and not _differ(same.request, row.request):
            if row.prompt == same.prompt > 0 or (not row.prompt and not self._goes_on_from_another(row, same)):
                return same, True
        if _differ(latest.request, row.request):
            return None
        if not self._answers(row):
            return latest, True
        if self._goes_on_from_another(row, latest):
            return None
        if bool(latest.request) != bool(row.request):
            return None
        if latest.prompt and row.prompt != latest.prompt:
            return None
        # Where other messages have other ids, this one is no id for all of them.
        return latest, len(self._by_message) > 1

    def _goes_on_from_another(self, row: Row, latest: RecordedCall) -> bool:
        """Tell whether the input that a row answers hangs on another call than `latest`, as another process' does."""
        path, parent, known = _way_up(row.above)
        return row.placed and known and parent is not latest and any(id(item) in path for item in self.pending)

    def _answers(self, row: Row) -> bool:
        """Tell whether a row has an input before it that no call has answered."""
        return any(item.at_ns >= 0 for item in self._inputs(row))

    def _inputs(self, row: Row) -> list[Input]:
        """Return what a call that begins with this row answers.

        That is all that came in on the way from its parent call, and the results of tools that calls before it asked
        for: of results that came in together a row hangs on one only. What hangs on another branch is not its own.
        Where the way is not known, all is.
        """
        path, parent, known = _way_up(row.above)
        if not row.placed or not known:
            return list(self.pending)
        return [
            item
            for item in self.pending
            if id(item) in path or not item.placed or (item.results and _hangs_above(item, parent))
        ]

    def begin(self, row: Row, call: RecordedCall) -> None:
        """Start a call with a row: what came in for it is answered now."""
        taken = self._inputs(row)
        call.index = len(self.calls)
        _, parent, known = _way_up(row.above)
        call.parent = parent if row.placed and known else self.last
        for item in taken:
            _answered(item)
            call.results += item.results
            call.notices += item.notices
            call.reset |= item.reset
        if taken:
            self.pending = [item for item in self.pending if item.open]
        input_ns = max((item.at_ns for item in taken), default=-1)
        call.answers = input_ns >= 0
        call.start_ns = input_ns if call.answers else row.at_ns
        self.calls.append(call)
        self.last = self._by_message[row.message] = call

    def note(self, row: Row, call: RecordedCall) -> None:
        """Note that a row is of a call."""
        if row.uuid:
            call.rows.append(row.uuid)
        if row.request:
            call.request = call.request or row.request
            self._by_request.setdefault((row.message, row.request), call)
        self._by_instant.setdefault((row.message, row.at_ns), call)
        self.place(row.uuid or None, call)

    def close(self) -> list[RecordedCall]:
        """End the conversation; return the calls that no row gave counts, which are taken out.

        What they had answered is the next call's; their time stays in the gap between their neighbours.
        """
        hollow = [call for call in self.calls if not call.parts]
        self.input_ns = self.waiting_ns
        if hollow:
            self._hand_on()
        self.calls = [call for call in self.calls if call.parts]
        for index, call in enumerate(self.calls):
            call.index = index
        self.nodes.clear()
        self.loose.clear()
        self.pending.clear()
        for held in (self._by_message, self._by_request, self._by_instant):
            held.clear()
        return hollow

    def _hand_on(self) -> None:
        """Give the calls behind those without counts what these had answered."""
        results: list[str] = []
        notices: list[str] = []
        reset, input_ns = False, -1
        for call in self.calls:
            parent, steps = call.parent, 0
            while parent is not None and not parent.parts and steps < MAX_STEPS_BACK:
                parent, steps = parent.parent, steps + 1
            call.parent = parent if parent is None or parent.parts else None
            call.results[:0], call.notices[:0] = results, notices
            call.reset |= reset
            if input_ns >= 0 and not call.answers:
                call.start_ns, call.answers = input_ns, True
            if call.parts:
                results, notices, reset, input_ns = [], [], False, -1
            else:
                results, notices, reset = call.results, call.notices, call.reset
                input_ns = max(input_ns, call.start_ns if call.answers else -1)
        self.input_ns = max(self.input_ns, input_ns)

    def branches(self) -> Iterator[tuple[str, Scope]]:
        """Take out the calls of further processes that wrote into the file; yield them by a name of their branch.

        Going back to an earlier message begins a branch too; but then nothing is added to the one that was left. So
        branches that ran beside the one that they left are conversations of their own, others are not.
        """
        chains: list[list[RecordedCall]] = []
        of: dict[int, int] = {}
        forks: list[RecordedCall | None] = []
        for call in self.calls:
            parent = call.parent
            at = -1 if parent is None else of[parent.index]
            if at < 0 or chains[at][-1] is not parent:
                chains.append([])
                forks.append(parent)
                at = len(chains) - 1
            chains[at].append(call)
            of[call.index] = at
        if len(chains) < 2:
            return
        owner = list(range(len(chains)))
        kept: list[list[RecordedCall]] = [list(chain) for chain in chains]
        for number, chain in enumerate(chains[1:], 1):
            fork = forks[number]
            left = owner[0 if fork is None else of[fork.index]]
            if not _beside(kept[left], fork, chain[0]):
                owner[number] = left
                # All of it is behind the branch that was left.
                kept[left] += chain
        self.calls = kept[0]
        for number in range(1, len(chains)):
            if owner[number] == number:
                first = kept[number][0]
                branch = Scope(session=self.session, fork=forks[number], calls=kept[number])
                yield first.rows[0] if first.rows else first.message, branch


def _differ(one: str, other: str) -> bool:
    """Tell whether two ids are known and differ."""
    return bool(one and other and one != other)


def _way_up(node: Input | RecordedCall | None) -> tuple[set[int], RecordedCall | None, bool]:
    """Return which inputs are on the way up from a record, the call that they hang on, and whether that is all known.

    An answered input hangs on its call directly, so no way is longer than the inputs that wait, and one.
    """
    path: set[int] = set()
    known = True
    while isinstance(node, Input):
        path.add(id(node))
        known &= node.placed
        node = node.above
    return path, node, known


def _answered(item: Input) -> None:
    item.open = False
    item.above = _way_up(item.above)[1]


def _hangs_above(item: Input, call: RecordedCall | None) -> bool:
    """Tell whether an input hangs on a call or on one that it goes on from, as far back as that is looked at."""
    anchor = _way_up(item.above)[1]
    if anchor is None:
        return True
    steps = 0
    while call is not None and call.index > anchor.index:
        if steps == MAX_STEPS_BACK:
            return True
        call, steps = call.parent, steps + 1
    return call is anchor


def _beside(left: list[RecordedCall], fork: RecordedCall | None, first: RecordedCall) -> bool:
    """Tell whether the branch that was left went on when another one began with the call `first`."""
    if left[-1].index > first.index:
        return True
    low = -1 if fork is None else fork.index
    for call in left[: -MAX_STEPS_BACK - 1 : -1]:
        if call.index <= low:
            break
        if call.index < first.index and call.end_ns > first.start_ns:
            return True
    return False
