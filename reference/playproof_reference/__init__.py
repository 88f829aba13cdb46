"""The executable specification: every rule of a replay, slow and obvious, on the graph and the settings alone."""

from playproof_reference.controls import Controls, replay_controlled
from playproof_reference.replay import replay
from playproof_reference.runs import Run

__all__ = ["Controls", "Run", "replay", "replay_controlled"]
