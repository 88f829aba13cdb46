"""A run as a whole: its arrays, its clock, its phases, its room, and the ledger that it comes to.

It owns the clock, the phases of run controls, and the ends of passes.

Modules
-------
finite
    The public door: a replay to its end.
controlled_run
    The second door: snapshot, warmup and profile.
live_driver
    The driver on a clock from outside.
live_engine
    One worker whose requests arrive while it runs.
simulation
    What all four have: go on until something is reached.
loop
    The clock and the order of events at one instant.
phases
    Preparation, barrier, deadlines, idle caps, the orderly end.
setup
    The arrays of a run that has not started.
controlled_setup
    The same under run controls: seats, lanes, preparation.
room
    More memory for a run that wants it.
ledgers
    What a finite run came to.
controlled_ledger
    What a run under run controls came to.
cuts
    Where plays are cut, what is history then, what prepares the caches.
clock_bound
    Whether a run stays on the clock.
warming
    The smallest runs that call every compiled function.
"""
