"""File descriptors: a connection takes one, and systems begin with few (`ulimit -n`)."""

from __future__ import annotations

import msgspec

from playproof.online.options import OnlineOptions

try:
    import resource
except ImportError:  # a system without such limits
    resource = None  # type: ignore[assignment]

# What a process has open besides its connections: files, pipes of workers, the event loop's own, libraries' own.
RESERVED = 64


def raise_limit(wanted: int) -> int:
    """Raise the soft limit of open files to `wanted`, or as far as the hard limit lets it; return what holds now."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):
        return soft
    return reachable


def with_descriptors(options: OnlineOptions) -> OnlineOptions:
    """Return the options with as many connections as there are descriptors for, once the limit is raised."""
    limit = raise_limit(options.max_connections + RESERVED)
    room = max(limit - RESERVED, 1)
    if room >= options.max_connections:
        return options
    return msgspec.structs.replace(options, max_connections=room, connections_wanted=options.max_connections)
