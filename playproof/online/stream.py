"""What a server says of one request, and what of it is believed: every rule on an answer stands here.

A stream that breaks a rule is no answer: the request has failed, and its cause says which rule. What is odd and yet an
answer (fewer tokens than asked for, no usage) completes, and is named and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from playproof_spec.findings import printable
from playproof_spec.graph import MAX_TOKENS
from playproof_spec.machines import RequestState

from playproof.online.sse import Events, TooLong

# How much of what a server said is repeated.
SHOWN = 200
# Bytes of a stream besides those that its tokens may take: a token's event is a few hundred bytes.
MAX_BYTES_BESIDES, MAX_BYTES_PER_TOKEN = 1 << 24, 1 << 14
# Reasons for an end that is none: the server gave the request up.
_GIVEN_UP = frozenset({"abort", "aborted", "cancelled", "canceled", "error"})


def slack(tokens: int) -> int:
    """Return by how many tokens a server may count otherwise than `tokens`: marks at the ends, a template, drafts."""
    return 16 + tokens // 8


@dataclass(slots=True)
class Answer:
    """How a request ended. Instants are of `time.monotonic_ns`, 0 for what did not happen.

    Attributes
    ----------
    outcome : RequestState
    cause : str
        Why it did not complete, or what is odd about it though it did.
    sent, first, second, last, ended : int
        Sent; first, second and last token; the end.
    tokens : int
        Generated.
    chunks : int
        Events that brought tokens.
    cached : int
        Prompt tokens found in cache, -1 if the server did not say.
    prompt : int
        Prompt tokens as the server counts them, -1 if it did not say.
    gaps : list of int
        Between events that brought tokens, ns of wall time.
    """

    outcome: RequestState = RequestState.FAILED
    cause: str = ""
    sent: int = 0
    first: int = 0
    second: int = 0
    last: int = 0
    ended: int = 0
    tokens: int = 0
    chunks: int = 0
    cached: int = -1
    prompt: int = -1
    gaps: list[int] = field(default_factory=list)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    object: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    message: Any = None
    detail: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class Broken(Exception):
    """A stream that cannot be a request's answer; the message says why."""


class Reading:
    """One stream of events as it is read.

    Parameters
    ----------
    answer : Answer
    asked : int
        Tokens wanted.
    prompt : int
        Prompt tokens sent.

    Attributes
    ----------
    answer : Answer
    told : bool
        Whether its end was told.
    heard_ns : int
        When its server last said anything, or it was sent.
    silent : bool
        Whether it is being ended for its silence.
    """

    def __init__(self, answer: Answer, asked: int, prompt: int) -> None:
        self.answer = answer
        self.told = self.silent = False
        self.heard_ns = answer.sent
        self._asked, self._prompt = asked, prompt
        self._most = asked + slack(asked)
        self._bytes_left = MAX_BYTES_BESIDES + MAX_BYTES_PER_TOKEN * self._most
        self._events = Events()
        self._usage: _Usage | None = None
        self._finished = self._done = False

    def feed(self, data: bytes, at: int) -> bool:
        """Take in bytes that came at `at`; True when the stream has said that it is over.

        Raises
        ------
        Broken
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise Broken(f"the stream is far longer than {self._asked:,} tokens need")
        try:
            events = self._events.feed(data)
        except TooLong as error:
            raise Broken(str(error)) from None
        for event in events:
            if event == b"[DONE]":
                self._done = True
                self.answer.ended = at
                return True
            if event:
                self._take(event, at)
        return False

    def _take(self, event: bytes, at: int) -> None:
        try:
            chunk = _CHUNK.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Broken(f"a chunk of the stream cannot be read ({shown(str(error))}): {shown(event)}") from None
        _refuse_error(chunk)
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            self._choose(choice, at)

    def _choose(self, choice: _Choice, at: int) -> None:
        if choice.index != 0:
            raise Broken(f"the stream has a choice {choice.index}, and one choice was asked for, 0")
        # An event without text is none of a token: some servers begin with one, and some end with one.
        if choice.text:
            if self._finished:
                raise Broken("the stream goes on after it gave a reason for its end")
            self._mark(at)
            if self.answer.chunks > self._most:
                raise Broken(f"the stream does not end: {self._asked:,} tokens were asked for")
        if choice.finish_reason in _GIVEN_UP:
            raise Broken(f"the server gave up: it ended the stream with {choice.finish_reason!r}")
        if choice.finish_reason is not None:
            self._finished = True
            self.answer.ended = at

    def _mark(self, at: int) -> None:
        answer = self.answer
        answer.chunks += 1
        if answer.chunks == 1:
            answer.first = at
        else:
            if answer.chunks == 2:
                answer.second = at
            answer.gaps.append(at - answer.last)
        answer.last = at
        answer.tokens = answer.chunks

    def finish(self, now: int) -> None:
        """Take in that no more is read.

        Raises
        ------
        Broken
            When the stream has not said that it is over, or counts what cannot be.
        """
        answer, usage = self.answer, self._usage
        if not (self._finished or (self._done and usage is not None)):
            if self._done:
                raise Broken("the stream has an end, but neither a finish reason nor a usage")
            cut = ", in the middle of an event" if self._events.unfinished else ""
            raise Broken(f"the stream ended before the answer did{cut}")
        odd: list[str] = []
        if usage is None:
            odd.append("the stream had no usage: tokens are counted by chunks, cached tokens are not known")
        else:
            self._count(usage, odd)
        answer.ended = answer.ended or now
        if answer.tokens > 0 and answer.chunks == 0:
            answer.first = answer.second = answer.last = answer.ended
            odd.append("no event of the stream brought text: its tokens are taken to have come with its end")
        if answer.tokens > 1 and answer.chunks == 1:
            answer.second = answer.first
        # Without numbers, so that requests are counted under one cause however far they are off.
        if answer.tokens != self._asked:
            odd.append(f"{'fewer' if answer.tokens < self._asked else 'more'} tokens came than were asked for")
        answer.outcome = RequestState.FINISHED
        answer.cause = "; ".join(odd)

    def _count(self, usage: _Usage, odd: list[str]) -> None:
        """Take in what the server counted; what cannot be true is broken."""
        answer, tokens = self.answer, usage.completion_tokens
        prompt = _bounded("prompt_tokens", usage.prompt_tokens, 0, MAX_TOKENS)
        if tokens is not None:
            _bounded("completion_tokens", tokens, 0 if not answer.chunks else 1, self._most)
            if answer.chunks > tokens:
                odd.append(f"the stream brought {answer.chunks:,} tokens, its usage says {tokens:,}")
            answer.tokens = tokens
        answer.prompt = prompt
        details = usage.prompt_tokens_details
        if details is None or details.cached_tokens is None:
            return
        cached = _bounded("cached_tokens", details.cached_tokens, 0, prompt)
        # Of a prompt that the server counts as another one, nothing can be said; marks of its own were not sent.
        if abs(prompt - self._prompt) <= slack(self._prompt):
            answer.cached = min(cached, self._prompt)


def _bounded(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise Broken(f"the usage cannot be: {name} is {shown(f'{value:,}')}, and lies between {least:,} and {most:,}")
    return value


def _refuse_error(chunk: _Chunk) -> None:
    """Refuse an event that says that the server gave up, under any of the names that servers have for that."""
    if chunk.error is not None:
        raise Broken(f"the server gave up: {message_of(chunk.error)}")
    if chunk.object == "error" or (chunk.choices is None and chunk.usage is None):
        said = chunk.message if chunk.message is not None else chunk.detail
        if said is not None or chunk.object == "error":
            raise Broken(f"the server gave up: {message_of(said if said is not None else 'without a reason')}")


# What a server said, as it is repeated -------------------------------------------------------------------------------


def message_of(error: Any) -> str:
    """Return the message of an error in any of its shapes, on one line and bounded."""
    if isinstance(error, dict):
        error = next((error[name] for name in ("message", "detail", "msg") if error.get(name)), error)
    return shown(str(error))


def shown(said: bytes | str) -> str:
    """Return what a server said on one line, bounded, with nothing in it that a terminal would act upon."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    text = " ".join(text[: 16 * SHOWN].split())
    return printable(text if len(text) <= SHOWN else text[:SHOWN] + "…")
