"""Dense arrays and compiled functions that execute the proven machines."""

from playproof_kernel.controlled import ControlledLedger, simulate_controlled
from playproof_kernel.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    HostSpec,
    LoadSpec,
    ProfileSpec,
    RouterSpec,
    Rules,
    SpeculationSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_kernel.horizon import UnfitLoad
from playproof_kernel.ledger import NEVER, Ledger
from playproof_kernel.simulate import ReplayFault, simulate

__all__ = [
    "NEVER",
    "Backend",
    "ControlledLedger",
    "DecodeSpec",
    "DeploymentSpec",
    "HostSpec",
    "Ledger",
    "LoadSpec",
    "ProfileSpec",
    "ReplayFault",
    "RouterSpec",
    "Rules",
    "SpeculationSpec",
    "Timing",
    "TimingKind",
    "TransferSpec",
    "UnfitLoad",
    "WorkerSpec",
    "simulate",
    "simulate_controlled",
]
