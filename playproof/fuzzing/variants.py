"""What a variant of a user's run is, and how one is drawn: from the seed and its number alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import numpy as np
from playproof_spec.graph import Graph

from playproof.deployment import AnyDeployment, Deployment, Load, RoleWorkers
from playproof.fields import MAX_BLOCKS
from playproof.fuzzing.cutting import at_other_times, beginnings, of_plays, thinned

# How large a slice is, which the executable specification replays too: plays, requests a play, tokens of a prompt.
SLICE_PLAYS, SLICE_REQUESTS, SLICE_PROMPT, SLICE_OUTPUT = 3, 6, 1200, 24
SPEEDUPS = (0.5, 1.0, 1.0, 2.0, 10.0)
MOST_WORKERS, MOST_LANES, MOST_CANCELED = 4, 12, 6
# How often the largest request fits in a drawn pool, unless the user's own is larger.
MOST_FOR_ONE = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """A graph to prove, what it is replayed on, and how many clients give up.

    Attributes
    ----------
    graph : Graph
    deployment : Deployment or Disaggregated
    load : Load
    cancellations : int
        How many requests are canceled while they are in flight, at most.
    """

    graph: Graph
    deployment: AnyDeployment
    load: Load
    cancellations: int

    def __str__(self) -> str:
        pools = ", ".join(
            f"{name} {role.workers} × {role.blocks:,} blocks" for name, role in self.deployment.roles.items()
        )
        lanes = self.load.lanes if self.load.concurrency is None else self.load.concurrency
        said = [f"plays {len(self.graph.plays):,}, requests {self.graph.node_count:,} on {pools}"]
        said += [f"lanes {lanes}"] if lanes is not None else []
        said += [f"speedup {self.load.speedup:g}"] if self.load.speedup != 1.0 else []
        said += [f"seed {self.load.snapshot_seed}"] if self.load.snapshot_seed is not None else []
        said += [f"cancellations {self.cancellations}"] if self.cancellations else []
        return ", ".join(said)


def whole(graph: Graph, deployment: AnyDeployment, load: Load, random: Random) -> Variant:
    """Draw a variant of the user's run: some of its plays, other times, pools, budgets, workers, lanes, cancellations.

    Parameters
    ----------
    graph : Graph
    deployment : Deployment or Disaggregated
    load : Load
        As the user has them.
    random : Random
    """
    # Small ones are as good at finding as large ones, and many more are tried in a minute.
    number = round(len(graph.plays) ** random.random())
    some = of_plays(graph, sorted(random.sample(range(len(graph.plays)), number)))
    if random.random() < 0.5:
        some = at_other_times(some, random)
    controlled = load.snapshot_seed is not None
    canceled = random.randint(1, MOST_CANCELED) if not controlled and random.random() < 0.5 else 0
    return Variant(some, _pressed(some, deployment, random), _offered(load, random), canceled)


def small(graph: Graph, deployment: AnyDeployment, load: Load, random: Random) -> Variant:
    """Draw a slice for the executable specification: the beginnings of a few plays, with short prompts.

    Parameters are those of :func:`whole`. What plays as instances under run controls is offered as a finite run here.
    """
    plays = random.sample(range(len(graph.plays)), min(random.randint(1, SLICE_PLAYS), len(graph.plays)))
    some = beginnings(of_plays(graph, sorted(plays)), random.randint(1, SLICE_REQUESTS))
    some = thinned(some, max(SLICE_PROMPT // graph.block_size, 1), random.randint(1, SLICE_OUTPUT))
    if random.random() < 0.5:
        some = at_other_times(some, random)
    finite = msgspec.structs.replace(load, snapshot_seed=None, warmup=False, profile=None)
    canceled = random.randint(1, MOST_CANCELED) if random.random() < 0.3 else 0
    return Variant(some, _pressed(some, deployment, random), _offered(finite, random), canceled)


def _offered(load: Load, random: Random) -> Load:
    changed: dict[str, Any] = {"speedup": load.speedup * random.choice(SPEEDUPS)}
    if load.snapshot_seed is not None:
        changed |= {"snapshot_seed": random.randrange(1000), "lanes": random.randint(1, MOST_LANES)}
    elif load.concurrency is not None:
        changed["concurrency"] = random.randint(1, MOST_LANES)
    elif load.lanes is not None:
        changed["lanes"] = random.choice((None, random.randint(1, MOST_LANES)))
    if load.snapshot_seed is None and random.random() < 0.2:
        changed["prefix_scope"] = "play"
    return msgspec.structs.replace(load, **changed)


def _pressed(graph: Graph, deployment: AnyDeployment, random: Random) -> AnyDeployment:
    """Return the deployment with pools, budgets and numbers of workers that `graph` feels."""
    tokens = (graph.input_length + graph.output_length).astype(np.int64)
    host = random.random()
    if isinstance(deployment, Deployment):
        return msgspec.structs.replace(deployment, **_role(tokens, deployment, random, host))
    roles = {
        name: msgspec.structs.replace(role, **_role(tokens, role, random, host))
        for name, role in deployment.roles.items()
    }
    return msgspec.structs.replace(deployment, **roles)


def _between(random: Random, least: int, most: int) -> int:
    """Draw a whole number, small ones as often as large ones."""
    share: float = (max(most, least) / least) ** random.random()
    return max(round(least * share), 1)


def _role(tokens: Any, role: RoleWorkers, random: Random, host: float) -> dict[str, Any]:
    """Return the changed settings of one role; `host` is the draw for a host pool, which roles may share."""
    need = -(-tokens // role.block_size) + 1  # SGLang also keeps a page free
    largest, together = int(need.max()), int(need.sum())
    changed: dict[str, Any] = {}
    if random.random() < 0.7:
        # No larger than the user's own where that is large: pools cost memory.
        most = min(together, max(MOST_FOR_ONE * largest, role.blocks), MAX_BLOCKS)
        changed["blocks"] = _between(random, min(largest, MAX_BLOCKS), most)
    elif random.random() < 0.3:
        changed["blocks"] = _between(random, max(largest // 2, 1), largest)  # somebody is turned down
    if random.random() < 0.7:
        changed["max_sequences"] = _between(random, 1, 64)
    if random.random() < 0.7:
        least = max(int(tokens.max()) // 40, 1)
        budgets = ("max_batched_tokens", "chunked_prefill_size", "max_prefill_tokens")
        changed |= {name: _between(random, least, 2 * int(tokens.max())) for name in budgets}
    if random.random() < 0.6:
        changed["workers"] = random.randint(1, MOST_WORKERS)
    if role.host_offload is not None:
        blocks = round(largest * MOST_FOR_ONE**host)
        offload = msgspec.structs.replace(role.host_offload, num_host_blocks=min(max(blocks, 1), MAX_BLOCKS))
        changed["host_offload"] = offload
    return changed
