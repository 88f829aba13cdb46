"""Make the bundled corpus: five small agent sessions as Weka files, and the same five lowered to Agentic Mooncake v2.

    python examples/make_corpus.py [--out FOLDER]

The sessions are invented, but shaped like recorded ones: prompts grow by tool results and keep their prefix, subagents
have a prompt of their own, a marker's time is its subagent's completion and nested times count from the subagent's
start. The same seed gives the same bytes, and a test compares them with the files in the repository.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playproof_lowering import LoweringOptions, load_graph, write_v2

SEED = 20260728
BLOCK_TOKENS = 64
MAIN_MODEL = "large-agent-model"
SIDE_MODEL = "small-agent-model"
# Generation speeds from which recorded service times are made.
MAIN_TOKENS_PER_S = 60.0
SIDE_TOKENS_PER_S = 120.0
PREFILL_S = 0.4


class Thread:
    """One conversation: a prompt that grows, on a clock of its own.

    Parameters
    ----------
    rng : random.Random
    ids : iterator of int
        Fresh hash ids of the session; two threads of it share a block only by sharing an id.
    system : list of int
        Hash ids of the system prompt and tools that the thread starts with.
    """

    def __init__(
        self, rng: random.Random, ids: Iterator[int], system: list[int], model: str, tokens_per_s: float
    ) -> None:
        self.rng = rng
        self.ids = ids
        self.system = system
        self.blocks = list(system)
        self.tokens = len(system) * BLOCK_TOKENS
        self.model = model
        self.tokens_per_s = tokens_per_s
        self.clock_s = 0.0
        self.ended_s = 0.0

    def grow(self, tokens: int) -> None:
        """Append to the prompt. A block has an id once it is full."""
        self.tokens += tokens
        while len(self.blocks) < self.tokens // BLOCK_TOKENS:
            self.blocks.append(next(self.ids))

    def compact(self, summary_tokens: int) -> None:
        """Replace everything but the system prompt by a summary."""
        self.blocks = list(self.system)
        self.tokens = len(self.system) * BLOCK_TOKENS
        self.grow(summary_tokens)

    def call(self, output: int, *, wait_s: float, reads: str = "tool_result", stop: str = "tool_use") -> dict[str, Any]:
        """Ask the model once, `wait_s` after the previous answer; the answer joins the prompt."""
        start = round(self.ended_s + wait_s, 3)
        service = round(PREFILL_S + output / self.tokens_per_s, 2)
        request = {
            "t": start,
            "type": "n",
            "model": self.model,
            "in": self.tokens,
            "out": output,
            "hash_ids": list(self.blocks),
            "input_types": [reads],
            "output_types": ["text", "tool_use"] if stop == "tool_use" else ["text"],
            "stop": stop,
            "api_time": service,
            "think_time": round(wait_s, 3),
        }
        self.ended_s = start + service
        self.grow(output)
        return request

    def tool(self, tokens: tuple[int, int], output: tuple[int, int], wait_s: tuple[float, float]) -> dict[str, Any]:
        """Run a tool and let the model read its result: sizes and time from the given ranges."""
        self.grow(self.rng.randint(*tokens))
        return self.call(self.rng.randint(*output), wait_s=self.rng.uniform(*wait_s))


class Session:
    """One play: the main thread, its subagents, and the file they become."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(f"{seed}:{name}")
        self.ids = itertools.count(1)
        self.system = [next(self.ids) for _ in range(12)]
        # Subagents share a system prompt among themselves, not with the main thread.
        self.side_system = [next(self.ids) for _ in range(6)]
        self.main = Thread(self.rng, self.ids, self.system, MAIN_MODEL, MAIN_TOKENS_PER_S)
        self.requests: list[dict[str, Any]] = []
        self.agents = 0

    def ask(self, prompt_tokens: int, output: int) -> None:
        """Start with the user's words."""
        self.main.grow(prompt_tokens)
        self.requests.append(self.main.call(output, wait_s=0.0, reads="text"))

    def tools(self, count: int, tokens: tuple[int, int] = (60, 400), wait_s: tuple[float, float] = (0.2, 6.0)) -> None:
        """Let the main thread use `count` tools one after another."""
        for _ in range(count):
            self.requests.append(self.main.tool(tokens, (20, 90), wait_s))

    def subagent(self, kind: str, turns: int, *, background: bool = False, after_s: float = 0.1) -> float:
        """Launch a subagent `after_s` after the main thread's answer; return when it is done."""
        self.agents += 1
        side = Thread(self.rng, self.ids, self.side_system, SIDE_MODEL, SIDE_TOKENS_PER_S)
        side.grow(self.rng.randint(40, 160))
        nested = [side.call(self.rng.randint(30, 80), wait_s=0.0, reads="text")]
        nested += [side.tool((80, 500), (20, 80), (0.1, 3.0)) for _ in range(turns - 2)]
        side.grow(self.rng.randint(40, 200))
        nested.append(side.call(self.rng.randint(120, 260), wait_s=self.rng.uniform(0.1, 1.0), stop="end_turn"))
        duration_s = round(side.ended_s + 0.05, 3)
        done = round(self.main.ended_s + after_s + duration_s, 3)
        self.requests.append(
            {
                "t": done,
                "type": "subagent",
                "agent_id": f"agent_{self.agents:03d}",
                "subagent_type": kind,
                "duration_ms": round(duration_s * 1000),
                "status": "async_launched" if background else "completed",
                "models": [SIDE_MODEL],
                "requests": nested,
            }
        )
        return done

    def answer(self, output: int, *, at_s: float | None = None, reads_tokens: int = 200) -> None:
        """Let the main thread answer, at the earliest at `at_s`, when the subagents it waits for are done."""
        self.main.grow(reads_tokens)
        wait = 0.3 if at_s is None else max(at_s + 0.3 - self.main.ended_s, 0.3)
        self.requests.append(self.main.call(output, wait_s=wait, stop="end_turn"))

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "models": [MAIN_MODEL, SIDE_MODEL],
            "block_size": BLOCK_TOKENS,
            "hash_id_scope": "local",
            "system_tokens": len(self.system) * BLOCK_TOKENS,
            "requests": self.requests,
        }


def fix_a_bug(seed: int) -> Session:
    """One thread: read, edit, test; the tests take their time."""
    session = Session("fix-a-bug", seed)
    session.ask(90, 70)
    session.tools(3)
    session.tools(1, tokens=(300, 600), wait_s=(12.0, 20.0))
    session.tools(2)
    session.answer(180)
    return session


def explore_in_parallel(seed: int) -> Session:
    """Three blocking subagents start together; the main thread goes on when the last of them is done."""
    session = Session("explore-in-parallel", seed)
    session.ask(120, 110)
    done = [session.subagent("Explore", turns, after_s=0.1 * launch) for launch, turns in enumerate((3, 5, 4), start=1)]
    session.answer(260, at_s=max(done), reads_tokens=700)
    return session


def review_in_background(seed: int) -> Session:
    """A background subagent reviews while the main thread works on and never waits for it."""
    session = Session("review-in-background", seed)
    session.ask(140, 60)
    session.subagent("Review", 4, background=True)
    session.tools(4)
    session.answer(150)
    return session


def compact_a_long_one(seed: int) -> Session:
    """A prompt that grows until it is replaced by a summary."""
    session = Session("compact-a-long-one", seed)
    session.ask(200, 80)
    session.tools(5, tokens=(400, 800))
    session.main.compact(300)
    session.tools(2)
    session.answer(160)
    return session


def plan_then_build(seed: int) -> Session:
    """A blocking planner first, then tools, then two blocking subagents at once."""
    session = Session("plan-then-build", seed)
    session.ask(110, 90)
    planned = session.subagent("Plan", 3)
    session.main.grow(250)
    session.requests.append(session.main.call(60, wait_s=max(planned + 0.3 - session.main.ended_s, 0.3)))
    session.tools(2)
    done = [session.subagent("Build", 4, after_s=0.1), session.subagent("Test", 3, after_s=0.2)]
    session.answer(200, at_s=max(done), reads_tokens=500)
    return session


SESSIONS = (fix_a_bug, explore_in_parallel, review_in_background, compact_a_long_one, plan_then_build)


def as_text(play: dict[str, Any]) -> str:
    """Return a play as JSON with a line for every request, so that it can be read."""

    def line(value: dict[str, Any]) -> str:
        nested = value.get("requests")
        if nested is None:
            return json.dumps(value)
        head = json.dumps({name: part for name, part in value.items() if name != "requests"})
        inner = ",\n      ".join(json.dumps(request) for request in nested)
        return f'{head[:-1]}, "requests": [\n      {inner}\n    ]}}'

    head = json.dumps({name: part for name, part in play.items() if name != "requests"}, indent=2)
    body = ",\n    ".join(line(request) for request in play["requests"])
    return f'{head[:-2]},\n  "requests": [\n    {body}\n  ]\n}}\n'


def broken(seed: int) -> dict[str, Any]:
    """Return `explore_in_parallel` with the mistakes of a careless exporter: see examples/README.md."""
    play = explore_in_parallel(seed).to_dict()
    play["id"] = "careless-export"
    first, *_, last = play["requests"]
    first["api_tme"] = first.pop("api_time")
    last["in"] = "4096"
    return play


def deadlock() -> str:
    """Return a v2 trace whose answer waits for a child that waits for the answer, and for one that does not exist."""

    def row(name: str, ms: float, *dependencies: tuple[str, str, str]) -> dict[str, Any]:
        return {
            "request_id": name,
            "play_id": "deadlock",
            "session_id": "deadlock:main" if name != "child" else "deadlock:child",
            "model": MAIN_MODEL,
            "input_length": 128,
            "output_length": 40,
            "hash_ids": [1, 2],
            "not_before_ms": ms,
            "dependencies": [
                {"request_id": source, "trigger": trigger, "delay_ms": 0.0, "relation": relation}
                for source, trigger, relation in dependencies
            ],
        }

    header = {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": BLOCK_TOKENS,
        "hash_id_scope": "local",
        "source": {"format": "hand", "digest": "deadlock"},
    }
    rows = [
        header,
        row("plan", 0.0),
        row("child", 900.0, ("plan", "dispatch", "spawn"), ("answer", "completion", "replay_barrier")),
        row("answer", 2500.0, ("plan", "completion", "sequence"), ("child", "completion", "join")),
        row("report", 4000.0, ("answer", "completion", "sequence"), ("helper", "completion", "join")),
    ]
    return "".join(json.dumps(value) + "\n" for value in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the bundled corpus.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write weka/ and v2/ into")
    out = parser.parse_args().out
    for folder in ("weka", "v2", "broken"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for make in SESSIONS:
        session = make(SEED)
        (out / "weka" / f"{session.name}.json").write_text(as_text(session.to_dict()), encoding="utf-8")
    (out / "broken" / "careless-export.json").write_text(as_text(broken(SEED)), encoding="utf-8")
    (out / "broken" / "deadlock.jsonl").write_text(deadlock(), encoding="utf-8")
    lowered = load_graph([out / "weka"], format="weka", options=LoweringOptions())
    assert lowered.graph is not None
    write_v2(lowered.graph, out / "v2" / "corpus.jsonl")


if __name__ == "__main__":
    main()
