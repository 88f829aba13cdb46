"""Groups of neighbouring keys: an index for keys that are asked for one after another.

A hash table leads to the group of a key, `PAGE` neighbours with places beside each other; so a walk over a run of keys
looks up one group after another, and within a group it walks over places. Whoever keeps the index counts in `used` how
many keys of a group there are, and drops the group with the last.
"""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground.arrays import NONE
from playproof_kernel.ground.jit import compiled, natural

# Keys of a group, a power of two.
GROUP_BITS = 5
GROUP = 1 << GROUP_BITS


@compiled
def _bucket_of(buckets: Any, number: int) -> int:
    """Return the bucket of the group with `number`; the multiplication stays within int64."""
    mixed = (((number ^ (number >> 29)) & 0x7FFF_FFFF) * 0x9E37_79B1) >> 12
    return natural(mixed & (buckets.shape[0] - 1))


@compiled
def key_at(groups: Any, place: int) -> int:
    """Return the key whose place this is, one of a group that is taken."""
    return int((groups[natural(place >> GROUP_BITS)].number << GROUP_BITS) | (place & (GROUP - 1)))


@compiled
def group_of(groups: Any, buckets: Any, key: int) -> int:
    """Return the group of `key`, or NONE when it has none."""
    number = key >> GROUP_BITS
    group = int(buckets[_bucket_of(buckets, number)])
    while group != NONE and groups[natural(group)].number != number:
        group = int(groups[natural(group)].next)
    return group


@compiled
def places(groups: Any, buckets: Any, key: int) -> tuple[int, int]:
    """Return the place of `key` and the end of its group, or NONE twice when there is no such group."""
    group = group_of(groups, buckets, key)
    return (NONE, NONE) if group == NONE else _span(group, key)


@compiled
def _span(group: int, key: int) -> tuple[int, int]:
    return (group << GROUP_BITS) | (key & (GROUP - 1)), (group + 1) << GROUP_BITS


@compiled
def new_group(groups: Any, buckets: Any, record: Any, key: int) -> int:
    """Take a group for `key`, which has none.

    `record` counts the groups ever taken (`groups`) and heads the list of spare ones (`spare_group`).
    """
    group = record.spare_group
    if group == NONE:
        group = record.groups
        record.groups += 1
    else:
        record.spare_group = groups[natural(group)].next
    number = key >> GROUP_BITS
    bucket = _bucket_of(buckets, number)
    groups[natural(group)].number = number
    groups[natural(group)].next = buckets[bucket]
    buckets[bucket] = group
    return int(group)


@compiled
def new_places(groups: Any, buckets: Any, record: Any, key: int) -> tuple[int, int]:
    """Take a group for `key`, which has none; returns as `places` does."""
    return _span(new_group(groups, buckets, record, key), key)


@compiled
def drop(groups: Any, buckets: Any, record: Any, group: int) -> None:
    """Give back a group without keys."""
    bucket = _bucket_of(buckets, groups[group].number)
    at = natural(buckets[bucket])
    if at == group:
        buckets[bucket] = groups[group].next
    else:
        while groups[at].next != group:
            at = natural(groups[at].next)
        groups[at].next = groups[group].next
    groups[group].next = record.spare_group
    record.spare_group = group
