"""Rules of one pass and one instant that random replays rarely meet, each on a few requests."""

from __future__ import annotations

from typing import Any

from playproof_spec.certificate import prove
from playproof_spec.sketch import sketch

import playproof as pp

TIMING = pp.FixedTiming(prefill_ms=10, decode_ms=1)


def replayed(rows: list[dict[str, Any]], lanes: int | None = None, **deployment: Any) -> dict[str, dict[str, Any]]:
    """Return the lines of requests.jsonl by request."""
    trace = prove(sketch(rows, block_size=4))
    report = pp.replay(trace, pp.Deployment(block_size=4, timing=TIMING, **deployment), pp.Load(lanes=lanes))
    return {line["request_id"]: line for line in report.request_dicts()}


def test_blocks_in_use_count_once_for_admission() -> None:
    # Six blocks. `first` holds its four and one for its output; `second` shares the four and needs one of its own.
    rows = [
        {"request_id": "first", "input_length": 16, "output_length": 4, "hash_ids": [1, 2, 3, 4]},
        {"request_id": "second", "input_length": 20, "hash_ids": [1, 2, 3, 4, 5], "not_before_ms": 11.0},
    ]
    lines = replayed(rows, blocks=6)
    assert lines["second"]["first_admit_ms"] == 11.0
    assert lines["second"]["first_admission_reused_input_tokens"] == 16
    # Without shared blocks it has to wait for the other's end.
    rows[1]["hash_ids"] = [6, 7, 8, 9, 5]
    lines = replayed(rows, blocks=6)
    assert lines["second"]["first_admit_ms"] == lines["first"]["terminal_time_ms"] > 11.0


def test_plays_that_end_at_one_instant_settle_by_node_index() -> None:
    # `z` gets its second token at 21 ms, in the pass in which `a`, that came at 10 ms, gets its only one. The worker
    # admitted `z` first; but the driver hears of `a` first, so its lane takes the next play.
    rows: list[dict[str, Any]] = [
        {"request_id": "z", "play_id": "p0", "output_length": 2},
        {"request_id": "zz", "play_id": "p1", "output_length": 0},
        {"request_id": "a", "play_id": "p1", "dependencies": ["zz"]},
        {"request_id": "c", "play_id": "p2"},
        {"request_id": "d", "play_id": "p3"},
    ]
    lines = replayed(rows, lanes=2, blocks=100, workers=2)
    assert {name: line["terminal_time_ms"] for name, line in lines.items() if name in "az"} == {"a": 21.0, "z": 21.0}
    assert {name: line["lane"] for name, line in lines.items()} == {"z": 0, "zz": 1, "a": 1, "c": 1, "d": 0}
