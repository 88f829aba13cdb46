"""Nodes, plays and lanes: when requests are dispatched. It knows nothing of engines.

It owns nodes, plays, lanes, and what run controls log of them.

Modules
-------
play_driver
    Edges, floors, failures, lanes.
instances
    Play instances in seats under run controls: identities, results, ends.
arrivals
    What enters and leaves a run from outside, in online replay.
"""
