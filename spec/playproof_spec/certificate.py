"""Certificates: what was proven of a graph, how, and at what cost; and the only door to a replay.

(contract; the body of `prove` is filled in with the obligations)
"""

from __future__ import annotations
