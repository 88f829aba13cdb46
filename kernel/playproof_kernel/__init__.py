"""Dense arrays and compiled functions that execute the proven machines."""

from playproof_kernel.deployment import (
    Backend,
    DecodeSpec,
    DeploymentSpec,
    LoadSpec,
    Timing,
    TimingKind,
    TransferSpec,
    WorkerSpec,
)
from playproof_kernel.ledger import NEVER, Ledger
from playproof_kernel.simulate import ReplayFault, simulate

__all__ = [
    "NEVER",
    "Backend",
    "DecodeSpec",
    "DeploymentSpec",
    "Ledger",
    "LoadSpec",
    "ReplayFault",
    "Timing",
    "TimingKind",
    "TransferSpec",
    "WorkerSpec",
    "simulate",
]
