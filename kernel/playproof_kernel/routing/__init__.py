"""Which worker a request goes to: policies behind one seam.

It owns what a policy itself counts.

Modules
-------
seam
    What a policy is, and where it is registered.
placement
    The door to the policy of a run.
round_robin
    In turn.
kv_router
    By cached prefix and load.
"""
