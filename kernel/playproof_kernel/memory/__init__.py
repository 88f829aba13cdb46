"""KV memory on the device (G1): pools of blocks with their tables, radix trees, and what they tell of themselves.

It owns the device pools, block tables, radix trees, and the events of caches.

Modules
-------
block_pool
    The pool of a worker: physical blocks, the index of cached ones, the eviction order.
block_tables
    Block tables of requests, and the look-up of a prefix.
radix_tree
    The radix tree of a worker: pages cached, locked, evicted.
prompt_keys
    The keys of a prompt's blocks.
cache_events
    What caches have stored and removed, and what of it has been told.
conservation
    What is asserted of a pool at the end of every interpreted pass.
"""
