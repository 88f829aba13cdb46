"""Validate, prove and replay agentic LLM workloads on a simulated serving deployment.

Examples
--------
>>> import playproof as pp
>>> trace = pp.load("examples/weka")                                   # doctest: +SKIP
>>> report = pp.replay(trace, pp.Deployment(workers=2), pp.Load(lanes=4))  # doctest: +SKIP
>>> report.trajectories.completed                                      # doctest: +SKIP
5
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playproof_spec import Certificate, Finding, Findings, InvalidInput, Obligation, ProvenGraph, Severity, Where

    from playproof.api import InvalidTrace, Validation, check, fuzz, load, replay, replay_online, run, validate
    from playproof.checking import Verdict, check_lines
    from playproof.comparing import Cause, Comparison, compare
    from playproof.config import Configuration, read_configuration
    from playproof.controlled import ControlledReport
    from playproof.deployment import (
        DecodeRole,
        Deployment,
        Disaggregated,
        FixedTiming,
        HostOffload,
        InvalidDeployment,
        KvRouter,
        Load,
        PolynomialTiming,
        PrefillRole,
        Profile,
        RoundRobin,
        Speculation,
        Transfer,
    )
    from playproof.explaining import Explanation, NoSuchRequest
    from playproof.fuzzing import Tried
    from playproof.goodput import Sla
    from playproof.online import MissingExtra
    from playproof.online.options import OnlineOptions, PromptFormat
    from playproof.online.report import OnlineControlledReport, OnlineReport
    from playproof.report import Report, Trajectories
    from playproof.tables import MissingHtml, MissingTables

__version__ = version("playproof")

# Where each public name comes from. They are imported when asked for: `playproof --version` should not wait for NumPy.
_HOMES = {
    "playproof.api": (
        "InvalidTrace",
        "Validation",
        "check",
        "fuzz",
        "load",
        "replay",
        "replay_online",
        "run",
        "validate",
    ),
    "playproof.checking": (
        "Verdict",
        "check_lines",
    ),
    "playproof.comparing": ("Cause", "Comparison", "compare"),
    "playproof.config": (
        "Configuration",
        "read_configuration",
    ),
    "playproof.controlled": ("ControlledReport",),
    "playproof.deployment": (
        "DecodeRole",
        "Deployment",
        "Disaggregated",
        "FixedTiming",
        "HostOffload",
        "InvalidDeployment",
        "KvRouter",
        "Load",
        "PolynomialTiming",
        "PrefillRole",
        "Profile",
        "RoundRobin",
        "Speculation",
        "Transfer",
    ),
    "playproof.explaining": ("Explanation", "NoSuchRequest"),
    "playproof.fuzzing": ("Tried",),
    "playproof.goodput": ("Sla",),
    "playproof.online": ("MissingExtra",),
    "playproof.online.options": ("OnlineOptions", "PromptFormat"),
    "playproof.online.report": (
        "OnlineControlledReport",
        "OnlineReport",
    ),
    "playproof.report": (
        "Report",
        "Trajectories",
    ),
    "playproof.tables": ("MissingHtml", "MissingTables"),
    "playproof_spec": (
        "Certificate",
        "Finding",
        "Findings",
        "InvalidInput",
        "Obligation",
        "ProvenGraph",
        "Severity",
        "Where",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Cause",
    "Certificate",
    "Comparison",
    "Configuration",
    "ControlledReport",
    "DecodeRole",
    "Deployment",
    "Disaggregated",
    "Explanation",
    "Finding",
    "Findings",
    "FixedTiming",
    "HostOffload",
    "InvalidDeployment",
    "InvalidInput",
    "InvalidTrace",
    "KvRouter",
    "Load",
    "MissingExtra",
    "MissingHtml",
    "MissingTables",
    "NoSuchRequest",
    "Obligation",
    "OnlineControlledReport",
    "OnlineOptions",
    "OnlineReport",
    "PolynomialTiming",
    "PrefillRole",
    "Profile",
    "PromptFormat",
    "ProvenGraph",
    "Report",
    "RoundRobin",
    "Severity",
    "Sla",
    "Speculation",
    "Trajectories",
    "Transfer",
    "Tried",
    "Validation",
    "Verdict",
    "Where",
    "check",
    "check_lines",
    "compare",
    "fuzz",
    "load",
    "read_configuration",
    "replay",
    "replay_online",
    "run",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
