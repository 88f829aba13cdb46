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
    from playproof.api import InvalidTrace, Validation, check, fuzz, load, replay, replay_online, run, validate
    from playproof.checking import Verdict, check_lines
    from playproof.comparing import Comparison, compare
    from playproof.config import Configuration, read_configuration
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
    from playproof.goodput import Sla
    from playproof.online.options import OnlineOptions
    from playproof.report import Report, Trajectories

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
    "playproof.checking": ("Verdict", "check_lines"),
    "playproof.comparing": ("Comparison", "compare"),
    "playproof.config": ("Configuration", "read_configuration"),
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
    "playproof.goodput": ("Sla",),
    "playproof.online.options": ("OnlineOptions",),
    "playproof.report": ("Report", "Trajectories"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Comparison",
    "Configuration",
    "DecodeRole",
    "Deployment",
    "Disaggregated",
    "FixedTiming",
    "HostOffload",
    "InvalidDeployment",
    "InvalidTrace",
    "KvRouter",
    "Load",
    "OnlineOptions",
    "PolynomialTiming",
    "PrefillRole",
    "Profile",
    "Report",
    "RoundRobin",
    "Sla",
    "Speculation",
    "Trajectories",
    "Transfer",
    "Validation",
    "Verdict",
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
