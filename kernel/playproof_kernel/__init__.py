"""Dense arrays and compiled functions that execute the proven machines."""

from playproof_kernel.ground.faults import ReplayFault
from playproof_kernel.runs.clock_bound import UnfitLoad
from playproof_kernel.runs.controlled_ledger import ControlledLedger
from playproof_kernel.runs.controlled_run import simulate_controlled
from playproof_kernel.runs.finite import simulate

__all__ = ["ControlledLedger", "ReplayFault", "UnfitLoad", "simulate", "simulate_controlled"]
