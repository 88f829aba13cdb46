"""A vLLM worker, pass by pass: its queue, its admissions, preemption, speculative decoding and the length of a pass.

Workers of other kinds build on this one, and say what they change.
"""

from __future__ import annotations

from collections.abc import Sequence

from playproof_spec.deployment import TimingKind, WorkerSpec
from playproof_spec.graph import Graph

from playproof_reference.blocks import BlockPool
from playproof_reference.requests import Admission, Request, holder
from playproof_reference.speculation import Drafts


class VllmWorker:
    """A vLLM worker, one pass at a time. What prefill/decode changes are the methods marked as such."""

    # A prefill worker has no decode part in its passes, a decode worker no prefill part.
    prefill_part = decode_part = True

    # What is drafted for its requests, with speculative decoding.
    drafts: Drafts | None = None
    # Whether the block at which a prefix match ends is computed again.
    recomputes_last_block = False

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        self.graph = graph
        self.spec = spec
        self.context = context
        self.requests = requests
        # Whether a later prompt tells what a prompt of the trace ends with, where its last trace block is not full.
        self.reads_on = spec.reuse_output
        self.pool = BlockPool(self.spec.blocks)
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
        self.log: list[Admission] = []  # of all workers of the run
        self.apart = False  # whether plays share no blocks
        self.began_ns = 0
        self.busy_ns = 0
        self.prefill_tokens = 0  # computed in passes that computed tokens of a prompt
        self.prefill_before = 0  # before the pass that runs

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
        if self.reads_on and (said := self.told_ids(node)) is not None:
            # Its answer is what a later prompt says, and so is the end of its own.
            ids, told = said, told + (self.limit(node) if self.spec.reuse_output else 0)
        if self.apart:
            ids = [(int(self.graph.node_play[node]), name) for name in ids]
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

    def evictions(self) -> int:
        """How many cached blocks of the device made room for others."""
        return self.pool.evictions

    # What is counted

    def begin(self, now: int) -> bool:
        """Start a pass if there is one to start, and note what counts once it has ended."""
        before = self.prefill_tokens
        if not self.start(now):
            return False
        self.began_ns, self.prefill_before = now, before
        return True

    def end_pass(self, now: int) -> list[tuple[int, str]]:
        """End the pass that runs; return how requests ended with it."""
        self.busy_ns += now - self.began_ns
        return self.finish(now)

    def leave(self) -> None:
        """Take the pass that runs out of the count: the run is over before it ends."""
        if self.end_ns is not None:
            self.passes -= 1
            self.prefill_tokens = self.prefill_before

    def note_admission(self, now: int, node: int, reused: int) -> None:
        """Write down that `node` is admitted, and how many of its tokens were found."""
        request = self.requests[node]
        ordinal = len(request.admissions)
        request.admissions.append((now, reused))
        restored = request.host_reused.get(ordinal, 0)
        self.log.append(Admission(node, now, reused, restored, ordinal, not self.prefill_part))

    # Memory

    def compute(self, node: int, tokens: int) -> None:
        request = self.requests[node]
        before = min(request.computed, self.prompt(node))
        request.computed += tokens
        request.prompt_computed_now = min(request.computed, self.prompt(node)) - before
        self.prefill_tokens += tokens if request.prompt_computed_now > 0 else 0
        request.table += self.pool.allocate_all(max(self.ceil_blocks(request.computed) - len(request.table), 0))
        if self.spec.prefix_caching:
            self.fill_blocks(node, request.computed // self.spec.block_size)

    def fill_blocks(self, node: int, full: int) -> None:
        """Let the first `full` blocks of `node` be found, as far as they are not yet (`cache_full_blocks`)."""
        request = self.requests[node]
        contents = self.contents(node, full) if full > request.filled else []
        for block in range(request.filled, full):
            self.pool.fill(request.table[block], contents[block])
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

    def decided(self) -> list[int]:
        """Requests that a pass which has not ended refuses or fails."""
        return [node for node, _ in self.gone]

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
                self.note_admission(now, node, 0)
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
        self.note_admission(now, node, request.computed)
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
