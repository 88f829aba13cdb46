"""Replaying by the executable specification: what it does not have, and when it takes long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.graph import Graph

from playproof.deployment import AnyDeployment, Load

Engine = Literal["kernel", "reference"]

# Seconds that the reference takes for one token of a prefix that it writes out, measured, generously.
PREFIX_TOKEN_S = 5e-8
# A pass, and whatever else a token takes.
TOKEN_S = 5e-5
# What takes longer is announced.
REFERENCE_PATIENCE_S = 60.0
SLOW_REFERENCE = (
    "the reference writes out every prefix of every prompt, and may take minutes or hours for a trace of this size; "
    "the kernel gives the same result at once"
)
# Controls of a load under which plays run as instances.
CONTROLS = ("snapshot_seed", "warmup", "profile")


def beyond_reference(load: Load, places: Mapping[str, Where]) -> Findings:
    """Say what of a load the reference does not replay to a report.

    Parameters
    ----------
    load : Load
    places : mapping of str to Where
        Where the user set each control of the load.
    """
    findings = Findings()
    for control in CONTROLS:
        value = getattr(load, control)
        if value is not None and value is not False:
            findings.add(
                finding(
                    "config-unsupported",
                    "the reference gives no report of a run under run controls",
                    where=places[control],
                    found=control,
                    wanted="a finite run: every play whole and once",
                    hint=f"Remove {control}, or replay with the kernel.",
                )
            )
    return findings


def reference_s(graph: Graph, deployment: AnyDeployment) -> float:
    """Return about how many seconds the reference takes.

    A request's prefixes are written out where it is looked up or computed, and whenever one more block is full.
    """
    size = min(role.block_size for role in deployment.roles.values())
    tokens = (graph.input_length + graph.output_length).astype(np.float64)
    prefixes = tokens**2 / (2 * size)
    times = 2.0 + graph.output_length / size
    return float((prefixes * times).sum()) * PREFIX_TOKEN_S + float(tokens.sum()) * TOKEN_S
