"""The way of a request to its workers and through them: placed, handed over from prefill to decode, cleaned up.

It owns handoffs, KV transfers, and the queue of actions.

Modules
-------
handoffs
    The steps of a handoff, cancellations, and the clean-up after them.
"""
