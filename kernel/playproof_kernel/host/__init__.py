"""KV memory in the host (G2) behind vLLM workers: pools, the links to them, and the requests that wait for either.

It owns host pools, host transfers, and the records of workers' host memory.

Modules
-------
host_pool
    A pool in host memory: blocks, pins, the eviction order.
host_links
    How fast transfers to and from a shared pool move, and when they end.
offload
    Stores, loads, fences, and which requests are deferred for them.
"""
