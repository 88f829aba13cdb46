"""Faults of what runs: the driver, both engines, their caches, host memory, handoffs, run controls, translation."""

from __future__ import annotations

from source_faults.fault import Fault

REPLAYS = "tests/unit/test_goldens_of_replay.py"
DRIVER = (REPLAYS, "-k", "join or barrier or lanes or failure or spawn or ties or sequence or floors or speedup")
VLLM = (REPLAYS, "-k", "trace and not sglang and not pd and not router and not ordinary and not speculation")
SGLANG = (REPLAYS, "-k", "sglang and not pd and not router")
PAIR = (REPLAYS, "-k", "pd and not router and not speculation")
ROUTER = (REPLAYS, "-k", "router")
DRAFTS = (REPLAYS, "tests/properties/test_speculation.py", "-k", "speculation or generator or streams")
AHEAD = (REPLAYS, "tests/unit/test_scheduling.py", "-k", "async or ahead or gives_up or preempted")
SCHEDULING = ("tests/unit/test_scheduling.py", REPLAYS, "-k", "scheduling or preempt or watermark or polynomial")
RETRACTION = ("tests/properties/test_replay.py", "-k", "retraction_equals")
RULES = ("tests/unit/test_scheduling.py",)
SGLANG_RULES = ("tests/unit/test_sglang_rules.py", "-k", "leaves or whole_pages or least_output or its_bound")
CONTROLS = ("tests/unit/test_goldens_of_controls.py",)
RUN_CONTROLS = ("tests/unit/test_run_controls.py", "-k", "barrier or idleness")
BLOCKS = ("tests/properties/test_blocks.py",)
RADIX = ("tests/properties/test_radix.py",)
KEYS = ("tests/properties/test_block_keys.py",)
TRANSLATION = ("tests/unit/test_translation.py",)
HOST = ("tests/unit/test_shared_host_memory.py", "tests/properties/test_host_pool.py")
HOSTED = ("tests/properties/test_host_memory.py", "-k", "equals_the_naive_replay")
LINKS = ("tests/properties/test_maxmin.py", "tests/unit/test_shared_host_memory.py")
STOP = ("tests/properties/test_stop.py",)

ROOM = "kernel/playproof_kernel"

KERNEL: tuple[Fault, ...] = (
    # Compiling a graph, and checking what came out
    Fault(
        "kernel-01",
        f"{ROOM}/corpus/compiled.py",
        "return ms_to_ns(np.maximum(floors - origin, 0.0) / speedup)",
        "return ms_to_ns(np.maximum(floors - origin, 0.0))",
        "floors are not divided by the speedup",
        TRANSLATION,
    ),
    Fault(
        "kernel-02",
        f"{ROOM}/corpus/compiled.py",
        "edges.trigger = graph.edge_trigger[order]",
        "edges.trigger = graph.edge_trigger",
        "triggers belong to other edges than their targets",
        TRANSLATION,
    ),
    Fault(
        "kernel-03",
        f"{ROOM}/corpus/compiled.py",
        "np.minimum.at(first_root, graph.node_play[is_root], floors[is_root])",
        "np.minimum.at(first_root, graph.node_play, floors)",
        "floors count from the earliest of all requests, which may be a placeholder",
        (*TRANSLATION, REPLAYS, "-k", "translation or placeholders or pass"),
    ),
    Fault(
        "kernel-04",
        f"{ROOM}/corpus/compiled.py",
        "static.space = graph.node_play.astype(np.int64) * span if play_scope else 0",
        "static.space = graph.node_play.astype(np.int64) * (span - 1) if play_scope else 0",
        "the last key of a play is the first of the next one",
        TRANSLATION,
    ),
    Fault(
        "kernel-05",
        f"{ROOM}/corpus/compiled.py",
        "mixed = (parent & 0x3FFFFFFF) * 0x9E3779B1 + ((label ^ (label >> 31)) & 0x3FFFFFFF) * 0x85EBCA6B",
        "mixed = (label & 0x3FFFFFFF) * 0x9E3779B1",
        "only the hash id decides where a branch of the trie is looked for first",
        KEYS,
        equivalent="where one looks first costs time alone: the pair itself is compared, and the next place looked at",
    ),
    Fault(
        "kernel-06",
        f"{ROOM}/corpus/compiled.py",
        "while trie.slot_segment[at] != NONE and (trie.slot_parent[at] != parent or trie.slot_label[at] != label):",
        "while trie.slot_segment[at] != NONE and trie.slot_label[at] != label:",
        "equal hash ids behind different prefixes are one block",
        KEYS,
    ),
    Fault(
        "kernel-07",
        f"{ROOM}/corpus/compiled.py",
        "ends_in_tail = (tokens // block_size) * block_size > whole * trace_size",
        "ends_in_tail = (tokens // block_size) * block_size >= whole * trace_size",
        "the partial last block of a prompt is interned where nothing ends in it",
        KEYS,
        equivalent="a chain more in the trie takes a number that nothing has as its key; only the numbers grow",
    ),
    Fault(
        "kernel-08",
        f"{ROOM}/corpus/compiled.py",
        "key = (chain * trace_size + first_end - begin) // common - 1",
        "key = (chain * trace_size + first_end) // common - 1",
        "keys of blocks whose sizes differ from the trace's depend on where the prompt has its runs",
        KEYS,
    ),
    Fault(
        "kernel-09",
        f"{ROOM}/checks/translation.py",
        "if self._different_keys(held) != chains:",
        "if self._different_keys(held) > chains:",
        "two blocks with one key pass the check of the translation",
        TRANSLATION,
    ),
    Fault(
        "kernel-10",
        f"{ROOM}/checks/translation.py",
        "if wanted not in zip(*made, strict=True):",
        "if wanted[0] not in made[0]:",
        "of an edge only its target is compared to the nanosecond",
        TRANSLATION,
    ),
    Fault(
        "kernel-11",
        f"{ROOM}/checks/translation.py",
        "found = sim.static.space[rows + role * len(sim.node_state)]",
        "found = wanted",
        "namespaces of a run are not looked at",
        TRANSLATION,
    ),
    # The driver
    Fault(
        "kernel-12",
        f"{ROOM}/driver/play_driver.py",
        "        live.ready = max(live.ready, now + edge.delay)\n",
        "        live.ready = now + edge.delay\n",
        "a join waits for the last of its edges, and not for the longest",
        DRIVER,
    ),
    Fault(
        "kernel-13",
        f"{ROOM}/driver/play_driver.py",
        "        if edge.trigger != trigger:\n            continue\n",
        "",
        "all edges of a request fire at its dispatch",
        DRIVER,
    ),
    Fault(
        "kernel-14",
        f"{ROOM}/driver/play_driver.py",
        "            if state in (_BLOCKED, _READY):\n",
        "            if state == _BLOCKED:\n",
        "requests of a failed play that only wait for their time are not skipped",
        ("tests/properties/test_driver.py",),
    ),
    Fault(
        "kernel-15",
        f"{ROOM}/driver/play_driver.py",
        "    if play.in_flight > 0:\n        return\n",
        "",
        "a lane goes on while requests of its failed play are in flight",
        ("tests/unit/test_scheduling.py",),
    ),
    Fault(
        "kernel-16",
        f"{ROOM}/driver/play_driver.py",
        "            if child + 1 < end and static[values[child + 1]].serial > static[values[child]].serial:\n",
        "            if child + 1 < end and static[values[child + 1]].serial < static[values[child]].serial:\n",
        "what ended at one instant is not heard in the order of the corpus",
        ("tests/unit/test_scheduling.py", "tests/properties/test_driver.py"),
    ),
    Fault(
        "kernel-17",
        f"{ROOM}/ground/timers.py",
        "return a.time < b.time or (a.time == b.time and a.serial < b.serial)",
        "return a.time < b.time",
        "what is due at one instant goes in the order of the heap",
        (REPLAYS, "-k", "ties or lanes"),
    ),
    Fault(
        "kernel-18",
        f"{ROOM}/ground/timers.py",
        "    while run.heap > 0 and sim.heap[0].time <= run.now:\n",
        "    while run.heap > 0 and sim.heap[0].time < run.now:\n",
        "a request due now is not dispatched now",
        DRIVER,
    ),
    # vLLM
    Fault(
        "kernel-19",
        f"{ROOM}/engines/vllm.py",
        "        while needed - live.table_len > block_pool.available(sim, worker):\n"
        "            preempted = True\n"
        "            if preempt_last(sim, worker) == request:\n"
        "                fits = False\n"
        "                break\n"
        "        if fits:\n",
        "        while needed - live.table_len >= block_pool.available(sim, worker):\n"
        "            preempted = True\n"
        "            if preempt_last(sim, worker) == request:\n"
        "                fits = False\n"
        "                break\n"
        "        if fits:\n",
        "a request is preempted although the last free block would do",
        VLLM,
    ),
    Fault(
        "kernel-20",
        f"{ROOM}/engines/vllm.py",
        "    if not preempted:\n        if with_host:\n",
        "    if True:\n        if with_host:\n",
        "a pass that preempted admits others",
        SCHEDULING,
    ),
    Fault(
        "kernel-21",
        f"{ROOM}/engines/vllm.py",
        "return int((tokens - 1 if sim.static[request].limit > 0 else tokens) // config.block_size)",
        "return int(tokens // config.block_size)",
        "the last token of a prompt is not computed when all of it is cached",
        VLLM,
    ),
    Fault(
        "kernel-22",
        f"{ROOM}/engines/vllm.py",
        "return int(config_of(sim, worker).watermark) if sim.workers[worker].running > 0 else 0",
        "return int(config_of(sim, worker).watermark)",
        "the watermark holds for a request that would run alone",
        (REPLAYS, "-k", "watermark"),
    ),
    Fault(
        "kernel-23",
        f"{ROOM}/engines/vllm.py",
        "            # Even the whole pool would not do: retrying for ever would stall the worker.\n"
        "            block_tables.release_all(sim, worker, request)\n"
        "            lifecycle.remove_running(sim, worker, request)\n"
        "            lifecycle.note_outcome(sim, worker, request, _FAIL)",
        "            # Even the whole pool would not do: retrying for ever would stall the worker.\n"
        "            block_tables.release_all(sim, worker, request)\n"
        "            lifecycle.remove_running(sim, worker, request)\n"
        "            lifecycle.note_outcome(sim, worker, request, _REJECT)",
        "a request that outgrew the pool counts as rejected",
        (REPLAYS, "-k", "outgrows or reject"),
    ),
    Fault(
        "kernel-24",
        f"{ROOM}/engines/vllm.py",
        "        if live.computed == static.input + live.generated + number - 1:\n",
        "        if live.computed >= static.input:\n",
        "a request that computes its prompt again gets a token too early",
        RULES,
    ),
    Fault(
        "kernel-25",
        f"{ROOM}/engines/vllm.py",
        "        number = min(number, sim.static[request].limit - sim.live[request].generated)\n",
        "",
        "a macro-step goes past the end of a request",
        VLLM,
    ),
    Fault(
        "kernel-26",
        f"{ROOM}/engines/vllm.py",
        "    if not _growth_fits(sim, worker, number - 1, room):\n",
        "    if False:\n",
        "a macro-step takes blocks that the pool does not have",
        (REPLAYS, "-k", "preemption or outgrows or blocks"),
    ),
    Fault(
        "kernel-27",
        f"{ROOM}/engines/vllm.py",
        "    if present <= 1:\n        record.most = config.max_batched_tokens\n",
        "",
        "a long prompt that is alone is computed in the small steps of one beside others",
        (REPLAYS, "-k", "long_prefill or long-prefill"),
    ),
    Fault(
        "kernel-28",
        f"{ROOM}/engines/vllm_async.py",
        "return bool(live.owed > 0 and live.generated + live.owed >= sim.static[request].limit)",
        "return bool(live.owed > 0 and live.generated + live.owed > sim.static[request].limit)",
        "with asynchronous scheduling a request that ends is scheduled once more",
        AHEAD,
    ),
    Fault(
        "kernel-29",
        f"{ROOM}/engines/vllm.py",
        "    while at != NONE and sim.tickets[at].order <= order:\n",
        "    while at != NONE:\n",
        "a prompt handed over waits behind all others, not at the place of its arrival",
        RULES,
    ),
    # Passes, timing, speculation
    Fault(
        "kernel-30",
        f"{ROOM}/engines/passes.py",
        "        record_gap(sim, record.first_duration, (number - 1) * counted)\n",
        "        record_gap(sim, record.first_duration, number * counted)\n",
        "a macro-step counts a gap too many",
        RULES,
    ),
    Fault(
        "kernel-31",
        f"{ROOM}/engines/passes.py",
        "number = min((now - record.pass_start) // record.first_duration, record.macro)",
        "number = (now - record.pass_start) // record.first_duration",
        "more passes of a macro-step count as ended than it has",
        STOP,
        equivalent="a step is cut before its end alone: the instant at which its last pass ends is an event of its own",
    ),
    Fault(
        "kernel-32",
        f"{ROOM}/engines/passes.py",
        "live.second_token = first + duration_of(sim, worker, 2)",
        "live.second_token = first + record.first_duration",
        "the second token comes as if the batch had not grown",
        RULES,
    ),
    Fault(
        "kernel-33",
        f"{ROOM}/engines/timing.py",
        "share = min(1.0, float(tokens) / capacity)",
        "share = float(tokens) / capacity",
        "the polynomial is asked for pools fuller than full",
        ("tests/unit/test_scheduling.py",),
    ),
    Fault(
        "kernel-34",
        f"{ROOM}/engines/timing.py",
        "return round((_PREFILL_2 * tokens",
        "return int((_PREFILL_2 * tokens",
        "nanoseconds of a prefill are cut off, not rounded",
        (REPLAYS, "-k", "polynomial"),
    ),
    Fault(
        "kernel-35",
        f"{ROOM}/engines/speculation.py",
        ">= config.rates[tokens - 1]:",
        ">= config.rates[0]:",
        "every draft is accepted at the first one's rate",
        DRAFTS,
    ),
    Fault(
        "kernel-36",
        f"{ROOM}/engines/speculation.py",
        "return float((b << 21) | (a >> 11)) / 9007199254740992.0",
        "return float((b << 21) | (a >> 12)) / 9007199254740992.0",
        "draws lose their last bit",
        ("tests/properties/test_speculation.py", "-k", "last_bit"),
    ),
    # The pool of blocks
    Fault(
        "kernel-37",
        f"{ROOM}/memory/block_pool.py",
        "    for i in range(number - 1, -1, -1):\n        frame = natural(entries[i])\n        refs =",
        "    for i in range(number):\n        frame = natural(entries[i])\n        refs =",
        "the head of a prompt is let go before its end, and evicted first",
        BLOCKS,
    ),
    Fault(
        "kernel-38",
        f"{ROOM}/memory/block_pool.py",
        "    if number > record.free:\n        evict(pool, number)\n",
        "    if number >= record.free:\n        evict(pool, number + 1)\n",
        "a cached block is evicted though enough are free",
        BLOCKS,
    ),
    Fault(
        "kernel-39",
        f"{ROOM}/memory/block_pool.py",
        "        while links[latest] != NONE:\n            latest = natural(links[latest])\n",
        "        pass\n",
        "of several copies of a block all but two are lost",
        BLOCKS,
    ),
    Fault(
        "kernel-40",
        f"{ROOM}/memory/block_pool.py",
        "    if record.newest - record.oldest + number > mask:\n        _compact(pool)\n",
        "",
        "the order of idle blocks overwrites its own beginning",
        BLOCKS,
    ),
    Fault(
        "kernel-41",
        f"{ROOM}/memory/block_tables.py",
        "key = static.space + keys.first + (block - number) * config.key_stride",
        "key = keys.first + (block - number) * config.key_stride",
        "cached blocks are found across namespaces",
        CONTROLS,
    ),
    # SGLang
    Fault(
        "kernel-42",
        f"{ROOM}/memory/radix_tree.py",
        "        if nodes[above].tick <= nodes[leaf].tick:\n",
        "        if nodes[above].tick >= nodes[leaf].tick:\n",
        "the newest leaf of the radix tree is evicted first",
        SGLANG_RULES,
    ),
    Fault(
        "kernel-43",
        f"{ROOM}/memory/radix_tree.py",
        "        if entry.locks == 0:\n            record.idle += entry.end - entry.begin\n",
        "        if True:\n            record.idle += entry.end - entry.begin\n",
        "pages that another request has locked count as evictable",
        RADIX,
    ),
    Fault(
        "kernel-44",
        f"{ROOM}/memory/radix_tree.py",
        "        record.free += common - depth\n",
        "",
        "pages that the tree already has are lost when a request ends",
        RADIX,
    ),
    Fault(
        "kernel-45",
        f"{ROOM}/engines/sglang.py",
        "record.ratio = min(1.0, expected / (float(limits) + 1.0))",
        "record.ratio = min(1.0, expected / float(limits))",
        "after a retraction the share of output that is expected is too high",
        ("tests/unit/test_sglang_rules.py", "-k", "twenty_passes"),
    ),
    Fault(
        "kernel-46",
        f"{ROOM}/engines/sglang.py",
        "ratio = max(ratio - config.ratio_step, config.ratio_least)",
        "ratio = ratio - config.ratio_step",
        "the new-token ratio falls below its bound",
        SGLANG_RULES,
    ),
    Fault(
        "kernel-47",
        f"{ROOM}/engines/sglang_own.py",
        "fits = float(need) < _tokens(sim, worker, locked) - record.offset",
        "fits = float(need) <= _tokens(sim, worker, locked) - record.offset",
        "a request is admitted that takes the last token of the pool",
        SGLANG,
    ),
    Fault(
        "kernel-48",
        f"{ROOM}/engines/sglang_own.py",
        "tokens = record.chunk_left // size * size",
        "tokens = record.chunk_left",
        "a chunk is not cut to whole pages",
        SGLANG_RULES,
    ),
    Fault(
        "kernel-49",
        f"{ROOM}/engines/sglang_own.py",
        "return bool(tokens > other or (tokens == other and sim.static[a].input < sim.static[b].input))",
        "return bool(tokens < other or (tokens == other and sim.static[a].input < sim.static[b].input))",
        "the request with the most output is retracted first",
        SGLANG_RULES,
    ),
    # Prefill/decode, routing
    Fault(
        "kernel-50",
        f"{ROOM}/handoff/handoffs.py",
        "tokens = sim.static[request].input if config.full_prompt != 0 else sim.handoffs[node].missing",
        "tokens = sim.static[request].input",
        "what the decode worker has already is moved once more",
        PAIR,
    ),
    Fault(
        "kernel-51",
        f"{ROOM}/handoff/handoffs.py",
        "        if sim.handoff_state[node] == _TRANSFERRING:\n            _queue(",
        "        if True:\n            _queue(",
        "a transfer of a canceled request activates it",
        RULES,
    ),
    Fault(
        "kernel-52",
        f"{ROOM}/handoff/handoffs.py",
        "if prompt >= config.context or prompt > config.blocks * config.block_size:",
        "if prompt >= config.context or prompt >= config.blocks * config.block_size:",
        "a prompt that fills the pool of a decode worker to the last token is refused there",
        RULES,
    ),
    Fault(
        "kernel-53",
        f"{ROOM}/routing/kv_router.py",
        "if best == NONE or cost < best_cost or (cost == best_cost and assigned < best_load):",
        "if best == NONE or cost <= best_cost:",
        "of workers that cost the same the last one is chosen",
        ROUTER,
    ),
    Fault(
        "kernel-54",
        f"{ROOM}/ground/worker_load.py",
        "        record.assigned -= sim.live[request].generated\n",
        "        pass\n",
        "tokens of requests that are through count as load for ever",
        ROUTER,
    ),
    # Host memory
    Fault(
        "kernel-55",
        f"{ROOM}/host/host_pool.py",
        "        for low in range(GROUP - 1, -1, -1):\n            if left > 0",
        "        for low in range(GROUP):\n            if left > 0",
        "the head of a key group of a prompt is evicted before its end",
        HOST,
    ),
    Fault(
        "kernel-56",
        f"{ROOM}/host/host_pool.py",
        "pinned = pinned or found & ~(record.pending | record.idle) != 0",
        "pinned = pinned or found & ~record.idle != 0",
        "a block that is on its way counts as being read",
        HOST,
    ),
    Fault(
        "kernel-57",
        f"{ROOM}/host/offload.py",
        "min(max(record.link_free[direction], ready) + duration, HORIZON_NS)",
        "min(ready + duration, HORIZON_NS)",
        "copies of one link go side by side at its full rate each",
        HOSTED,
    ),
    Fault(
        "kernel-58",
        f"{ROOM}/host/offload.py",
        "        may_start = max(may_start, _readers_end(sim, worker, request, hits))\n",
        "        pass\n",
        "a load writes into blocks that a store still reads",
        HOSTED,
    ),
    Fault(
        "kernel-59",
        f"{ROOM}/host/host_links.py",
        "if total == 0.0 or rate * sharing <= left * moving:",
        "if total == 0.0 or rate * sharing < left * moving:",
        "a link that the pool fills exactly gets the level of the others",
        LINKS,
        equivalent="the level of the others is then that link's own rate a copy",
    ),
    Fault(
        "kernel-60",
        f"{ROOM}/host/host_links.py",
        "                left -= rate\n                sharing -= moving\n",
        "                sharing -= moving\n",
        "what a slow link takes of the pool is given to the others as well",
        LINKS,
    ),
    # Run controls
    Fault(
        "kernel-61",
        f"{ROOM}/driver/instances.py",
        "return int((ordinal * config.lanes + lane) * config.key_span)",
        "return int(lane * config.key_span)",
        "plays of one lane share a namespace",
        TRANSLATION,
    ),
    Fault(
        "kernel-62",
        f"{ROOM}/driver/instances.py",
        "            advance(NODE_TABLE, sim.node_state, slot, _CUT)\n            play.completed += 1\n",
        "            advance(NODE_TABLE, sim.node_state, slot, _CUT)\n",
        "a play that was cut never completes",
        CONTROLS,
    ),
    Fault(
        "kernel-63",
        f"{ROOM}/runs/phases.py",
        "capped = sim.plays[seat].idle_since + config.tree_cap",
        "capped = run.idle_since + config.tree_cap",
        "the cap on a play's idleness counts from the last end of any play",
        RUN_CONTROLS,
    ),
    Fault(
        "kernel-64",
        f"{ROOM}/runs/phases.py",
        "        if phase[0] == _BARRIER and _server_settled(sim):\n",
        "        if phase[0] == _BARRIER:\n",
        "measurement begins while engines still hold prompts of the preparation",
        RUN_CONTROLS,
    ),
    Fault(
        "kernel-65",
        f"{ROOM}/runs/cuts.py",
        "historical = {node: float(graph.not_before_ms[node]) < time_ms for node in nodes}",
        "historical = {node: float(graph.not_before_ms[node]) <= time_ms for node in nodes}",
        "a request that starts at the cut is history",
        CONTROLS,
    ),
    Fault(
        "kernel-66",
        f"{ROOM}/runs/cuts.py",
        "return (ordinal * lanes + lane) % plays",
        "return ordinal % plays",
        "all lanes run the same play",
        CONTROLS,
    ),
    Fault(
        "kernel-67",
        f"{ROOM}/runs/controlled_setup.py",
        "return np.where(np.diff(graph.edge_offsets) == 0, floors, 0)",
        "return floors",
        "in a play that starts whole, requests that wait for others have floors",
        TRANSLATION,
    ),
    # Live prompts, the loop, the tables
    Fault(
        "kernel-68",
        f"{ROOM}/corpus/live_keys.py",
        "root = self._roots.get(namespace)",
        'root = self._roots.get("") if self._roots else None',
        "online prompts of different namespaces share blocks",
        ("tests/properties/test_chains.py",),
    ),
    Fault(
        "kernel-69",
        f"{ROOM}/runs/loop.py",
        "        if time == sim.config[0].end:\n            _cut_macro_steps(sim)\n",
        "",
        "a run that is stopped does not count the passes that ended by then",
        STOP,
    ),
    Fault(
        "kernel-70",
        f"{ROOM}/runs/loop.py",
        "        elif handoffs.reserve_next(sim, worker):\n",
        "        elif False:\n",
        "a pending destination on a worker that cannot start a pass waits for ever",
        RULES,
    ),
    Fault(
        "kernel-71",
        f"{ROOM}/engines/vllm.py",
        "return min(spec.max_batched_tokens, spec.long_prefill_tokens)",
        "return max(spec.max_batched_tokens, spec.long_prefill_tokens)",
        "the bound of a run's end overlooks that long prompts go in small steps",
        ("tests/unit/test_clock.py",),
    ),
    Fault(
        "kernel-72",
        f"{ROOM}/ground/lifecycle.py",
        "    record.capacity_epoch += 1\n    if config_of(sim, worker).role == _PREFILL:\n",
        "    if config_of(sim, worker).role == _PREFILL:\n",
        "a destination that waits is not tried again when a request has ended",
        PAIR,
    ),
    Fault(
        "kernel-73",
        f"{ROOM}/ground/transitions.py",
        "    if successor < 0:\n",
        "    if successor < -1:\n",
        "an illegal transition is carried out",
        ("tests/unit/test_machines.py",),
    ),
    Fault(
        "kernel-74",
        f"{ROOM}/ground/queues.py",
        "    if queue.tail == request:\n        queue.tail = before\n",
        "",
        "what is put behind a request that left the end of a queue is lost",
        ("tests/properties/test_disaggregated.py", "tests/properties/test_live.py"),
    ),
    Fault(
        "kernel-75",
        f"{ROOM}/runs/live_engine.py",
        "            if owned[slot] > 0 or self._engaged(slot):\n",
        "            if self._engaged(slot):\n",
        "an online SGLang worker reuses a slot whose prompt is still in its tree",
        ("tests/properties/test_live.py",),
    ),
    Fault(
        "kernel-76",
        f"{ROOM}/engines/sglang.py",
        "return min(max(spec.chunked_prefill_size - spec.block_size, 1), spec.max_prefill_tokens)",
        "return max(max(spec.chunked_prefill_size - spec.block_size, 1), spec.max_prefill_tokens)",
        "the bound of a run's end takes SGLang's larger budget",
        ("tests/unit/test_fit.py", "-k", "not never_fits_is"),
    ),
)
