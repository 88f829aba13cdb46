"""Dense arrays and compiled functions that execute the proven machines."""

from playproof_kernel.controlled import ControlledLedger, simulate_controlled
from playproof_kernel.horizon import UnfitLoad
from playproof_kernel.simulate import ReplayFault, simulate

__all__ = ["ControlledLedger", "ReplayFault", "UnfitLoad", "simulate", "simulate_controlled"]
