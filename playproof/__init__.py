"""Validate, prove and replay agentic LLM workloads on a simulated serving deployment.

Examples
--------
>>> import playproof as pp
>>> trace = pp.load("examples/weka")                                   # doctest: +SKIP
>>> report = pp.replay(trace, pp.Deployment(workers=2), pp.Load(lanes=4))  # doctest: +SKIP
>>> report.trajectories.completed                                      # doctest: +SKIP
5
"""

from importlib.metadata import version

from playproof.api import InvalidTrace, Validation, load, replay, replay_online, run, validate
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
from playproof.online.options import OnlineOptions
from playproof.report import Report, Trajectories

__version__ = version("playproof")

__all__ = [
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
    "Speculation",
    "Trajectories",
    "Transfer",
    "Validation",
    "load",
    "read_configuration",
    "replay",
    "replay_online",
    "run",
    "validate",
]
