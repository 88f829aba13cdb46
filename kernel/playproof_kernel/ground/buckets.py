"""Hash tables with chained buckets, for entries that are records with the fields `key` and `next`."""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground.arrays import NONE
from playproof_kernel.ground.jit import compiled, natural


@compiled
def bucket_of(key: int, buckets: int) -> int:
    """Return the bucket of `key`.

    Sixteen neighbouring keys share a stretch of buckets, since a prompt asks for neighbours one after another; the
    stretches are scattered by a multiplication that stays within int64.
    """
    stretch = (key >> 4) ^ (key >> 35)
    mixed = ((stretch & 0x7FFFFFFF) * 0x9E3779B1) >> 7
    return natural(((mixed << 4) | (key & 15)) & (buckets - 1))


@compiled
def find(entries: Any, buckets: Any, key: int) -> int:
    """Return the first entry of `key` in its bucket, or NONE."""
    entry = int(buckets[bucket_of(key, buckets.shape[0])])
    while entry != NONE and entries[natural(entry)].key != key:
        entry = int(entries[natural(entry)].next)
    return entry


@compiled
def unlink(entries: Any, buckets: Any, entry: int) -> None:
    """Take `entry`, which is there, out of the bucket of its key."""
    bucket = bucket_of(entries[entry].key, buckets.shape[0])
    at = int(buckets[bucket])
    if at == entry:
        buckets[bucket] = entries[entry].next
        return
    while entries[natural(at)].next != entry:
        at = int(entries[natural(at)].next)
    entries[natural(at)].next = entries[entry].next
