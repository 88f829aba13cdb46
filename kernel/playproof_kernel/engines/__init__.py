"""Schedulers and caches of workers, behind one seam, and the timing models that say how long a pass takes.

It owns workers in a pass: their records, seats, and the requests that they compute.

Modules
-------
seam
    What an engine is, and where it is registered.
engine
    The doors to whichever engine serves a run; cuts macro-steps.
timing
    What a pass costs: timing models behind a seam.
passes
    The times, tokens and gaps of a pass or a macro-step.
vllm
    VLLM's scheduler.
vllm_async
    VLLM's asynchronous scheduling.
speculation
    How many tokens a decode pass gives a request.
sglang
    SGLang's scheduler.
sglang_overlap
    SGLang's overlap schedule.
sglang_rules
    Where SGLang and the peer part.
sglang_own
    Admission and retraction by SGLang's own rules.
sglang_peer
    The same by the peer's rules.
sglang_pages
    What both do with a request's pages and seat.
"""
