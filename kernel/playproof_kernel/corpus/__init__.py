"""A proven graph as arrays: edges by source, floors and delays in nanoseconds, and the keys of every full block.

It owns nothing of a run: what it makes is read only once the run has started.

Modules
-------
compiled
    The corpus as arrays, before a run.
live_keys
    Keys of prompts that arrive one by one, and forgetting them.
"""
