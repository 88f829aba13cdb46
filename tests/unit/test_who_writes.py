"""Reads the kernel's source: which room writes which array of a run is what the kernel's page says."""

from __future__ import annotations

import re
from pathlib import Path

from playproof_kernel.ground.arrays import Sim
from writes import KERNEL, functions, written_by_room

GROUP = Path(__file__).resolve().parents[2] / "kernel" / "README.md"
ROOMS = {path.name for path in KERNEL.iterdir() if path.is_dir() and path.name != "__pycache__"}


def table() -> dict[str, set[str]]:
    """Return the arrays that the page names for each room."""
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(playproof_kernel/\w+/__init__\.py\) \|[^|]+\|([^|]+)\|$", GROUP.read_text(), re.M
    )
    return {room: set(re.findall(r"`(\w+)`", written)) for room, written in rows}


def test_the_page_says_who_writes_what() -> None:
    told, written = table(), written_by_room()
    assert set(told) == ROOMS
    for room in ROOMS:
        assert told[room] == written.get(room, set()), room


def test_what_the_corpus_gave_nobody_writes() -> None:
    written = set().union(*written_by_room().values())
    assert written < set(Sim._fields)
    assert {"edges", "keys", "config", "play_nodes"}.isdisjoint(written)


def test_the_reading_follows_names_arguments_and_bundles() -> None:
    known = functions()

    def of(name: str) -> set[tuple[str, str, str]]:
        return known[name].writes

    # An alias of a record; a column of what it is given; a bundle, whose field another function filled.
    assert ("sim", "workers", "engines") in of("passes.begin")
    assert ("parameter", "queue", "") in of("queues.append")
    assert ("sim", "queues", "engines") in of("engine.enqueue")
    assert ("parameter", "pool.frames", "memory") in of("block_pool.free_blocks")
    assert ("sim", "frames", "memory") in of("block_tables.release_all")
    # What a tool of the ground is handed by way of another tool is written by who hands it.
    assert ("sim", "request_state", "engines") in of("engine.enqueue")


def test_each_room_has_a_page_that_lists_its_modules() -> None:
    for room in ROOMS:
        page = (KERNEL / room / "__init__.py").read_text()
        listed = set(re.findall(r"^(\w+)\n    \S", page, re.M))
        assert listed == {path.stem for path in (KERNEL / room).glob("*.py")} - {"__init__"}, room


def test_no_more_than_ten_rooms() -> None:
    assert len(ROOMS) <= 10
