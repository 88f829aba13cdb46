"""Where SGLang and the peer part, rule by rule, and which rule sets there are.

A worker's configuration carries the switches; `sglang` reads each of them in one place, and calls `sglang_own` or
`sglang_peer`. docs/fidelity.md says what was compared with what.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from playproof_spec.deployment import Rules


@dataclass(frozen=True, slots=True)
class RuleSet:
    """One way to run an SGLang worker.

    Attributes
    ----------
    engine : str
        Whose rules these are, with the version that they were compared with.
    whole_batches : bool
        Admission settles a whole batch before it evicts for it: a candidate's cached prefix is no room, one page more
        is kept for each, a prompt that is cut has to fit as a whole and then goes on unweighed, the input budget stops
        once it is exceeded, an admitted request is charged its full output, every look is a use of the prefix, and
        after one that did not fit no other is looked at until a request leaves.
    sorted_batch : bool
        A retraction evicts all that it can first, sorts the running requests, by most output, then by the shorter
        prompt, and takes the last; they stay sorted. Else the first of those with the least output goes.
    late_places : bool
        The place of a token is taken in the pass that computes it, not in the one that generates it; at the end of a
        prefill pass requests are dealt with one after another.
    spare_pages : bool
        A decode pass evicts until there is a page for every request, not only for those that need one.
    fixed_nodes : bool
        What one insert adds to the tree is a node for good, and prompt and output are nodes apart; else a leaf that
        no other request uses is prolonged.
    whole_leaves : bool
        Leaves are evicted whole; else pages from their end, as many as needed.
    ratio_most : float
        Bound of the new-token ratio.
    """

    engine: str
    whole_batches: bool
    sorted_batch: bool
    late_places: bool
    spare_pages: bool
    fixed_nodes: bool
    whole_leaves: bool
    ratio_most: float


RULE_SETS = {
    Rules.SGLANG: RuleSet(
        engine="sglang 0.5.23",
        whole_batches=True,
        sorted_batch=True,
        late_places=True,
        spare_pages=True,
        fixed_nodes=True,
        whole_leaves=True,
        ratio_most=1.0,
    ),
    Rules.AISIMULATE: RuleSet(
        engine="aisimulate 0.13.0.dev202610270000000085",
        whole_batches=False,
        sorted_batch=False,
        late_places=False,
        spare_pages=False,
        fixed_nodes=False,
        whole_leaves=False,
        ratio_most=float("inf"),
    ),
}
# The new-token ratio: where it starts, the share of that which it keeps, and the decode passes from one to the other.
RATIO_START = 0.7
RATIO_LEAST_SHARE = 0.14
RATIO_STEPS = 600.0


def fill(config: Any, rules: Rules, conservativeness: float) -> None:
    """Write a rule set into the configuration of a role."""
    chosen = RULE_SETS[rules]
    for field in fields(chosen):
        if field.type == "bool":
            config[field.name] = getattr(chosen, field.name)
    config.ratio_start = min(RATIO_START * conservativeness, chosen.ratio_most)
    config.ratio_least = config.ratio_start * RATIO_LEAST_SHARE
    config.ratio_step = (config.ratio_start - config.ratio_least) / RATIO_STEPS
