"""What tests ask of an index by pages, of a device pool or of a host pool."""

from __future__ import annotations

from typing import Any

from playproof_kernel.ground.arrays import NONE


def live_pages(pages: Any, record: Any) -> set[int]:
    """Return the pages that are taken: all that ever were, less those on the list of spare ones."""
    spare, page = set(), int(record.spare_group)
    while page != NONE:
        spare.add(page)
        page = int(pages[page].next)
    return set(range(int(record.groups))) - spare


def chained_blocks(pages: Any, order: Any, number: int) -> int:
    """Return the blocks of a page, as bits, that its stretches have, and see to it that the chain of these is sound.

    It goes from the latest to the earliest; each has blocks, and no block stands in two.
    """
    page = pages[number]
    at, before, chained = int(page.latest) if page.there else NONE, len(order), 0
    while at != NONE:
        stretch = order[at]
        assert int(stretch.group) == number
        assert at < before
        assert int(stretch.blocks) != 0 == int(stretch.blocks) & chained
        chained |= int(stretch.blocks)
        at, before = int(stretch.earlier), at
    return chained
