"""Naive twins of the kernel: slow, obvious, pass by pass, with lists and dictionaries.

Written from the documented rules, not from the kernel, and sharing nothing with it but the specification's names. A
property compares every observable of both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from naive_speculation import NaiveDrafts
from playproof_kernel import Backend, DeploymentSpec, LoadSpec, TimingKind, WorkerSpec
from playproof_spec.graph import Graph, Trigger

NEVER = -1


class NaivePool:
    """A block pool: content → copies in the order in which they were cached; idle copies by age."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.refs: dict[int, int] = {}
        self.content: dict[int, object] = {}
        self.cached: dict[object, list[int]] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def available(self) -> int:
        return len(self.free) + len(self.idle)

    def find(self, content: object) -> int | None:
        copies = self.cached.get(content)
        return copies[0] if copies else None

    def allocate(self) -> int:
        if self.free:
            copy = self.free.pop()
        else:
            copy, _ = self.idle.popitem(last=False)
            copies = self.cached[self.content[copy]]
            copies.remove(copy)
            del self.content[copy]
        self.refs[copy] = 1
        return copy

    def allocate_all(self, number: int) -> list[int]:
        """Take `number` copies at once; those evicted for it come first, the last one evicted before the others."""
        spare = min(number, len(self.free))
        taken = [self.allocate() for _ in range(number)]
        return taken[: spare - 1 : -1] + taken[:spare] if spare else taken[::-1]

    def give_back(self, copies: list[int]) -> None:
        """Undo an allocation of `copies`; what was evicted for it stays evicted."""
        for copy in reversed(copies):
            self.refs[copy] = 0
            self.free.append(copy)

    def reuse(self, copy: int) -> None:
        self.idle.pop(copy, None)
        self.refs[copy] += 1

    def fill(self, copy: int, content: object) -> None:
        self.content[copy] = content
        self.cached.setdefault(content, []).append(copy)

    def release(self, copy: int) -> None:
        self.refs[copy] -= 1
        if self.refs[copy] == 0:
            if copy in self.content:
                self.idle[copy] = None
            else:
                self.free.append(copy)


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


@dataclass
class Request:
    """What the naive run knows of a node."""

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


class NaiveDriver:
    """Nodes, plays and lanes, straight from the rules."""

    def __init__(self, graph: Graph, load: LoadSpec) -> None:
        self.graph = graph
        self.load = load
        self.now = 0
        self.requests = [Request(i) for i in range(graph.node_count)]
        self.play_state = ["pending"] * len(graph.plays)
        self.play_start = [-1] * len(graph.plays)
        self.play_settled = [-1] * len(graph.plays)
        self.failed_node = [-1] * len(graph.plays)
        self.lane_play: list[int | None] = []
        self.play_lane = [-1] * len(graph.plays)
        self.next_play = 0
        self.edges = [[graph.edge(n, t) for n in self._into(t)] for t in range(graph.node_count)]
        self.cancellations = sorted(load.cancellations)

    def tie(self, node: int) -> int:
        """The place of `node` among those that are due at one instant."""
        return int(self.graph.tie_ranks[node])

    def _into(self, node: int) -> range:
        return range(int(self.graph.edge_offsets[node]), int(self.graph.edge_offsets[node + 1]))

    def _ns(self, ms: float) -> int:
        return round(ms / self.load.speedup * 1_000_000)

    def floor_ns(self, node: int) -> int:
        floors = self.graph.not_before_ms
        nodes = range(self.graph.node_count)
        if self.load.lanes is not None:
            nodes = self.graph.plays[self.graph.node_play[node]].nodes.tolist()
        origin = min(float(floors[n]) for n in nodes if not self.edges[n])
        return self._ns(max(float(floors[node]) - origin, 0.0))

    def start(self) -> None:
        if self.load.lanes is None:
            for play in range(len(self.graph.plays)):
                self.activate(play)
        else:
            for lane in range(min(self.load.lanes, len(self.graph.plays))):
                self.lane_play.append(None)
                self.occupy(lane)

    def occupy(self, lane: int) -> None:
        if self.next_play < len(self.graph.plays):
            self.lane_play[lane] = self.next_play
            self.play_lane[self.next_play] = lane
            self.next_play += 1
            self.activate(self.next_play - 1)
        else:
            self.lane_play[lane] = None

    def activate(self, play: int) -> None:
        self.play_state[play] = "active"
        self.play_start[play] = self.now
        for node in self.graph.plays[play].nodes:
            request = self.requests[node]
            request.ready_ns = self.now + self.floor_ns(int(node))
            request.waiting_for = len(self.edges[node])
            if request.waiting_for == 0:
                request.state = "ready"

    def due(self) -> list[int]:
        """Nodes that can be dispatched now, in order."""
        ready = [r for r in self.requests if r.state == "ready" and r.ready_ns <= self.now]
        return [r.index for r in sorted(ready, key=lambda r: (r.ready_ns, self.tie(r.index)))]

    def next_time(self) -> int | None:
        times = [r.ready_ns for r in self.requests if r.state == "ready"]
        return min(times + [at for at, _ in self.cancellations], default=None)

    def give_up(self) -> list[int]:
        """Cancel what the client gives up now; nodes that are not in flight are left alone."""
        due = [node for at, node in self.cancellations if at <= self.now]
        self.cancellations = self.cancellations[len(due) :]
        nodes = [node for node in due if self.requests[node].state == "dispatched"]
        nodes = list(dict.fromkeys(nodes))
        self.hear([(node, "canceled") for node in nodes])
        return nodes

    def fire(self, source: int, trigger: Trigger) -> None:
        name = self.graph.request_ids[source]
        for target, edges in enumerate(self.edges):
            for edge in edges:
                if edge.source == name and edge.trigger is trigger:
                    request = self.requests[target]
                    request.ready_ns = max(request.ready_ns, self.now + self._ns(edge.delay_ms))
                    request.waiting_for -= 1
                    if request.waiting_for == 0:
                        request.state = "ready"

    def dispatch(self, node: int) -> None:
        self.requests[node].state = "dispatched"
        self.requests[node].dispatched_ns = self.now
        self.fire(node, Trigger.DISPATCH)

    def in_flight(self, play: int) -> int:
        return sum(self.requests[n].state == "dispatched" for n in self.graph.plays[play].nodes)

    def hear(self, outcomes: list[tuple[int, str]]) -> None:
        """Take in (node, completed | rejected | failed | canceled) of this instant."""
        for node, outcome in sorted(outcomes, key=lambda each: self.tie(each[0])):
            play = int(self.graph.node_play[node])
            self.requests[node].state = outcome
            self.requests[node].terminal_ns = self.now
            if outcome == "completed":
                if self.play_state[play] == "active":
                    self.fire(node, Trigger.COMPLETION)
            elif self.play_state[play] == "active":
                self.play_state[play] = "failing"
                self.failed_node[play] = node
                for other in self.graph.plays[play].nodes:
                    if self.requests[other].state in ("blocked", "ready"):
                        self.requests[other].state = "skipped"
            self.settle(play, outcomes, node)

    def settle(self, play: int, outcomes: list[tuple[int, str]], node: int) -> None:
        # Requests of the same instant that come later in node order are still in flight.
        if self.in_flight(play) > 0:
            return
        states = {self.requests[n].state for n in self.graph.plays[play].nodes}
        if states == {"completed"}:
            self.play_state[play] = "completed"
        elif self.play_state[play] == "failing":
            self.play_state[play] = "failed"
        else:
            return
        self.play_settled[play] = self.now
        if self.play_lane[play] >= 0:
            self.occupy(self.play_lane[play])


class NaiveWorker:
    """A vLLM worker, one pass at a time. What prefill/decode changes are the methods marked as such."""

    # A prefill worker has no decode part in its passes, a decode worker no prefill part.
    prefill_part = decode_part = True

    # What is drafted for its requests, with speculative decoding.
    drafts: NaiveDrafts | None = None
    # Whether the block at which a prefix match ends is computed again.
    recomputes_last_block = False

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        self.graph = graph
        self.spec = spec
        self.context = context
        self.requests = requests
        self.pool = NaivePool(self.spec.blocks)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.gone: list[tuple[int, str]] = []
        self.canceled: list[int] = []  # whose places the running pass still needs
        self.proposed: set[int] = set()  # who got a token since it was admitted: what follows on it is drafted
        self.verified: dict[int, int] = {}  # tokens, drafts included, that it verifies of a request
        self.places: list[int] = []  # copies for tokens that the running pass may give
        self.assigned: dict[int, tuple[int, int]] = {}  # requests that a KV router gave it, with what they lacked
        self.published: set[object] = set()  # blocks that it has said its device has
        self.end_ns: int | None = None
        self.passes = 0
        self.preemptions = 0
        self.crowd = 0  # requests that ran or waited when the pass was scheduled

    def prompt(self, node: int) -> int:
        return int(self.graph.input_length[node])

    def limit(self, node: int) -> int:
        return min(int(self.graph.output_length[node]), max(self.context - self.prompt(node), 0))

    def known(self, node: int) -> int:
        return self.prompt(node) + len(self.requests[node].tokens_ns)

    def contents(self, node: int, blocks: int) -> list[object]:
        """Identity of each of the first `blocks` full blocks: all tokens up to its end, written out."""
        ids = self.graph.hash_ids(node).tolist()
        size, trace = self.spec.block_size, self.graph.block_size
        told = self.prompt(node)
        if self.spec.reuse_output and (said := self.told_ids(node)) is not None:
            # Its answer is what a later prompt says, and so is the end of its own.
            ids, told = said, told + self.limit(node)
        known = self.prompt(node) + len(self.requests[node].tokens_ns)
        tokens: list[object] = [ids[i // trace] for i in range(min(told, known))]
        tokens += [("generated", node, i) for i in range(known - len(tokens))]
        return [tuple(tokens[: (b + 1) * size]) for b in range(blocks)]

    def told_ids(self, node: int) -> list[int] | None:
        """The hash ids of the prompt that holds the answer of `node`, if there is one."""
        if not isinstance(self.graph, Graph):  # requests of the run controls, which are copies of the corpus'
            return self.graph.told_ids(node)
        other = holder(self.graph, node)
        return None if other is None else self.graph.hash_ids(other).tolist()

    def most(self) -> int:
        """The most tokens that the pass computes of one request, if there is another."""
        return self.spec.long_prefill_tokens if self.spec.long_prefill_tokens and self.crowd > 1 else 10**9

    def present(self) -> int:
        """How many requests run or wait."""
        return len(self.running) + len(self.waiting)

    def kept_free(self) -> int:
        """The blocks that stay available when a request is admitted: vLLM counts a block of its own among all."""
        return int(self.spec.watermark * (self.spec.blocks + 1)) if self.running else 0

    def ceil_blocks(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)

    def compute(self, node: int, tokens: int) -> None:
        request = self.requests[node]
        before = min(request.computed, self.prompt(node))
        request.computed += tokens
        request.prompt_computed_now = min(request.computed, self.prompt(node)) - before
        request.table += self.pool.allocate_all(max(self.ceil_blocks(request.computed) - len(request.table), 0))
        if self.spec.prefix_caching:
            full = request.computed // self.spec.block_size
            for block, content in enumerate(self.contents(node, full)):
                if block >= request.filled:
                    self.pool.fill(request.table[block], content)
            request.filled = max(full, request.filled)

    def drop(self, node: int) -> None:
        request = self.requests[node]
        for copy in reversed(request.table):
            self.pool.release(copy)
        request.table, request.filled, request.computed = [], 0, 0
        self.proposed.discard(node)

    # What prefill/decode changes

    def head(self) -> int | None:
        """Whom admission looks at next."""
        return self.waiting[0] if self.waiting else None

    def materialized(self, node: int) -> bool:
        """Whether the prompt of `node`, which waits, is there already."""
        return False

    def complete(self, node: int) -> str:
        """End `node`, which runs and has all its tokens, and say how."""
        self.drop(node)
        return "completed"

    # Cancellation

    def cancel(self, node: int) -> None:
        """Give up `node`: at once, or at the end of the pass that runs."""
        if self.end_ns is None:
            self.forget(node)
        else:
            self.canceled.append(node)

    def forget(self, node: int) -> None:
        self.waiting = [other for other in self.waiting if other != node]
        self.running = [other for other in self.running if other != node]
        self.gone = [(other, outcome) for other, outcome in self.gone if other != node]
        self.assigned.pop(node, None)
        self.drop(node)

    def set_canceled_aside(self) -> None:
        """Take who was canceled during this pass off the batch; what it holds it keeps until it is forgotten."""
        self.running = [node for node in self.running if node not in self.canceled]
        for node, _ in self.gone:
            self.assigned.pop(node, None)
        self.gone = [(node, outcome) for node, outcome in self.gone if node not in self.canceled]

    def forget_canceled(self) -> None:
        for node in self.canceled:
            self.forget(node)
        self.canceled = []

    def impossible(self, node: int) -> bool:
        return self.prompt(node) >= self.context or self.ceil_blocks(self.known(node)) > self.spec.blocks

    def resident(self, node: int, blocks: int) -> list[int]:
        """Copies of the leading blocks of `node` that are in the pool, of `blocks` full ones."""
        found: list[int] = []
        for content in self.contents(node, blocks) if self.spec.prefix_caching else []:
            copy = self.pool.find(content)
            if copy is None:
                break
            found.append(copy)
        return found

    def lookup(self, node: int) -> list[int]:
        last = self.known(node) if self.limit(node) == 0 else self.known(node) - 1
        found = self.resident(node, last // self.spec.block_size)
        return found[:-1] if self.recomputes_last_block and self.limit(node) > 0 else found

    def fits(self, node: int, found: list[int], budget: int = 10**9) -> bool:
        active = sum(self.pool.refs[copy] > 0 for copy in found)
        room = self.known(node)
        aggregated = self.prefill_part and self.decode_part
        instant = not aggregated and (not self.prefill_part or self.prefill_ns(1) == 0)
        if self.drafts is not None and instant and not self.running and self.limit(node) > 0:
            # Where others hold blocks: without room for its next token it would be pushed out again at once.
            room = min(room + 1, self.spec.blocks * self.spec.block_size)
        if not self.spec.reserve_full_prompt:
            cached = len(found) * self.spec.block_size
            room = min(room, cached + min(room - cached, self.most(), budget))
        return self.ceil_blocks(room) - active <= self.pool.available() - self.kept_free()

    def start(self, now: int) -> bool:
        self.verified = {}
        self.crowd = self.present()
        for request in self.requests:
            request.prompt_computed_now = 0
        budget, preempted = self.schedule_running(self.spec.max_batched_tokens)
        if not preempted:
            self.admit(now, budget)
        length = self.prefill_duration()  # also of what is pushed out now
        if self.drafts is not None:
            preempted = self.reserve_tokens() or preempted
        if not self.running and not self.gone and not preempted:
            return False
        decoding = self.decoding()
        if decoding and self.decode_part:
            length += self.decode_ns(sum(self.known(n) for n in decoding))
        self.end_ns = self.compute_start(now) + length
        # What only refuses is no forward pass.
        self.passes += bool(self.running or preempted)
        return True

    def accept(self, node: int) -> None:
        """Let `node` wait here."""
        self.waiting.append(node)

    # What a KV router hears

    def residents(self) -> set[object]:
        """Blocks that the device has."""
        return {content for content, copies in self.pool.cached.items() if copies}

    def host_published(self) -> set[object]:
        """Blocks that its host memory has, as far as has been said."""
        return set()

    def publish(self, outcomes: Sequence[tuple[int, str]] = ()) -> None:
        """At the end of a pass, which ended these requests, or of a transfer: tell what there is."""
        for node, _ in outcomes:
            self.assigned.pop(node, None)
        self.published = self.residents()

    # What a host tier changes

    def host_use(self) -> dict[str, int]:
        """What its host pool did; nothing where it has none."""
        return {}

    def compute_start(self, now: int) -> int:
        """When the pass just scheduled may begin to compute."""
        return now

    def has_work(self) -> bool:
        """Whether a pass may be worth trying."""
        return bool(self.running or self.waiting)

    def look_again(self) -> None:
        """Take note that a pass tried in vain at this instant may now have an effect."""

    def end_due_copies(self, now: int) -> bool:
        """End what is due on the links to the host; say whether this worker is idle and hears of anything."""
        return False

    def copying(self) -> bool:
        """Whether anything is on its way to or from the host memory that this worker uses."""
        return False

    def next_copy_end(self) -> int | None:
        """When the next thing happens on the links to the host that an idle worker, or another one, hears of."""
        return None

    # Scheduling

    def schedule_running(self, budget: int) -> tuple[int, bool]:
        """Give running requests their tokens; return what is left of the budget, and whether any was preempted."""
        preempted = False
        i = 0
        while i < len(self.running) and budget > 0:
            node = self.running[i]
            request = self.requests[node]
            want = min(self.known(node) - request.computed + self.drafted(node), self.most(), budget)
            known = min(want, self.known(node) - request.computed)
            need = self.ceil_blocks(request.computed + known)
            if need > self.spec.blocks:
                self.drop(node)
                self.running.remove(node)
                self.gone.append((node, "failed"))
                continue
            while need - len(request.table) > self.pool.available() and node in self.running:
                self.preempt(self.running.pop())
                preempted = True
            if node in self.running:
                if self.drafted(node) > 0:
                    self.verified[node] = want
                self.compute(node, known)
                budget -= want
                i += 1
        return budget, preempted

    def preempt(self, node: int) -> None:
        self.drop(node)
        self.waiting.insert(0, node)
        self.preemptions += 1

    def admit(self, now: int, budget: int) -> None:
        """Admit waiting requests until one does not fit; end those that never will."""
        while len(self.running) < self.spec.max_sequences:
            node_or_none = self.head()
            if node_or_none is None:
                break
            node = node_or_none
            request = self.requests[node]
            if self.impossible(node):
                self.refuse(node)
                continue
            if self.materialized(node):
                self.waiting.remove(node)
                self.running.append(node)
                request.admissions.append((now, 0))
                if budget == 0:
                    break
                continue
            found = self.lookup(node)
            if budget == 0 or not self.fits(node, found, budget):
                break
            self.waiting.pop(0)
            for copy in found:
                self.pool.reuse(copy)
            request.table, request.filled = list(found), len(found)
            request.computed = len(found) * self.spec.block_size
            budget -= self.seat(now, node, budget)

    def refuse(self, node: int) -> None:
        self.waiting.remove(node)
        self.gone.append((node, "failed" if self.requests[node].admissions else "rejected"))

    def seat(self, now: int, node: int, budget: int) -> int:
        """Let `node` run, with the prefix that it has, and compute; return the tokens that it computes."""
        request = self.requests[node]
        request.admissions.append((now, request.computed))
        self.running.append(node)
        want = min(self.known(node) - request.computed, self.most(), budget)
        self.compute(node, want)
        return want

    # Speculative decoding

    def drafted(self, node: int) -> int:
        """How many tokens are drafted for `node`, which runs: none before its first here, none past the context."""
        if self.drafts is None or node not in self.proposed:
            return 0
        return min(self.drafts.width, self.context - self.known(node)) - 1

    def burst(self, node: int) -> int:
        """The most tokens that the pass may give `node`, whose known tokens are all computed in it."""
        wanted = self.limit(node) - len(self.requests[node].tokens_ns)
        return min(self.verified.get(node, 1), wanted, self.spec.blocks * self.spec.block_size - self.known(node))

    def opened(self, node: int, tokens: int) -> int:
        """How many blocks `tokens` more tokens open."""
        return self.ceil_blocks(self.known(node) + tokens) - self.ceil_blocks(self.known(node))

    def reserve_tokens(self) -> bool:
        """Keep blocks for every token that the pass may give, preempting from the end; say whether that was needed."""
        preempted = False
        if self.decode_part:  # a prefill worker holds what it computed, whatever is wanted of it
            for node in [n for n in self.receiving() if self.limit(n) == 0]:
                self.drop_done(node)
        for node in [n for n in self.receiving() if self.limit(n) > 0 and self.burst(n) <= 0]:
            self.drop(node)
            self.running.remove(node)
            self.gone.append((node, "failed"))
        while True:
            nodes = [n for n in self.receiving() if self.limit(n) > 0]
            wanted = sum(self.opened(node, self.burst(node)) for node in nodes)
            if wanted <= self.pool.available():
                break
            self.preempt(self.running.pop())
            preempted = True
        self.places = [self.pool.allocate() for _ in range(wanted)]
        return preempted

    def drop_done(self, node: int) -> None:
        """Let go of the blocks of `node`, which wants no token, before others' tokens are given places."""
        computed = self.requests[node].computed
        self.drop(node)
        self.requests[node].computed = computed

    def receiving(self) -> list[int]:
        """Whose known tokens will all be computed by the end of this pass."""
        return [n for n in self.running if self.requests[n].computed == self.known(n)]

    def decoding(self) -> list[int]:
        """Who decodes in this pass."""
        return [
            n
            for n in self.running
            if self.requests[n].computed == self.known(n)
            and self.limit(n) > 0
            and (self.requests[n].tokens_ns or not self.requests[n].prompt_computed_now or not self.prefill_part)
        ]

    def prefill_duration(self) -> int:
        prefills = [self.requests[n] for n in self.running if self.requests[n].prompt_computed_now > 0]
        if not prefills or not self.prefill_part:
            return 0
        after = sum(min(r.computed, self.prompt(r.index)) for r in prefills)
        before = after - sum(r.prompt_computed_now for r in prefills)
        count = len(prefills)
        if after // count <= before // count:
            return 0
        return self.prefill_ns(count * (after // count - before // count))

    def prefill_ns(self, tokens: int) -> int:
        if self.spec.timing.kind is TimingKind.FIXED:
            return self.spec.timing.prefill_ns
        return round((4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142) * 1e6)

    def decode_ns(self, tokens: int) -> int:
        if self.spec.timing.kind is TimingKind.FIXED:
            return self.spec.timing.decode_ns
        share = min(1.0, tokens / (self.spec.blocks * self.spec.block_size))
        return round(max(1.0, -25.74 * share * share + 54.01 * share + 5.74) * 1e6)

    def finish(self, now: int) -> list[tuple[int, str]]:
        self.end_ns = None
        self.set_canceled_aside()
        outcomes, self.gone = self.gone, []
        # Who has no token to make is done, and lets its blocks go, before the others.
        for node in sorted(self.running, key=lambda node: self.limit(node) > 0):
            request = self.requests[node]
            if request.computed < self.known(node):
                continue
            if self.drafts is not None and self.limit(node) > 0:
                self.take_tokens(node, now)
            elif self.limit(node) > 0:
                request.tokens_ns.append(now)
            if len(request.tokens_ns) >= self.limit(node):
                self.running.remove(node)
                outcomes.append((node, self.complete(node)))
        for copy in self.places:
            self.pool.release(copy)
        self.places = []
        return outcomes

    def take_tokens(self, node: int, now: int) -> None:
        """Give `node` its tokens of this pass, all of them now; the last one is computed in the next pass."""
        assert self.drafts is not None
        request = self.requests[node]
        count = min(self.drafts.tokens(node, len(request.tokens_ns)), self.burst(node))
        request.tokens_ns += [now] * count
        last = len(request.tokens_ns) == self.limit(node)  # a token that nothing follows has no place
        while len(request.table) < self.ceil_blocks(self.known(node) - last):
            request.table.append(self.places.pop())
        self.compute(node, count - 1)
        self.proposed.add(node)


@dataclass
class NaiveHandoff:
    """Which decode worker a request went to, and when it took which step."""

    worker: int = NEVER
    held_ns: int = NEVER
    reserved_ns: int = NEVER
    activated_ns: int = NEVER
    released_ns: int = NEVER


@dataclass
class NaiveRun:
    """A whole replay, finished."""

    driver: NaiveDriver
    workers: Sequence[NaiveWorker]
    handoffs: Sequence[NaiveHandoff]
    disaggregated: bool = False
    # Tokens that a KV router knew each request to find where it sent it, by role.
    overlap: dict[int, int] = field(default_factory=dict)
    decode_overlap: dict[int, int] = field(default_factory=dict)

    def gaps(self) -> dict[int, int]:
        """Inter-token gaps and how often each occurred."""
        counts: dict[int, int] = {}
        for request in self.driver.requests:
            if request.state != "completed":
                continue
            for before, after in pairwise(request.tokens_ns):
                counts[after - before] = counts.get(after - before, 0) + 1
        return counts


def _new_worker(graph: Graph, deployment: DeploymentSpec, requests: list[Request]) -> NaiveWorker:
    if deployment.worker.backend is Backend.SGLANG and deployment.worker.ahead:
        from naive_sglang_overlap import NaiveOverlapWorker  # which builds on this module

        return NaiveOverlapWorker(graph, deployment.worker, deployment.context_length, requests)
    if deployment.worker.backend is Backend.SGLANG:
        from naive_sglang import NaiveSglangWorker  # likewise

        return NaiveSglangWorker(graph, deployment.worker, deployment.context_length, requests)
    if deployment.worker.host is not None:
        from naive_g2 import NaiveHostWorker  # likewise

        return NaiveHostWorker(graph, deployment.worker, deployment.context_length, requests)
    if deployment.worker.ahead:
        from naive_ahead import NaiveAheadWorker  # likewise

        return NaiveAheadWorker(graph, deployment.worker, deployment.context_length, requests)
    return NaiveWorker(graph, deployment.worker, deployment.context_length, requests)


def stops_before(time_ns: int, load: LoadSpec) -> bool:
    """Whether the load stops the run before `time_ns`."""
    return load.stop_ns is not None and time_ns > load.stop_ns


def leave_unfinished(workers: Sequence[NaiveWorker]) -> None:
    """Take passes out of the count that have not ended."""
    for worker in workers:
        worker.passes -= worker.end_ns is not None


def share_host(workers: Sequence[NaiveWorker]) -> None:
    """Give workers the one host pool of the deployment, if that is where their host memory is."""
    from naive_g2 import join_pool  # which builds on this module

    join_pool(workers)


def speculate(workers: Sequence[NaiveWorker], deployment: DeploymentSpec, *, drafting: bool = True) -> None:
    """Give workers the rules of speculative decoding, if the deployment has it; prefill workers draft nothing."""
    if deployment.speculation is not None:
        for number, worker in enumerate(workers):
            spec = deployment.speculation if drafting else replace(deployment.speculation, drafts=0)
            worker.drafts = NaiveDrafts(spec, number)
            worker.recomputes_last_block = True


class NaiveAggregated:
    """A whole aggregated replay."""

    def __init__(
        self, graph: Graph, deployment: DeploymentSpec, load: LoadSpec, driver: NaiveDriver | None = None
    ) -> None:
        from naive_router import NaiveRouter  # which builds on this module

        self.driver = driver or NaiveDriver(graph, load)
        requests = self.driver.requests
        self.workers = [_new_worker(graph, deployment, requests) for _ in range(deployment.workers)]
        speculate(self.workers, deployment)
        share_host(self.workers)
        self.router = NaiveRouter(self.workers, deployment.router)

    def over(self) -> bool:
        """Whether the run has ended although events are due."""
        return False

    def give_up(self, nodes: list[int]) -> None:
        """The client cancels `nodes`, which are in flight."""
        for node in nodes:
            self.workers[self.driver.requests[node].worker].cancel(node)

    def step(self) -> bool:
        """Do once what is due at this instant, in order; say whether anything was."""
        now, changed = self.driver.now, False
        outcomes: list[tuple[int, str]] = []
        for worker in self.workers:
            changed = worker.end_due_copies(now) or changed
        for worker in self.workers:
            if worker.end_ns == now:
                outcomes += self.end_pass(worker)
                changed = True
        self.driver.hear(outcomes)
        given_up = self.driver.give_up()
        self.give_up(given_up)
        if self.over():
            return False
        refused: list[tuple[int, str]] = []
        while due := self.driver.due():
            changed = True
            if self.workers[0].prompt(due[0]) >= self.workers[0].context:
                # The front end refuses it: no worker hears of it.
                self.driver.dispatch(due[0])
                refused.append((due[0], "rejected"))
                continue
            number = self.router.place(due[0])
            self.driver.requests[due[0]].worker = number
            self.driver.dispatch(due[0])
            self.workers[number].accept(due[0])
        started = self.start_passes(refused)
        return started or bool(given_up) or changed

    def end_pass(self, worker: NaiveWorker) -> list[tuple[int, str]]:
        outcomes = worker.finish(self.driver.now)
        worker.publish(outcomes)
        worker.forget_canceled()
        return outcomes

    def start_passes(self, outcomes: list[tuple[int, str]]) -> bool:
        """Start passes; the driver hears of `outcomes` together with what ends at once."""
        changed = False
        while True:
            idle = [w for w in self.workers if w.end_ns is None and w.has_work()]
            started = next((w for w in idle if w.start(self.driver.now)), None)
            if started is None:
                break
            changed = True
            if started.end_ns == self.driver.now:
                outcomes += self.end_pass(started)
        self.driver.hear(outcomes)
        return changed

    def next_time(self) -> int | None:
        times = [w.end_ns for w in self.workers]
        times += [w.next_copy_end() for w in self.workers]
        return min((at for at in [*times, self.driver.next_time()] if at is not None), default=None)

    def run(self) -> None:
        self.driver.start()
        while True:
            while self.step():
                pass
            following = self.next_time()
            if following is None or stops_before(following, self.driver.load):
                leave_unfinished(self.workers)
                break
            self.driver.now = following


def naive_replay(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> NaiveRun:
    """Replay `graph` the slow way."""
    if deployment.decode is not None:
        from naive_disagg import disagg_replay  # which builds on this module

        return disagg_replay(graph, deployment, load)
    run = NaiveAggregated(graph, deployment, load)
    run.run()
    handoffs = [NaiveHandoff() for _ in run.driver.requests]
    return NaiveRun(run.driver, run.workers, handoffs, overlap=run.router.overlap)
