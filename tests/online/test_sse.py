"""Server-sent events: whatever their bytes are cut into, they are the same events; and as their specification says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from playproof.online.sse import MAX_EVENT_BYTES, Events, TooLong
from playproof.online.stream import Answer, Broken, Reading, message_of, shown, slack


def fed(*parts: bytes) -> list[bytes]:
    events = Events()
    return [event for part in parts for event in events.feed(part)]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),  # one space belongs to the field, and no more
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data: a\rdata: b\r\r", [b"a\nb"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),  # a mark further on is part of a field's name
        (b": comment\nevent: x\nid: 7\nretry: 1\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"data\n\n", [b""]),
        (b"dat: a\n\ndatas: a\n\nDATA: a\n\n", []),
        (b"data: a\n", []),  # what the end cuts off is none
        (b"data: a", []),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a:b\n\n", [b"a:b"]),
    ],
)
def test_events(data: bytes, events: list[bytes]) -> None:
    assert fed(data) == events
    assert fed(*(data[i : i + 1] for i in range(len(data)))) == events


LINES = st.sampled_from([b"", b"data: x", b"data:y", b": c", b"data", b"event: e", b"other"])
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.data())
def test_cuts_change_nothing(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """However a stream is cut, and also where a CR LF falls apart."""
    whole = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert fed(*parts) == fed(whole)


@given(st.lists(st.sampled_from([b"", b"data: x", b"data:y", b": c"]), max_size=12))
def test_line_ends_are_alike(lines: list[bytes]) -> None:
    texts = [b"".join(line + end for line in lines) for end in (b"\n", b"\r", b"\r\n")]
    assert fed(texts[0]) == fed(texts[1]) == fed(texts[2])


def test_lines_and_events_are_bounded() -> None:
    part = b"x" * (MAX_EVENT_BYTES // 8)
    with pytest.raises(TooLong, match="a line of the stream"):
        fed(b"data: ", *([part] * 9))
    with pytest.raises(TooLong, match="an event of the stream"):
        fed(*([b"data: " + part + b"\n"] * 9))


# What is believed of a stream ---------------------------------------------------------------------------------------


def reading(asked: int = 10, prompt: int = 100) -> Reading:
    return Reading(Answer(sent=1), asked, prompt)


def test_how_far_counts_may_be_off() -> None:
    assert [slack(tokens) for tokens in (0, 7, 8, 1000)] == [16, 16, 17, 141]


@pytest.mark.parametrize(("tokens", "cut"), [(27, False), (28, True)])
def test_a_stream_is_cut_at_what_was_asked_for_and_a_margin(tokens: int, cut: bool) -> None:
    """Ten were asked for: 16 and an eighth more are let through."""
    read, event = reading(10), b'data: {"choices": [{"text": "x"}]}\n\n'
    if cut:
        with pytest.raises(Broken, match="does not end: 10 tokens were asked for"):
            read.feed(event * tokens, 5)
    else:
        read.feed(event * tokens, 5)
        assert read.answer.tokens == 27


@pytest.mark.parametrize(
    ("prompt", "cached", "believed"),
    [(100, 40, 40), (101, 101, 100), (128, 128, 100), (129, 60, -1), (71, 50, -1), (72, 50, 50)],
)
def test_cached_tokens_are_of_what_was_sent(prompt: int, cached: int, believed: int) -> None:
    """A hundred were sent: a server may count 28 more or less, and no more can have been found than were sent."""
    read = reading(1, 100)
    details = b'"prompt_tokens_details": {"cached_tokens": %d}' % cached
    read.feed(b'data: {"choices": [{"text": "x", "finish_reason": "length"}]}\n\n', 5)
    read.feed(b'data: {"usage": {"prompt_tokens": %d, "completion_tokens": 1, %s}}\n\n' % (prompt, details), 6)
    assert read.feed(b"data: [DONE]\n\n", 7)
    read.finish(8)
    assert (read.answer.prompt, read.answer.cached) == (prompt, believed)


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_what_a_server_said_is_one_bounded_line(said: str) -> None:
    for text in (shown(said), message_of(said), message_of({"message": said}), shown(said.encode("utf-8", "replace"))):
        assert text.isprintable()
        assert len(text) <= 10 * 201
