"""SGLang's own pieces under its overlap schedule, beside ours: the evidence behind docs/fidelity.md.

    python bench/sglang_overlap.py make TARGET FIRST LAST   # random workloads under pressure, one folder a seed
    python bench/sglang_overlap.py drive FOLDER...          # where sglang 0.5.23 is installed: overlap.json into each
    python bench/sglang_overlap.py compare FOLDER...        # where playproof is: each against its overlap.json

FOLDERs hold a ``config.yaml`` and a ``trace.jsonl``: those that `make` writes, the goldens
``replay-sglang-overlap…``, and the cases of ``sglang_scheduler`` beside the project (copied; or under
``PLAYPROOF_REFERENCE``), whose ``run_sglang.py`` is what `drive` builds on. `compare` leaves with 1 when any differs.

SGLang's own are, besides those of ``run_sglang.py`` (admission, radix tree, order of retraction, ratio):
`Scheduler._reqs_finishing_inflight` and `Req.next_output_finishes_by_length`, which say whom the batch in flight
brings to its length. The loop is ours, written after `Scheduler.event_loop_overlap`, `get_next_batch_to_run`,
`update_running_batch` and the processors of batch results.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NS_PER_MS = 1e6
RESULT = "overlap.json"
SWITCH = "engine.workers.aggregated.scheduler.async_scheduling=true"
TOTALS = ("passes", "busy_ms", "preemptions", "prefill_tokens")

# Random workloads -------------------------------------------------------------------------------------------------

CONFIG = """traffic:
  source: {{type: trace, format: agentic_mooncake, paths: [trace.jsonl]}}
  load: {{type: trace_timestamps}}
engine:
  mode: aggregated
  backend: sglang
  context_length: max
  workers:
    aggregated:
      parallelism: {{replicas: 1}}
      scheduler: {{max_sequences: {seats}, chunked_prefill_size: {chunk}, max_prefill_tokens: {most},
        schedule_conservativeness: {keep}, async_scheduling: true}}
      kv_cache: {{block_size: {page}, prefix_caching: true, capacity: {{type: fixed, blocks: {blocks}}}}}
      timing: {timing}
"""
TIMINGS = (
    "{type: fixed, prefill_ms: 10, decode_ms: 1}",
    "{type: fixed, prefill_ms: 3, decode_ms: 3}",
    "{type: polynomial}",
)


def _rows(chance: random.Random, most: int) -> list[dict[str, Any]]:
    """Draw requests of at most `most` tokens: shared prefixes, short and long outputs, some after others."""
    rows: list[dict[str, Any]] = []
    fresh, groups, span = 1000, chance.randint(1, 4), chance.choice([0, 50, 400, 1500])
    for number in range(chance.randint(6, 40)):
        length = chance.randint(1, min(40, most // 2))
        output = min(chance.choice([1, 2, chance.randint(1, 12), chance.randint(1, 80)]), most - length)
        group = chance.randrange(groups)
        shared = chance.randint(0, length) if chance.random() < 0.6 else 0
        hashes = [group * 100 + i + 1 for i in range(shared)] + list(range(fresh, fresh + length - shared))
        fresh += length
        edges = []
        if number > 0 and chance.random() < 0.25:
            trigger = chance.choice(["completion", "completion", "dispatch"])
            edges.append(
                {
                    "request_id": f"r{chance.randrange(number):03d}",
                    "trigger": trigger,
                    "delay_ms": chance.choice([0, 0, 3, 20.5]),
                    "relation": "sequence" if trigger == "completion" else "spawn",
                }
            )
        at = round(chance.choice([0, chance.randint(0, span), chance.random() * span]), 3)
        if number == 0:
            at = 0.0  # the origin of the clock is a root's, whatever the floors of others say
        row = {"request_id": f"r{number:03d}", "play_id": "p", "session_id": f"s{number}", "model": "m"}
        shape = {"input_length": length, "output_length": output, "hash_ids": hashes}
        rows.append({**row, **shape, "not_before_ms": at, "dependencies": edges})
    return rows


def make(target: Path, first: int, last: int) -> None:
    """Write the workloads of the seeds from `first` to `last`, without the latter."""
    for seed in range(first, last):
        chance = random.Random(seed)
        page = chance.choice([1, 1, 2, 4, 16])
        pages = max(chance.choice([60, 100, 160, 300]) // page, 12)
        # A request and what admission keeps beside it have to fit into an empty pool.
        rows = _rows(chance, (pages - 3) * page - 3)
        source = {"format": "hand", "digest": f"tight{seed}"}
        header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 1, "hash_id_scope": "local"}
        folder = target / f"tight-{seed:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(line) for line in [{**header, "source": source}, *rows]]
        (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
        settings = {
            "seats": chance.choice([2, 3, 6, 16, 64]),
            "chunk": max(chance.choice([8192, 64, 16, 32]), page),
            "most": chance.choice([16384, 16384, 30]),
            "keep": chance.choice([0.01, 0.01, 0.2, 1.0]),
        }
        text = CONFIG.format(page=page, blocks=pages, timing=chance.choice(TIMINGS), **settings)
        (folder / "config.yaml").write_text(text)


# SGLang -----------------------------------------------------------------------------------------------------------


def reference_root() -> Path:
    """Return the folder of the reference results."""
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "reference"
    return Path(os.environ.get("PLAYPROOF_REFERENCE", beside))


@dataclass
class Batch:
    """What was launched: its requests at that time, the one whose prompt goes on after it, when it ends."""

    extends: bool
    reqs: list[Any]
    chunked: Any = None
    end_ns: int = 0


def overlap_drive() -> Any:
    """Return the class that drives SGLang's pieces under the overlap schedule."""
    sys.path.insert(0, str(reference_root() / "sglang_scheduler"))
    import run_sglang
    from sglang.srt.managers.schedule_batch import Req as EngineReq
    from sglang.srt.managers.scheduler import Scheduler

    run_sglang.Req.next_output_finishes_by_length = EngineReq.next_output_finishes_by_length
    run_sglang.Req.is_retracted = False
    run_sglang.Req.inflight_middle_chunks = 0
    run_sglang.Req.beam_group = None

    class OverlapDrive(run_sglang.Drive):
        running: list[Any]

        def __init__(self, folder: Path) -> None:
            super().__init__(folder, {})
            self.last: Batch | None = None  # in flight
            self.device_free_ns = self.waits_for_pages = self.thrown_away = 0

        def release(self, req: Any, keep: bool) -> None:
            super().release(req, keep)
            req.is_retracted = req.is_retracted or not keep

        def merge(self) -> None:
            if self.chunked is not None and self.chunked.extend_end > self.chunked.prefix_len:
                self.tree.checkpoint(self.chunked, up_to=self.chunked.extend_end)
                self.chunked.prefix_len = self.chunked.extend_end
            if self.last is not None and self.last.extends:
                going_on = (self.chunked, self.last.chunked)
                kept = [req for req in self.last.reqs if not req.finished() and req not in going_on]
                if len(kept) < len(self.last.reqs) or (kept and not self.running):
                    self.full = False
                self.running = self.running + kept
            alive = [req for req in self.running if not req.finished()]
            self.full = self.full and len(alive) == len(self.running)
            self.running = alive

        def prefill(self) -> list[Any]:
            batch: list[Any] = super().prefill()
            for req in batch:
                req.is_retracted = False
            if batch and self.chunked is not None:
                self.chunked.inflight_middle_chunks += 1
            return batch

        def decode(self) -> list[Any]:
            queue = [] if self.last is None else [(SimpleNamespace(reqs=self.last.reqs), None)]
            scheduler = SimpleNamespace(enable_skip_finishing_decode=True, result_queue=queue)
            finishing = Scheduler._reqs_finishing_inflight(scheduler, SimpleNamespace(reqs=self.running))
            self.running = [req for req in self.running if req not in finishing]
            if not self.running:
                self.full = False
                return []
            if finishing:
                self.full = False
                if not self.fits(self.running):
                    self.waits_for_pages += 1
                    return []
            return list(super().decode())

        def launch(self) -> Batch | None:
            self.merge()
            reqs = self.prefill()
            part, known = [0, 0, 0], 0
            batch = Batch(bool(reqs), list(reqs) or self.decode(), self.chunked if reqs else None)
            if not batch.reqs:
                return None
            if batch.extends:
                part = [len(reqs), sum(req.extend_end for req in reqs), sum(req.prefix_len for req in reqs)]
                self.prefill_tokens += sum(req.extend_len for req in reqs)
            else:
                owed = [] if self.last is None else self.last.reqs
                known = sum(len(req.full_untruncated_fill_ids) + (req in owed) for req in batch.reqs)
            decoding = 0 if batch.extends else len(batch.reqs)
            duration = run_sglang.cost_ns(self.timing, self.pool_tokens, part, decoding, known)
            batch.end_ns = self.device_free_ns = max(self.now, self.device_free_ns) + duration
            self.passes += 1
            self.busy += duration
            return batch

        def process(self, batch: Batch) -> None:
            for req in batch.reqs:
                if req.is_retracted:
                    self.thrown_away += 1
                elif not batch.extends:
                    self.token(req)
                elif req.inflight_middle_chunks > 0:
                    req.inflight_middle_chunks -= 1
                else:
                    if len(req.output_ids) + 1 < req.sampling_params.max_new_tokens:
                        self.tree.checkpoint(req, up_to=req.extend_end)
                        req.prefix_len = req.extend_end
                    self.token(req)

        def run(self) -> None:
            while self.left:
                self.arrivals()
                batch = self.launch()
                if self.last is not None:
                    self.now = self.last.end_ns
                    self.process(self.last)
                elif batch is None:
                    if not self.ready:
                        raise RuntimeError(f"stalled at {self.now}")
                    self.now = max(self.now, self.ready[0][0])
                self.last = batch

    return OverlapDrive


def drive(folders: list[Path]) -> None:
    """Write what SGLang's pieces make of each of `folders` beside its trace."""
    import sglang

    logging.disable(logging.WARNING)
    kind = overlap_drive()
    for folder in folders:
        try:
            run = kind(folder)
            run.run()
        except (RuntimeError, AssertionError) as error:
            print(f"{folder.name}: {error}")
            (folder / RESULT).write_text(json.dumps({"error": str(error)}))
            continue
        preemptions = sum(len(entry["preempted_ms"]) for entry in run.result.values())
        figures = (run.passes, run.busy / NS_PER_MS, preemptions, run.prefill_tokens)
        totals = dict(zip(TOTALS, figures, strict=True))
        totals |= {"waits_for_pages": run.waits_for_pages, "thrown_away": run.thrown_away}
        outcome = {"version": sglang.__version__, "requests": run.result, "totals": totals}
        (folder / RESULT).write_text(json.dumps(outcome))


# Ours -------------------------------------------------------------------------------------------------------------


def _ns(time_ms: float | None) -> int | None:
    return None if time_ms is None else round(time_ms * NS_PER_MS)


def differences(folder: Path, expected: dict[str, Any]) -> list[str]:
    """Return in words where we serve a workload otherwise than `expected`: to the nanosecond."""
    import playproof as pp

    report = pp.run(folder / "config.yaml", paths=folder / "trace.jsonl", overrides=[SWITCH])
    found = []
    for row in report.request_dicts():
        entry = expected["requests"][row["request_id"]]
        admissions = [(_ns(a["at_ms"]), a["reused_input_tokens"]) for a in row["admission_history"]]
        theirs = [(_ns(a["at_ms"]), a["cached_tokens"]) for a in entry["admissions"]]
        mine = (admissions, _ns(row["first_token_ms"]), _ns(row["last_token_ms"]), row["output_length"])
        other = (theirs, _ns(entry["first_token_ms"]), _ns(entry["last_token_ms"]), entry["output_length"])
        if mine != other:
            found.append(f"{row['request_id']}: {mine} != {other}")
    ledger = report.ledger
    counts = (
        ledger.passes.sum(),
        ledger.busy_ns.sum() / NS_PER_MS,
        ledger.preemptions.sum(),
        ledger.prefill_tokens.sum(),
    )
    for name, value in zip(TOTALS, counts, strict=True):
        if value != expected["totals"][name]:
            found.append(f"{name}: {value} != {expected['totals'][name]}")
    return found


def compare(folders: list[Path]) -> bool:
    """Say how many of `folders` are equal; whether all are."""
    equal = compared = 0
    shown = dict.fromkeys(("preemptions", "waits_for_pages", "thrown_away"), 0)
    for folder in folders:
        expected = json.loads((folder / RESULT).read_text())
        if "error" in expected:
            continue
        compared += 1
        for name in shown:
            shown[name] += expected["totals"][name] > 0
        found = differences(folder, expected)
        equal += not found
        if found:
            print(f"  {folder.name}: {len(found)} differences, first {found[0][:300]}")
    what = ", ".join(f"{name.replace('_', ' ')} in {count}" for name, count in shown.items())
    print(f"{equal} of {compared} cases equal ({what})")
    return equal == compared


def main() -> None:
    """Do what the first argument says."""
    what, *arguments = sys.argv[1:]
    if what == "make":
        make(Path(arguments[0]), int(arguments[1]), int(arguments[2]))
    elif what == "drive":
        drive([Path(name) for name in arguments])
    elif what == "compare":
        sys.exit(0 if compare([Path(name) for name in arguments]) else 1)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
