"""What everything else stands on: how functions are compiled, what records and arrays there are, and the tools that
work on whatever arrays they are given.

It owns the lifecycle of an engine request and the load of workers, as records of `live`, `tickets` and `workers`.

Modules
-------
jit
    The marks of compiled functions.
records
    What a record, its arrays and a bundle of them are.
arrays
    The records, the dimensions, and `Sim`, the bundle that every compiled function takes.
transitions
    The machines' tables as arrays, and `advance`, the only writer of a state.
queues
    Queues of requests as linked lists.
timers
    Heaps of (time, node).
buckets
    Hash tables with chained buckets.
key_groups
    An index for keys that are asked for one after another.
lifecycle
    Engine requests: admission, preemption, end, what they hold.
worker_load
    What a worker has been given, as who places requests knows it.
faults
    What a run says when it, not its input, is at fault.
"""
