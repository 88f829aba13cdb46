"""Pages of neighbouring keys: an index for keys that are asked for one after another.

A hash table leads to the page of a key, `PAGE` neighbours with places beside each other; so a walk over a run of keys
looks up one page after another, and within a page it walks over places. Whoever keeps the index counts in `used` how
many keys of a page there are, and drops the page with the last.
"""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground.arrays import NONE
from playproof_kernel.ground.jit import compiled, natural

# Keys of a page, a power of two.
PAGE_BITS = 5
PAGE = 1 << PAGE_BITS


@compiled
def _bucket_of(buckets: Any, number: int) -> int:
    """Return the bucket of the page with `number`; the multiplication stays within int64."""
    mixed = (((number ^ (number >> 29)) & 0x7FFF_FFFF) * 0x9E37_79B1) >> 12
    return natural(mixed & (buckets.shape[0] - 1))


@compiled
def key_at(pages: Any, place: int) -> int:
    """Return the key whose place this is, one of a page that is taken."""
    return int((pages[natural(place >> PAGE_BITS)].number << PAGE_BITS) | (place & (PAGE - 1)))


@compiled
def page_of(pages: Any, buckets: Any, key: int) -> int:
    """Return the page of `key`, or NONE when it has none."""
    number = key >> PAGE_BITS
    page = int(buckets[_bucket_of(buckets, number)])
    while page != NONE and pages[natural(page)].number != number:
        page = int(pages[natural(page)].next)
    return page


@compiled
def places(pages: Any, buckets: Any, key: int) -> tuple[int, int]:
    """Return the place of `key` and the end of its page, or NONE twice when there is no such page."""
    page = page_of(pages, buckets, key)
    return (NONE, NONE) if page == NONE else _span(page, key)


@compiled
def _span(page: int, key: int) -> tuple[int, int]:
    return (page << PAGE_BITS) | (key & (PAGE - 1)), (page + 1) << PAGE_BITS


@compiled
def new_page(pages: Any, buckets: Any, record: Any, key: int) -> int:
    """Take a page for `key`, which has none.

    `record` counts the pages ever taken (`pages`) and heads the list of spare ones (`spare_page`).
    """
    page = record.spare_page
    if page == NONE:
        page = record.pages
        record.pages += 1
    else:
        record.spare_page = pages[natural(page)].next
    number = key >> PAGE_BITS
    bucket = _bucket_of(buckets, number)
    pages[natural(page)].number = number
    pages[natural(page)].next = buckets[bucket]
    buckets[bucket] = page
    return int(page)


@compiled
def new_places(pages: Any, buckets: Any, record: Any, key: int) -> tuple[int, int]:
    """Take a page for `key`, which has none; returns as `places` does."""
    return _span(new_page(pages, buckets, record, key), key)


@compiled
def drop(pages: Any, buckets: Any, record: Any, page: int) -> None:
    """Give back a page without keys."""
    bucket = _bucket_of(buckets, pages[page].number)
    at = natural(buckets[bucket])
    if at == page:
        buckets[bucket] = pages[page].next
    else:
        while pages[at].next != page:
            at = natural(pages[at].next)
        pages[at].next = pages[page].next
    pages[page].next = record.spare_page
    record.spare_page = page
