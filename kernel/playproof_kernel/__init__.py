"""Dense arrays and compiled functions that execute the proven machines."""

from playproof_kernel.runs.clock_bound import UnfitLoad
from playproof_kernel.runs.controlled_run import ControlledLedger, simulate_controlled
from playproof_kernel.runs.finite import ReplayFault, simulate

__all__ = ["ControlledLedger", "ReplayFault", "UnfitLoad", "simulate", "simulate_controlled"]
