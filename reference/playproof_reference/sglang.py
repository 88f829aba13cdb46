"""An SGLang worker, pass by pass, by its own rules or by those of the peer."""

from __future__ import annotations

from playproof_spec.deployment import Rules, WorkerSpec
from playproof_spec.graph import Graph

from playproof_reference.radix import Branch, OwnTree, RadixTree
from playproof_reference.requests import Request
from playproof_reference.vllm import VllmWorker

# Most tokens of a request's output that are kept free for it.
CLIP = 4096


class SglangWorker(VllmWorker):
    """An SGLang worker, one pass at a time.

    What SGLang's own rules change is in the methods that begin with `own`.
    """

    def __init__(self, graph: Graph, spec: WorkerSpec, context: int, requests: list[Request]) -> None:
        super().__init__(graph, spec, context, requests)
        self.own = spec.rules is Rules.SGLANG
        self.tree = OwnTree(self.spec.blocks) if self.own else RadixTree(self.spec.blocks)
        self.first = 0.7 * self.spec.schedule_conservativeness
        if self.own:
            self.first = min(self.first, 1.0)
        self.ratio = self.first
        self.held: dict[int, int] = {}  # pages of a request, cached ones included
        self.cached: dict[int, int] = {}  # how many of them are cached
        self.place: dict[int, Branch] = {}  # and where they end
        self.fresh: list[int] = []  # whose prompt became whole in this pass
        self.prefilled: list[tuple[int, int]] = []  # (tokens after, tokens before) of this pass
        self.prefill = self.retracted = False
        self.full = False  # nobody is looked at until a request leaves
        self.cut: int | None = None  # whose prompt this pass computes in part
        self.ran = 0  # how many ran before this pass admitted
        self.stalls = False  # the one running request waits for pages that others hold

    def residents(self) -> set[object]:
        return {page for branch in self.tree.branches() for page in branch.pages}

    def remaining(self, node: int) -> int:
        return self.limit(node) - len(self.requests[node].tokens_ns)

    # Pages

    def forget(self, node: int) -> None:
        self.full = self.full and node not in self.running
        super().forget(node)

    def give_up(self, node: int) -> None:
        self.tree.free += self.held.pop(node) - self.cached.pop(node)
        self.tree.unlock(self.place.pop(node))
        self.requests[node].computed = 0

    def cache(self, node: int, tokens: int | None = None) -> None:
        """Cache the whole pages of the first `tokens` tokens of `node`, of all that it has if None."""
        full = (self.requests[node].computed if tokens is None else tokens) // self.spec.block_size
        if not self.spec.prefix_caching:
            return
        before = self.place[node]
        after = self.enter(node, full)
        for branch in after.path():
            branch.locks += 1
        self.tree.unlock(before)
        self.place[node], self.cached[node] = after, full

    def enter(self, node: int, full: int) -> Branch:
        pages = self.contents(node, full)[self.cached[node] :]
        if isinstance(self.tree, OwnTree):
            return self.tree.insert(self.place[node], pages, self.prompt(node) // self.spec.block_size)
        return self.tree.insert(self.place[node], pages)

    def end(self, node: int) -> None:
        full = self.requests[node].computed // self.spec.block_size if self.spec.prefix_caching else 0
        self.tree.free += self.held.pop(node) - full
        self.enter(node, full)
        self.cached.pop(node)
        self.tree.unlock(self.place.pop(node))

    def complete(self, node: int) -> str:
        self.end(node)
        return "completed"

    def drop(self, node: int) -> None:  # of a canceled request, wherever it is
        self.fresh = [other for other in self.fresh if other != node]
        if node in self.held:
            self.give_up(node)

    def growth(self, nodes: list[int]) -> int:
        return sum(self.ceil_blocks(self.requests[node].computed + 1) - self.held[node] for node in nodes)

    # Prefill

    def promised(self) -> float:
        """Tokens that running requests may still want, as far as they are kept free."""
        promised = 0.0
        for other in self.running:
            promised += min(self.remaining(other), CLIP) * (1.0 if self.spec.ignore_eos else self.ratio)
        return promised

    def own_prefill_batch(self, now: int) -> None:
        """Admit as SGLang does: everything is settled first, and memory is taken for all at once."""
        size, chunk = self.spec.block_size, self.spec.chunked_prefill_size
        if not self.running:
            self.full = False
        inputs, left = self.spec.max_prefill_tokens, chunk
        offset, current = self.promised(), 0
        batch: list[tuple[int, int, int]] = []  # a request, the tokens it has, those it computes

        def free() -> int:
            return self.tree.available() * size

        def commit(node: int, start: int, tokens: int, reserve: int) -> None:
            nonlocal offset, current, inputs, left
            charge = self.ceil_blocks(tokens) * size
            batch.append((node, start, tokens))
            offset += charge + size + reserve
            current += charge + size
            inputs -= charge
            left -= charge

        queue = list(self.waiting)
        going_on = bool(queue) and self.requests[queue[0]].computed > 0
        room = self.spec.max_sequences - len(self.running)
        if going_on:
            node = queue.pop(0)
            rest = self.known(node) - self.requests[node].computed
            allowed = int(free() - offset)
            allowed = min(left, allowed) if allowed > 0 else left
            tokens = min(rest, allowed)
            if self.ceil_blocks(self.requests[node].computed + tokens) - self.held[node] > self.tree.available():
                return  # others have taken its pages since it was admitted
            reserve = min(self.limit(node), CLIP) if tokens == rest else 0
            commit(node, self.requests[node].computed, tokens, reserve)
        elif room <= 0 and queue:
            self.full = True
        # SGLang asks for memory before it asks for the pass's budget: without memory it looks at the next one still.
        spent = bool(batch) and (free() - offset <= 0 or free() - current <= 0)
        while queue and not self.full and (spent or (inputs > 0 and left > 0)):
            if len(batch) >= room:
                self.full = True
                break
            node = queue[0]
            vain = not batch and not self.running
            if self.ceil_blocks(self.known(node)) > self.spec.blocks:
                self.refuse_own(queue)
                continue
            start = self.start_of(node)
            prefix = self.contents(node, start // size)
            rest = self.known(node) - start
            total = (self.tree.available() - self.tree.evictable_of(prefix)) * size - offset
            fits = rest + min(self.remaining(node), CLIP) + size < total
            tokens = rest if self.ceil_blocks(rest) * size <= left else left // size * size
            if vain and (not fits or (tokens == 0 and rest > 0)):
                # Nothing runs, and nobody will give anything back: it never will. A look in vain leaves no trace.
                if self.others_hold():
                    break
                self.refuse_own(queue)
                continue
            if prefix:
                assert isinstance(self.tree, OwnTree)
                self.tree.match(prefix)
            if not fits:
                self.full = True
                break
            if tokens == 0 and rest > 0:
                break
            queue.pop(0)
            self.place[node] = self.tree.lock(prefix)
            self.held[node] = self.cached[node] = len(prefix)
            self.note_admission(now, node, start)
            commit(node, start, tokens, 0 if tokens < rest else min(self.limit(node), CLIP))
            if free() - offset <= 0 or free() - current <= 0:
                self.full = True
                break
        self.own_take(batch)

    def refuse_own(self, queue: list[int]) -> None:
        node = queue.pop(0)
        self.waiting.remove(node)
        self.gone.append((node, "failed" if self.requests[node].admissions else "rejected"))

    def own_take(self, batch: list[tuple[int, int, int]]) -> None:
        """Evict for the whole batch, generously, and give everybody pages."""
        size = self.spec.block_size
        assert isinstance(self.tree, OwnTree)
        wanted = sum(tokens for _, _, tokens in batch) + (len(batch) * size if size > 1 else 0)
        if batch:
            self.tree.make_free(self.ceil_blocks(wanted))
        self.prefill, self.cut, self.ran = bool(batch), None, len(self.running)
        for node, start, tokens in batch:
            more = self.ceil_blocks(start + tokens) - self.held[node]
            self.tree.take(more)
            self.held[node] += more
            self.waiting.remove(node)
            self.requests[node].computed = start + tokens
            if tokens > 0:
                self.prefilled.append((start + tokens, start))
            if start + tokens < self.known(node):
                self.cut = node
            else:
                self.fresh.append(node)
        self.running += self.fresh
        if self.cut is not None:
            self.waiting.insert(0, self.cut)

    def prefill_batch(self, now: int) -> None:
        if self.own:
            self.own_prefill_batch(now)
            return
        size = self.spec.block_size
        stalled = len(self.running)
        inputs, chunk = self.spec.max_prefill_tokens, self.spec.chunked_prefill_size
        taken, cut, spent = 0, None, 0
        while self.waiting and stalled + taken < self.spec.max_sequences and chunk > 0:
            node = self.waiting[0]
            if self.ceil_blocks(self.known(node)) > self.spec.blocks:
                self.refuse_head()
                continue
            if taken == 0:
                total = self.tree.available() * size - self.promised()
            start = self.start_of(node)
            left = self.known(node) - start
            tokens = left if self.ceil_blocks(left) * size <= chunk else chunk // size * size
            charge = self.ceil_blocks(tokens) * size
            reserve = 0 if tokens < left else min(self.remaining(node), CLIP)
            impossible = tokens == 0 and left > 0
            fits = not impossible and charge + reserve < total - spent and charge <= inputs and charge <= chunk
            if not fits or not self.take_chunk(node, start, tokens, now):
                if taken == 0 and stalled == 0 and not self.others_hold():
                    self.refuse_head()
                    continue
                break
            taken += 1
            if tokens < left:
                cut = node
            else:
                self.fresh.append(node)
            spent += charge + reserve
            inputs -= charge
            chunk -= charge
        self.prefill = taken > 0
        self.running += self.fresh
        if cut is not None:
            self.cache(cut)
            self.waiting.insert(0, cut)

    def others_hold(self) -> bool:
        """Whether pages are held by requests that neither run nor wait, and will come free."""
        return False

    def start_of(self, node: int) -> int:
        if self.requests[node].computed > 0 or not self.spec.prefix_caching:
            return self.requests[node].computed
        most = self.known(node) - (1 if self.limit(node) > 0 else 0)
        return self.tree.cached(self.contents(node, most // self.spec.block_size)) * self.spec.block_size

    def take_chunk(self, node: int, start: int, tokens: int, now: int) -> bool:
        request = self.requests[node]
        new = request.computed == 0
        pages = start // self.spec.block_size
        prefix = self.contents(node, pages)
        more = self.ceil_blocks(start + tokens) - (pages if new else self.held[node])
        if more > self.tree.available() - (self.tree.evictable_of(prefix) if new else 0):
            return False
        if new:
            self.place[node] = self.tree.lock(prefix)
            self.held[node] = self.cached[node] = pages
        self.tree.take(more)
        self.held[node] += more
        self.waiting.pop(0)
        request.computed = start + tokens
        if new:
            self.note_admission(now, node, start)
        if tokens > 0:
            self.prefilled.append((start + tokens, start))
        return True

    def refuse_head(self) -> None:
        node = self.waiting.pop(0)
        if self.requests[node].computed > 0:
            self.give_up(node)
        self.gone.append((node, "failed" if self.requests[node].admissions else "rejected"))

    # Decode

    def retract(self, node: int) -> None:
        self.full = False
        self.give_up(node)
        self.waiting.append(node)
        self.preemptions += 1
        self.retracted = True

    def own_make_room(self) -> None:
        """Retract as SGLang does: everything is evicted first, and the batch stays in the order of who has most."""
        assert isinstance(self.tree, OwnTree)
        while len(self.growers()) > 1 and self.growth(self.growers()) > self.tree.available():
            self.tree.evict(self.tree.evictable())
            self.running.sort(key=lambda node: (len(self.requests[node].tokens_ns), -self.prompt(node)), reverse=True)
            last = self.growers()[-1]
            self.running.remove(last)
            self.retract(last)
            self.tree.make_free(self.ceil_blocks(20 * len(self.growers())))

    def make_room(self) -> None:
        if self.own:
            self.own_make_room()
        while len(self.growers()) > 1 and self.growth(self.growers()) > self.tree.available():
            least = min(self.growers(), key=lambda node: (len(self.requests[node].tokens_ns), -self.prompt(node)))
            self.running.remove(least)
            self.retract(least)
            want = 20 * len(self.growers()) - self.tree.free * self.spec.block_size
            self.tree.evict(min(max(self.ceil_blocks(want), 0), self.tree.evictable()))
        short = self.growth(self.growers()) > self.tree.available()
        if short and self.waiting and self.requests[self.waiting[0]].computed > 0:
            self.retract(self.waiting.pop(0))
        if self.growth(self.growers()) > self.tree.available():
            self.resolve()
        if self.retracted:
            tokens = sum(len(self.requests[node].tokens_ns) for node in self.growers())
            limits = sum(self.limit(node) for node in self.growers())
            self.ratio = min(1.0, (tokens + 20 * len(self.growers())) / (limits + 1))

    def growers(self) -> list[int]:
        """Who of the running wants a token."""
        return [node for node in self.running if self.limit(node) > 0]

    def resolve(self) -> None:
        """Do something about the one running request that cannot grow."""
        (node,) = self.growers()
        self.running.remove(node)
        self.full = False
        self.give_up(node)
        self.gone.append((node, "failed"))

    # Passes

    def promote(self, now: int) -> bool:
        """Let those join that come with their prompt; say whether others may be admitted after them."""
        return True

    def start(self, now: int) -> bool:
        self.fresh, self.prefilled, self.retracted, self.stalls, self.prefill = [], [], False, False, False
        self.refuse_too_long()
        if self.promote(now):
            self.prefill_batch(now)
        self.prefill_tokens += self.prefilled_now()
        length = self.prefill_length()
        if not self.prefill and self.running:
            self.make_room()
            if self.growers() and not self.stalls:
                length = self.decode_ns(sum(self.known(node) for node in self.growers()))
        works = self.prefill or len(self.running) > len(self.growers()) or (self.running and not self.stalls)
        if not works and not self.gone and not self.retracted:
            return False
        self.end_ns = now + length
        self.passes += 1
        return True

    def refuse_too_long(self) -> None:
        for node in [node for node in self.waiting if self.prompt(node) >= self.context]:
            self.waiting.remove(node)
            self.gone.append((node, "rejected"))

    def evictions(self) -> int:
        return self.tree.evictions

    def prefilled_now(self) -> int:
        """Tokens that this pass computes of prompts."""
        return sum(after - before for after, before in self.prefilled)

    def prefill_length(self) -> int:
        """How long the prefill part of this pass takes."""
        if not self.prefilled or not self.prefill_part:
            return 0
        count = len(self.prefilled)
        after, before = (sum(pair[i] for pair in self.prefilled) // count for i in (0, 1))
        return self.prefill_ns(count * (after - before))

    def token(self, node: int, now: int) -> None:
        """Give `node` a token; its KV has a place unless it is the last one, which nothing follows."""
        request = self.requests[node]
        request.tokens_ns.append(now)
        if self.remaining(node) > 0 or not self.prefill:
            if self.prefill:
                self.cache(node)
            request.computed += 1
            more = self.ceil_blocks(request.computed) - self.held[node]
            self.held[node] += more
            self.tree.free -= more
            assert self.tree.free >= 0

    def take_places(self, growers: list[int]) -> None:
        """Take the place of one more token of each of `growers`, with a page to spare for everybody."""
        assert isinstance(self.tree, OwnTree)
        if growers:
            self.tree.make_free(len(growers))
        for node in growers:
            request = self.requests[node]
            request.computed += 1
            more = self.ceil_blocks(request.computed) - self.held[node]
            self.held[node] += more
            self.tree.take(more)

    def own_finish(self, now: int) -> list[tuple[int, str]]:
        """End a pass as SGLang does: one request after another, and the place of a token is taken a pass later."""
        assert isinstance(self.tree, OwnTree)
        before = len(self.running)
        self.set_canceled_aside()
        self.fresh = [node for node in self.fresh if node not in self.canceled]
        outcomes, self.gone = self.gone, []
        some = list(self.fresh if self.prefill else self.running)
        growers = [] if self.stalls or self.prefill else self.growers()
        self.take_places(growers)
        for node in growers:
            self.requests[node].tokens_ns.append(now)
        for node in [node for node in some if self.limit(node) == 0]:
            self.running.remove(node)
            outcomes.append((node, self.complete(node)))
        for node in [node for node in some if self.limit(node) > 0]:
            if self.prefill:
                if self.remaining(node) > 1:
                    self.cache(node)
                self.requests[node].tokens_ns.append(now)
            if self.remaining(node) == 0:
                self.running.remove(node)
                outcomes.append((node, self.complete(node)))
        if not self.prefill and not self.retracted:
            self.ratio = self.decayed()
        if self.cut is not None and self.waiting and self.waiting[0] == self.cut and self.cut not in self.canceled:
            self.cache(self.cut)
        if len(self.running) < before or (self.prefill and (self.cut is not None or self.ran == 0)):
            self.full = False
        self.cut = None
        return outcomes

    def decayed(self) -> float:
        return max(self.ratio - (self.first - 0.14 * self.first) / 600, 0.14 * self.first)

    def finish(self, now: int) -> list[tuple[int, str]]:
        self.end_ns = None
        if self.own:
            return self.own_finish(now)
        self.set_canceled_aside()
        self.fresh = [node for node in self.fresh if node not in self.canceled]
        outcomes, self.gone = self.gone, []
        idle = self.fresh if self.prefill else self.running
        for node in [node for node in idle if self.limit(node) == 0]:
            self.running.remove(node)
            outcomes.append((node, self.complete(node)))
        if self.prefill:
            others = [node for node in self.fresh if self.remaining(node) > 1]
            room = self.growth(others) <= self.tree.available()
            if room:
                self.tree.evict(max(self.growth(others) - self.tree.free, 0))
            for node in self.fresh:
                if self.remaining(node) == 1 or (room and node in others):
                    self.token(node, now)
                elif node in others:
                    self.cache(node)
        else:
            growers = [] if self.stalls else self.growers()
            self.tree.evict(max(self.growth(growers) - self.tree.free, 0))
            for node in growers:
                self.token(node, now)
            if not self.retracted:
                self.ratio = self.decayed()
        for node in [node for node in self.growers() if self.remaining(node) == 0]:
            self.running.remove(node)
            outcomes.append((node, self.complete(node)))
        return outcomes
