"""What is read without a socket: events however they are cut, answers that can be, requests within their bounds."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from playproof_spec.machines import RequestState

from playproof.online import wire
from playproof.online.answers import Writer
from playproof.online.prompts import text_tokens
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


# Whatever a server sends ---------------------------------------------------------------------------------------------

ODD = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.sampled_from([0, 3, 27, 28, 129]))
ODD_USAGE = st.fixed_dictionaries(
    {"prompt_tokens": st.one_of(ODD, st.sampled_from([80, 90, 100, 128]))},
    optional={
        "completion_tokens": st.one_of(ODD, st.integers(1, 12)),
        "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": st.one_of(ODD, st.integers(70, 110))}),
    },
)
ODD_CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 0, 0, 1]),
        "text": st.sampled_from(["", " x", None, 5]),
        "finish_reason": st.sampled_from([None, None, "length", "stop", "abort"]),
    },
)
ODD_EVENT = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(ODD_CHOICE, max_size=2),
        "usage": st.one_of(st.none(), ODD_USAGE),
        "message": st.sampled_from([None, "boom"]),
    },
)
PLAIN = st.just({"choices": [{"text": " x"}]})
# Counts of the right kind, of which some cannot be.
NEAR_USAGE = st.builds(
    lambda prompt, cached: {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}},
    st.integers(70, 130),
    st.integers(60, 130),
)
LAST = st.one_of(
    st.just({"choices": [{"text": "", "finish_reason": "length"}]}),
    st.fixed_dictionaries({"usage": NEAR_USAGE}),
    st.fixed_dictionaries({"usage": ODD_USAGE}),
)


@settings(max_examples=300)
@given(st.lists(PLAIN, max_size=30), st.lists(st.one_of(LAST, LAST, ODD_EVENT), max_size=3), st.booleans())
def test_a_stream_is_an_answer_that_can_be_or_it_is_broken(begun: list[Any], odd: list[Any], done: bool) -> None:
    """Ten tokens were asked for, a prompt of a hundred was sent: no event makes more of an answer than there can be."""
    read, at, over = reading(10, 100), 10, False
    answer = read.answer
    try:
        for event in begun + odd:
            at += 5
            over = over or read.feed(b"data: " + json.dumps(event).encode() + b"\n\n", at)
        if done:
            assert read.feed(b"data: [DONE]\n\n", at)
        read.finish(at + 5)
    except Broken as error:
        broken = str(error)
    else:
        broken = ""
    if broken:
        assert broken.isprintable()
        assert answer.outcome == RequestState.FAILED
        return
    assert answer.outcome == RequestState.FINISHED
    assert 0 <= answer.tokens <= 10 + slack(10)
    assert -1 <= answer.cached <= 100
    assert answer.cached <= answer.prompt
    assert answer.chunks == len(answer.gaps) + (answer.chunks > 0)
    assert bool(answer.first) == (answer.tokens > 0)
    if answer.tokens:
        assert answer.sent <= answer.first <= answer.last <= answer.ended
    if answer.tokens > 1:
        assert answer.first <= answer.second <= answer.last
    assert (answer.tokens == 10) or ("than were asked for" in answer.cause)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_bytes_of_any_kind(data: bytes) -> None:
    read = reading()
    try:
        read.feed(b"data: " + data + b"\n\n", 5)
        read.finish(6)
    except Broken:
        return
    assert read.answer.outcome == RequestState.FINISHED


# What a client sends -------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
FIELDS = (
    "prompt",
    "max_tokens",
    "n",
    "best_of",
    "echo",
    "logprobs",
    "suffix",
    "stream",
    "stream_options",
    "cache_salt",
)
MORE = ("messages", "tools", "top_logprobs", "max_completion_tokens")
PROMPTS = st.one_of(st.text(max_size=20), st.lists(st.integers(0, 9), max_size=5), VALUES)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user")}, optional={"content": VALUES, "tool_calls": VALUES}), max_size=3
)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([*FIELDS, *MORE]), VALUES, max_size=6), PROMPTS, MESSAGES, st.booleans())
def test_a_request_is_understood_or_refused(body: dict[str, Any], prompt: Any, messages: Any, chat: bool) -> None:
    """Whatever its fields hold; what is understood is within its bounds."""
    body = ({"messages": messages} if chat else {"prompt": prompt}) | body
    try:
        wanted = wire.read("chat" if chat else "completion", json.dumps(body).encode(), "m", 1000)
    except wire.Refused as error:
        refused: wire.Refused | None = error
    else:
        refused = None
    if refused is not None:
        assert refused.status in (400, 404)
        assert json.loads(refused.body())["error"]["message"]
        return
    assert 1 <= len(wanted.choices) <= wire.MAX_CHOICES
    assert all(0 < len(prompt.tokens) < 1000 for prompt in wanted.prompts)
    assert 0 <= wanted.output <= wire.MAX_OUTPUT_TOKENS
    for prompt in wanted.prompts:
        assert len(prompt.pieces()) == len(prompt.tokens)


@given(
    st.sampled_from(["completion", "chat"]),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
    st.integers(0, 30),
    st.data(),
)
def test_a_stream_is_the_same_however_it_is_cut(
    kind: Any, echo: bool, logprobs: int | None, output: int, data: st.DataObject
) -> None:
    """Tokens come when they are made, in any groups; its events, and its text, are those of one that comes at once."""
    prompt = wire.Prompt(text_tokens("abcdef"), "abcdef")
    wanted = wire.Wanted(kind, (prompt,), 2, output, "", True, False, False, echo and kind == "completion", logprobs)
    cuts = sorted(data.draw(st.lists(st.integers(0, output), max_size=4)))
    edges = [0, *dict.fromkeys(cut for cut in cuts if 0 < cut < output), output]
    writer = Writer(wanted, "m", "7")
    whole = writer.tokens(1, 0, output, last=True)
    assert (
        b"".join(writer.tokens(1, begin, end, last=end == output) for begin, end in itertools.pairwise(edges)) == whole
    )
    choices = [json.loads(event)["choices"][0] for event in fed(whole)]
    texts = [choice["delta"].get("content", "") if kind == "chat" else choice["text"] for choice in choices]
    *_, last = writer.choice(1, output)
    assert last is not None
    assert "".join(texts) == (last["message"]["content"] if kind == "chat" else last["text"])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert {choice["index"] for choice in choices} == {1}
